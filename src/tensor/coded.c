/* coded.c: codes with separate scales and zeros, as the quantisers of PyTorch and MLX write them. The layouts follow the
 * packing code of AutoAWQ, AutoGPTQ, compressed-tensors and MLX; the tests compare with decoders in NumPy and with MLX itself.
 * SPDX-License-Identifier: MIT */
#include "tensor/coded.h"

#include <math.h>
#include <string.h>

#include "base/num.h"

static uint64_t ceil_div(uint64_t n, uint64_t by) { return n / by + (n % by != 0); }

static uint64_t groups_of(const struct sg_tensor *t) { return ceil_div(t->cols, t->affine.group); }

/* Bytes per scale; 0: not a type of scales. */
static uint32_t scale_size(enum sg_storage s)
{
    return s == SG_F32 ? 4 : s == SG_F16 || s == SG_BF16 ? 2 : s == SG_F8_E4M3 || s == SG_U8 ? 1 : 0;
}

const char *sg_coded_fault(const struct sg_tensor *t)
{
    const struct sg_coded *c = &t->coded;
    uint32_t bits = t->affine.bits;
    if (c->code >= SG_CODE_N || c->layout >= SG_CODES_N || c->zeros >= SG_ZEROS_N) return "unknown layout of codes";
    if (bits != 2 && bits != 4 && bits != 8) return "only codes of 2, 4 or 8 bits are supported";
    if ((c->code == SG_CODE_E2M1 && bits != 4) || ((c->code == SG_CODE_E4M3 || c->code == SG_CODE_INT8) && bits != 8))
        return "the codes have another number of bits";
    if (c->layout != SG_CODES_ROWS && c->code != SG_CODE_UINT) return "unknown layout of codes";
    if (c->layout == SG_CODES_AWQ && bits != 4) return "only 4 bits are supported in this layout";
    if (!t->affine.group || !c->scale_rows || !scale_size(t->affine.storage)) return "invalid quantisation groups";
    if (c->round != SG_F32 && c->round != SG_F16 && c->round != SG_BF16) return "unknown rounding";
    if (!isfinite(c->divisor) || c->divisor == 0) return "the global scale is 0 or not finite";
    if (c->zero < -256 || c->zero > 256) return "the zero is out of range";
    if ((c->layout == SG_CODES_AWQ ? t->rows : t->cols) * bits % (c->layout == SG_CODES_ROWS ? 8 : 32))
        return "the codes do not fill whole words";
    return NULL;
}

void sg_coded_extent(const struct sg_tensor *t, uint64_t bytes[4])
{
    const struct sg_coded *c = &t->coded;
    uint64_t groups = groups_of(t), scales = (c->layout == SG_CODES_ROWS ? ceil_div(t->rows, c->scale_rows) : t->rows) * groups;
    bytes[0] = t->rows * t->cols * t->affine.bits / 8;
    bytes[1] = scales * scale_size(t->affine.storage);
    bytes[2] = c->zeros == SG_ZEROS_PACKED ? ceil_div(t->rows * t->affine.bits, 32) * 4 * groups
               : c->zeros == SG_ZEROS_INT8 ? scales
                                           : 0;
    bytes[3] = c->order ? t->cols * 4 : 0;
}

uint32_t sg_coded_regions(const struct sg_tensor *t, struct sg_region out[SG_REGIONS])
{
    const void *const at[4] = {t->data, t->affine.scales, t->affine.biases, t->coded.order};
    uint64_t bytes[4];
    uint32_t n = 0;
    sg_coded_extent(t, bytes);
    for (int i = 0; i < 4; i++)
        if (bytes[i] || !i) out[n++] = (struct sg_region){at[i], bytes[i]};
    return n;
}

uint64_t sg_coded_key(const struct sg_tensor *t)
{
    const struct sg_coded *c = &t->coded;
    const uint32_t words[] = {c->code, c->layout, c->zeros, c->scale_rows, (uint32_t)c->zero, c->round,
                              sg_bits_of_f32(c->divisor), c->order != NULL};
    uint64_t h = 0;
    if (t->storage != SG_CODED) return 0;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) h = (h ^ words[i]) * 0x100000001b3u + 1;
    return h;
}

/* --- numbers --- */

/* 2^(e - 127), exact down to subnormal numbers; 255 is NaN. */
static float power_of_two(uint8_t e)
{
    if (e == 255) return sg_f32_of_bits(0x7fc00000u);
    return sg_f32_of_bits(e ? (uint32_t)e << 23 : 0x00400000u);
}

static float scale_at(const struct sg_tensor *t, uint64_t row, uint64_t g)
{
    const struct sg_coded *c = &t->coded;
    uint64_t i = c->layout == SG_CODES_ROWS ? row / c->scale_rows * groups_of(t) + g : g * t->rows + row;
    const uint8_t *p = (const uint8_t *)t->affine.scales + i * scale_size(t->affine.storage);
    float scale = t->affine.storage == SG_F32    ? sg_f32_of_bits(sg_le32(p))
                  : t->affine.storage == SG_F16  ? sg_f32_of_f16(sg_le16(p))
                  : t->affine.storage == SG_BF16 ? sg_f32_of_bf16(sg_le16(p))
                  : t->affine.storage == SG_U8   ? power_of_two(*p)
                                                 : sg_f32_of_e4m3(*p);
    return scale / c->divisor;
}

/* Position of code i within a word of AWQ. */
static uint32_t awq_place(uint64_t i)
{
    static const uint8_t place[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    return place[i % 8];
}

static int32_t zero_at(const struct sg_tensor *t, uint64_t row, uint64_t g)
{
    const struct sg_coded *c = &t->coded;
    uint32_t bits = t->affine.bits, per = 32 / bits;
    const uint8_t *p = t->affine.biases;
    if (c->zeros == SG_ZEROS_FIXED) return c->zero;
    if (c->zeros == SG_ZEROS_INT8) return (int8_t)p[row / c->scale_rows * groups_of(t) + g] + c->zero;
    uint64_t words = ceil_div(t->rows * bits, 32), word = row / per;
    uint32_t place = c->layout == SG_CODES_AWQ ? awq_place(row) : (uint32_t)(row % per);
    uint32_t w = sg_le32(p + 4 * (c->layout == SG_CODES_ROWS ? word * groups_of(t) + g : g * words + word));
    return (int32_t)(((w >> place * bits) + (uint32_t)c->zero) & ((1u << bits) - 1));
}

/* The n codes from column `from` on as unsigned bits. */
static void read_bits(const struct sg_tensor *t, uint64_t row, uint64_t from, uint64_t n, uint8_t *q)
{
    uint32_t bits = t->affine.bits, mask = (1u << bits) - 1;
    const uint8_t *p = t->data;
    if (t->coded.layout == SG_CODES_ROWS) {
        p += row * (t->cols * bits / 8);
        for (uint64_t i = 0, at = from * bits; i < n; i++, at += bits) q[i] = (uint8_t)(p[at / 8] >> at % 8 & mask);
    } else if (t->coded.layout == SG_CODES_GPTQ) {
        uint32_t per = 32 / bits;
        for (uint64_t i = 0; i < n; i++)
            q[i] = (uint8_t)(sg_le32(p + 4 * ((from + i) / per * t->rows + row)) >> (from + i) % per * bits & mask);
    } else {
        uint32_t shift = 4 * awq_place(row);
        p += 4 * (row / 8);
        for (uint64_t i = 0; i < n; i++) q[i] = (uint8_t)(sg_le32(p + 4 * ((from + i) * (t->rows / 8))) >> shift & mask);
    }
}

/* Twice the numbers of E2M1. */
static const int8_t fp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

static float code_value(uint32_t code, uint8_t q)
{
    switch (code) {
    case SG_CODE_INT8: return (float)(int8_t)q;
    case SG_CODE_E2M1: return 0.5f * (float)fp4[q & 15];
    case SG_CODE_E4M3: return sg_f32_of_e4m3(q);
    default: return (float)q;
    }
}

/* The group of a column. The order is in a mapped file, which may have changed since it was checked. */
static uint64_t group_of(const struct sg_tensor *t, uint64_t col)
{
    if (!t->coded.order) return col / t->affine.group;
    uint64_t g = sg_le32((const uint8_t *)t->coded.order + 4 * col), n = groups_of(t);
    return g < n ? g : n - 1;
}

void sg_coded_row(const struct sg_tensor *t, uint64_t row, uint64_t from, uint64_t n, float *out)
{
    enum { RUN = 64 };
    uint8_t q[RUN];
    uint64_t have = UINT64_MAX;
    float scale = 0, zero = 0;
    for (uint64_t done = 0; done < n; done += RUN) {
        uint64_t count = n - done < RUN ? n - done : RUN;
        read_bits(t, row, from + done, count, q);
        for (uint64_t i = 0; i < count; i++) {
            uint64_t g = group_of(t, from + done + i);
            if (g != have) scale = scale_at(t, row, g), zero = (float)zero_at(t, row, g);
            have = g;
            float v = (code_value(t->coded.code, q[i]) - zero) * scale;
            if (t->coded.round == SG_BF16) v = sg_f32_of_bf16(sg_bf16_of_f32(v));
            if (t->coded.round == SG_F16) v = sg_f32_of_f16(sg_f16_of_f32(v));
            out[done + i] = v;
        }
    }
}

int sg_coded_finite(const struct sg_tensor *t, uint64_t row)
{
    for (uint64_t g = 0, n = groups_of(t); g < n; g++)
        if (!isfinite(scale_at(t, row, g))) return 0;
    if (t->coded.code != SG_CODE_E4M3) return 1;
    const uint8_t *p = t->data + row * t->cols;
    for (uint64_t i = 0; i < t->cols; i++)
        if ((p[i] & 0x7f) == 0x7f) return 0;
    return 1;
}

uint32_t sg_coded_uniform(const struct sg_tensor *t)
{
    const struct sg_coded *c = &t->coded;
    uint32_t group = t->affine.group;
    if (c->code == SG_CODE_E4M3 || c->round != SG_F32 || c->order || t->cols % 32) return 0;
    return group % 32 == 0 || group >= t->cols ? 32 : group % 16 == 0 ? 16 : 0;
}

void sg_coded_block(const struct sg_tensor *t, uint64_t row, uint64_t col, uint8_t q[32], float d[2], float m[2])
{
    read_bits(t, row, col, 32, q);
    for (uint32_t h = 0; h < 2; h++) {
        uint64_t g = group_of(t, col + 16 * h);
        float scale = scale_at(t, row, g), offset = -(float)zero_at(t, row, g);
        if (t->coded.code == SG_CODE_E2M1) scale *= 0.5f, offset = -12;
        if (t->coded.code == SG_CODE_INT8) offset -= 128;
        d[h] = scale;
        m[h] = offset * scale;
    }
    for (uint32_t i = 0; i < 32; i++) {
        if (t->coded.code == SG_CODE_E2M1) q[i] = (uint8_t)(fp4[q[i] & 15] + 12);
        if (t->coded.code == SG_CODE_INT8) q[i] ^= 0x80;
    }
}
