/* reward.h: how answers are scored: by a pattern, their length, an expected answer, or a program.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_REWARD_H
#define SEGUE_CLI_REWARD_H

#include <regex.h>

#include "train/reward_program.h"

enum reward_kind { REWARD_PATTERN, REWARD_LENGTH, REWARD_EXACT, REWARD_PROGRAM };

struct reward {
    enum reward_kind kind;
    bool opened;
    regex_t pattern;
    double length; /* tokens */
    struct reward_program program;
};

/* One answer. */
struct reward_item {
    const char *prompt, *answer;
    const char *expected; /* NULL: the line of the prompt has none */
    size_t tokens;        /* of the answer */
    double score;         /* result */
};

/* "pattern:RE": 1 where a POSIX extended regular expression matches, else 0. "length:N": 1 - |tokens - N| / N, at least 0.
 * "exact": 1 where the answer is the expected one, without white space at the ends. "program:COMMAND": see reward_program.h; keys
 * of the JSON: prompt, answer, tokens, and expected where there is one. EARG, EIO. Close it in any case. */
segue_status reward_open(struct reward *r, const char *spec, int timeout_s, segue_error *err);
segue_status reward_score(struct reward *r, struct reward_item *items, size_t n, segue_error *err);
void reward_close(struct reward *r);

#endif
