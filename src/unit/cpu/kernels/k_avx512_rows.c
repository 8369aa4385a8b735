/* k_avx512_rows.c: row kernels for AVX-512: rotary embedding, gated activation (SiLU) and causal
 * convolution. Tails are masked. Activations other than SiLU use the kernels of k_plain.h.
 * SPDX-License-Identifier: MIT */
#if defined(__x86_64__)
#include "unit/cpu/kernels/k_avx512.h"
#include "unit/cpu/kernels/k_plain.h"

/* 1 / (1 + 2^(-x log2 e)): vrcp14ps and one Newton step. The exponent is limited to 125, which keeps
 * the sum finite. NaN stays. */
INLINE __m512 sigmoid16(__m512 x)
{
    const __m512 t = _mm512_min_ps(_mm512_set1_ps(125.0f), _mm512_mul_ps(x, _mm512_set1_ps(-1.44269504088896341f)));
    const __m512 y = _mm512_add_ps(_mm512_set1_ps(1.0f), exp2_16(t)), z = _mm512_rcp14_ps(y);
    return _mm512_mul_ps(z, _mm512_fnmadd_ps(y, z, _mm512_set1_ps(2.0f)));
}

/* Taps in rising order, one multiply-add each, then the activation; 16 channels at a time. */
static void conv(const float *const *x, uint32_t taps, const float *w, size_t ldw, const float *bias,
                 enum sg_act act, size_t n, float *y)
{
    if (act != SG_ACT_SILU && act != SG_ACT_NONE) {
        plain_conv(x, taps, w, ldw, bias, act, n, y);
        return;
    }
    for (size_t c = 0; c < n; c += 16) {
        const __mmask16 m = tail_mask((uint32_t)(n - c < 16 ? n - c : 16));
        __m512 a = bias ? _mm512_maskz_loadu_ps(m, bias + c) : _mm512_setzero_ps();
        for (uint32_t j = 0; j < taps; j++)
            a = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(m, w + j * ldw + c), _mm512_maskz_loadu_ps(m, x[j] + c), a);
        _mm512_mask_storeu_ps(y + c, m, act == SG_ACT_SILU ? _mm512_mul_ps(a, sigmoid16(a)) : a);
    }
}

/* y = silu(gate) * up. */
static void glu(enum sg_act act, const float *gate, const float *up, size_t n, float *y)
{
    if (act != SG_ACT_SILU) {
        plain_glu(act, gate, up, n, y);
        return;
    }
    for (size_t i = 0; i < n; i += 16) {
        const __mmask16 m = tail_mask((uint32_t)(n - i < 16 ? n - i : 16));
        const __m512 x = _mm512_maskz_loadu_ps(m, gate + i);
        _mm512_mask_storeu_ps(y + i, m, _mm512_mul_ps(_mm512_mul_ps(x, sigmoid16(x)), _mm512_maskz_loadu_ps(m, up + i)));
    }
}

/* cs holds cosine and sine alternately; two vectors are permuted into 16 cosines and 16 sines. */
static void rope(const float *x, uint32_t pairs, uint32_t width, const float *cs, float sign, float *y)
{
    const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0),
                  odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    for (uint32_t j = 0; j < pairs; j += 16) {
        const uint32_t left = pairs - j;
        const __mmask16 m = tail_mask(left), low = tail_mask(2 * left), high = left > 8 ? tail_mask(2 * left - 16) : 0;
        const __m512 first = _mm512_maskz_loadu_ps(low, cs + 2 * j), last = _mm512_maskz_loadu_ps(high, cs + 2 * j + 16),
                     c = _mm512_permutex2var_ps(first, even, last),
                     s = _mm512_mul_ps(_mm512_permutex2var_ps(first, odd, last), _mm512_set1_ps(sign)),
                     a = _mm512_maskz_loadu_ps(m, x + j), b = _mm512_maskz_loadu_ps(m, x + j + pairs);
        _mm512_mask_storeu_ps(y + j, m, _mm512_fmsub_ps(a, c, _mm512_mul_ps(b, s)));
        _mm512_mask_storeu_ps(y + j + pairs, m, _mm512_fmadd_ps(b, c, _mm512_mul_ps(a, s)));
    }
    for (uint32_t j = 2 * pairs; j < width; j++) y[j] = x[j];
}

void sg_kernels_avx512_rows(struct sg_kernels *k)
{
    k->conv = conv;
    k->glu = glu;
    k->rope = rope;
}
#endif
