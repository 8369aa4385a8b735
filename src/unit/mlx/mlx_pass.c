/* mlx_pass.c: helpers of the ops: operands, vectors, rows of a span.
 * SPDX-License-Identifier: MIT */
#include "unit/mlx/mlxunit.h"

mxc_ref mlx_operand(struct mlx_pass *p, const struct sg_operand *x)
{
    if (x->value < 0) return MXC_NONE;
    uint32_t width = p->graph->values[x->value].width;
    if (!x->at && x->width == width) return p->values[x->value];
    return mxc_slice(p->t, p->values[x->value], 1, x->at, x->at + x->width);
}

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
