/* bench.h: shared by the modes of `segue bench`: the default mode (bench_cases.c), --handoff, --pipelines, --cancel
 * and --beside.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_BENCH_H
#define SEGUE_CLI_BENCH_H

#include "bench/bench_out.h"
#include "run/meter.h"
#include "run/placement.h"
#include "term/progress.h"

/* One benchmark with one thread count. */
struct bench {
    struct args args; /* with one thread count */
    struct placement placement;
    struct bench_out *out;
    struct progress progress;
    struct meter meter;
    size_t sequences, repeats, threads;
    uint64_t seed;
};

/* SplitMix64: a pseudo-random sequence that any program can reproduce from the seed. */
uint64_t bench_random(uint64_t *state);
/* n random token ids from the seed, allocated. */
int32_t *bench_ids(const struct bench *b, size_t n);
/* Median of v[n], which is sorted; 0 if n is 0. */
double bench_median(double *v, size_t n); /* sorts v; 0 of none */
/* Open a greedy session that ignores stop tokens, and append the prompt. */
segue_status bench_session(struct bench *b, const segue_plan *plan, const int32_t *ids, size_t n,
                           size_t context, segue_session **out, segue_error *err);
/* Times and statistics of an answer of n tokens. */
struct bench_answer {
    uint64_t first_ns, rest_ns;
    double token_ns; /* the median of those behind the first */
    segue_stats at_first, at_end;
    int32_t *ids; /* [n] memory of the caller */
};
static const uint64_t BENCH_HASH_INIT = 0xcbf29ce484222325u;
/* Add the four bytes of an id, lowest first, to an FNV-1a hash that starts at BENCH_HASH_INIT. */
void bench_hash_add(uint64_t *hash, int32_t id);
/* FNV-1a hash of ids, to show that two runs did the same work. */
uint64_t bench_hash(const int32_t *ids, size_t n);
/* Generate n tokens and record the times; out->ids must hold n ids. */
segue_status bench_answer(segue_session *s, size_t n, struct bench_answer *out, segue_error *err);
void bench_close_session(segue_session *s);

/* Open the placement and the energy meter, run `measure`, and close them. Returns the exit code. */
int bench_with_placement(struct bench *b, segue_status (*measure)(struct bench *b, segue_error *err));
/* Call `measure` for each prompt length of -p (at least 2 tokens), or for default_tokens. */
segue_status bench_each_prompt(struct bench *b, size_t default_tokens,
                               segue_status (*measure)(struct bench *b, size_t prompt, segue_error *err), segue_error *err);

/* Each measures and prints all its rows; gives the exit code. */
int bench_cases(struct bench *b);
int bench_handoff(struct bench *b);
int bench_pipelines(struct bench *b);
int bench_cancel(struct bench *b);
int bench_concurrent(struct bench *b);

#endif
