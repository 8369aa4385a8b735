/* k_pairs.cuh: products of operands that are stored as two bf16 each (rounded value and remainder)
 * in shared memory. Three tensor-core products keep all but about 2^-16 of an operand's precision.
 * Used by the chunked delta rule (k_chunk.cu, k_chunk_state.cu, k_scan.cu): chunks of N = 64 tokens,
 * heads of D = 128.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_K_PAIRS_CUH
#define SG_UNIT_CUDA_K_PAIRS_CUH

#include "k_mma.cuh"

enum {
    N = CK_CHUNK_ROWS,
    D = 128,
    WIDE = D + 8, /* row pitch in shared memory: 16 bytes of padding make ldmatrix free of bank conflicts */
    SQUARE = N + 8
};

extern __shared__ float4 shared4[];

/* Splits two numbers into packed rounded values (high) and packed remainders (low). */
__device__ __forceinline__ void split(float x, float y, uint32_t &high, uint32_t &low)
{
    __nv_bfloat162 h = __floats2bfloat162_rn(x, y);
    __nv_bfloat162 l = __floats2bfloat162_rn(x - __low2float(h), y - __high2float(h));
    high = *reinterpret_cast<uint32_t *>(&h);
    low = *reinterpret_cast<uint32_t *>(&l);
}

/* Stores both parts of two neighbouring numbers of a row; the remainders' matrix starts `apart`
 * elements after `to`. */
__device__ __forceinline__ void put_split(uint16_t *to, size_t apart, float x, float y)
{
    uint32_t high, low;
    split(x, y, high, low);
    *reinterpret_cast<uint32_t *>(to) = high;
    *reinterpret_cast<uint32_t *>(to + apart) = low;
}

/* c += a b with a and b in two parts; cross terms accumulate in `small` and are added later, low x
 * low is dropped. */
__device__ __forceinline__ void mma3(float (&c)[4], float (&small)[4], const uint32_t (&ah)[4], const uint32_t (&al)[4],
                                     const uint32_t *bh, const uint32_t *bl)
{
    mma<1>(c, ah, bh[0], bh[1]);
    mma<1>(small, ah, bl[0], bl[1]);
    mma<1>(small, al, bh[0], bh[1]);
}

/* Fragments of a 16 x 16 tile at (row, col) of matrix m in shared memory. load_a, load_b: m is
 * stored row-major, for b as its transpose; the _trans variants read the transposed matrix. */
__device__ __forceinline__ void load_a(uint32_t (&r)[4], const uint16_t *m, uint32_t pitch, uint32_t row, uint32_t col)
{
    uint32_t lane = threadIdx.x & 31;
    ldmatrix_x4(r, m + (row + (lane & 15)) * pitch + col + (lane >> 4) * 8);
}
__device__ __forceinline__ void load_a_trans(uint32_t (&r)[4], const uint16_t *m, uint32_t pitch, uint32_t row, uint32_t col)
{
    uint32_t lane = threadIdx.x & 31; /* row of a = column of m */
    ldmatrix_x4_trans(r, m + (col + (lane & 7) + (lane >> 4) * 8) * pitch + row + (lane >> 3 & 1) * 8);
}
__device__ __forceinline__ void load_b(uint32_t (&r)[4], const uint16_t *m, uint32_t pitch, uint32_t row, uint32_t col)
{
    uint32_t lane = threadIdx.x & 31; /* two tiles of b: rows of m are columns of b */
    ldmatrix_x4(r, m + (row + (lane & 7) + (lane >> 4) * 8) * pitch + col + (lane >> 3 & 1) * 8);
}
__device__ __forceinline__ void load_b_trans(uint32_t (&r)[4], const uint16_t *m, uint32_t pitch, uint32_t row, uint32_t col)
{
    uint32_t lane = threadIdx.x & 31;
    ldmatrix_x4_trans(r, m + (row + (lane & 15)) * pitch + col + (lane >> 4) * 8);
}

#endif
