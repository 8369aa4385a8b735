/* chat.h: a conversation with a model: its messages, its session and the figures of its answers. chat.c implements it,
 * chat_window.c what of it fits the context, chat_commands.c the slash commands, cmd_chat.c the input loop.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_CHAT_H
#define SEGUE_CLI_CHAT_H

#include "run/answer.h"
#include "term/line_edit.h"
#include "run/prompt.h"
#include "run/trace.h"

/* A conversation. Set up and freed in cmd_chat.c. */
struct chat {
    struct args args; /* changed by /set */
    struct placement placement;
    segue_session *session; /* holds the tokens of the messages, as far as they were computed */
    json_t *messages; /* the conversation: list of {role, content} */
    json_t *turns;    /* report of every answer */
    json_t *last;     /* report of the last answer; NULL: none */
    struct line_edit *line_edit;
    char *first; /* line of a pipe that was read for the plan; NULL: none */
    struct read_ahead *read_ahead; /* NULL: one unit runs both phases, and stdin is no terminal */
    uint64_t typed_ns;             /* time of the last chat_typed of this turn */
    struct trace trace;
    struct meter meter;
    size_t dropped_turns;     /* oldest turns that are not rendered, because the context is full */
    bool interactive;         /* on a terminal */
    segue_sampling sampling;  /* of the session, without what it points to; for --record */
    uint64_t seed;            /* of the session, also when chosen at random */
    const char *reuse_reason; /* overrides the reason "first-use" in the next report; NULL: keep it */
    segue_error failure;      /* error that ended the conversation; status SEGUE_OK: none */
};

/* Run a slash command; line is without the slash. *running becomes false if the conversation ends. */
segue_status chat_command(struct chat *c, const char *line, bool *running, segue_error *err);
/* Name and operand of the i-th slash command; NULL after the last one. */
const char *chat_command_name(size_t i, const char **operand);
/* Generate the answer to the current messages, print it, and append it to them. */
segue_status chat_answer(struct chat *c, segue_error *err);
/* Read ahead what the next prompt begins with in any case: the conversation, and the template's text before the message. */
void chat_expect_message(struct chat *c);
/* line_edit_typed: read ahead what was typed so far. arg: the chat. */
void chat_typed(void *arg, const char *text, size_t n);
/* Size of the context in tokens. */
size_t chat_context(const struct chat *c);
/* The messages that are rendered: all, or without the dropped turns. A new reference. */
json_t *chat_window(const struct chat *c);
/* Token ids of the conversation so far, ending where the next answer begins. With --keep, turns are dropped, with a note, until
 * there is space for an answer. SEGUE_ELIMIT: it does not fit the context. */
segue_status chat_render(struct chat *c, struct prompt *out, segue_error *err);
/* Close a session after its trace was collected. */
void chat_close_session(struct chat *c, segue_session *session);
/* Append {"role": role, "content": text}. */
void chat_add_message(struct chat *c, const char *role, const char *text);
/* Replace the session by a new, empty one. On failure the old one stays. */
segue_status chat_open_session(struct chat *c, segue_error *err);
/* Apply the sampling flags to the open session. */
segue_status chat_apply_sampling(struct chat *c, segue_error *err);
/* Replace the session by a saved state. */
segue_status chat_load_state(struct chat *c, const char *path, segue_error *err);

#endif
