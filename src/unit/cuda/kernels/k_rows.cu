/* k_rows.cu: the ops that are small or rare, one kernel each and plain: embed, norm, rope, glu, act, add,
 * scale, rows, route, experts, adapters. What is fused elsewhere must compute the same.
 * SPDX-License-Identifier: MIT */
#include "k_fixed_point_sum.cuh"

extern "C" __global__ void embed(const __grid_constant__ ck_embed a)
{
    wait_for_inputs();
    /* not sooner: attention reads its position ahead of its inputs, and the choice before this moves it on */
    dependents_may_start();
    uint32_t t = blockIdx.x, c = blockIdx.y * blockDim.x + threadIdx.x;
    if (c >= a.y.width) return;
    int32_t token = a.pass.tokens[t];
    if (token < 0) token = 0;
    float v = weight_at(a.table, (size_t)a.at + token, c) * a.scale;
    if (a.places.data) v += weight_at(a.places, (size_t)a.places_at + a.pass.place[t], c);
    a.y.p[(size_t)t * a.y.stride + c] = v;
}

/* A block per row and group. */
extern "C" __global__ void norm_rows(const __grid_constant__ ck_norm_args a)
{
    __shared__ float room[32];
    dependents_may_start();
    wait_for_inputs();
    const ck_norm &n = a.norm;
    uint32_t group = a.x.width / n.groups, at = blockIdx.y * group, t = blockIdx.x;
    const float *x = a.x.p + (size_t)t * a.x.stride + at;
    float mean = 0, sum = 0, squares = 0;
    if (n.layer) {
        for (uint32_t e = threadIdx.x; e < group; e += blockDim.x) sum += x[e];
        mean = block_sum(sum, room) / group;
    }
    for (uint32_t e = threadIdx.x; e < group; e += blockDim.x) squares += (x[e] - mean) * (x[e] - mean);
    float inverse = rsqrtf(block_sum(squares, room) / group + n.eps);
    for (uint32_t e = threadIdx.x; e < group; e += blockDim.x) {
        float v = (x[e] - mean) * inverse;
        if (n.weight) v *= n.plus_one ? 1.0f + n.weight[e] : n.weight[e];
        if (n.bias) v += n.bias[e];
        if (n.gate.p) v *= activate(ACT_SILU, n.gate.p[(size_t)t * n.gate.stride + at + e]);
        a.y.p[(size_t)t * a.y.stride + at + e] = v;
    }
}

extern "C" __global__ void rope(const __grid_constant__ ck_rope a)
{
    dependents_may_start();
    wait_for_inputs();
    uint32_t t = blockIdx.x, c = blockIdx.y * blockDim.x + threadIdx.x;
    if (c >= a.x.width) return;
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

#define MAP(NAME, VALUE)                                                    \
    extern "C" __global__ void NAME(const __grid_constant__ ck_map a)       \
    {                                                                       \
        dependents_may_start();                                             \
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

extern "C" __global__ void rows(const __grid_constant__ ck_rows a)
{
    dependents_may_start();
    wait_for_inputs();
    uint32_t t = blockIdx.x, c = blockIdx.y * blockDim.x + threadIdx.x;
    if (c < a.x.width) a.y.p[(size_t)t * a.y.stride + c] = a.x.p[(size_t)a.pass.wanted[t] * a.x.stride + c];
}

/* A thread per row: experts are few. */
extern "C" __global__ void route(const __grid_constant__ ck_route a)
{
    dependents_may_start();
    wait_for_inputs();
    uint32_t t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t >= a.rows) return;
    const float *x = a.x.p + (size_t)t * a.x.stride;
    float *index = a.y.p + (size_t)t * a.y.stride, *weight = index + a.k, most = -CUDART_INF_F, sum = 0;
    double all = 0;
    for (uint32_t e = 0; e < a.experts; e++) most = x[e] > most ? x[e] : most;
    if (!a.sigmoid)
        for (uint32_t e = 0; e < a.experts; e++) all += expf(x[e] - most);
    for (uint32_t i = 0; i < a.k; i++) {
        uint32_t best = 0xffffffffu;
        float best_key = 0, best_score = 0;
        for (uint32_t e = 0; e < a.experts; e++) {
            int taken = 0;
            for (uint32_t q = 0; q < i; q++) taken |= index[q] == (float)e;
            if (taken) continue;
            float score = a.sigmoid ? sigmoid(x[e]) : (float)(expf(x[e] - most) / all),
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
    for (uint32_t i = 0; i < a.k; i++) weight[i] = (a.renormalise ? weight[i] / sum : weight[i]) * a.scale;
}

__device__ float row_dot(const ck_weight &w, size_t row, const float *x)
{
    float s = 0;
    for (uint32_t c = threadIdx.x & 31; c < w.cols; c += 32) s = fmaf(weight_at(w, row, c), x[c], s);
    return warp_sum(s);
}

/* hidden[t][i][f] = act(gate) * up; a warp per f, blockIdx.y = t * k + i */
extern "C" __global__ void experts_in(const __grid_constant__ ck_experts a)
{
    dependents_may_start();
    wait_for_inputs();
    uint32_t f = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5), t = blockIdx.y / a.k,
             i = blockIdx.y % a.k;
    if (f >= a.ff) return;
    uint32_t expert = (uint32_t)a.routing.p[(size_t)t * a.routing.stride + i];
    if (expert >= a.experts) expert = 0;
    const float *x = a.x.p + (size_t)t * a.x.stride;
    float gate = row_dot(a.gate, (size_t)a.gate_at + (size_t)expert * a.ff + f, x);
    float up = row_dot(a.up, (size_t)a.up_at + (size_t)expert * a.ff + f, x);
    if ((threadIdx.x & 31) == 0) a.hidden[(size_t)blockIdx.y * a.ff + f] = activate(a.act, gate) * up;
}

extern "C" __global__ void experts_out(const __grid_constant__ ck_experts a)
{
    dependents_may_start();
    wait_for_inputs();
    uint32_t d = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5), t = blockIdx.y;
    if (d >= a.d) return;
    float sum = 0;
    for (uint32_t i = 0; i < a.k; i++) {
        uint32_t expert = (uint32_t)a.routing.p[(size_t)t * a.routing.stride + i];
        if (expert >= a.experts) expert = 0;
        float weight = a.routing.p[(size_t)t * a.routing.stride + a.k + i];
        sum += weight * row_dot(a.down, (size_t)a.down_at + (size_t)expert * a.d + d,
                                a.hidden + ((size_t)t * a.k + i) * a.ff);
    }
    if ((threadIdx.x & 31) == 0) a.y.p[(size_t)t * a.y.stride + d] = sum;
}

/* low[t][r] = a[r] . x[t]; a warp each */
extern "C" __global__ void lora_low(const __grid_constant__ ck_lora a)
{
    dependents_may_start();
    wait_for_inputs();
    uint32_t r = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5), t = a.from + blockIdx.y;
    if (r >= a.rank) return;
    const float *x = a.x.p + (size_t)t * a.x.stride;
    float s = 0;
    for (uint32_t c = threadIdx.x & 31; c < a.k; c += 32) s = fmaf(a.a[(size_t)r * a.k + c], x[c], s);
    s = warp_sum(s);
    if ((threadIdx.x & 31) == 0) a.low[(size_t)blockIdx.y * a.rank + r] = s;
}

extern "C" __global__ void lora_add(const __grid_constant__ ck_lora a)
{
    dependents_may_start();
    wait_for_inputs();
    uint32_t n = blockIdx.x * blockDim.x + threadIdx.x, t = a.from + blockIdx.y;
    if (n >= a.n) return;
    float s = 0;
    for (uint32_t r = 0; r < a.rank; r++)
        s = fmaf(a.b[((size_t)a.at + n) * a.rank + r], a.low[(size_t)blockIdx.y * a.rank + r], s);
    a.y.p[(size_t)t * a.y.stride + n] += s;
}

/* A value that ranks left in words (k_cluster_ops.cuh) as numbers. */
extern "C" __global__ void sum_parts(const __grid_constant__ ck_sum a)
{
    dependents_may_start();
    if (!a.x.live) wait_for_inputs();
    uint32_t c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c < a.x.width) {
        uint64_t *read = static_cast<uint64_t *>(const_cast<void *>(a.x.p)) + c, w = load_word(read);
        while (ranks_in(w) != a.x.n) w = load_word(read);
        uint32_t far = far_in(w);
        a.y[c] = near_of(w) + (far ? far_of(read + a.x.width, far) : 0);
        read[0] = read[a.x.width] = 0;
        for (uint32_t i = c; i < a.clear.fours; i += a.x.width) reinterpret_cast<uint4 *>(a.clear.p)[i] = make_uint4(0, 0, 0, 0);
    }
    wait_for_inputs(); /* who comes behind waits for this kernel alone, and reads what others left as well */
}

/* Bandwidth of reads, for the unit's own measurement. */
extern "C" __global__ void __launch_bounds__(512) read_all(const __grid_constant__ ck_read a)
{
    const uint4 *p = static_cast<const uint4 *>(a.data);
    uint64_t step = (uint64_t)gridDim.x * blockDim.x, i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x;
    uint32_t x = 0;
    for (; i + 7 * step < a.n; i += 8 * step) {
        uint4 v[8];
#pragma unroll
        for (int k = 0; k < 8; k++) v[k] = __ldcs(p + i + k * step);
#pragma unroll
        for (int k = 0; k < 8; k++) x ^= v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
    }
    if (x == 0x12345) *a.out = x;
}
