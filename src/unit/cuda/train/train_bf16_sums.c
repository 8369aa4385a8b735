/* train_bf16_sums.c: sums of bf16 gradients: over rows, and into the gradient of an operand. SPDX-License-Identifier: MIT */
#include "unit/cuda/train/cu_train.h"

static uint16_t *half(const float *p) { return (uint16_t *)(uintptr_t)p; }

segue_status cu_train_bf16_parts(struct cu_train *t, const float *parts, float *gradient, uint32_t columns, uint32_t apart,
                                 uint32_t chunks, segue_error *err)
{
    struct ct_half_parts a = {parts, gradient, apart, columns, chunks};
    return gradient ? cu_train_launch(t, t->k.bf16_parts, cu_pieces(columns, 32), 1, 1, CT_THREADS, &a, err) : SEGUE_OK;
}

segue_status cu_train_bf16_columns(struct cu_train *t, const struct sg_resident_call *c, float *gradient, segue_error *err)
{
    uint32_t chunks = cu_pieces(c->rows, CT_CHUNK), columns = (uint32_t)c->stride;
    struct ct_half_columns a = {half(c->dout), c->stride, NULL, c->rows, columns};
    if (!gradient) return SEGUE_OK;
    SG_TRY(cu_train_parts(t, (size_t)chunks * columns, &a.parts, err));
    SG_TRY(cu_train_launch(t, t->k.bf16_columns, chunks, cu_pieces(columns, 256), 1, CT_THREADS, &a, err));
    return cu_train_bf16_parts(t, a.parts, gradient, c->width, columns, chunks, err);
}

segue_status cu_train_bf16_add_to(struct cu_train *t, struct sg_resident_matrix to, const struct sg_resident_call *c,
                                  segue_error *err)
{
    struct ct_half_small a = {.dx = cu_train_half(to), .dout = half(c->dout), .rows = c->rows, .width = c->width,
                              .kind = CT_ADD_TO};
    if (!to.data || to.data == c->dout) return SEGUE_OK;
    return cu_train_launch_items(t, t->k.bf16_small, (size_t)c->rows * c->width / 8, &a, err);
}
