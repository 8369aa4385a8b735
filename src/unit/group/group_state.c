/* group_state.c: states of a group: one state per rank, with its part of each slot. put splits the canonical layout over the
 * ranks, get joins it, in pieces.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "unit/group/group_types.h"
#include "unit/state_core.h"

enum { PIECE_BYTES = 1 << 22 };      /* of the rows that are split at once */

static const struct sg_unit_ops *ops_of(const struct sg_state *s) { return s->base.unit->ops; }
static uint32_t ranks_of(const struct sg_state *s) { return s->base.unit->ranks; }

/* Also frees a state whose creation failed at any point. */
static void group_state_free(struct sg_state *s)
{
    if (!s) return;
    for (uint32_t r = 0; r < ranks_of(s); r++)
        if (s->rank[r]) ops_of(s)->state_free(s->rank[r]);
    sg_free(s->slots);
    sg_free(s->splits);
    sg_free(s);
}

/* A state without its ranks. */
static segue_status state_alloc(struct sg_unit *u, const struct sg_slot *slots, const struct sg_tp_slot *splits, uint32_t n,
                                struct sg_state **out, segue_error *err)
{
    struct sg_state *s = sg_alloc(sizeof *s);
    if (!s) return sg_no_memory("state", sizeof *s, err);
    s->base = (struct sg_state_base){u->base.ops, u};
    s->slots_n = n;
    s->slots = sg_alloc((n + 1) * sizeof *s->slots);
    s->splits = sg_alloc((n + 1) * sizeof *s->splits);
    if (!s->slots || !s->splits) {
        group_state_free(s);
        return sg_no_memory("state", n * sizeof *s->slots, err);
    }
    if (n) memcpy(s->slots, slots, n * sizeof *slots);
    if (n) memcpy(s->splits, splits, n * sizeof *splits);
    *out = s;
    return SEGUE_OK;
}

/* 1: the graph has exactly these slots. */
static int same_slots(const struct sg_graph *g, const struct sg_slot *slots, uint32_t n)
{
    if (g->slots_n != n) return 0;
    for (uint32_t i = 0; i < n; i++)
        if (!sg_slot_equal(&g->slots[i], &slots[i])) return 0;
    return 1;
}

/* A program with these slots, which knows how they are split. Under the lock. */
static const struct sg_program *program_of(const struct sg_unit *u, const struct sg_slot *slots, uint32_t n)
{
    const struct sg_program *p = u->programs;
    while (p && !same_slots(p->base.graph, slots, n)) p = p->next;
    return p;
}

/* Each rank's state has the slots of its part of the graph. Host memory is not passed on: get and put go through buffers here. */
static segue_status group_state_new(struct sg_unit *u, const struct sg_slot *slots, uint32_t n, const struct sg_state_opts *o,
                                   struct sg_state **out, segue_error *err)
{
    struct sg_state *s = NULL;
    struct sg_state_opts opts = o ? *o : (struct sg_state_opts){.kv = SG_F16};
    opts.host = NULL;
    opts.bare = 0;
    pthread_mutex_lock(&u->lock);
    const struct sg_program *p = program_of(u, slots, n);
    segue_status status = p ? state_alloc(u, slots, p->graphs->tp->slots[p->index], n, &s, err)
                            : sg_fail(err, SEGUE_EARG,
                                      "new state: several units: no program has these slots; compile first");
    for (uint32_t r = 0; r < u->ranks && status == SEGUE_OK; r++) {
        const struct sg_graph *g = p->graphs->tp->graphs[p->index * u->ranks + r];
        status = u->ops->state_new(u->rank[r], g->slots, g->slots_n, &opts, &s->rank[r], err);
    }
    pthread_mutex_unlock(&u->lock);
    if (status != SEGUE_OK) {
        group_state_free(s);
        return status;
    }
    *out = s;
    return SEGUE_OK;
}

/* The ranks' forks share KV blocks as those of the unit do. All or none: a failure frees the copies made so far. */
static segue_status group_state_fork(struct sg_state *s, struct sg_state **out, segue_error *err)
{
    struct sg_state *copy = NULL;
    SG_TRY(state_alloc(s->base.unit, s->slots, s->splits, s->slots_n, &copy, err));
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

/* All ranks get the same calls, so their marks have the same numbers. */
static segue_status group_state_mark(struct sg_state *s, uint32_t *mark, segue_error *err)
{
    uint32_t other;
    for (uint32_t r = 0; r < ranks_of(s); r++) {
        segue_status status = ops_of(s)->state_mark(s->rank[r], r ? &other : mark, err);
        if (status == SEGUE_OK && r && other != *mark)
            status = sg_fail(err, SEGUE_EINTERNAL,
                             "mark state: several units: rank %u returned mark %u, expected %u; report this", r, other, *mark);
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

/* All ranks hold the same positions; rank 0 answers. */
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

/* The join gives every rank the complete logits; rank 0 answers. */
static segue_status group_state_logits(struct sg_state *s, float *out, segue_error *err)
{
    return ops_of(s)->state_logits(s->rank[0], out, err);
}

/* --- get and put --- */

/* How the rows of one slot are divided over the ranks, in one storage. */
struct split_layout {
    const struct sg_tp_slot *split;
    uint32_t ranks;
    size_t unit;                     /* bytes of a head, or a channel */
    size_t row;                      /* bytes of a row of all ranks */
    uint64_t fixed_rows;             /* rows of a CONV or DELTA slot; 0: K or V, rows are positions */
};

/* How a slot is split in a storage. A CONV row has width channels; a DELTA slot is one row of all heads. */
static segue_status layout_of(const struct sg_state *s, uint32_t slot, enum sg_storage storage, struct split_layout *d,
                               segue_error *err)
{
    if (slot >= s->slots_n)
        return sg_fail(err, SEGUE_EARG, "copy state: several units: slot %u of %u does not exist", slot, s->slots_n);
    const struct sg_slot *x = &s->slots[slot];
    int rows = sg_slot_grows(x);
    *d = (struct split_layout){.split = &s->splits[slot], .ranks = ranks_of(s)};
    size_t whole = x->kind == SG_SLOT_CONV ? (size_t)x->width * sizeof(float) : sg_slot_fixed_bytes(x);
    d->row = rows ? sg_slot_row_bytes(x, storage) : whole;
    d->unit = x->kind == SG_SLOT_CONV ? sizeof(float) : x->heads ? d->row / x->heads : 0;
    d->fixed_rows = rows ? 0 : x->kind == SG_SLOT_CONV ? x->heads : 1;
    return SEGUE_OK;
}

/* Copies the part of one rank between rows of all ranks and rows of the rank. out 1: to the former. */
static void copy_rank_rows(const struct split_layout *d, uint32_t rank, uint64_t rows, uint8_t *whole, uint8_t *part, int out)
{
    for (uint64_t t = 0; t < rows; t++) {
        uint8_t *a = whole + t * d->row, *b = part + t * (d->row / d->ranks);
        for (uint32_t i = 0; i < d->split->runs_n; i++) {
            size_t run = d->split->runs[i] * d->unit, piece = run / d->ranks;
            if (out) memcpy(a + rank * piece, b, piece);
            else memcpy(b, a + rank * piece, piece);
            a += run;
            b += piece;
        }
    }
}

/* Reads the part of each rank to `part` and copies it to its columns of `out`. */
static segue_status get_joined(struct sg_state *s, const struct split_layout *d, uint32_t slot, uint64_t from, uint64_t to,
                              enum sg_storage storage, uint8_t *part, uint8_t *out, segue_error *err)
{
    for (uint32_t r = 0; r < d->ranks; r++) {
        SG_TRY(ops_of(s)->state_get(s->rank[r], slot, from, to, storage, part, err));
        copy_rank_rows(d, r, d->fixed_rows ? d->fixed_rows : to - from, out, part, 1);
    }
    return SEGUE_OK;
}

/* Copies the columns of each rank to `part` and writes them to its state. */
static segue_status put_split(struct sg_state *s, const struct split_layout *d, uint32_t slot, uint64_t from, uint64_t to,
                              enum sg_storage storage, uint8_t *part, uint8_t *in, segue_error *err)
{
    for (uint32_t r = 0; r < d->ranks; r++) {
        copy_rank_rows(d, r, d->fixed_rows ? d->fixed_rows : to - from, in, part, 0);
        SG_TRY(ops_of(s)->state_put(s->rank[r], slot, from, to, storage, part, err));
    }
    return SEGUE_OK;
}

/* In pieces, so that the buffer stays small. Recurrent slots are copied whole. */
static segue_status copy_pieces(struct sg_state *s, const struct split_layout *d, uint32_t slot, uint64_t from, uint64_t to,
                               enum sg_storage storage, uint8_t *whole, int out, segue_error *err)
{
    uint64_t all = to - from, max = d->fixed_rows || !d->row ? all : PIECE_BYTES / d->row + 1, rows = max < all ? max : all;
    size_t bytes = (d->fixed_rows ? d->fixed_rows : rows) * (d->row / d->ranks);
    uint8_t *part = sg_alloc(bytes + 16);
    if (!part) return sg_no_memory("rows of a rank", bytes, err);
    segue_status status = SEGUE_OK;
    uint64_t at = from;
    do {
        uint64_t end = d->fixed_rows || to - at < max ? to : at + max;
        uint8_t *piece = whole + (at - from) * d->row;
        status = out ? get_joined(s, d, slot, at, end, storage, part, piece, err)
                     : put_split(s, d, slot, at, end, storage, part, piece, err);
        at = end;
    } while (status == SEGUE_OK && at < to);
    sg_free(part);
    return status;
}

static segue_status group_state_get(struct sg_state *s, uint32_t slot, uint64_t from, uint64_t to, enum sg_storage storage,
                                   void *out, segue_error *err)
{
    struct split_layout d = {0};
    SG_TRY(layout_of(s, slot, storage, &d, err));
    if (d.fixed_rows) from = to = 0;
    if (!d.split->runs_n || from > to) return ops_of(s)->state_get(s->rank[0], slot, from, to, storage, out, err);
    return copy_pieces(s, &d, slot, from, to, storage, out, 1, err);
}

/* A slot that is not split has the same content on every rank (slot UINT32_MAX: the number of tokens). */
static segue_status put_all(struct sg_state *s, uint32_t slot, uint64_t from, uint64_t to, enum sg_storage storage,
                            const void *in, segue_error *err)
{
    for (uint32_t r = 0; r < ranks_of(s); r++) SG_TRY(ops_of(s)->state_put(s->rank[r], slot, from, to, storage, in, err));
    return SEGUE_OK;
}

static segue_status group_state_put(struct sg_state *s, uint32_t slot, uint64_t from, uint64_t to, enum sg_storage storage,
                                   const void *in, segue_error *err)
{
    struct split_layout d = {0};
    if (slot == UINT32_MAX) return put_all(s, slot, from, to, storage, in, err);
    SG_TRY(layout_of(s, slot, storage, &d, err));
    if (d.fixed_rows) from = to = 0;
    if (!d.split->runs_n || from > to) return put_all(s, slot, from, to, storage, in, err);
    uint8_t *bytes; /* only read */
    memcpy(&bytes, &in, sizeof bytes);
    return copy_pieces(s, &d, slot, from, to, storage, bytes, 0, err);
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
