/* compress.c: see compress.h.
 * SPDX-License-Identifier: MIT */
#include "unit/ane/blob/compress.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/num.h"

enum { SAMPLE_MAX = 1 << 17, ROUNDS = 400, ENTRIES_MAX = 256 }; /* sample size, maximum iterations and entries of a palette */

/* 0x7c00 is infinity and 0x7bff the largest finite number in fp16; 6.103515625e-5 is 2^-14, the smallest
 * normal number. */
void sg_compress_fp16(const float *in, uint64_t n, uint16_t *out, struct sg_range_report *report)
{
    struct sg_range_report r = {0};
    for (uint64_t i = 0; i < n; i++) {
        float v = in[i], size = fabsf(v);
        if (isnan(v)) {
            r.nans++;
            out[i] = 0;
            continue;
        }
        if (!isinf(v) && size > r.largest) r.largest = size;
        out[i] = sg_f16_of_f32(v);
        if ((out[i] & 0x7fff) == 0x7c00) {
            r.clamped++;
            out[i] = (uint16_t)((out[i] & 0x8000) | 0x7bff);
        } else if (size > 0 && size < 6.103515625e-5f)
            (out[i] & 0x7fff) ? r.subnormal++ : r.lost++;
        if (isinf(v)) continue;
        if (size < 0x1p-14f) r.flushed += (double)fabsf(sg_f32_of_f16(out[i]));
        r.size += (double)size;
        r.error += fabs((double)v - (double)sg_f32_of_f16(out[i]));
    }
    if (!report) return;
    if (r.largest > report->largest) report->largest = r.largest;
    report->clamped += r.clamped;
    report->nans += r.nans;
    report->subnormal += r.subnormal;
    report->lost += r.lost;
    report->error += r.error;
    report->size += r.size;
    report->flushed += r.flushed;
}

/* Symmetric quantization: the largest magnitude of a row maps to 127. */
void sg_compress_int8(const float *in, uint64_t rows, uint64_t cols, int8_t *out, uint16_t *scale)
{
    for (uint64_t r = 0; r < rows; r++) {
        const float *row = in + r * cols;
        float max = 0;
        for (uint64_t i = 0; i < cols; i++)
            if (isfinite(row[i]) && fabsf(row[i]) > max) max = fabsf(row[i]);
        scale[r] = sg_f16_of_f32(max / 127);
        if ((scale[r] & 0x7fff) == 0x7c00) scale[r] = 0x7bff;
        float step = sg_f32_of_f16(scale[r]); /* the rounded scale, which the engine multiplies with */
        for (uint64_t i = 0; i < cols; i++) {
            float q = step > 0 && isfinite(row[i]) ? nearbyintf(row[i] / step) : 0;
            out[r * cols + i] = (int8_t)(q > 127 ? 127 : q < -127 ? -127 : q);
        }
    }
}

/* Order for qsort; the values are finite. */
static int compare_floats(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Number of elements not greater than bound. */
static uint64_t upper_bound(const float *sorted, uint64_t n, double bound)
{
    uint64_t low = 0, high = n;
    while (low < high) {
        uint64_t mid = (low + high) / 2;
        if (sorted[mid] <= bound)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* Lloyd's algorithm in one dimension: each center becomes the mean of the values nearest to it. With sorted
 * values the cells are intervals, and sums[i], the sum of the first i values, gives their means directly.
 * The initial centers are halfway between a uniform grid and the quantiles, which is close to the optimal
 * density of centers (the cube root of the density of values). Stops when the centers hardly move. center:
 * [entries] result, ascending. */
static void lloyd_table(const float *sorted, const double *sums, uint64_t n, uint32_t entries, double *center)
{
    for (uint32_t k = 0; k < entries; k++) {
        double quantile = (k + 0.5) / entries;
        center[k] = 0.5 * (double)sorted[(uint64_t)(quantile * (double)n)] +
                    0.5 * (sorted[0] + quantile * ((double)sorted[n - 1] - sorted[0]));
    }
    for (int round = 0; round < ROUNDS; round++) {
        double moved = 0;
        uint64_t from = 0;
        for (uint32_t k = 0; k < entries; k++) {
            uint64_t to = k + 1 < entries ? upper_bound(sorted, n, (center[k] + center[k + 1]) / 2) : n;
            if (to > from) {
                double mean = (sums[to] - sums[from]) / (double)(to - from);
                moved += fabs(mean - center[k]);
                center[k] = mean;
            }
            from = to > from ? to : from;
        }
        if (moved <= 1e-7 * ((double)sorted[n - 1] - sorted[0])) break;
    }
}

/* Packs the index of the nearest table entry for each value, by binary search over the midpoints between
 * entries. */
static void pack_indices(const float *in, uint64_t n, uint32_t bits, const uint16_t *table, uint8_t *packed)
{
    float bound[ENTRIES_MAX];
    uint32_t entries = 1u << bits;
    for (uint32_t k = 0; k + 1 < entries; k++)
        bound[k] = (sg_f32_of_f16(table[k]) + sg_f32_of_f16(table[k + 1])) / 2;
    memset(packed, 0, (size_t)((n * bits + 7) / 8));
    for (uint64_t i = 0; i < n; i++) {
        float v = isfinite(in[i]) ? in[i] : 0;
        uint32_t k = 0;
        for (uint32_t half = entries / 2; half; half /= 2)
            if (v > bound[k + half - 1]) k += half;
        uint64_t at = i * bits;
        uint32_t shifted = k << (at & 7);
        packed[at >> 3] |= (uint8_t)shifted;
        if (shifted >> 8) packed[(at >> 3) + 1] |= (uint8_t)(shifted >> 8);
    }
}

/* Every step-th value is sampled. Decreasing an infinite table entry (0x7c00) by 1 gives the largest finite
 * one. */
segue_status sg_compress_palette(const float *in, uint64_t n, uint32_t bits, uint16_t *table, uint8_t *packed,
                                 segue_error *err)
{
    uint64_t step = (n + SAMPLE_MAX - 1) / SAMPLE_MAX, m = 0;
    float *sorted = sg_alloc((SAMPLE_MAX + 1) * sizeof *sorted);
    double *sums = sg_alloc((SAMPLE_MAX + 2) * sizeof *sums), center[ENTRIES_MAX] = {0};
    if (!sorted || !sums) {
        sg_free(sorted);
        sg_free(sums);
        return sg_no_memory("a table of weights", SAMPLE_MAX * sizeof *sums, err);
    }
    for (uint64_t i = 0; i < n; i += step)
        if (isfinite(in[i])) sorted[m++] = in[i];
    if (!m) sorted[m++] = 0;
    qsort(sorted, m, sizeof *sorted, compare_floats);
    for (uint64_t i = 0; i < m; i++) sums[i + 1] = sums[i] + sorted[i];
    lloyd_table(sorted, sums, m, 1u << bits, center);
    for (uint32_t k = 0; k < 1u << bits; k++) {
        table[k] = sg_f16_of_f32((float)center[k]);
        if ((table[k] & 0x7fff) == 0x7c00) table[k] = (uint16_t)(table[k] - 1);
    }
    pack_indices(in, n, bits, table, packed);
    sg_free(sorted);
    sg_free(sums);
    return SEGUE_OK;
}
