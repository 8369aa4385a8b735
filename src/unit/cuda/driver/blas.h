/* blas.h: the door to cuBLASLt, opened at run time when it is installed: one kind of product, for prefill.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_BLAS_H
#define SG_UNIT_CUDA_BLAS_H

#include <stddef.h>
#include <stdint.h>

enum { CU_BLAS_SHAPES = 64, CU_BLAS_WORKSPACE = 32 << 20 };

/* How one shape is computed; found once. */
struct cu_blas_shape {
    uint32_t t, n, k, pitch, out, add, bf16, out16, residual, bias;
    void *desc, *w, *x, *c, *y;
    uint64_t algo[8];
};

struct cu_blas {
    void *library, *handle;
    int (*create)(void **);
    int (*destroy)(void *);
    int (*desc_new)(void **, int compute, int scale);
    int (*desc_free)(void *);
    int (*desc_set)(void *, int what, const void *value, size_t bytes);
    int (*layout_new)(void **, int type, uint64_t rows, uint64_t cols, int64_t stride);
    int (*layout_free)(void *);
    int (*pref_new)(void **);
    int (*pref_free)(void *);
    int (*pref_set)(void *, int what, const void *value, size_t bytes);
    int (*setting)(const void *algo, int what, void *value, size_t bytes, size_t *written);
    int (*find)(void *, void *, void *, void *, void *, void *, void *, int wanted, void *results, int *n);
    int (*multiply)(void *, void *, const void *, const void *, void *, const void *, void *, const void *,
                    const void *, void *, void *, void *, const void *, void *, size_t, void *stream);
    struct cu_blas_shape shapes[CU_BLAS_SHAPES];
    uint32_t shapes_n;
};

/* Leaves handle NULL when the library is not there. The GPU must be current. */
void cu_blas_open(struct cu_blas *b);
void cu_blas_close(struct cu_blas *b);

/* y [t, n] fp32 = times x [t, k] . w [n, k] (16 bits, bf16 or fp16; rows of w `pitch` numbers apart) (+ residual)
 * (+ bias). out16: y in the 16 bits of x, and no residual. 0: this library cannot, and nothing was started. */
struct cu_blas_product {
    uint32_t t, n, k, pitch, out_stride, residual_stride, bf16, out16;
    float times;
    uint64_t x, w, y, residual, bias, workspace;
    void *stream;
};
int cu_blas_multiply(struct cu_blas *b, const struct cu_blas_product *p);

#endif
