/* prompt.h: from -p, -f, --ids, --messages, --system, --think, --raw to tokens.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_PROMPT_H
#define SEGUE_CLI_PROMPT_H

#include "task/placement.h"

struct prompt {
    int32_t *ids;
    size_t n;
    bool given; /* false: no flag named a prompt */
};

/* The whole prompt. limit: tokens that the context holds; what is surely longer is refused before it is all
 * worked through. *code is the exit code of EUNSUPPORTED. */
segue_status prompt_read(struct prompt *out, const struct args *args, const struct place *p, size_t limit,
                         segue_error *err);
void prompt_free(struct prompt *prompt);

/* --- pieces, for chat, tokenize, template and eval --- */

/* A whole file, or standard input for "-"; at most 1 GiB. */
segue_status prompt_file(const char *path, struct out_text *out, segue_error *err);
/* "1,2,3" or "@FILE" with ids apart by commas, blanks or JSON brackets. */
segue_status prompt_ids(const char *text, size_t vocab, struct prompt *out, segue_error *err);
segue_status prompt_tokenize(const segue_model *model, const char *text, size_t len, unsigned flags,
                             size_t limit, struct prompt *out, segue_error *err);
/* FILE with a list of messages, or an object with "messages" and more; a new object with "messages". */
segue_status prompt_messages(const char *path, json_t **request, segue_error *err);
/* Set enable_thinking as --think says. */
void prompt_think(json_t *request, const struct args *args);
segue_status prompt_render(const segue_model *model, const json_t *request, struct out_text *out,
                           segue_error *err);
/* Render and tokenize. */
segue_status prompt_chat(const segue_model *model, const json_t *request, size_t limit, struct prompt *out,
                         segue_error *err);
json_t *prompt_message(const char *role, const char *text, size_t len);

#endif
