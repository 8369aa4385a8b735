/* k_mlp.cu: norm, gate and up (or up alone), activation, down and residual with one row of x, in one launch (k_rank.cuh). Rank r of R
 * has ff / R hidden units, a block an eighth of them; down's rows are dealt to the blocks, its columns to the ranks.
 *
 * Shared memory: the ring; hidden units as they come; the block's columns of x; scales of down (Q8_0); x as it comes, then sums of gate
 * and up; x in parts, then the hidden units so.
 * SPDX-License-Identifier: MIT */
#include "k_rank.cuh"

#if __CUDA_ARCH__ >= 900

/* What a block does: hidden units of its rank, of these its own, rows of down. */
struct mlp_work {
    uint32_t rank, block, units, first, rows, groups; /* first: of its own units in the layer; groups of 16 rows of gate and up */
};
__device__ __forceinline__ mlp_work work_of(const ck_mlp &a)
{
    mlp_work w;
    w.rank = blockIdx.x / RANK;
    w.block = cluster_block();
    w.units = a.units / RANK;
    w.first = w.rank * a.units + w.block * w.units;
    w.rows = a.d / RANK;
    w.groups = a.gate.data ? (w.units + 7) / 8 : (w.units + 15) / 16;
    return w;
}

template <int KIND> __device__ __forceinline__ void bring_weights(const ck_mlp &a, const mlp_work &w, const ring &r)
{
    ring_in in = {};
    bool gated = a.gate.data;
    uint32_t bytes = KIND == RANK_Q8 ? 1 : 2; /* of a number */
#pragma unroll 1
    for (uint32_t u = w.first, end = w.first + w.units; u < end; u += gated ? 8 : 16) {
        uint32_t n = min(8u, end - u), other = gated ? n : min(8u, end - u - n);
        unsigned char *to = ring_free(r, in, rows_bytes<KIND>(n + other, a.d));
        bring_rows<KIND>(to, a.up, u, n, a.d, &r.full[in.at.stage]);
        if (other) bring_rows<KIND>(to + second_eight<KIND>(a.d), gated ? a.gate : a.up, gated ? u : u + 8, other, a.d, &r.full[in.at.stage]);
        ring_next(r, in.at);
    }
#pragma unroll 1
    for (uint32_t row = 0; row < w.rows; row += a.down_rows)
        ring_bring_box(r, in, a.down, w.rank * a.units * bytes / 4, w.block * w.rows + row, a.down_rows * a.units * bytes);
}

/* The biases of one of the block's hidden units. */
struct unit_biases {
    float gate, up;
};
__device__ __forceinline__ unit_biases biases_of(const ck_mlp &a, const mlp_work &w, uint32_t u)
{
    unit_biases b = {0, 0};
    if (a.gate.bias && u < w.units) b.gate = a.gate.bias[w.first + u];
    if (a.up.bias && u < w.units) b.up = a.up.bias[w.first + u];
    return b;
}

/* The block's hidden units to all blocks of the rank: a warp a block. hs [units of the rank]; b: of the lane's first one. */
__device__ __forceinline__ void send_hidden(const ck_mlp &a, const mlp_work &w, unit_biases b, const float *sums, const float *hs,
                                            const uint64_t *gate)
{
    uint32_t to = there(shared_at(hs + w.block * w.units), threadIdx.x >> 5), counted = there(shared_at(gate), threadIdx.x >> 5);
#pragma unroll 1
    for (uint32_t u = threadIdx.x & 31; u < w.units; u += 32) {
        float v = whole_sum(sums, a.gate.data ? 2 * u - u % 8 : u) + b.up, g = v;
        if (a.gate.data) g = whole_sum(sums, 2 * u - u % 8 + 8) + b.gate;
        g = a.act == ACT_SILU ? g * sigmoid_short(g) : a.act != ACT_NONE ? activate_rarely(a.act, g) : g;
        send_to(a.gate.data ? g * v : g, to + 4 * u, counted);
        b = biases_of(a, w, u + 32);
    }
}

/* Hidden units have arrived: into parts, zero up to a whole pair of blocks. */
template <int KIND> __device__ __forceinline__ void hidden_parts(uint32_t units, const float *hs, unsigned char *parts)
{
    uint32_t k = whole_pairs(units);
#pragma unroll 1
    for (uint32_t c = 4 * threadIdx.x; c < k; c += 4 * RANK_OWNERS)
        put_hidden<KIND>(parts, k, c, c < units ? four_at(hs, c) : make_float4(0, 0, 0, 0));
    consumers_meet();
}

template <int KIND, int P> __device__ __forceinline__ void mlp(const ck_mlp &a)
{
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ uint64_t full[CK_RANK_STAGES], empty[CK_RANK_STAGES], x_gate, hidden_gate;
    __shared__ rank_stats stats;
    __shared__ float room[RANK_WARPS];
    const mlp_work w = work_of(a);
    const ring r = {memory, a.stage_bytes, a.stages, a.fills, a.ahead, full, empty};
    float *hs = reinterpret_cast<float *>(memory + a.stages * a.stage_bytes), *own = hs + whole_pairs(a.units), *scales = own + a.d / RANK,
          *xs = scales + (KIND == RANK_Q8 ? a.d / RANK * a.units / 64 : 0), *sums = xs;
    unsigned char *parts = reinterpret_cast<unsigned char *>(xs) + max(4 * a.d, w.groups * 16 * RANK_SUMS_PITCH * 4), *hidden = parts;
    dependents_may_start();
    if (threadIdx.x == RANK_OWNERS) {
        ring_open(r);
        gate_open(&x_gate, 1);
        gate_open(&hidden_gate, 1);
        gates_opened();
        gate_expect(&x_gate, 4 * a.d + sizeof stats);
        gate_expect(&hidden_gate, 4 * a.units);
    }
    __syncthreads();
    cluster_arrive();
    if (threadIdx.x >= RANK_OWNERS) {
        if (threadIdx.x == RANK_OWNERS) bring_weights<KIND>(a, w, r);
        __syncwarp();
        cluster_wait();
        return;
    }
    norm_numbers<(P + 1) / 2> numbers;
    load_norm<KIND>(a.norm, a.d, numbers);
    const unit_biases biases = biases_of(a, w, threadIdx.x & 31);
    if (KIND == RANK_Q8)
        bring_scales(shared_at(scales), static_cast<const __half *>(a.down_scales.p) + w.block * w.rows * a.down_scales.pitch + w.rank * a.units / 32,
                     a.down_scales.pitch, w.rows, a.units);
    own_x<P> x;
    ring_at at = {0, 0};
    const x_places from = places_of<KIND>(xs, &stats);
    const spreading to = spread_from(a.x, w.block, xs, &stats, &x_gate, own);
    cluster_wait();
    if (!a.x.live) wait_for_inputs();
    spread_x<(P + 1) / 2>(to, a.norm.layer, a.down_bias ? a.down_bias + w.block * w.rows : nullptr);
    gate_wait(&x_gate, 0);
    ready_x<KIND, P>(a.norm, a.d, xs, from, numbers, parts, room, x);
    first_rows<KIND, P>(r, at, x, a.d, w.units, a.gate.data != nullptr, sums);
    consumers_meet();
    send_hidden(a, w, biases, sums, hs, &hidden_gate);
    gate_wait(&hidden_gate, 0);
    if (KIND == RANK_Q8) scales_arrived();
    hidden_parts<KIND>(a.units, hs, hidden);
    write_rows<KIND>(r, at, hidden, a.units, a.down_rows, w.rows, a.y + w.block * w.rows, a.d, w.rank ? nullptr : own,
                     shared_at(scales));
    leave(a.x, a.clear);
}

#else
template <int KIND, int P> __device__ __forceinline__ void mlp(const ck_mlp &) {} /* no clusters: not launched */
#endif

#define MLP(NAME, KIND, P)                                                                                       \
    extern "C" __global__ void __launch_bounds__(CK_RANK_THREADS, P == 8 ? 1 : 2) mlp_##NAME##_##P(const __grid_constant__ ck_mlp a) \
    {                                                                                                            \
        mlp<KIND, P>(a);                                                                                         \
    }
MLP(f16, 0, 1)
MLP(f16, 0, 2)
MLP(f16, 0, 4)
MLP(f16, 0, 8)
MLP(bf16, 1, 1)
MLP(bf16, 1, 2)
MLP(bf16, 1, 4)
MLP(bf16, 1, 8)
MLP(q8, RANK_Q8, 2)
MLP(q8, RANK_Q8, 4)
MLP(q8, RANK_Q8, 8)
