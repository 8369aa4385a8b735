/* kv_rows.c: see kv_rows.h.
 * SPDX-License-Identifier: MIT */
#include "unit/kv/kv_rows.h"

#include <string.h>

#include "base/mem.h"

/* Block i is at i * block_bytes; each place is used by one block at a time. */
struct sg_row_piece {
    const struct sg_host_memory *host;
    atomic_uint refs;                /* the slot that made it, and its blocks */
    atomic_uint left;                /* 1: the slot has a larger piece, into which it copies its blocks */
    unsigned char *memory;
    uint64_t blocks_n;
    atomic_uchar used[];             /* [blocks_n] */
};
struct row_block {
    struct sg_shared_block shared;
    atomic_uint exported;            /* 1: another unit refers to the rows */
    struct sg_row_piece *piece;      /* NULL: the rows have memory of their own ... */
    uint64_t place;                  /* ... else the block's index in the piece */
    unsigned char *rows;             /* [block_tokens][row_bytes] */
};

static struct row_block *block_of(struct sg_shared_block *b) { return (struct row_block *)(void *)b; }
static size_t block_bytes(const struct sg_rows *r) { return r->block_tokens * r->row_bytes; }

/* --- a piece --- */

static void piece_release(struct sg_row_piece *p)
{
    if (!p || atomic_fetch_sub(&p->refs, 1u) != 1) return;
    p->host->leave(p->host->owner, p->memory);
    sg_free(p);
}

/* NULL: no memory. */
static struct sg_row_piece *piece_new(const struct sg_rows *r, uint64_t blocks)
{
    size_t bytes;
    segue_error ignored;
    if (sg_mul(block_bytes(r), blocks, &bytes, "rows of a state", &ignored) != SEGUE_OK) return NULL;
    struct sg_row_piece *p = sg_alloc(sizeof *p + blocks);
    if (p) p->memory = r->host->take(r->host->owner, bytes);
    if (!p || !p->memory) {
        sg_free(p);
        return NULL;
    }
    p->host = r->host;
    p->blocks_n = blocks;
    atomic_init(&p->refs, 1u);
    return p;
}

/* 1: the block got its place in the piece. */
static int place_in_piece(struct sg_rows *r, struct row_block *b)
{
    struct sg_row_piece *p = r->piece;
    if (!p || r->creating >= p->blocks_n || atomic_exchange(&p->used[r->creating], 1)) return 0;
    atomic_fetch_add(&p->refs, 1u);
    b->piece = p;
    b->place = r->creating;
    b->rows = p->memory + b->place * block_bytes(r);
    return 1;
}

/* --- blocks --- */

static segue_status block_create(void *owner, const struct sg_shared_block *from, struct sg_shared_block **out, segue_error *err)
{
    struct sg_rows *r = owner;
    struct row_block *b = sg_alloc(sizeof *b);
    if (!b) return sg_no_memory("rows of a state", sizeof *b, err);
    atomic_init(&b->shared.refs, 1u);
    if (!place_in_piece(r, b)) b->rows = sg_alloc(block_bytes(r));
    if (!b->rows) {
        sg_free(b);
        return sg_no_memory("rows of a state", block_bytes(r), err);
    }
    if (from) memcpy(b->rows, ((const struct row_block *)(const void *)from)->rows, block_bytes(r));
    else if (b->piece) memset(b->rows, 0, block_bytes(r));
    *out = &b->shared;
    return SEGUE_OK;
}

/* Where another unit refers to the rows, their place is not used again. */
static void block_destroy(void *owner, struct sg_shared_block *shared)
{
    struct row_block *b = block_of(shared);
    (void)owner;
    if (b->piece && !atomic_load(&b->exported)) atomic_store(&b->piece->used[b->place], 0);
    if (b->piece) piece_release(b->piece);
    else sg_free(b->rows);
    sg_free(b);
}

static int block_sealed(struct sg_shared_block *shared)
{
    const struct row_block *b = block_of(shared);
    return atomic_load(&b->exported) || (b->piece && atomic_load(&b->piece->left));
}

static const struct sg_block_ops block_ops = {.create = block_create, .destroy = block_destroy, .sealed = block_sealed};

/* --- rows --- */

void sg_rows_init(struct sg_rows *r, uint32_t block_tokens, size_t row_bytes, uint32_t window, const struct sg_host_memory *host,
                  uint64_t tokens)
{
    int drops = window && tokens > window;
    r->block_tokens = block_tokens;
    r->row_bytes = row_bytes;
    r->host = host && host->attachable && !drops ? host : NULL;
    r->expected = tokens;
}

void sg_rows_free(struct sg_rows *r)
{
    sg_block_table_free(&r->table, &block_ops, r);
    piece_release(r->piece);
    r->piece = NULL;
}

unsigned char *sg_rows_at(const struct sg_rows *r, uint64_t pos)
{
    return block_of(r->table.blocks[pos / r->block_tokens])->rows + pos % r->block_tokens * r->row_bytes;
}

static segue_status own_block(struct sg_rows *r, uint64_t b, pthread_mutex_t *lock, segue_error *err)
{
    r->creating = b;
    return sg_block_table_own(&r->table, b, lock, &block_ops, r, err);
}

/* A piece with room for blocks before `end`: first for the expected positions, then twice as large, with a copy of what is held.
 * Without memory for it, new blocks have memory of their own; so have all when positions were dropped, because a unit takes rows
 * over from the first one on. */
static void grow_piece(struct sg_rows *r, uint64_t end, pthread_mutex_t *lock)
{
    struct sg_row_piece *old = r->piece;
    uint64_t expected = (r->expected + r->block_tokens - 1) / r->block_tokens, blocks = old ? 2 * old->blocks_n : expected;
    int dropped = r->table.from && r->table.from < r->table.to;
    if (!r->host || (old && end <= old->blocks_n)) return;
    struct sg_row_piece *new = dropped ? NULL : piece_new(r, blocks > end ? blocks : end);
    if (!new) {
        r->host = NULL;
        return;
    }
    if (lock) pthread_mutex_lock(lock);
    r->piece = new;
    if (lock) pthread_mutex_unlock(lock);
    if (!old) return;
    atomic_store(&old->left, 1u);
    for (uint64_t b = 0; b < r->table.to; b++)
        if (r->table.blocks[b] && own_block(r, b, lock, NULL) != SEGUE_OK) break;
    piece_release(old);
}

segue_status sg_rows_own(struct sg_rows *r, uint64_t from, uint64_t to, pthread_mutex_t *lock, segue_error *err)
{
    if (from < to) grow_piece(r, (to - 1) / r->block_tokens + 1, lock);
    for (uint64_t b = from / r->block_tokens; from < to && b <= (to - 1) / r->block_tokens; b++)
        SG_TRY(own_block(r, b, lock, err));
    return SEGUE_OK;
}

void sg_rows_trim(struct sg_rows *r, uint64_t first, uint64_t end)
{
    sg_block_table_trim(&r->table, first, end, r->block_tokens, &block_ops, r);
}

segue_status sg_rows_share(struct sg_rows *to, const struct sg_rows *from, segue_error *err)
{
    to->host = NULL;
    return sg_block_table_share(&to->table, &from->table, err);
}

uint64_t sg_rows_bytes(const struct sg_rows *r) { return sg_block_table_bytes(&r->table, block_bytes(r)); }

/* 1: the rows follow each other in the piece. */
static int follow(const struct sg_rows *r, uint64_t from, uint64_t to)
{
    if (from >= to || !r->piece) return 0;
    for (uint64_t b = from / r->block_tokens; b <= (to - 1) / r->block_tokens; b++)
        if (block_of(r->table.blocks[b])->piece != r->piece) return 0;
    return 1;
}

const void *sg_rows_export(struct sg_rows *r, uint64_t from, uint64_t to)
{
    if (!follow(r, from, to)) return NULL;
    for (uint64_t b = from / r->block_tokens; b <= (to - 1) / r->block_tokens; b++)
        atomic_store(&block_of(r->table.blocks[b])->exported, 1u);
    return sg_rows_at(r, from);
}

segue_status sg_rows_pass(struct sg_rows *r, uint64_t from, uint64_t to, enum sg_storage storage, enum sg_storage own,
                          const char *unit, uint32_t slot, const void **out, segue_error *err)
{
    if (storage == own && follow(r, from, to)) {
        if (out) *out = sg_rows_export(r, from, to);
        return SEGUE_OK;
    }
    return sg_fail(err, SEGUE_EUNSUPPORTED,
                   "pass state: %s: slot %u: the rows are not in one piece of the other unit's memory in its storage; use get",
                   unit, slot);
}
