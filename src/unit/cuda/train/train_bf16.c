/* train_bf16.c: operations with bf16 values that have kernels (k_train_bf16.cu); all others by their fp32 kernels between
 * conversions. SPDX-License-Identifier: MIT */
#include "unit/cuda/train/cu_train.h"

static uint16_t *half(const float *p) { return (uint16_t *)(uintptr_t)p; }

/* --- any op by its fp32 kernels --- */

static size_t numbers_of(const struct sg_resident_call *c, struct sg_resident_matrix m)
{
    return m.data ? (size_t)c->rows * m.width : 0;
}

/* Converts m to or from [rows, width] at `wide`; padded: columns of m that are written. */
static segue_status convert(struct cu_train *t, const struct sg_resident_call *c, cu_fn fn, struct sg_resident_matrix m,
                            float *wide, uint32_t columns, segue_error *err)
{
    struct ct_convert a = {cu_train_half(m), wide, c->rows, columns};
    return m.data ? cu_train_launch_items(t, fn, (size_t)c->rows * columns, &a, err) : SEGUE_OK;
}

static segue_status clear(struct cu_train *t, float *p, size_t n, segue_error *err)
{
    cu_enter(t->u);
    cu_result r = n ? t->u->d.memset_d8((cu_ptr)(uintptr_t)p, 0, n * sizeof *p, t->stream) : 0;
    cu_leave(t->u);
    return cu_check(&t->u->d, r, "train", err);
}

segue_status cu_train_widened(struct cu_train *t, const struct sg_resident_call *c, cu_train_op *op, segue_error *err)
{
    struct sg_resident_call from = *c, w = *c;
    for (int i = 0; i < SG_OP_INPUTS; i++) /* a residual's gradient that is dout itself */
        if (c->back && c->grad[i].data == c->dout) from.grad[i].data = w.grad[i].data = NULL;
    c = &from;
    struct sg_resident_matrix out = {c->back ? (float *)(uintptr_t)c->dout : c->out, c->stride, c->width, 1};
    size_t all = (size_t)c->rows * c->width, grads = 0;
    for (int i = 0; i < SG_OP_INPUTS; i++) all += numbers_of(c, c->in[i]), grads += numbers_of(c, c->grad[i]);
    SG_TRY(cu_mem_grow(t->u, &t->wide, &t->wide_bytes, (all + grads) * sizeof(float), "operands as fp32", err));
    float *at = (float *)(uintptr_t)t->wide, *result = at + grads;
    SG_TRY(clear(t, at, grads, err));
    for (int i = 0; i < SG_OP_INPUTS; at += numbers_of(c, c->grad[i]), i++)
        if (c->grad[i].data) w.grad[i] = (struct sg_resident_matrix){at, c->grad[i].width, c->grad[i].width, 0};
    at = result + (size_t)c->rows * c->width;
    for (int i = 0; i < SG_OP_INPUTS; at += numbers_of(c, c->in[i]), i++) {
        if (c->in[i].data) w.in[i] = (struct sg_resident_matrix){at, c->in[i].width, c->in[i].width, 0};
        SG_TRY(convert(t, c, t->k.bf16_widen, c->in[i], at, c->in[i].width, err));
    }
    w.stride = c->width;
    w.out = c->back ? NULL : result;
    w.dout = c->back ? result : NULL;
    if (c->back) SG_TRY(convert(t, c, t->k.bf16_widen, out, result, c->width, err));
    SG_TRY(op(t, &w, err));
    if (!c->back) return convert(t, c, t->k.bf16_narrow, out, result, (uint32_t)c->stride, err);
    for (int i = 0; i < SG_OP_INPUTS; i++)
        SG_TRY(convert(t, c, t->k.bf16_narrow, c->grad[i], w.grad[i].data, c->grad[i].width, err));
    return SEGUE_OK;
}

/* --- operations --- */

static segue_status embed(struct cu_train *t, const struct sg_resident_call *c, segue_error *err)
{
    const struct sg_resident_tokens *k = c->tokens;
    float scale = c->op->u.embed.scale;
    if (!c->back) {
        struct ct_half_embed a = {c->weight[0].value, c->weight[1].value, k->ids, k->position, half(c->out), c->stride, scale,
                                  c->rows, c->width};
        return cu_train_launch(t, t->k.bf16_embed, c->rows, 1, 1, CT_THREADS, &a, err);
    }
    struct ct_half_embed_back a = {c->weight[0].gradient, k->ids, k->from, half(c->dout), c->stride, scale, c->rows, c->width,
                                   k->sequences};
    if (a.gradient) SG_TRY(cu_train_launch(t, t->k.bf16_embed_back, c->rows, 1, 1, CT_THREADS, &a, err));
    a.gradient = c->weight[1].gradient;
    a.scale = 1;
    return a.gradient ? cu_train_launch(t, t->k.bf16_places_back, k->longest, 1, 1, CT_THREADS, &a, err) : SEGUE_OK;
}

static segue_status norm(struct cu_train *t, const struct sg_resident_call *c, segue_error *err)
{
    const struct sg_norm *n = &c->op->u.norm;
    struct ct_half_norm a = {.x = cu_train_half(c->in[0]), .gate = cu_train_half(c->in[1]), .dx = cu_train_half(c->grad[0]),
                             .dgate = cu_train_half(c->grad[1]), .weight = c->weight[0].value,
                             .bias = c->weight[1].value, .dout = half(c->dout), .out = half(c->out), .eps = n->eps,
                             .plus = n->plus_one ? 1 : 0, .rows = c->rows * n->groups, .width = c->width / n->groups,
                             .layer = n->kind == SG_NORM_LAYER, .groups = n->groups};
    uint32_t blocks = cu_pieces(a.rows, CT_THREADS / 32), chunks = cu_pieces(a.rows, CT_CHUNK);
    if (!c->back) return cu_train_launch(t, t->k.bf16_norm, blocks, 1, 1, CT_THREADS, &a, err);
    SG_TRY(cu_train_scratch(t, (size_t)2 * a.rows, &a.stats, err));
    SG_TRY(cu_train_launch(t, t->k.bf16_norm_back, blocks, 1, 1, CT_THREADS, &a, err));
    if (!c->weight[0].gradient && !c->weight[1].gradient) return SEGUE_OK;
    SG_TRY(cu_train_parts(t, (size_t)2 * chunks * a.width, &a.parts, err));
    SG_TRY(cu_train_launch(t, t->k.bf16_norm_columns, chunks, cu_pieces(a.width, 256), 1, CT_THREADS, &a, err));
    SG_TRY(cu_train_bf16_parts(t, a.parts, c->weight[0].gradient, a.width, a.width, chunks, err));
    return cu_train_bf16_parts(t, a.parts + (size_t)chunks * a.width, c->weight[1].gradient, a.width, a.width, chunks, err);
}

/* Backward: dout has rows of all columns of the result. */
static segue_status rope(struct cu_train *t, const struct sg_resident_call *c, segue_error *err)
{
    const struct sg_rope *r = &c->op->u.rope;
    struct ct_half_rope a = {.x = cu_train_half(c->back ? c->grad[0] : c->in[0]), .out = half(c->back ? c->dout : c->out),
                             .cosine = c->angles, .sine = c->angles + (size_t)c->angle_rows * c->pairs,
                             .position = c->tokens->position, .rows = c->rows, .heads = r->heads, .head_width = r->head_width,
                             .pairs = c->pairs, .width = c->width, .sign = (float)r->sign};
    if (!a.x.p) return SEGUE_OK;
    return cu_train_launch(t, c->back ? t->k.bf16_rope_back : t->k.bf16_rope, c->rows, 1, 1, CT_THREADS, &a, err);
}

static segue_status elements(struct cu_train *t, const struct sg_resident_call *c, segue_error *err)
{
    const struct sg_op *op = c->op;
    const struct sg_resident_weight *w = &c->weight[0];
    struct ct_half_small a = {.x = cu_train_half(c->in[0]), .y = cu_train_half(c->in[1]), .dx = cu_train_half(c->grad[0]),
                              .dy = cu_train_half(c->grad[1]), .dout = half(c->dout), .out = c->back ? NULL : half(c->out),
                              .weight = w->value, .rows = c->rows, .width = c->width,
                              .one = w->value && w->rows == 1 && w->cols == 1};
    switch (op->code) {
    case SG_OP_GLU: a.kind = c->back ? CT_GLU_BACK : CT_GLU, a.act = (uint32_t)op->u.glu.act; break;
    case SG_OP_ACT: a.kind = c->back ? CT_ACT_BACK : CT_ACT, a.act = (uint32_t)op->u.act.act; break;
    case SG_OP_ADD: a.kind = CT_ADD; break;
    default: a.kind = c->back ? CT_SCALE_BACK : CT_SCALE, a.value = op->u.scale.value;
    }
    if (c->back && op->code == SG_OP_ADD) {
        SG_TRY(cu_train_bf16_add_to(t, c->grad[0], c, err));
        return cu_train_bf16_add_to(t, c->grad[1], c, err);
    }
    return cu_train_launch_items(t, t->k.bf16_small, (size_t)c->rows * c->width / 8, &a, err);
}

/* The kernel's function for a call; NULL: none. */
static cu_train_op *kernel_of(const struct sg_resident_call *c)
{
    int even = c->width % 8 == 0;
    for (int i = 0; i < SG_OP_INPUTS; i++) even &= cu_train_even(c->in[i]) && cu_train_even(c->grad[i]);
    if (!even) return NULL;
    switch (c->op->code) {
    case SG_OP_EMBED: return embed;
    case SG_OP_NORM: return c->width / c->op->u.norm.groups % 8 == 0 ? norm : NULL;
    case SG_OP_ROPE: return rope;
    case SG_OP_GLU:
    case SG_OP_ACT:
    case SG_OP_ADD: return elements;
    case SG_OP_SCALE: return c->weight[0].gradient ? NULL : elements;
    default: return NULL;
    }
}

segue_status cu_train_bf16(struct cu_train *t, const struct sg_resident_call *c, int *done, segue_error *err)
{
    if (c->op->code == SG_OP_LINEAR) return cu_train_bf16_linear(t, c, done, err);
    if (c->op->code == SG_OP_ATTEND) return cu_train_flash(t, c, done, err);
    cu_train_op *op = kernel_of(c);
    *done = op != NULL;
    return op ? op(t, c, err) : SEGUE_OK;
}
