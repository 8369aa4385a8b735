/* dispatch.c: what the processor has, and the table for it. The only file that asks the processor.
 * SPDX-License-Identifier: MIT */
#if defined(__x86_64__) && defined(__linux__)
#define _GNU_SOURCE /* syscall */
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#include "unit/cpu/dispatch.h"

#include <string.h>

static const char *const names[SG_ISA_N] = {"generic", "avx2", "avx512", "amx", "neon"};

const char *sg_isa_name(enum sg_isa isa) { return names[isa]; }

#if defined(__x86_64__)
/* The processor names tiles and bf16 for both units, the system saves tiles at a switch (XCR0), and it lets
 * this process use them: it wants to be asked once, and to be asked again does no harm. A hypervisor that
 * hides any of these is believed. */
static int amx_present(void)
{
#ifdef __linux__
    enum { PERMIT = 0x1023, TILE_DATA = 18 }; /* arch_prctl: ARCH_REQ_XCOMP_PERM */
    unsigned a, b, c, d, low, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1u)) return 0; /* OSXSAVE */
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> 22 & d >> 24 & 1u))
        return 0;                                                             /* AMX-BF16, AMX-TILE */
    if (!__get_cpuid_count(7, 1, &a, &b, &c, &d) || !(a >> 5 & 1u)) return 0; /* AVX512-BF16 */
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    (void)high;
    return (low >> 17 & 3u) == 3u && syscall(SYS_arch_prctl, PERMIT, TILE_DATA) == 0;
#else
    return 0;
#endif
}
#endif

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
    if (isa == SG_ISA_AMX) return sg_isa_present(SG_ISA_AVX512) && amx_present();
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
        return sg_fail(err, SEGUE_EARG, "cpu unit: isa=%s: unknown; use generic, avx2, avx512, amx or neon",
                       name);
    if (name && !sg_isa_present((enum sg_isa)want))
        return sg_fail(err, SEGUE_EUNIT,
                       "cpu unit: isa=%s: this processor or build does not have it; leave isa out", name);
    sg_kernels_generic(out);
    if (name && want == SG_ISA_GENERIC) return SEGUE_OK;
#if defined(__x86_64__)
    if (sg_isa_present(SG_ISA_AVX2)) sg_kernels_avx2(out);
    if (sg_isa_present(SG_ISA_AVX512) && want != SG_ISA_AVX2) sg_kernels_avx512(out);
    if (sg_isa_present(SG_ISA_AMX) && (!name || want == SG_ISA_AMX)) sg_kernels_amx(out);
#elif defined(SEGUE_NEON)
    sg_kernels_neon(out);
#endif
    return SEGUE_OK;
}
