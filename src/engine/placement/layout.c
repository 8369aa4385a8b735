/* layout.c: the states of all stages of a layout as one: new, fork, cut, free and run. Every call into a unit happens between
 * sg_unit_enter and sg_unit_leave, which serialise the sessions of several threads. SPDX-License-Identifier: MIT */
#include "engine/placement/layout.h"

#include "engine/placement/plan.h"

#include <string.h>

/* Host memory that another unit offers to states of a placement, for faster copies or none; NULL: none. */
static const struct sg_host_memory *host_offered(const struct segue_engine *e, uint32_t placement, uint32_t other)
{
    struct sg_unit *unit = e->placements[other].unit->unit;
    if (e->placements[other].unit == e->placements[placement].unit || !sg_ops_of(unit)->host) return NULL;
    return sg_ops_of(unit)->host(unit);
}

/* Of the unit that runs the first layer of the part in the other phase, where the states move; if it offers none, or without a
 * plan (part NULL), of the first unit of the engine that does. */
static const struct sg_host_memory *host_of(const struct segue_engine *e, uint32_t placement, const struct segue_plan *plan,
                                            const segue_part *part)
{
    const struct sg_host_memory *host = NULL;
    for (size_t i = 0; part && i < plan->info.parts_n && !host; i++) {
        const segue_part *p = &plan->parts[i];
        if (p->phase != part->phase && p->from <= part->from && part->from < p->to) host = host_offered(e, placement, p->unit);
    }
    for (uint32_t i = 0; i < e->placements_n && !host; i++) host = host_offered(e, placement, i);
    return host;
}

/* Appends the layers [from, to). The chunk size of a layout is the smallest of its stages. */
static segue_status add_stage(struct sg_layout *l, struct segue_engine *e, uint32_t placement, uint32_t from, uint32_t to,
                              const struct sg_host_memory *host, segue_error *err)
{
    struct sg_layout_stage *stage = &l->stages[l->n];
    const struct sg_placement *p = &e->placements[placement];
    SG_TRY(sg_engine_layer_range(e, placement, from, to, NULL, &stage->layer_range, err));
    stage->kv = p->kv;
    stage->placement = placement;
    stage->host = host;
    if (!l->n || p->chunk_tokens < l->chunk_tokens) l->chunk_tokens = p->chunk_tokens;
    l->n++;
    return SEGUE_OK;
}

segue_status sg_layout_make(struct sg_layout *out, struct segue_engine *e, const struct segue_plan *plan,
                            segue_phase phase, segue_error *err)
{
    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < plan->info.parts_n; i++) {
        const segue_part *p = &plan->parts[i];
        if (p->phase == phase) SG_TRY(add_stage(out, e, p->unit, p->from, p->to, host_of(e, p->unit, plan, p), err));
    }
    return SEGUE_OK;
}

segue_status sg_layout_of_placement(struct sg_layout *out, struct segue_engine *e, uint32_t placement,
                                segue_error *err)
{
    memset(out, 0, sizeof *out);
    return add_stage(out, e, placement, 0, e->graph->layers, host_of(e, placement, NULL, NULL), err);
}

/* Layer ranges are shared by all sessions of an engine, so equal ranges are the same pointer. */
int sg_layout_same(const struct sg_layout *a, const struct sg_layout *b)
{
    int same = a->n == b->n;
    for (uint32_t i = 0; same && i < a->n; i++)
        same = a->stages[i].layer_range == b->stages[i].layer_range && a->stages[i].kv == b->stages[i].kv;
    return same;
}

/* --- states --- */

/* One empty state with the options of `common` and the stage's own storage and host memory. */
static segue_status state_new(struct sg_layout_stage *stage, const struct sg_state_opts *common, segue_error *err)
{
    const struct sg_graph *g = stage->layer_range->graph;
    struct segue_unit *u = stage->layer_range->unit;
    struct sg_state_opts o = *common;
    o.kv = stage->kv;
    o.undo = SG_UNDO_MAX;
    o.host = stage->host;
    SG_TRY(sg_unit_enter(u, NULL, err));
    segue_status status =
        sg_ops_of(u->unit)->state_new(u->unit, g->slots, g->slots_n, &o, &stage->state, err);
    sg_unit_leave(u);
    return status;
}

/* After a failure the layout has no states. */
static segue_status make_states(struct sg_layout *l, const struct sg_state_opts *common, segue_error *err)
{
    for (uint32_t i = 0; i < l->n; i++) {
        segue_status status = state_new(&l->stages[i], common, err);
        if (status == SEGUE_OK) continue;
        l->stages[i].state = NULL;
        sg_layout_drop_states(l);
        return status;
    }
    return SEGUE_OK;
}

segue_status sg_layout_states(struct sg_layout *l, uint64_t rows, segue_error *err)
{
    return make_states(l, &(struct sg_state_opts){.rows = rows}, err);
}

segue_status sg_layout_states_to_fill(struct sg_layout *l, uint64_t rows, segue_error *err)
{
    return make_states(l, &(struct sg_state_opts){.rows = rows, .filled = 1}, err);
}

segue_status sg_layout_bare_states(struct sg_layout *l, segue_error *err)
{
    return make_states(l, &(struct sg_state_opts){.bare = 1}, err);
}

/* wait 0: skips states whose unit is in use. */
static void drop_states(struct sg_layout *l, int wait)
{
    for (uint32_t i = 0; i < l->n; i++) {
        struct sg_layout_stage *stage = &l->stages[i];
        if (!stage->state || (!wait && !sg_unit_try_enter(stage->layer_range->unit))) continue;
        if (wait) sg_unit_enter(stage->layer_range->unit, NULL, NULL);
        sg_ops_of(stage->state)->state_free(stage->state);
        sg_unit_leave(stage->layer_range->unit);
        stage->state = NULL;
    }
}

void sg_layout_drop_states(struct sg_layout *l) { drop_states(l, 1); }

void sg_layout_try_drop(struct sg_layout *l) { drop_states(l, 0); }

int sg_layout_holds(const struct sg_layout *l) { return l->n && l->stages[0].state; }

segue_status sg_layout_fork(const struct sg_layout *from, struct sg_layout *to, segue_error *err)
{
    *to = *from;
    for (uint32_t i = 0; i < to->n; i++) to->stages[i].state = NULL;
    for (uint32_t i = 0; i < from->n && from->stages[i].state; i++) {
        struct segue_unit *u = from->stages[i].layer_range->unit;
        struct sg_state *state = from->stages[i].state;
        SG_TRY(sg_unit_enter(u, NULL, err));
        segue_status status = sg_ops_of(state)->state_fork(state, &to->stages[i].state, err);
        sg_unit_leave(u);
        if (status == SEGUE_OK) continue;
        to->stages[i].state = NULL;
        sg_layout_drop_states(to);
        return status;
    }
    return SEGUE_OK;
}

segue_status sg_layout_cut(struct sg_layout *l, uint64_t rows, segue_error *err)
{
    for (uint32_t i = 0; i < l->n; i++) {
        struct sg_layout_stage *stage = &l->stages[i];
        SG_TRY(sg_unit_enter(stage->layer_range->unit, NULL, err));
        segue_status status = sg_ops_of(stage->state)->state_cut(stage->state, rows, err);
        sg_unit_leave(stage->layer_range->unit);
        if (status != SEGUE_OK) return status;
    }
    return SEGUE_OK;
}

uint64_t sg_layout_bytes(const struct sg_layout *l)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < l->n; i++)
        if (l->stages[i].state) bytes += sg_ops_of(l->stages[i].state)->state_bytes(l->stages[i].state);
    return bytes;
}

struct sg_layout_stage *sg_layout_slot(struct sg_layout *l, enum sg_slot_kind kind, uint32_t layer, uint32_t *index)
{
    for (uint32_t i = 0; i < l->n; i++) {
        const struct sg_graph *g = l->stages[i].layer_range->graph;
        for (uint32_t s = 0; s < g->slots_n; s++)
            if (g->slots[s].kind == kind && g->slots[s].layer == layer) {
                *index = s;
                return &l->stages[i];
            }
    }
    return NULL;
}

/* --- runs --- */

/* Tokens of the longest span, by which the unit chooses a lane. */
static uint32_t longest_span(const struct sg_batch *b)
{
    uint32_t rows = 0;
    for (uint32_t i = 0; i < b->spans_n; i++)
        if (b->spans[i].rows > rows) rows = b->spans[i].rows;
    return rows;
}

/* The lane is held until wait. */
segue_status sg_layer_range_start(const struct sg_layer_range *s, const struct sg_batch *b, struct sg_result *r,
                              struct sg_run **out, segue_error *err)
{
    SG_TRY(sg_unit_enter_run(s->unit, longest_span(b), b->cancel, err));
    segue_status status = sg_ops_of(s->program)->start(s->program, b, r, out, err);
    if (status != SEGUE_OK) sg_unit_leave_run(s->unit, longest_span(b));
    return status;
}

/* Waits in periods of one second, since a unit may bound the timeout that it supports. */
segue_status sg_layer_range_wait(const struct sg_layer_range *s, const struct sg_batch *b, struct sg_run *run, segue_error *err)
{
    segue_status status;
    do status = sg_ops_of(s->program)->wait(run, 1000000000, err);
    while (status == SEGUE_END);
    sg_unit_leave_run(s->unit, longest_span(b));
    return status;
}

segue_status sg_layer_range_run(const struct sg_layer_range *s, const struct sg_batch *b, struct sg_result *r,
                            segue_error *err)
{
    struct sg_run *run = NULL;
    SG_TRY(sg_layer_range_start(s, b, r, &run, err));
    return sg_layer_range_wait(s, b, run, err);
}
