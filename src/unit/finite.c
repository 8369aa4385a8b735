/* finite.c: see finite.h.
 * SPDX-License-Identifier: MIT */
#include "unit/finite.h"

#include <string.h>

segue_status sg_weights_finite(const struct sg_graph *g, segue_error *err)
{
    uint64_t row;
    for (uint32_t i = 0; i < g->tensors_n; i++)
        if (!sg_tensor_finite(g->tensors[i], &row)) return sg_tensor_fail_not_finite(g->tensors[i], row, err);
    return SEGUE_OK;
}

/* NaN and infinity have an exponent of all ones. No branch, so
 * that the compiler vectorizes it. */
int sg_numbers_finite(const void *numbers, size_t bytes, enum sg_storage storage)
{
    const uint8_t *p = numbers;
    size_t size = storage == SG_F32 ? 4 : 2, bad = 0;
    uint32_t mask = storage == SG_F32 ? 0x7f800000u : storage == SG_F16 ? 0x7c00u : 0x7f80u;
    if (storage != SG_F32 && storage != SG_F16 && storage != SG_BF16) return 1;
    if (size == 4) {
        for (size_t i = 0; i + 4 <= bytes; i += 4) {
            uint32_t x;
            memcpy(&x, p + i, 4);
            bad += (x & mask) == mask;
        }
    } else {
        for (size_t i = 0; i + 2 <= bytes; i += 2) {
            uint16_t x;
            memcpy(&x, p + i, 2);
            bad += (x & mask) == mask;
        }
    }
    return !bad;
}
