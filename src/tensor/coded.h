/* coded.h: reads the storage SG_CODED: codes with scales and zeros in the layouts of AWQ, GPTQ, compressed-tensors, block-scaled
 * FP8 and MLX's fp4 and fp8 modes; struct sg_coded in tensor.h describes them. Rows and columns are stored indices.
 * SPDX-License-Identifier: MIT */
#ifndef SG_TENSOR_CODED_H
#define SG_TENSOR_CODED_H

#include "tensor/tensor.h"

/* NULL, or what is wrong with the description. Covers everything that the other functions divide by or use as a size; rows
 * and cols are at least 1, and their product fits in 48 bits. */
const char *sg_coded_fault(const struct sg_tensor *t);
/* Bytes of codes, scales, zeros and order; 0 for absent ones. */
void sg_coded_extent(const struct sg_tensor *t, uint64_t bytes[4]);
/* As sg_tensor_regions. */
uint32_t sg_coded_regions(const struct sg_tensor *t, struct sg_region out[SG_REGIONS]);
/* Columns [from, from + n) as fp32. */
void sg_coded_row(const struct sg_tensor *t, uint64_t row, uint64_t from, uint64_t n, float *out);
/* 1: the codes (E4M3 has NaN) and scales of the row are finite. */
int sg_coded_finite(const struct sg_tensor *t, uint64_t row);
/* A hash of the description, without pointers; 0 for other storages. */
uint64_t sg_coded_key(const struct sg_tensor *t);
/* Columns that share a scale for sure: 32 or 16; 0: the numbers have no form as integers times scale plus offset. */
uint32_t sg_coded_uniform(const struct sg_tensor *t);
/* Columns [col, col + 32), col a multiple of 32, as unsigned integers: value = d * q + m, with d[0], m[0] for the first 16.
 * Only where sg_coded_uniform is not 0. */
void sg_coded_block(const struct sg_tensor *t, uint64_t row, uint64_t col, uint8_t q[32], float d[2], float m[2]);

#endif
