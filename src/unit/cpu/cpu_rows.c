/* cpu_rows.c: stages that work row by row or slot by slot: rope angles, embedding, norms, rotation,
 * convolution, delta rule, elementwise ops, expert routing, experts, selection of rows.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "unit/cpu/cpu_types.h"

/* Cache line; channels, output columns and tokens per item or step. */
enum { LINE_BYTES = 64, CONV_COLS = 256, EXPERT_ROWS = 64, ROUTE_MAX = 64, DELTA_ROWS = 32 };
/* scratch vectors of dk floats: queries, keys, columns of the state */
enum { DELTA_SCRATCH = 2 * DELTA_ROWS + SG_DELTA_COLS };

static size_t round_line(size_t bytes) { return (bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES; }

/* The first line holds the id of prepared activations (cpu_matrix.c); scratch starts after it. */
size_t sg_rows_thread_bytes(const struct sg_cpu_program *p, const struct sg_cpu_stage *st)
{
    const struct sg_graph *g = p->base.graph;
    if (!st->op) return LINE_BYTES;
    uint32_t width = g->values[st->op->out].width;
    switch (st->kind) {
    case SG_ST_DELTA:
        return LINE_BYTES + (DELTA_SCRATCH * (size_t)st->op->u.delta.dk + 2 * DELTA_ROWS) * sizeof(float);
    case SG_ST_ROUTE: return LINE_BYTES + 2 * (size_t)st->op->u.route.experts * sizeof(float);
    case SG_ST_EXPERT_UP:
    case SG_ST_EXPERT_DOWN: {
        size_t k = st->op->in[0].width > st->op->u.experts.ff ? st->op->in[0].width : st->op->u.experts.ff;
        return LINE_BYTES + round_line(k * 4 * sizeof(float)) + 2 * EXPERT_ROWS * sizeof(float);
    }
    default: return LINE_BYTES + (size_t)width * sizeof(float);
    }
}

/* The thread's scratch after its first line. */
static float *scratch_of(const struct sg_cpu_pass *a, uint32_t thread)
{
    /* invalidates the activations that a matrix stage prepared in this scratch */
    *(uint64_t *)(void *)a->p->threads[thread] = 0;
    return (float *)(void *)(a->p->threads[thread] + LINE_BYTES);
}

/* Row of an input operand; NULL: the op has no such input. */
static const float *in_row(const struct sg_cpu_pass *a, const struct sg_cpu_stage *st, int input, uint32_t row)
{
    size_t stride;
    return st->op->in[input].value < 0 ? NULL : sg_cpu_operand_row(a, st->op->in[input], row, &stride);
}

static float *out_row(const struct sg_cpu_pass *a, const struct sg_cpu_stage *st, uint32_t row)
{
    size_t stride;
    return sg_cpu_operand_row(a, (struct sg_operand){st->op->out, 0, 0}, row, &stride);
}

/* Each group is normalised separately, with the same weight. The gate is SiLU. */
void sg_row_norm(const struct sg_kernels *k, const struct sg_cpu_norm *use, const float *x, const float *gate,
                 uint32_t width, float *y)
{
    const struct sg_norm *n = &use->op->u.norm;
    uint32_t groups = n->groups ? n->groups : 1, each = width / groups;
    for (uint32_t i = 0; i < width; i += each) {
        k->norm(x + i, each, n, use->weight, use->bias, y + i);
        if (gate) k->glu(SG_ACT_SILU, gate + i, y + i, each, y + i);
    }
}

/* Cosine and sine of every rope table for one row, computed in double so that large positions keep
 * their accuracy. */
static void angles_row(const struct sg_cpu_pass *a, uint32_t row)
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

/* One row of the token table, scaled, plus the row of the position table if there is one. */
static void embed_row(const struct sg_cpu_pass *a, const struct sg_cpu_stage *st, uint32_t row, float *scratch)
{
    const struct sg_graph *g = a->p->base.graph;
    const struct sg_embed *e = &st->op->u.embed;
    float *y = out_row(a, st, row);
    uint32_t d = g->values[st->op->out].width;
    sg_tensor_row(g->tensors[e->table.tensor], (uint64_t)e->table.at + (uint32_t)a->p->tokens[row], 0, d, y);
    if (e->scale != 1.0f)
        for (uint32_t i = 0; i < d; i++) y[i] *= e->scale;
    /* learned absolute positions */
    if (e->positions.tensor < 0) return;
    sg_tensor_row(g->tensors[e->positions.tensor], e->positions.at + a->p->row_pos[row], 0, d, scratch);
    sg_cpu_pass_kernels(a)->add(y, scratch, d, y);
}

/* Rotation that was not fused into an attention op, head by head. */
static void rope_row(const struct sg_cpu_pass *a, const struct sg_cpu_stage *st, uint32_t row)
{
    const struct sg_rope *r = &st->op->u.rope;
    const float *x = in_row(a, st, 0, row),
                *cs = a->p->angles + (size_t)row * a->p->angle_columns + a->p->angle_at[r->table];
    float *y = out_row(a, st, row);
    for (uint32_t h = 0; h < r->heads; h++)
        sg_cpu_pass_kernels(a)->rope(x + (size_t)h * r->head_width, a->p->base.graph->ropes[r->table].pairs,
                                 r->head_width, cs, (float)r->sign, y + (size_t)h * r->head_width);
}

/* y = x times a vector, a stored scalar, or the op's constant. */
static void scale_row(const struct sg_cpu_stage *st, const float *x, uint32_t width, float *y)
{
    int one = st->scale_n == 1;
    float value = st->w0 ? st->w0[0] : st->op->u.scale.value;
    for (uint32_t i = 0; i < width; i++) y[i] = x[i] * (st->w0 && !one ? st->w0[i] : value);
}

/* Mixture-of-experts routing of one row: softmax or sigmoid scores; the top k by score plus bias, ties
 * to the lowest index. y: k expert indices as floats, then their k weights. */
static void route_row(const struct sg_cpu_stage *st, const float *x, float *scores, float *y)
{
    const struct sg_route *r = &st->op->u.route;
    float *biased = scores + r->experts, max = -INFINITY, sum = 0.0f;
    for (uint32_t e = 0; e < r->experts; e++) max = x[e] > max ? x[e] : max;
    for (uint32_t e = 0; e < r->experts; e++) {
        scores[e] = r->sigmoid ? 1.0f / (1.0f + expf(-x[e])) : expf(x[e] - max);
        sum += scores[e];
    }
    for (uint32_t e = 0; e < r->experts; e++) {
        if (!r->sigmoid) scores[e] /= sum;
        biased[e] = scores[e] + (st->w0 ? st->w0[e] : 0.0f);
    }
    sum = 0.0f;
    for (uint32_t i = 0; i < r->k; i++) {
        uint32_t best = UINT32_MAX;          /* NaN never wins; if only NaN is left, expert 0 */
        for (uint32_t e = 0; e < r->experts; e++)
            if (biased[e] != -INFINITY && (best == UINT32_MAX || biased[e] > biased[best])) best = e;
        if (best == UINT32_MAX) best = 0;
        biased[best] = -INFINITY;
        y[i] = (float)best;
        y[r->k + i] = scores[best];
        sum += scores[best];
    }
    /* renormalise: the k weights sum to `scale` */
    for (uint32_t i = 0; i < r->k; i++) y[r->k + i] = y[r->k + i] * r->scale / (r->renormalise ? sum : 1.0f);
}

/* Stages with one item per row. */
static void elementwise_row(struct sg_cpu_pass *a, const struct sg_cpu_stage *st, uint32_t row, uint32_t thread)
{
    const struct sg_kernels *k = sg_cpu_pass_kernels(a);
    uint32_t width = a->p->base.graph->values[st->op->out].width;
    float *y = out_row(a, st, row);
    switch (st->kind) {
    case SG_ST_EMBED: embed_row(a, st, row, scratch_of(a, thread)); break;
    case SG_ST_NORM: sg_row_norm(k, &st->norm, in_row(a, st, 0, row), in_row(a, st, 1, row), width, y); break;
    case SG_ST_ROPE: rope_row(a, st, row); break;
    case SG_ST_GLU: k->glu(st->op->u.glu.act, in_row(a, st, 0, row), in_row(a, st, 1, row), width, y); break;
    case SG_ST_ACT: k->act(st->op->u.act.act, in_row(a, st, 0, row), width, y); break;
    case SG_ST_ADD: k->add(in_row(a, st, 0, row), in_row(a, st, 1, row), width, y); break;
    case SG_ST_SCALE: scale_row(st, in_row(a, st, 0, row), width, y); break;
    case SG_ST_ROUTE: route_row(st, in_row(a, st, 0, row), scratch_of(a, thread), y); break;
    case SG_ST_ROWS: memcpy(y, in_row(a, st, 0, a->p->wanted[row]), width * sizeof *y); break;
    default: break;
    }
}

/* First row of a span among the rows of the pass. */
static uint32_t span_row(const struct sg_cpu_pass *a, uint32_t span)
{
    uint32_t row = 0;
    for (uint32_t s = 0; s < span; s++) row += a->spans[s].rows;
    return row;
}

/* A slot of the state of a span. */
static struct sg_cpu_slot *slot_of(const struct sg_cpu_pass *a, uint32_t span, int32_t slot)
{
    return sg_cpu_slot_at(sg_cpu_state_of(a->spans[span].state), (uint32_t)slot);
}

/* Channels [from, from + n) of one span, all rows. The slot holds the last taps - 1 inputs before the
 * span. */
static void conv_cols(struct sg_cpu_pass *a, const struct sg_cpu_stage *st, uint32_t span, uint32_t from, uint32_t n)
{
    const struct sg_conv *c = &st->op->u.conv;
    uint32_t width = a->p->base.graph->values[st->op->out].width, past = c->taps - 1,
             first = span_row(a, span), rows = a->spans[span].rows;
    float *slot = slot_of(a, span, c->slot)->fixed + from;
    const float *x[16];
    /* tap j of row t is input t + j - past: from the slot if that is negative, otherwise from this
     * batch */
    for (uint32_t t = 0; t < rows; t++) {
        if (t % SG_CHUNK == 0 && sg_cpu_pass_canceled(a)) return;
        for (uint32_t j = 0; j < c->taps; j++)
            x[j] =
                t + j < past ? slot + (size_t)(t + j) * width : in_row(a, st, 0, first + t + j - past) + from;
        sg_cpu_pass_kernels(a)->conv(x, c->taps, st->w0 + from, width, st->w1 ? st->w1 + from : NULL, c->act, n,
                                 out_row(a, st, first + t) + from);
    }
    for (uint32_t i = 0; i < past;
         /* The last `past` inputs become the slot's content. Rising order reads an entry before it is
          * overwritten. */
         i++) {
        const float *last = rows + i < past ? slot + (size_t)(rows + i) * width
                                            : in_row(a, st, 0, first + rows + i - past) + from;
        memcpy(slot + (size_t)i * width, last, n * sizeof *slot);
    }
}

/* y = x * scale / sqrt(x.x + eps); eps <= 0: only scaled. */
static void l2_normalise(const struct sg_kernels *k, const float *x, uint32_t n, float eps, float scale,
                        float *y)
{
    if (eps > 0.0f) scale /= sqrtf(k->dot(x, x, n) + eps);
    for (uint32_t i = 0; i < n; i++) y[i] = x[i] * scale;
}

/* log(1 + e^x) without overflow. */
static float softplus(float x) { return (x > 0.0f ? x : 0.0f) + log1pf(expf(-fabsf(x))); }

/* One value head of one span, all rows, DELTA_ROWS at a time: normalises queries and keys, computes
 * decay and beta per row, and calls the delta kernel. Several value heads may share a key head. */
static void delta_head(struct sg_cpu_pass *a, const struct sg_cpu_stage *st, uint32_t span, uint32_t h, float *scratch)
{
    const struct sg_kernels *k = sg_cpu_pass_kernels(a);
    const struct sg_delta *d = &st->op->u.delta;
    uint32_t at = span_row(a, span), end = at + a->spans[span].rows;
    size_t key = (size_t)(h / (d->v_heads / d->k_heads)) * d->dk, value = (size_t)h * d->dv, stride;
    float *q = scratch + SG_DELTA_COLS * (size_t)d->dk, *kk = q + DELTA_ROWS * (size_t)d->dk,
          *decay = kk + DELTA_ROWS * (size_t)d->dk, *beta = decay + DELTA_ROWS;
    float *s = slot_of(a, span, d->slot)->fixed + value * d->dk;
    /* per head: decay = exp(rate * softplus(dt + bias)) */
    float rate = d->decay_is_log ? -expf(st->w0[h]) : st->w0[h];
    struct sg_delta_args r = {
        .dk = d->dk, .dv = d->dv, .q = q, .k = kk, .scratch = scratch, .ldk = d->dk, .decay = decay, .beta = beta};
    for (; at < end; at += r.rows) {
        if (sg_cpu_pass_canceled(a)) return;
        /* up to DELTA_ROWS tokens share one read of the state */
        r.rows = end - at < DELTA_ROWS ? end - at : DELTA_ROWS;
        for (uint32_t t = 0; t < r.rows; t++) {
            size_t to = t * (size_t)d->dk;
            l2_normalise(k, in_row(a, st, 0, at + t) + key, d->dk, d->l2_eps, 1.0f / sqrtf((float)d->dk), q + to);
            l2_normalise(k, in_row(a, st, 1, at + t) + key, d->dk, d->l2_eps, 1.0f, kk + to);
            decay[t] = expf(rate * softplus(in_row(a, st, 3, at + t)[h] + (st->w1 ? st->w1[h] : 0.0f)));
            beta[t] = 1.0f / (1.0f + expf(-in_row(a, st, 4, at + t)[h]));
        }
        r.v = sg_cpu_operand_row(a, st->op->in[2], at, &stride) + value;
        r.ldv = stride;
        r.o = sg_cpu_operand_row(a, (struct sg_operand){st->op->out, 0, 0}, at, &stride) + value;
        r.ldo = stride;
        k->delta(s, &r);
    }
}

/* One activation row times rows [from, from + rows) of an expert's matrix. from is a multiple of
 * SG_GROUP. */
static void row_mm(const struct sg_kernels *k, const struct sg_packed_weight *w, const float *x, uint8_t *scratch,
                       uint32_t from, uint32_t rows, float *out)
{
    const void *tile = x;
    /* always fine: one row is bound by reading the weights */
    if (w->kind < SG_PACK_F32) {
        k->quant(x, w->k, 1, w->k, sg_pack_scale_cols(w->kind), 1, scratch);
        tile = scratch;
    }
    k->few[w->kind](w->data + from / SG_GROUP * w->group_bytes, w->k, rows, tile, 1, 1, out, rows);
}

/* Item = row and one of its k experts: gate and up projections, EXPERT_ROWS at a time, then the
 * activation. */
static void expert_up(struct sg_cpu_pass *a, const struct sg_cpu_stage *st, uint32_t item, float *scratch)
{
    const struct sg_kernels *k = sg_cpu_pass_kernels(a);
    const struct sg_experts *e = &st->op->u.experts;
    uint32_t row = item / e->k, i = item % e->k, index = (uint32_t)in_row(a, st, 1, row)[i];
    /* hidden rows are padded to 16 columns per expert */
    size_t stride, ffp = (e->ff + 15) / 16 * 16;
    float *y = sg_cpu_operand_row(a, (struct sg_operand){st->expert_hidden, 0, 0}, row, &stride) + i * ffp;
    uint32_t widest = st->op->in[0].width > e->ff ? st->op->in[0].width : e->ff;
    float *up = scratch + round_line((size_t)widest * 16) / sizeof *scratch, *gate = up + EXPERT_ROWS;
    const struct sg_packed_weight *wg = st->experts[0][index], *wu = st->experts[1][index];
    for (uint32_t from = 0; from < e->ff; from += EXPERT_ROWS) {
        uint32_t n = e->ff - from < EXPERT_ROWS ? e->ff - from : EXPERT_ROWS;
        row_mm(k, wg, in_row(a, st, 0, row), (uint8_t *)scratch, from, n, gate);
        row_mm(k, wu, in_row(a, st, 0, row), (uint8_t *)scratch, from, n, up);
        k->glu(e->act, gate, up, n, y + from);
    }
}

/* Columns [from, from + n) of one row: the down projections of its experts, summed in the order of the routing, with
 * the routing weights. */
static void expert_down(struct sg_cpu_pass *a, const struct sg_cpu_stage *st, uint32_t row, uint32_t from, uint32_t n,
                        float *scratch)
{
    const struct sg_kernels *k = sg_cpu_pass_kernels(a);
    const struct sg_experts *e = &st->op->u.experts;
    size_t stride, ffp = (e->ff + 15) / 16 * 16;
    const float *h = sg_cpu_operand_row(a, (struct sg_operand){st->expert_hidden, 0, 0}, row, &stride),
                *routing = in_row(a, st, 1, row);
    uint32_t widest = st->op->in[0].width > e->ff ? st->op->in[0].width : e->ff;
    float *part = scratch + round_line((size_t)widest * 16) / sizeof *scratch, *y = out_row(a, st, row) + from;
    memset(y, 0, n * sizeof *y);
    for (uint32_t i = 0; i < e->k; i++) {
        row_mm(k, st->experts[2][(uint32_t)routing[i]], h + i * ffp, (uint8_t *)scratch, from, n, part);
        k->axpy(routing[e->k + i], part, n, y);
    }
}

static uint32_t ceil_div(uint32_t n, uint32_t each) { return (n + each - 1) / each; }

/* An SG_OP_ROWS value that aliases its source needs no work (sg_cpu_value_loc.from). */
uint32_t sg_rows_items(const struct sg_cpu_pass *a, const struct sg_cpu_stage *st)
{
    if (st->kind == SG_ST_ANGLES) return a->t;
    uint32_t rows = sg_cpu_stage_rows(a, st), width = a->p->base.graph->values[st->op->out].width;
    switch (st->kind) {
    case SG_ST_CONV: return a->spans_n * ceil_div(width, CONV_COLS);
    case SG_ST_DELTA: return a->spans_n * st->op->u.delta.v_heads;
    case SG_ST_EXPERT_UP: return rows * st->op->u.experts.k;
    case SG_ST_EXPERT_DOWN: return rows * ceil_div(width, EXPERT_ROWS);
    case SG_ST_ROWS: return a->t == a->r && a->p->value_locs[st->op->out].from >= 0 ? 0 : rows;
    default: return rows;
    }
}

void sg_rows_work(struct sg_cpu_pass *a, const struct sg_cpu_stage *st, uint32_t item, uint32_t thread)
{
    if (st->kind == SG_ST_ANGLES) {
        angles_row(a, item);
        return;
    }
    uint32_t width = a->p->base.graph->values[st->op->out].width;
    switch (st->kind) {
    case SG_ST_CONV: {
        uint32_t n = ceil_div(width, CONV_COLS), from = item % n * CONV_COLS;
        conv_cols(a, st, item / n, from, width - from < CONV_COLS ? width - from : CONV_COLS);
        break;
    }
    case SG_ST_DELTA:
        delta_head(a, st, item / st->op->u.delta.v_heads, item % st->op->u.delta.v_heads, scratch_of(a, thread));
        break;
    case SG_ST_EXPERT_UP: expert_up(a, st, item, scratch_of(a, thread)); break;
    case SG_ST_EXPERT_DOWN: {
        uint32_t n = ceil_div(width, EXPERT_ROWS), from = item % n * EXPERT_ROWS;
        expert_down(a, st, item / n, from, width - from < EXPERT_ROWS ? width - from : EXPERT_ROWS,
                    scratch_of(a, thread));
        break;
    }
    default: elementwise_row(a, st, item, thread);
    }
}
