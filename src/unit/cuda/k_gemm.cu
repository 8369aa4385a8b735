/* k_gemm.cu: what prefill needs around its matrix products: activations narrowed to 16 bits (with the norm
 * before, when one is fused), quantised weights widened to 16 bits for one layer at a time, and a tensor-core
 * product for where cuBLASLt is not installed: 64 x 64 tiles, fp32 sums, weights as stored.
 * SPDX-License-Identifier: MIT */
#include "k_mma.cuh"

__device__ __forceinline__ void put16(void *y, size_t i, float v, uint32_t bf16)
{
    if (bf16)
        static_cast<__nv_bfloat16 *>(y)[i] = __float2bfloat16_rn(v);
    else
        static_cast<__half *>(y)[i] = __float2half_rn(v);
}

/* One row of groups, each normalised by a warp, with an optional gate. */
__device__ __forceinline__ void narrow_groups(const ck_narrow &a, const float *x, size_t to, uint32_t t)
{
    uint32_t group = a.k / a.norm.groups, lane = threadIdx.x & 31;
    const float *gate = a.norm.gate.p ? a.norm.gate.p + (size_t)t * a.norm.gate.stride : nullptr;
    float plus = a.norm.plus_one && a.norm.weight ? 1.0f : 0.0f;
    for (uint32_t h = threadIdx.x >> 5; h < a.norm.groups; h += blockDim.x >> 5) {
        float squares = 0;
        for (uint32_t e = lane; e < group; e += 32) squares = fmaf(x[h * group + e], x[h * group + e], squares);
        float inverse = rsqrtf(warp_sum(squares) / group + a.norm.eps);
        for (uint32_t e = lane; e < group; e += 32) {
            float v = x[h * group + e], w = a.norm.weight ? a.norm.weight[e] : 1;
            put16(a.y, to + h * group + e,
                  gate ? gated(v, inverse, plus, w, gate[h * group + e]) : v * inverse * (plus + w), a.bf16);
        }
    }
}

/* A block per row: x (normalised, or activated and multiplied, when asked) -> 16 bits, dense. */
extern "C" __global__ void narrow(const __grid_constant__ ck_narrow a)
{
    __shared__ float room[32];
    dependents_may_start();
    wait_for_inputs();
    uint32_t t = blockIdx.x;
    const float *x = a.x.p + (size_t)t * a.x.stride;
    float mean = 0, inverse = 1;
    if (a.x2.p) {
        const float *x2 = a.x2.p + (size_t)t * a.x2.stride;
        for (uint32_t e = threadIdx.x; e < a.k; e += blockDim.x)
            put16(a.y, (size_t)t * a.k + e, activate(a.act, x[e]) * x2[e], a.bf16);
        return;
    }
    if (a.norm.groups > 1) return narrow_groups(a, x, (size_t)t * a.k, t);
    if (a.norm.present) {
        float sum = 0, squares = 0;
        if (a.norm.layer) {
            for (uint32_t e = threadIdx.x; e < a.k; e += blockDim.x) sum += x[e];
            mean = block_sum(sum, room) / a.k;
        }
        for (uint32_t e = threadIdx.x; e < a.k; e += blockDim.x) squares += (x[e] - mean) * (x[e] - mean);
        inverse = rsqrtf(block_sum(squares, room) / a.k + a.norm.eps);
    }
    for (uint32_t e = threadIdx.x; e < a.k; e += blockDim.x) {
        float v = x[e];
        if (a.norm.present) {
            v = (v - mean) * inverse;
            if (a.norm.weight) v *= a.norm.plus_one ? 1.0f + a.norm.weight[e] : a.norm.weight[e];
            if (a.norm.bias) v += a.norm.bias[e];
        }
        put16(a.y, (size_t)t * a.k + e, v, a.bf16);
        if (a.low) { /* what the rounding left */
            float kept = a.bf16 ? __bfloat162float(__float2bfloat16_rn(v)) : __half2float(__float2half_rn(v));
            put16(a.low, (size_t)t * a.k + e, v - kept, a.bf16);
        }
    }
}

extern "C" __global__ void widen(const __grid_constant__ ck_widen a)
{
    dependents_may_start();
    wait_for_inputs();
    uint32_t c = blockIdx.y * blockDim.x + threadIdx.x;
    if (c < a.w.cols)
        put16(a.y, (size_t)blockIdx.x * a.w.cols + c, weight_at(a.w, (size_t)a.at + blockIdx.x, c), a.bf16);
}

enum { TM = 64, TN = 64, TK = 32, PAD = 8 };

/* y[t][n] = x[t] . w[n]; blocks of 128 threads, 4 warps of 32 x 32. x dense [rows][k], 16 bits. */
template <int BF16> __device__ __forceinline__ void gemm(const ck_gemm &a)
{
    __shared__ uint16_t xs[TM][TK + PAD], ws[TN][TK + PAD];
    uint32_t t0 = blockIdx.y * TM, n0 = blockIdx.x * TN, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    uint32_t wm = warp / 2 * 32, wn = warp % 2 * 32, group = lane >> 2, pair = (lane & 3) * 2;
    float acc[2][4][4] = {};
    dependents_may_start();
    wait_for_inputs();
    for (uint32_t k0 = 0; k0 < a.k; k0 += TK) {
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < TM * TK; i += 128) {
            uint32_t r = i / TK, c = i % TK, k = k0 + c;
            xs[r][c] = t0 + r < a.rows && k < a.k
                           ? static_cast<const uint16_t *>(a.x)[(size_t)(t0 + r) * a.k + k]
                           : 0;
            const unsigned char *row = static_cast<const unsigned char *>(a.segment.data) +
                                       (size_t)(a.segment.at + n0 + r) * a.pitch;
            ws[r][c] = n0 + r < a.segment.n && k < a.k ? reinterpret_cast<const uint16_t *>(row)[k] : 0;
        }
        __syncthreads();
#pragma unroll
        for (int kk = 0; kk < TK; kk += 16) {
            uint32_t fa[2][4], fb[4][2];
#pragma unroll
            for (int m = 0; m < 2; m++) {
                const uint16_t *lo = &xs[wm + m * 16 + group][kk + pair],
                               *hi = &xs[wm + m * 16 + group + 8][kk + pair];
                fa[m][0] = *reinterpret_cast<const uint32_t *>(lo);
                fa[m][1] = *reinterpret_cast<const uint32_t *>(hi);
                fa[m][2] = *reinterpret_cast<const uint32_t *>(lo + 8);
                fa[m][3] = *reinterpret_cast<const uint32_t *>(hi + 8);
            }
#pragma unroll
            for (int n = 0; n < 4; n++) {
                const uint16_t *w = &ws[wn + n * 8 + group][kk + pair];
                fb[n][0] = *reinterpret_cast<const uint32_t *>(w);
                fb[n][1] = *reinterpret_cast<const uint32_t *>(w + 8);
            }
#pragma unroll
            for (int m = 0; m < 2; m++)
#pragma unroll
                for (int n = 0; n < 4; n++) mma<BF16>(acc[m][n], fa[m], fb[n][0], fb[n][1]);
        }
    }
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t t = t0 + wm + m * 16 + group + (i / 2) * 8, row = n0 + wn + n * 8 + pair + i % 2;
                if (t >= a.rows || row >= a.segment.n) continue;
                float v = acc[m][n][i];
                if (a.segment.bias) v += a.segment.bias[row];
                if (a.segment.residual.p)
                    v += a.segment.residual.p[(size_t)t * a.segment.residual.stride + row];
                a.segment.y.p[(size_t)t * a.segment.y.stride + row] = v;
            }
}

extern "C" __global__ void __launch_bounds__(128) gemm_f16(const __grid_constant__ ck_gemm a) { gemm<0>(a); }
extern "C" __global__ void __launch_bounds__(128) gemm_bf16(const __grid_constant__ ck_gemm a) { gemm<1>(a); }
