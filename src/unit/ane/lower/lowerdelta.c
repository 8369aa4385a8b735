/* lowerdelta.c: lowers the gated delta rule in chunks of up to 64 rows, without a loop over rows. S is the
 * state, o the elementwise product, c_i = g_1 + .. + g_i and L_ij = e^(g_(j+1) + .. + g_i) for j <= i, else
 * 0. A = I + strictly lower part of (beta K K^T o L) is inverted to P; then D = P beta V - P (beta K o e^c)
 * S, O = (Q o e^c) S + (Q K^T o L) D and S <- e^c_N S + (K o e^(c_N - c))^T D. Every sum of g is computed
 * by one product and rounded once, because differences of rounded prefix sums would lose precision. Padding
 * rows have beta, g and k of 0 and so do not change S. A single row uses the same formulas with N = 1. The
 * scale 1 / sqrt(dk) of normalized q is applied to O: Q K^T o L may be small, and an M1 multiplies subnormal
 * numbers as 0, which a norm of O by heads would make visible.
 *
 * What does not need S is computed once for all chunks, which are batches: B = chunks * kh on axis 0, a
 * chunk's heads next to each other. Only D, Q S and S go from chunk to chunk.
 * SPDX-License-Identifier: MIT */
#include <math.h>

#include "unit/ane/lower/lowercommon.h"

enum { CHUNK_MAX = 64, CHUNKS_MAX = 16, INPUTS = 5 };

/* Inputs of all chunks of N rows. kh: key heads; R: value heads that share a key head. */
struct chunks {
    uint32_t q, k, v, g, beta;        /* q, k [B, 1, dk, N]; v [B, R, dv, N]; g, beta [B, R, 1, N] */
    int64_t n, heads, shared, dk, dv; /* N, kh, R */
    int64_t count, batch;             /* chunks, B */
};

/* Elements of 0/1 matrices for sg_ane_pattern_matrix: lower triangle with j <= i - arg, upper
 * triangle with j >= i + arg, and is_block: the lower left w x w block of each 2w x 2w diagonal block. */
static int is_lower(int64_t i, int64_t j, int64_t arg) { return i >= j + arg; }
static int is_upper(int64_t i, int64_t j, int64_t arg) { return j >= i + arg; }
static int is_block(int64_t i, int64_t j, int64_t w) { return i / (2 * w) == j / (2 * w) && i / w % 2 && j / w % 2 == 0; }

static uint32_t mul(struct sg_lowering *l, uint32_t x, uint32_t y) { return SG_ANE_BIN("mul", x, y); }

/* Elements [at, at + n) of an axis of x. */
static uint32_t slice_axis(struct sg_lowering *l, uint32_t x, int axis, int64_t at, int64_t n)
{
    const struct sg_mil_type *t = sg_mil_build_type(&l->b, x);
    if (l->b.status || n == t->dim[axis]) return x;
    int64_t begin[4] = {0}, size[4] = {t->dim[0], t->dim[1], t->dim[2], t->dim[3]};
    begin[axis] = at;
    size[axis] = n;
    return sg_mil_build_slice(&l->b, x, 4, begin, size);
}

/* Moves the chunks of x, n elements of axis `from` each, to axis `to`. */
static uint32_t move_chunks(struct sg_lowering *l, const struct chunks *c, uint32_t x, int from, int64_t n, int to)
{
    uint32_t parts[CHUNKS_MAX];
    for (int64_t i = 0; i < c->count; i++) parts[i] = slice_axis(l, x, from, i * n, n);
    return c->count > 1 ? sg_mil_build_concat(&l->b, parts, (uint32_t)c->count, to) : x;
}

/* The five inputs with S columns, [kh, .., S], become batches of N columns: packed into one tensor, they are
 * cut once. */
static void split_columns(struct sg_lowering *l, struct chunks *c)
{
    uint32_t *of[INPUTS] = {&c->q, &c->k, &c->v, &c->g, &c->beta}, packed[INPUTS];
    const int64_t rows[INPUTS] = {c->dk, c->dk, c->shared * c->dv, c->shared, c->shared}, s = c->n * c->count;
    const int64_t dim[INPUTS][2] = {{1, c->dk}, {1, c->dk}, {c->shared, c->dv}, {c->shared, 1}, {c->shared, 1}};
    if (c->count == 1) return;
    for (int i = 0; i < INPUTS; i++) packed[i] = sg_mil_build_reshape(&l->b, *of[i], 4, (int64_t[]){c->heads, rows[i], 1, s});
    uint32_t x = move_chunks(l, c, sg_mil_build_concat(&l->b, packed, INPUTS, 1), 3, c->n, 0);
    for (int64_t i = 0, at = 0; i < INPUTS; at += rows[i++]) {
        *of[i] = slice_axis(l, x, 1, at, rows[i]);
        *of[i] = sg_mil_build_reshape(&l->b, *of[i], 4, (int64_t[]){c->batch, dim[i][0], dim[i][1], c->n});
    }
}

/* L: e^(sum of g over m in (j, i]), and 1 above the diagonal: [B, R, N, N]. Callers mask the upper part. */
static uint32_t decays(struct sg_lowering *l, const struct chunks *c)
{
    uint32_t column = sg_mil_build_reshape(&l->b, c->g, 4, (int64_t[]){c->batch, c->shared, c->n, 1});
    uint32_t from = mul(l, column, sg_ane_pattern_matrix(l, c->n, is_lower, 1));
    return SG_ANE_UN("exp", sg_mil_build_matmul(&l->b, sg_ane_pattern_matrix(l, c->n, is_lower, 0), from, 0, 0));
}

/* P = (I + X)^-1 for strictly lower X [.., n, n], by doubling: while P holds the inverses of the w x w
 * diagonal blocks, the inverses of the 2w x 2w blocks are P - P Y P, where Y is X restricted to the blocks
 * that join each pair. The first step has P = I and needs no product. */
static uint32_t inverse(struct sg_lowering *l, uint32_t x, int64_t n)
{
    uint32_t p = sg_ane_identity(l, n);
    for (int64_t w = 1; w < n; w *= 2) {
        uint32_t y = mul(l, x, sg_ane_pattern_matrix(l, n, is_block, w));
        if (w > 1) y = sg_mil_build_matmul(&l->b, sg_mil_build_matmul(&l->b, p, y, 0, 0), p, 0, 0);
        p = SG_ANE_BIN("sub", p, y);
    }
    return p;
}

/* e^(sum of g) over the rows up to and including each row, or with suffix = 1 over the rows after it: [B,
 * R, 1, N]. */
static uint32_t decay_sums(struct sg_lowering *l, const struct chunks *c, int suffix)
{
    uint32_t which = sg_ane_pattern_matrix(l, c->n, suffix ? is_upper : is_lower, suffix);
    return SG_ANE_UN("exp", sg_mil_build_matmul(&l->b, c->g, which, 0, 1));
}

/* What the chunks contribute without knowing S. Rows are columns here, so the products are the transposes of
 * those at the top of the file. */
struct local {
    uint32_t u, w;           /* P beta V [B, R, dv, N]; P (beta K o e^c) [B, R, dk, N] */
    uint32_t query, attn;    /* Q o e^c [B, R, dk, N]; Q K^T o L [B, R, N, N] */
    uint32_t added, decay;   /* K o e^(c_N - c) [B, R, dk, N]; e^c_N [B, R, 1, 1] */
};

static struct local chunk_products(struct sg_lowering *l, const struct chunks *c)
{
    struct local o;
    uint32_t decay = decays(l, c), e = decay_sums(l, c, 0);
    uint32_t column = sg_mil_build_reshape(&l->b, c->beta, 4, (int64_t[]){c->batch, c->shared, c->n, 1});
    uint32_t keys = sg_mil_build_matmul(&l->b, c->k, c->k, 1, 0);
    uint32_t x = mul(l, mul(l, mul(l, decay, sg_ane_pattern_matrix(l, c->n, is_lower, 1)), keys), column);
    uint32_t p = inverse(l, x, c->n);
    o.u = sg_mil_build_matmul(&l->b, mul(l, c->v, c->beta), p, 0, 1);
    o.w = sg_mil_build_matmul(&l->b, mul(l, c->k, mul(l, c->beta, e)), p, 0, 1);
    o.query = mul(l, c->q, e);
    o.attn = mul(l, mul(l, decay, sg_ane_pattern_matrix(l, c->n, is_lower, 0)), sg_mil_build_matmul(&l->b, c->q, c->k, 1, 0));
    o.decay = SG_ANE_UN("exp", sg_mil_build_reduce(&l->b, "reduce_sum", c->g, 3));
    o.added = mul(l, c->k, decay_sums(l, c, 1));
    return o;
}

/* Results O of all chunks, [B, R, dv, N]; *state [kh, R, dk, dv] passes from chunk to chunk. */
static uint32_t run_chunks(struct sg_lowering *l, const struct chunks *c, uint32_t *state)
{
    const struct local o = chunk_products(l, c);
    uint32_t d[CHUNKS_MAX], old[CHUNKS_MAX], n = (uint32_t)c->count;
    for (uint32_t i = 0; i < n; i++) {
        int64_t at = i * c->heads, kh = c->heads;
        uint32_t s = *state, w = slice_axis(l, o.w, 0, at, kh);
        d[i] = SG_ANE_BIN("sub", slice_axis(l, o.u, 0, at, kh), sg_mil_build_matmul(&l->b, s, w, 1, 0));
        old[i] = sg_mil_build_matmul(&l->b, s, slice_axis(l, o.query, 0, at, kh), 1, 0);
        uint32_t added = sg_mil_build_matmul(&l->b, slice_axis(l, o.added, 0, at, kh), d[i], 0, 1);
        *state = SG_ANE_BIN("add", mul(l, s, slice_axis(l, o.decay, 0, at, kh)), added);
    }
    uint32_t all = n > 1 ? sg_mil_build_concat(&l->b, d, n, 0) : d[0];
    uint32_t before = n > 1 ? sg_mil_build_concat(&l->b, old, n, 0) : old[0];
    return SG_ANE_BIN("add", before, sg_mil_build_matmul(&l->b, all, o.attn, 0, 1));
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

/* op->in: q, k, v, a (step), b (beta before the sigmoid). At most 16 chunks, 1024 rows. */
uint32_t sg_ane_lower_delta(struct sg_lowering *l, const struct sg_op *op)
{
    const struct sg_delta *p = &op->u.delta;
    int64_t s = l->s, n = s < CHUNK_MAX ? s : CHUNK_MAX;
    struct chunks c = {.n = n, .heads = p->k_heads, .shared = p->v_heads / p->k_heads, .dk = p->dk, .dv = p->dv,
                       .count = s / n, .batch = s / n * p->k_heads};
    int64_t key[4] = {c.heads, 1, c.dk, s}, value[4] = {c.heads, c.shared, c.dv, s}, number[4] = {c.heads, c.shared, 1, s};
    uint32_t valid = sg_ane_channels(l, l->info_rows, l->info->valid, 1);
    c.g = sg_mil_build_reshape(&l->b, exponents(l, op, valid), 4, number);
    c.beta = mul(l, sg_ane_act(l, SG_ACT_SIGMOID, sg_ane_operand(l, &op->in[4])), valid);
    c.beta = sg_mil_build_reshape(&l->b, c.beta, 4, number);
    c.q = sg_mil_build_reshape(&l->b, sg_ane_operand(l, &op->in[0]), 4, key);
    c.k = sg_mil_build_reshape(&l->b, sg_ane_operand(l, &op->in[1]), 4, key);
    c.v = sg_mil_build_reshape(&l->b, sg_ane_operand(l, &op->in[2]), 4, value);
    if (p->l2_eps > 0) {
        c.q = sg_ane_normalize(l, c.q, 2, 1, (double)p->l2_eps, 0);
        c.k = sg_ane_normalize(l, c.k, 2, 1, (double)p->l2_eps, 0);
    }
    double scale = 1 / sqrt(p->dk);
    if (p->l2_eps <= 0) c.q = mul(l, c.q, SG_ANE_NUM(scale));
    c.k = mul(l, c.k, valid);
    split_columns(l, &c);
    uint32_t state = sg_ane_unpack(l, p->slot, SG_ANE_SHAPE(c.heads, c.shared, c.dk, c.dv));
    uint32_t out = run_chunks(l, &c, &state);
    sg_ane_pack(l, p->slot, state, c.dv);
    out = move_chunks(l, &c, out, 0, c.heads, 3);
    if (p->l2_eps > 0) out = mul(l, out, SG_ANE_NUM(scale));
    return sg_mil_build_reshape(&l->b, out, 4, (int64_t[]){1, (int64_t)p->v_heads * c.dv, 1, s});
}
