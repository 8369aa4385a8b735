/* mlx_operands.c: helpers of the ops: operands, vectors, rows of a span.
 * SPDX-License-Identifier: MIT */
#include "unit/mlx/mlxunit.h"

mxc_ref mlx_cast(struct mlx_pass *p, mxc_ref x, enum mxc_type type)
{
    return mxc_type_of(p->t, x) == type ? x : mxc_cast(p->t, x, type);
}

static mxc_ref operand_as(struct mlx_pass *p, const struct sg_operand *x, enum mxc_type type)
{
    if (x->value < 0) return MXC_NONE;
    mxc_ref y = p->values[x->value];
    if (x->at || x->width != p->graph->values[x->value].width) y = mxc_slice(p->t, y, 1, x->at, x->at + x->width);
    return mlx_cast(p, y, type);
}

mxc_ref mlx_operand(struct mlx_pass *p, const struct sg_operand *x) { return operand_as(p, x, p->type); }

mxc_ref mlx_operand_fp32(struct mlx_pass *p, const struct sg_operand *x) { return operand_as(p, x, MXC_F32); }

mxc_ref mlx_vector(struct mlx_pass *p, const struct sg_weight *w, enum mlx_role role)
{
    return w->tensor < 0 ? MXC_NONE : mxc_use(p->t, mlx_weight_of(p->program, w->tensor, role)->numbers);
}

mxc_ref mlx_rows_of(struct mlx_pass *p, mxc_ref x, uint32_t from, uint32_t to)
{
    return from == 0 && to == mxc_dim(p->t, x, 0) ? x : mxc_slice(p->t, x, 0, from, to);
}

mxc_ref mlx_join_pieces(struct mlx_pass *p)
{
    return p->spans_n == 1 ? p->pieces[0] : mxc_concat(p->t, p->pieces, p->spans_n, 0);
}
