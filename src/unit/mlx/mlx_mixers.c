/* mlx_mixers.c: the ops that depend on positions or keep state: rope, attend, conv, delta. They are built span by span.
 * SPDX-License-Identifier: MIT */
#include <math.h>

#include "unit/mlx/mlxunit.h"

/* [1, heads, rows, width] as [rows, columns]. One row is the same memory. */
static mxc_ref by_row(struct mlx_pass *p, mxc_ref x, uint32_t rows, uint32_t columns)
{
    static const int axes[4] = {0, 2, 1, 3};
    uint32_t shape[2] = {rows, columns};
    return mxc_reshape(p->t, rows == 1 ? x : mxc_transpose(p->t, x, axes, 4), shape, 2);
}

/* The rotated columns times mscale, which equals scaling cosine and sine. */
static mxc_ref scale_rotated(struct mlx_pass *p, mxc_ref x, const struct sg_rope_table *table, uint32_t width)
{
    uint32_t rotated = 2 * table->pairs;
    if (table->mscale == 1) return x;
    mxc_ref parts[2] = {mxc_scale(p->t, mxc_slice(p->t, x, 3, 0, rotated), (double)table->mscale), MXC_NONE};
    if (rotated == width) return parts[0];
    parts[1] = mxc_slice(p->t, x, 3, rotated, width);
    return mxc_concat(p->t, parts, 2, 3);
}

/* One row per sequence, each at its position: the sequences are the batch. */
static mxc_ref rope_rows(struct mlx_pass *p, const struct sg_rope *r, mxc_ref x, mxc_ref periods)
{
    const struct sg_rope_table *table = &p->graph->ropes[r->table];
    uint32_t shape[4] = {p->rows_n[0], r->heads, 1, r->head_width}, flat[2] = {p->rows_n[0], r->heads * r->head_width};
    mxc_ref y = mxc_rope_at(p->t, mxc_reshape(p->t, x, shape, 4), periods, table->pairs, p->positions);
    return mxc_reshape(p->t, scale_rotated(p, y, table, r->head_width), flat, 2);
}

mxc_ref mlx_op_rope(struct mlx_pass *p, const struct sg_op *op)
{
    const struct sg_rope *r = &op->u.rope;
    const struct sg_rope_table *table = &p->graph->ropes[r->table];
    mxc_ref x = mlx_operand(p, &op->in[0]), periods = mxc_use(p->t, p->program->periods[r->table]);
    if (r->sign < 0) periods = mxc_scale(p->t, periods, -1);
    if (p->segment) return rope_rows(p, r, x, periods);
    for (uint32_t s = 0; s < p->spans_n; s++) {
        uint32_t rows = p->spans[s].rows;
        mxc_ref y = mlx_by_head(p->t, mlx_rows_of(p, x, p->from[0][s], p->from[0][s + 1]), rows, r->heads, r->head_width);
        y = scale_rotated(p, mxc_rope(p->t, y, periods, table->pairs, (uint32_t)p->spans[s].first), table, r->head_width);
        p->pieces[s] = by_row(p, y, rows, op->in[0].width);
    }
    return mlx_join_pieces(p);
}

/* --- attend --- */

/* The type in which attention is computed: that of K and V where both it and the unit's have 16 bits, so that only q is
 * converted; else the unit's. */
static enum mxc_type attended_type(const struct mlx_pass *p, mxc_ref held)
{
    enum mxc_type type = mxc_type_of(p->t, held);
    return type == MXC_F32 || p->type == MXC_F32 ? p->type : type;
}

/* Appends the rows of a span to a slot and returns positions [lo, end). */
static mxc_ref append(struct mlx_pass *p, const struct sg_span *span, int32_t slot, mxc_ref rows, uint64_t lo)
{
    struct mlx_slot *s = mlx_slot_at(span->state, (uint32_t)slot);
    uint64_t end = span->first + span->rows;
    mxc_ref all = mlx_state_append(p->unit, span->state, (uint32_t)slot, rows, span->first, span->rows);
    p->states[p->states_n++] = all;
    p->state_bytes += (end - lo) * s->core.row_bytes;
    mxc_ref held = mxc_slice(p->t, all, 2, (uint32_t)lo, (uint32_t)end);
    return mlx_cast(p, held, attended_type(p, held));
}

/* K and V are written first and read back, so that a token attends to itself and its neighbours as stored. */
mxc_ref mlx_op_attend(struct mlx_pass *p, const struct sg_op *op)
{
    const struct sg_attend *a = &op->u.attend;
    mxc_ref q = mlx_operand(p, &op->in[0]), k = mlx_operand(p, &op->in[1]), v = mlx_operand(p, &op->in[2]);
    mxc_ref sinks = mlx_vector(p, &a->sinks, MLX_VECTOR);
    for (uint32_t s = 0; s < p->spans_n; s++) {
        const struct sg_span *span = &p->spans[s];
        uint32_t from = p->from[0][s], to = p->from[0][s + 1];
        uint64_t lo = a->window && span->first + 1 > a->window ? span->first + 1 - a->window : 0;
        struct mxc_attention m = {.scale = a->scale, .softcap = a->softcap, .window = a->window};
        m.k = append(p, span, a->slot_k, mlx_rows_of(p, k, from, to), lo);
        m.v = append(p, span, a->slot_v, mlx_rows_of(p, v, from, to), lo);
        enum mxc_type type = mxc_type_of(p->t, m.k);
        m.q = mlx_cast(p, mlx_by_head(p->t, mlx_rows_of(p, q, from, to), span->rows, a->heads, a->d), type);
        m.sinks = sinks == MXC_NONE ? MXC_NONE : mlx_cast(p, sinks, type);
        p->pieces[s] = by_row(p, mxc_attend(p->t, &m), span->rows, a->heads * a->dv);
    }
    return mlx_cast(p, mlx_join_pieces(p), p->type);
}

mxc_ref mlx_op_gate(struct mlx_pass *p, const struct sg_op *op, mxc_ref y)
{
    mxc_ref gate = mlx_operand(p, &op->in[3]);
    return gate == MXC_NONE ? y : mxc_multiply(p->t, y, mxc_activate(p->t, gate, MXC_ACT_SIGMOID));
}

/* --- recurrent ops --- */

/* The index of a slot among the arrays of a compiled segment. */
static uint32_t index_of(const struct mlx_pass *p, uint32_t s, int32_t slot)
{
    uint32_t i = 0;
    while (p->segment->slots[i] != (uint32_t)slot) i++;
    return i * p->spans_n + s;
}

static mxc_ref fixed_before(struct mlx_pass *p, uint32_t s, int32_t slot)
{
    if (p->segment) return p->before[index_of(p, s, slot)];
    struct mlx_slot *of = mlx_slot_at(p->spans[s].state, (uint32_t)slot);
    p->state_bytes += 2 * of->core.fixed_bytes;
    return mlx_state_fixed(p->unit, of);
}

static void fixed_after(struct mlx_pass *p, uint32_t s, int32_t slot, mxc_ref x)
{
    if (p->segment) {
        p->after[index_of(p, s, slot)] = x;
        return;
    }
    x = mlx_state_shaped(p->unit, mlx_slot_at(p->spans[s].state, (uint32_t)slot), x);
    mlx_state_set_next(p->unit, p->spans[s].state, (uint32_t)slot, x);
    p->states[p->states_n++] = x;
}

/* Of one row, [1, channels], and the rows before it, [n - 1, channels]: a sum over taps, which MLX fuses into one kernel, while
 * its convolution of so many groups takes several. Rounded once, as there. */
static mxc_ref convolve_row(struct mlx_pass *p, mxc_ref past, mxc_ref x, struct mxc_held *const *taps, uint32_t n)
{
    mxc_ref y = MXC_NONE;
    for (uint32_t k = 0; k < n; k++) {
        mxc_ref row = k + 1 < n ? mxc_slice(p->t, past, 0, k, k + 1) : x;
        row = mxc_multiply(p->t, mlx_cast(p, row, MXC_F32), mxc_use(p->t, taps[k]));
        y = k ? mxc_add(p->t, y, row) : row;
    }
    return mlx_cast(p, y, p->type);
}

/* The n rows that the slot of a convolution has after a row x. */
static mxc_ref shifted(struct mlx_pass *p, mxc_ref past, mxc_ref x, uint32_t n)
{
    mxc_ref parts[2] = {n > 1 ? mxc_slice(p->t, past, 0, 1, n) : MXC_NONE, x};
    return n > 1 ? mxc_concat(p->t, parts, 2, 0) : mxc_copy(p->t, x);
}

/* One row of a span, [1, width]. */
static mxc_ref conv_row(struct mlx_pass *p, const struct sg_conv *c, uint32_t s, mxc_ref x)
{
    const struct mlx_weight *taps = mlx_weight_of(p->program, c->weight.tensor, MLX_TAPS);
    mxc_ref before = mlx_cast(p, fixed_before(p, s, c->slot), p->type);
    fixed_after(p, s, c->slot, shifted(p, before, x, c->taps - 1));
    return convolve_row(p, before, x, taps->each, c->taps);
}

/* Several rows of a span, [rows, width]. */
static mxc_ref conv_rows(struct mlx_pass *p, const struct sg_conv *c, uint32_t s, mxc_ref x, mxc_ref weight, uint32_t width)
{
    uint32_t rows = p->spans[s].rows, past = c->taps - 1, three[3] = {1, rows + past, width}, two[2] = {rows, width};
    mxc_ref all = x;
    if (past) {
        mxc_ref parts[2] = {mlx_cast(p, fixed_before(p, s, c->slot), p->type), x};
        all = mxc_concat(p->t, parts, 2, 0);
        mxc_ref last = mxc_slice(p->t, all, 0, rows, rows + past);
        /* A copy, since a slice would keep the memory of all rows. */
        fixed_after(p, s, c->slot, rows > past ? mxc_copy(p->t, last) : last);
    }
    return mxc_reshape(p->t, mxc_convolve(p->t, mxc_reshape(p->t, all, three, 3), weight), two, 2);
}

/* The slot has the numbers of the unit's type, in which they came. */
mxc_ref mlx_op_conv(struct mlx_pass *p, const struct sg_op *op)
{
    const struct sg_conv *c = &op->u.conv;
    uint32_t width = op->in[0].width, shape[3] = {width, c->taps, 1};
    mxc_ref x = mlx_operand(p, &op->in[0]), bias = mlx_vector(p, &c->bias, MLX_VECTOR);
    mxc_ref weight = mxc_reshape(p->t, mlx_vector(p, &c->weight, MLX_VECTOR), shape, 3);
    for (uint32_t s = 0; s < p->spans_n; s++) {
        mxc_ref rows = mlx_rows_of(p, x, p->from[0][s], p->from[0][s + 1]);
        int one = c->taps > 1 && p->spans[s].rows == 1;
        p->pieces[s] = one ? conv_row(p, c, s, rows) : conv_rows(p, c, s, rows, weight, width);
    }
    mxc_ref y = mlx_join_pieces(p);
    if (bias != MXC_NONE) y = mxc_add(p->t, y, bias);
    return mxc_activate(p->t, y, (enum mxc_act)c->act);
}

/* x * scale / sqrt(sum x^2 + eps) per head, by the norm over the mean: sum = width * mean. */
static mxc_ref l2_scaled(struct mlx_pass *p, mxc_ref x, uint32_t width, float eps, double scale)
{
    if (eps <= 0) return scale == 1 ? x : mxc_scale(p->t, x, scale);
    return mxc_scale(p->t, mxc_rms_norm(p->t, x, MXC_NONE, eps / (float)width), scale / sqrt((double)width));
}

/* 1: q and k of the delta rule are one after the other in a value, so that one norm serves both. */
static int are_adjacent(const struct sg_op *op)
{
    const struct sg_operand *q = &op->in[0], *k = &op->in[1];
    return op->u.delta.l2_eps > 0 && q->value == k->value && q->width == k->width && k->at == q->at + q->width;
}

/* The same as l2_scaled for q and k of one row, [1, k_heads, 1, dk] each. */
static void l2_scaled_both(struct mlx_pass *p, const struct sg_op *op, mxc_ref row, mxc_ref out[2])
{
    const struct sg_delta *d = &op->u.delta;
    uint32_t shape[4] = {1, 2 * d->k_heads, 1, d->dk};
    float *scales = sg_alloc(2 * (size_t)d->k_heads * sizeof *scales);
    for (uint32_t h = 0; scales && h < 2 * d->k_heads; h++)
        scales[h] = (float)((h < d->k_heads ? 1 / sqrt((double)d->dk) : 1) / sqrt((double)d->dk));
    mxc_ref x = mxc_rms_norm(p->t, mxc_reshape(p->t, row, shape, 4), MXC_NONE, d->l2_eps / (float)d->dk);
    x = mxc_multiply(p->t, x, scales ? mxc_column(p->t, scales, p->type, 2 * d->k_heads) : MXC_NONE);
    x = mlx_cast(p, x, MXC_F32);
    for (uint32_t i = 0; i < 2; i++) out[i] = mxc_slice(p->t, x, 1, i * d->k_heads, (i + 1) * d->k_heads);
    sg_free(scales);
}

/* An operand in fp32, converted before its columns are cut out: MLX then fuses it with what computed the value. */
static mxc_ref whole_fp32(struct mlx_pass *p, const struct sg_operand *x)
{
    mxc_ref all = mlx_cast(p, p->values[x->value], MXC_F32);
    return x->at || x->width != p->graph->values[x->value].width ? mxc_slice(p->t, all, 1, x->at, x->at + x->width) : all;
}

/* The memory, decays and rates are fp32; q, k, v come in the unit's type and are converted behind their norms: given 16-bit
 * ones, MLX rounds the memory to 16 bits in every step, or on Metal the decays. */
mxc_ref mlx_op_delta(struct mlx_pass *p, const struct sg_op *op)
{
    const struct sg_delta *d = &op->u.delta;
    const struct sg_operand both = {.value = op->in[0].value, .at = op->in[0].at, .width = 2 * op->in[0].width};
    mxc_ref decay = mlx_vector(p, &d->decay, MLX_VECTOR_FP32), dt = mlx_vector(p, &d->dt, MLX_VECTOR_FP32), in[5];
    mxc_ref rate = d->decay_is_log ? mxc_scale(p->t, mxc_activate(p->t, decay, MXC_ACT_EXP), -1) : decay;
    for (int i = 0; i < 5; i++) in[i] = i < 2 ? mlx_operand(p, &op->in[i]) : mlx_operand_fp32(p, &op->in[i]);
    if (p->rows_n[0] == p->spans_n) in[2] = whole_fp32(p, &op->in[2]);
    mxc_ref steps = mxc_activate(p->t, mxc_add(p->t, in[3], dt), MXC_ACT_SOFTPLUS);
    mxc_ref gates = mxc_activate(p->t, mxc_multiply(p->t, steps, rate), MXC_ACT_EXP);
    mxc_ref beta = mxc_activate(p->t, in[4], MXC_ACT_SIGMOID);
    for (uint32_t s = 0; s < p->spans_n; s++) {
        uint32_t rows = p->spans[s].rows, from = p->from[0][s], to = p->from[0][s + 1];
        uint32_t keys[4] = {1, rows, d->k_heads, d->dk};
        mxc_ref qkv[3] = {MXC_NONE, MXC_NONE, mlx_rows_of(p, in[2], from, to)}, next;
        if (rows == 1 && are_adjacent(op)) {
            l2_scaled_both(p, op, mlx_rows_of(p, mlx_operand(p, &both), from, to), qkv);
        } else {
            for (int i = 0; i < 2; i++)
                qkv[i] = l2_scaled(p, mxc_reshape(p->t, mlx_rows_of(p, in[i], from, to), keys, 4), d->dk, d->l2_eps,
                                   i ? 1 : 1.0 / sqrt((double)d->dk));
        }
        for (int i = 0; i < 3; i++) qkv[i] = mlx_cast(p, qkv[i], MXC_F32);
        mxc_ref decays = mlx_rows_of(p, gates, from, to), rates = mlx_rows_of(p, beta, from, to);
        mxc_ref y = mxc_delta(p->t, qkv, decays, rates, fixed_before(p, s, d->slot), &next);
        fixed_after(p, s, d->slot, next);
        p->pieces[s] = mlx_cast(p, y, p->type);
    }
    return mlx_join_pieces(p);
}
