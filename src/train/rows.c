/* rows.c: sums and the maximum of a row, in lanes that are added in one order: vector code, with the same bits everywhere.
 * SPDX-License-Identifier: MIT */
#include "base/clones.h"
#include "train/train.h"

enum { LANES = 16, EXP_BLOCK = 256 };

static inline double fold(const double *lanes)
{
    double sum = 0;
    for (int j = 0; j < LANES; j++) sum += lanes[j];
    return sum;
}

SG_CLONES float sg_train_max_row(const float *x, size_t n)
{
    float lanes[LANES], max = x[0];
    size_t i = 0;
    for (int j = 0; j < LANES; j++) lanes[j] = max;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++) lanes[j] = x[i + j] > lanes[j] ? x[i + j] : lanes[j];
    for (; i < n; i++) max = x[i] > max ? x[i] : max;
    for (int j = 0; j < LANES; j++) max = lanes[j] > max ? lanes[j] : max;
    return max;
}

SG_CLONES double sg_train_sum_row(const float *x, size_t n)
{
    double lanes[LANES] = {0};
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++) lanes[j] += (double)x[i + j];
    for (size_t j = 0; i < n; i++, j++) lanes[j] += (double)x[i];
    return fold(lanes);
}

SG_CLONES double sg_train_squares_row(const float *x, size_t n, double mean)
{
    double lanes[LANES] = {0};
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++) lanes[j] += ((double)x[i + j] - mean) * ((double)x[i + j] - mean);
    for (size_t j = 0; i < n; i++, j++) lanes[j] += ((double)x[i] - mean) * ((double)x[i] - mean);
    return fold(lanes);
}

SG_CLONES double sg_train_dot_row(const float *x, const float *y, size_t n)
{
    double lanes[LANES] = {0};
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++) lanes[j] += (double)(x[i + j] * y[i + j]);
    for (size_t j = 0; i < n; i++, j++) lanes[j] += (double)(x[i] * y[i]);
    return fold(lanes);
}

double sg_train_exp_row(const float *x, size_t n, float max, float *y)
{
    double sum = 0;
    for (size_t at = 0; at < n; at += EXP_BLOCK) {
        size_t count = n - at < EXP_BLOCK ? n - at : EXP_BLOCK;
        sg_train_exp_all(x + at, count, max, y + at);
        sum += sg_train_sum_row(y + at, count);
    }
    return sum;
}
