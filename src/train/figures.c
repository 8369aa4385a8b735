/* figures.c: bytes of activations and operations per token, from the graph.
 * SPDX-License-Identifier: MIT */
#include "train/train.h"

/* Columns of values that live at once. Without recomputation all of them are kept; with it, those that a later layer reads, and
 * all
 * of the widest layer. Gradients: at most one for each value of a layer and those that reach beyond it. */
static uint64_t columns_max(const struct segue_trainer *t)
{
    const struct sg_graph *g = t->graph;
    uint64_t all = 0, kept = 0, widest = 0;
    for (uint32_t from = 0, to; from < t->rows_op; from = to) {
        uint64_t layer = 0;
        for (to = from; to < t->rows_op && g->ops[to].layer == g->ops[from].layer; to++) layer += g->values[g->ops[to].out].width;
        for (uint32_t i = from; i < to; i++)
            if (t->last_segment[g->ops[i].out] >= to) kept += g->values[g->ops[i].out].width;
        all += layer;
        if (layer > widest) widest = layer;
    }
    return (t->info.recompute ? kept + widest : all) + widest + 2 * (uint64_t)t->info.width;
}

static double op_flops(const struct segue_trainer *t, const struct sg_op *op)
{
    const struct sg_attend *a = &op->u.attend;
    const struct sg_delta *d = &op->u.delta;
    double sequence = (double)t->info.sequence_tokens, keys = sequence / 2;
    if (op->code == SG_OP_LINEAR) {
        const struct sg_train_tensor *s = &t->tensors[op->u.linear.weight.tensor];
        double k = op->in[0].width, n = op->u.linear.weight.rows, flops = 2 * k * n;
        flops += t->needs[op->in[0].value] ? 2 * k * n : 0;
        flops += s->param >= 0 ? 2 * k * n : 0;
        return flops + (s->pair >= 0 ? 6.0 * t->info.lora_rank * (k + n) : 0);
    }
    if (op->code == SG_OP_EXPERTS) /* forward, forward again, backward in x; in the weights where they are trained */
        return 6.0 * op->u.experts.k * op->u.experts.ff * op->in[0].width *
               (t->tensors[op->u.experts.gate.tensor].param >= 0 ? 4 : 3);
    if (op->code == SG_OP_ATTEND) {
        if (a->window && a->window < sequence) keys = a->window - (double)a->window * a->window / (2 * sequence);
        return 3 * 2 * keys * a->heads * (a->d + a->dv);
    }
    return op->code == SG_OP_DELTA ? 3 * 8.0 * d->v_heads * d->dk * d->dv : 0;
}

void sg_train_figures(struct segue_trainer *t)
{
    uint64_t head = 0, rows = sg_train_head_rows(t);
    if (rows > t->info.batch_tokens) rows = t->info.batch_tokens;
    for (uint32_t i = t->rows_op; i < t->graph->ops_n; i++) head += t->graph->values[t->graph->ops[i].out].width;
    t->info.param_bytes = 16 * t->info.numbers;
    uint32_t bytes = t->resident ? sg_resident_value_bytes(t->resident) : 4;
    t->info.activation_bytes = bytes * (t->info.batch_tokens * columns_max(t) + 2 * head * rows);
    for (uint32_t i = 0; i < t->graph->ops_n; i++) t->info.flops_per_token += op_flops(t, &t->graph->ops[i]);
}
