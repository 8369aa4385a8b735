/* kencode.c: fp32 to the super-blocks Q4_K and Q6_K. The formats leave the choice of scales to the
 * encoder. Here, for each sub-block, candidate scales are refined by alternating between the best
 * codes for given scales and the least-squares scales for given codes. The scales are then
 * quantised to the small integers that the format stores; for each, the neighbouring integers are
 * tried and the one with the least squared error after decoding is kept.
 * SPDX-License-Identifier: MIT */
#include "tensor/kencode.h"

#include <math.h>
#include <string.h>

#include "base/num.h"

/* SUPER: numbers per super-block. SUB4, SUB6: per sub-block of Q4_K and Q6_K. WIDTHS: initial step
 * widths tried per sub-block. ROUNDS: refinements per width. */
enum { SUPER = 256, SUB4 = 32, SUB6 = 16, WIDTHS = 15, ROUNDS = 3 };

/* Store as fp16. */
static void put_half(uint8_t *p, float f)
{
    uint16_t h = sg_f16_of_f32(f);
    p[0] = (uint8_t)h;
    p[1] = (uint8_t)(h >> 8);
}

/* The value after a round trip through fp16: errors are measured with the scale that a decoder
 * sees. */
static float fp16_round(float f) { return sg_f32_of_f16(sg_f16_of_f32(f)); }

/* Round to the nearest integer in [low, high]; NaN becomes low. */
static int code(float v, int low, int high)
{
    if (!(v > (float)low)) return low;
    return v >= (float)high ? high : (int)lrintf(v);
}

/* --- Q4_K: x ~ scale * q - low, q in 0..15, scale and low not negative --- */

/* Parameters of one sub-block and their squared error. */
struct affine {
    float scale, low, error;
};

/* The squared error of one sub-block with the best codes for scale and low; stores the codes in q
 * unless it is NULL. */
static float affine_error(const float *x, float scale, float low, uint8_t *q)
{
    float inverse = scale > 0 ? 1 / scale : 0, error = 0;
    for (int i = 0; i < SUB4; i++) {
        int c = code((x[i] + low) * inverse, 0, 15);
        float off = scale * (float)c - low - x[i];
        if (q) q[i] = (uint8_t)c;
        error += off * off;
    }
    return error;
}

/* Scale and low with the least squared error for given codes: the normal equations of a linear
 * regression. If the solution has a negative low, which the format cannot store, low is 0 and the
 * scale is refitted. */
static struct affine affine_fit(const float *x, const uint8_t *q)
{
    float n = SUB4, sq = 0, sqq = 0, sx = 0, sxq = 0;
    for (int i = 0; i < SUB4; i++) {
        float c = q[i];
        sq += c;
        sqq += c * c;
        sx += x[i];
        sxq += x[i] * c;
    }
    struct affine f = {0};
    /* det is 0 when all codes are equal. */
    float det = n * sqq - sq * sq;
    if (det > 0) {
        f.scale = (n * sxq - sq * sx) / det;
        f.low = (sq * sxq - sqq * sx) / det;
    }
    if (!(det > 0) || f.low < 0) {
        f.low = 0;
        f.scale = sqq > 0 ? sxq / sqq : 0;
    }
    if (f.scale < 0) f.scale = 0;
    return f;
}

/* The best parameters of one sub-block, starting from several step widths. */
static struct affine affine_search(const float *x)
{
    uint8_t q[SUB4];
    float low = 0, high = x[0];
    for (int i = 0; i < SUB4; i++) {
        if (x[i] < low) low = x[i];
        if (x[i] > high) high = x[i];
    }
    struct affine best = {0, -low, INFINITY};
    if (high <= low) { /* all equal and not positive: scale 0 and the minimum represent them */
        best.error = affine_error(x, 0, -low, NULL);
        return best;
    }
    for (int w = 0; w < WIDTHS; w++) { /* from steps that cover the whole range to steps that clip its ends */
        struct affine f = {(high - low) / (13.5f + 0.2f * (float)w), -low, 0};
        for (int round = 0; round < ROUNDS; round++) {
            f.error = affine_error(x, f.scale, f.low, q);
            if (f.error < best.error) best = f;
            f = affine_fit(x, q);
        }
        f.error = affine_error(x, f.scale, f.low, NULL);
        if (f.error < best.error) best = f;
    }
    return best;
}

/* Choose the 6-bit scale and minimum of one sub-block: the nearest integers or their neighbours,
 * whichever decode with the least error. */
static void affine_quantize(const float *x, float d, float dmin, const struct affine *want, uint8_t *scale, uint8_t *low)
{
    int s0 = d > 0 ? code(want->scale / d, 0, 63) : 0, m0 = dmin > 0 ? code(want->low / dmin, 0, 63) : 0;
    float best = INFINITY;
    /* Nine combinations of neighbouring integers. */
    for (int s = s0 - 1; s <= s0 + 1; s++)
        for (int m = m0 - 1; m <= m0 + 1; m++) {
            if (s < 0 || s > 63 || m < 0 || m > 63) continue;
            float error = affine_error(x, d * (float)s, dmin * (float)m, NULL);
            if (error >= best) continue;
            best = error;
            *scale = (uint8_t)s;
            *low = (uint8_t)m;
        }
}

/* Pack eight 6-bit scales and minima into 12 bytes; the inverse of scales_k4 in quant.c. */
static void pack_scales(const uint8_t *scale, const uint8_t *low, uint8_t *out)
{
    memset(out, 0, 12);
    for (int j = 0; j < 4; j++) {
        out[j] = (uint8_t)(scale[j] | scale[j + 4] >> 4 << 6);
        out[j + 4] = (uint8_t)(low[j] | low[j + 4] >> 4 << 6);
        out[j + 8] = (uint8_t)((scale[j + 4] & 15) | (low[j + 4] & 15) << 4);
    }
}

/* One super-block of 256 numbers to 144 bytes; layout in quant.c. d and dmin are chosen so that the
 * largest scale and the largest minimum become 63. */
static void put_q4_k(const float *x, uint8_t *out)
{
    struct affine want[8];
    uint8_t scale[8] = {0}, low[8] = {0}, q[2][SUB4];
    float max_scale = 0, max_low = 0;
    for (int j = 0; j < 8; j++) {
        want[j] = affine_search(x + SUB4 * j);
        max_scale = fmaxf(max_scale, want[j].scale);
        max_low = fmaxf(max_low, want[j].low);
    }
    float d = fp16_round(max_scale / 63), dmin = fp16_round(max_low / 63);
    put_half(out, d);
    put_half(out + 2, dmin);
    for (int j = 0; j < 8; j++) affine_quantize(x + SUB4 * j, d, dmin, &want[j], &scale[j], &low[j]);
    pack_scales(scale, low, out + 4);
    for (int j = 0; j < 8; j += 2) { /* two consecutive sub-blocks share 32 bytes: low and high nibbles */
        for (int k = 0; k < 2; k++)
            affine_error(x + SUB4 * (j + k), d * (float)scale[j + k], dmin * (float)low[j + k], q[k]);
        for (int i = 0; i < SUB4; i++) out[16 + 16 * j + i] = (uint8_t)(q[0][i] | q[1][i] << 4);
    }
}

/* --- Q6_K: x ~ scale * q, q in -32..31 --- */

/* The squared error of one sub-block with the best codes for the scale; stores the codes in q
 * unless it is NULL. */
static float linear_error(const float *x, float scale, int8_t *q)
{
    float inverse = scale != 0 ? 1 / scale : 0, error = 0;
    for (int i = 0; i < SUB6; i++) {
        int c = code(x[i] * inverse, -32, 31);
        float off = scale * (float)c - x[i];
        if (q) q[i] = (int8_t)c;
        error += off * off;
    }
    return error;
}

/* The best scale of one sub-block: several starting scales, each refined once by the least-squares
 * scale of its codes. */
static float linear_search(const float *x)
{
    int8_t q[SUB6];
    float peak = 0, best = 0, min_error = INFINITY;
    for (int i = 0; i < SUB6; i++)
        if (fabsf(x[i]) > fabsf(peak)) peak = x[i];
    if (peak == 0) return 0;
    for (int w = 0; w < WIDTHS; w++) { /* the largest magnitude gets a code near -32, whatever its sign */
        float scale = peak / -(30.6f + 0.2f * (float)w);
        for (int round = 0; round < 2; round++) {
            float error = linear_error(x, scale, q), sxq = 0, sqq = 0;
            if (error < min_error) min_error = error, best = scale;
            for (int i = 0; i < SUB6; i++) {
                sxq += x[i] * (float)q[i];
                sqq += (float)(q[i] * q[i]);
            }
            if (sqq > 0) scale = sxq / sqq;
        }
    }
    return best;
}

/* The int8 scale of one sub-block: the nearest integer or a neighbour, whichever decodes with the
 * least error. */
static int linear_quantize(const float *x, float d, float want)
{
    int s0 = d != 0 ? code(want / d, -128, 127) : 0, chosen = s0;
    float best = INFINITY;
    for (int s = s0 - 1; s <= s0 + 1; s++) {
        if (s < -128 || s > 127) continue;
        float error = linear_error(x, d * (float)s, NULL);
        if (error < best) best = error, chosen = s;
    }
    return chosen;
}

/* One super-block of 256 numbers to 210 bytes; layout in quant.c. */
static void put_q6_k(const float *x, uint8_t *out)
{
    float want[16], max_scale = 0;
    int8_t q[SUPER];
    for (int k = 0; k < 16; k++) {
        want[k] = linear_search(x + SUB6 * k);
        if (fabsf(want[k]) > fabsf(max_scale)) max_scale = want[k];
    }
    float d = fp16_round(max_scale / -128);
    memset(out, 0, 192);
    put_half(out + 208, d);
    for (int k = 0; k < 16; k++) {
        int s = linear_quantize(x + SUB6 * k, d, want[k]);
        out[192 + k] = (uint8_t)(int8_t)s;
        linear_error(x + SUB6 * k, d * (float)s, q + SUB6 * k);
    }
    for (int i = 0; i < SUPER; i++) { /* per 128 numbers, four runs of 32 share 64 bytes of ql and 32 bytes of qh */
        int half = i / 128, run = i % 128 / 32, l = i % 32, c = q[i] + 32;
        out[64 * half + 32 * (run & 1) + l] |= (uint8_t)((c & 15) << (run < 2 ? 0 : 4));
        out[128 + 32 * half + l] |= (uint8_t)(c >> 4 << (2 * run));
    }
}

void sg_encode_q4_k(const float *src, uint64_t n, uint8_t *out)
{
    for (uint64_t i = 0; i < n; i += SUPER, out += 144) put_q4_k(src + i, out);
}

void sg_encode_q6_k(const float *src, uint64_t n, uint8_t *out)
{
    for (uint64_t i = 0; i < n; i += SUPER, out += 210) put_q6_k(src + i, out);
}
