/* kv_range.h: the memory of one K or V slot: a contiguous range of GPU addresses, which kernels index by position. A fork uses
 * the range of its original, and nothing is copied; a state gets a range of its own when it writes a position that others read.
 *
 * At most one slot writes to a range (cu_slot.writes), at or after `read` bytes, which slots that share it use. A count of 1
 * cannot rise meanwhile, because only the holder could share. Counts and limits are atomic: states that share belong to different
 * threads. SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_KV_RANGE_H
#define SG_UNIT_CUDA_KV_RANGE_H

#include "unit/cuda/driver/gpu.h"

/* Memory of one or several ranges: those of a small state are in one piece. */
struct cu_kv_memory {
    atomic_uint refs; /* ranges in it */
    cu_ptr p;
    size_t bytes;
};

struct cu_kv_range {
    atomic_uint refs;          /* slots that use it */
    atomic_uint_fast64_t read; /* the first bytes, which slots other than the writing one read */
    cu_ptr base;
    size_t bytes;
    struct cu_kv_memory *memory;
};

segue_status cu_kv_memory_new(struct sg_unit *u, size_t bytes, struct cu_kv_memory **out, segue_error *err);
/* The last reference returns it to the pool. */
void cu_kv_memory_release(struct sg_unit *u, struct cu_kv_memory *m);
/* The range [at, at + bytes) of m, which gets one more reference. */
segue_status cu_kv_range_in(struct cu_kv_memory *m, size_t at, size_t bytes, struct cu_kv_range **out, segue_error *err);
/* `bytes`, uninitialised, with one reference. */
segue_status cu_kv_range_new(struct sg_unit *u, size_t bytes, struct cu_kv_range **out, segue_error *err);
/* No copy or kernel of this slot uses it any more. */
void cu_kv_range_release(struct sg_unit *u, struct cu_kv_range *r);

/* 1: the slot that uses r may write at and after byte `at`. *writes is the slot's; set when the slot is the last one. */
int cu_kv_range_may_write(struct cu_kv_range *r, int *writes, size_t at);
/* One more slot uses the first `bytes`. *writes as above, of the slot that uses r so far. */
void cu_kv_range_share(struct cu_kv_range *r, int *writes, size_t bytes);
/* Bytes of memory; what is shared counts by this slot's share. */
uint64_t cu_kv_range_bytes(const struct cu_kv_range *r);

#endif
