/* kv_ring.h: columns of the state that hold rows of K and V. Attention with a window uses a ring of the
 * window's size, rounded up to a power of two: row r is in column r % columns and overwrites the row that
 * left the window. Attention without a window uses all columns of the state. In a state that does not grow
 * these become a ring as well, and overwritten rows are no longer visible.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_KV_RING_H
#define SG_UNIT_ANE_KV_RING_H

#include "graph/graph.h"

/* Shape of a program: everything that its text depends on besides the part. */
struct sg_ane_shape {
    uint32_t rows;    /* rows of a dispatch: 1 or a multiple of 32 */
    uint32_t columns; /* columns of the surfaces: rows, at least 32 */
    uint32_t keys;    /* columns of the state, a power of two: rows of K and V without a shorter window */
    uint32_t rank;    /* LoRA rank of the port `lora` (lowerlora.h), a multiple of 32; 0: no adapters */
    uint32_t rolls;   /* 1: the state does not grow: row r is stored in column r % keys */
};
/* Storage of one kind of attention in the state. */
struct sg_ane_ring {
    uint32_t window;  /* rows visible to a row, including itself; 0: all */
    uint32_t columns; /* of the ring */
    uint32_t wraps;   /* 1: rows overwrite older ones */
};
/* The ring for a window of the graph (0: none). */
struct sg_ane_ring sg_ane_ring_of(const struct sg_ane_shape *shape, uint32_t window);
/* Columns of a ring, whatever the shape but its keys. */
uint32_t sg_ane_ring_columns(uint32_t window, uint32_t keys);
/* 1: a dispatch of this shape may overwrite rows that its first rows still see. Attention then reads the
 * ring before the dispatch and the new rows separately. */
int sg_ane_ring_reads_old(const struct sg_ane_ring *r, const struct sg_ane_shape *shape);

/* Columns that a state needs so that no slot ever needs more: all windows fit. keys_min: the smallest
 * state, a power of two. 0: there is no such size up to max, or a slot has no window. */
uint32_t sg_ane_ring_keys(const struct sg_slot *slots, uint32_t n, uint32_t keys_min, uint32_t max);

#endif
