/* k_neon.c: kernels for 64-bit Arm with the signed dot product. 128 is taken off each weight, the offset m
 * grows by 128 d, as in k_avx2.c; one register holds 4 rows x 4 columns, a group is four of them. Few rows
 * and tiles share one body.
 * SPDX-License-Identifier: MIT */
#if defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>

#include "unit/cpu/k_plain.h"

#define INLINE static inline __attribute__((always_inline))

INLINE int8x16_t bytes4(const uint8_t *p)
{
    int32_t four;
    memcpy(&four, p, 4);
    return vreinterpretq_s8_s32(vdupq_n_s32(four));
}
INLINE float one(const uint8_t *p)
{
    float f;
    memcpy(&f, p, 4);
    return f;
}
INLINE float32x4_t halves4(const uint8_t *p) { return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p))); }
INLINE float32x4_t floats4(const uint8_t *p) { return vreinterpretq_f32_u8(vld1q_u8(p)); }

INLINE void store_rows(float *out, uint32_t rows, float32x4_t v)
{
    float room[4];
    vst1q_f32(room, v);
    memcpy(out, room, (rows < 4 ? rows : 4) * sizeof *out);
}

/* Bytes c*64 + h*16 of a block's vectors, nibbles apart, less 128. */
INLINE int8x16_t weights_at(const uint8_t *v, const int nibbles, int c, uint32_t h)
{
    uint8x16_t w = vld1q_u8(v + 64 * (nibbles ? c % 4 : c) + 16 * h);
    if (nibbles) w = c < 4 ? vandq_u8(w, vdupq_n_u8(15)) : vshrq_n_u8(w, 4);
    return vreinterpretq_s8_u8(veorq_u8(w, vdupq_n_u8(0x80)));
}

/* 4 rows (quarter h of a group) x n tokens from token t0 of a tile of nt. */
INLINE void quarter_body(const uint8_t *w, size_t blocks, uint32_t h, uint32_t rows, const uint8_t *x,
                         uint32_t nt, uint32_t t0, const int n, const int fine, float *out, size_t ldo,
                         const enum sg_pack kind)
{
    const int half = kind == SG_PACK_Q4 || kind == SG_PACK_Q4M || kind == SG_PACK_Q8;
    const int nibbles = kind == SG_PACK_Q4 || kind == SG_PACK_Q4M || kind == SG_PACK_Q4F,
              chunks = kind == SG_PACK_Q8H ? 4 : 8;
    const size_t step = sg_pack_block_bytes(kind), bytes = (size_t)nt * 4 * (size_t)chunks,
                 xstep = bytes * (size_t)(1 + fine) + 8 * (size_t)nt;
    float32x4_t acc[4];
    for (int t = 0; t < n; t++) acc[t] = vdupq_n_f32(0.0f);
    for (size_t b = 0; b < blocks; b++, w += step, x += xstep) {
        const uint8_t *v = w + (half ? (kind == SG_PACK_Q4M ? 64 : 32) : 128);
        int32x4_t sum[4];
        for (int t = 0; t < n; t++) sum[t] = vdupq_n_s32(0);
        const uint8_t *scales = x + bytes * (size_t)(1 + fine);
        const int passes = fine && !(scales[3] & 0x80) ? 2 : 1; /* no rests where the first d is negative */
        for (int pass = 0; pass < passes; pass++) {
            for (int c = 0; c < chunks; c++) {
                int8x16_t q = weights_at(v, nibbles, c, h);
                const uint8_t *xc = x + (size_t)pass * bytes + 4 * ((size_t)(unsigned)c * nt + t0);
                for (int t = 0; t < n; t++) sum[t] = vdotq_s32(sum[t], q, bytes4(xc + 4 * t));
            }
            for (int t = 0; t < n && passes == 2 && !pass; t++) sum[t] = vshlq_n_s32(sum[t], 8);
        }
        float32x4_t d = half ? halves4(w + 8 * h) : floats4(w + 16 * h), m;
        if (kind == SG_PACK_Q4) m = vmulq_n_f32(d, 120.0f);
        else if (kind == SG_PACK_Q8) m = vdupq_n_f32(0.0f);
        else
            m = vfmaq_n_f32(kind == SG_PACK_Q4M ? halves4(w + 32 + 8 * h) : floats4(w + 64 + 16 * h), d,
                            128.0f);
        scales += 4 * (size_t)t0;
        for (int t = 0; t < n; t++) {
            acc[t] = vfmaq_f32(acc[t], vcvtq_f32_s32(sum[t]), vmulq_n_f32(d, fabsf(one(scales + 4 * t))));
            acc[t] = vfmaq_n_f32(acc[t], m, one(scales + 4 * ((size_t)nt + (unsigned)t)));
        }
    }
    for (int t = 0; t < n; t++) store_rows(out + (size_t)t * ldo, rows, acc[t]);
}

INLINE void quant_body(const uint8_t *w, size_t k, uint32_t rows, const uint8_t *x, uint32_t nt,
                       const int fine, float *out, size_t ldo, const enum sg_pack kind)
{
    const size_t blocks = k / sg_pack_block(kind);
    for (uint32_t g = 0; g < rows; g += 4) {
        const uint8_t *group = w + g / 16 * blocks * sg_pack_block_bytes(kind);
        uint32_t h = g / 4 % 4, t = 0;
        for (; t + 4 <= nt; t += 4)
            quarter_body(group, blocks, h, rows - g, x, nt, t, 4, fine, out + t * ldo + g, ldo, kind);
        for (; t < nt; t++)
            quarter_body(group, blocks, h, rows - g, x, nt, t, 1, fine, out + t * ldo + g, ldo, kind);
    }
}

#define MM(name)                                                                                           \
    static void name(const uint8_t *w, size_t k, uint32_t rows, const void *x, uint32_t nt, uint32_t fine, \
                     float *out, size_t ldo)
#define QUANT(name, kind)                                                \
    MM(name)                                                             \
    {                                                                    \
        if (fine) quant_body(w, k, rows, x, nt, 1, out, ldo, kind);      \
        else quant_body(w, k, rows, x, nt, 0, out, ldo, kind);           \
    }
QUANT(few_q4, SG_PACK_Q4)
QUANT(few_q4m, SG_PACK_Q4M)
QUANT(few_q8, SG_PACK_Q8)
QUANT(few_q4f, SG_PACK_Q4F)
QUANT(tile_32, SG_PACK_Q8F)
QUANT(tile_16, SG_PACK_Q8H)

/* --- float weights: a group x n tokens --- */

INLINE float32x4_t weights4(const uint8_t *w, const enum sg_pack kind)
{
    if (kind == SG_PACK_F32) return floats4(w);
    if (kind == SG_PACK_F16) return halves4(w);
    return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(w)), 16));
}

INLINE void float_group(const uint8_t *w, size_t k, uint32_t rows, const float *x, uint32_t nt, const int n,
                        float *out, size_t ldo, const enum sg_pack kind)
{
    const size_t step = sg_pack_block_bytes(kind);
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

void sg_kernels_neon(struct sg_kernels *k)
{
    sg_mm_fn *const few[SG_PACK_N] = {few_q4,  few_q4m, few_q8,  few_q4f, tile_32,
                                      tile_16, few_f32, few_f16, few_bf16};
    plain_rows(k);
    k->isa = "neon";
    memcpy(k->few, few, sizeof few);
    k->tile[0] = tile_32;
    k->tile[1] = tile_16;
}
#endif
