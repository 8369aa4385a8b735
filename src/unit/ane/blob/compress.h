/* compress.h: fp32 weights into the storages of blob files: fp16 with a report of what did not fit, int8 with
 * a scale for each output channel, tables of 16 or 64 numbers with indices of 4 or 6 bits.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_COMPRESS_H
#define SG_UNIT_ANE_COMPRESS_H

#include "base/err.h"

/* What a conversion to fp16 met; counts add up over calls. Zero-initialise. */
struct sg_range_report {
    float largest;            /* of the finite inputs, absolute */
    uint64_t clamped, nans;   /* beyond +-65504 (infinities too); NaN became 0 */
    uint64_t subnormal, lost; /* nonzero below 2^-14: an M1 multiplies them as 0; nonzero that became 0 */
};
/* To nearest, ties to even; NaN gives 0, beyond the range the largest number. */
void sg_compress_fp16(const float *in, uint64_t n, uint16_t *out, struct sg_range_report *report);

/* out[rows, cols], scale[rows] fp16: w = scale * q, zero point 0. */
void sg_compress_int8(const float *in, uint64_t rows, uint64_t cols, int8_t *out, uint16_t *scale);

/* bits 4 or 6; table[2^bits] fp16, rising; packed[(n * bits + 7) / 8] indices, least significant bit first.
 * The table minimises the squared error (Lloyd's iteration over at most 2^17 of the numbers). EMEMORY. */
segue_status sg_compress_palette(const float *in, uint64_t n, uint32_t bits, uint16_t *table, uint8_t *packed,
                                 segue_error *err);
/* Index i of a packed row. */
static inline uint32_t sg_palette_index(const uint8_t *packed, uint64_t i, uint32_t bits)
{
    uint64_t at = i * bits;
    uint32_t shift = (uint32_t)(at & 7), two = packed[at >> 3];
    if (shift + bits > 8) two |= (uint32_t)packed[(at >> 3) + 1] << 8;
    return two >> shift & ((1u << bits) - 1);
}

#endif
