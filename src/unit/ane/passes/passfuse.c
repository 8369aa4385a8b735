/* passfuse.c: fusion; see pass.h. Every rule looks at the new values, where the operands have been
 * simplified already, so a chain of any length shrinks to one operation in a single run.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "base/hash.h"
#include "base/num.h"
#include "unit/ane/mil/milinfer.h"
#include "unit/ane/passes/milrewrite.h"
#include "unit/ane/passes/pass.h"

/* Slot of the table of computed operations. */
struct cse_entry {
    struct sg_hash hash;
    uint32_t value; /* new value number + 1; 0: free */
};
/* Context of the pass: hash table of the operations built so far, for common subexpressions. */
struct fuse {
    struct cse_entry *entries; /* [cap] */
    uint32_t cap;              /* a power of two, at least twice the number of operations */
};

/* Type of a new value. */
static const struct sg_mil_type *type_of(const struct sg_mil_rewrite *r, uint32_t value)
{
    return sg_mil_build_type(&r->b, value);
}

/* The number of an fp16 constant whose elements are all equal, rounded to fp16. *is = 0: not such a
 * constant. */
static double scalar(const struct sg_mil_rewrite *r, uint32_t value, int *is)
{
    const struct sg_mil_literal *l = r->b.status ? NULL : sg_mil_value_literal(sg_mil_rewrite_built(r), value);
    *is = l && l->kind == SG_MIL_NUMBERS && l->n == 1 && l->type.dtype == SG_MIL_FP16;
    return *is ? (double)sg_f32_of_f16(sg_f16_of_f32((float)l->v.real[0])) : 0;
}

/* 1: the result equals x: identity, a cast to the same type (the caller compares types), or arithmetic with
 * the neutral element. */
static int is_neutral(struct sg_mil_rewrite *r, const struct sg_mil_op *op, uint32_t x)
{
    static const struct { const char *kind; double with; } pairs[] = {{"mul", 1}, {"real_div", 1}, {"add", 0}, {"sub", 0}};
    uint32_t y = sg_mil_rewrite_arg(r, op, "y");
    int is;
    double v = y == SG_MIL_NONE ? 0 : scalar(r, y, &is);
    for (size_t i = 0; y != SG_MIL_NONE && i < sizeof pairs / sizeof *pairs; i++)
        if (is && !strcmp(op->kind, pairs[i].kind) && v == pairs[i].with) return 1;
    return (!strcmp(op->kind, "identity") || !strcmp(op->kind, "cast")) && x != SG_MIL_NONE;
}

/* mul(mul(x, a), b) with scalar constants becomes mul(x, a b), if a b is exact in fp16 and normal: a
 * rounded or subnormal factor would change the result. 1: rewritten; the same for the fold functions below. */
static int fold_scales(struct sg_mil_rewrite *r, const struct sg_mil_op *op, uint32_t x)
{
    uint32_t y = sg_mil_rewrite_arg(r, op, "y");
    const struct sg_mil_op *inner = sg_mil_rewrite_def(r, x, "mul");
    int a_is, b_is;
    if (strcmp(op->kind, "mul") != 0 || !inner) return 0;
    uint32_t from = sg_mil_arg_find(inner, "x")->v.ref;
    double a = scalar(r, sg_mil_arg_find(inner, "y")->v.ref, &a_is), b = scalar(r, y, &b_is), c = a * b;
    if (!a_is || !b_is || (double)sg_f32_of_f16(sg_f16_of_f32((float)c)) != c || fabs(c) < 6.103515625e-5) return 0;
    uint32_t k = sg_mil_build_real(&r->b, c);
    sg_mil_rewrite_keep_name(r, op);
    r->map[op->first] = sg_mil_build_binary(&r->b, "mul", from, k);
    r->changes++;
    return 1;
}

/* reshape(reshape(x)) becomes one reshape, or x itself when it has the shape already. */
static int fold_reshapes(struct sg_mil_rewrite *r, const struct sg_mil_op *op, uint32_t x)
{
    const struct sg_mil_op *inner = sg_mil_rewrite_def(r, x, "reshape");
    const struct sg_mil_type *out = &r->f.values[op->first].type;
    int64_t dim[SG_MIL_DIMS];
    if (strcmp(op->kind, "reshape") != 0 || !inner) return 0;
    uint32_t from = sg_mil_arg_find(inner, "x")->v.ref;
    for (uint32_t k = 0; k < out->rank; k++) dim[k] = out->dim[k];
    if (sg_mil_type_equal(type_of(r, from), out)) {
        sg_mil_rewrite_replace(r, op, from);
        return 1;
    }
    sg_mil_rewrite_keep_name(r, op);
    r->map[op->first] = sg_mil_build_reshape(&r->b, from, out->rank, dim);
    r->changes++;
    return 1;
}

/* transpose(transpose(x, q), p) becomes one transpose with the permutation q[p[k]], or x when that is the
 * identity. */
static int fold_transposes(struct sg_mil_rewrite *r, const struct sg_mil_op *op, uint32_t x)
{
    const struct sg_mil_op *inner = sg_mil_rewrite_def(r, x, "transpose");
    int64_t p[SG_MIL_DIMS], q[SG_MIL_DIMS];
    uint32_t n, m, identity = 1;
    if (strcmp(op->kind, "transpose") != 0 || !sg_mil_const_ints(&r->f, op, "perm", p, &n)) return 0;
    if (!inner || !sg_mil_const_ints(sg_mil_rewrite_built(r), inner, "perm", q, &m) || m != n) return 0;
    uint32_t from = sg_mil_arg_find(inner, "x")->v.ref;
    for (uint32_t k = 0; k < n; k++) {
        p[k] = q[p[k] < 0 ? p[k] + n : p[k]];
        identity &= p[k] == (int64_t)k;
    }
    if (identity) {
        sg_mil_rewrite_replace(r, op, from);
        return 1;
    }
    sg_mil_rewrite_keep_name(r, op);
    r->map[op->first] = sg_mil_build_transpose(&r->b, from, n, p);
    r->changes++;
    return 1;
}

/* A slice of a slice becomes one slice with the sum of both begins. A slice that lies within one part of a
 * concat becomes a slice of that part; begin is reduced by the parts before it. */
static int fold_slices(struct sg_mil_rewrite *r, const struct sg_mil_op *op, uint32_t x)
{
    const struct sg_mil_op *slice = sg_mil_rewrite_def(r, x, "slice_by_size"), *join = sg_mil_rewrite_def(r, x, "concat");
    const struct sg_mil_type *out = &r->f.values[op->first].type;
    int64_t at[SG_MIL_DIMS], found[SG_MIL_DIMS], size[SG_MIL_DIMS];
    uint32_t n, m, from = SG_MIL_NONE;
    if (strcmp(op->kind, "slice_by_size") != 0 || !sg_mil_const_ints(&r->f, op, "begin", at, &n)) return 0;
    for (uint32_t k = 0; k < n; k++) size[k] = out->dim[k];
    if (slice && sg_mil_const_ints(sg_mil_rewrite_built(r), slice, "begin", found, &m) && m == n) {
        from = sg_mil_arg_find(slice, "x")->v.ref;
        for (uint32_t k = 0; k < n; k++) at[k] += found[k];
    } else if (join && !sg_mil_const_int(sg_mil_rewrite_built(r), join, "interleave", 0)) {
        int64_t axis = sg_mil_const_int(sg_mil_rewrite_built(r), join, "axis", -1);
        const struct sg_mil_arg *list = sg_mil_arg_find(join, "values");
        for (uint32_t k = 0; axis >= 0 && list->kind == SG_MIL_LIST && k < list->n && from == SG_MIL_NONE; k++) {
            int64_t width = type_of(r, list->v.refs[k])->dim[axis];
            if (at[axis] >= width)
                at[axis] -= width;
            else if (at[axis] + size[axis] <= width)
                from = list->v.refs[k];
            else
                return 0;
        }
    }
    if (from == SG_MIL_NONE) return 0;
    if (sg_mil_type_equal(type_of(r, from), out)) {
        sg_mil_rewrite_replace(r, op, from);
        return 1;
    }
    sg_mil_rewrite_keep_name(r, op);
    r->map[op->first] = sg_mil_build_slice(&r->b, from, n, at, size);
    r->changes++;
    return 1;
}

/* Inlines the parts of concats along the same axis, up to 64 parts. Interleaved concats order their
 * elements differently and are left alone. */
static int fold_concats(struct sg_mil_rewrite *r, const struct sg_mil_op *op)
{
    const struct sg_mil_arg *list = sg_mil_arg_find(op, "values");
    uint32_t flat[64], n = 0, found = 0;
    int64_t axis = sg_mil_const_int(&r->f, op, "axis", -1);
    if (strcmp(op->kind, "concat") != 0 || axis < 0 || list->kind != SG_MIL_LIST || sg_mil_const_int(&r->f, op, "interleave", 0))
        return 0;
    for (uint32_t i = 0; i < list->n; i++) {
        const struct sg_mil_op *inner = sg_mil_rewrite_def(r, r->map[list->v.refs[i]], "concat");
        const struct sg_mil_arg *f = inner ? sg_mil_arg_find(inner, "values") : NULL;
        int same = inner && sg_mil_const_int(sg_mil_rewrite_built(r), inner, "axis", -1) == axis &&
                   f->kind == SG_MIL_LIST && !sg_mil_const_int(sg_mil_rewrite_built(r), inner, "interleave", 0);
        if (n + (same ? f->n : 1) > 64) return 0;
        for (uint32_t k = 0; same && k < f->n; k++) flat[n++] = f->v.refs[k];
        if (!same) flat[n++] = r->map[list->v.refs[i]];
        found |= (uint32_t)same;
    }
    if (!found) return 0;
    sg_mil_rewrite_keep_name(r, op);
    r->map[op->first] = sg_mil_build_concat(&r->b, flat, n, axis);
    r->changes++;
    return 1;
}

/* Extend a hash by a string and by a value number. */
static void add_text(struct sg_hash *h, const char *s) { *h = sg_hash_join(*h, sg_hash_bytes(s, strlen(s), 1)); }
static void add_value(struct sg_hash *h, uint32_t v) { *h = sg_hash_join(*h, sg_hash_bytes(&v, sizeof v, 2)); }

/* Slot of an operation by kind, argument names and new argument values: used when the same operation was
 * built before. The order of the arguments counts; passes always write the same order, so an equal
 * operation is rarely missed. 128-bit hashes are taken as equality. */
static struct cse_entry *cse_slot(struct sg_mil_rewrite *r, const struct sg_mil_op *op)
{
    struct fuse *f = r->ctx;
    struct sg_hash h = sg_hash_bytes(op->kind, strlen(op->kind), 0);
    for (uint32_t i = 0; i < op->args_n; i++) {
        const struct sg_mil_arg *a = &op->args[i];
        add_text(&h, a->name);
        if (a->kind == SG_MIL_REF) add_value(&h, r->map[a->v.ref]);
        for (uint32_t k = 0; a->kind == SG_MIL_LIST && k < a->n; k++) add_value(&h, r->map[a->v.refs[k]]);
        if (a->kind == SG_MIL_LITERAL) add_value(&h, sg_mil_build_literal(&r->b, NULL, a->v.literal));
    }
    uint32_t at = (uint32_t)h.lo & (f->cap - 1);
    while (f->entries[at].value && (f->entries[at].hash.lo != h.lo || f->entries[at].hash.hi != h.hi))
        at = (at + 1) & (f->cap - 1);
    f->entries[at].hash = h;
    return &f->entries[at];
}

/* 1: the operation has data in its attributes (const, ios16 constexpr), which cse_slot does not hash. */
static int has_data(const struct sg_mil_op *op)
{
    for (uint32_t i = 0; i < op->attrs_n; i++)
        if (strcmp(op->attrs[i].name, "name") != 0) return 1;
    return 0;
}

/* Tries, in this order: removal of an operation without effect, the folds, reuse of an equal operation. A
 * result of the function is not removed or shared, because it needs an operation with its name. */
static void step(struct sg_mil_rewrite *r, const struct sg_mil_op *op)
{
    const struct sg_mil_type *out = &r->f.values[op->first].type;
    if (op->outputs != 1 || out->buffer || has_data(op)) {
        sg_mil_rewrite_copy(r, op);
        return;
    }
    uint32_t x = sg_mil_rewrite_arg(r, op, "x");
    int same = !r->b.status && x != SG_MIL_NONE && sg_mil_type_equal(type_of(r, x), out);
    if (same && !r->is_result[op->first] &&
        (!strcmp(op->kind, "reshape") || !strcmp(op->kind, "slice_by_size") || is_neutral(r, op, x))) {
        sg_mil_rewrite_replace(r, op, x);
        return;
    }
    if (x != SG_MIL_NONE &&
        (fold_scales(r, op, x) || fold_reshapes(r, op, x) || fold_transposes(r, op, x) || fold_slices(r, op, x)))
        return;
    if (fold_concats(r, op)) return;
    struct cse_entry *s = cse_slot(r, op);
    if (s->value && !r->is_result[op->first]) {
        sg_mil_rewrite_replace(r, op, s->value - 1);
        return;
    }
    sg_mil_rewrite_copy(r, op);
    if (!s->value && !r->b.status) s->value = r->map[op->first] + 1;
}

/* The table is sized so that it stays at most half full: the pass builds at most one entry per operation. */
segue_status sg_pass_fuse(struct sg_mil_program *p, uint64_t *changes, segue_error *err)
{
    static const struct sg_mil_pass pass = {.step = step};
    segue_status status = SEGUE_OK;
    for (uint32_t k = 0; k < p->functions_n && status == SEGUE_OK; k++) {
        struct fuse ctx = {.cap = 64};
        while (ctx.cap < 2 * p->functions[k].ops_n) ctx.cap *= 2;
        ctx.entries = sg_alloc(ctx.cap * sizeof *ctx.entries);
        if (!ctx.entries) return sg_no_memory("a pass over a program", ctx.cap * sizeof *ctx.entries, err);
        status = sg_mil_rewrite(p, k, &pass, &ctx, changes, err);
        sg_free(ctx.entries);
    }
    return status;
}
