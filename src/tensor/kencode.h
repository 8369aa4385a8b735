/* kencode.h: encoders of the formats with super-blocks of 256, called by sg_quant_row.
 * SPDX-License-Identifier: MIT */
#ifndef SG_TENSOR_KENCODE_H
#define SG_TENSOR_KENCODE_H

#include "tensor/tensor.h"

/* n finite numbers, n a multiple of 256, to blocks of Q2_K, Q3_K, Q4_K, Q5_K or Q6_K. */
void sg_encode_k(enum sg_storage s, const float *src, uint64_t n, uint8_t *out);

#endif
