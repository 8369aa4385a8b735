/* k_gemm_parts.h: what the products of training in fp32 (k_gemm.h) and in bf16 (k_avx512_bf16.c) share: the addition of a block
 * to C, and the transposition of 16 x 16 numbers.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CPU_K_GEMM_PARTS_H
#define SG_UNIT_CPU_K_GEMM_PARTS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "unit/cpu/kernels/kernels.h"

enum { GEMM_ROWS = SG_GEMM_ROWS, GEMM_COLS = SG_GEMM_COLS, GEMM_WIDE = 16 };

/* Numbers that are computed at once; compilers split it for narrower instruction sets. */
typedef float gemm_wide __attribute__((vector_size(GEMM_WIDE * sizeof(float))));

/* C of a block is read when its sums are complete: it is fetched before. */
static inline void gemm_prefetch(const float *c, size_t ldc, uint32_t rows, uint32_t cols)
{
    for (uint32_t i = 0; i < rows; i++)
        for (uint32_t j = 0; j < cols; j += GEMM_WIDE) __builtin_prefetch(c + i * ldc + j, 1, 3);
}

/* sums [rows][wides] to c, `cols` <= 16 * wides numbers of each row. */
static inline void gemm_store(const gemm_wide *sums, uint32_t wides, uint32_t rows, uint32_t cols, float *c, size_t ldc, int add)
{
    for (uint32_t i = 0; i < rows; i++)
        for (uint32_t w = 0; w * GEMM_WIDE < cols; w++) {
            float *to = c + i * ldc + w * GEMM_WIDE;
            uint32_t n = cols - w * GEMM_WIDE;
            gemm_wide sum = sums[i * wides + w], old;
            if (n >= GEMM_WIDE) {
                if (add) memcpy(&old, to, sizeof old), sum += old;
                memcpy(to, &sum, sizeof sum);
            } else
                for (uint32_t j = 0; j < n; j++) to[j] = (add ? to[j] : 0) + sum[j];
        }
}

/* One element of 16 lines to a panel of `width`. A panel of A has only 12 of them: whole, they reach into the next element,
 * which is written later. last 1: no element follows. */
static inline __attribute__((always_inline)) void gemm_put(const gemm_wide *element, uint32_t width, int last, void *out)
{
    if (width == GEMM_ROWS && last) memcpy(out, element, GEMM_ROWS * sizeof(float));
    else memcpy(out, element, sizeof *element);
}

/* 16 rows of 16 numbers of 4 bytes, transposed in four steps that interleave rows i and i + 8. */
static inline void gemm_turn(gemm_wide a[16])
{
    gemm_wide b[16];
#pragma GCC unroll 4
    for (int step = 0; step < 4; step++) {
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            b[2 * i] = __builtin_shufflevector(a[i], a[i + 8], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            b[2 * i + 1] = __builtin_shufflevector(a[i], a[i + 8], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
        }
        memcpy(a, b, sizeof b);
    }
}

#endif
