/* bench.h: the modes of `segue bench`: what they share. SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_BENCH_H
#define SEGUE_CLI_BENCH_H

#include "bench/bench_out.h"
#include "bench/meter.h"
#include "task/placement.h"
#include "term/progress.h"

struct bench {
    struct args args; /* with one thread count */
    struct place place;
    struct bench_out *out;
    struct progress progress;
    struct meter meter;
    size_t sequences, repeats, threads;
    uint64_t seed;
};

/* n random ids by seed; a stream that every program can make again. Memory of the caller. */
int32_t *bench_ids(const struct bench *b, size_t n);
double bench_median(double *v, size_t n); /* sorts v; 0 of none */
/* A greedy session that no stop token ends, with its prompt queued. */
segue_status bench_session(struct bench *b, const segue_plan *plan, const int32_t *ids, size_t n,
                           size_t context, segue_session **out, segue_error *err);
/* n tokens; the time of the first and of all that follow. */
struct bench_answer {
    uint64_t first_ns, rest_ns;
    double token_ns; /* the median of those behind the first */
    segue_stats at_first, at_end;
    int32_t *ids; /* [n] memory of the caller */
};
uint64_t bench_hash(const int32_t *ids, size_t n);
segue_status bench_answer(segue_session *s, size_t n, struct bench_answer *out, segue_error *err);
void bench_leave(segue_session *s);

/* Opens the place, with the counters of --meter, lets `measure` work there and closes it; gives the exit code. */
int bench_at_place(struct bench *b, segue_status (*measure)(struct bench *b, segue_error *err));
/* The same for each prompt of -p (of 2 tokens at least), or one of `preset` tokens. */
segue_status bench_each_prompt(struct bench *b, size_t preset,
                               segue_status (*measure)(struct bench *b, size_t prompt, segue_error *err), segue_error *err);

/* Each measures and prints all its rows; gives the exit code. */
int bench_handoff(struct bench *b);
int bench_pipelines(struct bench *b);
int bench_cancel(struct bench *b);
int bench_beside(struct bench *b);

#endif
