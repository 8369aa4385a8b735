/* k_avx2.c: matrix kernels for AVX2 with FMA and F16C. One register holds 8 rows x 4 columns, half of a
 * vector of a group.
 *
 * vpmaddubsw multiplies u8 by s8 but saturates its 16-bit pair sums for 8-bit weights. So 128 is
 * subtracted from each weight, and |weight| is multiplied by sign(weight) * activation, which fits in
 * 16 bits; the offset m grows by 128 d to compensate. All kinds are computed this way, so that few
 * rows and tiles give equal bits. Integer sums are int32 and exact; fp32 sums are one chain over the
 * blocks per output.
 * SPDX-License-Identifier: MIT */
#if defined(__x86_64__)
#include "unit/cpu/kernels/k_avx2.h"
#include "unit/cpu/kernels/k_plain.h"

/* Four activations in every 32-bit lane. */
INLINE __m256i broadcast4(const uint8_t *p)
{
    int32_t four;
    memcpy(&four, p, 4);
    return _mm256_set1_epi32(four);
}
INLINE __m256 broadcast_f32(const uint8_t *p)
{
    float f;
    memcpy(&f, p, 4);
    return _mm256_set1_ps(f);
}
INLINE __m256 load_f16x8(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}
INLINE __m256 load_f32x8(const uint8_t *p) { return _mm256_loadu_ps((const float *)(const void *)p); }

/* Stores the first min(rows, 8) lanes. */
INLINE void store_rows(float *out, uint32_t rows, __m256 v)
{
    if (rows >= 8) {
        _mm256_storeu_ps(out, v);
        return;
    }
    float lanes[8];
    _mm256_storeu_ps(lanes, v);
    memcpy(out, lanes, rows * sizeof *out);
}

/* sum += weights times activations, as int32 per row: size and sign are |w - 128| and w - 128. */

INLINE __m256i dot_add(__m256i sum, __m256i size, __m256i sign, __m256i x)
{
    __m256i pairs = _mm256_maddubs_epi16(size, _mm256_sign_epi8(x, sign));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

/* Kinds that store two 4-bit numbers per byte. */
INLINE int has_nibbles(const enum sg_pack kind)
{
    return kind == SG_PACK_Q4 || kind == SG_PACK_Q4M || kind == SG_PACK_Q4F || kind >= SG_PACK_Q4K;
}

/* Start of the vectors of a block, or of part `part` (32 columns) of a block of 256. */
INLINE const uint8_t *vectors_of(const uint8_t *w, uint32_t part, const enum sg_pack kind)
{
    if (sg_pack_block_cols(kind) == 256) return w + 320 + (kind == SG_PACK_Q6K ? 384 : 256) * part;
    return w + (kind == SG_PACK_Q4M ? 64 : kind == SG_PACK_Q4 || kind == SG_PACK_Q8 ? 32 : 128);
}

/* Chunk c of 4 columns for half h of the rows, as unsigned bytes. Nibbles: chunks 4 to 7 are the high
 * halves of 0 to 3. Q6K inserts two high bits from the vectors after the nibbles. */
INLINE __m256i weights_at(const uint8_t *v, const enum sg_pack kind, int c, uint32_t h)
{
    const int nibbles = has_nibbles(kind);
    __m256i w = _mm256_loadu_si256((const __m256i *)(const void *)(v + 64 * (nibbles ? c % 4 : c) + 32 * h));
    if (!nibbles) return w;
    /* shifting 16-bit lanes moves bits between bytes; the mask removes them */
    w = _mm256_and_si256(c < 4 ? w : _mm256_srli_epi16(w, 4), _mm256_set1_epi8(15));
    if (kind != SG_PACK_Q6K) return w;
    __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)(v + 256 + 64 * (c % 2) + 32 * h));
    x = c < 2 ? _mm256_slli_epi16(x, 4) : c < 4 ? _mm256_slli_epi16(x, 2) : c < 6 ? x : _mm256_srli_epi16(x, 2);
    return _mm256_or_si256(w, _mm256_and_si256(x, _mm256_set1_epi8(0x30)));
}

/* 8 bytes as fp32, signed or unsigned. */
INLINE __m256 load_i8x8(const uint8_t *p, const int sign)
{
    __m128i b = _mm_loadl_epi64((const __m128i *)(const void *)p);
    return _mm256_cvtepi32_ps(sign ? _mm256_cvtepi8_epi32(b) : _mm256_cvtepu8_epi32(b));
}

/* Scale and offset of half h of the rows; run: which 16 columns of a part of Q6K. */
INLINE void scales_at(const uint8_t *w, uint32_t part, uint32_t run, uint32_t h, const enum sg_pack kind,
                      __m256 *d, __m256 *m)
{
    const uint8_t *s = w + 64 + 32 * part + 8 * h;
    /* scales stored as f16 */
    const int half = kind == SG_PACK_Q4 || kind == SG_PACK_Q4M || kind == SG_PACK_Q8 || kind >= SG_PACK_Q4K;
    *d = half ? load_f16x8(w + 16 * h) : load_f32x8(w + 32 * h);
    if (kind == SG_PACK_Q4K) {
        *d = _mm256_mul_ps(*d, load_i8x8(s, 0));
        *m = _mm256_xor_ps(_mm256_mul_ps(load_f16x8(w + 32 + 16 * h), load_i8x8(s + 16, 0)), _mm256_set1_ps(-0.0f));
    } else if (kind == SG_PACK_Q6K) {
        *d = _mm256_mul_ps(*d, load_i8x8(s + 16 * run, 1));
        *m = _mm256_mul_ps(*d, _mm256_set1_ps(-32.0f));
    } else if (kind == SG_PACK_Q4) {
        *m = _mm256_mul_ps(*d, _mm256_set1_ps(-8.0f));
    } else if (kind == SG_PACK_Q8) {
        *m = _mm256_mul_ps(*d, _mm256_set1_ps(-128.0f));
    } else {
        *m = kind == SG_PACK_Q4M ? load_f16x8(w + 32 + 16 * h) : load_f32x8(w + 64 + 32 * h);
    }
}

/* One block of activations (chunks * 4 columns) times half a group: int32 sums over the chunks, then
 * two fp32 multiply-adds into acc. v, c0: vectors of the weights and first chunk. nt, t0, n: rows of
 * the tile, first row, rows computed. */
INLINE void block_accumulate(const uint8_t *v, __m256 d, __m256 m, const int c0, const int chunks, uint32_t h,
                    const uint8_t *x, uint32_t nt, uint32_t t0, const int n, const int fine,
                    const enum sg_pack kind, __m256 *acc)
{
    const size_t bytes = (size_t)nt * 4 * (size_t)chunks;
    const uint8_t *scales = x + sg_tile_scales(4 * (uint32_t)chunks, (uint32_t)fine, nt) + 4 * (size_t)t0;
    /* at most 4 rows: 4 sums, 4 accumulators, weights and temporaries fit 16 registers */
    __m256i sum[4];
    UNROLL
    for (int t = 0; t < n; t++) sum[t] = _mm256_setzero_si256();
    /* high bytes first, then the remainders; the weights stay in L1 */
    for (int pass = 0; pass < (fine == SG_FINE ? 2 : 1); pass++) {
        UNROLL
        for (int c = 0; c < chunks; c++) {
            __m256i sign = _mm256_xor_si256(weights_at(v, kind, c0 + c, h), _mm256_set1_epi8(-128)),
                    size = _mm256_abs_epi8(sign);
            const uint8_t *xc = x + (size_t)pass * bytes + 4 * ((size_t)(unsigned)c * nt + t0);
            UNROLL
            for (int t = 0; t < n; t++) sum[t] = dot_add(sum[t], size, sign, broadcast4(xc + 4 * t));
        }
        UNROLL
        for (int t = 0; t < n; t++)
            if (fine == SG_FINE && !pass) sum[t] = _mm256_slli_epi32(sum[t], 8);
    }
    /* compensates the 128 that was subtracted from each weight */
    m = _mm256_fmadd_ps(d, _mm256_set1_ps(128.0f), m);
    UNROLL
    for (int t = 0; t < n; t++) {
        acc[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[t]), _mm256_mul_ps(d, broadcast_f32(scales + 4 * t)), acc[t]);
        acc[t] = _mm256_fmadd_ps(m, broadcast_f32(scales + 4 * ((size_t)nt + (unsigned)t)), acc[t]);
    }
}

/* Half h of a group (8 rows) x n rows of activations, over all blocks. The vectors 2 KB ahead are
 * prefetched. */
INLINE void half_group(const uint8_t *w, size_t blocks, uint32_t h, uint32_t rows, const uint8_t *x,
                      uint32_t nt, uint32_t t0, const int n, const int fine, float *out, size_t ldo,
                      const enum sg_pack kind)
{
    const uint32_t run = sg_pack_scale_cols(kind), block = sg_pack_block_cols(kind), parts = block == 256 ? 8 : 1,
                   runs = block < 32 ? 1 : 32 / run;
    const size_t step = sg_pack_block_bytes(kind), xstep = sg_tile_bytes(run, run, (uint32_t)fine, nt);
    __m256 acc[4];
    /* one accumulator per row of activations */
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
                block_accumulate(v, d, m, (int)(r * run / 4), (int)run / 4, h, x, nt, t0, n, fine, kind, acc);
            }
        }
    UNROLL
    for (int t = 0; t < n; t++) store_rows(out + (size_t)t * ldo, rows, acc[t]);
}

/* All rows: groups in halves of 8, activations in steps of 4 rows (4 sums, 4 accumulators and the
 * weights fit 16 registers). */
INLINE void quant_body(const uint8_t *w, size_t k, uint32_t rows, const uint8_t *x, uint32_t nt,
                       const int fine, float *out, size_t ldo, const enum sg_pack kind)
{
    const size_t blocks = k / sg_pack_block_cols(kind);
    for (uint32_t g = 0; g < rows; g += 8) {
        const uint8_t *group = w + g / 16 * blocks * sg_pack_block_bytes(kind);
        /* 8 rows are half of a group */
        uint32_t h = g / 8 % 2, left = rows - g, t = 0;
        for (; t + 4 <= nt; t += 4)
            half_group(group, blocks, h, left, x, nt, t, 4, fine, out + t * ldo + g, ldo, kind);
        switch (nt - t) {
        case 3: half_group(group, blocks, h, left, x, nt, t, 3, fine, out + t * ldo + g, ldo, kind); break;
        case 2: half_group(group, blocks, h, left, x, nt, t, 2, fine, out + t * ldo + g, ldo, kind); break;
        case 1: half_group(group, blocks, h, left, x, nt, t, 1, fine, out + t * ldo + g, ldo, kind); break;
        default: break;
        }
    }
}

/* The blocks of a superblock on unpacked weights; blocks with negated activations are subtracted again.
 * The scale of the activations is applied once per superblock, by the caller. */
INLINE void superblock_accumulate(const uint8_t *w, uint32_t h, const struct sg_superblock *x, uint32_t nt, uint32_t t0,
                                  const int n, const int chunks, __m256 *acc)
{
    const uint8_t *q = x->q + 4 * t0, *s = x->s + 4 * t0;
    for (uint32_t b = 0; b < x->blocks; b++, w += 128 + 64 * chunks, s += 4 * nt) {
        __m256 d = load_f32x8(w + 32 * h), m = _mm256_fmadd_ps(d, _mm256_set1_ps(128.0f), load_f32x8(w + 64 + 32 * h));
        __m256i sum[4];
        UNROLL
        for (int t = 0; t < n; t++) sum[t] = _mm256_setzero_si256();
        UNROLL
        for (int c = 0; c < chunks; c++, q += 4 * nt) {
            __m256i sign = _mm256_xor_si256(weights_at(w + 128, SG_PACK_Q8F, c, h), _mm256_set1_epi8(-128)),
                    size = _mm256_abs_epi8(sign);
            UNROLL
            for (int t = 0; t < n; t++) sum[t] = dot_add(sum[t], size, sign, broadcast4(q + 4 * t));
        }
        /* odd blocks hold negated activations: negate the scale, too */
        if (b % 2) d = _mm256_xor_ps(d, _mm256_set1_ps(-0.0f));
        UNROLL
        for (int t = 0; t < n; t++) {
            acc[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[t]), d, acc[t]);
            acc[t] = _mm256_fmadd_ps(m, broadcast_f32(s + 4 * t), acc[t]);
        }
    }
}

/* The outlier chunks of a superblock: each row has its own chunks, found by the byte offsets stored
 * with them. */
INLINE void outliers_accumulate(const uint8_t *w, uint32_t h, const struct sg_superblock *x, uint32_t nt, uint32_t t0,
                                const int n, __m256 *acc)
{
    const uint8_t *p = x->raised + 4 * t0;
    __m256 up[4];
    UNROLL
    for (int t = 0; t < n; t++) up[t] = _mm256_setzero_ps();
    for (uint32_t i = 0; i < x->chunks; i++, p += 16 * nt) {
        UNROLL
        for (uint32_t t = 0; t < (uint32_t)n; t++) {
            /* the vector and the scales of the outlier's chunk, by byte offset */
            const uint8_t *v = w + sg_le32(p + 4 * (nt + t)) + 32 * h;
            __m256i sign = _mm256_xor_si256(_mm256_loadu_si256((const __m256i *)(const void *)v), _mm256_set1_epi8(-128)),
                    sum = dot_add(_mm256_setzero_si256(), _mm256_abs_epi8(sign), sign, broadcast4(p + 4 * t));
            up[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), load_f32x8(w + sg_le32(p + 4 * (2 * nt + t)) + 32 * h), up[t]);
        }
    }
    UNROLL
    for (int t = 0; t < n; t++) acc[t] = _mm256_fmadd_ps(up[t], _mm256_set1_ps(128.0f), acc[t]);
}

/* As half_group, for an SG_OUTLIER tile and unpacked weights of `chunks` chunks per block. */
INLINE void outlier_half(const uint8_t *w, size_t k, uint32_t h, uint32_t rows, const uint8_t *x, uint32_t nt, uint32_t t0,
                        const int n, float *out, size_t ldo, const int chunks)
{
    __m256 acc[4];
    UNROLL
    for (int t = 0; t < n; t++) acc[t] = _mm256_setzero_ps();
    for (size_t left = k; left;) {
        const struct sg_superblock a = sg_superblock_at(x, left, 4 * (unsigned)chunks, nt);
        __m256 span[4];
        UNROLL
        for (int t = 0; t < n; t++) span[t] = _mm256_setzero_ps();
        superblock_accumulate(w, h, &a, nt, t0, n, chunks, span);
        outliers_accumulate(w, h, &a, nt, t0, n, span);
        UNROLL
        for (int t = 0; t < n; t++)
            acc[t] = _mm256_fmadd_ps(span[t], broadcast_f32(a.d + 4 * (t0 + (unsigned)t)), acc[t]);
        w += a.blocks * (128 + 64 * (size_t)chunks);
        left -= a.blocks * 4 * (size_t)chunks;
        x = a.raised + 16 * (size_t)nt * a.chunks;
    }
    UNROLL
    for (int t = 0; t < n; t++) store_rows(out + (size_t)t * ldo, rows, acc[t]);
}

/* As quant_body, for an SG_OUTLIER tile. */
INLINE void outlier_body(const uint8_t *w, size_t k, uint32_t rows, const uint8_t *x, uint32_t nt, float *out, size_t ldo,
                        const int chunks)
{
    const size_t group = k / (4 * (unsigned)chunks) * (128 + 64 * (size_t)chunks);
    for (uint32_t g = 0; g < rows; g += 8) {
        const uint8_t *wg = w + g / 16 * group;
        uint32_t h = g / 8 % 2, t = 0;
        for (; t + 4 <= nt; t += 4) outlier_half(wg, k, h, rows - g, x, nt, t, 4, out + t * ldo + g, ldo, chunks);
        for (; t < nt; t++) outlier_half(wg, k, h, rows - g, x, nt, t, 1, out + t * ldo + g, ldo, chunks);
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
/* SG_OUTLIER tiles use a separate body; others use the kernel of packed weights. */
#define TILE(name, few, chunks)                                             \
    MM(name)                                                                \
    {                                                                       \
        if (fine == SG_OUTLIER) outlier_body(w, k, rows, x, nt, out, ldo, chunks); \
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

/* Packed -> unpacked form, bit-equal to the generic kernel. */

INLINE void unpack_body(const uint8_t *w, size_t k, uint8_t *out, const enum sg_pack kind)
{
    const uint32_t run = sg_pack_scale_cols(kind), parts = sg_pack_block_cols(kind) == 256 ? 8 : 1;
    for (size_t b = 0; b < k / sg_pack_block_cols(kind); b++, w += sg_pack_block_bytes(kind))
        for (uint32_t part = 0; part < parts; part++)
            for (uint32_t r = 0; r < 32 / run; r++, out += sg_unpacked_bytes(kind, run))
                /* both halves of the group */
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
static void unpack_q4(const uint8_t *w, size_t k, uint8_t *out) { unpack_body(w, k, out, SG_PACK_Q4); }
static void unpack_q4m(const uint8_t *w, size_t k, uint8_t *out) { unpack_body(w, k, out, SG_PACK_Q4M); }
static void unpack_q8(const uint8_t *w, size_t k, uint8_t *out) { unpack_body(w, k, out, SG_PACK_Q8); }
static void unpack_q4f(const uint8_t *w, size_t k, uint8_t *out) { unpack_body(w, k, out, SG_PACK_Q4F); }
static void unpack_q4k(const uint8_t *w, size_t k, uint8_t *out) { unpack_body(w, k, out, SG_PACK_Q4K); }
static void unpack_q6k(const uint8_t *w, size_t k, uint8_t *out) { unpack_body(w, k, out, SG_PACK_Q6K); }

/* 8 float weights as fp32. */

INLINE __m256 weights8(const uint8_t *w, const enum sg_pack kind)
{
    if (kind == SG_PACK_F32) return load_f32x8(w);
    if (kind == SG_PACK_F16) return load_f16x8(w);
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)w)), 16));
}

/* One group (two halves of 8 rows) x n rows of activations. Eight chains of multiply-adds hide the FMA
 * latency. */
INLINE void float_group(const uint8_t *w, size_t k, uint32_t rows, const float *x, uint32_t nt, const int n,
                         float *out, size_t ldo, const enum sg_pack kind)
{
    const size_t step = sg_pack_block_bytes(kind);
    __m256 acc[2][4];
    UNROLL
    for (int t = 0; t < n; t++) acc[0][t] = acc[1][t] = _mm256_setzero_ps();
    for (size_t i = 0; i < k; i++, x += nt, w += step) {
        /* both halves of 8 rows of one column */
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

/* All groups, activations in steps of 4 rows. */
INLINE void float_body(const uint8_t *w, size_t k, uint32_t rows, const float *x, uint32_t nt, float *out,
                       size_t ldo, const enum sg_pack kind)
{
    for (uint32_t g = 0; g < rows; g += 16, w += k * sg_pack_block_bytes(kind)) {
        uint32_t t = 0;
        for (; t + 4 <= nt; t += 4) float_group(w, k, rows - g, x + t, nt, 4, out + t * ldo + g, ldo, kind);
        switch (nt - t) {
        case 3: float_group(w, k, rows - g, x + t, nt, 3, out + t * ldo + g, ldo, kind); break;
        case 2: float_group(w, k, rows - g, x + t, nt, 2, out + t * ldo + g, ldo, kind); break;
        case 1: float_group(w, k, rows - g, x + t, nt, 1, out + t * ldo + g, ldo, kind); break;
        default: break;
        }
    }
}
MM(few_f32) { (void)fine; float_body(w, k, rows, x, nt, out, ldo, SG_PACK_F32); }
MM(few_f16) { (void)fine; float_body(w, k, rows, x, nt, out, ldo, SG_PACK_F16); }
MM(few_bf16) { (void)fine; float_body(w, k, rows, x, nt, out, ldo, SG_PACK_BF16); }

INLINE void float_unpack(const uint8_t *w, size_t k, uint8_t *out, const enum sg_pack kind)
{
    for (size_t i = 0; i < 2 * k; i++) _mm256_storeu_ps((float *)(void *)(out + 32 * i), weights8(w + 16 * i, kind));
}
static void unpack_f16(const uint8_t *w, size_t k, uint8_t *out) { float_unpack(w, k, out, SG_PACK_F16); }
static void unpack_bf16(const uint8_t *w, size_t k, uint8_t *out) { float_unpack(w, k, out, SG_PACK_BF16); }

/* Correctly rounded by vcvtps2ph; the tail is converted in software with the same result. */
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
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(y + i, load_f16x8((const uint8_t *)(x + i)));
    for (; i < n; i++) y[i] = sg_f32_of_f16(x[i]);
}

void sg_kernels_avx2(struct sg_kernels *k)
{
    sg_mm_fn *const few[SG_PACK_N] = {few_q4,  few_q4m, few_q8,  few_q4f, few_q8f, few_q8h,
                                      few_q4k, few_q6k, few_f32, few_f16, few_bf16};
    plain_kernels(k);
    k->isa = "avx2";
    memcpy(k->few, few, sizeof few);
    k->tile[SG_UNPACKED_32] = k->tile[SG_UNPACKED_32_SYM] = tile_32;
    k->tile[SG_UNPACKED_16] = tile_16;
    k->open[SG_PACK_Q4] = unpack_q4;
    k->open[SG_PACK_Q4M] = unpack_q4m;
    k->open[SG_PACK_Q8] = unpack_q8;
    k->open[SG_PACK_Q4F] = unpack_q4f;
    k->open[SG_PACK_Q4K] = unpack_q4k;
    k->open[SG_PACK_Q6K] = unpack_q6k;
    k->open[SG_PACK_F16] = unpack_f16;
    k->open[SG_PACK_BF16] = unpack_bf16;
    sg_kernels_avx2_quant(k);
    k->to_f16 = to_f16;
    k->of_f16 = of_f16;
}
#endif
