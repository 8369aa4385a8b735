/* predict.h: `segue bench --predict`: what the planner says of cases of a probe, and what it learns from them.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_PREDICT_H
#define SEGUE_CLI_PREDICT_H

#include "engine/planner/options.h"
#include "plan/probe_units.h"

/* The placements of the task of a case, whatever units it names, and the choice among units alone, or with pairs also among
 * splits by phase. */
void predict_plan(struct sg_options *out, const struct sg_unit_costs *costs, const struct probe *p, const struct probe_case *c,
                  bool pairs);
/* That of the units of a case; NULL: none. */
const struct sg_option *predict_option(const struct sg_options *o, const struct probe *p, const struct probe_case *c);
/* The first token and a token of a case by the measured figures alone, without what runs taught and without the hand-off. */
void predict_laws(const struct sg_unit_costs *costs, const struct probe *p, const struct probe_case *c, double *ttft_ms,
                  double *token_ms);
/* The costs as a chip file, allocated. */
char *predict_calibration(const struct sg_unit_costs *costs);
/* The costs learn from the cases of one task, which were measured beside each other: of every unit and phase the median. c, t:
 * [n] cases and their median times. */
void predict_learn(struct sg_unit_costs *costs, const struct probe *p, const struct probe_case *c, const struct probe_times *t,
                   size_t n);

#endif
