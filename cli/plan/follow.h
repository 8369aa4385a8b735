/* follow.h: the plan that run, chat and serve follow when no unit is named. SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_FOLLOW_H
#define SEGUE_CLI_FOLLOW_H

#include "segue.h"

struct sg_unit_costs;
struct follow {
    char prefill[64], decode[64]; /* units; equal: no split */
    double ttft_ms, token_ms, total_ms;
    double prompt, output;      /* tokens that were assumed */
    struct follow_costs *costs; /* owned */
};

/* The choice of the planner for the model by the calibration of this machine; NULL: there is no calibration, or its choice is not
 * one or two whole units. Reads one small file. */
struct follow *follow_choose(const segue_model *model, double prompt, double output);
/* What a run on one unit took: prefill of n tokens, then tokens of token_ms at a depth; watts of both phases. 0: not measured. */
struct follow_run {
    double n, prefill_ms, depth, token_ms, prefill_w, step_w;
};
/* Refine the calibration by a run. */
void follow_learn(struct follow *f, const struct follow_run *run);
/* Expected time of a token at a depth. */
double follow_expected_ms(const struct follow *f, double depth);
void follow_free(struct follow *f);

#endif
