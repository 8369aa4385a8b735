/* k_train_small.cu: training kernels of everything but products, attention and the delta rule: embedding, norms, rotary embedding,
 * elementwise operations, convolution, rows, sums over rows, loss, AdamW.
 * SPDX-License-Identifier: MIT */
#include "k_train.cuh"

/* --- embedding: a block per token --- */

extern "C" __global__ void train_embed(const __grid_constant__ ct_embed a)
{
    uint32_t t = blockIdx.x;
    const float *x = a.table + (size_t)a.ids[t] * a.width;
    const float *p = a.positions ? a.positions + (size_t)a.position[t] * a.width : nullptr;
    for (uint32_t c = threadIdx.x; c < a.width; c += blockDim.x)
        a.out[(size_t)t * a.width + c] = a.scale * x[c] + (p ? p[c] : 0);
}

/* The block of the first token with an index adds the rows of all tokens with it, in order. */
extern "C" __global__ void __launch_bounds__(CT_THREADS) train_embed_back(const __grid_constant__ ct_embed_back a)
{
    __shared__ float scratch[8];
    uint32_t t = blockIdx.x;
    int32_t id = a.index[t];
    float earlier = 0;
    for (uint32_t i = threadIdx.x; i < t; i += blockDim.x) earlier = a.index[i] == id ? 1 : earlier;
    if (train_block_max(earlier, scratch) > 0) return;
    for (uint32_t c = threadIdx.x; c < a.width; c += blockDim.x) {
        float sum = 0;
        for (uint32_t i = t; i < a.rows; i++)
            if (a.index[i] == id) sum += a.dout[(size_t)i * a.width + c];
        a.gradient[(size_t)id * a.width + c] += a.scale * sum;
    }
}

/* --- norm: a block per row and group --- */

__device__ float norm_weight(const ct_norm &a, uint32_t c) { return a.weight ? a.weight[c] + a.plus : 1.0f; }

__device__ void norm_stats(const ct_norm &a, const float *x, float *scratch, float *mean, float *inverse)
{
    float sum = 0, squares = 0;
    for (uint32_t c = threadIdx.x; c < a.group && a.layer; c += blockDim.x) sum += x[c];
    *mean = a.layer ? train_block_sum(sum, scratch) / a.group : 0;
    for (uint32_t c = threadIdx.x; c < a.group; c += blockDim.x) squares = fmaf(x[c] - *mean, x[c] - *mean, squares);
    *inverse = 1.0f / sqrtf(train_block_sum(squares, scratch) / a.group + a.eps);
}

extern "C" __global__ void __launch_bounds__(CT_THREADS) train_norm(const __grid_constant__ ct_norm a)
{
    __shared__ float scratch[8];
    uint32_t t = blockIdx.x / a.groups, at = blockIdx.x % a.groups * a.group;
    const float *x = a.x.p + t * a.x.stride + at, *gate = a.gate.p ? a.gate.p + t * a.gate.stride + at : nullptr;
    float mean, inverse, *y = a.out + (size_t)t * a.x.width + at;
    norm_stats(a, x, scratch, &mean, &inverse);
    for (uint32_t c = threadIdx.x; c < a.group; c += blockDim.x) {
        float v = (x[c] - mean) * inverse * norm_weight(a, c) + (a.bias ? a.bias[c] : 0);
        y[c] = gate ? v * train_act(TRAIN_SILU, gate[c]) : v;
    }
}

extern "C" __global__ void __launch_bounds__(CT_THREADS) train_norm_back(const __grid_constant__ ct_norm a)
{
    __shared__ float scratch[8];
    uint32_t t = blockIdx.x / a.groups, at = blockIdx.x % a.groups * a.group;
    const float *x = a.x.p + t * a.x.stride + at, *dy = a.dout + (size_t)t * a.x.width + at;
    const float *gate = a.gate.p ? a.gate.p + t * a.gate.stride + at : nullptr;
    float mean, inverse, sum = 0, along = 0;
    norm_stats(a, x, scratch, &mean, &inverse);
    if (!threadIdx.x) a.stats[2 * (size_t)blockIdx.x] = mean, a.stats[2 * (size_t)blockIdx.x + 1] = inverse;
    for (uint32_t c = threadIdx.x; c < a.group; c += blockDim.x) {
        float n = (x[c] - mean) * inverse, e = dy[c] * (gate ? train_act(TRAIN_SILU, gate[c]) : 1.0f) * norm_weight(a, c);
        sum += e;
        along = fmaf(e, n, along);
        if (gate && a.dgate.p)
            a.dgate.p[t * a.dgate.stride + at + c] += dy[c] * (n * norm_weight(a, c) + (a.bias ? a.bias[c] : 0)) *
                                                      train_slope(TRAIN_SILU, gate[c]);
    }
    float m = a.layer ? train_block_sum(sum, scratch) / a.group : 0, p = train_block_sum(along, scratch) / a.group;
    if (!a.dx.p) return;
    for (uint32_t c = threadIdx.x; c < a.group; c += blockDim.x) {
        float n = (x[c] - mean) * inverse, e = dy[c] * (gate ? train_act(TRAIN_SILU, gate[c]) : 1.0f) * norm_weight(a, c);
        a.dx.p[t * a.dx.stride + at + c] += (e - m - n * p) * inverse;
    }
}

/* --- rotary embedding: a block per token --- */

extern "C" __global__ void train_rope(const __grid_constant__ ct_rope a)
{
    uint32_t t = blockIdx.x;
    const float *x = a.x.p + t * a.x.stride, *cosine = a.cosine + (size_t)a.position[t] * a.pairs;
    const float *sine = a.sine + (size_t)a.position[t] * a.pairs;
    float *y = a.out + (size_t)t * a.width;
    for (uint32_t i = threadIdx.x; i < a.heads * a.head_width; i += blockDim.x) {
        uint32_t c = i % a.head_width, j = c < a.pairs ? c : c - a.pairs;
        float v = x[i];
        if (c < 2 * a.pairs) {
            float s = a.sign * sine[j];
            v = c < a.pairs ? x[i] * cosine[j] - x[i + a.pairs] * s : x[i] * cosine[j] + x[i - a.pairs] * s;
        }
        y[i] = v;
    }
}

/* x, the gradient of the operand, += the inverse rotation of out, the gradient of the result. */
extern "C" __global__ void train_rope_back(const __grid_constant__ ct_rope a)
{
    uint32_t t = blockIdx.x;
    const float *cosine = a.cosine + (size_t)a.position[t] * a.pairs, *sine = a.sine + (size_t)a.position[t] * a.pairs;
    const float *d = a.out + (size_t)t * a.width;
    float *y = a.x.p + t * a.x.stride;
    for (uint32_t i = threadIdx.x; i < a.heads * a.head_width; i += blockDim.x) {
        uint32_t c = i % a.head_width, j = c < a.pairs ? c : c - a.pairs;
        float v = d[i];
        if (c < 2 * a.pairs) {
            float s = -a.sign * sine[j];
            v = c < a.pairs ? d[i] * cosine[j] - d[i + a.pairs] * s : d[i] * cosine[j] + d[i - a.pairs] * s;
        }
        y[i] += v;
    }
}

/* --- elementwise: a thread per number --- */

extern "C" __global__ void train_small(const __grid_constant__ ct_small a)
{
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x, t = i / a.width;
    uint32_t c = (uint32_t)(i % a.width);
    if (t >= a.rows) return;
    float x = a.x.p ? a.x.p[t * a.x.stride + c] : 0, y = a.y.p ? a.y.p[t * a.y.stride + c] : 0, d = a.dout ? a.dout[i] : 0;
    float w = a.weight ? a.weight[a.one ? 0 : c] : a.value;
    switch (a.kind) {
    case CT_GLU: a.out[i] = train_act(a.act, x) * y; break;
    case CT_ACT: a.out[i] = train_act(a.act, x); break;
    case CT_ADD: a.out[i] = x + y; break;
    case CT_SCALE: a.out[i] = x * w; break;
    case CT_GLU_BACK:
        if (a.dx.p) a.dx.p[t * a.dx.stride + c] += d * y * train_slope(a.act, x);
        if (a.dy.p) a.dy.p[t * a.dy.stride + c] += d * train_act(a.act, x);
        break;
    case CT_ACT_BACK: a.dx.p[t * a.dx.stride + c] += d * train_slope(a.act, x); break;
    case CT_ADD_TO: a.out[t * a.out_stride + c] += d; break;
    case CT_SCALE_BACK: a.dx.p[t * a.dx.stride + c] += d * w; break;
    default: a.out[i] += (a.weight ? a.weight[c] : 0) + y; /* CT_BIAS */
    }
}

/* --- rows: a block per row --- */

extern "C" __global__ void train_select(const __grid_constant__ ct_rows a)
{
    const float *x = a.x.p + a.list[blockIdx.x] * a.x.stride;
    for (uint32_t c = threadIdx.x; c < a.x.width; c += blockDim.x) a.out[(size_t)blockIdx.x * a.x.width + c] = x[c];
}

extern "C" __global__ void train_select_back(const __grid_constant__ ct_rows a)
{
    float *x = a.x.p + a.list[blockIdx.x] * a.x.stride;
    for (uint32_t c = threadIdx.x; c < a.x.width; c += blockDim.x) x[c] += a.dout[(size_t)blockIdx.x * a.x.width + c];
}

/* --- sums over rows --- */

/* The term of one row (of one group, for norms) and one column of the result. */
__device__ float column_term(const ct_columns &a, uint32_t r, uint32_t column)
{
    uint32_t group = a.width / a.groups, t = r / a.groups, c = r % a.groups * group + column;
    if (a.kind == CT_OF_CONV) {
        uint32_t j = a.taps - 1 - column % a.taps;
        c = column / a.taps;
        return a.position[r] < j ? 0 : a.dout[(size_t)r * a.width + c] * a.x.p[(r - j) * a.x.stride + c];
    }
    float d = a.dout[(size_t)t * a.width + c];
    if (a.kind == CT_OF_PRODUCT) return d * a.x.p[t * a.x.stride + c];
    if (a.kind == CT_OF_DOUT) return d;
    if (a.gate.p) d *= train_act(TRAIN_SILU, a.gate.p[t * a.gate.stride + c]);
    return a.kind == CT_OF_NORM_BIAS ? d : d * ((a.x.p[t * a.x.stride + c] - a.stats[2 * (size_t)r]) * a.stats[2 * (size_t)r + 1]);
}

/* Block (x, y): chunk x of rows, 32 columns. Eight rows at a time, added in their order. */
extern "C" __global__ void __launch_bounds__(CT_THREADS) train_columns(const __grid_constant__ ct_columns a)
{
    __shared__ float sums[CT_THREADS / 32][33];
    uint32_t column = blockIdx.y * CT_PART_COLUMNS + threadIdx.x % 32, lane = threadIdx.x / 32;
    uint32_t from = blockIdx.x * a.chunk, to = from + a.chunk < a.rows ? from + a.chunk : a.rows;
    float sum = 0;
    for (uint32_t r = from + lane; r < to && column < a.columns; r += CT_THREADS / 32) sum += column_term(a, r, column);
    sums[lane][threadIdx.x % 32] = sum;
    __syncthreads();
    if (lane || column >= a.columns) return;
    for (int i = 1; i < CT_THREADS / 32; i++) sum += sums[i][threadIdx.x];
    a.parts[(size_t)blockIdx.x * a.columns + column] = sum;
}

/* --- convolution: a thread per number --- */

__device__ float conv_sum(const ct_conv &a, uint32_t t, uint32_t c)
{
    uint32_t past = a.position[t] < a.taps - 1 ? a.position[t] : a.taps - 1;
    const float *w = a.weight + (size_t)c * a.taps;
    float sum = a.bias ? a.bias[c] : 0;
    for (uint32_t j = 0; j <= past; j++) sum = fmaf(w[a.taps - 1 - j], a.x.p[(t - j) * a.x.stride + c], sum);
    return sum;
}

/* out, or with dout the gradient before the activation. */
extern "C" __global__ void train_conv(const __grid_constant__ ct_conv a)
{
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    uint32_t t = (uint32_t)(i / a.width), c = (uint32_t)(i % a.width);
    if (t >= a.rows) return;
    float u = conv_sum(a, t, c);
    if (a.dout) a.du[i] = a.dout[i] * train_slope(a.act, u);
    else a.out[i] = train_act(a.act, u);
}

/* dx_t: from the tokens t + j of the same sequence. */
extern "C" __global__ void train_conv_back(const __grid_constant__ ct_conv a)
{
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    uint32_t t = (uint32_t)(i / a.width), c = (uint32_t)(i % a.width);
    if (t >= a.rows) return;
    const float *w = a.weight + (size_t)c * a.taps;
    float sum = 0;
    for (uint32_t j = 0; j < a.taps && t + j < a.rows && a.position[t + j] >= j; j++)
        sum = fmaf(a.du[(size_t)(t + j) * a.width + c], w[a.taps - 1 - j], sum);
    a.dx.p[t * a.dx.stride + c] += sum;
}

/* --- loss: a block per row of logits --- */

extern "C" __global__ void __launch_bounds__(CT_THREADS) train_loss(const __grid_constant__ ct_loss a)
{
    __shared__ float scratch[8];
    __shared__ double sums[8];
    const float *x = a.logits + (size_t)blockIdx.x * a.vocab;
    float *d = a.dlogits ? a.dlogits + (size_t)blockIdx.x * a.vocab : nullptr;
    uint32_t label = (uint32_t)a.labels[a.rows[blockIdx.x]];
    float max = -INFINITY;
    double part = 0;
    for (uint32_t c = threadIdx.x; c < a.vocab; c += blockDim.x) max = fmaxf(max, x[c]);
    max = train_block_max(max, scratch);
    for (uint32_t c = threadIdx.x; c < a.vocab; c += blockDim.x) part += expf(x[c] - max);
    double sum = train_block_sum(part, sums);
    if (!threadIdx.x) a.loss[blockIdx.x] = log(sum) + max - x[label];
    if (!d) return;
    float slope = train_policy_slope(a.policy, blockIdx.x, x[label] - max - log(sum)), inverse = (float)(slope / sum);
    for (uint32_t c = threadIdx.x; c < a.vocab; c += blockDim.x) d[c] = expf(x[c] - max) * inverse - (c == label ? slope : 0.0f);
}

/* --- update --- */

extern "C" __global__ void train_adamw(const __grid_constant__ ct_adamw a)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < a.n; i += (size_t)gridDim.x * blockDim.x) {
        float g = a.gradient[i] * a.scale, m = a.beta1 * a.moment1[i] + (1 - a.beta1) * g;
        float v = a.beta2 * a.moment2[i] + (1 - a.beta2) * g * g;
        a.moment1[i] = m;
        a.moment2[i] = v;
        a.value[i] = a.value[i] * a.keep - a.step * m / (sqrtf(v) * a.root + a.eps);
        a.gradient[i] = 0;
    }
}

extern "C" __global__ void __launch_bounds__(CT_THREADS) train_squares(const __grid_constant__ ct_squares a)
{
    __shared__ double scratch[8];
    double sum = 0;
    size_t from = blockIdx.x * (size_t)CT_SQUARES;
    for (size_t i = from + threadIdx.x; i < from + CT_SQUARES && i < a.n; i += blockDim.x) sum += (double)a.x[i] * a.x[i];
    sum = train_block_sum(sum, scratch);
    if (!threadIdx.x) a.sums[blockIdx.x] = sum;
}
