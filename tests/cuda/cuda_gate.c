/* cuda_gate.c: when a product leaves the gate of a norm behind the delta rule as its SiLU, over the stub driver: only where the
 * one product that reads it is sure to come and to know. Numbers are check's, on a GPU. SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "stub.h"

enum { HEADS = 16, WIDE = 128, D = HEADS * WIDE, MIXED = D + 2 * WIDE, TAPS = 4 };

static const uint8_t zeros[D * D * 4]; /* of every weight */

static struct sg_tensor matrix(enum sg_storage storage, uint64_t rows, uint64_t cols)
{
    return (struct sg_tensor){.name = "w",
                              .storage = storage,
                              .rank = 2,
                              .shape = {rows, cols},
                              .rows = rows,
                              .cols = cols,
                              .data = zeros,
                              .bytes = sizeof zeros};
}

static const struct sg_tensor numbers = {.name = "numbers",
                                         .storage = SG_F32,
                                         .rank = 1,
                                         .shape = {HEADS},
                                         .rows = 1,
                                         .cols = HEADS,
                                         .data = zeros,
                                         .bytes = sizeof zeros};

static int32_t linear(struct sg_builder *b, int32_t x, const struct sg_tensor *w)
{
    return sg_linear(b, sg_whole(b, x), sg_weight_of(b, w), sg_weight_of(b, NULL), sg_absent());
}

/* What the product back is: of which kind; whether another one of fp32 reads its norm; whether it makes logits; whether others
 * read the gate; whether a row is asked for besides, for which every op is a step. */
struct back {
    enum sg_storage storage;
    int twice, head, shared, asked;
};

static struct sg_graph *make(const struct back *l)
{
    const struct sg_tensor w = matrix(l->storage, D, D), wide = matrix(SG_F32, D, D), gates = matrix(SG_BF16, D, D),
                           mixed = matrix(SG_BF16, MIXED, D), few = matrix(SG_BF16, HEADS, D), taps = matrix(SG_F32, MIXED, TAPS),
                           head = matrix(SG_F32, 64, D);
    struct sg_builder b;
    struct sg_graph *g = NULL;
    segue_error err;
    assert_int_equal(sg_builder_begin(&b, &err), SEGUE_OK);
    struct sg_weight none = sg_weight_of(&b, NULL);
    int32_t x = sg_input_rows(&b, D);
    b.layer = 0;
    int32_t z = linear(&b, x, &gates), u = linear(&b, x, &mixed);
    u = sg_conv(&b, sg_whole(&b, u),
                (struct sg_conv){.weight = sg_weight_of(&b, &taps), .bias = none, .taps = TAPS, .act = SG_ACT_SILU});
    struct sg_operand in[5] = {sg_columns(&b, u, 0, WIDE), sg_columns(&b, u, WIDE, WIDE), sg_columns(&b, u, 2 * WIDE, D),
                               sg_whole(&b, linear(&b, x, &few)), sg_whole(&b, linear(&b, x, &few))};
    struct sg_norm gated = {.kind = SG_NORM_RMS, .eps = 1e-5f, .groups = HEADS, .weight = none, .bias = none};
    int32_t y = sg_delta(&b, in,
                         (struct sg_delta){.k_heads = 1,
                                           .v_heads = HEADS,
                                           .dk = WIDE,
                                           .dv = WIDE,
                                           .decay = sg_weight_of(&b, &numbers),
                                           .dt = sg_weight_of(&b, &numbers)});
    int32_t h = sg_norm(&b, sg_whole(&b, y), gated, sg_whole(&b, z));
    y = linear(&b, h, &w);
    if (l->twice) y = sg_add(&b, sg_whole(&b, y), sg_whole(&b, linear(&b, h, &wide)));
    if (l->shared) y = sg_add(&b, sg_whole(&b, y), sg_whole(&b, z));
    if (l->asked) sg_output(&b, z, "z");
    b.layer = -1;
    if (!l->head) y = linear(&b, sg_rows(&b, sg_whole(&b, y)), &head);
    sg_output(&b, y, "logits");
    assert_int_equal(sg_builder_end(&b, &g, &err), SEGUE_OK);
    return g;
}

static uint32_t left, taken; /* gates that were left as their SiLU, and products that were told so */

static void see(const char *name, const void *args)
{
    struct ck_stream a;
    if (strncmp(name, "digits_", 7)) return;
    memcpy(&a, args, sizeof a);
    left += a.gates != 0;
    taken += a.gate_done;
}

static void gates_are_left_for_who_comes(void **state)
{
    static const struct {
        struct back back;
        const char *spec;
        uint32_t rows, left;
    } cases[] = {{{.storage = SG_BF16}, "cuda:0,rank=0", 1, 1},
                 {{.storage = SG_F16}, "cuda:0,rank=0", 1, 1},
                 {{.storage = SG_BF16}, "cuda:0,rank=0", 2, 0},                           /* another kernel's rows */
                 {{.storage = SG_F32}, "cuda:0,rank=0", 1, 0},
                 {{.storage = SG_BF16, .twice = 1}, "cuda:0,rank=0", 1, 0},               /* the other product does not know */
                 {{.storage = SG_BF16, .shared = 1}, "cuda:0,rank=0", 1, 0},
                 {{.storage = SG_BF16, .head = 1}, "cuda:0,rank=0,screen=1", 1, 0},       /* screened behind a norm of its own */
                 {{.storage = SG_BF16, .asked = 1}, "cuda:0,rank=0", 1, 0}};
    static const float x[2 * D];
    static float z[2 * D];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const uint32_t wanted[1] = {cases[i].rows - 1};
        const int32_t output = 0;
        const struct sg_sampler greedy = {0};
        const struct sg_state_opts o = {.kv = SG_F16, .rows = 8};
        float *values[] = {z};
        int32_t token = 0;
        segue_error err;
        struct life l =
            {.spec = cases[i].spec,
             .state = &o,
             .outputs = &output,
             .outputs_n = (uint32_t)cases[i].back.asked,
             .result = {.values = values, .tokens = &token},
             .span = {.rows = cases[i].rows, .values = x, .wanted = wanted, .wanted_n = 1, .steps = 1, .sampler = &greedy}};
        left = taken = 0;
        watch(see);
        segue_status status = live(&l, make(&cases[i].back), &err);
        watch(NULL);
        if (status != SEGUE_OK) fail_msg("case %zu: %s", i, err.text);
        if (left != cases[i].left || taken != left) fail_msg("case %zu: %u left, %u taken", i, left, taken);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(gates_are_left_for_who_comes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
