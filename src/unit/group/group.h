/* group.h: several units of one kind as one unit, with tensor parallelism: each is a rank and runs its part of the graph
 * (graph/tensor_parallel.h) in parallel with the others. A state of the group has one state per rank; get and put use the
 * canonical layout of the whole. All ranks compute the same logits and tokens; those of rank 0 are returned. Adapters are
 * split like the weights they change. SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_GROUP_H
#define SG_UNIT_GROUP_H

#include "unit/unit.h"

/* Takes ownership of units[n], which have one table, also after a failure. spec: reported as the spec of the group. */
segue_status sg_group_open(struct sg_unit **out, struct sg_unit *const *units, uint32_t n, const char *spec, segue_error *err);

#endif
