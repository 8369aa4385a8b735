/* ref_train.c: the loops and the matrix product of training, as plain as possible. Sums of a product are in ascending order.
 * SPDX-License-Identifier: MIT */
#include "unit/ref/ref.h"

struct each_work {
    void (*work)(void *arg, uint32_t item, uint32_t thread);
    void *arg;
    atomic_uint next_thread;
};

static void each_range(void *arg, uint32_t from, uint32_t to)
{
    struct each_work *w = arg;
    uint32_t thread = atomic_fetch_add(&w->next_thread, 1u);
    for (uint32_t i = from; i < to; i++) w->work(w->arg, i, thread);
}

static void each(const struct sg_train_math *m, uint32_t items, void (*work)(void *arg, uint32_t item, uint32_t thread),
        void *arg)
{
    struct each_work w = {.work = work, .arg = arg};
    ref_parallel(m->threads, items, each_range, &w);
}

static void gemm(const struct sg_train_math *m, const struct sg_gemm *g, uint32_t thread)
{
    (void)m;
    (void)thread;
    for (uint32_t i = 0; i < g->rows; i++) {
        float *c = g->c + i * g->ldc;
        if (g->kind == SG_GEMM_NT) {
            for (uint32_t j = 0; j < g->cols; j++)
                c[j] = (g->add ? c[j] : 0) + ref_dot(g->a + i * g->lda, g->b + j * g->ldb, g->inner);
            continue;
        }
        for (uint32_t j = 0; !g->add && j < g->cols; j++) c[j] = 0;
        for (uint32_t k = 0; k < g->inner; k++) {
            float a = g->kind == SG_GEMM_NN ? g->a[i * g->lda + k] : g->a[k * g->lda + i];
            const float *b = g->b + k * g->ldb;
            for (uint32_t j = 0; j < g->cols; j++) c[j] += a * b[j];
        }
    }
}

void ref_train_math(struct sg_unit *u, struct sg_train_math *out)
{
    *out = (struct sg_train_math){.unit = u, .threads = u->threads, .each = each, .gemm = gemm};
}
