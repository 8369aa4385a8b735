/* jinja_case.c: case mapping of strings: str.upper, lower, title and swapcase.
 * SPDX-License-Identifier: MIT */
#include "text/jinja/value/jinja_state.h"
#include "text/jinja/value/jinja_text.h"

/* Unicode's Final_Sigma: a cased character precedes it and none follows, ignoring case-ignorable characters
 * on both sides. */
static int sigma_is_final(const struct sg_str *s, size_t at)
{
    const char *p = s->s + at, *e = s->s + s->n;
    uint32_t c = 0;
    int cased = 0;
    /* the nearest character before it that is not case-ignorable */
    while (p > s->s) {
        do p--;
        while (((unsigned char)*p & 0xc0) == 0x80);
        const char *q = p;
        c = sg_char_get(&q);
        if (sg_char_is(c, SG_IS_CASE_IGNORABLE)) continue;
        cased = sg_char_is(c, SG_IS_CASED);
        break;
    }
    if (!cased) return 0;
    /* + 2: the sigma itself, two bytes */
    for (p = s->s + at + 2; p < e;) {
        c = sg_char_get(&p);
        if (!sg_char_is(c, SG_IS_CASE_IGNORABLE)) return !sg_char_is(c, SG_IS_CASED);
    }
    return 1;
}

/* Append the mapping of one character, 1 to 3 characters. */
static segue_status put_mapped(struct sg_jinja *st, struct sg_buf *b, uint32_t c, int how)
{
    uint32_t mapped[3];
    size_t n = sg_char_case(c, how, mapped);
    for (size_t i = 0; i < n; i++) SG_TRY(sg_put_char(st, b, mapped[i]));
    return SEGUE_OK;
}

/* how: SG_CASE_*. [from, to) are bytes of s; the context of a final sigma may be outside of that range. */
segue_status sg_case_put(struct sg_jinja *st, struct sg_buf *b, const struct sg_str *s, size_t from,
                         size_t to, int how)
{
    uint64_t sigmas = 0;
    for (const char *p = s->s + from, *e = s->s + to; p < e;) {
        size_t at = (size_t)(p - s->s);
        uint32_t c = sg_char_get(&p);
        /* swapcase maps upper case to lower and the reverse; all else (-1) is copied. */
        int now = how != SG_CASE_SWAP          ? how
                  : sg_char_is(c, SG_IS_UPPER) ? SG_CASE_LOWER
                  : sg_char_is(c, SG_IS_LOWER) ? SG_CASE_UPPER
                                               : -1;
        if (now == SG_CASE_LOWER && c == 0x3a3) {
            /* The context of a sigma may be the whole text. The n-th one costs n steps, so a text of sigmas
             * cannot take quadratic time unnoticed. */
            SG_TRY(sg_jinja_step(st, ++sigmas)); /* looking around may be long */
            SG_TRY(sg_put_char(st, b, sigma_is_final(s, at) ? 0x3c2 : 0x3c3));
        } else if (now < 0) {
            SG_TRY(sg_put_char(st, b, c));
        } else {
            SG_TRY(put_mapped(st, b, c, now));
        }
    }
    return SEGUE_OK;
}
