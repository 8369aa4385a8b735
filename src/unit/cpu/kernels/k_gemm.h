/* k_gemm.h: the product of fp32 matrices of training, for the instruction set of the file that includes it (through k_plain.h).
 *
 * Blocks of GEMM_ROWS x GEMM_COLS numbers of C are summed in registers. Both factors are packed before (kernels.h), so that the
 * inner loop reads contiguous numbers whatever the kind of the product.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CPU_K_GEMM_H
#define SG_UNIT_CPU_K_GEMM_H

#include "unit/cpu/kernels/k_gemm_parts.h"

#if defined(__AVX512F__)
enum { GEMM_STEP_ROWS = 12, GEMM_STEP_WIDES = 2 }; /* sums in registers: 24 of 32 */
#else
enum { GEMM_STEP_ROWS = 6, GEMM_STEP_WIDES = 1 };  /* of half the width: 12 of 16 */
#endif

/* Sums over depth of a [depth][GEMM_ROWS] times b [depth][GEMM_COLS]: of `rows` rows and 16 * `wides` columns, both constant. */
static inline __attribute__((always_inline)) void gemm_sums(const float *a, const float *b, uint32_t depth, const int rows,
                                                            const int wides, gemm_wide sums[][GEMM_STEP_WIDES])
{
    gemm_wide s[GEMM_STEP_ROWS][GEMM_STEP_WIDES];
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int w = 0; w < wides; w++) s[i][w] = (gemm_wide){0};
    for (uint32_t k = 0; k < depth; k++) {
        gemm_wide right[GEMM_STEP_WIDES];
#pragma GCC unroll 2
        for (int w = 0; w < wides; w++) memcpy(&right[w], b + (size_t)k * GEMM_COLS + w * GEMM_WIDE, sizeof right[w]);
#pragma GCC unroll 12
        for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
            for (int w = 0; w < wides; w++) s[i][w] += a[(size_t)k * GEMM_ROWS + i] * right[w];
    }
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int w = 0; w < wides; w++) sums[i][w] = s[i][w];
}

/* One block of C. Few rows, as of an adapter's rank, or few columns take a smaller one. */
static void gemm_block(const void *packed_a, const void *packed_b, uint32_t depth, uint32_t rows, uint32_t cols, float *c,
                       size_t ldc, int add)
{
    const float *a = packed_a, *b = packed_b;
    const uint32_t step = GEMM_STEP_WIDES * GEMM_WIDE;
    gemm_wide sums[GEMM_STEP_ROWS][GEMM_STEP_WIDES];
    gemm_prefetch(c, ldc, rows, cols);
    for (uint32_t i = 0; i < rows; i += GEMM_STEP_ROWS)
        for (uint32_t j = 0; j < cols; j += step) {
            uint32_t n = rows - i < GEMM_STEP_ROWS ? rows - i : GEMM_STEP_ROWS, m = cols - j < step ? cols - j : step;
            if (m <= GEMM_WIDE && GEMM_STEP_WIDES > 1) gemm_sums(a + i, b + j, depth, GEMM_STEP_ROWS, 1, sums);
            else if (3 * n > 2 * GEMM_STEP_ROWS) gemm_sums(a + i, b + j, depth, GEMM_STEP_ROWS, GEMM_STEP_WIDES, sums);
            else if (3 * n > GEMM_STEP_ROWS) gemm_sums(a + i, b + j, depth, GEMM_STEP_ROWS * 2 / 3, GEMM_STEP_WIDES, sums);
            else gemm_sums(a + i, b + j, depth, GEMM_STEP_ROWS / 3, GEMM_STEP_WIDES, sums);
            gemm_store(&sums[0][0], GEMM_STEP_WIDES, n, m, c + i * ldc + j, ldc, add);
        }
}

/* 16 rows of 16 numbers of x, transposed: [16] elements. */
static inline void gemm_turn_rows(const float *x, size_t ldx, uint32_t rows, gemm_wide a[16])
{
    for (uint32_t i = 0; i < 16; i++) {
        a[i] = (gemm_wide){0};
        if (i < rows) memcpy(&a[i], x + i * ldx, sizeof a[i]);
    }
    gemm_turn(a);
}

/* Numbers [k, k + n), n < 16, of up to 16 rows. */
static inline void gemm_turn_tail(const float *x, size_t ldx, uint32_t rows, uint32_t n, gemm_wide a[16])
{
    for (uint32_t d = 0; d < n; d++)
        for (uint32_t r = 0; r < 16; r++) a[d][r] = r < rows ? x[r * ldx + d] : 0;
}

static inline __attribute__((always_inline)) void gemm_turned(const float *x, size_t ldx, uint32_t lines, uint32_t depth,
                                                              const uint32_t width, float *out, size_t panel)
{
    for (uint32_t at = 0; at < lines; at += width, out += panel)
        for (uint32_t i = 0; i < width; i += 16)
            for (uint32_t k = 0; k < depth; k += 16) {
                uint32_t left = lines - at < width ? lines - at : width, rows = left < i ? 0 : left - i < 16 ? left - i : 16;
                uint32_t n = depth - k < 16 ? depth - k : 16;
                const float *from = x + (at + i) * ldx + k;
                gemm_wide a[16];
                if (n == 16) gemm_turn_rows(from, ldx, rows, a);
                else gemm_turn_tail(from, ldx, rows, n, a);
                for (uint32_t d = 0; d < n; d++) gemm_put(&a[d], width, k + d + 1 == depth, out + (size_t)(k + d) * width + i);
            }
}

static inline __attribute__((always_inline)) void gemm_straight(const float *x, size_t ldx, uint32_t lines, uint32_t depth,
                                                                const uint32_t width, float *out, size_t panel)
{
    for (uint32_t k = 0; k < depth; k++) {
        float *to = out + (size_t)k * width;
        for (uint32_t at = 0; at < lines; at += width, to += panel)
            for (uint32_t i = 0; i < width; i += 16) {
                uint32_t n = at + i < lines ? lines - at - i : 0; /* those beyond the panel are overwritten later */
                gemm_wide a = {0};
                if (n >= 16) memcpy(&a, x + k * ldx + at + i, sizeof a);
                else
                    for (uint32_t j = 0; j < n; j++) a[j] = x[k * ldx + at + i + j];
                gemm_put(&a, width, k + 1 == depth, to + i);
            }
    }
}

static void gemm_pack_turned(const float *x, size_t ldx, uint32_t lines, uint32_t depth, uint32_t width, void *out, size_t panel)
{
    if (width == GEMM_ROWS) gemm_turned(x, ldx, lines, depth, GEMM_ROWS, out, panel);
    else gemm_turned(x, ldx, lines, depth, GEMM_COLS, out, panel);
}

static void gemm_pack_straight(const float *x, size_t ldx, uint32_t lines, uint32_t depth, uint32_t width, void *out,
                               size_t panel)
{
    if (width == GEMM_ROWS) gemm_straight(x, ldx, lines, depth, GEMM_ROWS, out, panel);
    else gemm_straight(x, ldx, lines, depth, GEMM_COLS, out, panel);
}

static const struct sg_gemm_kernels plain_gemm = {1, gemm_pack_turned, gemm_pack_straight, gemm_block};

#endif
