/* tp_split.c: which values of a graph are dealt to ranks, and in which runs. At first all are; then each op says which of its
 * values must be whole, or alike, until nothing changes. Builds nothing.
 * SPDX-License-Identifier: MIT */
#include "graph/tensor_parallel.h"

struct deal {
    const struct sg_graph *g;
    uint32_t ranks;
    struct sg_tp_split *of; /* [values_n]; n 0: whole */
    int changed, full;   /* full: a value has too many runs */
};

static void whole(struct deal *d, int32_t value)
{
    if (value < 0 || !d->of[value].n) return;
    d->of[value].n = 0;
    d->changed = 1;
}

static void all_whole(struct deal *d, const struct sg_op *op)
{
    for (int k = 0; k < SG_OP_INPUTS; k++) whole(d, op->in[k].value);
    whole(d, op->out);
}

/* One of them is whole: all are. */
static void alike(struct deal *d, const struct sg_op *op)
{
    int any = !d->of[op->out].n;
    for (int k = 0; k < SG_OP_INPUTS; k++)
        if (op->in[k].value >= 0) any |= !d->of[op->in[k].value].n;
    if (any) all_whole(d, op);
}

static void linear(struct deal *d, const struct sg_op *op)
{
    if (d->of[op->in[0].value].n || d->g->values[op->out].width < d->ranks) whole(d, op->out);
    if (op->in[1].value < 0) return;
    if (!d->of[op->out].n || !d->of[op->in[1].value].n) {
        whole(d, op->out);
        whole(d, op->in[1].value);
    }
}

static void settle(struct deal *d, const struct sg_op *op)
{
    switch (op->code) {
    case SG_OP_LINEAR: linear(d, op); break;
    case SG_OP_NORM:
        if (op->u.norm.groups == 1) all_whole(d, op);
        else alike(d, op);
        break;
    case SG_OP_ROPE:
    case SG_OP_ATTEND:
    case SG_OP_CONV:
    case SG_OP_DELTA:
    case SG_OP_GLU:
    case SG_OP_ACT:
    case SG_OP_ADD:
    case SG_OP_SCALE:
    case SG_OP_ROWS: alike(d, op); break;
    default: all_whole(d, op); break;
    }
}

/* --- runs --- */

/* A run of the value ends before column c. */
static void cut(struct deal *d, int32_t value, uint32_t c)
{
    struct sg_tp_split *v = &d->of[value];
    uint32_t i = 0;
    while (v->from[i] < c) i++;
    if (v->from[i] == c) return;
    if (v->n == SG_PART_RUNS) {
        d->full = 1;
        return;
    }
    for (uint32_t k = ++v->n; k > i; k--) v->from[k] = v->from[k - 1];
    v->from[i] = c;
    d->changed = 1;
}

static void cut_window(struct deal *d, const struct sg_operand *x)
{
    if (x->value < 0 || !d->of[x->value].n) return;
    cut(d, x->value, x->at);
    cut(d, x->value, x->at + x->width);
}

/* Column by column: what is a run of the one is a run of the other. */
static void cut_alike(struct deal *d, const struct sg_operand *x, int32_t out)
{
    if (x->value < 0 || !d->of[x->value].n || !d->of[out].n) return;
    for (uint32_t i = 0; i <= d->of[out].n && !d->full; i++) cut(d, x->value, x->at + d->of[out].from[i]);
    for (uint32_t i = 0; i <= d->of[x->value].n && !d->full; i++) {
        uint32_t c = d->of[x->value].from[i];
        if (c > x->at && c < x->at + x->width) cut(d, out, c - x->at);
    }
}

static void find_cuts(struct deal *d, const struct sg_op *op)
{
    for (int k = 0; k < SG_OP_INPUTS; k++) cut_window(d, &op->in[k]);
    int by_column = op->code == SG_OP_NORM || op->code == SG_OP_ROPE || op->code == SG_OP_CONV || op->code == SG_OP_GLU ||
                    op->code == SG_OP_ACT || op->code == SG_OP_ADD || op->code == SG_OP_SCALE || op->code == SG_OP_ROWS;
    for (int k = 0; k < SG_OP_INPUTS && by_column; k++) cut_alike(d, &op->in[k], op->out);
    if (op->code == SG_OP_LINEAR) cut_alike(d, &op->in[1], op->out);
}

/* --- what does not divide --- */

static segue_status heads_divide(const struct deal *d, const struct sg_op *op, const char *what, uint32_t a, uint32_t b,
                                 segue_error *err)
{
    if (a % d->ranks == 0 && b % d->ranks == 0) return SEGUE_OK;
    return sg_fail(err, SEGUE_EUNSUPPORTED,
                   "deal graph to %u ranks: %s (layer %d): %s: %u and %u heads do not divide by %u; take fewer, or one alone",
                   d->ranks, sg_op_name(op->code), op->layer, what, a, b, d->ranks);
}

static segue_status runs_divide(const struct deal *d, segue_error *err)
{
    for (uint32_t v = 0; v < d->g->values_n; v++)
        for (uint32_t i = 0; i < d->of[v].n; i++)
            if ((d->of[v].from[i + 1] - d->of[v].from[i]) % d->ranks)
                return sg_fail(err, SEGUE_EUNSUPPORTED,
                               "deal graph to %u ranks: value %u: %u columns do not divide by %u; take fewer, or one alone",
                               d->ranks, v, d->of[v].from[i + 1] - d->of[v].from[i], d->ranks);
    return SEGUE_OK;
}

/* An operand whose heads are dealt is one run. */
static int is_one_run(const struct deal *d, const struct sg_operand *x)
{
    const struct sg_tp_split *v = &d->of[x->value];
    for (uint32_t i = 0; i < v->n; i++)
        if (v->from[i] == x->at) return v->from[i + 1] == x->at + x->width;
    return 0;
}

static segue_status may_deal(const struct deal *d, const struct sg_op *op, segue_error *err)
{
    int headed = op->code == SG_OP_ATTEND || op->code == SG_OP_DELTA || op->code == SG_OP_ROPE || op->code == SG_OP_NORM;
    /* One head makes its norm that of a whole row, and so itself whole: that would be a share in name only. */
    if (op->code == SG_OP_ATTEND) SG_TRY(heads_divide(d, op, "queries, K and V", op->u.attend.heads, op->u.attend.kv_heads, err));
    if (op->code == SG_OP_DELTA) SG_TRY(heads_divide(d, op, "keys and values", op->u.delta.k_heads, op->u.delta.v_heads, err));
    if (!d->of[op->out].n || !headed) return SEGUE_OK;
    if (op->code == SG_OP_NORM) SG_TRY(heads_divide(d, op, "normalised", op->u.norm.groups, op->u.norm.groups, err));
    if (op->code == SG_OP_ROPE) SG_TRY(heads_divide(d, op, "rotated", op->u.rope.heads, op->u.rope.heads, err));
    for (int k = 0; k < SG_OP_INPUTS; k++)
        if (op->in[k].value >= 0 && !is_one_run(d, &op->in[k]))
            return sg_fail(err, SEGUE_EUNSUPPORTED,
                           "deal graph to %u ranks: %s (layer %d): its heads are not one run; take one unit", d->ranks,
                           sg_op_name(op->code), op->layer);
    return SEGUE_OK;
}

segue_status sg_tp_split_values(const struct sg_graph *g, uint32_t ranks, struct sg_tp_split *values, segue_error *err)
{
    struct deal d = {.g = g, .ranks = ranks, .of = values, .changed = 1};
    for (uint32_t v = 0; v < g->values_n; v++)
        values[v] = (struct sg_tp_split){.n = g->values[v].op >= 0, .from = {0, g->values[v].width}};
    for (uint32_t i = 0; i < g->outputs_n; i++)
        if (i != (uint32_t)sg_graph_output(g, "logits") || g->vocab % ranks) whole(&d, g->outputs[i].value);
    while (d.changed) {
        d.changed = 0;
        for (uint32_t i = 0; i < g->ops_n; i++) settle(&d, &g->ops[i]);
    }
    for (d.changed = 1; d.changed && !d.full;) {
        d.changed = 0;
        for (uint32_t i = g->ops_n; i-- && !d.full;) find_cuts(&d, &g->ops[i]);
    }
    if (d.full)
        return sg_fail(err, SEGUE_EUNSUPPORTED, "deal graph to %u ranks: a value has more than %d runs; take one unit", ranks,
                       (int)SG_PART_RUNS);
    for (uint32_t i = 0; i < g->ops_n; i++) SG_TRY(may_deal(&d, &g->ops[i], err));
    return runs_divide(&d, err);
}
