/* ref_ops.c: the ops that graph/op.h specifies, one function per op; linear and experts are in ref_linear.c. Values are fp32.
 * Sums inside norms, softmax and l2 are double, so that their order does not matter; so are rope angles.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "unit/ref/ref.h"

/* Rows and columns of the op's result. */
static uint32_t rows_of(const struct ref_pass *p, const struct sg_op *op)
{
    return p->rows_n[p->graph->values[op->out].wanted];
}
static uint32_t width_of(const struct ref_pass *p, const struct sg_op *op)
{
    return p->graph->values[op->out].width;
}

/* y_t = scale * table[id_t] (+ positions[pos_t]), where pos_t is the position in the sequence. */
static segue_status op_embed(struct ref_pass *p, const struct sg_op *op, float *out)
{
    const struct sg_embed *e = &op->u.embed;
    const struct sg_tensor *table = p->graph->tensors[e->table.tensor];
    const struct sg_tensor *positions =
        e->positions.tensor < 0 ? NULL : p->graph->tensors[e->positions.tensor];
    const int32_t *tokens = p->values[op->in[0].value].tokens;
    uint32_t d = width_of(p, op);
    float *position = ref_scratch(p, d, sizeof *position);
    if (!position) return SEGUE_EMEMORY;
    for (uint32_t s = 0; s < p->spans_n; s++)
        for (uint32_t i = 0; i < p->spans[s].rows; i++) {
            uint32_t t = p->from[0][s] + i;
            float *y = out + (size_t)t * d;
            sg_tensor_row(table, (uint64_t)e->table.at + (uint32_t)tokens[t], 0, d, y);
            for (uint32_t c = 0; c < d; c++) y[c] *= e->scale;
            /* Learned absolute positions (GPT-2); the engine limits the context to the rows of this table. */
            if (!positions) continue;
            sg_tensor_row(positions, e->positions.at + p->spans[s].first + i, 0, d, position);
            for (uint32_t c = 0; c < d; c++) y[c] += position[c];
        }
    p->weight_bytes += table->bytes / table->rows * p->rows_n[0] * (positions ? 2 : 1);
    return SEGUE_OK;
}

/* One group of columns: (x - mean) / std, or x / rms. */
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

/* Groups (heads) share weight and bias. The gate is applied last: it is not normalised. */
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
        for (uint32_t c = 0; c < x.width; c += group) norm_group(n, ref_row(x, t) + c, group, y + c);
        for (uint32_t c = 0; c < x.width; c++) {
            if (weight) y[c] *= n->plus_one ? 1.0f + weight[c % group] : weight[c % group];
            if (bias) y[c] += bias[c % group];
            if (gate.data) y[c] *= ref_act(SG_ACT_SILU, ref_row(gate, t)[c]);
        }
    }
    return SEGUE_OK;
}

/* Column j of a head rotates with column j + pairs. Angles are computed in double: in fp32, positions above 10^5 would be off by
 * up to 0.004 radian. sign -1 rotates back. */
static segue_status op_rope(struct ref_pass *p, const struct sg_op *op, float *out)
{
    const struct sg_rope *r = &op->u.rope;
    const struct sg_rope_table *table = &p->graph->ropes[r->table];
    struct ref_view x = ref_view_of(p, &op->in[0]);
    for (uint32_t s = 0; s < p->spans_n; s++)
        for (uint32_t i = 0; i < p->spans[s].rows; i++) {
            uint32_t t = p->from[0][s] + i;
            float *y = out + (size_t)t * x.width;
            /* Columns after the rotated ones (partial rope) are copied unchanged. */
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

/* Shared by the threads of one span; each computes other rows of `out`. */
struct attend_work {
    const struct ref_pass *pass;
    const struct sg_attend *a;
    struct ref_view q, gate;
    const float *k, *v, *sinks;      /* positions [lo, end) as stored, converted to fp32; one sink per head or NULL */
    float *scores;                   /* [threads][end - lo] */
    float *out;
    uint64_t first, lo, end;         /* position of the span's first token; positions in k and v */
    uint32_t t0;                     /* the span's first row of T */
    atomic_uint next_buffer;
};

/* Head h of the token at `pos`: scores of the positions [from, pos], their softmax, then the weighted sum of v. Units that do
 * this in one pass are compared with it. The maximum is subtracted before exp to avoid overflow; a sink is one more score,
 * whose weight is discarded. */
static void attend_head(const struct attend_work *w, const float *q, uint32_t h, uint64_t pos, float *scores,
                        float *y)
{
    const struct sg_attend *a = w->a;
    /* Grouped-query attention: consecutive query heads share a K/V head. */
    uint32_t kv = h / (a->heads / a->kv_heads);
    uint64_t from = a->window && pos + 1 > a->window ? pos + 1 - a->window : 0;
    /* The token itself is always visible, so that max is finite and the sum below is at least one. */
    float max = w->sinks ? w->sinks[h] : -INFINITY;
    for (uint64_t j = from; j <= pos; j++) {
        const float *k = w->k + ((j - w->lo) * a->kv_heads + kv) * a->d;
        float s = ref_dot(q + (size_t)h * a->d, k, a->d) * a->scale;
        if (a->softcap > 0) s = a->softcap * tanhf(s / a->softcap);
        scores[j - from] = s;
        if (s > max) max = s;
    }
    double sum = w->sinks ? exp((double)w->sinks[h] - max) : 0;
    for (uint64_t j = from; j <= pos; j++) {
        scores[j - from] = expf(scores[j - from] - max);
        sum += scores[j - from];
    }
    float inverse = (float)(1.0 / sum);
    for (uint32_t c = 0; c < a->dv; c++) y[c] = 0;
    for (uint64_t j = from; j <= pos; j++) {
        const float *v = w->v + ((j - w->lo) * a->kv_heads + kv) * a->dv;
        float weight = scores[j - from] * inverse;
        for (uint32_t c = 0; c < a->dv; c++) y[c] += weight * v[c];
    }
}

/* Threads divide the rows, not the keys of a row, so that the order of additions does not depend on the number of threads. */
static void attend_range(void *arg, uint32_t from, uint32_t to)
{
    struct attend_work *w = arg;
    const struct sg_attend *a = w->a;
    float *scores = w->scores + atomic_fetch_add(&w->next_buffer, 1u) * (size_t)(w->end - w->lo);
    for (uint32_t i = from; i < to; i++)
        for (uint32_t h = 0; h < a->heads && !ref_stopped(w->pass); h++) {
            float *y = w->out + ((size_t)(w->t0 + i) * a->heads + h) * a->dv;
            attend_head(w, ref_row(w->q, w->t0 + i), h, w->first + i, scores, y);
            if (!w->gate.data) continue;
            for (uint32_t c = 0; c < a->dv; c++) y[c] *= ref_sigmoid(ref_row(w->gate, w->t0 + i)[h * a->dv + c]);
        }
}

/* K and V of the span are appended to the state first and read back, so that a token attends to itself and its neighbours as
 * stored (rounded to 16 bit or q8). A run of n tokens then equals n runs of one. */
static segue_status op_attend(struct ref_pass *p, const struct sg_op *op, float *out)
{
    const struct sg_attend *a = &op->u.attend;
    struct ref_view k = ref_view_of(p, &op->in[1]), v = ref_view_of(p, &op->in[2]);
    struct attend_work w = {.pass = p, .a = a, .out = out};
    uint32_t slot_k = (uint32_t)a->slot_k, slot_v = (uint32_t)a->slot_v;
    w.q = ref_view_of(p, &op->in[0]);
    w.gate = ref_view_of(p, &op->in[3]);
    SG_TRY(ref_vector(p, &a->sinks, &w.sinks));
    for (uint32_t s = 0; s < p->spans_n; s++) {
        const struct sg_span *span = &p->spans[s];
        w.t0 = p->from[0][s];
        w.first = span->first;
        /* Positions before the window of the first token may be released. */
        w.lo = a->window && w.first + 1 > a->window ? w.first + 1 - a->window : 0;
        w.end = w.first + span->rows;
        SG_TRY(ref_state_append(span->state, slot_k, ref_row(k, w.t0), k.stride, span->rows, p->err));
        SG_TRY(ref_state_append(span->state, slot_v, ref_row(v, w.t0), v.stride, span->rows, p->err));
        size_t rows = (size_t)(w.end - w.lo);
        float *held_k = ref_scratch(p, rows * k.width, sizeof *held_k);
        float *held_v = ref_scratch(p, rows * v.width, sizeof *held_v);
        w.scores = ref_scratch(p, rows * p->threads, sizeof *w.scores);
        if (!held_k || !held_v || !w.scores) return SEGUE_EMEMORY;
        ref_state_read(span->state, slot_k, w.lo, w.end, held_k);
        ref_state_read(span->state, slot_v, w.lo, w.end, held_v);
        w.k = held_k;
        w.v = held_v;
        atomic_store(&w.next_buffer, 0u);
        ref_parallel(p->threads, span->rows, attend_range, &w);
        p->state_bytes +=
            rows * (ref_slot_at(span->state, slot_k)->core.row_bytes + ref_slot_at(span->state, slot_v)->core.row_bytes);
    }
    return SEGUE_OK;
}

/* --- recurrent ops --- */

/* y_t[c] = act(bias[c] + sum_j w[c][j] x_{t-taps+1+j}[c]); the last tap is the current row. The slot has the taps - 1 rows before
 * it, oldest first, zeros at the start of a sequence. */
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
        /* `next` is the copy that becomes the slot when the run has succeeded; a failed run changes nothing. */
        float *memory = ref_slot_at(p->spans[s].state, (uint32_t)c->slot)->next;
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
        p->state_bytes += 2 * ref_slot_at(p->spans[s].state, (uint32_t)c->slot)->core.fixed_bytes;
    }
    return SEGUE_OK;
}

/* log(1 + e^x) without overflow for large x and without loss of precision for small x. */
static float softplus(float x) { return (x > 0 ? x : 0) + log1pf(expf(-fabsf(x))); }

/* y = x * scale; eps > 0: x * scale / sqrt(sum x^2 + eps). */
static void l2_scaled(const float *x, uint32_t n, float eps, double scale, float *y)
{
    double squares = 0;
    for (uint32_t i = 0; i < n; i++) squares += (double)x[i] * x[i];
    if (eps > 0) scale /= sqrt(squares + (double)eps);
    for (uint32_t i = 0; i < n; i++) y[i] = (float)(x[i] * scale);
}

/* Gated delta rule, one token of one value head: S <- e^g S; d = beta (v - S^T k); S <- S + k d^T; y = S^T q. S is [dk, dv]. */
static void delta_step(const struct sg_delta *p, const float *q, const float *k, const float *v, float g,
                       float beta, float *S, float *d, float *y)
{
    /* The output uses the updated S, so both loops run over all of it; g <= 0, so decay is at most 1. */
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

/* The sequential form; chunked forms of other units rearrange it. Value head h uses key head h / (v_heads / k_heads). All values
 * and the memory are fp32. */
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
        float *memory = ref_slot_at(p->spans[s].state, (uint32_t)d->slot)->next;
        for (uint32_t t = p->from[0][s]; t < p->from[0][s + 1] && !ref_stopped(p); t++)
            for (uint32_t h = 0; h < d->v_heads; h++) {
                size_t key = (size_t)(h / (d->v_heads / d->k_heads)) * d->dk, value = (size_t)h * d->dv;
                l2_scaled(ref_row(in[0], t) + key, d->dk, d->l2_eps, 1.0 / sqrt(d->dk), q);
                l2_scaled(ref_row(in[1], t) + key, d->dk, d->l2_eps, 1.0, k);
                float rate = d->decay_is_log ? -expf(decay[h]) : decay[h];
                float g = rate * softplus(ref_row(in[3], t)[h] + dt[h]), beta = ref_sigmoid(ref_row(in[4], t)[h]);
                delta_step(d, q, k, ref_row(in[2], t) + value, g, beta, memory + value * d->dk, change,
                           out + ((size_t)t * d->v_heads + h) * d->dv);
            }
        p->state_bytes += 2 * ref_slot_at(p->spans[s].state, (uint32_t)d->slot)->core.fixed_bytes;
    }
    return SEGUE_OK;
}

/* --- elementwise ops and routing --- */

/* y = act(gate) * up. */
static segue_status op_glu(struct ref_pass *p, const struct sg_op *op, float *out)
{
    struct ref_view gate = ref_view_of(p, &op->in[0]), up = ref_view_of(p, &op->in[1]);
    for (uint32_t t = 0; t < rows_of(p, op); t++)
        for (uint32_t c = 0; c < gate.width; c++)
            out[(size_t)t * gate.width + c] = ref_act(op->u.glu.act, ref_row(gate, t)[c]) * ref_row(up, t)[c];
    return SEGUE_OK;
}

/* y = act(x), elementwise. */
static segue_status op_act(struct ref_pass *p, const struct sg_op *op, float *out)
{
    struct ref_view x = ref_view_of(p, &op->in[0]);
    for (uint32_t t = 0; t < rows_of(p, op); t++)
        for (uint32_t c = 0; c < x.width; c++)
            out[(size_t)t * x.width + c] = ref_act(op->u.act.act, ref_row(x, t)[c]);
    return SEGUE_OK;
}

/* y = x + other; both have the same rows and width. */
static segue_status op_add(struct ref_pass *p, const struct sg_op *op, float *out)
{
    struct ref_view x = ref_view_of(p, &op->in[0]), y = ref_view_of(p, &op->in[1]);
    for (uint32_t t = 0; t < rows_of(p, op); t++)
        for (uint32_t c = 0; c < x.width; c++)
            out[(size_t)t * x.width + c] = ref_row(x, t)[c] + ref_row(y, t)[c];
    return SEGUE_OK;
}

/* By a constant, by one weight per column, or by a weight of one element. */
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

/* scores[e] = softmax over all experts, or the sigmoid of each logit. */
static void route_scores(const struct sg_route *r, const float *logits, float *scores)
{
    float max = -INFINITY;
    double sum = 0;
    for (uint32_t e = 0; e < r->experts; e++)
        if (logits[e] > max) max = logits[e];
    /* Sigmoid scores are independent of each other and are not normalised here; `renormalise` does it for the chosen k. */
    for (uint32_t e = 0; e < r->experts; e++) {
        scores[e] = r->sigmoid ? ref_sigmoid(logits[e]) : expf(logits[e] - max);
        sum += scores[e];
    }
    if (!r->sigmoid)
        for (uint32_t e = 0; e < r->experts; e++) scores[e] = (float)(scores[e] / sum);
}

/* The k largest scores in descending order, lowest index on ties. The bias influences the choice but not the weight. */
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

/* Selects the wanted rows of each span: T rows to R rows. */
static segue_status op_rows(struct ref_pass *p, const struct sg_op *op, float *out)
{
    struct ref_view x = ref_view_of(p, &op->in[0]);
    for (uint32_t s = 0; s < p->spans_n; s++)
        for (uint32_t i = 0; i < p->spans[s].wanted_n; i++)
            memcpy(out + (size_t)(p->from[1][s] + i) * x.width,
                   ref_row(x, p->from[0][s] + p->spans[s].wanted[i]), x.width * sizeof *out);
    return SEGUE_OK;
}

/* Sum or concatenation of the ranks' rows, exchanged through host memory. */
static segue_status op_join(struct ref_pass *p, const struct sg_op *op, float *out)
{
    struct ref_view x = ref_view_of(p, &op->in[0]);
    uint32_t rows = rows_of(p, op);
    if (!p->rank_sync)
        return sg_fail(p->err, SEGUE_EUNSUPPORTED, "run: ref: join: the graph is one rank of a group; run all ranks");
    /* The operand may be a column range; the exchange needs dense rows. */
    float *dense = ref_scratch(p, (size_t)rows * x.width, sizeof *dense);
    if (!dense) return SEGUE_EMEMORY;
    for (uint32_t t = 0; t < rows; t++) memcpy(dense + (size_t)t * x.width, ref_row(x, t), x.width * sizeof *dense);
    return sg_rank_sync_join(p->rank_sync, p->rank, &op->u.join, dense, rows, x.width, out, p->err);
}

/* All ops. */
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
