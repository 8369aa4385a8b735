/* pool.h: a thread pool for units that compute on the CPU. A job is a list of stages with a barrier after each; every item of a
 * stage is computed exactly once, by any thread, and its result must not depend on the thread. No lock is taken during a job:
 * threads spin, then yield, and sleep only when no job has started for some milliseconds. SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_POOL_H
#define SG_UNIT_POOL_H

#include <stdatomic.h>

#include "base/err.h"

struct sg_pool;

struct sg_job {
    const uint32_t *items;           /* [stages] items of each stage; 0 = the stage is skipped */
    uint32_t stages;
    void (*work)(void *arg, uint32_t stage, uint32_t item, uint32_t thread);
    void *arg;
    const atomic_int *stopped;       /* NULL, or: 1 = items that no thread has started are skipped */
};

/* threads 0: one per CPU that this process may use. The caller of sg_pool_run is thread 0. EUNIT: a thread cannot be started. */
segue_status sg_pool_open(struct sg_pool **out, uint32_t threads, segue_error *err);
void sg_pool_close(struct sg_pool *pool);
uint32_t sg_pool_threads(const struct sg_pool *pool);
/* Returns when all stages are done. One caller at a time. */
void sg_pool_run(struct sg_pool *pool, const struct sg_job *job);

#endif
