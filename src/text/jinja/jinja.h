/* jinja.h: the inside of the template interpreter, shared by the files jinja_*.c and template.c and by nobody else.
 * A template is parsed once into nodes of an arena; names are bound to slots of frames as jinja2's compiler does it
 * (jinja_bind.c); one rendering (struct sg_jinja) walks the nodes. Values are tagged unions; their memory belongs to
 * the rendering, is counted, and is swept between outermost statements. Nothing here writes to a parsed template: any
 * number of threads may render it.
 * SPDX-License-Identifier: MIT */
#ifndef SG_TEXT_JINJA_H
#define SG_TEXT_JINJA_H

#include <string.h>

#include "base/mem.h"
#include "text/template.h"

/* --- values --- */

enum sg_val_kind {
    SG_V_MISSING, /* no value at all: an argument not given, a slot not yet set; never seen by a template */
    SG_V_UNDEFINED, SG_V_NONE, SG_V_BOOL, SG_V_INT, SG_V_FLOAT, SG_V_STR, SG_V_LIST, SG_V_TUPLE, SG_V_DICT,
    SG_V_SPACE,   /* namespace() */
    SG_V_RANGE,
    SG_V_ITER,    /* what a generator of Python would be: has no length, is used up by walking it */
    SG_V_VIEW,    /* dict.keys(), .values(), .items() */
    SG_V_FUNC, SG_V_METHOD, SG_V_MACRO, SG_V_LOOP, SG_V_CYCLER, SG_V_JOINER,
    SG_V_FRAME    /* slots of a scope; never seen by a template */
};

struct sg_val {
    uint8_t kind, aux;  /* aux of undefined: kind of the value that lacked the attribute, 0 = a name; of a string: 1 = it
                         * is Markup (|safe, |escape), to which plain strings are escaped when they are added */
    union {
        int64_t i;
        double f;
        struct sg_obj *o;
        const struct sg_node *node; /* undefined: where it came from; NULL = nothing to say */
        const struct sg_func *func;
    } u;
};

struct sg_obj {
    struct sg_obj *next, *gray;
    size_t size;               /* bytes counted for it */
    uint8_t kind, mark, fixed; /* fixed: part of the template, never swept and never written */
};

struct sg_str {
    struct sg_obj o;
    const char *s;         /* valid UTF-8, not terminated */
    size_t n, chars;       /* bytes, code points */
    struct sg_obj *parent; /* whose bytes these are; NULL: own, the template's or the caller's */
};

struct sg_list {
    struct sg_obj o;
    size_t n, cap;
    struct sg_val *items;
};

struct sg_pair {
    struct sg_val key, value;
    uint64_t hash;
};

struct sg_dict {
    struct sg_obj o;
    size_t n, cap;
    struct sg_pair *pairs; /* in order of insertion */
    uint32_t *index;       /* [index_cap], open addressing, 0 = empty, else position + 1; NULL while small */
    size_t index_cap;
    uint64_t seed;         /* of the hashes: a request cannot choose keys that collide */
};

struct sg_range {
    struct sg_obj o;
    int64_t start, stop, step;
    size_t n;
};

/* SG_V_ITER, SG_V_CYCLER, SG_V_JOINER (pos 1 = used; items[0] = separator) */
struct sg_seq {
    struct sg_obj o;
    struct sg_list *list;
    size_t pos;
    const char *name; /* what Python would call it */
};

struct sg_view {
    struct sg_obj o;
    struct sg_dict *dict;
    int which; /* 'k', 'v', 'i' */
};

struct sg_method {
    struct sg_obj o;
    struct sg_val self;
    const struct sg_func *func;
};

struct sg_frame {
    struct sg_obj o;
    struct sg_frame *parent;
    size_t n;
    struct sg_val slots[];
};

struct sg_macro {
    struct sg_obj o;
    const struct sg_node *node;
    struct sg_frame *frame;
};

struct sg_iter {
    struct sg_val v;
    size_t pos, byte;
};

struct sg_loop {
    struct sg_obj o;
    const struct sg_node *node;
    struct sg_frame *outer, *test; /* frame around the loop; frame of its `if` */
    struct sg_iter it;
    struct sg_list *rest;          /* items already drawn because the length was asked for */
    size_t rest_pos;
    struct sg_val current, before, after, changed;
    int64_t index0, length, depth0; /* length -1 = not known */
};

static inline struct sg_val sg_v_none(void) { return (struct sg_val){.kind = SG_V_NONE}; }
static inline struct sg_val sg_v_bool(int b) { return (struct sg_val){.kind = SG_V_BOOL, .u.i = b != 0}; }
static inline struct sg_val sg_v_int(int64_t i) { return (struct sg_val){.kind = SG_V_INT, .u.i = i}; }
static inline struct sg_val sg_v_float(double f) { return (struct sg_val){.kind = SG_V_FLOAT, .u.f = f}; }
static inline struct sg_val sg_v_of(struct sg_obj *o) { return (struct sg_val){.kind = o->kind, .u.o = o}; }
static inline struct sg_val sg_v_undefined(const struct sg_node *n, int of)
{
    return (struct sg_val){.kind = SG_V_UNDEFINED, .aux = (uint8_t)of, .u.node = n};
}
static inline struct sg_str *sg_v_str(struct sg_val v) { return (struct sg_str *)(void *)v.u.o; }
static inline struct sg_list *sg_v_list(struct sg_val v) { return (struct sg_list *)(void *)v.u.o; }
static inline struct sg_dict *sg_v_dict(struct sg_val v) { return (struct sg_dict *)(void *)v.u.o; }
static inline struct sg_range *sg_v_range(struct sg_val v) { return (struct sg_range *)(void *)v.u.o; }
static inline struct sg_seq *sg_v_seq(struct sg_val v) { return (struct sg_seq *)(void *)v.u.o; }
static inline struct sg_view *sg_v_view(struct sg_val v) { return (struct sg_view *)(void *)v.u.o; }
static inline struct sg_loop *sg_v_loop(struct sg_val v) { return (struct sg_loop *)(void *)v.u.o; }
static inline int sg_v_is(struct sg_val v, const char *s, size_t n)
{
    return v.kind == SG_V_STR && sg_v_str(v)->n == n && !memcmp(sg_v_str(v)->s, s, n);
}

/* --- nodes --- */

enum sg_node_kind {
    SG_N_CONST, SG_N_NAME, SG_N_TUPLE, SG_N_LIST, SG_N_DICT, SG_N_COND, SG_N_OR, SG_N_AND, SG_N_NOT, SG_N_COMPARE,
    SG_N_BINARY, SG_N_CONCAT, SG_N_NEG, SG_N_POS, SG_N_ATTR, SG_N_ITEM, SG_N_SLICE, SG_N_CALL, SG_N_FILTER,
    SG_N_TEST, SG_N_NSREF, SG_N_ARG,
    SG_N_STATEMENT, /* below: statements; an expression among statements is printed */
    SG_N_DATA = SG_N_STATEMENT, SG_N_FOR, SG_N_IF, SG_N_SET, SG_N_SETBLOCK, SG_N_MACRO, SG_N_CALLBLOCK,
    SG_N_FILTERBLOCK, SG_N_WITH, SG_N_BREAK, SG_N_CONTINUE, SG_N_GENERATION
};

/* Children by kind (lists are chained by next):
 *   TUPLE LIST DICT CONCAT  a = items (DICT: key, value, key, ...)     COND  a = test, b = then, c = else or NULL
 *   OR AND BINARY  a, b; op                NOT NEG POS  a              COMPARE  a = first, b = operands with their op
 *   ATTR  a, s     ITEM  a, b              SLICE  a, b, c (may be NULL)
 *   CALL  a = callee, b = args             FILTER TEST  a = value (FILTER may lack it), b = args, s = name, func
 *   ARG  a; op 0 positional, 'k' keyword s, '*', 'd' for **            NSREF  name, s = attribute
 *   FOR  a = target, b = iterable, c = body, d = else, e = test; op 1 = recursive
 *   IF  a = test, b = body, c = elif list of IF, d = else              SET  a = target, b
 *   SETBLOCK  a = target, b = filter, c = body          FILTERBLOCK  b = filter, c = body
 *   MACRO CALLBLOCK GENERATION  a = parameters (NAME with a = default), c = body; CALLBLOCK b = call
 *   WITH  a = targets, b = values, c = body */
struct sg_node {
    uint8_t kind, op;
    uint8_t flags;         /* of macros: SG_MACRO_* */
    uint8_t param;         /* a name that is a parameter or a target: bound, never looked up */
    uint16_t depth, hops;  /* hops, slot: of names */
    uint32_t line, slot, name;
    struct sg_node *next, *a, *b, *c, *d, *e;
    const char *s;
    size_t n;
    union {
        struct sg_val value;
        const struct sg_func *func;
        struct sg_scope *scopes[2]; /* FOR: body, test (else: of d's first, kept in scope_else); others: [0] */
    } u;
    struct sg_scope *scope_else;
};

enum { SG_MACRO_CALLER = 1, SG_MACRO_KWARGS = 2, SG_MACRO_VARARGS = 4, SG_MACRO_EXPLICIT = 8 };

enum { SG_LOAD_PARAM, SG_LOAD_RESOLVE, SG_LOAD_ALIAS, SG_LOAD_UNDEFINED };
struct sg_load {
    uint8_t kind;
    uint16_t hops;   /* alias: from the parent frame on */
    uint32_t name, slot;
};
struct sg_scope {
    uint32_t n;
    struct sg_load *loads; /* [n], one for each slot */
};

struct sg_name {
    const char *s;
    size_t n;
};

struct sg_template {
    struct sg_arena arena;
    const char *what;
    struct sg_node *body;
    struct sg_scope *scope;
    struct sg_name *names;
    uint32_t names_n;
};

/* --- lexing and parsing --- */

enum sg_token_kind {
    SG_T_EOF, SG_T_DATA, SG_T_VAR_BEGIN, SG_T_VAR_END, SG_T_BLOCK_BEGIN, SG_T_BLOCK_END, SG_T_NAME, SG_T_STRING,
    SG_T_INT, SG_T_FLOAT, SG_T_OP
};

/* Operators of two characters are their ASCII codes a << 8 | b. */
#define SG_OP2(a, b) ((unsigned)(a) << 8 | (unsigned)(b))

struct sg_token {
    uint8_t kind;
    uint16_t op;
    uint32_t line;
    const char *s;   /* DATA, NAME, STRING (unescaped) */
    size_t n;
    int64_t i;
    double f;
};

struct sg_lexer {
    const char *p, *end; /* normalised source */
    uint32_t line;
    uint8_t state;       /* 0 text, 1 variable, 2 block */
    uint8_t line_start;
    uint8_t raw;         /* data of a raw block comes next */
    size_t balance_n;
    char balance[256];
    struct sg_arena *arena;
    const char *what;
    segue_error *err;
};
/* Source as jinja2 reads it: newlines are \n, one at the end is dropped. */
segue_status sg_lexer_open(struct sg_lexer *lx, struct sg_arena *arena, const char *source, size_t len,
                           const char *what, segue_error *err);
segue_status sg_lexer_next(struct sg_lexer *lx, struct sg_token *out);

enum { SG_NODE_DEPTH = 400, SG_SOURCE_BYTES = 1 << 20, SG_PARSED_BYTES = 40 << 20 };

struct sg_parser {
    struct sg_lexer lx;
    struct sg_token tok, ahead;
    int has_ahead;
    struct sg_template *t;
    uint32_t level, loops; /* nesting; loops that break may leave */
    uint32_t *table, table_cap, names_cap;
    const char *open_tag;
    segue_error *err;
};
/* --- jinja_parser.c --- */
int sg_token_is_op(const struct sg_token *t, unsigned op);
int sg_token_is_name(const struct sg_token *t, const char *name);
segue_status sg_parser_fail(struct sg_parser *p, uint32_t line, const char *format, ...) SG_FORMAT(3, 4);
segue_status sg_parser_next(struct sg_parser *p);
segue_status sg_parser_look(struct sg_parser *p, struct sg_token *out);
int sg_parser_is_op(const struct sg_parser *p, unsigned op);
int sg_parser_is_name(const struct sg_parser *p, const char *name);
segue_status sg_parser_want_op(struct sg_parser *p, unsigned op);
segue_status sg_parser_want(struct sg_parser *p, int kind, const char *text);
/* Consume an operator or a word if it stands here. */
segue_status sg_parser_skip_op(struct sg_parser *p, unsigned op, int *did);
segue_status sg_parser_skip_name(struct sg_parser *p, const char *name, int *did);
/* What the current token looks like, for errors. */
const char *sg_parser_describe(const struct sg_parser *p, char text[64]);
segue_status sg_parser_node(struct sg_parser *p, int kind, uint32_t line, struct sg_node **out);
segue_status sg_parser_name(struct sg_parser *p, const char *s, size_t n, uint32_t *id);
segue_status sg_parser_enter(struct sg_parser *p);
/* Set depth of a node from its children; refuses what is too deep to walk. */
segue_status sg_parser_seal(struct sg_parser *p, struct sg_node *node);
/* --- jinja_expr.c, jinja_block.c, jinja_bind.c --- */
segue_status sg_parse_expression(struct sg_parser *p, int with_cond, struct sg_node **out);
segue_status sg_parse_primary(struct sg_parser *p, int with_ns, struct sg_node **out);
/* end: a name that also ends the tuple ("in", "recursive"), or NULL. */
segue_status sg_parse_tuple(struct sg_parser *p, int simple, int with_cond, const char *end, int parens,
                            int with_ns, struct sg_node **out);
segue_status sg_parse_filters(struct sg_parser *p, struct sg_node *value, int inline_first, struct sg_node **out);
segue_status sg_parse_body(struct sg_parser *p);
segue_status sg_bind_names(struct sg_parser *p);

/* --- one rendering --- */

struct sg_root {
    struct sg_root *next;
    struct sg_obj *o;
};

struct sg_jinja {
    const struct sg_template *t;
    struct sg_template_limits limits;
    uint64_t steps, bytes; /* bytes: written, not yet counted as steps */
    uint32_t level, calls, line;
    unsigned captures;          /* texts being captured; 0: output is final */
    unsigned pending;           /* > 0: inside an expression, whose values only the C stack knows: no sweep */
    size_t live, held, sweep_at; /* bytes of values, of unfinished texts; sweep when live passes sweep_at */
    struct sg_obj *objs;
    struct sg_root *roots;
    struct sg_dict *vars;
    struct sg_buf *out;
    int64_t now;
    uint64_t seed;
    segue_error *err;
};

struct sg_args {
    struct sg_val *pos;
    size_t pos_n;
    struct sg_dict *named; /* may be NULL */
};

struct sg_func;
typedef segue_status sg_func_fn(struct sg_jinja *st, const struct sg_func *f, struct sg_val self, struct sg_val *in,
                                const struct sg_args *args, struct sg_val *out);
/* A function of Python with its parameters: in[] holds them in order, SG_V_MISSING where not given. params NULL: takes
 * what comes, reads args itself. */
struct sg_func {
    const char *name;
    sg_func_fn *fn;
    const char *params; /* "a b c" */
    uint8_t least;      /* how many must be given */
    uint8_t which;      /* tells functions apart that share an fn */
};
enum { SG_PARAMS = 8 };
#define SG_FUNC(name)                                                                                         \
    static segue_status name(struct sg_jinja *st, const struct sg_func *f, struct sg_val self, struct sg_val *in, \
                             const struct sg_args *args, struct sg_val *out)
#define SG_UNUSED ((void)st, (void)f, (void)self, (void)in, (void)args, (void)out)
static inline int sg_v_given(struct sg_val v) { return v.kind != SG_V_MISSING; }
static inline int sg_v_some(struct sg_val v) { return v.kind > SG_V_NONE || v.kind == SG_V_UNDEFINED; } /* and not None */

segue_status sg_jinja_fail(struct sg_jinja *st, const char *format, ...) SG_FORMAT(2, 3);
segue_status sg_jinja_steps_out(struct sg_jinja *st);
static inline segue_status sg_jinja_step(struct sg_jinja *st, uint64_t n)
{
    st->steps += n;
    return st->steps > st->limits.steps ? sg_jinja_steps_out(st) : SEGUE_OK;
}
segue_status sg_jinja_enter(struct sg_jinja *st); /* one level deeper; pair with st->level-- */
segue_status sg_jinja_call(struct sg_jinja *st, struct sg_val callee, const struct sg_args *args,
                           const struct sg_node *node, struct sg_val *out);
segue_status sg_func_call(struct sg_jinja *st, const struct sg_func *f, struct sg_val self,
                          const struct sg_args *args, struct sg_val *out);
const struct sg_func *sg_filter_find(const char *s, size_t n);
const struct sg_func *sg_list_filter_find(const char *s, size_t n); /* those of jinja_lists.c */
const struct sg_func *sg_func_search(const struct sg_func *table, size_t count, const char *s, size_t n);
const struct sg_func *sg_test_find(const char *s, size_t n);
const struct sg_func *sg_global_find(const char *s, size_t n);
/* Method of a value by name; MISSING out = none. blocked: 1 when the sandbox forbids it. */
const struct sg_func *sg_method_find(struct sg_val v, const char *s, size_t n, int *blocked);
const struct sg_func *sg_str_method_find(const char *s, size_t n);
segue_status sg_str_method_call(struct sg_jinja *st, const struct sg_func *f, struct sg_val self,
                                const struct sg_args *args, struct sg_val *out);
/* v as Markup: str(v) with & < > " ' escaped, unless it is Markup already. */
segue_status sg_str_escape(struct sg_jinja *st, struct sg_val v, struct sg_val *out);

segue_status sg_jinja_eval(struct sg_jinja *st, struct sg_frame *f, const struct sg_node *n, struct sg_val *out);
segue_status sg_jinja_args(struct sg_jinja *st, struct sg_frame *f, const struct sg_node *list, struct sg_args *out);
segue_status sg_jinja_filter(struct sg_jinja *st, struct sg_frame *f, const struct sg_node *n, struct sg_val value,
                             struct sg_val *out);
segue_status sg_jinja_run(struct sg_jinja *st, struct sg_frame *f, const struct sg_node *body);
segue_status sg_jinja_macro(struct sg_jinja *st, struct sg_macro *m, const struct sg_args *args, struct sg_val *out);
segue_status sg_jinja_recurse(struct sg_jinja *st, struct sg_loop *loop, struct sg_val items, struct sg_val *out);
segue_status sg_loop_attr(struct sg_jinja *st, struct sg_loop *loop, const char *s, size_t n, struct sg_val *out);
segue_status sg_frame_make(struct sg_jinja *st, const struct sg_scope *scope, struct sg_frame *parent,
                           struct sg_frame **out);
segue_status sg_frame_enter(struct sg_jinja *st, const struct sg_scope *scope, struct sg_frame *f);
/* obj.name and obj[key] by the sandbox's rules; SG_V_UNDEFINED when there is none. */
segue_status sg_val_attr(struct sg_jinja *st, struct sg_val v, const char *s, size_t n, const struct sg_node *node,
                         struct sg_val *out);
segue_status sg_val_item(struct sg_jinja *st, struct sg_val v, struct sg_val key, const struct sg_node *node,
                         struct sg_val *out);
segue_status sg_val_slice(struct sg_jinja *st, struct sg_val v, const struct sg_val part[3], struct sg_val *out);
segue_status sg_val_binary(struct sg_jinja *st, unsigned op, struct sg_val a, struct sg_val b, struct sg_val *out);

/* --- values: memory and access (jinja_value.c, jinja_dict.c) --- */

segue_status sg_val_new(struct sg_jinja *st, int kind, size_t size, void *out);
void sg_val_sweep(struct sg_jinja *st, struct sg_frame *f); /* f: the frame that runs */
void sg_val_free_all(struct sg_jinja *st);
segue_status sg_str_make(struct sg_jinja *st, const char *s, size_t n, struct sg_val *out);
segue_status sg_str_borrow(struct sg_jinja *st, const char *s, size_t n, struct sg_val *out); /* outlives rendering */
segue_status sg_str_part(struct sg_jinja *st, struct sg_val of, size_t at, size_t n, struct sg_val *out);
segue_status sg_str_join2(struct sg_jinja *st, struct sg_val a, struct sg_val b, struct sg_val *out);
/* Make a string of what was written, and free the buffer; s: how the writing went. */
segue_status sg_str_take(struct sg_jinja *st, segue_status s, struct sg_buf *buf, struct sg_val *out);
struct sg_buf sg_buf_begin(const struct sg_jinja *st);
size_t sg_str_byte(const struct sg_str *s, size_t chars); /* byte offset of a code point */
segue_status sg_list_make(struct sg_jinja *st, int kind, size_t cap, struct sg_list **out);
segue_status sg_list_add(struct sg_jinja *st, struct sg_list *list, struct sg_val v);
segue_status sg_pair_make(struct sg_jinja *st, struct sg_val a, struct sg_val b, struct sg_val *out);
segue_status sg_seq_make(struct sg_jinja *st, int kind, struct sg_list *list, const char *name, struct sg_val *out);
segue_status sg_dict_make(struct sg_jinja *st, int kind, struct sg_dict **out);
segue_status sg_dict_set(struct sg_jinja *st, struct sg_dict *d, struct sg_val key, struct sg_val value);
segue_status sg_dict_set_name(struct sg_jinja *st, struct sg_dict *d, const char *s, size_t n, struct sg_val value);
segue_status sg_dict_get(struct sg_jinja *st, struct sg_dict *d, struct sg_val key, struct sg_val *out); /* MISSING */
const struct sg_val *sg_dict_name(const struct sg_dict *d, const char *s, size_t n);
segue_status sg_dict_merge(struct sg_jinja *st, struct sg_dict *d, struct sg_val from);
segue_status sg_val_of_json(struct sg_jinja *st, const json_t *json, struct sg_val *out);
segue_status sg_val_hash(struct sg_jinja *st, struct sg_val v, uint64_t *out, int *hashable);
int sg_val_true(struct sg_val v);
const char *sg_val_type(int kind);
segue_status sg_val_equal(struct sg_jinja *st, struct sg_val a, struct sg_val b, int *out);
segue_status sg_val_order(struct sg_jinja *st, struct sg_val a, struct sg_val b, int *out); /* -1 0 1, 2 = NaN */
segue_status sg_val_contains(struct sg_jinja *st, struct sg_val item, struct sg_val in, int *out);
segue_status sg_val_length(struct sg_jinja *st, struct sg_val v, size_t *out);
int sg_val_has_length(struct sg_val v);
int sg_val_iterable(struct sg_val v);
segue_status sg_iter_open(struct sg_jinja *st, struct sg_val v, struct sg_iter *out);
segue_status sg_iter_next(struct sg_jinja *st, struct sg_iter *it, struct sg_val *out, int *got);
segue_status sg_val_to_list(struct sg_jinja *st, struct sg_val v, struct sg_list **out);
segue_status sg_val_sort(struct sg_jinja *st, struct sg_val *keys, struct sg_val *items, size_t n, int reverse);
/* The integer a value stands for as index or count (int, bool); EFORMAT names what. */
segue_status sg_val_index(struct sg_jinja *st, struct sg_val v, const char *what, int64_t *out);
segue_status sg_val_want_str(struct sg_jinja *st, struct sg_val v, const char *what, struct sg_str **out);

/* --- texts (jinja_text.c, jinja_json.c, jinja_format.c, jinja_case.c) --- */

segue_status sg_put(struct sg_jinja *st, struct sg_buf *b, const char *s, size_t n);
segue_status sg_put_char(struct sg_jinja *st, struct sg_buf *b, uint32_t c);
segue_status sg_put_str(struct sg_jinja *st, struct sg_buf *b, struct sg_val v);  /* str(v) */
segue_status sg_put_repr(struct sg_jinja *st, struct sg_buf *b, struct sg_val v); /* repr(v) */
segue_status sg_put_float(struct sg_jinja *st, struct sg_buf *b, double f);
struct sg_json_style {
    int ascii, sort, indented;
    const char *indent, *item_sep, *key_sep;
    size_t indent_n, item_n, key_n;
};
segue_status sg_put_json(struct sg_jinja *st, struct sg_buf *b, struct sg_val v, const struct sg_json_style *style,
                         size_t level);
segue_status sg_val_text(struct sg_jinja *st, struct sg_val v, struct sg_val *out); /* str(v) as a value */
segue_status sg_format_percent(struct sg_jinja *st, struct sg_str *format, struct sg_val args, struct sg_val *out);
segue_status sg_format_braces(struct sg_jinja *st, struct sg_str *format, const struct sg_args *args,
                              struct sg_val *out);
segue_status sg_format_time(struct sg_jinja *st, struct sg_str *format, struct sg_val *out);
/* Decimal digits of a finite f: printf's %.*e, %.*f or %.*g with a point whatever the locale. */
int sg_float_digits(char *out, size_t cap, char kind, int precision, double f);
int sg_float_parse(const char *s, size_t n, double *out); /* Python's float(); 0 = not a number */
int sg_int_parse(const char *s, size_t n, int base, int64_t *out); /* Python's int(); 0 = no, -1 = too large */

uint32_t sg_char_get(const char **p); /* of valid text */
size_t sg_char_put(char *out, uint32_t c);
enum { SG_CASE_UPPER, SG_CASE_LOWER, SG_CASE_TITLE, SG_CASE_SWAP };
segue_status sg_case_put(struct sg_jinja *st, struct sg_buf *b, const struct sg_str *s, size_t from, size_t to,
                         int how);
enum { SG_IS_ALPHA, SG_IS_DECIMAL, SG_IS_DIGIT, SG_IS_NUMERIC, SG_IS_LOWER, SG_IS_UPPER, SG_IS_TITLE,
       SG_IS_PRINTABLE, SG_IS_SPACE };
int sg_char_is(uint32_t c, int what);
int sg_char_line(uint32_t c); /* ends a line for str.splitlines */

#endif
