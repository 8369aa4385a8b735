/* kencode.h: encoders of the formats with super-blocks of 256, called by sg_quant_row.
 * SPDX-License-Identifier: MIT */
#ifndef SG_TENSOR_KENCODE_H
#define SG_TENSOR_KENCODE_H

#include <stdint.h>

/* n finite numbers, n a multiple of 256, to n / 256 blocks of 144 (Q4_K) or 210 (Q6_K) bytes. */
void sg_encode_q4_k(const float *src, uint64_t n, uint8_t *out);
void sg_encode_q6_k(const float *src, uint64_t n, uint8_t *out);

#endif
