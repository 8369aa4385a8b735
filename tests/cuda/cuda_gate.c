/* cuda_gate.c: when a product stores the gate of the norm after the delta rule as SiLU of the gate, over the stub driver: only if
 * its one reader uses the kernel that knows about it. Results are checked on a GPU (check).
 * SPDX-License-Identifier: MIT */
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

/* The output product: type of its weight; twice: an fp32 product reads its norm too; head: it computes the logits; shared:
 * another op reads the gate; requested: the gate is an output of the batch, so steps are not fused. */
struct back {
    enum sg_storage storage;
    int twice, head, shared, requested;
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
    if (l->requested) sg_output(&b, z, "z");
    b.layer = -1;
    if (!l->head) y = linear(&b, sg_rows(&b, sg_whole(&b, y)), &head);
    sg_output(&b, y, "logits");
    assert_int_equal(sg_builder_end(&b, &g, &err), SEGUE_OK);
    return g;
}

static uint32_t stored, used; /* launches that stored a gate after SiLU; launches that read such a gate */

static void see(const char *name, const void *args)
{
    struct ck_stream a;
    if (strncmp(name, "digits_", 7)) return;
    memcpy(&a, args, sizeof a);
    stored += a.gates != 0;
    used += a.gate_done;
}

static void gates_are_stored_after_silu(void **state)
{
    static const struct {
        struct back back;
        const char *spec;
        uint32_t rows, stored;
    } cases[] = {{{.storage = SG_BF16}, "cuda:0,rank=0", 1, 1},
                 {{.storage = SG_F16}, "cuda:0,rank=0", 1, 1},
                 {{.storage = SG_BF16}, "cuda:0,rank=0", 2, 0},                           /* several rows use another kernel */
                 {{.storage = SG_F32}, "cuda:0,rank=0", 1, 0},
                 {{.storage = SG_BF16, .twice = 1}, "cuda:0,rank=0", 1, 0}, /* the second product applies SiLU again */
                 {{.storage = SG_BF16, .shared = 1}, "cuda:0,rank=0", 1, 0},
                 {{.storage = SG_BF16, .head = 1}, "cuda:0,rank=0,screen=1", 1, 0},       /* the norm is computed separately */
                 {{.storage = SG_BF16, .requested = 1}, "cuda:0,rank=0", 1, 0}};
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
             .outputs_n = (uint32_t)cases[i].back.requested,
             .result = {.values = values, .tokens = &token},
             .span = {.rows = cases[i].rows, .values = x, .wanted = wanted, .wanted_n = 1, .steps = 1, .sampler = &greedy}};
        stored = used = 0;
        watch(see);
        segue_status status = live(&l, make(&cases[i].back), &err);
        watch(NULL);
        if (status != SEGUE_OK) fail_msg("case %zu: %s", i, err.text);
        if (stored != cases[i].stored || used != stored) fail_msg("case %zu: %u stored, %u used", i, stored, used);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(gates_are_stored_after_silu)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
