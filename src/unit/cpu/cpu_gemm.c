/* cpu_gemm.c: the loops over blocks of a product. A number of C is the sum of its parts of SG_GEMM_DEPTH elements, in ascending
 * order: it does not depend on the rows and columns beside it, nor on how they are divided.
 * SPDX-License-Identifier: MIT */
#include "unit/cpu/cpu_gemm.h"

static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

/* Rows [i0, i0 + rows) of C. A part of `inner` after the other, so that the packed rows of A stay in the cache for all
 * columns. */
static void rows_of(const struct sg_gemm_kernels *f, const struct sg_gemm *g, uint32_t i0, uint32_t rows, float *scratch)
{
    float *a = scratch, *b = scratch + SG_CPU_GEMM_A;
    uint32_t step = SG_GEMM_DEPTH * f->each;
    for (uint32_t k = 0; k < g->inner || (!g->inner && !k); k += step) {
        uint32_t depth = least(g->inner - k, step), n = (depth + f->each - 1) / f->each;
        if (g->kind == SG_GEMM_TN)
            f->pack_straight(g->a + k * g->lda + i0, g->lda, rows, depth, SG_GEMM_ROWS, a, SG_GEMM_ROWS * SG_GEMM_DEPTH);
        else f->pack_turned(g->a + i0 * g->lda + k, g->lda, rows, depth, SG_GEMM_ROWS, a, SG_GEMM_ROWS * SG_GEMM_DEPTH);
        for (uint32_t j = 0; j < g->cols; j += SG_GEMM_COLS) {
            uint32_t cols = least(g->cols - j, SG_GEMM_COLS);
            if (g->kind == SG_GEMM_NT) f->pack_turned(g->b + j * g->ldb + k, g->ldb, cols, depth, SG_GEMM_COLS, b, 0);
            else f->pack_straight(g->b + k * g->ldb + j, g->ldb, cols, depth, SG_GEMM_COLS, b, 0);
            for (uint32_t i = 0; i < rows; i += SG_GEMM_ROWS)
                f->block(a + (size_t)i * SG_GEMM_DEPTH, b, n, least(rows - i, SG_GEMM_ROWS), cols, g->c + (i0 + i) * g->ldc + j,
                         g->ldc, g->add || k);
        }
    }
}

void sg_cpu_gemm(const struct sg_gemm_kernels *k, const struct sg_gemm *g, float *scratch)
{
    for (uint32_t i = 0; i < g->rows; i += SG_CPU_GEMM_ROWS) rows_of(k, g, i, least(g->rows - i, SG_CPU_GEMM_ROWS), scratch);
}

/* A part of `inner` after the other: the part of a panel of B stays in the first cache for all rows, those of A and C in the
 * second for all columns. */
void sg_cpu_gemm_packed(const struct sg_gemm_kernels *k, const struct sg_gemm *g, const float *a, const float *b,
                        uint32_t elements)
{
    for (uint32_t e = 0; e < elements || (!elements && !e); e += SG_GEMM_DEPTH)
        for (uint32_t j = 0; j < g->cols; j += SG_GEMM_COLS)
            for (uint32_t i = 0; i < g->rows; i += SG_GEMM_ROWS)
                k->block(a + (size_t)i * elements + (size_t)e * SG_GEMM_ROWS, b + (size_t)j * elements + (size_t)e * SG_GEMM_COLS,
                         least(elements - e, SG_GEMM_DEPTH), least(g->rows - i, SG_GEMM_ROWS), least(g->cols - j, SG_GEMM_COLS),
                         g->c + i * g->ldc + j, g->ldc, g->add || e);
}
