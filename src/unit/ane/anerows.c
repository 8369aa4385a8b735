/* anerows.c: rows of K and V of a state as they lie here, fp16, one range of them for each slot; and which of them the
 * next row sees. SPDX-License-Identifier: MIT */
#include <string.h>

#include "base/num.h"
#include "unit/ane/aneunit.h"

enum { GROW_ROWS = 64 };

int ane_is_rows(const struct sg_slot *s) { return s->kind == SG_SLOT_K || s->kind == SG_SLOT_V; }

uint32_t ane_reach(const struct sg_state *st, const struct sg_slot *s)
{
    uint32_t keys = st->base.unit->keys;
    return keys && (!s->window || s->window > keys) ? keys : s->window;
}

uint64_t ane_rows_needed(const struct sg_state *st, const struct ane_slot *s, uint64_t rows)
{
    uint32_t reach = ane_is_rows(&s->slot) ? ane_reach(st, &s->slot) : 0;
    return reach && rows + 1 > reach ? rows + 1 - reach : 0;
}

uint16_t *ane_row(const struct ane_slot *s, uint64_t row) { return s->rows + (size_t)(row - s->base) * s->numbers; }

/* Moves rows inside the buffer if it is large enough, otherwise grows it by half. */
segue_status ane_rows_reserve(struct ane_slot *s, uint64_t from, uint64_t to, segue_error *err)
{
    uint64_t begin = s->first == s->end || from < s->first ? from : s->first, end = to > s->end ? to : s->end, cap;
    size_t held = (size_t)(s->end - s->first) * s->numbers * sizeof *s->rows, bytes;
    if (begin >= s->base && end - s->base <= s->rows_cap) return SEGUE_OK;
    if (end - begin <= s->rows_cap) {
        if (held) memmove(s->rows + (size_t)(s->first - begin) * s->numbers, ane_row(s, s->first), held);
        s->base = begin;
        return SEGUE_OK;
    }
    cap = end - begin + GROW_ROWS + s->rows_cap / 2;
    SG_TRY(sg_mul((size_t)cap, s->numbers * sizeof *s->rows, &bytes, "ane state", err));
    uint16_t *more = sg_alloc(bytes);
    if (!more) return sg_no_memory("ane state", bytes, err);
    if (held) memcpy(more + (size_t)(s->first - begin) * s->numbers, ane_row(s, s->first), held);
    sg_free(s->rows);
    s->rows = more;
    s->rows_cap = cap;
    s->base = begin;
    return SEGUE_OK;
}

/* Converts one row between storages; equal storages are copied. */
static void row_move(const struct sg_slot *slot, const void *from, enum sg_storage a, void *to, enum sg_storage b,
                     float *row)
{
    if (a == b) {
        memcpy(to, from, sg_slot_row_bytes(slot, a));
        return;
    }
    sg_slot_decode(slot, a, from, row);
    sg_slot_encode(slot, b, row, to);
}

segue_status ane_rows_get(const struct ane_slot *s, uint32_t slot, uint64_t from, uint64_t to, enum sg_storage storage,
                             char *out, segue_error *err)
{
    if (from > to || to > s->end || (from < to && from < s->first))
        return sg_fail(err, SEGUE_EARG, "get state: ane: slot %u: rows [%llu, %llu) of [%llu, %llu); ask for those held",
                       slot, (unsigned long long)from, (unsigned long long)to, (unsigned long long)s->first,
                       (unsigned long long)s->end);
    float *row = sg_alloc(s->numbers * sizeof *row);
    if (!row) return sg_no_memory("a row of state", s->numbers * sizeof *row, err);
    size_t bytes = sg_slot_row_bytes(&s->slot, storage);
    for (uint64_t r = from; r < to; r++, out += bytes) row_move(&s->slot, ane_row(s, r), SG_F16, out, storage, row);
    sg_free(row);
    return SEGUE_OK;
}

segue_status ane_rows_put(struct ane_slot *s, uint64_t from, uint64_t to, enum sg_storage storage, const char *in,
                             segue_error *err)
{
    if (s->first == s->end) s->first = s->end = from;
    if (from > to || from > s->end || to < s->first)
        return sg_fail(err, SEGUE_EARG, "put state: ane: rows [%llu, %llu) beside [%llu, %llu); leave no gap",
                       (unsigned long long)from, (unsigned long long)to, (unsigned long long)s->first,
                       (unsigned long long)s->end);
    SG_TRY(ane_rows_reserve(s, from, to, err));
    float *row = sg_alloc(s->numbers * sizeof *row);
    if (!row) return sg_no_memory("a row of state", s->numbers * sizeof *row, err);
    size_t bytes = sg_slot_row_bytes(&s->slot, storage);
    for (uint64_t r = from; r < to; r++, in += bytes) row_move(&s->slot, in, storage, ane_row(s, r), SG_F16, row);
    sg_free(row);
    if (from < s->first) s->first = from;
    if (to > s->end) s->end = to;
    return SEGUE_OK;
}

