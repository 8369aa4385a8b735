/* k_xsplit.cuh: splits a warp's columns of x into digits (Q8_0) or 16-bit parts, as operands of
 * tensor-core products whose weights are used as stored. For one-row kernels (k_digits.cu,
 * k_vocab.cu).
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_K_XSPLIT_CUH
#define SG_UNIT_CUDA_K_XSPLIT_CUH

#include "k_fixed.cuh"
#include "k_mma.cuh"

/* Per weight kind: bytes of an element, number of parts of x, padding words between parts. */
template <int KIND> struct split_form {
    enum { BYTES = KIND == CK_Q8 ? 1 : 2, PARTS = CK_DIGITS_PARTS(KIND), PAD = KIND == CK_Q8 ? 8 : 16 };
};

template <int P> struct warp_x { /* one lane's share of P * 128 columns: four per 128 */
    float4 v[P];
};

/* Biased exponent shared by the warp, see k_fixed.cuh. */
template <int P> __device__ __forceinline__ uint32_t warp_exponent(const warp_x<P> &x)
{
    uint32_t max_bits = min_exponent_bits;
#pragma unroll
    for (int i = 0; i < P; i++) max_bits = max(max_bits, max_abs_bits(x.v[i]));
    return warp_exponent(max_bits);
}

/* Splits four numbers times `scale` into parts: rounded value, then rounded remainders. */
template <int KIND> __device__ __forceinline__ void parts_of(float4 v, float scale, uint2 (&to)[split_form<KIND>::PARTS])
{
    v = make_float4(v.x * scale, v.y * scale, v.z * scale, v.w * scale);
#pragma unroll
    for (int k = 0; k < split_form<KIND>::PARTS; k++) {
        to[k] = make_uint2(pack<KIND == CK_BF16>(v.x, v.y), pack<KIND == CK_BF16>(v.z, v.w));
        if (KIND == CK_BF16) {
            v.x -= __uint_as_float(to[k].x << 16), v.y -= __uint_as_float(to[k].x & 0xffff0000u);
            v.z -= __uint_as_float(to[k].y << 16), v.w -= __uint_as_float(to[k].y & 0xffff0000u);
        } else {
            float2 lo = __half22float2(*reinterpret_cast<const __half2 *>(&to[k].x)),
                   hi = __half22float2(*reinterpret_cast<const __half2 *>(&to[k].y));
            v.x -= lo.x, v.y -= lo.y, v.z -= hi.x, v.w -= hi.y;
        }
    }
}

/* Stores the warp's columns of x as [part][column], `pitch` words per part. Returns the value of one
 * unit of the last part; NaN if a number is not finite, which makes every sum NaN. */
template <int KIND, int P>
__device__ __forceinline__ float put_digits(const warp_x<P> &x, uint32_t width, uint32_t *words, uint32_t pitch)
{
    uint32_t e = KIND == CK_BF16 ? 127 : warp_exponent(x), lane = threadIdx.x & 31;
    float scale = __uint_as_float(((KIND == CK_Q8 ? TO_DIGITS : KIND == CK_F16 ? 268 : 254) - e) << 23);
#pragma unroll
    for (int i = 0; i < P; i++) {
        if (i * 128 >= width) break;
        if constexpr (KIND == CK_Q8) {
            uint32_t d[4];
            split_digits(x.v[i], scale, d);
#pragma unroll
            for (int k = 0; k < 4; k++) words[k * pitch + i * 32 + lane] = d[k];
        } else {
            uint2 d[split_form<KIND>::PARTS];
            parts_of<KIND>(x.v[i], scale, d);
#pragma unroll
            for (int k = 0; k < split_form<KIND>::PARTS; k++)
                *reinterpret_cast<uint2 *>(words + k * pitch + i * 64 + lane * 2) = d[k];
        }
    }
    __syncwarp();
    return e == 255 ? CUDART_NAN_F : __uint_as_float((e - (KIND == CK_Q8 ? OF_DIGITS : KIND == CK_F16 ? 14 : 0)) << 23);
}

#endif
