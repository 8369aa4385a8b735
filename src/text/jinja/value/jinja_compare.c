/* jinja_compare.c: order, membership and sorting, and checked conversion of arguments.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "text/jinja/value/jinja_state.h"
#include "text/jinja/value/jinja_text.h"
#include "text/jinja/value/jinja_value.h"

/* Lexicographic: the first pair of unequal items decides, then the length. As in Python, items are compared
 * for equality first, so that equal items need not be orderable. */
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

/* <, > and so on: numbers, strings by code point (UTF-8 byte order is code point order), and lists or
 * tuples of the same kind. All else is an error, as in Python. */
segue_status sg_val_order(struct sg_jinja *st, struct sg_val a, struct sg_val b, int *out)
{
    SG_TRY(sg_jinja_step(st, 1));
    if (sg_v_is_number(a) && sg_v_is_number(b)) return *out = sg_number_order(a, b), SEGUE_OK;
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

/* `item in container`. Strings: substring search, where a non-string item is an error. Dicts and key views:
 * by key. All else iterates and compares; a generator is consumed up to the hit. */
segue_status sg_val_contains(struct sg_jinja *st, struct sg_val item, struct sg_val in, int *out)
{
    struct sg_val_iter it;
    struct sg_val v;
    int got;
    *out = 0;
    if (in.kind == SG_V_STR) {
        if (item.kind != SG_V_STR)
            return sg_jinja_fail(st, "'in <string>' requires a string on the left, not %s",
                                 sg_val_type(item.kind));
        const struct sg_str *s = sg_v_str(in), *w = sg_v_str(item);
        /* Worst case of the search is n times m; the steps are charged before it starts. */
        SG_TRY(sg_jinja_step(st, s->n / 64 * (w->n / 64 + 1)));
        *out = sg_find_bytes(s->s, s->n, w->s, w->n) != NULL;
        return SEGUE_OK;
    }
    if (in.kind == SG_V_DICT || (in.kind == SG_V_VIEW && sg_v_view(in)->variant == 'k')) {
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

/* Merge the sorted runs [from, mid) and [mid, to) of order[]; spare is scratch of the same size. Stable: on
 * equal keys the first run goes first. reverse keeps stability, as Python's sort(reverse=True). */
static segue_status merge(struct sg_jinja *st, const struct sg_val *keys, size_t *order, size_t *spare,
                          size_t from, size_t mid, size_t to, int reverse)
{
    size_t a = from, b = mid;
    for (size_t i = from; i < to; i++) {
        int pick_b = a >= mid, c = 0;
        if (a < mid && b < to) {
            SG_TRY(sg_val_order(st, keys[order[b]], keys[order[a]], &c));
            pick_b = reverse ? c == 1 : c == -1;
        }
        spare[i] = pick_b ? order[b++] : order[a++];
    }
    memcpy(order + from, spare + from, (to - from) * sizeof *order);
    return SEGUE_OK;
}

/* Bottom-up merge sort over indices: O(n log n) comparisons for every input, each charged as a step by
 * sg_val_order. NaN (order 2) counts as not smaller; the result is then a permutation in unspecified order,
 * but the sort ends. */
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

/* Indices, widths and counts accept bool as Python does, but no float. */
segue_status sg_val_index(struct sg_jinja *st, struct sg_val v, const char *what, int64_t *out)
{
    if (v.kind != SG_V_INT && v.kind != SG_V_BOOL)
        return sg_jinja_fail(st, "%s must be an integer, not '%s'", what, sg_val_type(v.kind));
    *out = v.u.i;
    return SEGUE_OK;
}

/* Arguments that must be strings are not converted, as in Python. */
segue_status sg_val_expect_str(struct sg_jinja *st, struct sg_val v, const char *what, struct sg_str **out)
{
    if (v.kind != SG_V_STR)
        return sg_jinja_fail(st, "%s must be a string, not '%s'", what, sg_val_type(v.kind));
    *out = sg_v_str(v);
    return SEGUE_OK;
}
