/* state_validate.c: see state_validate.h.
 * SPDX-License-Identifier: MIT */
#include "unit/state_validate.h"

segue_status sg_slot_coverage(const struct sg_slot_coverage *s, uint64_t rows, segue_error *err)
{
    int by_rows = s->slot->kind == SG_SLOT_K || s->slot->kind == SG_SLOT_V;
    if (by_rows && s->end >= rows && s->first > s->needed)
        return sg_fail(err, SEGUE_EUNSUPPORTED,
                       "fill state: %s: layer %u needs row %llu, which is gone: the data begins at %llu; continue on the unit "
                       "that computed it, or compute it there with more keys",
                       s->unit, s->slot->layer, (unsigned long long)s->needed, (unsigned long long)s->first);
    if (by_rows ? s->end >= rows : !rows || s->given || !sg_slot_fixed_bytes(s->slot)) return SEGUE_OK;
    return sg_fail(err, SEGUE_EARG, "fill state: %s: layer %u lacks rows up to %llu; put them first", s->unit, s->slot->layer,
                   (unsigned long long)rows);
}
