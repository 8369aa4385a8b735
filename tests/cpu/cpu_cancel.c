/* cpu_cancel.c: what a run of the cpu unit still does after it was canceled. The unit's kernels are counted: whichever call
 * the cancel comes in, at most a bounded number of calls follow, however many rows the run has and however long the
 * sequence is; and the session goes on afterwards as if nothing had happened. SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "../api/tiny.h"
#include "engine/placement/units.h"
#include "segue.h"
#include "unit/cpu/cpu_types.h"

enum { ROWS = 700, MOMENTS = 5, HYBRID = 2 };

/* Kernels whose number of calls (of delta: rows) grows with rows or keys, and how many may follow on one thread: by row,
 * SG_CHUNK; of attention, the queries of a tile over one chunk; of matrices, the two products of a tile. */
enum counted { DELTA, CONV, SCORES, TILES, KINDS };
static const struct { const char *name; unsigned most; } kinds[KINDS] = {
    {"delta", SG_CHUNK}, {"conv", SG_CHUNK}, {"scores", 2 * 8}, {"tiles", 2}};

static struct sg_kernels sound;
static segue_session *session;
static unsigned long calls[KINDS], fatal; /* the call in which the cancel comes; 0: none */
static enum counted watched;

static void count(enum counted what)
{
    if (++calls[what] == fatal && what == watched) segue_session_cancel(session);
}

static void delta(float *s, const struct sg_delta_args *r)
{
    for (uint32_t i = 0; i < r->rows; i++) count(DELTA);
    sound.delta(s, r);
}

static void conv(const float *const *x, uint32_t taps, const float *w, size_t ldw, const float *bias, enum sg_act act, size_t n,
                 float *y)
{
    count(CONV);
    sound.conv(x, taps, w, ldw, bias, act, n, y);
}

static void scores(const float *q, uint32_t nq, uint32_t d, const float *k, uint32_t keys, float *s)
{
    count(SCORES);
    sound.scores(q, nq, d, k, keys, s);
}

static void few(const uint8_t *w, size_t k, uint32_t rows, const void *x, uint32_t nt, uint32_t fine, float *out, size_t ldo)
{
    count(TILES);
    sound.few[SG_PACK_F32](w, k, rows, x, nt, fine, out, ldo);
}

static int begin(void **state)
{
    char folder[512];
    (void)state;
    tiny_folder(folder, sizeof folder, "cancel", tiny_models[HYBRID].name);
    return tiny_write(&tiny_models[HYBRID], folder, 3) ? 0 : -1;
}

static int end(void **state)
{
    (void)state;
    tiny_remove("cancel");
    return 0;
}

static void work_after_a_cancel_is_bounded(void **state)
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
    eo.chunk_rows = ROWS;
    o.context = ROWS + 8;
    struct sg_cpu_unit *u = (struct sg_cpu_unit *)(void *)unit->unit;
    sound = u->k;
    u->k.delta = delta;
    u->k.conv = conv;
    u->k.scores = scores;
    u->k.few[SG_PACK_F32] = few;
    assert_int_equal(segue_engine_open(&engine, model, &unit, 1, &eo, &err), SEGUE_OK);
    for (int k = -1; k < KINDS; k++)
        for (unsigned long i = 0; i < (k < 0 ? 1 : MOMENTS); i++) {
            assert_int_equal(segue_session_open(&session, engine, &o, &err), SEGUE_OK);
            assert_int_equal(segue_session_append(session, prompt, ROWS, &err), SEGUE_OK);
            memset(calls, 0, sizeof calls);
            fatal = k < 0 ? 0 : 1 + i * (all[k] - 1) / MOMENTS;
            watched = (enum counted)(k < 0 ? 0 : k);
            segue_status s = segue_session_next(session, k < 0 ? &want : &got, &err);
            if (k < 0) {
                assert_int_equal(s, SEGUE_OK);
                memcpy(all, calls, sizeof all);
                for (int n = 0; n < KINDS; n++) assert_true(all[n] > 4 * kinds[n].most); /* else nothing is shown */
            } else {
                assert_int_equal(s, SEGUE_ECANCELED);
                for (int n = 0; n < KINDS; n++)
                    if (n == k && calls[n] - fatal >= kinds[n].most)
                        fail_msg("%s: %lu calls after a cancel in call %lu of %lu", kinds[n].name, calls[n] - fatal, fatal,
                                 all[n]);
                fatal = 0;
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(work_after_a_cancel_is_bounded)};
    return cmocka_run_group_tests(tests, begin, end);
}
