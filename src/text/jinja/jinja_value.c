/* jinja_value.c: memory of one rendering. Every object is counted and chained; between outermost statements what
 * nothing refers to any more is freed, so that a template that builds a text piece by piece needs room for the text
 * and not for every step. Objects marked fixed belong to the template and are never written.
 * SPDX-License-Identifier: MIT */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "text/jinja/jinja.h"

segue_status sg_jinja_fail(struct sg_jinja *st, const char *format, ...)
{
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return sg_fail(st->err, SEGUE_EFORMAT, "template: %s line %u: %s", st->t->what, (unsigned)st->line, text);
}

static segue_status limit(struct sg_jinja *st, const char *what, double n)
{
    return sg_fail(st->err, SEGUE_ELIMIT,
                   "template: %s line %u: more than %.0f %s; shorten the request or correct the "
                   "template",
                   st->t->what, (unsigned)st->line, n, what);
}

segue_status sg_jinja_steps_out(struct sg_jinja *st) { return limit(st, "steps", (double)st->limits.steps); }

segue_status sg_jinja_enter(struct sg_jinja *st)
{
    SG_TRY(sg_jinja_step(st, 1));
    /* six levels of nodes for each level of calls; a C stack of 512 KB is what this protects */
    if (++st->level <= st->limits.depth * 6) return SEGUE_OK;
    return limit(st, "levels of nesting", st->limits.depth);
}

static segue_status count_bytes(struct sg_jinja *st, size_t n)
{
    if (n > st->limits.value_bytes || st->live + st->held > st->limits.value_bytes - n)
        return limit(st, "bytes of values", (double)st->limits.value_bytes);
    return sg_jinja_step(st, n / 256 + 1);
}

segue_status sg_val_new(struct sg_jinja *st, int kind, size_t size, void *out)
{
    SG_TRY(count_bytes(st, size));
    struct sg_obj *o = sg_alloc(size);
    if (!o) return sg_no_memory("template value", size, st->err);
    o->kind = (uint8_t)kind;
    o->size = size;
    o->next = st->objs;
    st->objs = o;
    st->live += size;
    memcpy(out, &o, sizeof o);
    return SEGUE_OK;
}

/* Memory that object o holds besides itself grows to n bytes. */
static segue_status grow(struct sg_jinja *st, struct sg_obj *o, void *data, size_t was, size_t n, void *out)
{
    SG_TRY(count_bytes(st, n - was));
    void *p = NULL;
    memcpy(&p, data, sizeof p);
    p = sg_realloc(p, n);
    if (!p) return sg_no_memory("template value", n, st->err);
    o->size += n - was;
    st->live += n - was;
    memcpy(out, &p, sizeof p);
    return SEGUE_OK;
}

static void free_obj(struct sg_obj *o)
{
    if (o->kind == SG_V_LIST || o->kind == SG_V_TUPLE) sg_free(((struct sg_list *)(void *)o)->items);
    if (o->kind == SG_V_DICT || o->kind == SG_V_SPACE) {
        sg_free(((struct sg_dict *)(void *)o)->pairs);
        sg_free(((struct sg_dict *)(void *)o)->index);
    }
    sg_free(o);
}

void sg_val_free_all(struct sg_jinja *st)
{
    for (struct sg_obj *o = st->objs, *next; o; o = next) {
        next = o->next;
        free_obj(o);
    }
    st->objs = NULL;
    st->live = 0;
}

/* --- sweep --- */

static void mark_obj(struct sg_obj **gray, struct sg_obj *o)
{
    if (!o || o->fixed || o->mark) return;
    o->mark = 1;
    o->gray = *gray;
    *gray = o;
}

static void mark_val(struct sg_obj **gray, struct sg_val v)
{
    if (v.kind >= SG_V_STR && v.kind != SG_V_FUNC) mark_obj(gray, v.u.o);
}

static void mark_loop(struct sg_obj **gray, const struct sg_loop *l)
{
    const struct sg_val vals[] = {l->it.v, l->current, l->before, l->after, l->changed};
    for (size_t i = 0; i < 5; i++) mark_val(gray, vals[i]);
    mark_obj(gray, (struct sg_obj *)l->outer);
    mark_obj(gray, (struct sg_obj *)l->test);
    mark_obj(gray, (struct sg_obj *)l->rest);
}

static void mark_inside(struct sg_obj **gray, struct sg_obj *o)
{
    void *self = o;
    struct sg_list *list = self;
    struct sg_dict *dict = self;
    struct sg_frame *frame = self;
    switch (o->kind) {
    case SG_V_STR: mark_obj(gray, ((struct sg_str *)self)->parent); break;
    case SG_V_LIST:
    case SG_V_TUPLE:
        for (size_t i = 0; i < list->n; i++) mark_val(gray, list->items[i]);
        break;
    case SG_V_DICT:
    case SG_V_SPACE:
        for (size_t i = 0; i < dict->n; i++) {
            mark_val(gray, dict->pairs[i].key);
            mark_val(gray, dict->pairs[i].value);
        }
        break;
    case SG_V_ITER:
    case SG_V_CYCLER:
    case SG_V_JOINER: mark_obj(gray, &((struct sg_seq *)self)->list->o); break;
    case SG_V_VIEW: mark_obj(gray, &((struct sg_view *)self)->dict->o); break;
    case SG_V_METHOD: mark_val(gray, ((struct sg_method *)self)->self); break;
    case SG_V_MACRO: mark_obj(gray, &((struct sg_macro *)self)->frame->o); break;
    case SG_V_LOOP: mark_loop(gray, self); break;
    case SG_V_FRAME:
        mark_obj(gray, (struct sg_obj *)frame->parent);
        for (size_t i = 0; i < frame->n; i++) mark_val(gray, frame->slots[i]);
        break;
    default: break;
    }
}

void sg_val_sweep(struct sg_jinja *st, struct sg_frame *f)
{
    struct sg_obj *gray = NULL, **at = &st->objs;
    mark_obj(&gray, &f->o);
    mark_obj(&gray, (struct sg_obj *)st->vars);
    for (struct sg_root *r = st->roots; r; r = r->next) mark_obj(&gray, r->o);
    while (gray) {
        struct sg_obj *o = gray;
        gray = o->gray;
        mark_inside(&gray, o);
    }
    while (*at) {
        struct sg_obj *o = *at;
        if (o->mark) {
            o->mark = 0;
            at = &o->next;
        } else {
            *at = o->next;
            st->live -= o->size;
            free_obj(o);
        }
    }
    st->sweep_at = st->live * 2 + (4 << 20);
}

/* --- strings --- */

static segue_status str_new(struct sg_jinja *st, size_t own, struct sg_str **out)
{
    struct sg_str *s = NULL;
    SG_TRY(sg_val_new(st, SG_V_STR, sizeof *s + own, &s));
    s->s = (const char *)(s + 1);
    s->n = own;
    *out = s;
    return SEGUE_OK;
}

static size_t count_chars(const char *s, size_t n)
{
    size_t chars = 0;
    for (size_t i = 0; i < n; i++) chars += ((unsigned char)s[i] & 0xc0) != 0x80;
    return chars;
}

segue_status sg_str_make(struct sg_jinja *st, const char *s, size_t n, struct sg_val *out)
{
    struct sg_str *str = NULL;
    SG_TRY(str_new(st, n, &str));
    if (n) memcpy(str + 1, s, n);
    str->chars = count_chars(s, n);
    *out = sg_v_of(&str->o);
    return SEGUE_OK;
}

segue_status sg_str_borrow(struct sg_jinja *st, const char *s, size_t n, struct sg_val *out)
{
    struct sg_str *str = NULL;
    SG_TRY(str_new(st, 0, &str));
    str->s = s;
    str->n = n;
    str->chars = count_chars(s, n);
    *out = sg_v_of(&str->o);
    return SEGUE_OK;
}

segue_status sg_str_part(struct sg_jinja *st, struct sg_val of, size_t at, size_t n, struct sg_val *out)
{
    struct sg_str *whole = sg_v_str(of), *str;
    if (at == 0 && n == whole->n) return *out = of, SEGUE_OK;
    if (n < 64) return sg_str_make(st, whole->s + at, n, out);
    SG_TRY(sg_jinja_step(st, n / 256));
    SG_TRY(sg_str_borrow(st, whole->s + at, n, out));
    str = sg_v_str(*out);
    str->parent = whole->parent ? whole->parent : &whole->o;
    return SEGUE_OK;
}

segue_status sg_str_join2(struct sg_jinja *st, struct sg_val a, struct sg_val b, struct sg_val *out)
{
    struct sg_str *x = sg_v_str(a), *y = sg_v_str(b), *str;
    SG_TRY(str_new(st, x->n + y->n, &str));
    char *own = (char *)(str + 1);
    if (x->n) memcpy(own, x->s, x->n);
    if (y->n) memcpy(own + x->n, y->s, y->n);
    str->chars = x->chars + y->chars;
    *out = sg_v_of(&str->o);
    return SEGUE_OK;
}

struct sg_buf sg_buf_begin(const struct sg_jinja *st)
{
    size_t used = st->live + st->held;
    return (struct sg_buf){.limit = st->limits.value_bytes > used ? st->limits.value_bytes - used : 1};
}

segue_status sg_str_take(struct sg_jinja *st, segue_status s, struct sg_buf *buf, struct sg_val *out)
{
    if (s == SEGUE_OK) s = sg_str_make(st, buf->data ? buf->data : "", buf->len, out);
    sg_buf_free(buf);
    return s;
}

size_t sg_str_byte(const struct sg_str *s, size_t chars)
{
    if (s->chars == s->n) return chars < s->n ? chars : s->n;
    if (chars >= s->chars) return s->n;
    size_t i = 0;
    for (; i < s->n; i++)
        if (((unsigned char)s->s[i] & 0xc0) != 0x80 && chars-- == 0) break;
    return i;
}

/* --- lists --- */

segue_status sg_list_make(struct sg_jinja *st, int kind, size_t cap, struct sg_list **out)
{
    SG_TRY(sg_val_new(st, kind, sizeof **out, out));
    if (!cap) return SEGUE_OK;
    struct sg_list *l = *out;
    if (cap > SIZE_MAX / sizeof *l->items)
        return limit(st, "bytes of values", (double)st->limits.value_bytes);
    SG_TRY(grow(st, &l->o, &l->items, 0, cap * sizeof *l->items, &l->items));
    l->cap = cap;
    return SEGUE_OK;
}

segue_status sg_list_add(struct sg_jinja *st, struct sg_list *l, struct sg_val v)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 4, unit = sizeof *l->items;
        SG_TRY(grow(st, &l->o, &l->items, l->cap * unit, cap * unit, &l->items));
        l->cap = cap;
    }
    l->items[l->n++] = v;
    return SEGUE_OK;
}

segue_status sg_pair_make(struct sg_jinja *st, struct sg_val a, struct sg_val b, struct sg_val *out)
{
    struct sg_list *l = NULL;
    SG_TRY(sg_list_make(st, SG_V_TUPLE, 2, &l));
    l->items[0] = a;
    l->items[1] = b;
    l->n = 2;
    *out = sg_v_of(&l->o);
    return SEGUE_OK;
}

segue_status sg_seq_make(struct sg_jinja *st, int kind, struct sg_list *list, const char *name,
                         struct sg_val *out)
{
    struct sg_seq *s = NULL;
    SG_TRY(sg_val_new(st, kind, sizeof *s, &s));
    s->list = list;
    s->name = name;
    *out = sg_v_of(&s->o);
    return SEGUE_OK;
}

/* --- dicts --- */

segue_status sg_dict_make(struct sg_jinja *st, int kind, struct sg_dict **out)
{
    SG_TRY(sg_val_new(st, kind, sizeof **out, out));
    (*out)->seed = st->seed;
    return SEGUE_OK;
}

static uint64_t number_hash(double f, int64_t i, int is_int)
{
    if (!is_int && f >= -9e18 && f <= 9e18 && (double)(int64_t)f == f) {
        i = (int64_t)f;
        is_int = 1;
    }
    uint64_t h = (uint64_t)i;
    if (!is_int) memcpy(&h, &f, sizeof h);
    return (h ^ h >> 31) * 0x9e3779b97f4a7c15u;
}

segue_status sg_val_hash(struct sg_jinja *st, struct sg_val v, uint64_t *out, int *hashable)
{
    *hashable = 1;
    *out = v.kind;
    switch (v.kind) {
    case SG_V_STR:
        *out = XXH3_64bits_withSeed(sg_v_str(v)->s, sg_v_str(v)->n, st->seed);
        return sg_jinja_step(st, sg_v_str(v)->n / 256);
    case SG_V_BOOL:
    case SG_V_INT: *out = number_hash(0, v.u.i, 1); return SEGUE_OK;
    case SG_V_FLOAT: *out = number_hash(v.u.f, 0, 0); return SEGUE_OK;
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
        *out = *out * 1000003u ^ h;
    }
    st->level--;
    return SEGUE_OK;
}

/* The place of a key in the index, or the empty place where it would stand. */
static segue_status find_place(struct sg_jinja *st, const struct sg_dict *d, struct sg_val key, uint64_t hash,
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
        const struct sg_pair *p = &d->pairs[d->index[at] - 1];
        if (p->hash == hash) SG_TRY(sg_val_equal(st, p->key, key, &same));
        if (same) return *pair = d->index[at] - 1, SEGUE_OK;
        SG_TRY(sg_jinja_step(st, 1));
    }
}

static segue_status dict_grow(struct sg_jinja *st, struct sg_dict *d)
{
    size_t cap = d->cap ? d->cap * 2 : 8, unit = sizeof *d->pairs;
    if (cap > UINT32_MAX / 4) return limit(st, "bytes of values", (double)st->limits.value_bytes);
    SG_TRY(grow(st, &d->o, &d->pairs, d->cap * unit, cap * unit, &d->pairs));
    d->cap = cap;
    if (cap <= 8) return SEGUE_OK;
    SG_TRY(
        grow(st, &d->o, &d->index, d->index_cap * sizeof *d->index, cap * 2 * sizeof *d->index, &d->index));
    d->index_cap = cap * 2;
    memset(d->index, 0, d->index_cap * sizeof *d->index);
    for (size_t i = 0; i < d->n; i++) {
        size_t at = d->pairs[i].hash & (d->index_cap - 1);
        while (d->index[at]) at = (at + 1) & (d->index_cap - 1);
        d->index[at] = (uint32_t)i + 1;
    }
    return SEGUE_OK;
}

static segue_status dict_put(struct sg_jinja *st, struct sg_dict *d, struct sg_val key, uint64_t hash,
                             struct sg_val value)
{
    size_t at;
    uint32_t *place = NULL;
    SG_TRY(find_place(st, d, key, hash, &at, &place));
    if (at != SIZE_MAX) return d->pairs[at].value = value, SEGUE_OK;
    if (d->n == d->cap) {
        SG_TRY(dict_grow(st, d));
        SG_TRY(find_place(st, d, key, hash, &at, &place));
    }
    d->pairs[d->n] = (struct sg_pair){key, value, hash};
    d->n++;
    if (place) *place = (uint32_t)d->n;
    return SEGUE_OK;
}

segue_status sg_dict_set(struct sg_jinja *st, struct sg_dict *d, struct sg_val key, struct sg_val value)
{
    uint64_t hash;
    int hashable;
    SG_TRY(sg_val_hash(st, key, &hash, &hashable));
    if (!hashable) return sg_jinja_fail(st, "unhashable type: '%s' cannot be a key", sg_val_type(key.kind));
    return dict_put(st, d, key, hash, value);
}

segue_status sg_dict_set_name(struct sg_jinja *st, struct sg_dict *d, const char *s, size_t n,
                              struct sg_val value)
{
    struct sg_val key;
    SG_TRY(sg_str_borrow(st, s, n, &key));
    return sg_dict_set(st, d, key, value);
}

segue_status sg_dict_get(struct sg_jinja *st, struct sg_dict *d, struct sg_val key, struct sg_val *out)
{
    uint64_t hash;
    int hashable;
    size_t at;
    uint32_t *place;
    *out = (struct sg_val){0};
    SG_TRY(sg_val_hash(st, key, &hash, &hashable));
    if (!hashable) return sg_jinja_fail(st, "unhashable type: '%s' cannot be a key", sg_val_type(key.kind));
    SG_TRY(find_place(st, d, key, hash, &at, &place));
    if (at != SIZE_MAX) *out = d->pairs[at].value;
    return SEGUE_OK;
}

const struct sg_val *sg_dict_name(const struct sg_dict *d, const char *s, size_t n)
{
    uint64_t hash = XXH3_64bits_withSeed(s, n, d->seed);
    if (!d->index) {
        for (size_t i = 0; i < d->n; i++)
            if (d->pairs[i].hash == hash && sg_v_is(d->pairs[i].key, s, n)) return &d->pairs[i].value;
        return NULL;
    }
    for (size_t at = hash & (d->index_cap - 1); d->index[at]; at = (at + 1) & (d->index_cap - 1)) {
        const struct sg_pair *p = &d->pairs[d->index[at] - 1];
        if (p->hash == hash && sg_v_is(p->key, s, n)) return &p->value;
    }
    return NULL;
}

segue_status sg_dict_merge(struct sg_jinja *st, struct sg_dict *d, struct sg_val from)
{
    if (from.kind == SG_V_DICT || from.kind == SG_V_SPACE) {
        struct sg_dict *f = sg_v_dict(from);
        for (size_t i = 0; i < f->n; i++)
            SG_TRY(dict_put(st, d, f->pairs[i].key, f->pairs[i].hash, f->pairs[i].value));
        return SEGUE_OK;
    }
    struct sg_iter it;
    struct sg_val pair;
    int got;
    SG_TRY(sg_iter_open(st, from, &it));
    for (;;) {
        struct sg_list *two = NULL;
        SG_TRY(sg_iter_next(st, &it, &pair, &got));
        if (!got) return SEGUE_OK;
        SG_TRY(sg_val_to_list(st, pair, &two));
        if (two->n != 2) return sg_jinja_fail(st, "a dict is made of pairs, one has length %zu", two->n);
        SG_TRY(sg_dict_set(st, d, two->items[0], two->items[1]));
    }
}

/* --- from JSON --- */

static segue_status of_object(struct sg_jinja *st, const json_t *json, struct sg_val *out)
{
    struct sg_dict *d = NULL;
    SG_TRY(sg_dict_make(st, SG_V_DICT, &d));
    *out = sg_v_of(&d->o);
    json_t *o = (json_t *)(uintptr_t)json; /* jansson's iterators want it without const; it is not changed */
    for (void *it = json_object_iter(o); it; it = json_object_iter_next(o, it)) {
        struct sg_val v;
        const char *key = json_object_iter_key(it);
        SG_TRY(sg_val_of_json(st, json_object_iter_value(it), &v));
        SG_TRY(sg_dict_set_name(st, d, key, strlen(key), v));
    }
    return SEGUE_OK;
}

static segue_status of_array(struct sg_jinja *st, const json_t *json, struct sg_val *out)
{
    struct sg_list *l = NULL;
    SG_TRY(sg_list_make(st, SG_V_LIST, json_array_size(json), &l));
    *out = sg_v_of(&l->o);
    for (size_t i = 0; i < json_array_size(json); i++) {
        SG_TRY(sg_val_of_json(st, json_array_get(json, i), &l->items[i]));
        l->n = i + 1;
    }
    return SEGUE_OK;
}

segue_status sg_val_of_json(struct sg_jinja *st, const json_t *json, struct sg_val *out)
{
    segue_status s = SEGUE_OK;
    SG_TRY(sg_jinja_enter(st));
    switch (json_typeof(json)) {
    case JSON_OBJECT: s = of_object(st, json, out); break;
    case JSON_ARRAY: s = of_array(st, json, out); break;
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
