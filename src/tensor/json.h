/* json.h: jansson with this house's errors and bounds.
 * SPDX-License-Identifier: MIT */
#ifndef SG_TENSOR_JSON_H
#define SG_TENSOR_JSON_H

#include <jansson.h>

#include "base/err.h"

/* Parse a whole text; duplicate keys are refused; `what` names it in errors (with line and column). Free with
 * json_decref. */
segue_status sg_json_parse(json_t **out, const char *text, size_t len, const char *what, segue_error *err);
segue_status sg_json_read(json_t **out, const char *path, size_t limit, segue_error *err);

/* Member `key` of an object; fallback when absent or null; EFORMAT when of another kind. */
segue_status sg_json_int(const json_t *o, const char *key, int64_t fallback, int64_t *out, const char *what,
                         segue_error *err);
segue_status sg_json_real(const json_t *o, const char *key, double fallback, double *out, const char *what,
                          segue_error *err);
segue_status sg_json_bool(const json_t *o, const char *key, int fallback, int *out, const char *what,
                          segue_error *err);
/* Borrowed from o; *out = fallback when absent. */
segue_status sg_json_text(const json_t *o, const char *key, const char *fallback, const char **out,
                          const char *what, segue_error *err);

#endif
