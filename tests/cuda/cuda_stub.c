/* cuda_stub.c: failures of the host side of the unit cuda, over the stub driver that LD_LIBRARY_PATH selects: messages, status
 * codes, and that nothing stays allocated. No kernel is executed, so no results are compared.
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "graph/graph.h"
#include "stub.h"

static const float numbers[64 * 8];
static const struct sg_tensor matrix = {.name = "weight",
                                        .stored_as = "F32",
                                        .storage = SG_F32,
                                        .rank = 2,
                                        .shape = {64, 8},
                                        .rows = 64,
                                        .cols = 8,
                                        .data = (const uint8_t *)numbers,
                                        .bytes = sizeof numbers};

static const struct sg_tensor down = {.name = "down",
                                      .stored_as = "F32",
                                      .storage = SG_F32,
                                      .rank = 2,
                                      .shape = {8, 64},
                                      .rows = 8,
                                      .cols = 64,
                                      .data = (const uint8_t *)numbers,
                                      .bytes = sizeof numbers};

static struct sg_graph *make_graph(const struct sg_tensor *weight)
{
    struct sg_builder b;
    struct sg_graph *g = NULL;
    segue_error err;
    assert_int_equal(sg_builder_begin(&b, &err), SEGUE_OK);
    int32_t x = sg_input_rows(&b, (uint32_t)weight->cols);
    sg_output(&b,
              sg_linear(&b, sg_whole(&b, x), sg_weight_of(&b, weight), sg_weight_of(&b, NULL), sg_absent()),
              "y");
    assert_int_equal(sg_builder_end(&b, &g, &err), SEGUE_OK);
    return g;
}

/* A product, an activation, a product: two ranks split it and join the results. */
static struct sg_graph *make_pair(const struct sg_tensor *up, const struct sg_tensor *back)
{
    struct sg_builder b;
    struct sg_graph *g = NULL;
    segue_error err;
    assert_int_equal(sg_builder_begin(&b, &err), SEGUE_OK);
    struct sg_weight none = sg_weight_of(&b, NULL);
    int32_t x = sg_input_rows(&b, (uint32_t)up->cols);
    int32_t h = sg_activate(&b, sg_whole(&b, sg_linear(&b, sg_whole(&b, x), sg_weight_of(&b, up), none, sg_absent())),
                            SG_ACT_SILU);
    sg_output(&b, sg_linear(&b, sg_whole(&b, h), sg_weight_of(&b, back), none, sg_whole(&b, x)), "y");
    assert_int_equal(sg_builder_end(&b, &g, &err), SEGUE_OK);
    return g;
}

/* Open, compile, one run; returns the status of the first failure. early 1: the mode is set before the unit is opened, else
 * after. */
static segue_status life_of(const char *spec, const char *mode, int early, segue_error *err)
{
    const float x[8] = {1};
    float y[64], *values[] = {y};
    int32_t output = 0;
    struct life l = {.spec = spec, .early = early ? mode : "", .late = early ? NULL : mode, .outputs = &output, .outputs_n = 1,
                     .span = {.rows = 1, .values = x, .steps = 1}, .result = {.values = values}};
    return live(&l, strchr(spec, '-') ? make_pair(&matrix, &down) : make_graph(&matrix), err);
}

static segue_status whole_life(const char *mode, int early, segue_error *err) { return life_of("cuda:0", mode, early, err); }

static void check_list(const char *mode, const char *why)
{
    struct sg_unit_desc d[2] = {0};
    size_t n = 0;
    segue_error err;
    stub(mode);
    assert_int_equal(sg_unit_cuda.list(d, 2, &n, &err), SEGUE_OK);
    assert_int_equal(n, why ? 1 : 2);
    assert_int_equal(d[0].info.present, why == NULL);
    if (why) assert_non_null(strstr(d[0].info.why, why));
    if (!why) assert_non_null(strstr(d[0].info.features, "all as one: cuda:0-1"));
    stub("");
}

static void lists_with_a_reason(void **state)
{
    (void)state;
    check_list("", getenv("SEGUE_STUB_SHORT") ? "cuGetErrorName" : NULL);
    if (getenv("SEGUE_STUB_SHORT")) return;
    check_list("old", "too old");
    check_list("none", "no GPU");
}

static void refuses_to_open(void **state)
{
    static const struct {
        const char *mode, *spec;
        segue_status status;
    } cases[] = {{"old", "cuda:0", SEGUE_EUNIT}, {"none", "cuda:0", SEGUE_EUNIT},
                 {"", "cuda:7", SEGUE_EUNIT},    {"apart", "cuda:0-1", SEGUE_EUNIT},
                 {"", "cuda:1-2", SEGUE_EUNIT},  {"", "cuda:1-0", SEGUE_EARG},
                 {"", "cuda:0-", SEGUE_EARG},    {"", "cuda:0-1,screen=1", SEGUE_EUNSUPPORTED},
                 {"", "cuda:x", SEGUE_EARG},     {"", "cuda:0,depth=3", SEGUE_EARG}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sg_unit *u = NULL;
        segue_error err = {0};
        segue_status want = getenv("SEGUE_STUB_SHORT") && cases[i].status != SEGUE_EARG &&
                                    cases[i].status != SEGUE_EUNSUPPORTED
                                ? SEGUE_EUNIT
                                : cases[i].status;
        stub(cases[i].mode);
        assert_int_equal(open_unit(&u, cases[i].spec, &err), want);
        assert_null(u);
        assert_true(strlen(err.text) > 20);
        stub("");
        assert_int_equal(alive(), 0);
    }
}

static void survives(void **state)
{
    static const struct {
        const char *mode;
        segue_status status;
    } cases[] = {{"", SEGUE_OK}, {"memory", SEGUE_EMEMORY}, {"launch", SEGUE_ELOST}, {"lost", SEGUE_ELOST}};
    (void)state;
    if (getenv("SEGUE_STUB_SHORT")) skip();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        segue_error err = {0};
        assert_int_equal(whole_life(cases[i].mode, 0, &err), cases[i].status);
    }
}

/* Every driver call fails, alone and together with all later ones; every allocation fails with all later ones. The unit returns a
 * status and frees everything (checked by live). */
static void fails_anywhere(void **state)
{
    static const struct {
        const char *form;
        segue_status usual;
    } cases[] = {{"once", SEGUE_ELOST}, {"from", SEGUE_ELOST}, {"alloc", SEGUE_EMEMORY}};
    (void)state;
    if (getenv("SEGUE_STUB_SHORT")) skip();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        segue_status status = SEGUE_EUNIT;
        long n = 0, failures = 0, failures_max = i == 2 ? 100 : 2000;
        for (int sound = 0; sound < 8 && n < failures_max;) {
            n += 1 + n / 8;
            segue_error err = {0};
            char mode[32];
            snprintf(mode, sizeof mode, "%s:%ld", cases[i].form, n);
            status = whole_life(mode, 1, &err);
            assert_true(status == SEGUE_OK || status == SEGUE_EUNIT || status == cases[i].usual);
            if (status == SEGUE_EUNIT) assert_true(strlen(err.text) > 20);
            sound = status == SEGUE_OK ? sound + 1 : 0; /* some calls may fail without effect */
            failures += status != SEGUE_OK;
        }
        assert_int_equal(status, SEGUE_OK);
        assert_true(failures > 5);
    }
}

/* The same with a group of two GPUs: no rank waits forever for one that failed. */
static void several_fail_anywhere(void **state)
{
    (void)state;
    if (getenv("SEGUE_STUB_SHORT")) skip();
    segue_error err = {0};
    assert_int_equal(life_of("cuda:0-1", "", 0, &err), SEGUE_OK);
    assert_int_equal(life_of("cuda:0-1", "launch", 0, &err), SEGUE_ELOST);
    long failures = 0;
    for (long n = 1; n < 3000; n += 1 + n / 6) {
        char mode[32];
        snprintf(mode, sizeof mode, "%s:%ld", n % 2 ? "once" : "from", n);
        segue_status status = life_of("cuda:0-1", mode, 1, &err);
        assert_true(status == SEGUE_OK || status == SEGUE_EUNIT || status == SEGUE_ELOST);
        failures += status != SEGUE_OK;
    }
    assert_true(failures > 5);
}

/* A state that is too large is refused with the number of tokens that fits. */
static void suggests_a_context(void **state)
{
    const struct sg_slot slots[] = {{.kind = SG_SLOT_K, .heads = 64, .width = 256},
                                    {.kind = SG_SLOT_V, .heads = 64, .width = 256}};
    struct sg_state_opts o = {.kv = SG_F16, .rows = 1 << 20};
    struct sg_unit *u = NULL;
    struct sg_state *s = NULL;
    segue_error err = {0};
    (void)state;
    if (getenv("SEGUE_STUB_SHORT")) skip();
    stub("");
    assert_int_equal(open_unit(&u, "cuda:0", &err), SEGUE_OK);
    assert_int_equal(sg_unit_cuda.state_new(u, slots, 2, &o, &s, &err), SEGUE_EMEMORY);
    const char *text = strstr(err.text, "a context of ");
    assert_non_null(text);
    assert_non_null(strstr(err.text, "q8"));
    o.rows = (uint64_t)atol(text + strlen("a context of ")); /* the suggestion is correct */
    assert_true(o.rows > 8192);
    assert_int_equal(sg_unit_cuda.state_new(u, slots, 2, &o, &s, &err), SEGUE_OK);
    sg_unit_cuda.state_free(s);
    assert_int_equal(stub_count("stub_launches"), 0);
    sg_unit_cuda.close(u);
    assert_int_equal(alive(), 0);
}

/* The same for weights: 192 MB on a GPU of 160 MB. */
static void suggests_a_storage(void **state)
{
    struct sg_tensor large = matrix;
    struct sg_unit *u = NULL;
    struct sg_program *p = NULL;
    segue_error err = {0};
    (void)state;
    if (getenv("SEGUE_STUB_SHORT")) skip();
    large.rows = large.shape[0] = 48 * 1024;
    large.cols = large.shape[1] = 1024;
    large.bytes = large.rows * large.cols * sizeof(float);
    float *zeros = calloc(large.bytes, 1);
    assert_non_null(zeros);
    large.data = (const uint8_t *)zeros;
    struct sg_graph *g = make_graph(&large);
    const struct sg_graph *graphs[] = {g};
    stub("");
    assert_int_equal(setenv("SEGUE_STUB_MB", "160", 1), 0);
    assert_int_equal(open_unit(&u, "cuda:0", &err), SEGUE_OK);
    assert_int_equal(sg_unit_cuda.compile(u, graphs, 1, NULL, &p, &err), SEGUE_EMEMORY);
    assert_non_null(strstr(err.text, "use --storage fp8, or quantize it to q8_0"));
    const struct sg_tensor narrow = sg_tensor_fp8(&large); /* the suggestion is correct: 48 MB and one scale per row */
    struct sg_graph *h = make_graph(&narrow);
    const struct sg_graph *narrower[] = {h};
    uint64_t own = 0;
    assert_int_equal(sg_unit_cuda.compile(u, narrower, 1, NULL, &p, &err), SEGUE_OK);
    sg_unit_cuda.footprint(p, &own, NULL, NULL);
    assert_int_equal(own, narrow.bytes);
    sg_unit_cuda.discard(p);
    assert_int_equal(stub_count("stub_launches"), 0);
    assert_int_equal(unsetenv("SEGUE_STUB_MB"), 0);
    sg_unit_cuda.close(u);
    sg_graph_free(g);
    sg_graph_free(h);
    free(zeros);
    assert_int_equal(alive(), 0);
}

/* A convolution, a product with a residual, and the output head. */
static struct sg_graph *make_tail(int early)
{
    static const struct sg_tensor square = {.name = "square", .stored_as = "F32", .storage = SG_F32, .rank = 2, .shape = {8, 8},
                                            .rows = 8, .cols = 8, .data = (const uint8_t *)numbers, .bytes = 8 * 8 * 4},
                                  taps = {.name = "taps", .stored_as = "F32", .storage = SG_F32, .rank = 2, .shape = {8, 2},
                                          .rows = 8, .cols = 2, .data = (const uint8_t *)numbers, .bytes = 8 * 2 * 4};
    struct sg_builder b;
    struct sg_graph *g = NULL;
    segue_error err;
    assert_int_equal(sg_builder_begin(&b, &err), SEGUE_OK);
    struct sg_weight none = sg_weight_of(&b, NULL);
    int32_t x = sg_input_rows(&b, 8);
    b.layer = 0;
    int32_t y = sg_conv(&b, sg_whole(&b, x), (struct sg_conv){.weight = sg_weight_of(&b, &taps), .bias = none, .taps = 2});
    x = sg_linear(&b, sg_whole(&b, y), sg_weight_of(&b, &square), none, sg_whole(&b, x));
    b.layer = -1;
    x = sg_rows(&b, sg_whole(&b, x));
    sg_output(&b, sg_linear(&b, sg_whole(&b, x), sg_weight_of(&b, &matrix), none, sg_absent()), "logits");
    if (early) sg_hoist_rows(&b);
    assert_int_equal(sg_builder_end(&b, &g, &err), SEGUE_OK);
    return g;
}

/* Launches of a run of `rows` rows, of which the last wanted_n are wanted. */
static uint64_t launches_of(int early, uint32_t rows, uint32_t wanted_n)
{
    static const float x[3 * 8];
    static const uint32_t wanted[] = {0, 1, 2};
    float logits[3 * 64];
    segue_error err;
    struct life l = {.span = {.rows = rows, .values = x, .wanted = wanted + rows - wanted_n, .wanted_n = wanted_n, .steps = 1},
                     .result = {.logits = logits}};
    assert_int_equal(live(&l, make_tail(early), &err), SEGUE_OK);
    return l.result.dispatches;
}

/* Selecting all rows needs no launch, early or late in the graph. When no row is wanted nothing after the convolution is
 * launched. */
static void row_selection_launches(void **state)
{
    (void)state;
    if (getenv("SEGUE_STUB_SHORT")) skip();
    uint64_t convolution = launches_of(1, 3, 0);
    assert_int_equal(launches_of(0, 3, 0), convolution + 1);
    assert_int_equal(launches_of(0, 3, 1), convolution + 3);
    assert_int_equal(launches_of(1, 3, 1), convolution + 4);
    assert_int_equal(launches_of(1, 3, 3), convolution + 2);
    assert_int_equal(launches_of(0, 3, 3), convolution + 2);
    assert_int_equal(launches_of(1, 1, 1), launches_of(0, 1, 1));
}

static int reports_no_partition(const char *mode, const char *spec)
{
    struct sg_unit *u = NULL;
    struct sg_unit_desc d = {0};
    segue_error err;
    stub(mode);
    assert_int_equal(open_unit(&u, spec, &err), SEGUE_OK);
    sg_unit_cuda.describe(u, &d);
    sg_unit_cuda.close(u);
    stub("");
    assert_int_equal(alive(), 0);
    return strstr(d.info.features, ", not partitioned: stream priorities only") != NULL;
}

/* Missing support for SM partitions is reported in the features, whether or not one was requested; with part=0 only if the driver
 * lacks it. */
static void missing_partition_is_reported(void **state)
{
    struct sg_unit_desc d[2] = {0};
    size_t n = 0;
    (void)state;
    if (getenv("SEGUE_STUB_SHORT")) skip();
    int partless = getenv("SEGUE_STUB_PARTLESS") != NULL;
    assert_int_equal(sg_unit_cuda.list(d, 2, &n, NULL), SEGUE_OK);
    assert_int_equal(strstr(d[0].info.features, "not partitioned") != NULL, partless);
    assert_int_equal(reports_no_partition("", "cuda:0"), partless);
    assert_int_equal(reports_no_partition("", "cuda:0,part=64"), partless);
    assert_int_equal(reports_no_partition("", "cuda:0,part=0"), partless);
    assert_int_equal(reports_no_partition("whole", "cuda:0,part=64"), 1);
    assert_int_equal(reports_no_partition("whole", "cuda:0"), 1);
    assert_int_equal(reports_no_partition("whole", "cuda:0,part=0"), partless);
}

/* Weights that several threads have converted are on the GPU row by row as expected. */
static void weights_are_uploaded(void **state)
{
    enum { ROWS = 1100, COLS = 1024 };
    static uint16_t numbers16[ROWS * COLS];
    static uint8_t blocks[ROWS * (COLS / 32 * 34)], codes[COLS];
    static float staging[COLS];
    (void)state;
    if (getenv("SEGUE_STUB_SHORT")) skip();
    for (uint32_t i = 0; i < ROWS * COLS; i++) numbers16[i] = (uint16_t)(0x3c00 + i * 2654435761u % 977);
    for (size_t i = 0; i < sizeof blocks; i++) blocks[i] = (uint8_t)(i % 34 == 1 ? 0x2c : i * 2654435761u >> 24);
    struct sg_tensor plain = matrix, q8, fp8;
    plain.rows = plain.shape[0] = ROWS;
    plain.cols = plain.shape[1] = COLS;
    q8 = plain;
    plain.storage = SG_BF16;
    plain.data = (const uint8_t *)numbers16;
    plain.row_perm = (struct sg_perm){2, ROWS / 4, 1, 0};
    q8.storage = SG_Q8_0;
    q8.data = blocks;
    fp8 = sg_tensor_fp8(&plain);
    const struct sg_tensor *const all[] = {&plain, &q8, &fp8};
    stub("");
    for (int k = 0; k < 3; k++) {
        struct sg_unit *u = NULL;
        struct sg_program *p = NULL;
        segue_error err = {0};
        struct sg_graph *g = make_graph(all[k]);
        const struct sg_graph *graphs[] = {g};
        assert_int_equal(open_unit(&u, "cuda:0", &err), SEGUE_OK);
        assert_int_equal(sg_unit_cuda.compile(u, graphs, 1, NULL, &p, &err), SEGUE_OK);
        const struct ck_weight *w = &cu_weight_of(p->weights, all[k])->w;
        const uint8_t *data = w->data, *scales = w->scales;
        for (uint32_t r = 0; r < ROWS; r++) {
            const uint8_t *at = data + (size_t)r * w->pitch;
            uint64_t stored = sg_perm_stored(&plain.row_perm, r);
            if (k == 0) assert_memory_equal(at, numbers16 + stored * COLS, COLS * 2);
            for (uint32_t b = 0; k == 1 && b < COLS / 32; b++) {
                const uint8_t *from = blocks + (r * (COLS / 32) + b) * 34;
                assert_memory_equal(at + b * 32, from + 2, 32);
                assert_memory_equal(scales + (r * (COLS / 32) + b) * 2, from, 2);
            }
            if (k < 2) continue;
            float scale = sg_tensor_fp8_row(&fp8, r, staging, codes);
            assert_memory_equal(at, codes, COLS);
            assert_memory_equal(scales + r * sizeof scale, &scale, sizeof scale);
        }
        sg_unit_cuda.discard(p);
        sg_unit_cuda.close(u);
        sg_graph_free(g);
        assert_int_equal(alive(), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(lists_with_a_reason),
                                       cmocka_unit_test(refuses_to_open),
                                       cmocka_unit_test(survives),
                                       cmocka_unit_test(fails_anywhere),
                                       cmocka_unit_test(several_fail_anywhere),
                                       cmocka_unit_test(suggests_a_context),
                                       cmocka_unit_test(row_selection_launches),
                                       cmocka_unit_test(missing_partition_is_reported),
                                       cmocka_unit_test(suggests_a_storage),
                                       cmocka_unit_test(weights_are_uploaded)};
    if (getenv("SEGUE_STUB_PARTLESS")) cmocka_set_test_filter("parts_*");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
