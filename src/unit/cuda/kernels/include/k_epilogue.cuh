/* k_epilogue.cuh: what comes behind the sums of a product of one row whose rows of weights are dealt as tiles (k_stream.cu,
 * k_digits.cu): whose row it is, bias, residual, gate * up, an activation, the short convolution, the best row.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_K_END_CUH
#define SG_UNIT_CUDA_K_END_CUH

#include "k_bulk.cuh"

enum { WARPS = 8, CONSUMERS = WARPS * 32 };

#if __CUDA_ARCH__ >= 900

/* Rows [row, row + n) of a segment; with glu of both. */
struct tile_of {
    uint32_t segment, row, n;
};
__device__ __forceinline__ tile_of find_tile(const ck_stream &a, uint32_t tile)
{
    uint32_t s = 0;
#pragma unroll
    for (int i = 1; i < CK_SEGMENTS; i++) s += tile >= a.first[i];
    uint32_t row = (tile - a.first[s]) << a.outs_log, left = a.g.segment[s].n - row;
    return tile_of{s, row, left < 1u << a.outs_log ? left : 1u << a.outs_log};
}

/* What a thread needs to end one row, loaded before the row is there. No pointer into the arguments: what
 * they point to would be read through memory, twice. */
struct ending {
    float *y, *after;
    const float *residual_at, *before; /* before, after: the convolution's memory */
    uint32_t row, width;
    bool own, convolved, stopped, gates;
    float scale, scale_up, bias, bias_up, residual, m[CK_STREAM_TAPS], w[CK_STREAM_TAPS];
};

/* Where the convolution's memory is: early, for find_ending to wait for nothing. */
template <bool WHOLE> __device__ __forceinline__ void find_memory(const ck_stream &a, ending &e)
{
    if (!WHOLE || a.after.kind != CK_AFTER_CONV) return;
    e.before = static_cast<const float *>(a.after.pass.slots[a.after.slot]);
    e.after = static_cast<float *>(a.after.pass.slots_out[a.after.slot]);
    e.stopped = a.after.pass.head->stopped;
}

/* first: number of the block's tile whose rows thread 0 starts at. */
template <int KIND, bool WHOLE>
__device__ __forceinline__ void find_ending(const ck_stream &a, uint32_t first, ending &e)
{
    uint32_t slot = threadIdx.x >> a.outs_log, tile = blockIdx.x + (first + slot) * gridDim.x,
             r = threadIdx.x & ((1u << a.outs_log) - 1);
    tile_of t = find_tile(a, tile < a.tiles ? tile : 0);
    const float *bias = a.g.segment[t.segment].bias, *residual = a.g.segment[t.segment].residual.p,
                *bias_up = a.g.glu ? a.g.segment[1].bias : nullptr;
    e.own = tile < a.tiles && r < t.n;
    e.row = t.row + (e.own ? r : 0);
    e.width = a.g.segment[t.segment].n;
    e.y = a.g.segment[t.segment].y.p;
    e.residual_at = residual ? residual + e.row : nullptr;
    e.bias = bias ? bias[e.row] : 0;
    e.bias_up = bias_up ? bias_up[e.row] : 0;
    e.residual = 0;
    if (Kind<KIND>::WHOLE) {
        const ck_segment &s = a.g.segment[t.segment], &up = a.g.segment[a.g.glu ? 1 : t.segment];
        e.scale = static_cast<const float *>(s.scales)[s.at + e.row];
        e.scale_up = static_cast<const float *>(up.scales)[up.at + e.row];
    }
    e.gates = WHOLE && a.gates == t.segment + 1;
    e.convolved = WHOLE && a.after.kind == CK_AFTER_CONV && t.segment == a.after.segment;
    if (!WHOLE || !e.convolved) return;
    uint32_t past = a.after.taps - 1;
#pragma unroll
    for (int m = 0; m < CK_STREAM_TAPS; m++) {
        e.w[m] = m <= past ? a.after.weight[(size_t)e.row * a.after.taps + past - m] : 0;
        e.m[m] = m && m <= past ? e.before[(size_t)(past - m) * e.width + e.row] : 0;
    }
    if (a.after.bias) e.m[0] = a.after.bias[e.row];
}

/* The convolution as in k_delta.cu, for the one row there is. */
__device__ __forceinline__ float convolve(const ck_stream &a, const ending &e, float x, bool real)
{
    uint32_t past = a.after.taps - 1;
    float sum = e.m[0];
#pragma unroll
    for (int m = CK_STREAM_TAPS - 1; m >= 0; m--)
        if (m <= past) sum += e.w[m] * (m ? e.m[m] : x);
#pragma unroll
    for (int m = 1; m < CK_STREAM_TAPS; m++)
        if (m <= past && !e.stopped && real)
            e.after[(size_t)(past - m) * e.width + e.row] = m == 1 ? x : e.m[m - 1];
    return sum;
}

/* The sums of the block's rows are there: bias, residual and what comes behind. Nothing is written when not
 * `real`. LATE: sums are multiplied with `late` first. */
template <int KIND, bool WHOLE, bool LATE = false>
__device__ __forceinline__ void end_row(const ck_stream &a, const ending &e, const float *partial, bool real,
                                        float &best, uint32_t &index, float late = 1)
{
    const ck_gemv &g = a.g;
    if (!e.own) return;
    uint32_t split = 1u << a.split_log, outs = 1u << a.outs_log;
    const float *p = partial + ((((threadIdx.x >> a.outs_log) << a.per_log) + (threadIdx.x & (outs - 1)))
                                << a.split_log),
                *q = p + (g.glu ? outs << a.split_log : 0);
    float v = p[0], up = q[0];
#pragma unroll
    for (int i = 1; i < WARPS; i++)
        if (i < split) v += p[i], up += q[i];
    if (Kind<KIND>::WHOLE) v *= e.scale, up *= e.scale_up;
    if (LATE) v *= late, up *= late;
    v += e.bias;
    up += e.bias_up;
    v += e.residual;
    float *y = e.y;
    uint32_t act = g.glu ? g.act : ACT_NONE;
    if (a.after.kind && (e.convolved || a.after.kind == CK_AFTER_ACT)) {
        act = a.after.act;
        y = a.after.y.p;
        if (WHOLE && e.convolved) v = convolve(a, e, v, real);
    }
    if (WHOLE && e.gates) act = ACT_SILU;
    if (act != ACT_NONE) v = activate(act, v);
    if (g.glu) v *= up;
    if (y && real) y[e.row] = v;
    if (g.best && real) keep_best(g.banned, v, e.row, best, index);
}

/* The best of all threads, into the block's place. room: of WARPS. */
__device__ __forceinline__ void give_best(const ck_gemv &g, float best, uint32_t index, uint64_t *room)
{
    uint64_t s = best_of_warp(standing_of(best, index));
    if ((threadIdx.x & 31) == 0) room[threadIdx.x >> 5] = s;
    consumers_meet();
    if (threadIdx.x >= 32) return;
    s = best_of_warp(room[threadIdx.x % WARPS]);
    if (threadIdx.x) return;
    g.best_value[blockIdx.x] = value_of_standing(s);
    g.best_index[blockIdx.x] = row_of_standing(s);
}

#endif
#endif
