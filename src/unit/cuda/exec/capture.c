/* capture.c: captured passes. A pass with a new key is issued without a graph, which allocates all scratch; the second time it
 * is captured, and replayed from then on. What varies between replays (tokens, positions, slots) is in GPU memory (struct
 * ck_head). A short pass is one graph, and so is a long one whose states no other thread reads while it runs (batch option
 * quiet). Other long passes are split after each layer that writes a state, so that an event can be recorded between two
 * graphs. The choice of a token is part of the graph of a short pass only: so a prompt replays the same graph however its first
 * token is chosen, and graphs of other lengths are prepared after the first (prepare.c). SPDX-License-Identifier: MIT */
#include <string.h>

#include "unit/cuda/exec/exec_pass.h"

enum { LATE_CHOICE = 2 }; /* cu_graph_key.best: no choice is part of the graph */

/* Short passes do not depend on the buffers of long ones, long ones not on the number of chunks (their kernels read
 * positions). */
static void key_of(const struct sg_run *run, const struct cu_pass_plan *plan, const struct cu_pass *p, struct cu_graph_key *key)
{
    const struct cu_lane *l = p->lane;
    int is_long = p->rows_n[0] > CU_GEMV_ROWS;
    *key = (struct cu_graph_key){.rows = p->rows_n[0],
                                 .wanted = p->rows_n[1],
                                 .chunks = is_long ? 0 : p->chunks,
                                 .storage = cu_storage_of(p->kv),
                                 .args_index = p->args_index,
                                 .sms = p->sms,
                                 .screen = (uint16_t)p->screen,
                                 .embedded = (uint16_t)p->embedded,
                                 .buffers = {l->scratch, l->attn_parts}};
    if (!is_long) {
        key->best = plan->late ? LATE_CHOICE : (uint16_t)plan->best;
        if (plan->late) return;
        key->advance = plan->advance;
        key->stops = plan->stops_n;
        key->sampled = (uint16_t)p->sampled;
        key->logprobs = (uint16_t)p->logprobs;
        key->banned = plan->banned;
        return;
    }
    /* Long passes: scratch that grows on demand, and whether they are split. */
    key->quiet = run->base.batch.quiet != 0;
    key->buffers[2] = l->narrow;
    key->buffers[3] = l->wide;
    key->buffers[4] = l->workspace;
    key->buffers[5] = l->values_many.memory[0];
    key->buffers[6] = l->values_many.memory[1];
}

/* The entry is afterwards "seen once". */
static void destroy_graphs(struct sg_unit *u, struct cu_lane *l, struct cu_captured *c)
{
    while (c->n) u->d.exec_free(c->exec[--c->n]);
    l->graphs_bytes -= c->bytes;
    c->bytes = 0;
    cu_graphs_reserve(u, l);
}

/* What the lane's graphs do not take yet of their share is kept free (fits.c). */
void cu_graphs_reserve(struct sg_unit *u, struct cu_lane *l)
{
    size_t now = l->graphs_bytes < l->graphs_max ? l->graphs_max - l->graphs_bytes : 0;
    atomic_fetch_add(&u->graphs_reserved, (uint64_t)now - (uint64_t)l->graphs_reserved);
    l->graphs_reserved = now;
}

/* Destroys the graphs of the entry that was not used for the longest time, not of `c`. 0: there are none. */
static int destroy_oldest(struct sg_unit *u, struct cu_lane *l, const struct cu_captured *c)
{
    struct cu_captured *oldest = NULL;
    for (uint32_t i = 0; i < l->captured_n; i++) {
        struct cu_captured *e = &l->captured[i];
        if (e->n && e != c && (!oldest || e->used < oldest->used)) oldest = e;
    }
    if (oldest) destroy_graphs(u, l, oldest);
    return oldest != NULL;
}

void cu_captured_forget(struct sg_unit *u, struct cu_lane *l)
{
    while (l->captured_n) destroy_graphs(u, l, &l->captured[--l->captured_n]);
}

/* The entry of a pass, or NULL. The list is short; keys have no padding that differs. */
static struct cu_captured *captured_of(struct cu_lane *l, const struct cu_graph_key *key)
{
    for (uint32_t i = 0; i < l->captured_n; i++)
        if (!memcmp(&l->captured[i].key, key, sizeof *key)) return &l->captured[i];
    return NULL;
}

/* First step after the graph that begins with step `from`: after the next step that writes a state, or the end of the pass. */
static uint32_t end_of(const struct sg_run *run, const struct cu_pass *p, uint32_t from, uint32_t cuts)
{
    uint32_t end = p->program->fused_n;
    if (p->rows_n[0] <= CU_GEMV_ROWS || run->base.batch.quiet || cuts + 1 == CU_GRAPH_PIECES) return end;
    /* The last graph takes what is left when there are too many. */
    for (uint32_t i = from; i < end; i++)
        if (cu_layer_event_splits(&p->program->fused[i])) return i + 1;
    return end;
}

/* Captures the steps [from, end) into one graph; the last graph of a short pass also has the choice of tokens. Capture is ended
 * also after an error, since the stream could not be used otherwise. */
static segue_status capture_steps(struct sg_run *run, const struct cu_pass_plan *plan, struct cu_pass *p, uint32_t from,
                                  uint32_t end, cu_exec *out)
{
    struct sg_unit *u = p->program->base.unit;
    cu_graph graph = NULL;
    segue_status status = SEGUE_OK;
    SG_TRY(cu_run_check(run, u->d.capture_begin(p->lane->stream, 1)));
    /* An embedding that the previous choice has written is skipped: it is step 0. */
    for (uint32_t i = from ? from : p->embedded, count; i < end && status == SEGUE_OK; i += count)
        status = cu_issue(p, &p->program->fused[i], &count);
    if (status == SEGUE_OK && end == p->program->fused_n) status = cu_cluster_pass_end(p);
    if (status == SEGUE_OK && end == p->program->fused_n && p->rows_n[0] <= CU_GEMV_ROWS) status = cu_pass_choice(plan, p);
    cu_result r = u->d.capture_end(p->lane->stream, &graph);
    if (status == SEGUE_OK) status = cu_run_check(run, r);
    if (status == SEGUE_OK) status = cu_run_check(run, u->d.graph_instantiate(out, graph, 0));
    if (graph) u->d.graph_free(graph);
    return status;
}

/* All graphs of a pass; on failure none. */
static segue_status capture(struct sg_run *run, const struct cu_pass_plan *plan, struct cu_pass *p, struct cu_captured *c)
{
    struct sg_unit *u = p->program->base.unit;
    segue_status status = SEGUE_OK;
    const uint64_t before = p->launches;
    for (uint32_t from = 0; from < p->program->fused_n && status == SEGUE_OK; from = c->ends[c->n - 1]) {
        c->ends[c->n] = end_of(run, p, from, c->n);
        status = capture_steps(run, plan, p, from, c->ends[c->n], &c->exec[c->n]);
        if (status != SEGUE_OK) break;
        c->n++;
    }
    if (status == SEGUE_OK) {
        c->bytes = (size_t)(p->launches - before) * CU_GRAPH_LAUNCH_BYTES;
        p->lane->graphs_bytes += c->bytes;
        cu_graphs_reserve(u, p->lane);
        while (p->lane->graphs_bytes > CU_GRAPHS_BYTES && destroy_oldest(u, p->lane, c)) {}
    } else {
        destroy_graphs(u, p->lane, c);
    }
    return status;
}

/* Full memory: the graphs of other passes are freed until there is room. If there is none then, *captured is 0 and the pass is
 * issued without a graph: the same kernels with the same results. */
static segue_status capture_or_not(struct sg_run *run, const struct cu_pass_plan *plan, struct cu_pass *p, struct cu_captured *c,
                                   int *captured)
{
    const struct cu_pass first = *p;
    segue_status status = capture(run, plan, p, c);
    while (status == SEGUE_EMEMORY) {
        int more = destroy_oldest(p->program->base.unit, p->lane, c);
        *p = first;
        *p->err = (segue_error){0};
        status = more ? capture(run, plan, p, c) : SEGUE_OK;
        if (!more) break;
    }
    *captured = c->n != 0;
    return status;
}

/* 1: a buffer of the entry's graphs was reallocated since, so that none of them is used again. */
static int is_stale(const struct cu_lane *l, const struct cu_graph_key *key)
{
    const cu_ptr now[] = {l->scratch, l->attn_parts, l->narrow, l->wide, l->workspace,
                          l->values_many.memory[0], l->values_many.memory[1]};
    return memcmp(key->buffers, now, key->rows > CU_GEMV_ROWS ? sizeof now : 2 * sizeof *now) != 0;
}

/* The entry for a new pass: a stale one, else a new one, else the one that was not used for the longest time. */
static struct cu_captured *new_entry(struct sg_unit *u, struct cu_lane *l)
{
    struct cu_captured *c = NULL, *oldest = &l->captured[0];
    for (uint32_t i = 0; i < l->captured_n && !c; i++) {
        if (is_stale(l, &l->captured[i].key)) c = &l->captured[i];
        if (l->captured[i].used < oldest->used) oldest = &l->captured[i];
    }
    if (!c && l->captured_n < CU_GRAPHS_CACHED) return &l->captured[l->captured_n++];
    if (!c) c = oldest;
    destroy_graphs(u, l, c);
    return c;
}

static segue_status issue_first_time(struct sg_run *run, const struct cu_pass_plan *plan, struct cu_pass *p)
{
    struct cu_lane *l = p->lane;
    SG_TRY(cu_pass_issue_steps(run, plan, p));
    struct cu_captured *c = new_entry(p->program->base.unit, l);
    c->n = 0;
    c->used = l->runs;
    key_of(run, plan, p, &c->key);
    return SEGUE_OK;
}

/* After each graph, events are recorded for the slots that its steps have written. */
segue_status cu_pass_launch_graph(struct sg_run *run, const struct cu_pass_plan *plan, struct cu_pass *p)
{
    struct sg_unit *u = p->program->base.unit;
    struct cu_graph_key key;
    key_of(run, plan, p, &key);
    struct cu_lane *l = p->lane;
    struct cu_captured *c = captured_of(l, &key);
    if (!c) return issue_first_time(run, plan, p);
    c->used = l->runs;
    int captured = 1;
    if (!c->n) SG_TRY(capture_or_not(run, plan, p, c, &captured));
    if (!captured) return cu_pass_issue_steps(run, plan, p);
    for (uint32_t i = 0, at = 0; i < c->n; i++) {
        SG_TRY(cu_run_check(run, u->d.graph_launch(c->exec[i], l->stream)));
        p->launches++;
        for (; at < c->ends[i]; at++) SG_TRY(cu_pass_layer_done(run, plan, p, &p->program->fused[at]));
    }
    return p->rows_n[0] > CU_GEMV_ROWS ? cu_pass_choice(plan, p) : SEGUE_OK;
}
