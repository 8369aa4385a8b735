/* num.h: conversions between fp32 and bf16, fp16 and fp8 e4m3, and little-endian loads from
 * unaligned bytes. Narrow formats are held as integers with the bits of the format; arithmetic is
 * done in fp32. Conversions round to nearest, ties to even, and keep NaN a NaN.
 * SPDX-License-Identifier: MIT */
#ifndef SG_BASE_NUM_H
#define SG_BASE_NUM_H

#include <stdint.h>
#include <string.h>

/* Reinterpret 32 bits as a float and back, without undefined behaviour. */
static inline float sg_f32_of_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static inline uint32_t sg_bits_of_f32(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

/* bf16 is the upper half of an fp32. Adding 0x7fff plus the lowest kept bit rounds to nearest even. */
static inline float sg_f32_of_bf16(uint16_t h) { return sg_f32_of_bits((uint32_t)h << 16); }

static inline uint16_t sg_bf16_of_f32(float f)
{
    uint32_t u = sg_bits_of_f32(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 64); /* quiet NaN; rounding could carry into infinity */
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

/* fp16: 5 exponent bits (bias 15), 10 mantissa bits. Normal numbers need the exponent rebased by
 * 112 = 127 - 15, which is 0x38000000 in fp32; subnormal ones are multiples of 2^-24. */
static inline float sg_f32_of_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, rest = h & 0x7fffu;
    if (rest >= 0x7c00u) return sg_f32_of_bits(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
    if (rest >= 0x0400u) return sg_f32_of_bits(sign | ((rest << 13) + 0x38000000u));
    float tiny = (float)rest * 5.9604644775390625e-8f; /* 2^-24 */
    return sg_f32_of_bits(sign | sg_bits_of_f32(tiny));
}

static inline uint16_t sg_f16_of_f32(float f)
{
    uint32_t u = sg_bits_of_f32(f), sign = (u >> 16) & 0x8000u;
    u &= 0x7fffffffu;
    if (u > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
    if (u >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* rounds to infinity */
    if (u < 0x38800000u) {   /* subnormal in fp16 (below 2^-14): adding 0.5 makes fp32 round to multiples of 2^-24 */
        float g = sg_f32_of_bits(u) + 0.5f;
        return (uint16_t)(sign | (sg_bits_of_f32(g) - 0x3f000000u));
    }
    u += 0xfffu + ((u >> 13) & 1u);
    return (uint16_t)(sign | ((u - 0x38000000u) >> 13));
}

/* e4m3 (OCP FP8, the variant without infinity): 4 exponent bits (bias 7), 3 mantissa bits. 0x7f and
 * 0xff are NaN; the largest magnitude is 448; subnormal numbers are multiples of 2^-9. */
static inline float sg_f32_of_e4m3(uint8_t c)
{
    uint32_t sign = (uint32_t)(c & 0x80u) << 24, rest = c & 0x7fu;
    if (rest == 0x7fu) return sg_f32_of_bits(sign | 0x7fc00000u);
    if (rest >= 8) return sg_f32_of_bits(sign | ((rest << 20) + 0x3c000000u));
    float tiny = (float)rest * 0.001953125f; /* 2^-9 */
    return sg_f32_of_bits(sign | sg_bits_of_f32(tiny));
}

/* Saturates: larger magnitudes and infinity become 448. Computes the subnormal and the normal
 * result and selects with masks in signed integers, without branches, so that compilers vectorise
 * loops over it on every target. */
static inline uint32_t sg_e4m3_of_f32(float f)
{
    int32_t u = (int32_t)sg_bits_of_f32(f), rest = u & 0x7fffffff, a = rest < 0x43e00000 ? rest : 0x43e00000;
    float g = sg_f32_of_bits((uint32_t)a) + 16384.0f; /* below 2^-6: fp32 addition rounds to multiples of 2^-9 */
    int32_t small = (int32_t)sg_bits_of_f32(g) - 0x46800000, large = (a + 0x7ffff + (a >> 20 & 1) - 0x3c000000) >> 20;
    int32_t tiny = -(a < 0x3c800000), none = -(rest > 0x7f800000);
    return (uint32_t)((u >> 24 & 0x80) | (small & tiny) | (large & ~tiny) | (0x7f & none));
}

/* Little-endian loads; p needs no alignment, and the host may be big endian. */
static inline uint16_t sg_le16(const void *p)
{
    const uint8_t *b = (const uint8_t *)p;
    return (uint16_t)(b[0] | b[1] << 8);
}

static inline uint32_t sg_le32(const void *p)
{
    const uint8_t *b = (const uint8_t *)p;
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

static inline uint64_t sg_le64(const void *p)
{
    return (uint64_t)sg_le32(p) | (uint64_t)sg_le32((const uint8_t *)p + 4) << 32;
}

#endif
