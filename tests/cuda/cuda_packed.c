/* cuda_packed.c: the packed layout of quantised weights (k_packed.cuh), read back as its description says: every number equals
 * that of the reference decoder, also with permuted columns; memory is at most 1.055 times the file's.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/num.h"
#include "unit/cuda/compile/repack.h"

enum { COLS = 1024, CHUNK = 256 };
static uint32_t state = 1;

static uint32_t next(void)
{
    state = state * 1664525u + 1013904223u;
    return state >> 8;
}

/* Where blocks have fp16 numbers; MXFP4: an exponent. */
static const struct {
    enum sg_storage storage;
    uint32_t halves_n, halves[2];
} formats[] = {{SG_Q4_0, 1, {0, 0}},   {SG_Q4_1, 2, {0, 2}},   {SG_Q5_0, 1, {0, 0}}, {SG_Q5_1, 2, {0, 2}},
               {SG_Q2_K, 2, {80, 82}}, {SG_Q3_K, 1, {108, 0}}, {SG_Q4_K, 2, {0, 2}}, {SG_Q5_K, 2, {0, 2}},
               {SG_Q6_K, 1, {208, 0}}, {SG_IQ4_NL, 1, {0, 0}}, {SG_MXFP4, 0, {0, 0}},
               {SG_IQ4_XS, 1, {0, 0}}};

/* Bits of the planes, by kind. */
static const uint8_t planes[][2] = {
#define X(kind, low, high, scales, factors) {low, high},
    CK_PACKED_KINDS(X)
#undef X
};

static uint32_t bits_at(const uint8_t *p, uint32_t bit, uint32_t n) { return p[bit / 8] >> bit % 8 & ((1u << n) - 1); }

/* The code of column c of row `row`: word `r` of lane t, byte c % 4 (k_packed.cuh). */
static int code_at(uint32_t kind, const uint8_t *block, uint32_t row, uint32_t c)
{
    uint32_t low = planes[kind - CK_PACKED][0], high = planes[kind - CK_PACKED][1], t = c / 128 * 2 + c / 8 % 2,
             r = c / 32 % 4 * 4 + c / 16 % 2 * 2 + c / 4 % 2, per = 8 / low, word = r / per, byte = c % 4, q;
    const uint8_t *at = block + word / 4 * 512 + row * 64 + t * 16 + word % 4 * 4;
    if (kind == CK_P_IQ4_NL || kind == CK_P_IQ4_XS || kind == CK_P_MXFP4)
        q = bits_at(at, 16 * (r % 2) + 4 * byte, 4);
    else
        q = bits_at(at, 8 * byte + low * (r % per), low);
    if (high) {
        per = 8 / high;
        q |= bits_at(block + 256 * low + (row * 4 + t) * 8 * high + r / per * 4, 8 * byte + high * (r % per), high) << low;
    }
    int flipped = kind == CK_P_Q4_0 || kind == CK_P_Q5_0 || kind == CK_P_Q3_K || kind == CK_P_Q6_K;
    return flipped && q >> (low + high - 1) ? (int)q - (1 << (low + high)) : (int)q;
}

static float half(const uint8_t *p) { return sg_f32_of_f16(sg_le16(p)); }
static float pair_number(const struct ck_weight *w, const uint8_t *p)
{
    return w->group >= CK_GROUP_BF16 ? sg_f32_of_bf16(sg_le16(p)) : half(p);
}

static float number_at(const struct ck_weight *w, const uint8_t *data, uint32_t row, uint32_t col)
{
    static const int iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    static const float fp4[16] = {0, .5f, 1, 1.5f, 2, 3, 4, 6, 0, -.5f, -1, -1.5f, -2, -3, -4, -6};
    uint32_t chunk = col / CHUNK, c = col % CHUNK, b = c / 32, group = w->group % CK_GROUP_BF16;
    uint32_t scale_bytes = cu_packed_scale_bytes(w->kind, w->group), factor_bytes = cu_packed_factor_bytes(w->kind);
    uint32_t codes = cu_packed_code_bytes(w->kind);
    data += chunk * 8 * (codes + scale_bytes + factor_bytes);
    const uint8_t *s = data + 8 * codes + row * scale_bytes, *f = data + 8 * (codes + scale_bytes) + row * factor_bytes;
    int q = code_at(w->kind, data, row, c);
    float d;
    switch (w->kind) {
    case CK_P_Q4_0:
    case CK_P_Q5_0:
        return half(s + 2 * b) * (float)q;
    case CK_P_Q4_1:
    case CK_P_Q5_1:
        return half(s + 2 * b) * (float)q + half(s + 16 + 2 * b);
    case CK_P_Q4_K:
    case CK_P_Q5_K:
        return half(f) * s[b] * (float)q - half(f + 2) * s[8 + b];
    case CK_P_Q2_K:
        return half(f) * (s[c / 16] & 15) * (float)q - half(f + 2) * (s[c / 16] >> 4);
    case CK_P_Q3_K:
        return half(f) * (float)(int8_t)s[c / 16] * (float)q;
    case CK_P_Q6_K:
        memcpy(&d, f, 4);
        return d * (float)(int8_t)s[c / 16] * (float)q;
    case CK_P_IQ4_NL:
        return half(s + 2 * b) * (float)iq4[q];
    case CK_P_IQ4_XS:
        return half(f) * (float)(int8_t)s[b] * (float)iq4[q];
    case CK_P_MXFP4:
        return ldexpf(fp4[q], f[b] - 127);
    default:
        return pair_number(w, s + c / group * 2) * (float)q + pair_number(w, s + 2 * (CHUNK / group) + c / group * 2);
    }
}

static void compare_row(const struct sg_tensor *t, uint64_t stored, uint64_t row)
{
    struct ck_weight w;
    float want[COLS];
    assert_true(cu_packed_shape(t, &w));
    uint32_t place = 5; /* of the eight rows of a block */
    uint8_t *data = calloc(8, w.pitch);
    cu_packed_row(t, &w, stored, place, data);
    sg_tensor_row(t, row, 0, t->cols, want);
    for (uint32_t c = 0; c < t->cols; c++) {
        float v = number_at(&w, data, place, c);
        assert_true(fabsf(v - want[c]) <= 1e-5f * (fabsf(want[c]) + 1));
    }
    free(data);
}

/* Two rows of random blocks, the second one read. */
static void blocks_equal(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        const struct sg_storage_info *info = sg_storage_info(formats[i].storage);
        size_t bytes = 2 * COLS / info->block * info->bytes;
        uint8_t *file = malloc(bytes);
        for (size_t k = 0; k < bytes; k++) file[k] = (uint8_t)next();
        for (size_t at = 0; at < bytes; at += info->bytes) {
            if (formats[i].storage == SG_MXFP4) file[at] = (uint8_t)(120 + next() % 8);
            for (uint32_t k = 0; k < formats[i].halves_n; k++) {
                uint16_t h = sg_f16_of_f32(0.01f * (float)(1 + next() % 9));
                memcpy(file + at + formats[i].halves[k], &h, 2);
            }
        }
        struct sg_tensor t = {.name = "w",
                              .storage = formats[i].storage,
                              .rank = 2,
                              .shape = {2, COLS},
                              .rows = 2,
                              .cols = COLS,
                              .data = file,
                              .bytes = bytes};
        struct ck_weight w;
        compare_row(&t, 1, 1);
        assert_true(cu_packed_shape(&t, &w));
        assert_true(w.pitch * 2 <= 1.055 * (double)bytes);
        /* Heads of 128 columns in another order: blocks of 32 move, those of 256 cannot. */
        t.col_perm = (struct sg_perm){2, 4, 128, 0};
        if (info->block == 32)
            compare_row(&t, 1, 1);
        else
            assert_false(cu_packed_shape(&t, &w));
        free(file);
    }
}

static void mlx_equal(void **unused)
{
    (void)unused;
    static const uint32_t widths[] = {2, 3, 4, 5, 6, 8};
    static uint8_t codes[2 * COLS], numbers[2][2 * COLS / 32 * 2];
    for (uint32_t i = 0; i < 24; i++) {
        struct sg_tensor t = {.name = "w",
                              .storage = SG_AFFINE,
                              .rank = 2,
                              .shape = {2, COLS},
                              .rows = 2,
                              .cols = COLS,
                              .data = codes,
                              .affine = {numbers[0], numbers[1], i % 2 ? SG_F16 : SG_BF16, widths[i / 4], i / 2 % 2 ? 32 : 64}};
        t.bytes = t.rows * t.cols * t.affine.bits / 8;
        for (size_t k = 0; k < t.bytes; k++) codes[k] = (uint8_t)next();
        for (size_t k = 0; k < sizeof numbers / 2; k++) {
            float v = 0.001f * (float)(1 + next() % 99);
            uint16_t h = i % 2 ? sg_f16_of_f32(v) : sg_bf16_of_f32(v);
            memcpy(numbers[k % 2] + k / 2 * 2, &h, 2);
        }
        compare_row(&t, 1, 1);
    }
}

/* What has no packed form. */
static void refused(void **unused)
{
    (void)unused;
    static const uint8_t file[4096];
    struct sg_tensor t = {.name = "w", .storage = SG_Q4_0, .rank = 2, .shape = {1, 576}, .rows = 1, .cols = 576, .data = file};
    struct ck_weight w;
    assert_false(cu_packed_shape(&t, &w)); /* not a multiple of 256 columns */
    t.cols = t.shape[1] = 512;
    assert_true(cu_packed_shape(&t, &w));
    t.storage = SG_Q8_0; /* has kernels of its own */
    assert_false(cu_packed_shape(&t, &w));
    t.storage = SG_AFFINE;
    t.affine = (struct sg_affine){file, file, SG_F32, 4, 64}; /* fp32 scales */
    assert_false(cu_packed_shape(&t, &w));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(blocks_equal), cmocka_unit_test(mlx_equal), cmocka_unit_test(refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
