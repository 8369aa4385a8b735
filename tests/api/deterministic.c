/* deterministic.c: the same request, the same bytes. Random schedules (requests of a scheduler within a small memory budget,
 * single sessions of threads beside it, stored prefixes, chunks, restarts, forks, rewinds) on an engine with deterministic = 1:
 * tokens and log-probabilities are those of each request alone on another engine, bit for bit. SEGUE_SEEDS: how many seeds, for
 * longer runs. SPDX-License-Identifier: MIT */
#include <pthread.h>
#include <stdlib.h>

#include "scheduling.h"

enum { REQUESTS = 8, TOKENS = 12, TOP = 3, PROMPT_MAX = 90, THREADS = 2 };

struct answer_bits {
    int32_t tokens[TOKENS];
    segue_logprob logprobs[TOKENS][TOP];
};

static const struct {
    const char *model, *adapter, *unit;
    segue_kv kv;
} cases[] = {
    {"llama", "lora/llama/peft", "cpu", SEGUE_KV_Q8},
    {"llama/model-q8_0.gguf", NULL, "cpu", SEGUE_KV_F16},
    {"qwen3_5_asym", "lora/qwen3_5_asym/peft", "cpu", SEGUE_KV_F16},
    {"qwen3_5/model-q8_0.gguf", NULL, "cpu", SEGUE_KV_Q8},
    {"gemma3", NULL, "cpu", SEGUE_KV_BF16},
    {"mistral", NULL, "cpu", SEGUE_KV_Q8},
    {"qwen3", NULL, "cpu", SEGUE_KV_F16},
    {"qwen3_5_asym", "lora/qwen3_5_asym/peft", "ref", SEGUE_KV_Q8},
    {"llama", "lora/llama/peft", "ref", SEGUE_KV_Q8},
};

/* One seed of one case. */
struct scene {
    segue_model *model;
    segue_adapter *adapter;
    uint32_t vocab, random;
    size_t c; /* index of the case */
    int32_t prompt[REQUESTS][PROMPT_MAX];
    size_t prompt_n[REQUESTS];
    uint32_t adapted[REQUESTS];
    struct answer_bits want[REQUESTS];
};

static uint32_t draw(struct scene *s, uint32_t below)
{
    s->random = s->random * 1664525u + 1013904223u;
    return (s->random >> 8) % below;
}

/* Prompts begin with parts of earlier ones. */
static void make_prompts(struct scene *s)
{
    for (uint32_t i = 0; i < REQUESTS; i++) {
        size_t n = s->prompt_n[i] = 2 + draw(s, PROMPT_MAX - 2), same = 0;
        uint32_t of = i ? draw(s, i) : 0;
        if (i && draw(s, 3)) same = draw(s, (uint32_t)s->prompt_n[of] + 1);
        for (size_t k = 0; k < n; k++) s->prompt[i][k] = k < same ? s->prompt[of][k] : (int32_t)draw(s, s->vocab);
        s->adapted[i] = s->adapter ? draw(s, 2) : 0;
    }
}

static segue_sampling sampling_for(uint32_t i)
{
    segue_sampling p = SEGUE_INIT(segue_sampling);
    p.ignore_stops = 1;
    p.logprobs = TOP;
    if (i % 2) {
        p.temperature = 1.1f;
        p.top_p = 0.95f;
        p.repeat_penalty = 1.1f;
        p.seed = i;
    }
    return p;
}

static segue_session *open_session(struct scene *s, segue_engine *e, uint32_t i, int no_store)
{
    segue_sampling sampling = sampling_for(i);
    segue_session_opts o = SEGUE_INIT(segue_session_opts);
    segue_session *x = NULL;
    segue_error err;
    o.context = PROMPT_MAX + TOKENS;
    o.sampling = &sampling;
    o.adapters = &s->adapter;
    o.adapters_n = s->adapted[i];
    o.no_store = no_store != 0;
    if (segue_session_open(&x, e, &o, &err) != SEGUE_OK) fail_msg("%s", err.text);
    return x;
}

static segue_status answer(segue_session *x, struct answer_bits *got, size_t n)
{
    size_t all;
    segue_status status = SEGUE_OK;
    for (size_t k = 0; k < n && status == SEGUE_OK; k++) {
        status = segue_session_next(x, &got->tokens[k], NULL);
        if (status == SEGUE_OK) status = segue_session_logprobs(x, got->logprobs[k], TOP, &all, NULL);
    }
    return status;
}

static segue_engine *open_engine(struct scene *s, segue_unit *unit, uint32_t chunk, const char *store)
{
    segue_engine_opts o = SEGUE_INIT(segue_engine_opts);
    segue_engine *e = NULL;
    segue_error err;
    o.kv = cases[s->c].kv;
    o.deterministic = 1;
    o.chunk_tokens = chunk;
    o.store = store;
    if (segue_engine_open(&e, s->model, &unit, 1, &o, &err) != SEGUE_OK) fail_msg("%s: %s", cases[s->c].model, err.text);
    return e;
}

static segue_unit *open_unit(const struct scene *s, int threads)
{
    char spec[32];
    segue_unit *u = NULL;
    segue_error err;
    snprintf(spec, sizeof spec, "%s:threads=%d", cases[s->c].unit, threads);
    if (segue_unit_open(&u, spec, &err) != SEGUE_OK) fail_msg("%s", err.text);
    return u;
}

/* Each request by itself. */
static void make_wanted(struct scene *s)
{
    segue_unit *u = open_unit(s, 1);
    segue_engine *e = open_engine(s, u, 0, NULL);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        segue_session *x = open_session(s, e, i, 1);
        assert_int_equal(segue_session_append(x, s->prompt[i], s->prompt_n[i], NULL), SEGUE_OK);
        assert_int_equal(answer(x, &s->want[i], TOKENS), SEGUE_OK);
        segue_session_close(x);
    }
    segue_engine_close(e);
    segue_unit_close(u);
}

static void expect(const struct scene *s, uint32_t i, const struct answer_bits *got, const char *how, uint32_t seed)
{
    for (int k = 0; k < TOKENS; k++)
        if (got->tokens[k] != s->want[i].tokens[k] || memcmp(got->logprobs[k], s->want[i].logprobs[k], sizeof got->logprobs[k]))
            fail_msg("%s, seed %u, request %u of %zu tokens, %s: token %d is %d with %a, alone %d with %a", cases[s->c].model,
                     seed, i, s->prompt_n[i], how, k, got->tokens[k], (double)got->logprobs[k][0].logprob, s->want[i].tokens[k],
                     (double)s->want[i].logprobs[k][0].logprob);
}

/* --- threads with single sessions --- */

struct direct {
    struct scene *scene;
    segue_engine *engine;
    pthread_t thread;
    uint32_t random, which;
    segue_status status;
    struct answer_bits got;
};

/* A session in one of several ways: pieces of the prompt, a fork in the middle of the answer, an answer that is taken back. */
static void *direct_main(void *arg)
{
    struct direct *d = arg;
    struct scene *s = d->scene;
    uint32_t i = d->which, way = d->random % 4;
    size_t n = s->prompt_n[i], first = way == 1 ? 1 + d->random / 4 % n : n, before = 3;
    segue_session *x = open_session(s, d->engine, i, 0), *fork = NULL;
    segue_status status = segue_session_append(x, s->prompt[i], first, NULL);
    if (!status && first < n) status = segue_session_prefill(x, 0, NULL, NULL);
    if (!status && first < n) status = segue_session_append(x, s->prompt[i] + first, n - first, NULL);
    if (!status && way == 3) { /* the prompt again after a part of the answer */
        status = answer(x, &d->got, 5);
        if (!status) status = segue_session_rewind(x, n - (n > 3), NULL);
        if (!status && n > 3) status = segue_session_append(x, s->prompt[i] + n - 1, 1, NULL);
    }
    if (!status && way == 2) {
        status = answer(x, &d->got, before);
        if (!status) status = segue_session_fork(&fork, x, NULL);
        segue_session_close(x);
        x = fork;
        struct answer_bits rest;
        if (!status) status = answer(x, &rest, TOKENS - before);
        memcpy(d->got.tokens + before, rest.tokens, (TOKENS - before) * sizeof *rest.tokens);
        memcpy(d->got.logprobs + before, rest.logprobs, (TOKENS - before) * sizeof *rest.logprobs);
    } else if (!status) {
        status = answer(x, &d->got, TOKENS);
    }
    segue_session_close(x);
    d->status = status;
    return NULL;
}

/* --- a scheduler beside them --- */

static segue_request *submit_to(struct scene *s, segue_scheduler *to, uint32_t i)
{
    segue_sampling sampling = sampling_for(i);
    segue_request_opts o = SEGUE_INIT(segue_request_opts);
    segue_request *q = NULL;
    segue_error err;
    o.tokens = s->prompt[i];
    o.tokens_n = s->prompt_n[i];
    o.sampling = &sampling;
    o.max_tokens = TOKENS;
    o.adapters = &s->adapter;
    o.adapters_n = s->adapted[i];
    o.priority = (int32_t)draw(s, 3);
    if (segue_request_submit(&q, to, &o, &err) != SEGUE_OK) fail_msg("%s", err.text);
    return q;
}

static void read_request(struct scene *s, segue_request *q, uint32_t i, uint32_t seed)
{
    struct answer_bits got;
    segue_logprob *logprobs = got.logprobs[0]; /* [TOKENS, TOP] */
    size_t all = 0, n;
    segue_status status;
    segue_error err = {0};
    while ((status = segue_request_read(q, got.tokens + all, logprobs + all * TOP, TOKENS - all, &n, forever, &err)) == SEGUE_OK)
        all += n;
    if (status != SEGUE_END || all != TOKENS) fail_msg("%s: %zu tokens, %s", cases[s->c].model, all, err.text);
    expect(s, i, &got, "of a scheduler", seed);
    segue_request_close(q);
}

static void one_round(struct scene *s, segue_engine *e, uint32_t seed)
{
    segue_scheduler *sched;
    segue_scheduler_opts o = SEGUE_INIT(segue_scheduler_opts);
    segue_request *q[REQUESTS];
    struct direct d[THREADS];
    uint32_t order[REQUESTS];
    segue_error err;
    o.running = 1 + draw(s, 5);
    o.context = PROMPT_MAX + TOKENS;
    o.memory_bytes = draw(s, 2) ? 0 : 1 << (18 + draw(s, 3));
    o.target_ns = 1 + draw(s, 2) * 50000000;
    if (segue_scheduler_open(&sched, e, &o, &err) != SEGUE_OK) fail_msg("%s", err.text);
    for (uint32_t i = 0; i < REQUESTS; i++) order[i] = draw(s, REQUESTS);
    for (uint32_t i = 0; i < THREADS; i++) {
        d[i] = (struct direct){.scene = s, .engine = e, .random = draw(s, 1 << 20), .which = draw(s, REQUESTS)};
        assert_int_equal(pthread_create(&d[i].thread, NULL, direct_main, &d[i]), 0);
    }
    for (uint32_t i = 0; i < REQUESTS; i++) q[i] = submit_to(s, sched, order[i]);
    for (uint32_t i = 0; i < REQUESTS; i++) read_request(s, q[i], order[i], seed);
    for (uint32_t i = 0; i < THREADS; i++) {
        static const char *const ways[] = {"alone in a thread", "in two pieces", "forked", "taken back"};
        pthread_join(d[i].thread, NULL);
        assert_int_equal(d[i].status, SEGUE_OK);
        expect(s, d[i].which, &d[i].got, ways[d[i].random % 4], seed);
    }
    segue_scheduler_close(sched);
}

/* Two engines in turn on one folder of prefixes, as before and after a restart. */
static void one_seed(struct scene *s, uint32_t seed)
{
    char folder[64] = "/tmp/segue-deterministic-XXXXXX", command[96];
    segue_unit *u = open_unit(s, 1 + (int)(seed % 2) * 2);
    s->random = seed * 2654435761u + (uint32_t)s->c;
    make_prompts(s);
    make_wanted(s);
    assert_non_null(mkdtemp(folder));
    int disk = (int)draw(s, 2);
    for (int restart = 0; restart < 2; restart++) {
        segue_engine *e = open_engine(s, u, 8 + draw(s, 60), disk ? folder : "");
        one_round(s, e, seed);
        segue_engine_close(e);
    }
    segue_unit_close(u);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    assert_int_equal(system(command), 0);
}

static void same_bytes(void **state)
{
    const char *seeds = getenv("SEGUE_SEEDS");
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct scene *s = calloc(1, sizeof *s);
        segue_model_info info = SEGUE_INIT(segue_model_info);
        char path[512];
        segue_error err;
        assert_non_null(s);
        s->c = c;
        snprintf(path, sizeof path, "%s/tests/golden/tiny/%s", SEGUE_SOURCE_DIR, cases[c].model);
        if (segue_model_open(&s->model, path, NULL, &err) != SEGUE_OK) fail_msg("%s", err.text);
        assert_int_equal(segue_model_info_get(s->model, &info, &err), SEGUE_OK);
        s->vocab = info.vocab;
        snprintf(path, sizeof path, "%s/tests/golden/tiny/%s", SEGUE_SOURCE_DIR, cases[c].adapter);
        if (cases[c].adapter && segue_adapter_open(&s->adapter, s->model, path, 1, &err) != SEGUE_OK) fail_msg("%s", err.text);
        for (uint32_t seed = 1; seed <= (seeds ? (uint32_t)atoi(seeds) : 1); seed++) one_seed(s, seed);
        segue_adapter_close(s->adapter);
        segue_model_close(s->model);
        free(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_bytes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
