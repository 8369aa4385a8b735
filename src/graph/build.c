/* build.c: appends operations to a graph. The first failure is kept in the builder and all later
 * calls do nothing, so that model families need no error handling. Each op is validated by
 * graphcheck.c when it is appended.
 * SPDX-License-Identifier: MIT */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "graph/graph.h"

enum { FIRST_CAP = 64 };

/* 1 after the first failure. */
static int failed(const struct sg_builder *b) { return b->error.status != SEGUE_OK; }

/* Make space for one more entry: returns `array`, or a copy with twice the capacity. The old array
 * stays in the arena until the graph is freed. NULL: failed. */
static void *grow(struct sg_builder *b, void *array, uint32_t n, uint32_t *cap, size_t entry)
{
    if (failed(b)) return NULL;
    if (n < *cap) return array;
    uint32_t wider = *cap ? *cap * 2 : FIRST_CAP;
    size_t bytes = wider * entry;
    void *moved = wider > *cap ? sg_arena_alloc(&b->graph->arena, bytes) : NULL;
    if (!moved) {
        sg_no_memory("graph", bytes, &b->error);
        return NULL;
    }
    if (n) memcpy(moved, array, n * entry);
    *cap = wider;
    return moved;
}

/* layer starts as -1: outside of layers. */
segue_status sg_builder_begin(struct sg_builder *b, segue_error *err)
{
    *b = (struct sg_builder){.layer = -1};
    b->graph = sg_alloc(sizeof *b->graph);
    return b->graph ? SEGUE_OK : sg_no_memory("graph", sizeof *b->graph, err);
}

segue_status sg_builder_end(struct sg_builder *b, struct sg_graph **out, segue_error *err)
{
    struct sg_graph *g = b->graph;
    /* The vocabulary size is the width of the logits. */
    int32_t logits = failed(b) ? -1 : sg_graph_output(g, "logits");
    if (logits >= 0) g->vocab = g->values[g->outputs[logits].value].width;
    segue_status status = failed(b) ? b->error.status : sg_graph_check(g, &b->error);
    b->graph = NULL;
    if (status != SEGUE_OK) {
        sg_graph_free(g);
        return sg_fail(err, status, "%s", b->error.text);
    }
    *out = g;
    return SEGUE_OK;
}

/* --- values, inputs, outputs, weights, tables --- */

/* Append a value that op `op` computes (-1: an input); returns its index. */
static int32_t value_new(struct sg_builder *b, enum sg_value_kind kind, uint32_t width, uint32_t wanted,
                         int32_t op)
{
    struct sg_graph *g = b->graph;
    struct sg_value *values = grow(b, g->values, g->values_n, &b->values_cap, sizeof *values);
    if (!values) return -1;
    g->values = values;
    g->values[g->values_n] = (struct sg_value){.kind = kind, .width = width, .wanted = wanted, .op = op};
    return (int32_t)g->values_n++;
}

/* A graph has one or two inputs, so the array grows by one entry at a time. */
static int32_t input_new(struct sg_builder *b, const char *name, enum sg_value_kind kind, uint32_t width)
{
    struct sg_graph *g = b->graph;
    int32_t value = value_new(b, kind, width, 0, -1);
    struct sg_port *wider = value < 0 ? NULL : sg_arena_alloc(&g->arena, (g->inputs_n + 1) * sizeof *wider);
    if (!wider) {
        if (!failed(b)) sg_no_memory("graph inputs", sizeof *wider, &b->error);
        return -1;
    }
    if (g->inputs_n) memcpy(wider, g->inputs, g->inputs_n * sizeof *wider);
    wider[g->inputs_n++] = (struct sg_port){.name = name, .value = value};
    g->inputs = wider;
    return value;
}

int32_t sg_input_tokens(struct sg_builder *b)
{
    return failed(b) ? -1 : input_new(b, "tokens", SG_VALUE_TOKENS, 1);
}

int32_t sg_input_rows(struct sg_builder *b, uint32_t width)
{
    return failed(b) ? -1 : input_new(b, "rows", SG_VALUE_ROWS, width);
}

/* The value is checked here because sg_graph_check would only report its index. */
void sg_output(struct sg_builder *b, int32_t value, const char *format, ...)
{
    char name[64];
    va_list args;
    struct sg_graph *g = b->graph;
    struct sg_port *outputs =
        failed(b) ? NULL : grow(b, g->outputs, g->outputs_n, &b->ports_cap, sizeof *outputs);
    if (!outputs) return;
    g->outputs = outputs;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    /* Names are copied, so that callers may format them in temporary buffers. */
    char *copy = sg_arena_strndup(&g->arena, name, strlen(name));
    if (!copy) {
        sg_no_memory("graph output", sizeof name, &b->error);
        return;
    }
    if (value < 0 || (uint32_t)value >= g->values_n) {
        sg_fail(&b->error, SEGUE_EINTERNAL, "build graph: output %s: value %d is not defined", name, value);
        return;
    }
    g->outputs[g->outputs_n++] = (struct sg_port){.name = copy, .value = value};
}

/* An absent weight. 0 would be the index of the first tensor. */
static const struct sg_weight no_weight = {.tensor = -1};

/* Adds the tensor to the graph's list if it is not in it. */
struct sg_weight sg_weight_rows(struct sg_builder *b, const struct sg_tensor *t, uint32_t at, uint32_t rows)
{
    struct sg_graph *g = b->graph;
    uint32_t i = 0;
    if (!t || failed(b)) return no_weight;
    /* A tensor used by several ops (tied embedding and head) gets one entry, so that a unit loads
     * it once. */
    while (i < g->tensors_n && g->tensors[i] != t) i++;
    if (i == g->tensors_n) {
        const struct sg_tensor **wider = grow(b, g->tensors, g->tensors_n, &b->tensors_cap, sizeof *wider);
        if (!wider) return no_weight;
        g->tensors = wider;
        g->tensors[g->tensors_n++] = t;
    }
    return (struct sg_weight){.tensor = (int32_t)i, .at = at, .rows = rows};
}

struct sg_weight sg_weight_of(struct sg_builder *b, const struct sg_tensor *t)
{
    if (t && t->rows > UINT32_MAX && !failed(b))
        sg_fail(&b->error, SEGUE_EFORMAT, "build graph: %s: %llu rows are too many; the file is damaged",
                t->name, (unsigned long long)t->rows);
    return sg_weight_rows(b, t, 0, t ? (uint32_t)t->rows : 0);
}

struct sg_operand sg_absent(void) { return (struct sg_operand){.value = -1}; }

struct sg_operand sg_columns(const struct sg_builder *b, int32_t value, uint32_t at, uint32_t width)
{
    if (failed(b) || value < 0) return sg_absent();
    return (struct sg_operand){.value = value, .at = at, .width = width};
}

struct sg_operand sg_whole(const struct sg_builder *b, int32_t value)
{
    if (failed(b) || value < 0 || (uint32_t)value >= b->graph->values_n) return sg_absent();
    return sg_columns(b, value, 0, b->graph->values[value].width);
}

int32_t sg_rope_table_add(struct sg_builder *b, uint32_t pairs, const float *inverse, float mscale)
{
    struct sg_graph *g = b->graph;
    if (failed(b)) return -1;
    struct sg_rope_table *ropes = grow(b, g->ropes, g->ropes_n, &b->ropes_cap, sizeof *ropes);
    if (!ropes) return -1;
    g->ropes = ropes;
    float *copy = sg_arena_alloc(&g->arena, (size_t)pairs * sizeof *copy);
    if (!copy) {
        sg_no_memory("rotary table", (size_t)pairs * sizeof *copy, &b->error);
        return -1;
    }
    if (pairs) memcpy(copy, inverse, pairs * sizeof *copy);
    g->ropes[g->ropes_n] = (struct sg_rope_table){.pairs = pairs, .inverse = copy, .mscale = mscale};
    return (int32_t)g->ropes_n++;
}

/* --- operations --- */

/* Append a slot of the current layer. Slots have the order of the ops that use them, in which state
 * transfers send them. */
static int32_t slot_new(struct sg_builder *b, struct sg_slot slot)
{
    struct sg_graph *g = b->graph;
    struct sg_slot *slots = grow(b, g->slots, g->slots_n, &b->slots_cap, sizeof *slots);
    if (!slots) return -1;
    g->slots = slots;
    if (b->layer < 0) {
        sg_fail(&b->error, SEGUE_EINTERNAL, "build graph: op %u: state outside a layer", g->ops_n);
        return -1;
    }
    slot.layer = (uint32_t)b->layer;
    g->slots[g->slots_n] = slot;
    return (int32_t)g->slots_n++;
}

/* An op with the first input x and the other inputs absent. */
static struct sg_op op_of(enum sg_op_code code, struct sg_operand x)
{
    struct sg_op op = {.code = code, .layer = -1, .in = {x}};
    for (int i = 1; i < SG_OP_INPUTS; i++) op.in[i].value = -1;
    return op;
}

/* Append op with a result of width64 columns and validate it. The width is 64 bits wide because it
 * may be a product of two 32-bit numbers; too large ones are refused. The result has R rows if the
 * op is `rows` or its first operand has R rows. */
static int32_t append(struct sg_builder *b, struct sg_op op, uint64_t width64)
{
    struct sg_graph *g = b->graph;
    if (failed(b)) return -1;
    struct sg_op *ops = grow(b, g->ops, g->ops_n, &b->ops_cap, sizeof *ops);
    if (!ops) return -1;
    g->ops = ops;
    int32_t x = op.in[0].value;
    int known = x >= 0 && (uint32_t)x < g->values_n;
    uint32_t wanted = op.code == SG_OP_ROWS || (known && g->values[x].wanted);
    if (width64 > INT32_MAX) {
        sg_fail(&b->error, SEGUE_EFORMAT, "build graph: op %u %s (layer %d): %llu columns are too many",
                g->ops_n, sg_op_name(op.code), b->layer, (unsigned long long)width64);
        return -1;
    }
    op.layer = b->layer;
    op.out = value_new(b, SG_VALUE_ROWS, (uint32_t)width64, wanted, (int32_t)g->ops_n);
    if (op.out < 0) return -1;
    g->ops[g->ops_n++] = op;
    /* Checked now, so that the error names the first op that is wrong. */
    if (sg_op_check(g, g->ops_n - 1, &b->error) != SEGUE_OK) return -1;
    return op.out;
}

int32_t sg_embed(struct sg_builder *b, int32_t tokens, const struct sg_tensor *table,
                 const struct sg_tensor *positions, float scale)
{
    struct sg_op op = op_of(SG_OP_EMBED, sg_whole(b, tokens));
    op.u.embed.table = sg_weight_of(b, table);
    op.u.embed.positions = sg_weight_of(b, positions);
    op.u.embed.scale = scale;
    return append(b, op, table ? table->cols : 0);
}

int32_t sg_norm(struct sg_builder *b, struct sg_operand x, struct sg_norm p, struct sg_operand gate)
{
    struct sg_op op = op_of(SG_OP_NORM, x);
    op.in[1] = gate;
    op.u.norm = p;
    /* 0 stands for one group: the whole row. */
    if (!p.groups) op.u.norm.groups = 1;
    return append(b, op, x.width);
}

/* The width of the result is the number of weight rows. */
int32_t sg_linear(struct sg_builder *b, struct sg_operand x, struct sg_weight w, struct sg_weight bias,
                  struct sg_operand residual)
{
    struct sg_op op = op_of(SG_OP_LINEAR, x);
    op.in[1] = residual;
    op.u.linear = (struct sg_linear){.weight = w, .bias = bias};
    return append(b, op, w.rows);
}

/* Forward rotation; head_width 0 (no heads) is refused by the check. */
int32_t sg_rope(struct sg_builder *b, struct sg_operand x, uint32_t heads, int32_t table)
{
    struct sg_op op = op_of(SG_OP_ROPE, x);
    op.u.rope = (struct sg_rope){
        .heads = heads, .head_width = heads ? x.width / heads : 0, .table = table, .sign = 1};
    return append(b, op, x.width);
}

/* Slots are added before the op is validated, because the check compares them with the op's
 * parameters. */
int32_t sg_attend(struct sg_builder *b, struct sg_operand q, struct sg_operand k, struct sg_operand v,
                  struct sg_attend p, struct sg_operand gate)
{
    struct sg_op op = op_of(SG_OP_ATTEND, q);
    op.in[1] = k;
    op.in[2] = v;
    op.in[3] = gate;
    if (failed(b)) return -1;
    /* Both slots have the window of the op, so that units can free positions that are no longer
     * attended. */
    p.slot_k = slot_new(
        b, (struct sg_slot){.kind = SG_SLOT_K, .heads = p.kv_heads, .width = p.d, .window = p.window});
    p.slot_v = slot_new(
        b, (struct sg_slot){.kind = SG_SLOT_V, .heads = p.kv_heads, .width = p.dv, .window = p.window});
    op.u.attend = p;
    return append(b, op, (uint64_t)p.heads * p.dv);
}

/* The state holds the taps - 1 previous inputs. taps == 0 is refused by the check. */
int32_t sg_conv(struct sg_builder *b, struct sg_operand x, struct sg_conv p)
{
    struct sg_op op = op_of(SG_OP_CONV, x);
    if (failed(b)) return -1;
    p.slot = slot_new(
        b, (struct sg_slot){.kind = SG_SLOT_CONV, .heads = p.taps ? p.taps - 1 : 0, .width = x.width});
    op.u.conv = p;
    return append(b, op, x.width);
}

/* qkvab: q, k, v, a, b in the order of op.h. */
int32_t sg_delta(struct sg_builder *b, const struct sg_operand qkvab[5], struct sg_delta p)
{
    struct sg_op op = op_of(SG_OP_DELTA, qkvab[0]);
    for (int i = 1; i < 5; i++) op.in[i] = qkvab[i];
    if (failed(b)) return -1;
    p.slot = slot_new(
        b, (struct sg_slot){.kind = SG_SLOT_DELTA, .heads = p.v_heads, .depth = p.dk, .width = p.dv});
    op.u.delta = p;
    return append(b, op, (uint64_t)p.v_heads * p.dv);
}

int32_t sg_glu(struct sg_builder *b, struct sg_operand gate, struct sg_operand up, enum sg_act act)
{
    struct sg_op op = op_of(SG_OP_GLU, gate);
    op.in[1] = up;
    op.u.glu.act = act;
    return append(b, op, gate.width);
}

int32_t sg_activate(struct sg_builder *b, struct sg_operand x, enum sg_act act)
{
    struct sg_op op = op_of(SG_OP_ACT, x);
    op.u.act.act = act;
    return append(b, op, x.width);
}

int32_t sg_add(struct sg_builder *b, struct sg_operand x, struct sg_operand y)
{
    struct sg_op op = op_of(SG_OP_ADD, x);
    op.in[1] = y;
    return append(b, op, x.width);
}

int32_t sg_scale(struct sg_builder *b, struct sg_operand x, float value, struct sg_weight w)
{
    struct sg_op op = op_of(SG_OP_SCALE, x);
    op.u.scale = (struct sg_scale){.value = value, .weight = w};
    return append(b, op, x.width);
}

/* The result holds k indices and k weights. */
int32_t sg_route(struct sg_builder *b, struct sg_operand logits, struct sg_route p)
{
    struct sg_op op = op_of(SG_OP_ROUTE, logits);
    op.u.route = p;
    return append(b, op, 2 * (uint64_t)p.k);
}

/* down stacks the experts' matrices: the width of the result is its rows divided by the number of
 * experts. */
int32_t sg_experts(struct sg_builder *b, struct sg_operand x, struct sg_operand routing, struct sg_experts p)
{
    struct sg_op op = op_of(SG_OP_EXPERTS, x);
    op.in[1] = routing;
    op.u.experts = p;
    return append(b, op, p.experts ? p.down.rows / p.experts : 0);
}

int32_t sg_rows(struct sg_builder *b, struct sg_operand x)
{
    return append(b, op_of(SG_OP_ROWS, x), x.width);
}

/* A sum keeps the width; a concatenation multiplies it by the number of ranks. */
int32_t sg_join(struct sg_builder *b, struct sg_operand x, struct sg_join p)
{
    struct sg_op op = op_of(SG_OP_JOIN, x);
    op.u.join = p;
    return append(b, op, p.sum ? x.width : (uint64_t)x.width * p.ranks);
}
