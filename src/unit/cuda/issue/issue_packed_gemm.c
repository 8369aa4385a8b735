/* issue_packed_gemm.c: when a product of packed weights with many rows uses k_packed_gemm.cu (Hopper), which dequantises codes in
 * registers, and its arguments. With more rows, and for small matrices, a widened copy costs less than the slower product
 * (issue_gemm.c, docs/log/CUDA.md).
 * SPDX-License-Identifier: MIT */
#include "unit/cuda/issue/issue.h"

enum { ROWS_MAX = 512, COLS_MIN = 2048, WEIGHTS_MIN = 4 << 20 };

static const uint32_t tile_rows[3] = {112, 224, 256}; /* of x */

/* The kernel for a kind, tile: 0 to 2; NULL: none. */
static cu_fn gemm_of(const struct sg_unit *u, uint32_t kind, uint32_t tile)
{
    static const uint8_t index[CK_PACKED_END - CK_PACKED] = {[CK_P_Q4_0 - CK_PACKED] = 1,
                                                             [CK_P_Q4_K - CK_PACKED] = 2,
                                                             [CK_P_Q5_K - CK_PACKED] = 3,
                                                             [CK_P_Q6_K - CK_PACKED] = 4};
    uint32_t i = kind >= CK_PACKED && kind < CK_PACKED_END ? index[kind - CK_PACKED] : 0;
    return i ? u->k.packed_gemm[i - 1][tile] : NULL;
}

/* The tile for so many rows: of the large ones, which dequantise least, the one that pads less. */
static uint32_t tile_of(uint32_t rows)
{
    if (rows <= tile_rows[0]) return 0;
    return cu_pieces(rows, tile_rows[1]) * tile_rows[1] <= cu_pieces(rows, tile_rows[2]) * tile_rows[2] ? 1 : 2;
}

int cu_packed_gemm_fits(const struct cu_pass *p, const struct cu_step *s, uint32_t rows)
{
    const struct sg_unit *u = p->program->base.unit;
    uint64_t weights = 0;
    for (uint32_t i = 0; i < s->parts_n; i++) {
        const struct ck_weight *w = &cu_linear_tensor(p, s->parts[i])->w;
        if (!gemm_of(u, w->kind, 0)) return 0;
        if (w->cols < COLS_MIN && u->packed < 2) return 0;
        weights += (uint64_t)w->cols * s->parts[i]->u.linear.weight.rows;
    }
    return rows <= ROWS_MAX && (weights >= WEIGHTS_MIN || u->packed > 1) && u->d.tensor_map != NULL;
}

/* One launch for parts [from, from + n), whose weights have one kind. */
static segue_status launch(struct cu_pass *p, const struct cu_step *s, uint32_t from, uint32_t n, uint32_t tile,
                           struct ck_packed_gemm *a)
{
    const struct ck_weight *w = &cu_linear_tensor(p, s->parts[from])->w;
    struct sg_unit *u = p->program->base.unit;
    uint32_t tiles = 0;
    a->pitch = w->pitch;
    for (uint32_t i = 0; i < CK_SEGMENTS; i++) {
        a->first[i] = i < n ? tiles : UINT32_MAX;
        if (i >= n) continue;
        const struct sg_op *op = s->parts[from + i];
        struct sg_operand whole = {.value = op->out, .width = p->program->base.graph->values[op->out].width};
        a->segment[i] = cu_segment_of(p, op);
        if (a->out16) a->segment[i].y = cu_bf16_view_of(p, &whole);
        tiles += cu_pieces(a->segment[i].n, CK_PACKED_GEMM_W_ROWS);
    }
    a->tiles = tiles * a->x_tiles;
    uint32_t clusters = a->tiles < p->sms / 2 ? a->tiles : p->sms / 2;
    return cu_launch_clusters(p, gemm_of(u, w->kind, tile), 2 * clusters, 2, CK_PACKED_GEMM_THREADS,
                              CK_PACKED_GEMM_BYTES(tile_rows[tile]), a);
}

/* x is the pass's 16-bit copy, stored once more in the order of the kernel's operands. */
segue_status cu_issue_packed_gemm(struct cu_pass *p, const struct cu_step *s, uint32_t rows, uint32_t out16)
{
    struct sg_unit *u = p->program->base.unit;
    uint32_t k = cu_linear_tensor(p, s->parts[0])->w.cols;
    SG_TRY(cu_lane_grow(p, &p->lane->wide, &p->lane->wide_bytes, (size_t)rows * k * 2));
    struct ck_packed_x x = {.x = (const void *)(uintptr_t)p->narrowed_at,
                            .y = (void *)(uintptr_t)p->lane->wide,
                            .words = rows * k / 2};
    SG_TRY(cu_launch(p, u->k.packed_x, cu_pieces(x.words / 4, 256), 1, 1, 256, 0, &x));
    const uint32_t tile = tile_of(rows), x_rows = tile_rows[tile];
    struct ck_packed_gemm a = {
        .rows = rows, .chunks = k / CK_PACKED_CHUNK, .out16 = out16, .x_tiles = cu_pieces(rows, x_rows)};
    if (!cu_map_rows(u, &a.x, x.y, rows, k, 2 * k, x_rows, 64, CU_TENSOR_SWIZZLE_128))
        return sg_fail(p->err, SEGUE_EINTERNAL, "run: cuda: the driver refuses a tensor map of %u rows; use packed=0", rows);
    for (uint32_t i = 0, n; i < s->parts_n; i += n) {
        uint32_t kind = cu_linear_tensor(p, s->parts[i])->w.kind;
        for (n = 1; i + n < s->parts_n && cu_linear_tensor(p, s->parts[i + n])->w.kind == kind;) n++;
        SG_TRY(launch(p, s, i, n, tile, &a));
    }
    return SEGUE_OK;
}
