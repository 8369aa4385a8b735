/* checknaive.c: every op once more, in double, written from the comments of graph/op.h and from nothing in
 * src/unit: a whole sequence at a time, without state, without speed. It judges `ref`; if both are wrong,
 * they are wrong in different ways. Shares with the library only the reading of weights and the storage of K
 * and V, which have goldens of their own.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "check.h"

/* One sequence and an op: x(i, t, c) is column c of operand i in row t. */
struct naive {
    const struct check_world *w;
    const struct sg_graph *g;
    const struct sg_op *op;
    uint32_t seq, rows, width;
    double **values;                 /* of the graph; each [rows, its width] */
    double *y;                       /* [rows, width] of the op */
    struct sg_arena arena;
};

static double x(const struct naive *n, int i, uint32_t t, uint32_t c)
{
    const struct sg_operand *from = &n->op->in[i];
    return n->values[from->value][(size_t)t * n->g->values[from->value].width + from->at + c];
}

static double *y(const struct naive *n, uint32_t t) { return n->y + (size_t)t * n->width; }

/* All numbers of a tensor, in double; NULL when absent. */
static double *numbers(struct naive *n, const struct sg_weight *w)
{
    if (w->tensor < 0) return NULL;
    const struct sg_tensor *t = n->g->tensors[w->tensor];
    size_t many = (size_t)(t->rows * t->cols);
    float *f = sg_arena_alloc(&n->arena, many * sizeof *f);
    double *d = sg_arena_alloc(&n->arena, many * sizeof *d);
    sg_tensor_read(t, f);
    for (size_t i = 0; i < many; i++) d[i] = (double)f[i];
    return d;
}

static double logistic(double v) { return 1 / (1 + exp(-v)); }

static double act(enum sg_act a, double v)
{
    const double pi = 3.14159265358979323846;
    if (a == SG_ACT_SILU) return v / (1 + exp(-v));
    if (a == SG_ACT_GELU) return v * 0.5 * erfc(-v / sqrt(2));
    if (a == SG_ACT_GELU_TANH) return 0.5 * v * (1 + tanh(sqrt(2 / pi) * (v + 0.044715 * pow(v, 3))));
    if (a == SG_ACT_GELU_QUICK) return v / (1 + exp(-1.702 * v));
    if (a == SG_ACT_RELU) return fmax(v, 0);
    if (a == SG_ACT_RELU2) return fmax(v, 0) * fmax(v, 0);
    if (a == SG_ACT_SIGMOID) return logistic(v);
    if (a == SG_ACT_TANH) return tanh(v);
    return v;
}

static void embed(struct naive *n)
{
    const struct sg_embed *p = &n->op->u.embed;
    double *table = numbers(n, &p->table), *positions = numbers(n, &p->positions);
    for (uint32_t t = 0; t < n->rows; t++)
        for (uint32_t c = 0; c < n->width; c++) {
            size_t id = (size_t)n->w->tokens[n->seq][t];
            y(n, t)[c] = (double)p->scale * table[id * n->width + c];
            if (positions) y(n, t)[c] += positions[(size_t)t * n->width + c];
        }
}

/* Mean and power of the group are computed anew for each column: slow, and nothing to get wrong. */
static void norm(struct naive *n)
{
    const struct sg_norm *p = &n->op->u.norm;
    double *w = numbers(n, &p->weight), *bias = numbers(n, &p->bias);
    uint32_t group = n->width / p->groups;
    for (uint32_t t = 0; t < n->rows; t++)
        for (uint32_t c = 0; c < n->width; c++) {
            uint32_t begin = c / group * group;
            double mean = 0, power = 0;
            for (uint32_t i = begin; i < begin + group; i++) mean += x(n, 0, t, i) / group;
            if (p->kind == SG_NORM_RMS) mean = 0;
            for (uint32_t i = begin; i < begin + group; i++) power += pow(x(n, 0, t, i) - mean, 2) / group;
            double v = (x(n, 0, t, c) - mean) / sqrt(power + (double)p->eps);
            if (w) v *= w[c - begin] + (p->plus_one ? 1 : 0);
            if (bias) v += bias[c - begin];
            if (n->op->in[1].value >= 0) v *= act(SG_ACT_SILU, x(n, 1, t, c));
            y(n, t)[c] = v;
        }
}

static void linear(struct naive *n)
{
    const struct sg_weight *p = &n->op->u.linear.weight;
    const struct sg_tensor *tensor = n->g->tensors[p->tensor];
    double *w = numbers(n, p), *bias = numbers(n, &n->op->u.linear.bias);
    size_t k = n->op->in[0].width;
    for (uint32_t l = 0; l < n->w->loras_n[n->seq]; l++) { /* merge: W += B A */
        const struct sg_lora_pair *pair = sg_lora_find(n->w->loras[n->seq][l], tensor);
        for (size_t r = 0; r < tensor->rows; r++)
            for (size_t i = 0; i < k; i++)
                for (uint32_t j = 0; j < pair->rank; j++)
                    w[r * k + i] += (double)pair->b[r * pair->rank + j] * (double)pair->a[j * k + i];
    }
    for (uint32_t t = 0; t < n->rows; t++)
        for (uint32_t r = 0; r < n->width; r++) {
            double sum = bias ? bias[r] : 0;
            for (uint32_t i = 0; i < k; i++) sum += w[(p->at + r) * k + i] * x(n, 0, t, i);
            if (n->op->in[1].value >= 0) sum += x(n, 1, t, r);
            y(n, t)[r] = sum;
        }
}

/* Complex multiplication by e^(i angle), written per column. */
static void rope(struct naive *n)
{
    const struct sg_rope *p = &n->op->u.rope;
    const struct sg_rope_table *table = &n->g->ropes[p->table];
    for (uint32_t t = 0; t < n->rows; t++)
        for (uint32_t c = 0; c < n->width; c++) {
            uint32_t j = c % p->head_width, pairs = table->pairs;
            if (j >= 2 * pairs) {
                y(n, t)[c] = x(n, 0, t, c);
                continue;
            }
            double angle = (double)p->sign * t * (double)table->inverse[j % pairs];
            double other = j < pairs ? -x(n, 0, t, c + pairs) : x(n, 0, t, c - pairs);
            y(n, t)[c] = (double)table->mscale * (x(n, 0, t, c) * cos(angle) + other * sin(angle));
        }
}

/* k or v as a state of this storage gives it back. In fp32 it gives back what came in. */
static double *stored_all(struct naive *n, int i, uint32_t heads, uint32_t width)
{
    struct sg_slot s = {.kind = SG_SLOT_K, .heads = heads, .width = width};
    uint32_t columns = heads * width;
    double *all = sg_arena_alloc(&n->arena, (size_t)n->rows * columns * sizeof *all + 8);
    for (uint32_t t = 0; t < n->rows; t++) {
        float row[512], back[512];
        unsigned char bytes[4 * 512];
        for (uint32_t c = 0; c < columns; c++) row[c] = (float)x(n, i, t, c);
        sg_slot_encode(&s, n->w->kv, row, bytes);
        sg_slot_decode(&s, n->w->kv, bytes, back);
        for (uint32_t c = 0; c < columns; c++)
            all[(size_t)t * columns + c] = n->w->kv == SG_F32 ? x(n, i, t, c) : (double)back[c];
    }
    return all;
}

/* Keys outside of the window have weight 0; exp without a maximum taken off is safe in double here. */
static void attend(struct naive *n)
{
    const struct sg_attend *p = &n->op->u.attend;
    double *k = stored_all(n, 1, p->kv_heads, p->d), *v = stored_all(n, 2, p->kv_heads, p->dv);
    double *sinks = numbers(n, &p->sinks), *score = sg_arena_alloc(&n->arena, (n->rows + 1) * sizeof *score);
    for (uint32_t t = 0; t < n->rows; t++)
        for (uint32_t h = 0; h < p->heads; h++) {
            uint32_t kv = h * p->kv_heads / p->heads;
            double sum = sinks ? exp(sinks[h]) : 0;
            for (uint32_t j = 0; j <= t; j++) {
                double s = 0;
                for (uint32_t c = 0; c < p->d; c++)
                    s += x(n, 0, t, h * p->d + c) * k[((size_t)j * p->kv_heads + kv) * p->d + c];
                s *= (double)p->scale;
                if (p->softcap > 0) s = (double)p->softcap * tanh(s / (double)p->softcap);
                score[j] = p->window && t - j >= p->window ? 0 : exp(s);
                sum += score[j];
            }
            for (uint32_t c = 0; c < p->dv; c++) {
                double out = 0;
                for (uint32_t j = 0; j <= t; j++)
                    out += score[j] / sum * v[((size_t)j * p->kv_heads + kv) * p->dv + c];
                if (n->op->in[3].value >= 0) out *= logistic(x(n, 3, t, h * p->dv + c));
                y(n, t)[h * p->dv + c] = out;
            }
        }
}

/* From the whole sequence: rows before its start are left out. */
static void conv(struct naive *n)
{
    const struct sg_conv *p = &n->op->u.conv;
    double *w = numbers(n, &p->weight), *bias = numbers(n, &p->bias);
    for (uint32_t t = 0; t < n->rows; t++)
        for (uint32_t c = 0; c < n->width; c++) {
            double sum = bias ? bias[c] : 0;
            for (uint32_t back = 0; back < p->taps && back <= t; back++)
                sum += w[(size_t)c * p->taps + p->taps - 1 - back] * x(n, 0, t - back, c);
            y(n, t)[c] = act(p->act, sum);
        }
}

/* The single-pass form: with p = S^T k of the old S, change = beta (v - e^g p), S = e^g S + k change^T. */
static void delta_head(struct naive *n, uint32_t h, double decay, double dt)
{
    const struct sg_delta *p = &n->op->u.delta;
    uint32_t group = p->v_heads / p->k_heads, kh = h / group;
    double *S = sg_arena_alloc(&n->arena, (size_t)p->dk * p->dv * sizeof *S);
    for (uint32_t t = 0; t < n->rows; t++) {
        double qq = (double)p->l2_eps, kk = (double)p->l2_eps;
        for (uint32_t i = 0; i < p->dk; i++) {
            qq += pow(x(n, 0, t, kh * p->dk + i), 2);
            kk += pow(x(n, 1, t, kh * p->dk + i), 2);
        }
        if (!(p->l2_eps > 0)) qq = kk = 1;
        double a = x(n, 3, t, h) + dt, beta = logistic(x(n, 4, t, h)), keep = exp(decay * log1p(exp(a)));
        for (uint32_t j = 0; j < p->dv; j++) {
            double old = 0, out = 0;
            for (uint32_t i = 0; i < p->dk; i++)
                old += S[i * p->dv + j] * x(n, 1, t, kh * p->dk + i) / sqrt(kk);
            double change = beta * (x(n, 2, t, h * p->dv + j) - keep * old);
            for (uint32_t i = 0; i < p->dk; i++) {
                double *s = &S[i * p->dv + j];
                *s = keep * *s + change * x(n, 1, t, kh * p->dk + i) / sqrt(kk);
                out += *s * x(n, 0, t, kh * p->dk + i) / sqrt(qq * p->dk);
            }
            y(n, t)[h * p->dv + j] = out;
        }
    }
}

static void delta(struct naive *n)
{
    const struct sg_delta *p = &n->op->u.delta;
    double *decay = numbers(n, &p->decay), *dt = numbers(n, &p->dt);
    for (uint32_t h = 0; h < p->v_heads; h++)
        delta_head(n, h, p->decay_is_log ? -exp(decay[h]) : decay[h], dt[h]);
}

static void elementwise(struct naive *n)
{
    const struct sg_op *op = n->op;
    double *w = op->code == SG_OP_SCALE ? numbers(n, &op->u.scale.weight) : NULL;
    uint64_t w_n = w ? n->g->tensors[op->u.scale.weight.tensor]->cols : 0;
    for (uint32_t t = 0; t < n->rows; t++)
        for (uint32_t c = 0; c < n->width; c++) {
            double v = x(n, 0, t, c);
            if (op->code == SG_OP_GLU) v = act(op->u.glu.act, v) * x(n, 1, t, c);
            if (op->code == SG_OP_ACT) v = act(op->u.act.act, v);
            if (op->code == SG_OP_ADD) v += x(n, 1, t, c);
            if (op->code == SG_OP_SCALE) v *= w ? w[w_n == 1 ? 0 : c] : (double)op->u.scale.value;
            y(n, t)[c] = v;
        }
}

/* Expert e is chosen when fewer than k others come before it: a larger score, or an equal one with a lower
 * index. */
static void route(struct naive *n)
{
    const struct sg_route *p = &n->op->u.route;
    double *bias = numbers(n, &p->bias), *score = sg_arena_alloc(&n->arena, p->experts * sizeof *score);
    for (uint32_t t = 0; t < n->rows; t++) {
        double all = 0, chosen = 0;
        for (uint32_t e = 0; e < p->experts; e++) all += exp(x(n, 0, t, e));
        for (uint32_t e = 0; e < p->experts; e++)
            score[e] = p->sigmoid ? logistic(x(n, 0, t, e)) : exp(x(n, 0, t, e)) / all;
        for (uint32_t e = 0; e < p->experts; e++) {
            uint32_t before = 0;
            double mine = score[e] + (bias ? bias[e] : 0);
            for (uint32_t o = 0; o < p->experts; o++) {
                double theirs = score[o] + (bias ? bias[o] : 0);
                before += theirs > mine || (o < e && !(theirs < mine));
            }
            if (before >= p->k) continue;
            y(n, t)[before] = e;
            y(n, t)[p->k + before] = score[e] * (double)p->scale;
            chosen += score[e];
        }
        for (uint32_t i = 0; p->renormalise && i < p->k; i++) y(n, t)[p->k + i] /= chosen;
    }
}

/* Dense loops over one expert after the other. */
static void experts(struct naive *n)
{
    const struct sg_experts *p = &n->op->u.experts;
    double *gate = numbers(n, &p->gate), *up = numbers(n, &p->up), *down = numbers(n, &p->down);
    size_t k = n->op->in[0].width, ff = p->ff;
    for (uint32_t t = 0; t < n->rows; t++)
        for (uint32_t i = 0; i < p->k; i++) {
            size_t e = (size_t)x(n, 1, t, i);
            for (size_t f = 0; f < ff; f++) {
                double g = 0, u = 0;
                for (uint32_t c = 0; c < k; c++) {
                    g += gate[(e * ff + f) * k + c] * x(n, 0, t, c);
                    u += up[(e * ff + f) * k + c] * x(n, 0, t, c);
                }
                for (uint32_t c = 0; c < n->width; c++)
                    y(n, t)[c] +=
                        x(n, 1, t, p->k + i) * act(p->act, g) * u * down[(e * n->width + c) * ff + f];
            }
        }
}

static void one_op(struct naive *n)
{
    switch (n->op->code) {
    case SG_OP_EMBED: embed(n); break;
    case SG_OP_NORM: norm(n); break;
    case SG_OP_LINEAR: linear(n); break;
    case SG_OP_ROPE: rope(n); break;
    case SG_OP_ATTEND: attend(n); break;
    case SG_OP_CONV: conv(n); break;
    case SG_OP_DELTA: delta(n); break;
    case SG_OP_ROUTE: route(n); break;
    case SG_OP_EXPERTS: experts(n); break;
    default: elementwise(n); break; /* glu act add scale; rows: what is wanted is picked below */
    }
}

/* All ops of the graph; y is that of the last one. */
static void whole_sequence(struct naive *n)
{
    const struct sg_graph *g = n->g;
    n->values = sg_arena_alloc(&n->arena, g->values_n * sizeof *n->values);
    for (uint32_t v = 0; v < g->values_n; v++)
        n->values[v] = sg_arena_alloc(&n->arena, ((size_t)n->rows + 1) * g->values[v].width * sizeof **n->values);
    for (size_t i = 0; n->w->input_width && i < (size_t)n->rows * n->w->input_width; i++)
        n->values[g->inputs[0].value][i] = (double)n->w->values[n->seq][i];
    for (uint32_t i = 0; i < g->ops_n; i++) {
        n->op = &g->ops[i];
        n->width = g->values[n->op->out].width;
        n->y = n->values[n->op->out];
        one_op(n);
    }
}

/* Put the rows of one sequence where the runs of the world gave them. */
static void scatter(const struct naive *n, struct check_result *out, uint32_t wanted)
{
    size_t at = 0;
    for (uint32_t r = 0; r < n->w->runs; r++)
        for (uint32_t s = 0; s < n->w->seqs; s++) {
            uint32_t first = check_world_first(n->w, r, s), rows = n->w->rows[r][s];
            uint32_t many = !rows ? 0 : wanted ? n->w->wanted_n[r][s] : rows;
            for (uint32_t i = 0; s == n->seq && i < many; i++)
                for (uint32_t c = 0; c < n->width; c++)
                    out->y[(at + i) * n->width + c] =
                        (float)y(n, first + (wanted ? n->w->wanted[r][s][i] : i))[c];
            at += many;
        }
}

segue_status check_world_naive(const struct check_world *w, struct check_result *out, segue_error *err)
{
    const struct sg_op *op = &w->graph->ops[w->graph->ops_n - 1];
    uint32_t wanted = w->graph->values[op->out].wanted;
    *out = (struct check_result){0};
    for (uint32_t r = 0; r < w->runs; r++)
        out->y_n += (size_t)check_world_rows(w, r, wanted) * w->output_width;
    out->y = sg_alloc(out->y_n * sizeof *out->y);
    if (!out->y) return sg_no_memory("check", out->y_n * sizeof *out->y, err);
    for (uint32_t s = 0; s < w->seqs; s++) {
        struct naive n = {.w = w, .g = w->graph, .seq = s, .rows = check_world_first(w, w->runs, s)};
        whole_sequence(&n);
        scatter(&n, out, wanted);
        sg_arena_free(&n.arena);
    }
    return SEGUE_OK;
}

double check_naive_dot(const struct check_world *w, const float *dy)
{
    double sum = 0;
    for (uint32_t s = 0; s < w->seqs; s++) {
        struct naive n = {.w = w, .g = w->graph, .seq = s, .rows = w->rows[0][s]};
        size_t many = (size_t)n.rows * w->output_width;
        whole_sequence(&n);
        for (size_t i = 0; i < many; i++) sum += n.y[i] * (double)dy[i];
        dy += many;
        sg_arena_free(&n.arena);
    }
    return sum;
}
