/* kv_blocks.h: a table of reference-counted blocks, each with a fixed number of positions of one K or V slot. Forks of a state
 * share blocks; the first write after a fork copies the block (copy on write). What a block contains and where its memory comes
 * from is the unit's: its block struct begins with struct sg_shared_block.
 *
 * Threads: a table belongs to one slot of one state. Changes of the table take the state's lock, because another thread may
 * read it beside a run; lock NULL: no thread does, or the caller has the lock. Reference counts are
 * atomic, because states that share a block belong to different threads.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_KV_BLOCKS_H
#define SG_UNIT_KV_BLOCKS_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/err.h"

struct sg_shared_block {
    atomic_uint refs;                /* tables that contain it */
};

struct sg_block_table {
    struct sg_shared_block **blocks; /* [cap], index = position / positions per block; NULL: not held */
    uint64_t cap;
    uint64_t from, to;               /* entries outside of [from, to) are NULL: a trim does not visit them */
};

/* A unit's memory for blocks; `owner` is passed through. */
struct sg_block_ops {
    /* A block with one reference and the contents of `from`, or, from NULL, new contents. */
    segue_status (*create)(void *owner, const struct sg_shared_block *from, struct sg_shared_block **out, segue_error *err);
    /* The last reference is gone. */
    void (*destroy)(void *owner, struct sg_shared_block *b);
    /* Optional. 1: the block is not to be written to any more; it is copied also when it has one user. */
    int (*sealed)(struct sg_shared_block *b);
};

/* Makes `index` valid. */
segue_status sg_block_table_grow(struct sg_block_table *t, uint64_t index, pthread_mutex_t *lock, segue_error *err);
/* Makes block `index` exist with this table as its only user: creates it, or copies a shared one. */
segue_status sg_block_table_own(struct sg_block_table *t, uint64_t index, pthread_mutex_t *lock, const struct sg_block_ops *ops,
                                void *owner, segue_error *err);
/* Fork: `to`, an empty table, refers to all blocks of `from`. */
segue_status sg_block_table_share(struct sg_block_table *to, const struct sg_block_table *from, segue_error *err);
/* Removes the blocks [from, to) of the table. */
void sg_block_table_drop(struct sg_block_table *t, uint64_t from, uint64_t to, const struct sg_block_ops *ops, void *owner);
/* Removes all blocks outside of positions [first, end). */
void sg_block_table_trim(struct sg_block_table *t, uint64_t first, uint64_t end, uint32_t block_tokens,
                         const struct sg_block_ops *ops, void *owner);
/* Drops everything and frees the table. */
void sg_block_table_free(struct sg_block_table *t, const struct sg_block_ops *ops, void *owner);
/* Bytes of all blocks; a shared one counts by this table's share. */
uint64_t sg_block_table_bytes(const struct sg_block_table *t, size_t block_bytes);

#endif
