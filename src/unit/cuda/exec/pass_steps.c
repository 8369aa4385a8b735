/* pass_steps.c: issues all steps of a pass without a graph, with layer events and with copies of requested values.
 * SPDX-License-Identifier: MIT */
#include "unit/cuda/exec/exec_pass.h"

size_t cu_rows_before(const struct sg_run *run, uint32_t span, int wanted)
{
    size_t n = 0;
    for (uint32_t s = 0; s < span; s++) n += wanted ? run->base.batch.spans[s].wanted_n : run->base.batch.spans[s].rows;
    return n;
}

/* `out` has the rows of all spans, wanted ones only if the value has a row per wanted row. */
segue_status cu_copy_rows_out(struct sg_run *run, const struct cu_pass_plan *plan, struct cu_pass *p, int32_t value, float *out)
{
    const struct sg_value *v = &p->program->base.graph->values[value];
    struct sg_unit *u = p->program->base.unit;
    struct sg_operand whole = {.value = value, .width = v->width};
    struct ck_view x = cu_view_of(p, &whole);
    for (uint32_t k = 0; k < plan->parts_n; k++) {
        const struct cu_span_part *part = &plan->parts[k];
        size_t at = cu_rows_before(run, part->span, (int)v->wanted) + (v->wanted ? plan->wanted_from[k] : part->from);
        uint32_t from = p->from[v->wanted][k], n = p->from[v->wanted][k + 1] - from;
        if (!n) continue;
        SG_TRY(cu_run_check(run, u->d.copy_dtoh(out + at * v->width, (cu_ptr)(uintptr_t)(x.p + (size_t)from * v->width),
                                                (size_t)n * v->width * sizeof(float), p->lane->stream)));
    }
    return SEGUE_OK;
}

/* Copies a value that was just computed to every output of the batch that requests it. */
static segue_status copy_outputs(struct sg_run *run, const struct cu_pass_plan *plan, struct cu_pass *p, int32_t value)
{
    const struct sg_graph *g = p->program->base.graph;
    for (uint32_t i = 0; i < run->base.batch.outputs_n; i++)
        if (g->outputs[run->base.batch.outputs[i]].value == value && run->base.result.values && run->base.result.values[i])
            SG_TRY(cu_copy_rows_out(run, plan, p, value, run->base.result.values[i]));
    return SEGUE_OK;
}

/* Events are recorded in passes that a reader may wait for: long ones of a single span, unless the batch says that no thread
 * reads. */
segue_status cu_pass_layer_done(struct sg_run *run, const struct cu_pass_plan *plan, struct cu_pass *p,
                                const struct cu_step *step)
{
    const struct cu_span_part *part = &plan->parts[0];
    const struct sg_span *s = &run->base.spans[part->span];
    if (p->rows_n[0] <= CU_DECODE_ROWS || plan->parts_n > 1 || run->base.batch.quiet) return SEGUE_OK;
    return cu_layer_event_record(step, s->state, p->lane->stream, s->first + part->from + part->rows, p->err);
}

/* A pass of which no row is wanted chooses nothing, one with a late choice later. */
segue_status cu_pass_choice(const struct cu_pass_plan *plan, struct cu_pass *p)
{
    return plan->best && !plan->late && p->rows_n[1] ? cu_issue_choice(p, plan->advance, plan->stops_n) : SEGUE_OK;
}

/* Unfused steps when every value is needed or adapters apply. Outputs are copied step by step, before their columns are
 * reused. */
segue_status cu_pass_issue_steps(struct sg_run *run, const struct cu_pass_plan *plan, struct cu_pass *p)
{
    struct sg_program *program = p->program;
    int plain = cu_pass_is_unfused(run, p);
    const struct cu_step *steps = plain ? program->plain : program->fused;
    uint32_t n = plain ? program->plain_n : program->fused_n;
    for (uint32_t i = 0; plain && i < program->base.graph->inputs_n; i++)
        if (program->base.graph->values[program->base.graph->inputs[i].value].kind != SG_VALUE_TOKENS)
            SG_TRY(copy_outputs(run, plan, p, program->base.graph->inputs[i].value));
    for (uint32_t i = 0, count; i < n; i += count) {
        SG_TRY(cu_issue(p, &steps[i], &count));
        for (uint32_t k = 0; k < count; k++) SG_TRY(cu_pass_layer_done(run, plan, p, &steps[i + k]));
        if (plain && steps[i].op == program->fault) SG_TRY(cu_issue_fault(p, program->fault));
        if (plain) SG_TRY(copy_outputs(run, plan, p, steps[i].op->out));
    }
    SG_TRY(cu_cluster_pass_end(p));
    return cu_pass_choice(plan, p);
}
