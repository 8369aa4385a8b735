/* k_avx512_attend.c: attention for AVX-512: one chunk of keys against up to 6 queries, and the conversions of
 * what a state holds. Every score has one chain over d, every weighted sum one chain over the keys, in every
 * width and from every storage: that is what makes a row independent of its neighbours.
 * SPDX-License-Identifier: MIT */
#if defined(__x86_64__)
#include "unit/cpu/kernels/k_avx512.h"

enum { ROWS = 32 };                  /* of values from far away that stay in the first-level cache for all columns */

/* Two lines of what comes next, as often as two lines of what is here are computed: so memory is never idle. */
INLINE const char *fetch(const char *next)
{
    _mm_prefetch(next, _MM_HINT_T1);
    _mm_prefetch(next + 64, _MM_HINT_T1);
    return next + 128;
}

/* Keys [from, from + 16 * wide). */
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
        if (f16 && wide == 4) next = fetch(next);
        UNROLL
        for (int b = 0; b < wide; b++) {
            __m512 v = numbers(k, (size_t)from * d + ((size_t)(unsigned)b * d + j) * 16, f16);
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

/* A diagonal ends anywhere: what is left of 64 keys goes by 16. */
INLINE void scores_body(const float *q, const int nq, uint32_t d, const void *k, uint32_t keys, float *s,
                        const char *next, const int f16)
{
    uint32_t from = 0;
    for (; from + 48 < keys; from += 64) next = scores_block(q, nq, d, k, from, 4, s, next, f16);
    for (; from < keys; from += 16) (void)scores_block(q, nq, d, k, from, 1, s, next, f16);
}

#define CALL(n) scores_body(q, n, d, k, keys, s, NULL, 0)
static void scores(const float *q, uint32_t nq, uint32_t d, const float *k, uint32_t keys, float *s)
{
    SIX(CALL)
}
#undef CALL
#define CALL(n) scores_body(q, n, d, k, keys, s, next, 1)
static void scores_f16(const float *q, uint32_t nq, uint32_t d, const uint16_t *k, uint32_t keys, float *s,
                       const void *next)
{
    if (!next) next = k;                     /* is near already */
    SIX(CALL)
}
#undef CALL

/* Columns [c, c + 16 * wide) of the weighted sum, keys [from, to); those before them are in o. */
INLINE const char *weigh_columns(const float *p, const int nq, uint32_t from, uint32_t to, const void *v, uint32_t c,
                                 uint32_t dvp, const int wide, const char *next, const int f16, float *o)
{
    __m512 acc[6][4];
    size_t at = (size_t)from * dvp + c;
    o += c;
    UNROLL
    for (int i = 0; i < nq; i++) {
        UNROLL
        for (int w = 0; w < wide; w++)
            acc[i][w] = from ? _mm512_loadu_ps(o + (size_t)(unsigned)i * dvp + 16 * w) : _mm512_setzero_ps();
    }
    for (uint32_t t = from; t < to; t++, at += dvp) {
        __m512 x[4];
        if (f16 && wide == 4) next = fetch(next);
        UNROLL
        for (int w = 0; w < wide; w++) x[w] = numbers(v, at + 16 * (size_t)(unsigned)w, f16);
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

INLINE void weigh_body(const float *p, const int nq, uint32_t keys, const void *v, uint32_t dvp, const char *next,
                       const int f16, float *o)
{
    const uint32_t rows = f16 ? ROWS : SG_CHUNK;
    for (uint32_t from = 0; from < keys; from += rows) {
        uint32_t c = 0, to = keys - from < rows ? keys : from + rows;
        for (; c + 64 <= dvp; c += 64) next = weigh_columns(p, nq, from, to, v, c, dvp, 4, next, f16, o);
        for (; c < dvp; c += 16) (void)weigh_columns(p, nq, from, to, v, c, dvp, 1, next, f16, o);
    }
}

#define CALL(n) weigh_body(p, n, keys, v, dvp, NULL, 0, o)
static void weigh(const float *p, uint32_t nq, uint32_t keys, const float *v, uint32_t dvp, float *o)
{
    SIX(CALL)
}
#undef CALL
#define CALL(n) weigh_body(p, n, keys, v, dvp, next, 1, o)
static void weigh_f16(const float *p, uint32_t nq, uint32_t keys, const uint16_t *v, uint32_t dvp, float *o,
                      const void *next)
{
    if (!next) next = v;
    SIX(CALL)
}
#undef CALL

/* cap * tanh(x / cap), as plain_tanh. */
INLINE __m512 cap16(__m512 x, float cap)
{
    const __m512 one = _mm512_set1_ps(1.0f);
    __m512 y = _mm512_div_ps(x, _mm512_set1_ps(cap)), size = _mm512_abs_ps(y), z = _mm512_mul_ps(y, y);
    __m512 e = exp16(_mm512_mul_ps(size, _mm512_set1_ps(-2.0f)));
    __m512 big = _mm512_div_ps(_mm512_sub_ps(one, e), _mm512_add_ps(one, e));
    __m512 p = _mm512_fmadd_ps(z, _mm512_set1_ps(-0.0539682540f), _mm512_set1_ps(0.133333333f));
    p = _mm512_fmadd_ps(z, p, _mm512_set1_ps(-0.333333333f));
    p = _mm512_mul_ps(size, _mm512_fmadd_ps(z, p, one)); /* the difference of the large form cancels near zero */
    __m512 t = _mm512_mask_mov_ps(big, _mm512_cmp_ps_mask(z, _mm512_set1_ps(0.01f), _CMP_LT_OQ), p);
    t = _mm512_or_ps(t, _mm512_and_ps(y, _mm512_set1_ps(-0.0f)));
    return _mm512_mul_ps(t, _mm512_set1_ps(cap));
}

/* 16 scores from key `at` on; outside of [lo, hi) the least there is. */
INLINE __m512 inside16(__m512 y, uint32_t at, uint32_t lo, uint32_t hi)
{
    if (lo <= at && at + 16 <= hi) return y;
    const __mmask16 below = lo <= at ? 0 : tail(lo - at), in = hi <= at ? 0 : tail(hi - at);
    return _mm512_mask_mov_ps(_mm512_set1_ps(-INFINITY), (__mmask16)(in & ~below), y);
}

/* Scores are scaled as the power is taken, unless they are capped first. */
static void soften(float *s, uint32_t lo, uint32_t hi, uint32_t keys, float scale, float softcap, float *max,
                   float *sum)
{
    __m512 x[SG_CHUNK / 16], top = _mm512_set1_ps(-INFINITY), all = _mm512_setzero_ps();
    const int late = !(softcap > 0.0f) && scale > 0.0f;
    uint32_t n = (keys + 15) / 16;
    for (uint32_t i = 0; i < n; i++) {
        x[i] = _mm512_loadu_ps(s + 16 * i);
        if (!late) x[i] = _mm512_mul_ps(x[i], _mm512_set1_ps(scale));
        if (softcap > 0.0f) x[i] = cap16(x[i], softcap);
        x[i] = inside16(x[i], 16 * i, lo, hi);
        top = _mm512_max_ps(x[i], top); /* this order keeps NaN out of the maximum, as the generic one does */
    }
    const float most = _mm512_reduce_max_ps(top);
    *max = late ? most * scale : most;
    const __m512 base = _mm512_set1_ps(most == -INFINITY ? 0.0f : most),
                 unit = _mm512_set1_ps((late ? scale : 1.0f) * 1.44269504088896341f);
    for (uint32_t i = 0; i < n; i++) {
        __m512 e = exp2_16(_mm512_mul_ps(_mm512_sub_ps(x[i], base), unit));
        _mm512_storeu_ps(s + 16 * i, e);
        all = _mm512_add_ps(all, e);
    }
    *sum = _mm512_reduce_add_ps(all);
}

static void join(uint32_t nq, uint32_t dv, const struct sg_sums *to, size_t ldo, const struct sg_sums *from, size_t ldf)
{
    const __mmask16 lanes = tail(nq);
    const __m512 least = _mm512_set1_ps(-INFINITY);
    __m512 m = _mm512_mask_loadu_ps(least, lanes, to->m), c = _mm512_mask_loadu_ps(least, lanes, from->m),
           l = _mm512_maskz_loadu_ps(lanes, to->l), more = _mm512_maskz_loadu_ps(lanes, from->l);
    const __mmask16 some = _mm512_cmp_ps_mask(c, least, _CMP_NEQ_UQ), had = _mm512_cmp_ps_mask(m, least, _CMP_NEQ_UQ);
    __m512 top = _mm512_mask_mov_ps(m, some, _mm512_mask_max_ps(c, had, c, m));
    _Alignas(64) float mine[16], theirs[16];
    __m512 x = _mm512_maskz_mov_ps(had, exp16(_mm512_sub_ps(m, top))),
           y = _mm512_maskz_mov_ps(some, exp16(_mm512_sub_ps(c, top)));
    _mm512_store_ps(mine, x);
    _mm512_store_ps(theirs, y);
    _mm512_mask_storeu_ps(to->m, (__mmask16)(lanes & some), top);
    _mm512_mask_storeu_ps(to->l, (__mmask16)(lanes & some), _mm512_fmadd_ps(l, x, _mm512_mul_ps(more, y)));
    for (uint32_t i = 0; i < nq; i++) {
        float *o = to->o + i * ldo;
        const float *p = from->o + i * ldf;
        if (!(some >> i & 1u)) continue;
        for (uint32_t j = 0; j < dv; j += 16) {
            const __mmask16 in = tail(dv - j);
            __m512 a = _mm512_maskz_loadu_ps(in, p + j);
            if (had >> i & 1u) /* else the first chunk: nothing to scale */
                a = _mm512_fmadd_ps(_mm512_set1_ps(theirs[i]), a,
                                    _mm512_mul_ps(_mm512_set1_ps(mine[i]), _mm512_maskz_loadu_ps(in, o + j)));
            _mm512_mask_storeu_ps(o + j, in, a);
        }
    }
}

static void to_f16(const float *x, size_t n, uint16_t *y)
{
    for (size_t i = 0; i < n; i += 16) {
        const __mmask16 m = tail((uint32_t)(n - i < 16 ? n - i : 16));
        _mm256_mask_storeu_epi16(
            y + i, m,
            _mm512_cvtps_ph(_mm512_maskz_loadu_ps(m, x + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    }
}

static void of_f16(const uint16_t *x, size_t n, float *y)
{
    size_t i = 0;
    for (; i + 16 <= n; i += 16) _mm512_storeu_ps(y + i, halves16((const uint8_t *)(x + i)));
    const __mmask16 m = tail((uint32_t)(n - i < 16 ? n - i : 16));
    if (m) _mm512_mask_storeu_ps(y + i, m, _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(m, x + i)));
}

void sg_kernels_avx512_attend(struct sg_kernels *k)
{
    k->scores = scores;
    k->scores_f16 = scores_f16;
    k->soften = soften;
    k->weigh = weigh;
    k->join = join;
    k->weigh_f16 = weigh_f16;
    k->to_f16 = to_f16;
    k->of_f16 = of_f16;
    k->narrow = &sg_narrow_avx512;
}
#endif
