/* milvalue.c: token functions, types and literals of the parser; see milparser.h.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/mil/milparser.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

SG_FORMAT(4, 5)
void sg_mil_parse_error(struct sg_mil_parser *p, const struct sg_mil_token *at, uint32_t constraint,
                        const char *format, ...)
{
    if (p->failed) return;
    p->failed = 1;
    p->token.kind = SG_MIL_END; /* ends all loops of the callers */
    *p->fault = (struct sg_mil_fault){.line = at->line, .column = at->column, .constraint = constraint};
    snprintf(p->fault->op, sizeof p->fault->op, "%s", p->op ? p->op : "");
    va_list args;
    va_start(args, format);
    vsnprintf(p->fault->text, sizeof p->fault->text, format, args);
    va_end(args);
}

/* The flag turns the status of sg_mil_parse from EFORMAT into EMEMORY. */
void sg_mil_parse_no_memory(struct sg_mil_parser *p)
{
    p->no_memory = 1;
    sg_mil_parse_error(p, &p->token, 0, "out of memory; free some");
}

/* The arena belongs to the program and is freed with it, also after an error. */
void *sg_mil_arena_copy(struct sg_mil_parser *p, const void *bytes, size_t n)
{
    void *copy = p->failed ? NULL : sg_arena_alloc(&p->program->arena, n);
    if (copy && n) memcpy(copy, bytes, n);
    if (!copy && !p->failed) sg_mil_parse_no_memory(p);
    return copy;
}

/* As sg_mil_arena_copy, with a terminating 0. */
const char *sg_mil_arena_text(struct sg_mil_parser *p, const char *s, size_t n)
{
    char *copy = p->failed ? NULL : sg_arena_strndup(&p->program->arena, s, n);
    if (!copy && !p->failed) sg_mil_parse_no_memory(p);
    return copy;
}

/* After an error the current token stays END. */
void sg_mil_next_token(struct sg_mil_parser *p)
{
    if (!p->failed) p->token = sg_mil_lexer_next(&p->lexer);
}

int sg_mil_is_punct(const struct sg_mil_parser *p, char c)
{
    return p->token.kind == SG_MIL_PUNCT && p->token.punct == c;
}
int sg_mil_is_name(const struct sg_mil_parser *p, const char *name)
{
    return p->token.kind == SG_MIL_NAME && p->token.n == strlen(name) && !memcmp(p->token.at, name, p->token.n);
}

/* Chooses the message by what was found: the end of the text, an open string, a foreign byte or a wrong
 * token. */
void sg_mil_unexpected(struct sg_mil_parser *p, const char *wanted)
{
    const struct sg_mil_token *w = &p->token;
    unsigned char c = (unsigned char)w->punct;
    if (w->kind == SG_MIL_END)
        sg_mil_parse_error(p, w, 0,
                           "the text ends where %s is expected; it is truncated, or a bracket is not closed",
                           wanted);
    else if (w->kind == SG_MIL_BAD_BYTE && c == '"')
        sg_mil_parse_error(p, w, 0, "a string is not closed on its line; close it with a quote");
    else if (w->kind == SG_MIL_BAD_BYTE)
        sg_mil_parse_error(p, w, 0, "byte 0x%02x where %s is expected; no MIL token begins with it", c, wanted);
    else
        sg_mil_parse_error(p, w, 0, "\"%.*s\" where %s is expected", (int)(w->n < 40 ? w->n : 40), w->at, wanted);
}

int sg_mil_accept(struct sg_mil_parser *p, char c)
{
    if (!sg_mil_is_punct(p, c)) return 0;
    sg_mil_next_token(p);
    return 1;
}

/* The message shows the expected character in quotes. */
void sg_mil_expect(struct sg_mil_parser *p, char c)
{
    char wanted[] = {'"', c, '"', 0};
    if (!sg_mil_accept(p, c)) sg_mil_unexpected(p, wanted);
}

void sg_mil_expect_name(struct sg_mil_parser *p, const char *name)
{
    if (!sg_mil_is_name(p, name))
        sg_mil_unexpected(p, name);
    else
        sg_mil_next_token(p);
}

/* Returns "" instead of NULL after an error, so that callers can compare and print it. */
const char *sg_mil_parse_name(struct sg_mil_parser *p, const char *what)
{
    if (p->token.kind != SG_MIL_NAME) {
        sg_mil_unexpected(p, what);
        return "";
    }
    if (p->token.n > SG_MIL_NAME_MAX)
        sg_mil_parse_error(p, &p->token, 0, "a name of %zu bytes; at most %d are allowed", p->token.n,
                           SG_MIL_NAME_MAX);
    const char *copy = sg_mil_arena_text(p, p->token.at, p->token.n);
    sg_mil_next_token(p);
    return copy ? copy : "";
}

/* An integer token; 0 after an error. what: for the message. */
static int64_t parse_int(struct sg_mil_parser *p, const char *what)
{
    double real;
    int whole;
    int64_t v = 0;
    if (p->token.kind != SG_MIL_NUMBER)
        sg_mil_unexpected(p, what);
    else if (!sg_mil_number(&p->token, &real, &whole, &v) || !whole)
        sg_mil_parse_error(p, &p->token, 0, "\"%.*s\" is not %s", (int)(p->token.n < 40 ? p->token.n : 40),
                           p->token.at, what);
    sg_mil_next_token(p);
    return v;
}

/* Name of an element type; FP16 after an error, which is always a valid index of the type table. */
static enum sg_mil_dtype parse_dtype(struct sg_mil_parser *p)
{
    enum sg_mil_dtype d =
        p->token.kind == SG_MIL_NAME ? sg_mil_dtype_named(p->token.at, p->token.n) : SG_MIL_DTYPES;
    if (d == SG_MIL_DTYPES) {
        sg_mil_unexpected(p, "a data type");
        return SG_MIL_FP16;
    }
    sg_mil_next_token(p);
    return d;
}

/* `[a, b, ...]` into out[SG_MIL_DIMS]; returns the count. unknown: `?` is allowed and gives SG_MIL_UNKNOWN.
 * Constraint 27 limits rank and dimensions; only what this form cannot store is rejected here, the rules
 * check the real limits. */
static uint32_t parse_int_list(struct sg_mil_parser *p, int64_t *out, int unknown, const char *what)
{
    uint32_t n = 0;
    struct sg_mil_token start = p->token;
    sg_mil_expect(p, '[');
    while (!p->failed && !sg_mil_is_punct(p, ']')) {
        if (n == SG_MIL_DIMS) {
            sg_mil_parse_error(p, &start, 27, "rank above %d; engines compile at most 5 dimensions", SG_MIL_DIMS);
            break;
        }
        struct sg_mil_token at = p->token;
        int open = unknown && sg_mil_accept(p, '?'); /* a dimension of unknown size */
        int64_t v = open ? SG_MIL_UNKNOWN : parse_int(p, what);
        if ((v < 0 && !open) || v > INT32_MAX)
            sg_mil_parse_error(p, &at, 27, "a dimension of %lld; engines compile at most 65536", (long long)v);
        out[n++] = v;
        if (!sg_mil_accept(p, ',')) break;
    }
    sg_mil_expect(p, ']');
    return n;
}

/* `shape=[..], strides=[..], interleave_factors=[..]` of a tensor_buffer; sets the shape of t and returns
 * the layout. The factors are optional and default to 1. */
static const struct sg_mil_layout *parse_buffer_layout(struct sg_mil_parser *p, struct sg_mil_type *t)
{
    struct sg_mil_layout layout = {0};
    int64_t shape[SG_MIL_DIMS];
    struct sg_mil_token at = p->token;
    sg_mil_expect_name(p, "shape");
    sg_mil_expect(p, '=');
    uint32_t n = parse_int_list(p, shape, 0, "a dimension");
    sg_mil_expect(p, ',');
    sg_mil_expect_name(p, "strides");
    sg_mil_expect(p, '=');
    uint32_t strides = parse_int_list(p, layout.stride, 0, "a stride");
    uint32_t factors = n; /* count of interleave factors; as many as dimensions when they are absent */
    for (uint32_t i = 0; i < n; i++) layout.interleave[i] = 1;
    if (sg_mil_accept(p, ',')) {
        sg_mil_expect_name(p, "interleave_factors");
        sg_mil_expect(p, '=');
        factors = parse_int_list(p, layout.interleave, 0, "an interleave factor");
    }
    if (strides != n || factors != n)
        sg_mil_parse_error(p, &at, 0, "%u dimensions, %u strides, %u interleave factors; the counts must be equal", n,
                           strides, factors);
    *t = sg_mil_tensor((enum sg_mil_dtype)t->dtype, n, shape);
    return sg_mil_arena_copy(p, &layout, sizeof layout);
}

/* `tensor<DT, [dims]>`, `tensor_buffer<DT, ...>`, or an element type alone for a scalar. */
struct sg_mil_type sg_mil_parse_type(struct sg_mil_parser *p)
{
    struct sg_mil_type t = {0};
    if (sg_mil_is_name(p, "tensor_buffer")) {
        sg_mil_next_token(p);
        sg_mil_expect(p, '<');
        t.dtype = (uint8_t)parse_dtype(p);
        sg_mil_expect(p, ',');
        t.buffer = parse_buffer_layout(p, &t);
        sg_mil_expect(p, '>');
    } else if (sg_mil_is_name(p, "tensor")) {
        int64_t dim[SG_MIL_DIMS];
        sg_mil_next_token(p);
        sg_mil_expect(p, '<');
        enum sg_mil_dtype d = parse_dtype(p);
        sg_mil_expect(p, ',');
        uint32_t n = parse_int_list(p, dim, 1, "a dimension");
        t = sg_mil_tensor(d, n, dim);
        sg_mil_expect(p, '>');
    } else
        t.dtype = (uint8_t)parse_dtype(p);
    return t;
}

/* Space for number n in both scratch arrays. The capacity grows only when both allocations succeeded; until
 * then a larger reals array is merely unused. 0: out of memory. */
static int reserve_number(struct sg_mil_parser *p, uint64_t n)
{
    if (n < p->numbers_cap) return 1;
    uint64_t cap = p->numbers_cap ? p->numbers_cap * 2 : 256;
    double *reals = sg_realloc(p->reals, cap * sizeof *reals);
    if (reals) p->reals = reals;
    int64_t *ints = reals ? sg_realloc(p->ints, cap * sizeof *ints) : NULL;
    if (ints) p->ints = ints;
    if (ints) p->numbers_cap = cap;
    if (!ints) sg_mil_parse_no_memory(p);
    return ints != NULL;
}

/* 1: the integer v fits the element type. The sign comes from the text, because the value of a uint64 above
 * 2^63 - 1 is negative as int64_t. */
static int in_range(const struct sg_mil_dtype_info *info, const struct sg_mil_token *w, int64_t v)
{
    int negative = w->at[0] == '-';
    /* A negative zero is a valid unsigned value. */
    if (info->class == SG_MIL_UNSIGNED)
        return (!negative || !v) && (info->bits == 64 || (uint64_t)v >> info->bits == 0);
    int64_t max = info->bits == 64 ? INT64_MAX : ((int64_t)1 << (info->bits - 1)) - 1;
    return negative ? v <= 0 && v >= -max - 1 : v >= 0 && v <= max;
}

/* One number, or true or false, into element n of the scratch arrays. Real types store doubles, all others
 * integers. */
static void parse_scalar(struct sg_mil_parser *p, const struct sg_mil_dtype_info *info, uint64_t n)
{
    if (!reserve_number(p, n)) return;
    const struct sg_mil_token w = p->token;
    /* Integers are checked against the range of their type; reals are rounded later, where they are used. */
    int whole = 0;
    p->ints[n] = 0;
    if (info->class == SG_MIL_BOOLEAN && (sg_mil_is_name(p, "true") || sg_mil_is_name(p, "false"))) {
        p->ints[n] = sg_mil_is_name(p, "true");
    } else if (info->class == SG_MIL_BOOLEAN) {
        sg_mil_unexpected(p, "true or false");
    } else if (w.kind != SG_MIL_NUMBER && !sg_mil_is_name(p, "inf") && !sg_mil_is_name(p, "nan")) {
        sg_mil_unexpected(p, "a number");
    } else if (!sg_mil_number(&w, &p->reals[n], &whole, &p->ints[n])) {
        sg_mil_parse_error(p, &w, 0, "\"%.*s\" is not a number, or out of every range", (int)(w.n < 40 ? w.n : 40),
                           w.at);
    } else if (info->class != SG_MIL_REAL && (!whole || !in_range(info, &w, p->ints[n])))
        sg_mil_parse_error(p, &w, 0, "\"%.*s\" is not a value of %s", (int)(w.n < 40 ? w.n : 40), w.at,
                           info->name);
    sg_mil_next_token(p);
}

/* Accepts "..", string("..") and tensor<string, []>(".."). A backslash makes the next byte literal; a zero
 * byte is rejected because strings are NUL-terminated. */
const char *sg_mil_parse_string(struct sg_mil_parser *p, uint64_t *n)
{
    int wrapped = p->token.kind == SG_MIL_NAME;
    if (wrapped) {
        struct sg_mil_token at = p->token;
        struct sg_mil_type t = sg_mil_parse_type(p);
        if (t.dtype != SG_MIL_STRING || t.rank)
            sg_mil_parse_error(p, &at, 0, "a string is expected; write string(\"..\") or \"..\"");
        sg_mil_expect(p, '(');
    }
    if (p->token.kind != SG_MIL_QUOTED_TEXT) sg_mil_unexpected(p, "a string");
    /* One byte more than the token: the closing quote, which the terminating 0 replaces. */
    char *copy = sg_mil_arena_copy(p, p->token.at, p->token.n + 1);
    size_t out = 0;
    for (size_t i = 0; copy && i < p->token.n; i++) {
        char c = p->token.at[i];
        if (c == '\\' && i + 1 < p->token.n) c = p->token.at[++i];
        if (!c) sg_mil_parse_error(p, &p->token, 0, "a string holds a zero byte");
        copy[out++] = c;
    }
    if (copy) copy[out] = 0;
    *n = out;
    sg_mil_next_token(p);
    if (wrapped) sg_mil_expect(p, ')');
    return copy ? copy : "";
}

/* Accepts only paths below the model folder. The text may be hostile and the path is later opened: no
 * absolute path, no `.` or `..` component, no empty component, no backslash. */
static void check_path(struct sg_mil_parser *p, const struct sg_mil_token *at, const char *path)
{
    static const char prefix[] = "@model_path/";
    const char *s = path;
    if (strncmp(s, prefix, sizeof prefix - 1) != 0) {
        sg_mil_parse_error(p, at, 0, "blob path \"%.80s\" does not begin with %s; store blobs below the program's folder",
                           path, prefix);
        return;
    }
    /* One component per iteration; s skips the slash between them. */
    for (s += sizeof prefix - 1;; s++) {
        size_t n = strcspn(s, "/");
        if (!n || (n == 1 && s[0] == '.') || (n == 2 && s[0] == '.' && s[1] == '.') || strcspn(s, "\\") < n) {
            sg_mil_parse_error(
                p, at, 0,
                "blob path \"%.80s\" leaves the model's folder or has an empty part; use plain names", path);
            return;
        }
        s += n;
        if (!*s) return;
    }
}

/* `BLOBFILE(path = STRING, offset = UINT64)`. The offset is that of the metadata record, not of the data
 * (constraint 15). */
static void parse_blob(struct sg_mil_parser *p, struct sg_mil_literal *l)
{
    uint64_t n;
    struct sg_mil_token at = p->token;
    sg_mil_next_token(p);
    sg_mil_expect(p, '(');
    sg_mil_expect_name(p, "path");
    sg_mil_expect(p, '=');
    at = p->token;
    l->v.blob.path = sg_mil_parse_string(p, &n);
    if (!p->failed) check_path(p, &at, l->v.blob.path);
    sg_mil_expect(p, ',');
    sg_mil_expect_name(p, "offset");
    sg_mil_expect(p, '=');
    at = p->token;
    struct sg_mil_type t = {.dtype = SG_MIL_UINT64};
    int wrapped = p->token.kind == SG_MIL_NAME; /* uint64(N) or tensor<uint64, []>(N); a bare number is allowed too */
    if (wrapped) {
        t = sg_mil_parse_type(p);
        sg_mil_expect(p, '(');
    }
    int64_t offset = parse_int(p, "an offset");
    if (t.dtype != SG_MIL_UINT64 || t.rank || offset < 0)
        sg_mil_parse_error(p, &at, 0, "a blob's offset must be a uint64 below 2^63");
    if (wrapped) sg_mil_expect(p, ')');
    l->v.blob.offset = (uint64_t)offset;
    l->kind = SG_MIL_BLOB;
    sg_mil_expect(p, ')');
}

/* `[a, b, ...]` with one number per element of the type, or one number for all elements. */
static void parse_numbers(struct sg_mil_parser *p, struct sg_mil_literal *l, const struct sg_mil_token *at,
                          uint64_t elements)
{
    const struct sg_mil_dtype_info *info = sg_mil_dtype_info((enum sg_mil_dtype)l->type.dtype);
    uint64_t n = 0;
    l->kind = SG_MIL_NUMBERS;
    if (sg_mil_accept(p, '[')) {
        /* Too many numbers are an error at the first one, so scratch memory stays bounded by the type. */
        while (!p->failed && !sg_mil_is_punct(p, ']')) {
            if (n == elements)
                sg_mil_parse_error(p, &p->token, 0, "more numbers than the type's %llu",
                                   (unsigned long long)elements);
            parse_scalar(p, info, n++);
            if (!sg_mil_accept(p, ',')) break;
        }
        sg_mil_expect(p, ']');
        if (n != elements)
            sg_mil_parse_error(p, at, 0, "%llu numbers for a type of %llu", (unsigned long long)n,
                               (unsigned long long)elements);
    } else {
        parse_scalar(p, info, n++);
    }
    if (p->failed) return;
    l->n = n; /* 1 for a single number, whatever the type's element count */
    if (info->class == SG_MIL_REAL)
        l->v.real = sg_mil_arena_copy(p, p->reals, n * sizeof *p->reals);
    else
        l->v.whole = sg_mil_arena_copy(p, p->ints, n * sizeof *p->ints);
}

/* `TYPE(VALUE)`. The size of the type is checked before the numbers are read; it bounds their count. */
const struct sg_mil_literal *sg_mil_parse_literal(struct sg_mil_parser *p)
{
    struct sg_mil_token at = p->token;
    struct sg_mil_literal l = {.type = sg_mil_parse_type(p), .line = at.line, .column = at.column};
    segue_error err;
    uint64_t elements = 1;
    if (!p->failed && l.type.buffer) sg_mil_parse_error(p, &at, 0, "a tensor_buffer cannot be written as a constant");
    if (!p->failed && sg_mil_type_size(&l.type, &elements, NULL, &err)) sg_mil_parse_error(p, &at, 0, "%s", err.text);
    /* The element type decides how the value is written. */
    sg_mil_expect(p, '(');
    if (sg_mil_is_name(p, "BLOBFILE"))
        parse_blob(p, &l);
    else if (l.type.dtype == SG_MIL_STRING) {
        if (l.type.rank) sg_mil_parse_error(p, &at, 0, "a tensor of strings; only scalar strings are supported");
        l.kind = SG_MIL_TEXT;
        if (p->token.kind != SG_MIL_QUOTED_TEXT) sg_mil_unexpected(p, "a string");
        l.v.text = sg_mil_parse_string(p, &l.n);
    } else
        parse_numbers(p, &l, &at, elements);
    sg_mil_expect(p, ')');
    return sg_mil_arena_copy(p, &l, sizeof l);
}
