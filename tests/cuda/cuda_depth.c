/* cuda_depth.c: which kernels attention launches at which depth, and how the KV length is divided, over the stub driver.
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>

#include "stub.h"
#include "unit/cuda/kernels/include/params/kparams.h"

enum { SEQUENCES = 16 };

/* One attention op over inputs q, k, v. */
static struct sg_graph *attention_of(uint32_t heads, uint32_t kv_heads, uint32_t d, uint32_t window)
{
    struct sg_builder b;
    struct sg_graph *g = NULL;
    segue_error err;
    assert_int_equal(sg_builder_begin(&b, &err), SEGUE_OK);
    struct sg_attend p = {.heads = heads, .kv_heads = kv_heads, .d = d, .dv = d, .scale = 1, .window = window,
                          .sinks = sg_weight_of(&b, NULL)};
    int32_t x = sg_input_rows(&b, (heads + 2 * kv_heads) * d);
    b.layer = 0;
    int32_t y = sg_attend(&b, sg_columns(&b, x, 0, heads * d), sg_columns(&b, x, heads * d, kv_heads * d),
                          sg_columns(&b, x, (heads + kv_heads) * d, kv_heads * d), p, sg_absent());
    sg_output(&b, y, "y");
    assert_int_equal(sg_builder_end(&b, &g, &err), SEGUE_OK);
    return g;
}

static char launched[512];
static struct ck_split split; /* arguments of the last split kernel */
static struct ck_wgflash prompt; /* arguments of the last k_wgflash.cu */

static void see(const char *name, const void *args)
{
    size_t n = strlen(launched);
    if (!strncmp(name, "split_", 6)) split = *(const struct ck_split *)args;
    if (!strncmp(name, "wgflash_", 8)) prompt = *(const struct ck_wgflash *)args;
    snprintf(launched + n, sizeof launched - n, "%s ", name);
}

/* Runs `rows` rows at position `at` of each of n sequences; what was launched is in `launched`. */
static void run_at(struct sg_unit *u, struct sg_graph *g, enum sg_storage kv, uint32_t n, uint32_t rows, uint64_t at)
{
    const struct sg_graph *graphs[] = {g};
    const struct sg_state_opts o = {.kv = kv, .rows = at + rows};
    struct sg_program *p;
    struct sg_state *s[SEQUENCES];
    struct sg_span spans[SEQUENCES];
    struct sg_batch batch = {.spans = spans, .spans_n = n, .inline_hint = 1};
    struct sg_result result = {0};
    struct sg_run *r;
    segue_error err = {0};
    uint32_t width = g->values[g->inputs[0].value].width;
    float *x = calloc((size_t)rows * width, sizeof *x), *old = calloc((size_t)at * width + 1, sizeof *old);
    assert_true(x && old);
    assert_int_equal(sg_unit_cuda.compile(u, graphs, 1, NULL, &p, &err), SEGUE_OK);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(sg_unit_cuda.state_new(u, g->slots, g->slots_n, &o, &s[i], &err), SEGUE_OK);
        for (uint32_t k = 0; at && k < g->slots_n; k++)
            assert_int_equal(sg_unit_cuda.state_put(s[i], k, 0, at, SG_F32, old, &err), SEGUE_OK);
        assert_int_equal(sg_unit_cuda.state_put(s[i], UINT32_MAX, at, at, SG_F32, NULL, &err), SEGUE_OK);
        spans[i] = (struct sg_span){.state = s[i], .first = at, .rows = rows, .values = x, .steps = 1};
    }
    launched[0] = 0;
    split = (struct ck_split){.splits = 0};
    watch(see);
    assert_int_equal(sg_unit_cuda.start(p, &batch, &result, &r, &err), SEGUE_OK);
    assert_int_equal(sg_unit_cuda.wait(r, UINT64_MAX, &err), SEGUE_OK);
    watch(NULL);
    for (uint32_t i = 0; i < n; i++) sg_unit_cuda.state_free(s[i]);
    sg_unit_cuda.discard(p);
    free(old);
    free(x);
}

static struct sg_unit *unit_of(const char *spec)
{
    struct sg_unit *u;
    segue_error err = {0};
    stub("");
    assert_int_equal(open_unit(&u, spec, &err), SEGUE_OK);
    return u;
}

/* One launch while all positions fit into k_single.cu, two beyond; three where the rows depend on each other or the storage or
 * width has no kernel that prepares. */
static void kernels_by_depth(void **state)
{
    static const struct {
        uint32_t heads, kv_heads, d, window, n, rows, at;
        enum sg_storage kv;
        const char *launches;
    } cases[] = {
        {32, 8, 64, 0, 1, 1, 511, SG_F16, "single_f16_64 "},
        {32, 8, 64, 0, 1, 1, 512, SG_F16, "split_f16_64 split_join "},
        {32, 8, 128, 0, 1, 1, 2000, SG_BF16, "split_bf16_128 split_join "},
        {8, 2, 256, 0, 2, 1, 2000, SG_BF16, "split_bf16_256 split_join "},
        {8, 2, 256, 300, 1, 1, 400, SG_F16, "split_f16_256 split_join "}, /* the window hides positions */
        {8, 2, 256, 0, 1, 4, 900, SG_F16, "append split_f16_256 split_join "},
        {8, 2, 64, 0, 1, 1, 900, SG_Q8_0, "split_q8_64 split_join "},
        {8, 2, 80, 0, 1, 1, 900, SG_F16, "append split_any_f16 split_join "},
        {8, 2, 64, 0, 1, 20, 900, SG_F16, "append attend_many_f16 "},
        {8, 2, 64, 0, 1, 40, 900, SG_F16, "append wgflash_f16_64 "},
    };
    struct sg_unit *u = unit_of("cuda:0,graphs=0");
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sg_graph *g = attention_of(cases[i].heads, cases[i].kv_heads, cases[i].d, cases[i].window);
        run_at(u, g, cases[i].kv, cases[i].n, cases[i].rows, cases[i].at);
        assert_string_equal(launched, cases[i].launches);
        sg_graph_free(g);
    }
    sg_unit_cuda.close(u);
    assert_int_equal(alive(), 0);
}

/* The grid does not depend on the depth, so one captured graph serves all; a row alone uses at least 7 of 8 multiprocessors; with
 * "invariant=1" every row has as many parts in a batch as alone. */
static void parts_cover_the_gpu(void **state)
{
    static const struct {
        uint32_t heads, kv_heads;
    } shapes[] = {{32, 8}, {8, 2}, {9, 3}, {12, 12}, {32, 32}, {40, 40}, {64, 4}, {20, 5}};
    struct sg_unit *u = unit_of("cuda:0,graphs=0"), *invariant = unit_of("cuda:0,graphs=0,invariant=1");
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct sg_graph *g = attention_of(shapes[i].heads, shapes[i].kv_heads, 64, 0);
        run_at(u, g, SG_F16, 1, 1, 600);
        uint32_t one = split.splits, share = shapes[i].heads / shapes[i].kv_heads;
        uint32_t groups = shapes[i].kv_heads * ((share + 7) / 8);
        assert_true(one * groups * 8 >= 132 * 7);
        run_at(u, g, SG_F16, 1, 1, 3000);
        assert_int_equal(split.splits, one);
        run_at(u, g, SG_F16, 3, 1, 600);
        assert_true(split.splits >= 3 && !split.alone);
        run_at(invariant, g, SG_F16, 3, 1, 600);
        assert_int_equal(split.splits, 3 * one);
        assert_true(split.alone);
        sg_graph_free(g);
    }
    sg_unit_cuda.close(invariant);
    sg_unit_cuda.close(u);
    assert_int_equal(alive(), 0);
}

/* The keys of a prompt's rows are divided as long as multiprocessors are left. There is memory for parts in any case: graphs have
 * its address. */
static void keys_of_a_prompt_are_divided(void **state)
{
    static const struct {
        uint32_t heads, kv_heads, d, rows, columns, splits;
    } cases[] = {{8, 8, 128, 512, 8, 4},  {8, 2, 128, 40, 1, 16}, {9, 9, 128, 512, 8, 3}, {32, 8, 128, 512, 4, 1},
                 {8, 8, 128, 2048, 16, 1}, {32, 8, 64, 512, 4, 2}, {9, 3, 64, 100, 2, 16}};
    struct sg_unit *u = unit_of("cuda:0,graphs=0");
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sg_graph *g = attention_of(cases[i].heads, cases[i].kv_heads, cases[i].d, 0);
        prompt = (struct ck_wgflash){.splits = 0};
        run_at(u, g, SG_F16, 1, cases[i].rows, 3000);
        assert_int_equal(prompt.splits, cases[i].splits);
        assert_int_equal(prompt.columns, cases[i].columns);
        assert_true(prompt.arrivals && prompt.attend.parts && prompt.ends);
        sg_graph_free(g);
    }
    sg_unit_cuda.close(u);
    assert_int_equal(alive(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(kernels_by_depth), cmocka_unit_test(parts_cover_the_gpu),
                                       cmocka_unit_test(keys_of_a_prompt_are_divided)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
