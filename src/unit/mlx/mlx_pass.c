/* mlx_pass.c: a pass: its memory, its inputs, its ops one by one.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "unit/mlx/mlxunit.h"

segue_status mlx_pass_open(struct mlx_pass *p, struct sg_program *program, const struct sg_span *spans, uint32_t spans_n,
                           segue_error *err)
{
    const struct sg_graph *g = program->base.graph;
    *p = (struct mlx_pass){.program = program, .graph = g, .unit = program->base.unit, .spans = spans, .spans_n = spans_n};
    p->t = p->unit->tape;
    p->type = program->type;
    p->from[0] = sg_alloc((spans_n + 1) * sizeof *p->from[0]);
    p->from[1] = sg_alloc((spans_n + 1) * sizeof *p->from[1]);
    p->values = sg_alloc(g->values_n * sizeof *p->values);
    p->pieces = sg_alloc(spans_n * sizeof *p->pieces);
    p->products = sg_alloc((program->weights->stacks_n + 1) * sizeof *p->products);
    p->states = sg_alloc(((size_t)g->slots_n * spans_n + 2) * sizeof *p->states);
    if (p->from[0] && p->from[1] && p->values && p->pieces && p->products && p->states) return SEGUE_OK;
    return sg_no_memory("a run of mlx", g->values_n * sizeof *p->values, err);
}

void mlx_pass_close(struct mlx_pass *p)
{
    sg_free(p->from[0]);
    sg_free(p->from[1]);
    sg_free(p->values);
    sg_free(p->pieces);
    sg_free(p->products);
    sg_free(p->states);
}

void mlx_pass_layout(struct mlx_pass *p)
{
    for (uint32_t s = 0; s < p->spans_n; s++) {
        p->from[0][s + 1] = p->from[0][s] + p->spans[s].rows;
        p->from[1][s + 1] = p->from[1][s] + p->spans[s].wanted_n;
    }
    p->rows_n[0] = p->from[0][p->spans_n];
    p->rows_n[1] = p->from[1][p->spans_n];
    p->states_n = 0;
    for (uint32_t i = 0; i < p->program->weights->stacks_n; i++) p->products[i] = MXC_NONE;
}

/* Concatenates the inputs of the spans; tokens are uint32 [T]. */
segue_status mlx_pass_begin(struct mlx_pass *p, segue_error *err)
{
    mlx_pass_layout(p);
    for (uint32_t i = 0; i < p->graph->inputs_n; i++) {
        int32_t value = p->graph->inputs[i].value;
        if (p->token) {
            p->values[value] = mxc_use(p->t, p->token);
            continue;
        }
        int tokens = p->graph->values[value].kind == SG_VALUE_TOKENS;
        uint32_t width = tokens ? 1 : p->graph->values[value].width, shape[2] = {p->rows_n[0], width};
        char *rows = sg_alloc((size_t)p->rows_n[0] * width * sizeof(float));
        if (!rows) return sg_no_memory("rows of a run", (size_t)p->rows_n[0] * width * sizeof(float), err);
        for (uint32_t s = 0; s < p->spans_n; s++) {
            size_t row = width * sizeof(float);
            const void *from = tokens ? (const void *)p->spans[s].tokens : (const void *)p->spans[s].values;
            memcpy(rows + p->from[0][s] * row, from, p->spans[s].rows * row);
        }
        mxc_ref x = mxc_from(p->t, rows, tokens ? MXC_U32 : MXC_F32, shape, tokens ? 1 : 2);
        p->values[value] = tokens || p->program->fp32[value] ? x : mlx_cast(p, x, p->type);
        sg_free(rows);
    }
    return SEGUE_OK;
}

struct mlx_best mlx_best_of(struct mlx_pass *p)
{
    struct mlx_best b = {.flag = mlx_range_flag(p)};
    b.logits = p->values[p->graph->outputs[sg_graph_output(p->graph, "logits")].value];
    b.token = mxc_argmax(p->t, b.logits);
    if (b.flag == MXC_NONE) b.flag = mxc_total(p->t, b.logits);
    return b;
}

int mlx_pass_skips(const struct mlx_pass *p, const struct sg_op *op)
{
    return p->graph->values[op->out].wanted && !p->rows_n[1];
}

segue_status mlx_pass_op(struct mlx_pass *p, const struct sg_op *op, segue_error *err)
{
    p->values[op->out] = mlx_op(p, op);
    if (p->values[op->out] == MXC_NONE && !mxc_error(p->t)) return sg_no_memory("an op of mlx", p->rows_n[0], err);
    return SEGUE_OK;
}
