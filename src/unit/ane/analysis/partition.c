/* partition.c: see partition.h.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/analysis/partition.h"

#include <string.h>

#include "unit/ane/analysis/kv_ring.h"

enum { HEAD_MAX = 16384 }; /* maximum outputs of a product (constraints 27 and 37) */

const char *sg_ane_helper_reason(const struct sg_graph *g, const struct sg_op *op)
{
    if (op->code == SG_OP_EMBED) return "rows are selected by token at run time, and engines cannot gather (constraint 10)";
    if (op->code == SG_OP_JOIN) return "it combines results of other ranks, which a program cannot reach";
    if (op->code == SG_OP_ROWS) return "rows are selected by the batch at run time (constraint 10)";
    if (!g->values[op->out].wanted) return NULL;
    if (op->code == SG_OP_LINEAR && op->u.linear.weight.rows > HEAD_MAX)
        return "more than 16384 outputs (constraint 37), and logits need fp32";
    return "the final norm and the logits need fp32";
}

static uint32_t padded(uint64_t n) { return (uint32_t)((n + SG_ANE_PAD - 1) / SG_ANE_PAD * SG_ANE_PAD); }

uint32_t sg_ane_port_channels(const struct sg_graph *g, const int32_t *values, uint32_t n)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += g->values[values[i]].width;
    return padded(sum);
}

uint64_t sg_ane_slot_channels(const struct sg_slot *s, uint32_t keys)
{
    uint64_t numbers = sg_slot_fixed_bytes(s) / sizeof(float);
    if (s->kind == SG_SLOT_K || s->kind == SG_SLOT_V)
        numbers = (uint64_t)s->heads * s->width * sg_ane_ring_columns(s->window, keys);
    return (numbers + keys - 1) / keys;
}

uint64_t sg_ane_state_channels(const struct sg_graph *g, const struct sg_ane_part *p, uint32_t keys)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < p->slots_n; i++) sum += sg_ane_slot_channels(&g->slots[p->slots[i]], keys);
    return (sum + SG_ANE_PAD - 1) / SG_ANE_PAD * SG_ANE_PAD;
}

/* State slots of an operation; returns their count. */
static int slots_of(const struct sg_op *op, int32_t slots[2])
{
    if (op->code == SG_OP_ATTEND) {
        slots[0] = op->u.attend.slot_k;
        slots[1] = op->u.attend.slot_v;
        return 2;
    }
    if (op->code != SG_OP_CONV && op->code != SG_OP_DELTA) return 0;
    slots[0] = op->code == SG_OP_CONV ? op->u.conv.slot : op->u.delta.slot;
    return 1;
}

/* Bytes of the state slots of an operation. */
static uint64_t op_state(const struct sg_graph *g, const struct sg_op *op, uint32_t keys)
{
    int32_t slots[2];
    uint64_t channels = 0;
    for (int k = slots_of(op, slots); k--;) channels += sg_ane_slot_channels(&g->slots[slots[k]], keys);
    return channels * keys * sizeof(uint16_t);
}

/* Bytes of the port `info`: scatter and mask of one kind of attention; the rotary angles are few and not
 * counted. */
static uint64_t info_bytes(uint32_t rows, uint32_t keys) { return 2ull * keys * rows * sizeof(uint16_t); }

/* Bytes of the operands and the result of an operation; for attention also the scores before and after
 * softmax. */
static uint64_t op_bytes(const struct sg_graph *g, const struct sg_op *op, uint32_t rows, uint32_t keys)
{
    uint64_t width = g->values[op->out].width;
    for (int k = 0; k < SG_OP_INPUTS; k++) width += op->in[k].value < 0 ? 0 : op->in[k].width;
    if (op->code == SG_OP_ATTEND) width += 2ull * op->u.attend.heads * keys;
    return width * rows * sizeof(uint16_t);
}

/* The state counts twice: as input and as result. */
uint64_t sg_ane_part_bytes(const struct sg_graph *g, const struct sg_ane_part *p, uint32_t rows, uint32_t keys)
{
    uint64_t max = 0,
             ports = (uint64_t)sg_ane_port_channels(g, p->in, p->in_n) + sg_ane_port_channels(g, p->out, p->out_n);
    for (uint32_t i = 0; i < p->ops_n; i++) {
        uint64_t bytes = op_bytes(g, &g->ops[p->ops[i]], rows, keys);
        if (bytes > max) max = bytes;
    }
    return ports * rows * sizeof(uint16_t) + info_bytes(rows, keys) +
           2 * sg_ane_state_channels(g, p, keys) * keys * sizeof(uint16_t) + max;
}

/* State of sg_ane_partition_make. */
struct partitioner {
    struct sg_ane_partition *out;
    const struct sg_graph *g;
    uint32_t *last;   /* [values_n] last operation that reads the value; UINT32_MAX: read after all parts */
    uint32_t *part;   /* [ops_n] part of the operation; UINT32_MAX: the helper */
    uint8_t *defined; /* [values_n] 1: computed before the current part */
};

/* Fills last[]. A value that an operation of the helper reads must survive all parts; the embedding is an
 * exception, because it runs before them. */
static void find_last(struct partitioner *m, int keep_outputs)
{
    const struct sg_graph *g = m->g;
    for (uint32_t i = 0; i < g->ops_n; i++)
        for (int k = 0; k < SG_OP_INPUTS; k++) {
            int32_t v = g->ops[i].in[k].value;
            if (v >= 0 && m->last[v] != UINT32_MAX)
                m->last[v] = m->part[i] == UINT32_MAX && g->ops[i].code != SG_OP_EMBED ? UINT32_MAX : i;
        }
    for (uint32_t i = 0; keep_outputs && i < g->outputs_n; i++) m->last[g->outputs[i].value] = UINT32_MAX;
}

/* Index of an operation's layer within the graph, which may begin at a later layer of the model. Operations
 * without a layer count as 0. */
static uint32_t layer_of(const struct sg_graph *g, const struct sg_op *op)
{
    return op->layer < (int32_t)g->layer_from ? 0 : (uint32_t)op->layer - g->layer_from;
}

/* Fills part[]. part_of: [layers] the part of each layer, or NULL: `layers` layers per part. The part never
 * decreases, so an operation without a layer joins the part of the operation before it. */
static void number_parts(struct partitioner *m, uint32_t layers, const uint32_t *part_of)
{
    const struct sg_graph *g = m->g;
    uint32_t current = 0;
    int any = 0;
    for (uint32_t i = 0; i < g->ops_n; i++) {
        m->part[i] = UINT32_MAX;
        if (sg_ane_helper_reason(g, &g->ops[i])) continue;
        uint32_t layer = layer_of(g, &g->ops[i]), to = part_of ? part_of[layer] : layer / layers;
        if (to > current) current = to;
        m->part[i] = current;
        any = 1;
    }
    m->out->parts_n = any ? current + 1 : 0;
}

/* Applies the default rule: adds layers to the current part while its working set stays within the limit.
 * part_of: [layers] result. state_bytes, max: [layers] zeroed scratch for the state of a layer and its
 * widest operation. */
static void group_layers(const struct sg_graph *g, uint32_t *part_of, uint64_t *state_bytes, uint64_t *max)
{
    uint64_t state = 0, widest = 0, width = 0;
    uint32_t part = 0, from = 0;
    for (uint32_t i = 0; i < g->ops_n; i++) {
        if (sg_ane_helper_reason(g, &g->ops[i])) continue;
        uint64_t bytes = op_bytes(g, &g->ops[i], SG_ANE_PART_ROWS, SG_ANE_PART_KEYS);
        uint32_t layer = layer_of(g, &g->ops[i]);
        if (bytes > max[layer]) max[layer] = bytes;
        state_bytes[layer] += op_state(g, &g->ops[i], SG_ANE_PART_KEYS);
        const uint32_t in = g->ops[i].in[0].width; /* the input of a norm is the stream between parts */
        if (g->ops[i].code == SG_OP_NORM && in > width) width = in;
    }
    uint64_t fixed = 2 * sizeof(uint16_t) * width * SG_ANE_PART_ROWS + info_bytes(SG_ANE_PART_ROWS, SG_ANE_PART_KEYS);
    for (uint32_t layer = 0; layer < g->layers; layer++) {
        if (max[layer] > widest) widest = max[layer];
        if (layer > from && (layer - from == SG_ANE_PART_LAYERS_MAX ||
                             fixed + 2 * (state + state_bytes[layer]) + widest > SG_ANE_PART_BYTES_MAX)) {
            part++;
            from = layer;
            state = 0;
            widest = max[layer];
        }
        state += state_bytes[layer];
        part_of[layer] = part;
    }
}

static segue_status no_memory(segue_error *err) { return sg_no_memory("partition of a graph", 0, err); }

/* Fills part `at`: its operations and slots, the values that it reads or passes on, and those that later
 * parts or the helper read. A value needed only by a later part passes through every part between, because
 * parts are chained by one port. */
static segue_status fill_part(struct partitioner *m, uint32_t at, segue_error *err)
{
    const struct sg_graph *g = m->g;
    struct sg_ane_part *p = &m->out->parts[at];
    struct sg_arena *a = &m->out->arena;
    int32_t slots[2];
    p->ops = sg_arena_alloc(a, g->ops_n * sizeof *p->ops);
    p->in = sg_arena_alloc(a, g->values_n * sizeof *p->in);
    p->out = sg_arena_alloc(a, g->values_n * sizeof *p->out);
    p->slots = sg_arena_alloc(a, (g->slots_n + 1) * sizeof *p->slots);
    if (!p->ops || !p->in || !p->out || !p->slots) return no_memory(err);
    for (uint32_t i = 0; i < g->ops_n; i++) {
        if (m->part[i] != at) continue;
        uint32_t layer = g->ops[i].layer < 0 ? 0 : (uint32_t)g->ops[i].layer;
        if (!p->ops_n) p->layer_from = layer;
        p->layer_to = layer + 1;
        p->ops[p->ops_n++] = i;
        for (int k = slots_of(&g->ops[i], slots); k--;)
            if (sg_ane_slot_channels(&g->slots[slots[k]], 1)) p->slots[p->slots_n++] = (uint32_t)slots[k];
    }
    uint32_t end = p->ops_n ? p->ops[p->ops_n - 1] : 0, begin = p->ops_n ? p->ops[0] : 0;
    for (uint32_t v = 0; v < g->values_n; v++) {
        int needed = m->last[v] == UINT32_MAX || m->last[v] >= begin;
        if (m->defined[v] && needed) p->in[p->in_n++] = (int32_t)v;
    }
    for (uint32_t i = 0; i < p->ops_n; i++) m->defined[g->ops[p->ops[i]].out] = 1;
    for (uint32_t v = 0; v < g->values_n; v++)
        if (m->defined[v] && (m->last[v] == UINT32_MAX || m->last[v] > end)) p->out[p->out_n++] = (int32_t)v;
    return SEGUE_OK;
}

/* find_last needs the numbers of the parts, and fill_part needs the values that the inputs of the graph and
 * the embedding define. */
static segue_status build_parts(struct partitioner *m, uint32_t layers, int keep_outputs, segue_error *err)
{
    struct sg_ane_partition *c = m->out;
    const struct sg_graph *g = m->g;
    struct sg_arena *a = &c->arena;
    m->last = sg_arena_alloc(a, g->values_n * sizeof *m->last);
    m->part = sg_arena_alloc(a, (g->ops_n + 1) * sizeof *m->part);
    m->defined = sg_arena_alloc(a, g->values_n + 1);
    c->before = sg_arena_alloc(a, (g->ops_n + 1) * sizeof *c->before);
    c->behind = sg_arena_alloc(a, (g->ops_n + 1) * sizeof *c->behind);
    if (!m->last || !m->part || !m->defined || !c->before || !c->behind) return no_memory(err);
    uint32_t *part_of = sg_arena_alloc(a, ((size_t)g->layers + 1) * sizeof *part_of);
    uint64_t *state_bytes = sg_arena_alloc(a, ((size_t)g->layers + 1) * sizeof *state_bytes),
             *max = sg_arena_alloc(a, ((size_t)g->layers + 1) * sizeof *max);
    if (!part_of || !state_bytes || !max) return no_memory(err);
    group_layers(g, part_of, state_bytes, max);
    number_parts(m, layers, layers ? NULL : part_of);
    find_last(m, keep_outputs);
    c->parts = sg_arena_alloc(a, (c->parts_n + 1) * sizeof *c->parts);
    if (!c->parts) return no_memory(err);
    for (uint32_t i = 0; i < g->inputs_n; i++)
        m->defined[g->inputs[i].value] = g->values[g->inputs[i].value].kind == SG_VALUE_ROWS;
    for (uint32_t i = 0; i < g->ops_n; i++) {
        if (m->part[i] != UINT32_MAX) continue;
        if (g->ops[i].code == SG_OP_EMBED) {
            c->before[c->before_n++] = i;
            m->defined[g->ops[i].out] = 1;
        } else {
            c->behind[c->behind_n++] = i;
        }
    }
    for (uint32_t i = 0; i < c->parts_n; i++) SG_TRY(fill_part(m, i, err));
    return SEGUE_OK;
}

segue_status sg_ane_partition_make(struct sg_ane_partition *out, const struct sg_graph *g, uint32_t layers, int keep_outputs,
                                   segue_error *err)
{
    *out = (struct sg_ane_partition){0};
    struct partitioner m = {.out = out, .g = g};
    segue_status status = build_parts(&m, layers, keep_outputs, err);
    if (status != SEGUE_OK) sg_ane_partition_free(out);
    return status;
}

void sg_ane_partition_free(struct sg_ane_partition *c)
{
    sg_arena_free(&c->arena);
    *c = (struct sg_ane_partition){0};
}

void sg_ane_partition_set_range(struct sg_ane_partition *c, const struct sg_ane_range *range)
{
    for (uint32_t i = 0; i < c->parts_n; i++) c->parts[i].range = range;
}

void sg_ane_partition_set_fault(struct sg_ane_partition *c, uint32_t op)
{
    for (uint32_t i = 0; i < c->parts_n; i++)
        for (uint32_t k = 0; k < c->parts[i].ops_n; k++)
            if (c->parts[i].ops[k] == op) c->parts[i].fault = 1 + op;
}
