/* follow.h: the plan that run, chat and serve follow when no unit is named. SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_FOLLOW_H
#define SEGUE_CLI_FOLLOW_H

#include <stdbool.h>
#include "plan/expected_task.h"

struct sg_unit_costs;
struct follow {
    char prefill[64], decode[64]; /* units; equal: no split */
    double ttft_ms, token_ms, total_ms;
    struct expected_task task;
    struct follow_costs *costs; /* owned */
};

/* The calibration of this machine for the model; NULL: there is none. Reads one small file. */
struct follow *follow_open(const segue_model *model);
/* The choice of the planner. false: it is not one or two whole units. */
bool follow_choose(struct follow *f, const struct expected_task *task);
/* One line: the choice, and the task that it was made for. */
void follow_say(const struct follow *f);
/* What a run on one unit took: prefill of n tokens after `start` ones, then tokens of token_ms at a depth; watts of both phases.
 * 0: not measured. */
struct follow_run {
    double start, n, prefill_ms, depth, token_ms, prefill_w, step_w;
};
/* Refine the calibration by a run. */
void follow_learn(struct follow *f, const struct follow_run *run);
/* Expected time of a token at a depth. */
double follow_expected_ms(const struct follow *f, double depth);
void follow_free(struct follow *f);

#endif
