/* cudarun.c: a batch from start to wait: is it sound, which rows go together in a pass, what comes back.
 * Spans of up to 16 rows share passes of up to 16; a longer span goes alone, 2,048 rows at a time, so that
 * nothing a row meets depends on its neighbours. With inline_hint the caller's thread does it inside start,
 * otherwise a thread of the run. A pass is all or nothing; rows_done counts finished ones. Generation is in
 * cudasteps.c. SPDX-License-Identifier: MIT */
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "unit/cuda/curun.h"

enum { LOGPROBS = 21 };

/* --- is the batch sound --- */

static segue_status check_state(const struct sg_program *p, const struct sg_span *s, uint32_t i,
                                segue_error *err)
{
    const struct sg_graph *g = p->base.graph;
    if (!s->state || s->state->base.unit != p->base.unit || s->state->slots_n != g->slots_n)
        return sg_fail(err, SEGUE_EARG,
                       "run: cuda: span %u: its state is of another unit or model; make one here", i);
    for (uint32_t k = 0; k < g->slots_n; k++)
        if (memcmp(&s->state->slots[k].slot, &g->slots[k], sizeof g->slots[k]))
            return sg_fail(
                err, SEGUE_EARG,
                "run: cuda: span %u: slot %u of its state is of another model; make one from this graph", i,
                k);
    if (s->first != s->state->rows)
        return sg_fail(err, SEGUE_EARG,
                       "run: cuda: span %u begins at %llu, its state holds %llu rows; continue there", i,
                       (unsigned long long)s->first, (unsigned long long)s->state->rows);
    return SEGUE_OK;
}

static segue_status check_tokens(const struct sg_graph *g, const struct sg_span *s, uint32_t i,
                                 segue_error *err)
{
    for (uint32_t o = 0; o < g->ops_n; o++) {
        if (g->ops[o].code != SG_OP_EMBED) continue;
        const struct sg_embed *e = &g->ops[o].u.embed;
        for (uint32_t t = 0; t < s->rows; t++)
            if (s->tokens[t] < 0 || (uint32_t)s->tokens[t] >= e->table.rows)
                return sg_fail(err, SEGUE_EARG,
                               "run: cuda: span %u: token %d is outside of the vocabulary of %u", i,
                               s->tokens[t], e->table.rows);
        uint64_t last = s->first + s->rows + (s->steps > 1 ? s->steps - 1 : 0);
        if (e->positions.tensor >= 0 && last > e->positions.rows)
            return sg_fail(err, SEGUE_ELIMIT,
                           "run: cuda: span %u: position %llu of %u; the model goes no further", i,
                           (unsigned long long)last - 1, e->positions.rows);
    }
    return SEGUE_OK;
}

static segue_status check_choice(const struct sg_graph *g, const struct sg_span *s, uint32_t i,
                                 uint32_t spans_n, segue_error *err)
{
    if (s->sampler && (!s->wanted_n || !g->vocab))
        return sg_fail(err, SEGUE_EARG,
                       "run: cuda: span %u: a sampler without logits; want a row of a whole model", i);
    if (s->steps <= 1) return SEGUE_OK;
    if (spans_n != 1 || !s->sampler || !s->ring || s->ring->cap < s->steps ||
        s->wanted[s->wanted_n - 1] != s->rows - 1)
        return sg_fail(
            err, SEGUE_EARG,
            "run: cuda: span %u: %u steps want one span, a sampler, a ring with room, and its last row", i,
            s->steps);
    return SEGUE_OK;
}

static segue_status check_span(const struct sg_program *p, const struct sg_batch *b, uint32_t i,
                               segue_error *err)
{
    const struct sg_span *s = &b->spans[i];
    const struct sg_graph *g = p->base.graph;
    if (!s->rows) return sg_fail(err, SEGUE_EARG, "run: cuda: span %u has no rows; leave it out", i);
    SG_TRY(check_state(p, s, i, err));
    if (s->first + s->rows + s->steps > UINT32_MAX / 2)
        return sg_fail(err, SEGUE_ELIMIT, "run: cuda: span %u: position %llu; too far", i,
                       (unsigned long long)s->first);
    for (uint32_t k = 0; k < g->inputs_n; k++) {
        int tokens = g->values[g->inputs[k].value].kind == SG_VALUE_TOKENS;
        if (tokens ? !s->tokens : !s->values)
            return sg_fail(err, SEGUE_EARG, "run: cuda: span %u gives no %s; the graph reads them", i,
                           g->inputs[k].name);
        if (tokens) SG_TRY(check_tokens(g, s, i, err));
    }
    for (uint32_t k = 0; k < s->wanted_n; k++)
        if (s->wanted[k] >= s->rows || (k && s->wanted[k] <= s->wanted[k - 1]))
            return sg_fail(err, SEGUE_EARG,
                           "run: cuda: span %u: wanted row %u of %u; give rising rows of the span", i,
                           s->wanted[k], s->rows);
    return check_choice(g, s, i, b->spans_n, err);
}

static segue_status check_batch(const struct sg_program *p, const struct sg_batch *b, segue_error *err)
{
    if (!b->spans_n) return sg_fail(err, SEGUE_EARG, "run: cuda: a batch without spans; give one");
    for (uint32_t i = 0; i < b->spans_n; i++) SG_TRY(check_span(p, b, i, err));
    for (uint32_t i = 0; i < b->outputs_n; i++)
        if (b->outputs[i] < 0 || (uint32_t)b->outputs[i] >= p->base.graph->outputs_n)
            return sg_fail(err, SEGUE_EARG, "run: cuda: output %d of %u; ask for one that is there",
                           b->outputs[i], p->base.graph->outputs_n);
    return SEGUE_OK;
}

/* --- start and wait --- */

static void work(struct sg_run *run)
{
    struct sg_unit *u = run->program->base.unit;
    uint64_t begin = sg_now_ns();
    pthread_mutex_lock(&run->program->lock);
    cu_enter(u);
    run->status = cu_run_all(run);
    if (run->status != SEGUE_OK) u->d.stream_wait(run->program->lane.stream);
    cu_leave(u);
    pthread_mutex_unlock(&run->program->lock);
    for (uint32_t s = 0; s < run->batch.spans_n; s++) cu_state_release(run->spans[s].state);
    run->ns = sg_now_ns() - begin;
    pthread_mutex_lock(&run->lock);
    run->done = 1;
    pthread_cond_broadcast(&run->finished);
    pthread_mutex_unlock(&run->lock);
}

static void *work_main(void *run)
{
    work(run);
    return NULL;
}

static void run_free(struct sg_run *run)
{
    sg_chooser_free(run->chooser);
    pthread_cond_destroy(&run->finished);
    pthread_mutex_destroy(&run->lock);
    sg_free(run->spans);
    sg_free(run->history);
    sg_free(run->rows_done);
    sg_free(run);
}

static segue_status run_fill(struct sg_run *run, const struct sg_batch *b, segue_error *err)
{
    size_t n = b->spans_n,
           history = b->spans[0].sampler ? b->spans[0].sampler->history_n + b->spans[0].steps : 0;
    int choosing = 0;
    run->spans = sg_alloc(n * sizeof *run->spans);
    run->rows_done = sg_alloc(n * sizeof *run->rows_done);
    run->history = sg_alloc(history * sizeof *run->history);
    if (!run->spans || !run->rows_done || !run->history)
        return sg_no_memory("a run of cuda", n * sizeof *run->spans, err);
    memcpy(run->spans, b->spans, n * sizeof *run->spans);
    for (size_t i = 0; i < n; i++) choosing |= b->spans[i].sampler != NULL;
    return choosing ? sg_chooser_new(&run->chooser, run->program->base.graph->vocab, err) : SEGUE_OK;
}

static segue_status run_new(struct sg_program *p, const struct sg_batch *b, struct sg_result *r,
                            struct sg_run **out, segue_error *err)
{
    struct sg_run *run = sg_alloc(sizeof *run);
    if (!run) return sg_no_memory("a run of cuda", sizeof *run, err);
    run->base.ops = p->base.ops;
    run->program = p;
    run->batch = *b;
    run->result = *r;
    run->report = r;
    pthread_mutex_init(&run->lock, NULL);
    pthread_cond_init(&run->finished, NULL);
    segue_status status = run_fill(run, b, err);
    if (status != SEGUE_OK) {
        run_free(run);
        return status;
    }
    run->batch.spans = run->spans;
    *out = run;
    return SEGUE_OK;
}

static segue_status take_states(const struct sg_batch *b, segue_error *err)
{
    for (uint32_t i = 0; i < b->spans_n; i++) {
        segue_status status =
            cu_state_take(b->spans[i].state, (uint64_t)b->spans[i].rows + b->spans[i].steps, err);
        if (status == SEGUE_OK) continue;
        while (i) cu_state_release(b->spans[--i].state);
        return status;
    }
    return SEGUE_OK;
}

segue_status cu_start(struct sg_program *p, const struct sg_batch *b, struct sg_result *r,
                      struct sg_run **out, segue_error *err)
{
    struct sg_run *run = NULL;
    SG_TRY(check_batch(p, b, err));
    SG_TRY(run_new(p, b, r, &run, err));
    segue_status status = take_states(b, err);
    if (status != SEGUE_OK) {
        run_free(run);
        return status;
    }
    for (uint32_t i = 0; r->tokens && i < b->spans_n; i++) r->tokens[i] = -1;
    for (uint32_t i = 0; r->logprobs_n && i < b->spans_n; i++) r->logprobs_n[i] = 0;
    run->threaded = !b->inline_hint && !pthread_create(&run->thread, NULL, work_main, run);
    if (!run->threaded) work(run);
    *out = run;
    return SEGUE_OK;
}

/* 1: the run is over. */
static int run_over(struct sg_run *run, uint64_t timeout_ns)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    uint64_t limit =
        timeout_ns < UINT64_C(1000000000) * 1000000 ? timeout_ns : UINT64_C(1000000000) * 1000000;
    uint64_t ns = (uint64_t)until.tv_nsec + limit % 1000000000u;
    until.tv_sec += (time_t)(limit / 1000000000u + ns / 1000000000u);
    until.tv_nsec = (long)(ns % 1000000000u);
    pthread_mutex_lock(&run->lock);
    int late = !timeout_ns;
    while (!run->done && !late) late = pthread_cond_timedwait(&run->finished, &run->lock, &until) != 0;
    int over = run->done;
    pthread_mutex_unlock(&run->lock);
    return over;
}

segue_status cu_wait(struct sg_run *run, uint64_t timeout_ns, segue_error *err)
{
    if (!run_over(run, timeout_ns)) return SEGUE_END;
    if (run->threaded) pthread_join(run->thread, NULL);
    segue_status status = run->status;
    if (run->result.rows_done)
        memcpy(run->result.rows_done, run->rows_done, run->batch.spans_n * sizeof *run->rows_done);
    run->report->ns = run->ns;
    run->report->dispatches = run->launches;
    run->report->weight_bytes = run->passes * run->program->read_per_token;
    run->report->state_bytes = run->state_bytes;
    if (status != SEGUE_OK) sg_fail(err, status, "%s", run->error.text);
    run_free(run);
    return status;
}
