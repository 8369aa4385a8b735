/* anerows.c: K and V rows of a state in host memory: one fp16 buffer per slot, which holds a contiguous range of positions; and
 * which positions the next token attends to. See aneunit.h.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "base/num.h"
#include "unit/ane/aneunit.h"

enum { GROW_ROWS = 64 };         /* spare rows when a buffer grows, besides half of its size */

/* The window of the model, or option keys= when that is smaller. */
uint32_t ane_reach(const struct sg_state *st, const struct sg_slot *s)
{
    uint32_t keys = st->core.base.unit->keys;
    return keys && (!s->window || s->window > keys) ? keys : s->window;
}

/* The token at position `tokens` counts as one of the positions in reach. */
uint64_t ane_first_needed(const struct sg_state *st, uint32_t slot, uint64_t tokens)
{
    const struct sg_slot *s = &ane_slot_at(st, slot)->core.slot;
    uint32_t reach = sg_slot_grows(s) ? ane_reach(st, s) : 0;
    return reach && tokens + 1 > reach ? tokens + 1 - reach : 0;
}

uint16_t *ane_row(const struct ane_slot *s, uint64_t pos) { return s->rows + (size_t)(pos - s->rows_base) * s->elems; }

/* A buffer that is large enough is reused: the rows are moved to its start. Otherwise it grows by half, so that a sequence that
 * grows token by token is copied rarely. */
segue_status ane_rows_reserve(struct ane_slot *s, uint64_t from, uint64_t to, segue_error *err)
{
    /* [first, last) are the rows to preserve, [begin, end) the positions to make space for. */
    uint64_t first = s->core.first, last = s->host_end, cap;
    uint64_t begin = first == last || from < first ? from : first, end = to > last ? to : last;
    size_t held = (size_t)(last - first) * s->elems * sizeof *s->rows, bytes;
    if (begin >= s->rows_base && end - s->rows_base <= s->rows_cap) return SEGUE_OK;
    if (end - begin <= s->rows_cap) {
        if (held) memmove(s->rows + (size_t)(first - begin) * s->elems, ane_row(s, first), held);
        s->rows_base = begin;
        return SEGUE_OK;
    }
    cap = end - begin + GROW_ROWS + s->rows_cap / 2;
    SG_TRY(sg_mul((size_t)cap, s->elems * sizeof *s->rows, &bytes, "ane state", err));
    uint16_t *more = sg_alloc(bytes);
    if (!more) return sg_no_memory("ane state", bytes, err);
    if (held) memcpy(more + (size_t)(first - begin) * s->elems, ane_row(s, first), held);
    sg_free(s->rows);
    s->rows = more;
    s->rows_cap = cap;
    s->rows_base = begin;
    return SEGUE_OK;
}

/* Converts one row between storages, through fp32 in `row` ([elems]) unless they are equal. */
static void row_convert(const struct sg_slot *slot, const void *from, enum sg_storage a, void *to, enum sg_storage b, float *row)
{
    if (a == b) {
        memcpy(to, from, sg_slot_row_bytes(slot, a));
        return;
    }
    sg_slot_decode(slot, a, from, row);
    sg_slot_encode(slot, b, row, to);
}

/* The caller has checked that the positions are held. */
segue_status ane_rows_read(const struct ane_slot *s, uint64_t from, uint64_t to, enum sg_storage storage, char *out,
                           segue_error *err)
{
    size_t bytes = sg_slot_row_bytes(&s->core.slot, storage);
    float *row = sg_alloc(s->elems * sizeof *row);
    if (!row) return sg_no_memory("a row of state", s->elems * sizeof *row, err);
    for (uint64_t pos = from; pos < to; pos++, out += bytes)
        row_convert(&s->core.slot, ane_row(s, pos), SG_F16, out, storage, row);
    sg_free(row);
    return SEGUE_OK;
}

/* Memory first: after a failure the rows are unchanged. */
segue_status ane_rows_write(struct ane_slot *s, uint64_t from, uint64_t to, enum sg_storage storage, const char *in,
                            segue_error *err)
{
    size_t bytes = sg_slot_row_bytes(&s->core.slot, storage);
    SG_TRY(ane_rows_reserve(s, from, to, err));
    float *row = sg_alloc(s->elems * sizeof *row);
    if (!row) return sg_no_memory("a row of state", s->elems * sizeof *row, err);
    for (uint64_t pos = from; pos < to; pos++, in += bytes)
        row_convert(&s->core.slot, in, storage, ane_row(s, pos), SG_F16, row);
    sg_free(row);
    return SEGUE_OK;
}
