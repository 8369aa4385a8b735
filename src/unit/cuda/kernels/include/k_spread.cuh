/* k_spread.cuh: distributes the input row x within a cluster (k_cluster_ops.cuh). Each of the 8
 * blocks polls one eighth of x's fixed-point words (k_fixed_point_sum.cuh), possibly while the
 * previous kernel still adds to them, and sends the values to all blocks of its cluster by st.async;
 * they complete on an mbarrier of the receiver.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_K_SPREAD_CUH
#define SG_UNIT_CUDA_K_SPREAD_CUH

#include "k_cluster.cuh"
#include "k_fixed_point_sum.cuh"

enum { CLUSTER = CK_CLUSTER_BLOCKS, CONSUMER_WARPS = 8, CLUSTER_CONSUMERS = CK_CLUSTER_CONSUMERS };

#if __CUDA_ARCH__ == 900

/* Partial statistics for the norm, one per consumer warp of the cluster: sums of squares, or of
 * values for a layer norm. */
struct cluster_stats {
    alignas(16) float of[CLUSTER * CONSUMER_WARPS];
};

struct alignas(16) word_pair {
    uint64_t x, y;
};
__device__ __forceinline__ word_pair load_word_pair(const uint64_t *p)
{
    word_pair v;
    asm volatile("ld.relaxed.gpu.global.v2.u64 {%0,%1}, [%2];" : "=l"(v.x), "=l"(v.y) : "l"(p) : "memory");
    return v;
}
/* The low five bits are zero when both words hold n addends. */
__device__ __forceinline__ uint32_t missing_addends(const word_pair &v, uint32_t n)
{
    return ((uint32_t)v.x ^ n) | ((uint32_t)v.y ^ n);
}
__device__ __forceinline__ uint32_t coarse_in(const word_pair &v) { return coarse_in(v.x) | coarse_in(v.y); }

__device__ __forceinline__ void put_four(uint32_t at, float4 v)
{
    asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(at), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
}
/* Addresses of one thread's columns of x, computed before x is available. Four neighbouring lanes
 * hold the warp's 16 columns and send them to one block; the next four lanes send the same columns
 * to the next block. */
struct x_exchange {
    const uint64_t *from; /* first word; with n = 0 the first float */
    /* n: addends per word; quads: groups of four columns left from this thread's on; xs, stats,
     * mbar: addresses in the receiving block; coarse: words from a fine to its coarse word */
    uint32_t n, quads, xs, stats, mbar, coarse;
    uint32_t keep_at; /* where this lane also keeps the values locally; 0: another lane does */
};
__device__ __forceinline__ uint32_t quad_index() { return (threadIdx.x >> 5) * 4 + (threadIdx.x & 3); }
/* xs [d] and stats receive x: 4 d + 256 bytes on `mbar`. keep_at: local copy of the block's own
 * columns (for the residual). The asm statement forces the addresses to be computed here rather than
 * after the wait. */
__device__ __forceinline__ x_exchange x_exchange_setup(const ck_fixed_sums &x, uint32_t cta, const float *xs,
                                                       const cluster_stats *stats, const uint64_t *mbar, const float *keep_at)
{
    uint32_t i = threadIdx.x >> 2 & 7, quads = x.width / 4 / CLUSTER, q = quad_index(), first = cta * quads + q;
    x_exchange s = {static_cast<const uint64_t *>(x.p) + first * (x.n ? 4 : 2),
                    x.n,
                    q < quads ? quads - q : 0,
                    mapa(smem_addr(xs + first * 4), i),
                    mapa(smem_addr(&stats->of[cta * CONSUMER_WARPS + (threadIdx.x >> 5)]), i),
                    mapa(smem_addr(mbar), i),
                    x.width,
                    i ? 0 : smem_addr(keep_at + q * 4)};
    /* computed here, before the wait */
    asm volatile("" : "+l"(s.from), "+r"(s.n), "+r"(s.quads), "+r"(s.xs), "+r"(s.stats), "+r"(s.mbar), "+r"(s.keep_at));
    return s;
}
/* Polls the words of this thread's columns. With x.live they are read while the previous kernel
 * writes them, without waiting for its end: all of its blocks were resident before this grid could
 * start, so the words will arrive; if it faults, the whole context is lost and this kernel with it.
 * finish_kernel waits for that kernel's end, so kernels complete in order. Once a block has all of
 * x, every block of the previous kernel has read all of its input, so a buffer that only earlier
 * kernels read may be zeroed; it is written again in the next pass, whose first kernel starts after
 * all of this pass. */
template <int M> __device__ __forceinline__ void poll_x(const x_exchange &from, float4 (&x)[M])
{
    word_pair v[M][2];
    if (!from.n) { /* plain fp32 row */
#pragma unroll
        for (int m = 0; m < M; m++)
            x[m] = 32 * m < from.quads ? __ldcg(reinterpret_cast<const float4 *>(from.from) + 32 * m) : make_float4(0, 0, 0, 0);
        return;
    }
    uint32_t missing, coarse = 0;
#pragma unroll
    for (int m = 0; m < M; m++) v[m][0] = v[m][1] = {from.n, from.n};
    do {
        missing = 0;
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int k = 0; k < 2; k++)
                if (32 * m < from.quads) v[m][k] = load_word_pair(from.from + 128 * m + 2 * k);
#pragma unroll
        for (int m = 0; m < M; m++) missing |= missing_addends(v[m][0], from.n) | missing_addends(v[m][1], from.n);
    } while (missing & 31);
#pragma unroll
    for (int m = 0; m < M; m++) {
        x[m] = make_float4(fine_value_only(v[m][0].x), fine_value_only(v[m][0].y), fine_value_only(v[m][1].x),
                           fine_value_only(v[m][1].y));
        coarse |= coarse_in(v[m][0]) | coarse_in(v[m][1]);
    }
    if (__builtin_expect(!coarse, 1)) return;
#pragma unroll
    for (int m = 0; m < M; m++) {
        const uint64_t *p = from.from + from.coarse + 128 * m;
        x[m] = make_float4(fine_value(v[m][0].x), fine_value(v[m][0].y), fine_value(v[m][1].x), fine_value(v[m][1].y));
        if (coarse_in(v[m][0].x)) x[m].x += coarse_value(p, coarse_in(v[m][0].x));
        if (coarse_in(v[m][0].y)) x[m].y += coarse_value(p + 1, coarse_in(v[m][0].y));
        if (coarse_in(v[m][1].x)) x[m].z += coarse_value(p + 2, coarse_in(v[m][1].x));
        if (coarse_in(v[m][1].y)) x[m].w += coarse_value(p + 3, coarse_in(v[m][1].y));
    }
}
/* End of a cluster kernel: zeroes the buffer `c` for the next pass and waits for the previous kernel
 * if x was polled. */
__device__ __forceinline__ void finish_kernel(const ck_fixed_sums &x, const ck_clear &c)
{
    for (uint32_t i = blockIdx.x * CLUSTER_CONSUMERS + threadIdx.x; i < c.fours; i += gridDim.x * CLUSTER_CONSUMERS)
        reinterpret_cast<uint4 *>(c.p)[i] = make_uint4(0, 0, 0, 0);
    if (x.live) wait_for_inputs();
}

/* Sends the block's columns of x to all blocks of the cluster and keeps a copy in keep_at with
 * `bias` added (bias of these output columns, or NULL): what is added to y besides the product.
 * layer: the statistics are sums, not squares. */
template <int M> __device__ __forceinline__ void exchange_x(const x_exchange &to, uint32_t layer, const float *bias)
{
    float sum = 0;
    float4 v[M], b[M];
#pragma unroll
    for (int m = 0; m < M; m++)
        b[m] = bias && 32 * m < to.quads ? float4_at(bias, 4 * quad_index() + 128 * m) : make_float4(0, 0, 0, 0);
    poll_x<M>(to, v);
    __syncwarp();
#pragma unroll
    for (int m = 0; m < M; m++) {
        float4 s = v[m];
        if (32 * m < to.quads) st_async_f32x4(s, to.xs + 512 * m, to.mbar);
        sum += layer ? s.x + s.y + s.z + s.w : s.x * s.x + s.y * s.y + s.z * s.z + s.w * s.w;
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    if (!(threadIdx.x & 3)) st_async_f32(sum, to.stats, to.mbar);
#pragma unroll
    for (int m = 0; m < M; m++) {
        float4 s = v[m];
        if (to.keep_at && 32 * m < to.quads)
            put_four(to.keep_at + 512 * m, make_float4(s.x + b[m].x, s.y + b[m].y, s.z + b[m].z, s.w + b[m].w));
    }
}

#endif
#endif
