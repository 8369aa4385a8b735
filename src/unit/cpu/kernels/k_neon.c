/* k_neon.c: kernels for 64-bit Arm with the dot product extension (sdot). One register holds 4 rows x 4
 * columns, a quarter of a vector of a group. sdot is signed x signed, so 128 is subtracted from each
 * weight and the offset m grows by 128 d, as in k_avx2.c. Few rows and tiles share one body, so their
 * results are bit-equal. Integer sums are int32, fp32 sums one chain over the blocks.
 * SPDX-License-Identifier: MIT */
#if defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>

#include "unit/cpu/kernels/k_plain.h"

#define INLINE static inline __attribute__((always_inline))

/* Four activations in every 32-bit lane. */
INLINE int8x16_t broadcast4(const uint8_t *p)
{
    int32_t four;
    memcpy(&four, p, 4);
    return vreinterpretq_s8_s32(vdupq_n_s32(four));
}
INLINE float load_f32(const uint8_t *p)
{
    float f;
    memcpy(&f, p, 4);
    return f;
}
INLINE float32x4_t load_f16x4(const uint8_t *p) { return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p))); }
INLINE float32x4_t load_f32x4(const uint8_t *p) { return vreinterpretq_f32_u8(vld1q_u8(p)); }

/* Stores the first min(rows, 4) lanes. */
INLINE void store_rows(float *out, uint32_t rows, float32x4_t v)
{
    float lanes[4];
    vst1q_f32(lanes, v);
    memcpy(out, lanes, (rows < 4 ? rows : 4) * sizeof *out);
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

/* Chunk c of 4 columns for quarter h of the rows, minus 128. Q6K inserts two high bits from the vectors
 * after the nibbles. */
INLINE int8x16_t weights_at(const uint8_t *v, const enum sg_pack kind, int c, uint32_t h)
{
    const int nibbles = has_nibbles(kind);
    uint8x16_t w = vld1q_u8(v + 64 * (nibbles ? c % 4 : c) + 16 * h);
    /* chunks 4 to 7 are the high nibbles of vectors 0 to 3 */
    if (nibbles) w = c < 4 ? vandq_u8(w, vdupq_n_u8(15)) : vshrq_n_u8(w, 4);
    if (kind == SG_PACK_Q6K) {
        int8x16_t by = vdupq_n_s8((int8_t)(4 - c / 2 * 2));
        uint8x16_t x = vshlq_u8(vld1q_u8(v + 256 + 64 * (c % 2) + 16 * h), by);
        w = vorrq_u8(w, vandq_u8(x, vdupq_n_u8(0x30)));
    }
    return vreinterpretq_s8_u8(veorq_u8(w, vdupq_n_u8(0x80)));
}

/* 4 bytes as fp32, signed or unsigned. */
INLINE float32x4_t load_i8x4(const uint8_t *p, const int sign)
{
    float f[4];
    for (int i = 0; i < 4; i++) f[i] = sign ? (float)(int8_t)p[i] : (float)p[i];
    return vld1q_f32(f);
}

/* Scale and offset of quarter h of the rows; run: which 16 columns of a part of Q6K. */
INLINE void scales_at(const uint8_t *w, uint32_t part, uint32_t run, uint32_t h, const enum sg_pack kind,
                      float32x4_t *d, float32x4_t *m)
{
    const uint8_t *s = w + 64 + 32 * part + 4 * h;
    /* scales stored as f16 */
    const int half = kind == SG_PACK_Q4 || kind == SG_PACK_Q4M || kind == SG_PACK_Q8 || kind >= SG_PACK_Q4K;
    *d = half ? load_f16x4(w + 8 * h) : load_f32x4(w + 16 * h);
    if (kind == SG_PACK_Q4K) {
        *d = vmulq_f32(*d, load_i8x4(s, 0));
        *m = vnegq_f32(vmulq_f32(load_f16x4(w + 32 + 8 * h), load_i8x4(s + 16, 0)));
    } else if (kind == SG_PACK_Q6K) {
        *d = vmulq_f32(*d, load_i8x4(s + 16 * run, 1));
        *m = vmulq_n_f32(*d, -32.0f);
    } else if (kind == SG_PACK_Q4) {
        *m = vmulq_n_f32(*d, -8.0f);
    } else if (kind == SG_PACK_Q8) {
        *m = vmulq_n_f32(*d, -128.0f);
    } else {
        *m = kind == SG_PACK_Q4M ? load_f16x4(w + 32 + 8 * h) : load_f32x4(w + 64 + 16 * h);
    }
}

/* One block of activations times a quarter group: int32 sums over the chunks from c0 on, then two fp32
 * multiply-adds. */
INLINE void block_accumulate(const uint8_t *v, float32x4_t d, float32x4_t m, const int c0, const int chunks, uint32_t h,
                    const uint8_t *x, uint32_t nt, uint32_t t0, const int n, const int fine,
                    const enum sg_pack kind, float32x4_t *acc)
{
    const size_t bytes = (size_t)nt * 4 * (size_t)chunks;
    const uint8_t *scales = x + sg_tile_scales(4 * (uint32_t)chunks, (uint32_t)fine, nt) + 4 * (size_t)t0;
    /* at most 4 rows of activations */
    int32x4_t sum[4];
    for (int t = 0; t < n; t++) sum[t] = vdupq_n_s32(0);
    /* high bytes first, then the remainders */
    for (int pass = 0; pass < (fine == SG_FINE ? 2 : 1); pass++) {
        for (int c = 0; c < chunks; c++) {
            int8x16_t q = weights_at(v, kind, c0 + c, h);
            const uint8_t *xc = x + (size_t)pass * bytes + 4 * ((size_t)(unsigned)c * nt + t0);
            for (int t = 0; t < n; t++) sum[t] = vdotq_s32(sum[t], q, broadcast4(xc + 4 * t));
        }
        for (int t = 0; t < n && fine == SG_FINE && !pass; t++) sum[t] = vshlq_n_s32(sum[t], 8);
    }
    /* compensates the 128 that was subtracted from each weight */
    m = vfmaq_n_f32(m, d, 128.0f);
    for (int t = 0; t < n; t++) {
        acc[t] = vfmaq_f32(acc[t], vcvtq_f32_s32(sum[t]), vmulq_n_f32(d, load_f32(scales + 4 * t)));
        acc[t] = vfmaq_n_f32(acc[t], m, load_f32(scales + 4 * ((size_t)nt + (unsigned)t)));
    }
}

/* 4 rows (quarter h of a group) x n rows of activations from row t0 of a tile of nt, over all blocks. */
INLINE void quarter_group(const uint8_t *w, size_t blocks, uint32_t h, uint32_t rows, const uint8_t *x,
                         uint32_t nt, uint32_t t0, const int n, const int fine, float *out, size_t ldo,
                         const enum sg_pack kind)
{
    const uint32_t run = sg_pack_scale_cols(kind), block = sg_pack_block_cols(kind), parts = block == 256 ? 8 : 1,
                   runs = block < 32 ? 1 : 32 / run;
    const size_t step = sg_pack_block_bytes(kind), xstep = sg_tile_bytes(run, run, (uint32_t)fine, nt);
    float32x4_t acc[4];
    for (int t = 0; t < n; t++) acc[t] = vdupq_n_f32(0.0f);
    for (size_t b = 0; b < blocks; b++, w += step)
        for (uint32_t part = 0; part < parts; part++)
            for (uint32_t r = 0; r < runs; r++, x += xstep) {
                float32x4_t d, m;
                scales_at(w, part, r, h, kind, &d, &m);
                block_accumulate(vectors_of(w, part, kind), d, m, (int)(r * run / 4), (int)run / 4, h, x, nt, t0, n, fine,
                        kind, acc);
            }
    for (int t = 0; t < n; t++) store_rows(out + (size_t)t * ldo, rows, acc[t]);
}

/* All rows in quarters of 4, activations in steps of 4 rows. */
INLINE void quant_body(const uint8_t *w, size_t k, uint32_t rows, const uint8_t *x, uint32_t nt,
                       const int fine, float *out, size_t ldo, const enum sg_pack kind)
{
    const size_t blocks = k / sg_pack_block_cols(kind);
    for (uint32_t g = 0; g < rows; g += 4) {
        const uint8_t *group = w + g / 16 * blocks * sg_pack_block_bytes(kind);
        /* 4 rows are a quarter of a group */
        uint32_t h = g / 4 % 4, t = 0;
        for (; t + 4 <= nt; t += 4)
            quarter_group(group, blocks, h, rows - g, x, nt, t, 4, fine, out + t * ldo + g, ldo, kind);
        for (; t < nt; t++)
            quarter_group(group, blocks, h, rows - g, x, nt, t, 1, fine, out + t * ldo + g, ldo, kind);
    }
}

/* The blocks of a superblock on unpacked weights; blocks with negated activations are subtracted again. */
INLINE void superblock_accumulate(const uint8_t *w, uint32_t h, const struct sg_superblock *x, uint32_t nt, uint32_t t0,
                                  const int n, const int chunks, float32x4_t *acc)
{
    const uint8_t *q = x->q + 4 * t0, *s = x->s + 4 * t0;
    for (uint32_t b = 0; b < x->blocks; b++, w += 128 + 64 * chunks, s += 4 * nt) {
        float32x4_t d = load_f32x4(w + 16 * h), m = vfmaq_n_f32(load_f32x4(w + 64 + 16 * h), d, 128.0f);
        int32x4_t sum[4];
        for (int t = 0; t < n; t++) sum[t] = vdupq_n_s32(0);
        for (int c = 0; c < chunks; c++, q += 4 * nt) {
            int8x16_t v = weights_at(w + 128, SG_PACK_Q8F, c, h);
            for (int t = 0; t < n; t++) sum[t] = vdotq_s32(sum[t], v, broadcast4(q + 4 * t));
        }
        /* odd blocks hold negated activations: negate the scale, too */
        if (b % 2) d = vnegq_f32(d);
        for (int t = 0; t < n; t++) {
            acc[t] = vfmaq_f32(acc[t], vcvtq_f32_s32(sum[t]), d);
            acc[t] = vfmaq_n_f32(acc[t], m, load_f32(s + 4 * t));
        }
    }
}

/* The outlier chunks of a superblock, found by the byte offsets stored with them. */
INLINE void outliers_accumulate(const uint8_t *w, uint32_t h, const struct sg_superblock *x, uint32_t nt, uint32_t t0,
                                const int n, float32x4_t *acc)
{
    const uint8_t *p = x->raised + 4 * t0;
    /* sums of the outlier chunks, which count 128 times */
    float32x4_t up[4];
    for (int t = 0; t < n; t++) up[t] = vdupq_n_f32(0.0f);
    for (uint32_t i = 0; i < x->chunks; i++, p += 16 * nt)
        for (uint32_t t = 0; t < (uint32_t)n; t++) {
            /* the vector and the scales of the outlier's chunk, by byte offset */
            const uint8_t *v = w + sg_le32(p + 4 * (nt + t)) + 16 * h, *d = w + sg_le32(p + 4 * (2 * nt + t)) + 16 * h;
            int8x16_t q = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(v), vdupq_n_u8(0x80)));
            up[t] = vfmaq_f32(up[t], vcvtq_f32_s32(vdotq_s32(vdupq_n_s32(0), q, broadcast4(p + 4 * t))), load_f32x4(d));
        }
    for (int t = 0; t < n; t++) acc[t] = vfmaq_n_f32(acc[t], up[t], 128.0f);
}

/* As quarter_group, for an SG_OUTLIER tile and unpacked weights. */
INLINE void outlier_quarter(const uint8_t *w, size_t k, uint32_t h, uint32_t rows, const uint8_t *x, uint32_t nt,
                           uint32_t t0, const int n, float *out, size_t ldo, const int chunks)
{
    float32x4_t acc[4];
    for (int t = 0; t < n; t++) acc[t] = vdupq_n_f32(0.0f);
    for (size_t left = k; left;) {
        /* one scale of the activations per superblock */
        const struct sg_superblock a = sg_superblock_at(x, left, 4 * (unsigned)chunks, nt);
        float32x4_t span[4];
        for (int t = 0; t < n; t++) span[t] = vdupq_n_f32(0.0f);
        superblock_accumulate(w, h, &a, nt, t0, n, chunks, span);
        outliers_accumulate(w, h, &a, nt, t0, n, span);
        for (int t = 0; t < n; t++) acc[t] = vfmaq_n_f32(acc[t], span[t], load_f32(a.d + 4 * (t0 + (unsigned)t)));
        w += a.blocks * (128 + 64 * (size_t)chunks);
        left -= a.blocks * 4 * (size_t)chunks;
        x = a.raised + 16 * (size_t)nt * a.chunks;
    }
    for (int t = 0; t < n; t++) store_rows(out + (size_t)t * ldo, rows, acc[t]);
}

/* As quant_body, for an SG_OUTLIER tile. */
INLINE void outlier_body(const uint8_t *w, size_t k, uint32_t rows, const uint8_t *x, uint32_t nt, float *out, size_t ldo,
                        const int chunks)
{
    const size_t group = k / (4 * (unsigned)chunks) * (128 + 64 * (size_t)chunks);
    for (uint32_t g = 0; g < rows; g += 4) {
        const uint8_t *wg = w + g / 16 * group;
        uint32_t h = g / 4 % 4, t = 0;
        for (; t + 4 <= nt; t += 4) outlier_quarter(wg, k, h, rows - g, x, nt, t, 4, out + t * ldo + g, ldo, chunks);
        for (; t < nt; t++) outlier_quarter(wg, k, h, rows - g, x, nt, t, 1, out + t * ldo + g, ldo, chunks);
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

/* 4 float weights as fp32. */

INLINE float32x4_t weights4(const uint8_t *w, const enum sg_pack kind)
{
    if (kind == SG_PACK_F32) return load_f32x4(w);
    if (kind == SG_PACK_F16) return load_f16x4(w);
    return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(w)), 16));
}

/* One group x n rows of activations: four registers of rows per column. */
INLINE void float_group(const uint8_t *w, size_t k, uint32_t rows, const float *x, uint32_t nt, const int n,
                        float *out, size_t ldo, const enum sg_pack kind)
{
    const size_t step = sg_pack_block_bytes(kind);
    /* [row of activations][quarter of the group] */
    float32x4_t acc[4][4];
    for (int t = 0; t < n; t++)
        for (int h = 0; h < 4; h++) acc[t][h] = vdupq_n_f32(0.0f);
    for (size_t i = 0; i < k; i++, x += nt, w += step)
        for (int h = 0; h < 4; h++) {
            float32x4_t v = weights4(w + step / 4 * (unsigned)h, kind);
            for (int t = 0; t < n; t++) acc[t][h] = vfmaq_n_f32(acc[t][h], v, x[t]);
        }
    for (int t = 0; t < n; t++)
        for (uint32_t h = 0; h < 4 && 4 * h < rows; h++)
            store_rows(out + (size_t)t * ldo + 4 * h, rows - 4 * h, acc[t][h]);
}

/* All groups, activations in steps of 4 rows. */
INLINE void float_body(const uint8_t *w, size_t k, uint32_t rows, const float *x, uint32_t nt, float *out,
                       size_t ldo, const enum sg_pack kind)
{
    for (uint32_t g = 0; g < rows; g += 16, w += k * sg_pack_block_bytes(kind)) {
        uint32_t t = 0;
        for (; t + 4 <= nt; t += 4) float_group(w, k, rows - g, x + t, nt, 4, out + t * ldo + g, ldo, kind);
        for (; t < nt; t++) float_group(w, k, rows - g, x + t, nt, 1, out + t * ldo + g, ldo, kind);
    }
}
MM(few_f32) { (void)fine; float_body(w, k, rows, x, nt, out, ldo, SG_PACK_F32); }
MM(few_f16) { (void)fine; float_body(w, k, rows, x, nt, out, ldo, SG_PACK_F16); }
MM(few_bf16) { (void)fine; float_body(w, k, rows, x, nt, out, ldo, SG_PACK_BF16); }

INLINE void float_unpack(const uint8_t *w, size_t k, uint8_t *out, const enum sg_pack kind)
{
    /* four quarters per column */
    for (size_t i = 0; i < 4 * k; i++) vst1q_f32((float *)(void *)(out + 16 * i), weights4(w + 8 * i, kind));
}
static void unpack_f16(const uint8_t *w, size_t k, uint8_t *out) { float_unpack(w, k, out, SG_PACK_F16); }
static void unpack_bf16(const uint8_t *w, size_t k, uint8_t *out) { float_unpack(w, k, out, SG_PACK_BF16); }

/* The plain kernels compiled for Arm, then the matrix kernels above. */
void sg_kernels_neon(struct sg_kernels *k)
{
    sg_mm_fn *const few[SG_PACK_N] = {few_q4,  few_q4m, few_q8,  few_q4f, few_q8f, few_q8h,
                                      few_q4k, few_q6k, few_f32, few_f16, few_bf16};
    plain_kernels(k);
    k->isa = "neon";
    memcpy(k->few, few, sizeof few);
    k->tile[SG_UNPACKED_32] = k->tile[SG_UNPACKED_32_SYM] = tile_32;
    k->tile[SG_UNPACKED_16] = tile_16;
    k->open[SG_PACK_F16] = unpack_f16;
    k->open[SG_PACK_BF16] = unpack_bf16;
}
#endif
