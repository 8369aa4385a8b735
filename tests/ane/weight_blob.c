/* weight_blob.c: weight blob files byte for byte, rejection of damaged files, and the error of compressed weights.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/num.h"
#include "unit/ane/blob/blob.h"
#include "unit/ane/blob/compress.h"

static const uint16_t four[4] = {0x3c00, 0x4000, 0xb800, 0x7bff};    /* 1, 2, -0.5, 65504 */

/* Test vector of the format: a file with one fp16 blob, 136 bytes. */
static void one_blob_byte_for_byte(void **state)
{
    uint8_t want[136] = {1, 0, 0, 0, 2};
    static const uint8_t record[24] = {0xef, 0xbe, 0xad, 0xde, 1, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0x80};
    static const uint8_t data[8] = {0x00, 0x3c, 0x00, 0x40, 0x00, 0xb8, 0xff, 0x7b};
    struct sg_buf file = {0};
    uint64_t at;
    (void)state;
    memcpy(want + 0x40, record, sizeof record);
    memcpy(want + 0x80, data, sizeof data);
    float in[4] = {1, 2, -0.5f, 65504};
    uint16_t out[4];
    sg_compress_fp16(in, 4, out, NULL);
    assert_memory_equal(out, four, sizeof four);
    assert_int_equal(sg_blob_begin(&file, NULL), SEGUE_OK);
    assert_int_equal(sg_blob_add(&file, SG_MIL_FP16, out, 8, 0, &at, NULL), SEGUE_OK);
    assert_int_equal(at, 64);
    assert_int_equal(file.len, sizeof want);
    assert_memory_equal(file.data, want, sizeof want);
    sg_buf_free(&file);
}

static void several_blobs_chain(void **state)
{
    struct sg_buf file = {0};
    uint8_t bytes[200];
    uint64_t at[4], record = 0;
    uint32_t i = 0;
    const uint64_t sizes[4] = {8, 64, 1, 200};
    const enum sg_mil_dtype types[4] = {SG_MIL_FP16, SG_MIL_INT8, SG_MIL_UINT6, SG_MIL_UINT8};
    struct sg_blob b;
    (void)state;
    for (size_t k = 0; k < sizeof bytes; k++) bytes[k] = (uint8_t)(k * 7);
    sg_blob_begin(&file, NULL);
    for (int k = 0; k < 4; k++)
        assert_int_equal(sg_blob_add(&file, types[k], bytes, sizes[k], k == 2 ? 2 : 0, &at[k], NULL), SEGUE_OK);
    assert_int_equal(at[1], 64 + 64 + 64);
    for (int k = 0; k < 4; k++) {
        assert_int_equal(sg_blob_next(&b, (uint8_t *)file.data, file.len, &i, &record, "t", NULL), SEGUE_OK);
        assert_int_equal(b.record, at[k]);
        assert_int_equal(b.dtype, types[k]);
        assert_int_equal(b.bytes, sizes[k]);
        assert_memory_equal(b.data, bytes, sizes[k]);
        assert_int_equal(b.offset % 64, 0);
    }
    assert_int_equal(sg_blob_next(&b, (uint8_t *)file.data, file.len, &i, &record, "t", NULL), SEGUE_END);
    file.data[0] = 5;                    /* the header counts one blob more than the file has */
    assert_int_equal(sg_blob_next(&b, (uint8_t *)file.data, file.len, &i, &record, "t", NULL), SEGUE_EFORMAT);
    sg_buf_free(&file);
}

static void damage_is_refused(void **state)
{
    const struct { size_t at; uint8_t byte; uint64_t record; const char *word; } bad[] = {
        {4, 1, 64, "version 1"}, {64, 0, 64, "sentinel"}, {68, 99, 64, "code 99"}, {72, 9, 64, "136"}, {79, 0xff, 64, "outside"},
        {80, 0x81, 64, "unaligned"}, {80, 0x40, 64, "overlap"}, {87, 0x80, 64, "outside"}, {88, 8, 64, "padding"},
        {200, 0, 65, "multiple"}, {200, 0, 0, "does not fit"}, {200, 0, 128, "does not fit"}, {200, 0, (uint64_t)-64, "does not fit"}};
    struct sg_buf file = {0};
    uint64_t at;
    (void)state;
    sg_blob_begin(&file, NULL);
    sg_blob_add(&file, SG_MIL_FP16, four, 8, 0, &at, NULL);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        uint8_t copy[136];
        struct sg_blob b;
        segue_error err = {0};
        memcpy(copy, file.data, sizeof copy);
        if (bad[i].at < sizeof copy) copy[bad[i].at] = bad[i].byte;
        assert_int_equal(sg_blob_at(&b, copy, sizeof copy, bad[i].record, "x.bin", &err), SEGUE_EFORMAT);
        if (!strstr(err.text, bad[i].word) || !strstr(err.text, "x.bin")) fail_msg("case %zu: %s", i, err.text);
    }
    for (size_t cut = 0; cut < file.len; cut++) {
        struct sg_blob b;
        assert_int_equal(sg_blob_at(&b, (uint8_t *)file.data, cut, 64, "cut", NULL), SEGUE_EFORMAT);
    }
    sg_buf_free(&file);
}

static void fp16_reports_its_range(void **state)
{
    const float in[] = {1, NAN, INFINITY, -1e6f, 1e-5f, 1e-9f, 0, 65519.9f, 65520};
    const uint16_t want[] = {0x3c00, 0, 0x7bff, 0xfbff, 0x00a8, 0, 0, 0x7bff, 0x7bff};
    uint16_t out[9];
    struct sg_range_report r = {0};
    (void)state;
    sg_compress_fp16(in, 9, out, &r);
    assert_memory_equal(out, want, sizeof want);
    assert_int_equal(r.nans, 1);
    assert_int_equal(r.clamped, 3);
    assert_int_equal(r.subnormal, 1);
    assert_int_equal(r.lost, 1);
    assert_true(r.largest == 1e6f);
}

static float gaussian(uint64_t *seed)
{
    double sum = 0;
    for (int i = 0; i < 12; i++) {
        *seed = *seed * 6364136223846793005u + 1442695040888963407u;
        sum += (double)(*seed >> 11) * 0x1p-53;
    }
    return (float)(sum - 6);
}

static double relative(const float *a, const float *b, size_t n)
{
    double d = 0, s = 0;
    for (size_t i = 0; i < n; i++) {
        d += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        s += (double)a[i] * a[i];
    }
    return sqrt(d / s);
}

/* Relative RMS error for Gaussian weights must stay below published bounds: int8 1 %, 4 bits 10.5 %, 6 bits 3 %. */
static void losses_stay_within_bounds(void **state)
{
    enum { ROWS = 64, COLS = 2048, N = ROWS * COLS };
    float *w = sg_alloc(N * sizeof *w), *back = sg_alloc(N * sizeof *back);
    int8_t *q = sg_alloc(N);
    uint8_t *packed = sg_alloc(N);
    uint16_t scale[ROWS], table[64];
    uint64_t seed = 7;
    (void)state;
    for (size_t i = 0; i < N; i++) w[i] = 0.02f * gaussian(&seed);
    sg_compress_int8(w, ROWS, COLS, q, scale);
    for (size_t i = 0; i < N; i++) back[i] = sg_f32_of_f16(scale[i / COLS]) * q[i];
    double loss = relative(w, back, N);
    print_message("int8 %.4f\n", loss);
    assert_true(loss > 0.001 && loss <= 0.010);
    for (uint32_t bits = 4; bits <= 6; bits += 2) {
        assert_int_equal(sg_compress_palette(w, N, bits, table, packed, NULL), SEGUE_OK);
        for (size_t i = 0; i < N; i++) back[i] = sg_f32_of_f16(table[sg_palette_index(packed, i, bits)]);
        loss = relative(w, back, N);
        print_message("%u bits %.4f\n", bits, loss);
        assert_true(loss <= (bits == 4 ? 0.105 : 0.03) && loss > 0.01);
    }
    for (size_t i = 0; i < N; i++) w[i] = 3;       /* equal weights, and an odd number of indices */
    assert_int_equal(sg_compress_palette(w, 5, 6, table, packed, NULL), SEGUE_OK);
    for (size_t i = 0; i < 5; i++) assert_true(sg_f32_of_f16(table[sg_palette_index(packed, i, 6)]) == 3);
    sg_free(w);
    sg_free(back);
    sg_free(q);
    sg_free(packed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_blob_byte_for_byte), cmocka_unit_test(several_blobs_chain),
                                       cmocka_unit_test(damage_is_refused), cmocka_unit_test(fp16_reports_its_range),
                                       cmocka_unit_test(losses_stay_within_bounds)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
