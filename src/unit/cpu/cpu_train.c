/* cpu_train.c: the loops and the matrix product of training on the unit's threads.
 * SPDX-License-Identifier: MIT */
#include "unit/cpu/cpu_train.h"
#include "unit/cpu/cpu_gemm.h"

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

static const struct sg_gemm_kernels *kernels_of(const struct sg_train_math *m)
{
    const struct sg_cpu_unit *u = (struct sg_cpu_unit *)(void *)m->unit;
    return u->products_bf16 ? u->k.gemm_bf16 : u->k.gemm;
}

static void gemm(const struct sg_train_math *m, const struct sg_gemm *g, uint32_t thread)
{
    sg_cpu_gemm(kernels_of(m), g, m->scratch + thread * m->scratch_n);
}

static void pack(const struct sg_train_math *m, const struct sg_gemm_pack *p)
{
    const struct sg_gemm_kernels *k = kernels_of(m);
    (p->straight ? k->pack_straight : k->pack_turned)(p->x, p->ldx, p->lines, p->depth, p->b ? SG_GEMM_COLS : SG_GEMM_ROWS, p->to,
                                                      p->panel);
}

static void gemm_packed(const struct sg_train_math *m, const struct sg_gemm *g, const float *a, const float *b, uint32_t elements)
{
    sg_cpu_gemm_packed(kernels_of(m), g, a, b, elements);
}

void sg_cpu_train_math(struct sg_unit *unit, struct sg_train_math *out)
{
    static const struct sg_gemm_shape single = {1, SG_GEMM_ROWS, SG_GEMM_COLS, SG_GEMM_DEPTH},
                                      pairs = {2, SG_GEMM_ROWS, SG_GEMM_COLS, SG_GEMM_DEPTH};
    struct sg_cpu_unit *u = (struct sg_cpu_unit *)(void *)unit;
    *out = (struct sg_train_math){.unit = unit, .threads = sg_pool_threads(u->pool), .each = each, .gemm = gemm,
                                  .scratch_n = SG_CPU_GEMM_SCRATCH, .shape = u->products_bf16 ? &pairs : &single, .pack = pack,
                                  .gemm_packed = gemm_packed};
}
