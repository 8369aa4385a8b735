/* lowerdelta.c: lowers the gated delta rule in chunks of up to 64 rows, without a loop over rows. S is the
 * state, o the elementwise product, c_i = g_1 + .. + g_i and L_ij = e^(g_(j+1) + .. + g_i) for j <= i, else
 * 0. A = I + strictly lower part of (beta K K^T o L) is inverted to P; then D = P beta V - P (beta K o e^c)
 * S, O = (Q o e^c) S + (Q K^T o L) D and S <- e^c_N S + (K o e^(c_N - c))^T D. Every sum of g is computed
 * by one product and rounded once, because differences of rounded prefix sums would lose precision. Padding
 * rows have beta, g and k of 0 and so do not change S. A single row uses the same formulas with N = 1. The
 * scale 1 / sqrt(dk) of normalized q is applied to O: Q K^T o L may be small, and an M1 multiplies subnormal
 * numbers as 0, which a norm of O by heads would make visible.
 * SPDX-License-Identifier: MIT */
#include <math.h>

#include "unit/ane/lower/lowercommon.h"

enum { CHUNK_MAX = 64 };

/* Inputs of a chunk of N rows. kh: key heads; R: value heads that share a key head. */
struct chunk {
    uint32_t q, k, v, g, beta;        /* q, k [kh, 1, dk, N]; v [kh, R, dv, N]; g, beta [kh, R, 1, N] */
    int64_t n, heads, shared, dk, dv; /* N, kh, R */
};

/* Elements of 0/1 matrices for sg_ane_pattern_matrix: identity, lower triangle with j <= i - arg, upper
 * triangle with j >= i + arg, and is_block: the lower left w x w block of each 2w x 2w diagonal block. */
static int is_one(int64_t i, int64_t j, int64_t arg) { return (void)arg, i == j; }
static int is_lower(int64_t i, int64_t j, int64_t arg) { return i >= j + arg; }
static int is_upper(int64_t i, int64_t j, int64_t arg) { return j >= i + arg; }
static int is_block(int64_t i, int64_t j, int64_t w) { return i / (2 * w) == j / (2 * w) && i / w % 2 && j / w % 2 == 0; }

static uint32_t mul(struct sg_lowering *l, uint32_t x, uint32_t y) { return SG_ANE_BIN("mul", x, y); }

/* Columns [at, at + n) of x. */
static uint32_t slice_columns(struct sg_lowering *l, uint32_t x, int64_t at, int64_t n)
{
    const struct sg_mil_type *t = sg_mil_build_type(&l->b, x);
    if (l->b.status || n == t->dim[3]) return x;
    int64_t begin[4] = {0, 0, 0, at}, size[4] = {t->dim[0], t->dim[1], t->dim[2], n};
    return sg_mil_build_slice(&l->b, x, 4, begin, size);
}

/* L: e^(sum of g over m in (j, i]), and 1 above the diagonal: [kh, R, N, N]. Callers mask the upper part. */
static uint32_t decays(struct sg_lowering *l, const struct chunk *c)
{
    uint32_t column = sg_mil_build_reshape(&l->b, c->g, 4, (int64_t[]){c->heads, c->shared, c->n, 1});
    uint32_t from = mul(l, column, sg_ane_pattern_matrix(l, c->n, is_lower, 1));
    return SG_ANE_UN("exp", sg_mil_build_matmul(&l->b, sg_ane_pattern_matrix(l, c->n, is_lower, 0), from, 0, 0));
}

/* P = (I + X)^-1 for strictly lower X [.., n, n], by doubling: while P holds the inverses of the w x w
 * diagonal blocks, the inverses of the 2w x 2w blocks are P - P Y P, where Y is X restricted to the blocks
 * that join each pair. The first step has P = I and needs no product. */
static uint32_t inverse(struct sg_lowering *l, uint32_t x, int64_t n)
{
    uint32_t p = sg_ane_pattern_matrix(l, n, is_one, 0);
    for (int64_t w = 1; w < n; w *= 2) {
        uint32_t y = mul(l, x, sg_ane_pattern_matrix(l, n, is_block, w));
        if (w > 1) y = sg_mil_build_matmul(&l->b, sg_mil_build_matmul(&l->b, p, y, 0, 0), p, 0, 0);
        p = SG_ANE_BIN("sub", p, y);
    }
    return p;
}

/* e^(sum of g) over the rows up to and including each row, or with suffix = 1 over the rows after it: [kh,
 * R, 1, N]. */
static uint32_t decay_sums(struct sg_lowering *l, const struct chunk *c, int suffix)
{
    uint32_t which = sg_ane_pattern_matrix(l, c->n, suffix ? is_upper : is_lower, suffix);
    return SG_ANE_UN("exp", sg_mil_build_matmul(&l->b, c->g, which, 0, 1));
}

/* Results O of a chunk, [kh, R, dv, N]; *state [kh, R, dk, dv] is updated. Rows are columns here, so the
 * products are the transposes of those at the top of the file. */
static uint32_t run_chunk(struct sg_lowering *l, const struct chunk *c, uint32_t *state)
{
    uint32_t decay = decays(l, c), e = decay_sums(l, c, 0), s = *state;
    uint32_t column = sg_mil_build_reshape(&l->b, c->beta, 4, (int64_t[]){c->heads, c->shared, c->n, 1});
    uint32_t keys = sg_mil_build_matmul(&l->b, c->k, c->k, 1, 0);
    uint32_t x = mul(l, mul(l, mul(l, decay, sg_ane_pattern_matrix(l, c->n, is_lower, 1)), keys), column);
    uint32_t p = inverse(l, x, c->n);
    uint32_t u = sg_mil_build_matmul(&l->b, mul(l, c->v, c->beta), p, 0, 1);
    uint32_t w = sg_mil_build_matmul(&l->b, mul(l, c->k, mul(l, c->beta, e)), p, 0, 1);
    uint32_t d = SG_ANE_BIN("sub", u, sg_mil_build_matmul(&l->b, s, w, 1, 0));
    uint32_t old = sg_mil_build_matmul(&l->b, s, mul(l, c->q, e), 1, 0);
    uint32_t attn = mul(l, mul(l, decay, sg_ane_pattern_matrix(l, c->n, is_lower, 0)),
                        sg_mil_build_matmul(&l->b, c->q, c->k, 1, 0));
    uint32_t out = SG_ANE_BIN("add", old, sg_mil_build_matmul(&l->b, d, attn, 0, 1));
    uint32_t chunk_decay = SG_ANE_UN("exp", sg_mil_build_reduce(&l->b, "reduce_sum", c->g, 3));
    uint32_t added = sg_mil_build_matmul(&l->b, mul(l, c->k, decay_sums(l, c, 1)), d, 0, 1);
    *state = SG_ANE_BIN("add", mul(l, s, chunk_decay), added);
    return out;
}

/* g = softplus(in[3] + dt) * rate for every value head, 0 for padding rows: [1, v_heads, 1, S]. */
static uint32_t exponents(struct sg_lowering *l, const struct sg_op *op, uint32_t valid)
{
    const struct sg_delta *p = &op->u.delta;
    int64_t shape[4] = {1, p->v_heads, 1, 1};
    uint32_t dt = sg_ane_weight(l, &p->dt, SG_ANE_AS_IS, 4, shape);
    uint32_t rate = sg_ane_weight(l, &p->decay, p->decay_is_log ? SG_ANE_NEG_EXP : SG_ANE_AS_IS, 4, shape);
    uint32_t step = SG_ANE_UN("softplus", SG_ANE_BIN("add", sg_ane_operand(l, &op->in[3]), dt));
    return mul(l, mul(l, step, rate), valid);
}

/* op->in: q, k, v, a (step), b (beta before the sigmoid). The state passes from chunk to chunk; at most 16
 * chunks, 1024 rows. */
uint32_t sg_ane_lower_delta(struct sg_lowering *l, const struct sg_op *op)
{
    const struct sg_delta *p = &op->u.delta;
    struct chunk all = {.heads = p->k_heads, .shared = p->v_heads / p->k_heads, .dk = p->dk, .dv = p->dv};
    int64_t s = l->s, step = s < CHUNK_MAX ? s : CHUNK_MAX, key[4] = {all.heads, 1, all.dk, s},
            value[4] = {all.heads, all.shared, all.dv, s}, number[4] = {all.heads, all.shared, 1, s};
    uint32_t valid = sg_ane_channels(l, l->info_rows, l->info->valid, 1), outs[16], n = 0;
    all.g = sg_mil_build_reshape(&l->b, exponents(l, op, valid), 4, number);
    all.beta = mul(l, sg_ane_act(l, SG_ACT_SIGMOID, sg_ane_operand(l, &op->in[4])), valid);
    all.beta = sg_mil_build_reshape(&l->b, all.beta, 4, number);
    all.q = sg_mil_build_reshape(&l->b, sg_ane_operand(l, &op->in[0]), 4, key);
    all.k = sg_mil_build_reshape(&l->b, sg_ane_operand(l, &op->in[1]), 4, key);
    all.v = sg_mil_build_reshape(&l->b, sg_ane_operand(l, &op->in[2]), 4, value);
    if (p->l2_eps > 0) {
        all.q = sg_ane_normalize(l, all.q, 2, 1, (double)p->l2_eps, 0);
        all.k = sg_ane_normalize(l, all.k, 2, 1, (double)p->l2_eps, 0);
    }
    double scale = 1 / sqrt(p->dk);
    if (p->l2_eps <= 0) all.q = mul(l, all.q, SG_ANE_NUM(scale));
    all.k = mul(l, all.k, valid);
    uint32_t state = sg_ane_unpack(l, p->slot, SG_ANE_SHAPE(all.heads, all.shared, all.dk, all.dv));
    for (int64_t at = 0; at < s && n < 16; at += step) {
        struct chunk c = all;
        c.n = step;
        c.q = slice_columns(l, all.q, at, step);
        c.k = slice_columns(l, all.k, at, step);
        c.v = slice_columns(l, all.v, at, step);
        c.g = slice_columns(l, all.g, at, step);
        c.beta = slice_columns(l, all.beta, at, step);
        outs[n++] = run_chunk(l, &c, &state);
    }
    sg_ane_pack(l, p->slot, state, all.dv);
    uint32_t out = n > 1 ? sg_mil_build_concat(&l->b, outs, n, 3) : outs[0];
    if (p->l2_eps > 0) out = mul(l, out, SG_ANE_NUM(scale));
    return sg_mil_build_reshape(&l->b, out, 4, (int64_t[]){1, (int64_t)p->v_heads * all.dv, 1, s});
}
