/* slot_memory.c: GPU memory of a state. K and V rows are contiguous per slot, in the state's storage; a slot that grows moves to
 * a larger block. All fixed slots are in one block, in fp32. The copies and fills here are asynchronous, in the unit's stream
 * `copies`, and therefore in the order of the calls.
 * SPDX-License-Identifier: MIT */
#include "unit/cuda/state/state.h"

/* Initial capacity of a slot in rows; total size of K and V up to which they are one block; multiple of all capacities. */
enum { MIN_ROWS = 256, SHARED_BLOCK_MB = 64, ROWS_STEP = 64 };

/* --- copies and fills --- */

segue_status cu_state_wait_copies(struct sg_unit *u, segue_error *err)
{
    cu_enter(u);
    cu_result r = u->d.stream_sync(u->copies);
    cu_leave(u);
    return cu_check(&u->d, r, "copy state", err);
}

/* A deferred copy that was requested earlier is issued first, so that it does not overtake this one. */
segue_status cu_state_copy(struct sg_unit *u, cu_ptr to, cu_ptr from, size_t n, segue_error *err)
{
    if (!n) return SEGUE_OK;
    pthread_mutex_lock(&u->copy_lock);
    cu_enter(u);
    cu_result r = cu_pending_copy_start(u);
    if (!r) r = u->d.copy_dtod(to, from, n, u->copies);
    cu_leave(u);
    pthread_mutex_unlock(&u->copy_lock);
    return cu_check(&u->d, r, "copy state", err);
}

segue_status cu_state_clear(struct sg_unit *u, cu_ptr to, size_t n, segue_error *err)
{
    if (!n) return SEGUE_OK;
    pthread_mutex_lock(&u->copy_lock);
    cu_enter(u);
    cu_result r = cu_pending_copy_start(u);
    if (!r) r = u->d.memset_d8(to, 0, n, u->copies);
    cu_leave(u);
    pthread_mutex_unlock(&u->copy_lock);
    return cu_check(&u->d, r, "clear state", err);
}

/* --- fixed slots --- */

/* Slot i begins at the same offset in `fixed`, in fixed_alt and in every undo buffer, so one copy moves all slots. */
void cu_state_set_fixed(struct sg_state *s)
{
    size_t at = 0;
    for (uint32_t i = 0; i < s->core.slots_n; i++) {
        struct cu_slot *slot = cu_slot_at(s, i);
        if (!slot->core.fixed_bytes) continue;
        slot->memory = s->fixed ? s->fixed + at : 0;
        slot->alt = s->fixed_alt ? s->fixed_alt + at : 0;
        at += cu_fixed_stride(slot);
    }
}

segue_status cu_state_alloc_alt(struct sg_state *s, segue_error *err)
{
    if (s->fixed_alt || !s->block_bytes) return SEGUE_OK;
    SG_TRY(cu_pool_alloc(s->core.base.unit, s->block_bytes, &s->fixed_alt, err));
    cu_state_set_fixed(s);
    return SEGUE_OK;
}

segue_status cu_state_alloc_fixed(struct sg_state *s, segue_error *err)
{
    if (s->fixed || !s->block_bytes) return SEGUE_OK;
    SG_TRY(cu_pool_alloc(s->core.base.unit, s->block_bytes, &s->fixed, err));
    cu_state_set_fixed(s);
    return SEGUE_OK;
}

/* --- K and V --- */

static uint64_t round_rows(uint64_t rows) { return (rows + ROWS_STEP - 1) / ROWS_STEP * ROWS_STEP; }
static uint64_t capacity_for(uint64_t rows) { return round_rows(rows < MIN_ROWS ? MIN_ROWS : rows); }

/* The shared block is freed with the last slot that uses it. */
void cu_slot_free(struct sg_state *st, struct cu_slot *s)
{
    struct sg_unit *u = st->core.base.unit;
    if (!s->shared_block) {
        cu_pool_free(u, &s->memory, (size_t)s->capacity * s->core.row_bytes);
        return;
    }
    s->shared_block = 0;
    s->memory = 0;
    if (!--st->shared_block.slots) cu_pool_free(u, &st->shared_block.memory, st->shared_block.bytes);
}

/* Doubles the capacity, so that a long generation copies each row a constant number of times; when there is no memory for that,
 * allocates what is needed. The copy is complete before the old memory goes to the pool. */
segue_status cu_slot_grow(struct sg_state *st, struct cu_slot *s, uint64_t rows, segue_error *err)
{
    struct sg_unit *u = st->core.base.unit;
    if (!rows) rows = 1;
    if (rows <= s->capacity) return SEGUE_OK;
    uint64_t capacity = capacity_for(s->capacity * 2 > rows ? s->capacity * 2 : rows);
    size_t bytes, held = s->core.first < s->core.end ? s->core.end * s->core.row_bytes : 0;
    cu_ptr larger;
    SG_TRY(sg_mul(capacity, s->core.row_bytes, &bytes, "state slot", err));
    segue_status status = cu_pool_alloc(u, bytes, &larger, err);
    if (status == SEGUE_EMEMORY && capacity > rows) {
        capacity = round_rows(rows);
        bytes = (size_t)capacity * s->core.row_bytes;
        status = cu_pool_alloc(u, bytes, &larger, err);
    }
    if (status == SEGUE_OK) status = cu_state_copy(u, larger, s->memory, held, err);
    if (status == SEGUE_OK && s->memory) status = cu_state_wait_copies(u, err);
    if (status != SEGUE_OK) {
        cu_mem_free(u, &larger);
        return status;
    }
    cu_slot_free(st, s);
    s->memory = larger;
    s->capacity = capacity;
    return SEGUE_OK;
}

segue_status cu_state_grow(struct sg_state *st, uint64_t rows, segue_error *err)
{
    for (uint32_t i = 0; i < st->core.slots_n; i++)
        if (cu_is_kv(cu_slot_at(st, i))) SG_TRY(cu_slot_grow(st, cu_slot_at(st, i), rows, err));
    return SEGUE_OK;
}

/* Bytes of a K or V slot in the shared block. */
static size_t bytes_in_block(const struct cu_slot *s, uint64_t capacity)
{
    return cu_is_kv(s) ? ((size_t)capacity * s->core.row_bytes + 255) / 256 * 256 : 0;
}

/* The slots of a small state are in one block, at equal distances when their rows are equal: transfers of rows of several slots
 * then become one 2D copy (copy.c). A larger state has a block per slot, so that growing does not need twice the memory of all
 * slots at once. A slot leaves the shared block when it grows. */
segue_status cu_state_alloc_rows(struct sg_state *st, uint64_t rows, segue_error *err)
{
    uint64_t capacity = capacity_for(rows), row = 0;
    for (uint32_t i = 0; i < st->core.slots_n; i++) row += cu_slot_at(st, i)->core.row_bytes;
    if (!row) return SEGUE_OK;
    if (capacity > ((uint64_t)SHARED_BLOCK_MB << 20) / row) return cu_state_grow(st, rows, err);
    for (uint32_t i = 0; i < st->core.slots_n; i++) st->shared_block.bytes += bytes_in_block(cu_slot_at(st, i), capacity);
    SG_TRY(cu_pool_alloc(st->core.base.unit, st->shared_block.bytes, &st->shared_block.memory, err));
    cu_ptr at = st->shared_block.memory;
    for (uint32_t i = 0; i < st->core.slots_n; i++) {
        struct cu_slot *s = cu_slot_at(st, i);
        if (!cu_is_kv(s)) continue;
        s->memory = at;
        s->capacity = capacity;
        s->shared_block = 1;
        st->shared_block.slots++;
        at += bytes_in_block(s, capacity);
    }
    return SEGUE_OK;
}
