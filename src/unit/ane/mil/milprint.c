/* milprint.c: see milprint.h. Output depends only on the program and the dialect, because the text is
 * hashed to name compiled programs.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/mil/milprint.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "unit/ane/mil/milops.h"

enum { INLINE_MAX = 16 }; /* the buffer dialect writes constants of up to this many numbers inline */

/* State of one sg_mil_print. */
struct printer {
    const struct sg_mil_program *program;
    const struct sg_mil_function *f; /* function being printed */
    enum sg_mil_dialect dialect;
    struct sg_buf *out; /* remembers the first failure */
};

/* Same as "%a" but independent of the locale's decimal point. v is finite and not 0. */
static void print_hex(struct sg_buf *out, double v)
{
    char digits[16];
    int exponent, n = 0;
    double m = frexp(fabs(v), &exponent);   /* m in [0.5, 1) */
    uint64_t bits = (uint64_t)ldexp(m, 53); /* leading one and 52 fraction bits */
    bits &= ((uint64_t)1 << 52) - 1;
    /* 13 hexadecimal digits of 4 bits; n is the length without trailing zeros. */
    for (int i = 0; i < 13; i++) {
        digits[i] = "0123456789abcdef"[bits >> (48 - 4 * i) & 15];
        if (digits[i] != '0') n = i + 1;
    }
    digits[n] = 0;
    sg_buf_printf(out, "%s0x1%s%sp%+d", v < 0 ? "-" : "", n ? "." : "", digits, exponent - 1);
}

/* Small integers are written in decimal for readability, everything else in hexadecimal because that is
 * exact. */
static void print_real(struct sg_buf *out, double v)
{
    if (isnan(v))
        sg_buf_puts(out, "nan");
    else if (isinf(v))
        sg_buf_puts(out, v < 0 ? "-inf" : "inf");
    else if (v == floor(v) && fabs(v) < 1e6)
        sg_buf_printf(out, "%s%ld.0", signbit(v) ? "-" : "", labs((long)v));
    else
        print_hex(out, v);
}

/* Integers are printed by the signedness of their type: the bits of a uint64 are stored as int64_t. */
void sg_mil_print_number(struct sg_buf *out, const struct sg_mil_literal *l, uint64_t i)
{
    uint64_t at = l->n == 1 ? 0 : i;
    switch (sg_mil_dtype_info((enum sg_mil_dtype)l->type.dtype)->class) {
    case SG_MIL_REAL:
        print_real(out, l->v.real[at]);
        break;
    case SG_MIL_BOOLEAN:
        sg_buf_puts(out, l->v.whole[at] ? "true" : "false");
        break;
    case SG_MIL_UNSIGNED:
        sg_buf_printf(out, "%llu", (unsigned long long)l->v.whole[at]);
        break;
    default:
        sg_buf_printf(out, "%lld", (long long)l->v.whole[at]);
    }
}

/* Integers separated by commas. */
static void print_list(struct sg_buf *out, const int64_t *v, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) sg_buf_printf(out, i ? ", %lld" : "%lld", (long long)v[i]);
}

/* The verbose dialect writes scalars as tensor<DT, []>, the others as DT. */
static void print_type(struct printer *p, const struct sg_mil_type *t)
{
    const char *name = sg_mil_dtype_info((enum sg_mil_dtype)t->dtype)->name;
    int64_t dim[SG_MIL_DIMS];
    for (uint32_t i = 0; i < t->rank; i++) dim[i] = t->dim[i];
    if (t->buffer) {
        sg_buf_printf(p->out, "tensor_buffer<%s, shape=[", name);
        print_list(p->out, dim, t->rank);
        sg_buf_puts(p->out, "], strides=[");
        print_list(p->out, t->buffer->stride, t->rank);
        sg_buf_puts(p->out, "], interleave_factors=[");
        print_list(p->out, t->buffer->interleave, t->rank);
        sg_buf_puts(p->out, "]>");
    } else if (!t->rank && p->dialect != SG_MIL_VERBOSE)
        sg_buf_puts(p->out, name);
    else {
        sg_buf_printf(p->out, "tensor<%s, [", name);
        for (uint32_t i = 0; i < t->rank; i++) {
            if (i) sg_buf_puts(p->out, ", ");
            if (dim[i] == SG_MIL_UNKNOWN)
                sg_buf_puts(p->out, "?");
            else
                sg_buf_printf(p->out, "%lld", (long long)dim[i]);
        }
        sg_buf_puts(p->out, "]>");
    }
}

/* Quotes and backslashes are escaped with a backslash; the parser resolves that. */
static void print_string(struct sg_buf *out, const char *s)
{
    sg_buf_puts(out, "\"");
    for (; *s; s++) {
        if (*s == '"' || *s == '\\') sg_buf_puts(out, "\\");
        sg_buf_add(out, s, 1);
    }
    sg_buf_puts(out, "\"");
}

/* string("..") or tensor<string, []>(".."), by dialect. */
static void print_typed_string(struct printer *p, const char *s)
{
    struct sg_mil_type t = sg_mil_scalar(SG_MIL_STRING);
    print_type(p, &t);
    sg_buf_puts(p->out, "(");
    print_string(p->out, s);
    sg_buf_puts(p->out, ")");
}

/* A tensor whose elements are all equal (n = 1) is written with a single number, without brackets. */
static void print_literal(struct printer *p, const struct sg_mil_literal *l)
{
    /* Type of the offset of a blob reference. */
    struct sg_mil_type offset = sg_mil_scalar(SG_MIL_UINT64);
    print_type(p, &l->type);
    sg_buf_puts(p->out, "(");
    if (l->kind == SG_MIL_TEXT)
        print_string(p->out, l->v.text);
    else if (l->kind == SG_MIL_BLOB) {
        sg_buf_puts(p->out, "BLOBFILE(path = ");
        print_typed_string(p, l->v.blob.path);
        sg_buf_puts(p->out, ", offset = ");
        print_type(p, &offset);
        sg_buf_printf(p->out, "(%llu))", (unsigned long long)l->v.blob.offset);
    } else if (!l->type.rank || (l->n == 1 && sg_mil_elements(&l->type) != 1))
        sg_mil_print_number(p->out, l, 0);
    else {
        sg_buf_puts(p->out, "[");
        for (uint64_t i = 0; i < l->n && !p->out->failed; i++) {
            if (i) sg_buf_puts(p->out, ", ");
            sg_mil_print_number(p->out, l, i);
        }
        sg_buf_puts(p->out, "]");
    }
    sg_buf_puts(p->out, ")");
}

/* 1: the dialect writes this constant at its use instead of naming it. */
static int is_inline(const struct printer *p, const struct sg_mil_literal *l)
{
    return p->dialect == SG_MIL_BUFFER && l && l->kind != SG_MIL_BLOB &&
           (l->kind == SG_MIL_TEXT || l->n <= INLINE_MAX);
}

/* Name of the const that is printed for an inline literal in a dialect without inline constants:
 * RESULT_ARGUMENT_OPERATION_INDEX, with underscores appended until the function has no such name. A failure
 * is recorded in the output buffer. */
static const char *hoisted_name(const struct printer *p, const struct sg_mil_op *op, uint32_t arg,
                                char out[SG_MIL_DIMS * 48])
{
    struct sg_buf name = {0};
    sg_buf_printf(&name, "%.120s_%.60s_%u_%u", p->f->values[op->first].name, op->args[arg].name,
                  (unsigned)(op - p->f->ops), arg); /* the indices keep truncated names distinct */
    while (!name.failed && sg_mil_value_find(p->f, name.data, name.len) != SG_MIL_NONE)
        sg_buf_puts(&name, "_");
    if (name.failed || name.len >= SG_MIL_DIMS * 48) {
        if (!p->out->failed) p->out->failed = SEGUE_EMEMORY;
        out[0] = 0;
    } else
        memcpy(out, name.data, name.len + 1);
    sg_buf_free(&name);
    return out;
}

/* One `TYPE NAME = const()[...]` statement. */
static void print_const(struct printer *p, const char *name, const struct sg_mil_literal *l)
{
    sg_buf_puts(p->out, "        ");
    print_type(p, &l->type);
    sg_buf_printf(p->out, " %s = const()[name = ", name);
    print_typed_string(p, name);
    sg_buf_puts(p->out, ", val = ");
    print_literal(p, l);
    sg_buf_puts(p->out, "];\n");
}

/* `NAME = VALUE`, where a constant may be written inline, by the name of its const, or by the name hoisted
 * for it. */
static void print_arg(struct printer *p, const struct sg_mil_op *op, uint32_t i)
{
    const struct sg_mil_arg *a = &op->args[i];
    char name[SG_MIL_DIMS * 48];
    sg_buf_printf(p->out, "%s%s = ", i ? ", " : "", a->name);
    const struct sg_mil_literal *l = sg_mil_arg_literal(p->f, a);
    if (a->kind == SG_MIL_LIST) {
        sg_buf_puts(p->out, "(");
        for (uint32_t r = 0; r < a->n; r++)
            sg_buf_printf(p->out, "%s%s", r ? ", " : "", p->f->values[a->v.refs[r]].name);
        sg_buf_puts(p->out, ")");
    } else if (l && (is_inline(p, l) || (a->kind == SG_MIL_LITERAL && p->dialect == SG_MIL_BUFFER)))
        print_literal(p, l);
    else
        sg_buf_puts(p->out,
                    a->kind == SG_MIL_REF ? p->f->values[a->v.ref].name : hoisted_name(p, op, i, name));
}

/* 1: a const that is written inline at all its uses and therefore needs no statement. Lists and returns can
 * only hold names, so values in them keep their const. */
static int printed_at_uses_only(const struct printer *p, const uint8_t *listed, const struct sg_mil_op *op)
{
    return !strcmp(op->kind, "const") && is_inline(p, sg_mil_attr_find(op, "val")) && !listed[op->first];
}

/* One statement, preceded by the consts of its inline literals where the dialect needs them. The buffer
 * dialect omits the attribute `name` except on const. */
static void print_op(struct printer *p, const struct sg_mil_op *op)
{
    char name[SG_MIL_DIMS * 48];
    for (uint32_t i = 0; p->dialect != SG_MIL_BUFFER && i < op->args_n; i++)
        if (op->args[i].kind == SG_MIL_LITERAL)
            print_const(p, hoisted_name(p, op, i, name), op->args[i].v.literal);
    sg_buf_puts(p->out, "        ");
    for (uint32_t i = 0; i < op->outputs; i++) {
        if (i) sg_buf_puts(p->out, ", ");
        print_type(p, &p->f->values[op->first + i].type);
        sg_buf_printf(p->out, " %s", p->f->values[op->first + i].name);
    }
    sg_buf_printf(p->out, " = %s", op->kind);
    if (op->target) sg_buf_printf(p->out, "<%s>", op->target);
    sg_buf_puts(p->out, "(");
    for (uint32_t i = 0; i < op->args_n; i++) print_arg(p, op, i);
    sg_buf_puts(p->out, ")");
    /* The name attribute defaults to the name of the first result. */
    const struct sg_mil_literal *given = sg_mil_attr_find(op, "name");
    /* n counts the attributes that were printed, for the separators. */
    int with_name = p->dialect != SG_MIL_BUFFER || !strcmp(op->kind, "const"), n = 0;
    if (with_name) {
        sg_buf_puts(p->out, "[name = ");
        print_typed_string(p, given && given->kind == SG_MIL_TEXT ? given->v.text
                                                                  : p->f->values[op->first].name);
    }
    for (uint32_t i = 0; i < op->attrs_n; i++) {
        if (!strcmp(op->attrs[i].name, "name")) continue;
        sg_buf_printf(p->out, "%s%s = ", with_name || n++ ? ", " : "[", op->attrs[i].name);
        print_literal(p, op->attrs[i].literal);
    }
    sg_buf_puts(p->out, n || with_name ? "];\n" : ";\n");
}

/* Sets listed[v] for every value v in a list argument or in the results of the function. */
static void mark_listed(const struct sg_mil_function *f, uint8_t *listed)
{
    for (uint32_t o = 0; o < f->ops_n; o++)
        for (uint32_t i = 0; i < f->ops[o].args_n; i++)
            for (uint32_t r = 0; f->ops[o].args[i].kind == SG_MIL_LIST && r < f->ops[o].args[i].n; r++)
                listed[f->ops[o].args[i].v.refs[r]] = 1;
    for (uint32_t r = 0; r < f->returns_n; r++) listed[f->returns[r]] = 1;
}

/* The target of the function is kept in its original dialect; for another dialect it becomes that dialect's
 * usual target. */
static segue_status print_function(struct printer *p, segue_error *err)
{
    const struct sg_mil_function *f = p->f;
    uint8_t *listed = sg_alloc(f->values_n + 1); /* one flag per value */
    if (!listed) return sg_no_memory("MIL text", f->values_n, err);
    mark_listed(f, listed);
    /* ios16 is the target that compiles on the oldest systems; the other dialects need ios18 operations. */
    const char *target = p->dialect == p->program->dialect && f->target ? f->target
                         : p->dialect == SG_MIL_VERBOSE                 ? "ios16"
                                                                        : "ios18";
    sg_buf_printf(p->out, "    func %s<%s>(", f->name, target);
    for (uint32_t i = 0; i < f->params_n; i++) {
        if (i) sg_buf_puts(p->out, ", ");
        print_type(p, &f->values[i].type);
        sg_buf_printf(p->out, " %s", f->values[i].name);
    }
    sg_buf_puts(p->out, ") {\n");
    for (uint32_t o = 0; o < f->ops_n && !p->out->failed; o++)
        if (!printed_at_uses_only(p, listed, &f->ops[o])) print_op(p, &f->ops[o]);
    sg_buf_puts(p->out, "    } -> (");
    for (uint32_t r = 0; r < f->returns_n; r++)
        sg_buf_printf(p->out, "%s%s", r ? ", " : "", f->values[f->returns[r]].name);
    sg_buf_puts(p->out, ");\n");
    sg_free(listed);
    return SEGUE_OK;
}

/* `[buildInfo = dict<..>({..})]`. The default entries are texts that the compiler is known to accept; it
 * checks the syntax but not the values. */
static void print_info(struct printer *p)
{
    static const struct sg_mil_pair default_info[] = {{"coremlc-component-MIL", "3510.2.1"},
                                               {"coremlc-version", "3505.4.1"},
                                               {"coremltools-component-milinternal", ""},
                                               {"coremltools-version", "9.0"}};
    int verbose = p->dialect == SG_MIL_VERBOSE;
    const struct sg_mil_pair *info = p->program->info_n ? p->program->info : verbose ? default_info + 1 : default_info;
    uint32_t n = p->program->info_n ? p->program->info_n : verbose ? 1 : 4;
    const char *type = verbose ? "tensor<string, []>" : "string";
    sg_buf_printf(p->out, "[buildInfo = dict<%s, %s>({", type, type);
    for (uint32_t i = 0; i < n; i++) {
        sg_buf_puts(p->out, i ? ", {" : "{");
        print_string(p->out, info[i].key);
        sg_buf_puts(p->out, ", ");
        print_string(p->out, info[i].value);
        sg_buf_puts(p->out, "}");
    }
    sg_buf_puts(p->out, "})]\n");
}

/* The minor version of the program is kept in its original dialect; another dialect has a fixed one. */
segue_status sg_mil_print(const struct sg_mil_program *program, enum sg_mil_dialect dialect,
                          struct sg_buf *out, segue_error *err)
{
    struct printer p = {program, NULL, dialect, out};
    uint32_t minor = dialect == program->dialect ? program->minor : dialect == SG_MIL_VERBOSE ? 0 : 3;
    sg_buf_printf(out, "program(1.%u)\n", minor);
    if (dialect != SG_MIL_BUFFER) print_info(&p);
    sg_buf_puts(out, "{\n");
    for (uint32_t i = 0; i < program->functions_n; i++) {
        p.f = &program->functions[i];
        SG_TRY(print_function(&p, err));
    }
    sg_buf_puts(out, "}\n");
    if (!out->failed) return SEGUE_OK;
    return sg_fail(err, out->failed, "MIL text: printing a program: %s",
                   out->failed == SEGUE_ELIMIT ? "the text exceeds its limit; split the program"
                                               : "out of memory; free some memory");
}
