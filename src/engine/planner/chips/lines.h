/* lines.h: the line format of chip files: `key value unit # source`. Empty lines and comments are skipped.
 * SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_LINES_H
#define SG_ENGINE_LINES_H

#include <stdint.h>

#include "base/mem.h"

struct sg_lines {
    const char *at, *end, *file; /* what is left of the text; the name for messages */
    uint32_t number;             /* of the last line read */
};

struct sg_line {
    char key[80], value[80];
    unsigned char source; /* enum sg_chip_source; by the first word of the comment */
    uint32_t number;
    const char *file;
};

/* The next line with a key. END: there is none. EFORMAT: control bytes, a key without a value, a word of more than 79 bytes, or
 * more than 10^5 lines. */
segue_status sg_lines_next(struct sg_lines *lines, struct sg_line *out, segue_error *err);
/* The value as a finite number in [low, high]. EFORMAT. */
segue_status sg_line_number(const struct sg_line *line, double low, double high, double *out, segue_error *err);
/* EFORMAT with file, line and key. */
segue_status sg_line_fail(const struct sg_line *line, const char *why, segue_error *err);
/* A decimal number of n bytes, with optional sign, fraction and exponent, and nothing after it, in the C locale's form in every
 * locale. Returns 0 if it is not one or not finite. */
int sg_number_of(const char *s, size_t n, double *out);

#endif
