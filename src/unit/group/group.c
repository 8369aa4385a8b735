/* group.c: see group.h. The unit and its programs.
 * SPDX-License-Identifier: MIT */
#include "unit/group/group.h"

#include <stdio.h>
#include <string.h>

#include "unit/finite.h"
#include "unit/group/group_types.h"

/* --- programs --- */

/* Drops one reference. Programs of one compile call share the graphs. NULL is allowed. */
static void graphs_release(struct group_graphs *g)
{
    if (!g || --g->refs) return;
    sg_group_loras_free(g->loras);
    sg_tp_graphs_free(g->tp);
    sg_free(g);
}

/* The graphs are freed with their last program. */
static void group_discard(struct sg_program *p)
{
    if (!p) return;
    struct sg_unit *u = p->base.unit;
    pthread_mutex_lock(&u->lock);
    struct sg_program **at = &u->programs;
    while (*at && *at != p) at = &(*at)->next;
    if (*at) *at = p->next;
    pthread_mutex_unlock(&u->lock);
    for (uint32_t r = 0; r < u->ranks; r++) u->ops->discard(p->rank[r]);
    graphs_release(p->graphs);
    sg_free(p);
}

/* A program without its ranks, in the unit's list. */
static segue_status program_new(struct sg_unit *u, const struct sg_graph *g, struct group_graphs *graphs, uint32_t index,
                                struct sg_program **out, segue_error *err)
{
    struct sg_program *p = sg_alloc(sizeof *p);
    if (!p) return sg_no_memory("program of several units", sizeof *p, err);
    p->base = (struct sg_program_base){u->base.ops, u, g};
    p->graphs = graphs;
    p->index = index;
    graphs->refs++;
    pthread_mutex_lock(&u->lock);
    p->next = u->programs;
    u->programs = p;
    pthread_mutex_unlock(&u->lock);
    *out = p;
    return SEGUE_OK;
}

/* Compiles rank r of all graphs in one call, so that weights in several graphs are shared. */
static segue_status compile_rank(struct sg_unit *u, uint32_t r, struct sg_tp_graphs *s, struct sg_program **programs,
                                 segue_error *err)
{
    /* s->graphs is [graphs_n][ranks]: column r are the graphs of this rank. */
    const struct sg_graph **graphs = sg_alloc(s->graphs_n * sizeof *graphs);
    struct sg_program **made = sg_alloc(s->graphs_n * sizeof *made);
    segue_status status = graphs && made ? SEGUE_OK : sg_no_memory("programs", s->graphs_n * sizeof *made, err);
    for (uint32_t i = 0; i < s->graphs_n && status == SEGUE_OK; i++) graphs[i] = s->graphs[i * s->ranks + r];
    if (status == SEGUE_OK) status = u->ops->compile(u->rank[r], graphs, s->graphs_n, NULL, made, err);
    for (uint32_t i = 0; i < s->graphs_n && status == SEGUE_OK; i++) programs[i]->rank[r] = made[i];
    sg_free(graphs);
    sg_free(made);
    return status;
}

/* Programs are created first, so that a failure can discard them in any state. */
static segue_status compile_all(struct sg_unit *u, const struct sg_graph *const *graphs, uint32_t n, struct group_graphs *split,
                                struct sg_program **programs, segue_error *err)
{
    for (uint32_t i = 0; i < n; i++) SG_TRY(program_new(u, graphs[i], split, i, &programs[i], err));
    for (uint32_t r = 0; r < u->ranks; r++) SG_TRY(compile_rank(u, r, split->tp, programs, err));
    for (uint32_t i = 0; i < n && u->ops->link_ranks; i++) SG_TRY(u->ops->link_ranks(programs[i]->rank, u->ranks, err));
    return SEGUE_OK;
}

/* Weights are checked before they are split. The weight cache is not used, since its entries are of whole weights. */
static segue_status group_compile(struct sg_unit *u, const struct sg_graph *const *graphs, uint32_t n,
                                  const struct sg_weight_cache *keep, struct sg_program **programs, segue_error *err)
{
    (void)keep;
    for (uint32_t i = 0; i < n; i++) SG_TRY(sg_graph_check(graphs[i], err));
    for (uint32_t i = 0; i < n; i++) SG_TRY(sg_weights_finite(graphs[i], err));
    struct group_graphs *split = sg_alloc(sizeof *split);
    if (!split) return sg_no_memory("graphs of several units", sizeof *split, err);
    /* This reference is held during the call, so that discarding programs after a failure does not free the graphs early. */
    split->refs = 1;
    for (uint32_t i = 0; i < n; i++) programs[i] = NULL;
    segue_status status = sg_tp_graphs_new(graphs, n, u->ranks, &split->tp, err);
    if (status == SEGUE_OK) status = compile_all(u, graphs, n, split, programs, err);
    for (uint32_t i = 0; i < n && status != SEGUE_OK; i++) {
        group_discard(programs[i]);
        programs[i] = NULL;
    }
    graphs_release(split);
    return status;
}

/* Sums over the ranks. */
static void group_footprint(const struct sg_program *p, uint64_t *own, uint64_t *read, uint64_t *scratch)
{
    const struct sg_unit *u = p->base.unit;
    uint64_t sums[3] = {0};
    for (uint32_t r = 0; r < u->ranks; r++) {
        uint64_t one[3] = {0};
        u->ops->footprint(p->rank[r], &one[0], &one[1], &one[2]);
        for (int i = 0; i < 3; i++) sums[i] += one[i];
    }
    if (own) *own = sums[0];
    if (read) *read = sums[1];
    if (scratch) *scratch = sums[2];
}

/* --- the unit --- */

/* The ranks are closed with the group. */
static void group_close(struct sg_unit *u)
{
    if (!u) return;
    for (uint32_t r = 0; r < u->ranks; r++) u->ops->close(u->rank[r]);
    for (int i = 0; i < GROUP_LANES; i++) pthread_mutex_destroy(&u->lanes[i]);
    pthread_mutex_destroy(&u->lock);
    sg_free(u);
}

/* Built once by `describe`. */
static void group_describe(const struct sg_unit *u, struct sg_unit_desc *out) { *out = u->desc; }

/* All ranks are units of one kind; rank 0 answers for them. */
static segue_status group_can(const struct sg_unit *u, const struct sg_graph *g, const struct sg_op *op, segue_error *why)
{
    return u->ops->can(u->rank[0], g, op, why);
}

/* Measured one rank after the other and added. */
static segue_status group_stream(struct sg_unit *u, uint64_t bytes, double *gb_s, segue_error *err)
{
    double sum = 0, one;
    for (uint32_t r = 0; r < u->ranks; r++, sum += one) SG_TRY(u->ops->stream(u->rank[r], bytes, &one, err));
    *gb_s = sum;
    return SEGUE_OK;
}

/* Sum over the ranks; each rank's device is a rail. */
static segue_status group_meter(struct sg_unit *u, segue_energy *out, segue_error *err)
{
    for (uint32_t r = 0; r < u->ranks; r++) {
        segue_energy one = SEGUE_INIT(segue_energy);
        SG_TRY(u->ops->meter(u->rank[r], &one, err));
        out->joules += one.joules;
        memcpy(out->meter, one.meter, sizeof out->meter);
        if (out->rails_n == SEGUE_RAILS) continue;
        struct segue_rail *rail = &out->rails[out->rails_n++];
        snprintf(rail->name, sizeof rail->name, "rank %u", r);
        rail->joules = one.joules;
    }
    return SEGUE_OK;
}

/* The description of rank 0 with the memory of all. */
static void describe(struct sg_unit *u, const char *spec)
{
    struct sg_unit_desc *d = &u->desc;
    char features[sizeof d->info.features];
    u->ops->describe(u->rank[0], d);
    for (uint32_t r = 1; r < u->ranks; r++) {
        struct sg_unit_desc other;
        u->ops->describe(u->rank[r], &other);
        d->info.memory_bytes += other.info.memory_bytes;
    }
    snprintf(features, sizeof features, "%u x %.*s", u->ranks, (int)sizeof features - 8, d->info.features);
    memcpy(d->info.features, features, sizeof features);
    snprintf(d->info.spec, sizeof d->info.spec, "%s", spec);
    d->streams = 0; /* start returns before all ranks have started */
    d->kernels[0] = 0;
    /* Lanes of a group are selected by long_rows; without that limit there is one. */
    if (d->lanes > GROUP_LANES || !d->long_rows) d->lanes = 1;
}

/* The group's table: optional functions only where the ranks have them. */
static void table_init(struct sg_unit *u)
{
    u->table = (struct sg_unit_ops){.kind = "group", .close = group_close, .describe = group_describe, .can = group_can,
                                  .compile = group_compile, .discard = group_discard, .footprint = group_footprint,
                                  .start = sg_group_start, .wait = sg_group_wait};
    sg_group_state_table(&u->table);
    if (!u->ops->state_logits) u->table.state_logits = NULL;
    if (u->ops->stream) u->table.stream = group_stream;
    if (u->ops->meter) u->table.meter = group_meter;
    u->base.ops = &u->table;
}

/* Locks and table are complete before describe calls the ranks. After a failure the ranks are closed here, not by the caller. */
segue_status sg_group_open(struct sg_unit **out, struct sg_unit *const *units, uint32_t n, const char *spec, segue_error *err)
{
    const struct sg_unit_ops *ops = sg_ops_of(units[0]);
    struct sg_unit *u = sg_alloc(sizeof *u);
    if (!u) {
        for (uint32_t r = 0; r < n; r++) ops->close(units[r]);
        return sg_no_memory("several units", sizeof *u, err);
    }
    u->ops = ops;
    u->ranks = n;
    memcpy(u->rank, units, n * sizeof *units);
    for (int i = 0; i < GROUP_LANES; i++) pthread_mutex_init(&u->lanes[i], NULL);
    pthread_mutex_init(&u->lock, NULL);
    table_init(u);
    describe(u, spec);
    *out = u;
    return SEGUE_OK;
}
