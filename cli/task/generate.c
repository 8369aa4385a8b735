/* generate.c: see generate.h.
 * Must never do: hold a token longer than a stop string needs, or lose one that was paid for.
 * SPDX-License-Identifier: MIT */
#include "task/generate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "term/interrupt.h"
#include "term/progress.h"

/* --- how tokens are chosen --- */

/* 53 bits: JSON readers keep numbers as doubles, and the seed must come back whole. */
static uint64_t random_seed(void)
{
    uint64_t seed = out_now_ns() * 0x9e3779b97f4a7c15u;
    FILE *f = fopen("/dev/urandom", "rb");
    if (f) {
        if (fread(&seed, sizeof seed, 1, f) != 1) seed ^= seed >> 31;
        fclose(f);
    }
    return seed & (((uint64_t)1 << 53) - 1); /* a JSON number, and a --seed */
}

/* A negative number is the model's way to say nothing. */
static float said(float v, float otherwise) { return v >= 0 ? v : otherwise; }

/* ID=V; the token must be one of the model's. */
static segue_status read_bias(struct choice *c, const struct args *args, const segue_model_info *info,
                              segue_error *err)
{
    const char *text;
    for (size_t i = 0; (text = args_each(args, "logit-bias", i)); i++) {
        char *end, *rest = NULL;
        long id = strtol(text, &end, 10);
        float v = end != text && *end == '=' ? strtof(end + 1, &rest) : 0;
        if (!rest || rest == end + 1 || *rest || isnan(v) || id < 0 || (unsigned long)id >= info->vocab)
            return out_fail(err, SEGUE_EARG,
                            "flag --logit-bias: \"%.60s\": not ID=V; give a token of this model (0 to %u)",
                            text, info->vocab - 1);
        c->bias = out_realloc(c->bias, (i + 1) * sizeof *c->bias);
        c->bias[i] = (struct segue_bias){(int32_t)id, v};
        c->sampling.bias_n = i + 1;
    }
    c->sampling.bias = c->bias;
    return SEGUE_OK;
}

/* A flag, else generation_config.json, else llama.cpp's default: 0.8, 40, 0.95, 0.05. */
segue_status choice_read(struct choice *c, const struct args *args, const segue_model_info *info,
                         segue_error *err)
{
    *c = (struct choice){.sampling = SEGUE_INIT(segue_sampling)};
    segue_sampling *s = &c->sampling;
    s->temperature = (float)args_number(args, "temp", said(info->temperature, 0.8f));
    if (args_has(args, "greedy")) s->temperature = 0;
    s->top_k = (int32_t)args_number(args, "top-k", info->top_k >= 0 ? info->top_k : 40);
    s->top_p = (float)args_number(args, "top-p", said(info->top_p, 0.95f));
    s->min_p = (float)args_number(args, "min-p", said(info->min_p, 0.05f));
    s->typical_p = (float)args_number(args, "typical", 0);
    s->repeat_penalty = (float)args_number(args, "repeat-penalty", said(info->repeat_penalty, 0));
    s->repeat_last_n = (int32_t)args_number(args, "repeat-last-n", 0);
    s->presence_penalty = (float)args_number(args, "presence-penalty", 0);
    s->frequency_penalty = (float)args_number(args, "frequency-penalty", 0);
    s->dry_multiplier = (float)args_number(args, "dry-multiplier", 0);
    s->dry_base = (float)args_number(args, "dry-base", 0);
    s->dry_allowed_length = (int32_t)args_number(args, "dry-allowed-length", 0);
    if (args_has(args, "repeat-last-n") && s->repeat_last_n == 0) /* 0 looks back at nothing: no penalty */
        s->repeat_penalty = s->presence_penalty = s->frequency_penalty = 0;
    const char *seed = args_text(args, "seed");
    s->seed = seed ? strtoull(seed, NULL, 10) : random_seed();
    s->ignore_stops = args_has(args, "ignore-eos");
    if (args_has(args, "logprobs")) s->logprobs = 1 + (uint32_t)args_number(args, "logprobs", 0);
    return read_bias(c, args, info, err);
}

void choice_free(struct choice *c)
{
    free(c->bias);
    *c = (struct choice){0};
}

/* --- the answer --- */

enum { TOKEN_BYTES = 16, TOKENS_MOST = 1 << 16 };

/* Room for the whole answer at once, as far as it can be known: nothing is allocated between two tokens. */
static void reserve(struct answer *a)
{
    a->ids_cap = a->limit < TOKENS_MOST ? a->limit + 1 : TOKENS_MOST;
    a->ids = out_alloc(a->ids_cap * sizeof *a->ids);
    if (!a->text.data) return;
    a->text.cap = a->ids_cap * TOKEN_BYTES;
    a->text.data = out_realloc(a->text.data, a->text.cap);
}

/* Special tokens are left out of the text: a stop token is no word of the answer. */
void answer_begin(struct answer *a, const struct place *p, const struct args *args, segue_session *session,
                  uint64_t begun_ns, bool to_stdout)
{
    segue_error ignored;
    *a = (struct answer){.model = p->model, .session = session, .to_stdout = to_stdout, .begun_ns = begun_ns};
    double n = args_number(args, "tokens", 1024);
    a->limit = n < 0 ? SIZE_MAX : (size_t)n;
    if (args_has(args, "logprobs")) {
        a->logprobs = 1 + (uint32_t)args_number(args, "logprobs", 0);
        a->logprob_list = json_array();
    }
    a->quiet = args_has(args, "quiet");
    a->terminal = to_stdout && isatty(1);
    a->chunk = (size_t)args_number(args, "chunk", 512);
    a->pieces = SEGUE_INIT(segue_text);
    a->pieces.flags = SEGUE_TEXT_NO_SPECIAL;
    const char *stop;
    for (size_t i = 0; (stop = args_each(args, "stop", i)); i++) {
        if (!*stop) continue;
        a->stops = out_realloc(a->stops, (a->pieces.stops_n + 1) * sizeof *a->stops);
        a->stops[a->pieces.stops_n++] = stop;
    }
    a->pieces.stops = a->stops;
    if (p->info.has_tokenizer) {
        a->piece = out_alloc(a->piece_cap = 4096);
        out_add(&a->text, "", 0);
    }
    reserve(a);
    a->at_begin = a->at_first = a->at_end = SEGUE_INIT(segue_stats);
    a->joules[0] = a->joules[1] = a->joules[2] = -1;
    segue_session_stats_get(session, &a->at_begin, &ignored);
}

void answer_meter(struct answer *a, struct meter *m)
{
    a->meter = m;
    a->joules[0] = meter_read(m);
}

/* Kept and, when it goes to stdout, written at once: whoever reads it waits for each word. */
static segue_status show(struct answer *a, const char *bytes, size_t n)
{
    out_add(&a->text, bytes, n);
    if (!a->to_stdout || !n) return SEGUE_OK;
    if (!a->terminal) return out_write(bytes, n, &a->err);
    /* Whatever a model was made to say, it does not steer the terminal. */
    segue_status st = SEGUE_OK;
    for (size_t from = 0; from < n && !st;) {
        char plain[256];
        size_t part = n - from < sizeof plain ? n - from : sizeof plain;
        for (size_t i = 0; i < part; i++) {
            char c = bytes[from + i];
            bool control = ((unsigned char)c < 32 && !strchr("\n\t", c)) || c == 127;
            plain[i] = control || !c ? '?' : c;
        }
        st = out_write(plain, part, &a->err);
        from += part;
    }
    return st;
}

/* The text of one token, or of what is held (-1). SEGUE_END: a stop string was met. */
static segue_status next_piece(struct answer *a, int32_t token)
{
    size_t len = 0;
    segue_status st;
    while ((st = segue_text_next(a->model, &a->pieces, token, a->piece, a->piece_cap, &len, &a->err)) ==
               SEGUE_ELIMIT &&
           a->piece_cap < ((size_t)1 << 26))
        a->piece = out_realloc(a->piece, a->piece_cap *= 2);
    if (st < 0) return st;
    segue_status shown = show(a, a->piece, len);
    return shown ? shown : st;
}

/* Models without a tokenizer: ids with commas between. */
static segue_status show_id(struct answer *a, int32_t token)
{
    char id[16];
    if (!a->to_stdout) return SEGUE_OK;
    snprintf(id, sizeof id, "%s%d", a->ids_n > 1 ? "," : "", token);
    return out_write(id, strlen(id), &a->err);
}

/* text of a token alone; it may be half a character. */
static json_t *logprob_json(const struct answer *a, const segue_logprob *l)
{
    char text[1024];
    size_t n = 0;
    segue_error ignored;
    json_t *o = json_object();
    json_object_set_new(o, "id", json_integer(l->token));
    if (!a->piece || segue_detokenize(a->model, &l->token, 1, 0, text, sizeof text, &n, &ignored) ||
        n >= sizeof text)
        out_null(o, "text", "no text for this token");
    else
        json_object_set_new(o, "text", out_string(text, n));
    json_object_set_new(o, "logprob", out_real(l->logprob));
    return o;
}

/* The library keeps those of the last token only. */
static void take_logprobs(struct answer *a)
{
    segue_stats s = SEGUE_INIT(segue_stats);
    segue_error ignored;
    if (!a->logprobs || segue_session_stats_get(a->session, &s, &ignored) || s.logprobs_n == 0) return;
    json_t *o = logprob_json(a, &s.logprobs[0]), *top = json_array();
    for (size_t i = 1; i < s.logprobs_n && i < a->logprobs; i++)
        json_array_append_new(top, logprob_json(a, &s.logprobs[i]));
    json_object_set_new(o, "top", top);
    json_array_append_new(a->logprob_list, o);
}

/* Called once, whatever ended the answer. */
static bool end(struct answer *a, const char *finish, segue_status status)
{
    segue_error ignored;
    a->finish = finish;
    a->status = status;
    /* What a stop string held back is text after all when something else ended the answer. */
    if (a->piece && !a->pieces.priv.ended && status != SEGUE_EIO && next_piece(a, -1) == SEGUE_EIO) {
        a->finish = NULL;
        a->status = SEGUE_EIO;
    }
    a->end_ns = out_now_ns();
    a->joules[2] = a->meter ? meter_read(a->meter) : -1;
    if (a->session) segue_session_stats_get(a->session, &a->at_end, &ignored);
    return true;
}

bool answer_take(struct answer *a, segue_status status, int32_t token, const segue_error *err)
{
    segue_error ignored;
    if (status == SEGUE_ECANCELED) return end(a, "cancel", SEGUE_OK);
    if (status < 0) {
        a->err = *err;
        return end(a, NULL, status);
    }
    if (a->ids_n == a->ids_cap)
        a->ids = out_realloc(a->ids, (a->ids_cap = a->ids_cap * 2 + 64) * sizeof *a->ids);
    a->ids[a->ids_n++] = token;
    take_logprobs(a);
    segue_status st = SEGUE_OK;
    if (status != SEGUE_END) st = a->piece ? next_piece(a, token) : show_id(a, token);
    if (a->ids_n == 1) {
        a->first_ns = out_now_ns();
        segue_session_stats_get(a->session, &a->at_first, &ignored);
        a->joules[1] = a->meter ? meter_read(a->meter) : -1;
    }
    if (st == SEGUE_ECANCELED) return end(a, "cancel", SEGUE_OK);
    if (st < 0) return end(a, NULL, st);
    if (status == SEGUE_END || st == SEGUE_END) return end(a, "stop", SEGUE_OK);
    if (a->ids_n >= a->limit) return end(a, "length", SEGUE_OK);
    if (interrupt_seen()) return end(a, "cancel", SEGUE_OK);
    return false;
}

/* Read a long prompt chunk by chunk, so that its progress can be shown; the last chunk is left to the first
 * token. The cuts are those that the engine makes itself. */
static segue_status read_prompt(struct answer *a, segue_error *err)
{
    struct progress progress;
    size_t all = a->waiting, done = 0, more = 1;
    segue_status st = SEGUE_OK;
    progress_begin(&progress, "reading the prompt", a->quiet);
    while (!st && more && progress.on && all - done > a->chunk) {
        st = segue_session_prefill(a->session, a->chunk, &more, err);
        done += more;
        progress_step(&progress, done, all, false);
    }
    progress_end(&progress);
    return st;
}

void answer_run(struct answer *a)
{
    segue_error err;
    segue_status read = read_prompt(a, &err);
    if (!read) read = ahead_follow(a->ahead, a->session, &err);
    if (read) {
        answer_take(a, read, -1, &err);
        return;
    }
    if (a->limit == 0) {
        segue_status st = segue_session_prefill(a->session, 0, NULL, &err);
        if (st < 0) a->err = err;
        end(a,
            st == SEGUE_ECANCELED ? "cancel"
            : st < 0              ? NULL
                                  : "length",
            st < 0 && st != SEGUE_ECANCELED ? st : SEGUE_OK);
        return;
    }
    for (;;) {
        int32_t token = -1;
        segue_status st = segue_session_next(a->session, &token, &err);
        if (answer_take(a, st, token, &err)) return;
        ahead_token(a->ahead, token);
    }
}

void answer_free(struct answer *a)
{
    free(a->stops);
    free(a->piece);
    free(a->text.data);
    free(a->ids);
    json_decref(a->logprob_list);
    *a = (struct answer){0};
}
