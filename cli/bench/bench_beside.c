/* bench_beside.c: `segue bench --beside N`: a prompt of N tokens is read while another session writes. One thread writes
 * without a pause; beside it prompts are read one after the other, each in a session of its own, for as long as the writing
 * needs to be timed well. SPDX-License-Identifier: MIT */
#include "bench/bench.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include "term/interrupt.h"
#include "task/machine.h"
#include "task/report.h"

enum { READINGS = 8, TOKENS_MOST = 1 << 16 };

struct writer {
    struct bench *b;
    segue_session *session;
    atomic_int stop;
    atomic_size_t written;
    uint64_t *at_ns; /* [TOKENS_MOST] when each token was there */
    segue_status st;
    segue_error err;
};

struct sample {
    double alone_ts, beside_ts, reading_alone_ms, reading_beside_ms;
};

static void *write_main(void *arg)
{
    struct writer *w = arg;
    int32_t token;
    while (!atomic_load(&w->stop) && w->st == SEGUE_OK && atomic_load(&w->written) < TOKENS_MOST) {
        w->st = segue_session_next(w->session, &token, &w->err);
        w->at_ns[atomic_load(&w->written)] = out_now_ns();
        atomic_fetch_add(&w->written, 1);
    }
    return NULL;
}

/* Tokens a second between two moments. */
static double rate(const struct writer *w, size_t n, uint64_t from, uint64_t to)
{
    size_t inside = 0;
    for (size_t i = 0; i < n; i++) inside += w->at_ns[i] > from && w->at_ns[i] <= to;
    return (double)inside * 1e9 / (double)(to - from);
}

static segue_status read_once(struct bench *b, const int32_t *ids, size_t n, uint64_t *ns, segue_error *err)
{
    segue_session *s = NULL;
    segue_status st = bench_session(b, place_plan(&b->place), ids, n, n + 1, &s, err);
    uint64_t begun = out_now_ns();
    if (!st) st = segue_session_prefill(s, 0, NULL, err);
    *ns = out_now_ns() - begun;
    bench_leave(s);
    return st;
}

/* The median reading; from and to: when all of them began and ended. */
static segue_status read_all(struct bench *b, const int32_t *ids, size_t n, double *ms, uint64_t *from, uint64_t *to,
                             segue_error *err)
{
    double each[READINGS] = {0};
    segue_status st = SEGUE_OK;
    *from = out_now_ns();
    for (size_t i = 0; i < READINGS && !st; i++) {
        uint64_t ns;
        st = read_once(b, ids, n, &ns, err);
        each[i] = (double)ns / 1e6;
    }
    *to = out_now_ns();
    *ms = bench_median(each, READINGS);
    return st;
}

/* Tokens alone for as long as the readings took, before them and behind them. */
static segue_status one_sample(struct bench *b, const int32_t *ids, size_t n, struct sample *out, segue_error *err)
{
    struct writer w = {.b = b, .at_ns = out_alloc(TOKENS_MOST * sizeof *w.at_ns)};
    const struct timespec nap = {.tv_nsec = 200000};
    uint64_t from = 0, to = 0, begun;
    pthread_t thread;
    int32_t token;
    segue_status st = read_all(b, ids, n, &out->reading_alone_ms, &from, &to, err);
    uint64_t pause = to - from;
    if (!st) st = bench_session(b, place_plan(&b->place), ids, 1, TOKENS_MOST + 64, &w.session, err);
    for (int i = 0; i < 16 && !st; i++) st = segue_session_next(w.session, &token, err); /* captured graphs, clocks */
    if (!st && pthread_create(&thread, NULL, write_main, &w))
        st = out_fail(err, SEGUE_EUNIT, "beside: no thread can be started; close some programs");
    else if (!st) {
        begun = out_now_ns();
        while (out_now_ns() - begun < pause && !interrupt_seen()) nanosleep(&nap, NULL);
        uint64_t alone_end = out_now_ns();
        st = read_all(b, ids, n, &out->reading_beside_ms, &from, &to, err);
        atomic_store(&w.stop, 1);
        pthread_join(thread, NULL);
        size_t written = atomic_load(&w.written);
        out->alone_ts = rate(&w, written, begun, alone_end);
        out->beside_ts = rate(&w, written, from, to);
        if (!st && w.st < 0) {
            st = w.st;
            *err = w.err;
        } else if (!st && (w.st || written >= TOKENS_MOST))
            st = out_fail(err, SEGUE_ELIMIT,
                          "beside: writing ended after %zu tokens, before the prompts were read; take a shorter prompt", written);
    }
    bench_leave(w.session);
    free(w.at_ns);
    return st;
}

static json_t *row(const struct bench *b, size_t n, const struct sample *samples)
{
    json_t *o = json_object(), *ratios = json_array(), *readings = json_array();
    double *v[6];
    for (size_t k = 0; k < 6; k++) v[k] = out_alloc(b->repeats * sizeof *v[k]);
    for (size_t i = 0; i < b->repeats; i++) {
        const struct sample *s = &samples[i];
        const double all[6] = {s->alone_ts,         s->beside_ts,         s->beside_ts > 0 ? s->alone_ts / s->beside_ts : 0,
                               s->reading_alone_ms, s->reading_beside_ms, s->reading_beside_ms / s->reading_alone_ms};
        for (size_t k = 0; k < 6; k++) v[k][i] = all[k];
        json_array_append_new(ratios, out_real(all[2]));
        json_array_append_new(readings, out_real(all[5]));
    }
    static const char *const names[6] = {"decode_alone_ts", "decode_beside_ts", "ratio", "prefill_alone_ms",
                                         "prefill_beside_ms", "prefill_ratio"};
    json_object_set_new(o, "unit", json_string(b->place.unit_info[report_phase_unit(&b->place, 0)].spec));
    json_object_set_new(o, "model", report_model_json(&b->place));
    json_object_set_new(o, "n_prompt", json_integer((json_int_t)n));
    for (size_t k = 0; k < 6; k++) {
        report_positive(o, names[k], bench_median(v[k], b->repeats), "no token was written meanwhile");
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
    struct sample *samples = out_alloc(b->repeats * sizeof *samples), warm;
    segue_status st = one_sample(b, ids, n, &warm, err);
    for (size_t i = 0; i < b->repeats && !st; i++) {
        st = one_sample(b, ids, n, &samples[i], err);
        progress_step(&b->progress, i + 1, b->repeats, false);
    }
    if (!st) st = bench_out_row(b->out, row(b, n, samples), err);
    free(samples);
    free(ids);
    return st;
}

int bench_beside(struct bench *b)
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
    return bench_at_place(b, measure);
}
