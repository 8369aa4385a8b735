/* passlegal.c: legalization; see pass.h. Each rule is a function that replaces one kind of operation and
 * returns 1, or returns 0 when it does not apply.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "unit/ane/mil/milinfer.h"
#include "unit/ane/passes/milrewrite.h"
#include "unit/ane/passes/pass.h"

#define EXP_MAX 11.0 /* e^11 = 59874 fits fp16; engines overflow from 11.094 */

/* Short names for the rules below. */
typedef struct sg_mil_rewrite rewrite;
typedef const struct sg_mil_op operation;

/* An fp16 scalar constant, a binary operation, and the type of a new value. */
static uint32_t scalar(rewrite *r, double v) { return sg_mil_build_real(&r->b, v); }
static uint32_t binary(rewrite *r, const char *kind, uint32_t x, uint32_t y) { return sg_mil_build_binary(&r->b, kind, x, y); }
static const struct sg_mil_type *type_of(rewrite *r, uint32_t value) { return sg_mil_build_type(&r->b, value); }

/* Builds the last operation of a replacement: it gets the name of the replaced one. Returns 1 for the rule
 * to return. */
static int emit_last(rewrite *r, operation *op, const char *kind, uint32_t x, uint32_t y)
{
    sg_mil_rewrite_keep_name(r, op);
    r->map[op->first] = binary(r, kind, x, y);
    r->changes++;
    return 1;
}

/* Activations are built from exp, because engines compute sigmoid, tanh, silu and gelu by coarse tables (33
 * knots). This one is 1 + e^-x. The exponent is limited so that fp16 does not overflow. */
static uint32_t one_plus_exp_neg(rewrite *r, uint32_t x)
{
    uint32_t n = binary(r, "minimum", binary(r, "mul", x, scalar(r, -1)), scalar(r, EXP_MAX));
    return binary(r, "add", sg_mil_build_unary(&r->b, "exp", n), scalar(r, 1));
}

/* Argument of the sigmoid in the tanh form of gelu: 2 sqrt(2/pi) (x + 0.044715 x^3). Beyond |x| = 10 the
 * sigmoid is 0 or 1 in fp16; the limit keeps x^3 in range. */
static uint32_t gelu_inner(rewrite *r, uint32_t x)
{
    const double slope = 1.5957691216057308;
    uint32_t c = binary(r, "maximum", binary(r, "minimum", x, scalar(r, 10)), scalar(r, -10)), square = binary(r, "mul", c, c);
    return binary(r, "mul", c, binary(r, "add", binary(r, "mul", square, scalar(r, slope * 0.044715)), scalar(r, slope)));
}

/* TANH_APPROXIMATION and SIGMOID_APPROXIMATION become x / (1 + e^-u); the exact form becomes x/2 (1 + erf(x
 * / sqrt 2)). */
static int gelu(rewrite *r, operation *op, uint32_t x)
{
    const char *mode = sg_mil_const_text(&r->f, op, "mode");
    if (mode && !strcmp(mode, "TANH_APPROXIMATION"))
        return emit_last(r, op, "real_div", x, one_plus_exp_neg(r, gelu_inner(r, x)));
    if (mode && !strcmp(mode, "SIGMOID_APPROXIMATION"))
        return emit_last(r, op, "real_div", x, one_plus_exp_neg(r, binary(r, "mul", x, scalar(r, 1.702))));
    uint32_t y = sg_mil_build_unary(&r->b, "erf", binary(r, "mul", x, scalar(r, 0.70710678118654752)));
    return emit_last(r, op, "mul", binary(r, "mul", x, scalar(r, 0.5)), binary(r, "add", y, scalar(r, 1)));
}

/* silu(x) = x / (1 + e^-x), which has one rounding less than x sigmoid(x); tanh(x) = 2 sigmoid(2x) - 1. */
static int activation(rewrite *r, operation *op, uint32_t x)
{
    if (!strcmp(op->kind, "silu")) return emit_last(r, op, "real_div", x, one_plus_exp_neg(r, x));
    if (!strcmp(op->kind, "sigmoid")) return emit_last(r, op, "real_div", scalar(r, 1), one_plus_exp_neg(r, x));
    if (!strcmp(op->kind, "gelu")) return gelu(r, op, x);
    if (strcmp(op->kind, "tanh") != 0) return 0;
    uint32_t s = binary(r, "real_div", scalar(r, 1), one_plus_exp_neg(r, binary(r, "mul", x, scalar(r, 2))));
    return emit_last(r, op, "sub", binary(r, "mul", s, scalar(r, 2)), scalar(r, 1));
}

/* Operations that do not compile at all (constraint 10: neg, reciprocal) or not without epsilon (constraint
 * 11: inverse, rsqrt, log). log gets the smallest fp16 subnormal, which is negligible for normal numbers. */
static int arithmetic(rewrite *r, operation *op, uint32_t x)
{
    int no_epsilon = !sg_mil_arg_find(op, "epsilon");
    if (!strcmp(op->kind, "neg")) return emit_last(r, op, "mul", x, scalar(r, -1));
    if (!strcmp(op->kind, "reciprocal") || (!strcmp(op->kind, "inverse") && no_epsilon))
        return emit_last(r, op, "real_div", scalar(r, 1), x);
    if (!strcmp(op->kind, "rsqrt") && no_epsilon) return emit_last(r, op, "pow", x, scalar(r, -0.5));
    if (strcmp(op->kind, "log") != 0 || !no_epsilon) return 0;
    uint32_t epsilon = scalar(r, 0x1p-24);
    struct sg_mil_operand args[2] = {{.name = "x", .value = x}, {.name = "epsilon", .value = epsilon}};
    sg_mil_rewrite_keep_name(r, op);
    r->map[op->first] = sg_mil_build_op(&r->b, "log", args, 2, 1);
    r->changes++;
    return 1;
}

/* reduce_mean becomes reduce_sum and a multiplication by 1/n: reduce_mean does not compile on some systems
 * (constraint 42). */
static int mean(rewrite *r, operation *op, uint32_t x)
{
    if (strcmp(op->kind, "reduce_mean") != 0) return 0;
    const struct sg_mil_type in = *type_of(r, x);
    uint32_t axes = sg_mil_const_axes(&r->f, op, in.rank);
    double n = 1;
    for (uint32_t k = 0; k < in.rank; k++) n *= axes >> k & 1 ? in.dim[k] : 1;
    struct sg_mil_operand args[3] = {{.name = "x", .value = x}};
    int64_t list[SG_MIL_DIMS];
    uint32_t count = 0;
    for (uint32_t k = 0; k < in.rank; k++)
        if (axes >> k & 1) list[count++] = k;
    args[1] = (struct sg_mil_operand){.name = "axes", .value = sg_mil_build_ints(&r->b, list, count)};
    args[2] = (struct sg_mil_operand){
        .name = "keep_dims", .value = sg_mil_build_bool(&r->b, sg_mil_const_int(&r->f, op, "keep_dims", 0) != 0)};
    return emit_last(r, op, "mul", sg_mil_build_op(&r->b, "reduce_sum", args, 3, 1), scalar(r, 1 / n));
}

/* A bias [n] as [1, n, 1, 1]. A constant only changes its type and shares its numbers; a computed bias is
 * reshaped. */
static uint32_t bias_column(rewrite *r, operation *op, int64_t n)
{
    const struct sg_mil_literal *l = sg_mil_arg_literal(&r->f, sg_mil_arg_find(op, "bias"));
    if (!l) return sg_mil_build_reshape(&r->b, sg_mil_rewrite_arg(r, op, "bias"), 4, (int64_t[]){1, n, 1, 1});
    struct sg_mil_literal shaped = *l;
    shaped.type = sg_mil_tensor((enum sg_mil_dtype)l->type.dtype, 4, (int64_t[]){1, n, 1, 1});
    return sg_mil_build_literal(&r->b, NULL, &shaped);
}

/* A conv with a bias becomes a conv and an addition (constraint 12). */
static int convolution(rewrite *r, operation *op, uint32_t x)
{
    if (strcmp(op->kind, "conv") != 0 || !sg_mil_arg_find(op, "bias")) return 0;
    struct sg_mil_operand args[8] = {{.name = "x", .value = x}};
    uint32_t n = 1;
    for (uint32_t i = 0; i < op->args_n && n < 8; i++)
        if (strcmp(op->args[i].name, "bias") != 0 && strcmp(op->args[i].name, "x") != 0)
            args[n++] = (struct sg_mil_operand){.name = op->args[i].name,
                                                .value = sg_mil_rewrite_arg(r, op, op->args[i].name)};
    uint32_t y = sg_mil_build_op(&r->b, "conv", args, n, 1);
    return emit_last(r, op, "add", y, bias_column(r, op, type_of(r, y)->dim[1]));
}

/* linear becomes matmul with the transposed weight, and an addition of the bias. */
static int linear(rewrite *r, operation *op, uint32_t x)
{
    if (strcmp(op->kind, "linear") != 0) return 0;
    uint32_t bias = sg_mil_rewrite_arg(r, op, "bias"), w = sg_mil_rewrite_arg(r, op, "weight");
    if (bias == SG_MIL_NONE) sg_mil_rewrite_keep_name(r, op);
    uint32_t y = sg_mil_build_matmul(&r->b, x, w, 0, 1);
    r->map[op->first] = y;
    r->changes++;
    return bias == SG_MIL_NONE ? 1 : emit_last(r, op, "add", y, bias);
}

/* scaled_dot_product_attention becomes softmax(q k^T / sqrt(d) + mask) v from separate operations, because
 * engines ignore its mask (constraint 14). q is scaled before the product, which keeps the scores small. */
static int attention(rewrite *r, operation *op)
{
    if (strcmp(op->kind, "scaled_dot_product_attention") != 0) return 0;
    uint32_t q = sg_mil_rewrite_arg(r, op, "query"), k = sg_mil_rewrite_arg(r, op, "key");
    uint32_t mask = sg_mil_rewrite_arg(r, op, "attn_mask");
    const struct sg_mil_type *t = type_of(r, q);
    int64_t axis = t->rank - 1;
    double d = r->b.status ? 1 : (double)t->dim[axis];
    uint32_t scores = sg_mil_build_matmul(&r->b, binary(r, "mul", q, scalar(r, 1 / sqrt(d))), k, 0, 1);
    if (mask != SG_MIL_NONE) scores = binary(r, "add", scores, mask);
    uint32_t probs = sg_mil_build_softmax(&r->b, scores, axis), v = sg_mil_rewrite_arg(r, op, "value");
    sg_mil_rewrite_keep_name(r, op);
    r->map[op->first] = sg_mil_build_matmul(&r->b, probs, v, 0, 0);
    r->changes++;
    return 1;
}

/* split becomes one slice per result: it does not compile in a program with matmul and softmax (constraint
 * 10). */
static int split(rewrite *r, operation *op, uint32_t x)
{
    if (strcmp(op->kind, "split") != 0) return 0;
    int64_t axis = sg_mil_const_int(&r->f, op, "axis", 0), at[SG_MIL_DIMS] = {0}, size[SG_MIL_DIMS];
    for (uint32_t i = 0; i < op->outputs; i++) {
        const struct sg_mil_value *v = &r->f.values[op->first + i];
        if (axis < 0) axis += v->type.rank;
        for (uint32_t k = 0; k < v->type.rank; k++) size[k] = v->type.dim[k];
        sg_mil_build_name(&r->b, v->name);
        r->map[op->first + i] = sg_mil_build_slice(&r->b, x, v->type.rank, at, size);
        at[axis] += size[axis];
    }
    r->changes++;
    return 1;
}

/* Constraint 9: a concat of one value becomes that value; a negative axis is counted from the front; a
 * missing interleave is added. Lists of more than 64 values are left as they are. */
static int concat(rewrite *r, operation *op)
{
    if (strcmp(op->kind, "concat") != 0) return 0;
    const struct sg_mil_arg *list = sg_mil_arg_find(op, "values");
    int64_t axis = sg_mil_const_int(&r->f, op, "axis", 0);
    int complete = sg_mil_arg_find(op, "interleave") != NULL;
    uint32_t values[64];
    if (list->kind != SG_MIL_LIST || list->n > 64 || (axis >= 0 && complete && list->n > 1) ||
        sg_mil_const_int(&r->f, op, "interleave", 0))
        return 0;
    for (uint32_t i = 0; i < list->n; i++) values[i] = r->map[list->v.refs[i]];
    if (list->n == 1) {
        sg_mil_rewrite_replace(r, op, values[0]);
        return 1;
    }
    sg_mil_rewrite_keep_name(r, op);
    r->map[op->first] = sg_mil_build_concat(&r->b, values, list->n, axis < 0 ? axis + r->f.values[op->first].type.rank : axis);
    r->changes++;
    return 1;
}

/* Constants are copied first: they have no argument x and must not reach the rules. */
static void step(rewrite *r, operation *op)
{
    if (sg_mil_value_literal(&r->f, op->first)) {
        sg_mil_rewrite_copy(r, op);
        return;
    }
    uint32_t x = sg_mil_rewrite_arg(r, op, "x");
    if (attention(r, op) || concat(r, op)) return;
    if (x != SG_MIL_NONE && (activation(r, op, x) || arithmetic(r, op, x) || mean(r, op, x) || convolution(r, op, x) ||
                             linear(r, op, x) || split(r, op, x)))
        return;
    sg_mil_rewrite_copy(r, op);
}

segue_status sg_pass_legal(struct sg_mil_program *p, uint64_t *changes, segue_error *err)
{
    static const struct sg_mil_pass pass = {.step = step};
    for (uint32_t k = 0; k < p->functions_n; k++) SG_TRY(sg_mil_rewrite(p, k, &pass, NULL, changes, err));
    return SEGUE_OK;
}
