/* k_plain_quant.h: activations in the forms that the matrix kernels read, in plain C: quantised tiles (SG_COARSE, SG_FINE,
 * SG_OUTLIER), transposed fp32 tiles and bf16 tiles; kernels.h specifies the layouts. The helpers that choose outliers
 * and scales are also used by the vector kernels of the same name, which must be bit-equal.
 *
 * Products are stored in volatile variables, which rounds them to fp32: otherwise a compiler may contract a product and a
 * sum into one fused multiply-add, and the tiles would differ between instruction sets.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CPU_K_PLAIN_QUANT_H
#define SG_UNIT_CPU_K_PLAIN_QUANT_H

#include <math.h>
#include <string.h>

#include "base/num.h"
#include "unit/cpu/kernels/kernels.h"

#define BLOCK_MIN 1e-36f /* a block whose maximum is not larger counts as zeros; 127 / top would overflow */

/* Rounds to nearest even, for |x| < 2^22. */
static inline int32_t plain_round(float x)
{
    volatile float rounded = x; /* volatile: keeps the compiler from fusing the multiplication before into this addition */
    return (int32_t)(sg_bits_of_f32(rounded + 12582912.0f) - 0x4b400000u);
}

/* Largest |v| as bits of fp32. Bits of non-negative floats order like integers, and infinities and NaN
 * are larger than all finite numbers. */
static inline uint32_t plain_max_bits(const float *v, uint32_t n)
{
    uint32_t m[16] = {0}, top = 0, bits[16];
    for (uint32_t i = 0; i < n; i += 16) {
        memcpy(bits, v + i, sizeof bits);
        for (int j = 0; j < 16; j++) m[j] = (bits[j] & 0x7fffffffu) > m[j] ? bits[j] & 0x7fffffffu : m[j];
    }
    for (int j = 0; j < 16; j++) top = m[j] > top ? m[j] : top;
    return top;
}

/* 127 / top; 0 for blocks that are zero or not finite. */
static inline float plain_inverse(uint32_t top)
{
    float f = sg_f32_of_bits(top);
    return f > BLOCK_MIN && top < 0x7f800000u ? 127.0f / f : 0.0f;
}
/* Scale d of a block. NaN when a number is not finite, so that the result shows it. */
static inline float plain_scale(uint32_t top, uint32_t fine)
{
    float d = top < 0x7f800000u ? sg_f32_of_bits(top) * (1.0f / 127.0f) : NAN;
    return fine ? d * (1.0f / 256.0f) : d;
}

/* Low bits of a key: KEY_INDEX minus the index of the chunk, so that of equal numbers the first chunk
 * wins. */
enum { KEY_INDEX = SG_SUPERBLOCK / 4 - 1 };

/* Upper bound of the largest number of the chunk of a key, as bits: the key with all index bits set; 0
 * for a chunk of zeros. */
static inline uint32_t plain_key_max(uint32_t key) { return key > KEY_INDEX ? key | KEY_INDEX : 0; }

/* Chooses the outlier chunks of a superblock (indices to at) and returns the maximum, as bits, that its
 * scale is made of. The key of a chunk of 4 columns is its largest |v| as bits, with the low bits
 * replaced by the index, so that keys are distinct. An insertion network keeps the SG_OUTLIERS_MAX + 1
 * largest keys. The one after the outliers bounds the remaining numbers. The maximum is at least 1/128
 * of the largest number, because an outlier has only 7 bits more. */
static inline uint32_t plain_outliers_choose(const float *v, uint32_t columns, uint32_t *at)
{
    const uint32_t outliers = sg_outlier_chunks(columns);
    uint32_t best[SG_OUTLIERS_MAX + 1] = {0};
    for (uint32_t c = 0; c < columns / 4; c++) {
        uint32_t key = 0;
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t bits = sg_bits_of_f32(v[4 * c + i]) & (0x7fffffffu - KEY_INDEX);
            key = bits > key ? bits : key;
        }
        key |= KEY_INDEX - c;
        for (uint32_t i = 0; i <= SG_OUTLIERS_MAX; i++) {
            const uint32_t less = key < best[i] ? key : best[i];
            best[i] = key > best[i] ? key : best[i];
            key = less;
        }
    }
    for (uint32_t i = 0; i < outliers; i++) at[i] = KEY_INDEX - (best[i] & KEY_INDEX);
    const uint32_t top = plain_key_max(best[outliers]),
                   least = sg_bits_of_f32(sg_f32_of_bits(plain_key_max(best[0])) * (1.0f / 128.0f));
    return top > least ? top : least;
}

/* Four rows of a superblock, from row t of a tile of nt. When fewer remain, the last row is repeated
 * and not stored. */
struct plain_rows4 {
    const float *v[4];
    uint32_t t, nt, rows, columns;
};

static inline struct plain_rows4 plain_rows4_at(const float *x, size_t ldx, uint32_t t, uint32_t nt, uint32_t columns)
{
    struct plain_rows4 f = {.t = t, .nt = nt, .rows = nt - t < 4 ? nt - t : 4, .columns = columns};
    for (uint32_t r = 0; r < 4; r++) f.v[r] = x + (t + (r < f.rows ? r : f.rows - 1)) * ldx;
    return f;
}

/* Byte offsets in a superblock of unpacked weights: the scales of the block that contains a chunk, and
 * the chunk's vector. */
static inline uint32_t plain_block_offset(uint32_t chunk, uint32_t block) { return chunk * 4 / block * (128 + block * 16); }
static inline uint32_t plain_chunk_offset(uint32_t chunk, uint32_t block)
{
    return plain_block_offset(chunk, block) + 128 + chunk % (block / 4) * 64;
}

static inline void plain_store_u32(uint8_t *to, uint32_t bits) { memcpy(to, &bits, 4); }

/* Writes outlier chunk `chunk` of row t: the value is split into upper * 128 + low, the low byte
 * replaces the one in q (negated in odd blocks), the upper byte goes to the outlier record with its
 * offsets. s: sums of the blocks. */
static inline void plain_outlier(const float *v, float inverse, uint32_t chunk, uint32_t block, uint32_t t, uint32_t nt,
                               uint8_t *q, uint8_t *outliers, float *s)
{
    int32_t sum = 0;
    for (uint32_t i = 0; i < 4; i++) {
        volatile float y = inverse != 0.0f ? v[4 * chunk + i] * inverse : 0.0f;
        int32_t n = plain_round(y), upper = (n + 32832) / 128 - 256, low = n - 128 * upper;
        outliers[4 * t + i] = (uint8_t)upper;
        q[(chunk * nt + t) * 4 + i] = (uint8_t)(chunk * 4 / block % 2 ? -low : low);
        sum += upper;
    }
    plain_store_u32(outliers + 4 * (nt + t), plain_chunk_offset(chunk, block));
    plain_store_u32(outliers + 4 * (2 * nt + t), plain_block_offset(chunk, block));
    plain_store_u32(outliers + 4 * (3 * nt + t), (uint32_t)(-128 * sum));
    s[chunk * 4 / block * nt + t] += 128.0f * (float)sum;
}

/* Block sums of row t as stored in q, after the outliers were replaced: n for the kernels that start at
 * SG_BIAS, s for m. */
static inline void plain_sums(const uint8_t *q, uint32_t blocks, uint32_t block, uint32_t t, uint32_t nt, uint8_t *n,
                              float *s)
{
    for (uint32_t b = 0; b < blocks; b++) {
        int32_t sum = 0;
        for (uint32_t c = b * block; c < (b + 1) * block; c++) sum += (int8_t)q[(c / 4 * nt + t) * 4 + c % 4];
        plain_store_u32(n + 4 * (b * nt + t), (uint32_t)SG_BIAS - 128u * (uint32_t)sum);
        s[b * nt + t] += (float)(b % 2 ? -sum : sum);
    }
}

/* Quantises nt rows in superblocks with outliers; the layout is in kernels.h. A product x * inverse is
 * only formed when inverse is not 0, so that infinities do not produce NaN bytes. */
static void plain_quant_outlier(const float *x, size_t ldx, uint32_t nt, size_t k, uint32_t block, uint8_t *tile)
{
    for (size_t from = 0; from < k; from += SG_SUPERBLOCK) {
        const struct sg_superblock a = sg_superblock_at(tile, k - from, block, nt);
        uint8_t *n = tile + (a.n - tile), *outliers = tile + (a.raised - tile);
        float *s = (float *)(void *)(tile + (a.s - tile)), *d = (float *)(void *)(tile + (a.d - tile));
        for (uint32_t t = 0; t < nt; t++) {
            const float *v = x + t * ldx + from;
            uint32_t at[SG_OUTLIERS_MAX], top = plain_outliers_choose(v, a.blocks * block, at);
            float inverse = plain_inverse(top);
            for (uint32_t c = 0; c < a.blocks * block; c++) {
                volatile float y = inverse != 0.0f ? v[c] * inverse : 0.0f;
                int32_t q = plain_round(y);
                tile[(c / 4 * nt + t) * 4 + c % 4] = (uint8_t)(c / block % 2 ? -q : q);
            }
            d[t] = plain_scale(top, 0);
            for (uint32_t b = 0; b < a.blocks; b++) s[b * nt + t] = 0.0f;
            for (uint32_t i = 0; i < a.chunks; i++)
                plain_outlier(v, inverse, at[i], block, t, nt, tile, outliers + 16 * (size_t)nt * i, s);
            plain_sums(tile, a.blocks, block, t, nt, n, s);
        }
        tile = outliers + 16 * (size_t)nt * a.chunks;
    }
}

/* Quantises nt rows in blocks with one scale per block and row: 8 bits, or 16 bits in two bytes if
 * fine. */
static void plain_quant(const float *x, size_t ldx, uint32_t nt, size_t k, uint32_t block, uint32_t fine,
                        uint8_t *tile)
{
    const size_t bytes = (size_t)nt * block;
    if (fine == SG_OUTLIER) {
        plain_quant_outlier(x, ldx, nt, k, block, tile);
        return;
    }
    for (size_t from = 0; from < k; from += block, tile += sg_tile_bytes(block, block, fine, nt)) {
        float *d = (float *)(void *)(tile + sg_tile_scales(block, fine, nt)), *s = d + nt;
        for (uint32_t t = 0; t < nt; t++) {
            const float *v = x + t * ldx + from;
            uint32_t top = plain_max_bits(v, block);
            float inverse = plain_inverse(top);
            int32_t sum = 0;
            for (uint32_t i = 0; i < block; i++) {
                volatile float y = v[i] * inverse;
                int32_t q = plain_round(y), r = plain_round((y - (float)q) * 256.0f);
                size_t to = ((i / 4) * nt + t) * 4 + i % 4;
                r = r > 127 ? 127 : r < -127 ? -127 : r;
                sum += fine ? q * 256 + r : q;
                if (fine) tile[bytes + to] = (uint8_t)r;
                tile[to] = (uint8_t)q;
            }
            d[t] = plain_scale(top, fine);
            s[t] = d[t] * (float)sum;
        }
    }
}

/* x [nt][k] -> [k][nt], the order that the float kernels read. */
static void plain_transpose(const float *x, size_t ldx, uint32_t nt, size_t k, float *tile)
{
    for (uint32_t t = 0; t < nt; t++)
        for (size_t i = 0; i < k; i++) tile[i * nt + t] = x[t * ldx + i];
}

/* Term `term` of x: the rounded number, or the rounded remainder. */
static inline uint16_t plain_bf16_term(float x, uint32_t term)
{
    uint16_t high = sg_bf16_of_f32(x);
    return term ? sg_bf16_of_f32(x - sg_f32_of_bf16(high)) : high;
}

/* Rows in bf16 tiles, zero-padded to 16 rows and 32 columns. */
static void plain_bf16_rows(const float *x, size_t ldx, uint32_t nt, size_t k, uint32_t terms, uint16_t *out)
{
    for (size_t from = 0; from < k; from += SG_BF16_COLS)
        for (uint32_t term = 0; term < terms; term++)
            for (uint32_t t = 0; t < SG_BF16_ROWS; t++)
                for (size_t c = from; c < from + SG_BF16_COLS; c++)
                    *out++ = t < nt && c < k ? plain_bf16_term(x[t * ldx + c], term) : 0;
}

#endif
