/* blocks.h: one run of 32 columns of a stored row as unsigned numbers with scale and offset: the integers of
 * the file itself, never rounded again.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CPU_BLOCKS_H
#define SG_UNIT_CPU_BLOCKS_H

#include "tensor/tensor.h"
#include "unit/cpu/kernels/kernels.h"

/* Value = q*d + m; halves: d and m of columns 0-15 and of 16-31. half_d, half_m: the file's fp16 bits where
 * the packed kind keeps them. */
struct sg_block32 {
    uint8_t q[32];
    float d[2], m[2];
    uint16_t half_d, half_m;
    uint8_t scale[2], min;           /* Q4_K, Q6_K (signed): of each 32, of each 16 columns */
};
/* The kind that holds this storage without loss, in columns that follow each other as stored. */
enum sg_pack sg_block_kind(const struct sg_tensor *t);
/* Columns [32*at, 32*at + 32) of the stored row. */
void sg_block_read(const struct sg_tensor *t, uint64_t stored_row, uint64_t at, struct sg_block32 *out);

#endif
