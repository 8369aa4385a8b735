/* lowerstate.c: lowers the operations with state except the delta rule: attention and short convolution.
 * Positions and masks are inputs (port `info`), so one program works for every position.
 * SPDX-License-Identifier: MIT */
#include <math.h>

#include "unit/ane/lower/lowercommon.h"

/* Channels [at, at + n) of info, first S columns, as a matrix [1, 1, n, S]. */
static uint32_t info_matrix(struct sg_lowering *l, int64_t at, int64_t n)
{
    return sg_mil_build_reshape(&l->b, sg_ane_channels(l, l->info_rows, at, n), 4, (int64_t[]){1, 1, n, l->s});
}

/* The ring of a slot before the dispatch, [1, n, 1, columns of the ring]. */
static uint32_t ring_rows(struct sg_lowering *l, int32_t slot, uint32_t kind, int64_t n)
{
    int64_t columns = l->info->ring[kind].columns;
    return columns == l->shape->keys ? l->slot_in[slot] : sg_ane_unpack(l, slot, SG_ANE_SHAPE(1, n, 1, columns));
}

/* The ring with the S new rows stored: ring * keep + rows scatter^T, which also becomes the new slot.
 * Exact, because each column of the product has at most one nonzero term. scatter and keep are shared by
 * all layers of a kind. */
static uint32_t update_ring(struct sg_lowering *l, int32_t slot, uint32_t kind, uint32_t ring, uint32_t rows)
{
    int64_t columns = l->info->ring[kind].columns, n = sg_mil_build_type(&l->b, rows)->dim[1], s = l->s;
    if (l->scatter[kind] == SG_MIL_NONE) {
        l->scatter[kind] = info_matrix(l, l->info->scatter[kind], columns);
        uint32_t replaced = sg_mil_build_reduce(&l->b, "reduce_sum", l->scatter[kind], 3);
        l->keep[kind] =
            sg_mil_build_reshape(&l->b, SG_ANE_BIN("sub", SG_ANE_NUM(1), replaced), 4, (int64_t[]){1, 1, 1, columns});
    }
    uint32_t flat = sg_mil_build_reshape(&l->b, rows, 4, (int64_t[]){1, 1, n, s});
    uint32_t scattered = sg_mil_build_matmul(&l->b, flat, l->scatter[kind], 0, 1);
    scattered = sg_mil_build_reshape(&l->b, scattered, 4, (int64_t[]){1, n, 1, columns});
    uint32_t updated = SG_ANE_BIN("add", SG_ANE_BIN("mul", ring, l->keep[kind]), scattered);
    if (columns == l->shape->keys)
        l->slot_out[slot] = updated;
    else
        sg_ane_pack(l, slot, updated, columns);
    return updated;
}

/* Keys and values to attend to. */
struct kv_tensors {
    uint32_t k, v; /* [1, kv_heads * d, 1, n] */
    int64_t mask;  /* first of n channels of info */
    int64_t n;
};

/* Masked scores [kv head, query head of its group, key, row]. In this order K and Q are used without a
 * transpose, because rows are columns of the tensors. */
static uint32_t attention_scores(struct sg_lowering *l, const struct sg_attend *a, uint32_t q, const struct kv_tensors *at)
{
    uint32_t k = sg_mil_build_reshape(&l->b, at->k, 4, (int64_t[]){a->kv_heads, 1, a->d, at->n});
    uint32_t scores = sg_mil_build_matmul(&l->b, k, q, 1, 0);
    if (a->softcap > 0) {
        scores = sg_ane_act(l, SG_ACT_TANH, SG_ANE_BIN("mul", scores, SG_ANE_NUM(1 / (double)a->softcap)));
        scores = SG_ANE_BIN("mul", scores, SG_ANE_NUM((double)a->softcap));
    }
    return SG_ANE_BIN("add", scores, info_matrix(l, at->mask, at->n));
}

/* V times the probabilities: [kv head, query head of its group, dv, row]. */
static uint32_t weighted_values(struct sg_lowering *l, const struct sg_attend *a, uint32_t probs, const struct kv_tensors *at)
{
    uint32_t v = sg_mil_build_reshape(&l->b, at->v, 4, (int64_t[]){a->kv_heads, 1, a->dv, at->n});
    return sg_mil_build_matmul(&l->b, v, probs, 0, 0);
}

/* Attention over two sources with a common softmax, written out because their total length need not be a
 * power of two (constraint 33). The common maximum is subtracted; probabilities are divided by the common
 * sum before the products with V, so that no partial sum exceeds fp16. */
static uint32_t attend_two_sources(struct sg_lowering *l, const struct sg_attend *a, uint32_t q, const struct kv_tensors *at)
{
    uint32_t x[2], max[2], sum[2], y[2];
    for (int i = 0; i < 2; i++) {
        x[i] = attention_scores(l, a, q, &at[i]);
        max[i] = sg_mil_build_reduce(&l->b, "reduce_max", x[i], 2);
    }
    max[0] = SG_ANE_BIN("maximum", max[0], max[1]);
    for (int i = 0; i < 2; i++) {
        x[i] = SG_ANE_UN("exp", SG_ANE_BIN("sub", x[i], max[0]));
        sum[i] = sg_mil_build_reduce(&l->b, "reduce_sum", x[i], 2);
    }
    sum[0] = SG_ANE_BIN("add", sum[0], sum[1]);
    for (int i = 0; i < 2; i++) y[i] = weighted_values(l, a, SG_ANE_BIN("real_div", x[i], sum[0]), &at[i]);
    return SG_ANE_BIN("add", y[0], y[1]);
}

/* Stores the new rows in the ring, then attends to it. When the new rows overwrite rows that the first of
 * them still see, attends to the old ring and the new rows instead. op->in: q, k, v, optional gate. */
uint32_t sg_ane_lower_attend(struct sg_lowering *l, const struct sg_op *op)
{
    const struct sg_attend *a = &op->u.attend;
    uint32_t kind = sg_ane_info_kind(l->info, a->window);
    const struct sg_ane_ring *ring = &l->info->ring[kind];
    int64_t kv = a->kv_heads, s = l->s;
    uint32_t q = SG_ANE_BIN("mul", sg_ane_operand(l, &op->in[0]), SG_ANE_NUM((double)a->scale));
    q = sg_mil_build_reshape(&l->b, q, 4, (int64_t[]){kv, a->heads / a->kv_heads, a->d, s});
    uint32_t k = sg_ane_operand(l, &op->in[1]), v = sg_ane_operand(l, &op->in[2]), y;
    struct kv_tensors at[2] = {{ring_rows(l, a->slot_k, kind, kv * a->d), ring_rows(l, a->slot_v, kind, kv * a->dv),
                            l->info->mask[kind], ring->columns},
                           {k, v, l->info->fresh[kind], s}};
    k = update_ring(l, a->slot_k, kind, at[0].k, k);
    v = update_ring(l, a->slot_v, kind, at[0].v, v);
    if (sg_ane_ring_reads_old(ring, l->shape)) {
        y = attend_two_sources(l, a, q, at);
    } else {
        at[0].k = k;
        at[0].v = v;
        y = weighted_values(l, a, sg_mil_build_softmax(&l->b, attention_scores(l, a, q, at), 2), at);
    }
    y = sg_mil_build_reshape(&l->b, y, 4, (int64_t[]){1, (int64_t)a->heads * a->dv, 1, s});
    if (op->in[3].value < 0) return y;
    return SG_ANE_BIN("mul", y, sg_ane_act(l, SG_ACT_SIGMOID, sg_ane_operand(l, &op->in[3])));
}

/* Channels [at, at + n) of a port, first `columns` columns, as a matrix [1, 1, n, columns]. */
static uint32_t select_rows(struct sg_lowering *l, uint32_t port, int64_t at, int64_t n, int64_t columns)
{
    int64_t begin[4] = {0, at, 0, 0}, size[4] = {1, n, 1, columns};
    return sg_mil_build_reshape(&l->b, sg_mil_build_slice(&l->b, port, 4, begin, size), 4,
                                (int64_t[]){1, 1, n, columns});
}

/* Depthwise causal convolution: the taps - 1 remembered rows and the new rows are concatenated and
 * convolved. A product with the identity turns the remembered rows into columns: engines transpose
 * operands of products without an operation of its own. The new memory is selected from both by products
 * with 0/1 matrices of info, so that padding rows are never remembered. */
uint32_t sg_ane_lower_conv(struct sg_lowering *l, const struct sg_op *op)
{
    const struct sg_conv *c = &op->u.conv;
    int64_t width = op->in[0].width, past = c->taps - 1, s = l->s;
    uint32_t x = sg_ane_operand(l, &op->in[0]), wide = x;
    if (past) {
        uint32_t at = sg_ane_info_taps(l->info, c->taps);
        uint32_t memory = sg_ane_unpack(l, c->slot, SG_ANE_SHAPE(1, 1, past, width));
        uint32_t columns = sg_mil_build_matmul(&l->b, memory, sg_ane_identity(l, past), 1, 0);
        uint32_t parts[2] = {sg_mil_build_reshape(&l->b, columns, 4, (int64_t[]){1, width, 1, past}), x};
        wide = sg_mil_build_concat(&l->b, parts, 2, 3);
        uint32_t old = select_rows(l, l->info_port, l->info->old[at], past, past);
        uint32_t recent = select_rows(l, l->info_rows, l->info->recent[at], past, s);
        uint32_t rows = sg_mil_build_reshape(&l->b, x, 4, (int64_t[]){1, 1, width, s});
        uint32_t next = SG_ANE_BIN("add", sg_mil_build_matmul(&l->b, old, memory, 0, 0),
                                   sg_mil_build_matmul(&l->b, recent, rows, 0, 1));
        sg_ane_pack(l, c->slot, next, width);
    }
    uint32_t w = sg_ane_weight(l, &c->weight, SG_ANE_AS_IS, SG_ANE_SHAPE(width, 1, 1, c->taps));
    uint32_t y = sg_mil_build_conv(&l->b, wide, w, width);
    if (c->bias.tensor >= 0)
        y = SG_ANE_BIN("add", y, sg_ane_weight(l, &c->bias, SG_ANE_AS_IS, SG_ANE_SHAPE(1, width, 1, 1)));
    return sg_ane_act(l, c->act, y);
}
