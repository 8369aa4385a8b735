/* schema_number.c: numbers of a schema: without bounds in all of JSON's spellings, with bounds as plain decimals that are
 * compared digit by digit. SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/grammar/schema.h"

/* Digits of a number before and after the point, and of an exponent. */
enum { WHOLE_MAX = 32, FRACTION_MAX = 32, EXPONENT_MAX = 3 };

static void repeat_digits(struct sg_schema *s, uint32_t rule, uint32_t min, uint32_t max)
{
    sg_build_byte_range(s->b, rule, '0', '9');
    if (!s->b->status) sg_build_repeat_last(s->b, rule, min, max);
}

/* -? (0 | [1-9][0-9]*) */
static void build_whole(struct sg_schema *s, uint32_t rule)
{
    uint32_t sign = sg_build_rule(s->b), whole = sg_build_rule(s->b);
    if (s->b->status) return;
    sg_build_end(s->b, sign);
    sg_build_text(s->b, sign, "-", 1);
    sg_build_end(s->b, sign);
    sg_build_text(s->b, whole, "0", 1);
    sg_build_end(s->b, whole);
    sg_build_byte_range(s->b, whole, '1', '9');
    repeat_digits(s, whole, 0, WHOLE_MAX - 1);
    sg_build_end(s->b, whole);
    sg_build_call(s->b, rule, sign);
    sg_build_call(s->b, rule, whole);
}

static void build_free(struct sg_schema *s, uint32_t rule, int integer)
{
    build_whole(s, rule);
    if (!integer) {
        uint32_t fraction = sg_build_rule(s->b), exponent = sg_build_rule(s->b);
        struct sg_byte_set e = {{0}}, sign = {{0}};
        if (s->b->status) return;
        e.bits['e' / 32] = UINT32_C(1) << 'e' % 32;
        e.bits['E' / 32] |= UINT32_C(1) << 'E' % 32;
        sign.bits['+' / 32] = UINT32_C(1) << '+' % 32 | UINT32_C(1) << '-' % 32;
        sg_build_end(s->b, fraction);
        sg_build_text(s->b, fraction, ".", 1);
        repeat_digits(s, fraction, 1, FRACTION_MAX);
        sg_build_end(s->b, fraction);
        sg_build_end(s->b, exponent);
        sg_build_bytes(s->b, exponent, &e);
        sg_build_bytes(s->b, exponent, &sign);
        sg_build_repeat_last(s->b, exponent, 0, 1);
        repeat_digits(s, exponent, 1, EXPONENT_MAX);
        sg_build_end(s->b, exponent);
        sg_build_call(s->b, rule, fraction);
        sg_build_call(s->b, rule, exponent);
    }
    sg_build_end(s->b, rule);
}

/* --- bounds --- */

/* A bound that is not negative: its digits, and whether the bound itself is out. */
struct number_bound {
    char whole[WHOLE_MAX + 1], fraction[FRACTION_MAX + 1];
    uint32_t whole_n, fraction_n;
    int strict, none; /* none: no bound */
};

/* Digits of v, which is not negative (but may be -0), as its shortest decimal. 0: too many digits. */
static int read_bound(double v, int strict, struct number_bound *out)
{
    char text[400], best[400] = "";
    *out = (struct number_bound){.strict = strict};
    v = fabs(v);
    for (int digits = 0; digits <= FRACTION_MAX && !*best; digits++) {
        snprintf(text, sizeof text, "%.*f", digits, v);
        if (strtod(text, NULL) == v) memcpy(best, text, sizeof text);
    }
    const char *point = strchr(best, '.');
    size_t whole = point ? (size_t)(point - best) : strlen(best);
    if (!*best || whole >= WHOLE_MAX) return 0;
    memcpy(out->whole, best, whole);
    out->whole_n = (uint32_t)whole;
    out->fraction_n = point ? (uint32_t)strlen(point + 1) : 0;
    if (point) memcpy(out->fraction, point + 1, out->fraction_n);
    return 1;
}

/* Numbers from low to high while their digits are built. The states of a number of `length` digits before the point: position,
 * and whether all digits so far equal those of the bound below (bit 0) and above (bit 1). */
struct range {
    struct sg_schema *s;
    const struct number_bound *low, *high;
    int integer;
    uint32_t whole[WHOLE_MAX + 1][4], fraction[FRACTION_MAX + 2][4]; /* rules; SG_NO_RULE: not there */
};

static uint32_t digit_of(const char *digits, uint32_t n, uint32_t at) { return at < n ? (uint32_t)(digits[at] - '0') : 0; }

/* Alternatives for one more digit, from `least` on, where the bounds have digits dl and dh; rules: of the next position. */
static void build_digit(struct range *r, uint32_t rule, uint32_t tight, uint32_t least, uint32_t dl, uint32_t dh,
                        const uint32_t rules[4])
{
    for (uint32_t d = least; d < 10;) {
        if ((tight & 1 && d < dl) || (tight & 2 && d > dh)) {
            d++;
            continue;
        }
        uint32_t next = (tight & 1 && d == dl ? 1u : 0) | (tight & 2 && d == dh ? 2u : 0), end = d;
        /* Digits with the same consequence are one range. */
        while (!next && end < 9 && !(tight & 1 && end + 1 == dl) && !(tight & 2 && end + 1 >= dh)) end++;
        sg_build_byte_range(r->s->b, rule, '0' + d, '0' + end);
        sg_build_call(r->s->b, rule, rules[next]);
        sg_build_end(r->s->b, rule);
        d = end + 1;
    }
}

static int all_zero(const char *digits, uint32_t n, uint32_t from)
{
    for (uint32_t i = from; i < n; i++)
        if (digits[i] != '0') return 0;
    return 1;
}

/* 1: a number whose fraction ends after k digits is in the range. */
static int may_end(const struct range *r, uint32_t tight, uint32_t k)
{
    if (tight & 1 && (!all_zero(r->low->fraction, r->low->fraction_n, k) || r->low->strict)) return 0;
    return !(tight & 2 && r->high->strict && all_zero(r->high->fraction, r->high->fraction_n, k));
}

/* The rules of fractions after k digits: the end, or one more digit. After the last digit of both bounds all rules are
 * equal. */
static void build_fractions(struct range *r)
{
    struct sg_schema *s = r->s;
    uint32_t last = (r->low->fraction_n > r->high->fraction_n ? r->low->fraction_n : r->high->fraction_n) + 1;
    for (uint32_t k = 0; k <= last; k++)
        for (uint32_t t = 0; t < 4; t++) r->fraction[k][t] = sg_build_rule(s->b);
    for (uint32_t k = 0; k <= last && !s->b->status; k++) {
        repeat_digits(s, r->fraction[k][0], k ? 0 : 1, FRACTION_MAX);
        sg_build_end(s->b, r->fraction[k][0]);
        for (uint32_t t = 1; t < 4; t++) {
            if (k && may_end(r, t, k)) sg_build_end(s->b, r->fraction[k][t]);
            build_digit(r, r->fraction[k][t], t, 0, digit_of(r->low->fraction, r->low->fraction_n, k),
                        digit_of(r->high->fraction, r->high->fraction_n, k), r->fraction[k < last ? k + 1 : last]);
        }
    }
}

/* After all digits before the point. */
static void build_point(struct range *r, uint32_t rule, uint32_t tight)
{
    if (may_end(r, tight, 0)) sg_build_end(r->s->b, rule);
    if (r->integer) return;
    sg_build_text(r->s->b, rule, ".", 1);
    sg_build_call(r->s->b, rule, r->fraction[0][tight]);
    sg_build_end(r->s->b, rule);
}

/* Numbers with `length` digits before the point; an alternative of rule. */
static void build_length(struct range *r, uint32_t rule, uint32_t length)
{
    struct sg_schema *s = r->s;
    uint32_t tight = (length == r->low->whole_n ? 1u : 0) | (!r->high->none && length == r->high->whole_n ? 2u : 0);
    for (uint32_t k = 0; k <= length; k++)
        for (uint32_t t = 0; t < 4; t++) r->whole[k][t] = t & ~tight ? SG_NO_RULE : sg_build_rule(s->b);
    for (uint32_t k = 0; k < length && !s->b->status; k++)
        for (uint32_t t = 0; t < 4; t++) {
            uint32_t least = !k && length > 1 ? 1 : 0;
            if (r->whole[k][t] != SG_NO_RULE)
                build_digit(r, r->whole[k][t], t, least, digit_of(r->low->whole, r->low->whole_n, k),
                            digit_of(r->high->whole, r->high->whole_n, k), r->whole[k + 1]);
        }
    for (uint32_t t = 0; t < 4 && !s->b->status; t++)
        if (r->whole[length][t] != SG_NO_RULE) build_point(r, r->whole[length][t], t);
    if (s->b->status) return;
    sg_build_call(s->b, rule, r->whole[0][tight]);
    sg_build_end(s->b, rule);
}

/* Numbers with more digits before the point than the lower bound, where there is no upper one. */
static void build_longer(struct range *r, uint32_t rule)
{
    uint32_t point = sg_build_rule(r->s->b);
    if (r->s->b->status) return;
    build_point(r, point, 0);
    sg_build_byte_range(r->s->b, rule, '1', '9');
    repeat_digits(r->s, rule, r->low->whole_n, WHOLE_MAX - 1);
    sg_build_call(r->s->b, rule, point);
    sg_build_end(r->s->b, rule);
}

/* A rule for numbers from low to high, both not negative. */
static uint32_t build_between(struct sg_schema *s, const struct number_bound *low, const struct number_bound *high, int integer)
{
    struct range *r = sg_alloc(sizeof *r);
    uint32_t rule = sg_build_rule(s->b), longest = high->none ? low->whole_n : high->whole_n;
    if (!r) s->b->status = sg_no_memory("schema", sizeof *r, s->b->err);
    if (s->b->status) {
        sg_free(r);
        return 0;
    }
    *r = (struct range){.s = s, .low = low, .high = high, .integer = integer};
    if (!integer) build_fractions(r);
    for (uint32_t n = low->whole_n; n <= longest && !s->b->status; n++) build_length(r, rule, n);
    if (high->none && !s->b->status) build_longer(r, rule);
    sg_free(r);
    return rule;
}

static void build_bounded(struct sg_schema *s, uint32_t rule, double low, int low_strict, double high, int high_strict,
                          int integer)
{
    struct number_bound from, to;
    int fits = 1;
    if (high >= 0) {
        fits = read_bound(low > 0 ? low : 0, low >= 0 ? low_strict : 0, &from);
        to = (struct number_bound){.none = 1};
        if (isfinite(high)) fits = fits && read_bound(high, high_strict, &to);
        if (fits) {
            sg_build_call(s->b, rule, build_between(s, &from, &to, integer));
            sg_build_end(s->b, rule);
        }
    }
    if (low < 0 && fits) {
        fits = read_bound(high < 0 ? -high : 0, high <= 0 ? high_strict : 0, &from);
        to = (struct number_bound){.none = 1};
        if (isfinite(low)) fits = fits && read_bound(-low, low_strict, &to);
        if (fits) {
            sg_build_text(s->b, rule, "-", 1);
            sg_build_call(s->b, rule, build_between(s, &from, &to, integer));
            sg_build_end(s->b, rule);
        }
    }
    if (!fits) sg_build_fail(s->b, SEGUE_EUNSUPPORTED, "schema: minimum, maximum: a bound has too many digits; round it");
}

/* The bound of two keywords. *set: there is one. */
static double read_limit(struct sg_schema *s, json_t *schema, const char *key, const char *exclusive, int upper, int *strict,
                         int *set)
{
    json_t *v = json_object_get(schema, key), *e = json_object_get(schema, exclusive);
    double limit = upper ? (double)INFINITY : -(double)INFINITY;
    if ((v && !json_is_number(v)) || (e && !json_is_number(e) && !json_is_boolean(e)))
        sg_build_fail(s->b, SEGUE_EFORMAT, "schema: %s: expected a number", json_is_number(v) || !v ? exclusive : key);
    *strict = json_is_true(e); /* before draft 6: a switch for the bound beside it */
    if (v) limit = json_number_value(v), *set = 1;
    if (json_is_number(e)) {
        double other = json_number_value(e);
        if (!v || (upper ? other <= limit : other >= limit)) limit = other, *strict = 1;
        *set = 1;
    }
    return limit;
}

void sg_schema_number(struct sg_schema *s, json_t *schema, uint32_t rule, int integer)
{
    int set = 0, low_strict, high_strict;
    json_t *multiple = json_object_get(schema, "multipleOf");
    double low = read_limit(s, schema, "minimum", "exclusiveMinimum", 0, &low_strict, &set);
    double high = read_limit(s, schema, "maximum", "exclusiveMaximum", 1, &high_strict, &set);
    if (multiple && json_number_value(multiple) != 1.0)
        sg_build_fail(s->b, SEGUE_EUNSUPPORTED, "schema: multipleOf: not supported; leave it out");
    if (multiple) integer = 1;
    if (s->b->status) return;
    if (!set) {
        build_free(s, rule, integer);
        return;
    }
    if (integer) { /* whole bounds, that belong to the range */
        if (isfinite(low)) low = low_strict && low == ceil(low) ? low + 1 : ceil(low);
        if (isfinite(high)) high = high_strict && high == floor(high) ? high - 1 : floor(high);
        low_strict = high_strict = 0;
    }
    if (low > high || (low == high && (low_strict || high_strict))) return; /* no alternative: matches nothing */
    build_bounded(s, rule, low + 0.0, low_strict, high, high_strict, integer);
}
