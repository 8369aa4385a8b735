/* k_wgmma_wide.cuh: warpgroup products of 128 and 256 columns, m64n128k16 and m64n256k16, as those of 64 in k_wgmma.cuh. An
 * accumulator element is at the same place: element n is column n / 4 * 8 + lane % 4 * 2 + n % 2.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_K_WGMMA_WIDE_CUH
#define SG_UNIT_CUDA_K_WGMMA_WIDE_CUH

#include "k_wgmma.cuh"

#if HOPPER
#define SUMS_4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SUMS_8(d, i) SUMS_4(d, i), SUMS_4(d, i + 4)
#define SUMS_32(d, i) SUMS_8(d, i), SUMS_8(d, i + 8), SUMS_8(d, i + 16), SUMS_8(d, i + 24)
#define SUMS_64(d) SUMS_32(d, 0), SUMS_32(d, 32)
#define SUMS_128(d) SUMS_64(d), SUMS_32(d, 64), SUMS_32(d, 96)
#define SUMS_64_TEXT \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define SUMS_64_TO_128_TEXT \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

/* As in k_wgmma.cuh. ADD "1": d += a b^T, "0": d = a b^T. */
#define BOTH_64(TYPE, ADD) \
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " " SUMS_TEXT ", %32, %33, " ADD ", 1, 1, 0, 0;" \
                 : SUMS(d) \
                 : "l"(a), "l"(b))
#define BOTH_128(TYPE, ADD) \
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE " {" SUMS_64_TEXT "}" \
                 ", %64, %65, " ADD ", 1, 1, 0, 0;" \
                 : SUMS_64(d) \
                 : "l"(a), "l"(b))
#define ROWS_64(TYPE, ADD) \
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " " SUMS_TEXT \
                 ", {%32, %33, %34, %35}, %36, " ADD ", 1, 1, 0;" \
                 : SUMS(d) \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define ROWS_128(TYPE, ADD) \
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE " {" SUMS_64_TEXT "}" \
                 ", {%64, %65, %66, %67}, %68, " ADD ", 1, 1, 0;" \
                 : SUMS_64(d) \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define WIDE_PRODUCT(NAME, N, A, MACRO) \
    template <int BF16, int ADD> __device__ __forceinline__ void NAME(float (&d)[N], A, uint64_t b) \
    { \
        if (BF16 && ADD) \
            MACRO("bf16", "1"); \
        else if (BF16) \
            MACRO("bf16", "0"); \
        else if (ADD) \
            MACRO("f16", "1"); \
        else \
            MACRO("f16", "0"); \
    }
WIDE_PRODUCT(multiply_tiles, 32, uint64_t a, BOTH_64)
WIDE_PRODUCT(multiply_tiles, 64, uint64_t a, BOTH_128)
WIDE_PRODUCT(multiply_left, 32, const uint32_t (&a)[4], ROWS_64)
WIDE_PRODUCT(multiply_left, 64, const uint32_t (&a)[4], ROWS_128)

#define TURNED_128(TYPE) \
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE " {" SUMS_64_TEXT "}" \
                 ", {%64, %65, %66, %67}, %68, 1, 1, 1, 1;" \
                 : SUMS_64(d) \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define TURNED_256(TYPE) \
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32." TYPE "." TYPE " {" SUMS_64_TEXT ", " SUMS_64_TO_128_TEXT "}" \
                 ", {%128, %129, %130, %131}, %132, 1, 1, 1, 1;" \
                 : SUMS_128(d) \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
template <int BF16> __device__ __forceinline__ void multiply_trans(float (&d)[64], const uint32_t (&a)[4], uint64_t b)
{
    if (BF16)
        TURNED_128("bf16");
    else
        TURNED_128("f16");
}
template <int BF16> __device__ __forceinline__ void multiply_trans(float (&d)[128], const uint32_t (&a)[4], uint64_t b)
{
    if (BF16)
        TURNED_256("bf16");
    else
        TURNED_256("f16");
}

/* All products but the last group are complete. */
__device__ __forceinline__ void wgmma_wait_but_one() { asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory"); }
/* The compiler reads sums only after this, which follows the wait for their products. */
template <int N> __device__ __forceinline__ void wgmma_sums_ready(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}
#endif

#endif
