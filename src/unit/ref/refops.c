/* refops.c: what each op computes, one function per op, to be read beside graph/op.h. fp32 values; sums
 * inside norms, softmax and l2 in double, so that the specification does not depend on their order; angles in
 * double. linear and experts are in reflinear.c.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "unit/ref/ref.h"

struct ref_view ref_view_of(const struct ref_pass *p, const struct sg_operand *x)
{
    if (x->value < 0) return (struct ref_view){0};
    uint32_t width = p->graph->values[x->value].width;
    return (struct ref_view){.data = p->values[x->value].data + x->at, .stride = width, .width = x->width};
}

void *ref_scratch(struct ref_pass *p, size_t n, size_t entry)
{
    void *room = n <= SIZE_MAX / 2 / entry ? sg_arena_alloc(&p->scratch, n * entry) : NULL;
    if (!room) sg_no_memory("scratch of an op", n * entry, p->err);
    return room;
}

segue_status ref_vector(struct ref_pass *p, const struct sg_weight *w, const float **out)
{
    *out = NULL;
    if (w->tensor < 0) return SEGUE_OK;
    const struct sg_tensor *t = p->graph->tensors[w->tensor];
    float *numbers = ref_scratch(p, (size_t)t->rows * t->cols, sizeof *numbers);
    if (!numbers) return SEGUE_EMEMORY;
    sg_tensor_read(t, numbers);
    *out = numbers;
    return SEGUE_OK;
}

int ref_stopped(const struct ref_pass *p)
{
    return p->stop || (p->cancel && !p->rank_sync && atomic_load(p->cancel));
}

/* For large negative x, exp overflows to infinity and the result is 0, as it should be. */
static float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

float ref_act(enum sg_act act, float x)
{
    switch (act) {
    case SG_ACT_SILU: return x * sigmoid(x);
    case SG_ACT_GELU: return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
    case SG_ACT_GELU_TANH:
        return 0.5f * x * (1.0f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
    case SG_ACT_GELU_QUICK: return x * sigmoid(1.702f * x);
    case SG_ACT_RELU: return x > 0 || isnan(x) ? x : 0;
    case SG_ACT_RELU2: return x > 0 || isnan(x) ? x * x : 0;
    case SG_ACT_SIGMOID: return sigmoid(x);
    case SG_ACT_TANH: return tanhf(x);
    default: return x;
    }
}

/* Rows of the op's result, and its width. */
static uint32_t rows_of(const struct ref_pass *p, const struct sg_op *op)
{
    return p->rows_n[p->graph->values[op->out].wanted];
}
static uint32_t width_of(const struct ref_pass *p, const struct sg_op *op)
{
    return p->graph->values[op->out].width;
}

/* y_t = scale * table[id_t] (+ positions[place of t in its sequence]). Positions are those of the sequence,
 * not of the run: a span that continues a state begins at `first`. */
static segue_status op_embed(struct ref_pass *p, const struct sg_op *op, float *out)
{
    const struct sg_embed *e = &op->u.embed;
    const struct sg_tensor *table = p->graph->tensors[e->table.tensor];
    const struct sg_tensor *positions =
        e->positions.tensor < 0 ? NULL : p->graph->tensors[e->positions.tensor];
    const int32_t *tokens = p->values[op->in[0].value].tokens;
    uint32_t d = width_of(p, op);
    float *place = ref_scratch(p, d, sizeof *place);
    if (!place) return SEGUE_EMEMORY;
    for (uint32_t s = 0; s < p->spans_n; s++)
        for (uint32_t i = 0; i < p->spans[s].rows; i++) {
            uint32_t t = p->from[0][s] + i;
            float *y = out + (size_t)t * d;
            sg_tensor_row(table, (uint64_t)e->table.at + (uint32_t)tokens[t], 0, d, y);
            for (uint32_t c = 0; c < d; c++) y[c] *= e->scale;
            if (!positions) continue;
            sg_tensor_row(positions, e->positions.at + p->spans[s].first + i, 0, d, place);
            for (uint32_t c = 0; c < d; c++) y[c] += place[c];
        }
    p->weight_bytes += table->bytes / table->rows * p->rows_n[0] * (positions ? 2 : 1);
    return SEGUE_OK;
}

/* One group: x -> (x - mean) / std or x / rms. */
static void norm_group(const struct sg_norm *n, const float *x, uint32_t width, float *y)
{
    double mean = 0, squares = 0;
    if (n->kind == SG_NORM_LAYER) {
        for (uint32_t c = 0; c < width; c++) mean += x[c];
        mean /= width;
    }
    for (uint32_t c = 0; c < width; c++) squares += (x[c] - mean) * (x[c] - mean);
    double inverse = 1.0 / sqrt(squares / width + (double)n->eps);
    for (uint32_t c = 0; c < width; c++) y[c] = (float)((x[c] - mean) * inverse);
}

static segue_status op_norm(struct ref_pass *p, const struct sg_op *op, float *out)
{
    const struct sg_norm *n = &op->u.norm;
    struct ref_view x = ref_view_of(p, &op->in[0]), gate = ref_view_of(p, &op->in[1]);
    uint32_t group = x.width / n->groups;
    const float *weight, *bias;
    SG_TRY(ref_vector(p, &n->weight, &weight));
    SG_TRY(ref_vector(p, &n->bias, &bias));
    for (uint32_t t = 0; t < rows_of(p, op); t++) {
        float *y = out + (size_t)t * x.width;
        /* Groups (heads) share weight and bias; the gate comes last, so that it is not normalised. */
        for (uint32_t c = 0; c < x.width; c += group) norm_group(n, ref_row(x, t) + c, group, y + c);
        for (uint32_t c = 0; c < x.width; c++) {
            if (weight) y[c] *= n->plus_one ? 1.0f + weight[c % group] : weight[c % group];
            if (bias) y[c] += bias[c % group];
            if (gate.data) y[c] *= ref_act(SG_ACT_SILU, ref_row(gate, t)[c]);
        }
    }
    return SEGUE_OK;
}

/* Pairs are halves: column j turns with column j + pairs, both within one head. Angles grow with the position
 * in double: in fp32 a position beyond 10^5 is off by up to 0.004 radian; sign -1 turns back. */
static segue_status op_rope(struct ref_pass *p, const struct sg_op *op, float *out)
{
    const struct sg_rope *r = &op->u.rope;
    const struct sg_rope_table *table = &p->graph->ropes[r->table];
    struct ref_view x = ref_view_of(p, &op->in[0]);
    for (uint32_t s = 0; s < p->spans_n; s++)
        for (uint32_t i = 0; i < p->spans[s].rows; i++) {
            uint32_t t = p->from[0][s] + i;
            float *y = out + (size_t)t * x.width;
            memcpy(y, ref_row(x, t), x.width * sizeof *y);
            for (uint32_t j = 0; j < table->pairs; j++) {
                double angle = (double)(p->spans[s].first + i) * (double)table->inverse[j] * r->sign;
                float c = (float)(cos(angle) * (double)table->mscale),
                      sn = (float)(sin(angle) * (double)table->mscale);
                for (uint32_t h = 0; h < r->heads; h++) {
                    float *a = y + (size_t)h * r->head_width + j, *b = a + table->pairs;
                    float a0 = *a, b0 = *b;
                    *a = a0 * c - b0 * sn;
                    *b = b0 * c + a0 * sn;
                }
            }
        }
    return SEGUE_OK;
}

/* --- attend --- */

struct attend_work {
    const struct ref_pass *pass;
    const struct sg_attend *a;
    struct ref_view q, gate;
    const float *k, *v, *sinks;      /* rows [lo, end) of the span's state, as stored, in fp32 */
    float *scores;                   /* [threads][end - lo] */
    float *out;
    uint64_t first, lo, end;         /* position of the span's first row; rows of k and v */
    uint32_t t0;                     /* the span's first row among T */
    atomic_uint next_buffer;
};

/* Head h of one row: softmax of its scores over the rows [from, pos], then the weighted sum of v. All scores,
 * then their softmax, then the sum: a unit that does it in one pass must come to the same numbers. */
static void attend_head(const struct attend_work *w, const float *q, uint32_t h, uint64_t pos, float *scores,
                        float *y)
{
    const struct sg_attend *a = w->a;
    uint32_t kv = h / (a->heads / a->kv_heads);
    uint64_t from = a->window && pos + 1 > a->window ? pos + 1 - a->window : 0;
    /* The largest score is taken off before exp, so that nothing overflows; a sink takes part in that. */
    float most = w->sinks ? w->sinks[h] : -INFINITY;
    for (uint64_t j = from; j <= pos; j++) {
        const float *k = w->k + ((j - w->lo) * a->kv_heads + kv) * a->d;
        float s = ref_dot(q + (size_t)h * a->d, k, a->d) * a->scale;
        if (a->softcap > 0) s = a->softcap * tanhf(s / a->softcap);
        scores[j - from] = s;
        if (s > most) most = s;
    }
    double sum = w->sinks ? exp((double)w->sinks[h] - most) : 0;
    for (uint64_t j = from; j <= pos; j++) {
        scores[j - from] = expf(scores[j - from] - most);
        sum += scores[j - from];
    }
    float inverse = (float)(1.0 / sum);
    for (uint32_t c = 0; c < a->dv; c++) y[c] = 0;
    for (uint64_t j = from; j <= pos; j++) {
        const float *v = w->v + ((j - w->lo) * a->kv_heads + kv) * a->dv;
        float share = scores[j - from] * inverse;
        for (uint32_t c = 0; c < a->dv; c++) y[c] += share * v[c];
    }
}

/* Rows are shared between threads, never the keys of a row: a row is summed in one order whatever the number
 * of threads. */
static void attend_piece(void *arg, uint32_t from, uint32_t to)
{
    struct attend_work *w = arg;
    const struct sg_attend *a = w->a;
    float *scores = w->scores + atomic_fetch_add(&w->next_buffer, 1u) * (size_t)(w->end - w->lo);
    for (uint32_t i = from; i < to; i++)
        for (uint32_t h = 0; h < a->heads && !ref_stopped(w->pass); h++) {
            float *y = w->out + ((size_t)(w->t0 + i) * a->heads + h) * a->dv;
            attend_head(w, ref_row(w->q, w->t0 + i), h, w->first + i, scores, y);
            if (!w->gate.data) continue;
            for (uint32_t c = 0; c < a->dv; c++) y[c] *= sigmoid(ref_row(w->gate, w->t0 + i)[h * a->dv + c]);
        }
}

/* Own rows are appended first and read back from the state, so that a row sees itself and its neighbours as
 * stored (rounded to 16 bit or q8): one run of n rows then equals n runs of one. */
static segue_status op_attend(struct ref_pass *p, const struct sg_op *op, float *out)
{
    const struct sg_attend *a = &op->u.attend;
    struct ref_view k = ref_view_of(p, &op->in[1]), v = ref_view_of(p, &op->in[2]);
    struct attend_work w = {.pass = p, .a = a, .out = out};
    w.q = ref_view_of(p, &op->in[0]);
    w.gate = ref_view_of(p, &op->in[3]);
    SG_TRY(ref_vector(p, &a->sinks, &w.sinks));
    for (uint32_t s = 0; s < p->spans_n; s++) {
        const struct sg_span *span = &p->spans[s];
        w.t0 = p->from[0][s];
        w.first = span->first;
        /* Rows before the window of the first row are not read: they may be gone. */
        w.lo = a->window && w.first + 1 > a->window ? w.first + 1 - a->window : 0;
        w.end = w.first + span->rows;
        SG_TRY(ref_state_append(span->state, a->slot_k, ref_row(k, w.t0), k.stride, span->rows, p->err));
        SG_TRY(ref_state_append(span->state, a->slot_v, ref_row(v, w.t0), v.stride, span->rows, p->err));
        size_t rows = (size_t)(w.end - w.lo);
        float *held_k = ref_scratch(p, rows * k.width, sizeof *held_k);
        float *held_v = ref_scratch(p, rows * v.width, sizeof *held_v);
        w.scores = ref_scratch(p, rows * p->threads, sizeof *w.scores);
        if (!held_k || !held_v || !w.scores) return SEGUE_EMEMORY;
        ref_state_read(span->state, a->slot_k, w.lo, w.end, held_k);
        ref_state_read(span->state, a->slot_v, w.lo, w.end, held_v);
        w.k = held_k;
        w.v = held_v;
        atomic_store(&w.next_buffer, 0u);
        ref_split(p->threads, span->rows, attend_piece, &w);
        p->state_bytes +=
            rows * (span->state->slots[a->slot_k].row_bytes + span->state->slots[a->slot_v].row_bytes);
    }
    return SEGUE_OK;
}

/* --- recurrent ops --- */

/* y_t[c] = act(bias[c] + sum_j w[c][j] x_{t-taps+1+j}[c]); the last tap meets the current row. The slot holds
 * the taps - 1 rows before it, oldest first, zeros at the start of a sequence. */
static segue_status op_conv(struct ref_pass *p, const struct sg_op *op, float *out)
{
    const struct sg_conv *c = &op->u.conv;
    struct ref_view x = ref_view_of(p, &op->in[0]);
    uint32_t width = x.width, past = c->taps - 1;
    const float *weight, *bias;
    SG_TRY(ref_vector(p, &c->weight, &weight));
    SG_TRY(ref_vector(p, &c->bias, &bias));
    float *current =
        ref_scratch(p, (size_t)c->taps * width, sizeof *current); /* [taps, width], oldest first */
    if (!current) return SEGUE_EMEMORY;
    for (uint32_t s = 0; s < p->spans_n; s++) {
        float *memory = p->spans[s].state->slots[c->slot].next;
        for (uint32_t t = p->from[0][s]; t < p->from[0][s + 1]; t++) {
            memcpy(current, memory, (size_t)past * width * sizeof *current);
            memcpy(current + (size_t)past * width, ref_row(x, t), width * sizeof *current);
            for (uint32_t ch = 0; ch < width; ch++) {
                float sum = bias ? bias[ch] : 0;
                for (uint32_t j = 0; j < c->taps; j++)
                    sum += weight[(size_t)ch * c->taps + j] * current[(size_t)j * width + ch];
                out[(size_t)t * width + ch] = ref_act(c->act, sum);
            }
            memcpy(memory, current + width, (size_t)past * width * sizeof *current);
        }
        p->state_bytes += 2 * sg_slot_fixed_bytes(&p->spans[s].state->slots[c->slot].slot);
    }
    return SEGUE_OK;
}

/* log(1 + e^x) without overflow on one side and without losing small numbers on the other. */
static float softplus(float x) { return (x > 0 ? x : 0) + log1pf(expf(-fabsf(x))); }

/* y = x * scale, scale / sqrt(sum x^2 + eps) when eps > 0. */
static void l2_scaled(const float *x, uint32_t n, float eps, double scale, float *y)
{
    double squares = 0;
    for (uint32_t i = 0; i < n; i++) squares += (double)x[i] * x[i];
    if (eps > 0) scale /= sqrt(squares + (double)eps);
    for (uint32_t i = 0; i < n; i++) y[i] = (float)(x[i] * scale);
}

/* One token of one value head: S <- e^g S; d = beta (v - S^T k); S <- S + k d^T; y = S^T q. S [dk, dv]. */
static void delta_step(const struct sg_delta *p, const float *q, const float *k, const float *v, float g,
                       float beta, float *S, float *d, float *y)
{
    float decay = expf(g);
    for (uint32_t j = 0; j < p->dv; j++) d[j] = y[j] = 0;
    for (uint32_t i = 0; i < p->dk; i++)
        for (uint32_t j = 0; j < p->dv; j++) {
            S[(size_t)i * p->dv + j] *= decay;
            d[j] += S[(size_t)i * p->dv + j] * k[i];
        }
    for (uint32_t j = 0; j < p->dv; j++) d[j] = beta * (v[j] - d[j]);
    for (uint32_t i = 0; i < p->dk; i++)
        for (uint32_t j = 0; j < p->dv; j++) {
            S[(size_t)i * p->dv + j] += k[i] * d[j];
            y[j] += S[(size_t)i * p->dv + j] * q[i];
        }
}

/* Token by token, value head by value head: the definition, of which chunked forms are rearrangements. Value
 * head h reads key head h / (v_heads / k_heads). All of it in fp32, the memory too. */
static segue_status op_delta(struct ref_pass *p, const struct sg_op *op, float *out)
{
    const struct sg_delta *d = &op->u.delta;
    struct ref_view in[5];
    const float *decay, *dt;
    for (int i = 0; i < 5; i++) in[i] = ref_view_of(p, &op->in[i]);
    SG_TRY(ref_vector(p, &d->decay, &decay));
    SG_TRY(ref_vector(p, &d->dt, &dt));
    float *q = ref_scratch(p, (size_t)2 * d->dk + d->dv, sizeof *q), *k = q + d->dk, *change = k + d->dk;
    if (!q) return SEGUE_EMEMORY;
    for (uint32_t s = 0; s < p->spans_n; s++) {
        float *memory = p->spans[s].state->slots[d->slot].next;
        for (uint32_t t = p->from[0][s]; t < p->from[0][s + 1] && !ref_stopped(p); t++)
            for (uint32_t h = 0; h < d->v_heads; h++) {
                size_t key = (size_t)(h / (d->v_heads / d->k_heads)) * d->dk, value = (size_t)h * d->dv;
                l2_scaled(ref_row(in[0], t) + key, d->dk, d->l2_eps, 1.0 / sqrt(d->dk), q);
                l2_scaled(ref_row(in[1], t) + key, d->dk, d->l2_eps, 1.0, k);
                float rate = d->decay_is_log ? -expf(decay[h]) : decay[h];
                float g = rate * softplus(ref_row(in[3], t)[h] + dt[h]), beta = sigmoid(ref_row(in[4], t)[h]);
                delta_step(d, q, k, ref_row(in[2], t) + value, g, beta, memory + value * d->dk, change,
                           out + ((size_t)t * d->v_heads + h) * d->dv);
            }
        p->state_bytes += 2 * sg_slot_fixed_bytes(&p->spans[s].state->slots[d->slot].slot);
    }
    return SEGUE_OK;
}

/* --- elementwise ops and routing --- */

/* y = act(gate) * up, column by column. */
static segue_status op_glu(struct ref_pass *p, const struct sg_op *op, float *out)
{
    struct ref_view gate = ref_view_of(p, &op->in[0]), up = ref_view_of(p, &op->in[1]);
    for (uint32_t t = 0; t < rows_of(p, op); t++)
        for (uint32_t c = 0; c < gate.width; c++)
            out[(size_t)t * gate.width + c] = ref_act(op->u.glu.act, ref_row(gate, t)[c]) * ref_row(up, t)[c];
    return SEGUE_OK;
}

static segue_status op_act(struct ref_pass *p, const struct sg_op *op, float *out)
{
    struct ref_view x = ref_view_of(p, &op->in[0]);
    for (uint32_t t = 0; t < rows_of(p, op); t++)
        for (uint32_t c = 0; c < x.width; c++)
            out[(size_t)t * x.width + c] = ref_act(op->u.act.act, ref_row(x, t)[c]);
    return SEGUE_OK;
}

static segue_status op_add(struct ref_pass *p, const struct sg_op *op, float *out)
{
    struct ref_view x = ref_view_of(p, &op->in[0]), y = ref_view_of(p, &op->in[1]);
    for (uint32_t t = 0; t < rows_of(p, op); t++)
        for (uint32_t c = 0; c < x.width; c++)
            out[(size_t)t * x.width + c] = ref_row(x, t)[c] + ref_row(y, t)[c];
    return SEGUE_OK;
}

/* A weight of one number scales every column by it. */
static segue_status op_scale(struct ref_pass *p, const struct sg_op *op, float *out)
{
    struct ref_view x = ref_view_of(p, &op->in[0]);
    const struct sg_weight *w = &op->u.scale.weight;
    const float *weight;
    SG_TRY(ref_vector(p, w, &weight));
    int one = weight && p->graph->tensors[w->tensor]->cols == 1 && p->graph->tensors[w->tensor]->rows == 1;
    for (uint32_t t = 0; t < rows_of(p, op); t++)
        for (uint32_t c = 0; c < x.width; c++)
            out[(size_t)t * x.width + c] =
                ref_row(x, t)[c] * (weight ? weight[one ? 0 : c] : op->u.scale.value);
    return SEGUE_OK;
}

/* scores[e] = softmax over all, or sigmoid of each. */
static void route_scores(const struct sg_route *r, const float *logits, float *scores)
{
    float most = -INFINITY;
    double sum = 0;
    for (uint32_t e = 0; e < r->experts; e++)
        if (logits[e] > most) most = logits[e];
    for (uint32_t e = 0; e < r->experts; e++) {
        scores[e] = r->sigmoid ? sigmoid(logits[e]) : expf(logits[e] - most);
        sum += scores[e];
    }
    if (!r->sigmoid)
        for (uint32_t e = 0; e < r->experts; e++) scores[e] = (float)(scores[e] / sum);
}

/* The k largest scores, one after the other; a later expert must be strictly larger to win, so ties go to the
 * lowest index. The bias moves the choice and not the weight. */
static segue_status op_route(struct ref_pass *p, const struct sg_op *op, float *out)
{
    const struct sg_route *r = &op->u.route;
    struct ref_view logits = ref_view_of(p, &op->in[0]);
    const float *bias;
    SG_TRY(ref_vector(p, &r->bias, &bias));
    float *scores = ref_scratch(p, r->experts, sizeof *scores);
    unsigned char *taken = ref_scratch(p, r->experts, 1);
    if (!scores || !taken) return SEGUE_EMEMORY;
    for (uint32_t t = 0; t < rows_of(p, op); t++) {
        float *index = out + (size_t)t * 2 * r->k, *weight = index + r->k, sum = 0;
        route_scores(r, ref_row(logits, t), scores);
        memset(taken, 0, r->experts);
        for (uint32_t i = 0; i < r->k; i++) {
            uint32_t best = UINT32_MAX;
            for (uint32_t e = 0; e < r->experts; e++) {
                if (taken[e]) continue;
                if (best == UINT32_MAX ||
                    scores[e] + (bias ? bias[e] : 0) > scores[best] + (bias ? bias[best] : 0))
                    best = e;
            }
            taken[best] = 1;
            index[i] = (float)best;
            weight[i] = scores[best];
            sum += scores[best];
        }
        for (uint32_t i = 0; i < r->k; i++)
            weight[i] = (r->renormalise ? weight[i] / sum : weight[i]) * r->scale;
    }
    return SEGUE_OK;
}

/* The wanted rows of each span, spans in order: from T rows to R. */
static segue_status op_rows(struct ref_pass *p, const struct sg_op *op, float *out)
{
    struct ref_view x = ref_view_of(p, &op->in[0]);
    for (uint32_t s = 0; s < p->spans_n; s++)
        for (uint32_t i = 0; i < p->spans[s].wanted_n; i++)
            memcpy(out + (size_t)(p->from[1][s] + i) * x.width,
                   ref_row(x, p->from[0][s] + p->spans[s].wanted[i]), x.width * sizeof *out);
    return SEGUE_OK;
}

/* What the other ranks have comes through the host's memory; without them the graph is no whole one. */
static segue_status op_join(struct ref_pass *p, const struct sg_op *op, float *out)
{
    struct ref_view x = ref_view_of(p, &op->in[0]);
    uint32_t rows = rows_of(p, op);
    if (!p->rank_sync)
        return sg_fail(p->err, SEGUE_EUNSUPPORTED, "run: ref: join: this graph is one rank's share; run it with the others");
    float *own = ref_scratch(p, (size_t)rows * x.width, sizeof *own);
    if (!own) return SEGUE_EMEMORY;
    for (uint32_t t = 0; t < rows; t++) memcpy(own + (size_t)t * x.width, ref_row(x, t), x.width * sizeof *own);
    return sg_rank_sync_join(p->rank_sync, p->rank, &op->u.join, own, rows, x.width, out, p->err);
}

/* The whole list: an op that is missing here does not exist. */
segue_status ref_op(struct ref_pass *p, const struct sg_op *op, float *out)
{
    switch (op->code) {
    case SG_OP_EMBED: return op_embed(p, op, out);
    case SG_OP_NORM: return op_norm(p, op, out);
    case SG_OP_LINEAR: return ref_linear(p, op, out);
    case SG_OP_ROPE: return op_rope(p, op, out);
    case SG_OP_ATTEND: return op_attend(p, op, out);
    case SG_OP_CONV: return op_conv(p, op, out);
    case SG_OP_DELTA: return op_delta(p, op, out);
    case SG_OP_GLU: return op_glu(p, op, out);
    case SG_OP_ACT: return op_act(p, op, out);
    case SG_OP_ADD: return op_add(p, op, out);
    case SG_OP_SCALE: return op_scale(p, op, out);
    case SG_OP_ROUTE: return op_route(p, op, out);
    case SG_OP_EXPERTS: return ref_experts(p, op, out);
    case SG_OP_ROWS: return op_rows(p, op, out);
    case SG_OP_JOIN: return op_join(p, op, out);
    default:
        return sg_fail(p->err, SEGUE_EINTERNAL, "run: ref: op %d is unknown; report this", (int)op->code);
    }
}
