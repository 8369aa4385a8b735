/* cpu_state.c: the memory of a sequence on the cpu unit. K and V are stored in reference-counted blocks
 * of SG_CHUNK rows (layout: kv_layout.c, memory: kv_pool.c); forks share blocks until one of them writes.
 * Recurrent slots are fp32 arrays and are copied by a fork. A pass writes rows at and beyond core.tokens,
 * which no reader uses before the commit; recurrent slots are restored from undo_copy when a pass is
 * canceled. The canonical layout (docs/STATE.md) is produced and accepted by get and put only.
 * Everything else about states is in unit/state_core.c.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "unit/cpu/cpu_types.h"

static const uint64_t RESERVE_BYTES = (uint64_t)512
                                      << 20; /* upper limit of what a new state allocates in advance; it grows later */

/* The same alignment as in other units, so that adjacent slots are copied in one piece. */
enum { RECURRENT_ALIGN = 256 };

/* Bytes of a slot in the array of all recurrent slots. The core has checked that the sum stays below SIZE_MAX / 2. */
static size_t recurrent_step(const struct sg_cpu_slot *m)
{
    return (m->core.fixed_bytes + RECURRENT_ALIGN - 1) / RECURRENT_ALIGN * RECURRENT_ALIGN;
}

/* Allocates all recurrent slots as one array, from the host allocator if possible; zeroed unless the
 * caller fills it. */
static segue_status recurrent_alloc(struct sg_cpu_state *s, int filled, segue_error *err)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < s->core.slots_n; i++) bytes += recurrent_step(sg_cpu_slot_at(s, i));
    if (!bytes) return SEGUE_OK;
    const struct sg_host_memory *host = s->core.host;
    s->fixed = host ? host->take(host->owner, bytes) : NULL;
    if (s->fixed) s->fixed_host = host;
    else if (!(s->fixed = sg_alloc_aligned(bytes))) return sg_no_memory("recurrent slots of a cpu state", bytes, err);
    /* only the process allocator returns zeroed memory */
    if (s->fixed_host && !filled) memset(s->fixed, 0, bytes);
    char *at = s->fixed;
    for (uint32_t i = 0; i < s->core.slots_n; i++) {
        struct sg_cpu_slot *m = sg_cpu_slot_at(s, i);
        if (m->core.fixed_bytes) m->fixed = (float *)(void *)at;
        at += recurrent_step(m);
    }
    return SEGUE_OK;
}

static void recurrent_free(struct sg_cpu_state *s)
{
    if (s->fixed_host) s->fixed_host->leave(s->fixed_host->owner, s->fixed);
    else sg_free_aligned(s->fixed);
}

/* Sizes of a K or V slot. sg_mul detects overflow. */
static segue_status kv_slot_init(struct sg_cpu_state *s, struct sg_cpu_slot *m, segue_error *err)
{
    const struct sg_slot *slot = &m->core.slot;
    size_t n, blocks = (slot->width + SG_KV_Q8_BLOCK - 1) / SG_KV_Q8_BLOCK;
    SG_TRY(sg_mul(slot->width, SG_CHUNK, &n, "state slot", err));
    /* q8: one byte per number, then one f16 scale per SG_KV_Q8_BLOCK columns of each row */
    m->head_bytes = s->core.storage == SG_F32 ? 4 * n : s->core.storage == SG_Q8_0 ? n + blocks * 2 * SG_CHUNK : 2 * n;
    /* each head starts on a cache line */
    m->head_bytes = (m->head_bytes + 63) / 64 * 64;
    return sg_mul(m->head_bytes, slot->heads, &m->block_bytes, "state slot", err);
}

/* Makes the tables for the expected tokens, limited to RESERVE_BYTES, and, of pinned memory, the blocks. Others are
 * allocated when they are needed: most answers end before the expected tokens, and their states, in the prefix store, would
 * keep the rest. */
static segue_status reserve_at_start(struct sg_cpu_state *s, uint64_t tokens, segue_error *err)
{
    uint64_t each = 0, count = (tokens + SG_CHUNK - 1) / SG_CHUNK;
    for (uint32_t i = 0; i < s->core.slots_n; i++) each += sg_cpu_slot_at(s, i)->block_bytes;
    if (!each || !count) return SEGUE_OK;
    /* as many blocks as fit the limit */
    if (count > RESERVE_BYTES / each) count = RESERVE_BYTES / each;
    if (!count) return SEGUE_OK;
    s->capacity = (uint32_t)count;
    for (uint32_t i = 0; i < s->core.slots_n; i++) {
        struct sg_cpu_slot *m = sg_cpu_slot_at(s, i);
        if (sg_cpu_is_kv(m)) SG_TRY(sg_block_table_grow(&m->table, count, &s->core.lock, err));
    }
    return sg_host_memory_pinned(s->core.host) ? sg_kv_pool_add(s, (uint32_t)count, err) : SEGUE_OK;
}

/* --- marks, cuts, forks: called by the core --- */

/* All recurrent slots from or to one undo buffer. */
static void recurrent_copy(struct sg_cpu_state *s, float *buffer, int restore)
{
    for (uint32_t i = 0; i < s->core.slots_n; i++) {
        struct sg_cpu_slot *m = sg_cpu_slot_at(s, i);
        size_t bytes = m->core.fixed_bytes;
        if (bytes) memcpy(restore ? m->fixed : buffer, restore ? buffer : m->fixed, bytes);
        buffer += bytes / sizeof *buffer;
    }
}

/* The buffer is allocated once and used again by the next mark: a mark per token allocates nothing. */
static segue_status undo_save(struct sg_state *state, const struct sg_undo_mark *mark, segue_error *err)
{
    struct sg_cpu_state *s = sg_cpu_state_of(state);
    float **buffer = &s->undo[mark->buffer];
    if (!s->core.fixed_bytes) return SEGUE_OK;
    if (!*buffer && !(*buffer = sg_alloc_aligned(s->core.fixed_bytes)))
        return sg_no_memory("mark of a cpu state", s->core.fixed_bytes, err);
    recurrent_copy(s, *buffer, 0);
    return SEGUE_OK;
}

static segue_status undo_restore(struct sg_state *state, const struct sg_undo_mark *mark, segue_error *err)
{
    struct sg_cpu_state *s = sg_cpu_state_of(state);
    (void)err;
    if (s->core.fixed_bytes) recurrent_copy(s, s->undo[mark->buffer], 1);
    return SEGUE_OK;
}

static segue_status clear(struct sg_state *state, segue_error *err)
{
    struct sg_cpu_state *s = sg_cpu_state_of(state);
    (void)err;
    for (uint32_t i = 0; i < s->core.slots_n; i++) {
        struct sg_cpu_slot *m = sg_cpu_slot_at(s, i);
        if (m->core.fixed_bytes) memset(m->fixed, 0, m->core.fixed_bytes);
    }
    return SEGUE_OK;
}

static void trim(struct sg_state *state)
{
    struct sg_cpu_state *s = sg_cpu_state_of(state);
    for (uint32_t i = 0; i < s->core.slots_n; i++)
        if (sg_cpu_is_kv(sg_cpu_slot_at(s, i))) sg_kv_blocks_trim(sg_cpu_slot_at(s, i));
}

/* Shares the blocks of K and V and copies the recurrent slots. */
static segue_status copy(struct sg_state *to, struct sg_state *from, segue_error *err)
{
    const struct sg_cpu_state *a = sg_cpu_state_of(from);
    struct sg_cpu_state *b = sg_cpu_state_of(to);
    b->capacity = a->capacity;
    for (uint32_t i = 0; i < a->core.slots_n; i++) {
        const struct sg_cpu_slot *m = sg_cpu_slot_at(a, i);
        if (m->core.fixed_bytes) memcpy(sg_cpu_slot_at(b, i)->fixed, m->fixed, m->core.fixed_bytes);
        SG_TRY(sg_block_table_share(&sg_cpu_slot_at(b, i)->table, &m->table, err));
    }
    return SEGUE_OK;
}

static segue_status write_slot(struct sg_state *state, uint32_t slot, uint64_t from, uint64_t to, enum sg_storage storage,
                               const void *in, segue_error *err)
{
    struct sg_cpu_state *s = sg_cpu_state_of(state);
    struct sg_cpu_slot *m = sg_cpu_slot_at(s, slot);
    if (!sg_cpu_is_kv(m)) {
        memcpy(m->fixed, in, m->core.fixed_bytes);
        return SEGUE_OK;
    }
    for (uint64_t b = from / SG_CHUNK; from < to && b <= (to - 1) / SG_CHUNK; b++) SG_TRY(sg_kv_block_private(s, m, b, err));
    /* drops const for the shared copy function */
    union { const void *in; uint8_t *row; } caller = {in};   /* only read from when storing */
    sg_kv_rows_copy(s, m, from, to, storage, caller.row, 1);
    return SEGUE_OK;
}

/* Undo buffers stay allocated, so there is no undo_release; no device work is pending, so there is no settle or flush. */
static const struct sg_state_core_ops core_ops = {
    .unit = "cpu",
    .block_tokens = SG_CHUNK,
    .slot_size = sizeof(struct sg_cpu_slot),
    .fork_shares = 1,
    .undo_save = undo_save,
    .undo_restore = undo_restore,
    .clear = clear,
    .trim = trim,
    .write = write_slot,
    .copy = copy,
};

/* --- new and free --- */

/* A bare state has no memory yet and is filled by a transfer. */
static segue_status state_init(struct sg_cpu_state *s, struct sg_unit *u, const struct sg_slot *slots, uint32_t n,
                               const struct sg_state_opts *o, segue_error *err)
{
    pthread_mutex_init(&s->wait_lock, NULL);
    pthread_cond_init(&s->moved, NULL);
    SG_TRY(sg_state_core_init(&s->core, &core_ops, u, slots, n, o, SG_F16, err));
    for (uint32_t i = 0; i < n; i++)
        if (sg_cpu_is_kv(sg_cpu_slot_at(s, i))) SG_TRY(kv_slot_init(s, sg_cpu_slot_at(s, i), err));
    s->undo = sg_alloc(s->core.marks_cap * sizeof *s->undo);
    if (!s->undo) return sg_no_memory("cpu state", s->core.marks_cap * sizeof *s->undo, err);
    if (o && o->bare) return SEGUE_OK;
    SG_TRY(recurrent_alloc(s, o && o->filled, err));
    return reserve_at_start(s, o ? o->rows : 0, err);
}

/* EUNSUPPORTED: a storage or head width that the kernels cannot handle. */
segue_status sg_cpu_state_new(struct sg_unit *u, const struct sg_slot *slots, uint32_t n,
                              const struct sg_state_opts *o, struct sg_state **out, segue_error *err)
{
    for (uint32_t i = 0; i < n; i++)
        if (sg_slot_grows(&slots[i]) && slots[i].width > SG_HEAD_MAX)
            return sg_fail(err, SEGUE_EUNSUPPORTED,
                           "new state: cpu: layer %u: head width %u exceeds the maximum of %d; use another unit", slots[i].layer,
                           slots[i].width, SG_HEAD_MAX);
    struct sg_cpu_state *s = sg_alloc(sizeof *s);
    if (!s) return sg_no_memory("cpu state", sizeof *s, err);
    segue_status status = state_init(s, u, slots, n, o, err);
    if (status != SEGUE_OK) {
        sg_cpu_state_free((struct sg_state *)(void *)s);
        return status;
    }
    *out = (struct sg_state *)(void *)s;
    return SEGUE_OK;
}

void sg_cpu_state_free(struct sg_state *state)
{
    struct sg_cpu_state *s = sg_cpu_state_of(state);
    if (!s) return;
    for (uint32_t i = 0; i < s->core.slots_n; i++) {
        sg_kv_blocks_free(sg_cpu_slot_at(s, i));
        sg_free_aligned(sg_cpu_slot_at(s, i)->undo_copy);
    }
    recurrent_free(s);
    for (uint32_t i = 0; s->undo && i < s->core.marks_cap; i++) sg_free_aligned(s->undo[i]);
    sg_free(s->undo);
    sg_state_core_free(&s->core);
    pthread_mutex_destroy(&s->wait_lock);
    pthread_cond_destroy(&s->moved);
    sg_free(s);
}

/* Contents only, as other units count them: a scheduler admits requests by the sizes of their slots. A shared block counts with
 * its share. */
uint64_t sg_cpu_state_bytes(const struct sg_state *state)
{
    const struct sg_cpu_state *s = sg_cpu_state_of_const(state);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < s->core.slots_n; i++) {
        const struct sg_cpu_slot *m = sg_cpu_slot_at(s, i);
        bytes += m->core.fixed_bytes * ((m->undo_copy ? 2u : 1u) + s->core.marks_n);
        bytes += sg_block_table_bytes(&m->table, m->block_bytes);
    }
    return bytes;
}

/* --- for runs --- */

segue_status sg_cpu_state_reserve(struct sg_cpu_state *s, uint64_t more, int keep_before, segue_error *err)
{
    const uint64_t tokens = s->core.tokens;
    for (uint32_t i = 0; i < s->core.slots_n; i++) {
        struct sg_cpu_slot *m = sg_cpu_slot_at(s, i);
        const size_t bytes = m->core.fixed_bytes;
        if (sg_cpu_is_kv(m)) {
            /* the last block may be partly filled and shared with a fork */
            for (uint64_t b = tokens / SG_CHUNK; b <= (tokens + more - 1) / SG_CHUNK; b++)
                SG_TRY(sg_kv_block_private_zeroed(s, m, b, err));
        } else if (keep_before) {
            if (!m->undo_copy && !(m->undo_copy = sg_alloc_aligned(bytes)))
                return sg_no_memory("recurrent slot of a cpu state", bytes, err);
            memcpy(m->undo_copy, m->fixed, bytes);
        }
    }
    return SEGUE_OK;
}

void sg_cpu_state_pass_set(struct sg_cpu_state *s, const uint32_t *slot_stage, uint64_t tokens)
{
    pthread_mutex_lock(&s->core.lock);
    s->slot_stage = slot_stage;
    s->tokens_pending = tokens;
    atomic_store(&s->stage, 0u);
    pthread_mutex_unlock(&s->core.lock);
}

void sg_cpu_state_commit(struct sg_cpu_state *s, uint64_t tokens)
{
    pthread_mutex_lock(&s->core.lock);
    s->slot_stage = NULL;
    sg_state_core_advance(&s->core, tokens);
    pthread_mutex_unlock(&s->core.lock);
    sg_cpu_state_notify(s);
}

/* Rows beyond core.tokens need no undo: they were never committed. */
void sg_cpu_state_undo(struct sg_cpu_state *s)
{
    sg_cpu_state_pass_set(s, NULL, 0);
    for (uint32_t i = 0; i < s->core.slots_n; i++) {
        struct sg_cpu_slot *m = sg_cpu_slot_at(s, i);
        if (m->undo_copy) memcpy(m->fixed, m->undo_copy, m->core.fixed_bytes);
    }
}

/* --- get --- */

/* Under the lock: end of what can be read of a slot now. During a pass this includes rows whose stage
 * is complete. A recurrent slot is readable completely (UINT64_MAX) or, until the pass has written it,
 * not at all (0). */
static uint64_t readable_end(const struct sg_cpu_state *s, uint32_t slot)
{
    const struct sg_cpu_slot *m = sg_cpu_slot_at(s, slot);
    /* the pass is past the stage that writes this slot */
    int written = s->core.busy && s->slot_stage && atomic_load(&s->stage) > s->slot_stage[slot];
    if (sg_cpu_is_kv(m)) return written ? s->core.tokens + s->tokens_pending : m->core.end;
    return written || !s->core.busy ? UINT64_MAX : 0;
}

/* Waits until a slot can be read up to `want`, or no run appends to the state, and returns the end of what can be read.
 *
 * The reader registers in `waiters` before it looks, and a writer publishes before it loads `waiters`, both with sequential
 * consistency: either the reader sees the new state or the writer sees the reader. `progress` closes the gap between
 * looking and sleeping. */
static uint64_t slot_wait(struct sg_cpu_state *s, uint32_t slot, uint64_t want)
{
    uint64_t end;
    atomic_fetch_add(&s->waiters, 1u);
    for (;;) {
        pthread_mutex_lock(&s->wait_lock);
        const uint32_t seen = s->progress;
        pthread_mutex_unlock(&s->wait_lock);
        pthread_mutex_lock(&s->core.lock);
        end = readable_end(s, slot);
        const int done = !s->core.busy || end >= want;
        pthread_mutex_unlock(&s->core.lock);
        if (done) break;
        pthread_mutex_lock(&s->wait_lock);
        while (s->progress == seen) pthread_cond_wait(&s->moved, &s->wait_lock);
        pthread_mutex_unlock(&s->wait_lock);
    }
    atomic_fetch_sub(&s->waiters, 1u);
    return end;
}

void sg_cpu_state_notify(struct sg_cpu_state *s)
{
    if (!atomic_load(&s->waiters)) return;
    pthread_mutex_lock(&s->wait_lock);
    s->progress++;
    pthread_cond_broadcast(&s->moved);
    pthread_mutex_unlock(&s->wait_lock);
}

/* Rows or recurrent memory in canonical form; waits for rows that a running pass writes. */
segue_status sg_cpu_state_get(struct sg_state *state, uint32_t slot, uint64_t from, uint64_t to,
                              enum sg_storage storage, void *out, segue_error *err)
{
    struct sg_cpu_state *s = sg_cpu_state_of(state);
    struct sg_core_slot *core = NULL;
    SG_TRY(sg_state_core_slot(&s->core, slot, storage, "get", &core, err));
    struct sg_cpu_slot *m = sg_cpu_slot_at(s, slot);
    segue_status status = SEGUE_OK;
    uint64_t end = slot_wait(s, slot, sg_cpu_is_kv(m) ? to : UINT64_MAX);
    pthread_mutex_lock(&s->core.lock);
    if (!sg_cpu_is_kv(m))
        memcpy(out, m->fixed, core->fixed_bytes);
    else if ((status = sg_state_core_check_get(&s->core, slot, from, to, core->first, end, err)) == SEGUE_OK)
        sg_kv_rows_copy(s, m, from, to, storage, out, 0);
    pthread_mutex_unlock(&s->core.lock);
    return status;
}

/* Direct access to a recurrent slot, without a copy. write: the caller fills it, so it counts as
 * filled. */
segue_status sg_cpu_state_at(struct sg_state *state, uint32_t slot, int write, void **out, segue_error *err)
{
    struct sg_cpu_state *s = sg_cpu_state_of(state);
    struct sg_core_slot *core = NULL;
    SG_TRY(sg_state_core_slot(&s->core, slot, SG_F32, write ? "put" : "get", &core, err));
    if (sg_slot_grows(&core->slot))
        return sg_fail(err, SEGUE_EUNSUPPORTED, "map state: cpu: slot %u: K and V are stored in blocks; use get or put", slot);
    if (write) {
        SG_TRY(sg_state_core_check_idle(&s->core, err));
        core->present = 1;
    } else {
        slot_wait(s, slot, UINT64_MAX);
    }
    *out = sg_cpu_slot_at(s, slot)->fixed;
    return SEGUE_OK;
}
