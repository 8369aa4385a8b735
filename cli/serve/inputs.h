/* inputs.h: texts of requests that come as a string, as token ids, as both in turn, or in an object: the values of `prompt` and
 * `input`. SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_INPUTS_H
#define SEGUE_CLI_INPUTS_H

#include "serve/generation.h"

/* True if the value is a list of inputs; else it is one: a string, an object, or a list with at least one id. */
bool input_is_list(const json_t *value);
/* Tokens of one input, which the caller frees: "text", [ID, ...], [ID, "text", ...], {"prompt_string": "text"},
 * {"content": [{"type": "text", "text": "..."}]}. Images and the like are refused by name. field: for errors.
 * NULL: e has the reason. */
int32_t *input_tokens(const struct pooled_model *m, json_t *value, const char *field, size_t *n, struct serve_error *e);

#endif
