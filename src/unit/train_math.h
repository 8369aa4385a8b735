/* train_math.h: what a unit offers for training: a loop over items on its threads, and a product of fp32 matrices. src/train
 * builds all forward and backward operations from these two. Results may not depend on the number of threads.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_TRAIN_MATH_H
#define SG_UNIT_TRAIN_MATH_H

#include <stddef.h>
#include <stdint.h>

struct sg_unit;

/* C [rows, cols] from a sum over `inner`. NT: A [rows, inner], B [cols, inner]. NN: A [rows, inner], B [inner, cols].
 * TN: A [inner, rows], B [inner, cols]. */
enum sg_gemm_kind { SG_GEMM_NT, SG_GEMM_NN, SG_GEMM_TN };
struct sg_gemm {
    enum sg_gemm_kind kind;
    uint32_t rows, cols, inner;
    const float *a, *b;
    size_t lda, ldb, ldc;            /* numbers from one row to the next */
    float *c;
    int add;                         /* 1: C += the product; 0: C = the product */
};

/* Packed factors: numbers in the order in which a unit multiplies them, so that they are reordered once for all tiles of C. A
 * factor consists of panels, A of `rows` rows of C, B of `cols` columns. A panel has elements of 4 bytes, for each of which
 * `each` neighbours of `inner` are kept; `depth` elements are summed at a time, so a part of `inner` that is a multiple of them
 * gives the bits of the whole. */
struct sg_gemm_shape { uint32_t each, rows, cols, depth; };
/* What to pack: `depth` numbers of `inner` of some lines, rows (b 0) or columns (b 1) of C, that begin with a panel. */
struct sg_gemm_pack {
    int b, straight;                 /* straight 1: x is [depth, lines]; 0: [lines, depth] */
    uint32_t lines, depth;
    const float *x;
    size_t ldx;
    float *to;                       /* in the first panel, at the first element */
    size_t panel;                    /* numbers of 4 bytes from one panel to the next */
};

struct sg_train_math {
    struct sg_unit *unit;
    uint32_t threads;                /* `thread` below is less than this */
    /* Calls work once for each item < items, on any thread, and returns when all are done. */
    void (*each)(const struct sg_train_math *m, uint32_t items, void (*work)(void *arg, uint32_t item, uint32_t thread),
                 void *arg);
    /* The product on the calling thread; may be called from work, with its `thread`; outside with 0. */
    void (*gemm)(const struct sg_train_math *m, const struct sg_gemm *g, uint32_t thread);
    size_t scratch_n;                /* numbers that gemm needs for each thread; 0: none */
    float *scratch;                  /* [threads, scratch_n] 64-byte aligned; the caller's */
    /* NULL: products are not packed. The product of panels with `elements` each, on the calling thread; the bits of gemm. */
    const struct sg_gemm_shape *shape;
    void (*pack)(const struct sg_train_math *m, const struct sg_gemm_pack *p);
    void (*gemm_packed)(const struct sg_train_math *m, const struct sg_gemm *g, const float *a, const float *b,
                        uint32_t elements);
};

#endif
