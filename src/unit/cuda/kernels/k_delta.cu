/* k_delta.cu: linear-attention state in prefill and decoding: the short convolution (conv_*) and the
 * gated delta rule (delta_*), token by token. All architectures; for prompts the host prefers the
 * chunked tensor-core kernels (k_chunk.cu).
 *
 * delta_4, delta_8: a warp owns 4 columns of one head's S [dk][dv] and keeps them in registers over
 * all tokens of its span, lane l rows l, l + 32, ... With S' = decay S the output is S'^T q + (k .
 * q) d, so both products with S' are reduced together: one butterfly of 6 exchanges per token.
 * Decoding moves 2 * 4 * dk * dv bytes per head, mostly through L2. delta_slabs: heads of 128, few
 * tokens per sequence. delta_tiles_4 (k_delta_tiles.cuh): four tokens per step, from rows normalised
 * by delta_prepare.
 * SPDX-License-Identifier: MIT */
#include "k_delta_tiles.cuh"

/* Largest number of convolution taps that conv_step and conv_tiles hold in registers. */
enum { TAPS = 8 };

/* Convolution of few tokens per span: a thread per channel and span, tokens in order; entry m of x
 * is m tokens back. Also updates the state. Grid (channels, spans). */
extern "C" __global__ void conv_step(const __grid_constant__ ck_conv a)
{
    launch_dependents();
    uint32_t c = blockIdx.x * blockDim.x + threadIdx.x, s = blockIdx.y, past = a.taps - 1, width = a.x.width;
    const float *memory = static_cast<const float *>(a.pass.slots[s * a.pass.slots_n + a.slot]);
    float *after = static_cast<float *>(a.pass.slots_out[s * a.pass.slots_n + a.slot]);
    float w[TAPS], x[TAPS];
    /* Weights reversed: w[m] belongs to the input m tokens back. */
#pragma unroll
    for (int m = 0; m < TAPS; m++) w[m] = c < width && m < a.taps ? a.weight[(size_t)c * a.taps + past - m] : 0;
    float bias = a.bias && c < width ? a.bias[c] : 0;
    bool stopped = a.pass.head->stopped; /* stopped and the state were written by earlier passes: no wait needed */
    uint32_t begin = a.pass.head->from[s], end = a.pass.head->from[s + 1];
#pragma unroll
    for (int m = 1; m < TAPS; m++) x[m] = c < width && m <= past ? memory[(size_t)(past - m) * width + c] : 0;
    wait_for_inputs();
    if (c >= width || stopped) return;
    /* Tokens in order; x shifts by one entry per token. */
    for (uint32_t t = begin; t < end; t++) {
        float sum = bias;
        x[0] = a.x.p[(size_t)t * a.x.stride + c];
#pragma unroll
        for (int m = TAPS - 1; m >= 0; m--)
            if (m < a.taps) sum += w[m] * x[m];
        a.y.p[(size_t)t * a.y.stride + c] = activate(a.act, sum);
#pragma unroll
        for (int m = TAPS - 1; m > 0; m--) x[m] = x[m - 1];
    }
    /* The last inputs become the new state. */
#pragma unroll
    for (int m = 1; m < TAPS; m++)
        if (m <= past) after[(size_t)(past - m) * width + c] = x[m];
}

/* Convolution of one long span with any number of taps: a thread per channel and token. conv_store
 * updates the state afterwards. */
extern "C" __global__ void conv_many(const __grid_constant__ ck_conv a)
{
    wait_for_inputs();
    uint32_t c = blockIdx.y * blockDim.x + threadIdx.x, t = blockIdx.x, past = a.taps - 1, width = a.x.width;
    if (c >= width) return;
    uint32_t s = a.pass.span[t], t0 = a.pass.head->from[s];
    const float *memory = static_cast<const float *>(a.pass.slots[s * a.pass.slots_n + a.slot]);
    float sum = a.bias ? a.bias[c] : 0;
    for (uint32_t j = 0; j < a.taps; j++) {
        int32_t at = (int32_t)(t - t0 + j) - (int32_t)past; /* token of the span */
        float x = at < 0 ? memory[(size_t)(at + (int32_t)past) * width + c] : a.x.p[(size_t)(t0 + at) * a.x.stride + c];
        sum += a.weight[(size_t)c * a.taps + j] * x;
    }
    a.y.p[(size_t)t * a.y.stride + c] = activate(a.act, sum);
}

/* As conv_many for up to TAPS taps: a thread handles one channel and CONV_ROWS tokens, so weights
 * and most inputs are read once. */
enum { CONV_ROWS = 16 };
extern "C" __global__ void conv_tiles(const __grid_constant__ ck_conv a)
{
    uint32_t c = blockIdx.y * blockDim.x + threadIdx.x, past = a.taps - 1, width = a.x.width, t0 = blockIdx.x * CONV_ROWS;
    float w[TAPS], x[TAPS];
#pragma unroll
    for (int m = 0; m < TAPS; m++) w[m] = c < width && m < a.taps ? a.weight[(size_t)c * a.taps + past - m] : 0;
    float bias = a.bias && c < width ? a.bias[c] : 0;
    wait_for_inputs();
    if (c >= width) return;
    const float *memory = static_cast<const float *>(a.pass.slots[a.slot]);
    /* Inputs before this tile: from the rows before it, or from the state. */
#pragma unroll
    for (int m = 1; m < TAPS; m++) {
        x[m] = 0;
        if (m > past) continue;
        x[m] = t0 >= m ? a.x.p[(size_t)(t0 - m) * a.x.stride + c] : memory[(size_t)(past + t0 - m) * width + c];
    }
    /* CONV_ROWS tokens with a sliding register window. */
#pragma unroll
    for (int i = 0; i < CONV_ROWS; i++) {
        if (t0 + i >= a.rows) break;
        float sum = bias;
        x[0] = a.x.p[(size_t)(t0 + i) * a.x.stride + c];
#pragma unroll
        for (int m = TAPS - 1; m >= 0; m--)
            if (m < a.taps) sum += w[m] * x[m];
        a.y.p[(size_t)(t0 + i) * a.y.stride + c] = activate(a.act, sum);
#pragma unroll
        for (int m = TAPS - 1; m > 0; m--) x[m] = x[m - 1];
    }
}

/* Updates the convolution state with the last inputs of each span. Grid (channels, spans). */
extern "C" __global__ void conv_store(const __grid_constant__ ck_conv a)
{
    wait_for_inputs();
    uint32_t c = blockIdx.x * blockDim.x + threadIdx.x, s = blockIdx.y, past = a.taps - 1, width = a.x.width;
    if (c >= width || a.pass.head->stopped) return;
    float *memory = static_cast<float *>(a.pass.slots[s * a.pass.slots_n + a.slot]);
    uint32_t t0 = a.pass.head->from[s], n = a.pass.head->from[s + 1] - t0;
    for (uint32_t j = 0; j < past; j++) { /* ascending: entries are read before they are overwritten */
        uint32_t at = n + j;
        memory[(size_t)j * width + c] = at < past ? memory[(size_t)at * width + c]
                                                  : a.x.p[(size_t)(t0 + at - past) * a.x.stride + c];
    }
}

/* q and k of a token and head, this lane's rows, normalised; returns the head's scalars in all
 * lanes. */
template <int R>
__device__ __forceinline__ delta_scalars load_row(const ck_delta &a, uint32_t t, uint32_t h, float rate, float dt, float (&q)[R],
                                                  float (&k)[R])
{
    uint32_t lane = threadIdx.x & 31, key = h / (a.v_heads / a.k_heads) * a.dk;
    const float *x = a.in[0].p + (size_t)t * a.in[0].stride + key, *y = a.in[1].p + (size_t)t * a.in[1].stride + key;
    float slow = a.in[3].p[(size_t)t * a.in[3].stride + h], fast = a.in[4].p[(size_t)t * a.in[4].stride + h];
#pragma unroll
    for (int r = 0; r < R; r++) {
        uint32_t i = lane + 32 * r;
        q[r] = i < a.dk ? x[i] : 0;
        k[r] = i < a.dk ? y[i] : 0;
    }
    /* Decay e^(rate * softplus(a + dt)) and beta = sigmoid(b). */
    delta_scalars n;
    n.kq = scale_row<R>(q, k, a.dk, a.l2_eps);
    n.decay = expf(rate * softplus(slow + dt));
    n.beta = sigmoid(fast);
    return n;
}

/* Body of delta_prepare, a warp per token and head. Output: [t][key head][2 dk] normalised q and k,
 * then [t][v head][SCALARS]: decay, beta, k . q, and for the up to three tokens m before t in its
 * group of FOUR: k_(t-m) . k_t and k_(t-m) . q_t. */
template <int R> __device__ __forceinline__ void prepare_rows(const ck_delta &a)
{
    uint32_t t = blockIdx.x, h = blockIdx.y * (blockDim.x >> 5) + (threadIdx.x >> 5), lane = threadIdx.x & 31;
    if (h >= a.v_heads) return;
    float q[R], k[R], rate = a.is_log ? -expf(a.decay[h]) : a.decay[h], before[2][FOUR - 1];
    uint32_t share = a.v_heads / a.k_heads, group = (t - a.pass.head->from[a.pass.span[t]]) % FOUR;
    delta_scalars n = load_row<R>(a, t, h, rate, a.dt[h], q, k);
    float *to = a.ready + ((size_t)t * a.k_heads + h / share) * 2 * a.dk;
    /* Products with up to three earlier keys of the group of four. */
#pragma unroll
    for (int m = 1; m < FOUR; m++) {
        const float *y = a.in[1].p + (size_t)(t - m) * a.in[1].stride + h / share * a.dk;
        float squares = 0, kk = 0, kq = 0;
#pragma unroll
        for (int r = 0; r < R; r++) {
            uint32_t i = lane + 32 * r;
            float x = m <= group && i < a.dk ? y[i] : 0;
            squares = fmaf(x, x, squares), kk = fmaf(x, k[r], kk), kq = fmaf(x, q[r], kq);
        }
        float scale = a.l2_eps > 0 ? rsqrtf(warp_sum(squares) + a.l2_eps) : 1;
        before[0][m - 1] = warp_sum(kk) * scale, before[1][m - 1] = warp_sum(kq) * scale;
    }
    /* Value heads of a key head share q and k: one of them writes. */
    if (h % share == 0)
#pragma unroll
        for (int r = 0; r < R; r++) {
            uint32_t i = lane + 32 * r;
            if (i >= a.dk) continue;
            to[i] = q[r];
            to[a.dk + i] = k[r];
        }
    if (lane) return;
    float4 *out = reinterpret_cast<float4 *>(a.ready + (size_t)a.rows * a.k_heads * 2 * a.dk +
                                             ((size_t)t * a.v_heads + h) * SCALARS);
    out[0] = make_float4(n.decay, n.beta, n.kq, 0);
    out[1] = make_float4(before[0][0], before[0][1], before[0][2], 0);
    out[2] = make_float4(before[1][0], before[1][1], before[1][2], 0);
}

/* Loads this lane's rows of `cols` columns of S; whole: four aligned columns. Zeros unless `real`. */
template <int R>
__device__ __forceinline__ void load_state(float4 (&S)[R], const float *memory, const ck_delta &a, uint32_t lane, uint32_t cols,
                                           bool whole, int real)
{
#pragma unroll
    for (int r = 0; r < R; r++) {
        uint32_t i = lane + 32 * r;
        const float *p = memory + (size_t)i * a.dv;
        S[r] = make_float4(0, 0, 0, 0);
        if (i >= a.dk || !real) continue;
        if (whole)
            S[r] = *reinterpret_cast<const float4 *>(p);
        else
            S[r] = make_float4(p[0], cols > 1 ? p[1] : 0, cols > 2 ? p[2] : 0, cols > 3 ? p[3] : 0);
    }
}

/* Stores them. */
template <int R>
__device__ __forceinline__ void store_state(const float4 (&S)[R], float *after, const ck_delta &a, uint32_t lane, uint32_t cols,
                                            bool whole)
{
#pragma unroll
    for (int r = 0; r < R; r++) {
        uint32_t i = lane + 32 * r;
        float *p = after + (size_t)i * a.dv;
        if (i >= a.dk) continue;
        if (whole) {
            *reinterpret_cast<float4 *>(p) = S[r];
            continue;
        }
        p[0] = S[r].x;
        if (cols > 1) p[1] = S[r].y;
        if (cols > 2) p[2] = S[r].z;
        if (cols > 3) p[3] = S[r].w;
    }
}

/* As load_row, from the output of delta_prepare. */
template <int R>
__device__ __forceinline__ delta_scalars load_prepared(const ck_delta &a, uint32_t lane, uint32_t t, uint32_t h, float (&q)[R],
                                                       float (&k)[R])
{
    const float *x = a.ready + ((size_t)t * a.k_heads + h / (a.v_heads / a.k_heads)) * 2 * a.dk;
#pragma unroll
    for (int r = 0; r < R; r++) {
        uint32_t i = lane + 32 * r;
        q[r] = i < a.dk ? x[i] : 0;
        k[r] = i < a.dk ? x[a.dk + i] : 0;
    }
    float4 v = *reinterpret_cast<const float4 *>(a.ready + (size_t)a.rows * a.k_heads * 2 * a.dk +
                                                 ((size_t)t * a.v_heads + h) * SCALARS);
    delta_scalars n;
    n.decay = v.x;
    n.beta = v.y;
    n.kq = v.z;
    return n;
}

/* Body of delta_4 and delta_8 (R = 4, 8 rows of S per lane). Grid (heads times column groups,
 * spans), 128 threads. */
template <int R> __device__ __forceinline__ void delta(const ck_delta &a)
{
    /* unit: warp number over heads and column groups. */
    uint32_t lane = threadIdx.x & 31, per = (a.dv + CK_DELTA_COLUMNS - 1) / CK_DELTA_COLUMNS;
    uint32_t unit = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5), h = unit / per, j0 = unit % per * CK_DELTA_COLUMNS,
             s = blockIdx.y;
    launch_dependents();
    if (h >= a.v_heads) {
        wait_for_inputs();
        return;
    }
    size_t at = (size_t)h * a.dk * a.dv + j0;
    const float *memory = static_cast<const float *>(a.pass.slots[s * a.pass.slots_n + a.slot]) + at;
    float *after = static_cast<float *>(a.pass.slots_out[s * a.pass.slots_n + a.slot]) + at;
    uint32_t cols = a.dv - j0 < CK_DELTA_COLUMNS ? a.dv - j0 : CK_DELTA_COLUMNS;
    bool whole = cols == 4 && a.dv % 4 == 0;
    float rate = a.is_log ? -expf(a.decay[h]) : a.decay[h], dt = a.dt[h];
    float4 S[R];
    bool stopped = a.pass.head->stopped; /* stopped and S were written by earlier passes: no wait needed */
    uint32_t t0 = a.pass.head->from[s], end = a.pass.head->from[s + 1], own = lane >> 3;
    /* Two rounds: the first one computes on zeros before the inputs arrive, to load the instruction
     * cache. With many sequences there are enough blocks to hide those misses. */
#pragma unroll 1
    for (int real = gridDim.y > 2; real < 2; real++) {
        load_state<R>(S, memory, a, lane, cols, whole, real);
        if (real) {
            wait_for_inputs();
            if (stopped) return;
        }
        uint32_t last = real ? end : t0 + 1;
#pragma unroll 1
        for (uint32_t t = t0; t < last; t++) {
            float q[R], k[R], v = 0;
            /* v of this lane's column. */
            delta_scalars n;
            if (own < cols) v = a.in[2].p[(size_t)t * a.in[2].stride + (size_t)h * a.dv + j0 + own];
            if (a.ready) {
                n = load_prepared<R>(a, lane, t, h, q, k);
            } else {
                n = load_row<R>(a, t, h, rate, dt, q, k);
            }
            /* One token of the rule. */
            float mine, out;
            decay_state<R>(S, n.decay, q, k, mine, out);
            float d = n.beta * (v - mine);
            add_outer<R>(S, k, d);
            if ((lane & 7) == 0 && own < cols && real)
                a.y.p[(size_t)t * a.y.stride + (size_t)h * a.dv + j0 + own] = fmaf(n.kq, d, out);
        }
    }
    store_state<R>(S, after, a, lane, cols, whole);
}

/* delta_slabs: a block handles 32 columns of one head's S, each of its 4 warps 32 rows of them, a
 * lane 8 rows of four columns. Loads cover whole lines, and S of 16 sequences and heads fits into
 * the registers of one wave of blocks before the inputs arrive. */
enum { SLAB = CK_DELTA_SLAB_COLUMNS, SLABS = 128 / SLAB, SLAB_WARPS = 4, SLAB_ROWS = 8 };
struct slab_smem {
    float q[SLAB_WARPS][32], k[SLAB_WARPS][32]; /* rows of each warp */
    float sums[2][SLAB_WARPS][2][SLAB];         /* double-buffered by token: each warp's partial sums of S^T k and S^T q */
};

/* Input addresses of a lane, computed before the inputs arrive (the asm statement keeps that order). */
struct slab_inputs {
    const float *q, *k, *v, *slow, *fast;
};
__device__ __forceinline__ slab_inputs find_inputs(const ck_delta &a, uint32_t t, uint32_t h, uint32_t j0)
{
    const uint32_t key = (a.v_heads == a.k_heads ? h : h / (a.v_heads / a.k_heads)) * 128 + 4 * (threadIdx.x & 31);
    slab_inputs in = {a.in[0].p + (size_t)t * a.in[0].stride + key, a.in[1].p + (size_t)t * a.in[1].stride + key,
                      a.in[2].p + (size_t)t * a.in[2].stride + h * 128 + j0, a.in[3].p + (size_t)t * a.in[3].stride + h,
                      a.in[4].p + (size_t)t * a.in[4].stride + h};
    asm volatile("" : "+l"(in.q), "+l"(in.k), "+l"(in.v), "+l"(in.slow), "+l"(in.fast));
    return in;
}

/* Normalises q and k of a token and head; each warp stores its own 32 rows of them. */
__device__ __forceinline__ delta_scalars slab_row(const ck_delta &a, const slab_inputs &in, float rate, const float *dt,
                                                  slab_smem &s)
{
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const float4 x = float4_at(in.q, 0), y = float4_at(in.k, 0);
    const float slow = *in.slow + *dt, fast = *in.fast;
    float q[4] = {x.x, x.y, x.z, x.w}, k[4] = {y.x, y.y, y.z, y.w};
    delta_scalars n;
    n.kq = scale_row<4>(q, k, 128, a.l2_eps);
    n.decay = expf(rate * softplus(slow));
    n.beta = sigmoid(fast);
    if (lane >> 3 == warp) {
        *reinterpret_cast<float4 *>(&s.q[warp][4 * (lane & 7)]) = make_float4(q[0], q[1], q[2], q[3]);
        *reinterpret_cast<float4 *>(&s.k[warp][4 * (lane & 7)]) = make_float4(k[0], k[1], k[2], k[3]);
    }
    __syncwarp();
    return n;
}

/* S <- decay S; stores the warp's partial sums of S^T k and S^T q. The four lanes of a column group
 * reduce by halves: each ends up with two of the eight sums. */
__device__ __forceinline__ void slab_sums(float4 (&S)[SLAB_ROWS], float decay, const slab_smem &s, float (*to)[SLAB])
{
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, sub = lane >> 3, j = (lane & 7) * 4;
    float4 x = make_float4(0, 0, 0, 0), y = x;
#pragma unroll
    for (int r = 0; r < SLAB_ROWS; r++) {
        float k = s.k[warp][sub + 4 * r], q = s.q[warp][sub + 4 * r];
        S[r].x *= decay, S[r].y *= decay, S[r].z *= decay, S[r].w *= decay;
        x.x = fmaf(S[r].x, k, x.x), x.y = fmaf(S[r].y, k, x.y), x.z = fmaf(S[r].z, k, x.z), x.w = fmaf(S[r].w, k, x.w);
        y.x = fmaf(S[r].x, q, y.x), y.y = fmaf(S[r].y, q, y.y), y.z = fmaf(S[r].z, q, y.z), y.w = fmaf(S[r].w, q, y.w);
    }
    /* Exchange between the two lane halves (k or q), then between neighbours (column pairs). */
    const bool of_q = sub & 2, last = sub & 1;
    float4 own = of_q ? y : x, other = of_q ? x : y;
    own.x += __shfl_xor_sync(0xffffffffu, other.x, 16), own.y += __shfl_xor_sync(0xffffffffu, other.y, 16);
    own.z += __shfl_xor_sync(0xffffffffu, other.z, 16), own.w += __shfl_xor_sync(0xffffffffu, other.w, 16);
    float2 mine = last ? make_float2(own.z, own.w) : make_float2(own.x, own.y),
           theirs = last ? make_float2(own.x, own.y) : make_float2(own.z, own.w);
    mine.x += __shfl_xor_sync(0xffffffffu, theirs.x, 8), mine.y += __shfl_xor_sync(0xffffffffu, theirs.y, 8);
    *reinterpret_cast<float2 *>(&to[of_q][j + 2 * last]) = mine;
}

/* Adds the warps' partial sums of four columns, in order; which: 0 S^T k, 1 S^T q. */
__device__ __forceinline__ float4 slab_sum(const float (*sums)[2][SLAB], int which, uint32_t j)
{
    float4 v = float4_at(sums[0][which], j);
#pragma unroll
    for (int w = 1; w < SLAB_WARPS; w++) {
        float4 x = float4_at(sums[w][which], j);
        v.x += x.x, v.y += x.y, v.z += x.z, v.w += x.w;
    }
    return v;
}

/* Kernel: grid (heads times slabs, spans), 128 threads. */
extern "C" __global__ void __launch_bounds__(32 * SLAB_WARPS, 8) delta_slabs(const __grid_constant__ ck_delta a)
{
    __shared__ __align__(16) slab_smem smem;
    /* sub: this lane's row within each group of four; j: its columns. */
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, sub = lane >> 3, h = blockIdx.x / SLABS, j = (lane & 7) * 4,
                   j0 = blockIdx.x % SLABS * SLAB + j, s = blockIdx.y;
    launch_dependents();
    const size_t at = ((size_t)h * 128 + warp * 32 + sub) * 128 + j0;
    const float *memory = static_cast<const float *>(a.pass.slots[s * a.pass.slots_n + a.slot]) + at;
    float *after = static_cast<float *>(a.pass.slots_out[s * a.pass.slots_n + a.slot]) + at;
    float4 S[SLAB_ROWS];
#pragma unroll
    for (int r = 0; r < SLAB_ROWS; r++) S[r] = float4_at(memory, r * 4 * 128);
    const float rate = a.is_log ? -expf(a.decay[h]) : a.decay[h];
    const bool stopped = a.pass.head->stopped;
    const uint32_t t0 = a.pass.head->from[s], end = a.pass.head->from[s + 1];
    slab_inputs in = find_inputs(a, t0, h, j0);
    wait_for_inputs();
    if (stopped) return;
#pragma unroll 1
    for (uint32_t t = t0; t < end; t++) {
        const float4 v = float4_at(in.v, 0);
        const delta_scalars n = slab_row(a, in, rate, a.dt + h, smem);
        float(*sums)[2][SLAB] = smem.sums[(t - t0) & 1];
        slab_sums(S, n.decay, smem, sums[warp]);
        __syncthreads();
        /* d = beta (v - S^T k), the same in all warps. */
        float4 d = slab_sum(sums, 0, j);
        d.x = n.beta * (v.x - d.x), d.y = n.beta * (v.y - d.y), d.z = n.beta * (v.z - d.z), d.w = n.beta * (v.w - d.w);
#pragma unroll
        for (int r = 0; r < SLAB_ROWS; r++) {
            float k = smem.k[warp][sub + 4 * r];
            S[r].x = fmaf(k, d.x, S[r].x), S[r].y = fmaf(k, d.y, S[r].y), S[r].z = fmaf(k, d.z, S[r].z),
            S[r].w = fmaf(k, d.w, S[r].w);
        }
        /* One warp writes the output. */
        if (!sub && !warp) {
            float4 y = slab_sum(sums, 1, j);
            y.x = fmaf(n.kq, d.x, y.x), y.y = fmaf(n.kq, d.y, y.y), y.z = fmaf(n.kq, d.z, y.z), y.w = fmaf(n.kq, d.w, y.w);
            *reinterpret_cast<float4 *>(a.y.p + (size_t)t * a.y.stride + h * 128 + j0) = y;
        }
        in.q += a.in[0].stride, in.k += a.in[1].stride, in.v += a.in[2].stride, in.slow += a.in[3].stride,
            in.fast += a.in[4].stride;
        __syncwarp();
    }
#pragma unroll
    for (int r = 0; r < SLAB_ROWS; r++) *reinterpret_cast<float4 *>(after + r * 4 * 128) = S[r];
}

/* The template argument is the number of tokens per step. */
extern "C" __global__ void __launch_bounds__(128) delta_tiles_4(const __grid_constant__ ck_delta a) { delta_tiles<4>(a); }

#define DELTA(R)                                                                                                     \
    extern "C" __global__ void __launch_bounds__(128) delta_##R(const __grid_constant__ ck_delta a) { delta<R>(a); } \
    extern "C" __global__ void __launch_bounds__(128) delta_prepare_##R(const __grid_constant__ ck_delta a)          \
    {                                                                                                                \
        wait_for_inputs();                                                                                           \
        prepare_rows<R>(a);                                                                                          \
    }
DELTA(4)
DELTA(8)
