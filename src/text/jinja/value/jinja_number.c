/* jinja_number.c: numbers from and to text by Python's rules, independent of the locale, and the order of
 * numbers.
 * SPDX-License-Identifier: MIT */
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja/value/jinja_text.h"

/* printf writes the decimal point of the locale, which may have several bytes; it is replaced by '.'. */
int sg_float_digits(char *out, size_t cap, char kind, int precision, double f)
{
    int n = kind == 'e'   ? snprintf(out, cap, "%.*e", precision, f)
            : kind == 'f' ? snprintf(out, cap, "%.*f", precision, f)
                          : snprintf(out, cap, "%.*g", precision, f);
    const char *point = localeconv()->decimal_point;
    char *at = n > 0 && strcmp(point, ".") != 0 ? strstr(out, point) : NULL;
    if (at) {
        size_t m = strlen(point);
        *at = '.';
        memmove(at + 1, at + m, strlen(at + m) + 1);
        n -= (int)m - 1;
    }
    return n;
}

/* strtod reads the decimal point of the locale, so '.' is replaced before. The copy leaves 9 bytes for an
 * exponent and a multi-byte point. */
double sg_float_of_digits(const char *digits)
{
    char text[128];
    const char *point = localeconv()->decimal_point;
    size_t n = 0;
    for (const char *p = digits; *p && n + 9 < sizeof text; p++) {
        if (*p != '.')
            text[n++] = *p;
        else
            for (const char *q = point; *q && n + 9 < sizeof text; q++) text[n++] = *q;
    }
    text[n] = 0;
    return strtod(text, NULL);
}

/* What int() and float() allow around digits: whitespace at both ends, and single underscores between
 * characters. Copies the rest to out[cap]. 0: empty, too long, or a misplaced underscore. */
static size_t clean_number(const char *s, size_t n, char *out, size_t cap)
{
    const char *e = s + n, *p = s;
    size_t m = 0;
    while (p < e) {
        const char *q = p;
        if (!sg_char_is(sg_char_get(&q), SG_IS_SPACE)) break;
        p = q;
    }
    while (e > p) {
        const char *q = e - 1;
        while (q > p && ((unsigned char)*q & 0xc0) == 0x80) q--;
        const char *r = q;
        if (!sg_char_is(sg_char_get(&r), SG_IS_SPACE)) break;
        e = q;
    }
    for (; p < e; p++) {
        if (*p == '_' && m && p + 1 < e && p[-1] != '_') continue;
        if (*p == '_' || m + 1 >= cap) return 0;
        out[m++] = *p;
    }
    out[m] = 0;
    return m;
}

/* float(s): inf, infinity and nan in any case, else a decimal number with an optional exponent. Hexadecimal
 * floats of C are rejected by checking the grammar before strtod. */
int sg_float_parse(const char *s, size_t n, double *out)
{
    char text[112];
    size_t m = clean_number(s, n, text, sizeof text), i = 0, digits = 0;
    if (!m) return 0;
    int neg = text[0] == '-';
    if (text[0] == '-' || text[0] == '+') i = 1;
    char low[12] = {0};
    for (size_t k = 0; k < 11 && text[i + k]; k++) low[k] = (char)(text[i + k] | 32);
    if (!strcmp(low, "inf") || !strcmp(low, "infinity")) return *out = neg ? -INFINITY : INFINITY, 1;
    if (!strcmp(low, "nan")) return *out = NAN, 1;
    for (; text[i] >= '0' && text[i] <= '9'; i++) digits++;
    if (text[i] == '.')
        for (i++; text[i] >= '0' && text[i] <= '9'; i++) digits++;
    if (!digits) return 0;
    if (text[i] == 'e' || text[i] == 'E') {
        i++;
        if (text[i] == '-' || text[i] == '+') i++;
        if (text[i] < '0' || text[i] > '9') return 0;
        while (text[i] >= '0' && text[i] <= '9') i++;
    }
    if (i != m) return 0;
    *out = sg_float_of_digits(text);
    return 1;
}

/* int(s, base) with base 2 to 36, or 0 for a prefix. Prefixes 0x, 0o and 0b count only if they match the
 * base; base 0 rejects leading zeros, as Python does. */
int sg_int_parse(const char *s, size_t n, int base, int64_t *out)
{
    char text[112];
    size_t m = clean_number(s, n, text, sizeof text), i = 0;
    uint64_t v = 0;
    if (!m) return 0;
    int neg = text[0] == '-', over = 0;
    if (text[0] == '-' || text[0] == '+') i = 1;
    char x = text[i] == '0' ? (char)(text[i + 1] | 32) : 0;
    int marked = x == 'x' ? 16 : x == 'o' ? 8 : x == 'b' ? 2 : 0;
    if (marked && (base == marked || base == 0)) {
        i += 2;
        base = marked;
    }
    if (base == 0) {
        base = 10;
        if (text[i] == '0' && strspn(text + i, "0") != strlen(text + i)) return 0;
    }
    if (i == m) return 0;
    for (; i < m; i++) {
        char c = (char)(text[i] | 32);
        int d = text[i] >= '0' && text[i] <= '9' ? text[i] - '0' : c >= 'a' && c <= 'z' ? c - 'a' + 10 : 99;
        if (d >= base) return 0;
        /* The overflow is remembered and the scan continues: text that is not an integer at all must return 0,
         * not -1. */
        if (v > ((uint64_t)INT64_MAX + 1 - (uint64_t)d) / (uint64_t)base) over = 1;
        v = v * (uint64_t)base + (uint64_t)d;
    }
    if (over || v > (uint64_t)INT64_MAX + (neg ? 1 : 0)) return -1;
    *out = neg ? (int64_t)(0 - v) : (int64_t)v;
    return 1;
}

/* Exact where a double cannot represent the integer: the integral part is compared as an integer, then the
 * fraction decides. */
int sg_number_order(struct sg_val a, struct sg_val b)
{
    if (a.kind != SG_V_FLOAT && b.kind != SG_V_FLOAT) return (a.u.i > b.u.i) - (a.u.i < b.u.i);
    if (a.kind == SG_V_FLOAT && b.kind == SG_V_FLOAT)
        return isnan(a.u.f) || isnan(b.u.f) ? 2 : (a.u.f > b.u.f) - (a.u.f < b.u.f);
    if (a.kind == SG_V_FLOAT) {
        int r = sg_number_order(b, a);
        return r == 2 ? 2 : -r;
    }
    if (isnan(b.u.f)) return 2;
    /* 2^63: outside of the range of int64_t the conversion below would be undefined. */
    if (b.u.f >= 9223372036854775808.0) return -1;
    if (b.u.f < -9223372036854775808.0) return 1;
    int64_t whole = (int64_t)b.u.f;
    if (a.u.i != whole) return a.u.i > whole ? 1 : -1;
    double rest = b.u.f - (double)whole;
    return (rest < 0) - (rest > 0);
}
