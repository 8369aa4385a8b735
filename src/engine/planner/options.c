/* options.c: see options.h. SPDX-License-Identifier: MIT */
#include "engine/planner/options.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "engine/planner/placements.h"

/* Lengths that are tried for a crossover are so many parts of themselves apart. */
enum { CROSSOVER_STEPS = 4, PROMPT_MAX = 65536 };

/* --- choice --- */

/* What the choice depends on. Values: ms and joules, by position in best_for; negative: not known. */
struct plan_candidate {
    double value[2], watts, margin;
    int alone, excluded;
};
static const segue_objective best_for[2] = {SEGUE_OBJECTIVE_LATENCY, SEGUE_OBJECTIVE_ENERGY};

static int value_index(segue_objective objective) { return objective == SEGUE_OBJECTIVE_ENERGY; }

static struct plan_candidate candidate_of(const struct sg_option *o)
{
    return (struct plan_candidate){{o->total_ms.mid, o->joules.mid}, o->watts.mid, o->margin, o->alone, o->excluded != NULL};
}

static int may_be_chosen(const struct plan_candidate *p, const struct sg_plan_task *t, int k)
{
    if (p->excluded || p->value[k] < 0) return 0;
    return !(t->max_watts > 0) || (p->watts >= 0 && p->watts <= t->max_watts);
}

/* The first unit alone, else the first placement, whose value is not above the least one by more than its margin. */
static int best_of(const struct plan_candidate *list, size_t n, const struct sg_plan_task *t, int k)
{
    int least = -1;
    for (size_t i = 0; i < n; i++)
        if (may_be_chosen(&list[i], t, k) && (least < 0 || list[i].value[k] < list[least].value[k])) least = (int)i;
    if (least < 0) return -1;
    double limit = list[least].value[k] * (1 + list[least].margin + 1e-9);
    for (int split = 0; split < 2; split++)
        for (size_t i = 0; i < n; i++)
            if ((split || list[i].alone) && may_be_chosen(&list[i], t, k) && list[i].value[k] <= limit) return (int)i;
    return least;
}

int sg_options_choose(const struct sg_options *o, const struct sg_plan_task *task)
{
    struct plan_candidate *list = sg_alloc((o->n + 1) * sizeof *list);
    if (!list) return -1;
    for (size_t i = 0; i < o->n; i++) list[i] = candidate_of(&o->list[i]);
    int best = best_of(list, o->n, task, value_index(task->objective));
    sg_free(list);
    return best;
}

int sg_options_too_large(const struct sg_options *o)
{
    int found = 0;
    for (size_t i = 0; i < o->n; i++) found |= o->list[i].excluded && !strcmp(o->list[i].excluded, SG_DOES_NOT_FIT);
    return o->choice < 0 && found;
}

/* --- placements at one length --- */

/* All that is kept while a plan is made. */
struct planning {
    const struct sg_plan_source *source;
    const struct sg_model_cost *models;
    struct sg_phase_costs *phases;      /* [models_n] of measured units; NULL: published pipelines */
    struct sg_plan_place *placements;    /* [placements_n] of each model */
    struct plan_candidate *candidates;       /* [models_n * placements_n] */
    struct sg_options *published;       /* scratch of published pipelines */
    size_t models_n, placements_n, priced;
};

static void planning_free(struct planning *a)
{
    sg_free(a->phases);
    sg_free(a->placements);
    sg_free(a->candidates);
    sg_free(a->published);
}

/* 0: no memory. */
static int planning_begin(struct planning *a, const struct sg_plan_source *s, const struct sg_model_cost *m,
                          const struct sg_plan_task *t)
{
    *a = (struct planning){.source = s, .models = m};
    for (const struct sg_model_cost *i = m; i; i = i->also) a->models_n++;
    a->candidates = sg_alloc(SG_OPTIONS_MAX * sizeof *a->candidates);
    if (!s->costs) {
        a->published = sg_alloc(sizeof *a->published);
        return a->candidates && a->published;
    }
    a->phases = sg_alloc(a->models_n * sizeof *a->phases);
    a->placements = sg_alloc(SG_OPTIONS_MAX * sizeof *a->placements);
    if (!a->candidates || !a->phases || !a->placements) return 0;
    size_t k = 0;
    for (const struct sg_model_cost *i = m; i; i = i->also) sg_phase_costs_begin(&a->phases[k++], s->costs, i, t);
    a->placements_n = sg_placements_list(a->placements, &a->phases[0]);
    return 1;
}

/* first: the model itself, of which m is a variant. */
static void name_storages(struct sg_option *o, const struct sg_model_cost *m, const struct sg_model_cost *first)
{
    o->storage = m->storage, o->converted = strcmp(m->storage, first->storage) != 0;
    o->kv = m->kv, o->asked_kv = m->kv == first->kv;
}

static void list_published(struct sg_options *out, const struct planning *a, const struct sg_plan_task *t)
{
    out->n = 0;
    for (const struct sg_model_cost *m = a->models; m; m = m->also) {
        size_t from = out->n;
        sg_options_published(out, a->source, m, t);
        for (size_t i = from; i < out->n; i++) name_storages(&out->list[i], m, a->models);
        for (size_t i = from; i < out->n && m->kv != SG_KV_FORM_F16; i++)
            out->list[i].excluded = "not measured with K and V in this storage";
    }
}

/* 1: the candidate is the least one so far, for one of the values. */
static int lowers_least(double least[2], const struct plan_candidate *x, const struct sg_plan_task *t)
{
    int lower = 0;
    for (int k = 0; k < 2; k++)
        if (may_be_chosen(x, t, k) && x->value[k] < least[k]) least[k] = x->value[k], lower = 1;
    return lower;
}

/* Candidates in the order of the list of options. options: also described there; NULL: only what the choice needs. Returns their
 * number. */
static size_t candidates_at(struct planning *a, const struct sg_plan_task *t, struct sg_options *options)
{
    size_t n = 0;
    double least[2] = {INFINITY, INFINITY};
    if (!a->phases) {
        struct sg_options *list = options ? options : a->published;
        list_published(list, a, t);
        for (; n < list->n; n++) a->candidates[n] = candidate_of(&list->list[n]);
        a->priced += n;
        return n;
    }
    const struct sg_model_cost *m = a->models;
    for (size_t k = 0; k < a->models_n; k++, m = m->also) {
        struct sg_phase_costs *c = &a->phases[k];
        sg_phase_costs_at(c, t);
        for (size_t i = 0; i < a->placements_n && n < SG_OPTIONS_MAX; i++, n++) {
            const struct sg_plan_place *p = &a->placements[i];
            struct sg_price price;
            sg_placement_price(&price, p, c, t);
            double ms = sg_price_ms(&price), joules = price.known > 0 ? price.joules : -1;
            struct plan_candidate *x = &a->candidates[n];
            *x = (struct plan_candidate){.value = {ms, joules},
                                    .watts = joules >= 0 ? joules / ms * 1e3 : -1,
                                    .alone = p->prefill == p->decode,
                                    .excluded = price.excluded != NULL};
            /* Only the margin of the least one matters. */
            if (lowers_least(least, x, t)) x->margin = sg_placement_margin(p, &price, c);
            if (!options) continue;
            struct sg_option *o = &options->list[options->n++];
            sg_placement_describe(o, p, &price, c, t);
            name_storages(o, m, a->models);
        }
    }
    a->priced += n;
    return n;
}

/* --- where the choice changes --- */

/* Best placements for time and energy, as indices: the list has the same order at every length. */
struct winners {
    int of[2];
};

static struct winners winners_of(const struct planning *a, size_t n, const struct sg_plan_task *t)
{
    return (struct winners){{best_of(a->candidates, n, t, value_index(best_for[0])),
                             best_of(a->candidates, n, t, value_index(best_for[1]))}};
}

static struct winners best_at(double prompt, struct planning *a, const struct sg_plan_task *task)
{
    struct sg_plan_task t = *task;
    t.prompt = prompt;
    return winners_of(a, candidates_at(a, &t, NULL), &t);
}

/* The length between low, where `now` is the best one, and high, where it is not. */
static double change_between(double low, double high, int k, int now, struct planning *a, const struct sg_plan_task *task)
{
    while (fabs(high - low) > 1) {
        double middle = floor((low + high) / 2);
        if (best_at(middle, a, task).of[k] == now)
            low = middle;
        else
            high = middle;
    }
    return high;
}

/* at: for time and energy the smallest prompt length above the task's at which another placement wins; if there is none above,
 * the largest below; 0: none. The costs have steps, so lengths are tried one after the other, closer together than the steps,
 * then halved. */
static void crossovers(double at[2], struct winners now, struct planning *a, const struct sg_plan_task *task)
{
    for (int up = 1; up >= 0; up--)
        for (double here = fmax(1, task->prompt), next;; here = next) {
            double step = fmax(1, floor(here / CROSSOVER_STEPS));
            next = up ? here + step : here - step;
            if (next < 1 || next > PROMPT_MAX) break;
            int open = 0;
            for (int k = 0; k < 2; k++) open |= now.of[k] >= 0 && !(at[k] > 0);
            if (!open) return;
            struct winners best = best_at(next, a, task);
            for (int k = 0; k < 2; k++)
                if (now.of[k] >= 0 && !(at[k] > 0) && best.of[k] >= 0 && best.of[k] != now.of[k])
                    at[k] = change_between(here, next, k, now.of[k], a, task);
        }
}

const char *sg_option_dominant(const struct sg_option *o)
{
    const char *name = NULL;
    double largest = 0;
    for (size_t i = 0; i < o->terms_n; i++)
        if (o->terms[i].ms > largest) largest = o->terms[i].ms, name = o->terms[i].name;
    return name;
}

void sg_options_make(struct sg_options *out, const struct sg_plan_source *source, const struct sg_model_cost *model,
                     const struct sg_plan_task *task)
{
    struct planning a;
    double at[2] = {0, 0};
    out->n = out->computed = out->priced = 0;
    out->choice = -1;
    out->dominant = NULL;
    if (planning_begin(&a, source, model, task)) {
        size_t n = candidates_at(&a, task, out);
        out->choice = best_of(a.candidates, n, task, value_index(task->objective));
        if (out->choice >= 0) out->dominant = sg_option_dominant(&out->list[out->choice]);
        crossovers(at, winners_of(&a, n, task), &a, task);
        out->priced = a.priced;
        for (size_t k = 0; a.phases && k < a.models_n; k++) out->computed += a.phases[k].computed;
    }
    out->crossover = at[0], out->energy_crossover = at[1];
    planning_free(&a);
}
