/* jinja_value.h: the values of the Jinja interpreter and the operations on them, with the semantics of Python.
 * A value is a tagged union of 16 bytes. Heap values begin with struct sg_jinja_obj and belong to one rendering
 * (struct sg_jinja, jinja_state.h), which counts their bytes and frees them. Every function that takes the rendering
 * counts the steps it needs. Errors: EFORMAT where Python would raise, ELIMIT at a limit, EMEMORY.
 * SPDX-License-Identifier: MIT */
#ifndef SG_TEXT_JINJA_VALUE_H
#define SG_TEXT_JINJA_VALUE_H

#include <stdint.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"

struct sg_jinja;
struct sg_jinja_node;
struct sg_builtin;

/* Kinds of values. The order matters: MISSING to NONE are absent values, BOOL to FLOAT numbers, STR to DICT
 * sequences and mappings, and RANGE to VIEW further iterables. */
enum sg_val_kind {
    SG_V_MISSING, /* no value: an argument that was not passed, a slot that is not set; templates never see it */
    SG_V_UNDEFINED,
    SG_V_NONE,
    SG_V_BOOL,
    SG_V_INT, /* 64 bits; results that do not fit are errors */
    SG_V_FLOAT,
    SG_V_STR,
    SG_V_LIST,
    SG_V_TUPLE,
    SG_V_DICT,
    SG_V_NAMESPACE, /* namespace(): a dict whose attributes `set` may assign */
    SG_V_RANGE,
    SG_V_ITER, /* a generator of Python: it has no length and iterating consumes it */
    SG_V_VIEW, /* dict.keys(), .values(), .items() */
    SG_V_FUNC, /* a global function; not a heap value */
    SG_V_METHOD,
    SG_V_MACRO,
    SG_V_LOOP,
    SG_V_CYCLER,
    SG_V_JOINER,
    SG_V_FRAME /* slots of a scope; templates never see it */
};

/* A value, passed by copy. Heap values are shared: a copy refers to the same object. */
struct sg_val {
    uint8_t kind; /* enum sg_val_kind */
    /* SG_V_UNDEFINED: kind of the value that lacks the attribute, 0 = a name is undefined. SG_V_STR: 1 = Markup, the
     * result of |safe or |escape; plain strings are escaped when they are joined with it. */
    uint8_t aux;
    union {
        int64_t i; /* SG_V_BOOL, SG_V_INT */
        double f;
        struct sg_jinja_obj *o;
        const struct sg_jinja_node *node; /* SG_V_UNDEFINED: the expression, for the message; NULL = unknown */
        const struct sg_builtin *func;    /* SG_V_FUNC */
    } u;
};

/* Head of every heap value. */
struct sg_jinja_obj {
    struct sg_jinja_obj *next, *gray; /* all objects of the rendering; the work list of the garbage collector */
    size_t size;                      /* bytes counted for it, its arrays included */
    uint8_t kind, mark, fixed;        /* fixed: a constant of the template; never freed and never written */
};

/* A string. Code points are counted once, when it is made. */
struct sg_str {
    struct sg_jinja_obj o;
    const char *s;               /* valid UTF-8, not terminated by NUL */
    size_t n, chars;             /* bytes, code points */
    struct sg_jinja_obj *parent; /* owner of the bytes of a slice; NULL: they follow the struct or outlive the rendering */
};

/* SG_V_LIST, SG_V_TUPLE */
struct sg_list {
    struct sg_jinja_obj o;
    size_t n, cap;
    struct sg_val *items;
};

/* One entry of a dict. */
struct sg_dict_pair {
    struct sg_val key, value;
    uint64_t hash;
};

/* SG_V_DICT, SG_V_NAMESPACE: pairs in insertion order, and a hash index once there are more than 8. */
struct sg_dict {
    struct sg_jinja_obj o;
    size_t n, cap;
    struct sg_dict_pair *pairs;
    uint32_t *index; /* [index_cap], a power of two: open addressing, 0 = empty, else position + 1; NULL while small */
    size_t index_cap;
    uint64_t seed; /* of the hashes; differs per rendering so that a request cannot choose keys that collide */
};

/* range(start, stop, step) with its number of items n. */
struct sg_val_range {
    struct sg_jinja_obj o;
    int64_t start, stop, step;
    size_t n;
};

/* SG_V_ITER (pos: items consumed), SG_V_CYCLER (pos: current item), SG_V_JOINER (pos > 0: called before; items[0]: the
 * separator). */
struct sg_val_seq {
    struct sg_jinja_obj o;
    struct sg_list *list;
    size_t pos;
    const char *name; /* type name in Python, for repr() */
};

/* dict.keys(), values() or items(): refers to the dict without a copy. */
struct sg_dict_view {
    struct sg_jinja_obj o;
    struct sg_dict *dict;
    int variant; /* 'k' keys, 'v' values, 'i' items */
};

/* Arguments of a call as the template passes them. */
struct sg_call_args {
    struct sg_val *pos;
    size_t pos_n;
    struct sg_dict *named; /* keyword arguments; may be NULL */
};

typedef segue_status sg_builtin_fn(struct sg_jinja *st, const struct sg_builtin *f, struct sg_val self,
                                   struct sg_val *in, const struct sg_call_args *args, struct sg_val *out);
/* self: the filtered or tested value, or the object of a method. in: [SG_PARAMS] the arguments in the order of params,
 * SG_V_MISSING where none was passed. */
struct sg_builtin {
    const char *name;
    sg_builtin_fn *fn;
    const char *params; /* parameter names, "a b c"; NULL: fn reads args itself */
    uint8_t min_args;
    uint8_t variant; /* distinguishes builtins that share fn */
};
enum { SG_PARAMS = 8 };

/* A method that is bound to its object: `text.strip` before the call. */
struct sg_bound_method {
    struct sg_jinja_obj o;
    struct sg_val self;
    const struct sg_builtin *func;
};

/* The variables of one scope that is running. */
struct sg_jinja_frame {
    struct sg_jinja_obj o;
    struct sg_jinja_frame *parent;
    size_t n;
    struct sg_val slots[];
};

/* A macro: its node and the variables around its definition. */
struct sg_jinja_macro {
    struct sg_jinja_obj o;
    const struct sg_jinja_node *node;
    struct sg_jinja_frame *frame; /* frame in which the macro was defined */
};

/* State of one iteration; lives on the C stack. */
struct sg_val_iter {
    struct sg_val v;
    size_t pos, byte; /* next item; strings: byte offset of the next character */
};

/* The variable `loop` of a running `for`. */
struct sg_jinja_loop {
    struct sg_jinja_obj o;
    const struct sg_jinja_node *node;
    struct sg_jinja_frame *outer, *test_frame; /* frame around the loop; frame of the loop's `if` */
    struct sg_val_iter it;
    /* The loop's `if`, or NULL: sets *pass, and *item to the value that the loop's target receives. A pointer, because
     * loop.length and loop.last run the condition, and value operations do not call the evaluator. */
    segue_status (*filter)(struct sg_jinja *st, struct sg_jinja_loop *l, struct sg_val *item, int *pass);
    struct sg_list *lookahead; /* all remaining items, if loop.length had to fetch them; else NULL */
    size_t lookahead_pos;
    struct sg_val current, before, after, changed; /* after: fetched ahead, MISSING = not; changed: last arguments */
    int64_t index0, length, depth0;                /* length -1 = not known yet */
};

static inline struct sg_val sg_v_none(void) { return (struct sg_val){.kind = SG_V_NONE}; }
static inline struct sg_val sg_v_bool(int b) { return (struct sg_val){.kind = SG_V_BOOL, .u.i = b != 0}; }
static inline struct sg_val sg_v_int(int64_t i) { return (struct sg_val){.kind = SG_V_INT, .u.i = i}; }
static inline struct sg_val sg_v_float(double f) { return (struct sg_val){.kind = SG_V_FLOAT, .u.f = f}; }
static inline struct sg_val sg_v_of(struct sg_jinja_obj *o) { return (struct sg_val){.kind = o->kind, .u.o = o}; }
static inline struct sg_val sg_v_undefined(const struct sg_jinja_node *n, int of)
{
    return (struct sg_val){.kind = SG_V_UNDEFINED, .aux = (uint8_t)of, .u.node = n};
}
static inline struct sg_str *sg_v_str(struct sg_val v) { return (struct sg_str *)(void *)v.u.o; }
static inline struct sg_list *sg_v_list(struct sg_val v) { return (struct sg_list *)(void *)v.u.o; }
static inline struct sg_dict *sg_v_dict(struct sg_val v) { return (struct sg_dict *)(void *)v.u.o; }
static inline struct sg_val_range *sg_v_range(struct sg_val v) { return (struct sg_val_range *)(void *)v.u.o; }
static inline struct sg_val_seq *sg_v_seq(struct sg_val v) { return (struct sg_val_seq *)(void *)v.u.o; }
static inline struct sg_dict_view *sg_v_view(struct sg_val v) { return (struct sg_dict_view *)(void *)v.u.o; }
static inline struct sg_jinja_loop *sg_v_loop(struct sg_val v) { return (struct sg_jinja_loop *)(void *)v.u.o; }
/* 1: v is the string s of n bytes. */
static inline int sg_v_is(struct sg_val v, const char *s, size_t n)
{
    return v.kind == SG_V_STR && sg_v_str(v)->n == n && !memcmp(sg_v_str(v)->s, s, n);
}
static inline int sg_v_given(struct sg_val v) { return v.kind != SG_V_MISSING; }
/* 1: an argument was passed and is not None. */
static inline int sg_v_not_none(struct sg_val v) { return v.kind > SG_V_NONE || v.kind == SG_V_UNDEFINED; }
static inline int sg_v_is_number(struct sg_val v) { return v.kind >= SG_V_BOOL && v.kind <= SG_V_FLOAT; }

/* --- jinja_value.c: types, memory, strings, lists --- */

const char *sg_val_type(int kind); /* Python's type name */
int sg_val_true(struct sg_val v);  /* bool(v) */
/* A zeroed heap value of `size` bytes. out: address of a pointer to the struct. */
segue_status sg_val_new(struct sg_jinja *st, int kind, size_t size, void *out);
/* Grow an array of o from `was` to n bytes. data, out: address of the pointer to the array. */
segue_status sg_val_grow(struct sg_jinja *st, struct sg_jinja_obj *o, void *data, size_t was, size_t n, void *out);
void sg_val_free(struct sg_jinja_obj *o);
void sg_val_free_all(struct sg_jinja *st);
segue_status sg_str_make(struct sg_jinja *st, const char *s, size_t n, struct sg_val *out); /* copies the bytes */
/* The bytes are not copied: they must outlive the rendering. */
segue_status sg_str_borrow(struct sg_jinja *st, const char *s, size_t n, struct sg_val *out);
/* n bytes of a string from byte `at`; long slices share the bytes of `of`. */
segue_status sg_str_slice(struct sg_jinja *st, struct sg_val of, size_t at, size_t n, struct sg_val *out);
segue_status sg_str_join2(struct sg_jinja *st, struct sg_val a, struct sg_val b, struct sg_val *out);
/* A buffer limited to the bytes of values that are left. */
struct sg_buf sg_val_buf(const struct sg_jinja *st);
/* Make a string of a buffer if s is OK, free the buffer in any case, and return the first error. */
segue_status sg_str_from_buf(struct sg_jinja *st, segue_status s, struct sg_buf *buf, struct sg_val *out);
size_t sg_str_byte_offset(const struct sg_str *s, size_t chars); /* of a code point */
segue_status sg_list_make(struct sg_jinja *st, int kind, size_t cap, struct sg_list **out);
segue_status sg_list_add(struct sg_jinja *st, struct sg_list *list, struct sg_val v);
void sg_list_reverse(struct sg_list *l);
segue_status sg_pair_make(struct sg_jinja *st, struct sg_val a, struct sg_val b, struct sg_val *out); /* a tuple */
segue_status sg_seq_make(struct sg_jinja *st, int kind, struct sg_list *list, const char *name, struct sg_val *out);
segue_status sg_method_make(struct sg_jinja *st, struct sg_val self, const struct sg_builtin *f, struct sg_val *out);

/* --- jinja_gc.c --- */

/* Free all values that neither frame f, the template's variables nor st->roots reach. */
void sg_val_sweep(struct sg_jinja *st, struct sg_jinja_frame *f);

/* --- jinja_dict.c: hash, equality, dicts --- */

/* *hashable = 0 for lists and dicts. Equal values have equal hashes, across int, float and bool too. */
segue_status sg_val_hash(struct sg_jinja *st, struct sg_val v, uint64_t *out, int *hashable);
segue_status sg_val_equal(struct sg_jinja *st, struct sg_val a, struct sg_val b, int *out);
segue_status sg_dict_make(struct sg_jinja *st, int kind, struct sg_dict **out);
segue_status sg_dict_set(struct sg_jinja *st, struct sg_dict *d, struct sg_val key, struct sg_val value);
/* sg_dict_set with the key's hash known. */
segue_status sg_dict_put_hashed(struct sg_jinja *st, struct sg_dict *d, struct sg_val key, uint64_t hash,
                                struct sg_val value);
/* sg_dict_set with a string key whose bytes outlive the rendering. */
segue_status sg_dict_set_name(struct sg_jinja *st, struct sg_dict *d, const char *s, size_t n, struct sg_val value);
/* *out MISSING = no such key. An unhashable key is an error. */
segue_status sg_dict_get(struct sg_jinja *st, struct sg_dict *d, struct sg_val key, struct sg_val *out);
const struct sg_val *sg_dict_name(const struct sg_dict *d, const char *s, size_t n); /* NULL = no such key */

/* --- jinja_iter.c: length, iteration, the items of a loop --- */

int sg_val_has_length(struct sg_val v);
segue_status sg_val_length(struct sg_jinja *st, struct sg_val v, size_t *out); /* len(v); strings: code points */
int sg_val_iterable(struct sg_val v);
segue_status sg_iter_open(struct sg_jinja *st, struct sg_val v, struct sg_val_iter *out);
segue_status sg_iter_next(struct sg_jinja *st, struct sg_val_iter *it, struct sg_val *out, int *got); /* *got 0 = end */
segue_status sg_val_to_list(struct sg_jinja *st, struct sg_val v, struct sg_list **out);              /* list(v) */
segue_status sg_dict_merge(struct sg_jinja *st, struct sg_dict *d, struct sg_val from);               /* d.update(from) */
segue_status sg_loop_next(struct sg_jinja *st, struct sg_jinja_loop *l, struct sg_val *out); /* MISSING = end */
segue_status sg_loop_peek(struct sg_jinja *st, struct sg_jinja_loop *l);   /* sets l->after */
segue_status sg_loop_length(struct sg_jinja *st, struct sg_jinja_loop *l); /* sets l->length */

/* --- jinja_compare.c --- */

segue_status sg_val_order(struct sg_jinja *st, struct sg_val a, struct sg_val b, int *out); /* -1 0 1, 2 = NaN */
segue_status sg_val_contains(struct sg_jinja *st, struct sg_val item, struct sg_val in, int *out);
/* Sort items[n] by keys[n], stable; keys are not moved. */
segue_status sg_val_sort(struct sg_jinja *st, struct sg_val *keys, struct sg_val *items, size_t n, int reverse);
/* The integer of an int or bool, or the string of a str; else EFORMAT that names `what`. */
segue_status sg_val_index(struct sg_jinja *st, struct sg_val v, const char *what, int64_t *out);
segue_status sg_val_expect_str(struct sg_jinja *st, struct sg_val v, const char *what, struct sg_str **out);

/* --- jinja_loop.c, jinja_attr.c, jinja_math.c --- */

/* An attribute of `loop`; MISSING = no such attribute. */
segue_status sg_loop_attr(struct sg_jinja *st, struct sg_jinja_loop *loop, const char *s, size_t n, struct sg_val *out);
/* v.name and v[key] by the rules of jinja2's sandbox; UNDEFINED when there is none. node: for the message of a later
 * use of that undefined value. */
segue_status sg_val_attr(struct sg_jinja *st, struct sg_val v, const char *s, size_t n, const struct sg_jinja_node *node,
                         struct sg_val *out);
segue_status sg_val_item(struct sg_jinja *st, struct sg_val v, struct sg_val key, const struct sg_jinja_node *node,
                         struct sg_val *out);
/* v[part[0]:part[1]:part[2]]; an absent part is None. */
segue_status sg_val_slice(struct sg_jinja *st, struct sg_val v, const struct sg_val part[3], struct sg_val *out);
/* op: '+' '-' '*' '/' '%', '/' + 128 for //, '*' + 128 for **. */
segue_status sg_val_binary(struct sg_jinja *st, unsigned op, struct sg_val a, struct sg_val b, struct sg_val *out);

#endif
