/* tensor_parallel.c: see tensor_parallel.h. For each rank, the graph is rebuilt op by op with the
 * split of tp_split.c.
 * SPDX-License-Identifier: MIT */
#include "graph/tensor_parallel.h"

#include <string.h>

/* The state of building one rank's version of one graph. */
struct rank_builder {
    struct sg_tp_graphs *all;
    const struct sg_graph *g;        /* the original graph */
    const struct sg_tp_split *split; /* [values_n of g] */
    struct sg_builder b;             /* builds the rank's graph */
    int32_t *map;                    /* [values_n of g] the corresponding value of the rank's graph */
    uint32_t rank;
    segue_error error;               /* the first failure to make a part */
};

/* The number of ranks. */
static uint32_t ranks_of(const struct rank_builder *s) { return s->all->ranks; }

/* --- parts of tensors --- */

/* 1 when both select the same rows and columns of the same tensor. */
static int same_part(const struct sg_tensor_part *a, const struct sg_tensor_part *b)
{
    if (a->of != b->of || a->rows_n != b->rows_n || a->cols_n != b->cols_n) return 0;
    return !memcmp(a->rows, b->rows, a->rows_n * sizeof *a->rows) && !memcmp(a->cols, b->cols, a->cols_n * sizeof *a->cols);
}

/* Total length of n runs. */
static uint64_t sum_of(const struct sg_index_run *runs, uint32_t n)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += runs[i].n;
    return sum;
}

/* Column runs of a quantised tensor must start and end at block boundaries. */
static segue_status blocks_fit(const struct rank_builder *s, const struct sg_tensor_part *p, segue_error *err)
{
    const struct sg_tensor *t = p->of;
    uint64_t block = sg_storage_info(t->storage)->block;
    if (t->storage == SG_AFFINE || t->storage == SG_Q8_GROUP) block = t->affine.group;
    if (t->storage == SG_CODED) block = 32; /* a run of columns that any unit may read */
    for (uint32_t i = 0; i < p->cols_n; i++)
        if (block > 1 && (p->cols[i].at % block || p->cols[i].n % block))
            return sg_fail(err, SEGUE_EUNSUPPORTED,
                           "split graph over %u ranks: %s: %llu columns from %llu on are not whole blocks of %llu; use a "
                           "16-bit model file or one unit",
                           ranks_of(s), t->name, (unsigned long long)p->cols[i].n, (unsigned long long)p->cols[i].at,
                           (unsigned long long)block);
    return SEGUE_OK;
}

/* Append a new part tensor; NULL: out of memory. Its size in bytes is the proportional share of the
 * original. */
static struct sg_tensor *part_new(struct rank_builder *s, const struct sg_tensor_part *p)
{
    struct sg_tp_graphs *all = s->all;
    if (all->parts_n == all->parts_cap) {
        uint32_t cap = all->parts_cap * 2 + 64;
        struct sg_tensor **wider = sg_arena_alloc(&all->arena, cap * sizeof *wider);
        if (!wider) return NULL;
        if (all->parts_n) memcpy(wider, all->parts, all->parts_n * sizeof *wider);
        all->parts = wider;
        all->parts_cap = cap;
    }
    struct sg_tensor *t = sg_arena_alloc(&all->arena, sizeof *t);
    struct sg_tensor_part *local = sg_arena_alloc(&all->arena, sizeof *local);
    if (!t || !local) return NULL;
    uint64_t rows = sum_of(p->rows, p->rows_n), cols = sum_of(p->cols, p->cols_n), numbers = p->of->rows * p->of->cols;
    *local = *p;
    *t = (struct sg_tensor){.name = p->of->name,
                            .stored_as = p->of->stored_as,
                            .storage = p->of->storage,
                            .rank = p->of->rank > 1 ? 2 : 1,
                            .shape = {rows, cols},
                            .rows = rows,
                            .cols = cols,
                            .affine = p->of->affine,
                            .coded = p->of->coded,
                            .file = p->of->file,
                            .offset = p->of->offset,
                            .part = local};
    if (t->rank == 1) t->shape[0] = cols;
    t->bytes = numbers ? (uint64_t)((double)p->of->bytes * (double)(rows * cols) / (double)numbers) : 0;
    return all->parts[all->parts_n++] = t;
}

/* The part tensor for this selection, shared between graphs. NULL: failed, see s->error. */
static const struct sg_tensor *part_of(struct rank_builder *s, const struct sg_tensor_part *p)
{
    if (s->error.status != SEGUE_OK) return NULL;
    for (uint32_t i = 0; i < s->all->parts_n; i++)
        if (same_part(s->all->parts[i]->part, p)) return s->all->parts[i];
    if (blocks_fit(s, p, &s->error) != SEGUE_OK) return NULL;
    const struct sg_tensor *t = part_new(s, p);
    if (!t) sg_no_memory("parts of weights", sizeof *t, &s->error);
    return t;
}

/* --- operands of a rank --- */

/* The rank's piece of each run of a value that lies in columns [at, at + width), relative to `at`,
 * in units of `per` numbers per column. Returns the number of runs. */
static uint32_t rank_runs(const struct rank_builder *s, int32_t value, uint32_t at, uint32_t width, uint64_t per,
                          struct sg_index_run *out)
{
    const struct sg_tp_split *v = &s->split[value];
    uint32_t n = 0;
    for (uint32_t i = 0; i < v->n; i++) {
        uint64_t local = (v->from[i + 1] - v->from[i]) / ranks_of(s);
        /* Operand ranges end at run boundaries (tp_split.c): a run is inside the range or outside
         * of it. */
        if (v->from[i] < at || v->from[i + 1] > at + width) continue;
        out[n++] = (struct sg_index_run){(v->from[i] - at + local * s->rank) * per, local * per};
    }
    return n;
}

/* The corresponding operand of the rank's graph. Column ranges of split values shrink by the number
 * of ranks. */
static struct sg_operand operand(const struct rank_builder *s, const struct sg_operand *x)
{
    if (x->value < 0) return sg_absent();
    /* Runs are divided evenly and in order, so that dividing start and width gives the rank's
     * range. */
    uint32_t by = s->split[x->value].n ? ranks_of(s) : 1;
    return (struct sg_operand){.value = s->map[x->value], .at = x->at / by, .width = x->width / by};
}

/* A weight that every rank uses as a whole. */
static struct sg_weight whole_weight(struct rank_builder *s, const struct sg_weight *w)
{
    return w->tensor < 0 ? sg_weight_of(&s->b, NULL) : sg_weight_rows(&s->b, s->g->tensors[w->tensor], w->at, w->rows);
}

/* The rank's part of a vector with `per` numbers per column of a split value. The file may store it
 * as one row or as several: it is cut by columns or by rows accordingly. */
static struct sg_weight vector(struct rank_builder *s, const struct sg_weight *w, int32_t value, uint32_t at, uint32_t width,
                               uint64_t per)
{
    if (w->tensor < 0 || !s->split[value].n) return whole_weight(s, w);
    const struct sg_tensor *t = s->g->tensors[w->tensor];
    struct sg_tensor_part p = {.of = t, .rows_n = 1, .cols_n = 1, .rows = {{0, t->rows}}, .cols = {{0, t->cols}}};
    if (t->rows == 1) {
        p.cols_n = rank_runs(s, value, at, width, per, p.cols);
    } else {
        p.rows_n = rank_runs(s, value, at, width, per, p.rows);
        /* rank_runs counts numbers; a row has t->cols of them. */
        for (uint32_t i = 0; i < p.rows_n; i++) {
            p.rows[i].at /= t->cols;
            p.rows[i].n /= t->cols;
        }
    }
    return sg_weight_of(&s->b, part_of(s, &p));
}

/* The rank's part of a vector with one number per head. */
static struct sg_weight head_vector(struct rank_builder *s, const struct sg_weight *w, uint32_t heads, int is_split)
{
    if (w->tensor < 0 || !is_split) return whole_weight(s, w);
    const struct sg_tensor *t = s->g->tensors[w->tensor];
    struct sg_index_run local = {(uint64_t)heads / ranks_of(s) * s->rank, heads / ranks_of(s)};
    struct sg_tensor_part p = {.of = t, .rows_n = 1, .cols_n = 1, .rows = {{0, t->rows}}, .cols = {{0, t->cols}}};
    if (t->rows == 1) p.cols[0] = local;
    else p.rows[0] = local;
    return sg_weight_of(&s->b, part_of(s, &p));
}

/* 1 when the tensor is an embedding table of the graph. */
static int is_table(const struct sg_graph *g, int32_t tensor)
{
    for (uint32_t i = 0; i < g->ops_n; i++)
        if (g->ops[i].code == SG_OP_EMBED && g->ops[i].u.embed.table.tensor == tensor) return 1;
    return 0;
}

/* --- ops --- */

/* Split by weight rows, that is by output columns. An embedding table that is also the head is loaded whole in any case, so
 * a row range of it is used instead of a part. */
static int32_t linear_split_rows(struct rank_builder *s, const struct sg_op *op)
{
    const struct sg_weight *w = &op->u.linear.weight;
    const struct sg_tensor *t = s->g->tensors[w->tensor];
    struct sg_tensor_part p = {.of = t, .cols_n = 1, .cols = {{0, t->cols}}};
    p.rows_n = rank_runs(s, op->out, 0, w->rows, 1, p.rows);
    for (uint32_t i = 0; i < p.rows_n; i++) p.rows[i].at += w->at;
    struct sg_weight local = p.rows_n == 1 && is_table(s->g, w->tensor)
                               ? sg_weight_rows(&s->b, t, (uint32_t)p.rows[0].at, (uint32_t)p.rows[0].n)
                               : sg_weight_of(&s->b, part_of(s, &p));
    return sg_linear(&s->b, operand(s, &op->in[0]), local, vector(s, &op->u.linear.bias, op->out, 0, w->rows, 1),
                     operand(s, &op->in[1]));
}

/* Split by weight columns, because the input is split. Rank 0 alone adds bias and residual; the
 * join sums all ranks. */
static int32_t linear_split_cols(struct rank_builder *s, const struct sg_op *op)
{
    const struct sg_weight *w = &op->u.linear.weight;
    struct sg_tensor_part p = {.of = s->g->tensors[w->tensor], .rows_n = 1, .rows = {{w->at, w->rows}}};
    p.cols_n = rank_runs(s, op->in[0].value, op->in[0].at, op->in[0].width, 1, p.cols);
    int first = s->rank == 0;
    int32_t y = sg_linear(&s->b, operand(s, &op->in[0]), sg_weight_of(&s->b, part_of(s, &p)),
                          first ? whole_weight(s, &op->u.linear.bias) : sg_weight_of(&s->b, NULL),
                          first ? operand(s, &op->in[1]) : sg_absent());
    return sg_join(&s->b, sg_whole(&s->b, y), (struct sg_join){.ranks = ranks_of(s), .sum = 1});
}

/* A linear op whose input and output are whole is computed by every rank. */
static int32_t linear(struct rank_builder *s, const struct sg_op *op)
{
    if (s->split[op->in[0].value].n) return linear_split_cols(s, op);
    if (s->split[op->out].n) return linear_split_rows(s, op);
    return sg_linear(&s->b, operand(s, &op->in[0]), whole_weight(s, &op->u.linear.weight), whole_weight(s, &op->u.linear.bias),
                     operand(s, &op->in[1]));
}

/* by: number of ranks that the result is split over, 1 if it is not split. The weight of a grouped
 * norm is shared by all groups. */
static int32_t norm(struct rank_builder *s, const struct sg_op *op, uint32_t by)
{
    struct sg_norm p = op->u.norm;
    p.weight = whole_weight(s, &p.weight);
    p.bias = whole_weight(s, &p.bias);
    p.groups /= by;
    return sg_norm(&s->b, operand(s, &op->in[0]), p, operand(s, &op->in[1]));
}

/* Query and KV heads are divided by the number of ranks; sinks are one number per query head. */
static int32_t attend(struct rank_builder *s, const struct sg_op *op, uint32_t by)
{
    struct sg_attend p = op->u.attend;
    p.sinks = head_vector(s, &p.sinks, p.heads, by > 1);
    p.heads /= by;
    p.kv_heads /= by;
    return sg_attend(&s->b, operand(s, &op->in[0]), operand(s, &op->in[1]), operand(s, &op->in[2]), p,
                     operand(s, &op->in[3]));
}

/* Key and value heads are divided likewise. */
static int32_t delta(struct rank_builder *s, const struct sg_op *op, uint32_t by)
{
    struct sg_delta p = op->u.delta;
    struct sg_operand in[5];
    for (int k = 0; k < 5; k++) in[k] = operand(s, &op->in[k]);
    p.decay = head_vector(s, &p.decay, p.v_heads, by > 1);
    p.dt = head_vector(s, &p.dt, p.v_heads, by > 1);
    p.k_heads /= by;
    p.v_heads /= by;
    return sg_delta(&s->b, in, p);
}

/* taps weights and one bias per channel. */
static int32_t conv(struct rank_builder *s, const struct sg_op *op)
{
    struct sg_conv p = op->u.conv;
    const struct sg_operand *x = &op->in[0];
    p.weight = vector(s, &p.weight, x->value, x->at, x->width, p.taps);
    p.bias = vector(s, &p.bias, x->value, x->at, x->width, 1);
    return sg_conv(&s->b, operand(s, x), p);
}

/* A weight of one number applies to all columns and is not split. */
static int32_t scale(struct rank_builder *s, const struct sg_op *op)
{
    const struct sg_weight *w = &op->u.scale.weight;
    const struct sg_tensor *t = w->tensor < 0 ? NULL : s->g->tensors[w->tensor];
    const struct sg_operand *x = &op->in[0];
    int one = t && t->rows == 1 && t->cols == 1;
    return sg_scale(&s->b, operand(s, x), op->u.scale.value,
                    one ? whole_weight(s, w) : vector(s, w, x->value, x->at, x->width, 1));
}

/* Append the rank's version of one op; returns its value. */
static int32_t copy_op(struct rank_builder *s, const struct sg_op *op)
{
    struct sg_builder *b = &s->b;
    struct sg_operand x = operand(s, &op->in[0]), y = operand(s, &op->in[1]);
    uint32_t by = s->split[op->out].n ? ranks_of(s) : 1;
    switch (op->code) {
    case SG_OP_EMBED:
        return sg_embed(b, x.value, s->g->tensors[op->u.embed.table.tensor],
                        op->u.embed.positions.tensor < 0 ? NULL : s->g->tensors[op->u.embed.positions.tensor], op->u.embed.scale);
    case SG_OP_NORM: return norm(s, op, by);
    case SG_OP_LINEAR: return linear(s, op);
    case SG_OP_ROPE: return sg_rope(b, x, op->u.rope.heads / by, op->u.rope.table);
    case SG_OP_ATTEND: return attend(s, op, by);
    case SG_OP_CONV: return conv(s, op);
    case SG_OP_DELTA: return delta(s, op, by);
    case SG_OP_GLU: return sg_glu(b, x, y, op->u.glu.act);
    case SG_OP_ACT: return sg_activate(b, x, op->u.act.act);
    case SG_OP_ADD: return sg_add(b, x, y);
    case SG_OP_SCALE: return scale(s, op);
    case SG_OP_ROWS: return sg_rows(b, x);
    case SG_OP_ROUTE: {
        struct sg_route p = op->u.route;
        p.bias = whole_weight(s, &p.bias);
        return sg_route(b, x, p);
    }
    case SG_OP_EXPERTS: {
        struct sg_experts p = op->u.experts;
        p.gate = whole_weight(s, &p.gate);
        p.up = whole_weight(s, &p.up);
        p.down = whole_weight(s, &p.down);
        return sg_experts(b, x, y, p);
    }
    default: return -1;
    }
}

/* --- whole graphs --- */

/* Outputs have the width of the original: a split value is concatenated first. */
static void copy_outputs(struct rank_builder *s)
{
    const struct sg_graph *g = s->g;
    for (uint32_t i = 0; i < g->outputs_n; i++) {
        int32_t v = g->outputs[i].value, local = s->map[v];
        if (s->split[v].n) local = sg_join(&s->b, sg_whole(&s->b, local), (struct sg_join){.ranks = ranks_of(s)});
        sg_output(&s->b, local, "%s", g->outputs[i].name);
    }
}

/* Build the rank's version of s->g. */
static segue_status rank_graph(struct rank_builder *s, struct sg_graph **out, segue_error *err)
{
    const struct sg_graph *g = s->g;
    struct sg_builder *b = &s->b;
    SG_TRY(sg_builder_begin(b, err));
    for (uint32_t i = 0; i < g->inputs_n; i++) {
        const struct sg_value *v = &g->values[g->inputs[i].value];
        s->map[g->inputs[i].value] = v->kind == SG_VALUE_TOKENS ? sg_input_tokens(b) : sg_input_rows(b, v->width);
    }
    for (uint32_t i = 0; i < g->ropes_n; i++)
        (void)sg_rope_table_add(b, g->ropes[i].pairs, g->ropes[i].inverse, g->ropes[i].mscale);
    for (uint32_t i = 0; i < g->ops_n && s->error.status == SEGUE_OK; i++) {
        b->layer = g->ops[i].layer;
        s->map[g->ops[i].out] = copy_op(s, &g->ops[i]);
    }
    b->layer = -1;
    copy_outputs(s);
    b->graph->layers = g->layers;
    b->graph->layer_from = g->layer_from;
    b->graph->layer_to = g->layer_to;
    /* A failed part is reported instead of the builder's follow-up errors. */
    if (s->error.status != SEGUE_OK) b->error = s->error;
    return sg_builder_end(b, out, err);
}

/* One run of n heads, or none if the slot is not split. */
static struct sg_tp_slot whole_run(uint32_t n, int is_split)
{
    return (struct sg_tp_slot){.runs_n = is_split ? 1 : 0, .runs = {n}};
}

/* How each slot is split: like the result of the op that uses it. */
static void slot_runs(const struct sg_graph *g, const struct sg_tp_split *split, struct sg_tp_slot *slots)
{
    for (uint32_t i = 0; i < g->ops_n; i++) {
        const struct sg_op *op = &g->ops[i];
        int is_split = split[op->out].n != 0;
        if (op->code == SG_OP_ATTEND)
            slots[op->u.attend.slot_k] = slots[op->u.attend.slot_v] = whole_run(op->u.attend.kv_heads, is_split);
        if (op->code == SG_OP_DELTA) slots[op->u.delta.slot] = whole_run(op->u.delta.v_heads, is_split);
        if (op->code != SG_OP_CONV) continue;
        const struct sg_tp_split *v = &split[op->out];
        slots[op->u.conv.slot].runs_n = v->n;
        for (uint32_t k = 0; k < v->n; k++) slots[op->u.conv.slot].runs[k] = v->from[k + 1] - v->from[k];
    }
}

/* Build all ranks' versions of graph number `index`. scratch is freed by the caller. */
static segue_status split_graph(struct sg_tp_graphs *all, const struct sg_graph *g, uint32_t index, struct sg_arena *scratch,
                             segue_error *err)
{
    struct sg_tp_split *split = sg_arena_alloc(scratch, g->values_n * sizeof *split);
    int32_t *map = sg_arena_alloc(scratch, g->values_n * sizeof *map);
    all->slots[index] = sg_arena_alloc(&all->arena, (g->slots_n + 1) * sizeof **all->slots);
    if (!split || !map || !all->slots[index]) return sg_no_memory("split graph", g->values_n * sizeof *split, err);
    /* Joins and inverse rotations do not occur in graphs of model families. */
    for (uint32_t i = 0; i < g->ops_n; i++)
        if (g->ops[i].code == SG_OP_JOIN || (g->ops[i].code == SG_OP_ROPE && g->ops[i].u.rope.sign != 1))
            return sg_fail(err, SEGUE_EUNSUPPORTED, "split graph: op %u %s cannot be split; use one unit", i,
                           sg_op_name(g->ops[i].code));
    SG_TRY(sg_tp_split_values(g, all->ranks, split, err));
    slot_runs(g, split, all->slots[index]);
    for (uint32_t r = 0; r < all->ranks; r++) {
        struct rank_builder s = {.all = all, .g = g, .split = split, .map = map, .rank = r};
        SG_TRY(rank_graph(&s, &all->graphs[index * all->ranks + r], err));
    }
    return SEGUE_OK;
}

/* Graph by graph; sg_tp_graphs_free also frees an incomplete result. */
segue_status sg_tp_graphs_new(const struct sg_graph *const *graphs, uint32_t graphs_n, uint32_t ranks, struct sg_tp_graphs **out,
                           segue_error *err)
{
    struct sg_tp_graphs *s = sg_alloc(sizeof *s);
    if (!s) return sg_no_memory("split graphs", sizeof *s, err);
    s->ranks = ranks;
    s->graphs_n = graphs_n;
    s->graphs = sg_arena_alloc(&s->arena, (size_t)graphs_n * ranks * sizeof *s->graphs);
    s->slots = sg_arena_alloc(&s->arena, graphs_n * sizeof *s->slots);
    segue_status status = s->graphs && s->slots ? SEGUE_OK : sg_no_memory("split graphs", graphs_n * sizeof *s->graphs, err);
    for (uint32_t i = 0; i < graphs_n && status == SEGUE_OK; i++) {
        struct sg_arena scratch = {0};
        status = split_graph(s, graphs[i], i, &scratch, err);
        sg_arena_free(&scratch);
    }
    if (status != SEGUE_OK) {
        sg_tp_graphs_free(s);
        return status;
    }
    *out = s;
    return SEGUE_OK;
}

void sg_tp_graphs_free(struct sg_tp_graphs *s)
{
    if (!s) return;
    for (uint32_t i = 0; s->graphs && i < s->graphs_n * s->ranks; i++) sg_graph_free(s->graphs[i]);
    sg_arena_free(&s->arena);
    sg_free(s);
}
