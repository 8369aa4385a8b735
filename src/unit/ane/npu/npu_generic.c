/* npu_generic.c: kernels of the software NPU for any processor: vectors of 16 bytes, tiles of 4 x 8.
 * See npu_loops.h.
 * SPDX-License-Identifier: MIT */
#define NPU_BYTES 16
#define NPU_MR 4
#define NPU_TABLE sg_npu_generic
#define NPU_NAME "generic"
#include "unit/ane/npu/npu_loops.h"
