/* cpu_rows.c: the stages that work row by row or slot by slot: angles, embedding, norms, rotation,
 * convolution, delta rule, elementwise ops, routing, experts, choice of rows.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "unit/cpu/cpu_types.h"

enum { LINES = 64, CHANNELS = 256, EXPERT_ROWS = 64, ROUTE_MAX = 64, DELTA_ROWS = 32 };
enum { DELTA_ROOM = 2 * DELTA_ROWS + SG_DELTA_COLUMNS };      /* queries, keys, columns of the state; each dk wide */

static size_t lines(size_t bytes) { return (bytes + LINES - 1) / LINES * LINES; }

size_t sg_rows_thread_bytes(const struct sg_cpu_program *p, const struct sg_stage *st)
{
    const struct sg_graph *g = p->base.graph;
    if (!st->op) return LINES;
    uint32_t width = g->values[st->op->out].width;
    switch (st->kind) {
    case SG_ST_DELTA:
        return LINES + (DELTA_ROOM * (size_t)st->op->u.delta.dk + 2 * DELTA_ROWS) * sizeof(float);
    case SG_ST_ROUTE: return LINES + 2 * (size_t)st->op->u.route.experts * sizeof(float);
    case SG_ST_EXPERT_UP:
    case SG_ST_EXPERT_DOWN: {
        size_t k = st->op->in[0].width > st->op->u.experts.ff ? st->op->in[0].width : st->op->u.experts.ff;
        return LINES + lines(k * 4 * sizeof(float)) + 2 * EXPERT_ROWS * sizeof(float);
    }
    default: return LINES + (size_t)width * sizeof(float);
    }
}

static float *room_of(const struct sg_pass *a, uint32_t thread)
{
    *(uint64_t *)(void *)a->p->threads[thread] = 0;  /* the matrix stages' stamp */
    return (float *)(void *)(a->p->threads[thread] + LINES);
}

static const float *in_row(const struct sg_pass *a, const struct sg_stage *st, int input, uint32_t row)
{
    size_t stride;
    return st->op->in[input].value < 0 ? NULL : sg_cpu_rows(a, st->op->in[input], row, &stride);
}

static float *out_row(const struct sg_pass *a, const struct sg_stage *st, uint32_t row)
{
    size_t stride;
    return sg_cpu_rows(a, (struct sg_operand){st->op->out, 0, 0}, row, &stride);
}

/* --- row by row --- */

void sg_row_norm(const struct sg_kernels *k, const struct sg_norm_use *use, const float *x, const float *gate,
                 uint32_t width, float *y)
{
    const struct sg_norm *n = &use->op->u.norm;
    uint32_t groups = n->groups ? n->groups : 1, each = width / groups;
    for (uint32_t i = 0; i < width; i += each) {
        k->norm(x + i, each, n, use->weight, use->bias, y + i);
        if (gate) k->glu(SG_ACT_SILU, gate + i, y + i, each, y + i);
    }
}

static void angles_row(const struct sg_pass *a, uint32_t row)
{
    const struct sg_graph *g = a->p->base.graph;
    float *out = a->p->angles + (size_t)row * a->p->angle_columns;
    for (uint32_t r = 0; r < g->ropes_n; r++)
        for (uint32_t j = 0; j < g->ropes[r].pairs; j++, out += 2) {
            double angle = (double)a->p->row_pos[row] * (double)g->ropes[r].inverse[j];
            out[0] = (float)(cos(angle) * (double)g->ropes[r].mscale);
            out[1] = (float)(sin(angle) * (double)g->ropes[r].mscale);
        }
}

static void embed_row(const struct sg_pass *a, const struct sg_stage *st, uint32_t row, float *room)
{
    const struct sg_graph *g = a->p->base.graph;
    const struct sg_embed *e = &st->op->u.embed;
    float *y = out_row(a, st, row);
    uint32_t d = g->values[st->op->out].width;
    sg_tensor_row(g->tensors[e->table.tensor], (uint64_t)e->table.at + (uint32_t)a->p->tokens[row], 0, d, y);
    if (e->scale != 1.0f)
        for (uint32_t i = 0; i < d; i++) y[i] *= e->scale;
    if (e->positions.tensor < 0) return;
    sg_tensor_row(g->tensors[e->positions.tensor], e->positions.at + a->p->row_pos[row], 0, d, room);
    sg_pass_kernels(a)->add(y, room, d, y);
}

static void rope_row(const struct sg_pass *a, const struct sg_stage *st, uint32_t row)
{
    const struct sg_rope *r = &st->op->u.rope;
    const float *x = in_row(a, st, 0, row),
                *cs = a->p->angles + (size_t)row * a->p->angle_columns + a->p->angle_at[r->table];
    float *y = out_row(a, st, row);
    for (uint32_t h = 0; h < r->heads; h++)
        sg_pass_kernels(a)->rope(x + (size_t)h * r->head_width, a->p->base.graph->ropes[r->table].pairs,
                                 r->head_width, cs, (float)r->sign, y + (size_t)h * r->head_width);
}

static void scale_row(const struct sg_stage *st, const float *x, uint32_t width, float *y)
{
    int one = st->scale_n == 1;
    float value = st->w0 ? st->w0[0] : st->op->u.scale.value;
    for (uint32_t i = 0; i < width; i++) y[i] = x[i] * (st->w0 && !one ? st->w0[i] : value);
}

static void route_row(const struct sg_stage *st, const float *x, float *scores, float *y)
{
    const struct sg_route *r = &st->op->u.route;
    float *ranks = scores + r->experts, most = -INFINITY, sum = 0.0f;
    for (uint32_t e = 0; e < r->experts; e++) most = x[e] > most ? x[e] : most;
    for (uint32_t e = 0; e < r->experts; e++) {
        scores[e] = r->sigmoid ? 1.0f / (1.0f + expf(-x[e])) : expf(x[e] - most);
        sum += scores[e];
    }
    for (uint32_t e = 0; e < r->experts; e++) {
        if (!r->sigmoid) scores[e] /= sum;
        ranks[e] = scores[e] + (st->w0 ? st->w0[e] : 0.0f);
    }
    sum = 0.0f;
    for (uint32_t i = 0; i < r->k; i++) {
        uint32_t best = UINT32_MAX;          /* NaN never wins, and leaves the lowest that is free */
        for (uint32_t e = 0; e < r->experts; e++)
            if (ranks[e] != -INFINITY && (best == UINT32_MAX || ranks[e] > ranks[best])) best = e;
        if (best == UINT32_MAX) best = 0;
        ranks[best] = -INFINITY;
        y[i] = (float)best;
        y[r->k + i] = scores[best];
        sum += scores[best];
    }
    for (uint32_t i = 0; i < r->k; i++) y[r->k + i] = y[r->k + i] * r->scale / (r->renormalise ? sum : 1.0f);
}

static void simple_row(struct sg_pass *a, const struct sg_stage *st, uint32_t row, uint32_t thread)
{
    const struct sg_kernels *k = sg_pass_kernels(a);
    uint32_t width = a->p->base.graph->values[st->op->out].width;
    float *y = out_row(a, st, row);
    switch (st->kind) {
    case SG_ST_EMBED: embed_row(a, st, row, room_of(a, thread)); break;
    case SG_ST_NORM: sg_row_norm(k, &st->norm, in_row(a, st, 0, row), in_row(a, st, 1, row), width, y); break;
    case SG_ST_ROPE: rope_row(a, st, row); break;
    case SG_ST_GLU: k->glu(st->op->u.glu.act, in_row(a, st, 0, row), in_row(a, st, 1, row), width, y); break;
    case SG_ST_ACT: k->act(st->op->u.act.act, in_row(a, st, 0, row), width, y); break;
    case SG_ST_ADD: k->add(in_row(a, st, 0, row), in_row(a, st, 1, row), width, y); break;
    case SG_ST_SCALE: scale_row(st, in_row(a, st, 0, row), width, y); break;
    case SG_ST_ROUTE: route_row(st, in_row(a, st, 0, row), room_of(a, thread), y); break;
    case SG_ST_ROWS: memcpy(y, in_row(a, st, 0, a->p->wanted[row]), width * sizeof *y); break;
    default: break;
    }
}

/* --- recurrent slots --- */

static uint32_t span_row(const struct sg_pass *a, uint32_t span)
{
    uint32_t row = 0;
    for (uint32_t s = 0; s < span; s++) row += a->spans[s].rows;
    return row;
}

static struct sg_slot_memory *slot_of(const struct sg_pass *a, uint32_t span, int32_t slot)
{
    return &((struct sg_cpu_state *)(void *)a->spans[span].state)->slots[slot];
}

/* Channels [from, from + n) of one span, all its rows. */
static void conv_work(struct sg_pass *a, const struct sg_stage *st, uint32_t span, uint32_t from, uint32_t n)
{
    const struct sg_conv *c = &st->op->u.conv;
    uint32_t width = a->p->base.graph->values[st->op->out].width, past = c->taps - 1,
             first = span_row(a, span), rows = a->spans[span].rows;
    float *slot = slot_of(a, span, c->slot)->fixed + from;
    const float *x[16];
    for (uint32_t t = 0; t < rows; t++) {
        if (t % SG_CHUNK == 0 && sg_pass_stops(a)) return;
        for (uint32_t j = 0; j < c->taps; j++)
            x[j] =
                t + j < past ? slot + (size_t)(t + j) * width : in_row(a, st, 0, first + t + j - past) + from;
        sg_pass_kernels(a)->conv(x, c->taps, st->w0 + from, width, st->w1 ? st->w1 + from : NULL, c->act, n,
                                 out_row(a, st, first + t) + from);
    }
    for (uint32_t i = 0; i < past;
         i++) { /* the last `past` inputs; rising order reads before it overwrites */
        const float *last = rows + i < past ? slot + (size_t)(rows + i) * width
                                            : in_row(a, st, 0, first + rows + i - past) + from;
        memcpy(slot + (size_t)i * width, last, n * sizeof *slot);
    }
}

static void unit_length(const struct sg_kernels *k, const float *x, uint32_t n, float eps, float scale,
                        float *y)
{
    if (eps > 0.0f) scale /= sqrtf(k->dot(x, x, n) + eps);
    for (uint32_t i = 0; i < n; i++) y[i] = x[i] * scale;
}

static float softplus(float x) { return (x > 0.0f ? x : 0.0f) + log1pf(expf(-fabsf(x))); }

/* One value head of one span, all its rows, DELTA_ROWS at a time. */
static void delta_work(struct sg_pass *a, const struct sg_stage *st, uint32_t span, uint32_t h, float *room)
{
    const struct sg_kernels *k = sg_pass_kernels(a);
    const struct sg_delta *d = &st->op->u.delta;
    uint32_t at = span_row(a, span), end = at + a->spans[span].rows;
    size_t key = (size_t)(h / (d->v_heads / d->k_heads)) * d->dk, value = (size_t)h * d->dv, stride;
    float *q = room + SG_DELTA_COLUMNS * (size_t)d->dk, *kk = q + DELTA_ROWS * (size_t)d->dk,
          *decay = kk + DELTA_ROWS * (size_t)d->dk, *beta = decay + DELTA_ROWS;
    float *s = slot_of(a, span, d->slot)->fixed + value * d->dk;
    float rate = d->decay_is_log ? -expf(st->w0[h]) : st->w0[h];
    struct sg_delta_rows r = {
        .dk = d->dk, .dv = d->dv, .q = q, .k = kk, .room = room, .ldk = d->dk, .decay = decay, .beta = beta};
    for (; at < end; at += r.rows) {
        if (sg_pass_stops(a)) return;
        r.rows = end - at < DELTA_ROWS ? end - at : DELTA_ROWS;
        for (uint32_t t = 0; t < r.rows; t++) {
            size_t to = t * (size_t)d->dk;
            unit_length(k, in_row(a, st, 0, at + t) + key, d->dk, d->l2_eps, 1.0f / sqrtf((float)d->dk), q + to);
            unit_length(k, in_row(a, st, 1, at + t) + key, d->dk, d->l2_eps, 1.0f, kk + to);
            decay[t] = expf(rate * softplus(in_row(a, st, 3, at + t)[h] + (st->w1 ? st->w1[h] : 0.0f)));
            beta[t] = 1.0f / (1.0f + expf(-in_row(a, st, 4, at + t)[h]));
        }
        r.v = sg_cpu_rows(a, st->op->in[2], at, &stride) + value;
        r.ldv = stride;
        r.o = sg_cpu_rows(a, (struct sg_operand){st->op->out, 0, 0}, at, &stride) + value;
        r.ldo = stride;
        k->delta(s, &r);
    }
}

/* --- experts: one row and one expert at a time --- */

static void one_row_mm(const struct sg_kernels *k, const struct sg_packed *w, const float *x, uint8_t *room,
                       uint32_t from, uint32_t rows, float *out)
{
    const void *tile = x;
    if (w->kind < SG_PACK_F32) {
        k->quant(x, w->k, 1, w->k, sg_pack_run(w->kind), 1, room);
        tile = room;
    }
    k->few[w->kind](w->data + from / SG_GROUP * w->group_bytes, w->k, rows, tile, 1, 1, out, rows);
}

static void expert_up(struct sg_pass *a, const struct sg_stage *st, uint32_t item, float *room)
{
    const struct sg_kernels *k = sg_pass_kernels(a);
    const struct sg_experts *e = &st->op->u.experts;
    uint32_t row = item / e->k, i = item % e->k, index = (uint32_t)in_row(a, st, 1, row)[i];
    size_t stride, ffp = (e->ff + 15) / 16 * 16;
    float *y = sg_cpu_rows(a, (struct sg_operand){st->hidden, 0, 0}, row, &stride) + i * ffp;
    uint32_t widest = st->op->in[0].width > e->ff ? st->op->in[0].width : e->ff;
    float *up = room + lines((size_t)widest * 16) / sizeof *room, *gate = up + EXPERT_ROWS;
    const struct sg_packed *wg = st->experts[0][index], *wu = st->experts[1][index];
    for (uint32_t from = 0; from < e->ff; from += EXPERT_ROWS) {
        uint32_t n = e->ff - from < EXPERT_ROWS ? e->ff - from : EXPERT_ROWS;
        one_row_mm(k, wg, in_row(a, st, 0, row), (uint8_t *)room, from, n, gate);
        one_row_mm(k, wu, in_row(a, st, 0, row), (uint8_t *)room, from, n, up);
        k->glu(e->act, gate, up, n, y + from);
    }
}

static void expert_down(struct sg_pass *a, const struct sg_stage *st, uint32_t row, uint32_t from, uint32_t n,
                        float *room)
{
    const struct sg_kernels *k = sg_pass_kernels(a);
    const struct sg_experts *e = &st->op->u.experts;
    size_t stride, ffp = (e->ff + 15) / 16 * 16;
    const float *h = sg_cpu_rows(a, (struct sg_operand){st->hidden, 0, 0}, row, &stride),
                *routing = in_row(a, st, 1, row);
    uint32_t widest = st->op->in[0].width > e->ff ? st->op->in[0].width : e->ff;
    float *part = room + lines((size_t)widest * 16) / sizeof *room, *y = out_row(a, st, row) + from;
    memset(y, 0, n * sizeof *y);
    for (uint32_t i = 0; i < e->k; i++) {
        one_row_mm(k, st->experts[2][(uint32_t)routing[i]], h + i * ffp, (uint8_t *)room, from, n, part);
        k->axpy(routing[e->k + i], part, n, y);
    }
}

/* --- items --- */

static uint32_t pieces(uint32_t n, uint32_t each) { return (n + each - 1) / each; }

uint32_t sg_rows_items(const struct sg_pass *a, const struct sg_stage *st)
{
    if (st->kind == SG_ST_ANGLES) return a->t;
    uint32_t rows = sg_stage_rows(a, st), width = a->p->base.graph->values[st->op->out].width;
    switch (st->kind) {
    case SG_ST_CONV: return a->spans_n * pieces(width, CHANNELS);
    case SG_ST_DELTA: return a->spans_n * st->op->u.delta.v_heads;
    case SG_ST_EXPERT_UP: return rows * st->op->u.experts.k;
    case SG_ST_EXPERT_DOWN: return rows * pieces(width, EXPERT_ROWS);
    case SG_ST_ROWS: return a->t == a->r && a->p->places[st->op->out].from >= 0 ? 0 : rows;
    default: return rows;
    }
}

void sg_rows_work(struct sg_pass *a, const struct sg_stage *st, uint32_t item, uint32_t thread)
{
    if (st->kind == SG_ST_ANGLES) {
        angles_row(a, item);
        return;
    }
    uint32_t width = a->p->base.graph->values[st->op->out].width;
    switch (st->kind) {
    case SG_ST_CONV: {
        uint32_t n = pieces(width, CHANNELS), from = item % n * CHANNELS;
        conv_work(a, st, item / n, from, width - from < CHANNELS ? width - from : CHANNELS);
        break;
    }
    case SG_ST_DELTA:
        delta_work(a, st, item / st->op->u.delta.v_heads, item % st->op->u.delta.v_heads, room_of(a, thread));
        break;
    case SG_ST_EXPERT_UP: expert_up(a, st, item, room_of(a, thread)); break;
    case SG_ST_EXPERT_DOWN: {
        uint32_t n = pieces(width, EXPERT_ROWS), from = item % n * EXPERT_ROWS;
        expert_down(a, st, item / n, from, width - from < EXPERT_ROWS ? width - from : EXPERT_ROWS,
                    room_of(a, thread));
        break;
    }
    default: simple_row(a, st, item, thread);
    }
}
