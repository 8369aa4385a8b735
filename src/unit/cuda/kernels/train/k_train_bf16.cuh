/* k_train_bf16.cuh: bf16 numbers, eight at a time, and products of fragments on tensor cores. Contains no kernel.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_K_TRAIN_BF16_CUH
#define SG_UNIT_CUDA_K_TRAIN_BF16_CUH

/* Errors of 2^-11 for tanh and less for exp; a number of bf16 has one of 2^-9. */
#ifdef __CUDACC__
__device__ __forceinline__ float half_tanh(float x)
{
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#define TRAIN_EXP(x) __expf(x)
#define TRAIN_TANH(x) half_tanh(x)
#endif

#include "k_train.cuh"
#include "ktrain_bf16.h"

__device__ __forceinline__ float half_bits(uint32_t bits)
{
#ifdef __CUDA_ARCH__
    return __uint_as_float(bits);
#else
    float y;
    memcpy(&y, &bits, 4);
    return y;
#endif
}
__device__ __forceinline__ float half_of(uint16_t x) { return half_bits((uint32_t)x << 16); }

/* To the nearest, ties to even; low in the lower 16 bits. */
__device__ __forceinline__ uint32_t half_pair(float low, float high)
{
    uint32_t y;
#ifdef __CUDA_ARCH__
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
#else
    float x[2] = {low, high};
    y = 0;
    for (int i = 0; i < 2; i++) {
        uint32_t b;
        memcpy(&b, &x[i], 4);
        b = (b & 0x7fffffff) > 0x7f800000 ? b >> 16 | 0x40 : (b + 0x7fff + (b >> 16 & 1)) >> 16;
        y |= (b & 0xffff) << (16 * i);
    }
#endif
    return y;
}
__device__ __forceinline__ uint16_t half_to(float x) { return (uint16_t)half_pair(x, 0); }

/* Eight numbers. */
struct __align__(16) half_eight { uint32_t w[4]; };
__device__ __forceinline__ void half_load(float (&x)[8], const uint16_t *p)
{
    half_eight v = *reinterpret_cast<const half_eight *>(p);
#pragma unroll
    for (int i = 0; i < 4; i++) x[2 * i] = half_bits(v.w[i] << 16), x[2 * i + 1] = half_bits(v.w[i] & 0xffff0000u);
}
__device__ __forceinline__ void half_store(uint16_t *p, const float (&x)[8])
{
    half_eight v;
#pragma unroll
    for (int i = 0; i < 4; i++) v.w[i] = half_pair(x[2 * i], x[2 * i + 1]);
    *reinterpret_cast<half_eight *>(p) = v;
}
/* Eight fp32 numbers at a multiple of 16 bytes. */
struct __align__(16) half_four { float x[4]; };
__device__ __forceinline__ void half_wide(float (&x)[8], const float *p)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        half_four v = *reinterpret_cast<const half_four *>(p + 4 * i);
#pragma unroll
        for (int k = 0; k < 4; k++) x[4 * i + k] = v.x[k];
    }
}
/* A gradient: p (+)= x. */
__device__ __forceinline__ void half_add(uint16_t *p, const float (&x)[8], uint32_t fresh)
{
    float y[8];
    if (fresh) {
        half_store(p, x);
        return;
    }
    half_load(y, p);
#pragma unroll
    for (int i = 0; i < 8; i++) y[i] += x[i];
    half_store(p, y);
}

/* --- tensor cores: fragments of mma.m16n8k16 --- */

__device__ __forceinline__ void half_mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
#ifdef __CUDA_ARCH__
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    emulated_mma(c, a, b0, b1);
#endif
}
/* Four 8 x 8 matrices; lane l gives the address of row l % 8 of matrix l / 8. TURNED: each transposed. */
template <bool TURNED> __device__ __forceinline__ void half_matrices(uint32_t (&r)[4], const uint16_t *row)
{
#ifdef __CUDA_ARCH__
    uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    if (TURNED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
#else
    emulated_matrices(r, row, TURNED);
#endif
}

/* --- copies of 16 bytes to shared memory; zeros where `in` is false --- */

__device__ __forceinline__ void half_copy(uint16_t *to, const uint16_t *from, bool in)
{
#ifdef __CUDA_ARCH__
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from),
                 "r"(in ? 16 : 0) : "memory");
#else
    for (int i = 0; i < 8; i++) to[i] = in ? from[i] : 0;
#endif
}
__device__ __forceinline__ void half_copies_end()
{
#ifdef __CUDA_ARCH__
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int LEFT> __device__ __forceinline__ void half_copies_wait()
{
#ifdef __CUDA_ARCH__
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
#endif
}

#endif
