/* unitenergy.c: see unitenergy.h. SPDX-License-Identifier: MIT */
#include "engine/planner/unitenergy.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The device of a spec: what a unit in a process of its own runs, without options. Its number follows. */
static const char *device_of(const char *spec, size_t *n, unsigned long *number)
{
    for (const char *rest = strchr(spec, ':'); rest; rest = strchr(spec, ':')) {
        size_t word = strcspn(++rest, "=:,");
        if (*rest < 'a' || *rest > 'z' || rest[word] == '=') break; /* a number or options */
        spec = rest;
    }
    *n = strcspn(spec, ":");
    *number = spec[*n] ? strtoul(spec + *n + 1, NULL, 10) : 0;
    return spec;
}

/* 1: both units read the same energy counter: of the processor, or of one GPU. */
static int same_meter(const char *a, const char *b)
{
    size_t n, m;
    unsigned long x, y;
    a = device_of(a, &n, &x);
    b = device_of(b, &m, &y);
    return n == m && !strncmp(a, b, n) && x == y;
}

struct sg_energy_rates sg_energy_rates_of(const struct sg_unit_cost *u, const struct sg_real_factor *real)
{
    struct sg_energy_rates r = {{u->prefill_w, u->step_w}, {u->prefill_j_gweight, u->step_j_gweight}};
    for (int phase = 0; real && phase < 2; phase++)
        if (real->watts[phase] > 0) r.watts[phase] = real->watts[phase], r.each[phase] = 0;
    return r;
}

struct sg_energy_beside sg_energy_beside_of(const struct sg_unit_costs *c, const struct sg_unit_cost *a,
                                            const struct sg_unit_cost *b)
{
    struct sg_energy_beside out = {0};
    for (size_t i = 0; i < c->units_n; i++) {
        const struct sg_unit_cost *u = &c->units[i];
        if (!(u->idle_w > 0)) continue;
        int counted = same_meter(u->spec, a->spec) || same_meter(u->spec, b->spec);
        for (size_t k = 0; k < i && !counted; k++) counted = same_meter(u->spec, c->units[k].spec);
        if (!counted) out.others += u->idle_w;
    }
    if (!same_meter(a->spec, b->spec))
        out.waiting[SG_PHASE_PREFILL] = fmax(0, b->idle_w), out.waiting[SG_PHASE_STEP] = fmax(0, a->idle_w);
    return out;
}

/* < 0: no meter. */
static double at_work(const struct sg_energy_rates *u, const struct sg_model_cost *m, int phase, const struct sg_energy_task *t)
{
    double weights = m->shape.body * t->rows[phase] + (phase == SG_PHASE_STEP ? m->shape.head * t->rows[phase] : 0);
    return u->watts[phase] < 0 ? -1 : u->watts[phase] * t->ms[phase] * 1e-3 + u->each[phase] * weights * 1e-9;
}

double sg_placement_joules(const struct sg_energy_rates *a, const struct sg_energy_rates *b,
                           const struct sg_energy_beside *beside, const struct sg_model_cost *m, const struct sg_energy_task *t,
                           int *known)
{
    double first = at_work(a, m, SG_PHASE_PREFILL, t), rest = at_work(b, m, SG_PHASE_STEP, t), others = 0;
    for (int phase = 0; phase < 2; phase++) others += (beside->others + beside->waiting[phase]) * t->ms[phase] * 1e-3;
    *known = first >= 0 && rest >= 0 ? 1 : first >= 0 || rest >= 0 || others > 0 ? 0 : -1;
    return fmax(0, first) + fmax(0, rest) + others;
}
