/* check_kernel_peak.c: what one core can do at most: independent chains of an instruction set's best
 * instruction. SPDX-License-Identifier: MIT */
#include <string.h>

#include "base/clock.h"
#include "checkkernel.h"

enum { TIMES = 1 << 16, CHAINS = 12 };

#if defined(__x86_64__)
#include <immintrin.h>

__attribute__((target("avx2,fma"))) static int fp32_avx2(float seed)
{
    __m256 a[CHAINS], x = _mm256_set1_ps(seed);
    for (int i = 0; i < CHAINS; i++) a[i] = _mm256_set1_ps((float)i);
    for (int n = 0; n < TIMES; n++)
        for (int i = 0; i < CHAINS; i++) a[i] = _mm256_fmadd_ps(x, x, a[i]);
    for (int i = 1; i < CHAINS; i++) a[0] = _mm256_add_ps(a[0], a[i]);
    return _mm256_movemask_ps(a[0]);
}

__attribute__((target("avx2"))) static int int8_avx2(int seed)
{
    __m256i a[CHAINS], x = _mm256_set1_epi8((char)seed), one = _mm256_set1_epi16(1);
    for (int i = 0; i < CHAINS; i++) a[i] = _mm256_set1_epi8((char)(seed + i));
    for (int n = 0; n < TIMES; n++)
        for (int i = 0; i < CHAINS; i++)
            a[i] = _mm256_add_epi32(a[i], _mm256_madd_epi16(_mm256_maddubs_epi16(x, a[i]), one));
    for (int i = 1; i < CHAINS; i++) a[0] = _mm256_add_epi32(a[0], a[i]);
    return _mm256_movemask_epi8(a[0]);
}

__attribute__((target("avx512f"))) static int fp32_avx512(float seed)
{
    __m512 a[CHAINS], x = _mm512_set1_ps(seed);
    for (int i = 0; i < CHAINS; i++) a[i] = _mm512_set1_ps((float)i);
    for (int n = 0; n < TIMES; n++)
        for (int i = 0; i < CHAINS; i++) a[i] = _mm512_fmadd_ps(x, x, a[i]);
    for (int i = 1; i < CHAINS; i++) a[0] = _mm512_add_ps(a[0], a[i]);
    return (int)_mm512_reduce_add_ps(a[0]);
}

__attribute__((target("avx512f,avx512vnni"))) static int int8_avx512(int seed)
{
    __m512i a[CHAINS], x = _mm512_set1_epi32(seed * 0x01010101);
    for (int i = 0; i < CHAINS; i++) a[i] = _mm512_set1_epi32(i);
    for (int n = 0; n < TIMES; n++)
        for (int i = 0; i < CHAINS; i++) a[i] = _mm512_dpbusd_epi32(a[i], x, x);
    for (int i = 1; i < CHAINS; i++) a[0] = _mm512_add_epi32(a[0], a[i]);
    return _mm512_reduce_add_epi32(a[0]);
}

/* Best of some: 1e9 operations per second, when one call of the loop does `ops`. */
#define PEAK(loop, ops)                                                  \
    do {                                                                 \
        uint64_t best = UINT64_MAX;                                      \
        for (int i = 0; i < 20; i++) {                                   \
            uint64_t from = sg_now_ns();                                 \
            volatile int result = loop;                                  \
            uint64_t ns = sg_now_ns() - from;                            \
            (void)result;                                                \
            if (ns < best) best = ns;                                    \
        }                                                                \
        return (double)(ops)*CHAINS * TIMES / (double)(best ? best : 1); \
    } while (0)

double check_peak_int8(const char *isa)
{
    if (!strcmp(isa, "avx2")) PEAK(int8_avx2(i + 1), 64);
    if (!strcmp(isa, "avx512") || !strcmp(isa, "amx")) PEAK(int8_avx512(i + 1), 128);
    return 0;
}

double check_peak_fp32(const char *isa)
{
    if (!strcmp(isa, "avx2")) PEAK(fp32_avx2(1e-3f), 16);
    if (!strcmp(isa, "avx512") || !strcmp(isa, "amx")) PEAK(fp32_avx512(1e-3f), 32);
    return 0;
}
#else
double check_peak_int8(const char *isa) { return (void)isa, (void)strlen, 0; }
double check_peak_fp32(const char *isa) { return (void)isa, (void)sg_now_ns, 0; }
#endif
