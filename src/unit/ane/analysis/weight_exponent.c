/* weight_exponent.c: see weight_exponent.h. A file may scale a norm's weight by 2^-19 and the matrices behind it by 2^19,
 * which changes no result in fp32 but exceeds fp16 in both places.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/analysis/weight_exponent.h"

#include <math.h>

#include "unit/ane/analysis/partition.h"

/* Magnitudes in [2^-USUAL, 2^USUAL] stay, for norms; in [2^-USUAL, 2^USUAL_UP) for factors of gated products, because the matrix
 * behind them may be as much smaller. Limit of an exponent. */
enum { USUAL = 6, USUAL_UP = 3, EXPONENT_MAX = 60 };

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

/* The operation that computes a value; NULL: it is an input of the graph. */
static const struct sg_op *maker_of(const struct sg_graph *g, int32_t value)
{
    return value < 0 || g->values[value].op < 0 ? NULL : &g->ops[g->values[value].op];
}

/* Exponent of the norm in front of a linear operation whose weight reads nothing else; 0: there is none. */
static segue_status input_exponent(const struct sg_graph *g, const struct sg_op *linear, int *exponent, segue_error *err)
{
    *exponent = 0;
    const struct sg_op *norm = maker_of(g, linear->in[0].value);
    return norm && norm->code == SG_OP_NORM && may_scale(g, norm) ? norm_exponent(g, norm, exponent, err) : SEGUE_OK;
}

/* The only operation that reads a value, as its operand `in`; NULL: several read it, or in another way. */
static const struct sg_op *only_reader(const struct sg_graph *g, int32_t value, uint32_t in, enum sg_op_code code)
{
    const struct sg_op *reader = NULL;
    for (uint32_t i = 0; i < g->ops_n; i++)
        for (uint32_t k = 0; k < sizeof g->ops[i].in / sizeof *g->ops[i].in; k++) {
            if (g->ops[i].in[k].value != value) continue;
            if (reader || k != in || g->ops[i].code != code) return NULL;
            reader = &g->ops[i];
        }
    for (uint32_t i = 0; i < g->outputs_n; i++)
        if (g->outputs[i].value == value) return NULL;
    return reader && g->values[value].width == reader->in[in].width ? reader : NULL;
}

/* 1: no other operation has the tensor as a weight. */
static int only_weight(const struct sg_graph *g, int32_t tensor, const struct sg_op *owner)
{
    for (uint32_t i = 0; i < g->ops_n; i++) {
        const struct sg_op *op = &g->ops[i];
        if (op != owner && op->code == SG_OP_LINEAR &&
            (op->u.linear.weight.tensor == tensor || op->u.linear.bias.tensor == tensor))
            return 0;
        if (op->code == SG_OP_EMBED && op->u.embed.table.tensor == tensor) return 0;
    }
    return 1;
}

/* The linear operation behind a gated product whose factor `up` computes: act(gate) * up. A power of two can move from one
 * weight to the other. NULL: `up` is not such an operation. */
static const struct sg_op *down_of(const struct sg_graph *g, const struct sg_op *up)
{
    if (up->code != SG_OP_LINEAR || up->in[1].value >= 0 || sg_ane_helper_reason(g, up)) return NULL;
    const struct sg_op *glu = only_reader(g, up->out, 1, SG_OP_GLU);
    const struct sg_op *down = glu ? only_reader(g, glu->out, 0, SG_OP_LINEAR) : NULL;
    return down && !sg_ane_helper_reason(g, down) && only_weight(g, up->u.linear.weight.tensor, up) &&
                   only_weight(g, down->u.linear.weight.tensor, down)
               ? down
               : NULL;
}

/* Exponent that brings the largest magnitude of some rows to [1, 2) when it is unusual. All rows need not be read: any
 * exponent is exact as long as both weights use it. */
static segue_status up_exponent(const struct sg_graph *g, const struct sg_op *up, int *exponent, segue_error *err)
{
    enum { ROWS = 16 };
    const struct sg_weight *w = &up->u.linear.weight;
    const struct sg_tensor *t = g->tensors[w->tensor];
    int before, magnitude;
    float *row = sg_alloc((size_t)t->cols * sizeof *row), max = 0;
    *exponent = 0;
    if (!row) return sg_no_memory("a row of a weight", (size_t)t->cols * sizeof *row, err);
    for (uint32_t k = 0; k < ROWS; k++) {
        sg_tensor_row(t, w->at + (uint64_t)w->rows * k / ROWS, 0, t->cols, row);
        for (uint64_t c = 0; c < t->cols; c++)
            if (fabsf(row[c]) > max && !isinf(row[c])) max = fabsf(row[c]);
    }
    sg_free(row);
    if (!(max > 0)) return SEGUE_OK;
    SG_TRY(input_exponent(g, up, &before, err));
    magnitude = ilogbf(max) - before;
    if (magnitude < -USUAL || magnitude >= USUAL_UP) *exponent = -magnitude;
    if (*exponent > EXPONENT_MAX) *exponent = EXPONENT_MAX;
    if (*exponent < -EXPONENT_MAX) *exponent = -EXPONENT_MAX;
    return SEGUE_OK;
}

/* Exponent of the weight of a linear operation; bias 1: of its bias, which the scale of the input does not change. */
static segue_status linear_exponent(const struct sg_graph *g, const struct sg_op *linear, int bias, int *exponent,
                                    segue_error *err)
{
    int moved;
    *exponent = 0;
    if (!bias) {
        SG_TRY(input_exponent(g, linear, exponent, err));
        *exponent = -*exponent;
    }
    if (down_of(g, linear)) {
        SG_TRY(up_exponent(g, linear, &moved, err));
        *exponent += moved;
    }
    const struct sg_op *glu = maker_of(g, linear->in[0].value);
    const struct sg_op *up = glu && glu->code == SG_OP_GLU ? maker_of(g, glu->in[1].value) : NULL;
    if (bias || !up || down_of(g, up) != linear) return SEGUE_OK;
    SG_TRY(up_exponent(g, up, &moved, err));
    *exponent -= moved;
    return SEGUE_OK;
}

segue_status sg_ane_weight_exponent(const struct sg_graph *g, uint32_t tensor, int *exponent, segue_error *err)
{
    *exponent = 0;
    for (uint32_t i = 0; i < g->ops_n; i++) {
        const struct sg_op *op = &g->ops[i];
        if (op->code == SG_OP_NORM && (op->u.norm.weight.tensor == (int32_t)tensor || op->u.norm.bias.tensor == (int32_t)tensor))
            return may_scale(g, op) ? norm_exponent(g, op, exponent, err) : SEGUE_OK;
        if (op->code != SG_OP_LINEAR) continue;
        if (op->u.linear.weight.tensor == (int32_t)tensor) return linear_exponent(g, op, 0, exponent, err);
        if (op->u.linear.bias.tensor == (int32_t)tensor) return linear_exponent(g, op, 1, exponent, err);
    }
    return SEGUE_OK;
}
