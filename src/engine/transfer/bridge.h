/* bridge.h: states from one layout to another. SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_BRIDGE_H
#define SG_ENGINE_BRIDGE_H

#include "engine/placement/layout.h"

/* One slot, rows [first, end) of it, from a state to another. */
struct sg_slot_copy {
    struct sg_state *from, *to;
    uint32_t from_slot, to_slot;
    const struct sg_slot *slot;
    enum sg_storage kv; /* of the state that takes it */
    uint64_t first, end;
};
/* Memory that rows pass through; pinned where one of the sides copies faster then. One thread's. */
struct sg_staging {
    uint8_t *memory;
    size_t bytes;
    const struct sg_host_memory *host; /* that it was taken from; NULL: of this process */
};
/* rows: what is to go over; 0: not known. */
segue_status sg_staging_open(struct sg_staging *c, const struct sg_layout *from, const struct sg_layout *to, uint64_t rows,
                             segue_error *err);
void sg_staging_close(struct sg_staging *c); /* zeroed ones too */

/* Adds what went over to *bytes. Copies may go on: out of `from` until sg_bridge_flush, into `to` until it is sealed. */
segue_status sg_bridge_slot(const struct sg_slot_copy *j, struct sg_staging *c, uint64_t *bytes, segue_error *err);
segue_status sg_bridge_flush(const struct sg_layout *from, segue_error *err);

segue_status sg_bridge_validate(const struct sg_layout_stage *stage, uint64_t rows, segue_error *err);

/* 1: the units pass states on by themselves, nothing is copied. */
int sg_bridge_can_transfer(const struct sg_layout *from, const struct sg_layout *to);

struct sg_move_stats {
    uint64_t bytes, copied_bytes, ns, rows;
};
/* The states are in `to` as well, which had none or bare ones; those of `from` may then only be freed. On failure they are
 * as they were. */
segue_status sg_bridge_move(struct sg_layout *from, struct sg_layout *to, uint64_t room, struct sg_move_stats *out,
                            segue_error *err);

#ifdef SEGUE_FAULTS
/* Development builds: a hand-off changes the last bit of one number in each slot of this layer; UINT32_MAX: none. */
void sg_fault_ulp(uint32_t layer);
void sg_fault_ulp_now(struct sg_layout *to);
#endif

#endif
