/* kv_ring.c: see kv_ring.h.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/analysis/kv_ring.h"

enum { COLUMNS_MIN = 32 }; /* an fp16 row of 64 bytes */

uint32_t sg_ane_ring_columns(uint32_t window, uint32_t keys)
{
    uint32_t columns = COLUMNS_MIN;
    while (columns < window && columns < keys) columns *= 2;
    return window && columns < keys ? columns : keys;
}

/* In a ring, no more rows can be visible than it has columns. */
struct sg_ane_ring sg_ane_ring_of(const struct sg_ane_shape *shape, uint32_t window)
{
    struct sg_ane_ring r = {window, sg_ane_ring_columns(window, shape->keys), 0};
    r.wraps = r.columns < shape->keys || shape->rolls;
    if (r.wraps && (!window || window > r.columns)) r.window = r.columns;
    return r;
}

int sg_ane_ring_reads_old(const struct sg_ane_ring *r, const struct sg_ane_shape *shape) { return r->wraps && shape->rows > 1; }

uint32_t sg_ane_ring_keys(const struct sg_slot *slots, uint32_t n, uint32_t keys_min, uint32_t max)
{
    uint32_t keys = keys_min;
    for (uint32_t i = 0; i < n; i++) {
        if (slots[i].kind != SG_SLOT_K && slots[i].kind != SG_SLOT_V) continue;
        if (!slots[i].window || slots[i].window > max) return 0;
        while (keys < slots[i].window) keys *= 2;
    }
    return keys;
}
