/* quant.c: blocks of stored numbers to fp32, one function per format. Products are kept in their own
 * statements and in the order of the formats' authors, so that every value is theirs to the last bit. Nothing
 * here checks: sizes were checked when the archive was opened.
 * SPDX-License-Identifier: MIT */
#include "base/num.h"
#include "tensor/tensor.h"

#include <math.h>

static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113};
/* E2M1 doubled: the block's exponent is halved to match. */
static const int8_t fp4_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

static float half_at(const uint8_t *p) { return sg_f32_of_f16(sg_le16(p)); }

static void read_f32(const uint8_t *p, uint64_t n, float *out)
{
    for (uint64_t i = 0; i < n; i++) out[i] = sg_f32_of_bits(sg_le32(p + 4 * i));
}

/* Without branches, so that it vectorises; halves below 2^-14 go through 0.5 + x, which is exact and, unlike
 * a product with a denormal number, fast. */
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

/* fp16 d, 16 bytes: element i in the low nibbles, i + 16 in the high ones. So all formats of 32 below. */
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

/* d, m, nibbles: d * q + m. */
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

/* d, 32 fifth bits, nibbles. */
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

/* d, m, 32 fifth bits, nibbles. */
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

/* d, 32 signed bytes. */
static void read_q8_0(const uint8_t *p, uint64_t n, float *out)
{
    for (; n; n -= 32, p += 34, out += 32) {
        float d = half_at(p);
        for (int i = 0; i < 32; i++) out[i] = d * (float)(int8_t)p[2 + i];
    }
}

/* Nibbles that are indices into a table of values. */
static void read_nibbles(const uint8_t *p, float d, const int8_t values[16], float *out)
{
    for (int i = 0; i < 16; i++) {
        out[i] = d * (float)values[p[i] & 15];
        out[i + 16] = d * (float)values[p[i] >> 4];
    }
}

static void read_iq4_nl(const uint8_t *p, uint64_t n, float *out)
{
    for (; n; n -= 32, p += 18, out += 32) read_nibbles(p + 2, half_at(p), iq4_values, out);
}

/* One byte of exponent (E8M0), nibbles of E2M1. */
static void read_mxfp4(const uint8_t *p, uint64_t n, float *out)
{
    for (; n; n -= 32, p += 17, out += 32) {
        uint32_t e = p[0]; /* 2^(e-128); its two lowest values are denormal in fp32 */
        float d = sg_f32_of_bits(e < 2 ? 0x00200000u << e : (e - 1) << 23);
        read_nibbles(p + 1, d, fp4_values, out);
    }
}

/* --- super-blocks of 256 --- */

/* sc[16] @0, qs[64] @16, d @80, dmin @82: scale and minimum of each 16 share a byte. */
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

/* hm[32] @0, qs[64] @32, sc[12] @96, d @108: a cleared bit of hm subtracts 4. */
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

/* 6-bit scale and minimum of the 32 numbers j of Q4_K and Q5_K, packed into 12 bytes. */
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

/* d @0, dmin @2, sc[12] @4, qs[128] @16: two neighbouring 32s share 32 bytes. */
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

/* As Q4_K with qh[32] @16: bit j of qh[i] is the fifth bit; qs @48. */
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

/* ql[128] @0, qh[64] @128, i8 sc[16] @192, d @208. */
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
    for (uint64_t i = 0; i < n; i++)
        out[i] = NAN; /* a caller that skipped sg_tensor_computable must notice */
}
