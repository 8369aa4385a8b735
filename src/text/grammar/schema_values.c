/* schema_values.c: objects, arrays, strings and constants of a schema as rules.
 * SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/grammar/schema.h"

/* --- strings --- */

/* The text of a key or constant, each character in all its spellings. */
static void build_quoted(struct sg_schema *s, uint32_t rule, const char *text, size_t len)
{
    sg_build_text(s->b, rule, "\"", 1);
    s->b->json = 1;
    for (size_t at = 0; at < len && !s->b->status;) {
        uint32_t c = sg_utf8_next(text, len, &at);
        if (c == UINT32_MAX)
            sg_build_fail(s->b, SEGUE_EFORMAT, "schema: a string is not valid UTF-8");
        else
            sg_build_char(s->b, rule, c);
    }
    s->b->json = 0;
    sg_build_text(s->b, rule, "\"", 1);
}

static const char *format_pattern(const char *name)
{
#define DATE \
    "[0-9]{4}-(0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|[0-9]{4}-(0[469]|11)-(0[1-9]|[12][0-9]|30)|" \
    "[0-9]{4}-02-(0[1-9]|1[0-9]|2[0-8])"
#define TIME "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define BYTE "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
    static const struct {
        const char *name, *pattern;
    } formats[] = {{"date", "^(" DATE ")$"},
                   {"time", "^" TIME "$"},
                   {"date-time", "^(" DATE ")T" TIME "$"},
                   {"duration", "^P([0-9]{1,9}W|([0-9]{1,9}Y)?([0-9]{1,9}M)?([0-9]{1,9}D)(T[0-9]{1,9}[HMS])?|T[0-9]{1,9}[HMS])$"},
                   {"uuid", "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$"},
                   {"ipv4", "^" BYTE "\\." BYTE "\\." BYTE "\\." BYTE "$"},
                   {"email", "^[a-zA-Z0-9_+-]{1,32}(\\.[a-zA-Z0-9_+-]{1,32}){0,4}@[a-zA-Z0-9]([a-zA-Z0-9-]{0,30}[a-zA-Z0-9])?"
                             "(\\.[a-zA-Z0-9]([a-zA-Z0-9-]{0,30}[a-zA-Z0-9])?){1,4}$"},
                   {"hostname",
                    "^[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?(\\.[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?){0,3}$"},
                   {"uri", "^[a-zA-Z][a-zA-Z0-9+.-]{0,16}:[a-zA-Z0-9._~:/?#@!$&'()*+,;=%-]{1,2000}$"}};
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (!strcmp(formats[i].name, name)) return formats[i].pattern;
    return NULL;
}

void sg_schema_text(struct sg_schema *s, json_t *schema, uint32_t rule)
{
    uint32_t min = 0, max = SG_REPEAT_MAX;
    json_t *given = json_object_get(schema, "pattern"), *format = json_object_get(schema, "format");
    const char *pattern = json_string_value(given);
    sg_schema_count(s, schema, "minLength", &min);
    sg_schema_count(s, schema, "maxLength", &max);
    if (given && !pattern) sg_build_fail(s->b, SEGUE_EFORMAT, "schema: pattern: expected a string");
    if (format) {
        const char *name = json_string_value(format);
        if (given) sg_build_fail(s->b, SEGUE_EUNSUPPORTED, "schema: format: not supported beside pattern; leave one out");
        pattern = name ? format_pattern(name) : NULL;
        if (!pattern)
            sg_build_fail(s->b, SEGUE_EUNSUPPORTED, "schema: format '%.40s': not supported; leave it out",
                          name ? name : "(no string)");
    }
    if (pattern && (min || max != SG_REPEAT_MAX))
        sg_build_fail(s->b, SEGUE_EUNSUPPORTED,
                      "schema: minLength and maxLength: not supported beside pattern or format; write the "
                      "length into the pattern");
    if (s->b->status || min > max) return;
    sg_build_text(s->b, rule, "\"", 1);
    if (pattern) {
        s->b->json = 1;
        uint32_t inner = sg_pattern_read(s->b, pattern, strlen(pattern), 0);
        s->b->json = 0;
        sg_build_call(s->b, rule, inner);
    } else
        sg_build_repeat(s->b, rule, sg_schema_char(s), min, max);
    sg_build_text(s->b, rule, "\"", 1);
    sg_build_end(s->b, rule);
}

/* --- constants --- */

static void build_number(struct sg_schema *s, json_t *v, uint32_t rule)
{
    char text[64];
    double real = json_number_value(v);
    if (json_is_integer(v))
        snprintf(text, sizeof text, "%lld", (long long)json_integer_value(v));
    else if (real == (double)(int64_t)real)
        snprintf(text, sizeof text, "%.1f", real);
    else {
        /* The shortest digits that give the number back. */
        for (int digits = 1; digits <= 17; digits++) {
            snprintf(text, sizeof text, "%.*g", digits, real);
            if (strtod(text, NULL) == real) break;
        }
    }
    sg_build_text(s->b, rule, text, strlen(text));
    sg_build_end(s->b, rule);
    if (!json_is_real(v) || real != (double)(int64_t)real) return;
    snprintf(text, sizeof text, "%.0f", real);
    sg_build_text(s->b, rule, text, strlen(text));
    sg_build_end(s->b, rule);
}

/* An array or object of constants is a schema of constants. */
static json_t *constant_schema(json_t *v)
{
    json_t *parts = json_is_array(v) ? json_array() : json_object(), *item, *names = json_array();
    const char *key;
    size_t i;
    json_array_foreach(v, i, item) json_array_append_new(parts, json_pack("{s:O}", "const", item));
    json_object_foreach(v, key, item)
    {
        json_object_set_new(parts, key, json_pack("{s:O}", "const", item));
        json_array_append_new(names, json_string(key));
    }
    if (json_is_object(v))
        return json_pack("{s:s, s:o, s:o, s:b}", "type", "object", "properties", parts, "required", names, "additionalProperties",
                         0);
    json_decref(names);
    return json_pack("{s:s, s:o, s:b, s:I}", "type", "array", "prefixItems", parts, "items", 0, "minItems",
                     (json_int_t)json_array_size(v));
}

void sg_schema_value(struct sg_schema *s, json_t *v, uint32_t rule)
{
    const char *word = json_is_true(v) ? "true" : json_is_false(v) ? "false" : json_is_null(v) ? "null" : NULL;
    if (json_is_number(v)) {
        build_number(s, v, rule);
        return;
    }
    if (json_is_string(v))
        build_quoted(s, rule, json_string_value(v), json_string_length(v));
    else if (word)
        sg_build_text(s->b, rule, word, strlen(word));
    else {
        json_t *schema = constant_schema(v);
        if (schema)
            sg_build_call(s->b, rule, sg_schema_rule(s, schema));
        else
            s->b->status = sg_no_memory("schema", 1, s->b->err);
        json_decref(schema);
    }
    sg_build_end(s->b, rule);
}

/* --- other keys: strings that are none of the named ones --- */

/* A tree of the characters of the names; node 0 is the root. */
struct key_node {
    uint32_t c, child, sibling, rule;
    uint32_t ends; /* 1: a name ends here */
};
struct key_tree {
    struct key_node *nodes;
    uint32_t n, cap;
};

static uint32_t key_child(struct sg_schema *s, struct key_tree *t, uint32_t node, uint32_t c)
{
    for (uint32_t i = t->nodes[node].child; i; i = t->nodes[i].sibling)
        if (t->nodes[i].c == c) return i;
    if (t->n == t->cap) {
        uint32_t cap = t->cap * 2;
        struct key_node *p = sg_realloc(t->nodes, cap * sizeof *p);
        if (!p) {
            s->b->status = sg_no_memory("schema", cap * sizeof *p, s->b->err);
            return 0;
        }
        t->nodes = p;
        t->cap = cap;
    }
    t->nodes[t->n] = (struct key_node){.c = c, .sibling = t->nodes[node].child, .rule = sg_build_rule(s->b)};
    t->nodes[node].child = t->n;
    return t->n++;
}

static void add_key(struct sg_schema *s, struct key_tree *t, const char *name)
{
    uint32_t node = 0;
    size_t len = strlen(name);
    for (size_t at = 0; at < len && !s->b->status;) {
        uint32_t c = sg_utf8_next(name, len, &at);
        if (c == UINT32_MAX)
            sg_build_fail(s->b, SEGUE_EFORMAT, "schema: a key is not valid UTF-8");
        else
            node = key_child(s, t, node, c);
    }
    t->nodes[node].ends = 1;
}

/* The rest of a key after the characters of a node: the end, a character of a child, or another one and then anything. */
static void build_key_node(struct sg_schema *s, struct key_tree *t, uint32_t node)
{
    struct sg_grammar_builder *b = s->b;
    struct sg_char_set other = {0};
    uint32_t rule = t->nodes[node].rule;
    if (!t->nodes[node].ends) sg_build_end(b, rule);
    b->json = 1;
    for (uint32_t i = t->nodes[node].child; i && !b->status; i = t->nodes[i].sibling) {
        sg_build_char(b, rule, t->nodes[i].c);
        sg_build_call(b, rule, t->nodes[i].rule);
        sg_build_end(b, rule);
        sg_chars_add(b, &other, t->nodes[i].c, t->nodes[i].c);
    }
    sg_chars_invert(b, &other);
    sg_build_chars(b, rule, &other);
    b->json = 0;
    sg_chars_free(&other);
    sg_build_repeat(b, rule, sg_schema_char(s), 0, SG_REPEAT_MAX);
    sg_build_end(b, rule);
}

/* The rule of a string that is no key of `members`. */
static uint32_t other_key(struct sg_schema *s, json_t *members)
{
    struct key_tree t = {.nodes = sg_alloc(16 * sizeof *t.nodes), .n = 1, .cap = 16};
    const char *key;
    json_t *v;
    uint32_t rule = sg_build_rule(s->b);
    if (!t.nodes) s->b->status = sg_no_memory("schema", 16 * sizeof *t.nodes, s->b->err);
    if (s->b->status) {
        sg_free(t.nodes);
        return 0;
    }
    t.nodes[0] = (struct key_node){.rule = sg_build_rule(s->b)};
    json_object_foreach(members, key, v) if (!s->b->status) add_key(s, &t, key);
    for (uint32_t i = 0; i < t.n && !s->b->status; i++) build_key_node(s, &t, i);
    sg_build_text(s->b, rule, "\"", 1);
    sg_build_call(s->b, rule, t.nodes[0].rule);
    sg_build_text(s->b, rule, "\"", 1);
    sg_build_end(s->b, rule);
    sg_free(t.nodes);
    return rule;
}

/* --- objects --- */

/* A whole member: comma (for `next`), key, colon, value. key_rule SG_NO_RULE: the key is `key`. */
static void build_member(struct sg_schema *s, const char *key, uint32_t key_rule, uint32_t value, uint32_t *first, uint32_t *next)
{
    uint32_t space = sg_schema_space(s);
    *first = sg_build_rule(s->b);
    *next = sg_build_rule(s->b);
    if (s->b->status) return;
    if (key_rule == SG_NO_RULE)
        build_quoted(s, *first, key, strlen(key));
    else
        sg_build_call(s->b, *first, key_rule);
    sg_build_call(s->b, *first, space);
    sg_build_text(s->b, *first, ":", 1);
    sg_build_call(s->b, *first, space);
    sg_build_call(s->b, *first, value);
    sg_build_call(s->b, *first, space);
    sg_build_end(s->b, *first);
    sg_build_text(s->b, *next, ",", 1);
    sg_build_call(s->b, *next, space);
    sg_build_call(s->b, *next, *first);
    sg_build_end(s->b, *next);
}

/* The named members: those of "properties", and required ones without a schema of their own. */
static json_t *named_members(struct sg_schema *s, json_t *schema)
{
    json_t *given = json_object_get(schema, "properties"), *required = json_object_get(schema, "required"), *v;
    json_t *more = json_object_get(schema, "additionalProperties");
    size_t i;
    if (given && !json_is_object(given)) sg_build_fail(s->b, SEGUE_EFORMAT, "schema: properties: expected an object");
    if (required && !json_is_array(required)) sg_build_fail(s->b, SEGUE_EFORMAT, "schema: required: expected a list of names");
    json_t *members = json_is_object(given) ? json_copy(given) : json_object();
    json_array_foreach(required, i, v)
    {
        const char *name = json_string_value(v);
        if (!name)
            sg_build_fail(s->b, SEGUE_EFORMAT, "schema: required: expected a list of names");
        else if (!json_object_get(members, name))
            json_object_set_new(members, name, more ? json_incref(more) : json_true());
    }
    if (json_object_size(members) > SG_MEMBERS_MAX)
        sg_build_fail(s->b, SEGUE_ELIMIT, "schema: properties: %zu of one object, at most %d are supported",
                      json_object_size(members), SG_MEMBERS_MAX);
    return members;
}

static void check_member_counts(struct sg_schema *s, json_t *schema, size_t required)
{
    uint32_t min = 0, max = SG_REPEAT_MAX;
    sg_schema_count(s, schema, "minProperties", &min);
    sg_schema_count(s, schema, "maxProperties", &max);
    if (min > required)
        sg_build_fail(s->b, SEGUE_EUNSUPPORTED, "schema: minProperties: not supported above the number of required ones");
    if (max != SG_REPEAT_MAX)
        sg_build_fail(s->b, SEGUE_EUNSUPPORTED, "schema: maxProperties: not supported; use additionalProperties: false");
}

void sg_schema_object(struct sg_schema *s, json_t *schema, uint32_t rule)
{
    json_t *members = named_members(s, schema), *more = json_object_get(schema, "additionalProperties"), *v;
    json_t *required = json_object_get(schema, "required");
    struct sg_members m = {.more_first = SG_NO_RULE, .more_next = SG_NO_RULE};
    const char *key;
    size_t i;
    m.first = sg_alloc((SG_MEMBERS_MAX + 1) * sizeof *m.first);
    m.next = sg_alloc((SG_MEMBERS_MAX + 1) * sizeof *m.next);
    if (!m.first || !m.next) s->b->status = sg_no_memory("schema", SG_MEMBERS_MAX * 8, s->b->err);
    check_member_counts(s, schema, json_array_size(required));
    json_object_foreach(members, key, v)
    {
        json_t *name;
        if (s->b->status) break;
        build_member(s, key, SG_NO_RULE, sg_schema_rule(s, v), &m.first[m.n], &m.next[m.n]);
        json_array_foreach(required, i, name) if (!strcmp(json_string_value(name), key)) m.required |= UINT64_C(1) << m.n;
        m.n++;
    }
    if (!s->b->status && !json_is_false(more)) {
        uint32_t other = json_object_size(members) ? other_key(s, members) : sg_schema_string(s);
        build_member(s, NULL, other, sg_schema_rule(s, more), &m.more_first, &m.more_next);
    }
    json_decref(members);
    if (s->b->status) {
        sg_free(m.first);
        sg_free(m.next);
        return;
    }
    sg_build_text(s->b, rule, "{", 1);
    sg_build_call(s->b, rule, sg_schema_space(s));
    sg_build_members(s->b, rule, &m);
    sg_build_text(s->b, rule, "}", 1);
    sg_build_end(s->b, rule);
}

/* --- arrays --- */

/* An item with the white space after it; next: with a comma before it. */
static uint32_t build_item(struct sg_schema *s, uint32_t value, int next)
{
    uint32_t rule = sg_build_rule(s->b);
    if (s->b->status) return 0;
    if (next) {
        sg_build_text(s->b, rule, ",", 1);
        sg_build_call(s->b, rule, sg_schema_space(s));
    }
    sg_build_call(s->b, rule, value);
    sg_build_call(s->b, rule, sg_schema_space(s));
    sg_build_end(s->b, rule);
    return rule;
}

/* The rest of an array from item `at` on: what follows the items of prefixItems. */
static void build_rest(struct sg_schema *s, uint32_t rule, json_t *items, uint32_t at, uint32_t min, uint32_t max)
{
    uint32_t value = json_is_false(items) ? SG_NO_RULE : sg_schema_rule(s, items);
    uint32_t left_min = min > at ? min - at : 0, left_max = max == SG_REPEAT_MAX ? max : max > at ? max - at : 0;
    if (!left_min) sg_build_end(s->b, rule);
    if (value == SG_NO_RULE || !left_max || s->b->status) return;
    if (at) {
        sg_build_repeat(s->b, rule, build_item(s, value, 1), left_min ? left_min : 1, left_max);
    } else {
        sg_build_call(s->b, rule, build_item(s, value, 0));
        sg_build_repeat(s->b, rule, build_item(s, value, 1), left_min ? left_min - 1 : 0,
                        left_max == SG_REPEAT_MAX ? left_max : left_max - 1);
    }
    sg_build_end(s->b, rule);
}

void sg_schema_array(struct sg_schema *s, json_t *schema, uint32_t rule)
{
    uint32_t min = 0, max = SG_REPEAT_MAX, at = 0;
    json_t *items = json_object_get(schema, "items"), *prefix = json_object_get(schema, "prefixItems"), *v;
    size_t i;
    if (json_is_array(items)) { /* before draft 2020-12 */
        prefix = items;
        items = json_object_get(schema, "additionalItems");
    }
    sg_schema_count(s, schema, "minItems", &min);
    sg_schema_count(s, schema, "maxItems", &max);
    if (json_is_true(json_object_get(schema, "uniqueItems")) && max > 1)
        sg_build_fail(s->b, SEGUE_EUNSUPPORTED, "schema: uniqueItems: not supported; leave it out");
    if (prefix && !json_is_array(prefix)) sg_build_fail(s->b, SEGUE_EFORMAT, "schema: prefixItems: expected a list");
    if (s->b->status || min > max) return;
    uint32_t rest = sg_build_rule(s->b);
    sg_build_text(s->b, rule, "[", 1);
    sg_build_call(s->b, rule, sg_schema_space(s));
    sg_build_call(s->b, rule, rest);
    sg_build_text(s->b, rule, "]", 1);
    sg_build_end(s->b, rule);
    json_array_foreach(prefix, i, v)
    {
        if (s->b->status || at == max) break;
        uint32_t item = build_item(s, sg_schema_rule(s, v), at > 0), more = sg_build_rule(s->b);
        if (s->b->status) break;
        if (at >= min) sg_build_end(s->b, rest);
        sg_build_call(s->b, rest, item);
        sg_build_call(s->b, rest, more);
        sg_build_end(s->b, rest);
        rest = more;
        at++;
    }
    if (!s->b->status) build_rest(s, rest, at == max ? json_false() : items, at, min, max);
}
