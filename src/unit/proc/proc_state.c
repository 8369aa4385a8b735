/* proc_state.c: states, whose memory is in the child. get and put use the bulk memory of the second connection, so that they can
 * run beside a run. Length, memory and first positions are cached from the last reply.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "unit/finite.h"
#include "unit/proc/proc.h"
#include "unit/state_core.h"

/* A child that reports a state of 2^50 bytes or more is treated as damaged. */
enum { STATE_BYTES_LOG2_MAX = 50 };

/* `generation` is the number of the child: states do not survive a restart. */
segue_status proc_state_here(struct sg_unit *u, const struct sg_state *s, segue_error *err)
{
    SG_TRY(proc_is_lost(u, err));
    if (s->generation == u->generation) return SEGUE_OK;
    return sg_fail(err, SEGUE_ELOST, "unit lost: %s: the state was lost with its process; compute it again",
                   u->desc.info.spec);
}

/* --- cached properties --- */

segue_status proc_held_read(struct sg_state *s, struct sg_reader *in, uint64_t rows, segue_error *err)
{
    struct sg_unit *u = s->base.unit;
    uint64_t held = sg_reader_u64(in), bytes = sg_reader_u64(in);
    const uint8_t *first = sg_reader_bytes(in, s->slots_n * sizeof *s->held.first);
    /* The child is not trusted: everything is checked before any field changes. rows: the expected length; UINT64_MAX: any. */
    int sound = first && held <= INT32_MAX && bytes >> STATE_BYTES_LOG2_MAX == 0 && (rows == UINT64_MAX || held == rows);
    for (uint32_t i = 0; sound && i < s->slots_n; i++) sound = sg_le64(first + 8 * i) <= INT32_MAX;
    if (!sound) return proc_lose(u, "it sent an invalid state description", err);
    pthread_mutex_lock(&u->lock);
    s->held.rows = held;
    s->held.bytes = bytes;
    for (uint32_t i = 0; i < s->slots_n; i++) s->held.first[i] = sg_le64(first + 8 * i);
    pthread_mutex_unlock(&u->lock);
    return SEGUE_OK;
}

/* From the cache: no request. */
void proc_state_held(const struct sg_state *s, uint32_t slot, uint64_t *first, uint64_t *rows)
{
    struct sg_unit *u = s->base.unit;
    pthread_mutex_lock(&u->lock);
    *rows = s->held.rows;
    *first = slot < s->slots_n ? s->held.first[slot] : 0;
    pthread_mutex_unlock(&u->lock);
}

/* From the cache, as of the last reply. */
uint64_t proc_state_bytes(const struct sg_state *s)
{
    struct sg_unit *u = s->base.unit;
    pthread_mutex_lock(&u->lock);
    uint64_t bytes = s->held.bytes;
    pthread_mutex_unlock(&u->lock);
    return bytes;
}

/* --- new, free, fork --- */

/* Frees this side only; the child's state is freed by a request or with the child. */
static void state_release(struct sg_state *s)
{
    if (!s) return;
    sg_free(s->slots);
    sg_free(s->held.first);
    sg_free(s);
}

/* This side of a state, with a new number. In the first connection. */
static segue_status state_alloc(struct sg_unit *u, const struct sg_slot *slots, uint32_t n, struct sg_state **out,
                               segue_error *err)
{
    struct sg_state *s = sg_alloc(sizeof *s);
    if (!s) return sg_no_memory("state", sizeof *s, err);
    s->base = (struct sg_state_base){u->base.ops, u};
    s->slots = sg_alloc(n * sizeof *s->slots);
    s->held.first = sg_alloc(n * sizeof *s->held.first);
    s->slots_n = n;
    s->generation = u->generation;
    segue_status status = s->slots && s->held.first ? proc_number(&u->state_ids, &u->state_ids_n, SG_WIRE_STATES, &s->id, err)
                                                    : sg_no_memory("state", n * sizeof *s->slots, err);
    if (status != SEGUE_OK) {
        state_release(s);
        return status;
    }
    if (n) memcpy(s->slots, slots, n * sizeof *slots);
    *out = s;
    return SEGUE_OK;
}

/* Sends the request that creates it in the child. A failure frees it here. */
static segue_status state_create(struct sg_unit *u, struct sg_state *s, uint32_t kind, segue_error *err)
{
    struct sg_reader in;
    segue_status status = proc_call(u, PROC_FIRST, kind, -1, 0, &in, err);
    if (status == SEGUE_OK) status = proc_held_read(s, &in, UINT64_MAX, err);
    if (status == SEGUE_OK) return SEGUE_OK;
    u->state_ids[s->id] = 0;
    state_release(s);
    return status;
}

segue_status proc_state_new(struct sg_unit *u, const struct sg_slot *slots, uint32_t slots_n,
                            const struct sg_state_opts *o, struct sg_state **out, segue_error *err)
{
    struct sg_state *s = NULL;
    proc_enter(u, PROC_FIRST);
    segue_status status = proc_is_lost(u, err);
    if (status == SEGUE_OK) status = state_alloc(u, slots, slots_n, &s, err);
    if (status == SEGUE_OK) {
        struct sg_buf *b = proc_request(u, PROC_FIRST);
        sg_put_u32(b, s->id);
        sg_put_u32(b, o ? (uint32_t)o->kv : SG_F32);
        sg_put_u64(b, o ? o->rows : 0);
        sg_put_u32(b, o ? o->undo : 0);
        sg_wire_slots_write(b, slots, slots_n);
        status = state_create(u, s, SG_WIRE_STATE_NEW, err);
    }
    proc_leave(u, PROC_FIRST);
    if (status == SEGUE_OK) *out = s;
    return status;
}

/* The child forks its state; both share KV blocks there. */
segue_status proc_state_fork(struct sg_state *from, struct sg_state **out, segue_error *err)
{
    struct sg_unit *u = from->base.unit;
    struct sg_state *s = NULL;
    proc_enter(u, PROC_FIRST);
    segue_status status = proc_state_here(u, from, err);
    if (status == SEGUE_OK) status = state_alloc(u, from->slots, from->slots_n, &s, err);
    if (status == SEGUE_OK) {
        struct sg_buf *b = proc_request(u, PROC_FIRST);
        sg_put_u32(b, from->id);
        sg_put_u32(b, s->id);
        status = state_create(u, s, SG_WIRE_STATE_FORK, err);
    }
    proc_leave(u, PROC_FIRST);
    if (status == SEGUE_OK) *out = s;
    return status;
}

/* A state of a previous child exists on this side only. */
void proc_state_free(struct sg_state *s)
{
    if (!s) return;
    struct sg_unit *u = s->base.unit;
    struct sg_reader in;
    proc_enter(u, PROC_FIRST);
    if (s->generation == u->generation) {
        sg_put_u32(proc_request(u, PROC_FIRST), s->id);
        /* The number is reused only when the child confirmed that it is free. */
        if (proc_call(u, PROC_FIRST, SG_WIRE_STATE_FREE, -1, 0, &in, NULL) == SEGUE_OK) u->state_ids[s->id] = 0;
    }
    proc_leave(u, PROC_FIRST);
    state_release(s);
}

/* --- marks and cuts --- */

/* mark, back, drop, cut: sends a number; the reply has a mark and the description of the state. */
static segue_status change(struct sg_state *s, uint32_t kind, uint64_t n, uint32_t *mark, segue_error *err)
{
    struct sg_unit *u = s->base.unit;
    struct sg_reader in;
    proc_enter(u, PROC_FIRST);
    segue_status status = proc_state_here(u, s, err);
    if (status == SEGUE_OK) {
        struct sg_buf *b = proc_request(u, PROC_FIRST);
        sg_put_u32(b, s->id);
        sg_put_u64(b, n);
        status = proc_call(u, PROC_FIRST, kind, -1, 0, &in, err);
    }
    if (status == SEGUE_OK) {
        /* A cut is the only change whose resulting length is known here. */
        uint32_t number = sg_reader_u32(&in);
        if (mark) *mark = number;
        status = proc_held_read(s, &in, kind == SG_WIRE_STATE_CUT && s->slots_n ? n : UINT64_MAX, err);
    }
    proc_leave(u, PROC_FIRST);
    return status;
}

segue_status proc_state_mark(struct sg_state *s, uint32_t *mark, segue_error *err)
{
    return change(s, SG_WIRE_STATE_MARK, 0, mark, err);
}

segue_status proc_state_back(struct sg_state *s, uint32_t mark, segue_error *err)
{
    return change(s, SG_WIRE_STATE_BACK, mark, NULL, err);
}

void proc_state_drop(struct sg_state *s, uint32_t mark) { change(s, SG_WIRE_STATE_DROP, mark, NULL, NULL); }

segue_status proc_state_cut(struct sg_state *s, uint64_t rows, segue_error *err)
{
    return change(s, SG_WIRE_STATE_CUT, rows, NULL, err);
}

/* --- get and put --- */

/* Request of get and put; the data is at offset 0 of the bulk memory. */
static void rows_request(struct sg_unit *u, const struct sg_state *s, uint32_t slot, uint64_t from, uint64_t to,
                         enum sg_storage storage)
{
    struct sg_buf *b = proc_request(u, PROC_SECOND);
    sg_put_u32(b, s->id);
    sg_put_u32(b, slot);
    sg_put_u32(b, (uint32_t)storage);
    sg_put_u64(b, from);
    sg_put_u64(b, to);
    sg_put_u64(b, 0);
}

/* A piece that fits into bulk memory. A get may wait for the step in flight, so its time limit is that of this step. */
static segue_status get_piece(struct sg_state *s, uint32_t slot, uint64_t from, uint64_t to, enum sg_storage storage,
                              size_t bytes, uint8_t *out, segue_error *err)
{
    struct sg_unit *u = s->base.unit;
    struct sg_reader in;
    SG_TRY(proc_area(u, PROC_SECOND, bytes, err));
    rows_request(u, s, slot, from, to, storage);
    SG_TRY(proc_call(u, PROC_SECOND, SG_WIRE_STATE_GET, -1, proc_time_limit(u, atomic_load(&u->run_rows)), &in, err));
    memcpy(out, u->child.areas[PROC_SECOND].data, bytes);
    return sg_numbers_finite(out, bytes, storage) ? SEGUE_OK : proc_lose(u, "its state has NaN or infinite values", err);
}

/* The reply has the new description of the state. bytes 0: validation, or a slot without rows. */
static segue_status put_piece(struct sg_state *s, uint32_t slot, uint64_t from, uint64_t to, enum sg_storage storage,
                              size_t bytes, const uint8_t *data, segue_error *err)
{
    struct sg_unit *u = s->base.unit;
    struct sg_reader in;
    if (bytes) SG_TRY(proc_area(u, PROC_SECOND, bytes, err));
    if (bytes) memcpy(u->child.areas[PROC_SECOND].data, data, bytes);
    rows_request(u, s, slot, from, to, storage);
    SG_TRY(proc_call(u, PROC_SECOND, SG_WIRE_STATE_PUT, -1, 0, &in, err));
    return proc_held_read(s, &in, slot == UINT32_MAX && s->slots_n ? to : UINT64_MAX, err);
}

/* get (out) or put (data), in pieces of the size of the bulk memory. */
static segue_status transfer(struct sg_state *s, uint32_t slot, uint64_t from, uint64_t to, enum sg_storage storage, uint8_t *out,
                         const uint8_t *data, segue_error *err)
{
    struct sg_unit *u = s->base.unit;
    if (slot == UINT32_MAX && data == NULL && out == NULL) return put_piece(s, slot, from, to, storage, 0, NULL, err);
    if (slot >= s->slots_n)
        return sg_fail(err, SEGUE_EARG, "state: %s: slot %u of %u does not exist", u->desc.info.spec, slot,
                       s->slots_n);
    /* Recurrent slots are one piece: they are written as a whole or not at all. */
    const struct sg_slot *what = &s->slots[slot];
    size_t fixed = sg_slot_fixed_bytes(what), row = sg_slot_row_bytes(what, storage);
    if (!sg_slot_grows(what) || from >= to) {
        size_t bytes = sg_slot_grows(what) ? 0 : fixed;
        return out ? get_piece(s, slot, from, to, storage, bytes, out, err)
                   : put_piece(s, slot, from, to, storage, bytes, data, err);
    }
    uint64_t max = row && row < u->child.areas[PROC_SECOND].size ? u->child.areas[PROC_SECOND].size / row : 1;
    for (uint64_t at = from, n; at < to; at += n) {
        n = to - at < max ? to - at : max;
        size_t skip = (size_t)(at - from) * row;
        SG_TRY(out ? get_piece(s, slot, at, at + n, storage, (size_t)n * row, out + skip, err)
                   : put_piece(s, slot, at, at + n, storage, (size_t)n * row, data + skip, err));
    }
    return SEGUE_OK;
}

segue_status proc_state_get(struct sg_state *s, uint32_t slot, uint64_t from, uint64_t to, enum sg_storage storage,
                            void *out, segue_error *err)
{
    struct sg_unit *u = s->base.unit;
    proc_enter(u, PROC_SECOND);
    segue_status status = proc_state_here(u, s, err);
    if (status == SEGUE_OK) status = transfer(s, slot, from, to, storage, out, NULL, err);
    proc_leave(u, PROC_SECOND);
    return status;
}

segue_status proc_state_put(struct sg_state *s, uint32_t slot, uint64_t from, uint64_t to, enum sg_storage storage,
                            const void *in, segue_error *err)
{
    struct sg_unit *u = s->base.unit;
    proc_enter(u, PROC_SECOND);
    segue_status status = proc_state_here(u, s, err);
    if (status == SEGUE_OK) status = transfer(s, slot, from, to, storage, NULL, in, err);
    proc_leave(u, PROC_SECOND);
    return status;
}
