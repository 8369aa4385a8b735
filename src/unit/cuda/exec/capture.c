/* capture.c: passes that come again: issued straight the first time, which makes all room, captured the second, launched as
 * graphs from then on. What changes between them lies in GPU memory (struct ck_head). A pass of few rows is one graph; so is one
 * of many rows beside which nobody reads, others are cut behind each layer's memory, where an event says to who waits that it is
 * there. SPDX-License-Identifier: MIT */
#include <string.h>

#include "unit/cuda/exec/exec_pass.h"

static void key_of(const struct sg_run *run, const struct trip *trip, const struct cu_pass *p, struct cu_graph_key *key)
{
    const struct cu_lane *l = p->lane;
    int many = p->rows_n[0] > CU_EXACT;
    *key = (struct cu_graph_key){.rows = p->rows_n[0],
                                 .wanted = p->rows_n[1],
                                 .chunks = many ? 0 : p->chunks,
                                 .best = (uint16_t)trip->best,
                                 .advance = trip->advance,
                                 .storage = cu_storage_of(p->kv),
                                 .stops = trip->stops_n,
                                 .heading = p->heading,
                                 .sms = p->sms,
                                 .screen = (uint16_t)p->screen,
                                 .embedded = (uint16_t)p->embedded,
                                 .banned = trip->banned,
                                 .rooms = {l->scratch, l->parts}};
    if (!many) return;
    key->quiet = run->own.batch.quiet != 0;
    key->rooms[2] = l->narrow;
    key->rooms[3] = l->wide;
    key->rooms[4] = l->workspace;
    key->rooms[5] = l->many.memory[0];
    key->rooms[6] = l->many.memory[1];
}

static void forget_one(struct sg_unit *u, struct cu_captured *c)
{
    while (c->n) u->d.exec_free(c->exec[--c->n]);
}

void cu_captured_forget(struct sg_unit *u, struct cu_lane *l)
{
    while (l->captured_n) forget_one(u, &l->captured[--l->captured_n]);
}

static struct cu_captured *captured_of(struct cu_lane *l, const struct cu_graph_key *key)
{
    for (uint32_t i = 0; i < l->captured_n; i++)
        if (!memcmp(&l->captured[i].key, key, sizeof *key)) return &l->captured[i];
    return NULL;
}

/* The steps before `end` that belong together with `from`. */
static uint32_t end_of(const struct sg_run *run, const struct cu_pass *p, uint32_t from, uint32_t cuts)
{
    uint32_t end = p->program->fused_n;
    if (p->rows_n[0] <= CU_EXACT || run->own.batch.quiet || cuts + 1 == CU_CUTS) return end;
    for (uint32_t i = from; i < end; i++)
        if (cu_flow_cuts(&p->program->fused[i])) return i + 1;
    return end;
}

static segue_status capture_steps(struct sg_run *run, const struct trip *trip, struct cu_pass *p, uint32_t from, uint32_t end,
                                  cu_exec *out)
{
    struct sg_unit *u = p->program->base.unit;
    cu_graph graph = NULL;
    segue_status status = SEGUE_OK;
    SG_TRY(cu_run_check(run, u->d.capture(p->lane->stream, 1)));
    for (uint32_t i = from ? from : p->embedded, many; i < end && status == SEGUE_OK; i += many)
        status = cu_rank_issue(p, &p->program->fused[i], &many);
    if (status == SEGUE_OK && end == p->program->fused_n) status = cu_rank_end(p);
    if (status == SEGUE_OK && end == p->program->fused_n) status = cu_trip_choice(trip, p);
    cu_result r = u->d.capture_end(p->lane->stream, &graph);
    if (status == SEGUE_OK) status = cu_run_check(run, r);
    if (status == SEGUE_OK) status = cu_run_check(run, u->d.graph_make(out, graph, 0));
    if (graph) u->d.graph_free(graph);
    return status;
}

static segue_status capture(struct sg_run *run, const struct trip *trip, struct cu_pass *p, struct cu_captured *c)
{
    segue_status status = SEGUE_OK;
    for (uint32_t from = 0; from < p->program->fused_n && status == SEGUE_OK; from = c->ends[c->n - 1]) {
        c->ends[c->n] = end_of(run, p, from, c->n);
        status = capture_steps(run, trip, p, from, c->ends[c->n], &c->exec[c->n]);
        if (status != SEGUE_OK) break;
        c->n++;
    }
    if (status != SEGUE_OK) forget_one(p->program->base.unit, c);
    return status;
}

static segue_status first_time(struct sg_run *run, const struct trip *trip, struct cu_pass *p)
{
    struct cu_lane *l = p->lane;
    SG_TRY(cu_trip_straight(run, trip, p));
    if (l->captured_n == CU_CAPTURED) cu_captured_forget(p->program->base.unit, l);
    struct cu_captured *c = &l->captured[l->captured_n++];
    c->n = 0;
    key_of(run, trip, p, &c->key);
    return SEGUE_OK;
}

segue_status cu_trip_captured(struct sg_run *run, const struct trip *trip, struct cu_pass *p)
{
    struct sg_unit *u = p->program->base.unit;
    struct cu_graph_key key;
    key_of(run, trip, p, &key);
    struct cu_captured *c = captured_of(p->lane, &key);
    if (!c) return first_time(run, trip, p);
    if (!c->n) SG_TRY(capture(run, trip, p, c));
    for (uint32_t i = 0, at = 0; i < c->n; i++) {
        SG_TRY(cu_run_check(run, u->d.exec_run(c->exec[i], p->lane->stream)));
        p->launches++;
        for (; at < c->ends[i]; at++) SG_TRY(cu_trip_flow(run, trip, p, &p->program->fused[at]));
    }
    return SEGUE_OK;
}
