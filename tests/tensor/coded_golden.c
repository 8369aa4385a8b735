/* coded_golden.c: modules of AutoGPTQ, AutoAWQ, compressed-tensors, block-scaled FP8 and MLX's fp4 and fp8 modes against
 * tests/golden/quants/coded.safetensors (make_coded.py), read as rows and as the integer blocks that units pack, and through
 * the message format of the unit `proc`. Then the same modules with wrong shapes and configurations.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "graph/graphwire.h"
#include "tensor/archive.h"
#include "tensor/coded.h"

#define GOLDEN SEGUE_SOURCE_DIR "/tests/golden/quants/coded.safetensors"
static const char CONFIG[] = "{\"quantization_config\":{\"quant_method\":\"fp8\",\"weight_block_size\":[32,32]}}";

static const struct {
    const char *name, *stored_as;
    uint32_t uniform;
} cases[] = {{"gptq4", "gptq4", 32},     {"gptq8", "gptq8", 32},       {"gptq2", "gptq2", 32},     {"act_order", "gptq4", 0},
             {"awq4", "awq4", 32},       {"int4", "int4", 32},         {"int4_zeros", "int4", 32}, {"int8", "int8", 32},
             {"int8_rows", "int8", 32},  {"nv", "nvfp4", 16},          {"fp8_block", "f8_e4m3", 0}, {"fp8_row", "f8_e4m3", 0},
             {"fp8_one", "f8_e4m3", 0},  {"mxfp4", "mxfp4", 32},       {"mxfp8", "mxfp8", 0},      {"nvfp4", "nvfp4", 16}};
enum { CASES = sizeof cases / sizeof *cases };

static struct sg_archive *opened(const char *config, segue_status wanted, segue_error *err)
{
    struct sg_archive *a = NULL;
    json_t *c = config ? json_loads(config, 0, NULL) : NULL;
    assert_int_equal(sg_archive_open(&a, GOLDEN, err), SEGUE_OK);
    segue_status s = sg_archive_join(a, c, err);
    if (s != wanted) fail_msg("%s: status %d, wanted %d: %s", config ? config : "no config", s, wanted, err->text);
    json_decref(c);
    return a;
}

static const struct sg_tensor *find(const struct sg_archive *a, const char *name, const char *suffix)
{
    char full[64];
    snprintf(full, sizeof full, "%s%s", name, suffix);
    const struct sg_tensor *t = sg_archive_find(a, full);
    if (!t) fail_msg("no tensor %s", full);
    return t;
}

/* Rows by whole and by parts of 32 columns equal the golden numbers exactly. */
static void compare_rows(const struct sg_tensor *t, const struct sg_tensor *want)
{
    float *got = malloc((size_t)(t->rows * t->cols) * sizeof *got), *right = malloc((size_t)(t->rows * t->cols) * sizeof *right);
    assert_int_equal(t->rows, want->rows);
    assert_int_equal(t->cols, want->cols);
    sg_tensor_read(want, right);
    sg_tensor_read(t, got);
    for (uint64_t i = 0; i < t->rows * t->cols; i++)
        if (got[i] != right[i])
            fail_msg("%s: number %llu is %.9g, golden %.9g", t->name, (unsigned long long)i, (double)got[i], (double)right[i]);
    for (uint64_t c = 0; c + 32 <= t->cols; c += 32) {
        float part[32];
        sg_tensor_row(t, t->rows - 1, c, 32, part);
        assert_memory_equal(part, got + (t->rows - 1) * t->cols + c, sizeof part);
    }
    free(got);
    free(right);
}

/* d * q + m is the number, within the roundings of a product and a sum. */
static void compare_blocks(const struct sg_tensor *t)
{
    for (uint64_t row = 0; row < t->rows; row++)
        for (uint64_t c = 0; c < t->cols; c += 32) {
            float want[32], d[2], m[2];
            uint8_t q[32];
            sg_tensor_row(t, row, c, 32, want);
            sg_coded_block(t, row, c, q, d, m);
            for (int i = 0; i < 32; i++) {
                float scaled = d[i / 16] * (float)q[i], got = scaled + m[i / 16];
                if (fabsf(got - want[i]) > 1e-6f * (fabsf(scaled) + fabsf(m[i / 16])))
                    fail_msg("%s: row %u column %u is %.9g, golden %.9g", t->name, (unsigned)row, (unsigned)c + i, (double)got,
                             (double)want[i]);
            }
        }
}

static void modules_read_as_defined(void **state)
{
    (void)state;
    segue_error err;
    struct sg_archive *a = opened(CONFIG, SEGUE_OK, &err);
    assert_int_equal(a->tensors_n, 2 * CASES); /* nothing else is left over */
    for (int i = 0; i < CASES; i++) {
        const struct sg_tensor *t = find(a, cases[i].name, ".weight");
        assert_int_equal(t->storage, SG_CODED);
        assert_string_equal(t->stored_as, cases[i].stored_as);
        assert_int_equal(sg_coded_uniform(t), cases[i].uniform);
        assert_int_equal(sg_tensor_finite(t, NULL), 1);
        compare_rows(t, find(a, cases[i].name, ".want"));
        if (cases[i].uniform) compare_blocks(t);
    }
    sg_archive_close(a);
}

/* What the unit `proc` sends is read back as the same numbers; damaged descriptions are refused. */
static void descriptions_travel(void **state)
{
    (void)state;
    segue_error err;
    struct sg_archive *a = opened(CONFIG, SEGUE_OK, &err);
    const struct sg_wire_region region = {a->maps[0].data, a->maps[0].size};
    for (int i = 0; i < CASES; i++) {
        const struct sg_tensor *t = find(a, cases[i].name, ".weight");
        const void *const at[SG_LOCS] = {t->data, t->affine.scales, t->affine.biases, t->coded.order};
        struct sg_wire_loc locs[SG_LOCS] = {{0}};
        struct sg_buf out = {0};
        struct sg_arena arena = {0};
        struct sg_tensor back;
        for (int k = 0; k < SG_LOCS; k++) locs[k].at = at[k] ? (uint64_t)((const uint8_t *)at[k] - region.data) : 0;
        sg_wire_tensor_write(&out, t, locs);
        struct sg_reader in = {.at = (const uint8_t *)out.data, .left = out.len};
        if (sg_wire_tensor_read(&in, &region, 1, &arena, &back, &err) != SEGUE_OK) fail_msg("%s", err.text);
        compare_rows(&back, find(a, cases[i].name, ".want"));
        for (size_t byte = 0; byte < out.len; byte++) { /* any byte may be wrong: refused, or within the region */
            for (int bit = 0; bit < 8; bit += 7) {
                out.data[byte] = (char)(out.data[byte] ^ 1 << bit);
                in = (struct sg_reader){.at = (const uint8_t *)out.data, .left = out.len};
                if (sg_wire_tensor_read(&in, &region, 1, &arena, &back, &err) == SEGUE_OK && back.rows * back.cols < 100000) {
                    float *all = malloc((size_t)(back.rows * back.cols) * sizeof *all);
                    sg_tensor_read(&back, all);
                    free(all);
                }
                out.data[byte] = (char)(out.data[byte] ^ 1 << bit);
            }
        }
        sg_buf_free(&out);
        sg_arena_free(&arena);
    }
    sg_archive_close(a);
}

static void configurations_that_do_not_fit(void **state)
{
    (void)state;
    static const struct {
        const char *config, *reason;
        segue_status status;
    } wrong[] = {
        {NULL, "fp8_block", SEGUE_EFORMAT}, /* blocks of 128: another number of scales */
        {"{\"quantization_config\":{\"weight_block_size\":[0,32]}}", "weight_block_size", SEGUE_EFORMAT},
        {"{\"quantization_config\":{\"weight_block_size\":[32]}}", "weight_block_size", SEGUE_EFORMAT},
        {"{\"quantization_config\":{\"version\":\"gemv\",\"weight_block_size\":[32,32]}}", "gemm", SEGUE_EUNSUPPORTED},
        {"{\"quantization_config\":{\"checkpoint_format\":\"marlin\",\"weight_block_size\":[32,32]}}", "gptq",
         SEGUE_EUNSUPPORTED},
        {"{\"quantization\":{},\"quantization_config\":{\"group_size\":64,\"weight_block_size\":[32,32]}}", "group size",
         SEGUE_EFORMAT},
        {"{\"quantization\":{\"mode\":\"fp16\"},\"quantization_config\":{\"weight_block_size\":[32,32]}}", "fp16",
         SEGUE_EUNSUPPORTED},
        {"{\"quantization\":{\"bits\":3},\"quantization_config\":{\"weight_block_size\":[32,32]}}", "do not fit",
         SEGUE_EFORMAT},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        segue_error err;
        struct sg_archive *a = opened(wrong[i].config, wrong[i].status, &err);
        if (!strstr(err.text, wrong[i].reason)) fail_msg("%zu: %s", i, err.text);
        assert_non_null(sg_archive_find(a, "gptq4.qweight")); /* unchanged */
        sg_archive_close(a);
    }
}

/* NaN in a code or a scale is found in its row. */
static void damage_is_found(void **state)
{
    (void)state;
    segue_error err;
    uint64_t bad;
    struct sg_archive *a = opened(CONFIG, SEGUE_OK, &err);
    for (int i = 0; i < CASES; i++) {
        struct sg_tensor t = *find(a, cases[i].name, ".weight");
        uint64_t bytes[4];
        sg_coded_extent(&t, bytes);
        uint8_t *scales = malloc(bytes[1]);
        memset(scales, t.affine.storage == SG_U8 ? 255 : 127, bytes[1]); /* NaN in E8M0, E4M3 */
        if (t.affine.storage == SG_F16) for (uint64_t k = 1; k < bytes[1]; k += 2) scales[k] = 0x7c;
        if (t.affine.storage == SG_F32) for (uint64_t k = 3; k < bytes[1]; k += 4) scales[k] = 0x7f, scales[k - 1] = 0x80;
        t.affine.scales = scales;
        assert_int_equal(sg_tensor_finite(&t, &bad), 0);
        assert_int_equal(bad, 0);
        free(scales);
    }
    struct sg_tensor t = *find(a, "fp8_row", ".weight");
    uint8_t *codes = malloc(t.bytes);
    memcpy(codes, t.data, t.bytes);
    codes[5 * t.cols + 3] = 0xff;
    t.data = codes;
    assert_int_equal(sg_tensor_finite(&t, &bad), 0);
    assert_int_equal(bad, 5);
    free(codes);
    sg_archive_close(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(modules_read_as_defined),
        cmocka_unit_test(descriptions_travel),
        cmocka_unit_test(configurations_that_do_not_fit),
        cmocka_unit_test(damage_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
