/* encode.c: fp32 to stored blocks, byte-identical to the reference encoder (the Python package
 * gguf). Divisions, products and sums are separate fp32 statements: fused or reordered operations
 * would change bytes.
 * SPDX-License-Identifier: MIT */
#include "base/num.h"
#include "tensor/encode/kencode.h"
#include "tensor/tensor.h"

#include <math.h>

/* Store 16 bits little endian, or an fp32 number as fp16, at an unaligned address. */
static void put16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

static void put_half(uint8_t *p, float f) { put16(p, sg_f16_of_f32(f)); }

/* The value of the largest magnitude, with its sign; the first one of equal magnitudes. n >= 1. */
static float largest_magnitude(const float *x, int n)
{
    float best = x[0];
    for (int i = 1; i < n; i++)
        if (fabsf(x[i]) > fabsf(best)) best = x[i];
    return best;
}

/* Minimum and maximum of n >= 1 numbers. */
static void range_of(const float *x, int n, float *low, float *high)
{
    *low = *high = x[0];
    for (int i = 1; i < n; i++) {
        if (x[i] < *low) *low = x[i];
        if (x[i] > *high) *high = x[i];
    }
}

/* Truncate v to a code in [0, max]; NaN becomes 0. The callers have added 0.5 for rounding. */
static int clip(float v, int max)
{
    if (!(v > 0)) return 0;
    return v >= (float)max ? max : (int)v;
}

/* Pack 32 codes: elements i and i + 16 share byte i of qs; the fifth bits go to qh[4], which is
 * NULL for 4-bit formats. */
static void put_codes(const int *q, uint8_t *qh, uint8_t *qs)
{
    uint32_t high = 0;
    for (int i = 0; i < 32; i++) high |= (uint32_t)(q[i] >> 4 & 1) << i;
    if (qh) {
        put16(qh, (uint16_t)high);
        put16(qh + 2, (uint16_t)(high >> 16));
    }
    for (int i = 0; i < 16; i++) qs[i] = (uint8_t)((q[i] & 15) | (q[i + 16] & 15) << 4);
}

/* Q4_0 and Q5_0, levels = 16 or 32. The number of the largest magnitude, whatever its sign, gets
 * code 0, so that the range is used fully on its side. */
static void put_symmetric(const float *x, int levels, uint8_t *d_at, uint8_t *qh, uint8_t *qs)
{
    int q[32];
    float d = largest_magnitude(x, 32) / (float)-(levels / 2), inverse = d == 0 ? 0 : 1 / d,
          middle = (float)(levels / 2) + 0.5f;
    for (int i = 0; i < 32; i++) {
        float v = x[i] * inverse;
        v += middle;
        q[i] = clip(v, levels - 1);
    }
    put_half(d_at, d);
    put_codes(q, qh, qs);
}

/* Q4_1 and Q5_1: the range from minimum to maximum is divided evenly. */
static void put_ranged(const float *x, int levels, uint8_t *d_at, uint8_t *qh, uint8_t *qs)
{
    int q[32];
    float low, high;
    range_of(x, 32, &low, &high);
    float d = (high - low) / (float)(levels - 1), inverse = d == 0 ? 0 : 1 / d;
    for (int i = 0; i < 32; i++) {
        float v = (x[i] - low) * inverse;
        v += 0.5f;
        q[i] = clip(v, levels - 1);
    }
    put_half(d_at, d);
    put_half(d_at + 2, low);
    put_codes(q, qh, qs);
}

/* Rounds half away from zero, as the reference does for this format only; the others add 0.5 and
 * truncate. */
static void put_q8_0(const float *x, uint8_t *out)
{
    float d = fabsf(largest_magnitude(x, 32)) / 127, inverse = d == 0 ? 0 : 1 / d;
    put_half(out, d);
    for (int i = 0; i < 32; i++) {
        float v = x[i] * inverse;
        v = roundf(v);
        out[2 + i] = (uint8_t)(int8_t)(v >= 127 ? 127 : v <= -128 ? -128 : v == v ? (int)v : 0);
    }
}

/* The same formats with an importance. */
static void put_weighted(enum sg_storage s, const float *x, const float *importance, uint8_t *out)
{
    int q[32], five = s == SG_Q5_0 || s == SG_Q5_1, ranged = s == SG_Q4_1 || s == SG_Q5_1;
    float w[32], low = 0;
    uint8_t *codes = out + (ranged ? 4 : 2);
    sg_error_weights(x, importance, 32, w);
    put_half(out, ranged ? sg_encode_ranged(x, w, five ? 32 : 16, q, &low) : sg_encode_symmetric(x, w, five ? 16 : 8, q));
    if (ranged) put_half(out + 2, low);
    put_codes(q, five ? codes : NULL, codes + (five ? 4 : 0));
}

/* One block of 32. Order in all formats: d, then m if there is one, fifth bits, nibbles. */
static void put_block(enum sg_storage s, const float *x, const float *importance, uint8_t *out)
{
    if (importance && s != SG_Q8_0) {
        put_weighted(s, x, importance, out);
        return;
    }
    switch (s) {
    case SG_Q4_0: put_symmetric(x, 16, out, NULL, out + 2); break;
    case SG_Q4_1: put_ranged(x, 16, out, NULL, out + 4); break;
    case SG_Q5_0: put_symmetric(x, 32, out, out + 2, out + 6); break;
    case SG_Q5_1: put_ranged(x, 32, out, out + 4, out + 8); break;
    default: put_q8_0(x, out); break;
    }
}

/* K-quants have their own encoders in kencode.c. */
segue_status sg_quant_row(enum sg_storage s, const float *src, const float *importance, uint64_t n, void *out,
                          segue_error *err)
{
    const struct sg_storage_info *info = sg_storage_info(s);
    uint8_t *p = out;
    if (s > SG_Q6_K)
        return sg_fail(err, SEGUE_EUNSUPPORTED,
                       "quantize: %s: writing this type is not supported; choose f32, f16, bf16, or one of q2_k to q8_0",
                       info->name);
    if (n % info->block)
        return sg_fail(err, SEGUE_EARG,
                       "quantize: %s: %llu numbers are not a multiple of the block size %u; use f16 for this tensor",
                       info->name, (unsigned long long)n, info->block);
    if (s > SG_Q8_0) {
        sg_encode_k(s, src, importance, n, p);
        return SEGUE_OK;
    }
    for (uint64_t i = 0; i < n; i += info->block, p += info->bytes) {
        uint32_t bits = sg_bits_of_f32(src[i]);
        if (s == SG_F16) put_half(p, src[i]);
        else if (s == SG_BF16) put16(p, sg_bf16_of_f32(src[i]));
        else if (s != SG_F32) put_block(s, src + i, importance ? importance + i : NULL, p);
        else {
            put16(p, (uint16_t)bits);
            put16(p + 2, (uint16_t)(bits >> 16));
        }
    }
    return SEGUE_OK;
}
