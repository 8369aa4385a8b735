/* jinja_dict.c: hashing, equality and dicts. They are in one file because equality of dicts looks up keys, and
 * a lookup compares keys. Dicts keep insertion order, as in Python.
 * SPDX-License-Identifier: MIT */
#include <string.h>
#include <xxhash.h>

#include "text/jinja/value/jinja_state.h"
#include "text/jinja/value/jinja_text.h"
#include "text/jinja/value/jinja_value.h"

/* Equal numbers must have equal hashes: a float with an integral value is hashed as that integer, so that
 * d[1] and d[1.0] are the same key. */
static uint64_t number_hash(double f, int64_t i, int is_int, uint64_t seed)
{
    if (!is_int && f >= -9e18 && f <= 9e18 && (double)(int64_t)f == f) {
        i = (int64_t)f;
        is_int = 1;
    }
    uint64_t h = (uint64_t)i;
    if (!is_int) memcpy(&h, &f, sizeof h);
    return XXH3_64bits_withSeed(&h, sizeof h, seed);
}

/* Strings and numbers are hashed with the rendering's seed. Other objects (macros, ranges, functions) hash by address
 * or kind; equality decides. */
segue_status sg_val_hash(struct sg_jinja *st, struct sg_val v, uint64_t *out, int *hashable)
{
    *hashable = 1;
    *out = v.kind;
    switch (v.kind) {
    case SG_V_STR:
        *out = XXH3_64bits_withSeed(sg_v_str(v)->s, sg_v_str(v)->n, st->seed);
        return sg_jinja_step(st, sg_v_str(v)->n / 256);
    case SG_V_BOOL:
    case SG_V_INT: *out = number_hash(0, v.u.i, 1, st->seed); return SEGUE_OK;
    case SG_V_FLOAT: *out = number_hash(v.u.f, 0, 0, st->seed); return SEGUE_OK;
    case SG_V_LIST:
    case SG_V_DICT: *hashable = 0; return SEGUE_OK;
    case SG_V_TUPLE: break;
    default:
        if (v.kind > SG_V_STR && v.kind != SG_V_FUNC) *out = (uint64_t)(uintptr_t)v.u.o >> 4;
        return SEGUE_OK;
    }
    SG_TRY(sg_jinja_enter(st));
    for (size_t i = 0; i < sg_v_list(v)->n && *hashable; i++) {
        uint64_t h;
        SG_TRY(sg_val_hash(st, sg_v_list(v)->items[i], &h, hashable));
        /* CPython's multiplier for tuples; the value of a hash is not visible to templates. */
        *out = *out * 1000003u ^ h;
    }
    st->level--;
    return SEGUE_OK;
}

/* Element by element; *out = 0 stops the loop. Nesting is bounded by sg_jinja_enter in sg_val_equal. */
static segue_status lists_equal(struct sg_jinja *st, struct sg_list *a, struct sg_list *b, int *out)
{
    *out = a->n == b->n;
    for (size_t i = 0; i < a->n && *out; i++) SG_TRY(sg_val_equal(st, a->items[i], b->items[i], out));
    return SEGUE_OK;
}

/* Same keys with equal values, in any order. */
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

/* Python compares ranges as sequences: empty ranges are equal, and the step of a single item does not
 * matter. */
static int ranges_equal(const struct sg_val_range *a, const struct sg_val_range *b)
{
    return a->n == b->n && (!a->n || (a->start == b->start && (a->n == 1 || a->step == b->step)));
}

/* a == b. Numbers compare by value across int, float and bool; other values of different kinds are never
 * equal. Undefined equals Undefined, None equals None. Views, generators, macros and loops are equal only
 * to themselves. */
segue_status sg_val_equal(struct sg_jinja *st, struct sg_val a, struct sg_val b, int *out)
{
    segue_status s = SEGUE_OK;
    *out = 0;
    if (sg_v_is_number(a) && sg_v_is_number(b)) return *out = sg_number_order(a, b) == 0, SEGUE_OK;
    if (a.kind != b.kind) return SEGUE_OK;
    if (a.kind < SG_V_BOOL) return *out = 1, SEGUE_OK;
    if (a.kind == SG_V_STR) {
        *out = sg_v_is(a, sg_v_str(b)->s, sg_v_str(b)->n);
        /* A comparison may read both strings to the end: one step per 256 bytes. */
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

/* Find a key. *pair: its position or SIZE_MAX. *place: its slot in the index, or the empty slot where it
 * belongs; not set while the dict has no index. Linear probing; each probe after the first costs a step, so
 * colliding keys count against the limit. */
static segue_status find_slot(struct sg_jinja *st, const struct sg_dict *d, struct sg_val key, uint64_t hash,
                               size_t *pair, uint32_t **place)
{
    *pair = SIZE_MAX;
    int same = 0;
    if (!d->index) {
        for (size_t i = 0; i < d->n; i++) {
            if (d->pairs[i].hash == hash) SG_TRY(sg_val_equal(st, d->pairs[i].key, key, &same));
            if (same) return *pair = i, SEGUE_OK;
        }
        return SEGUE_OK;
    }
    for (size_t at = hash & (d->index_cap - 1);; at = (at + 1) & (d->index_cap - 1)) {
        *place = &d->index[at];
        if (!d->index[at]) return SEGUE_OK;
        const struct sg_dict_pair *p = &d->pairs[d->index[at] - 1];
        if (p->hash == hash) SG_TRY(sg_val_equal(st, p->key, key, &same));
        if (same) return *pair = d->index[at] - 1, SEGUE_OK;
        SG_TRY(sg_jinja_step(st, 1));
    }
}

/* kind: SG_V_DICT or SG_V_NAMESPACE. */
segue_status sg_dict_make(struct sg_jinja *st, int kind, struct sg_dict **out)
{
    SG_TRY(sg_val_new(st, kind, sizeof **out, out));
    (*out)->seed = st->seed;
    return SEGUE_OK;
}

/* Double the capacity. The index has twice as many slots as pairs, so it is at most half full; dicts of up
 * to 8 pairs have none and are searched linearly. Positions are 32 bits wide, hence the bound. */
static segue_status dict_grow(struct sg_jinja *st, struct sg_dict *d)
{
    size_t cap = d->cap ? d->cap * 2 : 8, unit = sizeof *d->pairs;
    if (cap > UINT32_MAX / 4) return sg_jinja_limit(st, "bytes of values", (double)st->limits.value_bytes);
    SG_TRY(sg_val_grow(st, &d->o, &d->pairs, d->cap * unit, cap * unit, &d->pairs));
    d->cap = cap;
    if (cap <= 8) return SEGUE_OK;
    SG_TRY(
        sg_val_grow(st, &d->o, &d->index, d->index_cap * sizeof *d->index, cap * 2 * sizeof *d->index, &d->index));
    d->index_cap = cap * 2;
    memset(d->index, 0, d->index_cap * sizeof *d->index);
    /* The positions are inserted again; no key is compared, as all are different. */
    for (size_t i = 0; i < d->n; i++) {
        size_t at = d->pairs[i].hash & (d->index_cap - 1);
        while (d->index[at]) at = (at + 1) & (d->index_cap - 1);
        d->index[at] = (uint32_t)i + 1;
    }
    return SEGUE_OK;
}

/* An existing key keeps its position and its first spelling (1 and 1.0 are one key), as in Python. */
segue_status sg_dict_put_hashed(struct sg_jinja *st, struct sg_dict *d, struct sg_val key, uint64_t hash,
                             struct sg_val value)
{
    size_t at;
    uint32_t *place = NULL;
    SG_TRY(find_slot(st, d, key, hash, &at, &place));
    if (at != SIZE_MAX) return d->pairs[at].value = value, SEGUE_OK;
    if (d->n == d->cap) {
        /* Growing moves the index, so the slot is searched again. */
        SG_TRY(dict_grow(st, d));
        SG_TRY(find_slot(st, d, key, hash, &at, &place));
    }
    d->pairs[d->n] = (struct sg_dict_pair){key, value, hash};
    d->n++;
    if (place) *place = (uint32_t)d->n;
    return SEGUE_OK;
}

/* An unhashable key is an error, as in Python. */
segue_status sg_dict_set(struct sg_jinja *st, struct sg_dict *d, struct sg_val key, struct sg_val value)
{
    uint64_t hash;
    int hashable;
    SG_TRY(sg_val_hash(st, key, &hash, &hashable));
    if (!hashable) return sg_jinja_fail(st, "unhashable type: '%s' cannot be a key", sg_val_type(key.kind));
    return sg_dict_put_hashed(st, d, key, hash, value);
}

/* The key string borrows the bytes. */
segue_status sg_dict_set_name(struct sg_jinja *st, struct sg_dict *d, const char *s, size_t n,
                              struct sg_val value)
{
    struct sg_val key;
    SG_TRY(sg_str_borrow(st, s, n, &key));
    return sg_dict_set(st, d, key, value);
}

/* Looks up by value. See sg_dict_name for names of the template, which needs no string object. */
segue_status sg_dict_get(struct sg_jinja *st, struct sg_dict *d, struct sg_val key, struct sg_val *out)
{
    uint64_t hash;
    int hashable;
    size_t at;
    uint32_t *place;
    *out = (struct sg_val){0};
    SG_TRY(sg_val_hash(st, key, &hash, &hashable));
    if (!hashable) return sg_jinja_fail(st, "unhashable type: '%s' cannot be a key", sg_val_type(key.kind));
    SG_TRY(find_slot(st, d, key, hash, &at, &place));
    if (at != SIZE_MAX) *out = d->pairs[at].value;
    return SEGUE_OK;
}

/* Look up a string key without making a value. It counts no steps: names come from the template, and the
 * seeded hash keeps probe sequences short. */
const struct sg_val *sg_dict_name(const struct sg_dict *d, const char *s, size_t n)
{
    uint64_t hash = XXH3_64bits_withSeed(s, n, d->seed);
    if (!d->index) {
        for (size_t i = 0; i < d->n; i++)
            if (d->pairs[i].hash == hash && sg_v_is(d->pairs[i].key, s, n)) return &d->pairs[i].value;
        return NULL;
    }
    for (size_t at = hash & (d->index_cap - 1); d->index[at]; at = (at + 1) & (d->index_cap - 1)) {
        const struct sg_dict_pair *p = &d->pairs[d->index[at] - 1];
        if (p->hash == hash && sg_v_is(p->key, s, n)) return &p->value;
    }
    return NULL;
}
