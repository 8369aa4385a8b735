/* k_packed_chunk.cuh: product of a chunk of packed weights (16 rows by 256 columns, k_packed.cuh) with one row of x on tensor
 * cores, codes used as stored. sm_90.
 *
 * x is a 31-bit fixed-point number in four digits of 8 bits (k_fixed.cuh). A product m16n8k32 takes 16 columns each of block i
 * and of block i + 4 of a chunk: lanes with t < 2 have codes of the former, the others of the latter. Columns 0 to 3 of the right
 * operand are the digits for the former and zero for the latter, columns 4 to 7 the reverse, so a lane's accumulators belong to
 * one block. Integer sums are exact; integer scales are applied to them as integers over a whole chunk, fp16 scales after each
 * block. Offsets (minima) multiply the sums of x, a block or two per lane, in fp32. 4,096 4-bit weights need about 150
 * instructions of a warp.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_K_PACKED_CHUNK_CUH
#define SG_UNIT_CUDA_K_PACKED_CHUNK_CUH

#include "k_fixed.cuh"
#include "packed/k_packed_codes.cuh"

/* One scale per block for a lane: four fp32 numbers of a row. */
template <int KIND>
__device__ __forceinline__ void block_scales(uint32_t scales, uint32_t factors, uint32_t group, uint32_t bf16, float (&to)[4])
{
    typedef packed_form<KIND> F;
    uint32_t second = threadIdx.x >> 1 & 1;
    if (F::SCALES == SCALE_E8) {
        uint32_t v = lds_32(factors + second * 4);
#pragma unroll
        for (int i = 0; i < 4; i++) to[i] = half_e8m0(byte_of(v, i));
        return;
    }
    if (F::SCALES == SCALE_PAIRS) {
        uint32_t wide = group == 32, at = scales;
        uint2 v = wide ? lds_64(at + second * 8) : make_uint2(lds_32(at + second * 4), 0);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t both = wide ? (i < 2 ? v.x : v.y) : v.x, odd = wide ? i & 1 : i >> 1;
            to[i] = packed_half(odd ? both >> 16 : both & 0xffffu, bf16);
        }
        return;
    }
    uint2 v = lds_64(scales + second * 8);
    float2 x = halves_of(v.x), y = halves_of(v.y);
    to[0] = x.x, to[1] = x.y, to[2] = y.x, to[3] = y.y;
}

/* Offsets times sums of x: blocks 2 t and 2 t + 1 of a row. sums: x by 16 columns, of this lane's
 * blocks. */
template <int KIND>
__device__ __forceinline__ float offset_part(uint32_t scales, uint32_t factors, float4 sums, uint32_t group, uint32_t bf16)
{
    typedef packed_form<KIND> F;
    uint32_t t = threadIdx.x & 3;
    float first = sums.x + sums.y, second = sums.z + sums.w;
    if (F::SCALES == SCALE_K32) {
        uint32_t v = lds_16(scales + 8 + 2 * t);
        float d = halves_of(lds_32(factors)).y;
        return -d * fmaf((float)byte_of(v, 0), first, (float)byte_of(v, 1) * second);
    }
    if (F::SCALES == SCALE_K2) {
        uint32_t v = lds_32(scales + 4 * t) >> 4 & 0x0f0f0f0fu;
        float d = halves_of(lds_32(factors)).y;
        float s = (float)byte_of(v, 0) * sums.x;
        s = fmaf((float)byte_of(v, 1), sums.y, s);
        s = fmaf((float)byte_of(v, 2), sums.z, s);
        return -d * fmaf((float)byte_of(v, 3), sums.w, s);
    }
    if (F::SCALES == SCALE_F16_MIN) {
        float2 m = halves_of(lds_32(scales + 16 + 4 * t));
        return fmaf(m.x, first, m.y * second);
    }
    if (F::SCALES != SCALE_PAIRS) return 0;
    uint32_t wide = group == 32, at = scales + (wide ? 4 : 2) * t;
    uint32_t m = wide ? lds_32(at + 16) : lds_16(at + 8), s = F::LOW != 8 ? 0 : wide ? lds_32(at) : lds_16(at);
    if (!wide) m |= m << 16, s |= s << 16;
    float a = packed_half(m & 0xffffu, bf16), b = packed_half(m >> 16, bf16);
    if (F::LOW == 8) a = fmaf(128, packed_half(s & 0xffffu, bf16), a), b = fmaf(128, packed_half(s >> 16, bf16), b);
    return fmaf(a, first, b * second);
}

/* Multiplies one chunk of 16 rows, eight at `low` and eight `to_high` bytes after it (0: the next block): acc += scaled digit
 * products of rows g and g + 8, rest += offsets. x: this lane's digits of the chunk, read where `own`; sums: address of the
 * chunk's sums of x. */
template <int KIND>
__device__ __forceinline__ void use_chunk(uint32_t low, uint32_t to_high, uint32_t x, uint32_t own, uint32_t sums, uint32_t group,
                                          uint32_t bf16, float (&acc)[2], float (&rest)[2])
{
    typedef packed_form<KIND> F;
    constexpr bool INTEGER = packed_form<KIND>::INTEGER, FINE = packed_form<KIND>::FINE;
    constexpr float UNIT = 1.0f / (1 << F::SHIFT);
    uint32_t lane = threadIdx.x & 31, second = lane >> 1 & 1;
    slot_scales<KIND> at(low, to_high, group);
    row_codes<KIND> w[2];
    load_codes(w[0], low);
    load_codes(w[1], low + (to_high ? to_high : at.block));
    /* Scales of this lane's four blocks. */
    uint2 k[2];
    float f[2][4];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (FINE) k[half] = lds_64(at.scales[half] + second * 8);
        if (F::SCALES == SCALE_K2) k[half].x &= 0x0f0f0f0fu, k[half].y &= 0x0f0f0f0fu;
        if (F::SCALES == SCALE_K32 || F::SCALES == SCALE_K8) k[half].x = lds_32(at.scales[half] + second * 4);
        if (!INTEGER) block_scales<KIND>(at.scales[half], at.factors[half], group, bf16, f[half]);
    }
    int total[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t a[4], b[4];
        uint4 v = make_uint4(0, 0, 0, 0);
        if (own) v = lds_128(x + i * 32);
        w[0].block(i, a);
        w[1].block(i, b);
        int c[2][4] = {};
        mma_int8(c[0], a[0], b[0], a[1], b[1], v.x, v.y);
        mma_int8(c[FINE], a[2], b[2], a[3], b[3], v.z, v.w);
        if constexpr (!INTEGER) {
            acc[0] = fmaf((float)(c[0][1] * 256 + c[0][0]), f[0][i] * UNIT, acc[0]);
            acc[1] = fmaf((float)(c[0][3] * 256 + c[0][2]), f[1][i] * UNIT, acc[1]);
        } else {
#pragma unroll
            for (int n = 0; n < (FINE ? 4 : 2); n++) { /* of a row: the block, or 16 columns n / 2 of it */
                const int half = n % 2, m = n / 2, of = FINE ? 2 * i + m : i;
                uint32_t word = of < 4 ? k[half].x : k[half].y;
                const bool is_signed = F::SCALES == SCALE_K16 || F::SCALES == SCALE_K8;
                int s = is_signed ? signed_byte(word, of % 4) : byte_of(word, of % 4);
                total[2 * half] += c[m][2 * half] * s;
                total[2 * half + 1] += c[m][2 * half + 1] * s;
            }
        }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (INTEGER) {
            const float d = chunk_factors<KIND>(at.factors[half]).x;
            acc[half] = fmaf(fmaf((float)total[2 * half + 1], 256, (float)total[2 * half]), d * UNIT, acc[half]);
        }
        if (packed_form<KIND>::OFFSETS)
            rest[half] += offset_part<KIND>(at.scales[half], at.factors[half], lds_f32x4(sums + (lane & 3) * 16), group, bf16);
    }
}

/* The kind is uniform in the warp. */
__device__ __forceinline__ void use_any(uint32_t kind, uint32_t low, uint32_t to_high, uint32_t x, uint32_t own, uint32_t sums,
                                        uint32_t group, uint32_t bf16, float (&acc)[2], float (&rest)[2])
{
    switch (kind) {
#define X(name, ...)                                                                 \
    case CK_P_##name:                                                                \
        use_chunk<CK_P_##name>(low, to_high, x, own, sums, group, bf16, acc, rest);  \
        break;
        CK_PACKED_KINDS(X)
#undef X
    }
}

#endif
