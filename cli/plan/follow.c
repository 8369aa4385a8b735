/* follow.c: see follow.h. SPDX-License-Identifier: MIT */
#include "plan/follow.h"

#include <stdlib.h>
#include <string.h>
#include "engine/planner/learn.h"
#include "engine/planner/modelcost.h"
#include "model/model.h"
#include "plan/plan_files.h"
#include "term/out.h"

struct follow_costs {
    struct sg_unit_costs units;
    struct sg_model_cost model;
};

/* Sizes of an open model. */
static bool read_sizes(const segue_model *model, struct sg_model_cost *out)
{
    struct sg_graph_request request = {.head = 1};
    segue_model_info info = SEGUE_INIT(segue_model_info);
    struct sg_graph *graph = NULL;
    segue_error err;
    if (segue_model_info_get(model, &info, &err) || sg_model_graph(model, &request, &graph, &err)) return false;
    sg_model_cost_graph(out, graph);
    out->file_bytes = (double)info.weight_bytes;
    snprintf(out->key, sizeof out->key, "%.8s-%.20s", info.shape_id, sg_model_storage(graph));
    sg_graph_free(graph);
    return true;
}

struct follow *follow_open(const segue_model *model, const char **why)
{
    struct follow *f = out_alloc(sizeof *f);
    segue_error err;
    f->costs = out_alloc(sizeof *f->costs);
    *why = NULL;
    if (!plan_costs_open(&f->costs->units, why, &err) && !*why && f->costs->units.units_n && read_sizes(model, &f->costs->model))
        return f;
    if (!*why) *why = "the calibration has no units, or the sizes of the model are not known; run segue calibrate";
    follow_free(f);
    return NULL;
}

/* True: run, chat and serve may follow the placement. A unit in a process of its own is measured on request, but computes the
 * same and costs more. */
static bool followed(const struct sg_option *o) { return !strstr(o->prefill, "proc:") && !strstr(o->decode, "proc:"); }

static bool divided(const char *units) { return strchr(units, '@') != NULL; }

/* The choice among the placements that are followed; layers are divided only where no unit holds the model. */
static int choose(struct sg_options *o, const struct sg_plan_task *task)
{
    static const char named[] = "chosen only when named", whole[] = "whole units come first";
    for (size_t i = 0; i < o->n; i++) {
        struct sg_option *p = &o->list[i];
        if (!p->excluded) p->excluded = !followed(p) ? named : divided(p->prefill) ? whole : NULL;
    }
    int choice = sg_options_choose(o, task);
    for (size_t i = 0; i < o->n && choice < 0; i++)
        if (o->list[i].excluded == whole) o->list[i].excluded = NULL;
    return choice < 0 ? sg_options_choose(o, task) : choice;
}

/* With K and V as this run has them. */
static struct sg_model_cost model_of(const struct follow *f, int kv)
{
    struct sg_model_cost m;
    sg_model_cost_kv(&m, &f->costs->model, kv);
    return m;
}

/* The placements of a task, and the choice among those that can be followed. The options are freed by the caller. */
static struct sg_options *options_of(const struct follow *f, const struct expected_task *t)
{
    struct sg_options *o = out_alloc(sizeof *o);
    const struct sg_model_cost model = model_of(f, t->kv);
    const struct sg_plan_task task = {.prompt = t->prompt,
                                      .output = t->output,
                                      .turns = t->turns,
                                      .sessions = t->sessions,
                                      .depth = t->depth,
                                      .chunk = t->chunk};
    const struct sg_plan_source source = {.costs = &f->costs->units};
    sg_options_make(o, &source, &model, &task);
    o->choice = choose(o, &task);
    return o;
}

/* The next placement in time, and what takes most of it. */
static void explain(char out[FOLLOW_WHY], const struct sg_options *o)
{
    const struct sg_option *c = &o->list[o->choice], *next = NULL;
    const char *largest = sg_option_dominant(c);
    size_t n = 0;
    for (size_t i = 0; i < o->n; i++) {
        const struct sg_option *p = &o->list[i];
        if (p->excluded) continue;
        n++;
        if (p != c && (!next || p->total_ms.mid < next->total_ms.mid)) next = p;
    }
    int at = largest ? snprintf(out, FOLLOW_WHY, "mostly %s; ", largest) : 0;
    if (!next)
        snprintf(out + at, FOLLOW_WHY - (size_t)at, "the only placement");
    else if (next->total_ms.mid < c->total_ms.mid)
        snprintf(out + at, FOLLOW_WHY - (size_t)at, "none of %zu placements is clearly faster", n);
    else
        snprintf(out + at, FOLLOW_WHY - (size_t)at, "least of %zu placements, next %.60s%s%.60s: %.2f times as long", n,
                 next->prefill, next->alone ? "" : " > ", next->alone ? "" : next->decode, next->total_ms.mid / c->total_ms.mid);
}

bool follow_choose(struct follow *f, const struct expected_task *t)
{
    struct sg_options *options = options_of(f, t);
    const struct sg_option *o = options->choice >= 0 ? &options->list[options->choice] : NULL;
    if (o) {
        memcpy(f->prefill, o->prefill, sizeof f->prefill);
        memcpy(f->decode, o->decode, sizeof f->decode);
        f->ttft_ms = o->ttft_ms, f->token_ms = o->token_ms, f->total_ms = o->total_ms;
        f->task = *t;
        explain(f->why, options);
    }
    free(options);
    return o != NULL;
}

void follow_leave_out(struct follow *f, const char *unit)
{
    struct sg_unit_costs *c = &f->costs->units;
    for (size_t i = 0; i < c->units_n; i++)
        if (!strcmp(c->units[i].spec, unit)) {
            memmove(&c->units[i], &c->units[i + 1], (--c->units_n - i) * sizeof *c->units);
            return;
        }
}

void follow_say(const struct follow *f)
{
    const struct expected_task *t = &f->task;
    bool split = strcmp(f->prefill, f->decode) != 0;
    char at[48] = "", more[64] = "";
    if (t->depth > 0) snprintf(at, sizeof at, " at depth %.0f", t->depth);
    if (t->turns > 1) snprintf(more, sizeof more, "; %.0f turns", t->turns);
    if (t->sessions > 1) snprintf(more, sizeof more, "; %.0f requests at a time", t->sessions);
    out_note("plan: %s%s%s, expected %.3g ms to the first of %.0f tokens after a prompt of %.0f%s, then %.3g ms each%s (%s)",
             f->prefill, split ? " > " : "", split ? f->decode : "", f->ttft_ms.mid, t->output, t->prompt, at, f->token_ms.mid,
             more, f->why);
}

/* of: words, key, unit of measure. */
static void add_proof(struct follow *f, const char *const of[3], struct sg_figure expected, double measured)
{
    if (expected.mid > 0 && measured > 0)
        f->proved[f->proved_n++] = (struct follow_proof){of[0], of[1], of[2], expected, measured};
}

void follow_prove(struct follow *f, const struct follow_run *run)
{
    static const char *const figures[FOLLOW_PROVED][3] = {{"first token after", "ttft_ms", "ms"},
                                                          {"each further one", "token_ms", "ms"},
                                                          {"energy", "j", "J"}};
    struct expected_task t = f->task;
    t.depth = run->start, t.prompt = run->n > 1 ? run->n : 1, t.output = run->output, t.turns = t.sessions = 1;
    struct sg_options *options = options_of(f, &t);
    f->proved_n = 0;
    for (size_t i = 0; i < options->n; i++) {
        const struct sg_option *o = &options->list[i];
        if (strcmp(o->prefill, f->prefill) != 0 || strcmp(o->decode, f->decode) != 0) continue;
        add_proof(f, figures[0], o->ttft_ms, run->first_ms);
        add_proof(f, figures[1], o->token_ms, run->token_ms);
        add_proof(f, figures[2], o->joules, run->joules);
        break;
    }
    free(options);
}

void follow_learn(struct follow *f, const struct follow_run *run)
{
    segue_error err;
    const char *why;
    if (!f || strcmp(f->prefill, f->decode) != 0 || divided(f->prefill)) return;
    struct sg_unit_costs *units = &f->costs->units;
    const struct sg_model_cost m = model_of(f, f->task.kv);
    /* Another process may have learned, or calibrated, since this one planned. */
    if (plan_costs_open(units, &why, &err) || why) return;
    if (run->n > 0 && run->prefill_ms > 0)
        sg_learn_prefill(units, f->prefill, &m, run->n, run->start, f->task.chunk, run->prefill_ms, 1);
    if (run->token_ms > 0) sg_learn_step(units, f->decode, &m, run->depth, run->token_ms, 1);
    sg_learn_watts(units, f->prefill, &m, SG_PHASE_PREFILL, run->prefill_w);
    sg_learn_watts(units, f->decode, &m, SG_PHASE_STEP, run->step_w);
    /* A cache: what cannot be written is measured again. */
    plan_costs_save(units, NULL, &err);
}

void follow_free(struct follow *f)
{
    if (!f) return;
    free(f->costs);
    free(f);
}
