/* k_rule.cuh: the gated delta rule of one row and head, a warp with four columns of S: lane l holds rows l, l + 32, ...
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_K_RULE_CUH
#define SG_UNIT_CUDA_K_RULE_CUH

#include "k_common.cuh"

struct numbers_of {
    float decay, beta, kq;
};

/* q and k of a head, scaled as the rule wants them; k . q. */
template <int R> __device__ __forceinline__ float scale_row(float (&q)[R], float (&k)[R], uint32_t dk, float l2_eps)
{
    float qq = 0, kk = 0, kq = 0, qs = rsqrtf((float)dk), ks = 1;
#pragma unroll
    for (int r = 0; r < R; r++) {
        qq = fmaf(q[r], q[r], qq);
        kk = fmaf(k[r], k[r], kk);
        kq = fmaf(k[r], q[r], kq);
    }
    qq = warp_sum(qq), kk = warp_sum(kk), kq = warp_sum(kq);
    if (l2_eps > 0) {
        qs *= rsqrtf(qq + l2_eps);
        ks = rsqrtf(kk + l2_eps);
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
        q[r] *= qs;
        k[r] *= ks;
    }
    return kq * qs * ks;
}

/* S <- decay S; then S^T k and S^T q, of column lane / 8. */
template <int R>
__device__ __forceinline__ void decay_state(float4 (&S)[R], float decay, const float (&q)[R],
                                            const float (&k)[R], float &of_k, float &of_q)
{
    float4 sk = make_float4(0, 0, 0, 0), sq = sk;
#pragma unroll
    for (int r = 0; r < R; r++) {
        S[r].x *= decay, S[r].y *= decay, S[r].z *= decay, S[r].w *= decay;
        sk.x = fmaf(S[r].x, k[r], sk.x), sk.y = fmaf(S[r].y, k[r], sk.y);
        sk.z = fmaf(S[r].z, k[r], sk.z), sk.w = fmaf(S[r].w, k[r], sk.w);
        sq.x = fmaf(S[r].x, q[r], sq.x), sq.y = fmaf(S[r].y, q[r], sq.y);
        sq.z = fmaf(S[r].z, q[r], sq.z), sq.w = fmaf(S[r].w, q[r], sq.w);
    }
    of_k = four_sums(sk.x, sk.y, sk.z, sk.w), of_q = four_sums(sq.x, sq.y, sq.z, sq.w);
}

/* S <- S + k d^T; lane 8 j holds d of column j. */
template <int R> __device__ __forceinline__ void add_outer(float4 (&S)[R], const float (&k)[R], float d)
{
    float d0 = __shfl_sync(0xffffffffu, d, 0), d1 = __shfl_sync(0xffffffffu, d, 8);
    float d2 = __shfl_sync(0xffffffffu, d, 16), d3 = __shfl_sync(0xffffffffu, d, 24);
#pragma unroll
    for (int r = 0; r < R; r++) {
        S[r].x = fmaf(k[r], d0, S[r].x), S[r].y = fmaf(k[r], d1, S[r].y);
        S[r].z = fmaf(k[r], d2, S[r].z), S[r].w = fmaf(k[r], d3, S[r].w);
    }
}

/* The same with two columns of S. */
template <int R> __device__ __forceinline__ void decay_state(float2 (&S)[R], float decay)
{
#pragma unroll
    for (int r = 0; r < R; r++) S[r].x *= decay, S[r].y *= decay;
}
/* S^T k of column lane / 8 in the first half of the warp, S^T q of lane / 8 - 2 in the second. */
template <int R> __device__ __forceinline__ float of_state(const float2 (&S)[R], const float (&q)[R], const float (&k)[R])
{
    float2 sk = make_float2(0, 0), sq = sk;
#pragma unroll
    for (int r = 0; r < R; r++) {
        sk.x = fmaf(S[r].x, k[r], sk.x), sk.y = fmaf(S[r].y, k[r], sk.y);
        sq.x = fmaf(S[r].x, q[r], sq.x), sq.y = fmaf(S[r].y, q[r], sq.y);
    }
    return four_sums(sk.x, sk.y, sq.x, sq.y);
}
template <int R> __device__ __forceinline__ void add_outer(float2 (&S)[R], const float (&k)[R], float d0, float d1)
{
#pragma unroll
    for (int r = 0; r < R; r++) S[r].x = fmaf(k[r], d0, S[r].x), S[r].y = fmaf(k[r], d1, S[r].y);
}

#endif
