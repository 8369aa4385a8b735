/* learn.h: real runs refine the costs of units. SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_LEARN_H
#define SG_ENGINE_LEARN_H

#include "engine/planner/unitcost.h"

/* The median of some measured runs: prefill of n tokens to the choice of the first one, or a mean step at a depth. Moves the
 * factors of the model and the drift and spread of the unit. Runs of the same minutes meet the same load, so that their median
 * is learned once. */
void sg_learn_prefill(struct sg_unit_costs *c, const char *unit, const struct sg_model_cost *m, double n, double depth,
                      double chunk, double measured_ms, double runs);
void sg_learn_step(struct sg_unit_costs *c, const char *unit, const struct sg_model_cost *m, double depth, double measured_ms,
                   double runs);
/* Watts of a phase (SG_PHASE_*) of a run of the model; 0: not measured. */
void sg_learn_watts(struct sg_unit_costs *c, const char *unit, const struct sg_model_cost *m, int phase, double watts);

#endif
