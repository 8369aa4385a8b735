/* k_xsplit.cuh: a warp's own columns of x as digits (Q8_0) or 16-bit parts: factors of products on the tensor cores whose weights go
 * in as they lie. For kernels of one row (k_digits.cu, k_vocab.cu). SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_K_OWN_CUH
#define SG_UNIT_CUDA_K_OWN_CUH

#include "k_fixed.cuh"
#include "k_mma.cuh"

template <int KIND> struct form { /* of a weight, and of x: parts of how many numbers a word, and words between them besides */
    enum { BYTES = KIND == CK_Q8 ? 1 : 2, PARTS = CK_DIGITS_PARTS(KIND), PAD = KIND == CK_Q8 ? 8 : 16 };
};

template <int P> struct own_x { /* four numbers each of P times 128 columns */
    float4 v[P];
};

template <int P> __device__ __forceinline__ uint32_t exponent_of(const own_x<P> &x)
{
    uint32_t most = least_digits;
#pragma unroll
    for (int i = 0; i < P; i++) most = max(most, largest_of(x.v[i]));
    return exponent_of(most);
}

/* Four numbers as the parts of KIND's factor, rounded and what is left. */
template <int KIND> __device__ __forceinline__ void parts_of(float4 v, float scale, uint2 (&to)[form<KIND>::PARTS])
{
    v = make_float4(v.x * scale, v.y * scale, v.z * scale, v.w * scale);
#pragma unroll
    for (int k = 0; k < form<KIND>::PARTS; k++) {
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

/* The warp's columns of x as digits or parts: [part][column], `pitch` words a part. Returns what a 1 of the last part stands for;
 * what is not finite makes it NaN, and every sum with it. */
template <int KIND, int P>
__device__ __forceinline__ float put_digits(const own_x<P> &x, uint32_t width, uint32_t *words, uint32_t pitch)
{
    uint32_t e = KIND == CK_BF16 ? 127 : exponent_of(x), lane = threadIdx.x & 31;
    float scale = __uint_as_float(((KIND == CK_Q8 ? TO_DIGITS : KIND == CK_F16 ? 268 : 254) - e) << 23);
#pragma unroll
    for (int i = 0; i < P; i++) {
        if (i * 128 >= width) break;
        if constexpr (KIND == CK_Q8) {
            uint32_t d[4];
            digits_of(x.v[i], scale, d);
#pragma unroll
            for (int k = 0; k < 4; k++) words[k * pitch + i * 32 + lane] = d[k];
        } else {
            uint2 d[form<KIND>::PARTS];
            parts_of<KIND>(x.v[i], scale, d);
#pragma unroll
            for (int k = 0; k < form<KIND>::PARTS; k++) *reinterpret_cast<uint2 *>(words + k * pitch + i * 64 + lane * 2) = d[k];
        }
    }
    __syncwarp();
    return e == 255 ? CUDART_NAN_F : __uint_as_float((e - (KIND == CK_Q8 ? OF_DIGITS : KIND == CK_F16 ? 14 : 0)) << 23);
}

#endif
