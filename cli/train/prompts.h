/* prompts.h: prompts of `segue train --grpo`, which the model answers itself. SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_TRAIN_PROMPTS_H
#define SEGUE_CLI_TRAIN_PROMPTS_H

#include "run/placement.h"

struct train_prompt {
    int32_t *tokens; /* [n] */
    size_t n;
    char *text;      /* as the file has it: the text, or the JSON of messages or tokens */
    char *expected;  /* "answer" of the line; NULL: none */
};

/* Zero-initialise; free with prompts_free. */
struct train_prompts {
    struct train_prompt *items; /* [n] */
    size_t n, cap;
};

/* Read a .jsonl file: one object per line with "prompt" (text), "messages" (to which the model's template opens an answer) or
 * "tokens", and optionally "answer" (text). limit: tokens of a prompt at most. EFORMAT, ELIMIT: file and line of the error. */
segue_status prompts_read(struct train_prompts *out, const struct placement *p, const char *path, size_t limit,
                          segue_error *err);
/* The prompt `text`, to which the model's template, if there is one, opens an answer. */
segue_status prompts_add_text(struct train_prompts *out, const struct placement *p, const char *text, segue_error *err);
void prompts_free(struct train_prompts *prompts);

#endif
