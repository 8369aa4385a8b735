/* group.h: several units of one kind that compute as one: each is a rank and runs its share of the graph (graph/share.h) beside
 * the others. A state is one state for each rank; rows and memory leave it and come in the canonical layout, as if it were one.
 * Logits and tokens are the same on every rank; rank 0's are given. Adapters are refused. SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_GROUP_H
#define SG_UNIT_GROUP_H

#include "unit/unit.h"

/* units[n], of one table, are the team's from now on, also when it fails. `spec` is what the team is called. */
segue_status sg_group_open(struct sg_unit **out, struct sg_unit *const *units, uint32_t n, const char *spec, segue_error *err);

#endif
