/* train_small.c: embedding, norm, rotary embedding, convolution and elementwise operations.
 * SPDX-License-Identifier: MIT */
#include "unit/cuda/train/cu_train.h"

segue_status cu_train_embed(struct cu_train *t, const struct sg_resident_call *c, segue_error *err)
{
    const struct sg_resident_tokens *k = c->tokens;
    float scale = c->op->u.embed.scale;
    if (!c->back) {
        struct ct_embed a = {c->weight[0].value, c->weight[1].value, k->ids, k->position, c->out, scale, c->rows, c->width};
        return cu_train_launch(t, t->k.embed, c->rows, 1, 1, CT_THREADS, &a, err);
    }
    for (int i = 0; i < 2; i++) {
        struct ct_embed_back a = {c->weight[i].gradient, i ? (const int32_t *)k->position : k->ids, c->dout, i ? 1 : scale,
                                  c->rows, c->width};
        if (a.gradient) SG_TRY(cu_train_launch(t, t->k.embed_back, c->rows, 1, 1, CT_THREADS, &a, err));
    }
    return SEGUE_OK;
}

static struct ct_norm norm_args(const struct sg_resident_call *c)
{
    const struct sg_norm *n = &c->op->u.norm;
    return (struct ct_norm){.x = cu_train_matrix(c->in[0]), .gate = cu_train_matrix(c->in[1]), .dx = cu_train_matrix(c->grad[0]),
                            .dgate = cu_train_matrix(c->grad[1]), .weight = c->weight[0].value, .bias = c->weight[1].value,
                            .dout = c->dout, .out = c->out, .eps = n->eps, .plus = n->plus_one ? 1 : 0, .rows = c->rows,
                            .groups = n->groups, .group = c->in[0].width / n->groups, .layer = n->kind == SG_NORM_LAYER};
}

segue_status cu_train_norm(struct cu_train *t, const struct sg_resident_call *c, segue_error *err)
{
    struct ct_norm a = norm_args(c);
    if (!c->back) return cu_train_launch(t, t->k.norm, a.rows * a.groups, 1, 1, CT_THREADS, &a, err);
    SG_TRY(cu_train_scratch(t, (size_t)2 * a.rows * a.groups, &a.stats, err));
    SG_TRY(cu_train_launch(t, t->k.norm_back, a.rows * a.groups, 1, 1, CT_THREADS, &a, err));
    struct ct_columns s = {.dout = c->dout, .x = a.x, .gate = a.gate, .stats = a.stats, .kind = CT_OF_NORM_WEIGHT,
                           .rows = a.rows * a.groups, .width = c->width, .groups = a.groups, .columns = a.group};
    SG_TRY(cu_train_columns(t, &s, c->weight[0].gradient, 1, err));
    s.kind = CT_OF_NORM_BIAS;
    return cu_train_columns(t, &s, c->weight[1].gradient, 1, err);
}

/* Backward: dout has rows of all columns of the result, like it. */
segue_status cu_train_rope(struct cu_train *t, const struct sg_resident_call *c, segue_error *err)
{
    const struct sg_rope *r = &c->op->u.rope;
    struct ct_rope a = {.x = cu_train_matrix(c->back ? c->grad[0] : c->in[0]), .cosine = c->angles,
                        .sine = c->angles + (size_t)c->angle_rows * c->pairs, .position = c->tokens->position, .rows = c->rows,
                        .heads = r->heads, .head_width = r->head_width, .pairs = c->pairs, .width = c->width,
                        .sign = (float)r->sign};
    a.out = c->back ? (float *)(uintptr_t)c->dout : c->out;
    if (!a.x.p) return SEGUE_OK;
    return cu_train_launch(t, c->back ? t->k.rope_back : t->k.rope, c->rows, 1, 1, CT_THREADS, &a, err);
}

segue_status cu_train_conv(struct cu_train *t, const struct sg_resident_call *c, segue_error *err)
{
    const struct sg_conv *v = &c->op->u.conv;
    size_t n = (size_t)c->rows * c->width;
    struct ct_conv a = {.x = cu_train_matrix(c->in[0]), .dx = cu_train_matrix(c->grad[0]), .weight = c->weight[0].value,
                        .bias = c->weight[1].value, .dout = c->dout, .out = c->out, .position = c->tokens->position,
                        .rows = c->rows, .width = c->width, .taps = v->taps, .act = (uint32_t)v->act};
    if (!c->back) return cu_train_launch_items(t, t->k.conv, n, &a, err);
    SG_TRY(cu_train_scratch(t, n, &a.du, err));
    SG_TRY(cu_train_launch_items(t, t->k.conv, n, &a, err));
    if (a.dx.p) SG_TRY(cu_train_launch_items(t, t->k.conv_back, n, &a, err));
    struct ct_columns s = {.dout = a.du, .x = a.x, .position = a.position, .kind = CT_OF_CONV, .rows = c->rows, .width = c->width,
                           .groups = 1, .columns = c->width * v->taps, .taps = v->taps};
    SG_TRY(cu_train_columns(t, &s, c->weight[0].gradient, 1, err));
    s.kind = CT_OF_DOUT;
    s.columns = c->width;
    return cu_train_columns(t, &s, c->weight[1].gradient, 1, err);
}

/* One number: its gradient is the sum of all columns' sums, which are kept in the scratch. */
static segue_status scale_weight_back(struct cu_train *t, const struct sg_resident_call *c, int one, segue_error *err)
{
    float *sums;
    struct ct_columns s = {.dout = c->dout, .x = cu_train_matrix(c->in[0]), .kind = CT_OF_PRODUCT, .rows = c->rows,
                           .width = c->width, .groups = 1, .columns = c->width};
    if (!c->weight[0].gradient || !one) return cu_train_columns(t, &s, c->weight[0].gradient, 1, err);
    SG_TRY(cu_train_scratch(t, c->width, &sums, err));
    cu_enter(t->u);
    cu_result r = t->u->d.memset_d8((cu_ptr)(uintptr_t)sums, 0, c->width * sizeof *sums, t->stream);
    cu_leave(t->u);
    SG_TRY(cu_check(&t->u->d, r, "train", err));
    SG_TRY(cu_train_columns(t, &s, sums, 1, err));
    struct ct_heads_sum all = {.parts = sums, .gradient = c->weight[0].gradient, .rows = c->width, .heads = 1, .of = 1,
                               .sign = 1};
    return cu_train_launch(t, t->k.heads_sum, 1, 1, 1, CT_THREADS, &all, err);
}

segue_status cu_train_elements(struct cu_train *t, const struct sg_resident_call *c, segue_error *err)
{
    const struct sg_op *op = c->op;
    const struct sg_resident_weight *w = &c->weight[0];
    struct ct_small a = {.x = cu_train_matrix(c->in[0]), .y = cu_train_matrix(c->in[1]), .dx = cu_train_matrix(c->grad[0]),
                         .dy = cu_train_matrix(c->grad[1]), .dout = c->dout, .weight = w->value, .out = c->out,
                         .rows = c->rows, .width = c->width, .one = w->value && w->rows == 1 && w->cols == 1};
    switch (op->code) {
    case SG_OP_GLU: a.kind = c->back ? CT_GLU_BACK : CT_GLU, a.act = (uint32_t)op->u.glu.act; break;
    case SG_OP_ACT: a.kind = c->back ? CT_ACT_BACK : CT_ACT, a.act = (uint32_t)op->u.act.act; break;
    case SG_OP_ADD: a.kind = CT_ADD; break;
    default: a.kind = c->back ? CT_SCALE_BACK : CT_SCALE, a.value = op->u.scale.value;
    }
    if (c->back && op->code == SG_OP_ADD) {
        SG_TRY(cu_train_add_to(t, c->grad[0], c->dout, c->rows, c->width, err));
        return cu_train_add_to(t, c->grad[1], c->dout, c->rows, c->width, err);
    }
    if (c->back && op->code == SG_OP_SCALE) SG_TRY(scale_weight_back(t, c, (int)a.one, err));
    if (c->back && op->code != SG_OP_GLU && !a.dx.p) return SEGUE_OK;
    return cu_train_launch_items(t, t->k.small, (size_t)c->rows * c->width, &a, err);
}
