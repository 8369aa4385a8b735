/* train_linear.c: linear, with LoRA pairs: y = x W^T + s (x A^T) B^T + bias + residual; dx = dy W + s (dy B) A; dW = dy^T x;
 * dB = s dy^T (x A^T); dA = s (dy B)^T x.
 * SPDX-License-Identifier: MIT */
#include "unit/cuda/train/cu_train.h"

/* A product of row-major matrices; see struct ct_gemm. */
struct operands {
    const float *a, *b;
    size_t lda, ldb;
    float *c;
    size_t ldc;
    uint32_t rows, cols, inner;
    enum ct_gemm_kind kind;
    float scale;
    uint32_t add;
};

static segue_status multiply(struct cu_train *t, struct operands p, segue_error *err)
{
    struct ct_gemm g = {.a = p.a, .b = p.b, .c = p.c, .lda = p.lda, .ldb = p.ldb, .ldc = p.ldc, .rows = p.rows, .cols = p.cols,
                        .inner = p.inner, .scale = p.scale, .add = p.add, .kind = (uint32_t)p.kind};
    return cu_train_gemm(t, &g, err);
}

static segue_status forward(struct cu_train *t, const struct sg_resident_call *c, segue_error *err)
{
    const struct sg_resident_weight *w = &c->weight[0], *A = &c->pair[0], *B = &c->pair[1];
    const struct sg_resident_matrix *x = &c->in[0];
    uint32_t n = c->width, rank = A->rows;
    SG_TRY(multiply(t, (struct operands){x->data, w->value, x->stride, w->cols, c->out, n, c->rows, n, x->width, CT_NT, 1, 0},
                    err));
    if (A->value) {
        float *low;
        SG_TRY(cu_train_scratch(t, (size_t)c->rows * rank, &low, err));
        SG_TRY(multiply(t, (struct operands){x->data, A->value, x->stride, x->width, low, rank, c->rows, rank, x->width, CT_NT,
                                                  c->pair_scale, 0}, err));
        SG_TRY(multiply(t, (struct operands){low, B->value, rank, rank, c->out, n, c->rows, n, rank, CT_NT, 1, 1}, err));
    }
    if (!c->weight[1].value && !c->in[1].data) return SEGUE_OK;
    struct ct_small a = {.y = cu_train_matrix(c->in[1]), .weight = c->weight[1].value, .out = c->out, .rows = c->rows, .width = n,
                         .kind = CT_BIAS};
    return cu_train_launch_items(t, t->k.small, (size_t)c->rows * n, &a, err);
}

static segue_status pair_back(struct cu_train *t, const struct sg_resident_call *c, segue_error *err)
{
    const struct sg_resident_weight *A = &c->pair[0], *B = &c->pair[1];
    const struct sg_resident_matrix *x = &c->in[0], *dx = &c->grad[0];
    uint32_t n = c->width, rank = A->rows, k = x->width;
    float *low, *dlow, s = c->pair_scale;
    SG_TRY(cu_train_scratch(t, (size_t)2 * c->rows * rank, &low, err));
    dlow = low + (size_t)c->rows * rank;
    SG_TRY(multiply(t, (struct operands){x->data, A->value, x->stride, k, low, rank, c->rows, rank, k, CT_NT, s, 0}, err));
    SG_TRY(multiply(t, (struct operands){c->dout, B->value, n, rank, dlow, rank, c->rows, rank, n, CT_NN, s, 0}, err));
    SG_TRY(multiply(t, (struct operands){c->dout, low, n, rank, B->gradient, rank, n, rank, c->rows, CT_TN, 1, 1}, err));
    SG_TRY(multiply(t, (struct operands){dlow, x->data, rank, x->stride, A->gradient, k, rank, k, c->rows, CT_TN, 1, 1}, err));
    if (!dx->data) return SEGUE_OK;
    return multiply(t, (struct operands){dlow, A->value, rank, k, dx->data, dx->stride, c->rows, k, rank, CT_NN, 1, 1}, err);
}

segue_status cu_train_linear(struct cu_train *t, const struct sg_resident_call *c, segue_error *err)
{
    const struct sg_resident_weight *w = &c->weight[0];
    const struct sg_resident_matrix *x = &c->in[0], *dx = &c->grad[0];
    uint32_t n = c->width;
    if (!c->back) return forward(t, c, err);
    SG_TRY(cu_train_add_to(t, c->grad[1], c->dout, c->rows, n, err));
    struct ct_columns bias = {.dout = c->dout, .kind = CT_OF_DOUT, .rows = c->rows, .width = n, .groups = 1, .columns = n};
    SG_TRY(cu_train_columns(t, &bias, c->weight[1].gradient, 1, err));
    if (dx->data)
        SG_TRY(multiply(t, (struct operands){c->dout, w->value, n, w->cols, dx->data, dx->stride, c->rows, x->width, n, CT_NN,
                                                  1, 1}, err));
    if (w->gradient)
        SG_TRY(multiply(t, (struct operands){c->dout, x->data, n, x->stride, w->gradient, w->cols, n, x->width, c->rows, CT_TN,
                                                  1, 1}, err));
    return c->pair[0].value ? pair_back(t, c, err) : SEGUE_OK;
}
