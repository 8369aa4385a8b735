/* k_avx512_bf16.c: the product of training with factors rounded to bf16 and sums in fp32, for AVX512-BF16. The
 * packed factors have pairs of neighbouring numbers of `inner`: vdpbf16ps adds the two products of a pair in every lane, so
 * that a step multiplies twice the numbers of one in fp32. Sums of 384 numbers are added in ascending order; a number of C
 * does not depend on the rows and columns beside it.
 * SPDX-License-Identifier: MIT */
#if defined(__x86_64__)
#include "unit/cpu/kernels/k_avx512.h"
#include "unit/cpu/kernels/k_gemm_parts.h"

enum { WIDES = GEMM_COLS / GEMM_WIDE };

/* Sums over pairs of a [pairs][GEMM_ROWS] times b [pairs][GEMM_COLS], of `rows` rows, a constant. */
INLINE void pair_sums(const uint32_t *a, const uint32_t *b, uint32_t pairs, const int rows, gemm_wide *sums)
{
    __m512 s[GEMM_ROWS][WIDES];
    UNROLL for (int i = 0; i < rows; i++) s[i][0] = s[i][1] = _mm512_setzero_ps();
    for (uint32_t k = 0; k < pairs; k++) {
        const __m512bh b0 = (__m512bh)_mm512_loadu_si512(b + (size_t)k * GEMM_COLS);
        const __m512bh b1 = (__m512bh)_mm512_loadu_si512(b + (size_t)k * GEMM_COLS + GEMM_WIDE);
        UNROLL for (int i = 0; i < rows; i++)
        {
            const __m512bh both = (__m512bh)_mm512_set1_epi32((int32_t)a[(size_t)k * GEMM_ROWS + i]);
            s[i][0] = _mm512_dpbf16_ps(s[i][0], both, b0);
            s[i][1] = _mm512_dpbf16_ps(s[i][1], both, b1);
        }
    }
    UNROLL for (int i = 0; i < rows; i++)
        sums[i * WIDES] = (gemm_wide)s[i][0], sums[i * WIDES + 1] = (gemm_wide)s[i][1];
}

static void block(const void *packed_a, const void *packed_b, uint32_t pairs, uint32_t rows, uint32_t cols, float *c, size_t ldc,
                  int add)
{
    const uint32_t *a = packed_a, *b = packed_b;
    gemm_wide sums[GEMM_ROWS * WIDES];
    gemm_prefetch(c, ldc, rows, cols);
    if (rows > 8) pair_sums(a, b, pairs, GEMM_ROWS, sums);
    else if (rows > 4) pair_sums(a, b, pairs, 8, sums);
    else pair_sums(a, b, pairs, 4, sums);
    gemm_store(sums, WIDES, rows, cols, c, ldc, add);
}

/* The first n <= 32 numbers of a row as 16 pairs, zeros behind them. */
INLINE __m512i row_pairs(const float *x, uint32_t n)
{
    const __m512 low = _mm512_maskz_loadu_ps(tail_mask(n), x);
    const __m512 high = n > 16 ? _mm512_maskz_loadu_ps(tail_mask(n - 16), x + 16) : _mm512_setzero_ps();
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

INLINE void turned(const float *x, size_t ldx, uint32_t lines, uint32_t depth, const uint32_t width, uint32_t *out, size_t panel)
{
    for (uint32_t at = 0; at < lines; at += width, out += panel)
        for (uint32_t i = 0; i < width; i += 16)
            for (uint32_t k = 0; k < depth; k += 32) {
                uint32_t left = lines - at < width ? lines - at : width, n = depth - k < 32 ? (depth - k + 1) / 2 : 16;
                gemm_wide a[16];
                for (uint32_t r = 0; r < 16; r++)
                    a[r] = i + r < left ? (gemm_wide)row_pairs(x + (at + i + r) * ldx + k, depth - k) : (gemm_wide){0};
                gemm_turn(a);
                for (uint32_t p = 0; p < n; p++)
                    gemm_put(&a[p], width, k + 2 * (p + 1) >= depth, out + (size_t)(k / 2 + p) * width + i);
            }
}

/* Two rows of up to 16 numbers as 16 pairs. */
INLINE gemm_wide column_pairs(const float *low_row, const float *high_row, uint32_t n)
{
    static const uint16_t order[32] = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23,
                                       8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const __m512 low = _mm512_maskz_loadu_ps(tail_mask(n), low_row);
    const __m512 high = high_row ? _mm512_maskz_loadu_ps(tail_mask(n), high_row) : _mm512_setzero_ps();
    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(high, low);
    return (gemm_wide)_mm512_permutexvar_epi16(_mm512_loadu_si512(order), both);
}

INLINE void straight(const float *x, size_t ldx, uint32_t lines, uint32_t depth, const uint32_t width, uint32_t *out,
                     size_t panel)
{
    for (uint32_t k = 0; k < depth; k += 2) {
        const float *low = x + k * ldx, *high = k + 1 < depth ? low + ldx : NULL;
        uint32_t *to = out + (size_t)(k / 2) * width;
        for (uint32_t at = 0; at < lines; at += width, to += panel)
            for (uint32_t i = 0; i < width; i += 16) {
                uint32_t n = at + i < lines ? lines - at - i : 0;
                gemm_wide a = n ? column_pairs(low + at + i, high ? high + at + i : NULL, n) : (gemm_wide){0};
                gemm_put(&a, width, k + 2 >= depth, to + i);
            }
    }
}

static void pack_turned(const float *x, size_t ldx, uint32_t lines, uint32_t depth, uint32_t width, void *out, size_t panel)
{
    if (width == GEMM_ROWS) turned(x, ldx, lines, depth, GEMM_ROWS, out, panel);
    else turned(x, ldx, lines, depth, GEMM_COLS, out, panel);
}

static void pack_straight(const float *x, size_t ldx, uint32_t lines, uint32_t depth, uint32_t width, void *out, size_t panel)
{
    if (width == GEMM_ROWS) straight(x, ldx, lines, depth, GEMM_ROWS, out, panel);
    else straight(x, ldx, lines, depth, GEMM_COLS, out, panel);
}

static const struct sg_gemm_kernels gemm_bf16 = {2, pack_turned, pack_straight, block};

void sg_kernels_avx512_bf16(struct sg_kernels *k) { k->gemm_bf16 = &gemm_bf16; }
#endif
