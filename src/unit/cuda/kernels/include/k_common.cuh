/* k_common.cuh: device helpers shared by most kernels: programmatic dependent launch, activations,
 * reductions over a warp or block in one fixed order, decoding of every weight storage, argmax with
 * NaN handling, rotary angles, K/V element access. Contains no kernel. Numerical rule: every sum has
 * one fixed order that depends only on shapes, so results are reproducible bit for bit.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_K_COMMON_CUH
#define SG_UNIT_CUDA_K_COMMON_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math_constants.h>

#include "params/kparams.h"

/* ACT values as in graph/op.h; restated because that header is for C. */
enum { ACT_NONE, ACT_SILU, ACT_GELU, ACT_GELU_TANH, ACT_GELU_QUICK, ACT_RELU, ACT_RELU2, ACT_SIGMOID, ACT_TANH };

/* Programmatic dependent launch: lets the next grid of the stream start now (its blocks still wait
 * in wait_for_inputs for memory). No-op before sm_90. */
__device__ __forceinline__ void launch_dependents()
{
#if __CUDA_ARCH__ == 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Blocks until all prerequisite grids have completed and their writes are visible. Everything before
 * it may read only weights and memory written by earlier passes. */
__device__ __forceinline__ void wait_for_inputs()
{
#if __CUDA_ARCH__ == 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
/* Approximate exp, reciprocal, sigmoid and tanh (relative error about 2^-20), for kernels whose code
 * would otherwise exceed the instruction cache. */
__device__ __forceinline__ float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float exp_fast(float x) { return exp2_fast(x * 1.4426950408889634f); }
__device__ __forceinline__ float rcp_fast(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float sigmoid_fast(float x) { return rcp_fast(1.0f + exp_fast(-x)); }
__device__ __forceinline__ float tanh_fast(float x) { return 1.0f - 2.0f * rcp_fast(1.0f + exp_fast(2.0f * x)); }
/* log(1 + e^x) without overflow for large x. */
__device__ __forceinline__ float softplus(float x) { return (x > 0 ? x : 0) + log1pf(expf(-fabsf(x))); }

/* All activations except SiLU. ReLU variants return 0 * x for x <= 0, so that NaN propagates. */
__device__ __forceinline__ float activate_inline(uint32_t act, float x)
{
    switch (act) {
    case ACT_GELU:
        return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
    case ACT_GELU_TANH:
        return 0.5f * x * (1.0f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
    case ACT_GELU_QUICK:
        return x * sigmoid(1.702f * x);
    case ACT_RELU:
        return x > 0 ? x : 0 * x;
    case ACT_RELU2:
        return x > 0 ? x * x : 0 * x;
    case ACT_SIGMOID:
        return sigmoid(x);
    case ACT_TANH:
        return tanhf(x);
    default:
        return x;
    }
}
/* Out-of-line copy, one per module, to keep rarely used activations out of the instruction cache's
 * working set. */
static __device__ __noinline__ float activate_outlined(uint32_t act, float x) { return activate_inline(act, x); }

__device__ __forceinline__ float activate(uint32_t act, float x)
{
    return act == ACT_SILU ? x * sigmoid(x) : activate_outlined(act, x);
}

__device__ __forceinline__ float warp_sum(float x)
{
#pragma unroll
    for (int m = 16; m; m >>= 1) x += __shfl_xor_sync(0xffffffffu, x, m);
    return x;
}

__device__ __forceinline__ float warp_max(float x)
{
#pragma unroll
    for (int m = 16; m; m >>= 1) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, m));
    return x;
}

/* Sum over a block of up to 1,024 threads, returned to every thread; scratch: 32 floats of shared
 * memory. */
__device__ __forceinline__ float block_sum(float x, float *scratch)
{
    x = warp_sum(x);
    __syncthreads();
    if ((threadIdx.x & 31) == 0) scratch[threadIdx.x >> 5] = x;
    __syncthreads();
    float s = (threadIdx.x & 31) < (blockDim.x >> 5) ? scratch[threadIdx.x & 31] : 0;
    return warp_sum(s);
}

/* Four warp sums at once: lane l receives the sum of argument (l >> 3) & 3. The exchange order is
 * that of warp_sum, so each result equals warp_sum's bit for bit. */
__device__ __forceinline__ float warp_sum_4(float a, float b, float c, float d)
{
    uint32_t lane = threadIdx.x & 31;
    bool high = lane & 16;
    float x = high ? c : a, y = high ? d : b;
    x += __shfl_xor_sync(0xffffffffu, high ? a : c, 16);
    y += __shfl_xor_sync(0xffffffffu, high ? b : d, 16);
    high = lane & 8;
    float z = high ? y : x;
    z += __shfl_xor_sync(0xffffffffu, high ? x : y, 8);
    z += __shfl_xor_sync(0xffffffffu, z, 4);
    z += __shfl_xor_sync(0xffffffffu, z, 2);
    z += __shfl_xor_sync(0xffffffffu, z, 1);
    return z;
}

/* Byte i of a word as a float: the byte is placed into the low mantissa bits of 2^23 and `bias`
 * (2^23, plus 128 for signed bytes) is subtracted. Exact. */
__device__ __forceinline__ float byte_float(uint32_t word, int i, float bias)
{
    return __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7440u | i)) - bias;
}

/* Two e4m3 values in the low half of a word as two fp16. Exact. */
__device__ __forceinline__ __half2 e4m3x2_to_half2(uint32_t pair)
{
    uint32_t h;
#if __CUDA_ARCH__ >= 890
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(h) : "h"((unsigned short)pair));
    return *reinterpret_cast<__half2 *>(&h);
#else /* the bits, read as fp16, are the value times 2^-8 */
    uint32_t high = __byte_perm(pair, 0, 0x1404);
    h = (high & 0x80008000u) | (high >> 1 & 0x3f803f80u);
    return __hmul2(*reinterpret_cast<__half2 *>(&h), __float2half2_rn(256));
#endif
}

/* Per storage: N weights per 16-byte piece; SCALES: scales inside a row; OFFSETS: pairs {scale,
 * offset}; WHOLE: one scale per row, applied to the finished sum. */
template <int KIND> struct Kind;
template <> struct Kind<CK_F32> {
    enum { N = 4, SCALES = 0, OFFSETS = 0, WHOLE = 0 };
};
template <> struct Kind<CK_F16> {
    enum { N = 8, SCALES = 0, OFFSETS = 0, WHOLE = 0 };
};
template <> struct Kind<CK_BF16> {
    enum { N = 8, SCALES = 0, OFFSETS = 0, WHOLE = 0 };
};
template <> struct Kind<CK_Q8> {
    enum { N = 16, SCALES = 1, OFFSETS = 0, WHOLE = 0 };
};
template <> struct Kind<CK_Q4> {
    enum { N = 32, SCALES = 1, OFFSETS = 1, WHOLE = 0 };
};
template <> struct Kind<CK_G8> {
    enum { N = 16, SCALES = 1, OFFSETS = 1, WHOLE = 0 };
};
template <> struct Kind<CK_G4> {
    enum { N = 32, SCALES = 1, OFFSETS = 1, WHOLE = 0 };
};
template <> struct Kind<CK_F8> {
    enum { N = 16, SCALES = 0, OFFSETS = 0, WHOLE = 1 };
};

/* Component i of a vector of four words. */
__device__ __forceinline__ uint32_t component(const uint4 &v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

__device__ __forceinline__ float4 bf16x4_to_float4(uint2 v)
{
    return make_float4(__uint_as_float(v.x << 16), __uint_as_float(v.x & 0xffff0000u), __uint_as_float(v.y << 16),
                       __uint_as_float(v.y & 0xffff0000u));
}

/* Weights 4 * plane .. 4 * plane + 3 of a 16-byte piece, before scale and offset. */
template <int KIND> __device__ __forceinline__ float4 piece_plane(const uint4 &v, int plane)
{
    float4 f;
    if (KIND == CK_F32) {
        f = make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w));
    } else if (KIND == CK_BF16) {
        uint32_t a = component(v, 2 * plane), b = component(v, 2 * plane + 1);
        f = bf16x4_to_float4(make_uint2(a, b));
    } else if (KIND == CK_F16) {
        uint32_t a = component(v, 2 * plane), b = component(v, 2 * plane + 1);
        float2 lo = __half22float2(*reinterpret_cast<const __half2 *>(&a));
        float2 hi = __half22float2(*reinterpret_cast<const __half2 *>(&b));
        f = make_float4(lo.x, lo.y, hi.x, hi.y);
    } else if (KIND == CK_F8) {
        uint32_t w = component(v, plane);
        float2 lo = __half22float2(e4m3x2_to_half2(w)), hi = __half22float2(e4m3x2_to_half2(w >> 16));
        f = make_float4(lo.x, lo.y, hi.x, hi.y);
    } else {
        /* Quantised values as bytes, converted exactly by byte_float. */
        uint32_t w;
        if (KIND == CK_Q4 || KIND == CK_G4)
            w = (plane < 4 ? component(v, plane) : component(v, plane - 4) >> 4) & 0x0f0f0f0fu;
        else if (KIND == CK_Q8)
            /* Q8 bytes are biased by 128 (sign bit flipped). */
            w = component(v, plane) ^ 0x80808080u;
        else
            w = component(v, plane);
        float bias = KIND == CK_Q8 ? 8388608.0f + 128 : 8388608.0f;
        f = make_float4(byte_float(w, 0, bias), byte_float(w, 1, bias), byte_float(w, 2, bias), byte_float(w, 3, bias));
    }
    return f;
}

/* {scale, offset} of piece c of a row; {1, 0} for storages without. */
template <int KIND>
__device__ __forceinline__ float2 piece_scale(const void *scales, size_t row, uint32_t pitch, uint32_t group, uint32_t c)
{
    /* Q8_0 has one scale per 32 weights, i.e. per two pieces. */
    if (KIND == CK_Q8) return make_float2(__half2float(static_cast<const __half *>(scales)[row * pitch + c / 2]), 0);
    if (KIND == CK_Q4) return __half22float2(static_cast<const __half2 *>(scales)[row * pitch + c]);
    if (KIND == CK_G8 || KIND == CK_G4) return static_cast<const float2 *>(scales)[row * pitch + c * Kind<KIND>::N / group];
    if (KIND == CK_F8) return make_float2(static_cast<const float *>(scales)[row], 0);
    return make_float2(1, 0);
}

/* Layer or RMS norm of one value: inverse = 1 / standard deviation or 1 / root mean square, plus = 1
 * for 1 + weight. */
__device__ __forceinline__ float apply_norm(float x, float mean, float inverse, float plus, float w, float b)
{
    return (x - mean) * inverse * (plus + w) + b;
}
/* RMS norm of one value, multiplied by SiLU(gate). */
__device__ __forceinline__ float norm_gated(float x, float inverse, float plus, float w, float gate)
{
    return x * inverse * (plus + w) * activate(ACT_SILU, gate);
}
__device__ __forceinline__ float4 float4_at(const float *x, uint32_t e) { return *reinterpret_cast<const float4 *>(x + e); }

/* Argmax of two candidates, smallest index on ties. Index 0xffffffff marks a NaN and wins over
 * everything; 0xfffffffe means no candidate. */
__device__ __forceinline__ void better(float &best, uint32_t &index, float v, uint32_t i)
{
    if (i == 0xffffffffu || index == 0xffffffffu)
        index = 0xffffffffu;
    else if (i != 0xfffffffeu && (index == 0xfffffffeu || v > best || (v == best && i < index)))
        best = v, index = i;
}
/* A candidate as one 64-bit key whose unsigned order is the argmax order (-0 equals 0, smallest row
 * wins ties), for reductions over many candidates. key_row and key_value invert it. */
__device__ __forceinline__ uint64_t order_key(float v, uint32_t row)
{
    /* Map the float order to unsigned order; NaN to the largest key, "none" to the smallest. */
    uint32_t b = __float_as_uint(v + 0.0f);
    b ^= (uint32_t)((int32_t)b >> 31) | 0x80000000u;
    if (row >= 0xfffffffeu) b = row == 0xffffffffu ? 0xffffffffu : 0;
    return (uint64_t)b << 32 | (uint32_t)~row;
}
__device__ __forceinline__ uint32_t key_row(uint64_t s) { return ~(uint32_t)s; }
__device__ __forceinline__ float key_value(uint64_t s)
{
    uint32_t b = (uint32_t)(s >> 32);
    return __uint_as_float(b ^ (b & 0x80000000u ? 0x80000000u : 0xffffffffu));
}
/* Largest key of the warp, returned to all lanes. */
__device__ __forceinline__ uint64_t warp_best(uint64_t s)
{
    uint32_t high = __reduce_max_sync(0xffffffffu, (uint32_t)(s >> 32)), low = high == (uint32_t)(s >> 32) ? (uint32_t)s : 0;
    return (uint64_t)high << 32 | __reduce_max_sync(0xffffffffu, low);
}
/* Updates a running argmax with row `row` of value v, skipping banned rows. After a NaN nothing
 * replaces it. */
__device__ __forceinline__ void update_best(const ck_banned &banned, float v, uint32_t row, float &best, uint32_t &index)
{
    if (row >= banned.limit || v < best) return; /* a NaN passes this test */
    for (uint32_t i = 0; i < banned.n; i++)
        if (banned.rows[i] == (int32_t)row) return;
    if (v != v) {
        best = CUDART_INF_F;
        index = 0xffffffffu;
    } else if (index != 0xffffffffu && (v > best || (v == best && row < index))) {
        best = v;
        index = row;
    }
}

/* One dequantised weight, for kernels that read few. */
__device__ __forceinline__ float weight_at(const ck_weight &w, size_t row, uint32_t col)
{
    const unsigned char *data = static_cast<const unsigned char *>(w.data) + row * w.pitch;
    switch (w.kind) {
    case CK_F32:
        return reinterpret_cast<const float *>(data)[col];
    case CK_F16:
        return __half2float(reinterpret_cast<const __half *>(data)[col]);
    case CK_BF16:
        return __uint_as_float((uint32_t) reinterpret_cast<const uint16_t *>(data)[col] << 16);
    case CK_Q8:
        return (float)(signed char)data[col] *
               __half2float(static_cast<const __half *>(w.scales)[row * w.scale_pitch + col / 32]);
    case CK_F8: /* the bits, read as fp32, are the value times 2^-120 */
        return __uint_as_float((data[col] & 0x80u) << 24 | (data[col] & 0x7fu) << 20) * 1.329227995784916e36f *
               static_cast<const float *>(w.scales)[row];
    case CK_G8: {
        float2 s = static_cast<const float2 *>(w.scales)[row * w.scale_pitch + col / w.group];
        return fmaf((float)data[col], s.x, s.y);
    }
    default: {
        /* 4-bit storages: byte j of a block holds weights j and j + 16. */
        uint32_t b = data[col / 32 * 16 + col % 16], q = col % 32 < 16 ? b & 15u : b >> 4;
        float2 s = w.kind == CK_Q4 ? __half22float2(static_cast<const __half2 *>(w.scales)[row * w.scale_pitch + col / 32])
                                   : static_cast<const float2 *>(w.scales)[row * w.scale_pitch + col / w.group];
        return fmaf((float)q, s.x, s.y);
    }
    }
}

/* sin and cos of pos * inverse: the angle is reduced in fp64, the remainder is small enough for
 * fp32. */
__device__ __forceinline__ void rope_sincos(uint32_t pos, float inverse, float &s, float &c)
{
    double angle = (double)pos * (double)inverse;
    sincosf((float)(angle - 6.283185307179586477 * rint(angle * 0.15915494309189533577)), &s, &c);
}

/* Bytes of one head in a row of a K or V slot; the layout is [position][head][width] in the slot's
 * storage. */
__device__ __forceinline__ size_t kv_head_bytes(uint32_t storage, uint32_t width)
{
    return storage == CK_KV_F32 ? 4ull * width : storage == CK_KV_Q8 ? width + 2ull * ((width + 31) / 32) : 2ull * width;
}

/* Column c of a head in the given storage, as fp32. */
template <int STORAGE> __device__ __forceinline__ float kv_at(const unsigned char *head, uint32_t c)
{
    if (STORAGE == CK_KV_F32) return reinterpret_cast<const float *>(head)[c];
    if (STORAGE == CK_KV_F16) return __half2float(reinterpret_cast<const __half *>(head)[c]);
    if (STORAGE == CK_KV_BF16) return __uint_as_float((uint32_t) reinterpret_cast<const uint16_t *>(head)[c] << 16);
    /* Q8_0: 2 bytes scale, then 32 values. */
    const unsigned char *block = head + (size_t)(c / 32) * 34;
    __half_raw scale;
    scale.x = (unsigned short)(block[0] | block[1] << 8);
    return __half2float(__half(scale)) * (float)(signed char)block[2 + c % 32];
}

#endif
