/* cpu_state.c: what the cpu unit remembers of a sequence. K and V lie in reference-counted blocks of SG_CHUNK
 * rows (kv_layout.c says how); forks share blocks until one of them writes. Recurrent slots are fp32 and are
 * copied. A pass writes rows beyond `rows`, which nobody reads until it is committed; recurrent
 * slots that a stopped pass has touched are put back from `before`. The canonical layout (docs/STATE.md)
 * exists only in get and put.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "base/clock.h"
#include "unit/cpu/cpu_types.h"
#include "unit/state_validate.h"

enum { MARKS = 8 };
static const uint64_t RESERVE_BYTES = (uint64_t)512
                                      << 20; /* at most set aside when a state is made; it grows later */

static struct sg_cpu_state *own(struct sg_state *s) { return (struct sg_cpu_state *)(void *)s; }
static const struct sg_cpu_state *own_const(const struct sg_state *s)
{
    return (const struct sg_cpu_state *)(const void *)s;
}
/* --- new, free, fork --- */

/* As other units lay theirs out, so that neighbours travel together. */
enum { FIXED_STEP = 256 };

static segue_status fixed_new(struct sg_cpu_state *s, int filled, segue_error *err)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < s->slots_n; i++) {
        size_t own = s->slots[i].fixed_n * sizeof(float);
        if (own > SIZE_MAX / 2 - bytes) return sg_no_memory("recurrent slots of a cpu state", own, err);
        bytes += (own + FIXED_STEP - 1) / FIXED_STEP * FIXED_STEP;
    }
    if (!bytes) return SEGUE_OK;
    s->fixed = s->host ? s->host->take(s->host->owner, bytes) : NULL;
    if (s->fixed) s->fixed_host = s->host;
    else if (!(s->fixed = sg_alloc_aligned(bytes))) return sg_no_memory("recurrent slots of a cpu state", bytes, err);
    if (s->fixed_host && !filled) memset(s->fixed, 0, bytes);
    char *at = s->fixed;
    for (uint32_t i = 0; i < s->slots_n; i++) {
        if (s->slots[i].fixed_n) s->slots[i].fixed = (float *)(void *)at;
        at += (s->slots[i].fixed_n * sizeof(float) + FIXED_STEP - 1) / FIXED_STEP * FIXED_STEP;
    }
    return SEGUE_OK;
}

static void fixed_free(struct sg_cpu_state *s)
{
    if (s->fixed_host) s->fixed_host->leave(s->fixed_host->owner, s->fixed);
    else sg_free_aligned(s->fixed);
}

static segue_status slot_begin(struct sg_cpu_state *s, struct sg_slot_memory *m, const struct sg_slot *slot,
                               segue_error *err)
{
    m->slot = *slot;
    if (sg_cpu_is_rows(m)) {
        size_t n, blocks = (slot->width + SG_KV_RUN - 1) / SG_KV_RUN;
        SG_TRY(sg_mul(slot->width, SG_CHUNK, &n, "state slot", err));
        m->head_bytes = s->kv == SG_F32 ? 4 * n : s->kv == SG_Q8_0 ? n + blocks * 2 * SG_CHUNK : 2 * n;
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

static segue_status reserve_at_start(struct sg_cpu_state *s, uint64_t rows, segue_error *err)
{
    uint64_t each = 0, count = (rows + SG_CHUNK - 1) / SG_CHUNK;
    for (uint32_t i = 0; i < s->slots_n; i++) each += s->slots[i].block_bytes;
    if (!each || !count) return SEGUE_OK;
    if (count > RESERVE_BYTES / each) count = RESERVE_BYTES / each;
    if (!count) return SEGUE_OK;
    s->capacity = (uint32_t)count;
    for (uint32_t i = 0; i < s->slots_n; i++)
        if (sg_cpu_is_rows(&s->slots[i])) SG_TRY(sg_cpu_table_grow(s, &s->slots[i], count, err));
    return sg_cpu_slab_add(s, (uint32_t)count, err);
}

segue_status sg_cpu_state_new(struct sg_unit *u, const struct sg_slot *slots, uint32_t n,
                              const struct sg_state_opts *o, struct sg_state **out, segue_error *err)
{
    enum sg_storage kv = o ? o->kv : SG_F16;
    if (kv != SG_F32 && kv != SG_F16 && kv != SG_BF16 && kv != SG_Q8_0)
        return sg_fail(err, SEGUE_EUNSUPPORTED, "new state: cpu: K and V as %s; take f32, f16, bf16 or q8",
                       (unsigned)kv < SG_STORAGE_N ? sg_storage_info(kv)->name : "an unknown storage");
    for (uint32_t i = 0; i < n; i++)
        if ((slots[i].kind == SG_SLOT_K || slots[i].kind == SG_SLOT_V) && slots[i].width > SG_HEAD_MAX)
            return sg_fail(err, SEGUE_EUNSUPPORTED, "new state: cpu: layer %u: heads of %u numbers; %d at most", slots[i].layer,
                           slots[i].width, SG_HEAD_MAX);
    struct sg_cpu_state *s = sg_alloc(sizeof *s);
    if (!s) return sg_no_memory("cpu state", sizeof *s, err);
    s->base = (struct sg_state_base){sg_ops_of(u), u};
    s->kv = kv;
    s->host = o ? o->host : NULL;
    s->marks_cap = o && o->undo ? o->undo : MARKS;
    pthread_mutex_init(&s->lock, NULL);
    s->slots = sg_alloc(n * sizeof *s->slots);
    s->marks = sg_alloc(s->marks_cap * sizeof *s->marks);
    segue_status status =
        s->slots && s->marks ? SEGUE_OK : sg_no_memory("cpu state", n * sizeof *s->slots, err);
    for (; status == SEGUE_OK && s->slots_n < n; s->slots_n++)
        status = slot_begin(s, &s->slots[s->slots_n], &slots[s->slots_n], err);
    if (status == SEGUE_OK && !(o && o->bare)) status = fixed_new(s, o && o->filled, err);
    if (status == SEGUE_OK && !(o && o->bare)) status = reserve_at_start(s, o ? o->rows : 0, err);
    if (status != SEGUE_OK) {
        sg_cpu_state_free((struct sg_state *)(void *)s);
        return status;
    }
    *out = (struct sg_state *)(void *)s;
    return SEGUE_OK;
}

static void marks_keep(struct sg_cpu_state *s, uint32_t n)
{
    while (s->marks_n > n) s->marks_n--;     /* their memory is kept for the next mark */
}

void sg_cpu_state_free(struct sg_state *state)
{
    struct sg_cpu_state *s = own(state);
    if (!s) return;
    for (uint32_t i = 0; i < s->slots_n; i++) {
        struct sg_slot_memory *m = &s->slots[i];
        sg_cpu_blocks_drop(m, 0, m->blocks_cap);
        while (m->spare) {
            struct sg_kv_block *b = m->spare;
            m->spare = b->next;
            sg_cpu_slab_release(b->slab);
        }
        sg_free(m->blocks);
        sg_free_aligned(m->before);
    }
    fixed_free(s);
    for (uint32_t i = 0; s->marks && i < s->marks_cap; i++) sg_free_aligned(s->marks[i].fixed);
    sg_free(s->marks);
    sg_free(s->slots);
    pthread_mutex_destroy(&s->lock);
    sg_free(s);
}

static segue_status slot_fork(const struct sg_slot_memory *from, struct sg_cpu_state *s,
                              struct sg_slot_memory *to, segue_error *err)
{
    to->first = from->first;
    to->end = from->end;
    to->given = from->given;
    if (from->fixed_n) memcpy(to->fixed, from->fixed, from->fixed_n * sizeof(float));
    if (!from->blocks_cap) return SEGUE_OK;
    SG_TRY(sg_cpu_table_grow(s, to, from->blocks_cap - 1, err));
    for (uint32_t i = 0; i < from->blocks_cap; i++) {
        to->blocks[i] = from->blocks[i];
        if (to->blocks[i]) atomic_fetch_add(&to->blocks[i]->refs, 1u);
    }
    return SEGUE_OK;
}

segue_status sg_cpu_state_fork(struct sg_state *state, struct sg_state **out, segue_error *err)
{
    struct sg_cpu_state *s = own(state);
    struct sg_state_opts o = {.kv = s->kv, .undo = s->marks_cap, .filled = 1, .host = s->host};
    struct sg_state *copy = NULL;
    struct sg_slot *slots = sg_alloc(s->slots_n * sizeof *slots);
    if (!slots) return sg_no_memory("cpu state", s->slots_n * sizeof *slots, err);
    for (uint32_t i = 0; i < s->slots_n; i++) slots[i] = s->slots[i].slot;
    segue_status status = sg_cpu_state_new(s->base.unit, slots, s->slots_n, &o, &copy, err);
    sg_free(slots);
    for (uint32_t i = 0; status == SEGUE_OK && i < s->slots_n; i++)
        status = slot_fork(&s->slots[i], own(copy), &own(copy)->slots[i], err);
    if (status != SEGUE_OK) {
        sg_cpu_state_free(copy);
        return status;
    }
    own(copy)->rows = s->rows;
    own(copy)->capacity = s->capacity;
    *out = copy;
    return SEGUE_OK;
}

/* --- marks and cuts --- */

static void fixed_copy(struct sg_cpu_state *s, float *copy, int restore)
{
    for (uint32_t i = 0; i < s->slots_n; i++) {
        struct sg_slot_memory *m = &s->slots[i];
        if (m->fixed_n)
            memcpy(restore ? m->fixed : copy, restore ? copy : m->fixed, m->fixed_n * sizeof(float));
        copy += m->fixed_n;
    }
}

segue_status sg_cpu_state_mark(struct sg_state *state, uint32_t *mark, segue_error *err)
{
    struct sg_cpu_state *s = own(state);
    if (s->marks_n == s->marks_cap)
        return sg_fail(err, SEGUE_ELIMIT,
                       "mark state: cpu: %u marks are alive; drop one, or open the state with more",
                       s->marks_n);
    size_t n = 0;
    for (uint32_t i = 0; i < s->slots_n; i++) n += s->slots[i].fixed_n;
    struct sg_mark *m = &s->marks[s->marks_n];
    if (n && !m->fixed && !(m->fixed = sg_alloc_aligned(n * sizeof(float))))
        return sg_no_memory("mark of a cpu state", n * sizeof(float), err);
    if (n) fixed_copy(s, m->fixed, 0);
    m->rows = s->rows;
    m->number = s->next_mark++;
    s->marks_n++;
    *mark = m->number;
    return SEGUE_OK;
}

static uint32_t mark_find(const struct sg_cpu_state *s, uint32_t number)
{
    uint32_t i = 0;
    while (i < s->marks_n && s->marks[i].number != number) i++;
    return i;
}

static void rows_set(struct sg_cpu_state *s, uint64_t rows)
{
    for (uint32_t i = 0; i < s->slots_n; i++)
        if (sg_cpu_is_rows(&s->slots[i])) sg_cpu_rows_keep(&s->slots[i], s->slots[i].first, rows);
    s->rows = rows;
}

segue_status sg_cpu_state_back(struct sg_state *state, uint32_t mark, segue_error *err)
{
    struct sg_cpu_state *s = own(state);
    uint32_t at = mark_find(s, mark);
    if (at == s->marks_n)
        return sg_fail(err, SEGUE_EARG, "go back: cpu: mark %u is not alive; use a newer one", mark);
    marks_keep(s, at + 1);
    if (s->marks[at].fixed) fixed_copy(s, s->marks[at].fixed, 1);
    rows_set(s, s->marks[at].rows);
    return SEGUE_OK;
}

void sg_cpu_state_drop(struct sg_state *state, uint32_t mark)
{
    struct sg_cpu_state *s = own(state);
    uint32_t at = mark_find(s, mark), n = s->marks_n;
    if (at == n) return;
    for (uint32_t i = at + 1; i < n; i++) {
        struct sg_mark dropped = s->marks[i - at - 1];       /* its memory moves to the end of the list */
        s->marks[i - at - 1] = s->marks[i];
        s->marks[i] = dropped;
    }
    s->marks_n -= at + 1;
}

static segue_status may_cut(const struct sg_cpu_state *s, uint64_t rows, segue_error *err)
{
    for (uint32_t i = 0; i < s->slots_n; i++) {
        const struct sg_slot_memory *m = &s->slots[i];
        if (m->fixed_n)
            return sg_fail(err, SEGUE_EUNSUPPORTED,
                           "cut state: cpu: layer %u: its recurrent memory cannot be cut back; "
                           "go back to a mark, or replay",
                           m->slot.layer);
        if (sg_cpu_is_rows(m) && m->first > sg_slot_first_needed(&m->slot, rows))
            return sg_fail(err, SEGUE_EUNSUPPORTED,
                           "cut state: cpu: layer %u: row %llu is gone, its rows begin at %llu; "
                           "replay",
                           m->slot.layer, (unsigned long long)sg_slot_first_needed(&m->slot, rows),
                           (unsigned long long)m->first);
    }
    return SEGUE_OK;
}

segue_status sg_cpu_state_cut(struct sg_state *state, uint64_t rows, segue_error *err)
{
    struct sg_cpu_state *s = own(state);
    if (rows > s->rows)
        return sg_fail(err, SEGUE_EARG, "cut state: cpu: to %llu rows of %llu; give fewer",
                       (unsigned long long)rows, (unsigned long long)s->rows);
    if (rows && rows < s->rows) SG_TRY(may_cut(s, rows, err));
    uint32_t keep = 0;
    while (keep < s->marks_n && s->marks[keep].rows <= rows) keep++;
    marks_keep(s, keep);
    for (uint32_t i = 0; i < s->slots_n; i++) {
        struct sg_slot_memory *m = &s->slots[i];
        if (rows) continue;
        m->first = 0;
        m->given = 0;
        if (m->fixed_n) memset(m->fixed, 0, m->fixed_n * sizeof(float));
    }
    rows_set(s, rows);
    return SEGUE_OK;
}

void sg_cpu_state_held(const struct sg_state *state, uint32_t slot, uint64_t *first, uint64_t *rows)
{
    const struct sg_cpu_state *s = own_const(state);
    *rows = s->rows;
    *first = slot < s->slots_n && sg_cpu_is_rows(&s->slots[slot]) ? s->slots[slot].first : 0;
}

uint64_t sg_cpu_state_bytes(const struct sg_state *state)
{
    const struct sg_cpu_state *s = own_const(state);
    uint64_t bytes = sizeof *s;
    for (uint32_t i = 0; i < s->slots_n; i++) {
        const struct sg_slot_memory *m = &s->slots[i];
        bytes += m->fixed_n * sizeof(float) * ((m->before ? 2u : 1u) + s->marks_n);
        for (uint32_t b = 0; b < m->blocks_cap; b++)
            if (m->blocks[b]) bytes += m->block_bytes / atomic_load(&m->blocks[b]->refs);
    }
    return bytes;
}

/* --- for passes --- */

segue_status sg_cpu_state_reserve(struct sg_cpu_state *s, uint64_t more, int keep_before, segue_error *err)
{
    for (uint32_t i = 0; i < s->slots_n; i++) {
        struct sg_slot_memory *m = &s->slots[i];
        if (sg_cpu_is_rows(m)) {
            for (uint64_t b = s->rows / SG_CHUNK; b <= (s->rows + more - 1) / SG_CHUNK; b++)
                SG_TRY(sg_cpu_block_own(s, m, b, err));
        } else if (keep_before) {
            if (!m->before && !(m->before = sg_alloc_aligned(m->fixed_n * sizeof(float))))
                return sg_no_memory("recurrent slot of a cpu state", m->fixed_n * sizeof(float), err);
            memcpy(m->before, m->fixed, m->fixed_n * sizeof(float));
        }
    }
    return SEGUE_OK;
}

void sg_cpu_state_watch(struct sg_cpu_state *s, const uint32_t *slot_stage, uint64_t rows)
{
    pthread_mutex_lock(&s->lock);
    s->slot_stage = slot_stage;
    s->coming = rows;
    atomic_store(&s->stage, 0u);
    pthread_mutex_unlock(&s->lock);
}

void sg_cpu_state_commit(struct sg_cpu_state *s, uint64_t rows)
{
    pthread_mutex_lock(&s->lock);
    s->slot_stage = NULL;
    s->rows += rows;
    for (uint32_t i = 0; i < s->slots_n; i++) {
        struct sg_slot_memory *m = &s->slots[i];
        m->given = 1;
        m->end = s->rows;
        if (!sg_cpu_is_rows(m) || !m->slot.window) continue;
        uint64_t oldest = s->marks_n && s->marks[0].rows < s->rows ? s->marks[0].rows : s->rows;
        uint64_t need = sg_slot_first_needed(&m->slot, oldest) / SG_CHUNK * SG_CHUNK;
        if (need > m->first) sg_cpu_rows_keep(m, need, m->end);
    }
    pthread_mutex_unlock(&s->lock);
}

void sg_cpu_state_undo(struct sg_cpu_state *s)
{
    sg_cpu_state_watch(s, NULL, 0);
    for (uint32_t i = 0; i < s->slots_n; i++) {
        struct sg_slot_memory *m = &s->slots[i];
        if (m->before) memcpy(m->fixed, m->before, m->fixed_n * sizeof(float));
    }
}

/* --- get and put --- */

static segue_status slot_of(struct sg_cpu_state *s, uint32_t slot, enum sg_storage storage, const char *verb,
                            struct sg_slot_memory **out, segue_error *err)
{
    if (slot >= s->slots_n)
        return sg_fail(err, SEGUE_EARG, "%s state: cpu: slot %u of %u; give a smaller one", verb, slot,
                       s->slots_n);
    *out = &s->slots[slot];
    if (sg_cpu_is_rows(*out) ? sg_slot_row_bytes(&(*out)->slot, storage) == 0 : storage != SG_F32)
        return sg_fail(err, SEGUE_EUNSUPPORTED, "%s state: cpu: slot %u in storage %d; take f32%s", verb,
                       slot, (int)storage, sg_cpu_is_rows(*out) ? ", f16, bf16 or q8" : "");
    return SEGUE_OK;
}

/* Under the lock: the end of what can be read of a slot now. Beside a pass also what it has written; recurrent
 * memory is there as a whole or, until the pass has left it, not at all. */
static uint64_t end_now(const struct sg_cpu_state *s, uint32_t slot)
{
    const struct sg_slot_memory *m = &s->slots[slot];
    int busy = atomic_load(&s->busy) != 0;
    int written = busy && s->slot_stage &&
                  atomic_load_explicit(&s->stage, memory_order_acquire) > s->slot_stage[slot];
    if (sg_cpu_is_rows(m)) return written ? s->rows + s->coming : m->end;
    return written || !busy ? UINT64_MAX : 0;
}

/* Until a slot can be read up to `want`, or nothing is coming any more; gives the end. */
static uint64_t memory_wait(struct sg_cpu_state *s, uint32_t slot, uint64_t want)
{
    for (;;) {
        pthread_mutex_lock(&s->lock);
        uint64_t end = end_now(s, slot);
        int over = !atomic_load(&s->busy) || end >= want;
        pthread_mutex_unlock(&s->lock);
        if (over) return end;
        sg_pause_ns(20000);
    }
}

segue_status sg_cpu_state_get(struct sg_state *state, uint32_t slot, uint64_t from, uint64_t to,
                              enum sg_storage storage, void *out, segue_error *err)
{
    struct sg_cpu_state *s = own(state);
    struct sg_slot_memory *m = NULL;
    SG_TRY(slot_of(s, slot, storage, "get", &m, err));
    segue_status status = SEGUE_OK;
    uint64_t end = memory_wait(s, slot, sg_cpu_is_rows(m) ? to : UINT64_MAX);
    pthread_mutex_lock(&s->lock);
    if (!sg_cpu_is_rows(m))
        memcpy(out, m->fixed, m->fixed_n * sizeof(float));
    else if (from > to || to > end || (from < to && from < m->first))
        status = sg_fail(err, SEGUE_EARG,
                         "get state: cpu: slot %u: rows [%llu, %llu) of [%llu, %llu); ask for those that "
                         "are held",
                         slot, (unsigned long long)from, (unsigned long long)to, (unsigned long long)m->first,
                         (unsigned long long)end);
    else
        sg_kv_rows_pass(s, m, from, to, storage, out, 0);
    pthread_mutex_unlock(&s->lock);
    return status;
}

segue_status sg_cpu_state_at(struct sg_state *state, uint32_t slot, int write, void **out, segue_error *err)
{
    struct sg_cpu_state *s = own(state);
    struct sg_slot_memory *m = NULL;
    SG_TRY(slot_of(s, slot, SG_F32, write ? "put" : "get", &m, err));
    if (sg_cpu_is_rows(m))
        return sg_fail(err, SEGUE_EUNSUPPORTED, "find state: cpu: slot %u: rows lie in blocks; get or put them", slot);
    if (write && atomic_load(&s->busy))
        return sg_fail(err, SEGUE_EARG, "put state: cpu: a run is using the state; wait for it");
    if (write) m->given = 1;
    else memory_wait(s, slot, UINT64_MAX);
    *out = m->fixed;
    return SEGUE_OK;
}

static segue_status seal(struct sg_cpu_state *s, uint64_t rows, segue_error *err)
{
    for (uint32_t i = 0; i < s->slots_n; i++) {
        const struct sg_slot_memory *m = &s->slots[i];
        struct sg_slot_coverage held = {"cpu", &m->slot, m->first, m->end, m->given, sg_slot_first_needed(&m->slot, rows)};
        SG_TRY(sg_slot_coverage(&held, rows, err));
    }
    marks_keep(s, 0);
    rows_set(s, rows);
    return SEGUE_OK;
}

segue_status sg_cpu_state_put(struct sg_state *state, uint32_t slot, uint64_t from, uint64_t to,
                              enum sg_storage storage, const void *in, segue_error *err)
{
    struct sg_cpu_state *s = own(state);
    struct sg_slot_memory *m = NULL;
    if (atomic_load(&s->busy))
        return sg_fail(err, SEGUE_EARG, "put state: cpu: a run is using the state; wait for it");
    if (slot == UINT32_MAX) return seal(s, to, err);
    SG_TRY(slot_of(s, slot, storage, "put", &m, err));
    if (!sg_cpu_is_rows(m)) {
        memcpy(m->fixed, in, m->fixed_n * sizeof(float));
        m->given = 1;
        return SEGUE_OK;
    }
    if (m->first == m->end) m->first = m->end = from;
    if (from > to || from > m->end || to < m->first)
        return sg_fail(err, SEGUE_EARG, "put state: cpu: rows [%llu, %llu) beside [%llu, %llu); leave no gap",
                       (unsigned long long)from, (unsigned long long)to, (unsigned long long)m->first,
                       (unsigned long long)m->end);
    for (uint64_t b = from / SG_CHUNK; from < to && b <= (to - 1) / SG_CHUNK; b++) SG_TRY(sg_cpu_block_take(s, m, b, err));
    union { const void *in; uint8_t *row; } caller = {in};   /* read only when storing */
    sg_kv_rows_pass(s, m, from, to, storage, caller.row, 1);
    if (from < m->first) m->first = from;
    if (to > m->end) m->end = to;
    return SEGUE_OK;
}
