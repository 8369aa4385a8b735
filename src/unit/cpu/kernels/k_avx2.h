/* k_avx2.h: macros and declarations shared by the kernel files for AVX2.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CPU_K_AVX2_H
#define SG_UNIT_CPU_K_AVX2_H

#include <immintrin.h>

#include "unit/cpu/kernels/kernels.h"

/* Bodies are inlined with constant widths and kinds, and their loops are unrolled completely. */
#define INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* Enters the kernels of k_avx2_quant.c into a table. */
void sg_kernels_avx2_quant(struct sg_kernels *k);

#endif
