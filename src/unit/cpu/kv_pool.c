/* kv_pool.c: allocation of K and V blocks: pools of blocks, per-slot free lists, copy on write. Pools
 * come from the process allocator (zeroed) or from the allocator of another unit (struct
 * sg_host_memory, pinned for fast copies). Pinned memory is not cleared in advance, so a block is
 * cleared when it is first written.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "unit/cpu/cpu_types.h"

/* Blocks added when a slot has no free one; spare table entries. */
enum { BLOCKS_GROW = 4, TABLE_GROW = 16 };

void sg_kv_pool_unref(struct sg_kv_pool *pool)
{
    if (atomic_fetch_sub(&pool->refs, 1u) == 1) {
        if (pool->host) pool->host->leave(pool->host->owner, pool->memory);
        else sg_free(pool->memory);
        sg_free(pool);
    }
}

/* Drops one reference to a block; with the last one the block goes to this slot's free list. */
static void sg_kv_block_unref(struct sg_cpu_slot *m, struct sg_kv_block *b)
{
    if (!b || atomic_fetch_sub(&b->refs, 1u) != 1) return;
    b->next = m->spare;
    m->spare = b;
}

/* Adds `count` free blocks to every K and V slot in one allocation. Pages are committed on first touch.
 * The memory holds all block headers first, then the data, both aligned to 64 bytes. */
segue_status sg_kv_pool_add(struct sg_cpu_state *s, uint32_t count, segue_error *err)
{
    size_t block_bytes_sum = 0, slots = 0, bytes;
    for (uint32_t i = 0; i < s->slots_n; i++)
        if (sg_cpu_is_kv(&s->slots[i])) {
            block_bytes_sum += s->slots[i].block_bytes;
            slots++;
        }
    /* a state without K and V */
    if (!slots) return SEGUE_OK;
    size_t headers_bytes = slots * count * ((sizeof(struct sg_kv_block) + 63) / 64 * 64);
    SG_TRY(sg_mul(block_bytes_sum, count, &bytes, "rows of a state", err));
    struct sg_kv_pool *pool = sg_alloc(sizeof *pool);
    uint8_t *memory = pool && s->host ? s->host->take(s->host->owner, bytes + headers_bytes + 64) : NULL;
    if (memory) pool->host = s->host;
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
        for (uint32_t i = s->slots_n; i-- > 0;) {
            struct sg_cpu_slot *m = &s->slots[i];
            if (!sg_cpu_is_kv(m)) continue;
            struct sg_kv_block *b = (struct sg_kv_block *)(void *)header;
            atomic_init(&b->refs, 0u);
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

/* The new table is swapped in under the lock, since a concurrent get may read the old one. */
segue_status sg_kv_table_grow(struct sg_cpu_state *s, struct sg_cpu_slot *m, uint64_t index,
                               segue_error *err)
{
    if (index < m->blocks_cap) return SEGUE_OK;
    if (index > UINT32_MAX / 4)
        return sg_fail(err, SEGUE_ELIMIT,
                       "grow state: cpu: block %llu exceeds the maximum length of a sequence; use a shorter context",
                       (unsigned long long)index);
    /* at least doubles */
    uint32_t cap = (uint32_t)index + m->blocks_cap + TABLE_GROW;
    struct sg_kv_block **wider = sg_alloc(cap * sizeof(struct sg_kv_block *)), **old = m->blocks;
    if (!wider) return sg_no_memory("block table of a cpu state", cap * sizeof(struct sg_kv_block *), err);
    if (m->blocks_cap) memcpy(wider, old, m->blocks_cap * sizeof(struct sg_kv_block *));
    pthread_mutex_lock(&s->lock);
    m->blocks = wider;
    m->blocks_cap = cap;
    pthread_mutex_unlock(&s->lock);
    sg_free(old);
    return SEGUE_OK;
}

/* Copy on write: a block that other states reference is copied to a free one first. The block may be
 * uncleared; then sg_kv_rows_copy must be the next writer. */
segue_status sg_kv_block_private(struct sg_cpu_state *s, struct sg_cpu_slot *m, uint64_t index, segue_error *err)
{
    SG_TRY(sg_kv_table_grow(s, m, index, err));
    struct sg_kv_block *b = m->blocks[index];
    if (b && atomic_load(&b->refs) == 1) return SEGUE_OK;
    if (!m->spare) SG_TRY(sg_kv_pool_add(s, BLOCKS_GROW, err));
    struct sg_kv_block *fresh = m->spare;
    m->spare = fresh->next;
    atomic_store(&fresh->refs, 1u);
    if (b) {
        memcpy(fresh->data, b->data, m->block_bytes);
        fresh->uncleared = b->uncleared;
    }
    pthread_mutex_lock(&s->lock);
    m->blocks[index] = fresh;
    pthread_mutex_unlock(&s->lock);
    sg_kv_block_unref(m, b);
    return SEGUE_OK;
}

/* Kernels read whole groups of 16 keys, so an uncleared block could feed them NaN. */
segue_status sg_kv_block_private_zeroed(struct sg_cpu_state *s, struct sg_cpu_slot *m, uint64_t index, segue_error *err)
{
    SG_TRY(sg_kv_block_private(s, m, index, err));
    struct sg_kv_block *b = m->blocks[index];
    if (b->uncleared) memset(b->data, 0, m->block_bytes);
    b->uncleared = 0;
    return SEGUE_OK;
}

/* Takes no lock: a commit, which gets may run beside, calls this under the lock of the state. */
void sg_kv_blocks_drop(struct sg_cpu_slot *m, uint64_t from, uint64_t to)
{
    for (uint64_t i = from; i < to && i < m->blocks_cap; i++) {
        sg_kv_block_unref(m, m->blocks[i]);
        m->blocks[i] = NULL;
    }
}

/* Releases the blocks outside of rows [first, end) and adjusts the range of held rows. */
void sg_kv_rows_trim(struct sg_cpu_slot *m, uint64_t first, uint64_t end)
{
    sg_kv_blocks_drop(m, 0, first / SG_CHUNK);
    sg_kv_blocks_drop(m, (end + SG_CHUNK - 1) / SG_CHUNK, m->blocks_cap);
    if (first > m->first) m->first = first;
    m->end = end;
    if (m->first > end) m->first = end;
}
