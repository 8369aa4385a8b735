/* bridge.c: states from one unit to another, slot by slot in the canonical layout of docs/STATE.md, K and V
 * in the storage of the unit that goes on. Knows no unit; what a pair does faster it offers as state_pass,
 * which must give the same bytes. SPDX-License-Identifier: MIT */
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/session.h"

enum { PIECE_BYTES = 1 << 20 };

/* Rows of a slot that fit in a piece, at least one. */
static uint64_t piece_rows(size_t row_bytes) { return row_bytes < PIECE_BYTES ? PIECE_BYTES / row_bytes : 1; }

/* One buffer for the whole move: a piece, or the largest thing that cannot be cut. */
static size_t room_for(const struct sg_layout *to)
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
static segue_status move_slot(struct sg_stage *from, uint32_t slot, struct sg_stage *to, uint32_t index,
                              void *room, uint64_t *bytes, segue_error *err)
{
    const struct sg_unit_ops *a = sg_ops_of(from->state), *b = sg_ops_of(to->state);
    const struct sg_slot *s = &to->stretch->graph->slots[index];
    size_t fixed = sg_slot_fixed_bytes(s), row_bytes = fixed ? 0 : sg_slot_row_bytes(s, to->kv);
    uint64_t first = 0, rows = 0;
    a->state_held(from->state, slot, &first, &rows);
    *bytes += fixed;
    if (fixed) {
        SG_TRY(a->state_get(from->state, slot, 0, rows, SG_F32, room, err));
        return b->state_put(to->state, index, 0, rows, SG_F32, room, err);
    }
    for (uint64_t at = first, n; at < rows; at += n) {
        n = piece_rows(row_bytes) < rows - at ? piece_rows(row_bytes) : rows - at;
        SG_TRY(a->state_get(from->state, slot, at, at + n, to->kv, room, err));
        SG_TRY(b->state_put(to->state, index, at, at + n, to->kv, room, err));
        *bytes += n * row_bytes;
    }
    return SEGUE_OK;
}

static segue_status move_slots(struct sg_layout *from, struct sg_layout *to, uint64_t rows, void *room,
                               uint64_t *bytes, segue_error *err)
{
    for (uint32_t i = 0; i < to->n; i++) {
        struct sg_stage *stage = &to->stages[i];
        const struct sg_graph *g = stage->stretch->graph;
        for (uint32_t k = 0; k < g->slots_n; k++) {
            uint32_t slot = 0;
            struct sg_stage *source = sg_layout_slot(from, g->slots[k].kind, g->slots[k].layer, &slot);
            if (!source)
                return sg_fail(err, SEGUE_EINTERNAL,
                               "state not moved: slot of layer %u: it is nowhere; report this",
                               g->slots[k].layer);
            SG_TRY(move_slot(source, slot, stage, k, room, bytes, err));
        }
        SG_TRY(
            sg_ops_of(stage->state)->state_put(stage->state, UINT32_MAX, rows, rows, stage->kv, NULL, err));
    }
    return SEGUE_OK;
}

/* The pair's own way, where both hold everything on units of one kind in one storage. */
static int passed(struct sg_layout *from, struct sg_layout *to)
{
    struct sg_stage *a = &from->stages[0], *b = &to->stages[0];
    if (from->n != 1 || to->n != 1 || a->kv != b->kv || sg_ops_of(a->state) != sg_ops_of(b->state)) return 0;
    const struct sg_unit_ops *ops = sg_ops_of(b->state);
    return ops->state_pass && ops->state_pass(b->state, a->state, NULL) == SEGUE_OK;
}

static segue_status by_pieces(struct sg_layout *from, struct sg_layout *to, uint64_t rows, uint64_t *bytes,
                              segue_error *err)
{
    size_t size = room_for(to);
    void *room = sg_alloc(size);
    if (!room) return sg_no_memory("hand-off", size, err);
    segue_status status = move_slots(from, to, rows, room, bytes, err);
    sg_free(room);
    return status;
}

segue_status sg_bridge_move(struct sg_layout *from, struct sg_layout *to, uint64_t room, segue_stats *stats,
                            segue_error *err)
{
    uint64_t begun = sg_now_ns(), rows = 0, first = 0, bytes = 0;
    const struct sg_stage *source = &from->stages[0];
    SG_TRY(sg_layout_states(to, room, err));
    segue_status status = SEGUE_OK;
    sg_ops_of(source->state)->state_held(source->state, 0, &first, &rows);
    if (!passed(from, to)) {
        status = by_pieces(from, to, rows, &bytes, err);
        stats->copied_bytes += bytes;
    }
    if (status != SEGUE_OK) {
        sg_layout_drop_states(to);
        return status;
    }
    sg_layout_drop_states(from);
    stats->handoff_bytes += bytes;
    stats->handoff_ns += sg_now_ns() - begun;
    return SEGUE_OK;
}

/* A moved state expects about as much to come as a new one. */
static uint64_t room_rows(const struct segue_session *s)
{
    return s->context - s->tokens_n < 512 ? s->context : s->tokens_n + 512;
}

segue_status sg_session_bring(struct segue_session *s, uint32_t to, segue_error *err)
{
    if (s->at == to) return SEGUE_OK;
    if (sg_layout_holds(&s->layouts[s->at]))
        SG_TRY(sg_bridge_move(&s->layouts[s->at], &s->layouts[to], room_rows(s), &s->stats, err));
    s->at = to;
    return SEGUE_OK;
}

segue_status segue_session_move(segue_session *session, segue_unit *to, segue_error *err)
{
    struct sg_layout layout;
    SG_TRY(sg_session_check(session, "state not moved", err));
    if (!to) return sg_fail(err, SEGUE_EARG, "state not moved: no unit given; pass one of the engine's");
    struct segue_engine *e = session->engine;
    uint32_t place = 0;
    while (place < e->places_n && e->places[place].unit != to) place++;
    if (place == e->places_n)
        return sg_fail(err, SEGUE_EARG,
                       "state not moved: %s: the engine was not opened with this unit; open it with both",
                       to->desc.info.spec);
    SG_TRY(sg_layout_of_place(&layout, e, place, err));
    struct sg_layout *now = &session->layouts[session->at];
    if (sg_layout_same(now, &layout)) {
        layout = *now;
    } else if (sg_layout_holds(now)) {
        SG_TRY(sg_bridge_move(now, &layout, room_rows(session), &session->stats, err));
    }
    session->layouts[0] = session->layouts[1] = layout;
    for (uint32_t i = 0; i < layout.n; i++) session->layouts[SG_WRITING].stages[i].state = NULL;
    session->at = SG_READING;
    session->split = 0;
    return SEGUE_OK;
}
