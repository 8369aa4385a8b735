/* blocks.c: reads 32 columns of a stored row as integers with scale and offset, one function per
 * storage format. The formats are specified by the decoders in src/tensor/quant.c; here the integers
 * are kept as they are instead of being multiplied out.
 * SPDX-License-Identifier: MIT */
#include "unit/cpu/blocks.h"

#include <string.h>

#include "base/num.h"
#include "tensor/coded.h"

static float f16_at(const uint8_t *p) { return sg_f32_of_f16(sg_le16(p)); }

/* One scale and offset for all 32 columns, in fp32. */
static void set_dm(struct sg_block32 *o, float d, float m)
{
    o->d[0] = o->d[1] = d;
    o->m[0] = o->m[1] = m;
}

/* One scale and offset as the fp16 bits of the file; m NULL: the offset follows from d. */
static void set_half_dm(struct sg_block32 *o, const uint8_t *d, const uint8_t *m)
{
    o->half_d = sg_le16(d);
    o->half_m = m ? sg_le16(m) : 0;
}

/* 16 bytes -> 32 numbers: low nibbles are columns 0-15, high nibbles 16-31. */
static void read_nibbles(const uint8_t *qs, uint8_t *q)
{
    for (int i = 0; i < 16; i++) {
        q[i] = qs[i] & 15;
        q[i + 16] = qs[i] >> 4;
    }
}

/* Nibbles plus a fifth bit from a bit mask; `add` moves a signed range to unsigned bytes. */
static void read_5bit(const uint8_t *qs, const uint8_t *high, uint8_t add, uint8_t *q)
{
    uint32_t h = sg_le32(high);
    read_nibbles(qs, q);
    for (int i = 0; i < 32; i++) q[i] = (uint8_t)((q[i] | (h >> i & 1u) << 4) + add);
}

/* Nibbles mapped through a table of 16 signed values; `add` makes them unsigned. */
static void read_lut(const uint8_t *qs, const int8_t *table, uint8_t add, uint8_t *q)
{
    read_nibbles(qs, q);
    for (int i = 0; i < 32; i++) q[i] = (uint8_t)(table[q[i]] + add);
}

/* 6-bit scale and minimum j of Q4_K and Q5_K, packed in 12 bytes. Values 0-3 are the low 6 bits of
 * bytes 0-7. Values 4-7 have their low 4 bits in bytes 8-11 and their high 2 bits in the top bits of
 * bytes 0-7. */
static void q4_k_scale(const uint8_t *s, uint32_t j, uint32_t *scale, uint32_t *min)
{
    if (j < 4) {
        *scale = s[j] & 63u;
        *min = s[j + 4] & 63u;
    } else {
        *scale = (s[j + 4] & 15u) | (uint32_t)(s[j - 4] >> 6) << 4;
        *min = (uint32_t)(s[j + 4] >> 4) | (uint32_t)(s[j] >> 6) << 4;
    }
}

/* Sub-block `at` (of 8) of Q4_K or Q5_K. Keeps the fp16 super-scales and the 6-bit scales, and also
 * multiplies them out. */
static void read_q4_k(const uint8_t *b, uint32_t at, struct sg_block32 *o, int five)
{
    uint32_t scale, min;
    q4_k_scale(b + 4, at, &scale, &min);
    set_half_dm(o, b, b + 2);
    o->scale[0] = (uint8_t)scale;
    o->min = (uint8_t)min;
    set_dm(o, f16_at(b) * (float)scale, -(f16_at(b + 2) * (float)min));
    /* two sub-blocks share 32 bytes: low nibbles and high nibbles */
    const uint8_t *qs = b + (five ? 48 : 16) + at / 2 * 32, *high = b + 16;
    for (int i = 0; i < 32; i++) {
        uint32_t q = at % 2 ? qs[i] >> 4 : qs[i] & 15u;
        if (five) q |= (uint32_t)(high[i] >> at & 1u) << 4;
        o->q[i] = (uint8_t)q;
    }
}

/* Sub-block `at` of Q6_K: two scales of 16 columns, q - 32. */
static void read_q6_k(const uint8_t *b, uint32_t at, struct sg_block32 *o)
{
    uint32_t half = at / 4, part = at % 4;           /* 128 columns: low 4 bits in 64 bytes, high 2 bits in 32 */
    const uint8_t *low = b + half * 64 + part % 2 * 32, *high = b + 128 + half * 32;
    for (int i = 0; i < 32; i++)
        o->q[i] = (uint8_t)((part < 2 ? low[i] & 15 : low[i] >> 4) | (high[i] >> 2 * part & 3) << 4);
    set_half_dm(o, b + 208, NULL);
    for (uint32_t h = 0; h < 2; h++) {
        o->scale[h] = b[192 + at * 2 + h];
        o->d[h] = f16_at(b + 208) * (float)(int8_t)o->scale[h];
        o->m[h] = -32.0f * o->d[h];
    }
}

/* Sub-block `at` of Q2_K: a 4-bit scale and a 4-bit minimum per 16 columns. */
static void read_q2_k(const uint8_t *b, uint32_t at, struct sg_block32 *o)
{
    const uint8_t *qs = b + 16 + at / 4 * 32;
    for (int i = 0; i < 32; i++) o->q[i] = qs[i] >> 2 * (at % 4) & 3;
    for (uint32_t h = 0; h < 2; h++) {
        uint8_t s = b[at * 2 + h];
        o->d[h] = f16_at(b + 80) * (float)(s & 15);
        o->m[h] = -(f16_at(b + 82) * (float)(s >> 4));
    }
}

/* Sub-block `at` of Q3_K: the third bit comes from a mask, the 6-bit scales are split over 12 bytes,
 * offset 32. */
static void read_q3_k(const uint8_t *b, uint32_t at, struct sg_block32 *o)
{
    const uint8_t *mask = b, *qs = b + 32 + at / 4 * 32, *s = b + 96;
    for (int i = 0; i < 32; i++) o->q[i] = (uint8_t)((qs[i] >> 2 * (at % 4) & 3) | (mask[i] >> at & 1) << 2);
    for (uint32_t h = 0; h < 2; h++) {
        uint32_t j = at * 2 + h, low = j < 8 ? s[j] & 15u : s[j - 8] >> 4,
                 high = s[8 + j % 4] >> 2 * (j / 4) & 3u;
        o->d[h] = f16_at(b + 108) * (float)((int)(low | high << 4) - 32);
        o->m[h] = -4.0f * o->d[h];
    }
}

/* 2^(e - 127) / 2, exact down to subnormal numbers; 255 is NaN. */
static float e8m0_half(uint8_t e)
{
    if (e == 255) return sg_f32_of_bits(0x7fc00000u);
    return e < 2 ? sg_f32_of_bits(0x00200000u << e) : sg_f32_of_bits((uint32_t)(e - 1) << 23);
}

/* Number i of an f32, f16 or bf16 array. */
static float load_scalar(const void *base, enum sg_storage s, uint64_t i)
{
    const uint8_t *p = base;
    return s == SG_F32   ? sg_f32_of_bits(sg_le32(p + 4 * i))
           : s == SG_F16 ? f16_at(p + 2 * i)
                         : sg_f32_of_bf16(sg_le16(p + 2 * i));
}

/* MLX affine: groups of unsigned integers of 2 to 8 bits with a scale and a bias per group; may cross
 * byte boundaries. */
static void read_affine(const struct sg_tensor *t, uint64_t row, uint64_t at, struct sg_block32 *o)
{
    const struct sg_affine *a = &t->affine;
    uint64_t row_bytes = t->cols * a->bits / 8, bit = at * 32 * a->bits,
             group = row * (t->cols / a->group) + at * 32 / a->group;
    const uint8_t *p = t->data + row * row_bytes + bit / 8; /* 32 numbers start at a byte boundary for any bit width */
    for (uint32_t i = 0; i < 32; i++) {
        /* a number can cross a byte boundary */
        uint32_t from = i * a->bits, word = p[from / 8];
        if (from % 8 + a->bits > 8) word |= (uint32_t)p[from / 8 + 1] << 8;
        o->q[i] = (uint8_t)(word >> from % 8 & ((1u << a->bits) - 1u));
    }
    set_dm(o, load_scalar(a->scales, a->storage, group), load_scalar(a->biases, a->storage, group));
    if (a->storage == SG_F16)
        set_half_dm(o, (const uint8_t *)a->scales + 2 * group, (const uint8_t *)a->biases + 2 * group);
}

/* Columns 32 * at to 32 * at + 31 of a block of a type of iquant.c: codes from -128 become unsigned. */
static void read_iquant(enum sg_storage s, const uint8_t *b, uint32_t at, struct sg_block32 *o)
{
    int8_t q[256];
    float scale[16];
    if (!sg_iquant_block(s, b, q, scale)) {
        memset(o, 0, sizeof *o);
        return;
    }
    for (uint32_t i = 0; i < 32; i++) o->q[i] = (uint8_t)(q[32 * at + i] + 128);
    for (uint32_t h = 0; h < 2; h++) {
        o->d[h] = scale[2 * at + h];
        o->m[h] = -128.0f * o->d[h];
    }
}

/* Numbers without a form as integers have the precision that their quantiser's decoder returns. */
static enum sg_pack coded_kind(const struct sg_tensor *t)
{
    switch (sg_coded_uniform(t)) {
    case 32: return t->coded.code == SG_CODE_UINT && t->affine.bits <= 4 ? SG_PACK_Q4F : SG_PACK_Q8F;
    case 16: return SG_PACK_Q8H;
    default: return t->coded.round == SG_BF16 ? SG_PACK_BF16 : t->coded.round == SG_F16 ? SG_PACK_F16 : SG_PACK_F32;
    }
}

enum sg_pack sg_block_kind(const struct sg_tensor *t)
{
    switch (t->storage) {
    case SG_F16: return SG_PACK_F16;
    case SG_BF16:
    case SG_FP8: return SG_PACK_BF16; /* exact: the scales are powers of two */
    case SG_Q4_0: return SG_PACK_Q4;
    case SG_Q4_1: return SG_PACK_Q4M;
    case SG_Q5_0:
    case SG_Q8_0:
    case SG_IQ4_NL: return SG_PACK_Q8;
    case SG_Q4_K: return SG_PACK_Q4K;
    case SG_Q6_K: return SG_PACK_Q6K;
    case SG_Q5_1:
    case SG_Q5_K:
    case SG_MXFP4:
    case SG_IQ2_XXS:
    case SG_IQ3_XXS:
    case SG_IQ3_S:
    case SG_IQ1_S:
    case SG_IQ4_XS:
    case SG_TQ1_0:
    case SG_TQ2_0:
    case SG_Q8_K: return SG_PACK_Q8F;
    case SG_Q2_K:
    case SG_Q3_K:
    case SG_IQ2_XS:
    case SG_IQ2_S:
    case SG_IQ1_M:
    case SG_NVFP4: return SG_PACK_Q8H;
    case SG_AFFINE:
        return t->affine.group % 32 || t->cols % 32 ? SG_PACK_F32
               : t->affine.bits <= 4                ? (t->affine.storage == SG_F16 ? SG_PACK_Q4M : SG_PACK_Q4F)
                                                    : SG_PACK_Q8F;
    case SG_CODED: return coded_kind(t);
    case SG_Q8_GROUP: return t->affine.group % 32 || t->cols % 32 ? SG_PACK_F32 : SG_PACK_Q8F;
    default: return SG_PACK_F32;
    }
}

/* Signed bytes with one fp32 scale for affine.group columns: q + 128 is unsigned, so the minimum is -128 d. */
static void read_q8_group(const struct sg_tensor *t, uint64_t row, uint64_t at, struct sg_block32 *o)
{
    const int8_t *q = (const int8_t *)t->data + row * t->cols + at * 32;
    float d = load_scalar(t->affine.scales, SG_F32, (row * t->cols + at * 32) / t->affine.group);
    for (int i = 0; i < 32; i++) o->q[i] = (uint8_t)(q[i] + 128);
    set_dm(o, d, -128.0f * d);
}

/* 32 columns of a GGUF block at b; sub: which of the block's runs of 32 columns. */
static void read_file_block(enum sg_storage storage, const uint8_t *b, uint32_t sub, struct sg_block32 *o)
{
    static const int8_t iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    static const int8_t fp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    switch (storage) {
    case SG_Q4_0:
        set_half_dm(o, b, NULL);
        read_nibbles(b + 2, o->q);
        break;
    case SG_Q4_1:
        set_half_dm(o, b, b + 2);
        read_nibbles(b + 4, o->q);
        break;
    case SG_Q5_0:
        set_half_dm(o, b, NULL);
        read_5bit(b + 6, b + 2, 128 - 16, o->q);
        break;
    case SG_Q5_1:
        set_dm(o, f16_at(b), f16_at(b + 2));
        read_5bit(b + 8, b + 4, 0, o->q);
        break;
    /* signed bytes become unsigned: q + 128 */
    case SG_Q8_0:
        set_half_dm(o, b, NULL);
        for (int i = 0; i < 32; i++) o->q[i] = b[2 + i] ^ 0x80;
        break;
    case SG_IQ4_NL:
        set_half_dm(o, b, NULL);
        read_lut(b + 2, iq4, 128, o->q);
        break;
    /* the table holds twice the fp4 values, so the scale is halved */
    case SG_MXFP4:
        set_dm(o, e8m0_half(b[0]), -12.0f * e8m0_half(b[0]));
        read_lut(b + 1, fp4, 12, o->q);
        break;
    case SG_Q4_K: read_q4_k(b, sub, o, 0); break;
    case SG_Q5_K: read_q4_k(b, sub, o, 1); break;
    case SG_Q6_K: read_q6_k(b, sub, o); break;
    case SG_Q2_K: read_q2_k(b, sub, o); break;
    case SG_Q3_K: read_q3_k(b, sub, o); break;
    /* formats that are packed as float are not read here */
    default: read_iquant(storage, b, sub, o); break;
    }
}

void sg_block_read(const struct sg_tensor *t, uint64_t row, uint64_t at, struct sg_block32 *o)
{
    const struct sg_storage_info *info = sg_storage_info(t->storage);
    if (t->storage == SG_AFFINE) {
        read_affine(t, row, at, o);
        return;
    }
    if (t->storage == SG_CODED) {
        sg_coded_block(t, row, at * 32, o->q, o->d, o->m);
        return;
    }
    if (t->storage == SG_Q8_GROUP) {
        read_q8_group(t, row, at, o);
        return;
    }
    /* file blocks of a row, and runs of 32 columns per block */
    uint64_t blocks = t->cols / info->block, per = info->block / 32;
    const uint8_t *b = (const uint8_t *)t->data + (row * blocks + at / per) * info->bytes;
    read_file_block(t->storage, b, (uint32_t)(at % per), o);
}
