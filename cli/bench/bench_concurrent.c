/* bench_concurrent.c: `segue bench --concurrent N`: speed of decode while other sessions prefill prompts of N tokens. One
 * thread decodes without pause; the main thread runs prefills, each in a new session.
 * SPDX-License-Identifier: MIT */
#include "bench/bench.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include "term/interrupt.h"
#include "host/machine.h"
#include "run/report.h"

/* PREFILLS: prompts per sample. MAX_TOKENS: capacity of the time list of the decoding thread. */
enum { PREFILLS = 8, MAX_TOKENS = 1 << 16 };

/* The decoding thread. The main thread reads st and err after the join. */
struct decoder {
    struct bench_run *b;
    segue_session *session;
    atomic_int stop;        /* set by the main thread */
    atomic_size_t tokens_n; /* tokens generated so far */
    uint64_t *token_ns;     /* [MAX_TOKENS] time of each token */
    segue_status st;
    segue_error err;
};

/* One sample: decode without and with concurrent prefills, and the median prefill without and with decode. */
struct concurrent_sample {
    double alone_tok_s, concurrent_tok_s, prefill_alone_ms, prefill_concurrent_ms;
};

/* Thread: decode until stopped, or until the context or the time list is full. */
static void *decode_main(void *arg)
{
    struct decoder *w = arg;
    int32_t token;
    while (!atomic_load(&w->stop) && w->st == SEGUE_OK && atomic_load(&w->tokens_n) < MAX_TOKENS) {
        w->st = segue_session_next(w->session, &token, &w->err);
        /* The time is stored before the counter is raised, so that readers see only complete entries. */
        w->token_ns[atomic_load(&w->tokens_n)] = out_now_ns();
        atomic_fetch_add(&w->tokens_n, 1);
    }
    return NULL;
}

/* Rate of the tokens generated between two times. */
static double tokens_per_second(const struct decoder *w, size_t n, uint64_t from, uint64_t to)
{
    size_t inside = 0;
    for (size_t i = 0; i < n; i++) inside += w->token_ns[i] > from && w->token_ns[i] <= to;
    return (double)inside * 1e9 / (double)(to - from);
}

/* Prefill the prompt ids[n] in a new session; *ns: the time of the prefill alone. */
static segue_status prefill_once(struct bench_run *b, const int32_t *ids, size_t n, uint64_t *ns, segue_error *err)
{
    segue_session *s = NULL;
    segue_status st = bench_session(b, placement_plan(&b->placement), ids, n, n + 1, &s, err);
    uint64_t start_ns = out_now_ns();
    if (!st) st = segue_session_prefill(s, 0, NULL, err);
    *ns = out_now_ns() - start_ns;
    bench_close_session(s);
    return st;
}

/* PREFILLS prefills one after the other. *ms: their median; *from and *to: start and end of the series. */
static segue_status prefill_series(struct bench_run *b, const int32_t *ids, size_t n, double *ms, uint64_t *from, uint64_t *to,
                             segue_error *err)
{
    double each[PREFILLS] = {0};
    segue_status st = SEGUE_OK;
    *from = out_now_ns();
    for (size_t i = 0; i < PREFILLS && !st; i++) {
        uint64_t ns;
        st = prefill_once(b, ids, n, &ns, err);
        each[i] = (double)ns / 1e6;
    }
    *to = out_now_ns();
    *ms = bench_median(each, PREFILLS);
    return st;
}

/* One sample: prefills alone, then decode alone for the same duration, then both at the same time. */
static segue_status one_sample(struct bench_run *b, const int32_t *ids, size_t n, struct concurrent_sample *out, segue_error *err)
{
    struct decoder w = {.b = b, .token_ns = out_alloc(MAX_TOKENS * sizeof *w.token_ns)};
    /* The main thread sleeps while decode runs alone, so that it does not compete for a core. */
    const struct timespec nap = {.tv_nsec = 200000};
    uint64_t from = 0, to = 0, start_ns;
    pthread_t thread;
    int32_t token;
    segue_status st = prefill_series(b, ids, n, &out->prefill_alone_ms, &from, &to, err);
    /* Decode alone is measured for as long as the prefills took. */
    uint64_t duration = to - from;
    if (!st) st = bench_session(b, placement_plan(&b->placement), ids, 1, MAX_TOKENS + 64, &w.session, err);
    /* Warm-up: graphs are captured and the clock frequency rises. */
    for (int i = 0; i < 16 && !st; i++) st = segue_session_next(w.session, &token, err);
    if (!st && pthread_create(&thread, NULL, decode_main, &w))
        st = out_fail(err, SEGUE_EUNIT, "bench --concurrent: no thread can be started; close other programs");
    else if (!st) {
        start_ns = out_now_ns();
        /* At least until the thread has decoded a token. */
        while ((out_now_ns() - start_ns < duration || !atomic_load(&w.tokens_n)) && !interrupt_pending())
            nanosleep(&nap, NULL);
        uint64_t alone_end = out_now_ns();
        /* Now both at the same time. */
        st = prefill_series(b, ids, n, &out->prefill_concurrent_ms, &from, &to, err);
        atomic_store(&w.stop, 1);
        pthread_join(thread, NULL);
        size_t tokens_n = atomic_load(&w.tokens_n);
        out->alone_tok_s = tokens_per_second(&w, tokens_n, start_ns, alone_end);
        out->concurrent_tok_s = tokens_per_second(&w, tokens_n, from, to);
        /* An error of the thread counts only if the prefills succeeded. */
        if (!st && w.st < 0) {
            st = w.st;
            *err = w.err;
        } else if (!st && (w.st || tokens_n >= MAX_TOKENS))
            st = out_fail(err, SEGUE_ELIMIT,
                          "bench --concurrent: decode ended after %zu tokens, before the prefills; use a shorter prompt",
                          tokens_n);
    }
    bench_close_session(w.session);
    free(w.token_ns);
    return st;
}

/* One row: medians over the samples, and the slowdowns of every sample. */
static json_t *result_row(const struct bench_run *b, size_t n, const struct concurrent_sample *samples)
{
    json_t *o = json_object(), *decode_slowdowns = json_array(), *prefill_slowdowns = json_array();
    /* One list per figure, because bench_median sorts its input. */
    double *v[6];
    for (size_t k = 0; k < 6; k++) v[k] = out_alloc(b->repeats * sizeof *v[k]);
    for (size_t i = 0; i < b->repeats; i++) {
        const struct concurrent_sample *s = &samples[i];
        const double all[6] = {s->alone_tok_s, s->concurrent_tok_s,
                               s->concurrent_tok_s > 0 ? s->alone_tok_s / s->concurrent_tok_s : 0,
                               s->prefill_alone_ms, s->prefill_concurrent_ms, s->prefill_concurrent_ms / s->prefill_alone_ms};
        for (size_t k = 0; k < 6; k++) v[k][i] = all[k];
        json_array_append_new(decode_slowdowns, out_real(all[2]));
        json_array_append_new(prefill_slowdowns, out_real(all[5]));
    }
    static const char *const names[6] = {"decode_alone_tok_s", "decode_concurrent_tok_s", "decode_slowdown", "prefill_alone_ms",
                                         "prefill_concurrent_ms", "prefill_slowdown"};
    json_object_set_new(o, "unit", json_string(b->placement.unit_info[report_phase_unit(&b->placement, 0)].spec));
    json_object_set_new(o, "model", report_model_json(&b->placement));
    json_object_set_new(o, "n_prompt", json_integer((json_int_t)n));
    for (size_t k = 0; k < 6; k++) {
        report_positive_or_null(o, names[k], bench_median(v[k], b->repeats), "no token was generated during the prefills");
        free(v[k]);
    }
    json_object_set_new(o, "samples_decode_slowdown", decode_slowdowns);
    json_object_set_new(o, "samples_prefill_slowdown", prefill_slowdowns);
    json_object_set_new(o, "machine", machine_json(b->placement.unit_info, b->placement.units_n));
    json_object_set_new(o, "seed", json_integer((json_int_t)b->seed));
    return o;
}

/* One unmeasured sample first, as a warm-up. */
static segue_status measure(struct bench_run *b, segue_error *err)
{
    /* Tokens per prompt, of --concurrent N. */
    size_t n = (size_t)args_number(&b->args, "concurrent", 2048);
    int32_t *ids = bench_ids(b, n);
    struct concurrent_sample *samples = out_alloc(b->repeats * sizeof *samples), warm;
    segue_status st = one_sample(b, ids, n, &warm, err);
    for (size_t i = 0; i < b->repeats && !st; i++) {
        st = one_sample(b, ids, n, &samples[i], err);
        progress_step(&b->progress, i + 1, b->repeats, false);
    }
    if (!st) st = bench_out_row(b->out, result_row(b, n, samples), err);
    free(samples);
    free(ids);
    return st;
}

int bench_concurrent(struct bench_run *b)
{
    static const struct bench_column columns[] = {{"unit", "unit", 0},
                                                  {"tokens", "n_prompt", 0},
                                                  {"tok/s alone", "decode_alone_tok_s", 1},
                                                  {"tok/s concurrent", "decode_concurrent_tok_s", 1},
                                                  {"decode slowdown", "decode_slowdown", 3},
                                                  {"prefill ms alone", "prefill_alone_ms", 2},
                                                  {"prefill ms concurrent", "prefill_concurrent_ms", 2},
                                                  {"prefill slowdown", "prefill_slowdown", 3},
                                                  {NULL, NULL, 0}};
    b->out->columns = columns;
    return bench_with_placement(b, measure);
}
