/* k_avx512.c: kernels for AVX512.
 * SPDX-License-Identifier: MIT */
#if defined(__x86_64__)
#include "unit/cpu/k_plain.h"

void sg_kernels_avx512(struct sg_kernels *k)
{
    k->isa = "avx512";
    plain_rows(k);
}
#endif
