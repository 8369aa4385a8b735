/* mlx_ahead.c: decode steps that are issued one token ahead: each is used by the next run, and none changes what a fork, a
 * rewound session or another token gets.
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>

#include "engine/placement/units.h"
#include "segue.h"
#include "unit/mlx/mlxunit.h"

enum { PROMPT = 9, LONG = 24, TOGETHER = 3 };

struct ahead_world {
    segue_unit *unit;
    segue_model *model;
    segue_engine *engine;
};

static void enter(struct ahead_world *w, const char *model)
{
    char path[512];
    segue_error err = {0};
    snprintf(path, sizeof path, SEGUE_SOURCE_DIR "/tests/golden/tiny/%s", model);
    assert_int_equal(segue_unit_open(&w->unit, "mlx:cpu", &err), SEGUE_OK);
    if (segue_model_open(&w->model, path, NULL, &err) != SEGUE_OK) fail_msg("%s", err.text);
    if (segue_engine_open(&w->engine, w->model, &w->unit, 1, NULL, &err) != SEGUE_OK) fail_msg("%s", err.text);
}

static void leave(struct ahead_world *w)
{
    segue_engine_close(w->engine);
    segue_model_close(w->model);
    segue_unit_close(w->unit);
}

static segue_session *begin(struct ahead_world *w)
{
    static const int32_t prompt[PROMPT] = {3, 1, 4, 1, 5, 9, 2, 6, 5};
    segue_session *s;
    segue_error err = {0};
    if (segue_session_open(&s, w->engine, NULL, &err) != SEGUE_OK) fail_msg("%s", err.text);
    segue_sampling sampling = {.size = sizeof sampling, .ignore_stops = 1};
    assert_int_equal(segue_session_sampling(s, &sampling, &err), SEGUE_OK);
    assert_int_equal(segue_session_append(s, prompt, PROMPT, &err), SEGUE_OK);
    return s;
}

static void next(segue_session *s, int32_t *tokens, uint32_t n)
{
    segue_error err = {0};
    for (uint32_t i = 0; i < n; i++)
        if (segue_session_next(s, &tokens[i], &err) != SEGUE_OK) fail_msg("%s", err.text);
}

static void append(segue_session *s, int32_t token)
{
    segue_error err = {0};
    assert_int_equal(segue_session_append(s, &token, 1, &err), SEGUE_OK);
}

static void equal(const int32_t *a, const int32_t *b, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) assert_int_equal(a[i], b[i]);
}

static void interleaved(struct ahead_world *w)
{
    int32_t want[LONG], got[LONG], other[8], again[8];
    segue_error err = {0};
    segue_session *s = begin(w), *t;
    next(s, want, LONG);
    segue_session_close(s);

    uint64_t before = w->unit->unit->steps_issued;
    s = begin(w);
    next(s, got, LONG / 2);
    /* The prompt is no step; each token after it has one, and one is ahead. */
    assert_int_equal(w->unit->unit->steps_issued - before, LONG / 2);

    assert_int_equal(segue_session_fork(&t, s, &err), SEGUE_OK);
    next(t, got + LONG / 2, LONG / 2);
    equal(got, want, LONG);
    next(s, got + LONG / 2, LONG / 2);
    equal(got, want, LONG);

    /* Another token than the one that the step was issued for. */
    append(s, (want[0] + 7) % 40);
    next(s, other, 8);
    segue_session_close(s);
    s = begin(w);
    for (uint32_t i = 0; i < LONG; i++) append(s, want[i]);
    append(s, (want[0] + 7) % 40);
    next(s, again, 8);
    equal(other, again, 8);

    /* Back, and the same once more. */
    if (segue_session_rewind(s, PROMPT, &err) != SEGUE_OK) fail_msg("%s", err.text);
    next(s, got, LONG);
    equal(got, want, LONG);
    segue_session_close(s);
    segue_session_close(t);
}

/* Several sequences: one step ahead for all of them, dropped when one of them leaves or gets another token. */
static segue_session *prompted(struct ahead_world *w, uint32_t i)
{
    segue_session *s = begin(w);
    for (uint32_t k = 0; k < 3 * i; k++) append(s, (int32_t)(k + i) % 40);
    return s;
}

static void step_together(segue_session **list, uint32_t n, int32_t got[TOGETHER][LONG], uint32_t from, uint32_t to)
{
    segue_error err = {0}, each[TOGETHER] = {{0}};
    for (uint32_t k = from; k < to; k++) {
        int32_t tokens[TOGETHER];
        assert_int_equal(segue_session_step(list, n, tokens, each, &err), SEGUE_OK);
        for (uint32_t i = 0; i < n; i++) {
            if (each[i].status != SEGUE_OK) fail_msg("%s", each[i].text);
            got[i][k] = tokens[i];
        }
    }
}

/* exact: no best token is excluded as a stop token, after which the next step is computed again. */
static void together(struct ahead_world *w, int exact)
{
    int32_t want[TOGETHER][LONG], got[TOGETHER][LONG], other[4], again[4];
    segue_session *list[TOGETHER], *alone;
    for (uint32_t i = 0; i < TOGETHER; i++) {
        alone = prompted(w, i);
        next(alone, want[i], LONG);
        segue_session_close(alone);
        list[i] = prompted(w, i);
    }
    step_together(list, TOGETHER, got, 0, 1);    /* the prompts */
    uint64_t before = w->unit->unit->steps_issued;
    step_together(list, TOGETHER, got, 1, LONG / 2);
    if (exact) assert_int_equal(w->unit->unit->steps_issued - before, LONG / 2);   /* each of them, and one ahead */
    step_together(list, TOGETHER - 1, got, LONG / 2, LONG - 2);
    append(list[0], (want[0][0] + 7) % 40);
    next(list[2], got[2] + LONG / 2, LONG / 2);
    equal(got[2], want[2], LONG);
    equal(got[1], want[1], LONG - 2);
    equal(got[0], want[0], LONG - 2);
    next(list[0], other, 4);
    alone = prompted(w, 0);
    for (uint32_t i = 0; i < LONG - 2; i++) append(alone, want[0][i]);
    append(alone, (want[0][0] + 7) % 40);
    next(alone, again, 4);
    equal(other, again, 4);
    segue_session_close(alone);
    for (uint32_t i = 0; i < TOGETHER; i++) segue_session_close(list[i]);
}

static void every_kind_of_slot(void **unused)
{
    static const char *const models[] = {"llama", "gemma3", "qwen3_5"};
    (void)unused;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        struct ahead_world w;
        enter(&w, models[i]);
        interleaved(&w);
        together(&w, i == 0);
        leave(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_kind_of_slot)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
