/* scheduler_disk.c: running answers do not wait for the files of the prefix store: states are read by the other worker, and
 * written before memory is short. Orders and counts only. SPDX-License-Identifier: MIT */
#include <unistd.h>

#include "scheduling.h"

#include "engine/engine.h"
#include "engine/scheduler/scheduler.h"
#include "engine/store/prefixstore.h"

enum { RUNNING = 5, STORED = 4 }; /* numbers of prompts: of 100 and 81 tokens */

static char folder[512];

static void open_stored(struct fixture *f, const char *model, uint64_t memory)
{
    segue_engine_opts o = SEGUE_INIT(segue_engine_opts);
    tiny_folder(folder, sizeof folder, "scheduler", "files");
    o.store = folder;
    o.store_memory_bytes = memory;
    open_fixture(f, model, "ref", NULL, &o);
}

static void round_of(segue_scheduler *s, uint32_t worker)
{
    pthread_mutex_lock(&s->lock);
    sg_scheduler_round(s, worker);
    pthread_mutex_unlock(&s->lock);
}

static segue_request_info info_of(segue_request *q)
{
    segue_request_info i = SEGUE_INIT(segue_request_info);
    segue_error err;
    assert_int_equal(segue_request_info_get(q, &i, &err), SEGUE_OK);
    return i;
}

/* A request whose states are in a file does not take part in the rounds of the answers until the other worker has read it. */
static void reading_with(const char *model)
{
    struct fixture f;
    segue_scheduler *s;
    segue_scheduler_opts o = SEGUE_INIT(segue_scheduler_opts);
    segue_error err;
    int32_t want[2][ANSWER];
    o.manual = 1;
    open_stored(&f, model, 0);
    assert_int_equal(segue_scheduler_open(&s, f.engine, &o, &err), SEGUE_OK);
    segue_request *first = submit(s, STORED, ANSWER);
    while (segue_scheduler_run(s, &err) == SEGUE_OK) {}
    segue_request_close(first);
    segue_scheduler_close(s);
    close_fixture(&f); /* which writes the file */

    open_stored(&f, model, 0);
    alone(&f, NULL, RUNNING, want[0]);
    alone(&f, NULL, STORED, want[1]);
    assert_int_equal(segue_scheduler_open(&s, f.engine, &o, &err), SEGUE_OK);
    segue_request *answer = submit(s, RUNNING, ANSWER);
    while (!info_of(answer).tokens_out) assert_int_equal(segue_scheduler_run(s, &err), SEGUE_OK);
    segue_request *stored = submit(s, STORED, ANSWER);
    uint64_t had = info_of(answer).tokens_out;
    for (uint64_t i = 1; i <= 5; i++) {
        round_of(s, SG_WORKER_SHARED);
        assert_int_equal(info_of(answer).tokens_out, had + i);
        assert_int_equal(info_of(stored).tokens_computed, 0);
    }
    round_of(s, SG_WORKER_PREFILL);
    assert_int_equal(info_of(answer).tokens_out, had + 5);
    round_of(s, SG_WORKER_SHARED);
    assert_int_equal(info_of(answer).tokens_out, had + 6);
    assert_true(info_of(stored).tokens_reused >= 80);
    assert_true(info_of(stored).tokens_out + info_of(stored).tokens_computed > 0);
    while (segue_scheduler_run(s, &err) == SEGUE_OK) {}
    expect_answer(answer, want[0]);
    expect_answer(stored, want[1]);
    segue_request_close(answer);
    segue_request_close(stored);
    segue_scheduler_close(s);
    close_fixture(&f);
    tiny_empty(folder);
}

static void reading(void **state)
{
    (void)state;
    reading_with("llama");
    reading_with("hybrid"); /* recurrent slots: a checkpoint of the file */
}

/* Waits until the writer has nothing to do. */
static void settle(struct sg_store *s)
{
    pthread_mutex_lock(&s->lock);
    while (s->writer_started && !s->writer_idle) pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

/* 12 prompts of about 40 KB in a memory of 160 KB: no thread that computes writes a file, and none of the prompts is lost. */
static void writing(void **state)
{
    enum { N = 12, LENGTH = 100 };
    struct fixture f;
    segue_error err;
    (void)state;
    open_stored(&f, "llama", 160000);
    struct sg_store *store = f.engine->store;
    for (int again = 0; again < 2; again++) {
        for (int i = 0; i < N; i++) {
            segue_session *x;
            segue_stats stats = SEGUE_INIT(segue_stats);
            int32_t prompt[LENGTH], token;
            for (int k = 0; k < LENGTH; k++) prompt[k] = (i * 29 + k * 7 + 1) % (TINY_VOCAB - 3) + 3;
            assert_int_equal(segue_session_open(&x, f.engine, NULL, &err), SEGUE_OK);
            assert_int_equal(segue_session_append(x, prompt, LENGTH, &err), SEGUE_OK);
            assert_int_equal(segue_session_next(x, &token, &err), SEGUE_OK);
            assert_int_equal(segue_session_stats_get(x, &stats, &err), SEGUE_OK);
            assert_true(!again || stats.tokens_reused >= LENGTH - 1);
            segue_session_close(x);
            settle(store);
        }
    }
    assert_int_equal(store->written_late, 0);
    assert_true(store->written_ahead >= N - 4);
    close_fixture(&f);
    tiny_empty(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(reading), cmocka_unit_test(writing)};
    return cmocka_run_group_tests(tests, write_models, remove_models);
}
