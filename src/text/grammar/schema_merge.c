/* schema_merge.c: one schema that demands what two demand, as far as that can be written as a schema. What cannot is refused by
 * the name of the keyword. SPDX-License-Identifier: MIT */
#include <stdlib.h>
#include <string.h>

#include "text/grammar/schema.h"

enum { REFS_IN_A_ROW = 64 };

int sg_schema_annotation(const char *key)
{
    static const char *const names[] = {"title",   "description", "default", "examples",      "example",  "$comment",
                                        "$schema", "$id",         "id",      "deprecated",    "readOnly", "writeOnly",
                                        "$defs",   "definitions", "$anchor", "discriminator", "nullable", "x-segue"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i], key)) return 1;
    return 0;
}

/* Replace ~1 and ~0 of a JSON pointer. */
static void unescape(char *s)
{
    char *to = s;
    for (; *s; s++) {
        if (s[0] == '~' && (s[1] == '0' || s[1] == '1'))
            *to++ = *++s == '0' ? '~' : '/';
        else
            *to++ = *s;
    }
    *to = 0;
}

json_t *sg_schema_target(struct sg_schema *s, const char *pointer)
{
    json_t *at = s->root;
    const char *p = pointer + 1;
    char part[256];
    if (pointer[0] != '#' || (*p && *p != '/'))
        sg_build_fail(s->b, SEGUE_EUNSUPPORTED,
                      "schema: $ref '%.100s': only references into the same document (#/...) are supported", pointer);
    while (!s->b->status && *p && at) {
        size_t n = strcspn(++p, "/");
        if (n >= sizeof part)
            at = NULL;
        else {
            memcpy(part, p, n);
            part[n] = 0;
            unescape(part);
            at = json_is_array(at) ? json_array_get(at, (size_t)strtoul(part, NULL, 10)) : json_object_get(at, part);
        }
        p += n;
    }
    if (!at) sg_build_fail(s->b, SEGUE_EFORMAT, "schema: $ref '%.100s': there is nothing at this place", pointer);
    return s->b->status ? NULL : at;
}

/* --- keywords --- */

static json_t *as_list(json_t *v) { return json_is_array(v) ? json_incref(v) : json_pack("[O]", v); }

static int contains(json_t *list, json_t *v)
{
    size_t i;
    json_t *other;
    json_array_foreach(list, i, other) if (json_equal(other, v)) return 1;
    return 0;
}

static int contains_text(json_t *list, const char *text)
{
    size_t i;
    json_t *other;
    json_array_foreach(list, i, other) if (json_is_string(other) && !strcmp(json_string_value(other), text)) return 1;
    return 0;
}

/* Types that are in both; an integer is a number. */
static json_t *merge_types(json_t *a, json_t *b)
{
    json_t *la = as_list(a), *lb = as_list(b), *out = json_array(), *v;
    size_t i;
    json_array_foreach(la, i, v) if (contains(lb, v) || (contains_text(lb, "number") && json_is_string(v) &&
                                                         !strcmp(json_string_value(v), "integer"))) json_array_append(out, v);
    json_array_foreach(lb, i, v) if (json_is_string(v) && !strcmp(json_string_value(v), "integer") &&
                                     contains_text(la, "number") && !contains(la, v)) json_array_append(out, v);
    json_decref(la);
    json_decref(lb);
    return out;
}

static json_t *intersect(json_t *a, json_t *b)
{
    json_t *out = json_array(), *v;
    size_t i;
    json_array_foreach(a, i, v) if (contains(b, v)) json_array_append(out, v);
    return out;
}

static json_t *union_of(json_t *a, json_t *b)
{
    json_t *out = json_copy(a), *v;
    size_t i;
    json_array_foreach(b, i, v) if (!contains(out, v)) json_array_append(out, v);
    return out;
}

static json_t *both(json_t *a, json_t *b) { return json_equal(a, b) ? json_incref(a) : json_pack("{s:[O,O]}", "allOf", a, b); }

/* The tighter of two bounds. */
static json_t *tighter(json_t *a, json_t *b, int larger)
{
    return json_incref((json_number_value(a) > json_number_value(b)) == larger ? a : b);
}

/* The value of a keyword that both have and that is not about members; NULL: cannot be merged. */
static json_t *merge_keyword(const char *key, json_t *a, json_t *b)
{
    static const char *const lower[] = {"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"};
    static const char *const upper[] = {"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"};
    if (json_equal(a, b)) return json_incref(a);
    if (!strcmp(key, "type")) return merge_types(a, b);
    if (!strcmp(key, "enum") && json_is_array(a) && json_is_array(b)) return intersect(a, b);
    if (!strcmp(key, "required") && json_is_array(a) && json_is_array(b)) return union_of(a, b);
    if (!strcmp(key, "allOf") && json_is_array(a) && json_is_array(b)) return union_of(a, b);
    if (!strcmp(key, "uniqueItems")) return json_boolean(json_is_true(a) || json_is_true(b));
    for (size_t i = 0; i < 5; i++) {
        if (!strcmp(key, lower[i]) && json_is_number(a) && json_is_number(b)) return tighter(a, b, 1);
        if (!strcmp(key, upper[i]) && json_is_number(a) && json_is_number(b)) return tighter(a, b, 0);
    }
    return NULL;
}

/* Members: what one side does not name is under the other side's additionalProperties too. */
static void merge_members(json_t *a, json_t *b, json_t *out)
{
    json_t *pa = json_object_get(a, "properties"), *pb = json_object_get(b, "properties"), *v;
    json_t *more_a = json_object_get(a, "additionalProperties"), *more_b = json_object_get(b, "additionalProperties");
    const char *key;
    if (!pa && !pb && !more_a && !more_b) return;
    json_t *members = json_object();
    json_object_foreach(pa, key, v)
    {
        json_t *other = json_object_get(pb, key);
        if (!other) other = more_b;
        json_object_set_new(members, key, other ? both(v, other) : json_incref(v));
    }
    json_object_foreach(pb, key, v) if (!json_object_get(pa, key))
        json_object_set_new(members, key, more_a ? both(v, more_a) : json_incref(v));
    json_object_set_new(out, "properties", members);
    if (more_a && more_b)
        json_object_set_new(out, "additionalProperties", both(more_a, more_b));
    else if (more_a || more_b)
        json_object_set(out, "additionalProperties", more_a ? more_a : more_b);
}

/* Items: those beyond one side's prefixItems are under its items, which do not see the other side's prefixItems. */
static void merge_items(json_t *a, json_t *b, json_t *out)
{
    json_t *pa = json_object_get(a, "prefixItems"), *pb = json_object_get(b, "prefixItems");
    json_t *more_a = json_object_get(a, "items"), *more_b = json_object_get(b, "items");
    size_t n = json_array_size(pa) > json_array_size(pb) ? json_array_size(pa) : json_array_size(pb);
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) {
        json_t *x = i < json_array_size(pa) ? json_array_get(pa, i) : more_a;
        json_t *y = i < json_array_size(pb) ? json_array_get(pb, i) : more_b;
        json_array_append_new(list, x && y ? both(x, y) : json_incref(x ? x : y));
    }
    if (n) json_object_set(out, "prefixItems", list);
    if (more_a && more_b) json_object_set_new(out, "items", both(more_a, more_b));
    else if (more_a || more_b) json_object_set(out, "items", more_a ? more_a : more_b);
    json_decref(list);
}

/* 1: what was a list in older drafts is one, so that merge_items does not apply. */
static int has_list_of_items(json_t *schema)
{
    json_t *prefix = json_object_get(schema, "prefixItems");
    return json_is_array(json_object_get(schema, "items")) || (prefix && !json_is_array(prefix));
}

static json_t *merge_plain(struct sg_schema *s, json_t *a, json_t *b)
{
    int items = !has_list_of_items(a) && !has_list_of_items(b);
    json_t *out = json_copy(a), *v;
    const char *key;
    json_object_foreach(b, key, v)
    {
        json_t *own = json_object_get(a, key);
        if (!strcmp(key, "properties") || !strcmp(key, "additionalProperties")) continue;
        if (items && (!strcmp(key, "items") || !strcmp(key, "prefixItems"))) continue;
        if (!own) json_object_set(out, key, v);
        if (!own || sg_schema_annotation(key)) continue;
        json_t *merged = merge_keyword(key, own, v);
        if (merged)
            json_object_set_new(out, key, merged);
        else
            sg_build_fail(s->b, SEGUE_EUNSUPPORTED,
                          "schema: keyword %.40s: two different ones apply to one value, which is not supported", key);
    }
    if (out) merge_members(a, b, out);
    if (out && items) merge_items(a, b, out);
    if (!out) s->b->status = sg_no_memory("schema", 1, s->b->err);
    return out;
}

/* The schema with its $ref replaced by the target, as a new reference. */
static json_t *resolve(struct sg_schema *s, json_t *schema)
{
    json_t *at = json_incref(schema);
    const char *pointer;
    for (int i = 0; !s->b->status && (pointer = json_string_value(json_object_get(at, "$ref"))); i++) {
        json_t *target = sg_schema_target(s, pointer), *rest = json_copy(at);
        if (i == REFS_IN_A_ROW) sg_build_fail(s->b, SEGUE_EFORMAT, "schema: $ref '%.100s': it refers to itself", pointer);
        json_object_del(rest, "$ref");
        json_t *next = s->b->status ? NULL : json_is_object(target) ? merge_plain(s, rest, target) : json_incref(target);
        json_decref(rest);
        json_decref(at);
        at = next;
    }
    return at;
}

json_t *sg_schema_merge(struct sg_schema *s, json_t *a, json_t *b)
{
    json_t *x = resolve(s, a), *y = s->b->status ? NULL : resolve(s, b), *out = NULL;
    if (!s->b->status) {
        if (json_is_boolean(x))
            out = json_incref(json_is_true(x) ? y : x);
        else if (json_is_boolean(y))
            out = json_incref(json_is_true(y) ? x : y);
        else if (json_is_object(x) && json_is_object(y))
            out = merge_plain(s, x, y);
        else
            sg_build_fail(s->b, SEGUE_EFORMAT, "schema: a schema is an object, true or false; something else was found");
    }
    json_decref(x);
    json_decref(y);
    if (s->b->status) {
        json_decref(out);
        return NULL;
    }
    return out;
}

/* --- disjoint schemas --- */

/* The values that a schema allows by const or enum, as a new list; NULL: not limited. */
static json_t *values(json_t *schema)
{
    json_t *one = json_object_get(schema, "const"), *list = json_object_get(schema, "enum");
    return one ? json_pack("[O]", one) : list ? json_incref(list) : NULL;
}

static int values_disjoint(json_t *a, json_t *b)
{
    json_t *va = values(a), *vb = values(b);
    int disjoint = 0;
    if (va && vb) {
        json_t *common = intersect(va, vb);
        disjoint = json_array_size(common) == 0;
        json_decref(common);
    }
    json_decref(va);
    json_decref(vb);
    return disjoint;
}

int sg_schema_disjoint(struct sg_schema *s, json_t *a, json_t *b)
{
    json_t *x = resolve(s, a), *y = s->b->status ? NULL : resolve(s, b);
    json_t *tx = json_object_get(x, "type"), *ty = json_object_get(y, "type"), *v;
    const char *key;
    int disjoint = s->b->status || values_disjoint(x, y);
    if (!disjoint && tx && ty) {
        json_t *common = merge_types(tx, ty);
        disjoint = json_array_size(common) == 0;
        json_decref(common);
    }
    /* A member that both require, with different constants. */
    json_object_foreach(json_object_get(x, "properties"), key, v)
    {
        json_t *other = json_object_get(json_object_get(y, "properties"), key);
        if (other && values_disjoint(v, other) && contains_text(json_object_get(x, "required"), key) &&
            contains_text(json_object_get(y, "required"), key))
            disjoint = 1;
    }
    json_decref(x);
    json_decref(y);
    return disjoint;
}
