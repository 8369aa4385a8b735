/* cpu_gemm.h: products of training on one thread, of a kernel table's blocks.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CPU_CPU_GEMM_H
#define SG_UNIT_CPU_CPU_GEMM_H

#include "unit/cpu/kernels/kernels.h"
#include "unit/train_math.h"

/* Rows of C that are packed at once; numbers of 4 bytes of the packed factors of a part of `inner`. */
enum { SG_CPU_GEMM_ROWS = 264, SG_CPU_GEMM_A = SG_CPU_GEMM_ROWS * SG_GEMM_DEPTH,
       SG_CPU_GEMM_SCRATCH = SG_CPU_GEMM_A + SG_GEMM_COLS * SG_GEMM_DEPTH };

/* Packs as it multiplies; scratch [SG_CPU_GEMM_SCRATCH], 64-byte aligned. */
void sg_cpu_gemm(const struct sg_gemm_kernels *k, const struct sg_gemm *g, float *scratch);
/* Of packed factors: panels of `elements` elements each, from those of row and column 0 on. The bits of sg_cpu_gemm. */
void sg_cpu_gemm_packed(const struct sg_gemm_kernels *k, const struct sg_gemm *g, const float *a, const float *b,
                        uint32_t elements);

#endif
