/* exp.h: e^x, the logistic function and tanh in fp32 without branches, so that compilers make vector code of loops over them.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_EXP_H
#define SG_UNIT_EXP_H

#include "base/num.h"

/* e^x within 2 ulp for -87 <= x <= 88; 0 below and e^88 above. NaN stays NaN. Cody-Waite reduction x =
 * n ln 2 + r with ln 2 in two parts, a polynomial of degree 5 in r (Cephes expf), and 2^n inserted into
 * the exponent bits. */
static inline float sg_exp(float x)
{
    float y = x > 88.0f ? 88.0f : x;
    y = y < -87.0f ? -87.0f : y;
    float t = y * 1.44269504088896341f + 12582912.0f; /* 1.5 * 2^23: rounds to an integer n in the low mantissa bits */
    float n = t - 12582912.0f;
    float r = y - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    float e = p * (r * r) + r + 1.0f;
    uint32_t scale = (sg_bits_of_f32(t) - 0x4b400000u + 127u) << 23;
    e *= sg_f32_of_bits(scale);
    return x < -87.0f ? 0.0f : e;
}

static inline float sg_sigmoid(float x) { return 1.0f / (1.0f + sg_exp(-x)); }
/* tanh from e^2x; a Taylor polynomial of degree 7 where |x| < 0.1. */
static inline float sg_tanh(float x)
{
    float y = x < -9.0f ? -9.0f : x > 9.0f ? 9.0f : x;
    float e = sg_exp(2.0f * y), big = 1.0f - 2.0f / (e + 1.0f);
    float z = y * y, small = y * (1.0f + z * (-0.333333333f + z * (0.133333333f - z * 0.0539682540f)));
    return z < 0.01f ? small : big; /* 1 - 2/(e + 1) loses precision near zero */
}

#endif
