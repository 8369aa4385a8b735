/* slot.c: what a slot of a state weighs, and K and V rows to and from their storage. This is the canonical
 * layout that units exchange; it must not know how a unit keeps its own rows.
 * SPDX-License-Identifier: MIT */
#include <math.h>

#include "base/num.h"
#include "graph/graph.h"

enum { Q8_BLOCK = 32 };

int sg_slot_same(const struct sg_slot *a, const struct sg_slot *b)
{
    return a->kind == b->kind && a->layer == b->layer && a->heads == b->heads && a->width == b->width &&
           a->depth == b->depth && a->window == b->window;
}

/* In q8 each head has blocks of its own, so that a head can be read by itself. */
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
    if (s->kind == SG_SLOT_CONV) return (size_t)4 * s->heads * s->width;
    if (s->kind == SG_SLOT_DELTA) return (size_t)4 * s->heads * s->depth * s->width;
    return 0;
}

uint64_t sg_slot_first_needed(const struct sg_slot *s, uint64_t rows)
{
    return s->window && rows + 1 > s->window ? rows + 1 - s->window : 0;
}

/* One block: fp16 scale, then n int8. A number that is not finite makes the whole block NaN, so that it stays
 * visible. */
static uint8_t *q8_encode(const float *x, uint32_t n, uint8_t *out)
{
    float most = 0;
    int finite = 1;
    for (uint32_t i = 0; i < n; i++) {
        if (!isfinite(x[i])) finite = 0;
        if (fabsf(x[i]) > most) most = fabsf(x[i]);
    }
    /* The scale is used in fp32 and stored in fp16, as GGUF's Q8_0 does it. */
    float scale = finite ? most / 127.0f : NAN, inverse = finite && scale > 0 ? 1.0f / scale : 0.0f;
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

/* 16-bit numbers are in the machine's order, which is little-endian on everything that runs this. */
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
