/* kencode.c: fp32 to the super-blocks Q4_K and Q6_K. The formats leave the choice of scales to the writer; here each
 * sub-block's scale (and minimum) is found by alternating between codes and their least-squares fit over a few widths,
 * then the small integers that store them are tried one step up and down with the error that a reader will see.
 * SPDX-License-Identifier: MIT */
#include "tensor/kencode.h"

#include <math.h>
#include <string.h>

#include "base/num.h"

enum { SUPER = 256, SUB4 = 32, SUB6 = 16, WIDTHS = 15, ROUNDS = 3 };

static void put_half(uint8_t *p, float f)
{
    uint16_t h = sg_f16_of_f32(f);
    p[0] = (uint8_t)h;
    p[1] = (uint8_t)(h >> 8);
}

static float stored(float f) { return sg_f32_of_f16(sg_f16_of_f32(f)); }

static int code(float v, int low, int high)
{
    if (!(v > (float)low)) return low;
    return v >= (float)high ? high : (int)lrintf(v);
}

/* --- Q4_K: x ~ scale * q - low, q in 0..15, scale and low not negative --- */

struct affine {
    float scale, low, error;
};

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

/* The best scale and low for given codes: the normal equations of two unknowns. */
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

static struct affine affine_search(const float *x)
{
    uint8_t q[SUB4];
    float low = 0, high = x[0];
    for (int i = 0; i < SUB4; i++) {
        if (x[i] < low) low = x[i];
        if (x[i] > high) high = x[i];
    }
    struct affine best = {0, -low, INFINITY};
    if (high <= low) { /* all equal and not positive: the minimum alone says it */
        best.error = affine_error(x, 0, -low, NULL);
        return best;
    }
    for (int w = 0; w < WIDTHS; w++) { /* from wide steps to clipped tails */
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

/* The small integers of one sub-block: the nearest ones, or a neighbour when that reads back better. */
static void affine_settle(const float *x, float d, float dmin, const struct affine *want, uint8_t *scale, uint8_t *low)
{
    int s0 = d > 0 ? code(want->scale / d, 0, 63) : 0, m0 = dmin > 0 ? code(want->low / dmin, 0, 63) : 0;
    float best = INFINITY;
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

/* 12 bytes of eight 6-bit scales and minima, as scales_k4 in quant.c reads them. */
static void pack_scales(const uint8_t *scale, const uint8_t *low, uint8_t *out)
{
    memset(out, 0, 12);
    for (int j = 0; j < 4; j++) {
        out[j] = (uint8_t)(scale[j] | scale[j + 4] >> 4 << 6);
        out[j + 4] = (uint8_t)(low[j] | low[j + 4] >> 4 << 6);
        out[j + 8] = (uint8_t)((scale[j + 4] & 15) | (low[j + 4] & 15) << 4);
    }
}

static void put_q4_k(const float *x, uint8_t *out)
{
    struct affine want[8];
    uint8_t scale[8] = {0}, low[8] = {0}, q[2][SUB4];
    float widest = 0, deepest = 0;
    for (int j = 0; j < 8; j++) {
        want[j] = affine_search(x + SUB4 * j);
        widest = fmaxf(widest, want[j].scale);
        deepest = fmaxf(deepest, want[j].low);
    }
    float d = stored(widest / 63), dmin = stored(deepest / 63);
    put_half(out, d);
    put_half(out + 2, dmin);
    for (int j = 0; j < 8; j++) affine_settle(x + SUB4 * j, d, dmin, &want[j], &scale[j], &low[j]);
    pack_scales(scale, low, out + 4);
    for (int j = 0; j < 8; j += 2) { /* two neighbouring sub-blocks share 32 bytes */
        for (int k = 0; k < 2; k++)
            affine_error(x + SUB4 * (j + k), d * (float)scale[j + k], dmin * (float)low[j + k], q[k]);
        for (int i = 0; i < SUB4; i++) out[16 + 16 * j + i] = (uint8_t)(q[0][i] | q[1][i] << 4);
    }
}

/* --- Q6_K: x ~ scale * q, q in -32..31 --- */

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

static float linear_search(const float *x)
{
    int8_t q[SUB6];
    float widest = 0, best = 0, least = INFINITY;
    for (int i = 0; i < SUB6; i++)
        if (fabsf(x[i]) > fabsf(widest)) widest = x[i];
    if (widest == 0) return 0;
    for (int w = 0; w < WIDTHS; w++) { /* the widest value takes the code -32 or so, whatever its sign */
        float scale = widest / -(30.6f + 0.2f * (float)w);
        for (int round = 0; round < 2; round++) {
            float error = linear_error(x, scale, q), sxq = 0, sqq = 0;
            if (error < least) least = error, best = scale;
            for (int i = 0; i < SUB6; i++) {
                sxq += x[i] * (float)q[i];
                sqq += (float)(q[i] * q[i]);
            }
            if (sqq > 0) scale = sxq / sqq;
        }
    }
    return best;
}

static int linear_settle(const float *x, float d, float want)
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

static void put_q6_k(const float *x, uint8_t *out)
{
    float want[16], widest = 0;
    int8_t q[SUPER];
    for (int k = 0; k < 16; k++) {
        want[k] = linear_search(x + SUB6 * k);
        if (fabsf(want[k]) > fabsf(widest)) widest = want[k];
    }
    float d = stored(widest / -128);
    memset(out, 0, 192);
    put_half(out + 208, d);
    for (int k = 0; k < 16; k++) {
        int s = linear_settle(x + SUB6 * k, d, want[k]);
        out[192 + k] = (uint8_t)(int8_t)s;
        linear_error(x + SUB6 * k, d * (float)s, q + SUB6 * k);
    }
    for (int i = 0; i < SUPER; i++) { /* 128 numbers: four runs of 32 share 64 low bytes and 32 high bytes */
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
