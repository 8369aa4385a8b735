/* k_avx2.c: kernels for AVX2.
 * SPDX-License-Identifier: MIT */
#if defined(__x86_64__)
#include "unit/cpu/k_plain.h"

void sg_kernels_avx2(struct sg_kernels *k)
{
    k->isa = "avx2";
    plain_rows(k);
}
#endif
