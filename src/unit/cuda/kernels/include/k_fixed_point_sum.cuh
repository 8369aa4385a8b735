/* k_fixed_point_sum.cuh: the residual stream between two fused cluster kernels (k_cluster_ops.cuh),
 * one 64-bit word per column in global memory, to which every cluster adds its part with one
 * red.add. Integer addition is associative, so the sum does not depend on the order of arrival.
 * Layout of a word: bits 0 to 4 count the clusters that have added, so a reader sees from the word
 * alone whether it is complete; bits 5 to 58 are the sum in units of 2^-34; bits 59 to 63 count
 * parts that were too large for it. Those were added to the column's second, coarse word, in units
 * of 2^-11. A part too large even for that, or NaN, makes the result NaN. Words must be zero before
 * the first addition.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_K_FIXED_POINT_SUM_CUH
#define SG_UNIT_CUDA_K_FIXED_POINT_SUM_CUH

#include "k_common.cuh"

/* Units and limits of both words. Fine parts are below 2^49, so up to CK_CLUSTERS_MAX of them fit
 * into 54 bits. */
static const float fine_one = 17179869184.0f, fine_max = 32768.0f, coarse_one = 2048.0f, coarse_max = 274877906944.0f;
static const uint64_t overflow_unit = 1ull << 59;

__device__ __forceinline__ void red_add_u64(uint64_t *p, uint64_t w)
{
    asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(p), "l"(w) : "memory");
}
__device__ __forceinline__ uint64_t load_sum_word(const uint64_t *p)
{
    uint64_t w;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(w) : "l"(p) : "memory");
    return w;
}
/* Conversion between a part and the sum bits of a word; `one` is the value of 1.0 in that unit. */
__device__ __forceinline__ uint64_t to_fixed(float v, float one) { return (uint64_t)__float2ll_rn(v * one) << 5; }
__device__ __forceinline__ float from_fixed(uint64_t w, float one) { return __ll2float_rn((int64_t)(w << 5) >> 10) * (1 / one); }
__device__ __forceinline__ uint32_t addends_in(uint64_t w) { return (uint32_t)w & 31; }
/* Number of coarse parts; the addition corrects the borrow of a negative sum. */
__device__ __forceinline__ uint32_t coarse_in(uint64_t w) { return ((uint32_t)(w >> 32) + (1u << 26)) >> 27; }

/* Adds a part to word p; coarse: distance in words from p to its coarse word. */
__device__ __forceinline__ void add_fixed_point(uint64_t *p, uint32_t coarse, float v)
{
    uint64_t w = overflow_unit;
    if (fabsf(v) < fine_max)
        w = to_fixed(v, fine_one);
    else
        red_add_u64(p + coarse, (fabsf(v) < coarse_max ? to_fixed(v, coarse_one) : overflow_unit) + 1);
    red_add_u64(p, w + 1);
}
/* Value of the fine part. */
__device__ __forceinline__ float fine_value(uint64_t w) { return from_fixed(w, fine_one); }
/* Value of a sum without a coarse part: without its count the word is 32 times the signed sum. */
__device__ __forceinline__ float fine_value_only(uint64_t w)
{
    return __ll2float_rn((int64_t)(w & ~31ull)) * (1 / (32 * fine_one));
}
/* Value of the coarse word after n parts; polls until they have arrived. */
__device__ __forceinline__ float coarse_value(const uint64_t *p, uint32_t n)
{
    uint64_t w = load_sum_word(p);
    while (addends_in(w) != n) w = load_sum_word(p);
    return coarse_in(w) ? __uint_as_float(0x7fffffff) : from_fixed(w, coarse_one);
}

#endif
