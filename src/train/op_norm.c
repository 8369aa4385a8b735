/* op_norm.c: norm. y = (w n + b) silu(gate), n = (x - mean) / std or x / rms, per group of columns. With e = dy silu(gate) w:
 * dx = (e - mean(e) - n mean(e n)) / std (rms: without mean(e)); dw = sum dy silu(gate) n; db = sum dy silu(gate);
 * dgate = dy (w n + b) silu'(gate).
 * SPDX-License-Identifier: MIT */
#include <math.h>

#include "train/train.h"

struct norm_work {
    const struct sg_norm *n;
    struct sg_train_view x, gate;
    const float *weight, *bias, *dout;
    float *out, *dweight, *dbias;
    struct sg_train_grad dx, dgate;
    float *stats;                    /* [rows, groups] mean and 1 / std */
    uint32_t group;                  /* columns */
};

static void stats_of(const struct norm_work *w, const float *x, float out[2])
{
    double mean = 0, squares = 0;
    for (uint32_t c = 0; w->n->kind == SG_NORM_LAYER && c < w->group; c++) mean += x[c];
    mean /= w->group;
    for (uint32_t c = 0; c < w->group; c++) squares += (x[c] - mean) * (x[c] - mean);
    out[0] = (float)mean;
    out[1] = (float)(1.0 / sqrt(squares / w->group + (double)w->n->eps));
}

static float weight_at(const struct norm_work *w, uint32_t c)
{
    return w->weight ? w->weight[c] + (w->n->plus_one ? 1.0f : 0.0f) : 1.0f;
}

static void norm_row(void *arg, uint32_t t, uint32_t thread)
{
    (void)thread;
    const struct norm_work *w = arg;
    for (uint32_t at = 0; at < w->x.width; at += w->group) {
        const float *x = w->x.data + t * w->x.stride + at;
        float s[2], *y = w->out + (size_t)t * w->x.width + at;
        stats_of(w, x, s);
        for (uint32_t c = 0; c < w->group; c++) {
            y[c] = (x[c] - s[0]) * s[1] * weight_at(w, c) + (w->bias ? w->bias[c] : 0);
            if (w->gate.data) y[c] *= sg_train_act_of(SG_ACT_SILU, w->gate.data[t * w->gate.stride + at + c]);
        }
    }
}

static struct norm_work work_of(struct sg_train_pass *p, const struct sg_op *op)
{
    const struct sg_norm *n = &op->u.norm;
    struct norm_work w = {.n = n, .x = sg_train_in(p, &op->in[0]), .gate = sg_train_in(p, &op->in[1])};
    w.weight = sg_train_vector(p, &n->weight);
    w.bias = sg_train_vector(p, &n->bias);
    w.group = w.x.width / n->groups;
    return w;
}

segue_status sg_train_norm(struct sg_train_pass *p, const struct sg_op *op, float *out)
{
    struct norm_work w = work_of(p, op);
    w.out = out;
    sg_train_each(p, sg_train_rows(p, op), norm_row, &w);
    return SEGUE_OK;
}

static void back_row(void *arg, uint32_t t, uint32_t thread)
{
    (void)thread;
    const struct norm_work *w = arg;
    for (uint32_t at = 0; at < w->x.width; at += w->group) {
        const float *x = w->x.data + t * w->x.stride + at, *dy = w->dout + (size_t)t * w->x.width + at;
        const float *gate = w->gate.data ? w->gate.data + t * w->gate.stride + at : NULL;
        float *s = w->stats + 2 * ((size_t)t * w->n->groups + at / w->group);
        double mean = 0, along = 0;
        stats_of(w, x, s);
        for (uint32_t c = 0; c < w->group; c++) {
            float n = (x[c] - s[0]) * s[1], silu = gate ? sg_train_act_of(SG_ACT_SILU, gate[c]) : 1.0f;
            float e = dy[c] * silu * weight_at(w, c);
            mean += e;
            along += (double)e * n;
            if (gate && w->dgate.data)
                w->dgate.data[t * w->dgate.stride + at + c] += dy[c] * (n * weight_at(w, c) + (w->bias ? w->bias[c] : 0)) *
                                                               sg_train_act_slope(SG_ACT_SILU, gate[c]);
        }
        float m = w->n->kind == SG_NORM_LAYER ? (float)(mean / w->group) : 0, a = (float)(along / w->group);
        for (uint32_t c = 0; w->dx.data && c < w->group; c++) {
            float n = (x[c] - s[0]) * s[1], silu = gate ? sg_train_act_of(SG_ACT_SILU, gate[c]) : 1.0f;
            w->dx.data[t * w->dx.stride + at + c] += (dy[c] * silu * weight_at(w, c) - m - n * a) * s[1];
        }
    }
}

struct norm_columns { const struct norm_work *w; uint32_t rows; };
enum { COLUMN_BLOCK = 32 };

/* Columns of the weight, summed over rows and groups in ascending order. */
static void back_columns(void *arg, uint32_t item, uint32_t thread)
{
    (void)thread;
    const struct norm_columns *v = arg;
    const struct norm_work *w = v->w;
    uint32_t from = item * COLUMN_BLOCK, to = from + COLUMN_BLOCK < w->group ? from + COLUMN_BLOCK : w->group;
    for (uint32_t t = 0; t < v->rows; t++)
        for (uint32_t at = 0; at < w->x.width; at += w->group) {
            const float *s = w->stats + 2 * ((size_t)t * w->n->groups + at / w->group);
            for (uint32_t c = from; c < to; c++) {
                float e = w->dout[(size_t)t * w->x.width + at + c];
                if (w->gate.data) e *= sg_train_act_of(SG_ACT_SILU, w->gate.data[t * w->gate.stride + at + c]);
                if (w->dweight) w->dweight[c] += e * (w->x.data[t * w->x.stride + at + c] - s[0]) * s[1];
                if (w->dbias) w->dbias[c] += e;
            }
        }
}

segue_status sg_train_norm_back(struct sg_train_pass *p, const struct sg_op *op, const float *dout)
{
    struct norm_work w = work_of(p, op);
    uint32_t rows = sg_train_rows(p, op);
    w.dout = dout;
    w.dweight = sg_train_vector_grad(p, &op->u.norm.weight);
    w.dbias = sg_train_vector_grad(p, &op->u.norm.bias);
    SG_TRY(sg_train_grad_of(p, &op->in[0], &w.dx));
    SG_TRY(sg_train_grad_of(p, &op->in[1], &w.dgate));
    w.stats = sg_train_take(p, (size_t)2 * rows * op->u.norm.groups);
    if (!w.stats) return SEGUE_EMEMORY;
    sg_train_each(p, rows, back_row, &w);
    struct norm_columns v = {&w, rows};
    if (w.dweight || w.dbias) sg_train_each(p, (w.group + COLUMN_BLOCK - 1) / COLUMN_BLOCK, back_columns, &v);
    sg_train_put(p, w.stats);
    return SEGUE_OK;
}
