/* jinja_attr.c: attributes, items and slices by the rules of jinja2's sandbox: no name with an underscore
 * prefix is special because no Python attribute exists here, and methods that change a value are refused.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "text/jinja/jinja_ast.h"
#include "text/jinja/value/jinja_state.h"
#include "text/jinja/value/jinja_text.h"
#include "text/jinja/value/jinja_value.h"

/* The error for using an undefined value, by where it came from: a name, an attribute of a typed value, or
 * unknown. */
static segue_status fail_undefined(struct sg_jinja *st, struct sg_val v)
{
    const struct sg_jinja_node *n = v.u.node;
    if (!n || !n->s) return sg_jinja_fail(st, "an undefined value is used; test it with 'is defined'");
    if (!v.aux)
        return sg_jinja_fail(st, "'%.*s' is undefined; test it with 'is defined'",
                             (int)(n->n > 80 ? 80 : n->n), n->s);
    return sg_jinja_fail(st, "a value of type '%s' has no attribute '%.*s'", sg_val_type(v.aux),
                         (int)(n->n > 80 ? 80 : n->n), n->s);
}

/* Attributes and methods of a value, not the items of a dict. *out MISSING = none; *blocked = 1: a method
 * that the sandbox forbids, which then hides a dict key of that name. */
static segue_status direct_attr(struct sg_jinja *st, struct sg_val v, const char *s, size_t n, int *blocked,
                             struct sg_val *out)
{
    *out = (struct sg_val){0};
    *blocked = 0;
    if (v.kind == SG_V_LOOP) return sg_loop_attr(st, sg_v_loop(v), s, n, out);
    if (v.kind == SG_V_NAMESPACE) {
        const struct sg_val *at = sg_dict_name(sg_v_dict(v), s, n);
        if (at) *out = *at;
        return SEGUE_OK;
    }
    /* A macro has the attribute `name`; that of a call block is None. */
    if (v.kind == SG_V_MACRO && n == 4 && !memcmp(s, "name", 4)) {
        const struct sg_jinja_node *m = ((struct sg_jinja_macro *)(void *)v.u.o)->node;
        return m->kind == SG_N_MACRO ? sg_str_borrow(st, m->s, m->n, out) : (*out = sg_v_none(), SEGUE_OK);
    }
    if (v.kind == SG_V_CYCLER && n == 7 && !memcmp(s, "current", 7))
        return *out = sg_v_seq(v)->list->items[sg_v_seq(v)->pos], SEGUE_OK;
    const struct sg_builtin *f = st->env->method(v, s, n, blocked);
    return f && !*blocked ? sg_method_make(st, v, f, out) : SEGUE_OK;
}

/* v.name: attributes first, then dict keys, as jinja2's getattr. An attribute of an undefined value is an
 * error; a missing attribute is an undefined value that remembers the kind of v. */
segue_status sg_val_attr(struct sg_jinja *st, struct sg_val v, const char *s, size_t n,
                         const struct sg_jinja_node *node, struct sg_val *out)
{
    int blocked;
    if (v.kind == SG_V_UNDEFINED) return fail_undefined(st, v);
    SG_TRY(direct_attr(st, v, s, n, &blocked, out));
    if (out->kind != SG_V_MISSING) return SEGUE_OK;
    if (v.kind == SG_V_DICT && !blocked) {
        const struct sg_val *at = sg_dict_name(sg_v_dict(v), s, n);
        if (at) return *out = *at, SEGUE_OK;
    }
    *out = sg_v_undefined(node, v.kind);
    return SEGUE_OK;
}

/* v[i] of a string, list, tuple or range; negative indices count from the end. Out of range leaves *out
 * MISSING, which jinja2 turns into undefined. */
static segue_status seq_item(struct sg_jinja *st, struct sg_val v, int64_t i, struct sg_val *out)
{
    size_t n;
    SG_TRY(sg_val_length(st, v, &n));
    if (i < 0) i += (int64_t)n;
    if (i < 0 || (uint64_t)i >= n) return SEGUE_OK;
    if (v.kind == SG_V_STR) {
        const struct sg_str *s = sg_v_str(v);
        /* Finding a character by index is linear in a non-ASCII string. */
        SG_TRY(sg_jinja_step(st, s->chars == s->n ? 0 : s->n / 256));
        size_t at = sg_str_byte_offset(s, (size_t)i);
        const char *p = s->s + at;
        sg_char_get(&p);
        SG_TRY(sg_str_make(st, s->s + at, (size_t)(p - s->s) - at, out));
        out->aux = v.aux;
        return SEGUE_OK;
    }
    if (v.kind == SG_V_RANGE)
        *out = sg_v_int(sg_v_range(v)->start + i * sg_v_range(v)->step);
    else
        *out = sg_v_list(v)->items[i];
    return SEGUE_OK;
}

/* v[key]: items first, then attributes, as jinja2's getitem: for a dict, d['keys'] prefers the key.
 * Unhashable keys are not an error here; they just find nothing. */
segue_status sg_val_item(struct sg_jinja *st, struct sg_val v, struct sg_val key, const struct sg_jinja_node *node,
                         struct sg_val *out)
{
    int blocked,
        seq = v.kind == SG_V_STR || v.kind == SG_V_LIST || v.kind == SG_V_TUPLE || v.kind == SG_V_RANGE;
    *out = (struct sg_val){0};
    if (v.kind == SG_V_UNDEFINED) return fail_undefined(st, v);
    if (seq && (key.kind == SG_V_INT || key.kind == SG_V_BOOL)) SG_TRY(seq_item(st, v, key.u.i, out));
    if (v.kind == SG_V_DICT && key.kind != SG_V_LIST && key.kind != SG_V_DICT) {
        uint64_t hash;
        int hashable;
        SG_TRY(sg_val_hash(st, key, &hash, &hashable));
        if (hashable) SG_TRY(sg_dict_get(st, sg_v_dict(v), key, out));
    }
    if (out->kind == SG_V_MISSING && key.kind == SG_V_STR)
        SG_TRY(direct_attr(st, v, sg_v_str(key)->s, sg_v_str(key)->n, &blocked, out));
    if (out->kind == SG_V_MISSING) *out = sg_v_undefined(node, v.kind);
    return SEGUE_OK;
}

/* Python's slice.indices(n): clamp start and stop to the sequence for either direction. *count: number of
 * selected items. */
static segue_status slice_bounds(struct sg_jinja *st, const struct sg_val part[3], int64_t n, int64_t *start,
                                 int64_t *end, int64_t *step, size_t *count)
{
    int64_t stop, k = 1;
    if (part[2].kind != SG_V_NONE) SG_TRY(sg_val_index(st, part[2], "a slice step", &k));
    if (k == 0) return sg_jinja_fail(st, "a slice step cannot be zero");
    int64_t low = k < 0 ? -1 : 0, high = k < 0 ? n - 1 : n, *at[2] = {start, &stop};
    for (int i = 0; i < 2; i++) {
        *at[i] = (i == 0) == (k > 0) ? low : high;
        if (part[i].kind == SG_V_NONE) continue;
        SG_TRY(sg_val_index(st, part[i], "a slice bound", at[i]));
        if (*at[i] < 0)
            *at[i] = *at[i] < -n ? low : *at[i] + n < low ? low : *at[i] + n;
        else if (*at[i] > high)
            *at[i] = high;
    }
    /* Larger steps select the same items; clamping keeps start + i * step within 64 bits. */
    if (k < -n - 1) k = -n - 1;
    if (k > n + 1) k = n + 1;
    int64_t distance = k > 0 ? stop - *start : *start - stop, width = k > 0 ? k : -k;
    *count = distance > 0 ? (size_t)((distance - 1) / width + 1) : 0;
    *step = k;
    *end = stop;
    return SEGUE_OK;
}

/* A step of 1 gives a slice of the bytes. Other steps walk forwards or backwards over the characters: O(n)
 * in total, as |step| times count is at most n. */
static segue_status slice_str(struct sg_jinja *st, struct sg_val v, int64_t start, int64_t step, size_t count,
                              struct sg_val *out)
{
    const struct sg_str *s = sg_v_str(v);
    if (!count) return sg_str_borrow(st, "", 0, out);
    SG_TRY(sg_jinja_step(st, s->n / 256));
    if (step == 1) {
        size_t from = sg_str_byte_offset(s, (size_t)start), to = sg_str_byte_offset(s, (size_t)start + count);
        return sg_str_slice(st, v, from, to - from, out);
    }
    struct sg_buf b = sg_val_buf(st);
    segue_status r = SEGUE_OK;
    const char *p = s->s + sg_str_byte_offset(s, (size_t)start);
    for (size_t i = 0; r == SEGUE_OK; i++) {
        const char *q = p;
        sg_char_get(&q);
        r = sg_put(st, &b, p, (size_t)(q - p));
        if (i + 1 == count) break;
        for (int64_t k = step; k > 0; k--) sg_char_get(&p);
        /* Backwards: skip continuation bytes to the start of the previous character. */
        for (int64_t k = step; k < 0; k++) do
                p--;
            while (((unsigned char)*p & 0xc0) == 0x80);
    }
    return sg_str_from_buf(st, r, &b, out);
}

/* Slices of strings keep the Markup flag. Dicts and generators cannot be sliced. */
segue_status sg_val_slice(struct sg_jinja *st, struct sg_val v, const struct sg_val part[3],
                          struct sg_val *out)
{
    int64_t start = 0, stop = 0, step = 1;
    size_t n, count = 0;
    if (v.kind == SG_V_UNDEFINED) return fail_undefined(st, v);
    if (v.kind != SG_V_STR && v.kind != SG_V_LIST && v.kind != SG_V_TUPLE && v.kind != SG_V_RANGE)
        return sg_jinja_fail(st, "a value of type '%s' cannot be sliced", sg_val_type(v.kind));
    SG_TRY(sg_val_length(st, v, &n));
    SG_TRY(slice_bounds(st, part, (int64_t)n, &start, &stop, &step, &count));
    if (v.kind == SG_V_STR) {
        SG_TRY(slice_str(st, v, start, step, count, out));
        out->aux = v.aux;
        return SEGUE_OK;
    }
    if (v.kind == SG_V_RANGE) {
        struct sg_val_range *r, *of = sg_v_range(v);
        SG_TRY(sg_val_new(st, SG_V_RANGE, sizeof *r, &r));
        r->start = (int64_t)((uint64_t)of->start + (uint64_t)start * (uint64_t)of->step);
        r->step = (int64_t)((uint64_t)of->step * (uint64_t)step); /* wraps only where it is never used */
        r->n = count;
        r->stop = (int64_t)((uint64_t)of->start + (uint64_t)stop * (uint64_t)of->step);
        *out = sg_v_of(&r->o);
        return SEGUE_OK;
    }
    struct sg_list *l = NULL;
    SG_TRY(sg_list_make(st, v.kind, count, &l));
    for (size_t i = 0; i < count; i++) l->items[i] = sg_v_list(v)->items[start + (int64_t)i * step];
    l->n = count;
    *out = sg_v_of(&l->o);
    return SEGUE_OK;
}
