/* value_range.c: see value_range.h. The bound of a product is computed per row of the weight: the smaller of
 * |row| times |x| (Cauchy-Schwarz) and the sum of the row's magnitudes times the largest element of x.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/analysis/value_range.h"

#include <math.h>

#include "unit/ane/analysis/partition.h"
#include "unit/ane/analysis/weight_exponent.h"

/* Limit of scaled values: half the magnitude at which products become infinite (constraint 30), which
 * leaves a margin for rounding. Shifts above 12 would lose small values to underflow; values that need more
 * are left to the check at run time. */
#define LIMIT 16384.0
enum { SHIFT_MAX = 12 };

/* Bound of a value. */
struct bound {
    double max, length;  /* of the magnitude of an element; of the Euclidean length of a row */
    const float *weight; /* [width] for a norm: each row is sqrt(width) u * weight with |u| = 1; NULL: not a norm */
};
/* State of the analysis. */
struct range_pass {
    const struct sg_graph *g;
    struct bound *of;       /* [values_n] */
    double *product;        /* [ops_n] bound of a linear's result before the residual is added */
    struct sg_arena *arena; /* scratch */
    segue_error *err;
};

/* Scratch of n floats. */
static segue_status alloc_row(struct range_pass *r, uint64_t n, float **out)
{
    *out = sg_arena_alloc(r->arena, (size_t)(n + 1) * sizeof **out);
    return *out ? SEGUE_OK : sg_no_memory("bounds of a graph", (size_t)n * sizeof **out, r->err);
}

/* A vector weight as fp32, scaled as its blob is; NULL in *out: absent. */
static segue_status read_vector(struct range_pass *r, const struct sg_weight *w, float **out)
{
    *out = NULL;
    if (w->tensor < 0) return SEGUE_OK;
    const struct sg_tensor *t = r->g->tensors[w->tensor];
    SG_TRY(alloc_row(r, t->rows * t->cols, out));
    int exponent;
    SG_TRY(sg_ane_weight_exponent(r->g, (uint32_t)w->tensor, &exponent, r->err));
    sg_tensor_read(t, *out);
    for (uint64_t i = 0; exponent && i < t->rows * t->cols; i++) (*out)[i] = ldexpf((*out)[i], exponent);
    return SEGUE_OK;
}

/* A normalized group of n elements has length sqrt(n), so no element exceeds sqrt(n) times its weight. Bias
 * and gate are added to the bound; the gate's activation does not exceed its argument. The weight is passed
 * on for row_bound only when nothing else contributes. */
static segue_status bound_norm(struct range_pass *r, const struct sg_op *op, struct bound *y)
{
    const struct sg_norm *n = &op->u.norm;
    uint32_t width = op->in[0].width, group = width / n->groups;
    float *w, *b;
    SG_TRY(read_vector(r, &n->weight, &w));
    SG_TRY(read_vector(r, &n->bias, &b));
    double max = 0, squares = 0;
    int exponent = 0;
    if (w) SG_TRY(sg_ane_weight_exponent(r->g, (uint32_t)n->weight.tensor, &exponent, r->err));
    const float one = ldexpf(1, exponent);
    for (uint32_t i = 0; i < group; i++) {
        if (w && n->plus_one) w[i] += one;
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

/* Largest magnitude. Uses a comparison instead of fmax, which crashes gcc 12 for 64-bit Arm at -O3 in this
 * loop. */
static double largest(const float *v, uint64_t n)
{
    double max = 0;
    for (uint64_t i = 0; i < n; i++)
        if (fabs((double)v[i]) > max) max = fabs((double)v[i]);
    return max;
}

/* Bound of the product of one weight row [k] and x. When x is the output of a norm, its weight is folded
 * into the row, which gives a third and often smaller bound. */
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

/* The largest row bound, plus bias and residual. The length follows from the bounds of all rows. */
static segue_status bound_linear(struct range_pass *r, const struct sg_op *op, struct bound *y)
{
    const struct sg_linear *p = &op->u.linear;
    const struct sg_tensor *t = r->g->tensors[p->weight.tensor];
    struct bound x = r->of[op->in[0].value];
    double squares = 0;
    float *bias, *row;
    int exponent;
    SG_TRY(sg_ane_weight_exponent(r->g, (uint32_t)p->weight.tensor, &exponent, r->err));
    /* A norm's weight can only be used when the product reads all of its columns. */
    if (op->in[0].width != r->g->values[op->in[0].value].width) x.weight = NULL;
    SG_TRY(read_vector(r, &p->bias, &bias));
    SG_TRY(alloc_row(r, t->cols, &row));
    for (uint32_t i = 0; i < p->weight.rows; i++) {
        sg_tensor_row(t, (uint64_t)p->weight.at + i, 0, t->cols, row);
        for (uint64_t c = 0; exponent && c < t->cols; c++) row[c] = ldexpf(row[c], exponent);
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

/* The largest element of the token table, scaled, plus that of the position table. */
static segue_status bound_embed(struct range_pass *r, const struct sg_op *op, struct bound *y)
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

/* The largest sum of a channel's taps, times the bound of the input, plus bias. */
static segue_status bound_conv(struct range_pass *r, const struct sg_op *op, const struct bound *x, struct bound *y)
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

/* Bound of an activation for arguments of magnitude x. sigmoid and tanh are at most 1; the others do not
 * exceed their argument, except the squared relu. */
static double activation_bound(enum sg_act act, double x)
{
    return act == SG_ACT_RELU2 ? x * x : act == SG_ACT_SIGMOID || act == SG_ACT_TANH ? fmin(x + 0.5, 1) : x;
}

/* Bound of the result of one operation from those of its operands. Attention averages values. For the delta
 * rule four times the values is an estimate. A rotation grows an element by at most sqrt 2. */
static segue_status bound_op(struct range_pass *r, const struct sg_op *op, struct bound *y)
{
    static const struct bound none;
    const struct bound *x = op->in[0].value < 0 ? &none : &r->of[op->in[0].value],
                       *z = op->in[1].value < 0 ? &none : &r->of[op->in[1].value];
    float *w;
    if (r->g->values[op->out].wanted) return SEGUE_OK; /* computed by the helper in fp32 */
    switch (op->code) {
    case SG_OP_EMBED: return bound_embed(r, op, y);
    case SG_OP_NORM: return bound_norm(r, op, y);
    case SG_OP_LINEAR: return bound_linear(r, op, y);
    case SG_OP_CONV: return bound_conv(r, op, x, y);
    case SG_OP_ATTEND: y->max = r->of[op->in[2].value].max; return SEGUE_OK;
    case SG_OP_DELTA: y->max = 4 * r->of[op->in[2].value].max; return SEGUE_OK;
    case SG_OP_ROPE:
        y->max = x->max * 1.4143 * (double)r->g->ropes[op->u.rope.table].mscale;
        return SEGUE_OK;
    case SG_OP_GLU:
        y->max = activation_bound(op->u.glu.act, x->max) * z->max;
        y->length = fmin(x->length * z->max, z->length * x->max);
        return SEGUE_OK;
    case SG_OP_ACT: y->max = activation_bound(op->u.act.act, x->max); return SEGUE_OK;
    case SG_OP_ADD: y->max = x->max + z->max; return SEGUE_OK;
    case SG_OP_SCALE:
        SG_TRY(read_vector(r, &op->u.scale.weight, &w));
        y->max = x->max * (w ? largest(w, r->g->tensors[op->u.scale.weight.tensor]->cols) : fabs((double)op->u.scale.value));
        return SEGUE_OK;
    default: *y = *x; return SEGUE_OK;
    }
}

/* Smallest shift that brings max below LIMIT, at most SHIFT_MAX. */
static int8_t shift_for(double max)
{
    int bits = 0;
    while (bits < SHIFT_MAX && max > LIMIT) {
        max /= 2;
        bits++;
    }
    return (int8_t)bits;
}

/* 1: the result is part of the residual stream, which later layers add to. */
static int is_stream(const struct sg_op *op)
{
    return op->code == SG_OP_EMBED || op->code == SG_OP_ADD || (op->code == SG_OP_LINEAR && op->in[1].value >= 0);
}

/* The whole residual stream gets one shift, so that additions to it need no conversion. The inner shift of
 * a linear is what its product needs beyond the shift that its input has already. */
static void choose_shifts(struct range_pass *r, struct sg_ane_range *out)
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

/* One pass in execution order. A length that an operation does not compute, or that exceeds max *
 * sqrt(width), is replaced by that. */
segue_status sg_ane_range_make(struct sg_ane_range *out, const struct sg_graph *g, segue_error *err)
{
    struct sg_arena scratch = {0};
    *out = (struct sg_ane_range){0};
    struct range_pass r = {.g = g, .arena = &scratch, .err = err};
    r.of = sg_arena_alloc(&scratch, ((size_t)g->values_n + 1) * sizeof *r.of);
    r.product = sg_arena_alloc(&scratch, ((size_t)g->ops_n + 1) * sizeof *r.product);
    out->max = sg_arena_alloc(&out->arena, ((size_t)g->values_n + 1) * sizeof *out->max);
    out->value = sg_arena_alloc(&out->arena, (size_t)g->values_n + 1);
    out->inner = sg_arena_alloc(&out->arena, (size_t)g->ops_n + 1);
    segue_status status = r.of && r.product && out->max && out->value && out->inner ? SEGUE_OK
                                                                                     : sg_no_memory("bounds of a graph", 0, err);
    for (uint32_t i = 0; i < g->inputs_n && status == SEGUE_OK; i++)
        r.of[g->inputs[i].value].max = 65504; /* rows from another unit: any fp16 value */
    for (uint32_t i = 0; i < g->ops_n && status == SEGUE_OK; i++) {
        const struct sg_op *op = &g->ops[i];
        struct bound y = {0};
        status = bound_op(&r, op, &y);
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
