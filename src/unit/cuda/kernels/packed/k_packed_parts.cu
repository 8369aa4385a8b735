/* k_packed_parts.cu: x for k_packed_batch.cu: 2 to 16 rows, after their norm, as two fp16 parts in the order of tensor-core
 * operands. All architectures. Host: issue_packed_batch.c.
 *
 * A warp has one row of one chunk of 256 columns, eight columns per lane. It scales them by the power of two that brings the
 * largest below 2^15; the parts are the rounded value and the remainder, so columns keep 22 bits where they are not below 2^-17
 * of the largest. Also stored: the inverse of that factor, and the sum of each 32 columns as two bf16 parts, for offsets.
 * A chunk is [plane word n][eight rows][part][lane of the product] 16 bytes, with column order as in a word of codes
 * (k_packed.cuh): columns 0 and 2, 1 and 3, 4 and 6, 5 and 7 of the lane's eight.
 * SPDX-License-Identifier: MIT */
#include "k_mma.cuh"

enum { THREADS = CK_PACKED_PARTS_THREADS };

struct eight {
    float v[8];
};

__device__ __forceinline__ eight load_eight(const float *x)
{
    eight to;
    if (reinterpret_cast<uintptr_t>(x) % 16 == 0) {
        float4 a = float4_at(x, 0), b = float4_at(x, 4);
        return eight{{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
    }
#pragma unroll
    for (int i = 0; i < 8; i++) to.v[i] = x[i];
    return to;
}

__device__ __forceinline__ float squares_of(const eight &x)
{
    float s = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) s = fmaf(x.v[i], x.v[i], s);
    return s;
}

/* Norm of the lane's columns, the first one e of the row. A group of columns is the row, or the columns of a power of two of
 * lanes. inverse: 1 / root mean square. */
__device__ __forceinline__ void normalise(const ck_packed_parts &a, eight &x, uint32_t e, float inverse)
{
    const ck_norm &n = a.norm;
    const uint32_t width = a.k / n.groups;
    const float plus = n.plus_one && n.weight ? 1.0f : 0.0f;
    eight w = {{1, 1, 1, 1, 1, 1, 1, 1}};
    if (n.weight) w = load_eight(n.weight + e % width);
    if (n.gate.p) {
        eight g = load_eight(n.gate.p + (size_t)blockIdx.x * n.gate.stride + e);
#pragma unroll
        for (int i = 0; i < 8; i++) x.v[i] = norm_gated(x.v[i], inverse, plus, w.v[i], g.v[i]);
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) x.v[i] = x.v[i] * inverse * (plus + w.v[i]);
}

/* Inverse of the root mean square of the lane's group. All threads of the block call it. */
__device__ __forceinline__ float inverse_of(const ck_packed_parts &a, const eight &x, const float *row, float *scratch)
{
    const uint32_t width = a.k / a.norm.groups;
    float squares = 0;
    if (a.norm.groups > 1) {
        squares = squares_of(x);
        for (uint32_t m = width / 16; m; m >>= 1) squares += __shfl_xor_sync(0xffffffffu, squares, m);
    } else {
        for (uint32_t i = 8 * threadIdx.x; i < a.k; i += 8 * THREADS) squares += squares_of(load_eight(row + i));
        squares = block_sum(squares, scratch);
    }
    return rsqrtf(squares / width + a.norm.eps);
}

/* Two numbers as fp16, lo in the low half; what is left of them stays. */
__device__ __forceinline__ uint32_t take_part(float &lo, float &hi)
{
    __half2 v = __floats2half2_rn(lo, hi);
    lo -= __low2float(v), hi -= __high2float(v);
    return *reinterpret_cast<uint32_t *>(&v);
}

/* Sums of two blocks of 32 columns as two bf16 parts. */
__device__ __forceinline__ uint2 parts_of_sums(float one, float two)
{
    uint32_t high = pack<1>(one, two);
    return make_uint2(high, pack<1>(one - __uint_as_float(high << 16), two - __uint_as_float(high & 0xffff0000u)));
}

/* Grid (rows, blocks of THREADS / 32 chunks). */
extern "C" __global__ void __launch_bounds__(THREADS) packed_parts(const __grid_constant__ ck_packed_parts a)
{
    __shared__ float scratch[32];
    const uint32_t lane = threadIdx.x & 31, chunk = blockIdx.y * (THREADS / 32) + (threadIdx.x >> 5), row = blockIdx.x,
                   e = chunk * CK_PACKED_CHUNK + lane * 8, tile = row / 8, g = row % 8;
    const float *from = a.x.p + (size_t)row * a.x.stride;
    const bool present = e < a.k; /* the same for the warp */
    eight x = {};
    launch_dependents();
    wait_for_inputs();
    if (present) x = load_eight(from + e);
    if (a.norm.present) {
        float inverse = inverse_of(a, x, from, scratch);
        if (present) normalise(a, x, e, inverse);
    }
    if (!present) return;
    uint32_t top = 0;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        top = max(top, __float_as_uint(x.v[i]) & 0x7fffffffu);
        sum += x.v[i];
    }
    /* 2^(14 - exponent of the largest), of exponents that keep it and its inverse normal. */
    uint32_t exponent = max(__reduce_max_sync(0xffffffffu, top) >> 23, 15u);
    const float scale = __uint_as_float((268 - exponent) << 23);
    if (lane == 0)
        a.inverse[chunk * CK_PACKED_BATCH_ROWS + row] = exponent == 255 ? CUDART_NAN_F : __uint_as_float((exponent - 14) << 23);
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    float other = __shfl_xor_sync(0xffffffffu, sum, 4);
    if (lane % 8 == 0) static_cast<uint2 *>(a.sums)[(chunk * a.tiles + tile) * 32 + g * 4 + lane / 8] = parts_of_sums(sum, other);
#pragma unroll
    for (int i = 0; i < 8; i++) x.v[i] *= scale;
    /* Columns 8 * lane are in block lane / 4; t: of the lane that multiplies them, n: their plane word. */
    const uint32_t t = lane / 16 * 2 + lane % 2, n = lane / 4 % 4 * 2 + lane / 2 % 2;
    uint4 *to = static_cast<uint4 *>(a.y) + (((size_t)chunk * 8 + n) * a.tiles + tile) * 64 + g * 4 + t;
#pragma unroll
    for (int part = 0; part < 2; part++) {
        uint4 v;
        v.x = take_part(x.v[0], x.v[2]), v.y = take_part(x.v[1], x.v[3]);
        v.z = take_part(x.v[4], x.v[6]), v.w = take_part(x.v[5], x.v[7]);
        to[part * 32] = v;
    }
}
