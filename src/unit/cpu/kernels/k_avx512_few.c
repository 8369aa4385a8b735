/* k_avx512_few.c: packed weights times few rows, for AVX-512 with VNNI: bound by reading the weights. Several
 * groups of 16 rows run side by side, so that several streams are on their way from memory; each is fetched
 * AHEAD bytes early, over the end of its group into the group that follows it.
 * SPDX-License-Identifier: MIT */
#if defined(__x86_64__)
#include "unit/cpu/kernels/k_avx512.h"

/* Measured on a Xeon of 2023, two threads, 400 MB, GB/s of one row: reading alone 35.5; Q4_0 one group 4 KB
 * ahead 28.7, four 33.5 with 2 KB, 31.2 with 1 KB, 32.7 with 4 KB; Q8_0 33.4 and 36.2 of 37.7. */
enum { AHEAD = 2048 };

/* --- quantised --- */

/* `groups` groups side by side. */
INLINE void few_groups(const uint8_t *w, size_t k, uint32_t rows, const uint8_t *x, const int nt,
                       const int fine, float *out, size_t ldo, const enum sg_pack kind, const int groups)
{
    const uint32_t block = sg_pack_block(kind), run = sg_pack_run(kind), parts = block == 256 ? 8 : 1,
                   runs = block < 32 ? 1 : 32 / run;
    const size_t step = sg_pack_block_bytes(kind), group = k / block * step,
                 xstep = sg_tile_bytes(run, run, (uint32_t)fine, (size_t)nt);
    const uint8_t *w_end = w + group;
    __m512 acc[4][SG_FEW];
    UNROLL
    for (int g = 0; g < groups; g++) {
        UNROLL
        for (int t = 0; t < nt; t++) acc[g][t] = _mm512_setzero_ps();
    }
    for (; w < w_end; w += step) {
        for (uint32_t part = 0; part < parts; part++, x += runs * xstep) {
            /* where this group ends, its successor among the next `groups` begins */
            const uint8_t *next = w + AHEAD + part * (step / parts);
            next += next < w_end ? 0 : (size_t)(groups - 1) * group;
            UNROLL
            for (int g = 0; g < groups; g++) {
                __m512 d[2], m[2];
                __m512i v[8];
                UNROLL
                for (size_t l = 0; l < step / parts; l += 64)
                    _mm_prefetch((const char *)next + (size_t)g * group + l, _MM_HINT_T0);
                block_open(w + (size_t)g * group, part, kind, d, m, v);
                UNROLL
                for (uint32_t h = 0; h < runs; h++)
                    run_add(v + run / 4 * h, d[h], m[h], x + h * xstep, nt, fine, (int)run / 4, acc[g]);
            }
        }
    }
    UNROLL
    for (int g = 0; g < groups; g++) {
        UNROLL
        for (int t = 0; t < nt; t++)
            _mm512_mask_storeu_ps(out + (size_t)t * ldo + 16 * g, tail(rows - 16u * (uint32_t)g), acc[g][t]);
    }
}

INLINE void few_body(const uint8_t *w, size_t k, uint32_t rows, const uint8_t *x, const int nt,
                     const int fine, float *out, size_t ldo, const enum sg_pack kind)
{
    const int groups = nt == 1 ? 4 : 2;      /* as many as registers hold */
    const size_t group = k / sg_pack_block(kind) * sg_pack_block_bytes(kind);
    const uint32_t wide = 16u * (unsigned)groups;
    uint32_t g = 0;
    for (; rows - g > wide - 16; g += rows - g < wide ? rows - g : wide)
        few_groups(w + g / 16 * group, k, rows - g, x, nt, fine, out + g, ldo, kind, groups);
    for (; g < rows; g += 16)
        few_groups(w + g / 16 * group, k, rows - g, x, nt, fine, out + g, ldo, kind, 1);
}

#define BODY(n)                                                      \
    (fine ? few_body(w, k, rows, x, n, SG_FINE, out, ldo, KIND)      \
          : few_body(w, k, rows, x, n, SG_COARSE, out, ldo, KIND))
#define KIND SG_PACK_Q4
MM(few_q4) { switch (nt) { FOUR; } }
#undef KIND
#define KIND SG_PACK_Q4M
MM(few_q4m) { switch (nt) { FOUR; } }
#undef KIND
#define KIND SG_PACK_Q8
MM(few_q8) { switch (nt) { FOUR; } }
#undef KIND
#define KIND SG_PACK_Q4F
MM(few_q4f) { switch (nt) { FOUR; } }
#undef KIND
#define KIND SG_PACK_Q8F
MM(few_q8f) { switch (nt) { FOUR; } }
#undef KIND
#define KIND SG_PACK_Q8H
MM(few_q8h) { switch (nt) { FOUR; } }
#undef KIND
#define KIND SG_PACK_Q4K
MM(few_q4k) { switch (nt) { FOUR; } }
#undef KIND
#define KIND SG_PACK_Q6K
MM(few_q6k) { switch (nt) { FOUR; } }
#undef KIND
#undef BODY

/* --- float weights --- */

INLINE __m512 weights16(const uint8_t *w, const enum sg_pack kind)
{
    if (kind == SG_PACK_F32) return _mm512_loadu_ps(w);
    __m256i h = _mm256_loadu_si256((const __m256i *)(const void *)w);
    if (kind == SG_PACK_F16) return _mm512_cvtph_ps(h);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

/* `groups` groups of 16 rows side by side: enough chains to hide the latency of the additions. */
INLINE void float_groups(const uint8_t *w, size_t k, uint32_t rows, const float *x, const int nt, float *out,
                         size_t ldo, const enum sg_pack kind, const int groups)
{
    const size_t step = sg_pack_block_bytes(kind);
    __m512 acc[4][SG_TILE];
    UNROLL
    for (int g = 0; g < groups; g++) {
        UNROLL
        for (int t = 0; t < nt; t++) acc[g][t] = _mm512_setzero_ps();
    }
    for (size_t i = 0; i < k; i++, x += nt, w += step) {
        __m512 v[4];
        UNROLL
        for (int g = 0; g < groups; g++) {
            if (nt <= SG_FEW) _mm_prefetch((const char *)w + (size_t)g * k * step + AHEAD, _MM_HINT_T0);
            v[g] = weights16(w + (size_t)g * k * step, kind);
        }
        UNROLL
        for (int t = 0; t < nt; t++) { /* row by row: with 24 sums there is no place for 12 activations */
            __m512 one = _mm512_set1_ps(x[t]);
            UNROLL
            for (int g = 0; g < groups; g++) acc[g][t] = _mm512_fmadd_ps(v[g], one, acc[g][t]);
        }
    }
    UNROLL
    for (int g = 0; g < groups; g++) {
        UNROLL
        for (int t = 0; t < nt; t++)
            _mm512_mask_storeu_ps(out + (size_t)t * ldo + 16 * g, tail(rows - 16u * (uint32_t)g), acc[g][t]);
    }
}

INLINE void float_body(const uint8_t *w, size_t k, uint32_t rows, const float *x, const int nt, float *out,
                       size_t ldo, const enum sg_pack kind)
{
    const size_t step = k * sg_pack_block_bytes(kind);
    uint32_t g = 0;
    for (; nt <= SG_FEW && rows - g > 48; g += rows - g < 64 ? rows - g : 64)
        float_groups(w + g / 16 * step, k, rows - g, x, nt, out + g, ldo, kind, 4);
    for (; nt > SG_FEW && kind == SG_PACK_F32 && rows - g > 16; g += rows - g < 32 ? rows - g : 32)
        float_groups(w + g / 16 * step, k, rows - g, x, nt, out + g, ldo, kind, 2);
    for (; g < rows; g += 16) float_groups(w + g / 16 * step, k, rows - g, x, nt, out + g, ldo, kind, 1);
}
#define BODY(n) ((void)fine, float_body(w, k, rows, x, n, out, ldo, KIND))
#define KIND SG_PACK_F32
MM(few_f32) { switch (nt) { TWELVE; } }
#undef KIND
#define KIND SG_PACK_F16
MM(few_f16) { switch (nt) { TWELVE; } }
#undef KIND
#define KIND SG_PACK_BF16
MM(few_bf16) { switch (nt) { TWELVE; } }
#undef KIND
#undef BODY

INLINE void float_open(const uint8_t *w, size_t k, uint8_t *out, const enum sg_pack kind)
{
    for (size_t i = 0; i < k; i++) _mm512_storeu_ps(out + 64 * i, weights16(w + 32 * i, kind));
}
static void open_f16(const uint8_t *w, size_t k, uint8_t *out) { float_open(w, k, out, SG_PACK_F16); }
static void open_bf16(const uint8_t *w, size_t k, uint8_t *out) { float_open(w, k, out, SG_PACK_BF16); }

void sg_kernels_avx512_few(struct sg_kernels *k)
{
    sg_mm_fn *const few[SG_PACK_N] = {few_q4,  few_q4m, few_q8,  few_q4f, few_q8f,
                                      few_q8h, few_q4k, few_q6k, few_f32, few_f16, few_bf16};
    memcpy(k->few, few, sizeof few);
    k->open[SG_PACK_F16] = open_f16;
    k->open[SG_PACK_BF16] = open_bf16;
}
#endif
