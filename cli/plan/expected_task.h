/* expected_task.h: the task that run, chat and serve plan for: what their flags tell before anything is read or run.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_EXPECTED_TASK_H
#define SEGUE_CLI_EXPECTED_TASK_H

#include "segue.h"
#include "term/args.h"

/* Numbers of tokens, turns, and sessions at the same time; tokens of a prefill run; how states have K and V (SG_KV_FORM_*). */
struct expected_task {
    double prompt, output, depth, turns, sessions, chunk;
    int kv;
};
/* model, info: of the open model. message: the first message of a conversation, where it is known; else NULL. */
void expected_task_of(struct expected_task *out, const struct args *args, const segue_model *model, const segue_model_info *info,
                      const char *message);

#endif
