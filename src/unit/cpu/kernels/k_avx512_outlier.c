/* k_avx512_outlier.c: open weights times raised tiles, for AVX-512 with VNNI: 32 rows x 6 tokens. The integers of a block
 * begin at SG_BIAS, so that they are the number 2^23 * 1.5 + sum as they stand: no conversion, one multiply-add with
 * the scale of the weights. Blocks are added and subtracted in turn (the activations of odd ones are negated), which
 * keeps what the bias adds small: it is taken off, once a span, as the bias times the scales added and subtracted in
 * the same order.
 * SPDX-License-Identifier: MIT */
#if defined(__x86_64__)
#include "unit/cpu/kernels/k_avx512.h"

enum { HALF = SG_TILE / 2, PAIR_GROUPS = 2 };

/* Sums begin with a load or a zeroing of their own: a compiler would copy one register twelve times, and of copies the
 * processor does only a few without a port that multiplies. */
INLINE __m512i start_at(const void *p)
{
    __m512i v;
    __asm__ volatile("vpbroadcastd %1, %0" : "=v"(v) : "m"(*(const int32_t *)p));
    return v;
}
INLINE __m512i start_zero(void)
{
    __m512i v;
    __asm__ volatile("vpxord %0, %0, %0" : "=v"(v));
    return v;
}

/* What is summed of one span: the blocks, and the scales as signed. */
struct sums { __m512 t[PAIR_GROUPS][HALF], d[PAIR_GROUPS]; };

/* Block b of a span. w: of each group. */
INLINE void block_add(struct sums *a, const uint8_t *const *w, const struct sg_span_at *x, uint32_t b, uint32_t nt,
                      const int n, const int groups, const int chunks, const int even, const int minus)
{
    const uint8_t *q = x->q + (size_t)b * 4 * (unsigned)chunks * nt, *s = (even ? x->n : x->s) + (size_t)b * 4 * nt;
    const size_t step = 128 + 64 * (size_t)chunks;
    static const uint32_t bias = SG_BIAS;
    __m512i sum[PAIR_GROUPS][HALF];
    UNROLL
    for (int t = 0; t < n; t++) {
        UNROLL
        for (int g = 0; g < groups; g++) sum[g][t] = start_at(even ? s + 4 * t : (const uint8_t *)&bias);
    }
    UNROLL
    for (int c = 0; c < chunks; c++) {
        __m512i v[PAIR_GROUPS];
        UNROLL
        for (int g = 0; g < groups; g++) v[g] = _mm512_loadu_si512(w[g] + b * step + 128 + 64 * c);
        UNROLL
        for (int t = 0; t < n; t++) {
            const __m512i z = bytes4(q + 4 * ((unsigned)c * nt + (unsigned)t));
            UNROLL
            for (int g = 0; g < groups; g++) sum[g][t] = _mm512_dpbusd_epi32(sum[g][t], v[g], z);
        }
    }
    UNROLL
    for (int g = 0; g < groups; g++) {
        const __m512 d = _mm512_loadu_ps(w[g] + b * step), m = _mm512_loadu_ps(w[g] + b * step + 64);
        a->d[g] = minus ? _mm512_sub_ps(a->d[g], d) : _mm512_add_ps(a->d[g], d);
        UNROLL
        for (int t = 0; t < n; t++) {
            const __m512 f = _mm512_castsi512_ps(sum[g][t]);
            a->t[g][t] = minus ? _mm512_fnmadd_ps(f, d, a->t[g][t]) : _mm512_fmadd_ps(f, d, a->t[g][t]);
            if (!even) a->t[g][t] = _mm512_fmadd_ps(m, _mm512_set1_ps(one(s + 4 * t)), a->t[g][t]);
        }
    }
}

/* The raised chunks of a span, which weigh 128 times as much. */
INLINE void chunks_add(struct sums *a, const uint8_t *const *w, const struct sg_span_at *x, uint32_t nt, const int n,
                       const int groups, const int even)
{
    __m512 up[PAIR_GROUPS][HALF];
    UNROLL
    for (int g = 0; g < groups; g++) {
        UNROLL
        for (int t = 0; t < n; t++) up[g][t] = _mm512_setzero_ps();
    }
    const uint8_t *p = x->raised;
    for (uint32_t i = 0; i < x->chunks; i++, p += 16 * (size_t)nt) {
        UNROLL
        for (int t = 0; t < n; t++) {
            const __m512i z = bytes4(p + 4 * t);
            const uint32_t at = place(p + 4 * (nt + (unsigned)t)), from = place(p + 4 * (2 * nt + (unsigned)t));
            UNROLL
            for (int g = 0; g < groups; g++) {
                __m512i sum = even ? start_at(p + 4 * (3 * nt + (unsigned)t)) : start_zero();
                sum = _mm512_dpbusd_epi32(sum, _mm512_loadu_si512(w[g] + at), z);
                up[g][t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_loadu_ps(w[g] + from), up[g][t]);
            }
        }
    }
    UNROLL
    for (int g = 0; g < groups; g++) {
        UNROLL
        for (int t = 0; t < n; t++) a->t[g][t] = _mm512_fmadd_ps(up[g][t], _mm512_set1_ps(128.0f), a->t[g][t]);
    }
}

/* `groups` groups x n tokens from token t0 of a tile of nt. */
INLINE void raised_body(const uint8_t *w, size_t k, uint32_t rows, const uint8_t *x, uint32_t nt, uint32_t t0, const int n,
                        const int groups, float *out, size_t ldo, const int chunks, const int even)
{
    const uint32_t block = 4 * (unsigned)chunks;
    const size_t step = 128 + 64 * (size_t)chunks, group = k / block * step;
    const uint8_t *at[PAIR_GROUPS] = {w, groups > 1 ? w + group : w};
    float acc[PAIR_GROUPS][HALF][16] = {{{0}}}; /* in memory: registers hold the sums of a span */
    for (size_t left = k; left;) {
        struct sg_span_at a = sg_span_of(x, left, block, nt);
        struct sums s;
        x = a.raised + 16 * (size_t)nt * a.chunks;
        a.q += 4 * t0, a.n += 4 * t0, a.s += 4 * t0, a.d += 4 * t0, a.raised += 4 * t0;
        UNROLL
        for (int g = 0; g < groups; g++) {
            s.d[g] = _mm512_setzero_ps();
            UNROLL
            for (int t = 0; t < n; t++) s.t[g][t] = _mm512_setzero_ps();
        }
        for (uint32_t b = 0; b < a.blocks; b += 2) {
            block_add(&s, at, &a, b, nt, n, groups, chunks, even, 0);
            if (b + 1 < a.blocks) block_add(&s, at, &a, b + 1, nt, n, groups, chunks, even, 1);
        }
        UNROLL
        for (int g = 0; g < groups; g++) {
            UNROLL
            for (int t = 0; t < n; t++) s.t[g][t] = _mm512_fnmadd_ps(s.d[g], _mm512_set1_ps(12582912.0f), s.t[g][t]);
        }
        chunks_add(&s, at, &a, nt, n, groups, even);
        UNROLL
        for (int g = 0; g < groups; g++) {
            UNROLL
            for (int t = 0; t < n; t++) {
                const __m512 d = _mm512_set1_ps(one(a.d + 4 * t));
                _mm512_storeu_ps(acc[g][t], _mm512_fmadd_ps(s.t[g][t], d, _mm512_loadu_ps(acc[g][t])));
            }
            at[g] += a.blocks * step;
        }
        left -= a.blocks * block;
    }
    UNROLL
    for (int g = 0; g < groups; g++) {
        UNROLL
        for (int t = 0; t < n; t++)
            _mm512_mask_storeu_ps(out + (size_t)t * ldo + 16 * g, tail(rows - 16u * (uint32_t)g), _mm512_loadu_ps(acc[g][t]));
    }
}

typedef void body_fn(const uint8_t *w, size_t k, uint32_t rows, const uint8_t *x, uint32_t nt, uint32_t t0, float *out,
                     size_t ldo);

/* Functions of their own, each with few places to keep in mind: widths of 1 to 6 tokens, and half of a whole tile. */
#define BODY(name, width, of, groups, chunks, even)                                                                   \
    static __attribute__((noinline)) void name(const uint8_t *w, size_t k, uint32_t rows, const uint8_t *x,           \
                                               uint32_t nt, uint32_t t0, float *out, size_t ldo)                      \
    {                                                                                                                 \
        (void)nt;                                                                                                     \
        raised_body(w, k, rows, x, of, t0, width, groups, out, ldo, chunks, even);                                    \
    }
#define BODIES(name, groups, chunks, even)                                                                            \
    BODY(name##_1, 1, nt, groups, chunks, even)                                                                       \
    BODY(name##_2, 2, nt, groups, chunks, even)                                                                       \
    BODY(name##_3, 3, nt, groups, chunks, even)                                                                       \
    BODY(name##_4, 4, nt, groups, chunks, even)                                                                       \
    BODY(name##_5, 5, nt, groups, chunks, even)                                                                       \
    BODY(name##_6, 6, nt, groups, chunks, even)                                                                       \
    BODY(name##_12, 6, SG_TILE, groups, chunks, even)                                                                 \
    static body_fn *const name[HALF + 1] = {name##_1, name##_2, name##_3, name##_4, name##_5, name##_6, name##_12};
BODIES(pair_32, 2, 8, 0)
BODIES(last_32, 1, 8, 0)
BODIES(pair_even, 2, 8, 1)
BODIES(last_even, 1, 8, 1)
BODIES(pair_16, 2, 4, 0)
BODIES(last_16, 1, 4, 0)

/* group: bytes of a group. */
static void raised_tile(body_fn *const *pair, body_fn *const *last, size_t group, const uint8_t *w, size_t k, uint32_t rows,
                        const uint8_t *x, uint32_t nt, float *out, size_t ldo)
{
    for (uint32_t r = 0, each; r < rows; r += each, w += each / 16 * group) {
        each = rows - r > 16 ? 32 : 16;
        for (uint32_t t = 0; t < nt; t += HALF) {
            const uint32_t left = nt - t, width = nt == SG_TILE ? HALF : left > HALF ? HALF - 1 : left - 1;
            (each == 32 ? pair : last)[width](w, k, rows - r, x, nt, t, out + t * ldo + r, ldo);
        }
    }
}

void sg_raised_avx512_32(const uint8_t *w, size_t k, uint32_t rows, const uint8_t *x, uint32_t nt, float *out, size_t ldo)
{
    raised_tile(pair_32, last_32, k / 32 * 640, w, k, rows, x, nt, out, ldo);
}
void sg_raised_avx512_32_even(const uint8_t *w, size_t k, uint32_t rows, const uint8_t *x, uint32_t nt, float *out,
                              size_t ldo)
{
    raised_tile(pair_even, last_even, k / 32 * 640, w, k, rows, x, nt, out, ldo);
}
void sg_raised_avx512_16(const uint8_t *w, size_t k, uint32_t rows, const uint8_t *x, uint32_t nt, float *out, size_t ldo)
{
    raised_tile(pair_16, last_16, k / 16 * 384, w, k, rows, x, nt, out, ldo);
}
#endif
