/* k_amx.c: wide products on the tile unit (AMX, bf16) of processors that have it. All else of the table
 * stays that of k_avx512.c. Tiles: 0-3 sums of two tiles of activations x two groups of weights, 4 and 5
 * activations, 6 and 7 weights; one product per kilobyte that is loaded, which the second-level cache can
 * feed. Each sum has one chain over the columns, however many rows and groups there are.
 *
 * Statements in assembler, not intrinsics: those of gcc 12 do not say that they read memory.
 * SPDX-License-Identifier: MIT */
#if defined(__x86_64__)
#include "unit/cpu/kernels/k_avx512.h"

#define LOAD(tile, p) \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile : : "r"(p), "r"((size_t)64) : "memory")
#define STORE(tile, p, stride) \
    __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" : : "r"(p), "r"((size_t)(stride)) : "memory")
#define ZERO(tile) __asm__ volatile("tilezero %%tmm" #tile : :)
#define DOT(sum, x, w) __asm__ volatile("tdpbf16ps %%tmm" #w ", %%tmm" #x ", %%tmm" #sum : :)

enum { NUMBERS = 512 }; /* of one tile: 16 rows of 64 bytes */

/* Palette 1: eight tiles of 16 rows x 64 bytes. */
struct tile_config {
    uint8_t palette, start, none[14];
    uint16_t bytes[16];
    uint8_t rows[16];
};

static void wide_begin(void)
{
    struct tile_config c = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        c.bytes[i] = 64;
        c.rows[i] = 16;
    }
    __asm__ volatile("ldtilecfg %0" : : "m"(c));
}
static void wide_end(void) { __asm__ volatile("tilerelease" : :); }

/* --- products --- */

/* What one block of two tiles x two groups multiplies; nx, nw: numbers to the second tile, the second group.
 */
struct block {
    size_t steps, nx, nw;
    uint32_t w_terms, x_terms;
};

/* First terms of 32 columns of the weights; x1, w1: whether there are second tiles. */
INLINE void step_first(const uint16_t *x, const uint16_t *w, const struct block *b, const int x1,
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

/* Second terms, with the activations that are in place. */
INLINE void step_second(const uint16_t *w, const struct block *b, const int x1, const int w1)
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

INLINE void block_mm(const uint16_t *w, const uint16_t *x, const struct block *b, const int x1, const int w1,
                     float *out, size_t ldo)
{
    ZERO(0);
    ZERO(1);
    ZERO(2);
    ZERO(3);
    if (b->w_terms == 1 && b->x_terms == 1)
        for (size_t i = 0; i < b->steps; i++) step_first(x + i * NUMBERS, w + i * NUMBERS, b, x1, w1);
    else
        for (size_t i = 0; i < b->steps; i++, x += b->x_terms * NUMBERS, w += b->w_terms * NUMBERS) {
            step_first(x, w, b, x1, w1);
            if (b->w_terms > 1) step_second(w + NUMBERS, b, x1, w1);
            if (b->x_terms > 1) step_first(x + NUMBERS, w, b, x1, w1);
        }
    STORE(0, out, ldo * 4);
    if (w1) STORE(1, out + 16, ldo * 4);
    if (x1) STORE(2, out + 16 * ldo, ldo * 4);
    if (x1 && w1) STORE(3, out + 16 * ldo + 16, ldo * 4);
}

static void wide_mm(const struct sg_wide *m, const uint16_t *w, const uint16_t *x, float *out, size_t ldo)
{
    const struct block b = {sg_wide_size(m->k, 1) / NUMBERS, sg_wide_size(m->k, m->x_terms),
                            sg_wide_size(m->k, m->w_terms), m->w_terms, m->x_terms};
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

/* --- rounding to terms --- */

/* 16 rows of an even and an odd column, interleaved. */
INLINE void pair_store(__m512 even, __m512 odd, uint16_t *out)
{
    const __m512i mix = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7,
                                         22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    _mm512_storeu_si512(out, _mm512_permutexvar_epi16(mix, (__m512i)_mm512_cvtne2ps_pbh(odd, even)));
}

INLINE __m512 rest_of(__m512 x)
{
    __m512i high = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(x));
    return _mm512_sub_ps(x, _mm512_castsi512_ps(_mm512_slli_epi32(high, 16)));
}

INLINE void terms_store(__m512 even, __m512 odd, uint32_t terms, uint16_t *out)
{
    pair_store(even, odd, out);
    if (terms > 1) pair_store(rest_of(even), rest_of(odd), out + NUMBERS);
}

/* Four columns of 16 rows: q*d + m. */
INLINE void chunk_open(__m512i q, __m512 d, __m512 m, uint32_t terms, uint16_t *out)
{
    const __m512i byte = _mm512_set1_epi32(255);
    __m512 v0 = _mm512_cvtepi32_ps(_mm512_and_si512(q, byte)),
           v1 = _mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32(q, 8), byte)),
           v2 = _mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32(q, 16), byte)),
           v3 = _mm512_cvtepi32_ps(_mm512_srli_epi32(q, 24));
    terms_store(_mm512_fmadd_ps(v0, d, m), _mm512_fmadd_ps(v1, d, m), terms, out);
    terms_store(_mm512_fmadd_ps(v2, d, m), _mm512_fmadd_ps(v3, d, m), terms, out + 32);
}

INLINE void quant_open(const uint8_t *w, size_t k, uint32_t terms, uint16_t *out, const enum sg_pack kind)
{
    const uint32_t block = sg_pack_block(kind), run = sg_pack_run(kind), chunks = run / 4,
                   parts = block == 256 ? 8 : 1, runs = block < 32 ? 1 : 32 / run;
    for (size_t c = 0; c < k; w += sg_pack_block_bytes(kind))
        for (uint32_t part = 0; part < parts; part++, c += runs * run) {
            uint16_t *to = out + c / 32 * (terms * NUMBERS) + c % 32 * 16;
            __m512 d[2], m[2];
            __m512i v[8];
            block_open(w, part, kind, d, m, v);
            UNROLL
            for (uint32_t i = 0; i < runs * chunks; i++)
                chunk_open(v[i], d[i / chunks], m[i / chunks], terms, to + 64 * i);
        }
}

/* Column c of a group of float numbers; 0 behind the last. */
INLINE __m512 column(const uint8_t *w, size_t k, size_t c, const enum sg_pack kind)
{
    if (c >= k) return _mm512_setzero_ps();
    w += c * sg_pack_block_bytes(kind);
    if (kind == SG_PACK_F32) return _mm512_loadu_ps(w);
    if (kind == SG_PACK_F16) return halves16(w);
    __m256i h = _mm256_loadu_si256((const __m256i *)(const void *)w);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

INLINE void float_open(const uint8_t *w, size_t k, uint32_t terms, uint16_t *out, const enum sg_pack kind)
{
    for (size_t c = 0; c < (k + 31) / 32 * 32; c += 2)
        terms_store(column(w, k, c, kind), column(w, k, c + 1, kind), terms,
                    out + c / 32 * (terms * NUMBERS) + c % 32 * 16);
}

#define OPEN(name, body, kind)                                                  \
    static void name(const uint8_t *w, size_t k, uint32_t terms, uint16_t *out) \
    {                                                                           \
        if (terms == 1)                                                         \
            body(w, k, 1, out, kind);                                           \
        else                                                                    \
            body(w, k, 2, out, kind);                                           \
    }
OPEN(wide_q4, quant_open, SG_PACK_Q4)
OPEN(wide_q4m, quant_open, SG_PACK_Q4M)
OPEN(wide_q8, quant_open, SG_PACK_Q8)
OPEN(wide_q4f, quant_open, SG_PACK_Q4F)
OPEN(wide_q8f, quant_open, SG_PACK_Q8F)
OPEN(wide_q8h, quant_open, SG_PACK_Q8H)
OPEN(wide_q4k, quant_open, SG_PACK_Q4K)
OPEN(wide_q6k, quant_open, SG_PACK_Q6K)
OPEN(wide_f32, float_open, SG_PACK_F32)
OPEN(wide_f16, float_open, SG_PACK_F16)
OPEN(wide_bf16, float_open, SG_PACK_BF16)

static void wide_rows(const float *x, size_t ldx, uint32_t nt, size_t k, uint32_t terms, uint16_t *out)
{
    const size_t step = terms * NUMBERS;
    for (uint32_t t = 0; t < 16; t++, x += ldx, out += 32)
        for (size_t c = 0; c < k; c += 32) {
            size_t n = t >= nt ? 0 : k - c < 32 ? k - c : 32;
            __mmask16 a = (__mmask16)(n >= 16 ? 0xffff : (1u << n) - 1u),
                      b = (__mmask16)(n >= 32  ? 0xffff
                                      : n > 16 ? (1u << (n - 16)) - 1u
                                               : 0);
            uint16_t *to = out + c / 32 * step;
            __m512 v0 = _mm512_maskz_loadu_ps(a, x + c), v1 = _mm512_maskz_loadu_ps(b, x + c + 16);
            _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(v1, v0));
            if (terms > 1)
                _mm512_storeu_si512(to + NUMBERS, (__m512i)_mm512_cvtne2ps_pbh(rest_of(v1), rest_of(v0)));
        }
}

void sg_kernels_amx(struct sg_kernels *k)
{
    void (*const open[SG_PACK_N])(const uint8_t *, size_t, uint32_t, uint16_t *) = {
        wide_q4,  wide_q4m, wide_q8,  wide_q4f, wide_q8f, wide_q8h,
        wide_q4k, wide_q6k, wide_f32, wide_f16, wide_bf16};
    k->isa = "amx";
    k->wide = 1;
    memcpy(k->wide_open, open, sizeof open);
    k->wide_rows = wide_rows;
    k->wide_begin = wide_begin;
    k->wide_mm = wide_mm;
    k->wide_end = wide_end;
}
#endif
