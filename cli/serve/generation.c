/* generation.c: see generation.h. SPDX-License-Identifier: MIT */
#include "serve/generation.h"

#include <stdlib.h>
#include <string.h>

enum { TOKENS_AT_ONCE = 32, LOGPROBS_ROW = PARAMS_LOGPROBS + 1 };
/* Longest wait before the client's connection is looked at again. */
#define POLL_NS 100000000u
#define PROGRESS_NS 2000000u

/* One choice while it is generated. */
struct choice {
    segue_request *request;
    segue_session *session; /* of `request`, if it is recorded; else NULL */
    segue_sampling sampling;
    size_t prompt_n; /* tokens of the session when it was submitted */
    segue_text pieces;
    json_t *logprobs;     /* of tokens whose text is not passed on yet */
    int32_t *tokens;      /* [prompt + tokens_n] all tokens so far, for going on after a cut */
    size_t tokens_n, cap; /* tokens_n: chosen or inserted ones, beyond the prompt */
    size_t thought, passed_n; /* passed_n: of tokens_n, those whose text was passed on */
    uint64_t first_ns;        /* with t_max_predict_ms: time of the first token */
    size_t computed;          /* tokens at the last progress; SIZE_MAX: none was reported */
    bool ended, budget_spent;
};

static bool is_stop(const struct pooled_model *m, int32_t token)
{
    const segue_model_info *info = &m->placement.info;
    for (size_t i = 0; i < info->stops_n; i++)
        if (info->stops[i] == token) return true;
    return false;
}

int32_t *generate_tokenize(const struct pooled_model *m, const char *text, size_t len, unsigned flags, size_t *n,
                           struct serve_error *e)
{
    segue_error err = {0};
    size_t cap = len / 2 + 64;
    int32_t *tokens = out_alloc(cap * sizeof *tokens);
    segue_status st = segue_tokenize(m->placement.model, text, len, flags, tokens, cap, n, &err);
    if (st == SEGUE_ELIMIT) {
        cap = *n;
        tokens = out_realloc(tokens, (cap + 1) * sizeof *tokens);
        st = segue_tokenize(m->placement.model, text, len, flags, tokens, cap, n, &err);
    }
    if (!st) return tokens;
    serve_fail_of(e, &err);
    free(tokens);
    return NULL;
}

/* The text of one token for logprobs: invalid UTF-8 is replaced there, and its bytes are given beside it. */
static void add_token_text(json_t *o, const struct pooled_model *m, int32_t token)
{
    char text[1024];
    size_t len = 0;
    if (segue_detokenize(m->placement.model, &token, 1, 0, text, sizeof text, &len, NULL)) len = 0;
    json_t *bytes = json_array();
    for (size_t i = 0; i < len; i++) json_array_append_new(bytes, json_integer((unsigned char)text[i]));
    json_object_set_new(o, "token", out_string(text, len));
    json_object_set_new(o, "bytes", bytes);
    json_object_set_new(o, "id", json_integer(token));
}

/* {"token", "logprob", "bytes", "top_logprobs"} of a row of log-probabilities, the chosen one first. */
static json_t *logprob_json(const struct generate_job *g, const segue_logprob *row)
{
    json_t *o = json_object(), *top = json_array();
    add_token_text(o, g->model, row[0].token);
    json_object_set_new(o, "logprob", out_real(row[0].logprob));
    for (size_t i = 1; i <= g->params->top_logprobs && row[i].token >= 0; i++) {
        json_t *t = json_object();
        add_token_text(t, g->model, row[i].token);
        json_object_set_new(t, "logprob", out_real(row[i].logprob));
        json_array_append_new(top, t);
    }
    json_object_set_new(o, "top_logprobs", top);
    return o;
}

/* A recorded request has a separate session, which computes all its tokens itself, so that its record can be repeated alone. */
static segue_status open_recorded(struct generate_job *g, struct choice *c, const struct adapters_taken *adapters,
                                  segue_error *err)
{
    const struct placement *p = &g->model->placement;
    segue_session_opts o = {.size = sizeof o,
                            .context = g->model->context,
                            .plan = placement_plan(p),
                            .sampling = &c->sampling,
                            .adapters = adapters->list,
                            .adapters_n = adapters->n,
                            .no_store = 1};
    segue_status st = segue_session_open(&c->session, p->engine, &o, err);
    return st ? st : record_begin(c->session, err);
}

/* Ends the request of a choice. One that has chosen a token is recorded, also if its client disconnected. */
static void close_request(struct generate_job *g, struct choice *c)
{
    const struct record_constraint *constraint = &g->params->constraint;
    const int32_t *tokens = NULL;
    segue_request_close(c->request);
    c->request = NULL;
    size_t n = c->session ? segue_session_tokens(c->session, &tokens) : 0;
    if (n > c->prompt_n) {
        struct record_source source = {.args = &g->model->args,
                                       .placement = &g->model->placement,
                                       .session = c->session,
                                       .sampling = &c->sampling,
                                       .constraint = constraint->text ? constraint : NULL,
                                       .context = g->model->context,
                                       .prompt = {c->tokens, c->prompt_n},
                                       .answer = {(int32_t *)(uintptr_t)tokens + c->prompt_n, n - c->prompt_n}};
        record_log_add(g->model->log, &source);
    }
    segue_session_close(c->session);
    c->session = NULL;
}

bool generate_fits(const struct pooled_model *m, size_t tokens_n, struct serve_error *e)
{
    if (tokens_n < m->context || e->status) return !e->status;
    serve_fail(e, 400, NULL,
               "the request has %zu tokens, which exceeds the available context size of %zu tokens; shorten it, or start the "
               "server with a larger --ctx",
               tokens_n, m->context);
    e->type = "exceed_context_size_error";
    e->code = "context_length_exceeded";
    e->prompt_tokens = tokens_n;
    e->context = m->context;
    return false;
}

static bool submit(struct generate_job *g, struct choice *c, size_t index, struct serve_error *e)
{
    struct adapters_taken adapters;
    segue_error err = {0};
    c->sampling = g->params->sampling;
    c->prompt_n = g->tokens_n + c->tokens_n;
    c->sampling.seed += index; /* choices differ, and the first is that of n = 1 */
    size_t max = g->params->max_tokens;
    if (max && c->tokens_n >= max) max = c->tokens_n + 1;
    segue_status st = adapter_set_take(&g->model->adapters, g->params->lora, g->params->lora_n, &adapters, &err);
    segue_request_opts o = {.size = sizeof o,
                            .tokens = c->tokens,
                            .tokens_n = c->prompt_n,
                            .max_tokens = max ? max - c->tokens_n : 0,
                            .sampling = &c->sampling,
                            .adapters = adapters.list,
                            .adapters_n = adapters.n,
                            .no_store = g->params->no_store,
                            .realm = g->x->realm};
    if (!st && record_log_on(g->model->log)) st = open_recorded(g, c, &adapters, &err);
    o.session = c->session;
    /* As llama.cpp does: no answer is longer than its context, and a prompt that fills it is refused. */
    if (!st) st = segue_request_submit(&c->request, g->model->scheduler, &o, &err);
    adapter_set_release(&g->model->adapters, &adapters);
    if (!st) return true;
    if (err.status == SEGUE_ELIMIT && strstr(err.text, "try again later")) return serve_fail(e, 503, NULL, "%s", err.text);
    return serve_fail_of(e, &err);
}

static void keep_token(const struct generate_job *g, struct choice *c, int32_t token)
{
    if (g->tokens_n + c->tokens_n == c->cap) {
        c->cap += c->cap / 2 + 64;
        c->tokens = out_realloc(c->tokens, c->cap * sizeof *c->tokens);
    }
    c->tokens[g->tokens_n + c->tokens_n++] = token;
}

/* Pass text on, with the logprobs collected so far. */
static bool pass(struct generate_job *g, struct choice *c, size_t index, const char *text, size_t len)
{
    if (!len && !c->logprobs) return true;
    json_t *logprobs = c->logprobs;
    c->logprobs = NULL;
    g->piece = c->tokens + g->tokens_n + c->passed_n;
    g->piece_n = c->tokens_n - c->passed_n;
    c->passed_n = c->tokens_n;
    return g->sink.text(g->sink.context, index, text, len, logprobs);
}

static bool finish(struct generate_job *g, struct choice *c, size_t index, const char *reason, const char *stop)
{
    c->ended = true;
    return g->sink.finish(g->sink.context, index, reason, stop);
}

/* The stop string that ended the text: the one in the text of the last tokens that ends first, and of those the longest. */
static const char *found_stop(const struct generate_job *g, const struct choice *c)
{
    enum { LAST = PARAMS_STOP_BYTES };
    char text[LAST * 64];
    size_t n = c->tokens_n < LAST ? c->tokens_n : LAST, len = 0, best_end = SIZE_MAX;
    const char *best = g->params->stops_n ? g->params->stops[0] : NULL;
    const int32_t *last = c->tokens + g->tokens_n + c->tokens_n - n;
    if (segue_detokenize(g->model->placement.model, last, n, c->pieces.flags, text, sizeof text - 1, &len, NULL)) return best;
    text[len] = 0;
    for (size_t i = 0; i < g->params->stops_n; i++) {
        const char *stop = g->params->stops[i], *at = strstr(text, stop);
        size_t end = at ? (size_t)(at - text) + strlen(stop) : SIZE_MAX;
        if (end > best_end || !at || (end == best_end && strlen(stop) < strlen(best))) continue;
        best = stop;
        best_end = end;
    }
    return best;
}

/* t_max_predict_ms: the text has a line break after that time. */
static bool is_late(const struct generate_job *g, struct choice *c, const char *text, size_t len)
{
    if (!g->params->predict_ns) return false;
    uint64_t now = out_now_ns();
    if (!c->first_ns) c->first_ns = now;
    return memchr(text, '\n', len) && now - c->first_ns > g->params->predict_ns;
}

/* One token: its text, and the end if a stop string was found. False: the client disconnected, or e has the reason. */
static bool take(struct generate_job *g, struct choice *c, size_t index, int32_t token, const segue_logprob *row,
                 struct serve_error *e)
{
    char text[4096];
    size_t len = 0;
    segue_error err = {0};
    keep_token(g, c, token);
    g->tokens_out++;
    if (is_stop(g->model, token) && !g->params->sampling.ignore_stops) return true;
    if (g->sink.reasoning && g->sink.reasoning(g->sink.context, index)) {
        c->thought++;
        g->tokens_thought++;
    }
    if (g->params->logprobs) {
        if (!c->logprobs) c->logprobs = json_array();
        json_array_append_new(c->logprobs, logprob_json(g, row));
    }
    segue_status st = segue_text_next(g->model->placement.model, &c->pieces, token, text, sizeof text, &len, &err);
    if (st < 0) return serve_fail_of(e, &err);
    if (len && !pass(g, c, index, text, len)) return serve_fail(e, 499, NULL, "the client disconnected");
    bool late = st != SEGUE_END && is_late(g, c, text, len);
    if (st != SEGUE_END && !late) return true;
    segue_request_cancel(c->request);
    return (pass(g, c, index, "", 0) && finish(g, c, index, late ? "length" : "stop", late ? NULL : found_stop(g, c))) ||
           serve_fail(e, 499, NULL, "the client disconnected");
}

/* The request of a choice has ended by itself. */
static bool end(struct generate_job *g, struct choice *c, size_t index, segue_status st, const segue_error *err,
                struct serve_error *e)
{
    char text[4096];
    size_t len = 0;
    segue_request_info info = SEGUE_INIT(segue_request_info);
    if (st < 0) return serve_fail_of(e, err);
    if (segue_request_info_get(c->request, &info, NULL)) info.finish = SEGUE_FINISH_NONE;
    segue_status last = segue_text_next(g->model->placement.model, &c->pieces, -1, text, sizeof text, &len, NULL);
    const char *reason = last != SEGUE_END && info.finish == SEGUE_FINISH_LENGTH ? "length" : "stop";
    if (pass(g, c, index, text, len) && finish(g, c, index, reason, last == SEGUE_END ? found_stop(g, c) : NULL)) return true;
    return serve_fail(e, 499, NULL, "the client disconnected");
}

/* What the request of the first choice has done so far, for the report. */
static void read_info(struct generate_job *g, const struct choice *c)
{
    g->info = SEGUE_INIT(segue_request_info);
    if (segue_request_info_get(c->request, &g->info, NULL)) g->info = (segue_request_info){0};
}

/* The reasoning has used its budget: end it as the model would, and continue from there. */
static bool close_thinking(struct generate_job *g, struct choice *c, size_t index, struct serve_error *e)
{
    static const char close[] = "\n</think>\n\n";
    size_t n;
    int32_t *tokens = generate_tokenize(g->model, close, sizeof close - 1, SEGUE_TEXT_NO_BOS, &n, e);
    if (!tokens) return false;
    if (!c->ended && c->request) read_info(g, c);
    close_request(g, c);
    c->budget_spent = true;
    for (size_t i = 0; i < n; i++) keep_token(g, c, tokens[i]);
    free(tokens);
    return (g->sink.text(g->sink.context, index, close, sizeof close - 1, NULL) ||
            serve_fail(e, 499, NULL, "the client disconnected")) &&
           submit(g, c, index, e);
}

/* return_progress: says how much of the prompt is computed, if that has changed. */
static bool report_progress(struct generate_job *g, struct choice *c)
{
    const segue_request_info *i = &g->info;
    if (!g->params->return_progress || !g->sink.progress || c->computed == g->tokens_n) return true;
    read_info(g, c);
    size_t done = i->first_token_ns ? g->tokens_n : i->tokens_computed;
    if (!i->start_ns || (!done && i->tokens_reused)) return true;
    if (c->computed == SIZE_MAX) {
        c->computed = i->tokens_reused;
        if (!g->sink.progress(g->sink.context, i->tokens_reused, i->tokens_reused, 0)) return false;
    }
    if (done <= c->computed) return true;
    c->computed = done;
    return g->sink.progress(g->sink.context, i->tokens_reused, done, (double)(out_now_ns() - i->start_ns) / 1e6);
}

/* Read what one choice has, waiting up to timeout_ns. */
static bool serve_choice(struct generate_job *g, struct choice *c, size_t index, uint64_t timeout_ns, struct serve_error *e)
{
    int32_t tokens[TOKENS_AT_ONCE];
    segue_logprob rows[TOKENS_AT_ONCE * LOGPROBS_ROW];
    segue_error err = {0};
    size_t n = 0, row = g->params->sampling.logprobs;
    bool reports = g->params->return_progress && !index && c->computed != g->tokens_n;
    if (reports && timeout_ns > PROGRESS_NS) timeout_ns = PROGRESS_NS;
    segue_status st = segue_request_read(c->request, tokens, rows, TOKENS_AT_ONCE, &n, timeout_ns, &err);
    if (reports && !report_progress(g, c)) return serve_fail(e, 499, NULL, "the client disconnected");
    if (st) return end(g, c, index, st, &err, e);
    if (n && (!g->info.submit_ns || g->params->timings_per_token)) read_info(g, c);
    for (size_t i = 0; i < n && !c->ended; i++) {
        if (!take(g, c, index, tokens[i], rows + i * row, e)) return false;
        if (c->thought >= g->params->thinking_budget && !c->budget_spent && !c->ended) return close_thinking(g, c, index, e);
    }
    return true;
}

static bool run_choices(struct generate_job *g, struct choice *choices, struct serve_error *e)
{
    for (size_t i = 0; i < g->params->choices; i++)
        if (!submit(g, &choices[i], i, e)) return false;
    for (;;) {
        size_t open = 0;
        for (size_t i = 0; i < g->params->choices; i++) {
            if (choices[i].ended) continue;
            if (!serve_choice(g, &choices[i], i, open++ ? 0 : POLL_NS, e)) return false;
        }
        if (!open) return true;
        if (exchange_closed(g->x)) return serve_fail(e, 499, NULL, "the client disconnected");
        if (g->params->stream && g->params->ping_ns) exchange_ping(g->x, g->params->ping_ns);
    }
}

bool generate_run(struct generate_job *g, struct serve_error *e)
{
    size_t n = g->params->choices;
    if (!generate_fits(g->model, g->tokens_n, e)) return false;
    struct choice *choices = out_alloc(n * sizeof *choices);
    for (size_t i = 0; i < n; i++) {
        struct choice *c = &choices[i];
        c->pieces = SEGUE_INIT(segue_text);
        c->pieces.flags = g->special ? 0 : SEGUE_TEXT_NO_SPECIAL;
        c->pieces.stops = g->params->stops;
        c->pieces.stops_n = g->params->stops_n;
        c->computed = SIZE_MAX;
        c->cap = g->tokens_n + 64;
        c->tokens = out_alloc(c->cap * sizeof *c->tokens);
        if (g->tokens_n) memcpy(c->tokens, g->tokens, g->tokens_n * sizeof *c->tokens);
    }
    double begin_j = model_pool_energy(g->model, true);
    g->slot = slots_acquire(&g->model->slots, g->params->slot, g->x->realm, g->tokens, g->tokens_n);
    bool ok = run_choices(g, choices, e);
    slots_release(&g->model->slots, g->slot, choices[0].tokens, g->tokens_n + choices[0].tokens_n);
    double end_j = model_pool_energy(g->model, false);
    g->joules = begin_j >= 0 && end_j >= begin_j ? end_j - begin_j : -1;
    if (choices[0].request && !choices[0].budget_spent) read_info(g, &choices[0]);
    for (size_t i = 0; i < n; i++) close_request(g, &choices[i]);
    size_t cached = g->info.tokens_reused < g->tokens_n ? g->info.tokens_reused : g->tokens_n;
    if (g->info.first_token_ns) /* else the prompt was not computed to its end: the request was refused, cancelled or failed */
        pooled_model_count(g->model, &(struct model_counts){.prompt_tokens = g->tokens_n - cached,
                                                            .cached_tokens = cached,
                                                            .answer_tokens = g->tokens_out,
                                                            .prompt_ns = g->info.prefill_ns,
                                                            .answer_ns = g->info.decode_ns,
                                                            .longest = g->tokens_n + g->tokens_out});
    free(g->all); /* of an earlier prompt */
    g->all = choices[0].tokens;
    g->all_n = g->tokens_n + choices[0].tokens_n;
    if (choices[0].tokens_n && is_stop(g->model, g->all[g->all_n - 1])) g->all_n--;
    choices[0].tokens = NULL;
    for (size_t i = 0; i < n; i++) {
        json_decref(choices[i].logprobs);
        free(choices[i].tokens);
    }
    free(choices);
    return ok;
}

json_t *generate_usage(const struct generate_job *g)
{
    json_t *o = json_object(), *prompt = json_object(), *answer = json_object();
    json_object_set_new(o, "prompt_tokens", json_integer((json_int_t)g->tokens_n));
    json_object_set_new(o, "completion_tokens", json_integer((json_int_t)g->tokens_out));
    json_object_set_new(o, "total_tokens", json_integer((json_int_t)(g->tokens_n + g->tokens_out)));
    json_object_set_new(prompt, "cached_tokens", json_integer((json_int_t)g->info.tokens_reused));
    json_object_set_new(answer, "reasoning_tokens", json_integer((json_int_t)g->tokens_thought));
    json_object_set_new(o, "prompt_tokens_details", prompt);
    json_object_set_new(o, "completion_tokens_details", answer);
    return o;
}

static double ms(uint64_t ns) { return (double)ns / 1e6; }
static double between(uint64_t from, uint64_t to) { return to > from && from ? ms(to - from) : 0; }

/* Members NAME_n, NAME_ms, NAME_per_token_ms and NAME_per_second; steps: tokens that took the time. */
static void add_timing(json_t *o, const char *name, size_t n, size_t steps, double time_ms)
{
    static const char *const ends[] = {"n", "ms", "per_token_ms", "per_second"};
    double values[] = {(double)n, time_ms, steps ? time_ms / (double)steps : 0, time_ms > 0 ? (double)steps * 1e3 / time_ms : 0};
    for (size_t i = 0; i < 4; i++) {
        char key[32];
        snprintf(key, sizeof key, "%s_%s", name, ends[i]);
        json_object_set_new(o, key, i ? out_real(values[i]) : json_integer((json_int_t)n));
    }
}

/* The first token of an answer comes with the prompt. */
json_t *generate_timings(const struct generate_job *g)
{
    json_t *o = json_object();
    size_t cached = g->info.tokens_reused < g->tokens_n ? g->info.tokens_reused : g->tokens_n, prompt = g->tokens_n - cached;
    json_object_set_new(o, "cache_n", json_integer((json_int_t)cached));
    add_timing(o, "prompt", prompt, prompt, ms(g->info.prefill_ns));
    add_timing(o, "predicted", g->tokens_out, g->tokens_out ? g->tokens_out - 1 : 0, ms(g->info.decode_ns));
    return o;
}

json_t *generate_progress_timings(size_t cached, size_t done, double time_ms)
{
    json_t *o = json_object();
    json_object_set_new(o, "cache_n", json_integer((json_int_t)cached));
    add_timing(o, "prompt", done - cached, done - cached, time_ms);
    add_timing(o, "predicted", 0, 0, 0);
    return o;
}

/* null stands for a token that is forbidden. */
static json_t *bias_json(int32_t token, float bias)
{
    return json_pack("{s:i, s:o}", "token", (int)token, "bias", bias <= -1e9f ? json_null() : out_real((double)bias));
}

json_t *generate_settings(const struct generate_job *g)
{
    const struct params *p = g->params;
    const segue_sampling *s = &p->sampling;
    const segue_model_info *info = &g->model->placement.info;
    json_int_t limit = p->max_tokens ? (json_int_t)p->max_tokens : -1;
    json_t *o = json_pack("{s:I, s:I, s:I, s:i, s:i, s:i, s:b, s:b, s:I, s:b}", "n_predict", limit, "max_tokens", limit, "seed",
                          (json_int_t)s->seed, "top_k", (int)s->top_k, "repeat_last_n", (int)s->repeat_last_n,
                          "dry_allowed_length", (int)s->dry_allowed_length, "ignore_eos", (int)s->ignore_stops, "stream",
                          (int)p->stream, "n_probs", (json_int_t)p->top_logprobs, "timings_per_token", (int)p->timings_per_token);
    const struct { const char *name; float value; } numbers[] =
        {{"temperature", s->temperature}, {"top_p", s->top_p}, {"min_p", s->min_p}, {"typical_p", s->typical_p},
         {"repeat_penalty", s->repeat_penalty}, {"presence_penalty", s->presence_penalty},
         {"frequency_penalty", s->frequency_penalty}, {"dry_multiplier", s->dry_multiplier}, {"dry_base", s->dry_base}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        json_object_set_new(o, numbers[i].name, out_real((double)numbers[i].value));
    json_t *stops = json_array(), *biases = json_array();
    for (size_t i = 0; i < p->stops_n; i++) json_array_append_new(stops, json_string(p->stops[i]));
    for (size_t i = 0; s->ignore_stops && i < info->stops_n; i++)
        json_array_append_new(biases, bias_json(info->stops[i], -1e9f));
    for (size_t i = 0; i < s->bias_n; i++) json_array_append_new(biases, bias_json(s->bias[i].token, s->bias[i].bias));
    json_object_set_new(o, "stop", stops);
    json_object_set_new(o, "logit_bias", biases);
    return o;
}

json_t *generate_progress(const struct generate_job *g, size_t cached, size_t done, double time_ms)
{
    return json_pack("{s:I, s:I, s:I, s:I}", "total", (json_int_t)g->tokens_n, "cache", (json_int_t)cached, "processed",
                     (json_int_t)done, "time_ms", (json_int_t)time_ms);
}

json_t *generate_verbose(const struct generate_job *g)
{
    struct out_text prompt = generate_text_of(g->model, g->tokens, g->tokens_n);
    json_t *o = json_pack("{s:o, s:o, s:I, s:I}", "prompt", out_string(prompt.data, prompt.len), "generation_settings",
                          generate_settings(g), "tokens_evaluated", (json_int_t)g->tokens_n, "tokens_predicted",
                          (json_int_t)g->tokens_out);
    free(prompt.data);
    return o;
}

struct out_text generate_text_of(const struct pooled_model *m, const int32_t *tokens, size_t n)
{
    struct out_text text = {0};
    segue_status st;
    OUT_GROW(text, st, segue_detokenize(m->placement.model, tokens, n, 0, text.data, text.cap, &text.len, NULL));
    if (st) text.len = 0;
    return text;
}

json_t *generate_report(const struct generate_job *g)
{
    const struct placement *p = &g->model->placement;
    const segue_request_info *i = &g->info;
    json_t *o = json_object(), *units = json_object(), *times = json_object();
    uint32_t decode = i->decode_unit < p->units_n ? i->decode_unit : 0,
             prefill = i->prefill_unit < p->units_n ? i->prefill_unit : 0;
    json_object_set_new(units, "prefill", json_string(p->unit_info[prefill].spec));
    json_object_set_new(units, "decode", json_string(p->unit_info[decode].spec));
    json_object_set_new(o, "units", units);
    json_object_set_new(times, "queue", out_real(between(i->submit_ns, i->start_ns)));
    json_object_set_new(times, "first_token", out_real(between(i->submit_ns, i->first_token_ns)));
    json_object_set_new(times, "prefill", out_real(ms(i->prefill_ns)));
    json_object_set_new(times, "decode", out_real(ms(i->decode_ns)));
    json_object_set_new(times, "handoff", out_real(ms(i->handoff_ns)));
    json_object_set_new(o, "ms", times);
    json_object_set_new(o, "tokens_reused", json_integer((json_int_t)i->tokens_reused));
    json_object_set_new(o, "reuse_reason", json_string(i->reuse_reason ? i->reuse_reason : "none"));
    json_object_set_new(o, "reuse_diverged", json_integer((json_int_t)i->reuse_diverged));
    if (g->changed && g->changed[0]) json_object_set_new(o, "reuse_changed", json_string(g->changed));
    if (g->merged) json_object_set_new(o, "messages_merged", json_true());
    if (g->joules >= 0)
        json_object_set_new(o, "joules", out_real(g->joules));
    else
        out_null(o, "joules",
                 g->model->meter.name ? "the counter could not be read" : "not requested; start the server with --meter");
    return o;
}
