/* cuda_run.c: a batch from start to wait. Spans of up to 16 rows share passes of up to 16 rows. A longer span has separate passes
 * of up to 2048 rows, so its results do not depend on other spans. A pass succeeds or fails as a whole; rows_done counts the rows
 * of completed passes.
 *
 * There is no queue: sg_thread_run executes the run on the caller's thread (inline_hint) or on a thread of the run, and the
 * lane's lock admits one run at a time. Decode and prefill runs have different lanes and overlap on the GPU.
 * SPDX-License-Identifier: MIT */
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "unit/cuda/exec/cuda_run.h"
#include "unit/cuda/issue/issue.h"
#include "unit/group/rank_sync.h"

/* New states may still be being cleared in the stream `copies`: the lane's stream waits for that, not the host. */
static segue_status wait_for_clearing(struct sg_run *run)
{
    struct sg_unit *u = run->program->base.unit;
    int any = 0;
    for (uint32_t i = 0; i < run->base.batch.spans_n; i++) {
        struct sg_state *s = run->base.spans[i].state;
        any |= s->clearing;
        s->clearing = 0;
    }
    if (!any) return SEGUE_OK;
    cu_result r = u->d.event_record(run->lane->stream_event, u->copies);
    if (!r) r = u->d.stream_wait_event(run->lane->stream, run->lane->stream_event, 0);
    return cu_check(&u->d, r, "run", &run->base.error);
}

/* The whole run, on whichever thread. The ranks of a group wait for each other before they lock their lanes. After a failure
 * the stream is drained, since kernels may still write to the states, and the peers are stopped. */
static void run_work(struct sg_thread_run *base)
{
    struct sg_run *run = (struct sg_run *)(void *)base;
    struct sg_unit *u = run->program->base.unit;
    struct sg_rank_sync *m = base->batch.rank_sync;
    /* A rank that fails before its first pass would leave the others waiting inside a kernel. */
    int all = !m || sg_rank_sync_arrive(m);
    pthread_mutex_lock(&run->lane->lock);
    cu_enter(u);
    cu_partition_run_begin(u, run->lane->kind);
    base->status = all ? cu_join_check(run->lane, &base->error)
                       : sg_fail(&base->error, SEGUE_ELOST, "run: cuda: another GPU of this unit did not start; try again");
    if (base->status == SEGUE_OK) base->status = wait_for_clearing(run);
    if (base->status == SEGUE_OK) base->status = cu_run_all(run);
    if (base->status == SEGUE_OK) base->status = cu_join_check(run->lane, &base->error);
    if (m && base->status != SEGUE_OK) sg_rank_sync_abort(m);
    cu_partition_run_end(u, run->lane->kind);
    if (base->status != SEGUE_OK) u->d.stream_sync(run->lane->stream);
    cu_leave(u);
    pthread_mutex_unlock(&run->lane->lock);
}

/* Reserves capacity for everything that the run may append, since memory cannot move while kernels use it. With steps > 1 the
 * number of tokens is not known in advance, so readers of fixed slots wait for the end of the run. */
static segue_status run_acquired(struct sg_thread_run *run, segue_error *err)
{
    for (uint32_t i = 0; i < run->batch.spans_n; i++) {
        const struct sg_span *s = &run->spans[i];
        SG_TRY(cu_state_reserve(s->state, (uint64_t)s->rows + s->steps, err));
        cu_layer_events_begin(s->state, s->steps > 1 ? UINT64_MAX : s->first + s->rows);
    }
    return SEGUE_OK;
}

/* The lane is chosen by the longest span. */
static segue_status run_fill(struct sg_thread_run *base, struct sg_program *p, segue_error *err)
{
    struct sg_run *run = (struct sg_run *)(void *)base;
    (void)err;
    run->program = p;
    run->lane = &p->lanes[CU_LANE_DECODE];
    for (uint32_t i = 0; i < base->batch.spans_n; i++)
        if (base->spans[i].rows > CU_DECODE_ROWS) run->lane = &p->lanes[CU_LANE_PREFILL];
    return SEGUE_OK;
}

/* weight_bytes counts every pass as a full read of the weights. */
static void run_report(const struct sg_thread_run *base, struct sg_result *r)
{
    const struct sg_run *run = (const struct sg_run *)(const void *)base;
    r->dispatches = run->launches;
    r->weight_bytes = run->passes * run->program->read_per_token;
    r->state_bytes = run->state_bytes;
}

static const struct sg_thread_run_ops run_ops = {
    .rules = {.unit = "cuda", .rows = sg_state_core_tokens, .slot = sg_state_core_slot_info},
    .size = sizeof(struct sg_run),
    .fill = run_fill,
    .acquired = run_acquired,
    .work = run_work,
    .report = run_report,
};

segue_status cu_start_uncounted(struct sg_program *p, const struct sg_batch *b, struct sg_result *r, struct sg_run **out,
                              segue_error *err)
{
    return sg_thread_run_open(&run_ops, p, b, r, out, err);
}

segue_status cu_start(struct sg_program *p, const struct sg_batch *b, struct sg_result *r, struct sg_run **out, segue_error *err)
{
    atomic_fetch_add(&p->runs, 1u);
    segue_status status = cu_start_uncounted(p, b, r, out, err);
    if (status == SEGUE_OK)
        (*out)->counted = 1;
    else
        atomic_fetch_sub(&p->runs, 1u);
    return status;
}

segue_status cu_wait(struct sg_run *run, uint64_t timeout_ns, segue_error *err)
{
    struct sg_program *p = run->program;
    int counted = run->counted;
    segue_status status = sg_thread_run_end(run, timeout_ns, err);
    if (status == SEGUE_END || !counted) return status;
    atomic_store(&p->run_end_ns, sg_now_ns());
    atomic_fetch_sub(&p->runs, 1u);
    return status;
}
