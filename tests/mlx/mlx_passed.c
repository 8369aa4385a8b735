/* mlx_passed.c: hand-offs that pass memory on (state_attach): who owns it when sessions are forked, rewound, moved back and
 * closed in any order; what is streamed where rows cannot be passed on; views of memory beyond the range of int.
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "api/plans.h"
#include "segue.h"
#include "unit/mlx/mlxunit.h"

enum { PROMPT = 150, ANSWER = 8, CHUNK = 64 };      /* a chunk is a block of ref: a fork at its end shares whole blocks */

struct passing {
    segue_unit *units[2];
    segue_model *model;
    segue_engine *engine;
    segue_plan *split, *alone;
};

static segue_error err;
static void ok_(segue_status s, int line)
{
    if (s != SEGUE_OK) fail_msg("line %d: %s", line, err.text);
}
#define OK(call) ok_(call, __LINE__)

static void enter(struct passing *p, const char *model, uint32_t layers)
{
    char path[512];
    segue_engine_opts o = SEGUE_INIT(segue_engine_opts);
    o.kv = SEGUE_KV_F32;
    o.chunk_tokens = CHUNK;
    snprintf(path, sizeof path, SEGUE_SOURCE_DIR "/tests/golden/tiny/%s", model);
    OK(segue_unit_open(&p->units[0], "ref", &err));
    OK(segue_unit_open(&p->units[1], "mlx:cpu", &err));
    OK(segue_model_open(&p->model, path, NULL, &err));
    OK(segue_engine_open(&p->engine, p->model, p->units, 2, &o, &err));
    p->split = two_phase_plan(0, 1, layers);
    p->alone = two_phase_plan(1, 1, layers);
}

static void leave(struct passing *p)
{
    segue_plan_close(p->split);
    segue_plan_close(p->alone);
    segue_engine_close(p->engine);
    segue_model_close(p->model);
    segue_unit_close(p->units[0]);
    segue_unit_close(p->units[1]);
}

static segue_session *begin(struct passing *p, const segue_plan *plan)
{
    segue_session *s;
    segue_session_opts o = SEGUE_INIT(segue_session_opts);
    segue_sampling greedy = SEGUE_INIT(segue_sampling);
    greedy.ignore_stops = 1;
    o.sampling = &greedy;
    o.plan = plan;
    OK(segue_session_open(&s, p->engine, &o, &err));
    return s;
}

static void append(segue_session *s, int from, int n)
{
    for (int32_t i = from; i < from + n; i++) OK(segue_session_append(s, &(int32_t){(i * 7 + 3) % 60}, 1, &err));
}

static void answer(segue_session *s, int32_t tokens[ANSWER])
{
    for (int i = 0; i < ANSWER; i++) OK(segue_session_next(s, &tokens[i], &err));
}

static void is_answer(segue_session *s, const int32_t want[ANSWER])
{
    int32_t got[ANSWER];
    answer(s, got);
    assert_memory_equal(got, want, sizeof got);
}

static segue_stats stats_of(const segue_session *s)
{
    segue_stats stats = SEGUE_INIT(segue_stats);
    OK(segue_session_stats_get(s, &stats, &err));
    return stats;
}

/* The answers after PROMPT tokens, and after `more` tokens that follow the answer, of the unit that decodes alone. */
static void alone(struct passing *p, int32_t first[ANSWER], int more, int32_t second[ANSWER])
{
    segue_session *s = begin(p, p->alone);
    append(s, 0, PROMPT);
    answer(s, first);
    append(s, 100, more);
    answer(s, second);
    segue_session_close(s);
}

/* The source is closed before the fork, and the other way round; the other one keeps what was passed on. */
static void any_of_them_may_be_closed_first(void **state)
{
    (void)state;
    struct passing p;
    int32_t first[ANSWER], second[ANSWER];
    enter(&p, "qwen3_5", 4);
    alone(&p, first, 5, second);
    for (int order = 0; order < 2; order++) {
        segue_session *s = begin(&p, p.split), *fork;
        append(s, 0, PROMPT);
        is_answer(s, first);
        assert_true(stats_of(s).copied_bytes < stats_of(s).handoff_bytes);
        OK(segue_session_fork(&fork, s, &err));
        segue_session *closed = order ? fork : s, *left = order ? s : fork;
        segue_session_close(closed);
        append(left, 100, 5);                  /* moves back to the prefill unit, and is handed over again */
        is_answer(left, second);
        segue_session_close(left);
    }
    leave(&p);
}

static void a_rewound_session_is_handed_over_again(void **state)
{
    (void)state;
    struct passing p;
    int32_t first[ANSWER], second[ANSWER];
    enter(&p, "qwen3_5", 4);
    alone(&p, first, 5, second);
    segue_session *s = begin(&p, p.split);
    append(s, 0, PROMPT);
    OK(segue_session_prefill(s, CHUNK, NULL, &err));
    is_answer(s, first);
    OK(segue_session_rewind(s, PROMPT / 2, &err));       /* within the prompt: the state was passed on before */
    append(s, PROMPT / 2, PROMPT / 2);
    is_answer(s, first);
    OK(segue_session_rewind(s, 0, &err));
    append(s, 0, PROMPT);
    is_answer(s, first);
    append(s, 100, 5);
    is_answer(s, second);
    segue_session_close(s);
    leave(&p);
}

/* A fork within the prompt has no memory of the decode unit, so its rows are copied while later ones are computed; those of
 * another session wait for the last chunk and are passed on. */
static void rows_that_cannot_be_passed_on_are_streamed(void **state)
{
    (void)state;
    struct passing p;
    int32_t first[ANSWER], second[ANSWER];
    const uint64_t rows = (uint64_t)2 * PROMPT * 2 * 16 * sizeof(float);     /* K and V: 2 heads of 16, one layer */
    enter(&p, "qwen3_5", 4);
    alone(&p, first, 5, second);
    segue_session *s = begin(&p, p.split), *other = begin(&p, p.split), *fork;
    append(other, 0, PROMPT);
    is_answer(other, first);
    assert_int_equal(stats_of(other).handoff_bytes - stats_of(other).copied_bytes, rows);
    segue_session_close(other);
    append(s, 0, PROMPT);
    OK(segue_session_prefill(s, CHUNK - 4, NULL, &err));
    OK(segue_session_fork(&fork, s, &err));
    OK(segue_session_prefill(fork, CHUNK, NULL, &err));
    assert_true(stats_of(fork).handoff_bytes > 0);
    is_answer(fork, first);
    assert_int_equal(stats_of(fork).copied_bytes, stats_of(fork).handoff_bytes);
    is_answer(s, first);
    segue_session_close(fork);
    segue_session_close(s);
    leave(&p);
}

/* Each call of prefill ends with a hand-off: the first rows are passed on, later ones are copied behind them. */
static void rows_of_a_prompt_in_parts_are_counted(void **state)
{
    (void)state;
    struct passing p;
    int32_t first[ANSWER], second[ANSWER];
    const uint64_t row = (uint64_t)2 * 2 * 2 * 8 * sizeof(float);    /* K and V: 2 heads of 8, 2 layers */
    enter(&p, "llama", 2);
    alone(&p, first, 5, second);
    segue_session *s = begin(&p, p.split);
    append(s, 0, 10);
    OK(segue_session_prefill(s, 9, NULL, &err));
    assert_int_equal(stats_of(s).handoff_bytes, 9 * row);
    append(s, 10, PROMPT - 10);
    is_answer(s, first);
    assert_int_equal(stats_of(s).handoff_bytes, PROMPT * row);
    assert_int_equal(stats_of(s).copied_bytes, (PROMPT - 9) * row);
    segue_session_close(s);
    leave(&p);
}

/* 9 GB of memory, of which nearly nothing is touched: a view near its end, in 2 and in 4 bytes. */
static void views_reach_beyond_the_range_of_int(void **state)
{
    (void)state;
    const size_t bytes = (size_t)9 << 30, at = bytes - 4096;
    const uint32_t shape[2] = {2, 8};
    char text[MXC_TEXT];
    void *address = NULL;
    struct mxc_device *d = mxc_device_new(0, text);
    struct mxc_tape *t = mxc_tape_new(d);
    struct mxc_memory *m = mxc_memory_new(bytes, &address);
    if (!m) skip();
    float numbers[16], got[16];
    uint16_t halves[16];
    for (int i = 0; i < 16; i++) numbers[i] = (float)i;
    memcpy((char *)address + at, numbers, sizeof numbers);
    mxc_ref x = mxc_of_memory(t, m, at, MXC_F32, shape, 2);
    assert_int_equal(mxc_read(t, x, got, sizeof got), 1);
    assert_memory_equal(got, numbers, sizeof got);
    mxc_ref y = mxc_of_memory(t, m, at, MXC_BF16, shape, 2);
    assert_int_equal(mxc_read(t, y, halves, sizeof halves), 1);
    assert_memory_equal(halves, numbers, sizeof halves);
    mxc_memory_free(m);                        /* the arrays keep it */
    assert_int_equal(mxc_read(t, x, got, sizeof got), 1);
    assert_memory_equal(got, numbers, sizeof got);
    mxc_tape_clear(t);
    mxc_free_unused();
    mxc_tape_free(t);
    mxc_device_free(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_of_them_may_be_closed_first),
        cmocka_unit_test(a_rewound_session_is_handed_over_again),
        cmocka_unit_test(rows_that_cannot_be_passed_on_are_streamed),
        cmocka_unit_test(rows_of_a_prompt_in_parts_are_counted),
        cmocka_unit_test(views_reach_beyond_the_range_of_int),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
