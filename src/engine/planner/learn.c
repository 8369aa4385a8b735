/* learn.c: see learn.h. SPDX-License-Identifier: MIT */
#include "engine/planner/learn.h"

#include <math.h>

/* Share of a deviation by which the drift of a unit moves: it is common to all models, so a few runs determine it. */
#define DRIFT_GAIN .2
/* Share by which the watts of a model move to those of a run. */
#define WATTS_GAIN .25

/* The first run of a model sets its factors and the error of predictions for unknown models; later runs update the drift. */
static void learn(struct sg_unit_costs *c, struct sg_unit_cost *u, const struct sg_model_cost *m, int phase, double x,
                  double base, double predicted, double measured, double runs)
{
    struct sg_real_factor *r = sg_real_factor_of(c, u->spec, m->key, 1);
    double *drift = phase == SG_PHASE_PREFILL ? &u->prefill_drift : &u->step_drift;
    double *error = phase == SG_PHASE_PREFILL ? &u->prefill_error : &u->step_error;
    if (!r || !(base > 0) || !(predicted > 0) || !(measured > 0)) return;
    double deviation = log(measured / predicted), spread = sg_spread(u, sg_real_find(c, u->spec, m->key), phase);
    double trust = sg_real_trust(*error > 0 ? *error : u->error_share, runs, deviation);
    if (!sg_real_any(r->factor, phase)) error = &u->new_error;
    *error = sg_real_spread(expm1(spread), deviation);
    if (sg_real_knows(r->factor, phase, x)) *drift = (*drift > 0 ? *drift : 1) * exp(DRIFT_GAIN * deviation);
    sg_real_learn(r->factor, phase, x, measured / (base * (*drift > 0 ? *drift : 1)), trust);
}

void sg_learn_prefill(struct sg_unit_costs *c, const char *unit, const struct sg_model_cost *m, double n, double depth,
                      double chunk, double measured_ms, double runs)
{
    struct sg_unit_cost *u = sg_unit_cost_of(c, unit, 0);
    if (u)
        learn(c, u, m, SG_PHASE_PREFILL, n, sg_prefill_ms(NULL, u, m, n, depth, chunk, NULL),
              sg_prefill_ms(c, u, m, n, depth, chunk, NULL), measured_ms, runs);
}

void sg_learn_watts(struct sg_unit_costs *c, const char *unit, const struct sg_model_cost *m, int phase, double watts)
{
    struct sg_real_factor *r = watts > 0 && sg_unit_cost_of(c, unit, 0) ? sg_real_factor_of(c, unit, m->key, 1) : NULL;
    if (r) r->watts[phase] = r->watts[phase] > 0 ? r->watts[phase] + WATTS_GAIN * (watts - r->watts[phase]) : watts;
}

void sg_learn_step(struct sg_unit_costs *c, const char *unit, const struct sg_model_cost *m, double depth, double measured_ms,
                   double runs)
{
    struct sg_unit_cost *u = sg_unit_cost_of(c, unit, 0);
    if (u)
        learn(c, u, m, SG_PHASE_STEP, depth, sg_step_ms(NULL, u, m, depth, 1, NULL), sg_step_ms(c, u, m, depth, 1, NULL),
              measured_ms, runs);
}
