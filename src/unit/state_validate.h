/* The end of filling a state from outside (state_put of slot UINT32_MAX): every slot must have what the next row asks for.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_STATE_VALIDATE_H
#define SG_UNIT_STATE_VALIDATE_H

#include "graph/graph.h"

struct sg_slot_coverage {
    const char *unit; /* for the text */
    const struct sg_slot *slot;
    uint64_t first, end; /* K and V: the rows that lie here */
    int given;           /* other kinds: put at least once */
    uint64_t needed;     /* K and V: the first row that will be asked for */
};
/* EARG: rows, or memory, were never put. EUNSUPPORTED: rows that are needed here had already gone out of sight where the
 * state was made (a unit that keeps fewer rows than the model's window). */
segue_status sg_slot_coverage(const struct sg_slot_coverage *s, uint64_t rows, segue_error *err);

#endif
