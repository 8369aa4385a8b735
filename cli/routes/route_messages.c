/* route_messages.c: Anthropic's POST /v1/messages and /v1/messages/count_tokens, translated to the chat form and back.
 * SPDX-License-Identifier: MIT */
#include "routes/routes.h"

#include <stdlib.h>
#include <string.h>

/* --- the request --- */

/* The text of a string or of text blocks. NULL: e has the reason. */
static json_t *block_text(json_t *v, const char *where, struct serve_error *e)
{
    struct out_text text = {0};
    json_t *block;
    size_t i;
    if (json_is_string(v)) return json_copy(v);
    json_array_foreach(v, i, block)
    {
        const char *type = json_string_value(json_object_get(block, "type"));
        json_t *t = json_object_get(block, "text");
        if (type && !strcmp(type, "text") && json_is_string(t)) {
            out_add(&text, json_string_value(t), json_string_length(t));
            continue;
        }
        serve_fail(e, 400, where, "%s[%zu]: blocks of type '%.40s' are not supported; this server reads text only", where, i,
                   type ? type : "(none)");
    }
    json_t *out = e->status ? NULL : out_string(text.data ? text.data : "", text.len);
    free(text.data);
    return out;
}

/* Blocks of "system" that are not to be cached, after those that are: what changes with each request, as some agents put it
 * first, does not prevent the reuse of the rest. The order depends on the request alone. */
static json_t *stable_first(json_t *system)
{
    json_t *out = json_array(), *block;
    size_t i, marked = 0;
    json_array_foreach(system, i, block) if (json_object_get(block, "cache_control")) marked = i + 1;
    for (int moved = 0; moved < 2; moved++)
        json_array_foreach(system, i, block) if (((i < marked && !json_object_get(block, "cache_control")) != 0) == moved)
            json_array_append(out, block);
    return out;
}

/* One block of a message: text and thinking go into `message`, calls too, results become messages of their own. */
static void add_block(json_t *list, json_t *message, struct out_text *text, json_t *block, size_t at, struct serve_error *e)
{
    const char *type = json_string_value(json_object_get(block, "type"));
    if (!type) type = "(none)";
    if (!strcmp(type, "text") && json_is_string(json_object_get(block, "text")))
        out_add(text, json_string_value(json_object_get(block, "text")), json_string_length(json_object_get(block, "text")));
    else if (!strcmp(type, "thinking"))
        json_object_set(message, "reasoning_content", json_object_get(block, "thinking"));
    else if (!strcmp(type, "redacted_thinking"))
        return;
    else if (!strcmp(type, "tool_use")) {
        json_t *calls = json_object_get(message, "tool_calls"), *input = json_object_get(block, "input");
        if (!calls) json_object_set_new(message, "tool_calls", calls = json_array());
        json_array_append_new(calls,
                              json_pack("{s:O?, s:s, s:{s:O?, s:O?}}", "id", json_object_get(block, "id"), "type", "function",
                                        "function", "name", json_object_get(block, "name"), "arguments", input));
    } else if (!strcmp(type, "tool_result")) {
        json_t *content = json_object_get(block, "content");
        json_t *result = content ? block_text(content, "content", e) : json_string("");
        if (result)
            json_array_append_new(list, json_pack("{s:s, s:O?, s:o}", "role", "tool", "tool_call_id",
                                                  json_object_get(block, "tool_use_id"), "content", result));
    } else
        serve_fail(e, 400, "messages", "messages[%zu]: blocks of type '%.40s' are not supported; this server reads text only", at,
                   type);
}

static void add_message(json_t *list, json_t *m, size_t at, struct serve_error *e)
{
    const char *role = json_string_value(json_object_get(m, "role"));
    json_t *content = json_object_get(m, "content"), *block;
    if (!role || (strcmp(role, "user") != 0 && strcmp(role, "assistant") != 0 && strcmp(role, "system") != 0)) {
        serve_fail(e, 400, "messages", "messages[%zu].role: expected user or assistant", at);
        return;
    }
    json_t *message = json_pack("{s:s}", "role", role);
    struct out_text text = {0};
    size_t i;
    if (json_is_string(content))
        out_add(&text, json_string_value(content), json_string_length(content));
    else if (!json_is_array(content))
        serve_fail(e, 400, "messages", "messages[%zu].content: expected a string or a list of blocks", at);
    json_array_foreach(content, i, block) add_block(list, message, &text, block, at, e);
    json_object_set_new(message, "content", out_string(text.data ? text.data : "", text.len));
    bool keep = text.len || json_object_get(message, "tool_calls") || !json_array_size(content);
    if (keep) json_array_append(list, message);
    json_decref(message);
    free(text.data);
}

static bool translate_tools(json_t *body, json_t *o, struct serve_error *e)
{
    json_t *tools = json_object_get(body, "tools"), *choice = json_object_get(body, "tool_choice"), *t;
    const char *type = json_string_value(json_object_get(choice, "type"));
    size_t i;
    if (tools && !json_is_null(tools) && !json_is_array(tools)) return serve_fail(e, 400, "tools", "tools: expected an array");
    if (choice && !json_is_null(choice) && !type) /* OpenAI's words have no place here */
        return serve_fail(e, 400, "tool_choice", "tool_choice: expected an object with \"type\"");
    json_t *list = json_array();
    json_array_foreach(tools, i, t)
        json_array_append_new(list, json_pack("{s:s, s:{s:O?, s:O?, s:O?}}", "type", "function", "function", "name",
                                              json_object_get(t, "name"), "description", json_object_get(t, "description"),
                                              "parameters", json_object_get(t, "input_schema")));
    json_array_foreach(list, i, t) /* absent parts were packed as null */
    {
        json_t *function = json_object_get(t, "function");
        if (json_is_null(json_object_get(function, "description"))) json_object_del(function, "description");
        if (json_is_null(json_object_get(function, "parameters"))) json_object_del(function, "parameters");
    }
    if (json_array_size(list)) json_object_set(o, "tools", list);
    json_decref(list);
    if (type && !strcmp(type, "any"))
        json_object_set_new(o, "tool_choice", json_string("required"));
    else if (type && !strcmp(type, "tool"))
        json_object_set_new(o, "tool_choice",
                            json_pack("{s:s, s:{s:O?}}", "type", "function", "function", "name",
                                      json_object_get(choice, "name")));
    else if (type)
        json_object_set_new(o, "tool_choice", json_string(type));
    if (json_is_true(json_object_get(choice, "disable_parallel_tool_use")))
        json_object_set_new(o, "parallel_tool_calls", json_false());
    return true;
}

/* The body in OpenAI's form, as a new reference. NULL: e has the reason. */
static json_t *translate(json_t *body, bool counting, struct serve_error *e)
{
    static const char *const same[] = {"model",  "max_tokens", "temperature",     "top_p",   "top_k", "stop_sequences",
                                       "stream", "thinking",   "response_format", "grammar", "seed",  "chat_template_kwargs",
                                       "min_p"};
    json_t *system = json_object_get(body, "system"), *messages = json_object_get(body, "messages"), *m;
    json_t *o = json_object(), *list = json_array();
    size_t i;
    if (!counting && !field_has((struct fields){body, e}, "max_tokens")) serve_fail(e, 400, "max_tokens", "max_tokens: required");
    for (size_t k = 0; k < sizeof same / sizeof *same; k++)
        if (json_object_get(body, same[k])) json_object_set(o, same[k], json_object_get(body, same[k]));
    if (system && !json_is_null(system)) {
        json_t *ordered = json_is_array(system) ? stable_first(system) : json_incref(system);
        json_t *text = json_is_string(system) || json_is_array(system) ? block_text(ordered, "system", e) : NULL;
        json_decref(ordered);
        if (text)
            json_array_append_new(list, json_pack("{s:s, s:o}", "role", "system", "content", text));
        else
            serve_fail(e, 400, "system", "system: expected a string or a list of text blocks");
    }
    if (!json_is_array(messages) || !json_array_size(messages))
        serve_fail(e, 400, "messages", "messages: expected a list of at least one message");
    json_array_foreach(messages, i, m) add_message(list, m, i, e);
    json_object_set_new(o, "messages", list);
    translate_tools(body, o, e);
    if (!e->status) return o;
    json_decref(o);
    return NULL;
}

/* --- the answer --- */

/* State of a stream: which content block is open. */
struct message_stream {
    struct prompt_records *records;
    json_t *request;  /* borrowed */
    int kind;         /* a chat_job_piece, or -1: no block is open */
    json_int_t index; /* of the next block */
    bool started;
};

static const char *stop_reason(const struct chat_job_choice *ch)
{
    if (!strcmp(ch->finish, "tool_calls")) return "tool_use";
    if (!strcmp(ch->finish, "length")) return "max_tokens";
    return ch->stop ? "stop_sequence" : "end_turn";
}

static json_t *usage_json(const struct chat_job *c)
{
    const segue_request_info *i = &c->job.info;
    size_t reused = i->tokens_reused < c->tokens_n ? i->tokens_reused : c->tokens_n;
    return json_pack("{s:I, s:I, s:I, s:I}", "input_tokens", (json_int_t)(c->tokens_n - reused), "output_tokens",
                     (json_int_t)c->job.tokens_out, "cache_read_input_tokens", (json_int_t)reused, "cache_creation_input_tokens",
                     (json_int_t)0);
}

/* Anthropic's cache diagnostics: what changed since the request of a message. Null: not asked for, or nothing did. */
static json_t *diagnostics_json(const struct chat_job *c)
{
    const struct message_stream *st = c->user;
    const char *previous = json_string_value(json_object_get(json_object_get(st->request, "diagnostics"), "previous_message_id"));
    if (!previous) return json_null();
    struct prompt_change change = prompt_records_compare(st->records, c->parts, c->x->realm, previous);
    if (!change.type) return json_null();
    json_t *reason = json_pack("{s:s}", "type", change.type);
    size_t before = change.tokens < c->tokens_n ? change.tokens : c->tokens_n, reused = c->job.info.tokens_reused;
    if (strstr(change.type, "_changed"))
        json_object_set_new(reason, "cache_missed_input_tokens",
                            json_integer(before > reused ? (json_int_t)(before - reused) : 0));
    if (change.what[0]) json_object_set_new(reason, "changed", json_string(change.what));
    return json_pack("{s:o}", "cache_miss_reason", reason);
}

static json_t *message_json(const struct chat_job *c, json_t *content, const struct chat_job_choice *ch)
{
    char id[64];
    snprintf(id, sizeof id, "msg_%s", c->id);
    json_t *o = json_pack("{s:s, s:s, s:s, s:s, s:o, s:o}", "id", id, "type", "message", "role", "assistant", "model",
                          c->model->name, "content", content, "usage", usage_json(c));
    json_object_set_new(o, "diagnostics", diagnostics_json(c));
    json_object_set_new(o, "stop_reason", ch ? json_string(stop_reason(ch)) : json_null());
    json_object_set_new(o, "stop_sequence", ch && ch->stop ? json_string(ch->stop) : json_null());
    return o;
}

static json_t *call_block(json_t *call, bool with_input)
{
    json_t *input = with_input ? json_loads(json_string_value(json_object_get(call, "arguments")), 0, NULL) : json_object();
    return json_pack("{s:s, s:O, s:O, s:o}", "type", "tool_use", "id", json_object_get(call, "id"), "name",
                     json_object_get(call, "name"), "input", input ? input : json_object());
}

static bool send_delta(struct chat_job *c, struct message_stream *st, const char *type, const char *key, const char *text,
                       size_t len)
{
    return exchange_event(c->x, "content_block_delta",
                          json_pack("{s:s, s:I, s:{s:s, s:o}}", "type", "content_block_delta", "index", st->index, "delta",
                                    "type", type, key, out_string(text, len)));
}

/* A block of thinking ends with its signature, which is empty here. */
static bool close_block(struct chat_job *c, struct message_stream *st)
{
    if (st->kind < 0) return true;
    if (st->kind == PIECE_REASONING && !send_delta(c, st, "signature_delta", "signature", "", 0)) return false;
    st->kind = -1;
    return exchange_event(c->x, "content_block_stop",
                          json_pack("{s:s, s:I}", "type", "content_block_stop", "index", st->index++));
}

static bool open_block(struct chat_job *c, struct message_stream *st, int kind, json_t *block)
{
    if (!close_block(c, st)) return false;
    st->kind = kind;
    return exchange_event(c->x, "content_block_start",
                          json_pack("{s:s, s:I, s:o}", "type", "content_block_start", "index", st->index, "content_block",
                                    block));
}

static bool on_piece(struct chat_job *c, struct chat_job_choice *ch, enum chat_job_piece kind, const char *text, size_t len)
{
    struct message_stream *st = c->user;
    if (!st->started) {
        st->started = true;
        exchange_stream(c->x, EXCHANGE_EVENTS);
        if (!exchange_event(c->x, "message_start",
                            json_pack("{s:s, s:o}", "type", "message_start", "message", message_json(c, json_array(), NULL))))
            return false;
    }
    if (kind == PIECE_FINISH || kind == PIECE_CALL_END) return close_block(c, st);
    if (kind == PIECE_CALL)
        return open_block(c, st, kind, call_block(json_array_get(ch->calls, json_array_size(ch->calls) - 1), false));
    if (kind == PIECE_ARGUMENTS) return send_delta(c, st, "input_json_delta", "partial_json", text, len);
    bool thinking = kind == PIECE_REASONING;
    if (st->kind != (int)kind &&
        !open_block(c, st, kind,
                    thinking ? json_pack("{s:s, s:s, s:s}", "type", "thinking", "thinking", "", "signature", "")
                             : json_pack("{s:s, s:s}", "type", "text", "text", "")))
        return false;
    return send_delta(c, st, thinking ? "thinking_delta" : "text_delta", thinking ? "thinking" : "text", text, len);
}

static void end_stream(struct chat_job *c)
{
    const struct chat_job_choice *ch = &c->choices[0];
    json_t *delta = json_pack("{s:s, s:s?}", "stop_reason", stop_reason(ch), "stop_sequence", ch->stop);
    exchange_event(c->x, "message_delta",
                   json_pack("{s:s, s:o, s:o, s:o}", "type", "message_delta", "delta", delta, "usage", usage_json(c), "segue",
                             generate_report(&c->job)));
    exchange_event(c->x, "message_stop", json_pack("{s:s}", "type", "message_stop"));
    exchange_end(c->x, false);
}

static json_t *whole(struct chat_job *c)
{
    const struct chat_job_choice *ch = &c->choices[0];
    json_t *content = json_array(), *call;
    size_t i;
    if (ch->reasoning.len)
        json_array_append_new(content, json_pack("{s:s, s:o, s:s}", "type", "thinking", "thinking",
                                                 out_string(ch->reasoning.data, ch->reasoning.len), "signature", ""));
    if (ch->content.len || !ch->calls)
        json_array_append_new(content, json_pack("{s:s, s:o}", "type", "text", "text",
                                                 out_string(ch->content.data ? ch->content.data : "", ch->content.len)));
    json_array_foreach(ch->calls, i, call) json_array_append_new(content, call_block(call, true));
    json_t *o = message_json(c, content, ch);
    json_object_set_new(o, "segue", generate_report(&c->job));
    return o;
}

static bool answer(struct server *s, struct exchange *x, json_t *body, struct serve_error *e)
{
    static const struct chat_form form = {on_piece, end_stream, whole, NULL, NULL};
    struct message_stream st = {.records = &s->records, .request = body, .kind = -1};
    json_t *o = translate(body, false, e);
    struct chat_request r = {&s->models, &s->records, body, o, "msg_", NULL};
    bool ok = o && chat_job_answer(x, &r, &form, &st, e);
    json_decref(o);
    return ok;
}

static bool count(struct server *s, struct exchange *x, json_t *body, struct serve_error *e)
{
    struct chat_job c;
    json_t *o = translate(body, true, e);
    if (!o) return false;
    bool ok = chat_job_open(&c, x, &s->models, o, e);
    if (ok) exchange_json(x, 200, json_pack("{s:I}", "input_tokens", (json_int_t)c.tokens_n));
    chat_job_free(&c);
    json_decref(o);
    return ok;
}

void route_messages(struct server *s, struct exchange *x) { route_with_body(s, x, answer); }
void route_count_tokens(struct server *s, struct exchange *x) { route_with_body(s, x, count); }
