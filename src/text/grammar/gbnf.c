/* gbnf.c: reads GBNF, llama.cpp's form of BNF: NAME ::= alternatives, "literals", [character classes], ., <tokens>, groups, *
 * + ? {m,n}, comments. Every item is exactly one element, so that an operator after it applies to the last element. SPDX-
 * License-Identifier: MIT */
#include <string.h>

#include "base/hash.h"
#include "text/grammar/parts.h"

struct name {
    const char *text;
    uint32_t len, rule, defined;
};

struct gbnf_reader {
    struct sg_grammar_builder *b;
    const char *text;
    size_t len, at;
    struct name *names; /* [names_n] */
    uint32_t names_n, names_cap;
    uint32_t *slots; /* hash table of names: index + 1 */
    uint32_t slots_n;
    uint64_t key[2]; /* random, of that table */
    uint32_t groups[SG_GRAMMAR_DEPTH_MAX]; /* rules of the open groups, the named rule first */
    uint32_t depth;
    int item; /* 1: an operator may follow */
};

static int peek(const struct gbnf_reader *r) { return r->at < r->len ? (uint8_t)r->text[r->at] : -1; }

static void fail(struct gbnf_reader *r, const char *what)
{
    uint32_t line = 1;
    for (size_t i = 0; i < r->at && i < r->len; i++) line += r->text[i] == '\n';
    sg_build_fail(r->b, SEGUE_EFORMAT, "grammar: line %u: %s", line, what);
}

/* --- names --- */

static int is_name(int c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

/* Keyed: a request could otherwise hold thousands of names that collide. */
static uint32_t name_hash(const struct gbnf_reader *r, const char *s, uint32_t n)
{
    return (uint32_t)sg_hash_keyed(s, n, r->key);
}

static int grow_names(struct gbnf_reader *r)
{
    uint32_t cap = r->names_cap ? r->names_cap * 2 : 64, slots_n = cap * 2;
    struct name *names = sg_realloc(r->names, cap * sizeof *names);
    uint32_t *slots = sg_alloc(slots_n * sizeof *slots);
    if (names) r->names = names;
    if (!names || !slots) {
        sg_free(slots);
        r->b->status = sg_no_memory("grammar", cap * sizeof *names, r->b->err);
        return 0;
    }
    for (uint32_t i = 0; i < r->names_n; i++) {
        uint32_t at = name_hash(r, names[i].text, names[i].len) & (slots_n - 1);
        while (slots[at]) at = (at + 1) & (slots_n - 1);
        slots[at] = i + 1;
    }
    sg_free(r->slots);
    r->slots = slots;
    r->slots_n = slots_n;
    r->names_cap = cap;
    return 1;
}

/* The entry of the name at the position, which moves after it; NULL: failed. */
static struct name *read_name(struct gbnf_reader *r)
{
    const char *text = r->text + r->at;
    uint32_t n = 0;
    while (r->at < r->len && is_name(peek(r))) r->at++, n++;
    if (!n) {
        fail(r, "expected a name");
        return NULL;
    }
    if (r->names_n == r->names_cap && !grow_names(r)) return NULL;
    uint32_t at = name_hash(r, text, n) & (r->slots_n - 1);
    for (; r->slots[at]; at = (at + 1) & (r->slots_n - 1)) {
        struct name *known = &r->names[r->slots[at] - 1];
        if (known->len == n && !memcmp(known->text, text, n)) return known;
    }
    r->names[r->names_n] = (struct name){text, n, sg_build_rule(r->b), 0};
    r->slots[at] = ++r->names_n;
    return &r->names[r->names_n - 1];
}

/* White space and comments; newlines only where `lines` is 1. */
static void skip(struct gbnf_reader *r, int lines)
{
    for (; r->at < r->len; r->at++) {
        int c = peek(r);
        if (c == '#')
            while (r->at + 1 < r->len && r->text[r->at + 1] != '\n') r->at++;
        else if (c != ' ' && c != '\t' && c != '\r' && !(lines && c == '\n'))
            return;
    }
}

/* --- characters --- */

/* Stops at the first character that is no digit. */
static uint32_t hex(struct gbnf_reader *r, uint32_t digits)
{
    uint32_t c = 0;
    for (uint32_t i = 0; i < digits && !r->b->status; i++) {
        int d = sg_hex_digit(peek(r));
        if (d < 0) {
            fail(r, "expected hexadecimal digits");
            return c;
        }
        c = c << 4 | (uint32_t)d;
        r->at++;
    }
    return c;
}

static uint32_t read_char(struct gbnf_reader *r)
{
    static const char from[] = "nrt\"\\[]-", to[] = "\n\r\t\"\\[]-";
    if (peek(r) == '\\' && r->at + 1 < r->len) {
        int c = (uint8_t)r->text[r->at + 1];
        r->at += 2;
        if (c == 'x') return hex(r, 2);
        if (c == 'u') return hex(r, 4);
        if (c == 'U') return hex(r, 8);
        const char *found = strchr(from, c);
        if (found && c) return (uint8_t)to[found - from];
        fail(r, "unknown escape; expected \\n \\r \\t \\\" \\\\ \\[ \\] \\xNN \\uNNNN or \\UNNNNNNNN");
        return 0;
    }
    uint32_t c = sg_utf8_next(r->text, r->len, &r->at);
    if (c == UINT32_MAX) fail(r, "the grammar is not valid UTF-8");
    return c;
}

/* "literal": a separate rule unless it is one ASCII character. */
static void read_literal(struct gbnf_reader *r, uint32_t rule)
{
    uint32_t inner = sg_build_rule(r->b);
    r->at++;
    while (!r->b->status && peek(r) != '"') {
        if (peek(r) < 0 || peek(r) == '\n')
            fail(r, "a literal without a closing quote");
        else
            sg_build_char(r->b, inner, read_char(r));
    }
    r->at++;
    sg_build_end(r->b, inner);
    sg_build_call(r->b, rule, inner);
}

/* <text>: the token of that spelling, a control token (behind 0xFF) or one of the text. */
static void read_token(struct gbnf_reader *r, uint32_t rule)
{
    const char *text = r->text + r->at, *end = memchr(text, '>', r->len - r->at);
    uint32_t inner = sg_build_rule(r->b);
    size_t n = end ? (size_t)(end - text) + 1 : 0;
    if (!end || memchr(text, '\n', n)) {
        fail(r, "a token without >");
        return;
    }
    sg_build_text(r->b, inner, "\xFF", 1);
    sg_build_text(r->b, inner, text, n);
    sg_build_end(r->b, inner);
    sg_build_text(r->b, inner, text, n);
    sg_build_end(r->b, inner);
    sg_build_call(r->b, rule, inner);
    r->at += n;
}

/* [a-z], [^a-z]. */
static void read_class(struct gbnf_reader *r, uint32_t rule)
{
    struct sg_char_set set = {0};
    r->at++;
    int inverted = peek(r) == '^';
    r->at += (size_t)inverted;
    while (!r->b->status && peek(r) != ']') {
        if (peek(r) < 0) {
            fail(r, "a character class without ]");
            break;
        }
        uint32_t low = read_char(r), high = low;
        if (peek(r) == '-' && r->at + 1 < r->len && r->text[r->at + 1] != ']') {
            r->at++;
            high = read_char(r);
        }
        if (low > high) fail(r, "a range of characters that goes down");
        sg_chars_add(r->b, &set, low, high);
    }
    r->at++;
    if (inverted) sg_chars_invert(r->b, &set);
    sg_build_chars(r->b, rule, &set);
    sg_chars_free(&set);
}

/* --- rules --- */

static uint32_t read_number(struct gbnf_reader *r, uint32_t none)
{
    uint64_t v = 0;
    size_t begin = r->at;
    for (; peek(r) >= '0' && peek(r) <= '9'; r->at++)
        if (v < 100000000) v = v * 10 + (uint64_t)(peek(r) - '0');
    if (v > 1000000) fail(r, "a repetition of more than 1000000 times");
    return begin == r->at ? none : (uint32_t)v;
}

static void read_operator(struct gbnf_reader *r, uint32_t rule)
{
    int c = peek(r);
    uint32_t min = c == '+', max = c == '?' ? 1 : SG_REPEAT_MAX;
    r->at++;
    if (c == '{') {
        skip(r, 0);
        min = read_number(r, 0);
        max = min;
        skip(r, 0);
        if (peek(r) == ',') {
            r->at++;
            skip(r, 0);
            max = read_number(r, SG_REPEAT_MAX);
            skip(r, 0);
        }
        if (peek(r) != '}' || max < min) fail(r, "expected {m}, {m,} or {m,n} with m <= n");
        r->at++;
    }
    if (!r->item)
        fail(r, "a repetition of nothing");
    else
        sg_build_repeat_last(r->b, rule, min, max);
}

static void open_group(struct gbnf_reader *r)
{
    r->at++;
    if (r->depth == SG_GRAMMAR_DEPTH_MAX) {
        sg_build_fail(r->b, SEGUE_ELIMIT, "grammar: groups nest deeper than %d levels; use named rules", SG_GRAMMAR_DEPTH_MAX);
        return;
    }
    r->groups[r->depth++] = sg_build_rule(r->b);
    r->item = 0;
}

static void close_group(struct gbnf_reader *r)
{
    r->at++;
    if (r->depth < 2) {
        fail(r, "a ) without (");
        return;
    }
    uint32_t inner = r->groups[--r->depth];
    sg_build_end(r->b, inner);
    sg_build_call(r->b, r->groups[r->depth - 1], inner);
    r->item = 1;
}

/* True if a new rule begins here: NAME ::= */
static int at_rule(struct gbnf_reader *r)
{
    size_t at = r->at;
    while (at < r->len && is_name((uint8_t)r->text[at])) at++;
    if (at == r->at) return 0;
    while (at < r->len && (r->text[at] == ' ' || r->text[at] == '\t')) at++;
    return at + 3 <= r->len && !memcmp(r->text + at, "::=", 3);
}

static void read_item(struct gbnf_reader *r)
{
    uint32_t rule = r->groups[r->depth - 1];
    int c = peek(r), item = 1;
    struct name *name;
    struct sg_char_set any = {0};
    if (c == '"')
        read_literal(r, rule);
    else if (c == '[')
        read_class(r, rule);
    else if (c == '<')
        read_token(r, rule);
    else if (c == '(')
        open_group(r), item = 0;
    else if (c == ')')
        close_group(r);
    else if (c == '*' || c == '+' || c == '?' || c == '{')
        read_operator(r, rule), item = 0;
    else if (c == '|') {
        r->at++;
        sg_build_end(r->b, rule);
        item = 0;
    } else if (c == '.') {
        r->at++;
        sg_chars_invert(r->b, &any);
        sg_build_chars(r->b, rule, &any);
        sg_chars_free(&any);
    } else if (is_name(c)) {
        name = read_name(r);
        if (name) sg_build_call(r->b, rule, name->rule);
    } else
        fail(r, "expected a literal, a character class, a name or a group");
    r->item = item;
}

static void read_rule(struct gbnf_reader *r)
{
    struct name *name = read_name(r);
    skip(r, 0);
    if (!name || r->b->status) return;
    if (r->len - r->at < 3 || memcmp(r->text + r->at, "::=", 3) != 0) {
        fail(r, "expected ::= after the name of a rule");
        return;
    }
    if (name->defined) fail(r, "a rule is defined twice");
    name->defined = 1;
    r->at += 3;
    r->groups[0] = name->rule;
    r->depth = 1;
    r->item = 0;
    skip(r, 1);
    while (!r->b->status && r->at < r->len) {
        /* A rule ends at a line break, unless a group is open or the next line begins with |. */
        skip(r, r->depth > 1);
        if (peek(r) == '\n') {
            skip(r, 1);
            if (r->at >= r->len || at_rule(r)) break;
            if (peek(r) != '|') fail(r, "expected NAME ::= or |");
        }
        if (r->b->status) break;
        if (r->at >= r->len) break;
        read_item(r);
        if (r->b->status) break; /* the position may be beyond the end now */
        if (r->at > 0 && r->text[r->at - 1] == '|') skip(r, 1);
    }
    if (r->depth > 1) fail(r, "a ( without )");
    sg_build_end(r->b, r->groups[0]);
}

uint32_t sg_gbnf_read(struct sg_grammar_builder *b, const char *text, size_t len)
{
    struct gbnf_reader *r = sg_alloc(sizeof *r);
    uint32_t root = SG_NO_RULE;
    if (!r) {
        b->status = sg_no_memory("grammar", sizeof *r, b->err);
        return 0;
    }
    *r = (struct gbnf_reader){.b = b, .text = text, .len = len};
    sg_random(r->key, sizeof r->key);
    for (skip(r, 1); !b->status && r->at < len; skip(r, 1)) read_rule(r);
    for (uint32_t i = 0; i < r->names_n && !b->status; i++) {
        const struct name *n = &r->names[i];
        if (!n->defined)
            sg_build_fail(b, SEGUE_EFORMAT, "grammar: rule %.*s: it is used and not defined", (int)(n->len < 100 ? n->len : 100),
                          n->text);
        if (n->len == 4 && !memcmp(n->text, "root", 4)) root = n->rule;
    }
    if (root == SG_NO_RULE) sg_build_fail(b, SEGUE_EFORMAT, "grammar: there is no rule named root; add root ::= ...");
    sg_free(r->names);
    sg_free(r->slots);
    sg_free(r);
    return b->status ? 0 : root;
}
