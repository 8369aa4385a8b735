/* k_rows.cu: small or rare operations, one simple kernel each: embed, norm, RoPE, GLU, activation,
 * add, scale, row gather, MoE routing and experts, LoRA, conversion of fixed-point sums, memory read
 * benchmark. All architectures. Fused variants elsewhere must compute the same values. Grids: (rows,
 * columns / threads) unless stated.
 * SPDX-License-Identifier: MIT */
#include "k_fixed_point_sum.cuh"
#include "packed/k_packed.cuh"

/* Token embedding, plus learned position embedding if present. */
extern "C" __global__ void embed(const __grid_constant__ ck_embed a)
{
    wait_for_inputs();
    /* not earlier: attention reads its position ahead of griddepcontrol.wait, and the choose_best
     * before this kernel advances it */
    launch_dependents();
    uint32_t t = blockIdx.x, c = blockIdx.y * blockDim.x + threadIdx.x;
    if (c >= a.y.width) return;
    int32_t token = a.pass.tokens[t];
    if (token < 0) token = 0;
    size_t row = (size_t)a.at + token;
    float v = (a.table.kind >= CK_PACKED ? packed_weight_at(a.table, row, c) : weight_at(a.table, row, c)) * a.scale;
    if (a.places.data) v += weight_at(a.places, (size_t)a.places_at + a.pass.place[t], c);
    a.y.p[(size_t)t * a.y.stride + c] = v;
}

/* Norm: grid (rows, groups). */
extern "C" __global__ void norm_rows(const __grid_constant__ ck_norm_args a)
{
    __shared__ float scratch[32];
    launch_dependents();
    wait_for_inputs();
    const ck_norm &n = a.norm;
    /* Width and first column of this block's group. */
    uint32_t group = a.x.width / n.groups, at = blockIdx.y * group, t = blockIdx.x;
    const float *x = a.x.p + (size_t)t * a.x.stride + at;
    float mean = 0, sum = 0, squares = 0;
    if (n.layer) {
        for (uint32_t e = threadIdx.x; e < group; e += blockDim.x) sum += x[e];
        mean = block_sum(sum, scratch) / group;
    }
    for (uint32_t e = threadIdx.x; e < group; e += blockDim.x) squares += (x[e] - mean) * (x[e] - mean);
    float inverse = rsqrtf(block_sum(squares, scratch) / group + n.eps);
    for (uint32_t e = threadIdx.x; e < group; e += blockDim.x) {
        float v = (x[e] - mean) * inverse;
        if (n.weight) v *= n.plus_one ? 1.0f + n.weight[e] : n.weight[e];
        if (n.bias) v += n.bias[e];
        if (n.gate.p) v *= activate(ACT_SILU, n.gate.p[(size_t)t * n.gate.stride + at + e]);
        a.y.p[(size_t)t * a.y.stride + at + e] = v;
    }
}

/* RoPE with the angle in fp64; each thread computes one column. */
extern "C" __global__ void rope(const __grid_constant__ ck_rope a)
{
    launch_dependents();
    wait_for_inputs();
    uint32_t t = blockIdx.x, c = blockIdx.y * blockDim.x + threadIdx.x;
    if (c >= a.x.width) return;
    /* j: column within the head; base: first column of the head. */
    uint32_t j = c % a.head_width, base = c - j;
    const float *x = a.x.p + (size_t)t * a.x.stride;
    float v = x[c];
    if (j < 2 * a.pairs) {
        uint32_t i = j < a.pairs ? j : j - a.pairs;
        double s, k;
        sincos((double)a.pass.place[t] * (double)a.inverse[i] * a.sign, &s, &k);
        float co = (float)(k * (double)a.mscale), si = (float)(s * (double)a.mscale);
        float x0 = x[base + i], x1 = x[base + i + a.pairs];
        v = j < a.pairs ? x0 * co - x1 * si : x1 * co + x0 * si;
    }
    a.y.p[(size_t)t * a.y.stride + c] = v;
}

/* Element-wise kernels. */
#define MAP(NAME, VALUE)                                                    \
    extern "C" __global__ void NAME(const __grid_constant__ ck_map a)       \
    {                                                                       \
        launch_dependents();                                                \
        wait_for_inputs();                                                  \
        uint32_t t = blockIdx.x, c = blockIdx.y * blockDim.x + threadIdx.x; \
        if (c >= a.y.width) return;                                         \
        float x = a.x.p[(size_t)t * a.x.stride + c];                        \
        a.y.p[(size_t)t * a.y.stride + c] = (VALUE);                        \
    }
MAP(glu, activate(a.act, x) * a.x2.p[(size_t)t * a.x2.stride + c])
MAP(act, activate(a.act, x))
MAP(add, x + a.x2.p[(size_t)t * a.x2.stride + c])
MAP(scale, x *(a.weight ? a.weight[a.one ? 0 : c] : a.value))

/* The option fault= of tests: the first number of y becomes one unit in the last place larger. */
extern "C" __global__ void one_ulp(const __grid_constant__ ck_map a)
{
    launch_dependents();
    wait_for_inputs();
    if (threadIdx.x == 0) a.y.p[0] = nextafterf(a.y.p[0], CUDART_INF_F);
}

/* Gathers the rows whose logits are wanted. */
extern "C" __global__ void rows(const __grid_constant__ ck_rows a)
{
    launch_dependents();
    wait_for_inputs();
    uint32_t t = blockIdx.x, c = blockIdx.y * blockDim.x + threadIdx.x;
    if (c < a.x.width) a.y.p[(size_t)t * a.y.stride + c] = a.x.p[(size_t)a.pass.wanted[t] * a.x.stride + c];
}

/* MoE router: a thread per row, since experts are few. Softmax or sigmoid scores, top k by score +
 * bias. */
extern "C" __global__ void route(const __grid_constant__ ck_route a)
{
    launch_dependents();
    wait_for_inputs();
    uint32_t t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t >= a.rows) return;
    const float *x = a.x.p + (size_t)t * a.x.stride;
    float *index = a.y.p + (size_t)t * a.y.stride, *weight = index + a.k, max_logit = -CUDART_INF_F, sum = 0;
    double all = 0;
    /* Softmax over all experts, in fp64 accumulation. */
    for (uint32_t e = 0; e < a.experts; e++) max_logit = x[e] > max_logit ? x[e] : max_logit;
    if (!a.sigmoid)
        for (uint32_t e = 0; e < a.experts; e++) all += expf(x[e] - max_logit);
    /* k selections by linear search: few experts. */
    for (uint32_t i = 0; i < a.k; i++) {
        uint32_t best = 0xffffffffu;
        float best_key = 0, best_score = 0;
        for (uint32_t e = 0; e < a.experts; e++) {
            int taken = 0;
            for (uint32_t q = 0; q < i; q++) taken |= index[q] == (float)e;
            if (taken) continue;
            float score = a.sigmoid ? sigmoid(x[e]) : (float)(expf(x[e] - max_logit) / all),
                  key = score + (a.bias ? a.bias[e] : 0);
            if (best == 0xffffffffu || key > best_key) {
                best = e;
                best_key = key;
                best_score = score;
            }
        }
        index[i] = (float)best;
        weight[i] = best_score;
        sum += best_score;
    }
    /* Weights renormalised over the selection if requested, then scaled. */
    for (uint32_t i = 0; i < a.k; i++) weight[i] = (a.renormalise ? weight[i] / sum : weight[i]) * a.scale;
}

/* Dot product of a weight row with x, by one warp. */
__device__ float row_dot(const ck_weight &w, size_t row, const float *x)
{
    float s = 0;
    for (uint32_t c = threadIdx.x & 31; c < w.cols; c += 32) s = fmaf(weight_at(w, row, c), x[c], s);
    return warp_sum(s);
}

/* hidden[t][i][f] = act(gate) * up: a warp per f, blockIdx.y = t * k + i. */
extern "C" __global__ void experts_in(const __grid_constant__ ck_experts a)
{
    launch_dependents();
    wait_for_inputs();
    uint32_t f = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5), t = blockIdx.y / a.k, i = blockIdx.y % a.k;
    if (f >= a.ff) return;
    /* Router output is float; guard against NaN. */
    uint32_t expert = (uint32_t)a.routing.p[(size_t)t * a.routing.stride + i];
    if (expert >= a.experts) expert = 0;
    const float *x = a.x.p + (size_t)t * a.x.stride;
    float gate = row_dot(a.gate, (size_t)a.gate_at + (size_t)expert * a.ff + f, x);
    float up = row_dot(a.up, (size_t)a.up_at + (size_t)expert * a.ff + f, x);
    if ((threadIdx.x & 31) == 0) a.hidden[(size_t)blockIdx.y * a.ff + f] = activate(a.act, gate) * up;
}

/* y[t][d] = sum over the row's experts of weight * down: a warp per d. */
extern "C" __global__ void experts_out(const __grid_constant__ ck_experts a)
{
    launch_dependents();
    wait_for_inputs();
    uint32_t d = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5), t = blockIdx.y;
    if (d >= a.d) return;
    float sum = 0;
    for (uint32_t i = 0; i < a.k; i++) {
        uint32_t expert = (uint32_t)a.routing.p[(size_t)t * a.routing.stride + i];
        if (expert >= a.experts) expert = 0;
        float weight = a.routing.p[(size_t)t * a.routing.stride + a.k + i];
        sum += weight * row_dot(a.down, (size_t)a.down_at + (size_t)expert * a.d + d, a.hidden + ((size_t)t * a.k + i) * a.ff);
    }
    if ((threadIdx.x & 31) == 0) a.y.p[(size_t)t * a.y.stride + d] = sum;
}

/* low[t][r] = a[r] . x[t]: a warp per LoRA component r. */
extern "C" __global__ void lora_low(const __grid_constant__ ck_lora a)
{
    launch_dependents();
    wait_for_inputs();
    uint32_t r = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5), t = a.from + blockIdx.y;
    if (r >= a.rank) return;
    const float *x = a.x.p + (size_t)t * a.x.stride;
    float s = 0;
    for (uint32_t c = threadIdx.x & 31; c < a.k; c += 32) s = fmaf(a.a[(size_t)r * a.k + c], x[c], s);
    s = warp_sum(s);
    if ((threadIdx.x & 31) == 0) a.low[(size_t)blockIdx.y * a.rank + r] = s;
}

/* y[t][n] += b[n] . low[t]. */
extern "C" __global__ void lora_add(const __grid_constant__ ck_lora a)
{
    launch_dependents();
    wait_for_inputs();
    uint32_t n = blockIdx.x * blockDim.x + threadIdx.x, t = a.from + blockIdx.y;
    if (n >= a.n) return;
    float s = 0;
    for (uint32_t r = 0; r < a.rank; r++)
        s = fmaf(a.b[((size_t)a.at + n) * a.rank + r], a.low[(size_t)blockIdx.y * a.rank + r], s);
    a.y.p[(size_t)t * a.y.stride + n] += s;
}

/* Converts the fixed-point sums of the cluster kernels to fp32 and zeroes them. */
extern "C" __global__ void sum_parts(const __grid_constant__ ck_sum_parts a)
{
    launch_dependents();
    if (!a.x.live) wait_for_inputs();
    uint32_t c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c < a.x.width) {
        /* Poll until all clusters have added. */
        uint64_t *read = static_cast<uint64_t *>(const_cast<void *>(a.x.p)) + c, w = load_sum_word(read);
        while (addends_in(w) != a.x.n) w = load_sum_word(read);
        uint32_t coarse = coarse_in(w);
        a.y[c] = fine_value(w) + (coarse ? coarse_value(read + a.x.width, coarse) : 0);
        read[0] = read[a.x.width] = 0;
        for (uint32_t i = c; i < a.clear.fours; i += a.x.width) reinterpret_cast<uint4 *>(a.clear.p)[i] = make_uint4(0, 0, 0, 0);
    }
    /* the next kernel waits only for this one but also reads results of earlier ones */
    wait_for_inputs();
}

/* Read bandwidth, for the unit's self-measurement. */
extern "C" __global__ void __launch_bounds__(512) read_all(const __grid_constant__ ck_read a)
{
    const uint4 *p = static_cast<const uint4 *>(a.data);
    uint64_t step = (uint64_t)gridDim.x * blockDim.x, i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x;
    uint32_t x = 0;
    /* Eight loads in flight per thread. */
    for (; i + 7 * step < a.n; i += 8 * step) {
        uint4 v[8];
#pragma unroll
        for (int k = 0; k < 8; k++) v[k] = __ldcs(p + i + k * step);
#pragma unroll
        for (int k = 0; k < 8; k++) x ^= v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
    }
    /* Never true in practice; keeps the loads alive. */
    if (x == 0x12345) *a.out = x;
}
