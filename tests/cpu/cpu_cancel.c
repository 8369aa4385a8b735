/* cpu_cancel.c: how much work a run of the cpu unit still does after a cancel. The unit's kernels are
 * wrapped and counted. In whichever call the cancel comes, at most a bounded number of calls follow,
 * however many rows the run has and however long the sequence is; afterwards the session continues as
 * if nothing had happened.
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "../api/tiny.h"
#include "engine/placement/units.h"
#include "segue.h"
#include "unit/cpu/cpu_types.h"

enum { ROWS = 700, CANCEL_POINTS = 5, HYBRID = 2 };

/* Kernels whose number of calls grows with rows or keys (delta: calls are counted by row), and how many
 * calls may follow on one thread: per row, SG_CHUNK; attention, the queries of a tile over one chunk;
 * matrices, two products of a tile. */
enum counted { DELTA, CONV, SCORES, TILES, KINDS };
static const struct { const char *name; unsigned limit; } kinds[KINDS] = {
    {"delta", SG_CHUNK}, {"conv", SG_CHUNK}, {"scores", 2 * 8}, {"tiles", 2}};

/* The kernels that the wrappers call. */
static struct sg_kernels original;
static segue_session *session;
static unsigned long calls[KINDS], cancel_at; /* number of the call in which the cancel comes; 0: never */
static enum counted watched_kernel;

/* Counts a call, and cancels the session in call number cancel_at. */
static void count(enum counted what)
{
    if (++calls[what] == cancel_at && what == watched_kernel) segue_session_cancel(session);
}

static void delta(float *s, const struct sg_delta_args *r)
{
    for (uint32_t i = 0; i < r->rows; i++) count(DELTA);
    original.delta(s, r);
}

static void conv(const float *const *x, uint32_t taps, const float *w, size_t ldw, const float *bias, enum sg_act act, size_t n,
                 float *y)
{
    count(CONV);
    original.conv(x, taps, w, ldw, bias, act, n, y);
}

static void scores(const float *q, uint32_t nq, uint32_t d, const float *k, uint32_t keys, float *s)
{
    count(SCORES);
    original.scores(q, nq, d, k, keys, s);
}

static void few(const uint8_t *w, size_t k, uint32_t rows, const void *x, uint32_t nt, uint32_t fine, float *out, size_t ldo)
{
    count(TILES);
    original.few[SG_PACK_F32](w, k, rows, x, nt, fine, out, ldo);
}

/* Writes a small hybrid model to a temporary folder. */
static int setup(void **state)
{
    char folder[512];
    (void)state;
    tiny_folder(folder, sizeof folder, "cancel", tiny_models[HYBRID].name);
    return tiny_write(&tiny_models[HYBRID], folder, 3) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    tiny_remove("cancel");
    return 0;
}

static void work_after_cancel_is_bounded(void **state)
{
    (void)state;
    char folder[512];
    segue_error err;
    segue_model *model = NULL;
    segue_unit *unit = NULL;
    segue_engine *engine = NULL;
    segue_engine_opts eo = SEGUE_INIT(segue_engine_opts);
    segue_session_opts o = SEGUE_INIT(segue_session_opts);
    static int32_t prompt[ROWS];
    unsigned long all[KINDS];
    int32_t want = 0, got = 0;
    for (int i = 0; i < ROWS; i++) prompt[i] = (i * 31 + 5) % 93 + 3;
    tiny_folder(folder, sizeof folder, "cancel", tiny_models[HYBRID].name);
    assert_int_equal(segue_model_open(&model, folder, NULL, &err), SEGUE_OK);
    assert_int_equal(segue_unit_open(&unit, "cpu:isa=generic,threads=1", &err), SEGUE_OK);
    eo.chunk_tokens = ROWS;
    o.context = ROWS + 8;
    struct sg_cpu_unit *u = (struct sg_cpu_unit *)(void *)unit->unit;
    original = u->k;
    u->k.delta = delta;
    u->k.conv = conv;
    u->k.scores = scores;
    u->k.few[SG_PACK_F32] = few;
    assert_int_equal(segue_engine_open(&engine, model, &unit, 1, &eo, &err), SEGUE_OK);
    /* k = -1: a complete run, to count all calls; then cancels at several points of each kernel */
    for (int k = -1; k < KINDS; k++)
        for (unsigned long i = 0; i < (k < 0 ? 1 : CANCEL_POINTS); i++) {
            assert_int_equal(segue_session_open(&session, engine, &o, &err), SEGUE_OK);
            assert_int_equal(segue_session_append(session, prompt, ROWS, &err), SEGUE_OK);
            memset(calls, 0, sizeof calls);
            cancel_at = k < 0 ? 0 : 1 + i * (all[k] - 1) / CANCEL_POINTS;
            watched_kernel = (enum counted)(k < 0 ? 0 : k);
            segue_status s = segue_session_next(session, k < 0 ? &want : &got, &err);
            if (k < 0) {
                assert_int_equal(s, SEGUE_OK);
                memcpy(all, calls, sizeof all);
                /* otherwise the bound shows nothing */
                for (int n = 0; n < KINDS; n++) assert_true(all[n] > 4 * kinds[n].limit);
            } else {
                assert_int_equal(s, SEGUE_ECANCELED);
                for (int n = 0; n < KINDS; n++)
                    if (n == k && calls[n] - cancel_at >= kinds[n].limit)
                        fail_msg("%s: %lu calls after a cancel in call %lu of %lu", kinds[n].name, calls[n] - cancel_at,
                                 cancel_at, all[n]);
                cancel_at = 0;
                assert_int_equal(segue_session_next(session, &got, &err), SEGUE_OK);
                assert_int_equal(got, want);
            }
            segue_session_close(session);
        }
    segue_engine_close(engine);
    segue_unit_close(unit);
    segue_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(work_after_cancel_is_bounded)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
