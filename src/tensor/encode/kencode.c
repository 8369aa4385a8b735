/* kencode.c: fp32 to the super-blocks Q2_K to Q6_K. The formats leave the choice of scales to the
 * encoder. Here, for each sub-block, candidate scales are refined by alternating between the best
 * codes for given scales and the least-squares scales for given codes. The scales are then
 * quantised to the small integers that the format stores; for each, the neighbouring integers are
 * tried and the one with the least squared error after decoding is kept. All squares are weighted with w: 1 without an
 * importance matrix.
 * SPDX-License-Identifier: MIT */
#include "tensor/encode/kencode.h"

#include <math.h>
#include <string.h>

#include "base/num.h"

/* SUPER: numbers per super-block. SUB_MAX: at most per sub-block. WIDTHS: initial step widths tried per
 * sub-block. ROUNDS: refinements per width. */
enum { SUPER = 256, SUB_MAX = 32, WIDTHS = 15, ROUNDS = 3 };

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

/* --- Q2_K, Q4_K, Q5_K: x ~ scale * q - low, q in 0..top, scale and low not negative --- */

/* A format: numbers per sub-block, largest code, largest integer scale and minimum. */
struct affine_format {
    int sub, top, scale_top;
};
static const struct affine_format q2_k = {16, 3, 15}, q4_k = {32, 15, 63}, q5_k = {32, 31, 63};

/* Parameters of one sub-block and their squared error. */
struct affine {
    float scale, low, error;
};

/* The squared error of one sub-block with the best codes for scale and low; stores the codes in q
 * unless it is NULL. */
static float affine_error(const struct affine_format *f, const float *x, const float *w, float scale, float low, uint8_t *q)
{
    float inverse = scale > 0 ? 1 / scale : 0, error = 0;
    for (int i = 0; i < f->sub; i++) {
        int c = code((x[i] + low) * inverse, 0, f->top);
        float off = scale * (float)c - low - x[i];
        if (q) q[i] = (uint8_t)c;
        error += w[i] * (off * off);
    }
    return error;
}

/* Scale and low with the least squared error for given codes: the normal equations of a linear
 * regression. If the solution has a negative low, which the format cannot store, low is 0 and the
 * scale is refitted. */
static struct affine affine_fit(const struct affine_format *format, const float *x, const float *w, const uint8_t *q)
{
    float n = 0, sq = 0, sqq = 0, sx = 0, sxq = 0;
    for (int i = 0; i < format->sub; i++) {
        float c = q[i], wc = w[i] * c, wx = w[i] * x[i];
        n += w[i];
        sq += wc;
        sqq += wc * c;
        sx += wx;
        sxq += wx * c;
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
static struct affine affine_search(const struct affine_format *format, const float *x, const float *w)
{
    uint8_t q[SUB_MAX];
    float low = 0, high = x[0];
    for (int i = 0; i < format->sub; i++) {
        if (x[i] < low) low = x[i];
        if (x[i] > high) high = x[i];
    }
    struct affine best = {0, -low, INFINITY};
    if (high <= low) { /* all equal and not positive: scale 0 and the minimum represent them */
        best.error = affine_error(format, x, w, 0, -low, NULL);
        return best;
    }
    for (int k = 0; k < WIDTHS; k++) { /* from steps that cover the whole range to steps that clip its ends */
        struct affine f = {(high - low) / ((float)format->top - 1.5f + 0.2f * (float)k), -low, 0};
        for (int round = 0; round < ROUNDS; round++) {
            f.error = affine_error(format, x, w, f.scale, f.low, q);
            if (f.error < best.error) best = f;
            f = affine_fit(format, x, w, q);
        }
        f.error = affine_error(format, x, w, f.scale, f.low, NULL);
        if (f.error < best.error) best = f;
    }
    return best;
}

/* Choose the integer scale and minimum of one sub-block: the nearest integers or their neighbours,
 * whichever decode with the least error. */
static void affine_quantize(const struct affine_format *f, const float *x, const float *w, float d, float dmin,
                            const struct affine *want, uint8_t *scale, uint8_t *low)
{
    int top = f->scale_top, s0 = d > 0 ? code(want->scale / d, 0, top) : 0, m0 = dmin > 0 ? code(want->low / dmin, 0, top) : 0;
    float best = INFINITY;
    /* Nine combinations of neighbouring integers. */
    for (int s = s0 - 1; s <= s0 + 1; s++)
        for (int m = m0 - 1; m <= m0 + 1; m++) {
            if (s < 0 || s > top || m < 0 || m > top) continue;
            float error = affine_error(f, x, w, d * (float)s, dmin * (float)m, NULL);
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

/* One super-block as codes, integer scales and minima, and the fp16 factors of both, which are chosen so that the largest scale
 * and the largest minimum become the largest integer. */
struct affine_super {
    uint8_t q[SUPER], scale[16], low[16];
    float d, dmin;
};

static void affine_encode(const struct affine_format *f, const float *x, const float *w, struct affine_super *out)
{
    struct affine want[16];
    float max_scale = 0, max_low = 0;
    *out = (struct affine_super){0};
    for (int j = 0; j < SUPER / f->sub; j++) {
        want[j] = affine_search(f, x + f->sub * j, w + f->sub * j);
        max_scale = fmaxf(max_scale, want[j].scale);
        max_low = fmaxf(max_low, want[j].low);
    }
    out->d = fp16_round(max_scale / (float)f->scale_top);
    out->dmin = fp16_round(max_low / (float)f->scale_top);
    for (int j = 0; j < SUPER / f->sub; j++) {
        const float *part = x + f->sub * j, *part_w = w + f->sub * j;
        affine_quantize(f, part, part_w, out->d, out->dmin, &want[j], &out->scale[j], &out->low[j]);
        affine_error(f, part, part_w, out->d * (float)out->scale[j], out->dmin * (float)out->low[j], out->q + f->sub * j);
    }
}

/* 256 numbers to 144 bytes of Q4_K or, with fifth bits, 176 of Q5_K; layout in quant.c. Two consecutive sub-blocks share 32
 * bytes: low and high nibbles. */
static void put_q4_k(const struct affine_format *f, const float *x, const float *w, uint8_t *out)
{
    struct affine_super s;
    uint8_t *high = f == &q5_k ? out + 16 : NULL, *nibbles = out + (high ? 48 : 16);
    affine_encode(f, x, w, &s);
    put_half(out, s.d);
    put_half(out + 2, s.dmin);
    pack_scales(s.scale, s.low, out + 4);
    if (high) memset(high, 0, 32);
    for (int j = 0; j < 8; j += 2)
        for (int i = 0; i < 32; i++) {
            uint8_t a = s.q[32 * j + i], b = s.q[32 * j + 32 + i];
            nibbles[16 * j + i] = (uint8_t)((a & 15) | (b & 15) << 4);
            if (high) high[i] |= (uint8_t)((a >> 4) << j | (b >> 4) << (j + 1));
        }
}

/* 256 numbers to 84 bytes; layout in quant.c. Four runs of 32 numbers share 32 bytes. */
static void put_q2_k(const float *x, const float *w, uint8_t *out)
{
    struct affine_super s;
    affine_encode(&q2_k, x, w, &s);
    for (int j = 0; j < 16; j++) out[j] = (uint8_t)(s.scale[j] | s.low[j] << 4);
    memset(out + 16, 0, 64);
    for (int i = 0; i < SUPER; i++) out[16 + i / 128 * 32 + i % 32] |= (uint8_t)(s.q[i] << (i % 128 / 32 * 2));
    put_half(out + 80, s.d);
    put_half(out + 82, s.dmin);
}

/* --- Q3_K, Q6_K: x ~ scale * q, q in -half..half - 1, sub-blocks of 16 --- */

/* A format: half of the codes, and the smallest integer scale, whose negation is one above the largest. */
struct linear_format {
    int half, scale_low;
};
static const struct linear_format q3_k = {4, -32}, q6_k = {32, -128};
enum { SUB6 = 16 };

/* The squared error of one sub-block with the best codes for the scale; stores the codes in q
 * unless it is NULL. */
static float linear_error(const struct linear_format *f, const float *x, const float *w, float scale, int8_t *q)
{
    float inverse = scale != 0 ? 1 / scale : 0, error = 0;
    for (int i = 0; i < SUB6; i++) {
        int c = code(x[i] * inverse, -f->half, f->half - 1);
        float off = scale * (float)c - x[i];
        if (q) q[i] = (int8_t)c;
        error += w[i] * (off * off);
    }
    return error;
}

/* The best scale of one sub-block: several starting scales, each refined once by the least-squares
 * scale of its codes. */
static float linear_search(const struct linear_format *f, const float *x, const float *w)
{
    int8_t q[SUB6];
    float peak = 0, best = 0, min_error = INFINITY;
    for (int i = 0; i < SUB6; i++)
        if (fabsf(x[i]) > fabsf(peak)) peak = x[i];
    if (peak == 0) return 0;
    for (int k = 0; k < WIDTHS; k++) { /* the largest magnitude gets a code near -half, whatever its sign */
        float scale = peak / -((float)f->half - 1.4f + 0.2f * (float)k);
        for (int round = 0; round < 2; round++) {
            float error = linear_error(f, x, w, scale, q), sxq = 0, sqq = 0;
            if (error < min_error) min_error = error, best = scale;
            for (int i = 0; i < SUB6; i++) {
                sxq += w[i] * x[i] * (float)q[i];
                sqq += w[i] * (float)(q[i] * q[i]);
            }
            if (sqq > 0) scale = sxq / sqq;
        }
    }
    return best;
}

/* The integer scale of one sub-block: the nearest integer or a neighbour, whichever decodes with the
 * least error. */
static int linear_quantize(const struct linear_format *f, const float *x, const float *w, float d, float want)
{
    int low = f->scale_low, high = -low - 1, s0 = d != 0 ? code(want / d, low, high) : 0, chosen = s0;
    float best = INFINITY;
    for (int s = s0 - 1; s <= s0 + 1; s++) {
        if (s < low || s > high) continue;
        float error = linear_error(f, x, w, d * (float)s, NULL);
        if (error < best) best = error, chosen = s;
    }
    return chosen;
}

/* One super-block as codes and integer scales; returns the fp16 factor of the scales. */
static float linear_encode(const struct linear_format *f, const float *x, const float *w, int8_t *q, int8_t *scale)
{
    float want[16], max_scale = 0;
    for (int k = 0; k < 16; k++) {
        want[k] = linear_search(f, x + SUB6 * k, w + SUB6 * k);
        if (fabsf(want[k]) > fabsf(max_scale)) max_scale = want[k];
    }
    float d = fp16_round(max_scale / (float)f->scale_low);
    for (int k = 0; k < 16; k++) {
        scale[k] = (int8_t)linear_quantize(f, x + SUB6 * k, w + SUB6 * k, d, want[k]);
        linear_error(f, x + SUB6 * k, w + SUB6 * k, d * (float)scale[k], q + SUB6 * k);
    }
    return d;
}

/* 256 numbers to 210 bytes; layout in quant.c. */
static void put_q6_k(const float *x, const float *w, uint8_t *out)
{
    int8_t q[SUPER], scale[16];
    memset(out, 0, 192);
    put_half(out + 208, linear_encode(&q6_k, x, w, q, scale));
    memcpy(out + 192, scale, 16);
    for (int i = 0; i < SUPER; i++) { /* per 128 numbers, four runs of 32 share 64 bytes of ql and 32 bytes of qh */
        int half = i / 128, run = i % 128 / 32, l = i % 32, c = q[i] + 32;
        out[64 * half + 32 * (run & 1) + l] |= (uint8_t)((c & 15) << (run < 2 ? 0 : 4));
        out[128 + 32 * half + l] |= (uint8_t)(c >> 4 << (2 * run));
    }
}

/* 256 numbers to 110 bytes; layout in quant.c. The scales are stored plus 32: 4 low bits in bytes 0 to 7, 2 high bits in bytes 8
 * to 11. */
static void put_q3_k(const float *x, const float *w, uint8_t *out)
{
    int8_t q[SUPER], scale[16];
    memset(out, 0, 108);
    put_half(out + 108, linear_encode(&q3_k, x, w, q, scale));
    for (int k = 0; k < 16; k++) {
        int c = scale[k] + 32;
        out[96 + k % 8] |= (uint8_t)((c & 15) << (k < 8 ? 0 : 4));
        out[104 + k % 4] |= (uint8_t)(c >> 4 << (2 * (k / 4)));
    }
    for (int i = 0; i < SUPER; i++) {
        int c = q[i] + 4;
        out[i % 32] |= (uint8_t)(c >> 2 << (i / 32));
        out[32 + i / 128 * 32 + i % 32] |= (uint8_t)((c & 3) << (i % 128 / 32 * 2));
    }
}

void sg_error_weights(const float *x, const float *importance, uint32_t n, float *w)
{
    float square = 0, sum = 0;
    for (uint32_t i = 0; i < n; i++) square += x[i] * x[i];
    for (uint32_t i = 0; importance && i < n; i++) {
        w[i] = importance[i] * sqrtf(2 * square / (float)n + x[i] * x[i]);
        sum += w[i];
    }
    for (uint32_t i = 0; i < n; i++)
        if (sum > 0 && isfinite(sum)) w[i] = w[i] / sum * (float)n + 1e-6f; /* of mean 1; none is ignored completely */
        else w[i] = 1;
}

void sg_encode_k(enum sg_storage s, const float *src, const float *importance, uint64_t n, uint8_t *out)
{
    uint32_t bytes = sg_storage_info(s)->bytes;
    float w[SUPER];
    for (uint64_t i = 0; i < n; i += SUPER, out += bytes) {
        sg_error_weights(src + i, importance ? importance + i : NULL, SUPER, w);
        if (s == SG_Q2_K) put_q2_k(src + i, w, out);
        if (s == SG_Q3_K) put_q3_k(src + i, w, out);
        if (s == SG_Q4_K) put_q4_k(&q4_k, src + i, w, out);
        if (s == SG_Q5_K) put_q4_k(&q5_k, src + i, w, out);
        if (s == SG_Q6_K) put_q6_k(src + i, w, out);
    }
}
