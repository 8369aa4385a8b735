/* sessions.c: sessions on every unit that is present here, on three tiny models: whatever way a sequence
 * takes (chunks, steps with others, forks, cuts, files, moves, layers on two units), its tokens are those of
 * the straight way. SPDX-License-Identifier: MIT */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "segue.h"
#include "tiny.h"

enum { PROMPT = 37, ANSWER = 12, UNITS_MAX = 8 };

static struct {
    segue_model *models[TINY_MODELS];
    segue_unit *units[UNITS_MAX];
    uint32_t units_n;
    int32_t prompt[PROMPT];
} all;

static segue_error err;

static void ok_(segue_status s, const char *what, int line)
{
    if (s != SEGUE_OK) fail_msg("line %d: %s: %d: %s", line, what, s, err.text);
}
#define OK(call) ok_(call, #call, __LINE__)

static int open_all(void **state)
{
    (void)state;
    segue_unit_info info[UNITS_MAX];
    size_t n = 0;
    for (int i = 0; i < UNITS_MAX; i++) info[i] = SEGUE_INIT(segue_unit_info);
    if (segue_unit_list(info, UNITS_MAX, &n, &err) != SEGUE_OK) return -1;
    for (size_t i = 0; i < n && i < UNITS_MAX; i++) {
        char spec[64]; /* few threads: these models are too small to share out */
        snprintf(spec, sizeof spec, "%s:threads=%d", info[i].kind, i ? 2 : 1);
        if (info[i].present && !info[i].simulated &&
            segue_unit_open(&all.units[all.units_n], spec, &err) == SEGUE_OK)
            all.units_n++;
    }
    for (int i = 0; i < TINY_MODELS; i++) {
        char folder[512];
        tiny_folder(folder, sizeof folder, "sessions", tiny_models[i].name);
        if (!tiny_write(&tiny_models[i], folder, 7u + (unsigned)i)) return -1;
        if (segue_model_open(&all.models[i], folder, NULL, &err) != SEGUE_OK) {
            fprintf(stderr, "%s: %s\n", tiny_models[i].name, err.text);
            return -1;
        }
    }
    for (int i = 0; i < PROMPT; i++) all.prompt[i] = (i * 29 + 5) % 93 + 3;
    return all.units_n ? 0 : -1;
}

static int close_all(void **state)
{
    (void)state;
    for (int i = 0; i < TINY_MODELS; i++) segue_model_close(all.models[i]);
    for (uint32_t i = 0; i < all.units_n; i++) segue_unit_close(all.units[i]);
    tiny_remove("sessions");
    return 0;
}

static segue_engine *engine(int model, uint32_t first, uint32_t second, uint32_t chunk, uint32_t kv)
{
    segue_engine *e = NULL;
    segue_engine_opts o = SEGUE_INIT(segue_engine_opts);
    segue_unit *units[2] = {all.units[first], all.units[second]};
    o.chunk_tokens = chunk;
    o.kv = kv;
    OK(segue_engine_open(&e, all.models[model], units, first == second ? 1 : 2, &o, &err));
    return e;
}

static segue_session *session(segue_engine *e, const segue_sampling *sampling)
{
    segue_session *s = NULL;
    segue_session_opts o = SEGUE_INIT(segue_session_opts);
    segue_sampling own = SEGUE_INIT(segue_sampling);
    o.context = 128;
    o.sampling = sampling ? sampling : &own;
    if (!sampling) own.ignore_stops = 1;
    OK(segue_session_open(&s, e, &o, &err));
    return s;
}

static void answer(segue_session *s, int32_t *out, int n)
{
    for (int i = 0; i < n; i++) OK(segue_session_next(s, &out[i], &err));
}

/* The straight way: prompt in one piece, then one token after the other. */
static void straight(segue_engine *e, int32_t out[ANSWER])
{
    segue_session *s = session(e, NULL);
    OK(segue_session_append(s, all.prompt, PROMPT, &err));
    answer(s, out, ANSWER);
    segue_session_close(s);
}

static void same(const int32_t *a, const int32_t *b, int n, const char *what)
{
    for (int i = 0; i < n; i++)
        if (a[i] != b[i]) fail_msg("%s: token %d: %d, not %d", what, i, a[i], b[i]);
}

#define EACH_UNIT_AND_MODEL(u, m)              \
    for (uint32_t u = 0; u < all.units_n; u++) \
        for (int m = 0; m < TINY_MODELS; m++)

/* Greedy tokens are the highest logits of a whole reading, and their reported log-probabilities are those of
 * a score. */
static void tokens_are_the_highest_logits(void **state)
{
    (void)state;
    EACH_UNIT_AND_MODEL(u, m)
    {
        segue_engine *e = engine(m, u, u, 0, SEGUE_KV_F32);
        segue_sampling p = SEGUE_INIT(segue_sampling);
        p.ignore_stops = 1;
        p.logprobs = 4;
        segue_session *s = session(e, &p), *judge = session(e, NULL);
        static float logits[(PROMPT + ANSWER) * TINY_VOCAB], logprobs[PROMPT + ANSWER];
        int32_t sequence[PROMPT + ANSWER];
        float chosen[ANSWER];
        memcpy(sequence, all.prompt, sizeof all.prompt);
        OK(segue_session_append(s, all.prompt, PROMPT, &err));
        for (int i = 0; i < ANSWER; i++) {
            segue_logprob list[4];
            size_t n = 0;
            OK(segue_session_next(s, &sequence[PROMPT + i], &err));
            assert_int_equal(segue_session_logprobs(s, list, 3, &n, &err), SEGUE_ELIMIT);
            OK(segue_session_logprobs(s, list, 4, &n, &err));
            assert_int_equal(n, 4);
            assert_int_equal(list[0].token, sequence[PROMPT + i]);
            chosen[i] = list[0].logprob;
        }
        OK(segue_session_score(judge, sequence, PROMPT + ANSWER, logprobs, logits, &err));
        assert_true(logprobs[0] == 0);
        for (int i = 0; i < ANSWER; i++) {
            const float *row = logits + (PROMPT + i - 1) * TINY_VOCAB;
            for (int t = 0; t < TINY_VOCAB; t++)
                if (t != 2) assert_true(row[t] <= row[sequence[PROMPT + i]] + 1e-3f);
            assert_true(fabsf(chosen[i] - logprobs[PROMPT + i]) < 2e-3f);
        }
        segue_session_close(s);
        segue_session_close(judge);
        segue_engine_close(e);
    }
}

static void chunks_do_not_show(void **state)
{
    (void)state;
    EACH_UNIT_AND_MODEL(u, m)
    {
        int32_t want[ANSWER], got[ANSWER];
        static const uint32_t chunks[] = {1, 3, 16, 36, 37};
        segue_engine *e = engine(m, u, u, 0, 0);
        straight(e, want);
        segue_engine_close(e);
        for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
            e = engine(m, u, u, chunks[i], 0);
            straight(e, got);
            same(got, want, ANSWER, "chunks");
            segue_engine_close(e);
        }
    }
}

static void steps_with_others_equal_steps_alone(void **state)
{
    (void)state;
    enum { N = 5 };
    EACH_UNIT_AND_MODEL(u, m)
    {
        segue_engine *e = engine(m, u, u, 0, 0);
        segue_session *alone, *many[N];
        int32_t want[N][ANSWER], got[N];
        segue_error each[N];
        for (int i = 0; i < N; i++) {
            segue_sampling p = SEGUE_INIT(segue_sampling);
            p.ignore_stops = 1;
            p.temperature = i & 1 ? 1.2f : 0;
            p.seed = (uint64_t)i;
            alone = session(e, &p);
            OK(segue_session_append(alone, all.prompt, (size_t)(PROMPT - i * 7), &err));
            answer(alone, want[i], ANSWER);
            segue_session_close(alone);
            many[i] = session(e, &p);
            OK(segue_session_append(many[i], all.prompt, (size_t)(PROMPT - i * 7), &err));
        }
        for (int t = 0; t < ANSWER; t++) {
            OK(segue_session_step(many, N, got, each, &err));
            for (int i = 0; i < N; i++) {
                assert_int_equal(each[i].status, SEGUE_OK);
                if (got[i] != want[i][t])
                    fail_msg("session %d token %d: %d, not %d", i, t, got[i], want[i][t]);
            }
        }
        for (int i = 0; i < N; i++) segue_session_close(many[i]);
        segue_engine_close(e);
    }
}

/* Sessions of one token each share every reading of the weights from the first step on, and say what they say alone. */
static void first_rows_go_with_others(void **state)
{
    (void)state;
    enum { N = 3, STEPS = 4 };
    EACH_UNIT_AND_MODEL(u, m)
    {
        segue_engine *e = engine(m, u, u, 0, 0);
        segue_session *many[N];
        int32_t want[N][STEPS], got[N];
        segue_error each[N];
        segue_stats shared = SEGUE_INIT(segue_stats);
        segue_sampling p = SEGUE_INIT(segue_sampling);
        p.ignore_stops = 1;
        for (int i = 0; i < N; i++) {
            segue_session *s = session(e, &p);
            OK(segue_session_append(s, all.prompt + i, 1, &err));
            answer(s, want[i], STEPS);
            segue_session_close(s);
            many[i] = session(e, &p);
            OK(segue_session_append(many[i], all.prompt + i, 1, &err));
        }
        for (int t = 0; t < STEPS; t++) {
            OK(segue_session_step(many, N, got, each, &err));
            for (int i = 0; i < N; i++) {
                assert_int_equal(each[i].status, SEGUE_OK);
                assert_int_equal(got[i], want[i][t]);
                /* a first row that goes alone is none of the answer, and its reading is not counted */
                OK(segue_session_stats_get(many[i], &shared, &err));
                assert_true(shared.weight_bytes_read > 0);
            }
        }
        for (int i = 0; i < N; i++) segue_session_close(many[i]);
        segue_engine_close(e);
    }
}

static void rewound_sessions_go_the_straight_way(void **state)
{
    (void)state;
    EACH_UNIT_AND_MODEL(u, m)
    {
        segue_engine *e = engine(m, u, u, 16, 0);
        int32_t want[ANSWER], got[ANSWER];
        straight(e, want);
        for (size_t length = 0; length <= PROMPT; length += 1 + length / 3) {
            segue_session *s = session(e, NULL);
            OK(segue_session_append(s, all.prompt, PROMPT, &err));
            answer(s, got, 3);
            OK(segue_session_rewind(s, length, &err));
            assert_int_equal(segue_session_tokens(s, NULL), length);
            OK(segue_session_append(s, all.prompt + length, PROMPT - length, &err));
            answer(s, got, ANSWER);
            same(got, want, ANSWER, "rewound");
            OK(segue_session_rewind(s, PROMPT + 5, &err)); /* into the answer, and on without new words */
            answer(s, got + 5, ANSWER - 5);
            same(got, want, ANSWER, "rewound into the answer");
            segue_session_close(s);
        }
        segue_engine_close(e);
    }
}

static void forks_do_not_disturb(void **state)
{
    (void)state;
    EACH_UNIT_AND_MODEL(u, m)
    {
        segue_engine *e = engine(m, u, u, 0, 0);
        int32_t want[ANSWER], got[ANSWER], other[ANSWER];
        segue_session *s = session(e, NULL), *fork = NULL;
        straight(e, want);
        OK(segue_session_append(s, all.prompt, PROMPT, &err));
        answer(s, got, 4);
        OK(segue_session_fork(&fork, s, &err));
        OK(segue_session_append(fork, all.prompt, 9, &err));
        answer(fork, other, 6);
        answer(s, got + 4, ANSWER - 4);
        same(got, want, ANSWER, "forked");
        segue_session_close(s); /* the fork lives on */
        OK(segue_session_rewind(fork, PROMPT + 4, &err));
        answer(fork, got + 4, ANSWER - 4);
        same(got, want, ANSWER, "fork");
        segue_session_close(fork);
        segue_engine_close(e);
    }
}

static void saved_sessions_go_on(void **state)
{
    (void)state;
    char path[1024];
    tiny_folder(path, sizeof path, "sessions", "saved.state");
    EACH_UNIT_AND_MODEL(u, m)
    {
        segue_engine *e = engine(m, u, u, 0, 0);
        int32_t want[ANSWER], got[ANSWER];
        straight(e, want);
        for (int n = 0; n < 3; n++) { /* nothing chosen yet; one token waits; tokens wait */
            segue_session *s = session(e, NULL), *again = NULL;
            OK(segue_session_append(s, all.prompt, PROMPT, &err));
            OK(segue_session_prefill(s, n == 2 ? 20 : 0, NULL, &err));
            if (n == 1) answer(s, got, 5);
            OK(segue_session_save(s, path, &err));
            segue_session_close(s);
            segue_session_opts o = SEGUE_INIT(segue_session_opts);
            segue_sampling p = SEGUE_INIT(segue_sampling);
            p.ignore_stops = 1;
            o.sampling = &p;
            OK(segue_session_load(&again, e, &o, path, &err));
            answer(again, n == 1 ? got + 5 : got, n == 1 ? ANSWER - 5 : ANSWER);
            same(got, want, ANSWER, "loaded");
            segue_session_close(again);
        }
        segue_engine_close(e);
    }
    assert_int_equal(unlink(path), 0);
}

/* Every pair of units, K and V in fp32: equal arithmetic is not promised, so tokens are compared where the
 * pair is one unit twice; elsewhere the log-probabilities stay near. */
static void moved_sessions_go_on(void **state)
{
    (void)state;
    for (uint32_t a = 0; a < all.units_n; a++)
        for (uint32_t b = 0; b < all.units_n; b++)
            for (int m = 0; m < TINY_MODELS; m++) {
                segue_unit *twin = NULL;
                segue_unit_info info = SEGUE_INIT(segue_unit_info);
                OK(segue_unit_info_get(all.units[b], &info, &err));
                OK(segue_unit_open(&twin, info.spec, &err));
                segue_unit *pair[2] = {all.units[a], twin};
                segue_engine_opts o = SEGUE_INIT(segue_engine_opts);
                o.kv = SEGUE_KV_F32;
                segue_engine *two = NULL, *one = engine(m, a, a, 0, SEGUE_KV_F32);
                OK(segue_engine_open(&two, all.models[m], pair, 2, &o, &err));
                int32_t want[ANSWER], got[ANSWER];
                straight(one, want);
                segue_session *s = session(two, NULL);
                OK(segue_session_append(s, all.prompt, PROMPT, &err));
                answer(s, got, ANSWER); /* by the plan: read on the first, write on the second */
                segue_stats stats = SEGUE_INIT(segue_stats);
                OK(segue_session_stats_get(s, &stats, &err));
                assert_true(stats.handoff_ns > 0);
                if (a == b) same(got, want, ANSWER, "moved by the plan");
                OK(segue_session_rewind(s, PROMPT + 4, &err));
                OK(segue_session_move(s, pair[0], &err));
                OK(segue_session_move(s, pair[1], &err));
                OK(segue_session_move(s, pair[0], &err));
                answer(s, got + 4, ANSWER - 4);
                if (a == b) same(got, want, ANSWER, "moved to and fro");
                segue_session_close(s);
                segue_engine_close(one);
                segue_engine_close(two);
                segue_unit_close(twin);
            }
}

static void layers_on_two_units(void **state)
{
    (void)state;
    EACH_UNIT_AND_MODEL(u, m)
    {
        segue_engine *e = engine(m, u, u, 16, 0);
        int32_t want[ANSWER], got[ANSWER];
        segue_plan *plan = NULL;
        segue_session_opts o = SEGUE_INIT(segue_session_opts);
        segue_sampling p = SEGUE_INIT(segue_sampling);
        segue_session *s = NULL;
        straight(e, want);
        p.ignore_stops = 1;
        o.sampling = &p;
        segue_part parts[5]; /* prefill: layers 0-1, 2; decode: 0, 1, 2 */
        static const uint32_t ranges[5][3] = {{0, 0, 2}, {0, 2, 3}, {1, 0, 1}, {1, 1, 2}, {1, 2, 3}};
        for (int i = 0; i < 5; i++)
            parts[i] = (segue_part){.size = sizeof *parts,
                                    .phase = (segue_phase)ranges[i][0],
                                    .from = ranges[i][1],
                                    .to = ranges[i][2],
                                    .expect_j = -1};
        OK(segue_plan_new(&plan, parts, 5, NULL, &err));
        o.plan = plan;
        OK(segue_session_open(&s, e, &o, &err));
        segue_plan_close(plan);
        OK(segue_session_append(s, all.prompt, PROMPT, &err));
        answer(s, got, ANSWER);
        same(got, want, ANSWER, "layers apart");
        OK(segue_session_rewind(s, PROMPT, &err));
        answer(s, got, ANSWER);
        same(got, want, ANSWER, "layers apart, rewound");
        segue_session *fork = NULL;
        OK(segue_session_rewind(s, PROMPT + 2, &err));
        OK(segue_session_fork(&fork, s, &err));
        answer(fork, got + 2, ANSWER - 2);
        same(got, want, ANSWER, "layers apart, forked");
        segue_session_close(fork);
        segue_session_close(s);
        parts[1].from = 1; /* a layer twice */
        OK(segue_plan_new(&plan, parts, 5, NULL, &err));
        o.plan = plan;
        assert_int_equal(segue_session_open(&s, e, &o, &err), SEGUE_EARG);
        segue_plan_close(plan);
        segue_engine_close(e);
    }
}

static void seeds_repeat(void **state)
{
    (void)state;
    segue_engine *e = engine(0, 0, 0, 0, 0);
    int32_t got[3][ANSWER];
    for (int i = 0; i < 3; i++) {
        segue_sampling p = SEGUE_INIT(segue_sampling);
        p.temperature = 1.5f;
        p.ignore_stops = 1;
        p.seed = i < 2 ? 11 : 12;
        segue_session *s = session(e, &p);
        OK(segue_session_append(s, all.prompt, PROMPT, &err));
        answer(s, got[i], ANSWER);
        segue_session_close(s);
    }
    same(got[0], got[1], ANSWER, "seed");
    assert_memory_not_equal(got[0], got[2], sizeof got[0]);
    segue_engine_close(e);
}

static void *cancel_soon(void *s)
{
    segue_session_cancel(s);
    return NULL;
}

static void canceled_sessions_go_on(void **state)
{
    (void)state;
    EACH_UNIT_AND_MODEL(u, m)
    {
        segue_engine *e = engine(m, u, u, 4, 0);
        int32_t want[ANSWER], got[ANSWER];
        straight(e, want);
        segue_session *s = session(e, NULL);
        OK(segue_session_append(s, all.prompt, PROMPT, &err));
        segue_session_cancel(s); /* no call is in progress, so this has no effect */
        OK(segue_session_prefill(s, 4, NULL, &err));
        for (int i = 0; i < ANSWER;) { /* a thread cancels at any moment, also before or after the call */
            pthread_t thread;
            assert_int_equal(pthread_create(&thread, NULL, cancel_soon, s), 0);
            segue_status status = segue_session_next(s, &got[i], &err);
            pthread_join(thread, NULL);
            assert_true(status == SEGUE_OK || status == SEGUE_ECANCELED);
            if (status == SEGUE_OK) i++; /* else it is called again, and may be interrupted again */
        }
        same(got, want, ANSWER, "canceled");
        segue_session_close(s);
        segue_engine_close(e);
    }
}

static void limits_name_both_numbers(void **state)
{
    (void)state;
    segue_engine *e = engine(0, 0, 0, 0, 0);
    segue_session *s = session(e, NULL);
    static int32_t many[1000000];
    int32_t token;
    assert_int_equal(segue_session_append(s, many, 1000000, &err), SEGUE_ELIMIT);
    assert_non_null(strstr(err.text, "1000000"));
    assert_non_null(strstr(err.text, "128"));
    assert_int_equal(segue_session_tokens(s, NULL), 0);
    assert_int_equal(segue_session_next(s, &token, &err), SEGUE_EARG); /* nothing to continue */
    OK(segue_session_append(s, many, 128, &err));
    assert_int_equal(segue_session_next(s, &token, &err), SEGUE_ELIMIT);
    assert_non_null(strstr(err.text, "128"));
    many[0] = TINY_VOCAB;
    OK(segue_session_rewind(s, 5, &err));
    assert_int_equal(segue_session_append(s, many, 1, &err), SEGUE_EARG);
    assert_int_equal(segue_session_rewind(s, 6, &err), SEGUE_EARG);
    many[0] = 0;
    segue_session_close(s);
    segue_engine_close(e);
}

static void stop_tokens_end(void **state)
{
    (void)state;
    segue_engine *e = engine(0, 0, 0, 0, 0);
    const struct segue_bias bias[1] = {{2, 1000}};
    segue_sampling p = SEGUE_INIT(segue_sampling);
    int32_t token = -1;
    p.bias = bias;
    p.bias_n = 1;
    segue_session *s = session(e, &p);
    OK(segue_session_append(s, all.prompt, PROMPT, &err));
    assert_int_equal(segue_session_next(s, &token, &err), SEGUE_END);
    assert_int_equal(token, 2);
    assert_int_equal(segue_session_tokens(s, NULL), PROMPT + 1);
    segue_session_close(s);
    segue_engine_close(e);
}

/* A tokenizer smaller than the vocabulary: the rows beyond it are padding and are never chosen, however
 * probable. And the breakers of DRY come from its texts: token 5 holds a newline. */
static void the_tokenizer_bounds_the_choice(void **state)
{
    (void)state;
    enum { TEXTS = 60 };
    char folder[512], path[1024];
    segue_model *m = NULL;
    segue_engine *e = NULL;
    segue_session *s = NULL;
    int32_t token = -1;
    tiny_folder(folder, sizeof folder, "sessions", tiny_models[0].name);
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "{\"added_tokens\":[],\"normalizer\":null,\"post_processor\":null,\"pre_tokenizer\":{\"type\":"
               "\"ByteLevel\","
               "\"add_prefix_space\":false,\"use_regex\":true},\"decoder\":{\"type\":\"ByteLevel\"},"
               "\"model\":{\"type\":\"BPE\","
               "\"merges\":[],\"vocab\":{\"\\u010a\":5");
    for (int i = 0; i < TEXTS; i++)
        if (i != 5) fprintf(f, ",\"%c\":%d", 'A' + i + (i > 26), i); /* past the backslash */
    fprintf(f, "}}}");
    assert_int_equal(fclose(f), 0);
    if (segue_model_open(&m, folder, NULL, &err) != SEGUE_OK) fail_msg("%s", err.text);
    assert_int_equal(unlink(path), 0);
    OK(segue_engine_open(&e, m, &all.units[0], 1, NULL, &err));
    const struct segue_bias bias[2] = {{90, 500}, {41, 300}};
    for (int hot = 0; hot < 2; hot++) {
        segue_sampling p = SEGUE_INIT(segue_sampling);
        p.bias = bias;
        p.bias_n = 2;
        p.temperature = (float)hot;
        s = session(e, &p);
        OK(segue_session_append(s, all.prompt, PROMPT, &err));
        OK(segue_session_next(s, &token, &err));
        assert_int_equal(token, 41);
        segue_session_close(s);
    }
    for (int32_t breaker = 5; breaker < 7; breaker++) { /* x y z w x y z: w is penalised, unless y breaks */
        const int32_t loop[7] = {10, breaker, 12, 13, 10, breaker, 12};
        const struct segue_bias wish = {13, 100};
        segue_sampling p = SEGUE_INIT(segue_sampling);
        p.bias = &wish;
        p.bias_n = 1;
        p.dry_multiplier = 1000;
        s = session(e, &p);
        OK(segue_session_append(s, loop, 7, &err));
        OK(segue_session_next(s, &token, &err));
        assert_true((token == 13) == (breaker == 5));
        segue_session_close(s);
    }
    segue_engine_close(e);
    segue_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_are_the_highest_logits),
        cmocka_unit_test(chunks_do_not_show),
        cmocka_unit_test(steps_with_others_equal_steps_alone),
        cmocka_unit_test(first_rows_go_with_others),
        cmocka_unit_test(rewound_sessions_go_the_straight_way),
        cmocka_unit_test(forks_do_not_disturb),
        cmocka_unit_test(saved_sessions_go_on),
        cmocka_unit_test(moved_sessions_go_on),
        cmocka_unit_test(layers_on_two_units),
        cmocka_unit_test(seeds_repeat),
        cmocka_unit_test(canceled_sessions_go_on),
        cmocka_unit_test(limits_name_both_numbers),
        cmocka_unit_test(stop_tokens_end),
        cmocka_unit_test(the_tokenizer_bounds_the_choice),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
