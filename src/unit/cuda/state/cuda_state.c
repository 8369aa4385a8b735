/* cuda_state.c: creates, forks, marks, cuts and frees states, and reserves them for runs. A fork copies everything on the GPU,
 * so two states never share memory. Fixed slots are changed in place: a pass is either issued completely or not at all. K and
 * V rows are not evicted before the state is freed. SPDX-License-Identifier: MIT */
#include <string.h>

#include "unit/cuda/compile/fits.h"
#include "unit/cuda/state/state.h"

/* A step ahead only reads what is held, but what changes or frees memory has to wait for it; it is dropped
 * then. */
segue_status cu_state_settle(struct sg_state *s, segue_error *err)
{
    struct sg_unit *u = s->base.unit;
    s->version++;
    segue_status status = s->clearing ? cu_state_wait_copies(u, err) : SEGUE_OK;
    if (status == SEGUE_OK) s->clearing = 0;
    if (!s->gpu_pending) return status;
    cu_enter(u);
    cu_result r = u->d.ctx_sync();
    cu_leave(u);
    s->gpu_pending = 0;
    return status == SEGUE_OK ? cu_check(&u->d, r, "wait for a step", err) : status;
}

static segue_status state_fill(struct sg_state *st, const struct sg_slot *slots, uint32_t n, const struct sg_state_opts *o,
                               segue_error *err)
{
    uint64_t rows = o ? o->rows : 0;
    int bare = o && o->bare;
    st->slots = sg_alloc(n * sizeof *st->slots);
    st->marks = sg_alloc(st->marks_cap * sizeof *st->marks);
    if (!st->slots || !st->marks) return sg_no_memory("state", n * sizeof *st->slots, err);
    st->slots_n = n;
    for (uint32_t i = 0; i < n; i++) cu_slot_init(st, &st->slots[i], &slots[i]);
    if (bare) return SEGUE_OK; /* it gets another one's memory, or its own when rows come */
    SG_TRY(cu_state_alloc_rows(st, rows, err));
    SG_TRY(cu_state_alloc_fixed(st, err));
    if (o && o->filled) return SEGUE_OK;
    SG_TRY(cu_state_clear(st->base.unit, st->fixed, st->fixed_bytes, err));
    st->clearing = st->fixed_bytes > 0; /* who reads them first waits for it: a run, or what comes behind on that stream */
    return SEGUE_OK;
}

segue_status cu_state_new(struct sg_unit *u, const struct sg_slot *slots, uint32_t slots_n, const struct sg_state_opts *o,
                          struct sg_state **out, segue_error *err)
{
    enum sg_storage storage = o ? o->kv : SG_F16;
    if (storage != SG_F32 && storage != SG_F16 && storage != SG_BF16 && storage != SG_Q8_0)
        return sg_fail(err, SEGUE_EUNSUPPORTED, "new state: cuda: K and V as %s; take f32, f16, bf16 or q8",
                       (unsigned)storage < SG_STORAGE_N ? sg_storage_info(storage)->name : "an unknown storage");
    SG_TRY(cu_state_fits(u, slots, slots_n, storage, o ? o->rows : 0, 0, err));
    struct sg_state *st = sg_alloc(sizeof *st);
    if (!st) return sg_no_memory("state", sizeof *st, err);
    st->base = (struct sg_state_base){u->base.ops, u};
    st->storage = storage;
    st->id = atomic_fetch_add(&u->state_ids, 1u) + 1;
    st->marks_cap = o && o->undo ? o->undo : CU_MARKS;
    pthread_mutex_init(&st->lock, NULL);
    pthread_cond_init(&st->changed, NULL);
    segue_status status = state_fill(st, slots, slots_n, o, err);
    if (status != SEGUE_OK) {
        cu_state_free(st);
        return status == SEGUE_EMEMORY ? cu_state_fits(u, slots, slots_n, storage, o ? o->rows : 0, 1, err) : status;
    }
    *out = st;
    return SEGUE_OK;
}

void cu_state_trim_marks(struct sg_state *s, uint32_t n)
{
    while (s->marks_n > n) cu_pool_free(s->base.unit, &s->marks[--s->marks_n].copy, s->fixed_bytes);
}

void cu_state_drop_marks(struct sg_state *s) { cu_state_trim_marks(s, 0); }

void cu_state_free(struct sg_state *s)
{
    if (!s) return;
    (void)cu_state_settle(s, NULL);
    (void)cu_copies_wait(s->base.unit, NULL);
    cu_logits_forget(s);
    cu_pool_free(s->base.unit, &s->logits_copy, s->logits_bytes);
    cu_state_trim_marks(s, 0);
    for (uint32_t i = 0; i < s->slots_n; i++) {
        const struct cu_slot *slot = &s->slots[i];
        if (slot->ready_event) {
            cu_enter(s->base.unit);
            s->base.unit->d.event_free(slot->ready_event);
            cu_leave(s->base.unit);
        }
        if (cu_is_kv(slot)) cu_slot_free(s, &s->slots[i]);
    }
    cu_pool_free(s->base.unit, &s->fixed, s->fixed_bytes);
    cu_pool_free(s->base.unit, &s->fixed_alt, s->fixed_bytes);
    sg_free(s->slots);
    sg_free(s->marks);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    sg_free(s);
}

segue_status cu_state_fork(struct sg_state *s, struct sg_state **out, segue_error *err)
{
    struct sg_unit *u = s->base.unit;
    struct sg_state_opts o = {.kv = s->storage, .rows = s->rows, .undo = s->marks_cap, .filled = 1};
    struct sg_state *copy = NULL;
    struct sg_slot *slots = sg_alloc(s->slots_n * sizeof *slots);
    if (!slots) return sg_no_memory("state", s->slots_n * sizeof *slots, err);
    for (uint32_t i = 0; i < s->slots_n; i++) slots[i] = s->slots[i].slot;
    segue_status status = cu_state_new(u, slots, s->slots_n, &o, &copy, err);
    sg_free(slots);
    for (uint32_t i = 0; status == SEGUE_OK && i < s->slots_n; i++) {
        const struct cu_slot *from = &s->slots[i];
        struct cu_slot *to = &copy->slots[i];
        to->has_data = from->has_data;
        to->first = from->first;
        to->end = from->end;
        status = cu_is_kv(to) ? cu_slot_grow(copy, to, from->end, err) : SEGUE_OK;
        if (status == SEGUE_OK && cu_is_kv(to))
            status = cu_state_copy(u, to->memory, from->memory, from->end * from->row_bytes, err);
    }
    if (status == SEGUE_OK) status = cu_state_copy(u, copy->fixed, s->fixed, s->fixed_bytes, err);
    if (status == SEGUE_OK) status = cu_state_wait_copies(u, err);
    if (status != SEGUE_OK) {
        cu_state_free(copy);
        return status;
    }
    copy->rows = s->rows;
    *out = copy;
    return SEGUE_OK;
}

/* All fixed slots <-> one piece of memory. */
static segue_status copy_fixed(struct sg_state *s, cu_ptr copy, int restore, segue_error *err)
{
    SG_TRY(cu_state_copy(s->base.unit, restore ? s->fixed : copy, restore ? copy : s->fixed, s->fixed_bytes, err));
    return cu_state_wait_copies(s->base.unit, err);
}

segue_status cu_state_mark(struct sg_state *s, uint32_t *mark, segue_error *err)
{
    cu_ptr copy = 0;
    if (s->marks_n == s->marks_cap)
        return sg_fail(err, SEGUE_ELIMIT, "mark state: cuda: %u marks are alive; drop one, or open the state with more",
                       s->marks_n);
    if (s->fixed_bytes) SG_TRY(cu_pool_alloc(s->base.unit, s->fixed_bytes, &copy, err));
    segue_status status = copy_fixed(s, copy, 0, err);
    if (status != SEGUE_OK) {
        cu_mem_free(s->base.unit, &copy);
        return status;
    }
    s->marks[s->marks_n++] = (struct cu_mark){.number = s->marks_next, .rows = s->rows, .copy = copy};
    *mark = s->marks_next++;
    return SEGUE_OK;
}

static uint32_t mark_find(const struct sg_state *s, uint32_t number)
{
    uint32_t i = 0;
    while (i < s->marks_n && s->marks[i].number != number) i++;
    return i;
}

/* Keep the rows before `end`. */
void cu_state_truncate(struct sg_state *s, uint64_t end)
{
    for (uint32_t i = 0; i < s->slots_n; i++) {
        struct cu_slot *slot = &s->slots[i];
        if (!cu_is_kv(slot)) continue;
        slot->end = end;
        if (slot->first > end) slot->first = end;
    }
    s->rows = end;
}

segue_status cu_state_back(struct sg_state *s, uint32_t mark, segue_error *err)
{
    uint32_t at = mark_find(s, mark);
    if (at == s->marks_n) return sg_fail(err, SEGUE_EARG, "go back: cuda: mark %u is not alive; use a newer one", mark);
    SG_TRY(cu_state_settle(s, err));
    cu_state_trim_marks(s, at + 1);
    SG_TRY(copy_fixed(s, s->marks[at].copy, 1, err));
    cu_state_truncate(s, s->marks[at].rows);
    return SEGUE_OK;
}

void cu_state_drop(struct sg_state *s, uint32_t mark)
{
    uint32_t at = mark_find(s, mark);
    if (at == s->marks_n) return;
    for (uint32_t i = 0; i <= at; i++) cu_pool_free(s->base.unit, &s->marks[i].copy, s->fixed_bytes);
    s->marks_n -= at + 1;
    memmove(s->marks, s->marks + at + 1, s->marks_n * sizeof *s->marks);
}

static segue_status check_cut(const struct sg_state *s, uint64_t rows, segue_error *err)
{
    for (uint32_t i = 0; i < s->slots_n; i++) {
        const struct cu_slot *slot = &s->slots[i];
        if (slot->fixed_bytes)
            return sg_fail(err, SEGUE_EUNSUPPORTED,
                           "cut state: cuda: layer %u: its recurrent memory cannot be cut back; go back to a "
                           "mark, or replay",
                           slot->slot.layer);
        if (cu_is_kv(slot) && slot->first > sg_slot_first_needed(&slot->slot, rows))
            return sg_fail(err, SEGUE_EUNSUPPORTED, "cut state: cuda: layer %u: its window starts at row %llu; replay",
                           slot->slot.layer, (unsigned long long)slot->first);
    }
    return SEGUE_OK;
}

segue_status cu_state_cut(struct sg_state *s, uint64_t rows, segue_error *err)
{
    uint32_t keep = 0;
    if (rows > s->rows)
        return sg_fail(err, SEGUE_EARG, "cut state: cuda: to %llu rows of %llu; give fewer", (unsigned long long)rows,
                       (unsigned long long)s->rows);
    if (rows && rows < s->rows) SG_TRY(check_cut(s, rows, err));
    SG_TRY(cu_state_settle(s, err));
    while (keep < s->marks_n && s->marks[keep].rows <= rows) keep++;
    cu_state_trim_marks(s, keep);
    cu_state_truncate(s, rows);
    for (uint32_t i = 0; i < s->slots_n && !rows; i++) {
        s->slots[i].first = 0;
        s->slots[i].has_data = 0;
    }
    if (!rows) SG_TRY(cu_state_clear(s->base.unit, s->fixed, s->fixed_bytes, err));
    return cu_state_wait_copies(s->base.unit, err);
}

void cu_state_held(const struct sg_state *s, uint32_t slot, uint64_t *first, uint64_t *rows)
{
    *rows = s->rows;
    *first = slot < s->slots_n && cu_is_kv(&s->slots[slot]) ? s->slots[slot].first : 0;
}

uint64_t cu_state_bytes(const struct sg_state *s)
{
    uint64_t bytes = (uint64_t)s->fixed_bytes * (2 + s->marks_n);
    for (uint32_t i = 0; i < s->slots_n; i++) bytes += s->slots[i].capacity * s->slots[i].row_bytes;
    return bytes;
}

segue_status cu_state_flush(struct sg_state *s, segue_error *err) { return cu_copies_wait(s->base.unit, err); }

segue_status cu_state_acquire(struct sg_state *s, uint64_t rows, segue_error *err)
{
    pthread_mutex_lock(&s->lock);
    int busy = s->busy;
    s->busy = 1;
    pthread_mutex_unlock(&s->lock);
    if (busy) return sg_fail(err, SEGUE_EARG, "run: cuda: two spans or runs share a state; fork it");
    segue_status status = SEGUE_OK;
    for (uint32_t i = 0; i < s->slots_n && status == SEGUE_OK; i++)
        if (cu_is_kv(&s->slots[i]) && s->rows + rows > s->slots[i].capacity) status = cu_state_settle(s, err);
    for (uint32_t i = 0; i < s->slots_n && status == SEGUE_OK; i++)
        if (cu_is_kv(&s->slots[i])) status = cu_slot_grow(s, &s->slots[i], s->rows + rows, err);
    if (status == SEGUE_EMEMORY)
        sg_fail(err, status,
                "run: unit cuda: K and V of %llu rows do not fit into the GPU's memory; a context of %llu rows does, or "
                "take K and V as q8",
                (unsigned long long)(s->rows + rows), (unsigned long long)s->rows);
    if (status != SEGUE_OK) cu_state_release(s);
    return status;
}

void cu_state_advance(struct sg_state *s, uint64_t rows)
{
    pthread_mutex_lock(&s->lock);
    s->rows += rows;
    for (uint32_t i = 0; i < s->slots_n; i++) {
        if (cu_is_kv(&s->slots[i]))
            s->slots[i].end = s->rows;
        else
            s->slots[i].has_data = 1;
    }
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

void cu_state_release(struct sg_state *s)
{
    pthread_mutex_lock(&s->lock);
    s->busy = 0;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}
