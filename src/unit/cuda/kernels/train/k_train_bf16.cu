/* k_train_bf16.cu: training with bf16 values: conversions, embedding, norms, rotary embedding, elementwise operations,
 * rows, sums over rows, loss. A thread has eight neighbouring numbers.
 * SPDX-License-Identifier: MIT */
#include "k_train_bf16.cuh"

/* --- conversions: a thread per number --- */

extern "C" __global__ void train_bf16_widen(const __grid_constant__ ct_convert a)
{
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x, t = i / a.x.width;
    if (t < a.rows) a.wide[i] = half_of(a.x.p[t * a.x.stride + i % a.x.width]);
}

extern "C" __global__ void train_bf16_narrow(const __grid_constant__ ct_convert a)
{
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x, t = i / a.padded;
    uint32_t c = (uint32_t)(i % a.padded);
    if (t >= a.rows) return;
    uint16_t *x = a.x.p + t * a.x.stride + c;
    float v = c < a.x.width ? a.wide[t * a.x.width + c] : 0;
    *x = half_to(a.x.fresh || c >= a.x.width ? v : half_of(*x) + v);
}

extern "C" __global__ void train_bf16_cast(const __grid_constant__ ct_cast a)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < a.n; i += (size_t)gridDim.x * blockDim.x)
        a.to[i] = half_to(a.from[i]);
}

/* --- embedding: a block per token --- */

extern "C" __global__ void train_bf16_embed(const __grid_constant__ ct_half_embed a)
{
    uint32_t t = blockIdx.x;
    const float *x = a.table + (size_t)a.ids[t] * a.width;
    const float *p = a.positions ? a.positions + (size_t)a.position[t] * a.width : nullptr;
    for (uint32_t c = threadIdx.x; c < a.width; c += blockDim.x)
        a.out[t * a.stride + c] = half_to(a.scale * x[c] + (p ? p[c] : 0));
}

/* The block of the first token with an index adds the rows of all tokens with it, in order. A bit of `found` is a token. */
enum { FOUND = 1024, COLUMNS = 4 };
extern "C" __global__ void __launch_bounds__(CT_THREADS) train_bf16_embed_back(const __grid_constant__ ct_half_embed_back a)
{
    __shared__ float scratch[8];
    __shared__ uint32_t found[FOUND];
    uint32_t t = blockIdx.x, lane = threadIdx.x % 32;
    int32_t id = a.index[t];
    for (uint32_t base = 0; base < a.rows; base += 32 * FOUND) {
        uint32_t words = (a.rows - base + 31) / 32 < FOUND ? (a.rows - base + 31) / 32 : FOUND;
        __syncthreads();
        for (uint32_t w = threadIdx.x / 32; w < words; w += CT_THREADS / 32) {
            uint32_t i = base + 32 * w + lane, bits = __ballot_sync(0xffffffffu, i < a.rows && a.index[i] == id);
            if (!lane) found[w] = bits;
        }
        __syncthreads();
        float earlier = 0;
        for (uint32_t w = threadIdx.x; w < words && base + 32 * w < t; w += CT_THREADS) {
            uint32_t left = t - base - 32 * w, bits = left < 32 ? found[w] & ((1u << left) - 1) : found[w];
            earlier = bits ? 1 : earlier;
        }
        if (train_block_max(earlier, scratch) > 0) return;
        for (uint32_t c = threadIdx.x; c < a.width; c += COLUMNS * CT_THREADS) {
            float sum[COLUMNS] = {0};
            for (uint32_t w = t > base ? (t - base) / 32 : 0; w < words; w++)
                for (uint32_t bits = found[w]; bits; bits &= bits - 1) {
                    const uint16_t *row = a.dout + (base + 32 * w + __ffs((int)bits) - 1) * a.stride;
                    for (int k = 0; k < COLUMNS; k++)
                        if (c + k * CT_THREADS < a.width) sum[k] += half_of(row[c + k * CT_THREADS]);
                }
            for (int k = 0; k < COLUMNS; k++)
                if (c + k * CT_THREADS < a.width) a.gradient[(size_t)id * a.width + c + k * CT_THREADS] += a.scale * sum[k];
        }
    }
}

/* Positions: block p adds the rows at place p of all sequences. */
extern "C" __global__ void train_bf16_places_back(const __grid_constant__ ct_half_embed_back a)
{
    uint32_t place = blockIdx.x;
    for (uint32_t c = threadIdx.x; c < a.width; c += blockDim.x) {
        float sum = 0;
        for (uint32_t s = 0; s < a.sequences; s++)
            if (a.from[s] + place < a.from[s + 1]) sum += half_of(a.dout[(a.from[s] + place) * a.stride + c]);
        a.gradient[(size_t)place * a.width + c] += a.scale * sum;
    }
}

/* --- norm: a warp per row, or per group of one --- */

enum { NORM_WARPS = CT_THREADS / 32 };

/* Mean and 1 / std. The sum of squares is that of the differences, as in fp32. */
__device__ void half_norm_stats(const ct_half_norm &a, const uint16_t *x, float *mean, float *inverse)
{
    float sum = 0, squares = 0, v[8];
    for (uint32_t c = threadIdx.x % 32 * 8; c < a.width && a.layer; c += 256) {
        half_load(v, x + c);
        for (int i = 0; i < 8; i++) sum += v[i];
    }
    *mean = a.layer ? train_lanes_sum(sum, 32) / a.width : 0;
    for (uint32_t c = threadIdx.x % 32 * 8; c < a.width; c += 256) {
        half_load(v, x + c);
        for (int i = 0; i < 8; i++) squares = fmaf(v[i] - *mean, v[i] - *mean, squares);
    }
    *inverse = 1.0f / sqrtf(train_lanes_sum(squares, 32) / a.width + a.eps);
}

/* Row r of an operand; NULL: absent. */
__device__ __forceinline__ uint16_t *half_norm_row(const ct_half_norm &a, const ct_half &x, uint32_t r)
{
    return x.p ? x.p + r / a.groups * x.stride + r % a.groups * a.width : nullptr;
}

/* d times silu(gate) of columns c to c + 7, where there is a gate. */
__device__ __forceinline__ void half_gated(float (&d)[8], const uint16_t *gate, uint32_t c)
{
    float g[8];
    if (!gate) return;
    half_load(g, gate + c);
    for (int i = 0; i < 8; i++) d[i] *= train_act(TRAIN_SILU, g[i]);
}

/* The weights of columns c to c + 7. */
__device__ __forceinline__ void half_norm_weights(const ct_half_norm &a, uint32_t c, float (&w)[8])
{
    if (a.weight) half_wide(w, a.weight + c);
    for (int i = 0; i < 8; i++) w[i] = a.weight ? w[i] + a.plus : 1.0f;
}

extern "C" __global__ void __launch_bounds__(CT_THREADS) train_bf16_norm(const __grid_constant__ ct_half_norm a)
{
    uint32_t t = blockIdx.x * NORM_WARPS + threadIdx.x / 32;
    if (t >= a.rows) return;
    const uint16_t *x = half_norm_row(a, a.x, t), *gate = half_norm_row(a, a.gate, t);
    float mean, inverse, v[8], w[8], b[8] = {0};
    half_norm_stats(a, x, &mean, &inverse);
    for (uint32_t c = threadIdx.x % 32 * 8; c < a.width; c += 256) {
        half_load(v, x + c);
        half_norm_weights(a, c, w);
        if (a.bias) half_wide(b, a.bias + c);
        for (int i = 0; i < 8; i++) v[i] = (v[i] - mean) * inverse * w[i] + b[i];
        half_gated(v, gate, c);
        half_store(a.out + (size_t)t * a.width + c, v);
    }
}

/* dgate (+)= dy times the norm times the slope of silu. */
__device__ void half_norm_gate_back(const ct_half_norm &a, const uint16_t *x, const uint16_t *gate, const uint16_t *dy,
                                    uint16_t *dgate, float mean, float inverse)
{
    float v[8], d[8], g[8], w[8], b[8] = {0};
    for (uint32_t c = threadIdx.x % 32 * 8; c < a.width; c += 256) {
        half_load(v, x + c);
        half_load(d, dy + c);
        half_load(g, gate + c);
        half_norm_weights(a, c, w);
        if (a.bias) half_wide(b, a.bias + c);
        for (int i = 0; i < 8; i++) d[i] *= ((v[i] - mean) * inverse * w[i] + b[i]) * train_slope(TRAIN_SILU, g[i]);
        half_add(dgate + c, d, a.dgate.fresh);
    }
}

extern "C" __global__ void __launch_bounds__(CT_THREADS) train_bf16_norm_back(const __grid_constant__ ct_half_norm a)
{
    uint32_t t = blockIdx.x * NORM_WARPS + threadIdx.x / 32;
    if (t >= a.rows) return;
    const uint16_t *x = half_norm_row(a, a.x, t), *gate = half_norm_row(a, a.gate, t), *dy = a.dout + (size_t)t * a.width;
    uint16_t *dx = half_norm_row(a, a.dx, t), *dgate = half_norm_row(a, a.dgate, t);
    float mean, inverse, sum = 0, along = 0, v[8], d[8], w[8];
    half_norm_stats(a, x, &mean, &inverse);
    if (threadIdx.x % 32 == 0) a.stats[2 * (size_t)t] = mean, a.stats[2 * (size_t)t + 1] = inverse;
    if (dgate) half_norm_gate_back(a, x, gate, dy, dgate, mean, inverse);
    if (!dx) return;
    for (uint32_t c = threadIdx.x % 32 * 8; c < a.width; c += 256) {
        half_load(v, x + c);
        half_load(d, dy + c);
        half_gated(d, gate, c);
        half_norm_weights(a, c, w);
        for (int i = 0; i < 8; i++) {
            float e = d[i] * w[i];
            sum += e;
            along = fmaf(e, (v[i] - mean) * inverse, along);
        }
    }
    float m = a.layer ? train_lanes_sum(sum, 32) / a.width : 0, p = train_lanes_sum(along, 32) / a.width;
    for (uint32_t c = threadIdx.x % 32 * 8; c < a.width; c += 256) {
        half_load(v, x + c);
        half_load(d, dy + c);
        half_gated(d, gate, c);
        half_norm_weights(a, c, w);
        for (int i = 0; i < 8; i++) v[i] = (d[i] * w[i] - m - (v[i] - mean) * inverse * p) * inverse;
        half_add(dx + c, v, a.dx.fresh);
    }
}

/* --- sums over rows. Block (x, y): chunk x of rows (a grid has few blocks in y), 256 columns; a thread has eight columns, every
 * eighth row --- */

/* s: the sums of the block's threads. parts[column] = those of all warps, in their order. */
__device__ __forceinline__ void half_sums_store(float *parts, const float (&s)[8], uint32_t columns)
{
    __shared__ float sums[CT_THREADS / 32][32][8];
    uint32_t column = blockIdx.y * CT_THREADS + threadIdx.x;
    __syncthreads();
    for (int i = 0; i < 8; i++) sums[threadIdx.x / 32][threadIdx.x % 32][i] = s[i];
    __syncthreads();
    if (column >= columns) return;
    float sum = 0;
    for (int w = 0; w < CT_THREADS / 32; w++) sum += sums[w][threadIdx.x / 8][threadIdx.x % 8];
    parts[column] = sum;
}

/* For the gradients of a norm's weight and bias. */
extern "C" __global__ void __launch_bounds__(CT_THREADS) train_bf16_norm_columns(const __grid_constant__ ct_half_norm a)
{
    uint32_t c = blockIdx.y * 256 + threadIdx.x % 32 * 8, to = (blockIdx.x + 1) * CT_CHUNK;
    float weight[8] = {0}, bias[8] = {0}, d[8], x[8];
    if (to > a.rows) to = a.rows;
#pragma unroll 2
    for (uint32_t t = blockIdx.x * CT_CHUNK + threadIdx.x / 32; t < to; t += CT_THREADS / 32) {
        if (c >= a.width) break;
        float mean = a.stats[2 * (size_t)t], inverse = a.stats[2 * (size_t)t + 1];
        half_load(d, a.dout + (size_t)t * a.width + c);
        half_load(x, half_norm_row(a, a.x, t) + c);
        half_gated(d, half_norm_row(a, a.gate, t), c);
        for (int i = 0; i < 8; i++) {
            weight[i] = fmaf(d[i], (x[i] - mean) * inverse, weight[i]);
            bias[i] += d[i];
        }
    }
    half_sums_store(a.parts + (size_t)blockIdx.x * a.width, weight, a.width);
    half_sums_store(a.parts + ((size_t)gridDim.x + blockIdx.x) * a.width, bias, a.width);
}

/* Of dout. */
extern "C" __global__ void __launch_bounds__(CT_THREADS) train_bf16_columns(const __grid_constant__ ct_half_columns a)
{
    uint32_t c = blockIdx.y * 256 + threadIdx.x % 32 * 8, to = (blockIdx.x + 1) * CT_CHUNK;
    float s[8] = {0}, d[8];
    if (to > a.rows) to = a.rows;
#pragma unroll 4
    for (uint32_t t = blockIdx.x * CT_CHUNK + threadIdx.x / 32; t < to; t += CT_THREADS / 32) {
        if (c >= a.columns) break;
        half_load(d, a.dout + t * a.stride + c);
        for (int i = 0; i < 8; i++) s[i] += d[i];
    }
    half_sums_store(a.parts + (size_t)blockIdx.x * a.columns, s, a.columns);
}

/* gradient[column] += the sum of the chunks' parts. A block has 32 columns, a warp every eighth chunk. */
extern "C" __global__ void __launch_bounds__(CT_THREADS) train_bf16_parts(const __grid_constant__ ct_half_parts a)
{
    __shared__ float sums[CT_THREADS / 32][32];
    uint32_t c = blockIdx.x * 32 + threadIdx.x % 32, warp = threadIdx.x / 32;
    float sum = 0;
#pragma unroll 8
    for (uint32_t n = warp; n < a.chunks; n += CT_THREADS / 32) sum += c < a.columns ? a.parts[(size_t)n * a.apart + c] : 0;
    sums[warp][threadIdx.x % 32] = sum;
    __syncthreads();
    if (warp || c >= a.columns) return;
    for (int w = 1; w < CT_THREADS / 32; w++) sum += sums[w][threadIdx.x];
    a.gradient[c] += sum;
}

/* --- rotary embedding: a block per token, a thread per number --- */

__device__ float half_rotated(const ct_half_rope &a, const uint16_t *x, uint32_t i, uint32_t t, float sign)
{
    const float *cosine = a.cosine + (size_t)a.position[t] * a.pairs, *sine = a.sine + (size_t)a.position[t] * a.pairs;
    uint32_t c = i % a.head_width, j = c < a.pairs ? c : c - a.pairs;
    if (c >= 2 * a.pairs) return half_of(x[i]);
    float other = half_of(c < a.pairs ? x[i + a.pairs] : x[i - a.pairs]) * sign * sine[j];
    return half_of(x[i]) * cosine[j] + (c < a.pairs ? -other : other);
}

extern "C" __global__ void train_bf16_rope(const __grid_constant__ ct_half_rope a)
{
    uint32_t t = blockIdx.x;
    for (uint32_t i = threadIdx.x; i < a.width; i += blockDim.x)
        a.out[(size_t)t * a.width + i] = half_to(half_rotated(a, a.x.p + t * a.x.stride, i, t, a.sign));
}

/* x, the gradient of the operand, (+)= the inverse rotation of out, the gradient of the result. */
extern "C" __global__ void train_bf16_rope_back(const __grid_constant__ ct_half_rope a)
{
    uint32_t t = blockIdx.x;
    uint16_t *y = a.x.p + t * a.x.stride;
    for (uint32_t i = threadIdx.x; i < a.width; i += blockDim.x) {
        float v = half_rotated(a, a.out + (size_t)t * a.width, i, t, -a.sign);
        y[i] = half_to(a.x.fresh ? v : half_of(y[i]) + v);
    }
}

/* --- elementwise --- */

template <uint32_t ACT> struct half_act { enum { act = ACT }; };

/* f(half_act<act>()): one branch for eight numbers. */
template <class F> __device__ __forceinline__ void half_with(uint32_t act, F f)
{
    switch (act) {
    case TRAIN_SILU: f(half_act<TRAIN_SILU>()); break;
    case TRAIN_GELU: f(half_act<TRAIN_GELU>()); break;
    case TRAIN_GELU_TANH: f(half_act<TRAIN_GELU_TANH>()); break;
    case TRAIN_GELU_QUICK: f(half_act<TRAIN_GELU_QUICK>()); break;
    case TRAIN_RELU: f(half_act<TRAIN_RELU>()); break;
    case TRAIN_RELU2: f(half_act<TRAIN_RELU2>()); break;
    case TRAIN_SIGMOID: f(half_act<TRAIN_SIGMOID>()); break;
    case TRAIN_TANH: f(half_act<TRAIN_TANH>()); break;
    default: f(half_act<TRAIN_NONE>());
    }
}

extern "C" __global__ void __launch_bounds__(CT_THREADS) train_bf16_small(const __grid_constant__ ct_half_small a)
{
    uint32_t item = blockIdx.x * CT_THREADS + threadIdx.x, t = item / (a.width / 8), c = (item - t * (a.width / 8)) * 8;
    size_t i = (size_t)item * 8;
    if (t >= a.rows) return;
    float x[8], y[8], d[8], w[8];
    if (a.x.p) half_load(x, a.x.p + t * a.x.stride + c);
    if (a.y.p) half_load(y, a.y.p + t * a.y.stride + c);
    if (a.dout) half_load(d, a.dout + i);
    for (int k = 0; k < 8; k++) w[k] = a.weight ? a.weight[a.one ? 0 : c + k] : a.value;
    switch (a.kind) {
    case CT_GLU:
        half_with(a.act, [&](auto f) {
            for (int k = 0; k < 8; k++) x[k] = train_act(f.act, x[k]) * y[k];
        });
        break;
    case CT_ACT:
        half_with(a.act, [&](auto f) {
            for (int k = 0; k < 8; k++) x[k] = train_act(f.act, x[k]);
        });
        break;
    case CT_ADD:
        for (int k = 0; k < 8; k++) x[k] += y[k];
        break;
    case CT_SCALE:
        for (int k = 0; k < 8; k++) x[k] *= w[k];
        break;
    case CT_GLU_BACK:
        half_with(a.act, [&](auto f) {
            for (int k = 0; k < 8; k++) w[k] = d[k] * train_act(f.act, x[k]), x[k] = d[k] * y[k] * train_slope(f.act, x[k]);
        });
        if (a.dy.p) half_add(a.dy.p + t * a.dy.stride + c, w, a.dy.fresh);
        break;
    case CT_ACT_BACK:
        half_with(a.act, [&](auto f) {
            for (int k = 0; k < 8; k++) x[k] = d[k] * train_slope(f.act, x[k]);
        });
        break;
    case CT_SCALE_BACK:
        for (int k = 0; k < 8; k++) x[k] = d[k] * w[k];
        break;
    default: /* CT_ADD_TO */
        for (int k = 0; k < 8; k++) x[k] = d[k];
    }
    if (a.out) half_store(a.out + i, x);
    else if (a.dx.p) half_add(a.dx.p + t * a.dx.stride + c, x, a.dx.fresh);
}

/* --- rows: a block per row --- */

extern "C" __global__ void train_bf16_select(const __grid_constant__ ct_half_rows a)
{
    const uint16_t *x = a.x.p + a.list[blockIdx.x] * a.x.stride;
    for (uint32_t c = threadIdx.x; c < a.stride; c += blockDim.x) a.out[blockIdx.x * a.stride + c] = c < a.x.width ? x[c] : 0;
}

extern "C" __global__ void train_bf16_select_back(const __grid_constant__ ct_half_rows a)
{
    uint16_t *x = a.x.p + a.list[blockIdx.x] * a.x.stride;
    for (uint32_t c = threadIdx.x; c < a.x.width; c += blockDim.x)
        x[c] = half_to(half_of(x[c]) + half_of(a.out[blockIdx.x * a.stride + c]));
}

/* --- loss: a block per row of logits. One pass for the maximum and the sum, one for the gradient --- */

extern "C" __global__ void __launch_bounds__(CT_THREADS) train_bf16_loss(const __grid_constant__ ct_half_loss a)
{
    __shared__ float scratch[8];
    const uint16_t *x = a.logits + blockIdx.x * a.stride;
    uint32_t label = (uint32_t)a.labels[a.rows[blockIdx.x]];
    float max = -INFINITY, sum = 0, v[8];
    for (uint32_t c = threadIdx.x * 8; c < a.vocab; c += CT_THREADS * 8) {
        float m = max;
        half_load(v, x + c);
        for (uint32_t k = 0; k < 8; k++) {
            if (c + k >= a.vocab) v[k] = -INFINITY;
            m = fmaxf(m, v[k]);
        }
        sum *= TRAIN_EXP(max - m);
        for (int k = 0; k < 8; k++) sum += TRAIN_EXP(v[k] - m);
        max = m;
    }
    float all = train_block_max(max, scratch);
    sum = train_block_sum(max > -INFINITY ? sum * TRAIN_EXP(max - all) : 0.0f, scratch);
    if (!threadIdx.x) a.loss[blockIdx.x] = log((double)sum) + all - half_of(x[label]);
    if (!a.dlogits) return;
    float slope = train_policy_slope(a.policy, blockIdx.x, half_of(x[label]) - all - log((double)sum)), inverse = slope / sum;
    for (uint32_t c = threadIdx.x * 8; c < a.stride; c += CT_THREADS * 8) {
        half_load(v, x + c);
        for (uint32_t k = 0; k < 8; k++)
            v[k] = c + k < a.vocab ? TRAIN_EXP(v[k] - all) * inverse - (c + k == label ? slope : 0.0f) : 0;
        half_store(a.dlogits + blockIdx.x * a.stride + c, v);
    }
}
