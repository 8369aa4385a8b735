/* bench_concurrent.c: `segue bench --beside N`: speed of decode while other sessions prefill prompts of N tokens. One
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

enum { PREFILLS = 8, MAX_TOKENS = 1 << 16 };

struct decoder {
    struct bench *b;
    segue_session *session;
    atomic_int stop;
    atomic_size_t tokens_n;
    uint64_t *token_ns; /* [TOKENS_MOST] when each token was there */
    segue_status st;
    segue_error err;
};

struct concurrent_sample {
    double alone_ts, beside_ts, reading_alone_ms, reading_beside_ms;
};

static void *decode_main(void *arg)
{
    struct decoder *w = arg;
    int32_t token;
    while (!atomic_load(&w->stop) && w->st == SEGUE_OK && atomic_load(&w->tokens_n) < MAX_TOKENS) {
        w->st = segue_session_next(w->session, &token, &w->err);
        w->token_ns[atomic_load(&w->tokens_n)] = out_now_ns();
        atomic_fetch_add(&w->tokens_n, 1);
    }
    return NULL;
}

/* Tokens a second between two moments. */
static double tokens_per_second(const struct decoder *w, size_t n, uint64_t from, uint64_t to)
{
    size_t inside = 0;
    for (size_t i = 0; i < n; i++) inside += w->token_ns[i] > from && w->token_ns[i] <= to;
    return (double)inside * 1e9 / (double)(to - from);
}

static segue_status prefill_once(struct bench *b, const int32_t *ids, size_t n, uint64_t *ns, segue_error *err)
{
    segue_session *s = NULL;
    segue_status st = bench_session(b, placement_plan(&b->placement), ids, n, n + 1, &s, err);
    uint64_t start_ns = out_now_ns();
    if (!st) st = segue_session_prefill(s, 0, NULL, err);
    *ns = out_now_ns() - start_ns;
    bench_close_session(s);
    return st;
}

/* The median reading; from and to: when all of them began and ended. */
static segue_status prefill_series(struct bench *b, const int32_t *ids, size_t n, double *ms, uint64_t *from, uint64_t *to,
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

/* Tokens alone for as long as the readings took, before them and behind them. */
static segue_status one_sample(struct bench *b, const int32_t *ids, size_t n, struct concurrent_sample *out, segue_error *err)
{
    struct decoder w = {.b = b, .token_ns = out_alloc(MAX_TOKENS * sizeof *w.token_ns)};
    const struct timespec nap = {.tv_nsec = 200000};
    uint64_t from = 0, to = 0, start_ns;
    pthread_t thread;
    int32_t token;
    segue_status st = prefill_series(b, ids, n, &out->reading_alone_ms, &from, &to, err);
    uint64_t duration = to - from;
    if (!st) st = bench_session(b, placement_plan(&b->placement), ids, 1, MAX_TOKENS + 64, &w.session, err);
    for (int i = 0; i < 16 && !st; i++) st = segue_session_next(w.session, &token, err); /* captured graphs, clocks */
    if (!st && pthread_create(&thread, NULL, decode_main, &w))
        st = out_fail(err, SEGUE_EUNIT, "beside: no thread can be started; close some programs");
    else if (!st) {
        start_ns = out_now_ns();
        while (out_now_ns() - start_ns < duration && !interrupt_pending()) nanosleep(&nap, NULL);
        uint64_t alone_end = out_now_ns();
        st = prefill_series(b, ids, n, &out->reading_beside_ms, &from, &to, err);
        atomic_store(&w.stop, 1);
        pthread_join(thread, NULL);
        size_t tokens_n = atomic_load(&w.tokens_n);
        out->alone_ts = tokens_per_second(&w, tokens_n, start_ns, alone_end);
        out->beside_ts = tokens_per_second(&w, tokens_n, from, to);
        if (!st && w.st < 0) {
            st = w.st;
            *err = w.err;
        } else if (!st && (w.st || tokens_n >= MAX_TOKENS))
            st = out_fail(err, SEGUE_ELIMIT,
                          "beside: decode ended after %zu tokens, before the prefills; use a shorter prompt", tokens_n);
    }
    bench_close_session(w.session);
    free(w.token_ns);
    return st;
}

static json_t *result_row(const struct bench *b, size_t n, const struct concurrent_sample *samples)
{
    json_t *o = json_object(), *ratios = json_array(), *readings = json_array();
    double *v[6];
    for (size_t k = 0; k < 6; k++) v[k] = out_alloc(b->repeats * sizeof *v[k]);
    for (size_t i = 0; i < b->repeats; i++) {
        const struct concurrent_sample *s = &samples[i];
        const double all[6] = {s->alone_ts,         s->beside_ts,         s->beside_ts > 0 ? s->alone_ts / s->beside_ts : 0,
                               s->reading_alone_ms, s->reading_beside_ms, s->reading_beside_ms / s->reading_alone_ms};
        for (size_t k = 0; k < 6; k++) v[k][i] = all[k];
        json_array_append_new(ratios, out_real(all[2]));
        json_array_append_new(readings, out_real(all[5]));
    }
    static const char *const names[6] = {"decode_alone_ts", "decode_beside_ts", "ratio", "prefill_alone_ms",
                                         "prefill_beside_ms", "prefill_ratio"};
    json_object_set_new(o, "unit", json_string(b->placement.unit_info[report_phase_unit(&b->placement, 0)].spec));
    json_object_set_new(o, "model", report_model_json(&b->placement));
    json_object_set_new(o, "n_prompt", json_integer((json_int_t)n));
    for (size_t k = 0; k < 6; k++) {
        report_positive_or_null(o, names[k], bench_median(v[k], b->repeats), "no token was written meanwhile");
        free(v[k]);
    }
    json_object_set_new(o, "samples_ratio", ratios);
    json_object_set_new(o, "samples_prefill_ratio", readings);
    json_object_set_new(o, "machine", machine_json());
    json_object_set_new(o, "seed", json_integer((json_int_t)b->seed));
    return o;
}

static segue_status measure(struct bench *b, segue_error *err)
{
    size_t n = (size_t)args_number(&b->args, "beside", 2048);
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

int bench_concurrent(struct bench *b)
{
    static const struct bench_column columns[] = {{"unit", "unit", 0},
                                                  {"tokens", "n_prompt", 0},
                                                  {"tok/s alone", "decode_alone_ts", 1},
                                                  {"tok/s beside", "decode_beside_ts", 1},
                                                  {"ratio", "ratio", 3},
                                                  {"reading ms alone", "prefill_alone_ms", 2},
                                                  {"reading ms beside", "prefill_beside_ms", 2},
                                                  {"ratio of reading", "prefill_ratio", 3},
                                                  {NULL, NULL, 0}};
    b->out->columns = columns;
    return bench_with_placement(b, measure);
}
