/* plan_costs.c: the laws of unit costs, one by one: rows of a run, factors of real runs, drift, spread, first tokens, turns.
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "base/buf.h"
#include "engine/planner/learn.h"
#include "engine/planner/options.h"

static const char measured[] =
    "a.step_ms 1 ms\na.step_error 0.1 1\na.prefill_error 0.5 1\na.run_ms 2 ms\na.wide_gb_s 100 GB/s\na.kv_gb_s 50 GB/s\n"
    "a.wide_1_tflops 0.1 TFLOPS\na.wide_4_tflops 0.3 TFLOPS\na.wide_16_tflops 0.6 TFLOPS\na.wide_64_tflops 1 TFLOPS\n"
    "a.wide_256_tflops 1.2 TFLOPS\na.wide_512_tflops 1.2 TFLOPS\n"
    "b.step_ms 2 ms\nb.wide_gb_s 50 GB/s\nb.wide_16_tflops 0.2 TFLOPS\na>b.ms 3 ms\nb>a.ms 5 ms\n";
static struct sg_unit_costs costs;
static struct sg_options options;
static struct sg_model_cost model, other;
static struct sg_unit_cost *a, *b;

static int setup(void **state)
{
    segue_error err;
    (void)state;
    memset(&costs, 0, sizeof costs);
    if (sg_unit_costs_read(&costs, measured, strlen(measured), "x.chip", &err)) return -1;
    a = sg_unit_cost_of(&costs, "a", 0), b = sg_unit_cost_of(&costs, "b", 0);
    if (sg_model_cost_shape(&other, sg_shape_find("qwen3-0.6b"), "bf16", &err)) return -1;
    return (int)sg_model_cost_shape(&model, sg_shape_find("smollm2-135m"), "bf16", &err);
}

static double prefill(const struct sg_unit_cost *u, double n) { return sg_prefill_ms(&costs, u, &model, n, 0, 512, NULL); }
static double step(const struct sg_model_cost *m, double depth) { return sg_step_ms(&costs, a, m, depth, 1, NULL); }

static void near(double got, double want) { assert_true(fabs(got / want - 1) < 1e-9); }

/* Products of few rows: the measured speed at measured numbers, between them interpolated. */
static void few_rows(void **state)
{
    double head = model.head_bytes / 100 * 1e-6, work = 2 * model.shape.body * 1e-9;
    (void)state;
    near(prefill(a, 1), 2 + head + work / .1);
    near(prefill(a, 4), 2 + head + 4 * work / .3);
    near(prefill(a, 8), 2 + head + 8 * work / sqrt(.3 * .6));
    near(prefill(a, 1000), 4 + head + 1000 * work / 1.2);
    for (double n = 1; n < 64; n++) assert_true(prefill(a, n + 1) > prefill(a, n));
    /* A file without 1 and 4 rows: the speed of 16, but no less than the read of all weights. */
    near(prefill(b, 16), model.head_bytes / 50 * 1e-6 + 16 * work / .2);
    near(prefill(b, 1), (model.head_bytes + model.body_bytes) / 50 * 1e-6);
}

/* A speed that other work lowered is raised to that of fewer rows; others stay. */
static void mended(void **state)
{
    double *t = a->tflops[SG_CLASS_WIDE];
    (void)state;
    t[SG_ROWS_16] = .2;
    sg_mend_speeds(a, SG_CLASS_WIDE, 2);
    near(t[SG_ROWS_1], .1);
    near(t[SG_ROWS_16], .3);
    near(t[SG_ROWS_64], 1);
    near(a->gb_s[SG_CLASS_WIDE], 100);
    a->gb_s[SG_CLASS_WIDE] = 150;
    sg_mend_speeds(a, SG_CLASS_WIDE, 2);
    near(t[SG_ROWS_1], .15);
    t[SG_ROWS_1] = .2;
    sg_mend_speeds(a, SG_CLASS_WIDE, 2);
    near(t[SG_ROWS_1], .15);
    near(a->gb_s[SG_CLASS_WIDE], 150);
}

/* What each row costs in each layer, whatever the matrices. */
static void row_overhead(void **state)
{
    double before[3] = {prefill(a, 1), prefill(a, 512), prefill(a, 700)};
    (void)state;
    a->row_layer_ms = .001;
    near(prefill(a, 1), before[0] + .001 * model.shape.layers);
    near(prefill(a, 512), before[1] + .512 * model.shape.layers);
    near(prefill(a, 700), before[2] + .7 * model.shape.layers);
}

static void factors(void **state)
{
    double f[SG_REAL_N] = {0};
    (void)state;
    near(sg_real_at(f, SG_PHASE_PREFILL, 100), 1);
    assert_false(sg_real_any(f, SG_PHASE_PREFILL));
    /* A first run counts whole and holds for all lengths. */
    sg_real_learn(f, SG_PHASE_PREFILL, 300, 1.5, 1);
    for (double n = 1; n < 5000; n *= 3) near(sg_real_at(f, SG_PHASE_PREFILL, n), 1.5);
    near(sg_real_at(f, SG_PHASE_STEP, 300), 1);
    assert_true(sg_real_knows(f, SG_PHASE_PREFILL, 300));
    assert_false(sg_real_knows(f, SG_PHASE_PREFILL, 100));
    /* Nodes at 8, 32, 128, 512: at the geometric mean of two of them, that of their factors. */
    f[0] = 1, f[1] = 4;
    near(sg_real_at(f, SG_PHASE_PREFILL, 16), 2);
    near(sg_real_at(f, SG_PHASE_PREFILL, 3), 1);
    near(sg_real_at(f, SG_PHASE_PREFILL, 64), sqrt(4 * 1.5));
    /* Further runs converge, and leave distant nodes alone. */
    for (int i = 0; i < 40; i++) sg_real_learn(f, SG_PHASE_PREFILL, 16, 3, 1);
    assert_true(fabs(sg_real_at(f, SG_PHASE_PREFILL, 16) - 3) < .01);
    near(f[2], 1.5);
    /* Steps: between depths 256 and 2048. */
    f[SG_REAL_PREFILL] = 1, f[SG_REAL_PREFILL + 1] = 2;
    near(sg_real_at(f, SG_PHASE_STEP, 256 * sqrt(8)), sqrt(2));
    near(sg_real_at(f, SG_PHASE_STEP, 1e6), 2);
}

/* A busy machine slows all models: what one model teaches, another one that never ran gets too. */
static void drift(void **state)
{
    double quiet = step(&model, 100), unknown = step(&other, 100);
    (void)state;
    sg_learn_step(&costs, "a", &model, 100, quiet, 1);
    near(step(&other, 100), unknown);
    for (int i = 0; i < 30; i++) sg_learn_step(&costs, "a", &model, 100, 2 * quiet, 1);
    assert_true(fabs(step(&model, 100) / quiet - 2) < .01);
    assert_true(step(&other, 100) > 1.3 * unknown);
    /* Without what runs taught: the measured figures. */
    near(sg_step_ms(NULL, a, &other, 100, 1, NULL), unknown);
}

/* One run of a model tells its factor on a quiet machine, and little on a busy one. */
static void trust(void **state)
{
    double before = prefill(a, 300);
    (void)state;
    a->prefill_error = 1e-6;
    sg_learn_prefill(&costs, "a", &model, 300, 0, 512, 2 * before, 1);
    assert_true(fabs(prefill(a, 300) / before - 2) < 1e-6);
    b->prefill_error = 1;
    before = prefill(b, 300);
    sg_learn_prefill(&costs, "b", &model, 300, 0, 512, 1.4 * before, 1);
    assert_true(prefill(b, 300) > 1.03 * before && prefill(b, 300) < 1.15 * before);
    assert_true(sg_real_trust(.3, 4, .1) > sg_real_trust(.3, 1, .1) && sg_real_trust(.3, 1e9, .1) > .999);
    assert_true(sg_real_trust(.1, 1, .1) > sg_real_trust(.3, 1, .1) && sg_real_trust(.3, 1, .1) > sg_real_trust(1, 1, .1));
    near(sg_real_trust(.3, 1, .1), sg_real_trust(.3, 1, -.2));
    near(sg_real_trust(.3, 1, .1), sg_real_trust(.3, 1, 1.5)); /* one run may have been disturbed */
    assert_true(sg_real_trust(.3, 2, 1.5) > .98 && sg_real_trust(.3, 2, -.5) > sg_real_trust(.3, 2, .3));
}

/* Any distribution of deviations ends with about 1 of 10 outside. */
static void spread(void **state)
{
    double share = .15;
    uint64_t random = 7;
    int outside = 0;
    (void)state;
    for (int i = 0; i < 4000; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        double u = (double)(random >> 40) / 16777216, off = -.3 * log(1 - u); /* exponential, 9 of 10 below .69 */
        if (i >= 1000) outside += off > log1p(share);
        share = sg_real_spread(share, off);
    }
    assert_true(outside > 3000 * .02 && outside < 3000 * .1);
    for (int i = 0; i < 1000; i++) share = sg_real_spread(share, 0);
    near(share, .03);
    for (int i = 0; i < 100; i++) share = sg_real_spread(share, 9);
    near(share, 3);
}

static const struct sg_option *option(double prompt, double output, double turns, const char *from, const char *to)
{
    struct sg_plan_source source = {.costs = &costs};
    struct sg_plan_task task = {.prompt = prompt, .output = output, .turns = turns, .sessions = 1, .chunk = 512};
    sg_options_make(&options, &source, &model, &task);
    for (size_t i = 0; i < options.n; i++)
        if (!strcmp(options.list[i].prefill, from) && !strcmp(options.list[i].decode, to)) return &options.list[i];
    fail();
    return NULL;
}

/* The first token comes with the prefill of the whole prompt; n tokens take n - 1 steps. */
static void first_token(void **state)
{
    const struct sg_option *o = option(100, 1, 1, "a", "a");
    (void)state;
    near(o->ttft_ms.mid, prefill(a, 100));
    near(o->total_ms.mid, prefill(a, 100));
    o = option(100, 11, 1, "a", "a");
    near(o->total_ms.mid, prefill(a, 100) + 10 * step(&model, 105));
    o = option(100, 11, 1, "b", "a");
    near(o->ttft_ms.mid, prefill(b, 100) + 5);
}

/* Later turns: a long prompt is read on the prefill unit, to which the state returns; a short one on the decode unit. */
static void later_turns(void **state)
{
    double one = option(100, 11, 1, "a", "b")->handoff_ms.mid;
    (void)state;
    near(one, 3);
    near(option(100, 1, 2, "a", "b")->total_ms.mid, prefill(a, 100) + 3 + prefill(a, 101) + 3 + 5);
    double first = prefill(a, 10) + 3, second = sg_prefill_ms(&costs, b, &model, 11, 11, 512, NULL);
    near(option(10, 1, 2, "a", "b")->total_ms.mid, first + second);
}

/* The interval of a task weighs the spreads of its phases by their times; a model that never ran is less certain. */
static void intervals(void **state)
{
    double f[2];
    (void)state;
    assert_true(fabs(log(option(100, 1, 1, "a", "a")->total_ms.high / option(100, 1, 1, "a", "a")->total_ms.mid) - log(1.5)) <
                1e-9);
    assert_true(fabs(log(option(1, 1, 1, "a", "a")->token_ms.high / options.list[0].token_ms.mid) - .3) < 1e-9);
    sg_learn_step(&costs, "a", &model, 100, step(&model, 100), 1);
    sg_learn_prefill(&costs, "a", &model, 100, 0, 512, prefill(a, 100), 1);
    a->step_error = .1, a->prefill_error = .5;
    for (int i = 0; i < 2; i++) {
        const struct sg_option *o = option(100, i ? 1000 : 2, 1, "a", "a");
        f[i] = o->total_ms.high / o->total_ms.mid;
        near(o->total_ms.mid / o->total_ms.low, f[i]);
        near(o->token_ms.high / o->token_ms.mid, 1.1);
        near(o->ttft_ms.high / o->ttft_ms.mid, 1.5);
    }
    assert_true(f[0] < 1.5 && f[0] > 1.4 && f[1] > 1.1 && f[1] < 1.15);
}

/* A placement that is better by less than runs scatter is not chosen before a simpler one; by more, it is. */
static void within_margin(void **state)
{
    (void)state;
    *b = *a;
    memcpy(b->spec, "b", 2);
    sg_link_cost_of(&costs, "a", "b", 0)->ms = sg_link_cost_of(&costs, "b", "a", 0)->ms = 0;
    b->step_ms = .9 * a->step_ms;
    option(64, 100, 1, "a", "a");
    assert_string_equal(options.list[options.choice].decode, "a");
    a->step_error = a->prefill_error = a->new_error = b->step_error = b->prefill_error = b->new_error = .001;
    option(64, 100, 1, "a", "a");
    assert_string_equal(options.list[options.choice].decode, "b");
    assert_string_equal(options.list[options.choice].pipeline, "single");
    a->step_ms *= 3, b->step_ms *= 2;
    a->step_error = a->prefill_error = b->step_error = b->prefill_error = .1;
    option(64, 100, 1, "a", "a");
    assert_string_equal(options.list[options.choice].decode, "b");
}

/* Figures with the source `prior` make a placement unverified and its intervals wide. */
static void unverified(void **state)
{
    static const char line[] = "b.step_layer_ms 0.1 ms # prior\n";
    segue_error err;
    (void)state;
    assert_int_equal(option(100, 10, 1, "b", "b")->unverified, 0);
    assert_int_equal(sg_unit_costs_read(&costs, line, strlen(line), "x.chip", &err), SEGUE_OK);
    const struct sg_option *o = option(100, 10, 1, "a", "b");
    assert_int_equal(o->unverified, 1);
    assert_true(o->total_ms.high / o->total_ms.mid >= 2 && o->ttft_ms.high / o->ttft_ms.mid >= 2);
    assert_int_equal(option(100, 10, 1, "a", "a")->unverified, 0);
}

/* What was learned survives the file; the name of earlier versions is read. */
static void file(void **state)
{
    static const char old[] = "a~m-q4_0.prefill_more 1.25 1\n";
    static struct sg_unit_costs got;
    struct sg_buf text = {0};
    segue_error err;
    (void)state;
    assert_int_equal(sg_unit_costs_read(&costs, old, strlen(old), "x.chip", &err), SEGUE_OK);
    near(sg_real_at(sg_real_factor_of(&costs, "a", "m-q4_0", 0)->factor, SG_PHASE_PREFILL, 4000), 1.25);
    for (int i = 0; i < 3; i++) sg_learn_step(&costs, "a", &model, 3000, 3 * step(&model, 3000), 1);
    sg_learn_prefill(&costs, "a", &model, 5, 0, 512, 9 * prefill(a, 5), 1);
    memset(&got, 0, sizeof got);
    sg_unit_costs_write(&costs, &text);
    assert_int_equal(sg_unit_costs_read(&got, text.data, text.len, "x.chip", &err), SEGUE_OK);
    sg_buf_free(&text);
    const struct sg_unit_cost *u = sg_unit_cost_of(&got, "a", 0);
    for (double n = 1; n < 3000; n *= 2.5) {
        assert_true(fabs(sg_prefill_ms(&got, u, &model, n, 0, 512, NULL) / prefill(a, n) - 1) < 1e-4);
        assert_true(fabs(sg_step_ms(&got, u, &model, n, 1, NULL) / step(&model, n) - 1) < 1e-4);
    }
    for (int phase = 0; phase < 2; phase++) {
        double before = sg_spread(a, sg_real_find(&costs, a->spec, model.key), phase);
        assert_true(fabs(sg_spread(u, sg_real_find(&got, u->spec, model.key), phase) / before - 1) < 1e-4);
    }
}

#define LAW(name) cmocka_unit_test_setup(name, setup)

int main(void)
{
    const struct CMUnitTest tests[] = {LAW(few_rows),  LAW(mended),     LAW(row_overhead), LAW(factors),        LAW(drift),
                                       LAW(trust),     LAW(spread),     LAW(first_token),    LAW(later_turns),
                                       LAW(intervals), LAW(unverified), LAW(within_margin), LAW(file)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
