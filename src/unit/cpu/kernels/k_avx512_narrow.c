/* k_avx512_narrow.c: attention of many rows in 16-bit integers, for AVX-512 with VNNI: vpdpwssd multiplies pairs of
 * columns (scores) or of keys (the weighted sum), twice the rate of fp32. Sums of integers are exact, so no order matters.
 * SPDX-License-Identifier: MIT */
#if defined(__x86_64__)
#include "unit/cpu/kernels/k_avx512.h"

#define TINY 1e-30f                  /* below it a row is zero */

/* Most of |n| of queries and keys: d products fit in 32 bits. */
static float most_of(uint32_t d)
{
    const float most = floorf(sqrtf(2147483000.0f / (float)d));
    return most < 8191.0f ? most : 8191.0f;
}

/* Scales of rows whose largest |x| are given as bits, and what to multiply them by. */
INLINE __m512 scales_of(__m512i top, float most, __m512 *inverse)
{
    const __m512 f = _mm512_castsi512_ps(top);
    const __mmask16 finite = _mm512_cmplt_epu32_mask(top, _mm512_set1_epi32(0x7f800000)),
                    some = finite & _mm512_cmp_ps_mask(f, _mm512_set1_ps(TINY), _CMP_GT_OQ);
    *inverse = _mm512_maskz_div_ps(some, _mm512_set1_ps(most), f);
    return _mm512_mask_mov_ps(_mm512_set1_ps(NAN), finite, _mm512_maskz_div_ps(some, f, _mm512_set1_ps(most)));
}

INLINE __m512i bits_of(__m512 x) { return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff)); }

/* x * by, nearest; 0 where by is. */
INLINE __m512i whole(__m512 x, __m512 by)
{
    return _mm512_cvtps_epi32(_mm512_maskz_mul_ps(_mm512_cmp_ps_mask(by, _mm512_setzero_ps(), _CMP_NEQ_OQ), x, by));
}

/* Pairs of 16-bit numbers: a below, b above. */
INLINE __m512i paired(__m512i a, __m512i b)
{
    return _mm512_mask_blend_epi16(0xaaaaaaaau, a, _mm512_slli_epi32(b, 16));
}

static void rows(const float *q, uint32_t nq, uint32_t d, int16_t *n, float *scale)
{
    const uint32_t width = sg_narrow_width(d);
    for (uint32_t i = 0; i < nq; i++, q += d, n += width) {
        __m512i top = _mm512_setzero_si512();
        for (uint32_t j = 0; j < d; j += 16) top = _mm512_max_epu32(top, bits_of(_mm512_maskz_loadu_ps(tail(d - j), q + j)));
        __m512 by;
        scale[i] = _mm512_cvtss_f32(scales_of(_mm512_set1_epi32((int32_t)_mm512_reduce_max_epu32(top)), most_of(d), &by));
        for (uint32_t j = 0; j < width; j += 16)
            _mm256_mask_storeu_epi16(n + j, tail(width - j),
                                     _mm512_cvtepi32_epi16(whole(_mm512_maskz_loadu_ps(j < d ? tail(d - j) : 0, q + j), by)));
    }
}

INLINE void keys_body(const void *k, const int f16, uint32_t d, uint32_t keys, int16_t *n, float *scale)
{
    for (uint32_t from = 0; from < keys; from += 16) {
        const size_t at = (size_t)from * d;
        __m512i top = _mm512_setzero_si512();
        __m512 by;
        for (uint32_t j = 0; j < d; j++) top = _mm512_max_epu32(top, bits_of(numbers(k, at + 16 * (size_t)j, f16)));
        _mm512_storeu_ps(scale + from, scales_of(top, most_of(d), &by));
        for (uint32_t j = 0; j < d; j += 2, n += 32) {
            const __m512i a = whole(numbers(k, at + 16 * (size_t)j, f16), by),
                          b = j + 1 < d ? whole(numbers(k, at + 16 * (size_t)(j + 1), f16), by) : _mm512_setzero_si512();
            _mm512_storeu_si512(n, paired(a, b));
        }
    }
}
static void keys_narrow(const void *k, int f16, uint32_t d, uint32_t keys, int16_t *n, float *scale)
{
    if (f16) keys_body(k, 1, d, keys, n, scale);
    else keys_body(k, 0, d, keys, n, scale);
}

/* Scales of up to 16 keys from `from` on. */
INLINE __m512 values_top(const void *v, const int f16, uint32_t dvp, uint32_t from, uint32_t keys, float *scale)
{
    _Alignas(64) uint32_t top[16] = {0};
    for (uint32_t t = from; t < keys && t < from + 16; t++) {
        __m512i most = _mm512_setzero_si512();
        for (uint32_t c = 0; c < dvp; c += 16) most = _mm512_max_epu32(most, bits_of(numbers(v, (size_t)t * dvp + c, f16)));
        top[t - from] = _mm512_reduce_max_epu32(most);
    }
    __m512 by;
    _mm512_storeu_ps(scale + from, scales_of(_mm512_load_si512(top), (float)SG_NARROW_SUM, &by));
    return by;
}

INLINE void values_body(const void *v, const int f16, uint32_t dvp, uint32_t keys, int16_t *n, float *scale, float *top)
{
    float most = 0.0f;
    for (uint32_t from = 0; from < keys; from += 16) {
        _Alignas(64) float by[16];
        _mm512_store_ps(by, values_top(v, f16, dvp, from, keys, scale));
        for (uint32_t t = from; t < from + 16; t++) {
            if (most == most && !(scale[t] <= most)) most = scale[t];    /* NaN stays */
            top[t] = most;
        }
        for (uint32_t t = from; t < keys && t < from + 16; t += 2, n += 2 * (size_t)dvp) {
            const __m512 first = _mm512_set1_ps(by[t - from]), last = _mm512_set1_ps(by[t + 1 - from]);
            for (uint32_t c = 0; c < dvp; c += 16) {
                const __m512i b = t + 1 < keys ? whole(numbers(v, (size_t)(t + 1) * dvp + c, f16), last) : _mm512_setzero_si512();
                _mm512_storeu_si512(n + 2 * c, paired(whole(numbers(v, (size_t)t * dvp + c, f16), first), b));
            }
        }
    }
}
static void values_narrow(const void *v, int f16, uint32_t dvp, uint32_t keys, int16_t *n, float *scale, float *top)
{
    if (f16) values_body(v, 1, dvp, keys, n, scale, top);
    else values_body(v, 0, dvp, keys, n, scale, top);
}

/* vpdpwssd as it is: of the intrinsic gcc 12 makes three copies of the sum. */
INLINE __m512i pairs_add(__m512i sum, __m512i a, __m512i b)
{
    __asm__("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
}

INLINE __m512i pair_at(const int16_t *p) { return bytes4((const uint8_t *)p); }

/* Keys [from, from + 16 * wide). */
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
            const __m512i a = pair_at(q + (unsigned)i * width + j);
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
INLINE void scores_body(const int16_t *q, const int nq, uint32_t width, const int16_t *k, const float *scale, uint32_t keys,
                        float *s)
{
    uint32_t from = 0;
    for (; from + 48 < keys; from += 64) scores_block(q, nq, width, k, scale, from, 4, s);
    for (; from < keys; from += 16) scores_block(q, nq, width, k, scale, from, 1, s);
}
#define CALL(n) scores_body(q, n, sg_narrow_width(d), k, scale, keys, s)
static void scores_narrow(const int16_t *q, uint32_t nq, uint32_t d, const int16_t *k, const float *scale, uint32_t keys,
                          float *s)
{
    SIX(CALL)
}
#undef CALL

static void weights(const float *p, const float *scale, float top, uint32_t keys, int16_t *n)
{
    const __m512 by = _mm512_set1_ps(top > 0.0f ? (float)SG_NARROW_SUM / top : 0.0f);
    for (uint32_t t = 0; t < keys; t += 16) {
        const __m512 w = _mm512_mul_ps(_mm512_loadu_ps(scale + t), by);
        _mm256_storeu_si256((__m256i *)(void *)(n + t),
                            _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(p + t), w))));
    }
}

/* Columns [c, c + 16 * wide) of the weighted sum. */
INLINE void weigh_columns(const int16_t *p, const float *top, const int nq, uint32_t keys, const int16_t *v, uint32_t c,
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
            const __m512i a = pair_at(p + i * SG_CHUNK + (int)t);
            UNROLL
            for (int w = 0; w < wide; w++) acc[i][w] = pairs_add(acc[i][w], x[w], a);
        }
    }
    UNROLL
    for (int i = 0; i < nq; i++) {
        const __m512 by = _mm512_set1_ps(top[i] * (1.0f / (float)SG_NARROW_SUM));
        UNROLL
        for (int w = 0; w < wide; w++)
            _mm512_storeu_ps(o + (size_t)(unsigned)i * dvp + c + 16 * w, _mm512_mul_ps(_mm512_cvtepi32_ps(acc[i][w]), by));
    }
}
INLINE void weigh_body(const int16_t *p, const float *top, const int nq, uint32_t keys, const int16_t *v, uint32_t dvp, float *o)
{
    uint32_t c = 0;
    for (; c + 64 <= dvp; c += 64) weigh_columns(p, top, nq, keys, v, c, dvp, 4, o);
    for (; c < dvp; c += 16) weigh_columns(p, top, nq, keys, v, c, dvp, 1, o);
}
#define CALL(n) weigh_body(p, top, n, keys, v, dvp, o)
static void weigh_narrow(const int16_t *p, const float *top, uint32_t nq, uint32_t keys, const int16_t *v, uint32_t dvp,
                         float *o)
{
    SIX(CALL)
}
#undef CALL

const struct sg_narrow sg_narrow_avx512 = {.rows = rows,
                                           .keys = keys_narrow,
                                           .values = values_narrow,
                                           .scores = scores_narrow,
                                           .weights = weights,
                                           .weigh = weigh_narrow};
#endif
