/* plan_crossover.c: the length at which the choice changes agrees with plans at both sides of it, for units, models and tasks
 * drawn at random. SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/planner/options.h"

enum { TASKS = 120, LENGTHS = 12, LONGEST = 65536 };

static struct sg_unit_costs costs;
static struct sg_options options;
static struct sg_model_cost model;
static const struct sg_plan_source source = {.costs = &costs};

static uint64_t seed = 1;
static double draw(double low, double high)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return low * pow(high / low, (double)(seed >> 11) / 9007199254740992.0);
}

static void draw_units(void)
{
    costs = (struct sg_unit_costs){0};
    size_t n = (size_t)draw(2, 5.999);
    for (size_t i = 0; i < n; i++) {
        char name[24];
        snprintf(name, sizeof name, "u%zu", i);
        struct sg_unit_cost *u = sg_unit_cost_of(&costs, name, 1);
        u->step_ms = draw(.01, 1), u->step_layer_ms = draw(.001, .1), u->run_ms = draw(.1, 100), u->run_layer_ms = draw(.01, 1);
        u->gb_s[SG_CLASS_WIDE] = draw(10, 1000);
        for (int r = 0; r < SG_ROWS_N; r++) u->tflops[SG_CLASS_WIDE][r] = draw(.1, 1) * sg_rows_of[r] / 16;
        sg_mend_speeds(u, SG_CLASS_WIDE, 2);
        u->kv_gb_s = draw(5, 500), u->attend_tflops = draw(.1, 50), u->attend_few_tflops = u->attend_tflops / draw(1, 8);
        u->state_gb_s = draw(10, 1000);
        u->step_w = draw(5, 500), u->prefill_w = draw(5, 500), u->idle_w = draw(1, 100);
        u->prefill_error = u->step_error = draw(1, 10) > 5 ? draw(.03, .3) : 0;
    }
    for (size_t a = 0; a < n; a++)
        for (size_t b = 0; b < n; b++) {
            if (a == b) continue;
            struct sg_link_cost *l = sg_link_cost_of(&costs, costs.units[a].spec, costs.units[b].spec, 1);
            l->ms = draw(.01, 30), l->gb_s = draw(.1, 100);
        }
}

static struct sg_plan_task draw_task(void)
{
    static const char *const shapes[] = {"qwen3-0.6b", "qwen3.5-0.8b", "qwen3.5-2b"};
    segue_error err;
    assert_int_equal(sg_model_cost_shape(&model, sg_shape_find(shapes[(size_t)draw(1, 3.999) - 1]), "bf16", &err), SEGUE_OK);
    struct sg_plan_task t = {.prompt = floor(draw(1, 20000)),
                             .output = floor(draw(1, 1000)),
                             .turns = floor(draw(1, 6)),
                             .sessions = floor(draw(1, 4)),
                             .chunk = 512,
                             .depth = floor(draw(1, 8000)) - 1};
    if (draw(1, 10) > 5) t.max_watts = draw(20, 600);
    return t;
}

static int choice_at(struct sg_plan_task t, double prompt)
{
    t.prompt = prompt;
    sg_options_make(&options, &source, &model, &t);
    return options.choice;
}

/* The choice at lengths from low to high is `now`. Lengths are tried some way apart, so that a few of them, beside the edges of
 * a prefill run, may be passed over; then `now` is almost as good there. */
static void stays(struct sg_plan_task t, int now, double low, double high)
{
    for (int i = 0; i < LENGTHS; i++) {
        int other = choice_at(t, i ? floor(draw(low, high + 1)) : low), energy = t.objective == SEGUE_OBJECTIVE_ENERGY;
        if (other == now || other < 0) continue;
        const struct sg_option *a = &options.list[now], *b = &options.list[other];
        assert_true(!a->excluded && !b->excluded);
        double kept = energy ? a->joules.mid : a->total_ms.mid, best = energy ? b->joules.mid : b->total_ms.mid;
        assert_true(kept < 1.25 * best);
    }
}

static void check(struct sg_plan_task t, int *with, int *without)
{
    int now = choice_at(t, t.prompt);
    double at = t.objective == SEGUE_OBJECTIVE_ENERGY ? options.energy_crossover : options.crossover;
    if (now < 0) {
        assert_true(!(at > 0));
        return;
    }
    if (at > 0) {
        double beside = at > t.prompt ? at - 1 : at + 1;
        assert_int_not_equal(choice_at(t, at), now);
        assert_int_equal(choice_at(t, beside), now);
        stays(t, now, fmin(beside, t.prompt), fmax(beside, t.prompt));
    }
    /* None above the prompt, and none at all. */
    if (!(at > t.prompt)) stays(t, now, at > 0 ? t.prompt : 1, LONGEST);
    *with += at > 0, *without += !(at > 0);
}

static void agrees(void **state)
{
    int with = 0, without = 0;
    (void)state;
    for (int i = 0; i < TASKS; i++) {
        draw_units();
        struct sg_plan_task t = draw_task();
        t.objective = i % 2 ? SEGUE_OBJECTIVE_ENERGY : SEGUE_OBJECTIVE_LATENCY;
        check(t, &with, &without);
    }
    assert_true(with >= TASKS / 2 && without >= TASKS / 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(agrees)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
