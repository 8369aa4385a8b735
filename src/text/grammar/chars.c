/* chars.c: sets of characters, and one character of a set as bytes: its UTF-8, and inside a JSON string also its escapes.
 * SPDX-License-Identifier: MIT */
#include <stdlib.h>
#include <string.h>

#include "text/grammar/parts.h"

enum { CHAR_MAX = 0x10FFFF, SURROGATE_FIRST = 0xD800, SURROGATE_LAST = 0xDFFF };

/* --- sets --- */

void sg_chars_add(struct sg_grammar_builder *b, struct sg_char_set *s, uint32_t low, uint32_t high)
{
    if (b->status || low > high) return;
    if (s->n == s->cap) {
        uint32_t cap = s->cap ? s->cap * 2 : 8;
        struct sg_char_range *p = sg_realloc(s->ranges, cap * sizeof *p);
        if (!p) {
            b->status = sg_no_memory("grammar", cap * sizeof *p, b->err);
            return;
        }
        s->ranges = p;
        s->cap = cap;
    }
    s->ranges[s->n++] = (struct sg_char_range){low, high};
}

static int compare(const void *a, const void *b)
{
    uint32_t x = ((const struct sg_char_range *)a)->low, y = ((const struct sg_char_range *)b)->low;
    return x < y ? -1 : x > y;
}

void sg_chars_sort(struct sg_char_set *s)
{
    uint32_t n = 0;
    if (s->n) qsort(s->ranges, s->n, sizeof *s->ranges, compare);
    for (uint32_t i = 0; i < s->n; i++) {
        struct sg_char_range r = s->ranges[i];
        if (n && r.low <= s->ranges[n - 1].high + 1) {
            if (r.high > s->ranges[n - 1].high) s->ranges[n - 1].high = r.high;
        } else
            s->ranges[n++] = r;
    }
    s->n = n;
}

void sg_chars_invert(struct sg_grammar_builder *b, struct sg_char_set *s)
{
    struct sg_char_set out = {0};
    uint32_t from = 0;
    sg_chars_add(b, s, SURROGATE_FIRST, SURROGATE_LAST);
    sg_chars_sort(s);
    for (uint32_t i = 0; i < s->n; i++) {
        if (s->ranges[i].low > from) sg_chars_add(b, &out, from, s->ranges[i].low - 1);
        from = s->ranges[i].high + 1;
    }
    if (from <= CHAR_MAX) sg_chars_add(b, &out, from, CHAR_MAX);
    sg_chars_free(s);
    *s = out;
}

void sg_chars_free(struct sg_char_set *s)
{
    sg_free(s->ranges);
    *s = (struct sg_char_set){0};
}

uint32_t sg_utf8_next(const char *text, size_t len, size_t *at)
{
    static const uint32_t least[] = {0, 0x80, 0x800, 0x10000};
    uint8_t first = (uint8_t)text[*at];
    uint32_t more = first < 0x80 ? 0 : first >> 5 == 6 ? 1 : first >> 4 == 14 ? 2 : first >> 3 == 30 ? 3 : 4;
    uint32_t c = more ? first & (0x3F >> more) : first;
    if (more == 4 || len - *at <= more) return UINT32_MAX;
    for (uint32_t i = 1; i <= more; i++) {
        uint8_t next = (uint8_t)text[*at + i];
        if (next >> 6 != 2) return UINT32_MAX;
        c = c << 6 | (next & 0x3F);
    }
    if (c < least[more] || c > CHAR_MAX || (c >= SURROGATE_FIRST && c <= SURROGATE_LAST)) return UINT32_MAX;
    *at += more + 1;
    return c;
}

/* --- ranges of numbers as sequences of digits --- */

/* A way to write a number: `digits` digits of `bits` bits each, the highest first. */
struct digits {
    uint32_t digits, bits;
    /* Append digit number k (0: the highest) with values [low, high]. */
    void (*put)(struct sg_grammar_builder *b, uint32_t rule, uint32_t k, uint32_t low, uint32_t high);
    const char *prefix; /* before the digits */
};

/* Alternatives for [low, high]: cut until every digit is a separate range. */
static void build_range(struct sg_grammar_builder *b, uint32_t rule, const struct digits *d, uint32_t low, uint32_t high)
{
    struct sg_char_range todo[64] = {{low, high}};
    uint32_t n = 1;
    while (n) {
        struct sg_char_range r = todo[--n];
        uint32_t cut = 0;
        for (uint32_t k = 1; k < d->digits && !cut; k++) {
            uint32_t mask = (UINT32_C(1) << d->bits * k) - 1;
            if ((r.low & ~mask) == (r.high & ~mask)) continue;
            if (r.low & mask) {
                todo[n++] = (struct sg_char_range){(r.low | mask) + 1, r.high};
                todo[n++] = (struct sg_char_range){r.low, r.low | mask};
                cut = 1;
            } else if ((r.high & mask) != mask) {
                todo[n++] = (struct sg_char_range){r.high & ~mask, r.high};
                todo[n++] = (struct sg_char_range){r.low, (r.high & ~mask) - 1};
                cut = 1;
            }
        }
        if (cut) continue;
        sg_build_text(b, rule, d->prefix, strlen(d->prefix));
        for (uint32_t k = 0; k < d->digits; k++) {
            uint32_t shift = d->bits * (d->digits - 1 - k), mask = (UINT32_C(1) << d->bits) - 1;
            if (!k) mask = UINT32_MAX; /* the highest digit may be larger */
            d->put(b, rule, k, r.low >> shift & mask, r.high >> shift & mask);
        }
        sg_build_end(b, rule);
    }
}

/* UTF-8 with 2, 3 and 4 bytes: continuation bytes are digits of 6 bits. */
static void put_utf8_2(struct sg_grammar_builder *b, uint32_t rule, uint32_t k, uint32_t low, uint32_t high)
{
    sg_build_byte_range(b, rule, low + (k ? 0x80 : 0xC0), high + (k ? 0x80 : 0xC0));
}
static void put_utf8_3(struct sg_grammar_builder *b, uint32_t rule, uint32_t k, uint32_t low, uint32_t high)
{
    sg_build_byte_range(b, rule, low + (k ? 0x80 : 0xE0), high + (k ? 0x80 : 0xE0));
}
static void put_utf8_4(struct sg_grammar_builder *b, uint32_t rule, uint32_t k, uint32_t low, uint32_t high)
{
    sg_build_byte_range(b, rule, low + (k ? 0x80 : 0xF0), high + (k ? 0x80 : 0xF0));
}

/* Part of [low, high] that lies in [from, to]; 0: none. */
static int clip(uint32_t *low, uint32_t *high, uint32_t from, uint32_t to)
{
    if (*low < from) *low = from;
    if (*high > to) *high = to;
    return *low <= *high;
}

static void build_utf8(struct sg_grammar_builder *b, uint32_t rule, uint32_t low, uint32_t high)
{
    static const struct {
        uint32_t from, to;
        struct digits digits;
    } parts[] = {{0x80, 0x7FF, {2, 6, put_utf8_2, ""}},
                 {0x800, SURROGATE_FIRST - 1, {3, 6, put_utf8_3, ""}},
                 {SURROGATE_LAST + 1, 0xFFFF, {3, 6, put_utf8_3, ""}},
                 {0x10000, CHAR_MAX, {4, 6, put_utf8_4, ""}}};
    uint32_t from = low, to = high;
    if (clip(&from, &to, 0, 0x7F)) {
        sg_build_byte_range(b, rule, from, to);
        sg_build_end(b, rule);
    }
    for (uint32_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        from = low, to = high;
        if (clip(&from, &to, parts[i].from, parts[i].to)) build_range(b, rule, &parts[i].digits, from, to);
    }
}

/* --- escapes of JSON --- */

/* One hexadecimal digit from low to high, in both cases. */
static void put_hex(struct sg_grammar_builder *b, uint32_t rule, uint32_t k, uint32_t low, uint32_t high)
{
    struct sg_byte_set set = {{0}};
    (void)k;
    for (uint32_t d = low; d <= high && d < 16; d++) {
        uint32_t one = d < 10 ? '0' + d : 'a' + d - 10, two = d < 10 ? one : 'A' + d - 10;
        set.bits[one / 32] |= UINT32_C(1) << one % 32;
        set.bits[two / 32] |= UINT32_C(1) << two % 32;
    }
    sg_build_bytes(b, rule, &set);
}

/* \uXXXX of [low, high], all in the basic plane. */
static void build_unit(struct sg_grammar_builder *b, uint32_t rule, uint32_t low, uint32_t high)
{
    static const struct digits hex = {4, 4, put_hex, "\\u"};
    build_range(b, rule, &hex, low, high);
}

/* A character above the basic plane is two units: digits of 10 bits, each a \uXXXX. */
static void put_surrogate(struct sg_grammar_builder *b, uint32_t rule, uint32_t k, uint32_t low, uint32_t high)
{
    uint32_t base = k ? 0xDC00 : 0xD800, unit = sg_build_rule(b);
    if (b->status) return;
    build_unit(b, unit, base + low, base + high);
    sg_build_call(b, rule, unit);
}

/* Printable ASCII is never written as \uXXXX: no serializer does, and a model that begins to do so writes whole texts that
 * way. */
static void build_escapes(struct sg_grammar_builder *b, uint32_t rule, uint32_t low, uint32_t high)
{
    static const struct {
        char letter;
        uint32_t c;
    } shorts[] = {{'"', '"'}, {'\\', '\\'}, {'/', '/'}, {'b', 8}, {'f', 0xC}, {'n', 0xA}, {'r', 0xD}, {'t', 9}};
    static const struct digits pair = {2, 10, put_surrogate, ""};
    uint32_t from, to;
    for (uint32_t i = 0; i < 8; i++)
        if (shorts[i].c >= low && shorts[i].c <= high) {
            sg_build_text(b, rule, (const char[]){'\\', shorts[i].letter}, 2);
            sg_build_end(b, rule);
        }
    from = low, to = high;
    if (clip(&from, &to, 0, 0x1F)) build_unit(b, rule, from, to);
    from = low, to = high;
    if (clip(&from, &to, 0x7F, SURROGATE_FIRST - 1)) build_unit(b, rule, from, to);
    from = low, to = high;
    if (clip(&from, &to, SURROGATE_LAST + 1, 0xFFFF)) build_unit(b, rule, from, to);
    from = low, to = high;
    if (clip(&from, &to, 0x10000, CHAR_MAX)) build_range(b, rule, &pair, from - 0x10000, to - 0x10000);
}

/* Characters that stand for themselves in a JSON string. */
static void build_plain(struct sg_grammar_builder *b, uint32_t rule, uint32_t low, uint32_t high)
{
    static const struct sg_char_range plain[] = {{0x20, 0x21}, {0x23, 0x5B}, {0x5D, CHAR_MAX}};
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t from = low, to = high;
        if (clip(&from, &to, plain[i].low, plain[i].high)) build_utf8(b, rule, from, to);
    }
}

/* --- one character --- */

static void build_new(struct sg_grammar_builder *b, uint32_t rule, const struct sg_char_set *s)
{
    for (uint32_t i = 0; i < s->n && !b->status; i++) {
        if (!b->json) build_utf8(b, rule, s->ranges[i].low, s->ranges[i].high);
        if (b->json) build_plain(b, rule, s->ranges[i].low, s->ranges[i].high);
        if (b->json) build_escapes(b, rule, s->ranges[i].low, s->ranges[i].high);
    }
}

void sg_build_chars(struct sg_grammar_builder *b, uint32_t rule, struct sg_char_set *s)
{
    sg_chars_sort(s);
    if (b->status) return;
    if (!b->json && s->n == 1 && s->ranges[0].high < 0x80) {
        sg_build_byte_range(b, rule, s->ranges[0].low, s->ranges[0].high);
        return;
    }
    uint64_t key = 0xCBF29CE484222325u + b->json;
    for (uint32_t i = 0; i < s->n; i++)
        key = ((key ^ s->ranges[i].low) * 0x100000001B3u ^ s->ranges[i].high) * UINT64_C(0x9E3779B97F4A7C15) + (key >> 23);
    struct sg_char_rule *known = &b->char_rules[key >> 56];
    if (known->key != key) {
        uint32_t made = sg_build_rule(b);
        if (b->status) return;
        build_new(b, made, s);
        *known = (struct sg_char_rule){key, made};
    }
    sg_build_call(b, rule, known->rule);
}

void sg_build_char(struct sg_grammar_builder *b, uint32_t rule, uint32_t c)
{
    struct sg_char_range one = {c, c};
    struct sg_char_set s = {.ranges = &one, .n = 1};
    sg_build_chars(b, rule, &s);
}
