/* clones.h: SG_CLONES before a function: it is compiled once for each of some instruction sets, and the loader takes the widest
 * that the processor has. For loops over numbers. Products and sums stay separate, so that all copies give the same bits.
 * SPDX-License-Identifier: MIT */
#ifndef SG_BASE_CLONES_H
#define SG_BASE_CLONES_H

#include <limits.h> /* __GLIBC__ */

/* Only with gcc: clang before 18 gives the copies a name that other files do not find. With a sanitizer that the loader's choice
 * would precede there is one copy, too. */
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#elif defined(__x86_64__) && defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define SG_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#endif

#ifndef SG_CLONES
#define SG_CLONES
#endif

#endif
