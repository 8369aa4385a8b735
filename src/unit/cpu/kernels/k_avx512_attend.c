/* k_avx512_attend.c: fp32 attention of one chunk of keys with up to 6 queries, for AVX-512, and f16
 * conversions. Keys and values are fp32, or f16 converted while they are loaded. Each score is one
 * chain over d and each weighted sum one chain over the keys, for every number of queries and either
 * storage, so a row's result does not depend on the rows computed with it.
 * SPDX-License-Identifier: MIT */
#if defined(__x86_64__)
#include "unit/cpu/kernels/k_avx512.h"

enum { PV_ROWS = 32 };                  /* values per step: a block of f16 rows stays in L1 while all of its columns are summed */

/* Prefetches two lines of the data that is needed next. Called once per two lines that are computed, so
 * that memory reads continue during the arithmetic. */
INLINE const char *prefetch_next(const char *next)
{
    _mm_prefetch(next, _MM_HINT_T1);
    _mm_prefetch(next + 64, _MM_HINT_T1);
    return next + 128;
}

/* Scores of nq queries for keys [from, from + 16 * wide), up to 24 fp32 sums. */
INLINE const char *scores_block(const float *q, const int nq, uint32_t d, const void *k, uint32_t from, const int wide,
                                float *s, const char *next, const int f16)
{
    __m512 acc[4][6];
    UNROLL
    for (int b = 0; b < wide; b++) {
        UNROLL
        for (int i = 0; i < nq; i++) acc[b][i] = _mm512_setzero_ps();
    }
    for (uint32_t j = 0; j < d; j++) {
        /* only the wide loop consumes two lines per step */
        if (f16 && wide == 4) next = prefetch_next(next);
        UNROLL
        for (int b = 0; b < wide; b++) {
            __m512 v = load16(k, (size_t)from * d + ((size_t)(unsigned)b * d + j) * 16, f16);
            UNROLL
            for (int i = 0; i < nq; i++)
                acc[b][i] = _mm512_fmadd_ps(v, _mm512_set1_ps(q[(unsigned)i * d + j]), acc[b][i]);
        }
    }
    UNROLL
    for (int b = 0; b < wide; b++) {
        UNROLL
        for (int i = 0; i < nq; i++) _mm512_storeu_ps(s + i * SG_CHUNK + from + 16 * b, acc[b][i]);
    }
    return next;
}

/* 64 keys at a time. The last visible key can be anywhere in a chunk; the remainder of up to 63 keys is
 * done 16 at a time. */
INLINE void scores_body(const float *q, const int nq, uint32_t d, const void *k, uint32_t keys, float *s,
                        const char *next, const int f16)
{
    uint32_t from = 0;
    /* a group of 64 is used as soon as more than 48 keys remain */
    for (; from + 48 < keys; from += 64) next = scores_block(q, nq, d, k, from, 4, s, next, f16);
    for (; from < keys; from += 16) (void)scores_block(q, nq, d, k, from, 1, s, next, f16);
}

#define CALL(n) scores_body(q, n, d, k, keys, s, NULL, 0)
static void scores(const float *q, uint32_t nq, uint32_t d, const float *k, uint32_t keys, float *s)
{
    DISPATCH_NQ(CALL)
}
#undef CALL
#define CALL(n) scores_body(q, n, d, k, keys, s, next, 1)
static void scores_f16(const float *q, uint32_t nq, uint32_t d, const uint16_t *k, uint32_t keys, float *s,
                       const void *next)
{
    if (!next) next = k;                     /* NULL: prefetch data that is cached already, which costs little */
    DISPATCH_NQ(CALL)
}
#undef CALL

/* Columns [c, c + 16 * wide) of the weighted sum over keys [from, to); the sums of earlier keys are
 * read from o. */
INLINE const char *pv_cols(const float *p, const int nq, uint32_t from, uint32_t to, const void *v, uint32_t c,
                                 uint32_t dvp, const int wide, const char *next, const int f16, float *o)
{
    __m512 acc[6][4];
    size_t at = (size_t)from * dvp + c;
    o += c;
    UNROLL
    for (int i = 0; i < nq; i++) {
        UNROLL
        for (int w = 0; w < wide; w++)
            /* continue the sums of the previous keys */
            acc[i][w] = from ? _mm512_loadu_ps(o + (size_t)(unsigned)i * dvp + 16 * w) : _mm512_setzero_ps();
    }
    for (uint32_t t = from; t < to; t++, at += dvp) {
        __m512 x[4];
        if (f16 && wide == 4) next = prefetch_next(next);
        UNROLL
        for (int w = 0; w < wide; w++) x[w] = load16(v, at + 16 * (size_t)(unsigned)w, f16);
        UNROLL
        for (int i = 0; i < nq; i++) {
            __m512 a = _mm512_set1_ps(p[i * SG_CHUNK + (int)t]);
            UNROLL
            for (int w = 0; w < wide; w++) acc[i][w] = _mm512_fmadd_ps(a, x[w], acc[i][w]);
        }
    }
    UNROLL
    for (int i = 0; i < nq; i++) {
        UNROLL
        for (int w = 0; w < wide; w++) _mm512_storeu_ps(o + (size_t)(unsigned)i * dvp + 16 * w, acc[i][w]);
    }
    return next;
}

/* Weighted sum, all columns: 64 at a time, then 16. f16 values go in blocks of PV_ROWS keys. */
INLINE void pv_body(const float *p, const int nq, uint32_t keys, const void *v, uint32_t dvp, const char *next,
                       const int f16, float *o)
{
    /* fp32 values are in the thread's scratch, close enough to read once per 64 columns */
    const uint32_t rows = f16 ? PV_ROWS : SG_CHUNK;
    for (uint32_t from = 0; from < keys; from += rows) {
        uint32_t c = 0, to = keys - from < rows ? keys : from + rows;
        for (; c + 64 <= dvp; c += 64) next = pv_cols(p, nq, from, to, v, c, dvp, 4, next, f16, o);
        for (; c < dvp; c += 16) (void)pv_cols(p, nq, from, to, v, c, dvp, 1, next, f16, o);
    }
}

#define CALL(n) pv_body(p, n, keys, v, dvp, NULL, 0, o)
static void pv(const float *p, uint32_t nq, uint32_t keys, const float *v, uint32_t dvp, float *o)
{
    DISPATCH_NQ(CALL)
}
#undef CALL
#define CALL(n) pv_body(p, n, keys, v, dvp, next, 1, o)
static void pv_f16(const float *p, uint32_t nq, uint32_t keys, const uint16_t *v, uint32_t dvp, float *o,
                      const void *next)
{
    if (!next) next = v;
    DISPATCH_NQ(CALL)
}
#undef CALL

/* cap * tanh(x / cap), with the formulas of sg_tanh. */
INLINE __m512 cap16(__m512 x, float cap)
{
    const __m512 one = _mm512_set1_ps(1.0f);
    __m512 y = _mm512_div_ps(x, _mm512_set1_ps(cap)), size = _mm512_abs_ps(y), z = _mm512_mul_ps(y, y);
    __m512 e = exp16(_mm512_mul_ps(size, _mm512_set1_ps(-2.0f)));
    /* tanh(|y|) = (1 - e^-2|y|) / (1 + e^-2|y|), then the sign */
    __m512 big = _mm512_div_ps(_mm512_sub_ps(one, e), _mm512_add_ps(one, e));
    __m512 p = _mm512_fmadd_ps(z, _mm512_set1_ps(-0.0539682540f), _mm512_set1_ps(0.133333333f));
    p = _mm512_fmadd_ps(z, p, _mm512_set1_ps(-0.333333333f));
    p = _mm512_mul_ps(size, _mm512_fmadd_ps(z, p, one)); /* the quotient form loses precision near zero */
    __m512 t = _mm512_mask_mov_ps(big, _mm512_cmp_ps_mask(z, _mm512_set1_ps(0.01f), _CMP_LT_OQ), p);
    t = _mm512_or_ps(t, _mm512_and_ps(y, _mm512_set1_ps(-0.0f)));
    return _mm512_mul_ps(t, _mm512_set1_ps(cap));
}

/* 16 scores from key `at`; -inf outside of [lo, hi). */
INLINE __m512 mask_outside16(__m512 y, uint32_t at, uint32_t lo, uint32_t hi)
{
    if (lo <= at && at + 16 <= hi) return y;
    /* lanes before lo and from hi on are masked */
    const __mmask16 below = lo <= at ? 0 : tail_mask(lo - at), in = hi <= at ? 0 : tail_mask(hi - at);
    return _mm512_mask_mov_ps(_mm512_set1_ps(-INFINITY), (__mmask16)(in & ~below), y);
}

/* Softmax of one chunk. The factor `scale` is applied inside the exponent (2^x with log2 e folded in)
 * unless a soft cap needs the scaled scores first. */
static void softmax_chunk(float *s, uint32_t lo, uint32_t hi, uint32_t keys, float scale, float softcap, float *max,
                   float *sum)
{
    __m512 x[SG_CHUNK / 16], top = _mm512_set1_ps(-INFINITY), all = _mm512_setzero_ps();
    /* a negative scale would swap maximum and minimum */
    const int scale_late = !(softcap > 0.0f) && scale > 0.0f;
    uint32_t n = (keys + 15) / 16;
    for (uint32_t i = 0; i < n; i++) {
        x[i] = _mm512_loadu_ps(s + 16 * i);
        if (!scale_late) x[i] = _mm512_mul_ps(x[i], _mm512_set1_ps(scale));
        if (softcap > 0.0f) x[i] = cap16(x[i], softcap);
        x[i] = mask_outside16(x[i], 16 * i, lo, hi);
        /* with this operand order a NaN does not become the maximum, as in the generic kernel */
        top = _mm512_max_ps(x[i], top);
    }
    const float max_score = _mm512_reduce_max_ps(top);
    *max = scale_late ? max_score * scale : max_score;
    const __m512 base = _mm512_set1_ps(max_score == -INFINITY ? 0.0f : max_score),
                 unit = _mm512_set1_ps((scale_late ? scale : 1.0f) * 1.44269504088896341f);
    for (uint32_t i = 0; i < n; i++) {
        __m512 e = exp2_16(_mm512_mul_ps(_mm512_sub_ps(x[i], base), unit));
        _mm512_storeu_ps(s + 16 * i, e);
        all = _mm512_add_ps(all, e);
    }
    *sum = _mm512_reduce_add_ps(all);
}

/* Online softmax merge, all queries in the lanes of one register; then one pass over each row of o. */
static void merge(uint32_t nq, uint32_t dv, const struct sg_softmax_part *to, size_t ldo, const struct sg_softmax_part *from,
                  size_t ldf)
{
    /* one lane per query */
    const __mmask16 lanes = tail_mask(nq);
    const __m512 least = _mm512_set1_ps(-INFINITY);
    __m512 m = _mm512_mask_loadu_ps(least, lanes, to->m), c = _mm512_mask_loadu_ps(least, lanes, from->m),
           l = _mm512_maskz_loadu_ps(lanes, to->l), more = _mm512_maskz_loadu_ps(lanes, from->l);
    const __mmask16 has_new = _mm512_cmp_ps_mask(c, least, _CMP_NEQ_UQ), has_old = _mm512_cmp_ps_mask(m, least, _CMP_NEQ_UQ);
    /* queries without new keys keep their maximum */
    __m512 top = _mm512_mask_mov_ps(m, has_new, _mm512_mask_max_ps(c, has_old, c, m));
    _Alignas(64) float old_scale[16], new_scale[16];
    __m512 x = _mm512_maskz_mov_ps(has_old, exp16(_mm512_sub_ps(m, top))),
           y = _mm512_maskz_mov_ps(has_new, exp16(_mm512_sub_ps(c, top)));
    _mm512_store_ps(old_scale, x);
    _mm512_store_ps(new_scale, y);
    /* queries without new keys are not written */
    _mm512_mask_storeu_ps(to->m, (__mmask16)(lanes & has_new), top);
    _mm512_mask_storeu_ps(to->l, (__mmask16)(lanes & has_new), _mm512_fmadd_ps(l, x, _mm512_mul_ps(more, y)));
    for (uint32_t i = 0; i < nq; i++) {
        float *o = to->o + i * ldo;
        const float *p = from->o + i * ldf;
        if (!(has_new >> i & 1u)) continue;
        for (uint32_t j = 0; j < dv; j += 16) {
            const __mmask16 in = tail_mask(dv - j);
            __m512 a = _mm512_maskz_loadu_ps(in, p + j);
            if (has_old >> i & 1u) /* otherwise the first chunk: nothing to rescale */
                a = _mm512_fmadd_ps(_mm512_set1_ps(new_scale[i]), a,
                                    _mm512_mul_ps(_mm512_set1_ps(old_scale[i]), _mm512_maskz_loadu_ps(in, o + j)));
            _mm512_mask_storeu_ps(o + j, in, a);
        }
    }
}

/* Conversions with masked tails. */
static void to_f16(const float *x, size_t n, uint16_t *y)
{
    for (size_t i = 0; i < n; i += 16) {
        const __mmask16 m = tail_mask((uint32_t)(n - i < 16 ? n - i : 16));
        _mm256_mask_storeu_epi16(
            y + i, m,
            _mm512_cvtps_ph(_mm512_maskz_loadu_ps(m, x + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    }
}

static void of_f16(const uint16_t *x, size_t n, float *y)
{
    size_t i = 0;
    for (; i + 16 <= n; i += 16) _mm512_storeu_ps(y + i, load_f16x16((const uint8_t *)(x + i)));
    const __mmask16 m = tail_mask((uint32_t)(n - i < 16 ? n - i : 16));
    if (m) _mm512_mask_storeu_ps(y + i, m, _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(m, x + i)));
}

void sg_kernels_avx512_attend(struct sg_kernels *k)
{
    k->scores = scores;
    k->scores_f16 = scores_f16;
    k->softmax_chunk = softmax_chunk;
    k->pv = pv;
    k->join = merge;
    k->pv_f16 = pv_f16;
    k->to_f16 = to_f16;
    k->of_f16 = of_f16;
    k->narrow = &sg_attn_i16_avx512;
}
#endif
