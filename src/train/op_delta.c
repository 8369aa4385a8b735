/* op_delta.c: the gated delta rule. Per token and value head, with D = e^g S: d = beta (v - D^T k); S <- D + k d^T; y = S^T q.
 * Backward, from the last token: R += q dy^T (R is the gradient of S); dq = S dy; dk = R d; f = beta R^T k;
 * dbeta = (R^T k) . (v - D^T k); dv = f; dk -= D f; R -= k f^T; dg = sum R D; R <- e^g R. The matrices S of SPAN tokens are
 * computed again from one that was kept at the beginning of the span, so a sequence of T tokens needs T / SPAN + SPAN matrices
 * per thread. One item is a sequence and a key head.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "train/train.h"

enum { SPAN = 64 };

struct delta_pass {
    const struct sg_train_pass *p;
    const struct sg_delta *d;
    struct sg_train_view in[5];
    struct sg_train_grad grad[5];
    const float *decay, *dt, *dout;
    float *out, *scratch;
    float *ddecay, *ddt;             /* [sequences, v_heads], or NULL */
    size_t each;
};

/* One token of one head. q and k are normalised, and q is scaled. */
struct delta_token {
    float *q, *k, *rest;             /* [dk], [dk], [dv]: v - D^T k */
    const float *v;
    double q_inverse, k_inverse;     /* 1 / norm; 1 without normalisation */
    float rate, soft, beta, forget;  /* A, softplus(a + dt), sigmoid(b), e^g */
};

static double normalised(const float *x, uint32_t n, float eps, double scale, float *y)
{
    double squares = 0, inverse = 1;
    for (uint32_t i = 0; i < n; i++) squares += (double)x[i] * x[i];
    if (eps > 0) inverse = 1.0 / sqrt(squares + (double)eps);
    for (uint32_t i = 0; i < n; i++) y[i] = (float)(x[i] * inverse * scale);
    return inverse;
}

static const float *at(const struct delta_pass *w, int i, size_t row, uint32_t column)
{
    return w->in[i].data + row * w->in[i].stride + column;
}

static void token_read(const struct delta_pass *w, size_t row, uint32_t h, struct delta_token *x)
{
    const struct sg_delta *d = w->d;
    uint32_t key = h / (d->v_heads / d->k_heads) * d->dk;
    x->q_inverse = normalised(at(w, 0, row, key), d->dk, d->l2_eps, 1.0 / sqrt(d->dk), x->q);
    x->k_inverse = normalised(at(w, 1, row, key), d->dk, d->l2_eps, 1.0, x->k);
    x->v = at(w, 2, row, h * d->dv);
    float a = *at(w, 3, row, h) + w->dt[h];
    x->rate = d->decay_is_log ? -expf(w->decay[h]) : w->decay[h];
    x->soft = (a > 0 ? a : 0) + log1pf(expf(-fabsf(a)));
    x->beta = sg_train_sigmoid(*at(w, 4, row, h));
    x->forget = expf(x->rate * x->soft);
}

/* S after this token from S before it, and the result y (may be NULL). */
static void token_step(const struct sg_delta *d, struct delta_token *x, const float *before, float *S, float *y)
{
    for (uint32_t j = 0; j < d->dv; j++) x->rest[j] = x->v[j];
    for (uint32_t i = 0; i < d->dk; i++)
        for (uint32_t j = 0; j < d->dv; j++) {
            S[(size_t)i * d->dv + j] = x->forget * before[(size_t)i * d->dv + j];
            x->rest[j] -= S[(size_t)i * d->dv + j] * x->k[i];
        }
    for (uint32_t j = 0; y && j < d->dv; j++) y[j] = 0;
    for (uint32_t i = 0; i < d->dk; i++) {
        float k = x->beta * x->k[i];
        for (uint32_t j = 0; j < d->dv; j++) S[(size_t)i * d->dv + j] += k * x->rest[j];
        for (uint32_t j = 0; y && j < d->dv; j++) y[j] += S[(size_t)i * d->dv + j] * x->q[i];
    }
}

static float *token_buffers(const struct delta_pass *w, struct delta_token *x, float *scratch)
{
    x->q = scratch;
    x->k = x->q + w->d->dk;
    x->rest = x->k + w->d->dk;
    return x->rest + w->d->dv;
}

static void forward_item(void *arg, uint32_t item, uint32_t thread)
{
    const struct delta_pass *w = arg;
    const struct sg_delta *d = w->d;
    uint32_t s = item / d->v_heads, h = item % d->v_heads;
    struct delta_token x;
    float *S = token_buffers(w, &x, w->scratch + thread * w->each);
    memset(S, 0, (size_t)d->dk * d->dv * sizeof *S);
    for (size_t row = w->p->from[s]; row < w->p->from[s + 1]; row++) {
        token_read(w, row, h, &x);
        token_step(d, &x, S, S, w->out + (row * d->v_heads + h) * d->dv);
    }
}

/* x normalised to y = scale x / |x|: dx = scale / |x| (dy - n (n . dy)), n = x / |x|; y / scale = n. */
static void normalised_back(struct sg_train_grad g, size_t row, uint32_t column, const float *y, const float *dy, uint32_t n,
                            double inverse, double scale, int l2)
{
    double along = 0;
    if (!g.data) return;
    for (uint32_t i = 0; l2 && i < n; i++) along += (double)y[i] / scale * dy[i];
    for (uint32_t i = 0; i < n; i++) g.data[row * g.stride + column + i] += (float)(scale * inverse * (dy[i] - y[i] / scale *
            along));
}

/* dq, dk and f of one token: reads R, the gradient of S after it, and changes it to that of S before it. Returns dg. */
static double token_matrices(const struct sg_delta *d, const struct delta_token *x, const float *before, const float *S,
                             const float *dy, float *R, float *dq, float *dk, float *f, double *dbeta)
{
    double dg = 0;
    for (uint32_t j = 0; j < d->dv; j++) f[j] = 0;
    for (uint32_t i = 0; i < d->dk; i++) {
        float *r = R + (size_t)i * d->dv, sum_q = 0, sum_k = 0;
        const float *s = S + (size_t)i * d->dv;
        for (uint32_t j = 0; j < d->dv; j++) {
            r[j] += x->q[i] * dy[j];
            sum_q += s[j] * dy[j];
            sum_k += r[j] * x->beta * x->rest[j];
            f[j] += r[j] * x->k[i];
        }
        dq[i] = sum_q;
        dk[i] = sum_k;
    }
    *dbeta = 0;
    for (uint32_t j = 0; j < d->dv; j++) {
        *dbeta += (double)f[j] * x->rest[j];
        f[j] *= x->beta;
    }
    for (uint32_t i = 0; i < d->dk; i++) {
        float *r = R + (size_t)i * d->dv, sum = 0, sum_g = 0;
        const float *b = before + (size_t)i * d->dv;
        for (uint32_t j = 0; j < d->dv; j++) {
            float D = x->forget * b[j];
            sum += D * f[j];
            r[j] -= x->k[i] * f[j];
            sum_g += r[j] * D;
            r[j] *= x->forget;
        }
        dk[i] -= sum;
        dg += sum_g;
    }
    return dg;
}

static void token_back(const struct delta_pass *w, size_t row, uint32_t h, struct delta_token *x, const float *before,
                       const float *S, float *R, float *scratch, uint32_t sequence)
{
    const struct sg_delta *d = w->d;
    uint32_t key = h / (d->v_heads / d->k_heads) * d->dk;
    float *dq = scratch, *dk = dq + d->dk, *f = dk + d->dk;
    const float *dy = w->dout + (row * d->v_heads + h) * d->dv;
    double dbeta, dg;
    token_read(w, row, h, x);
    for (uint32_t j = 0; j < d->dv; j++) x->rest[j] = x->v[j];
    for (uint32_t i = 0; i < d->dk; i++)
        for (uint32_t j = 0; j < d->dv; j++) x->rest[j] -= x->forget * before[(size_t)i * d->dv + j] * x->k[i];
    dg = token_matrices(d, x, before, S, dy, R, dq, dk, f, &dbeta);
    normalised_back(w->grad[0], row, key, x->q, dq, d->dk, x->q_inverse, 1.0 / sqrt(d->dk), d->l2_eps > 0);
    normalised_back(w->grad[1], row, key, x->k, dk, d->dk, x->k_inverse, 1.0, d->l2_eps > 0);
    for (uint32_t j = 0; w->grad[2].data && j < d->dv; j++) w->grad[2].data[row * w->grad[2].stride + h * d->dv + j] += f[j];
    float da = (float)(dg * x->rate) * sg_train_sigmoid(*at(w, 3, row, h) + w->dt[h]);
    if (w->grad[3].data) w->grad[3].data[row * w->grad[3].stride + h] += da;
    if (w->grad[4].data) w->grad[4].data[row * w->grad[4].stride + h] += (float)dbeta * x->beta * (1 - x->beta);
    if (w->ddt) w->ddt[sequence * d->v_heads + h] += da;
    if (w->ddecay) w->ddecay[sequence * d->v_heads + h] += (float)(dg * x->soft) * (d->decay_is_log ? x->rate : 1);
}

static void head_back(const struct delta_pass *w, uint32_t s, uint32_t h, float *scratch)
{
    const struct sg_delta *d = w->d;
    size_t matrix = (size_t)d->dk * d->dv, first = w->p->from[s], n = w->p->from[s + 1] - first, spans = (n + SPAN - 1) / SPAN;
    struct delta_token x;
    float *work = token_buffers(w, &x, scratch), *R = work + 2 * d->dk + d->dv, *kept = R + matrix, *S = kept + spans * matrix;
    memset(R, 0, matrix * sizeof *R);
    memset(S, 0, matrix * sizeof *S);
    for (size_t t = 0; t < n; t++) {
        if (t % SPAN == 0) memcpy(kept + t / SPAN * matrix, S, matrix * sizeof *S);
        if (t / SPAN == spans - 1) break;
        token_read(w, first + t, h, &x);
        token_step(d, &x, S, S, NULL);
    }
    for (size_t span = spans; span-- > 0;) {
        size_t from = span * SPAN, to = from + SPAN < n ? from + SPAN : n;
        memcpy(S, kept + span * matrix, matrix * sizeof *S);
        for (size_t t = from; t < to; t++) {
            token_read(w, first + t, h, &x);
            token_step(d, &x, S + (t - from) * matrix, S + (t - from + 1) * matrix, NULL);
        }
        for (size_t t = to; t-- > from;)
            token_back(w, first + t, h, &x, S + (t - from) * matrix, S + (t - from + 1) * matrix, R, work, s);
    }
}

static void backward_item(void *arg, uint32_t item, uint32_t thread)
{
    const struct delta_pass *w = arg;
    uint32_t group = w->d->v_heads / w->d->k_heads, s = item / w->d->k_heads, key = item % w->d->k_heads;
    for (uint32_t h = key * group; h < (key + 1) * group; h++) head_back(w, s, h, w->scratch + thread * w->each);
}

static segue_status delta_work(struct sg_train_pass *p, const struct sg_op *op, struct delta_pass *w, size_t matrices)
{
    const struct sg_delta *d = &op->u.delta;
    *w = (struct delta_pass){.p = p, .d = d, .decay = sg_train_vector(p, &d->decay), .dt = sg_train_vector(p, &d->dt)};
    for (int i = 0; i < 5; i++) w->in[i] = sg_train_in(p, &op->in[i]);
    w->each = (size_t)4 * d->dk + 2 * d->dv + matrices * d->dk * d->dv;
    w->scratch = sg_train_take(p, p->m->threads * w->each);
    return w->scratch ? SEGUE_OK : SEGUE_EMEMORY;
}

segue_status sg_train_delta(struct sg_train_pass *p, const struct sg_op *op, float *out)
{
    struct delta_pass w;
    SG_TRY(delta_work(p, op, &w, 1));
    w.out = out;
    sg_train_each(p, p->sequences * w.d->v_heads, forward_item, &w);
    sg_train_put(p, w.scratch);
    return SEGUE_OK;
}

segue_status sg_train_delta_back(struct sg_train_pass *p, const struct sg_op *op, const float *dout)
{
    struct delta_pass w;
    float *ddecay = sg_train_vector_grad(p, &op->u.delta.decay), *ddt = sg_train_vector_grad(p, &op->u.delta.dt);
    SG_TRY(delta_work(p, op, &w, (p->longest + SPAN - 1) / SPAN + SPAN + 2));
    uint32_t heads = w.d->v_heads, n = p->sequences * heads;
    w.dout = dout;
    for (int i = 0; i < 5; i++) SG_TRY(sg_train_grad_of(p, &op->in[i], &w.grad[i]));
    float *sums = sg_train_take(p, (size_t)2 * n);
    if (!sums) return SEGUE_EMEMORY;
    memset(sums, 0, (size_t)2 * n * sizeof *sums);
    w.ddecay = ddecay ? sums : NULL;
    w.ddt = ddt ? sums + n : NULL;
    sg_train_each(p, p->sequences * w.d->k_heads, backward_item, &w);
    for (uint32_t i = 0; ddecay && i < n; i++) ddecay[i % heads] += sums[i];
    for (uint32_t i = 0; ddt && i < n; i++) ddt[i % heads] += sums[n + i];
    sg_train_put(p, sums);
    sg_train_put(p, w.scratch);
    return SEGUE_OK;
}
