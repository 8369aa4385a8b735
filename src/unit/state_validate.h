/* state_validate.h: check of a state that was written with state_put: every slot must have what the next token attends to.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_STATE_VALIDATE_H
#define SG_UNIT_STATE_VALIDATE_H

#include "graph/graph.h"

struct sg_slot_coverage {
    const char *unit; /* for the error */
    const struct sg_slot *slot;
    uint64_t first, end; /* K and V: positions that are held */
    int given;           /* other kinds: 1 = written at least once */
    uint64_t needed;     /* K and V: the first position that the next token attends to */
};
/* EARG: positions, or a recurrent slot, were never put. EUNSUPPORTED: positions needed here had already been released where the
 * state was computed (a unit that keeps fewer positions than the model's window). */
segue_status sg_slot_coverage(const struct sg_slot_coverage *s, uint64_t rows, segue_error *err);

#endif
