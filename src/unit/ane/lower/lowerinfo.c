/* lowerinfo.c: see lowerinfo.h. In fp16, 0x3c00 is 1.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/lower/lowerinfo.h"

#include <math.h>
#include <string.h>

#include "base/num.h"
#include "unit/ane/analysis/partition.h"

/* Reserves n channels and returns the first. */
static uint32_t take_channels(uint32_t *channels, uint32_t n)
{
    uint32_t at = *channels;
    *channels += n;
    return at;
}

uint32_t sg_ane_info_kind(const struct sg_ane_info *i, uint32_t window)
{
    uint32_t k = 0;
    while (k < i->masks_n && i->window[k] != window) k++;
    return k;
}

uint32_t sg_ane_info_taps(const struct sg_ane_info *i, uint32_t taps)
{
    uint32_t k = 0;
    while (k < i->taps_n && i->taps[k] != taps) k++;
    return k;
}

static segue_status too_many(const char *what, segue_error *err)
{
    return sg_fail(err, SEGUE_EUNSUPPORTED, "compile: ane: more than %d %s; use another unit", SG_ANE_KINDS_MAX, what);
}

/* Adds a kind of attention unless its window is known. Kinds with rings of equal size store their rows in
 * the same columns and share one scatter matrix. */
static segue_status add_attend(struct sg_ane_info *i, uint32_t window, const struct sg_ane_shape *shape, segue_error *err)
{
    struct sg_ane_ring ring = sg_ane_ring_of(shape, window);
    uint32_t at = sg_ane_info_kind(i, window), same = 0;
    if (at < i->masks_n) return SEGUE_OK;
    if (at == SG_ANE_KINDS_MAX) return too_many("different windows", err);
    while (same < at && i->ring[same].columns != ring.columns) same++;
    i->window[at] = window;
    i->ring[at] = ring;
    i->scatter[at] = same < at ? i->scatter[same] : take_channels(&i->channels, ring.columns);
    i->mask[at] = take_channels(&i->channels, ring.columns);
    i->fresh[at] = sg_ane_ring_reads_old(&ring, shape) ? take_channels(&i->channels, shape->columns) : UINT32_MAX;
    i->masks_n++;
    return SEGUE_OK;
}

/* Adds a kind of convolution; one tap needs no memory. */
static segue_status add_taps(struct sg_ane_info *i, uint32_t taps, segue_error *err)
{
    uint32_t at = sg_ane_info_taps(i, taps);
    if (at < i->taps_n || taps < 2) return SEGUE_OK;
    if (at == SG_ANE_KINDS_MAX) return too_many("different convolution lengths", err);
    i->taps[at] = taps;
    i->old[at] = take_channels(&i->channels, taps - 1);
    i->recent[at] = take_channels(&i->channels, taps - 1);
    i->taps_n++;
    return SEGUE_OK;
}

/* Reserves what one operation needs, unless an earlier one did. */
static segue_status add_op(struct sg_ane_info *i, const struct sg_graph *g, const struct sg_op *op,
                           const struct sg_ane_shape *shape, segue_error *err)
{
    if (op->code == SG_OP_ROPE && i->rope[op->u.rope.table] == UINT32_MAX)
        i->rope[op->u.rope.table] = take_channels(&i->channels, 2 * g->ropes[op->u.rope.table].pairs);
    if (op->code == SG_OP_DELTA && i->valid == UINT32_MAX) i->valid = take_channels(&i->channels, 1);
    if (op->code == SG_OP_CONV) return add_taps(i, op->u.conv.taps, err);
    return op->code == SG_OP_ATTEND ? add_attend(i, op->u.attend.window, shape, err) : SEGUE_OK;
}

segue_status sg_ane_info_make(struct sg_ane_info *out, const struct sg_graph *g, const struct sg_ane_shape *shape,
                              segue_error *err)
{
    *out = (struct sg_ane_info){.valid = UINT32_MAX, .ropes_n = g->ropes_n};
    out->rope = sg_arena_alloc(&out->arena, (g->ropes_n + 1) * sizeof *out->rope);
    if (!out->rope) return sg_no_memory("layout of a program", 0, err);
    for (uint32_t r = 0; r < g->ropes_n; r++) out->rope[r] = UINT32_MAX;
    for (uint32_t o = 0; o < g->ops_n; o++) {
        if (sg_ane_helper_reason(g, &g->ops[o])) continue;
        segue_status status = add_op(out, g, &g->ops[o], shape, err);
        if (status == SEGUE_OK) continue;
        sg_ane_info_free(out);
        return status;
    }
    out->channels = (out->channels + SG_ANE_PAD - 1) / SG_ANE_PAD * SG_ANE_PAD;
    return SEGUE_OK;
}

void sg_ane_info_free(struct sg_ane_info *i)
{
    sg_arena_free(&i->arena);
    *i = (struct sg_ane_info){0};
}

/* Writes cosines and sines for n rows. Angles are computed in double and rounded once. Padding columns stay
 * 0. */
static void fill_rope(const struct sg_rope_table *t, uint32_t columns, uint64_t first, uint32_t n, uint16_t *out)
{
    for (uint32_t j = 0; j < t->pairs; j++)
        for (uint32_t s = 0; s < n; s++) {
            double angle = (double)(first + s) * (double)t->inverse[j];
            out[(size_t)j * columns + s] = sg_f16_of_f32((float)(cos(angle) * (double)t->mscale));
            out[(size_t)(t->pairs + j) * columns + s] = sg_f16_of_f32((float)(sin(angle) * (double)t->mscale));
        }
}

/* Latest row stored in a column of a ring after rows 0..held-1 were written; UINT64_MAX: none. */
static uint64_t row_in(uint32_t column, uint32_t columns, uint64_t held)
{
    return column < held ? held - 1 - (held - 1 - column) % columns : UINT64_MAX;
}

/* 1: the row at `position` attends to `row`: causal, and within the window if there is one. UINT64_MAX is
 * never visible. */
static int is_visible(uint64_t position, uint64_t row, uint32_t window)
{
    return row <= position && (!window || row + window > position);
}

/* 1: attention of this kind reads the ring before the dispatch, and its new rows separately. */
static int has_fresh(const struct sg_ane_info *i, uint32_t kind) { return i->fresh[kind] != UINT32_MAX; }

/* Mask over the ring: the rows (position - window, position] are visible. A padding row sees what the last
 * real row sees, so that its softmax is not empty. */
static void fill_mask(const struct sg_ane_info *i, uint32_t kind, const struct sg_ane_shape *shape, uint64_t first, uint32_t n,
                      uint16_t *out)
{
    const uint16_t hidden = sg_f16_of_f32((float)SG_ANE_MASKED);
    const struct sg_ane_ring *r = &i->ring[kind];
    for (uint32_t c = 0; c < r->columns; c++) {
        uint64_t row = row_in(c, r->columns, has_fresh(i, kind) ? first : first + n);
        for (uint32_t s = 0; s < shape->columns; s++)
            *out++ = is_visible(first + (s < n ? s : n - 1), row, r->window) ? 0 : hidden;
    }
}

/* Mask over the rows of the dispatch, by their index in it. */
static void fill_fresh(uint32_t window, uint32_t columns, uint32_t n, uint16_t *out)
{
    const uint16_t hidden = sg_f16_of_f32((float)SG_ANE_MASKED);
    for (uint32_t row = 0; row < columns; row++)
        for (uint32_t s = 0; s < columns; s++) *out++ = is_visible(s < n ? s : n - 1, row, window) ? 0 : hidden;
}

/* Scatter matrix: row s is stored in column (first + s) % ring. When there are more rows than columns, only
 * the last ones are stored. */
static void fill_scatter(uint32_t ring, uint32_t columns, uint64_t first, uint32_t n, uint16_t *out)
{
    for (uint32_t s = n > ring ? n - ring : 0; s < n; s++) out[(size_t)((first + s) % ring) * columns + s] = 0x3c00;
}

/* Selects the new memory of a convolution: the last `past` of the sequence of remembered and new rows. */
static void fill_taps(uint32_t past, const struct sg_ane_shape *shape, uint32_t n, uint16_t *old, uint16_t *recent)
{
    for (uint32_t i = 0; i < past; i++) {
        uint32_t from = n + i;
        if (from < past)
            old[(size_t)i * shape->columns + from] = 0x3c00;
        else
            recent[(size_t)i * shape->columns + from - past] = 0x3c00;
    }
}

void sg_ane_info_fill(const struct sg_ane_info *i, const struct sg_graph *g, const struct sg_ane_shape *shape,
                      uint64_t first, uint32_t n, uint16_t *out)
{
    size_t columns = shape->columns;
    memset(out, 0, i->channels * columns * sizeof *out);
    for (uint32_t r = 0; r < i->ropes_n; r++)
        if (i->rope[r] != UINT32_MAX) fill_rope(&g->ropes[r], shape->columns, first, n, out + i->rope[r] * columns);
    for (uint32_t s = 0; s < n && i->valid != UINT32_MAX; s++) out[i->valid * columns + s] = 0x3c00;
    for (uint32_t k = 0; k < i->masks_n; k++) {
        fill_scatter(i->ring[k].columns, shape->columns, first, n, out + i->scatter[k] * columns);
        fill_mask(i, k, shape, first, n, out + i->mask[k] * columns);
        if (has_fresh(i, k)) fill_fresh(i->ring[k].window, shape->columns, n, out + i->fresh[k] * columns);
    }
    for (uint32_t k = 0; k < i->taps_n; k++)
        fill_taps(i->taps[k] - 1, shape, n, out + i->old[k] * columns, out + i->recent[k] * columns);
}

/* 1: an earlier kind has the same scatter matrix, which is then updated already. */
static int shares_scatter(const struct sg_ane_info *i, uint32_t kind)
{
    for (uint32_t k = 0; k < kind; k++)
        if (i->scatter[k] == i->scatter[kind]) return 1;
    return 0;
}

/* Column 0 of the scatter matrix has a single 1, in the row where the next token is stored: moves it from row `before` to row
 * `first`, both modulo the ring size. 0x3c00 is 1 in fp16. Returns the numbers that changed. */
static uint64_t move_scatter(uint32_t ring, size_t columns, uint64_t before, uint64_t first, uint16_t *out)
{
    if (before % ring == first % ring) return 0;
    out[(size_t)(before % ring) * columns] = 0;
    out[(size_t)(first % ring) * columns] = 0x3c00;
    return 2;
}

/* Updates column 0 of a mask; returns the number of elements that changed. */
static uint64_t move_mask(const struct sg_ane_ring *r, size_t columns, uint64_t first, uint16_t *out)
{
    const uint16_t hidden = sg_f16_of_f32((float)SG_ANE_MASKED);
    uint64_t n = 0;
    for (uint32_t c = 0; c < r->columns; c++, out += columns) {
        uint16_t now = is_visible(first, row_in(c, r->columns, first + 1), r->window) ? 0 : hidden;
        if (*out == now) continue;
        *out = now;
        n++;
    }
    return n;
}

uint64_t sg_ane_info_step(const struct sg_ane_info *i, const struct sg_graph *g, const struct sg_ane_shape *shape,
                          uint64_t before, uint64_t first, uint16_t *out)
{
    size_t columns = shape->columns;
    uint64_t n = 0;
    if (before == first) return 0;
    for (uint32_t r = 0; r < i->ropes_n; r++) {
        if (i->rope[r] == UINT32_MAX) continue;
        fill_rope(&g->ropes[r], shape->columns, first, 1, out + i->rope[r] * columns);
        n += 2ull * g->ropes[r].pairs;
    }
    for (uint32_t k = 0; k < i->masks_n; k++) {
        if (!shares_scatter(i, k)) n += move_scatter(i->ring[k].columns, columns, before, first, out + i->scatter[k] * columns);
        n += move_mask(&i->ring[k], columns, first, out + i->mask[k] * columns);
    }
    return n;
}
