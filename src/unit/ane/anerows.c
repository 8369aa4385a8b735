/* anerows.c: K and V rows of a state in host memory: reference-counted blocks of fp16 rows, which forks share until one of them
 * writes; and which positions the next token attends to. See aneunit.h.
 * SPDX-License-Identifier: MIT */
#include <string.h>

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

struct ane_block {
    struct sg_shared_block shared;
    uint16_t rows[];                 /* [ANE_BLOCK_TOKENS][elems] fp16 */
};

static size_t block_bytes(const struct ane_slot *s) { return (size_t)ANE_BLOCK_TOKENS * s->elems * sizeof(uint16_t); }

/* owner: the slot. */
static segue_status block_create(void *owner, const struct sg_shared_block *from, struct sg_shared_block **out, segue_error *err)
{
    size_t bytes = block_bytes(owner);
    struct ane_block *b = sg_alloc(sizeof *b + bytes);
    if (!b) return sg_no_memory("ane state", bytes, err);
    atomic_init(&b->shared.refs, 1u);
    if (from) memcpy(b->rows, ((const struct ane_block *)(const void *)from)->rows, bytes);
    *out = &b->shared;
    return SEGUE_OK;
}

static void block_destroy(void *owner, struct sg_shared_block *b)
{
    (void)owner;
    sg_free(b);
}

static const struct sg_block_ops block_ops = {.create = block_create, .destroy = block_destroy};

uint16_t *ane_row(const struct ane_slot *s, uint64_t pos)
{
    struct ane_block *b = (struct ane_block *)(void *)s->blocks.blocks[pos / ANE_BLOCK_TOKENS];
    return b->rows + (size_t)(pos % ANE_BLOCK_TOKENS) * s->elems;
}

/* Without a lock: a get waits until no run uses the state, and holds the lock while it copies rows from the engine. */
segue_status ane_rows_own(struct ane_slot *s, uint64_t from, uint64_t to, segue_error *err)
{
    for (uint64_t b = from / ANE_BLOCK_TOKENS; from < to && b <= (to - 1) / ANE_BLOCK_TOKENS; b++)
        SG_TRY(sg_block_table_own(&s->blocks, b, NULL, &block_ops, s, err));
    return SEGUE_OK;
}

void ane_rows_trim(struct ane_slot *s)
{
    sg_block_table_trim(&s->blocks, s->core.first, s->host_end, ANE_BLOCK_TOKENS, &block_ops, s);
}

segue_status ane_rows_share(struct ane_slot *to, const struct ane_slot *from, segue_error *err)
{
    return sg_block_table_share(&to->blocks, &from->blocks, err);
}

void ane_rows_free(struct ane_slot *s) { sg_block_table_free(&s->blocks, &block_ops, s); }

uint64_t ane_rows_bytes(const struct ane_slot *s) { return sg_block_table_bytes(&s->blocks, block_bytes(s)); }

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
