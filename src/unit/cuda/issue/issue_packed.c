/* issue_packed.c: products of packed weights (k_packed.cuh) with up to 32 rows: arguments of k_packed.cu (one row) and of
 * k_packed_rows.cu (eight rows per launch: more than 16 rows, and kinds that k_packed_batch.cu lacks). No other kernels multiply
 * these weights, so what they cannot fuse is issued as a step of its own.
 * SPDX-License-Identifier: MIT */
#include "unit/cuda/issue/issue.h"

#include "unit/cuda/compile/packed_ring.h"
#include "unit/cuda/compile/repack.h"

enum {
    WARPS = CU_PACKED_WARPS,
    STAGES = CK_PACKED_STAGES,
    STAGES_LEAST = 3,
    PER = 2, /* chunks per ring slot, at most; bytes of a slot with more than one: */
    SLOT_BYTES = 5120,
    MANY = 16, /* tiles per multiprocessor that are many; chunks of a short row: */
    SHORT = 4,
    DOUBLE = 3, /* tiles per multiprocessor from which two blocks share it; more than one where launches do not overlap */
    ROWS_WIDTH = 1024
}; /* columns of a warp in k_packed_rows.cu */

/* 1: the kernel computes the norm: RMS of whole rows, or of groups of 128. */
static int norm_fits(const struct ck_norm *n, uint32_t k)
{
    return !n->present || (!n->layer && !n->bias && (n->groups == 1 || k / n->groups == 128));
}

/* Warps that share the columns, log2: as many as keep all warps busy, since a warp's columns of x are in its registers. With many
 * tiles of short rows a warp has two chunks of each: its bulk copies are larger, and it stores sums less often. */
static uint32_t split_log_of(const struct sg_unit *u, uint32_t chunks, uint32_t tiles)
{
    uint32_t best = 0, best_busy = 0, least = u->major == 9 && chunks <= SHORT && tiles >= MANY * u->sms ? 2 : 1;
    for (uint32_t i = 0; i < 4 && least << i <= chunks; i++) {
        uint32_t split = 1u << i, each = (chunks + split - 1) / split, busy = 100 * chunks / (each * split);
        if (each <= 8 && busy >= best_busy - best_busy / 8) best = i, best_busy = busy;
    }
    return best;
}

/* Kinds and sizes of the segments. Returns the bytes of a ring slot. */
static uint32_t describe_segments(const struct cu_pass *p, const struct cu_step *s, struct ck_packed *a)
{
    uint32_t bytes = 0;
    for (uint32_t i = 0; i < s->parts_n; i++) {
        const struct ck_weight *w = &cu_linear_tensor(p, s->parts[i])->w;
        a->of[i].kind = (uint16_t)w->kind;
        a->of[i].block = (uint16_t)(w->pitch * 8 / (w->cols / CK_PACKED_CHUNK));
        a->of[i].pitch = w->pitch;
        a->of[i].group = (uint16_t)(w->group % CK_GROUP_BF16);
        a->of[i].bf16 = w->group >= CK_GROUP_BF16;
        uint32_t own = 2 * a->of[i].block;
        if (own > bytes) bytes = own;
    }
    return bytes;
}

/* Tiles of all segments: 16 rows, with glu eight of gate and eight of up. */
static void count_tiles(struct ck_stream *a)
{
    a->per_log = 4;
    a->outs_log = a->g.glu ? 3 : 4;
    for (uint32_t i = 0; i < CK_SEGMENTS; i++) {
        a->first[i] = i < a->g.segments && (!a->g.glu || !i) ? a->tiles : UINT32_MAX;
        if (a->first[i] != UINT32_MAX) a->tiles += (a->g.segment[i].n + (1u << a->outs_log) - 1) >> a->outs_log;
    }
}

static segue_status too_wide(struct cu_pass *p, uint32_t k)
{
    return sg_fail(p->err, SEGUE_EUNSUPPORTED,
                   "run: cuda: weight rows of %u columns do not fit into shared memory; use another unit", k);
}

/* Dynamic shared memory of a block when two fit on a multiprocessor, which has 1 KB more than a block may use; as much is taken
 * by the driver for each block. */
static uint32_t half_of(const struct sg_unit *u) { return (u->shared_max + CU_SHARED_LEFT - 1024) / 2 - CU_PACKED_STATIC; }

/* Ring slots that fit with `blocks` blocks in the grid. */
static uint32_t slots_in(const struct ck_packed *a, uint32_t blocks, uint32_t capacity, uint32_t *fixed)
{
    return cu_packed_slots(a->width, a->s.split_log, CK_DIGITS_TURN(a->s.tiles, blocks), a->s.stage_bytes, capacity, fixed);
}

/* Chunks per ring slot, at most `each`, and its size. Several where they are small, but not more than `space` for all warps: a
 * bulk copy takes about 110 cycles of the copy engine, so that of 1 to 2 KB it moves less than the memory delivers. */
static void set_slot(struct ck_packed *a, uint32_t each, uint32_t space)
{
    uint32_t chunk = a->s.stage_bytes / a->per;
    a->per = each < PER ? each : PER;
    while (a->per > 1 && (a->per * chunk > SLOT_BYTES || WARPS * a->per * chunk > space)) a->per--;
    a->s.stage_bytes = a->per * chunk;
}

/* Ring and grid. With many tiles two blocks per multiprocessor, whose warps hide the latency of arithmetic; with fewer the second
 * place is left to the next launch, which loads its weights there, if at least STAGES_LEAST chunks per warp fit. 0: no two slots
 * fit. */
static int size_launch(const struct cu_pass *p, struct ck_packed *a, uint32_t *blocks, uint32_t *shared)
{
    const struct sg_unit *u = p->program->base.unit;
    struct ck_stream *s = &a->s;
    uint32_t each = (a->chunks + (1u << s->split_log) - 1) >> s->split_log, groups = WARPS >> s->split_log, half = half_of(u),
             fixed, fit = 0;
    a->width = cu_packed_width(a->chunks, s->split_log);
    set_slot(a, each, half / 2);
    *blocks = s->tiles < 2 * p->sms ? s->tiles : 2 * p->sms;
    if (u->pdl ? s->tiles >= DOUBLE * u->sms : s->tiles > u->sms) fit = slots_in(a, *blocks, half, &fixed);
    if (fit < 2) {
        *blocks = s->tiles < p->sms ? s->tiles : p->sms;
        fit = slots_in(a, *blocks, half, &fixed);
        if (fit * a->per < STAGES_LEAST || fit < 2)
            fit = slots_in(a, *blocks, cu_packed_capacity(u), &fixed);
        if (fit < CU_PACKED_RING_LEAST && a->per > 1) { /* long rows beside little memory: small slots rather than none */
            a->s.stage_bytes /= a->per;
            a->per = 1;
            fit = slots_in(a, *blocks, cu_packed_capacity(u), &fixed);
        }
    }
    if (fit < CU_PACKED_RING_LEAST) return 0;
    /* No more than a warp's chunks of all its tiles. */
    uint32_t tiles = (s->tiles + *blocks - 1) / *blocks, all = (tiles + groups - 1) / groups * ((each + a->per - 1) / a->per);
    s->stages = fit < all ? fit : all < 2 ? 2 : all;
    *shared = fixed + s->stages * WARPS * s->stage_bytes;
    return 1;
}

/* Moves the view forward by `rows` rows. */
static void skip_rows(struct ck_view *v, uint32_t rows)
{
    if (v->p) v->p += (size_t)rows * v->stride;
}

/* k_packed_rows.cu: shared memory and ring of a launch with a->rows rows over a->chunks chunks. 0: does not fit. */
static uint32_t size_rows_launch(const struct sg_unit *u, struct ck_packed *a)
{
    a->s.split_log = a->chunks >= 8 ? 3 : 2; /* at best_busy two groups of warps: a turn has two tiles */
    a->width = ((a->chunks + (1u << a->s.split_log) - 1) >> a->s.split_log) * CK_PACKED_CHUNK;
    uint32_t fixed = WARPS * CK_PACKED_ROWS_X_BYTES(a->width, a->rows) +
                     ((CK_PACKED_TURN * CK_PACKED_ROWS * CK_PACKED_X_ROWS * 4) << a->s.split_log),
             max = cu_packed_capacity(u), space = fixed < max && a->width <= ROWS_WIDTH ? max - fixed : 0;
    set_slot(a, a->width / CK_PACKED_CHUNK, space / 2);
    uint32_t fit = space / (WARPS * a->s.stage_bytes);
    a->s.stages = fit > STAGES ? STAGES : fit;
    return fit < 2 ? 0 : fixed + a->s.stages * WARPS * a->s.stage_bytes;
}

/* 1: launches of a->chunks of `all` chunks fit, also the last one, whose warps have more columns where fewer share them. */
static int parts_fit(const struct sg_unit *u, const struct ck_packed *a, uint32_t all)
{
    struct ck_packed part = *a, last = *a;
    if (all % a->chunks) last.chunks = all % a->chunks;
    return size_rows_launch(u, &part) && size_rows_launch(u, &last);
}

/* Rows of x and parts of the columns of a launch. Parts are chosen for the largest number of rows, so that the sums of a row do
 * not depend on it. An activation needs whole sums, so gate and up take fewer rows instead; so do others where no part fits, as
 * on cards with 99 KB. */
static uint32_t plan_rows(const struct sg_unit *u, struct ck_packed *a, uint32_t rows, uint32_t *parts)
{
    uint32_t all = a->s.g.k / CK_PACKED_CHUNK;
    int fit = 0;
    for (uint32_t max = CK_PACKED_X_ROWS; max && !fit; max /= 2) {
        a->rows = max;
        a->chunks = all;
        *parts = 1;
        while (!(fit = parts_fit(u, a, all)) && !a->s.g.glu && a->chunks > 1) a->chunks = cu_pieces(all, ++*parts);
    }
    if (a->rows > rows) a->rows = rows;
    return size_rows_launch(u, a);
}

/* The columns part by part: each adds to the sums of those before it. */
static segue_status launch_parts(struct cu_pass *p, const struct ck_packed *whole, uint32_t parts, uint32_t blocks)
{
    struct sg_unit *u = p->program->base.unit;
    uint32_t all = whole->s.g.k / CK_PACKED_CHUNK, each = (all + parts - 1) / parts;
    for (uint32_t at = 0; at < all; at += each) {
        struct ck_packed a = *whole;
        a.chunk0 = at;
        a.chunks = all - at < each ? all - at : each;
        uint32_t shared = size_rows_launch(u, &a);
        for (uint32_t i = 0; at && i < a.s.g.segments; i++) {
            a.s.g.segment[i].residual = a.s.g.segment[i].y;
            a.s.g.segment[i].bias = NULL;
        }
        SG_TRY(cu_launch(p, u->k.packed_rows[a.width > 512], blocks, 1, 1, CK_PACKED_THREADS, shared, &a));
    }
    return SEGUE_OK;
}

/* 2 to 32 rows, with invariant=1 also one. */
static segue_status issue_rows(struct cu_pass *p, struct ck_packed *a, uint32_t rows)
{
    struct sg_unit *u = p->program->base.unit;
    uint32_t parts, blocks = a->s.tiles < p->sms ? a->s.tiles : p->sms;
    if (!plan_rows(u, a, rows, &parts)) return too_wide(p, a->s.g.k);
    for (uint32_t t = 0, n = a->rows; t < rows; t += n) {
        if (rows - t < n) a->rows = rows - t;
        SG_TRY(launch_parts(p, a, parts, blocks));
        skip_rows(&a->s.g.x, n);
        for (uint32_t i = 0; i < a->s.g.segments; i++) {
            skip_rows(&a->s.g.segment[i].residual, n);
            skip_rows(&a->s.g.segment[i].y, n);
        }
    }
    return SEGUE_OK;
}

segue_status cu_issue_packed(struct cu_pass *p, const struct cu_step *s, struct ck_gemv *g, uint32_t rows, int *whole)
{
    struct sg_unit *u = p->program->base.unit;
    struct ck_packed a = {.s = {.g = *g}, .chunks = g->k / CK_PACKED_CHUNK};
    uint32_t blocks = 0, shared = 0;
    struct ck_gemv *own = &a.s.g;
    int alone = rows == 1 && !u->invariant;
    if (cu_packed_batch_fits(p, s, rows)) return cu_issue_packed_batch(p, s, g, rows);
    if (!norm_fits(&g->norm, g->k) || (s->norm && !alone)) {
        SG_TRY(cu_issue_small(p, s->norm));
        own->norm = cu_norm_of(p, NULL);
        own->x = cu_view_of(p, &s->op->in[0]);
    }
    a.s.stage_bytes = describe_segments(p, s, &a);
    a.per = 1;
    count_tiles(&a.s);
    own->best = g->best && alone;
    own->rows = 1;
    if (!alone) return issue_rows(p, &a, rows);
    /* A convolution has its state in the kernel. */
    cu_epilogue_of(p, s, &a.s.after);
    *whole = a.s.after.kind != CK_EPILOGUE_CONV || a.s.after.taps <= CK_STREAM_TAPS;
    if (!*whole) a.s.after = (struct ck_epilogue){0};
    /* Where x does not fit into shared memory more warps share it. */
    for (a.s.split_log = split_log_of(u, a.chunks, a.s.tiles); !size_launch(p, &a, &blocks, &shared); a.s.split_log++)
        if (a.s.split_log >= cu_packed_split_max(a.chunks)) return too_wide(p, own->k);
    if (own->best) p->best_blocks = blocks;
    p->best_done |= own->best;
    return cu_launch(p, u->k.packed[a.width <= 512 ? 0 : a.width <= 1024 ? 1 : 2], blocks, 1, 1, CK_PACKED_THREADS, shared, &a);
}
