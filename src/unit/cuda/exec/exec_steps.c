/* exec_steps.c: splits a batch into passes, and generates tokens (steps > 1). Generation stays on the GPU: the choice
 * kernel advances the arguments to the next token and writes tokens to a ring in pinned memory, while the host issues the next
 * steps; up to CU_STEPS_IN_FLIGHT are in flight. A series is what is issued at once, at most the ring's capacity. Runs with
 * adapters or more outputs take one step at a time.
 * SPDX-License-Identifier: MIT */
#include "base/clock.h"
#include "unit/cuda/exec/choose.h"
#include "unit/cuda/exec/exec_pass.h"
#include "unit/generate.h"

/* Polls of the ring before the host sleeps between polls; that sleep. */
enum { SPINS = 4000, NAP_NS = 20000 };

/* A long span in passes of up to CU_PASS_ROWS rows of which at most CU_WANTED_ROWS are wanted: a pass ends before the next wanted
 * row that would exceed this. Only the last pass chooses a token. */
static segue_status run_long_span(struct sg_run *run, uint32_t s, int32_t *token)
{
    const struct sg_span *span = &run->base.spans[s];
    for (uint32_t at = 0, w = 0; at < span->rows;) {
        uint32_t rows = span->rows - at < CU_PASS_ROWS ? span->rows - at : CU_PASS_ROWS, end = w;
        while (end < span->wanted_n && end < w + CU_WANTED_ROWS && span->wanted[end] < at + rows) end++;
        if (end < span->wanted_n && end == w + CU_WANTED_ROWS && span->wanted[end] < at + rows) rows = span->wanted[end] - at;
        struct cu_pass_plan plan = {.parts = {{s, at, rows}}, .parts_n = 1};
        SG_TRY(cu_pass_and_choose(run, &plan, 1, NULL, token));
        at += rows;
        w = end;
    }
    return SEGUE_OK;
}

/* 1: two spans may be in one pass: their states have the same storage of K and V. With "invariant=1" also adapters must be equal
 * in presence, since a pass with adapters uses unfused steps, and these round differently. */
static int can_share_pass(const struct sg_run *run, uint32_t s, uint32_t other)
{
    const struct sg_span *a = &run->base.spans[s], *b = &run->base.spans[other];
    return a->state->core.storage == b->state->core.storage &&
           (!run->program->base.unit->invariant || !a->loras_n == !b->loras_n);
}

/* A batch without generation: consecutive short spans share passes of up to CU_DECODE_ROWS rows. */
static segue_status run_spans(struct sg_run *run)
{
    int32_t token;
    /* The order of spans is kept: outputs are copied by it. */
    for (uint32_t s = 0; s < run->base.batch.spans_n;) {
        struct cu_pass_plan plan = {0};
        uint32_t rows = 0;
        if (run->base.spans[s].rows > CU_DECODE_ROWS) {
            SG_TRY(run_long_span(run, s++, &token));
            continue;
        }
        for (uint32_t first = s; s < run->base.batch.spans_n && plan.parts_n < CK_SPANS &&
                                 rows + run->base.spans[s].rows <= CU_DECODE_ROWS && can_share_pass(run, first, s);
             s++) {
            plan.parts[plan.parts_n++] = (struct cu_span_part){s, 0, run->base.spans[s].rows};
            rows += run->base.spans[s].rows;
        }
        SG_TRY(cu_pass_and_choose(run, &plan, 1, NULL, &token));
    }
    return SEGUE_OK;
}

/* --- generation: a run of steps > 1 --- */

/* Publishes the tokens that the GPU has written to the lane's ring since; returns how many it has written in this series.
 * before: tokens published before the series. A negative token says that no logit was finite; what follows it is not used. */
static uint32_t collect_tokens(const struct sg_run *run, struct sg_generation *g, uint32_t before)
{
    const struct cu_lane *l = run->lane;
    uint32_t written = *l->ring_written;
    atomic_thread_fence(memory_order_acquire); /* the kernel writes a token before the count */
    while (g->published - before < written) {
        int32_t token = l->ring[g->published - before];
        if (token < 0) break;
        (void)sg_generation_publish(g, token);
    }
    return written;
}

/* Until `target` tokens of the series are written, or the stream is empty: then no more will arrive. Spins first, since a token
 * takes less than a millisecond. */
static segue_status wait_tokens(struct sg_run *run, struct sg_generation *g, uint32_t before, uint32_t target)
{
    struct sg_unit *u = run->program->base.unit;
    for (uint32_t spins = 0; collect_tokens(run, g, before) < target; spins++) {
        if (spins < SPINS) continue;
        if (spins % 64 == 0) {
            cu_result r = u->d.stream_query(run->lane->stream);
            if (r && r != CU_NOT_READY) return cu_run_check(run, r);
            if (!r) return SEGUE_OK;
        }
        sg_pause_ns(NAP_NS);
    }
    return SEGUE_OK;
}

/* Prepares a series of `steps` steps after the last published token: its arguments, and the counters that the choice kernel
 * changes. */
static segue_status prepare_series(struct sg_run *run, struct cu_pass_plan *plan, struct cu_pass *p,
                                   const struct sg_span **spans, const struct sg_generation *g, uint32_t steps)
{
    const struct sg_sampler *sampler = run->base.spans[0].sampler;
    struct cu_lane *l = run->lane;
    SG_TRY(cu_pass_select_stream(run));
    SG_TRY(cu_pass_save_logits(run));
    cu_pass_begin(run, plan, p, spans);
    SG_TRY(cu_pass_fill_head(run, plan, p));
    SG_TRY(cu_pass_alloc(run, p));
    ((struct ck_head *)cu_args_pinned(&l->pass_args[0], l->pass_args[0].head))->steps = steps;
    l->ahead.active = 0;
    *l->ring_written = 0;
    if (plan->sampled) {
        struct cu_sampled_row row = {&g->sampler, 0, 0};
        SG_TRY(cu_samplers_upload(run, &row, 1, steps, l->stream));
    }
    if (plan->stops_n)
        SG_TRY(cu_run_check(run, run->program->base.unit->d.copy_htod(l->stops, sampler->stops, plan->stops_n * sizeof(int32_t),
                                                                      l->stream)));
    return cu_pass_send_head(run, p);
}

/* Issues the steps of a series, at most CU_STEPS_IN_FLIGHT of them before the first token of those has arrived. The ranks of a
 * group issue the same number of steps: they agree on the last one. */
static segue_status issue_series(struct sg_run *run, struct cu_pass_plan *plan, struct cu_pass *p, struct sg_generation *g,
                                 uint32_t steps)
{
    struct sg_rank_sync *sync = run->base.batch.rank_sync;
    uint32_t before = g->published;
    segue_status status = SEGUE_OK;
    for (uint32_t i = 0; i < steps && status == SEGUE_OK && !cu_run_stopped(run); i++) {
        p->chunks = cu_chunks_for(g->span->first + i + 1);
        status = cu_pass_issue(run, plan, p);
        p->best_done = 0;
        run->passes++;
        if (status == SEGUE_OK && i + 1 >= CU_STEPS_IN_FLIGHT)
            status = wait_tokens(run, g, before, i + 2 - CU_STEPS_IN_FLIGHT);
        int over = g->published > before && sg_is_stop(&g->sampler, g->token);
        if (sync ? sg_rank_sync_should_stop(sync, run->base.batch.rank, over) : over) break;
    }
    return status;
}

/* A series of up to `steps` steps of one row each, all on the GPU. The state advances by the tokens that were written,
 * also after an error. The span's token is read when the arguments are filled in, before g->token changes. */
static segue_status run_on_gpu(struct sg_run *run, struct sg_generation *g, uint32_t steps)
{
    struct sg_span *span = g->span;
    const struct sg_span *spans[CK_SPANS];
    struct cu_pass_plan plan = {.parts = {{0, 0, 1}},
                                .parts_n = 1,
                                .best = 1,
                                .advance = 1,
                                .sampled = !cu_is_greedy(&g->sampler),
                                .logprobs = g->sampler.p.logprobs != 0,
                                .stops_n = span->sampler->p.ignore_stops ? 0 : (uint32_t)span->sampler->stops_n};
    struct cu_pass p;
    struct cu_sampled_row row = {&g->sampler, 0, 0};
    int32_t token;
    uint32_t before = g->published, written = 0;
    if (!plan.sampled) plan.banned = cu_banned_of(run, span->sampler);
    sg_generation_next(g);
    span->first = span->state->core.tokens; /* after a series this is more than one row further */
    SG_TRY(prepare_series(run, &plan, &p, spans, g, steps));
    segue_status status = issue_series(run, &plan, &p, g, steps);
    cu_result r = run->program->base.unit->d.stream_sync(run->lane->stream);
    if (status == SEGUE_OK) status = cu_run_check(run, r);
    if (!r) written = collect_tokens(run, g, before);
    run->base.rows_done[0] += written;
    cu_state_advance(span->state, written);
    /* The outcome of the last step: its log-probabilities, or why there is no token. */
    if (status == SEGUE_OK && plan.sampled && written) status = cu_sampled_result(run, &row, 0, 0, &token);
    if (status == SEGUE_OK && written > g->published - before) status = cu_no_finite_logit(run);
    struct sg_rank_sync *sync = run->base.batch.rank_sync;
    if (status == SEGUE_OK && (sync ? sg_rank_sync_canceled(sync) : cu_run_stopped(run)))
        status = sg_fail(&run->base.error, SEGUE_ECANCELED, "run: cuda: canceled by the caller");
    return status;
}

/* One step at a time. */
static segue_status run_one_by_one(struct sg_run *run, struct sg_generation *g)
{
    for (int complete = 0; !complete;) {
        struct cu_pass_plan plan = {.parts = {{0, 0, 1}}, .parts_n = 1};
        int32_t token = -1;
        sg_generation_next(g);
        SG_TRY(cu_pass_and_choose(run, &plan, 0, &g->sampler, &token));
        complete = sg_generation_publish(g, token);
    }
    return SEGUE_OK;
}

/* The span's rows with the choice of the first token, then the generation. A series on the GPU ends with the ring's capacity, a
 * stop token, or fewer tokens than requested (another rank stopped). */
static segue_status run_steps(struct sg_run *run)
{
    struct sg_span *span = &run->base.spans[0];
    struct sg_generation g;
    int32_t token = -1;
    sg_generation_begin(&g, span, run->base.history);
    if (span->rows > CU_DECODE_ROWS) {
        SG_TRY(run_long_span(run, 0, &token));
    } else {
        struct cu_pass_plan plan = {.parts = {{0, 0, span->rows}}, .parts_n = 1};
        SG_TRY(cu_pass_and_choose(run, &plan, 1, &g.sampler, &token));
    }
    if (sg_generation_publish(&g, token)) return SEGUE_OK;
    if (g.sampler.stops_n > CU_STOPS || cu_run_has_loras(run) || run->base.batch.outputs_n) return run_one_by_one(run, &g);
    while (g.published < span->steps) {
        uint32_t before = g.published, left = span->steps - before, many = left < CU_RING_TOKENS ? left : CU_RING_TOKENS;
        SG_TRY(run_on_gpu(run, &g, many));
        if (g.published - before < many || sg_is_stop(&g.sampler, g.token)) break;
    }
    return SEGUE_OK;
}

/* Lookahead first: it is the usual case of interactive decoding and of batched decoding. */
segue_status cu_run_all(struct sg_run *run)
{
    run->lane->runs++;
    struct cu_pass_plan plan = {0};
    if (cu_can_look_ahead(run, &plan)) return cu_run_lookahead(run, &plan);
    if (run->base.batch.spans_n == 1 && run->base.spans[0].steps > 1) return run_steps(run);
    return run_spans(run);
}
