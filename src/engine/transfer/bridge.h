/* bridge.h: copies or passes on the states of one layout to another, slot by slot. A session is used by one thread, so nothing
 * here locks. SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_BRIDGE_H
#define SG_ENGINE_BRIDGE_H

#include "engine/placement/layout.h"

/* A copy of one slot from one state to another: positions [first, end) of K or V, or a whole recurrent slot. */
struct sg_slot_copy {
    struct sg_state *from, *to;
    uint32_t from_slot, to_slot;
    const struct sg_slot *slot;
    enum sg_storage kv; /* storage of K and V in `to` */
    uint64_t first, end;
};
/* Host buffer between two units: state_get writes it, state_put reads it. Pinned when one of the units copies faster then. */
struct sg_staging {
    uint8_t *memory;
    size_t bytes;
    const struct sg_host_memory *host; /* allocator of `memory`; NULL: the process allocator */
};
/* tokens: length of the sequence that will be copied; 0: not known. EMEMORY. */
segue_status sg_staging_open(struct sg_staging *c, const struct sg_layout *from, const struct sg_layout *to, uint64_t tokens,
                             segue_error *err);
void sg_staging_close(struct sg_staging *c); /* a zeroed struct is allowed */

/* Bytes of a hand-off. */
struct sg_moved {
    uint64_t all;          /* of the slots, in the storage of the target ... */
    uint64_t copied;       /* ... without those that the target took over where they were */
};
/* Copies one slot, or has the target attach it, and adds its bytes to *moved. Device copies may be pending afterwards: those that
 * read `from` until sg_bridge_flush, those that write `to` until sg_bridge_validate. */
segue_status sg_bridge_slot(const struct sg_slot_copy *j, struct sg_staging *c, struct sg_moved *moved, segue_error *err);
/* 1: the target may take these rows of K or V over. All of a slot are taken at once: not before the last run of prefill. */
int sg_bridge_attaches(const struct sg_slot_copy *j);
segue_status sg_bridge_flush(const struct sg_layout *from, segue_error *err);

/* Sets the length of a state that was filled by puts. EARG: a slot lacks positions that the next token attends to. */
segue_status sg_bridge_validate(const struct sg_layout_stage *stage, uint64_t tokens, segue_error *err);

/* 1: all stages have the same layers, storage and kind of unit, and that kind has state_transfer. */
int sg_bridge_can_transfer(const struct sg_layout *from, const struct sg_layout *to);

struct sg_move_stats {
    uint64_t bytes;        /* size of the states in the storage of `to` */
    uint64_t copied_bytes; /* copied through host memory; 0 after state_transfer, and of slots that were attached */
    uint64_t ns, tokens;   /* duration; length of the sequence */
};
/* Moves the states to `to`, which has none or bare ones. On success the states of `from` may only be freed; on failure they
 * are unchanged. capacity: tokens that the new states are to hold without growing. */
segue_status sg_bridge_move(struct sg_layout *from, struct sg_layout *to, uint64_t capacity, struct sg_move_stats *out,
                            segue_error *err);

#ifdef SEGUE_FAULTS
/* Fault injection, in development builds: every hand-off flips the last bit of one number in each slot of this layer;
 * UINT32_MAX: none. Tests check that --verify finds it. */
void sg_fault_ulp(uint32_t layer);
void sg_fault_ulp_now(struct sg_layout *to);
#endif

#endif
