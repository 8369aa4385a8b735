/* bench_cancel.c: `segue bench --cancel N`: latency of segue_session_cancel during prefill: N cancellations, evenly
 * spread over the duration of the prefill, each in a new session.
 * SPDX-License-Identifier: MIT */
#include "bench/bench.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include "term/interrupt.h"
#include "host/machine.h"
#include "run/report.h"

/* One cancellation, made by a separate thread. */
struct cancel_job {
    segue_session *session;
    uint64_t after_ns; /* delay before the cancellation */
    uint64_t at_ns;    /* time at which it was made */
};

/* Thread: sleep, record the time, cancel. The time is taken before the call, so the latency includes it. */
static void *cancel_main(void *arg)
{
    struct cancel_job *m = arg;
    /* The delay starts when the thread runs, some microseconds after the prefill was started. */
    struct timespec wait = {.tv_sec = (time_t)(m->after_ns / 1000000000u), .tv_nsec = (long)(m->after_ns % 1000000000u)};
    nanosleep(&wait, NULL);
    m->at_ns = out_now_ns();
    segue_session_cancel(m->session);
    return NULL;
}

/* Prefill a new session and cancel it after_ns later. *ms: time from the cancellation to the return of the prefill;
 * negative: the prefill had already ended. */
static segue_status time_cancel(struct bench_run *b, const int32_t *ids, size_t prompt, uint64_t after_ns, double *ms,
                               segue_error *err)
{
    struct cancel_job m = {.after_ns = after_ns};
    pthread_t thread;
    segue_status st = bench_session(b, placement_plan(&b->placement), ids, prompt, prompt + 1, &m.session, err);
    /* The session must exist before the thread starts, and the thread ends before the session is
     * closed. */
    if (!st && pthread_create(&thread, NULL, cancel_main, &m))
        st = out_fail(err, SEGUE_EUNIT, "bench --cancel: no thread can be started; close other programs");
    if (!st) {
        st = segue_session_prefill(m.session, 0, NULL, err);
        uint64_t end = out_now_ns();
        pthread_join(thread, NULL);
        /* SEGUE_OK means that the prefill ended before the cancellation. */
        *ms = st == SEGUE_ECANCELED ? (double)(end - m.at_ns) / 1e6 : -1;
        /* A cancellation by the thread is the expected result; one by a signal ends the benchmark. */
        if (st == SEGUE_ECANCELED && !interrupt_pending()) st = SEGUE_OK;
    }
    bench_close_session(m.session);
    return st;
}

/* Duration of one complete prefill in a new session. */
static segue_status time_prefill(struct bench_run *b, const int32_t *ids, size_t prompt, uint64_t *ns, segue_error *err)
{
    segue_session *s = NULL;
    segue_status st = bench_session(b, placement_plan(&b->placement), ids, prompt, prompt + 1, &s, err);
    uint64_t start_ns = out_now_ns();
    if (!st) st = segue_session_prefill(s, 0, NULL, err);
    *ns = out_now_ns() - start_ns;
    bench_close_session(s);
    return st;
}

/* One row. ms[n] are the latencies of the cancellations that arrived in time; sorted here. p90 is the smallest value
 * that is not below 90 % of them. */
static json_t *result_row(const struct bench_run *b, size_t prompt, uint64_t prefill_ns, double *ms, size_t n, size_t requested)
{
    json_t *o = json_object(), *list = json_array();
    /* In the order of the cancellations, before the list is sorted. */
    for (size_t i = 0; i < n; i++) json_array_append_new(list, out_real(ms[i]));
    json_object_set_new(o, "unit", json_string(b->placement.unit_info[report_phase_unit(&b->placement, 0)].spec));
    json_object_set_new(o, "model", report_model_json(&b->placement));
    json_object_set_new(o, "n_prompt", json_integer((json_int_t)prompt));
    json_object_set_new(o, "prefill_ms", out_real((double)prefill_ns / 1e6));
    json_object_set_new(o, "cancellations", json_integer((json_int_t)requested));
    json_object_set_new(o, "too_late", json_integer((json_int_t)(requested - n)));
    json_object_set_new(o, "samples_ms", list);
    if (n) {
        double median = bench_median(ms, n); /* sorts */
        json_object_set_new(o, "median_ms", out_real(median));
        json_object_set_new(o, "p90_ms", out_real(ms[(n * 9 + 9) / 10 - 1]));
        json_object_set_new(o, "max_ms", out_real(ms[n - 1]));
    } else {
        out_null(o, "median_ms", "every prefill ended before its cancellation");
        out_null(o, "p90_ms", "every prefill ended before its cancellation");
        out_null(o, "max_ms", "every prefill ended before its cancellation");
    }
    json_object_set_new(o, "machine", machine_json(b->placement.unit_info, b->placement.units_n));
    json_object_set_new(o, "seed", json_integer((json_int_t)b->seed));
    return o;
}

/* The i-th of n cancellations is made at (i + 0.5) / n of 95 % of the prefill time, so that few of them are too late. */
static segue_status measure(struct bench_run *b, size_t prompt, segue_error *err)
{
    /* Number of cancellations of --cancel N. */
    size_t cancels = (size_t)args_number(&b->args, "cancel", 1);
    int32_t *ids = bench_ids(b, prompt);
    double *ms = out_alloc(cancels * sizeof *ms);
    uint64_t ns = 0;
    size_t n = 0;
    segue_status st = time_prefill(b, ids, prompt, &ns, err); /* warm-up: touches all weights */
    if (!st) st = time_prefill(b, ids, prompt, &ns, err);     /* the duration over which the cancellations are spread */
    for (size_t i = 0; i < cancels && !st; i++) {
        uint64_t after = (uint64_t)((double)ns * ((double)i + 0.5) / (double)cancels * 0.95);
        st = time_cancel(b, ids, prompt, after, &ms[n], err);
        n += !st && ms[n] >= 0;
        progress_step(&b->progress, i + 1, cancels, false);
    }
    if (!st) st = bench_out_row(b->out, result_row(b, prompt, ns, ms, n, cancels), err);
    free(ms);
    free(ids);
    return st;
}

/* Prompts of -p, else one of 2000 tokens. */
static segue_status prompts(struct bench_run *b, segue_error *err) { return bench_each_prompt(b, 2000, measure, err); }

int bench_cancel(struct bench_run *b)
{
    static const struct bench_column columns[] = {{"unit", "unit", 0},
                                                  {"tokens", "n_prompt", 0},
                                                  {"prefill ms", "prefill_ms", 0},
                                                  {"cancellations", "cancellations", 0},
                                                  {"median ms", "median_ms", 2},
                                                  {"p90 ms", "p90_ms", 2},
                                                  {"max ms", "max_ms", 2},
                                                  {NULL, NULL, 0}};
    b->out->columns = columns;
    return bench_with_placement(b, prompts);
}
