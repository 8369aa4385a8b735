/* exec_steps.c: splits a batch into passes, and generates tokens. Greedy generation stays on the GPU: the choice kernel
 * advances the head, tokens arrive through a ring in pinned memory, and up to four steps are in flight. Other samplers choose
 * on the host, one step at a time. SPDX-License-Identifier: MIT */
#include <string.h>

#include "base/clock.h"
#include "unit/cuda/exec/choose.h"
#include "unit/cuda/exec/exec_pass.h"

enum { SPIN = 4000, NAP_NS = 20000 };

/* A long span: pieces of up to 2,048 rows of which up to 256 are wanted. */
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

/* One kind of states a pass; and since a pass with an adapter takes steps that are not fused, with invariant=1 those with an
 * adapter go apart from those without. */
static int can_share_pass(const struct sg_run *run, uint32_t s, uint32_t other)
{
    const struct sg_span *a = &run->base.spans[s], *b = &run->base.spans[other];
    return a->state->storage == b->state->storage && (!run->program->base.unit->invariant || !a->loras_n == !b->loras_n);
}

static segue_status run_spans(struct sg_run *run)
{
    int32_t token;
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

static int is_stop(const struct sg_sampler *s, int32_t token)
{
    for (size_t i = 0; i < s->stops_n && !s->p.ignore_stops; i++)
        if (s->stops[i] == token) return 1;
    return 0;
}

static void publish(struct sg_span *span, uint32_t *published, int32_t token)
{
    span->ring->tokens[*published] = token;
    atomic_store(&span->ring->written, ++*published);
}

/* Tokens that arrived since; returns how many are there. */
static uint32_t collect_tokens(const struct sg_run *run, struct sg_span *span, uint32_t *published, uint32_t before)
{
    const struct cu_lane *l = run->lane;
    uint32_t written = *l->ring_written;
    atomic_thread_fence(memory_order_acquire);
    while (*published - before < written) {
        int32_t token = l->ring[*published - before];
        if (token < 0) break;
        publish(span, published, token);
    }
    return written;
}

static segue_status wait_tokens(struct sg_run *run, struct sg_span *span, uint32_t *published, uint32_t before, uint32_t target)
{
    struct sg_unit *u = run->program->base.unit;
    for (uint32_t spins = 0; collect_tokens(run, span, published, before) < target; spins++) {
        if (spins < SPIN) continue;
        if (spins % 64 == 0) {
            cu_result r = u->d.stream_query(run->lane->stream);
            if (r && r != CU_NOT_READY) return cu_run_check(run, r);
            if (!r) return SEGUE_OK; /* all done: what is missing will not come */
        }
        sg_pause_ns(NAP_NS);
    }
    return SEGUE_OK;
}

/* From `token` on, all on the GPU: one row per step. */
static segue_status run_on_gpu(struct sg_run *run, int32_t token, uint32_t steps, uint32_t *published)
{
    struct sg_span *span = &run->base.spans[0];
    struct sg_unit *u = run->program->base.unit;
    struct cu_lane *l = run->lane;
    const struct sg_span *spans[CK_SPANS];
    struct cu_pass_plan plan = {.parts = {{0, 0, 1}},
                                .parts_n = 1,
                                .best = 1,
                                .advance = 1,
                                .banned = cu_banned_of(run, span->sampler),
                                .stops_n = span->sampler->p.ignore_stops ? 0 : (uint32_t)span->sampler->stops_n};
    struct cu_pass p;
    uint32_t before = *published, written = 0;
    const uint32_t zero = 0;
    span->rows = span->wanted_n = 1;
    span->wanted = &zero;
    span->tokens = &token;
    span->first = span->state->rows;
    SG_TRY(cu_pass_select_stream(run));
    SG_TRY(cu_pass_save_logits(run));
    cu_pass_begin(run, &plan, &p, spans);
    SG_TRY(cu_pass_fill_head(run, &plan, &p));
    SG_TRY(cu_pass_alloc(run, &p));
    ((struct ck_head *)cu_args_pinned(&l->pass_args[0], l->pass_args[0].head))->steps = steps;
    l->ahead.active = 0;
    *l->ring_written = 0;
    if (plan.stops_n)
        SG_TRY(cu_run_check(run, u->d.copy_htod(l->stops, span->sampler->stops, plan.stops_n * sizeof(int32_t), l->stream)));
    SG_TRY(cu_pass_send_head(run, &p));
    segue_status status = SEGUE_OK;
    for (uint32_t i = 0; i < steps && status == SEGUE_OK && !cu_run_stopped(run); i++) {
        p.chunks = cu_chunks_for(span->first + i + 1);
        status = cu_pass_issue(run, &plan, &p);
        p.best_done = 0;
        run->passes++;
        if (status == SEGUE_OK && i + 1 >= CU_STEPS_IN_FLIGHT)
            status = wait_tokens(run, span, published, before, i + 2 - CU_STEPS_IN_FLIGHT);
        int over = *published > before && is_stop(span->sampler, span->ring->tokens[*published - 1]);
        struct sg_rank_sync *m = run->base.batch.rank_sync; /* ranks issue the same number of steps */
        if (m ? sg_rank_sync_should_stop(m, run->base.batch.rank, over) : over) break;
    }
    cu_result r = u->d.stream_sync(l->stream);
    if (status == SEGUE_OK) status = cu_run_check(run, r);
    if (!r) written = collect_tokens(run, span, published, before);
    run->base.rows_done[0] += written;
    cu_state_advance(span->state, written);
    for (uint32_t i = 0; i < written; i++) run->base.history[span->sampler->history_n + before + i] = l->ring[i];
    if (status == SEGUE_OK && written > *published - before) status = cu_no_finite_logit(run);
    const struct sg_rank_sync *m = run->base.batch.rank_sync;
    if (status == SEGUE_OK && (m ? sg_rank_sync_canceled(run->base.batch.rank_sync) : cu_run_stopped(run)))
        status = sg_fail(&run->base.error, SEGUE_ECANCELED, "run: cuda: canceled by the caller");
    return status;
}

/* Choosing on the host, a step at a time. */
static segue_status run_on_host(struct sg_run *run, struct sg_sampler *sampler, int32_t token, uint32_t steps,
                                uint32_t *published)
{
    struct sg_span *span = &run->base.spans[0];
    const uint32_t zero = 0;
    for (uint32_t i = 0; i < steps; i++) {
        struct cu_pass_plan plan = {.parts = {{0, 0, 1}}, .parts_n = 1};
        span->first = span->state->rows;
        span->rows = span->wanted_n = 1;
        span->tokens = &token;
        span->wanted = &zero;
        SG_TRY(cu_pass_and_choose(run, &plan, 0, sampler, &token));
        run->base.history[sampler->history_n++] = token;
        publish(span, published, token);
        if (is_stop(sampler, token)) break;
    }
    return SEGUE_OK;
}

static segue_status run_steps(struct sg_run *run)
{
    struct sg_span *span = &run->base.spans[0];
    struct sg_sampler sampler = *span->sampler;
    uint32_t published = 0, steps = span->steps;
    int32_t token = -1;
    if (sampler.history_n) memcpy(run->base.history, sampler.history, sampler.history_n * sizeof token);
    sampler.history = run->base.history;
    span->sampler = &sampler;
    if (span->rows > CU_DECODE_ROWS) {
        SG_TRY(run_long_span(run, 0, &token));
    } else {
        struct cu_pass_plan plan = {.parts = {{0, 0, span->rows}}, .parts_n = 1};
        SG_TRY(cu_pass_and_choose(run, &plan, 1, &sampler, &token));
    }
    run->base.history[sampler.history_n] = token;
    publish(span, &published, token);
    if (is_stop(&sampler, token)) return SEGUE_OK;
    int on_gpu = cu_is_greedy(&sampler) && !cu_run_has_loras(run) && !run->base.batch.outputs_n;
    if (!on_gpu) {
        sampler.history_n++;
        return run_on_host(run, &sampler, token, steps - 1, &published);
    }
    while (published < steps) {
        uint32_t many = steps - published < CU_RING_TOKENS ? steps - published : CU_RING_TOKENS, before = published;
        SG_TRY(run_on_gpu(run, token, many, &published));
        token = span->ring->tokens[published - 1];
        if (published - before < many || is_stop(&sampler, token)) break;
    }
    return SEGUE_OK;
}

segue_status cu_run_all(struct sg_run *run)
{
    run->lane->runs++;
    struct cu_pass_plan plan = {0};
    if (cu_can_look_ahead(run, &plan)) return cu_run_lookahead(run, &plan);
    if (run->base.batch.spans_n == 1 && run->base.spans[0].steps > 1) return run_steps(run);
    return run_spans(run);
}
