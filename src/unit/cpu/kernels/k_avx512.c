/* k_avx512.c: the table of kernels for AVX-512 with VNNI, the products of unpacked weights with tiles
 * (COARSE, FINE), the unpacking of packed weights, and the delta rule. Other kernels are in
 * k_avx512_*.c; this file only calls down into them.
 * SPDX-License-Identifier: MIT */
#if defined(__x86_64__)
#include "unit/cpu/kernels/k_avx512.h"
#include "unit/cpu/kernels/k_plain.h"

/* One group x nt rows, group after group: nt accumulators and nt integer sums (at most 24 registers of
 * 32). */

INLINE void quant_body(const uint8_t *w, size_t k, uint32_t rows, const uint8_t *x, const int nt,
                       const int fine, float *out, size_t ldo, const enum sg_pack kind)
{
    const uint32_t block = sg_pack_block_cols(kind);
    const size_t step = sg_pack_block_bytes(kind), blocks = k / block,
                 xstep = sg_tile_bytes(block, block, (uint32_t)fine, (size_t)nt);
    for (uint32_t g = 0; g < rows; g += 16) {
        __m512 acc[SG_TILE];
        /* every group reads all activations again, from L1 */
        const uint8_t *xb = x;
        UNROLL
        for (int t = 0; t < nt; t++) acc[t] = _mm512_setzero_ps();
        for (size_t b = 0; b < blocks; b++, w += step, xb += xstep) {
            __m512 d, m;
            __m512i v[8];
            block_unpack(w, 0, kind, &d, &m, v);
            block_accumulate(v, d, m, xb, nt, fine, (int)block / 4, acc);
        }
        UNROLL
        for (int t = 0; t < nt; t++) _mm512_mask_storeu_ps(out + (size_t)t * ldo + g, tail_mask(rows - g), acc[t]);
    }
}

/* `chunks` vectors of two groups times 6 rows of a tile: 12 integer sums in flight. */
INLINE void dot_pair_chunks(const uint8_t *w, const uint8_t *w1, const uint8_t *y, const int chunks, __m512i sum[2][6])
{
    UNROLL
    for (int c = 0; c < chunks; c++) {
        __m512i v0 = _mm512_loadu_si512(w + 64 * c), v1 = _mm512_loadu_si512(w1 + 64 * c);
        UNROLL
        for (int t = 0; t < 6; t++) {
            __m512i z = broadcast4(y + 4 * (c * SG_TILE + t));
            sum[0][t] = _mm512_dpbusd_epi32(sum[0][t], v0, z);
            sum[1][t] = _mm512_dpbusd_epi32(sum[1][t], v1, z);
        }
    }
}

/* Two groups x 6 rows (half h of a full tile of 12). Each broadcast activation is used for two groups,
 * which needs a third fewer loads per product than one group x 12 rows with the same number of
 * registers. Order of operations as in quant_body. */
INLINE void pair_half_tile(const uint8_t *w, size_t k, uint32_t rows, const uint8_t *x, const int h,
                      const int fine, float *out, size_t ldo, const enum sg_pack kind)
{
    const int nt = SG_TILE, n = SG_TILE / 2, chunks = kind == SG_PACK_Q8H ? 4 : 8;
    const size_t step = sg_pack_block_bytes(kind), blocks = k / (size_t)(4 * chunks),
                 to_scales = sg_tile_scales(4 * (uint32_t)chunks, (uint32_t)fine, SG_TILE), xstep = to_scales + 8 * SG_TILE;
    const uint8_t *w1 = w + blocks * step;
    __m512 acc[2][6];
    /* half of each chunk's rows */
    x += 4 * n * h;
    UNROLL
    for (int t = 0; t < n; t++) acc[0][t] = acc[1][t] = _mm512_setzero_ps();
    for (size_t b = 0; b < blocks; b++, w += step, w1 += step, x += xstep) {
        __m512i sum[2][6];
        const uint8_t *more = x + 4 * chunks * nt, *scales = x + to_scales;
        UNROLL
        for (int t = 0; t < n; t++) sum[0][t] = sum[1][t] = _mm512_setzero_si512();
        dot_pair_chunks(w + 128, w1 + 128, x, chunks, sum);
        if (fine) {
            UNROLL
            for (int t = 0; t < n; t++) {
                sum[0][t] = _mm512_slli_epi32(sum[0][t], 8);
                sum[1][t] = _mm512_slli_epi32(sum[1][t], 8);
            }
            dot_pair_chunks(w + 128, w1 + 128, more, chunks, sum);
        }
        /* scales and offsets of both groups */
        const __m512 d0 = _mm512_loadu_ps(w), d1 = _mm512_loadu_ps(w1), m0 = _mm512_loadu_ps(w + 64),
                     m1 = _mm512_loadu_ps(w1 + 64);
        UNROLL
        for (int t = 0; t < n; t++) {
            __m512 d = _mm512_set1_ps(load_f32(scales + 4 * t)), s = _mm512_set1_ps(load_f32(scales + 4 * (nt + t)));
            acc[0][t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[0][t]), _mm512_mul_ps(d0, d), acc[0][t]);
            acc[1][t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[1][t]), _mm512_mul_ps(d1, d), acc[1][t]);
            acc[0][t] = _mm512_fmadd_ps(m0, s, acc[0][t]);
            acc[1][t] = _mm512_fmadd_ps(m1, s, acc[1][t]);
        }
    }
    UNROLL
    for (int t = 0; t < n; t++) {
        _mm512_storeu_ps(out + (size_t)t * ldo, acc[0][t]);
        _mm512_mask_storeu_ps(out + (size_t)t * ldo + 16, tail_mask(rows - 16), acc[1][t]);
    }
}

/* A full tile: groups in pairs, rows in halves; an odd last group falls back to quant_body. */
INLINE void pairs_tile(const uint8_t *w, size_t k, uint32_t rows, const uint8_t *x, const int fine,
                       float *out, size_t ldo, const enum sg_pack kind)
{
    const size_t group = k / sg_pack_block_cols(kind) * sg_pack_block_bytes(kind);
    uint32_t g = 0;
    for (; rows - g > 16; g += rows - g < 32 ? rows - g : 32, w += 2 * group)
        for (int h = 0; h < 2; h++)
            pair_half_tile(w, k, rows - g, x, h, fine, out + (size_t)(6 * h) * ldo + g, ldo, kind);
    /* the last single group */
    if (g < rows) quant_body(w, k, rows - g, x, SG_TILE, fine, out + g, ldo, kind);
}

#define BODY(n) quant_body(w, k, rows, x, n, fine, out, ldo, kind)
/* Any tile of up to 12 rows; full tiles take the pair kernel. */
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
    default: pairs_tile(w, k, rows, x, fine, out, ldo, kind);
    }
}
#undef BODY

/* SG_OUTLIER tiles are multiplied by k_avx512_outlier.c. */
#define TILE(name, kind, outlier_mm)                                            \
    MM(name)                                                                \
    {                                                                       \
        if (fine == SG_OUTLIER) outlier_mm(w, k, rows, x, nt, out, ldo);         \
        else if (fine) tile_body(w, k, rows, x, nt, SG_FINE, out, ldo, kind); \
        else tile_body(w, k, rows, x, nt, SG_COARSE, out, ldo, kind);       \
    }
TILE(tile_32, SG_PACK_Q8F, sg_outlier_avx512_32)
TILE(tile_32_sym, SG_PACK_Q8F, sg_outlier_avx512_32_sym)
TILE(tile_16, SG_PACK_Q8H, sg_outlier_avx512_16)

/* Packed -> unpacked form: d, m and bytes of each block. */
INLINE void unpack_body(const uint8_t *w, size_t k, uint8_t *out, const enum sg_pack kind)
{
    const uint32_t run = sg_pack_scale_cols(kind), parts = sg_pack_block_cols(kind) == 256 ? 8 : 1;
    for (size_t b = 0; b < k / sg_pack_block_cols(kind); b++, w += sg_pack_block_bytes(kind)) {
        for (uint32_t part = 0; part < parts; part++) {
            __m512 d[2], m[2];
            __m512i v[8];
            block_unpack(w, part, kind, d, m, v);
            UNROLL
            for (uint32_t h = 0; h < 32 / run; h++, out += sg_unpacked_bytes(kind, run)) {
                _mm512_storeu_ps(out, d[h]);
                _mm512_storeu_ps(out + 64, m[h]);
                UNROLL
                for (uint32_t c = 0; c < run / 4; c++)
                    _mm512_storeu_si512(out + 128 + 64 * c, v[run / 4 * h + c]);
            }
        }
    }
}
static void unpack_q4(const uint8_t *w, size_t k, uint8_t *out) { unpack_body(w, k, out, SG_PACK_Q4); }
static void unpack_q4m(const uint8_t *w, size_t k, uint8_t *out) { unpack_body(w, k, out, SG_PACK_Q4M); }
static void unpack_q8(const uint8_t *w, size_t k, uint8_t *out) { unpack_body(w, k, out, SG_PACK_Q8); }
static void unpack_q4f(const uint8_t *w, size_t k, uint8_t *out) { unpack_body(w, k, out, SG_PACK_Q4F); }
static void unpack_q4k(const uint8_t *w, size_t k, uint8_t *out) { unpack_body(w, k, out, SG_PACK_Q4K); }
static void unpack_q6k(const uint8_t *w, size_t k, uint8_t *out) { unpack_body(w, k, out, SG_PACK_Q6K); }

/* State columns: [dk] rows, lds floats apart; m: mask of the last 16 columns. */
struct delta_cols { float *s; size_t lds; __mmask16 m; };

/* p = s^T k of the first token. */
INLINE void delta_first_dot(struct delta_cols a, const struct sg_delta_args *r, const int wide, __m512 *p)
{
    UNROLL
    for (int c = 0; c < wide; c++) p[c] = _mm512_setzero_ps();
    for (uint32_t i = 0; i < r->dk; i++, a.s += a.lds) {
        const __m512 k = _mm512_set1_ps(r->k[i]);
        UNROLL
        for (int c = 0; c < wide; c++) p[c] = _mm512_fmadd_ps(k, _mm512_maskz_loadu_ps(a.m, a.s + 16 * c), p[c]);
    }
}

/* One sweep for one token: decays and updates the state, accumulates o = s^T q and, if more tokens
 * follow, already s^T k of the next token. The state is read and written once. */
INLINE void delta_sweep(struct delta_cols a, const struct sg_delta_args *r, uint32_t t, const int wide,
                        const int more, const __m512 *u, __m512 *p, __m512 *o)
{
    const __m512 decay = _mm512_set1_ps(r->decay[t]);
    const float *k = r->k + t * r->ldk, *q = r->q + t * r->ldk, *next = k + r->ldk;
    UNROLL
    for (int c = 0; c < wide; c++) p[c] = o[c] = _mm512_setzero_ps();
    for (uint32_t i = 0; i < r->dk; i++, a.s += a.lds) {
        const __m512 ki = _mm512_set1_ps(k[i]), qi = _mm512_set1_ps(q[i]),
                     ni = _mm512_set1_ps(more ? next[i] : 0.0f);
        UNROLL
        for (int c = 0; c < wide; c++) {
            /* decay, add k u^T, store, and use the new value for both dot products */
            __m512 x = _mm512_mul_ps(decay, _mm512_maskz_loadu_ps(a.m, a.s + 16 * c));
            x = _mm512_fmadd_ps(ki, u[c], x);
            _mm512_mask_storeu_ps(a.s + 16 * c, a.m, x);
            o[c] = _mm512_fmadd_ps(qi, x, o[c]);
            if (more) p[c] = _mm512_fmadd_ps(ni, x, p[c]);
        }
    }
}

/* All tokens for 16 * wide columns of the state, from column `at` of v and o. */
INLINE void delta_update(struct delta_cols a, const struct sg_delta_args *r, uint32_t at, const int wide)
{
    __m512 p[8], u[8], o[8];
    delta_first_dot(a, r, wide, p);
    for (uint32_t t = 0; t < r->rows; t++) {
        const __m512 decay = _mm512_set1_ps(r->decay[t]), beta = _mm512_set1_ps(r->beta[t]);
        const float *v = r->v + t * r->ldv + at;
        UNROLL
        for (int c = 0; c < wide; c++)
            /* u = beta * (v - decay * s^T k): p was taken before the decay */
            u[c] = _mm512_mul_ps(beta, _mm512_fnmadd_ps(decay, p[c], _mm512_maskz_loadu_ps(a.m, v + 16 * c)));
        if (t + 1 < r->rows) delta_sweep(a, r, t, wide, 1, u, p, o);
        else delta_sweep(a, r, t, wide, 0, u, p, o);
        UNROLL
        for (int c = 0; c < wide; c++) _mm512_mask_storeu_ps(r->o + t * r->ldo + at + 16 * c, a.m, o[c]);
    }
}

/* Copies dk rows of 64 floats between different strides. */
INLINE void delta_copy(float *to, size_t ldt, const float *from, size_t ldf, uint32_t dk)
{
    for (; dk; dk--, to += ldt, from += ldf) {
        UNROLL
        for (int c = 0; c < 4; c++) _mm512_storeu_ps(to + 16 * c, _mm512_loadu_ps(from + 16 * c));
    }
}

/* Several tokens: 64 columns are copied to contiguous scratch first (32 KB at dk = 128, fits L1). In
 * place, their lines would map to half of the cache sets. One token: the state is streamed from memory
 * once, 128 columns at a time, without a copy. */
static void delta(float *s, const struct sg_delta_args *r)
{
    uint32_t c = 0;
    for (; r->rows == 1 && c + 128 <= r->dv; c += 128)
        delta_update((struct delta_cols){s + c, r->dv, 0xffff}, r, c, 8);
    for (; c + SG_DELTA_COLS <= r->dv; c += SG_DELTA_COLS) {
        delta_copy(r->scratch, SG_DELTA_COLS, s + c, r->dv, r->dk);
        delta_update((struct delta_cols){r->scratch, SG_DELTA_COLS, 0xffff}, r, c, 4);
        delta_copy(s + c, r->dv, r->scratch, SG_DELTA_COLS, r->dk);
    }
    /* the remaining columns, masked */
    for (; c < r->dv; c += 16) delta_update((struct delta_cols){s + c, r->dv, tail_mask(r->dv - c)}, r, c, 1);
}

/* Fills in order: plain kernels, kernels of the other files, kernels of this file. */
void sg_kernels_avx512(struct sg_kernels *k)
{
    plain_kernels(k);
    k->isa = "avx512";
    sg_kernels_avx512_few(k);
    sg_kernels_avx512_quant(k);
    sg_kernels_avx512_attend(k);
    sg_kernels_avx512_rows(k);
    k->tile[SG_UNPACKED_32] = tile_32;
    k->tile[SG_UNPACKED_16] = tile_16;
    k->tile[SG_UNPACKED_32_SYM] = tile_32_sym;
    k->open[SG_PACK_Q4] = unpack_q4;
    k->open[SG_PACK_Q4M] = unpack_q4m;
    k->open[SG_PACK_Q8] = unpack_q8;
    k->open[SG_PACK_Q4F] = unpack_q4f;
    k->open[SG_PACK_Q4K] = unpack_q4k;
    k->open[SG_PACK_Q6K] = unpack_q6k;
    k->delta = delta;
}
#endif
