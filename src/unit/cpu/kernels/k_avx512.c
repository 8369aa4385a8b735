/* k_avx512.c: kernels for AVX-512 with VNNI. One vector holds 16 rows x 4 columns of weights; vpdpbusd
 * multiplies it by four broadcast activations, so no sum is ever taken across a vector. Every row and token
 * has one chain of additions, block after block, in every tile width: that is what makes a row independent of
 * its neighbours. Bodies are inlined per width.
 * SPDX-License-Identifier: MIT */
#if defined(__x86_64__)
#include "unit/cpu/kernels/k_avx512.h"
#include "unit/cpu/kernels/k_plain.h"

/* --- quantised: tiles --- */

INLINE void quant_body(const uint8_t *w, size_t k, uint32_t rows, const uint8_t *x, const int nt,
                       const int fine, float *out, size_t ldo, const enum sg_pack kind)
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
            run_add(v, d, m, xb, nt, fine, (int)block / 4, acc);
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
                      const int fine, float *out, size_t ldo, const enum sg_pack kind)
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
        for (int t = 0; t < n; t++) sum[0][t] = sum[1][t] = _mm512_setzero_si512();
        pair_chunks(w + 128, w1 + 128, x, chunks, sum);
        if (fine) {
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
                       float *out, size_t ldo, const enum sg_pack kind)
{
    const size_t group = k / sg_pack_block(kind) * sg_pack_block_bytes(kind);
    uint32_t g = 0;
    for (; rows - g > 16; g += rows - g < 32 ? rows - g : 32, w += 2 * group)
        for (int h = 0; h < 2; h++)
            pair_body(w, k, rows - g, x, h, fine, out + (size_t)(6 * h) * ldo + g, ldo, kind);
    if (g < rows) quant_body(w, k, rows - g, x, SG_TILE, fine, out + g, ldo, kind);
}

#define BODY(n) quant_body(w, k, rows, x, n, fine, out, ldo, kind)
INLINE void tile_body(const uint8_t *w, size_t k, uint32_t rows, const uint8_t *x, uint32_t nt, const int fine,
                      float *out, size_t ldo, const enum sg_pack kind)
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
    default: pairs_body(w, k, rows, x, fine, out, ldo, kind);
    }
}
#undef BODY

#define TILE(name, kind, raised)                                            \
    MM(name)                                                                \
    {                                                                       \
        if (fine == SG_RAISED) raised(w, k, rows, x, nt, out, ldo);         \
        else if (fine) tile_body(w, k, rows, x, nt, SG_FINE, out, ldo, kind); \
        else tile_body(w, k, rows, x, nt, SG_COARSE, out, ldo, kind);       \
    }
TILE(tile_32, SG_PACK_Q8F, sg_raised_avx512_32)
TILE(tile_32_even, SG_PACK_Q8F, sg_raised_avx512_32_even)
TILE(tile_16, SG_PACK_Q8H, sg_raised_avx512_16)

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

/* --- recurrences --- */

/* Columns of a state, [dk] rows lds floats apart; m: those of the last 16 that are there. */
struct delta_part { float *s; size_t lds; __mmask16 m; };

INLINE void delta_start(struct delta_part a, const struct sg_delta_rows *r, const int wide, __m512 *p)
{
    UNROLL
    for (int c = 0; c < wide; c++) p[c] = _mm512_setzero_ps();
    for (uint32_t i = 0; i < r->dk; i++, a.s += a.lds) {
        const __m512 k = _mm512_set1_ps(r->k[i]);
        UNROLL
        for (int c = 0; c < wide; c++) p[c] = _mm512_fmadd_ps(k, _mm512_maskz_loadu_ps(a.m, a.s + 16 * c), p[c]);
    }
}

/* One sweep for one row: the state as the row leaves it, o, and where more rows follow the next one's s^T k. */
INLINE void delta_sweep(struct delta_part a, const struct sg_delta_rows *r, uint32_t t, const int wide,
                        const int more, const __m512 *u, __m512 *p, __m512 *o)
{
    const __m512 keep = _mm512_set1_ps(r->decay[t]);
    const float *k = r->k + t * r->ldk, *q = r->q + t * r->ldk, *next = k + r->ldk;
    UNROLL
    for (int c = 0; c < wide; c++) p[c] = o[c] = _mm512_setzero_ps();
    for (uint32_t i = 0; i < r->dk; i++, a.s += a.lds) {
        const __m512 ki = _mm512_set1_ps(k[i]), qi = _mm512_set1_ps(q[i]),
                     ni = _mm512_set1_ps(more ? next[i] : 0.0f);
        UNROLL
        for (int c = 0; c < wide; c++) {
            __m512 x = _mm512_mul_ps(keep, _mm512_maskz_loadu_ps(a.m, a.s + 16 * c));
            x = _mm512_fmadd_ps(ki, u[c], x);
            _mm512_mask_storeu_ps(a.s + 16 * c, a.m, x);
            o[c] = _mm512_fmadd_ps(qi, x, o[c]);
            if (more) p[c] = _mm512_fmadd_ps(ni, x, p[c]);
        }
    }
}

/* 16 * wide columns from `at`. */
INLINE void delta_columns(struct delta_part a, const struct sg_delta_rows *r, uint32_t at, const int wide)
{
    __m512 p[8], u[8], o[8];
    delta_start(a, r, wide, p);
    for (uint32_t t = 0; t < r->rows; t++) {
        const __m512 keep = _mm512_set1_ps(r->decay[t]), beta = _mm512_set1_ps(r->beta[t]);
        const float *v = r->v + t * r->ldv + at;
        UNROLL
        for (int c = 0; c < wide; c++)
            u[c] = _mm512_mul_ps(beta, _mm512_fnmadd_ps(keep, p[c], _mm512_maskz_loadu_ps(a.m, v + 16 * c)));
        if (t + 1 < r->rows) delta_sweep(a, r, t, wide, 1, u, p, o);
        else delta_sweep(a, r, t, wide, 0, u, p, o);
        UNROLL
        for (int c = 0; c < wide; c++) _mm512_mask_storeu_ps(r->o + t * r->ldo + at + 16 * c, a.m, o[c]);
    }
}

INLINE void delta_copy(float *to, size_t ldt, const float *from, size_t ldf, uint32_t dk)
{
    for (; dk; dk--, to += ldt, from += ldf) {
        UNROLL
        for (int c = 0; c < 4; c++) _mm512_storeu_ps(to + 16 * c, _mm512_loadu_ps(from + 16 * c));
    }
}

/* Many rows work on 64 columns of the state that lie side by side: 32 KB where dk is 128, in the first-level cache;
 * in place their lines would share half of its sets. One row reads the state from far away, in long lines. */
static void delta(float *s, const struct sg_delta_rows *r)
{
    uint32_t c = 0;
    for (; r->rows == 1 && c + 128 <= r->dv; c += 128)
        delta_columns((struct delta_part){s + c, r->dv, 0xffff}, r, c, 8);
    for (; c + SG_DELTA_COLUMNS <= r->dv; c += SG_DELTA_COLUMNS) {
        delta_copy(r->room, SG_DELTA_COLUMNS, s + c, r->dv, r->dk);
        delta_columns((struct delta_part){r->room, SG_DELTA_COLUMNS, 0xffff}, r, c, 4);
        delta_copy(s + c, r->dv, r->room, SG_DELTA_COLUMNS, r->dk);
    }
    for (; c < r->dv; c += 16) delta_columns((struct delta_part){s + c, r->dv, tail(r->dv - c)}, r, c, 1);
}

void sg_kernels_avx512(struct sg_kernels *k)
{
    plain_rows(k);
    k->isa = "avx512";
    sg_kernels_avx512_few(k);
    sg_kernels_avx512_quant(k);
    sg_kernels_avx512_attend(k);
    sg_kernels_avx512_rows(k);
    k->tile[SG_OPEN_32] = tile_32;
    k->tile[SG_OPEN_16] = tile_16;
    k->tile[SG_OPEN_32_EVEN] = tile_32_even;
    k->open[SG_PACK_Q4] = open_q4;
    k->open[SG_PACK_Q4M] = open_q4m;
    k->open[SG_PACK_Q8] = open_q8;
    k->open[SG_PACK_Q4F] = open_q4f;
    k->open[SG_PACK_Q4K] = open_q4k;
    k->open[SG_PACK_Q6K] = open_q6k;
    k->delta = delta;
}
#endif
