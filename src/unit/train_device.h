/* train_device.h: what a unit offers that computes products with weight matrices for training, beside another unit that computes
 * everything else (train_math.h). Weights are inputs of its programs, so changed weights need no compile. src/train uses it.
 *
 * Results have the precision of the device. What is not finite in an operand is not finite in the result.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_TRAIN_DEVICE_H
#define SG_UNIT_TRAIN_DEVICE_H

#include "base/err.h"
#include "tensor/tensor.h"

enum { SG_TRAIN_PARTS = 8 };         /* weight matrices of one product at most */

/* A weight matrix W [rows, cols], as fp32 or as rows of a tensor of the model. */
struct sg_train_matrix {
    const float *data;               /* [rows, cols]; NULL: rows [at, at + rows) of the tensor */
    const struct sg_tensor *tensor;
    uint32_t at, rows, cols;
};
/* Forward: y_i [tokens, rows_i] = x W_i^T for matrices with the same columns. Back: dx [tokens, cols] += sum of dy_i W_i.
 * `in` is x or a dy, `out` a y or dx. Of forward products in[0] is used, of those back out[0]. A y may be NULL: not wanted. */
struct sg_train_product {
    uint32_t id;                     /* products with equal ids have the same matrices */
    uint64_t version;                /* changes when numbers of the matrices change */
    int back;
    uint32_t tokens, parts_n;
    struct sg_train_matrix w[SG_TRAIN_PARTS];
    const float *in[SG_TRAIN_PARTS]; /* NULL in a product back: zeros */
    float *out[SG_TRAIN_PARTS];
    size_t in_stride[SG_TRAIN_PARTS], out_stride[SG_TRAIN_PARTS];
};

/* Totals since the device was made. */
struct sg_train_counts {
    uint64_t dispatches, compiles;
    uint64_t simulated_ns;           /* of the chip, compiles and loads left out; 0: not simulated */
    uint64_t busy_ns;                /* measured time of dispatches */
    uint64_t overlap_ns;             /* of these, time between start and wait: the caller computed something else */
    uint64_t begin_ns, end_ns;       /* of the dispatches of the last product that had any */
    uint64_t weight_bytes, weight_ns; /* of weights that were written as inputs, and the time that took */
    uint64_t overflows, underflows;  /* results and weights that were clamped to the largest number; numbers that lost bits below
                                      * the smallest normal one */
};

struct sg_train_device;
struct sg_train_device_ops {
    void (*close)(struct sg_train_device *d);
    /* Copies operands and starts. One product at a time; `p` and what it points to, `in` excepted, stay valid until wait. */
    segue_status (*start)(struct sg_train_device *d, const struct sg_train_product *p, segue_error *err);
    /* Waits and writes the result. */
    segue_status (*wait)(struct sg_train_device *d, segue_error *err);
    void (*count)(const struct sg_train_device *d, struct sg_train_counts *out);
};
/* First member of the device of each unit. */
struct sg_train_device_base { const struct sg_train_device_ops *ops; };

static inline const struct sg_train_device_ops *sg_train_device_ops_of(const struct sg_train_device *d)
{
    return ((const struct sg_train_device_base *)(const void *)d)->ops;
}

#endif
