/* k_avx2.c: kernels for AVX2 with FMA and F16C. There is no unsigned-by-signed dot product here that cannot
 * overflow on 8-bit weights; so 128 is taken off each weight, |weight| meets sign(weight) * activation in
 * vpmaddubsw, and the offset m grows by 128 d. Every kind goes this way, so that few rows and tiles give
 * equal bits.
 * SPDX-License-Identifier: MIT */
#if defined(__x86_64__)
#include "unit/cpu/kernels/k_avx2.h"
#include "unit/cpu/kernels/k_plain.h"

INLINE __m256i bytes4(const uint8_t *p)
{
    int32_t four;
    memcpy(&four, p, 4);
    return _mm256_set1_epi32(four);
}
INLINE __m256 spread_one(const uint8_t *p)
{
    float f;
    memcpy(&f, p, 4);
    return _mm256_set1_ps(f);
}
INLINE __m256 halves8(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}
INLINE __m256 floats8(const uint8_t *p) { return _mm256_loadu_ps((const float *)(const void *)p); }

INLINE void store_rows(float *out, uint32_t rows, __m256 v)
{
    if (rows >= 8) {
        _mm256_storeu_ps(out, v);
        return;
    }
    float room[8];
    _mm256_storeu_ps(room, v);
    memcpy(out, room, rows * sizeof *out);
}

/* --- quantised: 8 rows (half `h` of a group) x `n` tokens from token t0 of a tile of nt --- */

INLINE __m256i sum_add(__m256i sum, __m256i size, __m256i sign, __m256i x)
{
    __m256i pairs = _mm256_maddubs_epi16(size, _mm256_sign_epi8(x, sign));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

INLINE int has_nibbles(const enum sg_pack kind)
{
    return kind == SG_PACK_Q4 || kind == SG_PACK_Q4M || kind == SG_PACK_Q4F || kind >= SG_PACK_Q4K;
}

/* Vectors of a block, of part `part` of one of 256 columns. */
INLINE const uint8_t *vectors_of(const uint8_t *w, uint32_t part, const enum sg_pack kind)
{
    if (sg_pack_block(kind) == 256) return w + 320 + (kind == SG_PACK_Q6K ? 384 : 256) * part;
    return w + (kind == SG_PACK_Q4M ? 64 : kind == SG_PACK_Q4 || kind == SG_PACK_Q8 ? 32 : 128);
}

/* Chunk c of 4 columns of half h of the rows. */
INLINE __m256i weights_at(const uint8_t *v, const enum sg_pack kind, int c, uint32_t h)
{
    const int nibbles = has_nibbles(kind);
    __m256i w = _mm256_loadu_si256((const __m256i *)(const void *)(v + 64 * (nibbles ? c % 4 : c) + 32 * h));
    if (!nibbles) return w;
    w = _mm256_and_si256(c < 4 ? w : _mm256_srli_epi16(w, 4), _mm256_set1_epi8(15));
    if (kind != SG_PACK_Q6K) return w;
    __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)(v + 256 + 64 * (c % 2) + 32 * h));
    x = c < 2 ? _mm256_slli_epi16(x, 4) : c < 4 ? _mm256_slli_epi16(x, 2) : c < 6 ? x : _mm256_srli_epi16(x, 2);
    return _mm256_or_si256(w, _mm256_and_si256(x, _mm256_set1_epi8(0x30)));
}

INLINE __m256 bytes8(const uint8_t *p, const int sign)
{
    __m128i b = _mm_loadl_epi64((const __m128i *)(const void *)p);
    return _mm256_cvtepi32_ps(sign ? _mm256_cvtepi8_epi32(b) : _mm256_cvtepu8_epi32(b));
}

/* Scale and offset of half h of the rows; run: of 16 columns of a part of Q6K. */
INLINE void scales_at(const uint8_t *w, uint32_t part, uint32_t run, uint32_t h, const enum sg_pack kind,
                      __m256 *d, __m256 *m)
{
    const uint8_t *s = w + 64 + 32 * part + 8 * h;
    const int half = kind == SG_PACK_Q4 || kind == SG_PACK_Q4M || kind == SG_PACK_Q8 || kind >= SG_PACK_Q4K;
    *d = half ? halves8(w + 16 * h) : floats8(w + 32 * h);
    if (kind == SG_PACK_Q4K) {
        *d = _mm256_mul_ps(*d, bytes8(s, 0));
        *m = _mm256_xor_ps(_mm256_mul_ps(halves8(w + 32 + 16 * h), bytes8(s + 16, 0)), _mm256_set1_ps(-0.0f));
    } else if (kind == SG_PACK_Q6K) {
        *d = _mm256_mul_ps(*d, bytes8(s + 16 * run, 1));
        *m = _mm256_mul_ps(*d, _mm256_set1_ps(-32.0f));
    } else if (kind == SG_PACK_Q4) {
        *m = _mm256_mul_ps(*d, _mm256_set1_ps(-8.0f));
    } else if (kind == SG_PACK_Q8) {
        *m = _mm256_mul_ps(*d, _mm256_set1_ps(-128.0f));
    } else {
        *m = kind == SG_PACK_Q4M ? halves8(w + 32 + 16 * h) : floats8(w + 64 + 32 * h);
    }
}

/* One run of columns from chunk c0 on. */
INLINE void run_add(const uint8_t *v, __m256 d, __m256 m, const int c0, const int chunks, uint32_t h,
                    const uint8_t *x, uint32_t nt, uint32_t t0, const int n, const int fine,
                    const enum sg_pack kind, __m256 *acc)
{
    const size_t bytes = (size_t)nt * 4 * (size_t)chunks;
    const uint8_t *scales = x + sg_tile_scales(4 * (uint32_t)chunks, (uint32_t)fine, nt) + 4 * (size_t)t0;
    __m256i sum[4];
    UNROLL
    for (int t = 0; t < n; t++) sum[t] = _mm256_setzero_si256();
    for (int pass = 0; pass < (fine == SG_FINE ? 2 : 1); pass++) {
        UNROLL
        for (int c = 0; c < chunks; c++) {
            __m256i sign = _mm256_xor_si256(weights_at(v, kind, c0 + c, h), _mm256_set1_epi8(-128)),
                    size = _mm256_abs_epi8(sign);
            const uint8_t *xc = x + (size_t)pass * bytes + 4 * ((size_t)(unsigned)c * nt + t0);
            UNROLL
            for (int t = 0; t < n; t++) sum[t] = sum_add(sum[t], size, sign, bytes4(xc + 4 * t));
        }
        UNROLL
        for (int t = 0; t < n; t++)
            if (fine == SG_FINE && !pass) sum[t] = _mm256_slli_epi32(sum[t], 8);
    }
    m = _mm256_fmadd_ps(d, _mm256_set1_ps(128.0f), m);
    UNROLL
    for (int t = 0; t < n; t++) {
        acc[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[t]), _mm256_mul_ps(d, spread_one(scales + 4 * t)), acc[t]);
        acc[t] = _mm256_fmadd_ps(m, spread_one(scales + 4 * ((size_t)nt + (unsigned)t)), acc[t]);
    }
}

INLINE void half_body(const uint8_t *w, size_t blocks, uint32_t h, uint32_t rows, const uint8_t *x,
                      uint32_t nt, uint32_t t0, const int n, const int fine, float *out, size_t ldo,
                      const enum sg_pack kind)
{
    const uint32_t run = sg_pack_run(kind), block = sg_pack_block(kind), parts = block == 256 ? 8 : 1,
                   runs = block < 32 ? 1 : 32 / run;
    const size_t step = sg_pack_block_bytes(kind), xstep = sg_tile_bytes(run, run, (uint32_t)fine, nt);
    __m256 acc[4];
    UNROLL
    for (int t = 0; t < n; t++) acc[t] = _mm256_setzero_ps();
    for (size_t b = 0; b < blocks; b++, w += step)
        for (uint32_t part = 0; part < parts; part++) {
            const uint8_t *v = vectors_of(w, part, kind);
            _mm_prefetch((const char *)v + 2048, _MM_HINT_T0);
            _mm_prefetch((const char *)v + 2048 + 64, _MM_HINT_T0);
            UNROLL
            for (uint32_t r = 0; r < runs; r++, x += xstep) {
                __m256 d, m;
                scales_at(w, part, r, h, kind, &d, &m);
                run_add(v, d, m, (int)(r * run / 4), (int)run / 4, h, x, nt, t0, n, fine, kind, acc);
            }
        }
    UNROLL
    for (int t = 0; t < n; t++) store_rows(out + (size_t)t * ldo, rows, acc[t]);
}

INLINE void quant_body(const uint8_t *w, size_t k, uint32_t rows, const uint8_t *x, uint32_t nt,
                       const int fine, float *out, size_t ldo, const enum sg_pack kind)
{
    const size_t blocks = k / sg_pack_block(kind);
    for (uint32_t g = 0; g < rows; g += 8) {
        const uint8_t *group = w + g / 16 * blocks * sg_pack_block_bytes(kind);
        uint32_t h = g / 8 % 2, left = rows - g, t = 0;
        for (; t + 4 <= nt; t += 4)
            half_body(group, blocks, h, left, x, nt, t, 4, fine, out + t * ldo + g, ldo, kind);
        switch (nt - t) {
        case 3: half_body(group, blocks, h, left, x, nt, t, 3, fine, out + t * ldo + g, ldo, kind); break;
        case 2: half_body(group, blocks, h, left, x, nt, t, 2, fine, out + t * ldo + g, ldo, kind); break;
        case 1: half_body(group, blocks, h, left, x, nt, t, 1, fine, out + t * ldo + g, ldo, kind); break;
        default: break;
        }
    }
}

/* --- raised: open weights; 128 off each again, m of all of x --- */

/* The blocks of a span, each added or subtracted. */
INLINE void span_add(const uint8_t *w, uint32_t h, const struct sg_span_at *x, uint32_t nt, uint32_t t0, const int n,
                     const int chunks, __m256 *acc)
{
    const uint8_t *q = x->q + 4 * t0, *s = x->s + 4 * t0;
    for (uint32_t b = 0; b < x->blocks; b++, w += 128 + 64 * chunks, s += 4 * nt) {
        __m256 d = floats8(w + 32 * h), m = _mm256_fmadd_ps(d, _mm256_set1_ps(128.0f), floats8(w + 64 + 32 * h));
        __m256i sum[4];
        UNROLL
        for (int t = 0; t < n; t++) sum[t] = _mm256_setzero_si256();
        UNROLL
        for (int c = 0; c < chunks; c++, q += 4 * nt) {
            __m256i sign = _mm256_xor_si256(weights_at(w + 128, SG_PACK_Q8F, c, h), _mm256_set1_epi8(-128)),
                    size = _mm256_abs_epi8(sign);
            UNROLL
            for (int t = 0; t < n; t++) sum[t] = sum_add(sum[t], size, sign, bytes4(q + 4 * t));
        }
        if (b % 2) d = _mm256_xor_ps(d, _mm256_set1_ps(-0.0f));
        UNROLL
        for (int t = 0; t < n; t++) {
            acc[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[t]), d, acc[t]);
            acc[t] = _mm256_fmadd_ps(m, spread_one(s + 4 * t), acc[t]);
        }
    }
}

/* Its raised chunks. */
INLINE void chunks_add(const uint8_t *w, uint32_t h, const struct sg_span_at *x, uint32_t nt, uint32_t t0, const int n,
                       __m256 *acc)
{
    const uint8_t *p = x->raised + 4 * t0;
    __m256 up[4];
    UNROLL
    for (int t = 0; t < n; t++) up[t] = _mm256_setzero_ps();
    for (uint32_t i = 0; i < x->chunks; i++, p += 16 * nt) {
        UNROLL
        for (uint32_t t = 0; t < (uint32_t)n; t++) {
            const uint8_t *v = w + sg_le32(p + 4 * (nt + t)) + 32 * h;
            __m256i sign = _mm256_xor_si256(_mm256_loadu_si256((const __m256i *)(const void *)v), _mm256_set1_epi8(-128)),
                    sum = sum_add(_mm256_setzero_si256(), _mm256_abs_epi8(sign), sign, bytes4(p + 4 * t));
            up[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), floats8(w + sg_le32(p + 4 * (2 * nt + t)) + 32 * h), up[t]);
        }
    }
    UNROLL
    for (int t = 0; t < n; t++) acc[t] = _mm256_fmadd_ps(up[t], _mm256_set1_ps(128.0f), acc[t]);
}

INLINE void raised_half(const uint8_t *w, size_t k, uint32_t h, uint32_t rows, const uint8_t *x, uint32_t nt, uint32_t t0,
                        const int n, float *out, size_t ldo, const int chunks)
{
    __m256 acc[4];
    UNROLL
    for (int t = 0; t < n; t++) acc[t] = _mm256_setzero_ps();
    for (size_t left = k; left;) {
        const struct sg_span_at a = sg_span_of(x, left, 4 * (unsigned)chunks, nt);
        __m256 span[4];
        UNROLL
        for (int t = 0; t < n; t++) span[t] = _mm256_setzero_ps();
        span_add(w, h, &a, nt, t0, n, chunks, span);
        chunks_add(w, h, &a, nt, t0, n, span);
        UNROLL
        for (int t = 0; t < n; t++)
            acc[t] = _mm256_fmadd_ps(span[t], spread_one(a.d + 4 * (t0 + (unsigned)t)), acc[t]);
        w += a.blocks * (128 + 64 * (size_t)chunks);
        left -= a.blocks * 4 * (size_t)chunks;
        x = a.raised + 16 * (size_t)nt * a.chunks;
    }
    UNROLL
    for (int t = 0; t < n; t++) store_rows(out + (size_t)t * ldo, rows, acc[t]);
}

INLINE void raised_body(const uint8_t *w, size_t k, uint32_t rows, const uint8_t *x, uint32_t nt, float *out, size_t ldo,
                        const int chunks)
{
    const size_t group = k / (4 * (unsigned)chunks) * (128 + 64 * (size_t)chunks);
    for (uint32_t g = 0; g < rows; g += 8) {
        const uint8_t *wg = w + g / 16 * group;
        uint32_t h = g / 8 % 2, t = 0;
        for (; t + 4 <= nt; t += 4) raised_half(wg, k, h, rows - g, x, nt, t, 4, out + t * ldo + g, ldo, chunks);
        for (; t < nt; t++) raised_half(wg, k, h, rows - g, x, nt, t, 1, out + t * ldo + g, ldo, chunks);
    }
}

#define MM(name)                                                                                           \
    static void name(const uint8_t *w, size_t k, uint32_t rows, const void *x, uint32_t nt, uint32_t fine, \
                     float *out, size_t ldo)
#define QUANT(name, kind)                                                \
    MM(name)                                                             \
    {                                                                    \
        if (fine) quant_body(w, k, rows, x, nt, SG_FINE, out, ldo, kind); \
        else quant_body(w, k, rows, x, nt, SG_COARSE, out, ldo, kind);   \
    }
#define TILE(name, few, chunks)                                             \
    MM(name)                                                                \
    {                                                                       \
        if (fine == SG_RAISED) raised_body(w, k, rows, x, nt, out, ldo, chunks); \
        else few(w, k, rows, x, nt, fine, out, ldo);                        \
    }
QUANT(few_q4, SG_PACK_Q4)
QUANT(few_q4m, SG_PACK_Q4M)
QUANT(few_q8, SG_PACK_Q8)
QUANT(few_q4f, SG_PACK_Q4F)
QUANT(few_q8f, SG_PACK_Q8F)
QUANT(few_q8h, SG_PACK_Q8H)
TILE(tile_32, few_q8f, 8)
TILE(tile_16, few_q8h, 4)
QUANT(few_q4k, SG_PACK_Q4K)
QUANT(few_q6k, SG_PACK_Q6K)

/* --- opening: exact, as the generic one --- */

INLINE void open_body(const uint8_t *w, size_t k, uint8_t *out, const enum sg_pack kind)
{
    const uint32_t run = sg_pack_run(kind), parts = sg_pack_block(kind) == 256 ? 8 : 1;
    for (size_t b = 0; b < k / sg_pack_block(kind); b++, w += sg_pack_block_bytes(kind))
        for (uint32_t part = 0; part < parts; part++)
            for (uint32_t r = 0; r < 32 / run; r++, out += sg_open_bytes(kind, run))
                for (uint32_t h = 0; h < 2; h++) {
                    __m256 d, m;
                    scales_at(w, part, r, h, kind, &d, &m);
                    _mm256_storeu_ps((float *)(void *)(out + 32 * h), d);
                    _mm256_storeu_ps((float *)(void *)(out + 64 + 32 * h), m);
                    for (uint32_t c = 0; c < run / 4; c++)
                        _mm256_storeu_si256(
                            (__m256i *)(void *)(out + 128 + 64 * c + 32 * h),
                            weights_at(vectors_of(w, part, kind), kind, (int)(r * run / 4 + c), h));
                }
}
static void open_q4(const uint8_t *w, size_t k, uint8_t *out) { open_body(w, k, out, SG_PACK_Q4); }
static void open_q4m(const uint8_t *w, size_t k, uint8_t *out) { open_body(w, k, out, SG_PACK_Q4M); }
static void open_q8(const uint8_t *w, size_t k, uint8_t *out) { open_body(w, k, out, SG_PACK_Q8); }
static void open_q4f(const uint8_t *w, size_t k, uint8_t *out) { open_body(w, k, out, SG_PACK_Q4F); }
static void open_q4k(const uint8_t *w, size_t k, uint8_t *out) { open_body(w, k, out, SG_PACK_Q4K); }
static void open_q6k(const uint8_t *w, size_t k, uint8_t *out) { open_body(w, k, out, SG_PACK_Q6K); }

/* --- float weights: 8 rows x n tokens --- */

INLINE __m256 weights8(const uint8_t *w, const enum sg_pack kind)
{
    if (kind == SG_PACK_F32) return floats8(w);
    if (kind == SG_PACK_F16) return halves8(w);
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)w)), 16));
}

/* `halves` runs of 8 rows side by side. */
INLINE void float_halves(const uint8_t *w, size_t k, uint32_t rows, const float *x, uint32_t nt, const int n,
                         float *out, size_t ldo, const enum sg_pack kind)
{
    const size_t step = sg_pack_block_bytes(kind);
    __m256 acc[2][4];
    UNROLL
    for (int t = 0; t < n; t++) acc[0][t] = acc[1][t] = _mm256_setzero_ps();
    for (size_t i = 0; i < k; i++, x += nt, w += step) {
        __m256 a = weights8(w, kind), b = weights8(w + step / 2, kind);
        UNROLL
        for (int t = 0; t < n; t++) {
            __m256 y = _mm256_set1_ps(x[t]);
            acc[0][t] = _mm256_fmadd_ps(a, y, acc[0][t]);
            acc[1][t] = _mm256_fmadd_ps(b, y, acc[1][t]);
        }
    }
    UNROLL
    for (int t = 0; t < n; t++) {
        store_rows(out + (size_t)t * ldo, rows, acc[0][t]);
        if (rows > 8) store_rows(out + (size_t)t * ldo + 8, rows - 8, acc[1][t]);
    }
}

INLINE void float_body(const uint8_t *w, size_t k, uint32_t rows, const float *x, uint32_t nt, float *out,
                       size_t ldo, const enum sg_pack kind)
{
    for (uint32_t g = 0; g < rows; g += 16, w += k * sg_pack_block_bytes(kind)) {
        uint32_t t = 0;
        for (; t + 4 <= nt; t += 4) float_halves(w, k, rows - g, x + t, nt, 4, out + t * ldo + g, ldo, kind);
        switch (nt - t) {
        case 3: float_halves(w, k, rows - g, x + t, nt, 3, out + t * ldo + g, ldo, kind); break;
        case 2: float_halves(w, k, rows - g, x + t, nt, 2, out + t * ldo + g, ldo, kind); break;
        case 1: float_halves(w, k, rows - g, x + t, nt, 1, out + t * ldo + g, ldo, kind); break;
        default: break;
        }
    }
}
MM(few_f32) { (void)fine; float_body(w, k, rows, x, nt, out, ldo, SG_PACK_F32); }
MM(few_f16) { (void)fine; float_body(w, k, rows, x, nt, out, ldo, SG_PACK_F16); }
MM(few_bf16) { (void)fine; float_body(w, k, rows, x, nt, out, ldo, SG_PACK_BF16); }

INLINE void float_open(const uint8_t *w, size_t k, uint8_t *out, const enum sg_pack kind)
{
    for (size_t i = 0; i < 2 * k; i++) _mm256_storeu_ps((float *)(void *)(out + 32 * i), weights8(w + 16 * i, kind));
}
static void open_f16(const uint8_t *w, size_t k, uint8_t *out) { float_open(w, k, out, SG_PACK_F16); }
static void open_bf16(const uint8_t *w, size_t k, uint8_t *out) { float_open(w, k, out, SG_PACK_BF16); }

static void to_f16(const float *x, size_t n, uint16_t *y)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(void *)(y + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
    for (; i < n; i++) y[i] = sg_f16_of_f32(x[i]);
}

static void of_f16(const uint16_t *x, size_t n, float *y)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(y + i, halves8((const uint8_t *)(x + i)));
    for (; i < n; i++) y[i] = sg_f32_of_f16(x[i]);
}

void sg_kernels_avx2(struct sg_kernels *k)
{
    sg_mm_fn *const few[SG_PACK_N] = {few_q4,  few_q4m, few_q8,  few_q4f, few_q8f, few_q8h,
                                      few_q4k, few_q6k, few_f32, few_f16, few_bf16};
    plain_rows(k);
    k->isa = "avx2";
    memcpy(k->few, few, sizeof few);
    k->tile[SG_OPEN_32] = k->tile[SG_OPEN_32_EVEN] = tile_32;
    k->tile[SG_OPEN_16] = tile_16;
    k->open[SG_PACK_Q4] = open_q4;
    k->open[SG_PACK_Q4M] = open_q4m;
    k->open[SG_PACK_Q8] = open_q8;
    k->open[SG_PACK_Q4F] = open_q4f;
    k->open[SG_PACK_Q4K] = open_q4k;
    k->open[SG_PACK_Q6K] = open_q6k;
    k->open[SG_PACK_F16] = open_f16;
    k->open[SG_PACK_BF16] = open_bf16;
    sg_kernels_avx2_quant(k);
    k->to_f16 = to_f16;
    k->of_f16 = of_f16;
}
#endif
