/* lora.c: see lora.h.
 * SPDX-License-Identifier: MIT */
#include "graph/lora.h"

#include <stdint.h>

const struct sg_lora_pair *sg_lora_find(const struct sg_lora *l, const struct sg_tensor *t)
{
    uint32_t from = 0, to = l->pairs_n;
    while (from < to) {
        uint32_t middle = from + (to - from) / 2;
        if (l->pairs[middle].tensor == t) return &l->pairs[middle];
        if ((uintptr_t)l->pairs[middle].tensor < (uintptr_t)t)
            from = middle + 1;
        else
            to = middle;
    }
    return NULL;
}
