/* match.c: the list of ops -> stages, each one parallel region. Windows that become one stage:
 *   norm, linear x k over the same input; linear, linear, glu; linear, act      -> matrix stage
 *   norm (heads), rope, attend's append                                        -> keys stage
 * Then every value that is still stored gets its columns, reused once nobody reads it any more. No op is
 * refused here: sg_cpu_can did that.
 * SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <string.h>

#include "unit/cpu/cpu_types.h"

static const uint32_t FOREVER = UINT32_MAX;

struct match {
    struct sg_cpu_program *p;
    const struct sg_graph *g;
    uint32_t *uses;                  /* [values] operands and outputs that read it */
    uint32_t *born, *last;           /* [places] stages */
    uint8_t *done;                   /* [ops] taken into a stage */
    uint32_t cap, places_n;
    int failed;                      /* out of memory */
};

static int whole(const struct sg_graph *g, const struct sg_operand *x)
{
    return x->value >= 0 && x->at == 0 && x->width == g->values[x->value].width;
}

static void reads(struct match *m, const struct sg_operand *x)
{
    if (x->value >= 0) m->last[x->value] = m->p->stages_n - 1;
}

static void writes(struct match *m, int32_t value)
{
    m->born[value] = m->p->stages_n - 1;
    if (m->last[value] < m->born[value]) m->last[value] = m->born[value];
}

static struct sg_stage *stage_add(struct match *m, enum sg_stage_kind kind, const struct sg_op *op)
{
    struct sg_stage *st = &m->p->stages[m->p->stages_n++]; /* room was made for three per op and two more */
    st->kind = kind;
    st->op = op;
    st->q_out = st->hidden = -1;
    st->wanted = op && m->g->values[op->out].wanted;
    return st;
}

static const float *vector(struct match *m, const struct sg_weight *w)
{
    if (w->tensor < 0) return NULL;
    const float *v = sg_pack_vector(m->p->set, m->g->tensors[w->tensor]);
    if (!v) m->failed = 1;
    return v;
}

static struct sg_packed *packed(struct match *m, const struct sg_weight *w, uint32_t at, uint32_t rows)
{
    struct sg_packed *p = sg_pack_want(m->p->set, m->g->tensors[w->tensor], w->at + at, rows);
    if (!p) m->failed = 1;
    else m->p->read_per_token += p->groups * p->group_bytes;
    return p;
}

static struct sg_norm_use norm_use(struct match *m, const struct sg_op *op)
{
    struct sg_norm_use n = {.op = op};
    n.weight = vector(m, &op->u.norm.weight);
    n.bias = vector(m, &op->u.norm.bias);
    return n;
}

/* The op that defines a value, when it has this code, was deferred, and is read whole here. */
static const struct sg_op *deferred(const struct match *m, const struct sg_operand *x, enum sg_op_code code)
{
    if (!whole(m->g, x) || m->g->values[x->value].op < 0) return NULL;
    const struct sg_op *op = &m->g->ops[m->g->values[x->value].op];
    return op->code == code && m->done[op - m->g->ops] == 2 ? op : NULL;
}

/* --- matrix stages --- */

static int same(const struct sg_operand *a, const struct sg_operand *b)
{
    return a->value == b->value && a->at == b->at && a->width == b->width;
}

/* May op j ride in the stage that starts at op i? */
static int joins(const struct match *m, uint32_t i, uint32_t j)
{
    const struct sg_op *a = &m->g->ops[i], *b = &m->g->ops[j];
    if (b->code != SG_OP_LINEAR || m->done[j] || !same(&a->in[0], &b->in[0])) return 0;
    return b->in[1].value < 0 || m->g->values[b->in[1].value].op < (int32_t)i;
}

/* The only reader of a value that is read whole, once: its op index, or -1. */
static int32_t only_reader(const struct match *m, int32_t value)
{
    if (m->uses[value] != 1) return -1;
    for (uint32_t i = 0; i < m->g->ops_n; i++)
        for (int k = 0; k < SG_OP_INPUTS; k++)
            if (m->g->ops[i].in[k].value == value) return whole(m->g, &m->g->ops[i].in[k]) ? (int32_t)i : -1;
    return -1;
}

static struct sg_part *part_add(struct match *m, struct sg_stage *st, uint32_t i)
{
    const struct sg_op *op = &m->g->ops[i];
    struct sg_part *part = &st->parts[st->parts_n++];
    m->done[i] = 1;
    part->op = op;
    part->w = packed(m, &op->u.linear.weight, 0, op->u.linear.weight.rows);
    part->bias = vector(m, &op->u.linear.bias);
    part->residual = op->in[1];
    part->out = op->out;
    part->act = SG_ACT_NONE;
    return part;
}

/* gate of a pair whose `up` also has this input: take glu and both. Or an act behind the linear alone. */
static void part_extend(struct match *m, struct sg_part *part, uint32_t i)
{
    int32_t r = part->residual.value < 0 ? only_reader(m, part->out) : -1;
    if (r < 0 || m->done[r]) return;
    const struct sg_op *reader = &m->g->ops[r];
    if (reader->code == SG_OP_ACT) {
        part->act = reader->u.act.act;
    } else if (reader->code == SG_OP_GLU && reader->in[0].value == part->out && whole(m->g, &reader->in[1])) {
        int32_t u = m->g->values[reader->in[1].value].op;
        if (u < 0 || !joins(m, i, (uint32_t)u) || m->g->ops[u].in[1].value >= 0) return;
        if (only_reader(m, m->g->ops[u].out) != r) return;
        const struct sg_op *up = &m->g->ops[u];
        m->done[u] = 1;
        part->op_up = up;
        part->up = packed(m, &up->u.linear.weight, 0, up->u.linear.weight.rows);
        part->bias_up = vector(m, &up->u.linear.bias);
        part->act = reader->u.glu.act;
    } else {
        return;
    }
    m->done[r] = 1;
    part->out = reader->out;
}

static int is_gate(const struct match *m, uint32_t i)
{
    int32_t r = only_reader(m, m->g->ops[i].out);
    return r >= 0 && m->g->ops[r].code == SG_OP_GLU && m->g->ops[r].in[0].value == m->g->ops[i].out;
}

static void parts_fill(struct match *m, struct sg_stage *st, uint32_t i)
{
    uint32_t n = 0, columns = 0;
    for (uint32_t j = i; j < m->g->ops_n; j++) n += (uint32_t)joins(m, i, j);
    st->parts = sg_arena_alloc(&m->p->arena, n * sizeof *st->parts);
    if (!st->parts) {
        m->failed = 1;
        return;
    }
    for (uint32_t j = i, gates = 1; j < m->g->ops_n || gates; j++) {
        if (j == m->g->ops_n) {              /* gates first, so that each finds its `up` still free */
            gates = 0;
            j = i;
        }
        if (!joins(m, i, j) || (gates && !is_gate(m, j))) continue;
        struct sg_part *part = part_add(m, st, j);
        part_extend(m, part, j);
        part->fine = st->wanted && part->op->layer < 0;  /* the head: a third of the divergence when it is not */
        part->lora = columns;
        columns += (part->op->u.linear.weight.rows + 15) / 16 * 16;
        part->lora_up = columns;
        if (part->op_up) columns += (part->op_up->u.linear.weight.rows + 15) / 16 * 16;
    }
    if (columns > m->p->lora_columns) m->p->lora_columns = columns;
}

static void matrix_stage(struct match *m, uint32_t i)
{
    const struct sg_op *op = &m->g->ops[i], *norm = deferred(m, &op->in[0], SG_OP_NORM);
    struct sg_stage full = {.op = op, .q_out = -1, .hidden = -1, .wanted = (int)m->g->values[op->out].wanted};
    full.x = norm ? norm->in[0] : op->in[0];
    full.k = op->in[0].width;
    if (norm) full.norm = norm_use(m, norm);
    parts_fill(m, &full, i);
    if (m->failed) return;
    size_t bytes = sg_matrix_x_bytes(m->p, &full);
    if (bytes > m->p->x_row_bytes) m->p->x_row_bytes = bytes;
    static const enum sg_stage_kind kinds[3] = {SG_ST_LORA, SG_ST_PREP, SG_ST_MM};
    for (int n = 0; n < 3; n++) {
        *stage_add(m, kinds[n], op) = full;
        m->p->stages[m->p->stages_n - 1].kind = kinds[n];
        reads(m, &full.x);
    }
    for (uint32_t n = 0; n < full.parts_n; n++) {
        reads(m, &full.parts[n].residual);
        writes(m, full.parts[n].out);
    }
}

/* --- norms and ropes that a later stage takes along --- */

/* 1: every reader is a linear that takes it whole as its input. */
static int norm_for_linear(const struct match *m, const struct sg_op *op)
{
    if (op->in[1].value >= 0 || op->u.norm.groups > 1) return 0;
    uint32_t found = 0;
    for (uint32_t i = 0; i < m->g->ops_n; i++)
        for (int k = 0; k < SG_OP_INPUTS; k++) {
            const struct sg_operand *x = &m->g->ops[i].in[k];
            if (x->value != op->out) continue;
            if (m->g->ops[i].code != SG_OP_LINEAR || k || !whole(m->g, x)) return 0;
            found++;
        }
    return found && found == m->uses[op->out];
}

/* 1: the only reader is an attend that takes it whole as query or key, head by head. */
static int rope_for_attend(const struct match *m, const struct sg_op *op)
{
    int32_t r = only_reader(m, op->out);
    if (r < 0 || m->g->ops[r].code != SG_OP_ATTEND) return 0;
    const struct sg_op *attend = &m->g->ops[r];
    int query = attend->in[0].value == op->out, key = attend->in[1].value == op->out;
    return (query && op->u.rope.heads == attend->u.attend.heads) ||
           (key && op->u.rope.heads == attend->u.attend.kv_heads);
}

static int norm_for_rope(const struct match *m, const struct sg_op *op)
{
    if (op->in[1].value >= 0) return 0;
    int32_t r = only_reader(m, op->out);
    if (r < 0 || m->g->ops[r].code != SG_OP_ROPE) return 0;
    return rope_for_attend(m, &m->g->ops[r]) && op->u.norm.groups == m->g->ops[r].u.rope.heads;
}

/* --- the other stages --- */

static void keys_side(struct match *m, const struct sg_operand *in, const struct sg_op **rope,
                      struct sg_norm_use *norm, struct sg_operand *source)
{
    *source = *in;
    *rope = deferred(m, in, SG_OP_ROPE);
    if (!*rope) return;
    *source = (*rope)->in[0];
    const struct sg_op *n = deferred(m, source, SG_OP_NORM);
    if (!n) return;
    *norm = norm_use(m, n);
    *source = n->in[0];
}

static void attend_stages(struct match *m, const struct sg_op *op)
{
    struct sg_stage *st = stage_add(m, SG_ST_KEYS, op);
    const struct sg_attend *at = &op->u.attend;
    keys_side(m, &op->in[0], &st->rope_q, &st->norm_q, &st->q);
    keys_side(m, &op->in[1], &st->rope_k, &st->norm_k, &st->key);
    st->value = op->in[2];
    reads(m, &st->q);
    reads(m, &st->key);
    reads(m, &st->value);
    if (st->rope_q) {
        st->q_out = op->in[0].value;
        writes(m, st->q_out);
    }
    st = stage_add(m, SG_ST_ATTEND, op);
    st->w0 = vector(m, &at->sinks);
    for (int k = 0; k < 4; k += 3) reads(m, &op->in[k]);
    writes(m, op->out);
    uint32_t floats = at->heads * (at->dv + 2), group = at->heads / at->kv_heads;
    if (floats > m->p->split_row_floats) m->p->split_row_floats = floats;
    if (at->kv_heads > m->p->kv_heads_max) m->p->kv_heads_max = at->kv_heads;
    if (group > m->p->group_max) m->p->group_max = group;
}

/* conv's weight [C][taps] -> [taps][C]. */
static const float *taps_first(struct match *m, const struct sg_weight *w, uint32_t taps, uint32_t width)
{
    const float *v = vector(m, w);
    float *t = sg_arena_alloc(&m->p->set->arena, (size_t)taps * width * sizeof *t);
    if (!t) m->failed = 1;
    for (uint32_t c = 0; v && t && c < width; c++)
        for (uint32_t j = 0; j < taps; j++) t[(size_t)j * width + c] = v[(size_t)c * taps + j];
    return t;
}

static void experts_stages(struct match *m, const struct sg_op *op)
{
    const struct sg_experts *e = &op->u.experts;
    const struct sg_weight *from[3] = {&e->gate, &e->up, &e->down};
    uint32_t d = m->g->values[op->out].width, rows[3] = {e->ff, e->ff, d};
    struct sg_stage *up = stage_add(m, SG_ST_EXPERT_UP, op);
    uint64_t before = m->p->read_per_token;
    for (int n = 0; n < 3; n++) {
        up->experts[n] = sg_arena_alloc(&m->p->arena, e->experts * sizeof(struct sg_packed *));
        if (!up->experts[n]) m->failed = 1;
        for (uint32_t x = 0; x < e->experts && !m->failed; x++)
            up->experts[n][x] = packed(m, from[n], x * rows[n], rows[n]);
    }
    m->p->read_per_token = before + (m->p->read_per_token - before) * e->k / e->experts;
    up->hidden = (int32_t)m->places_n++;
    m->p->places[up->hidden].stride = e->k * ((e->ff + 15) / 16 * 16);
    reads(m, &op->in[0]);
    reads(m, &op->in[1]);
    writes(m, up->hidden);
    struct sg_stage *down = stage_add(m, SG_ST_EXPERT_DOWN, op);
    memcpy(down->experts, up->experts, sizeof up->experts);
    down->hidden = up->hidden;
    reads(m, &op->in[1]);
    m->last[up->hidden] = m->p->stages_n - 1;
    writes(m, op->out);
}

static void plain_stage(struct match *m, const struct sg_op *op)
{
    static const enum sg_stage_kind kinds[SG_OP_N] = {
        [SG_OP_EMBED] = SG_ST_EMBED, [SG_OP_NORM] = SG_ST_NORM,   [SG_OP_ROPE] = SG_ST_ROPE,
        [SG_OP_CONV] = SG_ST_CONV,   [SG_OP_DELTA] = SG_ST_DELTA, [SG_OP_GLU] = SG_ST_GLU,
        [SG_OP_ACT] = SG_ST_ACT,     [SG_OP_ADD] = SG_ST_ADD,     [SG_OP_SCALE] = SG_ST_SCALE,
        [SG_OP_ROUTE] = SG_ST_ROUTE, [SG_OP_ROWS] = SG_ST_ROWS};
    struct sg_stage *st = stage_add(m, kinds[op->code], op);
    for (int k = 0; k < SG_OP_INPUTS; k++) reads(m, &op->in[k]);
    writes(m, op->out);
    switch (op->code) {
    case SG_OP_NORM: st->norm = norm_use(m, op); break;
    case SG_OP_CONV:
        st->w0 = taps_first(m, &op->u.conv.weight, op->u.conv.taps, m->g->values[op->out].width);
        st->w1 = vector(m, &op->u.conv.bias);
        break;
    case SG_OP_DELTA:
        st->w0 = vector(m, &op->u.delta.decay);
        st->w1 = vector(m, &op->u.delta.dt);
        break;
    case SG_OP_SCALE:
        st->w0 = vector(m, &op->u.scale.weight);
        if (st->w0) st->scale_n = (uint32_t)m->g->tensors[op->u.scale.weight.tensor]->cols;
        break;
    case SG_OP_ROUTE: st->w0 = vector(m, &op->u.route.bias); break;
    default: break;
    }
}

static void stages_fill(struct match *m)
{
    const struct sg_graph *g = m->g;
    if (g->ropes_n) stage_add(m, SG_ST_ANGLES, NULL);
    for (uint32_t i = 0; i < g->ops_n && !m->failed; i++) {
        const struct sg_op *op = &g->ops[i];
        if (m->done[i]) continue;
        if ((op->code == SG_OP_NORM && (norm_for_linear(m, op) || norm_for_rope(m, op))) ||
            (op->code == SG_OP_ROPE && rope_for_attend(m, op))) {
            m->done[i] = 2;
            continue;
        }
        if (op->code == SG_OP_LINEAR) matrix_stage(m, i);
        else if (op->code == SG_OP_ATTEND) attend_stages(m, op);
        else if (op->code == SG_OP_EXPERTS) experts_stages(m, op);
        else plain_stage(m, op);
        m->done[i] = 1;
    }
}

/* --- places --- */

struct region { uint32_t width, free_after, at; int area; };

static int logits_value(const struct match *m)
{
    int32_t o = sg_graph_output(m->g, "logits");
    if (o < 0) return -1;
    int32_t v = m->g->outputs[o].value;
    return m->uses[v] == 1 && m->g->values[v].wanted ? v : -1;
}

/* Take the tightest region of this area that is free from stage `born` on, or a new one. */
static uint32_t region_take(struct region *r, uint32_t *n, int area, uint32_t width, uint32_t born,
                            uint32_t last)
{
    uint32_t best = UINT32_MAX;
    for (uint32_t i = 0; i < *n; i++) {
        if (r[i].area != area || r[i].free_after >= born) continue;
        if (best == UINT32_MAX || (r[i].width >= width ? r[best].width < width || r[i].width < r[best].width
                                                       : r[best].width < width && r[i].width > r[best].width))
            best = i;
    }
    if (best == UINT32_MAX) r[best = (*n)++] = (struct region){.area = area};
    if (r[best].width < width) r[best].width = width;
    r[best].free_after = last;
    return best;
}

/* What rows are chosen from stays as long as they are read: all of them are read there. */
static void rows_fill(struct match *m)
{
    for (uint32_t i = 0; i < m->g->ops_n; i++) {
        const struct sg_op *op = &m->g->ops[i];
        if (op->code != SG_OP_ROWS || op->out == logits_value(m)) continue;
        int32_t from = op->in[0].value;
        m->p->places[op->out].from = from;
        m->p->places[op->out].from_at = op->in[0].at;
        if (m->last[from] < m->last[op->out]) m->last[from] = m->last[op->out];
    }
}

static void places_fill(struct match *m, struct region *regions, uint32_t *of)
{
    struct sg_cpu_program *p = m->p;
    uint32_t n = 0;
    int logits = logits_value(m);
    for (uint32_t s = 0; s < p->stages_n; s++)
        for (uint32_t v = 0; v < m->places_n; v++) {
            if (m->born[v] != s) continue;
            int area = v < m->g->values_n && m->g->values[v].wanted;
            if (v >= m->g->values_n) area = p->stages[s].wanted;
            else
                p->places[v].stride =
                    (int)v == logits ? m->g->values[v].width : (m->g->values[v].width + 15) / 16 * 16;
            p->places[v].area = (int)v == logits ? 2 : area;
            if ((int)v != logits) of[v] = region_take(regions, &n, area, p->places[v].stride, s, m->last[v]);
        }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t *columns = regions[i].area ? &p->r_columns : &p->t_columns;
        regions[i].at = *columns;
        *columns += regions[i].width;
    }
    for (uint32_t v = 0; v < m->places_n; v++)
        if (of[v] != UINT32_MAX) p->places[v].at = regions[of[v]].at;
}

static void uses_count(struct match *m)
{
    const struct sg_graph *g = m->g;
    for (uint32_t i = 0; i < g->ops_n; i++)
        for (int k = 0; k < SG_OP_INPUTS; k++)
            if (g->ops[i].in[k].value >= 0) m->uses[g->ops[i].in[k].value]++;
    for (uint32_t i = 0; i < g->outputs_n; i++) m->uses[g->outputs[i].value]++;
    for (uint32_t v = 0; v < m->cap; v++) m->born[v] = FOREVER;
    for (uint32_t v = 0; v < g->values_n; v++)
        if (g->values[v].op < 0 && g->values[v].kind == SG_VALUE_ROWS) m->born[v] = 0;
}

/* Attention in integers behind products whose activations are bytes; floats keep what they have. */
static void narrow_mark(struct sg_cpu_program *p)
{
    int bytes = 0;
    for (uint32_t s = 0; s < p->stages_n; s++) {
        struct sg_stage *st = &p->stages[s];
        if (st->kind == SG_ST_ATTEND) st->narrow = bytes && sg_program_kernels(p)->narrow;
        if (st->kind != SG_ST_MM) continue;
        bytes = 1;
        for (uint32_t i = 0; i < st->parts_n; i++) bytes &= st->parts[i].w->kind < SG_PACK_F32;
    }
}

static void thread_bytes(struct sg_cpu_program *p)
{
    narrow_mark(p);
    for (uint32_t s = 0; s < p->stages_n; s++) {
        const struct sg_stage *st = &p->stages[s];
        size_t n = st->kind == SG_ST_ATTEND || st->kind == SG_ST_KEYS ? sg_attend_thread_bytes(p, st)
                   : st->kind == SG_ST_LORA || st->kind == SG_ST_PREP || st->kind == SG_ST_MM
                       ? sg_matrix_thread_bytes(p, st)
                       : sg_rows_thread_bytes(p, st);
        if (n > p->thread_bytes) p->thread_bytes = n;
    }
    p->thread_bytes = (p->thread_bytes + 128 + 63) / 64 * 64;
}

segue_status sg_cpu_match(struct sg_cpu_program *p, segue_error *err)
{
    const struct sg_graph *g = p->base.graph;
    struct match m = {.p = p, .g = g, .cap = g->values_n + g->ops_n, .places_n = g->values_n};
    uint32_t stages = 3 * g->ops_n + 2;
    struct sg_arena arena = {0};
    p->stages = sg_arena_alloc(&p->arena, stages * sizeof *p->stages);
    p->places = sg_arena_alloc(&p->arena, m.cap * sizeof *p->places);
    p->angle_at = sg_arena_alloc(&p->arena, (g->ropes_n + 1) * sizeof *p->angle_at);
    m.uses = sg_arena_alloc(&arena, m.cap * sizeof *m.uses);
    m.born = sg_arena_alloc(&arena, m.cap * sizeof *m.born);
    m.last = sg_arena_alloc(&arena, m.cap * sizeof *m.last);
    m.done = sg_arena_alloc(&arena, g->ops_n + 1);
    struct region *regions = sg_arena_alloc(&arena, m.cap * sizeof *regions);
    uint32_t *of = sg_arena_alloc(&arena, m.cap * sizeof *of);
    m.failed = !p->stages || !p->places || !p->angle_at || !m.uses || !m.born || !m.last || !m.done ||
               !regions || !of;
    if (!m.failed) {
        for (uint32_t v = 0; v < m.cap; v++) {
            p->places[v].area = p->places[v].from = -1;
            of[v] = UINT32_MAX;
        }
        for (uint32_t r = 0; r < g->ropes_n; r++) {
            p->angle_at[r] = p->angle_columns;
            p->angle_columns += 2 * g->ropes[r].pairs;
        }
        uses_count(&m);
        stages_fill(&m);
    }
    if (!m.failed) {
        for (uint32_t i = 0; i < g->outputs_n; i++) m.last[g->outputs[i].value] = FOREVER - 1;
        rows_fill(&m);
        places_fill(&m, regions, of);
        thread_bytes(p);
    }
    sg_arena_free(&arena);
    return m.failed ? sg_no_memory("stages of a cpu program", stages * sizeof *p->stages, err) : SEGUE_OK;
}
