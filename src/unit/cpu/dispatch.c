/* dispatch.c: what the processor has, and the table for it. The only file that asks the processor.
 * SPDX-License-Identifier: MIT */
#include "unit/cpu/dispatch.h"

#include <string.h>

static const char *const names[SG_ISA_N] = {"generic", "avx2", "avx512", "neon"};

const char *sg_isa_name(enum sg_isa isa) { return names[isa]; }

int sg_isa_present(enum sg_isa isa)
{
    if (isa == SG_ISA_GENERIC) return 1;
#if defined(__x86_64__)
    if (isa == SG_ISA_AVX2)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (isa == SG_ISA_AVX512)
        return sg_isa_present(SG_ISA_AVX2) && __builtin_cpu_supports("avx512f") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
#elif defined(SEGUE_NEON)
    if (isa == SG_ISA_NEON) return 1;
#endif
    return 0;
}

segue_status sg_isa_choose(const char *name, struct sg_kernels *out, segue_error *err)
{
    int want = -1;
    for (int i = 0; name && i < SG_ISA_N; i++)
        if (!strcmp(name, names[i])) want = i;
    if (name && want < 0)
        return sg_fail(err, SEGUE_EARG, "cpu unit: isa=%s: unknown; use generic, avx2, avx512 or neon", name);
    if (name && !sg_isa_present((enum sg_isa)want))
        return sg_fail(err, SEGUE_EUNIT,
                       "cpu unit: isa=%s: this processor or build does not have it; leave isa out", name);
    sg_kernels_generic(out);
    if (name && want == SG_ISA_GENERIC) return SEGUE_OK;
#if defined(__x86_64__)
    if (sg_isa_present(SG_ISA_AVX2)) sg_kernels_avx2(out);
    if (sg_isa_present(SG_ISA_AVX512) && want != SG_ISA_AVX2) sg_kernels_avx512(out);
#elif defined(SEGUE_NEON)
    sg_kernels_neon(out);
#endif
    return SEGUE_OK;
}
