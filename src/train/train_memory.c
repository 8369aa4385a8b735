/* train_memory.c: numbers of a trainer, in host memory or in that of a resident unit.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "train/train.h"

segue_status sg_train_new(struct segue_trainer *t, size_t n, const char *what, float **out, segue_error *err)
{
    *out = NULL;
    if (n > SIZE_MAX / 8) return sg_no_memory(what, n, err);
    if (t->resident) return sg_resident_ops(t->resident)->alloc(t->resident, n, out, err);
    *out = sg_alloc_unset(n * sizeof **out);
    return *out ? SEGUE_OK : sg_no_memory(what, n * sizeof **out, err);
}

void sg_train_delete(struct segue_trainer *t, float *p)
{
    if (!t->resident) sg_free_aligned(p);
    else if (p) sg_resident_ops(t->resident)->free(t->resident, p);
}

segue_status sg_train_zero(struct segue_trainer *t, float *p, size_t n, segue_error *err)
{
    if (t->resident) return sg_resident_ops(t->resident)->zero(t->resident, p, n, err);
    memset(p, 0, n * sizeof *p);
    return SEGUE_OK;
}

segue_status sg_train_write(struct segue_trainer *t, float *to, const float *host, size_t n, segue_error *err)
{
    if (t->resident) return sg_resident_ops(t->resident)->write(t->resident, to, host, n * sizeof *to, err);
    memcpy(to, host, n * sizeof *to);
    return SEGUE_OK;
}

segue_status sg_train_read(const struct segue_trainer *t, float *host, const float *from, size_t n, segue_error *err)
{
    if (t->resident) return sg_resident_ops(t->resident)->read(t->resident, host, from, n * sizeof *from, err);
    memcpy(host, from, n * sizeof *from);
    return SEGUE_OK;
}

/* --- values --- */

static float of_bf16(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float y;
    memcpy(&y, &bits, sizeof y);
    return y;
}

/* To the nearest, ties to even; a NaN stays one. */
static uint16_t to_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

segue_status sg_train_write_value(struct segue_trainer *t, float *to, const float *host, size_t rows, uint32_t width,
                                  segue_error *err)
{
    if (!t->resident || sg_resident_value_bytes(t->resident) == 4) return sg_train_write(t, to, host, rows * width, err);
    size_t stride = sg_train_stride(t, width), n = 2 * sg_train_words(t, rows, width);
    uint16_t *kept = sg_alloc(n * sizeof *kept);
    if (!kept) return sg_no_memory("a value", n * sizeof *kept, err);
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < width; c++) kept[r * stride + c] = to_bf16(host[r * width + c]);
    segue_status status = sg_resident_ops(t->resident)->write(t->resident, to, kept, n * sizeof *kept, err);
    sg_free(kept);
    return status;
}

segue_status sg_train_read_value(const struct segue_trainer *t, float *host, const float *from, size_t rows, uint32_t width,
                                 segue_error *err)
{
    if (!t->resident || sg_resident_value_bytes(t->resident) == 4) return sg_train_read(t, host, from, rows * width, err);
    size_t stride = sg_train_stride(t, width), n = 2 * sg_train_words(t, rows, width);
    uint16_t *kept = sg_alloc(n * sizeof *kept);
    if (!kept) return sg_no_memory("a value", n * sizeof *kept, err);
    segue_status status = sg_resident_ops(t->resident)->read(t->resident, kept, from, n * sizeof *kept, err);
    for (size_t r = 0; r < rows && status == SEGUE_OK; r++)
        for (size_t c = 0; c < width; c++) host[r * width + c] = of_bf16(kept[r * stride + c]);
    sg_free(kept);
    return status;
}
