/* k_gemm_parts.h: what the products of training in fp32 (k_gemm.h) and in bf16 (k_avx512_bf16.c) share: the size of a block of C
 * in registers, the addition of a block to C, the transposition of 16 x 16 numbers, and the loops over blocks.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CPU_K_GEMM_PARTS_H
#define SG_UNIT_CPU_K_GEMM_PARTS_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "unit/cpu/kernels/kernels.h"
#include "unit/train_math.h"

enum { GEMM_ROWS = 12, GEMM_COLS = 32, GEMM_ROWS_MAX = 264, GEMM_WIDE = 16 };
/* Elements of 4 bytes of the packed factors: of a part of `inner`, and of the factors as a whole. */
enum { GEMM_DEPTH = 192, GEMM_A = GEMM_ROWS_MAX * GEMM_DEPTH + 16, GEMM_B = GEMM_COLS * GEMM_DEPTH + 16 };
static_assert(GEMM_A + GEMM_B == SG_GEMM_SCRATCH, "SG_GEMM_SCRATCH holds both factors");

/* Numbers that are computed at once; compilers split it for narrower instruction sets. */
typedef float gemm_wide __attribute__((vector_size(GEMM_WIDE * sizeof(float))));

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

/* How numbers are packed and multiplied. An element has `each` numbers that are neighbours in `inner`. */
struct gemm_form {
    uint32_t each;
    /* [lines, depth] of x to out [elements][width], width >= lines. Writes up to 16 elements behind out. */
    void (*pack_turned)(const float *x, size_t ldx, uint32_t lines, uint32_t depth, uint32_t width, void *out);
    /* The same of [depth, lines]. */
    void (*pack_straight)(const float *x, size_t ldx, uint32_t lines, uint32_t depth, uint32_t width, void *out);
    /* One block of C, at most GEMM_ROWS x GEMM_COLS, of a [n][GEMM_ROWS] and b [n][GEMM_COLS]. */
    void (*block)(const void *a, const void *b, uint32_t n, uint32_t rows, uint32_t cols, float *c, size_t ldc, int add);
};

/* Rows [i0, i0 + rows) of C, at most GEMM_ROWS_MAX. A part of `inner` after the other, so that the packed rows of A stay in the
 * cache for all columns. */
static inline void gemm_rows(const struct sg_gemm *g, const struct gemm_form *form, uint32_t i0, uint32_t rows, float *scratch)
{
    float *a = scratch, *b = scratch + GEMM_A;
    uint32_t step = GEMM_DEPTH * form->each;
    for (uint32_t k = 0; k < g->inner || (!g->inner && !k); k += step) {
        uint32_t depth = g->inner - k < step ? g->inner - k : step, n = (depth + form->each - 1) / form->each;
        for (uint32_t i = 0; i < rows; i += GEMM_ROWS) {
            uint32_t lines = rows - i < GEMM_ROWS ? rows - i : GEMM_ROWS;
            float *to = a + (size_t)i * GEMM_DEPTH;
            if (g->kind == SG_GEMM_TN) form->pack_straight(g->a + k * g->lda + i0 + i, g->lda, lines, depth, GEMM_ROWS, to);
            else form->pack_turned(g->a + (i0 + i) * g->lda + k, g->lda, lines, depth, GEMM_ROWS, to);
        }
        for (uint32_t j = 0; j < g->cols; j += GEMM_COLS) {
            uint32_t cols = g->cols - j < GEMM_COLS ? g->cols - j : GEMM_COLS;
            if (g->kind == SG_GEMM_NT) form->pack_turned(g->b + j * g->ldb + k, g->ldb, cols, depth, GEMM_COLS, b);
            else form->pack_straight(g->b + k * g->ldb + j, g->ldb, cols, depth, GEMM_COLS, b);
            for (uint32_t i = 0; i < rows; i += GEMM_ROWS)
                form->block(a + (size_t)i * GEMM_DEPTH, b, n, rows - i < GEMM_ROWS ? rows - i : GEMM_ROWS, cols,
                            g->c + (i0 + i) * g->ldc + j, g->ldc, g->add || k);
        }
    }
}

static inline void gemm_all(const struct sg_gemm *g, const struct gemm_form *form, float *scratch)
{
    for (uint32_t i = 0; i < g->rows; i += GEMM_ROWS_MAX)
        gemm_rows(g, form, i, g->rows - i < GEMM_ROWS_MAX ? g->rows - i : GEMM_ROWS_MAX, scratch);
}

#endif
