/* ref_state.c: the memory of ref's states. K and V rows are in the canonical layout and the state's storage (kv/kv_rows.h). CONV
 * and DELTA slots are fp32 and copied by forks. A run computes their new contents in `next`, which commit exchanges with `fixed`;
 * so a failed run changes nothing but K and V rows after the end of the sequence, which discard drops. Everything else about
 * states is in unit/state_core.c.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "unit/ref/ref.h"

/* The row of a position whose block exists. */
static unsigned char *row_at(const struct ref_slot *s, uint64_t pos) { return sg_rows_at(&s->rows, pos); }

/* --- marks, cuts, forks: called by the core --- */

/* All recurrent slots to or from one buffer. */
static void fixed_copy(struct sg_state *st, float *buffer, int restore)
{
    for (uint32_t i = 0; i < st->core.slots_n; i++) {
        struct ref_slot *s = ref_slot_at(st, i);
        size_t bytes = s->core.fixed_bytes;
        if (bytes && restore) memcpy(s->fixed, buffer, bytes);
        if (bytes && !restore) memcpy(buffer, s->fixed, bytes);
        buffer += bytes / sizeof *buffer;
    }
}

static segue_status undo_save(struct sg_state *s, const struct sg_undo_mark *m, segue_error *err)
{
    float *buffer = s->undo[m->buffer] = sg_alloc(s->core.fixed_bytes);
    if (!buffer) return sg_no_memory("mark of a ref state", s->core.fixed_bytes, err);
    fixed_copy(s, buffer, 0);
    return SEGUE_OK;
}

static segue_status undo_restore(struct sg_state *s, const struct sg_undo_mark *m, segue_error *err)
{
    (void)err;
    fixed_copy(s, s->undo[m->buffer], 1);
    return SEGUE_OK;
}

static void undo_release(struct sg_state *s, uint32_t buffer)
{
    sg_free(s->undo[buffer]);
    s->undo[buffer] = NULL;
}

static segue_status clear(struct sg_state *s, segue_error *err)
{
    (void)err;
    for (uint32_t i = 0; i < s->core.slots_n; i++)
        if (ref_slot_at(s, i)->fixed) memset(ref_slot_at(s, i)->fixed, 0, ref_slot_at(s, i)->core.fixed_bytes);
    return SEGUE_OK;
}

static void trim(struct sg_state *st)
{
    for (uint32_t i = 0; i < st->core.slots_n; i++) {
        struct ref_slot *s = ref_slot_at(st, i);
        sg_rows_trim(&s->rows, s->core.first, s->core.end);
    }
}

/* Recurrent slots are not shared: every token rewrites all of them. */
static segue_status copy(struct sg_state *to, struct sg_state *from, segue_error *err)
{
    for (uint32_t i = 0; i < from->core.slots_n; i++) {
        const struct ref_slot *a = ref_slot_at(from, i);
        struct ref_slot *b = ref_slot_at(to, i);
        if (a->fixed) memcpy(b->fixed, a->fixed, a->core.fixed_bytes);
        SG_TRY(sg_rows_share(&b->rows, &a->rows, err));
    }
    return SEGUE_OK;
}

/* --- get and put --- */

static float *row_buffer(const struct ref_slot *s, segue_error *err)
{
    float *row = sg_alloc((size_t)s->core.slot.heads * s->core.slot.width * sizeof *row);
    if (!row) (void)sg_no_memory("a row of state", s->core.row_bytes, err);
    return row;
}

static segue_status write_slot(struct sg_state *st, uint32_t slot, uint64_t from, uint64_t to, enum sg_storage storage,
                               const void *in, segue_error *err)
{
    struct ref_slot *s = ref_slot_at(st, slot);
    size_t bytes = sg_slot_row_bytes(&s->core.slot, storage);
    if (s->fixed) {
        memcpy(s->fixed, in, s->core.fixed_bytes);
        return SEGUE_OK;
    }
    float *row = row_buffer(s, err);
    segue_status status = row ? SEGUE_OK : SEGUE_EMEMORY;
    for (uint64_t pos = from; pos < to && status == SEGUE_OK; pos++) {
        status = sg_rows_own(&s->rows, pos, pos + 1, &st->core.lock, err);
        if (status == SEGUE_OK)
            sg_slot_convert(&s->core.slot, storage, (const char *)in + (pos - from) * bytes, st->core.storage, row_at(s, pos),
                            row);
    }
    sg_free(row);
    return status;
}

/* Beside a run, rows become readable op by op; recurrent slots only when the run is done. */
segue_status ref_state_get(struct sg_state *st, uint32_t slot, uint64_t from, uint64_t to,
                           enum sg_storage storage, void *out, segue_error *err)
{
    struct sg_core_slot *c = NULL;
    SG_TRY(sg_state_core_slot(&st->core, slot, storage, "get", &c, err));
    const struct ref_slot *s = ref_slot_at(st, slot);
    size_t bytes = sg_slot_row_bytes(&c->slot, storage);
    float *row = row_buffer(s, err);
    if (!row) return SEGUE_EMEMORY;
    segue_status status = SEGUE_OK;
    pthread_mutex_lock(&st->core.lock);
    sg_state_core_wait(&st->core, c, to);
    if (s->fixed)
        memcpy(out, s->fixed, c->fixed_bytes);
    else
        status = sg_state_core_check_get(&st->core, slot, from, to, c->first, c->end, err);
    for (uint64_t pos = from; !s->fixed && status == SEGUE_OK && pos < to; pos++)
        sg_slot_convert(&c->slot, st->core.storage, row_at(s, pos), storage, (char *)out + (pos - from) * bytes, row);
    pthread_mutex_unlock(&st->core.lock);
    sg_free(row);
    return status;
}

/* Under the lock like a get: a run writes rows without it, but only at and after `end`. */
segue_status ref_state_rows(struct sg_state *st, uint32_t slot, uint64_t from, uint64_t to, enum sg_storage storage,
                            const void **out, segue_error *err)
{
    struct sg_core_slot *c = NULL;
    SG_TRY(sg_state_core_slot(&st->core, slot, storage, "get", &c, err));
    struct ref_slot *s = ref_slot_at(st, slot);
    pthread_mutex_lock(&st->core.lock);
    sg_state_core_wait(&st->core, c, to);
    segue_status status = sg_state_core_check_get(&st->core, slot, from, to, c->first, c->end, err);
    if (status == SEGUE_OK) status = sg_rows_pass(&s->rows, from, to, storage, st->core.storage, "ref", slot, out, err);
    pthread_mutex_unlock(&st->core.lock);
    return status;
}

/* --- new and free --- */

/* Recurrent slots are allocated at once, K and V block by block. */
static segue_status state_init(struct sg_state *st, const struct sg_state_opts *o, segue_error *err)
{
    st->undo = sg_arena_alloc(&st->arena, st->core.marks_cap * sizeof *st->undo);
    if (!st->undo) return sg_no_memory("ref state", st->core.marks_cap * sizeof *st->undo, err);
    for (uint32_t i = 0; i < st->core.slots_n; i++) {
        struct ref_slot *s = ref_slot_at(st, i);
        sg_rows_init(&s->rows, REF_BLOCK_TOKENS, s->core.row_bytes, s->core.slot.window, st->core.host, o ? o->rows : 0);
        if (sg_slot_grows(&s->core.slot)) continue;
        s->fixed = sg_arena_alloc(&st->arena, s->core.fixed_bytes);
        s->next = sg_arena_alloc(&st->arena, s->core.fixed_bytes);
        if (!s->fixed || !s->next) return sg_no_memory("ref state", s->core.fixed_bytes, err);
    }
    return SEGUE_OK;
}

static const struct sg_state_core_ops core_ops = {
    .unit = "ref",
    .block_tokens = REF_BLOCK_TOKENS,
    .slot_size = sizeof(struct ref_slot),
    .state_size = sizeof(struct sg_state),
    .fork_shares = 1,
    .init = state_init,
    .undo_save = undo_save,
    .undo_restore = undo_restore,
    .undo_release = undo_release,
    .clear = clear,
    .trim = trim,
    .write = write_slot,
    .copy = copy,
};

segue_status ref_state_new(struct sg_unit *u, const struct sg_slot *slots, uint32_t slots_n, const struct sg_state_opts *o,
                           struct sg_state **out, segue_error *err)
{
    return sg_state_core_new(&core_ops, u, slots, slots_n, o, SG_F32, out, err);
}

void ref_state_free(struct sg_state *st)
{
    if (!st) return;
    for (uint32_t i = 0; i < st->core.slots_n; i++) sg_rows_free(&ref_slot_at(st, i)->rows);
    sg_state_core_free(&st->core);
    sg_arena_free(&st->arena);
    sg_free(st);
}

/* Recurrent slots exist twice (fixed and next) and once per mark. */
uint64_t ref_state_bytes(const struct sg_state *st)
{
    uint64_t bytes = (uint64_t)st->core.fixed_bytes * (2 + st->core.marks_n);
    for (uint32_t i = 0; i < st->core.slots_n; i++) {
        const struct ref_slot *s = ref_slot_at(st, i);
        bytes += sg_rows_bytes(&s->rows);
    }
    return bytes;
}

/* --- for runs --- */

/* Rows are written without the lock: a get does not read at or after `end`. */
segue_status ref_state_append(struct sg_state *st, uint32_t slot, const float *rows, size_t stride, uint32_t n,
                              segue_error *err)
{
    struct ref_slot *s = ref_slot_at(st, slot);
    struct sg_core_slot *c = &s->core;
    for (uint32_t t = 0; t < n; t++) {
        SG_TRY(sg_rows_own(&s->rows, c->end + t, c->end + t + 1, &st->core.lock, err));
        sg_slot_encode(&c->slot, st->core.storage, rows + t * stride, row_at(s, c->end + t));
    }
    pthread_mutex_lock(&st->core.lock);
    c->end += n;
    pthread_cond_broadcast(&st->core.changed);
    pthread_mutex_unlock(&st->core.lock);
    return SEGUE_OK;
}

void ref_state_read(struct sg_state *st, uint32_t slot, uint64_t from, uint64_t to, float *out)
{
    const struct ref_slot *s = ref_slot_at(st, slot);
    size_t width = (size_t)s->core.slot.heads * s->core.slot.width;
    for (uint64_t pos = from; pos < to; pos++)
        sg_slot_decode(&s->core.slot, st->core.storage, row_at(s, pos), out + (pos - from) * width);
}

/* The next run starts from the contents now. */
static void next_from_fixed(struct sg_state *st)
{
    for (uint32_t i = 0; i < st->core.slots_n; i++) {
        struct ref_slot *s = ref_slot_at(st, i);
        if (s->fixed) memcpy(s->next, s->fixed, s->core.fixed_bytes);
    }
}

void ref_state_commit(struct sg_state *st, uint32_t tokens)
{
    pthread_mutex_lock(&st->core.lock);
    for (uint32_t i = 0; i < st->core.slots_n; i++) {
        struct ref_slot *s = ref_slot_at(st, i);
        float *previous = s->fixed;
        s->fixed = s->next;
        s->next = previous;
    }
    sg_state_core_advance(&st->core, tokens);
    next_from_fixed(st);
    pthread_mutex_unlock(&st->core.lock);
}

void ref_state_discard(struct sg_state *st)
{
    pthread_mutex_lock(&st->core.lock);
    sg_state_core_retain(&st->core);
    next_from_fixed(st);
    pthread_cond_broadcast(&st->core.changed);
    pthread_mutex_unlock(&st->core.lock);
}
