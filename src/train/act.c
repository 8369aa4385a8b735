/* act.c: activation functions with their slopes, and e^x, in loops that compilers make vector code of.
 * SPDX-License-Identifier: MIT */
#include <math.h>

#include "base/clones.h"
#include "train/train.h"
#include "unit/exp.h"

float sg_train_sigmoid(float x) { return sg_sigmoid(x); }

static inline float gelu_erf(float x) { return 0.5f * (1.0f + erff(x * 0.70710678118654752f)); }
static inline float gelu_erf_slope(float x) { return gelu_erf(x) + x * 0.39894228040143268f * sg_exp(-0.5f * x * x); }
static inline float gelu_tanh_of(float x) { return sg_tanh(0.79788456080286536f * (x + 0.044715f * x * x * x)); }
static inline float gelu_tanh_slope(float x, float t)
{
    return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * 0.79788456080286536f * (1 + 0.134145f * x * x);
}
static inline float relu(float x) { return x > 0 || isnan(x) ? x : 0; }

/* y = VALUE and, unless it is NULL, slope = SLOPE of v = x[i], with s = PART(v) shared by both. */
#define ROW(PART, VALUE, SLOPE) \
    for (size_t i = 0; !slope && i < n; i++) { \
        float v = x[i], s = (PART); \
        (void)s; \
        y[i] = (VALUE); \
    } \
    for (size_t i = 0; slope && i < n; i++) { \
        float v = x[i], s = (PART); \
        (void)v, (void)s; \
        y[i] = (VALUE); \
        slope[i] = (SLOPE); \
    } \
    break

SG_CLONES void sg_train_act_row(enum sg_act act, const float *x, size_t n, float *y, float *slope)
{
    switch (act) {
    case SG_ACT_SILU: ROW(sg_sigmoid(v), v * s, s + v * s * (1 - s));
    case SG_ACT_GELU: ROW(0, v * gelu_erf(v), gelu_erf_slope(v));
    case SG_ACT_GELU_TANH: ROW(gelu_tanh_of(v), 0.5f * v * (1.0f + s), gelu_tanh_slope(v, s));
    case SG_ACT_GELU_QUICK: ROW(sg_sigmoid(1.702f * v), v * s, s + 1.702f * v * s * (1 - s));
    case SG_ACT_RELU: ROW(0, relu(v), v > 0 ? 1.0f : 0.0f);
    case SG_ACT_RELU2: ROW(0, relu(v) * v, v > 0 ? 2 * v : 0);
    case SG_ACT_SIGMOID: ROW(sg_sigmoid(v), s, s * (1 - s));
    case SG_ACT_TANH: ROW(sg_tanh(v), s, 1 - s * s);
    default: ROW(0, v, 1);
    }
}

float sg_train_act_of(enum sg_act act, float x)
{
    float y;
    sg_train_act_row(act, &x, 1, &y, NULL);
    return y;
}

float sg_train_act_slope(enum sg_act act, float x)
{
    float y, slope;
    sg_train_act_row(act, &x, 1, &y, &slope);
    return slope;
}

SG_CLONES void sg_train_exp_all(const float *x, size_t n, float max, float *y)
{
    for (size_t i = 0; i < n; i++) y[i] = sg_exp(x[i] - max);
}
