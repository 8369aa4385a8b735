/* curun.h: a run as the two files that carry it out see it: cudarun.c (start, wait) and cudasteps.c (passes,
 * generation). SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_CURUN_H
#define SG_UNIT_CUDA_CURUN_H

#include "unit/cuda/cu.h"

struct sg_run {
    struct sg_run_base base;
    struct sg_program *program;
    struct sg_batch batch; /* its spans are our copy */
    struct sg_span *spans;
    struct sg_result result;    /* the caller's pointers */
    struct sg_result *report;   /* the caller's struct, filled by wait */
    struct sg_chooser *chooser; /* NULL: no span has a sampler */
    int32_t *history;           /* steps > 1: the sampler's history and what was chosen since */
    uint32_t *rows_done;        /* [spans_n] */
    uint64_t ns, launches, passes, state_bytes;
    segue_status status;
    segue_error error;
    pthread_t thread;
    int threaded, done;
    pthread_mutex_t lock; /* guards done */
    pthread_cond_t finished;
};

/* The whole batch. The GPU is current, the program's lane is ours. */
segue_status cu_run_all(struct sg_run *run);

#endif
