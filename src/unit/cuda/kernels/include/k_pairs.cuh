/* k_pairs.cuh: products of factors that are two bf16 numbers each, rounded and rest, from shared memory: three tensor-core
 * products, what is dropped is 2^-16 of a factor. For the delta rule in chunks of 64 rows, heads of 128 (k_chunk.cu, k_carry.cu).
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_K_PAIRS_CUH
#define SG_UNIT_CUDA_K_PAIRS_CUH

#include "k_mma.cuh"

enum {
    N = CK_CHUNK_ROWS,
    D = 128,
    WIDE = D + 8, /* rows in shared memory: 16 bytes more, so that ldmatrix meets no bank twice */
    SQUARE = N + 8
};

extern __shared__ float4 shared4[];

/* Two numbers as two pairs of bf16. */
__device__ __forceinline__ void split(float x, float y, uint32_t &high, uint32_t &low)
{
    __nv_bfloat162 h = __floats2bfloat162_rn(x, y);
    __nv_bfloat162 l = __floats2bfloat162_rn(x - __low2float(h), y - __high2float(h));
    high = *reinterpret_cast<uint32_t *>(&h);
    low = *reinterpret_cast<uint32_t *>(&l);
}

/* Both parts of two numbers of a row, to two matrices `apart` numbers from one another. */
__device__ __forceinline__ void put_split(uint16_t *to, size_t apart, float x, float y)
{
    uint32_t high, low;
    split(x, y, high, low);
    *reinterpret_cast<uint32_t *>(to) = high;
    *reinterpret_cast<uint32_t *>(to + apart) = low;
}

/* c += a b, each in two parts; the small terms are summed apart. */
__device__ __forceinline__ void mma3(float (&c)[4], float (&small)[4], const uint32_t (&ah)[4], const uint32_t (&al)[4],
                                     const uint32_t *bh, const uint32_t *bl)
{
    mma<1>(c, ah, bh[0], bh[1]);
    mma<1>(small, ah, bl[0], bl[1]);
    mma<1>(small, al, bh[0], bh[1]);
}

/* Fragments of a matrix in shared memory: rows as they lie (a: 16 x 16 at row, col; b of its transpose), or turned. */
__device__ __forceinline__ void load_a(uint32_t (&r)[4], const uint16_t *m, uint32_t pitch, uint32_t row, uint32_t col)
{
    uint32_t lane = threadIdx.x & 31;
    load4(r, m + (row + (lane & 15)) * pitch + col + (lane >> 4) * 8);
}
__device__ __forceinline__ void load_a_turned(uint32_t (&r)[4], const uint16_t *m, uint32_t pitch, uint32_t row, uint32_t col)
{
    uint32_t lane = threadIdx.x & 31; /* a's row is m's column */
    load4_turned(r, m + (col + (lane & 7) + (lane >> 4) * 8) * pitch + row + (lane >> 3 & 1) * 8);
}
__device__ __forceinline__ void load_b(uint32_t (&r)[4], const uint16_t *m, uint32_t pitch, uint32_t row, uint32_t col)
{
    uint32_t lane = threadIdx.x & 31; /* two tiles of b: m's rows are b's columns */
    load4(r, m + (row + (lane & 7) + (lane >> 4) * 8) * pitch + col + (lane >> 3 & 1) * 8);
}
__device__ __forceinline__ void load_b_turned(uint32_t (&r)[4], const uint16_t *m, uint32_t pitch, uint32_t row, uint32_t col)
{
    uint32_t lane = threadIdx.x & 31;
    load4_turned(r, m + (row + (lane & 15)) * pitch + col + (lane >> 4) * 8);
}

#endif
