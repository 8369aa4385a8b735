/* chat.h: a conversation, shared by cmd_chat.c (turns) and chat_commands.c (slash commands).
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_CHAT_H
#define SEGUE_CLI_CHAT_H

#include "task/generate.h"
#include "term/line_edit.h"
#include "task/prompt.h"
#include "bench/trace.h"

struct chat {
    struct args args; /* changed by /set */
    struct place place;
    segue_session *session;
    json_t *messages;     /* the conversation */
    json_t *turns, *last; /* figures of each answer, and of the last one */
    struct lines *lines;
    struct ahead *ahead; /* two units: the next turn is read while this one is answered */
    struct trace trace;
    struct meter meter;
    bool edited; /* on a terminal */
    uint64_t seed;
    const char *reuse_reason; /* of the next answer, when the session knows no better one than first-use */
    segue_error failure; /* status SEGUE_OK: none */
};

/* A line without its slash. *go_on becomes false when the conversation ends. */
segue_status chat_command(struct chat *c, const char *line, bool *go_on, segue_error *err);
/* Answer the conversation as it stands and append the answer. */
segue_status chat_answer(struct chat *c, segue_error *err);
void chat_leave(struct chat *c, segue_session *session); /* close it, and keep its spans */
void chat_add(struct chat *c, const char *role, const char *text);
void chat_set_system(struct chat *c, const char *text);           /* NULL or "": none */
segue_status chat_open_session(struct chat *c, segue_error *err); /* a fresh one */
segue_status chat_sampling(struct chat *c, segue_error *err);     /* after a flag changed */
segue_status chat_save_messages(const struct chat *c, const char *path, segue_error *err);
segue_status chat_load_messages(struct chat *c, const char *path, segue_error *err);
segue_status chat_load_state(struct chat *c, const char *path, segue_error *err);

#endif
