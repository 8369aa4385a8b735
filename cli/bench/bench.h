/* bench.h: shared by the modes of `segue bench`: the default mode (bench_cases.c), --handoff, --pipelines, --cancel
 * and --concurrent.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_BENCH_H
#define SEGUE_CLI_BENCH_H

#include "bench/bench_out.h"
#include "meter/meter.h"
#include "run/placement.h"
#include "term/progress.h"

/* One benchmark with one thread count. */
struct bench_run {
    struct args args;           /* a copy of the command line with one thread count */
    struct placement placement; /* open during bench_with_placement only */
    struct bench_out *out;      /* shared by all thread counts */
    struct progress progress;
    struct meter meter;
    segue_error no_meter; /* bench --pipelines: why there is none */
    size_t sequences, repeats; /* parallel sequences of the default mode; samples per row */
    size_t threads;            /* CPU threads */
    uint64_t seed;             /* of the random prompts */
    struct timespec opened;    /* --pipelines: before the placement was opened, on the clock of file times */
    size_t intervals;          /* runs that sessions record; 0: none */
    const char *const *models; /* --grid: [models_n] names, owned by the command line */
    size_t models_n;
    const char *case_name;     /* --grid: the model, for the field `case` of rows; else NULL */
    /* Decode rows at depth 0 so far, for the ratio of deeper rows. */
    struct bench_depth0 {
        size_t tokens;   /* generated tokens of the row */
        double token_ns; /* time of a token */
    } depth0[8];
    size_t depth0_n;
};

/* SplitMix64: a pseudo-random sequence that any program can reproduce from the seed. */
uint64_t bench_random(uint64_t *state);
/* n random token ids from the seed, allocated. */
int32_t *bench_ids(const struct bench_run *b, size_t n);
/* Median of v[n]; 0 if n is 0. Sorts v. */
double bench_median(double *v, size_t n);
/* Open a greedy session that ignores stop tokens, and append the prompt. */
segue_status bench_session(struct bench_run *b, const segue_plan *plan, const int32_t *ids, size_t n,
                           size_t context, segue_session **out, segue_error *err);
/* Times and statistics of an answer of n tokens. */
struct bench_answer {
    uint64_t first_ns, rest_ns;   /* from the start to the first token; from there to the last one */
    double token_ns;              /* median time of a token, without the first one */
    segue_stats at_first, at_end; /* counters after the first and after the last token */
    int32_t *ids;                 /* [n] generated ids; memory of the caller */
};
/* FNV-1a offset basis, 64 bits. */
static const uint64_t BENCH_HASH_INIT = 0xcbf29ce484222325u;
/* Add the four bytes of an id, lowest first, to an FNV-1a hash that starts at BENCH_HASH_INIT. */
void bench_hash_add(uint64_t *hash, int32_t id);
/* FNV-1a hash of ids, to show that two runs did the same work. */
uint64_t bench_hash(const int32_t *ids, size_t n);
/* Generate n tokens and record the times; out->ids must hold n ids. */
segue_status bench_answer(segue_session *s, size_t n, struct bench_answer *out, segue_error *err);
/* Close a session of bench_session; NULL is allowed. */
void bench_close_session(segue_session *s);

/* Open the placement and the energy meter, run `measure`, and close them. Returns the exit code. */
int bench_with_placement(struct bench_run *b, segue_status (*measure)(struct bench_run *b, segue_error *err));
/* Call `measure` for each prompt length of -p (at least 2 tokens), or for default_tokens. */
segue_status bench_each_prompt(struct bench_run *b, size_t default_tokens,
                               segue_status (*measure)(struct bench_run *b, size_t prompt, segue_error *err), segue_error *err);

/* For --html: a run of a prompt and at most 32 tokens whose runs and hand-offs are recorded, as JSON: {name, prompt, tokens,
 * events: [{unit, phase, begin_ms, end_ms, tokens, to}], body_products, head_products (multiplications per token in matrices of
 * the layers and outside of them), chunk}. NULL: it failed. */
json_t *bench_timeline(struct bench_run *b, const char *name, size_t prompt, size_t tokens, segue_error *err);

/* Write the page of --html from the measured rows and time lines. */
segue_status bench_html_write(const struct bench_out *out, const char *path, segue_error *err);

/* The modes. Each one measures, prints its rows and returns the exit code. */
int bench_cases(struct bench_run *b);
int bench_handoff(struct bench_run *b);
int bench_pipelines(struct bench_run *b);
int bench_grid(struct bench_run *b); /* --grid: bench_pipelines for each model */
int bench_cancel(struct bench_run *b);
int bench_concurrent(struct bench_run *b);
int bench_predict(struct bench_run *b);
int bench_claim(struct bench_run *b);
int bench_train(struct bench_run *b);
/* The rows of --claim. unit NULL: the usual ones. */
segue_status bench_claim_rows(struct bench_run *b, const char *unit, size_t prompt, size_t tokens, segue_error *err);

#endif
