/* anestate.c: what the unit `ane` remembers of a sequence. While runs follow each other it lies on the engine, one
 * packed surface for each program and a second one for what the next dispatch leaves; here lies a copy that is brought
 * up to date when somebody asks for it. K and V are fp16, the memory of convolutions and of the delta rule fp32 here
 * and fp16 there. SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <string.h>

#include "base/num.h"
#include "unit/ane/aneunit.h"
#include "unit/state_validate.h"

enum { MARKS = 8 };

/* --- new, free, fork --- */

/* Sets the element count of a slot and allocates fixed slots. ELIMIT: more elements than fit the
 * 32-bit arithmetic of surfaces. */
static segue_status slot_begin(struct sg_state *st, struct ane_slot *s, const struct sg_slot *slot, segue_error *err)
{
    size_t n;
    s->slot = *slot;
    SG_TRY(sg_mul(slot->heads, slot->width, &n, "state slot", err));
    SG_TRY(sg_mul(n, slot->kind == SG_SLOT_DELTA ? slot->depth : 1, &n, "state slot", err));
    if (n > UINT32_MAX / 8) return sg_fail(err, SEGUE_ELIMIT, "state slot: %zu numbers; too many", n);
    s->numbers = (uint32_t)n;
    if (ane_is_rows(slot)) return SEGUE_OK;
    s->fixed = sg_arena_alloc(&st->arena, n * sizeof *s->fixed);
    st->fixed_numbers += n;
    return s->fixed ? SEGUE_OK : sg_no_memory("ane state", n * sizeof *s->fixed, err);
}

/* Allocates slots and undo marks in the arena of the state. */
static segue_status state_fill(struct sg_state *st, const struct sg_slot *slots, uint32_t n, segue_error *err)
{
    st->slots = sg_arena_alloc(&st->arena, (n + 1) * sizeof *st->slots);
    st->marks = sg_arena_alloc(&st->arena, st->marks_cap * sizeof *st->marks);
    if (!st->slots || !st->marks) return sg_no_memory("ane state", n * sizeof *st->slots, err);
    for (; st->slots_n < n; st->slots_n++) SG_TRY(slot_begin(st, &st->slots[st->slots_n], &slots[st->slots_n], err));
    return SEGUE_OK;
}

segue_status ane_state_new(struct sg_unit *u, const struct sg_slot *slots, uint32_t slots_n,
                           const struct sg_state_opts *o, struct sg_state **out, segue_error *err)
{
    enum sg_storage storage = o ? o->kv : SG_F16;
    int keys = 0;
    for (uint32_t i = 0; i < slots_n; i++) keys |= ane_is_rows(&slots[i]);
    if (keys && storage != SG_F16)
        return sg_fail(err, SEGUE_EUNSUPPORTED, "new state: ane: K and V as %s; the engine has f16 alone",
                       (unsigned)storage < SG_STORAGE_N ? sg_storage_info(storage)->name : "an unknown storage");
    struct sg_state *st = sg_alloc(sizeof *st);
    if (!st) return sg_no_memory("ane state", sizeof *st, err);
    st->base = (struct sg_state_base){u->base.ops, u};
    st->marks_cap = o && o->undo ? o->undo : MARKS;
    st->fixed_here = 1;
    pthread_mutex_init(&st->lock, NULL);
    pthread_cond_init(&st->moved, NULL);
    segue_status status = state_fill(st, slots, slots_n, err);
    if (status != SEGUE_OK) {
        ane_state_free(st);
        return status;
    }
    *out = st;
    return SEGUE_OK;
}

/* Frees the surfaces. The host copy becomes the only one, so the caller must have synchronized it
 * unless the state is discarded. */
static void leave_engine(struct sg_state *s)
{
    const struct sg_ane_device_ops *ops = sg_ane_ops_of(s->base.unit->device);
    for (uint32_t i = 0; i < s->parts_n; i++) {
        if (s->now[i]) ops->surface_free(s->now[i]);
        if (s->next[i]) ops->surface_free(s->next[i]);
    }
    sg_free(s->now);
    sg_free(s->next);
    s->now = s->next = NULL;
    s->parts_n = 0;
    s->synced = s->rows;
}

static void mark_free(struct ane_mark *m)
{
    sg_free(m->copy);
    sg_free(m->rows_copy);
}

/* Frees all marks after the first n. */
static void marks_keep(struct sg_state *s, uint32_t n)
{
    while (s->marks_n > n) mark_free(&s->marks[--s->marks_n]);
}

void ane_state_free(struct sg_state *s)
{
    if (!s) return;
    leave_engine(s);
    marks_keep(s, 0);
    for (uint32_t i = 0; i < s->slots_n; i++) sg_free(s->slots[i].rows);
    pthread_cond_destroy(&s->moved);
    pthread_mutex_destroy(&s->lock);
    sg_arena_free(&s->arena);
    sg_free(s);
}

/* Downloads the state, then copies it on the host. The copy has no undo marks and no surfaces. */
segue_status ane_state_fork(struct sg_state *s, struct sg_state **out, segue_error *err)
{
    struct sg_state_opts o = {.kv = SG_F16, .undo = s->marks_cap};
    struct sg_state *copy = NULL;
    struct sg_slot *slots = sg_alloc((s->slots_n + 1) * sizeof *slots);
    if (!slots) return sg_no_memory("ane state", 0, err);
    for (uint32_t i = 0; i < s->slots_n; i++) slots[i] = s->slots[i].slot;
    segue_status status = ane_state_sync(s, err);
    if (status == SEGUE_OK) status = ane_state_new(s->base.unit, slots, s->slots_n, &o, &copy, err);
    sg_free(slots);
    for (uint32_t i = 0; status == SEGUE_OK && i < s->slots_n; i++) {
        struct ane_slot *a = &s->slots[i], *b = &copy->slots[i];
        b->given = a->given;
        if (a->fixed) memcpy(b->fixed, a->fixed, a->numbers * sizeof *a->fixed);
        if (a->end > a->first) status = ane_rows_reserve(b, a->first, a->end, err);
        if (status != SEGUE_OK || !a->end) continue;
        b->first = a->first;
        b->end = a->end;
        if (a->end > a->first) memcpy(b->rows, ane_row(a, a->first), (size_t)(a->end - a->first) * a->numbers * sizeof *a->rows);
    }
    if (status != SEGUE_OK) {
        ane_state_free(copy);
        return status;
    }
    copy->rows = copy->synced = s->rows;
    *out = copy;
    return SEGUE_OK;
}

/* --- to the engine and back --- */

/* Index in a part's state surface, in fp16 elements; channel `at` begins at at * keys. K and V:
 * element i has a ring of `columns` entries that begins i * columns later, and a row uses the
 * entry row % columns. Other slots are packed. */
static size_t place(const struct ane_slot *s, uint32_t keys, uint64_t row, uint32_t i)
{
    size_t at = (size_t)s->at * keys;
    return ane_is_rows(&s->slot) ? at + (size_t)i * s->columns + row % s->columns : at + i;
}

/* Copies K and V rows [from, st->rows) between host (row-major) and surface (ring). */
static void copy_rows(struct sg_state *st, const struct ane_slot *s, uint64_t from, int to_engine, uint16_t *there)
{
    for (uint64_t r = from; r < st->rows; r++) {
        uint16_t *here = ane_row(s, r);
        for (uint32_t i = 0; i < s->numbers; i++) {
            uint16_t *a = &there[place(s, st->keys, r, i)];
            if (to_engine)
                *a = here[i];
            else
                here[i] = *a;
        }
    }
    st->copied += 2ull * s->numbers * (st->rows > from ? st->rows - from : 0);
}

/* Copies a CONV or DELTA slot; fp32 on the host, fp16 on the engine. */
static void copy_fixed(struct sg_state *st, const struct ane_slot *s, int to_engine, uint16_t *there)
{
    for (uint32_t i = 0; i < s->numbers; i++) {
        uint16_t *a = &there[place(s, st->keys, 0, i)];
        if (to_engine)
            *a = sg_f16_of_f32(s->fixed[i]);
        else
            s->fixed[i] = sg_f32_of_f16(*a);
    }
    st->copied += 2ull * s->numbers;
}

/* Copies all slots of one part between host and surface. To the host only rows after slot->end are
 * copied; fixed slots only if `fixed`. */
static segue_status copy_part(struct sg_state *st, uint32_t part, int fixed, int to_engine, segue_error *err)
{
    const struct sg_ane_device_ops *ops = sg_ane_ops_of(st->base.unit->device);
    void *bytes;
    uint64_t n;
    if (!st->now[part]) return SEGUE_OK; /* a part without slots */
    SG_TRY(ops->lock(st->now[part], to_engine, &bytes, &n, err));
    for (uint32_t k = 0; k < st->slots_n; k++) {
        struct ane_slot *s = &st->slots[k];
        if (s->part != part) continue;
        if (ane_is_rows(&s->slot)) copy_rows(st, s, to_engine ? s->there : s->end, to_engine, bytes);
        if (s->fixed && fixed) copy_fixed(st, s, to_engine, bytes);
    }
    ops->unlock(st->now[part]);
    return SEGUE_OK;
}

/* Brings the host copy up to date; the engine keeps its copy. Rows between the host copy and the
 * oldest row of the ring are no longer available, so the host range restarts at the ring. */
segue_status ane_state_sync(struct sg_state *s, segue_error *err)
{
    if (!s->parts_n || (s->synced == s->rows && s->fixed_here)) return SEGUE_OK;
    for (uint32_t i = 0; i < s->slots_n; i++) {
        struct ane_slot *slot = &s->slots[i];
        if (!ane_is_rows(&slot->slot)) continue;
        if (slot->end < slot->there) slot->first = slot->end = slot->there; /* what lies between is gone */
        SG_TRY(ane_rows_reserve(slot, slot->end, s->rows, err));
    }
    for (uint32_t i = 0; i < s->parts_n; i++) SG_TRY(copy_part(s, i, !s->fixed_here, 0, err));
    for (uint32_t i = 0; i < s->slots_n; i++) {
        s->slots[i].end = ane_is_rows(&s->slots[i].slot) ? s->rows : 0;
        s->slots[i].given = 1;
    }
    s->synced = s->rows;
    s->fixed_here = 1;
    return SEGUE_OK;
}

segue_status ane_state_download(struct sg_state *s, segue_error *err)
{
    SG_TRY(ane_state_sync(s, err));
    leave_engine(s);
    return SEGUE_OK;
}

/* Two surfaces per part with slots: the current state and the one that the next dispatch writes. */
static segue_status surfaces(struct sg_state *s, const struct sg_ane_partition *cut, uint64_t bytes, segue_error *err)
{
    const struct sg_ane_device_ops *ops = sg_ane_ops_of(s->base.unit->device);
    s->now = sg_alloc((cut->parts_n + 1) * sizeof *s->now);
    s->next = sg_alloc((cut->parts_n + 1) * sizeof *s->next);
    if (!s->now || !s->next) return sg_no_memory("ane state", 0, err);
    for (s->parts_n = 0; s->parts_n < cut->parts_n;) {
        uint32_t i = s->parts_n++;
        if (!cut->parts[i].slots_n) continue;
        SG_TRY(ops->surface_new(s->base.unit->device, bytes, &s->now[i], err));
        SG_TRY(ops->surface_new(s->base.unit->device, bytes, &s->next[i], err));
    }
    return SEGUE_OK;
}

/* Assigns part, channel offset and ring size to each slot, and the first row that fits the ring. */
static void lay_out(struct sg_state *s, const struct sg_ane_partition *cut, uint32_t keys)
{
    for (uint32_t i = 0; i < cut->parts_n; i++) {
        uint64_t at = 0;
        for (uint32_t k = 0; k < cut->parts[i].slots_n; k++) {
            struct ane_slot *slot = &s->slots[cut->parts[i].slots[k]];
            slot->part = i;
            slot->at = (uint32_t)at;
            slot->columns = sg_ane_ring_columns(slot->slot.window, keys);
            slot->there = s->rows > slot->columns ? s->rows - slot->columns : 0;
            if (slot->there < slot->first) slot->there = slot->first;
            at += sg_ane_slot_channels(&slot->slot, keys);
        }
    }
    s->keys = keys;
}

/* Downloads first: a different key count changes the layout of all surfaces. */
segue_status ane_state_upload(struct sg_state *s, struct sg_program *p, uint32_t keys, uint64_t bytes, segue_error *err)
{
    if (!s->slots_n || (s->parts_n && s->keys == keys && s->surface_bytes == bytes)) return SEGUE_OK;
    SG_TRY(ane_state_download(s, err));
    lay_out(s, &p->cut[0], keys);
    s->surface_bytes = bytes;
    segue_status status = surfaces(s, &p->cut[0], bytes, err);
    for (uint32_t i = 0; status == SEGUE_OK && i < s->parts_n; i++)
        if (s->now[i]) status = copy_part(s, i, 1, 1, err);
    if (status != SEGUE_OK) leave_engine(s);
    return status;
}

/* Swaps the surfaces after all parts have run; before that a failed dispatch leaves the state
 * unchanged. The lock orders this with ane_state_get on another thread. */
void ane_state_advance(struct sg_state *s, uint32_t rows)
{
    struct sg_ane_surface **was = s->now;
    pthread_mutex_lock(&s->lock);
    s->now = s->next;
    s->next = was;
    s->rows += rows;
    s->fixed_here = !s->parts_n;
    for (uint32_t i = 0; s->parts_n && i < s->slots_n; i++) {
        struct ane_slot *slot = &s->slots[i];
        if (ane_is_rows(&slot->slot) && s->rows > slot->there + slot->columns) slot->there = s->rows - slot->columns;
    }
    pthread_mutex_unlock(&s->lock);
}

/* --- marks and cuts --- */

/* Copies all fixed slots to a mark (restore 0) or back. */
static void fixed_copy(struct sg_state *s, float *copy, int restore)
{
    for (uint32_t i = 0; i < s->slots_n; i++) {
        struct ane_slot *slot = &s->slots[i];
        if (!slot->fixed) continue;
        if (restore)
            memcpy(slot->fixed, copy, slot->numbers * sizeof *copy);
        else
            memcpy(copy, slot->fixed, slot->numbers * sizeof *copy);
        copy += slot->numbers;
    }
}

/* Fixed slots are copied at once. K and V rows are not: later runs append, so the rows stay valid
 * until a ring wraps (ane_state_prepare). */
segue_status ane_state_mark(struct sg_state *s, uint32_t *mark, segue_error *err)
{
    if (s->marks_n == s->marks_cap)
        return sg_fail(err, SEGUE_ELIMIT, "mark state: ane: %u marks are alive; drop one, or open the state with more",
                       s->marks_n);
    if (s->fixed_numbers) SG_TRY(ane_state_sync(s, err));
    float *copy = sg_alloc(s->fixed_numbers * sizeof *copy);
    if (!copy) return sg_no_memory("mark of an ane state", s->fixed_numbers * sizeof *copy, err);
    fixed_copy(s, copy, 0);
    s->marks[s->marks_n++] = (struct ane_mark){s->marks_next, s->rows, copy, NULL};
    *mark = s->marks_next++;
    return SEGUE_OK;
}

/* Number of rows before a mark that the next row sees through a limited window; 0 for other slots. */
static size_t mark_rows(const struct sg_state *s, const struct ane_mark *m, uint32_t slot)
{
    const struct ane_slot *at = &s->slots[slot];
    return ane_is_rows(&at->slot) && ane_reach(s, &at->slot) ? (size_t)(m->rows - ane_rows_needed(s, at, m->rows)) : 0;
}

/* Saves those rows in the mark, slot after slot. */
static segue_status mark_fill(struct sg_state *s, struct ane_mark *m, segue_error *err)
{
    size_t numbers = 0;
    SG_TRY(ane_state_sync(s, err));
    for (uint32_t i = 0; i < s->slots_n; i++) numbers += mark_rows(s, m, i) * s->slots[i].numbers;
    uint16_t *to = m->rows_copy = sg_alloc(numbers * sizeof *to);
    if (!to) return sg_no_memory("rows of a mark", numbers * sizeof *to, err);
    for (uint32_t i = 0; i < s->slots_n; i++) {
        const struct ane_slot *slot = &s->slots[i];
        for (uint64_t r = m->rows - mark_rows(s, m, i); r < m->rows; r++, to += slot->numbers)
            if (r >= slot->first) memcpy(to, ane_row(slot, r), slot->numbers * sizeof *to);
    }
    return SEGUE_OK;
}

/* Releases host rows that neither the next row nor a mark without its own copy can read. */
static void forget(struct sg_state *s)
{
    for (uint32_t i = 0; i < s->slots_n; i++) {
        uint64_t from = ane_rows_needed(s, &s->slots[i], s->rows);
        for (uint32_t k = 0; k < s->marks_n; k++) {
            uint64_t asked = ane_rows_needed(s, &s->slots[i], s->marks[k].rows);
            if (!s->marks[k].rows_copy && asked < from) from = asked;
        }
        if (s->slots[i].first < from) s->slots[i].first = from < s->slots[i].end ? from : s->slots[i].end;
    }
}

/* A mark needs its own copy as soon as the next n rows would overwrite its oldest visible row in a
 * ring. */
segue_status ane_state_prepare(struct sg_state *s, uint32_t n, segue_error *err)
{
    for (uint32_t k = 0; s->parts_n && k < s->marks_n; k++)
        for (uint32_t i = 0; i < s->slots_n && !s->marks[k].rows_copy; i++) {
            const struct ane_slot *slot = &s->slots[i];
            size_t rows = mark_rows(s, &s->marks[k], i);
            if (rows && s->rows + n > s->marks[k].rows - rows + slot->columns) SG_TRY(mark_fill(s, &s->marks[k], err));
        }
    forget(s);
    return SEGUE_OK;
}

/* Restores the rows saved in a mark to the host copy. */
static segue_status mark_rows_back(struct sg_state *s, const struct ane_mark *m, segue_error *err)
{
    size_t at = 0;
    for (uint32_t i = 0; i < s->slots_n; i++) {
        struct ane_slot *slot = &s->slots[i];
        size_t n = mark_rows(s, m, i);
        if (!n) continue;
        slot->first = slot->end = m->rows - n;
        SG_TRY(ane_rows_reserve(slot, slot->first, m->rows, err));
        memcpy(ane_row(slot, slot->first), m->rows_copy + at, n * slot->numbers * sizeof *slot->rows);
        slot->end = m->rows;
        at += n * slot->numbers;
    }
    return SEGUE_OK;
}

/* Truncates the state to `rows` rows in both copies. */
static void keep_rows(struct sg_state *s, uint64_t rows)
{
    for (uint32_t i = 0; i < s->slots_n; i++) {
        struct ane_slot *slot = &s->slots[i];
        if (slot->end > rows) slot->end = rows;
        if (slot->first > rows) slot->first = rows;
        if (slot->there > rows) slot->there = rows;
    }
    s->rows = rows;
    if (s->synced > rows) s->synced = rows;
}

static uint32_t mark_find(const struct sg_state *s, uint32_t number)
{
    uint32_t i = 0;
    while (i < s->marks_n && s->marks[i].number != number) i++;
    return i;
}

/* Restores mark and drops newer ones; the mark itself stays valid. The state leaves the engine
 * only if host data must replace it. */
segue_status ane_state_back(struct sg_state *s, uint32_t mark, segue_error *err)
{
    uint32_t at = mark_find(s, mark);
    if (at == s->marks_n) return sg_fail(err, SEGUE_EARG, "go back: ane: mark %u is not alive; use a newer one", mark);
    if (s->fixed_numbers || s->marks[at].rows_copy) SG_TRY(ane_state_download(s, err));
    if (s->marks[at].rows_copy) SG_TRY(mark_rows_back(s, &s->marks[at], err));
    marks_keep(s, at + 1);
    fixed_copy(s, s->marks[at].copy, 1);
    keep_rows(s, s->marks[at].rows);
    return SEGUE_OK;
}

/* Drops this mark and all older ones. */
void ane_state_drop(struct sg_state *s, uint32_t mark)
{
    uint32_t at = mark_find(s, mark);
    if (at == s->marks_n) return;
    for (uint32_t i = 0; i <= at; i++) mark_free(&s->marks[i]);
    s->marks_n -= at + 1;
    memmove(s->marks, s->marks + at + 1, s->marks_n * sizeof *s->marks);
}

/* The first row of a slot that host copy and ring together still have without a gap. */
static uint64_t first_held(const struct sg_state *s, const struct ane_slot *slot)
{
    return s->parts_n && (slot->end < slot->there || slot->first == slot->end) ? slot->there : slot->first;
}

/* EUNSUPPORTED: the row after the cut would see a row that is no longer stored. */
static segue_status cut_possible(const struct sg_state *s, uint64_t rows, segue_error *err)
{
    for (uint32_t i = 0; rows && i < s->slots_n; i++) {
        const struct ane_slot *slot = &s->slots[i];
        uint64_t needed = ane_rows_needed(s, slot, rows);
        if (!ane_is_rows(&slot->slot) || first_held(s, slot) <= needed) continue;
        return sg_fail(err, SEGUE_EUNSUPPORTED,
                       "cut state: ane: layer %u: row %llu is gone, its window starts at %llu; go back to a mark, or replay",
                       slot->slot.layer, (unsigned long long)needed, (unsigned long long)first_held(s, slot));
    }
    return SEGUE_OK;
}

/* Truncation to 0 resets the state; any other length is impossible for recurrent slots, which have
 * no history. Marks after the cut are dropped. */
segue_status ane_state_cut(struct sg_state *s, uint64_t rows, segue_error *err)
{
    if (rows > s->rows)
        return sg_fail(err, SEGUE_EARG, "cut state: ane: to %llu rows of %llu; give fewer", (unsigned long long)rows,
                       (unsigned long long)s->rows);
    if (rows == s->rows) return SEGUE_OK;
    if (rows && s->fixed_numbers)
        return sg_fail(err, SEGUE_EUNSUPPORTED,
                       "cut state: ane: its recurrent memory cannot be cut back; go back to a mark, or replay");
    SG_TRY(cut_possible(s, rows, err));
    uint32_t keep = 0;
    while (keep < s->marks_n && s->marks[keep].rows <= rows) keep++;
    for (uint32_t i = 0; i < s->slots_n; i++)
        if (!rows && ane_is_rows(&s->slots[i].slot) && first_held(s, &s->slots[i])) keep = 0;
    marks_keep(s, keep);
    if (!rows) leave_engine(s);
    keep_rows(s, rows);
    for (uint32_t i = 0; !rows && i < s->slots_n; i++) {
        if (s->slots[i].fixed) memset(s->slots[i].fixed, 0, s->slots[i].numbers * sizeof(float));
        s->slots[i].given = 0;
    }
    if (!rows) s->fixed_here = 1;
    return SEGUE_OK;
}

void ane_state_held(const struct sg_state *s, uint32_t slot, uint64_t *first, uint64_t *rows)
{
    *rows = s->rows;
    *first = slot < s->slots_n && ane_is_rows(&s->slots[slot].slot) ? first_held(s, &s->slots[slot]) : 0;
}

uint64_t ane_state_bytes(const struct sg_state *s)
{
    uint64_t bytes = (uint64_t)s->fixed_numbers * sizeof(float) * (1 + s->marks_n);
    for (uint32_t i = 0; i < s->slots_n; i++) bytes += s->slots[i].rows_cap * s->slots[i].numbers * 2;
    for (uint32_t i = 0; i < s->parts_n; i++) bytes += s->now[i] ? 2 * s->surface_bytes : 0;
    return bytes;
}

/* --- get and put --- */

static segue_status slot_of(struct sg_state *s, uint32_t slot, enum sg_storage storage, const char *verb,
                            struct ane_slot **out, segue_error *err)
{
    if (slot >= s->slots_n)
        return sg_fail(err, SEGUE_EARG, "%s state: ane: slot %u of %u; give a smaller one", verb, slot, s->slots_n);
    *out = &s->slots[slot];
    int rows = ane_is_rows(&(*out)->slot);
    if (rows ? sg_slot_row_bytes(&(*out)->slot, storage) != 0 : storage == SG_F32) return SEGUE_OK;
    return sg_fail(err, SEGUE_EUNSUPPORTED, "%s state: ane: slot %u in storage %d; take f32%s", verb, slot, (int)storage,
                   rows ? ", f16, bf16 or q8" : "");
}

segue_status ane_state_get(struct sg_state *st, uint32_t slot, uint64_t from, uint64_t to, enum sg_storage storage,
                           void *out, segue_error *err)
{
    struct ane_slot *s = NULL;
    SG_TRY(slot_of(st, slot, storage, "get", &s, err));
    pthread_mutex_lock(&st->lock);
    while (st->busy) pthread_cond_wait(&st->moved, &st->lock);
    segue_status status = ane_state_sync(st, err);
    if (status == SEGUE_OK && ane_is_rows(&s->slot))
        status = ane_rows_get(s, slot, from, to, storage, out, err);
    else if (status == SEGUE_OK)
        memcpy(out, s->fixed, s->numbers * sizeof *s->fixed);
    pthread_mutex_unlock(&st->lock);
    return status;
}

/* Validates a state whose slots were written from outside: all rows that the next row sees must be
 * present. Old marks are invalid then. */
static segue_status seal(struct sg_state *s, uint64_t rows, segue_error *err)
{
    for (uint32_t i = 0; i < s->slots_n; i++) {
        const struct ane_slot *slot = &s->slots[i];
        struct sg_slot_coverage held = {"ane", &slot->slot, slot->first, slot->end, slot->given, ane_rows_needed(s, slot, rows)};
        SG_TRY(sg_slot_coverage(&held, rows, err));
    }
    marks_keep(s, 0);
    keep_rows(s, rows);
    s->synced = rows;
    return SEGUE_OK;
}

segue_status ane_state_put(struct sg_state *st, uint32_t slot, uint64_t from, uint64_t to, enum sg_storage storage,
                           const void *in, segue_error *err)
{
    struct ane_slot *s = NULL;
    if (st->busy) return sg_fail(err, SEGUE_EARG, "put state: ane: a run is using the state; wait for it");
    SG_TRY(ane_state_download(st, err));
    if (slot == UINT32_MAX) return seal(st, to, err);
    SG_TRY(slot_of(st, slot, storage, "put", &s, err));
    if (ane_is_rows(&s->slot)) return ane_rows_put(s, from, to, storage, in, err);
    memcpy(s->fixed, in, s->numbers * sizeof *s->fixed);
    s->given = 1;
    return SEGUE_OK;
}
