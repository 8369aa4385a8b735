/* k_cluster_int8.cuh: rows of Q8_0 in the products of a rank (k_cluster_ops.cuh): integers, as in k_digits.cu. x is a fixed-point number of 31
 * bits in four digits (k_fixed.cuh), one scale for a group of 128 columns or for all of a warp's. A weight's scale holds for a
 * block of 32 columns: lane (g, t) loads 16 bytes of 64 columns of rows g and g + 8, so lanes t = 0 and 1 have the first block
 * and t = 2 and 3 the second one; columns 0 to 3 of the right factor are the digits of the first block, and zeros beside the
 * second one, columns 4 to 7 the reverse. So lane t has sums of block t / 2 with digits 2 (t % 2) and the next, in both rows,
 * exact in int32, which are joined and scaled.
 *
 * Rows begin at the same bank. In the first product the second eight of them lie APART8 bytes further, and what is row g for even
 * g is row g + 8 for odd ones: no bank conflicts. In the second one odd rows are loaded in the other order of the two 64 columns
 * and exchanged. SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_K_RANK8_CUH
#define SG_UNIT_CUDA_K_RANK8_CUH

#include "k_bulk.cuh"
#include "k_fixed.cuh"

#if __CUDA_ARCH__ >= 900

enum { GROUP8 = 128 /* columns */, OWNERS8 = 256, APART8 = CK_RANK_APART8 };
/* Digits of a group of x: [digit][columns and some banks], behind the first one's columns what a 1 of the last digit stands
 * for. */
enum { DIGIT8 = GROUP8 + 32, DIGITS8 = 4 * DIGIT8 };

/* The warp's group of x at `to`, four numbers a lane, where there is one. */
__device__ __forceinline__ void put8(unsigned char *to, float4 v, uint32_t exponent, bool there_is)
{
    uint32_t d[4];
    digits_of(v, __uint_as_float((TO_DIGITS - exponent) << 23), d);
#pragma unroll
    for (int k = 0; k < 4; k++)
        if (there_is) *reinterpret_cast<uint32_t *>(to + k * DIGIT8 + (threadIdx.x & 31) * 4) = d[k];
}
/* The same with its scale. */
__device__ __forceinline__ void put_group8(unsigned char *to, float4 v)
{
    uint32_t exponent = exponent_of(max(largest_of(v), least_digits));
    put8(to, v, exponent, true);
    if (!(threadIdx.x & 31)) *reinterpret_cast<float *>(to + GROUP8) = last_digit(exponent);
}
/* A group of x for this lane: 64 columns each; zeros where there is none. */
__device__ __forceinline__ void take8(uint32_t from, bool there_is, uint4 (&x)[2])
{
    uint32_t g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
    from += (g & 3) * DIGIT8 + t * 16;
#pragma unroll
    for (int u = 0; u < 2; u++) {
        x[u] = make_uint4(0, 0, 0, 0);
        if (g >> 2 == t >> 1 && there_is) x[u] = shared_piece(from + u * 64);
    }
}

/* A group of two rows: the lane's 16 bytes of each 64 columns, four scales. */
struct piece8 {
    uint4 low[2], high[2];
    uint2 low_scales, high_scales;
};
/* low, high: the lane's 16 bytes of their first 64 columns. turned: this lane takes the second 64 columns first. */
__device__ __forceinline__ void load8(piece8 &w, uint32_t low, uint32_t high, uint32_t low_scales, uint32_t high_scales,
                                      bool turned)
{
    uint32_t first = turned ? 64 : 0;
#pragma unroll
    for (int u = 0; u < 2; u++)
        w.low[u] = shared_piece(low + (first ^ u * 64)), w.high[u] = shared_piece(high + (first ^ u * 64));
    w.low_scales = shared_two(low_scales), w.high_scales = shared_two(high_scales);
}
__device__ __forceinline__ void multiply8(const piece8 &w, const uint4 (&x)[2], float (&acc)[2], bool turned)
{
    uint32_t second = threadIdx.x & 2;
#pragma unroll
    for (int u = 0; u < 2; u++) {
        const uint4 a = turned ? w.low[1 - u] : w.low[u], b = turned ? w.high[1 - u] : w.high[u];
        int c[4] = {0, 0, 0, 0};
        mma_int8(c, a.x, b.x, a.y, b.y, x[u].x, x[u].y);
        mma_int8(c, a.z, b.z, a.w, b.w, x[u].z, x[u].w);
        acc[0] = fmaf((float)(c[1] * 256 + c[0]), one_scale(u ? w.low_scales.y : w.low_scales.x, second), acc[0]);
        acc[1] = fmaf((float)(c[3] * 256 + c[2]), one_scale(u ? w.high_scales.y : w.high_scales.x, second), acc[1]);
    }
}

/* Of the first product, two sums of a row into sums [16][pitch]. scale: what a 1 of the last digit of x stands for. */
__device__ __forceinline__ void put_sums8(float (&acc)[2], float scale, float *sums, uint32_t pitch)
{
    uint32_t g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3, odd = g & 1;
    if (t & 1) scale *= 65536;
    acc[0] *= scale, acc[1] *= scale;
    acc[0] += __shfl_xor_sync(0xffffffffu, acc[0], 2);
    acc[1] += __shfl_xor_sync(0xffffffffu, acc[1], 2);
    sums += g * pitch + t;
    if (t < 2) sums[odd ? 8 * pitch : 0] = acc[0], sums[odd ? 0 : 8 * pitch] = acc[1];
}
/* A group of 16 rows, each 8 at low and high, their scales behind them. */
__device__ __forceinline__ void load_group8(piece8 &w, uint32_t d, uint32_t low, uint32_t high, uint32_t group)
{
    uint32_t g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3, odd = g & 1, in = g * d + group * GROUP8 + t * 16,
             of_scales = 8 * d + g * (d / 16) + group * 8, a = odd ? high : low, b = odd ? low : high;
    load8(w, a + in, b + in, a + of_scales, b + of_scales, false);
}
/* 16 rows of the first product; x: the warp's groups. */
template <int P>
__device__ __forceinline__ void first_group8(const uint4 (*x)[2], float scale, uint32_t d, uint32_t low, uint32_t high,
                                             float *sums, uint32_t pitch)
{
    uint32_t warp = threadIdx.x >> 5;
    float acc[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < P / 2; i++) {
        piece8 w;
        if (warp + 8 * i >= d / GROUP8) break;
        load_group8(w, d, low, high, warp + 8 * i);
        multiply8(w, x[i], acc, false);
    }
    put_sums8(acc, scale, sums, pitch);
}

/* 16 rows of k columns with groups of x, row g's from the lane's 16 bytes and scales on: the sums of rows g and g + 8. */
__device__ __forceinline__ float2 second_group8(uint32_t parts, uint32_t k, uint32_t at, uint32_t scales)
{
    uint32_t g = (threadIdx.x & 31) >> 2;
    float sums[2] = {0, 0};
#pragma unroll 1
    for (uint32_t i = 0; i < k / GROUP8; i++, at += GROUP8, scales += 8, parts += DIGITS8) {
        uint4 x[2];
        piece8 w;
        float acc[2] = {0, 0}, scale = __uint_as_float(shared_two(parts + GROUP8).x);
        take8(parts, true, x);
        load8(w, at, at + 8 * k, scales, scales + k / 2, g & 1);
        multiply8(w, x, acc, g & 1);
        sums[0] = fmaf(acc[0], scale, sums[0]), sums[1] = fmaf(acc[1], scale, sums[1]);
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (threadIdx.x & 1) sums[i] *= 65536;
        sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], 1);
        sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], 2);
    }
    return make_float2(sums[0], sums[1]);
}

/* Scales of the second product: of `rows` rows, with `columns` columns each, from `from` on (rows `pitch` scales apart), into
 * shared memory without gaps; they have arrived for all when every thread has waited for its own and all have met. */
__device__ __forceinline__ void bring_scales(uint32_t to, const void *from, uint32_t pitch, uint32_t rows, uint32_t columns)
{
    uint32_t groups = columns / GROUP8;
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < rows * groups; i += OWNERS8)
        copy_eight(to + i * 8, static_cast<const unsigned char *>(from) + (size_t)(i / groups) * pitch * 2 + i % groups * 8);
}
__device__ __forceinline__ void scales_arrived() { copies_arrived(); }

#endif
#endif
