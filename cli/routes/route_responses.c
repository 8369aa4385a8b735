/* route_responses.c: OpenAI's POST /v1/responses. A conversation is kept under the id of its answer for previous_response_id,
 * unless "store" is false: its messages and tokens in kept.c, its state in the prefix store of the engine.
 * SPDX-License-Identifier: MIT */
#include "routes/kept.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Texts and tokens of an answer. With reasoning or calls, or after a stop string, the message is not the text that the model
 * wrote: then the text of its tokens counts, which the next prompt may not have. */
static void set_before(struct chat_before *b, const struct chat_job *c)
{
    const struct chat_job_choice *ch = &c->choices[0];
    const struct generate_job *g = &c->job;
    chat_before_prompt(b, &c->prompt);
    b->tokens = out_alloc((g->all_n + 1) * sizeof *b->tokens);
    b->tokens_n = g->all_n;
    if (g->all_n) memcpy(b->tokens, g->all, g->all_n * sizeof *g->all);
    snprintf(b->model, sizeof b->model, "%s", c->model->name);
    if (!ch->reasoning.len && !ch->calls && !ch->stop) {
        json_t *text = out_string(ch->content.data ? ch->content.data : "", ch->content.len); /* valid UTF-8 */
        out_add(&b->answer, json_string_value(text), json_string_length(text));
        json_decref(text);
        return;
    }
    segue_error err = {0};
    segue_status st = SEGUE_EMEMORY;
    struct out_text *a = &b->answer;
    OUT_GROW(*a, st,
             segue_detokenize(c->model->placement.model, g->all + g->tokens_n, g->all_n - g->tokens_n, 0, a->data, a->cap,
                              &a->len, &err));
    if (st) kept_free_before(b);
}

/* --- the request --- */

/* One item of "input": a message, a call of the model, or the result of a call. */
static void add_item(json_t *messages, json_t *item, size_t at, struct serve_error *e)
{
    const char *type = json_string_value(json_object_get(item, "type")), *role = json_string_value(json_object_get(item, "role"));
    if (role && (!type || !strcmp(type, "message"))) {
        json_array_append_new(messages, json_pack("{s:s, s:O?}", "role", role, "content", json_object_get(item, "content")));
    } else if (type && !strcmp(type, "function_call")) {
        json_array_append_new(messages,
                              json_pack("{s:s, s:n, s:[{s:O?, s:s, s:{s:O?, s:O?}}]}", "role", "assistant", "content",
                                        "tool_calls", "id", json_object_get(item, "call_id"), "type", "function", "function",
                                        "name", json_object_get(item, "name"), "arguments", json_object_get(item, "arguments")));
    } else if (type && !strcmp(type, "function_call_output")) {
        json_array_append_new(messages, json_pack("{s:s, s:O?, s:O?}", "role", "tool", "tool_call_id",
                                                  json_object_get(item, "call_id"), "content", json_object_get(item, "output")));
    } else if (!type || strcmp(type, "reasoning") != 0)
        serve_fail(e, 400, "input", "input[%zu]: items of type '%.40s' are not supported", at, type ? type : "(none)");
}

static json_t *read_messages(struct server *s, struct exchange *x, struct fields f, struct chat_before *before)
{
    const char *previous = field_text(f, "previous_response_id", NULL), *instructions = field_text(f, "instructions", NULL);
    json_t *input = field(f, "input"), *item;
    size_t i;
    json_t *list = previous ? kept_recall(s, x, previous, before) : json_array();
    if (!list) {
        serve_fail(f.e, 404, "previous_response_id", "previous_response_id: '%.60s' is not stored here", previous);
        return NULL;
    }
    /* Instructions apply to this answer only. */
    if (instructions) json_array_insert_new(list, 0, json_pack("{s:s, s:s}", "role", "system", "content", instructions));
    if (json_is_string(input))
        json_array_append_new(list, json_pack("{s:s, s:O}", "role", "user", "content", input));
    else if (json_is_array(input))
        json_array_foreach(input, i, item) add_item(list, item, i, f.e);
    else
        serve_fail(f.e, 400, "input", "input: expected a string or a list of items");
    if (!f.e->status) return list;
    json_decref(list);
    return NULL;
}

/* The body in the form of chat completions. NULL: e has the reason. */
static json_t *translate(struct server *s, struct exchange *x, struct fields f, struct chat_before *before)
{
    json_t *messages = read_messages(s, x, f, before), *tools = field_array(f, "tools"), *t, *o;
    size_t i;
    field_bool(f, "store", true);
    if (!messages) return NULL;
    o = json_copy(f.o);
    json_object_set_new(o, "messages", messages);
    json_object_set_new(o, "add_generation_prompt", json_true()); /* an answer is a new item */
    json_object_del(o, "stream_options");
    json_object_del(o, "n");
    json_t *effort = json_object_get(field_object(f, "reasoning"), "effort");
    if (effort) json_object_set(o, "reasoning_effort", effort);
    json_t *list = json_array();
    json_array_foreach(tools, i, t) /* not nested in "function" here */
    {
        json_t *function = json_copy(t);
        json_object_del(function, "type");
        json_array_append_new(list, json_pack("{s:O?, s:o}", "type", json_object_get(t, "type"), "function", function));
    }
    if (tools) json_object_set(o, "tools", list);
    json_decref(list);
    return o;
}

/* --- the answer --- */

struct response_stream {
    struct server *server;
    json_int_t sequence, output; /* output: index of the item that is open or next */
    int kind;                    /* a chat_job_piece, or -1: no item is open */
    char item[64];               /* id of the open item */
    bool started;
    json_t *request, *messages; /* borrowed; messages: with those kept before */
};

static const char *response_id(const struct chat_job *c, char out[64])
{
    snprintf(out, 64, "resp_%s", c->id);
    return out;
}

static json_t *text_part(const struct out_text *text)
{
    return json_pack("{s:s, s:o, s:[]}", "type", "output_text", "text", out_string(text->data ? text->data : "", text->len),
                     "annotations");
}

static json_t *message_item(const char *id, const struct out_text *text, const char *status)
{
    json_t *content = text ? json_pack("[o]", text_part(text)) : json_array();
    return json_pack("{s:s, s:s, s:s, s:s, s:o}", "type", "message", "id", id, "role", "assistant", "status", status, "content",
                     content);
}

static json_t *reasoning_item(const char *id, const struct out_text *text)
{
    return json_pack("{s:s, s:s, s:[], s:[{s:s, s:o}]}", "type", "reasoning", "id", id, "summary", "content", "type",
                     "reasoning_text", "text", out_string(text->data ? text->data : "", text->len));
}

/* Streams and whole answers have the same id. */
static void call_item_id(json_t *call, char *out, size_t cap)
{
    snprintf(out, cap, "fc_%s", json_string_value(json_object_get(call, "id")) + strlen("call_"));
}

static json_t *call_item(json_t *call, const char *id, const char *status)
{
    return json_pack("{s:s, s:s, s:O, s:O, s:O, s:s}", "type", "function_call", "id", id, "call_id", json_object_get(call, "id"),
                     "name", json_object_get(call, "name"), "arguments", json_object_get(call, "arguments"), "status", status);
}

static json_t *output_json(const struct chat_job *c)
{
    const struct chat_job_choice *ch = &c->choices[0];
    json_t *list = json_array(), *call;
    char id[64];
    size_t i;
    snprintf(id, sizeof id, "rs_%s", c->id);
    if (ch->reasoning.len) json_array_append_new(list, reasoning_item(id, &ch->reasoning));
    snprintf(id, sizeof id, "msg_%s", c->id);
    if (ch->content.len || !ch->calls) json_array_append_new(list, message_item(id, &ch->content, "completed"));
    json_array_foreach(ch->calls, i, call)
    {
        call_item_id(call, id, sizeof id);
        json_array_append_new(list, call_item(call, id, "completed"));
    }
    return list;
}

/* done: with output and usage. */
static json_t *response_json(const struct chat_job *c, bool done)
{
    const struct response_stream *st = c->user;
    bool cut = done && !strcmp(c->choices[0].finish, "length");
    json_t *previous = json_object_get(st->request, "previous_response_id");
    json_t *o = json_pack("{s:s, s:s, s:I, s:s, s:s, s:n, s:O?, s:b}", "id", response_id(c, (char[64]){0}), "object", "response",
                          "created_at", (json_int_t)time(NULL), "status",
                          !done ? "in_progress"
                          : cut ? "incomplete"
                                : "completed",
                          "model", c->model->name, "error", "previous_response_id", previous, "parallel_tool_calls", 1);
    json_object_set_new(o, "incomplete_details", cut ? json_pack("{s:s}", "reason", "max_output_tokens") : json_null());
    json_object_set_new(o, "output", done ? output_json(c) : json_array());
    json_object_set_new(o, "tools", json_array());
    json_object_set_new(o, "tool_choice", json_string("auto"));
    json_object_set_new(o, "metadata", json_object());
    if (!done) return o;
    const struct generate_job *g = &c->job;
    json_object_set_new(o, "usage",
                        json_pack("{s:I, s:{s:I}, s:I, s:{s:I}, s:I}", "input_tokens", (json_int_t)g->tokens_n,
                                  "input_tokens_details", "cached_tokens", (json_int_t)g->info.tokens_reused, "output_tokens",
                                  (json_int_t)g->tokens_out, "output_tokens_details", "reasoning_tokens",
                                  (json_int_t)g->tokens_thought, "total_tokens", (json_int_t)(g->tokens_n + g->tokens_out)));
    json_object_set_new(o, "segue", generate_report(g));
    return o;
}

static bool send(struct chat_job *c, const char *type, json_t *data)
{
    struct response_stream *st = c->user;
    json_object_set_new(data, "type", json_string(type));
    json_object_set_new(data, "sequence_number", json_integer(st->sequence++));
    return exchange_event(c->x, type, data);
}

/* The place of an event: which item, and which part of it. */
static json_t *place(const struct response_stream *st)
{
    return json_pack("{s:s, s:I, s:i}", "item_id", st->item, "output_index", st->output, "content_index", 0);
}

static bool close_item(struct chat_job *c, struct chat_job_choice *ch)
{
    struct response_stream *st = c->user;
    int kind = st->kind;
    bool message = kind == PIECE_CONTENT;
    if (kind < 0) return true;
    const struct out_text *text = message ? &ch->content : &ch->reasoning;
    json_t *done = place(st), *part = place(st);
    st->kind = -1;
    json_object_set_new(done, "text", out_string(text->data ? text->data : "", text->len));
    bool go = send(c, message ? "response.output_text.done" : "response.reasoning_text.done", done);
    if (message) {
        json_object_set_new(part, "part", text_part(text));
        go = go && send(c, "response.content_part.done", part);
    } else
        json_decref(part);
    json_t *item = message ? message_item(st->item, text, "completed") : reasoning_item(st->item, text);
    return send(c, "response.output_item.done", json_pack("{s:I, s:o}", "output_index", st->output++, "item", item)) && go;
}

static bool open_item(struct chat_job *c, struct chat_job_choice *ch, enum chat_job_piece kind)
{
    struct response_stream *st = c->user;
    static const struct out_text empty;
    bool message = kind == PIECE_CONTENT;
    if (!close_item(c, ch)) return false;
    st->kind = kind;
    snprintf(st->item, sizeof st->item, "%s_%s", message ? "msg" : "rs", c->id);
    json_t *item = message ? message_item(st->item, NULL, "in_progress") : reasoning_item(st->item, &empty);
    bool go = send(c, "response.output_item.added", json_pack("{s:I, s:o}", "output_index", st->output, "item", item));
    if (!message || !go) return go;
    json_t *part = place(st);
    json_object_set_new(part, "part", text_part(&empty));
    return send(c, "response.content_part.added", part);
}

static json_t *last_call(const struct chat_job_choice *ch) { return json_array_get(ch->calls, json_array_size(ch->calls) - 1); }

/* A call as an item of the stream: its beginning, text of its arguments, its end. */
static bool send_call(struct chat_job *c, struct chat_job_choice *ch, enum chat_job_piece kind, const char *text, size_t len)
{
    struct response_stream *st = c->user;
    if (kind == PIECE_CALL) {
        if (!close_item(c, ch)) return false;
        call_item_id(last_call(ch), st->item, sizeof st->item);
        return send(c, "response.output_item.added",
                    json_pack("{s:I, s:o}", "output_index", st->output, "item",
                              call_item(last_call(ch), st->item, "in_progress")));
    }
    json_t *o = place(st);
    json_object_del(o, "content_index");
    if (kind == PIECE_ARGUMENTS) {
        json_object_set_new(o, "delta", out_string(text, len));
        return send(c, "response.function_call_arguments.delta", o);
    }
    json_object_set(o, "arguments", json_object_get(last_call(ch), "arguments"));
    return send(c, "response.function_call_arguments.done", o) &&
           send(c, "response.output_item.done",
                json_pack("{s:I, s:o}", "output_index", st->output++, "item", call_item(last_call(ch), st->item, "completed")));
}

/* The first events of a stream, once the request was admitted. */
static bool begin(struct chat_job *c)
{
    struct response_stream *st = c->user;
    if (st->started) return true;
    st->started = true;
    exchange_stream(c->x, EXCHANGE_EVENTS);
    return send(c, "response.created", json_pack("{s:o}", "response", response_json(c, false))) &&
           send(c, "response.in_progress", json_pack("{s:o}", "response", response_json(c, false)));
}

/* return_progress of llama.cpp. */
static bool on_progress(struct chat_job *c, size_t cached, size_t done, double ms)
{
    return begin(c) && send(c, "response.in_progress",
                            json_pack("{s:o, s:o, s:o}", "response", response_json(c, false), "prompt_progress",
                                      generate_progress(&c->job, cached, done, ms), "timings",
                                      generate_progress_timings(cached, done, ms)));
}

static bool on_piece(struct chat_job *c, struct chat_job_choice *ch, enum chat_job_piece kind, const char *text, size_t len)
{
    struct response_stream *st = c->user;
    if (!begin(c)) return false;
    if (kind == PIECE_FINISH) return close_item(c, ch);
    if (kind == PIECE_CALL || kind == PIECE_ARGUMENTS || kind == PIECE_CALL_END) return send_call(c, ch, kind, text, len);
    if (st->kind != (int)kind && !open_item(c, ch, kind)) return false;
    json_t *delta = place(st);
    json_object_set_new(delta, "delta", out_string(text, len));
    if (c->params.timings_per_token) json_object_set_new(delta, "timings", generate_timings(&c->job));
    return send(c, kind == PIECE_CONTENT ? "response.output_text.delta" : "response.reasoning_text.delta", delta);
}

/* The conversation with its answer, without the instructions. */
static void keep_answer(struct chat_job *c)
{
    const struct response_stream *st = c->user;
    const struct chat_job_choice *ch = &c->choices[0];
    if (json_is_false(json_object_get(st->request, "store"))) return;
    json_t *list = json_copy(st->messages), *calls = json_array(), *call;
    size_t i;
    if (json_is_string(json_object_get(st->request, "instructions"))) json_array_remove(list, 0);
    json_t *message = json_pack("{s:s, s:o}", "role", "assistant", "content",
                                out_string(ch->content.data ? ch->content.data : "", ch->content.len));
    json_array_foreach(ch->calls, i, call)
        json_array_append_new(calls, json_pack("{s:O, s:s, s:{s:O, s:O}}", "id", json_object_get(call, "id"), "type", "function",
                                               "function", "name", json_object_get(call, "name"), "arguments",
                                               json_object_get(call, "arguments")));
    if (ch->calls) json_object_set(message, "tool_calls", calls);
    json_decref(calls);
    json_array_append_new(list, message);
    json_t *response = response_json(c, true);
    struct chat_before before = {0};
    set_before(&before, c);
    kept_add(st->server, c->x, response_id(c, (char[64]){0}), list, response, &before);
    kept_free_before(&before);
    json_decref(list), json_decref(response);
}

static void end_stream(struct chat_job *c)
{
    bool cut = !strcmp(c->choices[0].finish, "length");
    send(c, cut ? "response.incomplete" : "response.completed",
         json_pack("{s:o, s:o}", "response", response_json(c, true), "timings", generate_timings(&c->job)));
    exchange_end(c->x, false);
}

static json_t *whole(struct chat_job *c) { return response_json(c, true); }

static bool answer(struct server *s, struct exchange *x, json_t *body, struct serve_error *e)
{
    static const struct chat_form form = {on_piece, end_stream, whole, keep_answer, on_progress};
    struct response_stream st = {.server = s, .kind = -1, .request = body};
    struct chat_before before = {0};
    json_t *o = translate(s, x, (struct fields){body, e}, &before);
    st.messages = json_object_get(o, "messages");
    struct chat_request r = {&s->models, &s->records, body, o, "resp_", before.tokens_n ? &before : NULL};
    bool ok = o && !e->status && chat_job_answer(x, &r, &form, &st, e);
    json_decref(o);
    kept_free_before(&before);
    return ok;
}

static bool count(struct server *s, struct exchange *x, json_t *body, struct serve_error *e)
{
    struct chat_job c = {0};
    struct chat_before before = {0};
    json_t *o = translate(s, x, (struct fields){body, e}, &before);
    bool ok = o && !e->status && chat_job_open(&c, x, &s->models, o, e);
    if (ok)
        exchange_json(x, 200, json_pack("{s:s, s:I}", "object", "response.input_tokens", "input_tokens", (json_int_t)c.tokens_n));
    chat_job_free(&c);
    json_decref(o);
    kept_free_before(&before);
    return ok;
}

void route_responses_tokens(struct server *s, struct exchange *x) { route_with_body(s, x, count); }
void route_responses(struct server *s, struct exchange *x) { route_with_body(s, x, answer); }
