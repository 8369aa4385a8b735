/* npu_kernels.h: the loops of the software NPU that depend on the instruction set: one table per
 * set, all made from npu_loops.h. Rounding and conversions give the same bits on every set; exp_row and
 * the tiles may differ in the last bit of fp32, because sets differ in fused multiply-add.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_NPU_KERNELS_H
#define SG_UNIT_ANE_NPU_KERNELS_H

#include <stddef.h>
#include <stdint.h>

/* What rounding to fp16 did to results; see sg_npu_round_result. */
struct sg_npu_rounding {
    uint32_t overflows;          /* finite numbers that became infinite */
    uint32_t underflows;         /* numbers that became zero or subnormal and lost bits */
    float error, size;           /* sums of the magnitudes of errors and of results, of finite results */
};

struct sg_npu_kernels {
    const char *name;
    uint32_t mr, nr;             /* rows and columns of a tile of a product; they decide the packed layouts */
    /* In place, to the nearest fp16 value with ties to even; overflow gives infinity. *out: of these n <= 2^24 numbers. */
    void (*round16)(float *p, size_t n, struct sg_npu_rounding *out);
    /* fp16 bits to fp32, and back for numbers that are fp16 values. */
    void (*widen)(const uint16_t *in, float *out, size_t n);
    void (*narrow)(const float *in, uint16_t *out, size_t n);
    /* out[i] = exp(in[i]), within 2 ulp; the arrays may be the same. */
    void (*exp_row)(const float *in, float *out, size_t n);
    /* out[i] = 2^(scale * in[i]) by knot[34], the table of 2^x (npu_knots.h); the arrays may be the same. */
    void (*exp2_knots)(const float *knot, float scale, const float *in, float *out, size_t n);
    /* c[i][j] = sum over k of a[k][mr] * b[k][nr] for i < m <= mr, j < n <= nr; rows of c are ldc
     * floats apart. The sum is fp32 in ascending order of k. */
    void (*tile)(const float *a, const float *b, size_t k, float *c, size_t ldc, uint32_t m, uint32_t n);
    /* The same, but each four products are added first and their sum is rounded to fp16
     * (profile.fp16_tiles). */
    void (*tile_rounded)(const float *a, const float *b, size_t k, float *c, size_t ldc, uint32_t m,
                         uint32_t n);
    /* As tile, but each product is rounded to a multiple of 2^-step first, ties to even (profile.product_step). */
    void (*tile_stepped)(const float *a, const float *b, size_t k, float *c, size_t ldc, uint32_t m, uint32_t n, uint32_t step);
};

extern const struct sg_npu_kernels sg_npu_generic;
/* Built on x86-64 only. */
extern const struct sg_npu_kernels sg_npu_avx2;
extern const struct sg_npu_kernels sg_npu_avx512;
/* The fastest set that this processor supports. */
const struct sg_npu_kernels *sg_npu_kernels_here(void);

#endif
