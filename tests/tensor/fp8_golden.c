/* fp8_golden.c: e4m3 against what torch makes of the same numbers (golden/fp8), bit for bit; rows with their scales, whole and
 * in parts, made of every storage. SPDX-License-Identifier: MIT */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/num.h"
#include "tensor/archive.h"

static struct sg_archive *golden;

static int open_golden(void **state)
{
    (void)state;
    segue_error err;
    if (sg_archive_open(&golden, SEGUE_SOURCE_DIR "/tests/golden/fp8/e4m3.safetensors", &err) == SEGUE_OK) return 0;
    printf("%s\n", err.text);
    return 1;
}

static int close_golden(void **state)
{
    (void)state;
    sg_archive_close(golden);
    return 0;
}

static const struct sg_tensor *get(const char *name)
{
    const struct sg_tensor *t = sg_archive_find(golden, name);
    if (!t) fail_msg("no %s", name);
    return t;
}

/* All of a golden tensor's numbers. */
static float *numbers(const char *name, uint64_t *n)
{
    const struct sg_tensor *t = get(name);
    *n = t->rows * t->cols;
    float *x = malloc(*n * sizeof *x);
    assert_non_null(x);
    sg_tensor_read(t, x);
    return x;
}

static void every_code(void **state)
{
    (void)state;
    uint64_t n;
    float *want = numbers("codes.f32", &n);
    assert_int_equal(n, 256);
    for (uint32_t c = 0; c < 256; c++) {
        float v = sg_f32_of_e4m3((uint8_t)c);
        if (c % 128 == 127) assert_true(isnan(v) && isnan(want[c]));
        else assert_int_equal(sg_bits_of_f32(v), sg_bits_of_f32(want[c]));
        assert_int_equal(sg_e4m3_of_f32(v), c);
    }
    free(want);
}

static void rounding(void **state)
{
    (void)state;
    uint64_t n;
    float *x = numbers("x.f32", &n);
    const struct sg_tensor *codes = get("x.codes");
    assert_int_equal(codes->bytes, n);
    for (uint64_t i = 0; i < n; i++)
        if (sg_e4m3_of_f32(x[i]) != codes->data[i])
            fail_msg("%.9g is 0x%02x, golden 0x%02x", (double)x[i], sg_e4m3_of_f32(x[i]), codes->data[i]);
    free(x);
}

/* Where torch gives NaN, weights saturate. */
static void saturation(void **state)
{
    (void)state;
    static const float beyond[] = {448.1f, 464, 480, 1e30f, INFINITY};
    for (size_t i = 0; i < sizeof beyond / sizeof *beyond; i++) {
        assert_int_equal(sg_e4m3_of_f32(beyond[i]), 0x7e);
        assert_int_equal(sg_e4m3_of_f32(-beyond[i]), 0xfe);
    }
    assert_int_equal(sg_e4m3_of_f32(NAN) & 0x7f, 0x7f);
}

static void golden_rows(void **state)
{
    (void)state;
    uint64_t n;
    const struct sg_tensor *rows = get("rows.f32"), *codes = get("rows.codes");
    struct sg_tensor t = sg_tensor_fp8(rows);
    float *scales = numbers("rows.scale", &n), scratch[160], whole[160], part[160];
    uint8_t got[160];
    assert_int_equal(rows->cols, 160);
    for (uint64_t r = 0; r < rows->rows; r++) {
        float scale = sg_tensor_fp8_row(&t, r, scratch, got);
        if (sg_bits_of_f32(scale) != sg_bits_of_f32(scales[r]))
            fail_msg("row %d: scale %g, golden %g", (int)r, (double)scale, (double)scales[r]);
        assert_memory_equal(got, codes->data + r * 160, 160);
        sg_tensor_row(&t, r, 0, 160, whole);
        for (int c = 0; c < 160; c++) {
            assert_int_equal(sg_bits_of_f32(whole[c]), sg_bits_of_f32(scale * sg_f32_of_e4m3(got[c])));
            assert_int_equal(sg_bits_of_f32(sg_f32_of_bf16(sg_bf16_of_f32(whole[c]))), sg_bits_of_f32(whole[c]));
        }
        sg_tensor_row(&t, r, 32, 96, part);
        assert_memory_equal(part, whole + 32, 96 * sizeof *part);
    }
    free(scales);
}

/* Each stored row is of 512 numbers or one block of every kind; parts of 32 equal the whole. */
static void of_every_storage(void **state)
{
    (void)state;
    static const enum sg_storage storages[] = {SG_F32,  SG_F16,  SG_BF16, SG_Q8_0, SG_Q4_0,
                                               SG_Q4_1, SG_Q5_0, SG_Q5_1, SG_Q4_K, SG_Q6_K};
    static float x[512], source[512], got[512], part[32];
    static uint8_t stored[2048];
    for (int i = 0; i < 512; i++) x[i] = sinf((float)i * 1.7f) * (float)(i % 13) * 0.01f;
    for (size_t k = 0; k < sizeof storages / sizeof *storages; k++) {
        assert_int_equal(sg_quant_row(storages[k], x, NULL, 512, stored, NULL), SEGUE_OK);
        const struct sg_tensor from =
            {.name = "w", .storage = storages[k], .rank = 2, .shape = {1, 512}, .rows = 1, .cols = 512, .data = stored};
        struct sg_tensor t = sg_tensor_fp8(&from);
        sg_tensor_row(&from, 0, 0, 512, source);
        sg_tensor_row(&t, 0, 0, 512, got);
        float max_error = 0;
        for (int i = 0; i < 512; i++) max_error = fmaxf(max_error, fabsf(source[i]));
        for (int i = 0; i < 512; i++)
            assert_true(fabsf(got[i] - source[i]) <= fmaxf(fabsf(source[i]) / 16, max_error * 0x1p-17f));
        for (int c = 0; c < 512; c += 32) {
            sg_tensor_row(&t, 0, (uint64_t)c, 32, part);
            assert_memory_equal(part, got + c, sizeof part);
        }
    }
}

static void not_finite(void **state)
{
    (void)state;
    float x[64] = {1}, scratch[64];
    uint8_t codes[64];
    uint64_t bad = 9;
    x[40] = INFINITY;
    const struct sg_tensor from =
        {.name = "w", .storage = SG_F32, .rank = 2, .shape = {2, 32}, .rows = 2, .cols = 32, .data = (uint8_t *)x};
    struct sg_tensor t = sg_tensor_fp8(&from);
    assert_false(sg_tensor_finite(&t, &bad));
    assert_int_equal(bad, 1);
    assert_true(isfinite(sg_tensor_fp8_row(&t, 0, scratch, codes)));
    assert_false(isfinite(sg_tensor_fp8_row(&t, 1, scratch, codes)));
    sg_tensor_row(&t, 1, 0, 32, scratch);
    assert_true(isnan(scratch[0]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_code),   cmocka_unit_test(rounding),
                                       cmocka_unit_test(saturation),   cmocka_unit_test(golden_rows),
                                       cmocka_unit_test(of_every_storage), cmocka_unit_test(not_finite)};
    return cmocka_run_group_tests(tests, open_golden, close_golden);
}
