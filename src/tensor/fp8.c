/* fp8.c: weights as e4m3 with one scale per row, made of what a file holds, whatever that is, each time that a row is read:
 * no second copy of a model lies in the host's memory. Scales are powers of two: e4m3 is a floating-point format, so a row's
 * error hardly depends on where its numbers lie between two of them (rms error over all matrices of SmolLM2: 2.65 % of a
 * row's length; with the largest number at 448 exactly 2.59 %), and a number times a power of two is a bf16, without another
 * rounding, wherever 16 bits are wanted.
 * SPDX-License-Identifier: MIT */
#include "tensor/fp8.h"

#include <math.h>
#include <string.h>

#include "base/num.h"

enum { PART = 256, LEAST = -117 /* exponent of the smallest scale: 2^-9 of it is no denormal number */ };

struct sg_tensor sg_tensor_fp8(const struct sg_tensor *from)
{
    struct sg_tensor t = *from;
    t.storage = SG_FP8;
    t.stored_as = sg_storage_info(SG_FP8)->name;
    t.bytes = t.rows * (t.cols + sizeof(float));
    t.transposed = 0;
    t.row_perm = t.col_perm = (struct sg_perm){0};
    t.made_of = from;
    return t;
}

/* The largest magnitude as bits, which are in the order of the numbers, with NaN above all. */
static uint32_t widest(const float *x, uint64_t n)
{
    uint32_t most = 0;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t u = sg_bits_of_f32(x[i]) & 0x7fffffffu;
        most = u > most ? u : most;
    }
    return most;
}

/* 448 is 1.75 * 2^8. */
static int exponent_of(uint32_t most)
{
    int e = (int)(most >> 23) - 127 - 8 + ((most & 0x7fffffu) > 0x600000u);
    return e < LEAST ? LEAST : e;
}

static float power(int e) { return sg_f32_of_bits((uint32_t)(e + 127) << 23); }

/* In two steps: compilers narrow what lies in memory faster than what they compute. */
static void encode(const float *x, uint64_t n, float inverse, uint8_t *codes)
{
    uint32_t part[PART];
    for (uint64_t at = 0; at < n; at += PART) {
        uint64_t many = n - at < PART ? n - at : PART;
        for (uint64_t i = 0; i < many; i++) part[i] = sg_e4m3_of_f32(x[at + i] * inverse);
        for (uint64_t i = 0; i < many; i++) codes[at + i] = (uint8_t)part[i];
    }
}

float sg_tensor_fp8_row(const struct sg_tensor *t, uint64_t row, float *room, uint8_t *codes)
{
    sg_tensor_row(t->made_of, row, 0, t->cols, room);
    uint32_t most = widest(room, t->cols);
    if (most >= 0x7f800000u) {
        memset(codes, 0x7f, t->cols);
        return NAN;
    }
    int e = exponent_of(most);
    encode(room, t->cols, power(-e), codes);
    return power(e);
}

void sg_fp8_read(const struct sg_tensor *t, uint64_t row, uint64_t from, uint64_t n, float *out)
{
    const struct sg_tensor *s = t->made_of;
    uint32_t most = 0;
    float part[PART];
    if (n < t->cols)
        for (uint64_t c = 0; c < t->cols; c += PART) {
            uint64_t many = t->cols - c < PART ? t->cols - c : PART;
            sg_tensor_row(s, row, c, many, part);
            uint32_t here = widest(part, many);
            most = here > most ? here : most;
        }
    sg_tensor_row(s, row, from, n, out);
    if (n == t->cols) most = widest(out, n);
    int e = exponent_of(most);
    float inverse = most < 0x7f800000u ? power(-e) : NAN, scale = most < 0x7f800000u ? power(e) : NAN;
    for (uint64_t i = 0; i < n; i++) out[i] = scale * sg_f32_of_e4m3((uint8_t)sg_e4m3_of_f32(out[i] * inverse));
}
