/* mlx_run.c: runs. A pass builds the arrays of all ops on the owner thread and then has MLX compute the results; long prompts are
 * computed layer by layer, so that they can be canceled. States advance only after a pass succeeded.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "unit/generate.h"
#include "unit/mlx/mlxunit.h"

enum { LAYERWISE_ROWS = 64 };        /* passes of this many rows are computed layer by layer */

struct sg_run {
    struct sg_thread_run common;
    struct mlx_pass pass;
    float *logits;                   /* [R, vocab], or NULL: computed into the caller's buffer */
};

static const struct sg_batch_rules rules = {.unit = "mlx", .rows = sg_state_core_tokens, .slot = sg_state_core_slot_info};

static int canceled(const struct sg_run *run)
{
    return run->common.batch.cancel && atomic_load(run->common.batch.cancel);
}

/* --- a pass --- */

/* The results that the caller asked for, and what tokens are chosen from. */
static void read_results(struct sg_run *run, int first)
{
    struct mlx_pass *p = &run->pass;
    const struct sg_graph *g = p->graph;
    int32_t logits = g->vocab ? sg_graph_output(g, "logits") : -1;
    float *into = first && run->common.result.logits ? run->common.result.logits : run->logits;
    if (logits >= 0 && into && p->rows_n[1])
        (void)mxc_read(p->t, mxc_cast(p->t, p->values[g->outputs[logits].value], MXC_F32), into,
                       (size_t)p->rows_n[1] * g->vocab * sizeof *into);
    for (uint32_t i = 0; first && run->common.result.values && i < run->common.batch.outputs_n; i++) {
        int32_t value = g->outputs[run->common.batch.outputs[i]].value;
        size_t n = (size_t)p->rows_n[g->values[value].wanted] * g->values[value].width;
        if (run->common.result.values[i] && n)
            (void)mxc_read(p->t, mxc_cast(p->t, p->values[value], MXC_F32), run->common.result.values[i], n * sizeof(float));
    }
}

static segue_status check_range(struct mlx_pass *p, mxc_ref flag, segue_error *err)
{
    float number = 0;
    if (flag != MXC_NONE) (void)mxc_read(p->t, flag, &number, sizeof number);
    SG_TRY(mlx_status(p->unit, "run", err));
    return number == 0 ? SEGUE_OK : mlx_range_fail(p, err);
}

static segue_status pass_run(struct sg_run *run, int first)
{
    struct mlx_pass *p = &run->pass;
    segue_error *err = &run->common.error;
    int32_t layer = -1;
    SG_TRY(mlx_pass_begin(p, err));
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
    p->states[p->states_n++] = mlx_range_flag(p);
    read_results(run, first);
    (void)mxc_eval(p->t, p->states, p->states_n);
    p->arrays += mxc_count(p->t);
    SG_TRY(check_range(p, p->states[p->states_n - 1], err));
    return canceled(run) ? sg_fail(err, SEGUE_ECANCELED, "run: mlx: canceled by the caller") : SEGUE_OK;
}

/* 1: one row of a sequence, whose logits are wanted. Adapters and other outputs need a pass. */
static int is_step(const struct sg_run *run)
{
    const struct sg_span *s = &run->common.spans[0];
    return run->common.batch.spans_n == 1 && s->rows == 1 && s->wanted_n == 1 && !s->loras_n && !run->common.batch.outputs_n &&
           run->pass.program->step_fits;
}

/* The best token is probably the next one if the choice is greedy. A result beyond fp16 is named by a pass over the same row. */
static segue_status step_run(struct sg_run *run, int first, const struct sg_sampler *sampler)
{
    const struct sg_span *span = &run->common.spans[0];
    float *into = first && run->common.result.logits ? run->common.result.logits : run->logits;
    int infinite = 0, ahead = sampler && sampler->p.temperature <= 0;
    if (canceled(run)) return sg_fail(&run->common.error, SEGUE_ECANCELED, "run: mlx: canceled by the caller");
    mlx_pass_layout(&run->pass);
    SG_TRY(mlx_step_run(&run->pass, span, ahead, into, &infinite, &run->common.error));
    if (infinite) {
        mlx_state_discard(span->state);
        mxc_tape_clear(run->pass.t);
        return pass_run(run, first);
    }
    return canceled(run) ? sg_fail(&run->common.error, SEGUE_ECANCELED, "run: mlx: canceled by the caller") : SEGUE_OK;
}

/* --- tokens --- */

/* Choosing overwrites the logits, so that those in the caller's buffer are copied. */
static segue_status choose(struct sg_run *run, uint32_t s, const struct sg_sampler *sampler, int first, int32_t *token)
{
    const struct sg_graph *g = run->pass.graph;
    size_t at = (size_t)(run->pass.from[1][s + 1] - 1) * g->vocab;
    if (first && run->common.result.logits)
        memcpy(run->logits + at, run->common.result.logits + at, g->vocab * sizeof *run->logits);
    SG_TRY(sg_thread_run_chooser(&run->common, g->vocab, &run->common.error));
    return sg_choose_for_span(run->common.chooser, sampler, &run->common.spans[s], s, run->logits + at, NULL, &run->common.result,
                              token, &run->common.error);
}

/* A pass and the choice of tokens, then all states advance; after a failure none does. */
static segue_status step(struct sg_run *run, int first, const struct sg_sampler *sampler, int32_t *token)
{
    const struct sg_sampler *how = sampler ? sampler : run->common.spans[0].sampler;
    segue_status status = is_step(run) ? step_run(run, first, how) : pass_run(run, first);
    uint32_t n = run->common.batch.spans_n;
    for (uint32_t s = 0; s < n && status == SEGUE_OK; s++) {
        const struct sg_span *span = &run->common.spans[s];
        if (span->sampler) status = choose(run, s, sampler ? sampler : span->sampler, first, token);
    }
    for (uint32_t s = 0; s < n; s++) {
        const struct sg_span *span = &run->common.spans[s];
        if (status != SEGUE_OK) {
            mlx_state_discard(span->state);
            continue;
        }
        mlx_state_commit(span->state, span->rows);
        run->common.rows_done[s] += span->rows;
    }
    mxc_tape_clear(run->pass.t);
    return status;
}

static segue_status run_steps(struct sg_run *run)
{
    struct sg_generation g;
    int32_t token;
    sg_generation_begin(&g, &run->common.spans[0], run->common.history);
    SG_TRY(step(run, 1, &g.sampler, &token));
    while (!sg_generation_publish(&g, token)) {
        sg_generation_next(&g);
        SG_TRY(step(run, 0, &g.sampler, &token));
    }
    return SEGUE_OK;
}

static void work_on_owner(void *arg)
{
    struct sg_run *run = arg;
    int32_t token = -1;
    int many = run->common.batch.spans_n == 1 && run->common.spans[0].steps > 1;
    run->common.status = many ? run_steps(run) : step(run, 1, NULL, &token);
    sg_state_core_release_all(run->common.spans, run->common.batch.spans_n);
}

static void work(struct sg_thread_run *common)
{
    struct sg_run *run = (struct sg_run *)(void *)common;
    mlx_call(run->pass.unit, work_on_owner, run);
}

/* --- start and wait --- */

static void run_free(struct sg_run *run)
{
    sg_thread_run_free(&run->common);
    mlx_pass_close(&run->pass);
    sg_free(run->logits);
    sg_free(run);
}

static segue_status run_fill(struct sg_run *run, struct sg_program *program, const struct sg_batch *b, struct sg_result *r,
                             segue_error *err)
{
    struct mlx_pass *p = &run->pass;
    const struct sg_graph *g = program->base.graph;
    size_t wanted = 0, sampled = 0;
    SG_TRY(sg_thread_run_init(&run->common, &program->base, b, r, work, err));
    for (uint32_t s = 0; s < b->spans_n; s++) {
        wanted += b->spans[s].wanted_n;
        sampled += b->spans[s].sampler != NULL;
    }
    SG_TRY(mlx_pass_open(p, program, run->common.spans, b->spans_n, err));
    if (sampled) run->logits = sg_alloc((wanted ? wanted : 1) * g->vocab * sizeof *run->logits);
    if (sampled && !run->logits) return sg_no_memory("a run of mlx", wanted * g->vocab * sizeof *run->logits, err);
    return SEGUE_OK;
}

segue_status mlx_start(struct sg_program *p, const struct sg_batch *b, struct sg_result *r, struct sg_run **out,
                       segue_error *err)
{
    SG_TRY(sg_batch_check(&rules, &p->base, b, err));
    struct sg_run *run = sg_alloc(sizeof *run);
    if (!run) return sg_no_memory("a run of mlx", sizeof *run, err);
    segue_status status = run_fill(run, p, b, r, err);
    if (status == SEGUE_OK) status = sg_state_core_acquire_all(b->spans, b->spans_n, err);
    if (status != SEGUE_OK) {
        run_free(run);
        return status;
    }
    sg_thread_run_start(&run->common);
    *out = run;
    return SEGUE_OK;
}

segue_status mlx_wait(struct sg_run *run, uint64_t timeout_ns, segue_error *err)
{
    segue_status status = sg_thread_run_wait(&run->common, timeout_ns, err);
    if (status == SEGUE_END) return status;
    run->common.report->dispatches = run->pass.arrays;
    run->common.report->weight_bytes = run->pass.weight_bytes;
    run->common.report->state_bytes = run->pass.state_bytes;
    run->common.report->overflows = run->pass.overflows;
    run_free(run);
    return status;
}
