/* ops.c: one operation forward or backward, by its code.
 * SPDX-License-Identifier: MIT */
#include <math.h>

#include "train/train.h"

static const struct {
    sg_train_forward *forward;
    sg_train_backward *backward;
} table[SG_OP_N] = {
    [SG_OP_EMBED] = {sg_train_embed, sg_train_embed_back},
    [SG_OP_NORM] = {sg_train_norm, sg_train_norm_back},
    [SG_OP_LINEAR] = {sg_train_linear, sg_train_linear_back},
    [SG_OP_ROPE] = {sg_train_rope, sg_train_rope_back},
    [SG_OP_ATTEND] = {sg_train_attend, sg_train_attend_back},
    [SG_OP_CONV] = {sg_train_conv, sg_train_conv_back},
    [SG_OP_DELTA] = {sg_train_delta, sg_train_delta_back},
    [SG_OP_GLU] = {sg_train_glu, sg_train_glu_back},
    [SG_OP_ACT] = {sg_train_act, sg_train_act_back},
    [SG_OP_ADD] = {sg_train_add, sg_train_add_back},
    [SG_OP_SCALE] = {sg_train_scale, sg_train_scale_back},
    [SG_OP_ROUTE] = {sg_train_route, sg_train_route_back},
    [SG_OP_EXPERTS] = {sg_train_experts, sg_train_experts_back},
};

static segue_status all_finite(struct sg_train_pass *p, const struct sg_op *op, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(x[i]))
            return sg_fail(p->err, SEGUE_EFORMAT,
                           "micro-batch not run: the loss is not finite: first in %s of layer %d; lower the learning rate, or go "
                           "back to an earlier checkpoint", sg_op_name(op->code), (int)op->layer);
    return SEGUE_OK;
}

static segue_status check_finite(struct sg_train_pass *p, const struct sg_op *op)
{
    uint32_t width = p->g->values[op->out].width, rows = p->rows[p->g->values[op->out].wanted];
    size_t n = (size_t)rows * width;
    if (!p->t->resident) return all_finite(p, op, p->values[op->out], n);
    float *host = sg_alloc_unset(n * sizeof *host);
    if (!host) return sg_no_memory("a value", n * sizeof *host, p->err);
    segue_status status = sg_train_read_value(p->t, host, p->values[op->out], rows, width, p->err);
    if (status == SEGUE_OK) status = all_finite(p, op, host, n);
    sg_free_aligned(host);
    return status;
}

/* dout: gradient of the result, read with back = 1 only. NULL: none reached this op, but one reached another op of its group. */
static segue_status run_op(struct sg_train_pass *p, const struct sg_op *op, int back, float *out, const float *dout)
{
    if (p->t->resident) return sg_resident_run(p, op, out, dout);
    return back ? table[op->code].backward(p, op, dout) : table[op->code].forward(p, op, out);
}

segue_status sg_train_op(struct sg_train_pass *p, uint32_t i)
{
    const struct sg_op *op = &p->g->ops[i];
    if (p->values[op->out] && !(p->early && p->early[i])) return SEGUE_OK;
    if (!p->values[op->out]) p->values[op->out] = sg_train_take_live(p, op->out);
    if (!p->values[op->out]) return SEGUE_EMEMORY;
    if (sg_train_rows(p, op)) SG_TRY(run_op(p, op, 0, p->values[op->out], NULL));
    return p->check ? check_finite(p, op) : SEGUE_OK;
}

segue_status sg_train_op_back(struct sg_train_pass *p, uint32_t i)
{
    const struct sg_op *op = &p->g->ops[i];
    segue_status status = SEGUE_OK;
    int deferred = sg_train_deferred(p, i);
    if (!deferred && (p->grads[op->out] || sg_train_due(p, i)))
        status = run_op(p, op, 1, p->values[op->out], p->grads[op->out]);
    if (!deferred) sg_train_put_live(p, &p->grads[op->out], op->out);
    sg_train_put_live(p, &p->values[op->out], op->out);
    return status;
}
