/* batch.c: see batch.h.
 * SPDX-License-Identifier: MIT */
#include "unit/batch.h"

#include <stddef.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "unit/generate.h"
#include "unit/state_core.h"

/* --- validation --- */

/* The state belongs to this unit and graph, and the span starts where its sequence ends; otherwise positions would be wrong. */
static segue_status check_state(const struct sg_batch_rules *r, const struct sg_program_base *p, const struct sg_span *s,
                                uint32_t i, segue_error *err)
{
    const struct sg_graph *g = p->graph;
    if (!s->state && r->stateless && !g->slots_n) return SEGUE_OK;
    if (!s->state || ((const struct sg_state_base *)(const void *)s->state)->unit != p->unit || r->slot(s->state, g->slots_n))
        return sg_fail(err, SEGUE_EARG, "run: %s: span %u: its state belongs to another unit or model; create one on this unit",
                       r->unit, i);
    for (uint32_t k = 0; k < g->slots_n; k++)
        if (!r->slot(s->state, k) || !sg_slot_equal(r->slot(s->state, k), &g->slots[k]))
            return sg_fail(err, SEGUE_EARG,
                           "run: %s: span %u: slot %u of its state belongs to another model; create one from this graph", r->unit,
                           i, k);
    uint64_t rows = r->rows(s->state);
    if (s->first == rows) return SEGUE_OK;
    return sg_fail(err, SEGUE_EARG, "run: %s: span %u begins at position %llu, its state holds %llu tokens; continue there",
                   r->unit, i, (unsigned long long)s->first, (unsigned long long)rows);
}

/* A graph may have several embed ops: each token must be in the smallest vocabulary, and the last position in each table of
 * positions. */
static segue_status check_tokens(const char *unit, const struct sg_graph *g, const struct sg_span *s, uint32_t i,
                                 segue_error *err)
{
    for (uint32_t o = 0; o < g->ops_n; o++) {
        if (g->ops[o].code != SG_OP_EMBED) continue;
        const struct sg_embed *e = &g->ops[o].u.embed;
        for (uint32_t t = 0; t < s->rows; t++)
            if (s->tokens[t] < 0 || (uint32_t)s->tokens[t] >= e->table.rows)
                return sg_fail(err, SEGUE_EARG, "run: %s: span %u: token %d is not in the vocabulary of %u", unit, i,
                               s->tokens[t], e->table.rows);
        uint64_t last = s->first + s->rows + (s->steps > 1 ? s->steps - 1 : 0);
        if (e->positions.tensor >= 0 && last > e->positions.rows)
            return sg_fail(err, SEGUE_ELIMIT, "run: %s: span %u: position %llu, the model has %u; shorten the sequence", unit, i,
                           (unsigned long long)last - 1, e->positions.rows);
    }
    return SEGUE_OK;
}

/* A sampler needs logits. steps > 1 feeds tokens back, which needs a batch of one span, its last row, and a ring for all
 * tokens. */
static segue_status check_choice(const char *unit, const struct sg_graph *g, const struct sg_span *s, uint32_t i,
                                 uint32_t spans_n, segue_error *err)
{
    if (s->sampler && (!s->wanted_n || !g->vocab))
        return sg_fail(err, SEGUE_EARG, "run: %s: span %u: a sampler without logits; select a row of a graph that ends in logits",
                       unit, i);
    if (s->steps <= 1) return SEGUE_OK;
    if (spans_n == 1 && s->sampler && s->ring && s->ring->cap >= s->steps && s->wanted[s->wanted_n - 1] == s->rows - 1)
        return SEGUE_OK;
    return sg_fail(err, SEGUE_EARG, "run: %s: span %u: %u steps need one span, a sampler, a ring for all tokens and the last row",
                   unit, i, s->steps);
}

/* Everything about span i, also that no earlier span has its state. */
static segue_status check_span(const struct sg_batch_rules *r, const struct sg_program_base *p, const struct sg_batch *b,
                               uint32_t i, segue_error *err)
{
    const struct sg_span *s = &b->spans[i];
    const struct sg_graph *g = p->graph;
    if (!s->rows) return sg_fail(err, SEGUE_EARG, "run: %s: span %u has no tokens; leave it out", r->unit, i);
    SG_TRY(check_state(r, p, s, i, err));
    if (s->first + s->rows + s->steps > UINT32_MAX / 2)
        return sg_fail(err, SEGUE_ELIMIT, "run: %s: span %u: position %llu is too large", r->unit, i,
                       (unsigned long long)s->first);
    for (uint32_t k = 0; k < g->inputs_n; k++) {
        int tokens = g->values[g->inputs[k].value].kind == SG_VALUE_TOKENS;
        if (tokens ? !s->tokens : !s->values)
            return sg_fail(err, SEGUE_EARG, "run: %s: span %u has no %s, which the graph reads", r->unit, i,
                           g->inputs[k].name);
        if (tokens) SG_TRY(check_tokens(r->unit, g, s, i, err));
    }
    for (uint32_t k = 0; k < s->wanted_n; k++)
        if (s->wanted[k] >= s->rows || (k && s->wanted[k] <= s->wanted[k - 1]))
            return sg_fail(err, SEGUE_EARG, "run: %s: span %u: wanted row %u of %u; use ascending rows of the span", r->unit, i,
                           s->wanted[k], s->rows);
    for (uint32_t k = 0; k < i; k++)
        if (s->state && s->state == b->spans[k].state)
            return sg_fail(err, SEGUE_EARG, "run: %s: spans %u and %u share a state; fork it", r->unit, k, i);
    return check_choice(r->unit, g, s, i, b->spans_n, err);
}

/* Spans, then the total, then the outputs. */
segue_status sg_batch_check(const struct sg_batch_rules *r, const struct sg_program_base *p, const struct sg_batch *b,
                            segue_error *err)
{
    uint64_t rows = 0, max = r->rows_max ? r->rows_max : UINT32_MAX / 2;
    if (!b->spans_n) return sg_fail(err, SEGUE_EARG, "run: %s: a batch without spans; give one", r->unit);
    for (uint32_t i = 0; i < b->spans_n; i++) {
        SG_TRY(check_span(r, p, b, i, err));
        rows += b->spans[i].rows;
    }
    if (rows > max)
        return sg_fail(err, SEGUE_ELIMIT, "run: %s: %llu tokens in one run, the limit is %llu; split them", r->unit,
                       (unsigned long long)rows, (unsigned long long)max);
    for (uint32_t i = 0; i < b->outputs_n; i++)
        if (b->outputs[i] < 0 || (uint32_t)b->outputs[i] >= p->graph->outputs_n)
            return sg_fail(err, SEGUE_EARG, "run: %s: output %d of %u does not exist", r->unit, b->outputs[i],
                           p->graph->outputs_n);
    return SEGUE_OK;
}

/* --- waiting --- */

/* A timed wait on the realtime clock, which pthread_cond_timedwait uses by default. */
int sg_wait_done(pthread_mutex_t *lock, pthread_cond_t *changed, const int *done, uint64_t timeout_ns)
{
    const uint64_t second = 1000000000u, year = 365 * 86400 * second; /* the limit keeps the sum below from wrapping */
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    uint64_t ns = (timeout_ns < year ? timeout_ns : year) + (uint64_t)until.tv_nsec;
    until.tv_sec += (time_t)(ns / second);
    until.tv_nsec = (long)(ns % second);
    pthread_mutex_lock(lock);
    int expired = !timeout_ns;
    while (!*done && !expired) expired = pthread_cond_timedwait(changed, lock, &until) != 0;
    int result = *done;
    pthread_mutex_unlock(lock);
    return result;
}

/* --- runs --- */

/* Runs of a queue grow to twice what is needed, so that later ones rarely allocate. */
static segue_status run_reserve(struct sg_thread_run *run, uint32_t spans_n, size_t history, segue_error *err)
{
    uint32_t factor = run->queue ? 2 : 1;
    if (spans_n > run->spans_cap) {
        uint32_t cap = spans_n * factor;
        struct sg_span *spans = sg_realloc(run->spans, cap * sizeof *spans);
        if (spans) run->spans = spans;
        uint32_t *rows_done = sg_realloc(run->rows_done, cap * sizeof *rows_done);
        if (rows_done) run->rows_done = rows_done;
        if (!spans || !rows_done) return sg_no_memory("a run", cap * sizeof *spans, err);
        run->spans_cap = cap;
    }
    if (history <= run->history_cap) return SEGUE_OK;
    int32_t *longer = sg_realloc(run->history, history * factor * sizeof *longer);
    if (!longer) return sg_no_memory("history of a run", history * factor * sizeof *longer, err);
    run->history = longer;
    run->history_cap = history * factor;
    return SEGUE_OK;
}

segue_status sg_thread_run_init(struct sg_thread_run *run, const struct sg_program_base *p, const struct sg_batch *b,
                              struct sg_result *r, void (*work)(struct sg_thread_run *run), segue_error *err)
{
    const struct sg_span *first = &b->spans[0];
    run->base.ops = p->ops;
    run->batch = *b;
    run->result = *r;
    run->report = r;
    run->work = work;
    run->status = SEGUE_OK;
    run->error.text[0] = 0;
    run->done = run->threaded = 0;
    if (!run->kept) {
        pthread_mutex_init(&run->lock, NULL);
        pthread_cond_init(&run->finished, NULL);
    }
    SG_TRY(run_reserve(run, b->spans_n, first->sampler && first->steps > 1 ? first->sampler->history_n + first->steps : 0, err));
    memcpy(run->spans, b->spans, b->spans_n * sizeof *run->spans);
    memset(run->rows_done, 0, b->spans_n * sizeof *run->rows_done);
    run->batch.spans = run->spans;
    return SEGUE_OK;
}

segue_status sg_thread_run_chooser(struct sg_thread_run *run, uint32_t vocab, segue_error *err)
{
    return run->chooser ? SEGUE_OK : sg_chooser_new(&run->chooser, vocab, err);
}

/* Thread function, also called directly. States are released before the run is done, so that a caller whose wait returned finds
 * them free; `done` is set last, since wait frees the run. */
static void *run_main(void *arg)
{
    struct sg_thread_run *run = arg;
    uint64_t start_ns = sg_now_ns();
    run->work(run);
    if (run->ops) sg_state_core_release_all(run->spans, run->batch.spans_n);
    if (run->ops && run->ops->released) run->ops->released(run);
    run->ns = sg_now_ns() - start_ns;
    pthread_mutex_lock(&run->lock);
    run->done = 1;
    pthread_cond_broadcast(&run->finished);
    pthread_mutex_unlock(&run->lock);
    return NULL;
}

static struct sg_thread_run *run_of(struct sg_queued *entry)
{
    return (struct sg_thread_run *)(void *)((char *)entry - offsetof(struct sg_thread_run, queued));
}

static void call_queued(struct sg_queued *entry) { run_main(run_of(entry)); }

static int start_elsewhere(struct sg_thread_run *run)
{
    if (run->batch.inline_hint) return 0;
    if (!run->queue) return run->threaded = !pthread_create(&run->thread, NULL, run_main, run);
    run->queued.priority = run->batch.priority;
    run->queued.call = call_queued;
    return sg_run_queue_push(run->queue, &run->queued);
}

/* Spans without a sampler keep token -1 and no log-probabilities. */
void sg_thread_run_start(struct sg_thread_run *run)
{
    const struct sg_result *r = &run->result;
    for (uint32_t i = 0; r->tokens && i < run->batch.spans_n; i++) r->tokens[i] = -1;
    for (uint32_t i = 0; r->logprobs_n && i < run->batch.spans_n; i++) r->logprobs_n[i] = 0;
    if (!start_elsewhere(run)) run_main(run);
}

segue_status sg_thread_run_wait(struct sg_thread_run *run, uint64_t timeout_ns, segue_error *err)
{
    if (!sg_wait_done(&run->lock, &run->finished, &run->done, timeout_ns)) return SEGUE_END;
    if (run->threaded) pthread_join(run->thread, NULL);
    if (run->result.rows_done)
        memcpy(run->result.rows_done, run->rows_done, run->batch.spans_n * sizeof *run->rows_done);
    run->report->ns = run->ns;
    return run->status == SEGUE_OK ? SEGUE_OK : sg_fail(err, run->status, "%s", run->error.text);
}

/* Call it after the thread was joined, or when it was never started. */
void sg_thread_run_free(struct sg_thread_run *run)
{
    sg_chooser_free(run->chooser);
    pthread_cond_destroy(&run->finished);
    pthread_mutex_destroy(&run->lock);
    sg_free(run->spans);
    sg_free(run->history);
    sg_free(run->rows_done);
}

static void run_free(struct sg_thread_run *run)
{
    if (run->ops->release) run->ops->release(run);
    sg_thread_run_free(run);
    sg_free(run);
}

/* Frees the run, or leaves it to its queue, with its arrays, mutex and condition. */
static void run_end(struct sg_thread_run *run)
{
    run->kept = run->queue != NULL;
    if (run->queue) sg_run_queue_keep(run->queue, &run->queued);
    else run_free(run);
}

static segue_status acquire(struct sg_thread_run *run, segue_error *err)
{
    SG_TRY(sg_state_core_acquire_all(run->spans, run->batch.spans_n, err));
    segue_status status = run->ops->acquired ? run->ops->acquired(run, err) : SEGUE_OK;
    if (status != SEGUE_OK) sg_state_core_release_all(run->spans, run->batch.spans_n);
    return status;
}

segue_status sg_thread_run_open(const struct sg_thread_run_ops *ops, struct sg_program *p, const struct sg_batch *b,
                                struct sg_result *r, struct sg_run **out, segue_error *err)
{
    const struct sg_program_base *base = (const struct sg_program_base *)(const void *)p;
    SG_TRY(sg_batch_check(&ops->rules, base, b, err));
    struct sg_run_queue *queue = ops->queue ? ops->queue(p) : NULL;
    struct sg_queued *kept = queue ? sg_run_queue_take(queue) : NULL;
    struct sg_thread_run *run = kept ? run_of(kept) : sg_alloc(ops->size);
    if (!run) return sg_no_memory("a run", ops->size, err);
    run->ops = ops;
    run->queue = queue;
    segue_status status = sg_thread_run_init(run, base, b, r, ops->work, err);
    if (status == SEGUE_OK) status = ops->fill(run, p, err);
    if (status == SEGUE_OK) status = acquire(run, err);
    if (status != SEGUE_OK) {
        run_end(run);
        return status;
    }
    *out = (struct sg_run *)(void *)run;
    sg_thread_run_start(run);
    return SEGUE_OK;
}

void sg_thread_run_close(struct sg_run_queue *q)
{
    struct sg_queued *entry;
    while ((entry = sg_run_queue_take(q))) run_free(run_of(entry));
    sg_run_queue_close(q);
}

void sg_thread_run_steps(struct sg_thread_run *run)
{
    struct sg_generation g;
    int32_t token = -1;
    if (run->batch.spans_n > 1 || run->spans[0].steps <= 1) {
        run->status = run->ops->step(run, 1, NULL, &token);
        return;
    }
    sg_generation_begin(&g, &run->spans[0], run->history);
    run->status = run->ops->step(run, 1, &g.sampler, &token);
    while (run->status == SEGUE_OK && !sg_generation_publish(&g, token)) {
        sg_generation_next(&g);
        run->status = run->ops->step(run, 0, &g.sampler, &token);
    }
}

segue_status sg_thread_run_end(struct sg_run *unit_run, uint64_t timeout_ns, segue_error *err)
{
    struct sg_thread_run *run = (struct sg_thread_run *)(void *)unit_run;
    segue_status status = sg_thread_run_wait(run, timeout_ns, err);
    if (status == SEGUE_END) return status;
    run->ops->report(run, run->report);
    run_end(run);
    return status;
}

/* A program whose weights were mapped from the cache was compiled by an earlier process. */
uint64_t sg_program_compiles(const struct sg_program *p)
{
    const struct sg_unit_ops *ops = sg_ops_of(p);
    const char *why, *kept = ops->kept ? ops->kept(p, &why) : NULL;
    return ops->compiles ? ops->compiles(p) : !kept || strcmp(kept, "mapped") != 0;
}
