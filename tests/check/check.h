/* check.h: what the files of the program `check` share: a case and its report, random data, and small worlds:
 * one graph, its weights and the batches to run on it. Cases depend on the seed alone, never on the unit, the
 * clock or each other. A new kernel table registers its cases in check_kernel.c; ops are in checkop.c, states
 * in checkhandoff.c.
 * SPDX-License-Identifier: MIT */
#ifndef SG_TESTS_CHECK_H
#define SG_TESTS_CHECK_H

#include <stdio.h>

#include "engine/placement/units.h"
#include "graph/graph.h"
#include "graph/lora.h"
#include "unit/unit.h"

/* --- the program --- */

enum { CHECK_UNITS = 24, CHECK_NAMES = 24 };

struct check_unit {
    char spec[64];
    segue_unit *handle;
    const struct sg_unit_ops *ops;
    struct sg_unit *unit;
    struct sg_unit_desc desc;
};

struct check {
    uint64_t seed;
    int list, json, bench, quick;
    const char *names[CHECK_NAMES];  /* of the cases asked for contain one of these, or equal the part after its =; none: all */
    uint32_t names_n;
    const char *without[CHECK_NAMES]; /* kinds of units that are left out when no unit was named */
    uint32_t without_n;
    struct check_unit units[CHECK_UNITS];
    uint32_t units_n;                /* to be checked; `ref` is always open beside them */
    struct check_unit ref;
    uint32_t cases_n, failed_n, skipped_n;
    double half;                     /* check_half of the unit at work */
};

struct check_case {
    const char *level, *unit, *against;
    char name[96];
    double max_abs, bound;
    int ok;
    const char *skipped;             /* NULL: it ran; else why not */
    double ns, against_ns;           /* --bench; 0: not measured */
    double rate, roof;               /* --bench of kernels, in rate_unit; roof 0: not known */
    const char *rate_unit;
};
/* Print one line (or JSON object) and count it. ok is max_abs <= bound unless the case already failed (ok =
 * -1); a NaN fails. With --list only the name is printed: call check_wants before computing. */
void check_report(struct check *c, struct check_case *k);
/* 0: not asked for, or only the list is wanted and the case was printed. */
int check_wants(struct check *c, struct check_case *k);

/* The units of these specs, or every one that is here and not left out, and `ref`. An exit code; its line is printed. */
int check_open_units(struct check *c, const char *const *specs, uint32_t n);
void check_close_units(struct check *c);

void check_kernels(struct check *c);     /* check_kernel.c, of the unit cpu */
void check_ops(struct check *c);
void check_tails(struct check *c, const struct check_unit *u); /* of one unit, among the ops */
void check_ranks(struct check *c);       /* checkrank.c, of all units, among the ops */
void check_samples(struct check *c, const struct check_unit *u); /* checksample.c, likewise */
void check_handoffs(struct check *c);
void check_gradients(struct check *c);   /* checkgradient.c */
void check_handoff_times(struct check *c, const struct check_unit *u); /* check_handoff_bench.c, with --bench */

/* 0: results are fp32. 1: the unit rounds each to fp16. 4: to bf16, by which bounds for fp16 are multiplied: a rounding is 8
 * times as large, which is also what the same cases show (median 6.7), and fp16's stay below a third of their bounds. */
double check_half(const struct check_unit *u);

/* --- random data --- */

struct check_rng { uint64_t state; };
struct check_rng check_rng_of(uint64_t seed, const char *name, uint64_t index);
uint64_t check_next(struct check_rng *r);
uint32_t check_below(struct check_rng *r, uint32_t n);           /* [0, n) */
uint32_t check_between(struct check_rng *r, uint32_t a, uint32_t b);  /* [a, b] */
float check_uniform(struct check_rng *r);                        /* [-1, 1) */
float check_normal(struct check_rng *r);                         /* mean 0, deviation 1 */

/* What numbers look like: most cases are normal, the others are what breaks kernels. */
enum check_data { CHECK_NORMAL, CHECK_OUTLIERS, CHECK_TINY, CHECK_ZEROS, CHECK_EQUAL, CHECK_DATA_N };
void check_fill(struct check_rng *r, float *x, size_t n, enum check_data kind, float scale);

/* Memory with guard bytes around [n bytes], begun `off` bytes behind a 64-byte border. check_guard_ok:
 * untouched. */
struct check_guard { unsigned char *base; size_t n, off; };
void *check_guard_new(struct check_guard *g, size_t n, size_t off);
int check_guard_ok(const struct check_guard *g);
void check_guard_free(struct check_guard *g);

/* A random tensor [rows, cols] in a storage, with what files do to it: permuted rows, transposition, groups.
 * Any computable storage; cols must fit its block. Memory of the arena. */
struct sg_tensor *check_tensor(struct sg_arena *arena, struct check_rng *r, enum sg_storage storage,
                               uint32_t rows, uint32_t cols, float scale, const char *name);
struct sg_tensor *check_vector(struct sg_arena *arena, struct check_rng *r, uint32_t n, float mean,
                               float scale, const char *name);

/* --- worlds --- */

enum { CHECK_SEQS = 4, CHECK_RUNS = 3, CHECK_RUNS_MAX = 44, CHECK_LORAS = 2 };

/* One graph from an input to the output "y" (or else "logits"), and the runs to do with it: in run r sequence s brings
 * rows[r][s] rows. */
struct check_world {
    struct sg_arena arena;           /* weights and data */
    struct sg_graph *graph;
    uint32_t input_width, output_width;
    uint32_t seqs, runs;
    uint32_t rows[CHECK_RUNS_MAX][CHECK_SEQS];
    float *values[CHECK_SEQS];       /* [all rows, input_width] or NULL */
    int32_t *tokens[CHECK_SEQS];     /* [all rows] or NULL */
    uint32_t *wanted[CHECK_RUNS_MAX][CHECK_SEQS];
    uint32_t wanted_n[CHECK_RUNS_MAX][CHECK_SEQS];
    const struct sg_lora *loras[CHECK_SEQS][CHECK_LORAS];
    uint32_t loras_n[CHECK_SEQS];
    enum sg_storage kv;
    double tolerance;                /* of max |y|, see checkop.c */
};
uint32_t check_world_rows(const struct check_world *w, uint32_t run, uint32_t wanted); /* T or R of a run */
uint32_t check_world_first(const struct check_world *w, uint32_t run,
                           uint32_t seq); /* rows before this run */
void check_world_free(struct check_world *w);

/* What running a world gives: y of all runs, one after the other, then every slot of every state as fp32. */
struct check_result {
    float *y, *slots;
    size_t y_n, slots_n;
    double ns;                       /* busy time of all runs */
};
segue_status check_world_run(const struct check_world *w, const struct check_unit *u,
                             struct check_result *out, segue_error *err);
/* Each sequence by itself on that unit, too: where a row or a state differs from what it was among the others, the case has
 * failed. */
void check_alone(const struct check_unit *u, const struct check_world *w, const struct check_result *all, struct check_case *k);
/* The same y, by a restatement of each op in double that knows no state: a sequence is computed whole. */
segue_status check_world_naive(const struct check_world *w, struct check_result *out, segue_error *err);
void check_result_free(struct check_result *r);
/* The sum of dy y over all sequences of the only run, y in double; dy [rows, output_width]. */
double check_naive_dot(const struct check_world *w, const float *dy);
/* Case `index` of the op's cases, without `rows` and adapters, for the rows that w has already. */
segue_status check_op_world(struct check_world *w, struct check_rng rng, const char *name, uint32_t index, segue_error *err);
/* Largest |a - b|; INFINITY where only one of them is NaN or the lengths differ. *scale: largest finite |b|.
 */
double check_distance(const float *a, size_t a_n, const float *b, size_t b_n, double *scale);

#endif
