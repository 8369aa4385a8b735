/* unitenergy.h: the joules of a placement on measured units. Pure. SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_UNITENERGY_H
#define SG_ENGINE_UNITENERGY_H

#include "engine/planner/unitcost.h"

/* Times and rows by SG_PHASE_*; the time of a hand-off belongs to prefill. */
struct sg_energy_task {
    double ms[2], rows[2];
};
/* A unit at work, by SG_PHASE_*: watts that runs of the model showed, else a base and joules per 10^9 weights multiplied.
 * watts < 0: it has no meter. */
struct sg_energy_rates {
    double watts[2], each[2];
};
struct sg_energy_rates sg_energy_rates_of(const struct sg_unit_cost *u, const struct sg_real_factor *real);
/* Watts beside those at work: of all other units, and of the unit of the other phase. Units that read one counter count once. */
struct sg_energy_beside {
    double others, waiting[2];
};
struct sg_energy_beside sg_energy_beside_of(const struct sg_unit_costs *c, const struct sg_unit_cost *a,
                                            const struct sg_unit_cost *b);
/* Joules of all units while `a` computes prefill and `b` decodes. *known: 0: one of the two has no meter, and the result counts
 * the others only; negative: none has one. */
double sg_placement_joules(const struct sg_energy_rates *a, const struct sg_energy_rates *b,
                           const struct sg_energy_beside *beside, const struct sg_model_cost *m, const struct sg_energy_task *t,
                           int *known);

#endif
