/* jinja_access.c: what Python does with values: truth, equality, order, membership, length, iteration, attributes,
 * items and slices. Arithmetic is in jinja_math.c.
 * SPDX-License-Identifier: MIT */
#include <math.h>

#include "text/jinja/jinja.h"

const char *sg_val_type(int kind)
{
    static const char *const names[] = {
        "nothing",  "Undefined", "NoneType", "bool",        "int",    "float",     "str",
        "list",     "tuple",     "dict",     "Namespace",   "range",  "generator", "dict view",
        "function", "method",    "Macro",    "LoopContext", "Cycler", "Joiner",    "frame"};
    return names[kind];
}

int sg_val_true(struct sg_val v)
{
    switch (v.kind) {
    case SG_V_MISSING:
    case SG_V_UNDEFINED:
    case SG_V_NONE: return 0;
    case SG_V_BOOL:
    case SG_V_INT: return v.u.i != 0;
    case SG_V_FLOAT: return v.u.f != 0;
    case SG_V_STR: return sg_v_str(v)->n != 0;
    case SG_V_LIST:
    case SG_V_TUPLE: return sg_v_list(v)->n != 0;
    case SG_V_DICT: return sg_v_dict(v)->n != 0;
    case SG_V_RANGE: return sg_v_range(v)->n != 0;
    case SG_V_VIEW: return sg_v_view(v)->dict->n != 0;
    default: return 1;
    }
}

/* --- equality and order --- */

static int is_number(struct sg_val v) { return v.kind >= SG_V_BOOL && v.kind <= SG_V_FLOAT; }

/* -1 0 1; 2 when one is NaN. Exact also where a double cannot hold the integer. */
static int number_order(struct sg_val a, struct sg_val b)
{
    if (a.kind != SG_V_FLOAT && b.kind != SG_V_FLOAT) return (a.u.i > b.u.i) - (a.u.i < b.u.i);
    if (a.kind == SG_V_FLOAT && b.kind == SG_V_FLOAT)
        return isnan(a.u.f) || isnan(b.u.f) ? 2 : (a.u.f > b.u.f) - (a.u.f < b.u.f);
    if (a.kind == SG_V_FLOAT) {
        int r = number_order(b, a);
        return r == 2 ? 2 : -r;
    }
    if (isnan(b.u.f)) return 2;
    if (b.u.f >= 9223372036854775808.0) return -1;
    if (b.u.f < -9223372036854775808.0) return 1;
    int64_t whole = (int64_t)b.u.f;
    if (a.u.i != whole) return a.u.i > whole ? 1 : -1;
    double rest = b.u.f - (double)whole;
    return (rest < 0) - (rest > 0);
}

static segue_status lists_equal(struct sg_jinja *st, struct sg_list *a, struct sg_list *b, int *out)
{
    *out = a->n == b->n;
    for (size_t i = 0; i < a->n && *out; i++) SG_TRY(sg_val_equal(st, a->items[i], b->items[i], out));
    return SEGUE_OK;
}

static segue_status dicts_equal(struct sg_jinja *st, struct sg_dict *a, struct sg_dict *b, int *out)
{
    *out = a->n == b->n;
    for (size_t i = 0; i < a->n && *out; i++) {
        struct sg_val v;
        SG_TRY(sg_dict_get(st, b, a->pairs[i].key, &v));
        if (v.kind == SG_V_MISSING)
            *out = 0;
        else
            SG_TRY(sg_val_equal(st, a->pairs[i].value, v, out));
    }
    return SEGUE_OK;
}

static int ranges_equal(const struct sg_range *a, const struct sg_range *b)
{
    return a->n == b->n && (!a->n || (a->start == b->start && (a->n == 1 || a->step == b->step)));
}

segue_status sg_val_equal(struct sg_jinja *st, struct sg_val a, struct sg_val b, int *out)
{
    segue_status s = SEGUE_OK;
    *out = 0;
    if (is_number(a) && is_number(b)) return *out = number_order(a, b) == 0, SEGUE_OK;
    if (a.kind != b.kind) return SEGUE_OK;
    if (a.kind < SG_V_BOOL) return *out = 1, SEGUE_OK;
    if (a.kind == SG_V_STR) {
        *out = sg_v_is(a, sg_v_str(b)->s, sg_v_str(b)->n);
        return sg_jinja_step(st, sg_v_str(b)->n / 256);
    }
    if (a.u.o == b.u.o) return *out = 1, SEGUE_OK;
    if (a.kind == SG_V_RANGE) return *out = ranges_equal(sg_v_range(a), sg_v_range(b)), SEGUE_OK;
    if (a.kind > SG_V_DICT) return SEGUE_OK;
    SG_TRY(sg_jinja_enter(st));
    if (a.kind == SG_V_DICT)
        s = dicts_equal(st, sg_v_dict(a), sg_v_dict(b), out);
    else
        s = lists_equal(st, sg_v_list(a), sg_v_list(b), out);
    st->level--;
    return s;
}

static segue_status lists_order(struct sg_jinja *st, struct sg_list *a, struct sg_list *b, int *out)
{
    SG_TRY(sg_jinja_enter(st));
    for (size_t i = 0; i < a->n && i < b->n; i++) {
        int same;
        SG_TRY(sg_val_equal(st, a->items[i], b->items[i], &same));
        if (same) continue;
        SG_TRY(sg_val_order(st, a->items[i], b->items[i], out));
        st->level--;
        return SEGUE_OK;
    }
    *out = (a->n > b->n) - (a->n < b->n);
    st->level--;
    return SEGUE_OK;
}

segue_status sg_val_order(struct sg_jinja *st, struct sg_val a, struct sg_val b, int *out)
{
    SG_TRY(sg_jinja_step(st, 1));
    if (is_number(a) && is_number(b)) return *out = number_order(a, b), SEGUE_OK;
    if (a.kind == SG_V_STR && b.kind == SG_V_STR) {
        const struct sg_str *x = sg_v_str(a), *y = sg_v_str(b);
        size_t n = x->n < y->n ? x->n : y->n;
        int c = n ? memcmp(x->s, y->s, n) : 0;
        *out = c ? (c > 0) - (c < 0) : (x->n > y->n) - (x->n < y->n);
        return sg_jinja_step(st, n / 256);
    }
    if (a.kind == b.kind && (a.kind == SG_V_LIST || a.kind == SG_V_TUPLE))
        return lists_order(st, sg_v_list(a), sg_v_list(b), out);
    return sg_jinja_fail(st, "'%s' and '%s' cannot be ordered", sg_val_type(a.kind), sg_val_type(b.kind));
}

static const char *find_bytes(const char *s, size_t n, const char *what, size_t m)
{
    if (!m) return s;
    for (const char *end = s + n; (size_t)(end - s) >= m;) {
        const char *at = memchr(s, *what, (size_t)(end - s) - m + 1);
        if (!at) return NULL;
        if (!memcmp(at, what, m)) return at;
        s = at + 1;
    }
    return NULL;
}

segue_status sg_val_contains(struct sg_jinja *st, struct sg_val item, struct sg_val in, int *out)
{
    struct sg_iter it;
    struct sg_val v;
    int got;
    *out = 0;
    if (in.kind == SG_V_STR) {
        if (item.kind != SG_V_STR)
            return sg_jinja_fail(st, "'in <string>' requires a string on the left, not %s",
                                 sg_val_type(item.kind));
        const struct sg_str *s = sg_v_str(in), *w = sg_v_str(item);
        SG_TRY(sg_jinja_step(st, s->n / 64 * (w->n / 64 + 1)));
        *out = find_bytes(s->s, s->n, w->s, w->n) != NULL;
        return SEGUE_OK;
    }
    if (in.kind == SG_V_DICT || (in.kind == SG_V_VIEW && sg_v_view(in)->which == 'k')) {
        SG_TRY(sg_dict_get(st, in.kind == SG_V_DICT ? sg_v_dict(in) : sg_v_view(in)->dict, item, &v));
        *out = v.kind != SG_V_MISSING;
        return SEGUE_OK;
    }
    SG_TRY(sg_iter_open(st, in, &it));
    for (;;) {
        SG_TRY(sg_iter_next(st, &it, &v, &got));
        if (!got) return SEGUE_OK;
        SG_TRY(sg_val_equal(st, v, item, out));
        if (*out) return SEGUE_OK;
    }
}

/* --- length and iteration --- */

int sg_val_has_length(struct sg_val v)
{
    return v.kind == SG_V_UNDEFINED || (v.kind >= SG_V_STR && v.kind <= SG_V_DICT) || v.kind == SG_V_RANGE ||
           v.kind == SG_V_VIEW || v.kind == SG_V_LOOP;
}

segue_status sg_val_length(struct sg_jinja *st, struct sg_val v, size_t *out)
{
    struct sg_val n;
    switch (v.kind) {
    case SG_V_UNDEFINED: *out = 0; return SEGUE_OK;
    case SG_V_STR: *out = sg_v_str(v)->chars; return SEGUE_OK;
    case SG_V_LIST:
    case SG_V_TUPLE: *out = sg_v_list(v)->n; return SEGUE_OK;
    case SG_V_DICT: *out = sg_v_dict(v)->n; return SEGUE_OK;
    case SG_V_RANGE: *out = sg_v_range(v)->n; return SEGUE_OK;
    case SG_V_VIEW: *out = sg_v_view(v)->dict->n; return SEGUE_OK;
    case SG_V_LOOP:
        SG_TRY(sg_loop_attr(st, sg_v_loop(v), "length", 6, &n));
        *out = (size_t)n.u.i;
        return SEGUE_OK;
    default: return sg_jinja_fail(st, "a value of type '%s' has no length", sg_val_type(v.kind));
    }
}

int sg_val_iterable(struct sg_val v)
{
    return v.kind == SG_V_UNDEFINED || (v.kind >= SG_V_STR && v.kind <= SG_V_DICT) ||
           (v.kind >= SG_V_RANGE && v.kind <= SG_V_VIEW) || v.kind == SG_V_LOOP;
}

segue_status sg_iter_open(struct sg_jinja *st, struct sg_val v, struct sg_iter *out)
{
    *out = (struct sg_iter){.v = v};
    if (sg_val_iterable(v) && v.kind != SG_V_LOOP) return SEGUE_OK;
    return sg_jinja_fail(st, "a value of type '%s' cannot be iterated over", sg_val_type(v.kind));
}

static segue_status next_char(struct sg_jinja *st, struct sg_iter *it, struct sg_val *out, int *got)
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

static segue_status next_pair(struct sg_jinja *st, const struct sg_dict *d, int which, struct sg_iter *it,
                              struct sg_val *out, int *got)
{
    *got = it->pos < d->n;
    if (!*got) return SEGUE_OK;
    const struct sg_pair *p = &d->pairs[it->pos++];
    if (which == 'i') return sg_pair_make(st, p->key, p->value, out);
    *out = which == 'k' ? p->key : p->value;
    return SEGUE_OK;
}

segue_status sg_iter_next(struct sg_jinja *st, struct sg_iter *it, struct sg_val *out, int *got)
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
    case SG_V_VIEW: return next_pair(st, sg_v_view(v)->dict, sg_v_view(v)->which, it, out, got);
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

segue_status sg_val_to_list(struct sg_jinja *st, struct sg_val v, struct sg_list **out)
{
    struct sg_iter it;
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

/* Stable merge of two sorted runs; b is after a in the original order. */
static segue_status merge(struct sg_jinja *st, const struct sg_val *keys, size_t *order, size_t *spare,
                          size_t from, size_t mid, size_t to, int reverse)
{
    size_t a = from, b = mid;
    for (size_t i = from; i < to; i++) {
        int take_b = a >= mid, c = 0;
        if (a < mid && b < to) {
            SG_TRY(sg_val_order(st, keys[order[b]], keys[order[a]], &c));
            take_b = reverse ? c == 1 : c == -1;
        }
        spare[i] = take_b ? order[b++] : order[a++];
    }
    memcpy(order + from, spare + from, (to - from) * sizeof *order);
    return SEGUE_OK;
}

segue_status sg_val_sort(struct sg_jinja *st, struct sg_val *keys, struct sg_val *items, size_t n,
                         int reverse)
{
    if (n < 2) return SEGUE_OK;
    size_t *order = sg_alloc(n * 2 * sizeof *order);
    struct sg_val *sorted = sg_alloc(n * sizeof *sorted);
    segue_status s = order && sorted ? SEGUE_OK : sg_no_memory("sorting", n * sizeof *sorted, st->err);
    for (size_t i = 0; i < n && s == SEGUE_OK; i++) order[i] = i;
    for (size_t run = 1; run < n && s == SEGUE_OK; run *= 2)
        for (size_t at = 0; at + run < n && s == SEGUE_OK; at += run * 2)
            s = merge(st, keys, order, order + n, at, at + run, n - at < run * 2 ? n : at + run * 2, reverse);
    for (size_t i = 0; i < n && s == SEGUE_OK; i++) sorted[i] = items[order[i]];
    if (s == SEGUE_OK) memcpy(items, sorted, n * sizeof *items);
    sg_free(order);
    sg_free(sorted);
    return s;
}

segue_status sg_val_index(struct sg_jinja *st, struct sg_val v, const char *what, int64_t *out)
{
    if (v.kind != SG_V_INT && v.kind != SG_V_BOOL)
        return sg_jinja_fail(st, "%s must be an integer, not '%s'", what, sg_val_type(v.kind));
    *out = v.u.i;
    return SEGUE_OK;
}

segue_status sg_val_want_str(struct sg_jinja *st, struct sg_val v, const char *what, struct sg_str **out)
{
    if (v.kind != SG_V_STR)
        return sg_jinja_fail(st, "%s must be a string, not '%s'", what, sg_val_type(v.kind));
    *out = sg_v_str(v);
    return SEGUE_OK;
}

/* --- attributes, items, slices --- */

static segue_status undefined_fails(struct sg_jinja *st, struct sg_val v)
{
    const struct sg_node *n = v.u.node;
    if (!n || !n->s) return sg_jinja_fail(st, "an undefined value is used; test it with 'is defined'");
    if (!v.aux)
        return sg_jinja_fail(st, "'%.*s' is undefined; test it with 'is defined'",
                             (int)(n->n > 80 ? 80 : n->n), n->s);
    return sg_jinja_fail(st, "a value of type '%s' has no attribute '%.*s'", sg_val_type(v.aux),
                         (int)(n->n > 80 ? 80 : n->n), n->s);
}

static segue_status bind_method(struct sg_jinja *st, struct sg_val v, const struct sg_func *f,
                                struct sg_val *out)
{
    struct sg_method *m = NULL;
    SG_TRY(sg_val_new(st, SG_V_METHOD, sizeof *m, &m));
    m->self = v;
    m->func = f;
    *out = sg_v_of(&m->o);
    return SEGUE_OK;
}

/* Attributes proper, without items; MISSING = none. blocked: it exists, but the sandbox keeps it. */
static segue_status own_attr(struct sg_jinja *st, struct sg_val v, const char *s, size_t n, int *blocked,
                             struct sg_val *out)
{
    *out = (struct sg_val){0};
    *blocked = 0;
    if (v.kind == SG_V_LOOP) return sg_loop_attr(st, sg_v_loop(v), s, n, out);
    if (v.kind == SG_V_SPACE) {
        const struct sg_val *at = sg_dict_name(sg_v_dict(v), s, n);
        if (at) *out = *at;
        return SEGUE_OK;
    }
    if (v.kind == SG_V_MACRO && n == 4 && !memcmp(s, "name", 4)) {
        const struct sg_node *m = ((struct sg_macro *)(void *)v.u.o)->node;
        return m->kind == SG_N_MACRO ? sg_str_borrow(st, m->s, m->n, out) : (*out = sg_v_none(), SEGUE_OK);
    }
    if (v.kind == SG_V_CYCLER && n == 7 && !memcmp(s, "current", 7))
        return *out = sg_v_seq(v)->list->items[sg_v_seq(v)->pos], SEGUE_OK;
    const struct sg_func *f = sg_method_find(v, s, n, blocked);
    return f && !*blocked ? bind_method(st, v, f, out) : SEGUE_OK;
}

segue_status sg_val_attr(struct sg_jinja *st, struct sg_val v, const char *s, size_t n,
                         const struct sg_node *node, struct sg_val *out)
{
    int blocked;
    if (v.kind == SG_V_UNDEFINED) return undefined_fails(st, v);
    SG_TRY(own_attr(st, v, s, n, &blocked, out));
    if (out->kind != SG_V_MISSING) return SEGUE_OK;
    if (v.kind == SG_V_DICT && !blocked) {
        const struct sg_val *at = sg_dict_name(sg_v_dict(v), s, n);
        if (at) return *out = *at, SEGUE_OK;
    }
    *out = sg_v_undefined(node, v.kind);
    return SEGUE_OK;
}

static segue_status seq_item(struct sg_jinja *st, struct sg_val v, int64_t i, struct sg_val *out)
{
    size_t n;
    SG_TRY(sg_val_length(st, v, &n));
    if (i < 0) i += (int64_t)n;
    if (i < 0 || (uint64_t)i >= n) return SEGUE_OK;
    if (v.kind == SG_V_STR) {
        const struct sg_str *s = sg_v_str(v);
        SG_TRY(sg_jinja_step(st, s->chars == s->n ? 0 : s->n / 256));
        size_t at = sg_str_byte(s, (size_t)i);
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

segue_status sg_val_item(struct sg_jinja *st, struct sg_val v, struct sg_val key, const struct sg_node *node,
                         struct sg_val *out)
{
    int blocked,
        seq = v.kind == SG_V_STR || v.kind == SG_V_LIST || v.kind == SG_V_TUPLE || v.kind == SG_V_RANGE;
    *out = (struct sg_val){0};
    if (v.kind == SG_V_UNDEFINED) return undefined_fails(st, v);
    if (seq && (key.kind == SG_V_INT || key.kind == SG_V_BOOL)) SG_TRY(seq_item(st, v, key.u.i, out));
    if (v.kind == SG_V_DICT && key.kind != SG_V_LIST && key.kind != SG_V_DICT) {
        uint64_t hash;
        int hashable;
        SG_TRY(sg_val_hash(st, key, &hash, &hashable));
        if (hashable) SG_TRY(sg_dict_get(st, sg_v_dict(v), key, out));
    }
    if (out->kind == SG_V_MISSING && key.kind == SG_V_STR)
        SG_TRY(own_attr(st, v, sg_v_str(key)->s, sg_v_str(key)->n, &blocked, out));
    if (out->kind == SG_V_MISSING) *out = sg_v_undefined(node, v.kind);
    return SEGUE_OK;
}

/* Python's slice.indices for a length. */
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
    if (k < -n - 1) k = -n - 1;
    if (k > n + 1) k = n + 1;
    int64_t span = k > 0 ? stop - *start : *start - stop, width = k > 0 ? k : -k;
    *count = span > 0 ? (size_t)((span - 1) / width + 1) : 0;
    *step = k;
    *end = stop;
    return SEGUE_OK;
}

static segue_status slice_str(struct sg_jinja *st, struct sg_val v, int64_t start, int64_t step, size_t count,
                              struct sg_val *out)
{
    const struct sg_str *s = sg_v_str(v);
    if (!count) return sg_str_borrow(st, "", 0, out);
    SG_TRY(sg_jinja_step(st, s->n / 256));
    if (step == 1) {
        size_t from = sg_str_byte(s, (size_t)start), to = sg_str_byte(s, (size_t)start + count);
        return sg_str_part(st, v, from, to - from, out);
    }
    struct sg_buf b = sg_buf_begin(st);
    segue_status r = SEGUE_OK;
    const char *p = s->s + sg_str_byte(s, (size_t)start);
    for (size_t i = 0; r == SEGUE_OK; i++) {
        const char *q = p;
        sg_char_get(&q);
        r = sg_put(st, &b, p, (size_t)(q - p));
        if (i + 1 == count) break;
        for (int64_t k = step; k > 0; k--) sg_char_get(&p);
        for (int64_t k = step; k < 0; k++) do
                p--;
            while (((unsigned char)*p & 0xc0) == 0x80);
    }
    return sg_str_take(st, r, &b, out);
}

segue_status sg_val_slice(struct sg_jinja *st, struct sg_val v, const struct sg_val part[3],
                          struct sg_val *out)
{
    int64_t start = 0, stop = 0, step = 1;
    size_t n, count = 0;
    if (v.kind == SG_V_UNDEFINED) return undefined_fails(st, v);
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
        struct sg_range *r, *of = sg_v_range(v);
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
