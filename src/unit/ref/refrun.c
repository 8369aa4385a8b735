/* refrun.c: one batch from start to wait: is it sound, one pass over the graph per step, the choice of
 * tokens, results out. With inline_hint the caller's thread computes inside start; otherwise a thread of the
 * run does. A pass is all or nothing: states move on only when it ended well, so rows_done counts finished
 * passes.
 * SPDX-License-Identifier: MIT */
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "unit/ref/ref.h"
#include "unit/batch.h"

enum { LOGPROBS = 21 };

struct sg_run {
    struct sg_thread_run own;           /* its spans are as of the step at work */
    struct sg_program *program;
    struct ref_pass pass;
};

/* --- is the batch sound --- */

static uint64_t state_rows(const struct sg_state *s) { return s->rows; }
static const struct sg_slot *state_slot(const struct sg_state *s, uint32_t i)
{
    return i < s->slots_n ? &s->slots[i].slot : NULL;
}
static const struct sg_batch_rules rules = {.unit = "ref", .rows = state_rows, .slot = state_slot};

/* --- a pass --- */

/* Where the rows of each span lie among T and R. */
static void pass_layout(struct ref_pass *p)
{
    for (uint32_t s = 0; s < p->spans_n; s++) {
        p->from[0][s + 1] = p->from[0][s] + p->spans[s].rows;
        p->from[1][s + 1] = p->from[1][s] + p->spans[s].wanted_n;
    }
    p->rows_n[0] = p->from[0][p->spans_n];
    p->rows_n[1] = p->from[1][p->spans_n];
}

/* A value lives from the op that defines it to its last use; sizes are T or R rows. */
static segue_status value_room(struct ref_pass *p, int32_t value, float **out)
{
    const struct sg_value *v = &p->graph->values[value];
    size_t bytes;
    SG_TRY(sg_mul((size_t)v->width * sizeof(float), p->rows_n[v->wanted], &bytes, "rows of a run", p->err));
    *out = p->values[value].data = sg_alloc(bytes);
    return *out ? SEGUE_OK : sg_no_memory("rows of a run", bytes, p->err);
}

/* Inputs are copied together: spans come from callers that do not know each other. */
static segue_status pass_inputs(struct ref_pass *p)
{
    for (uint32_t i = 0; i < p->graph->inputs_n; i++) {
        int32_t value = p->graph->inputs[i].value;
        uint32_t width = p->graph->values[value].width;
        float *rows;
        SG_TRY(value_room(p, value, &rows));
        if (p->graph->values[value].kind == SG_VALUE_TOKENS) {
            p->values[value].data = NULL;
            p->values[value].tokens = (int32_t *)(void *)rows; /* as wide as floats */
        }
        for (uint32_t s = 0; s < p->spans_n; s++) {
            size_t at = p->from[0][s], n = p->spans[s].rows;
            if (p->values[value].tokens)
                memcpy(p->values[value].tokens + at, p->spans[s].tokens, n * sizeof(int32_t));
            else
                memcpy(rows + at * width, p->spans[s].values, n * width * sizeof *rows);
        }
    }
    return SEGUE_OK;
}

static void value_drop(struct ref_pass *p, uint32_t i)
{
    sg_free(p->values[i].data);
    sg_free(p->values[i].tokens);
    p->values[i] = (struct ref_value){0};
}

/* Whatever is still alive, also after a failure in the middle. */
static void pass_drop(struct ref_pass *p)
{
    for (uint32_t i = 0; i < p->graph->values_n; i++) value_drop(p, i);
    sg_arena_free(&p->scratch);
}

/* Copy a value that was just defined to wherever the caller wants it. */
static void give_value(const struct sg_run *run, const struct ref_pass *p, int32_t value)
{
    const struct sg_graph *g = p->graph;
    size_t bytes = (size_t)g->values[value].width * p->rows_n[g->values[value].wanted] * sizeof(float);
    int32_t logits = g->vocab ? sg_graph_output(g, "logits") : -1;
    if (logits >= 0 && run->own.result.logits && g->outputs[logits].value == value)
        memcpy(run->own.result.logits, p->values[value].data, bytes);
    for (uint32_t i = 0; i < run->own.batch.outputs_n; i++)
        if (g->outputs[run->own.batch.outputs[i]].value == value && run->own.result.values && run->own.result.values[i])
            memcpy(run->own.result.values[i], p->values[value].data, bytes);
}

/* Op by op in the order of the list. Cancel is looked at between ops, and inside long ones by themselves,
 * whose half-done result is then thrown away with everything else. */
static segue_status pass_run(struct sg_run *run, int first)
{
    struct ref_pass *p = &run->pass;
    const uint32_t *last_use = run->program->last_use;
    pass_layout(p);
    SG_TRY(pass_inputs(p));
    for (uint32_t i = 0; i < p->graph->ops_n; i++) {
        const struct sg_op *op = &p->graph->ops[i];
        float *out;
        if (p->rank_sync) p->stop = sg_rank_sync_should_stop(p->rank_sync, p->rank, 0);
        if (ref_stopped(p)) break;
        SG_TRY(value_room(p, op->out, &out));
        SG_TRY(ref_op(p, op, out));
        sg_arena_free(&p->scratch);
        p->ops++;
        if (first && !ref_stopped(p)) give_value(run, p, op->out);
        for (int k = 0; k < SG_OP_INPUTS; k++)
            if (op->in[k].value >= 0 && last_use[op->in[k].value] == i)
                value_drop(p, (uint32_t)op->in[k].value);
        if (last_use[op->out] == i) value_drop(p, (uint32_t)op->out);
    }
    if (ref_stopped(p)) return sg_fail(p->err, SEGUE_ECANCELED, "run: ref: canceled by the caller");
    return SEGUE_OK;
}

/* --- choosing --- */

/* The logits are the run's own copy: choosing changes them in place, after the caller got his. The token
 * stands one position behind the row that chose it. */
static segue_status choose(struct sg_run *run, uint32_t s, const struct sg_sampler *sampler, int32_t *token)
{
    const struct sg_graph *g = run->pass.graph;
    const struct sg_span *span = &run->own.spans[s];
    int32_t value = g->outputs[sg_graph_output(g, "logits")].value;
    float *logits = run->pass.values[value].data + (size_t)(run->pass.from[1][s + 1] - 1) * g->vocab;
    segue_logprob *logprobs = run->own.result.logprobs ? run->own.result.logprobs + (size_t)s * LOGPROBS : NULL;
    size_t n = 0;
    SG_TRY(sg_thread_run_chooser(&run->own, g->vocab, run->pass.err));
    SG_TRY(sg_choose(run->own.chooser, sampler, logits, span->first + span->wanted[span->wanted_n - 1] + 1, token,
                     logprobs, &n, run->pass.err));
    if (run->own.result.logprobs_n) run->own.result.logprobs_n[s] = n;
    if (run->own.result.tokens) run->own.result.tokens[s] = *token;
    return SEGUE_OK;
}

static segue_status choose_all(struct sg_run *run, const struct sg_sampler *one, int32_t *token)
{
    for (uint32_t s = 0; s < run->own.batch.spans_n; s++)
        if (run->own.spans[s].sampler) SG_TRY(choose(run, s, one ? one : run->own.spans[s].sampler, token));
    return SEGUE_OK;
}

/* Pass, choice, and only then the states move on. */
static segue_status step(struct sg_run *run, int first, const struct sg_sampler *one, int32_t *token)
{
    segue_status status = pass_run(run, first);
    if (status == SEGUE_OK) status = choose_all(run, one, token);
    pass_drop(&run->pass);
    for (uint32_t s = 0; s < run->own.batch.spans_n; s++) {
        ref_state_finish(run->own.spans[s].state, status == SEGUE_OK, run->own.spans[s].rows);
        if (status == SEGUE_OK) run->own.rows_done[s] += run->own.spans[s].rows;
    }
    return status;
}

/* A stop token that may be chosen at all ends the steps. */
static int is_stop(const struct sg_sampler *s, int32_t token)
{
    for (size_t i = 0; i < s->stops_n && !s->p.ignore_stops; i++)
        if (s->stops[i] == token) return 1;
    return 0;
}

/* steps > 1: the first pass reads the span, each later one the token just chosen. Ends early at a stop token,
 * which is published but not fed back. */
static segue_status run_steps(struct sg_run *run)
{
    const uint32_t zero = 0;
    struct sg_span *span = &run->own.spans[0];
    struct sg_sampler sampler = *span->sampler;
    int32_t token = -1;
    if (sampler.history_n) memcpy(run->own.history, sampler.history, sampler.history_n * sizeof token);
    sampler.history = run->own.history;
    for (uint32_t i = 0; i < span->steps; i++) {
        SG_TRY(step(run, i == 0, &sampler, &token));
        run->own.history[sampler.history_n++] = token;
        span->ring->tokens[i] = token;
        atomic_store(&span->ring->written, i + 1);
        if (is_stop(&sampler, token)) break;
        span->first += span->rows;
        span->rows = span->wanted_n = 1;
        span->tokens = &token;
        span->wanted = &zero;
    }
    return SEGUE_OK;
}

/* States are released before the run is over, so that who waits finds them free. */
static void work(struct sg_thread_run *own)
{
    struct sg_run *run = (struct sg_run *)(void *)own;
    int32_t token = -1;
    int many = own->batch.spans_n == 1 && own->spans[0].steps > 1;
    struct sg_rank_sync *rank_sync = run->pass.rank_sync;
    if (rank_sync && !sg_rank_sync_arrive(rank_sync))
        own->status = sg_fail(&own->error, SEGUE_ELOST, "run: ref: another rank of this run failed; try again");
    else
        own->status = many ? run_steps(run) : step(run, 1, NULL, &token);
    if (rank_sync && own->status != SEGUE_OK) sg_rank_sync_abort(rank_sync);
    for (uint32_t s = 0; s < own->batch.spans_n; s++) ref_state_release(own->spans[s].state);
}

/* --- start and wait --- */

static void run_free(struct sg_run *run)
{
    sg_thread_run_free(&run->own);
    sg_free(run->pass.from[0]);
    sg_free(run->pass.from[1]);
    sg_free(run->pass.values);
    sg_free(run);
}

/* Everything that a run needs is taken at start; later only values and scratch are. */
static segue_status run_fill(struct sg_run *run, const struct sg_batch *b, struct sg_result *r, segue_error *err)
{
    struct sg_program *p = run->program;
    struct ref_pass *pass = &run->pass;
    SG_TRY(sg_thread_run_init(&run->own, &p->base, b, r, work, err));
    pass->from[0] = sg_alloc((b->spans_n + 1) * sizeof *pass->from[0]);
    pass->from[1] = sg_alloc((b->spans_n + 1) * sizeof *pass->from[1]);
    pass->values = sg_alloc(p->base.graph->values_n * sizeof *pass->values);
    if (!pass->from[0] || !pass->from[1] || !pass->values)
        return sg_no_memory("a run of ref", p->base.graph->values_n * sizeof *pass->values, err);
    pass->program = p;
    pass->graph = p->base.graph;
    pass->spans = run->own.spans;
    pass->spans_n = b->spans_n;
    pass->threads = p->base.unit->threads;
    pass->cancel = b->cancel;
    pass->rank_sync = b->rank_sync;
    pass->rank = b->rank;
    pass->err = &run->own.error;
    return SEGUE_OK;
}

/* All states or none: two runs of one state would both append behind the same row. */
static segue_status take_states(const struct sg_batch *b, segue_error *err)
{
    for (uint32_t i = 0; i < b->spans_n; i++) {
        segue_status status = ref_state_begin(b->spans[i].state, err);
        if (status == SEGUE_OK) continue;
        while (i) ref_state_release(b->spans[--i].state);
        return status;
    }
    return SEGUE_OK;
}

segue_status ref_start(struct sg_program *p, const struct sg_batch *b, struct sg_result *r,
                       struct sg_run **out, segue_error *err)
{
    SG_TRY(sg_batch_check(&rules, &p->base, b, err));
    struct sg_run *run = sg_alloc(sizeof *run);
    if (!run) return sg_no_memory("a run of ref", sizeof *run, err);
    run->program = p;
    segue_status status = run_fill(run, b, r, err);
    if (status == SEGUE_OK) status = take_states(b, err);
    if (status != SEGUE_OK) {
        run_free(run);
        return status;
    }
    sg_thread_run_start(&run->own);
    *out = run;
    return SEGUE_OK;
}

segue_status ref_wait(struct sg_run *run, uint64_t timeout_ns, segue_error *err)
{
    segue_status status = sg_thread_run_wait(&run->own, timeout_ns, err);
    if (status == SEGUE_END) return status;
    run->own.report->dispatches = run->pass.ops;
    run->own.report->weight_bytes = run->pass.weight_bytes;
    run->own.report->state_bytes = run->pass.state_bytes;
    run_free(run);
    return status;
}
