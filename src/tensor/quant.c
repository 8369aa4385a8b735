/* quant.c: decodes stored rows to fp32, one function per format. The order of operations is that of
 * the formats' reference implementation (ggml), and products are separate statements so that
 * compilers do not fuse them: results are bit-identical. Sizes are not checked here;
 * archive_build.c checked them when the file was opened.
 * SPDX-License-Identifier: MIT */
#include "base/num.h"
#include "tensor/tensor.h"

#include <math.h>

/* The non-linear code book of IQ4_NL. */
static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113};
/* E2M1 values times two, to be integers; read_mxfp4 halves the block's scale in exchange. */
static const int8_t fp4_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* The fp16 number at p, unaligned. */
static float half_at(const uint8_t *p) { return sg_f32_of_f16(sg_le16(p)); }

static void read_f32(const uint8_t *p, uint64_t n, float *out)
{
    for (uint64_t i = 0; i < n; i++) out[i] = sg_f32_of_bits(sg_le32(p + 4 * i));
}

/* Branch-free, so that it vectorises. Subnormal fp16 numbers are decoded as (0.5 + x) - 0.5, which
 * is exact and avoids a multiplication with subnormal fp32 operands, which is slow on many
 * processors. */
static void read_f16(const uint8_t *p, uint64_t n, float *out)
{
    for (uint64_t i = 0; i < n; i++) {
        uint32_t h = sg_le16(p + 2 * i), rest = h & 0x7fffu, sign = (h & 0x8000u) << 16;
        float tiny = sg_f32_of_bits(0x3f000000u | rest) - 0.5f;
        uint32_t large = (rest << 13) + (rest >= 0x7c00u ? 0x70000000u : 0x38000000u);
        out[i] = sg_f32_of_bits(sign | (rest < 0x0400u ? sg_bits_of_f32(tiny) : large));
    }
}

static void read_bf16(const uint8_t *p, uint64_t n, float *out)
{
    for (uint64_t i = 0; i < n; i++) out[i] = sg_f32_of_bf16(sg_le16(p + 2 * i));
}

/* --- blocks of 32 --- */

/* Block: fp16 d, 16 bytes. Element i has the low nibble of byte i, element i + 16 the high one; the
 * same in all formats with blocks of 32. Value: d * (q - 8). */
static void read_q4_0(const uint8_t *p, uint64_t n, float *out)
{
    for (; n; n -= 32, p += 18, out += 32) {
        float d = half_at(p);
        for (int i = 0; i < 16; i++) {
            out[i] = d * (float)((p[2 + i] & 15) - 8);
            out[i + 16] = d * (float)((p[2 + i] >> 4) - 8);
        }
    }
}

/* Block: fp16 d, fp16 m, 16 bytes of nibbles. Value: d * q + m. */
static void read_q4_1(const uint8_t *p, uint64_t n, float *out)
{
    for (; n; n -= 32, p += 20, out += 32) {
        float d = half_at(p), m = half_at(p + 2);
        for (int i = 0; i < 16; i++) {
            float lo = d * (float)(p[4 + i] & 15), hi = d * (float)(p[4 + i] >> 4);
            out[i] = lo + m;
            out[i + 16] = hi + m;
        }
    }
}

/* Block: fp16 d, 32 fifth bits, 16 bytes of nibbles. Value: d * (q - 16). */
static void read_q5_0(const uint8_t *p, uint64_t n, float *out)
{
    for (; n; n -= 32, p += 22, out += 32) {
        float d = half_at(p);
        uint32_t high = sg_le32(p + 2);
        for (int i = 0; i < 16; i++) {
            int lo = (p[6 + i] & 15) | (int)((high >> i & 1) << 4);
            int hi = p[6 + i] >> 4 | (int)((high >> (i + 16) & 1) << 4);
            out[i] = d * (float)(lo - 16);
            out[i + 16] = d * (float)(hi - 16);
        }
    }
}

/* Block: fp16 d, fp16 m, 32 fifth bits, 16 bytes of nibbles. Value: d * q + m. */
static void read_q5_1(const uint8_t *p, uint64_t n, float *out)
{
    for (; n; n -= 32, p += 24, out += 32) {
        float d = half_at(p), m = half_at(p + 2);
        uint32_t high = sg_le32(p + 4);
        for (int i = 0; i < 16; i++) {
            float lo = d * (float)((p[8 + i] & 15) | (int)((high >> i & 1) << 4));
            float hi = d * (float)(p[8 + i] >> 4 | (int)((high >> (i + 16) & 1) << 4));
            out[i] = lo + m;
            out[i + 16] = hi + m;
        }
    }
}

/* Block: fp16 d, 32 signed bytes. Value: d * q. */
static void read_q8_0(const uint8_t *p, uint64_t n, float *out)
{
    for (; n; n -= 32, p += 34, out += 32) {
        float d = half_at(p);
        for (int i = 0; i < 32; i++) out[i] = d * (float)(int8_t)p[2 + i];
    }
}

/* 32 nibbles as indices into a table of values, times d. */
static void read_nibbles(const uint8_t *p, float d, const int8_t values[16], float *out)
{
    for (int i = 0; i < 16; i++) {
        out[i] = d * (float)values[p[i] & 15];
        out[i + 16] = d * (float)values[p[i] >> 4];
    }
}

/* Block: fp16 d, 16 bytes of table indices. */
static void read_iq4_nl(const uint8_t *p, uint64_t n, float *out)
{
    for (; n; n -= 32, p += 18, out += 32) read_nibbles(p + 2, half_at(p), iq4_values, out);
}

/* Block: one exponent byte (E8M0), 16 bytes of E2M1 codes. */
static void read_mxfp4(const uint8_t *p, uint64_t n, float *out)
{
    for (; n; n -= 32, p += 17, out += 32) {
        uint32_t e = p[0]; /* scale 2^(e - 127) / 2; for e < 2 this is subnormal in fp32 */
        float d = sg_f32_of_bits(e < 2 ? 0x00200000u << e : (e - 1) << 23);
        read_nibbles(p + 1, d, fp4_values, out);
    }
}

/* --- super-blocks of 256 --- */

/* Super-block: 16 scale bytes @0, 64 code bytes @16, fp16 d @80, fp16 dmin @82. Each 16 numbers
 * have a 4-bit scale and a 4-bit minimum in one byte. Value: d * scale * q - dmin * minimum. */
static void read_q2_k(const uint8_t *p, uint64_t n, float *out)
{
    for (; n; n -= 256, p += 84) {
        float d = half_at(p + 80), dmin = half_at(p + 82);
        for (int k = 0; k < 16; k++, out += 16) {
            const uint8_t *q = p + 16 + 32 * (k / 8) + 16 * (k & 1);
            int shift = k % 8 / 2 * 2;
            float scale = d * (float)(p[k] & 15), low = dmin * (float)(p[k] >> 4);
            for (int i = 0; i < 16; i++) {
                float v = scale * (float)(q[i] >> shift & 3);
                out[i] = v - low;
            }
        }
    }
}

/* Super-block: hm[32] third bits @0, 64 code bytes @32, sc[12] @96, fp16 d @108. The 16 scales have
 * 6 bits each, spread over sc. A cleared bit of hm subtracts 4 from the code. */
static void read_q3_k(const uint8_t *p, uint64_t n, float *out)
{
    for (; n; n -= 256, p += 110) {
        const uint8_t *sc = p + 96;
        float d = half_at(p + 108);
        for (int k = 0; k < 16; k++, out += 16) {
            const uint8_t *q = p + 32 + 32 * (k / 8) + 16 * (k & 1), *hm = p + 16 * (k & 1);
            int shift = k % 8 / 2 * 2, bit = k / 2;
            int lo = k < 8 ? sc[k] & 15 : sc[k - 8] >> 4, hi = sc[8 + k % 4] >> (2 * (k / 4)) & 3;
            float scale = d * (float)((lo | hi << 4) - 32);
            for (int i = 0; i < 16; i++)
                out[i] = scale * (float)((q[i] >> shift & 3) - ((hm[i] >> bit & 1) ? 0 : 4));
        }
    }
}

/* Unpack scale and minimum number j, 6 bits each, from the 12 bytes of Q4_K and Q5_K: 0 to 3 are in
 * the low 6 bits of bytes 0-3 and 4-7, the others have their low 4 bits in bytes 8-11 and their
 * upper 2 bits in the top of the former. */
static void scales_k4(const uint8_t *sc, int j, int *scale, int *low)
{
    if (j < 4) {
        *scale = sc[j] & 63;
        *low = sc[j + 4] & 63;
    } else {
        *scale = (sc[j + 4] & 15) | (sc[j - 4] >> 6) << 4;
        *low = sc[j + 4] >> 4 | (sc[j] >> 6) << 4;
    }
}

/* Super-block: fp16 d @0, fp16 dmin @2, sc[12] @4, qs[128] @16. Two consecutive sub-blocks of 32
 * share 32 bytes: the low and the high nibbles. Value: d * scale * q - dmin * minimum. */
static void read_q4_k(const uint8_t *p, uint64_t n, float *out)
{
    for (; n; n -= 256, p += 144) {
        float d = half_at(p), dmin = half_at(p + 2);
        for (int j = 0, sc, low; j < 8; j++, out += 32) {
            const uint8_t *q = p + 16 + 32 * (j / 2);
            int shift = j & 1 ? 4 : 0;
            scales_k4(p + 4, j, &sc, &low);
            float scale = d * (float)sc, m = dmin * (float)low;
            for (int i = 0; i < 32; i++) {
                float v = scale * (float)(q[i] >> shift & 15);
                out[i] = v - m;
            }
        }
    }
}

/* As Q4_K with qh[32] @16 and qs at 48: bit j of qh[i] is the fifth bit of element i of sub-block
 * j. */
static void read_q5_k(const uint8_t *p, uint64_t n, float *out)
{
    for (; n; n -= 256, p += 176) {
        float d = half_at(p), dmin = half_at(p + 2);
        for (int j = 0, sc, low; j < 8; j++, out += 32) {
            const uint8_t *q = p + 48 + 32 * (j / 2), *qh = p + 16;
            int shift = j & 1 ? 4 : 0;
            scales_k4(p + 4, j, &sc, &low);
            float scale = d * (float)sc, m = dmin * (float)low;
            for (int i = 0; i < 32; i++) {
                float v = scale * (float)((q[i] >> shift & 15) | (qh[i] >> j & 1) << 4);
                out[i] = v - m;
            }
        }
    }
}

/* Super-block: ql[128] low nibbles @0, qh[64] upper 2 bits @128, int8 sc[16] @192, fp16 d @208.
 * Each 16 numbers have one scale. Value: d * scale * (q - 32). */
static void read_q6_k(const uint8_t *p, uint64_t n, float *out)
{
    for (; n; n -= 256, p += 210) {
        float d = half_at(p + 208);
        for (int k = 0; k < 16; k++, out += 16) {
            int half = k / 8, s = k % 8 / 2, l = 16 * (k & 1);
            const uint8_t *ql = p + 64 * half + 32 * (s & 1) + l, *qh = p + 128 + 32 * half + l;
            int shift = s < 2 ? 0 : 4;
            float scale = d * (float)(int8_t)p[192 + k];
            for (int i = 0; i < 16; i++)
                out[i] = scale * (float)(((ql[i] >> shift & 15) | (qh[i] >> (2 * s) & 3) << 4) - 32);
        }
    }
}

void sg_dequant_row(enum sg_storage s, const void *src, uint64_t n, float *out)
{
    switch (s) {
    case SG_F32: read_f32(src, n, out); return;
    case SG_F16: read_f16(src, n, out); return;
    case SG_BF16: read_bf16(src, n, out); return;
    case SG_Q4_0: read_q4_0(src, n, out); return;
    case SG_Q4_1: read_q4_1(src, n, out); return;
    case SG_Q5_0: read_q5_0(src, n, out); return;
    case SG_Q5_1: read_q5_1(src, n, out); return;
    case SG_Q8_0: read_q8_0(src, n, out); return;
    case SG_Q2_K: read_q2_k(src, n, out); return;
    case SG_Q3_K: read_q3_k(src, n, out); return;
    case SG_Q4_K: read_q4_k(src, n, out); return;
    case SG_Q5_K: read_q5_k(src, n, out); return;
    case SG_Q6_K: read_q6_k(src, n, out); return;
    case SG_IQ4_NL: read_iq4_nl(src, n, out); return;
    case SG_MXFP4: read_mxfp4(src, n, out); return;
    default: break;
    }
    if (sg_dequant_iquant(s, src, n, out)) return;
    for (uint64_t i = 0; i < n; i++)
        out[i] = NAN; /* makes a missing call of sg_tensor_computable visible */
}
