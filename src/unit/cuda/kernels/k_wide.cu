/* k_wide.cu: products of large weights with one row of x: bound by the memory's pace, so a warp always has weights in flight.
 *
 * A warp per pair of rows, 16 of them in a block that fills its multiprocessor, so that x comes there once: with two blocks
 * of 8 warps x took as long as a tenth of the weights. The next pieces, 4 KB a warp, are asked for before these are used,
 * over the end of a pair as well; the first 8 KB before the inputs are waited for. Sums are those of k_gemv.cu, except that a
 * norm's 1 / length comes behind the sum: a row alone equals the row in a batch to rounding. SPDX-License-Identifier: MIT */
#include "k_gemv.cuh"

enum { WIDE_WARPS = CK_WIDE_THREADS / 32, WIDE_STEP = 4 * CK_WIDE_THREADS };

/* x times the norm's weight where it shall lie. What is left of the norm, 1 / length, is the same for all of x: sums are
 * multiplied with it at their end, and nobody waits for it here. Returns it. */
template <int MANY>
__device__ __forceinline__ float bring_unscaled(const ck_norm &norm, const float *x, uint32_t k, planes pl, float *to,
                                                float *room)
{
    float squares = 0, plus = norm.plus_one && norm.weight ? 1.0f : 0.0f;
    for (uint32_t e0 = threadIdx.x * 4; e0 < k; e0 += WIDE_STEP * MANY) {
        float4 v[MANY], w[MANY];
#pragma unroll
        for (int i = 0; i < MANY; i++) {
            w[i] = make_float4(1, 1, 1, 1);
            if (e0 + i * WIDE_STEP < k) v[i] = four_at(x, e0 + i * WIDE_STEP);
            if (e0 + i * WIDE_STEP < k && norm.weight) w[i] = four_at(norm.weight, e0 + i * WIDE_STEP);
        }
#pragma unroll
        for (int i = 0; i < MANY; i++) {
            if (e0 + i * WIDE_STEP >= k) break;
            squares += squares_of(v[i], 0);
            put_four(to, pl, e0 + i * WIDE_STEP,
                     make_float4(v[i].x * (plus + w[i].x), v[i].y * (plus + w[i].y), v[i].z * (plus + w[i].z),
                                 v[i].w * (plus + w[i].w)));
        }
    }
    squares = warp_sum(squares);
    if ((threadIdx.x & 31) == 0) room[threadIdx.x >> 5] = squares;
    __syncthreads();
    squares = 0;
#pragma unroll
    for (int i = 0; i < WIDE_WARPS; i++) squares += room[i];
    return rsqrtf(squares / k + norm.eps);
}

/* x as it is. Blocks begin at different places: all of them at one would queue up before a few slices of the second-level
 * cache. */
template <int MANY> __device__ __forceinline__ void bring_turned(const float *x, uint32_t k, planes pl, float *to)
{
    uint32_t turn = k % 128 ? 0 : blockIdx.x % (k / 128) * 128;
    for (uint32_t e0 = threadIdx.x * 4; e0 < k; e0 += WIDE_STEP * MANY) {
        float4 v[MANY];
        uint32_t e[MANY];
#pragma unroll
        for (int i = 0; i < MANY; i++) {
            e[i] = e0 + i * WIDE_STEP + turn;
            if (e[i] >= k) e[i] -= k;
            if (e0 + i * WIDE_STEP < k) v[i] = four_at(x, e[i]);
        }
#pragma unroll
        for (int i = 0; i < MANY; i++)
            if (e0 + i * WIDE_STEP < k) put_four(to, pl, e[i], v[i]);
    }
    __syncthreads();
}

/* Returns what sums are to be multiplied with. */
template <int KIND> __device__ __forceinline__ float bring_one(const ck_gemv &g, float *xs, float *room)
{
    uint32_t nc = g.pitch / 16, k = g.k;
    planes pl = planes_of<KIND>(nc);
    const ck_norm &n = g.norm;
    bool even = by_fours(g.x.p, k) && nc << pl.shift == k;
    if (even && n.present && n.groups == 1 && !n.layer && !n.bias && by_fours(n.weight, k))
        return bring_unscaled<2>(n, g.x.p, k, pl, xs, room);
    if (even && !n.present)
        bring_turned<Kind<KIND>::SCALES ? 2 : 4>(g.x.p, k, pl, xs); /* as many as registers hold */
    else
        bring_x<1, CK_WIDE_THREADS>(g, pl, Kind<KIND>::OFFSETS, xs, room);
    return 1;
}

struct position {
    pair_of p;
    uint32_t pair, c;
};
__device__ __forceinline__ void go_on(const ck_gemv &g, position &at, uint32_t teams, uint32_t nc)
{
    at.c += U * 32;
    if (at.c - (threadIdx.x & 31) < nc) return;
    at.c = threadIdx.x & 31;
    at.pair += teams;
    if (at.pair < g.pairs) at.p = find_pair(g, at.pair);
}
template <int KIND>
__device__ __forceinline__ void use_pieces(const ck_gemv &g, const pieces<KIND> &w, const position &at, uint32_t nc,
                                           const float *xs, float scale, float (&acc)[2][1], float &best,
                                           uint32_t &index)
{
    multiply<KIND, 1>(w, at.c, 32, nc, xs, acc);
    if (at.c - (threadIdx.x & 31) + U * 32 < nc) return;
    acc[0][0] = warp_sum(acc[0][0]) * scale;
    acc[1][0] = warp_sum(acc[1][0]) * scale;
    write_pair<KIND, 1>(g, at.p, w, acc, best, index);
    acc[0][0] = acc[1][0] = 0;
}

template <int KIND> __device__ __forceinline__ void gemv_wide(const ck_gemv &g)
{
    extern __shared__ float4 shared4[];
    float *room = reinterpret_cast<float *>(shared4), *xs = room + 32, best = -CUDART_INF_F, acc[2][1] = {};
    uint32_t lane = threadIdx.x & 31, nc = g.pitch / 16, teams = gridDim.x * WIDE_WARPS, index = 0xfffffffeu;
    position now = {{}, blockIdx.x * WIDE_WARPS + (threadIdx.x >> 5), lane}, then;
    pieces<KIND> a, b;
    dependents_may_start();
    now.p = find_pair(g, now.pair < g.pairs ? now.pair : 0);
    load_pieces<KIND>(a, g, now.p, now.c, 32, now.pair < g.pairs ? nc : 0);
    then = now;
    go_on(g, then, teams, nc);
    load_pieces<KIND>(b, g, then.p, then.c, 32, then.pair < g.pairs ? nc : 0);
    wait_for_inputs();
    float scale = bring_one<KIND>(g, xs, room);
#pragma unroll 1
    while (now.pair < g.pairs) {
        use_pieces<KIND>(g, a, now, nc, xs, scale, acc, best, index);
        now = then;
        go_on(g, now, teams, nc);
        if (now.pair < g.pairs) load_pieces<KIND>(a, g, now.p, now.c, 32, nc);
        if (then.pair >= g.pairs) break;
        use_pieces<KIND>(g, b, then, nc, xs, scale, acc, best, index);
        then = now;
        go_on(g, then, teams, nc);
        if (then.pair < g.pairs) load_pieces<KIND>(b, g, then.p, then.c, 32, nc);
    }
    if (!g.best) return;
    __shared__ float best_value[WIDE_WARPS];
    __shared__ uint32_t best_index[WIDE_WARPS];
    if (lane == 0) best_value[threadIdx.x >> 5] = best, best_index[threadIdx.x >> 5] = index;
    __syncthreads();
    if (threadIdx.x) return;
    for (int q = 1; q < WIDE_WARPS; q++) better(best, index, best_value[q], best_index[q]);
    g.best_value[blockIdx.x] = best;
    g.best_index[blockIdx.x] = index;
}

#define WIDE(KIND)                                                                                                \
    extern "C" __global__ void __launch_bounds__(CK_WIDE_THREADS, 1) wide_##KIND(const __grid_constant__ ck_gemv g) \
    {                                                                                                             \
        gemv_wide<CK_##KIND>(g);                                                                                  \
    }
WIDE(F16)
WIDE(BF16)
WIDE(Q8)
WIDE(F8)
