/* placements.h: the placements of a model on measured units, priced as sums of phase costs. Pure. SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_PLACEMENTS_H
#define SG_ENGINE_PLACEMENTS_H

#include "engine/planner/optionparts.h"
#include "engine/planner/phasecost.h"

/* Both phases whole, on one unit each; or of both the first quarters of the layers on `prefill`, the others on `decode`. */
struct sg_plan_place {
    uint8_t prefill, decode; /* indices of units */
    uint8_t quarters;        /* 0: whole */
};
/* Whole ones first: every ordered pair of units. out: [SG_OPTIONS_MAX]. Returns their number. */
size_t sg_placements_list(struct sg_plan_place *out, const struct sg_phase_costs *c);

/* Sums over all turns and sessions in ms, and the same of the first turn of one session. */
struct sg_price {
    double prefill, handoff, steps, first_prefill, first_handoff, step;
    double joules;        /* known 0: of the units that have a meter */
    int known;            /* as in unitenergy.h; -1 for divided layers */
    const char *excluded; /* why it cannot be chosen; NULL: it can */
};
void sg_placement_price(struct sg_price *out, const struct sg_plan_place *p, const struct sg_phase_costs *c,
                        const struct sg_plan_task *t);
static inline double sg_price_ms(const struct sg_price *p) { return p->prefill + p->handoff + p->steps; }
/* Share by which another placement must be better than this one. */
double sg_placement_margin(const struct sg_plan_place *p, const struct sg_price *price, const struct sg_phase_costs *c);
/* The placement for a report. */
void sg_placement_describe(struct sg_option *o, const struct sg_plan_place *p, const struct sg_price *price,
                           const struct sg_phase_costs *c, const struct sg_plan_task *t);

#endif
