/* early.c: the op `rows` where it saves most. A family lets it stand before the final norm; behind the last op that
 * writes state nothing looks from row to row, so all of that is wanted of the wanted rows alone: `rows` goes there, one
 * for each value that crosses the place, and every value behind it has R rows. A graph in which it cannot move (an
 * output that all rows are asked of, a position behind the last state) stays as it is.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "graph/graph.h"

struct early {
    struct sg_graph *g;
    uint32_t state, rows;    /* ops: the last that writes state, and `rows` */
    int32_t *to, *wanted;    /* [values_n] new numbers: as it is; as ops behind `state` read it. -1: not given yet */
    struct sg_op *ops;       /* the new lists */
    struct sg_value *values;
    uint32_t ops_n, values_n;
};

static int writes_state(const struct sg_op *op)
{
    return op->code == SG_OP_ATTEND || op->code == SG_OP_CONV || op->code == SG_OP_DELTA;
}

/* 1: the ops between are of one row each, and nobody else reads what they make. */
static int moves(struct early *e)
{
    const struct sg_graph *g = e->g;
    uint32_t rows_n = 0, states = 0;
    for (uint32_t i = 0; i < g->ops_n; i++) {
        if (g->ops[i].code == SG_OP_ROWS && !rows_n++) e->rows = i;
        if (!writes_state(&g->ops[i])) continue;
        if (rows_n) return 0;
        e->state = i;
        states++;
    }
    if (rows_n != 1 || !states) return 0;
    const struct sg_operand *x = &g->ops[e->rows].in[0];
    if (x->at || x->width != g->values[x->value].width) return 0;
    for (uint32_t i = e->state + 1; i < e->rows; i++)
        if (g->ops[i].code == SG_OP_EMBED || g->ops[i].code == SG_OP_ROPE) return 0;
    for (uint32_t i = 0; i < g->outputs_n; i++) {
        int32_t op = g->values[g->outputs[i].value].op;
        if (op > (int32_t)e->state && op <= (int32_t)e->rows) return 0;
    }
    return 1;
}

static int32_t value_add(struct early *e, const struct sg_value *like, uint32_t wanted, int32_t op)
{
    e->values[e->values_n] = *like;
    e->values[e->values_n].wanted = wanted;
    e->values[e->values_n].op = op;
    return (int32_t)e->values_n++;
}

static void op_add(struct early *e, const struct sg_op *op, uint32_t wanted)
{
    struct sg_op *own = &e->ops[e->ops_n];
    *own = *op;
    own->out = value_add(e, &e->g->values[op->out], wanted, (int32_t)e->ops_n);
    e->ops_n++;
}

/* A `rows` for a value that is made before the place and read behind it. */
static void choose(struct early *e, int32_t value)
{
    struct sg_op op = e->g->ops[e->rows];
    if (value < 0 || e->to[value] < 0 || e->wanted[value] >= 0) return;
    op.layer = e->g->ops[e->state].layer;
    op.out = value;          /* its width is the new value's */
    op.in[0] = (struct sg_operand){.value = e->to[value], .width = e->g->values[value].width};
    op_add(e, &op, 1);
    e->wanted[value] = e->ops[e->ops_n - 1].out;
}

static void rewrite(struct early *e)
{
    const struct sg_graph *g = e->g;
    for (uint32_t v = 0; v < g->values_n; v++) /* values are numbered as their ops are, but for inputs */
        if (g->values[v].op <= (int32_t)e->state) e->to[v] = value_add(e, &g->values[v], 0, g->values[v].op);
    for (uint32_t i = 0; i <= e->state; i++) {
        struct sg_op *own = &e->ops[e->ops_n++];
        *own = g->ops[i];
        own->out = e->to[own->out];
        for (int k = 0; k < SG_OP_INPUTS; k++)
            if (own->in[k].value >= 0) own->in[k].value = e->to[own->in[k].value];
    }
    for (uint32_t i = e->state + 1; i <= e->rows; i++)
        for (int k = 0; k < SG_OP_INPUTS; k++) choose(e, g->ops[i].in[k].value);
    for (uint32_t i = e->state + 1; i < g->ops_n; i++) {
        int32_t out = g->ops[i].out;
        if (i == e->rows) {
            e->wanted[out] = e->wanted[g->ops[i].in[0].value];
            continue;
        }
        op_add(e, &g->ops[i], 1);
        struct sg_op *own = &e->ops[e->ops_n - 1];
        for (int k = 0; k < SG_OP_INPUTS; k++)
            if (own->in[k].value >= 0) own->in[k].value = e->wanted[own->in[k].value];
        e->wanted[out] = own->out;
    }
}

void sg_rows_early(struct sg_builder *b)
{
    struct early e = {.g = b->graph};
    struct sg_arena arena = {0};
    if (b->error.status != SEGUE_OK || !moves(&e)) return;
    uint32_t n = e.g->values_n, most = n + (e.rows - e.state) * SG_OP_INPUTS, ops = e.g->ops_n + most - n;
    e.to = sg_arena_alloc(&arena, n * sizeof *e.to);
    e.wanted = sg_arena_alloc(&arena, n * sizeof *e.wanted);
    e.ops = sg_arena_alloc(&e.g->arena, ops * sizeof *e.ops);
    e.values = sg_arena_alloc(&e.g->arena, most * sizeof *e.values);
    if (e.to && e.wanted && e.ops && e.values) {
        memset(e.to, 0xff, n * sizeof *e.to);
        memset(e.wanted, 0xff, n * sizeof *e.wanted);
        rewrite(&e);
        for (uint32_t i = 0; i < e.g->inputs_n; i++) e.g->inputs[i].value = e.to[e.g->inputs[i].value];
        for (uint32_t i = 0; i < e.g->outputs_n; i++) {
            int32_t *value = &e.g->outputs[i].value;
            *value = e.to[*value] >= 0 ? e.to[*value] : e.wanted[*value];
        }
        e.g->ops = e.ops;
        e.g->ops_n = e.ops_n;
        e.g->values = e.values;
        e.g->values_n = e.values_n;
        b->ops_cap = ops;
        b->values_cap = most;
    } else {
        sg_no_memory("graph", ops * sizeof *e.ops + most * sizeof *e.values, &b->error);
    }
    sg_arena_free(&arena);
}
