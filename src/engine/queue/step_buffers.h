/* step_buffers.h: the arrays of a run that several sessions share. They are kept, so that later runs of at most `cap` sessions do
 * not allocate. SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_STEP_BUFFERS_H
#define SG_ENGINE_STEP_BUFFERS_H

#include "engine/mask_thread.h"
#include "unit/unit.h"

struct sg_step {
    size_t cap;
    struct sg_span *spans; /* [cap], as everything below */
    struct sg_sampler *samplers;
    uint32_t *last; /* index of the last token of each span */
    uint32_t *done;
    int32_t *tokens;
    size_t *logprobs_n;
    segue_logprob *logprobs; /* [cap, SG_LOGPROBS_MAX] */
    float *logits;           /* [cap, vocab] */
    struct sg_mask_thread *masks; /* makes masks while a run computes; NULL: they are made before it. Borrowed */
    struct sg_arena arena;
};

/* Makes *step hold at least n sessions; a larger set of buffers replaces a smaller one. */
segue_status sg_step_reserve(struct sg_step **step, size_t vocab, size_t n, segue_error *err);
void sg_step_free(struct sg_step *step); /* NULL is allowed */

#endif
