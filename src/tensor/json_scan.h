/* json_scan.h: a JSON scanner that reads in one pass and allocates nothing. For the headers of
 * weight files, which may be 100 MB of untrusted text: a parsed tree of them would need gigabytes.
 * Everything else is read with json.h. All functions fail with EFORMAT, naming the byte offset and
 * what was expected there.
 * SPDX-License-Identifier: MIT */
#ifndef SG_TENSOR_JSON_SCAN_H
#define SG_TENSOR_JSON_SCAN_H

#include "base/err.h"

struct sg_json_scan {
    const char *text; /* [len], not NUL-terminated; owned by the caller */
    size_t len, at;   /* at: the next byte to read */
    const char *what; /* file name for error messages */
    size_t base;      /* offset of text in that file, for error messages */
};

/* Fails at the current position: `expected` describes what should follow. */
segue_status sg_scan_fail(const struct sg_json_scan *s, const char *expected, segue_error *err);
/* Skip white space and return the next character without consuming it; 0 at the end. */
char sg_scan_peek(struct sg_json_scan *s);
/* Skip white space and consume the character c. */
segue_status sg_scan_char(struct sg_json_scan *s, char c, segue_error *err);
/* Step to the next element of an object or array, after '{' or '['. *more = 1: an element follows,
 * a comma before it is consumed. *more = 0: `end` was reached and is consumed. The caller sets
 * *first to 1 before the first call. */
segue_status sg_scan_more(struct sg_json_scan *s, char end, int *first, int *more, segue_error *err);
/* Read a string with its escapes decoded into out[cap], NUL-terminated; *len excludes the NUL.
 * Refuses longer strings. */
segue_status sg_scan_string(struct sg_json_scan *s, char *out, size_t cap, size_t *len, segue_error *err);
/* Read an integer without sign, fraction or exponent. */
segue_status sg_scan_uint(struct sg_json_scan *s, uint64_t *out, segue_error *err);
/* Skip any value of at most 32 nesting levels. Numbers and literals are checked loosely. */
segue_status sg_scan_skip(struct sg_json_scan *s, segue_error *err);

#endif
