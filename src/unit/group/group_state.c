/* group_state.c: a state of a team: a state for each rank, of its share of the slots. What comes in is dealt, what leaves is laid
 * side by side, some rows at a time.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "unit/group/group_types.h"

enum { PIECE = 1 << 22 };            /* bytes of the rows that are dealt at once */

static const struct sg_unit_ops *ops_of(const struct sg_state *s) { return s->base.unit->ops; }
static uint32_t ranks_of(const struct sg_state *s) { return s->base.unit->ranks; }

static void group_state_free(struct sg_state *s)
{
    if (!s) return;
    for (uint32_t r = 0; r < ranks_of(s); r++)
        if (s->rank[r]) ops_of(s)->state_free(s->rank[r]);
    sg_free(s->slots);
    sg_free(s->shares);
    sg_free(s);
}

static segue_status state_alloc(struct sg_unit *u, const struct sg_slot *slots, const struct sg_tp_slot *shares, uint32_t n,
                                struct sg_state **out, segue_error *err)
{
    struct sg_state *s = sg_alloc(sizeof *s);
    if (!s) return sg_no_memory("state", sizeof *s, err);
    s->base = (struct sg_state_base){u->base.ops, u};
    s->slots_n = n;
    s->slots = sg_alloc((n + 1) * sizeof *s->slots);
    s->shares = sg_alloc((n + 1) * sizeof *s->shares);
    if (!s->slots || !s->shares) {
        group_state_free(s);
        return sg_no_memory("state", n * sizeof *s->slots, err);
    }
    if (n) memcpy(s->slots, slots, n * sizeof *slots);
    if (n) memcpy(s->shares, shares, n * sizeof *shares);
    *out = s;
    return SEGUE_OK;
}

static int same_slots(const struct sg_graph *g, const struct sg_slot *slots, uint32_t n)
{
    if (g->slots_n != n) return 0;
    for (uint32_t i = 0; i < n; i++)
        if (!sg_slot_same(&g->slots[i], &slots[i])) return 0;
    return 1;
}

/* The program whose slots these are: it knows how they are dealt. Under the lock. */
static const struct sg_program *program_of(const struct sg_unit *u, const struct sg_slot *slots, uint32_t n)
{
    const struct sg_program *p = u->programs;
    while (p && !same_slots(p->base.graph, slots, n)) p = p->next;
    return p;
}

static segue_status group_state_new(struct sg_unit *u, const struct sg_slot *slots, uint32_t n, const struct sg_state_opts *o,
                                   struct sg_state **out, segue_error *err)
{
    struct sg_state *s = NULL;
    struct sg_state_opts own = o ? *o : (struct sg_state_opts){.kv = SG_F16};
    own.host = NULL;
    own.bare = 0;
    pthread_mutex_lock(&u->lock);
    const struct sg_program *p = program_of(u, slots, n);
    segue_status status = p ? state_alloc(u, slots, p->shares->shares->slots[p->index], n, &s, err)
                            : sg_fail(err, SEGUE_EARG,
                                      "new state: several units: no program here has these slots; compile first");
    for (uint32_t r = 0; r < u->ranks && status == SEGUE_OK; r++) {
        const struct sg_graph *g = p->shares->shares->graphs[p->index * u->ranks + r];
        status = u->ops->state_new(u->rank[r], g->slots, g->slots_n, &own, &s->rank[r], err);
    }
    pthread_mutex_unlock(&u->lock);
    if (status != SEGUE_OK) {
        group_state_free(s);
        return status;
    }
    *out = s;
    return SEGUE_OK;
}

static segue_status group_state_fork(struct sg_state *s, struct sg_state **out, segue_error *err)
{
    struct sg_state *copy = NULL;
    SG_TRY(state_alloc(s->base.unit, s->slots, s->shares, s->slots_n, &copy, err));
    segue_status status = SEGUE_OK;
    for (uint32_t r = 0; r < ranks_of(s) && status == SEGUE_OK; r++)
        status = ops_of(s)->state_fork(s->rank[r], &copy->rank[r], err);
    if (status != SEGUE_OK) {
        group_state_free(copy);
        return status;
    }
    *out = copy;
    return SEGUE_OK;
}

/* Ranks are marked, brought back and cut alike, so their marks have the same numbers. */
static segue_status group_state_mark(struct sg_state *s, uint32_t *mark, segue_error *err)
{
    uint32_t other;
    for (uint32_t r = 0; r < ranks_of(s); r++) {
        segue_status status = ops_of(s)->state_mark(s->rank[r], r ? &other : mark, err);
        if (status == SEGUE_OK && r && other != *mark)
            status = sg_fail(err, SEGUE_EINTERNAL, "mark state: several units: rank %u is at mark %u, not %u; report this", r,
                             other, *mark);
        if (status != SEGUE_OK) return status;
    }
    return SEGUE_OK;
}

static segue_status group_state_back(struct sg_state *s, uint32_t mark, segue_error *err)
{
    for (uint32_t r = 0; r < ranks_of(s); r++) SG_TRY(ops_of(s)->state_back(s->rank[r], mark, err));
    return SEGUE_OK;
}

static void group_state_drop(struct sg_state *s, uint32_t mark)
{
    for (uint32_t r = 0; r < ranks_of(s); r++) ops_of(s)->state_drop(s->rank[r], mark);
}

static segue_status group_state_cut(struct sg_state *s, uint64_t rows, segue_error *err)
{
    for (uint32_t r = 0; r < ranks_of(s); r++) SG_TRY(ops_of(s)->state_cut(s->rank[r], rows, err));
    return SEGUE_OK;
}

static void group_state_held(const struct sg_state *s, uint32_t slot, uint64_t *first, uint64_t *rows)
{
    ops_of(s)->state_held(s->rank[0], slot, first, rows);
}

static uint64_t group_state_bytes(const struct sg_state *s)
{
    uint64_t sum = 0;
    for (uint32_t r = 0; r < ranks_of(s); r++) sum += ops_of(s)->state_bytes(s->rank[r]);
    return sum;
}

static segue_status group_state_logits(struct sg_state *s, float *out, segue_error *err)
{
    return ops_of(s)->state_logits(s->rank[0], out, err);
}

/* --- get and put --- */

struct dealing {
    const struct sg_tp_slot *share;
    uint32_t ranks;
    size_t unit;                     /* bytes of a head, or a channel */
    size_t row;                      /* bytes of a row of the whole */
    uint64_t fixed_rows;             /* of CONV and DELTA; 0: rows are asked for by number */
};

static segue_status dealing_of(const struct sg_state *s, uint32_t slot, enum sg_storage storage, struct dealing *d,
                               segue_error *err)
{
    if (slot >= s->slots_n)
        return sg_fail(err, SEGUE_EARG, "copy state: several units: slot %u of %u; give a smaller one", slot, s->slots_n);
    const struct sg_slot *x = &s->slots[slot];
    int rows = x->kind == SG_SLOT_K || x->kind == SG_SLOT_V;
    *d = (struct dealing){.share = &s->shares[slot], .ranks = ranks_of(s)};
    size_t whole = x->kind == SG_SLOT_CONV ? (size_t)x->width * sizeof(float) : sg_slot_fixed_bytes(x);
    d->row = rows ? sg_slot_row_bytes(x, storage) : whole;
    d->unit = x->kind == SG_SLOT_CONV ? sizeof(float) : x->heads ? d->row / x->heads : 0;
    d->fixed_rows = rows ? 0 : x->kind == SG_SLOT_CONV ? x->heads : 1;
    return SEGUE_OK;
}

/* Rows of the whole <-> rows of one rank. */
static void deal_rows(const struct dealing *d, uint32_t rank, uint64_t rows, uint8_t *whole, uint8_t *own, int out)
{
    for (uint64_t t = 0; t < rows; t++) {
        uint8_t *a = whole + t * d->row, *b = own + t * (d->row / d->ranks);
        for (uint32_t i = 0; i < d->share->runs_n; i++) {
            size_t run = d->share->runs[i] * d->unit, piece = run / d->ranks;
            if (out) memcpy(a + rank * piece, b, piece);
            else memcpy(b, a + rank * piece, piece);
            a += run;
            b += piece;
        }
    }
}

static segue_status get_dealt(struct sg_state *s, const struct dealing *d, uint32_t slot, uint64_t from, uint64_t to,
                              enum sg_storage storage, uint8_t *own, uint8_t *out, segue_error *err)
{
    for (uint32_t r = 0; r < d->ranks; r++) {
        SG_TRY(ops_of(s)->state_get(s->rank[r], slot, from, to, storage, own, err));
        deal_rows(d, r, d->fixed_rows ? d->fixed_rows : to - from, out, own, 1);
    }
    return SEGUE_OK;
}

static segue_status put_dealt(struct sg_state *s, const struct dealing *d, uint32_t slot, uint64_t from, uint64_t to,
                              enum sg_storage storage, uint8_t *own, uint8_t *in, segue_error *err)
{
    for (uint32_t r = 0; r < d->ranks; r++) {
        deal_rows(d, r, d->fixed_rows ? d->fixed_rows : to - from, in, own, 0);
        SG_TRY(ops_of(s)->state_put(s->rank[r], slot, from, to, storage, own, err));
    }
    return SEGUE_OK;
}

/* Piece by piece, so that the room for it stays small. */
static segue_status copy_dealt(struct sg_state *s, const struct dealing *d, uint32_t slot, uint64_t from, uint64_t to,
                               enum sg_storage storage, uint8_t *whole, int out, segue_error *err)
{
    uint64_t all = to - from, most = d->fixed_rows || !d->row ? all : PIECE / d->row + 1, rows = most < all ? most : all;
    size_t bytes = (d->fixed_rows ? d->fixed_rows : rows) * (d->row / d->ranks);
    uint8_t *own = sg_alloc(bytes + 16);
    if (!own) return sg_no_memory("rows of a rank", bytes, err);
    segue_status status = SEGUE_OK;
    uint64_t at = from;
    do {
        uint64_t end = d->fixed_rows || to - at < most ? to : at + most;
        uint8_t *place = whole + (at - from) * d->row;
        status = out ? get_dealt(s, d, slot, at, end, storage, own, place, err)
                     : put_dealt(s, d, slot, at, end, storage, own, place, err);
        at = end;
    } while (status == SEGUE_OK && at < to);
    sg_free(own);
    return status;
}

static segue_status group_state_get(struct sg_state *s, uint32_t slot, uint64_t from, uint64_t to, enum sg_storage storage,
                                   void *out, segue_error *err)
{
    struct dealing d = {0};
    SG_TRY(dealing_of(s, slot, storage, &d, err));
    if (d.fixed_rows) from = to = 0;
    if (!d.share->runs_n || from > to) return ops_of(s)->state_get(s->rank[0], slot, from, to, storage, out, err);
    return copy_dealt(s, &d, slot, from, to, storage, out, 1, err);
}

static segue_status put_all(struct sg_state *s, uint32_t slot, uint64_t from, uint64_t to, enum sg_storage storage,
                            const void *in, segue_error *err)
{
    for (uint32_t r = 0; r < ranks_of(s); r++) SG_TRY(ops_of(s)->state_put(s->rank[r], slot, from, to, storage, in, err));
    return SEGUE_OK;
}

static segue_status group_state_put(struct sg_state *s, uint32_t slot, uint64_t from, uint64_t to, enum sg_storage storage,
                                   const void *in, segue_error *err)
{
    struct dealing d = {0};
    if (slot == UINT32_MAX) return put_all(s, slot, from, to, storage, in, err);
    SG_TRY(dealing_of(s, slot, storage, &d, err));
    if (d.fixed_rows) from = to = 0;
    if (!d.share->runs_n || from > to) return put_all(s, slot, from, to, storage, in, err);
    uint8_t *bytes; /* only read */
    memcpy(&bytes, &in, sizeof bytes);
    return copy_dealt(s, &d, slot, from, to, storage, bytes, 0, err);
}

void sg_group_state_table(struct sg_unit_ops *t)
{
    t->state_new = group_state_new;
    t->state_free = group_state_free;
    t->state_fork = group_state_fork;
    t->state_mark = group_state_mark;
    t->state_back = group_state_back;
    t->state_drop = group_state_drop;
    t->state_cut = group_state_cut;
    t->state_held = group_state_held;
    t->state_bytes = group_state_bytes;
    t->state_get = group_state_get;
    t->state_put = group_state_put;
    t->state_logits = group_state_logits;
}
