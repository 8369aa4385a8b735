/* unitenergy.h: the joules of a placement on measured units. Pure. SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_UNITENERGY_H
#define SG_ENGINE_UNITENERGY_H

#include "engine/planner/unitcost.h"

/* Times and rows by SG_PHASE_*; the time of a hand-off belongs to prefill. */
struct sg_energy_task {
    double ms[2], rows[2];
};
/* Joules of all units while `a` computes prefill and `b` decodes: of the two at work, and of the others waiting. *known: 0: one
 * of the two has no meter, and the result counts the others only; negative: none has one. */
double sg_placement_joules(const struct sg_unit_costs *c, const struct sg_unit_cost *a, const struct sg_unit_cost *b,
                           const struct sg_model_cost *m, const struct sg_energy_task *t, int *known);

#endif
