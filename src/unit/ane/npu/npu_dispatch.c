/* npu_dispatch.c: selects the kernels for this processor. See npu_kernels.h.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/npu/npu_kernels.h"

/* The avx512 kernels use F, VL, BW and DQ, the avx2 kernels FMA and F16C. F16C is not tested: every
 * processor with AVX2 has it. */
const struct sg_npu_kernels *sg_npu_kernels_here(void)
{
#if defined(__x86_64__) && defined(__GNUC__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq"))
        return &sg_npu_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return &sg_npu_avx2;
#endif
    return &sg_npu_generic;
}
