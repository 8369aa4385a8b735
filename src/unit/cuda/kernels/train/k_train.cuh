/* k_train.cuh: device helpers shared by the training kernels. Contains no kernel.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_K_TRAIN_CUH
#define SG_UNIT_CUDA_K_TRAIN_CUH

#include "ktrain.h"

/* As in graph/op.h, which is for C. */
enum { TRAIN_NONE, TRAIN_SILU, TRAIN_GELU, TRAIN_GELU_TANH, TRAIN_GELU_QUICK, TRAIN_RELU, TRAIN_RELU2, TRAIN_SIGMOID, TRAIN_TANH };

/* k_train_bf16.cuh has faster ones, whose errors are small beside those of its numbers. */
#ifndef TRAIN_EXP
#define TRAIN_EXP(x) expf(x)
#define TRAIN_TANH(x) tanhf(x)
#endif

__device__ __forceinline__ float train_sigmoid(float x) { return 1.0f / (1.0f + TRAIN_EXP(-x)); }

__device__ inline float train_act(uint32_t act, float x)
{
    switch (act) {
    case TRAIN_SILU: return x * train_sigmoid(x);
    case TRAIN_GELU: return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
    case TRAIN_GELU_TANH: return 0.5f * x * (1.0f + TRAIN_TANH(0.79788456080286536f * (x + 0.044715f * x * x * x)));
    case TRAIN_GELU_QUICK: return x * train_sigmoid(1.702f * x);
    case TRAIN_RELU: return x > 0 ? x : 0 * x;
    case TRAIN_RELU2: return x > 0 ? x * x : 0 * x;
    case TRAIN_SIGMOID: return train_sigmoid(x);
    case TRAIN_TANH: return TRAIN_TANH(x);
    default: return x;
    }
}

__device__ inline float train_slope(uint32_t act, float x)
{
    float s, t;
    switch (act) {
    case TRAIN_SILU: s = train_sigmoid(x); return s + x * s * (1 - s);
    case TRAIN_GELU: return 0.5f * (1.0f + erff(x * 0.70710678118654752f)) + x * 0.39894228040143268f * TRAIN_EXP(-0.5f * x * x);
    case TRAIN_GELU_TANH:
        t = TRAIN_TANH(0.79788456080286536f * (x + 0.044715f * x * x * x));
        return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * 0.79788456080286536f * (1 + 0.134145f * x * x);
    case TRAIN_GELU_QUICK: s = train_sigmoid(1.702f * x); return s + 1.702f * x * s * (1 - s);
    case TRAIN_RELU: return x > 0 ? 1.0f : 0.0f;
    case TRAIN_RELU2: return x > 0 ? 2 * x : 0;
    case TRAIN_SIGMOID: s = train_sigmoid(x); return s * (1 - s);
    case TRAIN_TANH: t = TRAIN_TANH(x); return 1 - t * t;
    default: return 1;
    }
}

/* What a row's gradient of cross entropy is multiplied by: -dloss/dlogprob of the policy of row r, as in train/head.c. */
__device__ inline float train_policy_slope(const ct_policy &p, uint32_t r, double logprob)
{
    if (!p.rows) return 1.0f;
    const float *y = p.rows + (size_t)4 * r;
    double a = y[0], ratio = exp(logprob - y[2]), low = 1.0 - p.clip, high = 1.0 + p.clip;
    double bounded = ratio < low ? low : ratio > high ? high : ratio, q = p.kl > 0 ? y[3] - logprob : 0;
    return (float)(y[1] * ((ratio * a > bounded * a ? 0 : ratio * a) + p.kl * (exp(q) - 1)));
}

/* Sum over the threads of a warp, or over groups of `n` of them. */
template <class T> __device__ __forceinline__ T train_lanes_sum(T x, int n)
{
    for (int m = n / 2; m; m >>= 1) x += __shfl_xor_sync(0xffffffffu, x, m);
    return x;
}

/* Sum, or maximum, over a block of CT_THREADS; scratch: 8 numbers of shared memory. */
template <class T> __device__ T train_block_sum(T x, T *scratch)
{
    x = train_lanes_sum(x, 32);
    __syncthreads();
    if ((threadIdx.x & 31) == 0) scratch[threadIdx.x >> 5] = x;
    __syncthreads();
    T sum = 0;
    for (int i = 0; i < CT_THREADS / 32; i++) sum += scratch[i];
    return sum;
}

__device__ inline float train_block_max(float x, float *scratch)
{
    for (int m = 16; m; m >>= 1) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, m));
    __syncthreads();
    if ((threadIdx.x & 31) == 0) scratch[threadIdx.x >> 5] = x;
    __syncthreads();
    float max = scratch[0];
    for (int i = 1; i < CT_THREADS / 32; i++) max = fmaxf(max, scratch[i]);
    return max;
}

#endif
