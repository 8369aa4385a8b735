/* generate.h: the parts of a run that choose tokens, for units that choose on the host: one choice for a span, and the loop
 * state of a run of several steps (choose, publish, feed back).
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_GENERATE_H
#define SG_UNIT_GENERATE_H

#include "unit/unit.h"

/* Chooses the token after the last selected row of `span` and stores it, and the log-probabilities the caller asked for, in
 * entry `s` of the result. logits: [vocab] of that row. scratch NULL: the logits are overwritten; else [vocab] floats, and the
 * logits are unchanged afterwards. sampler: usually span->sampler. EFORMAT: a logit is NaN. */
segue_status sg_choose_for_span(struct sg_chooser *chooser, const struct sg_sampler *sampler, const struct sg_span *span,
                                uint32_t s, float *logits, float *scratch, struct sg_result *result, int32_t *token,
                                segue_error *err);

/* 1: this token ends a generation (a stop token that the sampler does not ignore). */
int sg_is_stop(const struct sg_sampler *s, int32_t token);

/* A run of steps > 1. It changes the run's copy of the span; sampler.history then refers to a buffer of the run. */
struct sg_generation {
    struct sg_span *span;
    struct sg_sampler sampler;       /* copy of the span's, whose history grows with each token */
    int32_t *history;                /* [sampler.history_n at begin + span->steps] */
    uint32_t published;              /* tokens in the ring */
    int32_t token;                   /* the last one; the input of the next step */
    uint32_t row;                    /* 0: `wanted` of a step, which is one row */
};

/* Copies the sampler and its history into `history`, which has capacity for span->steps more tokens. */
void sg_generation_begin(struct sg_generation *g, struct sg_span *span, int32_t *history);
/* Appends a token to the history and to the span's ring. 1: the generation is complete (stop token, or `steps` tokens). */
int sg_generation_publish(struct sg_generation *g, int32_t token);
/* The span becomes the next step: the last published token, one row, at the position after the previous rows. */
void sg_generation_next(struct sg_generation *g);

#endif
