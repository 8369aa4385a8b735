/* fp8.h: the arithmetic of the storage SG_FP8: one row of fp32 numbers to e4m3 codes with a
 * power-of-two scale. Works on arrays only; tensor.c reads the rows.
 * SPDX-License-Identifier: MIT */
#ifndef SG_TENSOR_FP8_H
#define SG_TENSOR_FP8_H

#include <stdint.h>

/* How a row is scaled: code = e4m3(x * inverse), value = code * scale. */
struct sg_fp8_scale {
    float scale, inverse;        /* powers of two; both NaN when the row has a number that is not finite */
};

/* The largest magnitude of x[n] as the bits of an fp32 without its sign. Bit patterns have the
 * order of the magnitudes they encode, with infinity and then NaN above all finite numbers. 0 when
 * n is 0. */
uint32_t sg_fp8_max_bits(const float *x, uint64_t n);
/* The scale of a row whose largest magnitude has these bits. */
struct sg_fp8_scale sg_fp8_scale_of(uint32_t max_bits);
/* codes[n] of x[n]. inverse must be finite. */
void sg_fp8_encode(const float *x, uint64_t n, float inverse, uint8_t *codes);
/* Replace x[n] by what its codes decode to. */
void sg_fp8_round(float *x, uint64_t n, struct sg_fp8_scale s);

#endif
