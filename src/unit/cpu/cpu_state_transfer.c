/* cpu_state_transfer.c: a state from one cpu unit to another in this process: the memory changes hands and no row is
 * copied. The layout of blocks depends on the storage alone, never on the instruction set.
 * SPDX-License-Identifier: MIT */
#include "unit/cpu/cpu_types.h"

static int same_slots(const struct sg_cpu_state *a, const struct sg_cpu_state *b)
{
    if (a->slots_n != b->slots_n || a->kv != b->kv) return 0;
    for (uint32_t i = 0; i < a->slots_n; i++)
        if (!sg_slot_same(&a->slots[i].slot, &b->slots[i].slot)) return 0;
    return 1;
}

segue_status sg_cpu_state_transfer(struct sg_state *to, struct sg_state *from, segue_error *err)
{
    struct sg_cpu_state *a = (struct sg_cpu_state *)(void *)from, *b = (struct sg_cpu_state *)(void *)to;
    if (!same_slots(a, b))
        return sg_fail(err, SEGUE_EUNSUPPORTED,
                       "pass state: cpu: the states differ in slots or storage; get and put the rows");
    if (atomic_load(&a->busy) || atomic_load(&b->busy))
        return sg_fail(err, SEGUE_EARG, "pass state: cpu: a run is using a state; wait for it");
    struct sg_slot_memory *slots = b->slots;
    uint64_t rows = b->rows;
    uint32_t capacity = b->capacity;
    void *fixed = b->fixed;
    const struct sg_host_memory *fixed_host = b->fixed_host;
    b->slots = a->slots;
    b->rows = a->rows;
    b->capacity = a->capacity;
    b->fixed = a->fixed;
    b->fixed_host = a->fixed_host;
    a->slots = slots;
    a->rows = rows;
    a->capacity = capacity;
    a->fixed = fixed;
    a->fixed_host = fixed_host;
    a->marks_n = b->marks_n = 0;
    return SEGUE_OK;
}
