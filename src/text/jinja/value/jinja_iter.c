/* jinja_iter.c: length and iteration of values, and the items of a running loop with its lookahead.
 * SPDX-License-Identifier: MIT */
#include "text/jinja/value/jinja_state.h"
#include "text/jinja/value/jinja_text.h"
#include "text/jinja/value/jinja_value.h"

/* 1: len() is known without iterating. Generators have none, which makes loop.length read them to the end. */
int sg_val_has_length(struct sg_val v)
{
    return v.kind == SG_V_UNDEFINED || (v.kind >= SG_V_STR && v.kind <= SG_V_DICT) || v.kind == SG_V_RANGE ||
           v.kind == SG_V_VIEW || v.kind == SG_V_LOOP;
}

/* len(v). Undefined has length 0, as in jinja2. A generator has no len(): EFORMAT. */
segue_status sg_val_length(struct sg_jinja *st, struct sg_val v, size_t *out)
{
    switch (v.kind) {
    case SG_V_UNDEFINED: *out = 0; return SEGUE_OK;
    case SG_V_STR: *out = sg_v_str(v)->chars; return SEGUE_OK;
    case SG_V_LIST:
    case SG_V_TUPLE: *out = sg_v_list(v)->n; return SEGUE_OK;
    case SG_V_DICT: *out = sg_v_dict(v)->n; return SEGUE_OK;
    case SG_V_RANGE: *out = sg_v_range(v)->n; return SEGUE_OK;
    case SG_V_VIEW: *out = sg_v_view(v)->dict->n; return SEGUE_OK;
    case SG_V_LOOP:
        SG_TRY(sg_loop_length(st, sg_v_loop(v)));
        *out = (size_t)sg_v_loop(v)->length;
        return SEGUE_OK;
    default: return sg_jinja_fail(st, "a value of type '%s' has no length", sg_val_type(v.kind));
    }
}

/* The test `iterable`. A loop counts as iterable there, but cannot be iterated by a template. */
int sg_val_iterable(struct sg_val v)
{
    return v.kind == SG_V_UNDEFINED || (v.kind >= SG_V_STR && v.kind <= SG_V_DICT) ||
           (v.kind >= SG_V_RANGE && v.kind <= SG_V_VIEW) || v.kind == SG_V_LOOP;
}

/* Undefined iterates as an empty sequence. The value must stay reachable while the iterator is used. */
segue_status sg_iter_open(struct sg_jinja *st, struct sg_val v, struct sg_val_iter *out)
{
    *out = (struct sg_val_iter){.v = v};
    if (sg_val_iterable(v) && v.kind != SG_V_LOOP) return SEGUE_OK;
    return sg_jinja_fail(st, "a value of type '%s' cannot be iterated over", sg_val_type(v.kind));
}

/* Strings iterate over code points; every one becomes a separate string. */
static segue_status next_char(struct sg_jinja *st, struct sg_val_iter *it, struct sg_val *out, int *got)
{
    const struct sg_str *s = sg_v_str(it->v);
    const char *p = s->s + it->byte;
    *got = it->byte < s->n;
    if (!*got) return SEGUE_OK;
    sg_char_get(&p);
    size_t from = it->byte;
    it->byte = (size_t)(p - s->s);
    return sg_str_make(st, s->s + from, it->byte - from, out);
}

/* variant: 'k' the key, 'v' the value, 'i' a (key, value) tuple. Position is the insertion order. A dict
 * cannot change during iteration, because templates cannot modify dicts. */
static segue_status next_pair(struct sg_jinja *st, const struct sg_dict *d, int variant, struct sg_val_iter *it,
                              struct sg_val *out, int *got)
{
    *got = it->pos < d->n;
    if (!*got) return SEGUE_OK;
    const struct sg_dict_pair *p = &d->pairs[it->pos++];
    if (variant == 'i') return sg_pair_make(st, p->key, p->value, out);
    *out = variant == 'k' ? p->key : p->value;
    return SEGUE_OK;
}

/* The next item. Generators keep their position in the value itself: two iterations share it, as in Python. */
segue_status sg_iter_next(struct sg_jinja *st, struct sg_val_iter *it, struct sg_val *out, int *got)
{
    struct sg_val v = it->v;
    SG_TRY(sg_jinja_step(st, 1));
    *got = 0;
    switch (v.kind) {
    case SG_V_STR: return next_char(st, it, out, got);
    case SG_V_LIST:
    case SG_V_TUPLE:
        *got = it->pos < sg_v_list(v)->n;
        if (*got) *out = sg_v_list(v)->items[it->pos++];
        return SEGUE_OK;
    case SG_V_DICT: return next_pair(st, sg_v_dict(v), 'k', it, out, got);
    case SG_V_VIEW: return next_pair(st, sg_v_view(v)->dict, sg_v_view(v)->variant, it, out, got);
    case SG_V_RANGE:
        *got = it->pos < sg_v_range(v)->n;
        if (*got) *out = sg_v_int(sg_v_range(v)->start + (int64_t)it->pos++ * sg_v_range(v)->step);
        return SEGUE_OK;
    case SG_V_ITER:
        *got = sg_v_seq(v)->pos < sg_v_seq(v)->list->n;
        if (*got) *out = sg_v_seq(v)->list->items[sg_v_seq(v)->pos++];
        return SEGUE_OK;
    default: return SEGUE_OK;
    }
}

/* list(v): a fresh list that the caller may change. */
segue_status sg_val_to_list(struct sg_jinja *st, struct sg_val v, struct sg_list **out)
{
    struct sg_val_iter it;
    struct sg_val item;
    int got;
    SG_TRY(sg_iter_open(st, v, &it));
    SG_TRY(sg_list_make(st, SG_V_LIST, 0, out));
    for (;;) {
        SG_TRY(sg_iter_next(st, &it, &item, &got));
        if (!got) return SEGUE_OK;
        SG_TRY(sg_list_add(st, *out, item));
    }
}

/* dict.update: from a mapping, or from any iterable of pairs. Values of later keys win. */
segue_status sg_dict_merge(struct sg_jinja *st, struct sg_dict *d, struct sg_val from)
{
    if (from.kind == SG_V_DICT || from.kind == SG_V_NAMESPACE) {
        /* The stored hashes are valid here: all dicts of a rendering have the same seed. */
        struct sg_dict *f = sg_v_dict(from);
        for (size_t i = 0; i < f->n; i++)
            SG_TRY(sg_dict_put_hashed(st, d, f->pairs[i].key, f->pairs[i].hash, f->pairs[i].value));
        return SEGUE_OK;
    }
    struct sg_val_iter it;
    struct sg_val pair;
    int got;
    SG_TRY(sg_iter_open(st, from, &it));
    for (;;) {
        /* a pair is any iterable with two items */
        struct sg_list *two = NULL;
        SG_TRY(sg_iter_next(st, &it, &pair, &got));
        if (!got) return SEGUE_OK;
        SG_TRY(sg_val_to_list(st, pair, &two));
        if (two->n != 2) return sg_jinja_fail(st, "dict: expected pairs, got an item of length %zu", two->n);
        SG_TRY(sg_dict_set(st, d, two->items[0], two->items[1]));
    }
}

/* The next item that passes the loop's condition, from the lookahead if there is one. */
segue_status sg_loop_next(struct sg_jinja *st, struct sg_jinja_loop *l, struct sg_val *out)
{
    int got, pass;
    if (l->lookahead) {
        *out = l->lookahead_pos < l->lookahead->n ? l->lookahead->items[l->lookahead_pos++] : (struct sg_val){0};
        return SEGUE_OK;
    }
    for (;;) {
        SG_TRY(sg_iter_next(st, &l->it, out, &got));
        if (!got) return *out = (struct sg_val){0}, SEGUE_OK;
        if (!l->filter) return SEGUE_OK;
        /* may replace *out by the unpacked target */
        SG_TRY(l->filter(st, l, out, &pass));
        if (pass) return SEGUE_OK;
    }
}

/* Fetch the next item without starting its iteration, for loop.last and loop.nextitem. Stores it in
 * l->after, MISSING at the end; it is asked for again at the end, which yields MISSING again. */
segue_status sg_loop_peek(struct sg_jinja *st, struct sg_jinja_loop *l)
{
    return l->after.kind == SG_V_MISSING ? sg_loop_next(st, l, &l->after) : SEGUE_OK;
}

/* len() of the iterable if it has one and no condition filters it. Otherwise all remaining items are
 * fetched into l->lookahead, as jinja2 does for generators. */
segue_status sg_loop_length(struct sg_jinja *st, struct sg_jinja_loop *l)
{
    size_t n;
    /* computed before */
    if (l->length >= 0) return SEGUE_OK;
    if (!l->filter && sg_val_has_length(l->it.v)) {
        SG_TRY(sg_val_length(st, l->it.v, &n));
        l->length = (int64_t)n;
        return SEGUE_OK;
    }
    struct sg_list *rest = NULL;
    struct sg_val v;
    SG_TRY(sg_list_make(st, SG_V_LIST, 0, &rest));
    for (;;) {
        SG_TRY(sg_loop_next(st, l, &v));
        if (v.kind == SG_V_MISSING) break;
        SG_TRY(sg_list_add(st, rest, v));
    }
    l->lookahead = rest;
    l->lookahead_pos = 0;
    /* Items before the current one, the current one, a peeked one, and the rest. */
    l->length = (int64_t)rest->n + l->index0 + 1 + (l->after.kind != SG_V_MISSING);
    return SEGUE_OK;
}
