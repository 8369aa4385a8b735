/* mlx_range.c: results beyond fp16. MLX makes them infinite; behind that they stay infinite or become NaN, except where the
 * function has a limit there (sigmoid, tanh, exp), which is then the right value. So the ends of a pass show them.
 * SPDX-License-Identifier: MIT */
#include "unit/mlx/mlxunit.h"

const struct sg_op *mlx_last_mixer(const struct sg_graph *g)
{
    for (uint32_t i = g->ops_n; i-- > 0;)
        if (g->ops[i].code == SG_OP_ATTEND || g->ops[i].code == SG_OP_CONV || g->ops[i].code == SG_OP_DELTA) return &g->ops[i];
    return NULL;
}

mxc_ref mlx_range_flag(struct mlx_pass *p)
{
    const struct sg_op *mixer = mlx_last_mixer(p->graph);
    mxc_ref flag = MXC_NONE;
    if (p->type != MXC_F16) return MXC_NONE;
    for (uint32_t i = 0; i < p->graph->outputs_n; i++) {
        int32_t value = p->graph->outputs[i].value;
        if (p->graph->values[value].wanted && !p->rows_n[1]) continue;
        flag = mxc_flag(p->t, p->values[value], flag);
    }
    for (uint32_t i = 0; mixer && i < SG_OP_INPUTS; i++)
        if (mixer->in[i].value >= 0) flag = mxc_flag(p->t, mlx_operand(p, &mixer->in[i]), flag);
    return flag;
}

segue_status mlx_range_fail(struct mlx_pass *p, segue_error *err)
{
    const struct sg_graph *g = p->graph;
    for (uint32_t i = 0; i < g->ops_n && !mxc_error(p->t); i++) {
        const struct sg_op *op = &g->ops[i];
        if (g->values[op->out].wanted && !p->rows_n[1]) continue;
        p->overflows = mxc_count_infinite(p->t, p->values[op->out]);
        if (p->overflows)
            return sg_fail(err, SEGUE_EUNSUPPORTED,
                           "run: mlx: v%d (%s, layer %d): %llu results exceed fp16; use type=bf16, type=f32, or another unit",
                           op->out, sg_op_name(op->code), op->layer, (unsigned long long)p->overflows);
    }
    SG_TRY(mlx_status(p->unit, "run", err));
    return sg_fail(err, SEGUE_EUNSUPPORTED, "run: mlx: a result exceeds fp16; use type=bf16, type=f32, or another unit");
}
