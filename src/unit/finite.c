/* finite.c: see finite.h.
 * SPDX-License-Identifier: MIT */
#include "unit/finite.h"

segue_status sg_weights_finite(const struct sg_graph *g, segue_error *err)
{
    uint64_t row;
    for (uint32_t i = 0; i < g->tensors_n; i++)
        if (!sg_tensor_finite(g->tensors[i], &row)) return sg_tensor_fail_not_finite(g->tensors[i], row, err);
    return SEGUE_OK;
}
