/* flow.c: see flow.h. For each slot it remembers how many positions were copied; copying itself is in bridge.c.
 * SPDX-License-Identifier: MIT */
#include "engine/transfer/flow.h"

#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/transfer/bridge.h"

/* One slot of the model: where it is in both layouts, and what was copied. */
struct path {
    uint32_t from_stage, from_slot, to_stage, to_slot;
    uint64_t sent; /* K, V: positions before this one were copied; recurrent: 1 = copied */
};

struct sg_flow {
    struct sg_layout *from, *to;
    struct path *paths; /* [paths_n] in the order of layers */
    uint32_t paths_n;
    int open;             /* 1: the states of `to` exist */
    struct sg_staging staging;
    struct sg_moved moved;
    uint64_t ns;          /* CPU time of copies during runs */
};

/* EINTERNAL: a layout lacks a slot of the model. */
static segue_status find_paths(struct sg_flow *f, const struct sg_graph *all, segue_error *err)
{
    for (uint32_t i = 0; i < all->slots_n; i++) {
        struct path *p = &f->paths[f->paths_n++];
        const struct sg_slot *s = &all->slots[i];
        struct sg_layout_stage *a = sg_layout_slot(f->from, s->kind, s->layer, &p->from_slot),
                        *b = sg_layout_slot(f->to, s->kind, s->layer, &p->to_slot);
        if (!a || !b)
            return sg_fail(err, SEGUE_EINTERNAL, "hand-off failed: layer %u: no stage holds this slot; report this",
                           s->layer);
        p->from_stage = (uint32_t)(a - f->from->stages);
        p->to_stage = (uint32_t)(b - f->to->stages);
    }
    return SEGUE_OK;
}

segue_status sg_flow_new(struct sg_flow **out, struct sg_layout *from, struct sg_layout *to,
                         const struct sg_graph *all, segue_error *err)
{
    *out = NULL;
    if (sg_bridge_can_transfer(from, to)) return SEGUE_OK;
    struct sg_flow *f = sg_alloc(sizeof *f);
    if (!f) return sg_no_memory("hand-off", sizeof *f, err);
    f->from = from;
    f->to = to;
    f->paths = sg_alloc(all->slots_n * sizeof *f->paths);
    segue_status status = f->paths ? SEGUE_OK : sg_no_memory("hand-off", all->slots_n * sizeof *f->paths, err);
    if (status == SEGUE_OK) status = sg_staging_open(&f->staging, from, to, 0, err);
    if (status == SEGUE_OK) status = find_paths(f, all, err);
    if (status != SEGUE_OK) {
        sg_flow_free(f);
        return status;
    }
    *out = f;
    return SEGUE_OK;
}

void sg_flow_free(struct sg_flow *f)
{
    if (!f) return;
    sg_free(f->paths);
    sg_staging_close(&f->staging);
    sg_free(f);
}

void sg_flow_close(struct sg_flow *f)
{
    if (!f || !f->open) return;
    sg_layout_drop_states(f->to);
    for (uint32_t i = 0; i < f->paths_n; i++) f->paths[i].sent = 0;
    f->open = 0;
}

/* Copies the positions of one slot that were not copied yet, up to `rows`. last: also recurrent slots. In the last run only,
 * unless copying has begun (`sent`): slots with a sliding window, whose earlier positions would leave the window before decode
 * starts, and rows that the target may take over; once some of them do not follow each other they are copied as they come. */
static segue_status send_path(struct sg_flow *f, struct path *p, uint64_t rows, int last, segue_error *err)
{
    const struct sg_layout_stage *a = &f->from->stages[p->from_stage], *b = &f->to->stages[p->to_stage];
    const struct sg_slot *slot = &b->layer_range->graph->slots[p->to_slot];
    struct sg_slot_copy j = {.from = a->state,
                           .from_slot = p->from_slot,
                           .to = b->state,
                           .to_slot = p->to_slot,
                           .slot = slot,
                           .kv = b->kv,
                           .first = p->sent,
                           .end = rows};
    if (sg_slot_fixed_bytes(slot)) {
        if (!last) p->sent = 0; /* this run changes it */
        if (!last) return SEGUE_OK;
        SG_TRY(sg_bridge_slot(&j, &f->staging, &f->moved, err));
        p->sent = 1;
        return SEGUE_OK;
    }
    int attaches = a->kv == b->kv && sg_bridge_attaches(&j);
    if ((slot->window || attaches) && !last && !p->sent) return SEGUE_OK;
    if (!p->sent) j.first = sg_slot_first_needed(slot, rows);
    if (j.first >= rows) return SEGUE_OK;
    SG_TRY(sg_bridge_slot(&j, &f->staging, &f->moved, err));
    p->sent = rows;
    return SEGUE_OK;
}

int sg_flow_open(struct sg_flow *f, uint64_t capacity)
{
    if (!f->open) f->open = sg_layout_states_to_fill(f->to, capacity, NULL) == SEGUE_OK;
    return f->open;
}

int sg_flow_send(struct sg_flow *f, uint32_t k, uint64_t before, uint64_t rows, int last)
{
    segue_status status = SEGUE_OK;
    uint64_t start_ns = sg_thread_ns();
    if (!f->from->stages[k].layer_range->unit->desc.streams) { /* the unit returns only what earlier runs completed */
        rows = before;
        last = 0;
    }
    for (uint32_t i = 0; i < f->paths_n && status == SEGUE_OK; i++)
        if (f->paths[i].from_stage == k) status = send_path(f, &f->paths[i], rows, last, NULL);
    f->ns += sg_thread_ns() - start_ns;
    return status == SEGUE_OK;
}

segue_status sg_flow_finish(struct sg_flow *f, uint64_t rows, segue_error *err)
{
    if (!f->open) return sg_fail(err, SEGUE_EUNSUPPORTED, "hand-off not finished: the flow is closed; move the state");
    segue_status status = SEGUE_OK;
    for (uint32_t i = 0; i < f->paths_n && status == SEGUE_OK; i++) {
        struct path *p = &f->paths[i];
        int fixed = sg_slot_fixed_bytes(&f->to->stages[p->to_stage].layer_range->graph->slots[p->to_slot]) != 0;
        if (p->sent < (fixed ? 1 : rows)) status = send_path(f, p, rows, 1, err);
    }
    if (status == SEGUE_OK) status = sg_bridge_flush(f->from, err);
    for (uint32_t i = 0; i < f->to->n && status == SEGUE_OK; i++)
        status = sg_bridge_validate(&f->to->stages[i], rows, err);
    if (status != SEGUE_OK) {
        sg_flow_close(f);
        return status;
    }
    for (uint32_t i = 0; i < f->paths_n; i++) f->paths[i].sent = 0;
    f->open = 0;
    return SEGUE_OK;
}

void sg_flow_sums(const struct sg_flow *f, struct sg_flow_sums *out)
{
    *out = (struct sg_flow_sums){.bytes = f->moved.all, .copied = f->moved.copied, .ns = f->ns};
}
