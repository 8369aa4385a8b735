/* k_packed_codes.cuh: reads of the codes and scales of packed weights (k_packed.cuh) in shared memory, by the lane that
 * multiplies them (m16n8k32).
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_K_PACKED_CODES_CUH
#define SG_UNIT_CUDA_K_PACKED_CODES_CUH

#include "k_bulk.cuh"
#include "packed/k_packed.cuh"

/* Loads the planes of one row per group of four lanes from a block of eight rows. */
template <int KIND> __device__ __forceinline__ void load_codes(row_codes<KIND> &w, uint32_t block)
{
    typedef packed_form<KIND> F;
    constexpr int GROUPS = F::LOW / 2;
    uint32_t lane = threadIdx.x & 31, at = block + lane * 16;
#pragma unroll
    for (int i = 0; i < GROUPS; i++) w.low[i] = lds_128(at + i * 512);
    if (F::HIGH == 2) w.high = lds_128(at + GROUPS * 512);
    if (F::HIGH == 1) {
        uint2 v = lds_64(block + GROUPS * 512 + lane * 8);
        w.high = make_uint4(v.x, v.y, 0, 0);
    }
}

/* Addresses of the scales and factors of a lane's rows g and g + 8 in two blocks of eight rows: `low` and the one `to_high`
 * bytes after it. */
template <int KIND> struct slot_scales {
    uint32_t block, bytes, scales[2], factors[2]; /* block: bytes of a block; bytes: of a row's scales */
    __device__ __forceinline__ slot_scales(uint32_t low, uint32_t to_high, uint32_t group)
    {
        typedef packed_form<KIND> F;
        uint32_t g = (threadIdx.x & 31) >> 2;
        bytes = F::SCALES == SCALE_PAIRS ? 1024 / group : F::SCALE_BYTES;
        block = 8 * (F::CODES + bytes + F::FACTOR_BYTES);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            scales[half] = low + half * (to_high ? to_high : block) + 8 * F::CODES + g * bytes;
            factors[half] = low + half * (to_high ? to_high : block) + 8 * (F::CODES + bytes) + g * F::FACTOR_BYTES;
        }
    }
    /* The blocks follow each other. */
    __device__ __forceinline__ slot_scales(uint32_t slot, uint32_t group) : slot_scales(slot, 0, group) {}
};

/* Byte i of a word as an integer. */
__device__ __forceinline__ int byte_of(uint32_t v, int i) { return (int)__byte_perm(v, 0, 0x4440u | i); }
/* __byte_perm ignores the bit of the selector that extends the sign. */
__device__ __forceinline__ int signed_byte(uint32_t v, int i)
{
    int b;
    asm("prmt.b32 %0, %1, 0, %2;" : "=r"(b) : "r"(v), "r"(0x8880u + 0x1111u * i));
    return b;
}
__device__ __forceinline__ uint32_t lds_32(uint32_t at)
{
    uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at));
    return v;
}
__device__ __forceinline__ uint32_t lds_16(uint32_t at)
{
    uint16_t v;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(at));
    return v;
}
__device__ __forceinline__ float2 halves_of(uint32_t v) { return __half22float2(*reinterpret_cast<const __half2 *>(&v)); }
/* Factors of a chunk of integer scales: d, and that of its minima. */
template <int KIND> __device__ __forceinline__ float2 chunk_factors(uint32_t at)
{
    typedef packed_form<KIND> F;
    if (F::FACTOR_BYTES == 2) return make_float2(halves_of(lds_16(at)).x, 0);
    const uint32_t bits = lds_32(at);
    return F::SCALES == SCALE_K16 ? make_float2(__uint_as_float(bits), 0) : halves_of(bits);
}

#endif
