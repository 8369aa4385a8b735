/* json_scan.h: JSON read in one pass without building anything. Headers of weight files may be 100 MB of
 * hostile text; a tree of it would take gigabytes, a scan takes none. json.h reads everything else.
 * SPDX-License-Identifier: MIT */
#ifndef SG_TENSOR_JSON_SCAN_H
#define SG_TENSOR_JSON_SCAN_H

#include "base/err.h"

struct sg_json_scan {
    const char *text;
    size_t len, at;
    const char *what; /* the file, for errors */
    size_t base;      /* offset of text in its file, for errors */
};

segue_status sg_scan_fail(const struct sg_json_scan *s, const char *expected, segue_error *err);
/* Next character after white space, 0 at the end; not consumed. */
char sg_scan_peek(struct sg_json_scan *s);
segue_status sg_scan_char(struct sg_json_scan *s, char c, segue_error *err);
/* In an object or array after '{' or '[': *more = 0 at its end, which is consumed; else the comma is
 * consumed. *first starts as 1. */
segue_status sg_scan_more(struct sg_json_scan *s, char end, int *first, int *more, segue_error *err);
/* A string, escapes undone, into out[cap] (NUL-terminated); longer ones are refused. */
segue_status sg_scan_string(struct sg_json_scan *s, char *out, size_t cap, size_t *len, segue_error *err);
/* A whole number without sign, fraction or exponent. */
segue_status sg_scan_uint(struct sg_json_scan *s, uint64_t *out, segue_error *err);
/* Any value, checked loosely, at most 32 levels deep. */
segue_status sg_scan_skip(struct sg_json_scan *s, segue_error *err);

#endif
