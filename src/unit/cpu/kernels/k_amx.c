/* k_amx.c: bf16 products on the AMX tile unit; the rest of the table is that of k_avx512.c. One step
 * multiplies 32 columns of two tiles of activations (2 x 16 rows) and two groups of weights (2 x 16
 * rows) with four tdpbf16ps. Tile registers: 0-3 fp32 sums, 4 and 5 activations, 6 and 7 weights. Each
 * kilobyte loaded takes part in two products, a rate that the L2 cache sustains. Each output is one
 * chain of additions over the columns, however many rows and groups the call has.
 *
 * The tile instructions are inline assembly: the intrinsics of gcc 12 do not declare that they read
 * memory.
 * SPDX-License-Identifier: MIT */
#if defined(__x86_64__)
#include "unit/cpu/kernels/k_avx512.h"

#define LOAD(tile, p) \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile : : "r"(p), "r"((size_t)64) : "memory")
#define STORE(tile, p, stride) \
    __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" : : "r"(p), "r"((size_t)(stride)) : "memory")
#define ZERO(tile) __asm__ volatile("tilezero %%tmm" #tile : :)
#define DOT(sum, x, w) __asm__ volatile("tdpbf16ps %%tmm" #w ", %%tmm" #x ", %%tmm" #sum : :)

enum { TILE_NUMBERS = 512 }; /* bf16 numbers of one tile: 16 rows of 64 bytes */

/* Operand of ldtilecfg. Palette 1: eight tiles of 16 rows x 64 bytes. */
struct tile_config {
    uint8_t palette, start, none[14];
    uint16_t bytes[16];
    uint8_t rows[16];
};

static void bf16_begin(void)
{
    struct tile_config c = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        c.bytes[i] = 64;
        c.rows[i] = 16;
    }
    __asm__ volatile("ldtilecfg %0" : : "m"(c));
}
static void bf16_end(void) { __asm__ volatile("tilerelease" : :); }

/* Shape of one block of two tiles x two groups. steps: of 32 columns; nx, nw: numbers from the first
 * tile to the second, and from the first group to the second; terms of each operand. */
struct tile_block {
    size_t steps, nx, nw;
    uint32_t w_terms, x_terms;
};

/* First term of the weights with the loaded term of the activations, 32 columns. x1, w1: whether the
 * second tile and the second group exist. */
INLINE void mul_first(const uint16_t *x, const uint16_t *w, const struct tile_block *b, const int x1,
                       const int w1)
{
    LOAD(4, x);
    LOAD(6, w);
    DOT(0, 4, 6);
    if (w1) {
        LOAD(7, w + b->nw);
        DOT(1, 4, 7);
    }
    if (x1) {
        LOAD(5, x + b->nx);
        DOT(2, 5, 6);
        if (w1) DOT(3, 5, 7);
    }
}

/* Second term of the weights; the activations are still in tiles 4 and 5. */
INLINE void mul_second(const uint16_t *w, const struct tile_block *b, const int x1, const int w1)
{
    LOAD(6, w);
    DOT(0, 4, 6);
    if (x1) DOT(2, 5, 6);
    if (w1) {
        LOAD(7, w + b->nw);
        DOT(1, 4, 7);
        if (x1) DOT(3, 5, 7);
    }
}

/* One block over all columns. w and x are split into a first and a second bf16 part. The order of the sums is that of
 * k_generic.c: w1 x1, then w2 x1, then w1 x2. */
INLINE void block_mm(const uint16_t *w, const uint16_t *x, const struct tile_block *b, const int x1, const int w1,
                     float *out, size_t ldo)
{
    ZERO(0);
    ZERO(1);
    ZERO(2);
    ZERO(3);
    /* the common case has no branches in its loop */
    if (b->w_terms == 1 && b->x_terms == 1)
        for (size_t i = 0; i < b->steps; i++) mul_first(x + i * TILE_NUMBERS, w + i * TILE_NUMBERS, b, x1, w1);
    else
        for (size_t i = 0; i < b->steps; i++, x += b->x_terms * TILE_NUMBERS, w += b->w_terms * TILE_NUMBERS) {
            mul_first(x, w, b, x1, w1);
            if (b->w_terms > 1) mul_second(w + TILE_NUMBERS, b, x1, w1);
            if (b->x_terms > 1) mul_first(x + TILE_NUMBERS, w, b, x1, w1);
        }
    /* rows and groups that do not exist are not stored */
    STORE(0, out, ldo * 4);
    if (w1) STORE(1, out + 16, ldo * 4);
    if (x1) STORE(2, out + 16 * ldo, ldo * 4);
    if (x1 && w1) STORE(3, out + 16 * ldo + 16, ldo * 4);
}

/* All blocks; the four combinations of x1 and w1 are separate bodies without branches inside. */
static void bf16_mm(const struct sg_bf16_shape *m, const uint16_t *w, const uint16_t *x, float *out, size_t ldo)
{
    const struct tile_block b = {sg_bf16_size(m->k, 1) / TILE_NUMBERS, sg_bf16_size(m->k, m->x_terms),
                            sg_bf16_size(m->k, m->w_terms), m->w_terms, m->x_terms};
    for (uint32_t t = 0; t < m->tiles; t += 2)
        for (uint32_t g = 0; g < m->groups; g += 2) {
            const uint16_t *wg = w + g * b.nw, *xt = x + t * b.nx;
            float *to = out + t * 16 * ldo + g * 16;
            int x1 = t + 1 < m->tiles, w1 = g + 1 < m->groups;
            if (x1 && w1)
                block_mm(wg, xt, &b, 1, 1, to, ldo);
            else if (x1)
                block_mm(wg, xt, &b, 1, 0, to, ldo);
            else if (w1)
                block_mm(wg, xt, &b, 0, 1, to, ldo);
            else
                block_mm(wg, xt, &b, 0, 0, to, ldo);
        }
}

/* Stores 16 rows of an even and an odd column as interleaved bf16 pairs. */
INLINE void pair_store(__m512 even, __m512 odd, uint16_t *out)
{
    const __m512i mix = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7,
                                         22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    _mm512_storeu_si512(out, _mm512_permutexvar_epi16(mix, (__m512i)_mm512_cvtne2ps_pbh(odd, even)));
}

/* x minus x rounded to bf16. */
INLINE __m512 residual(__m512 x)
{
    __m512i high = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(x));
    return _mm512_sub_ps(x, _mm512_castsi512_ps(_mm512_slli_epi32(high, 16)));
}

/* One or two terms of a pair of columns. */
INLINE void terms_store(__m512 even, __m512 odd, uint32_t terms, uint16_t *out)
{
    pair_store(even, odd, out);
    /* the second term is stored after the first, per 32 columns */
    if (terms > 1) pair_store(residual(even), residual(odd), out + TILE_NUMBERS);
}

/* Four columns of 16 rows, q*d + m with one rounding in fp32, to bf16 terms. */
INLINE void chunk_to_bf16(__m512i q, __m512 d, __m512 m, uint32_t terms, uint16_t *out)
{
    const __m512i byte = _mm512_set1_epi32(255);
    __m512 v0 = _mm512_cvtepi32_ps(_mm512_and_si512(q, byte)),
           v1 = _mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32(q, 8), byte)),
           v2 = _mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32(q, 16), byte)),
           v3 = _mm512_cvtepi32_ps(_mm512_srli_epi32(q, 24));
    terms_store(_mm512_fmadd_ps(v0, d, m), _mm512_fmadd_ps(v1, d, m), terms, out);
    terms_store(_mm512_fmadd_ps(v2, d, m), _mm512_fmadd_ps(v3, d, m), terms, out + 32);
}

/* One group of a quantised kind to bf16, block by block. */
INLINE void quant_to_bf16(const uint8_t *w, size_t k, uint32_t terms, uint16_t *out, const enum sg_pack kind)
{
    const uint32_t tile_block = sg_pack_block_cols(kind), run = sg_pack_scale_cols(kind), chunks = run / 4,
                   parts = tile_block == 256 ? 8 : 1, runs = tile_block < 32 ? 1 : 32 / run;
    for (size_t c = 0; c < k; w += sg_pack_block_bytes(kind))
        for (uint32_t part = 0; part < parts; part++, c += runs * run) {
            /* 32 columns of one term are TILE_NUMBERS numbers; c % 32 is 16 for the second block of 16 */
            uint16_t *to = out + c / 32 * (terms * TILE_NUMBERS) + c % 32 * 16;
            __m512 d[2], m[2];
            __m512i v[8];
            block_unpack(w, part, kind, d, m, v);
            UNROLL
            for (uint32_t i = 0; i < runs * chunks; i++)
                chunk_to_bf16(v[i], d[i / chunks], m[i / chunks], terms, to + 64 * i);
        }
}

/* Column c of a group of float weights; zeros after the last column. */
INLINE __m512 load_column(const uint8_t *w, size_t k, size_t c, const enum sg_pack kind)
{
    if (c >= k) return _mm512_setzero_ps();
    w += c * sg_pack_block_bytes(kind);
    if (kind == SG_PACK_F32) return _mm512_loadu_ps(w);
    if (kind == SG_PACK_F16) return load_f16x16(w);
    __m256i h = _mm256_loadu_si256((const __m256i *)(const void *)w);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

INLINE void float_to_bf16(const uint8_t *w, size_t k, uint32_t terms, uint16_t *out, const enum sg_pack kind)
{
    for (size_t c = 0; c < (k + 31) / 32 * 32; c += 2)
        terms_store(load_column(w, k, c, kind), load_column(w, k, c + 1, kind), terms,
                    out + c / 32 * (terms * TILE_NUMBERS) + c % 32 * 16);
}

#define UNPACK(name, body, kind)                                                  \
    static void name(const uint8_t *w, size_t k, uint32_t terms, uint16_t *out) \
    {                                                                           \
        if (terms == 1)                                                         \
            body(w, k, 1, out, kind);                                           \
        else                                                                    \
            body(w, k, 2, out, kind);                                           \
    }
UNPACK(bf16_q4, quant_to_bf16, SG_PACK_Q4)
UNPACK(bf16_q4m, quant_to_bf16, SG_PACK_Q4M)
UNPACK(bf16_q8, quant_to_bf16, SG_PACK_Q8)
UNPACK(bf16_q4f, quant_to_bf16, SG_PACK_Q4F)
UNPACK(bf16_q8f, quant_to_bf16, SG_PACK_Q8F)
UNPACK(bf16_q8h, quant_to_bf16, SG_PACK_Q8H)
UNPACK(bf16_q4k, quant_to_bf16, SG_PACK_Q4K)
UNPACK(bf16_q6k, quant_to_bf16, SG_PACK_Q6K)
UNPACK(bf16_f32, float_to_bf16, SG_PACK_F32)
UNPACK(bf16_f16, float_to_bf16, SG_PACK_F16)
UNPACK(bf16_bf16, float_to_bf16, SG_PACK_BF16)

/* Rows of activations in bf16 tiles, zero-padded. */
static void bf16_rows(const float *x, size_t ldx, uint32_t nt, size_t k, uint32_t terms, uint16_t *out)
{
    const size_t step = terms * TILE_NUMBERS;
    for (uint32_t t = 0; t < 16; t++, x += ldx, out += 32)
        for (size_t c = 0; c < k; c += 32) {
            /* columns that exist; rows beyond nt are zero */
            size_t n = t >= nt ? 0 : k - c < 32 ? k - c : 32;
            __mmask16 a = (__mmask16)(n >= 16 ? 0xffff : (1u << n) - 1u),
                      b = (__mmask16)(n >= 32  ? 0xffff
                                      : n > 16 ? (1u << (n - 16)) - 1u
                                               : 0);
            uint16_t *to = out + c / 32 * step;
            __m512 v0 = _mm512_maskz_loadu_ps(a, x + c), v1 = _mm512_maskz_loadu_ps(b, x + c + 16);
            _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(v1, v0));
            if (terms > 1)
                _mm512_storeu_si512(to + TILE_NUMBERS, (__m512i)_mm512_cvtne2ps_pbh(residual(v1), residual(v0)));
        }
}

void sg_kernels_amx(struct sg_kernels *k)
{
    void (*const open[SG_PACK_N])(const uint8_t *, size_t, uint32_t, uint16_t *) = {
        bf16_q4,  bf16_q4m, bf16_q8,  bf16_q4f, bf16_q8f, bf16_q8h,
        bf16_q4k, bf16_q6k, bf16_f32, bf16_f16, bf16_bf16};
    k->isa = "amx";
    k->wide = 1;
    memcpy(k->bf16_unpack, open, sizeof open);
    k->bf16_rows = bf16_rows;
    k->bf16_begin = bf16_begin;
    k->bf16_mm = bf16_mm;
    k->bf16_end = bf16_end;
}
#endif
