/* npu_knots.c: see npu_knots.h. Functions of a wide range are reduced to one or two octaves, which the table covers.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/npu/npu_knots.h"

#include <math.h>

#include "base/num.h"

enum { KNOTS = 33 };

/* Where the knots are. The value at 0 of silu and gelu is the decoded one; it is not that of the function. */
static const struct knot_range {
    float low, step;
    float at_zero;
} ranges[SG_NPU_FUNCTIONS] = {
    [SG_NPU_SIGMOID] = {-8, 0.5f, 0.5f},
    [SG_NPU_TANH] = {0, 0.125f, 0},  /* odd */
    [SG_NPU_SILU] = {-8, 0.5f, -0.0017f},
    [SG_NPU_GELU] = {-4, 0.25f, -0.00075f},
    [SG_NPU_GELU_SIGMOID] = {-4, 0.25f, -0.00075f},
    [SG_NPU_EXP2] = {0, 1 / 32.0f, 1},
    [SG_NPU_LOG2] = {0.5f, 1 / 64.0f, 0},
    [SG_NPU_SQRT] = {0.5f, 1 / 16.0f, 0},    /* 0.5 to 2: 25 knots */
    [SG_NPU_RSQRT] = {0.5f, 1 / 16.0f, 0},
    [SG_NPU_INVERSE] = {0.5f, 1 / 64.0f, 0},
};

static double exact(enum sg_npu_function f, double v)
{
    switch (f) {
    case SG_NPU_SIGMOID: return 1 / (1 + exp(-v));
    case SG_NPU_TANH: return tanh(v);
    case SG_NPU_SILU: return v / (1 + exp(-v));
    case SG_NPU_GELU: return 0.5 * v * (1 + erf(v * 0.70710678118654752));
    case SG_NPU_GELU_SIGMOID: return v / (1 + exp(-1.702 * v));
    case SG_NPU_EXP2: return exp2(v);
    case SG_NPU_LOG2: return log2(v);
    case SG_NPU_SQRT: return sqrt(v);
    case SG_NPU_RSQRT: return 1 / sqrt(v);
    default: return 1 / v;
    }
}

void sg_npu_tables_make(struct sg_npu_tables *t)
{
    for (int f = 0; f < SG_NPU_FUNCTIONS; f++) {
        for (int i = 0; i < KNOTS; i++) {
            float v = ranges[f].low + (float)i * ranges[f].step,
                  y = v == 0 ? ranges[f].at_zero : (float)exact((enum sg_npu_function)f, (double)v);
            t->knot[f][i] = sg_f32_of_f16(sg_f16_of_f32(y));
        }
        t->knot[f][KNOTS] = t->knot[f][KNOTS - 1];
    }
}

/* The function at `steps` steps after the first knot, 0 to 32. */
static float between(const float *knot, float steps)
{
    int i = (int)steps;
    return knot[i] + (steps - (float)i) * (knot[i + 1] - knot[i]);
}

/* Below the range a line from the first knot to 0 at `zero`. Above it: sigmoid goes to 1 at 8.32; silu and gelu are x less what
 * the last knot lacks. */
static float activation(const struct sg_npu_tables *t, enum sg_npu_function f, float v)
{
    const float *knot = t->knot[f];
    const struct knot_range *r = &ranges[f];
    float high = -r->low, zero = f == SG_NPU_SIGMOID ? -9.94f : f == SG_NPU_SILU ? -10.2f : -4.4f;
    if (v != v) return v;
    if (v <= zero) return 0;
    if (v < r->low) return knot[0] * (v - zero) / (r->low - zero);
    if (v < high) return between(knot, (v - r->low) / r->step);
    if (f != SG_NPU_SIGMOID) return f == SG_NPU_SILU ? v - 0.00390625f : v;
    return v >= 8.32f ? 1 : knot[KNOTS - 1] + (1 - knot[KNOTS - 1]) * (v - 8) / 0.32f;
}

static float table_tanh(const float *knot, float v)
{
    float size = fabsf(v);
    return v != v ? v : copysignf(size < 4 ? between(knot, size * 8) : 1, v);
}

/* 2^v is 2^floor(v) times the table at the rest; infinite from 16 and 0 below -25, outside of fp16. */
static float table_exp2(const float *knot, float v)
{
    if (v != v) return v;
    if (v < -25 || v >= 16) return v < 0 ? 0 : INFINITY;
    float whole = floorf(v);
    return ldexpf(between(knot, (v - whole) * 32), (int)whole);
}

/* v = m 2^e with m in [0.5, 1): log2(m) + e, or 1/m 2^-e. */
static float table_log2(const float *knot, float v)
{
    int e;
    if (!(v >= 0) || isinf(v)) return v >= 0 || v != v ? v : NAN;
    if (v == 0) return -65536;
    float m = frexpf(v, &e);
    return between(knot, (m - 0.5f) * 64) + (float)e;
}

/* From the bits, because division is frequent: the upper 5 bits of the fraction are the knot, the lower 18 lie between two.
 * Numbers below the range of fp32 count as 0, which has no sign here. */
static float table_inverse(const float *knot, float v)
{
    uint32_t u = sg_bits_of_f32(v), e = u >> 23 & 255, i = u >> 18 & 31;
    if (v != v) return v;
    if (!e || e > 252) return e ? 0 : INFINITY;
    float y = knot[i] + (float)(u & 0x3ffff) * 0x1p-18f * (knot[i + 1] - knot[i]);
    return copysignf(y * sg_f32_of_bits((253 - e) << 23), v);
}

/* v = m 4^k with m in [0.5, 2). */
static float table_root(const float *knot, float v, int inverse)
{
    int e;
    if (v == 0 || v != v) return v == 0 && inverse ? INFINITY : v;
    if (v < 0) return NAN;
    if (isinf(v)) return inverse ? 0 : v;
    float m = frexpf(v, &e);
    if (e & 1) {
        m *= 2;
        e--;
    }
    return ldexpf(between(knot, (m - 0.5f) * 16), inverse ? -e / 2 : e / 2);
}

float sg_npu_table_value(const struct sg_npu_tables *t, enum sg_npu_function f, float v)
{
    const float *knot = t->knot[f];
    switch (f) {
    case SG_NPU_TANH: return table_tanh(knot, v);
    case SG_NPU_EXP2: return table_exp2(knot, v);
    case SG_NPU_LOG2: return table_log2(knot, v);
    case SG_NPU_SQRT: return table_root(knot, v, 0);
    case SG_NPU_RSQRT: return table_root(knot, v, 1);
    case SG_NPU_INVERSE: return table_inverse(knot, v);
    default: return activation(t, f, v);
    }
}

void sg_npu_table_row(const struct sg_npu_tables *t, enum sg_npu_function f, const float *x, float *out, size_t n)
{
    for (size_t i = 0; i < n; i++) out[i] = sg_npu_table_value(t, f, x[i]);
}
