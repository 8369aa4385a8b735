/* k_delta.cu: what linear layers remember: the short convolution and the gated delta rule.
 *
 * delta: a warp owns 4 columns of one head's S [dk][dv] and keeps them in registers over all rows of its
 * span: lane l holds rows l, l + 32, ... With S' = e^g S the new output is S'^T q + (k . q) d, so both
 * products with the old state are reduced together: one butterfly of 6 exchanges per token. Prefill takes
 * four tokens a step (delta_tiles). Decoding moves 2 * 4 * dk * dv bytes a head, mostly through L2.
 * SPDX-License-Identifier: MIT */
#include "k_rule.cuh"

enum { TAPS = 8 };

/* A thread per channel and span; rows in order. For few rows and up to TAPS taps; entry m is m rows back. */
extern "C" __global__ void conv_step(const __grid_constant__ ck_conv a)
{
    dependents_may_start();
    uint32_t c = blockIdx.x * blockDim.x + threadIdx.x, s = blockIdx.y, past = a.taps - 1, width = a.x.width;
    const float *memory = static_cast<const float *>(a.pass.slots[s * a.pass.slots_n + a.slot]);
    float *after = static_cast<float *>(a.pass.slots_out[s * a.pass.slots_n + a.slot]);
    float w[TAPS], x[TAPS];
#pragma unroll
    for (int m = 0; m < TAPS; m++)
        w[m] = c < width && m < a.taps ? a.weight[(size_t)c * a.taps + past - m] : 0;
    float bias = a.bias && c < width ? a.bias[c] : 0;
    bool stopped =
        a.pass.head->stopped; /* this and the memory were written by earlier passes: no need to wait */
    uint32_t begin = a.pass.head->from[s], end = a.pass.head->from[s + 1];
#pragma unroll
    for (int m = 1; m < TAPS; m++) x[m] = c < width && m <= past ? memory[(size_t)(past - m) * width + c] : 0;
    wait_for_inputs();
    if (c >= width || stopped) return;
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
#pragma unroll
    for (int m = 1; m < TAPS; m++)
        if (m <= past) after[(size_t)(past - m) * width + c] = x[m];
}

/* One span of many rows: a thread per channel and row, any number of taps; conv_keep moves the memory on
 * afterwards. */
extern "C" __global__ void conv_many(const __grid_constant__ ck_conv a)
{
    wait_for_inputs();
    uint32_t c = blockIdx.y * blockDim.x + threadIdx.x, t = blockIdx.x, past = a.taps - 1, width = a.x.width;
    if (c >= width) return;
    uint32_t s = a.pass.span[t], t0 = a.pass.head->from[s];
    const float *memory = static_cast<const float *>(a.pass.slots[s * a.pass.slots_n + a.slot]);
    float sum = a.bias ? a.bias[c] : 0;
    for (uint32_t j = 0; j < a.taps; j++) {
        int32_t at = (int32_t)(t - t0 + j) - (int32_t)past; /* row of the span */
        float x = at < 0 ? memory[(size_t)(at + (int32_t)past) * width + c]
                         : a.x.p[(size_t)(t0 + at) * a.x.stride + c];
        sum += a.weight[(size_t)c * a.taps + j] * x;
    }
    a.y.p[(size_t)t * a.y.stride + c] = activate(a.act, sum);
}

/* As conv_many for up to TAPS taps: a thread takes a channel and CONV_ROWS rows, so weights and most rows are
 * read once. */
enum { CONV_ROWS = 16 };
extern "C" __global__ void conv_tiles(const __grid_constant__ ck_conv a)
{
    uint32_t c = blockIdx.y * blockDim.x + threadIdx.x, past = a.taps - 1, width = a.x.width,
             t0 = blockIdx.x * CONV_ROWS;
    float w[TAPS], x[TAPS];
#pragma unroll
    for (int m = 0; m < TAPS; m++)
        w[m] = c < width && m < a.taps ? a.weight[(size_t)c * a.taps + past - m] : 0;
    float bias = a.bias && c < width ? a.bias[c] : 0;
    wait_for_inputs();
    if (c >= width) return;
    const float *memory = static_cast<const float *>(a.pass.slots[a.slot]);
#pragma unroll
    for (int m = 1; m < TAPS; m++) {
        x[m] = 0;
        if (m > past) continue;
        x[m] =
            t0 >= m ? a.x.p[(size_t)(t0 - m) * a.x.stride + c] : memory[(size_t)(past + t0 - m) * width + c];
    }
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

extern "C" __global__ void conv_keep(const __grid_constant__ ck_conv a)
{
    wait_for_inputs();
    uint32_t c = blockIdx.x * blockDim.x + threadIdx.x, s = blockIdx.y, past = a.taps - 1, width = a.x.width;
    if (c >= width || a.pass.head->stopped) return;
    float *memory = static_cast<float *>(a.pass.slots[s * a.pass.slots_n + a.slot]);
    uint32_t t0 = a.pass.head->from[s], n = a.pass.head->from[s + 1] - t0;
    for (uint32_t j = 0; j < past; j++) { /* rising: an entry is read before it is overwritten */
        uint32_t at = n + j;
        memory[(size_t)j * width + c] =
            at < past ? memory[(size_t)at * width + c] : a.x.p[(size_t)(t0 + at - past) * a.x.stride + c];
    }
}

/* 16 bytes into shared memory, while the thread goes on. */
__device__ __forceinline__ void copy_later(void *to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
                 "l"(from)
                 : "memory");
}

/* q and k of a row and head: lane's rows, normalised; all lanes get the row's numbers. */
template <int R>
__device__ __forceinline__ numbers_of bring_row(const ck_delta &a, uint32_t t, uint32_t h, float rate,
                                                float dt, float (&q)[R], float (&k)[R])
{
    uint32_t lane = threadIdx.x & 31, key = h / (a.v_heads / a.k_heads) * a.dk;
    const float *x = a.in[0].p + (size_t)t * a.in[0].stride + key,
                *y = a.in[1].p + (size_t)t * a.in[1].stride + key;
    float slow = a.in[3].p[(size_t)t * a.in[3].stride + h], fast = a.in[4].p[(size_t)t * a.in[4].stride + h];
#pragma unroll
    for (int r = 0; r < R; r++) {
        uint32_t i = lane + 32 * r;
        q[r] = i < a.dk ? x[i] : 0;
        k[r] = i < a.dk ? y[i] : 0;
    }
    numbers_of n;
    n.kq = scale_row<R>(q, k, a.dk, a.l2_eps);
    n.decay = expf(rate * softplus(slow + dt));
    n.beta = sigmoid(fast);
    return n;
}

/* Where the rows of q and k made ready lie: [t][key head][2 * dk], then [t][v head][NUMBERS]: decay, beta, k
 * . q, and for the up to three rows m before t in its group of FOUR of the span: k of m . k, k of m . q. */
enum { NUMBERS = CK_DELTA_NUMBERS, FOUR = 4 };
template <int R> __device__ __forceinline__ void make_ready(const ck_delta &a)
{
    uint32_t t = blockIdx.x, h = blockIdx.y * (blockDim.x >> 5) + (threadIdx.x >> 5), lane = threadIdx.x & 31;
    if (h >= a.v_heads) return;
    float q[R], k[R], rate = a.is_log ? -expf(a.decay[h]) : a.decay[h], before[2][FOUR - 1];
    uint32_t share = a.v_heads / a.k_heads, group = (t - a.pass.head->from[a.pass.span[t]]) % FOUR;
    numbers_of n = bring_row<R>(a, t, h, rate, a.dt[h], q, k);
    float *to = a.ready + ((size_t)t * a.k_heads + h / share) * 2 * a.dk;
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
                                             ((size_t)t * a.v_heads + h) * NUMBERS);
    out[0] = make_float4(n.decay, n.beta, n.kq, 0);
    out[1] = make_float4(before[0][0], before[0][1], before[0][2], 0);
    out[2] = make_float4(before[1][0], before[1][1], before[1][2], 0);
}

/* A lane's rows of `cols` columns of S; `whole`: four, which lie aligned. Zeros where not `real`. */
template <int R>
__device__ __forceinline__ void load_state(float4 (&S)[R], const float *memory, const ck_delta &a,
                                           uint32_t lane, uint32_t cols, bool whole, int real)
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

template <int R>
__device__ __forceinline__ void store_state(const float4 (&S)[R], float *after, const ck_delta &a,
                                            uint32_t lane, uint32_t cols, bool whole)
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

/* As bring_row, from what make_ready left. */
template <int R>
__device__ __forceinline__ numbers_of load_ready(const ck_delta &a, uint32_t lane, uint32_t t, uint32_t h,
                                                 float (&q)[R], float (&k)[R])
{
    const float *x = a.ready + ((size_t)t * a.k_heads + h / (a.v_heads / a.k_heads)) * 2 * a.dk;
#pragma unroll
    for (int r = 0; r < R; r++) {
        uint32_t i = lane + 32 * r;
        q[r] = i < a.dk ? x[i] : 0;
        k[r] = i < a.dk ? x[a.dk + i] : 0;
    }
    float4 v = *reinterpret_cast<const float4 *>(a.ready + (size_t)a.rows * a.k_heads * 2 * a.dk +
                                                 ((size_t)t * a.v_heads + h) * NUMBERS);
    numbers_of n;
    n.decay = v.x;
    n.beta = v.y;
    n.kq = v.z;
    return n;
}

template <int R> __device__ __forceinline__ void delta(const ck_delta &a)
{
    uint32_t lane = threadIdx.x & 31, per = (a.dv + CK_DELTA_COLUMNS - 1) / CK_DELTA_COLUMNS;
    uint32_t unit = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5), h = unit / per,
             j0 = unit % per * CK_DELTA_COLUMNS, s = blockIdx.y;
    dependents_may_start();
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
    bool stopped = a.pass.head->stopped; /* this and S were written by earlier passes: no need to wait */
    uint32_t t0 = a.pass.head->from[s], end = a.pass.head->from[s + 1], own = lane >> 3;
    /* Twice: the first time on nothing, before the inputs are there, so that the instructions are; many sequences bring enough
     * blocks to hide that. */
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
            numbers_of n;
            if (own < cols) v = a.in[2].p[(size_t)t * a.in[2].stride + (size_t)h * a.dv + j0 + own];
            if (a.ready) {
                n = load_ready<R>(a, lane, t, h, q, k);
            } else {
                n = bring_row<R>(a, t, h, rate, dt, q, k);
            }
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

/* --- a few rows of heads of 128 --- */

/* A block has 32 columns of a head's S, each of its 4 warps 32 rows of them, a lane 8 rows of four columns: whole lines of
 * memory, and S of 16 sequences and heads is in registers of one wave of blocks before the inputs are waited for. */
enum { SLAB = CK_DELTA_SLAB, SLABS = 128 / SLAB, SLAB_WARPS = 4, SLAB_ROWS = 8 };
struct slab_room {
    float q[SLAB_WARPS][32], k[SLAB_WARPS][32]; /* of a warp's rows */
    float sums[2][SLAB_WARPS][2][SLAB];         /* turn by turn, of each warp's rows: S^T k, S^T q */
};

/* Where a lane finds a row's inputs: found before they are there, and kept. */
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

/* A row's q and k of the head, scaled; the warp's own rows of them into its place. */
__device__ __forceinline__ numbers_of slab_row(const ck_delta &a, const slab_inputs &in, float rate, const float *dt,
                                               slab_room &s)
{
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const float4 x = four_at(in.q, 0), y = four_at(in.k, 0);
    const float slow = *in.slow + *dt, fast = *in.fast;
    float q[4] = {x.x, x.y, x.z, x.w}, k[4] = {y.x, y.y, y.z, y.w};
    numbers_of n;
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

/* S <- decay S; the warp's sums of S^T k and S^T q into its place: the four lanes of a column have each two of its eight
 * numbers. */
__device__ __forceinline__ void slab_sums(float4 (&S)[SLAB_ROWS], float decay, const slab_room &s, float (*to)[SLAB])
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
    const bool of_q = sub & 2, last = sub & 1;
    float4 own = of_q ? y : x, other = of_q ? x : y;
    own.x += __shfl_xor_sync(0xffffffffu, other.x, 16), own.y += __shfl_xor_sync(0xffffffffu, other.y, 16);
    own.z += __shfl_xor_sync(0xffffffffu, other.z, 16), own.w += __shfl_xor_sync(0xffffffffu, other.w, 16);
    float2 mine = last ? make_float2(own.z, own.w) : make_float2(own.x, own.y),
           theirs = last ? make_float2(own.x, own.y) : make_float2(own.z, own.w);
    mine.x += __shfl_xor_sync(0xffffffffu, theirs.x, 8), mine.y += __shfl_xor_sync(0xffffffffu, theirs.y, 8);
    *reinterpret_cast<float2 *>(&to[of_q][j + 2 * last]) = mine;
}

__device__ __forceinline__ float4 slab_sum(const float (*sums)[2][SLAB], int which, uint32_t j)
{
    float4 v = four_at(sums[0][which], j);
#pragma unroll
    for (int w = 1; w < SLAB_WARPS; w++) {
        float4 x = four_at(sums[w][which], j);
        v.x += x.x, v.y += x.y, v.z += x.z, v.w += x.w;
    }
    return v;
}

extern "C" __global__ void __launch_bounds__(32 * SLAB_WARPS, 8) delta_slabs(const __grid_constant__ ck_delta a)
{
    __shared__ __align__(16) slab_room room;
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, sub = lane >> 3, h = blockIdx.x / SLABS, j = (lane & 7) * 4,
                   j0 = blockIdx.x % SLABS * SLAB + j, s = blockIdx.y;
    dependents_may_start();
    const size_t at = ((size_t)h * 128 + warp * 32 + sub) * 128 + j0;
    const float *memory = static_cast<const float *>(a.pass.slots[s * a.pass.slots_n + a.slot]) + at;
    float *after = static_cast<float *>(a.pass.slots_out[s * a.pass.slots_n + a.slot]) + at;
    float4 S[SLAB_ROWS];
#pragma unroll
    for (int r = 0; r < SLAB_ROWS; r++) S[r] = four_at(memory, r * 4 * 128);
    const float rate = a.is_log ? -expf(a.decay[h]) : a.decay[h];
    const bool stopped = a.pass.head->stopped;
    const uint32_t t0 = a.pass.head->from[s], end = a.pass.head->from[s + 1];
    slab_inputs in = find_inputs(a, t0, h, j0);
    wait_for_inputs();
    if (stopped) return;
#pragma unroll 1
    for (uint32_t t = t0; t < end; t++) {
        const float4 v = four_at(in.v, 0);
        const numbers_of n = slab_row(a, in, rate, a.dt + h, room);
        float(*sums)[2][SLAB] = room.sums[(t - t0) & 1];
        slab_sums(S, n.decay, room, sums[warp]);
        __syncthreads();
        float4 d = slab_sum(sums, 0, j);
        d.x = n.beta * (v.x - d.x), d.y = n.beta * (v.y - d.y), d.z = n.beta * (v.z - d.z), d.w = n.beta * (v.w - d.w);
#pragma unroll
        for (int r = 0; r < SLAB_ROWS; r++) {
            float k = room.k[warp][sub + 4 * r];
            S[r].x = fmaf(k, d.x, S[r].x), S[r].y = fmaf(k, d.y, S[r].y), S[r].z = fmaf(k, d.z, S[r].z),
            S[r].w = fmaf(k, d.w, S[r].w);
        }
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

enum { TILE = 16, WARPS = 4 };

/* k of four rows of a tile from r0 on, and their products with the S before them: in lanes 0 to 15 of sums
 * S^T k of both columns, in the others S^T q. */
template <int R>
__device__ __forceinline__ void four_products(const float2 (&S)[R], const float (&qk)[TILE][64 * R],
                                              uint32_t r0, uint32_t dk, uint32_t lane, float (&k)[FOUR][R],
                                              float (&sums)[FOUR])
{
#pragma unroll
    for (int t = 0; t < FOUR; t++) {
        float2 x = make_float2(0, 0), y = x;
#pragma unroll
        for (int r = 0; r < R; r++) {
            float q = qk[r0 + t][lane + 32 * r];
            k[t][r] = qk[r0 + t][dk + lane + 32 * r];
            x.x = fmaf(S[r].x, k[t][r], x.x), x.y = fmaf(S[r].y, k[t][r], x.y);
            y.x = fmaf(S[r].x, q, y.x), y.y = fmaf(S[r].y, q, y.y);
        }
        sums[t] = four_sums(x.x, x.y, y.x, y.y);
    }
}

/* Row t of four, by its numbers and v: d_t from those before it, which decay up to it as G does; returns y_t.
 * v is read where it is used. */
__device__ __forceinline__ float delta_of_row(const float4 *num, const float &v, float sums, uint32_t own,
                                              int t, float (&d)[FOUR], float &G)
{
    float4 n0 = num[0], kk = num[1], kq = num[2];
    G *= n0.x;
    float sum = 0, y = 0;
#pragma unroll
    for (int m = 1; m <= t; m++) { /* d of t - m has been decayed up to t - 1 */
        d[t - m] *= n0.x;
        sum = fmaf(m == 1 ? kk.x : m == 2 ? kk.y : kk.z, d[t - m], sum);
        y = fmaf(m == 1 ? kq.x : m == 2 ? kq.y : kq.z, d[t - m], y);
    }
    float mine = n0.y * (v - fmaf(G, sums, sum));
    d[t] = __shfl_sync(0xffffffffu, mine, own * 8);
    return fmaf(n0.z, d[t], fmaf(G, sums, y));
}

/* S <- G S + sum of k d^T over four rows; lane 0 holds d of the first column, lane 8 that of the second. */
template <int R>
__device__ __forceinline__ void add_four(float2 (&S)[R], const float (&k)[FOUR][R], const float (&d)[FOUR],
                                         float G)
{
    float2 w[FOUR];
#pragma unroll
    for (int t = 0; t < FOUR; t++)
        w[t] = make_float2(__shfl_sync(0xffffffffu, d[t], 0), __shfl_sync(0xffffffffu, d[t], 8));
#pragma unroll
    for (int r = 0; r < R; r++) {
        S[r].x *= G, S[r].y *= G;
#pragma unroll
        for (int t = 0; t < FOUR; t++)
            S[r].x = fmaf(k[t][r], w[t].x, S[r].x), S[r].y = fmaf(k[t][r], w[t].y, S[r].y);
    }
}

/* Where a block's tiles come from: rows [t0, t0 + n) of q and k made ready, [width] of head `key`; columns
 * from j0 on of head h of v; and numbers, [rows][v heads][NUMBERS]. */
struct tile_source {
    uint32_t h, j0, t0, n, width, key;
    const float *numbers;
};

/* Asks for TILE rows from tile * TILE on, one group of copies; what is not 16 bytes aligned comes at once. */
template <int R>
__device__ __forceinline__ void bring_tile(const ck_delta &a, const tile_source &from, uint32_t tile,
                                           float (&qk)[TILE][64 * R], float (&vs)[TILE][CK_DELTA_TILED],
                                           float (&numbers)[TILE][NUMBERS])
{
    enum { WIDE = (NUMBERS + CK_DELTA_TILED) / 4 };
    for (uint32_t i = threadIdx.x; i < TILE * from.width / 4; i += 128) {
        uint32_t r = i / (from.width / 4), c = i % (from.width / 4) * 4, t = tile * TILE + r;
        if (t < from.n)
            copy_later(&qk[r][c], a.ready + ((size_t)(from.t0 + t) * a.k_heads + from.key) * from.width + c);
        else
            *reinterpret_cast<float4 *>(&qk[r][c]) = make_float4(0, 0, 0, 0);
    }
    for (uint32_t i = threadIdx.x; i < TILE * WIDE; i += 128) {
        uint32_t r = i / WIDE, c = i % WIDE, t = tile * TILE + r, v = c < NUMBERS / 4 ? 0 : c - NUMBERS / 4;
        float *put = c < NUMBERS / 4 ? &numbers[r][4 * c] : &vs[r][4 * v];
        const float *p = c < NUMBERS / 4
                             ? from.numbers + ((size_t)(from.t0 + t) * a.v_heads + from.h) * NUMBERS + 4 * c
                             : a.in[2].p + (size_t)(from.t0 + t) * a.in[2].stride + (size_t)from.h * a.dv +
                                   from.j0 + 4 * v;
        if (t < from.n && (reinterpret_cast<uintptr_t>(p) & 15) == 0)
            copy_later(put, p);
        else if (t < from.n)
            for (int k = 0; k < 4; k++) put[k] = p[k];
        else
            *reinterpret_cast<float4 *>(put) = make_float4(c == 0, 0, 0, 0);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Many rows of one head of width 128, made ready: the block's 4 warps share q and k, which come into shared
 * memory 16 rows at a time while the 16 before are worked on. Four rows are one step: with S the state before
 * them, G_t the product of their decays up to t and G_st that of the rows s + 1 .. t, d_t = beta_t (v_t - G_t
 * S^T k_t - sum over s < t of G_st (k_s . k_t) d_s) y_t = G_t S^T q_t + sum over s <= t of G_st (k_s . q_t)
 * d_s,   S <- G_4 S + sum of G_s4 k_s d_s^T so that all eight products with S are reduced together. Rows
 * beyond the last are nothing: decay 1, all else 0. */
template <int R> __device__ __forceinline__ void delta_tiles(const ck_delta &a)
{
    __shared__ __align__(16) float qk[2][TILE][64 * R], vs[2][TILE][CK_DELTA_TILED],
        numbers[2][TILE][NUMBERS];
    enum { COLUMNS = CK_DELTA_TILED / WARPS };
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, per = a.dv / CK_DELTA_TILED;
    uint32_t h = blockIdx.x / per, j0 = blockIdx.x % per * CK_DELTA_TILED, s = blockIdx.y,
             own = lane >> 3 & 1;
    uint32_t width = 2 * a.dk, key = h / (a.v_heads / a.k_heads);
    size_t at = (size_t)h * a.dk * a.dv + j0 + warp * COLUMNS;
    const float *memory = static_cast<const float *>(a.pass.slots[s * a.pass.slots_n + a.slot]) + at;
    float *after = static_cast<float *>(a.pass.slots_out[s * a.pass.slots_n + a.slot]) + at;
    const float *scalars = a.ready + (size_t)a.rows * a.k_heads * width;
    float2 S[R];
    wait_for_inputs();
#pragma unroll
    for (int r = 0; r < R; r++)
        S[r] = *reinterpret_cast<const float2 *>(memory + (size_t)(lane + 32 * r) * a.dv);
    uint32_t t0 = a.pass.head->from[s], n = a.pass.head->from[s + 1] - t0;
    const tile_source from = {h, j0, t0, n, width, key, scalars};
    bring_tile<R>(a, from, 0, qk[0], vs[0], numbers[0]);
    for (uint32_t tile = 0; tile * TILE < n; tile++) {
        uint32_t to = (tile + 1) & 1;
        bring_tile<R>(a, from, tile + 1, qk[to], vs[to], numbers[to]);
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        __syncthreads();
        uint32_t in = tile & 1;
#pragma unroll 1
        for (uint32_t r0 = 0; r0 < TILE; r0 += FOUR) {
            float k[FOUR][R], sums[FOUR], d[FOUR], G = 1;
            four_products<R>(S, qk[in], r0, a.dk, lane, k, sums);
#pragma unroll
            for (int t = 0; t < FOUR; t++) {
                const float4 *num = reinterpret_cast<const float4 *>(numbers[in][r0 + t]);
                float y = delta_of_row(num, vs[in][r0 + t][warp * COLUMNS + own], sums[t], own, t, d, G);
                if ((lane & 23) == 16 && tile * TILE + r0 + t < n)
                    a.y.p[(size_t)(t0 + tile * TILE + r0 + t) * a.y.stride + (size_t)h * a.dv + j0 +
                          warp * COLUMNS + own] = y;
            }
            add_four<R>(S, k, d, G);
        }
        __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < R; r++) *reinterpret_cast<float2 *>(after + (size_t)(lane + 32 * r) * a.dv) = S[r];
}

extern "C" __global__ void __launch_bounds__(128) delta_tiles_4(const __grid_constant__ ck_delta a)
{
    delta_tiles<4>(a);
}

#define DELTA(R)                                                                                          \
    extern "C" __global__ void __launch_bounds__(128) delta_##R(const __grid_constant__ ck_delta a)       \
    {                                                                                                     \
        delta<R>(a);                                                                                      \
    }                                                                                                     \
    extern "C" __global__ void __launch_bounds__(128) delta_ready_##R(const __grid_constant__ ck_delta a) \
    {                                                                                                     \
        wait_for_inputs();                                                                                \
        make_ready<R>(a);                                                                                 \
    }
DELTA(4)
DELTA(8)
