/* k_plain.h: kernels in plain C, written in lanes of 16 so that every compiler vectorises them under the
 * flags of the file that includes this one: k_generic.c for every processor, k_avx2.c and k_avx512.c for
 * theirs. Sums run in 16 lanes and are folded in one order, so that all copies add in the same order.
 * Included once per kernel file, nowhere else.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CPU_K_PLAIN_H
#define SG_UNIT_CPU_K_PLAIN_H

#include <math.h>
#include <string.h>

#include "base/num.h"
#include "unit/cpu/kernels/kernels.h"

#define TINY_BLOCK 1e-36f /* a block below it is taken as zeros: 127 / top would overflow */

static inline float fold16(const float *a)
{
    float b[8], c[4];
    for (int i = 0; i < 8; i++) b[i] = a[i] + a[i + 8];
    for (int i = 0; i < 4; i++) c[i] = b[i] + b[i + 4];
    return (c[0] + c[2]) + (c[1] + c[3]);
}

/* e^x within 2 ulp for -87 <= x <= 88; 0 below, and e^88 above. NaN stays NaN. */
static inline float plain_exp(float x)
{
    float y = x > 88.0f ? 88.0f : x;
    y = y < -87.0f ? -87.0f : y;
    float t = y * 1.44269504088896341f + 12582912.0f; /* the integer part lands in the low bits */
    float n = t - 12582912.0f;
    float r = y - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    float e = p * (r * r) + r + 1.0f;
    uint32_t scale = (sg_bits_of_f32(t) - 0x4b400000u + 127u) << 23;
    e *= sg_f32_of_bits(scale);
    return x < -87.0f ? 0.0f : e;
}

static inline float plain_sigmoid(float x) { return 1.0f / (1.0f + plain_exp(-x)); }
static inline float plain_tanh(float x)
{
    float y = x < -9.0f ? -9.0f : x > 9.0f ? 9.0f : x;
    float e = plain_exp(2.0f * y), big = 1.0f - 2.0f / (e + 1.0f);
    float z = y * y, small = y * (1.0f + z * (-0.333333333f + z * (0.133333333f - z * 0.0539682540f)));
    return z < 0.01f ? small : big; /* the difference of the large form cancels near zero */
}
static inline float plain_gelu_tanh(float x)
{
    return 0.5f * x * (1.0f + plain_tanh(0.797884560802865f * (x + 0.044715f * x * x * x)));
}

#define EACH(expr) \
    for (size_t i = 0; i < n; i++) { float v = x[i]; y[i] = (expr); } \
    break

static void plain_act(enum sg_act act, const float *x, size_t n, float *y)
{
    switch (act) {
    case SG_ACT_NONE: EACH(v);
    case SG_ACT_SILU: EACH(v * plain_sigmoid(v));
    case SG_ACT_GELU: EACH(0.5f * v * (1.0f + erff(v * 0.70710678118654752f)));
    case SG_ACT_GELU_TANH: EACH(plain_gelu_tanh(v));
    case SG_ACT_GELU_QUICK: EACH(v * plain_sigmoid(1.702f * v));
    case SG_ACT_RELU: EACH(v > 0.0f ? v : 0.0f);
    case SG_ACT_RELU2: EACH(v > 0.0f ? v * v : 0.0f);
    case SG_ACT_SIGMOID: EACH(plain_sigmoid(v));
    case SG_ACT_TANH: EACH(plain_tanh(v));
    }
}

static void plain_glu(enum sg_act act, const float *x, const float *up, size_t n, float *y)
{
    switch (act) {
    case SG_ACT_SILU: EACH(v * plain_sigmoid(v) * up[i]);
    case SG_ACT_GELU_TANH: EACH(plain_gelu_tanh(v) * up[i]);
    default:
        plain_act(act, x, n, y);
        for (size_t i = 0; i < n; i++) y[i] *= up[i];
    }
}
#undef EACH

static void plain_add(const float *x, const float *y, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++) out[i] = x[i] + y[i];
}

static void plain_mul(const float *x, const float *y, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++) out[i] = x[i] * y[i];
}

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

static float plain_total(const float *x, size_t n)
{
    float a[16] = {0};
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int j = 0; j < 16; j++) a[j] += x[i + (size_t)j];
    for (int j = 0; i < n; i++, j++) a[j] += x[i];
    return fold16(a);
}

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

/* Vectors that every compiler here keeps in registers, of what the processor has; two of them side by side. */
#if defined(__AVX__)
enum { PLAIN_LANES = 8 };
typedef float plain_lanes __attribute__((vector_size(32), aligned(4), may_alias));
#else
enum { PLAIN_LANES = 4 };
typedef float plain_lanes __attribute__((vector_size(16), aligned(4), may_alias));
#endif
enum { PLAIN_PAIR = 2 * PLAIN_LANES };
#define PLAIN_INLINE static inline __attribute__((always_inline))

PLAIN_INLINE plain_lanes plain_at(const float *x) { return *(const plain_lanes *)(const void *)x; }
PLAIN_INLINE void plain_put(float *x, plain_lanes v) { *(plain_lanes *)(void *)x = v; }

/* y [i * ldy] = sum over j < n of x [j][PLAIN_PAIR] * a[j * step + i * lda], for i < nq: one chain each. */
PLAIN_INLINE void plain_pair_sums(const float *x, size_t ldx, uint32_t n, const float *a, size_t step, size_t lda,
                                  const int nq, float *y, size_t ldy)
{
    plain_lanes low[6], high[6];
    for (int i = 0; i < nq; i++) low[i] = high[i] = (plain_lanes){0};
    for (uint32_t j = 0; j < n; j++, x += ldx, a += step) {
        plain_lanes v = plain_at(x), w = plain_at(x + PLAIN_LANES);
        for (int i = 0; i < nq; i++) {
            low[i] += v * a[(size_t)i * lda];
            high[i] += w * a[(size_t)i * lda];
        }
    }
    for (int i = 0; i < nq; i++) {
        plain_put(y + (size_t)i * ldy, low[i]);
        plain_put(y + (size_t)i * ldy + PLAIN_LANES, high[i]);
    }
}

static void plain_pair(const float *x, size_t ldx, uint32_t n, const float *a, size_t step, size_t lda, uint32_t nq,
                       float *y, size_t ldy)
{
    switch (nq) {
    case 1: plain_pair_sums(x, ldx, n, a, step, lda, 1, y, ldy); break;
    case 2: plain_pair_sums(x, ldx, n, a, step, lda, 2, y, ldy); break;
    case 3: plain_pair_sums(x, ldx, n, a, step, lda, 3, y, ldy); break;
    case 4: plain_pair_sums(x, ldx, n, a, step, lda, 4, y, ldy); break;
    case 5: plain_pair_sums(x, ldx, n, a, step, lda, 5, y, ldy); break;
    default: plain_pair_sums(x, ldx, n, a, step, lda, 6, y, ldy);
    }
}

static void plain_scores(const float *q, uint32_t nq, uint32_t d, const float *k, uint32_t keys, float *s)
{
    for (uint32_t b = 0; b * 16 < keys; b++)
        for (uint32_t l = 0; l < 16; l += PLAIN_PAIR)
            plain_pair(k + (size_t)b * d * 16 + l, 16, d, q, 1, d, nq, s + b * 16 + l, SG_CHUNK);
}

static void plain_soften(float *s, uint32_t lo, uint32_t hi, uint32_t keys, float scale, float softcap,
                         float *max, float *sum)
{
    float m[16], a[16] = {0};
    for (int j = 0; j < 16; j++) m[j] = -INFINITY;
    for (uint32_t i = 0; i < keys; i++) s[i] = i < lo || i >= hi ? -INFINITY : s[i] * scale;
    if (softcap > 0.0f)
        for (uint32_t i = lo; i < hi; i++) s[i] = softcap * plain_tanh(s[i] / softcap);
    uint32_t whole = (keys + 15) / 16 * 16;
    for (uint32_t i = keys; i < whole; i++) s[i] = -INFINITY;
    for (uint32_t i = 0; i < whole; i += 16)
        for (uint32_t j = 0; j < 16; j++) m[j] = s[i + j] > m[j] ? s[i + j] : m[j];
    float top = -INFINITY;
    for (int j = 0; j < 16; j++) top = m[j] > top ? m[j] : top;
    float base = top == -INFINITY ? 0.0f : top;
    for (uint32_t i = 0; i < whole; i += 16)
        for (uint32_t j = 0; j < 16; j++) {
            s[i + j] = plain_exp(s[i + j] - base);
            a[j] += s[i + j];
        }
    *max = top;
    *sum = fold16(a);
}

static void plain_weigh(const float *p, uint32_t nq, uint32_t keys, const float *v, uint32_t dvp, float *o)
{
    for (uint32_t c = 0; c < dvp; c += PLAIN_PAIR) plain_pair(v + c, dvp, keys, p, 1, SG_CHUNK, nq, o + c, dvp);
}

static void plain_join(uint32_t nq, uint32_t dv, const struct sg_sums *to, size_t ldo, const struct sg_sums *from, size_t ldf)
{
    for (uint32_t i = 0; i < nq; i++) {
        float m = from->m[i], had = to->m[i], *y = to->o + i * ldo;
        const float *x = from->o + i * ldf;
        if (m == -INFINITY) continue;
        if (had == -INFINITY) {              /* the first keys: nothing to scale */
            to->m[i] = m;
            to->l[i] = from->l[i];
            memcpy(y, x, dv * sizeof *y);
            continue;
        }
        float top = had > m ? had : m, mine = plain_exp(had - top), theirs = plain_exp(m - top);
        to->m[i] = top;
        to->l[i] = to->l[i] * mine + from->l[i] * theirs;
        for (uint32_t j = 0; j < dv; j++) y[j] = mine * y[j] + theirs * x[j];
    }
}

static void plain_conv(const float *const *x, uint32_t taps, const float *w, size_t ldw, const float *bias,
                       enum sg_act act, size_t n, float *y)
{
    for (size_t c = 0; c < n; c++) y[c] = bias ? bias[c] : 0.0f;
    for (uint32_t j = 0; j < taps; j++)
        for (size_t c = 0; c < n; c++) y[c] += w[j * ldw + c] * x[j][c];
    if (act != SG_ACT_NONE) plain_act(act, y, n, y);
}

/* Columns [0, n) of the state, n < 16. One sweep per row: it writes the state as the row leaves it and takes
 * the next row's s^T k from what it has written, so the state is read once. */
static inline void plain_delta_columns(float *s, size_t lds, const struct sg_delta_rows *r, const float *v,
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

/* The same for PLAIN_PAIR columns. */
static void plain_delta_pair(float *s, size_t lds, const struct sg_delta_rows *r, const float *v, float *o)
{
    plain_lanes p[2] = {{0}, {0}}, d[2], y[2];
    for (uint32_t i = 0; i < r->dk; i++)
        for (int h = 0; h < 2; h++) p[h] += r->k[i] * plain_at(s + i * lds + h * PLAIN_LANES);
    for (uint32_t t = 0; t < r->rows; t++, v += r->ldv, o += r->ldo) {
        const float *k = r->k + t * r->ldk, *q = r->q + t * r->ldk, *next = t + 1 < r->rows ? k + r->ldk : k;
        float decay = r->decay[t], beta = r->beta[t], *row = s;
        for (int h = 0; h < 2; h++) {
            d[h] = beta * (plain_at(v + h * PLAIN_LANES) - decay * p[h]);
            p[h] = y[h] = (plain_lanes){0};
        }
        for (uint32_t i = 0; i < r->dk; i++, row += lds)
            for (int h = 0; h < 2; h++) {
                plain_lanes x = decay * plain_at(row + h * PLAIN_LANES) + k[i] * d[h];
                plain_put(row + h * PLAIN_LANES, x);
                y[h] += q[i] * x;
                p[h] += next[i] * x;
            }
        for (int h = 0; h < 2; h++) plain_put(o + h * PLAIN_LANES, y[h]);
    }
}

/* Many rows work on columns that lie side by side: in place their lines would share few sets of a cache. */
static void plain_delta(float *s, const struct sg_delta_rows *r)
{
    const size_t dv = r->dv, bytes = PLAIN_PAIR * sizeof *s;
    uint32_t c = 0;
    for (; c + PLAIN_PAIR <= dv; c += PLAIN_PAIR) {
        if (r->rows == 1) {
            plain_delta_pair(s + c, dv, r, r->v + c, r->o + c);
            continue;
        }
        for (uint32_t i = 0; i < r->dk; i++) memcpy(r->room + (size_t)i * PLAIN_PAIR, s + i * dv + c, bytes);
        plain_delta_pair(r->room, PLAIN_PAIR, r, r->v + c, r->o + c);
        for (uint32_t i = 0; i < r->dk; i++) memcpy(s + i * dv + c, r->room + (size_t)i * PLAIN_PAIR, bytes);
    }
    if (c < dv) plain_delta_columns(s + c, dv, r, r->v + c, r->o + c, (int)(dv - c));
}

/* To nearest even, |x| < 2^22. */
static inline int32_t plain_round(float x)
{
    volatile float kept = x; /* no fused multiply-add: a product must be rounded before it is added to */
    return (int32_t)(sg_bits_of_f32(kept + 12582912.0f) - 0x4b400000u);
}

/* Largest |v|, as bits: not finite numbers are larger than all others. */
static inline uint32_t plain_top(const float *v, uint32_t n)
{
    uint32_t m[16] = {0}, top = 0, bits[16];
    for (uint32_t i = 0; i < n; i += 16) {
        memcpy(bits, v + i, sizeof bits);
        for (int j = 0; j < 16; j++) m[j] = (bits[j] & 0x7fffffffu) > m[j] ? bits[j] & 0x7fffffffu : m[j];
    }
    for (int j = 0; j < 16; j++) top = m[j] > top ? m[j] : top;
    return top;
}

static inline float plain_inverse(uint32_t top)
{
    float f = sg_f32_of_bits(top);
    return f > TINY_BLOCK && top < 0x7f800000u ? 127.0f / f : 0.0f;
}
/* d of a block: NaN when a number is not finite, so that it stays visible. */
static inline float plain_scale(uint32_t top, uint32_t fine)
{
    float d = top < 0x7f800000u ? sg_f32_of_bits(top) * (1.0f / 127.0f) : NAN;
    return fine ? d * (1.0f / 256.0f) : d;
}

/* The last bits of a key, which say how far from place 63 its chunk is. */
enum { KEY_PLACE = SG_SPAN / 4 - 1 };

/* What is at most the largest number of the chunk of a key, as bits. */
static inline uint32_t plain_key_top(uint32_t key) { return key > KEY_PLACE ? key | KEY_PLACE : 0; }

/* The chunks to raise, and what the scale of the span is made of: not finite when a number is not. Keys: the largest |v|
 * of a chunk as bits, the last of them replaced, so that no two are equal. */
static inline uint32_t plain_choose(const float *v, uint32_t columns, uint32_t *at)
{
    const uint32_t raised = sg_raised_chunks(columns);
    uint32_t best[SG_RAISED_MOST + 1] = {0};
    for (uint32_t c = 0; c < columns / 4; c++) {
        uint32_t key = 0;
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t bits = sg_bits_of_f32(v[4 * c + i]) & (0x7fffffffu - KEY_PLACE);
            key = bits > key ? bits : key;
        }
        key |= KEY_PLACE - c;
        for (uint32_t i = 0; i <= SG_RAISED_MOST; i++) {
            const uint32_t less = key < best[i] ? key : best[i];
            best[i] = key > best[i] ? key : best[i];
            key = less;
        }
    }
    for (uint32_t i = 0; i < raised; i++) at[i] = KEY_PLACE - (best[i] & KEY_PLACE);
    const uint32_t top = plain_key_top(best[raised]),
                   least = sg_bits_of_f32(sg_f32_of_bits(plain_key_top(best[0])) * (1.0f / 128.0f));
    return top > least ? top : least;
}

/* Four rows of a span from row t of a tile of nt on; of fewer than four the last is there again, and not stored. */
struct plain_four {
    const float *v[4];
    uint32_t t, nt, rows, columns;
};

static inline struct plain_four plain_four_at(const float *x, size_t ldx, uint32_t t, uint32_t nt, uint32_t columns)
{
    struct plain_four f = {.t = t, .nt = nt, .rows = nt - t < 4 ? nt - t : 4, .columns = columns};
    for (uint32_t r = 0; r < 4; r++) f.v[r] = x + (t + (r < f.rows ? r : f.rows - 1)) * ldx;
    return f;
}

/* Bytes from the beginning of a span of opened weights: the vector of a chunk, or the scales of its block. */
static inline uint32_t plain_from(uint32_t chunk, uint32_t block) { return chunk * 4 / block * (128 + block * 16); }
static inline uint32_t plain_at_byte(uint32_t chunk, uint32_t block)
{
    return plain_from(chunk, block) + 128 + chunk % (block / 4) * 64;
}

static inline void plain_store(uint8_t *to, uint32_t bits) { memcpy(to, &bits, 4); }

/* Raised chunk i of row t: what quant has left to it; s: the sum of its block. */
static inline void plain_raise(const float *v, float inverse, uint32_t chunk, uint32_t block, uint32_t t, uint32_t nt,
                               uint8_t *q, uint8_t *raised, float *s)
{
    int32_t sum = 0;
    for (uint32_t i = 0; i < 4; i++) {
        volatile float y = inverse != 0.0f ? v[4 * chunk + i] * inverse : 0.0f;
        int32_t n = plain_round(y), upper = (n + 32832) / 128 - 256, low = n - 128 * upper;
        raised[4 * t + i] = (uint8_t)upper;
        q[(chunk * nt + t) * 4 + i] = (uint8_t)(chunk * 4 / block % 2 ? -low : low);
        sum += upper;
    }
    plain_store(raised + 4 * (nt + t), plain_at_byte(chunk, block));
    plain_store(raised + 4 * (2 * nt + t), plain_from(chunk, block));
    plain_store(raised + 4 * (3 * nt + t), (uint32_t)(-128 * sum));
    s[chunk * 4 / block * nt + t] += 128.0f * (float)sum;
}

/* Sums of the blocks of row t as they stand in q. */
static inline void plain_sums(const uint8_t *q, uint32_t blocks, uint32_t block, uint32_t t, uint32_t nt, uint8_t *n,
                              float *s)
{
    for (uint32_t b = 0; b < blocks; b++) {
        int32_t sum = 0;
        for (uint32_t c = b * block; c < (b + 1) * block; c++) sum += (int8_t)q[(c / 4 * nt + t) * 4 + c % 4];
        plain_store(n + 4 * (b * nt + t), (uint32_t)SG_BIAS - 128u * (uint32_t)sum);
        s[b * nt + t] += (float)(b % 2 ? -sum : sum);
    }
}

static void plain_quant_raised(const float *x, size_t ldx, uint32_t nt, size_t k, uint32_t block, uint8_t *tile)
{
    for (size_t from = 0; from < k; from += SG_SPAN) {
        const struct sg_span_at a = sg_span_of(tile, k - from, block, nt);
        uint8_t *n = tile + (a.n - tile), *raised = tile + (a.raised - tile);
        float *s = (float *)(void *)(tile + (a.s - tile)), *d = (float *)(void *)(tile + (a.d - tile));
        for (uint32_t t = 0; t < nt; t++) {
            const float *v = x + t * ldx + from;
            uint32_t at[SG_RAISED_MOST], top = plain_choose(v, a.blocks * block, at);
            float inverse = plain_inverse(top);
            for (uint32_t c = 0; c < a.blocks * block; c++) {
                volatile float y = inverse != 0.0f ? v[c] * inverse : 0.0f;
                int32_t q = plain_round(y);
                tile[(c / 4 * nt + t) * 4 + c % 4] = (uint8_t)(c / block % 2 ? -q : q);
            }
            d[t] = plain_scale(top, 0);
            for (uint32_t b = 0; b < a.blocks; b++) s[b * nt + t] = 0.0f;
            for (uint32_t i = 0; i < a.chunks; i++)
                plain_raise(v, inverse, at[i], block, t, nt, tile, raised + 16 * (size_t)nt * i, s);
            plain_sums(tile, a.blocks, block, t, nt, n, s);
        }
        tile = raised + 16 * (size_t)nt * a.chunks;
    }
}

static void plain_quant(const float *x, size_t ldx, uint32_t nt, size_t k, uint32_t block, uint32_t fine,
                        uint8_t *tile)
{
    const size_t bytes = (size_t)nt * block;
    if (fine == SG_RAISED) {
        plain_quant_raised(x, ldx, nt, k, block, tile);
        return;
    }
    for (size_t from = 0; from < k; from += block, tile += sg_tile_bytes(block, block, fine, nt)) {
        float *d = (float *)(void *)(tile + sg_tile_scales(block, fine, nt)), *s = d + nt;
        for (uint32_t t = 0; t < nt; t++) {
            const float *v = x + t * ldx + from;
            uint32_t top = plain_top(v, block);
            float inverse = plain_inverse(top);
            int32_t sum = 0;
            for (uint32_t i = 0; i < block; i++) {
                volatile float y = v[i] * inverse;
                int32_t q = plain_round(y), r = plain_round((y - (float)q) * 256.0f);
                size_t to = ((i / 4) * nt + t) * 4 + i % 4;
                r = r > 127 ? 127 : r < -127 ? -127 : r;
                sum += fine ? q * 256 + r : q;
                if (fine) tile[bytes + to] = (uint8_t)r;
                tile[to] = (uint8_t)q;
            }
            d[t] = plain_scale(top, fine);
            s[t] = d[t] * (float)sum;
        }
    }
}

static void plain_spread(const float *x, size_t ldx, uint32_t nt, size_t k, float *tile)
{
    for (uint32_t t = 0; t < nt; t++)
        for (size_t i = 0; i < k; i++) tile[i * nt + t] = x[t * ldx + i];
}

/* Term `term` of x. */
static inline uint16_t plain_term(float x, uint32_t term)
{
    uint16_t high = sg_bf16_of_f32(x);
    return term ? sg_bf16_of_f32(x - sg_f32_of_bf16(high)) : high;
}

static void plain_wide_rows(const float *x, size_t ldx, uint32_t nt, size_t k, uint32_t terms, uint16_t *out)
{
    for (size_t from = 0; from < k; from += SG_WIDE_COLUMNS)
        for (uint32_t term = 0; term < terms; term++)
            for (uint32_t t = 0; t < SG_WIDE; t++)
                for (size_t c = from; c < from + SG_WIDE_COLUMNS; c++)
                    *out++ = t < nt && c < k ? plain_term(x[t * ldx + c], term) : 0;
}

static uint64_t plain_sum(const uint64_t *x, size_t n)
{
    uint64_t a[16] = {0}, all = 0;
    for (size_t i = 0; i + 16 <= n; i += 16)
        for (int j = 0; j < 16; j++) a[j] += x[i + (size_t)j];
    for (int j = 0; j < 16; j++) all += a[j];
    return all;
}

static inline void plain_rows(struct sg_kernels *k)
{
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
    k->soften = plain_soften;
    k->weigh = plain_weigh;
    k->join = plain_join;
    k->conv = plain_conv;
    k->delta = plain_delta;
    k->quant = plain_quant;
    k->spread = plain_spread;
    k->wide_rows = plain_wide_rows;
    k->sum = plain_sum;
}

#endif
