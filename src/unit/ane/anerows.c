/* anerows.c: K and V rows of a state in host memory, fp16 (kv/kv_rows.h); and which positions the next token attends to. See
 * aneunit.h.
 * SPDX-License-Identifier: MIT */
#include "base/num.h"
#include "unit/ane/aneunit.h"

enum { ANE_BLOCK_TOKENS = 32 };  /* positions per block */

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

/* --- blocks --- */

void ane_rows_init(struct ane_slot *s, const struct sg_host_memory *host, uint64_t tokens)
{
    sg_rows_init(&s->rows, ANE_BLOCK_TOKENS, s->elems * sizeof(uint16_t), s->core.slot.window, host, tokens);
}

uint16_t *ane_row(const struct ane_slot *s, uint64_t pos) { return (uint16_t *)(void *)sg_rows_at(&s->rows, pos); }

/* Without a lock: a get waits until no run uses the state, and holds the lock while it copies rows from the engine. */
segue_status ane_rows_own(struct ane_slot *s, uint64_t from, uint64_t to, segue_error *err)
{
    return sg_rows_own(&s->rows, from, to, NULL, err);
}

void ane_rows_trim(struct ane_slot *s) { sg_rows_trim(&s->rows, s->core.first, s->host_end); }

/* --- the canonical layout --- */

/* The caller has checked that the positions are held. */
segue_status ane_rows_read(const struct ane_slot *s, uint64_t from, uint64_t to, enum sg_storage storage, char *out,
                           segue_error *err)
{
    size_t bytes = sg_slot_row_bytes(&s->core.slot, storage);
    float *row = sg_alloc(s->elems * sizeof *row);
    if (!row) return sg_no_memory("a row of state", s->elems * sizeof *row, err);
    for (uint64_t pos = from; pos < to; pos++, out += bytes)
        sg_slot_convert(&s->core.slot, SG_F16, ane_row(s, pos), storage, out, row);
    sg_free(row);
    return SEGUE_OK;
}

/* Memory first: after a failure the rows are unchanged. */
segue_status ane_rows_write(struct ane_slot *s, uint64_t from, uint64_t to, enum sg_storage storage, const char *in,
                            segue_error *err)
{
    size_t bytes = sg_slot_row_bytes(&s->core.slot, storage);
    SG_TRY(ane_rows_own(s, from, to, err));
    float *row = sg_alloc(s->elems * sizeof *row);
    if (!row) return sg_no_memory("a row of state", s->elems * sizeof *row, err);
    for (uint64_t pos = from; pos < to; pos++, in += bytes)
        sg_slot_convert(&s->core.slot, storage, in, SG_F16, ane_row(s, pos), row);
    sg_free(row);
    return SEGUE_OK;
}
