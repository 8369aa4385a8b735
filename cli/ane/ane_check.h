/* ane_check.h: whether a Neural Engine computes a whole model as `ref` does. SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_ANE_CHECK_H
#define SEGUE_CLI_ANE_CHECK_H

#include "term/out.h"

/* A small model of random weights on a unit and on `ref`: {layers, width, vocab, n_prompt, n_gen, tokens_equal, logits_error,
 * token_ms, dispatches, host_bytes}. Both read the same text, token by token after the prompt. logits_error: the largest
 * distance of a logit over the largest logit, the maximum over the tokens. Or {error}. */
json_t *ane_check_json(const char *spec);

#endif
