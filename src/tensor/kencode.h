/* kencode.h: the encoders of the super-block storages, behind sg_quant_row.
 * SPDX-License-Identifier: MIT */
#ifndef SG_TENSOR_KENCODE_H
#define SG_TENSOR_KENCODE_H

#include <stdint.h>

/* n: a multiple of 256. Finite numbers. */
void sg_encode_q4_k(const float *src, uint64_t n, uint8_t *out);
void sg_encode_q6_k(const float *src, uint64_t n, uint8_t *out);

#endif
