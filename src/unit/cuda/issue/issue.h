/* issue.h: issues the steps of a pass as kernel launches. All functions run with the context current, put their launches into the
 * lane's stream and do not wait; a pass may be captured as a CUDA graph. For a product the kernels are tried in a fixed order: a
 * *_fits function says from shapes, types and alignment whether its kernel supports the step, and fills the arguments.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_ISSUE_H
#define SG_UNIT_CUDA_ISSUE_H

#include "unit/cuda/compile/program.h"
#include "unit/cuda/state/state.h"

/* A pass while it is issued: rows of up to CK_SPANS spans that are computed together. Host memory only; lives on the stack of the
 * run. */
struct cu_pass {
    struct sg_program *program;
    struct cu_lane *lane;
    const struct cu_value_buffers *values;
    /* Shape. */
    uint32_t rows_n[2];                 /* rows; wanted rows */
    uint32_t padded;                    /* 1: the last rows are padding; the head in GPU memory has the true count */
    uint32_t spans_n;
    uint32_t chunks;                    /* chunks of CK_CHUNK positions up to the furthest row (cu_chunks_for) */
    uint32_t sms;                       /* multiprocessors available: the whole GPU's or the partition's */
    uint32_t screen;                    /* 1: no logits are needed, the output head may use the candidate filter */
    const struct sg_span *const *spans; /* [spans_n] for their adapters; NULL: no span has any */
    uint32_t from[2][CK_SPANS + 1];     /* first row, first wanted row of each span */
    uint32_t args_index;                /* which of the lane's pass_args */
    enum sg_storage kv;                 /* storage of K and V */
    /* Choice of tokens. */
    uint32_t best;                      /* 1: the best row of each wanted row's logits is needed */
    uint32_t sampled, logprobs;         /* rows that k_sample.cu chooses for; those with log-probabilities */
    struct ck_banned banned;
    uint32_t best_blocks, best_done;    /* blocks that report a best logit; 1: the head's kernel has reported them */
    uint32_t embedded, embeds;          /* 1: the previous pass wrote the embedding; this pass writes the next one's */
    uint32_t gate;                      /* 1 + value that a product stored after SiLU; 0: none */
    /* The 16-bit copy of x: products with the same input share it (issue_gemm.c). */
    const void *narrowed;               /* fp32 address of the x whose 16-bit copy is at narrowed_at; NULL: none */
    cu_ptr narrowed_at;
    const struct sg_op *narrowed_norm;  /* norm that the copy includes */
    uint32_t narrowed_bf16;
    int32_t narrowed_by;                /* its value */
    /* product whose parts are stored in bf16, in the first half of their fp32 rows; NULL: none */
    const struct cu_step *parts_bf16;
    /* Fusions (issue_cluster.c). Two outputs can be partial sums at a time: the one that a fusion reads and the one that it
     * writes. */
    struct cu_partial_value {           /* outputs of fusions that are still partial sums; NULL: none */
        const struct cu_fusion *fusion;
        uint64_t launched;              /* launches when it was issued */
    } in_parts[2];
    const struct cu_fusion *used[4];    /* fusions whose partial sums are not cleared yet, oldest first */
    uint32_t used_n;
    uint64_t launches;
    segue_error *err;
};

/* --- operands (operands.c): kernel arguments of graph operands --- */

static inline float *cu_floats(cu_ptr p) { return (float *)(uintptr_t)p; }
struct ck_view cu_view_of(const struct cu_pass *p, const struct sg_operand *x);
struct ck_view cu_output_view(const struct cu_pass *p, const struct sg_op *op); /* the whole output of an op */
/* A part of p->parts_bf16: .p is the address of its first bf16 number. */
struct ck_view cu_bf16_view_of(const struct cu_pass *p, const struct sg_operand *x);
/* 1: rows can be read as float4 from every column that is a multiple of 4. */
static inline int cu_is_float4(const struct ck_view *v) { return (uintptr_t)v->p % 16 == 0 && v->stride % 4 == 0; }
struct ck_pass cu_kernel_pass(const struct cu_pass *p);
uint32_t cu_out_rows(const struct cu_pass *p, const struct sg_op *op); /* rows of the op's output in this pass */
const struct cu_tensor *cu_weight_tensor(const struct cu_pass *p, const struct sg_weight *w);  /* NULL: absent */
const struct cu_tensor *cu_linear_tensor(const struct cu_pass *p, const struct sg_op *linear);
const float *cu_vector_of(const struct cu_pass *p, const struct sg_weight *w); /* fp32 numbers; NULL: absent */
struct ck_norm cu_norm_of(const struct cu_pass *p, const struct sg_op *op);    /* op NULL: .present is 0 */
struct ck_segment cu_segment_of(const struct cu_pass *p, const struct sg_op *linear);
/* Arguments of a product, complete except for rows, best and banned. */
struct ck_gemv cu_gemv_of(const struct cu_pass *p, const struct cu_step *s);
/* Arguments of s->after; CK_EPILOGUE_NONE where it is NULL. */
void cu_epilogue_of(const struct cu_pass *p, const struct cu_step *s, struct ck_epilogue *out);

/* --- launches (launch.c) --- */

/* One launch of gx * gy * gz blocks; none when one of them is 0. args is the kernel's only parameter, a struct by value. */
segue_status cu_launch(struct cu_pass *p, cu_fn fn, uint32_t gx, uint32_t gy, uint32_t gz, uint32_t threads,
                       size_t shared, const void *args);
/* gx blocks in thread-block clusters of `cluster`. */
segue_status cu_launch_clusters(struct cu_pass *p, cu_fn fn, uint32_t gx, uint32_t cluster, uint32_t threads, size_t shared,
                                const void *args);
/* Grows a scratch buffer of the lane. cuMemFree waits for the GPU, so kernels in flight may still use the old buffer. */
segue_status cu_lane_grow(struct cu_pass *p, cu_ptr *buffer, size_t *have, size_t want);

/* --- ops --- */

/* Norm, elementwise ops, rope, embedding, row selection and mixture of experts (issue_ops.c); EINTERNAL for any other op. */
segue_status cu_issue_small(struct cu_pass *p, const struct sg_op *op);
segue_status cu_issue_fault(struct cu_pass *p, const struct sg_op *op); /* alters its first number by one ulp, for tests */
struct ck_embed cu_embed_args(const struct cu_pass *p, const struct sg_op *op);
/* Attention (issue_attend.c). s: the step with norm and rope of q and k; NULL: they are separate steps. */
segue_status cu_issue_attention(struct cu_pass *p, const struct cu_step *s, const struct sg_op *op);
/* Convolution and delta rule (issue_delta.c). conv: the convolution before the rule; NULL: it has been computed. */
segue_status cu_issue_conv(struct cu_pass *p, const struct sg_op *op);
segue_status cu_issue_delta(struct cu_pass *p, const struct sg_op *op, const struct sg_op *conv);
/* 1: its kernel convolves */
int cu_delta_convolves(const struct cu_pass *p, const struct sg_op *delta, const struct sg_op *conv);
int cu_delta_halves(const struct cu_pass *p, const struct sg_op *delta, const struct sg_op *conv); /* 1: and it can read bf16 */
/* Sum or concatenation over the GPUs of a group (issue_join.c). */
segue_status cu_issue_join(struct cu_pass *p, const struct sg_op *op);

/* --- products: y = x W^T, with norm before and activation, convolution or residual after --- */

segue_status cu_issue_product(struct cu_pass *p, const struct cu_step *s);              /* issue_product.c: selects the kernel */
/* issue_gemm.c: more than CU_GEMV_ROWS rows */
segue_status cu_issue_gemm(struct cu_pass *p, const struct cu_step *s, uint32_t rows);
/* issue_lora.c: adds adapters to the output */
segue_status cu_issue_loras(struct cu_pass *p, const struct sg_op *op);

/* One row: the arguments of a launch, complete except for the choice of a token. */
struct cu_streamed {
    struct ck_stream a;
    cu_fn fn;
    uint32_t blocks, threads;
    size_t shared;
};
/* issue_stream.c: k_stream.cu, Hopper. */
int cu_stream_fits(const struct cu_pass *p, const struct cu_step *s, const struct ck_gemv *g, struct cu_streamed *out);
/* issue_digits.c: k_digits.cu, Hopper, large weights. streamed: what cu_stream_fits returned. */
int cu_digits_fits(const struct cu_pass *p, const struct cu_step *s, const struct ck_gemv *g, int streamed,
                   struct cu_streamed *out);
/* issue_packed.c: products of packed weights with up to CU_GEMV_ROWS rows. *whole 1: s->after was done too. */
segue_status cu_issue_packed(struct cu_pass *p, const struct cu_step *s, struct ck_gemv *g, uint32_t rows, int *whole);
/* issue_vocab.c: k_vocab.cu, Hopper, the output head. */
struct cu_vocab {
    struct ck_vocab a;
    cu_fn fn;
    uint32_t blocks;
    size_t shared;
};
int cu_vocab_fits(const struct cu_pass *p, const struct ck_gemv *g, const struct ck_weight *w, struct cu_vocab *out);
/* issue_tiles.c: k_tiles.cu, Hopper, 2 to 16 rows, 16-bit weights. */
struct cu_tiled {
    cu_fn fn;
    uint32_t shared, blocks, cluster;
    int norm_apart, whole; /* 1: the norm must be issued before it; s->after is included */
};
int cu_tiles_fits(const struct cu_pass *p, const struct cu_step *s, const struct ck_weight *w, const struct ck_gemv *g,
                  struct ck_tiles *a, struct cu_tiled *out);
/* What both kernels of tiles share: all of *a but tensor maps, all of *out but fn. chunk: columns of a stage of `stage` bytes,
 * which stay in one block; 0: panels. */
int cu_tiles_plan(const struct cu_pass *p, const struct cu_step *s, const struct ck_gemv *g, uint32_t chunk, uint32_t stage,
                  struct ck_tiles *a, struct cu_tiled *out);
/* args: the kernel's, of which *a is a part. */
segue_status cu_launch_tiles(struct cu_pass *p, const struct cu_step *s, const struct ck_tiles *a, const struct cu_tiled *t,
                             const void *args, int *whole);
/* issue_packed_tiles.c: k_packed_tiles.cu, Hopper, up to 16 rows of packed weights. */
int cu_packed_tiles_fits(const struct cu_pass *p, const struct cu_step *s, const struct ck_gemv *g, uint32_t rows,
                         struct ck_packed_tiles *a, struct cu_tiled *out);
/* issue_batch.c: k_batch.cu, 2 to 16 rows, 16-bit and fp8 weights. */
int cu_batch_fits(const struct cu_pass *p, const struct cu_step *s, const struct ck_weight *w, uint32_t rows);
segue_status cu_issue_batch(struct cu_pass *p, const struct cu_step *s, const struct ck_weight *w, const struct ck_gemv *g,
                            uint32_t rows);
size_t cu_batch_split_bytes(const struct sg_program *p); /* bytes of a lane's x_split */
/* Writes x, after its norm, as a sum of two 16-bit matrices to the lane's x_split: high parts, then remainders at split_low. */
segue_status cu_split_x(struct cu_pass *p, const struct cu_step *s, uint32_t cols, uint32_t bf16, const struct ck_gemv *g,
                        uint32_t rows);
cu_ptr cu_split_low(const struct cu_pass *p, uint32_t cols);
/* issue_packed_batch.c: k_packed_batch.cu, up to 16 rows of packed weights. */
int cu_packed_batch_fits(const struct cu_pass *p, const struct cu_step *s, uint32_t rows);
segue_status cu_issue_packed_batch(struct cu_pass *p, const struct cu_step *s, const struct ck_gemv *g, uint32_t rows);
int cu_packed_batch_form(uint32_t kind);       /* 1: the kernel multiplies this kind; */
int cu_packed_few(const struct ck_gemv *g);    /* 1: small products use k_packed_few.cu */
size_t cu_packed_split_bytes(const struct sg_program *p);  /* bytes of a lane's x_split for it; 0: never used */
size_t cu_packed_slices_bytes(const struct sg_program *p); /* bytes of a lane's slices, which are 0 between launches */
/* issue_glu.c: k_glu.cu, Hopper: gate and up of many rows with the activation. w: rows of gate, then of up, in 16 bits. The
 * result is left where the next product finds it narrowed. *done 0: not launched. */
int cu_glu_fits(const struct cu_pass *p, const struct cu_step *s, uint32_t rows);
segue_status cu_issue_glu(struct cu_pass *p, const struct cu_step *s, const void *w, uint32_t pitch, uint32_t rows, uint32_t bf16,
                          int *done);
/* Tensor map of a 16-bit matrix; pitch in bytes. 0: refused by the driver. */
int cu_map_rows(struct sg_unit *u, struct ck_tensor_map *map, const void *from, uint32_t rows, uint32_t cols, uint32_t pitch,
                uint32_t box_rows, uint32_t box_cols, int swizzle);
/* issue_packed_gemm.c: k_packed_gemm.cu, Hopper: packed weights with many rows. x is the pass's 16-bit copy in bf16
 * (p->narrowed_at). out16 1: results in bf16. */
int cu_packed_gemm_fits(const struct cu_pass *p, const struct cu_step *s, uint32_t rows);
segue_status cu_issue_packed_gemm(struct cu_pass *p, const struct cu_step *s, uint32_t rows, uint32_t out16);
/* issue_screen.c: greedy choice with a candidate filter, in place of the output head. open: at compile, builds the 8-bit copy. */
segue_status cu_screen_open(struct sg_unit *u, struct sg_program *p, segue_error *err);
segue_status cu_issue_screen(struct cu_pass *p, const struct cu_step *s);

/* --- cluster fusions (issue_cluster.c) --- */

/* Chunks of CK_CHUNK positions up to which attention may be part of a fusion; beyond, separate launches are faster. */
enum { CU_HEADS_CHUNKS = 32 };

segue_status cu_cluster_pass_begin(struct cu_pass *p); /* before a pass is issued, captured or replayed */
void cu_cluster_pass_done(struct cu_pass *p);          /* after that, when it succeeded */
segue_status cu_cluster_pass_end(struct cu_pass *p);   /* after the last step, where steps are issued: clears partial sums */
/* Launches the fusion that begins with step s; *steps: how many steps that were, 0: s begins none that this pass can use. */
segue_status cu_cluster_issue(struct cu_pass *p, const struct cu_step *s, uint32_t *steps);
/* Sums up the partial values that step s reads, so that they are in their value buffers. */
segue_status cu_cluster_settle(struct cu_pass *p, const struct cu_step *s);

/* --- one step, and the choice of tokens --- */

/* Issues step s, or the fusion that begins with it; *steps: number of steps issued (issue.c). */
segue_status cu_issue(struct cu_pass *p, const struct cu_step *s, uint32_t *steps);
/* issue_sample.c: chooses for the first p->sampled samplers of the lane; the pass continues as after a greedy choice. */
segue_status cu_issue_sample(struct cu_pass *p, uint32_t advance);
/* issue_choice.c: the best token of each wanted row; `advance` as in struct cu_pass_plan. */
segue_status cu_issue_choice(struct cu_pass *p, uint32_t advance, uint32_t stops_n);
/* 1: the choice can write the next pass's embedding; fills the arguments. */
int cu_next_embed(const struct cu_pass *p, struct ck_embed *out);

/* --- groups of GPUs (issue_join.c) --- */

segue_status cu_peer_enable(struct sg_unit *from, struct sg_unit *to, segue_error *err); /* `from` may access memory of `to` */
segue_status cu_link_ranks(struct sg_program *const *programs, uint32_t n, segue_error *err);
void cu_join_close(struct sg_unit *u, struct cu_lane *l);
segue_status cu_join_check(const struct cu_lane *l, segue_error *err); /* ELOST: a peer did not answer during a run */

#endif
