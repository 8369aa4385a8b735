/* modelcost.c: see modelcost.h. SPDX-License-Identifier: MIT */
#include "engine/planner/modelcost.h"

#include <stdio.h>
#include <string.h>

/* Bytes of `rows` rows of a stored tensor, scales of MLX groups included. */
static double stored_bytes(const struct sg_tensor *t, double rows)
{
    uint64_t row = 0;
    if (t->storage == SG_AFFINE && t->affine.group)
        return rows * (double)t->cols * ((double)t->affine.bits / 8 + 4.0 / t->affine.group);
    if (t->storage == SG_Q8_GROUP && t->affine.group) return rows * (double)t->cols * (1 + 4.0 / t->affine.group);
    if (t->storage == SG_FP8) return rows * ((double)t->cols + 4);
    return sg_storage_row_bytes(t->storage, t->cols, &row, NULL) ? rows * (double)t->cols * 2 : rows * (double)row;
}

/* Adds `share` of a matrix to the sizes. */
static void add_matrix(struct sg_model_cost *out, const struct sg_graph *g, const struct sg_weight *w, int32_t layer,
                       double share)
{
    if (w->tensor < 0) return;
    const struct sg_tensor *t = g->tensors[w->tensor];
    double rows = (double)w->rows * share, n = rows * (double)t->cols, bytes = stored_bytes(t, rows);
    if (layer < 0) {
        out->shape.head += n;
        out->head_bytes += bytes;
    } else {
        out->shape.body += n;
        out->body_bytes += bytes;
    }
}

static void add_op(struct sg_model_cost *out, const struct sg_graph *g, const struct sg_op *op)
{
    if (op->code == SG_OP_LINEAR) add_matrix(out, g, &op->u.linear.weight, op->layer, 1);
    if (op->code == SG_OP_EXPERTS && op->u.experts.experts) {
        double share = (double)op->u.experts.k / op->u.experts.experts;
        add_matrix(out, g, &op->u.experts.gate, op->layer, share);
        add_matrix(out, g, &op->u.experts.up, op->layer, share);
        add_matrix(out, g, &op->u.experts.down, op->layer, share);
    }
    if (op->code == SG_OP_ATTEND) out->attend += 2.0 * op->u.attend.heads * (op->u.attend.d + op->u.attend.dv);
    if (op->code == SG_OP_DELTA) out->shape.delta_layers++;
}

void sg_model_cost_graph(struct sg_model_cost *out, const struct sg_graph *g)
{
    *out = (struct sg_model_cost){.shape = {.layers = g->layers}};
    for (uint32_t i = 0; i < g->ops_n; i++) add_op(out, g, &g->ops[i]);
    for (uint32_t i = 0; i < g->slots_n; i++) {
        const struct sg_slot *s = &g->slots[i];
        if (s->kind == SG_SLOT_K || s->kind == SG_SLOT_V) {
            out->shape.kv += (double)s->heads * s->width;
            out->kv_bytes += (double)sg_slot_row_bytes(s, SG_F16);
        } else
            out->state_bytes += (double)sg_slot_fixed_bytes(s);
        if (s->kind == SG_SLOT_DELTA) out->shape.state += (double)s->heads * s->width * s->depth;
    }
    double weights = out->shape.body + out->shape.head;
    double bytes = weights > 0 ? (out->body_bytes + out->head_bytes) / weights : 2;
    const char *storage = sg_model_storage(g);
    size_t n = strlen(storage);
    snprintf(out->storage, sizeof out->storage, "%.15s", storage);
    out->class = sg_class_of(bytes, n > 2 && (strstr(storage, "_k") || storage[0] == 'i'), storage);
}

const char *sg_model_storage(const struct sg_graph *g)
{
    double bytes[SG_STORAGE_N] = {0};
    int best = SG_F32;
    for (uint32_t i = 0; i < g->tensors_n; i++)
        if (g->tensors[i]->storage < SG_STORAGE_N) bytes[g->tensors[i]->storage] += (double)g->tensors[i]->bytes;
    for (int s = 0; s < SG_STORAGE_N; s++)
        if (bytes[s] > bytes[best]) best = s;
    return sg_storage_info((enum sg_storage)best)->name;
}
