/* k_wgmma.cuh: products of a warpgroup (128 threads) on Hopper's tensor cores (capability 9.0 alone), 64 x 64 x 16, 16-bit
 * factors and fp32 sums: factors lie in shared memory, the left one in registers as well.
 *
 * A tile lies as columns of 64 numbers: each [rows][64], 128 bytes a row, its pieces of 16 bytes exchanged by the row (piece ^
 * row % 8), which is what the descriptors say. A thread has of the sums rows r and r + 8 (r = warp * 16 + lane / 4) and columns 8
 * i + lane % 4 * 2 and the next: number n is at row r + 8 (n / 2 % 2), column n / 4 * 8 + lane % 4 * 2 + n % 2.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_K_WGMMA_CUH
#define SG_UNIT_CUDA_K_WGMMA_CUH

#include "k_mma.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HOPPER 1
#else
#define HOPPER 0
#endif

#if HOPPER
/* Where a tile begins, how far its columns of 64 are apart (for a right factor whose columns are the product's), 8 rows: 1,024
 * bytes. */
__device__ __forceinline__ uint64_t tile_at(uint32_t at, uint32_t apart)
{
    return (uint64_t)((at & 0x3ffff) >> 4) | (uint64_t)(apart >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

/* Byte of the piece of 8 numbers at column c (a multiple of 8) of row r, in a tile of `rows` rows. */
__device__ __forceinline__ uint32_t piece_at(uint32_t r, uint32_t c, uint32_t rows)
{
    return c / 64 * (rows * 128) + r * 128 + ((c / 8 % 8) ^ (r & 7)) * 16;
}

#define SUMS(d)                                                                                                             \
    "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]),  \
        "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]),             \
        "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]),             \
        "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define SUMS_TEXT                                                                                                           \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, "  \
    "%25, %26, %27, %28, %29, %30, %31}"

/* d += a b^T: both in shared memory, rows of 16 numbers that follow each other. */
#define BOTH(TYPE)                                                                                              \
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " " SUMS_TEXT                      \
                 ", %32, %33, 1, 1, 1, 0, 0;"                                                                   \
                 : SUMS(d)                                                                                      \
                 : "l"(a), "l"(b))
template <int BF16> __device__ __forceinline__ void multiply(float (&d)[32], uint64_t a, uint64_t b)
{
    if (BF16)
        BOTH("bf16");
    else
        BOTH("f16");
}

/* a in registers; TURNED 1: d += a b, b's rows in shared memory, 0: d += a b^T. */
#define LEFT(TYPE, TURNED)                                                                                      \
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " " SUMS_TEXT                      \
                 ", {%32, %33, %34, %35}, %36, 1, 1, 1, " TURNED ";"                                            \
                 : SUMS(d)                                                                                      \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
template <int BF16> __device__ __forceinline__ void multiply_turned(float (&d)[32], const uint32_t (&a)[4], uint64_t b)
{
    if (BF16)
        LEFT("bf16", "1");
    else
        LEFT("f16", "1");
}
template <int BF16> __device__ __forceinline__ void multiply_rows(float (&d)[32], const uint32_t (&a)[4], uint64_t b)
{
    if (BF16)
        LEFT("bf16", "0");
    else
        LEFT("f16", "0");
}

__device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void products_asked() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void products_done() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }
/* What this thread wrote to shared memory is there for products and bulk copies behind the next barrier. */
__device__ __forceinline__ void written() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
#endif

#endif
