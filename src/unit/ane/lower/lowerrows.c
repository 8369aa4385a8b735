/* lowerrows.c: operations that remember nothing, as MIL.
 * SPDX-License-Identifier: MIT */
#include <math.h>

#include "unit/ane/lower/lower.h"
#include "unit/ane/lower/lowerrange.h"

#define LEAST 0.000244140625      /* 2^-12 */
#define LEAST_SQUARE 6.103515625e-5

/* By name: the pass that legalises writes them as engines take them. */
uint32_t sg_ane_act(struct sg_ane_lower *l, enum sg_act act, uint32_t x)
{
    static const char *const modes[] = {[SG_ACT_GELU] = "EXACT", [SG_ACT_GELU_TANH] = "TANH_APPROXIMATION",
                                        [SG_ACT_GELU_QUICK] = "SIGMOID_APPROXIMATION"};
    struct sg_mil_operand gelu[2] = {{.name = "x", .value = x}, {.name = "mode"}};
    uint32_t y;
    switch (act) {
    case SG_ACT_SILU: return SG_ANE_UN("silu", x);
    case SG_ACT_GELU:
    case SG_ACT_GELU_TANH:
    case SG_ACT_GELU_QUICK:
        gelu[1].value = sg_mil_build_word(&l->b, modes[act]);
        return sg_mil_build_op(&l->b, "gelu", gelu, 2, 1);
    case SG_ACT_RELU: return SG_ANE_UN("relu", x);
    case SG_ACT_RELU2:
        y = SG_ANE_UN("relu", x);
        return SG_ANE_BIN("mul", y, y);
    case SG_ACT_SIGMOID: return SG_ANE_UN("sigmoid", x);
    case SG_ACT_TANH: return SG_ANE_UN("tanh", x);
    default: return x;
    }
}

/* x is divided by its largest number first: squares then lie in [0, 1], whatever the residual stream has grown
 * to. eps is divided likewise. */
uint32_t sg_ane_unit_length(struct sg_ane_lower *l, uint32_t x, int64_t axis, double share, double eps, int centred)
{
    uint32_t most = sg_mil_build_reduce(&l->b, "reduce_max", SG_ANE_UN("abs", x), axis);
    uint32_t inverse = SG_ANE_BIN("real_div", SG_ANE_NUM(1), SG_ANE_BIN("maximum", most, SG_ANE_NUM(LEAST)));
    uint32_t y = SG_ANE_BIN("mul", x, inverse);
    if (centred) {
        uint32_t sum = sg_mil_build_reduce(&l->b, "reduce_sum", y, axis);
        y = SG_ANE_BIN("sub", y, SG_ANE_BIN("mul", sum, SG_ANE_NUM(share)));
    }
    uint32_t squares = sg_mil_build_reduce(&l->b, "reduce_sum", SG_ANE_BIN("mul", y, y), axis);
    uint32_t e = SG_ANE_BIN("mul", inverse, SG_ANE_NUM(sqrt(eps)));
    uint32_t sum = SG_ANE_BIN("add", SG_ANE_BIN("mul", squares, SG_ANE_NUM(share)), SG_ANE_BIN("mul", e, e));
    sum = SG_ANE_BIN("maximum", sum, SG_ANE_NUM(LEAST_SQUARE));
    return SG_ANE_BIN("mul", y, SG_ANE_BIN("pow", sum, SG_ANE_NUM(-0.5)));
}

static uint32_t norm(struct sg_ane_lower *l, const struct sg_op *op)
{
    const struct sg_norm *n = &op->u.norm;
    int64_t width = op->in[0].width, group = width / n->groups, axis = n->groups > 1 ? 2 : 1;
    int64_t own[4] = {1, n->groups > 1 ? 1 : group, n->groups > 1 ? group : 1, 1};
    uint32_t x = sg_ane_operand_lying(l, &op->in[0]);
    double eps = ldexp((double)n->eps, -2 * sg_ane_shift(l, op->in[0].value)); /* the rest is the same for x and x / 2^k */
    if (n->groups > 1) x = sg_mil_build_reshape(&l->b, x, 4, (int64_t[]){1, n->groups, group, l->s});
    uint32_t y = sg_ane_unit_length(l, x, axis, 1.0 / (double)group, eps, n->kind == SG_NORM_LAYER);
    if (n->weight.tensor >= 0)
        y = SG_ANE_BIN("mul", y, sg_ane_weight(l, &n->weight, n->plus_one ? SG_ANE_PLUS_ONE : SG_ANE_AS_IS, 4, own));
    if (n->bias.tensor >= 0) y = SG_ANE_BIN("add", y, sg_ane_weight(l, &n->bias, SG_ANE_AS_IS, 4, own));
    if (n->groups > 1) y = sg_mil_build_reshape(&l->b, y, 4, (int64_t[]){1, width, 1, l->s});
    if (op->in[1].value < 0) return y;
    return SG_ANE_BIN("mul", y, sg_ane_act(l, SG_ACT_SILU, sg_ane_operand(l, &op->in[1])));
}

/* The product alone; the first of those that share a convolution makes it for all. */
static uint32_t product(struct sg_ane_lower *l, const struct sg_op *op, uint32_t x)
{
    uint32_t own = (uint32_t)(op - l->g->ops), list[SG_ANE_MERGED], n = sg_ane_merged(l->g, l->part, own, list);
    struct sg_weight weights[SG_ANE_MERGED];
    int64_t channels = 0, at = 0;
    if (l->sliced[own] != SG_MIL_NONE) return l->sliced[own];
    for (uint32_t i = 0; i < n; i++) {
        weights[i] = l->g->ops[list[i]].u.linear.weight;
        channels += weights[i].rows;
    }
    uint32_t w = sg_ane_weights(l, weights, n, SG_ANE_AS_IS, SG_ANE_SHAPE(channels, op->in[0].width, 1, 1));
    uint32_t y = sg_mil_build_conv(&l->b, x, w, 1);
    for (uint32_t i = 0; i < n; at += weights[i++].rows) l->sliced[list[i]] = sg_ane_channels(l, y, at, weights[i].rows);
    return l->sliced[own];
}

static uint32_t linear(struct sg_ane_lower *l, const struct sg_op *op)
{
    const struct sg_linear *p = &op->u.linear;
    int64_t n = p->weight.rows;
    int inner = l->part->range ? l->part->range->inner[op - l->g->ops] : 0, out = sg_ane_shift(l, op->out);
    int in = sg_ane_shift(l, op->in[0].value);
    uint32_t x = sg_ane_move_shift(l, sg_ane_operand_lying(l, &op->in[0]), in, in + inner);
    uint32_t y = sg_ane_lower_lora(l, op, x, product(l, op, x));
    y = sg_ane_move_shift(l, y, in + inner, out);
    if (p->bias.tensor >= 0) {
        uint32_t bias = sg_ane_weight(l, &p->bias, SG_ANE_AS_IS, SG_ANE_SHAPE(1, n, 1, 1));
        y = SG_ANE_BIN("add", y, sg_ane_move_shift(l, bias, 0, out));
    }
    return op->in[1].value < 0 ? y : SG_ANE_BIN("add", y, sg_ane_operand_at(l, &op->in[1], out));
}

static uint32_t rows_of(struct sg_ane_lower *l, uint32_t x, int64_t at, int64_t n)
{
    const struct sg_mil_type *t = sg_mil_build_type(&l->b, x);
    int64_t begin[4] = {0, 0, at, 0}, size[4] = {1, t->dim[1], n, t->dim[3]};
    return sg_mil_build_slice(&l->b, x, 4, begin, size);
}

/* Halves: (a, b) -> (a cos - b sin, b cos + a sin); what is not rotated passes. */
static uint32_t rope(struct sg_ane_lower *l, const struct sg_op *op)
{
    const struct sg_rope *r = &op->u.rope;
    int64_t pairs = l->g->ropes[r->table].pairs, width = r->head_width, at = l->info->rope[r->table];
    int64_t table[4] = {1, 1, pairs, l->s};
    uint32_t x = sg_mil_build_reshape(&l->b, sg_ane_operand(l, &op->in[0]), 4, (int64_t[]){1, r->heads, width, l->s});
    uint32_t cosine = sg_mil_build_reshape(&l->b, sg_ane_channels(l, l->info_rows, at, pairs), 4, table);
    uint32_t sine = sg_mil_build_reshape(&l->b, sg_ane_channels(l, l->info_rows, at + pairs, pairs), 4, table);
    uint32_t a = rows_of(l, x, 0, pairs), b = rows_of(l, x, pairs, pairs);
    const char *minus = r->sign < 0 ? "add" : "sub", *plus = r->sign < 0 ? "sub" : "add";
    uint32_t list[3] = {SG_ANE_BIN(minus, SG_ANE_BIN("mul", a, cosine), SG_ANE_BIN("mul", b, sine)),
                        SG_ANE_BIN(plus, SG_ANE_BIN("mul", b, cosine), SG_ANE_BIN("mul", a, sine))};
    uint32_t n = 2;
    if (width > 2 * pairs) list[n++] = rows_of(l, x, 2 * pairs, width - 2 * pairs);
    uint32_t y = sg_mil_build_concat(&l->b, list, n, 2);
    return sg_mil_build_reshape(&l->b, y, 4, (int64_t[]){1, r->heads * width, 1, l->s});
}

static uint32_t scale(struct sg_ane_lower *l, const struct sg_op *op)
{
    const struct sg_weight *w = &op->u.scale.weight;
    uint32_t x = sg_ane_operand(l, &op->in[0]);
    if (w->tensor < 0) return SG_ANE_BIN("mul", x, SG_ANE_NUM((double)op->u.scale.value));
    const struct sg_tensor *t = l->g->tensors[w->tensor];
    return SG_ANE_BIN("mul", x, sg_ane_weight(l, w, SG_ANE_AS_IS, SG_ANE_SHAPE(1, (int64_t)(t->rows * t->cols), 1, 1)));
}

uint32_t sg_ane_lower_rows(struct sg_ane_lower *l, const struct sg_op *op)
{
    int out = sg_ane_shift(l, op->out);
    uint32_t x;
    switch (op->code) {
    case SG_OP_NORM: return norm(l, op);
    case SG_OP_LINEAR: return linear(l, op);
    case SG_OP_ROPE: return rope(l, op);
    case SG_OP_GLU:
        x = sg_ane_act(l, op->u.glu.act, sg_ane_operand(l, &op->in[0]));
        return SG_ANE_BIN("mul", x, sg_ane_operand_at(l, &op->in[1], out));
    case SG_OP_ACT: return sg_ane_act(l, op->u.act.act, sg_ane_operand(l, &op->in[0]));
    case SG_OP_ADD: return SG_ANE_BIN("add", sg_ane_operand_at(l, &op->in[0], out), sg_ane_operand_at(l, &op->in[1], out));
    default: return scale(l, op);
    }
}
