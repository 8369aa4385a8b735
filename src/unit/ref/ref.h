/* ref.h: what the files of the unit `ref` share. ref is the specification of every op: fp32, plain loops, one
 * row after the other; no other unit may be called from here. ref.c has the table, refrun.c walks the graph,
 * refops.c and reflinear.c compute, refstate.c remembers.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_REF_REF_H
#define SG_UNIT_REF_REF_H

#include <pthread.h>

#include "unit/rank_sync.h"
#include "unit/unit.h"

enum { REF_BLOCK_ROWS = 64, REF_MARKS = 8 };

struct sg_unit {
    struct sg_unit_base base;
    struct sg_unit_desc desc;
    uint32_t threads;                /* that share the rows of one op; never changes a result */
};

struct sg_program {
    struct sg_program_base base;
    uint32_t *last_use; /* [values_n] the last op that reads the value; UINT32_MAX: the run's end */
    uint64_t read_per_token, widest; /* weight bytes of one token; columns alive at once, most */
};

/* --- a run, as the ops see it --- */

struct ref_value {
    float *data;                     /* [rows, width of the value]; NULL: not alive */
    int32_t *tokens;                 /* kind tokens: [rows] */
};

/* One pass over the graph. T rows of all spans, one span after the other; R wanted ones. */
struct ref_pass {
    const struct sg_program *program;
    const struct sg_graph *graph;
    const struct sg_span *spans;     /* [spans_n] */
    uint32_t spans_n, threads;
    uint32_t rows_n[2];              /* T, R; index = value.wanted */
    uint32_t *from[2];               /* [spans_n + 1] first row of each span among T, R */
    struct ref_value *values;        /* [values_n] */
    struct sg_arena scratch;         /* of the op at work */
    const atomic_int *cancel;
    struct sg_rank_sync *rank_sync;      /* NULL, or of the ranks of this run; this one's number; 1: they stop */
    uint32_t rank;
    int stop;
    uint64_t weight_bytes, state_bytes, ops;
    segue_error *err;
};

struct ref_view {                    /* an operand: row t, column c is data[t * stride + c] */
    const float *data;
    size_t stride;
    uint32_t width;
};
struct ref_view ref_view_of(const struct ref_pass *p, const struct sg_operand *x);
static inline const float *ref_row(struct ref_view v, uint32_t t) { return v.data + (size_t)t * v.stride; }
/* Room of the op at work, zeroed. NULL: err is filled with EMEMORY. */
void *ref_scratch(struct ref_pass *p, size_t n, size_t entry);
/* A whole small tensor as fp32; *out = NULL when it is absent. */
segue_status ref_vector(struct ref_pass *p, const struct sg_weight *w, const float **out);
int ref_stopped(const struct ref_pass *p);

/* Sum of a[i] * b[i]: 16 partial sums, number i % 16 takes term i, in rising order; then the halves are
 * added: 8 and 8, 4 and 4, 2 and 2, 1 and 1. The order depends on n alone. */
float ref_dot(const float *a, const float *b, size_t n);
float ref_act(enum sg_act act, float x);

/* Cut [0, n) into one piece per thread and do them side by side. Each index must be independent of the
 * others. */
typedef void (*ref_piece)(void *work, uint32_t from, uint32_t to);
void ref_split(uint32_t threads, uint32_t n, ref_piece piece, void *work);

segue_status ref_linear(struct ref_pass *p, const struct sg_op *op, float *out);
segue_status ref_experts(struct ref_pass *p, const struct sg_op *op, float *out);
segue_status ref_op(struct ref_pass *p, const struct sg_op *op, float *out);     /* any op */

/* --- states --- */

struct ref_block;                    /* REF_BLOCK_ROWS rows in storage, reference-counted */
struct ref_slot {
    struct sg_slot slot;
    size_t row_bytes;                /* K, V */
    struct ref_block **blocks; /* [blocks_cap], row r lies in blocks[r / REF_BLOCK_ROWS]; NULL: not held */
    uint64_t blocks_cap;
    uint64_t first, end;             /* rows held; in a run, end grows when the op has appended */
    float *fixed, *next;             /* CONV, DELTA: as of `rows`, and as a run leaves it */
    int given;                       /* CONV, DELTA: holds what a run or a put left */
};
struct ref_mark {
    uint32_t number;
    uint64_t rows;
    float *copy;                     /* all fixed slots, one after the other */
};
struct sg_state {
    struct sg_state_base base;
    pthread_mutex_t lock;            /* guards first, end, blocks, busy; a leaf */
    pthread_cond_t moved;            /* end, rows or busy changed */
    int busy;                        /* 1: a run is using it */
    enum sg_storage storage;
    uint64_t rows;
    uint32_t slots_n, marks_n, marks_cap, marks_next;
    struct ref_slot *slots;
    struct ref_mark *marks;          /* [marks_cap], rising numbers */
    size_t fixed_bytes;              /* of all fixed slots */
    struct sg_arena arena;           /* owns slots, marks, their fixed and next */
};

segue_status ref_state_new(struct sg_unit *u, const struct sg_slot *slots, uint32_t slots_n,
                           const struct sg_state_opts *o, struct sg_state **out, segue_error *err);
void ref_state_free(struct sg_state *s);
segue_status ref_state_fork(struct sg_state *s, struct sg_state **out, segue_error *err);
segue_status ref_state_mark(struct sg_state *s, uint32_t *mark, segue_error *err);
segue_status ref_state_back(struct sg_state *s, uint32_t mark, segue_error *err);
void ref_state_drop(struct sg_state *s, uint32_t mark);
segue_status ref_state_cut(struct sg_state *s, uint64_t rows, segue_error *err);
void ref_state_held(const struct sg_state *s, uint32_t slot, uint64_t *first, uint64_t *rows);
uint64_t ref_state_bytes(const struct sg_state *s);
segue_status ref_state_get(struct sg_state *s, uint32_t slot, uint64_t from, uint64_t to,
                           enum sg_storage storage, void *out, segue_error *err);
segue_status ref_state_put(struct sg_state *s, uint32_t slot, uint64_t from, uint64_t to,
                           enum sg_storage storage, const void *in, segue_error *err);

/* For runs. begin: nobody else may run it; recurrent slots go to `next`. append: rows behind `end` of a K or
 * V slot. read: rows [from, to) as fp32. finish: keep (rows grows by `rows`) or forget everything since
 * begin. */
segue_status ref_state_begin(struct sg_state *s, segue_error *err);
segue_status ref_state_append(struct sg_state *s, int32_t slot, const float *rows, size_t stride, uint32_t n,
                              segue_error *err);
void ref_state_read(struct sg_state *s, int32_t slot, uint64_t from, uint64_t to, float *out);
void ref_state_finish(struct sg_state *s, int keep, uint32_t rows);
void ref_state_release(struct sg_state *s);     /* no run is using it any more */

/* --- runs --- */

segue_status ref_start(struct sg_program *p, const struct sg_batch *b, struct sg_result *r,
                       struct sg_run **out, segue_error *err);
segue_status ref_wait(struct sg_run *run, uint64_t timeout_ns, segue_error *err);

#endif
