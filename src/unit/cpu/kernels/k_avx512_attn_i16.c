/* k_avx512_attn_i16.c: attention of long passes in 16-bit integers, for AVX-512 with VNNI. vpdpwssd
 * multiplies pairs of columns (scores) or pairs of keys (weighted sum) and adds them in int32, at twice
 * the rate of fp32 multiply-adds. Limits on |n| keep every sum within 32 bits, so the sums are exact
 * and their order does not matter. struct sg_attn_i16 in kernels.h gives the layouts.
 * SPDX-License-Identifier: MIT */
#if defined(__x86_64__)
#include "unit/cpu/kernels/k_avx512.h"

#define ROW_MIN 1e-30f                  /* a row whose maximum is not larger counts as zeros */

/* Largest |n| of queries and keys: d products must fit in 32 bits. */
static float i16_limit(uint32_t d)
{
    const float largest = floorf(sqrtf(2147483000.0f / (float)d));
    return largest < 8191.0f ? largest : 8191.0f;
}

/* Scales of 16 rows from their largest |x| (as bits), and the factors that quantise them. Not finite:
 * scale NaN, factor 0. */
INLINE __m512 scales_of(__m512i top, float largest, __m512 *inverse)
{
    const __m512 f = _mm512_castsi512_ps(top);
    /* bits below infinity */
    const __mmask16 finite = _mm512_cmplt_epu32_mask(top, _mm512_set1_epi32(0x7f800000)),
                    some = finite & _mm512_cmp_ps_mask(f, _mm512_set1_ps(ROW_MIN), _CMP_GT_OQ);
    *inverse = _mm512_maskz_div_ps(some, _mm512_set1_ps(largest), f);
    return _mm512_mask_mov_ps(_mm512_set1_ps(NAN), finite, _mm512_maskz_div_ps(some, f, _mm512_set1_ps(largest)));
}

INLINE __m512i bits_of(__m512 x) { return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff)); }

/* x * by rounded to integers; 0 where by is 0, also for infinities. */
INLINE __m512i round_i32(__m512 x, __m512 by)
{
    return _mm512_cvtps_epi32(_mm512_maskz_mul_ps(_mm512_cmp_ps_mask(by, _mm512_setzero_ps(), _CMP_NEQ_OQ), x, by));
}

/* 16-bit pairs: a in the low half, b in the high half of each lane. */
INLINE __m512i pack_pairs(__m512i a, __m512i b)
{
    return _mm512_mask_blend_epi16(0xaaaaaaaau, a, _mm512_slli_epi32(b, 16));
}

/* Quantises nq queries, each with its own scale. */
static void rows(const float *q, uint32_t nq, uint32_t d, int16_t *n, float *scale)
{
    const uint32_t width = sg_attn_i16_width(d);
    for (uint32_t i = 0; i < nq; i++, q += d, n += width) {
        __m512i top = _mm512_setzero_si512();
        for (uint32_t j = 0; j < d; j += 16) top = _mm512_max_epu32(top, bits_of(_mm512_maskz_loadu_ps(tail_mask(d - j), q + j)));
        __m512 by;
        scale[i] = _mm512_cvtss_f32(scales_of(_mm512_set1_epi32((int32_t)_mm512_reduce_max_epu32(top)), i16_limit(d), &by));
        /* an odd last column is padded with zero */
        for (uint32_t j = 0; j < width; j += 16)
            _mm256_mask_storeu_epi16(n + j, tail_mask(width - j),
                                     _mm512_cvtepi32_epi16(
                                         round_i32(_mm512_maskz_loadu_ps(j < d ? tail_mask(d - j) : 0, q + j), by)));
    }
}

/* Quantises groups of 16 keys, one scale per key (lane), and interleaves column pairs. */
INLINE void keys_body(const void *k, const int f16, uint32_t d, uint32_t keys, int16_t *n, float *scale)
{
    for (uint32_t from = 0; from < keys; from += 16) {
        const size_t at = (size_t)from * d;
        __m512i top = _mm512_setzero_si512();
        __m512 by;
        /* first pass: maxima of 16 keys, one per lane */
        for (uint32_t j = 0; j < d; j++) top = _mm512_max_epu32(top, bits_of(load16(k, at + 16 * (size_t)j, f16)));
        _mm512_storeu_ps(scale + from, scales_of(top, i16_limit(d), &by));
        /* second pass: quantise and interleave two columns */
        for (uint32_t j = 0; j < d; j += 2, n += 32) {
            const __m512i a = round_i32(load16(k, at + 16 * (size_t)j, f16), by),
                          b = j + 1 < d ? round_i32(load16(k, at + 16 * (size_t)(j + 1), f16), by) : _mm512_setzero_si512();
            _mm512_storeu_si512(n, pack_pairs(a, b));
        }
    }
}
static void keys_i16(const void *k, int f16, uint32_t d, uint32_t keys, int16_t *n, float *scale)
{
    if (f16) keys_body(k, 1, d, keys, n, scale);
    else keys_body(k, 0, d, keys, n, scale);
}

/* Scales of up to 16 values (rows of V) from `from` on, and the factors that quantise them. */
INLINE __m512 values_scales(const void *v, const int f16, uint32_t dvp, uint32_t from, uint32_t keys, float *scale)
{
    _Alignas(64) uint32_t top[16] = {0};
    for (uint32_t t = from; t < keys && t < from + 16; t++) {
        __m512i largest = _mm512_setzero_si512();
        for (uint32_t c = 0; c < dvp; c += 16) largest = _mm512_max_epu32(largest, bits_of(load16(v, (size_t)t * dvp + c, f16)));
        top[t - from] = _mm512_reduce_max_epu32(largest);
    }
    __m512 by;
    _mm512_storeu_ps(scale + from, scales_of(_mm512_load_si512(top), (float)SG_ATTN_I16_MAX, &by));
    return by;
}

/* Quantises values, one scale per key, and interleaves pairs of keys. top: running maximum of the
 * scales. */
INLINE void values_body(const void *v, const int f16, uint32_t dvp, uint32_t keys, int16_t *n, float *scale, float *top)
{
    float largest = 0.0f;
    for (uint32_t from = 0; from < keys; from += 16) {
        _Alignas(64) float by[16];
        _mm512_store_ps(by, values_scales(v, f16, dvp, from, keys, scale));
        for (uint32_t t = from; t < from + 16; t++) {
            if (largest == largest && !(scale[t] <= largest)) largest = scale[t];    /* a NaN stays the maximum */
            top[t] = largest;
        }
        for (uint32_t t = from; t < keys && t < from + 16; t += 2, n += 2 * (size_t)dvp) {
            /* two keys form the pairs of the weighted sum */
            const __m512 first = _mm512_set1_ps(by[t - from]), last = _mm512_set1_ps(by[t + 1 - from]);
            for (uint32_t c = 0; c < dvp; c += 16) {
                const __m512i b = t + 1 < keys ? round_i32(load16(v, (size_t)(t + 1) * dvp + c, f16), last)
                                               : _mm512_setzero_si512();
                _mm512_storeu_si512(n + 2 * c, pack_pairs(round_i32(load16(v, (size_t)t * dvp + c, f16), first), b));
            }
        }
    }
}
static void values_i16(const void *v, int f16, uint32_t dvp, uint32_t keys, int16_t *n, float *scale, float *top)
{
    if (f16) values_body(v, 1, dvp, keys, n, scale, top);
    else values_body(v, 0, dvp, keys, n, scale, top);
}

/* vpdpwssd in assembly: for the intrinsic, gcc 12 inserts copies of the sum register. */
INLINE __m512i pairs_add(__m512i sum, __m512i a, __m512i b)
{
    __asm__("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
}

INLINE __m512i broadcast_pair(const int16_t *p) { return broadcast4((const uint8_t *)p); }

/* Scores of nq queries for keys [from, from + 16 * wide): at most 24 int32 sums, scaled by the key's
 * scale at the end. */
INLINE void scores_block(const int16_t *q, const int nq, uint32_t width, const int16_t *k, const float *scale, uint32_t from,
                         const int wide, float *s)
{
    __m512i acc[4][6];
    k += (size_t)from * width;
    UNROLL
    for (int b = 0; b < wide; b++) {
        UNROLL
        for (int i = 0; i < nq; i++) acc[b][i] = _mm512_setzero_si512();
    }
    for (uint32_t j = 0; j < width; j += 2) {
        __m512i x[4];
        UNROLL
        for (int b = 0; b < wide; b++) x[b] = _mm512_loadu_si512(k + ((size_t)(unsigned)b * width + j) * 16);
        UNROLL
        for (int i = 0; i < nq; i++) {
            /* one pair of columns of a query, in every lane */
            const __m512i a = broadcast_pair(q + (unsigned)i * width + j);
            UNROLL
            for (int b = 0; b < wide; b++) acc[b][i] = pairs_add(acc[b][i], x[b], a);
        }
    }
    UNROLL
    for (int b = 0; b < wide; b++) {
        const __m512 by = _mm512_loadu_ps(scale + from + 16 * b);
        UNROLL
        for (int i = 0; i < nq; i++)
            _mm512_storeu_ps(s + i * SG_CHUNK + from + 16 * b, _mm512_mul_ps(_mm512_cvtepi32_ps(acc[b][i]), by));
    }
}
/* 64 keys at a time, the rest by 16. */
INLINE void scores_body(const int16_t *q, const int nq, uint32_t width, const int16_t *k, const float *scale, uint32_t keys,
                        float *s)
{
    uint32_t from = 0;
    for (; from + 48 < keys; from += 64) scores_block(q, nq, width, k, scale, from, 4, s);
    for (; from < keys; from += 16) scores_block(q, nq, width, k, scale, from, 1, s);
}
#define CALL(n) scores_body(q, n, sg_attn_i16_width(d), k, scale, keys, s)
static void scores_i16(const int16_t *q, uint32_t nq, uint32_t d, const int16_t *k, const float *scale, uint32_t keys,
                          float *s)
{
    DISPATCH_NQ(CALL)
}
#undef CALL

/* Probabilities times the scale of their value, relative to top, as integers. */
static void weights(const float *p, const float *scale, float top, uint32_t keys, int16_t *n)
{
    const __m512 by = _mm512_set1_ps(top > 0.0f ? (float)SG_ATTN_I16_MAX / top : 0.0f);
    for (uint32_t t = 0; t < keys; t += 16) {
        /* at most SG_ATTN_I16_MAX, since scale <= top where p > 0 */
        const __m512 w = _mm512_mul_ps(_mm512_loadu_ps(scale + t), by);
        _mm256_storeu_si256((__m256i *)(void *)(n + t),
                            _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(p + t), w))));
    }
}

/* Columns [c, c + 16 * wide) of the weighted sum over all keys, scaled by the query's top at the end. */
INLINE void pv_cols(const int16_t *p, const float *top, const int nq, uint32_t keys, const int16_t *v, uint32_t c,
                          uint32_t dvp, const int wide, float *o)
{
    __m512i acc[6][4];
    UNROLL
    for (int i = 0; i < nq; i++) {
        UNROLL
        for (int w = 0; w < wide; w++) acc[i][w] = _mm512_setzero_si512();
    }
    v += 2 * c;
    for (uint32_t t = 0; t < keys; t += 2, v += 2 * (size_t)dvp) {
        __m512i x[4];
        UNROLL
        for (int w = 0; w < wide; w++) x[w] = _mm512_loadu_si512(v + 32 * w);
        UNROLL
        for (int i = 0; i < nq; i++) {
            const __m512i a = broadcast_pair(p + i * SG_CHUNK + (int)t);
            UNROLL
            for (int w = 0; w < wide; w++) acc[i][w] = pairs_add(acc[i][w], x[w], a);
        }
    }
    UNROLL
    for (int i = 0; i < nq; i++) {
        const __m512 by = _mm512_set1_ps(top[i] * (1.0f / (float)SG_ATTN_I16_MAX));
        UNROLL
        for (int w = 0; w < wide; w++)
            _mm512_storeu_ps(o + (size_t)(unsigned)i * dvp + c + 16 * w, _mm512_mul_ps(_mm512_cvtepi32_ps(acc[i][w]), by));
    }
}
INLINE void pv_body(const int16_t *p, const float *top, const int nq, uint32_t keys, const int16_t *v, uint32_t dvp, float *o)
{
    uint32_t c = 0;
    /* 64 columns: 4 vectors x 6 queries of sums */
    for (; c + 64 <= dvp; c += 64) pv_cols(p, top, nq, keys, v, c, dvp, 4, o);
    for (; c < dvp; c += 16) pv_cols(p, top, nq, keys, v, c, dvp, 1, o);
}
#define CALL(n) pv_body(p, top, n, keys, v, dvp, o)
static void pv_i16(const int16_t *p, const float *top, uint32_t nq, uint32_t keys, const int16_t *v, uint32_t dvp,
                         float *o)
{
    DISPATCH_NQ(CALL)
}
#undef CALL

const struct sg_attn_i16 sg_attn_i16_avx512 = {.rows = rows,
                                           .keys = keys_i16,
                                           .values = values_i16,
                                           .scores = scores_i16,
                                           .weights = weights,
                                           .pv = pv_i16};
#endif
