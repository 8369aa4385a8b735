/* slot_memory.c: GPU memory of a state. K and V rows are contiguous per slot, in the state's storage (kv_range.h); a slot that
 * grows, or writes what a fork reads, moves to another range. All fixed slots are in one block, in fp32. The copies and fills
 * here are asynchronous, in the unit's stream `copies`, and therefore in the order of the calls.
 * SPDX-License-Identifier: MIT */
#include "unit/cuda/state/state.h"

/* Initial capacity of a slot in rows; total size of K and V up to which they are in one piece of memory; multiple of all
 * capacities. An allocation takes 65 us, so a piece for each slot would delay a short prompt of 32 layers by 4 ms; a large state
 * would need twice its memory to leave one piece. */
enum { MIN_ROWS = 256, SMALL_STATE_MB = 256, ROWS_STEP = 64 };

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

/* The new range is the slot's memory at once; the old one is kept until the copies are complete. */
static void set_range(struct cu_slot *s, struct cu_kv_range *r)
{
    s->old = s->range;
    s->range = r;
    s->memory = r->base;
    s->capacity = r->bytes / s->core.row_bytes / ROWS_STEP * ROWS_STEP;
    s->writes = 1;
}

void cu_slot_free(struct sg_state *st, struct cu_slot *s)
{
    cu_kv_range_release(st->core.base.unit, s->range);
    s->range = NULL;
    s->memory = s->capacity = 0;
    s->writes = 0;
}

void cu_slot_share(struct cu_slot *to, struct cu_slot *from)
{
    if (!from->range) return;
    cu_kv_range_share(from->range, &from->writes, from->core.end * from->core.row_bytes);
    to->range = from->range;
    to->memory = from->memory;
    to->capacity = from->capacity;
}

int cu_slot_is_own(struct cu_slot *s, uint64_t first, uint64_t rows)
{
    return s->range && rows <= s->capacity && cu_kv_range_may_write(s->range, &s->writes, first * s->core.row_bytes);
}

/* A new range with at least `rows` positions, of which those before `end` have the contents of the old one. */
static segue_status move_slot(struct sg_state *st, struct cu_slot *s, uint64_t rows, segue_error *err)
{
    struct sg_unit *u = st->core.base.unit;
    size_t bytes, held = s->range && s->core.first < s->core.end ? s->core.end * s->core.row_bytes : 0;
    struct cu_kv_range *r = NULL;
    SG_TRY(sg_mul(rows, s->core.row_bytes, &bytes, "state slot", err));
    SG_TRY(cu_kv_range_new(u, bytes, &r, err));
    segue_status status = cu_state_copy(u, r->base, s->memory, held, err);
    set_range(s, r);
    return status;
}

/* Positions of a new range: twice as many when a slot grows, so that a long generation copies each row a constant number of
 * times. A slot that leaves a shared range gets what is needed. */
static uint64_t capacity_of_move(struct cu_slot *s, uint64_t first, uint64_t rows)
{
    int grows = s->range && cu_kv_range_may_write(s->range, &s->writes, first * s->core.row_bytes);
    return capacity_for(grows && s->capacity * 2 > rows ? s->capacity * 2 : rows);
}

/* When there is no memory for that capacity, exactly `rows`. */
static segue_status own_slot(struct sg_state *st, struct cu_slot *s, uint64_t first, uint64_t rows, segue_error *err)
{
    if (!rows) rows = 1;
    if (cu_slot_is_own(s, first, rows)) return SEGUE_OK;
    if (rows < s->core.end) rows = s->core.end; /* a put in the middle */
    uint64_t capacity = capacity_of_move(s, first, rows);
    segue_status status = move_slot(st, s, capacity, err);
    if (status == SEGUE_EMEMORY && capacity > rows) status = move_slot(st, s, round_rows(rows), err);
    return status;
}

/* Copies are complete, also those that were requested for the old ranges, which are then released. After a failed copy nothing is
 * known about them: they are freed when their last user is. */
static segue_status finish_own(struct sg_state *st, segue_status status, segue_error *err)
{
    struct sg_unit *u = st->core.base.unit;
    int any = 0;
    for (uint32_t i = 0; i < st->core.slots_n; i++) any |= cu_slot_at(st, i)->old != NULL;
    if (!any) return status;
    segue_status copied = cu_copies_wait(u, status == SEGUE_OK ? err : NULL);
    if (copied == SEGUE_OK) copied = cu_state_wait_copies(u, status == SEGUE_OK ? err : NULL);
    for (uint32_t i = 0; i < st->core.slots_n; i++) {
        cu_kv_range_release(u, cu_slot_at(st, i)->old);
        cu_slot_at(st, i)->old = NULL;
    }
    return status == SEGUE_OK ? copied : status;
}

segue_status cu_slot_own(struct sg_state *st, struct cu_slot *s, uint64_t first, uint64_t rows, segue_error *err)
{
    return finish_own(st, own_slot(st, s, first, rows, err), err);
}

/* Bytes of a K or V slot in the memory of a small state. */
static size_t bytes_in_memory(const struct cu_slot *s, uint64_t capacity)
{
    return cu_is_kv(s) ? ((size_t)capacity * s->core.row_bytes + 255) / 256 * 256 : 0;
}

/* 1: the slots of a state with this capacity are in one piece of memory. */
static int is_small(const struct sg_state *st, uint64_t capacity)
{
    uint64_t row = 0;
    for (uint32_t i = 0; i < st->core.slots_n; i++) row += cu_slot_at(st, i)->core.row_bytes;
    return row && capacity <= ((uint64_t)SMALL_STATE_MB << 20) / row;
}

/* One piece of memory, with equal distances of slots whose rows are equal: transfers of rows of several slots then become one 2D
 * copy (copy.c). Contents of ranges that the slots have are copied. A slot leaves the memory when it grows. */
static segue_status move_together(struct sg_state *st, uint64_t capacity, segue_error *err)
{
    struct sg_unit *u = st->core.base.unit;
    struct cu_kv_memory *m = NULL;
    size_t bytes = 0, at = 0;
    for (uint32_t i = 0; i < st->core.slots_n; i++) bytes += bytes_in_memory(cu_slot_at(st, i), capacity);
    SG_TRY(cu_kv_memory_new(u, bytes, &m, err));
    segue_status status = SEGUE_OK;
    for (uint32_t i = 0; i < st->core.slots_n && status == SEGUE_OK; i++) {
        struct cu_slot *s = cu_slot_at(st, i);
        struct cu_kv_range *r = NULL;
        size_t held = s->range && s->core.first < s->core.end ? s->core.end * s->core.row_bytes : 0;
        if (!cu_is_kv(s)) continue;
        status = cu_kv_range_in(m, at, (size_t)capacity * s->core.row_bytes, &r, err);
        if (status != SEGUE_OK) break;
        at += bytes_in_memory(s, capacity);
        if (held) status = cu_state_copy(u, r->base, s->memory, held, err);
        set_range(s, r);
    }
    cu_kv_memory_release(u, m);
    return status;
}

/* The slots of a small state stay together when they leave shared memory. In a larger one each slot releases its old range before
 * the next one moves, so that growing does not need twice the memory of all slots at once. */
segue_status cu_state_own(struct sg_state *st, uint64_t first, uint64_t rows, segue_error *err)
{
    segue_status status = SEGUE_OK;
    uint64_t capacity = capacity_for(rows);
    int shared = 0;
    for (uint32_t i = 0; i < st->core.slots_n; i++) {
        struct cu_slot *s = cu_slot_at(st, i);
        if (!cu_is_kv(s)) continue;
        shared |= !s->range || !cu_kv_range_may_write(s->range, &s->writes, first * s->core.row_bytes);
        if (s->core.end > rows) capacity = capacity_for(s->core.end);
    }
    if (shared && is_small(st, capacity)) return finish_own(st, move_together(st, capacity, err), err);
    for (uint32_t i = 0; i < st->core.slots_n && status == SEGUE_OK; i++)
        if (cu_is_kv(cu_slot_at(st, i))) status = cu_slot_own(st, cu_slot_at(st, i), first, rows, err);
    return status;
}

segue_status cu_state_alloc_rows(struct sg_state *st, uint64_t rows, segue_error *err) { return cu_state_own(st, 0, rows, err); }
