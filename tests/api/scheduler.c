/* scheduler.c: requests of a scheduler against single runs of sessions: joins and leaves, chunks beside running answers, cancel,
 * errors, back-pressure, threads of the library and of the caller. SPDX-License-Identifier: MIT */
#include <pthread.h>

#include "engine/engine.h"
#include "scheduling.h"

static void compare(struct fixture *f, const segue_scheduler_opts *o)
{
    int32_t want[PROMPTS][ANSWER];
    segue_request *q[PROMPTS];
    segue_scheduler *s;
    segue_scheduler_info info = SEGUE_INIT(segue_scheduler_info);
    segue_error err;
    for (int i = 0; i < PROMPTS; i++) alone(f, o->plan, i, want[i]);
    if (segue_scheduler_open(&s, f->engine, o, &err) != SEGUE_OK) fail_msg("%s", err.text);
    for (int i = 0; i < PROMPTS; i++) q[i] = submit(s, i, ANSWER);
    if (o->manual) while (segue_scheduler_run(s, &err) == SEGUE_OK) {}
    for (int i = PROMPTS; i-- > 0;) expect_answer(q[i], want[i]);
    for (int i = 0; i < PROMPTS && o->verify_tokens; i++) { /* the first of verify_every, and so on */
        segue_request_info each = SEGUE_INIT(segue_request_info);
        assert_int_equal(segue_request_info_get(q[i], &each, &err), SEGUE_OK);
        assert_int_equal(each.verify.tokens, i % (int)o->verify_every ? 0 : o->verify_tokens);
    }
    assert_int_equal(segue_scheduler_info_get(s, &info, &err), SEGUE_OK);
    assert_int_equal(info.finished, PROMPTS);
    assert_int_equal(info.chosen_tokens, PROMPTS * ANSWER);
    assert_int_equal(info.unfinished, 0);
    if (!o->plan) assert_true(info.shared_runs > 0); /* with two units answers may never meet */
    segue_request_close(q[0]);
    segue_scheduler_close(s);
    for (int i = 1; i < PROMPTS; i++) segue_request_close(q[i]);
}

/* Few may run at once, so requests join when others leave; chunks of 16 tokens run beside answers. */
static void joins_and_leaves(void **state)
{
    (void)state;
    for (int m = 0; m < TINY_MODELS; m++)
        for (int manual = 0; manual < 2; manual++) {
            struct fixture f;
            segue_engine_opts e = SEGUE_INIT(segue_engine_opts);
            segue_scheduler_opts o = SEGUE_INIT(segue_scheduler_opts);
            e.chunk_tokens = 16;
            o.manual = (uint32_t)manual;
            o.running = manual ? 3 : 4;
            open_fixture(&f, tiny_models[m].name, "ref", NULL, &e);
            compare(&f, &o);
            close_fixture(&f);
        }
}

/* On cpu the same holds bit for bit with deterministic = 1, whatever shares a run. */
static void deterministic_cpu(void **state)
{
    (void)state;
    for (int m = 0; m < TINY_MODELS; m++) {
        struct fixture f;
        segue_engine_opts e = SEGUE_INIT(segue_engine_opts);
        segue_scheduler_opts o = SEGUE_INIT(segue_scheduler_opts);
        e.deterministic = 1;
        o.running = 6; /* prompts of 5 to 100 tokens beside each other: more rows than a run of answers */
        o.manual = 1;
        open_fixture(&f, tiny_models[m].name, "cpu", NULL, &e);
        compare(&f, &o);
        close_fixture(&f);
    }
}

static void two_units(void **state)
{
    (void)state;
    for (int m = 0; m < TINY_MODELS; m++) {
        struct fixture f;
        segue_plan *plan;
        segue_error err;
        segue_scheduler_opts o = SEGUE_INIT(segue_scheduler_opts);
        segue_part parts[2] = {SEGUE_INIT(segue_part), SEGUE_INIT(segue_part)};
        open_fixture(&f, tiny_models[m].name, "ref", "ref:threads=1", NULL);
        parts[0].to = parts[1].to = 3;
        parts[1].phase = SEGUE_DECODE;
        parts[1].unit = 1;
        assert_int_equal(segue_plan_new(&plan, parts, 2, NULL, &err), SEGUE_OK);
        o.plan = plan;
        o.running = 4;
        o.verify_tokens = 4;
        o.verify_every = 2;
        compare(&f, &o);
        segue_plan_close(plan);
        close_fixture(&f);
    }
}

static void cancel_any_time(void **state)
{
    struct fixture f;
    segue_scheduler *s;
    segue_scheduler_opts o = SEGUE_INIT(segue_scheduler_opts);
    int32_t want[ANSWER], got[64];
    size_t n;
    segue_status status;
    segue_error err;
    (void)state;
    open_fixture(&f, "llama", "ref", NULL, NULL);
    alone(&f, NULL, 0, want);
    o.running = 2;
    o.unread_tokens = 8; /* the first two pause, and never end by themselves */
    assert_int_equal(segue_scheduler_open(&s, f.engine, &o, &err), SEGUE_OK);
    segue_request *endless = submit(s, 2, 0), *second = submit(s, 3, 0), *waits = submit(s, 4, 4), *kept = submit(s, 0, ANSWER);
    segue_request_cancel(waits);
    assert_int_equal(read_all(waits, got, 64, &status), 0);
    assert_int_equal(status, SEGUE_ECANCELED);
    assert_int_equal(segue_request_read(endless, got, NULL, 64, &n, forever, &err), SEGUE_OK);
    assert_true(n > 0);
    segue_request_cancel(endless);
    while ((status = segue_request_read(endless, got, NULL, 64, &n, forever, &err)) == SEGUE_OK) {}
    assert_int_equal(status, SEGUE_ECANCELED);
    expect_answer(kept, want);
    segue_request_close(second); /* while it runs */
    segue_request_close(endless);
    segue_request_close(waits);
    segue_scheduler_close(s);
    segue_request_close(kept);
    close_fixture(&f);
}

/* One that fails, and one whose reader is slow, do not touch the others. */
static void errors_and_slow_readers(void **state)
{
    struct fixture f;
    segue_scheduler *s;
    segue_scheduler_opts o = SEGUE_INIT(segue_scheduler_opts);
    segue_request_info info = SEGUE_INIT(segue_request_info);
    segue_request_opts bad = SEGUE_INIT(segue_request_opts);
    segue_request *q;
    int32_t want[ANSWER], one, tokens[300] = {TINY_VOCAB};
    size_t n;
    segue_error err;
    (void)state;
    open_fixture(&f, "hybrid", "ref", NULL, NULL);
    alone(&f, NULL, 1, want);
    o.manual = 1;
    o.unread_tokens = 3;
    o.waiting = 2;
    assert_int_equal(segue_scheduler_open(&s, f.engine, &o, &err), SEGUE_OK);
    bad.tokens = tokens;
    bad.tokens_n = 1;
    assert_int_equal(segue_request_submit(&q, s, &bad, &err), SEGUE_EARG);
    tokens[0] = 5;
    bad.tokens_n = 300;
    assert_int_equal(segue_request_submit(&q, s, &bad, &err), SEGUE_ELIMIT);
    segue_request *slow = submit(s, 1, ANSWER), *other = submit(s, 2, 3);
    bad.tokens_n = 4;
    assert_int_equal(segue_request_submit(&q, s, &bad, &err), SEGUE_ELIMIT);
    while (segue_scheduler_run(s, &err) == SEGUE_OK) {}
    assert_int_equal(segue_request_info_get(other, &info, &err), SEGUE_OK);
    assert_int_equal(info.finish, SEGUE_FINISH_LENGTH);
    for (int i = 0; i < ANSWER; i++) {
        assert_int_equal(segue_request_info_get(slow, &info, &err), SEGUE_OK);
        if (i < ANSWER - 3) assert_string_equal(info.waits_for, "reader");
        assert_int_equal(segue_request_read(slow, &one, NULL, 1, &n, 0, &err), SEGUE_OK);
        assert_int_equal(n, 1);
        assert_int_equal(one, want[i]);
        while (segue_scheduler_run(s, &err) == SEGUE_OK) {}
    }
    assert_int_equal(segue_request_read(slow, &one, NULL, 1, &n, 0, &err), SEGUE_END);
    segue_request_close(slow);
    segue_request_close(other);
    segue_scheduler_close(s);
    close_fixture(&f);
}

/* --- many threads --- */

enum { THREADS = 3, REQUESTS = 12 };

struct client {
    segue_scheduler *scheduler;
    int32_t (*want)[ANSWER];
    uint32_t random;
    int wrong;
};

/* Submits, reads, cancels and closes by a fixed sequence of random numbers. */
static void *client_main(void *arg)
{
    struct client *c = arg;
    for (int i = 0; i < REQUESTS; i++) {
        int32_t got[ANSWER + 1];
        segue_status status = SEGUE_OK;
        size_t n = 0;
        c->random = c->random * 1664525u + 1013904223u;
        int which = (int)((c->random >> 8) % PROMPTS), what = (int)((c->random >> 16) % 4);
        segue_request *q = submit(c->scheduler, which, ANSWER);
        if (what == 1) segue_request_cancel(q);
        if (what == 2) (void)segue_request_read(q, got, NULL, 1, &n, forever, NULL);
        if (what > 2 || !what) {
            n = read_all(q, got, ANSWER + 1, &status);
            c->wrong += n != ANSWER || status != SEGUE_END || memcmp(got, c->want[which], sizeof c->want[0]) != 0;
        }
        segue_request_close(q); /* also while it runs */
    }
    return NULL;
}

static void many_threads(void **state)
{
    struct fixture f;
    segue_scheduler *s;
    segue_scheduler_opts o = SEGUE_INIT(segue_scheduler_opts);
    segue_scheduler_info info = SEGUE_INIT(segue_scheduler_info);
    segue_engine_opts e = SEGUE_INIT(segue_engine_opts);
    int32_t want[PROMPTS][ANSWER];
    struct client clients[THREADS];
    pthread_t threads[THREADS];
    segue_error err;
    (void)state;
    e.store = "";
    open_fixture(&f, "hybrid", "ref", NULL, &e);
    for (int i = 0; i < PROMPTS; i++) alone(&f, NULL, i, want[i]);
    o.running = 3;
    o.memory_bytes = 1 << 20;
    assert_int_equal(segue_scheduler_open(&s, f.engine, &o, &err), SEGUE_OK);
    for (int i = 0; i < THREADS; i++) {
        clients[i] = (struct client){s, want, (uint32_t)i * 77 + 5, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, client_main, &clients[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(clients[i].wrong, 0);
    }
    assert_int_equal(segue_scheduler_info_get(s, &info, &err), SEGUE_OK);
    assert_int_equal(info.submitted, THREADS * REQUESTS);
    assert_int_equal(info.finished, THREADS * REQUESTS);
    assert_int_equal(info.unfinished + info.failed, 0);
    segue_scheduler_close(s);
    close_fixture(&f);
}

/* --- a unit that fails on one token --- */

static int32_t bad_token; /* in no prompt and no answer but one */
static struct sg_unit_ops failing;
static const struct sg_unit_ops *sound;

static segue_status failing_start(struct sg_program *p, const struct sg_batch *b, struct sg_result *r, struct sg_run **out,
                                  segue_error *err)
{
    for (uint32_t i = 0; i < b->spans_n; i++)
        for (uint32_t k = 0; k < b->spans[i].rows; k++)
            if (b->spans[i].tokens[k] == bad_token) return sg_fail(err, SEGUE_EUNIT, "run: test: token %d", bad_token);
    return sound->start(p, b, r, out, err);
}

/* The run that the bad request shares with others fails; only the bad one ends. */
static void a_fault_touches_one(void **state)
{
    struct fixture f;
    segue_scheduler *s;
    segue_scheduler_opts o = SEGUE_INIT(segue_scheduler_opts);
    segue_request_opts r = SEGUE_INIT(segue_request_opts);
    segue_request *good[2], *bad;
    int32_t want[2][ANSWER], tokens[20];
    size_t n;
    segue_error err;
    (void)state;
    open_fixture(&f, "llama", "ref", NULL, NULL);
    for (int i = 0; i < 2; i++) alone(&f, NULL, 3 * i, want[i]);
    int used[TINY_VOCAB] = {0};
    for (int i = 0; i < 2; i++) {
        int32_t prompt[LENGTH_MAX + 8];
        for (size_t k = make_prompt(3 * i, prompt); k-- > 0;) used[prompt[k]] = 1;
        for (int k = 0; k < ANSWER; k++) used[want[i][k]] = 1;
    }
    for (bad_token = 3; bad_token < TINY_VOCAB && used[bad_token];) bad_token++;
    assert_true(bad_token < TINY_VOCAB);
    struct sg_program_base *program = (struct sg_program_base *)(void *)f.engine->layer_ranges->program;
    sound = program->ops;
    failing = *sound;
    failing.start = failing_start;
    o.manual = 1;
    assert_int_equal(segue_scheduler_open(&s, f.engine, &o, &err), SEGUE_OK);
    for (int i = 0; i < 2; i++) good[i] = submit(s, 3 * i, ANSWER);
    for (int i = 0; i < 20; i++) tokens[i] = i == 15 ? bad_token : 10;
    r.tokens = tokens;
    r.tokens_n = 20;
    assert_int_equal(segue_request_submit(&bad, s, &r, &err), SEGUE_OK);
    program->ops = &failing;
    while (segue_scheduler_run(s, &err) == SEGUE_OK) {}
    program->ops = sound;
    for (int i = 0; i < 2; i++) expect_answer(good[i], want[i]);
    assert_int_equal(segue_request_read(bad, tokens, NULL, 1, &n, 0, &err), SEGUE_EUNIT);
    assert_non_null(strstr(err.text, "run: test: token"));
    for (int i = 0; i < 2; i++) segue_request_close(good[i]);
    segue_request_close(bad);
    segue_scheduler_close(s);
    close_fixture(&f);
}

/* The caller's session: the request continues it, which the caller uses again afterwards. Log-probabilities by the way. */
static void borrowed_session(void **state)
{
    struct fixture f;
    segue_scheduler *s;
    segue_session *x;
    segue_request *q;
    segue_request_opts r = SEGUE_INIT(segue_request_opts);
    segue_sampling sampling = SEGUE_INIT(segue_sampling);
    segue_session_opts so = SEGUE_INIT(segue_session_opts);
    segue_logprob lp[8][2];
    int32_t want[ANSWER], prompt[LENGTH_MAX + 8], got[8];
    size_t n, all = 0;
    segue_status status;
    segue_error err;
    (void)state;
    open_fixture(&f, "gemma3", "ref", NULL, NULL);
    alone(&f, NULL, 0, want);
    sampling.ignore_stops = 1;
    sampling.logprobs = 2;
    so.sampling = &sampling;
    assert_int_equal(segue_session_open(&x, f.engine, &so, &err), SEGUE_OK);
    r.tokens_n = make_prompt(0, prompt);
    r.tokens = prompt;
    r.session = x;
    r.max_tokens = 8;
    assert_int_equal(segue_scheduler_open(&s, f.engine, NULL, &err), SEGUE_OK);
    assert_int_equal(segue_request_submit(&q, s, &r, &err), SEGUE_OK);
    while ((status = segue_request_read(q, got + all, lp[all], 8 - all, &n, forever, &err)) == SEGUE_OK) all += n;
    assert_int_equal(status, SEGUE_END);
    assert_int_equal(all, 8);
    assert_memory_equal(got, want, sizeof got);
    for (int i = 0; i < 8; i++) assert_int_equal(lp[i][0].token, got[i]);
    segue_request_close(q);
    for (int i = 8; i < ANSWER; i++) {
        assert_int_equal(segue_session_next(x, &got[0], &err), SEGUE_OK);
        assert_int_equal(got[0], want[i]);
    }
    segue_session_close(x);
    segue_scheduler_close(s);
    close_fixture(&f);
}

/* Log-probabilities equal those of segue_session_score, also when they are computed in chunks beside an answer. */
static void scores(void **state)
{
    struct fixture f;
    segue_scheduler *s;
    segue_session *x;
    segue_request *q, *beside;
    segue_request_opts r = SEGUE_INIT(segue_request_opts);
    int32_t prompt[LENGTH_MAX + 8];
    float want[LENGTH_MAX + 8], got[LENGTH_MAX + 8];
    size_t n;
    segue_error err;
    (void)state;
    open_fixture(&f, "hybrid", "ref", NULL, NULL);
    r.kind = SEGUE_SCORE;
    r.tokens_n = make_prompt(5, prompt);
    r.tokens = prompt;
    assert_int_equal(segue_session_open(&x, f.engine, NULL, &err), SEGUE_OK);
    assert_int_equal(segue_session_score(x, prompt, r.tokens_n, want, NULL, &err), SEGUE_OK);
    segue_session_close(x);
    assert_int_equal(segue_scheduler_open(&s, f.engine, NULL, &err), SEGUE_OK);
    beside = submit(s, 0, ANSWER);
    assert_int_equal(segue_request_submit(&q, s, &r, &err), SEGUE_OK);
    assert_int_equal(segue_request_read(q, prompt, NULL, 1, &n, forever, &err), SEGUE_END);
    assert_int_equal(segue_request_values(q, got, LENGTH_MAX, &n, &err), SEGUE_OK);
    assert_int_equal(n, r.tokens_n);
    for (size_t i = 0; i < n; i++) assert_true(fabsf(got[i] - want[i]) < 1e-4f);
    segue_request_close(q);
    segue_request_close(beside);
    segue_scheduler_close(s);
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(joins_and_leaves), cmocka_unit_test(deterministic_cpu),       cmocka_unit_test(two_units),
        cmocka_unit_test(cancel_any_time),  cmocka_unit_test(errors_and_slow_readers), cmocka_unit_test(borrowed_session),
        cmocka_unit_test(scores),           cmocka_unit_test(a_fault_touches_one),
        cmocka_unit_test(many_threads),
    };
    return cmocka_run_group_tests(tests, write_models, remove_models);
}
