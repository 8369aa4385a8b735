/* hostcopy.h: a copy of a session's states in host memory, in the canonical layout, at one position of the sequence. Recovery
 * starts from it when a unit is lost. Copying is incremental: rows of K and V that were copied before are not copied again.
 * SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_HOSTCOPY_H
#define SG_ENGINE_HOSTCOPY_H

#include "engine/placement/layout.h"

struct sg_hostcopy {
    struct sg_hostcopy_slot {
        enum sg_storage storage; /* of K and V in `bytes` */
        uint64_t first, end;     /* K and V: positions [first, end) are in `bytes` */
        uint8_t *bytes;          /* [cap] */
        size_t cap;
        /* The next copy while it is taken: the current one stays valid until all slots of the next are complete. */
        enum sg_storage next_storage;
        uint64_t next_first;
        uint8_t *next;
        size_t next_cap;
        uint32_t separate;       /* 1: the next copy is in `next`; 0: it extends `bytes` */
    } *slots;                    /* [slots_n] of the engine's whole graph */
    uint32_t slots_n;
    uint64_t tokens;             /* length of the sequence at the copy */
    uint32_t complete;           /* 1: recurrent slots are of the same position, so a session can be restored from the copy */
};

/* Allocates for `rows` tokens in the storage of l, so that a later save allocates nothing. EMEMORY. */
segue_status sg_hostcopy_reserve(struct sg_hostcopy *c, const struct sg_graph *all, struct sg_layout *l, uint64_t rows,
                              segue_error *err);
/* Copies the states of l, which hold `rows` tokens. On failure the previous copy stays. EMEMORY, or the unit's error. */
segue_status sg_hostcopy_save(struct sg_hostcopy *c, const struct sg_graph *all, struct sg_layout *l, uint64_t rows,
                              segue_error *err);
/* The sequence was cut to `rows` tokens: drops later positions from the copy. */
void sg_hostcopy_cut(struct sg_hostcopy *c, uint64_t rows);
/* Writes the copy into the new, empty states of l. */
segue_status sg_hostcopy_restore(const struct sg_hostcopy *c, const struct sg_graph *all, struct sg_layout *l, segue_error *err);
uint64_t sg_hostcopy_bytes(const struct sg_hostcopy *c);
void sg_hostcopy_free(struct sg_hostcopy *c);

#endif
