/* lowerinfo.c: see lowerinfo.h.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/lowerinfo.h"

#include <math.h>
#include <string.h>

#include "base/num.h"
#include "unit/ane/lowercut.h"

static uint32_t take(uint32_t *channels, uint32_t n)
{
    uint32_t at = *channels;
    *channels += n;
    return at;
}

uint32_t sg_ane_info_mask(const struct sg_ane_info *i, uint32_t window)
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
    return sg_fail(err, SEGUE_EUNSUPPORTED, "compile: ane: more than %d %s; use another unit", SG_ANE_KINDS, what);
}

static segue_status add_attend(struct sg_ane_info *i, uint32_t window, uint32_t keys, segue_error *err)
{
    if (i->place == UINT32_MAX) i->place = take(&i->channels, keys);
    uint32_t at = sg_ane_info_mask(i, window);
    if (at < i->masks_n) return SEGUE_OK;
    if (at == SG_ANE_KINDS) return too_many("different windows", err);
    i->window[at] = window;
    i->mask[at] = take(&i->channels, keys);
    i->masks_n++;
    return SEGUE_OK;
}

static segue_status add_taps(struct sg_ane_info *i, uint32_t taps, segue_error *err)
{
    uint32_t at = sg_ane_info_taps(i, taps);
    if (at < i->taps_n || taps < 2) return SEGUE_OK;
    if (at == SG_ANE_KINDS) return too_many("lengths of convolutions", err);
    i->taps[at] = taps;
    i->old[at] = take(&i->channels, taps - 1);
    i->recent[at] = take(&i->channels, taps - 1);
    i->taps_n++;
    return SEGUE_OK;
}

static segue_status add_op(struct sg_ane_info *i, const struct sg_graph *g, const struct sg_op *op, uint32_t keys,
                           segue_error *err)
{
    if (op->code == SG_OP_ROPE && i->rope[op->u.rope.table] == UINT32_MAX)
        i->rope[op->u.rope.table] = take(&i->channels, 2 * g->ropes[op->u.rope.table].pairs);
    if (op->code == SG_OP_DELTA && i->valid == UINT32_MAX) i->valid = take(&i->channels, 1);
    if (op->code == SG_OP_CONV) return add_taps(i, op->u.conv.taps, err);
    return op->code == SG_OP_ATTEND ? add_attend(i, op->u.attend.window, keys, err) : SEGUE_OK;
}

segue_status sg_ane_info_make(struct sg_ane_info *out, const struct sg_graph *g, uint32_t keys, segue_error *err)
{
    *out = (struct sg_ane_info){.valid = UINT32_MAX, .place = UINT32_MAX, .ropes_n = g->ropes_n};
    out->rope = sg_arena_alloc(&out->arena, (g->ropes_n + 1) * sizeof *out->rope);
    if (!out->rope) return sg_no_memory("layout of a program", 0, err);
    for (uint32_t r = 0; r < g->ropes_n; r++) out->rope[r] = UINT32_MAX;
    for (uint32_t o = 0; o < g->ops_n; o++) {
        if (sg_ane_helpers_why(g, &g->ops[o])) continue;
        segue_status status = add_op(out, g, &g->ops[o], keys, err);
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

/* --- filling --- */

/* Angles in double, rounded once. Padding rows turn by nothing. */
static void fill_rope(const struct sg_rope_table *t, uint32_t columns, uint64_t first, uint32_t n, uint16_t *out)
{
    for (uint32_t j = 0; j < t->pairs; j++)
        for (uint32_t s = 0; s < n; s++) {
            double angle = (double)(first + s) * (double)t->inverse[j];
            out[(size_t)j * columns + s] = sg_f16_of_f32((float)(cos(angle) * (double)t->mscale));
            out[(size_t)(t->pairs + j) * columns + s] = sg_f16_of_f32((float)(sin(angle) * (double)t->mscale));
        }
}

/* Row s sees the keys (position - window, position]; padding rows see what the last real one sees. */
static void fill_mask(uint32_t window, const struct sg_ane_shape *shape, uint64_t first, uint32_t n, uint16_t *out)
{
    const uint16_t hidden = sg_f16_of_f32((float)SG_ANE_HIDDEN);
    for (uint32_t key = 0; key < shape->keys; key++)
        for (uint32_t s = 0; s < shape->columns; s++) {
            uint64_t position = first + (s < n ? s : n - 1);
            int seen = key <= position && (!window || key + (uint64_t)window > position);
            out[(size_t)key * shape->columns + s] = seen ? 0 : hidden;
        }
}

/* Of the taps - 1 remembered rows and n new ones, one after the other, the last taps - 1 are kept. */
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
    for (uint32_t s = 0; s < n && i->place != UINT32_MAX; s++) out[(i->place + first + s) * columns + s] = 0x3c00;
    for (uint32_t k = 0; k < i->masks_n; k++) fill_mask(i->window[k], shape, first, n, out + i->mask[k] * columns);
    for (uint32_t k = 0; k < i->taps_n; k++)
        fill_taps(i->taps[k] - 1, shape, n, out + i->old[k] * columns, out + i->recent[k] * columns);
}

/* --- from one row to another --- */

struct range {
    uint64_t from, to;
};

static struct range seen_from(uint64_t position, uint32_t window)
{
    return (struct range){window && position + 1 > window ? position + 1 - window : 0, position + 1};
}

/* Column 0 of the keys that are in a and not in b. */
static uint64_t put_difference(struct range a, struct range b, uint32_t columns, uint16_t value, uint16_t *out)
{
    uint64_t n = 0;
    for (uint64_t key = a.from; key < a.to; key++) {
        if (key >= b.from && key < b.to) key = b.to;
        if (key >= a.to) break;
        out[(size_t)key * columns] = value;
        n++;
    }
    return n;
}

uint64_t sg_ane_info_step(const struct sg_ane_info *i, const struct sg_graph *g, const struct sg_ane_shape *shape,
                          uint64_t before, uint64_t first, uint16_t *out)
{
    const uint16_t hidden = sg_f16_of_f32((float)SG_ANE_HIDDEN);
    size_t columns = shape->columns;
    uint64_t n = 0;
    if (before == first) return 0;
    for (uint32_t r = 0; r < i->ropes_n; r++) {
        if (i->rope[r] == UINT32_MAX) continue;
        fill_rope(&g->ropes[r], shape->columns, first, 1, out + i->rope[r] * columns);
        n += 2ull * g->ropes[r].pairs;
    }
    if (i->place != UINT32_MAX) {
        out[(i->place + before) * columns] = 0;
        out[(i->place + first) * columns] = 0x3c00;
        n += 2;
    }
    for (uint32_t k = 0; k < i->masks_n; k++) {
        struct range was = seen_from(before, i->window[k]), is = seen_from(first, i->window[k]);
        uint16_t *mask = out + i->mask[k] * columns;
        n += put_difference(was, is, shape->columns, hidden, mask) + put_difference(is, was, shape->columns, 0, mask);
    }
    return n;
}
