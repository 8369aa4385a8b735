/* route_chat.c: POST /v1/chat/completions. SPDX-License-Identifier: MIT */
#include "routes/routes.h"

#include <string.h>
#include <time.h>

/* {"id", "object", "created", "model"} of an answer or a chunk. */
static json_t *head(const struct chat_job *c, const char *object)
{
    char id[64];
    snprintf(id, sizeof id, "chatcmpl-%s", c->id);
    return json_pack("{s:s, s:s, s:I, s:s, s:s}", "id", id, "object", object, "created", (json_int_t)time(NULL), "model",
                     c->model->name, "system_fingerprint", SERVE_FINGERPRINT);
}

/* A call in OpenAI's form. index: of a chunk; -1: none. */
static json_t *call_json(json_t *call, json_int_t index)
{
    json_t *o = json_pack("{s:O, s:s, s:{s:O, s:O}}", "id", json_object_get(call, "id"), "type", "function", "function", "name",
                          json_object_get(call, "name"), "arguments", json_object_get(call, "arguments"));
    if (index >= 0) json_object_set_new(o, "index", json_integer(index));
    return o;
}

static json_t *logprobs_json(json_t *list) { return list ? json_pack("{s:O, s:n}", "content", list, "refusal") : json_null(); }

static bool send_chunk(struct chat_job *c, struct chat_job_choice *ch, json_t *delta, const char *finish)
{
    json_t *choice = json_pack("{s:I, s:o, s:o?, s:s?}", "index", (json_int_t)ch->index, "delta", delta, "logprobs",
                               logprobs_json(ch->piece_logprobs), "finish_reason", finish);
    json_t *o = head(c, "chat.completion.chunk");
    json_decref(ch->piece_logprobs);
    ch->piece_logprobs = NULL;
    json_object_set_new(o, "choices", json_pack("[o]", choice));
    if (c->params.timings_per_token && c->job.tokens_out && !json_object_get(delta, "role"))
        json_object_set_new(o, "timings", generate_timings(&c->job));
    return exchange_event(c->x, NULL, o);
}

/* The first chunk of a choice names the role, once its request was admitted. */
static bool begin_choice(struct chat_job *c, struct chat_job_choice *ch)
{
    size_t *started = c->user, bit = (size_t)1 << ch->index;
    if (*started & bit) return true;
    if (!*started) exchange_stream(c->x, EXCHANGE_EVENTS);
    *started |= bit;
    json_t *logprobs = ch->piece_logprobs; /* of the text that follows */
    ch->piece_logprobs = NULL;
    bool open = send_chunk(c, ch, json_pack("{s:s, s:n}", "role", "assistant", "content"), NULL);
    ch->piece_logprobs = logprobs;
    return open;
}

/* return_progress. */
static bool on_progress(struct chat_job *c, size_t cached, size_t done, double ms)
{
    if (!begin_choice(c, &c->choices[0])) return false;
    json_t *o = head(c, "chat.completion.chunk");
    json_object_set_new(o, "choices", json_array());
    json_object_set_new(o, "prompt_progress", generate_progress(&c->job, cached, done, ms));
    json_object_set_new(o, "timings", generate_progress_timings(cached, done, ms));
    return exchange_event(c->x, NULL, o);
}

static bool on_piece(struct chat_job *c, struct chat_job_choice *ch, enum chat_job_piece kind, const char *text, size_t len)
{
    size_t n = json_array_size(ch->calls);
    if (!begin_choice(c, ch)) return false;
    if (kind == PIECE_FINISH) return send_chunk(c, ch, json_object(), ch->finish);
    if (kind == PIECE_CALL_END) return true;
    json_t *delta = json_object(), *piece = out_string(text, len);
    if (kind == PIECE_CALL)
        json_object_set_new(delta, "tool_calls",
                            json_pack("[o]", call_json(json_array_get(ch->calls, n - 1), (json_int_t)n - 1)));
    else if (kind == PIECE_ARGUMENTS)
        json_object_set_new(delta, "tool_calls",
                            json_pack("[{s:I, s:{s:O}}]", "index", (json_int_t)n - 1, "function", "arguments", piece));
    else
        json_object_set(delta, kind == PIECE_CONTENT ? "content" : "reasoning_content", piece);
    json_decref(piece);
    return send_chunk(c, ch, delta, NULL);
}

static json_t *choice_json(struct chat_job_choice *ch)
{
    json_t *message = json_object(), *calls = json_array(), *call;
    size_t i;
    bool content = ch->content.len || !ch->calls;
    json_object_set_new(message, "role", json_string("assistant"));
    json_object_set_new(message, "content",
                        content ? out_string(ch->content.data ? ch->content.data : "", ch->content.len) : json_null());
    json_object_set_new(message, "refusal", json_null());
    if (ch->reasoning.len) json_object_set_new(message, "reasoning_content", out_string(ch->reasoning.data, ch->reasoning.len));
    json_array_foreach(ch->calls, i, call) json_array_append_new(calls, call_json(call, -1));
    if (ch->calls) json_object_set(message, "tool_calls", calls);
    json_decref(calls);
    return json_pack("{s:I, s:o, s:o, s:s}", "index", (json_int_t)ch->index, "message", message, "logprobs",
                     logprobs_json(ch->logprobs), "finish_reason", ch->finish ? ch->finish : "stop");
}

static json_t *whole(struct chat_job *c)
{
    json_t *o = head(c, "chat.completion"), *choices = json_array();
    for (size_t i = 0; i < c->params.choices; i++) json_array_append_new(choices, choice_json(&c->choices[i]));
    json_object_set_new(o, "choices", choices);
    json_object_set_new(o, "usage", generate_usage(&c->job));
    json_object_set_new(o, "timings", generate_timings(&c->job));
    json_object_set_new(o, "segue", generate_report(&c->job));
    if (c->params.verbose) json_object_set_new(o, "__verbose", generate_verbose(&c->job));
    return o;
}

/* The last event: usage if it was asked for; the report comes with it. */
static void end_stream(struct chat_job *c)
{
    if (c->params.include_usage) {
        json_t *o = head(c, "chat.completion.chunk");
        json_object_set_new(o, "choices", json_array());
        json_object_set_new(o, "usage", generate_usage(&c->job));
        json_object_set_new(o, "timings", generate_timings(&c->job));
        json_object_set_new(o, "segue", generate_report(&c->job));
        if (c->params.verbose) json_object_set_new(o, "__verbose", generate_verbose(&c->job));
        exchange_event(c->x, NULL, o);
    }
    exchange_end(c->x, true);
}

static bool answer(struct server *s, struct exchange *x, json_t *body, struct serve_error *e)
{
    static const struct chat_form form = {on_piece, end_stream, whole, NULL, on_progress};
    size_t started = 0;
    struct chat_request r = {&s->models, &s->records, body, body, "chatcmpl-", NULL};
    return chat_job_answer(x, &r, &form, &started, e);
}

static bool count(struct server *s, struct exchange *x, json_t *body, struct serve_error *e)
{
    struct chat_job c;
    bool ok = chat_job_open(&c, x, &s->models, body, e);
    if (ok)
        exchange_json(x, 200, json_pack("{s:s, s:I}", "object", "response.input_tokens", "input_tokens", (json_int_t)c.tokens_n));
    chat_job_free(&c);
    return ok;
}

void route_chat_tokens(struct server *s, struct exchange *x) { route_with_body(s, x, count); }
void route_chat(struct server *s, struct exchange *x) { route_with_body(s, x, answer); }
