/* nfc.c: canonical composition (NFC). Text is handled in regions: from a character that no earlier character can change
 * to the next such one. Regions that are in NFC for certain are copied, the others are decomposed, ordered and
 * composed. Time and memory are linear in the text, even for one base character with a million marks.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "base/mem.h"
#include "text/unicode/unicode.h"
#include "text/unicode/unicode_tables.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))

enum { HANGUL = 0xac00, JAMO_L = 0x1100, JAMO_V = 0x1161, JAMO_T = 0x11a7, HANGUL_N = 11172 };

struct code_points {
    uint32_t *c; /* code point << 8 | combining class */
    size_t n, cap;
};

/* Canonical combining class: a binary search in ranges (first code point << 8 | class). */
static unsigned combining_class(uint32_t c)
{
    size_t low = 0, high = COUNT(unicode_ccc);
    while (high - low > 1) {
        size_t mid = (low + high) / 2;
        if (unicode_ccc[mid] >> 8 <= c)
            low = mid;
        else
            high = mid;
    }
    return unicode_ccc[low] & 255;
}

/* Append a code point with its class, which both ordering and composing need. */
static segue_status add_point(struct code_points *p, uint32_t c)
{
    if (p->n == p->cap) {
        size_t cap = p->cap * 2 + 64;
        if (cap > SIZE_MAX / sizeof *p->c) return SEGUE_ELIMIT;
        uint32_t *more = sg_realloc(p->c, cap * sizeof *p->c);
        if (!more) return SEGUE_EMEMORY;
        p->c = more;
        p->cap = cap;
    }
    p->c[p->n++] = c << 8 | combining_class(c);
    return SEGUE_OK;
}

/* Hangul syllables by arithmetic (Unicode, section 3.12), all others by the table of full decompositions, sorted by
 * code point. */
static segue_status decompose(struct code_points *p, uint32_t c)
{
    if (c - HANGUL < HANGUL_N) {
        uint32_t i = c - HANGUL, t = i % 28;
        SG_TRY(add_point(p, JAMO_L + i / 588));
        SG_TRY(add_point(p, JAMO_V + i % 588 / 28));
        return t ? add_point(p, JAMO_T + t) : SEGUE_OK;
    }
    size_t low = 0, high = COUNT(unicode_decomposed);
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (unicode_decomposed[mid][0] < c)
            low = mid + 1;
        else
            high = mid;
    }
    if (low == COUNT(unicode_decomposed) || unicode_decomposed[low][0] != c) return add_point(p, c);
    /* offset into unicode_parts << 3 | number of parts */
    uint32_t at = unicode_decomposed[low][1] >> 3, n = unicode_decomposed[low][1] & 7;
    for (uint32_t i = 0; i < n; i++) SG_TRY(add_point(p, unicode_parts[at + i]));
    return SEGUE_OK;
}

/* Stable sort by combining class: insertion sort for the usual two or three marks, counting sort for long hostile
 * runs. */
static segue_status order_marks(uint32_t *c, size_t n)
{
    if (n <= 32) {
        for (size_t i = 1; i < n; i++) {
            uint32_t x = c[i];
            size_t k = i;
            for (; k && (c[k - 1] & 255) > (x & 255); k--) c[k] = c[k - 1];
            c[k] = x;
        }
        return SEGUE_OK;
    }
    uint32_t *sorted = sg_alloc(n * sizeof *sorted);
    if (!sorted) return SEGUE_EMEMORY;
    /* at[c]: first index of class c in the sorted array */
    size_t at[257] = {0};
    for (size_t i = 0; i < n; i++) at[(c[i] & 255) + 1]++;
    for (size_t i = 1; i < 257; i++) at[i] += at[i - 1];
    for (size_t i = 0; i < n; i++) sorted[at[c[i] & 255]++] = c[i];
    memcpy(c, sorted, n * sizeof *c);
    sg_free(sorted);
    return SEGUE_OK;
}

/* The composite of a and b, or 0. */
static uint32_t composite(uint32_t a, uint32_t b)
{
    /* Hangul: L + V, then LV + T; the subtractions wrap for other characters */
    if (a - JAMO_L < 19 && b - JAMO_V < 21) return HANGUL + ((a - JAMO_L) * 21 + b - JAMO_V) * 28;
    if (a - HANGUL < HANGUL_N && (a - HANGUL) % 28 == 0 && b - JAMO_T - 1 < 27) return a + b - JAMO_T;
    size_t low = 0, high = COUNT(unicode_composed);
    while (low < high) {
        size_t mid = (low + high) / 2;
        const uint32_t *m = unicode_composed[mid];
        if (m[0] < a || (m[0] == a && m[1] < b))
            low = mid + 1;
        else
            high = mid;
    }
    if (low == COUNT(unicode_composed)) return 0;
    const uint32_t *m = unicode_composed[low];
    return m[0] == a && m[1] == b ? m[2] : 0;
}

/* Compose in place; returns the new length. A mark combines with the last starter unless a mark of the same or a
 * higher class is between them. */
static size_t compose(uint32_t *c, size_t n)
{
    size_t out = 0, starter = SIZE_MAX;
    unsigned last = 0; /* class of the character before, counted from the starter */
    for (size_t i = 0; i < n; i++) {
        unsigned ccc = c[i] & 255;
        if (starter != SIZE_MAX && (out == starter + 1 || last < ccc)) {
            uint32_t made = composite(c[starter] >> 8, c[i] >> 8);
            if (made) {
                c[starter] = made << 8;
                continue;
            }
        }
        /* class 0 starts a new sequence */
        if (!ccc) starter = out;
        last = ccc;
        c[out++] = c[i];
    }
    return out;
}

/* Decompose, order each run of marks, compose, and append to out. */
static segue_status compose_region(struct sg_buf *out, struct code_points *p, const char *s, size_t n)
{
    p->n = 0;
    for (size_t at = 0; at < n;) {
        uint32_t c;
        at += sg_utf8_get(s + at, &c);
        SG_TRY(decompose(p, c));
    }
    for (size_t i = 0; i < p->n;) {
        size_t from = i;
        /* a run of marks: characters with a class other than 0 */
        while (i < p->n && (p->c[i] & 255)) i++;
        if (i - from > 1) SG_TRY(order_marks(p->c + from, i - from));
        if (i == from) i++;
    }
    size_t n_out = compose(p->c, p->n);
    for (size_t i = 0; i < n_out; i++) {
        char text[4];
        SG_TRY(sg_buf_add(out, text, sg_utf8_put(text, p->c[i] >> 8)));
    }
    return SEGUE_OK;
}

/* Offset of the first character at or after `at` that NFC may change; n when there is none. *before: offset of the
 * character before it. */
static size_t unsure_from(const char *s, size_t n, size_t at, size_t *before)
{
    *before = at;
    while (at < n) {
        uint32_t c;
        size_t len = sg_utf8_get(s + at, &c);
        /* no character below U+0300 changes or combines with an earlier one */
        if (c >= 0x300 && sg_char_class(c) & SG_CHAR_UNSURE) return at;
        *before = at;
        at += len;
    }
    return n;
}

/* Checks a property of each character, so it may say 0 for a text in NFC. */
int sg_nfc_sure(const char *s, size_t n)
{
    size_t before;
    return unsure_from(s, n, 0, &before) == n;
}

/* p of compose_region is reused for all regions. */
segue_status sg_nfc(struct sg_buf *out, const char *s, size_t n)
{
    struct code_points code_points = {0};
    segue_status status = SEGUE_OK;
    for (size_t at = 0; at < n && status == SEGUE_OK;) {
        size_t from, end = unsure_from(s, n, at, &from);
        /* the rest is in NFC: copy it */
        if (end == n) from = n;
        status = sg_buf_add(out, s + at, from - at);
        uint32_t c = 0;
        while (end < n) {
            size_t len = sg_utf8_get(s + end, &c);
            if (c < 0x300 || !(sg_char_class(c) & SG_CHAR_UNSURE)) break;
            end += len;
        }
        if (status == SEGUE_OK && from < end) status = compose_region(out, &code_points, s + from, end - from);
        at = end;
    }
    sg_free(code_points.c);
    return status;
}
