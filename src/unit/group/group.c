/* group.c: see group.h. The unit, and a graph's shares compiled by its ranks.
 * SPDX-License-Identifier: MIT */
#include "unit/group/group.h"

#include <stdio.h>
#include <string.h>

#include "unit/finite.h"
#include "unit/group/group_types.h"

/* --- programs --- */

static void shares_leave(struct group_graphs *s)
{
    if (!s || --s->references) return;
    sg_group_loras_free(s->loras);
    sg_tp_graphs_free(s->shares);
    sg_free(s);
}

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
    shares_leave(p->shares);
    sg_free(p);
}

static segue_status program_new(struct sg_unit *u, const struct sg_graph *g, struct group_graphs *shares, uint32_t index,
                                struct sg_program **out, segue_error *err)
{
    struct sg_program *p = sg_alloc(sizeof *p);
    if (!p) return sg_no_memory("program of several units", sizeof *p, err);
    p->base = (struct sg_program_base){u->base.ops, u, g};
    p->shares = shares;
    p->index = index;
    shares->references++;
    pthread_mutex_lock(&u->lock);
    p->next = u->programs;
    u->programs = p;
    pthread_mutex_unlock(&u->lock);
    *out = p;
    return SEGUE_OK;
}

/* Rank r's shares of all graphs at once. */
static segue_status compile_rank(struct sg_unit *u, uint32_t r, struct sg_tp_graphs *s, struct sg_program **programs,
                                 segue_error *err)
{
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

static segue_status compile_all(struct sg_unit *u, const struct sg_graph *const *graphs, uint32_t n, struct group_graphs *shares,
                                struct sg_program **programs, segue_error *err)
{
    for (uint32_t i = 0; i < n; i++) SG_TRY(program_new(u, graphs[i], shares, i, &programs[i], err));
    for (uint32_t r = 0; r < u->ranks; r++) SG_TRY(compile_rank(u, r, shares->shares, programs, err));
    for (uint32_t i = 0; i < n && u->ops->link_ranks; i++) SG_TRY(u->ops->link_ranks(programs[i]->rank, u->ranks, err));
    return SEGUE_OK;
}

static segue_status group_compile(struct sg_unit *u, const struct sg_graph *const *graphs, uint32_t n, const struct sg_weight_cache *keep,
                                 struct sg_program **programs, segue_error *err)
{
    (void)keep;
    for (uint32_t i = 0; i < n; i++) SG_TRY(sg_graph_check(graphs[i], err));
    for (uint32_t i = 0; i < n; i++) SG_TRY(sg_weights_finite(graphs[i], err));
    struct group_graphs *shares = sg_alloc(sizeof *shares);
    if (!shares) return sg_no_memory("shares", sizeof *shares, err);
    shares->references = 1;
    for (uint32_t i = 0; i < n; i++) programs[i] = NULL;
    segue_status status = sg_tp_graphs_new(graphs, n, u->ranks, &shares->shares, err);
    if (status == SEGUE_OK) status = compile_all(u, graphs, n, shares, programs, err);
    for (uint32_t i = 0; i < n && status != SEGUE_OK; i++) {
        group_discard(programs[i]);
        programs[i] = NULL;
    }
    shares_leave(shares);
    return status;
}

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

static void group_close(struct sg_unit *u)
{
    if (!u) return;
    for (uint32_t r = 0; r < u->ranks; r++) u->ops->close(u->rank[r]);
    for (int i = 0; i < GROUP_LANES; i++) pthread_mutex_destroy(&u->lanes[i]);
    pthread_mutex_destroy(&u->lock);
    sg_free(u);
}

static void group_describe(const struct sg_unit *u, struct sg_unit_desc *out) { *out = u->desc; }

static segue_status group_can(const struct sg_unit *u, const struct sg_graph *g, const struct sg_op *op, segue_error *why)
{
    return u->ops->can(u->rank[0], g, op, why);
}

/* One after the other: what they read together is the sum. */
static segue_status group_stream(struct sg_unit *u, uint64_t bytes, double *gb_s, segue_error *err)
{
    double sum = 0, one;
    for (uint32_t r = 0; r < u->ranks; r++, sum += one) SG_TRY(u->ops->stream(u->rank[r], bytes, &one, err));
    *gb_s = sum;
    return SEGUE_OK;
}

static segue_status group_meter(struct sg_unit *u, double *joules, segue_error *err)
{
    double sum = 0, one;
    for (uint32_t r = 0; r < u->ranks; r++, sum += one) SG_TRY(u->ops->meter(u->rank[r], &one, err));
    *joules = sum;
    return SEGUE_OK;
}

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
    d->streams = 0; /* a rank may begin later than start returns */
    d->kernels[0] = 0;
    if (d->lanes > GROUP_LANES || !d->long_rows) d->lanes = 1;
}

static void table(struct sg_unit *u)
{
    u->own = (struct sg_unit_ops){.kind = "team", .close = group_close, .describe = group_describe, .can = group_can,
                                  .compile = group_compile, .discard = group_discard, .footprint = group_footprint,
                                  .start = sg_group_start, .wait = sg_group_wait};
    sg_group_state_table(&u->own);
    if (!u->ops->state_logits) u->own.state_logits = NULL;
    if (u->ops->stream) u->own.stream = group_stream;
    if (u->ops->meter) u->own.meter = group_meter;
    u->base.ops = &u->own;
}

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
    table(u);
    describe(u, spec);
    *out = u;
    return SEGUE_OK;
}
