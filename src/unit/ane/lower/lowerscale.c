/* lowerscale.c: see lowerscale.h. A file may scale a norm's weight by 2^-19 and the matrices behind it by 2^19,
 * which changes no result in fp32 but exceeds fp16 in both places.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/lower/lowerscale.h"

#include <math.h>

#include "unit/ane/lower/lowerpart.h"

enum { USUAL = 6, EXPONENT_MAX = 60 }; /* magnitudes in [2^-USUAL, 2^USUAL] stay; limit of an exponent */

/* 1: the tensor is the weight of no operation except linear ones that read `value`. */
static int only_reads(const struct sg_graph *g, int32_t tensor, int32_t value)
{
    for (uint32_t i = 0; i < g->ops_n; i++) {
        const struct sg_op *op = &g->ops[i];
        int uses = op->code == SG_OP_LINEAR  ? op->u.linear.weight.tensor == tensor
                   : op->code == SG_OP_EMBED ? op->u.embed.table.tensor == tensor
                                             : 0;
        if (uses && (op->code != SG_OP_LINEAR || op->in[0].value != value)) return 0;
    }
    return 1;
}

/* 1: every reader of the norm's result is a matrix product on the engine whose weight has no other input. */
static int may_scale(const struct sg_graph *g, const struct sg_op *norm)
{
    uint32_t readers = 0;
    if (sg_ane_helper_reason(g, norm)) return 0;
    for (uint32_t i = 0; i < g->ops_n; i++) {
        const struct sg_op *op = &g->ops[i];
        for (size_t k = 0; k < sizeof op->in / sizeof *op->in; k++) {
            if (op->in[k].value != norm->out) continue;
            if (op->code != SG_OP_LINEAR || k || sg_ane_helper_reason(g, op)) return 0;
            if (!only_reads(g, op->u.linear.weight.tensor, norm->out)) return 0;
            readers++;
        }
    }
    return readers > 0;
}

/* Exponent that brings the largest magnitude of a norm's weight to [1, 2); 0 when it is usual. */
static segue_status norm_exponent(const struct sg_graph *g, const struct sg_op *norm, int *exponent, segue_error *err)
{
    const struct sg_norm *n = &norm->u.norm;
    *exponent = 0;
    if (n->weight.tensor < 0) return SEGUE_OK;
    const struct sg_tensor *t = g->tensors[n->weight.tensor];
    float *row = sg_alloc((size_t)t->cols * sizeof *row), max = 0;
    if (!row) return sg_no_memory("the weight of a norm", (size_t)t->cols * sizeof *row, err);
    for (uint64_t r = 0; r < t->rows; r++) {
        sg_tensor_row(t, r, 0, t->cols, row);
        for (uint64_t c = 0; c < t->cols; c++) {
            float size = fabsf(n->plus_one ? 1 + row[c] : row[c]);
            if (size > max && !isinf(size)) max = size;
        }
    }
    sg_free(row);
    if (!(max > 0)) return SEGUE_OK;
    int magnitude = ilogbf(max);
    if (magnitude < -USUAL || magnitude > USUAL) *exponent = -magnitude;
    if (*exponent > EXPONENT_MAX) *exponent = EXPONENT_MAX;
    if (*exponent < -EXPONENT_MAX) *exponent = -EXPONENT_MAX;
    return SEGUE_OK;
}

segue_status sg_ane_weight_exponent(const struct sg_graph *g, uint32_t tensor, int *exponent, segue_error *err)
{
    const struct sg_op *norm = NULL;
    int sign = 1;
    *exponent = 0;
    for (uint32_t i = 0; i < g->ops_n && !norm; i++) {
        const struct sg_op *op = &g->ops[i];
        if (op->code == SG_OP_NORM && (op->u.norm.weight.tensor == (int32_t)tensor || op->u.norm.bias.tensor == (int32_t)tensor))
            norm = op;
        if (op->code != SG_OP_LINEAR || op->u.linear.weight.tensor != (int32_t)tensor) continue;
        for (uint32_t k = 0; k < i && !norm; k++)
            if (g->ops[k].code == SG_OP_NORM && g->ops[k].out == op->in[0].value) norm = &g->ops[k];
        if (!norm) return SEGUE_OK;
        sign = -1;
    }
    if (!norm || !may_scale(g, norm)) return SEGUE_OK;
    SG_TRY(norm_exponent(g, norm, exponent, err));
    *exponent *= sign;
    return SEGUE_OK;
}
