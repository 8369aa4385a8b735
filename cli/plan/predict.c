/* predict.c: see predict.h. SPDX-License-Identifier: MIT */
#include "plan/predict.h"

#include <math.h>
#include <string.h>
#include "engine/planner/learn.h"

#define CHUNK 512.0

void predict_plan(struct sg_options *out, const struct sg_unit_costs *costs, const struct probe *p, const struct probe_case *c,
                  bool pairs)
{
    struct sg_plan_source source = {.costs = costs};
    struct sg_plan_task task = {.prompt = (double)c->prompt,
                                .output = (double)c->output,
                                .turns = 1,
                                .sessions = 1,
                                .chunk = CHUNK,
                                .depth = (double)c->depth};
    sg_options_make(out, &source, &p->cost, &task);
    for (size_t i = 0; i < out->n; i++)
        if (strcmp(out->list[i].pipeline, "single") != 0 && !(pairs && !strcmp(out->list[i].pipeline, "split")))
            out->list[i].excluded = "not measured";
    out->choice = sg_options_choose(out, &task);
}

const struct sg_option *predict_option(const struct sg_options *o, const struct probe *p, const struct probe_case *c)
{
    for (size_t i = 0; i < o->n; i++)
        if (!strcmp(o->list[i].prefill, p->specs[c->prefill]) && !strcmp(o->list[i].decode, p->specs[c->decode]))
            return &o->list[i];
    return NULL;
}

void predict_learn(struct sg_unit_costs *costs, const struct probe *p, const struct probe_case *c, const struct probe_times *t)
{
    double prompt = (double)c->prompt, depth = (double)c->depth, steps = (double)c->output - 1;
    sg_learn_prefill(costs, p->specs[c->prefill], &p->cost, prompt, depth, CHUNK, fmax(0, t->ttft_ms - t->handoff_ms));
    sg_learn_step(costs, p->specs[c->decode], &p->cost, depth + prompt + steps / 2, t->token_ms);
}
