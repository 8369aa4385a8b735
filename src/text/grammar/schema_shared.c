/* schema_shared.c: what all parts of the reader of schemas use: the list of schemas that wait, and the rules that many schemas
 * share. SPDX-License-Identifier: MIT */
#include "text/grammar/schema.h"

/* Schemas compiled for one document. */
enum { TASKS_MAX = 20000 };

uint32_t sg_schema_rule(struct sg_schema *s, json_t *schema)
{
    if ((!schema || json_is_true(schema)) && s->any != SG_NO_RULE) return s->any;
    if (!schema) schema = json_true();
    uint32_t rule = sg_build_rule(s->b);
    if (++s->tasks_total > TASKS_MAX)
        sg_build_fail(s->b, SEGUE_ELIMIT, "schema: too large: more than %d schemas; simplify it", TASKS_MAX);
    if (s->b->status) return 0;
    if (s->tasks_n == s->tasks_cap) {
        uint32_t cap = s->tasks_cap ? s->tasks_cap * 2 : 64;
        struct sg_schema_task *p = sg_realloc(s->tasks, cap * sizeof *p);
        if (!p) {
            s->b->status = sg_no_memory("schema", cap * sizeof *p, s->b->err);
            return 0;
        }
        s->tasks = p;
        s->tasks_cap = cap;
    }
    s->tasks[s->tasks_n++] = (struct sg_schema_task){json_incref(schema), rule};
    if (json_is_true(schema)) s->any = rule;
    return rule;
}

/* --- shared rules --- */

/* Nothing, a space, or a line break and an indentation: what serializers write. Longer runs are not allowed, since models that
 * write them often do not stop. */
uint32_t sg_schema_space(struct sg_schema *s)
{
    if (s->space != SG_NO_RULE) return s->space;
    struct sg_grammar_builder *b = s->b;
    uint32_t rule = s->space = sg_build_rule(b), indent = sg_build_rule(b);
    struct sg_byte_set blank = {{0}};
    if (b->status) return 0;
    blank.bits[0] = UINT32_C(1) << '\t';
    blank.bits[1] = 1; /* ' ' */
    sg_build_bytes(b, indent, &blank);
    sg_build_end(b, indent);
    sg_build_end(b, rule);
    sg_build_text(b, rule, " ", 1);
    sg_build_end(b, rule);
    sg_build_text(b, rule, "\n", 1);
    sg_build_repeat(b, rule, indent, 0, 64);
    sg_build_end(b, rule);
    return rule;
}

/* One character of a string: everything but " \ and control characters, or an escape. */
uint32_t sg_schema_char(struct sg_schema *s)
{
    struct sg_char_set all = {0};
    if (s->chars != SG_NO_RULE) return s->chars;
    s->chars = sg_build_rule(s->b);
    if (s->b->status) return 0;
    s->b->json = 1;
    sg_chars_invert(s->b, &all);
    sg_build_chars(s->b, s->chars, &all);
    s->b->json = 0;
    sg_chars_free(&all);
    sg_build_end(s->b, s->chars);
    return s->chars;
}

uint32_t sg_schema_string(struct sg_schema *s)
{
    if (s->string != SG_NO_RULE) return s->string;
    uint32_t one = sg_schema_char(s), rule = s->string = sg_build_rule(s->b);
    if (s->b->status) return 0;
    sg_build_text(s->b, rule, "\"", 1);
    sg_build_repeat(s->b, rule, one, 0, SG_REPEAT_MAX);
    sg_build_text(s->b, rule, "\"", 1);
    sg_build_end(s->b, rule);
    return rule;
}

void sg_schema_count(struct sg_schema *s, json_t *schema, const char *key, uint32_t *out)
{
    json_t *v = json_object_get(schema, key);
    if (!v) return;
    double n = json_number_value(v);
    if (!json_is_number(v) || n < 0 || n != (double)(uint64_t)n)
        sg_build_fail(s->b, SEGUE_EFORMAT, "schema: %s: expected a whole number", key);
    else
        *out = n > 1000000000 ? 1000000000 : (uint32_t)n;
}
