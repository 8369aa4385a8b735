/* grpo.h: `segue train --grpo`: group relative policy optimisation. For each prompt a group of answers is sampled and scored; an
 * answer's advantage is its distance from the mean of its group, in standard deviations. SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_GRPO_H
#define SEGUE_CLI_GRPO_H

#include "train/train_job.h"

/* Trains until j->steps, from j->step on. *kept: the last step with a checkpoint. */
segue_status grpo_train(struct train_job *j, uint64_t *kept, segue_error *err);
size_t grpo_prompt_tokens(const struct train_job *j); /* of a prompt at most */
/* Flags that do not fit together. */
segue_status grpo_check(const struct args *args, segue_error *err);

#endif
