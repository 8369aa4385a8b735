/* params.c: see params.h. SPDX-License-Identifier: MIT */
#include "serve/params.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sodium.h>
#include "serve/generation.h"

/* Largest integer that a JSON number represents exactly. */
#define EXACT_MAX 9007199254740991LL
#define MS_NS 1000000u
/* As in llama.cpp's server: proxies often close a connection that is silent for a minute. */
enum { PING_S = 30, BIASES_MAX = 1 << 16 };

static float or_default(float given, float fallback) { return given >= 0 ? given : fallback; }

double params_temperature(const struct pooled_model *m)
{
    float own = m->placement.info.temperature;
    return args_number(&m->args, "temp", own >= 0 ? (double)own : 0.8);
}

/* Defaults: flags of the server, the model's generation_config.json, then llama.cpp's. */
static void read_sampling(struct params *p, struct fields f, const struct pooled_model *m)
{
    const segue_model_info *info = &m->placement.info;
    segue_sampling *s = &p->sampling;
    *s = SEGUE_INIT(segue_sampling);
    s->temperature = (float)field_real(f, "temperature", 0, 1000, params_temperature(m));
    s->top_k = (int32_t)field_int(f, "top_k", -1, INT32_MAX, info->top_k >= 0 ? info->top_k : 40);
    if (s->top_k < 0) s->top_k = 0;
    s->top_p = (float)field_real(f, "top_p", 0, 1, or_default(info->top_p, 0.95f));
    s->min_p = (float)field_real(f, "min_p", 0, 1, or_default(info->min_p, 0.05f));
    s->typical_p = (float)field_real(f, field_has(f, "typical_p") ? "typical_p" : "typ_p", 0, 1, 0);
    const char *repeat = field_has(f, "repetition_penalty") ? "repetition_penalty" : "repeat_penalty";
    s->repeat_penalty = (float)field_real(f, repeat, 0, 100, or_default(info->repeat_penalty, 0));
    s->repeat_last_n = (int32_t)field_int(f, "repeat_last_n", -1, INT32_MAX, 0);
    s->presence_penalty = (float)field_real(f, "presence_penalty", -100, 100, 0);
    s->frequency_penalty = (float)field_real(f, "frequency_penalty", -100, 100, 0);
    s->dry_multiplier = (float)field_real(f, "dry_multiplier", 0, 100, 0);
    s->dry_base = (float)field_real(f, "dry_base", 0, 100, 0);
    s->dry_allowed_length = (int32_t)field_int(f, "dry_allowed_length", 0, INT32_MAX, 0);
    if (field_has(f, "repeat_last_n") && !s->repeat_last_n) s->repeat_penalty = s->presence_penalty = s->frequency_penalty = 0;
    long long seed = field_int(f, "seed", -EXACT_MAX, EXACT_MAX, (long long)args_number(&m->args, "seed", -1));
    if (seed == -1)
        s->seed = (((uint64_t)randombytes_random() << 32) | randombytes_random()) & EXACT_MAX; /* can be sent as a number */
    else
        s->seed = (uint64_t)seed;
    s->ignore_stops = field_bool(f, "ignore_eos", false);
}

/* One entry of logit_bias: a token id as text or number, and its bias; false in llama.cpp's form forbids the token. */
static bool add_bias(struct params *p, struct fields f, const segue_model_info *info, long long id, json_t *v)
{
    double bias = json_is_false(v) ? -1e30 : json_number_value(v);
    bool fits = id >= 0 && id < (long long)info->vocab && (json_is_number(v) || json_is_false(v)) && bias >= -1e30 &&
                bias <= 1e30;
    if (!fits)
        return serve_fail(f.e, 400, "logit_bias", "logit_bias: token %lld: expected a token below %u and a number", id,
                          info->vocab);
    size_t n = p->sampling.bias_n;
    if (n == BIASES_MAX) return serve_fail(f.e, 400, "logit_bias", "logit_bias: more than %d tokens", BIASES_MAX);
    p->bias = out_realloc(p->bias, (n + 1) * sizeof *p->bias);
    p->bias[n] = (struct segue_bias){(int32_t)id, bias <= -100 ? -1e9f : (float)bias};
    p->sampling.bias = p->bias;
    p->sampling.bias_n = n + 1;
    return true;
}

/* llama.cpp's: a text in place of an id stands for all its tokens. */
static bool add_text_bias(struct params *p, struct fields f, const struct pooled_model *m, const char *text, json_t *v)
{
    size_t n;
    bool ok = true;
    int32_t *tokens = generate_tokenize(m, text, strlen(text), SEGUE_TEXT_NO_BOS, &n, f.e);
    for (size_t i = 0; tokens && ok && i < n; i++) ok = add_bias(p, f, &m->placement.info, tokens[i], v);
    free(tokens);
    return tokens && ok;
}

/* OpenAI: {"15": -100}. llama.cpp: [[15, -100], [16, false], [" text", -1]], {" text": -1}. */
static bool read_bias(struct params *p, struct fields f, const struct pooled_model *m)
{
    const segue_model_info *info = &m->placement.info;
    json_t *v = field(f, "logit_bias"), *entry;
    const char *key;
    size_t i;
    if (!v) return true;
    if (json_object_size(v) > 4096 || json_array_size(v) > 4096)
        return serve_fail(f.e, 400, "logit_bias", "logit_bias: more than 4096 entries");
    if (json_is_object(v)) {
        json_object_foreach(v, key, entry)
        {
            char *end;
            long long id = strtoll(key, &end, 10);
            bool number = *key && !*end;
            if (number ? !add_bias(p, f, info, id, entry) : !add_text_bias(p, f, m, key, entry)) return false;
        }
        return true;
    }
    if (!json_is_array(v)) return serve_fail(f.e, 400, "logit_bias", "logit_bias: expected an object {\"ID\": BIAS}");
    json_array_foreach(v, i, entry)
    {
        json_t *id = json_array_get(entry, 0);
        if (json_is_string(id)) {
            if (!add_text_bias(p, f, m, json_string_value(id), json_array_get(entry, 1))) return false;
            continue;
        }
        if (!json_is_integer(id)) return serve_fail(f.e, 400, "logit_bias", "logit_bias: expected [[ID, BIAS], ...]");
        if (!add_bias(p, f, info, json_integer_value(id), json_array_get(entry, 1))) return false;
    }
    return true;
}

static bool add_stop(struct params *p, struct fields f, json_t *v, const char *name)
{
    if (!json_is_string(v)) return serve_fail(f.e, 400, name, "%s: expected a string or a list of strings", name);
    size_t n = json_string_length(v);
    if (p->stops_n == PARAMS_STOPS || n > PARAMS_STOP_BYTES)
        return serve_fail(f.e, 400, name, "%s: at most %d texts of %d bytes", name, PARAMS_STOPS, PARAMS_STOP_BYTES);
    if (n) p->stops[p->stops_n++] = json_string_value(v);
    return true;
}

static bool read_stops(struct params *p, struct fields f)
{
    const char *name = field_has(f, "stop_sequences") ? "stop_sequences" : "stop";
    json_t *v = field(f, name), *entry;
    size_t i;
    if (!v) return true;
    if (!json_is_array(v)) return add_stop(p, f, v, name);
    json_array_foreach(v, i, entry) if (!add_stop(p, f, entry, name)) return false;
    return true;
}

/* logprobs is a switch in chats and a number of alternatives in completions. */
static void read_logprobs(struct params *p, struct fields f)
{
    json_t *v = field(f, "logprobs");
    if (json_is_boolean(v)) {
        p->logprobs = json_is_true(v);
        p->top_logprobs = (uint32_t)field_int(f, "top_logprobs", 0, PARAMS_LOGPROBS, 0);
        if (p->top_logprobs && !p->logprobs) serve_fail(f.e, 400, "top_logprobs", "top_logprobs: needs logprobs: true");
    } else if (v) {
        p->logprobs = true;
        p->top_logprobs = (uint32_t)field_int(f, "logprobs", 0, PARAMS_LOGPROBS, 0);
    } else {
        p->top_logprobs = (uint32_t)field_int(f, field_has(f, "n_probs") ? "n_probs" : "top_logprobs", 0, PARAMS_LOGPROBS, 0);
        p->logprobs = p->top_logprobs > 0;
    }
    if (p->logprobs) p->sampling.logprobs = 1 + p->top_logprobs;
}

bool params_constrain(struct params *p, struct pooled_model *m, segue_grammar_kind kind, const char *text, size_t len,
                      const char *where, struct serve_error *e)
{
    segue_error err = {0};
    if (p->grammar)
        return serve_fail(e, 400, where,
                          "%s: the text is constrained twice; send one of response_format, "
                          "json_schema, grammar and regex",
                          where);
    if (p->sampling.ignore_stops) return serve_fail(e, 400, "ignore_eos", "ignore_eos: cannot be combined with %s", where);
    segue_status st = grammars_take(&m->grammars, m->placement.model, kind, text, len, &p->grammar, &err);
    if (st) return serve_fail(e, st == SEGUE_EMEMORY ? 503 : 400, where, "%s: %s", where, err.text);
    p->grammars = &m->grammars;
    p->sampling.grammar = p->grammar;
    if (!m->log) return true;
    p->constraint = (struct record_constraint){kind, out_alloc(len + 1), len};
    memcpy(p->constraint.text, text, len);
    return true;
}

static bool constrain_json(struct params *p, struct pooled_model *m, json_t *schema, const char *where,
                           struct serve_error *e)
{
    if (!json_is_object(schema)) return serve_fail(e, 400, where, "%s: the schema is not an object", where);
    char *text = json_dumps(schema, JSON_COMPACT);
    bool ok = text && params_constrain(p, m, SEGUE_GRAMMAR_JSON_SCHEMA, text, strlen(text), where, e);
    free(text);
    return ok;
}

/* response_format {"type": "text" | "json_object" | "json_schema" | "grammar" | "regex"}. In the Responses API the schema is
 * not nested in "json_schema". */
static bool read_format(struct params *p, struct fields f, struct pooled_model *m, json_t *format, const char *where)
{
    const char *type = json_string_value(json_object_get(format, "type"));
    json_t *inner = json_object_get(format, "json_schema"), *schema = json_object_get(inner ? inner : format, "schema");
    if (!json_is_object(format) || !type) return serve_fail(f.e, 400, where, "%s: expected an object with \"type\"", where);
    if (!strcmp(type, "text")) return true;
    if (!strcmp(type, "json_object") && !schema)
        return params_constrain(p, m, SEGUE_GRAMMAR_JSON_SCHEMA, "{\"type\":\"object\"}", 17, where, f.e);
    if (!strcmp(type, "json_schema") || !strcmp(type, "json_object")) {
        if (schema) return constrain_json(p, m, schema, where, f.e);
        return serve_fail(f.e, 400, where, "%s: type json_schema without a schema", where);
    }
    const char *text = json_string_value(json_object_get(format, strcmp(type, "regex") != 0 ? "grammar" : "pattern"));
    if ((strcmp(type, "grammar") != 0 && strcmp(type, "regex") != 0) || !text)
        return serve_fail(
            f.e, 400, where,
            "%s: type '%.40s': expected text, json_object, json_schema, grammar (with grammar) or regex (with pattern)", where,
            type);
    return params_constrain(p, m, type[0] == 'g' ? SEGUE_GRAMMAR_GBNF : SEGUE_GRAMMAR_REGEX, text, strlen(text), where, f.e);
}

static bool read_constraints(struct params *p, struct fields f, struct pooled_model *m)
{
    static const struct {
        const char *name;
        segue_grammar_kind kind;
    } texts[] = {{"grammar", SEGUE_GRAMMAR_GBNF},
                 {"guided_grammar", SEGUE_GRAMMAR_GBNF},
                 {"regex", SEGUE_GRAMMAR_REGEX},
                 {"guided_regex", SEGUE_GRAMMAR_REGEX}};
    json_t *format = field(f, "response_format"), *text = field(f, "text");
    if (format && !read_format(p, f, m, format, "response_format")) return false;
    format = json_is_object(text) ? json_object_get(text, "format") : NULL;
    if (format && !json_is_null(format) && !read_format(p, f, m, format, "text.format")) return false;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const char *value = field_text(f, texts[i].name, NULL);
        if (value && *value && !params_constrain(p, m, texts[i].kind, value, strlen(value), texts[i].name, f.e)) return false;
    }
    const char *name = field_has(f, "guided_json") ? "guided_json" : "json_schema";
    json_t *schema = field(f, name);
    return !schema || constrain_json(p, m, schema, name, f.e);
}

struct adapter_choice *params_adapters(json_t *list, const struct pooled_model *m, size_t *n, struct serve_error *e)
{
    static const char expected[] = "expected a list of {\"id\": place of --lora, \"scale\": number}";
    struct adapter_choice *out = out_alloc((json_array_size(list) + 1) * sizeof *out);
    bool good = json_is_array(list) && json_array_size(list) <= PLACEMENT_ADAPTERS;
    size_t i;
    json_t *item;
    json_array_foreach(list, i, item)
    {
        const json_t *id = json_object_get(item, "id"), *scale = json_object_get(item, "scale");
        if (!good || !json_is_integer(id) || !json_is_number(scale) || json_integer_value(id) < 0 ||
            json_integer_value(id) >= (json_int_t)m->adapters.n || !(fabs(json_number_value(scale)) <= 1e6))
            good = false;
        else
            out[i] = (struct adapter_choice){(size_t)json_integer_value(id), (float)json_number_value(scale)};
    }
    *n = i;
    if (good && !m->log) return out;
    free(out);
    if (good) serve_fail(e, 400, "lora", "lora: a record has the adapters of --lora alone; start the server without --record");
    else serve_fail(e, 400, "lora", "lora: %s; %zu adapters are open", expected, m->adapters.n);
    return NULL;
}

/* The bound of the reasoning, and whether it is returned apart. The names are those of llama.cpp's server and of vLLM. */
static void read_thinking(struct params *p, struct fields f, const struct pooled_model *m)
{
    static const char *const names[] = {"thinking_budget", "reasoning_budget", "reasoning_budget_tokens"};
    const char *name = names[0], *server = args_text(&m->args, "reasoning-format");
    for (size_t i = 0; i < 3; i++)
        if (field_has(f, names[i])) name = names[i];
    long long budget = field_int(f, name, -1, INT32_MAX, (long long)args_number(&m->args, "reasoning-budget", -1));
    if (budget >= 0) p->thinking_budget = (size_t)budget;
    const char *format = field_text(f, "reasoning_format", server ? server : "auto");
    p->thinking_in_content = !strcmp(format, "none");
    if (!p->thinking_in_content && strcmp(format, "auto") != 0 && strcmp(format, "deepseek") != 0)
        serve_fail(f.e, 400, "reasoning_format", "reasoning_format: expected auto, deepseek or none");
}

bool params_read(struct params *p, struct fields f, struct pooled_model *m)
{
    *p = (struct params){.thinking_budget = SIZE_MAX};
    read_sampling(p, f, m);
    if (!read_bias(p, f, m) || !read_stops(p, f)) return false;
    read_logprobs(p, f);
    static const char *const limits[] = {"max_completion_tokens", "max_output_tokens", "max_tokens", "n_predict"};
    for (size_t i = 0; i < 4; i++) {
        long long low = i == 3 ? -1 : 1, v = field_int(f, limits[i], low, INT32_MAX, 0);
        if (v > 0 && !p->max_tokens) p->max_tokens = (size_t)v;
    }
    if (!p->max_tokens && !field_has(f, "n_predict")) p->max_tokens = (size_t)args_number(&m->args, "predict", 0);
    p->choices = (size_t)field_int(f, field_has(f, "n_cmpl") ? "n_cmpl" : "n", 1, PARAMS_CHOICES, 1);
    p->stream = field_bool(f, "stream", false);
    p->no_store = !field_bool(f, "cache_prompt", true);
    struct fields options = {field_object(f, "stream_options"), f.e};
    if (options.o) p->include_usage = field_bool(options, "include_usage", false);
    p->verbose = field_bool(f, "verbose", args_has(&m->args, "verbose"));
    p->return_tokens = field_bool(f, "return_tokens", false);
    p->return_progress = field_bool(f, "return_progress", false);
    p->timings_per_token = field_bool(f, "timings_per_token", false);
    long long slot = field_int(f, "id_slot", -1, INT32_MAX, -1);
    p->slot = slot >= 0 ? (size_t)slot : SIZE_MAX;
    if (field_has(f, "lora")) p->lora = params_adapters(field(f, "lora"), m, &p->lora_n, f.e);
    read_thinking(p, f, m);
    long long predict = field_int(f, "t_max_predict_ms", -1, INT32_MAX, -1);
    p->predict_ns = predict > 0 ? (uint64_t)predict * MS_NS : 0;
    long long ping = field_int(f, "sse_ping_interval", -1, INT32_MAX, PING_S);
    p->ping_ns = ping > 0 ? (uint64_t)ping * 1000 * MS_NS : 0;
    return !f.e->status && read_constraints(p, f, m);
}

void params_free(struct params *p)
{
    free(p->bias);
    if (p->grammar) grammars_release(p->grammars, p->grammar);
    free(p->constraint.text);
    free(p->lora);
    *p = (struct params){0};
}
