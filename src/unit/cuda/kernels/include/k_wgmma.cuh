/* k_wgmma.cuh: warpgroup products m64n64k16 (128 threads) of sm_90a: 16-bit operands in shared
 * memory (a also in registers), fp32 accumulators.
 *
 * A tile is stored as panels of 64 columns, each [rows][64] with 128 bytes per row and the 128-byte
 * swizzle: 16-byte piece c of row r is at piece c ^ (r % 8), as the matrix descriptors state.
 * Accumulator layout: with r = warp * 16 + lane / 4 a thread holds rows r and r + 8; element n is
 * row r + 8 (n / 2 % 2), column n / 4 * 8 + lane % 4 * 2 + n % 2.
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
/* Matrix descriptor of a tile at shared address `at`; apart: bytes between panels of 64 columns (for
 * a transposed b operand); 8 rows are 1,024 bytes apart; 128-byte swizzle. */
__device__ __forceinline__ uint64_t tile_at(uint32_t at, uint32_t apart)
{
    return (uint64_t)((at & 0x3ffff) >> 4) | (uint64_t)(apart >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

/* Byte offset of the 8 elements at row r, column c (a multiple of 8) in a tile of `rows` rows. */
__device__ __forceinline__ uint32_t piece_at(uint32_t r, uint32_t c, uint32_t rows)
{
    return c / 64 * (rows * 128) + r * 128 + ((c / 8 % 8) ^ (r & 7)) * 16;
}

/* Constraint list and register list of the 32 accumulators. */
#define SUMS(d)                                                                                                              \
    "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]),  \
        "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), \
        "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), \
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define SUMS_TEXT                                                                                                          \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, " \
    "%25, %26, %27, %28, %29, %30, %31}"

/* d += a b^T, both operands in shared memory, K-major. */
#define BOTH(TYPE)                                                                                                      \
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " " SUMS_TEXT ", %32, %33, 1, 1, 1, 0, 0;" \
                 : SUMS(d)                                                                                              \
                 : "l"(a), "l"(b))
template <int BF16> __device__ __forceinline__ void multiply(float (&d)[32], uint64_t a, uint64_t b)
{
    if (BF16)
        BOTH("bf16");
    else
        BOTH("f16");
}

/* a is in registers. TURNED 1: d += a b, with b stored row-major (transposed read); 0: d += a b^T. */
#define LEFT(TYPE, TURNED)                                                                 \
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " " SUMS_TEXT \
                 ", {%32, %33, %34, %35}, %36, 1, 1, 1, " TURNED ";"                       \
                 : SUMS(d)                                                                 \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
template <int BF16> __device__ __forceinline__ void multiply_trans(float (&d)[32], const uint32_t (&a)[4], uint64_t b)
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

/* Ordering of asynchronous products: fence before the first, commit to close a group, wait for all
 * groups. */
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_wait_all() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }
/* Makes this thread's shared-memory writes visible to wgmma and bulk copies (async proxy) after the
 * next barrier. */
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
#endif

#endif
