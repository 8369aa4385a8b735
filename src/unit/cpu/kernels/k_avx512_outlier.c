/* k_avx512_outlier.c: unpacked weights times SG_OUTLIER tiles, for AVX-512 with VNNI; 32 weight rows x
 * 6 tokens per body.
 *
 * The integer sums of a block start at SG_BIAS, so their bits are the fp32 number 1.5 * 2^23 + sum: no
 * conversion is needed, only one multiply-add with the scale of the weights. Blocks are added and
 * subtracted alternately (the activations of odd blocks are stored negated), so that the accumulated
 * bias stays small and costs little precision. It is removed once per superblock: the bias times the
 * scales, which are added and subtracted in the same order.
 * SPDX-License-Identifier: MIT */
#if defined(__x86_64__)
#include "unit/cpu/kernels/k_avx512.h"

enum { HALF = SG_TILE / 2, PAIR_GROUPS = 2 };

/* Initial value of an integer sum, loaded or zeroed separately for each one. Otherwise the compiler
 * copies one register twelve times, and most copies would occupy a port that also multiplies. */
INLINE __m512i load_bias(const void *p)
{
    __m512i v;
    __asm__ volatile("vpbroadcastd %1, %0" : "=v"(v) : "m"(*(const int32_t *)p));
    return v;
}
INLINE __m512i load_zero(void)
{
    __m512i v;
    __asm__ volatile("vpxord %0, %0, %0" : "=v"(v));
    return v;
}

/* Sums of one superblock: products per group and token, and the alternating sum of the scales per
 * group. */
struct superblock_sums { __m512 t[PAIR_GROUPS][HALF], d[PAIR_GROUPS]; };

/* Block b of a superblock. w: start of the superblock in each group. sym: m = -128 d, contained in the
 * start value n, so m is not read. negate: an odd block, subtracted. */
INLINE void biased_block_accumulate(struct superblock_sums *a, const uint8_t *const *w, const struct sg_superblock *x, uint32_t b,
                                    uint32_t nt, const int n, const int groups, const int chunks, const int sym, const int negate)
{
    /* s: start values of the sums (sym) or block sums for m */
    const uint8_t *q = x->q + (size_t)b * 4 * (unsigned)chunks * nt, *s = (sym ? x->n : x->s) + (size_t)b * 4 * nt;
    const size_t step = 128 + 64 * (size_t)chunks;
    static const uint32_t bias = SG_BIAS;
    __m512i sum[PAIR_GROUPS][HALF];
    UNROLL
    for (int t = 0; t < n; t++) {
        UNROLL
        for (int g = 0; g < groups; g++) sum[g][t] = load_bias(sym ? s + 4 * t : (const uint8_t *)&bias);
    }
    UNROLL
    for (int c = 0; c < chunks; c++) {
        __m512i v[PAIR_GROUPS];
        UNROLL
        for (int g = 0; g < groups; g++) v[g] = _mm512_loadu_si512(w[g] + b * step + 128 + 64 * c);
        UNROLL
        for (int t = 0; t < n; t++) {
            const __m512i z = broadcast4(q + 4 * ((unsigned)c * nt + (unsigned)t));
            UNROLL
            for (int g = 0; g < groups; g++) sum[g][t] = _mm512_dpbusd_epi32(sum[g][t], v[g], z);
        }
    }
    UNROLL
    for (int g = 0; g < groups; g++) {
        const __m512 d = _mm512_loadu_ps(w[g] + b * step), m = _mm512_loadu_ps(w[g] + b * step + 64);
        a->d[g] = negate ? _mm512_sub_ps(a->d[g], d) : _mm512_add_ps(a->d[g], d);
        UNROLL
        for (int t = 0; t < n; t++) {
            /* the bits are 1.5 * 2^23 + sum in fp32 */
            const __m512 f = _mm512_castsi512_ps(sum[g][t]);
            a->t[g][t] = negate ? _mm512_fnmadd_ps(f, d, a->t[g][t]) : _mm512_fmadd_ps(f, d, a->t[g][t]);
            if (!sym) a->t[g][t] = _mm512_fmadd_ps(m, _mm512_set1_ps(load_f32(s + 4 * t)), a->t[g][t]);
        }
    }
}

/* The outlier chunks of a superblock; their sums count 128 times. Each token has its own chunks. */
INLINE void outliers_accumulate(struct superblock_sums *a, const uint8_t *const *w, const struct sg_superblock *x, uint32_t nt,
                                const int n, const int groups, const int sym)
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
            const __m512i z = broadcast4(p + 4 * t);
            const uint32_t at = load_u32(p + 4 * (nt + (unsigned)t)), from = load_u32(p + 4 * (2 * nt + (unsigned)t));
            UNROLL
            for (int g = 0; g < groups; g++) {
                /* sym: the start value is -128 times the sum of upper */
                __m512i sum = sym ? load_bias(p + 4 * (3 * nt + (unsigned)t)) : load_zero();
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
INLINE void outlier_body(const uint8_t *w, size_t k, uint32_t rows, const uint8_t *x, uint32_t nt, uint32_t t0, const int n,
                        const int groups, float *out, size_t ldo, const int chunks, const int sym)
{
    const uint32_t block = 4 * (unsigned)chunks;
    const size_t step = 128 + 64 * (size_t)chunks, group = k / block * step;
    const uint8_t *at[PAIR_GROUPS] = {w, groups > 1 ? w + group : w};
    float acc[PAIR_GROUPS][HALF][16] = {{{0}}}; /* kept in memory: the registers hold the sums of a superblock */
    for (size_t left = k; left;) {
        struct sg_superblock a = sg_superblock_at(x, left, block, nt);
        struct superblock_sums s;
        x = a.raised + 16 * (size_t)nt * a.chunks;
        /* columns of this body's tokens within the tile */
        a.q += 4 * t0, a.n += 4 * t0, a.s += 4 * t0, a.d += 4 * t0, a.raised += 4 * t0;
        UNROLL
        for (int g = 0; g < groups; g++) {
            s.d[g] = _mm512_setzero_ps();
            UNROLL
            for (int t = 0; t < n; t++) s.t[g][t] = _mm512_setzero_ps();
        }
        /* even blocks are added, odd ones subtracted */
        for (uint32_t b = 0; b < a.blocks; b += 2) {
            biased_block_accumulate(&s, at, &a, b, nt, n, groups, chunks, sym, 0);
            if (b + 1 < a.blocks) biased_block_accumulate(&s, at, &a, b + 1, nt, n, groups, chunks, sym, 1);
        }
        UNROLL
        for (int g = 0; g < groups; g++) {
            /* removes the bias of all blocks at once */
            UNROLL
            for (int t = 0; t < n; t++) s.t[g][t] = _mm512_fnmadd_ps(s.d[g], _mm512_set1_ps(12582912.0f), s.t[g][t]);
        }
        outliers_accumulate(&s, at, &a, nt, n, groups, sym);
        UNROLL
        for (int g = 0; g < groups; g++) {
            UNROLL
            for (int t = 0; t < n; t++) {
                const __m512 d = _mm512_set1_ps(load_f32(a.d + 4 * t));
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
            _mm512_mask_storeu_ps(out + (size_t)t * ldo + 16 * g, tail_mask(rows - 16u * (uint32_t)g),
                                  _mm512_loadu_ps(acc[g][t]));
    }
}

typedef void body_fn(const uint8_t *w, size_t k, uint32_t rows, const uint8_t *x, uint32_t nt, uint32_t t0, float *out,
                     size_t ldo);

/* One separate function per width, which limits register pressure and compile time: 1 to 6 tokens of a
 * smaller tile, and half of a full tile (nt constant). */
#define BODY(name, width, of, groups, chunks, sym)                                                                   \
    static __attribute__((noinline)) void name(const uint8_t *w, size_t k, uint32_t rows, const uint8_t *x,           \
                                               uint32_t nt, uint32_t t0, float *out, size_t ldo)                      \
    {                                                                                                                 \
        (void)nt;                                                                                                     \
        outlier_body(w, k, rows, x, of, t0, width, groups, out, ldo, chunks, sym);                                    \
    }
#define BODIES(name, groups, chunks, sym)                                                                            \
    BODY(name##_1, 1, nt, groups, chunks, sym)                                                                       \
    BODY(name##_2, 2, nt, groups, chunks, sym)                                                                       \
    BODY(name##_3, 3, nt, groups, chunks, sym)                                                                       \
    BODY(name##_4, 4, nt, groups, chunks, sym)                                                                       \
    BODY(name##_5, 5, nt, groups, chunks, sym)                                                                       \
    BODY(name##_6, 6, nt, groups, chunks, sym)                                                                       \
    BODY(name##_12, 6, SG_TILE, groups, chunks, sym)                                                                 \
    static body_fn *const name[HALF + 1] = {name##_1, name##_2, name##_3, name##_4, name##_5, name##_6, name##_12};
BODIES(pair_32, 2, 8, 0)
BODIES(last_32, 1, 8, 0)
BODIES(pair_sym, 2, 8, 1)
BODIES(last_sym, 1, 8, 1)
BODIES(pair_16, 2, 4, 0)
BODIES(last_16, 1, 4, 0)

/* All rows in pairs of groups, tokens in steps of 6. group: bytes of a group. */
static void outlier_tile(body_fn *const *pair, body_fn *const *last, size_t group, const uint8_t *w, size_t k, uint32_t rows,
                        const uint8_t *x, uint32_t nt, float *out, size_t ldo)
{
    for (uint32_t r = 0, each; r < rows; r += each, w += each / 16 * group) {
        each = rows - r > 16 ? 32 : 16;
        for (uint32_t t = 0; t < nt; t += HALF) {
            /* index of the body: its number of tokens - 1, or the one for full tiles */
            const uint32_t left = nt - t, width = nt == SG_TILE ? HALF : left > HALF ? HALF - 1 : left - 1;
            (each == 32 ? pair : last)[width](w, k, rows - r, x, nt, t, out + t * ldo + r, ldo);
        }
    }
}

void sg_outlier_avx512_32(const uint8_t *w, size_t k, uint32_t rows, const uint8_t *x, uint32_t nt, float *out, size_t ldo)
{
    outlier_tile(pair_32, last_32, k / 32 * 640, w, k, rows, x, nt, out, ldo);
}
void sg_outlier_avx512_32_sym(const uint8_t *w, size_t k, uint32_t rows, const uint8_t *x, uint32_t nt, float *out,
                              size_t ldo)
{
    outlier_tile(pair_sym, last_sym, k / 32 * 640, w, k, rows, x, nt, out, ldo);
}
void sg_outlier_avx512_16(const uint8_t *w, size_t k, uint32_t rows, const uint8_t *x, uint32_t nt, float *out, size_t ldo)
{
    outlier_tile(pair_16, last_16, k / 16 * 384, w, k, rows, x, nt, out, ldo);
}
#endif
