/* k_split_tile.cuh: tiles of K or V for k_split.cu: copies of 16 rows into shared memory by one warp, with the pieces of 16 bytes
 * of a row exchanged so that ldmatrix has no bank conflicts, and the conversion of Q8_0 to such a tile in fp16.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_K_SPLIT_TILE_CUH
#define SG_UNIT_CUDA_K_SPLIT_TILE_CUH

#include "attend/k_split.cuh"

enum { TILE = SPLIT_TILE };

__device__ __forceinline__ void cp_async_16(uint32_t to, const void *from, bool is)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(is ? 16 : 0) : "memory");
}
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ __forceinline__ void cp_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

/* Byte offset of 16-byte piece `c` of row `r` in a half tile. */
template <int D> __device__ __forceinline__ uint32_t piece_at(uint32_t r, uint32_t c)
{
    return r * (2 * D) + ((c ^ (r & 7)) * 16);
}

/* Starts the copy of one half tile from its first row on; only rows r with r - skip < n are read, the others are zero. An address
 * of which no byte is read need not be valid. */
template <int D>
__device__ __forceinline__ void load_half(uint32_t to, const unsigned char *base, size_t pitch, uint32_t skip, uint32_t n)
{
    enum { ROWS = 256 / D }; /* rows per step of the warp; a power of two */
    uint32_t lane = threadIdx.x & 31, row = lane / (D / 8), c = lane % (D / 8);
    to += piece_at<D>(row, c);
    base += row * pitch + c * 16;
    row -= skip;
#pragma unroll
    for (int i = 0; i < D / 16; i++)
        cp_async_16((to ^ (i * ROWS % 8 * 16)) + i * ROWS * 2 * D, base + i * (ROWS * pitch), row + i * ROWS < n);
}

template <int N> __device__ __forceinline__ void cp_async_piece(uint32_t to, const void *from, bool is)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(N), "r"(is ? N : 0) : "memory");
}
/* The same for Q8_0: rows of 17 pieces of D / 16 bytes, dense. */
template <int D>
__device__ __forceinline__ void load_half_q8(uint32_t to, const unsigned char *base, size_t pitch, uint32_t skip, uint32_t n)
{
    enum { PIECE = D / 16 };
#pragma unroll
    for (int i = 0; i < 9; i++) {
        uint32_t piece = (threadIdx.x & 31) + 32 * i, row = piece / 17, c = piece % 17;
        if (piece >= TILE * 17) break;
        const unsigned char *from = base + row * pitch + c * PIECE;
        bool is = row - skip < n;
        cp_async_piece<PIECE>(to + piece * PIECE, from, is);
    }
}

__device__ __forceinline__ uint32_t lds_32(uint32_t at)
{
    uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
    return v;
}
__device__ __forceinline__ void sts_128(uint32_t at, const uint4 &v)
{
    asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
/* Four signed bytes as fp16 (exact), times the scale. */
__device__ __forceinline__ void dequantise_4(uint32_t w, __half2 scale, uint32_t &lo, uint32_t &hi)
{
    const __half2 bias = __float2half2_rn(1152); /* 1,024, the value of the bits 0x6400, plus 128 */
    uint32_t u = w ^ 0x80808080u, a = __byte_perm(u, 0x64646464u, 0x4140), b = __byte_perm(u, 0x64646464u, 0x4342);
    __half2 x = __hmul2(__hsub2(*reinterpret_cast<__half2 *>(&a), bias), scale),
            y = __hmul2(__hsub2(*reinterpret_cast<__half2 *>(&b), bias), scale);
    lo = *reinterpret_cast<uint32_t *>(&x);
    hi = *reinterpret_cast<uint32_t *>(&y);
}
/* A half tile of Q8_0 as fp16, each number rounded once. A lane converts whole blocks. Two blocks are 17 words: the first begins
 * with its scale in the low half of word 0, the second with that in the high half of word 8. */
template <int D> __device__ __forceinline__ void convert_q8(uint32_t from, uint32_t to)
{
#pragma unroll
    for (int i = 0; i < D / 64; i++) {
        uint32_t block = (threadIdx.x & 31) + 32 * i, row = block / (D / 32), b = block % (D / 32), odd = block & 1, w[9];
        uint32_t at = from + block / 2 * 68 + odd * 32;
#pragma unroll
        for (int k = 0; k < 9; k++) w[k] = lds_32(at + 4 * k);
        __half2 scale = __half2half2(__ushort_as_half((unsigned short)(odd ? w[0] >> 16 : w[0])));
        uint32_t shift = odd ? 32 : 16;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            uint4 v;
            dequantise_4(__funnelshift_rc(w[2 * k], w[2 * k + 1], shift), scale, v.x, v.y);
            dequantise_4(__funnelshift_rc(w[2 * k + 1], w[2 * k + 2], shift), scale, v.z, v.w);
            sts_128(to + piece_at<D>(row, 4 * b + k), v);
        }
    }
    __syncwarp();
}

/* One block of Q8_0 by a warp, as store_kv (k_attend.cu) rounds; stored if `stores`. Returns the lane's number as fp16. */
__device__ __forceinline__ uint16_t quantise(float v, unsigned char *to, bool stores)
{
    uint32_t lane = threadIdx.x & 31;
    float max_abs = warp_max(fabsf(v));
    bool finite = __all_sync(0xffffffffu, isfinite(v));
    float scale = finite ? max_abs / 127.0f : CUDART_NAN_F, inverse = finite && scale > 0 ? 1.0f / scale : 0.0f;
    if (isinf(inverse)) inverse = 0;
    __half stored = __float2half_rn(scale);
    unsigned short bits = __half_as_ushort(stored);
    int q = finite ? (int)roundf(v * inverse) : 1;
    if (stores && lane < 2) to[lane] = (unsigned char)(bits >> (8 * lane));
    if (stores) to[2 + lane] = (unsigned char)q;
    return __half_as_ushort(__hmul(__int2half_rn(q), stored));
}

#endif
