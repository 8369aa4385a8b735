/* pace.h: how many tokens of prompts may join a run so that running answers get their next token in time, from the measured
 * times of earlier runs. The time is known for each size by itself, in powers of two, since it is not proportional to the tokens:
 * a chunk has fixed costs, and units have other kernels for few rows. One mean for all sizes would hold chunks at the size at
 * which they once were slow. SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_PACE_H
#define SG_ENGINE_PACE_H

#include <stddef.h>
#include <stdint.h>

enum { SG_PACE_SIZES = 16 }; /* size k: 8 << k up to twice that; the first one also has less, the last one also more */

enum { SG_PACE_TARGET_NS = 50000000 }; /* time between tokens of an answer, unless the caller has another wish */

/* Zeroed: nothing is known. */
struct sg_pace {
    double answers_ns;      /* time of a run of running answers alone; 0: unknown */
    double prompt_token_ns; /* added by a token of a prompt in the last runs, whatever their size; 0: unknown */
    struct sg_pace_size {
        double token_ns; /* added to a run by one token of prompts, when they have so many together */
        size_t tokens;   /* of the last run beside answers that said so; 0: none */
        uint32_t runs;   /* that said so, up to a bound; few: a first use may have taken longer */
        uint32_t age;    /* runs since */
    } size[SG_PACE_SIZES];
    uint32_t last, same; /* size of the last run beside answers, and how many runs in turn had it */
};

/* What a run had in it. */
struct sg_pace_run {
    uint64_t ns;
    uint32_t answers, prompts; /* running answers; prompts of which the run computed a chunk */
    size_t prompt_tokens;      /* of these chunks together */
};

void sg_pace_learn(struct sg_pace *p, const struct sg_pace_run *run);

/* Tokens of prompts that may join running answers so that the run takes target_ns; at most max. Where that cannot be, as many as
 * take half the time of the answers, or twice the fixed costs of a chunk: shorter ones would be hardly faster. */
size_t sg_pace_budget(const struct sg_pace *p, uint64_t target_ns, size_t max);

#endif
