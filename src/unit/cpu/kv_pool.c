/* kv_pool.c: the memory of K and V blocks: pools of blocks and per-slot free lists. Which block a state holds, sharing and
 * copy on write are in unit/kv/kv_blocks.c. Pools come from the process allocator (zeroed) or from the allocator of another unit
 * (struct sg_host_memory, pinned for fast copies). Pinned memory is not cleared in advance, so a block is cleared when it is
 * first written.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "unit/cpu/cpu_types.h"

/* Blocks added when a slot has no free one. A free block is memory that no count of a state's bytes includes, and a state in
 * the prefix store would keep it: so a pool has the blocks of one index only. Pinned memory is expensive to take, so it grows
 * by more. */
enum { BLOCKS_GROW = 1, PINNED_GROW = 4 };

/* Drops one reference; the last one frees the memory. */
static void pool_unref(struct sg_kv_pool *pool)
{
    if (atomic_fetch_sub(&pool->refs, 1u) == 1) {
        if (pool->host) pool->host->leave(pool->host->owner, pool->memory);
        else sg_free(pool->memory);
        sg_free(pool);
    }
}

/* Adds `count` free blocks to every K and V slot in one allocation. Pages are committed on first touch.
 * The memory holds all block headers first, then the data, both aligned to 64 bytes. */
segue_status sg_kv_pool_add(struct sg_cpu_state *s, uint32_t count, segue_error *err)
{
    size_t block_bytes_sum = 0, slots = 0, bytes;
    for (uint32_t i = 0; i < s->core.slots_n; i++)
        if (sg_cpu_is_kv(sg_cpu_slot_at(s, i))) {
            block_bytes_sum += sg_cpu_slot_at(s, i)->block_bytes;
            slots++;
        }
    /* a state without K and V */
    if (!slots) return SEGUE_OK;
    size_t headers_bytes = slots * count * ((sizeof(struct sg_kv_block) + 63) / 64 * 64);
    SG_TRY(sg_mul(block_bytes_sum, count, &bytes, "rows of a state", err));
    struct sg_kv_pool *pool = sg_alloc(sizeof *pool);
    const struct sg_host_memory *host = sg_host_memory_pinned(s->core.host);
    uint8_t *memory = pool && host ? host->take(host->owner, bytes + headers_bytes + 64) : NULL;
    if (memory) pool->host = host;
    else memory = pool ? sg_alloc(bytes + headers_bytes + 64) : NULL;
    if (!memory) {
        sg_free(pool);
        return sg_no_memory("rows of a cpu state", bytes + headers_bytes, err);
    }
    pool->memory = memory;
    if (!pool->host) sg_huge_pages(memory, bytes + headers_bytes);
    atomic_init(&pool->refs, (unsigned)(slots * count));
    uint8_t *header = memory + (64 - (uintptr_t)memory % 64) % 64, *data = header + headers_bytes;
    for (uint32_t n = 0; n < count; n++)
        /* blocks of one index are adjacent in memory for all slots */
        for (uint32_t i = s->core.slots_n; i-- > 0;) {
            struct sg_cpu_slot *m = sg_cpu_slot_at(s, i);
            if (!sg_cpu_is_kv(m)) continue;
            struct sg_kv_block *b = (struct sg_kv_block *)(void *)header;
            atomic_init(&b->shared.refs, 0u);
            b->pool = pool;
            b->uncleared = pool->host != NULL;
            b->data = data;
            b->next = m->spare;
            m->spare = b;
            header += (sizeof *b + 63) / 64 * 64;
            data += m->block_bytes;
        }
    return SEGUE_OK;
}

/* What the block callbacks work on. Not stored in the slot: a transfer exchanges the slots of two states. */
struct kv_owner {
    struct sg_cpu_state *state;      /* NULL in a call that creates no block */
    struct sg_cpu_slot *slot;
};

/* Takes a block from the slot's free list. Copy on write: copies `from`, and whether it was cleared. */
static segue_status block_create(void *arg, const struct sg_shared_block *from, struct sg_shared_block **out,
                                 segue_error *err)
{
    const struct kv_owner *o = arg;
    struct sg_cpu_slot *m = o->slot;
    const struct sg_kv_block *original = (const struct sg_kv_block *)(const void *)from;
    if (!m->spare) SG_TRY(sg_kv_pool_add(o->state, sg_host_memory_pinned(o->state->core.host) ? PINNED_GROW : BLOCKS_GROW, err));
    struct sg_kv_block *b = m->spare;
    m->spare = b->next;
    atomic_store(&b->shared.refs, 1u);
    if (original) {
        memcpy(b->data, original->data, m->block_bytes);
        b->uncleared = original->uncleared;
    }
    *out = &b->shared;
    return SEGUE_OK;
}

/* The last reference was this slot's: the block goes to its free list, also when another state allocated it. */
static void block_destroy(void *arg, struct sg_shared_block *shared)
{
    struct sg_cpu_slot *m = ((const struct kv_owner *)arg)->slot;
    struct sg_kv_block *b = (struct sg_kv_block *)(void *)shared;
    b->next = m->spare;
    m->spare = b;
}

static const struct sg_block_ops block_ops = {.create = block_create, .destroy = block_destroy};

segue_status sg_kv_block_private(struct sg_cpu_state *s, struct sg_cpu_slot *m, uint64_t index, segue_error *err)
{
    struct kv_owner owner = {s, m};
    return sg_block_table_own(&m->table, index, &s->core.lock, &block_ops, &owner, err);
}

/* Kernels read whole groups of 16 keys, so an uncleared block could feed them NaN. */
segue_status sg_kv_block_private_zeroed(struct sg_cpu_state *s, struct sg_cpu_slot *m, uint64_t index, segue_error *err)
{
    SG_TRY(sg_kv_block_private(s, m, index, err));
    struct sg_kv_block *b = sg_kv_block_at(m, index * SG_CHUNK);
    if (b->uncleared) memset(b->data, 0, m->block_bytes);
    b->uncleared = 0;
    return SEGUE_OK;
}

void sg_kv_blocks_trim(struct sg_cpu_slot *m)
{
    struct kv_owner owner = {NULL, m};
    sg_block_table_trim(&m->table, m->core.first, m->core.end, SG_CHUNK, &block_ops, &owner);
}

/* A free block holds a reference to its pool. */
void sg_kv_blocks_free(struct sg_cpu_slot *m)
{
    struct kv_owner owner = {NULL, m};
    sg_block_table_free(&m->table, &block_ops, &owner);
    while (m->spare) {
        struct sg_kv_block *b = m->spare;
        m->spare = b->next;
        pool_unref(b->pool);
    }
}
