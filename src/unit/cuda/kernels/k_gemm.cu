/* k_gemm.cu: kernels around the matrix products of prompts: conversion of activations to 16 bits
 * with a fused norm or gate (narrow), dequantisation of weights to 16 bits for one layer at a time
 * (widen), and a tensor-core GEMM (64 x 64 tiles, fp32 accumulators) for systems without cuBLASLt.
 * All architectures.
 * SPDX-License-Identifier: MIT */
#include "k_mma.cuh"

/* Stores element i in 16 bits. */
__device__ __forceinline__ void put16(void *y, size_t i, float v, uint32_t bf16)
{
    if (bf16)
        static_cast<__nv_bfloat16 *>(y)[i] = __float2bfloat16_rn(v);
    else
        static_cast<__half *>(y)[i] = __float2half_rn(v);
}

/* Two numbers as one word of 16-bit values. */
__device__ __forceinline__ uint32_t pair16(float x, float y, uint32_t bf16)
{
    if (bf16) {
        __nv_bfloat162 v = __floats2bfloat162_rn(x, y);
        return *reinterpret_cast<uint32_t *>(&v);
    }
    __half2 v = __floats2half2_rn(x, y);
    return *reinterpret_cast<uint32_t *>(&v);
}

/* Stores x, scaled into the range of fp16 by CK_F16_MANY, one or four elements. */
__device__ __forceinline__ void put_one(const ck_narrow &a, size_t i, float v)
{
    put16(a.y, i, a.bf16 ? v : v * (1 / CK_F16_MANY), a.bf16);
}
__device__ __forceinline__ void put_four(const ck_narrow &a, size_t i, float4 v)
{
    const float by = a.bf16 ? 1 : 1 / CK_F16_MANY;
    *reinterpret_cast<uint2 *>(static_cast<uint16_t *>(a.y) + i) = make_uint2(pair16(v.x * by, v.y * by, a.bf16),
                                                                              pair16(v.z * by, v.w * by, a.bf16));
}

/* Sum of squares of four numbers. */
__device__ __forceinline__ float squares_of(float4 v) { return v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w; }

/* Stores x and, if requested, the remainder of the rounding. */
__device__ __forceinline__ void put_hi_lo(const ck_narrow &a, size_t i, float v)
{
    if (!a.low) return put_one(a, i, v);
    const float by = a.bf16 ? 1 : 1 / CK_F16_FEW;
    float kept = a.bf16 ? __bfloat162float(__float2bfloat16_rn(v)) : __half2float(__float2half_rn(v * by)) * CK_F16_FEW;
    put16(a.y, i, v * by, a.bf16);
    put16(a.low, i, v - kept, a.bf16);
}

/* One row normalised per group, with an optional gate: one warp per group. */
__device__ __forceinline__ void narrow_groups(const ck_narrow &a, const float *x, size_t to, uint32_t t)
{
    uint32_t group = a.k / a.norm.groups, lane = threadIdx.x & 31;
    const float *gate = a.norm.gate.p ? a.norm.gate.p + (size_t)t * a.norm.gate.stride : nullptr;
    float plus = a.norm.plus_one && a.norm.weight ? 1.0f : 0.0f;
    /* A warp per group: sum of squares, then the scaled values. */
    for (uint32_t h = threadIdx.x >> 5; h < a.norm.groups; h += blockDim.x >> 5) {
        float squares = 0;
        for (uint32_t e = lane; e < group; e += 32) squares = fmaf(x[h * group + e], x[h * group + e], squares);
        float inverse = rsqrtf(warp_sum(squares) / group + a.norm.eps);
        for (uint32_t e = lane; e < group; e += 32) {
            float v = x[h * group + e], w = a.norm.weight ? a.norm.weight[e] : 1;
            put_hi_lo(a, to + h * group + e,
                      gate ? norm_gated(v, inverse, plus, w, gate[h * group + e]) : v * inverse * (plus + w));
        }
    }
}

/* Four elements of the gate, fp32 or bf16. */
__device__ __forceinline__ float4 gate_four(const ck_narrow &a, size_t i)
{
    if (!a.gate_halves) return *reinterpret_cast<const float4 *>(a.norm.gate.p + i);
    return bf16x4_to_float4(*reinterpret_cast<const uint2 *>(reinterpret_cast<const uint16_t *>(a.norm.gate.p) + i));
}

/* Normalises and narrows groups of 128 columns (heads): a warp holds one group, 16 bytes per lane. */
__device__ __forceinline__ void narrow_heads(const ck_narrow &a, const float *x, size_t to, uint32_t t)
{
    uint32_t lane = threadIdx.x & 31;
    bool gate = a.norm.gate.p;
    size_t gate_at = (size_t)t * a.norm.gate.stride;
    float plus = a.norm.plus_one && a.norm.weight ? 1.0f : 0.0f;
    float4 w = a.norm.weight ? float4_at(a.norm.weight, 4 * lane) : make_float4(1, 1, 1, 1);
    for (uint32_t h = threadIdx.x >> 5; h < a.norm.groups; h += blockDim.x >> 5) {
        uint32_t e = h * 128 + 4 * lane;
        float4 v = float4_at(x, e), g = gate ? gate_four(a, gate_at + e) : v;
        float inverse = rsqrtf(warp_sum(squares_of(v)) / 128 + a.norm.eps);
        if (gate)
            v = make_float4(norm_gated(v.x, inverse, plus, w.x, g.x), norm_gated(v.y, inverse, plus, w.y, g.y),
                            norm_gated(v.z, inverse, plus, w.z, g.z), norm_gated(v.w, inverse, plus, w.w, g.w));
        else
            v = make_float4(v.x * inverse * (plus + w.x), v.y * inverse * (plus + w.y), v.z * inverse * (plus + w.z),
                            v.w * inverse * (plus + w.w));
        put_four(a, to + e, v);
    }
}

/* Vectorised path: act(x) * x2, or an RMS norm of the whole row. */
__device__ __forceinline__ void narrow_fours(const ck_narrow &a, const float *x, uint32_t t, float *scratch)
{
    size_t to = (size_t)t * a.k;
    /* GLU: act(x) * x2. */
    if (a.x2.p) {
        const float *x2 = a.x2.p + (size_t)t * a.x2.stride;
        for (uint32_t e = 4 * threadIdx.x; e < a.k; e += 4 * blockDim.x) {
            float4 v = float4_at(x, e), u = float4_at(x2, e);
            put_four(a, to + e,
                     make_float4(activate(a.act, v.x) * u.x, activate(a.act, v.y) * u.y, activate(a.act, v.z) * u.z,
                                 activate(a.act, v.w) * u.w));
        }
        return;
    }
    /* RMS norm of the whole row, or plain conversion. */
    float squares = 0, inverse = 1, plus = a.norm.plus_one && a.norm.weight ? 1.0f : 0.0f;
    if (a.norm.present) {
        for (uint32_t e = 4 * threadIdx.x; e < a.k; e += 4 * blockDim.x) squares += squares_of(float4_at(x, e));
        inverse = rsqrtf(block_sum(squares, scratch) / a.k + a.norm.eps);
    }
    for (uint32_t e = 4 * threadIdx.x; e < a.k; e += 4 * blockDim.x) {
        float4 v = float4_at(x, e);
        if (a.norm.present) {
            float4 w = a.norm.weight ? float4_at(a.norm.weight, e) : make_float4(1, 1, 1, 1);
            v = make_float4(v.x * inverse * (plus + w.x), v.y * inverse * (plus + w.y), v.z * inverse * (plus + w.z),
                            v.w * inverse * (plus + w.w));
        }
        put_four(a, to + e, v);
    }
}

/* Grid (rows): x, normalised or activated and multiplied where requested, to dense 16 bits. */
extern "C" __global__ void narrow(const __grid_constant__ ck_narrow a)
{
    __shared__ float scratch[32];
    launch_dependents();
    wait_for_inputs();
    uint32_t t = blockIdx.x;
    const float *x = a.x.p + (size_t)t * a.x.stride;
    float mean = 0, inverse = 1;
    /* Vectorised paths first. */
    if (a.fours && a.norm.groups > 1) return narrow_heads(a, x, (size_t)t * a.k, t);
    if (a.fours) return narrow_fours(a, x, t, scratch);
    /* GLU, one element at a time. */
    if (a.x2.p) {
        const float *x2 = a.x2.p + (size_t)t * a.x2.stride;
        for (uint32_t e = threadIdx.x; e < a.k; e += blockDim.x) put_one(a, (size_t)t * a.k + e, activate(a.act, x[e]) * x2[e]);
        return;
    }
    if (a.norm.groups > 1) return narrow_groups(a, x, (size_t)t * a.k, t);
    /* Mean (layer norm only), then 1 / standard deviation or 1 / rms. */
    if (a.norm.present) {
        float sum = 0, squares = 0;
        if (a.norm.layer) {
            for (uint32_t e = threadIdx.x; e < a.k; e += blockDim.x) sum += x[e];
            mean = block_sum(sum, scratch) / a.k;
        }
        for (uint32_t e = threadIdx.x; e < a.k; e += blockDim.x) squares += (x[e] - mean) * (x[e] - mean);
        inverse = rsqrtf(block_sum(squares, scratch) / a.k + a.norm.eps);
    }
    /* Normalise and store. */
    for (uint32_t e = threadIdx.x; e < a.k; e += blockDim.x) {
        float v = x[e];
        if (a.norm.present) {
            v = (v - mean) * inverse;
            if (a.norm.weight) v *= a.norm.plus_one ? 1.0f + a.norm.weight[e] : a.norm.weight[e];
            if (a.norm.bias) v += a.norm.bias[e];
        }
        put_hi_lo(a, (size_t)t * a.k + e, v);
    }
}

/* Gate and up in bf16, side by side in rows of 2 k: a thread computes 8 elements of act(gate) * up. */
extern "C" __global__ void narrow_halves(const __grid_constant__ ck_narrow a)
{
    wait_for_inputs();
    uint32_t pieces = a.k / 8, i = blockIdx.x * blockDim.x + threadIdx.x, t = i / pieces;
    if (t >= a.rows) return;
    /* Gate's 16 bytes and up's 16 bytes of the same columns. */
    const uint4 *from = reinterpret_cast<const uint4 *>(a.x.p) + (size_t)t * 2 * pieces + i % pieces;
    uint4 gate = from[0], up = from[pieces], out;
    const __nv_bfloat162 *g = reinterpret_cast<const __nv_bfloat162 *>(&gate), *u = reinterpret_cast<const __nv_bfloat162 *>(&up);
    uint32_t *y = reinterpret_cast<uint32_t *>(&out);
#pragma unroll
    for (int k = 0; k < 4; k++) {
        float2 v = __bfloat1622float2(g[k]), w = __bfloat1622float2(u[k]);
        y[k] = pair16(activate(a.act, v.x) * w.x, activate(a.act, v.y) * w.y, 1);
    }
    reinterpret_cast<uint4 *>(a.y)[i] = out;
}

/* Dequantises 16 bytes of weights per thread. */
template <int KIND> __device__ __forceinline__ void widen_piece(const ck_widen &a, uint32_t i)
{
    enum { NUMBERS = Kind<KIND>::N };
    uint32_t each = a.w.cols / NUMBERS, r = i / each, c = i % each;
    if (r >= a.rows) return;
    size_t row = (size_t)a.at + r;
    /* Weights are read once: streaming load. */
    uint4 v = __ldcs(reinterpret_cast<const uint4 *>(static_cast<const unsigned char *>(a.w.data) + row * a.w.pitch) + c);
    float2 s = piece_scale<KIND>(a.w.scales, row, a.w.scale_pitch, a.w.group, c);
    uint32_t out[NUMBERS / 2];
#pragma unroll
    for (int p = 0; p < NUMBERS / 4; p++) {
        float4 f = piece_plane<KIND>(v, p);
        out[2 * p] = pair16(fmaf(f.x, s.x, s.y), fmaf(f.y, s.x, s.y), a.bf16);
        out[2 * p + 1] = pair16(fmaf(f.z, s.x, s.y), fmaf(f.w, s.x, s.y), a.bf16);
    }
    uint4 *to = reinterpret_cast<uint4 *>(static_cast<uint16_t *>(a.y) + (size_t)r * a.w.cols + c * NUMBERS);
#pragma unroll
    for (int p = 0; p < NUMBERS / 8; p++) to[p] = make_uint4(out[4 * p], out[4 * p + 1], out[4 * p + 2], out[4 * p + 3]);
}

/* Vectorised: columns are whole pieces, a.w.kind is uniform. */
extern "C" __global__ void widen_pieces(const __grid_constant__ ck_widen a)
{
    wait_for_inputs();
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (a.w.kind == CK_Q8) widen_piece<CK_Q8>(a, i);
    if (a.w.kind == CK_Q4) widen_piece<CK_Q4>(a, i);
    if (a.w.kind == CK_G8) widen_piece<CK_G8>(a, i);
    if (a.w.kind == CK_F8) widen_piece<CK_F8>(a, i);
    if (a.w.kind == CK_G4) widen_piece<CK_G4>(a, i);
}

/* Any number of columns: a thread per weight. */
extern "C" __global__ void widen(const __grid_constant__ ck_widen a)
{
    wait_for_inputs();
    uint32_t c = blockIdx.y * blockDim.x + threadIdx.x;
    if (c < a.w.cols) put16(a.y, (size_t)blockIdx.x * a.w.cols + c, weight_at(a.w, (size_t)a.at + blockIdx.x, c), a.bf16);
}

/* Tile sizes, and padding of a shared-memory row against bank conflicts. */
enum { TM = 64, TN = 64, TK = 32, PAD = 8 };

/* y[t][n] = x[t] . w[n]; 128 threads = 4 warps of 32 x 32 outputs. x dense [rows][k] in 16 bits. */
template <int BF16> __device__ __forceinline__ void gemm(const ck_gemm &a)
{
    __shared__ uint16_t xs[TM][TK + PAD], ws[TN][TK + PAD];
    uint32_t t0 = blockIdx.y * TM, n0 = blockIdx.x * TN, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    /* Warp tile origin inside the block tile; lane's row and column pair in a fragment. */
    uint32_t wm = warp / 2 * 32, wn = warp % 2 * 32, group = lane >> 2, pair = (lane & 3) * 2;
    float acc[2][4][4] = {};
    wait_for_inputs();
    /* Stage 32 columns of x and W, zero-padded at the edges. */
    for (uint32_t k0 = 0; k0 < a.k; k0 += TK) {
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < TM * TK; i += 128) {
            uint32_t r = i / TK, c = i % TK, k = k0 + c;
            xs[r][c] = t0 + r < a.rows && k < a.k ? static_cast<const uint16_t *>(a.x)[(size_t)(t0 + r) * a.k + k] : 0;
            const unsigned char *row = static_cast<const unsigned char *>(a.segment.data) +
                                       (size_t)(a.segment.at + n0 + r) * a.pitch;
            ws[r][c] = n0 + r < a.segment.n && k < a.k ? reinterpret_cast<const uint16_t *>(row)[k] : 0;
        }
        __syncthreads();
        /* Two k steps of 16: load fragments, then 2 x 4 products. */
#pragma unroll
        for (int kk = 0; kk < TK; kk += 16) {
            uint32_t fa[2][4], fb[4][2];
#pragma unroll
            for (int m = 0; m < 2; m++) {
                const uint16_t *lo = &xs[wm + m * 16 + group][kk + pair], *hi = &xs[wm + m * 16 + group + 8][kk + pair];
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
    /* Epilogue: fp16 sums are scaled back, bias and residual added. */
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t t = t0 + wm + m * 16 + group + (i / 2) * 8, row = n0 + wn + n * 8 + pair + i % 2;
                if (t >= a.rows || row >= a.segment.n) continue;
                float v = BF16 ? acc[m][n][i] : acc[m][n][i] * CK_F16_MANY;
                if (a.segment.bias) v += a.segment.bias[row];
                if (a.segment.residual.p) v += a.segment.residual.p[(size_t)t * a.segment.residual.stride + row];
                a.segment.y.p[(size_t)t * a.segment.y.stride + row] = v;
            }
}

extern "C" __global__ void __launch_bounds__(128) gemm_f16(const __grid_constant__ ck_gemm a) { gemm<0>(a); }
extern "C" __global__ void __launch_bounds__(128) gemm_bf16(const __grid_constant__ ck_gemm a) { gemm<1>(a); }
