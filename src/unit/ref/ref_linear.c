/* ref_linear.c: the ops with large weights: linear (with LoRA adapters) and experts. A weight row is converted to fp32 once and
 * multiplied with all rows of the pass.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "unit/ref/ref.h"

enum { BLOCK_ROWS = 8 };             /* weight rows per block: a row of x is loaded once for all of them */

/* --- linear --- */

/* Shared by the threads of one op; each writes other columns of `out`. */
struct linear_task {
    const struct ref_pass *pass;
    const struct sg_tensor *tensor;
    struct ref_view x, residual;     /* residual.data NULL: none */
    const float *bias;               /* [n] or NULL */
    float *rows;                     /* [threads][BLOCK_ROWS, k] */
    float *out;                      /* [T, n] */
    uint32_t at, n, t_n;             /* first row of the weight, columns and rows of out */
    atomic_uint next_buffer;         /* index of the next free buffer in `rows` */
};

/* out[t][from..to) = x[t] . W[at + from..to) (+ bias) (+ residual) */
static void linear_range(void *arg, uint32_t from, uint32_t to)
{
    struct linear_task *w = arg;
    size_t k = w->x.width;
    float *rows = w->rows + atomic_fetch_add(&w->next_buffer, 1u) * BLOCK_ROWS * k;
    for (uint32_t r = from; r < to && !ref_stopped(w->pass); r += BLOCK_ROWS) {
        uint32_t block = to - r < BLOCK_ROWS ? to - r : BLOCK_ROWS;
        for (uint32_t i = 0; i < block; i++)
            sg_tensor_row(w->tensor, (uint64_t)w->at + r + i, 0, k, rows + i * k);
        for (uint32_t t = 0; t < w->t_n; t++) {
            const float *x = ref_row(w->x, t);
            float *y = w->out + (size_t)t * w->n + r;
            for (uint32_t i = 0; i < block; i++) y[i] = ref_dot(rows + i * k, x, k);
            if (w->bias)
                for (uint32_t i = 0; i < block; i++) y[i] += w->bias[r + i];
            if (w->residual.data)
                for (uint32_t i = 0; i < block; i++) y[i] += ref_row(w->residual, t)[r + i];
        }
    }
}

/* out[t] += B (A x[t]) for the rows [from, to) of one span. A is [lora_rank, k], B is [rows of the tensor, lora_rank]. */
static segue_status add_adapter(struct ref_pass *p, const struct linear_task *w,
                                const struct sg_lora_pair *pair, uint32_t from, uint32_t to)
{
    float *low = ref_scratch(p, pair->rank, sizeof *low);
    if (!low) return SEGUE_EMEMORY;
    for (uint32_t t = from; t < to; t++) {
        for (uint32_t r = 0; r < pair->rank; r++)
            low[r] = ref_dot(pair->a + (size_t)r * w->x.width, ref_row(w->x, t), w->x.width);
        for (uint32_t i = 0; i < w->n; i++)
            w->out[(size_t)t * w->n + i] +=
                ref_dot(pair->b + ((size_t)w->at + i) * pair->rank, low, pair->rank);
    }
    return SEGUE_OK;
}

/* y = x W^T (+ bias) (+ residual), then the adapters of each span in order. R = 0 reads no weight, so that prefill chunks do not
 * compute the output head. */
segue_status ref_linear(struct ref_pass *p, const struct sg_op *op, float *out)
{
    const struct sg_linear *l = &op->u.linear;
    struct linear_task w = {
        .pass = p, .tensor = p->graph->tensors[l->weight.tensor], .out = out, .at = l->weight.at};
    /* wanted 1: the op is after `rows` and computes only the selected rows (the output head). */
    uint32_t wanted = p->graph->values[op->out].wanted;
    w.t_n = p->rows_n[wanted];
    w.n = l->weight.rows;
    w.x = ref_view_of(p, &op->in[0]);
    w.residual = ref_view_of(p, &op->in[1]);
    if (!w.t_n) return SEGUE_OK;
    SG_TRY(ref_vector(p, &l->bias, &w.bias));
    w.rows = ref_scratch(p, (size_t)p->threads * BLOCK_ROWS * w.x.width, sizeof *w.rows);
    if (!w.rows) return SEGUE_EMEMORY;
    ref_parallel(p->threads, w.n, linear_range, &w);
    /* Bytes as stored in the file: the report compares them with the memory bandwidth. */
    p->weight_bytes += w.tensor->bytes / w.tensor->rows * w.n;
    for (uint32_t s = 0; s < p->spans_n; s++)
        for (uint32_t i = 0; i < p->spans[s].loras_n; i++) {
            const struct sg_lora_pair *pair = sg_lora_find(p->spans[s].loras[i], w.tensor);
            if (pair) SG_TRY(add_adapter(p, &w, pair, p->from[wanted][s], p->from[wanted][s + 1]));
        }
    return SEGUE_OK;
}

/* --- experts --- */

/* Shared by the threads of one op; each computes other rows of `out`. */
struct experts_work {
    const struct ref_pass *pass;
    const struct sg_experts *e;
    struct ref_view x, routing;
    float *buffers;                  /* [threads][max(k, ff) + ff]: a weight row, then the hidden vector */
    float *out;                      /* [T, d] zeroed */
    uint32_t d;
    atomic_uint next_buffer;
};

/* Dot product of x with row r of a weight that stacks all experts. */
static float expert_dot(const struct experts_work *w, const struct sg_weight *m, uint64_t r, const float *x,
                        float *row)
{
    const struct sg_tensor *t = w->pass->graph->tensors[m->tensor];
    sg_tensor_row(t, m->at + r, 0, t->cols, row);
    return ref_dot(row, x, t->cols);
}

/* y_t = sum_i weight_i * down_e(act(gate_e x_t) * up_e x_t), experts in the order of the routing. */
static void experts_range(void *arg, uint32_t from, uint32_t to)
{
    struct experts_work *w = arg;
    const struct sg_experts *e = w->e;
    uint32_t widest = w->x.width > e->ff ? w->x.width : e->ff;
    float *row = w->buffers + atomic_fetch_add(&w->next_buffer, 1u) * (size_t)(widest + e->ff),
          *hidden = row + widest;
    for (uint32_t t = from; t < to; t++)
        for (uint32_t i = 0; i < e->k && !ref_stopped(w->pass); i++) {
            /* Indices below 2^24 are exact in fp32. */
            uint64_t expert = (uint64_t)ref_row(w->routing, t)[i];
            float weight = ref_row(w->routing, t)[e->k + i];
            for (uint32_t f = 0; f < e->ff; f++) {
                float gate = expert_dot(w, &e->gate, expert * e->ff + f, ref_row(w->x, t), row);
                float up = expert_dot(w, &e->up, expert * e->ff + f, ref_row(w->x, t), row);
                hidden[f] = ref_act(e->act, gate) * up;
            }
            for (uint32_t c = 0; c < w->d; c++)
                w->out[(size_t)t * w->d + c] +=
                    weight * expert_dot(w, &e->down, expert * w->d + c, hidden, row);
        }
}

/* Mixture of experts: in[1] has, per row, k expert indices and then k weights (op route). */
segue_status ref_experts(struct ref_pass *p, const struct sg_op *op, float *out)
{
    const struct sg_experts *e = &op->u.experts;
    struct experts_work w = {.pass = p, .e = e, .out = out, .d = p->graph->values[op->out].width};
    uint32_t t_n = p->rows_n[p->graph->values[op->out].wanted];
    w.x = ref_view_of(p, &op->in[0]);
    w.routing = ref_view_of(p, &op->in[1]);
    /* Expert indices come from a value, so they are checked before they index memory. */
    for (uint32_t t = 0; t < t_n; t++)
        for (uint32_t i = 0; i < e->k; i++) {
            float expert = ref_row(w.routing, t)[i];
            if (!(expert >= 0 && expert < (float)e->experts))
                return sg_fail(p->err, SEGUE_EINTERNAL,
                               "run: op experts (layer %d): expert %g of %u; report this", op->layer,
                               (double)expert, e->experts);
        }
    uint32_t widest = w.x.width > e->ff ? w.x.width : e->ff;
    w.buffers = ref_scratch(p, (size_t)p->threads * (widest + e->ff), sizeof *w.buffers);
    if (!w.buffers) return SEGUE_EMEMORY;
    memset(out, 0, (size_t)t_n * w.d * sizeof *out);
    ref_parallel(p->threads, t_n, experts_range, &w);
    const struct sg_weight *parts[] = {&e->gate, &e->up, &e->down};
    for (int i = 0; i < 3; i++) {
        const struct sg_tensor *t = p->graph->tensors[parts[i]->tensor];
        p->weight_bytes += t->bytes / t->rows * (parts[i]->rows / e->experts) * e->k * t_n;
    }
    return SEGUE_OK;
}
