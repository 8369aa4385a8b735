/* train_bf16_linear.c: linear with bf16 values by cuBLASLt, as train_linear.c: bias and residual are part of the product's
 * epilogue, gradients of weights are added to in fp32. A LoRA pair needs a rank that is a multiple of 8.
 * SPDX-License-Identifier: MIT */
#include "unit/cuda/train/cu_train.h"

static const uint16_t *half(const void *p) { return (const uint16_t *)p; }

/* Columns of the result that the library computes: with its padding, which the rows of 0 behind the weight make 0. */
static uint32_t padded(const struct sg_resident_call *c) { return c->width % 8 ? (uint32_t)c->stride : c->width; }

static int can(struct cu_train *t, const struct sg_resident_call *c, int whole)
{
    int pair = !c->pair[0].value || (c->pair[0].rows % 8 == 0 && c->width % 8 == 0);
    return cu_train_blas(t) && pair && (c->width % 8 == 0 || (whole && !c->in[1].data)) && cu_train_even(c->in[0]) &&
           cu_train_even(c->in[1]) && cu_train_even(c->grad[0]) && cu_train_even(c->grad[1]);
}

/* low [rows, rank] = s x A^T, in bf16 in the scratch; with dlow, s dy B behind it. */
static segue_status low_products(struct cu_train *t, const struct sg_resident_call *c, const uint16_t **low,
                                 const uint16_t **dlow, segue_error *err)
{
    const struct sg_resident_weight *A = &c->pair[0], *B = &c->pair[1];
    const struct sg_resident_matrix *x = &c->in[0];
    uint32_t rank = A->rows;
    size_t numbers = (size_t)c->rows * rank;
    float *scratch;
    const uint16_t *a, *b;
    SG_TRY(cu_train_scratch(t, numbers, &scratch, err)); /* words of two numbers */
    SG_TRY(cu_train_copy_of(t, A->value, A->rows, A->cols, &a, NULL, err));
    uint16_t *to = (uint16_t *)(void *)scratch;
    struct cu_train_product p = {.kind = CT_NT, .a = half(x->data), .lda = x->stride, .b = a, .ldb = x->width, .d = to,
                                 .ldd = rank, .rows = c->rows, .cols = rank, .inner = x->width, .scale = c->pair_scale};
    SG_TRY(cu_train_multiply(t, &p, err));
    *low = to;
    if (!dlow) return SEGUE_OK;
    SG_TRY(cu_train_copy_of(t, B->value, B->rows, B->cols, &b, NULL, err));
    *dlow = to + numbers;
    p = (struct cu_train_product){.kind = CT_NN, .a = half(c->dout), .lda = c->stride, .b = b, .ldb = rank, .d = to + numbers,
                                  .ldd = rank, .rows = c->rows, .cols = rank, .inner = c->width, .scale = c->pair_scale};
    return cu_train_multiply(t, &p, err);
}

static segue_status forward(struct cu_train *t, const struct sg_resident_call *c, const uint16_t *w, segue_error *err)
{
    const struct sg_resident_matrix *x = &c->in[0];
    struct cu_train_product p = {.kind = CT_NT, .a = half(x->data), .lda = x->stride, .b = w, .ldb = x->width, .d = c->out,
                                 .ldd = c->stride, .rows = c->rows, .cols = padded(c), .inner = x->width, .scale = 1,
                                 .c = c->in[1].data, .ldc = c->in[1].stride};
    if (c->weight[1].value) SG_TRY(cu_train_copy_of(t, c->weight[1].value, 1, 1, &p.bias, NULL, err));
    SG_TRY(cu_train_multiply(t, &p, err));
    if (!c->pair[0].value) return SEGUE_OK;
    const uint16_t *low, *b;
    uint32_t rank = c->pair[0].rows;
    SG_TRY(low_products(t, c, &low, NULL, err));
    SG_TRY(cu_train_copy_of(t, c->pair[1].value, c->width, rank, &b, NULL, err));
    p = (struct cu_train_product){.kind = CT_NT, .a = low, .lda = rank, .b = b, .ldb = rank, .d = c->out, .ldd = c->stride,
                                  .rows = c->rows, .cols = c->width, .inner = rank, .scale = 1, .c = c->out, .ldc = c->stride};
    return cu_train_multiply(t, &p, err);
}

/* gradient [rows, cols] += dy^T x, both of c->rows rows. A number of columns of dy that is no multiple of 8 is slow, so its
 * padding is added as rows behind the gradient where these may be. */
static segue_status weight_back(struct cu_train *t, const uint16_t *dy, size_t dy_stride, const uint16_t *x, size_t x_stride,
                                const struct sg_resident_weight *w, uint32_t rows, int whole, segue_error *err)
{
    uint32_t even = (w->rows + 7) / 8 * 8;
    size_t behind = (size_t)(even - w->rows) * w->cols, slack = cu_train_slack((size_t)w->rows * w->cols);
    if (!whole || even > dy_stride || behind > slack) even = w->rows;
    struct cu_train_product p = {.kind = CT_TN, .a = dy, .lda = dy_stride, .b = x, .ldb = x_stride, .d = w->gradient,
                                 .ldd = w->cols, .rows = even, .cols = w->cols, .inner = rows, .scale = 1, .c = w->gradient,
                                 .ldc = w->cols, .wide = 1};
    return w->gradient ? cu_train_multiply(t, &p, err) : SEGUE_OK;
}

static segue_status pair_back(struct cu_train *t, const struct sg_resident_call *c, segue_error *err)
{
    const struct sg_resident_matrix *x = &c->in[0], *dx = &c->grad[0];
    const uint16_t *low, *dlow, *a;
    uint32_t rank = c->pair[0].rows;
    struct sg_resident_weight b = c->pair[1];
    b.rows = c->width; /* of its rows those of this operation */
    SG_TRY(low_products(t, c, &low, &dlow, err));
    SG_TRY(weight_back(t, half(c->dout), c->stride, low, rank, &b, c->rows, 0, err));
    SG_TRY(weight_back(t, dlow, rank, half(x->data), x->stride, &c->pair[0], c->rows, 0, err));
    if (!dx->data) return SEGUE_OK;
    SG_TRY(cu_train_copy_of(t, c->pair[0].value, rank, x->width, &a, NULL, err));
    struct cu_train_product p = {.kind = CT_NN, .a = dlow, .lda = rank, .b = a, .ldb = x->width, .d = dx->data, .ldd = dx->stride,
                                 .rows = c->rows, .cols = x->width, .inner = rank, .scale = 1, .c = dx->data, .ldc = dx->stride};
    return cu_train_multiply(t, &p, err);
}

static segue_status backward(struct cu_train *t, const struct sg_resident_call *c, const uint16_t *w, int whole, segue_error *err)
{
    const struct sg_resident_matrix *x = &c->in[0], *dx = &c->grad[0];
    SG_TRY(cu_train_bf16_add_to(t, c->grad[1], c, err));
    SG_TRY(cu_train_bf16_columns(t, c, c->weight[1].gradient, err));
    if (dx->data) {
        struct cu_train_product p = {.kind = CT_NN, .a = half(c->dout), .lda = c->stride, .b = w, .ldb = x->width, .d = dx->data,
                                     .ldd = dx->stride, .rows = c->rows, .cols = x->width, .inner = padded(c), .scale = 1,
                                     .c = dx->fresh ? NULL : dx->data, .ldc = dx->stride};
        SG_TRY(cu_train_multiply(t, &p, err));
    }
    SG_TRY(weight_back(t, half(c->dout), c->stride, half(x->data), x->stride, &c->weight[0], c->rows, whole, err));
    return c->pair[0].value ? pair_back(t, c, err) : SEGUE_OK;
}

segue_status cu_train_bf16_linear(struct cu_train *t, const struct sg_resident_call *c, int *done, segue_error *err)
{
    const uint16_t *w = NULL;
    int whole = 0;
    if (!can(t, c, 1)) return SEGUE_OK;
    SG_TRY(cu_train_copy_of(t, c->weight[0].value, c->weight[0].rows, c->weight[0].cols, &w, &whole, err));
    if (!can(t, c, whole)) return SEGUE_OK;
    *done = 1;
    return c->back ? backward(t, c, w, whole, err) : forward(t, c, w, err);
}
