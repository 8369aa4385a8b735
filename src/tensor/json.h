/* json.h: reading JSON documents with jansson: strict parsing, typed access with defaults, errors
 * as segue_error.
 * SPDX-License-Identifier: MIT */
#ifndef SG_TENSOR_JSON_H
#define SG_TENSOR_JSON_H

#include <jansson.h>

#include "base/err.h"

/* Deepest nesting of arrays and objects that is parsed. jansson recurses per level, about 300 bytes of stack each. */
enum { SG_JSON_DEPTH = 100 };
/* 1: the text nests deeper than SG_JSON_DEPTH; it must not be given to jansson. */
int sg_json_too_deep(const char *text, size_t len);
/* Parse a complete text. Duplicate keys are refused. `what` names the text in error messages, which
 * also give line and column. EFORMAT, EMEMORY. The caller frees *out with json_decref. */
segue_status sg_json_parse(json_t **out, const char *text, size_t len, const char *what, segue_error *err);
/* sg_json_parse of a file of at most `limit` bytes. EIO, ELIMIT too. */
segue_status sg_json_read(json_t **out, const char *path, size_t limit, segue_error *err);

/* Read member `key` of object o: `fallback` when it is absent or null, EFORMAT when it has another
 * type. */
segue_status sg_json_int(const json_t *o, const char *key, int64_t fallback, int64_t *out, const char *what,
                         segue_error *err);
segue_status sg_json_real(const json_t *o, const char *key, double fallback, double *out, const char *what,
                          segue_error *err);
segue_status sg_json_bool(const json_t *o, const char *key, int fallback, int *out, const char *what,
                          segue_error *err);
/* A string member, by the same rules. *out is owned by o. */
segue_status sg_json_text(const json_t *o, const char *key, const char *fallback, const char **out,
                          const char *what, segue_error *err);

#endif
