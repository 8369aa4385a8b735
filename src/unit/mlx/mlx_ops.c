/* mlx_ops.c: the ops that keep no state. A value is a matrix [T or R, width] in the unit's type, or in fp32 (mlx_is_fp32).
 * SPDX-License-Identifier: MIT */
#include "unit/mlx/mlxunit.h"

/* Dense matrices have codes only. */
static struct mxc_affine arrays_of(struct mlx_pass *p, const struct mlx_weight *m)
{
    struct mxc_affine out = {.scales = MXC_NONE, .biases = MXC_NONE, .group = m->group, .bits = m->bits};
    out.codes = mxc_use(p->t, m->numbers);
    if (m->bits) out.scales = mxc_use(p->t, m->scales);
    if (m->bits) out.biases = mxc_use(p->t, m->biases);
    return out;
}

static void count_weight(struct mlx_pass *p, const struct mlx_weight *m, uint32_t rows)
{
    uint64_t bytes = mxc_held_bytes(m->numbers) + mxc_held_bytes(m->scales) + mxc_held_bytes(m->biases);
    p->weight_bytes += bytes / m->tensor->rows * rows;
}

/* Rows [at, at + rows) of a matrix. */
static struct mxc_affine matrix_rows(struct mlx_pass *p, const struct sg_weight *w, enum mlx_role role)
{
    const struct mlx_weight *m = mlx_weight_of(p->program, w->tensor, role);
    struct mxc_affine out = arrays_of(p, m);
    uint32_t to = w->at + w->rows;
    count_weight(p, m, w->rows);
    out.codes = mlx_rows_of(p, out.codes, w->at, to);
    if (!m->bits) return out;
    out.scales = mlx_rows_of(p, out.scales, w->at, to);
    out.biases = mlx_rows_of(p, out.biases, w->at, to);
    return out;
}

/* Rows `ids` of a matrix as numbers. */
static mxc_ref look_up(struct mlx_pass *p, const struct sg_weight *w, mxc_ref ids)
{
    uint64_t before = p->weight_bytes;
    struct mxc_affine m = matrix_rows(p, w, MLX_MATRIX);
    p->weight_bytes = before + (p->weight_bytes - before) / w->rows * p->rows_n[0];
    m.codes = mxc_take(p->t, m.codes, ids, 0);
    if (!m.bits) return m.codes;
    m.scales = mxc_take(p->t, m.scales, ids, 0);
    m.biases = mxc_take(p->t, m.biases, ids, 0);
    return mxc_decode(p->t, &m);
}

static mxc_ref op_embed(struct mlx_pass *p, const struct sg_op *op)
{
    const struct sg_embed *e = &op->u.embed;
    uint32_t n = p->rows_n[0];
    mxc_ref y = look_up(p, &e->table, p->values[op->in[0].value]);
    if (e->scale != 1) y = mxc_scale(p->t, y, (double)e->scale);
    if (e->positions.tensor < 0) return y;
    if (p->segment)                  /* a step issued ahead may be beyond the table; it is never used */
        return mxc_add(p->t, y, look_up(p, &e->positions, mxc_clip(p->t, p->positions, 0, (int32_t)e->positions.rows - 1)));
    int32_t *positions = sg_alloc(n * sizeof *positions);
    if (!positions) return MXC_NONE;
    for (uint32_t s = 0, i = 0; s < p->spans_n; s++)
        for (uint32_t k = 0; k < p->spans[s].rows; k++) positions[i++] = (int32_t)(p->spans[s].first + k);
    mxc_ref ids = mxc_from(p->t, positions, MXC_I32, &n, 1);
    sg_free(positions);
    return mxc_add(p->t, y, look_up(p, &e->positions, ids));
}

/* x * silu(gate) with one rounding: in the 16-bit types three roundings would be seen in the tokens, and mlx-lm has one. */
static mxc_ref gated(struct mlx_pass *p, mxc_ref x, mxc_ref gate)
{
    gate = mxc_activate(p->t, gate, MXC_ACT_SILU);
    return mlx_cast(p, mxc_multiply(p->t, mlx_cast(p, x, MXC_F32), gate), p->type);
}

static mxc_ref op_norm(struct mlx_pass *p, const struct sg_op *op)
{
    const struct sg_norm *n = &op->u.norm;
    mxc_ref x = mlx_operand(p, &op->in[0]), gate = mlx_operand_fp32(p, &op->in[1]);
    mxc_ref weight = mlx_vector(p, &n->weight, n->plus_one ? MLX_PLUS_ONE : MLX_VECTOR);
    mxc_ref bias = mlx_vector(p, &n->bias, MLX_VECTOR);
    uint32_t rows = p->rows_n[p->graph->values[op->out].wanted], width = op->in[0].width;
    uint32_t grouped[3] = {rows, n->groups, width / n->groups}, flat[2] = {rows, width};
    if (n->groups > 1) x = mxc_reshape(p->t, x, grouped, 3);
    if (n->kind == SG_NORM_LAYER) {
        /* MLX's layer norm has a bias only beside a weight. */
        x = mxc_layer_norm(p->t, x, weight, weight == MXC_NONE ? MXC_NONE : bias, n->eps);
        if (weight == MXC_NONE && bias != MXC_NONE) x = mxc_add(p->t, x, bias);
    } else {
        x = mxc_rms_norm(p->t, x, weight, n->eps);
        if (bias != MXC_NONE) x = mxc_add(p->t, x, bias);
    }
    if (n->groups > 1) x = mxc_reshape(p->t, x, flat, 2);
    return gate == MXC_NONE ? x : gated(p, x, gate);
}

/* --- linear --- */

static mxc_ref product(struct mlx_pass *p, mxc_ref x, const struct sg_weight *weight, enum mlx_role role, mxc_ref bias)
{
    struct mxc_affine w = matrix_rows(p, weight, role);
    if (!w.bits) return mxc_linear(p->t, x, w.codes, bias);
    mxc_ref y = mxc_linear_affine(p->t, x, &w);
    return bias == MXC_NONE ? y : mxc_add(p->t, y, bias);
}

/* A single row: the op's columns of the product with all matrices of its stack. Of several rows they would have to be copied.
 * MXC_NONE: to be computed otherwise. */
static mxc_ref stacked(struct mlx_pass *p, const struct sg_op *op, mxc_ref x)
{
    int32_t k = p->program->stack_of[op - p->graph->ops];
    if (k < 0 || p->rows_n[p->graph->values[op->out].wanted] != 1) return MXC_NONE;
    const struct mlx_stack *s = &p->program->weights->stacks[k];
    uint32_t at = p->program->stack_at[op - p->graph->ops], rows = op->u.linear.weight.rows;
    if (p->products[k] == MXC_NONE) {
        struct mxc_affine w = arrays_of(p, &s->all);
        mxc_ref bias = s->bias ? mxc_use(p->t, s->bias) : MXC_NONE;
        p->products[k] = w.bits ? mxc_linear_affine(p->t, x, &w) : mxc_linear(p->t, x, w.codes, bias);
    }
    count_weight(p, mlx_weight_of(p->program, op->u.linear.weight.tensor, MLX_MATRIX), rows);
    mxc_ref y = mxc_slice(p->t, p->products[k], 1, at, at + rows);
    return s->all.bits && op->u.linear.bias.tensor >= 0 ? mxc_add(p->t, y, mlx_vector(p, &op->u.linear.bias, MLX_VECTOR)) : y;
}

static mxc_ref op_linear(struct mlx_pass *p, const struct sg_op *op)
{
    const struct sg_linear *l = &op->u.linear;
    int fp32 = p->program->fp32[op->out];
    mxc_ref x = fp32 ? mlx_operand_fp32(p, &op->in[0]) : mlx_operand(p, &op->in[0]);
    mxc_ref residual = fp32 ? mlx_operand_fp32(p, &op->in[1]) : mlx_operand(p, &op->in[1]);
    mxc_ref bias = mlx_vector(p, &l->bias, fp32 ? MLX_VECTOR_FP32 : MLX_VECTOR);
    mxc_ref y = stacked(p, op, x);
    if (y == MXC_NONE) y = product(p, x, &l->weight, fp32 ? MLX_MATRIX_FP32 : MLX_MATRIX, bias);
    if (residual != MXC_NONE) y = mxc_add(p->t, y, residual);
    return mlx_add_adapters(p, op, x, y);
}

/* --- experts --- */

/* Indices and weights of the k largest scores. MLX sorts upwards and stably, so the negated scores are sorted. */
static mxc_ref op_route(struct mlx_pass *p, const struct sg_op *op)
{
    const struct sg_route *r = &op->u.route;
    mxc_ref x = mlx_operand_fp32(p, &op->in[0]);
    mxc_ref scores = r->sigmoid ? mxc_activate(p->t, x, MXC_ACT_SIGMOID) : mxc_softmax(p->t, x), rank = scores;
    mxc_ref bias = mlx_vector(p, &r->bias, MLX_VECTOR_FP32);
    if (bias != MXC_NONE) rank = mxc_add(p->t, rank, bias);
    mxc_ref order = mxc_slice(p->t, mxc_order(p->t, mxc_scale(p->t, rank, -1)), 1, 0, r->k);
    mxc_ref weights = mxc_take_along(p->t, scores, order);
    if (r->renormalise) weights = mxc_divide(p->t, weights, mxc_sum(p->t, weights));
    mxc_ref parts[2] = {mxc_cast(p->t, order, MXC_F32), mxc_scale(p->t, weights, (double)r->scale)};
    return mxc_concat(p->t, parts, 2, 1);
}

/* x [T, e, k] through the matrix of the expert of each row, [experts * n, k]. */
static mxc_ref expert_linear(struct mlx_pass *p, mxc_ref x, const struct sg_weight *w, uint32_t experts, mxc_ref which)
{
    struct mxc_affine m = matrix_rows(p, w, MLX_MATRIX);
    uint32_t shape[3] = {experts, w->rows / experts, mxc_dim(p->t, m.codes, 1)};
    m.codes = mxc_reshape(p->t, m.codes, shape, 3);
    if (!m.bits) return mxc_linear_experts(p->t, x, m.codes, which);
    shape[2] = mxc_dim(p->t, m.scales, 1);
    m.scales = mxc_reshape(p->t, m.scales, shape, 3);
    m.biases = mxc_reshape(p->t, m.biases, shape, 3);
    return mxc_affine_experts(p->t, x, &m, which);
}

static mxc_ref op_experts(struct mlx_pass *p, const struct sg_op *op)
{
    const struct sg_experts *e = &op->u.experts;
    uint32_t rows = p->rows_n[p->graph->values[op->out].wanted], width = p->graph->values[op->out].width;
    uint32_t one[3] = {rows, 1, op->in[0].width}, row[3] = {rows, 1, e->k}, flat[2] = {rows, width};
    static const int swap[3] = {0, 2, 1};
    mxc_ref x = mxc_reshape(p->t, mlx_operand(p, &op->in[0]), one, 3), routing = mlx_operand_fp32(p, &op->in[1]);
    mxc_ref which = mxc_cast(p->t, mxc_slice(p->t, routing, 1, 0, e->k), MXC_U32);
    mxc_ref weights = mxc_cast(p->t, mxc_slice(p->t, routing, 1, e->k, 2 * e->k), p->type);
    mxc_ref gate = mxc_activate(p->t, expert_linear(p, x, &e->gate, e->experts, which), (enum mxc_act)e->act);
    mxc_ref hidden = mxc_multiply(p->t, gate, expert_linear(p, x, &e->up, e->experts, which));
    mxc_ref y = expert_linear(p, hidden, &e->down, e->experts, which);
    /* The weighted sum over experts is a product with the transposed rows. */
    y = mxc_multiply(p->t, mxc_transpose(p->t, y, swap, 3), mxc_reshape(p->t, weights, row, 3));
    return mxc_reshape(p->t, mxc_sum(p->t, y), flat, 2);
}

/* --- the rest --- */

static mxc_ref op_scale(struct mlx_pass *p, const struct sg_op *op)
{
    mxc_ref x = mlx_operand(p, &op->in[0]), weight = mlx_vector(p, &op->u.scale.weight, MLX_VECTOR);
    return weight == MXC_NONE ? mxc_scale(p->t, x, (double)op->u.scale.value) : mxc_multiply(p->t, x, weight);
}

/* Selects the wanted rows of all spans. */
static mxc_ref op_rows(struct mlx_pass *p, const struct sg_op *op)
{
    uint32_t n = p->rows_n[1];
    mxc_ref x = p->program->fp32[op->out] ? mlx_operand_fp32(p, &op->in[0]) : mlx_operand(p, &op->in[0]);
    int32_t *ids = sg_alloc(n * sizeof *ids);
    if (!ids) return MXC_NONE;
    for (uint32_t s = 0, i = 0; s < p->spans_n; s++)
        for (uint32_t k = 0; k < p->spans[s].wanted_n; k++) ids[i++] = (int32_t)(p->from[0][s] + p->spans[s].wanted[k]);
    mxc_ref y = n == p->rows_n[0] ? x : mxc_take(p->t, x, mxc_from(p->t, ids, MXC_I32, &n, 1), 0);
    sg_free(ids);
    return y;
}

mxc_ref mlx_op(struct mlx_pass *p, const struct sg_op *op)
{
    switch (op->code) {
    case SG_OP_EMBED: return op_embed(p, op);
    case SG_OP_NORM: return op_norm(p, op);
    case SG_OP_LINEAR: return op_linear(p, op);
    case SG_OP_ROPE: return mlx_op_rope(p, op);
    case SG_OP_ATTEND: return mlx_op_gate(p, op, mlx_op_attend(p, op));
    case SG_OP_CONV: return mlx_op_conv(p, op);
    case SG_OP_DELTA: return mlx_op_delta(p, op);
    case SG_OP_GLU:
        return mxc_multiply(p->t, mxc_activate(p->t, mlx_operand(p, &op->in[0]), (enum mxc_act)op->u.glu.act),
                            mlx_operand(p, &op->in[1]));
    case SG_OP_ACT: return mxc_activate(p->t, mlx_operand(p, &op->in[0]), (enum mxc_act)op->u.act.act);
    case SG_OP_ADD: return mxc_add(p->t, mlx_operand(p, &op->in[0]), mlx_operand(p, &op->in[1]));
    case SG_OP_SCALE: return op_scale(p, op);
    case SG_OP_ROUTE: return op_route(p, op);
    case SG_OP_EXPERTS: return op_experts(p, op);
    case SG_OP_ROWS: return op_rows(p, op);
    default: return MXC_NONE;
    }
}
