/* phasecost.c: see phasecost.h. SPDX-License-Identifier: MIT */
#include "engine/planner/phasecost.h"

#include <math.h>
#include <string.h>

static struct sg_model_cost share_of(const struct sg_model_cost *m, double share, int head)
{
    struct sg_model_cost p = *m;
    p.shape.layers *= share, p.shape.delta_layers *= share, p.shape.body *= share, p.body_bytes *= share;
    p.kv_bytes *= share, p.attend *= share, p.state_bytes *= share;
    if (!head) p.shape.head = p.head_bytes = 0;
    return p;
}

/* Quarters of the layers; only halves with many units. Small models have fewer quarters. */
static void make_shares(struct sg_phase_costs *c)
{
    c->shares[SG_SHARE_ALL] = *c->model;
    for (int quarter = 1, last = -1; quarter < 4; quarter++) {
        int cut = (int)(c->model->shape.layers * quarter / 4);
        if (cut < 1 || cut == last || (c->units_n > 4 && quarter != 2)) continue;
        last = cut;
        double share = cut / c->model->shape.layers;
        c->shares[SG_SHARE_FIRST + quarter - 1] = share_of(c->model, share, 0);
        c->shares[SG_SHARE_LAST + quarter - 1] = share_of(c->model, 1 - share, 1);
    }
}

static void make_groups(struct sg_phase_costs *c, double turns)
{
    c->groups_n = turns < SG_TURN_GROUPS ? (size_t)fmax(1, turns) : SG_TURN_GROUPS;
    for (size_t i = 0; i < c->groups_n; i++) {
        /* The first turn is a group of its own: it has no state to move back. */
        double from = i ? 1 + floor((turns - 1) * (double)(i - 1) / (double)(c->groups_n - 1)) : 0;
        double to = i ? 1 + floor((turns - 1) * (double)i / (double)(c->groups_n - 1)) : 1;
        c->groups[i] = (struct sg_turn_group){(from + to - 1) / 2, to - from};
    }
}

static int is_named(const struct sg_plan_task *t, const char *spec)
{
    for (size_t i = 0; i < t->named_n; i++)
        if (!strcmp(t->named[i], spec)) return 1;
    return 0;
}

void sg_phase_costs_begin(struct sg_phase_costs *out, const struct sg_unit_costs *costs, const struct sg_model_cost *model,
                          const struct sg_plan_task *task)
{
    *out = (struct sg_phase_costs){.costs = costs, .model = model, .units_n = costs->units_n};
    for (size_t i = 0; i < out->units_n; i++) {
        struct sg_phase_unit *u = &out->units[i];
        u->cost = &costs->units[i];
        u->real = sg_real_find(costs, u->cost->spec, model->key);
        u->rates = sg_energy_rates_of(u->cost, u->real);
        u->complete = sg_unit_complete(u->cost, model->class);
        u->named = !(u->cost->simulated > 0) || is_named(task, u->cost->spec);
        for (int phase = 0; phase < 2; phase++) u->spread[phase] = sg_spread(u->cost, u->real, phase);
        for (size_t k = 0; k < out->units_n; k++)
            out->pairs[i][k] = (struct sg_phase_pair){sg_link_find(costs, u->cost->spec, costs->units[k].spec),
                                                      sg_energy_beside_of(costs, u->cost, &costs->units[k])};
    }
    make_shares(out);
    make_groups(out, task->turns);
}

/* Prefill of shares of the layers on a unit, times `taught`: all terms but those of a run and of the head are proportional to the
 * layers, and speeds by rows are looked up once. out: [SG_SHARES]. */
static void prefill_shares(const struct sg_phase_costs *c, const struct sg_unit_cost *u, double rows, double depth, double chunk,
                           double taught, double *out)
{
    struct sg_cost_terms t;
    double whole = sg_prefill_ms(NULL, u, c->model, rows, depth, chunk, &t);
    double runs = u->run_ms * ceil(rows / chunk), layers = whole - runs - t.weights;
    for (int s = 0; s < SG_SHARES; s++)
        out[s] = taught * (runs + layers * c->shares[s].shape.layers / c->model->shape.layers +
                           (c->shares[s].head_bytes > 0 ? t.weights : 0));
}

void sg_phase_costs_at(struct sg_phase_costs *c, const struct sg_plan_task *t)
{
    double steps = sg_turn_steps(t);
    for (size_t g = 0; g < c->groups_n; g++)
        for (size_t i = 0; i < c->units_n; i++) {
            const struct sg_phase_unit *u = &c->units[i];
            double depth = sg_turn_depth(t, c->groups[g].turn), rows = sg_turn_rows(t, c->groups[g].turn);
            double middle = depth + t->prompt + steps / 2;
            double prefill = sg_taught(u->cost, u->real, SG_PHASE_PREFILL, rows);
            double step = sg_taught(u->cost, u->real, SG_PHASE_STEP, middle);
            prefill_shares(c, u->cost, rows, depth, t->chunk, prefill, c->prefill[g][i]);
            for (int s = 0; s < SG_SHARES; s++) {
                if (!(c->shares[s].shape.layers > 0)) continue;
                double sessions = s == SG_SHARE_ALL ? t->sessions : 1;
                c->step[g][i][s] = step * sg_step_ms(NULL, u->cost, &c->shares[s], middle, sessions, NULL);
                c->computed += 2;
            }
        }
}
