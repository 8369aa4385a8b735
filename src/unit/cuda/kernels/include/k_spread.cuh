/* k_spread.cuh: x as it comes to a window of steps by ranks (k_cluster_ops.cuh): each block reads an eighth of its words (k_fixed_point_sum.cuh),
 * while they are written, and sends the numbers to all blocks of its rank. SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_K_SPREAD_CUH
#define SG_UNIT_CUDA_K_SPREAD_CUH

#include "k_cluster.cuh"
#include "k_fixed_point_sum.cuh"

enum { RANK = CK_RANK_BLOCKS, RANK_WARPS = 8, RANK_OWNERS = CK_RANK_OWNERS };

#if __CUDA_ARCH__ >= 900

/* What each warp of the rank found out of its columns: sums (of squares, or of numbers). */
struct rank_stats {
    alignas(16) float of[RANK * RANK_WARPS];
};

struct alignas(16) two_words {
    uint64_t x, y;
};
__device__ __forceinline__ two_words load_words(const uint64_t *p)
{
    two_words v;
    asm volatile("ld.relaxed.gpu.global.v2.u64 {%0,%1}, [%2];" : "=l"(v.x), "=l"(v.y) : "l"(p) : "memory");
    return v;
}
/* Not 0 in the low five bits: not all n ranks have added. */
__device__ __forceinline__ uint32_t missing_in(const two_words &v, uint32_t n)
{
    return ((uint32_t)v.x ^ n) | ((uint32_t)v.y ^ n);
}
__device__ __forceinline__ uint32_t far_in(const two_words &v) { return far_in(v.x) | far_in(v.y); }

__device__ __forceinline__ void put_four(uint32_t at, float4 v)
{
    asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(at), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
}
/* Where a thread's columns of x come from and go to: found before the inputs are there. Four neighbouring lanes have the warp's
 * 16 columns, and send them to the same block of the rank, the next four to the next one. */
struct spreading {
    const uint64_t *from; /* n 0: float */
    uint32_t n, quads, xs, stats, gate, far; /* n: that add to a word; far: from it to its far word */
    uint32_t own; /* where this lane keeps them for the block; 0: another one does */
};
__device__ __forceinline__ uint32_t spread_quad() { return (threadIdx.x >> 5) * 4 + (threadIdx.x & 3); }
/* xs [d], stats: where x arrives, 4 d + 256 bytes at `gate`; own: the block's columns stay there as well. */
__device__ __forceinline__ spreading spread_from(const ck_parts &x, uint32_t block, const float *xs, const rank_stats *stats,
                                                 const uint64_t *gate, const float *own)
{
    uint32_t i = threadIdx.x >> 2 & 7, quads = x.width / 4 / RANK, q = spread_quad(), first = block * quads + q;
    spreading s = {static_cast<const uint64_t *>(x.p) + first * (x.n ? 4 : 2), x.n, q < quads ? quads - q : 0,
                   there(shared_at(xs + first * 4), i), there(shared_at(&stats->of[block * RANK_WARPS + (threadIdx.x >> 5)]), i),
                   there(shared_at(gate), i), x.width, i ? 0 : shared_at(own + q * 4)};
    asm volatile("" : "+l"(s.from), "+r"(s.n), "+r"(s.quads), "+r"(s.xs), "+r"(s.stats), "+r"(s.gate), "+r"(s.own)); /* now */
    return s;
}
/* Words while they are written. A kernel may read those of the one before (x.live) with no other wait than for the words: all
 * blocks of that one have begun, or this one had not, so they will come; should it fail, so does everything on the card, and
 * whoever polls is ended with it. It waits for that kernel's end before it ends itself: kernels end in order. When it has all of
 * x, each block of the kernel before has read all that it read, so a room that only that one and earlier ones read may be
 * cleared; it is written again in the next pass, whose first kernel begins when all of this one have ended. */
template <int M> __device__ __forceinline__ void wait_for_x(const spreading &from, float4 (&x)[M])
{
    two_words v[M][2];
    if (!from.n) { /* an ordinary row */
#pragma unroll
        for (int m = 0; m < M; m++)
            x[m] = 32 * m < from.quads ? __ldcg(reinterpret_cast<const float4 *>(from.from) + 32 * m) : make_float4(0, 0, 0, 0);
        return;
    }
    uint32_t missing, far = 0;
#pragma unroll
    for (int m = 0; m < M; m++) v[m][0] = v[m][1] = {from.n, from.n};
    do {
        missing = 0;
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int k = 0; k < 2; k++)
                if (32 * m < from.quads) v[m][k] = load_words(from.from + 128 * m + 2 * k);
#pragma unroll
        for (int m = 0; m < M; m++) missing |= missing_in(v[m][0], from.n) | missing_in(v[m][1], from.n);
    } while (missing & 31);
#pragma unroll
    for (int m = 0; m < M; m++) {
        x[m] = make_float4(all_near(v[m][0].x), all_near(v[m][0].y), all_near(v[m][1].x), all_near(v[m][1].y));
        far |= far_in(v[m][0]) | far_in(v[m][1]);
    }
    if (__builtin_expect(!far, 1)) return;
#pragma unroll
    for (int m = 0; m < M; m++) {
        const uint64_t *p = from.from + from.far + 128 * m;
        x[m] = make_float4(near_of(v[m][0].x), near_of(v[m][0].y), near_of(v[m][1].x), near_of(v[m][1].y));
        if (far_in(v[m][0].x)) x[m].x += far_of(p, far_in(v[m][0].x));
        if (far_in(v[m][0].y)) x[m].y += far_of(p + 1, far_in(v[m][0].y));
        if (far_in(v[m][1].x)) x[m].z += far_of(p + 2, far_in(v[m][1].x));
        if (far_in(v[m][1].y)) x[m].w += far_of(p + 3, far_in(v[m][1].y));
    }
}
/* The end of a kernel of ranks. */
__device__ __forceinline__ void leave(const ck_parts &x, const ck_clear &c)
{
    for (uint32_t i = blockIdx.x * RANK_OWNERS + threadIdx.x; i < c.fours; i += gridDim.x * RANK_OWNERS)
        reinterpret_cast<uint4 *>(c.p)[i] = make_uint4(0, 0, 0, 0);
    if (x.live) wait_for_inputs();
}

/* The block's columns of x go to all blocks of the rank, and to `own`, with what else is to be added to y: bias of these columns,
 * or NULL. */
template <int M> __device__ __forceinline__ void spread_x(const spreading &to, uint32_t layer, const float *bias)
{
    float sum = 0;
    float4 v[M], b[M];
#pragma unroll
    for (int m = 0; m < M; m++)
        b[m] = bias && 32 * m < to.quads ? four_at(bias, 4 * spread_quad() + 128 * m) : make_float4(0, 0, 0, 0);
    wait_for_x<M>(to, v);
    __syncwarp();
#pragma unroll
    for (int m = 0; m < M; m++) {
        float4 s = v[m];
        if (32 * m < to.quads) send_four_to(s, to.xs + 512 * m, to.gate);
        sum += layer ? s.x + s.y + s.z + s.w : s.x * s.x + s.y * s.y + s.z * s.z + s.w * s.w;
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    if (!(threadIdx.x & 3)) send_to(sum, to.stats, to.gate);
#pragma unroll
    for (int m = 0; m < M; m++) {
        float4 s = v[m];
        if (to.own && 32 * m < to.quads)
            put_four(to.own + 512 * m, make_float4(s.x + b[m].x, s.y + b[m].y, s.z + b[m].z, s.w + b[m].w));
    }
}

#endif
#endif
