/* jinja_char.c: characters as Python's str knows them: classes, case mappings and substring search. The tables
 * are of Python's Unicode version; tokenizers use other tables (text/unicode/unicode.h).
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "text/jinja/value/jinja_text.h"
#include "text/unicode/unicode.h"
#include "text/unicode/unicode_case.h"

/* Elements of a table. */
#define COUNT(table) (sizeof(table) / sizeof *(table))

/* The text was validated when it entered the rendering, so decoding does not check. */
uint32_t sg_char_get(const char **p)
{
    uint32_t c;
    *p += sg_utf8_get(*p, &c);
    return c;
}

/* Membership in a sorted table of runs (first, last, step). Binary search for the first run that ends at or
 * after c. */
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
    /* A run of step 2 (alternating upper and lower case letters) may overlap the run after it, so two runs
     * are checked. */
    for (size_t i = low; i < n && i < low + 2; i++)
        if (c >= runs[i].first && c <= runs[i].last && (c - runs[i].first) % runs[i].step == 0) return 1;
    return 0;
}

/* Simple case mapping: c plus the delta of its run, or c itself. Runs of a mapping table do not overlap. */
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

/* str.isspace(): the bidirectional classes WS, B and S, or category Zs. The list is closed, so it needs no
 * table. */
static int is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
           c == 0x3000;
}

/* LF, VT, FF, CR, FS, GS, RS, NEL, LS and PS. */
int sg_char_line(uint32_t c)
{
    return (c >= 10 && c <= 13) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

/* what: SG_IS_*. Decimal digits are digits, and digits are numeric, as in Python. The default is
 * SG_IS_PRINTABLE: what repr() does not escape. */
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
    case SG_IS_CASED:
        return sg_char_is(c, SG_IS_LOWER) || sg_char_is(c, SG_IS_UPPER) || sg_char_is(c, SG_IS_TITLE);
    case SG_IS_CASE_IGNORABLE: return in_runs(is_ignorable, COUNT(is_ignorable), c);
    default: return c < 128 ? c >= 32 && c < 127 : !in_runs(not_printable, COUNT(not_printable), c);
    }
}

/* Characters whose mapping has several characters or differs from the simple one, such as U+00DF; NULL =
 * none. */
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

/* The full mapping of Unicode's SpecialCasing without its conditional entries; jinja_case.c handles the
 * final sigma. */
size_t sg_char_case(uint32_t c, int how, uint32_t out[3])
{
    const struct case_special *sp = c < 128 ? NULL : find_special(c);
    const uint32_t *to = !sp                    ? NULL
                         : how == SG_CASE_UPPER ? sp->upper
                         : how == SG_CASE_LOWER ? sp->lower
                                                : sp->title;
    size_t n = 0;
    if (to && to[0]) {
        for (; n < 3 && to[n]; n++) out[n] = to[n];
        return n;
    }
    if (how == SG_CASE_UPPER)
        out[0] = map_char(to_upper, COUNT(to_upper), c);
    else if (how == SG_CASE_LOWER)
        out[0] = map_char(to_lower, COUNT(to_lower), c);
    else
        out[0] = map_char(to_title, COUNT(to_title), c);
    return 1;
}

/* memchr for the first byte, then a comparison: O(n m) at worst, which callers charge as steps. */
const char *sg_find_bytes(const char *s, size_t n, const char *what, size_t m)
{
    if (!m) return s;
    for (const char *end = s + n; (size_t)(end - s) >= m;) {
        const char *at = memchr(s, *what, (size_t)(end - s) - m + 1);
        if (!at) return NULL;
        if (!memcmp(at, what, m)) return at;
        s = at + 1;
    }
    return NULL;
}
