/* cpu_state_transfer.c: moves a state from one cpu unit to another in this process. The memory is
 * swapped and no row is copied: the layout of blocks depends on the storage only, never on the
 * instruction set.
 * SPDX-License-Identifier: MIT */
#include "unit/cpu/cpu_types.h"

/* The memory can be swapped only if all slots and the storage are equal. */
static int same_slots(const struct sg_cpu_state *src, const struct sg_cpu_state *dst)
{
    if (src->slots_n != dst->slots_n || src->kv != dst->kv) return 0;
    for (uint32_t i = 0; i < src->slots_n; i++)
        if (!sg_slot_same(&src->slots[i].slot, &dst->slots[i].slot)) return 0;
    return 1;
}

/* Swaps the memory of both states, so that each state still frees what it holds. Undo marks of both
 * become invalid. */
segue_status sg_cpu_state_transfer(struct sg_state *to, struct sg_state *from, segue_error *err)
{
    struct sg_cpu_state *src = (struct sg_cpu_state *)(void *)from, *dst = (struct sg_cpu_state *)(void *)to;
    if (!same_slots(src, dst))
        return sg_fail(err, SEGUE_EUNSUPPORTED,
                       "transfer state: cpu: the states differ in slots or storage; use get and put");
    if (atomic_load(&src->busy) || atomic_load(&dst->busy))
        return sg_fail(err, SEGUE_EARG, "transfer state: cpu: a run is using a state; wait for the run");
    struct sg_cpu_slot *slots = dst->slots;
    uint64_t rows = dst->rows;
    uint32_t capacity = dst->capacity;
    void *fixed = dst->fixed;
    const struct sg_host_memory *fixed_host = dst->fixed_host;
    dst->slots = src->slots;
    dst->rows = src->rows;
    dst->capacity = src->capacity;
    dst->fixed = src->fixed;
    dst->fixed_host = src->fixed_host;
    src->slots = slots;
    src->rows = rows;
    src->capacity = capacity;
    src->fixed = fixed;
    src->fixed_host = fixed_host;
    src->marks_n = dst->marks_n = 0;
    return SEGUE_OK;
}
