/* cu_train.h: training on one GPU: what a trainer holds there, and the launches of each operation. All work is in one stream.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_TRAIN_H
#define SG_UNIT_CUDA_TRAIN_H

#include "unit/cuda/driver/gpu.h"
#include "unit/cuda/kernels/train/ktrain.h"

/* X(file, name): every training kernel. */
#define CU_TRAIN_KERNELS(X)                                                                                                     \
    X(gemm, sum)                                                                                                                \
    X(small, embed) X(small, embed_back) X(small, norm) X(small, norm_back) X(small, rope) X(small, rope_back)                  \
    X(small, small) X(small, select) X(small, select_back) X(small, columns) X(small, conv) X(small, conv_back)                 \
    X(small, loss) X(small, adamw) X(small, squares)                                                                            \
    X(attend, softmax) X(attend, gate_back) X(attend, softmax_back) X(attend, sinks)                                            \
    X(delta, delta_prepare) X(delta, delta_columns_128) X(delta, delta_columns_256) X(delta, delta_columns_back_128)            \
    X(delta, delta_columns_back_256) X(delta, delta_rows_128) X(delta, delta_rows_256) X(delta, delta_rows_back_128)            \
    X(delta, delta_rows_back_256) X(delta, delta_values) X(delta, delta_decay) X(delta, delta_keys) X(delta, heads_sum)

/* X(name): products of attention, one kernel for each enum ct_products. */
#define CU_TRAIN_PRODUCTS(X) X(scores) X(attend_out) X(dscores) X(dq) X(dk) X(dv)

enum { CU_TRAIN_FILES = 4 };

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
