/* route_info.c: the state of the server (/health, /props, /slots, /lora-adapters, /metrics), and text without
 * generation (/tokenize, /detokenize, /apply-template). SPDX-License-Identifier: MIT */
#include "routes/routes.h"

#include <stdlib.h>
#include <string.h>

void route_health(struct server *s, struct exchange *x)
{
    segue_error err = {0};
    struct serve_error e = {0};
    enum pooled_state state = model_pool_health(&s->models, &err);
    if (state == MODEL_LOADING) serve_fail(&e, 503, NULL, "Loading model");
    if (state == MODEL_FAILED) serve_fail(&e, 503, NULL, "the model could not be opened: %s", err.text);
    if (e.status)
        exchange_fail(x, &e);
    else
        exchange_json(x, 200, json_pack("{s:s}", "status", "ok"));
}

/* The first model if it is ready; else 503 is written. */
static struct pooled_model *ready_model(struct server *s, struct exchange *x)
{
    struct serve_error e = {0};
    struct pooled_model *m = model_pool_acquire(&s->models, NULL, false, &e);
    if (!m) exchange_fail(x, &e);
    return m;
}

void route_props(struct server *s, struct exchange *x)
{
    struct pooled_model *m = ready_model(s, x);
    if (!m) return;
    struct out_text text = {0};
    const struct out_text *own = &s->models.chat_template;
    segue_status st = SEGUE_OK;
    if (own->len) out_add(&text, own->data, own->len);
    else
        OUT_GROW(text, st,
                 segue_model_describe(m->placement.model, SEGUE_DESCRIBE_TEMPLATE, text.data, text.cap, &text.len, NULL));
    json_t *units = json_array();
    for (size_t i = 0; i < m->placement.units_n; i++) json_array_append_new(units, json_string(m->placement.unit_info[i].spec));
    json_t *o = json_pack("{s:s, s:I, s:I, s:o, s:{s:I, s:f, s:f}, s:s, s:{s:b, s:b}}", "model_alias", m->name, "total_slots",
                          (json_int_t)s->models.scheduling.running, "models", (json_int_t)s->models.models_n, "units", units,
                          "default_generation_settings", "n_ctx", (json_int_t)m->context, "temperature", params_temperature(m),
                          "top_p", m->placement.info.top_p >= 0 ? (double)m->placement.info.top_p : 0.95, "build_info",
                          "segue " SERVE_VERSION, "modalities", "vision", 0, "audio", 0);
    struct serve_error e = {0};
    struct params params;
    json_t *none = json_object();
    if (params_read(&params, (struct fields){none, &e}, m)) {
        struct generate_job job = {.model = m, .params = &params};
        json_object_set_new(json_object_get(o, "default_generation_settings"), "params", generate_settings(&job));
    }
    params_free(&params);
    json_decref(none);
    json_object_set_new(o, "model_path", json_string(m->path));
    json_object_set_new(o, "chat_template", st ? json_null() : out_string(text.data, text.len));
    free(text.data);
    model_pool_release(&s->models, m);
    exchange_json(x, 200, o);
}

void route_slots(struct server *s, struct exchange *x)
{
    struct serve_error e = {0};
    if (args_has(s->args, "no-slots")) {
        serve_fail(&e, 501, NULL, "slots are not shown; start the server without --no-slots");
        exchange_fail(x, &e);
        return;
    }
    struct pooled_model *m = ready_model(s, x);
    if (!m) return;
    json_t *list = json_array();
    pthread_mutex_lock(&m->slots.lock);
    for (size_t i = 0; i < m->slots.n; i++) {
        const struct slot *t = &m->slots.list[i];
        json_array_append_new(list, json_pack("{s:I, s:I, s:b, s:I}", "id", (json_int_t)i, "n_ctx", (json_int_t)m->context,
                                              "is_processing", t->busy, "n_tokens",
                                              strcmp(t->realm, x->realm) != 0 ? (json_int_t)0 : (json_int_t)t->tokens_n));
    }
    pthread_mutex_unlock(&m->slots.lock);
    model_pool_release(&s->models, m);
    exchange_json(x, 200, list);
}

static void metric(struct out_text *text, const char *name, const char *type, const char *help, const char *model, double value)
{
    out_addf(text, "# HELP segue_%s %s\n# TYPE segue_%s %s\nsegue_%s{model=\"%s\"} %.17g\n", name, help, name, type, name, model,
             value);
}

/* The counters of llama.cpp's server under its names, without labels, for the dashboards that exist. There is no speculative
 * decoding, so its counters stay 0. */
static void add_llama_metrics(struct out_text *text, const segue_scheduler_info *t, const struct model_counts *c)
{
    double prompt_s = (double)c->prompt_ns / 1e9, answer_s = (double)c->answer_ns / 1e9;
    const struct {
        const char *name, *type, *help;
        double value;
    } list[] = {{"prompt_tokens_total", "counter", "Prompt tokens computed.", (double)c->prompt_tokens},
                {"prompt_tokens_cached_total", "counter", "Prompt tokens reused.", (double)c->cached_tokens},
                {"prompt_seconds_total", "counter", "Time of prompts.", prompt_s},
                {"tokens_predicted_total", "counter", "Tokens of answers.", (double)c->answer_tokens},
                {"tokens_predicted_seconds_total", "counter", "Time of answers.", answer_s},
                {"n_decode_total", "counter", "Runs of units.", (double)(t->runs + c->runs)},
                {"n_tokens_max", "counter", "Most tokens of a request.", (double)c->longest},
                {"spec_decode_num_draft_tokens_total", "counter", "Drafted tokens: none.", 0},
                {"spec_decode_num_accepted_tokens_total", "counter", "Accepted draft tokens: none.", 0},
                {"spec_decode_num_drafts_total", "counter", "Drafts: none.", 0},
                {"prompt_tokens_seconds", "gauge", "Prompt tokens per second.",
                 prompt_s > 0 ? (double)c->prompt_tokens / prompt_s : 0},
                {"predicted_tokens_seconds", "gauge", "Tokens of answers per second.",
                 answer_s > 0 ? (double)c->answer_tokens / answer_s : 0},
                {"requests_processing", "gauge", "Requests that run now.", (double)t->running},
                {"requests_deferred", "gauge", "Requests that wait now.", (double)t->waiting},
                {"n_busy_slots_per_decode", "gauge", "Tokens of answers per run.",
                 t->runs ? (double)c->answer_tokens / (double)t->runs : 0}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        out_addf(text, "# HELP llamacpp:%s %s\n# TYPE llamacpp:%s %s\nllamacpp:%s %.17g\n", list[i].name, list[i].help,
                 list[i].name, list[i].type, list[i].name, list[i].value);
}

void route_metrics(struct server *s, struct exchange *x)
{
    struct serve_error e = {0};
    struct out_text text = {0};
    if (!s->metrics) {
        serve_fail(&e, 501, NULL, "metrics are off; start the server with --metrics");
        exchange_fail(x, &e);
        return;
    }
    struct pooled_model *m = ready_model(s, x);
    if (!m) return;
    segue_scheduler_info t = SEGUE_INIT(segue_scheduler_info);
    segue_scheduler_info_get(m->scheduler, &t, NULL);
    char name[200];
    snprintf(name, sizeof name, "%s", m->name);
    for (char *c = name; *c; c++)
        if (*c == '"' || *c == '\\' || *c == '\n') *c = '_';
    struct model_counts counts = pooled_model_counts(m);
    model_pool_release(&s->models, m);
    metric(&text, "prompt_tokens_total", "counter", "Prompt tokens of finished requests.", name, (double)t.prompt_tokens);
    metric(&text, "prompt_tokens_reused_total", "counter", "Of them not computed again.", name, (double)t.reused_tokens);
    metric(&text, "tokens_predicted_total", "counter", "Tokens chosen.", name, (double)t.chosen_tokens);
    metric(&text, "requests_finished_total", "counter", "Requests that ended.", name, (double)t.finished);
    metric(&text, "requests_processing", "gauge", "Requests that run now.", name, (double)t.running);
    metric(&text, "requests_deferred", "gauge", "Requests that wait now.", name, (double)t.waiting);
    metric(&text, "requests_cancelled_total", "counter", "Requests that were cancelled.", name, (double)t.canceled);
    metric(&text, "requests_failed_total", "counter", "Requests that failed.", name, (double)t.failed);
    metric(&text, "preemptions_total", "counter", "Requests whose memory was taken for others for a time.", name,
           (double)t.preemptions);
    metric(&text, "runs_total", "counter", "Runs of units.", name, (double)t.runs);
    metric(&text, "shared_runs_total", "counter", "Runs with more than one request.", name, (double)t.shared_runs);
    metric(&text, "memory_bytes", "gauge", "States, checkpoints and prefix store.", name, (double)t.memory_bytes);
    add_llama_metrics(&text, &t, &counts);
    x->started_s = s->models.started_s;
    exchange_text(x, 200, "text/plain; version=0.0.4; charset=utf-8", text.data, text.len);
    free(text.data);
}

/* --- text --- */

static bool tokenize(struct server *s, struct exchange *x, json_t *body, struct serve_error *e)
{
    struct fields f = {body, e};
    const char *name = field_has(f, "content") ? "content" : "prompt", *text = field_text(f, name, NULL);
    bool special = field_bool(f, "add_special", false), parse = field_bool(f, "parse_special", true);
    bool pieces = field_bool(f, "with_pieces", false);
    if (!text) serve_fail(e, 400, "content", "content: expected a string");
    struct pooled_model *m = e->status ? NULL : model_pool_acquire(&s->models, field_text(f, "model", NULL), true, e);
    if (!m) return false;
    size_t n;
    int32_t *tokens = generate_tokenize(m, text, json_string_length(field(f, name)),
                                        (special ? 0u : SEGUE_TEXT_NO_BOS) | (parse ? 0u : SEGUE_TEXT_NO_SPECIAL), &n, e);
    json_t *list = json_array();
    for (size_t i = 0; tokens && i < n; i++) {
        char piece[1024];
        size_t len = 0;
        json_t *id = json_integer(tokens[i]);
        if (pieces && segue_detokenize(m->placement.model, &tokens[i], 1, 0, piece, sizeof piece, &len, NULL)) len = 0;
        json_array_append_new(list, pieces ? json_pack("{s:o, s:o}", "id", id, "piece", out_string(piece, len)) : id);
    }
    free(tokens);
    model_pool_release(&s->models, m);
    if (e->status) {
        json_decref(list);
        return false;
    }
    exchange_json(x, 200, json_pack("{s:o}", "tokens", list));
    return true;
}

static bool detokenize(struct server *s, struct exchange *x, json_t *body, struct serve_error *e)
{
    struct fields f = {body, e};
    json_t *list = field_array(f, "tokens"), *v;
    size_t i, n = json_array_size(list);
    if (!list) serve_fail(e, 400, "tokens", "tokens: expected a list of token ids");
    struct pooled_model *m = e->status ? NULL : model_pool_acquire(&s->models, field_text(f, "model", NULL), true, e);
    if (!m) return false;
    int32_t *tokens = out_alloc((n + 1) * sizeof *tokens);
    json_array_foreach(list, i, v)
    {
        json_int_t id = json_integer_value(v);
        if (!json_is_integer(v) || id < 0 || id >= (json_int_t)m->placement.info.vocab)
            serve_fail(e, 400, "tokens", "tokens[%zu]: expected a token id below %u", i, m->placement.info.vocab);
        else
            tokens[i] = (int32_t)id;
    }
    struct out_text text = {0};
    segue_error err = {0};
    segue_status st = SEGUE_OK;
    if (!e->status) OUT_GROW(text, st, segue_detokenize(m->placement.model, tokens, n, 0, text.data, text.cap, &text.len, &err));
    if (st) serve_fail_of(e, &err);
    if (!e->status) exchange_json(x, 200, json_pack("{s:o}", "content", out_string(text.data, text.len)));
    free(text.data);
    free(tokens);
    model_pool_release(&s->models, m);
    return !e->status;
}

static bool apply_template(struct server *s, struct exchange *x, json_t *body, struct serve_error *e)
{
    struct chat_job c;
    struct out_text text = {0};
    segue_error err = {0};
    segue_status st = SEGUE_OK;
    bool ok = chat_job_open(&c, x, &s->models, body, e);
    if (ok)
        OUT_GROW(text, st,
                 segue_detokenize(c.model->placement.model, c.tokens, c.tokens_n, 0, text.data, text.cap, &text.len, &err));
    if (st) ok = serve_fail_of(e, &err);
    if (ok) exchange_json(x, 200, json_pack("{s:o}", "prompt", out_string(text.data, text.len)));
    free(text.data);
    chat_job_free(&c);
    return ok;
}

void route_tokenize(struct server *s, struct exchange *x) { route_with_body(s, x, tokenize); }
void route_detokenize(struct server *s, struct exchange *x) { route_with_body(s, x, detokenize); }
void route_apply_template(struct server *s, struct exchange *x) { route_with_body(s, x, apply_template); }
