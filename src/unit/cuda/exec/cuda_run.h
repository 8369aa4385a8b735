/* cuda_run.h: a run: one batch on one lane (cuda_run.c). SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_RUN_H
#define SG_UNIT_CUDA_RUN_H

#include "unit/batch.h"
#include "unit/cuda/compile/program.h"

struct sg_run {
    struct sg_thread_run base; /* batch, spans, result, error */
    struct sg_program *program;
    struct cu_lane *lane;
    int counted;               /* 1: counted in program->runs */
    uint64_t launches, passes, state_bytes; /* statistics: kernels or graphs launched, passes, bytes of states read and written */
};

/* Operations of the unit's table. */
segue_status cu_start(struct sg_program *p, const struct sg_batch *b, struct sg_result *r,
                      struct sg_run **out, segue_error *err);
/* A run that prepare.c starts: it does not count as one of a caller. */
segue_status cu_start_uncounted(struct sg_program *p, const struct sg_batch *b, struct sg_result *r, struct sg_run **out,
                                segue_error *err);
segue_status cu_wait(struct sg_run *run, uint64_t timeout_ns, segue_error *err);

/* Executes the whole batch (exec_steps.c). The context is current and the lane locked by this run. */
segue_status cu_run_all(struct sg_run *run);

#endif
