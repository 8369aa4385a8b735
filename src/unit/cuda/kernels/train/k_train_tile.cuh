/* k_train_tile.cuh: one tile of a product of fp32 matrices, by a block of 256 threads. MODE (enum ct_products) says how numbers are
 * multiplied: in fp32; on tensor cores as the sum of three products of tf32 halves, which is as exact to a few parts of 10^7; on
 * tensor cores in bf16. Sums are fp32, in a fixed order. The tiles of A and of B are double-buffered in shared memory.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_K_TRAIN_TILE_CUH
#define SG_UNIT_CUDA_K_TRAIN_TILE_CUH

#include "k_train.cuh"

/* --- copies to shared memory; zeros where `in` is false --- */

__device__ __forceinline__ void copy_4(float *to, const float *from, bool in)
{
#ifdef __CUDA_ARCH__
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from),
                 "r"(in ? 4 : 0));
#else
    *to = in ? *from : 0;
#endif
}
__device__ __forceinline__ void copy_16(float *to, const float *from, bool in)
{
#ifdef __CUDA_ARCH__
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from),
                 "r"(in ? 16 : 0));
#else
    for (int i = 0; i < 4; i++) to[i] = in ? from[i] : 0;
#endif
}
__device__ __forceinline__ void copies_commit()
{
#ifdef __CUDA_ARCH__
    asm volatile("cp.async.commit_group;");
#endif
}
/* All but the last `left` groups are complete. */
template <int LEFT> __device__ __forceinline__ void copies_wait()
{
#ifdef __CUDA_ARCH__
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
#endif
}

/* --- operands --- */

/* SIZE rows (or columns of B) of CT_DEEP numbers of the sum. DEEP_FIRST: memory has one k after the other, element (i, k) at
 * p[k ld + i]; else p[i ld + k]. The paddings let a warp read a fragment without bank conflicts. */
template <int SIZE, bool DEEP_FIRST> struct train_operand {
    enum { LINE = DEEP_FIRST ? SIZE + 8 : CT_DEEP + 4, NUMBERS = DEEP_FIRST ? CT_DEEP * LINE : SIZE * LINE };

    __device__ static float at(const float *s, int i, int k) { return DEEP_FIRST ? s[k * LINE + i] : s[i * LINE + k]; }

    /* k [k0, k1) and i [i0, limit) of the operand; 16 bytes at a time where these are aligned. */
    __device__ static void load(float *to, const float *p, size_t ld, uint32_t i0, uint32_t limit, uint32_t k0, uint32_t k1)
    {
        bool whole = (uintptr_t)p % 16 == 0 && ld % 4 == 0 && (DEEP_FIRST ? limit % 4 == 0 : k0 % 4 == 0 && k1 % 4 == 0);
        if (whole) {
#pragma unroll
            for (int n = threadIdx.x; n < SIZE * CT_DEEP / 4; n += CT_THREADS) {
                int i = DEEP_FIRST ? n % (SIZE / 4) * 4 : n / (CT_DEEP / 4), k = DEEP_FIRST ? n / (SIZE / 4) : n % (CT_DEEP / 4) * 4;
                bool in = i0 + i < limit && k0 + k < k1;
                size_t from = DEEP_FIRST ? (size_t)(k0 + k) * ld + i0 + i : (size_t)(i0 + i) * ld + k0 + k;
                copy_16(to + (DEEP_FIRST ? k * LINE + i : i * LINE + k), in ? p + from : p, in);
            }
            return;
        }
#pragma unroll 4
        for (int n = threadIdx.x; n < SIZE * CT_DEEP; n += CT_THREADS) {
            int i = DEEP_FIRST ? n % SIZE : n / CT_DEEP, k = DEEP_FIRST ? n / SIZE : n % CT_DEEP;
            bool in = i0 + i < limit && k0 + k < k1;
            size_t from = DEEP_FIRST ? (size_t)(k0 + k) * ld + i0 + i : (size_t)(i0 + i) * ld + k0 + k;
            copy_4(to + (DEEP_FIRST ? k * LINE + i : i * LINE + k), in ? p + from : p, in);
        }
    }
};

/* --- tensor cores --- */

#ifdef __CUDA_ARCH__
__device__ __forceinline__ uint32_t to_tf32(float x)
{
    uint32_t y;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
    return y;
}
/* x = high + low, up to 2^-22. */
__device__ __forceinline__ void halves(float x, uint32_t &high, uint32_t &low)
{
    high = to_tf32(x);
    low = to_tf32(x - __uint_as_float(high));
}
__device__ __forceinline__ uint32_t bf16_pair(float low, float high)
{
    uint32_t y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}
__device__ __forceinline__ void mma_tf32(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ void mma_bf16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif

/* --- the tile --- */

/* [SIZE, SIZE] numbers of A B. AT: A is stored with one k after the other; BT: B is stored as [columns, k]. Eight warps, two down
 * and four across, have fragments of 16 x 8 numbers. Nothing outside the limits is read; it counts as 0. */
template <int SIZE, bool AT, bool BT, int MODE> struct train_tile {
    enum { DOWN = SIZE / 32, ACROSS = SIZE / 32 };
    typedef train_operand<SIZE, AT> A;
    typedef train_operand<SIZE, !BT> B;
    float sum[DOWN][ACROSS][4];

    __device__ void clear()
    {
#pragma unroll
        for (int i = 0; i < DOWN; i++)
#pragma unroll
            for (int j = 0; j < ACROSS; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) sum[i][j][e] = 0;
    }
    /* First row and column of a fragment, and those of this thread in it. */
    __device__ static int row_at(int i) { return threadIdx.x / 128 * (SIZE / 2) + 16 * i; }
    __device__ static int column_at(int j) { return threadIdx.x / 32 % 4 * (SIZE / 4) + 8 * j; }
    __device__ static int row_in(int e) { return threadIdx.x % 32 / 4 + e / 2 * 8; }
    __device__ static int column_in(int e) { return threadIdx.x % 4 * 2 + e % 2; }

    __device__ void multiply_fp32(const float *a, const float *b)
    {
#pragma unroll 1
        for (int k = 0; k < CT_DEEP; k++)
#pragma unroll
            for (int i = 0; i < DOWN; i++)
#pragma unroll
                for (int j = 0; j < ACROSS; j++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        sum[i][j][e] = fmaf(A::at(a, row_at(i) + row_in(e), k), B::at(b, column_at(j) + column_in(e), k), sum[i][j][e]);
    }
#ifdef __CUDA_ARCH__
    __device__ void multiply_tf32(const float *a, const float *b)
    {
        int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int k = 0; k < CT_DEEP; k += 8) {
            uint32_t bh[ACROSS][2], bl[ACROSS][2];
#pragma unroll
            for (int j = 0; j < ACROSS; j++)
#pragma unroll
                for (int e = 0; e < 2; e++) halves(B::at(b, column_at(j) + g, k + t + 4 * e), bh[j][e], bl[j][e]);
#pragma unroll
            for (int i = 0; i < DOWN; i++) {
                uint32_t ah[4], al[4];
#pragma unroll
                for (int e = 0; e < 4; e++) halves(A::at(a, row_at(i) + g + e % 2 * 8, k + t + e / 2 * 4), ah[e], al[e]);
#pragma unroll
                for (int j = 0; j < ACROSS; j++) {
                    mma_tf32(sum[i][j], al, bh[j]);
                    mma_tf32(sum[i][j], ah, bl[j]);
                    mma_tf32(sum[i][j], ah, bh[j]);
                }
            }
        }
    }
    __device__ void multiply_bf16(const float *a, const float *b)
    {
        int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4 * 2;
        uint32_t bb[ACROSS][2];
#pragma unroll
        for (int j = 0; j < ACROSS; j++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                bb[j][e] = bf16_pair(B::at(b, column_at(j) + g, t + 8 * e), B::at(b, column_at(j) + g, t + 8 * e + 1));
#pragma unroll
        for (int i = 0; i < DOWN; i++) {
            uint32_t aa[4];
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int row = row_at(i) + g + e % 2 * 8, k = t + e / 2 * 8;
                aa[e] = bf16_pair(A::at(a, row, k), A::at(a, row, k + 1));
            }
#pragma unroll
            for (int j = 0; j < ACROSS; j++) mma_bf16(sum[i][j], aa, bb[j]);
        }
    }
#endif
    __device__ void multiply(const float *a, const float *b)
    {
#ifdef __CUDA_ARCH__
        if (MODE == CT_TF32) multiply_tf32(a, b);
        else if (MODE == CT_BF16) multiply_bf16(a, b);
        else multiply_fp32(a, b);
#else
        multiply_fp32(a, b);
#endif
    }

    /* Adds the product over k [k0, k1) of rows [i0, ...) and columns [j0, ...). k0 is a multiple of 4 for speed. */
    __device__ void add(const float *a, size_t lda, uint32_t i0, uint32_t rows, const float *b, size_t ldb, uint32_t j0, uint32_t cols,
                        uint32_t k0, uint32_t k1)
    {
        __shared__ __align__(16) float as[2][A::NUMBERS], bs[2][B::NUMBERS];
        if (k0 >= k1) return;
        __syncthreads(); /* a tile before this one was read */
        A::load(as[0], a, lda, i0, rows, k0, k1);
        B::load(bs[0], b, ldb, j0, cols, k0, k1);
        copies_commit();
        for (uint32_t k = k0, stage = 0; k < k1; k += CT_DEEP, stage ^= 1) {
            if (k + CT_DEEP < k1) {
                A::load(as[stage ^ 1], a, lda, i0, rows, k + CT_DEEP, k1);
                B::load(bs[stage ^ 1], b, ldb, j0, cols, k + CT_DEEP, k1);
            }
            copies_commit();
            copies_wait<1>();
            __syncthreads();
            multiply(as[stage], bs[stage]);
            __syncthreads();
        }
    }
    /* f(row, column, number) for the numbers of this thread inside the limits. */
    template <class F> __device__ void each(uint32_t i0, uint32_t rows, uint32_t j0, uint32_t cols, F f) const
    {
#pragma unroll
        for (int i = 0; i < DOWN; i++)
#pragma unroll
            for (int j = 0; j < ACROSS; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    uint32_t r = i0 + row_at(i) + row_in(e), c = j0 + column_at(j) + column_in(e);
                    if (r < rows && c < cols) f(r, c, sum[i][j][e]);
                }
    }
};

#endif
