/* refstate.c: what ref remembers of a sequence. K and V rows lie in reference-counted blocks of 64 rows, in
 * the storage that was asked for; forks share blocks until one of them writes. Convolution and delta slots
 * are fp32 and copied: a run works on `next`, and only a run that ended well makes it `fixed`. So a failed
 * run leaves nothing behind but rows beyond `rows`, which nobody reads.
 * SPDX-License-Identifier: MIT */
#include <stdatomic.h>
#include <string.h>

#include "unit/ref/ref.h"
#include "unit/state_validate.h"

struct ref_block {
    atomic_uint references;
    unsigned char bytes[];           /* [REF_BLOCK_ROWS][row_bytes] */
};

/* K and V grow by rows; the other kinds have one size for good. */
static int is_rows(const struct ref_slot *s)
{
    return s->slot.kind == SG_SLOT_K || s->slot.kind == SG_SLOT_V;
}

/* --- blocks --- */

/* The last holder frees. Forks on other threads may let go at the same time. */
static void block_release(struct ref_block *b)
{
    if (b && atomic_fetch_sub(&b->references, 1u) == 1) sg_free(b);
}

static struct ref_block *block_new(size_t row_bytes)
{
    struct ref_block *b = sg_alloc(sizeof *b + REF_BLOCK_ROWS * row_bytes);
    if (b) atomic_init(&b->references, 1u);
    return b;
}

static unsigned char *row_at(const struct ref_slot *s, uint64_t row)
{
    return s->blocks[row / REF_BLOCK_ROWS]->bytes + row % REF_BLOCK_ROWS * s->row_bytes;
}

/* Make block `index` exist and belong to this state alone. The lock is taken for every change that a reader
 * on another thread could see. */
static segue_status block_own(struct sg_state *st, struct ref_slot *s, uint64_t index, segue_error *err)
{
    if (index >= s->blocks_cap) {
        /* Doubled and a little: growing costs a copy of pointers only. */
        uint64_t cap = index + 16 + s->blocks_cap;
        struct ref_block **wider = sg_alloc(cap * sizeof *wider), **old = s->blocks;
        if (!wider) return sg_no_memory("ref state", cap * sizeof *wider, err);
        if (s->blocks_cap) memcpy(wider, old, s->blocks_cap * sizeof *wider);
        pthread_mutex_lock(&st->lock);
        s->blocks = wider;
        s->blocks_cap = cap;
        pthread_mutex_unlock(&st->lock);
        sg_free(old);
    }
    struct ref_block *b = s->blocks[index];
    /* Alone: nobody else can come to share it while its only owner is here. */
    if (b && atomic_load(&b->references) == 1) return SEGUE_OK;
    struct ref_block *own = block_new(s->row_bytes);
    if (!own) return sg_no_memory("ref state", REF_BLOCK_ROWS * s->row_bytes, err);
    if (b) memcpy(own->bytes, b->bytes, REF_BLOCK_ROWS * s->row_bytes);
    pthread_mutex_lock(&st->lock);
    s->blocks[index] = own;
    pthread_mutex_unlock(&st->lock);
    block_release(b);
    return SEGUE_OK;
}

/* Let go of the blocks [from, to) of the array. */
static void blocks_drop(struct ref_slot *s, uint64_t from, uint64_t to)
{
    for (uint64_t i = from; i < to && i < s->blocks_cap; i++) {
        block_release(s->blocks[i]);
        s->blocks[i] = NULL;
    }
}

/* Keep rows [first, end) of what is held. */
static void rows_keep(struct ref_slot *s, uint64_t first, uint64_t end)
{
    blocks_drop(s, 0, first / REF_BLOCK_ROWS);
    blocks_drop(s, (end + REF_BLOCK_ROWS - 1) / REF_BLOCK_ROWS, s->blocks_cap);
    if (first > s->first) s->first = first;
    s->end = end;
    if (s->first > s->end) s->first = s->end;
}

/* --- new, free, fork --- */

/* Sizes come from a graph, whose numbers come from a file: every product is checked. `next` doubles the fixed
 * slots, the price of runs that can fail without a trace. */
static segue_status slot_begin(struct sg_state *st, struct ref_slot *s, const struct sg_slot *slot,
                               segue_error *err)
{
    size_t bytes;
    s->slot = *slot;
    s->row_bytes = sg_slot_row_bytes(slot, st->storage);
    if (is_rows(s)) return SEGUE_OK;
    SG_TRY(sg_mul(slot->heads, slot->width, &bytes, "state slot", err));
    SG_TRY(sg_mul(bytes, slot->kind == SG_SLOT_DELTA ? slot->depth : 1, &bytes, "state slot", err));
    SG_TRY(sg_mul(bytes, sizeof(float), &bytes, "state slot", err));
    s->fixed = sg_arena_alloc(&st->arena, bytes);
    s->next = sg_arena_alloc(&st->arena, bytes);
    if (!s->fixed || !s->next) return sg_no_memory("ref state", bytes, err);
    st->fixed_bytes += bytes;
    return SEGUE_OK;
}

static segue_status state_fill(struct sg_state *st, const struct sg_slot *slots, uint32_t n, segue_error *err)
{
    st->slots = sg_arena_alloc(&st->arena, n * sizeof *st->slots);
    st->marks = sg_arena_alloc(&st->arena, st->marks_cap * sizeof *st->marks);
    if (!st->slots || !st->marks) return sg_no_memory("ref state", n * sizeof *st->slots, err);
    for (; st->slots_n < n; st->slots_n++)
        SG_TRY(slot_begin(st, &st->slots[st->slots_n], &slots[st->slots_n], err));
    return SEGUE_OK;
}

segue_status ref_state_new(struct sg_unit *u, const struct sg_slot *slots, uint32_t slots_n,
                           const struct sg_state_opts *o, struct sg_state **out, segue_error *err)
{
    enum sg_storage storage = o ? o->kv : SG_F32;
    if (storage != SG_F32 && storage != SG_F16 && storage != SG_BF16 && storage != SG_Q8_0)
        return sg_fail(err, SEGUE_EUNSUPPORTED, "new state: ref: K and V as %s; take f32, f16, bf16 or q8",
                       (unsigned)storage < SG_STORAGE_N ? sg_storage_info(storage)->name
                                                        : "an unknown storage");
    struct sg_state *st = sg_alloc(sizeof *st);
    if (!st) return sg_no_memory("ref state", sizeof *st, err);
    st->base = (struct sg_state_base){u->base.ops, u};
    st->storage = storage;
    st->marks_cap = o && o->undo ? o->undo : REF_MARKS;
    pthread_mutex_init(&st->lock, NULL);
    pthread_cond_init(&st->moved, NULL);
    segue_status status = state_fill(st, slots, slots_n, err);
    if (status != SEGUE_OK) {
        ref_state_free(st);
        return status;
    }
    *out = st;
    return SEGUE_OK;
}

/* Forget marks from index n on. */
static void marks_keep(struct sg_state *s, uint32_t n)
{
    while (s->marks_n > n) sg_free(s->marks[--s->marks_n].copy);
}

void ref_state_free(struct sg_state *s)
{
    if (!s) return;
    marks_keep(s, 0);
    for (uint32_t i = 0; i < s->slots_n; i++) {
        blocks_drop(&s->slots[i], 0, s->slots[i].blocks_cap);
        sg_free(s->slots[i].blocks);
    }
    pthread_cond_destroy(&s->moved);
    pthread_mutex_destroy(&s->lock);
    sg_arena_free(&s->arena);
    sg_free(s);
}

/* K and V by reference; recurrent memory is a few rows or matrices that every token rewrites, so sharing it
 * would not last one step. */
static segue_status slot_fork(const struct ref_slot *from, struct ref_slot *to, segue_error *err)
{
    size_t bytes = sg_slot_fixed_bytes(&from->slot);
    to->given = from->given;
    to->first = from->first;
    to->end = from->end;
    if (bytes) memcpy(to->fixed, from->fixed, bytes);
    if (!from->blocks_cap) return SEGUE_OK;
    to->blocks = sg_alloc(from->blocks_cap * sizeof *to->blocks);
    if (!to->blocks) return sg_no_memory("ref state", from->blocks_cap * sizeof *to->blocks, err);
    to->blocks_cap = from->blocks_cap;
    for (uint64_t i = 0; i < from->blocks_cap; i++) {
        to->blocks[i] = from->blocks[i];
        if (to->blocks[i]) atomic_fetch_add(&to->blocks[i]->references, 1u);
    }
    return SEGUE_OK;
}

/* Marks stay with the original: they are places in its own past. */
segue_status ref_state_fork(struct sg_state *s, struct sg_state **out, segue_error *err)
{
    struct sg_state_opts o = {.kv = s->storage, .undo = s->marks_cap};
    struct sg_state *copy = NULL;
    struct sg_slot *slots = sg_alloc(s->slots_n * sizeof *slots);
    if (!slots) return sg_no_memory("ref state", s->slots_n * sizeof *slots, err);
    for (uint32_t i = 0; i < s->slots_n; i++) slots[i] = s->slots[i].slot;
    segue_status status = ref_state_new(s->base.unit, slots, s->slots_n, &o, &copy, err);
    sg_free(slots);
    for (uint32_t i = 0; status == SEGUE_OK && i < s->slots_n; i++)
        status = slot_fork(&s->slots[i], &copy->slots[i], err);
    if (status != SEGUE_OK) {
        ref_state_free(copy);
        return status;
    }
    copy->rows = s->rows;
    *out = copy;
    return SEGUE_OK;
}

/* --- marks and cuts --- */

/* All fixed slots <-> one run of memory. */
static void fixed_copy(struct sg_state *s, float *copy, int restore)
{
    for (uint32_t i = 0; i < s->slots_n; i++) {
        size_t bytes = sg_slot_fixed_bytes(&s->slots[i].slot);
        if (bytes && restore) memcpy(s->slots[i].fixed, copy, bytes);
        if (bytes && !restore) memcpy(copy, s->slots[i].fixed, bytes);
        copy += bytes / sizeof *copy;
    }
}

/* K and V need no copy: rows up to here stay in their blocks until a run writes behind them, and window slots
 * keep what the oldest mark can ask for (ref_state_finish). */
segue_status ref_state_mark(struct sg_state *s, uint32_t *mark, segue_error *err)
{
    if (s->marks_n == s->marks_cap)
        return sg_fail(err, SEGUE_ELIMIT,
                       "mark state: ref: %u marks are alive; drop one, or open the state with more",
                       s->marks_n);
    float *copy = sg_alloc(s->fixed_bytes);
    if (!copy) return sg_no_memory("mark of a ref state", s->fixed_bytes, err);
    fixed_copy(s, copy, 0);
    s->marks[s->marks_n++] = (struct ref_mark){.number = s->marks_next, .rows = s->rows, .copy = copy};
    *mark = s->marks_next++;
    return SEGUE_OK;
}

static uint32_t mark_find(const struct sg_state *s, uint32_t number)
{
    uint32_t i = 0;
    while (i < s->marks_n && s->marks[i].number != number) i++;
    return i;
}

/* The mark itself stays alive: drafts go back to the same place many times. */
segue_status ref_state_back(struct sg_state *s, uint32_t mark, segue_error *err)
{
    uint32_t at = mark_find(s, mark);
    if (at == s->marks_n)
        return sg_fail(err, SEGUE_EARG, "go back: ref: mark %u is not alive; use a newer one", mark);
    marks_keep(s, at + 1);
    fixed_copy(s, s->marks[at].copy, 1);
    s->rows = s->marks[at].rows;
    for (uint32_t i = 0; i < s->slots_n; i++)
        if (is_rows(&s->slots[i])) rows_keep(&s->slots[i], s->slots[i].first, s->rows);
    return SEGUE_OK;
}

void ref_state_drop(struct sg_state *s, uint32_t mark)
{
    uint32_t at = mark_find(s, mark);
    if (at == s->marks_n) return;
    for (uint32_t i = 0; i <= at; i++) sg_free(s->marks[i].copy);
    s->marks_n -= at + 1;
    memmove(s->marks, s->marks + at + 1, s->marks_n * sizeof *s->marks);
}

/* What stands in the way of keeping only `rows` rows, named by layer. */
static segue_status may_cut(const struct sg_state *s, uint64_t rows, segue_error *err)
{
    for (uint32_t i = 0; i < s->slots_n; i++) {
        const struct ref_slot *slot = &s->slots[i];
        if (sg_slot_fixed_bytes(&slot->slot))
            return sg_fail(err, SEGUE_EUNSUPPORTED,
                           "cut state: ref: layer %u: its recurrent memory cannot be cut back; "
                           "go back to a mark, or replay",
                           slot->slot.layer);
        if (is_rows(slot) && slot->first > sg_slot_first_needed(&slot->slot, rows))
            return sg_fail(err, SEGUE_EUNSUPPORTED,
                           "cut state: ref: layer %u: row %llu is gone, its window starts at "
                           "%llu; replay",
                           slot->slot.layer, (unsigned long long)sg_slot_first_needed(&slot->slot, rows),
                           (unsigned long long)slot->first);
    }
    return SEGUE_OK;
}

/* Marks beyond the cut are forgotten: the rows that they stand on will be overwritten. Cutting to nothing is
 * always possible, it is a new state. */
segue_status ref_state_cut(struct sg_state *s, uint64_t rows, segue_error *err)
{
    if (rows > s->rows)
        return sg_fail(err, SEGUE_EARG, "cut state: ref: to %llu rows of %llu; give fewer",
                       (unsigned long long)rows, (unsigned long long)s->rows);
    if (rows && rows < s->rows) SG_TRY(may_cut(s, rows, err));
    uint32_t keep = 0;
    while (keep < s->marks_n && s->marks[keep].rows <= rows) keep++;
    marks_keep(s, keep);
    for (uint32_t i = 0; i < s->slots_n; i++) {
        struct ref_slot *slot = &s->slots[i];
        if (is_rows(slot)) {
            rows_keep(slot, rows ? slot->first : 0, rows);
        } else if (!rows) {
            memset(slot->fixed, 0, sg_slot_fixed_bytes(&slot->slot));
            slot->given = 0;
        }
    }
    s->rows = rows;
    return SEGUE_OK;
}

void ref_state_held(const struct sg_state *s, uint32_t slot, uint64_t *first, uint64_t *rows)
{
    *rows = s->rows;
    *first = slot < s->slots_n && is_rows(&s->slots[slot]) ? s->slots[slot].first : 0;
}

uint64_t ref_state_bytes(const struct sg_state *s)
{
    uint64_t bytes = (uint64_t)s->fixed_bytes * (2 + s->marks_n);
    for (uint32_t i = 0; i < s->slots_n; i++)
        for (uint64_t b = 0; b < s->slots[i].blocks_cap; b++)
            if (s->slots[i].blocks[b])
                bytes += REF_BLOCK_ROWS * s->slots[i].row_bytes /
                         atomic_load(&s->slots[i].blocks[b]->references);
    return bytes;
}

/* --- get and put --- */

/* The slot exists, and the storage is one that it can be read or written in. */
static segue_status slot_of(struct sg_state *s, uint32_t slot, enum sg_storage storage, const char *verb,
                            struct ref_slot **out, segue_error *err)
{
    if (slot >= s->slots_n)
        return sg_fail(err, SEGUE_EARG, "%s state: ref: slot %u of %u; give a smaller one", verb, slot,
                       s->slots_n);
    *out = &s->slots[slot];
    int known =
        is_rows(*out) ? sg_slot_row_bytes(&(*out)->slot, storage) || !(*out)->row_bytes : storage == SG_F32;
    if (!known)
        return sg_fail(err, SEGUE_EUNSUPPORTED, "%s state: ref: slot %u in storage %d; take f32%s", verb,
                       slot, (int)storage, is_rows(*out) ? ", f16, bf16 or q8" : "");
    return SEGUE_OK;
}

/* One row from a storage to another, by way of fp32 unless they are the same. */
static void row_move(const struct sg_slot *slot, const void *from, enum sg_storage a, void *to,
                     enum sg_storage b, float *row)
{
    if (a == b) {
        memcpy(to, from, sg_slot_row_bytes(slot, a));
        return;
    }
    sg_slot_decode(slot, a, from, row);
    sg_slot_encode(slot, b, row, to);
}

segue_status ref_state_get(struct sg_state *st, uint32_t slot, uint64_t from, uint64_t to,
                           enum sg_storage storage, void *out, segue_error *err)
{
    struct ref_slot *s;
    SG_TRY(slot_of(st, slot, storage, "get", &s, err));
    float *row = sg_alloc((size_t)s->slot.heads * s->slot.width * sizeof *row);
    if (!row) return sg_no_memory("a row of state", s->row_bytes, err);
    segue_status status = SEGUE_OK;
    pthread_mutex_lock(&st->lock);
    /* While a run works, rows appear op by op; recurrent memory is given only when it is over. */
    while (st->busy && (!is_rows(s) || s->end < to)) pthread_cond_wait(&st->moved, &st->lock);
    if (!is_rows(s)) {
        memcpy(out, s->fixed, sg_slot_fixed_bytes(&s->slot));
    } else if (from > to || to > s->end || (from < to && from < s->first)) {
        status = sg_fail(err, SEGUE_EARG,
                         "get state: ref: slot %u: rows [%llu, %llu) of [%llu, %llu); ask for those "
                         "that are held",
                         slot, (unsigned long long)from, (unsigned long long)to, (unsigned long long)s->first,
                         (unsigned long long)s->end);
    } else {
        size_t bytes = sg_slot_row_bytes(&s->slot, storage);
        for (uint64_t r = from; r < to; r++)
            row_move(&s->slot, row_at(s, r), st->storage, (char *)out + (r - from) * bytes, storage, row);
    }
    pthread_mutex_unlock(&st->lock);
    sg_free(row);
    return status;
}

/* Every slot has what a sequence of that many rows may ask for. */
static segue_status seal(struct sg_state *s, uint64_t rows, segue_error *err)
{
    for (uint32_t i = 0; i < s->slots_n; i++) {
        const struct ref_slot *slot = &s->slots[i];
        struct sg_slot_coverage held = {"ref",     &slot->slot, slot->first,
                                 slot->end, slot->given, sg_slot_first_needed(&slot->slot, rows)};
        SG_TRY(sg_slot_coverage(&held, rows, err));
    }
    marks_keep(s, 0);
    for (uint32_t i = 0; i < s->slots_n; i++)
        if (is_rows(&s->slots[i])) rows_keep(&s->slots[i], s->slots[i].first, rows);
    s->rows = rows;
    return SEGUE_OK;
}

/* Rows may be replaced, or joined at either end; a gap would be rows that nobody gave. The length of the
 * sequence does not change before it is sealed. */
static segue_status put_rows(struct sg_state *st, struct ref_slot *s, uint64_t from, uint64_t to,
                             enum sg_storage storage, const char *in, segue_error *err)
{
    size_t bytes = sg_slot_row_bytes(&s->slot, storage);
    if (s->first == s->end) s->first = s->end = from;
    if (from > to || from > s->end || to < s->first)
        return sg_fail(err, SEGUE_EARG, "put state: ref: rows [%llu, %llu) beside [%llu, %llu); leave no gap",
                       (unsigned long long)from, (unsigned long long)to, (unsigned long long)s->first,
                       (unsigned long long)s->end);
    float *row = sg_alloc((size_t)s->slot.heads * s->slot.width * sizeof *row);
    if (!row) return sg_no_memory("a row of state", s->row_bytes, err);
    segue_status status = SEGUE_OK;
    for (uint64_t r = from; r < to && status == SEGUE_OK; r++) {
        status = block_own(st, s, r / REF_BLOCK_ROWS, err);
        if (status == SEGUE_OK)
            row_move(&s->slot, in + (r - from) * bytes, storage, row_at(s, r), st->storage, row);
    }
    sg_free(row);
    if (status != SEGUE_OK) return status;
    if (from < s->first) s->first = from;
    if (to > s->end) s->end = to;
    return SEGUE_OK;
}

segue_status ref_state_put(struct sg_state *st, uint32_t slot, uint64_t from, uint64_t to,
                           enum sg_storage storage, const void *in, segue_error *err)
{
    struct ref_slot *s;
    if (st->busy) return sg_fail(err, SEGUE_EARG, "put state: ref: a run is using the state; wait for it");
    if (slot == UINT32_MAX) return seal(st, to, err);
    SG_TRY(slot_of(st, slot, storage, "put", &s, err));
    if (is_rows(s)) return put_rows(st, s, from, to, storage, in, err);
    memcpy(s->fixed, in, sg_slot_fixed_bytes(&s->slot));
    s->given = 1;
    return SEGUE_OK;
}

/* --- for runs --- */

segue_status ref_state_begin(struct sg_state *s, segue_error *err)
{
    pthread_mutex_lock(&s->lock);
    int busy = s->busy;
    s->busy = 1;
    pthread_mutex_unlock(&s->lock);
    if (busy) return sg_fail(err, SEGUE_EARG, "run: ref: two spans or runs share a state; fork it");
    ref_state_finish(s, 0, 0);
    return SEGUE_OK;
}

/* Encoded outside of the lock: readers do not look beyond `end`. */
segue_status ref_state_append(struct sg_state *st, int32_t slot, const float *rows, size_t stride, uint32_t n,
                              segue_error *err)
{
    struct ref_slot *s = &st->slots[slot];
    for (uint32_t t = 0; t < n; t++) {
        SG_TRY(block_own(st, s, (s->end + t) / REF_BLOCK_ROWS, err));
        sg_slot_encode(&s->slot, st->storage, rows + t * stride, row_at(s, s->end + t));
    }
    pthread_mutex_lock(&st->lock);
    s->end += n;
    pthread_cond_broadcast(&st->moved);
    pthread_mutex_unlock(&st->lock);
    return SEGUE_OK;
}

void ref_state_read(struct sg_state *st, int32_t slot, uint64_t from, uint64_t to, float *out)
{
    const struct ref_slot *s = &st->slots[slot];
    size_t width = (size_t)s->slot.heads * s->slot.width;
    for (uint64_t r = from; r < to; r++)
        sg_slot_decode(&s->slot, st->storage, row_at(s, r), out + (r - from) * width);
}

/* keep 0: as before the run; keep 1: what `next` and the appended rows say. Blocks that neither a row to come
 * nor the oldest mark can ask for are let go. */
void ref_state_finish(struct sg_state *st, int keep, uint32_t rows)
{
    pthread_mutex_lock(&st->lock);
    if (keep) st->rows += rows;
    uint64_t oldest = st->marks_n && st->marks[0].rows < st->rows ? st->marks[0].rows : st->rows;
    for (uint32_t i = 0; i < st->slots_n; i++) {
        struct ref_slot *s = &st->slots[i];
        size_t bytes = sg_slot_fixed_bytes(&s->slot);
        if (is_rows(s)) {
            rows_keep(s, sg_slot_first_needed(&s->slot, oldest) / REF_BLOCK_ROWS * REF_BLOCK_ROWS, st->rows);
            continue;
        }
        if (keep) {
            float *done = s->next;
            s->next = s->fixed;
            s->fixed = done;
            s->given = 1;
        }
        memcpy(s->next, s->fixed, bytes);
    }
    pthread_cond_broadcast(&st->moved);
    pthread_mutex_unlock(&st->lock);
}

void ref_state_release(struct sg_state *s)
{
    pthread_mutex_lock(&s->lock);
    s->busy = 0;
    pthread_cond_broadcast(&s->moved);
    pthread_mutex_unlock(&s->lock);
}
