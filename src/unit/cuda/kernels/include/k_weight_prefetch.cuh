/* k_weight_prefetch.cuh: loads the first 16 weight rows of a cluster kernel's first product
 * (k_cluster_ops.cuh) into registers before x is available. Their ring stage can be refilled
 * meanwhile, and no weight load remains between the arrival of x and the first product.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_K_WEIGHT_PREFETCH_CUH
#define SG_UNIT_CUDA_K_WEIGHT_PREFETCH_CUH

#include "k_cluster_ops.cuh"

#if __CUDA_ARCH__ == 900

/* A group of 16 rows, the warp's columns. P: 1 or 2 pairs of blocks. */
template <int P> struct prefetched_group {
    piece_pair w[P];
    piece8 w8; /* for Q8_0 */
};
/* OR of all bits: forces the loads to complete before the stage is released. */
__device__ __forceinline__ uint32_t or_bits(const uint4 &v, const uint4 &u)
{
    return v.x | v.y | v.z | v.w | u.x | u.y | u.z | u.w;
}
/* Loads 16 rows, eight at low and eight at high. On return the data is in registers, not only
 * requested, so the stage may be released; the OR of all bits goes to scratch [CONSUMER_WARPS] to
 * keep the compiler from sinking the loads. */
template <int KIND, int P>
__device__ __forceinline__ void prefetch_rows(uint32_t d, uint32_t low, uint32_t high, float *scratch, prefetched_group<P> &h)
{
    uint32_t warp = threadIdx.x >> 5, all = 0;
    if (KIND == KIND_Q8) { /* a warp without a group loads another one: its x is zero */
        load_group8(h.w8, d, low, high, min(warp, d / GROUP8 - 1));
        all = or_bits(h.w8.low[0], h.w8.high[0]) | or_bits(h.w8.low[1], h.w8.high[1]);
        all |= h.w8.low_scales.x | h.w8.low_scales.y | h.w8.high_scales.x | h.w8.high_scales.y;
    } else {
        load_columns<P>(h.w, d, low, high, 0);
#pragma unroll
        for (int i = 0; i < P; i++) all |= or_bits(h.w[i].low[0], h.w[i].high[0]) | or_bits(h.w[i].low[1], h.w[i].high[1]);
    }
    all = __reduce_or_sync(0xffffffffu, all);
    if (!(threadIdx.x & 31)) sts_u32(smem_addr(scratch + warp), all);
}
/* Prefetches a group of rows from the ring's current stage into registers and releases the stage. */
template <int KIND, int P>
__device__ __forceinline__ void prefetch_group(const ring &r, ring_pos &at, uint32_t d, float *scratch, prefetched_group<P> &h)
{
    uint32_t rows = ring_wait_full(r, at);
    prefetch_rows<KIND, P>(d, rows, rows + second_eight<KIND>(d), scratch, h);
    ring_release(r, at);
    ring_next(r, at);
}
/* First product of the prefetched rows, into sums [16][pitch]. */
template <int KIND, int P>
__device__ __forceinline__ void multiply_prefetched(const prefetched_group<P> &h, const x_frags<P> &x, float *sums)
{
    if (KIND == KIND_Q8) {
        float acc[2] = {0, 0};
        multiply8(h.w8, x.v[0], acc, false);
        put_sums8(acc, x.scale, sums + 2 * (threadIdx.x >> 5), SUMS_PITCH);
        return;
    }
    float acc[4][4] = {};
#pragma unroll
    for (int i = 0; i < P; i++) multiply_pair<KIND>(h.w[i], x.v[i], acc);
    put_sums<KIND, P>(x, acc, sums);
}

#endif
#endif
