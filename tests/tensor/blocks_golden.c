/* blocks_golden.c: every number format against what gguf and mlx make of the same bytes (golden/quants), bit
 * for bit; rows of tensors that are permuted, transposed or cut.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/num.h"
#include "tensor/archive.h"

static struct sg_archive *golden, *golden_iq;

static int open_golden(void **state)
{
    (void)state;
    segue_error err;
    if (sg_archive_open(&golden, SEGUE_SOURCE_DIR "/tests/golden/quants/blocks.safetensors", &err) == SEGUE_OK &&
        sg_archive_open(&golden_iq, SEGUE_SOURCE_DIR "/tests/golden/quants/iquants.safetensors", &err) == SEGUE_OK)
        return 0;
    printf("%s\n", err.text);
    return 1;
}

static int close_golden(void **state)
{
    (void)state;
    sg_archive_close(golden);
    sg_archive_close(golden_iq);
    return 0;
}

static const struct sg_tensor *get(const char *a, const char *b)
{
    char name[64];
    snprintf(name, sizeof name, "%s%s", a, b);
    const struct sg_tensor *t = sg_archive_find(golden, name);
    if (!t) t = sg_archive_find(golden_iq, name);
    if (!t) fail_msg("no %s", name);
    return t;
}

static void same_bits(const float *a, const float *b, uint64_t n, const char *what)
{
    for (uint64_t i = 0; i < n; i++)
        if (sg_bits_of_f32(a[i]) != sg_bits_of_f32(b[i]))
            fail_msg("%s: element %llu is %.9g, golden %.9g", what, (unsigned long long)i, (double)a[i],
                     (double)b[i]);
}

static const struct {
    const char *name;
    enum sg_storage storage;
} types[] = {{"Q4_0", SG_Q4_0},   {"Q4_1", SG_Q4_1},    {"Q5_0", SG_Q5_0}, {"Q5_1", SG_Q5_1},
             {"Q8_0", SG_Q8_0},   {"Q2_K", SG_Q2_K},    {"Q3_K", SG_Q3_K}, {"Q4_K", SG_Q4_K},
             {"Q5_K", SG_Q5_K},   {"Q6_K", SG_Q6_K},    {"F16", SG_F16},   {"BF16", SG_BF16},
             {"MXFP4", SG_MXFP4}, {"IQ4_NL", SG_IQ4_NL}, {"IQ2_XXS", SG_IQ2_XXS},
             {"IQ2_XS", SG_IQ2_XS}, {"IQ2_S", SG_IQ2_S},  {"IQ3_XXS", SG_IQ3_XXS}, {"IQ3_S", SG_IQ3_S},
             {"IQ1_S", SG_IQ1_S}, {"IQ1_M", SG_IQ1_M},  {"IQ4_XS", SG_IQ4_XS}, {"TQ1_0", SG_TQ1_0},
             {"TQ2_0", SG_TQ2_0}, {"NVFP4", SG_NVFP4}};

enum { TYPES = sizeof types / sizeof *types };

static void blocks_read_as_gguf_reads_them(void **state)
{
    (void)state;
    float out[2048], want[2048];
    for (int i = 0; i < TYPES; i++) {
        const struct sg_tensor *raw = get(types[i].name, ".raw"), *f32 = get(types[i].name, ".f32");
        const struct sg_storage_info *info = sg_storage_info(types[i].storage);
        assert_true(f32->cols <= 2048);
        assert_int_equal(raw->bytes / info->bytes * info->block, f32->cols);
        sg_tensor_read(f32, want);
        sg_dequant_row(types[i].storage, raw->data, f32->cols, out);
        same_bits(out, want, f32->cols, types[i].name);
    }
}

/* All 16-bit patterns against the scalar conversions, so that the fast loops agree with them on every
 * value. */
static void half_blocks_match_the_scalar_reader(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        uint8_t bytes[2] = {(uint8_t)h, (uint8_t)(h >> 8)};
        float a, b = sg_f32_of_f16((uint16_t)h);
        sg_dequant_row(SG_F16, bytes, 1, &a);
        if (isnan(b)) assert_true(isnan(a));
        else assert_int_equal(sg_bits_of_f32(a), sg_bits_of_f32(b));
    }
}

static void blocks_write_as_gguf_writes_them(void **state)
{
    (void)state;
    const struct sg_tensor *input = get("quantize_input", ".f32");
    float x[1024];
    uint8_t out[4096];
    assert_int_equal(input->rows * input->cols, 1024);
    sg_tensor_read(input, x);
    for (int i = 0; i < TYPES; i++) {
        if (types[i].storage > SG_Q8_0) continue;
        const struct sg_tensor *want = get("quantize.", types[i].name);
        assert_int_equal(sg_quant_row(types[i].storage, x, NULL, 1024, out, NULL), SEGUE_OK);
        for (uint64_t k = 0; k < want->bytes; k++)
            if (out[k] != want->data[k])
                fail_msg("%s: byte %llu is %u, golden %u", types[i].name, (unsigned long long)k, out[k],
                         want->data[k]);
    }
    assert_int_equal(sg_quant_row(SG_IQ4_NL, x, NULL, 256, out, NULL), SEGUE_EUNSUPPORTED);
    assert_int_equal(sg_quant_row(SG_Q8_0, x, NULL, 31, out, NULL), SEGUE_EARG);
    assert_int_equal(sg_quant_row(SG_F32, x, NULL, 1024, out, NULL), SEGUE_OK);
    assert_memory_equal(out, input->data, 4096);
}

/* A tensor of `rows` rows over the golden blocks of a type. */
static struct sg_tensor tensor_of(enum sg_storage s, const char *name, uint64_t rows)
{
    const struct sg_tensor *raw = get(name, ".raw");
    const struct sg_storage_info *info = sg_storage_info(s);
    uint64_t n = raw->bytes / info->bytes * info->block;
    return (struct sg_tensor){.name = name,
                              .storage = s,
                              .rank = 2,
                              .shape = {rows, n / rows},
                              .rows = rows,
                              .cols = n / rows,
                              .data = raw->data,
                              .bytes = raw->bytes};
}

static void rows_may_be_cut_at_32(void **state)
{
    (void)state;
    float whole[1024], part[1024];
    for (int i = 0; i < TYPES; i++) {
        if (types[i].storage == SG_F16 || types[i].storage == SG_BF16) continue;
        struct sg_tensor t = tensor_of(types[i].storage, types[i].name, 2);
        for (uint64_t row = 0; row < 2; row++) {
            sg_tensor_row(&t, row, 0, t.cols, whole);
            for (uint64_t from = 0; from < t.cols; from += 32)
                for (uint64_t n = 32; from + n <= t.cols; n += 32) {
                    part[n] = 77;
                    sg_tensor_row(&t, row, from, n, part);
                    same_bits(part, whole + from, n, types[i].name);
                    if (n < 1024) assert_true(part[n] == 77);
                }
        }
    }
}

/* The rules of tensor.h, counted out by hand with three nested loops. */
static void permutations_are_as_stated(void **state)
{
    (void)state;
    struct sg_perm p = {.a = 2, .b = 3, .w = 4, .first = 8};
    for (uint64_t i = 0; i < 8; i++) assert_int_equal(sg_perm_stored(&p, i), i);
    for (uint64_t group = 0; group < 3; group++)
        for (uint64_t x = 0; x < 2; x++)
            for (uint64_t y = 0; y < 3; y++)
                for (uint64_t z = 0; z < 4; z++)
                    assert_int_equal(sg_perm_stored(&p, 8 + group * 24 + (x * 3 + y) * 4 + z),
                                     8 + group * 24 + (y * 2 + x) * 4 + z);
    struct sg_perm none = {0};
    assert_int_equal(sg_perm_stored(&none, 12345), 12345);
    /* q of a head of 8 rows: half-split row s*4+j is at the interleaved 2j+s */
    struct sg_perm q = {.a = 2, .b = 4, .w = 1};
    assert_int_equal(sg_perm_stored(&q, 1), 2);
    assert_int_equal(sg_perm_stored(&q, 4), 1);
    assert_int_equal(sg_perm_stored(&q, 8 + 7), 8 + 7);
}

static void rows_undo_permutation_and_transposition(void **state)
{
    (void)state;
    float stored[128 * 64], want, got[128];
    for (int i = 0; i < 128 * 64; i++) stored[i] = (float)i;
    struct sg_tensor t = {.name = "t",
                          .storage = SG_F32,
                          .rank = 2,
                          .shape = {64, 128},
                          .rows = 64,
                          .cols = 128,
                          .data = (const uint8_t *)stored,
                          .row_perm = {.a = 2, .b = 16, .w = 1},
                          .col_perm = {.a = 4, .b = 2, .w = 16}};
    for (uint64_t r = 0; r < 64; r++) {
        sg_tensor_row(&t, r, 32, 96, got);
        for (uint64_t c = 32; c < 128; c++) {
            want = stored[sg_perm_stored(&t.row_perm, r) * 128 + sg_perm_stored(&t.col_perm, c)];
            assert_true(got[c - 32] == want);
        }
    }
    t.col_perm = (struct sg_perm){0};
    t.transposed = 1; /* the same bytes as [128, 64]: logical rows and columns exchanged */
    t.rows = 128;
    t.cols = 64;
    t.shape[0] = 64;
    t.shape[1] = 128;
    sg_tensor_row(&t, 5, 0, 64, got);
    for (uint64_t c = 0; c < 64; c++) assert_true(got[c] == stored[c * 128 + sg_perm_stored(&t.row_perm, 5)]);
}

/* Column permutations of a block format, with runs that are whole 32s and runs that are not. */
static void permuted_columns_of_blocks(void **state)
{
    (void)state;
    static const struct sg_perm perms[] = {{2, 4, 24, 128},
                                           {2, 3, 64, 128},
                                           {4, 128, 1, 0},
                                           {2, 2, 80, 7},
                                           {2, 2, 33, 32}};
    struct sg_tensor t = tensor_of(SG_Q6_K, "Q6_K", 2);
    float plain[512], got[512];
    sg_tensor_row(&t, 1, 0, t.cols, plain);
    for (int i = 0; i < 5; i++) {
        uint64_t group = (uint64_t)perms[i].a * perms[i].b * perms[i].w,
                 n = perms[i].first + (512 - perms[i].first) / group * group;
        t.col_perm = perms[i];
        n -= n % 32;
        for (uint64_t from = 0; from < n; from += 96) {
            uint64_t take = n - from < 192 ? n - from : 192;
            sg_tensor_row(&t, 1, from, take, got);
            for (uint64_t c = 0; c < take; c++)
                assert_true(got[c] == plain[sg_perm_stored(&t.col_perm, from + c)]);
        }
    }
}

static void mlx_groups_read_as_mlx_reads_them(void **state)
{
    (void)state;
    const int bits[] = {2, 3, 4, 5, 6, 8}, groups[] = {32, 64, 128};
    float got[3 * 128], want[3 * 128], part[32];
    for (int b = 0; b < 6; b++)
        for (int g = 0; g < 3; g++) {
            char name[32];
            snprintf(name, sizeof name, "affine.%d.%d", bits[b], groups[g]);
            const struct sg_tensor *scales = get(name, ".scales"), *biases = get(name, ".biases"),
                                   *f32 = get(name, ".f32");
            struct sg_tensor t = *get(name, ".weight");
            t.storage = SG_AFFINE;
            t.cols = 128;
            t.affine = (struct sg_affine){scales->data, biases->data, SG_F32, (uint32_t)bits[b],
                                          (uint32_t)groups[g]};
            sg_tensor_read(&t, got);
            sg_tensor_read(f32, want);
            /* mlx may fuse the product and the sum: one rounding apart */
            for (int i = 0; i < 3 * 128; i++)
                if (fabsf(got[i] - want[i]) > 2.5e-7f * (fabsf(want[i]) + 1))
                    fail_msg("%s: element %d is %.9g, golden %.9g", name, i, (double)got[i], (double)want[i]);
            sg_tensor_row(&t, 2, 96, 32, part);
            same_bits(part, got + 2 * 128 + 96, 32, name);
        }
}

static void bad_scales_are_found(void **state)
{
    (void)state;
    uint64_t bad;
    for (int i = 0; i < TYPES; i++) {
        if (types[i].storage == SG_F16 || types[i].storage == SG_BF16) continue;
        if (types[i].storage == SG_IQ1_M || types[i].storage == SG_NVFP4) continue; /* no fp16 number in two bytes */
        struct sg_tensor t = tensor_of(types[i].storage, types[i].name, 2);
        uint8_t *copy = malloc(t.bytes);
        int places = 0;
        memcpy(copy, t.data, t.bytes);
        t.data = copy;
        assert_int_equal(sg_tensor_finite(&t, &bad), 1);
        uint64_t size = sg_storage_info(t.storage)->bytes, second = t.bytes / 2;
        for (uint64_t at = second; at + 1 < second + size;
             at++) { /* 0x7c00: an infinite half; MXFP4: 255 is NaN */
            uint8_t kept[2] = {copy[at], copy[at + 1]};
            float row[512];
            int mx = t.storage == SG_MXFP4;
            copy[at] = mx ? 255 : 0;
            if (!mx) copy[at + 1] = 0x7c;
            if (!sg_tensor_finite(&t, &bad)) {
                places++;
                assert_int_equal(bad, 1);
                sg_tensor_row(&t, 1, 0, t.cols, row);
                assert_true(mx || !isfinite(row[0]));
            }
            copy[at] = kept[0];
            copy[at + 1] = kept[1];
        }
        if (!places) fail_msg("%s: no place where infinity is noticed", types[i].name);
        free(copy);
    }
    float x[4] = {1, 2, INFINITY, 3};
    struct sg_tensor t = {.name = "x", .storage = SG_F32, .rows = 2, .cols = 2, .data = (const uint8_t *)x};
    assert_int_equal(sg_tensor_finite(&t, &bad), 0);
    assert_int_equal(bad, 1);
}

/* The fp16 scale of IQ1_M is spread over four words; every scale byte of NVFP4 is a number. */
static void other_scales_are_checked(void **state)
{
    (void)state;
    uint64_t bad;
    uint8_t block[56] = {0}, fp4[36];
    struct sg_tensor t = {.name = "x", .storage = SG_IQ1_M, .rows = 1, .cols = 256, .data = block, .bytes = sizeof block};
    float row[256];
    assert_int_equal(sg_tensor_finite(&t, &bad), 1);
    block[55] = 0xf0; /* sign and three bits of the exponent */
    assert_int_equal(sg_tensor_finite(&t, &bad), 1);
    block[53] = 0xc0; /* and the other two */
    assert_int_equal(sg_tensor_finite(&t, &bad), 0);
    sg_tensor_row(&t, 0, 0, 256, row);
    assert_false(isfinite(row[0]));
    memset(fp4, 0xff, sizeof fp4);
    t = (struct sg_tensor){.name = "x", .storage = SG_NVFP4, .rows = 1, .cols = 64, .data = fp4, .bytes = sizeof fp4};
    assert_int_equal(sg_tensor_finite(&t, &bad), 1);
    sg_tensor_row(&t, 0, 0, 64, row);
    assert_true(isfinite(row[0]));
}

/* ggml-quants.h: float d; int8_t qs[256]; int16_t bsums[16]. The package gguf does not read it. */
static void q8_k_as_defined(void **state)
{
    (void)state;
    uint8_t blocks[2 * 292] = {0};
    const float d[2] = {0.375f, INFINITY};
    float row[256];
    uint64_t bad;
    for (int b = 0; b < 2; b++) {
        memcpy(blocks + 292 * b, &d[b], 4);
        for (int i = 0; i < 256; i++) blocks[292 * b + 4 + i] = (uint8_t)(i - 128);
    }
    struct sg_tensor t = {.name = "x", .storage = SG_Q8_K, .rows = 2, .cols = 256, .data = blocks, .bytes = sizeof blocks};
    sg_tensor_row(&t, 0, 0, 256, row);
    for (int i = 0; i < 256; i++) assert_true(row[i] == 0.375f * (float)(i - 128));
    assert_int_equal(sg_tensor_finite_rows(&t, 0, 1, &bad), 1);
    assert_int_equal(sg_tensor_finite(&t, &bad), 0);
    assert_int_equal(bad, 1);
    assert_int_equal(sg_storage_of_ggml(15, NULL), SG_Q8_K);
}

static void rows_that_nobody_can_read_are_nan(void **state)
{
    (void)state;
    float out[4] = {0};
    uint8_t bytes[16] = {0};
    segue_error err;
    struct sg_tensor t =
        {.name = "blk.0.w", .stored_as = "q1_0", .storage = SG_OTHER, .rows = 1, .cols = 4, .data = bytes};
    sg_tensor_row(&t, 0, 0, 4, out);
    for (int i = 0; i < 4; i++) assert_true(isnan(out[i]));
    assert_int_equal(sg_tensor_computable(&t, &err), SEGUE_EUNSUPPORTED);
    assert_non_null(strstr(err.text, "blk.0.w"));
    assert_non_null(strstr(err.text, "q1_0"));
}

static void ids_and_row_sizes(void **state)
{
    (void)state;
    const char *name;
    uint64_t bytes;
    assert_int_equal(sg_storage_of_ggml(12, &name), SG_Q4_K);
    assert_string_equal(name, "q4_k");
    assert_int_equal(sg_storage_of_ggml(16, &name), SG_IQ2_XXS);
    assert_int_equal(sg_storage_of_ggml(41, &name), SG_STORAGE_N);
    assert_string_equal(name, "q1_0");
    assert_int_equal(sg_storage_of_ggml(12345, &name), SG_STORAGE_N);
    assert_null(name);
    assert_int_equal(sg_storage_row_bytes(SG_Q4_1, 576, &bytes, NULL), SEGUE_OK);
    assert_int_equal(bytes, 360);
    assert_int_equal(sg_storage_row_bytes(SG_Q4_K, 576, &bytes, NULL), SEGUE_EFORMAT);
    assert_int_equal(sg_storage_row_bytes(SG_F64, UINT64_MAX / 4, &bytes, NULL), SEGUE_EFORMAT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_read_as_gguf_reads_them),
        cmocka_unit_test(half_blocks_match_the_scalar_reader),
        cmocka_unit_test(blocks_write_as_gguf_writes_them),
        cmocka_unit_test(rows_may_be_cut_at_32),
        cmocka_unit_test(permutations_are_as_stated),
        cmocka_unit_test(rows_undo_permutation_and_transposition),
        cmocka_unit_test(permuted_columns_of_blocks),
        cmocka_unit_test(mlx_groups_read_as_mlx_reads_them),
        cmocka_unit_test(bad_scales_are_found), cmocka_unit_test(other_scales_are_checked),
        cmocka_unit_test(q8_k_as_defined),
        cmocka_unit_test(rows_that_nobody_can_read_are_nan),
        cmocka_unit_test(ids_and_row_sizes),
    };
    return cmocka_run_group_tests(tests, open_golden, close_golden);
}
