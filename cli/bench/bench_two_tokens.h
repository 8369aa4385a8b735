/* bench_two_tokens.h: tokens by steps of two, see bench_two_tokens.c. SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_BENCH_TWO_TOKENS_H
#define SEGUE_CLI_BENCH_TWO_TOKENS_H

#include "plan/probe_units.h"
#include "term/out.h"

struct two_tokens {
    size_t steps, accepted, tokens;  /* tokens that the steps gave: steps + accepted */
    double step_ms;                  /* mean */
    bool equal;                      /* the text is that of single steps */
};
/* Greedy tokens after a prompt of random ids on the open model. */
segue_status bench_two_tokens(const struct probe *p, size_t prompt, size_t tokens, struct two_tokens *out, segue_error *err);

#endif
