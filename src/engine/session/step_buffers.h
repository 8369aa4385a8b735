/* step_buffers.h: the arrays of one step over several sessions. The first session of a step owns them and keeps them, so
 * that later steps of at most `cap` sessions do not allocate. SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_STEP_BUFFERS_H
#define SG_ENGINE_STEP_BUFFERS_H

#include "engine/session/session.h"

struct sg_step {
    size_t cap;
    struct sg_span *spans; /* [cap], as everything below */
    struct sg_sampler *samplers;
    uint32_t *index; /* of the session in the caller's list */
    uint32_t *done;
    int32_t *tokens;
    size_t *logprobs_n;
    segue_logprob *logprobs; /* [cap, SG_LOGPROBS_MAX] */
    float *logits;           /* [cap, vocab] */
    struct sg_arena arena;
};

/* Makes s->step hold at least n sessions; a larger set of buffers replaces a smaller one. */
segue_status sg_step_reserve(struct segue_session *s, size_t n, segue_error *err);
void sg_step_free(struct sg_step *step); /* NULL is allowed */

#endif
