/* mlx_run.c: runs. A pass builds the arrays of all ops on the owner thread and then has MLX compute the results; long prompts are
 * computed layer by layer, so that they can be canceled. States advance only after a pass succeeded.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "unit/generate.h"
#include "unit/mlx/mlxunit.h"

enum {
    LAYERWISE_ROWS = 64,             /* passes of this many rows are computed layer by layer */
    BEST_ROWS = 64                   /* of so many rows the best tokens are chosen on the device */
};

struct sg_run {
    struct sg_thread_run common;
    struct mlx_pass pass;
    float *logits;                   /* [R, vocab], or NULL: computed into the caller's buffer */
    int32_t *best;                   /* [R] the best token of each row ... */
    int best_known;                  /* ... 1: read, and all logits are finite */
    int logits_read;
    int infinite;                    /* 1: a result exceeds fp16 */
    int stepped;                     /* 1: the last step was one of mlx_step.c, which holds its logits */
};

static struct sg_run *run_of(struct sg_thread_run *common) { return (struct sg_run *)(void *)common; }

static int canceled(const struct sg_run *run)
{
    return run->common.batch.cancel && atomic_load(run->common.batch.cancel);
}

/* --- results --- */

static mxc_ref logits_of(const struct sg_run *run)
{
    const struct mlx_pass *p = &run->pass;
    int32_t logits = p->graph->vocab ? sg_graph_output(p->graph, "logits") : -1;
    if (run->stepped) return mlx_step_logits(&run->pass);
    return logits >= 0 && p->rows_n[1] ? p->values[p->graph->outputs[logits].value] : MXC_NONE;
}

/* Reads the logits once per step. */
static void read_logits(struct sg_run *run, int first)
{
    struct mlx_pass *p = &run->pass;
    float *into = first && run->common.result.logits ? run->common.result.logits : run->logits;
    mxc_ref logits = run->logits_read || !into ? MXC_NONE : logits_of(run);
    if (logits == MXC_NONE) return;
    (void)mxc_read(p->t, mlx_cast(p, logits, MXC_F32), into, (size_t)p->rows_n[1] * p->graph->vocab * sizeof *into);
    run->logits_read = 1;
}

static void read_values(struct sg_run *run)
{
    struct mlx_pass *p = &run->pass;
    const struct sg_graph *g = p->graph;
    for (uint32_t i = 0; run->common.result.values && i < run->common.batch.outputs_n; i++) {
        int32_t value = g->outputs[run->common.batch.outputs[i]].value;
        size_t n = (size_t)p->rows_n[g->values[value].wanted] * g->values[value].width;
        if (run->common.result.values[i] && n)
            (void)mxc_read(p->t, mlx_cast(p, p->values[value], MXC_F32), run->common.result.values[i], n * sizeof(float));
    }
}

/* 1: the sampler chooses the best token of those that it does not exclude. */
static int takes_best(const struct sg_sampler *s)
{
    const segue_sampling *p = &s->p;
    int as_they_are = !(p->repeat_penalty > 0 && (p->repeat_penalty < 1 || p->repeat_penalty > 1)) &&
                      !(p->presence_penalty > 0 || p->presence_penalty < 0) &&
                      !(p->frequency_penalty > 0 || p->frequency_penalty < 0) &&
                      !(p->dry_multiplier > 0 || p->dry_multiplier < 0);
    return p->temperature <= 0 && as_they_are && !p->bias_n && !p->logprobs && !s->allowed;
}

static int is_among(const int32_t *list, size_t n, int32_t token)
{
    for (size_t i = 0; i < n; i++)
        if (list[i] == token) return 1;
    return 0;
}

static int excludes(const struct sg_sampler *s, int32_t token)
{
    if (s->limit && (uint32_t)token >= s->limit) return 1;
    return s->p.ignore_stops && is_among(s->stops, s->stops_n, token);
}

/* --- a pass --- */

/* All ops, one by one. */
static segue_status pass_ops(struct sg_run *run)
{
    struct mlx_pass *p = &run->pass;
    segue_error *err = &run->common.error;
    int32_t layer = -1;
    for (uint32_t i = 0; i < p->graph->ops_n && !mxc_error(p->t); i++) {
        const struct sg_op *op = &p->graph->ops[i];
        if (mlx_pass_skips(p, op)) continue;
        if (op->layer != layer && p->rows_n[0] >= LAYERWISE_ROWS && i) {
            mxc_ref last = p->values[p->graph->ops[i - 1].out];
            if (last != MXC_NONE) (void)mxc_eval(p->t, &last, 1);
        }
        layer = op->layer;
        if (canceled(run)) return sg_fail(err, SEGUE_ECANCELED, "run: mlx: canceled by the caller");
        SG_TRY(mlx_pass_op(p, op, err));
    }
    return SEGUE_OK;
}

static int any_takes_best(const struct sg_run *run)
{
    if (logits_of(run) == MXC_NONE || run->pass.rows_n[1] > BEST_ROWS) return 0;
    for (uint32_t s = 0; s < run->common.batch.spans_n; s++)
        if (run->common.spans[s].sampler && takes_best(run->common.spans[s].sampler)) return 1;
    return 0;
}

/* Has MLX compute the results, and reads those that are certainly needed. */
static segue_status pass_results(struct sg_run *run, int first)
{
    struct mlx_pass *p = &run->pass;
    struct mlx_best best = {.token = MXC_NONE};
    float flag = 0;
    if (any_takes_best(run)) best = mlx_best_of(p);
    else best.flag = mlx_range_flag(p);
    p->states[p->states_n++] = best.token;
    p->states[p->states_n++] = best.flag;
    if (first && run->common.result.logits) read_logits(run, first);
    if (first) read_values(run);
    (void)mxc_eval(p->t, p->states, p->states_n);
    p->arrays += mxc_count(p->t);
    if (best.flag != MXC_NONE) (void)mxc_read_number(p->t, best.flag, &flag);
    if (best.token != MXC_NONE) (void)mxc_read(p->t, best.token, run->best, p->rows_n[1] * sizeof *run->best);
    run->infinite = p->type == MXC_F16 && !isfinite(flag);
    run->best_known = best.token != MXC_NONE && isfinite(flag);
    return mlx_status(p->unit, "run", &run->common.error);
}

static segue_status pass_run(struct sg_run *run, int first, int compiled)
{
    struct mlx_pass *p = &run->pass;
    segue_error *err = &run->common.error;
    SG_TRY(mlx_pass_begin(p, err));
    if (canceled(run)) return sg_fail(err, SEGUE_ECANCELED, "run: mlx: canceled by the caller");
    SG_TRY(compiled ? mlx_pass_compiled(p, err) : pass_ops(run));
    SG_TRY(pass_results(run, first));
    if (run->infinite && !compiled) return mlx_range_fail(p, err);
    return canceled(run) ? sg_fail(err, SEGUE_ECANCELED, "run: mlx: canceled by the caller") : SEGUE_OK;
}

/* 1: one row of each sequence, whose logits are wanted; mlx_compiles is true. */
static int is_step(const struct sg_run *run)
{
    int wanted = !run->common.batch.outputs_n && run->pass.program->step_fits;
    for (uint32_t s = 0; s < run->common.batch.spans_n; s++) wanted = wanted && run->common.spans[s].wanted_n == 1;
    return wanted;
}

/* 1: the best tokens are probably the next ones, because all choices are greedy. */
static int all_greedy(const struct sg_run *run, const struct sg_sampler *first)
{
    int greedy = first && first->p.temperature <= 0;
    for (uint32_t s = 1; s < run->common.batch.spans_n; s++)
        greedy = greedy && run->common.spans[s].sampler && run->common.spans[s].sampler->p.temperature <= 0;
    return greedy;
}

static segue_status step_run(struct sg_run *run, int first, const struct sg_sampler *sampler)
{
    int32_t best[MLX_STEP_SPANS];
    int finite = 0;
    if (canceled(run)) return sg_fail(&run->common.error, SEGUE_ECANCELED, "run: mlx: canceled by the caller");
    mlx_pass_layout(&run->pass);
    run->stepped = 1;
    SG_TRY(mlx_step_run(&run->pass, all_greedy(run, sampler), best, &finite, &run->common.error));
    run->infinite = !finite && run->pass.type == MXC_F16;
    run->best_known = finite && run->best;
    if (run->best_known) memcpy(run->best, best, run->pass.spans_n * sizeof *best);
    if (first && run->common.result.logits) read_logits(run, first);
    SG_TRY(mlx_status(run->pass.unit, "run", &run->common.error));
    return canceled(run) ? sg_fail(&run->common.error, SEGUE_ECANCELED, "run: mlx: canceled by the caller") : SEGUE_OK;
}

/* --- tokens --- */

static void use_token(struct sg_run *run, uint32_t s, int32_t token)
{
    if (run->common.result.logprobs_n) run->common.result.logprobs_n[s] = 0;
    if (run->common.result.tokens) run->common.result.tokens[s] = token;
}

/* Choosing overwrites the logits, so that those in the caller's buffer are copied. */
static segue_status choose(struct sg_run *run, uint32_t s, const struct sg_sampler *sampler, int first, int32_t *token)
{
    const struct sg_graph *g = run->pass.graph;
    uint32_t row = run->pass.from[1][s + 1] - 1;
    size_t at = (size_t)row * g->vocab;
    if (run->best_known && takes_best(sampler) && !excludes(sampler, run->best[row])) {
        *token = run->best[row];
        use_token(run, s, *token);
        return SEGUE_OK;
    }
    read_logits(run, first);
    SG_TRY(mlx_status(run->pass.unit, "run", &run->common.error));
    if (first && run->common.result.logits)
        memcpy(run->logits + at, run->common.result.logits + at, g->vocab * sizeof *run->logits);
    SG_TRY(sg_thread_run_chooser(&run->common, g->vocab, &run->common.error));
    return sg_choose_for_span(run->common.chooser, sampler, &run->common.spans[s], s, run->logits + at, NULL, &run->common.result,
                              token, &run->common.error);
}

static void forget_results(struct sg_run *run) { run->stepped = run->best_known = run->logits_read = run->infinite = 0; }

static void discard_all(struct sg_run *run)
{
    for (uint32_t s = 0; s < run->common.batch.spans_n; s++) mlx_state_discard(run->common.spans[s].state);
    mxc_tape_clear(run->pass.t);
    forget_results(run);
}

/* If a result of a compiled pass exceeds fp16, the pass is repeated op by op, which finds and names the op. */
static segue_status compute(struct sg_run *run, int first, const struct sg_sampler *how)
{
    int compiled = mlx_compiles(run->pass.program, run->common.spans, run->common.batch.spans_n);
    forget_results(run);
    segue_status status = compiled && is_step(run) ? step_run(run, first, how) : pass_run(run, first, compiled);
    if (status != SEGUE_OK || !run->infinite) return status;
    discard_all(run);
    return pass_run(run, first, 0);
}

/* A pass and the choice of tokens, then all states advance; after a failure none does. */
static segue_status step(struct sg_thread_run *common, int first, const struct sg_sampler *sampler, int32_t *token)
{
    struct sg_run *run = run_of(common);
    uint32_t n = run->common.batch.spans_n;
    segue_status status = compute(run, first, sampler ? sampler : run->common.spans[0].sampler);
    for (uint32_t s = 0; s < n && status == SEGUE_OK; s++) {
        const struct sg_span *span = &run->common.spans[s];
        if (span->sampler) status = choose(run, s, sampler ? sampler : span->sampler, first, token);
    }
    if (status != SEGUE_OK) {
        discard_all(run);
        return status;
    }
    for (uint32_t s = 0; s < n; s++) {
        const struct sg_span *span = &run->common.spans[s];
        if (run->stepped && !s) mlx_issued_clear(span->state, &span->state->issued[0]);
        mlx_state_commit(span->state, span->rows);
        run->common.rows_done[s] += span->rows;
    }
    mxc_tape_clear(run->pass.t);
    return SEGUE_OK;
}

static void work_on_owner(void *arg) { sg_thread_run_steps(arg); }

static void work(struct sg_thread_run *common) { mlx_call(run_of(common)->pass.unit, work_on_owner, common); }

/* --- what the common run calls --- */

static void release(struct sg_thread_run *common)
{
    struct sg_run *run = run_of(common);
    mlx_pass_close(&run->pass);
    sg_free(run->logits);
    sg_free(run->best);
}

/* Buffers for the choice of tokens only if a span has a sampler. */
static segue_status fill(struct sg_thread_run *common, struct sg_program *program, segue_error *err)
{
    struct sg_run *run = run_of(common);
    size_t wanted = 0, sampled = 0, vocab = program->base.graph->vocab;
    for (uint32_t s = 0; s < common->batch.spans_n; s++) {
        wanted += common->spans[s].wanted_n;
        sampled += common->spans[s].sampler != NULL;
    }
    SG_TRY(mlx_pass_open(&run->pass, program, common->spans, common->batch.spans_n, err));
    if (sampled) run->logits = sg_alloc((wanted ? wanted : 1) * vocab * sizeof *run->logits);
    if (sampled) run->best = sg_alloc((wanted ? wanted : 1) * sizeof *run->best);
    if (sampled && (!run->logits || !run->best)) return sg_no_memory("a run of mlx", wanted * vocab * sizeof *run->logits, err);
    return SEGUE_OK;
}

static void report(const struct sg_thread_run *common, struct sg_result *r)
{
    const struct mlx_pass *pass = &((const struct sg_run *)(const void *)common)->pass;
    r->dispatches = pass->arrays;
    r->weight_bytes = pass->weight_bytes;
    r->state_bytes = pass->state_bytes;
    r->overflows = pass->overflows;
}

static const struct sg_thread_run_ops run_ops = {
    .rules = {.unit = "mlx", .rows = sg_state_core_tokens, .slot = sg_state_core_slot_info},
    .size = sizeof(struct sg_run),
    .fill = fill,
    .work = work,
    .step = step,
    .report = report,
    .release = release,
};

segue_status mlx_start(struct sg_program *p, const struct sg_batch *b, struct sg_result *r, struct sg_run **out, segue_error *err)
{
    return sg_thread_run_open(&run_ops, p, b, r, out, err);
}
