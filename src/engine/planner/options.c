/* options.c: see options.h. SPDX-License-Identifier: MIT */
#include "engine/planner/options.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "engine/planner/published.h"
#include "engine/planner/unitenergy.h"

/* Checkpoints of a session, docs/STATE.md: at most this many of the fixed part. */
enum { CHECKPOINTS = 8, CROSSOVER_STEPS = 4, PROMPT_MAX = 65536 };

/* Factor of the intervals of a chip of which nothing was measured. */
#define UNVERIFIED 2.0
/* Two placements count as equal when they differ by less than this share of the interval: learned factors scatter by a
 * quarter of what single runs do. */
#define MARGIN .25
/* Watts are off by so much beside the times. */
#define ENERGY_ERROR 1.1

static struct sg_figure figure(double mid, double factor)
{
    return mid < 0 ? (struct sg_figure){-1, -1, -1} : (struct sg_figure){mid, mid / factor, mid * factor};
}

static void add_term(struct sg_option *o, const char *name, double ms)
{
    if (!(ms > 0) || o->terms_n == SG_TERMS) return;
    o->terms[o->terms_n].name = name;
    o->terms[o->terms_n++].ms = ms;
}

/* What a session of this task holds at its end. */
static void memory_of(struct sg_option *o, const struct sg_model_cost *m, const struct sg_plan_task *t)
{
    double positions = t->depth + t->turns * (t->prompt + t->output);
    o->kv_bytes = t->sessions * (m->kv_bytes * positions + m->state_bytes);
    o->checkpoint_bytes = m->state_bytes > 0 ? CHECKPOINTS * m->state_bytes * t->sessions : 0;
    o->disk_bytes = m->disk_bytes > 0 ? m->disk_bytes : m->file_bytes;
}

/* --- published pipelines --- */

static const struct published_option {
    enum sg_pipeline pipeline;
    const char *name, *prefill, *decode;
    double factor; /* of the interval */
} published[] = {
    {SG_PIPE_GPU, "gpu", "gpu", "gpu", 1.15},
    {SG_PIPE_FIXED, "fixed", "npu", "gpu", 1.4},
    {SG_PIPE_NPU_SEQ, "npu-seq", "npu", "npu", 1.3},
    {SG_PIPE_SEQ_GPU, "npu-seq+gpu", "npu", "gpu", 1.3},
    {SG_PIPE_NPU_BATCH, "npu-batch", "npu", "npu", 1.3},
    {SG_PIPE_BATCH_GPU, "npu-batch+gpu", "npu", "gpu", 1.3},
};

/* NPU power is known of two phases of one chip only: 5.6 and 7.0 W beside a GPU at 0.2 W (README of the measurements). */
#define NPU_PREFILL_W 5.57
#define NPU_STEP_W 7.05

static void published_energy(struct sg_option *o, const struct published_option *p, const struct sg_published_cost *c,
                             double total_ms, double decode_ms, double factor)
{
    double step = p->decode[0] == 'g' ? c->step_gpu_w + c->cpu_w : NPU_STEP_W, prefill_ms = total_ms - decode_ms;
    double prefill = p->prefill[0] == 'g' ? c->prefill_gpu_w + c->cpu_w : NPU_PREFILL_W;
    double joules = (prefill * prefill_ms + step * decode_ms) * 1e-3;
    o->joules = figure(joules, factor * 1.15);
    o->watts = figure(total_ms > 0 ? joules / total_ms * 1e3 : 0, 1.15 * factor);
}

/* Each turn reads its prompt at the depth that the turns before left; published pipelines have no cost of depth in prefill. */
static void add_published(struct sg_options *out, const struct sg_plan_source *s, const struct published_option *p,
                          const struct sg_model_cost *m, const struct sg_plan_task *t)
{
    struct sg_option *o = &out->list[out->n];
    struct sg_published_cost c, gpu;
    struct sg_published_task task = {.shared = s->chips->shared,
                                     .chip = s->chip,
                                     .shape = &m->shape,
                                     .pipeline = p->pipeline,
                                     .prompt = t->prompt,
                                     .output = t->output};
    task.bytes = (m->body_bytes + m->head_bytes) / (m->shape.body + m->shape.head);
    task.unpacked = m->class == SG_CLASS_SUPER;
    *o = (struct sg_option){.pipeline = p->name, .joules = {-1, -1, -1}, .watts = {-1, -1, -1}, .joules_least = -1,
                            .alone = !strcmp(p->prefill, p->decode)};
    snprintf(o->prefill, sizeof o->prefill, "%s", p->prefill);
    snprintf(o->decode, sizeof o->decode, "%s", p->decode);
    o->excluded = sg_published_cost(&task, &c);
    o->unverified = sg_chip_unverified(s->chip);
    if (o->excluded) {
        o->ttft_ms = o->token_ms = o->handoff_ms = o->load_ms = o->total_ms = o->joules;
        out->n++;
        return;
    }
    /* segue converts the state to the decoder's type, so that a hand-off does not slow decode down as it did in P5. */
    task.pipeline = SG_PIPE_GPU;
    sg_published_cost(&task, &gpu);
    if (p->pipeline == SG_PIPE_BATCH_GPU) c.step_ms = gpu.step_ms;
    c.step_gpu_w = gpu.step_gpu_w, c.cpu_w = gpu.cpu_w, c.prefill_gpu_w = gpu.prefill_gpu_w;
    double factor = o->unverified                                                                    ? UNVERIFIED
                    : s->chip->source[SG_CHIP_NPU_STREAM] < SG_SOURCE_FITTED && p->prefill[0] == 'n' ? 1.7
                                                                                                     : p->factor;
    double decode = c.step_ms * fmax(0, t->output - 1) * t->turns, first = c.prefill_ms + c.handoff_ms;
    o->ttft_ms = figure(first, factor);
    o->token_ms = figure(c.step_ms, factor);
    o->handoff_ms = figure(c.handoff_ms, factor);
    o->load_ms = figure(c.load_ms, factor);
    o->total_ms = figure(first * t->turns + decode, factor);
    add_term(o, "prefill", c.prefill_ms * t->turns);
    add_term(o, "hand-off", c.handoff_ms * t->turns);
    add_term(o, "decode", decode);
    memory_of(o, m, t);
    o->prefill_bytes = p->prefill[0] == 'n' ? 2 * (m->shape.body + m->shape.head) : m->file_bytes;
    o->decode_bytes = strcmp(p->prefill, p->decode) ? m->file_bytes : o->prefill_bytes;
    if (p->prefill[0] == 'n') o->disk_bytes += o->prefill_bytes;
    /* Core ML chose its unit itself, and its power was read over minutes of compilation only. */
    if (p->pipeline != SG_PIPE_FIXED) published_energy(o, p, &c, o->total_ms.mid, decode, factor);
    out->n++;
}

/* --- measured units --- */

/* A unit with its share of the layers. */
struct unit_share {
    const struct sg_unit_cost *unit;
    double share; /* of the layers; 1: all */
};

static struct sg_model_cost part_of(const struct sg_model_cost *m, double share, int head)
{
    struct sg_model_cost p = *m;
    p.shape.layers *= share, p.shape.body *= share, p.body_bytes *= share;
    p.kv_bytes *= share, p.attend *= share, p.state_bytes *= share;
    if (!head) p.shape.head = p.head_bytes = 0;
    return p;
}

/* Sums of one turn at a depth. step: one step in the middle of the answer. */
struct turn_cost {
    double prefill, handoff, step, slowest_step;
    struct sg_cost_terms prefill_terms, step_terms;
};

/* Up to so many new tokens of a later turn are read on the decode unit (src/engine/session/advance.c). */
enum { FEW_TOKENS = 16 };

/* The first token of an answer comes with the prefill, the others take a step each. A later turn begins with the last token of
 * the answer before, and on the decode unit, so that the state is moved back for a long prompt. */
static struct turn_cost turn_of(const struct sg_plan_source *s, const struct unit_share *prefill, const struct unit_share *decode,
                                const struct sg_model_cost *m, const struct sg_plan_task *t, int turn)
{
    struct turn_cost c = {0};
    double depth = t->depth + turn * (t->prompt + t->output), rows = t->prompt + (turn > 0), steps = fmax(0, t->output - 1);
    const char *from = prefill[0].unit->spec, *to = decode[0].unit->spec;
    int stays = turn && rows <= FEW_TOKENS;
    const struct unit_share *reads = stays ? decode : prefill;
    for (int i = 0; i < 2; i++) {
        if (reads[i].share > 0) {
            struct sg_model_cost p = part_of(m, reads[i].share, i || reads[0].share >= 1);
            c.prefill += sg_prefill_ms(s->costs, reads[i].unit, &p, rows, depth, t->chunk, i ? NULL : &c.prefill_terms);
        }
        if (decode[i].share > 0) {
            struct sg_model_cost p = part_of(m, decode[i].share, i || decode[0].share >= 1);
            double middle = depth + t->prompt + steps / 2;
            double step = sg_step_ms(s->costs, decode[i].unit, &p, middle, t->sessions, i ? NULL : &c.step_terms);
            c.step += step;
            c.slowest_step = fmax(c.slowest_step, step);
        }
    }
    /* Rows that pass between the units of one phase: a hand-off without state. */
    if (decode[1].share > 0) c.step += sg_handoff_ms(s->costs, to, decode[1].unit->spec, &(struct sg_model_cost){0}, 0);
    if (!stays) c.handoff = sg_handoff_ms(s->costs, from, to, m, depth + t->prompt);
    if (!stays && turn) c.handoff += sg_handoff_ms(s->costs, to, from, m, depth);
    return c;
}

/* Spreads of both phases of a placement. */
static void spreads_of(double spread[2], const struct sg_plan_source *s, const struct unit_share *prefill,
                       const struct unit_share *decode, const struct sg_model_cost *m)
{
    spread[0] = spread[1] = 0;
    for (int i = 0; i < 2; i++) {
        if (prefill[i].share > 0) spread[0] = fmax(spread[0], sg_spread(s->costs, prefill[i].unit, m->key, SG_PHASE_PREFILL));
        if (decode[i].share > 0) spread[1] = fmax(spread[1], sg_spread(s->costs, decode[i].unit, m->key, SG_PHASE_STEP));
    }
}

/* The factor of an interval of 90 %: spreads weighted by their parts of the time. They are added, not squared: a busy machine
 * slows all parts. */
static double interval_of(const double spread[2], double prefill_ms, double handoff_ms, double steps_ms, double least)
{
    double link = 1.2 * fmax(spread[0], spread[1]), sum = prefill_ms + handoff_ms + steps_ms;
    if (!(sum > 0)) return fmax(least, exp(link));
    return fmax(least, exp((spread[0] * prefill_ms + link * handoff_ms + spread[1] * steps_ms) / sum));
}

static int is_assumed(const struct unit_share *u)
{
    return (u[0].share > 0 && u[0].unit->assumed) || (u[1].share > 0 && u[1].unit->assumed);
}

static int is_named(const struct sg_plan_task *t, const char *spec)
{
    for (size_t i = 0; i < t->named_n; i++)
        if (!strcmp(t->named[i], spec)) return 1;
    return 0;
}

/* 1: one of the units is simulated and was not named. */
static int needs_name(const struct unit_share *u, const struct sg_plan_task *t)
{
    for (int i = 0; i < 2; i++)
        if (u[i].share > 0 && u[i].unit->simulated > 0 && !is_named(t, u[i].unit->spec)) return 1;
    return 0;
}

static void name_unit(char out[64], const struct unit_share *u, double layers)
{
    unsigned cut = (unsigned)(u[0].share * layers + .5);
    if (u[1].share > 0)
        snprintf(out, 64, "%.20s@0-%u|%.20s@%u-%u", u[0].unit->spec, cut - 1, u[1].unit->spec, cut, (unsigned)layers - 1);
    else
        memcpy(out, u[0].unit->spec, 64);
}

/* Why the unit cannot hold its share of the task. */
static const char *does_not_fit(const struct unit_share *u, const struct sg_option *o, const struct sg_model_cost *m)
{
    for (int i = 0; i < 2; i++)
        if (u[i].share > 0 && u[i].unit->memory_bytes > 0 &&
            u[i].share * (m->file_bytes + o->kv_bytes + o->checkpoint_bytes) > u[i].unit->memory_bytes)
            return "does not fit in the unit's memory";
    return NULL;
}

static void measured_terms(struct sg_option *o, const struct turn_cost *first, double handoff, const struct sg_plan_task *t)
{
    double steps = fmax(0, t->output - 1);
    add_term(o, "prefill products", first->prefill_terms.products * t->turns);
    add_term(o, "prefill attention", first->prefill_terms.attention * t->turns);
    add_term(o, "prefill overhead", first->prefill_terms.overhead * t->turns);
    add_term(o, "hand-off", handoff);
    add_term(o, "decode weights", first->step_terms.weights * steps * t->turns);
    add_term(o, "decode K and V", first->step_terms.kv * steps * t->turns);
    add_term(o, "decode state", first->step_terms.state * steps * t->turns);
    add_term(o, "decode overhead", first->step_terms.overhead * steps * t->turns);
}

static void measured_energy(struct sg_option *o, const struct sg_unit_costs *c, const struct unit_share *prefill,
                            const struct unit_share *decode, const struct sg_model_cost *m, const struct sg_energy_task *task,
                            double error)
{
    int known;
    double joules = sg_placement_joules(c, prefill->unit, decode->unit, m, task, &known);
    if (known > 0) {
        o->joules = figure(joules, error * ENERGY_ERROR);
        o->watts = figure(joules / o->total_ms.mid * 1e3, 1.15);
    } else if (known == 0 && joules > 0)
        o->joules_least = joules / (error * ENERGY_ERROR);
}

static void add_measured(struct sg_options *out, const struct sg_plan_source *s, const struct unit_share *prefill,
                         const struct unit_share *decode, const struct sg_model_cost *m, const struct sg_plan_task *t)
{
    if (out->n == SG_OPTIONS_MAX) return;
    struct sg_option *o = &out->list[out->n++];
    const struct sg_unit_cost *a = prefill[0].unit, *b = decode[0].unit;
    struct turn_cost first = turn_of(s, prefill, decode, m, t, 0), sum = {0};
    double steps = fmax(0, t->output - 1);
    int split = prefill[1].share > 0 || decode[1].share > 0;
    *o = (struct sg_option){.pipeline = split    ? "layers"
                                        : a == b ? "single"
                                                 : "split",
                            .joules = {-1, -1, -1},
                            .watts = {-1, -1, -1},
                            .joules_least = -1,
                            .alone = !split && a == b};
    for (int i = 0; i < t->turns; i++) {
        struct turn_cost c = i ? turn_of(s, prefill, decode, m, t, i) : first;
        sum.prefill += c.prefill * t->sessions, sum.handoff += c.handoff * t->sessions, sum.step += c.step * steps;
        /* With several sessions the units of a layer split work at the same time. */
        if (split && t->sessions > 1) sum.step += (c.slowest_step - c.step) * steps;
    }
    const struct unit_share *last = &decode[decode[1].share > 0];
    o->unverified = is_assumed(prefill) || is_assumed(decode) || !sg_link_known(s->costs, a->spec, b->spec) ||
                    !sg_link_known(s->costs, b->spec, last->unit->spec);
    double spread[2], least = o->unverified ? UNVERIFIED : 1;
    spreads_of(spread, s, prefill, decode, m);
    double error = interval_of(spread, sum.prefill, sum.handoff, sum.step, least);
    if (a->prefill_error > 0 && b->step_error > 0) o->margin = MARGIN * (error - 1);
    o->ttft_ms = figure(first.prefill + first.handoff, interval_of(spread, first.prefill, first.handoff, 0, least));
    o->token_ms = figure(first.step, interval_of(spread, 0, 0, 1, least));
    o->handoff_ms = figure(first.handoff, interval_of(spread, 0, 1, 0, least));
    o->load_ms = figure(a->load_gb_s > 0 ? m->file_bytes / a->load_gb_s * 1e-6 * (a == b ? 1 : 2) : -1, 2);
    o->total_ms = figure(sum.prefill + sum.handoff + sum.step, error);
    if (!out->unnamed) {
        name_unit(o->prefill, prefill, m->shape.layers);
        name_unit(o->decode, decode, m->shape.layers);
    }
    memory_of(o, m, t);
    o->prefill_bytes = m->file_bytes;
    o->decode_bytes = a == b ? 0 : m->file_bytes;
    measured_terms(o, &first, sum.handoff, t);
    if (!split) {
        const double many = t->turns * t->sessions;
        struct sg_energy_task task = {{sum.prefill + sum.handoff, sum.step}, {t->prompt * many, steps * many}};
        measured_energy(o, s->costs, prefill, decode, m, &task, error);
    }
    if (needs_name(prefill, t) || needs_name(decode, t)) o->excluded = "simulated; chosen only when named";
    if (!o->excluded) o->excluded = does_not_fit(prefill, o, m);
    if (!o->excluded) o->excluded = does_not_fit(decode, o, m);
}

static void all_measured(struct sg_options *out, const struct sg_plan_source *s, const struct sg_model_cost *m,
                         const struct sg_plan_task *t)
{
    const struct sg_unit_costs *c = s->costs;
    for (size_t a = 0; a < c->units_n; a++)
        for (size_t b = 0; b < c->units_n; b++) {
            struct unit_share prefill[2] = {{&c->units[a], 1}, {NULL, 0}}, decode[2] = {{&c->units[b], 1}, {NULL, 0}};
            add_measured(out, s, prefill, decode, m, t);
        }
    /* Layers divided over two units in quarters: the only legal placements where no unit holds the model. */
    for (size_t a = 0; a < c->units_n && c->units_n <= 8; a++)
        for (size_t b = 0; b < c->units_n; b++)
            for (int quarter = 1, last = -1; quarter < 4 && a != b; quarter++) {
                int cut = (int)(m->shape.layers * quarter / 4);
                if (cut < 1 || cut == last || (c->units_n > 4 && quarter != 2)) continue;
                last = cut;
                double share = cut / m->shape.layers;
                struct unit_share parts[2] = {{&c->units[a], share}, {&c->units[b], 1 - share}};
                add_measured(out, s, parts, parts, m, t);
            }
}

/* --- choice --- */

static double value_of(const struct sg_option *o, segue_objective objective)
{
    return objective == SEGUE_OBJECTIVE_ENERGY ? o->joules.mid : o->total_ms.mid;
}

static int may_be_chosen(const struct sg_option *p, const struct sg_plan_task *t, segue_objective objective)
{
    if (p->excluded || value_of(p, objective) < 0) return 0;
    return !(t->max_watts > 0) || (p->watts.mid >= 0 && p->watts.mid <= t->max_watts);
}

/* The first unit alone, else the first placement, whose value is not above the least one by more than its margin. */
static int best_of(const struct sg_options *o, const struct sg_plan_task *t, segue_objective objective)
{
    int least = -1;
    for (size_t i = 0; i < o->n; i++)
        if (may_be_chosen(&o->list[i], t, objective) &&
            (least < 0 || value_of(&o->list[i], objective) < value_of(&o->list[least], objective)))
            least = (int)i;
    if (least < 0) return -1;
    double limit = value_of(&o->list[least], objective) * (1 + o->list[least].margin + 1e-9);
    for (int split = 0; split < 2; split++)
        for (size_t i = 0; i < o->n; i++) {
            const struct sg_option *p = &o->list[i];
            if (!split && !p->alone) continue;
            if (may_be_chosen(p, t, objective) && value_of(p, objective) <= limit) return (int)i;
        }
    return least;
}

int sg_options_choose(const struct sg_options *o, const struct sg_plan_task *task) { return best_of(o, task, task->objective); }

static void fill(struct sg_options *out, const struct sg_plan_source *s, const struct sg_model_cost *m,
                 const struct sg_plan_task *t)
{
    const struct sg_model_cost *first = m;
    out->n = 0;
    for (; m; m = m->also) {
        size_t from = out->n;
        if (s->costs) all_measured(out, s, m, t);
        for (size_t i = 0; !s->costs && i < sizeof published / sizeof *published && out->n < SG_OPTIONS_MAX; i++)
            add_published(out, s, &published[i], m, t);
        for (size_t i = from; i < out->n; i++) out->list[i].storage = m->storage, out->list[i].converted = m != first;
    }
}

/* Best placements for time and energy at a prompt length, as indices: the list has the same order at every length. */
struct winners {
    int of[2];
};
static const segue_objective best_for[2] = {SEGUE_OBJECTIVE_LATENCY, SEGUE_OBJECTIVE_ENERGY};

static struct winners best_at(double prompt, const struct sg_plan_source *s, const struct sg_model_cost *m,
                           const struct sg_plan_task *task, struct sg_options *scratch)
{
    struct sg_plan_task t = *task;
    t.prompt = prompt;
    fill(scratch, s, m, &t);
    return (struct winners){{best_of(scratch, &t, best_for[0]), best_of(scratch, &t, best_for[1])}};
}

/* The length between low, where `now` is the best one, and high, where it is not. */
static double change_between(double low, double high, int k, int now, const struct sg_plan_source *s,
                             const struct sg_model_cost *m, const struct sg_plan_task *task, struct sg_options *scratch)
{
    while (fabs(high - low) > 1) {
        double middle = floor((low + high) / 2);
        int best = best_at(middle, s, m, task, scratch).of[k];
        if (best == now)
            low = middle;
        else
            high = middle;
    }
    return high;
}

/* at: for time and energy the smallest prompt length above the task's at which another placement wins; if there is none above,
 * the largest below; 0: none. The costs have steps, so lengths are tried one after the other, closer together than the steps,
 * then halved. */
static void crossovers(double at[2], struct winners now, const struct sg_plan_source *s, const struct sg_model_cost *m,
                       const struct sg_plan_task *task, struct sg_options *scratch)
{
    for (int up = 1; up >= 0; up--)
        for (double here = fmax(1, task->prompt), next;; here = next) {
            double step = fmax(1, floor(here / CROSSOVER_STEPS));
            next = up ? here + step : here - step;
            if (next < 1 || next > PROMPT_MAX) break;
            int open = 0;
            for (int k = 0; k < 2; k++) open |= now.of[k] >= 0 && !(at[k] > 0);
            if (!open) return;
            struct winners best = best_at(next, s, m, task, scratch);
            for (int k = 0; k < 2; k++)
                if (now.of[k] >= 0 && !(at[k] > 0) && best.of[k] >= 0 && best.of[k] != now.of[k])
                    at[k] = change_between(here, next, k, now.of[k], s, m, task, scratch);
        }
}

void sg_options_make(struct sg_options *out, const struct sg_plan_source *source, const struct sg_model_cost *model,
                     const struct sg_plan_task *task)
{
    struct sg_options *scratch = sg_alloc(sizeof *scratch);
    double largest = 0;
    out->unnamed = 0;
    fill(out, source, model, task);
    out->choice = best_of(out, task, task->objective);
    out->dominant = NULL;
    for (size_t i = 0; out->choice >= 0 && i < out->list[out->choice].terms_n; i++)
        if (out->list[out->choice].terms[i].ms > largest) {
            largest = out->list[out->choice].terms[i].ms;
            out->dominant = out->list[out->choice].terms[i].name;
        }
    struct winners now = {{best_of(out, task, best_for[0]), best_of(out, task, best_for[1])}};
    double at[2] = {0, 0};
    if (scratch) {
        scratch->unnamed = 1;
        crossovers(at, now, source, model, task, scratch);
    }
    out->crossover = at[0], out->energy_crossover = at[1];
    sg_free(scratch);
}
