/* k_rule.cuh: steps of the gated delta rule for one token and head. S [dk][dv] is held in registers:
 * a warp owns four (or two) columns of it, lane l holds rows l, l + 32, ... (R rows). Used by
 * k_delta.cu and k_linear.cu.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_K_RULE_CUH
#define SG_UNIT_CUDA_K_RULE_CUH

#include "k_common.cuh"

/* Scalars of a token and head: decay factor, step size beta, dot product k . q. */
struct delta_scalars {
    float decay, beta, kq;
};

/* Scales q by 1 / sqrt(dk) and, with l2_eps > 0, q and k by their inverse lengths; returns k . q of
 * the scaled rows. */
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

/* S <- decay S; then of_k = S^T k and of_q = S^T q, for column lane / 8. */
template <int R>
__device__ __forceinline__ void decay_state(float4 (&S)[R], float decay, const float (&q)[R], const float (&k)[R], float &of_k,
                                            float &of_q)
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
    of_k = warp_sum_4(sk.x, sk.y, sk.z, sk.w), of_q = warp_sum_4(sq.x, sq.y, sq.z, sq.w);
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

/* The steps of the delta rule with two columns of S per warp (float2) instead of four. */
template <int R> __device__ __forceinline__ void decay_state(float2 (&S)[R], float decay)
{
#pragma unroll
    for (int r = 0; r < R; r++) S[r].x *= decay, S[r].y *= decay;
}
/* Lanes 0 to 15: S^T k of column lane / 8; lanes 16 to 31: S^T q of column lane / 8 - 2. */
template <int R> __device__ __forceinline__ float state_products(const float2 (&S)[R], const float (&q)[R], const float (&k)[R])
{
    float2 sk = make_float2(0, 0), sq = sk;
#pragma unroll
    for (int r = 0; r < R; r++) {
        sk.x = fmaf(S[r].x, k[r], sk.x), sk.y = fmaf(S[r].y, k[r], sk.y);
        sq.x = fmaf(S[r].x, q[r], sq.x), sq.y = fmaf(S[r].y, q[r], sq.y);
    }
    return warp_sum_4(sk.x, sk.y, sq.x, sq.y);
}
template <int R> __device__ __forceinline__ void add_outer(float2 (&S)[R], const float (&k)[R], float d0, float d1)
{
#pragma unroll
    for (int r = 0; r < R; r++) S[r].x = fmaf(k[r], d0, S[r].x), S[r].y = fmaf(k[r], d1, S[r].y);
}

#endif
