/* state_core.c: see state_core.h.
 * SPDX-License-Identifier: MIT */
#include "unit/state_core.h"

#include <string.h>

enum { DEFAULT_MARKS = 8 };

typedef unsigned long long ull;      /* the argument type of %llu */

/* The core is the first member of the unit's struct sg_state. */
static struct sg_state *state_of(struct sg_state_core *c) { return (struct sg_state *)(void *)c; }

/* --- life --- */

/* Sizes come from a graph, whose numbers come from a file: every product is checked. */
static segue_status slot_init(struct sg_state_core *c, struct sg_core_slot *s, const struct sg_slot *slot, segue_error *err)
{
    size_t bytes;
    s->slot = *slot;
    s->row_bytes = sg_slot_grows(slot) ? sg_slot_row_bytes(slot, c->storage) : 0;
    if (sg_slot_grows(slot)) return SEGUE_OK;
    SG_TRY(sg_mul(slot->heads, slot->width, &bytes, "state slot", err));
    SG_TRY(sg_mul(bytes, slot->kind == SG_SLOT_DELTA ? slot->depth : 1, &bytes, "state slot", err));
    SG_TRY(sg_mul(bytes, sizeof(float), &bytes, "state slot", err));
    if (bytes > SIZE_MAX / 2 - c->fixed_bytes) return sg_no_memory("recurrent slots of a state", bytes, err);
    s->fixed_bytes = bytes;
    c->fixed_bytes += bytes;
    return SEGUE_OK;
}

segue_status sg_state_core_init(struct sg_state_core *c, const struct sg_state_core_ops *ops, struct sg_unit *u,
                                const struct sg_slot *slots, uint32_t slots_n, const struct sg_state_opts *o,
                                enum sg_storage storage, segue_error *err)
{
    c->base = (struct sg_state_base){sg_ops_of(u), u};
    c->ops = ops;
    c->storage = o ? o->kv : storage;
    c->host = o ? o->host : NULL;
    c->marks_cap = o && o->undo ? o->undo : DEFAULT_MARKS;
    c->slot_size = ops->slot_size;
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->changed, NULL);
    if (c->storage != SG_F32 && c->storage != SG_F16 && c->storage != SG_BF16 && c->storage != SG_Q8_0)
        return sg_fail(err, SEGUE_EUNSUPPORTED, "new state: %s: K and V as %s are not supported; use f32, f16, bf16 or q8",
                       ops->unit, (unsigned)c->storage < SG_STORAGE_N ? sg_storage_info(c->storage)->name : "unknown storage");
    c->slots = sg_alloc(slots_n * c->slot_size);
    c->marks = sg_alloc(c->marks_cap * sizeof *c->marks);
    if (!c->slots || !c->marks) return sg_no_memory("state", slots_n * c->slot_size, err);
    for (uint32_t i = 0; i < c->marks_cap; i++) c->marks[i].buffer = i;
    for (; c->slots_n < slots_n; c->slots_n++) SG_TRY(slot_init(c, sg_core_slot_at(c, c->slots_n), &slots[c->slots_n], err));
    return SEGUE_OK;
}

segue_status sg_state_core_new(const struct sg_state_core_ops *ops, struct sg_unit *u, const struct sg_slot *slots,
                               uint32_t slots_n, const struct sg_state_opts *o, enum sg_storage storage,
                               struct sg_state **out, segue_error *err)
{
    struct sg_state_core *c = sg_alloc(ops->state_size);
    if (!c) return sg_no_memory("state", ops->state_size, err);
    segue_status status = sg_state_core_init(c, ops, u, slots, slots_n, o, storage, err);
    if (status == SEGUE_OK) status = ops->init(state_of(c), o, err);
    if (status != SEGUE_OK) {
        c->base.ops->state_free(state_of(c));
        return status;
    }
    *out = state_of(c);
    return SEGUE_OK;
}

/* Forget the marks from index n on. */
static void marks_truncate(struct sg_state_core *c, uint32_t n)
{
    while (c->marks_n > n) {
        c->marks_n--;
        if (c->ops->undo_release) c->ops->undo_release(state_of(c), c->marks[c->marks_n].buffer);
    }
}

/* Marks are released first: the unit still has its undo buffers. */
void sg_state_core_free(struct sg_state_core *c)
{
    marks_truncate(c, 0);
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    sg_free(c->slots);
    sg_free(c->marks);
}

/* The fork has no marks: they refer to earlier positions of the original. */
segue_status sg_state_core_fork(struct sg_state *state, struct sg_state **out, segue_error *err)
{
    const struct sg_state_core *c = sg_state_core_of(state);
    struct sg_state_opts o = {.kv = c->storage, .rows = c->ops->fork_shares ? 0 : c->tokens, .undo = c->marks_cap,
                              .filled = 1, .host = c->host};
    struct sg_state *copy = NULL;
    struct sg_slot *slots = sg_alloc(c->slots_n * sizeof *slots);
    if (!slots) return sg_no_memory("state", c->slots_n * sizeof *slots, err);
    for (uint32_t i = 0; i < c->slots_n; i++) slots[i] = sg_core_slot_at(c, i)->slot;
    segue_status status = c->base.ops->state_new(c->base.unit, slots, c->slots_n, &o, &copy, err);
    sg_free(slots);
    if (status != SEGUE_OK) return status;
    status = c->ops->copy(copy, state, err);
    if (status != SEGUE_OK) {
        c->base.ops->state_free(copy);
        return status;
    }
    struct sg_state_core *to = sg_state_core_of(copy);
    for (uint32_t i = 0; i < c->slots_n; i++) {
        const struct sg_core_slot *from = sg_core_slot_at(c, i);
        struct sg_core_slot *slot = sg_core_slot_at(to, i);
        slot->first = from->first;
        slot->end = from->end;
        slot->present = from->present;
    }
    to->tokens = c->tokens;
    *out = copy;
    return SEGUE_OK;
}

/* 1: equal kinds, sizes and layers of all slots, and the same storage of K and V. */
static int same_slots(const struct sg_state_core *a, const struct sg_state_core *b)
{
    if (a->slots_n != b->slots_n || a->storage != b->storage) return 0;
    for (uint32_t i = 0; i < a->slots_n; i++)
        if (!sg_slot_equal(&sg_core_slot_at(a, i)->slot, &sg_core_slot_at(b, i)->slot)) return 0;
    return 1;
}

/* 1: a run has acquired the state. */
static int is_busy(struct sg_state_core *c)
{
    pthread_mutex_lock(&c->lock);
    int busy = c->busy;
    pthread_mutex_unlock(&c->lock);
    return busy;
}

segue_status sg_state_core_check_transfer(struct sg_state *to, struct sg_state *from, segue_error *err)
{
    struct sg_state_core *a = sg_state_core_of(from), *b = sg_state_core_of(to);
    if (!same_slots(a, b))
        return sg_fail(err, SEGUE_EUNSUPPORTED, "transfer state: %s: the states differ in slots or storage; use get and put",
                       a->ops->unit);
    if (is_busy(a) || is_busy(b))
        return sg_fail(err, SEGUE_EARG, "transfer state: %s: a run is using a state; wait for it", a->ops->unit);
    marks_truncate(a, 0);
    marks_truncate(b, 0);
    return SEGUE_OK;
}

/* --- marks --- */

/* The mark takes the first free buffer; it is added only when the copy succeeded. */
segue_status sg_state_core_mark(struct sg_state *s, uint32_t *mark, segue_error *err)
{
    struct sg_state_core *c = sg_state_core_of(s);
    if (c->marks_n == c->marks_cap)
        return sg_fail(err, SEGUE_ELIMIT, "mark state: %s: %u marks exist, the limit; drop one, or open the state with more",
                       c->ops->unit, c->marks_n);
    struct sg_undo_mark *m = &c->marks[c->marks_n];
    m->number = c->marks_next;
    m->tokens = c->tokens;
    SG_TRY(c->ops->undo_save(s, m, err));
    c->marks_n++;
    *mark = c->marks_next++;
    return SEGUE_OK;
}

/* Index of the mark, or marks_n. */
static uint32_t mark_find(const struct sg_state_core *c, uint32_t number)
{
    uint32_t i = 0;
    while (i < c->marks_n && c->marks[i].number != number) i++;
    return i;
}

/* The first `tokens` tokens are the sequence; later positions are no longer held. */
static void truncate_to(struct sg_state_core *c, uint64_t tokens)
{
    for (uint32_t i = 0; i < c->slots_n; i++) {
        struct sg_core_slot *s = sg_core_slot_at(c, i);
        if (!sg_slot_grows(&s->slot)) continue;
        s->end = tokens;
        if (s->first > tokens) s->first = tokens;
    }
    c->tokens = tokens;
    if (c->ops->trim) c->ops->trim(state_of(c));
}

/* The mark is not dropped: drafts go back to the same position many times. */
segue_status sg_state_core_back(struct sg_state *s, uint32_t mark, segue_error *err)
{
    struct sg_state_core *c = sg_state_core_of(s);
    uint32_t at = mark_find(c, mark);
    if (at == c->marks_n)
        return sg_fail(err, SEGUE_EARG, "go back: %s: mark %u does not exist any more; use a newer one", c->ops->unit, mark);
    SG_TRY(c->ops->undo_restore(s, &c->marks[at], err));
    marks_truncate(c, at + 1);
    truncate_to(c, c->marks[at].tokens);
    return SEGUE_OK;
}

/* The dropped entries move after the last remaining mark: they own the free buffers. */
void sg_state_core_drop(struct sg_state *s, uint32_t mark)
{
    struct sg_state_core *c = sg_state_core_of(s);
    uint32_t at = mark_find(c, mark), n = c->marks_n;
    if (at == n) return;
    for (uint32_t i = 0; i <= at; i++)
        if (c->ops->undo_release) c->ops->undo_release(s, c->marks[i].buffer);
    for (uint32_t i = at + 1; i < n; i++) {
        struct sg_undo_mark dropped = c->marks[i - at - 1];
        c->marks[i - at - 1] = c->marks[i];
        c->marks[i] = dropped;
    }
    c->marks_n -= at + 1;
}

/* --- cuts --- */

/* The unit's callback, or the default. */
static uint64_t first_held(const struct sg_state_core *c, uint32_t i)
{
    const struct sg_state *s = (const struct sg_state *)(const void *)c;
    return c->ops->first_held ? c->ops->first_held(s, i) : sg_core_slot_at(c, i)->first;
}

static uint64_t first_needed(const struct sg_state_core *c, uint32_t i, uint64_t tokens)
{
    const struct sg_state *s = (const struct sg_state *)(const void *)c;
    return c->ops->first_needed ? c->ops->first_needed(s, i, tokens)
                                : sg_slot_first_needed(&sg_core_slot_at(c, i)->slot, tokens);
}

/* A recurrent slot cannot run backwards, and a window may have lost what the shorter sequence attends to. */
static segue_status check_cut(const struct sg_state_core *c, uint64_t tokens, segue_error *err)
{
    for (uint32_t i = 0; i < c->slots_n; i++) {
        const struct sg_core_slot *s = sg_core_slot_at(c, i);
        if (s->fixed_bytes)
            return sg_fail(err, SEGUE_EUNSUPPORTED,
                           "cut state: %s: layer %u: a recurrent slot cannot be cut; rewind to a checkpoint, or compute the "
                           "tokens again",
                           c->ops->unit, s->slot.layer);
        uint64_t needed = first_needed(c, i, tokens), held = first_held(c, i);
        if (sg_slot_grows(&s->slot) && held > needed)
            return sg_fail(err, SEGUE_EUNSUPPORTED,
                           "cut state: %s: layer %u: position %llu is gone, its window starts at %llu; go back to a mark, or "
                           "replay",
                           c->ops->unit, s->slot.layer, (ull)needed, (ull)held);
    }
    return SEGUE_OK;
}

/* Marks after the cut are forgotten, since later tokens overwrite their positions. A cut to 0 gives an empty state and is
 * always possible. */
segue_status sg_state_core_cut(struct sg_state *s, uint64_t tokens, segue_error *err)
{
    struct sg_state_core *c = sg_state_core_of(s);
    uint32_t keep = 0;
    if (tokens > c->tokens)
        return sg_fail(err, SEGUE_EARG, "cut state: %s: to %llu tokens, it holds %llu; use a smaller number", c->ops->unit,
                       (ull)tokens, (ull)c->tokens);
    if (tokens && tokens == c->tokens) return SEGUE_OK;
    if (tokens) SG_TRY(check_cut(c, tokens, err));
    if (c->ops->settle) SG_TRY(c->ops->settle(s, err));
    while (keep < c->marks_n && c->marks[keep].tokens <= tokens) keep++;
    marks_truncate(c, keep);
    for (uint32_t i = 0; !tokens && i < c->slots_n; i++) {
        sg_core_slot_at(c, i)->first = 0;
        sg_core_slot_at(c, i)->present = 0;
    }
    truncate_to(c, tokens);
    return !tokens && c->fixed_bytes ? c->ops->clear(s, err) : SEGUE_OK;
}

void sg_state_core_held(const struct sg_state *s, uint32_t slot, uint64_t *first, uint64_t *tokens)
{
    const struct sg_state_core *c = sg_state_core_of_const(s);
    pthread_mutex_lock(sg_state_core_lock_of(c));
    *tokens = c->tokens;
    *first = slot < c->slots_n && sg_slot_grows(&sg_core_slot_at(c, slot)->slot) ? first_held(c, slot) : 0;
    pthread_mutex_unlock(sg_state_core_lock_of(c));
}

/* --- get and put --- */

segue_status sg_state_core_slot(const struct sg_state_core *c, uint32_t slot, enum sg_storage storage, const char *verb,
                                struct sg_core_slot **out, segue_error *err)
{
    if (slot >= c->slots_n)
        return sg_fail(err, SEGUE_EARG, "%s state: %s: slot %u of %u does not exist; use a smaller number", verb, c->ops->unit,
                       slot, c->slots_n);
    struct sg_core_slot *s = *out = sg_core_slot_at(c, slot);
    int grows = sg_slot_grows(&s->slot);
    if (grows ? sg_slot_row_bytes(&s->slot, storage) || !s->row_bytes : storage == SG_F32) return SEGUE_OK;
    return sg_fail(err, SEGUE_EUNSUPPORTED, "%s state: %s: slot %u: storage %d is not supported; use f32%s", verb, c->ops->unit,
                   slot, (int)storage, grows ? ", f16, bf16 or q8" : "");
}

void sg_state_core_wait(struct sg_state_core *c, const struct sg_core_slot *s, uint64_t to)
{
    while (c->busy && (!sg_slot_grows(&s->slot) || s->end < to)) pthread_cond_wait(&c->changed, &c->lock);
}

/* An empty range is valid anywhere up to `end`. */
segue_status sg_state_core_check_get(const struct sg_state_core *c, uint32_t slot, uint64_t from, uint64_t to, uint64_t first,
                                     uint64_t end, segue_error *err)
{
    if (from <= to && to <= end && (from == to || from >= first)) return SEGUE_OK;
    return sg_fail(err, SEGUE_EARG, "get state: %s: slot %u: positions [%llu, %llu) are not all held; it holds [%llu, %llu)",
                   c->ops->unit, slot, (ull)from, (ull)to, (ull)first, (ull)end);
}

/* A state that was written by put: the slot has what the token after `tokens` tokens attends to. EARG: positions, or a recurrent
 * slot, were never put. EUNSUPPORTED: positions had already been released where the state was computed (a unit that keeps fewer
 * than the model's window). */
static segue_status check_filled(const struct sg_state_core *c, uint32_t i, uint64_t tokens, segue_error *err)
{
    const struct sg_core_slot *s = sg_core_slot_at(c, i);
    uint64_t needed = first_needed(c, i, tokens);
    int grows = sg_slot_grows(&s->slot);
    if (grows && s->end >= tokens && s->first > needed)
        return sg_fail(err, SEGUE_EUNSUPPORTED,
                       "fill state: %s: layer %u needs position %llu, which is gone: the data begins at %llu; continue on the "
                       "unit that computed it, or compute it there with more keys",
                       c->ops->unit, s->slot.layer, (ull)needed, (ull)s->first);
    if (grows ? s->end >= tokens : !tokens || s->present || !s->fixed_bytes) return SEGUE_OK;
    return sg_fail(err, SEGUE_EARG, "fill state: %s: layer %u lacks positions up to %llu; put them first", c->ops->unit,
                   s->slot.layer, (ull)tokens);
}

/* Every slot has what the token after `tokens` tokens needs; then that is the length of the sequence. */
static segue_status validate(struct sg_state *s, uint64_t tokens, segue_error *err)
{
    struct sg_state_core *c = sg_state_core_of(s);
    if (c->ops->flush) SG_TRY(c->ops->flush(s, err));
    for (uint32_t i = 0; i < c->slots_n; i++) SG_TRY(check_filled(c, i, tokens, err));
    marks_truncate(c, 0);
    truncate_to(c, tokens);
    return SEGUE_OK;
}

segue_status sg_state_core_check_idle(struct sg_state_core *c, segue_error *err)
{
    if (!is_busy(c)) return SEGUE_OK;
    return sg_fail(err, SEGUE_EARG, "put state: %s: a run is using the state; wait for it", c->ops->unit);
}

/* Positions may be replaced, or added at either end; a gap would be positions without contents. The length of the sequence
 * changes only when the state is validated. */
segue_status sg_state_core_put(struct sg_state *state, uint32_t slot, uint64_t from, uint64_t to, enum sg_storage storage,
                               const void *in, segue_error *err)
{
    struct sg_state_core *c = sg_state_core_of(state);
    struct sg_core_slot *s = NULL;
    SG_TRY(sg_state_core_check_idle(c, err));
    if (c->ops->settle) SG_TRY(c->ops->settle(state, err));
    if (slot == UINT32_MAX) return validate(state, to, err);
    SG_TRY(sg_state_core_slot(c, slot, storage, "put", &s, err));
    if (!sg_slot_grows(&s->slot)) {
        SG_TRY(c->ops->write(state, slot, from, to, storage, in, err));
        s->present = 1;
        return SEGUE_OK;
    }
    if (s->first == s->end) s->first = s->end = from;
    if (from > to || from > s->end || to < s->first)
        return sg_fail(err, SEGUE_EARG, "put state: %s: slot %u: positions [%llu, %llu) leave a gap to the held [%llu, %llu); "
                       "put adjacent ones", c->ops->unit, slot, (ull)from, (ull)to, (ull)s->first, (ull)s->end);
    SG_TRY(c->ops->write(state, slot, from, to, storage, in, err));
    if (from < s->first) s->first = from;
    if (to > s->end) s->end = to;
    return SEGUE_OK;
}

/* --- runs --- */

segue_status sg_state_core_acquire(struct sg_state_core *c, segue_error *err)
{
    pthread_mutex_lock(&c->lock);
    int busy = c->busy;
    c->busy = 1;
    pthread_mutex_unlock(&c->lock);
    return busy ? sg_fail(err, SEGUE_EARG, "run: %s: two spans or runs share a state; fork it", c->ops->unit) : SEGUE_OK;
}

void sg_state_core_release(struct sg_state_core *c)
{
    pthread_mutex_lock(&c->lock);
    c->busy = 0;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

/* Two runs with the same state would both append at the same positions. */
segue_status sg_state_core_acquire_all(const struct sg_span *spans, uint32_t spans_n, segue_error *err)
{
    for (uint32_t i = 0; i < spans_n; i++) {
        if (!spans[i].state) continue;
        segue_status status = sg_state_core_acquire(sg_state_core_of(spans[i].state), err);
        if (status == SEGUE_OK) continue;
        sg_state_core_release_all(spans, i);
        return status;
    }
    return SEGUE_OK;
}

void sg_state_core_release_all(const struct sg_span *spans, uint32_t spans_n)
{
    for (uint32_t i = 0; i < spans_n; i++)
        if (spans[i].state) sg_state_core_release(sg_state_core_of(spans[i].state));
}

/* Windows lose whole blocks only, and only what the oldest mark does not need either. */
void sg_state_core_retain(struct sg_state_core *c)
{
    uint32_t block = c->ops->block_tokens;
    uint64_t oldest = c->marks_n && c->marks[0].tokens < c->tokens ? c->marks[0].tokens : c->tokens;
    for (uint32_t i = 0; block && i < c->slots_n; i++) {
        struct sg_core_slot *s = sg_core_slot_at(c, i);
        if (!sg_slot_grows(&s->slot)) continue;
        uint64_t needed = first_needed(c, i, oldest) / block * block;
        if (needed > s->first) s->first = needed;
    }
    truncate_to(c, c->tokens);
}

/* K and V were written by the run at positions [tokens, tokens + n); recurrent slots were updated in place. */
void sg_state_core_advance(struct sg_state_core *c, uint64_t n)
{
    c->tokens += n;
    for (uint32_t i = 0; i < c->slots_n; i++) {
        struct sg_core_slot *s = sg_core_slot_at(c, i);
        if (sg_slot_grows(&s->slot))
            s->end = c->tokens;
        else
            s->present = 1;
    }
    sg_state_core_retain(c);
    pthread_cond_broadcast(&c->changed);
}

uint64_t sg_state_core_tokens(const struct sg_state *s) { return sg_state_core_of_const(s)->tokens; }

const struct sg_slot *sg_state_core_slot_info(const struct sg_state *s, uint32_t i)
{
    const struct sg_state_core *c = sg_state_core_of_const(s);
    return i < c->slots_n ? &sg_core_slot_at(c, i)->slot : NULL;
}
