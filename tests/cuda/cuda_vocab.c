/* cuda_vocab.c: the output head of one row over the stub driver: which kernel computes it, and the error when no logit is a
 * number. Results are checked on a GPU (check, cases head.*).
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "graph/graph.h"
#include "stub.h"

enum { D = 256, LARGE = 16384, SMALL = 64, ROWS = 3 };

static const uint16_t zeros[LARGE * D];

/* Runs an output head alone, on `rows` rows of which the last one is wanted. chosen 1: with a greedy choice. */
static segue_status head_of(enum sg_storage storage, uint32_t vocab, uint32_t rows, int chosen, segue_error *err)
{
    static const float x[ROWS * D];
    const struct sg_tensor head = {.name = "head", .storage = storage, .rank = 2, .shape = {vocab, D}, .rows = vocab, .cols = D,
                                   .data = (const uint8_t *)zeros, .bytes = (size_t)vocab * D * 2};
    const uint32_t wanted[1] = {rows - 1};
    const struct sg_sampler greedy = {0};
    int32_t token = 0;
    struct sg_builder b;
    struct sg_graph *g = NULL;
    assert_int_equal(sg_builder_begin(&b, err), SEGUE_OK);
    int32_t in = sg_rows(&b, sg_whole(&b, sg_input_rows(&b, D)));
    sg_output(&b, sg_linear(&b, sg_whole(&b, in), sg_weight_of(&b, &head), sg_weight_of(&b, NULL), sg_absent()), "logits");
    assert_int_equal(sg_builder_end(&b, &g, err), SEGUE_OK);
    struct life l =
        {.span = {.rows = rows, .values = x, .wanted = wanted, .wanted_n = 1, .steps = 1, .sampler = chosen ? &greedy : NULL},
         .result = {.tokens = chosen ? &token : NULL}};
    return live(&l, g, err);
}

static void large_heads_use_vocab_kernel(void **state)
{
    const struct {
        uint32_t vocab, rows;
        int chosen, heads;
    } cases[] = {{LARGE, 1, 1, 1}, {LARGE, 1, 0, 1}, {LARGE, ROWS, 1, 1}, {SMALL, 1, 1, 0}, {SMALL, 1, 0, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        segue_error err;
        assert_int_equal(head_of(SG_F16, cases[i].vocab, cases[i].rows, cases[i].chosen, &err), SEGUE_OK);
        assert_int_equal(launches_of_kernel("vocab_F16_1"), cases[i].heads);
        assert_int_equal(launches_of_kernel("argmax_rows"), 0);
    }
}

/* What the kernel reports when no logit is a number. */
static void choose_none(const char *name, const void *args)
{
    const struct ck_choose *c = args;
    if (!strcmp(name, "choose_best") && c->chosen) c->chosen[0] = -1;
}

static void no_finite_logit_is_an_error(void **state)
{
    static const enum sg_storage storages[] = {SG_F16, SG_BF16};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        segue_error err = {0};
        watch(choose_none);
        segue_status status = head_of(storages[i], LARGE, 1, 1, &err);
        watch(NULL);
        assert_int_equal(status, SEGUE_EFORMAT);
        assert_non_null(strstr(err.text, "a logit is not a number"));
        assert_int_equal(strstr(err.text, "range of its F16 weights") != NULL, storages[i] == SG_F16);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(large_heads_use_vocab_kernel),
                                       cmocka_unit_test(no_finite_logit_is_an_error)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
