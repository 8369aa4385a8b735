/* millex.c: see millex.h. Numbers are read independently of the locale, because the library may run in a
 * program that has set one.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/mil/millex.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void sg_mil_lexer_init(struct sg_mil_lexer *lx, const char *text, size_t n)
{
    *lx = (struct sg_mil_lexer){text, text + n, text, 1};
}

/* Own functions instead of <ctype.h>, which depends on the locale. */
static int is_digit(char c) { return c >= '0' && c <= '9'; }
/* Characters of a name. A name cannot begin with a digit, because digits are tested first. */
static int is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || is_digit(c);
}

/* Skips white space and comments from // to the end of the line, and counts lines. */
static void skip_space(struct sg_mil_lexer *lx)
{
    for (; lx->text < lx->end; lx->text++) {
        char c = *lx->text;
        if (c == '\n') {
            lx->line++;
            lx->line_start = lx->text + 1;
        } else if (c == '/' && lx->text + 1 < lx->end && lx->text[1] == '/') {
            while (lx->text + 1 < lx->end && lx->text[1] != '\n') lx->text++;
        } else if (c != ' ' && c != '\t' && c != '\r')
            return;
    }
}

/* Length of a token that begins like a number: a sign, then all characters that can be part of one, with a
 * sign after an exponent letter. sg_mil_number decides later whether it is valid, so 1..2 is one bad
 * number. */
static size_t number_length(const char *s, const char *end)
{
    const char *p = s + (*s == '-' || *s == '+');
    while (p < end && (is_name(*p) || *p == '.' || ((*p == '-' || *p == '+') && strchr("eEpP", p[-1])))) p++;
    return (size_t)(p - s);
}

/* A string ends at the first unescaped quote and cannot contain a newline. */
static struct sg_mil_token lex_quoted(struct sg_mil_lexer *lx, struct sg_mil_token w)
{
    const char *p = lx->text + 1;
    /* A backslash takes the next byte with it, so an escaped quote does not end the string. */
    while (p < lx->end && *p != '"' && *p != '\n') p += *p == '\\' && p + 1 < lx->end && p[1] != '\n' ? 2 : 1;
    if (p >= lx->end || *p != '"') {
        w.kind = SG_MIL_BAD_BYTE;
        return w;
    }
    w.kind = SG_MIL_QUOTED_TEXT;
    w.at = lx->text + 1;
    w.n = (size_t)(p - w.at);
    lx->text = p + 1;
    return w;
}

/* The first byte decides the kind of a token; `->` is tested before numbers, because both can begin with a
 * minus. */
struct sg_mil_token sg_mil_lexer_next(struct sg_mil_lexer *lx)
{
    skip_space(lx);
    struct sg_mil_token w = {.kind = SG_MIL_END,
                            .at = lx->text,
                            .line = lx->line,
                            .column = (uint32_t)(lx->text - lx->line_start) + 1};
    if (lx->text >= lx->end) return w;
    char c = *lx->text;
    if (c == '"') {
        w.punct = c;
        return lex_quoted(lx, w);
    }
    if (c == '-' && lx->text + 1 < lx->end && lx->text[1] == '>') {
        w.kind = SG_MIL_ARROW;
        w.n = 2;
    } else if (is_digit(c) || c == '-' || c == '+' || c == '.') {
        w.kind = SG_MIL_NUMBER;
        w.n = number_length(lx->text, lx->end);
    } else if (is_name(c)) {
        w.kind = SG_MIL_NAME;
        while (lx->text + w.n < lx->end && is_name(lx->text[w.n])) w.n++;
    } else {
        w.kind = c && strchr("<>()[]{}=,;?:", c) ? SG_MIL_PUNCT : SG_MIL_BAD_BYTE;
        w.punct = c;
        w.n = 1;
        if (w.kind == SG_MIL_BAD_BYTE) return w;
    }
    lx->text += w.n;
    return w;
}

/* Value of a hexadecimal digit; -1: not one. */
static int hex_of(char c)
{
    return is_digit(c)            ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* Digits after 0x, such as 1.8p-3. Digits beyond 64 bits and exponents beyond 20000 are rejected, so that
 * neither integer overflows. */
static int hex_number(const char *s, double *real, int *whole, int64_t *as_whole)
{
    uint64_t bits = 0;
    long exponent = 0, scale = 0, digits = 0;
    for (; hex_of(*s) >= 0 || *s == '.'; s++) {
        if (*s == '.') {
            if (scale) return 0; /* a second point */
            scale = 1;
            continue;
        }
        if (bits >> 60) return 0;
        bits = bits << 4 | (uint64_t)hex_of(*s);
        digits++;
        if (scale) exponent -= 4;
    }
    if (!digits) return 0;
    *whole = !scale && !*s;
    *as_whole = (int64_t)bits;
    if (*s == 'p' || *s == 'P') {
        char *end;
        if (!is_digit(s[1]) && !((s[1] == '-' || s[1] == '+') && is_digit(s[2]))) return 0;
        long p = strtol(s + 1, &end, 10);
        if (*end || p < -20000 || p > 20000) return 0;
        exponent += p;
    } else if (*s)
        return 0;
    *real = ldexp((double)bits, (int)exponent);
    return 1;
}

/* strtod expects the decimal point of the locale, so the point is replaced before the call. Numbers that
 * overflow a double are rejected. */
static int decimal_number(char *s, double *real, int *whole, int64_t *as_whole)
{
    char *end;
    *whole = strspn(s, "0123456789") == strlen(s);
    if (*whole) {
        errno = 0;
        *as_whole = (int64_t)strtoull(s, &end, 10);
        if (errno || !*s) return 0;
    }
    if (strspn(s, "0123456789.eE+-") != strlen(s) || (!is_digit(*s) && *s != '.')) return 0;
    /* Only the first point is replaced; a second one makes strtod stop early, and the number is rejected. */
    char *point = strchr(s, '.');
    if (point && localeconv()->decimal_point[0]) *point = localeconv()->decimal_point[0];
    *real = strtod(s, &end);
    return end != s && !*end && isfinite(*real);
}

/* No valid number needs more than 71 bytes; the copy makes the token a C string for strtod. The sign is
 * applied last; integers below -2^63 are rejected. */
int sg_mil_number(const struct sg_mil_token *w, double *real, int *whole, int64_t *as_whole)
{
    char copy[72];
    *whole = 0;
    if ((w->kind != SG_MIL_NUMBER && w->kind != SG_MIL_NAME) || !w->n || w->n >= sizeof copy) return 0;
    memcpy(copy, w->at, w->n);
    copy[w->n] = 0;
    int negative = copy[0] == '-';
    char *s = copy + (negative || copy[0] == '+');
    if (!strcmp(s, "inf"))
        *real = INFINITY;
    else if (!strcmp(s, "nan"))
        *real = NAN;
    else if (s[0] == '0' && (s[1] == 'x' || s[1] == 'X')) {
        if (!hex_number(s + 2, real, whole, as_whole)) return 0;
    } else if (!decimal_number(s, real, whole, as_whole))
        return 0;
    if (!negative) return 1;
    /* The magnitude was read as unsigned, so -2^63 is representable. */
    *real = -*real;
    if (!*whole) return 1;
    if ((uint64_t)*as_whole > (uint64_t)1 << 63) return 0;
    *as_whole = (int64_t)(0 - (uint64_t)*as_whole);
    return 1;
}
