/* cpu_state_transfer.c: moves a state from one cpu unit to another in this process. The memory is
 * swapped and no row is copied: the layout of blocks depends on the storage only, never on the
 * instruction set.
 * SPDX-License-Identifier: MIT */
#include "unit/cpu/cpu_types.h"

/* Swaps the memory of both states, so that each state still frees what it holds. Undo marks of both
 * become invalid. EUNSUPPORTED: slots or storage differ. */
segue_status sg_cpu_state_transfer(struct sg_state *to, struct sg_state *from, segue_error *err)
{
    struct sg_cpu_state *src = sg_cpu_state_of(from), *dst = sg_cpu_state_of(to);
    SG_TRY(sg_state_core_check_transfer(to, from, err));
    void *slots = dst->core.slots;
    uint64_t tokens = dst->core.tokens;
    uint32_t capacity = dst->capacity;
    void *fixed = dst->fixed;
    const struct sg_host_memory *fixed_host = dst->fixed_host;
    dst->core.slots = src->core.slots;
    dst->core.tokens = src->core.tokens;
    dst->capacity = src->capacity;
    dst->fixed = src->fixed;
    dst->fixed_host = src->fixed_host;
    src->core.slots = slots;
    src->core.tokens = tokens;
    src->capacity = capacity;
    src->fixed = fixed;
    src->fixed_host = fixed_host;
    return SEGUE_OK;
}
