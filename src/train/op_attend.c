/* op_attend.c: attend, for whole sequences that begin at position 0. Scores are computed again in the backward pass, some query
 * rows
 * at a time. With P the weights and O = P V: dV = P^T dO; dS = P (dO V^T - rowsum(P dO V^T)); through the soft cap
 * c tanh(s / c): times 1 - tanh^2; dQ = scale dS K; dK = scale dS^T Q; a sink has the weight p and gets -p rowsum(...);
 * with a gate, y = O sigmoid(g): dO = dy sigmoid(g), dg = dy O sigmoid'(g). One item is a sequence and a K/V head, so that no two
 * threads add to the same gradient.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "base/clones.h"
#include "train/train.h"

enum { QUERY_ROWS = 64 };

struct attend_pass {
    const struct sg_train_pass *p;
    const struct sg_attend *a;
    struct sg_train_view q, k, v, gate;
    struct sg_train_grad dq, dk, dv, dgate;
    const float *sinks, *dout;
    float *out, *scratch, *dsinks;   /* scratch [threads][each]; dsinks [sequences, heads] or NULL */
    size_t each;
};

/* A block of query rows of one head: positions [i0, i1) of the sequence that begins at row `first`, keys [lo, i1). */
struct attend_block {
    size_t first;
    uint32_t i0, i1, lo, h;
    float *weights;                  /* [i1 - i0, i1 - lo] */
    float *slopes;                   /* NULL, or 1 - tanh^2 of the soft cap, the same shape */
    float sink[QUERY_ROWS];          /* weight of the sink per row */
    uint32_t thread;
};

static void softmax_row(const struct attend_pass *w, struct attend_block *b, uint32_t r)
{
    const struct sg_attend *a = w->a;
    uint32_t keys = b->i1 - b->lo, pos = b->i0 + r;
    uint32_t from = a->window && pos + 1 > a->window ? pos + 1 - a->window - b->lo : 0, to = pos + 1 - b->lo;
    float *s = b->weights + (size_t)r * keys, max = w->sinks ? w->sinks[b->h] : -INFINITY;
    for (uint32_t j = from; j < to; j++) s[j] *= a->scale;
    for (uint32_t j = from; a->softcap > 0 && j < to; j++) {
        float tanh_s = tanhf(s[j] / a->softcap);
        s[j] = a->softcap * tanh_s;
        if (b->slopes) b->slopes[(size_t)r * keys + j] = 1 - tanh_s * tanh_s;
    }
    max = fmaxf(max, sg_train_max_row(s + from, to - from));
    b->sink[r] = w->sinks ? expf(w->sinks[b->h] - max) : 0;
    double sum = b->sink[r] + sg_train_exp_row(s + from, to - from, max, s + from);
    float inverse = (float)(1.0 / sum);
    b->sink[r] *= inverse;
    for (uint32_t j = 0; j < from; j++) s[j] = 0;
    for (uint32_t j = from; j < to; j++) s[j] *= inverse;
    for (uint32_t j = to; j < keys; j++) s[j] = 0;
}

static void block_weights(const struct attend_pass *w, struct attend_block *b)
{
    const struct sg_attend *a = w->a;
    uint32_t rows = b->i1 - b->i0, keys = b->i1 - b->lo, kv = b->h / (a->heads / a->kv_heads);
    w->p->m->gemm(w->p->m, &(struct sg_gemm){SG_GEMM_NT, rows, keys, a->d,
            w->q.data + (b->first + b->i0) * w->q.stride + b->h * a->d,
                                             w->k.data + (b->first + b->lo) * w->k.stride + kv * a->d, w->q.stride, w->k.stride,
                                                     keys,
                                             b->weights, 0}, b->thread);
    for (uint32_t r = 0; r < rows; r++) softmax_row(w, b, r);
}

static void block_out(const struct attend_pass *w, const struct attend_block *b, float *out, size_t ld)
{
    const struct sg_attend *a = w->a;
    uint32_t rows = b->i1 - b->i0, keys = b->i1 - b->lo, kv = b->h / (a->heads / a->kv_heads);
    w->p->m->gemm(w->p->m, &(struct sg_gemm){SG_GEMM_NN, rows, a->dv, keys, b->weights,
                                             w->v.data + (b->first + b->lo) * w->v.stride + kv * a->dv, keys, w->v.stride, ld,
                                                     out, 0}, b->thread);
}

/* The blocks of one item, in a fixed order. */
static void each_block(const struct attend_pass *w, uint32_t item, uint32_t thread,
                       void (*run)(const struct attend_pass *w, struct attend_block *b, float *scratch))
{
    const struct sg_attend *a = w->a;
    uint32_t s = item / a->kv_heads, kv = item % a->kv_heads, group = a->heads / a->kv_heads;
    size_t first = w->p->from[s], n = w->p->from[s + 1] - first;
    float *scratch = w->scratch + thread * w->each;
    for (uint32_t h = kv * group; h < (kv + 1) * group; h++)
        for (uint32_t i = 0; i < n; i += QUERY_ROWS) {
            struct attend_block b = {.first = first, .i0 = i, .h = h, .thread = thread};
            b.i1 = i + QUERY_ROWS < n ? i + QUERY_ROWS : (uint32_t)n;
            b.lo = a->window && i + 1 > a->window ? i + 1 - a->window : 0;
            b.weights = scratch;
            run(w, &b, scratch + (size_t)QUERY_ROWS * w->p->longest);
        }
}

static void block_forward(const struct attend_pass *w, struct attend_block *b, float *scratch)
{
    (void)scratch;
    const struct sg_attend *a = w->a;
    size_t width = (size_t)a->heads * a->dv;
    float *out = w->out + (b->first + b->i0) * width + b->h * a->dv;
    block_weights(w, b);
    block_out(w, b, out, width);
    for (uint32_t r = 0; w->gate.data && r < b->i1 - b->i0; r++)
        for (uint32_t c = 0; c < a->dv; c++)
            out[r * width + c] *= sg_train_sigmoid(w->gate.data[(b->first + b->i0 + r) * w->gate.stride + b->h * a->dv + c]);
}

/* dO [rows, dv] from dy, and the gradient of the gate. */
static void block_gate(const struct attend_pass *w, const struct attend_block *b, float *dO, float *O)
{
    const struct sg_attend *a = w->a;
    size_t width = (size_t)a->heads * a->dv;
    if (w->gate.data) block_out(w, b, O, a->dv);
    for (uint32_t r = 0; r < b->i1 - b->i0; r++) {
        size_t row = b->first + b->i0 + r;
        for (uint32_t c = 0; c < a->dv; c++) {
            float dy = w->dout[row * width + b->h * a->dv + c], s = 1;
            if (w->gate.data) s = sg_train_sigmoid(w->gate.data[row * w->gate.stride + b->h * a->dv + c]);
            dO[r * a->dv + c] = dy * s;
            if (w->dgate.data) w->dgate.data[row * w->dgate.stride + b->h * a->dv + c] += dy * O[r * a->dv + c] * s * (1 - s);
        }
    }
}

/* dS from dP. A masked key, whose weight is 0, has none, whatever its product was. */
SG_CLONES static void score_row(const float *weights, float *d, uint32_t keys, float sum, float scale)
{
    for (uint32_t j = 0; j < keys; j++) d[j] = weights[j] == 0 ? 0 : weights[j] * (d[j] - sum) * scale;
}

static void block_backward(const struct attend_pass *w, struct attend_block *b, float *scratch)
{
    const struct sg_attend *a = w->a;
    const struct sg_train_math *m = w->p->m;
    uint32_t rows = b->i1 - b->i0, keys = b->i1 - b->lo, kv = b->h / (a->heads / a->kv_heads);
    size_t square = (size_t)QUERY_ROWS * w->p->longest, q0 = b->first + b->i0, k0 = b->first + b->lo;
    float *dP = scratch, *dO = dP + 2 * square, *O = dO + QUERY_ROWS * a->dv;
    b->slopes = a->softcap > 0 ? dP + square : NULL;
    block_weights(w, b);
    block_gate(w, b, dO, O);
    if (w->dv.data)
        m->gemm(m, &(struct sg_gemm){SG_GEMM_TN, keys, a->dv, rows, b->weights, dO, keys, a->dv, w->dv.stride,
                                     w->dv.data + k0 * w->dv.stride + kv * a->dv, 1}, b->thread);
    m->gemm(m, &(struct sg_gemm){SG_GEMM_NT, rows, keys, a->dv, dO, w->v.data + k0 * w->v.stride + kv * a->dv, a->dv, w->v.stride,
                                 keys, dP, 0}, b->thread);
    for (uint32_t r = 0; r < rows; r++) {
        float *P = b->weights + (size_t)r * keys, *d = dP + (size_t)r * keys;
        double sum = sg_train_dot_row(P, d, keys);
        score_row(P, d, keys, (float)sum, a->scale);
        for (uint32_t j = 0; b->slopes && j < keys; j++)
            if (d[j] != 0) d[j] *= b->slopes[(size_t)r * keys + j];
        if (w->dsinks) w->dsinks[b->h] -= b->sink[r] * (float)sum;
    }
    if (w->dq.data)
        m->gemm(m, &(struct sg_gemm){SG_GEMM_NN, rows, a->d, keys, dP, w->k.data + k0 * w->k.stride + kv * a->d, keys,
                w->k.stride,
                                     w->dq.stride, w->dq.data + q0 * w->dq.stride + b->h * a->d, 1}, b->thread);
    if (w->dk.data)
        m->gemm(m, &(struct sg_gemm){SG_GEMM_TN, keys, a->d, rows, dP, w->q.data + q0 * w->q.stride + b->h * a->d, keys,
                w->q.stride,
                                     w->dk.stride, w->dk.data + k0 * w->dk.stride + kv * a->d, 1}, b->thread);
}

static void forward_item(void *arg, uint32_t item, uint32_t thread)
{
    const struct attend_pass *w = arg;
    each_block(w, item, thread, block_forward);
}

static void backward_item(void *arg, uint32_t item, uint32_t thread)
{
    struct attend_pass w = *(const struct attend_pass *)arg;
    if (w.dsinks) w.dsinks += (size_t)(item / w.a->kv_heads) * w.a->heads;
    each_block(&w, item, thread, block_backward);
}

static segue_status attend_work(struct sg_train_pass *p, const struct sg_op *op, struct attend_pass *w)
{
    const struct sg_attend *a = &op->u.attend;
    *w = (struct attend_pass){.p = p, .a = a, .q = sg_train_in(p, &op->in[0]), .k = sg_train_in(p, &op->in[1])};
    w->v = sg_train_in(p, &op->in[2]);
    w->gate = sg_train_in(p, &op->in[3]);
    w->sinks = sg_train_vector(p, &a->sinks);
    w->each = (size_t)QUERY_ROWS * (3 * p->longest + 2 * a->dv);
    w->scratch = sg_train_take(p, p->m->threads * w->each);
    return w->scratch ? SEGUE_OK : SEGUE_EMEMORY;
}

segue_status sg_train_attend(struct sg_train_pass *p, const struct sg_op *op, float *out)
{
    struct attend_pass w;
    SG_TRY(attend_work(p, op, &w));
    w.out = out;
    sg_train_each(p, p->sequences * w.a->kv_heads, forward_item, &w);
    sg_train_put(p, w.scratch);
    return SEGUE_OK;
}

segue_status sg_train_attend_back(struct sg_train_pass *p, const struct sg_op *op, const float *dout)
{
    struct attend_pass w;
    float *sinks = sg_train_vector_grad(p, &op->u.attend.sinks);
    SG_TRY(attend_work(p, op, &w));
    w.dout = dout;
    SG_TRY(sg_train_grad_of(p, &op->in[0], &w.dq));
    SG_TRY(sg_train_grad_of(p, &op->in[1], &w.dk));
    SG_TRY(sg_train_grad_of(p, &op->in[2], &w.dv));
    SG_TRY(sg_train_grad_of(p, &op->in[3], &w.dgate));
    uint32_t heads = w.a->heads;
    if (sinks) {
        w.dsinks = sg_train_take(p, (size_t)p->sequences * heads);
        if (!w.dsinks) return SEGUE_EMEMORY;
        memset(w.dsinks, 0, (size_t)p->sequences * heads * sizeof *w.dsinks);
    }
    sg_train_each(p, p->sequences * w.a->kv_heads, backward_item, &w);
    for (uint32_t i = 0; sinks && i < p->sequences * heads; i++) sinks[i % heads] += w.dsinks[i];
    sg_train_put(p, w.dsinks);
    sg_train_put(p, w.scratch);
    return SEGUE_OK;
}
