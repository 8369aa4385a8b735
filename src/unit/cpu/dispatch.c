/* dispatch.c: detects the instruction sets of the processor and builds the kernel table. The only file
 * that queries the processor.
 * SPDX-License-Identifier: MIT */
#if defined(__x86_64__) && defined(__linux__)
#define _GNU_SOURCE /* syscall */
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include "unit/cpu/dispatch.h"

#include <string.h>

static const char *const isa_names[SG_ISA_N] = {"generic", "avx2", "avx512", "amx", "neon"};

const char *sg_isa_name(enum sg_isa isa) { return isa_names[isa]; }

#if defined(__x86_64__)
static int avx512_bf16_present(void)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1u);
}

/* AMX needs all of: CPUID lists tiles and bf16 (also AVX512-BF16, for rounding), the kernel saves tile
 * state on context switches (XCR0 bits 17 and 18), and this process has permission for it. Permission
 * is requested here and lasts for the process; requesting it again is harmless. If a hypervisor hides
 * any of these, AMX is not used. */
static int amx_present(void)
{
#ifdef __linux__
    enum { PERMIT = 0x1023, TILE_DATA = 18 }; /* arch_prctl: ARCH_REQ_XCOMP_PERM */
    unsigned a, b, c, d, low, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1u)) return 0; /* OSXSAVE */
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> 22 & d >> 24 & 1u))
        return 0;                                                             /* AMX-BF16, AMX-TILE */
    if (!avx512_bf16_present()) return 0;
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

/* Starts with the generic table and lets each instruction set up to the requested one overwrite its
 * entries. */
segue_status sg_isa_choose(const char *name, struct sg_kernels *out, segue_error *err)
{
    int wanted = -1;
    for (int i = 0; name && i < SG_ISA_N; i++)
        if (!strcmp(name, isa_names[i])) wanted = i;
    if (name && wanted < 0)
        return sg_fail(err, SEGUE_EARG, "open unit: cpu: isa=%s is unknown; use generic, avx2, avx512, amx or neon",
                       name);
    if (name && !sg_isa_present((enum sg_isa)wanted))
        return sg_fail(err, SEGUE_EUNIT,
                       "open unit: cpu: isa=%s is not supported by this processor or build; omit isa", name);
    sg_kernels_generic(out);
    if (name && wanted == SG_ISA_GENERIC) return SEGUE_OK;
#if defined(__x86_64__)
    if (sg_isa_present(SG_ISA_AVX2)) sg_kernels_avx2(out);
    if (sg_isa_present(SG_ISA_AVX512) && wanted != SG_ISA_AVX2) {
        sg_kernels_avx512(out);
        if (avx512_bf16_present()) sg_kernels_avx512_bf16(out);
    }
    if (sg_isa_present(SG_ISA_AMX) && (!name || wanted == SG_ISA_AMX)) sg_kernels_amx(out);
#elif defined(SEGUE_NEON)
    sg_kernels_neon(out);
#endif
    return SEGUE_OK;
}
