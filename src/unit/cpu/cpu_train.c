/* cpu_train.c: the loops and the matrix product of training on the unit's threads. A product is computed in blocks of ROWS and
 * COLS that the compiler keeps in registers; sums are in ascending order.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "unit/cpu/cpu_train.h"

struct each_items { void (*work)(void *arg, uint32_t item, uint32_t thread); void *arg; };

static void each_item(void *arg, uint32_t stage, uint32_t item, uint32_t thread)
{
    (void)stage;
    const struct each_items *w = arg;
    w->work(w->arg, item, thread);
}

/* The pool executes one job at a time, as for runs. */
static void each(const struct sg_train_math *m, uint32_t items,
                 void (*work)(void *arg, uint32_t item, uint32_t thread), void *arg)
{
    struct sg_cpu_unit *u = (struct sg_cpu_unit *)(void *)m->unit;
    struct each_items w = {work, arg};
    struct sg_job job = {.items = &items, .stages = 1, .work = each_item, .arg = &w};
    pthread_mutex_lock(&u->work);
    sg_pool_run(u->pool, &job);
    pthread_mutex_unlock(&u->work);
}

enum { ROWS = 4, COLS = 32, DEPTH = 256, WIDE = 16 };
/* Numbers that are computed at once; compilers split it for narrower instruction sets. */
typedef float wide __attribute__((vector_size(WIDE * sizeof(float))));

/* B [DEPTH, COLS] of one panel, in the order of the inner loop; columns beyond the edge are 0. */
static void panel(const struct sg_gemm *g, uint32_t k0, uint32_t depth, uint32_t j0, uint32_t cols, float *out)
{
    for (uint32_t k = 0; k < depth; k++)
        for (uint32_t j = 0; j < COLS; j++)
            out[k * COLS + j] = j >= cols ? 0
                                : g->kind == SG_GEMM_NT ? g->b[(j0 + j) * g->ldb + k0 + k] : g->b[(k0 + k) * g->ldb + j0 + j];
}

/* One clone per instruction set. They give the same bits: products and sums are rounded apart. */
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CLONES
#endif

CLONES static void block(const struct sg_gemm *g, uint32_t i0, uint32_t rows, uint32_t k0, uint32_t depth, const float *b,
                         float *c, uint32_t cols, int add)
{
    wide sums[ROWS][COLS / WIDE] = {{{0}}};
    const float *a[ROWS];
    size_t step = g->kind == SG_GEMM_TN ? g->lda : 1;
    for (uint32_t i = 0; i < ROWS; i++) {
        uint32_t row = i0 + (i < rows ? i : 0);
        a[i] = g->kind == SG_GEMM_TN ? g->a + k0 * g->lda + row : g->a + row * g->lda + k0;
    }
    for (uint32_t k = 0; k < depth; k++) {
        wide left, right;
        memcpy(&left, b + k * COLS, sizeof left);
        memcpy(&right, b + k * COLS + WIDE, sizeof right);
        for (uint32_t i = 0; i < ROWS; i++) {
            float x = a[i][k * step];
            sums[i][0] += x * left;
            sums[i][1] += x * right;
        }
    }
    for (uint32_t i = 0; i < rows; i++)
        for (uint32_t j = 0; j < cols; j++)
            c[i * g->ldc + j] = (add ? c[i * g->ldc + j] : 0) + sums[i][j / WIDE][j % WIDE];
}

static void gemm(const struct sg_train_math *m, const struct sg_gemm *g)
{
    (void)m;
    float b[DEPTH * COLS];
    for (uint32_t k = 0; k < g->inner || (!g->inner && !k); k += DEPTH) {
        uint32_t depth = g->inner - k < DEPTH ? g->inner - k : DEPTH;
        for (uint32_t j = 0; j < g->cols; j += COLS) {
            uint32_t cols = g->cols - j < COLS ? g->cols - j : COLS;
            panel(g, k, depth, j, cols, b);
            for (uint32_t i = 0; i < g->rows; i += ROWS)
                block(g, i, g->rows - i < ROWS ? g->rows - i : ROWS, k, depth, b, g->c + i * g->ldc + j, cols, g->add || k);
        }
    }
}

void sg_cpu_train_math(struct sg_unit *unit, struct sg_train_math *out)
{
    struct sg_cpu_unit *u = (struct sg_cpu_unit *)(void *)unit;
    *out = (struct sg_train_math){.unit = unit, .threads = sg_pool_threads(u->pool), .each = each, .gemm = gemm};
}
