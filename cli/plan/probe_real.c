/* probe_real.c: what runs of a real model take on every unit, see probe_units.h. The units run in turn, as their weights do in
 * the caches of tasks that follow each other, and the load of one minute meets all of them. SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "engine/planner/learn.h"
#include "plan/probe_units.h"
#include "term/out.h"

enum { STEPS = 24, SHORT = 16, CASES = 7 };
#define CHUNK 512.0

/* Prompt lengths, then depths of steps. */
static const struct probe_case cases[CASES] = {{.prompt = 8},
                                               {.prompt = 32},
                                               {.prompt = 128},
                                               {.prompt = 512},
                                               {.prompt = 1024},
                                               {.prompt = SHORT, .output = STEPS},
                                               {.depth = 2048, .prompt = SHORT, .output = STEPS}};

static void learn(struct probe *p, struct sg_unit_costs *costs, const struct probe_sample *s)
{
    const double middle = SHORT + (STEPS - 1) / 2.0;
    const char *unit = p->specs[s->c.prefill];
    if (s->c.output)
        sg_learn_step(costs, unit, &p->cost, (double)s->c.depth + middle, s->usual, (double)s->n);
    else
        sg_learn_prefill(costs, unit, &p->cost, (double)s->c.prompt, 0, CHUNK, s->usual, (double)s->n);
}

/* Forgets what was known of the model, and measures its watts. */
static segue_status begin(struct probe *p, struct sg_unit_costs *costs, segue_error *err)
{
    for (size_t i = 0; i < p->units_n; i++) {
        struct sg_real_factor *r = sg_real_factor_of(costs, p->specs[i], p->cost.key, 1);
        double rate;
        if (!r) continue;
        memset(r->factor, 0, sizeof r->factor);
        for (int phase = 0; phase < 2; phase++) {
            SG_TRY(probe_power(p, i, phase, &r->watts[phase], &rate, err));
            r->watts[phase] = fmax(0, r->watts[phase]);
        }
    }
    return SEGUE_OK;
}

segue_status probe_real(struct probe *p, struct sg_unit_costs *costs, segue_error *err)
{
    struct probe_sample *all = out_alloc(p->units_n * CASES * sizeof *all);
    size_t n = 0;
    for (size_t k = 0; k < CASES; k++)
        for (size_t i = 0; i < p->units_n; i++) {
            all[n].c = cases[k];
            all[n].c.prefill = all[n].c.decode = i;
            n++;
        }
    segue_status st = begin(p, costs, err);
    if (!st) st = probe_rounds(p, all, n, err);
    for (size_t i = 0; i < n && !st; i++) learn(p, costs, &all[i]);
    free(all);
    return st;
}
