/* cuda_steps.c: steps that follow one another on the card, over the stub driver: who embeds the next token. That texts are those of other
 * units is check's (handoff), on a GPU. SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "graph/graph.h"
#include "stub.h"

enum { D = 8, VOCAB = 64 };

static const float numbers[VOCAB * D];
static const struct sg_tensor table = {.name = "table", .storage = SG_F32, .rank = 2, .shape = {VOCAB, D}, .rows = VOCAB, .cols = D,
                                       .data = (const uint8_t *)numbers, .bytes = sizeof numbers};

static struct sg_graph *make(void)
{
    struct sg_builder b;
    struct sg_graph *g = NULL;
    segue_error err;
    assert_int_equal(sg_builder_begin(&b, &err), SEGUE_OK);
    int32_t x = sg_embed(&b, sg_input_tokens(&b), &table, NULL, 1);
    b.layer = -1;
    x = sg_rows(&b, sg_whole(&b, x));
    sg_output(&b, sg_linear(&b, sg_whole(&b, x), sg_weight_of(&b, &table), sg_weight_of(&b, NULL), sg_absent()), "logits");
    assert_int_equal(sg_builder_end(&b, &g, &err), SEGUE_OK);
    return g;
}

/* Launches of `embed` in a run of so many steps. */
static int embedded_in(uint32_t steps, const char *spec)
{
    const uint32_t wanted[1] = {0};
    const int32_t tokens[1] = {1};
    const struct sg_sampler greedy = {0};
    segue_error err;
    int32_t arrived[8] = {0};
    struct sg_ring ring = {.tokens = arrived, .cap = 8};
    struct life l = {.spec = spec,
                     .span = {.rows = 1, .tokens = tokens, .wanted = wanted, .wanted_n = 1, .steps = steps, .sampler = &greedy, .ring = &ring}};
    if (live(&l, make(), &err) != SEGUE_OK) fail_msg("%s", err.text);
    return launches_of_kernel("embed");
}

/* The token that the run begins with, the first step after it, the second one, which is issued as it is; the third one, captured, and all
 * that are launched as graphs find their row embedded. */
static void who_chooses_embeds(void **state)
{
    (void)state;
    assert_int_equal(embedded_in(2, "cuda:0"), 2);
    assert_int_equal(embedded_in(3, "cuda:0"), 3);
    assert_int_equal(embedded_in(4, "cuda:0"), 3);
    assert_int_equal(embedded_in(6, "cuda:0"), 3);
    assert_int_equal(embedded_in(6, "cuda:0,graphs=0"), 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(who_chooses_embeds)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
