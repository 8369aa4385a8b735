/* schema.c: compiles the schemas of a document one by one: references, combinations, types.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "tensor/json.h"
#include "text/grammar/schema.h"

/* Schemas merged for one document. */
enum { MERGES_MAX = 5000 };

/* --- keywords --- */

static const char *const supported[] = {"type",
                                        "properties",
                                        "required",
                                        "additionalProperties",
                                        "items",
                                        "prefixItems",
                                        "additionalItems",
                                        "minItems",
                                        "maxItems",
                                        "enum",
                                        "const",
                                        "anyOf",
                                        "oneOf",
                                        "allOf",
                                        "$ref",
                                        "minLength",
                                        "maxLength",
                                        "pattern",
                                        "format",
                                        "minimum",
                                        "maximum",
                                        "exclusiveMinimum",
                                        "exclusiveMaximum",
                                        "multipleOf",
                                        "uniqueItems",
                                        "minProperties",
                                        "maxProperties"};
/* Keywords of the JSON Schema drafts that demand something that this compiler cannot. Any other word is an annotation. */
static const char *const refused[] = {"not",
                                      "if",
                                      "then",
                                      "else",
                                      "dependentSchemas",
                                      "dependentRequired",
                                      "dependencies",
                                      "patternProperties",
                                      "propertyNames",
                                      "contains",
                                      "minContains",
                                      "maxContains",
                                      "unevaluatedItems",
                                      "unevaluatedProperties",
                                      "$dynamicRef",
                                      "$recursiveRef"};

static int among(const char *key, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(list[i], key)) return 1;
    return 0;
}

static void check_keywords(struct sg_schema *s, json_t *schema)
{
    const char *key;
    json_t *v;
    json_object_foreach(schema, key, v) if (among(key, refused, sizeof refused / sizeof *refused))
        sg_build_fail(s->b, SEGUE_EUNSUPPORTED, "schema: keyword %.40s: not supported; leave it out", key);
}

/* 1: the schema demands something besides `but`. */
static int has_demands(json_t *schema, const char *but)
{
    const char *key;
    json_t *v;
    json_object_foreach(schema, key,
                        v) if (strcmp(key, but) != 0 && among(key, supported, sizeof supported / sizeof *supported)) return 1;
    return 0;
}

/* --- combinations --- */

static json_t *without(struct sg_schema *s, json_t *schema, const char *key)
{
    json_t *copy = json_copy(schema);
    if (!copy || ++s->merges > MERGES_MAX) {
        sg_build_fail(s->b, SEGUE_ELIMIT, "schema: too many combinations: more than %d; simplify allOf, anyOf and $ref",
                      MERGES_MAX);
        json_decref(copy);
        return NULL;
    }
    json_object_del(copy, key);
    return copy;
}

/* {$ref, ...}: the target's rule, or a merged schema. */
static void compile_ref(struct sg_schema *s, json_t *schema, uint32_t rule)
{
    const char *pointer = json_string_value(json_object_get(schema, "$ref"));
    json_t *target = pointer ? sg_schema_target(s, pointer) : NULL, *base = NULL, *merged = NULL;
    if (!pointer) sg_build_fail(s->b, SEGUE_EFORMAT, "schema: $ref: expected a string");
    if (s->b->status) return;
    if (!has_demands(schema, "$ref")) {
        json_t *known = json_object_get(s->refs, pointer);
        uint32_t callee = known ? (uint32_t)json_integer_value(known) : sg_schema_rule(s, target);
        if (!known) json_object_set_new(s->refs, pointer, json_integer(callee));
        sg_build_call(s->b, rule, callee);
        sg_build_end(s->b, rule);
        return;
    }
    base = without(s, schema, "$ref");
    if (base) merged = sg_schema_merge(s, base, target);
    if (merged) sg_build_call(s->b, rule, sg_schema_rule(s, merged));
    sg_build_end(s->b, rule);
    json_decref(base);
    json_decref(merged);
}

static void compile_all_of(struct sg_schema *s, json_t *schema, uint32_t rule)
{
    json_t *list = json_object_get(schema, "allOf"), *v;
    json_t *sum = without(s, schema, "allOf");
    size_t i;
    if (!json_is_array(list)) sg_build_fail(s->b, SEGUE_EFORMAT, "schema: allOf: expected a list");
    json_array_foreach(list, i, v)
    {
        json_t *next = sum && !s->b->status ? sg_schema_merge(s, sum, v) : NULL;
        json_decref(sum);
        sum = next;
    }
    if (sum && !s->b->status) sg_build_call(s->b, rule, sg_schema_rule(s, sum));
    sg_build_end(s->b, rule);
    json_decref(sum);
}

static void check_disjoint(struct sg_schema *s, json_t *list)
{
    size_t n = json_array_size(list);
    if (n > 200) sg_build_fail(s->b, SEGUE_ELIMIT, "schema: oneOf: more than 200 schemas; use anyOf");
    for (size_t i = 0; i < n && !s->b->status; i++)
        for (size_t k = 0; k < i; k++)
            if (!sg_schema_disjoint(s, json_array_get(list, k), json_array_get(list, i)))
                sg_build_fail(s->b, SEGUE_EUNSUPPORTED,
                              "schema: oneOf: schemas %zu and %zu may both match one value; use anyOf, or give "
                              "them different types or constants",
                              k, i);
}

/* anyOf and oneOf: one alternative for each schema, merged with what applies besides them. */
static void compile_any_of(struct sg_schema *s, json_t *schema, const char *key, uint32_t rule)
{
    json_t *list = json_object_get(schema, key);
    json_t *base = NULL, *v;
    size_t i;
    if (!json_is_array(list) || !json_array_size(list)) sg_build_fail(s->b, SEGUE_EFORMAT, "schema: %s: expected a list", key);
    if (key[0] == 'o' && !s->b->status) check_disjoint(s, list);
    if (has_demands(schema, key)) base = without(s, schema, key);
    json_array_foreach(list, i, v)
    {
        json_t *merged = s->b->status ? NULL : base ? sg_schema_merge(s, base, v) : json_incref(v);
        if (merged) sg_build_call(s->b, rule, sg_schema_rule(s, merged));
        sg_build_end(s->b, rule);
        json_decref(merged);
    }
    json_decref(base);
}

/* --- types --- */

static int has_type(json_t *type, const char *name)
{
    size_t i;
    json_t *v;
    if (json_is_string(type)) return !strcmp(json_string_value(type), name);
    json_array_foreach(type, i, v) if (json_is_string(v) && !strcmp(json_string_value(v), name)) return 1;
    return 0;
}

static const char *value_type(json_t *v)
{
    static const char *const names[] = {"object", "array", "string", "integer", "number", "boolean", "boolean", "null"};
    if (json_is_real(v) && json_real_value(v) == (double)(int64_t)json_real_value(v)) return "integer";
    return names[json_typeof(v)];
}

/* enum and const: the values that have the type and occur in both. */
static void compile_values(struct sg_schema *s, json_t *schema, uint32_t rule)
{
    static const char *const beside[] = {"type", "enum", "const"};
    json_t *one = json_object_get(schema, "const"), *list = json_object_get(schema, "enum"),
           *type = json_object_get(schema, "type"), *v;
    const char *key;
    size_t i;
    json_object_foreach(schema, key, v) if (!among(key, beside, 3) && among(key, supported, sizeof supported / sizeof *supported))
        sg_build_fail(s->b, SEGUE_EUNSUPPORTED, "schema: keyword %s: not supported beside enum or const; leave it out", key);
    if (list && !json_is_array(list)) sg_build_fail(s->b, SEGUE_EFORMAT, "schema: enum: expected a list");
    json_t *values = list ? json_incref(list) : json_pack("[O]", one);
    json_array_foreach(values, i, v)
    {
        const char *own = value_type(v);
        if (one && !json_equal(one, v)) continue;
        if (type && !has_type(type, own) && !(!strcmp(own, "integer") && has_type(type, "number"))) continue;
        sg_schema_value(s, v, rule);
    }
    json_decref(values);
}

/* Any value. Its arrays and objects are ordinary ones without further demands. */
static void compile_any(struct sg_schema *s, uint32_t rule)
{
    static const char *const words[] = {"null", "true", "false"};
    json_t *empty = json_object();
    if (!empty) s->b->status = sg_no_memory("schema", 1, s->b->err);
    if (s->b->status) return;
    sg_build_call(s->b, rule, sg_schema_string(s));
    sg_build_end(s->b, rule);
    sg_schema_number(s, empty, rule, 0);
    for (uint32_t i = 0; i < 3; i++) {
        sg_build_text(s->b, rule, words[i], strlen(words[i]));
        sg_build_end(s->b, rule);
    }
    sg_schema_object(s, empty, rule);
    sg_schema_array(s, empty, rule);
    json_decref(empty);
}

/* The types of a schema without `type`, derived from its keywords. Without such a keyword any value is allowed. */
static const char *guess_type(json_t *schema)
{
    static const struct {
        const char *key, *type;
    } hints[] = {{"properties", "object"},      {"additionalProperties", "object"},
                 {"required", "object"},        {"minProperties", "object"},
                 {"maxProperties", "object"},   {"items", "array"},
                 {"prefixItems", "array"},      {"minItems", "array"},
                 {"maxItems", "array"},         {"uniqueItems", "array"},
                 {"minLength", "string"},       {"maxLength", "string"},
                 {"pattern", "string"},         {"format", "string"},
                 {"minimum", "number"},         {"maximum", "number"},
                 {"exclusiveMinimum", "number"}, {"exclusiveMaximum", "number"},
                 {"multipleOf", "number"}};
    for (size_t i = 0; i < sizeof hints / sizeof *hints; i++)
        if (json_object_get(schema, hints[i].key)) return hints[i].type;
    return NULL;
}

static void compile_types(struct sg_schema *s, json_t *schema, uint32_t rule)
{
    static const char *const names[] = {"object", "array", "string", "number", "integer", "boolean", "null"};
    json_t *given = json_object_get(schema, "type"), *v;
    const char *guess = given ? NULL : guess_type(schema);
    json_t *type = given ? json_incref(given) : guess ? json_string(guess) : NULL;
    size_t i;
    if (!type) {
        sg_build_call(s->b, rule, sg_schema_rule(s, NULL));
        sg_build_end(s->b, rule);
        return;
    }
    json_array_foreach(type, i, v) if (!json_is_string(v) || !among(json_string_value(v), names, 7))
        sg_build_fail(s->b, SEGUE_EFORMAT, "schema: type: unknown type in the list");
    if (!json_is_array(type) && (!json_is_string(type) || !among(json_string_value(type), names, 7)))
        sg_build_fail(s->b, SEGUE_EFORMAT, "schema: type: '%.40s' is unknown",
                      json_is_string(type) ? json_string_value(type) : "(no string)");
    if (has_type(type, "object")) sg_schema_object(s, schema, rule);
    if (has_type(type, "array")) sg_schema_array(s, schema, rule);
    if (has_type(type, "string")) sg_schema_text(s, schema, rule);
    if (has_type(type, "number"))
        sg_schema_number(s, schema, rule, 0);
    else if (has_type(type, "integer"))
        sg_schema_number(s, schema, rule, 1);
    for (i = 0; i < 3; i++) {
        static const char *const words[] = {"true", "false", "null"};
        if (!has_type(type, i < 2 ? "boolean" : "null")) continue;
        sg_build_text(s->b, rule, words[i], strlen(words[i]));
        sg_build_end(s->b, rule);
    }
    json_decref(type);
}

static void compile(struct sg_schema *s, json_t *schema, uint32_t rule)
{
    if (json_is_false(schema)) return; /* no alternative: matches nothing */
    if (json_is_true(schema)) {
        compile_any(s, rule);
        return;
    }
    if (!json_is_object(schema)) {
        sg_build_fail(s->b, SEGUE_EFORMAT, "schema: a schema is an object, true or false; something else was found");
        return;
    }
    check_keywords(s, schema);
    if (json_object_get(schema, "$ref"))
        compile_ref(s, schema, rule);
    else if (json_object_get(schema, "allOf"))
        compile_all_of(s, schema, rule);
    else if (json_object_get(schema, "anyOf"))
        compile_any_of(s, schema, "anyOf", rule);
    else if (json_object_get(schema, "oneOf"))
        compile_any_of(s, schema, "oneOf", rule);
    else if (json_object_get(schema, "enum") || json_object_get(schema, "const"))
        compile_values(s, schema, rule);
    else
        compile_types(s, schema, rule);
}

/* --- the document --- */

/* The extension "x-segue" of the outermost schema: text before and after each value (special: the first is a control token), and
 * whether values may repeat. For the calls of tools. */
static uint32_t wrap(struct sg_schema *s, json_t *extension, uint32_t value)
{
    struct sg_grammar_builder *b = s->b;
    const char *begin = json_string_value(json_object_get(extension, "begin")),
               *end = json_string_value(json_object_get(extension, "end"));
    uint32_t one = sg_build_rule(b), root = sg_build_rule(b);
    if (b->status) return 0;
    if (begin) {
        /* The mark may be one control token or ordinary text. */
        uint32_t mark = sg_build_rule(b);
        if (b->status) return 0;
        sg_build_text(b, mark, begin, strlen(begin));
        sg_build_end(b, mark);
        if (json_is_true(json_object_get(extension, "special"))) {
            sg_build_text(b, mark, "\xFF", 1);
            sg_build_text(b, mark, begin, strlen(begin));
            sg_build_end(b, mark);
        }
        sg_build_call(b, one, mark);
    }
    sg_build_call(b, one, value);
    if (end) sg_build_text(b, one, end, strlen(end));
    if (end && *end) sg_build_call(b, one, sg_schema_space(s));
    sg_build_end(b, one);
    sg_build_repeat(b, root, one, 1, json_is_true(json_object_get(extension, "repeat")) ? 16 : 1);
    sg_build_end(b, root);
    return root;
}

uint32_t sg_schema_read(struct sg_grammar_builder *b, const char *text, size_t len)
{
    struct sg_schema s = {.b = b, .space = SG_NO_RULE, .any = SG_NO_RULE, .string = SG_NO_RULE, .chars = SG_NO_RULE};
    b->status = sg_json_parse(&s.root, text, len, "schema", b->err);
    s.refs = json_object();
    uint32_t root = 0;
    if (!b->status) {
        root = sg_build_rule(b);
        uint32_t value = sg_schema_rule(&s, s.root), space = sg_schema_space(&s);
        json_t *extension = json_object_get(s.root, "x-segue");
        if (extension)
            root = wrap(&s, extension, value);
        else if (!b->status) {
            sg_build_call(b, root, space);
            sg_build_call(b, root, value);
            sg_build_call(b, root, space);
            sg_build_end(b, root);
        }
    }
    while (s.tasks_n) {
        struct sg_schema_task t = s.tasks[--s.tasks_n];
        if (!b->status) compile(&s, t.schema, t.rule);
        json_decref(t.schema);
    }
    sg_free(s.tasks);
    json_decref(s.refs);
    json_decref(s.root);
    return root;
}
