/* cuda_run.h: a run as the files that carry it out see it: cuda_run.c (start, wait), exec_steps.c and exec_pass.c (passes,
 * generation). SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_CURUN_H
#define SG_UNIT_CUDA_CURUN_H

#include "unit/batch.h"
#include "unit/cuda/cu.h"

struct sg_run {
    struct sg_thread_run own;
    struct sg_program *program;
    struct cu_lane *lane;
    uint64_t launches, passes, state_bytes;
};

/* The whole batch. The GPU is current, the run's lane is ours. */
segue_status cu_run_all(struct sg_run *run);

#endif
