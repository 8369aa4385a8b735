/* passconst.c: constant folding; see pass.h. Results are computed as an engine computes them: in fp32,
 * rounded once to fp16.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "base/num.h"
#include "unit/ane/mil/milinfer.h"
#include "unit/ane/passes/milrewrite.h"
#include "unit/ane/passes/pass.h"

enum { FOLD_MAX = 65536 }; /* elements of a folded result; larger ones would bloat the text */

/* One element of a unary operation. 0: the operation is not folded. */
static int eval_unary(const char *kind, float x, float *y)
{
    if (!strcmp(kind, "exp")) *y = expf(x);
    else if (!strcmp(kind, "abs")) *y = fabsf(x);
    else if (!strcmp(kind, "sqrt")) *y = sqrtf(x);
    else if (!strcmp(kind, "square")) *y = x * x;
    else if (!strcmp(kind, "relu")) *y = x > 0 ? x : 0;
    else if (!strcmp(kind, "identity") || !strcmp(kind, "reshape")) *y = x;
    else return 0;
    return 1;
}

/* One element of a binary operation. 0: the operation is not folded. */
static int eval_binary(const char *kind, float x, float y, float *z)
{
    if (!strcmp(kind, "add")) *z = x + y;
    else if (!strcmp(kind, "sub")) *z = x - y;
    else if (!strcmp(kind, "mul")) *z = x * y;
    else if (!strcmp(kind, "real_div")) *z = x / y;
    else if (!strcmp(kind, "maximum")) *z = x > y ? x : y;
    else if (!strcmp(kind, "minimum")) *z = x < y ? x : y;
    else return 0;
    return 1;
}

/* Index into an operand of type t for element i of a result, by NumPy broadcasting. Decomposes i from the
 * last axis on; an axis of 1 contributes nothing. */
static uint64_t operand_index(const struct sg_mil_type *t, const struct sg_mil_type *out, uint64_t i)
{
    uint64_t at = 0, stride = 1;
    for (uint32_t k = 0; k < out->rank; k++) {
        uint64_t d = (uint64_t)out->dim[out->rank - 1 - k], c = i % d;
        i /= d;
        if (k >= t->rank) continue;
        uint64_t extent = (uint64_t)t->dim[t->rank - 1 - k];
        at += extent == 1 ? 0 : c * stride;
        stride *= extent;
    }
    return at;
}

/* The fp16 literal of an argument; NULL: absent, another type, a blob, or computed at run time. Looks in
 * the new function, where operands folded earlier in this pass are constants already. */
static const struct sg_mil_literal *const_operand(struct sg_mil_rewrite *r, const struct sg_mil_op *op, const char *arg)
{
    uint32_t value = sg_mil_rewrite_arg(r, op, arg);
    if (value == SG_MIL_NONE || r->b.status) return NULL;
    const struct sg_mil_literal *l = sg_mil_value_literal(sg_mil_rewrite_built(r), value);
    return l && l->kind == SG_MIL_NUMBERS && l->type.dtype == SG_MIL_FP16 ? l : NULL;
}

/* Computes the n elements of a result into to[]. 0: not a foldable operation, or an element is not finite:
 * engines differ in inf and NaN, so such an operation is left to them. */
static int fold(const struct sg_mil_op *op, const struct sg_mil_literal *x, const struct sg_mil_literal *y,
                const struct sg_mil_type *out, uint64_t n, double *to)
{
    for (uint64_t i = 0; i < n; i++) {
        float v = 0, a = (float)sg_mil_literal_real(x, y ? operand_index(&x->type, out, i) : i);
        if (!(y ? eval_binary(op->kind, a, (float)sg_mil_literal_real(y, operand_index(&y->type, out, i)), &v)
                : eval_unary(op->kind, a, &v)))
            return 0;
        to[i] = (double)sg_f32_of_f16(sg_f16_of_f32(v));
        if (!isfinite(to[i])) return 0;
    }
    return 1;
}

/* Replaces an operation on constants by its result, otherwise copies it. Copying already names literals and
 * merges equal constants (milbuild.h); the counts here only report that. Results of the function are never
 * folded, because they must be computed by an operation (constraint 17). */
static void step(struct sg_mil_rewrite *r, const struct sg_mil_op *op)
{
    const struct sg_mil_type *out = &r->f.values[op->first].type;
    const struct sg_mil_literal *x = const_operand(r, op, "x"), *y = const_operand(r, op, "y");
    int binary = sg_mil_arg_find(op, "y") != NULL;
    uint64_t n = sg_mil_elements(out);
    double *to = NULL;
    for (uint32_t i = 0; i < op->args_n; i++) r->changes += op->args[i].kind == SG_MIL_LITERAL;
    if (x && (y || !binary) && n <= FOLD_MAX && op->outputs == 1 && out->dtype == SG_MIL_FP16 && !r->is_result[op->first] &&
        (to = sg_alloc((size_t)n * sizeof *to)) && fold(op, x, y, out, n, to)) {
        int64_t dim[SG_MIL_DIMS];
        for (uint32_t k = 0; k < out->rank; k++) dim[k] = out->dim[k];
        r->map[op->first] = sg_mil_build_real_tensor(&r->b, SG_MIL_FP16, out->rank, dim, to, n);
        r->changes++;
    } else {
        uint32_t before = sg_mil_rewrite_built(r)->values_n;
        sg_mil_rewrite_copy(r, op);
        r->changes += sg_mil_value_literal(&r->f, op->first) && sg_mil_rewrite_built(r)->values_n == before;
    }
    sg_free(to);
}

/* The copy turns literals into named constants; only the count is added. */
static void name_literals(struct sg_mil_rewrite *r, const struct sg_mil_op *op)
{
    for (uint32_t i = 0; i < op->args_n; i++) r->changes += op->args[i].kind == SG_MIL_LITERAL;
    sg_mil_rewrite_copy(r, op);
}

segue_status sg_pass_named(struct sg_mil_program *p, uint64_t *changes, segue_error *err)
{
    static const struct sg_mil_pass pass = {.step = name_literals};
    for (uint32_t k = 0; k < p->functions_n; k++) SG_TRY(sg_mil_rewrite(p, k, &pass, NULL, changes, err));
    return SEGUE_OK;
}

segue_status sg_pass_const(struct sg_mil_program *p, uint64_t *changes, segue_error *err)
{
    static const struct sg_mil_pass pass = {.step = step};
    for (uint32_t k = 0; k < p->functions_n; k++) SG_TRY(sg_mil_rewrite(p, k, &pass, NULL, changes, err));
    return SEGUE_OK;
}
