/* npu_loops.h: the kernels of npu_kernels.h for vectors of NPU_BYTES bytes, with the vector extensions of GCC and Clang. It is
 * included once per instruction set, by a file that defines:
 *   NPU_BYTES, NPU_MR    bytes of a vector; rows of a tile
 *   NPU_TABLE, NPU_NAME  the table to define, and its name
 *   NPU_WIDEN(p), NPU_NARROW(v, p), NPU_ROUND(v)
 *                        conversions of a vector where the processor has them for fp16; without them portable code is used
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "base/num.h"
#include "unit/ane/npu/npu_kernels.h"

typedef float vec __attribute__((vector_size(NPU_BYTES)));
typedef uint32_t bits __attribute__((vector_size(NPU_BYTES)));
typedef int32_t ints __attribute__((vector_size(NPU_BYTES)));
/* A tile has MR rows of two vectors: 2 * MR accumulators, two vectors of b and one of a fit the
 * registers. */
enum { LANES = NPU_BYTES / 4, MR = NPU_MR, NR = 2 * LANES };

/* Unaligned vector load; memcpy compiles to one instruction. */
static inline vec load(const float *p)
{
    vec v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* Unaligned vector store. */
static inline void store(float *p, vec v) { memcpy(p, &v, sizeof v); }
/* Broadcasts x to all lanes. */
static inline vec all(float x)
{
    vec v = {0};
    return v + x;
}

#ifdef NPU_ROUND
#define round_vec(v) NPU_ROUND(v)
#else
/* Rounds fp32 lanes to the nearest fp16 value, ties to even, and returns them as fp32. Normal fp16
 * results drop the low 13 mantissa bits: adding 0xfff plus the lowest bit that remains rounds ties to
 * even. Results below 2^-14 (0x38800000) are subnormal in fp16: adding and subtracting 0.5 rounds them
 * to multiples of 2^-24. Results of 2^16 and more (0x47800000) become infinity. NaN keeps its payload. */
static inline vec round_vec(vec v)
{
    bits u = (bits)v, sign = u & 0x80000000u, size = u & 0x7fffffffu;
    bits normal = (size + 0xfffu + ((size >> 13) & 1u)) & ~0x1fffu;
    vec small_value = (vec)size + 0.5f;
    bits small = (bits)(small_value - 0.5f);
    bits is_small = (bits)((ints)size < (ints){0} + 0x38800000),
         is_huge = (bits)((ints)normal >= (ints){0} + 0x47800000);
    bits is_nan = (bits)((ints)size > (ints){0} + 0x7f800000);
    bits out = (is_small & small) | (~is_small & ((is_huge & 0x7f800000u) | (~is_huge & normal)));
    return (vec)((is_nan & u) | (~is_nan & (out | sign)));
}
#endif

/* A comparison of vectors is -1 where it holds, so counts go down. The scalar tail uses the conversion of
 * base/num.h, which rounds the same way. */
static void loop_round16(float *p, size_t n, struct sg_npu_rounding *out)
{
    vec error = {0}, size = {0};
    ints over = {0}, under = {0};
    struct sg_npu_rounding sum = {0};
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        vec v = load(p + i), y = round_vec(v), e = v - y;
        bits a = (bits)v & 0x7fffffffu, b = (bits)y & 0x7fffffffu, finite = (bits)((ints)b < (ints){0} + 0x7f800000);
        store(p + i, y);
        over += ((ints)a < (ints){0} + 0x7f800000) & (ints)~finite;
        under += ((ints)b < (ints){0} + 0x38800000) & (ints)(v != y);
        error += (vec)((bits)e & 0x7fffffffu & finite);
        size += (vec)(b & finite);
    }
    for (int k = 0; k < LANES; k++) {
        sum.overflows -= (uint32_t)over[k];
        sum.underflows -= (uint32_t)under[k];
        sum.error += error[k];
        sum.size += size[k];
    }
    for (; i < n; i++) {
        float v = p[i], y = sg_f32_of_f16(sg_f16_of_f32(v)), size_y = y < 0 ? -y : y, e = v < y ? y - v : v - y;
        p[i] = y;
        if (!(size_y < __builtin_inff())) {
            sum.overflows += (v < 0 ? -v : v) < __builtin_inff();
            continue;
        }
        sum.underflows += size_y < 0x1p-14f && v != y;
        sum.error += e;
        sum.size += size_y;
    }
    *out = sum;
}

/* fp16 bits to fp32, exact. */
static void loop_widen(const uint16_t *in, float *out, size_t n)
{
    size_t i = 0;
#ifdef NPU_WIDEN
    for (; i + LANES <= n; i += LANES) store(out + i, NPU_WIDEN(in + i));
#endif
    for (; i < n; i++) out[i] = sg_f32_of_f16(in[i]);
}

/* fp32 to fp16 bits. The values were rounded before, so the conversion is exact. */
static void loop_narrow(const float *in, uint16_t *out, size_t n)
{
    size_t i = 0;
#ifdef NPU_NARROW
    for (; i + LANES <= n; i += LANES) NPU_NARROW(load(in + i), out + i);
#endif
    for (; i < n; i++) out[i] = sg_f16_of_f32(in[i]);
}

/* exp(x) = 2^n * e^r with |r| <= ln 2 / 2 and a polynomial of degree 6 for e^r; the error is within 2
 * ulp of fp32. Results: 0 below -87, infinity above 88.7, NaN for NaN. Lanes out of range are computed
 * as exp(0) and replaced at the end, so that no lane overflows. */
static inline vec exp_vec(vec x)
{
    bits is_low = (bits)(x < all(-87.0f)), is_high = (bits)(x > all(88.7f)), is_nan = (bits)(x != x);
    bits out_of_range = is_low | is_high | is_nan;
    vec y = (vec)((bits)x & ~out_of_range);
    vec shifted = y * 1.44269504088896341f + 12582912.0f; /* 1.5 * 2^23: rounds to a whole number */
    vec n = shifted - 12582912.0f;
    vec r = y - n * 0.693359375f + n * 2.12194440e-4f;
    vec p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    bits value = (bits)p + (((bits)shifted - 0x4b400000u) << 23);
    return (vec)((value & ~out_of_range) | (is_high & 0x7f800000u) | (is_nan & 0x7fc00000u));
}

/* out[i] = exp(in[i]). The tail is padded to a full vector, so each value has the same result at any
 * index. in and out may be the same array. */
static void loop_exp_row(const float *in, float *out, size_t n)
{
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) store(out + i, exp_vec(load(in + i)));
    if (i < n) {
        float rest[LANES] = {0};
        memcpy(rest, in + i, (n - i) * sizeof *rest);
        store(rest, exp_vec(load(rest)));
        memcpy(out + i, rest, (n - i) * sizeof *rest);
    }
}

/* 2^v by a table of 2^f, f in 0 .. 1 by 1/32: what table_exp2 of npu_knots.c gives, for many numbers. */
static inline vec exp2_vec(const float *knot, vec v)
{
    bits is_low = (bits)(v < all(-25.0f)), is_high = (bits)(v >= all(16.0f)), is_nan = (bits)(v != v);
    bits out_of_range = is_low | is_high | is_nan;
    vec t = (vec)((bits)v & ~out_of_range) * 32.0f, from = {0}, to = {0};
    ints i = __builtin_convertvector(t, ints);
    i += (ints)(__builtin_convertvector(i, vec) > t); /* -1 where truncation went up */
    ints at = i & 31;
    for (int k = 0; k < LANES; k++) {
        from[k] = knot[at[k]];
        to[k] = knot[at[k] + 1];
    }
    vec y = from + (t - __builtin_convertvector(i, vec)) * (to - from);
    bits value = (bits)y + ((bits)(i >> 5) << 23);
    return (vec)((value & ~out_of_range) | (is_high & 0x7f800000u) | (is_nan & 0x7fc00000u));
}

/* out[i] = 2^(scale * in[i]) by the table; in and out may be the same array. */
static void loop_exp2_knots(const float *knot, float scale, const float *in, float *out, size_t n)
{
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) store(out + i, exp2_vec(knot, load(in + i) * scale));
    if (i < n) {
        float rest[LANES] = {0};
        memcpy(rest, in + i, (n - i) * sizeof *rest);
        store(rest, exp2_vec(knot, load(rest) * scale));
        memcpy(out + i, rest, (n - i) * sizeof *rest);
    }
}

/* Writes m x n accumulators to c. A narrow tile (n < NR) is copied through a row buffer so that no
 * column after n is written. */
static inline void store_tile(vec acc[MR][2], float *c, size_t ldc, uint32_t m, uint32_t n)
{
    if (n == NR) {
        for (uint32_t i = 0; i < m; i++) {
            store(c + i * ldc, acc[i][0]);
            store(c + i * ldc + LANES, acc[i][1]);
        }
        return;
    }
    for (uint32_t i = 0; i < m; i++) {
        float row[NR];
        store(row, acc[i][0]);
        store(row + LANES, acc[i][1]);
        memcpy(c + i * ldc, row, n * sizeof *row);
    }
}

/* c[m][n] = a^T b with fp32 accumulators. a is packed [k][MR], b is packed [k][NR]; padding rows and
 * columns are computed and not stored. */
static void loop_tile(const float *a, const float *b, size_t k, float *c, size_t ldc, uint32_t m, uint32_t n)
{
    vec acc[MR][2] = {{{0}}};
    for (size_t at = 0; at < k; at++, a += MR, b += NR) {
        vec b0 = load(b), b1 = load(b + LANES);
#pragma GCC unroll 16
        for (int i = 0; i < MR; i++) {
            acc[i][0] += b0 * a[i];
            acc[i][1] += b1 * a[i];
        }
    }
    store_tile(acc, c, ldc, m, n);
}

/* The accumulation of profiles with fp16_tiles: four products are added in fp32, their sum is rounded
 * to fp16, and the rounded sums are added in fp32. */
static void loop_tile_rounded(const float *a, const float *b, size_t k, float *c, size_t ldc, uint32_t m,
                              uint32_t n)
{
    vec acc[MR][2] = {{{0}}};
    for (size_t at = 0; at < k; at += 4) {
        size_t four = k - at < 4 ? k - at : 4;
        for (int i = 0; i < MR; i++) {
            vec s0 = {0}, s1 = {0};
            for (size_t j = 0; j < four; j++) {
                s0 += load(b + (at + j) * NR) * a[(at + j) * MR + (size_t)i];
                s1 += load(b + (at + j) * NR + LANES) * a[(at + j) * MR + (size_t)i];
            }
            acc[i][0] += round_vec(s0);
            acc[i][1] += round_vec(s1);
        }
    }
    store_tile(acc, c, ldc, m, n);
}

/* p as a multiple of 2^-step, where magic = 1.5 * 2^(23 - step): the sum with it has that unit in the last place while |p| is
 * below a third of it. A product of two fp16 numbers has 22 bits, so those of a larger one are multiples already. */
static inline vec stepped(vec p, float magic)
{
    vec rounded = p + magic - magic;
    ints small = (p < magic / 3) & (p > -magic / 3);
    return (vec)((small & (ints)rounded) | (~small & (ints)p));
}

static void loop_tile_stepped(const float *a, const float *b, size_t k, float *c, size_t ldc, uint32_t m, uint32_t n,
                              uint32_t step)
{
    const float magic = 1.5f * (float)(1u << (23 - (step < 23 ? step : 23))) / (float)(step < 23 ? 1u : 1u << (step - 23));
    vec acc[MR][2] = {{{0}}};
    for (size_t at = 0; at < k; at++, a += MR, b += NR)
        for (int i = 0; i < MR; i++) {
            acc[i][0] += stepped(load(b) * a[i], magic);
            acc[i][1] += stepped(load(b + LANES) * a[i], magic);
        }
    store_tile(acc, c, ldc, m, n);
}

const struct sg_npu_kernels NPU_TABLE = {NPU_NAME,     MR,           NR,           loop_round16, loop_widen,
                                         loop_narrow,  loop_exp_row, loop_exp2_knots,
                                         loop_tile,    loop_tile_rounded, loop_tile_stepped};
