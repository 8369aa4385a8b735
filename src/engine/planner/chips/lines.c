/* lines.c: see lines.h. SPDX-License-Identifier: MIT */
#include "engine/planner/chips/lines.h"

#include <math.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include "engine/planner/chips/chip.h"

segue_status sg_line_fail(const struct sg_line *line, const char *why, segue_error *err)
{
    return sg_fail(err, SEGUE_EFORMAT, "chip file: %.80s: line %u: %.60s: %s", line->file, line->number, line->key, why);
}

/* Digits are collected as an integer with a decimal exponent, so that the locale's decimal point plays no part. 18 digits are
 * exact in 64 bits; more only shift the exponent. */
int sg_number_of(const char *s, size_t n, double *out)
{
    size_t i = 0, digits = 0;
    uint64_t mantissa = 0;
    int exponent = 0, given = 0, point = 0, negative = n && s[0] == '-', down = 0;
    if (n && (s[0] == '-' || s[0] == '+')) i++;
    for (; i < n && ((s[i] >= '0' && s[i] <= '9') || (s[i] == '.' && !point)); i++) {
        if (s[i] == '.') {
            point = 1;
            continue;
        }
        digits++;
        if (mantissa < UINT64_C(100000000000000000)) {
            mantissa = mantissa * 10 + (uint64_t)(s[i] - '0');
            exponent -= point;
        } else if (!point)
            exponent++;
        if (digits > 400) return 0;
    }
    if (!digits) return 0;
    if (i < n && (s[i] == 'e' || s[i] == 'E')) {
        size_t from = ++i;
        if (i < n && (s[i] == '-' || s[i] == '+')) down = s[i] == '-', from = ++i;
        for (; i < n && s[i] >= '0' && s[i] <= '9'; i++)
            if (given < 10000) given = given * 10 + (s[i] - '0');
        if (i == from) return 0;
    }
    if (i != n) return 0;
    exponent += down ? -given : given;
    *out = (double)mantissa * pow(10, exponent) * (negative ? -1 : 1);
    return isfinite(*out);
}

segue_status sg_line_number(const struct sg_line *line, double low, double high, double *out, segue_error *err)
{
    double v;
    if (!sg_number_of(line->value, strlen(line->value), &v) || v < low || v > high)
        return sg_fail(err, SEGUE_EFORMAT, "chip file: %.80s: line %u: %.60s must be a number from %g to %g", line->file,
                       line->number, line->key, low, high);
    *out = v;
    return SEGUE_OK;
}

/* Copies the next word of [*at, end) into out[80]. Returns its length, 0: none, -1: too long. */
static int next_word(const char **at, const char *end, char *out)
{
    const char *s = *at;
    size_t n = 0;
    while (s < end && (*s == ' ' || *s == '\t' || *s == '\r')) s++;
    while (s + n < end && s[n] != ' ' && s[n] != '\t' && s[n] != '\r') n++;
    if (n > 79) return -1;
    memcpy(out, s, n);
    out[n] = 0;
    *at = s + n;
    return (int)n;
}

/* The source that the comment names; spec if it names none. */
static unsigned char source_of(const char *comment, const char *end)
{
    static const struct {
        const char *word;
        unsigned char source;
    } sources[] = {{"fitted", SG_SOURCE_FITTED}, {"measured", SG_SOURCE_MEASURED}, {"prior", SG_SOURCE_PRIOR}};
    char word[80];
    if (next_word(&comment, end, word) > 0)
        for (size_t i = 0; i < sizeof sources / sizeof *sources; i++)
            if (!strcmp(word, sources[i].word)) return sources[i].source;
    return SG_SOURCE_SPEC;
}

segue_status sg_lines_next(struct sg_lines *l, struct sg_line *out, segue_error *err)
{
    while (l->at < l->end) {
        const char *s = l->at, *newline = memchr(s, '\n', (size_t)(l->end - s)), *end = newline ? newline : l->end;
        l->at = newline ? newline + 1 : l->end;
        *out = (struct sg_line){.number = ++l->number, .file = l->file};
        if (l->number > 100000) return sg_line_fail(out, "more than 100000 lines; this is not a chip file", err);
        for (const char *c = s; c < end; c++)
            if (((unsigned char)*c < 0x20 && *c != '\t' && *c != '\r') || *c == 0x7f)
                return sg_line_fail(out, "it contains a byte that is not text; write lines `key value unit # source`", err);
        const char *comment = memchr(s, '#', (size_t)(end - s));
        out->source = comment ? source_of(comment + 1, end) : SG_SOURCE_SPEC;
        if (comment) end = comment;
        int key = next_word(&s, end, out->key), value = key > 0 ? next_word(&s, end, out->value) : 0;
        if (!key) continue;
        if (key < 0) snprintf(out->key, sizeof out->key, "%s", "a word");
        if (key < 0 || value < 0) return sg_line_fail(out, "more than 79 bytes; write `key value unit # source`", err);
        if (!value) return sg_line_fail(out, "no value; write `key value unit # source`", err);
        return SEGUE_OK;
    }
    return SEGUE_END;
}
