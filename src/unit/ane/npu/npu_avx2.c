/* npu_avx2.c: kernels of the software NPU for AVX2, FMA and F16C, in tiles of 6 x 16; see npu_loops.h.
 * cmake/ane_unit.cmake compiles only this file with these instruction sets.
 * SPDX-License-Identifier: MIT */
#include <immintrin.h>

#define NPU_BYTES 32
#define NPU_MR 6
#define NPU_TABLE sg_npu_avx2
#define NPU_NAME "avx2"
#define NPU_WIDEN(p) ((vec)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i_u *)(p))))
#define NPU_NARROW(v, p) \
    _mm_storeu_si128((__m128i_u *)(p), _mm256_cvtps_ph((__m256)(v), _MM_FROUND_TO_NEAREST_INT))
#define NPU_ROUND(v) ((vec)_mm256_cvtph_ps(_mm256_cvtps_ph((__m256)(v), _MM_FROUND_TO_NEAREST_INT)))
#include "unit/ane/npu/npu_loops.h"
