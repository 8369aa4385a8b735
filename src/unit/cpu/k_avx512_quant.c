/* k_avx512_quant.c: activations into tiles, for AVX-512. Bit-equal to k_plain.h.
 * SPDX-License-Identifier: MIT */
#if defined(__x86_64__)
#include "unit/cpu/k_avx512.h"
#include "unit/cpu/k_plain.h"

/* 16 numbers y = q + rest: q as bytes, the rests as bytes; returns 256 * sum of q + sum of rests, or the sum
 * of q. */
INLINE __m512i quant_16(__m512 y, const int fine, uint8_t *q, uint8_t *rest)
{
    const __m512i limit = _mm512_set1_epi32(127);
    __m512i x = _mm512_cvtps_epi32(y);
    _mm_storeu_si128((__m128i *)(void *)q, _mm512_cvtepi32_epi8(x));
    if (fine != SG_FINE) return x;
    __m512 r = _mm512_mul_ps(_mm512_sub_ps(y, _mm512_cvtepi32_ps(x)), _mm512_set1_ps(256.0f));
    __m512i z = _mm512_max_epi32(_mm512_min_epi32(_mm512_cvtps_epi32(r), limit),
                                 _mm512_sub_epi32(_mm512_setzero_si512(), limit));
    _mm_storeu_si128((__m128i *)(void *)rest, _mm512_cvtepi32_epi8(z));
    return _mm512_add_epi32(_mm512_slli_epi32(x, 8), z);
}

INLINE uint32_t top_of(const float *v, const int block)
{
    const __m512i most = _mm512_set1_epi32(0x7fffffff);
    __m512i a = _mm512_and_si512(_mm512_loadu_si512(v), most);
    if (block == 32) a = _mm512_max_epu32(a, _mm512_and_si512(_mm512_loadu_si512(v + 16), most));
    return _mm512_reduce_max_epu32(a);
}

/* As plain_others: largest numbers of all chunks of 4, in lanes 0-3 and 4-7. */
INLINE uint32_t others_of(const float *v, const int block, uint32_t *at)
{
    const __m512i most = _mm512_set1_epi32(0x7fffffff),
                  firsts = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 28, 24, 20, 16, 12, 8, 4, 0);
    __m512i a = _mm512_and_si512(_mm512_loadu_si512(v), most), b = _mm512_setzero_si512();
    a = _mm512_max_epu32(a, _mm512_shuffle_epi32(a, _MM_PERM_CDAB));
    a = _mm512_max_epu32(a, _mm512_shuffle_epi32(a, _MM_PERM_BADC));
    if (block == 32) {
        b = _mm512_and_si512(_mm512_loadu_si512(v + 16), most);
        b = _mm512_max_epu32(b, _mm512_shuffle_epi32(b, _MM_PERM_CDAB));
        b = _mm512_max_epu32(b, _mm512_shuffle_epi32(b, _MM_PERM_BADC));
    }
    __m256i tops = _mm512_castsi512_si256(_mm512_permutex2var_epi32(a, firsts, b));
    __m256i all = _mm256_max_epu32(tops, _mm256_permute2x128_si256(tops, tops, 1));
    all = _mm256_max_epu32(all, _mm256_shuffle_epi32(all, 0xb1));
    all = _mm256_max_epu32(all, _mm256_shuffle_epi32(all, 0x4e));
    *at = (uint32_t)__builtin_ctz(_mm256_cmpeq_epi32_mask(tops, all));
    __m256i rest = _mm256_mask_mov_epi32(tops, (__mmask8)(1u << *at), _mm256_setzero_si256());
    rest = _mm256_max_epu32(rest, _mm256_permute2x128_si256(rest, rest, 1));
    rest = _mm256_max_epu32(rest, _mm256_shuffle_epi32(rest, 0xb1));
    rest = _mm256_max_epu32(rest, _mm256_shuffle_epi32(rest, 0x4e));
    __m128 least = _mm_mul_ps(_mm_castsi128_ps(_mm256_castsi256_si128(all)), _mm_set1_ps(1.0f / 128.0f));
    rest = _mm256_max_epu32(rest, _mm256_castsi128_si256(_mm_castps_si128(least)));
    return (uint32_t)_mm_cvtsi128_si32(_mm256_castsi256_si128(rest));
}

/* The chunk `at` of a block again, in two bytes. */
INLINE void chunk_raise(const float *v, float inverse, uint8_t *q, uint8_t *upper)
{
    __m128i x = _mm_cvtps_epi32(_mm_mul_ps(_mm_loadu_ps(v), _mm_set1_ps(inverse))),
            y = _mm_srai_epi32(_mm_add_epi32(x, _mm_set1_epi32(64)), 7);
    _mm_storeu_si32(q, _mm_cvtepi32_epi8(_mm_sub_epi32(x, _mm_slli_epi32(y, 7))));
    _mm_storeu_si32(upper, _mm_cvtepi32_epi8(y));
}

/* Row t of one block. */
INLINE void quant_block(const float *v, const int block, const int fine, uint32_t t, uint32_t nt, uint8_t *to)
{
    uint8_t q[32], r[32], *more = to + (size_t)nt * (uint32_t)block;
    float *d = (float *)(void *)(to + sg_tile_scales((uint32_t)block, (uint32_t)fine, nt));
    uint32_t at = 0, top = fine == SG_RAISED ? others_of(v, block, &at) : top_of(v, block);
    const float inverse = plain_inverse(top);
    const __m512 by = _mm512_set1_ps(inverse);
    __m512i sum = quant_16(_mm512_mul_ps(_mm512_loadu_ps(v), by), fine, q, r);
    if (block == 32)
        sum = _mm512_add_epi32(sum, quant_16(_mm512_mul_ps(_mm512_loadu_ps(v + 16), by), fine, q + 16, r + 16));
    const int32_t total = _mm512_reduce_add_epi32(sum);
    for (uint32_t c = 0; c < (uint32_t)block / 4; c++) {
        memcpy(to + (c * nt + t) * 4, q + 4 * c, 4);
        if (fine == SG_FINE) memcpy(more + (c * nt + t) * 4, r + 4 * c, 4);
    }
    if (fine == SG_RAISED) {
        chunk_raise(v + 4 * at, inverse, to + (at * nt + t) * 4, more + 4 * t);
        plain_place(more + 4 * (size_t)nt, at, total, t, nt);
    }
    d[t] = plain_scale(top, fine == SG_FINE);
    d[nt + t] = d[t] * (float)total;
}

/* --- raised, blocks of 32, four rows at a time: lane i of a vector holds column chunk i (or 4 + i) of all of them --- */

/* Of every row r, the largest of each chunk: lane i has rows 0-3 of chunk i. */
INLINE __m512i chunk_tops(const __m512i *x)
{
    __m512i a = _mm512_max_epu32(_mm512_unpacklo_epi32(x[0], x[1]), _mm512_unpackhi_epi32(x[0], x[1])),
            b = _mm512_max_epu32(_mm512_unpacklo_epi32(x[2], x[3]), _mm512_unpackhi_epi32(x[2], x[3]));
    return _mm512_max_epu32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}

INLINE __m512i lanes_max(__m512i x)
{
    x = _mm512_max_epu32(x, _mm512_shuffle_i32x4(x, x, 0x4e));
    return _mm512_max_epu32(x, _mm512_shuffle_i32x4(x, x, 0xb1));
}

/* As plain_others, of four rows; the result in every lane. */
INLINE __m512i four_others(const float *x, size_t ldx, uint32_t *at)
{
    const __m512i most = _mm512_set1_epi32(0x7fffffff);
    __m512i a[4], b[4];
    UNROLL
    for (int r = 0; r < 4; r++) {
        a[r] = _mm512_and_si512(_mm512_loadu_si512(x + (size_t)r * ldx), most);
        b[r] = _mm512_and_si512(_mm512_loadu_si512(x + (size_t)r * ldx + 16), most);
    }
    __m512i low = chunk_tops(a), high = chunk_tops(b), top = lanes_max(_mm512_max_epu32(low, high));
    uint32_t equal = _mm512_cmpeq_epi32_mask(low, top) | (uint32_t)_mm512_cmpeq_epi32_mask(high, top) << 16, taken = 0;
    UNROLL
    for (int r = 0; r < 4; r++) {    /* bit 4 c + r: row r, chunk c */
        uint32_t of_row = equal & 0x11111111u << r, first = of_row & (0u - of_row);
        at[r] = (uint32_t)__builtin_ctz(first) / 4;
        taken |= first;
    }
    low = _mm512_mask_mov_epi32(low, (__mmask16)taken, _mm512_setzero_si512());
    high = _mm512_mask_mov_epi32(high, (__mmask16)(taken >> 16), _mm512_setzero_si512());
    __m512i least = _mm512_castps_si512(_mm512_mul_ps(_mm512_castsi512_ps(top), _mm512_set1_ps(1.0f / 128.0f)));
    return _mm512_max_epu32(lanes_max(_mm512_max_epu32(low, high)), least);
}

/* Sums of the 32 numbers of each of four rows, given as sums of pairs. */
INLINE __m128i four_sums(const __m512i *x)
{
    __m512i a = _mm512_add_epi32(_mm512_unpacklo_epi32(x[0], x[1]), _mm512_unpackhi_epi32(x[0], x[1])),
            b = _mm512_add_epi32(_mm512_unpacklo_epi32(x[2], x[3]), _mm512_unpackhi_epi32(x[2], x[3])),
            c = _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    __m256i d = _mm256_add_epi32(_mm512_castsi512_si256(c), _mm512_extracti64x4_epi64(c, 1));
    return _mm_add_epi32(_mm256_castsi256_si128(d), _mm256_extracti128_si256(d, 1));
}

/* Four lanes of 16 bytes, apart from each other. */
INLINE void lanes_store(__m512i x, uint8_t *to, size_t apart)
{
    _mm_storeu_si128((__m128i *)(void *)to, _mm512_castsi512_si128(x));
    _mm_storeu_si128((__m128i *)(void *)(to + apart), _mm512_extracti32x4_epi32(x, 1));
    _mm_storeu_si128((__m128i *)(void *)(to + 2 * apart), _mm512_extracti32x4_epi32(x, 2));
    _mm_storeu_si128((__m128i *)(void *)(to + 3 * apart), _mm512_extracti32x4_epi32(x, 3));
}

/* The raised chunks of four rows, in two bytes, over what stands there. */
INLINE void four_raise(const float *x, size_t ldx, const uint32_t *at, const float *inverse, uint32_t t, uint32_t nt,
                       uint8_t *to, uint8_t *more)
{
    __m128i low[4], upper[4];
    uint32_t offset[4];
    UNROLL
    for (int r = 0; r < 4; r++) {
        __m128i q = _mm_cvtps_epi32(_mm_mul_ps(_mm_loadu_ps(x + (size_t)r * ldx + 4 * at[r]), _mm_set1_ps(inverse[r])));
        upper[r] = _mm_srai_epi32(_mm_add_epi32(q, _mm_set1_epi32(64)), 7);
        low[r] = _mm_sub_epi32(q, _mm_slli_epi32(upper[r], 7));
        offset[r] = 64 * at[r];
    }
    __m128i bytes = _mm_packs_epi16(_mm_packs_epi32(low[0], low[1]), _mm_packs_epi32(low[2], low[3]));
    _mm_storeu_si128((__m128i *)(void *)(more + 4 * t),
                     _mm_packs_epi16(_mm_packs_epi32(upper[0], upper[1]), _mm_packs_epi32(upper[2], upper[3])));
    memcpy(more + 4 * (nt + t), offset, sizeof offset);
    uint8_t each[16];
    _mm_storeu_si128((__m128i *)(void *)each, bytes);
    UNROLL
    for (uint32_t r = 0; r < 4; r++) memcpy(to + (at[r] * nt + t + r) * 4, each + 4 * r, 4);
}

/* Rows t to t + 3 of one block. */
INLINE void four_block(const float *x, size_t ldx, uint32_t t, uint32_t nt, uint8_t *to)
{
    uint8_t *more = to + (size_t)nt * 32;
    float *d = (float *)(void *)(to + sg_tile_scales(32, SG_RAISED, nt)), inverse[4];
    uint32_t at[4];
    __m128i top = _mm512_castsi512_si128(four_others(x, ldx, at));
    const __m128 f = _mm_castsi128_ps(top), seven = _mm_set1_ps(127.0f);
    const __mmask8 finite = _mm_cmplt_epu32_mask(top, _mm_set1_epi32(0x7f800000)),
                   large = _mm_cmp_ps_mask(f, _mm_set1_ps(TINY_BLOCK), _CMP_GT_OQ);
    _mm_storeu_ps(inverse, _mm_maskz_div_ps(finite & large, seven, f));
    __m512i wide[4], pairs[4];
    UNROLL
    for (int r = 0; r < 4; r++) {
        const __m512 by = _mm512_set1_ps(inverse[r]);
        const float *v = x + (size_t)r * ldx;
        wide[r] = _mm512_packs_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(v), by)),
                                     _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(v + 16), by)));
        pairs[r] = _mm512_madd_epi16(wide[r], _mm512_set1_epi16(1));
    }
    __m512 a = _mm512_castsi512_ps(_mm512_packs_epi16(wide[0], wide[1])),
           b = _mm512_castsi512_ps(_mm512_packs_epi16(wide[2], wide[3]));
    lanes_store(_mm512_castps_si512(_mm512_shuffle_ps(a, b, 0x88)), to + 4 * t, 4 * (size_t)nt);
    lanes_store(_mm512_castps_si512(_mm512_shuffle_ps(a, b, 0xdd)), to + 4 * (4 * nt + t), 4 * (size_t)nt);
    four_raise(x, ldx, at, inverse, t, nt, to, more);
    __m128 scale = _mm_mask_mul_ps(_mm_set1_ps(NAN), finite, f, _mm_set1_ps(1.0f / 127.0f));
    _mm_storeu_ps(d + t, scale);
    const __m128i sums = four_sums(pairs);
    _mm_storeu_si128((__m128i *)(void *)(more + 4 * (2 * nt + t)), _mm_sub_epi32(_mm_setzero_si128(), sums));
    _mm_storeu_ps(d + nt + t, _mm_mul_ps(scale, _mm_cvtepi32_ps(sums)));
}

INLINE void quant_rows(const float *x, size_t ldx, uint32_t nt, size_t k, const int block, const int fine,
                       uint8_t *tile)
{
    const size_t step = sg_tile_bytes((size_t)block, (uint32_t)block, (uint32_t)fine, nt);
    uint32_t t = 0;
    for (; block == 32 && fine == SG_RAISED && t + 4 <= nt; t += 4)
        for (size_t b = 0; b < k / 32; b++) four_block(x + t * ldx + 32 * b, ldx, t, nt, tile + b * step);
    for (; t < nt; t++)
        for (size_t b = 0; b < k / (size_t)block; b++)
            quant_block(x + t * ldx + b * (size_t)block, block, fine, t, nt, tile + b * step);
}
static void quant(const float *x, size_t ldx, uint32_t nt, size_t k, uint32_t block, uint32_t fine,
                  uint8_t *tile)
{
    if (block == 32 && fine == SG_RAISED) quant_rows(x, ldx, nt, k, 32, SG_RAISED, tile);
    else if (block == 32 && fine) quant_rows(x, ldx, nt, k, 32, SG_FINE, tile);
    else if (block == 32) quant_rows(x, ldx, nt, k, 32, SG_COARSE, tile);
    else if (fine == SG_RAISED) quant_rows(x, ldx, nt, k, 16, SG_RAISED, tile);
    else if (fine) quant_rows(x, ldx, nt, k, 16, SG_FINE, tile);
    else quant_rows(x, ldx, nt, k, 16, SG_COARSE, tile);
}

static void spread(const float *x, size_t ldx, uint32_t nt, size_t k, float *tile)
{
    const size_t whole = k / 16 * 16;
    uint32_t t = 0;
    for (; t + 4 <= nt; t += 4)
        for (size_t i = 0; i < whole; i += 16) {
            const float *v = x + t * ldx + i;
            uint8_t *to = (uint8_t *)(tile + i * nt + t);
            __m512 r0 = _mm512_loadu_ps(v), r1 = _mm512_loadu_ps(v + ldx), r2 = _mm512_loadu_ps(v + 2 * ldx),
                   r3 = _mm512_loadu_ps(v + 3 * ldx);
            __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(r0, r1)), b = _mm512_castps_pd(_mm512_unpacklo_ps(r2, r3)),
                    c = _mm512_castps_pd(_mm512_unpackhi_ps(r0, r1)), e = _mm512_castps_pd(_mm512_unpackhi_ps(r2, r3));
            const size_t column = 4 * (size_t)nt;
            lanes_store(_mm512_castpd_si512(_mm512_unpacklo_pd(a, b)), to, 4 * column);
            lanes_store(_mm512_castpd_si512(_mm512_unpackhi_pd(a, b)), to + column, 4 * column);
            lanes_store(_mm512_castpd_si512(_mm512_unpacklo_pd(c, e)), to + 2 * column, 4 * column);
            lanes_store(_mm512_castpd_si512(_mm512_unpackhi_pd(c, e)), to + 3 * column, 4 * column);
        }
    for (uint32_t r = 0; r < nt; r++)
        for (size_t i = r < t ? whole : 0; i < k; i++) tile[i * nt + r] = x[r * ldx + i];
}

void sg_kernels_avx512_quant(struct sg_kernels *k)
{
    k->quant = quant;
    k->spread = spread;
}
#endif
