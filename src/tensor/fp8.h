/* fp8.h: rows of SG_FP8, for tensor.c. SPDX-License-Identifier: MIT */
#ifndef SG_TENSOR_FP8_H
#define SG_TENSOR_FP8_H

#include "tensor/tensor.h"

/* Columns [from, from + n) of a logical row, as sg_tensor_row gives them. */
void sg_fp8_read(const struct sg_tensor *t, uint64_t row, uint64_t from, uint64_t n, float *out);

#endif
