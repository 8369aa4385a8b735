/* anestate.c: states of the unit `ane`: life, undo marks, cuts, get and put. K and V are fp16, CONV and DELTA slots fp32. The
 * common part is in unit/state_core.c, the copy on the engine in anestate_engine.c, K and V rows on the host in anerows.c.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "base/num.h"
#include "unit/ane/aneunit.h"

/* --- undo marks --- */

/* All CONV and DELTA slots to (restore 0) or from one buffer. */
static void fixed_copy(struct sg_state *s, float *buffer, int restore)
{
    for (uint32_t i = 0; i < s->core.slots_n; i++) {
        struct ane_slot *slot = ane_slot_at(s, i);
        if (!slot->fixed) continue;
        if (restore)
            memcpy(slot->fixed, buffer, slot->core.fixed_bytes);
        else
            memcpy(buffer, slot->fixed, slot->core.fixed_bytes);
        buffer += slot->elems;
    }
}

/* K and V rows are not copied here: runs append, so the rows of a mark stay valid until a ring wraps (ane_state_prepare). */
static segue_status undo_save(struct sg_state *s, const struct sg_undo_mark *m, segue_error *err)
{
    if (s->core.fixed_bytes) SG_TRY(ane_state_sync(s, err));
    float *buffer = s->undo[m->buffer] = sg_alloc(s->core.fixed_bytes);
    if (!buffer) return sg_no_memory("mark of an ane state", s->core.fixed_bytes, err);
    fixed_copy(s, buffer, 0);
    return SEGUE_OK;
}

static void undo_release(struct sg_state *s, uint32_t buffer)
{
    sg_free(s->undo[buffer]);
    sg_free(s->undo_rows[buffer]);
    s->undo[buffer] = NULL;
    s->undo_rows[buffer] = NULL;
}

/* Positions before a mark that the token after it attends to, for a slot with a limited reach; 0 for other slots: their rings
 * never wrap. */
static size_t undo_rows_n(const struct sg_state *s, const struct sg_undo_mark *m, uint32_t slot)
{
    const struct sg_slot *at = &ane_slot_at(s, slot)->core.slot;
    return sg_slot_grows(at) && ane_reach(s, at) ? (size_t)(m->tokens - ane_first_needed(s, slot, m->tokens)) : 0;
}

/* Saves those rows of all slots, one slot after the other. Rows that the host no longer has are left zero. */
static segue_status undo_rows_save(struct sg_state *s, const struct sg_undo_mark *m, segue_error *err)
{
    size_t elems = 0;
    SG_TRY(ane_state_sync(s, err));
    for (uint32_t i = 0; i < s->core.slots_n; i++) elems += undo_rows_n(s, m, i) * ane_slot_at(s, i)->elems;
    uint16_t *to = s->undo_rows[m->buffer] = sg_alloc(elems * sizeof *to);
    if (!to) return sg_no_memory("rows of a mark", elems * sizeof *to, err);
    for (uint32_t i = 0; i < s->core.slots_n; i++) {
        const struct ane_slot *slot = ane_slot_at(s, i);
        for (uint64_t pos = m->tokens - undo_rows_n(s, m, i); pos < m->tokens; pos++, to += slot->elems)
            if (pos >= slot->core.first) memcpy(to, ane_row(slot, pos), slot->elems * sizeof *to);
    }
    return SEGUE_OK;
}

/* The saved rows replace the host range of their slots. */
static segue_status undo_rows_restore(struct sg_state *s, const struct sg_undo_mark *m, segue_error *err)
{
    const uint16_t *from = s->undo_rows[m->buffer];
    for (uint32_t i = 0; i < s->core.slots_n; i++) {
        struct ane_slot *slot = ane_slot_at(s, i);
        size_t n = undo_rows_n(s, m, i);
        if (!n) continue;
        slot->core.first = slot->host_end = m->tokens - n;
        ane_rows_trim(slot);
        SG_TRY(ane_rows_own(slot, slot->core.first, m->tokens, err));
        for (uint64_t pos = slot->core.first; pos < m->tokens; pos++, from += slot->elems)
            memcpy(ane_row(slot, pos), from, slot->elems * sizeof *from);
        slot->host_end = m->tokens;
    }
    return SEGUE_OK;
}

/* The state stays on the engine when nothing on the host replaces its contents: then only the length changes. */
static segue_status undo_restore(struct sg_state *s, const struct sg_undo_mark *m, segue_error *err)
{
    int has_rows = s->undo_rows[m->buffer] != NULL;
    if (s->core.fixed_bytes || has_rows) SG_TRY(ane_state_download(s, err));
    if (has_rows) SG_TRY(undo_rows_restore(s, m, err));
    fixed_copy(s, s->undo[m->buffer], 1);
    return SEGUE_OK;
}

/* Releases positions on the host that neither the next token nor a mark without saved rows attends to. */
static void forget_rows(struct sg_state *s)
{
    for (uint32_t i = 0; i < s->core.slots_n; i++) {
        struct ane_slot *slot = ane_slot_at(s, i);
        uint64_t needed = ane_first_needed(s, i, s->core.tokens);
        for (uint32_t k = 0; k < s->core.marks_n; k++) {
            uint64_t first = ane_first_needed(s, i, s->core.marks[k].tokens);
            if (!s->undo_rows[s->core.marks[k].buffer] && first < needed) needed = first;
        }
        if (slot->core.first >= needed) continue;
        slot->core.first = needed < slot->host_end ? needed : slot->host_end;
        ane_rows_trim(slot);
    }
}

/* The last position of the dispatch is tokens + n - 1; in a ring it overwrites the position `ring` before it. A mark needs
 * saved rows when that is its oldest needed position or a later one. */
segue_status ane_state_prepare(struct sg_state *s, uint32_t n, segue_error *err)
{
    for (uint32_t k = 0; s->parts_n && k < s->core.marks_n; k++) {
        const struct sg_undo_mark *m = &s->core.marks[k];
        for (uint32_t i = 0; i < s->core.slots_n && !s->undo_rows[m->buffer]; i++) {
            size_t rows = undo_rows_n(s, m, i);
            if (rows && s->core.tokens + n > m->tokens - rows + ane_slot_at(s, i)->ring) SG_TRY(undo_rows_save(s, m, err));
        }
    }
    forget_rows(s);
    return SEGUE_OK;
}

/* --- called by the core --- */

/* The host range and the ring end with the sequence. An empty state needs no surfaces: the next run makes new ones. */
static void trim(struct sg_state *s)
{
    uint64_t tokens = s->core.tokens;
    for (uint32_t i = 0; i < s->core.slots_n; i++) {
        struct ane_slot *slot = ane_slot_at(s, i);
        if (slot->host_end > tokens) slot->host_end = tokens;
        if (slot->ring_first > tokens) slot->ring_first = tokens;
        ane_rows_trim(slot);
    }
    if (s->synced > tokens) s->synced = tokens;
    if (tokens) return;
    ane_state_leave(s);
    s->fixed_here = 1;
}

/* Last step of a cut to 0; trim has freed the surfaces. */
static segue_status clear(struct sg_state *s, segue_error *err)
{
    (void)err;
    for (uint32_t i = 0; i < s->core.slots_n; i++)
        if (ane_slot_at(s, i)->fixed) memset(ane_slot_at(s, i)->fixed, 0, ane_slot_at(s, i)->core.fixed_bytes);
    return SEGUE_OK;
}

/* ane_state_put has downloaded the state, so the host range is the whole range; the core may have moved an empty one. */
static segue_status write_slot(struct sg_state *st, uint32_t slot, uint64_t from, uint64_t to, enum sg_storage storage,
                               const void *in, segue_error *err)
{
    struct ane_slot *s = ane_slot_at(st, slot);
    if (s->fixed) {
        memcpy(s->fixed, in, s->core.fixed_bytes);
        return SEGUE_OK;
    }
    s->host_end = s->core.end;
    SG_TRY(ane_rows_write(s, from, to, storage, in, err));
    if (to > s->host_end) s->host_end = to;
    return SEGUE_OK;
}

/* The fork shares the rows of K and V on the host and is not resident. */
static segue_status copy(struct sg_state *to, struct sg_state *from, segue_error *err)
{
    SG_TRY(ane_state_sync(from, err));
    for (uint32_t i = 0; i < from->core.slots_n; i++) {
        const struct ane_slot *a = ane_slot_at(from, i);
        struct ane_slot *b = ane_slot_at(to, i);
        if (a->fixed) memcpy(b->fixed, a->fixed, a->core.fixed_bytes);
        SG_TRY(sg_rows_share(&b->rows, &a->rows, err));
        b->host_end = a->host_end;
    }
    to->synced = from->core.tokens;
    return SEGUE_OK;
}

/* The first position from which host copy and ring together have all positions. */
static uint64_t first_held(const struct sg_state *s, uint32_t i)
{
    const struct ane_slot *slot = ane_slot_at(s, i);
    int ring_only = slot->host_end < slot->ring_first || slot->core.first == slot->host_end;
    return s->parts_n && ring_only ? slot->ring_first : slot->core.first;
}

/* --- new and free --- */

/* ELIMIT: more elements than the 32-bit indices of surfaces can address. */
static segue_status slot_init(struct sg_state *st, struct ane_slot *s, segue_error *err)
{
    const struct sg_slot *slot = &s->core.slot;
    size_t n;
    SG_TRY(sg_mul(slot->heads, slot->width, &n, "state slot", err));
    SG_TRY(sg_mul(n, slot->kind == SG_SLOT_DELTA ? slot->depth : 1, &n, "state slot", err));
    if (n > UINT32_MAX / 8)
        return sg_fail(err, SEGUE_ELIMIT, "new state: ane: layer %u: %zu elements in one slot are too many; use another unit",
                       slot->layer, n);
    s->elems = (uint32_t)n;
    if (sg_slot_grows(slot)) return SEGUE_OK;
    if (!s->fixed) s->fixed = sg_arena_alloc(&st->arena, n * sizeof *s->fixed);
    return s->fixed ? SEGUE_OK : sg_no_memory("ane state", n * sizeof *s->fixed, err);
}

/* All CONV and DELTA slots in memory that the unit of a hand-off takes over, if it has some. */
static void share_fixed(struct sg_state *st)
{
    const struct sg_host_memory *host = st->core.host;
    size_t bytes = 0;
    if (!host || !host->attachable || !st->core.fixed_bytes) return;
    char *at = st->fixed_memory = host->take(host->owner, st->core.fixed_bytes);
    if (at) memset(at, 0, st->core.fixed_bytes);
    for (uint32_t i = 0; at && i < st->core.slots_n; i++) {
        struct ane_slot *s = ane_slot_at(st, i);
        if (!sg_slot_grows(&s->core.slot)) s->fixed = (float *)(void *)(at + bytes);
        bytes += s->core.fixed_bytes;
    }
}

/* A state has no surfaces until its first run. */
static segue_status state_init(struct sg_state *st, const struct sg_state_opts *o, segue_error *err)
{
    st->fixed_here = 1;
    st->undo = sg_arena_alloc(&st->arena, st->core.marks_cap * sizeof *st->undo);
    st->undo_rows = sg_arena_alloc(&st->arena, st->core.marks_cap * sizeof *st->undo_rows);
    if (!st->undo || !st->undo_rows) return sg_no_memory("ane state", st->core.marks_cap * sizeof *st->undo, err);
    share_fixed(st);
    for (uint32_t i = 0; i < st->core.slots_n; i++) {
        SG_TRY(slot_init(st, ane_slot_at(st, i), err));
        ane_rows_init(ane_slot_at(st, i), st->core.host, o ? o->rows : 0);
    }
    return SEGUE_OK;
}

static const struct sg_state_core_ops core_ops = {
    .unit = "ane",
    .slot_size = sizeof(struct ane_slot),
    .fork_shares = 1,
    .state_size = sizeof(struct sg_state),
    .init = state_init,
    .undo_save = undo_save,
    .undo_restore = undo_restore,
    .undo_release = undo_release,
    .clear = clear,
    .trim = trim,
    .write = write_slot,
    .copy = copy,
    .first_held = first_held,
    .first_needed = ane_first_needed,
};

/* The engine computes with fp16 K and V; other storages are refused before anything is allocated. */
segue_status ane_state_new(struct sg_unit *u, const struct sg_slot *slots, uint32_t slots_n, const struct sg_state_opts *o,
                           struct sg_state **out, segue_error *err)
{
    enum sg_storage storage = o ? o->kv : SG_F16;
    for (uint32_t i = 0; i < slots_n && storage != SG_F16; i++)
        if (sg_slot_grows(&slots[i]))
            return sg_fail(err, SEGUE_EUNSUPPORTED, "new state: ane: K and V as %s are not supported; use f16",
                           (unsigned)storage < SG_STORAGE_N ? sg_storage_info(storage)->name : "unknown storage");
    return sg_state_core_new(&core_ops, u, slots, slots_n, o, SG_F16, out, err);
}

/* The core releases the undo marks, so the arena with their buffers is freed after it. */
void ane_state_free(struct sg_state *s)
{
    if (!s) return;
    ane_state_leave(s);
    sg_free(s->logits);
    for (uint32_t i = 0; i < s->core.slots_n; i++) sg_rows_free(&ane_slot_at(s, i)->rows);
    if (s->fixed_memory) s->core.host->leave(s->core.host->owner, s->fixed_memory);
    sg_state_core_free(&s->core);
    sg_arena_free(&s->arena);
    sg_free(s);
}

/* Recurrent slots exist once and once per mark; blocks shared with forks count by their share; rows that marks have saved are not
 * counted. */
uint64_t ane_state_bytes(const struct sg_state *s)
{
    uint64_t bytes = (uint64_t)s->core.fixed_bytes * (1 + s->core.marks_n);
    pthread_mutex_lock(sg_state_core_lock_of(&s->core));
    for (uint32_t i = 0; i < s->core.slots_n; i++) bytes += sg_rows_bytes(&ane_slot_at(s, i)->rows);
    for (uint32_t i = 0; i < s->parts_n; i++) bytes += s->now[i] ? 2 * s->surface_bytes : 0;
    pthread_mutex_unlock(sg_state_core_lock_of(&s->core));
    return bytes;
}

/* --- get and put --- */

/* Waits until no run is using the state, whatever positions are requested: the device takes one call at a time, and a surface
 * must not be locked while a program is evaluated. */
segue_status ane_state_get(struct sg_state *st, uint32_t slot, uint64_t from, uint64_t to, enum sg_storage storage,
                           void *out, segue_error *err)
{
    struct sg_core_slot *c = NULL;
    SG_TRY(sg_state_core_slot(&st->core, slot, storage, "get", &c, err));
    const struct ane_slot *s = ane_slot_at(st, slot);
    pthread_mutex_lock(&st->core.lock);
    sg_state_core_wait(&st->core, c, UINT64_MAX);
    segue_status status = ane_state_sync(st, err);
    if (status == SEGUE_OK && s->fixed) {
        memcpy(out, s->fixed, c->fixed_bytes);
    } else if (status == SEGUE_OK) {
        status = sg_state_core_check_get(&st->core, slot, from, to, c->first, c->end, err);
        if (status == SEGUE_OK) status = ane_rows_read(s, from, to, storage, out, err);
    }
    pthread_mutex_unlock(&st->core.lock);
    return status;
}

/* The core checks and extends the host range, so the state must have left the engine before. A busy state is refused by the
 * core; its surfaces belong to the run. */
segue_status ane_state_put(struct sg_state *st, uint32_t slot, uint64_t from, uint64_t to, enum sg_storage storage,
                           const void *in, segue_error *err)
{
    pthread_mutex_lock(&st->core.lock);
    int busy = st->core.busy;
    pthread_mutex_unlock(&st->core.lock);
    if (!busy) SG_TRY(ane_state_download(st, err));
    return sg_state_core_put(st, slot, from, to, storage, in, err);
}

/* Direct access to a CONV or DELTA slot on the host. write: the caller fills it. */
segue_status ane_state_at(struct sg_state *st, uint32_t slot, int write, void **out, segue_error *err)
{
    struct sg_core_slot *c = NULL;
    segue_status status = SEGUE_OK;
    SG_TRY(sg_state_core_slot(&st->core, slot, SG_F32, write ? "put" : "get", &c, err));
    if (sg_slot_grows(&c->slot))
        return sg_fail(err, SEGUE_EUNSUPPORTED, "map state: ane: slot %u: K and V are on the engine; use get or put", slot);
    if (write) {
        SG_TRY(sg_state_core_check_idle(&st->core, err));
        SG_TRY(ane_state_download(st, err));
        c->present = 1;
    } else {
        pthread_mutex_lock(&st->core.lock);
        sg_state_core_wait(&st->core, c, UINT64_MAX);
        status = ane_state_sync(st, err);
        pthread_mutex_unlock(&st->core.lock);
    }
    *out = ane_slot_at(st, slot)->fixed;
    return status;
}

segue_status ane_state_rows(struct sg_state *st, uint32_t slot, uint64_t from, uint64_t to, enum sg_storage storage,
                            const void **out, segue_error *err)
{
    struct sg_core_slot *c = NULL;
    SG_TRY(sg_state_core_slot(&st->core, slot, storage, "get", &c, err));
    pthread_mutex_lock(&st->core.lock);
    sg_state_core_wait(&st->core, c, UINT64_MAX);
    segue_status status = ane_state_sync(st, err);
    if (status == SEGUE_OK) status = sg_state_core_check_get(&st->core, slot, from, to, c->first, c->end, err);
    if (status == SEGUE_OK) status = sg_rows_pass(&ane_slot_at(st, slot)->rows, from, to, storage, SG_F16, "ane", slot, out, err);
    pthread_mutex_unlock(&st->core.lock);
    return status;
}
