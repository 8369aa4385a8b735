/* train_launch.c: launches of training kernels, products, sums over rows.
 * SPDX-License-Identifier: MIT */
#include "unit/cuda/train/cu_train.h"

enum { ROW_CHUNK = 256, SPLIT_INNER = 128, SPLITS_MAX = 64, BLOCKS_PER_SM = 2 };

segue_status cu_train_launch(struct cu_train *t, cu_fn fn, uint32_t gx, uint32_t gy, uint32_t gz, uint32_t threads,
                             const void *args, segue_error *err)
{
    struct cu_launch l = {gx, gy, gz, threads, 1, 1, 0, t->stream, NULL, 0};
    void *list[] = {(void *)(uintptr_t)args};
    if (!gx || !gy || !gz) return SEGUE_OK;
    cu_enter(t->u);
    cu_result r = t->u->d.launch(&l, fn, list, NULL);
    cu_leave(t->u);
    return cu_check(&t->u->d, r, "train", err);
}

segue_status cu_train_launch_items(struct cu_train *t, cu_fn fn, size_t items, const void *args, segue_error *err)
{
    return cu_train_launch(t, fn, (uint32_t)((items + CT_THREADS - 1) / CT_THREADS), 1, 1, CT_THREADS, args, err);
}

static segue_status grown(struct cu_train *t, cu_ptr *p, size_t *have, size_t numbers, float **out, segue_error *err)
{
    SG_TRY(cu_mem_grow(t->u, p, have, numbers * sizeof **out, "scratch of training", err));
    *out = (float *)(uintptr_t)*p;
    return SEGUE_OK;
}

segue_status cu_train_scratch(struct cu_train *t, size_t numbers, float **out, segue_error *err)
{
    return grown(t, &t->scratch, &t->scratch_bytes, numbers, out, err);
}

segue_status cu_train_parts(struct cu_train *t, size_t numbers, float **out, segue_error *err)
{
    return grown(t, &t->parts, &t->parts_bytes, numbers, out, err);
}

/* Parts of the sum, so that small results occupy the GPU too. Of the shape and the number of multiprocessors alone. */
static uint32_t splits_of(const struct cu_train *t, const struct ct_gemm *g, uint32_t tiles)
{
    uint32_t wanted = cu_pieces(t->u->sms * BLOCKS_PER_SM, tiles), max = g->inner / SPLIT_INNER;
    if (wanted > max) wanted = max;
    return wanted < 2 ? 1 : wanted > SPLITS_MAX ? SPLITS_MAX : wanted;
}

segue_status cu_train_gemm(struct cu_train *t, struct ct_gemm *g, segue_error *err)
{
    uint32_t large = cu_pieces(g->rows, CT_LARGE) * cu_pieces(g->cols, CT_LARGE), use_large = large >= t->u->sms;
    uint32_t tile = use_large ? CT_LARGE : CT_TILE, down = cu_pieces(g->rows, tile), across = cu_pieces(g->cols, tile);
    g->splits = use_large ? 1 : splits_of(t, g, down * across);
    g->part = cu_pieces(cu_pieces(g->inner, g->splits), CT_DEEP) * CT_DEEP;
    g->splits = cu_pieces(g->inner, g->part);
    if (g->splits > 1) SG_TRY(cu_train_parts(t, (size_t)g->splits * g->rows * g->cols, &g->parts, err));
    SG_TRY(cu_train_launch(t, t->k.gemm[g->kind][use_large], across, down, g->splits, CT_THREADS, g, err));
    struct ct_sum s = {g->parts, g->c, g->ldc, g->rows, g->cols, g->splits, g->add, g->scale, 0};
    return g->splits > 1 ? cu_train_launch_items(t, t->k.sum, (size_t)g->rows * g->cols, &s, err) : SEGUE_OK;
}

segue_status cu_train_columns(struct cu_train *t, struct ct_columns *c, float *gradient, float scale, segue_error *err)
{
    if (!gradient) return SEGUE_OK;
    c->chunk = ROW_CHUNK;
    uint32_t chunks = cu_pieces(c->rows, c->chunk);
    SG_TRY(cu_train_parts(t, (size_t)chunks * c->columns, &c->parts, err));
    SG_TRY(cu_train_launch(t, t->k.columns, chunks, cu_pieces(c->columns, CT_PART_COLUMNS), 1, CT_THREADS, c, err));
    struct ct_sum s = {c->parts, gradient, c->columns, 1, c->columns, chunks, 1, scale, 0};
    return cu_train_launch_items(t, t->k.sum, c->columns, &s, err);
}

segue_status cu_train_add_to(struct cu_train *t, struct sg_resident_matrix to, const float *dout, uint32_t rows, uint32_t width,
                             segue_error *err)
{
    struct ct_small a = {.dout = dout, .out = to.data, .out_stride = to.stride, .rows = rows, .width = width, .kind = CT_ADD_TO};
    return to.data ? cu_train_launch_items(t, t->k.small, (size_t)rows * width, &a, err) : SEGUE_OK;
}
