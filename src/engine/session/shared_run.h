/* shared_run.h: runs that several sessions share, and the arrays for them. The owner keeps the arrays, so that later runs of at
 * most `cap` sessions do not allocate. SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_SHARED_RUN_H
#define SG_ENGINE_SHARED_RUN_H

#include "engine/mask_thread.h"
#include "engine/session/session.h"

/* The part of one session in a shared run. */
struct sg_share {
    struct segue_session *session;
    uint32_t tokens_n; /* pending tokens to compute, from 1 */
    uint32_t choose;   /* 1: these are all pending tokens, and the next one is chosen and appended */
    uint32_t alone;    /* out: 1 = the shared run failed and the session ran alone */
    int32_t token;     /* out: the chosen token; -1: none */
    segue_error error; /* out: status OK, END (the chosen token ends the sequence) or a failure with its text */
};

struct sg_step {
    size_t cap;
    struct sg_span *spans; /* [cap], as everything below */
    struct sg_sampler *samplers;
    struct sg_share *shares;
    uint32_t *index; /* free for the caller */
    uint32_t *last; /* index of the last token of each span */
    uint32_t *done;
    int32_t *tokens;
    size_t *logprobs_n;
    segue_logprob *logprobs; /* [cap, SG_LOGPROBS_MAX] */
    float *logits;           /* [cap, vocab] */
    struct sg_mask_thread *masks; /* makes masks while a run computes; NULL: they are made before it. Borrowed */
    struct sg_arena arena;
};

/* Makes *step hold at least n sessions of an engine; a larger set of buffers replaces a smaller one. */
segue_status sg_step_reserve(struct sg_step **step, const struct segue_engine *e, size_t n, segue_error *err);
void sg_step_free(struct sg_step *step); /* NULL is allowed */

/* The layer range on which the session's pending tokens can be computed together with others; NULL: it must run alone. masked:
 * also make its mask, and NULL where that fails; else the shared run makes it. */
const struct sg_layer_range *sg_shared_range(struct segue_session *s, int masked);
/* Computes t->shares[0 .. n), which are on this layer range, in one run. If it fails, each session tries alone, so that one
 * session's failure does not affect the others. *ns = duration of the shared run; 0: it failed. */
void sg_session_run_shared(struct sg_step *t, uint32_t n, const struct sg_layer_range *range, uint64_t *ns);

#endif
