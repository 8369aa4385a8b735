/* k_rank8.cuh: rows of Q8_0 in the products of a rank (k_rank.cuh): int8 becomes fp16, exactly, x is two numbers of fp16 (together
 * 22 bits). A scale holds for a block of 32 columns of a row, so a product never mixes blocks: lane (g, t) loads 8 bytes of rows g
 * and g + 8, four lanes have a block, and two products from zero on do it, in any order of columns that x has as well.
 *
 * Rows begin at the same bank. So that there are no bank conflicts, row g takes the blocks l = 0 to 3 of a group of four (128 columns)
 * in the order l ^ (g & 3); column 2 j + part of the other operand has that part of x in the order l ^ j. So what row g, and g + 8,
 * is about is in columns 2 (g & 3) and the next, both in lane t = g & 3; what other lanes have is about nothing.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_K_RANK8_CUH
#define SG_UNIT_CUDA_K_RANK8_CUH

#include "k_bulk.cuh"

#if __CUDA_ARCH__ >= 900

enum { GROUP8 = 128 /* columns */, OWNERS8 = 256 };

/* Part i of a number is fp16 of what is left of it divided by this, so that numbers up to 2.7e8 fit; what part 0 does not hold of small
 * ones, part 1 does. */
__device__ __forceinline__ constexpr float scale_of_fp16(int i) { return i == 0 ? 4096.0f : i == 1 ? 2.0f : 1.0f / 1024; }

/* Four int8 as two pairs of fp16: 1024 + u is the fp16 0x6400 | u. */
__device__ __forceinline__ void widen(uint32_t w, uint32_t &first, uint32_t &second)
{
    const __half2 zero = __half2half2(__ushort_as_half(0x6480)); /* 1024 + 128 */
    w ^= 0x80808080u;
    uint32_t a = __byte_perm(w, 0x64646464u, 0x4140), b = __byte_perm(w, 0x64646464u, 0x4342);
    __half2 x = __hsub2(*reinterpret_cast<const __half2 *>(&a), zero), y = __hsub2(*reinterpret_cast<const __half2 *>(&b), zero);
    first = *reinterpret_cast<const uint32_t *>(&x), second = *reinterpret_cast<const uint32_t *>(&y);
}

/* The scales of a group's four blocks, in the order in which the row takes them. */
__device__ __forceinline__ void order_scales(uint2 s, uint32_t mine, float (&out)[4])
{
    uint32_t swap = mine & 1 ? 0x1032 : 0x3210, a = __byte_perm(mine & 2 ? s.y : s.x, 0, swap), b = __byte_perm(mine & 2 ? s.x : s.y, 0, swap);
    float2 low = __half22float2(*reinterpret_cast<const __half2 *>(&a)), high = __half22float2(*reinterpret_cast<const __half2 *>(&b));
    out[0] = low.x, out[1] = low.y, out[2] = high.x, out[3] = high.y;
}

/* Group `group` of x for this lane; zeros where there is none. */
__device__ __forceinline__ void take8(uint32_t parts, uint32_t pitch, uint32_t group, bool there_is, uint4 (*x)[2])
{
    uint32_t g = (threadIdx.x & 31) >> 2, from = parts + (g & 1) * pitch + group * 2 * GROUP8 + (threadIdx.x & 3) * 16;
#pragma unroll
    for (int l = 0; l < 4; l++) x[l / 2][l % 2] = there_is ? shared_piece(from + (l ^ g >> 1) * 64) : make_uint4(0, 0, 0, 0);
}

/* A group of rows g and g + 8: low, high: the lane's 8 bytes of their block 0; *_scales: four scales. */
__device__ __forceinline__ void multiply8(uint32_t low, uint32_t high, uint32_t low_scales, uint32_t high_scales, const uint4 (*x)[2],
                                               float (&acc)[4])
{
    uint32_t mine = threadIdx.x >> 2 & 3;
    uint2 w[4], v[4];
    float s[4], r[4];
#pragma unroll
    for (int l = 0; l < 4; l++) w[l] = shared_two(low + (l ^ mine) * 32), v[l] = shared_two(high + (l ^ mine) * 32);
    order_scales(shared_two(low_scales), mine, s);
    order_scales(shared_two(high_scales), mine, r);
#pragma unroll
    for (int l = 0; l < 4; l++) {
        uint32_t first[4], second[4];
        float c[4] = {0, 0, 0, 0};
        widen(w[l].x, first[0], first[2]), widen(v[l].x, first[1], first[3]);
        widen(w[l].y, second[0], second[2]), widen(v[l].y, second[1], second[3]);
        mma<0>(c, first, x[l / 2][l % 2].x, x[l / 2][l % 2].y);
        mma<0>(c, second, x[l / 2][l % 2].z, x[l / 2][l % 2].w);
        acc[0] = fmaf(c[0], s[l], acc[0]), acc[1] = fmaf(c[1], s[l], acc[1]);
        acc[2] = fmaf(c[2], r[l], acc[2]), acc[3] = fmaf(c[3], r[l], acc[3]);
    }
}

/* 16 rows of the first product, n of each 8 (low_n, high_n there) at low and high, their scales behind them; x: the warp's groups. The
 * two sums of a row, in each part of x, into sums [16][pitch]. */
template <int P>
__device__ __forceinline__ void first_group8(const uint4 (*x)[2], uint32_t d, uint32_t low, uint32_t low_n, uint32_t high, uint32_t high_n,
                                             float *sums, uint32_t pitch)
{
    uint32_t g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3, row = min(g, low_n - 1), other = min(g, high_n - 1),
             low_scales = low + low_n * d + row * (d / 16), high_scales = high + high_n * d + other * (d / 16);
    float acc[4] = {};
    low += row * d + t * 8;
    high += other * d + t * 8;
#pragma unroll
    for (int i = 0; i < P; i += 2) {
        uint32_t group = (threadIdx.x >> 5) + 4 * i;
        if (group >= d / GROUP8) break;
        multiply8(low + group * GROUP8, high + group * GROUP8, low_scales + group * 8, high_scales + group * 8, x + i, acc);
    }
    if (t != (g & 3)) return;
    constexpr float S[2] = {scale_of_fp16(0), scale_of_fp16(1)};
    *reinterpret_cast<float2 *>(sums + g * pitch) = make_float2(acc[0] * S[0], acc[1] * S[1]);
    *reinterpret_cast<float2 *>(sums + (g + 8) * pitch) = make_float2(acc[2] * S[0], acc[3] * S[1]);
}

/* 16 rows of k columns at `at` with x in parts: the sums of rows g and g + 8, in lanes t = g & 3. */
__device__ __forceinline__ float2 second_group8(uint32_t parts, uint32_t pitch, uint32_t k, uint32_t at, uint32_t scales)
{
    uint32_t g = (threadIdx.x & 31) >> 2;
    float acc[4] = {};
    at += g * k + (threadIdx.x & 3) * 8;
    scales += g * (k / 16);
#pragma unroll 1
    for (uint32_t i = 0; i < k / GROUP8; i++, at += GROUP8, scales += 8) {
        uint4 x[2][2];
        take8(parts, pitch, i, true, x);
        multiply8(at, at + 8 * k, scales, scales + k / 2, x, acc);
    }
    constexpr float S[2] = {scale_of_fp16(0), scale_of_fp16(1)};
    return make_float2(fmaf(acc[1], S[1], acc[0] * S[0]), fmaf(acc[3], S[1], acc[2] * S[0]));
}

/* Scales of the second product: of `rows` rows, with `columns` columns each, from `from` on (rows `pitch` scales apart), into shared
 * memory without gaps; they have arrived for all when every thread has waited for its own and all have met. */
__device__ __forceinline__ void bring_scales(uint32_t to, const void *from, uint32_t pitch, uint32_t rows, uint32_t columns)
{
    uint32_t groups = columns / GROUP8;
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < rows * groups; i += OWNERS8)
        asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to + i * 8),
                     "l"(static_cast<const unsigned char *>(from) + (size_t)(i / groups) * pitch * 2 + i % groups * 8)
                     : "memory");
}
__device__ __forceinline__ void scales_arrived() { asm volatile("cp.async.wait_all;" ::: "memory"); }

#endif
#endif
