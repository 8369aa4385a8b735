/* cpu_fault.c: the option fault=LAYER.OP (unit/spec.h). The value is altered between two stages. An operation that is fused into
 * a later one has no value of its own: the stage that computes it is altered at its end. SPDX-License-Identifier: MIT */
#include <math.h>

#include "unit/cpu/cpu_types.h"

/* 1: the stage writes the value. */
static int writes(const struct sg_cpu_stage *st, int32_t value)
{
    for (uint32_t i = 0; st->kind == SG_ST_MM && i < st->linears_n; i++)
        if (st->linears[i].out == value) return 1;
    switch (st->kind) {
    case SG_ST_ANGLES:
    case SG_ST_LORA:
    case SG_ST_PREP:
    case SG_ST_MM:
    case SG_ST_EXPERT_UP: return 0;
    case SG_ST_KEYS: return st->q_out == value;
    default: return st->op && st->op->out == value;
    }
}

static uint32_t stage_of(const struct sg_cpu_program *p, int32_t value)
{
    for (uint32_t i = 0; i < p->stages_n; i++)
        if (writes(&p->stages[i], value)) return i;
    return UINT32_MAX;
}

/* The first operation that reads a value; UINT32_MAX: none. */
static uint32_t reader_of(const struct sg_graph *g, int32_t value)
{
    for (uint32_t i = 0; i < g->ops_n; i++)
        for (int k = 0; k < SG_OP_INPUTS; k++)
            if (g->ops[i].in[k].value == value) return i;
    return UINT32_MAX;
}

void sg_cpu_fault_place(struct sg_cpu_program *p, const struct sg_fault *fault)
{
    const struct sg_graph *g = p->base.graph;
    p->fault_stage = UINT32_MAX;
    for (uint32_t op = sg_fault_op(fault, g); op < g->ops_n && p->fault_stage == UINT32_MAX;
         op = reader_of(g, p->fault_value)) {
        p->fault_value = g->ops[op].out;
        p->fault_stage = stage_of(p, p->fault_value);
    }
}

void sg_cpu_fault_apply(const struct sg_cpu_pass *a)
{
    const struct sg_cpu_program *p = a->p;
    size_t stride;
    if (!sg_cpu_stage_rows(a, &p->stages[p->fault_stage])) return;
    float *x = sg_cpu_operand_row(a, (struct sg_operand){p->fault_value, 0, 0}, 0, &stride);
    *x = nextafterf(*x, INFINITY);
}
