/* answer.c: generation of an answer, see answer.h. Text is written as soon as no stop string can begin in it;
 * when an answer ends, held text is written or dropped, and every computed token is counted.
 * SPDX-License-Identifier: MIT */
#include "run/answer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "term/interrupt.h"
#include "term/progress.h"

/* 53 bits, because JSON readers keep numbers as doubles and the reported seed must be usable with --seed. */
static uint64_t random_seed(void)
{
    uint64_t seed = out_now_ns() * 0x9e3779b97f4a7c15u;
    FILE *f = fopen("/dev/urandom", "rb");
    if (f) {
        if (fread(&seed, sizeof seed, 1, f) != 1) seed ^= seed >> 31;
        fclose(f);
    }
    return seed & (((uint64_t)1 << 53) - 1);
}

/* A negative value in segue_model_info means that the model does not specify the parameter. */
static float value_or_default(float v, float fallback) { return v >= 0 ? v : fallback; }

/* Parse all --logit-bias ID=V into c->bias. */
static segue_status read_bias(struct sampler *c, const struct args *args, const segue_model_info *info,
                              segue_error *err)
{
    const char *text;
    for (size_t i = 0; (text = args_nth(args, "logit-bias", i)); i++) {
        char *id_end, *rest = NULL;
        long id = strtol(text, &id_end, 10);
        float v = id_end != text && *id_end == '=' ? strtof(id_end + 1, &rest) : 0;
        if (!rest || rest == id_end + 1 || *rest || isnan(v) || id < 0 || (unsigned long)id >= info->vocab)
            return out_fail(err, SEGUE_EARG,
                            "flag --logit-bias: \"%.60s\": not ID=V; expected ID=V with a token id from 0 to %u",
                            text, info->vocab - 1);
        c->bias = out_realloc(c->bias, (i + 1) * sizeof *c->bias);
        c->bias[i] = (struct segue_bias){(int32_t)id, v};
        c->sampling.bias_n = i + 1;
    }
    c->sampling.bias = c->bias;
    return SEGUE_OK;
}

/* llama.cpp's defaults: temperature 0.8, top-k 40, top-p 0.95, min-p 0.05. */
segue_status sampler_read(struct sampler *c, const struct args *args, const segue_model_info *info,
                         segue_error *err)
{
    *c = (struct sampler){.sampling = SEGUE_INIT(segue_sampling)};
    segue_sampling *s = &c->sampling;
    s->temperature = (float)args_number(args, "temp", value_or_default(info->temperature, 0.8f));
    if (args_has(args, "greedy")) s->temperature = 0;
    s->top_k = (int32_t)args_number(args, "top-k", info->top_k >= 0 ? info->top_k : 40);
    s->top_p = (float)args_number(args, "top-p", value_or_default(info->top_p, 0.95f));
    s->min_p = (float)args_number(args, "min-p", value_or_default(info->min_p, 0.05f));
    s->typical_p = (float)args_number(args, "typical", 0);
    s->repeat_penalty = (float)args_number(args, "repeat-penalty", value_or_default(info->repeat_penalty, 0));
    s->repeat_last_n = (int32_t)args_number(args, "repeat-last-n", 0);
    s->presence_penalty = (float)args_number(args, "presence-penalty", 0);
    s->frequency_penalty = (float)args_number(args, "frequency-penalty", 0);
    s->dry_multiplier = (float)args_number(args, "dry-multiplier", 0);
    s->dry_base = (float)args_number(args, "dry-base", 0);
    s->dry_allowed_length = (int32_t)args_number(args, "dry-allowed-length", 0);
    if (args_has(args, "repeat-last-n") && s->repeat_last_n == 0) /* 0: no token is penalized */
        s->repeat_penalty = s->presence_penalty = s->frequency_penalty = 0;
    const char *seed = args_text(args, "seed");
    s->seed = seed ? strtoull(seed, NULL, 10) : random_seed();
    s->ignore_stops = args_has(args, "ignore-eos");
    if (args_has(args, "logprobs")) s->logprobs = 1 + (uint32_t)args_number(args, "logprobs", 0);
    return read_bias(c, args, info, err);
}

void sampler_free(struct sampler *c)
{
    free(c->bias);
    segue_grammar_close(c->grammar);
    *c = (struct sampler){0};
}

/* TOKEN_BYTES: text bytes reserved per token, about four times the average. MAX_RESERVED_TOKENS bounds the memory
 * reserved for an answer without a limit. */
/* The chosen token and the alternatives that the library can report. */
enum { MAX_LOGPROBS = 21 };
enum { TOKEN_BYTES = 16, MAX_RESERVED_TOKENS = 1 << 16 };

/* Allocate for the whole answer as far as its length is known, so that nothing is allocated between two tokens. */
static void reserve_buffers(struct answer *a)
{
    a->ids_cap = a->limit < MAX_RESERVED_TOKENS ? a->limit + 1 : MAX_RESERVED_TOKENS;
    a->ids = out_alloc(a->ids_cap * sizeof *a->ids);
    if (!a->text.data) return;
    a->text.cap = a->ids_cap * TOKEN_BYTES;
    a->text.data = out_realloc(a->text.data, a->text.cap);
}

/* Special tokens are excluded from the text: a stop token is not part of the answer. */
void answer_begin(struct answer *a, const struct placement *p, const struct args *args, segue_session *session,
                  uint64_t start_ns, bool to_stdout)
{
    segue_error ignored;
    *a = (struct answer){.model = p->model, .session = session, .to_stdout = to_stdout, .start_ns = start_ns};
    double n = args_number(args, "tokens", 1024);
    a->limit = n < 0 ? SIZE_MAX : (size_t)n;
    a->ends_when_full = n < 0; /* -1 asks for an answer up to the end of the context */
    if (args_has(args, "logprobs")) {
        a->logprobs = 1 + (uint32_t)args_number(args, "logprobs", 0);
        a->logprob_list = json_array();
    }
    a->quiet = args_has(args, "quiet");
    a->chunk = (size_t)args_number(args, "chunk", 512);
    a->pieces = SEGUE_INIT(segue_text);
    a->pieces.flags = SEGUE_TEXT_NO_SPECIAL;
    const char *stop;
    for (size_t i = 0; (stop = args_nth(args, "stop", i)); i++) {
        if (!*stop) continue;
        a->stops = out_realloc(a->stops, (a->pieces.stops_n + 1) * sizeof *a->stops);
        a->stops[a->pieces.stops_n++] = stop;
    }
    a->pieces.stops = a->stops;
    if (p->info.has_tokenizer) {
        a->piece = out_alloc(a->piece_cap = 4096);
        out_add(&a->text, "", 0);
    }
    reserve_buffers(a);
    a->at_begin = a->at_first = a->at_end = SEGUE_INIT(segue_stats);
    segue_session_stats_get(session, &a->at_begin, &ignored);
    work_get(&a->work_begin, session);
}

void answer_set_meter(struct answer *a, struct meter *m) { a->meter = m; }

void answer_set_keep(struct answer *a, size_t keep) { a->shifts = true, a->keep = keep; }

/* Write text to the terminal with its colours: the escape sequences are ours, so only the text is cleaned. */
static segue_status write_coloured(struct answer *a, const char *bytes, size_t n)
{
    struct out_text t = {0};
    char *copy = out_alloc(n + 1);
    memcpy(copy, bytes, n);
    colour_text(&a->colour, copy, out_clean(copy, n, false), &t);
    segue_status st = out_write_raw(t.data, t.len, &a->err);
    free(t.data);
    free(copy);
    return st;
}

/* Templates may end the prompt with <think>: then the answer begins inside it. */
static void begin_colour(struct answer *a)
{
    const int32_t *tokens;
    char text[128];
    size_t n = segue_session_tokens(a->session, &tokens), last = n < 8 ? n : 8, len = 0;
    segue_error err;
    struct out_text t = {0};
    a->colour.on = a->to_stdout && a->piece && colour_on(1);
    if (!a->colour.on || segue_detokenize(a->model, tokens + n - last, last, 0, text, sizeof text - 1, &len, &err)) return;
    text[len < sizeof text ? len : sizeof text - 1] = 0;
    const char *tag = strstr(text, "<think>");
    if (!tag || strstr(tag, "</think>")) return;
    colour_thinking(&a->colour, &t);
    out_write_raw(t.data, t.len, &err);
    free(t.data);
}

/* Append text and, if it goes to stdout, write it at once. */
static segue_status emit_text(struct answer *a, const char *bytes, size_t n)
{
    out_add(&a->text, bytes, n);
    if (!a->to_stdout || !n) return SEGUE_OK;
    return a->colour.on ? write_coloured(a, bytes, n) : out_write(bytes, n, &a->err);
}

/* Detokenize one token, or flush the held text (token -1). SEGUE_END: a stop string was found. The piece buffer grows
 * up to 64 MiB. */
static segue_status emit_piece(struct answer *a, int32_t token)
{
    size_t len = 0;
    segue_status st;
    while ((st = segue_text_next(a->model, &a->pieces, token, a->piece, a->piece_cap, &len, &a->err)) ==
               SEGUE_ELIMIT &&
           a->piece_cap < ((size_t)1 << 26))
        a->piece = out_realloc(a->piece, a->piece_cap *= 2);
    if (st < 0) return st;
    segue_status write_status = emit_text(a, a->piece, len);
    return write_status ? write_status : st;
}

/* For models without a tokenizer: print ids separated by commas. */
static segue_status emit_id(struct answer *a, int32_t token)
{
    char id[16];
    if (!a->to_stdout) return SEGUE_OK;
    snprintf(id, sizeof id, "%s%d", a->ids_n > 1 ? "," : "", token);
    return out_write(id, strlen(id), &a->err);
}

/* {id, text, logprob}. The text of a single token may be an incomplete UTF-8 character. */
static json_t *logprob_json(const struct answer *a, const segue_logprob *l)
{
    char text[1024];
    size_t n = 0;
    segue_error ignored;
    json_t *o = json_object();
    json_object_set_new(o, "id", json_integer(l->token));
    if (!a->piece || segue_detokenize(a->model, &l->token, 1, 0, text, sizeof text, &n, &ignored) ||
        n >= sizeof text)
        out_null(o, "text", "the token has no text");
    else
        json_object_set_new(o, "text", out_string(text, n));
    json_object_set_new(o, "logprob", out_real(l->logprob));
    return o;
}

/* The session keeps the log-probabilities of the last token only, so they are collected after each token. */
static void append_logprobs(struct answer *a)
{
    segue_logprob list[MAX_LOGPROBS];
    size_t n = 0;
    segue_error ignored;
    if (!a->logprobs || segue_session_logprobs(a->session, list, MAX_LOGPROBS, &n, &ignored) || n == 0) return;
    json_t *o = logprob_json(a, &list[0]), *top = json_array();
    for (size_t i = 1; i < n && i < a->logprobs; i++) json_array_append_new(top, logprob_json(a, &list[i]));
    json_object_set_new(o, "top", top);
    json_array_append_new(a->logprob_list, o);
}

/* Set the result and the final figures. Called exactly once per answer. Returns true for the convenience of the
 * callers. */
static bool finish_answer(struct answer *a, const char *finish, segue_status status)
{
    segue_error ignored;
    a->finish = finish;
    a->status = status;
    /* Text held back as the possible start of a stop string is part of the answer if something else ended it. */
    if (a->piece && !a->pieces.priv.ended && status != SEGUE_EIO && emit_piece(a, -1) == SEGUE_EIO) {
        a->finish = NULL;
        a->status = SEGUE_EIO;
    }
    if (a->colour.active) {
        struct out_text t = {0};
        colour_end(&a->colour, &t);
        out_write_raw(t.data, t.len, &ignored);
        free(t.data);
    }
    a->end_ns = out_now_ns();
    if (a->session) {
        segue_session_stats_get(a->session, &a->at_end, &ignored);
        work_get(&a->work_end, a->session);
    }
    return true;
}

/* The first token also records its time and counters. */
bool answer_push(struct answer *a, segue_status status, int32_t token, const segue_error *err)
{
    segue_error ignored;
    if (status == SEGUE_ECANCELED) return finish_answer(a, "cancel", SEGUE_OK);
    if (status == SEGUE_ELIMIT && a->ends_when_full && a->ids_n) {
        a->full = true;
        return finish_answer(a, "length", SEGUE_OK);
    }
    if (status < 0) {
        a->err = *err;
        return finish_answer(a, NULL, status);
    }
    if (a->ids_n == a->ids_cap)
        a->ids = out_realloc(a->ids, (a->ids_cap = a->ids_cap * 2 + 64) * sizeof *a->ids);
    a->ids[a->ids_n++] = token;
    append_logprobs(a);
    segue_status st = SEGUE_OK;
    if (status != SEGUE_END) st = a->piece ? emit_piece(a, token) : emit_id(a, token);
    if (a->ids_n == 1) {
        a->first_ns = out_now_ns();
        segue_session_stats_get(a->session, &a->at_first, &ignored);
    }
    if (st == SEGUE_ECANCELED) return finish_answer(a, "cancel", SEGUE_OK);
    if (st < 0) return finish_answer(a, NULL, st);
    if (status == SEGUE_END || st == SEGUE_END) return finish_answer(a, "stop", SEGUE_OK);
    if (a->ids_n >= a->limit) return finish_answer(a, "length", SEGUE_OK);
    if (interrupt_pending()) return finish_answer(a, "cancel", SEGUE_OK);
    return false;
}

/* Prefill a long prompt chunk by chunk to show progress. The last chunk is left to the first call of
 * segue_session_next. The engine divides a prompt at the same boundaries, so the result does not change. */
static segue_status prefill_prompt(struct answer *a, segue_error *err)
{
    struct progress progress;
    size_t total = a->prompt_pending, done = 0, n = 1;
    segue_status st = SEGUE_OK;
    progress_begin(&progress, "prefill: tokens", a->quiet);
    while (!st && n && progress.enabled && total - done > a->chunk) {
        st = segue_session_prefill(a->session, a->chunk, &n, err);
        done += n;
        progress_step(&progress, done, total, false);
    }
    progress_end(&progress);
    return st;
}

/* Drop half of the tokens after the first --keep ones, the oldest. The rest has other positions then, and is computed again with
 * the next token. */
static segue_status shift_context(struct answer *a, segue_error *err)
{
    const int32_t *tokens;
    size_t n = segue_session_tokens(a->session, &tokens), keep = a->keep;
    if (keep + 2 > n)
        return out_fail(err, SEGUE_ELIMIT, "flag --keep: %zu: the context holds %zu tokens, all of which are kept; keep fewer or "
                        "raise --context", keep, n);
    size_t drop = (n - keep + 1) / 2, rest = n - keep - drop;
    int32_t *copy = out_alloc(rest * sizeof *copy);
    memcpy(copy, tokens + keep + drop, rest * sizeof *copy);
    segue_status st = segue_session_rewind(a->session, keep, err);
    if (!st) st = segue_session_append(a->session, copy, rest, err);
    free(copy);
    a->dropped += drop;
    return st;
}

/* limit 0 computes the prompt only. */
void answer_run(struct answer *a)
{
    segue_error err;
    begin_colour(a);
    segue_status status = prefill_prompt(a, &err);
    if (!status) status = read_ahead_attach(a->read_ahead, a->session, &err);
    if (status) {
        answer_push(a, status, -1, &err);
        return;
    }
    if (a->limit == 0) {
        segue_status st = segue_session_prefill(a->session, 0, NULL, &err);
        if (st < 0) a->err = err;
        finish_answer(a,
            st == SEGUE_ECANCELED ? "cancel"
            : st < 0              ? NULL
                                  : "length",
            st < 0 && st != SEGUE_ECANCELED ? st : SEGUE_OK);
        return;
    }
    for (;;) {
        int32_t token = -1;
        segue_status st = segue_session_next(a->session, &token, &err);
        if (st == SEGUE_ELIMIT && a->shifts && a->ids_n) {
            st = shift_context(a, &err);
            if (!st) st = segue_session_next(a->session, &token, &err);
        }
        if (answer_push(a, st, token, &err)) return;
        read_ahead_push(a->read_ahead, token);
    }
}

/* Also called for an answer that was never started. */
void answer_free(struct answer *a)
{
    free(a->stops);
    free(a->piece);
    free(a->text.data);
    free(a->ids);
    json_decref(a->logprob_list);
    *a = (struct answer){0};
}
