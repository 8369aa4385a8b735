/* hostcopy.c: see hostcopy.h. A save first reads all slots (beside the current copy), then commits all of them, so that a
 * failure in between leaves the current copy valid. SPDX-License-Identifier: MIT */
#include "engine/transfer/hostcopy.h"

#include <string.h>

#include "base/mem.h"

enum { SPARE_ROWS = 512 }; /* allocated in advance, so that a growing sequence rarely reallocates */

/* Grows a buffer to `want` bytes, with `spare` more when it must be reallocated. */
static segue_status reserve(uint8_t **bytes, size_t *cap, size_t want, size_t spare, segue_error *err)
{
    if (want <= *cap) return SEGUE_OK;
    uint8_t *wider = sg_realloc(*bytes, want + spare);
    if (!wider) return sg_no_memory("copy of a state", want + spare, err);
    *bytes = wider;
    *cap = want + spare;
    return SEGUE_OK;
}

/* Allocates the list of slots on first use. */
static segue_status slots_alloc(struct sg_hostcopy *c, const struct sg_graph *all, segue_error *err)
{
    if (!c->slots) c->slots = sg_alloc(all->slots_n * sizeof *c->slots);
    if (!c->slots) return sg_no_memory("copy of a state", all->slots_n * sizeof *c->slots, err);
    c->slots_n = all->slots_n;
    return SEGUE_OK;
}

segue_status sg_hostcopy_reserve(struct sg_hostcopy *c, const struct sg_graph *all, struct sg_layout *l, uint64_t rows,
                              segue_error *err)
{
    SG_TRY(slots_alloc(c, all, err));
    for (uint32_t i = 0; i < all->slots_n; i++) {
        struct sg_hostcopy_slot *s = &c->slots[i];
        const struct sg_slot *slot = &all->slots[i];
        uint32_t index = 0;
        const struct sg_layout_stage *stage = sg_layout_slot(l, slot->kind, slot->layer, &index);
        size_t fixed = sg_slot_fixed_bytes(slot);
        if (!stage) continue;
        if (slot->kind == SG_SLOT_K || slot->kind == SG_SLOT_V) {
            if (!s->end) s->storage = stage->kv;
            SG_TRY(reserve(&s->bytes, &s->cap, (size_t)rows * sg_slot_row_bytes(slot, stage->kv), 0, err));
        } else {
            SG_TRY(reserve(&s->bytes, &s->cap, fixed, 0, err));
            SG_TRY(reserve(&s->next, &s->next_cap, fixed, 0, err));
        }
    }
    return SEGUE_OK;
}

/* K or V: appends the rows that are not in the copy yet. All rows are read into `next` instead when the current ones cannot be
 * extended: another storage, a gap, rows after the end, or rows missing before the first. */
static segue_status save_rows(struct sg_hostcopy_slot *c, const struct sg_slot *slot, struct sg_layout_stage *stage,
                              uint32_t index, uint64_t rows, segue_error *err)
{
    const struct sg_unit_ops *ops = sg_ops_of(stage->state);
    size_t row = sg_slot_row_bytes(slot, stage->kv);
    uint64_t held;
    ops->state_held(stage->state, index, &c->next_first, &held);
    c->separate = c->storage != stage->kv || c->end < c->next_first || c->end > rows || c->first > c->next_first;
    c->next_storage = stage->kv;
    uint64_t base = c->separate ? c->next_first : c->first, from = c->separate ? c->next_first : c->end;
    uint8_t **bytes = c->separate ? &c->next : &c->bytes;
    SG_TRY(reserve(bytes, c->separate ? &c->next_cap : &c->cap, (size_t)(rows - base) * row, SPARE_ROWS * row, err));
    if (from >= rows) return SEGUE_OK;
    return ops->state_get(stage->state, index, from, rows, stage->kv, *bytes + (size_t)(from - base) * row, err);
}

/* Reads one slot of l. A recurrent slot is always read whole. */
static segue_status save_slot(struct sg_hostcopy_slot *c, const struct sg_slot *slot, struct sg_layout *l, uint64_t rows,
                              segue_error *err)
{
    uint32_t index = 0;
    struct sg_layout_stage *stage = sg_layout_slot(l, slot->kind, slot->layer, &index);
    if (!stage || !stage->state)
        return sg_fail(err, SEGUE_EINTERNAL, "state not copied: layer %u: no stage holds this slot; report this", slot->layer);
    if (slot->kind == SG_SLOT_K || slot->kind == SG_SLOT_V) return save_rows(c, slot, stage, index, rows, err);
    c->separate = 1;
    c->next_first = rows;
    SG_TRY(reserve(&c->next, &c->next_cap, sg_slot_fixed_bytes(slot), 0, err));
    return sg_ops_of(stage->state)->state_get(stage->state, index, 0, rows, SG_F32, c->next, err);
}

/* All slots were read: exchanges `bytes` and `next`, or drops the rows before the first that the unit still holds. */
static void commit(struct sg_hostcopy_slot *c, const struct sg_slot *slot, uint64_t rows)
{
    if (c->separate) {
        uint8_t *bytes = c->bytes;
        size_t cap = c->cap;
        c->bytes = c->next;
        c->cap = c->next_cap;
        c->next = bytes;
        c->next_cap = cap;
        c->first = c->next_first;
        c->storage = c->next_storage;
    } else if (c->next_first > c->first) {
        size_t row = sg_slot_row_bytes(slot, c->storage);
        memmove(c->bytes, c->bytes + (size_t)(c->next_first - c->first) * row, (size_t)(rows - c->next_first) * row);
        c->first = c->next_first;
    }
    c->end = rows;
}

segue_status sg_hostcopy_save(struct sg_hostcopy *c, const struct sg_graph *all, struct sg_layout *l, uint64_t rows,
                              segue_error *err)
{
    SG_TRY(slots_alloc(c, all, err));
    for (uint32_t i = 0; i < all->slots_n; i++) SG_TRY(save_slot(&c->slots[i], &all->slots[i], l, rows, err));
    for (uint32_t i = 0; i < all->slots_n; i++) commit(&c->slots[i], &all->slots[i], rows);
    c->tokens = rows;
    c->complete = 1;
    return SEGUE_OK;
}

void sg_hostcopy_cut(struct sg_hostcopy *c, uint64_t rows)
{
    if (c->tokens <= rows) return;
    c->tokens = rows;
    c->complete = 0;
    for (uint32_t i = 0; i < c->slots_n; i++) {
        if (c->slots[i].end > rows) c->slots[i].end = rows;
        if (c->slots[i].first > rows) c->slots[i].first = rows;
    }
}

static segue_status restore_slot(const struct sg_hostcopy_slot *c, const struct sg_slot *slot, struct sg_layout *l,
                              uint64_t rows, segue_error *err)
{
    uint32_t index = 0;
    struct sg_layout_stage *stage = sg_layout_slot(l, slot->kind, slot->layer, &index);
    if (!stage || !stage->state)
        return sg_fail(err, SEGUE_EINTERNAL, "state not restored: layer %u: no stage holds this slot; report this", slot->layer);
    const struct sg_unit_ops *ops = sg_ops_of(stage->state);
    if (slot->kind == SG_SLOT_K || slot->kind == SG_SLOT_V)
        return ops->state_put(stage->state, index, c->first, c->end, c->storage, c->bytes, err);
    return ops->state_put(stage->state, index, 0, rows, SG_F32, c->bytes, err);
}

segue_status sg_hostcopy_restore(const struct sg_hostcopy *c, const struct sg_graph *all, struct sg_layout *l, segue_error *err)
{
    for (uint32_t i = 0; i < c->slots_n; i++) SG_TRY(restore_slot(&c->slots[i], &all->slots[i], l, c->tokens, err));
    for (uint32_t i = 0; i < l->n; i++) {
        struct sg_layout_stage *stage = &l->stages[i];
        SG_TRY(sg_ops_of(stage->state)->state_put(stage->state, UINT32_MAX, c->tokens, c->tokens, stage->kv, NULL, err));
    }
    return SEGUE_OK;
}

uint64_t sg_hostcopy_bytes(const struct sg_hostcopy *c)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < c->slots_n; i++) bytes += c->slots[i].cap + c->slots[i].next_cap;
    return bytes;
}

void sg_hostcopy_free(struct sg_hostcopy *c)
{
    for (uint32_t i = 0; i < c->slots_n; i++) {
        sg_free(c->slots[i].bytes);
        sg_free(c->slots[i].next);
    }
    sg_free(c->slots);
    *c = (struct sg_hostcopy){0};
}
