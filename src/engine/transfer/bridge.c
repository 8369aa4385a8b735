/* bridge.c: moves states between units, slot by slot, in the canonical layout of docs/STATE.md and the storage of the target.
 * It knows no particular unit: a pair of units that can do better implements state_transfer, which must give the same bytes.
 *
 * Units with state_flush copy asynchronously: their rows are collected as pieces in the staging buffer and put into the target
 * after one flush. Units without it return from state_get with the data, so each piece is put at once.
 * SPDX-License-Identifier: MIT */
#include "engine/transfer/bridge.h"

#include <stdatomic.h>

#include "base/clock.h"
#include "base/mem.h"

enum {
    PIECE_BYTES = 1 << 20,    /* minimum size of the staging buffer */
    PINNED_BYTES = 32 << 20,  /* maximum size of a pinned one */
    PIECES = 64               /* pending gets per flush */
};

/* --- staging buffer --- */

/* PIECE_BYTES, or the largest unit of a copy: one row of K or V, or one recurrent slot. */
static size_t min_capacity(const struct sg_layout *to)
{
    size_t capacity = PIECE_BYTES;
    for (uint32_t i = 0; i < to->n; i++) {
        const struct sg_graph *g = to->stages[i].layer_range->graph;
        for (uint32_t k = 0; k < g->slots_n; k++) {
            size_t fixed = sg_slot_fixed_bytes(&g->slots[k]);
            size_t bytes = fixed ? fixed : sg_slot_row_bytes(&g->slots[k], to->stages[i].kv);
            if (bytes > capacity) capacity = bytes;
        }
    }
    return capacity;
}

/* Pinned memory for all rows, up to PINNED_BYTES: then one flush waits for all copies together. */
static size_t pinned_capacity(const struct sg_layout *to, uint64_t rows)
{
    size_t row = 0, least = min_capacity(to);
    for (uint32_t i = 0; i < to->n; i++) {
        const struct sg_graph *g = to->stages[i].layer_range->graph;
        for (uint32_t k = 0; k < g->slots_n; k++) row += sg_slot_row_bytes(&g->slots[k], to->stages[i].kv);
    }
    if (row && rows > PINNED_BYTES / row) rows = PINNED_BYTES / row;
    return rows * row > least ? rows * row : least;
}

segue_status sg_staging_open(struct sg_staging *c, const struct sg_layout *from, const struct sg_layout *to, uint64_t tokens,
                             segue_error *err)
{
    const struct sg_host_memory *host = sg_host_memory_pinned(from->stages[0].host);
    if (!host) host = sg_host_memory_pinned(to->stages[0].host);
    *c = (struct sg_staging){.bytes = host ? pinned_capacity(to, tokens) : min_capacity(to)};
    if (host) c->memory = host->take(host->owner, c->bytes);
    if (c->memory) c->host = host;
    else c->memory = sg_alloc_unset(c->bytes = min_capacity(to));
    return c->memory ? SEGUE_OK : sg_no_memory("hand-off", c->bytes, err);
}

void sg_staging_close(struct sg_staging *c)
{
    if (c->host) c->host->leave(c->host->owner, c->memory);
    else sg_free_aligned(c->memory);
    *c = (struct sg_staging){0};
}

/* --- one slot --- */

static segue_status flush(struct sg_state *s, segue_error *err)
{
    return sg_ops_of(s)->state_flush ? sg_ops_of(s)->state_flush(s, err) : SEGUE_OK;
}

segue_status sg_bridge_flush(const struct sg_layout *from, segue_error *err)
{
    for (uint32_t i = 0; i < from->n; i++)
        if (from->stages[i].state) SG_TRY(flush(from->stages[i].state, err));
    return SEGUE_OK;
}

/* A recurrent slot. A unit with state_at gives direct access: the target takes the memory over (state_attach), or it saves the
 * copy through the staging buffer. */
static segue_status move_fixed(const struct sg_slot_copy *j, struct sg_staging *c, struct sg_moved *moved, segue_error *err)
{
    const struct sg_unit_ops *a = sg_ops_of(j->from), *b = sg_ops_of(j->to);
    size_t bytes = sg_slot_fixed_bytes(j->slot);
    void *at;
    moved->all += bytes;
    moved->copied += bytes;
    if (a->state_at) {
        SG_TRY(a->state_at(j->from, j->from_slot, 0, &at, err));
        if (b->state_attach && b->state_attach(j->to, j->to_slot, 0, j->end, SG_F32, at, NULL) == SEGUE_OK) {
            moved->copied -= bytes;
            return SEGUE_OK;
        }
        return b->state_put(j->to, j->to_slot, 0, j->end, SG_F32, at, err);
    }
    if (b->state_at) {
        SG_TRY(b->state_at(j->to, j->to_slot, 1, &at, err));
        return a->state_get(j->from, j->from_slot, 0, j->end, SG_F32, at, err);
    }
    SG_TRY(a->state_get(j->from, j->from_slot, 0, j->end, SG_F32, c->memory, err));
    SG_TRY(flush(j->from, err));
    SG_TRY(b->state_put(j->to, j->to_slot, 0, j->end, SG_F32, c->memory, err));
    return flush(j->to, err);
}

int sg_bridge_attaches(const struct sg_slot_copy *j)
{
    const struct sg_unit_ops *a = sg_ops_of(j->from), *b = sg_ops_of(j->to);
    struct sg_unit *to = ((const struct sg_state_base *)(const void *)j->to)->unit;
    const struct sg_host_memory *host = b->state_attach && b->host ? b->host(to) : NULL;
    if (sg_slot_fixed_bytes(j->slot) || !a->state_rows || !host || !host->attachable || j->first >= j->end) return 0;
    return a->state_rows(j->from, j->from_slot, j->first, j->end, j->kv, NULL, NULL) == SEGUE_OK;
}

/* 1: the target took the rows of K or V over. */
static int attach_rows(const struct sg_slot_copy *j, struct sg_moved *moved)
{
    const void *at;
    if (!sg_bridge_attaches(j)) return 0;
    if (sg_ops_of(j->from)->state_rows(j->from, j->from_slot, j->first, j->end, j->kv, &at, NULL) != SEGUE_OK) return 0;
    if (sg_ops_of(j->to)->state_attach(j->to, j->to_slot, j->first, j->end, j->kv, at, NULL) != SEGUE_OK) return 0;
    moved->all += (j->end - j->first) * sg_slot_row_bytes(j->slot, j->kv);
    return 1;
}

/* K and V rows in pieces of the staging buffer's size. They are read in the target's storage, so that only the source unit
 * converts. */
segue_status sg_bridge_slot(const struct sg_slot_copy *j, struct sg_staging *c, struct sg_moved *moved, segue_error *err)
{
    const struct sg_unit_ops *a = sg_ops_of(j->from), *b = sg_ops_of(j->to);
    if (sg_slot_fixed_bytes(j->slot)) return move_fixed(j, c, moved, err);
    if (attach_rows(j, moved)) return SEGUE_OK;
    size_t row_bytes = sg_slot_row_bytes(j->slot, j->kv);
    uint64_t max_rows = row_bytes && c->bytes > row_bytes ? c->bytes / row_bytes : 1;
    for (uint64_t at = j->first, n; at < j->end; at += n) {
        n = max_rows < j->end - at ? max_rows : j->end - at;
        SG_TRY(a->state_get(j->from, j->from_slot, at, at + n, j->kv, c->memory, err));
        SG_TRY(flush(j->from, err));
        SG_TRY(b->state_put(j->to, j->to_slot, at, at + n, j->kv, c->memory, err));
        SG_TRY(flush(j->to, err));
        moved->all += n * row_bytes;
        moved->copied += n * row_bytes;
    }
    return SEGUE_OK;
}

segue_status sg_bridge_validate(const struct sg_layout_stage *stage, uint64_t tokens, segue_error *err)
{
    return sg_ops_of(stage->state)->state_put(stage->state, UINT32_MAX, tokens, tokens, stage->kv, NULL, err);
}

/* --- all slots --- */

/* Rows [from, from + n) of a copy: requested from the source, not yet put into the target. */
struct piece {
    const struct sg_slot_copy *j;
    uint64_t from, n;
    uint8_t *at; /* in the staging buffer */
};
/* One move of all slots. */
struct move {
    struct sg_layout *from, *to;
    struct sg_staging staging;
    struct sg_slot_copy *copies; /* [n] one per slot of the model */
    uint32_t n, pieces_n;
    struct piece pieces[PIECES]; /* [pieces_n] pending */
    size_t used;                 /* bytes of the staging buffer that pending pieces occupy */
    int fixed_sent;              /* 1: recurrent slots of sources without state_at were copied */
    struct sg_moved *moved;      /* out: so far */
};

/* Fills `copies`: for each slot of the target its state in the source, and the positions held there. EINTERNAL: the source
 * layout lacks a slot. */
static segue_status find_copies(struct move *m, uint64_t rows, segue_error *err)
{
    uint32_t all = 0;
    for (uint32_t i = 0; i < m->to->n; i++) all += m->to->stages[i].layer_range->graph->slots_n;
    m->copies = sg_alloc(all * sizeof *m->copies);
    if (!m->copies) return sg_no_memory("hand-off", all * sizeof *m->copies, err);
    for (uint32_t i = 0; i < m->to->n; i++) {
        struct sg_layout_stage *stage = &m->to->stages[i];
        const struct sg_graph *g = stage->layer_range->graph;
        for (uint32_t k = 0; k < g->slots_n; k++) {
            struct sg_slot_copy *j = &m->copies[m->n++];
            *j = (struct sg_slot_copy){.to = stage->state, .to_slot = k, .slot = &g->slots[k], .kv = stage->kv, .end = rows};
            struct sg_layout_stage *source = sg_layout_slot(m->from, g->slots[k].kind, g->slots[k].layer, &j->from_slot);
            if (!source)
                return sg_fail(err, SEGUE_EINTERNAL,
                               "state not moved: layer %u: no stage of the source holds this slot; report this",
                               g->slots[k].layer);
            j->from = source->state;
            uint64_t held = rows;
            sg_ops_of(j->from)->state_held(j->from, j->from_slot, &j->first, &held);
        }
    }
    return SEGUE_OK;
}

/* Recurrent slots of the sources that have state_at (direct = 1), or of the others (0). */
static segue_status send_fixed(struct move *m, int direct, segue_error *err)
{
    for (uint32_t i = 0; i < m->n; i++) {
        const struct sg_slot_copy *j = &m->copies[i];
        if (sg_slot_fixed_bytes(j->slot) && (sg_ops_of(j->from)->state_at != NULL) == direct)
            SG_TRY(move_fixed(j, &m->staging, m->moved, err));
    }
    return SEGUE_OK;
}

/* Waits for the pending gets and puts their pieces into the target. With pinned memory, recurrent slots that do not need the
 * staging buffer are copied in the same pass, so that they overlap with the rows. */
static segue_status deliver(struct move *m, segue_error *err)
{
    SG_TRY(sg_bridge_flush(m->from, err));
    if (!m->fixed_sent && m->staging.host) {
        m->fixed_sent = 1;
        for (uint32_t i = 0; i < m->n; i++) {
            const struct sg_slot_copy *j = &m->copies[i];
            if (sg_slot_fixed_bytes(j->slot) && !sg_ops_of(j->from)->state_at && !sg_ops_of(j->to)->state_at)
                m->fixed_sent = 0; /* needs the staging buffer, which the pieces occupy */
        }
        if (m->fixed_sent) SG_TRY(send_fixed(m, 0, err));
    }
    for (uint32_t i = 0; i < m->pieces_n; i++) {
        const struct piece *p = &m->pieces[i];
        SG_TRY(sg_ops_of(p->j->to)->state_put(p->j->to, p->j->to_slot, p->from, p->from + p->n, p->j->kv, p->at, err));
    }
    m->pieces_n = 0;
    m->used = 0;
    return sg_bridge_flush(m->to, err);
}

/* Requests the rows of one K or V slot piece by piece; delivers when the staging buffer or the list of pieces is full. */
static segue_status send_rows(struct move *m, const struct sg_slot_copy *j, segue_error *err)
{
    size_t row_bytes = sg_slot_row_bytes(j->slot, j->kv);
    for (uint64_t at = j->first, n; at < j->end; at += n) {
        if (m->pieces_n == PIECES || m->staging.bytes - m->used < row_bytes) SG_TRY(deliver(m, err));
        uint64_t max_rows = row_bytes ? (m->staging.bytes - m->used) / row_bytes : j->end - at;
        n = max_rows < j->end - at ? max_rows : j->end - at;
        struct piece *p = &m->pieces[m->pieces_n++];
        *p = (struct piece){j, at, n, m->staging.memory + m->used};
        m->used += n * row_bytes;
        m->moved->all += n * row_bytes;
        m->moved->copied += n * row_bytes;
        SG_TRY(sg_ops_of(j->from)->state_get(j->from, j->from_slot, at, at + n, j->kv, p->at, err));
        if (sg_ops_of(j->from)->state_flush) continue;
        SG_TRY(sg_ops_of(j->to)->state_put(j->to, j->to_slot, at, at + n, j->kv, p->at, err)); /* state_get was synchronous */
        m->pieces_n--;
        if (!sg_ops_of(j->to)->state_flush) m->used -= n * row_bytes;
    }
    return SEGUE_OK;
}

/* Order: recurrent slots with direct access, all rows, the other recurrent slots; then the target is validated. */
static segue_status move_slots(struct move *m, uint64_t rows, segue_error *err)
{
    SG_TRY(find_copies(m, rows, err));
    SG_TRY(send_fixed(m, 1, err));
    for (uint32_t i = 0; i < m->n; i++)
        if (!sg_slot_fixed_bytes(m->copies[i].slot) && !attach_rows(&m->copies[i], m->moved))
            SG_TRY(send_rows(m, &m->copies[i], err));
    SG_TRY(deliver(m, err));
    if (!m->fixed_sent) SG_TRY(send_fixed(m, 0, err));
    SG_TRY(sg_bridge_flush(m->from, err));
    for (uint32_t i = 0; i < m->to->n; i++) SG_TRY(sg_bridge_validate(&m->to->stages[i], rows, err));
    return SEGUE_OK;
}

/* The general move. On failure `to` has no states and `from` is unchanged. */
static segue_status move_by_copies(struct sg_layout *from, struct sg_layout *to, uint64_t capacity, uint64_t rows,
                              struct sg_moved *moved, segue_error *err)
{
    struct move m = {.from = from, .to = to, .moved = moved};
    sg_layout_drop_states(to); /* bare states have no memory to copy into */
    SG_TRY(sg_layout_states_to_fill(to, capacity, err));
    segue_status status = sg_staging_open(&m.staging, from, to, rows, err);
    if (status == SEGUE_OK) status = move_slots(&m, rows, err);
    if (status != SEGUE_OK) {
        (void)sg_bridge_flush(from, NULL);
        sg_layout_drop_states(to);
    }
    sg_staging_close(&m.staging);
    sg_free(m.copies);
    return status;
}

/* --- state_transfer --- */

int sg_bridge_can_transfer(const struct sg_layout *from, const struct sg_layout *to)
{
    int same = from->n == to->n;
    for (uint32_t i = 0; same && i < from->n; i++) {
        const struct sg_layer_range *a = from->stages[i].layer_range, *b = to->stages[i].layer_range;
        const struct sg_unit_ops *ops = sg_ops_of(b->unit->unit);
        same = a->from == b->from && a->to == b->to && from->stages[i].kv == to->stages[i].kv &&
               ops == sg_ops_of(a->unit->unit) && ops->state_transfer;
    }
    return same;
}

/* Moves all stages by state_transfer. 0: a stage refused; those before it were moved back and `to` has no states. */
static int transfer_all(struct sg_layout *from, struct sg_layout *to)
{
    if (!sg_bridge_can_transfer(from, to)) return 0;
    if (!sg_layout_holds(to) && sg_layout_bare_states(to, NULL) != SEGUE_OK) return 0;
    uint32_t done = 0;
    for (; done < to->n; done++) {
        struct sg_state *a = from->stages[done].state, *b = to->stages[done].state;
        if (sg_ops_of(b)->state_transfer(b, a, NULL) != SEGUE_OK) break;
    }
    if (done == to->n) return 1;
    while (done--)
        (void)sg_ops_of(from->stages[done].state)
            ->state_transfer(from->stages[done].state, to->stages[done].state, NULL);
    sg_layout_drop_states(to);
    return 0;
}

/* Size of the states of `rows` tokens in the storage of `to`. */
static uint64_t bytes_of(const struct sg_layout *to, uint64_t rows)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < to->n; i++) {
        const struct sg_layout_stage *s = &to->stages[i];
        for (uint32_t k = 0; k < s->layer_range->graph->slots_n; k++) {
            const struct sg_slot *slot = &s->layer_range->graph->slots[k];
            uint64_t first = 0, held = rows;
            sg_ops_of(s->state)->state_held(s->state, k, &first, &held);
            size_t fixed = sg_slot_fixed_bytes(slot);
            bytes += fixed ? fixed : sg_slot_row_bytes(slot, s->kv) * (rows - first);
        }
    }
    return bytes;
}

segue_status sg_bridge_move(struct sg_layout *from, struct sg_layout *to, uint64_t capacity, struct sg_move_stats *out,
                            segue_error *err)
{
    uint64_t start_ns = sg_now_ns(), first = 0;
    *out = (struct sg_move_stats){0};
    const struct sg_layout_stage *source = &from->stages[0];
    sg_ops_of(source->state)->state_held(source->state, 0, &first, &out->tokens);
    int passed = transfer_all(from, to);
    struct sg_moved moved = {0};
    if (!passed) SG_TRY(move_by_copies(from, to, capacity, out->tokens, &moved, err));
    out->ns = sg_now_ns() - start_ns;
    out->copied_bytes = moved.copied;
    out->bytes = passed ? bytes_of(to, out->tokens) : moved.all;
    return SEGUE_OK;
}

/* --- fault injection --- */

#ifdef SEGUE_FAULTS
static atomic_uint fault_layer; /* layer + 1; 0: none */

void sg_fault_ulp(uint32_t layer) { atomic_store(&fault_layer, layer + 1); }

/* Flips the last bit of the first number of the first held row; numbers are little-endian. */
void sg_fault_ulp_now(struct sg_layout *to)
{
    uint32_t layer = atomic_load(&fault_layer);
    uint8_t *buffer = layer ? sg_alloc(min_capacity(to)) : NULL;
    for (uint32_t i = 0; buffer && i < to->n; i++) {
        struct sg_layout_stage *stage = &to->stages[i];
        const struct sg_graph *g = stage->layer_range->graph;
        const struct sg_unit_ops *ops = stage->state ? sg_ops_of(stage->state) : NULL;
        for (uint32_t k = 0; ops && k < g->slots_n; k++) {
            uint64_t first = 0, rows = 0;
            enum sg_storage storage = sg_slot_fixed_bytes(&g->slots[k]) ? SG_F32 : stage->kv;
            ops->state_held(stage->state, k, &first, &rows);
            if (g->slots[k].layer != layer - 1 || first >= rows ||
                ops->state_get(stage->state, k, first, first + 1, storage, buffer, NULL) != SEGUE_OK)
                continue;
            buffer[storage == SG_Q8_0 ? 2 : 0] ^= 1; /* q8: after the 2 bytes of the scale */
            (void)ops->state_put(stage->state, k, first, first + 1, storage, buffer, NULL);
        }
    }
    sg_free(buffer);
}
#endif
