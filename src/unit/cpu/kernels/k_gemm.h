/* k_gemm.h: the product of fp32 matrices of training, for the instruction set of the file that includes it (through k_plain.h).
 *
 * Blocks of GEMM_ROWS x GEMM_COLS numbers of C are summed in registers, over GEMM_DEPTH numbers of `inner` at a time. Both
 * factors are copied before: A as [depth][GEMM_ROWS], B as [depth][GEMM_COLS], zeros beyond the edge, so that the inner loop
 * reads contiguous numbers whatever the kind of the product. A number of C is the sum of its GEMM_DEPTH-long parts, each in
 * ascending order: it does not depend on the rows and columns beside it.
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

/* One block of C, at most GEMM_ROWS x GEMM_COLS. Few rows, as of an adapter's rank, or few columns take a smaller one. */
static void gemm_block(const void *packed_a, const void *packed_b, uint32_t depth, uint32_t rows, uint32_t cols, float *c,
                       size_t ldc, int add)
{
    const float *a = packed_a, *b = packed_b;
    const uint32_t step = GEMM_STEP_WIDES * GEMM_WIDE;
    gemm_wide sums[GEMM_STEP_ROWS][GEMM_STEP_WIDES];
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

/* 16 rows of 16 numbers of x, transposed. */
static inline void gemm_turn_rows(const float *x, size_t ldx, uint32_t rows, float *out, size_t ldo)
{
    gemm_wide a[16];
    for (uint32_t i = 0; i < 16; i++) {
        a[i] = (gemm_wide){0};
        if (i < rows) memcpy(&a[i], x + i * ldx, sizeof a[i]);
    }
    gemm_turn(a);
    for (uint32_t i = 0; i < 16; i++) memcpy(out + i * ldo, &a[i], sizeof a[i]); /* behind ldo the next row overwrites it */
}

static void gemm_pack_turned(const float *x, size_t ldx, uint32_t lines, uint32_t depth, uint32_t width, void *packed)
{
    float *out = packed;
    for (uint32_t i = 0; i < width; i += 16)
        for (uint32_t k = 0; k < depth; k += 16) {
            uint32_t rows = lines < i ? 0 : lines - i < 16 ? lines - i : 16;
            if (depth - k >= 16) {
                gemm_turn_rows(x + i * ldx + k, ldx, rows, out + (size_t)k * width + i, width);
                continue;
            }
            for (uint32_t d = k; d < depth; d++)
                for (uint32_t r = 0; r < 16 && i + r < width; r++)
                    out[(size_t)d * width + i + r] = r < rows ? x[(i + r) * ldx + d] : 0;
        }
}

static void gemm_pack_straight(const float *x, size_t ldx, uint32_t lines, uint32_t depth, uint32_t width, void *packed)
{
    float *out = packed;
    for (uint32_t k = 0; k < depth; k++)
        for (uint32_t i = 0; i < width; i++) out[(size_t)k * width + i] = i < lines ? x[k * ldx + i] : 0;
}

static void plain_gemm(const struct sg_gemm *g, float *scratch)
{
    static const struct gemm_form form = {1, gemm_pack_turned, gemm_pack_straight, gemm_block};
    gemm_all(g, &form, scratch);
}

#endif
