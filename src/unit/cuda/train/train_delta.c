/* train_delta.c: the gated delta rule of training; see k_train_delta.cu.
 * SPDX-License-Identifier: MIT */
#include "unit/cuda/train/cu_train.h"

static struct ct_delta args_of(const struct sg_resident_call *c)
{
    const struct sg_delta *d = &c->op->u.delta;
    return (struct ct_delta){.q = cu_train_matrix(c->in[0]), .k = cu_train_matrix(c->in[1]), .v = cu_train_matrix(c->in[2]),
                             .a = cu_train_matrix(c->in[3]), .b = cu_train_matrix(c->in[4]), .to_q = cu_train_matrix(c->grad[0]),
                             .to_k = cu_train_matrix(c->grad[1]), .to_v = cu_train_matrix(c->grad[2]),
                             .to_a = cu_train_matrix(c->grad[3]), .to_b = cu_train_matrix(c->grad[4]),
                             .decay = c->weight[0].value, .dt = c->weight[1].value, .dout = c->dout,
                             .from = c->tokens->from, .l2_eps = d->l2_eps,
                             .rows = c->rows, .sequences = c->tokens->sequences, .k_heads = d->k_heads, .v_heads = d->v_heads,
                             .dk = d->dk, .dvw = d->dv, .is_log = d->decay_is_log, .store_rest = c->back};
}

/* Numbers for every token, in an order that keeps the doubles of `parts` aligned. */
static segue_status set_scratch(struct cu_train *t, struct ct_delta *a, segue_error *err)
{
    size_t keys = (size_t)a->rows * a->k_heads, heads = (size_t)a->rows * a->v_heads, back = a->store_rest;
    float *at;
    size_t numbers = 4 * heads + 2 * keys + 2 * keys * a->dk + back * 3 * heads * (a->dvw + a->dk);
    SG_TRY(cu_train_scratch(t, numbers, &at, err));
    a->parts = at, at += 2 * heads;
    a->gates = at, at += 2 * heads;
    a->inverse = at, at += 2 * keys;
    a->qn = at, at += keys * a->dk;
    a->kn = at, at += keys * a->dk;
    if (!back) return SEGUE_OK;
    a->rest = at, at += heads * a->dvw;
    a->y = at, at += heads * a->dvw;
    a->f = at, at += heads * a->dvw;
    a->gq = at, at += heads * a->dk;
    a->gk = at, at += heads * a->dk;
    a->gk2 = at;
    return SEGUE_OK;
}

/* `lines` columns or rows of `numbers` each, of all heads and sequences. */
static segue_status scan(struct cu_train *t, cu_fn up_to_128, cu_fn up_to_256, uint32_t lines, uint32_t numbers,
                         const struct ct_delta *a, segue_error *err)
{
    return cu_train_launch(t, numbers <= CT_DELTA_MAX / 2 ? up_to_128 : up_to_256, cu_pieces(lines, CT_DELTA_BLOCK), a->v_heads,
                           a->sequences, CT_THREADS, a, err);
}

static segue_status scans_back(struct cu_train *t, const struct ct_delta *a, segue_error *err)
{
    SG_TRY(scan(t, t->k.delta_columns_128, t->k.delta_columns_256, a->dvw, a->dk, a, err));
    SG_TRY(scan(t, t->k.delta_columns_back_128, t->k.delta_columns_back_256, a->dvw, a->dk, a, err));
    SG_TRY(scan(t, t->k.delta_rows_128, t->k.delta_rows_256, a->dk, a->dvw, a, err));
    return scan(t, t->k.delta_rows_back_128, t->k.delta_rows_back_256, a->dk, a->dvw, a, err);
}

segue_status cu_train_delta(struct cu_train *t, const struct sg_resident_call *c, segue_error *err)
{
    struct ct_delta a = args_of(c);
    SG_TRY(set_scratch(t, &a, err));
    SG_TRY(cu_train_launch(t, t->k.delta_prepare, a.rows * a.k_heads, 1, 1, 32, &a, err));
    a.out = c->back ? a.y : c->out;
    if (!c->back) return scan(t, t->k.delta_columns_128, t->k.delta_columns_256, a.dvw, a.dk, &a, err);
    SG_TRY(scans_back(t, &a, err));
    SG_TRY(cu_train_launch(t, t->k.delta_values, a.rows * a.v_heads, 1, 1, 32, &a, err));
    SG_TRY(cu_train_launch(t, t->k.delta_decay, a.sequences * a.v_heads, 1, 1, 32, &a, err));
    SG_TRY(cu_train_launch(t, t->k.delta_keys, a.rows * a.k_heads, 1, 1, 32, &a, err));
    for (uint32_t i = 0; i < 2; i++) { /* dt from the gradient of a, then the decay */
        struct ct_heads_sum s = {a.parts, c->weight[1 - i].gradient, a.rows, a.v_heads, i, 2, 1, 0};
        if (s.gradient) SG_TRY(cu_train_launch(t, t->k.heads_sum, a.v_heads, 1, 1, CT_THREADS, &s, err));
    }
    return SEGUE_OK;
}
