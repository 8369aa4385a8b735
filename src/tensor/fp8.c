/* fp8.c: see fp8.h. A row's scale is the least power of two with which no number of the row exceeds
 * 448, the largest e4m3 value. A power of two has two advantages over the exact quotient max / 448.
 * Multiplying by it is exact, so a decoded weight is also a bf16 number. And it costs little
 * accuracy, because e4m3 is a floating-point format: over all matrices of SmolLM2 the rms error is
 * 2.65 % of a row's norm, against 2.59 % with the exact quotient.
 * SPDX-License-Identifier: MIT */
#include "tensor/fp8.h"

#include <math.h>

#include "base/num.h"

/* BLOCK: numbers encoded at a time. MIN_EXPONENT: of the scale; the smallest code, 2^-9, times
 * 2^-117 is the smallest normal fp32 number, 2^-126. */
enum { BLOCK = 256, MIN_EXPONENT = -117 };

uint32_t sg_fp8_max_bits(const float *x, uint64_t n)
{
    uint32_t max = 0;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t u = sg_bits_of_f32(x[i]) & 0x7fffffffu;
        max = u > max ? u : max;
    }
    return max;
}

/* 2^e for -126 <= e <= 127. */
static float power_of_two(int e) { return sg_f32_of_bits((uint32_t)(e + 127) << 23); }

/* 448 = 1.75 * 2^8: the exponent of the maximum minus 8, plus 1 if the mantissa of the maximum
 * exceeds 1.75, whose mantissa bits are 0x600000. */
struct sg_fp8_scale sg_fp8_scale_of(uint32_t max_bits)
{
    if (max_bits >= 0x7f800000u) return (struct sg_fp8_scale){NAN, NAN};
    int e = (int)(max_bits >> 23) - 127 - 8 + ((max_bits & 0x7fffffu) > 0x600000u);
    if (e < MIN_EXPONENT) e = MIN_EXPONENT;
    return (struct sg_fp8_scale){.scale = power_of_two(e), .inverse = power_of_two(-e)};
}

/* In two loops over a small buffer: compilers vectorise the conversion to 32-bit codes and the
 * narrowing to bytes separately, but not both in one loop. */
void sg_fp8_encode(const float *x, uint64_t n, float inverse, uint8_t *codes)
{
    uint32_t block[BLOCK];
    for (uint64_t at = 0; at < n; at += BLOCK) {
        uint64_t count = n - at < BLOCK ? n - at : BLOCK;
        for (uint64_t i = 0; i < count; i++) block[i] = sg_e4m3_of_f32(x[at + i] * inverse);
        for (uint64_t i = 0; i < count; i++) codes[at + i] = (uint8_t)block[i];
    }
}

/* With a scale of NaN all numbers become NaN. */
void sg_fp8_round(float *x, uint64_t n, struct sg_fp8_scale s)
{
    for (uint64_t i = 0; i < n; i++) x[i] = s.scale * sg_f32_of_e4m3((uint8_t)sg_e4m3_of_f32(x[i] * s.inverse));
}
