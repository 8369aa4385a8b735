/* sample_math.h: the arithmetic of token sampling, shared by sample.c and units that sample on a device. Every function gives
 * the same bits everywhere: fp32 and double operations are rounded one by one (no fused multiply-add), and probabilities are
 * integers, whose sums do not depend on the order. So a device may sum in parallel.
 *
 * A *weight* is exp(logit - highest logit) at some temperature in units of 2^-40, 24 significant bits; weights below the unit are
 * 0. Sums of up to 2^23 weights fit into 64 bits. A *candidate* is a logit and a token id packed into 64 bits, so that ascending
 * candidates are descending logits, and lower ids first on ties.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_SAMPLE_MATH_H
#define SG_UNIT_SAMPLE_MATH_H

#include <stdint.h>

#ifdef __CUDACC__
#define SG_MATH static __device__ __forceinline__
#define SG_MUL(a, b) __fmul_rn(a, b)
#define SG_ADD(a, b) __fadd_rn(a, b)
#define SG_DIV(a, b) __fdiv_rn(a, b)
#define SG_MUL_DOUBLE(a, b) __dmul_rn(a, b)
#define SG_BITS(x) __float_as_uint(x)
#define SG_FLOAT(x) __uint_as_float(x)
#else
#include "base/num.h"
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF /* gcc does not contract with -std=c11 */
#endif
#define SG_MATH static inline
#define SG_MUL(a, b) ((a) * (b))
#define SG_ADD(a, b) ((a) + (b))
#define SG_DIV(a, b) ((a) / (b))
#define SG_MUL_DOUBLE(a, b) ((a) * (b))
#define SG_BITS(x) sg_bits_of_f32(x)
#define SG_FLOAT(x) sg_f32_of_bits(x)
#endif

#define SG_WEIGHT_ONE 0x1p40f         /* weight of the best token */
#define SG_FLOAT_MAX 3.402823466e+38f /* largest finite fp32 number */
enum { SG_MATCH_MAX = 1024 };         /* DRY: longer repetitions count as this long */

/* Flipping the bits of a negative float, and only the sign's complement of a positive one, turns order of floats into order of
 * integers; here reversed. -0 becomes 0, so that the two tie. */
SG_MATH uint32_t sg_order_of(float logit)
{
    uint32_t u = SG_BITS(SG_ADD(logit, 0.0f));
    return u & 0x80000000u ? u : ~(u | 0x80000000u);
}

SG_MATH float sg_logit_of(uint32_t order) { return SG_FLOAT(order & 0x80000000u ? order : ~order & 0x7fffffffu); }

/* Finite inputs may overflow in a step; infinity minus infinity would make all weights NaN. */
SG_MATH float sg_below_infinity(float x) { return x < SG_FLOAT_MAX ? x : SG_FLOAT_MAX; }

/* Weight of a logit that is `below` (0 or negative) relative to the highest one; inverse: 1 / temperature. 2^y by a polynomial of
 * the fractional part of y with relative error 1e-7, then a shift by its integer part. */
SG_MATH uint64_t sg_weight_of(float below, float inverse)
{
    float y = SG_MUL(SG_MUL(below, inverse), 0x1.715476p+0f);
    if (!(y > -41.0f)) return 0;
    int k = (int)y;
    if ((float)k > y) k--;
    float f = SG_ADD(y, (float)-k), p = 0x1.b4d1dep-13f;
    p = SG_ADD(SG_MUL(p, f), 0x1.4ca4cep-10f);
    p = SG_ADD(SG_MUL(p, f), 0x1.3c4a8ap-7f);
    p = SG_ADD(SG_MUL(p, f), 0x1.c69f6ap-5f);
    p = SG_ADD(SG_MUL(p, f), 0x1.ebfc40p-3f);
    p = SG_ADD(SG_MUL(p, f), 0x1.62e430p-1f);
    p = SG_ADD(SG_MUL(p, f), 1.0f);
    return (uint64_t)(uint32_t)SG_MUL(p, 0x1p23f) << 17 >> -k;
}

/* 1 / temperature, finite also for the smallest temperatures. */
SG_MATH float sg_inverse_of(float temperature) { return sg_below_infinity(SG_DIV(1.0f, temperature)); }

/* weight x |below|, rounded down: the sum of these over the sum of weights is the mean of |below|. The product is exact,
 * since both factors have 24 significant bits; it is below 2^40. */
SG_MATH uint64_t sg_weighted_depth(uint64_t weight, float below)
{
    return weight ? (uint64_t)SG_MUL_DOUBLE((double)weight, (double)-below) : 0;
}

/* Distance of a token's surprise from the mean surprise; its bits have the order of distances. */
SG_MATH uint32_t sg_distance_of(double mean_depth, float below)
{
    float d = (float)((double)-below - mean_depth);
    return SG_BITS(d) & 0x7fffffffu;
}

/* The part p of a sum of weights, at least 1. */
SG_MATH uint64_t sg_part_of(float p, uint64_t sum)
{
    uint64_t part = (uint64_t)SG_MUL_DOUBLE((double)p, (double)sum);
    return part ? part : 1;
}

/* Where a draw falls in [0, sum): the token is the first whose cumulative weight is greater. */
SG_MATH uint64_t sg_draw_at(float uniform, uint64_t sum) { return (uint64_t)SG_MUL_DOUBLE((double)uniform, (double)sum); }

/* The smallest weight that min_p keeps. */
SG_MATH uint64_t sg_min_weight(float min_p) { return (uint64_t)SG_MUL(min_p < 1 ? min_p : 1.0f, SG_WEIGHT_ONE); }

/* Repetition penalty (1: none), then frequency and presence penalty of a token that occurs `count` times. */
SG_MATH float sg_penalized(float logit, float repeat, float frequency, float presence, uint32_t count)
{
    if (repeat > 0 && repeat != 1) logit = logit <= 0 ? SG_MUL(logit, repeat) : SG_DIV(logit, repeat);
    return sg_below_infinity(SG_ADD(logit, -SG_ADD(SG_MUL((float)count, frequency), presence)));
}

/* DRY: multiplier x base^(length - allowed), at most 1e30. By multiplication, since pow() is a libm call. */
SG_MATH float sg_dry_penalty(float multiplier, double base, uint32_t allowed, uint32_t length)
{
    double penalty = (double)multiplier;
    for (uint32_t k = allowed; k < length && penalty < 1e30; k++) penalty = SG_MUL_DOUBLE(penalty, base);
    return (float)(penalty < 1e30 ? penalty : 1e30);
}

/* Philox4x32-10: ten rounds of two 32x32 multiplications each; the key is bumped by Weyl constants between rounds (Salmon et al.,
 * "Parallel random numbers: as easy as 1, 2, 3", 2011). */
SG_MATH void sg_philox_rounds(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3], k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)c0 * 0xD2511F53u, b = (uint64_t)c2 * 0xCD9E8D57u;
        uint32_t n0 = (uint32_t)(b >> 32) ^ c1 ^ k0, n2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c0 = n0;
        c1 = (uint32_t)b;
        c2 = n2;
        c3 = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* 24 bits: every value is exact in fp32, and the result is below 1. */
SG_MATH float sg_uniform_of(uint64_t seed, uint64_t position)
{
    uint32_t counter[4] = {(uint32_t)position, (uint32_t)(position >> 32), 0, 0}, word[4];
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    sg_philox_rounds(counter, key, word);
    return SG_MUL((float)(word[0] >> 8), 0x1p-24f);
}

#endif
