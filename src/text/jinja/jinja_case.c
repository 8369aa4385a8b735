/* jinja_case.c: UTF-8, and what Python's str knows about single characters: classes and case mappings, the final
 * sigma included. Works on valid UTF-8 only.
 * SPDX-License-Identifier: MIT */
#include "text/jinja/jinja.h"
#include "text/unicode/unicode_case.h"

#define COUNT(table) (sizeof(table) / sizeof *(table))

uint32_t sg_char_get(const char **p)
{
    const unsigned char *s = (const unsigned char *)*p;
    uint32_t c = s[0];
    int more = c < 0x80 ? 0 : c < 0xe0 ? 1 : c < 0xf0 ? 2 : 3;
    if (more) c &= 0x3fu >> more;
    for (int i = 1; i <= more; i++) c = c << 6 | (s[i] & 0x3fu);
    *p += more + 1;
    return c;
}

size_t sg_char_put(char *out, uint32_t c)
{
    if (c < 0x80) return out[0] = (char)c, 1;
    int more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    static const unsigned char lead[] = {0, 0xc0, 0xe0, 0xf0};
    out[0] = (char)(lead[more] | c >> 6 * more);
    for (int i = 1; i <= more; i++) out[i] = (char)(0x80 | (c >> 6 * (more - i) & 0x3f));
    return (size_t)more + 1;
}

static int in_runs(const struct case_run *runs, size_t n, uint32_t c)
{
    size_t low = 0, high = n;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (c > runs[mid].last)
            low = mid + 1;
        else
            high = mid;
    }
    /* runs of step 2 may overlap the next one */
    for (size_t i = low; i < n && i < low + 2; i++)
        if (c >= runs[i].first && c <= runs[i].last && (c - runs[i].first) % runs[i].step == 0) return 1;
    return 0;
}

static uint32_t map_char(const struct case_map *maps, size_t n, uint32_t c)
{
    size_t low = 0, high = n;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (c > maps[mid].last)
            low = mid + 1;
        else
            high = mid;
    }
    if (low < n && c >= maps[low].first && (c - maps[low].first) % maps[low].step == 0)
        return (uint32_t)((int32_t)c + maps[low].delta);
    return c;
}

static int is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
           c == 0x3000;
}

int sg_char_line(uint32_t c)
{
    return (c >= 10 && c <= 13) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

int sg_char_is(uint32_t c, int what)
{
    switch (what) {
    case SG_IS_SPACE: return is_space(c);
    case SG_IS_ALPHA:
        return c < 128 ? (c | 32) >= 'a' && (c | 32) <= 'z' : in_runs(is_alpha, COUNT(is_alpha), c);
    case SG_IS_DECIMAL: return in_runs(is_decimal, COUNT(is_decimal), c);
    case SG_IS_DIGIT: return sg_char_is(c, SG_IS_DECIMAL) || in_runs(is_digit, COUNT(is_digit), c);
    case SG_IS_NUMERIC: return sg_char_is(c, SG_IS_DIGIT) || in_runs(is_numeric, COUNT(is_numeric), c);
    case SG_IS_LOWER: return in_runs(is_lower, COUNT(is_lower), c);
    case SG_IS_UPPER: return in_runs(is_upper, COUNT(is_upper), c);
    case SG_IS_TITLE: return in_runs(is_title, COUNT(is_title), c);
    default: return c < 128 ? c >= 32 && c < 127 : !in_runs(not_printable, COUNT(not_printable), c);
    }
}

static int is_cased(uint32_t c)
{
    return sg_char_is(c, SG_IS_LOWER) || sg_char_is(c, SG_IS_UPPER) || sg_char_is(c, SG_IS_TITLE);
}

/* A sigma at byte `at` ends a word: a cased character before it, none after it, ignorable ones between. */
static int sigma_is_final(const struct sg_str *s, size_t at)
{
    const char *p = s->s + at, *e = s->s + s->n;
    uint32_t c = 0;
    int cased = 0;
    while (p > s->s) {
        do p--;
        while (((unsigned char)*p & 0xc0) == 0x80);
        const char *q = p;
        c = sg_char_get(&q);
        if (in_runs(is_ignorable, COUNT(is_ignorable), c)) continue;
        cased = is_cased(c);
        break;
    }
    if (!cased) return 0;
    for (p = s->s + at + 2; p < e;) {
        c = sg_char_get(&p);
        if (!in_runs(is_ignorable, COUNT(is_ignorable), c)) return !is_cased(c);
    }
    return 1;
}

static const struct case_special *find_special(uint32_t c)
{
    size_t low = 0, high = COUNT(specials);
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (specials[mid].c < c)
            low = mid + 1;
        else
            high = mid;
    }
    return low < COUNT(specials) && specials[low].c == c ? &specials[low] : NULL;
}

static segue_status put_mapped(struct sg_jinja *st, struct sg_buf *b, uint32_t c, int how)
{
    const struct case_special *sp = c < 128 ? NULL : find_special(c);
    const uint32_t *to = !sp                    ? NULL
                         : how == SG_CASE_UPPER ? sp->upper
                         : how == SG_CASE_LOWER ? sp->lower
                                                : sp->title;
    if (to && to[0]) {
        for (int i = 0; i < 3 && to[i]; i++) SG_TRY(sg_put_char(st, b, to[i]));
        return SEGUE_OK;
    }
    if (how == SG_CASE_UPPER)
        c = map_char(to_upper, COUNT(to_upper), c);
    else if (how == SG_CASE_LOWER)
        c = map_char(to_lower, COUNT(to_lower), c);
    else
        c = map_char(to_title, COUNT(to_title), c);
    return sg_put_char(st, b, c);
}

segue_status sg_case_put(struct sg_jinja *st, struct sg_buf *b, const struct sg_str *s, size_t from,
                         size_t to, int how)
{
    uint64_t sigmas = 0;
    for (const char *p = s->s + from, *e = s->s + to; p < e;) {
        size_t at = (size_t)(p - s->s);
        uint32_t c = sg_char_get(&p);
        int now = how != SG_CASE_SWAP          ? how
                  : sg_char_is(c, SG_IS_UPPER) ? SG_CASE_LOWER
                  : sg_char_is(c, SG_IS_LOWER) ? SG_CASE_UPPER
                                               : -1;
        if (now == SG_CASE_LOWER && c == 0x3a3) {
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
