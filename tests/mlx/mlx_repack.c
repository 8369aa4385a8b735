/* mlx_repack.c: Q4_0, Q4_1 and Q8_0 in MLX's affine form have exactly the values of the file, and a scale whose bias would exceed
 * fp16 is refused.
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "unit/mlx/mlxunit.h"

enum { COLS = 128, ROWS = 400 };

static uint32_t random_bits(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

/* Random codes; scales and minima are random finite fp16 numbers below 64, subnormal ones too. */
static void fill(uint8_t *row, enum sg_storage storage, uint32_t *seed)
{
    size_t block = sg_storage_info(storage)->bytes;
    for (size_t b = 0; b < COLS / 32; b++) {
        for (size_t i = 0; i < block; i++) row[b * block + i] = (uint8_t)random_bits(seed);
        for (size_t i = 0; i < (storage == SG_Q4_1 ? 2u : 1u); i++) {
            uint16_t half = (uint16_t)(random_bits(seed) % 0x5400u | (random_bits(seed) & 1u) << 15);
            row[b * block + 2 * i] = (uint8_t)half;
            row[b * block + 2 * i + 1] = (uint8_t)(half >> 8);
        }
    }
}

static void same_values(enum sg_storage storage, uint32_t bits)
{
    uint32_t seed = 7 + bits, codes[COLS * 8 / 32], per_word = 32 / bits;
    uint16_t scales[COLS / 32], biases[COLS / 32];
    uint8_t row[COLS / 32 * 34];
    float want[COLS], scale[COLS / 32], bias[COLS / 32];
    for (int r = 0; r < ROWS; r++) {
        fill(row, storage, &seed);
        sg_dequant_row(storage, row, COLS, want);
        assert_int_equal(mlx_repack_row(storage, row, COLS, codes, scales, biases), 1);
        sg_dequant_row(SG_F16, scales, COLS / 32, scale);
        sg_dequant_row(SG_F16, biases, COLS / 32, bias);
        for (uint32_t c = 0; c < COLS; c++) {
            uint32_t code = codes[c / per_word] >> (c % per_word * bits) & ((1u << bits) - 1);
            assert_true(scale[c / 32] * (float)code + bias[c / 32] == want[c]);
        }
    }
}

static void q4_0(void **unused) { (void)unused; same_values(SG_Q4_0, 4); }
static void q4_1(void **unused) { (void)unused; same_values(SG_Q4_1, 4); }
static void q8_0(void **unused) { (void)unused; same_values(SG_Q8_0, 8); }

static void large_scale(void **unused)
{
    uint8_t row[34] = {0x00, 0x78}; /* 2^15 */
    uint32_t codes[8];
    uint16_t scale, bias;
    (void)unused;
    assert_int_equal(mlx_repack_row(SG_Q4_0, row, 32, codes, &scale, &bias), 0);
    assert_int_equal(mlx_repack_row(SG_Q8_0, row, 32, codes, &scale, &bias), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(q4_0), cmocka_unit_test(q4_1), cmocka_unit_test(q8_0),
                                       cmocka_unit_test(large_scale)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
