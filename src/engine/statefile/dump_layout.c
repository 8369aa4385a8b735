/* dump_layout.c: reorders slots from the canonical layout of docs/STATE.md to the axes of a dump.
 * SPDX-License-Identifier: MIT */
#include "engine/statefile/statefile.h"

#include <string.h>

void sg_dump_heads(const struct sg_slot *slot, size_t n, const float *rows, float *heads)
{
    size_t wide = (size_t)slot->heads * slot->width;
    for (size_t h = 0; h < slot->heads; h++)
        for (size_t t = 0; t < n; t++)
            memcpy(heads + (h * n + t) * slot->width, rows + t * wide + h * slot->width,
                   slot->width * sizeof(float));
}

void sg_dump_conv(const struct sg_slot *slot, const float *rows, float *transposed)
{
    for (size_t t = 0; t < slot->heads; t++)
        for (size_t c = 0; c < slot->width; c++) transposed[c * slot->heads + t] = rows[t * slot->width + c];
}
