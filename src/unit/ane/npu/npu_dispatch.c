/* npu_dispatch.c: which table of loops this processor runs.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/npu/npu_kernels.h"

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
