/* k_unpack.cu: dequantises rows of packed weights (k_packed.cuh) to 16 bits, for products of a
 * prompt. A thread has the codes of one lane in one chunk: eight times eight columns.
 * SPDX-License-Identifier: MIT */
#include "packed/k_packed.cuh"
#include "k_mma.cuh"

template <int KIND> __device__ __forceinline__ void unpack(const ck_widen &a, uint32_t i)
{
    typedef packed_form<KIND> F;
    uint32_t chunks = a.w.cols / CK_PACKED_CHUNK, t = i % 4, chunk = i / 4 % chunks, r = i / 4 / chunks,
             group = a.w.group % CK_GROUP_BF16;
    if (r >= a.rows) return;
    size_t row = (size_t)a.at + r;
    packed_place<KIND> p(a.w.data, a.w.pitch, group, row, chunk);
    const unsigned char *low = p.block + row % 8 * 64 + t * 16, *high = p.block + 256 * F::LOW + (row % 8 * 4 + t) * 8 * F::HIGH;
    row_codes<KIND> w;
#pragma unroll
    for (int k = 0; k < F::LOW / 2; k++) w.low[k] = __ldcs(reinterpret_cast<const uint4 *>(low + k * 512));
    if (F::HIGH == 2) w.high = __ldcs(reinterpret_cast<const uint4 *>(high));
    if (F::HIGH == 1) {
        uint2 v = __ldcs(reinterpret_cast<const uint2 *>(high));
        w.high = make_uint4(v.x, v.y, 0, 0);
    }
    uint4 *to = reinterpret_cast<uint4 *>(static_cast<uint16_t *>(a.y) + (size_t)r * a.w.cols + chunk * CK_PACKED_CHUNK +
                                          t / 2 * 128 + t % 2 * 8);
#pragma unroll
    for (int b = 0; b < 4; b++) {
        uint32_t words[4];
        w.block(b, words);
#pragma unroll
        for (int m = 0; m < 2; m++) {
            float2 s = packed_scale<KIND>(p.scales, p.factors, t / 2 * 8 + b * 2 + m, group, a.w.group & CK_GROUP_BF16);
            float v[8], offset = F::LOW == 8 ? fmaf(128, s.x, s.y) : s.y, scale = s.x / (1 << F::SHIFT);
#pragma unroll
            for (int k = 0; k < 8; k++) v[k] = fmaf((float)(signed char)(words[2 * m + k / 4] >> 8 * (k % 4)), scale, offset);
            to[b * 4 + m * 2] = a.bf16 ? make_uint4(pack<1>(v[0], v[1]), pack<1>(v[2], v[3]), pack<1>(v[4], v[5]),
                                                    pack<1>(v[6], v[7]))
                                       : make_uint4(pack<0>(v[0], v[1]), pack<0>(v[2], v[3]), pack<0>(v[4], v[5]),
                                                    pack<0>(v[6], v[7]));
        }
    }
}

extern "C" __global__ void unpack_rows(const __grid_constant__ ck_widen a)
{
    wait_for_inputs();
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    switch (a.w.kind) {
#define X(kind, low, high, scales, factors) \
    case CK_P_##kind:                       \
        unpack<CK_P_##kind>(a, i);          \
        break;
        CK_PACKED_KINDS(X)
#undef X
    }
}
