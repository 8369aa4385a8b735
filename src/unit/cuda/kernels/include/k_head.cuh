/* k_head.cuh: one attention head (D = 64, 128 or 256) held by a warp: RMS norm, rotary embedding,
 * conversion to and from the 16-bit K/V storage. For the kernels that do attention of one row
 * (k_single.cu, k_heads.cu).
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_K_HEAD_CUH
#define SG_UNIT_CUDA_K_HEAD_CUH

#include "k_common.cuh"

/* x in the 16-bit storage of K and V. */
template <int STORAGE> __device__ __forceinline__ uint16_t to_16bit(float x)
{
    return STORAGE == CK_KV_F16 ? __half_as_ushort(__float2half_rn(x)) : __bfloat16_as_ushort(__float2bfloat16_rn(x));
}

/* Two numbers in that storage, packed into a word. */
template <int STORAGE> __device__ __forceinline__ uint32_t pack_2(float x, float y)
{
    return to_16bit<STORAGE>(x) | (uint32_t)to_16bit<STORAGE>(y) << 16;
}

/* One row of a head: lane l holds columns l + 32 i. */
template <int D> struct head_row {
    float x[D / 32];
};

/* Factors of a head's norm, loaded ahead of the row. */
template <int D> __device__ __forceinline__ void load_head_norm(const ck_norm &n, head_row<D> &w)
{
    float plus = n.plus_one && n.weight ? 1.0f : 0.0f;
#pragma unroll
    for (int i = 0; i < D / 32; i++) w.x[i] = plus + (n.weight ? n.weight[(threadIdx.x & 31) + 32 * i] : 1.0f);
}
/* RMS norm of the row in place, by factors w; the second form loads them itself. */
template <int D> __device__ __forceinline__ void norm_head(float eps, head_row<D> &r, const head_row<D> &w)
{
    float squares = 0;
#pragma unroll
    for (int i = 0; i < D / 32; i++) squares += r.x[i] * r.x[i];
    float inverse = rsqrtf(warp_sum(squares) / D + eps);
#pragma unroll
    for (int i = 0; i < D / 32; i++) r.x[i] *= inverse * w.x[i];
}
template <int D> __device__ __forceinline__ void norm_head(const ck_norm &n, head_row<D> &r)
{
    head_row<D> w;
    load_head_norm<D>(n, w);
    norm_head<D>(n.eps, r, w);
}

/* Rotary embedding of pairs (j, j + pairs). pairs is 32, 64 or 128, so both elements of a pair are
 * in the same lane. */
template <int D>
__device__ __forceinline__ void rope_head(head_row<D> &r, uint32_t pairs, const float (&s)[D / 64], const float (&c)[D / 64])
{
#pragma unroll
    for (int m = 1; m <= D / 64; m *= 2) {
        if (pairs != 32 * m) continue;
#pragma unroll
        for (int i = 0; i < m; i++) {
            float a = r.x[i], b = r.x[i + m];
            r.x[i] = a * c[i] - b * s[i];
            r.x[i + m] = b * c[i] + a * s[i];
        }
    }
}

/* Eight 16-bit values as fp32. */
template <int STORAGE> __device__ __forceinline__ void unpack_8(const uint4 &v, float (&x)[8])
{
    float4 a = STORAGE == CK_KV_F16 ? piece_plane<CK_F16>(v, 0) : piece_plane<CK_BF16>(v, 0);
    float4 b = STORAGE == CK_KV_F16 ? piece_plane<CK_F16>(v, 1) : piece_plane<CK_BF16>(v, 1);
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
}

#endif
