/* kv_pool.c: blocks of K and V rows: taken from slabs, shared by forks, given back. Slabs come from the process's memory, or
 * from where another unit copies at full speed (struct sg_host_memory): those are not cleared before somebody takes a block.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "unit/cpu/cpu_types.h"

enum { GROW = 4, TABLE = 16 };

void sg_cpu_slab_release(struct sg_kv_slab *slab)
{
    if (atomic_fetch_sub(&slab->refs, 1u) == 1) {
        if (slab->host) slab->host->leave(slab->host->owner, slab->memory);
        else sg_free(slab->memory);
        sg_free(slab);
    }
}

/* Give up one hold on a block; the last one puts it on this slot's spare list. */
static void sg_cpu_block_release(struct sg_slot_memory *m, struct sg_kv_block *b)
{
    if (!b || atomic_fetch_sub(&b->refs, 1u) != 1) return;
    b->next = m->spare;
    m->spare = b;
}

/* `count` more spare blocks for every K and V slot, in one allocation that the system fills on first touch.
 */
segue_status sg_cpu_slab_add(struct sg_cpu_state *s, uint32_t count, segue_error *err)
{
    size_t each = 0, slots = 0, bytes;
    for (uint32_t i = 0; i < s->slots_n; i++)
        if (sg_cpu_is_rows(&s->slots[i])) {
            each += s->slots[i].block_bytes;
            slots++;
        }
    if (!slots) return SEGUE_OK;
    size_t heads = slots * count * ((sizeof(struct sg_kv_block) + 63) / 64 * 64);
    SG_TRY(sg_mul(each, count, &bytes, "rows of a state", err));
    struct sg_kv_slab *slab = sg_alloc(sizeof *slab);
    uint8_t *memory = slab && s->host ? s->host->take(s->host->owner, bytes + heads + 64) : NULL;
    if (memory) slab->host = s->host;
    else memory = slab ? sg_alloc(bytes + heads + 64) : NULL;
    if (!memory) {
        sg_free(slab);
        return sg_no_memory("rows of a cpu state", bytes + heads, err);
    }
    slab->memory = memory;
    if (!slab->host) sg_huge_pages(memory, bytes + heads);
    atomic_init(&slab->refs, (unsigned)(slots * count));
    uint8_t *head = memory + (64 - (uintptr_t)memory % 64) % 64, *data = head + heads;
    for (uint32_t n = 0; n < count; n++)
        for (uint32_t i = s->slots_n; i-- > 0;) {
            struct sg_slot_memory *m = &s->slots[i];
            if (!sg_cpu_is_rows(m)) continue;
            struct sg_kv_block *b = (struct sg_kv_block *)(void *)head;
            atomic_init(&b->refs, 0u);
            b->slab = slab;
            b->dirty = slab->host != NULL;
            b->data = data;
            b->next = m->spare;
            m->spare = b;
            head += (sizeof *b + 63) / 64 * 64;
            data += m->block_bytes;
        }
    return SEGUE_OK;
}

segue_status sg_cpu_table_grow(struct sg_cpu_state *s, struct sg_slot_memory *m, uint64_t index,
                               segue_error *err)
{
    if (index < m->blocks_cap) return SEGUE_OK;
    if (index > UINT32_MAX / 4)
        return sg_fail(err, SEGUE_ELIMIT, "cpu state: row %llu: too long", (unsigned long long)index);
    uint32_t cap = (uint32_t)index + m->blocks_cap + TABLE;
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

/* Block `index` exists and is this state's alone. May be dirty: sg_kv_rows_pass is the next to write there. */
segue_status sg_cpu_block_take(struct sg_cpu_state *s, struct sg_slot_memory *m, uint64_t index, segue_error *err)
{
    SG_TRY(sg_cpu_table_grow(s, m, index, err));
    struct sg_kv_block *b = m->blocks[index];
    if (b && atomic_load(&b->refs) == 1) return SEGUE_OK;
    if (!m->spare) SG_TRY(sg_cpu_slab_add(s, GROW, err));
    struct sg_kv_block *mine = m->spare;
    m->spare = mine->next;
    atomic_store(&mine->refs, 1u);
    if (b) {
        memcpy(mine->data, b->data, m->block_bytes);
        mine->dirty = b->dirty;
    }
    pthread_mutex_lock(&s->lock);
    m->blocks[index] = mine;
    pthread_mutex_unlock(&s->lock);
    sg_cpu_block_release(m, b);
    return SEGUE_OK;
}

segue_status sg_cpu_block_own(struct sg_cpu_state *s, struct sg_slot_memory *m, uint64_t index, segue_error *err)
{
    SG_TRY(sg_cpu_block_take(s, m, index, err));
    struct sg_kv_block *b = m->blocks[index];
    if (b->dirty) memset(b->data, 0, m->block_bytes);
    b->dirty = 0;
    return SEGUE_OK;
}

void sg_cpu_blocks_drop(struct sg_slot_memory *m, uint64_t from, uint64_t to)
{
    for (uint64_t i = from; i < to && i < m->blocks_cap; i++) {
        sg_cpu_block_release(m, m->blocks[i]);
        m->blocks[i] = NULL;
    }
}

/* Keep rows [first, end) of what is held. */
void sg_cpu_rows_keep(struct sg_slot_memory *m, uint64_t first, uint64_t end)
{
    sg_cpu_blocks_drop(m, 0, first / SG_CHUNK);
    sg_cpu_blocks_drop(m, (end + SG_CHUNK - 1) / SG_CHUNK, m->blocks_cap);
    if (first > m->first) m->first = first;
    m->end = end;
    if (m->first > end) m->first = end;
}
