/* route_completions.c: POST /v1/completions: text in, text out, without a chat template; and /completion, llama.cpp's form of it.
 * SPDX-License-Identifier: MIT */
#include "routes/routes.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "serve/inputs.h"

/* A list of prompts is answered one by one; choices are numbered over all prompts. */
enum { PROMPTS_MAX = 64 };

struct completion {
    struct server *server;
    struct exchange *x;
    struct pooled_model *model;
    struct params params;
    bool echo, native; /* native: also llama.cpp's own members, beside OpenAI's */
    bool many;             /* a list of prompts was sent */
    const char *stop_type, *stop_word; /* of the first choice, as llama.cpp says it */
    json_t *response_fields; /* NULL, or the members that a native answer has, as paths */
    json_t *whole;           /* native: the answer of each prompt so far */
    struct out_text native_text; /* of the first choice */
    struct generate_job job;
    struct out_text *texts; /* [params.choices] */
    json_t **logprobs;      /* [params.choices] */
    const char **finish;    /* [params.choices] */
    size_t first;           /* number of the first choice of this prompt */
    json_t *choices;        /* of all prompts so far */
    size_t prompt_tokens, answer_tokens, cached_tokens;
    char id[64];
};

static json_t *head(const struct completion *c)
{
    return json_pack("{s:s, s:s, s:I, s:s, s:s}", "id", c->id, "object", "text_completion", "created", (json_int_t)time(NULL),
                     "model", c->model->name, "system_fingerprint", SERVE_FINGERPRINT);
}

/* OpenAI's older form: parallel lists. offset: of the first text, in characters of the choice. */
static json_t *logprobs_json(json_t *list, size_t offset)
{
    json_t *tokens = json_array(), *values = json_array(), *tops = json_array(), *offsets = json_array(), *entry, *t;
    size_t i, k;
    if (!list) {
        json_decref(tokens), json_decref(values), json_decref(tops), json_decref(offsets);
        return json_null();
    }
    json_array_foreach(list, i, entry)
    {
        json_t *top = json_object();
        json_array_append(tokens, json_object_get(entry, "token"));
        json_array_append(values, json_object_get(entry, "logprob"));
        json_array_foreach(json_object_get(entry, "top_logprobs"), k, t)
            json_object_set(top, json_string_value(json_object_get(t, "token")), json_object_get(t, "logprob"));
        json_array_append_new(tops, top);
        json_array_append_new(offsets, json_integer((json_int_t)offset));
        offset += json_string_length(json_object_get(entry, "token"));
    }
    return json_pack("{s:o, s:o, s:o, s:o}", "tokens", tokens, "token_logprobs", values, "top_logprobs", tops, "text_offset",
                     offsets);
}

static json_t *choice_json(const struct completion *c, size_t index, const char *text, size_t len, json_t *logprobs,
                           const char *finish)
{
    return json_pack("{s:I, s:o, s:o, s:s?}", "index", (json_int_t)(c->first + index), "text", out_string(text ? text : "", len),
                     "logprobs", logprobs_json(logprobs, 0), "finish_reason", finish);
}

static json_t *ids_json(const int32_t *tokens, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(list, json_integer(tokens[i]));
    return list;
}

/* The members of llama.cpp's /completion that every event has. tokens [n]: of the text. */
static void add_native(const struct completion *c, json_t *o, size_t index, const char *text, size_t len, json_t *tokens)
{
    json_object_set_new(o, "content", out_string(text ? text : "", len));
    json_object_set_new(o, "tokens", tokens);
    json_object_set_new(o, "index", json_integer((json_int_t)(c->first + index)));
    json_object_set_new(o, "id_slot", json_integer(c->job.slot == SIZE_MAX ? -1 : (json_int_t)c->job.slot));
    json_object_set_new(o, "stop", json_false());
    json_object_set_new(o, "tokens_predicted", json_integer((json_int_t)c->job.tokens_out));
    json_object_set_new(o, "tokens_evaluated", json_integer((json_int_t)c->job.tokens_n));
}

/* And those of the last event or the whole answer to a prompt. */
static void add_native_end(const struct completion *c, json_t *o)
{
    const struct generate_job *j = &c->job;
    struct out_text prompt = generate_text_of(c->model, j->tokens, j->tokens_n);
    const struct out_text *t = &c->native_text;
    bool full = c->stop_type && !strcmp(c->stop_type, "limit") && j->tokens_n + j->tokens_out >= c->model->context;
    json_object_set_new(o, "stop", json_true());
    json_object_set_new(o, "stop_type", json_string(c->stop_type ? c->stop_type : "none"));
    json_object_set_new(o, "stopping_word", json_string(c->stop_word ? c->stop_word : ""));
    json_object_set_new(o, "truncated", json_boolean(full)); /* by the context */
    json_object_set_new(o, "has_new_line", json_boolean(t->len && memchr(t->data, '\n', t->len)));
    json_object_set_new(o, "prompt", out_string(prompt.data, prompt.len));
    json_object_set_new(o, "generation_settings", generate_settings(j));
    json_object_set_new(o, "timings", generate_timings(j));
    json_object_set_new(o, "tokens_cached", json_integer((json_int_t)j->info.tokens_reused));
    free(prompt.data);
}

/* The value at a path "a/b" of an object; NULL: none. Borrowed. */
static json_t *at_path(json_t *o, const char *path)
{
    while (o && *path) {
        char key[64];
        size_t n = strcspn(path, "/");
        snprintf(key, sizeof key, "%.*s", (int)n, path);
        o = json_object_get(o, key);
        path += n + (path[n] == '/');
    }
    return o;
}

/* response_fields: only these members, under their paths. Steals the reference. */
static json_t *selected(const struct completion *c, json_t *o)
{
    json_t *out, *path, *v;
    size_t i;
    if (!json_array_size(c->response_fields)) return o;
    out = json_object();
    json_array_foreach(c->response_fields, i, path)
        if (json_is_string(path) && (v = at_path(o, json_string_value(path)))) json_object_set(out, json_string_value(path), v);
    json_decref(o);
    return out;
}

static bool send_chunk(struct completion *c, size_t index, const char *text, size_t len, json_t *logprobs, const char *finish)
{
    json_t *o = head(c);
    if (!c->x->streaming) exchange_stream(c->x, EXCHANGE_EVENTS);
    json_object_set_new(o, "choices", json_pack("[o]", choice_json(c, index, text, len, logprobs, finish)));
    if (c->native) add_native(c, o, index, text, len, ids_json(c->job.piece, c->job.piece_n));
    if (c->native && logprobs) json_object_set(o, "completion_probabilities", logprobs);
    if (c->params.timings_per_token) json_object_set_new(o, "timings", generate_timings(&c->job));
    return exchange_event(c->x, NULL, o);
}

static bool on_progress(void *context, size_t cached, size_t done, double ms)
{
    struct completion *c = context;
    json_t *o = head(c);
    if (!c->params.stream) return json_decref(o), true;
    if (!c->x->streaming) exchange_stream(c->x, EXCHANGE_EVENTS);
    if (c->native) add_native(c, o, 0, "", 0, json_array());
    json_object_set_new(o, "choices", json_array());
    json_object_set_new(o, "prompt_progress", generate_progress(&c->job, cached, done, ms));
    json_object_set_new(o, "timings", generate_progress_timings(cached, done, ms));
    return exchange_event(c->x, NULL, o);
}

static bool on_text(void *context, size_t index, const char *text, size_t len, json_t *logprobs)
{
    struct completion *c = context;
    bool go = true;
    if (c->native && !index) out_add(&c->native_text, text, len);
    if (c->params.stream)
        go = send_chunk(c, index, text, len, logprobs, NULL);
    else {
        out_add(&c->texts[index], text, len);
        if (logprobs) {
            if (!c->logprobs[index]) c->logprobs[index] = json_array();
            json_array_extend(c->logprobs[index], logprobs);
        }
    }
    json_decref(logprobs);
    return go;
}

static bool on_finish(void *context, size_t index, const char *reason, const char *stop)
{
    struct completion *c = context;
    c->finish[index] = reason;
    if (!c->stop_type) {
        c->stop_type = !strcmp(reason, "length") ? "limit" : stop ? "word" : "eos";
        c->stop_word = stop;
    }
    return !c->params.stream || c->native || send_chunk(c, index, "", 0, NULL, reason); /* native: the last event says it */
}

/* The prompt's own text before each choice. */
static bool echo(struct completion *c, const int32_t *tokens, size_t n, struct serve_error *e)
{
    struct out_text text = {0};
    segue_error err = {0};
    segue_status st;
    OUT_GROW(text, st,
             segue_detokenize(c->model->placement.model, tokens, n, SEGUE_TEXT_NO_SPECIAL, text.data, text.cap, &text.len, &err));
    for (size_t i = 0; !st && i < c->params.choices; i++) on_text(c, i, text.data, text.len, NULL);
    free(text.data);
    return !st || serve_fail_of(e, &err);
}

static json_t *usage_json(size_t prompt, size_t answer, size_t cached)
{
    return json_pack("{s:I, s:I, s:I, s:{s:I}}", "prompt_tokens", (json_int_t)prompt, "completion_tokens", (json_int_t)answer,
                     "total_tokens", (json_int_t)(prompt + answer), "prompt_tokens_details", "cached_tokens",
                     (json_int_t)cached);
}

/* The whole answer to one prompt, or the last event of its stream, with llama.cpp's members beside OpenAI's. */
static json_t *native_json(const struct completion *c, json_t *choices, json_t *logprobs)
{
    const struct generate_job *j = &c->job;
    json_t *o = head(c);
    size_t n = c->params.return_tokens && !c->params.stream ? j->all_n - j->tokens_n : 0;
    const char *text = c->params.stream ? NULL : c->native_text.data;
    add_native(c, o, 0, text, text ? c->native_text.len : 0, ids_json(j->all + j->tokens_n, n));
    add_native_end(c, o);
    json_object_set(o, "choices", choices);
    json_object_set_new(o, "usage", usage_json(j->tokens_n, j->tokens_out, j->info.tokens_reused));
    json_object_set_new(o, "segue", generate_report(j));
    if (logprobs) json_object_set(o, "completion_probabilities", logprobs);
    if (c->params.verbose) json_object_set_new(o, "__verbose", generate_verbose(j));
    return selected(c, o);
}

/* What remains of an answered prompt: its choices, or its native answer. In a stream the choices have no text, which was sent. */
static void keep_prompt(struct completion *c)
{
    json_t *choices = json_array();
    for (size_t i = 0; i < c->params.choices; i++)
        json_array_append_new(choices, choice_json(c, i, c->texts[i].data, c->texts[i].len, c->logprobs[i], c->finish[i]));
    if (!c->params.stream) json_array_extend(c->choices, choices);
    if (c->native) {
        json_t *o = native_json(c, choices, c->logprobs[0]);
        if (c->params.stream) exchange_event(c->x, NULL, o);
        else json_array_append_new(c->whole, o);
    }
    json_decref(choices);
}

/* Answer one prompt. */
static bool run_prompt(struct completion *c, const int32_t *tokens, size_t n, struct serve_error *e)
{
    size_t choices = c->params.choices;
    c->texts = out_alloc(choices * sizeof *c->texts);
    c->logprobs = out_alloc(choices * sizeof *c->logprobs);
    c->finish = out_alloc(choices * sizeof *c->finish);
    c->stop_type = c->stop_word = NULL;
    c->native_text.len = 0;
    c->job = (struct generate_job){.x = c->x,
                                   .model = c->model,
                                   .params = &c->params,
                                   .tokens = tokens,
                                   .tokens_n = n,
                                   .sink = {c, on_text, on_finish, NULL, on_progress}};
    bool ok = (!c->echo || echo(c, tokens, n, e)) && generate_run(&c->job, e);
    if (ok) keep_prompt(c);
    free(c->job.all);
    c->job.all = NULL;
    c->prompt_tokens += n;
    c->answer_tokens += c->job.tokens_out;
    c->cached_tokens += c->job.info.tokens_reused;
    for (size_t i = 0; i < choices; i++) {
        free(c->texts[i].data);
        json_decref(c->logprobs[i]);
    }
    free(c->texts), free(c->logprobs), free(c->finish);
    c->first += choices;
    return ok;
}

static bool run_value(struct completion *c, json_t *v, struct serve_error *e)
{
    size_t n;
    int32_t *tokens = input_tokens(c->model, v, "prompt", &n, e);
    bool ok = tokens && run_prompt(c, tokens, n, e);
    free(tokens);
    return ok;
}

static bool run_prompts(struct completion *c, struct fields f)
{
    json_t *prompt = field(f, "prompt"), *v;
    size_t i;
    if (!prompt) return serve_fail(f.e, 400, "prompt", "prompt: expected a text, a list of token ids, or a list of these");
    c->many = input_is_list(prompt);
    if (!c->many) return run_value(c, prompt, f.e);
    if (!json_array_size(prompt) || json_array_size(prompt) > PROMPTS_MAX)
        return serve_fail(f.e, 400, "prompt", "prompt: expected 1 to %d prompts", PROMPTS_MAX);
    json_array_foreach(prompt, i, v) if (!run_value(c, v, f.e)) return false;
    return true;
}

static void finish_answer(struct completion *c)
{
    if (c->native) {
        if (c->params.stream) exchange_end(c->x, true);
        else exchange_json(c->x, 200, json_incref(c->many ? c->whole : json_array_get(c->whole, 0)));
        return;
    }
    json_t *o = head(c);
    json_object_set(o, "choices", c->choices);
    json_object_set_new(o, "usage", usage_json(c->prompt_tokens, c->answer_tokens, c->cached_tokens));
    json_object_set_new(o, "segue", generate_report(&c->job));
    if (c->params.verbose) json_object_set_new(o, "__verbose", generate_verbose(&c->job));
    if (!c->params.stream) {
        exchange_json(c->x, 200, o);
        return;
    }
    json_object_set_new(o, "timings", generate_timings(&c->job));
    if (c->params.include_usage) exchange_event(c->x, NULL, o);
    else json_decref(o);
    exchange_end(c->x, true);
}

bool answer_completion(struct server *s, struct exchange *x, json_t *body, struct serve_error *e)
{
    struct fields f = {body, e};
    struct completion c = {.server = s, .x = x};
    const char *model = field_text(f, "model", NULL);
    if (e->status || !(c.model = model_pool_acquire(&s->models, model, true, e))) return false;
    c.choices = json_array();
    c.whole = json_array();
    c.response_fields = field_array(f, "response_fields");
    chat_job_id(c.id, sizeof c.id, "cmpl-");
    c.echo = field_bool(f, "echo", false);
    c.native = strncmp(x->path, "/v1/", 4) != 0;
    if (field_has(f, "suffix")) serve_fail(e, 400, "suffix", "suffix: not supported; the model only continues texts");
    if (field_int(f, "best_of", 1, PARAMS_CHOICES, 1) > field_int(f, "n", 1, PARAMS_CHOICES, 1))
        serve_fail(e, 400, "best_of", "best_of: a value above n is not supported; set it to n");
    bool ok = params_read(&c.params, f, c.model);
    if (ok && !c.params.max_tokens) c.params.max_tokens = c.native || field_has(f, "n_predict") ? 0 : 16; /* OpenAI's default */
    ok = ok && !e->status && run_prompts(&c, f);
    if (ok) finish_answer(&c);
    json_decref(c.choices);
    json_decref(c.whole);
    free(c.native_text.data);
    params_free(&c.params);
    model_pool_release(&s->models, c.model);
    return ok;
}

void route_completions(struct server *s, struct exchange *x) { route_with_body(s, x, answer_completion); }
