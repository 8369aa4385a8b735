/* slot_memory.c: GPU memory of a state. K and V rows are contiguous per slot, in the storage that was requested; a slot that
 * grows moves to a larger block. All fixed slots are in one block, in fp32. The copies and fills here are asynchronous, in the
 * stream `copies`. SPDX-License-Identifier: MIT */
#include "unit/cuda/state/state.h"

enum { MIN_ROWS = 256, SHARED_BLOCK_MB = 64 };

/* Waits for cu_state_copy and cu_state_clear. */
segue_status cu_state_wait_copies(struct sg_unit *u, segue_error *err)
{
    cu_enter(u);
    cu_result r = u->d.stream_sync(u->copies);
    cu_leave(u);
    return cu_check(&u->d, r, "copy state", err);
}

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

/* Fixed slots lie in one piece, each at a multiple of 256 bytes; so do their other copies. */
void cu_state_set_fixed(struct sg_state *s)
{
    size_t at = 0;
    for (uint32_t i = 0; i < s->slots_n; i++) {
        struct cu_slot *slot = &s->slots[i];
        if (!slot->fixed_bytes) continue;
        slot->memory = s->fixed ? s->fixed + at : 0;
        slot->alt = s->fixed_alt ? s->fixed_alt + at : 0;
        at += (slot->fixed_bytes + 255) / 256 * 256;
    }
}

segue_status cu_state_alloc_alt(struct sg_state *s, segue_error *err)
{
    if (s->fixed_alt || !s->fixed_bytes) return SEGUE_OK;
    SG_TRY(cu_pool_alloc(s->base.unit, s->fixed_bytes, &s->fixed_alt, err));
    cu_state_set_fixed(s);
    return SEGUE_OK;
}

segue_status cu_state_alloc_fixed(struct sg_state *s, segue_error *err)
{
    if (s->fixed || !s->fixed_bytes) return SEGUE_OK;
    SG_TRY(cu_pool_alloc(s->base.unit, s->fixed_bytes, &s->fixed, err));
    cu_state_set_fixed(s);
    return SEGUE_OK;
}

static uint64_t cu_slot_capacity_for(uint64_t rows) { return ((rows < MIN_ROWS ? MIN_ROWS : rows) + 63) / 64 * 64; }

/* A slot's memory is let go; what several slots share, with the last of them. */
void cu_slot_free(struct sg_state *st, struct cu_slot *s)
{
    if (!s->shared_block) {
        cu_pool_free(st->base.unit, &s->memory, (size_t)s->capacity * s->row_bytes);
        return;
    }
    s->shared_block = 0;
    s->memory = 0;
    if (!--st->shared_block.slots) cu_pool_free(st->base.unit, &st->shared_block.memory, st->shared_block.bytes);
}

/* Room for `rows` rows; those held are kept. */
segue_status cu_slot_grow(struct sg_state *st, struct cu_slot *s, uint64_t rows, segue_error *err)
{
    struct sg_unit *u = st->base.unit;
    uint64_t capacity = cu_slot_capacity_for(s->capacity * 2 > rows ? s->capacity * 2 : rows);
    size_t bytes;
    cu_ptr larger;
    if (rows <= s->capacity) return SEGUE_OK;
    SG_TRY(sg_mul(capacity, s->row_bytes, &bytes, "state slot", err));
    segue_status status = cu_pool_alloc(u, bytes, &larger, err);
    if (status == SEGUE_EMEMORY && capacity > rows) { /* not enough memory to double: try exactly what is needed */
        capacity = (rows + 63) / 64 * 64;
        bytes = (size_t)capacity * s->row_bytes;
        status = cu_pool_alloc(u, bytes, &larger, err);
    }
    if (status == SEGUE_OK) status = cu_state_copy(u, larger, s->memory, s->first < s->end ? s->end * s->row_bytes : 0, err);
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

static size_t rows_bytes(const struct cu_slot *s, uint64_t capacity)
{
    return cu_is_kv(s) ? ((size_t)capacity * s->row_bytes + 255) / 256 * 256 : 0;
}

/* Rows of all slots in one piece, so that transfers of several of them are one (pinned.c). What is large takes a piece a slot,
 * which it leaves when it grows. */
segue_status cu_state_alloc_rows(struct sg_state *st, uint64_t rows, segue_error *err)
{
    uint64_t capacity = cu_slot_capacity_for(rows), row = 0;
    segue_status status = SEGUE_OK;
    for (uint32_t i = 0; i < st->slots_n; i++) row += st->slots[i].row_bytes;
    if (!row) return SEGUE_OK;
    if (capacity > ((uint64_t)SHARED_BLOCK_MB << 20) / row) {
        for (uint32_t i = 0; i < st->slots_n && status == SEGUE_OK; i++) status = cu_slot_reserve(st, i, rows, err);
        return status;
    }
    for (uint32_t i = 0; i < st->slots_n; i++) st->shared_block.bytes += rows_bytes(&st->slots[i], capacity);
    SG_TRY(cu_pool_alloc(st->base.unit, st->shared_block.bytes, &st->shared_block.memory, err));
    cu_ptr at = st->shared_block.memory;
    for (uint32_t i = 0; i < st->slots_n; i++) {
        struct cu_slot *s = &st->slots[i];
        if (!cu_is_kv(s)) continue;
        s->memory = at;
        s->capacity = capacity;
        s->shared_block = 1;
        st->shared_block.slots++;
        at += rows_bytes(s, capacity);
    }
    return SEGUE_OK;
}

void cu_slot_init(struct sg_state *st, struct cu_slot *s, const struct sg_slot *slot)
{
    s->slot = *slot;
    s->row_bytes = sg_slot_row_bytes(slot, st->storage);
    s->fixed_bytes = sg_slot_fixed_bytes(slot);
    st->fixed_bytes += (s->fixed_bytes + 255) / 256 * 256;
}

segue_status cu_slot_reserve(struct sg_state *s, uint32_t slot, uint64_t rows, segue_error *err)
{
    struct cu_slot *c = &s->slots[slot];
    return cu_is_kv(c) ? cu_slot_grow(s, c, rows ? rows : 1, err) : SEGUE_OK;
}
