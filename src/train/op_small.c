/* op_small.c: embed, rope, conv, glu, act, add and scale. embed: dtable[id] += scale dy. rope: the inverse rotation of dy.
 * conv, y = act(u): du = dy act'(u), dx_{t-taps+1+j} += w_j du, dw_j = sum du x. glu: dgate = dy up act'(gate), dup = dy
 * act(gate).
 * act: dy act'(x). add: dy to both. scale: dx = dy w, dw = sum dy x.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "base/clones.h"
#include "train/train.h"

enum { COLUMN_BLOCK = 32, ACT_COLUMNS = 256 };

/* Shared by the items of one op. */
struct small_work {
    const struct sg_train_pass *p;
    const struct sg_op *op;
    struct sg_train_view x, y;       /* in[0], in[1] */
    struct sg_train_grad dx, dy;
    const float *dout, *weight, *bias;
    float *out, *dweight, *dbias;
    uint32_t rows, width;
};

static struct small_work work_of(struct sg_train_pass *p, const struct sg_op *op)
{
    return (struct small_work){.p = p, .op = op, .x = sg_train_in(p, &op->in[0]), .y = sg_train_in(p, &op->in[1]),
                               .rows = sg_train_rows(p, op), .width = p->g->values[op->out].width};
}

static segue_status back_of(struct sg_train_pass *p, const struct sg_op *op, const float *dout, struct small_work *w)
{
    *w = work_of(p, op);
    w->dout = dout;
    SG_TRY(sg_train_grad_of(p, &op->in[0], &w->dx));
    return sg_train_grad_of(p, &op->in[1], &w->dy);
}

/* --- embed --- */

static void table_row(const struct sg_train_pass *p, const struct sg_weight *w, uint32_t row, float *out)
{
    const struct sg_train_tensor *s = &p->t->tensors[w->tensor];
    const struct sg_tensor *t = p->g->tensors[w->tensor];
    if (s->param < 0) sg_tensor_row(t, (uint64_t)w->at + row, 0, t->cols, out);
    else memcpy(out, p->t->params[s->param].field[0] + ((size_t)w->at + row) * t->cols, t->cols * sizeof *out);
}

segue_status sg_train_embed(struct sg_train_pass *p, const struct sg_op *op, float *out)
{
    const struct sg_embed *e = &op->u.embed;
    uint32_t d = p->g->values[op->out].width;
    float *position = sg_train_take(p, d);
    if (!position) return SEGUE_EMEMORY;
    for (uint32_t t = 0; t < p->rows[0]; t++) {
        float *y = out + (size_t)t * d;
        table_row(p, &e->table, (uint32_t)p->tokens[t], y);
        for (uint32_t c = 0; c < d; c++) y[c] *= e->scale;
        if (e->positions.tensor < 0) continue;
        table_row(p, &e->positions, p->position[t], position);
        for (uint32_t c = 0; c < d; c++) y[c] += position[c];
    }
    sg_train_put(p, position);
    return SEGUE_OK;
}

static void embed_columns(void *arg, uint32_t item, uint32_t thread)
{
    (void)thread;
    const struct small_work *w = arg;
    const struct sg_embed *e = &w->op->u.embed;
    for (uint32_t t = 0; t < w->rows; t++)
        for (uint32_t c = item * COLUMN_BLOCK; c < (item + 1) * COLUMN_BLOCK && c < w->width; c++) {
            float d = w->dout[(size_t)t * w->width + c];
            if (w->dweight) w->dweight[((size_t)e->table.at + (uint32_t)w->p->tokens[t]) * w->width + c] += e->scale * d;
            if (w->dbias) w->dbias[((size_t)e->positions.at + w->p->position[t]) * w->width + c] += d;
        }
}

segue_status sg_train_embed_back(struct sg_train_pass *p, const struct sg_op *op, const float *dout)
{
    struct small_work w = {.p = p, .op = op, .dout = dout, .rows = p->rows[0], .width = p->g->values[op->out].width};
    w.dweight = sg_train_vector_grad(p, &op->u.embed.table);
    w.dbias = sg_train_vector_grad(p, &op->u.embed.positions);
    sg_train_each(p, (w.width + COLUMN_BLOCK - 1) / COLUMN_BLOCK, embed_columns, &w);
    return SEGUE_OK;
}

/* --- rope --- */

/* Rotates one row by sign times the angle of its position. add 1: y += the result; 0: y = the result. */
static void rope_row(const struct small_work *w, uint32_t t, const float *x, float *y, float sign, int add)
{
    const struct sg_rope *r = &w->op->u.rope;
    uint32_t pairs = w->p->g->ropes[r->table].pairs;
    const float *cosine = w->p->t->angles[r->table] + (size_t)w->p->position[t] * pairs;
    const float *sine = cosine + w->p->t->info.sequence_tokens * pairs;
    for (uint32_t h = 0; h < r->heads; h++) {
        const float *a = x + (size_t)h * r->head_width;
        float *b = y + (size_t)h * r->head_width;
        for (uint32_t j = 0; j < pairs; j++) {
            float s = sign * sine[j], low = a[j] * cosine[j] - a[j + pairs] * s, high = a[j + pairs] * cosine[j] + a[j] * s;
            b[j] = add ? b[j] + low : low;
            b[j + pairs] = add ? b[j + pairs] + high : high;
        }
        for (uint32_t c = 2 * pairs; c < r->head_width; c++) b[c] = add ? b[c] + a[c] : a[c];
    }
}

static void rope_item(void *arg, uint32_t t, uint32_t thread)
{
    (void)thread;
    const struct small_work *w = arg;
    float sign = (float)w->op->u.rope.sign;
    if (w->out) rope_row(w, t, w->x.data + t * w->x.stride, w->out + (size_t)t * w->width, sign, 0);
    else rope_row(w, t, w->dout + (size_t)t * w->width, w->dx.data + t * w->dx.stride, -sign, 1);
}

segue_status sg_train_rope(struct sg_train_pass *p, const struct sg_op *op, float *out)
{
    struct small_work w = work_of(p, op);
    w.out = out;
    sg_train_each(p, w.rows, rope_item, &w);
    return SEGUE_OK;
}

segue_status sg_train_rope_back(struct sg_train_pass *p, const struct sg_op *op, const float *dout)
{
    struct small_work w;
    SG_TRY(back_of(p, op, dout, &w));
    if (w.dx.data) sg_train_each(p, w.rows, rope_item, &w);
    return SEGUE_OK;
}

/* --- conv --- */

static void conv_item(void *arg, uint32_t item, uint32_t thread)
{
    (void)thread;
    const struct small_work *w = arg;
    const struct sg_conv *v = &w->op->u.conv;
    for (uint32_t t = 0; t < w->rows; t++)
        for (uint32_t c = item * COLUMN_BLOCK; c < (item + 1) * COLUMN_BLOCK && c < w->width; c++) {
            uint32_t past = w->p->position[t] < v->taps - 1 ? w->p->position[t] : v->taps - 1;
            const float *tap = w->weight + (size_t)c * v->taps + v->taps - 1, *x = w->x.data + t * w->x.stride + c;
            float sum = w->bias ? w->bias[c] : 0;
            for (uint32_t j = 0; j <= past; j++) sum += tap[-(ptrdiff_t)j] * x[-(ptrdiff_t)(j * w->x.stride)];
            if (w->out) {
                w->out[(size_t)t * w->width + c] = sg_train_act_of(v->act, sum);
                continue;
            }
            float du = w->dout[(size_t)t * w->width + c] * sg_train_act_slope(v->act, sum);
            if (w->dbias) w->dbias[c] += du;
            for (uint32_t j = 0; j <= past; j++) {
                if (w->dweight) w->dweight[(size_t)c * v->taps + v->taps - 1 - j] += du * x[-(ptrdiff_t)(j * w->x.stride)];
                if (w->dx.data) w->dx.data[(t - j) * w->dx.stride + c] += du * tap[-(ptrdiff_t)j];
            }
        }
}

segue_status sg_train_conv(struct sg_train_pass *p, const struct sg_op *op, float *out)
{
    struct small_work w = work_of(p, op);
    w.out = out;
    w.weight = sg_train_vector(p, &op->u.conv.weight);
    w.bias = sg_train_vector(p, &op->u.conv.bias);
    sg_train_each(p, (w.width + COLUMN_BLOCK - 1) / COLUMN_BLOCK, conv_item, &w);
    return SEGUE_OK;
}

segue_status sg_train_conv_back(struct sg_train_pass *p, const struct sg_op *op, const float *dout)
{
    struct small_work w;
    SG_TRY(back_of(p, op, dout, &w));
    w.weight = sg_train_vector(p, &op->u.conv.weight);
    w.bias = sg_train_vector(p, &op->u.conv.bias);
    w.dweight = sg_train_vector_grad(p, &op->u.conv.weight);
    w.dbias = sg_train_vector_grad(p, &op->u.conv.bias);
    sg_train_each(p, (w.width + COLUMN_BLOCK - 1) / COLUMN_BLOCK, conv_item, &w);
    return SEGUE_OK;
}

/* --- elementwise --- */

SG_CLONES static void element_forward(void *arg, uint32_t t, uint32_t thread)
{
    (void)thread;
    const struct small_work *w = arg;
    const float *x = w->x.data + t * w->x.stride, *y = w->y.data ? w->y.data + t * w->y.stride : NULL;
    float *out = w->out + (size_t)t * w->width;
    switch (w->op->code) {
    case SG_OP_GLU:
        sg_train_act_row(w->op->u.glu.act, x, w->width, out, NULL);
        for (uint32_t c = 0; c < w->width; c++) out[c] *= y[c];
        return;
    case SG_OP_ACT: sg_train_act_row(w->op->u.act.act, x, w->width, out, NULL); return;
    case SG_OP_ADD:
        for (uint32_t c = 0; c < w->width; c++) out[c] = x[c] + y[c];
        return;
    default:
        for (uint32_t c = 0; c < w->width; c++) out[c] = x[c] * (w->weight ? w->weight[w->bias ? 0 : c] : w->op->u.scale.value);
    }
}

/* glu and act: ACT_COLUMNS at a time. */
static void act_backward(const struct small_work *w, enum sg_act act, const float *x, const float *y, const float *d, float *dx,
                         float *dy)
{
    float value[ACT_COLUMNS], slope[ACT_COLUMNS];
    for (uint32_t at = 0, n; at < w->width; at += n) {
        n = w->width - at < ACT_COLUMNS ? w->width - at : ACT_COLUMNS;
        sg_train_act_row(act, x + at, n, value, slope);
        for (uint32_t c = 0; dx && c < n; c++) dx[at + c] += d[at + c] * (y ? y[at + c] : 1) * slope[c];
        for (uint32_t c = 0; dy && c < n; c++) dy[at + c] += d[at + c] * value[c];
    }
}

SG_CLONES static void element_backward(void *arg, uint32_t t, uint32_t thread)
{
    (void)thread;
    const struct small_work *w = arg;
    const float *x = w->x.data + t * w->x.stride, *y = w->y.data ? w->y.data + t * w->y.stride : NULL;
    const float *d = w->dout + (size_t)t * w->width;
    float *dx = w->dx.data ? w->dx.data + t * w->dx.stride : NULL, *dy = w->dy.data ? w->dy.data + t * w->dy.stride : NULL;
    switch (w->op->code) {
    case SG_OP_GLU: act_backward(w, w->op->u.glu.act, x, y, d, dx, dy); return;
    case SG_OP_ACT: act_backward(w, w->op->u.act.act, x, NULL, d, dx, NULL); return;
    case SG_OP_ADD:
        for (uint32_t c = 0; dx && c < w->width; c++) dx[c] += d[c];
        for (uint32_t c = 0; dy && c < w->width; c++) dy[c] += d[c];
        return;
    default:
        for (uint32_t c = 0; dx && c < w->width; c++)
            dx[c] += d[c] * (w->weight ? w->weight[w->bias ? 0 : c] : w->op->u.scale.value);
    }
}

/* Sets the weight of a scale. w->bias is not NULL when the weight is one number, which then scales all columns. */
static void scale_weight(struct sg_train_pass *p, struct small_work *w)
{
    const struct sg_weight *s = &w->op->u.scale.weight;
    if (w->op->code != SG_OP_SCALE) return;
    w->weight = sg_train_vector(p, s);
    if (w->weight && p->g->tensors[s->tensor]->cols == 1 && p->g->tensors[s->tensor]->rows == 1) w->bias = w->weight;
}

static segue_status forward(struct sg_train_pass *p, const struct sg_op *op, float *out)
{
    struct small_work w = work_of(p, op);
    w.out = out;
    scale_weight(p, &w);
    sg_train_each(p, w.rows, element_forward, &w);
    return SEGUE_OK;
}

static segue_status backward(struct sg_train_pass *p, const struct sg_op *op, const float *dout)
{
    struct small_work w;
    SG_TRY(back_of(p, op, dout, &w));
    scale_weight(p, &w);
    sg_train_each(p, w.rows, element_backward, &w);
    return SEGUE_OK;
}

segue_status sg_train_glu(struct sg_train_pass *p, const struct sg_op *op, float *out) { return forward(p, op, out); }
segue_status sg_train_act(struct sg_train_pass *p, const struct sg_op *op, float *out) { return forward(p, op, out); }
segue_status sg_train_add(struct sg_train_pass *p, const struct sg_op *op, float *out) { return forward(p, op, out); }
segue_status sg_train_scale(struct sg_train_pass *p, const struct sg_op *op, float *out) { return forward(p, op, out); }
segue_status sg_train_glu_back(struct sg_train_pass *p, const struct sg_op *op, const float *d) { return backward(p, op, d); }
segue_status sg_train_act_back(struct sg_train_pass *p, const struct sg_op *op, const float *d) { return backward(p, op, d); }
segue_status sg_train_add_back(struct sg_train_pass *p, const struct sg_op *op, const float *d) { return backward(p, op, d); }

segue_status sg_train_scale_back(struct sg_train_pass *p, const struct sg_op *op, const float *dout)
{
    float *dweight = sg_train_vector_grad(p, &op->u.scale.weight);
    struct sg_train_view x = sg_train_in(p, &op->in[0]);
    int one = dweight && p->t->params[p->t->tensors[op->u.scale.weight.tensor].param].n == 1;
    for (uint32_t t = 0; dweight && t < sg_train_rows(p, op); t++)
        for (uint32_t c = 0; c < x.width; c++) dweight[one ? 0 : c] += dout[(size_t)t * x.width + c] * x.data[t * x.stride + c];
    return backward(p, op, dout);
}
