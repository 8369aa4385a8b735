/* threads.c: sessions of several threads on one engine, and on two engines of one unit: each gets the tokens
 * that it gets alone, also when others are forked, closed and canceled beside it. For the thread sanitizer as
 * much as for equality. SPDX-License-Identifier: MIT */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "segue.h"
#include "tiny.h"

#if defined(__SANITIZE_THREAD__) /* sees a race without its consequences */
enum { ROUNDS = 1 };
#else
enum { ROUNDS = 3 };
#endif
enum { THREADS = 4, PROMPT = 24, ANSWER = 10 };

struct thread_worker {
    segue_engine *engine;
    int32_t want[ANSWER], prompt[PROMPT];
    segue_status status;
    int wrong;
    pthread_t thread;
};

static segue_status answer(segue_engine *e, const int32_t *prompt, int32_t *out, int disturb)
{
    segue_session *s = NULL, *fork = NULL;
    segue_session_opts o = SEGUE_INIT(segue_session_opts);
    segue_sampling p = SEGUE_INIT(segue_sampling);
    int32_t token;
    p.ignore_stops = 1;
    p.temperature = 0.9f;
    p.seed = 3;
    o.sampling = &p;
    o.context = 64;
    segue_status status = segue_session_open(&s, e, &o, NULL);
    if (status == SEGUE_OK) status = segue_session_append(s, prompt, PROMPT, NULL);
    for (int i = 0; status == SEGUE_OK && i < ANSWER; i++) {
        status = segue_session_next(s, &out[i], NULL);
        if (disturb && i == 3 && status == SEGUE_OK) status = segue_session_fork(&fork, s, NULL);
        if (fork && i == 5) segue_session_cancel(fork); /* no call of it is in progress, so this has no effect */
        if (fork && status == SEGUE_OK) status = segue_session_next(fork, &token, NULL);
    }
    segue_session_close(fork);
    segue_session_close(s);
    return status;
}

static void *work(void *p)
{
    struct thread_worker *w = p;
    for (int i = 0; w->status == SEGUE_OK && i < ROUNDS; i++) {
        int32_t got[ANSWER];
        w->status = answer(w->engine, w->prompt, got, 1);
        w->wrong |= w->status == SEGUE_OK && memcmp(got, w->want, sizeof got) != 0;
    }
    return NULL;
}

static void threads_do_not_disturb(void **state)
{
    (void)state;
    segue_error err = {0};
    segue_unit_info info[8];
    size_t units_n = 0;
    char folder[512];
    info[0] = SEGUE_INIT(segue_unit_info);
    assert_int_equal(segue_unit_list(info, 8, &units_n, &err), SEGUE_OK);
    for (int m = 0; m < TINY_MODELS; m++) {
        segue_model *model = NULL;
        tiny_folder(folder, sizeof folder, "threads", tiny_models[m].name);
        assert_true(tiny_write(&tiny_models[m], folder, 9));
        if (segue_model_open(&model, folder, NULL, &err) != SEGUE_OK) fail_msg("%s", err.text);
        for (size_t u = 0; u < units_n && u < 8; u++) {
            segue_unit *unit = NULL;
            segue_engine *engines[2] = {0};
            static struct thread_worker workers[THREADS];
            if (!info[u].present || segue_unit_open(&unit, info[u].spec, &err) != SEGUE_OK) continue;
            for (int i = 0; i < 2; i++)
                if (segue_engine_open(&engines[i], model, &unit, 1, NULL, &err) != SEGUE_OK)
                    fail_msg("%s", err.text);
            segue_unit_close(unit); /* the engines hold it */
            for (int i = 0; i < THREADS; i++) {
                workers[i] = (struct thread_worker){.engine = engines[i % 2]};
                for (int k = 0; k < PROMPT; k++) workers[i].prompt[k] = (k * 13 + i * 7) % 93 + 3;
                assert_int_equal(answer(engines[0], workers[i].prompt, workers[i].want, 0), SEGUE_OK);
            }
            for (int i = 0; i < THREADS; i++)
                assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
            for (int i = 0; i < THREADS; i++) pthread_join(workers[i].thread, NULL);
            for (int i = 0; i < THREADS; i++) {
                if (workers[i].status != SEGUE_OK || workers[i].wrong)
                    fail_msg("%s on %s: thread %d: status %d, wrong %d", tiny_models[m].name, info[u].spec, i,
                             workers[i].status, workers[i].wrong);
            }
            segue_engine_close(engines[0]);
            segue_engine_close(engines[1]);
        }
        segue_model_close(model);
    }
    tiny_remove("threads");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(threads_do_not_disturb)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
