/* follow.c: see follow.h. SPDX-License-Identifier: MIT */
#include "plan/follow.h"

#include <stdlib.h>
#include <string.h>
#include "engine/planner/learn.h"
#include "engine/planner/modelcost.h"
#include "engine/planner/options.h"
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

/* Units in processes of their own are measured on request, but never chosen: they compute the same and cost more. */
static bool usable(const struct sg_option *o)
{
    bool whole = !strcmp(o->pipeline, "single") || !strcmp(o->pipeline, "split");
    return whole && strncmp(o->prefill, "proc:", 5) != 0 && strncmp(o->decode, "proc:", 5) != 0;
}

struct follow *follow_open(const segue_model *model)
{
    struct follow *f = out_alloc(sizeof *f);
    const char *why;
    segue_error err;
    f->costs = out_alloc(sizeof *f->costs);
    if (!plan_costs_open(&f->costs->units, &why, &err) && !why && f->costs->units.units_n && read_sizes(model, &f->costs->model))
        return f;
    follow_free(f);
    return NULL;
}

bool follow_choose(struct follow *f, const struct expected_task *t)
{
    struct sg_options *options = out_alloc(sizeof *options);
    struct sg_plan_task task = {.prompt = t->prompt,
                                .output = t->output,
                                .turns = t->turns,
                                .sessions = t->sessions,
                                .depth = t->depth,
                                .chunk = 512};
    struct sg_plan_source source = {.costs = &f->costs->units};
    sg_options_make(options, &source, &f->costs->model, &task);
    const struct sg_option *o = options->choice >= 0 ? &options->list[options->choice] : NULL;
    bool chosen = o && usable(o);
    if (chosen) {
        memcpy(f->prefill, o->prefill, sizeof f->prefill);
        memcpy(f->decode, o->decode, sizeof f->decode);
        f->ttft_ms = o->ttft_ms.mid, f->token_ms = o->token_ms.mid, f->total_ms = o->total_ms.mid;
        f->task = *t;
    }
    free(options);
    return chosen;
}

void follow_say(const struct follow *f)
{
    const struct expected_task *t = &f->task;
    bool split = strcmp(f->prefill, f->decode) != 0;
    char at[48] = "", more[64] = "";
    if (t->depth > 0) snprintf(at, sizeof at, " at depth %.0f", t->depth);
    if (t->turns > 1) snprintf(more, sizeof more, "; %.0f turns", t->turns);
    if (t->sessions > 1) snprintf(more, sizeof more, "; %.0f requests at a time", t->sessions);
    out_note("plan: %s%s%s, expected %.0f ms to the first of %.0f tokens after a prompt of %.0f%s, then %.2f ms each%s",
             f->prefill, split ? " > " : "", split ? f->decode : "", f->ttft_ms, t->output, t->prompt, at, f->token_ms, more);
}

void follow_learn(struct follow *f, const struct follow_run *run)
{
    segue_error err;
    if (!f || strcmp(f->prefill, f->decode) != 0) return;
    struct sg_unit_costs *units = &f->costs->units;
    const struct sg_model_cost *m = &f->costs->model;
    if (run->n > 0 && run->prefill_ms > 0) sg_learn_prefill(units, f->prefill, m, run->n, run->start, 512, run->prefill_ms, 1);
    if (run->token_ms > 0) sg_learn_step(units, f->decode, m, run->depth, run->token_ms, 1);
    sg_learn_watts(units, f->prefill, m, SG_PHASE_PREFILL, run->prefill_w);
    sg_learn_watts(units, f->decode, m, SG_PHASE_STEP, run->step_w);
    /* A cache: what cannot be written is measured again. */
    plan_costs_save(units, NULL, &err);
}

double follow_expected_ms(const struct follow *f, double depth)
{
    const struct sg_unit_cost *u = sg_unit_cost_of(&f->costs->units, f->decode, 0);
    return u ? sg_step_ms(&f->costs->units, u, &f->costs->model, depth, 1, NULL) : f->token_ms;
}

void follow_free(struct follow *f)
{
    if (!f) return;
    free(f->costs);
    free(f);
}
