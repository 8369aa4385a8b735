/* issue_ops.c: launches of the small ops: embedding, norm, rope, elementwise ops, row selection, routing and mixture of
 * experts. Each has one kernel for all shapes (k_rows.cu). SPDX-License-Identifier: MIT */
#include "unit/cuda/issue/issue.h"

/* `places` is the optional table of learned positions. */
struct ck_embed cu_embed_args(const struct cu_pass *p, const struct sg_op *op)
{
    const struct sg_embed *e = &op->u.embed;
    const struct cu_tensor *places = cu_weight_tensor(p, &e->positions);
    struct ck_embed a = {.pass = cu_kernel_pass(p),
                         .table = cu_weight_tensor(p, &e->table)->w,
                         .at = e->table.at,
                         .places_at = e->positions.at,
                         .rows = cu_out_rows(p, op),
                         .scale = e->scale,
                         .y = cu_output_view(p, op)};
    if (places) a.places = places->w;
    return a;
}

/* One thread per column, one block row per token. */
static segue_status issue_embed(struct cu_pass *p, const struct sg_op *op)
{
    struct ck_embed a = cu_embed_args(p, op);
    return cu_launch(p, p->program->base.unit->k.embed, a.rows, cu_pieces(a.y.width, 256), 1, 256, 0, &a);
}

/* One block per row and group; blocks of narrow groups are small. */
static segue_status issue_norm(struct cu_pass *p, const struct sg_op *op)
{
    struct ck_norm_args a = {.x = cu_view_of(p, &op->in[0]),
                             .y = cu_output_view(p, op),
                             .norm = cu_norm_of(p, op),
                             .rows = cu_out_rows(p, op)};
    uint32_t group = a.x.width / a.norm.groups, threads = group > 512 ? 256 : group > 128 ? 128 : 64;
    return cu_launch(p, p->program->base.unit->k.norm_rows, a.rows, a.norm.groups, 1, threads, 0, &a);
}

/* Columns after the rotated pairs are copied. */
static segue_status issue_rope(struct cu_pass *p, const struct sg_op *op)
{
    const struct sg_rope *r = &op->u.rope;
    const struct sg_rope_table *t = &p->program->base.graph->ropes[r->table];
    struct ck_rope a = {.pass = cu_kernel_pass(p),
                        .x = cu_view_of(p, &op->in[0]),
                        .y = cu_output_view(p, op),
                        .inverse = cu_floats(p->program->inverse[r->table]),
                        .heads = r->heads,
                        .head_width = r->head_width,
                        .pairs = t->pairs,
                        .rows = cu_out_rows(p, op),
                        .mscale = t->mscale,
                        .sign = r->sign};
    return cu_launch(p, p->program->base.unit->k.rope, a.rows, cu_pieces(a.x.width, 128), 1, 128, 0, &a);
}

/* GLU, activation, addition and scaling; x2 is absent where the op has one input. A weight of one number scales all columns. */
static segue_status issue_elementwise(struct cu_pass *p, const struct sg_op *op, cu_fn fn)
{
    struct ck_map a = {.x = cu_view_of(p, &op->in[0]),
                       .x2 = cu_view_of(p, &op->in[1]),
                       .y = cu_output_view(p, op),
                       .rows = cu_out_rows(p, op)};
    if (op->code == SG_OP_GLU) a.act = op->u.glu.act;
    if (op->code == SG_OP_ACT) a.act = op->u.act.act;
    if (op->code == SG_OP_SCALE) {
        const struct cu_tensor *t = cu_weight_tensor(p, &op->u.scale.weight);
        a.value = op->u.scale.value;
        a.weight = cu_vector_of(p, &op->u.scale.weight);
        a.one = t && t->source->rows == 1 && t->source->cols == 1;
    }
    return cu_launch(p, fn, a.rows, cu_pieces(a.y.width, 256), 1, 256, 0, &a);
}

/* Copies the wanted rows. When all rows are selected their readers read the input directly. */
static segue_status issue_rows(struct cu_pass *p, const struct sg_op *op)
{
    if (p->program->value_locs[op->out].from >= 0 && p->rows_n[0] == p->rows_n[1]) return SEGUE_OK;
    struct ck_rows a = {.pass = cu_kernel_pass(p),
                        .x = cu_view_of(p, &op->in[0]),
                        .y = cu_output_view(p, op),
                        .rows = cu_out_rows(p, op)};
    return cu_launch(p, p->program->base.unit->k.rows, a.rows, cu_pieces(a.x.width, 256), 1, 256, 0, &a);
}

/* One thread per token selects its k experts. */
static segue_status issue_route(struct cu_pass *p, const struct sg_op *op)
{
    const struct sg_route *r = &op->u.route;
    struct ck_route a = {.x = cu_view_of(p, &op->in[0]),
                         .y = cu_output_view(p, op),
                         .bias = cu_vector_of(p, &r->bias),
                         .experts = r->experts,
                         .k = r->k,
                         .sigmoid = r->sigmoid,
                         .renormalise = r->renormalise,
                         .rows = cu_out_rows(p, op),
                         .scale = r->scale};
    return cu_launch(p, p->program->base.unit->k.route, cu_pieces(a.rows, 32), 1, 1, 32, 0, &a);
}

/* Two launches: the hidden units of the selected experts of each row, [rows][k][ff] in scratch, then their weighted sum. */
static segue_status issue_experts(struct cu_pass *p, const struct sg_op *op)
{
    const struct sg_experts *e = &op->u.experts;
    struct sg_unit *u = p->program->base.unit;
    struct ck_experts a = {.x = cu_view_of(p, &op->in[0]),
                           .routing = cu_view_of(p, &op->in[1]),
                           .y = cu_output_view(p, op),
                           .gate = cu_weight_tensor(p, &e->gate)->w,
                           .up = cu_weight_tensor(p, &e->up)->w,
                           .down = cu_weight_tensor(p, &e->down)->w,
                           .gate_at = e->gate.at,
                           .up_at = e->up.at,
                           .down_at = e->down.at,
                           .experts = e->experts,
                           .k = e->k,
                           .ff = e->ff,
                           .act = e->act,
                           .rows = cu_out_rows(p, op)};
    /* A warp computes one hidden unit, then one column of the result. */
    a.d = a.y.width;
    SG_TRY(cu_lane_grow(p, &p->lane->scratch, &p->lane->scratch_bytes, (size_t)a.rows * a.k * a.ff * sizeof(float)));
    a.hidden = cu_floats(p->lane->scratch);
    SG_TRY(cu_launch(p, u->k.experts_in, cu_pieces(a.ff, 8), a.rows * a.k, 1, 256, 0, &a));
    return cu_launch(p, u->k.experts_out, cu_pieces(a.d, 8), a.rows, 1, 256, 0, &a);
}

/* The product of `plain` steps never comes here: it has its own step kind. */
segue_status cu_issue_small(struct cu_pass *p, const struct sg_op *op)
{
    const struct cu_kernels *k = &p->program->base.unit->k;
    switch (op->code) {
    case SG_OP_EMBED:
        return issue_embed(p, op);
    case SG_OP_NORM:
        return issue_norm(p, op);
    case SG_OP_ROPE:
        return issue_rope(p, op);
    case SG_OP_GLU:
        return issue_elementwise(p, op, k->glu);
    case SG_OP_ACT:
        return issue_elementwise(p, op, k->act);
    case SG_OP_ADD:
        return issue_elementwise(p, op, k->add);
    case SG_OP_SCALE:
        return issue_elementwise(p, op, k->scale);
    case SG_OP_ROUTE:
        return issue_route(p, op);
    case SG_OP_EXPERTS:
        return issue_experts(p, op);
    case SG_OP_ROWS:
        return issue_rows(p, op);
    default:
        return sg_fail(p->err, SEGUE_EINTERNAL, "run: cuda: op %d is unknown; report this", (int)op->code);
    }
}

segue_status cu_issue_fault(struct cu_pass *p, const struct sg_op *op)
{
    struct ck_map a = {.y = cu_output_view(p, op), .rows = cu_out_rows(p, op)};
    return a.rows ? cu_launch(p, p->program->base.unit->k.one_ulp, 1, 1, 1, 32, 0, &a) : SEGUE_OK;
}
