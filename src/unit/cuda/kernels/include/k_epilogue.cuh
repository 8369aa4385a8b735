/* k_epilogue.cuh: epilogue of the one-row products whose weight rows are dealt to blocks as tiles
 * (k_stream.cu, k_digits.cu, k_vocab.cu): owner of a row, bias, residual, gate * up, activation,
 * short convolution, argmax. Operands of the epilogue are loaded before the sums are ready.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_K_EPILOGUE_CUH
#define SG_UNIT_CUDA_K_EPILOGUE_CUH

#include "k_bulk.cuh"

/* Consumer warps and threads of a block; the producer warp, if any, comes on top. */
enum { WARPS = 8, CONSUMERS = WARPS * 32 };

/* Rows [row, row + n) of a segment; with glu of both segments. */
struct tile_of {
    uint32_t segment, row, n;
};
/* Segment and rows of a tile. */
__device__ __forceinline__ tile_of find_tile(const ck_stream &a, uint32_t tile)
{
    uint32_t s = 0;
#pragma unroll
    for (int i = 1; i < CK_SEGMENTS; i++) s += tile >= a.first[i];
    /* Tiles of a segment have 1 << outs_log output rows each. */
    uint32_t row = (tile - a.first[s]) << a.outs_log, left = a.g.segment[s].n - row;
    return tile_of{s, row, left < 1u << a.outs_log ? left : 1u << a.outs_log};
}

/* What one thread needs to finish one row. Values rather than pointers into the kernel arguments,
 * which would be re-read. */
struct row_epilogue {
    float *y, *after;
    const float *residual_at, *before; /* state of the convolution before and after this token */
    uint32_t row, width;
    bool active, convolved, stopped, gates;
    float scale, scale_up, bias, bias_up, residual, m[CK_STREAM_TAPS], w[CK_STREAM_TAPS];
};

/* Addresses of the convolution state, looked up early so that load_epilogue does not wait for them. */
template <bool WHOLE> __device__ __forceinline__ void load_conv_ptrs(const ck_stream &a, row_epilogue &e)
{
    if (!WHOLE || a.after.kind != CK_EPILOGUE_CONV) return;
    e.before = static_cast<const float *>(a.after.pass.slots[a.after.slot]);
    e.after = static_cast<float *>(a.after.pass.slots_out[a.after.slot]);
    e.stopped = a.after.pass.head->stopped;
}

/* Loads the operands of this thread's row. first: number of the block's tile with which thread 0
 * starts. */
template <int KIND, bool WHOLE> __device__ __forceinline__ void load_epilogue(const ck_stream &a, uint32_t first, row_epilogue &e)
{
    uint32_t slot = threadIdx.x >> a.outs_log, tile = blockIdx.x + (first + slot) * gridDim.x,
             r = threadIdx.x & ((1u << a.outs_log) - 1);
    tile_of t = find_tile(a, tile < a.tiles ? tile : 0);
    const float *bias = a.g.segment[t.segment].bias, *residual = a.g.segment[t.segment].residual.p,
                *bias_up = a.g.glu ? a.g.segment[1].bias : nullptr;
    e.active = tile < a.tiles && r < t.n;
    e.row = t.row + (e.active ? r : 0);
    e.width = a.g.segment[t.segment].n;
    e.y = a.g.segment[t.segment].y.p;
    /* Bias and scales are weights, so they are loaded before the inputs of this step are complete; the residual is an
     * input, so only its address is kept here. */
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
    e.convolved = WHOLE && a.after.kind == CK_EPILOGUE_CONV && t.segment == a.after.segment;
    if (!WHOLE || !e.convolved) return;
    /* Convolution: weights and past inputs, newest first. */
    uint32_t past = a.after.taps - 1;
#pragma unroll
    for (int m = 0; m < CK_STREAM_TAPS; m++) {
        e.w[m] = m <= past ? a.after.weight[(size_t)e.row * a.after.taps + past - m] : 0;
        e.m[m] = m && m <= past ? e.before[(size_t)(past - m) * e.width + e.row] : 0;
    }
    if (a.after.bias) e.m[0] = a.after.bias[e.row];
}

/* Short convolution as in k_delta.cu, for the single row; also writes the shifted state. */
__device__ __forceinline__ float convolve(const ck_stream &a, const row_epilogue &e, float x, bool real)
{
    uint32_t past = a.after.taps - 1;
    float sum = e.m[0];
    /* Oldest tap first, as in k_delta.cu. */
#pragma unroll
    for (int m = CK_STREAM_TAPS - 1; m >= 0; m--)
        if (m <= past) sum += e.w[m] * (m ? e.m[m] : x);
#pragma unroll
    for (int m = 1; m < CK_STREAM_TAPS; m++)
        if (m <= past && !e.stopped && real) e.after[(size_t)(past - m) * e.width + e.row] = m == 1 ? x : e.m[m - 1];
    return sum;
}

/* Finishes one row from its partial sums in shared memory. Nothing is stored unless `real` (warm-up
 * passes run without). POST_SCALE: sums are first multiplied by post_scale. */
template <int KIND, bool WHOLE, bool POST_SCALE = false>
__device__ __forceinline__ void finish_row(const ck_stream &a, const row_epilogue &e, const float *partial, bool real,
                                           float &best, uint32_t &index, float post_scale = 1)
{
    const ck_gemv &g = a.g;
    if (!e.active) return;
    uint32_t split = 1u << a.split_log, outs = 1u << a.outs_log;
    /* Partial sums: [tile][row][warp]; with glu up's follow gate's by `outs` rows. */
    const float *p = partial + ((((threadIdx.x >> a.outs_log) << a.per_log) + (threadIdx.x & (outs - 1))) << a.split_log),
                *q = p + (g.glu ? outs << a.split_log : 0);
    float v = p[0], up = q[0];
#pragma unroll
    for (int i = 1; i < WARPS; i++)
        if (i < split) v += p[i], up += q[i];
    if (Kind<KIND>::WHOLE) v *= e.scale, up *= e.scale_up;
    if (POST_SCALE) v *= post_scale, up *= post_scale;
    /* Bias and residual, then the op after the product. */
    v += e.bias;
    up += e.bias_up;
    v += e.residual;
    float *y = e.y;
    uint32_t act = g.glu ? g.act : ACT_NONE;
    if (a.after.kind && (e.convolved || a.after.kind == CK_EPILOGUE_ACT)) {
        act = a.after.act;
        y = a.after.y.p;
        if (WHOLE && e.convolved) v = convolve(a, e, v, real);
    }
    if (WHOLE && e.gates) act = ACT_SILU;
    if (act != ACT_NONE) v = activate(act, v);
    if (g.glu) v *= up;
    if (y && real) y[e.row] = v;
    if (g.best && real) update_best(g.banned, v, e.row, best, index);
}

/* Argmax over the block's consumers into best_value and best_index; scratch: WARPS keys. */
__device__ __forceinline__ void store_block_best(const ck_gemv &g, float best, uint32_t index, uint64_t *scratch)
{
    uint64_t s = warp_best(order_key(best, index));
    if ((threadIdx.x & 31) == 0) scratch[threadIdx.x >> 5] = s;
    consumers_sync();
    if (threadIdx.x >= 32) return;
    s = warp_best(scratch[threadIdx.x % WARPS]);
    if (threadIdx.x) return;
    g.best_value[blockIdx.x] = key_value(s);
    g.best_index[blockIdx.x] = key_row(s);
}

#endif
