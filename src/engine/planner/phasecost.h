/* phasecost.h: what the phases of a task cost on each unit of a machine. A phase on a unit costs the same in every placement that
 * has it there, so these are computed once and all placements are sums of them. Pure. SPDX-License-Identifier: MIT */
#ifndef SG_ENGINE_PHASECOST_H
#define SG_ENGINE_PHASECOST_H

#include "engine/planner/unitenergy.h"

struct sg_plan_task {
    double prompt, output, turns, sessions, chunk, depth;
    segue_objective objective;
    double max_watts;     /* 0: no limit */
    const char *named[8]; /* units that may be chosen although they are simulated */
    size_t named_n;
};

/* Shares of the layers: all; the first q quarters; the others. SG_SHARE_FIRST + q - 1, SG_SHARE_LAST + q - 1. */
enum { SG_SHARE_ALL, SG_SHARE_FIRST, SG_SHARE_LAST = SG_SHARE_FIRST + 3, SG_SHARES = SG_SHARE_LAST + 3 };
/* Turns whose costs are computed; of more, every group stands for several and has the cost of its middle. */
enum { SG_TURN_GROUPS = 8 };

/* What does not depend on the length of the prompt. */
struct sg_phase_unit {
    const struct sg_unit_cost *cost;
    const struct sg_real_factor *real; /* of the model; NULL: no runs yet */
    double spread[2];                  /* by SG_PHASE_* */
    struct sg_energy_rates rates;
    int named;                         /* 0: it is simulated, and was not named */
    int complete;                      /* 0: its costs lack a speed */
};
struct sg_phase_pair {
    const struct sg_link_cost *link; /* NULL: not measured */
    struct sg_energy_beside beside;
};
struct sg_turn_group {
    double turn, turns; /* index of the turn that stands for the group; turns in it */
};
struct sg_phase_costs {
    const struct sg_unit_costs *costs;
    const struct sg_model_cost *model;
    struct sg_phase_unit units[SG_UNITS_MAX];
    struct sg_phase_pair pairs[SG_UNITS_MAX][SG_UNITS_MAX];
    struct sg_model_cost shares[SG_SHARES]; /* the model's share of layers; layers 0: there is no such share */
    size_t units_n;
    /* For one length of the prompt. */
    struct sg_turn_group groups[SG_TURN_GROUPS];
    size_t groups_n;
    /* ms; steps of all layers are of all sessions in one run, those of shares of one session */
    double prefill[SG_TURN_GROUPS][SG_UNITS_MAX][SG_SHARES], step[SG_TURN_GROUPS][SG_UNITS_MAX][SG_SHARES];
    size_t computed; /* phases of units computed so far */
};

/* Fills what does not depend on the prompt. task: names and turns of it. */
void sg_phase_costs_begin(struct sg_phase_costs *out, const struct sg_unit_costs *costs, const struct sg_model_cost *model,
                          const struct sg_plan_task *task);
/* Fills the times of a task. */
void sg_phase_costs_at(struct sg_phase_costs *c, const struct sg_plan_task *task);
/* Context before a turn; its tokens: those of the prompt, and from the second turn on the last one of the answer before. */
static inline double sg_turn_depth(const struct sg_plan_task *t, double turn)
{
    return t->depth + turn * (t->prompt + t->output);
}
static inline double sg_turn_rows(const struct sg_plan_task *t, double turn) { return t->prompt + (turn > 0); }
/* Steps of a turn: the first token comes with the prefill. */
static inline double sg_turn_steps(const struct sg_plan_task *t) { return t->output > 1 ? t->output - 1 : 0; }

#endif
