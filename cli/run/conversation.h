/* conversation.h: files of conversations: JSON lists of messages {"role", "content"}, with mode 0600.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_CONVERSATION_H
#define SEGUE_CLI_CONVERSATION_H

#include "term/args.h"
#include "term/out.h"

/* Write the messages to a file, which is replaced only when it is complete. */
segue_status conversation_save(const json_t *messages, const char *path, segue_error *err);
/* Replace *messages by those of a file, in any form that --messages accepts. On failure they stay. */
segue_status conversation_load(json_t **messages, const char *path, segue_error *err);
/* The conversation of --session as a new list; empty if the session is new, or if the flag is not given. */
segue_status conversation_of_session(const struct args *args, json_t **messages, segue_error *err);
/* Save it as NAME.json next to the state. Does nothing without --session. */
segue_status conversation_save_session(const struct args *args, const json_t *messages, segue_error *err);

#endif
