/* proc_hostile.c: a process that sends false data, stalls, closes early, answers out of order or with invalid numbers, from each
 * of its first requests on. The parent says so by name, or continues elsewhere with the right tokens; it never hangs and never
 * takes a wrong answer for a right one. SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "../api/tiny.h"
#include "segue.h"

enum { PROMPT = 21, TOKENS = 6, HYBRID = 2 };

static segue_model *model;
static int32_t prompt[PROMPT], want[TOKENS];
static int all; /* every moment */
static char folder[512];

static segue_status answer(const char *first, const char *second, int32_t *ids, segue_stats *stats, segue_error *err)
{
    segue_unit *units[2] = {0};
    segue_engine *engine = NULL;
    segue_session *session = NULL;
    segue_engine_opts eo = SEGUE_INIT(segue_engine_opts);
    eo.chunk_tokens = 8;
    eo.kv = SEGUE_KV_F32;
    segue_status s = segue_unit_open(&units[0], first, err);
    if (s == SEGUE_OK && second) s = segue_unit_open(&units[1], second, err);
    if (s == SEGUE_OK) s = segue_engine_open(&engine, model, units, second ? 2 : 1, &eo, err);
    if (s == SEGUE_OK) s = segue_session_open(&session, engine, NULL, err);
    if (s == SEGUE_OK) s = segue_session_append(session, prompt, PROMPT, err);
    for (int i = 0; i < TOKENS && s == SEGUE_OK; i++) {
        s = segue_session_next(session, &ids[i], err);
        if (s == SEGUE_END) s = SEGUE_OK;
    }
    *stats = SEGUE_INIT(segue_stats);
    if (session) segue_session_stats_get(session, stats, NULL);
    segue_session_close(session);
    segue_engine_close(engine);
    for (int i = 0; i < 2; i++) segue_unit_close(units[i]);
    return s;
}

static int begin(void **state)
{
    (void)state;
    segue_error err;
    segue_stats stats;
    for (int i = 0; i < PROMPT; i++) prompt[i] = (i * 31 + 5) % 93 + 3;
    tiny_folder(folder, sizeof folder, "hostile", tiny_models[HYBRID].name);
    if (!tiny_write(&tiny_models[HYBRID], folder, 3)) return -1;
    if (segue_model_open(&model, folder, NULL, &err) != SEGUE_OK) return -1;
    setenv("SEGUE_COMMAND", SEGUE_BINARY_DIR "/tests/proc_double", 1);
    return answer("ref", NULL, want, &stats, &err) == SEGUE_OK ? 0 : -1;
}

static int end(void **state)
{
    (void)state;
    segue_model_close(model);
    tiny_remove("hostile");
    return 0;
}

/* As it should be, the double is a process like any other. */
static void behaves(void **state)
{
    (void)state;
    int32_t ids[TOKENS];
    segue_stats stats;
    segue_error err;
    unsetenv("PROC_DOUBLE");
    setenv("SEGUE_UNIT_WAIT_MS", "10000", 1);
    segue_status s = answer("proc:ref", NULL, ids, &stats, &err);
    if (s != SEGUE_OK) fail_msg("%s", err.text);
    assert_memory_equal(ids, want, sizeof want);
    assert_int_equal(stats.losses_n, 0);
}

static void misbehaves(void **state)
{
    (void)state;
    static const char *const modes[] = {"close", "crash", "noise", "order", "kind", "huge", "status", "short", "long", "rows",
                                        "held",  "nan",   "random", "lend", "twice", "cancels", "silent", "half", "busy"};
    static const char *const moments[] = {"0", "2", "4", "7", "8", "9", "12", "16"};
    unsigned refused = 0, survived = 0, unseen = 0;
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        for (size_t k = 0; k < sizeof moments / sizeof *moments; k++) {
            int32_t ids[TOKENS];
            segue_stats stats;
            segue_error err = {0};
            int slow = i >= 16; /* those are found by waiting */
            if ((slow || !all) && k != 4 && k != 0 && (slow || k != 7)) continue;
            setenv("SEGUE_UNIT_WAIT_MS", slow ? "60" : "10000", 1);   /* a busy machine is no fault of the others */
            setenv("PROC_DOUBLE", modes[i], 1);
            setenv("PROC_DOUBLE_AFTER", moments[k], 1);
            segue_status s = answer("proc:ref", "ref", ids, &stats, &err);
            if (s == SEGUE_OK) {
                if (memcmp(ids, want, sizeof want)) fail_msg("%s at %s: wrong tokens", modes[i], moments[k]);
                if (stats.losses_n) survived++;
                else unseen++;
            } else if ((s == SEGUE_ELOST || s == SEGUE_EUNIT) && strstr(err.text, "proc:ref")) {
                refused++;
            } else {
                fail_msg("%s at %s: %d: %s", modes[i], moments[k], s, err.text);
            }
        }
    print_message("%u refused by name, %u survived elsewhere, %u without consequence\n", refused, survived, unseen);
    assert_true(refused >= 15 && survived >= 15);
}

/* A process that lives but keeps the rows of a state to itself is given up after six times the limit, not after a thousand
 * times: 1.5 s here, where it was four minutes. The alarm ends a test that waits for them. */
static void withholding_is_bounded(void **state)
{
    (void)state;
    int32_t ids[TOKENS];
    segue_stats stats;
    segue_error err = {0};
    setenv("SEGUE_UNIT_WAIT_MS", "250", 1);
    setenv("PROC_DOUBLE", "withholds", 1);
    setenv("PROC_DOUBLE_AFTER", "1000000", 1);
    alarm(120);
    segue_status s = answer("proc:ref", "ref", ids, &stats, &err);
    alarm(0);
    if (s != SEGUE_OK && !((s == SEGUE_ELOST || s == SEGUE_EUNIT) && strstr(err.text, "did not reply in time")))
        fail_msg("%d: %s", s, err.text);
    if (s == SEGUE_OK) assert_true(stats.losses_n > 0 && !memcmp(ids, want, sizeof want));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(behaves),
        cmocka_unit_test(misbehaves),
        cmocka_unit_test(withholding_is_bounded),
    };
    all = argc > 1 && !strcmp(argv[1], "all");
    return cmocka_run_group_tests(tests, begin, end);
}
