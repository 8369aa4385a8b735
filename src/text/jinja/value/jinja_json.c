/* jinja_json.c: values from and to JSON: the variables of a request, and the filter tojson as
 * json.dumps writes it.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "text/jinja/value/jinja_state.h"
#include "text/jinja/value/jinja_text.h"
#include "text/jinja/value/jinja_value.h"

/* Keys keep the order of the JSON text (jansson preserves insertion order). Keys and strings point
 * into the JSON object. */
static segue_status dict_from_json(struct sg_jinja *st, const json_t *json, struct sg_val *out)
{
    struct sg_dict *d = NULL;
    SG_TRY(sg_dict_make(st, SG_V_DICT, &d));
    *out = sg_v_of(&d->o);
    json_t *o = (json_t *)(uintptr_t)json; /* jansson's iterators want it without const; it is not changed */
    for (void *it = json_object_iter(o); it; it = json_object_iter_next(o, it)) {
        struct sg_val v;
        const char *key = json_object_iter_key(it);
        SG_TRY(sg_val_from_json(st, json_object_iter_value(it), &v));
        SG_TRY(sg_dict_set_name(st, d, key, strlen(key), v));
    }
    return SEGUE_OK;
}

/* Items keep their order; strings point into the JSON array. */
static segue_status list_from_json(struct sg_jinja *st, const json_t *json, struct sg_val *out)
{
    struct sg_list *l = NULL;
    SG_TRY(sg_list_make(st, SG_V_LIST, json_array_size(json), &l));
    *out = sg_v_of(&l->o);
    for (size_t i = 0; i < json_array_size(json); i++) {
        SG_TRY(sg_val_from_json(st, json_array_get(json, i), &l->items[i]));
        /* n grows with the items, so that a failure leaves a list without unset items. */
        l->n = i + 1;
    }
    return SEGUE_OK;
}

/* Nesting is bounded by sg_jinja_enter. jansson has checked that all strings are UTF-8. */
segue_status sg_val_from_json(struct sg_jinja *st, const json_t *json, struct sg_val *out)
{
    segue_status s = SEGUE_OK;
    SG_TRY(sg_jinja_enter(st));
    switch (json_typeof(json)) {
    case JSON_OBJECT: s = dict_from_json(st, json, out); break;
    case JSON_ARRAY: s = list_from_json(st, json, out); break;
    case JSON_STRING: s = sg_str_borrow(st, json_string_value(json), json_string_length(json), out); break;
    case JSON_INTEGER: *out = sg_v_int(json_integer_value(json)); break;
    case JSON_REAL: *out = sg_v_float(json_real_value(json)); break;
    case JSON_TRUE:
    case JSON_FALSE: *out = sg_v_bool(json_is_true(json)); break;
    default: *out = sg_v_none();
    }
    st->level--;
    return s;
}

/* The escapes of json.dumps. ascii: characters above 0x7e become \uXXXX, above U+FFFF as a
 * surrogate pair; DEL is written as it is. */
static segue_status json_char(struct sg_jinja *st, struct sg_buf *b, uint32_t c, int ascii)
{
    static const char from[] = "\"\\\n\r\t\f\b", to[] = "\"\\nrtfb";
    const char *at = c && c < 128 ? strchr(from, (int)c) : NULL;
    char text[16];
    if (at) {
        snprintf(text, sizeof text, "\\%c", to[at - from]);
        return sg_put_cstr(st, b, text);
    }
    if (c >= 0x20 && (c < 0x7f || !ascii)) return sg_put_char(st, b, c);
    if (c == 0x7f) return sg_put_char(st, b, c);
    if (c >= 0x10000)
        snprintf(text, sizeof text, "\\u%04x\\u%04x", (unsigned)(0xd800 + ((c - 0x10000) >> 10)),
                 (unsigned)(0xdc00 + (c & 0x3ff)));
    else
        snprintf(text, sizeof text, "\\u%04x", (unsigned)c);
    return sg_put_cstr(st, b, text);
}

/* A quoted string. transformers sets ensure_ascii to false by default, so most text is copied in
 * runs. */
static segue_status json_quoted(struct sg_jinja *st, struct sg_buf *b, const struct sg_str *s, int ascii)
{
    SG_TRY(sg_put(st, b, "\"", 1));
    for (const char *p = s->s, *e = p + s->n; p < e;) {
        const char *plain = p; /* copy runs that need no escape at once */
        while (p < e && (unsigned char)*p >= 0x20 && *p != '"' && *p != '\\' &&
               ((unsigned char)*p < 0x7f || !ascii))
            p++;
        if (p > plain) SG_TRY(sg_put(st, b, plain, (size_t)(p - plain)));
        if (p < e) SG_TRY(json_char(st, b, sg_char_get(&p), ascii));
    }
    return sg_put(st, b, "\"", 1);
}

/* With an indent: a line break and the indentation of a level. Without: nothing. */
static segue_status json_newline(struct sg_jinja *st, struct sg_buf *b, const struct sg_json_style *style,
                              size_t level)
{
    if (!style->indented) return SEGUE_OK;
    SG_TRY(sg_put(st, b, "\n", 1));
    for (size_t i = 0; i < level; i++) SG_TRY(sg_put(st, b, style->indent, style->indent_n));
    return SEGUE_OK;
}

/* Empty lists and dicts stay on one line, as in Python. */
static segue_status json_list(struct sg_jinja *st, struct sg_buf *b, const struct sg_list *l,
                              const struct sg_json_style *style, size_t level)
{
    if (!l->n) return sg_put(st, b, "[]", 2);
    SG_TRY(sg_put(st, b, "[", 1));
    for (size_t i = 0; i < l->n; i++) {
        if (i) SG_TRY(sg_put(st, b, style->item_sep, style->item_n));
        SG_TRY(json_newline(st, b, style, level + 1));
        SG_TRY(sg_put_json(st, b, l->items[i], style, level + 1));
    }
    SG_TRY(json_newline(st, b, style, level));
    return sg_put(st, b, "]", 1);
}

/* Keys that are not strings: None, bools and numbers become strings; any other kind is an error, as
 * in Python. */
static segue_status json_key(struct sg_jinja *st, struct sg_buf *b, struct sg_val key,
                             const struct sg_json_style *style)
{
    if (key.kind == SG_V_STR) return json_quoted(st, b, sg_v_str(key), style->ascii);
    if (key.kind < SG_V_NONE || key.kind > SG_V_FLOAT)
        return sg_jinja_fail(st, "tojson: a key of type '%s' cannot be written", sg_val_type(key.kind));
    SG_TRY(sg_put(st, b, "\"", 1));
    SG_TRY(sg_put_json(st, b, key, style, 0));
    return sg_put(st, b, "\"", 1);
}

/* sort_keys: values and keys sorted by key. Keys of kinds that cannot be ordered are an error. */
static segue_status sorted_pairs(struct sg_jinja *st, const struct sg_dict *d, struct sg_list **values,
                                 struct sg_list **keys)
{
    SG_TRY(sg_list_make(st, SG_V_LIST, d->n, values));
    SG_TRY(sg_list_make(st, SG_V_LIST, d->n, keys));
    for (size_t i = 0; i < d->n; i++) {
        (*keys)->items[i] = d->pairs[i].key;
        (*values)->items[i] = d->pairs[i].value;
    }
    (*keys)->n = (*values)->n = d->n;
    /* Values first: sorting the keys changes the order that the values are sorted by. */
    SG_TRY(sg_val_sort(st, (*keys)->items, (*values)->items, d->n, 0));
    return sg_val_sort(st, (*keys)->items, (*keys)->items, d->n, 0);
}

/* Pairs in insertion order unless sort_keys is set. */
static segue_status json_dict(struct sg_jinja *st, struct sg_buf *b, const struct sg_dict *d,
                              const struct sg_json_style *style, size_t level)
{
    struct sg_list *values = NULL, *keys = NULL;
    if (!d->n) return sg_put(st, b, "{}", 2);
    /* unsorted keys stay NULL, and the pairs are read from the dict */
    if (style->sort) SG_TRY(sorted_pairs(st, d, &values, &keys));
    SG_TRY(sg_put(st, b, "{", 1));
    for (size_t i = 0; i < d->n; i++) {
        if (i) SG_TRY(sg_put(st, b, style->item_sep, style->item_n));
        SG_TRY(json_newline(st, b, style, level + 1));
        SG_TRY(json_key(st, b, keys ? keys->items[i] : d->pairs[i].key, style));
        SG_TRY(sg_put(st, b, style->key_sep, style->key_n));
        SG_TRY(sg_put_json(st, b, values ? values->items[i] : d->pairs[i].value, style, level + 1));
    }
    SG_TRY(json_newline(st, b, style, level));
    return sg_put(st, b, "}", 1);
}

/* Only JSON types: undefined, generators, namespaces and functions are errors. NaN and infinities
 * are written as Python writes them, which is not valid JSON. */
segue_status sg_put_json(struct sg_jinja *st, struct sg_buf *b, struct sg_val v,
                         const struct sg_json_style *style, size_t level)
{
    segue_status s;
    switch (v.kind) {
    case SG_V_NONE: return sg_put_cstr(st, b, "null");
    case SG_V_BOOL: return sg_put_cstr(st, b, v.u.i ? "true" : "false");
    case SG_V_INT: return sg_put_repr(st, b, v);
    case SG_V_FLOAT:
        if (isfinite(v.u.f)) return sg_put_float(st, b, v.u.f);
        return sg_put_cstr(st, b, isnan(v.u.f) ? "NaN" : v.u.f < 0 ? "-Infinity" : "Infinity");
    case SG_V_STR: return json_quoted(st, b, sg_v_str(v), style->ascii);
    case SG_V_LIST:
    case SG_V_TUPLE:
    case SG_V_DICT: break;
    default:
        return sg_jinja_fail(st, "tojson: a value of type '%s' cannot be written as JSON",
                             sg_val_type(v.kind));
    }
    /* bounds the recursion: values can be nested by a template */
    SG_TRY(sg_jinja_enter(st));
    s = v.kind == SG_V_DICT ? json_dict(st, b, sg_v_dict(v), style, level)
                            : json_list(st, b, sg_v_list(v), style, level);
    st->level--;
    return s;
}
