/* blas.h: matrix products with cuBLASLt, for prefill. The library is loaded at run time when it is installed. The opaque handles
 * of its interface are declared as void *.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_BLAS_H
#define SG_UNIT_CUDA_BLAS_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

enum { CU_BLAS_SHAPES = 64, CU_BLAS_WORKSPACE = 32 << 20 };

/* Values of the library's enums. */
enum { CU_BLAS_COMPUTE_F32 = 68, CU_BLAS_F32 = 0, CU_BLAS_F16 = 2, CU_BLAS_BF16 = 14 };
enum { CU_BLAS_TRANSPOSE_A = 3, CU_BLAS_TRANSPOSE_B = 4, CU_BLAS_EPILOGUE = 7, CU_BLAS_BIAS = 8 }; /* of a description */
enum { CU_BLAS_EPILOGUE_BIAS = 4, CU_BLAS_PREF_WORKSPACE = 1 };

struct cu_blas_heuristic { /* cublasLtMatmulHeuristicResult_t */
    uint64_t algo[8];
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
};

/* A shape and its algorithm. The fields before `desc` are the key, with the names of struct cu_blas_product; residual and bias
 * are 1 when the product has one. */
struct cu_blas_shape {
    uint32_t t, n, k, pitch, out, add, bf16, out16, residual, bias;
    void *desc, *w, *x, *c, *y;
    uint64_t algo[8];
};

struct cu_blas {
    void *library, *handle;      /* handle NULL: not available */
    pthread_mutex_t lock;        /* guards shapes and their descriptors: the programs of a unit share them */
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

/* Leaves handle NULL when the library is not installed or too old. The GPU's context must be current. */
void cu_blas_open(struct cu_blas *b);
void cu_blas_close(struct cu_blas *b);

/* y [t, n] = times * x [t, k] . w [n, k]^T (+ residual [t, n]) (+ bias [n]). x and w are bf16 (bf16 1) or fp16; rows of w are
 * `pitch` numbers apart, rows of y out_stride, of the residual residual_stride. y, residual and bias are fp32; out16 1: y has the
 * type of x, and there is no residual. Addresses are GPU memory; workspace has CU_BLAS_WORKSPACE bytes. Asynchronous in `stream`.
 * Returns 0 when the library does not support the product; nothing was started then. */
struct cu_blas_product {
    uint32_t t, n, k, pitch, out_stride, residual_stride, bf16, out16;
    float times;
    uint64_t x, w, y, residual, bias, workspace;
    void *stream;
};
int cu_blas_multiply(struct cu_blas *b, const struct cu_blas_product *p);

#endif
