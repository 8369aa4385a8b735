/* compress.h: converts fp32 weights to the formats of blob files: fp16 with a report of values that do not
 * fit, int8 with one scale per output channel, and palettes of 2 to 256 values with indices of 1 to 8 bits.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_COMPRESS_H
#define SG_UNIT_ANE_COMPRESS_H

#include "base/err.h"

/* Statistics of conversions to fp16, accumulated over calls. Initialize with zeros. */
struct sg_range_report {
    float largest;            /* largest magnitude of the finite inputs */
    uint64_t clamped, nans;   /* values beyond +-65504, including infinities; NaNs, which become 0 */
    uint64_t subnormal, lost; /* results below 2^-14, which M1 reads as 0 in products; nonzero values that became 0 */
    double error, size;       /* sums of the magnitudes of rounding errors and of the finite inputs */
    double flushed;           /* sum of the magnitudes of the subnormal results */
};
/* Rounds to nearest, ties to even. NaN becomes 0, values beyond the range +-65504: an infinity or NaN among
 * the weights would spread to all results. report may be NULL. */
void sg_compress_fp16(const float *in, uint64_t n, uint16_t *out, struct sg_range_report *report);

/* in[rows][cols] to out[rows][cols] and scale[rows] (fp16), with w = scale * q and zero point 0. NaN and
 * infinities become 0. */
void sg_compress_int8(const float *in, uint64_t rows, uint64_t cols, int8_t *out, uint16_t *scale);

/* Palette of in[n]: table[2^bits] (fp16, ascending) and packed[(n * bits + 7) / 8] indices, least
 * significant bit first. bits: 1 to 8. The table minimizes the squared error by Lloyd's algorithm on a
 * sample of at most 2^17 values. EMEMORY. */
segue_status sg_compress_palette(const float *in, uint64_t n, uint32_t bits, uint16_t *table, uint8_t *packed,
                                 segue_error *err);
/* Index i of packed indices. An index may span two bytes. */
static inline uint32_t sg_palette_index(const uint8_t *packed, uint64_t i, uint32_t bits)
{
    uint64_t at = i * bits;
    uint32_t shift = (uint32_t)(at & 7), two = packed[at >> 3];
    if (shift + bits > 8) two |= (uint32_t)packed[(at >> 3) + 1] << 8;
    return two >> shift & ((1u << bits) - 1);
}

#endif
