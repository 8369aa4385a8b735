/* ref.h: internal header of the unit `ref`, the specification of every op: fp32, plain loops, row by row. It calls no other unit.
 * ref.c: the table; ref_run.c: runs a graph; ref_ops.c, ref_linear.c: the ops; ref_pass.c: their helpers; ref_state.c: states.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_REF_REF_H
#define SG_UNIT_REF_REF_H

#include "unit/spec.h"
#include "unit/kv/kv_rows.h"
#include "unit/group/rank_sync.h"
#include "unit/state_core.h"
#include "unit/unit.h"

enum { REF_BLOCK_TOKENS = 64 };

struct sg_unit {
    struct sg_unit_base base;
    struct sg_unit_desc desc;
    uint32_t threads;                /* threads per op; results do not depend on it */
    struct sg_fault fault;           /* for tests: this op gives a first value that is one ulp too large */
};

struct sg_program {
    struct sg_program_base base;
    uint32_t *last_use;              /* [values_n] index of the last op that reads the value; UINT32_MAX: kept to the end */
    uint32_t fault;                  /* index of the op that fails on purpose; UINT32_MAX: none */
    uint64_t read_per_token;         /* weight bytes read per decoded token */
    uint64_t live_cols_max;          /* maximum over the ops of the summed widths of live values */
};

/* --- a pass --- */

struct ref_value {
    float *data;                     /* [T or R, width]; NULL: not live */
    int32_t *tokens;                 /* for SG_VALUE_TOKENS instead of data: [T] */
};

/* One pass over the graph. T = tokens of all spans, in the order of spans; R = wanted ones. Index 0 is T, 1 is R, the value of
 * sg_value.wanted. */
struct ref_pass {
    const struct sg_program *program;
    const struct sg_graph *graph;
    const struct sg_span *spans;     /* [spans_n] */
    uint32_t spans_n, threads;
    uint32_t rows_n[2];              /* T, R */
    uint32_t *from[2];               /* [spans_n + 1] first row of each span */
    struct ref_value *values;        /* [values_n] */
    struct sg_arena scratch;         /* freed after each op */
    const atomic_int *cancel;
    struct sg_rank_sync *rank_sync;  /* NULL, or shared by all ranks of the run */
    uint32_t rank;
    int stop;                        /* 1: the ranks agreed to stop */
    uint64_t weight_bytes, state_bytes, ops;     /* counters over all passes of the run */
    segue_error *err;
};

struct ref_view {                    /* an operand: row t, column c is data[t * stride + c] */
    const float *data;
    size_t stride;
    uint32_t width;
};
struct ref_view ref_view_of(const struct ref_pass *p, const struct sg_operand *x);
static inline const float *ref_row(struct ref_view v, uint32_t t) { return v.data + (size_t)t * v.stride; }
/* Zeroed scratch of the current op, n entries. NULL: EMEMORY is in p->err. */
void *ref_scratch(struct ref_pass *p, size_t n, size_t entry);
/* A whole small tensor as fp32 in scratch; *out = NULL when it is absent. */
segue_status ref_vector(struct ref_pass *p, const struct sg_weight *w, const float **out);
int ref_stopped(const struct ref_pass *p);   /* 1: the run is to end with ECANCELED */

/* Sum of a[i] * b[i] in an order that depends on n only: 16 partial sums, sum i % 16 takes term i in ascending order; then the
 * partial sums are added in halves: 8 + 8, 4 + 4, 2 + 2, 1 + 1. */
float ref_dot(const float *a, const float *b, size_t n);
float ref_act(enum sg_act act, float x);
float ref_sigmoid(float x);

/* Divides [0, n) into one range per thread and computes them in parallel. The indices must be independent of each other. */
typedef void (*ref_range_fn)(void *work, uint32_t from, uint32_t to);
void ref_parallel(uint32_t threads, uint32_t n, ref_range_fn run, void *work);

segue_status ref_linear(struct ref_pass *p, const struct sg_op *op, float *out);
segue_status ref_experts(struct ref_pass *p, const struct sg_op *op, float *out);
segue_status ref_op(struct ref_pass *p, const struct sg_op *op, float *out);     /* any op */

/* --- states --- */

struct ref_slot {
    struct sg_core_slot core;
    struct sg_rows rows;             /* K, V: REF_BLOCK_TOKENS positions per block, in the state's storage */
    float *fixed, *next;             /* CONV, DELTA: contents now, and as the run in progress will leave them; in the arena */
};
struct sg_state {
    struct sg_state_core core;
    float **undo;                    /* [marks_cap] undo buffers: all `fixed`, one after the other; NULL: free */
    struct sg_arena arena;           /* owns undo, and fixed and next of all slots */
};
static inline struct ref_slot *ref_slot_at(const struct sg_state *s, uint32_t i)
{
    return (struct ref_slot *)(void *)sg_core_slot_at(&s->core, i);
}

/* Members of struct sg_unit_ops that state_core.h does not provide. */
segue_status ref_state_new(struct sg_unit *u, const struct sg_slot *slots, uint32_t slots_n,
                           const struct sg_state_opts *o, struct sg_state **out, segue_error *err);
void ref_state_free(struct sg_state *s);
uint64_t ref_state_bytes(const struct sg_state *s);
segue_status ref_state_get(struct sg_state *s, uint32_t slot, uint64_t from, uint64_t to,
                           enum sg_storage storage, void *out, segue_error *err);
segue_status ref_state_rows(struct sg_state *s, uint32_t slot, uint64_t from, uint64_t to, enum sg_storage storage,
                            const void **out, segue_error *err);

/* For the run that acquired the state. append: writes n rows at `end` of a K or V slot; row t is at rows + t * stride.
 * read: positions [from, to) as fp32 [to - from][heads * width]. commit: the run has added `tokens` tokens. discard: the state
 * is again as after the last commit. */
segue_status ref_state_append(struct sg_state *s, uint32_t slot, const float *rows, size_t stride, uint32_t n,
                              segue_error *err);
void ref_state_read(struct sg_state *s, uint32_t slot, uint64_t from, uint64_t to, float *out);
void ref_state_commit(struct sg_state *s, uint32_t tokens);
void ref_state_discard(struct sg_state *s);

/* --- runs --- */

segue_status ref_start(struct sg_program *p, const struct sg_batch *b, struct sg_result *r,
                       struct sg_run **out, segue_error *err);
void ref_train_math(struct sg_unit *u, struct sg_train_math *out);

#endif
