/* k_fixed.cuh: x as fixed-point numbers of 31 bits, four digits of 8 bits from -128 to 127 each, and integers times integers on
 * the tensor cores, 16 x 8 x 32 with int32 sums: weights of Q8_0 go into the product as they lie. SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_K_FIXED_CUH
#define SG_UNIT_CUDA_K_FIXED_CUH

#include "k_common.cuh"

/* Four numbers as fixed point, digit d of all of them in to[d]. */
__device__ __forceinline__ void digits_of(float4 v, float scale, uint32_t (&to)[4])
{
    const uint32_t half = 0x80808080u; /* makes digits of 0 to 255 of those of -128 to 127 */
    uint32_t x = __float2int_rn(v.x * scale) + half, y = __float2int_rn(v.y * scale) + half,
             z = __float2int_rn(v.z * scale) + half, w = __float2int_rn(v.w * scale) + half;
    uint32_t a = __byte_perm(x, y, 0x5140), b = __byte_perm(z, w, 0x5140), c = __byte_perm(x, y, 0x7362),
             d = __byte_perm(z, w, 0x7362);
    to[0] = __byte_perm(a, b, 0x5410) ^ half;
    to[1] = __byte_perm(a, b, 0x7632) ^ half;
    to[2] = __byte_perm(c, d, 0x5410) ^ half;
    to[3] = __byte_perm(c, d, 0x7632) ^ half;
}

/* Bits without signs grow with the number, and those of what is not finite are more than all others. */
__device__ __forceinline__ uint32_t largest_of(float4 v)
{
    const uint32_t bits = 0x7fffffffu;
    return max(max(__float_as_uint(v.x) & bits, __float_as_uint(v.y) & bits),
               max(__float_as_uint(v.z) & bits, __float_as_uint(v.w) & bits));
}

/* The exponent, as it stands in a number, for the warp's numbers, of which each lane says the largest of its own, or this one at
 * least: all are below 2^(it - 126); 255: one is not finite. */
static const uint32_t least_digits = 30u << 23;
__device__ __forceinline__ uint32_t exponent_of(uint32_t largest) { return __reduce_max_sync(0xffffffffu, largest) >> 23; }
/* Numbers of exponent e as digits: digits_of multiplies them with 2^(TO_DIGITS - 127 - e), and a 1 of the last digit then stands
 * for 2^(e - OF_DIGITS - 127); NaN, and so is every sum, if a number is not finite. */
enum { TO_DIGITS = 283, OF_DIGITS = 29 };
__device__ __forceinline__ float last_digit(uint32_t exponent)
{
    return exponent == 255 ? CUDART_NAN_F : __uint_as_float((exponent - OF_DIGITS) << 23);
}

/* Not volatile: products wait for nothing but their operands. */
__device__ __forceinline__ void mma_int8(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                         uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
/* This lane's scale of two that lie in a word. */
__device__ __forceinline__ float one_scale(uint32_t two, uint32_t second)
{
    __half_raw h;
    h.x = (unsigned short)(second ? two >> 16 : two);
    return __half2float(__half(h));
}

#endif
