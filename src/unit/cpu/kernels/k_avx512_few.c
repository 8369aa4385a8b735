/* k_avx512_few.c: packed weights times up to SG_FEW_MAX rows (decoding), and float weights times up to
 * SG_TILE rows, for AVX-512 with VNNI. The quantised products are bound by reading the weights. So
 * several groups of 16 rows are processed side by side, which keeps several streams from memory in
 * flight, and each stream is prefetched AHEAD bytes, past the end of its group into the group that it
 * continues with.
 * SPDX-License-Identifier: MIT */
#if defined(__x86_64__)
#include "unit/cpu/kernels/k_avx512.h"

/* Prefetch distance in bytes. Measured on a Xeon of 2023 with two threads and 400 MB of weights, GB/s
 * for one row: plain reading 35.5; Q4_0 one group, 4 KB ahead 28.7; four groups 33.5 with 2 KB, 31.2
 * with 1 KB, 32.7 with 4 KB. Q8_0: 33.4; 36.2 of 37.7. */
enum { AHEAD = 2048 };
/* Rows whose sums fit the registers beside the integer sums. More rows keep their sums in memory (few_many). */
enum { FEW_SUMS = 8 };

/* `groups` adjacent groups x nt rows, block by block. Each output has the same order of additions for
 * any number of groups. */
INLINE void few_groups(const uint8_t *w, size_t k, uint32_t rows, const uint8_t *x, const int nt,
                       const int fine, float *out, size_t ldo, const enum sg_pack kind, const int groups)
{
    /* columns per block and per scale; parts of 32 columns in a block of 256; scales per 32 columns */
    const uint32_t block = sg_pack_block_cols(kind), run = sg_pack_scale_cols(kind), parts = block == 256 ? 8 : 1,
                   runs = block < 32 ? 1 : 32 / run;
    const size_t step = sg_pack_block_bytes(kind), group = k / block * step,
                 xstep = sg_tile_bytes(run, run, (uint32_t)fine, (size_t)nt);
    /* end of the first group; the others run in step with it */
    const uint8_t *w_end = w + group;
    __m512 acc[4][FEW_SUMS];
    UNROLL
    for (int g = 0; g < groups; g++) {
        UNROLL
        for (int t = 0; t < nt; t++) acc[g][t] = _mm512_setzero_ps();
    }
    for (; w < w_end; w += step) {
        for (uint32_t part = 0; part < parts; part++, x += runs * xstep) {
            /* at the end of this group its stream continues in the group after the next `groups - 1` */
            const uint8_t *next = w + AHEAD + part * (step / parts);
            next += next < w_end ? 0 : (size_t)(groups - 1) * group;
            UNROLL
            for (int g = 0; g < groups; g++) {
                __m512 d[2], m[2];
                __m512i v[8];
                /* every line of the block that follows AHEAD bytes later */
                UNROLL
                for (size_t l = 0; l < step / parts; l += 64)
                    _mm_prefetch((const char *)next + (size_t)g * group + l, _MM_HINT_T0);
                block_unpack(w + (size_t)g * group, part, kind, d, m, v);
                UNROLL
                for (uint32_t h = 0; h < runs; h++)
                    block_accumulate(v + run / 4 * h, d[h], m[h], x + h * xstep, nt, fine, (int)run / 4, acc[g]);
            }
        }
    }
    UNROLL
    for (int g = 0; g < groups; g++) {
        UNROLL
        for (int t = 0; t < nt; t++)
            _mm512_mask_storeu_ps(out + (size_t)t * ldo + 16 * g, tail_mask(rows - 16u * (uint32_t)g), acc[g][t]);
    }
}

/* All rows: as many groups side by side as fit, the rest one by one. */
INLINE void few_body(const uint8_t *w, size_t k, uint32_t rows, const uint8_t *x, const int nt,
                     const int fine, float *out, size_t ldo, const enum sg_pack kind)
{
    const int groups = nt == 1 ? 4 : nt <= SG_FEW ? 2 : 1; /* as many as the registers hold */
    const size_t group = k / sg_pack_block_cols(kind) * sg_pack_block_bytes(kind);
    const uint32_t wide = 16u * (unsigned)groups;
    uint32_t g = 0;
    /* a partial last group still counts as one of the set */
    for (; rows - g > wide - 16; g += rows - g < wide ? rows - g : wide)
        few_groups(w + g / 16 * group, k, rows - g, x, nt, fine, out + g, ldo, kind, groups);
    for (; g < rows; g += 16)
        few_groups(w + g / 16 * group, k, rows - g, x, nt, fine, out + g, ldo, kind, 1);
}

/* n rows, from row t on, of a tile of nt rows: block_accumulate with sums in memory and a distance of rows
 * that is no constant. */
INLINE void rows_accumulate(const __m512i *v, __m512 d, __m512 m, const uint8_t *x, size_t nt, size_t t, const int n,
                            const int fine, const int chunks, __m512 *acc)
{
    const uint8_t *scales = x + sg_tile_scales(4 * (uint32_t)chunks, (uint32_t)fine, nt) + 4 * t, *z = x + 4 * t;
    __m512i sum[FEW_SUMS];
    UNROLL
    for (int i = 0; i < n; i++) sum[i] = _mm512_setzero_si512();
    UNROLL
    for (int c = 0; c < chunks; c++, z += 4 * nt) {
        UNROLL
        for (int i = 0; i < n; i++) sum[i] = _mm512_dpbusd_epi32(sum[i], v[c], broadcast4(z + 4 * i));
    }
    if (fine) {
        UNROLL
        for (int i = 0; i < n; i++) sum[i] = _mm512_slli_epi32(sum[i], 8);
        UNROLL
        for (int c = 0; c < chunks; c++, z += 4 * nt) {
            UNROLL
            for (int i = 0; i < n; i++) sum[i] = _mm512_dpbusd_epi32(sum[i], v[c], broadcast4(z + 4 * i));
        }
    }
    UNROLL
    for (int i = 0; i < n; i++) {
        __m512 each = _mm512_mul_ps(d, _mm512_set1_ps(load_f32(scales + 4 * i)));
        __m512 a = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[i]), each, acc[t + (size_t)i]);
        acc[t + (size_t)i] = _mm512_fmadd_ps(m, _mm512_set1_ps(load_f32(scales + 4 * (nt + (size_t)i))), a);
    }
}

/* All rows of a tile. SG_FINE: two parts of constant height, `first` and as many or one less. first 0:
 * SG_COARSE, which no pass of few rows takes, row by row. */
INLINE void tile_accumulate(const __m512i *v, __m512 d, __m512 m, const uint8_t *x, size_t nt, const int first,
                            const int chunks, __m512 *acc)
{
    if (!first) {
        for (size_t t = 0; t < nt; t++) rows_accumulate(v, d, m, x, nt, t, 1, SG_COARSE, chunks, acc);
        return;
    }
    rows_accumulate(v, d, m, x, nt, 0, first, SG_FINE, chunks, acc);
    if (nt == 2 * (size_t)first) rows_accumulate(v, d, m, x, nt, (size_t)first, first, SG_FINE, chunks, acc);
    else rows_accumulate(v, d, m, x, nt, (size_t)first, first - 1, SG_FINE, chunks, acc);
}

/* One group x nt rows: each block is unpacked once for all of them. */
INLINE void many_group(const uint8_t *w, size_t k, uint32_t rows, const uint8_t *x, const size_t nt, const int first, float *out,
                       size_t ldo, const enum sg_pack kind)
{
    const uint32_t block = sg_pack_block_cols(kind), run = sg_pack_scale_cols(kind), parts = block == 256 ? 8 : 1,
                   runs = block < 32 ? 1 : 32 / run;
    const size_t step = sg_pack_block_bytes(kind), xstep = sg_tile_bytes(run, run, first ? SG_FINE : SG_COARSE, nt);
    __m512 acc[SG_FEW_MAX];
    for (size_t t = 0; t < nt; t++) acc[t] = _mm512_setzero_ps();
    for (const uint8_t *end = w + k / block * step; w < end; w += step) {
        for (uint32_t part = 0; part < parts; part++, x += runs * xstep) {
            __m512 d[2], m[2];
            __m512i v[8];
            UNROLL
            for (size_t l = 0; l < step / parts; l += 64)
                _mm_prefetch((const char *)w + AHEAD + part * (step / parts) + l, _MM_HINT_T0);
            block_unpack(w, part, kind, d, m, v);
            UNROLL
            for (uint32_t h = 0; h < runs; h++)
                tile_accumulate(v + run / 4 * h, d[h], m[h], x + h * xstep, nt, first, (int)run / 4, acc);
        }
    }
    for (size_t t = 0; t < nt; t++) _mm512_mask_storeu_ps(out + t * ldo, tail_mask(rows), acc[t]);
}

/* More than FEW_SUMS rows, group after group. */
INLINE void few_many(const uint8_t *w, size_t k, uint32_t rows, const uint8_t *x, uint32_t nt, uint32_t fine, float *out,
                     size_t ldo, const enum sg_pack kind)
{
    const size_t group = k / sg_pack_block_cols(kind) * sg_pack_block_bytes(kind);
    for (uint32_t g = 0; g < rows; g += 16, w += group) {
        switch (fine ? (nt + 1) / 2 : 0) {
        case 0: many_group(w, k, rows - g, x, nt, 0, out + g, ldo, kind); break;
        case 5: many_group(w, k, rows - g, x, nt, 5, out + g, ldo, kind); break;
        case 6: many_group(w, k, rows - g, x, nt, 6, out + g, ldo, kind); break;
        case 7: many_group(w, k, rows - g, x, nt, 7, out + g, ldo, kind); break;
        default: many_group(w, k, rows - g, x, nt, 8, out + g, ldo, kind);
        }
    }
}

#define BODY(n)                                                      \
    (fine ? few_body(w, k, rows, x, n, SG_FINE, out, ldo, KIND)      \
          : few_body(w, k, rows, x, n, SG_COARSE, out, ldo, KIND))
#define FEW(name)                                                            \
    MM(name)                                                                 \
    {                                                                        \
        if (nt > FEW_SUMS) few_many(w, k, rows, x, nt, fine, out, ldo, KIND); \
        else switch (nt) { CASES_8; }                                        \
    }
#define KIND SG_PACK_Q4
FEW(few_q4)
#undef KIND
#define KIND SG_PACK_Q4M
FEW(few_q4m)
#undef KIND
#define KIND SG_PACK_Q8
FEW(few_q8)
#undef KIND
#define KIND SG_PACK_Q4F
FEW(few_q4f)
#undef KIND
#define KIND SG_PACK_Q8F
FEW(few_q8f)
#undef KIND
#define KIND SG_PACK_Q8H
FEW(few_q8h)
#undef KIND
#define KIND SG_PACK_Q4K
FEW(few_q4k)
#undef KIND
#define KIND SG_PACK_Q6K
FEW(few_q6k)
#undef KIND
#undef FEW
#undef BODY

/* 16 float weights as fp32. */

INLINE __m512 weights16(const uint8_t *w, const enum sg_pack kind)
{
    if (kind == SG_PACK_F32) return _mm512_loadu_ps(w);
    __m256i h = _mm256_loadu_si256((const __m256i *)(const void *)w);
    if (kind == SG_PACK_F16) return _mm512_cvtph_ps(h);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

/* `groups` groups side by side: enough independent chains to hide the latency of the multiply-adds. */
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
            /* tiles find their weights in the cache */
            if (nt <= SG_FEW) _mm_prefetch((const char *)w + (size_t)g * k * step + AHEAD, _MM_HINT_T0);
            v[g] = weights16(w + (size_t)g * k * step, kind);
        }
        UNROLL
        for (int t = 0; t < nt; t++) { /* one activation at a time: with 24 sums no registers are left for 12 activations */
            __m512 one = _mm512_set1_ps(x[t]);
            UNROLL
            for (int g = 0; g < groups; g++) acc[g][t] = _mm512_fmadd_ps(v[g], one, acc[g][t]);
        }
    }
    UNROLL
    for (int g = 0; g < groups; g++) {
        UNROLL
        for (int t = 0; t < nt; t++)
            _mm512_mask_storeu_ps(out + (size_t)t * ldo + 16 * g, tail_mask(rows - 16u * (uint32_t)g), acc[g][t]);
    }
}

/* Decoding takes 4 groups side by side, fp32 tiles 2, so that the sums fit the registers. */
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
MM(few_f32) { switch (nt) { CASES_12; } }
#undef KIND
#define KIND SG_PACK_F16
MM(few_f16) { switch (nt) { CASES_12; } }
#undef KIND
#define KIND SG_PACK_BF16
MM(few_bf16) { switch (nt) { CASES_12; } }
#undef KIND
#undef BODY

/* f16 or bf16 weights -> fp32. */
INLINE void float_unpack(const uint8_t *w, size_t k, uint8_t *out, const enum sg_pack kind)
{
    for (size_t i = 0; i < k; i++) _mm512_storeu_ps(out + 64 * i, weights16(w + 32 * i, kind));
}
static void unpack_f16(const uint8_t *w, size_t k, uint8_t *out) { float_unpack(w, k, out, SG_PACK_F16); }
static void unpack_bf16(const uint8_t *w, size_t k, uint8_t *out) { float_unpack(w, k, out, SG_PACK_BF16); }

void sg_kernels_avx512_few(struct sg_kernels *k)
{
    sg_mm_fn *const few[SG_PACK_N] = {few_q4,  few_q4m, few_q8,  few_q4f, few_q8f,
                                      few_q8h, few_q4k, few_q6k, few_f32, few_f16, few_bf16};
    memcpy(k->few, few, sizeof few);
    k->few_rows = SG_FEW_MAX;
    k->open[SG_PACK_F16] = unpack_f16;
    k->open[SG_PACK_BF16] = unpack_bf16;
}
#endif
