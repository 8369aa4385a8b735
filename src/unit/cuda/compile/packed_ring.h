/* packed_ring.h: shared memory of k_packed.cu: whether its ring fits is asked when weights are uploaded (upload.c: in which
 * layout) and when a launch is sized (issue_packed.c). SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_PACKED_RING_H
#define SG_UNIT_CUDA_PACKED_RING_H

#include "unit/cuda/driver/gpu.h"

enum { CU_PACKED_WARPS = CK_PACKED_THREADS / 32, CU_PACKED_SPLIT_MAX = 3, CU_PACKED_TURN_MAX = 16, CU_PACKED_RING_LEAST = 2 };

/* Columns of a warp when 2^split_log warps share the `chunks` of a row. */
static inline uint32_t cu_packed_width(uint32_t chunks, uint32_t split_log)
{
    return ((chunks + (1u << split_log) - 1) >> split_log) * CK_PACKED_CHUNK;
}

/* The most warps that may share a row, log2: the ring has most room then. */
static inline uint32_t cu_packed_split_max(uint32_t chunks)
{
    uint32_t split_log = 0;
    while (split_log < CU_PACKED_SPLIT_MAX && 2u << split_log <= chunks) split_log++;
    return split_log;
}

/* Slots of slot_bytes in the ring of each warp, in `capacity` bytes of a block with turns of `turn` tiles. *fixed: bytes beside
 * the rings: x, and the sums of warps that share rows. */
static inline uint32_t cu_packed_slots(uint32_t width, uint32_t split_log, uint32_t turn, uint32_t slot_bytes, uint32_t capacity,
                                       uint32_t *fixed)
{
    *fixed = CU_PACKED_WARPS * CK_PACKED_X_BYTES(width) + ((turn * 64) << split_log);
    uint32_t fit = *fixed < capacity ? (capacity - *fixed) / (CU_PACKED_WARPS * slot_bytes) : 0;
    return fit < CK_PACKED_STAGES ? fit : CK_PACKED_STAGES;
}

/* Dynamic shared memory that a block may have. */
static inline uint32_t cu_packed_capacity(const struct sg_unit *u) { return (uint32_t)u->shared_max - CU_PACKED_STATIC; }

#endif
