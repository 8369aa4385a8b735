/* kv_blocks.c: see kv_blocks.h.
 * SPDX-License-Identifier: MIT */
#include "unit/kv/kv_blocks.h"

#include <string.h>

#include "base/mem.h"

enum { SPARE_ENTRIES = 16 };         /* so that short sequences grow the table once */

static void lock_table(pthread_mutex_t *lock)
{
    if (lock) pthread_mutex_lock(lock);
}

static void unlock_table(pthread_mutex_t *lock)
{
    if (lock) pthread_mutex_unlock(lock);
}

static void release(struct sg_shared_block *b, const struct sg_block_ops *ops, void *owner)
{
    if (b && atomic_fetch_sub(&b->refs, 1u) == 1) ops->destroy(owner, b);
}

/* At least doubled: growing copies pointers only. */
segue_status sg_block_table_grow(struct sg_block_table *t, uint64_t index, pthread_mutex_t *lock, segue_error *err)
{
    if (index < t->cap) return SEGUE_OK;
    if (index > UINT32_MAX / 4)
        return sg_fail(err, SEGUE_ELIMIT, "grow state: block %llu exceeds the longest sequence; use a shorter context",
                       (unsigned long long)index);
    uint64_t cap = index + SPARE_ENTRIES + t->cap;
    struct sg_shared_block **wider = sg_alloc(cap * sizeof(struct sg_shared_block *)), **old = t->blocks;
    if (!wider) return sg_no_memory("block table of a state", cap * sizeof(struct sg_shared_block *), err);
    if (t->cap) memcpy(wider, old, t->cap * sizeof(struct sg_shared_block *));
    lock_table(lock);
    t->blocks = wider;
    t->cap = cap;
    unlock_table(lock);
    sg_free(old);
    return SEGUE_OK;
}

/* A count of 1 cannot rise meanwhile: only the owner of this table could share the block. */
segue_status sg_block_table_own(struct sg_block_table *t, uint64_t index, pthread_mutex_t *lock, const struct sg_block_ops *ops,
                                void *owner, segue_error *err)
{
    SG_TRY(sg_block_table_grow(t, index, lock, err));
    struct sg_shared_block *shared = t->blocks[index], *copy;
    if (shared && atomic_load(&shared->refs) == 1 && !(ops->sealed && ops->sealed(shared))) return SEGUE_OK;
    SG_TRY(ops->create(owner, shared, &copy, err));
    lock_table(lock);
    t->blocks[index] = copy;
    if (t->from == t->to) t->from = t->to = index;
    if (index < t->from) t->from = index;
    if (index >= t->to) t->to = index + 1;
    unlock_table(lock);
    release(shared, ops, owner);
    return SEGUE_OK;
}

/* Each block of `from` gets one more reference. */
segue_status sg_block_table_share(struct sg_block_table *to, const struct sg_block_table *from, segue_error *err)
{
    if (!from->cap) return SEGUE_OK;
    to->blocks = sg_alloc(from->cap * sizeof(struct sg_shared_block *));
    if (!to->blocks) return sg_no_memory("block table of a state", from->cap * sizeof(struct sg_shared_block *), err);
    to->cap = from->cap;
    to->from = from->from;
    to->to = from->to;
    for (uint64_t i = from->from; i < from->to; i++) {
        to->blocks[i] = from->blocks[i];
        if (to->blocks[i]) atomic_fetch_add(&to->blocks[i]->refs, 1u);
    }
    return SEGUE_OK;
}

void sg_block_table_drop(struct sg_block_table *t, uint64_t from, uint64_t to, const struct sg_block_ops *ops, void *owner)
{
    uint64_t first = from > t->from ? from : t->from, end = to < t->to ? to : t->to;
    for (uint64_t i = first; i < end; i++) {
        release(t->blocks[i], ops, owner);
        t->blocks[i] = NULL;
    }
    if (first >= end) return;
    if (first == t->from) t->from = end;
    else if (end == t->to) t->to = first;
}

void sg_block_table_trim(struct sg_block_table *t, uint64_t first, uint64_t end, uint32_t block_tokens,
                         const struct sg_block_ops *ops, void *owner)
{
    sg_block_table_drop(t, 0, first / block_tokens, ops, owner);
    sg_block_table_drop(t, (end + block_tokens - 1) / block_tokens, t->cap, ops, owner);
}

void sg_block_table_free(struct sg_block_table *t, const struct sg_block_ops *ops, void *owner)
{
    sg_block_table_drop(t, 0, t->cap, ops, owner);
    sg_free(t->blocks);
    *t = (struct sg_block_table){0};
}

uint64_t sg_block_table_bytes(const struct sg_block_table *t, size_t block_bytes)
{
    uint64_t bytes = 0;
    for (uint64_t i = t->from; i < t->to; i++)
        if (t->blocks[i]) bytes += block_bytes / atomic_load(&t->blocks[i]->refs);
    return bytes;
}
