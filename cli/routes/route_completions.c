/* route_completions.c: POST /v1/completions: text in, text out, without a chat template.
 * SPDX-License-Identifier: MIT */
#include "routes/routes.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A list of prompts is answered one by one; choices are numbered over all prompts. */
enum { PROMPTS_MAX = 64 };

struct completion {
    struct server *server;
    struct exchange *x;
    struct pooled_model *model;
    struct params params;
    bool echo, native; /* native: also llama.cpp's own members, beside OpenAI's */
    const char *stop_type; /* of the first choice, as llama.cpp says it */
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
    return json_pack("{s:s, s:s, s:I, s:s}", "id", c->id, "object", "text_completion", "created", (json_int_t)time(NULL), "model",
                     c->model->name);
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

/* The members of llama.cpp's /completion. done: of the last event, or the whole answer. */
static void add_native(const struct completion *c, json_t *o, size_t index, const char *text, size_t len, bool done)
{
    json_object_set_new(o, "content", out_string(text ? text : "", len));
    json_object_set_new(o, "stop", json_boolean(done));
    json_object_set_new(o, "index", json_integer((json_int_t)(c->first + index)));
    if (!done) return;
    json_object_set_new(o, "index", json_integer(0));
    json_object_set_new(o, "stop_type", json_string(c->stop_type ? c->stop_type : "none"));
    json_object_set_new(o, "truncated", json_false());
    json_object_set_new(o, "tokens_predicted", json_integer((json_int_t)c->answer_tokens));
    json_object_set_new(o, "tokens_evaluated", json_integer((json_int_t)c->prompt_tokens));
    json_object_set_new(o, "timings", generate_timings(&c->job));
    json_object_set_new(o, "tokens_cached", json_integer((json_int_t)c->cached_tokens));
}

static bool send_chunk(struct completion *c, size_t index, const char *text, size_t len, json_t *logprobs, const char *finish)
{
    json_t *o = head(c);
    if (!c->x->streaming) exchange_stream(c->x, EXCHANGE_EVENTS);
    json_object_set_new(o, "choices", json_pack("[o]", choice_json(c, index, text, len, logprobs, finish)));
    if (c->native) add_native(c, o, index, text, len, false);
    return exchange_event(c->x, NULL, o);
}

static bool on_text(void *context, size_t index, const char *text, size_t len, json_t *logprobs)
{
    struct completion *c = context;
    bool go = true;
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
    if (!c->stop_type) c->stop_type = !strcmp(reason, "length") ? "limit" : stop ? "word" : "eos";
    return !c->params.stream || send_chunk(c, index, "", 0, NULL, reason);
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

/* Answer one prompt, and keep its choices unless they were streamed. */
static bool run_prompt(struct completion *c, const int32_t *tokens, size_t n, struct serve_error *e)
{
    size_t choices = c->params.choices;
    c->texts = out_alloc(choices * sizeof *c->texts);
    c->logprobs = out_alloc(choices * sizeof *c->logprobs);
    c->finish = out_alloc(choices * sizeof *c->finish);
    c->job = (struct generate_job){.x = c->x,
                                   .model = c->model,
                                   .params = &c->params,
                                   .tokens = tokens,
                                   .tokens_n = n,
                                   .sink = {c, on_text, on_finish, NULL}};
    bool ok = (!c->echo || echo(c, tokens, n, e)) && generate_run(&c->job, e);
    free(c->job.all);
    c->job.all = NULL;
    c->prompt_tokens += n;
    c->answer_tokens += c->job.tokens_out;
    c->cached_tokens += c->job.info.tokens_reused;
    for (size_t i = 0; i < choices; i++) {
        if (ok && !c->params.stream)
            json_array_append_new(c->choices, choice_json(c, i, c->texts[i].data, c->texts[i].len, c->logprobs[i], c->finish[i]));
        free(c->texts[i].data);
        json_decref(c->logprobs[i]);
    }
    free(c->texts), free(c->logprobs), free(c->finish);
    c->first += choices;
    return ok;
}

/* A prompt is a text or a list of token ids. */
static bool run_value(struct completion *c, json_t *v, struct serve_error *e)
{
    size_t n = json_array_size(v), i;
    json_t *id;
    int32_t *tokens;
    if (json_is_string(v))
        tokens = generate_tokenize(c->model, json_string_value(v), json_string_length(v), 0, &n, e);
    else {
        tokens = out_alloc((n + 1) * sizeof *tokens);
        json_array_foreach(v, i, id)
        {
            json_int_t t = json_integer_value(id);
            if (!json_is_integer(id) || t < 0 || t >= (json_int_t)c->model->placement.info.vocab) {
                serve_fail(e, 400, "prompt", "prompt: expected texts, or lists of token ids below %u",
                           c->model->placement.info.vocab);
                break;
            }
            tokens[i] = (int32_t)t;
        }
    }
    if (tokens && !n) serve_fail(e, 400, "prompt", "prompt: it is empty; send at least one token");
    bool ok = tokens && !e->status && run_prompt(c, tokens, n, e);
    free(tokens);
    return ok;
}

static bool run_prompts(struct completion *c, struct fields f)
{
    json_t *prompt = field(f, "prompt"), *v;
    size_t i;
    if (!prompt || (!json_is_string(prompt) && !json_is_array(prompt)))
        return serve_fail(f.e, 400, "prompt", "prompt: expected a text, a list of token ids, or a list of these");
    if (json_is_string(prompt) || json_is_integer(json_array_get(prompt, 0))) return run_value(c, prompt, f.e);
    if (!json_array_size(prompt) || json_array_size(prompt) > PROMPTS_MAX)
        return serve_fail(f.e, 400, "prompt", "prompt: expected 1 to %d prompts", PROMPTS_MAX);
    json_array_foreach(prompt, i, v) if ((!json_is_string(v) && !json_is_array(v)) ||
                                         !run_value(c, v, f.e)) return serve_fail(f.e, 400, "prompt",
                                                                                  "prompt: expected texts or lists of token ids");
    return true;
}

static void finish_answer(struct completion *c)
{
    json_t *o = head(c),
           *usage = json_pack("{s:I, s:I, s:I, s:{s:I}}", "prompt_tokens", (json_int_t)c->prompt_tokens, "completion_tokens",
                              (json_int_t)c->answer_tokens, "total_tokens", (json_int_t)(c->prompt_tokens + c->answer_tokens),
                              "prompt_tokens_details", "cached_tokens", (json_int_t)c->cached_tokens);
    json_object_set(o, "choices", c->choices);
    json_object_set_new(o, "usage", usage);
    json_object_set_new(o, "segue", generate_report(&c->job));
    json_t *text = json_object_get(json_array_get(c->choices, 0), "text");
    if (c->native) add_native(c, o, 0, json_string_value(text), json_string_length(text), true);
    if (!c->params.stream) {
        exchange_json(c->x, 200, o);
        return;
    }
    if (c->params.include_usage || c->native)
        exchange_event(c->x, NULL, o);
    else
        json_decref(o);
    exchange_end(c->x, true);
}

static bool answer(struct server *s, struct exchange *x, json_t *body, struct serve_error *e)
{
    struct fields f = {body, e};
    struct completion c = {.server = s, .x = x};
    const char *model = field_text(f, "model", NULL);
    if (e->status || !(c.model = model_pool_acquire(&s->models, model, true, e))) return false;
    c.choices = json_array();
    chat_job_id(c.id, sizeof c.id, "cmpl-");
    c.echo = field_bool(f, "echo", false);
    c.native = strncmp(x->path, "/v1/", 4) != 0;
    if (field_has(f, "suffix")) serve_fail(e, 400, "suffix", "suffix: not supported; the model only continues texts");
    if (field_int(f, "best_of", 1, PARAMS_CHOICES, 1) > field_int(f, "n", 1, PARAMS_CHOICES, 1))
        serve_fail(e, 400, "best_of", "best_of: more than n is not supported; use n");
    bool ok = params_read(&c.params, f, c.model);
    if (ok && !c.params.max_tokens) c.params.max_tokens = c.native || field_has(f, "n_predict") ? 0 : 16; /* OpenAI's default */
    ok = ok && !e->status && run_prompts(&c, f);
    if (ok) finish_answer(&c);
    json_decref(c.choices);
    params_free(&c.params);
    model_pool_release(&s->models, c.model);
    return ok;
}

void route_completions(struct server *s, struct exchange *x) { route_with_body(s, x, answer); }
