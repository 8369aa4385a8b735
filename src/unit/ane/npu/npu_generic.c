/* npu_generic.c: the software engine's loops for any processor: vectors of 16 bytes.
 * SPDX-License-Identifier: MIT */
#define NPU_BYTES 16
#define NPU_MR 4
#define NPU_TABLE sg_npu_generic
#define NPU_NAME "generic"
#include "unit/ane/npu/npu_loops.h"
