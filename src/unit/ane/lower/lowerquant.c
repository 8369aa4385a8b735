/* lowerquant.c: see lowerquant.h. The forms are those of ios18, in which every block has its own palette or scale.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/lower/lowerquant.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/num.h"
#include "unit/ane/blob/compress.h"

enum { BLOCK = 32, PALETTE_ROWS = 32, NUMBERS_MIN = 4096 };  /* columns of a scale; rows of a palette; smallest matrix */
static const char *const names[] = {"fp16", "lut4", "lut6", "int8", "int4", "w8a8", "lut1", "lut2", "lut3", "lut8"};

segue_status sg_ane_storage_named(enum sg_ane_storage *out, const char *name, const char *object, segue_error *err)
{
    for (uint32_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i])) {
            *out = (enum sg_ane_storage)i;
            return SEGUE_OK;
        }
    return sg_fail(err, SEGUE_EARG, "%s: storage=%.40s; use fp16, lut1, lut2, lut3, lut4, lut6, lut8, int8, int4 or w8a8", object,
                   name);
}

const char *sg_ane_storage_name(enum sg_ane_storage storage) { return names[storage]; }

static int is_palette(const struct sg_ane_quant *q)
{
    return q->storage == SG_ANE_STORE_LUT4 || q->storage == SG_ANE_STORE_LUT6 || q->storage >= SG_ANE_STORE_LUT1;
}

/* int8 has a scale per row, unless the file has blocks of its own. */
int sg_ane_quant_of(struct sg_ane_quant *q, enum sg_ane_storage storage, uint64_t rows, uint64_t cols, enum sg_storage source)
{
    static const uint32_t bits[] = {16, 4, 6, 8, 4, 8, 1, 2, 3, 8};
    *q = (struct sg_ane_quant){.storage = storage, .rows = rows, .cols = cols, .groups = rows, .blocks = 1,
                               .bits = bits[storage]};
    if (storage == SG_ANE_STORE_FP16 || rows % BLOCK || cols % BLOCK || rows * cols < NUMBERS_MIN) return 0;
    if (is_palette(q)) q->groups = rows / PALETTE_ROWS;
    if (storage == SG_ANE_STORE_INT4 || (storage == SG_ANE_STORE_INT8 && source == SG_Q8_0)) q->blocks = cols / BLOCK;
    q->data_bytes = rows * cols * q->bits / 8;
    q->aux_bytes = 2 * q->groups * q->blocks * (is_palette(q) ? 1u << q->bits : 1);
    return 1;
}

enum sg_mil_dtype sg_ane_quant_type(const struct sg_ane_quant *q)
{
    static const enum sg_mil_dtype indices[] = {[1] = SG_MIL_UINT1, [2] = SG_MIL_UINT2, [3] = SG_MIL_UINT3,
                                                [4] = SG_MIL_UINT4, [6] = SG_MIL_UINT6, [8] = SG_MIL_UINT8};
    return is_palette(q) ? indices[q->bits] : q->bits == 8 ? SG_MIL_INT8 : SG_MIL_INT4;
}

/* 1: every number is a whole multiple, from low to high, of `step`. */
static int are_multiples(const float *in, uint64_t n, float step, float low, float high)
{
    for (uint64_t i = 0; i < n; i++) {
        float k = nearbyintf(in[i] / step);
        if (k < low || k > high || k * step != in[i]) return 0;
    }
    return 1;
}

/* The fp16 number of which all numbers of a block are multiples; 0: there is none. The number with the largest magnitude is
 * one of low to high times it. */
static float exact_step(const float *in, uint64_t n, float low, float high)
{
    float max = 0;
    for (uint64_t i = 0; i < n; i++)
        if (fabsf(in[i]) > fabsf(max)) max = in[i];
    if (max == 0) return 0;
    for (float k = low; k <= high; k++) {
        float step = k != 0 ? sg_f32_of_f16(sg_f16_of_f32(max / k)) : 0;
        if (step != 0 && fabsf(step) < 65504 && k * step == max && are_multiples(in, n, step, low, high)) return step;
    }
    return 0;
}

/* n numbers of one scale as q from `at` on. bits 8: -127 to 127; 4: -8 to 7, where the largest magnitude is -8 or 7 steps.
 * Returns the error that comes from the scale alone, whose fp16 form has few bits below 2^-14. */
static double put_block(const float *in, uint64_t n, uint32_t bits, uint64_t at, uint8_t *data, uint16_t *scale)
{
    const float low = bits == 8 ? -127 : -8, high = bits == 8 ? 127 : 7;
    float step = exact_step(in, n, low, high), max = 0;
    double size = 0;
    for (uint64_t i = 0; i < n; i++) {
        if (fabsf(in[i]) > fabsf(max)) max = in[i];
        size += (double)fabsf(in[i]);
    }
    if (step == 0) step = bits == 8 ? fabsf(max) / high : max / low; /* the sign makes the largest one -8 steps */
    *scale = sg_f16_of_f32(step);
    if ((*scale & 0x7fff) >= 0x7c00) *scale = (uint16_t)((*scale & 0x8000) | 0x7bff);
    const float wanted = step;
    step = sg_f32_of_f16(*scale);
    for (uint64_t i = 0; i < n; i++, at++) {
        float k = step != 0 ? nearbyintf(in[i] / step) : 0;
        int32_t v = (int32_t)(k < low ? low : k > high ? high : k);
        if (bits == 8)
            data[at] = (uint8_t)v;
        else
            data[at / 2] |= (uint8_t)((v & 15) << (at % 2 ? 4 : 0));
    }
    return wanted != 0 ? size * fabs((double)step / (double)wanted - 1) : size;
}

segue_status sg_ane_quant_put(const struct sg_ane_quant *q, uint64_t g, const float *in, uint8_t *data, uint16_t *aux,
                              double *error, segue_error *err)
{
    uint64_t rows = sg_ane_quant_rows(q), n = rows * q->cols, at = g * n;
    if (is_palette(q)) return sg_compress_palette(in, n, q->bits, aux + (g << q->bits), data + at * q->bits / 8, err);
    uint64_t each = q->cols / q->blocks;
    for (uint64_t k = 0; k < q->blocks; k++)
        *error += put_block(in + k * each, each, q->bits, at + k * each, data, &aux[g * q->blocks + k]);
    return SEGUE_OK;
}

uint32_t sg_ane_quant_decode(struct sg_mil_builder *b, const struct sg_ane_quant *q, const char *name, const char *path,
                             uint64_t data, uint64_t aux)
{
    int64_t dim[4] = {(int64_t)q->rows, (int64_t)q->cols, 1, 1};
    int64_t blocks[6] = {(int64_t)q->groups, (int64_t)q->blocks, 1, 1, 1 << q->bits, 1};
    char part[40];
    snprintf(part, sizeof part, "%s_q", name);
    uint32_t numbers = sg_mil_build_blob(b, part, sg_ane_quant_type(q), 4, dim, path, data);
    snprintf(part, sizeof part, "%s_s", name);
    if (q->storage == SG_ANE_STORE_W8A8) { /* one scale per row; engines recognize the operation in front of a product */
        uint32_t scale = sg_mil_build_blob(b, part, SG_MIL_FP16, 1, dim, path, aux);
        struct sg_mil_operand rows[3] = {{.name = "input", .value = numbers}, {.name = "scale", .value = scale},
                                         {.name = "axis", .value = sg_mil_build_int(b, 0)}};
        sg_mil_build_name(b, name);
        return sg_mil_build_op(b, "dequantize", rows, 3, 1);
    }
    uint32_t more = sg_mil_build_blob(b, part, SG_MIL_FP16, is_palette(q) ? 6 : 4, blocks, path, aux);
    struct sg_mil_operand args[2] = {{.name = is_palette(q) ? "indices" : "data", .value = numbers},
                                     {.name = is_palette(q) ? "lut" : "scale", .value = more}};
    sg_mil_build_name(b, name);
    return sg_mil_build_op(b, is_palette(q) ? "constexpr_lut_to_dense" : "constexpr_blockwise_shift_scale", args, 2, 1);
}
