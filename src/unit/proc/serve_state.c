/* serve_state.c: states of the other side, and their rows in bulk memory. What one connection frees the other may not be
 * using. SPDX-License-Identifier: MIT */
#include "unit/proc/server.h"

enum { SLOTS_MOST = 1 << 16, UNDO_MOST = 64 };

/* --- finding --- */

static struct sg_server_state *state_take(struct sg_server *v, struct sg_reader *in)
{
    uint32_t id = sg_take_u32(in);
    return !in->bad && id < v->states_n && v->states[id].state ? &v->states[id] : NULL;
}

static segue_status no_state(segue_error *err) { return sg_server_reject(err, "a state: there is none of this number"); }

void sg_serve_held_write(struct sg_server *v, const struct sg_server_state *s, struct sg_buf *out)
{
    uint64_t rows = 0, first = 0;
    if (s->slots_n) v->ops->state_held(s->state, 0, &first, &rows);
    sg_put_u64(out, rows);
    sg_put_u64(out, v->ops->state_bytes(s->state));
    for (uint32_t i = 0; i < s->slots_n; i++) {
        uint64_t same;
        v->ops->state_held(s->state, i, &first, &same);
        sg_put_u64(out, first);
    }
}

/* --- making and letting go --- */

/* A number of the caller's choice for a state that is there; under the lock, since the table may move. */
static segue_status state_keep(struct sg_server *v, uint32_t id, struct sg_state *state, const struct sg_slot *slots,
                               uint32_t slots_n, segue_error *err)
{
    struct sg_slot *copy = sg_alloc(slots_n * sizeof *copy);
    if (!copy) return sg_no_memory("state", slots_n * sizeof *copy, err);
    if (slots_n) memcpy(copy, slots, slots_n * sizeof *copy);
    pthread_mutex_lock(&v->lock);
    segue_status status = sg_server_table_grow(&v->states, &v->states_n, id, SG_WIRE_STATES, sizeof *v->states, err);
    if (status == SEGUE_OK && v->states[id].state) status = sg_server_reject(err, "a state: its number is taken");
    if (status == SEGUE_OK) v->states[id] = (struct sg_server_state){.state = state, .slots = copy, .slots_n = slots_n};
    pthread_mutex_unlock(&v->lock);
    if (status != SEGUE_OK) sg_free(copy);
    return status;
}

static segue_status serve_new(struct sg_server *v, struct sg_reader *in, struct sg_buf *out, segue_error *err)
{
    struct sg_slot *slots;
    uint32_t slots_n, id = sg_take_u32(in), kv = sg_take_u32(in);
    struct sg_state_opts o = {.kv = SG_F32};
    o.rows = sg_take_u64(in);
    o.undo = sg_take_u32(in);
    if (in->bad || kv >= SG_STORAGE_N || o.rows > INT32_MAX || o.undo > UNDO_MOST)
        return sg_server_reject(err, "a new state: it is damaged");
    o.kv = (enum sg_storage)kv;
    SG_TRY(sg_wire_slots_take(in, SLOTS_MOST, &slots, &slots_n, err));
    struct sg_state *state = NULL;
    segue_status status = sg_reader_done(in) ? v->ops->state_new(v->unit, slots, slots_n, &o, &state, err)
                                             : sg_server_reject(err, "a new state: it is damaged");
    if (status == SEGUE_OK) {
        status = state_keep(v, id, state, slots, slots_n, err);
        if (status == SEGUE_OK) sg_serve_held_write(v, &v->states[id], out);
        else v->ops->state_free(state);
    }
    sg_free(slots);
    return status;
}

static segue_status serve_fork(struct sg_server *v, struct sg_server_state *s, struct sg_reader *in, struct sg_buf *out,
                               segue_error *err)
{
    uint32_t id = sg_take_u32(in);
    struct sg_state *fork = NULL;
    if (!sg_reader_done(in)) return sg_server_reject(err, "a fork: it is damaged");
    SG_TRY(v->ops->state_fork(s->state, &fork, err));
    segue_status status = state_keep(v, id, fork, s->slots, s->slots_n, err);
    if (status == SEGUE_OK) sg_serve_held_write(v, &v->states[id], out);
    else v->ops->state_free(fork);
    return status;
}

static segue_status serve_free(struct sg_server *v, struct sg_server_state *s, segue_error *err)
{
    pthread_mutex_lock(&v->lock);
    struct sg_server_state gone = *s;
    if (!gone.users) *s = (struct sg_server_state){0};
    pthread_mutex_unlock(&v->lock);
    if (gone.users) return sg_server_reject(err, "a state to let go: its rows are being read");
    v->ops->state_free(gone.state);
    sg_free(gone.slots);
    return SEGUE_OK;
}

void sg_serve_states_free(struct sg_server *v)
{
    for (uint32_t i = 0; i < v->states_n; i++) {
        if (!v->states[i].state) continue;
        v->ops->state_free(v->states[i].state);
        sg_free(v->states[i].slots);
    }
    sg_free(v->states);
}

/* --- going back --- */

/* Not beside a call of the second connection: units allow rows to be read beside runs only. */
static segue_status serve_change(struct sg_server *v, uint32_t kind, struct sg_server_state *s, uint64_t n,
                                 struct sg_buf *out, segue_error *err)
{
    uint32_t mark = (uint32_t)n;
    pthread_mutex_lock(&v->lock);
    uint32_t users = s->users;
    pthread_mutex_unlock(&v->lock);
    if (users) return sg_server_reject(err, "a state to change: its rows are being read");
    segue_status status = SEGUE_OK;
    if (kind == SG_WIRE_STATE_MARK) status = v->ops->state_mark(s->state, &mark, err);
    else if (kind == SG_WIRE_STATE_BACK) status = v->ops->state_back(s->state, mark, err);
    else if (kind == SG_WIRE_STATE_DROP) v->ops->state_drop(s->state, mark);
    else status = v->ops->state_cut(s->state, n, err);
    SG_TRY(status);
    sg_put_u32(out, mark);
    sg_serve_held_write(v, s, out);
    return SEGUE_OK;
}

segue_status sg_serve_state(struct sg_server *v, uint32_t kind, struct sg_reader *in, struct sg_buf *out, segue_error *err)
{
    if (kind == SG_WIRE_STATE_NEW) return serve_new(v, in, out, err);
    struct sg_server_state *s = state_take(v, in);
    if (!s) return no_state(err);
    if (kind == SG_WIRE_STATE_FORK) return serve_fork(v, s, in, out, err);
    uint64_t n = kind == SG_WIRE_STATE_FREE ? 0 : sg_take_u64(in);
    if (!sg_reader_done(in)) return sg_server_reject(err, "a state to change: the request is damaged");
    if (kind == SG_WIRE_STATE_FREE) return serve_free(v, s, err);
    return serve_change(v, kind, s, n, out, err);
}

/* --- rows --- */

/* Bytes of what is asked for, or UINT64_MAX. */
static uint64_t bytes_of(const struct sg_slot *slot, enum sg_storage storage, uint64_t from, uint64_t to)
{
    size_t fixed = sg_slot_fixed_bytes(slot), row = sg_slot_row_bytes(slot, storage);
    if (slot->kind == SG_SLOT_CONV || slot->kind == SG_SLOT_DELTA) return storage == SG_F32 ? fixed : UINT64_MAX;
    if (from > to || to > INT32_MAX || (!row && slot->heads && slot->width)) return UINT64_MAX;
    return row && to - from > UINT32_MAX ? UINT64_MAX : (to - from) * row;
}

static segue_status move_rows(struct sg_server *v, uint32_t kind, const struct sg_server_state *s, struct sg_reader *in,
                              segue_error *err)
{
    uint32_t slot = sg_take_u32(in), storage = sg_take_u32(in);
    uint64_t from = sg_take_u64(in), to = sg_take_u64(in), at = sg_take_u64(in);
    const struct sg_shared *area = &v->areas[1];
    if (!sg_reader_done(in) || storage >= SG_STORAGE_N) return sg_server_reject(err, "rows of a state: it is damaged");
    if (slot == UINT32_MAX && kind == SG_WIRE_STATE_PUT)
        return to > INT32_MAX ? sg_server_reject(err, "rows of a state: too many")
                              : v->ops->state_put(s->state, slot, from, to, (enum sg_storage)storage, NULL, err);
    uint64_t bytes = slot < s->slots_n ? bytes_of(&s->slots[slot], (enum sg_storage)storage, from, to) : UINT64_MAX;
    if (!area->data || at > area->size || bytes > area->size - at)
        return sg_server_reject(err, "rows of a state: they have no place in the shared memory");
    uint8_t *place = area->data + at;
    return kind == SG_WIRE_STATE_GET
               ? v->ops->state_get(s->state, slot, from, to, (enum sg_storage)storage, place, err)
               : v->ops->state_put(s->state, slot, from, to, (enum sg_storage)storage, place, err);
}

/* Beside a run of the first connection. */
segue_status sg_serve_get_put(struct sg_server *v, uint32_t kind, struct sg_reader *in, struct sg_buf *out, segue_error *err)
{
    pthread_mutex_lock(&v->lock);
    struct sg_server_state *s = state_take(v, in), copy = {0};
    uint32_t id = s ? (uint32_t)(s - v->states) : 0;
    if (s) {
        s->users++;
        copy = *s;
    }
    pthread_mutex_unlock(&v->lock);
    if (!s) return no_state(err);
    segue_status status = move_rows(v, kind, &copy, in, err);
    if (status == SEGUE_OK && kind == SG_WIRE_STATE_PUT) sg_serve_held_write(v, &copy, out);
    pthread_mutex_lock(&v->lock);
    v->states[id].users--;
    pthread_mutex_unlock(&v->lock);
    return status;
}
