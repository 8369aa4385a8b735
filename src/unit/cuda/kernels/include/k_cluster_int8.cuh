/* k_cluster_int8.cuh: Q8_0 weights in the products of the cluster kernels (k_cluster_ops.cuh), as
 * int8 tensor-core products. x is a 31-bit fixed-point number in four digits (k_fixed.cuh), with one
 * scale per group of 128 columns or per warp.
 *
 * A weight scale covers a block of 32 columns. Lane (g, t) loads 16 bytes out of 64 columns of rows
 * g and g + 8, so lanes t = 0, 1 hold the first block and t = 2, 3 the second. Columns 0 to 3 of the
 * b operand are the digits of x for the first block (zero for the second), columns 4 to 7 the
 * reverse. Lane t thus obtains the exact int32 sums of block t / 2 with digits 2 (t % 2) and the
 * next one, for both rows, which it combines and scales.
 *
 * Rows start at the same bank. In the first product the second eight rows of a stage are shifted by
 * PAD8 bytes, and rows g and g + 8 trade places in lanes of odd g; in the second one odd rows load
 * the two 64-column halves in swapped order. No bank conflicts.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_K_CLUSTER_INT8_CUH
#define SG_UNIT_CUDA_K_CLUSTER_INT8_CUH

#include "k_bulk.cuh"
#include "k_fixed.cuh"

#if __CUDA_ARCH__ == 900

/* columns per group; consumer threads; padding between the two groups of eight rows */
enum { GROUP8 = 128, CONSUMERS8 = 256, PAD8 = CK_CLUSTER_Q8_PAD };
/* Digits of a group of x: [digit][128 bytes + padding]; in the padding after the first digit: the
 * value of one unit. */
enum { DIGIT8 = GROUP8 + 32, DIGITS8 = 4 * DIGIT8 };

/* Stores the warp's group of x, four numbers per lane, if present. */
__device__ __forceinline__ void put8(unsigned char *to, float4 v, uint32_t exponent, bool present)
{
    uint32_t d[4];
    split_digits(v, __uint_as_float((TO_DIGITS - exponent) << 23), d);
#pragma unroll
    for (int k = 0; k < 4; k++)
        if (present) *reinterpret_cast<uint32_t *>(to + k * DIGIT8 + (threadIdx.x & 31) * 4) = d[k];
}
/* The same including the scale. */
__device__ __forceinline__ void put_group8(unsigned char *to, float4 v)
{
    uint32_t exponent = warp_exponent(max(max_abs_bits(v), min_exponent_bits));
    put8(to, v, exponent, true);
    if (!(threadIdx.x & 31)) *reinterpret_cast<float *>(to + GROUP8) = last_digit_value(exponent);
}
/* Loads this lane's operand of a group of x, 64 columns each; zeros if not present. */
__device__ __forceinline__ void load_x8(uint32_t from, bool present, uint4 (&x)[2])
{
    uint32_t g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
    from += (g & 3) * DIGIT8 + t * 16;
#pragma unroll
    for (int u = 0; u < 2; u++) {
        x[u] = make_uint4(0, 0, 0, 0);
        if (g >> 2 == t >> 1 && present) x[u] = lds_128(from + u * 64);
    }
}

/* One group (128 columns) of two rows: the lane's 16 bytes of each 64 columns, and four scales per
 * row. */
struct piece8 {
    uint4 low[2], high[2];
    uint2 low_scales, high_scales;
};
/* low, high: the lane's 16 bytes of the first 64 columns. swapped: this lane loads the second 64
 * columns first. */
__device__ __forceinline__ void load8(piece8 &w, uint32_t low, uint32_t high, uint32_t low_scales, uint32_t high_scales,
                                      bool swapped)
{
    uint32_t first = swapped ? 64 : 0;
#pragma unroll
    for (int u = 0; u < 2; u++) w.low[u] = lds_128(low + (first ^ u * 64)), w.high[u] = lds_128(high + (first ^ u * 64));
    w.low_scales = lds_64(low_scales), w.high_scales = lds_64(high_scales);
}
/* acc[0], acc[1] += scaled products of rows g and g + 8. */
__device__ __forceinline__ void multiply8(const piece8 &w, const uint4 (&x)[2], float (&acc)[2], bool swapped)
{
    uint32_t second = threadIdx.x & 2;
#pragma unroll
    for (int u = 0; u < 2; u++) {
        const uint4 a = swapped ? w.low[1 - u] : w.low[u], b = swapped ? w.high[1 - u] : w.high[u];
        int c[4] = {0, 0, 0, 0};
        mma_int8(c, a.x, b.x, a.y, b.y, x[u].x, x[u].y);
        mma_int8(c, a.z, b.z, a.w, b.w, x[u].z, x[u].w);
        acc[0] = fmaf((float)(c[1] * 256 + c[0]), pick_scale(u ? w.low_scales.y : w.low_scales.x, second), acc[0]);
        acc[1] = fmaf((float)(c[3] * 256 + c[2]), pick_scale(u ? w.high_scales.y : w.high_scales.x, second), acc[1]);
    }
}

/* Stores two partial sums per row into sums [16][pitch]. scale: value of one unit of x. */
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
/* Loads a group of 16 rows, eight at low and eight at high, scales after the rows. */
__device__ __forceinline__ void load_group8(piece8 &w, uint32_t d, uint32_t low, uint32_t high, uint32_t group)
{
    uint32_t g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3, odd = g & 1, in = g * d + group * GROUP8 + t * 16,
             of_scales = 8 * d + g * (d / 16) + group * 8, a = odd ? high : low, b = odd ? low : high;
    load8(w, a + in, b + in, a + of_scales, b + of_scales, false);
}
/* First product of 16 rows; x: the warp's groups. */
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

/* Second product of 16 rows with k columns; at, scales: the lane's 16 bytes and scales of row g.
 * Returns the sums of rows g and g + 8, in all four lanes of a row. */
__device__ __forceinline__ float2 second_group8(uint32_t parts, uint32_t k, uint32_t at, uint32_t scales)
{
    uint32_t g = (threadIdx.x & 31) >> 2;
    float sums[2] = {0, 0};
#pragma unroll 1
    for (uint32_t i = 0; i < k / GROUP8; i++, at += GROUP8, scales += 8, parts += DIGITS8) {
        uint4 x[2];
        piece8 w;
        float acc[2] = {0, 0}, scale = __uint_as_float(lds_64(parts + GROUP8).x);
        load_x8(parts, true, x);
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

/* Copies the scales of the second product's weight (`rows` rows of `columns` columns, `pitch` scales
 * apart) to shared memory without gaps, by cp.async; complete after scales_arrived in every thread
 * and a barrier. */
__device__ __forceinline__ void load_scales(uint32_t to, const void *from, uint32_t pitch, uint32_t rows, uint32_t columns)
{
    uint32_t groups = columns / GROUP8;
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < rows * groups; i += CONSUMERS8)
        cp_async_8(to + i * 8, static_cast<const unsigned char *>(from) + (size_t)(i / groups) * pitch * 2 + i % groups * 8);
}
__device__ __forceinline__ void scales_arrived() { cp_async_wait_all(); }

#endif
#endif
