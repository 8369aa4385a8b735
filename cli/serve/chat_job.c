/* chat_job.c: see chat_job.h. SPDX-License-Identifier: MIT */
#include "serve/chat_job.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

void chat_job_id(char *out, size_t cap, const char *prefix)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    size_t n = (size_t)snprintf(out, cap, "%s", prefix), end = n + 24 < cap ? n + 24 : cap - 1;
    while (n < end) out[n++] = letters[randombytes_uniform(sizeof letters - 1)];
    out[n] = 0;
}

/* --- the request --- */

/* The text of a content: a string, null, or parts of type text. Other parts are refused by name. NULL: e has the reason. */
static json_t *content_text(json_t *content, size_t message, struct serve_error *e)
{
    json_t *part;
    struct out_text text = {0};
    size_t i;
    if (!content || json_is_null(content)) return json_string("");
    if (json_is_string(content)) return json_copy(content);
    if (!json_is_array(content)) {
        serve_fail(e, 400, "messages", "messages[%zu].content: expected a string, null or a list of parts", message);
        return NULL;
    }
    json_array_foreach(content, i, part)
    {
        const char *type = json_string_value(json_object_get(part, "type"));
        json_t *t = json_object_get(part, "text");
        bool is_text = type && (!strcmp(type, "text") || !strcmp(type, "input_text") || !strcmp(type, "output_text") ||
                                !strcmp(type, "refusal"));
        if (!is_text || !json_is_string(t)) {
            serve_fail(e, 400, "messages",
                       "messages[%zu].content[%zu]: parts of type '%.40s' are not supported; this server reads "
                       "text only (no images, audio or files)",
                       message, i, type ? type : "(none)");
            free(text.data);
            return NULL;
        }
        out_add(&text, json_string_value(t), json_string_length(t));
    }
    json_t *out = out_string(text.data ? text.data : "", text.len);
    free(text.data);
    return out;
}

/* A copy of the messages with plain texts. NULL: e has the reason. */
static json_t *plain_messages(json_t *messages, struct serve_error *e)
{
    json_t *m;
    size_t i;
    if (!json_is_array(messages) || !json_array_size(messages)) {
        serve_fail(e, 400, "messages", "messages: expected a list of at least one message");
        return NULL;
    }
    json_t *list = json_array();
    json_array_foreach(messages, i, m)
    {
        const char *role = json_string_value(json_object_get(m, "role"));
        json_t *text = json_is_object(m) && role ? content_text(json_object_get(m, "content"), i, e) : NULL;
        if (!json_is_object(m) || !role) serve_fail(e, 400, "messages", "messages[%zu]: expected an object with a role", i);
        if (!text) {
            json_decref(list);
            return NULL;
        }
        json_t *copy = json_copy(m);
        if (!strcmp(role, "developer")) json_object_set_new(copy, "role", json_string("system"));
        json_object_set_new(copy, "content", text);
        json_array_append_new(list, copy);
    }
    return list;
}

/* Removes the last message of the conversation if the answer continues its text: with continue_final_message, or when it is a
 * text of the assistant, which llama.cpp and Anthropic continue. The template then writes the beginning of an answer as usual. */
static bool take_beginning(struct chat_job *c, struct fields f, json_t *request)
{
    json_t *messages = json_object_get(request, "messages");
    size_t n = json_array_size(messages);
    json_t *last = json_array_get(messages, n - 1), *text = json_object_get(last, "content");
    bool fits = n > 1 && !strcmp(json_string_value(json_object_get(last, "role")), "assistant") && json_string_length(text) &&
                !json_array_size(json_object_get(last, "tool_calls"));
    bool asked = field_has(f, "add_generation_prompt");
    bool go_on = field_bool(f, "continue_final_message", fits && !asked), prompt = field_bool(f, "add_generation_prompt", !go_on);
    if (f.e->status) return false;
    if (go_on && prompt)
        return serve_fail(f.e, 400, "continue_final_message",
                          "continue_final_message: cannot be combined with add_generation_prompt");
    if (go_on && !fits)
        return serve_fail(f.e, 400, "continue_final_message",
                          "continue_final_message: the last message is not a text of the assistant after other messages");
    const char *before = fits ? json_string_value(json_object_get(json_array_get(messages, n - 2), "role")) : NULL;
    if (go_on && before && !strcmp(before, "assistant"))
        return serve_fail(f.e, 400, "messages", "messages: two messages of the assistant at the end; only one can be continued");
    if (!go_on) {
        json_object_set_new(request, "add_generation_prompt", json_boolean(prompt));
        return true;
    }
    c->beginning = json_incref(text);
    json_object_set_new(request, "enable_thinking", json_false());
    json_array_remove(messages, n - 1);
    return true;
}

static bool check_tools(json_t *tools, struct serve_error *e)
{
    json_t *t;
    size_t i;
    json_array_foreach(tools, i, t)
    {
        json_t *function = json_object_get(t, "function");
        const char *type = json_string_value(json_object_get(t, "type")),
                   *name = json_string_value(json_object_get(function, "name"));
        if (type && strcmp(type, "function") != 0)
            return serve_fail(e, 400, "tools", "tools[%zu]: type '%.40s' is not supported; use function", i, type);
        if (!name || !*name || strlen(name) > 256)
            return serve_fail(e, 400, "tools", "tools[%zu].function.name: expected a name", i);
    }
    return true;
}

/* The template of --chat-template-file or of the model; free it. */
static char *template_source(const struct chat_job *c)
{
    struct out_text text = {0};
    segue_status st;
    if (c->models->chat_template.len) return out_strdup(c->models->chat_template.data);
    OUT_GROW(text, st,
             segue_model_describe(c->model->placement.model, SEGUE_DESCRIBE_TEMPLATE, text.data, text.cap, &text.len, NULL));
    if (st) text.len = 0;
    text.data[text.len] = 0;
    return text.data;
}

/* Make references into a schema (#/...) hold where the schema is moved to `place` of another document. */
static void move_references(json_t *schema, const char *place)
{
    json_t *work = json_pack("[O]", schema), *v;
    const char *key;
    size_t i;
    while (json_array_size(work)) {
        json_t *at = json_incref(json_array_get(work, json_array_size(work) - 1));
        json_array_remove(work, json_array_size(work) - 1);
        const char *ref = json_string_value(json_object_get(at, "$ref"));
        if (ref && ref[0] == '#') {
            char *moved = out_printf("%s%s", place, ref + 1);
            json_object_set_new(at, "$ref", json_string(moved));
            free(moved);
        }
        json_object_foreach(at, key, v) if (json_is_object(v) || json_is_array(v)) json_array_append(work, v);
        json_array_foreach(at, i, v) if (json_is_object(v) || json_is_array(v)) json_array_append(work, v);
        json_decref(at);
    }
    json_decref(work);
}

/* The schema of one call of a tool, {"name": const, KEY: parameters}, as part `index` of the list at `place`. */
static json_t *call_schema(json_t *function, const char *key, const char *place, size_t index)
{
    json_t *parameters = json_object_get(function, "parameters");
    json_t *schema = json_is_object(parameters) ? json_deep_copy(parameters) : json_pack("{s:s}", "type", "object");
    char *inner = out_printf("%s/%zu/properties/%s", place, index, key);
    move_references(schema, inner);
    free(inner);
    return json_pack("{s:s, s:{s:{s:O}, s:o}, s:[s,s], s:b}", "type", "object", "properties", "name", "const",
                     json_object_get(function, "name"), key, schema, "required", "name", key, "additionalProperties", 0);
}

/* True if a text is one token of the model. */
static bool is_token(const struct pooled_model *m, const char *text)
{
    struct serve_error ignored = {0};
    size_t n = 0;
    free(generate_tokenize(m, text, strlen(text), SEGUE_TEXT_NO_BOS, &n, &ignored));
    return n == 1;
}

/* tool_choice "required" or a named function: the answer is constrained to calls, in the form of the model's template. */
static bool force_tools(struct chat_job *c, json_t *tools, const char *only, bool parallel, struct serve_error *e)
{
    json_t *any = json_array(), *t;
    size_t i;
    char *template = template_source(c);
    bool mistral = strstr(template, "[TOOL_CALLS]") != NULL, special = mistral && is_token(c->model, "[TOOL_CALLS]");
    bool llama = strstr(template, "\"parameters\": ") && !strstr(template, "<tool_call>");
    const char *begin = mistral ? "[TOOL_CALLS]" : llama ? "" : "<tool_call>\n", *end = mistral || llama ? "" : "\n</tool_call>";
    free(template);
    json_array_foreach(tools, i, t)
    {
        json_t *function = json_object_get(t, "function");
        if (!only || !strcmp(only, json_string_value(json_object_get(function, "name"))))
            json_array_append_new(any, call_schema(function, llama ? "parameters" : "arguments",
                                                   mistral ? "#/items/anyOf" : "#/anyOf", json_array_size(any)));
    }
    bool found = json_array_size(any) > 0, ok = false;
    json_t *schema = json_pack("{s:o, s:{s:s, s:s, s:b}}", "anyOf", any, "x-segue", "begin", begin, "end", end, "repeat",
                               parallel && !mistral && !llama);
    if (mistral)
        schema = json_pack("{s:s, s:o, s:i, s:i, s:{s:s, s:b}}", "type", "array", "items", schema, "minItems", 1, "maxItems",
                           parallel ? 16 : 1, "x-segue", "begin", begin, "special", special);
    char *text = json_dumps(schema, JSON_COMPACT);
    if (!found)
        serve_fail(e, 400, "tool_choice", "tool_choice: no tool is named '%.100s'", only ? only : "");
    else
        ok = params_constrain(&c->params, c->model, SEGUE_GRAMMAR_JSON_SCHEMA, text, strlen(text), "tools", e);
    free(text);
    json_decref(schema);
    return ok;
}

static bool read_tools(struct chat_job *c, struct fields f, json_t *request)
{
    json_t *tools = field_array(f, "tools"), *choice = field(f, "tool_choice");
    const char *word = json_string_value(choice);
    const char *only = json_string_value(json_object_get(json_object_get(choice, "function"), "name"));
    if (!only) only = json_string_value(json_object_get(choice, "name"));
    if (choice && !only && (!word || (strcmp(word, "none") != 0 && strcmp(word, "auto") != 0 && strcmp(word, "required") != 0)))
        return serve_fail(f.e, 400, "tool_choice",
                          "tool_choice: expected none, auto, required or {\"type\": \"function\", \"function\": "
                          "{\"name\": NAME}}");
    bool parallel = field_bool(f, "parallel_tool_calls", true);
    if (!tools || !json_array_size(tools)) {
        json_object_del(request, "tools");
        if (only || (word && !strcmp(word, "required")))
            return serve_fail(f.e, 400, "tool_choice", "tool_choice: there are no tools");
        return !f.e->status;
    }
    if (!check_tools(tools, f.e)) return false;
    if (word && !strcmp(word, "none")) {
        json_object_del(request, "tools");
        return true;
    }
    c->tools = true;
    json_object_set_new(request, "tools", tools = history_tools(tools));
    if (only || (word && !strcmp(word, "required"))) return force_tools(c, tools, only, parallel, f.e);
    return true;
}

/* Today's date, for templates that write one: the variables of llama.cpp's server. Not with --deterministic, where an answer
 * depends on the request alone. */
static void set_dates(const struct chat_job *c, json_t *request)
{
    char date[64], american[64];
    time_t now = time(NULL);
    struct tm local;
    if (args_has(&c->model->args, "deterministic") || !localtime_r(&now, &local)) return;
    strftime(date, sizeof date, "%d %b %Y", &local);
    strftime(american, sizeof american, "%b %d %Y", &local);
    json_object_set_new(request, "date_string", json_string(date));
    json_object_set_new(request, "datetime", json_string(american));
}

/* Variables of the template: dates, the request's chat_template_kwargs, and the switch of the reasoning, which is on as in
 * llama.cpp's server. A constrained answer does not reason unless the request asks for it, since a constraint begins with the
 * first token; --reasoning is for the others. */
static void read_variables(struct chat_job *c, struct fields f, json_t *request)
{
    json_t *more = field_object(f, "chat_template_kwargs"), *thinking = field(f, "thinking");
    const char *effort = field_text(f, "reasoning_effort", NULL);
    const char *server = args_text(&c->model->args, "reasoning");
    set_dates(c, request);
    if (more) json_object_update(request, more);
    bool reasons = !c->params.grammar && (!server || strcmp(server, "off") != 0);
    if (!json_object_get(request, "enable_thinking")) json_object_set_new(request, "enable_thinking", json_boolean(reasons));
    if (effort) json_object_set_new(request, "enable_thinking", json_boolean(strcmp(effort, "none") != 0));
    if (field_has(f, "enable_thinking"))
        json_object_set_new(request, "enable_thinking", json_boolean(field_bool(f, "enable_thinking", true)));
    if (thinking && field_object(f, "thinking")) {
        const char *type = json_string_value(json_object_get(thinking, "type"));
        struct fields t = {thinking, f.e};
        bool on = type && strcmp(type, "disabled") != 0;
        json_object_set_new(request, "enable_thinking", json_boolean(on));
        long long budget = field_int(t, "budget_tokens", 0, INT32_MAX, -1);
        if (on && budget >= 0) c->params.thinking_budget = (size_t)budget;
    }
}

/* The text of a token that templates write; empty: there is none. */
static struct out_text special_text(const struct chat_job *c, int32_t token)
{
    return generate_text_of(c->model, &token, token >= 0 ? 1 : 0);
}

/* The prompt as the template writes it. */
static segue_status format(const struct chat_job *c, const char *request, struct out_text *out, segue_error *err)
{
    const struct out_text *t = &c->models->chat_template;
    const segue_model *m = c->model->placement.model;
    segue_status st;
    size_t n = strlen(request);
    if (!t->len) {
        OUT_GROW(*out, st, segue_chat_format(m, request, n, out->data, out->cap, &out->len, err));
        return st;
    }
    struct out_text bos = special_text(c, c->model->placement.info.bos), eos = special_text(c, c->model->placement.info.eos);
    bos.data[bos.len] = eos.data[eos.len] = 0;
    OUT_GROW(*out, st,
             segue_template_render(t->data, t->len, request, n, bos.data, eos.data, out->data, out->cap, &out->len, err));
    free(bos.data), free(eos.data);
    return st;
}

static segue_status format_request(const struct chat_job *c, struct out_text *out, segue_error *err)
{
    char *text = json_dumps(c->request, JSON_COMPACT);
    segue_status st = text ? format(c, text, out, err) : SEGUE_EMEMORY;
    free(text);
    return st;
}

/* The prompt's text. A template that refuses the order of roles, such as a system message, gets messages that are merged; one
 * that fails at a call gets calls as text. */
static bool write_prompt(struct chat_job *c, struct out_text *out, struct serve_error *e)
{
    segue_error err = {0}, ignored;
    segue_status st = format_request(c, out, &err);
    for (int with_calls = 0; st == SEGUE_EFORMAT && with_calls < 2; with_calls++) {
        json_t *messages = json_object_get(c->request, "messages");
        messages = with_calls ? history_calls_as_text(messages, true) : json_incref(messages);
        json_object_set_new(c->request, "messages", history_merged(messages));
        json_decref(messages);
        st = format_request(c, out, &ignored);
        c->job.merged = true;
    }
    return !st || serve_fail_of(e, &err);
}

static bool render(struct chat_job *c, struct serve_error *e)
{
    static const char open[] = "<think>";
    struct out_text out = {0};
    if (!write_prompt(c, &out, e)) {
        free(out.data);
        return false;
    }
    size_t n = out.len;
    while (n && (out.data[n - 1] == '\n' || out.data[n - 1] == ' ')) n--;
    c->thinking = n >= sizeof open - 1 && !memcmp(out.data + n - (sizeof open - 1), open, sizeof open - 1);
    /* A template that always begins with reasoning: it ends at once where none is wanted, or a constraint holds. */
    c->thought = c->thinking && (c->params.grammar || !json_is_true(json_object_get(c->request, "enable_thinking")));
    if (c->thought) out_add(&out, "</think>", 8);
    c->thinking = c->thinking && !c->thought;
    if (c->beginning && c->thinking) {
        free(out.data);
        return serve_fail(e, 400, "messages", "messages: a text of the assistant cannot be continued where the template begins "
                          "with thinking; turn thinking off, or send add_generation_prompt");
    }
    if (c->beginning) out_add(&out, json_string_value(c->beginning), json_string_length(c->beginning));
    /* The template writes the beginning-of-sequence token itself. */
    c->tokens = generate_tokenize(c->model, out.data, out.len, SEGUE_TEXT_NO_BOS, &c->tokens_n, e);
    c->prompt = out;
    return c->tokens != NULL;
}

static void hash_text(unsigned char out[CHAT_HASH_BYTES], const char *text, size_t n)
{
    crypto_generichash(out, CHAT_HASH_BYTES, (const unsigned char *)(n ? text : ""), n, NULL, 0);
}

void chat_before_prompt(struct chat_before *b, const struct out_text *prompt)
{
    b->prompt_n = prompt->len;
    hash_text(b->prompt_hash, prompt->data, prompt->len);
}

static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

/* The length of the prompt's text that is prompt and answer of b; 0: it begins otherwise. Templates may trim an answer. */
static size_t common_text(const struct out_text *p, const struct chat_before *b)
{
    const char *answer = b->answer.data;
    size_t at = b->prompt_n, n = b->answer.len;
    unsigned char hash[CHAT_HASH_BYTES];
    if (p->len < at) return 0;
    hash_text(hash, p->data, at);
    if (memcmp(hash, b->prompt_hash, sizeof hash) != 0) return 0;
    for (int trimmed = 0; trimmed < 2; trimmed++) {
        if (n <= p->len - at && (!n || !memcmp(p->data + at, answer, n))) return at + n;
        while (n && is_space(*answer)) answer++, n--;
        while (n && is_space(answer[n - 1])) n--;
    }
    return 0;
}

/* A token without text of its own: what follows is tokenized the same whatever is before it. */
static bool is_control(const struct pooled_model *m, int32_t token)
{
    char text[256];
    size_t len = 0;
    return !segue_detokenize(m->placement.model, &token, 1, SEGUE_TEXT_NO_SPECIAL, text, sizeof text, &len, NULL) && !len;
}

/* Replace the prompt's tokens by those of b and of the text after it, where that text begins with a control token. */
static void continue_from(struct chat_job *c, const struct chat_before *b)
{
    struct serve_error ignored = {0};
    size_t n, at = strcmp(b->model, c->model->name) != 0 ? 0 : common_text(&c->prompt, b);
    if (!at || at == c->prompt.len) return;
    int32_t *rest = generate_tokenize(c->model, c->prompt.data + at, c->prompt.len - at, SEGUE_TEXT_NO_BOS, &n, &ignored);
    if (rest && n && is_control(c->model, rest[0])) {
        c->tokens_n = b->tokens_n + n;
        c->tokens = out_realloc(c->tokens, c->tokens_n * sizeof *c->tokens);
        memcpy(c->tokens, b->tokens, b->tokens_n * sizeof *c->tokens);
        memcpy(c->tokens + b->tokens_n, rest, n * sizeof *rest);
    }
    free(rest);
}

bool chat_job_open(struct chat_job *c, struct exchange *x, struct model_pool *models, json_t *o, struct serve_error *e)
{
    struct fields f = {o, e};
    *c = (struct chat_job){.x = x, .models = models};
    json_t *messages = plain_messages(field(f, "messages"), e);
    if (!messages) return false;
    c->request = json_object();
    json_object_set_new(c->request, "messages", messages);
    const char *model = field_text(f, "model", NULL);
    if (e->status || !(c->model = model_pool_acquire(models, model, true, e))) return false;
    if (!params_read(&c->params, f, c->model)) return false;
    if (!take_beginning(c, f, c->request)) return false;
    if (field_array(f, "tools")) json_object_set(c->request, "tools", field(f, "tools"));
    if (e->status || !read_tools(c, f, c->request)) return false;
    char *template = template_source(c);
    json_t *adapted = history_adapt(json_object_get(c->request, "messages"), json_object_get(c->request, "tools"), template);
    json_object_set_new(c->request, "messages", adapted);
    free(template);
    read_variables(c, f, c->request);
    chat_job_id(c->id, sizeof c->id, "");
    return !e->status && render(c, e);
}

/* --- the answer --- */

static bool pass_piece(struct chat_job_choice *ch, enum chat_job_piece kind, const char *text, size_t len)
{
    struct chat_job *c = ch->owner;
    return !c->params.stream || c->form->piece(c, ch, kind, text, len);
}

static bool on_reasoning(void *context, const char *text, size_t len)
{
    struct chat_job_choice *ch = context;
    out_add(&ch->reasoning, text, len);
    return pass_piece(ch, PIECE_REASONING, text, len);
}

static bool on_content(void *context, const char *text, size_t len)
{
    struct chat_job_choice *ch = context;
    out_add(&ch->content, text, len);
    return pass_piece(ch, PIECE_CONTENT, text, len);
}

static bool on_call(void *context, const char *name, size_t len)
{
    struct chat_job_choice *ch = context;
    char id[40];
    chat_job_id(id, sizeof id, "call_");
    if (!ch->calls) ch->calls = json_array();
    json_array_append_new(ch->calls, json_pack("{s:s, s:o, s:s}", "id", id, "name", out_string(name, len), "arguments", ""));
    ch->arguments.len = 0;
    return pass_piece(ch, PIECE_CALL, "", 0);
}

static bool on_arguments(void *context, const char *text, size_t len)
{
    struct chat_job_choice *ch = context;
    out_add(&ch->arguments, text, len);
    return pass_piece(ch, PIECE_ARGUMENTS, text, len);
}

static bool on_call_end(void *context)
{
    struct chat_job_choice *ch = context;
    json_t *call = json_array_get(ch->calls, json_array_size(ch->calls) - 1);
    json_object_set_new(call, "arguments", out_string(ch->arguments.data ? ch->arguments.data : "", ch->arguments.len));
    return pass_piece(ch, PIECE_CALL_END, "", 0);
}

static bool on_text(void *context, size_t index, const char *text, size_t len, json_t *logprobs)
{
    struct chat_job *c = context;
    struct chat_job_choice *ch = &c->choices[index];
    if (logprobs) {
        if (!ch->logprobs) ch->logprobs = json_array();
        json_array_extend(ch->logprobs, logprobs);
        if (!ch->piece_logprobs) ch->piece_logprobs = json_array();
        json_array_extend(ch->piece_logprobs, logprobs);
        json_decref(logprobs);
    }
    return reply_add(&ch->reply, text, len);
}

static bool on_finish(void *context, size_t index, const char *reason, const char *stop)
{
    struct chat_job *c = context;
    struct chat_job_choice *ch = &c->choices[index];
    if (!reply_end(&ch->reply)) return false;
    ch->finish = ch->calls && !strcmp(reason, "stop") ? "tool_calls" : reason;
    ch->stop = stop;
    return pass_piece(ch, PIECE_FINISH, "", 0);
}

static bool in_reasoning(void *context, size_t index)
{
    struct chat_job *c = context;
    return c->choices[index].reply.thinking;
}

static bool on_progress(void *context, size_t cached, size_t done, double ms)
{
    struct chat_job *c = context;
    return !c->params.stream || !c->form->progress || c->form->progress(c, cached, done, ms);
}

static bool run(struct chat_job *c, struct serve_error *e)
{
    c->choices = out_alloc(c->params.choices * sizeof *c->choices);
    for (size_t i = 0; i < c->params.choices; i++) {
        struct chat_job_choice *ch = &c->choices[i];
        ch->owner = c;
        ch->index = i;
        struct reply_sink sink = {ch, on_reasoning, on_content, {ch, on_call, on_arguments, on_call_end}};
        reply_begin(&ch->reply, sink, c->tools, json_object_get(c->request, "tools"), c->thinking);
        ch->reply.together = c->params.thinking_in_content;
        ch->reply.reasoned = c->thought;
    }
    c->job = (struct generate_job){.x = c->x,
                                   .model = c->model,
                                   .params = &c->params,
                                   .tokens = c->tokens,
                                   .tokens_n = c->tokens_n,
                                   .special = c->tools,
                                   .changed = c->change.what,
                                   .merged = c->job.merged,
                                   .sink = {c, on_text, on_finish, in_reasoning, on_progress}};
    return generate_run(&c->job, e);
}

void chat_job_free(struct chat_job *c)
{
    for (size_t i = 0; c->choices && i < c->params.choices; i++) {
        struct chat_job_choice *ch = &c->choices[i];
        reply_free(&ch->reply);
        free(ch->reasoning.data);
        free(ch->content.data);
        free(ch->arguments.data);
        json_decref(ch->calls);
        json_decref(ch->logprobs);
        json_decref(ch->piece_logprobs);
    }
    free(c->choices);
    free(c->tokens);
    free(c->prompt.data);
    free(c->job.all);
    free(c->parts);
    params_free(&c->params);
    json_decref(c->request);
    json_decref(c->beginning);
    if (c->model) model_pool_release(c->models, c->model);
}

bool chat_job_answer(struct exchange *x, const struct chat_request *r, const struct chat_form *form, void *user,
                     struct serve_error *e)
{
    struct chat_job c;
    char id[64];
    bool ok = chat_job_open(&c, x, r->models, r->chat, e);
    c.form = form;
    c.user = user;
    if (ok && r->before) continue_from(&c, r->before);
    if (ok) {
        c.parts = out_alloc(sizeof *c.parts);
        prompt_parts_of(c.parts, r->body, c.model->name);
        c.change = prompt_records_compare(r->records, c.parts, x->realm, NULL);
        snprintf(id, sizeof id, "%s%s", r->id_prefix, c.id);
        prompt_records_add(r->records, c.parts, x->realm, id, c.tokens_n);
    }
    ok = ok && run(&c, e);
    if (ok && form->keep) form->keep(&c);
    if (ok && c.params.stream)
        form->end(&c);
    else if (ok)
        exchange_json(x, 200, form->whole(&c));
    chat_job_free(&c);
    return ok;
}
