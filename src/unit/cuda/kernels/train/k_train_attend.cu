/* k_train_attend.cu: attention of training, for whole sequences that begin at position 0. Scores of some heads are kept as
 * matrices [longest, longest]; tiles above the diagonal or outside the window are left out. With P the weights and O = P V:
 * dV = P^T dO; dS = P (dO V^T - rowsum(P dO V^T)), times 1 - tanh^2 with a soft cap; dQ = scale dS K; dK = scale dS^T Q.
 * dK and dV are summed over the query heads of a group in order, by one block.
 * SPDX-License-Identifier: MIT */
#include "k_train_tile.cuh"

enum { T = CT_TILE };

/* One item: a sequence of n rows from `first`, a query head h and its key head. */
struct attend_item {
    uint32_t first, n, h, kv;
    size_t scores;

    __device__ attend_item(const ct_attend &a, uint32_t z)
    {
        uint32_t s = a.first + z / a.heads_n;
        first = a.from[s];
        n = a.from[s + 1] - first;
        h = a.heads_from + z % a.heads_n;
        kv = h / (a.heads / a.kv_heads);
        scores = (size_t)z * a.longest * a.longest;
    }
};

/* First key that a query at `pos` attends to. */
__device__ uint32_t first_key(const ct_attend &a, uint32_t pos) { return a.window && pos + 1 > a.window ? pos + 1 - a.window : 0; }

/* The same, down to a tile of the sum: the weights between are 0. */
__device__ uint32_t first_tile(const ct_attend &a, uint32_t pos) { return first_key(a, pos) / CT_DEEP * CT_DEEP; }

__device__ const float *row_of(const ct_matrix &m, uint32_t row, uint32_t column) { return m.p + row * m.stride + column; }

/* scores = scale Q K^T. Grid: key tile, query tile, item. */
template <int MODE> __device__ void scores(const ct_attend &a)
{
    attend_item x(a, blockIdx.z);
    uint32_t i0 = blockIdx.y * T, j0 = blockIdx.x * T, end = i0 + T < x.n ? i0 + T : x.n;
    if (i0 >= x.n || j0 >= end || j0 + T <= first_key(a, i0)) return;
    train_tile<T, false, true, MODE> t;
    t.clear();
    t.add(row_of(a.q, x.first, x.h * a.d), a.q.stride, i0, x.n, row_of(a.k, x.first, x.kv * a.d), a.k.stride, j0, x.n, 0, a.d);
    float *s = a.scores + x.scores;
    t.each(i0, x.n, j0, x.n, [&](uint32_t i, uint32_t j, float v) { s[(size_t)i * x.n + j] = a.scale * v; });
}

/* The part of row i that products of tiles read: what the row does not attend to must be 0 there. */
__device__ uint32_t zero_from(const ct_attend &a, uint32_t i) { return first_key(a, i) > 2 * T ? first_key(a, i) - 2 * T : 0; }
__device__ uint32_t zero_to(uint32_t i, uint32_t n) { return (i / T + 1) * T < n ? (i / T + 1) * T : n; }

/* Softmax of a row in place. Grid: row, item. */
extern "C" __global__ void __launch_bounds__(CT_THREADS) train_softmax(const __grid_constant__ ct_attend a)
{
    __shared__ float scratch[8];
    attend_item x(a, blockIdx.y);
    uint32_t i = blockIdx.x;
    if (i >= x.n) return;
    float *s = a.scores + x.scores + (size_t)i * x.n, *slope = a.slopes ? a.slopes + x.scores + (size_t)i * x.n : nullptr;
    uint32_t from = first_key(a, i), to = i + 1;
    float max = a.sinks ? a.sinks[x.h] : -INFINITY, sum = 0;
    for (uint32_t j = from + threadIdx.x; j < to; j += blockDim.x) {
        if (a.softcap > 0) {
            float t = tanhf(s[j] / a.softcap);
            s[j] = a.softcap * t;
            if (slope) slope[j] = 1 - t * t;
        }
        max = fmaxf(max, s[j]);
    }
    max = train_block_max(max, scratch);
    for (uint32_t j = from + threadIdx.x; j < to; j += blockDim.x) {
        s[j] = expf(s[j] - max);
        sum += s[j];
    }
    float sink = a.sinks ? expf(a.sinks[x.h] - max) : 0, inverse = 1.0f / (train_block_sum(sum, scratch) + sink);
    for (uint32_t j = zero_from(a, i) + threadIdx.x; j < zero_to(i, x.n); j += blockDim.x) s[j] = j < from || j >= to ? 0 : s[j] * inverse;
    if (!threadIdx.x && a.sink_parts) a.sink_parts[(size_t)blockIdx.y * a.longest + i] = sink * inverse;
}

/* O = P V, times sigmoid(gate) in out; in `plain` without. Grid: value tile, query tile, item. */
template <int MODE> __device__ void attend_out(const ct_attend &a)
{
    attend_item x(a, blockIdx.z);
    uint32_t i0 = blockIdx.y * T, j0 = blockIdx.x * T, end = i0 + T < x.n ? i0 + T : x.n;
    if (i0 >= x.n) return;
    train_tile<T, false, false, MODE> t;
    t.clear();
    t.add(a.scores + x.scores, x.n, i0, x.n, row_of(a.v, x.first, x.kv * a.dvw), a.v.stride, j0, a.dvw, first_tile(a, i0), end);
    t.each(i0, x.n, j0, a.dvw, [&](uint32_t i, uint32_t c, float v) {
        size_t at = (size_t)(x.first + i) * a.heads * a.dvw + x.h * a.dvw + c;
        if (a.plain) a.plain[at] = v;
        else a.out[at] = a.gate.p ? v * train_sigmoid(*row_of(a.gate, x.first + i, x.h * a.dvw + c)) : v;
    });
}

/* Gate of the backward pass: out = dO = dy sigmoid(g); dg += dy O sigmoid'(g). A thread per number. */
extern "C" __global__ void train_gate_back(const __grid_constant__ ct_attend a)
{
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    uint32_t width = a.heads * a.dvw, t = (uint32_t)(i / width), c = (uint32_t)(i % width);
    if (t >= a.rows) return;
    float s = train_sigmoid(*row_of(a.gate, t, c)), dy = a.dout[i];
    if (a.dgate.p) a.dgate.p[t * a.dgate.stride + c] += dy * a.plain[i] * s * (1 - s);
    a.out[i] = dy * s;
}

/* dscores = dO V^T; dout is dO. Grid as train_scores. */
template <int MODE> __device__ void dscores(const ct_attend &a)
{
    attend_item x(a, blockIdx.z);
    uint32_t i0 = blockIdx.y * T, j0 = blockIdx.x * T, end = i0 + T < x.n ? i0 + T : x.n;
    if (i0 >= x.n || j0 >= end || j0 + T <= first_key(a, i0)) return;
    train_tile<T, false, true, MODE> t;
    size_t width = (size_t)a.heads * a.dvw;
    t.clear();
    t.add(a.dout + x.first * width + x.h * a.dvw, width, i0, x.n, row_of(a.v, x.first, x.kv * a.dvw), a.v.stride, j0, x.n, 0, a.dvw);
    float *s = a.dscores + x.scores;
    t.each(i0, x.n, j0, x.n, [&](uint32_t i, uint32_t j, float v) { s[(size_t)i * x.n + j] = v; });
}

/* dscores of a row from dP to scale dS, and the share of the sink. Grid: row, item. */
extern "C" __global__ void __launch_bounds__(CT_THREADS) train_softmax_back(const __grid_constant__ ct_attend a)
{
    __shared__ float scratch[8];
    attend_item x(a, blockIdx.y);
    uint32_t i = blockIdx.x;
    if (i >= x.n) return;
    const float *p = a.scores + x.scores + (size_t)i * x.n, *slope = a.slopes ? a.slopes + x.scores + (size_t)i * x.n : nullptr;
    float *d = a.dscores + x.scores + (size_t)i * x.n, sum = 0;
    uint32_t from = first_key(a, i), to = i + 1;
    for (uint32_t j = from + threadIdx.x; j < to; j += blockDim.x) sum = fmaf(p[j], d[j], sum);
    sum = train_block_sum(sum, scratch);
    for (uint32_t j = zero_from(a, i) + threadIdx.x; j < zero_to(i, x.n); j += blockDim.x) {
        float v = j < from || j >= to ? 0 : p[j] * (d[j] - sum) * a.scale;
        d[j] = slope && v != 0 ? v * slope[j] : v;
    }
    if (!threadIdx.x && a.sink_parts) a.sink_parts[(size_t)blockIdx.y * a.longest + i] *= sum;
}

/* dQ += dS K. Grid: column tile, query tile, item. */
template <int MODE> __device__ void queries_back(const ct_attend &a)
{
    attend_item x(a, blockIdx.z);
    uint32_t i0 = blockIdx.y * T, j0 = blockIdx.x * T, end = i0 + T < x.n ? i0 + T : x.n;
    if (i0 >= x.n) return;
    train_tile<T, false, false, MODE> t;
    t.clear();
    t.add(a.dscores + x.scores, x.n, i0, x.n, row_of(a.k, x.first, x.kv * a.d), a.k.stride, j0, a.d, first_tile(a, i0), end);
    float *d = a.dq.p + x.first * a.dq.stride + x.h * a.d;
    t.each(i0, x.n, j0, a.d, [&](uint32_t i, uint32_t c, float v) { d[i * a.dq.stride + c] += v; });
}

/* The rows that attend to keys [j0, j0 + T). */
__device__ uint32_t last_query(const ct_attend &a, uint32_t j0, uint32_t n)
{
    return a.window && j0 + T - 1 + a.window < n ? j0 + T - 1 + a.window : n;
}

/* Sum over the heads of a group of weights^T x: dK from dS and Q, dV from P and dO. z: a sequence and a key head of the launch. */
template <bool KEYS, int MODE> __device__ void keys_back(const ct_attend &a)
{
    uint32_t group = a.heads / a.kv_heads, of = a.heads_n / group, width = KEYS ? a.d : a.dvw;
    uint32_t z = blockIdx.z / of * a.heads_n + blockIdx.z % of * group, i0 = blockIdx.y * T, j0 = blockIdx.x * T;
    attend_item x(a, z);
    if (i0 >= x.n) return;
    train_tile<T, true, false, MODE> t;
    t.clear();
    for (uint32_t g = 0; g < group; g++) {
        attend_item y(a, z + g);
        const float *weights = (KEYS ? a.dscores : a.scores) + y.scores;
        const float *b = KEYS ? row_of(a.q, y.first, y.h * a.d) : a.dout + ((size_t)y.first * a.heads + y.h) * a.dvw;
        t.add(weights, x.n, i0, x.n, b, KEYS ? a.q.stride : (size_t)a.heads * a.dvw, j0, width, i0, last_query(a, i0, x.n));
    }
    const ct_matrix &to = KEYS ? a.dk : a.dv;
    float *d = to.p + x.first * to.stride + x.kv * width;
    t.each(i0, x.n, j0, width, [&](uint32_t i, uint32_t c, float v) { d[i * to.stride + c] += v; });
}

/* train_NAME_MODE */
#define PRODUCT(name, mode, call)                                                                                               \
    extern "C" __global__ void __launch_bounds__(CT_THREADS) train_##name##_##mode(const __grid_constant__ ct_attend a) { call; }
#define PRODUCTS(mode)                                                                                                          \
    PRODUCT(scores, mode, scores<mode>(a))                                                                                      \
    PRODUCT(attend_out, mode, attend_out<mode>(a))                                                                              \
    PRODUCT(dscores, mode, dscores<mode>(a))                                                                                    \
    PRODUCT(dq, mode, queries_back<mode>(a))                                                                                    \
    PRODUCT(dk, mode, (keys_back<true, mode>(a)))                                                                               \
    PRODUCT(dv, mode, (keys_back<false, mode>(a)))
PRODUCTS(0)
PRODUCTS(1)
PRODUCTS(2)

/* Gradient of the sinks: sink_parts of all rows. A block per head of the launch. */
extern "C" __global__ void __launch_bounds__(CT_THREADS) train_sinks(const __grid_constant__ ct_attend a)
{
    __shared__ float scratch[8];
    float sum = 0;
    for (uint32_t s = 0; s < a.sequences; s++) {
        attend_item x(a, s * a.heads_n + blockIdx.x);
        for (uint32_t i = threadIdx.x; i < x.n; i += blockDim.x)
            sum += a.sink_parts[((size_t)s * a.heads_n + blockIdx.x) * a.longest + i];
    }
    sum = train_block_sum(sum, scratch);
    if (!threadIdx.x) a.out[a.heads_from + blockIdx.x] -= sum;
}
