/* cpu_state.c: the memory of a sequence on the cpu unit. K and V are stored in reference-counted blocks
 * of SG_CHUNK rows (layout: kv_layout.c); forks share blocks until one of them writes (copy on write).
 * Recurrent slots are fp32 arrays and are copied by a fork. A pass writes rows at and beyond `rows`,
 * which no reader uses before the commit; recurrent slots are restored from undo_copy when a pass is
 * canceled. The canonical layout (docs/STATE.md) is produced and accepted by get and put only.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "unit/cpu/cpu_types.h"
#include "unit/state_validate.h"

enum { MARKS_DEFAULT = 8 };
static const uint64_t RESERVE_BYTES = (uint64_t)512
                                      << 20; /* upper limit of what a new state allocates in advance; it grows later */

/* The state behind the interface's handle. */
static struct sg_cpu_state *cpu_state(struct sg_state *s) { return (struct sg_cpu_state *)(void *)s; }
static const struct sg_cpu_state *cpu_state_const(const struct sg_state *s)
{
    return (const struct sg_cpu_state *)(const void *)s;
}

/* The same alignment as in other units, so that adjacent slots are copied in one piece. */
enum { RECURRENT_ALIGN = 256 };

/* Allocates all recurrent slots as one array, from the host allocator if possible; zeroed unless the
 * caller fills it. */
static segue_status recurrent_alloc(struct sg_cpu_state *s, int filled, segue_error *err)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < s->slots_n; i++) {
        size_t slot_bytes = s->slots[i].fixed_n * sizeof(float);
        if (slot_bytes > SIZE_MAX / 2 - bytes) return sg_no_memory("recurrent slots of a cpu state", slot_bytes, err);
        bytes += (slot_bytes + RECURRENT_ALIGN - 1) / RECURRENT_ALIGN * RECURRENT_ALIGN;
    }
    if (!bytes) return SEGUE_OK;
    s->fixed = s->host ? s->host->take(s->host->owner, bytes) : NULL;
    if (s->fixed) s->fixed_host = s->host;
    else if (!(s->fixed = sg_alloc_aligned(bytes))) return sg_no_memory("recurrent slots of a cpu state", bytes, err);
    /* only the process allocator returns zeroed memory */
    if (s->fixed_host && !filled) memset(s->fixed, 0, bytes);
    char *at = s->fixed;
    for (uint32_t i = 0; i < s->slots_n; i++) {
        if (s->slots[i].fixed_n) s->slots[i].fixed = (float *)(void *)at;
        at += (s->slots[i].fixed_n * sizeof(float) + RECURRENT_ALIGN - 1) / RECURRENT_ALIGN * RECURRENT_ALIGN;
    }
    return SEGUE_OK;
}

static void recurrent_free(struct sg_cpu_state *s)
{
    if (s->fixed_host) s->fixed_host->leave(s->fixed_host->owner, s->fixed);
    else sg_free_aligned(s->fixed);
}

/* Sizes of one slot. sg_mul detects overflow. */
static segue_status slot_init(struct sg_cpu_state *s, struct sg_cpu_slot *m, const struct sg_slot *slot,
                               segue_error *err)
{
    m->slot = *slot;
    if (sg_cpu_is_kv(m)) {
        size_t n, blocks = (slot->width + SG_KV_Q8_BLOCK - 1) / SG_KV_Q8_BLOCK;
        SG_TRY(sg_mul(slot->width, SG_CHUNK, &n, "state slot", err));
        /* q8: one byte per number, then one f16 scale per SG_KV_Q8_BLOCK columns of each row */
        m->head_bytes = s->kv == SG_F32 ? 4 * n : s->kv == SG_Q8_0 ? n + blocks * 2 * SG_CHUNK : 2 * n;
        /* each head starts on a cache line */
        m->head_bytes = (m->head_bytes + 63) / 64 * 64;
        return sg_mul(m->head_bytes, slot->heads, &m->block_bytes, "state slot", err);
    }
    SG_TRY(sg_mul(slot->heads, slot->width, &m->fixed_n, "state slot", err));
    SG_TRY(sg_mul(m->fixed_n, slot->kind == SG_SLOT_DELTA ? slot->depth : 1, &m->fixed_n, "state slot", err));
    size_t bytes;
    SG_TRY(sg_mul(m->fixed_n, sizeof(float), &bytes, "state slot", err));
    s->recurrent = 1;
    return SEGUE_OK;
}

/* Allocates blocks for the expected rows, limited to RESERVE_BYTES, so that decoding does not allocate. */
static segue_status reserve_at_start(struct sg_cpu_state *s, uint64_t rows, segue_error *err)
{
    uint64_t each = 0, count = (rows + SG_CHUNK - 1) / SG_CHUNK;
    for (uint32_t i = 0; i < s->slots_n; i++) each += s->slots[i].block_bytes;
    if (!each || !count) return SEGUE_OK;
    /* as many rows as fit the limit */
    if (count > RESERVE_BYTES / each) count = RESERVE_BYTES / each;
    if (!count) return SEGUE_OK;
    s->capacity = (uint32_t)count;
    for (uint32_t i = 0; i < s->slots_n; i++)
        if (sg_cpu_is_kv(&s->slots[i])) SG_TRY(sg_kv_table_grow(s, &s->slots[i], count, err));
    return sg_kv_pool_add(s, (uint32_t)count, err);
}

/* Fails with EUNSUPPORTED for storages and head widths that the kernels cannot handle. A bare state has
 * no memory yet and is filled by a transfer. */
segue_status sg_cpu_state_new(struct sg_unit *u, const struct sg_slot *slots, uint32_t n,
                              const struct sg_state_opts *o, struct sg_state **out, segue_error *err)
{
    enum sg_storage kv = o ? o->kv : SG_F16;
    if (kv != SG_F32 && kv != SG_F16 && kv != SG_BF16 && kv != SG_Q8_0)
        return sg_fail(err, SEGUE_EUNSUPPORTED, "new state: cpu: K and V cannot be stored as %s; use f32, f16, bf16 or q8",
                       (unsigned)kv < SG_STORAGE_N ? sg_storage_info(kv)->name : "an unknown storage");
    for (uint32_t i = 0; i < n; i++)
        if ((slots[i].kind == SG_SLOT_K || slots[i].kind == SG_SLOT_V) && slots[i].width > SG_HEAD_MAX)
            return sg_fail(err, SEGUE_EUNSUPPORTED,
                           "new state: cpu: layer %u: head width %u exceeds the maximum of %d; use another unit", slots[i].layer,
                           slots[i].width, SG_HEAD_MAX);
    struct sg_cpu_state *s = sg_alloc(sizeof *s);
    if (!s) return sg_no_memory("cpu state", sizeof *s, err);
    s->base = (struct sg_state_base){sg_ops_of(u), u};
    s->kv = kv;
    s->host = o ? o->host : NULL;
    /* number of undo marks that can be alive */
    s->marks_cap = o && o->undo ? o->undo : MARKS_DEFAULT;
    pthread_mutex_init(&s->lock, NULL);
    pthread_mutex_init(&s->wait_lock, NULL);
    pthread_cond_init(&s->moved, NULL);
    s->slots = sg_alloc(n * sizeof *s->slots);
    s->marks = sg_alloc(s->marks_cap * sizeof *s->marks);
    segue_status status =
        s->slots && s->marks ? SEGUE_OK : sg_no_memory("cpu state", n * sizeof *s->slots, err);
    for (; status == SEGUE_OK && s->slots_n < n; s->slots_n++)
        status = slot_init(s, &s->slots[s->slots_n], &slots[s->slots_n], err);
    if (status == SEGUE_OK && !(o && o->bare)) status = recurrent_alloc(s, o && o->filled, err);
    if (status == SEGUE_OK && !(o && o->bare)) status = reserve_at_start(s, o ? o->rows : 0, err);
    if (status != SEGUE_OK) {
        sg_cpu_state_free((struct sg_state *)(void *)s);
        return status;
    }
    *out = (struct sg_state *)(void *)s;
    return SEGUE_OK;
}

/* Keeps the first n marks. */
static void marks_truncate(struct sg_cpu_state *s, uint32_t n)
{
    while (s->marks_n > n) s->marks_n--;     /* their memory is reused by the next mark */
}

void sg_cpu_state_free(struct sg_state *state)
{
    struct sg_cpu_state *s = cpu_state(state);
    if (!s) return;
    for (uint32_t i = 0; i < s->slots_n; i++) {
        struct sg_cpu_slot *m = &s->slots[i];
        sg_kv_blocks_drop(m, 0, m->blocks_cap);
        /* a free block holds a reference to its pool */
        while (m->spare) {
            struct sg_kv_block *b = m->spare;
            m->spare = b->next;
            sg_kv_pool_unref(b->pool);
        }
        sg_free(m->blocks);
        sg_free_aligned(m->undo_copy);
    }
    recurrent_free(s);
    for (uint32_t i = 0; s->marks && i < s->marks_cap; i++) sg_free_aligned(s->marks[i].fixed);
    sg_free(s->marks);
    sg_free(s->slots);
    pthread_mutex_destroy(&s->lock);
    pthread_mutex_destroy(&s->wait_lock);
    pthread_cond_destroy(&s->moved);
    sg_free(s);
}

/* Shares the blocks of a slot and copies its recurrent memory. */
static segue_status slot_fork(const struct sg_cpu_slot *from, struct sg_cpu_state *s,
                              struct sg_cpu_slot *to, segue_error *err)
{
    to->first = from->first;
    to->end = from->end;
    to->filled = from->filled;
    if (from->fixed_n) memcpy(to->fixed, from->fixed, from->fixed_n * sizeof(float));
    /* no rows were stored yet */
    if (!from->blocks_cap) return SEGUE_OK;
    SG_TRY(sg_kv_table_grow(s, to, from->blocks_cap - 1, err));
    /* Blocks are shared by reference; sg_kv_block_private copies one before the first write. */
    for (uint32_t i = 0; i < from->blocks_cap; i++) {
        to->blocks[i] = from->blocks[i];
        if (to->blocks[i]) atomic_fetch_add(&to->blocks[i]->refs, 1u);
    }
    return SEGUE_OK;
}

segue_status sg_cpu_state_fork(struct sg_state *state, struct sg_state **out, segue_error *err)
{
    struct sg_cpu_state *s = cpu_state(state);
    struct sg_state_opts o = {.kv = s->kv, .undo = s->marks_cap, .filled = 1, .host = s->host};
    struct sg_state *copy = NULL;
    struct sg_slot *slots = sg_alloc(s->slots_n * sizeof *slots);
    if (!slots) return sg_no_memory("cpu state", s->slots_n * sizeof *slots, err);
    for (uint32_t i = 0; i < s->slots_n; i++) slots[i] = s->slots[i].slot;
    segue_status status = sg_cpu_state_new(s->base.unit, slots, s->slots_n, &o, &copy, err);
    sg_free(slots);
    for (uint32_t i = 0; status == SEGUE_OK && i < s->slots_n; i++)
        status = slot_fork(&s->slots[i], cpu_state(copy), &cpu_state(copy)->slots[i], err);
    if (status != SEGUE_OK) {
        sg_cpu_state_free(copy);
        return status;
    }
    cpu_state(copy)->rows = s->rows;
    cpu_state(copy)->capacity = s->capacity;
    *out = copy;
    return SEGUE_OK;
}

/* All recurrent slots from or to one contiguous copy. */
static void recurrent_copy(struct sg_cpu_state *s, float *copy, int restore)
{
    for (uint32_t i = 0; i < s->slots_n; i++) {
        struct sg_cpu_slot *m = &s->slots[i];
        if (m->fixed_n)
            memcpy(restore ? m->fixed : copy, restore ? copy : m->fixed, m->fixed_n * sizeof(float));
        copy += m->fixed_n;
    }
}

segue_status sg_cpu_state_mark(struct sg_state *state, uint32_t *mark, segue_error *err)
{
    struct sg_cpu_state *s = cpu_state(state);
    if (s->marks_n == s->marks_cap)
        return sg_fail(err, SEGUE_ELIMIT,
                       "mark state: cpu: all %u marks are in use; drop one, or create the state with more",
                       s->marks_n);
    size_t n = 0;
    for (uint32_t i = 0; i < s->slots_n; i++) n += s->slots[i].fixed_n;
    /* memory of a dropped mark is reused */
    struct sg_cpu_undo_mark *m = &s->marks[s->marks_n];
    if (n && !m->fixed && !(m->fixed = sg_alloc_aligned(n * sizeof(float))))
        return sg_no_memory("mark of a cpu state", n * sizeof(float), err);
    if (n) recurrent_copy(s, m->fixed, 0);
    m->rows = s->rows;
    m->number = s->next_mark++;
    s->marks_n++;
    *mark = m->number;
    return SEGUE_OK;
}

/* Index of an undo mark by number; marks_n: not alive. */
static uint32_t mark_find(const struct sg_cpu_state *s, uint32_t number)
{
    uint32_t i = 0;
    while (i < s->marks_n && s->marks[i].number != number) i++;
    return i;
}

/* Cuts every K and V slot to `rows` rows. */
static void rows_set(struct sg_cpu_state *s, uint64_t rows)
{
    for (uint32_t i = 0; i < s->slots_n; i++)
        if (sg_cpu_is_kv(&s->slots[i])) sg_kv_rows_trim(&s->slots[i], s->slots[i].first, rows);
    s->rows = rows;
}

/* Returns to an undo mark. Newer marks become invalid; this one stays. */
segue_status sg_cpu_state_back(struct sg_state *state, uint32_t mark, segue_error *err)
{
    struct sg_cpu_state *s = cpu_state(state);
    uint32_t at = mark_find(s, mark);
    if (at == s->marks_n)
        return sg_fail(err, SEGUE_EARG, "restore state: cpu: mark %u was dropped; use a newer one", mark);
    /* newer marks describe rows that no longer exist */
    marks_truncate(s, at + 1);
    if (s->marks[at].fixed) recurrent_copy(s, s->marks[at].fixed, 1);
    rows_set(s, s->marks[at].rows);
    return SEGUE_OK;
}

/* Drops a mark and all older ones. */
void sg_cpu_state_drop(struct sg_state *state, uint32_t mark)
{
    struct sg_cpu_state *s = cpu_state(state);
    uint32_t at = mark_find(s, mark), n = s->marks_n;
    if (at == n) return;
    for (uint32_t i = at + 1; i < n; i++) {
        struct sg_cpu_undo_mark dropped = s->marks[i - at - 1];       /* its memory moves to the end of the list for reuse */
        s->marks[i - at - 1] = s->marks[i];
        s->marks[i] = dropped;
    }
    s->marks_n -= at + 1;
}

/* Refuses a cut that needs rows which a sliding window has released, or the past of a recurrent slot. */
static segue_status cut_check(const struct sg_cpu_state *s, uint64_t rows, segue_error *err)
{
    for (uint32_t i = 0; i < s->slots_n; i++) {
        const struct sg_cpu_slot *m = &s->slots[i];
        if (m->fixed_n)
            return sg_fail(err, SEGUE_EUNSUPPORTED,
                           "cut state: cpu: layer %u: a recurrent slot cannot be cut; "
                           "restore a mark, or recompute the sequence",
                           m->slot.layer);
        if (sg_cpu_is_kv(m) && m->first > sg_slot_first_needed(&m->slot, rows))
            return sg_fail(err, SEGUE_EUNSUPPORTED,
                           "cut state: cpu: layer %u: row %llu was released, the first row held is %llu; "
                           "recompute the sequence",
                           m->slot.layer, (unsigned long long)sg_slot_first_needed(&m->slot, rows),
                           (unsigned long long)m->first);
    }
    return SEGUE_OK;
}

segue_status sg_cpu_state_cut(struct sg_state *state, uint64_t rows, segue_error *err)
{
    struct sg_cpu_state *s = cpu_state(state);
    if (rows > s->rows)
        return sg_fail(err, SEGUE_EARG, "cut state: cpu: cannot cut to %llu rows, the state has %llu; pass a smaller number",
                       (unsigned long long)rows, (unsigned long long)s->rows);
    /* a cut to 0 is always possible: everything is cleared */
    if (rows && rows < s->rows) SG_TRY(cut_check(s, rows, err));
    uint32_t keep = 0;
    /* marks beyond the cut become invalid */
    while (keep < s->marks_n && s->marks[keep].rows <= rows) keep++;
    marks_truncate(s, keep);
    for (uint32_t i = 0; i < s->slots_n; i++) {
        struct sg_cpu_slot *m = &s->slots[i];
        if (rows) continue;
        m->first = 0;
        m->filled = 0;
        if (m->fixed_n) memset(m->fixed, 0, m->fixed_n * sizeof(float));
    }
    rows_set(s, rows);
    return SEGUE_OK;
}

/* The range of rows that a slot holds; for recurrent slots from 0. */
void sg_cpu_state_held(const struct sg_state *state, uint32_t slot, uint64_t *first, uint64_t *rows)
{
    const struct sg_cpu_state *s = cpu_state_const(state);
    *rows = s->rows;
    *first = slot < s->slots_n && sg_cpu_is_kv(&s->slots[slot]) ? s->slots[slot].first : 0;
}

/* A shared block counts with its share. */
uint64_t sg_cpu_state_bytes(const struct sg_state *state)
{
    const struct sg_cpu_state *s = cpu_state_const(state);
    uint64_t bytes = sizeof *s;
    for (uint32_t i = 0; i < s->slots_n; i++) {
        const struct sg_cpu_slot *m = &s->slots[i];
        bytes += m->fixed_n * sizeof(float) * ((m->undo_copy ? 2u : 1u) + s->marks_n);
        for (uint32_t b = 0; b < m->blocks_cap; b++)
            if (m->blocks[b]) bytes += m->block_bytes / atomic_load(&m->blocks[b]->refs);
    }
    return bytes;
}

segue_status sg_cpu_state_reserve(struct sg_cpu_state *s, uint64_t more, int keep_before, segue_error *err)
{
    for (uint32_t i = 0; i < s->slots_n; i++) {
        struct sg_cpu_slot *m = &s->slots[i];
        if (sg_cpu_is_kv(m)) {
            /* the last block may be partly filled and shared with a fork */
            for (uint64_t b = s->rows / SG_CHUNK; b <= (s->rows + more - 1) / SG_CHUNK; b++)
                SG_TRY(sg_kv_block_private_zeroed(s, m, b, err));
        } else if (keep_before) {
            if (!m->undo_copy && !(m->undo_copy = sg_alloc_aligned(m->fixed_n * sizeof(float))))
                return sg_no_memory("recurrent slot of a cpu state", m->fixed_n * sizeof(float), err);
            memcpy(m->undo_copy, m->fixed, m->fixed_n * sizeof(float));
        }
    }
    return SEGUE_OK;
}

void sg_cpu_state_pass_set(struct sg_cpu_state *s, const uint32_t *slot_stage, uint64_t rows)
{
    pthread_mutex_lock(&s->lock);
    s->slot_stage = slot_stage;
    s->rows_pending = rows;
    atomic_store(&s->stage, 0u);
    pthread_mutex_unlock(&s->lock);
}

void sg_cpu_state_commit(struct sg_cpu_state *s, uint64_t rows)
{
    pthread_mutex_lock(&s->lock);
    s->slot_stage = NULL;
    s->rows += rows;
    for (uint32_t i = 0; i < s->slots_n; i++) {
        struct sg_cpu_slot *m = &s->slots[i];
        m->filled = 1;
        m->end = s->rows;
        if (!sg_cpu_is_kv(m) || !m->slot.window) continue;
        /* rows needed to return to the oldest mark must be kept, too */
        uint64_t oldest = s->marks_n && s->marks[0].rows < s->rows ? s->marks[0].rows : s->rows;
        uint64_t need = sg_slot_first_needed(&m->slot, oldest) / SG_CHUNK * SG_CHUNK;
        if (need > m->first) sg_kv_rows_trim(m, need, m->end);
    }
    pthread_mutex_unlock(&s->lock);
    sg_cpu_state_notify(s);
}

/* Rows beyond `rows` need no undo: they were never committed. */
void sg_cpu_state_undo(struct sg_cpu_state *s)
{
    sg_cpu_state_pass_set(s, NULL, 0);
    for (uint32_t i = 0; i < s->slots_n; i++) {
        struct sg_cpu_slot *m = &s->slots[i];
        if (m->undo_copy) memcpy(m->fixed, m->undo_copy, m->fixed_n * sizeof(float));
    }
}

/* The slot, after checking its number and that the storage applies to it. */
static segue_status slot_find(struct sg_cpu_state *s, uint32_t slot, enum sg_storage storage, const char *verb,
                            struct sg_cpu_slot **out, segue_error *err)
{
    if (slot >= s->slots_n)
        return sg_fail(err, SEGUE_EARG, "%s state: cpu: slot %u does not exist, the state has %u; pass a smaller number", verb,
                       slot, s->slots_n);
    *out = &s->slots[slot];
    if (sg_cpu_is_kv(*out) ? sg_slot_row_bytes(&(*out)->slot, storage) == 0 : storage != SG_F32)
        return sg_fail(err, SEGUE_EUNSUPPORTED, "%s state: cpu: slot %u cannot be converted to storage %d; use f32%s", verb,
                       slot, (int)storage, sg_cpu_is_kv(*out) ? ", f16, bf16 or q8" : "");
    return SEGUE_OK;
}

/* Under the lock: end of what can be read of a slot now. During a pass this includes rows whose stage
 * is complete. A recurrent slot is readable completely (UINT64_MAX) or, until the pass has written it,
 * not at all (0). */
static uint64_t readable_end(const struct sg_cpu_state *s, uint32_t slot)
{
    const struct sg_cpu_slot *m = &s->slots[slot];
    int busy = atomic_load(&s->busy) != 0;
    /* the pass is past the stage that writes this slot */
    int written = busy && s->slot_stage &&
                  atomic_load(&s->stage) > s->slot_stage[slot];
    if (sg_cpu_is_kv(m)) return written ? s->rows + s->rows_pending : m->end;
    return written || !busy ? UINT64_MAX : 0;
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
        pthread_mutex_lock(&s->lock);
        end = readable_end(s, slot);
        const int done = !atomic_load(&s->busy) || end >= want;
        pthread_mutex_unlock(&s->lock);
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
    struct sg_cpu_state *s = cpu_state(state);
    struct sg_cpu_slot *m = NULL;
    SG_TRY(slot_find(s, slot, storage, "get", &m, err));
    segue_status status = SEGUE_OK;
    uint64_t end = slot_wait(s, slot, sg_cpu_is_kv(m) ? to : UINT64_MAX);
    pthread_mutex_lock(&s->lock);
    if (!sg_cpu_is_kv(m))
        memcpy(out, m->fixed, m->fixed_n * sizeof(float));
    else if (from > to || to > end || (from < to && from < m->first))
        status = sg_fail(err, SEGUE_EARG,
                         "get state: cpu: slot %u: rows [%llu, %llu) are not held, only [%llu, %llu); "
                         "request rows that are held",
                         slot, (unsigned long long)from, (unsigned long long)to, (unsigned long long)m->first,
                         (unsigned long long)end);
    else
        sg_kv_rows_copy(s, m, from, to, storage, out, 0);
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* Direct access to a recurrent slot, without a copy. write: the caller fills it, so it counts as
 * filled. */
segue_status sg_cpu_state_at(struct sg_state *state, uint32_t slot, int write, void **out, segue_error *err)
{
    struct sg_cpu_state *s = cpu_state(state);
    struct sg_cpu_slot *m = NULL;
    SG_TRY(slot_find(s, slot, SG_F32, write ? "put" : "get", &m, err));
    if (sg_cpu_is_kv(m))
        return sg_fail(err, SEGUE_EUNSUPPORTED, "map state: cpu: slot %u: K and V are stored in blocks; use get or put", slot);
    if (write && atomic_load(&s->busy))
        return sg_fail(err, SEGUE_EARG, "put state: cpu: a run is using the state; wait for the run");
    if (write) m->filled = 1;
    else slot_wait(s, slot, UINT64_MAX);
    *out = m->fixed;
    return SEGUE_OK;
}

/* After puts: every slot must cover what a sequence of `rows` rows needs. Sets the length. */
static segue_status state_validate(struct sg_cpu_state *s, uint64_t rows, segue_error *err)
{
    for (uint32_t i = 0; i < s->slots_n; i++) {
        const struct sg_cpu_slot *m = &s->slots[i];
        struct sg_slot_coverage held = {"cpu", &m->slot, m->first, m->end, m->filled, sg_slot_first_needed(&m->slot, rows)};
        SG_TRY(sg_slot_coverage(&held, rows, err));
    }
    marks_truncate(s, 0);
    rows_set(s, rows);
    return SEGUE_OK;
}

/* Puts must extend the held rows without a gap. slot UINT32_MAX: validate, `to` is the length. */
segue_status sg_cpu_state_put(struct sg_state *state, uint32_t slot, uint64_t from, uint64_t to,
                              enum sg_storage storage, const void *in, segue_error *err)
{
    struct sg_cpu_state *s = cpu_state(state);
    struct sg_cpu_slot *m = NULL;
    if (atomic_load(&s->busy))
        return sg_fail(err, SEGUE_EARG, "put state: cpu: a run is using the state; wait for the run");
    if (slot == UINT32_MAX) return state_validate(s, to, err);
    SG_TRY(slot_find(s, slot, storage, "put", &m, err));
    if (!sg_cpu_is_kv(m)) {
        memcpy(m->fixed, in, m->fixed_n * sizeof(float));
        m->filled = 1;
        return SEGUE_OK;
    }
    /* an empty slot may start at any position */
    if (m->first == m->end) m->first = m->end = from;
    if (from > to || from > m->end || to < m->first)
        return sg_fail(err, SEGUE_EARG, "put state: cpu: rows [%llu, %llu) are not adjacent to [%llu, %llu); leave no gap",
                       (unsigned long long)from, (unsigned long long)to, (unsigned long long)m->first,
                       (unsigned long long)m->end);
    for (uint64_t b = from / SG_CHUNK; from < to && b <= (to - 1) / SG_CHUNK; b++) SG_TRY(sg_kv_block_private(s, m, b, err));
    /* drops const for the shared copy function */
    union { const void *in; uint8_t *row; } caller = {in};   /* only read from when storing */
    sg_kv_rows_copy(s, m, from, to, storage, caller.row, 1);
    if (from < m->first) m->first = from;
    if (to > m->end) m->end = to;
    return SEGUE_OK;
}
