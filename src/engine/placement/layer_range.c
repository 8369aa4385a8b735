/* layer_range.c: compiles layer ranges for the units of an engine, each once, on first use. SPDX-License-Identifier: MIT */
#include "engine/placement/layer_range.h"

#include <stdio.h>

#include "base/mem.h"
#include "engine/queue/shared_queue.h"

void sg_layer_range_free(struct sg_layer_range *s)
{
    if (!s) return;
    sg_layer_range_free(s->embed);
    if (s->program) sg_ops_of(s->program)->discard(s->program);
    if (s->local_graph) sg_graph_free(s->local_graph);
    sg_shared_queue_free(s->queue);
    sg_free(s);
}

/* The range without the head, not compiled. Both graphs are compiled in one call, so that the unit has the weights once. */
static segue_status embed_new(const struct sg_placement *p, struct sg_layer_range *s, segue_error *err)
{
    struct sg_layer_range *m = s->embed = sg_alloc(sizeof *m);
    struct sg_graph_request wish = {.from = s->from, .to = s->to, .select_late = s->unit->desc.select_late};
    if (!m) return sg_no_memory("program", sizeof *m, err);
    *m = (struct sg_layer_range){.unit = s->unit, .model = s->model, .from = s->from, .to = s->to};
    SG_TRY(sg_model_graph(p->model, &wish, &m->local_graph, err));
    m->graph = m->local_graph;
    return SEGUE_OK;
}

/* Builds the graph of the range, unless it is the whole model, and compiles it. The unit is entered for the compilation only,
 * so that other sessions can run between the compilations of two ranges. */
static segue_status compile(struct segue_engine *e, const struct sg_placement *p, struct sg_layer_range *s,
                            const struct sg_progress *progress, segue_error *err)
{
    int whole = s->from == 0 && s->to == e->graph->layers;
    if (!whole) {
        struct sg_graph_request wish = {s->from, s->to, s->to == e->graph->layers, e->keep_values,
                                     s->unit->desc.select_late};
        SG_TRY(sg_model_graph(p->model, &wish, &s->local_graph, err));
    }
    s->graph = !whole ? s->local_graph : p->graph ? p->graph : e->graph;
    char name[32];
    snprintf(name, sizeof name, "hidden.%u", s->to);
    s->hidden = s->to < e->graph->layers ? sg_graph_output(s->graph, name) : -1;
    if (s->to < e->graph->layers && s->hidden < 0)
        return sg_fail(err, SEGUE_EINTERNAL, "graph refused: layers %u to %u: no output %s; report this",
                       s->from, s->to, name);
    if (whole && e->embeddings) SG_TRY(embed_new(p, s, err));
    const struct sg_graph *graphs[2] = {s->graph, s->embed ? s->embed->graph : NULL};
    struct sg_program *programs[2] = {NULL, NULL};
    const struct sg_unit_ops *ops = sg_ops_of(s->unit->unit);
    SG_TRY(sg_unit_enter(s->unit, NULL, err));
    if (ops->progress) ops->progress(s->unit->unit, progress);
    if (ops->compile_invariant) ops->compile_invariant(s->unit->unit, e->deterministic);
    segue_status status =
        ops->compile(s->unit->unit, graphs, s->embed ? 2 : 1, e->cache ? &p->weight_cache : NULL, programs, err);
    s->program = programs[0];
    if (s->embed) s->embed->program = programs[1];
    if (ops->progress) ops->progress(s->unit->unit, NULL);
    sg_unit_leave(s->unit);
    return status;
}

/* The engine's lock is held, so that two sessions that request the same range get the same one. */
static segue_status find_or_compile(struct segue_engine *e, const struct sg_placement *p, uint32_t from, uint32_t to,
                                    const struct sg_progress *progress, const struct sg_layer_range **out, segue_error *err)
{
    for (const struct sg_layer_range *s = e->layer_ranges; s; s = s->next)
        if (s->unit == p->unit && s->model == p->model && s->from == from && s->to == to) {
            *out = s;
            return SEGUE_OK;
        }
    struct sg_layer_range *s = sg_alloc(sizeof *s);
    if (!s) return sg_no_memory("program", sizeof *s, err);
    s->unit = p->unit;
    s->model = p->model;
    s->from = from;
    s->to = to;
    segue_status status = sg_shared_queue_new(&s->queue, s->unit->desc.rows_max, err);
    if (status == SEGUE_OK) status = compile(e, p, s, progress, err);
    if (status != SEGUE_OK) {
        sg_layer_range_free(s);
        return status;
    }
    s->next = e->layer_ranges;
    e->layer_ranges = s;
    *out = s;
    return SEGUE_OK;
}

segue_status sg_engine_layer_range(struct segue_engine *e, uint32_t placement, uint32_t from, uint32_t to,
                                   const struct sg_progress *progress, const struct sg_layer_range **out, segue_error *err)
{
    pthread_mutex_lock(&e->lock);
    segue_status status = find_or_compile(e, &e->placements[placement], from, to, progress, out, err);
    pthread_mutex_unlock(&e->lock);
    return status;
}

uint64_t sg_engine_compiles(struct segue_engine *e)
{
    uint64_t n = 0;
    pthread_mutex_lock(&e->lock);
    for (const struct sg_layer_range *s = e->layer_ranges; s; s = s->next) n += sg_program_compiles(s->program);
    pthread_mutex_unlock(&e->lock);
    return n;
}

segue_status sg_engine_weights_id(const struct segue_engine *e, char out[33], segue_error *err)
{
    struct sg_hash all, other;
    SG_TRY(sg_weights_id_wait(e->model->weights_id, &all, err));
    for (uint32_t i = 0; i < e->placements_n; i++) {
        if (e->placements[i].model == e->model) continue;
        SG_TRY(sg_weights_id_wait(e->placements[i].model->weights_id, &other, err));
        all = sg_hash_join(all, other);
    }
    sg_hash_hex(all, out);
    return SEGUE_OK;
}

int sg_engine_weights_known(const struct segue_engine *e)
{
    struct sg_hash ignored;
    int known = sg_weights_id_known(e->model->weights_id, &ignored);
    for (uint32_t i = 0; i < e->placements_n; i++) known &= sg_weights_id_known(e->placements[i].model->weights_id, &ignored);
    return known;
}
