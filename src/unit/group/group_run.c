/* group_run.c: runs of a group: every rank runs the same batch with its states, in parallel; rank 0 uses the thread of the
 * run. Rank 0 fills the caller's result.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "unit/batch.h"
#include "unit/group/rank_sync.h"
#include "unit/group/group_types.h"

/* One rank's part of a run. Owned by the run; written by the thread of the run only. */
struct group_rank {
    struct sg_run *run;              /* NULL: not started */
    struct sg_span *spans;           /* the batch's, with this rank's states */
    struct sg_ring ring;             /* steps > 1: of ranks other than 0, which uses the caller's */
    struct sg_result result;
    segue_error error;
    segue_status status;
};

/* One batch on all ranks. The thread of the run starts the ranks and waits for them. */
struct sg_run {
    struct sg_thread_run common;
    struct sg_program *program;
    struct sg_rank_sync rank_sync;
    struct sg_arena arena;           /* owns spans and tokens of the ranks */
    struct group_rank rank[SG_RANKS_MAX];
};

/* All ranks have the same length. */
static uint64_t state_rows(const struct sg_state *s)
{
    uint64_t first, rows = 0;
    s->base.unit->ops->state_held(s->rank[0], 0, &first, &rows);
    return rows;
}
static const struct sg_slot *state_slot(const struct sg_state *s, uint32_t i) { return i < s->slots_n ? &s->slots[i] : NULL; }
static const struct sg_batch_rules rules = {.unit = "several units", .rows = state_rows, .slot = state_slot};

/* Cancel goes through rank_sync, so that all ranks stop after the same pass. */
static segue_status start_rank(struct sg_run *run, uint32_t r)
{
    struct group_rank *t = &run->rank[r];
    struct sg_batch b = run->common.batch;
    b.spans = t->spans;
    b.inline_hint = r == 0;
    b.cancel = NULL;
    b.rank_sync = &run->rank_sync;
    b.rank = r;
    return run->program->base.unit->ops->start(run->program->rank[r], &b, &t->result, &t->run, &t->error);
}

/* Until the run of this rank ends. */
static void wait_rank(struct sg_run *run, struct group_rank *t)
{
    do {
        t->status = run->program->base.unit->ops->wait(t->run, UINT64_MAX, &t->error);
    } while (t->status == SEGUE_END);
}

/* The status of the run: an error other than ELOST, which ranks report when another one failed, takes precedence. */
static void first_failure(struct sg_run *run)
{
    uint32_t ranks = run->program->base.unit->ranks, at = 0;
    while (at < ranks && run->rank[at].status == SEGUE_OK) at++;
    if (at == ranks) return;
    for (uint32_t r = at; r < ranks; r++)
        if (run->rank[r].status != SEGUE_OK && run->rank[r].status != SEGUE_ELOST) {
            at = r;
            break;
        }
    run->common.status = run->rank[at].status;
    run->common.error = run->rank[at].error;
}

/* A rank that cannot start ends the others through rank_sync. */
static void work(struct sg_thread_run *common)
{
    struct sg_run *run = (struct sg_run *)(void *)common;
    struct sg_unit *u = run->program->base.unit;
    int is_long = 0;
    for (uint32_t s = 0; s < common->batch.spans_n; s++)
        is_long |= u->desc.long_rows && common->spans[s].rows > u->desc.long_rows;
    /* Two runs that interleave their ranks would wait for each other at the first join: one run per lane at a time. */
    pthread_mutex_lock(&u->lanes[is_long]);
    for (uint32_t r = u->ranks; r--;) { /* rank 0 last: it computes inside start */
        run->rank[r].status = start_rank(run, r);
        if (run->rank[r].status == SEGUE_OK) continue;
        run->rank[r].run = NULL;
        sg_rank_sync_abort(&run->rank_sync);
        break;
    }
    for (uint32_t r = 0; r < u->ranks; r++)
        if (run->rank[r].run) wait_rank(run, &run->rank[r]);
    pthread_mutex_unlock(&u->lanes[is_long]);
    first_failure(run);
}

/* --- start and wait --- */

/* Only after the run has ended, or before it was started. */
static void run_free(struct sg_run *run)
{
    sg_thread_run_free(&run->common);
    sg_rank_sync_close(&run->rank_sync);
    sg_arena_free(&run->arena);
    sg_free(run);
}

/* The batch and result of one rank. */
static segue_status rank_init(struct sg_run *run, uint32_t r, segue_error *err)
{
    struct group_rank *t = &run->rank[r];
    const struct sg_thread_run *common = &run->common;
    uint32_t n = common->batch.spans_n, steps = common->spans[0].steps > 1 ? common->spans[0].steps : 0;
    int32_t *tokens = sg_arena_alloc(&run->arena, (steps + 1) * sizeof *tokens);
    t->spans = sg_arena_alloc(&run->arena, n * sizeof *t->spans);
    if (!t->spans || !tokens) return sg_no_memory("a run of several units", n * sizeof *t->spans, err);
    memcpy(t->spans, common->spans, n * sizeof *t->spans);
    for (uint32_t s = 0; s < n; s++)
        if (common->spans[s].state) t->spans[s].state = common->spans[s].state->rank[r];
    if (!r) {
        t->result = common->result;
        t->result.rows_done = common->rows_done;
        return SEGUE_OK;
    }
    t->ring.tokens = tokens;
    t->ring.cap = steps;
    if (steps) t->spans[0].ring = &t->ring;
    t->result = (struct sg_result){0};
    return SEGUE_OK;
}

/* Replaces the adapters of the spans by split ones. */
static segue_status split_adapters(struct sg_run *run, segue_error *err)
{
    for (uint32_t s = 0; s < run->common.batch.spans_n; s++) {
        struct sg_span *span = &run->common.spans[s];
        if (!span->loras_n) continue;
        const struct sg_lora **split = sg_arena_alloc(&run->arena, span->loras_n * sizeof *split);
        if (!split) return sg_no_memory("a run of several units", span->loras_n * sizeof *split, err);
        for (uint32_t i = 0; i < span->loras_n; i++) SG_TRY(sg_group_lora(run->program, span->loras[i], &split[i], err));
        span->loras = split;
    }
    return SEGUE_OK;
}

segue_status sg_group_start(struct sg_program *p, const struct sg_batch *b, struct sg_result *r, struct sg_run **out,
                        segue_error *err)
{
    SG_TRY(sg_batch_check(&rules, &p->base, b, err));
    struct sg_run *run = sg_alloc(sizeof *run);
    if (!run) return sg_no_memory("a run of several units", sizeof *run, err);
    run->program = p;
    sg_rank_sync_open(&run->rank_sync, p->base.unit->ranks, b->cancel);
    segue_status status = sg_thread_run_init(&run->common, &p->base, b, r, work, err);
    if (status == SEGUE_OK) status = split_adapters(run, err);
    for (uint32_t i = 0; i < p->base.unit->ranks && status == SEGUE_OK; i++) status = rank_init(run, i, err);
    if (status != SEGUE_OK) {
        run_free(run);
        return status;
    }
    sg_thread_run_start(&run->common);
    *out = run;
    return SEGUE_OK;
}

/* Counters are sums over the ranks; ns is that of the whole run. */
segue_status sg_group_wait(struct sg_run *run, uint64_t timeout_ns, segue_error *err)
{
    segue_status status = sg_thread_run_wait(&run->common, timeout_ns, err);
    if (status == SEGUE_END) return status;
    struct sg_result *out = run->common.report;
    out->dispatches = out->weight_bytes = out->state_bytes = 0;
    for (uint32_t r = 0; r < run->program->base.unit->ranks; r++) {
        out->dispatches += run->rank[r].result.dispatches;
        out->weight_bytes += run->rank[r].result.weight_bytes;
        out->state_bytes += run->rank[r].result.state_bytes;
    }
    run_free(run);
    return status;
}
