/* num.h: number formats that C lacks, and little-endian loads from unaligned bytes. Values are integer storage;
 * arithmetic is fp32. Rounding is to nearest, ties to even.
 * SPDX-License-Identifier: MIT */
#ifndef SG_BASE_NUM_H
#define SG_BASE_NUM_H

#include <stdint.h>
#include <string.h>

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

static inline float sg_f32_of_bf16(uint16_t h) { return sg_f32_of_bits((uint32_t)h << 16); }

static inline uint16_t sg_bf16_of_f32(float f)
{
    uint32_t u = sg_bits_of_f32(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 64); /* keep NaN a NaN */
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

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
    if (u < 0x38800000u) {                                     /* below 2^-14: let fp32 addition round */
        float g = sg_f32_of_bits(u) + 0.5f;
        return (uint16_t)(sign | (sg_bits_of_f32(g) - 0x3f000000u));
    }
    u += 0xfffu + ((u >> 13) & 1u);
    return (uint16_t)(sign | ((u - 0x38000000u) >> 13));
}

/* e4m3: 4 bits of exponent (bias 7), 3 of mantissa; no infinity, 0x7f and 0xff are NaN, 448 is the largest. */
static inline float sg_f32_of_e4m3(uint8_t c)
{
    uint32_t sign = (uint32_t)(c & 0x80u) << 24, rest = c & 0x7fu;
    if (rest == 0x7fu) return sg_f32_of_bits(sign | 0x7fc00000u);
    if (rest >= 8) return sg_f32_of_bits(sign | ((rest << 20) + 0x3c000000u));
    float tiny = (float)rest * 0.001953125f; /* 2^-9 */
    return sg_f32_of_bits(sign | sg_bits_of_f32(tiny));
}

/* Beyond 448, infinity too, becomes 448. Signed and without branches, so that loops of it vectorise anywhere. */
static inline uint32_t sg_e4m3_of_f32(float f)
{
    int32_t u = (int32_t)sg_bits_of_f32(f), rest = u & 0x7fffffff, a = rest < 0x43e00000 ? rest : 0x43e00000;
    float g = sg_f32_of_bits((uint32_t)a) + 16384.0f; /* below 2^-6: fp32 addition rounds to multiples of 2^-9 */
    int32_t small = (int32_t)sg_bits_of_f32(g) - 0x46800000, large = (a + 0x7ffff + (a >> 20 & 1) - 0x3c000000) >> 20;
    int32_t tiny = -(a < 0x3c800000), none = -(rest > 0x7f800000);
    return (uint32_t)((u >> 24 & 0x80) | (small & tiny) | (large & ~tiny) | (0x7f & none));
}

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
