/* lowerstate.c: operations that remember, as MIL: attention, convolution. Where new rows go and what is seen comes
 * with the port `info`, so that one program serves every position. SPDX-License-Identifier: MIT */
#include <math.h>

#include "unit/ane/lower.h"

enum { TAPS_MOST = 13 };

/* The slot with the S new rows in their places: state * stays + rows place^T; exact, a place holds one number. */
static uint32_t append_rows(struct sg_ane_lower *l, int32_t slot, uint32_t rows)
{
    int64_t keys = l->shape->keys, n = sg_mil_build_type(&l->b, rows)->dim[1], s = l->s;
    if (l->place == SG_MIL_NONE) {
        uint32_t place = sg_ane_channels(l, l->info_rows, l->info->place, keys);
        uint32_t taken = sg_mil_build_reduce(&l->b, "reduce_sum", place, 3);
        l->place = sg_mil_build_reshape(&l->b, place, 4, (int64_t[]){1, 1, keys, s});
        l->placed = sg_mil_build_reshape(&l->b, SG_ANE_BIN("sub", SG_ANE_NUM(1), taken), 4, (int64_t[]){1, 1, 1, keys});
    }
    uint32_t flat = sg_mil_build_reshape(&l->b, rows, 4, (int64_t[]){1, 1, n, s});
    uint32_t spread = sg_mil_build_matmul(&l->b, flat, l->place, 0, 1);
    spread = sg_mil_build_reshape(&l->b, spread, 4, (int64_t[]){1, n, 1, keys});
    return l->updated[slot] = SG_ANE_BIN("add", SG_ANE_BIN("mul", l->states[slot], l->placed), spread);
}

/* Scores stand [kv head, head of its group, key, row]: nothing is transposed on the way. */
uint32_t sg_ane_lower_attend(struct sg_ane_lower *l, const struct sg_op *op)
{
    const struct sg_attend *a = &op->u.attend;
    int64_t group = a->heads / a->kv_heads, kv = a->kv_heads, keys = l->shape->keys, s = l->s;
    uint32_t q = SG_ANE_BIN("mul", sg_ane_operand(l, &op->in[0]), SG_ANE_NUM((double)a->scale));
    uint32_t k = append_rows(l, a->slot_k, sg_ane_operand(l, &op->in[1]));
    uint32_t v = append_rows(l, a->slot_v, sg_ane_operand(l, &op->in[2]));
    uint32_t mask = sg_ane_channels(l, l->info_rows, l->info->mask[sg_ane_info_mask(l->info, a->window)], keys);
    mask = sg_mil_build_reshape(&l->b, mask, 4, (int64_t[]){1, 1, keys, s});
    q = sg_mil_build_reshape(&l->b, q, 4, (int64_t[]){kv, group, a->d, s});
    k = sg_mil_build_reshape(&l->b, k, 4, (int64_t[]){kv, 1, a->d, keys});
    v = sg_mil_build_reshape(&l->b, v, 4, (int64_t[]){kv, 1, a->dv, keys});
    uint32_t scores = sg_mil_build_matmul(&l->b, k, q, 1, 0);
    if (a->softcap > 0) {
        scores = sg_ane_act(l, SG_ACT_TANH, SG_ANE_BIN("mul", scores, SG_ANE_NUM(1 / (double)a->softcap)));
        scores = SG_ANE_BIN("mul", scores, SG_ANE_NUM((double)a->softcap));
    }
    uint32_t share = sg_mil_build_softmax(&l->b, SG_ANE_BIN("add", scores, mask), 2);
    uint32_t y = sg_mil_build_matmul(&l->b, v, share, 0, 0);
    y = sg_mil_build_reshape(&l->b, y, 4, (int64_t[]){1, (int64_t)a->heads * a->dv, 1, s});
    if (op->in[3].value < 0) return y;
    return SG_ANE_BIN("mul", y, sg_ane_act(l, SG_ACT_SIGMOID, sg_ane_operand(l, &op->in[3])));
}

/* [n][columns] of info as [1, 1, n, columns], from its first `columns` columns. */
static uint32_t select_rows(struct sg_ane_lower *l, uint32_t port, int64_t at, int64_t n, int64_t columns)
{
    int64_t begin[4] = {0, at, 0, 0}, size[4] = {1, n, 1, columns};
    return sg_mil_build_reshape(&l->b, sg_mil_build_slice(&l->b, port, 4, begin, size), 4,
                                (int64_t[]){1, 1, n, columns});
}

/* Past and present side by side, one convolution by channels; then what to remember is chosen by two products
 * with selections, so that padding never gets in. */
uint32_t sg_ane_lower_conv(struct sg_ane_lower *l, const struct sg_op *op)
{
    const struct sg_conv *c = &op->u.conv;
    int64_t width = op->in[0].width, past = c->taps - 1, s = l->s;
    uint32_t x = sg_ane_operand(l, &op->in[0]), wide = x;
    if (past) {
        uint32_t at = sg_ane_info_taps(l->info, c->taps);
        uint32_t memory = sg_ane_unpack(l, c->slot, SG_ANE_SHAPE(1, past, 1, width));
        uint32_t turned = sg_mil_build_transpose(&l->b, memory, 4, (int64_t[]){0, 3, 2, 1});
        uint32_t both[2] = {turned, x};
        wide = sg_mil_build_concat(&l->b, both, 2, 3);
        uint32_t old = select_rows(l, l->info_port, l->info->old[at], past, past);
        uint32_t recent = select_rows(l, l->info_rows, l->info->recent[at], past, s);
        memory = sg_mil_build_reshape(&l->b, memory, 4, (int64_t[]){1, 1, past, width});
        uint32_t rows = sg_mil_build_reshape(&l->b, x, 4, (int64_t[]){1, 1, width, s});
        uint32_t kept = SG_ANE_BIN("add", sg_mil_build_matmul(&l->b, old, memory, 0, 0),
                                   sg_mil_build_matmul(&l->b, recent, rows, 0, 1));
        sg_ane_pack(l, c->slot, kept, width);
    }
    uint32_t w = sg_ane_weight(l, &c->weight, SG_ANE_AS_IS, SG_ANE_SHAPE(width, 1, 1, c->taps));
    uint32_t y = sg_mil_build_conv(&l->b, wide, w, width);
    if (c->bias.tensor >= 0)
        y = SG_ANE_BIN("add", y, sg_ane_weight(l, &c->bias, SG_ANE_AS_IS, SG_ANE_SHAPE(1, width, 1, 1)));
    return sg_ane_act(l, c->act, y);
}

segue_status sg_ane_can_lower(const struct sg_graph *g, const struct sg_op *op, segue_error *why)
{
    const char *reason = NULL;
    if (op->code == SG_OP_ROUTE || op->code == SG_OP_EXPERTS)
        reason = "a choice of experts depends on data, and a program's weights do not";
    else if (op->code == SG_OP_ATTEND && op->u.attend.sinks.tensor >= 0)
        reason = "sinks have no lowering yet";
    else if (op->code == SG_OP_CONV && op->u.conv.taps > TAPS_MOST)
        reason = "the kernel is wider than the engine's";
    (void)g;
    if (!reason) return SEGUE_OK;
    return sg_fail(why, SEGUE_EUNSUPPORTED, "compile: ane: %s of layer %d: %s; use another unit", sg_op_name(op->code),
                   op->layer, reason);
}
