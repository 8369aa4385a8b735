/* tp_split.c: decides which values of a graph are split over the ranks, and into which runs. First
 * all values are split; then each op marks operands that must be whole, or must be split alike,
 * until nothing changes. The second step finds the runs: boundaries of operand ranges are
 * propagated through the ops until nothing changes. Builds nothing.
 * SPDX-License-Identifier: MIT */
#include "graph/tensor_parallel.h"

/* The state of the search. */
struct splitter {
    const struct sg_graph *g;
    uint32_t ranks;
    struct sg_tp_split *split; /* [values_n] the result; n 0: whole */
    int changed, full;         /* changed: the current pass changed something; full: a value has too many runs */
};

/* The value is computed by every rank. */
static void set_whole(struct splitter *d, int32_t value)
{
    if (value < 0 || !d->split[value].n) return;
    d->split[value].n = 0;
    d->changed = 1;
}

/* Likewise for all operands and the result of an op. */
static void set_all_whole(struct splitter *d, const struct sg_op *op)
{
    for (int k = 0; k < SG_OP_INPUTS; k++) set_whole(d, op->in[k].value);
    set_whole(d, op->out);
}

/* Operands and result must be split alike: if one of them is whole, all become whole. */
static void unify(struct splitter *d, const struct sg_op *op)
{
    int any = !d->split[op->out].n;
    for (int k = 0; k < SG_OP_INPUTS; k++)
        if (op->in[k].value >= 0) any |= !d->split[op->in[k].value].n;
    if (any) set_all_whole(d, op);
}

/* A split input gives a result that is summed over the ranks, hence whole. The residual is added to
 * the result, so both must be split or whole. */
static void linear(struct splitter *d, const struct sg_op *op)
{
    if (d->split[op->in[0].value].n || d->g->values[op->out].width < d->ranks) set_whole(d, op->out);
    if (op->in[1].value < 0) return;
    if (!d->split[op->out].n || !d->split[op->in[1].value].n) {
        set_whole(d, op->out);
        set_whole(d, op->in[1].value);
    }
}

/* Apply the rule of one op. */
static void propagate(struct splitter *d, const struct sg_op *op)
{
    switch (op->code) {
    case SG_OP_LINEAR: linear(d, op); break;
    case SG_OP_NORM:
        if (op->u.norm.groups == 1) set_all_whole(d, op);
        else unify(d, op);
        break;
    case SG_OP_ROPE:
    case SG_OP_ATTEND:
    case SG_OP_CONV:
    case SG_OP_DELTA:
    case SG_OP_GLU:
    case SG_OP_ACT:
    case SG_OP_ADD:
    case SG_OP_SCALE:
    case SG_OP_ROWS: unify(d, op); break;
    default: set_all_whole(d, op); break;
    }
}

/* --- boundaries of runs --- */

/* Make column c a boundary between two runs of the value. */
static void add_boundary(struct splitter *d, int32_t value, uint32_t c)
{
    struct sg_tp_split *v = &d->split[value];
    uint32_t i = 0;
    while (v->from[i] < c) i++;
    /* from[] is sorted: i is the first boundary at or after c. */
    if (v->from[i] == c) return;
    if (v->n == SG_PART_RUNS) {
        d->full = 1;
        return;
    }
    for (uint32_t k = ++v->n; k > i; k--) v->from[k] = v->from[k - 1];
    v->from[i] = c;
    d->changed = 1;
}

/* The ends of an operand's column range are boundaries of the value. */
static void bound_operand(struct splitter *d, const struct sg_operand *x)
{
    if (x->value < 0 || !d->split[x->value].n) return;
    add_boundary(d, x->value, x->at);
    add_boundary(d, x->value, x->at + x->width);
}

/* For ops that work column by column: boundaries of the result are boundaries of the operand and
 * vice versa. */
static void align_boundaries(struct splitter *d, const struct sg_operand *x, int32_t out)
{
    if (x->value < 0 || !d->split[x->value].n || !d->split[out].n) return;
    for (uint32_t i = 0; i <= d->split[out].n && !d->full; i++) add_boundary(d, x->value, x->at + d->split[out].from[i]);
    for (uint32_t i = 0; i <= d->split[x->value].n && !d->full; i++) {
        uint32_t c = d->split[x->value].from[i];
        if (c > x->at && c < x->at + x->width) add_boundary(d, out, c - x->at);
    }
}

/* Apply the rules for boundaries of one op. */
static void find_boundaries(struct splitter *d, const struct sg_op *op)
{
    for (int k = 0; k < SG_OP_INPUTS; k++) bound_operand(d, &op->in[k]);
    int by_column = op->code == SG_OP_NORM || op->code == SG_OP_ROPE || op->code == SG_OP_CONV || op->code == SG_OP_GLU ||
                    op->code == SG_OP_ACT || op->code == SG_OP_ADD || op->code == SG_OP_SCALE || op->code == SG_OP_ROWS;
    for (int k = 0; k < SG_OP_INPUTS && by_column; k++) align_boundaries(d, &op->in[k], op->out);
    if (op->code == SG_OP_LINEAR) align_boundaries(d, &op->in[1], op->out);
}

/* --- divisibility --- */

/* EUNSUPPORTED unless both numbers of heads are divisible by the number of ranks. */
static segue_status heads_divide(const struct splitter *d, const struct sg_op *op, const char *what, uint32_t a, uint32_t b,
                                 segue_error *err)
{
    if (a % d->ranks == 0 && b % d->ranks == 0) return SEGUE_OK;
    return sg_fail(err, SEGUE_EUNSUPPORTED,
                   "split graph over %u ranks: %s (layer %d): %s: %u and %u heads are not divisible by %u; use fewer ranks",
                   d->ranks, sg_op_name(op->code), op->layer, what, a, b, d->ranks);
}

/* EUNSUPPORTED unless the width of every run of columns is divisible by the number of ranks. */
static segue_status runs_divide(const struct splitter *d, segue_error *err)
{
    for (uint32_t v = 0; v < d->g->values_n; v++)
        for (uint32_t i = 0; i < d->split[v].n; i++)
            if ((d->split[v].from[i + 1] - d->split[v].from[i]) % d->ranks)
                return sg_fail(err, SEGUE_EUNSUPPORTED,
                               "split graph over %u ranks: value %u: %u columns are not divisible by %u; use fewer ranks",
                               d->ranks, v, d->split[v].from[i + 1] - d->split[v].from[i], d->ranks);
    return SEGUE_OK;
}

/* 1 when the operand's column range is exactly one run. */
static int is_one_run(const struct splitter *d, const struct sg_operand *x)
{
    const struct sg_tp_split *v = &d->split[x->value];
    for (uint32_t i = 0; i < v->n; i++)
        if (v->from[i] == x->at) return v->from[i + 1] == x->at + x->width;
    return 0;
}

/* Check the requirements of one op: heads divisible by the number of ranks, and each operand a
 * single run, so that a rank's heads are consecutive. */
static segue_status check_splittable(const struct splitter *d, const struct sg_op *op, segue_error *err)
{
    int headed = op->code == SG_OP_ATTEND || op->code == SG_OP_DELTA || op->code == SG_OP_ROPE || op->code == SG_OP_NORM;
    /* Checked even if the result is whole: with a single head, its norm is over the whole row and
     * nothing would be split. */
    if (op->code == SG_OP_ATTEND) SG_TRY(heads_divide(d, op, "queries, K and V", op->u.attend.heads, op->u.attend.kv_heads, err));
    if (op->code == SG_OP_DELTA) SG_TRY(heads_divide(d, op, "keys and values", op->u.delta.k_heads, op->u.delta.v_heads, err));
    if (!d->split[op->out].n || !headed) return SEGUE_OK;
    if (op->code == SG_OP_NORM) SG_TRY(heads_divide(d, op, "normalised", op->u.norm.groups, op->u.norm.groups, err));
    if (op->code == SG_OP_ROPE) SG_TRY(heads_divide(d, op, "rotated", op->u.rope.heads, op->u.rope.heads, err));
    for (int k = 0; k < SG_OP_INPUTS; k++)
        if (op->in[k].value >= 0 && !is_one_run(d, &op->in[k]))
            return sg_fail(err, SEGUE_EUNSUPPORTED,
                           "split graph over %u ranks: %s (layer %d): its heads are not consecutive columns; use one unit",
                           d->ranks, sg_op_name(op->code), op->layer);
    return SEGUE_OK;
}

segue_status sg_tp_split_values(const struct sg_graph *g, uint32_t ranks, struct sg_tp_split *values, segue_error *err)
{
    struct splitter d = {.g = g, .ranks = ranks, .split = values, .changed = 1};
    for (uint32_t v = 0; v < g->values_n; v++)
        values[v] = (struct sg_tp_split){.n = g->values[v].op >= 0, .from = {0, g->values[v].width}};
    /* Inputs are whole on every rank, and so are outputs, except logits that can be split evenly. */
    for (uint32_t i = 0; i < g->outputs_n; i++)
        if (i != (uint32_t)sg_graph_output(g, "logits") || g->vocab % ranks) set_whole(&d, g->outputs[i].value);
    /* Each pass only turns split values into whole ones, so the loop ends. */
    while (d.changed) {
        d.changed = 0;
        for (uint32_t i = 0; i < g->ops_n; i++) propagate(&d, &g->ops[i]);
    }
    /* Each pass adds boundaries only, and their number is limited. Backwards, because most
     * boundaries come from consumers. */
    for (d.changed = 1; d.changed && !d.full;) {
        d.changed = 0;
        for (uint32_t i = g->ops_n; i-- && !d.full;) find_boundaries(&d, &g->ops[i]);
    }
    if (d.full)
        return sg_fail(err, SEGUE_EUNSUPPORTED, "split graph over %u ranks: a value has more than %d runs; use one unit", ranks,
                       (int)SG_PART_RUNS);
    for (uint32_t i = 0; i < g->ops_n; i++) SG_TRY(check_splittable(&d, &g->ops[i], err));
    return runs_divide(&d, err);
}
