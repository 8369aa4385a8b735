/* slot.c: sizes of state slots, and conversion of K and V rows to and from their storage. This is
 * the layout in which units exchange state; a unit may store it differently in its memory.
 * SPDX-License-Identifier: MIT */
#include <math.h>

#include "base/num.h"
#include "graph/graph.h"

enum { Q8_BLOCK = 32 };

int sg_slot_equal(const struct sg_slot *a, const struct sg_slot *b)
{
    return a->kind == b->kind && a->layer == b->layer && a->heads == b->heads && a->width == b->width &&
           a->depth == b->depth && a->window == b->window;
}

/* Q8_0 has separate blocks for each head, so that a head can be read alone. */
size_t sg_slot_row_bytes(const struct sg_slot *s, enum sg_storage storage)
{
    if (s->kind != SG_SLOT_K && s->kind != SG_SLOT_V) return 0;
    size_t n = (size_t)s->heads * s->width;
    switch (storage) {
    case SG_F32: return n * 4;
    case SG_F16:
    case SG_BF16: return n * 2;
    case SG_Q8_0: return n + s->heads * (size_t)2 * ((s->width + Q8_BLOCK - 1) / Q8_BLOCK);
    default: return 0;
    }
}

size_t sg_slot_fixed_bytes(const struct sg_slot *s)
{
    if (s->kind == SG_SLOT_CONV || s->kind >= SG_SLOT_VALUE) return (size_t)4 * s->heads * s->width;
    if (s->kind == SG_SLOT_DELTA) return (size_t)4 * s->heads * s->depth * s->width;
    return 0;
}

/* A window of w positions includes the position itself. */
uint64_t sg_slot_first_needed(const struct sg_slot *s, uint64_t rows)
{
    return s->window && rows + 1 > s->window ? rows + 1 - s->window : 0;
}

/* Encode n <= 32 numbers as one block: fp16 scale, then n int8 codes. Returns the end of the block.
 * A number that is not finite makes the scale NaN, and with it the whole block, so that the error
 * is not hidden. */
static uint8_t *q8_encode(const float *x, uint32_t n, uint8_t *out)
{
    float max = 0;
    int finite = 1;
    for (uint32_t i = 0; i < n; i++) {
        if (!isfinite(x[i])) finite = 0;
        if (fabsf(x[i]) > max) max = fabsf(x[i]);
    }
    /* As in ggml's Q8_0, the codes are computed with the fp32 scale, although fp16 is stored. */
    float scale = finite ? max / 127.0f : NAN, inverse = finite && scale > 0 ? 1.0f / scale : 0.0f;
    /* The inverse of a scale below 2^-128 is infinite; such tiny numbers become 0. */
    if (isinf(inverse)) inverse = 0.0f;
    uint16_t half = sg_f16_of_f32(scale);
    out[0] = (uint8_t)(half & 0xff);
    out[1] = (uint8_t)(half >> 8);
    for (uint32_t i = 0; i < n; i++) {
        int8_t q = finite ? (int8_t)roundf(x[i] * inverse) : 1;
        memcpy(out + 2 + i, &q, 1);
    }
    return out + 2 + n;
}

/* The inverse; returns the end of the block. */
static const uint8_t *q8_decode(const uint8_t *in, uint32_t n, float *x)
{
    float scale = sg_f32_of_f16(sg_le16(in));
    for (uint32_t i = 0; i < n; i++) {
        int8_t q;
        memcpy(&q, in + 2 + i, 1);
        x[i] = scale * (float)q;
    }
    return in + 2 + n;
}

/* 16-bit numbers are in the byte order of the machine; all supported ones are little endian. */
void sg_slot_encode(const struct sg_slot *s, enum sg_storage storage, const float *row, void *out)
{
    size_t n = (size_t)s->heads * s->width;
    uint8_t *to = out;
    if (storage == SG_F32) {
        memcpy(out, row, n * 4);
    } else if (storage == SG_Q8_0) {
        for (uint32_t h = 0; h < s->heads; h++)
            for (uint32_t i = 0; i < s->width; i += Q8_BLOCK)
                to = q8_encode(row + (size_t)h * s->width + i,
                               s->width - i < Q8_BLOCK ? s->width - i : Q8_BLOCK, to);
    } else {
        for (size_t i = 0; i < n; i++) {
            uint16_t half = storage == SG_F16 ? sg_f16_of_f32(row[i]) : sg_bf16_of_f32(row[i]);
            memcpy(to + 2 * i, &half, 2);
        }
    }
}

/* The inverse of sg_slot_encode. */
void sg_slot_decode(const struct sg_slot *s, enum sg_storage storage, const void *in, float *row)
{
    size_t n = (size_t)s->heads * s->width;
    const uint8_t *from = in;
    if (storage == SG_F32) {
        memcpy(row, in, n * 4);
    } else if (storage == SG_Q8_0) {
        for (uint32_t h = 0; h < s->heads; h++)
            for (uint32_t i = 0; i < s->width; i += Q8_BLOCK)
                from = q8_decode(from, s->width - i < Q8_BLOCK ? s->width - i : Q8_BLOCK,
                                 row + (size_t)h * s->width + i);
    } else {
        for (size_t i = 0; i < n; i++) {
            uint16_t half;
            memcpy(&half, from + 2 * i, 2);
            row[i] = storage == SG_F16 ? sg_f32_of_f16(half) : sg_f32_of_bf16(half);
        }
    }
}

void sg_slot_convert(const struct sg_slot *s, enum sg_storage a, const void *from, enum sg_storage b, void *to, float *row)
{
    if (a == b) {
        memcpy(to, from, sg_slot_row_bytes(s, a));
        return;
    }
    sg_slot_decode(s, a, from, row);
    sg_slot_encode(s, b, row, to);
}
