/* scheduler_memory.c: what a scheduler keeps: the memory budget, prefixes of the store by realm and by common beginnings, rows
 * that were scored before a hand-off, and runs of deterministic engines. SPDX-License-Identifier: MIT */
#include "scheduling.h"

/* Two requests start, outgrow the budget, and the younger one gives way; the answers are those of single runs. */
static void budget_with(const char *store)
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
    segue_engine_opts e = SEGUE_INIT(segue_engine_opts);
    e.store = store;
    open_fixture(&f, "llama", "ref", NULL, &e);
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
        segue_session_opts alone_opts = SEGUE_INIT(segue_session_opts);
        alone_opts.no_store = 1;
        assert_int_equal(segue_session_open(&x, f.engine, &alone_opts, &err), SEGUE_OK);
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

static void budget(void **state)
{
    (void)state;
    budget_with(NULL); /* dropped states are computed again */
    budget_with("");   /* the store takes what fits */
}

/* With the least budget that accepts a request it also ends well: its checkpoints give way. */
static void accepted_requests_fit(void **state)
{
    static const char *const units[] = {"ref", "cpu:threads=1"};
    (void)state;
    for (int m = 0; m < 2 * TINY_MODELS; m++) {
        struct fixture f;
        segue_scheduler *s = NULL;
        segue_scheduler_opts o = SEGUE_INIT(segue_scheduler_opts);
        segue_sampling sampling = sampling_of(5);
        segue_request_opts r = SEGUE_INIT(segue_request_opts);
        segue_engine_opts e = SEGUE_INIT(segue_engine_opts);
        int32_t want[ANSWER], prompt[LENGTH_MAX + 8];
        segue_request *q = NULL;
        segue_status status = SEGUE_ELIMIT;
        segue_error err;
        e.chunk_tokens = 16; /* a checkpoint after each */
        open_fixture(&f, tiny_models[m / 2].name, units[m % 2], NULL, &e);
        alone(&f, NULL, 5, want);
        r.tokens_n = make_prompt(5, prompt);
        r.tokens = prompt;
        r.sampling = &sampling;
        r.max_tokens = ANSWER;
        o.manual = 1;
        for (o.memory_bytes = 4096; status == SEGUE_ELIMIT; o.memory_bytes += 64) {
            segue_scheduler_close(s);
            assert_int_equal(segue_scheduler_open(&s, f.engine, &o, &err), SEGUE_OK);
            status = segue_request_submit(&q, s, &r, &err);
        }
        assert_int_equal(status, SEGUE_OK);
        while (segue_scheduler_run(s, &err) == SEGUE_OK) {}
        expect_answer(q, want);
        segue_request_close(q);
        segue_scheduler_close(s);
        close_fixture(&f);
    }
}

/* Three requests that begin with a stored prompt share its K and V, which count once: they fit where three whole states would
 * not. */
static void shared_prompt(void **state)
{
    enum { TOKEN = 384, PROMPT = 190, TOKENS = 10 };
    struct fixture f;
    segue_scheduler *s;
    segue_engine_opts e = SEGUE_INIT(segue_engine_opts);
    segue_scheduler_opts o = SEGUE_INIT(segue_scheduler_opts);
    segue_request_opts r = SEGUE_INIT(segue_request_opts);
    segue_request_info info = SEGUE_INIT(segue_request_info);
    segue_sampling sampling = sampling_of(0);
    segue_request *q[4];
    int32_t prompt[PROMPT], got[4][TOKENS + 1];
    segue_status status;
    segue_error err;
    int waited = 0;
    (void)state;
    e.store = "";
    open_fixture(&f, "llama", "ref", NULL, &e);
    o.manual = 1;
    o.memory_bytes = 700 * TOKEN; /* a request by itself needs 256 tokens, in blocks */
    assert_int_equal(segue_scheduler_open(&s, f.engine, &o, &err), SEGUE_OK);
    for (int k = 0; k < PROMPT; k++) prompt[k] = (k * 7) % (TINY_VOCAB - 3) + 3;
    r.tokens = prompt;
    r.tokens_n = PROMPT;
    r.sampling = &sampling;
    r.max_tokens = TOKENS;
    r.realm = "a";
    for (int i = 0; i < 4; i++) {
        assert_int_equal(segue_request_submit(&q[i], s, &r, &err), SEGUE_OK);
        while ((!i || i == 3) && segue_scheduler_run(s, &err) == SEGUE_OK) {
            assert_int_equal(segue_request_info_get(q[i], &info, &err), SEGUE_OK);
            waited += i == 3 && info.waits_for && !strcmp(info.waits_for, "memory");
        }
    }
    assert_in_range(waited, 0, 3); /* until the others have their states */
    for (int i = 0; i < 4; i++) {
        assert_int_equal(segue_request_info_get(q[i], &info, &err), SEGUE_OK);
        assert_int_equal(info.preemptions, 0);
        assert_int_equal(read_all(q[i], got[i], TOKENS + 1, &status), TOKENS);
        assert_memory_equal(got[i], got[0], TOKENS * sizeof **got);
        segue_request_close(q[i]);
    }
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(budget), cmocka_unit_test(accepted_requests_fit), cmocka_unit_test(shared_prompt),
        cmocka_unit_test(realms),
        cmocka_unit_test(common_beginning),
        cmocka_unit_test(scored_before_the_hand_off),
        cmocka_unit_test(deterministic_chunks),
    };
    return cmocka_run_group_tests(tests, write_models, remove_models);
}
