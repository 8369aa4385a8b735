/* plan_options.c: placements and the choice among them, on costs made by hand. SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "engine/planner/learn.h"
#include "engine/planner/options.h"

/* `slow` reads prompts slowly and decodes well; `fast` the other way round, and starts slowly. */
static const char two_units[] =
    "slow.step_ms 0.1 ms\nslow.wide_gb_s 100 GB/s\nslow.wide_16_tflops 1 TFLOPS\nslow.wide_64_tflops 1 TFLOPS\n"
    "slow.wide_256_tflops 1 TFLOPS\nslow.wide_512_tflops 1 TFLOPS\nslow.step_w 10 W\nslow.prefill_w 10 W\n"
    "fast.run_ms 50 ms\nfast.wide_gb_s 10 GB/s\nfast.wide_16_tflops 100 TFLOPS\nfast.wide_64_tflops 100 TFLOPS\n"
    "fast.wide_256_tflops 100 TFLOPS\nfast.wide_512_tflops 100 TFLOPS\nfast.step_w 100 W\nfast.prefill_w 100 W\n"
    "fast>slow.ms 10 ms\nfast>slow.gb_s 10 GB/s\nslow>fast.ms 10 ms\nslow>fast.gb_s 10 GB/s\n";
static struct sg_unit_costs costs;
static struct sg_options options, again;
static struct sg_model_cost model;
static const struct sg_plan_source source = {.costs = &costs};

static int setup(void **state)
{
    segue_error err;
    (void)state;
    memset(&costs, 0, sizeof costs);
    if (sg_unit_costs_read(&costs, two_units, strlen(two_units), "two.chip", &err)) return -1;
    return (int)sg_model_cost_shape(&model, sg_shape_find("qwen3.5-0.8b"), "bf16", &err);
}

static const struct sg_option *choose(struct sg_plan_task task)
{
    sg_options_make(&options, &source, &model, &task);
    return options.choice < 0 ? NULL : &options.list[options.choice];
}

static struct sg_plan_task task_of(double prompt, double output)
{
    return (struct sg_plan_task){.prompt = prompt, .output = output, .turns = 1, .sessions = 1, .chunk = 512};
}

/* A short prompt stays on one unit, a long one is split, and the crossover is exactly between. */
static void short_prompts_stay(void **state)
{
    const struct sg_option *o = choose(task_of(16, 64));
    (void)state;
    assert_string_equal(o->pipeline, "single");
    assert_string_equal(o->decode, "slow");
    double at = options.crossover;
    assert_true(at > 16 && at < 4096);
    o = choose(task_of(at - 1, 64));
    assert_string_equal(o->pipeline, "single");
    o = choose(task_of(at, 64));
    assert_string_equal(o->pipeline, "split");
    assert_string_equal(o->prefill, "fast");
    assert_string_equal(o->decode, "slow");
}

/* The choice has the least value of all that may be chosen, and every interval holds its middle. */
static void choice_is_least(void **state)
{
    (void)state;
    for (int objective = 0; objective < 3; objective++)
        for (double n = 1; n < 5000; n = n * 3 + 1) {
            struct sg_plan_task t = task_of(n, 32);
            t.objective = (segue_objective)objective;
            const struct sg_option *o = choose(t);
            assert_non_null(o);
            for (size_t i = 0; i < options.n; i++) {
                const struct sg_option *p = &options.list[i];
                assert_true(p->ttft_ms.low <= p->ttft_ms.mid && p->ttft_ms.mid <= p->ttft_ms.high && p->total_ms.mid > 0);
                if (p->excluded) continue;
                if (objective == SEGUE_OBJECTIVE_ENERGY)
                    assert_true(p->joules.mid < 0 || o->joules.mid <= p->joules.mid * (1 + 1e-9));
                else
                    assert_true(o->total_ms.mid <= p->total_ms.mid * (1 + 1e-9));
            }
        }
}

static void same_inputs_same_plan(void **state)
{
    struct sg_plan_task t = task_of(777, 99);
    (void)state;
    choose(t);
    memset(&again, 0, sizeof again);
    sg_options_make(&again, &source, &model, &t);
    assert_int_equal(again.n, options.n);
    assert_int_equal(again.choice, options.choice);
    for (size_t i = 0; i < again.n; i++) assert_true(again.list[i].total_ms.mid == options.list[i].total_ms.mid);
}

static void limits(void **state)
{
    struct sg_plan_task t = task_of(4000, 1);
    (void)state;
    assert_string_equal(choose(t)->prefill, "fast");
    t.max_watts = 50;
    assert_string_equal(choose(t)->prefill, "slow");
    t.max_watts = 1;
    assert_null(choose(t));
    /* A unit without space for the model, and a simulated one that was not named. */
    t.max_watts = 0;
    sg_unit_cost_of(&costs, "fast", 0)->memory_bytes = 1e6;
    assert_string_equal(choose(t)->prefill, "slow");
    sg_unit_cost_of(&costs, "fast", 0)->memory_bytes = 0;
    sg_unit_cost_of(&costs, "fast", 0)->simulated = 1;
    assert_string_equal(choose(t)->prefill, "slow");
    t.named[t.named_n++] = "fast";
    assert_string_equal(choose(t)->prefill, "fast");
    sg_unit_cost_of(&costs, "fast", 0)->simulated = 0;
}

/* Units that wait draw power too; without a meter of the unit that works, the others are a lower bound. */
static void waiting_units_draw_power(void **state)
{
    struct sg_plan_task t = task_of(2000, 200);
    struct sg_unit_cost *slow = sg_unit_cost_of(&costs, "slow", 0), *fast = sg_unit_cost_of(&costs, "fast", 0);
    (void)state;
    choose(t);
    const struct sg_option alone = options.list[0];
    assert_string_equal(alone.decode, "slow");
    assert_true(fabs(alone.joules.mid - 10 * alone.total_ms.mid * 1e-3) < 1e-6 && alone.joules_least < 0);
    fast->idle_w = 30;
    choose(t);
    assert_true(fabs(options.list[0].joules.mid - 40 * alone.total_ms.mid * 1e-3) < 1e-6);
    /* Prefill on `fast` at 100 W while `slow` waits at 0 W, then decode on `slow` at 10 W beside `fast` at 30 W. */
    const struct sg_option *split = &options.list[2];
    double steps = split->token_ms.mid * 199, first = split->total_ms.mid - steps;
    assert_string_equal(split->prefill, "fast");
    assert_string_equal(split->decode, "slow");
    assert_true(fabs(split->joules.mid / ((100 * first + 40 * steps) * 1e-3) - 1) < 1e-9);
    /* A load adds joules per weight; runs of the model with a meter replace both. */
    slow->step_j_gweight = .1;
    double before = options.list[0].joules.mid;
    choose(t);
    assert_true(fabs(options.list[0].joules.mid - before - .1 * (model.shape.body + model.shape.head) * 199e-9) < 1e-6);
    struct sg_real_factor *real = sg_real_factor_of(&costs, "slow", model.key, 1);
    real->watts[SG_PHASE_STEP] = 77;
    choose(t);
    steps = options.list[0].token_ms.mid * 199, first = options.list[0].total_ms.mid - steps;
    assert_true(fabs(options.list[0].joules.mid / ((40 * first + 107 * steps) * 1e-3) - 1) < 1e-9);
    real->watts[SG_PHASE_STEP] = 0, slow->step_j_gweight = 0;
    slow->prefill_w = slow->step_w = -1;
    choose(t);
    assert_true(options.list[0].joules.mid < 0);
    assert_true(options.list[0].joules_least > 0 && options.list[0].joules_least < 30 * alone.total_ms.mid * 1e-3);
    slow->prefill_w = slow->step_w = 10, fast->idle_w = -1;
}

/* A model in two storages has twice the placements; fp8 halves the weights of each, and the file on disk stays. */
static void storages_are_placements(void **state)
{
    struct sg_model_cost two[2] = {model};
    struct sg_plan_task t = task_of(16, 64);
    segue_error err;
    (void)state;
    choose(t);
    size_t n = options.n;
    assert_int_equal(sg_model_cost_as(&two[1], &model, "q99", &err), SEGUE_EARG);
    assert_int_equal(sg_model_cost_as(&two[1], &model, "fp8", &err), SEGUE_OK);
    assert_true(fabs(two[1].body_bytes * 2 / model.body_bytes - 1) < 1e-9);
    two[0].also = &two[1];
    sg_options_make(&options, &source, two, &t);
    assert_int_equal(options.n, 2 * n);
    for (size_t i = 0; i < n; i++) {
        const struct sg_option *a = &options.list[i], *b = &options.list[n + i];
        assert_string_equal(a->storage, "bf16");
        assert_string_equal(b->storage, "fp8");
        assert_true(!a->converted && b->converted && b->prefill_bytes < .6 * a->prefill_bytes && b->disk_bytes == a->disk_bytes);
        assert_string_equal(a->prefill, b->prefill);
        assert_true(b->token_ms.mid < a->token_ms.mid);
    }
    assert_true(options.choice >= (int)n);
}

/* A hand-off without a measurement makes a placement unverified, with an interval of a factor of 2. */
static void unmeasured_hand_offs(void **state)
{
    size_t links = costs.links_n;
    (void)state;
    choose(task_of(16, 64));
    for (size_t i = 0; i < options.n; i++) assert_false(options.list[i].unverified);
    costs.links_n = 0;
    choose(task_of(16, 64));
    for (size_t i = 0; i < options.n; i++) {
        const struct sg_option *o = &options.list[i];
        assert_int_equal(o->unverified, !o->alone);
        assert_true(o->alone || o->total_ms.high >= 2 * o->total_ms.mid * (1 - 1e-9));
    }
    costs.links_n = links;
}

/* Layers are divided at the quarters of 24 layers, in both orders of the two units. */
static void layers_are_divided(void **state)
{
    int seen[24] = {0};
    (void)state;
    choose(task_of(16, 64));
    for (size_t i = 0; i < options.n; i++) {
        const char *at = strchr(options.list[i].prefill, '@');
        if (!strcmp(options.list[i].pipeline, "layers")) seen[atoi(at + 3)]++;
    }
    assert_true(seen[5] == 2 && seen[11] == 2 && seen[17] == 2);
}

/* Six units: the whole plan, with both crossovers, prices so few placements from so few phase costs that it stays below 1 ms. */
static void many_units(void **state)
{
    static struct sg_unit_costs six;
    static struct sg_options first;
    struct sg_unit_costs two = costs;
    struct sg_plan_task t = task_of(410, 128);
    (void)state;
    six = (struct sg_unit_costs){0};
    for (int i = 0; i < 6; i++) {
        char name[8] = {'u', (char)('0' + i), 0};
        struct sg_unit_cost *u = sg_unit_cost_of(&six, name, 1);
        *u = two.units[i % 2];
        u->spec[0] = 'u', u->spec[1] = (char)('0' + i), u->spec[2] = 0;
        u->step_ms += .01 * i, u->run_ms += 3 * i;
    }
    costs = six;
    choose(t);
    /* 36 ordered pairs and 30 halves; all, first and last layers of 6 units in 2 phases. */
    assert_int_equal(options.n, 66);
    assert_true(options.priced % 66 == 0 && options.priced <= 66 * 80);
    assert_int_equal(options.computed, options.priced / 66 * 36);
    memcpy(&first, &options, sizeof first);
    choose(t);
    assert_int_equal(first.choice, options.choice);
    assert_true(first.crossover == options.crossover && first.energy_crossover == options.energy_crossover);
    for (size_t i = 0; i < options.n; i++) assert_true(options.list[i].total_ms.mid == first.list[i].total_ms.mid);
    /* What lies between the lengths that were tried: the choice is the same up to the crossover. */
    for (double n = t.prompt; n < fmin(first.crossover > 0 ? first.crossover : 2000, 2000); n += 97) {
        const char *prefill = first.list[first.choice].prefill;
        assert_string_equal(choose(task_of(n, 128))->prefill, prefill);
    }
    /* A thousand turns are computed in groups, and cost what their middles do. */
    t.turns = 1000;
    choose(t);
    assert_true(options.computed <= 80 * 36 * 8);
    double many = options.list[0].total_ms.mid;
    t.turns = 7;
    choose(t);
    assert_true(many > 1000 / 7 * options.list[0].total_ms.mid);
    costs = two;
}

/* Turns in groups against the sum of single turns. */
static void grouped_turns(void **state)
{
    struct sg_plan_task t = task_of(64, 32);
    double sum = 0;
    (void)state;
    for (int i = 0; i < 60; i++) {
        struct sg_plan_task one = task_of(64 + (i > 0), 32);
        one.depth = i * 96 - (i > 0);
        choose(one);
        sum += options.list[0].total_ms.mid;
    }
    t.turns = 60;
    choose(t);
    assert_true(fabs(options.list[0].total_ms.mid / sum - 1) < .005);
}

/* K and V in other storages are placements; a unit without one is no placement of it. */
static void kv_forms_are_placements(void **state)
{
    struct sg_model_cost two[2] = {model};
    struct sg_plan_task t = task_of(4000, 64);
    (void)state;
    sg_model_cost_kv(&two[1], &model, SG_KV_FORM_Q8);
    assert_true(fabs(two[1].kv_bytes / model.kv_bytes - 17.0 / 32) < 1e-9);
    two[0].also = &two[1];
    sg_unit_cost_of(&costs, "slow", 0)->kv_gb_s = sg_unit_cost_of(&costs, "fast", 0)->kv_gb_s = 10;
    sg_options_make(&options, &source, two, &t);
    size_t n = options.n / 2;
    for (size_t i = 0; i < n; i++) {
        const struct sg_option *a = &options.list[i], *b = &options.list[n + i];
        assert_true(a->asked_kv && a->kv == SG_KV_FORM_F16 && !b->asked_kv && b->kv == SG_KV_FORM_Q8);
        assert_true(b->kv_bytes < a->kv_bytes && b->token_ms.mid < a->token_ms.mid && !a->excluded && !b->excluded);
    }
    assert_int_equal(options.list[options.choice].kv, SG_KV_FORM_Q8);
    for (size_t i = 0; i < costs.units_n; i++) costs.units[i].kv_forms = 1 << SG_KV_FORM_F16 | 1 << SG_KV_FORM_F32;
    sg_options_make(&options, &source, two, &t);
    assert_int_equal(options.list[options.choice].kv, SG_KV_FORM_F16);
    for (size_t i = n; i < 2 * n; i++) assert_non_null(strstr(options.list[i].excluded, "K and V"));
    /* Speed of q8 where it was measured. */
    for (size_t i = 0; i < costs.units_n; i++) costs.units[i].kv_forms = 0, costs.units[i].kv_q8_gb_s = 4;
    sg_options_make(&options, &source, two, &t);
    assert_int_equal(options.list[options.choice].kv, SG_KV_FORM_F16);
    for (size_t i = 0; i < costs.units_n; i++) costs.units[i].kv_gb_s = costs.units[i].kv_q8_gb_s = 0;
}

/* Memory that holds K and V in q8 only. */
static void too_large(void **state)
{
    struct sg_model_cost q8;
    struct sg_plan_task t = task_of(100000, 64);
    (void)state;
    choose(t);
    assert_int_equal(sg_options_too_large(&options), 0);
    sg_model_cost_kv(&q8, &model, SG_KV_FORM_Q8);
    double space = model.file_bytes + model.kv_bytes * 80000;
    for (size_t i = 0; i < costs.units_n; i++) costs.units[i].memory_bytes = space / 2;
    choose(t);
    assert_int_equal(sg_options_too_large(&options), 1);
    sg_options_make(&options, &source, &q8, &t);
    assert_int_equal(sg_options_too_large(&options), 0);
    assert_string_equal(options.list[options.choice].pipeline, "layers");
    for (size_t i = 0; i < costs.units_n; i++) costs.units[i].memory_bytes = 0;
}

/* Attention of a step takes its measured extra at 256 and from 1,024 on, in each layer that attends. */
static void attention_by_depth(void **state)
{
    struct sg_unit_cost *u = sg_unit_cost_of(&costs, "slow", 0);
    double layers = model.shape.layers - model.shape.delta_layers, before[5], at[5] = {0, 128, 256, 640, 5000};
    static const double share[5] = {0, .5, 1, 2, 3};
    (void)state;
    for (int i = 0; i < 5; i++) before[i] = sg_step_ms(NULL, u, &model, at[i], 1, NULL);
    u->attend_ms[0] = .01, u->attend_ms[1] = .03;
    for (int i = 0; i < 5; i++) {
        double more = sg_step_ms(NULL, u, &model, at[i], 1, NULL) - before[i];
        assert_true(fabs(more - .01 * share[i] * layers) < 1e-9);
    }
    u->attend_ms[0] = u->attend_ms[1] = 0;
}

/* Attention of few rows has a speed of its own; between both it is interpolated in logarithms. */
static void attention_by_rows(void **state)
{
    struct sg_unit_cost *u = sg_unit_cost_of(&costs, "slow", 0);
    static const double rows[5] = {1, 16, 512, 2048, 90.509668 /* sqrt(16 * 512) */}, speed[5] = {1, 1, 4, 4, 2};
    (void)state;
    for (int i = 0; i < 5; i++) {
        double none = sg_prefill_ms(NULL, u, &model, rows[i], 5000, 512, NULL);
        u->attend_tflops = 4, u->attend_few_tflops = 1;
        double more = sg_prefill_ms(NULL, u, &model, rows[i], 5000, 512, NULL) - none;
        assert_true(fabs(more / (model.attend * rows[i] * (5000 + rows[i] / 2) / speed[i] * 1e-9) - 1) < 1e-6);
        u->attend_tflops = u->attend_few_tflops = 0;
    }
}

/* Real runs move the predictions to what was measured. */
static void learns(void **state)
{
    struct sg_unit_cost *u = sg_unit_cost_of(&costs, "slow", 0);
    double before = sg_step_ms(&costs, u, &model, 10, 1, NULL);
    (void)state;
    u->error_share = 0; /* runs do not scatter: the first one counts whole */
    sg_learn_step(&costs, "slow", &model, 10, before * 1.5, 1);
    assert_true(fabs(sg_step_ms(&costs, u, &model, 10, 1, NULL) / before - 1.5) < 1e-6);
    sg_learn_prefill(&costs, "slow", &model, 300, 0, 512, 1234, 1);
    assert_true(fabs(sg_prefill_ms(&costs, u, &model, 300, 0, 512, NULL) - 1234) < 1e-6);
    sg_learn_watts(&costs, "slow", &model, SG_PHASE_STEP, 0);
    sg_learn_watts(&costs, "slow", &model, SG_PHASE_STEP, 60);
    sg_learn_watts(&costs, "slow", &model, SG_PHASE_STEP, 100);
    assert_true(sg_real_factor_of(&costs, "slow", model.key, 0)->watts[SG_PHASE_STEP] == 70);
}

static void written_and_read(void **state)
{
    struct sg_unit_costs got = {0};
    struct sg_buf text = {0};
    segue_error err = {0};
    (void)state;
    sg_unit_costs_write(&costs, &text);
    assert_int_equal(sg_unit_costs_read(&got, text.data, text.len, "x", &err), SEGUE_OK);
    assert_int_equal(got.units_n, costs.units_n);
    assert_int_equal(got.reals_n, costs.reals_n);
    assert_true(got.reals[0].watts[SG_PHASE_STEP] == 70);
    for (size_t i = 0; i < got.units_n; i++) {
        double a = sg_step_ms(&costs, &costs.units[i], &model, 100, 1, NULL),
               b = sg_step_ms(&got, &got.units[i], &model, 100, 1, NULL);
        assert_true(fabs(a / b - 1) < 1e-4);
    }
    sg_buf_free(&text);
    assert_int_equal(sg_unit_costs_read(&got, "cpu.warp 1 1\n", 13, "x.chip", &err), SEGUE_EFORMAT);
    assert_non_null(strstr(err.text, "x.chip: line 1"));
    assert_int_equal(sg_unit_costs_read(&got, "a>b.ms fast ms\n", 15, "x.chip", &err), SEGUE_EFORMAT);
    assert_int_equal(sg_unit_costs_read(&got, "a~b.love 1 1\n", 13, "x.chip", &err), SEGUE_EFORMAT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(short_prompts_stay),
                                       cmocka_unit_test(choice_is_least),
                                       cmocka_unit_test(same_inputs_same_plan),
                                       cmocka_unit_test(limits),
                                       cmocka_unit_test(waiting_units_draw_power),
                                       cmocka_unit_test(storages_are_placements),
                                       cmocka_unit_test(layers_are_divided),
                                       cmocka_unit_test(unmeasured_hand_offs),
                                       cmocka_unit_test(many_units),
                                       cmocka_unit_test(grouped_turns),
                                       cmocka_unit_test(kv_forms_are_placements),
                                       cmocka_unit_test(too_large),
                                       cmocka_unit_test(attention_by_depth),
                                       cmocka_unit_test(attention_by_rows),
                                       cmocka_unit_test(learns),
                                       cmocka_unit_test(written_and_read)};
    return cmocka_run_group_tests(tests, setup, NULL);
}
