/* k_fixed.cuh: x as 31-bit fixed-point numbers, split into four signed 8-bit digits, and the int8
 * tensor-core product m16n8k32 with int32 accumulators. Q8_0 weights are used as stored, and
 * products are exact. Shared by k_digits.cu, k_vocab.cu (through k_xsplit.cuh) and the cluster
 * kernels (k_cluster_int8.cuh).
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_K_FIXED_CUH
#define SG_UNIT_CUDA_K_FIXED_CUH

#include "k_common.cuh"

/* Splits four numbers times `scale` into digits: to[d] holds digit d (lowest first) of all four, one
 * byte each. */
__device__ __forceinline__ void split_digits(float4 v, float scale, uint32_t (&to)[4])
{
    const uint32_t half = 0x80808080u; /* makes the carries of signed digits: -128..127 is stored as 0..255 */
    uint32_t x = __float2int_rn(v.x * scale) + half, y = __float2int_rn(v.y * scale) + half,
             z = __float2int_rn(v.z * scale) + half, w = __float2int_rn(v.w * scale) + half;
    uint32_t a = __byte_perm(x, y, 0x5140), b = __byte_perm(z, w, 0x5140), c = __byte_perm(x, y, 0x7362),
             d = __byte_perm(z, w, 0x7362);
    to[0] = __byte_perm(a, b, 0x5410) ^ half;
    to[1] = __byte_perm(a, b, 0x7632) ^ half;
    to[2] = __byte_perm(c, d, 0x5410) ^ half;
    to[3] = __byte_perm(c, d, 0x7632) ^ half;
}

/* Bit pattern of the largest absolute value; ordered like the values, with infinity and NaN above
 * all finite ones. */
__device__ __forceinline__ uint32_t max_abs_bits(float4 v)
{
    const uint32_t bits = 0x7fffffffu;
    return max(max(__float_as_uint(v.x) & bits, __float_as_uint(v.y) & bits),
               max(__float_as_uint(v.z) & bits, __float_as_uint(v.w) & bits));
}

/* Biased exponent shared by the warp: the maximum over lanes, at least that of min_exponent_bits.
 * All numbers are below 2^(exponent - 126); 255 means that one is not finite. */
static const uint32_t min_exponent_bits = 30u << 23;
__device__ __forceinline__ uint32_t warp_exponent(uint32_t largest) { return __reduce_max_sync(0xffffffffu, largest) >> 23; }
/* Scaling for a warp exponent e: split_digits multiplies by 2^(TO_DIGITS - 127 - e), and one unit of
 * the lowest digit is worth 2^(e - OF_DIGITS - 127). last_digit_value is that unit; NaN if a number
 * is not finite, which makes every sum NaN. */
enum { TO_DIGITS = 283, OF_DIGITS = 29 };
__device__ __forceinline__ float last_digit_value(uint32_t exponent)
{
    return exponent == 255 ? CUDART_NAN_F : __uint_as_float((exponent - OF_DIGITS) << 23);
}

/* c += a b. Not volatile: the compiler may schedule products by their operands alone. */
__device__ __forceinline__ void mma_int8(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                         uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
/* One of two fp16 scales packed in a word, as fp32. */
__device__ __forceinline__ float pick_scale(uint32_t pair, uint32_t second)
{
    __half_raw h;
    h.x = (unsigned short)(second ? pair >> 16 : pair);
    return __half2float(__half(h));
}

#endif
