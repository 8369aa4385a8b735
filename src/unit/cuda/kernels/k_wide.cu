/* k_wide.cu: matrix-vector product of a large weight with one row of x, bound by memory bandwidth:
 * every warp always has weight loads in flight. Host: one row, fp16, bf16, Q8_0 or fp8 weights,
 * where the sm_90 kernels (k_stream.cu, k_digits.cu) do not apply.
 *
 * 512 threads, one block per multiprocessor, so that x is read once per multiprocessor; with two
 * blocks of 8 warps reading x took as long as a tenth of the weights. A warp handles one pair of
 * weight rows at a time. The next pieces (4 KB per warp) are requested before the current ones are
 * used, also across the end of a pair, the first 8 KB before griddepcontrol.wait. Shared memory: 32
 * floats of scratch, then x as fp32 planes (k_gemv.cuh). Sums as in k_gemv.cu, except that the 1 /
 * rms of a norm is applied after the sum: a single row equals the same row in a batch only up to
 * rounding.
 * SPDX-License-Identifier: MIT */
#include "k_gemv.cuh"

enum { WIDE_WARPS = CK_WIDE_THREADS / 32, WIDE_STEP = 4 * CK_WIDE_THREADS };

/* x times the norm's weight into shared memory. The factor 1 / rms is the same for all columns and
 * is returned, to be applied to the sums, so nothing waits for it here. */
template <int BATCH>
__device__ __forceinline__ float load_unscaled(const ck_norm &norm, const float *x, uint32_t k, planes pl, float *to,
                                               float *scratch)
{
    float squares = 0, plus = norm.plus_one && norm.weight ? 1.0f : 0.0f;
    for (uint32_t e0 = threadIdx.x * 4; e0 < k; e0 += WIDE_STEP * BATCH) {
        float4 v[BATCH], w[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            w[i] = make_float4(1, 1, 1, 1);
            if (e0 + i * WIDE_STEP < k) v[i] = float4_at(x, e0 + i * WIDE_STEP);
            if (e0 + i * WIDE_STEP < k && norm.weight) w[i] = float4_at(norm.weight, e0 + i * WIDE_STEP);
        }
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            if (e0 + i * WIDE_STEP >= k) break;
            squares += squares_of(v[i], 0);
            put_four(to, pl, e0 + i * WIDE_STEP,
                     make_float4(v[i].x * (plus + w[i].x), v[i].y * (plus + w[i].y), v[i].z * (plus + w[i].z),
                                 v[i].w * (plus + w[i].w)));
        }
    }
    squares = warp_sum(squares);
    if ((threadIdx.x & 31) == 0) scratch[threadIdx.x >> 5] = squares;
    __syncthreads();
    squares = 0;
#pragma unroll
    for (int i = 0; i < WIDE_WARPS; i++) squares += scratch[i];
    return rsqrtf(squares / k + norm.eps);
}

/* x without a norm. Blocks start at different offsets: if all read the same lines at once they queue
 * at a few L2 slices. */
template <int BATCH> __device__ __forceinline__ void load_rotated(const float *x, uint32_t k, planes pl, float *to)
{
    /* Start offset of this block, a multiple of 128 columns. */
    uint32_t turn = k % 128 ? 0 : blockIdx.x % (k / 128) * 128;
    for (uint32_t e0 = threadIdx.x * 4; e0 < k; e0 += WIDE_STEP * BATCH) {
        float4 v[BATCH];
        uint32_t e[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            e[i] = e0 + i * WIDE_STEP + turn;
            if (e[i] >= k) e[i] -= k;
            if (e0 + i * WIDE_STEP < k) v[i] = float4_at(x, e[i]);
        }
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            if (e0 + i * WIDE_STEP < k) put_four(to, pl, e[i], v[i]);
    }
    __syncthreads();
}

/* Loads x with whatever norm the product has. Returns the factor to apply to the sums. */
template <int KIND> __device__ __forceinline__ float load_one(const ck_gemv &g, float *xs, float *scratch)
{
    uint32_t nc = g.pitch / 16, k = g.k;
    planes pl = planes_of<KIND>(nc);
    const ck_norm &n = g.norm;
    bool even = by_fours(g.x.p, k) && nc << pl.shift == k;
    if (even && n.present && n.groups == 1 && !n.layer && !n.bias && by_fours(n.weight, k))
        return load_unscaled<2>(n, g.x.p, k, pl, xs, scratch);
    if (even && !n.present)
        load_rotated<Kind<KIND>::SCALES ? 2 : 4>(g.x.p, k, pl, xs); /* as many as registers allow */
    else
        load_x<1, CK_WIDE_THREADS>(g, pl, Kind<KIND>::OFFSETS, xs, scratch);
    return 1;
}

/* A warp's position in its sequence of pieces: the row pair and the piece in it. */
struct position {
    pair_of p;
    uint32_t pair, c;
    float operands; /* of what is added (k_gemv.cuh) */
};
/* Moves to the next group of U pieces, at the end of a row to the warp's next pair. */
__device__ __forceinline__ void advance_piece(const ck_gemv_step &s, position &at, uint32_t warps, uint32_t nc)
{
    const ck_gemv &g = s.g;
    at.c += U * 32;
    if (at.c - (threadIdx.x & 31) < nc) return;
    at.c = threadIdx.x & 31;
    at.pair += warps;
    if (at.pair >= g.pairs) return;
    at.p = find_pair(g, at.pair);
    at.operands = load_operands(g, s.after, at.p);
}
/* Multiplies one group of pieces; at the end of the rows reduces over the warp and writes both
 * outputs. */
template <int KIND>
__device__ __forceinline__ void use_pieces(const ck_gemv_step &s, const pieces<KIND> &w, const position &at, uint32_t nc,
                                           const float *xs, float scale, float (&acc)[2][1], float &best, uint32_t &index)
{
    multiply<KIND, 1>(w, at.c, 32, nc, xs, acc);
    if (at.c - (threadIdx.x & 31) + U * 32 < nc) return;
    acc[0][0] = warp_sum(acc[0][0]) * scale;
    acc[1][0] = warp_sum(acc[1][0]) * scale;
    write_pair<KIND, 1>(s.g, s.after, at.p, w, at.operands, acc, best, index);
    acc[0][0] = acc[1][0] = 0;
}

/* Kernel body: two register buffers a and b, used alternately. */
template <int KIND> __device__ __forceinline__ void gemv_wide(const ck_gemv_step &s)
{
    const ck_gemv &g = s.g;
    extern __shared__ float4 shared4[];
    float *scratch = reinterpret_cast<float *>(shared4), *xs = scratch + 32, best = -CUDART_INF_F, acc[2][1] = {};
    uint32_t lane = threadIdx.x & 31, nc = g.pitch / 16, warps = gridDim.x * WIDE_WARPS, index = 0xfffffffeu;
    position now = {{}, blockIdx.x * WIDE_WARPS + (threadIdx.x >> 5), lane, 0}, then;
    pieces<KIND> a, b;
    launch_dependents();
    now.p = find_pair(g, now.pair < g.pairs ? now.pair : 0);
    load_pieces<KIND>(a, g, now.p, now.c, 32, now.pair < g.pairs ? nc : 0);
    then = now;
    /* Two register buffers are in flight before the inputs are waited for. */
    advance_piece(s, then, warps, nc);
    load_pieces<KIND>(b, g, then.p, then.c, 32, then.pair < g.pairs ? nc : 0);
    wait_for_inputs();
    /* Inputs, which may not be read before. */
    now.operands = load_operands(g, s.after, now.p);
    then.operands = load_operands(g, s.after, then.p);
    float scale = load_one<KIND>(g, xs, scratch);
    /* Use one buffer, refill it, then the other. */
#pragma unroll 1
    while (now.pair < g.pairs) {
        use_pieces<KIND>(s, a, now, nc, xs, scale, acc, best, index);
        now = then;
        advance_piece(s, now, warps, nc);
        if (now.pair < g.pairs) load_pieces<KIND>(a, g, now.p, now.c, 32, nc);
        if (then.pair >= g.pairs) break;
        use_pieces<KIND>(s, b, then, nc, xs, scale, acc, best, index);
        then = now;
        advance_piece(s, then, warps, nc);
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

#define WIDE(KIND)                                                                                                  \
    extern "C" __global__ void __launch_bounds__(CK_WIDE_THREADS, 1) wide_##KIND(const __grid_constant__ ck_gemv_step s) \
    {                                                                                                               \
        gemv_wide<CK_##KIND>(s);                                                                                    \
    }
WIDE(F16)
WIDE(BF16)
WIDE(Q8)
WIDE(F8)
