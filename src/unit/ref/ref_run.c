/* ref_run.c: runs: validation, one pass over the graph per step, the choice of tokens, results. With inline_hint the run computes
 * inside start, otherwise on a new thread. A pass is all or nothing: states advance only when it succeeded, so rows_done counts
 * complete passes.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "unit/batch.h"
#include "unit/generate.h"
#include "unit/ref/ref.h"

struct sg_run {
    struct sg_thread_run common;        /* its spans are those of the current step */
    struct sg_program *program;
    struct ref_pass pass;
};

static struct sg_run *run_of(struct sg_thread_run *common) { return (struct sg_run *)(void *)common; }

/* --- a pass --- */

/* First row of each span in T and R. */
static void pass_layout(struct ref_pass *p)
{
    for (uint32_t s = 0; s < p->spans_n; s++) {
        p->from[0][s + 1] = p->from[0][s] + p->spans[s].rows;
        p->from[1][s + 1] = p->from[1][s] + p->spans[s].wanted_n;
    }
    p->rows_n[0] = p->from[0][p->spans_n];
    p->rows_n[1] = p->from[1][p->spans_n];
}

/* Allocates a value, [T or R, width]. It lives from the op that defines it to its last use. */
static segue_status value_alloc(struct ref_pass *p, int32_t value, float **out)
{
    const struct sg_value *v = &p->graph->values[value];
    size_t bytes;
    SG_TRY(sg_mul((size_t)v->width * sizeof(float), p->rows_n[v->wanted], &bytes, "rows of a run", p->err));
    *out = p->values[value].data = sg_alloc(bytes);
    return *out ? SEGUE_OK : sg_no_memory("rows of a run", bytes, p->err);
}

/* Concatenates the inputs of the spans. */
static segue_status pass_inputs(struct ref_pass *p)
{
    for (uint32_t i = 0; i < p->graph->inputs_n; i++) {
        int32_t value = p->graph->inputs[i].value;
        uint32_t width = p->graph->values[value].width;
        float *rows;
        SG_TRY(value_alloc(p, value, &rows));
        if (p->graph->values[value].kind == SG_VALUE_TOKENS) {
            p->values[value].data = NULL;
            p->values[value].tokens = (int32_t *)(void *)rows; /* same size as float */
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

static void value_free(struct ref_pass *p, uint32_t i)
{
    sg_free(p->values[i].data);
    sg_free(p->values[i].tokens);
    p->values[i] = (struct ref_value){0};
}

/* Frees all values that are still live, also after a failure. */
static void pass_free(struct ref_pass *p)
{
    for (uint32_t i = 0; i < p->graph->values_n; i++) value_free(p, i);
    sg_arena_free(&p->scratch);
}

/* Copies a value that was just computed to the result buffers that request it. */
static void copy_to_result(const struct sg_run *run, const struct ref_pass *p, int32_t value)
{
    const struct sg_graph *g = p->graph;
    size_t bytes = (size_t)g->values[value].width * p->rows_n[g->values[value].wanted] * sizeof(float);
    int32_t logits = g->vocab ? sg_graph_output(g, "logits") : -1;
    if (logits >= 0 && run->common.result.logits && g->outputs[logits].value == value)
        memcpy(run->common.result.logits, p->values[value].data, bytes);
    for (uint32_t i = 0; i < run->common.batch.outputs_n; i++)
        if (g->outputs[run->common.batch.outputs[i]].value == value && run->common.result.values && run->common.result.values[i])
            memcpy(run->common.result.values[i], p->values[value].data, bytes);
}

/* All ops in order. Cancel is polled between ops and inside long ones, whose partial result is then discarded. first: outputs are
 * copied to the result, which steps after the first do not. */
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
        SG_TRY(value_alloc(p, op->out, &out));
        SG_TRY(ref_op(p, op, out));
        if (p->program->fault == i) out[0] = nextafterf(out[0], INFINITY);
        sg_arena_free(&p->scratch);
        p->ops++;
        if (first && !ref_stopped(p)) copy_to_result(run, p, op->out);
        for (int k = 0; k < SG_OP_INPUTS; k++)
            if (op->in[k].value >= 0 && last_use[op->in[k].value] == i)
                value_free(p, (uint32_t)op->in[k].value);
        if (last_use[op->out] == i) value_free(p, (uint32_t)op->out);
    }
    if (ref_stopped(p)) return sg_fail(p->err, SEGUE_ECANCELED, "run: ref: canceled by the caller");
    return SEGUE_OK;
}

/* --- tokens --- */

/* The token of span s from the last row of its logits, which choosing overwrites: the caller has its copy already. */
static segue_status choose(struct sg_run *run, uint32_t s, const struct sg_sampler *sampler, int32_t *token)
{
    const struct sg_graph *g = run->pass.graph;
    int32_t value = g->outputs[sg_graph_output(g, "logits")].value;
    float *logits = run->pass.values[value].data + (size_t)(run->pass.from[1][s + 1] - 1) * g->vocab;
    SG_TRY(sg_thread_run_chooser(&run->common, g->vocab, run->pass.err));
    return sg_choose_for_span(run->common.chooser, sampler, &run->common.spans[s], s, logits, NULL, &run->common.result, token,
                              run->pass.err);
}

/* A pass, the choice of tokens, and then all states advance; after a failure none does. */
static segue_status step(struct sg_thread_run *common, int first, const struct sg_sampler *sampler, int32_t *token)
{
    struct sg_run *run = run_of(common);
    segue_status status = pass_run(run, first);
    uint32_t n = common->batch.spans_n;
    for (uint32_t s = 0; s < n && status == SEGUE_OK; s++) {
        const struct sg_span *span = &common->spans[s];
        if (span->sampler) status = choose(run, s, sampler ? sampler : span->sampler, token);
    }
    pass_free(&run->pass);
    for (uint32_t s = 0; s < n; s++) {
        const struct sg_span *span = &common->spans[s];
        if (status != SEGUE_OK) {
            ref_state_discard(span->state);
            continue;
        }
        ref_state_commit(span->state, span->rows);
        common->rows_done[s] += span->rows;
    }
    return status;
}

/* A rank of a group begins when all ranks have arrived; its failure ends the others. */
static void work(struct sg_thread_run *common)
{
    struct sg_rank_sync *rank_sync = common->batch.rank_sync;
    if (rank_sync && !sg_rank_sync_arrive(rank_sync))
        common->status = sg_fail(&common->error, SEGUE_ELOST, "run: ref: another rank of this run failed; try again");
    else
        sg_thread_run_steps(common);
    if (rank_sync && common->status != SEGUE_OK) sg_rank_sync_abort(rank_sync);
}

/* --- what the common run calls --- */

static void release(struct sg_thread_run *common)
{
    struct ref_pass *pass = &run_of(common)->pass;
    sg_free(pass->from[0]);
    sg_free(pass->from[1]);
    sg_free(pass->values);
}

/* Values and scratch are allocated by the pass. */
static segue_status fill(struct sg_thread_run *common, struct sg_program *p, segue_error *err)
{
    struct sg_run *run = run_of(common);
    struct ref_pass *pass = &run->pass;
    const struct sg_batch *b = &common->batch;
    pass->from[0] = sg_alloc((b->spans_n + 1) * sizeof *pass->from[0]);
    pass->from[1] = sg_alloc((b->spans_n + 1) * sizeof *pass->from[1]);
    pass->values = sg_alloc(p->base.graph->values_n * sizeof *pass->values);
    if (!pass->from[0] || !pass->from[1] || !pass->values)
        return sg_no_memory("a run of ref", p->base.graph->values_n * sizeof *pass->values, err);
    run->program = p;
    pass->program = p;
    pass->graph = p->base.graph;
    pass->spans = common->spans;
    pass->spans_n = b->spans_n;
    pass->threads = p->base.unit->threads;
    pass->cancel = b->cancel;
    pass->rank_sync = b->rank_sync;
    pass->rank = b->rank;
    pass->err = &common->error;
    return SEGUE_OK;
}

/* `next` of every state is set from its contents. */
static segue_status acquired(struct sg_thread_run *common, segue_error *err)
{
    (void)err;
    for (uint32_t i = 0; i < common->batch.spans_n; i++) ref_state_discard(common->spans[i].state);
    return SEGUE_OK;
}

static void report(const struct sg_thread_run *common, struct sg_result *r)
{
    const struct ref_pass *pass = &((const struct sg_run *)(const void *)common)->pass;
    r->dispatches = pass->ops;
    r->weight_bytes = pass->weight_bytes;
    r->state_bytes = pass->state_bytes;
}

static const struct sg_thread_run_ops run_ops = {
    .rules = {.unit = "ref", .rows = sg_state_core_tokens, .slot = sg_state_core_slot_info},
    .size = sizeof(struct sg_run),
    .fill = fill,
    .acquired = acquired,
    .work = work,
    .step = step,
    .report = report,
    .release = release,
};

segue_status ref_start(struct sg_program *p, const struct sg_batch *b, struct sg_result *r, struct sg_run **out, segue_error *err)
{
    return sg_thread_run_open(&run_ops, p, b, r, out, err);
}
