/* placements.c: see placements.h. SPDX-License-Identifier: MIT */
#include "engine/planner/placements.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Two placements count as equal when they differ by less than this share of the interval: learned factors scatter by a
 * quarter of what single runs do. */
#define MARGIN .25
/* Watts are off by so much beside the times. */
#define ENERGY_ERROR 1.1
/* Up to so many new tokens of a later turn are read on the decode unit (src/engine/session/advance.c). */
enum { FEW_TOKENS = 16 };

size_t sg_placements_list(struct sg_plan_place *out, const struct sg_phase_costs *c)
{
    size_t n = 0, units = c->units_n;
    for (size_t a = 0; a < units; a++)
        for (size_t b = 0; b < units && n < SG_OPTIONS_MAX; b++) out[n++] = (struct sg_plan_place){(uint8_t)a, (uint8_t)b, 0};
    /* The only legal placements where no unit holds the model. */
    for (size_t a = 0; a < units && units <= 8; a++)
        for (size_t b = 0; b < units; b++)
            for (uint8_t q = 1; q < 4 && a != b && n < SG_OPTIONS_MAX; q++)
                if (c->shares[SG_SHARE_FIRST + q - 1].shape.layers > 0)
                    out[n++] = (struct sg_plan_place){(uint8_t)a, (uint8_t)b, q};
    return n;
}

static int first_share(const struct sg_plan_place *p) { return p->quarters ? SG_SHARE_FIRST + p->quarters - 1 : SG_SHARE_ALL; }
static int last_share(const struct sg_plan_place *p) { return SG_SHARE_LAST + p->quarters - 1; }

/* A turn on whole units. A later turn begins with the last token of the answer before, and on the decode unit, so that the state
 * is moved back for a long prompt. */
static void whole_turn(struct sg_price *out, const struct sg_plan_place *p, const struct sg_phase_costs *c, size_t g,
                       const struct sg_plan_task *t)
{
    double turn = c->groups[g].turn, depth = sg_turn_depth(t, turn);
    int stays = turn > 0 && sg_turn_rows(t, turn) <= FEW_TOKENS;
    out->first_prefill = c->prefill[g][stays ? p->decode : p->prefill][SG_SHARE_ALL];
    out->step = c->step[g][p->decode][SG_SHARE_ALL];
    out->first_handoff = 0;
    if (stays || p->prefill == p->decode) return;
    out->first_handoff = sg_link_ms(c->pairs[p->prefill][p->decode].link, c->model, depth + t->prompt);
    if (turn > 0) out->first_handoff += sg_link_ms(c->pairs[p->decode][p->prefill].link, c->model, depth);
}

/* A turn on divided layers: rows pass between the units, a hand-off without state. Several sessions take turns
 * (docs/SCHEDULER.md: requests on several stages do not share a run). */
static void divided_turn(struct sg_price *out, const struct sg_plan_place *p, const struct sg_phase_costs *c, size_t g,
                         const struct sg_plan_task *t)
{
    static const struct sg_model_cost none = {0};
    double a = c->step[g][p->prefill][first_share(p)], b = c->step[g][p->decode][last_share(p)];
    out->first_prefill = c->prefill[g][p->prefill][first_share(p)] + c->prefill[g][p->decode][last_share(p)];
    out->first_handoff = 0;
    out->step = t->sessions * (a + b + sg_link_ms(c->pairs[p->prefill][p->decode].link, &none, 0));
}

static double share_of_layers(const struct sg_plan_place *p, const struct sg_phase_costs *c, int last)
{
    return p->quarters ? c->shares[last ? last_share(p) : first_share(p)].shape.layers / c->model->shape.layers : 1;
}

static const char *excluded_by(const struct sg_plan_place *p, const struct sg_phase_costs *c, const struct sg_plan_task *t)
{
    const uint8_t units[2] = {p->prefill, p->decode};
    double bytes = c->model->file_bytes + sg_task_kv_bytes(c->model, t) + sg_task_checkpoint_bytes(c->model, t);
    for (int i = 0; i < 2; i++)
        if (!c->units[units[i]].named) return "simulated; chosen only when named";
    for (int i = 0; i < 2; i++)
        if (!c->units[units[i]].complete) return "its file states no speed of weights or of products";
    /* Where only prefill is, a unit may have f16: the hand-off converts. */
    for (int i = p->quarters ? 0 : 1; i < 2; i++)
        if (!sg_unit_has_kv(c->units[units[i]].cost, c->model->kv)) return "the unit cannot have K and V in this storage";
    for (int i = 0; i < 2; i++) {
        double memory = c->units[units[i]].cost->memory_bytes;
        if (memory > 0 && share_of_layers(p, c, i) * bytes > memory) return SG_DOES_NOT_FIT;
    }
    return NULL;
}

void sg_placement_price(struct sg_price *out, const struct sg_plan_place *p, const struct sg_phase_costs *c,
                        const struct sg_plan_task *t)
{
    double steps = sg_turn_steps(t);
    struct sg_price first = {0};
    *out = (struct sg_price){.known = -1, .excluded = excluded_by(p, c, t)};
    for (size_t g = 0; g < c->groups_n; g++) {
        struct sg_price turn;
        double turns = c->groups[g].turns;
        if (p->quarters)
            divided_turn(&turn, p, c, g, t);
        else
            whole_turn(&turn, p, c, g, t);
        if (!g) first = turn;
        out->prefill += turn.first_prefill * t->sessions * turns;
        out->handoff += turn.first_handoff * t->sessions * turns;
        out->steps += turn.step * steps * turns;
    }
    out->first_prefill = first.first_prefill, out->first_handoff = first.first_handoff, out->step = first.step;
    if (p->quarters) return;
    const double many = t->turns * t->sessions;
    const struct sg_energy_task task = {{out->prefill + out->handoff, out->steps}, {t->prompt * many, steps * many}};
    out->joules = sg_placement_joules(&c->units[p->prefill].rates, &c->units[p->decode].rates,
                                      &c->pairs[p->prefill][p->decode].beside, c->model, &task, &out->known);
}

/* Spreads of both phases. */
static void spreads_of(double spread[2], const struct sg_plan_place *p, const struct sg_phase_costs *c)
{
    const struct sg_phase_unit *a = &c->units[p->prefill], *b = &c->units[p->decode];
    spread[0] = p->quarters ? fmax(a->spread[0], b->spread[0]) : a->spread[0];
    spread[1] = p->quarters ? fmax(a->spread[1], b->spread[1]) : b->spread[1];
}

/* The factor of an interval of 90 %: spreads weighted by their parts of the time. They are added, not squared: a busy machine
 * slows all parts. */
static double interval_of(const double spread[2], double prefill_ms, double handoff_ms, double steps_ms, double least)
{
    double link = 1.2 * fmax(spread[0], spread[1]), sum = prefill_ms + handoff_ms + steps_ms;
    if (!(sum > 0)) return fmax(least, exp(link));
    return fmax(least, exp((spread[0] * prefill_ms + link * handoff_ms + spread[1] * steps_ms) / sum));
}

static int is_unverified(const struct sg_plan_place *p, const struct sg_phase_costs *c)
{
    if (c->units[p->prefill].cost->assumed || c->units[p->decode].cost->assumed) return 1;
    return p->prefill != p->decode && !c->pairs[p->prefill][p->decode].link;
}

static double error_of(const struct sg_plan_place *p, const struct sg_price *price, const struct sg_phase_costs *c)
{
    double spread[2];
    spreads_of(spread, p, c);
    return interval_of(spread, price->prefill, price->handoff, price->steps, is_unverified(p, c) ? SG_UNVERIFIED : 1);
}

double sg_placement_margin(const struct sg_plan_place *p, const struct sg_price *price, const struct sg_phase_costs *c)
{
    const struct sg_unit_cost *a = c->units[p->prefill].cost, *b = c->units[p->quarters ? p->prefill : p->decode].cost;
    return a->prefill_error > 0 && b->step_error > 0 ? MARGIN * (error_of(p, price, c) - 1) : 0;
}

/* The same unit or units for both phases of divided layers. */
static void name_units(struct sg_option *o, const struct sg_plan_place *p, const struct sg_phase_costs *c)
{
    const char *a = c->units[p->prefill].cost->spec, *b = c->units[p->decode].cost->spec;
    unsigned layers = (unsigned)c->model->shape.layers, cut = (unsigned)(share_of_layers(p, c, 0) * layers + .5);
    if (!p->quarters) {
        snprintf(o->prefill, sizeof o->prefill, "%s", a);
        snprintf(o->decode, sizeof o->decode, "%s", b);
        return;
    }
    snprintf(o->prefill, sizeof o->prefill, "%.63s@0-%u|%.63s@%u-%u", a, cut - 1, b, cut, layers - 1);
    memcpy(o->decode, o->prefill, sizeof o->decode);
}

static void add_terms(struct sg_option *o, const struct sg_plan_place *p, const struct sg_price *price,
                      const struct sg_phase_costs *c, const struct sg_plan_task *t)
{
    struct sg_cost_terms prefill, step;
    const struct sg_model_cost *m = &c->shares[first_share(p)];
    double steps = sg_turn_steps(t), middle = t->depth + t->prompt + steps / 2;
    sg_prefill_ms(NULL, c->units[p->prefill].cost, m, t->prompt, t->depth, t->chunk, &prefill);
    sg_step_ms(NULL, c->units[p->quarters ? p->prefill : p->decode].cost, m, middle, t->sessions, &step);
    steps *= t->turns;
    sg_option_term(o, "prefill products", prefill.products * t->turns);
    sg_option_term(o, "prefill attention", prefill.attention * t->turns);
    sg_option_term(o, "prefill overhead", prefill.overhead * t->turns);
    sg_option_term(o, "hand-off", price->handoff);
    sg_option_term(o, "decode weights", step.weights * steps);
    sg_option_term(o, "decode K and V", step.kv * steps);
    sg_option_term(o, "decode state", step.state * steps);
    sg_option_term(o, "decode overhead", step.overhead * steps);
}

void sg_placement_describe(struct sg_option *o, const struct sg_plan_place *p, const struct sg_price *price,
                           const struct sg_phase_costs *c, const struct sg_plan_task *t)
{
    const struct sg_unit_cost *a = c->units[p->prefill].cost;
    const struct sg_model_cost *m = c->model;
    int one = p->prefill == p->decode;
    double spread[2], least = is_unverified(p, c) ? SG_UNVERIFIED : 1, error = error_of(p, price, c);
    spreads_of(spread, p, c);
    *o = (struct sg_option){.pipeline = p->quarters ? "layers" : one ? "single" : "split",
                            .joules = {-1, -1, -1},
                            .watts = {-1, -1, -1},
                            .joules_least = -1,
                            .alone = one,
                            .excluded = price->excluded,
                            .unverified = is_unverified(p, c),
                            .margin = sg_placement_margin(p, price, c)};
    o->ttft_ms = sg_option_figure(price->first_prefill + price->first_handoff,
                                  interval_of(spread, price->first_prefill, price->first_handoff, 0, least));
    o->token_ms = sg_option_figure(price->step, interval_of(spread, 0, 0, 1, least));
    o->handoff_ms = sg_option_figure(price->first_handoff, interval_of(spread, 0, 1, 0, least));
    int places = one || p->quarters ? 1 : 2;
    o->load_ms = sg_option_figure(a->load_gb_s > 0 ? m->file_bytes / a->load_gb_s * 1e-6 * places : -1, 2);
    o->total_ms = sg_option_figure(sg_price_ms(price), error);
    name_units(o, p, c);
    sg_option_memory(o, m, t);
    o->prefill_bytes = m->file_bytes;
    o->decode_bytes = places == 1 ? 0 : m->file_bytes;
    add_terms(o, p, price, c, t);
    if (price->known > 0) {
        o->joules = sg_option_figure(price->joules, error * ENERGY_ERROR);
        o->watts = sg_option_figure(price->joules / o->total_ms.mid * 1e3, 1.15);
    } else if (price->known == 0 && price->joules > 0)
        o->joules_least = price->joules / (error * ENERGY_ERROR);
}
