/* match.c: compiles the list of ops into stages, each one parallel region. Ops that are fused into one
 * stage:
 *   norm, linear x k over the same input; linear, linear, glu; linear, act      -> matrix stage
 *   norm (heads), rope, append of attention                                    -> keys stage
 * Then every value that is still stored gets columns in an activation area, which are reused after its
 * last reader. No op is rejected here; sg_cpu_can has done that.
 * SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <string.h>

#include "unit/cpu/cpu_types.h"

/* Stage number of values that are never written, or outlive the pass. */
static const uint32_t NEVER = UINT32_MAX;

/* State of one compilation. */
struct fusion_match {
    struct sg_cpu_program *p;
    const struct sg_graph *g;
    uint32_t *uses;                  /* [values] number of operands and outputs that read it */
    uint32_t *first_stage, *last_stage;           /* [value_locs] stages of the first write and of the last use */
    uint8_t *done;                   /* [ops] 1: covered by a stage, 2: deferred to its reader */
    uint32_t cap, value_locs_n;
    int failed;                      /* out of memory */
};

/* 1: the operand reads all columns of its value. */
static int is_whole(const struct sg_graph *g, const struct sg_operand *x)
{
    return x->value >= 0 && x->at == 0 && x->width == g->values[x->value].width;
}

/* Records that the newest stage uses a value; note_write also records its first write. */
static void note_read(struct fusion_match *m, const struct sg_operand *x)
{
    if (x->value >= 0) m->last_stage[x->value] = m->p->stages_n - 1;
}

static void note_write(struct fusion_match *m, int32_t value)
{
    m->first_stage[value] = m->p->stages_n - 1;
    if (m->last_stage[value] < m->first_stage[value]) m->last_stage[value] = m->first_stage[value];
}

/* Appends a stage; `wanted` follows from the rows of the op's result. */
static struct sg_cpu_stage *stage_add(struct fusion_match *m, enum sg_cpu_stage_kind kind, const struct sg_op *op)
{
    struct sg_cpu_stage *st = &m->p->stages[m->p->stages_n++]; /* capacity: three per op and two more */
    st->kind = kind;
    st->op = op;
    st->q_out = st->expert_hidden = -1;
    st->wanted = op && m->g->values[op->out].wanted;
    return st;
}

/* A small weight as fp32; NULL: absent or, with m->failed, out of memory. */
static const float *request_vector(struct fusion_match *m, const struct sg_weight *w)
{
    if (w->tensor < 0) return NULL;
    const float *v = sg_pack_vector(m->p->set, m->g->tensors[w->tensor]);
    if (!v) m->failed = 1;
    return v;
}

/* Registers a weight for packing and counts its bytes as read per token. */
static struct sg_packed_weight *request_weight(struct fusion_match *m, const struct sg_weight *w, uint32_t at, uint32_t rows)
{
    struct sg_packed_weight *p = sg_pack_request(m->p->set, m->g->tensors[w->tensor], w->at + at, rows);
    if (!p) m->failed = 1;
    else m->p->read_per_token += p->groups * p->group_bytes;
    return p;
}

static struct sg_cpu_norm norm_of(struct fusion_match *m, const struct sg_op *op)
{
    struct sg_cpu_norm n = {.op = op};
    n.weight = request_vector(m, &op->u.norm.weight);
    n.bias = request_vector(m, &op->u.norm.bias);
    return n;
}

/* The op that defines the operand, if it has this code, was deferred, and is read completely here; else
 * NULL. */
static const struct sg_op *deferred(const struct fusion_match *m, const struct sg_operand *x, enum sg_op_code code)
{
    if (!is_whole(m->g, x) || m->g->values[x->value].op < 0) return NULL;
    const struct sg_op *op = &m->g->ops[m->g->values[x->value].op];
    return op->code == code && m->done[op - m->g->ops] == 2 ? op : NULL;
}

/* 1: both read the same columns of the same value. */
static int same_operand(const struct sg_operand *a, const struct sg_operand *b)
{
    return a->value == b->value && a->at == b->at && a->width == b->width;
}

/* Whether op j can be part of the matrix stage that starts at op i: a linear over the same input, whose
 * residual is computed before that stage. */
static int can_fuse(const struct fusion_match *m, uint32_t i, uint32_t j)
{
    const struct sg_op *a = &m->g->ops[i], *b = &m->g->ops[j];
    if (b->code != SG_OP_LINEAR || m->done[j] || !same_operand(&a->in[0], &b->in[0])) return 0;
    return b->in[1].value < 0 || m->g->values[b->in[1].value].op < (int32_t)i;
}

/* Index of the only op that reads a value, if it reads it completely and once; else -1. */
static int32_t only_reader(const struct fusion_match *m, int32_t value)
{
    if (m->uses[value] != 1) return -1;
    for (uint32_t i = 0; i < m->g->ops_n; i++)
        for (int k = 0; k < SG_OP_INPUTS; k++)
            if (m->g->ops[i].in[k].value == value) return is_whole(m->g, &m->g->ops[i].in[k]) ? (int32_t)i : -1;
    return -1;
}

/* Adds op i as a linear of the stage. */
static struct sg_cpu_linear *linear_add(struct fusion_match *m, struct sg_cpu_stage *st, uint32_t i)
{
    const struct sg_op *op = &m->g->ops[i];
    struct sg_cpu_linear *lin = &st->linears[st->linears_n++];
    m->done[i] = 1;
    lin->op = op;
    lin->w = request_weight(m, &op->u.linear.weight, 0, op->u.linear.weight.rows);
    lin->bias = request_vector(m, &op->u.linear.bias);
    lin->residual = op->in[1];
    lin->out = op->out;
    lin->act = SG_ACT_NONE;
    return lin;
}

/* Extends a linear by what follows it. A gate whose `up` has the same input: takes both and the glu. A
 * linear with an activation as its only reader: takes the activation. */
static void linear_fuse(struct fusion_match *m, struct sg_cpu_linear *lin, uint32_t i)
{
    int32_t r = lin->residual.value < 0 ? only_reader(m, lin->out) : -1;
    if (r < 0 || m->done[r]) return;
    const struct sg_op *reader = &m->g->ops[r];
    if (reader->code == SG_OP_ACT) {
        lin->act = reader->u.act.act;
    } else if (reader->code == SG_OP_GLU && reader->in[0].value == lin->out && is_whole(m->g, &reader->in[1])) {
        int32_t u = m->g->values[reader->in[1].value].op;
        if (u < 0 || !can_fuse(m, i, (uint32_t)u) || m->g->ops[u].in[1].value >= 0) return;
        /* `up` must have no other reader */
        if (only_reader(m, m->g->ops[u].out) != r) return;
        const struct sg_op *up = &m->g->ops[u];
        m->done[u] = 1;
        lin->op_up = up;
        lin->up = request_weight(m, &up->u.linear.weight, 0, up->u.linear.weight.rows);
        lin->bias_up = request_vector(m, &up->u.linear.bias);
        lin->act = reader->u.glu.act;
    } else {
        return;
    }
    m->done[r] = 1;
    lin->out = reader->out;
}

/* 1: op i is the activated input of a glu. */
static int is_gate(const struct fusion_match *m, uint32_t i)
{
    int32_t r = only_reader(m, m->g->ops[i].out);
    return r >= 0 && m->g->ops[r].code == SG_OP_GLU && m->g->ops[r].in[0].value == m->g->ops[i].out;
}

/* Collects all linears of the stage that starts at op i, and assigns their columns in the adapter area. */
static void linears_fill(struct fusion_match *m, struct sg_cpu_stage *st, uint32_t i)
{
    uint32_t n = 0, columns = 0;
    for (uint32_t j = i; j < m->g->ops_n; j++) n += (uint32_t)can_fuse(m, i, j);
    st->linears = sg_arena_alloc(&m->p->arena, n * sizeof *st->linears);
    if (!st->linears) {
        m->failed = 1;
        return;
    }
    for (uint32_t j = i, gates = 1; j < m->g->ops_n || gates; j++) {
        if (j == m->g->ops_n) {              /* gates first, so that each finds its `up` still free */
            gates = 0;
            j = i;
        }
        if (!can_fuse(m, i, j) || (gates && !is_gate(m, j))) continue;
        struct sg_cpu_linear *lin = linear_add(m, st, j);
        linear_fuse(m, lin, j);
        /* the head: without fine activations the divergence of logits is a third larger */
        lin->fine = st->wanted && lin->op->layer < 0;
        /* columns of the adapter area, padded to whole vectors */
        lin->lora = columns;
        columns += (lin->op->u.linear.weight.rows + 15) / 16 * 16;
        lin->lora_up = columns;
        if (lin->op_up) columns += (lin->op_up->u.linear.weight.rows + 15) / 16 * 16;
    }
    if (columns > m->p->lora_columns) m->p->lora_columns = columns;
}

/* Adds the three stages of a matrix product: adapters, preparation of activations, products. All share
 * one description. */
static void matrix_stage(struct fusion_match *m, uint32_t i)
{
    const struct sg_op *op = &m->g->ops[i], *norm = deferred(m, &op->in[0], SG_OP_NORM);
    struct sg_cpu_stage full = {.op = op, .q_out = -1, .expert_hidden = -1, .wanted = (int)m->g->values[op->out].wanted};
    full.x = norm ? norm->in[0] : op->in[0];
    full.k = op->in[0].width;
    if (norm) full.norm = norm_of(m, norm);
    linears_fill(m, &full, i);
    if (m->failed) return;
    size_t bytes = sg_matrix_x_bytes(m->p, &full);
    if (bytes > m->p->x_row_bytes) m->p->x_row_bytes = bytes;
    static const enum sg_cpu_stage_kind kinds[3] = {SG_ST_LORA, SG_ST_PREP, SG_ST_MM};
    for (int n = 0; n < 3; n++) {
        /* x is read in all three stages, so its region stays allocated until MM */
        *stage_add(m, kinds[n], op) = full;
        m->p->stages[m->p->stages_n - 1].kind = kinds[n];
        note_read(m, &full.x);
    }
    for (uint32_t n = 0; n < full.linears_n; n++) {
        note_read(m, &full.linears[n].residual);
        note_write(m, full.linears[n].out);
    }
}

/* 1: every reader is a linear that reads it completely as its input. */
static int norm_for_linear(const struct fusion_match *m, const struct sg_op *op)
{
    /* a gated or grouped norm is a separate stage */
    if (op->in[1].value >= 0 || op->u.norm.groups > 1) return 0;
    uint32_t found = 0;
    for (uint32_t i = 0; i < m->g->ops_n; i++)
        for (int k = 0; k < SG_OP_INPUTS; k++) {
            const struct sg_operand *x = &m->g->ops[i].in[k];
            if (x->value != op->out) continue;
            if (m->g->ops[i].code != SG_OP_LINEAR || k || !is_whole(m->g, x)) return 0;
            found++;
        }
    return found && found == m->uses[op->out];
}

/* 1: the only reader is an attention op that reads it as query or key, head by head. */
static int rope_for_attend(const struct fusion_match *m, const struct sg_op *op)
{
    int32_t r = only_reader(m, op->out);
    if (r < 0 || m->g->ops[r].code != SG_OP_ATTEND) return 0;
    const struct sg_op *attend = &m->g->ops[r];
    int query = attend->in[0].value == op->out, key = attend->in[1].value == op->out;
    /* the rotation must cover exactly the heads of attention */
    return (query && op->u.rope.heads == attend->u.attend.heads) ||
           (key && op->u.rope.heads == attend->u.attend.kv_heads);
}

/* 1: a norm per head whose only reader is a rotation that is fused into attention. */
static int norm_for_rope(const struct fusion_match *m, const struct sg_op *op)
{
    if (op->in[1].value >= 0) return 0;
    int32_t r = only_reader(m, op->out);
    if (r < 0 || m->g->ops[r].code != SG_OP_ROPE) return 0;
    return rope_for_attend(m, &m->g->ops[r]) && op->u.norm.groups == m->g->ops[r].u.rope.heads;
}

/* Query or key of an attention op: finds its deferred rotation and norm, and the operand that they
 * start from. */
static void keys_input(struct fusion_match *m, const struct sg_operand *in, const struct sg_op **rope,
                      struct sg_cpu_norm *norm, struct sg_operand *source)
{
    *source = *in;
    *rope = deferred(m, in, SG_OP_ROPE);
    if (!*rope) return;
    *source = (*rope)->in[0];
    const struct sg_op *n = deferred(m, source, SG_OP_NORM);
    if (!n) return;
    *norm = norm_of(m, n);
    *source = n->in[0];
}

/* KEYS appends to the state, ATTEND reads it: two stages, since every key must be stored before any
 * query reads it. */
static void attend_stages(struct fusion_match *m, const struct sg_op *op)
{
    struct sg_cpu_stage *st = stage_add(m, SG_ST_KEYS, op);
    const struct sg_attend *at = &op->u.attend;
    keys_input(m, &op->in[0], &st->rope_q, &st->norm_q, &st->q);
    keys_input(m, &op->in[1], &st->rope_k, &st->norm_k, &st->key);
    st->value = op->in[2];
    note_read(m, &st->q);
    note_read(m, &st->key);
    note_read(m, &st->value);
    /* rotated queries are written back to the value of the rotation */
    if (st->rope_q) {
        st->q_out = op->in[0].value;
        note_write(m, st->q_out);
    }
    st = stage_add(m, SG_ST_ATTEND, op);
    st->w0 = request_vector(m, &at->sinks);
    /* ATTEND reads queries and the gate; keys and values come from the state */
    for (int k = 0; k < 4; k += 3) note_read(m, &op->in[k]);
    note_write(m, op->out);
    uint32_t floats = at->heads * (at->dv + 2), group = at->heads / at->kv_heads;
    if (floats > m->p->split_row_floats) m->p->split_row_floats = floats;
    if (at->kv_heads > m->p->kv_heads_max) m->p->kv_heads_max = at->kv_heads;
    if (group > m->p->group_max) m->p->group_max = group;
}

/* Convolution weights [C][taps] -> [taps][C], so that a kernel reads adjacent channels. */
static const float *transpose_taps(struct fusion_match *m, const struct sg_weight *w, uint32_t taps, uint32_t width)
{
    const float *v = request_vector(m, w);
    float *t = sg_arena_alloc(&m->p->set->arena, (size_t)taps * width * sizeof *t);
    if (!t) m->failed = 1;
    for (uint32_t c = 0; v && t && c < width; c++)
        for (uint32_t j = 0; j < taps; j++) t[(size_t)j * width + c] = v[(size_t)c * taps + j];
    return t;
}

/* EXPERT_UP and EXPERT_DOWN, with the hidden rows between them as an additional value. Only k of the
 * experts count as read per token. */
static void experts_stages(struct fusion_match *m, const struct sg_op *op)
{
    const struct sg_experts *e = &op->u.experts;
    const struct sg_weight *from[3] = {&e->gate, &e->up, &e->down};
    uint32_t d = m->g->values[op->out].width, rows[3] = {e->ff, e->ff, d};
    struct sg_cpu_stage *up = stage_add(m, SG_ST_EXPERT_UP, op);
    uint64_t before = m->p->read_per_token;
    for (int n = 0; n < 3; n++) {
        up->experts[n] = sg_arena_alloc(&m->p->arena, e->experts * sizeof(struct sg_packed_weight *));
        if (!up->experts[n]) m->failed = 1;
        for (uint32_t x = 0; x < e->experts && !m->failed; x++)
            up->experts[n][x] = request_weight(m, from[n], x * rows[n], rows[n]);
    }
    /* k of all experts are read */
    m->p->read_per_token = before + (m->p->read_per_token - before) * e->k / e->experts;
    up->expert_hidden = (int32_t)m->value_locs_n++;
    m->p->value_locs[up->expert_hidden].stride = e->k * ((e->ff + 15) / 16 * 16);
    note_read(m, &op->in[0]);
    note_read(m, &op->in[1]);
    note_write(m, up->expert_hidden);
    struct sg_cpu_stage *down = stage_add(m, SG_ST_EXPERT_DOWN, op);
    memcpy(down->experts, up->experts, sizeof up->experts);
    down->expert_hidden = up->expert_hidden;
    note_read(m, &op->in[1]);
    m->last_stage[up->expert_hidden] = m->p->stages_n - 1;
    note_write(m, op->out);
}

/* An op with a separate stage. */
static void simple_stage(struct fusion_match *m, const struct sg_op *op)
{
    static const enum sg_cpu_stage_kind kinds[SG_OP_N] = {
        [SG_OP_EMBED] = SG_ST_EMBED, [SG_OP_NORM] = SG_ST_NORM,   [SG_OP_ROPE] = SG_ST_ROPE,
        [SG_OP_CONV] = SG_ST_CONV,   [SG_OP_DELTA] = SG_ST_DELTA, [SG_OP_GLU] = SG_ST_GLU,
        [SG_OP_ACT] = SG_ST_ACT,     [SG_OP_ADD] = SG_ST_ADD,     [SG_OP_SCALE] = SG_ST_SCALE,
        [SG_OP_ROUTE] = SG_ST_ROUTE, [SG_OP_ROWS] = SG_ST_ROWS};
    struct sg_cpu_stage *st = stage_add(m, kinds[op->code], op);
    for (int k = 0; k < SG_OP_INPUTS; k++) note_read(m, &op->in[k]);
    note_write(m, op->out);
    switch (op->code) {
    case SG_OP_NORM: st->norm = norm_of(m, op); break;
    case SG_OP_CONV:
        st->w0 = transpose_taps(m, &op->u.conv.weight, op->u.conv.taps, m->g->values[op->out].width);
        st->w1 = request_vector(m, &op->u.conv.bias);
        break;
    case SG_OP_DELTA:
        st->w0 = request_vector(m, &op->u.delta.decay);
        st->w1 = request_vector(m, &op->u.delta.dt);
        break;
    case SG_OP_SCALE:
        st->w0 = request_vector(m, &op->u.scale.weight);
        if (st->w0) st->scale_n = (uint32_t)m->g->tensors[op->u.scale.weight.tensor]->cols;
        break;
    case SG_OP_ROUTE: st->w0 = request_vector(m, &op->u.route.bias); break;
    default: break;
    }
}

/* Ops in graph order. Norms and rotations that can be fused into a later stage are deferred. */
static void stages_fill(struct fusion_match *m)
{
    const struct sg_graph *g = m->g;
    if (g->ropes_n) stage_add(m, SG_ST_ANGLES, NULL);
    for (uint32_t i = 0; i < g->ops_n && !m->failed; i++) {
        const struct sg_op *op = &g->ops[i];
        if (m->done[i]) continue;
        /* deferred: the reader finds it and performs it */
        if ((op->code == SG_OP_NORM && (norm_for_linear(m, op) || norm_for_rope(m, op))) ||
            (op->code == SG_OP_ROPE && rope_for_attend(m, op))) {
            m->done[i] = 2;
            continue;
        }
        if (op->code == SG_OP_LINEAR) matrix_stage(m, i);
        else if (op->code == SG_OP_ATTEND) attend_stages(m, op);
        else if (op->code == SG_OP_EXPERTS) experts_stages(m, op);
        else simple_stage(m, op);
        m->done[i] = 1;
    }
}

/* Columns of one area, used by one value after another. */
struct region { uint32_t width, free_after, at; int area; };

/* The value that is written directly to the logits buffer; -1: none. */
static int logits_value(const struct fusion_match *m)
{
    int32_t o = sg_graph_output(m->g, "logits");
    if (o < 0) return -1;
    int32_t v = m->g->outputs[o].value;
    return m->uses[v] == 1 && m->g->values[v].wanted ? v : -1;
}

/* Returns the tightest region of this area that is free from stage `first_stage` on, enlarging one if
 * necessary, or a new one. */
static uint32_t region_alloc(struct region *r, uint32_t *n, int area, uint32_t width, uint32_t first_stage,
                            uint32_t last_stage)
{
    uint32_t best = UINT32_MAX;
    for (uint32_t i = 0; i < *n; i++) {
        if (r[i].area != area || r[i].free_after >= first_stage) continue;
        /* best fit: the narrowest that is wide enough, otherwise the widest */
        if (best == UINT32_MAX || (r[i].width >= width ? r[best].width < width || r[i].width < r[best].width
                                                       : r[best].width < width && r[i].width > r[best].width))
            best = i;
    }
    if (best == UINT32_MAX) r[best = (*n)++] = (struct region){.area = area};
    if (r[best].width < width) r[best].width = width;
    r[best].free_after = last_stage;
    return best;
}

/* The source of selected rows must live as long as the selection, because it is read instead when all
 * rows are selected. */
static void locs_alias_rows(struct fusion_match *m)
{
    for (uint32_t i = 0; i < m->g->ops_n; i++) {
        const struct sg_op *op = &m->g->ops[i];
        if (op->code != SG_OP_ROWS || op->out == logits_value(m)) continue;
        int32_t from = op->in[0].value;
        m->p->value_locs[op->out].from = from;
        m->p->value_locs[op->out].from_at = op->in[0].at;
        if (m->last_stage[from] < m->last_stage[op->out]) m->last_stage[from] = m->last_stage[op->out];
    }
}

/* Assigns a region to each value at the stage of its first write; then regions get their columns. */
static void locs_assign(struct fusion_match *m, struct region *regions, uint32_t *of)
{
    struct sg_cpu_program *p = m->p;
    uint32_t n = 0;
    int logits = logits_value(m);
    for (uint32_t s = 0; s < p->stages_n; s++)
        for (uint32_t v = 0; v < m->value_locs_n; v++) {
            if (m->first_stage[v] != s) continue;
            /* additional values (hidden rows of experts) follow their stage */
            int area = v < m->g->values_n && m->g->values[v].wanted;
            if (v >= m->g->values_n) area = p->stages[s].wanted;
            else
                p->value_locs[v].stride =
                    (int)v == logits ? m->g->values[v].width : (m->g->values[v].width + 15) / 16 * 16;
            p->value_locs[v].area = (int)v == logits ? 2 : area;
            if ((int)v != logits) of[v] = region_alloc(regions, &n, area, p->value_locs[v].stride, s, m->last_stage[v]);
        }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t *columns = regions[i].area ? &p->r_columns : &p->t_columns;
        regions[i].at = *columns;
        *columns += regions[i].width;
    }
    for (uint32_t v = 0; v < m->value_locs_n; v++)
        if (of[v] != UINT32_MAX) p->value_locs[v].at = regions[of[v]].at;
}

/* Counts the readers of each value. Inputs of the graph exist from stage 0 on. */
static void count_uses(struct fusion_match *m)
{
    const struct sg_graph *g = m->g;
    for (uint32_t i = 0; i < g->ops_n; i++)
        for (int k = 0; k < SG_OP_INPUTS; k++)
            if (g->ops[i].in[k].value >= 0) m->uses[g->ops[i].in[k].value]++;
    for (uint32_t i = 0; i < g->outputs_n; i++) m->uses[g->outputs[i].value]++;
    for (uint32_t v = 0; v < m->cap; v++) m->first_stage[v] = NEVER;
    for (uint32_t v = 0; v < g->values_n; v++)
        if (g->values[v].op < 0 && g->values[v].kind == SG_VALUE_ROWS) m->first_stage[v] = 0;
}

/* Attention in integers follows projections whose activations are bytes; after float projections it
 * stays in fp32. */
static void i16_mark(struct sg_cpu_program *p)
{
    int bytes = 0;
    for (uint32_t s = 0; s < p->stages_n; s++) {
        struct sg_cpu_stage *st = &p->stages[s];
        if (st->kind == SG_ST_ATTEND) st->attn_i16 = bytes && sg_cpu_program_kernels(p)->narrow;
        if (st->kind != SG_ST_MM) continue;
        /* 1 if all weights of this stage are quantised */
        bytes = 1;
        for (uint32_t i = 0; i < st->linears_n; i++) bytes &= st->linears[i].w->kind < SG_PACK_F32;
    }
}

/* Scratch per thread: the maximum over all stages. */
static void thread_bytes_max(struct sg_cpu_program *p)
{
    i16_mark(p);
    for (uint32_t s = 0; s < p->stages_n; s++) {
        const struct sg_cpu_stage *st = &p->stages[s];
        size_t n = st->kind == SG_ST_ATTEND || st->kind == SG_ST_KEYS ? sg_attend_thread_bytes(p, st)
                   : st->kind == SG_ST_LORA || st->kind == SG_ST_PREP || st->kind == SG_ST_MM
                       ? sg_matrix_thread_bytes(p, st)
                       : sg_rows_thread_bytes(p, st);
        if (n > p->thread_bytes) p->thread_bytes = n;
    }
    p->thread_bytes = (p->thread_bytes + 128 + 63) / 64 * 64;
}

/* Stages first, since the lifetimes of values are counted in stages; then the places of values and the
 * scratch sizes. */
segue_status sg_cpu_match(struct sg_cpu_program *p, segue_error *err)
{
    const struct sg_graph *g = p->base.graph;
    struct fusion_match m = {.p = p, .g = g, .cap = g->values_n + g->ops_n, .value_locs_n = g->values_n};
    uint32_t stages = 3 * g->ops_n + 2;
    struct sg_arena arena = {0};
    p->stages = sg_arena_alloc(&p->arena, stages * sizeof *p->stages);
    p->value_locs = sg_arena_alloc(&p->arena, m.cap * sizeof *p->value_locs);
    p->angle_at = sg_arena_alloc(&p->arena, (g->ropes_n + 1) * sizeof *p->angle_at);
    m.uses = sg_arena_alloc(&arena, m.cap * sizeof *m.uses);
    m.first_stage = sg_arena_alloc(&arena, m.cap * sizeof *m.first_stage);
    m.last_stage = sg_arena_alloc(&arena, m.cap * sizeof *m.last_stage);
    m.done = sg_arena_alloc(&arena, g->ops_n + 1);
    struct region *regions = sg_arena_alloc(&arena, m.cap * sizeof *regions);
    uint32_t *of = sg_arena_alloc(&arena, m.cap * sizeof *of);
    /* one check for all allocations above */
    m.failed = !p->stages || !p->value_locs || !p->angle_at || !m.uses || !m.first_stage || !m.last_stage || !m.done ||
               !regions || !of;
    if (!m.failed) {
        for (uint32_t v = 0; v < m.cap; v++) {
            p->value_locs[v].area = p->value_locs[v].from = -1;
            of[v] = UINT32_MAX;
        }
        for (uint32_t r = 0; r < g->ropes_n; r++) {
            /* cosine and sine per pair */
            p->angle_at[r] = p->angle_columns;
            p->angle_columns += 2 * g->ropes[r].pairs;
        }
        count_uses(&m);
        stages_fill(&m);
    }
    if (!m.failed) {
        /* outputs are read after the last stage */
        for (uint32_t i = 0; i < g->outputs_n; i++) m.last_stage[g->outputs[i].value] = NEVER - 1;
        locs_alias_rows(&m);
        locs_assign(&m, regions, of);
        thread_bytes_max(p);
    }
    sg_arena_free(&arena);
    return m.failed ? sg_no_memory("stages of a cpu program", stages * sizeof *p->stages, err) : SEGUE_OK;
}
