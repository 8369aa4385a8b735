/* plan.h: the object behind segue_plan. Immutable after creation: any thread. SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_PLAN_H
#define SG_ENGINE_PLAN_H

#include "engine/placement/layer_range.h"

struct segue_plan {
    segue_plan_info info; /* parts_n entries of `parts` */
    segue_part parts[];   /* as the caller gave them; checked against an engine where they are used */
};

/* EMEMORY. */
segue_status sg_plan_copy(segue_plan **out, const struct segue_plan *plan, segue_error *err);
/* Checks a plan against the engine. EARG: a phase does not cover all layers once and in order, names a unit that the engine
 * does not have, or has more than SG_STAGES_MAX parts. */
segue_status sg_plan_check(const struct segue_engine *e, const struct segue_plan *plan, segue_error *err);

#endif
