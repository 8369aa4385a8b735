/* cuda_cards.c: which kernels are used on cards other than Hopper's, and that the places of weights in memory choose none, over
 * the stub driver. Results are checked on a GPU (check).
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "stub.h"

enum { D = 256, FF = 256, HEAD = 128, VOCAB = 32, ROWS = 40, LARGE = 4096 };

static const uint8_t zeros[4 * HEAD * D * 4]; /* of every weight */

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

static int32_t norm(struct sg_builder *b, int32_t x)
{
    const struct sg_weight none = sg_weight_of(b, NULL);
    struct sg_norm n = {.kind = SG_NORM_RMS, .eps = 1e-5f, .groups = 1, .weight = none, .bias = none};
    return sg_norm(b, sg_whole(b, x), n, sg_absent());
}

static int32_t linear(struct sg_builder *b, int32_t x, const struct sg_tensor *w, const struct sg_tensor *bias, int32_t residual)
{
    return sg_linear(b, sg_whole(b, x), sg_weight_of(b, w), sg_weight_of(b, bias),
                     residual < 0 ? sg_absent() : sg_whole(b, residual));
}

static int32_t attention(struct sg_builder *b, int32_t x, const struct sg_tensor *qkv, const struct sg_tensor *out)
{
    struct sg_attend p = {.heads = 2, .kv_heads = 1, .d = HEAD, .dv = HEAD, .scale = 1, .sinks = sg_weight_of(b, NULL)};
    int32_t all = linear(b, norm(b, x), qkv, NULL, -1);
    return linear(b,
                  sg_attend(b, sg_columns(b, all, 0, 2 * HEAD), sg_columns(b, all, 2 * HEAD, HEAD),
                            sg_columns(b, all, 3 * HEAD, HEAD), p, sg_absent()),
                  out, NULL, x);
}

/* One layer with weights of `storage`; biased 1: gate and up have biases, and each a block of memory of its own; late 1: up is
 * uploaded before gate. */
static segue_status run(enum sg_storage storage, int biased, int late, uint32_t rows, segue_error *err)
{
    static const float x[ROWS * D];
    const struct sg_tensor qkv = matrix(storage, 4 * HEAD, D), out = matrix(storage, D, 2 * HEAD), gate = matrix(storage, FF, D),
                           up = matrix(storage, FF, D), down = matrix(storage, D, FF), bias = matrix(SG_F32, 1, FF),
                           head = matrix(SG_F16, VOCAB, D);
    const uint32_t wanted[1] = {rows - 1};
    const struct sg_state_opts o = {.kv = SG_F16, .rows = 64};
    float logits[VOCAB];
    struct sg_builder b;
    struct sg_graph *g = NULL;
    assert_int_equal(sg_builder_begin(&b, err), SEGUE_OK);
    int32_t h = sg_input_rows(&b, D);
    b.layer = 0;
    h = attention(&b, h, &qkv, &out);
    int32_t n = norm(&b, h), first = linear(&b, n, &gate, biased ? &bias : NULL, -1),
            second = linear(&b, n, &up, biased ? &bias : NULL, -1);
    int32_t glu = sg_glu(&b, sg_whole(&b, late ? second : first), sg_whole(&b, late ? first : second), SG_ACT_SILU);
    h = linear(&b, glu, &down, NULL, h);
    b.layer = -1;
    sg_output(&b, linear(&b, sg_rows(&b, sg_whole(&b, h)), &head, NULL, -1), "logits");
    assert_int_equal(sg_builder_end(&b, &g, err), SEGUE_OK);
    struct life of = {.state = &o,
                      .runs = rows > 4 ? 1 : 3,
                      .span = {.rows = rows, .values = x, .wanted = wanted, .wanted_n = 1, .steps = 1},
                      .result = {.logits = logits}};
    return live(&of, g, err);
}

/* One product of n rows and `cols` columns, as the output head. */
static segue_status run_product(enum sg_storage storage, uint32_t n, uint32_t cols, uint32_t rows, segue_error *err)
{
    static float x[32 * LARGE], logits[LARGE];
    const struct sg_storage_info *info = sg_storage_info(storage);
    const size_t bytes = (size_t)n * cols / info->block * info->bytes;
    struct sg_tensor head = matrix(storage, n, cols);
    const uint32_t wanted[1] = {rows - 1};
    const struct sg_state_opts o = {.kv = SG_F16, .rows = 64};
    struct sg_builder b;
    struct sg_graph *g = NULL;
    void *data = calloc(1, bytes);
    assert_non_null(data);
    head.data = data;
    head.bytes = bytes;
    assert_int_equal(sg_builder_begin(&b, err), SEGUE_OK);
    int32_t h = sg_input_rows(&b, cols);
    b.layer = 0;
    h = linear(&b, norm(&b, h), &head, NULL, -1);
    b.layer = -1;
    sg_output(&b, sg_rows(&b, sg_whole(&b, h)), "logits");
    assert_int_equal(sg_builder_end(&b, &g, err), SEGUE_OK);
    struct life of = {.state = &o,
                      .runs = 1,
                      .span = {.rows = rows, .values = x, .wanted = wanted, .wanted_n = 1, .steps = 1},
                      .result = {.logits = logits}};
    segue_status status = live(&of, g, err);
    free(data);
    return status;
}

static segue_status run_large(enum sg_storage storage, uint32_t cols, uint32_t rows, segue_error *err)
{
    return run_product(storage, LARGE, cols, rows, err);
}

/* Launches of kernels that only compute capability 9.0 has; of k_tiles.cu with gate and up; of packed weights with one row, with
 * several, of large ones, of k_packed_tiles.cu; of k_packed_rows.cu, and of these with a ring of less than two stages. */
static int hopper, gated_tiles, packed, batches, large, packed_tiles, row_launches, without_ring;

static void see(const char *name, const void *args)
{
    static const char *const names[] = {"mlp_",        "heads_", "stream_",  "digits_", "vocab_",
                                        "packed_gemm", "tiles_", "glu_rows", "wgflash"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) hopper += !strncmp(name, names[i], strlen(names[i]));
    if (!strncmp(name, "tiles_", 6)) gated_tiles += ((const struct ck_tiles *)args)->g.glu != 0;
    packed += !strcmp(name, "packed_4") || !strcmp(name, "packed_8") || !strcmp(name, "packed_16");
    batches += !strncmp(name, "packed_few_", 11);
    large += !strncmp(name, "packed_batch_", 13);
    if (!strncmp(name, "packed_rows", 11)) row_launches++, without_ring += ((const struct ck_packed *)args)->s.stages < 2;
    packed_tiles += !strncmp(name, "tiles_Q", 7) || !strncmp(name, "tiles_I", 7);
}

static void check_run(enum sg_storage storage, int biased, int late, uint32_t rows)
{
    segue_error err = {0};
    hopper = gated_tiles = packed = batches = large = packed_tiles = 0;
    watch(see);
    segue_status status = run(storage, biased, late, rows, &err);
    watch(NULL);
    if (status != SEGUE_OK) fail_msg("%s, %u rows: %s", sg_storage_info(storage)->name, rows, err.text);
}

/* Cards before and after Hopper: less shared memory, other numbers of multiprocessors. Decoding of one sequence, of a few rows,
 * and a prompt; storages in turn. */
static void other_cards_use_common_kernels(void **state)
{
    static const char *const cards[] = {"8,6,101376,84", "8,9,101376,128", "12,0,101376,170", "9,0,232448,78"};
    static const enum sg_storage storages[] = {SG_F16, SG_Q8_0, SG_Q4_K};
    static const uint32_t rows[] = {1, 4, ROWS};
    (void)state;
    for (int i = 0; i < 12; i++) {
        assert_int_equal(setenv("SEGUE_STUB_CARD", cards[i / 3], 1), 0);
        check_run(storages[(i / 3 + i) % 3], 0, 0, rows[i % 3]);
        assert_int_equal(hopper > 0, cards[i / 3][0] == '9');
    }
    unsetenv("SEGUE_STUB_CARD");
}

/* Quantised weights keep their bits on every card. The stub refuses launches with more shared memory than the card has, which the
 * buffers of a block of eight warps with Q6_K need on most. */
static void other_cards_keep_packed_weights(void **state)
{
    static const char *const cards[] = {"8,0,166912,108", "8,6,101376,84", "8,9,101376,128", "12,0,101376,170", "9,0,232448,132"};
    static const enum sg_storage storages[] = {SG_Q4_K, SG_Q6_K, SG_Q4_0, SG_Q5_K};
    (void)state;
    for (int i = 0; i < 5; i++) {
        assert_int_equal(setenv("SEGUE_STUB_CARD", cards[i], 1), 0);
        for (int k = 0; k < (i ? 2 : 4); k++) {
            check_run(storages[k], 0, 0, 1);
            if (cards[i][0] != '9') assert_true(packed > 0); /* on Hopper fusions */
            check_run(storages[k], 0, 0, k % 2 ? 16 : 4);
            assert_true(batches > 0);
        }
        segue_error err = {0};
        watch(see);
        if (run_large(SG_Q6_K, LARGE, 16, &err) != SEGUE_OK) fail_msg("%s: %s", cards[i], err.text);
        watch(NULL);
        assert_true(large > 0);
    }
    unsetenv("SEGUE_STUB_CARD");
}

/* With 99 KB k_packed_rows.cu has fewer rows per launch; no number of rows is refused. */
static void small_cards_refuse_no_rows(void **state)
{
    static const enum sg_storage storages[] = {SG_Q4_1, SG_Q5_0, SG_Q5_1, SG_Q2_K, SG_Q3_K, SG_IQ4_XS, SG_Q6_K, SG_Q4_0};
    static const uint32_t rows[] = {2, 8, 9, 17, 32};
    (void)state;
    assert_int_equal(setenv("SEGUE_STUB_CARD", "8,9,101376,128", 1), 0);
    for (size_t i = 0; i < sizeof storages / sizeof *storages; i++)
        for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) check_run(storages[i], 0, 0, rows[k]);
    unsetenv("SEGUE_STUB_CARD");
}

/* What was packed at load is multiplied, however long its rows are: up to those of 4,608 columns per warp. */
static void long_rows_fit(void **state)
{
    static const char *const cards[] = {"8,9,101376,128", "8,0,166912,108", "9,0,232448,132"};
    static const enum sg_storage storages[] = {SG_Q2_K, SG_Q4_0, SG_Q3_K, SG_Q6_K};
    static const uint32_t chunks[] = {1, 7, 33, 40, 48, 56, 112, 144}, max[] = {56, 112, 144};
    (void)state;
    for (size_t i = 0; i < 3 * 4 * sizeof chunks / sizeof *chunks; i++) {
        const uint32_t cols = 256 * chunks[i / 12];
        segue_error err = {0};
        /* x of longer rows does not fit, in any layout. Larger cards: the longest rows only. */
        if (i % 3 ? chunks[i / 12] != max[i % 3] : chunks[i / 12] > max[0]) continue;
        assert_int_equal(setenv("SEGUE_STUB_CARD", cards[i % 3], 1), 0);
        watch(see);
        packed = 0;
        segue_status status = run_product(storages[i / 3 % 4], 40, cols, 1, &err);
        watch(NULL);
        if (status != SEGUE_OK)
            fail_msg("%s, %s, %u columns: %s", cards[i % 3], sg_storage_info(storages[i / 3 % 4])->name, cols, err.text);
        /* Others of long rows have another layout on small cards. */
        if (storages[i / 3 % 4] == SG_Q2_K && cols <= 56 * 256) assert_int_equal(packed, 1);
    }
    unsetenv("SEGUE_STUB_CARD");
}

/* Launches of k_packed_rows.cu over parts of the columns, of which the last has fewer chunks: each has its ring. */
static void last_parts_fit(void **state)
{
    static const char *const cards[] = {"8,0,166912,108", "8,9,101376,128"};
    segue_error err = {0};
    (void)state;
    for (int i = 0; i < 4; i++) {
        assert_int_equal(setenv("SEGUE_STUB_CARD", cards[i / 2], 1), 0);
        row_launches = without_ring = 0;
        watch(see);
        if (run_large(i % 2 ? SG_Q6_K : SG_Q4_1, 15 * 256, 17, &err) != SEGUE_OK) fail_msg("%s", err.text);
        watch(NULL);
        assert_true(row_launches > 0);
        assert_int_equal(without_ring, 0);
    }
    unsetenv("SEGUE_STUB_CARD");
}

/* More than eight rows of these kinds, on Hopper alone; every product of the graph, norms and residuals in the same launch. */
static void many_rows_use_packed_tiles(void **state)
{
    static const char *const cards[] = {"8,0,166912,108", "9,0,232448,132"};
    static const enum sg_storage storages[] = {SG_Q4_0, SG_Q4_1, SG_Q3_K, SG_IQ4_XS};
    (void)state;
    for (int i = 0; i < 8; i++) {
        const int hopper_card = i % 2;
        assert_int_equal(setenv("SEGUE_STUB_CARD", cards[hopper_card], 1), 0);
        check_run(storages[i / 2], 0, 0, 9);
        assert_int_equal(packed_tiles > 0, hopper_card);
        if (hopper_card) assert_int_equal(batches, 0);
        check_run(storages[i / 2], 0, 0, 8);
        assert_int_equal(packed_tiles, 0);
    }
    unsetenv("SEGUE_STUB_CARD");
}

/* Only gate and up in one block use the kernel that needs up after gate: elsewhere their order is the allocator's choice. */
static void addresses_choose_no_kernel(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        check_run(SG_F16, i & 1, i >> 1, 4);
        assert_int_equal(gated_tiles > 0, i == 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(other_cards_use_common_kernels),
                                       cmocka_unit_test(other_cards_keep_packed_weights),
                                       cmocka_unit_test(small_cards_refuse_no_rows),
                                       cmocka_unit_test(long_rows_fit),
                                       cmocka_unit_test(last_parts_fit),
                                       cmocka_unit_test(many_rows_use_packed_tiles),
                                       cmocka_unit_test(addresses_choose_no_kernel)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
