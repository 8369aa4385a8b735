/* early.c: moves the op `rows` to where it saves most work. A family places it before the final norm. After the last op that
 * writes state, no op combines different tokens, so only the requested tokens have to be computed: `rows` is moved directly
 * after that op, once for each value that is read later, and all later values have R rows. The graph is left unchanged when
 * this is not possible: an output needs all tokens, or a later op needs positions.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "graph/graph.h"

/* The state of the rewrite. */
struct hoist {
    struct sg_graph *g;
    uint32_t state, rows;    /* op indices: the last op that writes state; the op `rows` */
    /* [values_n] New value indices of each old value: with T rows (to), and with R rows (wanted).
     * -1: none yet. */
    int32_t *to, *wanted;
    struct sg_op *ops;       /* the new lists, in the graph's arena */
    struct sg_value *values;
    uint32_t ops_n, values_n;
};

/* 1 for the ops with slots. */
static int writes_state(const struct sg_op *op)
{
    return op->code == SG_OP_ATTEND || op->code == SG_OP_CONV || op->code == SG_OP_DELTA;
}

/* 1 when the graph has one `rows` of a whole value after the last op with state, and all ops in
 * between work on each row alone and need no positions, and none of their results is an output.
 * Sets e->state and e->rows. */
static int can_move(struct hoist *e)
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
    /* `rows` of a column range would change widths of the ops before it. */
    if (x->at || x->width != g->values[x->value].width) return 0;
    for (uint32_t i = e->state + 1; i < e->rows; i++)
        if (g->ops[i].code == SG_OP_EMBED || g->ops[i].code == SG_OP_ROPE) return 0;
    for (uint32_t i = 0; i < g->outputs_n; i++) {
        int32_t op = g->values[g->outputs[i].value].op;
        if (op > (int32_t)e->state && op <= (int32_t)e->rows) return 0;
    }
    return 1;
}

/* Append a new value with the kind and width of `like`; returns its index. */
static int32_t value_add(struct hoist *e, const struct sg_value *like, uint32_t wanted, int32_t op)
{
    e->values[e->values_n] = *like;
    e->values[e->values_n].wanted = wanted;
    e->values[e->values_n].op = op;
    return (int32_t)e->values_n++;
}

/* Append a copy of op with a new result value. The caller updates its inputs. */
static void op_add(struct hoist *e, const struct sg_op *op, uint32_t wanted)
{
    struct sg_op *copy = &e->ops[e->ops_n];
    *copy = *op;
    copy->out = value_add(e, &e->g->values[op->out], wanted, (int32_t)e->ops_n);
    e->ops_n++;
}

/* Append a `rows` for an old value that is computed up to e->state and read later, unless there is
 * one already. */
static void select_value(struct hoist *e, int32_t value)
{
    struct sg_op op = e->g->ops[e->rows];
    if (value < 0 || e->to[value] < 0 || e->wanted[value] >= 0) return;
    op.layer = e->g->ops[e->state].layer;
    op.out = value;          /* op_add takes the width of the new value from it */
    op.in[0] = (struct sg_operand){.value = e->to[value], .width = e->g->values[value].width};
    op_add(e, &op, 1);
    e->wanted[value] = e->ops[e->ops_n - 1].out;
}

/* Fill the new lists: the ops up to e->state unchanged, then the `rows` ops, then the other ops on
 * R rows without the old `rows`. */
static void rewrite(struct hoist *e)
{
    const struct sg_graph *g = e->g;
    for (uint32_t v = 0; v < g->values_n; v++) /* except for inputs, values have the order of their ops */
        if (g->values[v].op <= (int32_t)e->state) e->to[v] = value_add(e, &g->values[v], 0, g->values[v].op);
    for (uint32_t i = 0; i <= e->state; i++) {
        struct sg_op *copy = &e->ops[e->ops_n++];
        *copy = g->ops[i];
        copy->out = e->to[copy->out];
        for (int k = 0; k < SG_OP_INPUTS; k++)
            if (copy->in[k].value >= 0) copy->in[k].value = e->to[copy->in[k].value];
    }
    for (uint32_t i = e->state + 1; i <= e->rows; i++)
        for (int k = 0; k < SG_OP_INPUTS; k++) select_value(e, g->ops[i].in[k].value);
    for (uint32_t i = e->state + 1; i < g->ops_n; i++) {
        int32_t out = g->ops[i].out;
        if (i == e->rows) {
            e->wanted[out] = e->wanted[g->ops[i].in[0].value]; /* the old result is the new one of the same value */
            continue;
        }
        op_add(e, &g->ops[i], 1);
        struct sg_op *copy = &e->ops[e->ops_n - 1];
        for (int k = 0; k < SG_OP_INPUTS; k++)
            if (copy->in[k].value >= 0) copy->in[k].value = e->wanted[copy->in[k].value];
        e->wanted[out] = copy->out;
    }
}

/* Each operand of the moved ops adds at most one `rows` and one value, which bounds the new lists. */
void sg_hoist_rows(struct sg_builder *b)
{
    struct hoist e = {.g = b->graph};
    struct sg_arena arena = {0};
    if (b->error.status != SEGUE_OK || !can_move(&e)) return;
    uint32_t n = e.g->values_n, values_max = n + (e.rows - e.state) * SG_OP_INPUTS, ops = e.g->ops_n + values_max - n;
    /* The maps are temporary; the new lists belong to the graph. The old lists stay in its arena
     * until it is freed. */
    e.to = sg_arena_alloc(&arena, n * sizeof *e.to);
    e.wanted = sg_arena_alloc(&arena, n * sizeof *e.wanted);
    e.ops = sg_arena_alloc(&e.g->arena, ops * sizeof *e.ops);
    e.values = sg_arena_alloc(&e.g->arena, values_max * sizeof *e.values);
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
        b->values_cap = values_max;
    } else {
        sg_no_memory("graph", ops * sizeof *e.ops + values_max * sizeof *e.values, &b->error);
    }
    sg_arena_free(&arena);
}
