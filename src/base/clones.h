/* clones.h: SG_CLONES before a function: it is compiled once for each of some instruction sets, and the loader takes the widest
 * that the processor has. For loops over numbers. Products and sums stay separate, so that all copies give the same bits.
 * SPDX-License-Identifier: MIT */
#ifndef SG_BASE_CLONES_H
#define SG_BASE_CLONES_H

#include <limits.h> /* __GLIBC__ */

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define SG_CLONES /* the loader chooses before the sanitizer is ready */
#endif
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SG_CLONES
#endif

#if !defined(SG_CLONES) && defined(__x86_64__) && defined(__GLIBC__)
#define SG_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#elif !defined(SG_CLONES)
#define SG_CLONES
#endif

#endif
