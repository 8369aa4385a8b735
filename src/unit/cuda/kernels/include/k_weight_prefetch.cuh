/* k_weight_prefetch.cuh: the first rows of a rank's first product (k_cluster_ops.cuh) in registers before x is there: their stage is filled anew by
 * then, and nothing is loaded between x and the first products. SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_K_HELD_CUH
#define SG_UNIT_CUDA_K_HELD_CUH

#include "k_cluster_ops.cuh"

#if __CUDA_ARCH__ >= 900

/* A group of 16 rows, the warp's columns of them. P: 1 or 2. */
template <int P> struct held_group {
    piece_pair w[P];
    piece8 w8; /* of Q8_0 */
};
__device__ __forceinline__ uint32_t bits_of(const uint4 &v, const uint4 &u)
{
    return v.x | v.y | v.z | v.w | u.x | u.y | u.z | u.w;
}
/* Each eight at low and high. When this is over they have come, not only been asked for, so the stage may be left. room
 * [RANK_WARPS] */
template <int KIND, int P>
__device__ __forceinline__ void hold_rows(uint32_t d, uint32_t low, uint32_t high, float *room, held_group<P> &h)
{
    uint32_t warp = threadIdx.x >> 5, all = 0;
    if (KIND == RANK_Q8) { /* a warp that has no group loads another one: its x is zero */
        load_group8(h.w8, d, low, high, min(warp, d / GROUP8 - 1));
        all = bits_of(h.w8.low[0], h.w8.high[0]) | bits_of(h.w8.low[1], h.w8.high[1]);
        all |= h.w8.low_scales.x | h.w8.low_scales.y | h.w8.high_scales.x | h.w8.high_scales.y;
    } else {
        load_columns<P>(h.w, d, low, high, 0);
#pragma unroll
        for (int i = 0; i < P; i++) all |= bits_of(h.w[i].low[0], h.w[i].high[0]) | bits_of(h.w[i].low[1], h.w[i].high[1]);
    }
    all = __reduce_or_sync(0xffffffffu, all);
    if (!(threadIdx.x & 31)) put_word(shared_at(room + warp), all);
}
template <int KIND, int P>
__device__ __forceinline__ void hold_group(const ring &r, ring_at &at, uint32_t d, float *room, held_group<P> &h)
{
    uint32_t rows = ring_full(r, at);
    hold_rows<KIND, P>(d, rows, rows + second_eight<KIND>(d), room, h);
    ring_leave(r, at);
    ring_next(r, at);
}
template <int KIND, int P> __device__ __forceinline__ void held_rows(const held_group<P> &h, const own_x<P> &x, float *sums)
{
    if (KIND == RANK_Q8) {
        float acc[2] = {0, 0};
        multiply8(h.w8, x.v[0], acc, false);
        put_sums8(acc, x.scale, sums + 2 * (threadIdx.x >> 5), RANK_SUMS_PITCH);
        return;
    }
    float acc[4][4] = {};
#pragma unroll
    for (int i = 0; i < P; i++) multiply_pair<KIND>(h.w[i], x.v[i], acc);
    put_sums<KIND, P>(x, acc, sums);
}

#endif
#endif
