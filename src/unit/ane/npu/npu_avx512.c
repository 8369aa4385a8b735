/* npu_avx512.c: kernels of the software NPU for AVX-512, in tiles of 8 x 32; see npu_loops.h.
 * cmake/ane_unit.cmake compiles only this file with this instruction set.
 * SPDX-License-Identifier: MIT */
#include <immintrin.h>

#define NPU_BYTES 64
#define NPU_MR 8
#define NPU_TABLE sg_npu_avx512
#define NPU_NAME "avx512"
#define NPU_WIDEN(p) ((vec)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i_u *)(p))))
#define NPU_NARROW(v, p) \
    _mm256_storeu_si256((__m256i_u *)(p), _mm512_cvtps_ph((__m512)(v), _MM_FROUND_TO_NEAREST_INT))
#define NPU_ROUND(v) ((vec)_mm512_cvtph_ps(_mm512_cvtps_ph((__m512)(v), _MM_FROUND_TO_NEAREST_INT)))
#include "unit/ane/npu/npu_loops.h"
