/* lowerstateless.c: lowers the operations without state: norm, linear, rope, glu, activations, add, scale.
 * SPDX-License-Identifier: MIT */
#include <math.h>

#include "unit/ane/analysis/value_range.h"
#include "unit/ane/lower/lowercommon.h"
#include "unit/ane/lower/lowerfuse.h"

#define COLUMN_MIN 0.000244140625 /* 2^-12: the smallest scale of a column in 8 bits; its inverse is far from overflow */

/* RMS or layer norm, per group of channels. A scaled input x / 2^k gives the same result when eps is
 * divided by 2^2k, so it is not rescaled. op->in[1], if present, is a gate: the result is multiplied by its
 * silu. */
static uint32_t norm(struct sg_lowering *l, const struct sg_op *op)
{
    const struct sg_norm *n = &op->u.norm;
    int64_t width = op->in[0].width, group = width / n->groups, axis = n->groups > 1 ? 2 : 1;
    int64_t shape[4] = {1, n->groups > 1 ? 1 : group, n->groups > 1 ? group : 1, 1};
    uint32_t x = sg_ane_operand_stored(l, &op->in[0]);
    double eps = ldexp((double)n->eps, -2 * sg_ane_value_shift(l, op->in[0].value));
    if (n->groups > 1) x = sg_mil_build_reshape(&l->b, x, 4, (int64_t[]){1, n->groups, group, l->s});
    uint32_t y = sg_ane_normalize(l, x, axis, 1.0 / (double)group, eps, n->kind == SG_NORM_LAYER);
    if (n->weight.tensor >= 0)
        y = SG_ANE_BIN("mul", y, sg_ane_weight(l, &n->weight, n->plus_one ? SG_ANE_PLUS_ONE : SG_ANE_AS_IS, 4, shape));
    if (n->bias.tensor >= 0) y = SG_ANE_BIN("add", y, sg_ane_weight(l, &n->bias, SG_ANE_AS_IS, 4, shape));
    if (n->groups > 1) y = sg_mil_build_reshape(&l->b, y, 4, (int64_t[]){1, width, 1, l->s});
    if (op->in[1].value < 0) return y;
    return SG_ANE_BIN("mul", y, sg_ane_act(l, SG_ACT_SILU, sg_ane_operand(l, &op->in[1])));
}

/* x in 8 bits, with the largest magnitude of each column as its scale, which the product is multiplied with: *scale. */
static uint32_t int8_columns(struct sg_lowering *l, uint32_t x, uint32_t *scale)
{
    *scale = SG_ANE_BIN("maximum", sg_mil_build_reduce(&l->b, "reduce_max", SG_ANE_UN("abs", x), 1), SG_ANE_NUM(COLUMN_MIN));
    uint32_t step = SG_ANE_NUM(1.0 / 127);
    uint32_t scaled = SG_ANE_BIN("mul", x, SG_ANE_BIN("real_div", SG_ANE_NUM(1), *scale));
    struct sg_mil_operand to[3] = {{.name = "input", .value = scaled},
                                   {.name = "scale", .value = step},
                                   {.name = "output_dtype", .value = sg_mil_build_text(&l->b, "int8")}};
    struct sg_mil_operand back[2] = {{.name = "input", .value = sg_mil_build_op(&l->b, "quantize", to, 3, 1)},
                                     {.name = "scale", .value = step}};
    return sg_mil_build_op(&l->b, "dequantize", back, 2, 1);
}

/* Product of a linear operation as a 1x1 convolution, which engines compute faster than matmul. The first
 * operation of a fused group builds the convolution and the slices for all of them. */
static uint32_t fused_conv(struct sg_lowering *l, const struct sg_op *op, uint32_t x)
{
    uint32_t index = (uint32_t)(op - l->g->ops), list[SG_ANE_FUSED_MAX], n = sg_ane_fused_linears(l->g, l->part, index, list);
    struct sg_weight weights[SG_ANE_FUSED_MAX];
    int64_t channels = 0, at = 0;
    if (l->fused_out[index] != SG_MIL_NONE) return l->fused_out[index];
    for (uint32_t i = 0; i < n; i++) {
        weights[i] = l->g->ops[list[i]].u.linear.weight;
        channels += weights[i].rows;
    }
    uint32_t w = sg_ane_weights(l, weights, n, SG_ANE_MATRIX, SG_ANE_SHAPE(channels, op->in[0].width, 1, 1));
    struct sg_ane_quant quant;
    uint32_t scale = SG_MIL_NONE;
    if (l->blobs->storage == SG_ANE_STORE_W8A8 &&
        sg_ane_quant_of(&quant, l->blobs->storage, (uint64_t)channels, op->in[0].width, SG_F16))
        x = int8_columns(l, x, &scale);
    uint32_t y = sg_mil_build_conv(&l->b, x, w, 1);
    if (scale != SG_MIL_NONE) y = SG_ANE_BIN("mul", y, scale);
    for (uint32_t i = 0; i < n; at += weights[i++].rows) l->fused_out[list[i]] = sg_ane_channels(l, y, at, weights[i].rows);
    return l->fused_out[index];
}

/* Product, adapters, bias and residual. The input is divided by the inner shift on top of its stored shift;
 * the product is brought to the shift of the result before anything is added to it. */
static uint32_t linear(struct sg_lowering *l, const struct sg_op *op)
{
    const struct sg_linear *p = &op->u.linear;
    int64_t n = p->weight.rows;
    int inner = l->part->range ? l->part->range->inner[op - l->g->ops] : 0, out = sg_ane_value_shift(l, op->out);
    int in = sg_ane_value_shift(l, op->in[0].value);
    uint32_t x = sg_ane_rescale(l, sg_ane_operand_stored(l, &op->in[0]), in, in + inner);
    uint32_t y = sg_ane_lower_lora(l, op, x, fused_conv(l, op, x));
    y = sg_ane_rescale(l, y, in + inner, out);
    if (p->bias.tensor >= 0) {
        uint32_t bias = sg_ane_weight(l, &p->bias, SG_ANE_AS_IS, SG_ANE_SHAPE(1, n, 1, 1));
        y = SG_ANE_BIN("add", y, sg_ane_rescale(l, bias, 0, out));
    }
    return op->in[1].value < 0 ? y : SG_ANE_BIN("add", y, sg_ane_operand_scaled(l, &op->in[1], out));
}

/* Elements [at, at + n) of axis 2. */
static uint32_t slice_rows(struct sg_lowering *l, uint32_t x, int64_t at, int64_t n)
{
    const struct sg_mil_type *t = sg_mil_build_type(&l->b, x);
    int64_t begin[4] = {0, 0, at, 0}, size[4] = {1, t->dim[1], n, t->dim[3]};
    return sg_mil_build_slice(&l->b, x, 4, begin, size);
}

/* Rotates the two halves of each head: (a, b) becomes (a cos - b sin, b cos + a sin), with the opposite
 * sign for inverse rotation. Dimensions beyond 2 * pairs are copied. */
static uint32_t rope(struct sg_lowering *l, const struct sg_op *op)
{
    const struct sg_rope *r = &op->u.rope;
    int64_t pairs = l->g->ropes[r->table].pairs, width = r->head_width, at = l->info->rope[r->table];
    int64_t table[4] = {1, 1, pairs, l->s};
    uint32_t x = sg_mil_build_reshape(&l->b, sg_ane_operand(l, &op->in[0]), 4, (int64_t[]){1, r->heads, width, l->s});
    uint32_t cosine = sg_mil_build_reshape(&l->b, sg_ane_channels(l, l->info_rows, at, pairs), 4, table);
    uint32_t sine = sg_mil_build_reshape(&l->b, sg_ane_channels(l, l->info_rows, at + pairs, pairs), 4, table);
    uint32_t a = slice_rows(l, x, 0, pairs), b = slice_rows(l, x, pairs, pairs);
    const char *minus = r->sign < 0 ? "add" : "sub", *plus = r->sign < 0 ? "sub" : "add";
    uint32_t list[3] = {SG_ANE_BIN(minus, SG_ANE_BIN("mul", a, cosine), SG_ANE_BIN("mul", b, sine)),
                        SG_ANE_BIN(plus, SG_ANE_BIN("mul", b, cosine), SG_ANE_BIN("mul", a, sine))};
    uint32_t n = 2;
    if (width > 2 * pairs) list[n++] = slice_rows(l, x, 2 * pairs, width - 2 * pairs);
    uint32_t y = sg_mil_build_concat(&l->b, list, n, 2);
    return sg_mil_build_reshape(&l->b, y, 4, (int64_t[]){1, r->heads * width, 1, l->s});
}

/* Multiplies by a number or by a vector over the channels. */
static uint32_t scale(struct sg_lowering *l, const struct sg_op *op)
{
    const struct sg_weight *w = &op->u.scale.weight;
    uint32_t x = sg_ane_operand(l, &op->in[0]);
    if (w->tensor < 0) return SG_ANE_BIN("mul", x, SG_ANE_NUM((double)op->u.scale.value));
    const struct sg_tensor *t = l->g->tensors[w->tensor];
    return SG_ANE_BIN("mul", x, sg_ane_weight(l, w, SG_ANE_AS_IS, SG_ANE_SHAPE(1, (int64_t)(t->rows * t->cols), 1, 1)));
}

/* Results of glu and add have a shift (value_range.h); one factor or both summands are converted to it. */
uint32_t sg_ane_lower_stateless(struct sg_lowering *l, const struct sg_op *op)
{
    int out = sg_ane_value_shift(l, op->out);
    uint32_t x;
    switch (op->code) {
    case SG_OP_NORM: return norm(l, op);
    case SG_OP_LINEAR: return linear(l, op);
    case SG_OP_ROPE: return rope(l, op);
    case SG_OP_GLU:
        x = sg_ane_act(l, op->u.glu.act, sg_ane_operand(l, &op->in[0]));
        return SG_ANE_BIN("mul", x, sg_ane_operand_scaled(l, &op->in[1], out));
    case SG_OP_ACT: return sg_ane_act(l, op->u.act.act, sg_ane_operand(l, &op->in[0]));
    case SG_OP_ADD:
        return SG_ANE_BIN("add", sg_ane_operand_scaled(l, &op->in[0], out), sg_ane_operand_scaled(l, &op->in[1], out));
    default: return scale(l, op);
    }
}
