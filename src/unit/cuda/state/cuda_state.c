/* cuda_state.c: what the unit remembers of a sequence, in GPU memory. K and V rows lie one after the other in
 * the canonical layout and the storage that was asked for; a slot that grows moves to a larger piece.
 * Convolution and delta slots are fp32 and changed in place: a pass is issued whole or not at all. Forks copy
 * on the GPU (a gigabyte takes half a millisecond there), so two states never share memory. No row is ever
 * let go before the state is. SPDX-License-Identifier: MIT */
#include <string.h>

#include "unit/cuda/cu.h"
#include "unit/cuda/compile/fits.h"
#include "unit/state_validate.h"

enum { ROWS_LEAST = 256, TOGETHER_MB = 64 };

static int is_rows(const struct cu_slot *s) { return s->slot.kind == SG_SLOT_K || s->slot.kind == SG_SLOT_V; }

enum ck_storage cu_storage_of(enum sg_storage s)
{
    return s == SG_F32 ? CK_KV_F32 : s == SG_F16 ? CK_KV_F16 : s == SG_BF16 ? CK_KV_BF16 : CK_KV_Q8;
}

/* What move_bytes and clear_bytes began is over. */
static segue_status moved_all(struct sg_unit *u, segue_error *err)
{
    cu_enter(u);
    cu_result r = u->d.stream_wait(u->copies);
    cu_leave(u);
    return cu_check(&u->d, r, "copy state", err);
}

static segue_status move_bytes(struct sg_unit *u, cu_ptr to, cu_ptr from, size_t n, segue_error *err)
{
    if (!n) return SEGUE_OK;
    pthread_mutex_lock(&u->copying);
    cu_enter(u);
    cu_result r = cu_moves_begin(u);
    if (!r) r = u->d.copy(to, from, n, u->copies);
    cu_leave(u);
    pthread_mutex_unlock(&u->copying);
    return cu_check(&u->d, r, "copy state", err);
}

static segue_status clear_bytes(struct sg_unit *u, cu_ptr to, size_t n, segue_error *err)
{
    if (!n) return SEGUE_OK;
    pthread_mutex_lock(&u->copying);
    cu_enter(u);
    cu_result r = cu_moves_begin(u);
    if (!r) r = u->d.fill(to, 0, n, u->copies);
    cu_leave(u);
    pthread_mutex_unlock(&u->copying);
    return cu_check(&u->d, r, "clear state", err);
}

/* A step ahead only reads what is held, but what changes or frees memory has to wait for it; it is dropped
 * then. */
segue_status cu_state_settle(struct sg_state *s, segue_error *err)
{
    struct sg_unit *u = s->base.unit;
    s->version++;
    segue_status status = s->clearing ? moved_all(u, err) : SEGUE_OK;
    if (status == SEGUE_OK) s->clearing = 0;
    if (!s->ahead) return status;
    cu_enter(u);
    cu_result r = u->d.wait_all();
    cu_leave(u);
    s->ahead = 0;
    return status == SEGUE_OK ? cu_check(&u->d, r, "wait for a step", err) : status;
}

/* Fixed slots lie in one piece, each at a multiple of 256 bytes; so do their other copies. */
void cu_state_place(struct sg_state *s)
{
    size_t at = 0;
    for (uint32_t i = 0; i < s->slots_n; i++) {
        struct cu_slot *slot = &s->slots[i];
        if (!slot->fixed_bytes) continue;
        slot->memory = s->fixed ? s->fixed + at : 0;
        slot->other = s->fixed_other ? s->fixed_other + at : 0;
        at += (slot->fixed_bytes + 255) / 256 * 256;
    }
}

segue_status cu_state_others(struct sg_state *s, segue_error *err)
{
    if (s->fixed_other || !s->fixed_bytes) return SEGUE_OK;
    SG_TRY(cu_piece_take(s->base.unit, s->fixed_bytes, &s->fixed_other, err));
    cu_state_place(s);
    return SEGUE_OK;
}

segue_status cu_state_fixed(struct sg_state *s, segue_error *err)
{
    if (s->fixed || !s->fixed_bytes) return SEGUE_OK;
    SG_TRY(cu_piece_take(s->base.unit, s->fixed_bytes, &s->fixed, err));
    cu_state_place(s);
    return SEGUE_OK;
}

static uint64_t room_for(uint64_t rows) { return ((rows < ROWS_LEAST ? ROWS_LEAST : rows) + 63) / 64 * 64; }

/* A slot's memory is let go; what several slots share, with the last of them. */
static void rows_leave(struct sg_state *st, struct cu_slot *s)
{
    if (!s->together) {
        cu_piece_leave(st->base.unit, &s->memory, (size_t)s->room * s->row_bytes);
        return;
    }
    s->together = 0;
    s->memory = 0;
    if (!--st->together.slots) cu_piece_leave(st->base.unit, &st->together.memory, st->together.bytes);
}

/* Room for `rows` rows; those held are kept. */
static segue_status slot_grow(struct sg_state *st, struct cu_slot *s, uint64_t rows, segue_error *err)
{
    struct sg_unit *u = st->base.unit;
    uint64_t room = room_for(s->room * 2 > rows ? s->room * 2 : rows);
    size_t bytes;
    cu_ptr wider;
    if (rows <= s->room) return SEGUE_OK;
    SG_TRY(sg_mul(room, s->row_bytes, &bytes, "state slot", err));
    segue_status status = cu_piece_take(u, bytes, &wider, err);
    if (status == SEGUE_EMEMORY && room > rows) { /* no room to double: what is needed alone may fit */
        room = (rows + 63) / 64 * 64;
        bytes = (size_t)room * s->row_bytes;
        status = cu_piece_take(u, bytes, &wider, err);
    }
    if (status == SEGUE_OK)
        status = move_bytes(u, wider, s->memory, s->first < s->end ? s->end * s->row_bytes : 0, err);
    if (status == SEGUE_OK && s->memory) status = moved_all(u, err);
    if (status != SEGUE_OK) {
        cu_room_free(u, &wider);
        return status;
    }
    rows_leave(st, s);
    s->memory = wider;
    s->room = room;
    return SEGUE_OK;
}

static size_t rows_bytes(const struct cu_slot *s, uint64_t room)
{
    return is_rows(s) ? ((size_t)room * s->row_bytes + 255) / 256 * 256 : 0;
}

/* Rows of all slots in one piece, so that transfers of several of them are one (pinned.c). What is large takes a piece a slot,
 * which it leaves when it grows. */
static segue_status rows_begin(struct sg_state *st, uint64_t rows, segue_error *err)
{
    uint64_t room = room_for(rows), row = 0;
    segue_status status = SEGUE_OK;
    for (uint32_t i = 0; i < st->slots_n; i++) row += st->slots[i].row_bytes;
    if (!row) return SEGUE_OK;
    if (room > ((uint64_t)TOGETHER_MB << 20) / row) {
        for (uint32_t i = 0; i < st->slots_n && status == SEGUE_OK; i++) status = cu_slot_room(st, i, rows, err);
        return status;
    }
    for (uint32_t i = 0; i < st->slots_n; i++) st->together.bytes += rows_bytes(&st->slots[i], room);
    SG_TRY(cu_piece_take(st->base.unit, st->together.bytes, &st->together.memory, err));
    cu_ptr at = st->together.memory;
    for (uint32_t i = 0; i < st->slots_n; i++) {
        struct cu_slot *s = &st->slots[i];
        if (!is_rows(s)) continue;
        s->memory = at;
        s->room = room;
        s->together = 1;
        st->together.slots++;
        at += rows_bytes(s, room);
    }
    return SEGUE_OK;
}

static void slot_begin(struct sg_state *st, struct cu_slot *s, const struct sg_slot *slot)
{
    s->slot = *slot;
    s->row_bytes = sg_slot_row_bytes(slot, st->storage);
    s->fixed_bytes = sg_slot_fixed_bytes(slot);
    st->fixed_bytes += (s->fixed_bytes + 255) / 256 * 256;
}

segue_status cu_slot_room(struct sg_state *s, uint32_t slot, uint64_t rows, segue_error *err)
{
    struct cu_slot *c = &s->slots[slot];
    return is_rows(c) ? slot_grow(s, c, rows ? rows : 1, err) : SEGUE_OK;
}

static segue_status state_fill(struct sg_state *st, const struct sg_slot *slots, uint32_t n,
                               const struct sg_state_opts *o, segue_error *err)
{
    uint64_t rows = o ? o->rows : 0;
    int bare = o && o->bare;
    st->slots = sg_alloc(n * sizeof *st->slots);
    st->marks = sg_alloc(st->marks_cap * sizeof *st->marks);
    if (!st->slots || !st->marks) return sg_no_memory("state", n * sizeof *st->slots, err);
    st->slots_n = n;
    for (uint32_t i = 0; i < n; i++) slot_begin(st, &st->slots[i], &slots[i]);
    if (bare) return SEGUE_OK; /* it gets another one's memory, or its own when rows come */
    SG_TRY(rows_begin(st, rows, err));
    SG_TRY(cu_state_fixed(st, err));
    if (o && o->filled) return SEGUE_OK;
    SG_TRY(clear_bytes(st->base.unit, st->fixed, st->fixed_bytes, err));
    st->clearing = st->fixed_bytes > 0; /* who reads them first waits for it: a run, or what comes behind on that stream */
    return SEGUE_OK;
}

segue_status cu_state_new(struct sg_unit *u, const struct sg_slot *slots, uint32_t slots_n,
                          const struct sg_state_opts *o, struct sg_state **out, segue_error *err)
{
    enum sg_storage storage = o ? o->kv : SG_F16;
    if (storage != SG_F32 && storage != SG_F16 && storage != SG_BF16 && storage != SG_Q8_0)
        return sg_fail(err, SEGUE_EUNSUPPORTED, "new state: cuda: K and V as %s; take f32, f16, bf16 or q8",
                       (unsigned)storage < SG_STORAGE_N ? sg_storage_info(storage)->name
                                                        : "an unknown storage");
    SG_TRY(cu_state_fits(u, slots, slots_n, storage, o ? o->rows : 0, 0, err));
    struct sg_state *st = sg_alloc(sizeof *st);
    if (!st) return sg_no_memory("state", sizeof *st, err);
    st->base = (struct sg_state_base){u->base.ops, u};
    st->storage = storage;
    st->id = atomic_fetch_add(&u->states, 1u) + 1;
    st->marks_cap = o && o->undo ? o->undo : CU_MARKS;
    pthread_mutex_init(&st->lock, NULL);
    pthread_cond_init(&st->moved, NULL);
    segue_status status = state_fill(st, slots, slots_n, o, err);
    if (status != SEGUE_OK) {
        cu_state_free(st);
        return status == SEGUE_EMEMORY ? cu_state_fits(u, slots, slots_n, storage, o ? o->rows : 0, 1, err)
                                       : status;
    }
    *out = st;
    return SEGUE_OK;
}

static void marks_keep(struct sg_state *s, uint32_t n)
{
    while (s->marks_n > n) cu_piece_leave(s->base.unit, &s->marks[--s->marks_n].copy, s->fixed_bytes);
}

void cu_state_forget(struct sg_state *s) { marks_keep(s, 0); }

void cu_state_free(struct sg_state *s)
{
    if (!s) return;
    (void)cu_state_settle(s, NULL);
    (void)cu_moves_over(s->base.unit, NULL);
    cu_kept_forget(s);
    cu_piece_leave(s->base.unit, &s->kept_own, s->kept_bytes);
    marks_keep(s, 0);
    for (uint32_t i = 0; i < s->slots_n; i++) {
        const struct cu_slot *slot = &s->slots[i];
        if (slot->there) {
            cu_enter(s->base.unit);
            s->base.unit->d.event_free(slot->there);
            cu_leave(s->base.unit);
        }
        if (is_rows(slot)) rows_leave(s, &s->slots[i]);
    }
    cu_piece_leave(s->base.unit, &s->fixed, s->fixed_bytes);
    cu_piece_leave(s->base.unit, &s->fixed_other, s->fixed_bytes);
    sg_free(s->slots);
    sg_free(s->marks);
    pthread_cond_destroy(&s->moved);
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
        to->given = from->given;
        to->first = from->first;
        to->end = from->end;
        status = is_rows(to) ? slot_grow(copy, to, from->end, err) : SEGUE_OK;
        if (status == SEGUE_OK && is_rows(to))
            status = move_bytes(u, to->memory, from->memory, from->end * from->row_bytes, err);
    }
    if (status == SEGUE_OK) status = move_bytes(u, copy->fixed, s->fixed, s->fixed_bytes, err);
    if (status == SEGUE_OK) status = moved_all(u, err);
    if (status != SEGUE_OK) {
        cu_state_free(copy);
        return status;
    }
    copy->rows = s->rows;
    *out = copy;
    return SEGUE_OK;
}

/* --- marks and cuts --- */

/* All fixed slots <-> one piece of memory. */
static segue_status fixed_move(struct sg_state *s, cu_ptr copy, int restore, segue_error *err)
{
    SG_TRY(move_bytes(s->base.unit, restore ? s->fixed : copy, restore ? copy : s->fixed, s->fixed_bytes, err));
    return moved_all(s->base.unit, err);
}

segue_status cu_state_mark(struct sg_state *s, uint32_t *mark, segue_error *err)
{
    cu_ptr copy = 0;
    if (s->marks_n == s->marks_cap)
        return sg_fail(err, SEGUE_ELIMIT,
                       "mark state: cuda: %u marks are alive; drop one, or open the state with more",
                       s->marks_n);
    if (s->fixed_bytes) SG_TRY(cu_piece_take(s->base.unit, s->fixed_bytes, &copy, err));
    segue_status status = fixed_move(s, copy, 0, err);
    if (status != SEGUE_OK) {
        cu_room_free(s->base.unit, &copy);
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
static void rows_keep(struct sg_state *s, uint64_t end)
{
    for (uint32_t i = 0; i < s->slots_n; i++) {
        struct cu_slot *slot = &s->slots[i];
        if (!is_rows(slot)) continue;
        slot->end = end;
        if (slot->first > end) slot->first = end;
    }
    s->rows = end;
}

segue_status cu_state_back(struct sg_state *s, uint32_t mark, segue_error *err)
{
    uint32_t at = mark_find(s, mark);
    if (at == s->marks_n)
        return sg_fail(err, SEGUE_EARG, "go back: cuda: mark %u is not alive; use a newer one", mark);
    SG_TRY(cu_state_settle(s, err));
    marks_keep(s, at + 1);
    SG_TRY(fixed_move(s, s->marks[at].copy, 1, err));
    rows_keep(s, s->marks[at].rows);
    return SEGUE_OK;
}

void cu_state_drop(struct sg_state *s, uint32_t mark)
{
    uint32_t at = mark_find(s, mark);
    if (at == s->marks_n) return;
    for (uint32_t i = 0; i <= at; i++) cu_piece_leave(s->base.unit, &s->marks[i].copy, s->fixed_bytes);
    s->marks_n -= at + 1;
    memmove(s->marks, s->marks + at + 1, s->marks_n * sizeof *s->marks);
}

static segue_status may_cut(const struct sg_state *s, uint64_t rows, segue_error *err)
{
    for (uint32_t i = 0; i < s->slots_n; i++) {
        const struct cu_slot *slot = &s->slots[i];
        if (slot->fixed_bytes)
            return sg_fail(err, SEGUE_EUNSUPPORTED,
                           "cut state: cuda: layer %u: its recurrent memory cannot be cut back; go back to a "
                           "mark, or replay",
                           slot->slot.layer);
        if (is_rows(slot) && slot->first > sg_slot_first_needed(&slot->slot, rows))
            return sg_fail(err, SEGUE_EUNSUPPORTED,
                           "cut state: cuda: layer %u: its window starts at row %llu; replay",
                           slot->slot.layer, (unsigned long long)slot->first);
    }
    return SEGUE_OK;
}

segue_status cu_state_cut(struct sg_state *s, uint64_t rows, segue_error *err)
{
    uint32_t keep = 0;
    if (rows > s->rows)
        return sg_fail(err, SEGUE_EARG, "cut state: cuda: to %llu rows of %llu; give fewer",
                       (unsigned long long)rows, (unsigned long long)s->rows);
    if (rows && rows < s->rows) SG_TRY(may_cut(s, rows, err));
    SG_TRY(cu_state_settle(s, err));
    while (keep < s->marks_n && s->marks[keep].rows <= rows) keep++;
    marks_keep(s, keep);
    rows_keep(s, rows);
    for (uint32_t i = 0; i < s->slots_n && !rows; i++) {
        s->slots[i].first = 0;
        s->slots[i].given = 0;
    }
    if (!rows) SG_TRY(clear_bytes(s->base.unit, s->fixed, s->fixed_bytes, err));
    return moved_all(s->base.unit, err);
}

void cu_state_held(const struct sg_state *s, uint32_t slot, uint64_t *first, uint64_t *rows)
{
    *rows = s->rows;
    *first = slot < s->slots_n && is_rows(&s->slots[slot]) ? s->slots[slot].first : 0;
}

uint64_t cu_state_bytes(const struct sg_state *s)
{
    uint64_t bytes = (uint64_t)s->fixed_bytes * (2 + s->marks_n);
    for (uint32_t i = 0; i < s->slots_n; i++) bytes += s->slots[i].room * s->slots[i].row_bytes;
    return bytes;
}

/* --- get and put --- */

static segue_status slot_of(struct sg_state *s, uint32_t slot, enum sg_storage storage, const char *verb,
                            struct cu_slot **out, segue_error *err)
{
    if (slot >= s->slots_n)
        return sg_fail(err, SEGUE_EARG, "%s state: cuda: slot %u of %u; give a smaller one", verb, slot,
                       s->slots_n);
    *out = &s->slots[slot];
    int known =
        is_rows(*out) ? sg_slot_row_bytes(&(*out)->slot, storage) || !(*out)->row_bytes : storage == SG_F32;
    if (!known)
        return sg_fail(err, SEGUE_EUNSUPPORTED, "%s state: cuda: slot %u in storage %d; take f32%s", verb,
                       slot, (int)storage, is_rows(*out) ? ", f16, bf16 or q8" : "");
    return SEGUE_OK;
}

/* n rows from one storage to another on the host. */
static segue_status convert(const struct sg_slot *slot, const char *from, enum sg_storage a, char *to,
                            enum sg_storage b, uint64_t n, segue_error *err)
{
    size_t x = sg_slot_row_bytes(slot, a), y = sg_slot_row_bytes(slot, b);
    float *row = sg_alloc((size_t)slot->heads * slot->width * sizeof *row);
    if (!row) return sg_no_memory("a row of state", x, err);
    for (uint64_t r = 0; r < n; r++) {
        sg_slot_decode(slot, a, from + r * x, row);
        sg_slot_encode(slot, b, row, to + r * y);
    }
    sg_free(row);
    return SEGUE_OK;
}

static segue_status get_rows(struct sg_state *st, const struct cu_slot *s, uint64_t from, uint64_t to,
                             enum sg_storage storage, void *out, segue_error *err)
{
    size_t bytes = (size_t)(to - from) * s->row_bytes;
    cu_ptr at = s->memory + from * s->row_bytes;
    if (storage == st->storage) return bytes ? cu_get(st->base.unit, out, at, bytes, err) : SEGUE_OK;
    char *own = sg_alloc(bytes);
    if (!own) return sg_no_memory("rows of state", bytes, err);
    segue_status status = bytes ? cu_fetch(st->base.unit, own, at, bytes, err) : SEGUE_OK;
    if (status == SEGUE_OK) status = convert(&s->slot, own, st->storage, out, storage, to - from, err);
    sg_free(own);
    return status;
}

/* Of the fixed slots: what follows does not lie behind it. */
static int is_last(const struct sg_state *st, const struct cu_slot *s)
{
    return s->memory + (s->fixed_bytes + 255) / 256 * 256 == st->fixed + st->fixed_bytes;
}

segue_status cu_state_get(struct sg_state *st, uint32_t slot, uint64_t from, uint64_t to,
                          enum sg_storage storage, void *out, segue_error *err)
{
    struct cu_slot *s = NULL;
    SG_TRY(slot_of(st, slot, storage, "get", &s, err));
    uint64_t first, end;
    SG_TRY(cu_flow_wait(st, s, to, &first, &end, err));
    if (!is_rows(s)) {
        SG_TRY(cu_get(st->base.unit, out, s->memory, s->fixed_bytes, err));
        return is_last(st, s) ? cu_moves_go(st->base.unit, err) : SEGUE_OK;
    }
    if (from > to || to > end || (from < to && from < first))
        return sg_fail(
            err, SEGUE_EARG,
            "get state: cuda: slot %u: rows [%llu, %llu) of [%llu, %llu); ask for those that are held", slot,
            (unsigned long long)from, (unsigned long long)to, (unsigned long long)first,
            (unsigned long long)end);
    return get_rows(st, s, from, to, storage, out, err);
}

/* Every slot has what a sequence of that many rows may ask for. */
static segue_status seal(struct sg_state *s, uint64_t rows, segue_error *err)
{
    SG_TRY(cu_moves_over(s->base.unit, err));
    for (uint32_t i = 0; i < s->slots_n; i++) {
        const struct cu_slot *slot = &s->slots[i];
        struct sg_slot_coverage held = {"cuda",    &slot->slot, slot->first,
                                 slot->end, slot->given, sg_slot_first_needed(&slot->slot, rows)};
        SG_TRY(sg_slot_coverage(&held, rows, err));
    }
    marks_keep(s, 0);
    rows_keep(s, rows);
    return SEGUE_OK;
}

static segue_status put_rows(struct sg_state *st, struct cu_slot *s, uint64_t from, uint64_t to,
                             enum sg_storage storage, const void *in, segue_error *err)
{
    struct sg_unit *u = st->base.unit;
    if (s->first == s->end) s->first = s->end = from;
    if (from > to || from > s->end || to < s->first)
        return sg_fail(err, SEGUE_EARG,
                       "put state: cuda: rows [%llu, %llu) beside [%llu, %llu); leave no gap",
                       (unsigned long long)from, (unsigned long long)to, (unsigned long long)s->first,
                       (unsigned long long)s->end);
    SG_TRY(slot_grow(st, s, to, err));
    size_t bytes = (size_t)(to - from) * s->row_bytes;
    segue_status status = SEGUE_OK;
    if (storage == st->storage) {
        if (bytes) status = cu_put(u, s->memory + from * s->row_bytes, in, bytes, err);
    } else {
        char *own = sg_alloc(bytes);
        status = own ? convert(&s->slot, in, storage, own, st->storage, to - from, err)
                     : sg_no_memory("rows of state", bytes, err);
        if (status == SEGUE_OK && bytes)
            status = cu_send(u, s->memory + from * s->row_bytes, own, bytes, err);
        sg_free(own);
    }
    if (status != SEGUE_OK) return status;
    if (from < s->first) s->first = from;
    if (to > s->end) s->end = to;
    return SEGUE_OK;
}

segue_status cu_state_put(struct sg_state *st, uint32_t slot, uint64_t from, uint64_t to,
                          enum sg_storage storage, const void *in, segue_error *err)
{
    struct cu_slot *s = NULL;
    if (st->busy) return sg_fail(err, SEGUE_EARG, "put state: cuda: a run is using the state; wait for it");
    SG_TRY(cu_state_settle(st, err));
    if (slot == UINT32_MAX) return seal(st, to, err);
    SG_TRY(slot_of(st, slot, storage, "put", &s, err));
    if (is_rows(s)) return put_rows(st, s, from, to, storage, in, err);
    SG_TRY(cu_put(st->base.unit, s->memory, in, s->fixed_bytes, err));
    s->given = 1;
    return is_last(st, s) ? cu_moves_go(st->base.unit, err) : SEGUE_OK;
}

/* --- for runs --- */

segue_status cu_state_take(struct sg_state *s, uint64_t rows, segue_error *err)
{
    pthread_mutex_lock(&s->lock);
    int busy = s->busy;
    s->busy = 1;
    pthread_mutex_unlock(&s->lock);
    if (busy) return sg_fail(err, SEGUE_EARG, "run: cuda: two spans or runs share a state; fork it");
    segue_status status = SEGUE_OK;
    for (uint32_t i = 0; i < s->slots_n && status == SEGUE_OK; i++)
        if (is_rows(&s->slots[i]) && s->rows + rows > s->slots[i].room) status = cu_state_settle(s, err);
    for (uint32_t i = 0; i < s->slots_n && status == SEGUE_OK; i++)
        if (is_rows(&s->slots[i])) status = slot_grow(s, &s->slots[i], s->rows + rows, err);
    if (status == SEGUE_EMEMORY)
        sg_fail(err, status,
                "run: unit cuda: K and V of %llu rows do not fit into the GPU's memory; a context of %llu rows does, or "
                "take K and V as q8",
                (unsigned long long)(s->rows + rows), (unsigned long long)s->rows);
    if (status != SEGUE_OK) cu_state_release(s);
    return status;
}

void cu_state_moved(struct sg_state *s, uint64_t rows)
{
    pthread_mutex_lock(&s->lock);
    s->rows += rows;
    for (uint32_t i = 0; i < s->slots_n; i++) {
        if (is_rows(&s->slots[i]))
            s->slots[i].end = s->rows;
        else
            s->slots[i].given = 1;
    }
    pthread_cond_broadcast(&s->moved);
    pthread_mutex_unlock(&s->lock);
}

void cu_state_release(struct sg_state *s)
{
    pthread_mutex_lock(&s->lock);
    s->busy = 0;
    pthread_cond_broadcast(&s->moved);
    pthread_mutex_unlock(&s->lock);
}
