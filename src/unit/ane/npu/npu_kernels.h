/* npu_kernels.h: the loops of the software engine that an instruction set makes faster: one table for each,
 * all with the same results for rounding and conversion; sums may differ in the last bit of fp32. Numbers are
 * fp32 in memory, already rounded to what their type can hold. SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_NPU_KERNELS_H
#define SG_UNIT_ANE_NPU_KERNELS_H

#include <stddef.h>
#include <stdint.h>

/* Kernels of one instruction set. round16, widen and narrow give the same bits on every set.
 * exp_row and the tiles use fp32 and may differ in the last bit between sets. */
struct sg_npu_kernels {
    const char *name;
    uint32_t mr, nr;                     /* a tile of products is at most mr x nr */
    void (*round16)(float *p, size_t n); /* to the nearest fp16, ties to even; overflow to infinity */
    void (*widen)(const uint16_t *in, float *out, size_t n);
    void (*narrow)(const float *in, uint16_t *out, size_t n); /* of numbers that are fp16 already */
    void (*exp_row)(const float *in, float *out, size_t n);
    /* c[m <= mr][n <= nr] (rows ldc apart) = sum over k of a[k][mr] * b[k][nr]; b aligned to 64 bytes. */
    void (*tile)(const float *a, const float *b, size_t k, float *c, size_t ldc, uint32_t m, uint32_t n);
    /* The same with each four products added first and rounded to fp16. */
    void (*tile_rounded)(const float *a, const float *b, size_t k, float *c, size_t ldc, uint32_t m,
                         uint32_t n);
};

extern const struct sg_npu_kernels sg_npu_generic;
extern const struct sg_npu_kernels sg_npu_avx2; /* where the file is built */
extern const struct sg_npu_kernels sg_npu_avx512;
/* The best that this processor runs. */
const struct sg_npu_kernels *sg_npu_kernels_here(void);

#endif
