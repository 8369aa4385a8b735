/* wencode.c: blocks of 32 (Q4_0, Q4_1, Q5_0, Q5_1) with an importance per number. Several step widths are tried, each is refined
 * by weighted least squares for its codes, and the one with the least weighted error after rounding to fp16 is kept. Without an
 * importance, encode.c writes the same bytes as the Python package gguf instead.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "base/num.h"
#include "tensor/encode/kencode.h"

enum { BLOCK = 32, WIDTHS = 17, ROUNDS = 3 };

static float half_round(float f) { return sg_f32_of_f16(sg_f16_of_f32(f)); }

/* The nearest code in [0, top] and the weighted squared error with all codes; NaN becomes code 0. */
static float codes_of(const float *x, const float *w, float d, float low, int top, int *q)
{
    float inverse = d != 0 ? 1 / d : 0, error = 0;
    for (int i = 0; i < BLOCK; i++) {
        float v = (x[i] - low) * inverse, off;
        q[i] = !(v > 0) ? 0 : v >= (float)top ? top : (int)lrintf(v);
        off = d * (float)q[i] + low - x[i];
        error += w[i] * (off * off);
    }
    return error;
}

/* Number = d * (q - half): the range is one step longer on the side of code 0. */
float sg_encode_symmetric(const float *x, const float *w, int half, int q[32])
{
    float peak = 0, best = INFINITY, chosen = 0;
    int codes[BLOCK];
    for (int i = 0; i < BLOCK; i++)
        if (fabsf(x[i]) > fabsf(peak)) peak = x[i];
    memset(q, 0, BLOCK * sizeof *q);
    for (int k = 0; k < WIDTHS; k++) {
        float d = half_round(peak / -((float)half - 1.6f + 0.2f * (float)k));
        for (int round = 0; round < ROUNDS; round++) {
            float error = codes_of(x, w, d, -d * (float)half, 2 * half - 1, codes), sxq = 0, sqq = 0;
            if (error < best) best = error, chosen = d, memcpy(q, codes, sizeof codes);
            for (int i = 0; i < BLOCK; i++) {
                float c = (float)(codes[i] - half);
                sxq += w[i] * x[i] * c;
                sqq += w[i] * c * c;
            }
            if (sqq > 0) d = half_round(sxq / sqq);
        }
    }
    return chosen;
}

/* Number = d * q + low. */
float sg_encode_ranged(const float *x, const float *w, int levels, int q[32], float *low)
{
    float from = x[0], to = x[0], best = INFINITY, chosen = 0;
    int codes[BLOCK];
    for (int i = 0; i < BLOCK; i++) {
        if (x[i] < from) from = x[i];
        if (x[i] > to) to = x[i];
    }
    *low = half_round(from);
    memset(q, 0, BLOCK * sizeof *q);
    for (int k = 0; k < WIDTHS; k++) {
        float d = half_round((to - from) / ((float)levels - 2.5f + 0.2f * (float)k)), m = half_round(from);
        for (int round = 0; round < ROUNDS; round++) {
            float error = codes_of(x, w, d, m, levels - 1, codes), n = 0, sq = 0, sqq = 0, sx = 0, sxq = 0;
            if (error < best) best = error, chosen = d, *low = m, memcpy(q, codes, sizeof codes);
            for (int i = 0; i < BLOCK; i++) {
                float c = (float)codes[i], wc = w[i] * c, wx = w[i] * x[i];
                n += w[i];
                sq += wc;
                sqq += wc * c;
                sx += wx;
                sxq += wx * c;
            }
            float det = n * sqq - sq * sq;
            if (!(det > 0)) break;
            d = half_round((n * sxq - sq * sx) / det);
            m = half_round((sqq * sx - sq * sxq) / det);
        }
    }
    return chosen;
}
