/* sample.c: how a token is chosen: goldens of an independent restatement (tests/golden/sample), published
 * vectors of the generator, the distribution of many draws, ties, and the refusals. SPDX-License-Identifier:
 * MIT */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/mem.h"
#include "unit/sample.h"

/* Known answers of Random123 (kat_vectors, philox4x32 10). */
static void philox_gives_the_published_words(void **state)
{
    (void)state;
    static const uint32_t kat[3][10] = {
        {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {~0u, ~0u, ~0u, ~0u, ~0u, ~0u, 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09, 0x94fdcceb,
         0x5001e420, 0x24126ea1}};
    for (int i = 0; i < 3; i++) {
        uint32_t out[4];
        sg_philox(kat[i], kat[i] + 4, out);
        assert_memory_equal(out, kat[i] + 6, sizeof out);
    }
}

static size_t ints_of(const json_t *array, int32_t *out)
{
    size_t i;
    json_t *item;
    json_array_foreach(array, i, item) out[i] = (int32_t)json_integer_value(item);
    return json_array_size(array);
}

struct golden {
    float logits[4096], work[4096];
    int32_t history[4096], stops[8], breakers[8];
    uint8_t flags[4096];
    struct segue_bias bias[8];
    struct sg_sampler sampler;
    uint32_t vocab;
};

static float number_of(const json_t *object, const char *key)
{
    return (float)json_number_value(json_object_get(object, key));
}

static int32_t int_of(const json_t *object, const char *key)
{
    return (int32_t)json_integer_value(json_object_get(object, key));
}

static void read_golden(const json_t *c, struct golden *g)
{
    const json_t *p = json_object_get(c, "sampling"), *logits = json_object_get(c, "logits"), *bias;
    memset(g, 0, sizeof *g);
    g->vocab = (uint32_t)json_array_size(logits);
    for (uint32_t i = 0; i < g->vocab; i++)
        g->logits[i] = (float)json_number_value(json_array_get(logits, i));
    size_t breakers_n = ints_of(json_object_get(c, "breakers"), g->breakers);
    for (size_t i = 0; i < breakers_n; i++) g->flags[g->breakers[i]] = 1;
    bias = json_object_get(p, "bias");
    for (size_t i = 0; i < json_array_size(bias); i++) {
        const json_t *pair = json_array_get(bias, i);
        g->bias[i].token = (int32_t)json_integer_value(json_array_get(pair, 0));
        g->bias[i].bias = (float)json_number_value(json_array_get(pair, 1));
    }
    g->sampler = (struct sg_sampler){.p = {.size = sizeof(segue_sampling),
                                           .temperature = number_of(p, "temperature"),
                                           .top_k = int_of(p, "top_k"),
                                           .top_p = number_of(p, "top_p"),
                                           .min_p = number_of(p, "min_p"),
                                           .typical_p = number_of(p, "typical_p"),
                                           .repeat_penalty = number_of(p, "repeat_penalty"),
                                           .presence_penalty = number_of(p, "presence_penalty"),
                                           .frequency_penalty = number_of(p, "frequency_penalty"),
                                           .repeat_last_n = int_of(p, "repeat_last_n"),
                                           .dry_multiplier = number_of(p, "dry_multiplier"),
                                           .dry_base = number_of(p, "dry_base"),
                                           .dry_allowed_length = int_of(p, "dry_allowed_length"),
                                           .bias = g->bias,
                                           .bias_n = json_array_size(bias),
                                           .seed = (uint64_t)json_integer_value(json_object_get(p, "seed")),
                                           .ignore_stops = (uint32_t)int_of(p, "ignore_stops"),
                                           .logprobs = 6},
                                     .stops = g->stops,
                                     .stops_n = ints_of(json_object_get(c, "stops"), g->stops),
                                     .history = g->history,
                                     .history_n = ints_of(json_object_get(c, "history"), g->history),
                                     .breakers = g->flags,
                                     .breakers_n = g->vocab};
}

static void check_logprobs(const json_t *c, const struct golden *g, int32_t token, const segue_logprob *got,
                           size_t n)
{
    const json_t *want = json_object_get(c, "logprobs");
    assert_int_equal(n, g->vocab < 5 ? 1 + g->vocab : 6);
    assert_int_equal(got[0].token, token);
    for (size_t i = 0; i < n; i++)
        if ((size_t)got[i].token < json_array_size(want)) {
            double w = json_number_value(json_array_get(want, (size_t)got[i].token));
            assert_true(fabs((double)got[i].logprob - w) < 1e-4);
        }
    for (size_t i = 2; i < n; i++) {
        float a = g->logits[got[i - 1].token], b = g->logits[got[i].token];
        assert_true(a > b || (a == b && got[i - 1].token < got[i].token));
    }
}

static void choices_equal_the_goldens(void **state)
{
    (void)state;
    json_error_t why;
    json_t *root = json_load_file(SEGUE_SOURCE_DIR "/tests/golden/sample/samples.json", 0, &why);
    assert_non_null(root);
    size_t i;
    json_t *c, *u;
    json_array_foreach(json_object_get(root, "uniforms"), i, u)
    {
        float want = (float)json_number_value(json_array_get(u, 2));
        uint64_t seed = (uint64_t)json_integer_value(json_array_get(u, 0));
        assert_true(sg_uniform(seed, (uint64_t)json_integer_value(json_array_get(u, 1))) == want);
    }
    struct golden *g = malloc(sizeof *g);
    assert_non_null(g);
    json_array_foreach(json_object_get(root, "cases"), i, c)
    {
        read_golden(c, g);
        struct sg_chooser *chooser = NULL;
        assert_int_equal(sg_chooser_new(&chooser, g->vocab, NULL), SEGUE_OK);
        const json_t *want = json_object_get(c, "tokens");
        for (size_t at = 0; at < json_array_size(want); at++) {
            segue_logprob logprobs[21];
            size_t n = 0;
            int32_t token = -1;
            segue_error err = {0};
            memcpy(g->work, g->logits, sizeof g->work);
            segue_status s = sg_choose(chooser, &g->sampler, g->work, at, &token, logprobs, &n, &err);
            if (s != SEGUE_OK || token != (int32_t)json_integer_value(json_array_get(want, at)))
                fail_msg("%s at %zu: %d (%s)", json_string_value(json_object_get(c, "name")), at, token,
                         err.text);
            check_logprobs(c, g, token, logprobs, n);
        }
        sg_chooser_free(chooser);
    }
    assert_int_equal(json_array_size(json_object_get(root, "cases")), 35);
    free(g);
    json_decref(root);
}

/* 60,000 draws from known probabilities: chi-square with 7 degrees of freedom, fixed seed; 24.3 is its 99.9 %
 * point. */
static void draws_follow_the_probabilities(void **state)
{
    (void)state;
    static const double p[8] = {0.3, 0.2, 0.15, 0.1, 0.1, 0.08, 0.05, 0.02};
    struct sg_sampler s = {.p = {.size = sizeof(segue_sampling), .temperature = 1, .seed = 99}};
    struct sg_chooser *c = NULL;
    assert_int_equal(sg_chooser_new(&c, 8, NULL), SEGUE_OK);
    enum { DRAWS = 60000 };
    double count[8] = {0}, chi = 0;
    for (uint64_t i = 0; i < DRAWS; i++) {
        float logits[8];
        int32_t token = 0;
        for (int j = 0; j < 8; j++) logits[j] = (float)log(p[j]);
        assert_int_equal(sg_choose(c, &s, logits, i, &token, NULL, NULL, NULL), SEGUE_OK);
        count[token]++;
    }
    for (int j = 0; j < 8; j++) chi += (count[j] - DRAWS * p[j]) * (count[j] - DRAWS * p[j]) / (DRAWS * p[j]);
    assert_true(chi < 24.3);
    assert_true(chi > 0.6); /* 0.1 % point: draws that fit too well are not random */
    sg_chooser_free(c);
}

static int32_t choose(struct sg_sampler *s, const float *logits, uint32_t n, segue_status *status)
{
    float work[64];
    int32_t token = -7;
    struct sg_chooser *c = NULL;
    segue_error err = {0};
    assert_int_equal(sg_chooser_new(&c, n, NULL), SEGUE_OK);
    memcpy(work, logits, n * sizeof *logits);
    *status = sg_choose(c, s, work, 0, &token, NULL, NULL, &err);
    if (*status != SEGUE_OK) assert_true(strlen(err.text) > 10);
    sg_chooser_free(c);
    return token;
}

/* The highest of many, the lowest id on ties, negative zero no smaller than zero; a forbidden token and a
 * bias decide, and the logits are as before. */
static void the_highest_of_many_leaves_them_as_they_were(void **state)
{
    (void)state;
    enum { N = 5000 };
    static float logits[N], before[N], scratch[N];
    static const int32_t stop[] = {4321};
    struct segue_bias bias = {.token = 77, .bias = 100};
    struct sg_sampler s = {.p = {.size = sizeof(segue_sampling)}, .stops = stop, .stops_n = 1};
    struct sg_chooser *c = NULL;
    int32_t token = -1;
    assert_int_equal(sg_chooser_new(&c, N, NULL), SEGUE_OK);
    for (int i = 0; i < N; i++) logits[i] = -(float)((i * 2654435761u >> 8) % 100000) - 1;
    logits[4100] = -0.0f;
    logits[4200] = 0.0f;
    memcpy(before, logits, sizeof before);
    assert_int_equal(sg_choose_kept(c, &s, logits, scratch, 0, &token, NULL, NULL, NULL), SEGUE_OK);
    assert_int_equal(token, 4100);
    before[4321] = logits[4321] = 3;
    assert_int_equal(sg_choose_kept(c, &s, logits, scratch, 0, &token, NULL, NULL, NULL), SEGUE_OK);
    assert_int_equal(token, 4321);
    s.p.ignore_stops = 1;
    assert_int_equal(sg_choose_kept(c, &s, logits, scratch, 0, &token, NULL, NULL, NULL), SEGUE_OK);
    assert_int_equal(token, 4100);
    s.p.bias = &bias;
    s.p.bias_n = 1;
    before[77] = logits[77] = -50;
    assert_int_equal(sg_choose_kept(c, &s, logits, scratch, 0, &token, NULL, NULL, NULL), SEGUE_OK);
    assert_int_equal(token, 77);
    assert_memory_equal(logits, before, sizeof before);
    sg_chooser_free(c);
}

static void bad_logits_are_refused(void **state)
{
    (void)state;
    struct sg_sampler s = {.p = {.size = sizeof(segue_sampling)}};
    segue_status status;
    for (int warm = 0; warm < 2; warm++) {
        s.p.temperature = (float)warm;
        const float nan[3] = {1, NAN, 2}, inf[3] = {1, INFINITY, 2},
                    none[3] = {-INFINITY, -INFINITY, -INFINITY};
        choose(&s, nan, 3, &status);
        assert_int_equal(status, SEGUE_EFORMAT);
        choose(&s, inf, 3, &status);
        assert_int_equal(status, SEGUE_EFORMAT);
        assert_int_equal(choose(&s, none, 3, &status), -7); /* the out-parameter is left alone */
        assert_int_equal(status, SEGUE_EFORMAT);
        const float one[3] = {-INFINITY, -1e30f, -INFINITY};
        assert_int_equal(choose(&s, one, 3, &status), 1);
        assert_int_equal(status, SEGUE_OK);
    }
}

static void forbidden_rows_are_never_chosen(void **state)
{
    (void)state;
    struct sg_sampler s = {.p = {.size = sizeof(segue_sampling), .ignore_stops = 1}, .limit = 3};
    static const int32_t stops[3] = {1, -1, 9};
    struct segue_bias bias[2] = {{7, 1.f}, {2, -INFINITY}};
    s.stops = stops;
    s.stops_n = 3;
    s.p.bias = bias;
    s.p.bias_n = 2;
    const float logits[5] = {0, 5, 6, 50, 60};
    segue_status status;
    for (int warm = 0; warm < 2; warm++) {
        s.p.temperature = (float)warm;
        assert_int_equal(choose(&s, logits, 5, &status), 0); /* 1 stops, 2 is banned, 3 and 4 are padding */
        assert_int_equal(status, SEGUE_OK);
    }
}

/* A mask of allowed tokens chooses as biases of minus infinity on the other tokens do, with every other step in use; tokens
 * beyond the mask are forbidden; an empty mask is refused. */
static void a_mask_forbids_like_a_bias(void **state)
{
    (void)state;
    enum { N = 60, COVERED = 50 };
    static const int32_t history[6] = {3, 9, 3, 9, 17, 3};
    struct sg_sampler s = {.p = {.size = sizeof(segue_sampling), .repeat_penalty = 1.3f, .dry_multiplier = 0.5f},
                           .history = history,
                           .history_n = 6};
    float logits[N];
    for (int i = 0; i < N; i++) logits[i] = (float)((uint32_t)i * 2654435761u >> 20) / 512 - 4;
    for (uint32_t seed = 0; seed < 64; seed++) {
        struct segue_bias bias[N];
        uint32_t allowed[2] = {seed * 0x9E3779B9u | 8, seed * 0x85EBCA6Bu};
        size_t bias_n = 0;
        for (int i = 0; i < N; i++)
            if (i >= COVERED || !(allowed[i / 32] >> i % 32 & 1)) bias[bias_n++] = (struct segue_bias){i, -INFINITY};
        segue_status status;
        s.p.temperature = seed % 4 ? 1.5f : 0;
        s.p.top_p = seed % 3 ? 0.9f : 0;
        s.p.seed = seed;
        s.p.bias = bias;
        s.p.bias_n = bias_n;
        s.allowed = NULL;
        int32_t want = choose(&s, logits, N, &status);
        assert_int_equal(status, SEGUE_OK);
        s.p.bias_n = 0;
        s.allowed = allowed;
        s.allowed_n = COVERED;
        assert_int_equal(choose(&s, logits, N, &status), want);
        assert_int_equal(status, SEGUE_OK);
        assert_true(allowed[want / 32] >> want % 32 & 1);
    }
    segue_status status;
    s.allowed = (const uint32_t[2]){0, 0};
    choose(&s, logits, N, &status);
    assert_int_equal(status, SEGUE_EFORMAT);
}

static void extremes_stay_finite(void **state)
{
    (void)state;
    static const int32_t history[4] = {0, 1, 0, 1};
    struct segue_bias bias[1] = {{1, 3e38f}};
    struct sg_sampler s = {.p = {.size = sizeof(segue_sampling),
                                 .temperature = 1e-30f,
                                 .repeat_penalty = 1e-30f,
                                 .dry_multiplier = 1e30f,
                                 .dry_base = 1e30f,
                                 .dry_allowed_length = 1,
                                 .bias = bias,
                                 .bias_n = 1},
                           .history = history,
                           .history_n = 4};
    const float logits[4] = {3e38f, 3e38f, 1, 2};
    segue_status status;
    int32_t token = choose(&s, logits, 4, &status);
    assert_int_equal(status, SEGUE_OK);
    assert_in_range(token, 0, 3);
    s.p.temperature = 1e30f;
    choose(&s, logits, 4, &status);
    assert_int_equal(status, SEGUE_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_gives_the_published_words), cmocka_unit_test(choices_equal_the_goldens),
        cmocka_unit_test(draws_follow_the_probabilities),   cmocka_unit_test(the_highest_of_many_leaves_them_as_they_were),
        cmocka_unit_test(bad_logits_are_refused),
        cmocka_unit_test(a_mask_forbids_like_a_bias),
        cmocka_unit_test(forbidden_rows_are_never_chosen),  cmocka_unit_test(extremes_stay_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
