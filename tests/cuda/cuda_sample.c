/* cuda_sample.c: sampling by the unit over the stub driver: which kernel chooses, on how many blocks, also on other GPUs; when
 * settings are copied; the errors. The stub refuses more shared memory than the GPU it claims to be has. Results are checked on
 * a GPU (check, cases sample.*).
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "graph/graph.h"
#include "stub.h"

enum { D = 256, VOCAB = 16384, LOGPROBS = 6 };

static const uint16_t zeros[VOCAB * D];

/* Runs an output head alone on one row, with a choice. */
static segue_status head_of(const struct sg_sampler *sampler, const char *spec, int32_t *token, segue_error *err)
{
    static const float x[D];
    static const uint32_t first_row = 0;
    const struct sg_tensor head = {.name = "head", .storage = SG_F16, .rank = 2, .shape = {VOCAB, D}, .rows = VOCAB, .cols = D,
                                   .data = (const uint8_t *)zeros, .bytes = sizeof zeros};
    segue_logprob logprobs[SG_LOGPROBS_MAX];
    size_t logprobs_n;
    struct sg_builder b;
    struct sg_graph *g = NULL;
    assert_int_equal(sg_builder_begin(&b, err), SEGUE_OK);
    int32_t in = sg_rows(&b, sg_whole(&b, sg_input_rows(&b, D)));
    sg_output(&b, sg_linear(&b, sg_whole(&b, in), sg_weight_of(&b, &head), sg_weight_of(&b, NULL), sg_absent()), "logits");
    assert_int_equal(sg_builder_end(&b, &g, err), SEGUE_OK);
    struct life l = {.spec = spec,
                     .span = {.rows = 1, .values = x, .wanted = &first_row, .wanted_n = 1, .steps = 1, .sampler = sampler},
                     .result = {.tokens = token, .logprobs = logprobs, .logprobs_n = &logprobs_n}};
    return live(&l, g, err);
}

/* What the next launch of sample_rows reports. */
static uint32_t reported;

static void report(const char *name, const void *args)
{
    const struct ck_sample *a = args;
    if (!strcmp(name, "sample_rows")) a->out[0] = (struct ck_sampled){.token = 77, .status = reported};
}

static segue_status choose(const struct sg_sampler *s, uint32_t status, const char *spec, int32_t *token, segue_error *err)
{
    reported = status;
    watch(report);
    segue_status result = head_of(s, spec, token, err);
    watch(NULL);
    return result;
}

/* Everything but a plain greedy choice is one launch of sample_rows, without another choice; a greedy one is none. */
static void one_kernel_samples(void **state)
{
    static const int32_t history[3] = {1, 2, 3};
    static const uint32_t allowed[VOCAB / 32];
    struct sg_sampler cases[] = {{.p = {.temperature = 1}},
                                 {.p = {.repeat_penalty = 1.5f}, .history = history, .history_n = 3},
                                 {.p = {.logprobs = LOGPROBS}},
                                 {.allowed = allowed, .allowed_n = VOCAB}};
    const struct sg_sampler greedy = {0};
    segue_error err = {0};
    int32_t token = 0;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        token = 0;
        assert_int_equal(choose(&cases[i], 0, NULL, &token, &err), SEGUE_OK);
        assert_int_equal(token, 77);
        assert_int_equal(launches_of_kernel("sample_rows"), 1);
        assert_int_equal(launches_of_kernel("argmax_rows") + launches_of_kernel("choose_best"), 0);
    }
    assert_int_equal(choose(&greedy, 0, NULL, &token, &err), SEGUE_OK);
    assert_int_equal(launches_of_kernel("sample_rows"), 0);
}

static void errors_say_why(void **state)
{
    const struct sg_sampler s = {.p = {.temperature = 1}};
    segue_error err = {0};
    int32_t token = 0;
    (void)state;
    assert_int_equal(choose(&s, 1, NULL, &token, &err), SEGUE_EFORMAT);
    assert_non_null(strstr(err.text, "a logit is not a number"));
    assert_int_equal(choose(&s, 2, NULL, &token, &err), SEGUE_EFORMAT);
    assert_non_null(strstr(err.text, "forbid every token"));
    assert_int_equal(token, -1); /* none */
}

/* GPUs by compute capability, shared memory of a block, multiprocessors. All blocks of a job must be resident, so there are no
 * more than fit; kernels of Hopper run on Hopper only, and not with hopper=0. */
static void other_gpus_are_taken_as_they_are(void **state)
{
    static const struct {
        const char *card, *spec;
        int sms, hopper;
    } cards[] = {{"8,0,166912,108", "cuda:0", 108, 0},       {"8,6,101376,82", "cuda:0", 82, 0},
                 {"8,9,101376,24", "cuda:0", 24, 0},         {"9,0,232448,132", "cuda:0", 132, 1},
                 {"9,0,232448,132", "cuda:0,hopper=0", 132, 0}, {"12,0,101376,170", "cuda:0", 170, 0}};
    const struct sg_sampler s = {.p = {.temperature = 1, .logprobs = LOGPROBS}}, greedy = {0};
    (void)state;
    for (size_t i = 0; i < sizeof cards / sizeof *cards; i++) {
        segue_error err = {0};
        int32_t token = 0;
        assert_int_equal(setenv("SEGUE_STUB_CARD", cards[i].card, 1), 0);
        assert_int_equal(choose(&s, 0, cards[i].spec, &token, &err), SEGUE_OK);
        assert_int_equal(blocks_of_kernel("sample_rows"), CK_SAMPLE_BLOCKS * cards[i].sms);
        assert_int_equal(choose(&greedy, 0, cards[i].spec, &token, &err), SEGUE_OK);
        assert_int_equal(launches_of_kernel("vocab_F16_1"), cards[i].hopper);
    }
    unsetenv("SEGUE_STUB_CARD");
}

/* The pass of the next step is issued before it is asked for, also under masks, which change with every token: then without the
 * choice. Embeddings count passes: those that run, and one ahead; replays of captured ones do not launch by name. */
static void masked_steps_run_ahead(void **state)
{
    static const uint32_t first_row = 0, allowed[VOCAB / 32];
    static const int32_t tokens[1]; /* the stub's kernels write no token, so it is 0 */
    const struct sg_tensor table = {.name = "table", .storage = SG_F16, .rank = 2, .shape = {VOCAB, D}, .rows = VOCAB, .cols = D,
                                    .data = (const uint8_t *)zeros, .bytes = sizeof zeros};
    const struct sg_sampler masked = {.allowed = allowed, .allowed_n = VOCAB};
    segue_error err = {0};
    int32_t token = 0;
    (void)state;
    for (uint32_t runs = 1; runs <= 3; runs++) {
        struct sg_builder b;
        struct sg_graph *g = NULL;
        struct life l = {.span = {.rows = 1, .tokens = tokens, .wanted = &first_row, .wanted_n = 1, .sampler = &masked},
                         .result = {.tokens = &token}, .runs = runs};
        assert_int_equal(sg_builder_begin(&b, &err), SEGUE_OK);
        int32_t x = sg_rows(&b, sg_whole(&b, sg_embed(&b, sg_input_tokens(&b), &table, NULL, 1)));
        sg_output(&b, sg_linear(&b, sg_whole(&b, x), sg_weight_of(&b, &table), sg_weight_of(&b, NULL), sg_absent()), "logits");
        assert_int_equal(sg_builder_end(&b, &g, &err), SEGUE_OK);
        reported = 0;
        watch(report);
        assert_int_equal(live(&l, g, &err), SEGUE_OK);
        watch(NULL);
        assert_int_equal(token, 77);
        assert_int_equal(launches_of_kernel("embed"), runs + 1);
        assert_int_equal(launches_of_kernel("sample_rows"), runs);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_kernel_samples), cmocka_unit_test(errors_say_why),
                                       cmocka_unit_test(other_gpus_are_taken_as_they_are),
                                       cmocka_unit_test(masked_steps_run_ahead)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
