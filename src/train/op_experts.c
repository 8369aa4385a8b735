/* op_experts.c: route and experts. route: the weights of the chosen experts have a gradient, the choice and its bias have none.
 * Softmax: dx = s (ds - sum ds s); sigmoid: dx = ds s (1 - s); ds is that of the chosen scores, through their sum if they are
 * renormalised. experts, one after the other on the tokens that chose it, y = sum w h D^T, h = act(x G^T) (x U^T):
 * dw = dy . (h D^T), dD = (w dy)^T h, dh = w dy D, and glu and linear from there.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "train/train.h"

/* --- route --- */

/* Softmax or sigmoid of n logits. */
static void scores_of(const struct sg_route *r, const float *x, float *s)
{
    float max = -INFINITY;
    double sum = 0;
    for (uint32_t e = 0; e < r->experts; e++) max = x[e] > max ? x[e] : max;
    for (uint32_t e = 0; e < r->experts; e++) sum += s[e] = r->sigmoid ? sg_train_sigmoid(x[e]) : expf(x[e] - max);
    for (uint32_t e = 0; e < r->experts && !r->sigmoid; e++) s[e] = (float)(s[e] / sum);
}

/* The k best in descending order; lowest index on ties. */
static void choose(const struct sg_route *r, const float *s, const float *bias, float *index, float *weight)
{
    float sum = 0;
    for (uint32_t i = 0; i < r->k; i++) {
        int64_t best = -1;
        for (uint32_t e = 0; e < r->experts; e++) {
            int taken = 0;
            for (uint32_t j = 0; j < i; j++) taken |= (uint32_t)index[j] == e;
            if (!taken && (best < 0 || s[e] + (bias ? bias[e] : 0) > s[best] + (bias ? bias[best] : 0))) best = e;
        }
        index[i] = (float)best;
        weight[i] = s[best];
        sum += s[best];
    }
    for (uint32_t i = 0; i < r->k; i++) weight[i] = (r->renormalise ? weight[i] / sum : weight[i]) * r->scale;
}

segue_status sg_train_route(struct sg_train_pass *p, const struct sg_op *op, float *out)
{
    const struct sg_route *r = &op->u.route;
    const float *bias = sg_train_vector(p, &r->bias);
    struct sg_train_view x = sg_train_in(p, &op->in[0]);
    float *s = sg_train_take(p, r->experts);
    if (!s) return SEGUE_EMEMORY;
    for (uint32_t t = 0; t < sg_train_rows(p, op); t++) {
        float *row = out + (size_t)t * 2 * r->k;
        scores_of(r, x.data + t * x.stride, s);
        choose(r, s, bias, row, row + r->k);
    }
    sg_train_put(p, s);
    return SEGUE_OK;
}

/* ds of the chosen scores from dw, in dw's order. */
static void chosen_back(const struct sg_route *r, const float *s, const float *index, const float *dw, float *ds)
{
    double sum = 0, mixed = 0;
    for (uint32_t i = 0; i < r->k; i++) sum += s[(uint32_t)index[i]], mixed += dw[i] * s[(uint32_t)index[i]];
    for (uint32_t i = 0; i < r->k; i++)
        ds[i] = (float)((double)r->scale * (r->renormalise ? (dw[i] - mixed / sum) / sum : (double)dw[i]));
}

segue_status sg_train_route_back(struct sg_train_pass *p, const struct sg_op *op, const float *dout)
{
    const struct sg_route *r = &op->u.route;
    struct sg_train_view x = sg_train_in(p, &op->in[0]);
    struct sg_train_grad dx;
    SG_TRY(sg_train_grad_of(p, &op->in[0], &dx));
    float *s = dx.data ? sg_train_take(p, (size_t)r->experts + r->k) : NULL, *ds = s + r->experts;
    if (!dx.data) return SEGUE_OK;
    if (!s) return SEGUE_EMEMORY;
    for (uint32_t t = 0; t < sg_train_rows(p, op); t++) {
        const float *index = p->values[op->out] + (size_t)t * 2 * r->k;
        float *d = dx.data + t * dx.stride;
        double mixed = 0;
        scores_of(r, x.data + t * x.stride, s);
        chosen_back(r, s, index, dout + (size_t)t * 2 * r->k + r->k, ds);
        for (uint32_t i = 0; i < r->k; i++) mixed += ds[i] * s[(uint32_t)index[i]];
        for (uint32_t i = 0; i < r->k; i++) {
            uint32_t e = (uint32_t)index[i];
            d[e] += r->sigmoid ? ds[i] * s[e] * (1 - s[e]) : ds[i] * s[e];
        }
        for (uint32_t e = 0; e < r->experts && !r->sigmoid; e++) d[e] -= (float)mixed * s[e];
    }
    sg_train_put(p, s);
    return SEGUE_OK;
}

/* --- experts --- */

/* Tokens of one expert, at most as many as there are rows. Blocks have room for all rows. */
struct experts_part {
    struct sg_train_pass *p;
    const struct sg_op *op;
    struct sg_train_view x, routing;
    uint32_t expert, n, width;       /* width: of the result */
    uint32_t *row, *slot;            /* [n] token, and which of its k choices */
    float *in, *gate, *up, *h, *out; /* [n, columns of x], [n, ff] three times, [n, width] */
    float *weights;                  /* of a frozen expert, one matrix at a time */
};

/* Rows [at, at + rows) of a tensor as fp32: the parameter, or a copy. */
static const float *rows_of(const struct experts_part *w, const struct sg_weight *x, uint32_t at, uint32_t rows)
{
    const struct sg_train_tensor *s = &w->p->t->tensors[x->tensor];
    const struct sg_tensor *t = w->p->g->tensors[x->tensor];
    if (s->param >= 0) return w->p->t->params[s->param].field[0] + ((size_t)x->at + at) * t->cols;
    for (uint32_t r = 0; r < rows; r++) sg_tensor_row(t, (uint64_t)x->at + at + r, 0, t->cols, w->weights + (size_t)r * t->cols);
    return w->weights;
}

static float *grad_rows(const struct experts_part *w, const struct sg_weight *x, uint32_t at)
{
    float *g = sg_train_vector_grad(w->p, x);
    return g ? g + ((size_t)x->at + at) * w->p->g->tensors[x->tensor]->cols : NULL;
}

static float weight_of(const struct experts_part *w, uint32_t i)
{
    return w->routing.data[w->row[i] * w->routing.stride + w->op->u.experts.k + w->slot[i]];
}

/* The next pairs (token, choice) of the expert from *at on; 0: there are none. */
static uint32_t gather(struct experts_part *w, uint32_t *at)
{
    uint32_t rows = sg_train_rows(w->p, w->op), k = w->op->u.experts.k;
    w->n = 0;
    for (; *at < rows * k && w->n < rows; ++*at) {
        uint32_t t = *at / k, i = *at % k;
        if ((uint32_t)w->routing.data[t * w->routing.stride + i] != w->expert) continue;
        memcpy(w->in + (size_t)w->n * w->x.width, w->x.data + t * w->x.stride, w->x.width * sizeof(float));
        w->row[w->n] = t;
        w->slot[w->n++] = i;
    }
    return w->n;
}

/* c [n, cols] (+)= a [n, inner] with b, as NT or NN. */
static void product(const struct experts_part *w, enum sg_gemm_kind kind, const float *a, const float *b, float *c, uint32_t cols,
                    uint32_t inner, int add)
{
    const struct sg_gemm g = {kind, w->n, cols, inner, a, b, inner, kind == SG_GEMM_NT ? inner : cols, cols, c, add};
    sg_train_gemm_with(w->p->m, &g, NULL);
}

/* c [rows, cols] += a^T b over the n tokens. */
static void outer(const struct experts_part *w, const float *a, uint32_t rows, const float *b, uint32_t cols, float *c)
{
    const struct sg_gemm g = {SG_GEMM_TN, rows, cols, w->n, a, b, rows, cols, cols, c, 1};
    if (c) sg_train_gemm_with(w->p->m, &g, NULL);
}

static void hidden_item(void *arg, uint32_t i, uint32_t thread)
{
    (void)thread;
    const struct experts_part *w = arg;
    const struct sg_experts *e = &w->op->u.experts;
    for (size_t c = (size_t)i * e->ff; c < ((size_t)i + 1) * e->ff; c++)
        w->h[c] = sg_train_act_of(e->act, w->gate[c]) * w->up[c];
}

/* gate, up, h and out, without the weights of the routing. */
static void expert_forward(struct experts_part *w)
{
    const struct sg_experts *e = &w->op->u.experts;
    uint32_t d = w->x.width;
    product(w, SG_GEMM_NT, w->in, rows_of(w, &e->gate, w->expert * e->ff, e->ff), w->gate, e->ff, d, 0);
    product(w, SG_GEMM_NT, w->in, rows_of(w, &e->up, w->expert * e->ff, e->ff), w->up, e->ff, d, 0);
    sg_train_each(w->p, w->n, hidden_item, w);
    product(w, SG_GEMM_NT, w->h, rows_of(w, &e->down, w->expert * w->width, w->width), w->out, w->width, e->ff, 0);
}

/* Expert numbers come from a value, so they are checked before they index memory. */
static segue_status check_routing(const struct experts_part *w)
{
    const struct sg_experts *e = &w->op->u.experts;
    for (uint32_t t = 0; t < sg_train_rows(w->p, w->op); t++)
        for (uint32_t i = 0; i < e->k; i++) {
            float expert = w->routing.data[t * w->routing.stride + i];
            if (!(expert >= 0 && expert < (float)e->experts))
                return sg_fail(w->p->err, SEGUE_EINTERNAL, "micro-batch not run: experts of layer %d: expert %g of %u; report "
                               "this", (int)w->op->layer, (double)expert, e->experts);
        }
    return SEGUE_OK;
}

static void part_end(struct experts_part *w)
{
    float *const blocks[] = {w->in, w->gate, w->up, w->h, w->out, w->weights, (float *)(void *)w->row};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) sg_train_put(w->p, blocks[i]);
}

static segue_status part_begin(struct experts_part *w, struct sg_train_pass *p, const struct sg_op *op)
{
    const struct sg_experts *e = &op->u.experts;
    size_t n = sg_train_rows(p, op);
    *w = (struct experts_part){.p = p, .op = op, .x = sg_train_in(p, &op->in[0]), .routing = sg_train_in(p, &op->in[1]),
                               .width = p->g->values[op->out].width};
    uint32_t widest = w->x.width > w->width ? w->x.width : w->width;
    w->in = sg_train_take(p, n * w->x.width);
    w->gate = sg_train_take(p, n * e->ff);
    w->up = sg_train_take(p, n * e->ff);
    w->h = sg_train_take(p, n * e->ff);
    w->out = sg_train_take(p, n * w->width);
    w->weights = sg_train_take(p, (size_t)e->ff * widest);
    w->row = (uint32_t *)(void *)sg_train_take(p, 2 * n);
    if (!w->in || !w->gate || !w->up || !w->h || !w->out || !w->weights || !w->row) return SEGUE_EMEMORY;
    w->slot = w->row + n;
    return check_routing(w);
}

segue_status sg_train_experts(struct sg_train_pass *p, const struct sg_op *op, float *out)
{
    struct experts_part w;
    segue_status status = part_begin(&w, p, op);
    memset(out, 0, (size_t)sg_train_rows(p, op) * w.width * sizeof *out);
    for (w.expert = 0; status == SEGUE_OK && w.expert < op->u.experts.experts; w.expert++)
        for (uint32_t at = 0; gather(&w, &at);) {
            expert_forward(&w);
            for (uint32_t i = 0; i < w.n; i++)
                for (uint32_t c = 0; c < w.width; c++)
                    out[(size_t)w.row[i] * w.width + c] += weight_of(&w, i) * w.out[(size_t)i * w.width + c];
        }
    part_end(&w);
    return status;
}

/* The gradients of the routing's weights, and w dy in place of out. */
static void weights_back(struct experts_part *w, const float *dout, struct sg_train_grad drouting)
{
    for (uint32_t i = 0; i < w->n; i++) {
        const float *dy = dout + (size_t)w->row[i] * w->width;
        float *y = w->out + (size_t)i * w->width, by = weight_of(w, i);
        double sum = 0;
        for (uint32_t c = 0; c < w->width; c++) {
            sum += dy[c] * y[c];
            y[c] = by * dy[c];
        }
        if (drouting.data) drouting.data[w->row[i] * drouting.stride + w->op->u.experts.k + w->slot[i]] += (float)sum;
    }
}

/* gate and up become their gradients; h is dh. */
static void hidden_back_item(void *arg, uint32_t i, uint32_t thread)
{
    (void)thread;
    const struct experts_part *w = arg;
    const struct sg_experts *e = &w->op->u.experts;
    for (size_t c = (size_t)i * e->ff; c < ((size_t)i + 1) * e->ff; c++) {
        float g = w->gate[c], u = w->up[c];
        w->gate[c] = w->h[c] * u * sg_train_act_slope(e->act, g);
        w->up[c] = w->h[c] * sg_train_act_of(e->act, g);
    }
}

static void expert_back(struct experts_part *w, const float *dout, struct sg_train_grad dx, struct sg_train_grad drouting)
{
    const struct sg_experts *e = &w->op->u.experts;
    uint32_t d = w->x.width, first = w->expert * e->ff;
    expert_forward(w);
    weights_back(w, dout, drouting);
    outer(w, w->out, w->width, w->h, e->ff, grad_rows(w, &e->down, w->expert * w->width));
    product(w, SG_GEMM_NN, w->out, rows_of(w, &e->down, w->expert * w->width, w->width), w->h, e->ff, w->width, 0);
    sg_train_each(w->p, w->n, hidden_back_item, w);
    outer(w, w->gate, e->ff, w->in, d, grad_rows(w, &e->gate, first));
    outer(w, w->up, e->ff, w->in, d, grad_rows(w, &e->up, first));
    if (!dx.data) return;
    product(w, SG_GEMM_NN, w->gate, rows_of(w, &e->gate, first, e->ff), w->in, d, e->ff, 0);
    product(w, SG_GEMM_NN, w->up, rows_of(w, &e->up, first, e->ff), w->in, d, e->ff, 1);
    for (uint32_t i = 0; i < w->n; i++)
        for (uint32_t c = 0; c < d; c++) dx.data[w->row[i] * dx.stride + c] += w->in[(size_t)i * d + c];
}

segue_status sg_train_experts_back(struct sg_train_pass *p, const struct sg_op *op, const float *dout)
{
    struct experts_part w;
    struct sg_train_grad dx, drouting;
    SG_TRY(sg_train_grad_of(p, &op->in[0], &dx));
    SG_TRY(sg_train_grad_of(p, &op->in[1], &drouting));
    segue_status status = part_begin(&w, p, op);
    for (w.expert = 0; status == SEGUE_OK && w.expert < op->u.experts.experts; w.expert++)
        for (uint32_t at = 0; gather(&w, &at);) expert_back(&w, dout, dx, drouting);
    part_end(&w);
    return status;
}
