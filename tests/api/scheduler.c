/* scheduler.c: requests of a scheduler against single runs of sessions: joins and leaves, chunks beside running answers, cancel,
 * errors, back-pressure, threads of the library and of the caller. SPDX-License-Identifier: MIT */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tiny.h"
#include "segue.h"

enum { PROMPTS = 6, ANSWER = 24, LENGTH_MAX = 120 };
static const uint64_t forever = UINT64_MAX;

struct fixture {
    segue_model *model;
    segue_unit *units[2];
    segue_engine *engine;
};

static void open_fixture(struct fixture *f, const char *model, const char *first, const char *second, const segue_engine_opts *o)
{
    char folder[512];
    segue_error err;
    memset(f, 0, sizeof *f);
    tiny_folder(folder, sizeof folder, "scheduler", model);
    assert_int_equal(segue_model_open(&f->model, folder, NULL, &err), SEGUE_OK);
    assert_int_equal(segue_unit_open(&f->units[0], first, &err), SEGUE_OK);
    if (second) assert_int_equal(segue_unit_open(&f->units[1], second, &err), SEGUE_OK);
    if (segue_engine_open(&f->engine, f->model, f->units, second ? 2 : 1, o, &err) != SEGUE_OK) fail_msg("%s", err.text);
}

static void close_fixture(struct fixture *f)
{
    segue_engine_close(f->engine);
    segue_unit_close(f->units[0]);
    segue_unit_close(f->units[1]);
    segue_model_close(f->model);
}

/* Prompt i: its own length and tokens; the first tokens of all are equal. */
static size_t make_prompt(int i, int32_t *out)
{
    size_t n = 5 + (size_t)i * 19 % LENGTH_MAX;
    uint32_t random = (uint32_t)i * 7919u + 1;
    for (size_t k = 0; k < n; k++) {
        random = random * 1664525u + 1013904223u;
        out[k] = k < 4 ? (int32_t)(10 + k) : (int32_t)(3 + (random >> 16) % (TINY_VOCAB - 3));
    }
    return n;
}

static segue_sampling sampling_of(int i)
{
    segue_sampling s = SEGUE_INIT(segue_sampling);
    s.ignore_stops = 1;
    if (i % 3 == 1) {
        s.temperature = 0.9f;
        s.top_k = 20;
        s.seed = (uint64_t)i;
    }
    return s;
}

/* The tokens of one session alone. */
static void alone(struct fixture *f, const segue_plan *plan, int i, int32_t *out)
{
    int32_t prompt[LENGTH_MAX + 8];
    segue_sampling sampling = sampling_of(i);
    segue_session_opts o = SEGUE_INIT(segue_session_opts);
    segue_session *s;
    segue_error err;
    size_t n = make_prompt(i, prompt);
    o.sampling = &sampling;
    o.plan = plan;
    o.no_store = 1;
    assert_int_equal(segue_session_open(&s, f->engine, &o, &err), SEGUE_OK);
    assert_int_equal(segue_session_append(s, prompt, n, &err), SEGUE_OK);
    for (int k = 0; k < ANSWER; k++) assert_int_equal(segue_session_next(s, &out[k], &err), SEGUE_OK);
    segue_session_close(s);
}

static segue_request *submit(segue_scheduler *s, int i, size_t max_tokens)
{
    int32_t prompt[LENGTH_MAX + 8];
    segue_sampling sampling = sampling_of(i);
    segue_request_opts o = SEGUE_INIT(segue_request_opts);
    segue_request *q = NULL;
    segue_error err;
    o.tokens_n = make_prompt(i, prompt);
    o.tokens = prompt;
    o.sampling = &sampling;
    o.max_tokens = max_tokens;
    if (segue_request_submit(&q, s, &o, &err) != SEGUE_OK) fail_msg("%s", err.text);
    return q;
}

/* Reads a request to its end; returns the number of tokens. */
static size_t read_all(segue_request *q, int32_t *out, size_t cap, segue_status *status)
{
    size_t n = 0, got;
    segue_error err;
    while ((*status = segue_request_read(q, out + n, NULL, cap - n, &got, forever, &err)) == SEGUE_OK) n += got;
    return n;
}

static void expect_answer(segue_request *q, const int32_t *want)
{
    int32_t got[ANSWER + 1];
    segue_status status;
    segue_request_info info = SEGUE_INIT(segue_request_info);
    assert_int_equal(read_all(q, got, ANSWER + 1, &status), ANSWER);
    assert_int_equal(status, SEGUE_END);
    assert_memory_equal(got, want, ANSWER * sizeof *got);
    assert_int_equal(segue_request_info_get(q, &info, NULL), SEGUE_OK);
    assert_int_equal(info.finish, SEGUE_FINISH_LENGTH);
    assert_int_equal(info.tokens_out, ANSWER);
}

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

/* The logits of a text do not depend on its chunks, on the rows of a run, or on threads: quantised weights and a hybrid. */
static void deterministic_chunks(void **state)
{
    enum { TEXT = 60, VOCAB = 64, WAYS = 5 };
    static const char *const names[] = {"llama_mlx4", "qwen3_5_mlx4", "gemma3"};
    static const size_t chunks[WAYS] = {TEXT, 1, 7, 17, 32};
    (void)state;
    for (size_t m = 0; m < sizeof names / sizeof *names; m++) {
        float first[VOCAB * 4], logits[VOCAB * 4];
        for (int way = 0; way < WAYS; way++) {
            char path[1024];
            segue_model *model;
            segue_unit *unit;
            segue_engine *e;
            segue_session *x;
            segue_error err;
            segue_engine_opts o = SEGUE_INIT(segue_engine_opts);
            int32_t text[TEXT];
            size_t n = 0;
            for (int i = 0; i < TEXT; i++) text[i] = (i * 23 + 5) % 60 + 3;
            snprintf(path, sizeof path, SEGUE_SOURCE_DIR "/tests/golden/tiny/%s", names[m]);
            assert_int_equal(segue_model_open(&model, path, NULL, &err), SEGUE_OK);
            assert_int_equal(segue_unit_open(&unit, way % 2 ? "cpu:threads=1" : "cpu:threads=2", &err), SEGUE_OK);
            o.deterministic = 1;
            o.chunk_tokens = (uint32_t)chunks[way];
            if (segue_engine_open(&e, model, &unit, 1, &o, &err) != SEGUE_OK) fail_msg("%s", err.text);
            assert_int_equal(segue_session_open(&x, e, NULL, &err), SEGUE_OK);
            assert_int_equal(segue_session_append(x, text, TEXT, &err), SEGUE_OK);
            assert_int_equal(segue_session_prefill(x, 0, NULL, &err), SEGUE_OK);
            assert_int_equal(segue_session_logits(x, way ? logits : first, VOCAB * 4, &n, &err), SEGUE_OK);
            if (way) assert_memory_equal(logits, first, n * sizeof *logits);
            segue_session_close(x);
            segue_engine_close(e);
            segue_unit_close(unit);
            segue_model_close(model);
        }
    }
}

/* Two requests start, outgrow the budget, and the younger one gives way; the answers are those of single runs. */
static void budget(void **state)
{
    enum { TOKEN = 384, LONG = 60 }; /* bytes of K and V of a token: 3 layers, 2 slots, 16 numbers of 4 bytes */
    struct fixture f;
    segue_scheduler *s;
    segue_scheduler_opts o = SEGUE_INIT(segue_scheduler_opts);
    segue_scheduler_info info = SEGUE_INIT(segue_scheduler_info);
    segue_request_info each = SEGUE_INIT(segue_request_info);
    segue_request *q[3], *big = NULL;
    int32_t prompt[LENGTH_MAX + 8], got[LONG + 1], want[3][LONG];
    segue_request_opts r = SEGUE_INIT(segue_request_opts);
    segue_sampling sampling = sampling_of(0);
    segue_status status;
    segue_error err;
    int waited = 0;
    (void)state;
    open_fixture(&f, "llama", "ref", NULL, NULL);
    o.manual = 1;
    o.memory_bytes = 330 * TOKEN;
    assert_int_equal(segue_scheduler_open(&s, f.engine, &o, &err), SEGUE_OK);
    r.tokens = prompt;
    r.sampling = &sampling;
    r.max_tokens = LONG;
    for (int i = 0; i < 3; i++) {
        segue_session *x;
        r.tokens_n = 90;
        for (int k = 0; k < 90; k++) prompt[k] = (i * 31 + k * 7) % (TINY_VOCAB - 3) + 3;
        assert_int_equal(segue_session_open(&x, f.engine, NULL, &err), SEGUE_OK);
        assert_int_equal(segue_session_sampling(x, &sampling, &err), SEGUE_OK);
        assert_int_equal(segue_session_append(x, prompt, 90, &err), SEGUE_OK);
        for (int k = 0; k < LONG; k++) assert_int_equal(segue_session_next(x, &want[i][k], &err), SEGUE_OK);
        segue_session_close(x);
        assert_int_equal(segue_request_submit(&q[i], s, &r, &err), SEGUE_OK);
    }
    while (segue_scheduler_run(s, &err) == SEGUE_OK) {
        assert_int_equal(segue_request_info_get(q[2], &each, &err), SEGUE_OK);
        waited |= each.waits_for && !strcmp(each.waits_for, "memory");
    }
    assert_true(waited);
    assert_int_equal(segue_scheduler_info_get(s, &info, &err), SEGUE_OK);
    assert_true(info.preemptions > 0);
    assert_int_equal(info.finished, 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(read_all(q[i], got, LONG + 1, &status), LONG);
        assert_memory_equal(got, want[i], sizeof want[i]);
        segue_request_close(q[i]);
    }
    segue_scheduler_close(s);
    o.memory_bytes = 100 * TOKEN;
    assert_int_equal(segue_scheduler_open(&s, f.engine, &o, &err), SEGUE_OK);
    assert_int_equal(segue_request_submit(&big, s, &r, &err), SEGUE_ELIMIT);
    assert_non_null(strstr(err.text, "memory"));
    segue_scheduler_close(s);
    close_fixture(&f);
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

/* A prefix is reused by requests of the same realm, by others only if sharing is asked for. Recurrent models reuse it by
 * checkpoints, and the answers are those without a store. */
static void realms(void **state)
{
    static const char *const names[] = {"a", "a", "b", NULL};
    (void)state;
    for (int m = 0; m < TINY_MODELS; m++)
        for (uint32_t share = 0; share < 2; share++) {
            struct fixture f;
            segue_scheduler *s;
            segue_engine_opts e = SEGUE_INIT(segue_engine_opts);
            segue_scheduler_opts o = SEGUE_INIT(segue_scheduler_opts);
            int32_t prompt[LENGTH_MAX + 8], want[ANSWER], got[ANSWER + 1];
            segue_sampling sampling = sampling_of(3);
            segue_error err;
            segue_status status;
            e.store = "";
            o.manual = 1;
            o.share = share;
            open_fixture(&f, tiny_models[m].name, "ref", NULL, &e);
            alone(&f, NULL, 3, want);
            assert_int_equal(segue_scheduler_open(&s, f.engine, &o, &err), SEGUE_OK);
            for (int i = 0; i < 4; i++) {
                segue_request *q;
                segue_request_opts r = SEGUE_INIT(segue_request_opts);
                segue_request_info info = SEGUE_INIT(segue_request_info);
                r.tokens_n = make_prompt(3, prompt);
                r.tokens = prompt;
                r.sampling = &sampling;
                r.max_tokens = ANSWER;
                r.realm = names[i];
                assert_int_equal(segue_request_submit(&q, s, &r, &err), SEGUE_OK);
                while (segue_scheduler_run(s, &err) == SEGUE_OK) {}
                assert_int_equal(read_all(q, got, ANSWER + 1, &status), ANSWER);
                assert_memory_equal(got, want, sizeof want);
                assert_int_equal(segue_request_info_get(q, &info, &err), SEGUE_OK);
                if (i == 1 || (i && share)) assert_true(info.tokens_reused + 2 >= r.tokens_n);
                else assert_int_equal(info.tokens_reused, 0);
                assert_non_null(info.reuse_reason);
                segue_request_close(q);
            }
            segue_scheduler_close(s);
            close_fixture(&f);
        }
}

/* Texts with a common beginning, together: the second finds where they part, and the third begins there, also where a state
 * cannot be cut. */
static void common_beginning(void **state)
{
    enum { COMMON = 40, ALL = 70, TEXTS = 3 };
    (void)state;
    for (int m = 0; m < TINY_MODELS; m++) {
        struct fixture f;
        segue_scheduler *s;
        segue_engine_opts e = SEGUE_INIT(segue_engine_opts);
        segue_scheduler_opts o = SEGUE_INIT(segue_scheduler_opts);
        segue_sampling sampling = sampling_of(0);
        segue_request *q[TEXTS];
        segue_error err;
        int32_t want[TEXTS][ANSWER];
        e.store = "";
        e.chunk_tokens = 64;
        o.manual = 1;
        open_fixture(&f, tiny_models[m].name, "ref", NULL, &e);
        assert_int_equal(segue_scheduler_open(&s, f.engine, &o, &err), SEGUE_OK);
        for (int i = 0; i < TEXTS; i++) {
            int32_t text[ALL];
            segue_session *x;
            segue_request_opts r = SEGUE_INIT(segue_request_opts);
            segue_session_opts so = SEGUE_INIT(segue_session_opts);
            for (int k = 0; k < ALL; k++) text[k] = (k * 29 + (k >= COMMON ? i * 17 + 1 : 0)) % (TINY_VOCAB - 3) + 3;
            so.no_store = 1;
            so.sampling = &sampling;
            assert_int_equal(segue_session_open(&x, f.engine, &so, &err), SEGUE_OK);
            assert_int_equal(segue_session_append(x, text, ALL, &err), SEGUE_OK);
            for (int k = 0; k < ANSWER; k++) assert_int_equal(segue_session_next(x, &want[i][k], &err), SEGUE_OK);
            segue_session_close(x);
            r.tokens = text;
            r.tokens_n = ALL;
            r.sampling = &sampling;
            r.max_tokens = ANSWER;
            assert_int_equal(segue_request_submit(&q[i], s, &r, &err), SEGUE_OK);
        }
        while (segue_scheduler_run(s, &err) == SEGUE_OK) {}
        for (int i = 0; i < TEXTS; i++) {
            segue_request_info info = SEGUE_INIT(segue_request_info);
            expect_answer(q[i], want[i]);
            assert_int_equal(segue_request_info_get(q[i], &info, &err), SEGUE_OK);
            if (i) assert_int_equal(info.reuse_diverged, COMMON);
            if (i == 2 || (i && m == 0)) assert_int_equal(info.tokens_reused, COMMON);
            segue_request_close(q[i]);
        }
        segue_scheduler_close(s);
        close_fixture(&f);
    }
}

/* Rows are scored on a session that has computed tokens on the prefill unit: what was sent to the decoder before is old. */
static void scored_before_the_hand_off(void **state)
{
    (void)state;
    for (int m = 0; m < TINY_MODELS; m++) {
        struct fixture f;
        segue_session *s[2];
        segue_plan *plan;
        segue_error err;
        segue_part parts[2] = {SEGUE_INIT(segue_part), SEGUE_INIT(segue_part)};
        segue_session_opts o = SEGUE_INIT(segue_session_opts);
        int32_t prompt[LENGTH_MAX + 8], token[2];
        float logprobs[LENGTH_MAX];
        size_t n = make_prompt(5, prompt);
        open_fixture(&f, tiny_models[m].name, "ref", "cpu:threads=1", NULL); /* two kinds: states are copied during the prompt */
        parts[0].to = parts[1].to = 3;
        parts[1].phase = SEGUE_DECODE;
        parts[1].unit = 1;
        assert_int_equal(segue_plan_new(&plan, parts, 2, NULL, &err), SEGUE_OK);
        for (int i = 0; i < 2; i++) {
            size_t first = i ? n / 2 : n; /* session 1 scores the rest */
            o.plan = plan;
            assert_int_equal(segue_session_open(&s[i], f.engine, &o, &err), SEGUE_OK);
            assert_int_equal(segue_session_append(s[i], prompt, first, &err), SEGUE_OK);
            assert_int_equal(segue_session_prefill(s[i], 0, NULL, &err), SEGUE_OK);
            if (i) assert_int_equal(segue_session_score(s[i], prompt + first, n - first, logprobs, NULL, &err), SEGUE_OK);
        }
        for (int k = 0; k < ANSWER; k++) {
            for (int i = 0; i < 2; i++) assert_true(segue_session_next(s[i], &token[i], &err) >= 0);
            assert_int_equal(token[0], token[1]);
        }
        for (int i = 0; i < 2; i++) segue_session_close(s[i]);
        segue_plan_close(plan);
        close_fixture(&f);
    }
}

static int write_models(void **state)
{
    char folder[512];
    (void)state;
    for (int m = 0; m < TINY_MODELS; m++)
        if (!tiny_write(&tiny_models[m], tiny_folder(folder, sizeof folder, "scheduler", tiny_models[m].name), (uint32_t)m + 1)) return 1;
    return 0;
}

static int remove_models(void **state)
{
    (void)state;
    tiny_remove("scheduler");
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(joins_and_leaves), cmocka_unit_test(deterministic_cpu), cmocka_unit_test(deterministic_chunks), cmocka_unit_test(budget), cmocka_unit_test(two_units), cmocka_unit_test(cancel_any_time),
        cmocka_unit_test(errors_and_slow_readers), cmocka_unit_test(borrowed_session), cmocka_unit_test(scores), cmocka_unit_test(realms), cmocka_unit_test(common_beginning), cmocka_unit_test(scored_before_the_hand_off),
    };
    return cmocka_run_group_tests(tests, write_models, remove_models);
}
