/* predict.c: see predict.h. SPDX-License-Identifier: MIT */
#include "plan/predict.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/buf.h"
#include "engine/planner/learn.h"
#include "term/out.h"

#define CHUNK 512.0

/* The mean depth of the steps of a case. */
static double middle_of(const struct probe_case *c)
{
    return (double)c->depth + (double)c->prompt + ((double)c->output - 1) / 2;
}

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

void predict_laws(const struct sg_unit_costs *costs, const struct probe *p, const struct probe_case *c, double *ttft_ms,
                  double *token_ms)
{
    double prompt = (double)c->prompt, depth = (double)c->depth;
    *ttft_ms = *token_ms = 0;
    for (size_t i = 0; i < costs->units_n; i++) {
        const struct sg_unit_cost *u = &costs->units[i];
        if (!strcmp(u->spec, p->specs[c->prefill])) *ttft_ms = sg_prefill_ms(NULL, u, &p->cost, prompt, depth, CHUNK, NULL);
        if (!strcmp(u->spec, p->specs[c->decode])) *token_ms = sg_step_ms(NULL, u, &p->cost, middle_of(c), 1, NULL);
    }
}

char *predict_calibration(const struct sg_unit_costs *costs)
{
    struct sg_buf text = {0};
    sg_unit_costs_write(costs, &text);
    char *out = out_strdup(text.data ? text.data : "");
    sg_buf_free(&text);
    return out;
}

void predict_learn(struct sg_unit_costs *costs, const struct probe *p, const struct probe_case *c, const struct probe_times *t,
                   size_t n)
{
    double prompt = (double)c->prompt, depth = (double)c->depth, v[PROBE_SAMPLES];
    for (size_t u = 0; u < p->units_n; u++)
        for (int phase = 0; phase < 2; phase++) {
            size_t k = 0;
            for (size_t i = 0; i < n && k < PROBE_SAMPLES; i++)
                if ((phase == SG_PHASE_PREFILL ? c[i].prefill : c[i].decode) == u)
                    v[k++] = phase == SG_PHASE_PREFILL ? fmax(0, t[i].ttft_ms - t[i].handoff_ms) : t[i].token_ms;
            if (!k) continue;
            qsort(v, k, sizeof *v, probe_compare);
            double median = (v[k / 2] + v[(k - 1) / 2]) / 2;
            if (phase == SG_PHASE_PREFILL)
                sg_learn_prefill(costs, p->specs[u], &p->cost, prompt, depth, CHUNK, median, (double)k);
            else
                sg_learn_step(costs, p->specs[u], &p->cost, middle_of(c), median, (double)k);
        }
}
