/* cu_train.h: training on one GPU: what a trainer holds there, and the launches of each operation. All work is in one stream.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_TRAIN_H
#define SG_UNIT_CUDA_TRAIN_H

#include "unit/cuda/driver/gpu.h"
#include "unit/cuda/kernels/train/ktrain_bf16.h"

/* X(file, name): every training kernel. */
#define CU_TRAIN_KERNELS(X)                                                                                                     \
    X(gemm, sum)                                                                                                                \
    X(small, embed) X(small, embed_back) X(small, norm) X(small, norm_back) X(small, rope) X(small, rope_back)                  \
    X(small, small) X(small, select) X(small, select_back) X(small, columns) X(small, conv) X(small, conv_back)                 \
    X(small, loss) X(small, adamw) X(small, squares)                                                                            \
    X(attend, softmax) X(attend, gate_back) X(attend, softmax_back) X(attend, sinks)                                            \
    X(delta, delta_prepare) X(delta, delta_columns_128) X(delta, delta_columns_256) X(delta, delta_columns_back_128)            \
    X(delta, delta_columns_back_256) X(delta, delta_rows_128) X(delta, delta_rows_256) X(delta, delta_rows_back_128)            \
    X(delta, delta_rows_back_256) X(delta, delta_values) X(delta, delta_decay) X(delta, delta_keys) X(delta, heads_sum)         \
    X(bf16, bf16_widen) X(bf16, bf16_narrow) X(bf16, bf16_cast) X(bf16, bf16_embed) X(bf16, bf16_embed_back)                    \
    X(bf16, bf16_places_back) X(bf16, bf16_norm) X(bf16, bf16_norm_back) X(bf16, bf16_norm_columns) X(bf16, bf16_columns)       \
    X(bf16, bf16_parts)                                                                                                         \
    X(bf16, bf16_rope) X(bf16, bf16_rope_back) X(bf16, bf16_small) X(bf16, bf16_select) X(bf16, bf16_select_back)               \
    X(bf16, bf16_loss) X(flash, flash_64) X(flash, flash_128) X(flash, flash_queries_64) X(flash, flash_queries_128)            \
    X(flash, flash_keys_64) X(flash, flash_keys_128)

/* X(name): products of attention, one kernel for each enum ct_products. */
#define CU_TRAIN_PRODUCTS(X) X(scores) X(attend_out) X(dscores) X(dq) X(dk) X(dv)

enum { CU_TRAIN_FILES = 6 };

/* An allocation of numbers, and its bf16 copy when it is a weight of a trainer with bf16 values. */
struct cu_train_copy {
    const float *value;
    size_t n, bytes;                 /* numbers; bytes of the copy */
    cu_ptr half;
    int valid;                       /* 0: the numbers changed since the copy was made */
};

/* What the forward pass of an attention keeps for the backward pass. */
struct cu_train_lines { const struct sg_op *op; cu_ptr p; size_t bytes; };

struct cu_train {
    struct sg_train_resident_base base;
    struct sg_unit *u;
    cu_stream stream;
    cu_mod modules[CU_TRAIN_FILES];
    struct {
#define X(file, name) cu_fn name;
        CU_TRAIN_KERNELS(X)
#undef X
#define X(name) cu_fn name;
        CU_TRAIN_PRODUCTS(X)
#undef X
        cu_fn gemm[CT_GEMM_KINDS][2];   /* tiles of CT_TILE, CT_LARGE */
    } k;
    cu_ptr scratch, parts, losses;   /* of an operation; of a product or sum over rows; of labelled rows */
    size_t scratch_bytes, parts_bytes, losses_bytes;
    /* With bf16 values: */
    cu_ptr wide, workspace;          /* fp32 operands of ops without a bf16 kernel; of cuBLASLt */
    size_t wide_bytes, workspace_bytes;
    struct cu_train_copy *copies;
    struct cu_train_lines *lines;
    struct cu_train_shape *shapes;
    size_t copies_n, lines_n, shapes_n;
};

static inline struct cu_train *cu_train_of(struct sg_train_resident *r) { return (struct cu_train *)(void *)r; }
static inline struct ct_matrix cu_train_matrix(struct sg_resident_matrix m)
{
    return (struct ct_matrix){m.data, m.stride, m.width, 0};
}

/* --- train_launch.c --- */
segue_status cu_train_launch(struct cu_train *t, cu_fn fn, uint32_t gx, uint32_t gy, uint32_t gz, uint32_t threads,
                             const void *args, segue_error *err);
/* One thread per item. */
segue_status cu_train_launch_items(struct cu_train *t, cu_fn fn, size_t items, const void *args, segue_error *err);
segue_status cu_train_scratch(struct cu_train *t, size_t numbers, float **out, segue_error *err);
segue_status cu_train_parts(struct cu_train *t, size_t numbers, float **out, segue_error *err);
/* The product; `splits` and `parts` are set here. */
segue_status cu_train_gemm(struct cu_train *t, struct ct_gemm *g, segue_error *err);
/* gradient[columns] += the sums of c over its rows; kind, rows, width, groups and columns are set, groups at least 1. */
segue_status cu_train_columns(struct cu_train *t, struct ct_columns *c, float *gradient, float scale, segue_error *err);
/* to += dout [rows, width]; nothing when to.data is NULL. */
segue_status cu_train_add_to(struct cu_train *t, struct sg_resident_matrix to, const float *dout, uint32_t rows, uint32_t width,
                             segue_error *err);

/* --- train_weights.c: bf16 copies of weights --- */
segue_status cu_train_copies_add(struct cu_train *t, const float *value, size_t n, segue_error *err);
void cu_train_copies_remove(struct cu_train *t, const float *value);
void cu_train_copies_changed(struct cu_train *t, const float *value);   /* numbers of the allocation with this address */
/* The bf16 copy of a matrix with `cols` columns, or of a vector (1). At least CT_PAD rows behind the last one are 0; *whole: the
 * rows end there. */
enum { CT_PAD = 128 };
segue_status cu_train_copy_of(struct cu_train *t, const float *value, uint32_t rows, uint32_t cols, const uint16_t **out,
                              int *whole, segue_error *err);

/* --- train_blas.c: products of bf16 matrices by cuBLASLt --- */
/* D [rows, cols] = scale * A B (+ C) (+ bias), row-major; A, B and their kinds as in struct ct_gemm. */
struct cu_train_product {
    enum ct_gemm_kind kind;
    const uint16_t *a, *b;
    size_t lda, ldb;
    void *d;
    size_t ldd;
    uint32_t rows, cols, inner;
    float scale;
    const void *c;                   /* NULL: nothing is added. In the type of D; may be D */
    size_t ldc;
    const uint16_t *bias;            /* [cols] or NULL */
    int wide;                        /* D is fp32, else bf16 */
};
/* Numbers that are allocated behind n others: products may add rows of 0 there. */
static inline size_t cu_train_slack(size_t n) { return n / 16 < 1 << 18 ? n / 16 : 1 << 18; }
int cu_train_blas(struct cu_train *t);   /* 1: the library is there */
segue_status cu_train_multiply(struct cu_train *t, const struct cu_train_product *p, segue_error *err);
void cu_train_blas_close(struct cu_train *t);

/* --- with bf16 values: 1 when there is a kernel for the call --- */
static inline struct ct_half cu_train_half(struct sg_resident_matrix m)
{
    return (struct ct_half){(uint16_t *)(void *)m.data, m.stride, m.width, m.fresh};
}
/* 1: rows of eight numbers each at 16 bytes, or absent. */
static inline int cu_train_even(struct sg_resident_matrix m)
{
    return !m.data || (m.width % 8 == 0 && m.stride % 8 == 0 && (uintptr_t)m.data % 16 == 0);
}
segue_status cu_train_bf16(struct cu_train *t, const struct sg_resident_call *c, int *done, segue_error *err);
segue_status cu_train_bf16_linear(struct cu_train *t, const struct sg_resident_call *c, int *done, segue_error *err);
segue_status cu_train_flash(struct cu_train *t, const struct sg_resident_call *c, int *done, segue_error *err);
/* gradient [columns] += the sums of `chunks` parts, which are `apart` numbers apart. */
segue_status cu_train_bf16_parts(struct cu_train *t, const float *parts, float *gradient, uint32_t columns, uint32_t apart,
                                 uint32_t chunks, segue_error *err);
/* gradient [columns] += the sums of dout over its rows. */
segue_status cu_train_bf16_columns(struct cu_train *t, const struct sg_resident_call *c, float *gradient, segue_error *err);
/* to (+)= dout */
segue_status cu_train_bf16_add_to(struct cu_train *t, struct sg_resident_matrix to, const struct sg_resident_call *c,
                                  segue_error *err);
/* Any op by its fp32 kernels: operands are widened, results and gradients rounded. */
typedef segue_status cu_train_op(struct cu_train *t, const struct sg_resident_call *c, segue_error *err);
segue_status cu_train_widened(struct cu_train *t, const struct sg_resident_call *c, cu_train_op *op, segue_error *err);

/* --- operations --- */
segue_status cu_train_linear(struct cu_train *t, const struct sg_resident_call *c, segue_error *err);
segue_status cu_train_attend(struct cu_train *t, const struct sg_resident_call *c, segue_error *err);
segue_status cu_train_delta(struct cu_train *t, const struct sg_resident_call *c, segue_error *err);
segue_status cu_train_embed(struct cu_train *t, const struct sg_resident_call *c, segue_error *err);
segue_status cu_train_norm(struct cu_train *t, const struct sg_resident_call *c, segue_error *err);
segue_status cu_train_rope(struct cu_train *t, const struct sg_resident_call *c, segue_error *err);
segue_status cu_train_conv(struct cu_train *t, const struct sg_resident_call *c, segue_error *err);
segue_status cu_train_elements(struct cu_train *t, const struct sg_resident_call *c, segue_error *err); /* glu, act, add, scale */

/* --- train_open.c: the unit's train_resident --- */
segue_status cu_train_open(struct sg_unit *u, struct sg_train_resident **out, segue_error *err);

#endif
