/* issue_glu.c: when gate and up of many rows use k_glu.cu (Hopper), and its arguments. It is faster than cuBLASLt and a
 * separate activation when its tiles fill the multiprocessors evenly. SPDX-License-Identifier: MIT */
#include "unit/cuda/issue/issue.h"

/* Min. rows; min. percentage of tiles in use when every cluster computes the same number of them. */
enum { FEWEST = 257, FULL = 85 };

/* Where the result is written: the values gate and up of the pass are not stored, so their columns are free. */
static struct ck_view output_view(const struct cu_pass *p, const struct cu_step *s) { return cu_view_of(p, &s->glu->in[0]); }

/* Tiles of the result; a cluster computes two tiles of rows at once. */
static uint32_t tiles_of(uint32_t units, uint32_t rows)
{
    return cu_pieces(units, CK_GLU_UNITS) * cu_pieces(rows, 2 * CK_GLU_ROWS);
}

/* The result is written where gate and up would be, which therefore have to be side by side. Only when at least FULL percent of
 * the tiles in full turns are used. */
int cu_glu_fits(const struct cu_pass *p, const struct cu_step *s, uint32_t rows)
{
    const struct sg_unit *u = p->program->base.unit;
    const struct sg_weight *gate = &s->parts[0]->u.linear.weight, *up = &s->parts[1]->u.linear.weight;
    struct ck_view y = output_view(p, s), other = cu_view_of(p, &s->glu->in[1]);
    uint32_t units = gate->rows, all = p->sms / 2;
    if (!u->k.glu_rows[0] || !u->d.tensor_map || rows < FEWEST || s->glu->u.glu.act != SG_ACT_SILU || up->rows != units ||
        units % 8 || s->op->in[0].width % CK_GLU_PANEL_COLS || y.stride != 2 * units || other.p != y.p + units ||
        (uintptr_t)y.p % 16)
        return 0;
    /* Every cluster of two blocks computes the same number of tiles. */
    uint64_t all_turns = (uint64_t)cu_pieces(tiles_of(units, rows), all) * all;
    return (uint64_t)rows * units * 100 >= all_turns * (2 * CK_GLU_ROWS * CK_GLU_UNITS) * FULL;
}

/* Elements of the map are 32 bits. */
int cu_map_rows(struct sg_unit *u, struct ck_tensor_map *map, const void *from, uint32_t rows, uint32_t cols, uint32_t pitch,
                uint32_t box_rows, uint32_t box_cols, int swizzle)
{
    const uint64_t dims[2] = {cols / 2, rows}, strides[1] = {pitch};
    const uint32_t box[2] = {box_cols / 2, box_rows}, steps[2] = {1, 1};
    cu_enter(u);
    cu_result r = u->d.tensor_map(map, CU_TENSOR_INT32, 2, (void *)(uintptr_t)from, dims, strides, box, steps, 0, swizzle,
                                  CU_TENSOR_L2_256, 0);
    cu_leave(u);
    return !r;
}

/* Afterwards the pass describes the result as the 16-bit x of the next product. */
segue_status cu_issue_glu(struct cu_pass *p, const struct cu_step *s, const void *w, uint32_t pitch, uint32_t rows, uint32_t bf16,
                          int *done)
{
    struct sg_unit *u = p->program->base.unit;
    uint32_t units = s->parts[0]->u.linear.weight.rows, k = s->op->in[0].width;
    uint32_t parted = p->sms != u->sms; /* one cluster per tile: the hardware assigns tiles to free multiprocessors */
    float *y = output_view(p, s).p;
    struct ck_glu a = {.panels = k / CK_GLU_PANEL_COLS,
                       .units = units,
                       .pairs = cu_pieces(rows, 2 * CK_GLU_ROWS),
                       .tiles = tiles_of(units, rows)};
    if (pitch % 16 || (uintptr_t)w % 16 ||
        !cu_map_rows(u, &a.x, (const void *)(uintptr_t)p->narrowed_at, rows, k, 2 * k, CK_GLU_ROWS, CK_GLU_PANEL_COLS,
                CU_TENSOR_SWIZZLE_128) ||
        !cu_map_rows(u, &a.w, w, 2 * units, k, pitch, CK_GLU_UNITS, CK_GLU_PANEL_COLS, CU_TENSOR_SWIZZLE_128) ||
        !cu_map_rows(u, &a.y, y, rows, units, 2 * units, CK_GLU_ROWS / 2, CK_GLU_UNITS, 0))
        return SEGUE_OK;
    SG_TRY(cu_launch_clusters(p, u->k.glu_rows[bf16], 2 * (parted || a.tiles < p->sms / 2 ? a.tiles : p->sms / 2), 2,
                              CK_GLU_THREADS, CK_GLU_BYTES, &a));
    p->narrowed = cu_view_of(p, &(struct sg_operand){.value = s->glu->out, .width = units}).p;
    p->narrowed_at = (cu_ptr)(uintptr_t)y;
    p->narrowed_norm = NULL;
    p->narrowed_bf16 = bf16;
    p->narrowed_by = s->glu->out;
    *done = 1;
    return SEGUE_OK;
}
