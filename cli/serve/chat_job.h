/* chat_job.h: a chat request of any API as one job: messages and tools to a prompt, the answer to reasoning, content and tool
 * calls. route_chat.c, route_messages.c and route_responses.c put their own JSON around it.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_CHAT_JOB_H
#define SEGUE_CLI_CHAT_JOB_H

#include "serve/generation.h"
#include "serve/prompt_records.h"
#include "reply/history.h"
#include "reply/reply.h"

struct chat_job;
/* How one choice went. Its pieces come through the callbacks of struct chat_job while it runs. */
struct chat_job_choice {
    struct reply reply;
    struct out_text reasoning, content;
    json_t *calls;             /* [{"id", "name", "arguments"}], arguments as text; "" while the call is open */
    struct out_text arguments; /* of the open call, so far */
    json_t *logprobs;          /* array, or NULL */
    json_t *piece_logprobs;    /* of the piece that is passed on now; taken by the callback */
    const char *finish;        /* "stop", "length" or "tool_calls"; NULL: not ended */
    const char *stop;          /* stop string that was found, or NULL */
    struct chat_job *owner;
    size_t index;
};

/* CALL: the last of `calls` has begun; ARGUMENTS: text of them; CALL_END: they are complete. */
enum chat_job_piece { PIECE_REASONING, PIECE_CONTENT, PIECE_CALL, PIECE_ARGUMENTS, PIECE_CALL_END, PIECE_FINISH };

/* How an API writes an answer. */
struct chat_form {
    /* For each piece of a stream. text: of REASONING, CONTENT and ARGUMENTS. False: the client disconnected. */
    bool (*piece)(struct chat_job *c, struct chat_job_choice *choice, enum chat_job_piece kind, const char *text, size_t len);
    /* The last events of a stream. */
    void (*end)(struct chat_job *c);
    /* The whole answer as a new reference. */
    json_t *(*whole)(struct chat_job *c);
    /* NULL, or: the answer is complete, but not sent to its end. */
    void (*keep)(struct chat_job *c);
    /* NULL, or: return_progress, as generate_sink.progress. */
    bool (*progress)(struct chat_job *c, size_t cached, size_t done, double ms);
};

struct chat_job {
    struct exchange *x;
    struct model_pool *models;
    struct pooled_model *model;
    struct params params;
    json_t *request; /* as the chat template gets it: messages, tools, variables */
    json_t *beginning; /* text of the assistant that the answer continues; NULL: none */
    struct out_text prompt; /* what the template made of it */
    int32_t *tokens;        /* [tokens_n] the prompt */
    size_t tokens_n;
    bool tools, thinking; /* tool calls are looked for; the prompt ends inside <think> */
    bool thought;         /* the prompt ends with the </think> that was added to it */
    struct generate_job job;
    struct chat_job_choice *choices; /* [params.choices] */
    char id[40];                     /* random */
    const struct chat_form *form;    /* NULL: no answer is wanted */
    void *user;                      /* of the form */
    struct prompt_parts *parts;      /* of the body */
    struct prompt_change change;     /* since the earlier request that has most in common */
};

enum { CHAT_HASH_BYTES = 16 };
/* The previous prompt and its answer. If the next prompt begins with both texts, their tokens are reused and only the rest is
 * tokenized. Both texts are as the template renders them; of the prompt only length and BLAKE2b hash are kept. */
struct chat_before {
    size_t prompt_n;
    unsigned char prompt_hash[CHAT_HASH_BYTES];
    struct out_text answer;
    int32_t *tokens; /* [tokens_n] of prompt and answer */
    size_t tokens_n;
    char model[128];
};

/* A request to answer. */
struct chat_request {
    struct model_pool *models;
    struct prompt_records *records;
    json_t *body;          /* as it was sent */
    json_t *chat;          /* in OpenAI's chat form */
    const char *id_prefix; /* of the answer, before chat_job.id */
    /* NULL, or: where the new prompt begins with these texts, it gets these tokens for them. The same text may have other tokens
     * than the model chose, whose states could not be used. */
    const struct chat_before *before;
};

/* Acquire the model, read parameters, render and tokenize. o: the body in OpenAI's chat form; borrowed during the call and
 * until chat_job_free (stop strings). False: e has the reason; call chat_job_free in any case. */
bool chat_job_open(struct chat_job *c, struct exchange *x, struct model_pool *models, json_t *o, struct serve_error *e);
void chat_job_free(struct chat_job *c);
/* Opens a job, runs it, writes the answer in this form, frees the job. user: argument of the form's functions. False: as open. */
bool chat_job_answer(struct exchange *x, const struct chat_request *r, const struct chat_form *form, void *user,
                     struct serve_error *e);

/* Set prompt_n and prompt_hash. */
void chat_before_prompt(struct chat_before *b, const struct out_text *prompt);

/* A random name: prefix and 24 letters and digits. */
void chat_job_id(char *out, size_t cap, const char *prefix);

#endif
