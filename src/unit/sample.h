/* sample.h: the choice of a token from fp32 logits, defined once for all units. A unit that chooses on the device chooses the
 * same tokens. Randomness: one uniform number per token, from Philox4x32-10 keyed by seed and position, so the same seed gives
 * the same output.
 *
 * Order of steps: bias; mask stop tokens (ignore_stops) and tokens that are not allowed; repetition, frequency and presence
 * penalties; DRY; greedy (temperature <= 0) ends here with the highest logit, lowest id on ties; top-k; typical; top-p; min-p;
 * temperature; inverse CDF over the remaining tokens in descending order of probability, lowest id first on ties.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_SAMPLE_H
#define SG_UNIT_SAMPLE_H

#include "base/err.h"

enum { SG_LOGPROBS_MAX = 21 }; /* entries of one choice: the chosen token and up to 20 others (segue_sampling.logprobs) */

struct sg_mask_gate;
/* Everything that a choice depends on except the logits. Plain data; the pointers are borrowed for the run. */
struct sg_sampler {
    segue_sampling p;     /* bias points to [bias_n] */
    const int32_t *stops; /* [stops_n] */
    size_t stops_n;
    const int32_t *history; /* [history_n] all tokens of the sequence so far, prompt included */
    size_t history_n;
    const uint8_t *breakers; /* [breakers_n] 1: a DRY sequence breaker; NULL = none */
    size_t breakers_n;
    uint32_t limit; /* ids from here on are never chosen (padding of the embedding table); 0 = no limit */
    uint32_t allowed_n; /* tokens that `allowed` covers; the others are not allowed */
    const uint32_t *allowed; /* NULL: all tokens, or [(allowed_n + 31) / 32]: bit t % 32 of word t / 32 is 1: token t may be
                              * chosen. It applies to every token of a run, so a grammar sets steps to 1 */
    struct sg_mask_gate *gate; /* NULL, or: `allowed` may be read behind it (mask_gate.h) */
};

/* Scratch memory for one choice at a time over `vocab` logits, about 40 bytes each. A choice allocates nothing. */
struct sg_chooser;
segue_status sg_chooser_new(struct sg_chooser **out, uint32_t vocab, segue_error *err);
void sg_chooser_free(struct sg_chooser *c);

/* Overwrites logits [vocab]. position: of the token that is chosen. logprobs (may be NULL): [SG_LOGPROBS_MAX], the chosen token
 * first, then the p.logprobs - 1 most probable ones, log-softmax of the logits before any step; *logprobs_n = their number.
 * EFORMAT: a logit is NaN or infinite, or all tokens are masked. */
segue_status sg_choose(struct sg_chooser *c, const struct sg_sampler *s, float *logits, uint64_t position,
                       int32_t *token, segue_logprob *logprobs, size_t *logprobs_n, segue_error *err);

/* Like sg_choose, but leaves the logits unchanged. scratch: [vocab]; greedy choices do not use it. */
segue_status sg_choose_kept(struct sg_chooser *c, const struct sg_sampler *s, float *logits, float *scratch,
                            uint64_t position, int32_t *token, segue_logprob *logprobs, size_t *logprobs_n,
                            segue_error *err);

/* EFORMAT: a logit is NaN or +infinity. -infinity is a masked token. */
segue_status sg_logits_check(const float *logits, uint32_t n, segue_error *err);

/* EFORMAT: all tokens are masked. For units that choose on a device. */
segue_status sg_choice_all_masked(segue_error *err);
/* Log-probability of a token from its logit, the highest logit, and the sum of all weights (sample_math.h). */
float sg_logprob_of(float logit, float top, uint64_t sum);

/* The uniform number in [0, 1) of (seed, position): 24 bits of Philox4x32-10's first word. */
float sg_uniform(uint64_t seed, uint64_t position);
/* Philox4x32-10 itself; sg_uniform's counter is {position low, high, 0, 0}, its key {seed low, high}. */
void sg_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

#endif
