/* blocks.c: see blocks.h; one function per storage, to be read beside the formats in src/tensor/quant.c.
 * SPDX-License-Identifier: MIT */
#include "unit/cpu/blocks.h"

#include <string.h>

#include "base/num.h"

static float f16_at(const uint8_t *p) { return sg_f32_of_f16(sg_le16(p)); }

static void both(struct sg_block32 *o, float d, float m)
{
    o->d[0] = o->d[1] = d;
    o->m[0] = o->m[1] = m;
}

static void halves(struct sg_block32 *o, const uint8_t *d, const uint8_t *m)
{
    o->half_d = sg_le16(d);
    o->half_m = m ? sg_le16(m) : 0;
}

static void nibbles(const uint8_t *qs, uint8_t *q)
{
    for (int i = 0; i < 16; i++) {
        q[i] = qs[i] & 15;
        q[i + 16] = qs[i] >> 4;
    }
}

static void five_bits(const uint8_t *qs, const uint8_t *high, uint8_t add, uint8_t *q)
{
    uint32_t h = sg_le32(high);
    nibbles(qs, q);
    for (int i = 0; i < 32; i++) q[i] = (uint8_t)((q[i] | (h >> i & 1u) << 4) + add);
}

static void read_table(const uint8_t *qs, const int8_t *table, uint8_t add, uint8_t *q)
{
    nibbles(qs, q);
    for (int i = 0; i < 32; i++) q[i] = (uint8_t)(table[q[i]] + add);
}

/* 6-bit scale and minimum number j of Q4_K and Q5_K: the first four lie whole in bytes 0-7, the upper bits of
 * the last four in the top bits of those. */
static void k_scale(const uint8_t *s, uint32_t j, uint32_t *scale, uint32_t *min)
{
    if (j < 4) {
        *scale = s[j] & 63u;
        *min = s[j + 4] & 63u;
    } else {
        *scale = (s[j + 4] & 15u) | (uint32_t)(s[j - 4] >> 6) << 4;
        *min = (uint32_t)(s[j + 4] >> 4) | (uint32_t)(s[j] >> 6) << 4;
    }
}

static void read_q4_k(const uint8_t *b, uint32_t at, struct sg_block32 *o, int five)
{
    uint32_t scale, min;
    k_scale(b + 4, at, &scale, &min);
    halves(o, b, b + 2);
    o->scale[0] = (uint8_t)scale;
    o->min = (uint8_t)min;
    both(o, f16_at(b) * (float)scale, -(f16_at(b + 2) * (float)min));
    const uint8_t *qs = b + (five ? 48 : 16) + at / 2 * 32, *high = b + 16;
    for (int i = 0; i < 32; i++) {
        uint32_t q = at % 2 ? qs[i] >> 4 : qs[i] & 15u;
        if (five) q |= (uint32_t)(high[i] >> at & 1u) << 4;
        o->q[i] = (uint8_t)q;
    }
}

static void read_q6_k(const uint8_t *b, uint32_t at, struct sg_block32 *o)
{
    uint32_t half = at / 4, part = at % 4;           /* 128 columns: low 4 bits in 64 bytes, upper 2 in 32 */
    const uint8_t *low = b + half * 64 + part % 2 * 32, *high = b + 128 + half * 32;
    for (int i = 0; i < 32; i++)
        o->q[i] = (uint8_t)((part < 2 ? low[i] & 15 : low[i] >> 4) | (high[i] >> 2 * part & 3) << 4);
    halves(o, b + 208, NULL);
    for (uint32_t h = 0; h < 2; h++) {
        o->scale[h] = b[192 + at * 2 + h];
        o->d[h] = f16_at(b + 208) * (float)(int8_t)o->scale[h];
        o->m[h] = -32.0f * o->d[h];
    }
}

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

/* 2^(e - 127) / 2, exact down to the smallest. */
static float e8m0_half(uint8_t e)
{
    if (e == 255) return sg_f32_of_bits(0x7fc00000u);
    return e < 2 ? sg_f32_of_bits(0x00200000u << e) : sg_f32_of_bits((uint32_t)(e - 1) << 23);
}

static float plain_number(const void *base, enum sg_storage s, uint64_t i)
{
    const uint8_t *p = base;
    return s == SG_F32   ? sg_f32_of_bits(sg_le32(p + 4 * i))
           : s == SG_F16 ? f16_at(p + 2 * i)
                         : sg_f32_of_bf16(sg_le16(p + 2 * i));
}

static void read_affine(const struct sg_tensor *t, uint64_t row, uint64_t at, struct sg_block32 *o)
{
    const struct sg_affine *a = &t->affine;
    uint64_t row_bytes = t->cols * a->bits / 8, bit = at * 32 * a->bits,
             group = row * (t->cols / a->group) + at * 32 / a->group;
    const uint8_t *p = t->data + row * row_bytes + bit / 8; /* 32 numbers begin on a byte at any width */
    for (uint32_t i = 0; i < 32; i++) {
        uint32_t from = i * a->bits, word = p[from / 8];
        if (from % 8 + a->bits > 8) word |= (uint32_t)p[from / 8 + 1] << 8;
        o->q[i] = (uint8_t)(word >> from % 8 & ((1u << a->bits) - 1u));
    }
    both(o, plain_number(a->scales, a->storage, group), plain_number(a->biases, a->storage, group));
    if (a->storage == SG_F16)
        halves(o, (const uint8_t *)a->scales + 2 * group, (const uint8_t *)a->biases + 2 * group);
}

enum sg_pack sg_block_kind(const struct sg_tensor *t)
{
    switch (t->storage) {
    case SG_F16: return SG_PACK_F16;
    case SG_BF16:
    case SG_FP8: return SG_PACK_BF16; /* exact: its scales are powers of two */
    case SG_Q4_0: return SG_PACK_Q4;
    case SG_Q4_1: return SG_PACK_Q4M;
    case SG_Q5_0:
    case SG_Q8_0:
    case SG_IQ4_NL: return SG_PACK_Q8;
    case SG_Q4_K: return SG_PACK_Q4K;
    case SG_Q6_K: return SG_PACK_Q6K;
    case SG_Q5_1:
    case SG_Q5_K:
    case SG_MXFP4: return SG_PACK_Q8F;
    case SG_Q2_K:
    case SG_Q3_K: return SG_PACK_Q8H;
    case SG_AFFINE:
        return t->affine.group % 32 || t->cols % 32 ? SG_PACK_F32
               : t->affine.bits <= 4                ? (t->affine.storage == SG_F16 ? SG_PACK_Q4M : SG_PACK_Q4F)
                                                    : SG_PACK_Q8F;
    case SG_Q8_GROUP: return t->affine.group % 32 || t->cols % 32 ? SG_PACK_F32 : SG_PACK_Q8F;
    default: return SG_PACK_F32;
    }
}

void sg_block_read(const struct sg_tensor *t, uint64_t row, uint64_t at, struct sg_block32 *o)
{
    static const int8_t iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    static const int8_t fp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    const struct sg_storage_info *info = sg_storage_info(t->storage);
    const uint8_t *b = t->data;
    if (t->storage == SG_AFFINE) {
        read_affine(t, row, at, o);
        return;
    }
    if (t->storage == SG_Q8_GROUP) {
        const int8_t *q = (const int8_t *)t->data + row * t->cols + at * 32;
        float d = plain_number(t->affine.scales, SG_F32, (row * t->cols + at * 32) / t->affine.group);
        for (int i = 0; i < 32; i++) o->q[i] = (uint8_t)(q[i] + 128);
        both(o, d, -128.0f * d);
        return;
    }
    uint64_t blocks = t->cols / info->block, per = info->block / 32;
    b += (row * blocks + at / per) * info->bytes;
    uint32_t sub = (uint32_t)(at % per);
    switch (t->storage) {
    case SG_Q4_0:
        halves(o, b, NULL);
        nibbles(b + 2, o->q);
        break;
    case SG_Q4_1:
        halves(o, b, b + 2);
        nibbles(b + 4, o->q);
        break;
    case SG_Q5_0:
        halves(o, b, NULL);
        five_bits(b + 6, b + 2, 128 - 16, o->q);
        break;
    case SG_Q5_1:
        both(o, f16_at(b), f16_at(b + 2));
        five_bits(b + 8, b + 4, 0, o->q);
        break;
    case SG_Q8_0:
        halves(o, b, NULL);
        for (int i = 0; i < 32; i++) o->q[i] = b[2 + i] ^ 0x80;
        break;
    case SG_IQ4_NL:
        halves(o, b, NULL);
        read_table(b + 2, iq4, 128, o->q);
        break;
    case SG_MXFP4:
        both(o, e8m0_half(b[0]), -12.0f * e8m0_half(b[0]));
        read_table(b + 1, fp4, 12, o->q);
        break;
    case SG_Q4_K: read_q4_k(b, sub, o, 0); break;
    case SG_Q5_K: read_q4_k(b, sub, o, 1); break;
    case SG_Q6_K: read_q6_k(b, sub, o); break;
    case SG_Q2_K: read_q2_k(b, sub, o); break;
    case SG_Q3_K: read_q3_k(b, sub, o); break;
    default: memset(o, 0, sizeof *o); break;
    }
}
