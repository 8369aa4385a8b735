/* refrun.c: one batch from start to wait: is it sound, one pass over the graph per step, the choice of
 * tokens, results out. With inline_hint the caller's thread computes inside start; otherwise a thread of the
 * run does. A pass is all or nothing: states move on only when it ended well, so rows_done counts finished
 * passes.
 * SPDX-License-Identifier: MIT */
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "unit/ref/ref.h"

enum { LOGPROBS = 21 };

struct sg_run {
    struct sg_run_base base;
    struct sg_program *program;
    struct sg_batch batch;
    struct sg_span *spans;           /* [spans_n] as of the step at work */
    struct sg_result result;         /* the caller's pointers */
    struct sg_result *report;        /* the caller's struct, filled by wait */
    struct sg_chooser *chooser;      /* NULL: no span has a sampler */
    int32_t *history;                /* steps > 1: the sampler's history and what was chosen since */
    uint32_t *rows_done;             /* [spans_n] */
    struct ref_pass pass;
    uint64_t ns;
    segue_status status;
    segue_error error;
    pthread_t thread;
    int threaded, done;
    pthread_mutex_t lock;            /* guards done */
    pthread_cond_t finished;
};

/* --- is the batch sound --- */

/* Where a span goes on must be where its state ends: a caller who lost count would otherwise get an answer to
 * another text. */
static segue_status check_state(const struct sg_program *p, const struct sg_span *s, uint32_t i,
                                segue_error *err)
{
    const struct sg_graph *g = p->base.graph;
    if (!s->state || s->state->base.unit != p->base.unit || s->state->slots_n != g->slots_n)
        return sg_fail(err, SEGUE_EARG,
                       "run: ref: span %u: its state is of another unit or model; make one here", i);
    for (uint32_t k = 0; k < g->slots_n; k++)
        if (memcmp(&s->state->slots[k].slot, &g->slots[k], sizeof g->slots[k]))
            return sg_fail(err, SEGUE_EARG,
                           "run: ref: span %u: slot %u of its state is of another model; make one "
                           "from this graph",
                           i, k);
    if (s->first != s->state->rows)
        return sg_fail(err, SEGUE_EARG,
                       "run: ref: span %u begins at %llu, its state holds %llu rows; continue there", i,
                       (unsigned long long)s->first, (unsigned long long)s->state->rows);
    return SEGUE_OK;
}

/* Every embed has its own table: the smallest vocabulary and the last position decide. */
static segue_status check_tokens(const struct sg_graph *g, const struct sg_span *s, uint32_t i,
                                 segue_error *err)
{
    for (uint32_t o = 0; o < g->ops_n; o++) {
        if (g->ops[o].code != SG_OP_EMBED) continue;
        const struct sg_embed *e = &g->ops[o].u.embed;
        for (uint32_t t = 0; t < s->rows; t++)
            if (s->tokens[t] < 0 || (uint32_t)s->tokens[t] >= e->table.rows)
                return sg_fail(err, SEGUE_EARG,
                               "run: ref: span %u: token %d is outside of the vocabulary of %u", i,
                               s->tokens[t], e->table.rows);
        uint64_t last = s->first + s->rows + (s->steps > 1 ? s->steps - 1 : 0);
        if (e->positions.tensor >= 0 && last > e->positions.rows)
            return sg_fail(err, SEGUE_ELIMIT,
                           "run: ref: span %u: position %llu of %u; the model goes no further", i,
                           (unsigned long long)last - 1, e->positions.rows);
    }
    return SEGUE_OK;
}

/* Several steps feed back to one sequence on its own, so they want a span alone, and its last row. */
static segue_status check_choice(const struct sg_graph *g, const struct sg_span *s, uint32_t i,
                                 uint32_t spans_n, segue_error *err)
{
    if (s->sampler && (!s->wanted_n || !g->vocab))
        return sg_fail(err, SEGUE_EARG,
                       "run: ref: span %u: a sampler without logits; want a row of a whole model", i);
    if (s->steps <= 1) return SEGUE_OK;
    if (spans_n != 1 || !s->sampler || !s->ring || s->ring->cap < s->steps ||
        s->wanted[s->wanted_n - 1] != s->rows - 1)
        return sg_fail(err, SEGUE_EARG,
                       "run: ref: span %u: %u steps want one span, a sampler, a ring with room, and its "
                       "last row",
                       i, s->steps);
    return SEGUE_OK;
}

static segue_status check_span(const struct sg_program *p, const struct sg_batch *b, uint32_t i,
                               segue_error *err)
{
    const struct sg_span *s = &b->spans[i];
    const struct sg_graph *g = p->base.graph;
    if (!s->rows) return sg_fail(err, SEGUE_EARG, "run: ref: span %u has no rows; leave it out", i);
    SG_TRY(check_state(p, s, i, err));
    for (uint32_t k = 0; k < g->inputs_n; k++) {
        int tokens = g->values[g->inputs[k].value].kind == SG_VALUE_TOKENS;
        if (tokens ? !s->tokens : !s->values)
            return sg_fail(err, SEGUE_EARG, "run: ref: span %u gives no %s; the graph reads them", i,
                           g->inputs[k].name);
        if (tokens) SG_TRY(check_tokens(g, s, i, err));
    }
    for (uint32_t k = 0; k < s->wanted_n; k++)
        if (s->wanted[k] >= s->rows || (k && s->wanted[k] <= s->wanted[k - 1]))
            return sg_fail(err, SEGUE_EARG,
                           "run: ref: span %u: wanted row %u of %u; give rising rows of the span", i,
                           s->wanted[k], s->rows);
    return check_choice(g, s, i, b->spans_n, err);
}

static segue_status check_batch(const struct sg_program *p, const struct sg_batch *b, segue_error *err)
{
    uint64_t rows = 0;
    if (!b->spans_n) return sg_fail(err, SEGUE_EARG, "run: ref: a batch without spans; give one");
    for (uint32_t i = 0; i < b->spans_n; i++) {
        SG_TRY(check_span(p, b, i, err));
        rows += b->spans[i].rows;
    }
    if (rows > INT32_MAX)
        return sg_fail(err, SEGUE_ELIMIT, "run: ref: %llu rows in a run; give fewer",
                       (unsigned long long)rows);
    for (uint32_t i = 0; i < b->outputs_n; i++)
        if (b->outputs[i] < 0 || (uint32_t)b->outputs[i] >= p->base.graph->outputs_n)
            return sg_fail(err, SEGUE_EARG, "run: ref: output %d of %u; ask for one that is there",
                           b->outputs[i], p->base.graph->outputs_n);
    return SEGUE_OK;
}

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
    if (logits >= 0 && run->result.logits && g->outputs[logits].value == value)
        memcpy(run->result.logits, p->values[value].data, bytes);
    for (uint32_t i = 0; i < run->batch.outputs_n; i++)
        if (g->outputs[run->batch.outputs[i]].value == value && run->result.values && run->result.values[i])
            memcpy(run->result.values[i], p->values[value].data, bytes);
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
    const struct sg_span *span = &run->spans[s];
    int32_t value = g->outputs[sg_graph_output(g, "logits")].value;
    float *logits = run->pass.values[value].data + (size_t)(run->pass.from[1][s + 1] - 1) * g->vocab;
    segue_logprob *logprobs = run->result.logprobs ? run->result.logprobs + (size_t)s * LOGPROBS : NULL;
    size_t n = 0;
    SG_TRY(sg_choose(run->chooser, sampler, logits, span->first + span->wanted[span->wanted_n - 1] + 1, token,
                     logprobs, &n, run->pass.err));
    if (run->result.logprobs_n) run->result.logprobs_n[s] = n;
    if (run->result.tokens) run->result.tokens[s] = *token;
    return SEGUE_OK;
}

static segue_status choose_all(struct sg_run *run, const struct sg_sampler *one, int32_t *token)
{
    for (uint32_t s = 0; s < run->batch.spans_n; s++)
        if (run->spans[s].sampler) SG_TRY(choose(run, s, one ? one : run->spans[s].sampler, token));
    return SEGUE_OK;
}

/* Pass, choice, and only then the states move on. */
static segue_status step(struct sg_run *run, int first, const struct sg_sampler *one, int32_t *token)
{
    segue_status status = pass_run(run, first);
    if (status == SEGUE_OK) status = choose_all(run, one, token);
    pass_drop(&run->pass);
    for (uint32_t s = 0; s < run->batch.spans_n; s++) {
        ref_state_finish(run->spans[s].state, status == SEGUE_OK, run->spans[s].rows);
        if (status == SEGUE_OK) run->rows_done[s] += run->spans[s].rows;
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
    struct sg_span *span = &run->spans[0];
    struct sg_sampler sampler = *span->sampler;
    int32_t token = -1;
    if (sampler.history_n) memcpy(run->history, sampler.history, sampler.history_n * sizeof token);
    sampler.history = run->history;
    for (uint32_t i = 0; i < span->steps; i++) {
        SG_TRY(step(run, i == 0, &sampler, &token));
        run->history[sampler.history_n++] = token;
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
static void work(struct sg_run *run)
{
    uint64_t begin = sg_now_ns();
    int32_t token = -1;
    int many = run->batch.spans_n == 1 && run->spans[0].steps > 1;
    run->status = many ? run_steps(run) : step(run, 1, NULL, &token);
    for (uint32_t s = 0; s < run->batch.spans_n; s++) ref_state_release(run->spans[s].state);
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

/* --- start and wait --- */

static void run_free(struct sg_run *run)
{
    sg_chooser_free(run->chooser);
    pthread_cond_destroy(&run->finished);
    pthread_mutex_destroy(&run->lock);
    sg_free(run->spans);
    sg_free(run->history);
    sg_free(run->rows_done);
    sg_free(run->pass.from[0]);
    sg_free(run->pass.from[1]);
    sg_free(run->pass.values);
    sg_free(run);
}

/* Everything that a run needs is taken at start; later only values and scratch are. */
static segue_status run_fill(struct sg_run *run, const struct sg_batch *b, segue_error *err)
{
    const struct sg_program *p = run->program;
    size_t n = b->spans_n,
           history = b->spans[0].sampler ? b->spans[0].sampler->history_n + b->spans[0].steps : 0;
    int choosing = 0;
    run->spans = sg_alloc(n * sizeof *run->spans);
    run->rows_done = sg_alloc(n * sizeof *run->rows_done);
    run->history = sg_alloc(history * sizeof *run->history);
    run->pass.from[0] = sg_alloc((n + 1) * sizeof *run->pass.from[0]);
    run->pass.from[1] = sg_alloc((n + 1) * sizeof *run->pass.from[1]);
    run->pass.values = sg_alloc(p->base.graph->values_n * sizeof *run->pass.values);
    if (!run->spans || !run->rows_done || !run->history || !run->pass.from[0] || !run->pass.from[1] ||
        !run->pass.values)
        return sg_no_memory("a run of ref", n * sizeof *run->spans, err);
    memcpy(run->spans, b->spans, n * sizeof *run->spans);
    for (size_t i = 0; i < n; i++) choosing |= b->spans[i].sampler != NULL;
    return choosing ? sg_chooser_new(&run->chooser, p->base.graph->vocab, err) : SEGUE_OK;
}

static segue_status run_new(struct sg_program *p, const struct sg_batch *b, struct sg_result *r,
                            struct sg_run **out, segue_error *err)
{
    struct sg_run *run = sg_alloc(sizeof *run);
    if (!run) return sg_no_memory("a run of ref", sizeof *run, err);
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
    run->pass.program = p;
    run->pass.graph = p->base.graph;
    run->pass.spans = run->spans;
    run->pass.spans_n = b->spans_n;
    run->pass.threads = p->base.unit->threads;
    run->pass.cancel = b->cancel;
    run->pass.err = &run->error;
    *out = run;
    return SEGUE_OK;
}

/* All states or none: two spans of one state would both append behind the same row. */
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

segue_status ref_wait(struct sg_run *run, uint64_t timeout_ns, segue_error *err)
{
    if (!run_over(run, timeout_ns)) return SEGUE_END;
    if (run->threaded) pthread_join(run->thread, NULL);
    segue_status status = run->status;
    if (run->result.rows_done)
        memcpy(run->result.rows_done, run->rows_done, run->batch.spans_n * sizeof *run->rows_done);
    run->report->ns = run->ns;
    run->report->dispatches = run->pass.ops;
    run->report->weight_bytes = run->pass.weight_bytes;
    run->report->state_bytes = run->pass.state_bytes;
    if (status != SEGUE_OK) sg_fail(err, status, "%s", run->error.text);
    run_free(run);
    return status;
}
