/* program.h: a compiled graph: weights in GPU memory, the list of steps, cluster fusions and value locations.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_PROGRAM_H
#define SG_UNIT_CUDA_PROGRAM_H

#include "unit/cuda/compile/lane.h"
#include "unit/cuda/compile/upload_ring.h"
#include "unit/cuda/driver/gpu.h"

/* --- weights (upload.c) --- */

/* A tensor in GPU memory, as a matrix (w), as fp32 numbers (vector), or both. */
struct cu_tensor {
    const struct sg_tensor *source;
    struct ck_weight w; /* .data and .scales point into `memory` */
    cu_ptr memory;      /* data, then scales */
    int joined;         /* 1: `memory` is part of the previous tensor's block and is not freed here */
    size_t bytes;
    cu_ptr vector;      /* fp32 copy, for norms and biases; 0: none */
};
/* The tensors of all programs of one compile; freed with the last program. A tensor that several graphs use is stored once. */
struct cu_weights {
    struct sg_unit *unit;
    uint32_t references; /* changed by compile and discard only, which never overlap */
    struct cu_tensor *tensors;
    uint32_t n;
    uint64_t bytes;
    const struct sg_graph *const *graphs; /* [graphs_n] all that use the tensors; during the upload only */
    uint32_t graphs_n;
    /* During the upload only: threads that repack rows, NULL: all tensors are small; buffers; bytes sent so far. */
    struct sg_pool *pool;
    struct cu_upload_ring ring;
    uint64_t sent;
};
/* Uploads the tensors that the graphs use, each once. *out has one reference. */
segue_status cu_weights_new(struct sg_unit *u, const struct sg_graph *const *graphs, uint32_t graphs_n,
                            struct cu_weights **out, segue_error *err);
void cu_weights_free(struct cu_weights *w); /* drops a reference */
const struct cu_tensor *cu_weight_of(const struct cu_weights *w, const struct sg_tensor *t); /* NULL: not uploaded */

/* --- steps (fuse.c) --- */

enum cu_step_kind {
    CU_STEP_OP,      /* one op */
    CU_STEP_PRODUCT, /* one or more linears of the same x, with what precedes and follows them */
    CU_STEP_ATTEND,  /* attention with norm and rope of q and k, and the K/V store */
    CU_STEP_NOTHING
};
/* What one call issues: an op, or several that were fused. */
struct cu_step {
    enum cu_step_kind kind;
    const struct sg_op *op;                 /* the op; of a fused step, the one that it runs in place of */
    const struct sg_op *norm;               /* product: norm of x before it; NULL: none */
    const struct sg_op *parts[CK_SEGMENTS]; /* product: the linears. With glu: gate, up */
    uint32_t parts_n;
    const struct sg_op *glu;   /* product: gated activation of both parts; NULL: none */
    const struct sg_op *after; /* product: activation or convolution of part after_part, its only reader; NULL: none */
    uint32_t after_part;
    const struct sg_op *delta; /* product whose `after` is a convolution: the delta rule that is the only reader of that */
    const struct sg_op *conv;  /* step of that delta rule: the convolution. Chunked kernels compute it themselves */
    int parts_bf16;            /* product with `delta`: its parts may be stored in bf16, since only the delta rule and gates of
                                * per-group norms (128 columns) before products read them */
    uint32_t gate;             /* product: 1 + index of the part that only the norm two steps later reads, as its gate; it may be
                                * stored after SiLU. 0: none */
    int feeds_next;            /* product with glu: only the next product reads the result, in the same 16-bit type */
    const struct sg_op *q_norm, *k_norm, *q_rope, *k_rope, *attend; /* CU_STEP_ATTEND; norms and ropes may be NULL */
    const struct cu_fusion *fusion; /* fusion that begins with this step; NULL: none */
};

/* Consecutive steps that thread-block clusters compute in one launch when the pass has one row (k_cluster_ops.cuh): a
 * product, what follows it, and a product whose result is added to the input of the first one's norm. Each cluster computes
 * some hidden units or heads and adds its part to every column of the result, a fixed-point sum in the lane's partial_sums. */
enum cu_fusion_weights { CU_FUSION_F16, CU_FUSION_BF16, CU_FUSION_Q8, CU_FUSION_PACKED, CU_FUSION_NONE };
enum cu_fusion_kind { CU_FUSION_MLP, CU_FUSION_LINEAR, CU_FUSION_HEADS };
struct cu_fusion {
    enum cu_fusion_kind kind;
    uint32_t first, steps;         /* index of the first fused step; number of steps */
    const struct cu_step *step[3]; /* the steps that compute something */
    enum cu_fusion_weights weights;
    uint32_t last;         /* index of the last step that reads y */
    struct sg_operand x;   /* input: a whole value */
    int32_t y;             /* output value */
    cu_fn fn[2];           /* kernel for K and V in fp16, in bf16 */
    size_t shared;         /* bytes of dynamic shared memory */
    size_t sums_at;        /* offset of its partial sums in the lane's, in 64-bit words */
    uint32_t clusters;     /* in the grid, of CK_CLUSTER_BLOCKS blocks each */
    uint32_t cluster_cols; /* columns of the second product per cluster */
    uint32_t stages, stage_bytes; /* of the ring of weights in shared memory */
    uint32_t fills, ahead; /* stages filled per launch; fills that may be in flight */
    uint32_t back_rows;    /* rows of the second product per stage */
    /* packed weights: bytes of a row of the first product, at most; of a row of a chunk of the second */
    uint32_t pitch, back_pitch;
    uint64_t map[16];      /* tensor map (struct ck_tensor_map) of the second product's weight */
};

/* Location of a value: a block of columns in the buffer of its kind. The block begins after `at` columns of all rows; its
 * rows have `stride` floats, and the value begins at float `inside` of a row. The parts of one product share a block. A
 * value that selects rows (SG_OP_ROWS) is not copied when all rows are selected: it is read from value `from`, at column
 * from_at. */
struct cu_value_loc {
    uint32_t at, wanted, inside, stride; /* wanted: index into struct cu_value_buffers */
    int32_t from;                        /* -1: none */
    uint32_t from_at;
};

/* A compiled graph. Immutable after compile, except for the lanes, each of which one run at a time uses under its lock. */
struct sg_program {
    struct sg_program_base base;
    struct cu_weights *weights;       /* shared with the programs of the same compile */
    cu_ptr *inverse;                  /* [ropes_n] inverse frequencies of each rope table */
    struct cu_value_loc *value_locs;  /* [values_n], the same for both step lists */
    uint32_t columns[2];              /* columns of one row of each value buffer */
    int lookahead_ok;                 /* 1: a step may be issued before it is requested */
    const struct sg_op *fault;        /* the op that option fault= names; NULL: none */
    /* Both lists compute the same values; a pass uses one of them. */
    struct cu_step *plain, *fused;    /* a step per op (adapters, extra outputs); fused steps (all else) */
    uint32_t plain_n, fused_n;
    struct cu_fusion *fusions;
    uint32_t fusions_n;
    size_t sums_words;                /* 64-bit words of partial sums of all fusions */
    uint64_t read_per_token;          /* bytes of weights that one token reads */
    struct cu_lane lanes[CU_LANES];
    /* The thread that prepares graphs of prompts (prepare.c). */
    pthread_t prepare_thread;
    atomic_int prepare_asked;         /* 1: a prompt was computed, and the thread started if it could be */
    int preparing;                    /* 1: it was started and is to be joined */
    pthread_mutex_t prepare_lock;     /* with prepare_wake: valid while `preparing` is 1 */
    pthread_cond_t prepare_wake;      /* prepare_stop was set */
    int prepare_stop;                 /* 1: it ends after its present run */
    atomic_uint runs;                 /* runs of callers between start and wait */
    atomic_uint_fast64_t run_end_ns;  /* when the last one ended; 0: none has */
    /* Only with "screen=1". */
    struct cu_screen { /* candidate filter for greedy choices (issue_screen.c); head NULL: none */
        const struct sg_op *head;
        cu_ptr memory;
        struct ck_screen a;
    } screen;
};

/* Fills plain, fused, value_locs and columns. Allocated by the caller. */
segue_status cu_fuse(struct sg_program *p, segue_error *err);

/* --- cluster fusions (cluster_match.c) --- */

/* Fills fusions and sums_words; none where the GPU or the driver lacks support. */
segue_status cu_cluster_match(struct sg_unit *u, struct sg_program *p, segue_error *err);
size_t cu_cluster_sums_bytes(const struct sg_program *p);
enum { CU_STEP_OPS = 10 + CK_SEGMENTS };
/* The distinct ops of a step; returns their number. */
uint32_t cu_step_ops(const struct cu_step *s, const struct sg_op *ops[CU_STEP_OPS]);
/* The operand that x is read from when all rows are selected. */
struct sg_operand cu_source(const struct sg_program *p, const struct sg_operand *x);
/* The part of product s that produces x; NULL: none. */
const struct sg_op *cu_part_of(const struct sg_program *p, const struct cu_step *s, const struct sg_operand *x);
/* q, k, v, gate (input 0 to 3) of an attention step, before norm and rope. */
const struct sg_operand *cu_raw_of(const struct cu_step *s, int input);

#endif
