/* pattern.c: reads regular expressions in the syntax of ECMAScript: alternatives, groups, classes, \d \w \s, repetitions, ^ and $
 * at the ends. Look-around, back references and word boundaries are refused by name. Inside a JSON string (builder.json) the
 * expression is about the value, so each character may also be escaped.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "text/grammar/parts.h"

struct pattern_reader {
    struct sg_grammar_builder *b;
    const char *text;
    size_t len, at;
    uint32_t groups[SG_GRAMMAR_DEPTH_MAX];
    uint32_t depth;
    int item;     /* 1: a repetition may follow */
    int whole;    /* 1: matches the whole text */
    int anchored; /* 1: $ was read, nothing may follow in this alternative */
};

static int peek(const struct pattern_reader *r) { return r->at < r->len ? (uint8_t)r->text[r->at] : -1; }

static void fail(struct pattern_reader *r, segue_status status, const char *what)
{
    sg_build_fail(r->b, status, "pattern: %.*s: at byte %zu: %s", (int)(r->len < 100 ? r->len : 100), r->text, r->at, what);
}

/* --- characters --- */

/* Add \d, \w or \s (lower case) to a set. The white space is what both ECMAScript and Python take for it. */
static void add_kind(struct pattern_reader *r, struct sg_char_set *set, int kind)
{
    static const struct sg_char_range space[] = {{9, 13},          {32, 32},         {0xA0, 0xA0},
                                                 {0x1680, 0x1680}, {0x2000, 0x200A}, {0x2028, 0x2029},
                                                 {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}};
    if (kind == 'd' || kind == 'w') sg_chars_add(r->b, set, '0', '9');
    if (kind == 'w') {
        sg_chars_add(r->b, set, 'a', 'z');
        sg_chars_add(r->b, set, 'A', 'Z');
        sg_chars_add(r->b, set, '_', '_');
    }
    for (uint32_t i = 0; kind == 's' && i < sizeof space / sizeof *space; i++)
        sg_chars_add(r->b, set, space[i].low, space[i].high);
}

/* \D, \W, \S. Of \S, what any dialect takes for a space is left out. */
static void add_other(struct pattern_reader *r, struct sg_char_set *set, int kind)
{
    struct sg_char_set other = {0};
    add_kind(r, &other, kind);
    if (kind == 's') {
        sg_chars_add(r->b, &other, 0x1C, 0x1F);
        sg_chars_add(r->b, &other, 0x85, 0x85);
        sg_chars_add(r->b, &other, 0xFEFF, 0xFEFF);
    }
    sg_chars_invert(r->b, &other);
    for (uint32_t i = 0; i < other.n; i++) sg_chars_add(r->b, set, other.ranges[i].low, other.ranges[i].high);
    sg_chars_free(&other);
}

/* Stops at the first character that is no digit. */
static uint32_t hex(struct pattern_reader *r, uint32_t digits)
{
    uint32_t c = 0;
    for (uint32_t i = 0; i < digits && !r->b->status; i++) {
        int d = sg_hex_digit(peek(r));
        if (d < 0) {
            fail(r, SEGUE_EFORMAT, "expected hexadecimal digits");
            return c;
        }
        c = c << 4 | (uint32_t)d;
        r->at++;
    }
    return c;
}

/* The character after a backslash, which was read; a kind (d w s D W S) as 0x110000 + letter. */
static uint32_t read_escape(struct pattern_reader *r, int in_class)
{
    static const char from[] = "nrtfv0", to[] = "\n\r\t\f\v\0";
    int c = peek(r);
    if (c < 0) {
        fail(r, SEGUE_EFORMAT, "a backslash at the end");
        return 0;
    }
    if (strchr("dwsDWS", c)) {
        r->at++;
        return 0x110000u + (uint32_t)c;
    }
    if (c == 'b' && in_class) return r->at++, 8;
    if ((c >= '1' && c <= '9') || c == 'k' || c == 'b' || c == 'B' || c == 'p' || c == 'P' || c == 'A' || c == 'Z' || c == 'c') {
        fail(r, SEGUE_EUNSUPPORTED, "back references, boundaries, \\p and \\c are not supported; write the characters out");
        return 0;
    }
    r->at++;
    if (c == 'x') return hex(r, 2);
    if (c == 'u') {
        uint32_t high = hex(r, 4);
        if (high < 0xD800 || high > 0xDBFF || r->len - r->at < 6 || r->text[r->at] != '\\' || r->text[r->at + 1] != 'u')
            return high;
        r->at += 2;
        return 0x10000 + ((high - 0xD800) << 10) + ((hex(r, 4) - 0xDC00) & 0x3FF);
    }
    const char *found = strchr(from, c);
    if (found) return (uint8_t)to[found - from];
    if (c >= 0x80 || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
        fail(r, SEGUE_EUNSUPPORTED, "this escape is not supported");
        return 0;
    }
    return (uint32_t)c;
}

static uint32_t read_char(struct pattern_reader *r, int in_class)
{
    if (peek(r) == '\\') {
        r->at++;
        return read_escape(r, in_class);
    }
    uint32_t c = sg_utf8_next(r->text, r->len, &r->at);
    if (c == UINT32_MAX) fail(r, SEGUE_EFORMAT, "it is not valid UTF-8");
    return c;
}

/* A character or a kind of characters into a set. */
static void add_char(struct pattern_reader *r, struct sg_char_set *set, uint32_t c)
{
    if (c < 0x110000) {
        sg_chars_add(r->b, set, c, c);
        return;
    }
    int kind = (int)(c - 0x110000);
    if (kind >= 'a')
        add_kind(r, set, kind);
    else
        add_other(r, set, kind + 32);
}

static void read_class(struct pattern_reader *r, uint32_t rule)
{
    struct sg_char_set set = {0};
    r->at++;
    int inverted = peek(r) == '^';
    r->at += (size_t)inverted;
    while (!r->b->status && peek(r) != ']') {
        if (peek(r) < 0) fail(r, SEGUE_EFORMAT, "a character class without ]");
        if (r->b->status) break;
        uint32_t low = read_char(r, 1);
        if (low >= 0x110000 || peek(r) != '-' || r->at + 1 >= r->len || r->text[r->at + 1] == ']') {
            add_char(r, &set, low);
            continue;
        }
        r->at++;
        uint32_t high = read_char(r, 1);
        if (high >= 0x110000 || high < low) fail(r, SEGUE_EFORMAT, "a range of characters that goes down");
        sg_chars_add(r->b, &set, low, high);
    }
    r->at++;
    if (inverted) sg_chars_invert(r->b, &set);
    sg_build_chars(r->b, rule, &set);
    sg_chars_free(&set);
}

/* Any character; newlines: 0: none of the four that . does not match. */
static void build_any(struct pattern_reader *r, uint32_t rule, int newlines)
{
    struct sg_char_set set = {0};
    if (!newlines) {
        sg_chars_add(r->b, &set, '\n', '\n');
        sg_chars_add(r->b, &set, '\r', '\r');
        sg_chars_add(r->b, &set, 0x2028, 0x2029);
    }
    sg_chars_invert(r->b, &set);
    sg_build_chars(r->b, rule, &set);
    sg_chars_free(&set);
}

/* --- structure --- */

static void read_repeat(struct pattern_reader *r, uint32_t rule)
{
    int c = peek(r);
    uint64_t min = c == '+', max = c == '?' ? 1 : SG_REPEAT_MAX;
    r->at++;
    if (c == '{') {
        size_t begin = r->at;
        for (min = 0; peek(r) >= '0' && peek(r) <= '9' && min < 10000000; r->at++) min = min * 10 + (uint64_t)(peek(r) - '0');
        max = min;
        if (begin == r->at) fail(r, SEGUE_EFORMAT, "expected {m}, {m,} or {m,n}; write \\{ for the character");
        if (peek(r) == ',') {
            begin = ++r->at;
            for (max = 0; peek(r) >= '0' && peek(r) <= '9' && max < 10000000; r->at++) max = max * 10 + (uint64_t)(peek(r) - '0');
            if (begin == r->at) max = SG_REPEAT_MAX;
        }
        if (peek(r) != '}' || max < min) fail(r, SEGUE_EFORMAT, "expected {m}, {m,} or {m,n} with m <= n");
        if (min > 1000000 || (max != SG_REPEAT_MAX && max > 1000000))
            fail(r, SEGUE_ELIMIT, "a repetition of more than 1000000 times");
        r->at++;
    }
    if (peek(r) == '?') r->at++; /* lazy: the same texts match */
    if (!r->item)
        fail(r, SEGUE_EFORMAT, "a repetition of nothing");
    else
        sg_build_repeat_last(r->b, rule, (uint32_t)min, (uint32_t)max);
}

static void open_group(struct pattern_reader *r)
{
    r->at++;
    if (peek(r) == '?') {
        if (r->len - r->at >= 2 && r->text[r->at + 1] == ':')
            r->at += 2;
        else {
            const char *end = r->len - r->at >= 3 && r->text[r->at + 1] == '<' && r->text[r->at + 2] != '=' &&
                                      r->text[r->at + 2] != '!'
                                  ? memchr(r->text + r->at, '>', r->len - r->at)
                                  : NULL;
            if (end)
                r->at = (size_t)(end - r->text) + 1; /* a named group */
            else
                fail(r, SEGUE_EUNSUPPORTED, "look-around and flags are not supported");
        }
    }
    if (r->depth == SG_GRAMMAR_DEPTH_MAX) fail(r, SEGUE_ELIMIT, "groups nest too deep");
    if (r->b->status) return;
    r->groups[r->depth++] = sg_build_rule(r->b);
    r->item = 0;
}

/* At the beginning of an outermost alternative. */
static void begin_alternative(struct pattern_reader *r)
{
    r->anchored = 0;
    if (r->depth > 1) return;
    if (peek(r) == '^') {
        r->at++;
        return;
    }
    if (r->whole) return;
    build_any(r, r->groups[0], 1);
    sg_build_repeat_last(r->b, r->groups[0], 0, SG_REPEAT_MAX);
}

static void end_alternative(struct pattern_reader *r)
{
    if (r->depth == 1 && !r->whole && !r->anchored && !r->b->status) {
        build_any(r, r->groups[0], 1);
        sg_build_repeat_last(r->b, r->groups[0], 0, SG_REPEAT_MAX);
    }
    sg_build_end(r->b, r->groups[r->depth - 1]);
    r->anchored = 0;
}

static void close_group(struct pattern_reader *r)
{
    if (r->depth < 2) {
        fail(r, SEGUE_EFORMAT, "a ) without (");
        return;
    }
    r->at++;
    end_alternative(r);
    uint32_t inner = r->groups[--r->depth];
    sg_build_call(r->b, r->groups[r->depth - 1], inner);
    r->item = 1;
}

static void read_item(struct pattern_reader *r)
{
    uint32_t rule = r->groups[r->depth - 1];
    int c = peek(r), item = 1;
    struct sg_char_set set = {0};
    if (r->anchored && c != '|')
        fail(r, SEGUE_EUNSUPPORTED, "$ is supported at the end only");
    else if (c == '[')
        read_class(r, rule);
    else if (c == '(')
        open_group(r), item = 0;
    else if (c == ')')
        close_group(r);
    else if (c == '*' || c == '+' || c == '?' || c == '{')
        read_repeat(r, rule), item = 0;
    else if (c == '|') {
        end_alternative(r);
        r->at++;
        begin_alternative(r);
        item = 0;
    } else if (c == '.') {
        r->at++;
        build_any(r, rule, 0);
    } else if (c == '^')
        fail(r, SEGUE_EUNSUPPORTED, "^ is supported at the beginning only");
    else if (c == '$') {
        if (r->depth > 1) fail(r, SEGUE_EUNSUPPORTED, "$ is supported at the end only");
        r->at++;
        r->anchored = 1;
        item = 0;
    } else {
        add_char(r, &set, read_char(r, 0));
        sg_build_chars(r->b, rule, &set);
        sg_chars_free(&set);
    }
    r->item = item;
}

uint32_t sg_pattern_read(struct sg_grammar_builder *b, const char *text, size_t len, int whole)
{
    struct pattern_reader *r = sg_alloc(sizeof *r);
    if (!r) {
        b->status = sg_no_memory("grammar", sizeof *r, b->err);
        return 0;
    }
    *r = (struct pattern_reader){.b = b, .text = text, .len = len, .whole = whole, .depth = 1};
    uint32_t root = r->groups[0] = sg_build_rule(b);
    if (!b->status) begin_alternative(r);
    while (!b->status && r->at < len) read_item(r);
    if (r->depth > 1) fail(r, SEGUE_EFORMAT, "a ( without )");
    if (!b->status) end_alternative(r);
    sg_free(r);
    return root;
}
