/* k_avx512.c: kernels for AVX-512 with VNNI. One vector holds 16 rows x 4 columns of weights; vpdpbusd
 * multiplies it by four broadcast activations, so no sum is ever taken across a vector. Every row and token
 * has one chain of additions, block after block, in every tile width: that is what makes a row independent of
 * its neighbours. Bodies are inlined per width.
 * SPDX-License-Identifier: MIT */
#if defined(__x86_64__)
#include "unit/cpu/k_avx512.h"
#include "unit/cpu/k_plain.h"

/* --- quantised: tiles --- */

INLINE void quant_body(const uint8_t *w, size_t k, uint32_t rows, const uint8_t *x, const int nt,
                       const int fine, float *out, size_t ldo, const enum sg_pack kind, const int even)
{
    const uint32_t block = sg_pack_block(kind);
    const size_t step = sg_pack_block_bytes(kind), blocks = k / block,
                 xstep = sg_tile_bytes(block, block, (uint32_t)fine, (size_t)nt);
    for (uint32_t g = 0; g < rows; g += 16) {
        __m512 acc[SG_TILE];
        const uint8_t *xb = x;
        UNROLL
        for (int t = 0; t < nt; t++) acc[t] = _mm512_setzero_ps();
        for (size_t b = 0; b < blocks; b++, w += step, xb += xstep) {
            __m512 d, m;
            __m512i v[8];
            block_open(w, 0, kind, &d, &m, v);
            run_add(v, w + 128, d, m, xb, nt, fine, (int)block / 4, even, acc);
        }
        UNROLL
        for (int t = 0; t < nt; t++) _mm512_mask_storeu_ps(out + (size_t)t * ldo + g, tail(rows - g), acc[t]);
    }
}

/* Chunks of 6 rows of a tile times two groups. */
INLINE void pair_chunks(const uint8_t *w, const uint8_t *w1, const uint8_t *y, const int chunks, __m512i sum[2][6])
{
    UNROLL
    for (int c = 0; c < chunks; c++) {
        __m512i v0 = _mm512_loadu_si512(w + 64 * c), v1 = _mm512_loadu_si512(w1 + 64 * c);
        UNROLL
        for (int t = 0; t < 6; t++) {
            __m512i z = bytes4(y + 4 * (c * SG_TILE + t));
            sum[0][t] = _mm512_dpbusd_epi32(sum[0][t], v0, z);
            sum[1][t] = _mm512_dpbusd_epi32(sum[1][t], v1, z);
        }
    }
}

/* Two groups x 6 tokens, half h of a tile of 12, open form: a third fewer loads per product than 16 rows x
 * 12, in as many registers. */
INLINE void pair_body(const uint8_t *w, size_t k, uint32_t rows, const uint8_t *x, const int h,
                      const int fine, float *out, size_t ldo, const enum sg_pack kind, const int even)
{
    const int nt = SG_TILE, n = SG_TILE / 2, chunks = kind == SG_PACK_Q8H ? 4 : 8;
    const size_t step = sg_pack_block_bytes(kind), blocks = k / (size_t)(4 * chunks),
                 to_scales = sg_tile_scales(4 * (uint32_t)chunks, (uint32_t)fine, SG_TILE), xstep = to_scales + 8 * SG_TILE;
    const uint8_t *w1 = w + blocks * step;
    __m512 acc[2][6];
    x += 4 * n * h;
    UNROLL
    for (int t = 0; t < n; t++) acc[0][t] = acc[1][t] = _mm512_setzero_ps();
    for (size_t b = 0; b < blocks; b++, w += step, w1 += step, x += xstep) {
        __m512i sum[2][6];
        const uint8_t *more = x + 4 * chunks * nt, *scales = x + to_scales;
        UNROLL
        for (int t = 0; t < n; t++) {
            sum[0][t] = sum[1][t] = even && fine == SG_RAISED ? bytes4(more + 4 * (2 * nt + t)) : _mm512_setzero_si512();
            if (fine != SG_RAISED) continue;
            const uint32_t at = 128 + place(more + 4 * (nt + t));
            const __m512i z = bytes4(more + 4 * t);
            sum[0][t] = _mm512_slli_epi32(_mm512_dpbusd_epi32(sum[0][t], _mm512_loadu_si512(w + at), z), 7);
            sum[1][t] = _mm512_slli_epi32(_mm512_dpbusd_epi32(sum[1][t], _mm512_loadu_si512(w1 + at), z), 7);
        }
        pair_chunks(w + 128, w1 + 128, x, chunks, sum);
        if (fine == SG_FINE) {
            UNROLL
            for (int t = 0; t < n; t++) {
                sum[0][t] = _mm512_slli_epi32(sum[0][t], 8);
                sum[1][t] = _mm512_slli_epi32(sum[1][t], 8);
            }
            pair_chunks(w + 128, w1 + 128, more, chunks, sum);
        }
        const __m512 d0 = _mm512_loadu_ps(w), d1 = _mm512_loadu_ps(w1), m0 = _mm512_loadu_ps(w + 64),
                     m1 = _mm512_loadu_ps(w1 + 64);
        UNROLL
        for (int t = 0; t < n; t++) {
            __m512 d = _mm512_set1_ps(one(scales + 4 * t)), s = _mm512_set1_ps(one(scales + 4 * (nt + t)));
            acc[0][t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[0][t]), _mm512_mul_ps(d0, d), acc[0][t]);
            acc[1][t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[1][t]), _mm512_mul_ps(d1, d), acc[1][t]);
            if (even && fine == SG_RAISED) continue;
            acc[0][t] = _mm512_fmadd_ps(m0, s, acc[0][t]);
            acc[1][t] = _mm512_fmadd_ps(m1, s, acc[1][t]);
        }
    }
    UNROLL
    for (int t = 0; t < n; t++) {
        _mm512_storeu_ps(out + (size_t)t * ldo, acc[0][t]);
        _mm512_mask_storeu_ps(out + (size_t)t * ldo + 16, tail(rows - 16), acc[1][t]);
    }
}

/* Groups in pairs, the tile in halves. */
INLINE void pairs_body(const uint8_t *w, size_t k, uint32_t rows, const uint8_t *x, const int fine,
                       float *out, size_t ldo, const enum sg_pack kind, const int even)
{
    const size_t group = k / sg_pack_block(kind) * sg_pack_block_bytes(kind);
    uint32_t g = 0;
    for (; rows - g > 16; g += rows - g < 32 ? rows - g : 32, w += 2 * group)
        for (int h = 0; h < 2; h++)
            pair_body(w, k, rows - g, x, h, fine, out + (size_t)(6 * h) * ldo + g, ldo, kind, even);
    if (g < rows) quant_body(w, k, rows - g, x, SG_TILE, fine, out + g, ldo, kind, even);
}

#define BODY(n) quant_body(w, k, rows, x, n, fine, out, ldo, kind, even)
INLINE void tile_body(const uint8_t *w, size_t k, uint32_t rows, const uint8_t *x, uint32_t nt, const int fine,
                      float *out, size_t ldo, const enum sg_pack kind, const int even)
{
    switch (nt) {
        CASE(1);
        CASE(2);
        CASE(3);
        CASE(4);
        CASE(5);
        CASE(6);
        CASE(7);
        CASE(8);
        CASE(9);
        CASE(10);
        CASE(11);
    default: pairs_body(w, k, rows, x, fine, out, ldo, kind, even);
    }
}
#undef BODY

#define TILE(name, kind, even)                                                                             \
    MM(name)                                                                                               \
    {                                                                                                      \
        if (fine == SG_RAISED) tile_body(w, k, rows, x, nt, SG_RAISED, out, ldo, kind, even);              \
        else if (fine) tile_body(w, k, rows, x, nt, SG_FINE, out, ldo, kind, even);                        \
        else tile_body(w, k, rows, x, nt, SG_COARSE, out, ldo, kind, even);                                \
    }
TILE(tile_32, SG_PACK_Q8F, 0)
TILE(tile_32_even, SG_PACK_Q8F, 1)
TILE(tile_16, SG_PACK_Q8H, 0)

INLINE void open_body(const uint8_t *w, size_t k, uint8_t *out, const enum sg_pack kind)
{
    const uint32_t run = sg_pack_run(kind), parts = sg_pack_block(kind) == 256 ? 8 : 1;
    for (size_t b = 0; b < k / sg_pack_block(kind); b++, w += sg_pack_block_bytes(kind)) {
        for (uint32_t part = 0; part < parts; part++) {
            __m512 d[2], m[2];
            __m512i v[8];
            block_open(w, part, kind, d, m, v);
            UNROLL
            for (uint32_t h = 0; h < 32 / run; h++, out += sg_open_bytes(kind, run)) {
                _mm512_storeu_ps(out, d[h]);
                _mm512_storeu_ps(out + 64, m[h]);
                UNROLL
                for (uint32_t c = 0; c < run / 4; c++)
                    _mm512_storeu_si512(out + 128 + 64 * c, v[run / 4 * h + c]);
            }
        }
    }
}
static void open_q4(const uint8_t *w, size_t k, uint8_t *out) { open_body(w, k, out, SG_PACK_Q4); }
static void open_q4m(const uint8_t *w, size_t k, uint8_t *out) { open_body(w, k, out, SG_PACK_Q4M); }
static void open_q8(const uint8_t *w, size_t k, uint8_t *out) { open_body(w, k, out, SG_PACK_Q8); }
static void open_q4f(const uint8_t *w, size_t k, uint8_t *out) { open_body(w, k, out, SG_PACK_Q4F); }
static void open_q4k(const uint8_t *w, size_t k, uint8_t *out) { open_body(w, k, out, SG_PACK_Q4K); }
static void open_q6k(const uint8_t *w, size_t k, uint8_t *out) { open_body(w, k, out, SG_PACK_Q6K); }

/* --- attention --- */

INLINE void scores_body(const float *q, const int nq, uint32_t d, const float *k, uint32_t keys, float *s)
{
    for (uint32_t from = 0; from < keys; from += 64) {
        const float *kb = k + (size_t)from * d;
        __m512 acc[4][6];
        UNROLL
        for (int b = 0; b < 4; b++) {
            UNROLL
            for (int i = 0; i < nq; i++) acc[b][i] = _mm512_setzero_ps();
        }
        for (uint32_t j = 0; j < d; j++) {
            UNROLL
            for (int b = 0; b < 4; b++) {
                __m512 v = _mm512_loadu_ps(kb + ((size_t)(unsigned)b * d + j) * 16);
                UNROLL
                for (int i = 0; i < nq; i++)
                    acc[b][i] =
                        _mm512_fmadd_ps(v, _mm512_set1_ps(q[j * (unsigned)nq + (unsigned)i]), acc[b][i]);
            }
        }
        UNROLL
        for (int b = 0; b < 4; b++) {
            UNROLL
            for (int i = 0; i < nq; i++) _mm512_storeu_ps(s + i * SG_CHUNK + from + 16 * b, acc[b][i]);
        }
    }
}

static void scores(const float *q, uint32_t nq, uint32_t d, const float *k, uint32_t keys, float *s)
{
    switch (nq) {
    case 1: scores_body(q, 1, d, k, keys, s); break;
    case 2: scores_body(q, 2, d, k, keys, s); break;
    case 3: scores_body(q, 3, d, k, keys, s); break;
    case 4: scores_body(q, 4, d, k, keys, s); break;
    case 5: scores_body(q, 5, d, k, keys, s); break;
    default: scores_body(q, 6, d, k, keys, s);
    }
}

/* Columns [0, 16 * wide) of the weighted sum. */
INLINE void weigh_columns(const float *p, const int nq, uint32_t keys, const float *v, uint32_t dvp,
                          const int wide, float *o)
{
    __m512 acc[6][4];
    UNROLL
    for (int i = 0; i < nq; i++) {
        UNROLL
        for (int c = 0; c < wide; c++) acc[i][c] = _mm512_setzero_ps();
    }
    for (uint32_t t = 0; t < keys; t++, v += dvp) {
        __m512 x[4];
        UNROLL
        for (int c = 0; c < wide; c++) x[c] = _mm512_loadu_ps(v + 16 * c);
        UNROLL
        for (int i = 0; i < nq; i++) {
            __m512 a = _mm512_set1_ps(p[i * SG_CHUNK + (int)t]);
            UNROLL
            for (int c = 0; c < wide; c++) acc[i][c] = _mm512_fmadd_ps(a, x[c], acc[i][c]);
        }
    }
    UNROLL
    for (int i = 0; i < nq; i++) {
        UNROLL
        for (int c = 0; c < wide; c++) _mm512_storeu_ps(o + (size_t)(unsigned)i * dvp + 16 * c, acc[i][c]);
    }
}

INLINE void weigh_body(const float *p, const int nq, uint32_t keys, const float *v, uint32_t dvp, float *o)
{
    uint32_t c = 0;
    for (; c + 64 <= dvp; c += 64) weigh_columns(p, nq, keys, v + c, dvp, 4, o + c);
    for (; c < dvp; c += 16) weigh_columns(p, nq, keys, v + c, dvp, 1, o + c);
}

static void weigh(const float *p, uint32_t nq, uint32_t keys, const float *v, uint32_t dvp, float *o)
{
    switch (nq) {
    case 1: weigh_body(p, 1, keys, v, dvp, o); break;
    case 2: weigh_body(p, 2, keys, v, dvp, o); break;
    case 3: weigh_body(p, 3, keys, v, dvp, o); break;
    case 4: weigh_body(p, 4, keys, v, dvp, o); break;
    case 5: weigh_body(p, 5, keys, v, dvp, o); break;
    default: weigh_body(p, 6, keys, v, dvp, o);
    }
}

/* e^x as plain_exp, for x <= 0; 0 below -87. */
INLINE __m512 exp16(__m512 x)
{
    __m512 y = _mm512_max_ps(_mm512_set1_ps(-87.0f), x);  /* NaN passes */
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

static void soften(float *s, uint32_t lo, uint32_t hi, uint32_t keys, float scale, float softcap, float *max,
                   float *sum)
{
    const __m512 least = _mm512_set1_ps(-INFINITY);
    const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    __m512 x[SG_CHUNK / 16], top = least, all = _mm512_setzero_ps();
    if (softcap > 0.0f) {
        plain_soften(s, lo, hi, keys, scale, softcap, max, sum);
        return;
    }
    uint32_t n = (keys + 15) / 16;
    for (uint32_t i = 0; i < n; i++) {
        __m512i at = _mm512_add_epi32(lane, _mm512_set1_epi32((int)(16 * i)));
        __mmask16 in = _mm512_cmpge_epi32_mask(at, _mm512_set1_epi32((int)lo)) &
                       _mm512_cmplt_epi32_mask(at, _mm512_set1_epi32((int)hi));
        x[i] = _mm512_mask_mul_ps(least, in, _mm512_loadu_ps(s + 16 * i), _mm512_set1_ps(scale));
        top = _mm512_max_ps(x[i], top); /* this order keeps NaN out of the maximum, as the generic one does */
    }
    *max = _mm512_reduce_max_ps(top);
    __m512 base = _mm512_set1_ps(*max == -INFINITY ? 0.0f : *max);
    for (uint32_t i = 0; i < n; i++) {
        __m512 e = exp16(_mm512_sub_ps(x[i], base));
        _mm512_storeu_ps(s + 16 * i, e);
        all = _mm512_add_ps(all, e);
    }
    float lanes[16];
    _mm512_storeu_ps(lanes, all);
    *sum = fold16(lanes);
}

static void to_f16(const float *x, size_t n, uint16_t *y)
{
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        _mm256_storeu_si256(
            (__m256i *)(void *)(y + i),
            _mm512_cvtps_ph(_mm512_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    for (; i < n; i++) y[i] = sg_f16_of_f32(x[i]);
}

static void of_f16(const uint16_t *x, size_t n, float *y)
{
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        _mm512_storeu_ps(y + i, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(x + i))));
    for (; i < n; i++) y[i] = sg_f32_of_f16(x[i]);
}

void sg_kernels_avx512(struct sg_kernels *k)
{
    plain_rows(k);
    k->isa = "avx512";
    sg_kernels_avx512_few(k);
    sg_kernels_avx512_quant(k);
    k->tile[SG_OPEN_32] = tile_32;
    k->tile[SG_OPEN_16] = tile_16;
    k->tile[SG_OPEN_32_EVEN] = tile_32_even;
    k->open[SG_PACK_Q4] = open_q4;
    k->open[SG_PACK_Q4M] = open_q4m;
    k->open[SG_PACK_Q8] = open_q8;
    k->open[SG_PACK_Q4F] = open_q4f;
    k->open[SG_PACK_Q4K] = open_q4k;
    k->open[SG_PACK_Q6K] = open_q6k;
    k->scores = scores;
    k->soften = soften;
    k->weigh = weigh;
    k->to_f16 = to_f16;
    k->of_f16 = of_f16;
}
#endif
