/* rollouts.h: answers sampled for GRPO: a group of them for each prompt, all at once. SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_ROLLOUTS_H
#define SEGUE_CLI_ROLLOUTS_H

#include "segue_train.h"
#include "train/prompts.h"

/* One prompt with one sampled answer. */
struct rollout {
    const struct train_prompt *prompt;
    int32_t *tokens, *labels;   /* [n] prompt and answer; only tokens of the answer are labels. One block; free(tokens) */
    float *old, *reference;     /* [n] where there is a label: its log-probability when it was sampled; that of the reference.
                                 * One block; free(old) */
    size_t n, answer_n;
    char *text;                 /* the answer; ids with spaces where the model has no tokenizer */
    double reward, advantage;
};

/* The answers of one step. */
struct rollouts {
    struct rollout *items;      /* [n] those of a prompt one after the other */
    size_t n;
    uint64_t begin_ns, end_ns;
};
void rollouts_free(struct rollouts *r);

/* What samples. */
struct sampler_engine {
    segue_model *model;
    bool has_tokenizer;
    segue_engine *engine;
    segue_scheduler *scheduler;
};
/* context: tokens of a prompt and its answer at most. running: answers at once. */
segue_status sampler_engine_open(struct sampler_engine *e, segue_model *model, bool has_tokenizer, segue_unit *unit,
                                 size_t context, size_t running, segue_error *err);
void sampler_engine_close(struct sampler_engine *e);

/* What to sample: `group` answers for each of prompts[prompts_n], at temperature 1, where probabilities are those of the model.
 * Answer i has a seed of its own, which follows from `seed` and i. */
struct rollout_task {
    const struct train_prompt *const *prompts;
    size_t prompts_n, group, answer_tokens;
    segue_adapter *adapter;     /* NULL: none */
    uint64_t seed;
};
/* The result is to be freed in any case. */
segue_status rollouts_sample(struct sampler_engine *e, const struct rollout_task *task, struct rollouts *out, segue_error *err);

/* One answer of the adapter as it is now, for a reader; trainer NULL: of the model. *text: free it. */
segue_status rollouts_show(struct sampler_engine *e, const struct train_prompt *prompt, const segue_trainer *trainer,
                           uint64_t seed, size_t tokens, char **text, segue_error *err);

#endif
