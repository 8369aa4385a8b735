/* k_avx2_quant.c: quantises activations into tiles, for AVX2. Bit-equal to plain_quant (k_plain.h): the
 * same products, rounded to nearest even by vcvtps2dq.
 * SPDX-License-Identifier: MIT */
#if defined(__x86_64__)
#include "unit/cpu/kernels/k_avx2.h"
#include "unit/cpu/kernels/k_plain.h"

/* Quantises 8 numbers: q to tile and, if fine, the remainders to tile + apart, four bytes every nt * 4.
 * Returns 256 q + remainder, or q, per lane. */
INLINE __m256i quant_8(const float *v, float inverse, uint32_t fine, uint8_t *tile, size_t apart, uint32_t nt)
{
    __m256 y = _mm256_mul_ps(_mm256_loadu_ps(v), _mm256_set1_ps(inverse));
    __m256i q = _mm256_cvtps_epi32(y), sum = q;
    int32_t all[8];
    _mm256_storeu_si256((__m256i *)(void *)all, q);
    for (uint32_t i = 0; i < 8; i++) tile[i / 4 * nt * 4 + i % 4] = (uint8_t)all[i];
    if (fine != SG_FINE) return sum;
    __m256i r =
        _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_sub_ps(y, _mm256_cvtepi32_ps(q)), _mm256_set1_ps(256.0f)));
    r = _mm256_max_epi32(_mm256_min_epi32(r, _mm256_set1_epi32(127)), _mm256_set1_epi32(-127));
    _mm256_storeu_si256((__m256i *)(void *)all, r);
    for (uint32_t i = 0; i < 8; i++) tile[apart + i / 4 * nt * 4 + i % 4] = (uint8_t)all[i];
    return _mm256_add_epi32(_mm256_slli_epi32(q, 8), r);
}

/* keys that are kept sorted: the outlier chunks and the one after them */

enum { KEYS_N = SG_OUTLIERS_MAX + 1 };

/* Maximum of each chunk of 4 columns, for four rows x [row]: 32-bit element r of lane i belongs to row
 * r and chunk i. A 4 x 4 transpose in which every unpack is followed by a maximum. */
INLINE __m256i chunk_max(const __m256i *x)
{
    __m256i a = _mm256_max_epi32(_mm256_unpacklo_epi32(x[0], x[1]), _mm256_unpackhi_epi32(x[0], x[1])),
            b = _mm256_max_epi32(_mm256_unpacklo_epi32(x[2], x[3]), _mm256_unpackhi_epi32(x[2], x[3]));
    return _mm256_max_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
}

/* Inserts x into the sorted keys best[from..]: one step of an insertion network, all rows at once. */
INLINE void key_insert(__m256i *best, const int from, __m256i x)
{
    UNROLL
    for (int i = from; i < KEYS_N; i++) {
        __m256i more = _mm256_max_epi32(best[i], x);
        x = _mm256_min_epi32(best[i], x);
        best[i] = more;
    }
}

/* Keys of plain_outliers_choose for four rows, largest first. Both 128-bit lanes keep their own sorted
 * keys, which are merged at the end. */
INLINE void rows4_keys(const struct plain_rows4 *f, __m128i *key)
{
    const __m256i largest = _mm256_set1_epi32((int32_t)(0x7fffffffu & ~KEY_INDEX));
    /* KEY_INDEX - chunk, for the two chunks of a load */
    __m256i index = _mm256_set_epi32(62, 62, 62, 62, 63, 63, 63, 63), best[KEYS_N], other[KEYS_N];
    UNROLL
    for (int i = 0; i < KEYS_N; i++) best[i] = _mm256_setzero_si256();
    for (uint32_t c = 0; c < f->columns; c += 8) {
        __m256i x[4];
        UNROLL
        for (int r = 0; r < 4; r++)
            x[r] = _mm256_and_si256(_mm256_loadu_si256((const __m256i *)(const void *)(f->v[r] + c)), largest);
        key_insert(best, 0, _mm256_or_si256(chunk_max(x), index));
        index = _mm256_sub_epi32(index, _mm256_set1_epi32(2));
    }
    /* merge the keys of the two 128-bit lanes */
    UNROLL
    for (int i = 0; i < KEYS_N; i++) other[i] = _mm256_permute2x128_si256(best[i], best[i], 1);
    UNROLL
    for (int i = 0; i < KEYS_N; i++) key_insert(best, i, other[i]);
    UNROLL
    for (int i = 0; i < KEYS_N; i++) key[i] = _mm256_castsi256_si128(best[i]);
}

/* plain_key_max of four keys. */
INLINE __m128i key_max(__m128i key)
{
    const __m128i index = _mm_set1_epi32(KEY_INDEX);
    return _mm_and_si128(_mm_or_si128(key, index), _mm_cmpgt_epi32(key, index));
}

/* Mask of the first `rows` lanes, and a store under it. */
INLINE __m128i rows_mask(uint32_t rows) { return _mm_cmpgt_epi32(_mm_set1_epi32((int32_t)rows), _mm_set_epi32(3, 2, 1, 0)); }
INLINE void rows_store(void *to, __m128i rows, __m128i x) { _mm_maskstore_epi32((int *)to, rows, x); }

/* Scales of four rows to d; returns 127 / maximum, or 0. first, other: the largest key and the one
 * after the outliers. */
INLINE __m128 rows4_scales(__m128i first, __m128i other, __m128i rows, float *d)
{
    const __m128 least = _mm_mul_ps(_mm_castsi128_ps(key_max(first)), _mm_set1_ps(1.0f / 128.0f));
    /* signed comparison is safe: the bits of |v| are not negative */
    const __m128i top = _mm_max_epi32(key_max(other), _mm_castps_si128(least));
    const __m128 f = _mm_castsi128_ps(top), finite = _mm_castsi128_ps(_mm_cmpgt_epi32(_mm_set1_epi32(0x7f800000), top)),
                 large = _mm_and_ps(finite, _mm_cmpgt_ps(f, _mm_set1_ps(BLOCK_MIN)));
    rows_store(d, rows, _mm_castps_si128(_mm_blendv_ps(_mm_set1_ps(NAN), _mm_mul_ps(f, _mm_set1_ps(1.0f / 127.0f)), finite)));
    return _mm_and_ps(large, _mm_div_ps(_mm_set1_ps(127.0f), f));
}

/* v * by rounded to integers; 0 where by is 0, also for infinities. */
INLINE __m256i round_8(const float *v, __m256 by)
{
    const __m256 any = _mm256_cmp_ps(by, _mm256_setzero_ps(), _CMP_NEQ_OQ);
    return _mm256_cvtps_epi32(_mm256_and_ps(any, _mm256_mul_ps(_mm256_loadu_ps(v), by)));
}

/* Columns [c, c + 32), or 16 at the end, of four rows as bytes: round, pack 32 -> 16 -> 8 bits, and
 * transpose so that the four bytes of each chunk and row are adjacent. Odd blocks are negated. */
INLINE void rows4_quant(const struct plain_rows4 *f, uint32_t c, const int block, const float *inverse, uint8_t *q)
{
    const size_t apart = 4 * (size_t)f->nt;
    const uint32_t groups = f->columns - c < 32 ? 2 : 4;
    __m256i w[4];
    UNROLL
    for (int r = 0; r < 4; r++) {
        __m256i y[4];
        UNROLL
        for (uint32_t e = 0; e < 4; e++) {
            /* rounding is symmetric, so negating the factor negates the bytes */
            const float sign = (c + 8 * e) / (uint32_t)block % 2 ? -inverse[r] : inverse[r];
            y[e] = round_8(f->v[r] + c + 8 * (e < groups ? e : 0), _mm256_set1_ps(sign));
        }
        w[r] = _mm256_packs_epi16(_mm256_packs_epi32(y[0], y[1]), _mm256_packs_epi32(y[2], y[3]));
    }
    const __m256i a = _mm256_unpacklo_epi32(w[0], w[1]), b = _mm256_unpacklo_epi32(w[2], w[3]),
                  g = _mm256_unpackhi_epi32(w[0], w[1]), h = _mm256_unpackhi_epi32(w[2], w[3]),
                  each[4] = {_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b), _mm256_unpacklo_epi64(g, h),
                             _mm256_unpackhi_epi64(g, h)};
    uint8_t *to = q + (size_t)c * f->nt + 4 * f->t;
    const __m128i rows = rows_mask(f->rows);
    UNROLL
    for (uint32_t e = 0; e < 4; e++, to += 2 * apart) {
        const __m128i low = _mm256_castsi256_si128(each[e]), high = _mm256_extracti128_si256(each[e], 1);
        /* at the end of a row only 16 columns may exist */
        if (e >= groups) break;
        /* whole stores; a tile's last rows go through a mask */
        if (f->rows == 4) {
            _mm_storeu_si128((__m128i *)(void *)to, low);
            _mm_storeu_si128((__m128i *)(void *)(to + apart), high);
        } else {
            rows_store(to, rows, low);
            rows_store(to + apart, rows, high);
        }
    }
}

/* The i-th outlier chunk of each of four rows: upper = (x + 64) >> 7, low = x - 128 upper; writes the
 * bytes, offsets and the bias, and replaces the bytes in q. up [block][SG_BF16_ROWS]: adds 128 upper to
 * the sums of the blocks. */
INLINE void rows4_outlier(const struct plain_rows4 *f, __m128i key, const int block, const float *inverse, uint8_t *q,
                       uint8_t *outliers, float up[][SG_BF16_ROWS])
{
    /* index of the chunk, index of its block, and the offsets of both in unpacked weights */
    const __m128i at = _mm_andnot_si128(key, _mm_set1_epi32(KEY_INDEX)), in = _mm_srli_epi32(at, block == 32 ? 3 : 2),
                  from = _mm_mullo_epi32(in, _mm_set1_epi32(128 + 16 * block)),
                  vector = _mm_add_epi32(_mm_slli_epi32(at, 6), _mm_add_epi32(_mm_slli_epi32(in, 7), _mm_set1_epi32(128))),
                  sign = _mm_sub_epi32(_mm_setzero_si128(), _mm_and_si128(in, _mm_set1_epi32(1))), rows = rows_mask(f->rows);
    __m128i low[4], upper[4];
    uint32_t chunk[4], b[4], bytes[4];
    float sums[4];
    _mm_storeu_si128((__m128i *)(void *)chunk, at);
    _mm_storeu_si128((__m128i *)(void *)b, in);
    UNROLL
    for (int r = 0; r < 4; r++) {
        const __m128 by = _mm_set1_ps(inverse[r]), any = _mm_cmpneq_ps(by, _mm_setzero_ps());
        const __m128i x = _mm_cvtps_epi32(_mm_and_ps(any, _mm_mul_ps(_mm_loadu_ps(f->v[r] + 4 * chunk[r]), by)));
        upper[r] = _mm_srai_epi32(_mm_add_epi32(x, _mm_set1_epi32(64)), 7);
        low[r] = _mm_sub_epi32(x, _mm_slli_epi32(upper[r], 7));
    }
    const __m128i l = _mm_packs_epi16(_mm_packs_epi32(low[0], low[1]), _mm_packs_epi32(low[2], low[3])),
                  u = _mm_packs_epi16(_mm_packs_epi32(upper[0], upper[1]), _mm_packs_epi32(upper[2], upper[3])),
                  pairs = _mm_maddubs_epi16(_mm_set1_epi8(1), u),
                  sum = _mm_slli_epi32(_mm_madd_epi16(pairs, _mm_set1_epi16(1)), 7);
    uint8_t *to = outliers + 4 * f->t;
    rows_store(to, rows, u);
    rows_store(to + 4 * f->nt, rows, vector);
    rows_store(to + 8 * f->nt, rows, from);
    rows_store(to + 12 * f->nt, rows, _mm_sub_epi32(_mm_setzero_si128(), sum));
    _mm_storeu_si128((__m128i *)(void *)bytes, _mm_sub_epi8(_mm_xor_si128(l, sign), sign));
    _mm_storeu_ps(sums, _mm_cvtepi32_ps(sum));
    for (uint32_t r = 0; r < f->rows; r++) {
        memcpy(q + (chunk[r] * f->nt + f->t + r) * 4, bytes + r, 4);
        up[b[r]][f->t + r] += sums[r];
    }
}

/* Block sums as stored in q, four rows at a time: n and s of kernels.h. */
INLINE void rows4_sums(const struct plain_rows4 *f, const struct sg_superblock *a, const int block, uint8_t *n, float *s,
                      float up[][SG_BF16_ROWS])
{
    const __m128i rows = rows_mask(f->rows);
    const uint8_t *q = a->q + 4 * f->t;
    n += 4 * f->t, s += f->t;
    for (uint32_t b = 0; b < a->blocks; b++, n += 4 * f->nt, s += f->nt) {
        __m128i pairs = _mm_setzero_si128();
        for (int c = 0; c < block; c += 4, q += 4 * f->nt)
            pairs = _mm_add_epi16(pairs,
                                  _mm_maddubs_epi16(_mm_set1_epi8(1), _mm_maskload_epi32((const int *)(const void *)q, rows)));
        const __m128i sum = _mm_madd_epi16(pairs, _mm_set1_epi16(1));
        const __m128 all = _mm_cvtepi32_ps(sum), more = _mm_loadu_ps(up[b] + f->t);
        rows_store(n, rows, _mm_sub_epi32(_mm_set1_epi32(SG_BIAS), _mm_slli_epi32(sum, 7)));
        rows_store(s, rows, _mm_castps_si128(b % 2 ? _mm_sub_ps(more, all) : _mm_add_ps(more, all)));
    }
}

/* One superblock after the other, four rows at a time. */
static inline void quant_outlier(const float *x, size_t ldx, uint32_t nt, size_t k, const int block, uint8_t *tile)
{
    for (size_t from = 0; from < k; from += SG_SUPERBLOCK) {
        const struct sg_superblock a = sg_superblock_at(tile, k - from, (uint32_t)block, nt);
        uint8_t *outliers = tile + (a.raised - tile), *n = tile + (a.n - tile);
        float *d = (float *)(void *)(tile + (a.d - tile)), *s = (float *)(void *)(tile + (a.s - tile)), inverse[4];
        float up[SG_SUPERBLOCK / 16][SG_BF16_ROWS];
        memset(up, 0, sizeof up[0] * a.blocks);
        for (uint32_t t = 0; t < nt; t += 4) {
            const struct plain_rows4 f = plain_rows4_at(x + from, ldx, t, nt, a.blocks * (uint32_t)block);
            __m128i key[KEYS_N];
            rows4_keys(&f, key);
            _mm_storeu_ps(inverse, rows4_scales(key[0], key[a.chunks], rows_mask(f.rows), d + t));
            for (uint32_t c = 0; c < f.columns; c += 32) rows4_quant(&f, c, block, inverse, tile);
            for (uint32_t i = 0; i < a.chunks; i++)
                rows4_outlier(&f, key[i], block, inverse, tile, outliers + 16 * (size_t)nt * i, up);
            rows4_sums(&f, &a, block, n, s, up);
        }
        tile = outliers + 16 * (size_t)nt * a.chunks;
    }
}

/* Dispatch by form and block size; COARSE and FINE are done here, block by block. */
static void quant(const float *x, size_t ldx, uint32_t nt, size_t k, uint32_t block, uint32_t fine,
                  uint8_t *tile)
{
    const size_t bytes = (size_t)nt * block;
    if (fine == SG_OUTLIER) {
        if (block == 32) quant_outlier(x, ldx, nt, k, 32, tile);
        else quant_outlier(x, ldx, nt, k, 16, tile);
        return;
    }
    for (size_t from = 0; from < k; from += block, tile += sg_tile_bytes(block, block, fine, nt)) {
        float *d = (float *)(void *)(tile + sg_tile_scales(block, fine, nt)), *s = d + nt;
        for (uint32_t t = 0; t < nt; t++) {
            const float *v = x + t * ldx + from;
            uint32_t top = plain_max_bits(v, block);
            float inverse = plain_inverse(top);
            __m256i sum = _mm256_setzero_si256();
            for (uint32_t i = 0; i < block; i += 8)
                sum = _mm256_add_epi32(sum, quant_8(v + i, inverse, fine, tile + (i / 4 * nt + t) * 4, bytes, nt));
            int32_t all[8], total = 0;
            _mm256_storeu_si256((__m256i *)(void *)all, sum);
            for (int i = 0; i < 8; i++) total += all[i];
            d[t] = plain_scale(top, fine);
            s[t] = d[t] * (float)total;
        }
    }
}

void sg_kernels_avx2_quant(struct sg_kernels *k) { k->quant = quant; }
#endif
