/* follow.h: the plan that run, chat and serve follow when no unit is named, and what became of it.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_FOLLOW_H
#define SEGUE_CLI_FOLLOW_H

#include <stdbool.h>
#include "engine/planner/options.h"
#include "plan/expected_task.h"

enum { FOLLOW_PROVED = 3, FOLLOW_WHY = 256 };

/* One figure of a run: what the plan says for the tokens that were really computed, and what was measured. */
struct follow_proof {
    const char *name, *key, *unit; /* in words, in JSON, of measure */
    struct sg_figure expected;
    double measured;
};

struct follow {
    char prefill[160], decode[160]; /* as of sg_option; equal: the same for both phases */
    struct sg_figure ttft_ms, token_ms, total_ms;
    char why[FOLLOW_WHY]; /* why this placement */
    struct expected_task task;
    struct follow_costs *costs; /* owned */
    struct follow_proof proved[FOLLOW_PROVED];
    size_t proved_n;
};

/* The calibration of this machine for the model; NULL: there is none, for the reason *why. Reads one small file. */
struct follow *follow_open(const segue_model *model, const char **why);
/* The choice of the planner. false: no placement can be chosen. */
bool follow_choose(struct follow *f, const struct expected_task *task);
/* Forgets a unit that cannot be opened; the stored calibration keeps it. */
void follow_leave_out(struct follow *f, const char *unit);
/* One line: the choice, the task that it was made for, and why. */
void follow_say(const struct follow *f);
/* What a run took: prefill of n tokens after `start` ones, then tokens of token_ms at a mean depth; first_ms from the request to
 * the first token, as the user sees it; watts of both phases; joules of all. 0: not measured. */
struct follow_run {
    double start, n, prefill_ms, first_ms, depth, token_ms, output, prefill_w, step_w, joules;
};
/* Compares a run with what the plan expects of its tokens, before anything is learned from it. */
void follow_prove(struct follow *f, const struct follow_run *run);
/* Refine the stored calibration by a run on one unit. */
void follow_learn(struct follow *f, const struct follow_run *run);
void follow_free(struct follow *f);

#endif
