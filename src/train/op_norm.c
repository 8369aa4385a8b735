/* op_norm.c: norm. y = (w n + b) silu(gate), n = (x - mean) / std or x / rms, per group of columns. With e = dy silu(gate) w:
 * dx = (e - mean(e) - n mean(e n)) / std (rms: without mean(e)); dw = sum dy silu(gate) n; db = sum dy silu(gate);
 * dgate = dy (w n + b) silu'(gate).
 * SPDX-License-Identifier: MIT */
#include <math.h>

#include "base/clones.h"
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
    double mean = w->n->kind == SG_NORM_LAYER ? sg_train_sum_row(x, w->group) / w->group : 0;
    double squares = sg_train_squares_row(x, w->group, mean);
    out[0] = (float)mean;
    out[1] = (float)(1.0 / sqrt(squares / w->group + (double)w->n->eps));
}

static float weight_at(const struct norm_work *w, uint32_t c)
{
    return w->weight ? w->weight[c] + (w->n->plus_one ? 1.0f : 0.0f) : 1.0f;
}

/* Without a gate: y = (x - mean) * scale * (w + plus) + bias. */
SG_CLONES static void plain_row(const float *x, const float s[2], const float *w, float plus, const float *bias, uint32_t n,
                                float *y)
{
    float mean = s[0], scale = s[1];
    for (uint32_t c = 0; c < n; c++) y[c] = (x[c] - mean) * scale * (w ? w[c] + plus : 1.0f) + (bias ? bias[c] : 0);
}

static void norm_row(void *arg, uint32_t t, uint32_t thread)
{
    (void)thread;
    const struct norm_work *w = arg;
    for (uint32_t at = 0; at < w->x.width; at += w->group) {
        const float *x = w->x.data + t * w->x.stride + at;
        float s[2], *y = w->out + (size_t)t * w->x.width + at;
        stats_of(w, x, s);
        plain_row(x, s, w->weight, w->n->plus_one ? 1.0f : 0.0f, w->bias, w->group, y);
        for (uint32_t c = 0; w->gate.data && c < w->group; c++)
            y[c] *= sg_train_act_of(SG_ACT_SILU, w->gate.data[t * w->gate.stride + at + c]);
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

enum { LANES = 16 };

/* Sums of e and of e n, in lanes that are added in one order. */
SG_CLONES static void plain_sums(const float *x, const float *dy, const float s[2], const float *w, float plus, uint32_t n,
                                 double out[2])
{
    double sums[LANES] = {0}, along[LANES] = {0};
    uint32_t c = 0;
    for (; c + LANES <= n; c += LANES)
        for (uint32_t j = 0; j < LANES; j++) {
            float e = dy[c + j] * (w ? w[c + j] + plus : 1.0f);
            sums[j] += (double)e;
            along[j] += (double)e * (double)((x[c + j] - s[0]) * s[1]);
        }
    for (uint32_t j = 0; c < n; c++, j++) {
        float e = dy[c] * (w ? w[c] + plus : 1.0f);
        sums[j] += (double)e;
        along[j] += (double)e * (double)((x[c] - s[0]) * s[1]);
    }
    for (uint32_t j = 0; j < LANES; j++) out[0] += sums[j], out[1] += along[j];
}

SG_CLONES static void plain_add(const float *x, const float *dy, const float s[2], const float *w, float plus, float mean,
                                float along, uint32_t n, float *dx)
{
    float center = s[0], scale = s[1];
    for (uint32_t c = 0; c < n; c++) {
        float e = dy[c] * (w ? w[c] + plus : 1.0f);
        dx[c] += (e - mean - (x[c] - center) * scale * along) * scale;
    }
}

/* One group of columns without a gate. */
static void plain_back(const struct norm_work *w, const float *x, const float *dy, const float s[2], float *dx)
{
    double sums[2] = {0};
    float plus = w->n->plus_one ? 1.0f : 0.0f;
    if (!dx) return;
    plain_sums(x, dy, s, w->weight, plus, w->group, sums);
    plain_add(x, dy, s, w->weight, plus, w->n->kind == SG_NORM_LAYER ? (float)(sums[0] / w->group) : 0,
              (float)(sums[1] / w->group), w->group, dx);
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
        if (!gate) {
            plain_back(w, x, dy, s, w->dx.data ? w->dx.data + t * w->dx.stride + at : NULL);
            continue;
        }
        for (uint32_t c = 0; c < w->group; c++) {
            float n = (x[c] - s[0]) * s[1], silu = sg_train_act_of(SG_ACT_SILU, gate[c]);
            float e = dy[c] * silu * weight_at(w, c);
            mean += e;
            along += (double)e * n;
            if (w->dgate.data)
                w->dgate.data[t * w->dgate.stride + at + c] += dy[c] * (n * weight_at(w, c) + (w->bias ? w->bias[c] : 0)) *
                                                               sg_train_act_slope(SG_ACT_SILU, gate[c]);
        }
        float m = w->n->kind == SG_NORM_LAYER ? (float)(mean / w->group) : 0, a = (float)(along / w->group);
        for (uint32_t c = 0; w->dx.data && c < w->group; c++) {
            float n = (x[c] - s[0]) * s[1], silu = sg_train_act_of(SG_ACT_SILU, gate[c]);
            w->dx.data[t * w->dx.stride + at + c] += (dy[c] * silu * weight_at(w, c) - m - n * a) * s[1];
        }
    }
}

/* dw and db of some columns of one row without a gate. */
SG_CLONES static void plain_columns(const float *x, const float *dy, const float s[2], uint32_t n, float *restrict dw,
                                    float *restrict db)
{
    float center = s[0], scale = s[1];
    for (uint32_t c = 0; dw && c < n; c++) dw[c] += dy[c] * (x[c] - center) * scale;
    for (uint32_t c = 0; db && c < n; c++) db[c] += dy[c];
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
            if (!w->gate.data) {
                plain_columns(w->x.data + t * w->x.stride + at + from, w->dout + (size_t)t * w->x.width + at + from, s, to - from,
                              w->dweight ? w->dweight + from : NULL, w->dbias ? w->dbias + from : NULL);
                continue;
            }
            for (uint32_t c = from; c < to; c++) {
                float e = w->dout[(size_t)t * w->x.width + at + c];
                e *= sg_train_act_of(SG_ACT_SILU, w->gate.data[t * w->gate.stride + at + c]);
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
