/* passlegal.c: legalising: see pass.h. A rule is a function: 1 when it wrote the operation in another way.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "unit/ane/mil/milinfer.h"
#include "unit/ane/passes/milrewrite.h"
#include "unit/ane/passes/pass.h"

#define EXP_MAX 11.0 /* e^11 < 65504; engines overflow from 11.094 */

typedef struct sg_mil_rewrite rewrite;
typedef const struct sg_mil_op operation;

static uint32_t scalar(rewrite *r, double v) { return sg_mil_build_real(&r->b, v); }
static uint32_t binary(rewrite *r, const char *kind, uint32_t x, uint32_t y) { return sg_mil_build_binary(&r->b, kind, x, y); }
static const struct sg_mil_type *type_of(rewrite *r, uint32_t value) { return sg_mil_build_type(&r->b, value); }

/* The last link of what replaces an operation bears its name. */
static int emit_last(rewrite *r, operation *op, const char *kind, uint32_t x, uint32_t y)
{
    sg_mil_rewrite_keep_name(r, op);
    r->map[op->first] = binary(r, kind, x, y);
    r->changes++;
    return 1;
}

/* --- activations, written from exp: engines take sigmoid, tanh, silu and gelu from coarse tables --- */

/* 1 + e^-x, the argument bounded so that nothing overflows. */
static uint32_t one_plus_exp_neg(rewrite *r, uint32_t x)
{
    uint32_t n = binary(r, "minimum", binary(r, "mul", x, scalar(r, -1)), scalar(r, EXP_MAX));
    return binary(r, "add", sg_mil_build_unary(&r->b, "exp", n), scalar(r, 1));
}

/* gelu's inner polynomial, 2 sqrt(2/pi) (x + 0.044715 x^3); beyond |x| = 10 the sigmoid is 0 or 1 anyway. */
static uint32_t gelu_inner(rewrite *r, uint32_t x)
{
    const double slope = 1.5957691216057308;
    uint32_t c = binary(r, "maximum", binary(r, "minimum", x, scalar(r, 10)), scalar(r, -10)), square = binary(r, "mul", c, c);
    return binary(r, "mul", c, binary(r, "add", binary(r, "mul", square, scalar(r, slope * 0.044715)), scalar(r, slope)));
}

static int gelu(rewrite *r, operation *op, uint32_t x)
{
    const char *mode = sg_mil_const_text(&r->f, op, "mode");
    if (mode && !strcmp(mode, "TANH_APPROXIMATION")) return emit_last(r, op, "real_div", x, one_plus_exp_neg(r, gelu_inner(r, x)));
    if (mode && !strcmp(mode, "SIGMOID_APPROXIMATION"))
        return emit_last(r, op, "real_div", x, one_plus_exp_neg(r, binary(r, "mul", x, scalar(r, 1.702))));
    uint32_t y = sg_mil_build_unary(&r->b, "erf", binary(r, "mul", x, scalar(r, 0.70710678118654752)));
    return emit_last(r, op, "mul", binary(r, "mul", x, scalar(r, 0.5)), binary(r, "add", y, scalar(r, 1)));
}

static int activation(rewrite *r, operation *op, uint32_t x)
{
    if (!strcmp(op->kind, "silu")) return emit_last(r, op, "real_div", x, one_plus_exp_neg(r, x)); /* one rounding fewer than x s(x) */
    if (!strcmp(op->kind, "sigmoid")) return emit_last(r, op, "real_div", scalar(r, 1), one_plus_exp_neg(r, x));
    if (!strcmp(op->kind, "gelu")) return gelu(r, op, x);
    if (strcmp(op->kind, "tanh") != 0) return 0;
    uint32_t s = binary(r, "real_div", scalar(r, 1), one_plus_exp_neg(r, binary(r, "mul", x, scalar(r, 2)))); /* 2 s(2x) - 1 */
    return emit_last(r, op, "sub", binary(r, "mul", s, scalar(r, 2)), scalar(r, 1));
}

/* --- arithmetic that has no path, or none without an argument --- */

static int arithmetic(rewrite *r, operation *op, uint32_t x)
{
    int bare = !sg_mil_arg_find(op, "epsilon");
    if (!strcmp(op->kind, "neg")) return emit_last(r, op, "mul", x, scalar(r, -1));
    if (!strcmp(op->kind, "reciprocal") || (!strcmp(op->kind, "inverse") && bare))
        return emit_last(r, op, "real_div", scalar(r, 1), x);
    if (!strcmp(op->kind, "rsqrt") && bare) return emit_last(r, op, "pow", x, scalar(r, -0.5));
    if (strcmp(op->kind, "log") != 0 || !bare) return 0;
    uint32_t least = scalar(r, 0x1p-24);
    struct sg_mil_operand args[2] = {{.name = "x", .value = x}, {.name = "epsilon", .value = least}};
    sg_mil_rewrite_keep_name(r, op);
    r->map[op->first] = sg_mil_build_op(&r->b, "log", args, 2, 1);
    r->changes++;
    return 1;
}

/* The sum over all axes at once, then one product: reduce_mean fails on some systems (constraint 42). */
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

/* --- products --- */

/* A bias [n] as [1, n, 1, 1], its numbers where they lie. */
static uint32_t bias_column(rewrite *r, operation *op, int64_t n)
{
    const struct sg_mil_literal *l = sg_mil_arg_literal(&r->f, sg_mil_arg_find(op, "bias"));
    if (!l) return sg_mil_build_reshape(&r->b, sg_mil_rewrite_arg(r, op, "bias"), 4, (int64_t[]){1, n, 1, 1});
    struct sg_mil_literal shaped = *l;
    shaped.type = sg_mil_tensor((enum sg_mil_dtype)l->type.dtype, 4, (int64_t[]){1, n, 1, 1});
    return sg_mil_build_literal(&r->b, NULL, &shaped);
}

/* Without its bias, which is added; arguments in full (constraint 12). */
static int convolution(rewrite *r, operation *op, uint32_t x)
{
    if (strcmp(op->kind, "conv") != 0 || !sg_mil_arg_find(op, "bias")) return 0;
    struct sg_mil_operand args[8] = {{.name = "x", .value = x}};
    uint32_t n = 1;
    for (uint32_t i = 0; i < op->args_n && n < 8; i++)
        if (strcmp(op->args[i].name, "bias") != 0 && strcmp(op->args[i].name, "x") != 0)
            args[n++] = (struct sg_mil_operand){.name = op->args[i].name, .value = sg_mil_rewrite_arg(r, op, op->args[i].name)};
    uint32_t y = sg_mil_build_op(&r->b, "conv", args, n, 1);
    return emit_last(r, op, "add", y, bias_column(r, op, type_of(r, y)->dim[1]));
}

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

/* softmax(q k^T / sqrt(d) + mask) v; engines leave the mask of the operation out (constraint 14). */
static int attention(rewrite *r, operation *op)
{
    if (strcmp(op->kind, "scaled_dot_product_attention") != 0) return 0;
    uint32_t q = sg_mil_rewrite_arg(r, op, "query"), k = sg_mil_rewrite_arg(r, op, "key"), mask = sg_mil_rewrite_arg(r, op, "attn_mask");
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

/* --- moving --- */

/* Windows instead: split fails beside products (constraint 10). */
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

/* One value is itself; the axis counts from the front, interleave is said (constraint 9). */
static int concat(rewrite *r, operation *op)
{
    if (strcmp(op->kind, "concat") != 0) return 0;
    const struct sg_mil_arg *list = sg_mil_arg_find(op, "values");
    int64_t axis = sg_mil_const_int(&r->f, op, "axis", 0);
    int whole = sg_mil_arg_find(op, "interleave") != NULL;
    uint32_t values[64];
    if (list->kind != SG_MIL_LIST || list->n > 64 || (axis >= 0 && whole && list->n > 1) ||
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
