/* jinja_value.c: heap values of a rendering: types, memory, strings, lists. Every object is in the list
 * st->objs and its bytes are counted in st->live; jinja_gc.c frees what is unreachable. Objects marked `fixed`
 * belong to the template and are never written.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "text/jinja/value/jinja_state.h"
#include "text/jinja/value/jinja_value.h"

/* Indexed by enum sg_val_kind. Messages and repr() use these names, which are Python's. */
const char *sg_val_type(int kind)
{
    static const char *const names[] = {
        "nothing",  "Undefined", "NoneType", "bool",        "int",    "float",     "str",
        "list",     "tuple",     "dict",     "Namespace",   "range",  "generator", "dict view",
        "function", "method",    "Macro",    "LoopContext", "Cycler", "Joiner",    "frame"};
    return names[kind];
}

/* Python's truth: zero and empty containers are false. Undefined is false, as in jinja2's default
 * Undefined. Generators, functions, macros and loops are always true. */
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

/* Check n more bytes against value_bytes; values and captured output share that limit. Allocation also
 * costs steps, one per 256 bytes, which bounds a template that allocates and discards. */
static segue_status count_bytes(struct sg_jinja *st, size_t n)
{
    if (n > st->limits.value_bytes || st->live + st->capture_bytes > st->limits.value_bytes - n)
        return sg_jinja_limit(st, "bytes of values", (double)st->limits.value_bytes);
    return sg_jinja_step(st, n / 256 + 1);
}

segue_status sg_val_new(struct sg_jinja *st, int kind, size_t size, void *out)
{
    SG_TRY(count_bytes(st, size));
    struct sg_jinja_obj *o = sg_alloc(size);
    if (!o) return sg_no_memory("template value", size, st->err);
    o->kind = (uint8_t)kind;
    o->size = size;
    o->next = st->objs;
    st->objs = o;
    st->live += size;
    /* out is the address of a pointer to some struct that begins with sg_jinja_obj; memcpy stores the
     * pointer without an aliasing cast. */
    memcpy(out, &o, sizeof o);
    return SEGUE_OK;
}

/* The old array is read through memcpy for the same reason as in sg_val_new. The steps are charged before
 * the memory is taken. */
segue_status sg_val_grow(struct sg_jinja *st, struct sg_jinja_obj *o, void *data, size_t was, size_t n, void *out)
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

/* Free an object and the arrays that it owns. Only lists and dicts own memory outside the object. */
void sg_val_free(struct sg_jinja_obj *o)
{
    if (o->kind == SG_V_LIST || o->kind == SG_V_TUPLE) sg_free(((struct sg_list *)(void *)o)->items);
    if (o->kind == SG_V_DICT || o->kind == SG_V_NAMESPACE) {
        sg_free(((struct sg_dict *)(void *)o)->pairs);
        sg_free(((struct sg_dict *)(void *)o)->index);
    }
    sg_free(o);
}

/* End of the rendering: no reference is followed, the list of all objects is freed. */
void sg_val_free_all(struct sg_jinja *st)
{
    for (struct sg_jinja_obj *o = st->objs, *next; o; o = next) {
        next = o->next;
        sg_val_free(o);
    }
    st->objs = NULL;
    st->live = 0;
}

/* A string object with n_bytes bytes after the struct, not yet written. */
static segue_status str_new(struct sg_jinja *st, size_t n_bytes, struct sg_str **out)
{
    struct sg_str *s = NULL;
    SG_TRY(sg_val_new(st, SG_V_STR, sizeof *s + n_bytes, &s));
    s->s = (const char *)(s + 1);
    s->n = n_bytes;
    *out = s;
    return SEGUE_OK;
}

/* Code points of valid UTF-8: every byte that is not a continuation byte starts one. */
static size_t count_chars(const char *s, size_t n)
{
    size_t chars = 0;
    for (size_t i = 0; i < n; i++) chars += ((unsigned char)s[i] & 0xc0) != 0x80;
    return chars;
}

/* Copy n bytes of valid UTF-8 into a new string. */
segue_status sg_str_make(struct sg_jinja *st, const char *s, size_t n, struct sg_val *out)
{
    struct sg_str *str = NULL;
    SG_TRY(str_new(st, n, &str));
    if (n) memcpy(str + 1, s, n);
    str->chars = count_chars(s, n);
    *out = sg_v_of(&str->o);
    return SEGUE_OK;
}

/* Used for constants, names of the template and strings of the request. */
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

/* Slices below 64 bytes are copied: that is as cheap as a reference, and does not keep a long string alive.
 * Longer ones share the bytes, so that splitting a text of n bytes does not take n bytes again. */
segue_status sg_str_slice(struct sg_jinja *st, struct sg_val of, size_t at, size_t n, struct sg_val *out)
{
    struct sg_str *whole = sg_v_str(of), *str;
    if (at == 0 && n == whole->n) return *out = of, SEGUE_OK;
    if (n < 64) return sg_str_make(st, whole->s + at, n, out);
    SG_TRY(sg_jinja_step(st, n / 256));
    SG_TRY(sg_str_borrow(st, whole->s + at, n, out));
    str = sg_v_str(*out);
    /* Always the object that owns the bytes, so that a slice of a slice keeps no chain of parents alive. */
    str->parent = whole->parent ? whole->parent : &whole->o;
    return SEGUE_OK;
}

/* a + b for two strings. Strings are immutable, so appending in a loop copies each time; the step count of
 * sg_val_new bounds that quadratic cost. */
segue_status sg_str_join2(struct sg_jinja *st, struct sg_val a, struct sg_val b, struct sg_val *out)
{
    struct sg_str *x = sg_v_str(a), *y = sg_v_str(b), *str;
    SG_TRY(str_new(st, x->n + y->n, &str));
    char *bytes = (char *)(str + 1);
    if (x->n) memcpy(bytes, x->s, x->n);
    if (y->n) memcpy(bytes + x->n, y->s, y->n);
    str->chars = x->chars + y->chars;
    *out = sg_v_of(&str->o);
    return SEGUE_OK;
}

struct sg_buf sg_val_buf(const struct sg_jinja *st)
{
    size_t used = st->live + st->capture_bytes;
    /* A limit of 0 would mean no limit, so an exhausted budget becomes 1. */
    return (struct sg_buf){.limit = st->limits.value_bytes > used ? st->limits.value_bytes - used : 1};
}

/* The bytes are copied once more into the string object. Callers pass the status of their writes so that
 * the buffer is freed on every path. */
segue_status sg_str_from_buf(struct sg_jinja *st, segue_status s, struct sg_buf *buf, struct sg_val *out)
{
    if (s == SEGUE_OK) s = sg_str_make(st, buf->data ? buf->data : "", buf->len, out);
    sg_buf_free(buf);
    return s;
}

/* Constant time for ASCII, where bytes and code points agree; else linear in the offset. */
size_t sg_str_byte_offset(const struct sg_str *s, size_t chars)
{
    if (s->chars == s->n) return chars < s->n ? chars : s->n;
    if (chars >= s->chars) return s->n;
    size_t i = 0;
    for (; i < s->n; i++)
        if (((unsigned char)s->s[i] & 0xc0) != 0x80 && chars-- == 0) break;
    return i;
}

/* An empty list or tuple with capacity for cap items; the caller may fill items[0..cap) itself and then set
 * n. */
segue_status sg_list_make(struct sg_jinja *st, int kind, size_t cap, struct sg_list **out)
{
    SG_TRY(sg_val_new(st, kind, sizeof **out, out));
    if (!cap) return SEGUE_OK;
    struct sg_list *l = *out;
    if (cap > SIZE_MAX / sizeof *l->items)
        return sg_jinja_limit(st, "bytes of values", (double)st->limits.value_bytes);
    SG_TRY(sg_val_grow(st, &l->o, &l->items, 0, cap * sizeof *l->items, &l->items));
    l->cap = cap;
    return SEGUE_OK;
}

/* Capacity doubles, so appending n items takes O(n) time. Only builtins call it: templates cannot change a
 * list. */
segue_status sg_list_add(struct sg_jinja *st, struct sg_list *l, struct sg_val v)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 4, unit = sizeof *l->items;
        SG_TRY(sg_val_grow(st, &l->o, &l->items, l->cap * unit, cap * unit, &l->items));
        l->cap = cap;
    }
    l->items[l->n++] = v;
    return SEGUE_OK;
}

/* Reverse in place; for lists that the caller has just made. */
void sg_list_reverse(struct sg_list *l)
{
    for (size_t i = 0; i < l->n / 2; i++) {
        struct sg_val v = l->items[i];
        l->items[i] = l->items[l->n - 1 - i];
        l->items[l->n - 1 - i] = v;
    }
}

/* A tuple of two values, as dict.items() yields them. */
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

/* A generator, cycler or joiner over a list. The list must not be changed afterwards. */
segue_status sg_seq_make(struct sg_jinja *st, int kind, struct sg_list *list, const char *name,
                         struct sg_val *out)
{
    struct sg_val_seq *s = NULL;
    SG_TRY(sg_val_new(st, kind, sizeof *s, &s));
    s->list = list;
    s->name = name;
    *out = sg_v_of(&s->o);
    return SEGUE_OK;
}

/* The value of `object.method` before it is called. */
segue_status sg_method_make(struct sg_jinja *st, struct sg_val self, const struct sg_builtin *f, struct sg_val *out)
{
    struct sg_bound_method *m = NULL;
    SG_TRY(sg_val_new(st, SG_V_METHOD, sizeof *m, &m));
    m->self = self;
    m->func = f;
    *out = sg_v_of(&m->o);
    return SEGUE_OK;
}
