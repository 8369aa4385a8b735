/* checkdata.c: random tensors in every storage.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "base/num.h"
#include "check.h"
#include "tensor/coded.h"

/* Where a block keeps fp16 scales; blocks whose bits mean something in any combination are filled with random
 * bytes. */
static const struct { enum sg_storage storage; uint32_t scales_n, scales[2]; } raw_blocks[] = {
    {SG_Q2_K, 2, {80, 82}}, {SG_Q3_K, 1, {108, 0}}, {SG_Q4_K, 2, {0, 2}},
    {SG_Q5_K, 2, {0, 2}},   {SG_Q6_K, 1, {208, 0}}, {SG_IQ4_NL, 1, {0, 0}},
    {SG_IQ2_XXS, 1, {0, 0}}, {SG_IQ2_XS, 1, {0, 0}}, {SG_IQ2_S, 1, {0, 0}}, {SG_IQ3_XXS, 1, {0, 0}}, {SG_IQ3_S, 1, {0, 0}},
    {SG_IQ1_S, 1, {0, 0}}, {SG_IQ4_XS, 1, {0, 0}}, {SG_TQ1_0, 1, {52, 0}}, {SG_TQ2_0, 1, {64, 0}},
};

/* Little-endian, as in the files. */
static void put_half(uint8_t *p, float x)
{
    uint16_t h = sg_f16_of_f32(x);
    p[0] = (uint8_t)(h & 0xff);
    p[1] = (uint8_t)(h >> 8);
}

static void put_single(uint8_t *p, float x)
{
    uint32_t bits = sg_bits_of_f32(x);
    for (int i = 0; i < 4; i++) p[i] = (uint8_t)(bits >> 8 * i);
}

/* Random bits, then scales that keep the numbers near `scale`. */
static void fill_raw(struct check_rng *r, enum sg_storage storage, uint8_t *data, size_t bytes, float scale)
{
    size_t block = sg_storage_info(storage)->bytes;
    for (size_t i = 0; i < bytes; i++) data[i] = (uint8_t)check_next(r);
    for (size_t at = 0; at + block <= bytes; at += block) {
        if (storage == SG_MXFP4) data[at] = (uint8_t)check_between(r, 117, 122);
        if (storage == SG_Q8_K) put_single(data + at, scale * 0.01f * (1.5f + check_uniform(r)));
        for (size_t k = 0; storage == SG_NVFP4 && k < 4; k++) data[at + k] = (uint8_t)check_between(r, 0x08, 0x20);
        uint16_t d = sg_f16_of_f32(scale * 0.01f * (1.5f + check_uniform(r)));
        for (size_t k = 0; storage == SG_IQ1_M && k < 4; k++) /* the scale is spread over the upper bits of four words */
            data[at + 49 + 2 * k] = (uint8_t)((data[at + 49 + 2 * k] & 15) | (d >> (4 * k) & 15) << 4);
        for (size_t k = 0; k < sizeof raw_blocks / sizeof *raw_blocks; k++)
            for (uint32_t s = 0; raw_blocks[k].storage == storage && s < raw_blocks[k].scales_n; s++)
                put_half(data + at + raw_blocks[k].scales[s], scale * 0.002f * (1.5f + check_uniform(r)));
    }
}

/* MLX groups: bits from 2 to 8, offsets that centre the numbers. */
static void fill_affine(struct sg_arena *arena, struct check_rng *r, struct sg_tensor *t, float scale)
{
    static const uint32_t widths[] = {2, 3, 4, 5, 6, 8};
    struct sg_affine *a = &t->affine;
    a->bits = widths[check_below(r, 6)];
    a->group = t->cols % 64 || check_below(r, 2) ? 32 : 64;
    a->storage = SG_F16;
    size_t groups = t->rows * (t->cols / a->group);
    uint8_t *scales = sg_arena_alloc(arena, groups * 2), *biases = sg_arena_alloc(arena, groups * 2);
    uint8_t *data = sg_arena_alloc(arena, t->rows * t->cols * a->bits / 8);
    t->bytes = t->rows * t->cols * a->bits / 8;
    for (size_t i = 0; i < t->bytes; i++) data[i] = (uint8_t)check_next(r);
    for (size_t i = 0; i < groups; i++) {
        float step = scale * 4 / (float)(1u << a->bits) * (1.25f + 0.75f * check_uniform(r));
        put_half(scales + 2 * i, step);
        put_half(biases + 2 * i, -step * (float)(1u << a->bits) / 2);
    }
    a->scales = scales;
    a->biases = biases;
    t->data = data;
}

/* llama2.c: int8 and one fp32 scale per 32. */
static void fill_groups(struct sg_arena *arena, struct check_rng *r, struct sg_tensor *t, float scale)
{
    size_t n = t->rows * t->cols;
    uint8_t *data = sg_arena_alloc(arena, n);
    t->affine.group = 32;
    float *scales = sg_arena_alloc(arena, n / 32 * sizeof *scales);
    for (size_t i = 0; i < n; i++) data[i] = (uint8_t)check_next(r);
    for (size_t i = 0; i < n / 32; i++) scales[i] = scale * 0.015f * (1.5f + check_uniform(r));
    t->affine.scales = scales;
    t->bytes = n;
    t->data = data;
}

/* The quantisers that files come from; AWQ packs eight rows into a word. */
static const struct { enum sg_storage scales; uint32_t bits; struct sg_coded c; } coded_forms[] = {
    {SG_F16, 4, {.layout = SG_CODES_AWQ, .zeros = SG_ZEROS_PACKED, .round = SG_F16}},
    {SG_F16, 4, {.layout = SG_CODES_GPTQ, .zeros = SG_ZEROS_PACKED, .zero = 1, .round = SG_F16}},
    {SG_F16, 8, {.layout = SG_CODES_GPTQ, .zeros = SG_ZEROS_FIXED, .zero = 128, .round = SG_F32}},
    {SG_BF16, 4, {.zeros = SG_ZEROS_FIXED, .zero = 8, .round = SG_F32}},
    {SG_F32, 8, {.code = SG_CODE_INT8, .zeros = SG_ZEROS_FIXED, .round = SG_F32}},
    {SG_F32, 4, {.code = SG_CODE_E2M1, .zeros = SG_ZEROS_FIXED, .round = SG_F32}},
    {SG_F32, 8, {.code = SG_CODE_E4M3, .zeros = SG_ZEROS_FIXED, .scale_rows = 2, .round = SG_F32}},
};

/* Codes with separate scales and zeros. */
static void fill_coded(struct sg_arena *arena, struct check_rng *r, struct sg_tensor *t, float scale)
{
    static const float largest[SG_CODE_N] = {1, 128, 6, 448};
    uint32_t form = check_below(r, sizeof coded_forms / sizeof *coded_forms);
    uint64_t bytes[4];
    if (!form && t->rows % 8) form = 3;
    t->coded = coded_forms[form].c;
    t->coded.divisor = 1;
    if (!t->coded.scale_rows) t->coded.scale_rows = 1;
    t->affine = (struct sg_affine){.bits = coded_forms[form].bits, .storage = coded_forms[form].scales,
                                   .group = t->cols % 64 || check_below(r, 2) ? 32 : 64};
    sg_coded_extent(t, bytes);
    uint8_t *data = sg_arena_alloc(arena, bytes[0] + 64), *scales = sg_arena_alloc(arena, bytes[1] + 64);
    uint8_t *zeros = sg_arena_alloc(arena, bytes[2] + 64);
    for (size_t i = 0; i < bytes[0]; i++) {
        data[i] = (uint8_t)check_next(r);
        if (t->coded.code == SG_CODE_E4M3) data[i] &= 0xbf; /* magnitudes below 2, so never NaN */
    }
    for (size_t i = 0; i < bytes[2]; i++) zeros[i] = (uint8_t)(t->affine.bits == 4 ? 0x77 : check_next(r));
    float step = t->coded.code == SG_CODE_UINT ? 4 / (float)(1u << t->affine.bits) : 2 / largest[t->coded.code];
    if (t->coded.code == SG_CODE_E4M3) step = 1;
    for (size_t i = 0; i < bytes[1]; i += t->affine.storage == SG_F32 ? 4 : 2) {
        float x = scale * step * (1.25f + 0.75f * check_uniform(r));
        if (t->affine.storage == SG_F32) put_single(scales + i, x);
        else if (t->affine.storage == SG_F16) put_half(scales + i, x);
        else memcpy(scales + i, &(uint16_t){sg_bf16_of_f32(x)}, 2);
    }
    t->affine.scales = scales;
    t->affine.biases = zeros;
    t->bytes = bytes[0];
    t->data = data;
}

enum { QUANTISED_ROWS = 48 };

/* Rows behind the first QUANTISED_ROWS take blocks of those at random: quantising takes longer than what is checked. */
static void fill_from_first(struct check_rng *r, uint8_t *data, uint64_t rows, uint64_t row, uint64_t blocks)
{
    uint64_t bytes = row / blocks;
    for (uint64_t i = QUANTISED_ROWS; i < rows; i++)
        for (uint64_t b = 0; b < blocks; b++) {
            uint64_t from = check_below(r, (uint32_t)(QUANTISED_ROWS * blocks));
            memcpy(data + i * row + b * bytes, data + from * bytes, bytes);
        }
}

/* Quantised from normal numbers where the library can, else random blocks. */
static void fill_rows(struct sg_arena *arena, struct check_rng *r, struct sg_tensor *t, float scale)
{
    uint64_t cols = t->transposed ? t->rows : t->cols, rows = t->transposed ? t->cols : t->rows, row = 0;
    uint32_t block = sg_storage_info(t->storage)->block;
    int pieced = block > 1 && rows > QUANTISED_ROWS;
    sg_storage_row_bytes(t->storage, cols, &row, NULL);
    uint8_t *data = sg_arena_alloc(arena, rows * row + 64);
    float *x = sg_arena_alloc(arena, cols * sizeof *x);
    t->data = data;
    t->bytes = rows * row;
    for (uint64_t i = 0; i < (pieced ? QUANTISED_ROWS : rows); i++) {
        check_fill(r, x, cols, CHECK_NORMAL, scale);
        if (sg_quant_row(t->storage, x, NULL, cols, data + i * row, NULL) != SEGUE_OK) {
            fill_raw(r, t->storage, data, t->bytes, scale);
            return;
        }
    }
    if (pieced) fill_from_first(r, data, rows, row, cols / block);
}

/* Of plain numbers or of blocks, as wide as they may be. */
static void make_fp8(struct sg_arena *arena, struct check_rng *r, struct sg_tensor *t, float scale)
{
    static const enum sg_storage of[] = {SG_F32, SG_F16, SG_BF16, SG_Q8_0, SG_Q4_K};
    uint32_t n = t->cols % 256 == 0 ? 5 : t->cols % 32 == 0 ? 4 : 3;
    *t = sg_tensor_fp8(check_tensor(arena, r, of[check_below(r, n)], (uint32_t)t->rows, (uint32_t)t->cols, scale, t->name));
}

struct sg_tensor *check_tensor(struct sg_arena *arena, struct check_rng *r, enum sg_storage storage,
                               uint32_t rows, uint32_t cols, float scale, const char *name)
{
    struct sg_tensor *t = sg_arena_alloc(arena, sizeof *t);
    *t = (struct sg_tensor){.name = name, .storage = storage, .rank = 2, .shape = {rows, cols}, .rows = rows,
                            .cols = cols};
    if (storage == SG_FP8) {
        make_fp8(arena, r, t, scale);
        return t;
    }
    if (storage == SG_AFFINE) {
        fill_affine(arena, r, t, scale);
        return t;
    }
    if (storage == SG_CODED) {
        fill_coded(arena, r, t, scale);
        return t;
    }
    if (storage == SG_Q8_GROUP) {
        fill_groups(arena, r, t, scale);
        return t;
    }
    int plain = storage == SG_F32 || storage == SG_F16 || storage == SG_BF16;
    if (plain && check_below(r, 4) == 0) t->transposed = 1;
    else if (rows % 4 == 0 && check_below(r, 3) == 0) t->row_perm = (struct sg_perm){2, rows / 4, 1, 0};
    fill_rows(arena, r, t, scale);
    return t;
}

struct sg_tensor *check_vector(struct sg_arena *arena, struct check_rng *r, uint32_t n, float mean,
                               float scale, const char *name)
{
    struct sg_tensor *t = sg_arena_alloc(arena, sizeof *t);
    float *x = sg_arena_alloc(arena, n * sizeof *x);
    for (uint32_t i = 0; i < n; i++) x[i] = mean + scale * check_normal(r);
    *t = (struct sg_tensor){.name = name, .storage = SG_F32, .rank = 1, .shape = {n}, .rows = 1, .cols = n,
                            .data = (const uint8_t *)x, .bytes = n * sizeof *x};
    return t;
}
