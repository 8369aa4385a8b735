/* chat_job.h: a chat request of any API as one job: messages and tools to a prompt, the answer to reasoning, content and tool
 * calls. route_chat.c, route_messages.c and route_responses.c put their own JSON around it.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_CHAT_JOB_H
#define SEGUE_CLI_CHAT_JOB_H

#include "serve/generation.h"
#include "serve/reply.h"

struct chat_job;
/* How one choice went. Its pieces come through the callbacks of struct chat_job while it runs. */
struct chat_job_choice {
    struct reply reply;
    struct out_text reasoning, content;
    json_t *calls;          /* [{"id", "name", "arguments"}], arguments as text */
    json_t *logprobs;       /* array, or NULL */
    json_t *piece_logprobs; /* of the piece that is passed on now; taken by the callback */
    const char *finish;     /* "stop", "length" or "tool_calls"; NULL: not ended */
    const char *stop;       /* stop string that was found, or NULL */
    struct chat_job *owner;
    size_t index;
};

enum chat_job_piece { PIECE_REASONING, PIECE_CONTENT, PIECE_CALL, PIECE_FINISH };

struct chat_job {
    struct exchange *x;
    struct model_pool *models;
    struct pooled_model *model;
    struct params params;
    json_t *request; /* as the chat template gets it: messages, tools, variables */
    int32_t *tokens; /* [tokens_n] the prompt */
    size_t tokens_n;
    bool tools, thinking; /* tool calls are looked for; the prompt ends inside <think> */
    struct generate_job job;
    struct chat_job_choice *choices; /* [params.choices] */
    char id[40];                         /* random */
    /* NULL, or called for each piece. text: of REASONING and CONTENT; of a CALL: its arguments. False: the client has gone. */
    bool (*piece)(struct chat_job *c, struct chat_job_choice *choice, enum chat_job_piece kind, const char *text,
                  size_t len);
    void *user;
};

/* Acquire the model, read parameters, render and tokenize. o: the body in OpenAI's chat form; borrowed during the call and
 * until chat_job_free (stop strings). False: e says why; call chat_job_free in any case. */
bool chat_job_open(struct chat_job *c, struct exchange *x, struct model_pool *models, json_t *o, struct serve_error *e);
bool chat_job_run(struct chat_job *c, struct serve_error *e);
void chat_job_free(struct chat_job *c);

/* A random name: prefix and 24 letters and digits. */
void chat_job_id(char *out, size_t cap, const char *prefix);

#endif
