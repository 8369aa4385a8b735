/* prompt.h: prompts: from the flags -p, -f, --ids, --messages, --system, --think and --raw to token ids.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_PROMPT_H
#define SEGUE_CLI_PROMPT_H

#include "run/placement.h"

/* Token ids of a prompt. Zero-initialise; free with prompt_free. */
struct prompt {
    int32_t *ids; /* [n] */
    size_t n;
    bool given; /* false: no flag specified a prompt */
};

/* Read the prompt that the flags give; -f and -p together are the text of the file, an empty line and the text. limit: size
 * of the context in tokens; a text that is certainly longer is rejected before all of it is tokenized. Without a prompt flag
 * out->given is false and the status SEGUE_OK. conversation: the earlier messages, to which those of the prompt are appended;
 * NULL: none. Not used with --ids. */
segue_status prompt_read(struct prompt *out, const struct args *args, const struct placement *p, json_t *conversation,
                         size_t limit, segue_error *err);
void prompt_free(struct prompt *prompt);

/* Append a whole file to out, or standard input for "-". At most 1 GiB. */
segue_status prompt_file(const char *path, struct out_text *out, segue_error *err);
/* Parse "1,2,3", or "@FILE" with ids separated by commas, white space or JSON brackets. Ids must be below vocab. */
segue_status prompt_ids(const char *text, size_t vocab, struct prompt *out, segue_error *err);
/* Tokenize text[len]; flags are SEGUE_TEXT_*. SEGUE_ELIMIT: certainly more than `limit` tokens. */
segue_status prompt_tokenize(const segue_model *model, const char *text, size_t len, unsigned flags,
                             size_t limit, struct prompt *out, segue_error *err);
/* Append the content of a message: its text, or the texts of its parts. */
void prompt_add_content(struct out_text *out, const json_t *message);
/* Read a JSON file with a list of messages, or an object that has "messages". *request is a new object with
 * "messages". */
segue_status prompt_messages(const char *path, json_t **request, segue_error *err);
/* Replace the system message, which is the first one or absent; text NULL or "": remove it. */
void prompt_set_system(json_t *messages, const char *text);
/* Render and tokenize a conversation: with the chat template, or without one (or with raw) the contents without roles. */
segue_status prompt_conversation(const struct placement *p, const struct args *args, json_t *messages, bool raw, size_t limit,
                                 struct prompt *out, segue_error *err);
/* Set enable_thinking in a request as --think says. */
void prompt_set_thinking(json_t *request, const struct args *args);
/* Apply the chat template of the model to a request. */
segue_status prompt_render(const segue_model *model, const json_t *request, struct out_text *out,
                           segue_error *err);
/* Render a request and tokenize the result. */
segue_status prompt_chat(const segue_model *model, const json_t *request, size_t limit, struct prompt *out,
                         segue_error *err);
/* {"role": role, "content": text[len]} as a new reference. */
json_t *prompt_message(const char *role, const char *text, size_t len);

#endif
