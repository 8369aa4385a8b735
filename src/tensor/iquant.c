/* iquant.c: decodes the types of GGUF that use code books (IQ1 to IQ4_XS), ternary numbers (TQ) and NVFP4. Super-blocks have 256
 * numbers, NVFP4 has 64. Every type is read as int8 codes with one fp32 scale per 16 numbers; a number is scale * code. Scales
 * are computed in the order of the Python package gguf, so that the numbers are bit-identical.
 * SPDX-License-Identifier: MIT */
#include "base/num.h"
#include "tensor/iquant_tables.h"
#include "tensor/tensor.h"

static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
static const int8_t fp4_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
/* Values of the codes in the code books. */
static const int8_t iq2_values[4] = {0x08, 0x19, 0x2b, 0}, iq1_values[4] = {-1, 0, 1, 0};
static const int8_t iq3_xxs_values[8] = {0x04, 0x0c, 0x14, 0x1c, 0x24, 0x2c, 0x34, 0x3e};
static const int8_t iq3_s_values[8] = {0x01, 0x03, 0x05, 0x07, 0x09, 0x0b, 0x0d, 0x0f};

/* The fp16 number at p, unaligned. */
static float half_at(const uint8_t *p) { return sg_f32_of_f16(sg_le16(p)); }

/* Seven sign bits as eight: the number of negative signs is even. */
static uint32_t even_signs(uint32_t s)
{
    uint32_t parity = s ^ s >> 4;
    parity ^= parity >> 2;
    parity ^= parity >> 1;
    return s | (parity & 1) << 7;
}

/* n codes from an entry of a code book with `bits` per code; bit i of signs negates code i. */
static void put_entry(uint32_t entry, int n, int bits, const int8_t *values, uint32_t signs, int8_t *q)
{
    for (int i = 0; i < n; i++) {
        int v = values[entry >> (bits * i) & ((1u << bits) - 1)];
        q[i] = (int8_t)(signs >> i & 1 ? -v : v);
    }
}

/* fp16 d @0; per 32 numbers, 8 bytes: four indices, then a word with four times 7 sign bits and a 4-bit scale on top. */
static void read_iq2_xxs(const uint8_t *p, int8_t *q, float *scale)
{
    float d = half_at(p);
    for (int j = 0; j < 8; j++, q += 32) {
        const uint8_t *index = p + 2 + 8 * j;
        uint32_t word = sg_le32(index + 4);
        float s = d * (0.5f + (float)(word >> 28));
        scale[2 * j] = scale[2 * j + 1] = s * 0.25f;
        for (int k = 0; k < 4; k++)
            put_entry(iq2_xxs_book[index[k]], 8, 2, iq2_values, even_signs(word >> (7 * k) & 127), q + 8 * k);
    }
}

/* fp16 d @0; 32 words @2 with 9 bits of index and 7 sign bits, for 8 numbers each; 4-bit scales per 16 numbers @66. */
static void read_iq2_xs(const uint8_t *p, int8_t *q, float *scale)
{
    float d = half_at(p);
    for (int k = 0; k < 32; k++, q += 8) {
        uint32_t word = sg_le16(p + 2 + 2 * k);
        float s = d * (0.5f + (float)(p[66 + k / 4] >> (k & 2 ? 4 : 0) & 15));
        scale[k / 2] = s * 0.25f;
        put_entry(iq2_xs_book[word & 511], 8, 2, iq2_values, even_signs(word >> 9), q);
    }
}

/* fp16 d @0; 32 low bytes of indices @2; 32 sign bytes @34; two upper bits of each index @66; scales @74 as in IQ2_XS. */
static void read_iq2_s(const uint8_t *p, int8_t *q, float *scale)
{
    float d = half_at(p);
    for (int k = 0; k < 32; k++, q += 8) {
        uint32_t index = p[2 + k] | (uint32_t)(p[66 + k / 4] >> (2 * (k & 3)) & 3) << 8;
        float s = d * (0.5f + (float)(p[74 + k / 4] >> (k & 2 ? 4 : 0) & 15));
        scale[k / 2] = s * 0.25f;
        put_entry(iq2_s_book[index], 8, 2, iq2_values, p[34 + k], q);
    }
}

/* fp16 d @0; 64 indices @2, for 4 numbers each; per 32 numbers a word @66 as in IQ2_XXS. */
static void read_iq3_xxs(const uint8_t *p, int8_t *q, float *scale)
{
    float d = half_at(p);
    for (int j = 0; j < 8; j++, q += 32) {
        uint32_t word = sg_le32(p + 66 + 4 * j);
        float s = d * (0.5f + (float)(word >> 28));
        scale[2 * j] = scale[2 * j + 1] = s * 0.5f;
        for (int k = 0; k < 8; k++)
            put_entry(iq3_xxs_book[p[2 + 8 * j + k]], 4, 3, iq3_xxs_values,
                      even_signs(word >> (7 * (k / 2)) & 127) >> (k & 1 ? 4 : 0), q + 4 * k);
    }
}

/* fp16 d @0; 64 low bytes of indices @2; their ninth bits @66; sign bits @74; 4-bit scales per 32 numbers @106. */
static void read_iq3_s(const uint8_t *p, int8_t *q, float *scale)
{
    float d = half_at(p);
    for (int k = 0; k < 64; k++, q += 4) {
        int j = k / 8;
        uint32_t index = p[2 + k] | (uint32_t)(p[66 + j] >> (k & 7) & 1) << 8;
        scale[k / 4] = d * (float)(1 + 2 * (p[106 + j / 2] >> (j & 1 ? 4 : 0) & 15));
        put_entry(iq3_s_book[index], 4, 3, iq3_s_values, p[74 + k / 2] >> (k & 1 ? 4 : 0), q);
    }
}

/* 8 codes of IQ1. The numbers are -1, 0 or 1, plus or minus 1/8; the codes are eight times that, and the scale is an eighth. */
static void put_iq1(uint32_t index, int negative, int8_t *q)
{
    for (int i = 0; i < 8; i++) q[i] = (int8_t)(8 * iq1_values[iq1_book[index] >> (2 * i) & 3] + (negative ? -1 : 1));
}

/* fp16 d @0; 32 low bytes of indices @2; per 32 numbers a word @34: four times 3 upper bits, 3-bit scale, sign of the eighth. */
static void read_iq1_s(const uint8_t *p, int8_t *q, float *scale)
{
    float d = half_at(p);
    for (int k = 0; k < 32; k++, q += 8) {
        uint32_t word = sg_le16(p + 34 + 2 * (k / 4));
        float s = d * (float)(2 * (word >> 12 & 7) + 1);
        scale[k / 2] = s * 0.125f;
        put_iq1(p[2 + k] | (word >> (3 * (k & 3)) & 7) << 8, word >> 15 & 1, q);
    }
}

/* 32 low bytes of indices @0; a nibble @32 per 8 numbers: 3 upper bits and the sign of the eighth; four words @48 with four 3-bit
 * scales each, one per 16 numbers, and a quarter of the fp16 d on top. */
static void read_iq1_m(const uint8_t *p, int8_t *q, float *scale)
{
    uint32_t bits = 0;
    for (int i = 0; i < 4; i++) bits |= (uint32_t)(sg_le16(p + 48 + 2 * i) >> 12) << (4 * i);
    float d = sg_f32_of_f16((uint16_t)bits);
    for (int k = 0; k < 32; k++, q += 8) {
        int nibble = p[32 + k / 2] >> (k & 1 ? 4 : 0) & 15, j = k / 2;
        float s = d * (float)(2 * (sg_le16(p + 48 + 2 * (j / 4)) >> (3 * (j & 3)) & 7) + 1);
        scale[j] = s * 0.125f;
        put_iq1(p[k] | (uint32_t)(nibble & 7) << 8, nibble >> 3, q);
    }
}

/* Nibbles as indices into a table: the low ones of n bytes, then the high ones. */
static void put_nibbles(const uint8_t *p, int n, const int8_t values[16], int8_t *q)
{
    for (int i = 0; i < n; i++) {
        q[i] = values[p[i] & 15];
        q[i + n] = values[p[i] >> 4];
    }
}

/* fp16 d @0; 6-bit scales per 32 numbers: upper 2 bits @2, lower 4 bits @4; per 32 numbers 16 bytes of table indices @8. */
static void read_iq4_xs(const uint8_t *p, int8_t *q, float *scale)
{
    float d = half_at(p);
    for (int j = 0; j < 8; j++, q += 32) {
        int s = (p[4 + j / 2] >> (j & 1 ? 4 : 0) & 15) | (sg_le16(p + 2) >> (2 * j) & 3) << 4;
        scale[2 * j] = scale[2 * j + 1] = d * (float)(s - 32);
        put_nibbles(p + 8 + 16 * j, 16, iq4_values, q);
    }
}

/* The ternary digit of a byte after a multiplication by a power of 3: the byte is a fraction in base 3. */
static int8_t trit(uint8_t byte, unsigned power) { return (int8_t)((int)((uint8_t)(byte * power) * 3u >> 8) - 1); }

/* One scale for all 256 numbers. */
static void set_all(float *scale, float d)
{
    for (int k = 0; k < 16; k++) scale[k] = d;
}

/* Bytes @0 with 5 digits, for 160 numbers (32 bytes) and 80 numbers (16 bytes), @48 4 bytes with 4 digits; fp16 d @52. Digit k of
 * a run of bytes is k-th in a group of as many numbers as the run has bytes. */
static void read_tq1_0(const uint8_t *p, int8_t *q, float *scale)
{
    static const uint8_t powers[5] = {1, 3, 9, 27, 81};
    set_all(scale, half_at(p + 52));
    for (int k = 0; k < 5; k++)
        for (int i = 0; i < 32; i++) *q++ = trit(p[i], powers[k]);
    for (int k = 0; k < 5; k++)
        for (int i = 32; i < 48; i++) *q++ = trit(p[i], powers[k]);
    for (int k = 0; k < 4; k++)
        for (int i = 48; i < 52; i++) *q++ = trit(p[i], powers[k]);
}

/* 64 bytes of 2-bit codes: per 128 numbers, four runs of 32 share 32 bytes; fp16 d @64. Value: d * (q - 1). */
static void read_tq2_0(const uint8_t *p, int8_t *q, float *scale)
{
    set_all(scale, half_at(p + 64));
    for (int i = 0; i < 256; i++) q[i] = (int8_t)((p[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3) - 1);
}

/* E4M3 without a sign, halved because the table holds doubled values; 0x7f is 0. */
static float half_e4m3(uint8_t x)
{
    int exponent = x >> 3 & 15;
    float mantissa = (float)(x & 7), power;
    if (x == 0 || x == 0x7f) return 0;
    if (!exponent) return mantissa * (1.0f / 1024);
    power = exponent >= 7 ? (float)(1 << (exponent - 7)) : 1.0f / (float)(1 << (7 - exponent));
    return (1 + mantissa / 8) * power * 0.5f;
}

/* Four E4M3 scales @0, one per 16 numbers; per 16 numbers 8 bytes of E2M1 codes @4. */
static void read_nvfp4(const uint8_t *p, int8_t *q, float *scale)
{
    for (int k = 0; k < 4; k++, q += 16) {
        scale[k] = half_e4m3(p[k]);
        put_nibbles(p + 4 + 8 * k, 8, fp4_values, q);
    }
}

/* An fp32 scale @0, 256 int8 @4, then sums of the codes, which only products need. */
static void read_q8_k(const uint8_t *p, int8_t *q, float *scale)
{
    set_all(scale, sg_f32_of_bits(sg_le32(p)));
    memcpy(q, p + 4, 256);
}

int sg_iquant_block(enum sg_storage s, const uint8_t *block, int8_t q[256], float scale[16])
{
    switch (s) {
    case SG_IQ2_XXS: read_iq2_xxs(block, q, scale); break;
    case SG_IQ2_XS: read_iq2_xs(block, q, scale); break;
    case SG_IQ2_S: read_iq2_s(block, q, scale); break;
    case SG_IQ3_XXS: read_iq3_xxs(block, q, scale); break;
    case SG_IQ3_S: read_iq3_s(block, q, scale); break;
    case SG_IQ1_S: read_iq1_s(block, q, scale); break;
    case SG_IQ1_M: read_iq1_m(block, q, scale); break;
    case SG_IQ4_XS: read_iq4_xs(block, q, scale); break;
    case SG_TQ1_0: read_tq1_0(block, q, scale); break;
    case SG_TQ2_0: read_tq2_0(block, q, scale); break;
    case SG_Q8_K: read_q8_k(block, q, scale); break;
    case SG_NVFP4: read_nvfp4(block, q, scale); break;
    default: return 0;
    }
    return 1;
}

int sg_dequant_iquant(enum sg_storage s, const uint8_t *src, uint64_t n, float *out)
{
    const struct sg_storage_info *info = sg_storage_info(s);
    int8_t q[256];
    float scale[16];
    if (s < SG_IQ2_XXS || s > SG_NVFP4) return 0;
    for (; n >= info->block; n -= info->block, src += info->bytes, out += info->block) {
        if (!sg_iquant_block(s, src, q, scale)) return 0;
        for (uint32_t i = 0; i < info->block; i++) out[i] = scale[i / 16] * (float)q[i];
    }
    return 1;
}
