/* sample.h: how a token is chosen from logits: defined once, for every unit. fp32 logits, one stated order of
 * steps, one uniform number per token from Philox4x32-10 keyed by (seed, position). Units that choose on
 * their own agree with this bit for bit on the choice.
 *
 * Steps: bias; stop tokens forbidden (ignore_stops); repetition, frequency, presence penalties; DRY; [greedy
 * ends here: highest logit, lowest id on ties]; top-k; typical; top-p; min-p; temperature; draw by inverse
 * CDF over the survivors sorted by probability (descending, lowest id first on ties).
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_SAMPLE_H
#define SG_UNIT_SAMPLE_H

#include "base/err.h"

/* Everything a choice depends on beside the logits. Plain data, borrowed for the run. */
struct sg_sampler {
    segue_sampling p;     /* bias points to [bias_n] */
    const int32_t *stops; /* [stops_n] */
    size_t stops_n;
    const int32_t *history; /* [history_n] all tokens of the sequence so far, prompt included */
    size_t history_n;
    const uint8_t *breakers; /* [breakers_n] 1: a DRY sequence breaker; NULL = none */
    size_t breakers_n;
    uint32_t limit; /* tokens from here on are never chosen (rows beyond the tokenizer); 0 = no limit */
};

/* Room for one choice at a time over `vocab` logits. No allocation after new. */
struct sg_chooser;
segue_status sg_chooser_new(struct sg_chooser **out, uint32_t vocab, segue_error *err);
void sg_chooser_free(struct sg_chooser *c);

/* logits are changed in place by the steps. position: of the token being chosen. logprobs (may be NULL) gets
 * the chosen token first, then the p.logprobs - 1 most probable ones, log-softmax of the raw logits (before
 * any step); *logprobs_n = how many. EFORMAT: a NaN logit, or nothing left to choose. */
segue_status sg_choose(struct sg_chooser *c, const struct sg_sampler *s, float *logits, uint64_t position,
                       int32_t *token, segue_logprob *logprobs, size_t *logprobs_n, segue_error *err);

/* As sg_choose, but the logits are as before when it returns; room: [vocab]. Choosing the highest costs no
 * copy. */
segue_status sg_choose_kept(struct sg_chooser *c, const struct sg_sampler *s, float *logits, float *room,
                            uint64_t position, int32_t *token, segue_logprob *logprobs, size_t *logprobs_n,
                            segue_error *err);

/* The uniform number in [0, 1) of (seed, position): 24 bits of Philox4x32-10's first word. */
float sg_uniform(uint64_t seed, uint64_t position);
/* Philox4x32-10 itself; sg_uniform's counter is {position low, high, 0, 0}, its key {seed low, high}. */
void sg_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

#endif
