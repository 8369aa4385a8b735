/* lowerring.h: where rows of K and V lie in a state. A window's rows lie in a ring of as many columns as the window
 * has, the next power of two: row r in column r % columns, over the one that went out of sight. All rows of an
 * attention without a window lie in as many columns as the state has; in a state that does not grow, those turn into
 * a ring too, and what falls out of it is no longer seen.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_LOWERRING_H
#define SG_UNIT_ANE_LOWERRING_H

#include "graph/graph.h"

struct sg_ane_shape {
    uint32_t rows;    /* logical rows of a dispatch: 1 or a multiple of 32 */
    uint32_t columns; /* of the surfaces: rows, at least 32 */
    uint32_t keys;    /* columns of the state: rows of K and V that it holds, where no window is shorter */
    uint32_t rank;    /* of adapters (lowerlora.h), a multiple of 32; 0: none */
    uint32_t rolls;   /* 1: the state does not grow: row r lies in column r % keys, over an older one */
};
struct sg_ane_ring {
    uint32_t window;  /* rows that a row sees, itself among them; 0: all */
    uint32_t columns;
    uint32_t wraps;   /* 1: rows come to lie over older ones */
};
struct sg_ane_ring sg_ane_ring_of(const struct sg_ane_shape *shape, uint32_t window);
/* Columns of a ring, whatever the shape but its keys. */
uint32_t sg_ane_ring_columns(uint32_t window, uint32_t keys);
/* 1: a dispatch of this shape writes over rows that its own first rows still see, so that it must look at the ring as
 * it was, and at its own rows beside it. */
int sg_ane_ring_reads_old(const struct sg_ane_ring *r, const struct sg_ane_shape *shape);

/* The state of `keys` columns from which on no row of any slot needs another one; 0: there is none, a slot keeps all. */
uint32_t sg_ane_ring_keys(const struct sg_slot *slots, uint32_t n, uint32_t keys_min, uint32_t max);

#endif
