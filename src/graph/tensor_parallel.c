/* tensor_parallel.c: see tensor_parallel.h. One rank's graph after the other is built anew, op for op, with the windows of tp_split.c.
 * SPDX-License-Identifier: MIT */
#include "graph/tensor_parallel.h"

#include <string.h>

struct share {
    struct sg_tp_graphs *all;
    const struct sg_graph *g;
    const struct sg_tp_split *of; /* [values_n of g] */
    struct sg_builder b;
    int32_t *map;              /* [values_n of g] the value here */
    uint32_t rank;
    segue_error error;         /* of parts; the first one */
};

static uint32_t ranks_of(const struct share *s) { return s->all->ranks; }

/* --- parts of tensors --- */

static int same_part(const struct sg_tensor_part *a, const struct sg_tensor_part *b)
{
    if (a->of != b->of || a->rows_n != b->rows_n || a->cols_n != b->cols_n) return 0;
    return !memcmp(a->rows, b->rows, a->rows_n * sizeof *a->rows) && !memcmp(a->cols, b->cols, a->cols_n * sizeof *a->cols);
}

static uint64_t sum_of(const struct sg_run_of *runs, uint32_t n)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += runs[i].n;
    return sum;
}

/* Columns of quantised rows are taken in whole blocks. */
static segue_status blocks_fit(const struct share *s, const struct sg_tensor_part *p, segue_error *err)
{
    const struct sg_tensor *t = p->of;
    uint64_t block = sg_storage_info(t->storage)->block;
    if (t->storage == SG_AFFINE || t->storage == SG_Q8_GROUP) block = t->affine.group;
    for (uint32_t i = 0; i < p->cols_n; i++)
        if (block > 1 && (p->cols[i].at % block || p->cols[i].n % block))
            return sg_fail(err, SEGUE_EUNSUPPORTED,
                           "deal graph to %u ranks: %s: columns from %llu, %llu of them, are no whole blocks of %llu; take a "
                           "16-bit file, or one unit",
                           ranks_of(s), t->name, (unsigned long long)p->cols[i].at, (unsigned long long)p->cols[i].n,
                           (unsigned long long)block);
    return SEGUE_OK;
}

static struct sg_tensor *part_new(struct share *s, const struct sg_tensor_part *p)
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
    struct sg_tensor_part *own = sg_arena_alloc(&all->arena, sizeof *own);
    if (!t || !own) return NULL;
    uint64_t rows = sum_of(p->rows, p->rows_n), cols = sum_of(p->cols, p->cols_n), numbers = p->of->rows * p->of->cols;
    *own = *p;
    *t = (struct sg_tensor){.name = p->of->name,
                            .stored_as = p->of->stored_as,
                            .storage = p->of->storage,
                            .rank = p->of->rank > 1 ? 2 : 1,
                            .shape = {rows, cols},
                            .rows = rows,
                            .cols = cols,
                            .affine = p->of->affine,
                            .file = p->of->file,
                            .offset = p->of->offset,
                            .part = own};
    if (t->rank == 1) t->shape[0] = cols;
    t->bytes = numbers ? (uint64_t)((double)p->of->bytes * (double)(rows * cols) / (double)numbers) : 0;
    return all->parts[all->parts_n++] = t;
}

/* The tensor that is this part: made once for all graphs. NULL: the error is noted. */
static const struct sg_tensor *part_of(struct share *s, const struct sg_tensor_part *p)
{
    if (s->error.status != SEGUE_OK) return NULL;
    for (uint32_t i = 0; i < s->all->parts_n; i++)
        if (same_part(s->all->parts[i]->part, p)) return s->all->parts[i];
    if (blocks_fit(s, p, &s->error) != SEGUE_OK) return NULL;
    const struct sg_tensor *t = part_new(s, p);
    if (!t) sg_no_memory("parts of weights", sizeof *t, &s->error);
    return t;
}

/* --- what a rank has --- */

/* Of the runs of a value that lie in [at, at + width): this rank's piece of each, counted from `at`; `per` numbers a column. */
static uint32_t pieces(const struct share *s, int32_t value, uint32_t at, uint32_t width, uint64_t per, struct sg_run_of *out)
{
    const struct sg_tp_split *v = &s->of[value];
    uint32_t n = 0;
    for (uint32_t i = 0; i < v->n; i++) {
        uint64_t own = (v->from[i + 1] - v->from[i]) / ranks_of(s);
        if (v->from[i] < at || v->from[i + 1] > at + width) continue;
        out[n++] = (struct sg_run_of){(v->from[i] - at + own * s->rank) * per, own * per};
    }
    return n;
}

static struct sg_operand operand(const struct share *s, const struct sg_operand *x)
{
    if (x->value < 0) return sg_absent();
    uint32_t by = s->of[x->value].n ? ranks_of(s) : 1;
    return (struct sg_operand){.value = s->map[x->value], .at = x->at / by, .width = x->width / by};
}

/* A weight as it is. */
static struct sg_weight same(struct share *s, const struct sg_weight *w)
{
    return w->tensor < 0 ? sg_weight_of(&s->b, NULL) : sg_weight_rows(&s->b, s->g->tensors[w->tensor], w->at, w->rows);
}

/* A vector with `per` numbers for each column of a dealt value, whatever its shape: by columns when it is one row, else by
 * rows. */
static struct sg_weight vector(struct share *s, const struct sg_weight *w, int32_t value, uint32_t at, uint32_t width,
                               uint64_t per)
{
    if (w->tensor < 0 || !s->of[value].n) return same(s, w);
    const struct sg_tensor *t = s->g->tensors[w->tensor];
    struct sg_tensor_part p = {.of = t, .rows_n = 1, .cols_n = 1, .rows = {{0, t->rows}}, .cols = {{0, t->cols}}};
    if (t->rows == 1) {
        p.cols_n = pieces(s, value, at, width, per, p.cols);
    } else {
        p.rows_n = pieces(s, value, at, width, per, p.rows);
        for (uint32_t i = 0; i < p.rows_n; i++) {
            p.rows[i].at /= t->cols;
            p.rows[i].n /= t->cols;
        }
    }
    return sg_weight_of(&s->b, part_of(s, &p));
}

/* One number a head. */
static struct sg_weight by_head(struct share *s, const struct sg_weight *w, uint32_t heads, int dealt)
{
    if (w->tensor < 0 || !dealt) return same(s, w);
    const struct sg_tensor *t = s->g->tensors[w->tensor];
    struct sg_run_of own = {(uint64_t)heads / ranks_of(s) * s->rank, heads / ranks_of(s)};
    struct sg_tensor_part p = {.of = t, .rows_n = 1, .cols_n = 1, .rows = {{0, t->rows}}, .cols = {{0, t->cols}}};
    if (t->rows == 1) p.cols[0] = own;
    else p.rows[0] = own;
    return sg_weight_of(&s->b, part_of(s, &p));
}

static int is_table(const struct sg_graph *g, int32_t tensor)
{
    for (uint32_t i = 0; i < g->ops_n; i++)
        if (g->ops[i].code == SG_OP_EMBED && g->ops[i].u.embed.table.tensor == tensor) return 1;
    return 0;
}

/* --- ops --- */

/* Rows of the weight by the runs of the result. A table that is the head too is there whole: a window of it. */
static int32_t by_rows(struct share *s, const struct sg_op *op)
{
    const struct sg_weight *w = &op->u.linear.weight;
    const struct sg_tensor *t = s->g->tensors[w->tensor];
    struct sg_tensor_part p = {.of = t, .cols_n = 1, .cols = {{0, t->cols}}};
    p.rows_n = pieces(s, op->out, 0, w->rows, 1, p.rows);
    for (uint32_t i = 0; i < p.rows_n; i++) p.rows[i].at += w->at;
    struct sg_weight own = p.rows_n == 1 && is_table(s->g, w->tensor)
                               ? sg_weight_rows(&s->b, t, (uint32_t)p.rows[0].at, (uint32_t)p.rows[0].n)
                               : sg_weight_of(&s->b, part_of(s, &p));
    return sg_linear(&s->b, operand(s, &op->in[0]), own, vector(s, &op->u.linear.bias, op->out, 0, w->rows, 1),
                     operand(s, &op->in[1]));
}

static int32_t by_columns(struct share *s, const struct sg_op *op)
{
    const struct sg_weight *w = &op->u.linear.weight;
    struct sg_tensor_part p = {.of = s->g->tensors[w->tensor], .rows_n = 1, .rows = {{w->at, w->rows}}};
    p.cols_n = pieces(s, op->in[0].value, op->in[0].at, op->in[0].width, 1, p.cols);
    int first = s->rank == 0;
    int32_t y = sg_linear(&s->b, operand(s, &op->in[0]), sg_weight_of(&s->b, part_of(s, &p)),
                          first ? same(s, &op->u.linear.bias) : sg_weight_of(&s->b, NULL),
                          first ? operand(s, &op->in[1]) : sg_absent());
    return sg_join(&s->b, sg_whole(&s->b, y), (struct sg_join){.ranks = ranks_of(s), .sum = 1});
}

static int32_t linear(struct share *s, const struct sg_op *op)
{
    if (s->of[op->in[0].value].n) return by_columns(s, op);
    if (s->of[op->out].n) return by_rows(s, op);
    return sg_linear(&s->b, operand(s, &op->in[0]), same(s, &op->u.linear.weight), same(s, &op->u.linear.bias),
                     operand(s, &op->in[1]));
}

static int32_t norm(struct share *s, const struct sg_op *op, uint32_t by)
{
    struct sg_norm p = op->u.norm;
    p.weight = same(s, &p.weight); /* of a group: all have the same */
    p.bias = same(s, &p.bias);
    p.groups /= by;
    return sg_norm(&s->b, operand(s, &op->in[0]), p, operand(s, &op->in[1]));
}

static int32_t attend(struct share *s, const struct sg_op *op, uint32_t by)
{
    struct sg_attend p = op->u.attend;
    p.sinks = by_head(s, &p.sinks, p.heads, by > 1);
    p.heads /= by;
    p.kv_heads /= by;
    return sg_attend(&s->b, operand(s, &op->in[0]), operand(s, &op->in[1]), operand(s, &op->in[2]), p, operand(s, &op->in[3]));
}

static int32_t delta(struct share *s, const struct sg_op *op, uint32_t by)
{
    struct sg_delta p = op->u.delta;
    struct sg_operand in[5];
    for (int k = 0; k < 5; k++) in[k] = operand(s, &op->in[k]);
    p.decay = by_head(s, &p.decay, p.v_heads, by > 1);
    p.dt = by_head(s, &p.dt, p.v_heads, by > 1);
    p.k_heads /= by;
    p.v_heads /= by;
    return sg_delta(&s->b, in, p);
}

static int32_t conv(struct share *s, const struct sg_op *op)
{
    struct sg_conv p = op->u.conv;
    const struct sg_operand *x = &op->in[0];
    p.weight = vector(s, &p.weight, x->value, x->at, x->width, p.taps);
    p.bias = vector(s, &p.bias, x->value, x->at, x->width, 1);
    return sg_conv(&s->b, operand(s, x), p);
}

static int32_t scale(struct share *s, const struct sg_op *op)
{
    const struct sg_weight *w = &op->u.scale.weight;
    const struct sg_tensor *t = w->tensor < 0 ? NULL : s->g->tensors[w->tensor];
    const struct sg_operand *x = &op->in[0];
    int one = t && t->rows == 1 && t->cols == 1;
    return sg_scale(&s->b, operand(s, x), op->u.scale.value, one ? same(s, w) : vector(s, w, x->value, x->at, x->width, 1));
}

static int32_t again(struct share *s, const struct sg_op *op)
{
    struct sg_builder *b = &s->b;
    struct sg_operand x = operand(s, &op->in[0]), y = operand(s, &op->in[1]);
    uint32_t by = s->of[op->out].n ? ranks_of(s) : 1;
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
        p.bias = same(s, &p.bias);
        return sg_route(b, x, p);
    }
    case SG_OP_EXPERTS: {
        struct sg_experts p = op->u.experts;
        p.gate = same(s, &p.gate);
        p.up = same(s, &p.up);
        p.down = same(s, &p.down);
        return sg_experts(b, x, y, p);
    }
    default: return -1;
    }
}

/* --- a graph, all graphs --- */

static void ports(struct share *s)
{
    const struct sg_graph *g = s->g;
    for (uint32_t i = 0; i < g->outputs_n; i++) {
        int32_t v = g->outputs[i].value, own = s->map[v];
        if (s->of[v].n) own = sg_join(&s->b, sg_whole(&s->b, own), (struct sg_join){.ranks = ranks_of(s)});
        sg_output(&s->b, own, "%s", g->outputs[i].name);
    }
}

static segue_status rank_graph(struct share *s, struct sg_graph **out, segue_error *err)
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
        s->map[g->ops[i].out] = again(s, &g->ops[i]);
    }
    b->layer = -1;
    ports(s);
    b->graph->layers = g->layers;
    b->graph->layer_from = g->layer_from;
    b->graph->layer_to = g->layer_to;
    if (s->error.status != SEGUE_OK) b->error = s->error;
    return sg_builder_end(b, out, err);
}

static struct sg_tp_slot whole_run(uint32_t n, int dealt)
{
    return (struct sg_tp_slot){.runs_n = dealt ? 1 : 0, .runs = {n}};
}

static void slot_runs(const struct sg_graph *g, const struct sg_tp_split *of, struct sg_tp_slot *slots)
{
    for (uint32_t i = 0; i < g->ops_n; i++) {
        const struct sg_op *op = &g->ops[i];
        int dealt = of[op->out].n != 0;
        if (op->code == SG_OP_ATTEND)
            slots[op->u.attend.slot_k] = slots[op->u.attend.slot_v] = whole_run(op->u.attend.kv_heads, dealt);
        if (op->code == SG_OP_DELTA) slots[op->u.delta.slot] = whole_run(op->u.delta.v_heads, dealt);
        if (op->code != SG_OP_CONV) continue;
        const struct sg_tp_split *v = &of[op->out];
        slots[op->u.conv.slot].runs_n = v->n;
        for (uint32_t k = 0; k < v->n; k++) slots[op->u.conv.slot].runs[k] = v->from[k + 1] - v->from[k];
    }
}

static segue_status deal_one(struct sg_tp_graphs *all, const struct sg_graph *g, uint32_t index, struct sg_arena *scratch,
                             segue_error *err)
{
    struct sg_tp_split *of = sg_arena_alloc(scratch, g->values_n * sizeof *of);
    int32_t *map = sg_arena_alloc(scratch, g->values_n * sizeof *map);
    all->slots[index] = sg_arena_alloc(&all->arena, (g->slots_n + 1) * sizeof **all->slots);
    if (!of || !map || !all->slots[index]) return sg_no_memory("shares of a graph", g->values_n * sizeof *of, err);
    for (uint32_t i = 0; i < g->ops_n; i++)
        if (g->ops[i].code == SG_OP_JOIN || (g->ops[i].code == SG_OP_ROPE && g->ops[i].u.rope.sign != 1))
            return sg_fail(err, SEGUE_EUNSUPPORTED, "deal graph: op %u %s cannot be dealt; take one unit", i,
                           sg_op_name(g->ops[i].code));
    SG_TRY(sg_tp_split_values(g, all->ranks, of, err));
    slot_runs(g, of, all->slots[index]);
    for (uint32_t r = 0; r < all->ranks; r++) {
        struct share s = {.all = all, .g = g, .of = of, .map = map, .rank = r};
        SG_TRY(rank_graph(&s, &all->graphs[index * all->ranks + r], err));
    }
    return SEGUE_OK;
}

segue_status sg_tp_graphs_new(const struct sg_graph *const *graphs, uint32_t graphs_n, uint32_t ranks, struct sg_tp_graphs **out,
                           segue_error *err)
{
    struct sg_tp_graphs *s = sg_alloc(sizeof *s);
    if (!s) return sg_no_memory("shares", sizeof *s, err);
    s->ranks = ranks;
    s->graphs_n = graphs_n;
    s->graphs = sg_arena_alloc(&s->arena, (size_t)graphs_n * ranks * sizeof *s->graphs);
    s->slots = sg_arena_alloc(&s->arena, graphs_n * sizeof *s->slots);
    segue_status status = s->graphs && s->slots ? SEGUE_OK : sg_no_memory("shares", graphs_n * sizeof *s->graphs, err);
    for (uint32_t i = 0; i < graphs_n && status == SEGUE_OK; i++) {
        struct sg_arena scratch = {0};
        status = deal_one(s, graphs[i], i, &scratch, err);
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
