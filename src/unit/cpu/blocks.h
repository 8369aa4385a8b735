/* blocks.h: 32 columns of a stored row as unsigned integers with scale and offset. The integers are
 * those of the file, so packing never rounds a second time.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CPU_BLOCKS_H
#define SG_UNIT_CPU_BLOCKS_H

#include "tensor/tensor.h"
#include "unit/cpu/kernels/kernels.h"

/* Value = q*d + m, with d[0], m[0] for columns 0-15 and d[1], m[1] for 16-31. half_d, half_m: fp16 bits
 * of the file, for packed kinds that store them. Only the fields that the packed kind uses are set. */
struct sg_block32 {
    uint8_t q[32];
    float d[2], m[2];
    uint16_t half_d, half_m;
    /* Q4_K: scale and minimum of the 32 columns; Q6_K: signed scales of 16 columns each */
    uint8_t scale[2], min;
};
/* The packed kind that represents this storage without loss, when columns are consecutive as stored. */
enum sg_pack sg_block_kind(const struct sg_tensor *t);
/* Reads columns [32*at, 32*at + 32) of the stored row. `at` and the row are in file order, before any
 * permutation. */
void sg_block_read(const struct sg_tensor *t, uint64_t stored_row, uint64_t at, struct sg_block32 *out);

#endif
