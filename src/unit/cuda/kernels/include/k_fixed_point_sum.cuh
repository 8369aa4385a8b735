/* k_fixed_point_sum.cuh: x between two windows of steps by ranks (k_cluster_ops.cuh): a word a column, to which each rank adds its part as a
 * fixed-point number. A sum of integers is the same in any order. Bits 0 to 4 count the ranks that have added, so whoever reads
 * the word sees by itself whether it is whole; the next 54 are the sum; bits 59 to 63 count the parts that were too large, which
 * are in the column's far word, of a coarser unit. What is too large for that, or no number, makes x no number.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_K_WORD_CUH
#define SG_UNIT_CUDA_K_WORD_CUH

#include "k_common.cuh"

/* 1 in fixed point. Parts are below 2^49, so up to CK_RANK_MOST of them are no more than the 54 bits. */
static const float near_one = 17179869184.0f, near_most = 32768.0f, far_one = 2048.0f, far_most = 274877906944.0f;
static const uint64_t too_large = 1ull << 59;

__device__ __forceinline__ void add_now(uint64_t *p, uint64_t w)
{
    asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(p), "l"(w) : "memory");
}
__device__ __forceinline__ uint64_t load_word(const uint64_t *p)
{
    uint64_t w;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(w) : "l"(p) : "memory");
    return w;
}
__device__ __forceinline__ uint64_t to_fixed(float v, float one) { return (uint64_t)__float2ll_rn(v * one) << 5; }
__device__ __forceinline__ float of_fixed(uint64_t w, float one) { return __ll2float_rn((int64_t)(w << 5) >> 10) * (1 / one); }
__device__ __forceinline__ uint32_t ranks_in(uint64_t w) { return (uint32_t)w & 31; }
/* the sum may borrow from them */
__device__ __forceinline__ uint32_t far_in(uint64_t w) { return ((uint32_t)(w >> 32) + (1u << 26)) >> 27; }

/* far: from a word to its far word. */
__device__ __forceinline__ void add_word(uint64_t *p, uint32_t far, float v)
{
    uint64_t w = too_large;
    if (fabsf(v) < near_most)
        w = to_fixed(v, near_one);
    else
        add_now(p + far, (fabsf(v) < far_most ? to_fixed(v, far_one) : too_large) + 1);
    add_now(p, w + 1);
}
/* The number, less what is far. */
__device__ __forceinline__ float near_of(uint64_t w) { return of_fixed(w, near_one); }
/* The same of a word that has nothing far: without its count it is 32 times the sum, with the sum's sign. */
__device__ __forceinline__ float all_near(uint64_t w) { return __ll2float_rn((int64_t)(w & ~31ull)) * (1 / (32 * near_one)); }
/* What is far of n parts: they will come, if they are not there. */
__device__ __forceinline__ float far_of(const uint64_t *p, uint32_t n)
{
    uint64_t w = load_word(p);
    while (ranks_in(w) != n) w = load_word(p);
    return far_in(w) ? __uint_as_float(0x7fffffff) : of_fixed(w, far_one);
}

#endif
