/* k_avx512.h: helpers shared by the kernel files for AVX-512 with VNNI: loads, e^x, unpacking one block
 * of weights, and one block of a product. A vector holds 16 rows x 4 columns of weights; vpdpbusd
 * multiplies it by four activations broadcast to all lanes, so no sum is taken across lanes. Every
 * output is one chain of additions, block after block, in every tile width; so a row's result does not
 * depend on the other rows.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CPU_K_AVX512_H
#define SG_UNIT_CPU_K_AVX512_H

#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "unit/cpu/kernels/kernels.h"

/* Bodies are inlined with constant widths and kinds, and their loops are unrolled completely. */
#define INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* Four activations in every 32-bit lane. */
INLINE __m512i broadcast4(const uint8_t *p)
{
    int32_t four;
    memcpy(&four, p, 4);
    return _mm512_set1_epi32(four);
}
INLINE float load_f32(const uint8_t *p)
{
    float f;
    memcpy(&f, p, 4);
    return f;
}
INLINE uint32_t load_u32(const uint8_t *p)
{
    uint32_t n;
    memcpy(&n, p, 4);
    return n;
}
/* Mask of the first min(rows, 16) lanes: loads and stores of tails never touch memory beyond the end. */
INLINE __mmask16 tail_mask(uint32_t rows)
{
    return rows >= 16 ? (__mmask16)0xffff : (__mmask16)((1u << rows) - 1u);
}

/* e^x for x <= 0 by the polynomial of sg_exp; 0 below -87. */
INLINE __m512 exp16(__m512 x)
{
    __m512 y = _mm512_max_ps(_mm512_set1_ps(-87.0f), x);  /* the operand order lets NaN pass */
    /* x = n ln 2 + r */
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(y, _mm512_set1_ps(1.44269504088896341f)),
                                    _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), y);
    r = _mm512_fmadd_ps(n, _mm512_set1_ps(2.12194440e-4f), r);
    __m512 p = _mm512_set1_ps(1.9875691500e-4f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
    __m512 e = _mm512_add_ps(_mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r), _mm512_set1_ps(1.0f));
    return _mm512_mask_scalef_ps(_mm512_setzero_ps(),
                                 _mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.0f), _CMP_NLT_UQ), e, n);
}

/* 2^x within 2e-7: 2^r by a polynomial in the fraction r, scaled by vscalefps. 2^0 is 1; 0 for
 * underflow and -inf. */
INLINE __m512 exp2_16(__m512 x)
{
    /* in [0, 1): vscalefps takes floor(x) */
    const __m512 r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    __m512 p = _mm512_set1_ps(1.867130050e-03f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(9.017030708e-03f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.579991266e-02f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(2.401644439e-01f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(6.931512952e-01f));
    return _mm512_scalef_ps(_mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f)), x);
}

/* 16 f16 numbers as fp32; 16 bytes as int32, signed or unsigned. */

INLINE __m512 load_f16x16(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
INLINE __m512i load_i8x16(const uint8_t *p, const int sign)
{
    __m128i b = _mm_loadu_si128((const __m128i *)(const void *)p);
    return sign ? _mm512_cvtepi8_epi32(b) : _mm512_cvtepu8_epi32(b);
}

/* Low nibbles of 4 vectors to v[0..3], high nibbles to v[4..7]. */
INLINE void nibbles_unpack(const uint8_t *p, __m512i *v)
{
    const __m512i low = _mm512_set1_epi8(15);
    UNROLL
    for (int c = 0; c < 4; c++) {
        __m512i x = _mm512_loadu_si512(p + 64 * c);
        v[c] = _mm512_and_si512(x, low);
        v[c + 4] = _mm512_and_si512(_mm512_srli_epi16(x, 4), low);
    }
}

/* 32 columns of a block of 256: one scale and offset for Q4K, two of each (16 columns) for Q6K. */
INLINE void kblock_unpack(const uint8_t *w, uint32_t part, const enum sg_pack kind, __m512 *d, __m512 *m,
                      __m512i *v)
{
    /* s: scales of this part; p: its vectors */
    const uint8_t *s = w + 64 + 32 * part, *p = w + 320 + (kind == SG_PACK_Q6K ? 384 : 256) * part;
    const __m512 all = load_f16x16(w);
    nibbles_unpack(p, v);
    if (kind == SG_PACK_Q4K) {
        *d = _mm512_mul_ps(all, _mm512_cvtepi32_ps(load_i8x16(s, 0)));
        *m = _mm512_xor_ps(_mm512_mul_ps(load_f16x16(w + 32), _mm512_cvtepi32_ps(load_i8x16(s + 16, 0))),
                           _mm512_set1_ps(-0.0f));
        return;
    }
    /* bits 4 and 5 of each byte */
    const __m512i upper = _mm512_set1_epi8(0x30);
    UNROLL
    for (int h = 0; h < 2; h++) {
        d[h] = _mm512_mul_ps(all, _mm512_cvtepi32_ps(load_i8x16(s + 16 * h, 1)));
        m[h] = _mm512_mul_ps(d[h], _mm512_set1_ps(-32.0f));
        __m512i x = _mm512_loadu_si512(p + 256 + 64 * h);    /* high bits of chunks h, h + 2, h + 4, h + 6 */
        v[h] = _mm512_or_si512(v[h], _mm512_and_si512(_mm512_slli_epi16(x, 4), upper));
        v[h + 2] = _mm512_or_si512(v[h + 2], _mm512_and_si512(_mm512_slli_epi16(x, 2), upper));
        v[h + 4] = _mm512_or_si512(v[h + 4], _mm512_and_si512(x, upper));
        v[h + 6] = _mm512_or_si512(v[h + 6], _mm512_and_si512(_mm512_srli_epi16(x, 2), upper));
    }
}

/* Unpacks one block: scales d, offsets m and up to 8 vectors v of unsigned bytes. part: which 32
 * columns of a block of 256. kind is a constant, so that only one branch remains. */
INLINE void block_unpack(const uint8_t *w, uint32_t part, const enum sg_pack kind, __m512 *d, __m512 *m,
                       __m512i *v)
{
    const int half = kind == SG_PACK_Q4 || kind == SG_PACK_Q4M || kind == SG_PACK_Q8;
    const int nibbles = kind == SG_PACK_Q4 || kind == SG_PACK_Q4M || kind == SG_PACK_Q4F;
    if (sg_pack_block_cols(kind) == 256) {
        kblock_unpack(w, part, kind, d, m, v);
        return;
    }
    *d = half ? load_f16x16(w) : _mm512_loadu_ps(w);
    if (kind == SG_PACK_Q4) *m = _mm512_mul_ps(*d, _mm512_set1_ps(-8.0f));
    else if (kind == SG_PACK_Q8) *m = _mm512_mul_ps(*d, _mm512_set1_ps(-128.0f));
    else *m = kind == SG_PACK_Q4M ? load_f16x16(w + 32) : _mm512_loadu_ps(w + 64);
    /* the vectors follow scales and offsets */
    const uint8_t *p = w + (half ? (kind == SG_PACK_Q4M ? 64 : 32) : 128);
    if (nibbles) {
        nibbles_unpack(p, v);
    } else {
        const int n = kind == SG_PACK_Q8H ? 4 : 8;
        UNROLL
        for (int c = 0; c < n; c++) v[c] = _mm512_loadu_si512(p + 64 * c);
    }
}

/* One block of one group times nt rows: int32 sums, then acc += sum * (d * d_x) and acc += m * s_x. x:
 * the block of the tile. The loops over chunks are outermost, so nt independent vpdpbusd chains are in
 * flight. */
INLINE void block_accumulate(const __m512i *v, __m512 d, __m512 m, const uint8_t *x, const int nt, const int fine,
                             const int chunks, __m512 *acc)
{
    const uint8_t *more = x + 4 * chunks * nt,
                  *scales = x + sg_tile_scales(4 * (uint32_t)chunks, (uint32_t)fine, (size_t)nt);
    /* one chain per row of activations */
    __m512i sum[SG_TILE];
    UNROLL
    for (int t = 0; t < nt; t++) sum[t] = _mm512_setzero_si512();
    UNROLL
    for (int c = 0; c < chunks; c++) {
        UNROLL
        for (int t = 0; t < nt; t++)
            sum[t] = _mm512_dpbusd_epi32(sum[t], v[c], broadcast4(x + 4 * (c * nt + t)));
    }
    if (fine) {                      /* high bytes count 256 times; now the remainders */
        UNROLL
        for (int t = 0; t < nt; t++) sum[t] = _mm512_slli_epi32(sum[t], 8);
        UNROLL
        for (int c = 0; c < chunks; c++) {
            UNROLL
            for (int t = 0; t < nt; t++)
                sum[t] = _mm512_dpbusd_epi32(sum[t], v[c], broadcast4(more + 4 * (c * nt + t)));
        }
    }
    UNROLL
    for (int t = 0; t < nt; t++) {
        __m512 each = _mm512_mul_ps(d, _mm512_set1_ps(load_f32(scales + 4 * t)));
        acc[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[t]), each, acc[t]);
        acc[t] = _mm512_fmadd_ps(m, _mm512_set1_ps(load_f32(scales + 4 * (nt + t))), acc[t]);
    }
}

/* Unpacked weights times an SG_OUTLIER tile (k_avx512_outlier.c): blocks of 32; of 32 with m = -128 d;
 * of 16. */
typedef void sg_outlier_mm_fn(const uint8_t *w, size_t k, uint32_t rows, const uint8_t *x, uint32_t nt, float *out, size_t ldo);
sg_outlier_mm_fn sg_outlier_avx512_32, sg_outlier_avx512_32_sym, sg_outlier_avx512_16;

/* Each enters the kernels of the file of that name into a table. */
void sg_kernels_avx512_few(struct sg_kernels *k);
void sg_kernels_avx512_quant(struct sg_kernels *k);
void sg_kernels_avx512_attend(struct sg_kernels *k);
void sg_kernels_avx512_rows(struct sg_kernels *k);
extern const struct sg_attn_i16 sg_attn_i16_avx512; /* k_avx512_attn_i16.c */

/* 16 numbers from index `at`, stored as fp32 or f16. */
INLINE __m512 load16(const void *p, size_t at, const int f16)
{
    return f16 ? load_f16x16((const uint8_t *)p + 2 * at) : _mm512_loadu_ps((const float *)p + at);
}

/* Calls the body with nq as a constant from 1 to 6, so that its sums stay in registers. */
#define DISPATCH_NQ(call) \
    switch (nq) { \
    case 1: call(1); break; \
    case 2: call(2); break; \
    case 3: call(3); break; \
    case 4: call(4); break; \
    case 5: call(5); break; \
    default: call(6); \
    }

/* Head of a matrix kernel, and cases of a switch over nt that call BODY(n) with a constant. */
#define MM(name)                                                                                           \
    static void name(const uint8_t *w, size_t k, uint32_t rows, const void *x, uint32_t nt, uint32_t fine, \
                     float *out, size_t ldo)
#define CASE(n) \
    case n: BODY(n); break
#define CASES_8 CASE(1); CASE(2); CASE(3); CASE(4); CASE(5); CASE(6); CASE(7); default: BODY(8)
#define CASES_12 \
    CASE(1);   \
    CASE(2);   \
    CASE(3);   \
    CASE(4);   \
    CASE(5);   \
    CASE(6);   \
    CASE(7);   \
    CASE(8);   \
    CASE(9);   \
    CASE(10);  \
    CASE(11);  \
    default:   \
        BODY(12)

#endif
