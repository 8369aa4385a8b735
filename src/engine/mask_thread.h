/* mask_thread.h: a thread that makes the masks of a run while the run computes. One user at a time: add constraints, start, run,
 * wait. SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_MASK_THREAD_H
#define SG_ENGINE_MASK_THREAD_H

#include "engine/constraint.h"
#include "unit/mask_gate.h"

/* What sg_constraint_update is called with. */
struct sg_mask_job {
    struct sg_constraint *constraint;
    const int32_t *tokens;
    size_t tokens_n, input_n;
};

struct sg_mask_thread;
/* For runs of at most `cap` sequences. The thread is started with the first mask. EMEMORY. */
segue_status sg_mask_thread_new(struct sg_mask_thread **out, size_t cap, segue_error *err);
void sg_mask_thread_free(struct sg_mask_thread *m); /* NULL is allowed */

/* A mask of the next start. Its memory, constraint->allowed, may be read behind the gate. Where no mask can be made, it allows
 * all tokens, and constraint->error says why: the choice must then be dropped. 0: there are `cap` already. */
int sg_mask_thread_add(struct sg_mask_thread *m, const struct sg_mask_job *job);
/* The gate of the masks that were added. */
struct sg_mask_gate *sg_mask_thread_gate(struct sg_mask_thread *m);
/* Makes what was added; without a thread (none could be started) here. */
void sg_mask_thread_start(struct sg_mask_thread *m);
/* Until all masks are made. */
void sg_mask_thread_wait(struct sg_mask_thread *m);

#endif
