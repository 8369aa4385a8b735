/* lowerrange.c: see lowerrange.h. A product's bound is, row by row, the length of the row times the length of what goes in, or
 * the sum of its numbers times the largest that goes in, whichever is less. SPDX-License-Identifier: MIT */
#include "unit/ane/lower/lowerrange.h"

#include <math.h>

#include "unit/ane/lower/lowerpart.h"

/* Half of where a product becomes infinite (constraint 30): roundings add up to less than that. More than 2^12 would push
 * small numbers out of fp16 below; what a bound asks beyond is left to the check as it runs. */
#define LIMIT 16384.0
enum { SHIFT_MAX = 12 };

struct bound {
    double max, length;             /* of its numbers; of a row of it */
    const float *weight;             /* a norm's own weight, [width]: it is sqrt(width) u * weight, |u| = 1; NULL: no norm */
};
struct ranger {
    const struct sg_graph *g;
    struct bound *of;                /* [values_n] */
    double *product;                 /* [ops_n] of linear, before its residual */
    struct sg_arena *arena;
    segue_error *err;
};

static segue_status alloc_row(struct ranger *r, uint64_t n, float **out)
{
    *out = sg_arena_alloc(r->arena, (size_t)(n + 1) * sizeof **out);
    return *out ? SEGUE_OK : sg_no_memory("bounds of a graph", (size_t)n * sizeof **out, r->err);
}

/* A vector weight as fp32; NULL in *out: absent. */
static segue_status read_vector(struct ranger *r, const struct sg_weight *w, float **out)
{
    *out = NULL;
    if (w->tensor < 0) return SEGUE_OK;
    const struct sg_tensor *t = r->g->tensors[w->tensor];
    SG_TRY(alloc_row(r, t->rows * t->cols, out));
    sg_tensor_read(t, *out);
    return SEGUE_OK;
}

static segue_status norm(struct ranger *r, const struct sg_op *op, struct bound *y)
{
    const struct sg_norm *n = &op->u.norm;
    uint32_t width = op->in[0].width, group = width / n->groups;
    float *w, *b;
    SG_TRY(read_vector(r, &n->weight, &w));
    SG_TRY(read_vector(r, &n->bias, &b));
    double max = 0, squares = 0;
    for (uint32_t i = 0; i < group; i++) {
        if (w && n->plus_one) w[i] += 1;
        double row_max = sqrt(group) * (w ? fabs((double)w[i]) : 1);
        if (row_max > max) max = row_max;
    }
    y->max = max;
    y->length = max * sqrt(n->groups);
    y->weight = n->groups == 1 && !b && op->in[1].value < 0 ? w : NULL;
    for (uint32_t i = 0; b && i < group; i++) {
        squares += (double)b[i] * (double)b[i];
        if (fabs((double)b[i]) + max > y->max) y->max = fabs((double)b[i]) + max;
    }
    y->length += sqrt(squares * n->groups);
    if (op->in[1].value < 0) return SEGUE_OK;
    double gate = r->of[op->in[1].value].max;
    y->max *= gate;
    y->length *= gate;
    return SEGUE_OK;
}

/* A comparison, not fmax: gcc 12 for 64-bit Arm dies of that one in a loop at -O3. */
static double largest(const float *v, uint64_t n)
{
    double max = 0;
    for (uint64_t i = 0; i < n; i++)
        if (fabs((double)v[i]) > max) max = fabs((double)v[i]);
    return max;
}

/* Of one row against what goes in. */
static double row_bound(const float *row, uint32_t k, const struct bound *x)
{
    double squares = 0, sum = 0, normed = 0;
    for (uint32_t c = 0; c < k; c++) {
        double v = fabs((double)row[c]), w = x->weight ? v * fabs((double)x->weight[c]) : 0;
        squares += v * v;
        sum += v;
        normed += w * w;
    }
    double bound = fmin(sqrt(squares) * x->length, sum * x->max);
    return x->weight ? fmin(bound, sqrt(normed * k)) : bound;
}

static segue_status linear(struct ranger *r, const struct sg_op *op, struct bound *y)
{
    const struct sg_linear *p = &op->u.linear;
    const struct sg_tensor *t = r->g->tensors[p->weight.tensor];
    struct bound x = r->of[op->in[0].value];
    double squares = 0;
    float *bias, *row;
    if (op->in[0].width != r->g->values[op->in[0].value].width) x.weight = NULL;
    SG_TRY(read_vector(r, &p->bias, &bias));
    SG_TRY(alloc_row(r, t->cols, &row));
    for (uint32_t i = 0; i < p->weight.rows; i++) {
        sg_tensor_row(t, (uint64_t)p->weight.at + i, 0, t->cols, row);
        double row_max = row_bound(row, (uint32_t)t->cols, &x) + (bias ? fabs((double)bias[i]) : 0);
        if (row_max > y->max) y->max = row_max;
        squares += row_max * row_max;
    }
    r->product[op - r->g->ops] = y->max;
    y->length = sqrt(squares);
    if (op->in[1].value >= 0) {
        y->max += r->of[op->in[1].value].max;
        y->length += r->of[op->in[1].value].length;
    }
    return SEGUE_OK;
}

static segue_status embed(struct ranger *r, const struct sg_op *op, struct bound *y)
{
    const struct sg_weight *tables[2] = {&op->u.embed.table, &op->u.embed.positions};
    for (int i = 0; i < 2; i++) {
        if (tables[i]->tensor < 0) continue;
        const struct sg_tensor *t = r->g->tensors[tables[i]->tensor];
        double max = 0;
        float *row;
        SG_TRY(alloc_row(r, t->cols, &row));
        for (uint64_t k = 0; k < tables[i]->rows; k++) {
            sg_tensor_row(t, tables[i]->at + k, 0, t->cols, row);
            max = fmax(max, largest(row, t->cols));
        }
        y->max += i ? max : max * fabs((double)op->u.embed.scale);
    }
    return SEGUE_OK;
}

/* Each channel's taps, all against the largest number. */
static segue_status convolution(struct ranger *r, const struct sg_op *op, const struct bound *x, struct bound *y)
{
    float *w;
    double max = 0;
    SG_TRY(read_vector(r, &op->u.conv.weight, &w));
    for (uint32_t c = 0; c < op->in[0].width; c++) {
        double sum = 0;
        for (uint32_t k = 0; k < op->u.conv.taps; k++) sum += fabs((double)w[(size_t)c * op->u.conv.taps + k]);
        max = fmax(max, sum);
    }
    SG_TRY(read_vector(r, &op->u.conv.bias, &w));
    y->max = max * x->max + (w ? largest(w, op->in[0].width) : 0);
    return SEGUE_OK;
}

static double activated(enum sg_act act, double x)
{
    return act == SG_ACT_RELU2 ? x * x : act == SG_ACT_SIGMOID || act == SG_ACT_TANH ? fmin(x + 0.5, 1) : x;
}

static segue_status bound(struct ranger *r, const struct sg_op *op, struct bound *y)
{
    static const struct bound none;
    const struct bound *x = op->in[0].value < 0 ? &none : &r->of[op->in[0].value],
                       *z = op->in[1].value < 0 ? &none : &r->of[op->in[1].value];
    float *w;
    if (r->g->values[op->out].wanted) return SEGUE_OK; /* the helper's, in fp32 */
    switch (op->code) {
    case SG_OP_EMBED: return embed(r, op, y);
    case SG_OP_NORM: return norm(r, op, y);
    case SG_OP_LINEAR: return linear(r, op, y);
    case SG_OP_CONV: return convolution(r, op, x, y);
    case SG_OP_ATTEND: y->max = r->of[op->in[2].value].max; return SEGUE_OK; /* a mean of values */
    case SG_OP_DELTA: y->max = 4 * r->of[op->in[2].value].max; return SEGUE_OK;
    case SG_OP_ROPE:
        y->max = x->max * 1.4143 * (double)r->g->ropes[op->u.rope.table].mscale;
        return SEGUE_OK;
    case SG_OP_GLU:
        y->max = activated(op->u.glu.act, x->max) * z->max;
        y->length = fmin(x->length * z->max, z->length * x->max);
        return SEGUE_OK;
    case SG_OP_ACT: y->max = activated(op->u.act.act, x->max); return SEGUE_OK;
    case SG_OP_ADD: y->max = x->max + z->max; return SEGUE_OK;
    case SG_OP_SCALE:
        SG_TRY(read_vector(r, &op->u.scale.weight, &w));
        y->max = x->max * (w ? largest(w, r->g->tensors[op->u.scale.weight.tensor]->cols) : fabs((double)op->u.scale.value));
        return SEGUE_OK;
    default: *y = *x; return SEGUE_OK;
    }
}

/* How many bits a number must lose to lie below MOST. */
static int8_t shift_for(double max)
{
    int bits = 0;
    while (bits < SHIFT_MAX && max > LIMIT) {
        max /= 2;
        bits++;
    }
    return (int8_t)bits;
}

/* What the next layer adds to. */
static int is_stream(const struct sg_op *op)
{
    return op->code == SG_OP_EMBED || op->code == SG_OP_ADD || (op->code == SG_OP_LINEAR && op->in[1].value >= 0);
}

static void choose_shifts(struct ranger *r, struct sg_ane_range *out)
{
    const struct sg_graph *g = r->g;
    double stream = 0;
    for (uint32_t i = 0; i < g->ops_n; i++)
        if (is_stream(&g->ops[i])) stream = fmax(stream, r->of[g->ops[i].out].max);
    for (uint32_t i = 0; i < g->ops_n; i++) {
        const struct sg_op *op = &g->ops[i];
        out->max[op->out] = (float)fmin(r->of[op->out].max, 3e38);
        if (sg_ane_helper_reason(g, op) && op->code != SG_OP_EMBED) continue;
        if (is_stream(op)) out->value[op->out] = shift_for(stream);
        if (op->code == SG_OP_GLU) out->value[op->out] = shift_for(r->of[op->out].max);
        if (op->code != SG_OP_LINEAR) continue;
        int bits = shift_for(r->product[i]) - out->value[op->in[0].value];
        out->inner[i] = (int8_t)(bits > 0 ? bits : 0);
    }
    for (uint32_t i = 0; i < g->inputs_n; i++)
        if (g->values[g->inputs[i].value].kind == SG_VALUE_ROWS) out->value[g->inputs[i].value] = shift_for(stream);
}

segue_status sg_ane_range_make(struct sg_ane_range *out, const struct sg_graph *g, segue_error *err)
{
    struct sg_arena scratch = {0};
    *out = (struct sg_ane_range){0};
    struct ranger r = {.g = g, .arena = &scratch, .err = err};
    r.of = sg_arena_alloc(&scratch, ((size_t)g->values_n + 1) * sizeof *r.of);
    r.product = sg_arena_alloc(&scratch, ((size_t)g->ops_n + 1) * sizeof *r.product);
    out->max = sg_arena_alloc(&out->arena, ((size_t)g->values_n + 1) * sizeof *out->max);
    out->value = sg_arena_alloc(&out->arena, (size_t)g->values_n + 1);
    out->inner = sg_arena_alloc(&out->arena, (size_t)g->ops_n + 1);
    segue_status status = r.of && r.product && out->max && out->value && out->inner ? SEGUE_OK
                                                                                     : sg_no_memory("bounds of a graph", 0, err);
    for (uint32_t i = 0; i < g->inputs_n && status == SEGUE_OK; i++)
        r.of[g->inputs[i].value].max = 65504; /* rows of another unit: whatever fp16 holds */
    for (uint32_t i = 0; i < g->ops_n && status == SEGUE_OK; i++) {
        const struct sg_op *op = &g->ops[i];
        struct bound y = {0};
        status = bound(&r, op, &y);
        if (!(y.length > 0) || y.length > y.max * sqrt(g->values[op->out].width))
            y.length = y.max * sqrt(g->values[op->out].width);
        r.of[op->out] = y;
    }
    if (status == SEGUE_OK) choose_shifts(&r, out);
    sg_arena_free(&scratch);
    if (status != SEGUE_OK) sg_ane_range_free(out);
    return status;
}

void sg_ane_range_free(struct sg_ane_range *r)
{
    sg_arena_free(&r->arena);
    *r = (struct sg_ane_range){0};
}
