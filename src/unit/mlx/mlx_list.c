/* mlx_list.c: all arrays of a pass. Tests see with it that nothing is computed in fp32 unintentionally, and count them.
 * SPDX-License-Identifier: MIT */
#include "unit/mlx/mlxunit.h"

struct listing {
    struct sg_program *program;
    const struct sg_span *spans;
    uint32_t spans_n;
    mlx_list_fn *each;
    void *context;
    enum mlx_listed how;
    const struct sg_op *op;
    int is_value;                    /* 0: an array of a slot is listed */
    segue_status status;
    segue_error *err;
};

static void each_array(void *context, const char *primitive, enum mxc_type type, int last)
{
    struct listing *l = context;
    l->each(l->context, l->op, primitive, type, last && l->is_value);
}

static segue_status list_pass(struct listing *l, struct mlx_pass *p)
{
    SG_TRY(mlx_pass_begin(p, l->err));
    for (uint32_t i = 0; i < p->graph->ops_n && !mxc_error(p->t); i++) {
        uint32_t states_n = p->states_n;
        l->op = &p->graph->ops[i];
        if (mlx_pass_skips(p, l->op)) continue;
        SG_TRY(mlx_pass_op(p, l->op, l->err));
        l->is_value = 1;
        mxc_list(p->t, p->values[l->op->out], each_array, l);
        l->is_value = 0;
        for (uint32_t k = states_n; k < p->states_n; k++) mxc_list(p->t, p->states[k], each_array, l);
    }
    return mlx_status(p->unit, "list", l->err);
}

/* The graph as MLX computes it for a decode step: results and states. */
static segue_status list_compiled(struct listing *l, struct mlx_pass *p)
{
    SG_TRY(mlx_pass_begin(p, l->err));
    SG_TRY(mlx_pass_compiled(p, l->err));
    struct mlx_best best = mlx_best_of(p);
    mxc_list(p->t, best.token, each_array, l);
    for (uint32_t k = 0; k < p->states_n; k++) mxc_list(p->t, p->states[k], each_array, l);
    return mlx_status(p->unit, "list", l->err);
}

static void list_on_owner(void *arg)
{
    struct listing *l = arg;
    struct mlx_pass p;
    l->status = mlx_pass_open(&p, l->program, l->spans, l->spans_n, l->err);
    if (l->how == MLX_LIST_FUSED) mxc_fuse(l->program->base.unit->device);
    if (l->status == SEGUE_OK) l->status = l->how == MLX_LIST_OPS ? list_pass(l, &p) : list_compiled(l, &p);
    mlx_pass_close(&p);
    mxc_tape_clear(p.unit->tape);
}

segue_status mlx_list_arrays(struct sg_program *program, const struct sg_span *spans, uint32_t spans_n, enum mlx_listed how,
                             mlx_list_fn *each, void *context, segue_error *err)
{
    struct listing l = {.program = program, .spans = spans, .spans_n = spans_n, .each = each, .context = context,
                        .how = how, .err = err};
    mlx_call(program->base.unit, list_on_owner, &l);
    return l.status;
}
