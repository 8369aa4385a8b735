/* k_avx512_quant.c: quantises activations into tiles and transposes float tiles, for AVX-512. Bit-equal
 * to k_plain.h.
 * SPDX-License-Identifier: MIT */
#if defined(__x86_64__)
#include "unit/cpu/kernels/k_avx512.h"
#include "unit/cpu/kernels/k_plain.h"

/* Quantises 16 numbers y: q and, if fine, the remainders as bytes. Returns 256 q + remainder, or q, per
 * lane. */
INLINE __m512i quant_16(__m512 y, const int fine, uint8_t *q, uint8_t *rest)
{
    const __m512i limit = _mm512_set1_epi32(127);
    __m512i x = _mm512_cvtps_epi32(y);
    _mm_storeu_si128((__m128i *)(void *)q, _mm512_cvtepi32_epi8(x));
    /* SG_COARSE has no remainders */
    if (fine != SG_FINE) return x;
    __m512 r = _mm512_mul_ps(_mm512_sub_ps(y, _mm512_cvtepi32_ps(x)), _mm512_set1_ps(256.0f));
    __m512i z = _mm512_max_epi32(_mm512_min_epi32(_mm512_cvtps_epi32(r), limit),
                                 _mm512_sub_epi32(_mm512_setzero_si512(), limit));
    _mm_storeu_si128((__m128i *)(void *)rest, _mm512_cvtepi32_epi8(z));
    return _mm512_add_epi32(_mm512_slli_epi32(x, 8), z);
}

/* Largest |v| of a block, as bits. */
INLINE uint32_t block_max_bits(const float *v, const int block)
{
    const __m512i largest = _mm512_set1_epi32(0x7fffffff);
    __m512i a = _mm512_and_si512(_mm512_loadu_si512(v), largest);
    if (block == 32) a = _mm512_max_epu32(a, _mm512_and_si512(_mm512_loadu_si512(v + 16), largest));
    return _mm512_reduce_max_epu32(a);
}

/* Row t of one block: maximum, scale, bytes in chunks of four, and the sum. */
INLINE void quant_block(const float *v, const int block, const int fine, uint32_t t, uint32_t nt, uint8_t *to)
{
    uint8_t q[32], r[32], *more = to + (size_t)nt * (uint32_t)block;
    float *d = (float *)(void *)(to + sg_tile_scales((uint32_t)block, (uint32_t)fine, nt));
    const uint32_t top = block_max_bits(v, block);
    const float inverse = plain_inverse(top);
    const __m512 by = _mm512_set1_ps(inverse);
    __m512i sum = quant_16(_mm512_mul_ps(_mm512_loadu_ps(v), by), fine, q, r);
    if (block == 32)
        /* second half of a block of 32 */
        sum = _mm512_add_epi32(sum, quant_16(_mm512_mul_ps(_mm512_loadu_ps(v + 16), by), fine, q + 16, r + 16));
    /* integers: the order of additions does not matter */
    const int32_t total = _mm512_reduce_add_epi32(sum);
    for (uint32_t c = 0; c < (uint32_t)block / 4; c++) {
        memcpy(to + (c * nt + t) * 4, q + 4 * c, 4);
        if (fine == SG_FINE) memcpy(more + (c * nt + t) * 4, r + 4 * c, 4);
    }
    d[t] = plain_scale(top, fine == SG_FINE);
    d[nt + t] = d[t] * (float)total;
}

/* All rows, block by block, with one scale per block and row. */
INLINE void quant_rows(const float *x, size_t ldx, uint32_t nt, size_t k, const int block, const int fine,
                       uint8_t *tile)
{
    const size_t step = sg_tile_bytes((size_t)block, (uint32_t)block, (uint32_t)fine, nt);
    for (uint32_t t = 0; t < nt; t++)
        for (size_t b = 0; b < k / (size_t)block; b++)
            quant_block(x + t * ldx + b * (size_t)block, block, fine, t, nt, tile + b * step);
}

/* keys that are kept sorted: the outlier chunks and the one after them */

enum { KEYS_N = SG_OUTLIERS_MAX + 1 };

/* Maximum of each chunk of 4 columns, for four rows x [row]: 32-bit element r of lane i belongs to row
 * r and chunk i. */
INLINE __m512i chunk_max(const __m512i *x)
{
    __m512i a = _mm512_max_epu32(_mm512_unpacklo_epi32(x[0], x[1]), _mm512_unpackhi_epi32(x[0], x[1])),
            b = _mm512_max_epu32(_mm512_unpacklo_epi32(x[2], x[3]), _mm512_unpackhi_epi32(x[2], x[3]));
    return _mm512_max_epu32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}

/* Inserts x into the sorted keys best[from..]: one step of an insertion network, all rows at once. */
INLINE void key_insert(__m512i *best, const int from, __m512i x)
{
    UNROLL
    for (int i = from; i < KEYS_N; i++) {
        __m512i more = _mm512_max_epu32(best[i], x);
        x = _mm512_min_epu32(best[i], x);
        best[i] = more;
    }
}

/* Keys of plain_outliers_choose for four rows, largest first. The four 128-bit lanes keep their own
 * sorted keys, which are merged in two steps. */
INLINE void rows4_keys(const struct plain_rows4 *f, __m128i *key)
{
    const __m512i largest = _mm512_set1_epi32((int32_t)(0x7fffffffu & ~KEY_INDEX));
    /* KEY_INDEX - chunk, for the four chunks of a load */
    __m512i index = _mm512_set_epi32(60, 60, 60, 60, 61, 61, 61, 61, 62, 62, 62, 62, 63, 63, 63, 63), best[KEYS_N];
    UNROLL
    for (int i = 0; i < KEYS_N; i++) best[i] = _mm512_setzero_si512();
    for (uint32_t c = 0; c < f->columns; c += 16) {
        __m512i x[4];
        UNROLL
        for (int r = 0; r < 4; r++) x[r] = _mm512_and_si512(_mm512_loadu_si512(f->v[r] + c), largest);
        key_insert(best, 0, _mm512_or_si512(chunk_max(x), index));
        index = _mm512_sub_epi32(index, _mm512_set1_epi32(4));
    }
    __m512i other[KEYS_N];
    /* merge the keys of opposite, then of adjacent 128-bit lanes */
    UNROLL
    for (int i = 0; i < KEYS_N; i++) other[i] = _mm512_shuffle_i32x4(best[i], best[i], 0x4e);
    UNROLL
    for (int i = 0; i < KEYS_N; i++) key_insert(best, i, other[i]);
    UNROLL
    for (int i = 0; i < KEYS_N; i++) other[i] = _mm512_shuffle_i32x4(best[i], best[i], 0xb1);
    UNROLL
    for (int i = 0; i < KEYS_N; i++) key_insert(best, i, other[i]);
    UNROLL
    for (int i = 0; i < KEYS_N; i++) key[i] = _mm512_castsi512_si128(best[i]);
}

/* plain_key_max of four keys. */
INLINE __m128i key_max(__m128i key)
{
    return _mm_maskz_or_epi32(_mm_cmpgt_epu32_mask(key, _mm_set1_epi32(KEY_INDEX)), key, _mm_set1_epi32(KEY_INDEX));
}

/* Scales of four rows to d; returns 127 / maximum, or 0. first, other: the largest key and the one
 * after the outliers. */
INLINE __m128 rows4_scales(__m128i first, __m128i other, __mmask8 rows, float *d)
{
    const __m128 least = _mm_mul_ps(_mm_castsi128_ps(key_max(first)), _mm_set1_ps(1.0f / 128.0f));
    const __m128i top = _mm_max_epu32(key_max(other), _mm_castps_si128(least));
    const __m128 f = _mm_castsi128_ps(top);
    const __mmask8 finite = _mm_cmplt_epu32_mask(top, _mm_set1_epi32(0x7f800000)),
                   large = _mm_cmp_ps_mask(f, _mm_set1_ps(BLOCK_MIN), _CMP_GT_OQ);
    _mm_mask_storeu_ps(d, rows, _mm_mask_mul_ps(_mm_set1_ps(NAN), finite, f, _mm_set1_ps(1.0f / 127.0f)));
    return _mm_maskz_div_ps(finite & large, _mm_set1_ps(127.0f), f);
}

/* Stores the four 128-bit lanes, `apart` bytes from each other; masked: only the first rows of each. */
INLINE void lanes_store(__m512i x, uint8_t *to, size_t apart)
{
    _mm_storeu_si128((__m128i *)(void *)to, _mm512_castsi512_si128(x));
    _mm_storeu_si128((__m128i *)(void *)(to + apart), _mm512_extracti32x4_epi32(x, 1));
    _mm_storeu_si128((__m128i *)(void *)(to + 2 * apart), _mm512_extracti32x4_epi32(x, 2));
    _mm_storeu_si128((__m128i *)(void *)(to + 3 * apart), _mm512_extracti32x4_epi32(x, 3));
}
INLINE void lanes_store_masked(__m512i x, uint8_t *to, size_t apart, __mmask8 rows)
{
    _mm_mask_storeu_epi32(to, rows, _mm512_castsi512_si128(x));
    _mm_mask_storeu_epi32(to + apart, rows, _mm512_extracti32x4_epi32(x, 1));
    _mm_mask_storeu_epi32(to + 2 * apart, rows, _mm512_extracti32x4_epi32(x, 2));
    _mm_mask_storeu_epi32(to + 3 * apart, rows, _mm512_extracti32x4_epi32(x, 3));
}

/* Columns [c, c + 64) of four rows (fewer at the end of a row) as bytes: round, pack 32 -> 16 -> 8
 * bits, and transpose so that the four bytes of each chunk and row are adjacent. Odd blocks are
 * negated. */
INLINE void rows4_quant(const struct plain_rows4 *f, uint32_t c, const int whole, const int block, const float *inverse,
                        uint8_t *q)
{
    const size_t apart = 4 * (size_t)f->nt;
    const uint32_t groups = whole ? 4 : (f->columns - c) / 16;
    const __mmask8 rows = (__mmask8)((1u << f->rows) - 1u);
    __m512i w[4];
    UNROLL
    for (int r = 0; r < 4; r++) {
        const __m512 by = _mm512_set1_ps(inverse[r]), minus = _mm512_set1_ps(-inverse[r]);
        const __mmask16 any = inverse[r] != 0.0f ? 0xffff : 0;
        __m512i y[4];
        UNROLL
        for (uint32_t e = 0; e < 4; e++) {
            /* columns beyond the end are replaced by the first ones and not stored */
            const float *v = f->v[r] + c + 16 * (e < groups ? e : 0);
            y[e] = _mm512_cvtps_epi32(_mm512_maskz_mul_ps(any, _mm512_loadu_ps(v), e * 16 / (uint32_t)block % 2 ? minus : by));
        }
        w[r] = _mm512_packs_epi16(_mm512_packs_epi32(y[0], y[1]), _mm512_packs_epi32(y[2], y[3]));
    }
    const __m512i a = _mm512_unpacklo_epi32(w[0], w[1]), b = _mm512_unpacklo_epi32(w[2], w[3]),
                  g = _mm512_unpackhi_epi32(w[0], w[1]), h = _mm512_unpackhi_epi32(w[2], w[3]),
                  each[4] = {_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b), _mm512_unpacklo_epi64(g, h),
                             _mm512_unpackhi_epi64(g, h)};
    uint8_t *to = q + (size_t)c * f->nt + 4 * f->t;
    UNROLL
    for (uint32_t e = 0; e < 4; e++) {
        if (whole) lanes_store(each[e], to + 4 * e * apart, apart);
        else if (e < groups) lanes_store_masked(each[e], to + 4 * e * apart, apart, rows);
    }
}

/* The i-th outlier chunk of each of four rows: upper = (x + 64) >> 7, low = x - 128 upper; writes the
 * bytes, offsets and the bias, and replaces the bytes in q. up [block][SG_BF16_ROWS]: adds 128 upper to
 * the sums of the blocks. */
INLINE void rows4_outlier(const struct plain_rows4 *f, __m128i key, const int block, const float *inverse, uint8_t *q,
                       uint8_t *outliers, float up[][SG_BF16_ROWS])
{
    const __m128i at = _mm_andnot_si128(key, _mm_set1_epi32(KEY_INDEX)), in = _mm_srli_epi32(at, block == 32 ? 3 : 2),
                  from = _mm_mullo_epi32(in, _mm_set1_epi32(128 + 16 * block)),
                  vector = _mm_add_epi32(_mm_slli_epi32(at, 6), _mm_add_epi32(_mm_slli_epi32(in, 7), _mm_set1_epi32(128))),
                  sign = _mm_sub_epi32(_mm_setzero_si128(), _mm_and_si128(in, _mm_set1_epi32(1)));
    const __mmask8 rows = (__mmask8)((1u << f->rows) - 1u);
    __m128i low[4], upper[4];
    uint32_t chunk[4], b[4], bytes[4];
    float sums[4];
    _mm_storeu_si128((__m128i *)(void *)chunk, at);
    _mm_storeu_si128((__m128i *)(void *)b, in);
    UNROLL
    for (int r = 0; r < 4; r++) {
        /* 0 times infinity would be NaN */
        const __mmask8 any = inverse[r] != 0.0f ? 0xff : 0;
        const __m128i x = _mm_cvtps_epi32(_mm_maskz_mul_ps(any, _mm_loadu_ps(f->v[r] + 4 * chunk[r]), _mm_set1_ps(inverse[r])));
        upper[r] = _mm_srai_epi32(_mm_add_epi32(x, _mm_set1_epi32(64)), 7);
        low[r] = _mm_sub_epi32(x, _mm_slli_epi32(upper[r], 7));
    }
    /* four rows x four bytes each */
    const __m128i l = _mm_packs_epi16(_mm_packs_epi32(low[0], low[1]), _mm_packs_epi32(low[2], low[3])),
                  u = _mm_packs_epi16(_mm_packs_epi32(upper[0], upper[1]), _mm_packs_epi32(upper[2], upper[3])),
                  sum = _mm_slli_epi32(_mm_dpbusd_epi32(_mm_setzero_si128(), _mm_set1_epi8(1), u), 7);
    uint8_t *to = outliers + 4 * f->t;
    _mm_mask_storeu_epi32(to, rows, u);
    _mm_mask_storeu_epi32(to + 4 * f->nt, rows, vector);
    _mm_mask_storeu_epi32(to + 8 * f->nt, rows, from);
    _mm_mask_storeu_epi32(to + 12 * f->nt, rows, _mm_sub_epi32(_mm_setzero_si128(), sum));
    _mm_storeu_si128((__m128i *)(void *)bytes, _mm_sub_epi8(_mm_xor_si128(l, sign), sign));
    _mm_storeu_ps(sums, _mm_cvtepi32_ps(sum));
    for (uint32_t r = 0; r < f->rows; r++) {
        memcpy(q + (chunk[r] * f->nt + f->t + r) * 4, bytes + r, 4);
        up[b[r]][f->t + r] += sums[r];
    }
}

/* Four rows of one superblock: choose outliers, scale, bytes, outlier records. */
INLINE void rows4_superblock(const struct plain_rows4 *f, const int block, uint8_t *q, uint8_t *outliers, float *d,
                             float up[][SG_BF16_ROWS])
{
    const uint32_t chunks = sg_outlier_chunks(f->columns);
    __m128i key[KEYS_N];
    float inverse[4];
    rows4_keys(f, key);
    _mm_storeu_ps(inverse, rows4_scales(key[0], key[chunks], (__mmask8)((1u << f->rows) - 1u), d + f->t));
    uint32_t c = 0;
    /* whole stores as long as four rows and 64 columns exist */
    for (; c + 64 <= f->columns && f->rows == 4; c += 64) rows4_quant(f, c, 1, block, inverse, q);
    for (; c < f->columns; c += 64) rows4_quant(f, c, 0, block, inverse, q);
    for (uint32_t i = 0; i < chunks; i++) rows4_outlier(f, key[i], block, inverse, q, outliers + 16 * (size_t)f->nt * i, up);
}

/* Block sums as stored in q, all rows of the tile at once: n and s of kernels.h. */
INLINE void blocks_sum(const struct sg_superblock *a, const int block, uint32_t nt, uint8_t *n, float *s,
                       float up[][SG_BF16_ROWS])
{
    const __mmask16 rows = tail_mask(nt);
    const uint8_t *q = a->q;
    for (uint32_t b = 0; b < a->blocks; b++, n += 4 * nt, s += nt) {
        __m512i sum = _mm512_setzero_si512();
        for (int c = 0; c < block; c += 4, q += 4 * nt)
            sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(1), _mm512_maskz_loadu_epi32(rows, q));
        _mm512_mask_storeu_epi32(n, rows, _mm512_sub_epi32(_mm512_set1_epi32(SG_BIAS), _mm512_slli_epi32(sum, 7)));
        /* stored q of odd blocks is negated, so its sum is subtracted */
        const __m512 f = _mm512_cvtepi32_ps(sum), more = _mm512_loadu_ps(up[b]);
        _mm512_mask_storeu_ps(s, rows, b % 2 ? _mm512_sub_ps(more, f) : _mm512_add_ps(more, f));
    }
}

/* One superblock after the other, four rows at a time, then the block sums. */
INLINE void quant_outlier(const float *x, size_t ldx, uint32_t nt, size_t k, const int block, uint8_t *tile)
{
    for (size_t from = 0; from < k; from += SG_SUPERBLOCK) {
        const struct sg_superblock a = sg_superblock_at(tile, k - from, (uint32_t)block, nt);
        const uint32_t columns = a.blocks * (uint32_t)block;
        uint8_t *outliers = tile + (a.raised - tile);
        float *d = (float *)(void *)(tile + (a.d - tile)), up[SG_SUPERBLOCK / 16][SG_BF16_ROWS];
        memset(up, 0, sizeof up[0] * a.blocks);
        for (uint32_t t = 0; t < nt; t += 4) {
            const struct plain_rows4 f = plain_rows4_at(x + from, ldx, t, nt, columns);
            rows4_superblock(&f, block, tile, outliers, d, up);
        }
        blocks_sum(&a, block, nt, tile + (a.n - tile), (float *)(void *)(tile + (a.s - tile)), up);
        tile = outliers + 16 * (size_t)nt * a.chunks;
    }
}

static void quant(const float *x, size_t ldx, uint32_t nt, size_t k, uint32_t block, uint32_t fine,
                  uint8_t *tile)
{
    if (fine == SG_OUTLIER && block == 32) quant_outlier(x, ldx, nt, k, 32, tile);
    else if (fine == SG_OUTLIER) quant_outlier(x, ldx, nt, k, 16, tile);
    else if (block == 32 && fine) quant_rows(x, ldx, nt, k, 32, SG_FINE, tile);
    else if (block == 32) quant_rows(x, ldx, nt, k, 32, SG_COARSE, tile);
    else if (fine) quant_rows(x, ldx, nt, k, 16, SG_FINE, tile);
    else quant_rows(x, ldx, nt, k, 16, SG_COARSE, tile);
}

/* [nt][k] -> [k][nt]: 4 x 4 transposes of four rows by 16 columns; tails element by element. */
static void transpose(const float *x, size_t ldx, uint32_t nt, size_t k, float *tile)
{
    /* columns in whole vectors */
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
    /* remaining rows, and remaining columns of all rows */
    for (uint32_t r = 0; r < nt; r++)
        for (size_t i = r < t ? whole : 0; i < k; i++) tile[i * nt + r] = x[r * ldx + i];
}

void sg_kernels_avx512_quant(struct sg_kernels *k)
{
    k->quant = quant;
    k->spread = transpose;
}
#endif
