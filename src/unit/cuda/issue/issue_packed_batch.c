/* issue_packed_batch.c: when a product of packed weights with several rows uses k_packed_batch.cu, or k_packed_few.cu if it is
 * small: up to 16 rows of Q4_0, Q4_K, Q5_K and Q6_K. One row is faster with k_packed.cu; with "invariant=1" it is computed here
 * too. SPDX-License-Identifier: MIT */
#include "unit/cuda/issue/issue.h"

/* TRAFFIC: bytes of x that all blocks read, at most; LARGE, LONG: least weights and columns for k_packed_batch.cu. */
enum { FROM = 2, STAGES = 2, ROWS_MAX = 128, TRAFFIC = 16 << 20, LARGE = 16 << 20, LONG = 2048 };

int cu_packed_batch_form(uint32_t kind)
{
    return kind == CK_P_Q4_0 || kind == CK_P_Q4_K || kind == CK_P_Q5_K || kind == CK_P_Q6_K;
}

int cu_packed_few(const struct ck_gemv *g)
{
    uint64_t all = 0;
    for (uint32_t i = 0; i < g->segments; i++) all += g->segment[i].n;
    return all * g->k < LARGE || g->k < LONG;
}

int cu_packed_batch_fits(const struct cu_pass *p, const struct cu_step *s, uint32_t rows)
{
    for (uint32_t i = 0; i < s->parts_n; i++)
        if (!cu_packed_batch_form(cu_linear_tensor(p, s->parts[i])->w.kind)) return 0;
    return rows <= CU_DECODE_ROWS && rows >= (p->program->base.unit->invariant ? 1 : FROM);
}

/* Columns of the widest product that may use the kernel. */
static size_t columns_of(const struct sg_program *p)
{
    const struct sg_graph *g = p->base.graph;
    size_t max = 0;
    for (uint32_t i = 0; i < g->ops_n; i++) {
        if (g->ops[i].code != SG_OP_LINEAR) continue;
        const struct ck_weight *w = &cu_weight_of(p->weights, g->tensors[g->ops[i].u.linear.weight.tensor])->w;
        if (cu_packed_batch_form(w->kind) && w->cols > max) max = w->cols;
    }
    return max;
}

/* Bytes of x: its parts, sums and units. */
size_t cu_packed_split_bytes(const struct sg_program *p)
{
    return columns_of(p) / CK_PACKED_CHUNK *
           (CK_PACKED_PARTS_BYTES + CK_PACKED_SUMS_BYTES + CK_PACKED_BATCH_ROWS * sizeof(float));
}

/* Blocks of rows times slices, at most. */
static uint32_t blocks_max(const struct sg_unit *u) { return 2 * u->sms; }

size_t cu_packed_slices_bytes(const struct sg_program *p)
{
    uint32_t blocks = blocks_max(p->base.unit);
    return columns_of(p) ? blocks * (ROWS_MAX * CK_PACKED_BATCH_ROWS * sizeof(float) + sizeof(uint32_t)) : 0;
}

/* How a launch divides the work. rows: of weights, of a block; wide: 32 of them per warp, not 16; each: chunks of a slice. */
struct shape {
    uint32_t rows, wide, split_log, warps, slices, each;
};

/* Chunks of a slice so that there are at most `slices`. */
static void set_slices(struct shape *f, uint32_t chunks, uint32_t slices)
{
    f->each = cu_pieces(chunks, slices);
    f->slices = cu_pieces(chunks, f->each);
    for (f->split_log = f->rows == 128 ? 1 : f->rows == 64 ? 2 : 3; f->split_log && 1u << f->split_log > f->each;) f->split_log--;
    f->warps = (f->rows / (f->wide ? 32 : 16)) << f->split_log;
}

/* The largest block of rows with which most multiprocessors have one. Smaller blocks read x more often: where that is too much,
 * large blocks have slices of the columns instead. It depends on the weights only, so that the sums of a row do not depend on the
 * others. */
static struct shape shape_of(const struct sg_unit *u, uint32_t all, uint32_t k, int glu)
{
    const uint32_t chunks = k / CK_PACKED_CHUNK, least = glu ? 32 : 16;
    struct shape f = {.rows = ROWS_MAX};
    while (f.rows > least && 4 * cu_pieces(all, f.rows) < 3 * u->sms) f.rows /= 2;
    f.wide = f.rows > 16;
    uint32_t blocks = cu_pieces(all, f.rows), slices = 1;
    if (f.rows < ROWS_MAX && (uint64_t)blocks * k * 64 > TRAFFIC) {
        f.rows = ROWS_MAX, f.wide = 1;
        slices = blocks_max(u) / cu_pieces(all, f.rows);
    }
    set_slices(&f, chunks, slices ? slices : 1);
    return f;
}

static segue_status issue_parts(struct cu_pass *p, const struct cu_step *s, const struct ck_gemv *g, uint32_t rows,
                                struct ck_packed_batch *b)
{
    const uint32_t chunks = g->k / CK_PACKED_CHUNK;
    const struct ck_norm *n = &g->norm;
    uint32_t width = g->k / n->groups;
    int inside = !n->present || (!n->layer && !n->bias && (n->groups == 1 ? !n->gate.p : !(width & (width - 1)) && width >= 8 &&
                                                                                              width <= CK_PACKED_CHUNK));
    struct ck_packed_parts a = {.x = g->x, .norm = g->norm, .k = g->k, .tiles = rows > 8 ? 2 : 1};
    if (!inside) {
        SG_TRY(cu_issue_small(p, s->norm));
        a.norm = cu_norm_of(p, NULL);
        a.x = cu_view_of(p, &s->op->in[0]);
    }
    cu_ptr at = p->lane->x_split, sums = at + (size_t)chunks * CK_PACKED_PARTS_BYTES,
           inverse = sums + (size_t)chunks * CK_PACKED_SUMS_BYTES;
    a.y = (void *)(uintptr_t)at;
    a.sums = (void *)(uintptr_t)sums;
    a.inverse = cu_floats(inverse);
    b->x = a.y;
    b->sums = a.sums;
    b->inverse = a.inverse;
    return cu_launch(p, p->program->base.unit->k.packed_parts, rows, cu_pieces(chunks, CK_PACKED_PARTS_THREADS / 32), 1,
                     CK_PACKED_PARTS_THREADS, 0, &a);
}

/* Small products. A block with more rows reads x less often from the L2 cache; two blocks for each multiprocessor are needed. */
static segue_status issue_few(struct cu_pass *p, const struct cu_step *s, const struct ck_gemv *g, uint32_t rows, uint32_t all)
{
    const struct sg_unit *u = p->program->base.unit;
    uint32_t wide = g->glu || all >= 64 * u->sms, each = wide && !g->glu ? 32 : 16, blocks = 0;
    struct ck_packed_few b = {.x = (const void *)(uintptr_t)p->lane->x_split,
                              .low = (const void *)(uintptr_t)cu_split_low(p, g->k),
                              .rows = rows,
                              .k = g->k,
                              .segments = g->segments,
                              .glu = g->glu,
                              .act = g->act,
                              .split_log = 3};
    if (all >= 128 * u->sms) b.split_log = 1, each *= 4;
    for (uint32_t i = 0; i < g->segments; i++) {
        const struct ck_weight *w = &cu_linear_tensor(p, s->parts[i])->w;
        b.segment[i] = g->segment[i];
        b.of[i].kind = w->kind;
        b.of[i].pitch = w->pitch;
        b.first[i] = blocks;
        blocks += g->glu && i ? 0 : cu_pieces(g->segment[i].n, each);
    }
    SG_TRY(cu_split_x(p, s, g->k, 1, g, rows));
    return cu_launch(p, u->k.packed_few[wide][rows > 8], blocks, 1, 1, CK_BATCH_THREADS, 0, &b);
}

segue_status cu_issue_packed_batch(struct cu_pass *p, const struct cu_step *s, const struct ck_gemv *g, uint32_t rows)
{
    const struct sg_unit *u = p->program->base.unit;
    uint32_t all = 0, blocks = 0, block_bytes = 0;
    for (uint32_t i = 0; i < g->segments; i++) all += g->segment[i].n;
    if (u->packed < 2 && cu_packed_few(g)) return issue_few(p, s, g, rows, all);
    struct shape f = shape_of(u, all, g->k, (int)g->glu);
    const uint32_t each = g->glu ? f.rows / 2 : f.rows, tiles = f.wide ? 2 : 1, n = rows > 8 ? 16 : 8;
    struct ck_packed_batch b = {.slices = cu_floats(p->lane->slices),
                                .rows = rows,
                                .k = g->k,
                                .segments = g->segments,
                                .glu = g->glu,
                                .act = g->act};
    const size_t sums_bytes = (size_t)blocks_max(u) * ROWS_MAX * CK_PACKED_BATCH_ROWS * sizeof(float);
    b.count = (uint32_t *)(uintptr_t)(p->lane->slices + sums_bytes);
    for (uint32_t i = 0; i < g->segments; i++) {
        const struct ck_weight *w = &cu_linear_tensor(p, s->parts[i])->w;
        uint32_t bytes = w->pitch * 8 / (w->cols / CK_PACKED_CHUNK);
        b.segment[i] = g->segment[i];
        b.of[i].kind = w->kind;
        b.of[i].pitch = w->pitch;
        b.first[i] = blocks;
        blocks += g->glu && i ? 0 : cu_pieces(g->segment[i].n, each);
        if (bytes > block_bytes) block_bytes = bytes;
    }
    if (blocks * f.slices > blocks_max(u)) set_slices(&f, g->k / CK_PACKED_CHUNK, 1);
    b.warp_bytes = STAGES * 2 * tiles * block_bytes;
    /* Fewer warps where their buffers do not fit. */
    while (f.split_log && f.warps * b.warp_bytes > (uint32_t)u->shared_max - CU_PACKED_STATIC) f.split_log--, f.warps /= 2;
    b.split_log = f.split_log;
    b.each = f.each;
    uint32_t shared = f.warps * b.warp_bytes, sums = CK_PACKED_BATCH_BYTES(f.warps, f.warps >> f.split_log, tiles, n);
    SG_TRY(issue_parts(p, s, g, rows, &b));
    cu_fn fn = u->k.packed_batch[f.wide][rows > 8];
    return cu_launch(p, fn, blocks, f.slices, 1, 32 * f.warps, shared > sums ? shared : sums, &b);
}
