/* serve_state.c: states, and the transfer of their contents through the bulk memory of the second connection. A state in
 * use by the second connection cannot be freed or changed by the first. SPDX-License-Identifier: MIT */
#include "unit/finite.h"
#include "unit/proc/server.h"

/* Bounds of requests: the peer may be damaged, and this process must not allocate without limit. */
enum { SLOTS_MAX = 1 << 16, UNDO_MAX = 64 };

/* NULL: the number in the request is unknown. */
static struct sg_server_state *state_find(struct sg_server *v, struct sg_reader *in)
{
    uint32_t id = sg_reader_u32(in);
    return !in->bad && id < v->states_n && v->states[id].state ? &v->states[id] : NULL;
}

static segue_status unknown_state(segue_error *err) { return sg_server_reject(err, "a state: unknown number"); }

/* Length, bytes, and the first position of each slot: struct sg_wire_held of the peer. */
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

/* --- new, fork, free --- */

/* Enters a state under the number that the peer chose. Locked, because the table may be reallocated. */
static segue_status state_register(struct sg_server *v, uint32_t id, struct sg_state *state, const struct sg_slot *slots,
                               uint32_t slots_n, segue_error *err)
{
    struct sg_slot *copy = sg_alloc(slots_n * sizeof *copy);
    if (!copy) return sg_no_memory("state", slots_n * sizeof *copy, err);
    if (slots_n) memcpy(copy, slots, slots_n * sizeof *copy);
    pthread_mutex_lock(&v->lock);
    segue_status status = sg_server_table_grow(&v->states, &v->states_n, id, SG_WIRE_STATES, sizeof *v->states, err);
    if (status == SEGUE_OK && v->states[id].state) status = sg_server_reject(err, "a state: its number is in use");
    if (status == SEGUE_OK) v->states[id] = (struct sg_server_state){.state = state, .slots = copy, .slots_n = slots_n};
    pthread_mutex_unlock(&v->lock);
    if (status != SEGUE_OK) sg_free(copy);
    return status;
}

/* Sizes are limited before the unit allocates. */
static segue_status serve_new(struct sg_server *v, struct sg_reader *in, struct sg_buf *out, segue_error *err)
{
    struct sg_slot *slots;
    uint32_t slots_n, id = sg_reader_u32(in), kv = sg_reader_u32(in);
    struct sg_state_opts o = {.kv = SG_F32};
    o.rows = sg_reader_u64(in);
    o.undo = sg_reader_u32(in);
    if (in->bad || kv >= SG_STORAGE_N || o.rows > INT32_MAX || o.undo > UNDO_MAX)
        return sg_server_reject(err, "a new state: damaged");
    o.kv = (enum sg_storage)kv;
    SG_TRY(sg_wire_slots_read(in, SLOTS_MAX, &slots, &slots_n, err));
    struct sg_state *state = NULL;
    segue_status status = sg_reader_done(in) ? v->ops->state_new(v->unit, slots, slots_n, &o, &state, err)
                                             : sg_server_reject(err, "a new state: damaged");
    if (status == SEGUE_OK) {
        status = state_register(v, id, state, slots, slots_n, err);
        if (status == SEGUE_OK) sg_serve_held_write(v, &v->states[id], out);
        else v->ops->state_free(state);
    }
    sg_free(slots);
    return status;
}

/* The fork gets the number that the peer chose. */
static segue_status serve_fork(struct sg_server *v, struct sg_server_state *s, struct sg_reader *in, struct sg_buf *out,
                               segue_error *err)
{
    uint32_t id = sg_reader_u32(in);
    struct sg_state *fork = NULL;
    if (!sg_reader_done(in)) return sg_server_reject(err, "a fork: damaged");
    SG_TRY(v->ops->state_fork(s->state, &fork, err));
    segue_status status = state_register(v, id, fork, s->slots, s->slots_n, err);
    if (status == SEGUE_OK) sg_serve_held_write(v, &v->states[id], out);
    else v->ops->state_free(fork);
    return status;
}

/* Refused while the second connection uses the state. */
static segue_status serve_free(struct sg_server *v, struct sg_server_state *s, segue_error *err)
{
    pthread_mutex_lock(&v->lock);
    /* Taken out of the table under the lock, so that the other thread cannot find it while it is freed. */
    struct sg_server_state old = *s;
    if (!old.users) *s = (struct sg_server_state){0};
    pthread_mutex_unlock(&v->lock);
    if (old.users) return sg_server_reject(err, "a state to free: it is being read");
    v->ops->state_free(old.state);
    sg_free(old.slots);
    return SEGUE_OK;
}

/* After both connections ended. */
void sg_serve_states_free(struct sg_server *v)
{
    for (uint32_t i = 0; i < v->states_n; i++) {
        if (!v->states[i].state) continue;
        v->ops->state_free(v->states[i].state);
        sg_free(v->states[i].slots);
    }
    sg_free(v->states);
}

/* --- marks and cuts --- */

/* Refused during a call of the second connection: units allow a get beside runs only. */
static segue_status serve_change(struct sg_server *v, uint32_t kind, struct sg_server_state *s, uint64_t n,
                                 struct sg_buf *out, segue_error *err)
{
    uint32_t mark = (uint32_t)n;
    pthread_mutex_lock(&v->lock);
    uint32_t users = s->users;
    pthread_mutex_unlock(&v->lock);
    if (users) return sg_server_reject(err, "a state to change: it is being read");
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

/* Requests of the first connection: new, fork, free and changes. The reply ends with the description of the state. */
segue_status sg_serve_state(struct sg_server *v, uint32_t kind, struct sg_reader *in, struct sg_buf *out, segue_error *err)
{
    if (kind == SG_WIRE_STATE_NEW) return serve_new(v, in, out, err);
    struct sg_server_state *s = state_find(v, in);
    if (!s) return unknown_state(err);
    if (kind == SG_WIRE_STATE_FORK) return serve_fork(v, s, in, out, err);
    uint64_t n = kind == SG_WIRE_STATE_FREE ? 0 : sg_reader_u64(in);
    if (!sg_reader_done(in)) return sg_server_reject(err, "a state to change: damaged");
    if (kind == SG_WIRE_STATE_FREE) return serve_free(v, s, err);
    return serve_change(v, kind, s, n, out, err);
}

/* --- get and put --- */

/* Bytes of the requested positions or slot; UINT64_MAX: invalid. */
static uint64_t bytes_of(const struct sg_slot *slot, enum sg_storage storage, uint64_t from, uint64_t to)
{
    size_t fixed = sg_slot_fixed_bytes(slot), row = sg_slot_row_bytes(slot, storage);
    if (slot->kind == SG_SLOT_CONV || slot->kind == SG_SLOT_DELTA) return storage == SG_F32 ? fixed : UINT64_MAX;
    if (from > to || to > INT32_MAX || (!row && slot->heads && slot->width)) return UINT64_MAX;
    return row && to - from > UINT32_MAX ? UINT64_MAX : (to - from) * row;
}

/* s is a copy of the table entry, because the table may move. Bounds are checked against the bulk memory before the unit sees
 * the address; positions are checked by the unit. */
static segue_status get_or_put(struct sg_server *v, uint32_t kind, const struct sg_server_state *s, struct sg_reader *in,
                              segue_error *err)
{
    uint32_t slot = sg_reader_u32(in), storage = sg_reader_u32(in);
    uint64_t from = sg_reader_u64(in), to = sg_reader_u64(in), at = sg_reader_u64(in);
    const struct sg_shared *area = &v->areas[1];
    if (!sg_reader_done(in) || storage >= SG_STORAGE_N) return sg_server_reject(err, "state contents: damaged");
    if (slot == UINT32_MAX && kind == SG_WIRE_STATE_PUT)
        return to > INT32_MAX ? sg_server_reject(err, "state contents: too many tokens")
                              : v->ops->state_put(s->state, slot, from, to, (enum sg_storage)storage, NULL, err);
    uint64_t bytes = slot < s->slots_n ? bytes_of(&s->slots[slot], (enum sg_storage)storage, from, to) : UINT64_MAX;
    if (!area->data || at > area->size || bytes > area->size - at)
        return sg_server_reject(err, "state contents: outside of the shared memory");
    uint8_t *data = area->data + at;
    if (kind != SG_WIRE_STATE_GET) return v->ops->state_put(s->state, slot, from, to, (enum sg_storage)storage, data, err);
    SG_TRY(v->ops->state_get(s->state, slot, from, to, (enum sg_storage)storage, data, err));
    if (sg_numbers_finite(data, bytes, (enum sg_storage)storage)) return SEGUE_OK;
    return sg_fail(err, SEGUE_EFORMAT, "state: slot %u: its rows are not numbers; the weights are damaged", slot);
}

/* May run beside a run of the first connection. `users` keeps the state alive meanwhile. */
segue_status sg_serve_get_put(struct sg_server *v, uint32_t kind, struct sg_reader *in, struct sg_buf *out, segue_error *err)
{
    pthread_mutex_lock(&v->lock);
    struct sg_server_state *s = state_find(v, in), copy = {0};
    uint32_t id = s ? (uint32_t)(s - v->states) : 0;
    if (s) {
        s->users++;
        copy = *s;
    }
    pthread_mutex_unlock(&v->lock);
    if (!s) return unknown_state(err);
    segue_status status = get_or_put(v, kind, &copy, in, err);
    if (status == SEGUE_OK && kind == SG_WIRE_STATE_PUT) sg_serve_held_write(v, &copy, out);
    pthread_mutex_lock(&v->lock);
    /* By number: the table may have moved during the call. */
    v->states[id].users--;
    pthread_mutex_unlock(&v->lock);
    return status;
}
