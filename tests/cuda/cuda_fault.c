/* cuda_fault.c: the option fault=LAYER.OP, over the stub driver: a kernel after that of the operation alters the first number
 * of its result, in passes of steps that are neither fused nor captured. What it does to the numbers is tested on a GPU (replay).
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "stub.h"

enum { D = 256, LAYERS = 3, ROWS = 5 };

static const uint8_t zeros[D * D * 4]; /* of every weight */
static const struct sg_tensor matrix = {.name = "w", .storage = SG_F32, .rank = 2, .shape = {D, D}, .rows = D, .cols = D,
                                        .data = zeros, .bytes = sizeof zeros};
static const struct sg_tensor vector = {.name = "n", .storage = SG_F32, .rank = 1, .shape = {D}, .rows = 1, .cols = D,
                                        .data = zeros, .bytes = D * 4};

static int32_t linear(struct sg_builder *b, int32_t x)
{
    return sg_linear(b, sg_whole(b, x), sg_weight_of(b, &matrix), sg_weight_of(b, NULL), sg_absent());
}

/* Layers of norm, gated product and addition, then logits. */
static struct sg_graph *make(void)
{
    struct sg_builder b;
    struct sg_graph *g = NULL;
    segue_error err;
    assert_int_equal(sg_builder_begin(&b, &err), SEGUE_OK);
    const struct sg_norm norm = {.kind = SG_NORM_RMS, .eps = 1e-5f, .groups = 1, .weight = sg_weight_of(&b, &vector),
                                 .bias = sg_weight_of(&b, NULL)};
    int32_t x = sg_input_rows(&b, D);
    for (b.layer = 0; b.layer < LAYERS; b.layer++) {
        int32_t h = sg_norm(&b, sg_whole(&b, x), norm, sg_absent());
        h = sg_glu(&b, sg_whole(&b, linear(&b, h)), sg_whole(&b, linear(&b, h)), SG_ACT_SILU);
        x = sg_add(&b, sg_whole(&b, x), sg_whole(&b, h));
    }
    b.layer = -1;
    sg_output(&b, linear(&b, sg_rows(&b, sg_whole(&b, x))), "logits");
    assert_int_equal(sg_builder_end(&b, &g, &err), SEGUE_OK);
    return g;
}

/* Launches so far by kernel, and what the altering one saw. */
static struct {
    int norms, glus, adds, altered, norms_before, glus_before, adds_before;
    float *written, *to;
} seen;

static void see(const char *name, const void *args)
{
    struct ck_map map;
    struct ck_norm_args norm;
    if (!strcmp(name, "norm_rows")) {
        memcpy(&norm, args, sizeof norm);
        seen.norms++, seen.written = norm.y.p;
    }
    if (strcmp(name, "glu") && strcmp(name, "add") && strcmp(name, "one_ulp")) return;
    memcpy(&map, args, sizeof map);
    if (!strcmp(name, "one_ulp")) {
        seen.altered++, seen.to = map.y.p;
        seen.norms_before = seen.norms, seen.glus_before = seen.glus, seen.adds_before = seen.adds;
        return;
    }
    seen.glus += name[0] == 'g', seen.adds += name[0] == 'a', seen.written = map.y.p;
}

/* Runs the graph on a unit with the option, or without. Returns the status. */
static segue_status run_with(const char *spec, uint32_t runs, segue_error *err)
{
    static const float x[ROWS * D];
    const uint32_t wanted[1] = {ROWS - 1};
    const struct sg_sampler greedy = {0};
    const struct sg_state_opts o = {.kv = SG_F16, .rows = 64};
    int32_t token = 0;
    struct life l = {.spec = spec,
                     .state = &o,
                     .runs = runs,
                     .result = {.tokens = &token},
                     .span = {.rows = ROWS, .values = x, .wanted = wanted, .wanted_n = 1, .steps = 1, .sampler = &greedy}};
    memset(&seen, 0, sizeof seen);
    watch(see);
    segue_status status = live(&l, make(), err);
    watch(NULL);
    return status;
}

static void one_operation_is_altered(void **state)
{
    segue_error err;
    (void)state;
    for (int layer = 0; layer < LAYERS; layer++) {
        char spec[40];
        const struct {
            const char *op;
            int norms, glus, adds;
        } cases[] = {{"norm", layer + 1, layer, layer},
                     {"glu", layer + 1, layer + 1, layer},
                     {"add", layer + 1, layer + 1, layer + 1}};
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            snprintf(spec, sizeof spec, "cuda:0,fault=%d.%s", layer, cases[i].op);
            assert_int_equal(run_with(spec, 1, &err), SEGUE_OK);
            assert_int_equal(seen.altered, 1);
            assert_int_equal(seen.norms_before, cases[i].norms);
            assert_int_equal(seen.glus_before, cases[i].glus);
            assert_int_equal(seen.adds_before, cases[i].adds);
            assert_non_null(seen.to);
            /* Every op is a step: none is fused into a product. */
            assert_true(seen.norms == LAYERS && seen.glus == LAYERS && seen.adds == LAYERS);
        }
    }
    assert_int_equal(run_with("cuda:0,fault=1.glu", 3, &err), SEGUE_OK);
    assert_int_equal(seen.altered, 3);
}

/* Without the option, with a layer or an operation that the graph lacks, nothing is altered and steps are fused. */
static void others_are_not(void **state)
{
    static const char *const specs[] = {"cuda:0", "cuda:0,fault=3.norm", "cuda:0,fault=0.attend"};
    segue_error err;
    (void)state;
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        assert_int_equal(run_with(specs[i], 1, &err), SEGUE_OK);
        assert_int_equal(seen.altered, 0);
        assert_true(seen.glus < LAYERS);
    }
    assert_int_equal(run_with("cuda:0,fault=norm", 1, &err), SEGUE_EARG);
    assert_non_null(strstr(err.text, "LAYER.OP"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_operation_is_altered), cmocka_unit_test(others_are_not)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
