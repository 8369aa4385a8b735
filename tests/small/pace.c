/* pace.c: the chunk size of prompts beside answers converges from too small and from too large a start, against recorded times.
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "engine/queue/pace.h"

#define MS 1000000.0
enum { SIZES = 8, LENGTHS = 40 };

/* Times of one machine: of a run of answers alone, and of a prompt of `tokens` beside them. */
struct machine {
    double answers_ms;
    struct { size_t tokens; double ms; } prompt[SIZES]; /* ascending; linear in between and after the last */
    double first_ms; /* more for the first prompt of each length, in steps of 64 tokens */
    size_t step;     /* prompts have a pass each of at longest so many tokens */
    int used[LENGTHS];
};

/* docs/log/CUDA.md, "First prompts": 0.8B BF16; up to 32 rows are issued by the decode kernels. */
static const struct machine gpu = {.answers_ms = 1.0,
                                   .prompt = {{1, 8.0}, {32, 8.0}, {33, 1.6}, {133, 1.8}, {410, 2.4}, {512, 2.7}},
                                   .first_ms = 15, .step = 512};
/* docs/log/BENCH-2026-11.md, "Causes on two cores": SmolLM2-135M Q4_1; a step of one token takes 6.5 ms. */
static const struct machine cores = {.answers_ms = 6.5,
                                     .prompt = {{1, 0.4}, {4, 2.2}, {8, 5.6}, {16, 12.1}, {32, 17.3}, {64, 35.8}},
                                     .step = 100000};

static double piece_ms(const struct machine *m, size_t tokens)
{
    int i = 1;
    while (i + 1 < SIZES && m->prompt[i + 1].tokens && m->prompt[i].tokens < tokens) i++;
    double a = (double)m->prompt[i - 1].tokens, b = (double)m->prompt[i].tokens;
    double from = m->prompt[i - 1].ms, to = m->prompt[i].ms;
    return from + ((double)tokens - a) * (to - from) / (b - a);
}

static double run_ms(struct machine *m, size_t tokens)
{
    double ms = m->answers_ms;
    for (size_t left = tokens; left;) {
        size_t piece = left < m->step ? left : m->step, length = piece / 64 % LENGTHS;
        ms += piece_ms(m, piece) + (m->used[length] ? 0 : m->first_ms);
        m->used[length] = 1;
        left -= piece;
    }
    return ms;
}

/* `n` runs beside answers, each of the size that the estimator allows; the time of the last. */
static double runs(struct sg_pace *p, struct machine *m, double target_ms, size_t max, int n)
{
    double ms = 0;
    for (int i = 0; i < n; i++) {
        size_t tokens = sg_pace_budget(p, (uint64_t)(target_ms * MS), max);
        assert_true(tokens && tokens <= max);
        ms = run_ms(m, tokens);
        sg_pace_learn(p, &(struct sg_pace_run){(uint64_t)(ms * MS), 16, 1, tokens});
    }
    return ms;
}

static struct sg_pace started(struct machine *m, double token_ms)
{
    struct sg_pace p = {0};
    sg_pace_learn(&p, &(struct sg_pace_run){(uint64_t)(m->answers_ms * MS), 16, 0, 0});
    if (token_ms > 0) sg_pace_learn(&p, &(struct sg_pace_run){(uint64_t)(token_ms * 100 * MS), 0, 1, 100});
    return p;
}

static void holds_the_target_on_cores(void **state)
{
    (void)state;
    static const double starts[] = {0, 0.03, 0.5, 10};
    for (int i = 0; i < 4; i++) {
        struct machine m = cores;
        struct sg_pace p = started(&m, starts[i]);
        runs(&p, &m, 50, 512, 40);
        for (int k = 0; k < 12; k++) {
            double ms = runs(&p, &m, 50, 512, 1);
            assert_true(ms < 60 && ms > 35);
        }
    }
}

/* The first prompts of all lengths take 15 ms more than the target allows; chunks grow again afterwards. */
static void grows_after_slow_first_uses(void **state)
{
    (void)state;
    static const double starts[] = {0, 0.006, 0.1, 0.6, 5};
    for (int i = 0; i < 5; i++) {
        struct machine m = gpu;
        struct sg_pace p = started(&m, starts[i]);
        runs(&p, &m, 10, 2048, 120);
        size_t longest = 0;
        for (int k = 0; k < 12; k++) {
            size_t budget = sg_pace_budget(&p, (uint64_t)(10 * MS), 2048);
            double ms = runs(&p, &m, 10, 2048, 1);
            if (budget > longest) longest = budget;
            assert_true(ms < 20);
        }
        assert_true(longest > 700); /* 1,215 tok/s were measured with chunks of 16 */
    }
}

/* Where the fixed cost alone exceeds the target, a chunk is as long as it is efficient: its tokens take as long as the rest. */
static void is_efficient_beyond_the_target(void **state)
{
    (void)state;
    struct machine m = {.answers_ms = 2, .prompt = {{1, 20.1}, {1000, 120}}, .step = 100000};
    struct sg_pace p = started(&m, 0.1);
    double ms = runs(&p, &m, 10, 2048, 200);
    assert_true(ms > 30 && ms < 60);
}

static void follows_a_change(void **state)
{
    (void)state;
    struct machine m = cores;
    struct sg_pace p = started(&m, 0.5);
    runs(&p, &m, 50, 512, 20);
    for (int i = 0; i < 6; i++) m.prompt[i].ms *= 3; /* other programs use the cores now */
    runs(&p, &m, 50, 512, 15);
    double ms = runs(&p, &m, 50, 512, 1);
    assert_true(ms > 35 && ms < 65);
    for (int i = 0; i < 6; i++) m.prompt[i].ms /= 3;
    runs(&p, &m, 50, 512, 15);
    ms = runs(&p, &m, 50, 512, 1);
    assert_true(ms > 35 && ms < 65);
}

/* One run that takes ten times as long changes little. */
static void ignores_a_single_slow_run(void **state)
{
    (void)state;
    struct machine m = cores;
    struct sg_pace p = started(&m, 0.5);
    runs(&p, &m, 50, 512, 20);
    size_t before = sg_pace_budget(&p, (uint64_t)(50 * MS), 512);
    sg_pace_learn(&p, &(struct sg_pace_run){(uint64_t)(500 * MS), 16, 1, before});
    assert_true(sg_pace_budget(&p, (uint64_t)(50 * MS), 512) * 2 > before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(holds_the_target_on_cores), cmocka_unit_test(grows_after_slow_first_uses),
                                       cmocka_unit_test(is_efficient_beyond_the_target), cmocka_unit_test(follows_a_change),
                                       cmocka_unit_test(ignores_a_single_slow_run)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
