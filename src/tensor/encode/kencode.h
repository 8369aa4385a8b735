/* kencode.h: encoders of the formats with super-blocks of 256, called by sg_quant_row.
 * SPDX-License-Identifier: MIT */
#ifndef SG_TENSOR_KENCODE_H
#define SG_TENSOR_KENCODE_H

#include "tensor/tensor.h"

/* n finite numbers, n a multiple of 256, to blocks of Q2_K, Q3_K, Q4_K, Q5_K or Q6_K. importance: [n], or NULL. */
void sg_encode_k(enum sg_storage s, const float *src, const float *importance, uint64_t n, uint8_t *out);
/* Weights w[n] of squared errors, of mean 1: the importance of a column times the magnitude of its number, which counts less
 * the smaller it is against the others of the block (as in llama.cpp). All 1 without an importance or if it is 0. */
void sg_error_weights(const float *x, const float *importance, uint32_t n, float *w);
/* Blocks of 32 with weights w[32]: 2 * half codes around 0, or `levels` codes from a minimum on. Returns the fp16 scale, and
 * the minimum, that the codes q belong to. */
float sg_encode_symmetric(const float *x, const float *w, int half, int q[32]);
float sg_encode_ranged(const float *x, const float *w, int levels, int q[32], float *low);

#endif
