/* jinja_text.h: values to text and text to numbers, as Python does it: str(), repr(), json.dumps, formatting, case
 * mappings. Nothing here depends on the locale.
 * SPDX-License-Identifier: MIT */
#ifndef SG_TEXT_JINJA_TEXT_H
#define SG_TEXT_JINJA_TEXT_H

#include <jansson.h>

#include "text/jinja/value/jinja_value.h"

/* --- jinja_char.c: characters of valid UTF-8 --- */

uint32_t sg_char_get(const char **p); /* decode one character and advance *p */
enum {
    SG_IS_ALPHA,
    SG_IS_DECIMAL,
    SG_IS_DIGIT,
    SG_IS_NUMERIC,
    SG_IS_LOWER,
    SG_IS_UPPER,
    SG_IS_TITLE,
    SG_IS_PRINTABLE,
    SG_IS_SPACE,
    SG_IS_CASED,         /* lower, upper or title case */
    SG_IS_CASE_IGNORABLE /* the Unicode property, for the final sigma */
};
/* Classes of Python's str.isalpha() and so on. */
int sg_char_is(uint32_t c, int what);
int sg_char_line(uint32_t c); /* 1: ends a line for str.splitlines */
enum { SG_CASE_UPPER, SG_CASE_LOWER, SG_CASE_TITLE, SG_CASE_SWAP };
/* Case mapping of one character without context; how: not SWAP. Returns the number of characters, 1 to 3. */
size_t sg_char_case(uint32_t c, int how, uint32_t out[3]);
/* First occurrence of what[m] in s[n], NULL = none; an empty text is found at s. */
const char *sg_find_bytes(const char *s, size_t n, const char *what, size_t m);

/* --- jinja_number.c --- */

/* Digits of a finite f as printf's %.*e, %.*f or %.*g (kind), always with '.'. Returns the length. */
int sg_float_digits(char *out, size_t cap, char kind, int precision, double f);
double sg_float_of_digits(const char *digits);            /* strtod with '.', whatever the locale */
int sg_float_parse(const char *s, size_t n, double *out); /* float(s); 0 = not a number */
int sg_int_parse(const char *s, size_t n, int base, int64_t *out); /* int(s, base); 0 = no integer, -1 = over 64 bits */
int sg_number_order(struct sg_val a, struct sg_val b);    /* of numbers: -1 0 1, 2 = one is NaN */

/* --- jinja_text.c --- */

/* Append to b. All text is written through these: they count steps and report the buffer's limit. */
segue_status sg_put(struct sg_jinja *st, struct sg_buf *b, const char *s, size_t n);
segue_status sg_put_cstr(struct sg_jinja *st, struct sg_buf *b, const char *s);
segue_status sg_put_char(struct sg_jinja *st, struct sg_buf *b, uint32_t c);
segue_status sg_put_str(struct sg_jinja *st, struct sg_buf *b, struct sg_val v);  /* str(v) */
segue_status sg_put_repr(struct sg_jinja *st, struct sg_buf *b, struct sg_val v); /* repr(v) */
segue_status sg_put_float(struct sg_jinja *st, struct sg_buf *b, double f);
segue_status sg_val_text(struct sg_jinja *st, struct sg_val v, struct sg_val *out); /* str(v) as a value, not Markup */
/* v as Markup: str(v) with & < > " ' escaped; Markup is returned as it is. */
segue_status sg_str_escape(struct sg_jinja *st, struct sg_val v, struct sg_val *out);

/* --- jinja_case.c --- */

/* Append bytes [from, to) of s in another case; looks at all of s for the final sigma. */
segue_status sg_case_put(struct sg_jinja *st, struct sg_buf *b, const struct sg_str *s, size_t from, size_t to, int how);

/* --- jinja_json.c --- */

/* Arguments of json.dumps. */
struct sg_json_style {
    int ascii, sort, indented;
    const char *indent, *item_sep, *key_sep; /* indent: text of one level */
    size_t indent_n, item_n, key_n;          /* their lengths in bytes */
};
segue_status sg_put_json(struct sg_jinja *st, struct sg_buf *b, struct sg_val v, const struct sg_json_style *style,
                         size_t level);
/* Strings and keys are not copied: json must outlive the rendering. */
segue_status sg_val_from_json(struct sg_jinja *st, const json_t *json, struct sg_val *out);

/* --- jinja_format.c, jinja_time.c --- */

segue_status sg_format_percent(struct sg_jinja *st, struct sg_str *format, struct sg_val args, struct sg_val *out);
segue_status sg_format_braces(struct sg_jinja *st, struct sg_str *format, const struct sg_call_args *args,
                              struct sg_val *out);
segue_status sg_format_time(struct sg_jinja *st, struct sg_str *format, struct sg_val *out);

#endif
