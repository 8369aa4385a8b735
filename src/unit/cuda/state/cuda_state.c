/* cuda_state.c: creates and frees states, and completes unit/state_core.h: undo buffers, forks, clearing. A fork shares K and V
 * (kv_range.h) and copies the fixed slots, which are changed in place: a pass is either issued completely or not at all. K and V
 * rows are not evicted before the state is freed, so core.ops->block_tokens is 0.
 * SPDX-License-Identifier: MIT */
#include "unit/cuda/compile/fits.h"
#include "unit/cuda/state/state.h"

/* A lookahead step reads the positions held and writes fixed_alt and rows after `end`. It need not finish before the state is
 * read, but before its memory changes or is freed. The new version number tells the next run not to use the step's result.
 * Waiting for the whole context is enough and is rare. */
segue_status cu_state_settle(struct sg_state *s, segue_error *err)
{
    struct sg_unit *u = s->core.base.unit;
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

/* --- callbacks of the core --- */

/* The fixed slots of the state to or from an undo buffer, complete on return. */
static segue_status copy_fixed(struct sg_state *s, cu_ptr to, cu_ptr from, segue_error *err)
{
    SG_TRY(cu_state_copy(s->core.base.unit, to, from, s->block_bytes, err));
    return cu_state_wait_copies(s->core.base.unit, err);
}

/* On the way out with an error the buffer is freed, not pooled: the copy may still write to it, and cuMemFree waits for that. */
static segue_status undo_save(struct sg_state *s, const struct sg_undo_mark *m, segue_error *err)
{
    struct sg_unit *u = s->core.base.unit;
    if (s->block_bytes) SG_TRY(cu_pool_alloc(u, s->block_bytes, &s->undo[m->buffer], err));
    segue_status status = copy_fixed(s, s->undo[m->buffer], s->fixed, err);
    if (status != SEGUE_OK) cu_mem_free(u, &s->undo[m->buffer]);
    return status;
}

static segue_status undo_restore(struct sg_state *s, const struct sg_undo_mark *m, segue_error *err)
{
    SG_TRY(cu_state_settle(s, err));
    return copy_fixed(s, s->fixed, s->undo[m->buffer], err);
}

static void undo_release(struct sg_state *s, uint32_t buffer)
{
    cu_pool_free(s->core.base.unit, &s->undo[buffer], s->block_bytes);
}

static segue_status clear(struct sg_state *s, segue_error *err)
{
    SG_TRY(cu_state_clear(s->core.base.unit, s->fixed, s->block_bytes, err));
    return cu_state_wait_copies(s->core.base.unit, err);
}

/* Fork: K and V are shared, whatever their length; fixed slots are copied. */
static segue_status copy(struct sg_state *to, struct sg_state *from, segue_error *err)
{
    struct sg_unit *u = from->core.base.unit;
    for (uint32_t i = 0; i < from->core.slots_n; i++)
        if (cu_is_kv(cu_slot_at(from, i))) cu_slot_share(cu_slot_at(to, i), cu_slot_at(from, i));
    SG_TRY(cu_state_copy(u, to->fixed, from->fixed, from->block_bytes, err));
    return cu_state_wait_copies(u, err);
}

static const struct sg_state_core_ops core_ops = {
    .unit = "cuda",
    .slot_size = sizeof(struct cu_slot),
    .fork_shares = 1,
    .undo_save = undo_save,
    .undo_restore = undo_restore,
    .undo_release = undo_release,
    .settle = cu_state_settle,
    .flush = cu_state_flush,
    .clear = clear,
    .write = cu_state_write,
    .copy = copy,
};

/* --- new and free --- */

/* Memory of a new state whose core is initialised. A bare state gets none: it takes over that of another one, or grows when
 * something is written. A state to be filled with 0 rows gets none for K and V: it is a fork. Clearing is asynchronous: the first
 * run waits for it on the GPU, and copies are in the same stream. */
static segue_status alloc_memory(struct sg_state *st, const struct sg_state_opts *o, segue_error *err)
{
    st->undo = sg_alloc(st->core.marks_cap * sizeof *st->undo);
    if (!st->undo) return sg_no_memory("state", st->core.marks_cap * sizeof *st->undo, err);
    for (uint32_t i = 0; i < st->core.slots_n; i++) st->block_bytes += cu_fixed_stride(cu_slot_at(st, i));
    if (o && o->bare) return SEGUE_OK;
    if (!o || o->rows || !o->filled) SG_TRY(cu_state_alloc_rows(st, o ? o->rows : 0, err));
    SG_TRY(cu_state_alloc_fixed(st, err));
    if (o && o->filled) return SEGUE_OK;
    SG_TRY(cu_state_clear(st->core.base.unit, st->fixed, st->block_bytes, err));
    st->clearing = st->block_bytes > 0;
    return SEGUE_OK;
}

/* An allocation may fail although the estimate allowed it. The error then also suggests a context that fits, computed after the
 * partial state was freed. */
segue_status cu_state_new(struct sg_unit *u, const struct sg_slot *slots, uint32_t slots_n, const struct sg_state_opts *o,
                          struct sg_state **out, segue_error *err)
{
    uint64_t rows = o ? o->rows : 0;
    struct sg_state *st = sg_alloc(sizeof *st);
    if (!st) return sg_no_memory("state", sizeof *st, err);
    st->id = atomic_fetch_add(&u->state_ids, 1u) + 1;
    segue_status status = sg_state_core_init(&st->core, &core_ops, u, slots, slots_n, o, SG_F16, err);
    if (status == SEGUE_OK) status = cu_state_fits(u, slots, slots_n, st->core.storage, rows, 0, err);
    int full = 0;
    if (status == SEGUE_OK) {
        status = alloc_memory(st, o, err);
        full = status == SEGUE_EMEMORY;
    }
    if (status != SEGUE_OK) {
        enum sg_storage storage = st->core.storage;
        cu_state_free(st);
        return full ? cu_state_fits(u, slots, slots_n, storage, rows, 1, err) : status;
    }
    *out = st;
    return SEGUE_OK;
}

/* Also frees a state that was only partly created. Memory goes to the pool, where another state may take it at once, so all
 * copies and lookahead steps must be complete. */
void cu_state_free(struct sg_state *s)
{
    if (!s) return;
    struct sg_unit *u = s->core.base.unit;
    (void)cu_state_settle(s, NULL);
    (void)cu_copies_wait(u, NULL);
    cu_logits_forget(s);
    cu_pool_free(u, &s->logits_copy, s->logits_bytes);
    for (uint32_t i = 0; i < s->core.slots_n; i++) {
        struct cu_slot *slot = cu_slot_at(s, i);
        if (slot->ready_event) {
            cu_enter(u);
            u->d.event_free(slot->ready_event);
            cu_leave(u);
        }
        if (cu_is_kv(slot)) cu_slot_free(s, slot);
    }
    cu_pool_free(u, &s->fixed, s->block_bytes);
    cu_pool_free(u, &s->fixed_alt, s->block_bytes);
    sg_state_core_free(&s->core); /* releases the undo buffers of all marks */
    sg_free(s->undo);
    sg_free(s);
}

/* fixed and fixed_alt count always, although fixed_alt is allocated with the first lookahead step: what the state may need. */
uint64_t cu_state_bytes(const struct sg_state *s)
{
    uint64_t bytes = (uint64_t)s->block_bytes * (2 + s->core.marks_n);
    for (uint32_t i = 0; i < s->core.slots_n; i++) bytes += cu_kv_range_bytes(cu_slot_at(s, i)->range);
    return bytes;
}

/* --- for runs --- */

/* New memory means that rows move and old memory is released, so it waits for a lookahead step; otherwise the step may
 * continue. */
segue_status cu_state_reserve(struct sg_state *s, uint64_t rows, segue_error *err)
{
    uint64_t total = s->core.tokens + rows;
    int own = 1;
    for (uint32_t i = 0; i < s->core.slots_n && own; i++)
        own = !cu_is_kv(cu_slot_at(s, i)) || cu_slot_is_own(cu_slot_at(s, i), s->core.tokens, total);
    if (own) return SEGUE_OK;
    segue_status status = cu_state_settle(s, err);
    if (status == SEGUE_OK) status = cu_state_own(s, s->core.tokens, total, err);
    if (status == SEGUE_EMEMORY)
        return sg_fail(err, status, "run: cuda: K and V of %llu tokens do not fit into GPU memory; keep the context at %llu "
                       "tokens, or use K and V as q8", (unsigned long long)total, (unsigned long long)s->core.tokens);
    return status;
}

void cu_state_advance(struct sg_state *s, uint64_t rows)
{
    pthread_mutex_lock(&s->core.lock);
    sg_state_core_advance(&s->core, rows);
    pthread_mutex_unlock(&s->core.lock);
}
