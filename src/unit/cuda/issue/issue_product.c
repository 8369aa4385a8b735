/* issue_product.c: products of weights with up to 32 rows, and of fp32 weights with any number. Kernels are tried in this
 * order. Packed weights: issue_packed.c. 2 to 16 rows of 16-bit, fp8 or Q8_0 weights: k_tiles.cu,
 * k_batch.cu. One row: candidate filter, k_vocab.cu, k_digits.cu, k_stream.cu. All else: k_wide.cu (one row, large weights) or
 * k_gemv.cu, 16 rows per launch. Norm, gate and best logit are in the same launch. More rows: issue_gemm.c.
 * SPDX-License-Identifier: MIT */
#include "unit/cuda/issue/issue.h"

/* Shared memory of k_gemv.cu and k_wide.cu for `rows` rows of x: the numbers that meet a weight row of `pitch` bytes, one sum for
 * each 16 bytes of it, and 32 floats for reductions. */
static size_t gemv_shared_bytes(uint32_t kind, uint32_t pitch, uint32_t rows)
{
    size_t pieces = pitch / 16;
    return (32 + (pieces * cu_weights_per_piece(kind) + pieces) * rows) * sizeof(float);
}

/* Moves the view forward by `rows` rows. */
static void skip_rows(struct ck_view *v, uint32_t rows)
{
    if (v->p) v->p += (size_t)rows * v->stride;
}

/* Rows [from, from + rows) of a product with k_gemv.cu or, one row of large weights, k_wide.cu. Up to `waves` blocks per
 * multiprocessor; each takes pairs of weight rows in turn. */
static segue_status launch_gemv(struct cu_pass *p, const struct cu_step *s, const struct ck_gemv_step *whole, uint32_t from,
                                uint32_t rows)
{
    struct sg_unit *u = p->program->base.unit;
    const struct cu_tensor *t = cu_linear_tensor(p, s->parts[0]);
    struct ck_gemv_step a = *whole;
    struct ck_gemv g = a.g;
    uint32_t b = 0;
    size_t shared;
    for (;; rows = rows / 2 + rows % 2) { /* halved until x fits into shared memory */
        for (b = 0; (1u << b) < rows; b++) {}
        shared = gemv_shared_bytes(t->w.kind, g.pitch, 1u << b);
        if (shared <= u->shared_max || rows == 1) break;
    }
    if (shared > u->shared_max)
        return sg_fail(p->err, SEGUE_EUNSUPPORTED,
                       "run: cuda: weight rows of %u columns do not fit into shared memory; use another unit", g.k);
    g.rows = rows;
    skip_rows(&g.x, from);
    skip_rows(&g.norm.gate, from);
    for (uint32_t i = 0; i < g.segments; i++) {
        skip_rows(&g.segment[i].residual, from);
        skip_rows(&g.segment[i].y, from);
    }
    /* k_wide.cu has a block per multiprocessor and does not split pairs of rows. */
    int wide = rows == 1 && !u->invariant && g.split == 1 && u->k.wide[t->w.kind] && shared + CU_WIDE_STATIC <= u->shared_max;
    uint32_t threads = wide ? CK_WIDE_THREADS : CK_GEMV_THREADS, warps = threads / 32,
             blocks = (g.pairs * g.split + warps - 1) / warps,
             max = p->sms * (wide                                ? 1
                              : t->w.kind < CK_Q8 || u->waves < 4 ? u->waves
                                                                  : 3); /* more blocks of quantised weights do not fit */
    if (blocks > max) blocks = max;
    if (blocks > CU_CHOICE_BLOCKS) blocks = CU_CHOICE_BLOCKS;
    p->best_blocks = g.best ? blocks : p->best_blocks;
    cu_fn fn = wide ? u->k.wide[t->w.kind] : u->k.gemv[t->w.kind][b];
    a.g = g;
    return cu_launch(p, fn, blocks, 1, 1, threads, shared, &a);
}

/* Rows of x that fit into shared memory together, a power-of-two fraction of the pass. */
static uint32_t gemv_rows_at_once(const struct cu_pass *p, const struct cu_step *s, uint32_t rows)
{
    const struct ck_weight *w = &cu_linear_tensor(p, s->parts[0])->w;
    uint32_t at_once = rows < CU_DECODE_ROWS ? rows : CU_DECODE_ROWS, b;
    for (;; at_once = at_once / 2 + at_once % 2) {
        for (b = 1; b < at_once; b *= 2) {}
        if (at_once == 1 || gemv_shared_bytes(w->kind, w->pitch, b) <= p->program->base.unit->shared_max) return at_once;
    }
}

/* 2 to 16 rows on tensor cores: k_tiles.cu where it fits, else k_batch.cu. *whole 1: the epilogue was done too. */
static segue_status product_tensor_cores(struct cu_pass *p, const struct cu_step *s, const struct ck_weight *w,
                                         const struct ck_gemv *g, uint32_t rows, int *whole)
{
    struct ck_tiles a;
    struct cu_tiled t;
    if (!cu_tiles_fits(p, s, w, g, &a, &t)) return cu_issue_batch(p, s, w, g, rows);
    return cu_launch_tiles(p, s, &a, &t, &a, whole);
}

/* Up to CU_GEMV_ROWS rows, or fp32 weights. Tries the kernels in the order of the file header; only the output head reports best
 * logits. *whole 1: the epilogue was done too. */
static segue_status product_few_rows(struct cu_pass *p, const struct cu_step *s, uint32_t rows, int *whole)
{
    const struct sg_graph *g = p->program->base.graph;
    const struct ck_weight *w = &cu_linear_tensor(p, s->parts[0])->w;
    int32_t logits = g->vocab ? sg_graph_output(g, "logits") : -1;
    struct ck_gemv a = cu_gemv_of(p, s);
    /* Only the product that computes the logits, alone, can choose. */
    a.best = p->best && s->parts_n == 1 && !s->glu && logits >= 0 && g->outputs[logits].value == s->op->out;
    a.banned = p->banned;
    struct ck_packed_tiles tiles;
    struct cu_tiled tiled;
    if (cu_packed_tiles_fits(p, s, &a, rows, &tiles, &tiled)) return cu_launch_tiles(p, s, &tiles.t, &tiled, &tiles, whole);
    if (w->kind >= CK_PACKED) return cu_issue_packed(p, s, &a, rows, whole);
    if (cu_batch_fits(p, s, w, rows)) return product_tensor_cores(p, s, w, &a, rows, whole);
    uint32_t at_once = gemv_rows_at_once(p, s, rows);
    int alone = rows == 1 && !p->program->base.unit->invariant;
    /* Best logits of several launches are not combined. */
    a.best &= rows <= at_once;
    if (a.best && p->screen && alone && s->op == p->program->screen.head) {
        *whole = 1;
        return cu_issue_screen(p, s);
    }
    p->best_done |= a.best;
    struct cu_vocab head;
    if (alone && !s->after && cu_vocab_fits(p, &a, w, &head)) {
        p->best_blocks = a.best ? head.blocks : p->best_blocks;
        *whole = 1;
        return cu_launch(p, head.fn, head.blocks, 1, 1, CK_VOCAB_THREADS, head.shared, &head.a);
    }
    struct cu_streamed one, other;
    int streamed = alone && cu_stream_fits(p, s, &a, &one), digits = alone && cu_digits_fits(p, s, &a, streamed, &other);
    if (digits) {
        one = other;
        p->gate = one.a.gates ? 1 + (uint32_t)s->parts[one.a.gates - 1]->out : 0;
    }
    /* Would compute a wrong result: fuse.c and gate_of (issue_digits.c) exclude it. */
    if (!digits && p->gate && s->norm && p->gate == 1 + (uint32_t)s->norm->in[1].value)
        return sg_fail(p->err, SEGUE_EINTERNAL,
                       "run: cuda: a gate was stored after SiLU for a product that uses another kernel; report this bug");
    if (streamed || digits) {
        p->best_blocks = a.best ? one.blocks : p->best_blocks;
        *whole = 1;
        return cu_launch(p, one.fn, one.blocks, 1, 1, one.threads, one.shared, &one.a);
    }
    struct ck_gemv_step all = {.g = a};
    if (alone) {
        cu_epilogue_of(p, s, &all.after);
        *whole = 1;
    }
    for (uint32_t t = 0; t < rows; t += at_once) SG_TRY(launch_gemv(p, s, &all, t, rows - t < at_once ? rows - t : at_once));
    return SEGUE_OK;
}

/* fp32 weights are multiplied in fp32 with any number of rows. The epilogue follows as a separate op unless the kernel did it, or
 * the chunked delta rule will do it. */
segue_status cu_issue_product(struct cu_pass *p, const struct cu_step *s)
{
    uint32_t rows = p->rows_n[p->program->base.graph->values[s->op->out].wanted];
    if (!rows) return SEGUE_OK;
    int exact = rows <= CU_GEMV_ROWS || cu_linear_tensor(p, s->parts[0])->w.kind == CK_F32;
    int whole = 0;
    SG_TRY(exact ? product_few_rows(p, s, rows, &whole) : cu_issue_gemm(p, s, rows));
    if (s->after && !whole && !(s->delta && cu_delta_convolves(p, s->delta, s->after)))
        SG_TRY(s->after->code == SG_OP_CONV ? cu_issue_conv(p, s->after) : cu_issue_small(p, s->after));
    return p->spans ? cu_issue_loras(p, s->parts[0]) : SEGUE_OK;
}
