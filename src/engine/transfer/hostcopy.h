/* hostcopy.h: the states of a session at one of its rows, copied to this process's memory in the canonical layout: what is
 * left when a unit vanishes. Rows of K and V that were copied before are not copied again.
 * SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_HOSTCOPY_H
#define SG_ENGINE_HOSTCOPY_H

#include "engine/placement/layout.h"

struct sg_hostcopy {
    struct sg_hostcopy_slot {
        enum sg_storage storage;
        uint64_t first, end;     /* rows held; K and V only */
        uint8_t *bytes;
        size_t cap;
        /* while a copy is taken: the old one stays good until all of the new one is there */
        enum sg_storage next_storage;
        uint64_t next_first;
        uint8_t *next;
        size_t next_cap;
        uint32_t apart;          /* 1: the new one lies in `next`; 0: behind the old rows */
    } *slots;                    /* [slots_n] of the engine's whole graph */
    uint32_t slots_n;
    uint64_t rows;               /* of the sequence */
    uint32_t whole;              /* 1: recurrent slots belong to these rows too, so it can be gone on from */
};

/* Room for `rows` rows as l has them, so that taking them allocates nothing. */
segue_status sg_hostcopy_reserve(struct sg_hostcopy *c, const struct sg_graph *all, struct sg_layout *l, uint64_t rows,
                              segue_error *err);
/* Copy the states of l, which hold `rows` rows. On failure the old copy stays. EMEMORY, or what the unit said. */
segue_status sg_hostcopy_save(struct sg_hostcopy *c, const struct sg_graph *all, struct sg_layout *l, uint64_t rows,
                              segue_error *err);
/* The sequence goes another way behind `rows`: what was copied of it is forgotten. */
void sg_hostcopy_cut(struct sg_hostcopy *c, uint64_t rows);
/* Put it into the fresh states of l. */
segue_status sg_hostcopy_restore(const struct sg_hostcopy *c, const struct sg_graph *all, struct sg_layout *l, segue_error *err);
uint64_t sg_hostcopy_bytes(const struct sg_hostcopy *c);
void sg_hostcopy_free(struct sg_hostcopy *c);

#endif
