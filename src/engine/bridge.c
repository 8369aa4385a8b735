/* bridge.c: states from one unit to another, slot by slot in the canonical layout of docs/STATE.md, K and V
 * in the storage of the unit that goes on. Knows no unit; what a pair does faster it offers as state_pass,
 * which must give the same bytes. SPDX-License-Identifier: MIT */
#include "engine/bridge.h"

#include <stdatomic.h>

#include "base/clock.h"
#include "base/mem.h"

enum { PIECE_BYTES = 1 << 20 };

/* Rows of a slot that fit in a piece, at least one. */
static uint64_t piece_rows(size_t row_bytes) { return row_bytes < PIECE_BYTES ? PIECE_BYTES / row_bytes : 1; }

/* One buffer for the whole move: a piece, or the largest thing that cannot be cut. */
size_t sg_bridge_room(const struct sg_layout *to)
{
    size_t room = PIECE_BYTES;
    for (uint32_t i = 0; i < to->n; i++) {
        const struct sg_graph *g = to->stages[i].stretch->graph;
        for (uint32_t k = 0; k < g->slots_n; k++) {
            size_t fixed = sg_slot_fixed_bytes(&g->slots[k]);
            size_t bytes = fixed ? fixed : sg_slot_row_bytes(&g->slots[k], to->stages[i].kv);
            if (bytes > room) room = bytes;
        }
    }
    return room;
}

/* Rows in pieces, in the storage that they will have: the unit that is left converts once, the other one
 * copies. */
segue_status sg_bridge_slot(const struct sg_journey *j, void *room, uint64_t *bytes, segue_error *err)
{
    const struct sg_unit_ops *a = sg_ops_of(j->from), *b = sg_ops_of(j->to);
    size_t fixed = sg_slot_fixed_bytes(j->slot), row_bytes = fixed ? 0 : sg_slot_row_bytes(j->slot, j->kv);
    *bytes += fixed;
    if (fixed) {
        SG_TRY(a->state_get(j->from, j->from_slot, 0, j->end, SG_F32, room, err));
        return b->state_put(j->to, j->to_slot, 0, j->end, SG_F32, room, err);
    }
    for (uint64_t at = j->first, n; at < j->end; at += n) {
        n = piece_rows(row_bytes) < j->end - at ? piece_rows(row_bytes) : j->end - at;
        SG_TRY(a->state_get(j->from, j->from_slot, at, at + n, j->kv, room, err));
        SG_TRY(b->state_put(j->to, j->to_slot, at, at + n, j->kv, room, err));
        *bytes += n * row_bytes;
    }
    return SEGUE_OK;
}

segue_status sg_bridge_seal(const struct sg_stage *stage, uint64_t rows, segue_error *err)
{
    return sg_ops_of(stage->state)->state_put(stage->state, UINT32_MAX, rows, rows, stage->kv, NULL, err);
}

static segue_status move_slots(struct sg_layout *from, struct sg_layout *to, uint64_t rows, void *room,
                               uint64_t *bytes, segue_error *err)
{
    for (uint32_t i = 0; i < to->n; i++) {
        struct sg_stage *stage = &to->stages[i];
        const struct sg_graph *g = stage->stretch->graph;
        for (uint32_t k = 0; k < g->slots_n; k++) {
            struct sg_journey j = {
                .to = stage->state, .to_slot = k, .slot = &g->slots[k], .kv = stage->kv, .end = rows};
            struct sg_stage *source = sg_layout_slot(from, g->slots[k].kind, g->slots[k].layer, &j.from_slot);
            if (!source)
                return sg_fail(err, SEGUE_EINTERNAL,
                               "state not moved: slot of layer %u: it is nowhere; report this",
                               g->slots[k].layer);
            j.from = source->state;
            uint64_t held = rows;
            sg_ops_of(j.from)->state_held(j.from, j.from_slot, &j.first, &held);
            SG_TRY(sg_bridge_slot(&j, room, bytes, err));
        }
        SG_TRY(sg_bridge_seal(stage, rows, err));
    }
    return SEGUE_OK;
}

static segue_status by_pieces(struct sg_layout *from, struct sg_layout *to, uint64_t room_rows, uint64_t rows,
                              uint64_t *bytes, segue_error *err)
{
    size_t size = sg_bridge_room(to);
    void *room = sg_alloc(size);
    if (!room) return sg_no_memory("hand-off", size, err);
    sg_layout_drop_states(to); /* bare ones */
    segue_status status = sg_layout_states(to, room_rows, err);
    if (status == SEGUE_OK) {
        status = move_slots(from, to, rows, room, bytes, err);
        if (status != SEGUE_OK) sg_layout_drop_states(to);
    }
    sg_free(room);
    return status;
}

/* --- the pair's own way --- */

int sg_bridge_passes(const struct sg_layout *from, const struct sg_layout *to)
{
    int same = from->n == to->n;
    for (uint32_t i = 0; same && i < from->n; i++) {
        const struct sg_stretch *a = from->stages[i].stretch, *b = to->stages[i].stretch;
        const struct sg_unit_ops *ops = sg_ops_of(b->unit->unit);
        same = a->from == b->from && a->to == b->to && from->stages[i].kv == to->stages[i].kv &&
               ops == sg_ops_of(a->unit->unit) && ops->state_pass;
    }
    return same;
}

static int pass_all(struct sg_layout *from, struct sg_layout *to)
{
    if (!sg_bridge_passes(from, to)) return 0;
    if (!sg_layout_holds(to) && sg_layout_bare(to, NULL) != SEGUE_OK) return 0;
    uint32_t done = 0;
    for (; done < to->n; done++) {
        struct sg_state *a = from->stages[done].state, *b = to->stages[done].state;
        if (sg_ops_of(b)->state_pass(b, a, NULL) != SEGUE_OK) break;
    }
    if (done == to->n) return 1;
    while (done--)
        (void)sg_ops_of(from->stages[done].state)
            ->state_pass(from->stages[done].state, to->stages[done].state, NULL);
    sg_layout_drop_states(to);
    return 0;
}

/* What a state of so many rows is in the storage of `to`. */
static uint64_t bytes_of(const struct sg_layout *to, uint64_t rows)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < to->n; i++) {
        const struct sg_stage *s = &to->stages[i];
        for (uint32_t k = 0; k < s->stretch->graph->slots_n; k++) {
            const struct sg_slot *slot = &s->stretch->graph->slots[k];
            uint64_t first = 0, held = rows;
            sg_ops_of(s->state)->state_held(s->state, k, &first, &held);
            size_t fixed = sg_slot_fixed_bytes(slot);
            bytes += fixed ? fixed : sg_slot_row_bytes(slot, s->kv) * (rows - first);
        }
    }
    return bytes;
}

segue_status sg_bridge_move(struct sg_layout *from, struct sg_layout *to, uint64_t room, struct sg_moved *out,
                            segue_error *err)
{
    uint64_t begun = sg_now_ns(), first = 0;
    *out = (struct sg_moved){0};
    const struct sg_stage *source = &from->stages[0];
    sg_ops_of(source->state)->state_held(source->state, 0, &first, &out->rows);
    int passed = pass_all(from, to);
    if (!passed) SG_TRY(by_pieces(from, to, room, out->rows, &out->copied_bytes, err));
    out->ns = sg_now_ns() - begun;
    out->bytes = passed ? bytes_of(to, out->rows) : out->copied_bytes;
    return SEGUE_OK;
}

/* --- development builds --- */

#ifdef SEGUE_FAULTS
static atomic_uint fault_layer; /* one more than the layer; 0: none */

void sg_fault_ulp(uint32_t layer) { atomic_store(&fault_layer, layer + 1); }

/* The first number of the first held row, little-endian. */
void sg_fault_ulp_now(struct sg_layout *to)
{
    uint32_t layer = atomic_load(&fault_layer);
    uint8_t *room = layer ? sg_alloc(sg_bridge_room(to)) : NULL;
    for (uint32_t i = 0; room && i < to->n; i++) {
        struct sg_stage *stage = &to->stages[i];
        const struct sg_graph *g = stage->stretch->graph;
        const struct sg_unit_ops *ops = stage->state ? sg_ops_of(stage->state) : NULL;
        for (uint32_t k = 0; ops && k < g->slots_n; k++) {
            uint64_t first = 0, rows = 0;
            enum sg_storage storage = sg_slot_fixed_bytes(&g->slots[k]) ? SG_F32 : stage->kv;
            ops->state_held(stage->state, k, &first, &rows);
            if (g->slots[k].layer != layer - 1 || first >= rows ||
                ops->state_get(stage->state, k, first, first + 1, storage, room, NULL) != SEGUE_OK)
                continue;
            room[storage == SG_Q8_0 ? 2 : 0] ^= 1; /* q8: behind the scale */
            (void)ops->state_put(stage->state, k, first, first + 1, storage, room, NULL);
        }
    }
    sg_free(room);
}
#endif
