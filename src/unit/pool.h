/* pool.h: the threads of one unit that computes on the processor. They run a list of stages; every item of a stage is done
 * exactly once, by whichever thread takes it, and a stage begins when all items of the one before are done. What an item computes
 * must not depend on the thread. No lock is taken while work is there: threads spin, then yield, and sleep only when no run has
 * come for some milliseconds. SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_POOL_H
#define SG_UNIT_POOL_H

#include <stdatomic.h>

#include "base/err.h"

struct sg_pool;

struct sg_job {
    const uint32_t *items;           /* [stages] items of each stage; 0 = nothing to do there */
    uint32_t stages;
    void (*work)(void *arg, uint32_t stage, uint32_t item, uint32_t thread);
    void *arg;
    const atomic_int *stopped;       /* NULL; 1 in it: what nobody has begun is left undone */
};

/* threads 0: one for each processor that this process may use. The caller of sg_pool_run is thread 0. */
segue_status sg_pool_open(struct sg_pool **out, uint32_t threads, segue_error *err);
void sg_pool_close(struct sg_pool *pool);
uint32_t sg_pool_threads(const struct sg_pool *pool);
/* Returns when all is done. One caller at a time. */
void sg_pool_run(struct sg_pool *pool, const struct sg_job *job);

#endif
