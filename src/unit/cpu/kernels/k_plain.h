/* k_plain.h: kernels in plain C. Each kernel file includes this header and compiles it with the flags
 * of its instruction set, so that the loops over 16 lanes become vector code. plain_kernels fills a
 * table with the row, attention, recurrence and quantisation kernels; the including file then replaces
 * those it implements with intrinsics.
 *
 * Sums are kept in 16 lanes that are folded in one fixed order (fold16), so every copy adds in the same
 * order whatever the vector width. Functions are static: include this once per kernel file and nowhere
 * else.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CPU_K_PLAIN_H
#define SG_UNIT_CPU_K_PLAIN_H

#include <math.h>
#include <string.h>

#include "base/num.h"
#include "unit/cpu/kernels/k_gemm.h"
#include "unit/cpu/kernels/k_plain_quant.h"
#include "unit/exp.h"

/* Sum of 16 lanes, pairwise: the order of additions that all row kernels share. */
static inline float fold16(const float *a)
{
    float b[8], c[4];
    for (int i = 0; i < 8; i++) b[i] = a[i] + a[i + 8];
    for (int i = 0; i < 4; i++) c[i] = b[i] + b[i + 4];
    return (c[0] + c[2]) + (c[1] + c[3]);
}

static inline float plain_gelu_tanh(float x)
{
    return 0.5f * x * (1.0f + sg_tanh(0.797884560802865f * (x + 0.044715f * x * x * x)));
}

/* Applies expr to v = x[i] for all i, writes y[i], and leaves the switch. */
#define MAP(expr) \
    for (size_t i = 0; i < n; i++) { float v = x[i]; y[i] = (expr); } \
    break

static void plain_act(enum sg_act act, const float *x, size_t n, float *y)
{
    switch (act) {
    case SG_ACT_NONE: MAP(v);
    case SG_ACT_SILU: MAP(v * sg_sigmoid(v));
    case SG_ACT_GELU: MAP(0.5f * v * (1.0f + erff(v * 0.70710678118654752f)));
    case SG_ACT_GELU_TANH: MAP(plain_gelu_tanh(v));
    case SG_ACT_GELU_QUICK: MAP(v * sg_sigmoid(1.702f * v));
    case SG_ACT_RELU: MAP(v > 0.0f ? v : 0.0f);
    case SG_ACT_RELU2: MAP(v > 0.0f ? v * v : 0.0f);
    case SG_ACT_SIGMOID: MAP(sg_sigmoid(v));
    case SG_ACT_TANH: MAP(sg_tanh(v));
    }
}

/* y = act(x) * up. The two common activations are computed in one loop. */
static void plain_glu(enum sg_act act, const float *x, const float *up, size_t n, float *y)
{
    switch (act) {
    case SG_ACT_SILU: MAP(v * sg_sigmoid(v) * up[i]);
    case SG_ACT_GELU_TANH: MAP(plain_gelu_tanh(v) * up[i]);
    default:
        plain_act(act, x, n, y);
        for (size_t i = 0; i < n; i++) y[i] *= up[i];
    }
}
#undef MAP

static void plain_add(const float *x, const float *y, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++) out[i] = x[i] + y[i];
}

static void plain_mul(const float *x, const float *y, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++) out[i] = x[i] * y[i];
}

/* Dot product in 16 partial sums; the tail goes to the first lanes. */
static float plain_dot(const float *x, const float *y, size_t n)
{
    float a[16] = {0};
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int j = 0; j < 16; j++) a[j] += x[i + (size_t)j] * y[i + (size_t)j];
    for (int j = 0; i < n; i++, j++) a[j] += x[i] * y[i];
    return fold16(a);
}

static void plain_axpy(float a, const float *x, size_t n, float *y)
{
    for (size_t i = 0; i < n; i++) y[i] += a * x[i];
}

/* Sum of n numbers in the order of plain_dot. */
static float plain_total(const float *x, size_t n)
{
    float a[16] = {0};
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int j = 0; j < 16; j++) a[j] += x[i + (size_t)j];
    for (int j = 0; i < n; i++, j++) a[j] += x[i];
    return fold16(a);
}

/* RMS or layer norm. Layer norm subtracts the mean before squaring (two passes), which avoids
 * cancellation. */
static void plain_norm(const float *x, size_t n, const struct sg_norm *p, const float *w, const float *bias,
                       float *y)
{
    float mean = 0.0f, square;
    if (p->kind == SG_NORM_LAYER) {
        float a[16] = {0};
        mean = plain_total(x, n) / (float)n;
        size_t i = 0;
        for (; i + 16 <= n; i += 16)
            for (int j = 0; j < 16; j++) {
                float v = x[i + (size_t)j] - mean;
                a[j] += v * v;
            }
        for (int j = 0; i < n; i++, j++) a[j] += (x[i] - mean) * (x[i] - mean);
        square = fold16(a);
    } else {
        square = plain_dot(x, x, n);
    }
    float inverse = 1.0f / sqrtf(square / (float)n + p->eps), one = p->plus_one ? 1.0f : 0.0f;
    if (w)
        for (size_t i = 0; i < n; i++) y[i] = (x[i] - mean) * inverse * (w[i] + one);
    else
        for (size_t i = 0; i < n; i++) y[i] = (x[i] - mean) * inverse;
    if (bias) plain_add(y, bias, n, y);
}

/* Rotates the pairs (j, j + pairs); columns from 2 * pairs on are copied. */
static void plain_rope(const float *x, uint32_t pairs, uint32_t width, const float *cs, float sign, float *y)
{
    for (uint32_t j = 0; j < pairs; j++) {
        float a = x[j], b = x[j + pairs], c = cs[2 * j], s = cs[2 * j + 1] * sign;
        y[j] = a * c - b * s;
        y[j + pairs] = b * c + a * s;
    }
    for (uint32_t j = 2 * pairs; j < width; j++) y[j] = x[j];
}

static void plain_to_f16(const float *x, size_t n, uint16_t *y)
{
    for (size_t i = 0; i < n; i++) y[i] = sg_f16_of_f32(x[i]);
}
static void plain_of_f16(const uint16_t *x, size_t n, float *y)
{
    for (size_t i = 0; i < n; i++) y[i] = sg_f32_of_f16(x[i]);
}
static void plain_of_bf16(const uint16_t *x, size_t n, float *y)
{
    for (size_t i = 0; i < n; i++) y[i] = sg_f32_of_bf16(x[i]);
}

/* Two vectors of the widest size that every compiler here keeps in registers without spilling. GCC
 * vector types: they compile to AVX or to the baseline instruction set of the target. */
#if defined(__AVX__)
enum { PLAIN_LANES = 8 };
typedef float plain_lanes __attribute__((vector_size(32), aligned(4), may_alias));
#else
enum { PLAIN_LANES = 4 };
typedef float plain_lanes __attribute__((vector_size(16), aligned(4), may_alias));
#endif
enum { PLAIN_PAIR = 2 * PLAIN_LANES };
#define PLAIN_INLINE static inline __attribute__((always_inline))

PLAIN_INLINE plain_lanes plain_load(const float *x) { return *(const plain_lanes *)(const void *)x; }
PLAIN_INLINE void plain_store_lanes(float *x, plain_lanes v) { *(plain_lanes *)(void *)x = v; }

/* y[i*ldy + l] = sum over j < n of x[j*ldx + l] * a[j*step + i*lda], for i < nq and the PLAIN_PAIR
 * columns l of x. Each result is one chain of additions in rising j, for every nq. */
PLAIN_INLINE void plain_dot_pair_n(const float *x, size_t ldx, uint32_t n, const float *a, size_t step, size_t lda,
                                  const int nq, float *y, size_t ldy)
{
    plain_lanes low[6], high[6];
    for (int i = 0; i < nq; i++) low[i] = high[i] = (plain_lanes){0};
    for (uint32_t j = 0; j < n; j++, x += ldx, a += step) {
        plain_lanes v = plain_load(x), w = plain_load(x + PLAIN_LANES);
        for (int i = 0; i < nq; i++) {
            low[i] += v * a[(size_t)i * lda];
            high[i] += w * a[(size_t)i * lda];
        }
    }
    for (int i = 0; i < nq; i++) {
        plain_store_lanes(y + (size_t)i * ldy, low[i]);
        plain_store_lanes(y + (size_t)i * ldy + PLAIN_LANES, high[i]);
    }
}

/* Calls plain_dot_pair_n with a constant nq, so that its sums stay in registers. */
static void plain_dot_pair(const float *x, size_t ldx, uint32_t n, const float *a, size_t step, size_t lda, uint32_t nq,
                       float *y, size_t ldy)
{
    switch (nq) {
    case 1: plain_dot_pair_n(x, ldx, n, a, step, lda, 1, y, ldy); break;
    case 2: plain_dot_pair_n(x, ldx, n, a, step, lda, 2, y, ldy); break;
    case 3: plain_dot_pair_n(x, ldx, n, a, step, lda, 3, y, ldy); break;
    case 4: plain_dot_pair_n(x, ldx, n, a, step, lda, 4, y, ldy); break;
    case 5: plain_dot_pair_n(x, ldx, n, a, step, lda, 5, y, ldy); break;
    default: plain_dot_pair_n(x, ldx, n, a, step, lda, 6, y, ldy);
    }
}

/* Scores of nq queries against groups of 16 keys [d][16]. */
static void plain_scores(const float *q, uint32_t nq, uint32_t d, const float *k, uint32_t keys, float *s)
{
    for (uint32_t b = 0; b * 16 < keys; b++)
        for (uint32_t l = 0; l < 16; l += PLAIN_PAIR)
            plain_dot_pair(k + (size_t)b * d * 16 + l, 16, d, q, 1, d, nq, s + b * 16 + l, SG_CHUNK);
}

/* Scale, soft cap and mask, then maximum and exponentials of one chunk. Lanes beyond keys are set to
 * -inf, so the loops need no tail. */
static void plain_softmax_chunk(float *s, uint32_t lo, uint32_t hi, uint32_t keys, float scale, float softcap,
                         float *max, float *sum)
{
    float m[16], a[16] = {0};
    for (int j = 0; j < 16; j++) m[j] = -INFINITY;
    for (uint32_t i = 0; i < keys; i++) s[i] = i < lo || i >= hi ? -INFINITY : s[i] * scale;
    if (softcap > 0.0f)
        for (uint32_t i = lo; i < hi; i++) s[i] = softcap * sg_tanh(s[i] / softcap);
    uint32_t whole = (keys + 15) / 16 * 16;
    for (uint32_t i = keys; i < whole; i++) s[i] = -INFINITY;
    for (uint32_t i = 0; i < whole; i += 16)
        for (uint32_t j = 0; j < 16; j++) m[j] = s[i + j] > m[j] ? s[i + j] : m[j];
    float top = -INFINITY;
    for (int j = 0; j < 16; j++) top = m[j] > top ? m[j] : top;
    float base = top == -INFINITY ? 0.0f : top;
    for (uint32_t i = 0; i < whole; i += 16)
        for (uint32_t j = 0; j < 16; j++) {
            s[i + j] = sg_exp(s[i + j] - base);
            a[j] += s[i + j];
        }
    *max = top;
    *sum = fold16(a);
}

/* Weighted sum of the values, PLAIN_PAIR columns at a time. */
static void plain_pv(const float *p, uint32_t nq, uint32_t keys, const float *v, uint32_t dvp, float *o)
{
    for (uint32_t c = 0; c < dvp; c += PLAIN_PAIR) plain_dot_pair(v + c, dvp, keys, p, 1, SG_CHUNK, nq, o + c, dvp);
}

/* Online softmax: both parts are rescaled to the larger of the two maxima and added. */
static void plain_merge(uint32_t nq, uint32_t dv, const struct sg_softmax_part *to, size_t ldo,
                        const struct sg_softmax_part *from, size_t ldf)
{
    for (uint32_t i = 0; i < nq; i++) {
        float m = from->m[i], old_max = to->m[i], *y = to->o + i * ldo;
        const float *x = from->o + i * ldf;
        if (m == -INFINITY) continue;
        if (old_max == -INFINITY) {              /* no keys before: nothing to rescale */
            to->m[i] = m;
            to->l[i] = from->l[i];
            memcpy(y, x, dv * sizeof *y);
            continue;
        }
        float top = old_max > m ? old_max : m, old_scale = sg_exp(old_max - top), new_scale = sg_exp(m - top);
        to->m[i] = top;
        to->l[i] = to->l[i] * old_scale + from->l[i] * new_scale;
        for (uint32_t j = 0; j < dv; j++) y[j] = old_scale * y[j] + new_scale * x[j];
    }
}

/* Causal convolution of one row: the taps are added in order, then the activation. */
static void plain_conv(const float *const *x, uint32_t taps, const float *w, size_t ldw, const float *bias,
                       enum sg_act act, size_t n, float *y)
{
    for (size_t c = 0; c < n; c++) y[c] = bias ? bias[c] : 0.0f;
    for (uint32_t j = 0; j < taps; j++)
        for (size_t c = 0; c < n; c++) y[c] += w[j * ldw + c] * x[j][c];
    if (act != SG_ACT_NONE) plain_act(act, y, n, y);
}

/* Delta rule for state columns [0, n), n < 16. One sweep over the state per token: it writes the
 * updated state, accumulates the output s^T q, and already accumulates s^T k of the next token from the
 * values just written. So the state is read once per token instead of twice. */
static inline void plain_delta_columns(float *s, size_t lds, const struct sg_delta_args *r, const float *v,
                                       float *o, int n)
{
    float p[16] = {0}, d[16], y[16];
    for (uint32_t i = 0; i < r->dk; i++)
        for (int j = 0; j < n; j++) p[j] += r->k[i] * s[i * lds + (size_t)j];
    for (uint32_t t = 0; t < r->rows; t++, v += r->ldv, o += r->ldo) {
        const float *k = r->k + t * r->ldk, *q = r->q + t * r->ldk, *next = t + 1 < r->rows ? k + r->ldk : k;
        float decay = r->decay[t], beta = r->beta[t];
        for (int j = 0; j < n; j++) {
            d[j] = beta * (v[j] - decay * p[j]);
            p[j] = y[j] = 0.0f;
        }
        for (uint32_t i = 0; i < r->dk; i++) {
            float *row = s + i * lds;
            for (int j = 0; j < n; j++) {
                float x = decay * row[j] + k[i] * d[j];
                row[j] = x;
                y[j] += q[i] * x;
                p[j] += next[i] * x;
            }
        }
        for (int j = 0; j < n; j++) o[j] = y[j];
    }
}

/* The delta rule over all tokens for PLAIN_PAIR columns of S. */
static void plain_delta_pair(float *s, size_t lds, const struct sg_delta_args *r, const float *v, float *o)
{
    plain_lanes p[2] = {{0}, {0}}, d[2], y[2];
    for (uint32_t i = 0; i < r->dk; i++)
        for (int h = 0; h < 2; h++) p[h] += r->k[i] * plain_load(s + i * lds + h * PLAIN_LANES);
    for (uint32_t t = 0; t < r->rows; t++, v += r->ldv, o += r->ldo) {
        const float *k = r->k + t * r->ldk, *q = r->q + t * r->ldk, *next = t + 1 < r->rows ? k + r->ldk : k;
        float decay = r->decay[t], beta = r->beta[t], *row = s;
        for (int h = 0; h < 2; h++) {
            d[h] = beta * (plain_load(v + h * PLAIN_LANES) - decay * p[h]);
            p[h] = y[h] = (plain_lanes){0};
        }
        for (uint32_t i = 0; i < r->dk; i++, row += lds)
            for (int h = 0; h < 2; h++) {
                plain_lanes x = decay * plain_load(row + h * PLAIN_LANES) + k[i] * d[h];
                plain_store_lanes(row + h * PLAIN_LANES, x);
                y[h] += q[i] * x;
                p[h] += next[i] * x;
            }
        for (int h = 0; h < 2; h++) plain_store_lanes(o + h * PLAIN_LANES, y[h]);
    }
}

/* For several tokens the columns are copied to contiguous scratch first: with the row stride of the
 * state, their cache lines would map to a few cache sets and evict each other. */
static void plain_delta(float *s, const struct sg_delta_args *r)
{
    const size_t dv = r->dv, bytes = PLAIN_PAIR * sizeof *s;
    uint32_t c = 0;
    for (; c + PLAIN_PAIR <= dv; c += PLAIN_PAIR) {
        if (r->rows == 1) {
            plain_delta_pair(s + c, dv, r, r->v + c, r->o + c);
            continue;
        }
        for (uint32_t i = 0; i < r->dk; i++) memcpy(r->scratch + (size_t)i * PLAIN_PAIR, s + i * dv + c, bytes);
        plain_delta_pair(r->scratch, PLAIN_PAIR, r, r->v + c, r->o + c);
        for (uint32_t i = 0; i < r->dk; i++) memcpy(s + i * dv + c, r->scratch + (size_t)i * PLAIN_PAIR, bytes);
    }
    if (c < dv) plain_delta_columns(s + c, dv, r, r->v + c, r->o + c, (int)(dv - c));
}

/* Reads memory as fast as 16 independent sums allow. */
static uint64_t plain_sum(const uint64_t *x, size_t n)
{
    uint64_t a[16] = {0}, all = 0;
    for (size_t i = 0; i + 16 <= n; i += 16)
        for (int j = 0; j < 16; j++) a[j] += x[i + (size_t)j];
    for (int j = 0; j < 16; j++) all += a[j];
    return all;
}

/* Sets every table entry that plain C implements. */
static inline void plain_kernels(struct sg_kernels *k)
{
    k->few_rows = SG_FEW;
    k->norm = plain_norm;
    k->rope = plain_rope;
    k->act = plain_act;
    k->glu = plain_glu;
    k->add = plain_add;
    k->mul = plain_mul;
    k->dot = plain_dot;
    k->axpy = plain_axpy;
    k->to_f16 = plain_to_f16;
    k->of_f16 = plain_of_f16;
    k->of_bf16 = plain_of_bf16;
    k->scores = plain_scores;
    k->softmax_chunk = plain_softmax_chunk;
    k->pv = plain_pv;
    k->join = plain_merge;
    k->conv = plain_conv;
    k->delta = plain_delta;
    k->quant = plain_quant;
    k->spread = plain_transpose;
    k->bf16_rows = plain_bf16_rows;
    k->sum = plain_sum;
    k->gemm = &plain_gemm;
}

#endif
