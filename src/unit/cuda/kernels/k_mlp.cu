/* k_mlp.cu: the feed-forward block of a layer for one row of x, fused into one launch (helpers:
 * k_cluster_ops.cuh): norm, gate and up (or up alone), activation, down, residual. Input and output
 * are fixed-point sums (k_fixed_point_sum.cuh) or fp32. Host: chosen by cluster_match.c for one row
 * of up to 512 P columns, fp16, bf16, Q8_0 or packed weights. sm_90 only.
 *
 * Layout: clusters of 8 blocks, 288 threads (256 consumers, 1 warp that loads weights). A cluster of
 * C handles ff / C hidden units, a block one eighth of those. For down a block computes d / 8 rows
 * over the columns of its cluster's hidden units.
 *
 * Dynamic shared memory: weight ring; hidden units of the cluster; the block's columns of x; scales
 * of down (Q8_0); x, reused for the sums of gate and up; x in parts, reused for the hidden units in
 * parts. Synchronisation: ring mbarriers, one mbarrier each for x and the hidden units, named
 * barrier 1. Weight loads start before griddepcontrol.wait.
 * SPDX-License-Identifier: MIT */
#include "k_weight_prefetch.cuh"

#if __CUDA_ARCH__ == 900

/* What a block computes: units per block, first of them in the layer, rows of down, groups of 16
 * rows of gate and up. */
struct mlp_work {
    uint32_t cluster, cta, units, first, rows, groups; /* first: index in the layer; groups: 16-row groups of gate and up */
};
__device__ __forceinline__ mlp_work work_of(const ck_mlp &a)
{
    mlp_work w;
    w.cluster = blockIdx.x / CLUSTER;
    w.cta = cluster_cta_rank();
    w.units = a.units / CLUSTER;
    w.first = w.cluster * a.units + w.cta * w.units;
    w.rows = a.d / CLUSTER;
    w.groups = a.gate.data ? (w.units + 7) / 8 : (w.units + 15) / 16;
    return w;
}

/* Producer thread: rows of up and gate (8 and 8, or 16 of up), then boxes of down. */
template <int KIND>
__device__ __forceinline__ void load_weights(const ck_mlp &a, const ck_packed_kinds &kinds, const mlp_work &w, const ring &r)
{
    ring_producer in = {};
    bool gated = a.gate.data;
    uint32_t bytes = KIND == KIND_Q8 ? 1 : 2; /* bytes per weight */
#pragma unroll 1
    for (uint32_t u = w.first, end = w.first + w.units; u < end; u += gated ? 8 : 16) {
        uint32_t n = min(8u, end - u), other = gated ? n : min(8u, end - u - n);
        if constexpr (KIND == KIND_PACKED) { /* always whole groups of rows */
            unsigned char *to = ring_acquire(r, in, 16 * a.up.pitch);
            load_eight(to, a.up, u, &r.full[in.at.stage]);
            load_eight(to + 8 * a.up.pitch, gated ? a.gate : a.up, gated ? u : u + 8, &r.full[in.at.stage]);
            ring_next(r, in.at);
            continue;
        }
        /* Stage: n rows of up, then `other` rows of gate (or more rows of up). */
        unsigned char *to = ring_acquire(r, in, rows_bytes<KIND>(n + other, a.d));
        load_rows<KIND>(to, a.up, u, n, a.d, &r.full[in.at.stage]);
        if (other)
            load_rows<KIND>(to + second_eight<KIND>(a.d), gated ? a.gate : a.up, gated ? u : u + 8, other, a.d,
                            &r.full[in.at.stage]);
        ring_next(r, in.at);
    }
    if constexpr (KIND == KIND_PACKED) {
        const uint32_t chunks = a.units / CK_PACKED_CHUNK;
        load_second_packed<0>(r, in, kinds, w.cta * w.rows, w.rows, a.down_rows, w.cluster * chunks, chunks);
    } else {
#pragma unroll 1
        for (uint32_t row = 0; row < w.rows; row += a.down_rows)
            ring_load_box(r, in, a.down, w.cluster * a.units * bytes / 4, w.cta * w.rows + row, a.down_rows * a.units * bytes);
    }
}

/* Target of a hidden unit. Eight lanes finish one unit, lane i for block i of the cluster; a warp
 * finishes four units at a time, the block 32. Computed before x is available. */
struct unit_target {
    uint32_t sums, to, mbar; /* sums: the lane's two partial sums of a row; 0: no unit */
    float of_gate, of_up;
};
__device__ __forceinline__ uint32_t unit_of_lane() { return threadIdx.x / CLUSTER; }
__device__ __forceinline__ void load_biases(const ck_mlp &a, const mlp_work &w, uint32_t u, unit_target &s)
{
    s.of_gate = a.gate.bias && u < w.units ? a.gate.bias[w.first + u] : 0;
    s.of_up = a.up.bias && u < w.units ? a.up.bias[w.first + u] : 0;
}
__device__ __forceinline__ uint32_t sums_of_unit(const ck_mlp &a, const float *sums, uint32_t u)
{
    uint32_t row = a.gate.data ? 2 * u - u % 8 : u; /* gate's rows follow up's by eight */
    return smem_addr(sums + row * SUMS_PITCH + 2 * (threadIdx.x % CLUSTER));
}
/* hs: hidden units of the cluster, [units] */
__device__ __forceinline__ unit_target find_unit_target(const ck_mlp &a, const mlp_work &w, const float *sums, const float *hs,
                                                        const uint64_t *mbar)
{
    unit_target s;
    uint32_t block = threadIdx.x % CLUSTER, u = unit_of_lane();
    s.sums = u < w.units ? sums_of_unit(a, sums, u) : 0;
    s.to = mapa(smem_addr(hs + w.cta * w.units + u), block), s.mbar = mapa(smem_addr(mbar), block);
    load_biases(a, w, u, s);
    /* computed here, before the wait */
    asm volatile("" : "+r"(s.sums), "+r"(s.to), "+r"(s.mbar), "+f"(s.of_gate), "+f"(s.of_up));
    return s;
}
/* Sum of a row over the 8 warps, computed by eight lanes together. */
__device__ __forceinline__ float sum_by_eight(uint32_t at)
{
    uint2 s = lds_64(at);
    float v = __uint_as_float(s.x) + __uint_as_float(s.y);
    v += __shfl_xor_sync(0xffffffffu, v, 1);
    v += __shfl_xor_sync(0xffffffffu, v, 2);
    return v + __shfl_xor_sync(0xffffffffu, v, 4);
}
/* Sends the block's hidden units act(gate) * up to all blocks; the number of units is a multiple of
 * four. */
__device__ __forceinline__ void send_hidden(const ck_mlp &a, const mlp_work &w, unit_target &s, const float *sums)
{
    if (!s.sums) return;
#pragma unroll 1
    for (uint32_t left = w.units;;) {
        /* activation(gate) * up, or activation(up) without a gate. */
        float v = sum_by_eight(s.sums) + s.of_up, g = v;
        if (a.gate.data) g = sum_by_eight(s.sums + 8 * SUMS_PITCH * 4) + s.of_gate;
        g = a.act == ACT_SILU ? g * sigmoid_fast(g) : a.act != ACT_NONE ? activate_outlined(a.act, g) : g;
        st_async_f32(a.gate.data ? g * v : g, s.to, s.mbar);
        if (left <= 32) break;
        left -= 32;
        /* Blocks with more than 32 units: next unit of this lane. */
        uint32_t u = w.units - left + unit_of_lane();
        if (u >= w.units) break;
        s.sums = sums_of_unit(a, sums, u), s.to += 4 * 32;
        load_biases(a, w, u, s);
    }
}

/* Where this thread's four hidden units arrive and where they are stored in parts or digits (columns
 * padded to a whole pair of blocks); 0: none. Computed while they are in flight. */
struct four_hidden {
    uint32_t from, to, pitch;
};
template <int KIND>
__device__ __forceinline__ four_hidden hidden_of_thread(uint32_t units, const float *hs, const unsigned char *parts)
{
    uint32_t c = 4 * threadIdx.x, k = pad_to_pairs(units);
    four_hidden f = {c < units ? smem_addr(hs + c) : 0, c < k ? smem_addr(parts + 2 * c) : 0, parts_pitch(k)};
    if (KIND == KIND_Q8) f.to = f.from;
    asm volatile("" : "+r"(f.from), "+r"(f.to), "+r"(f.pitch)); /* computed here, before the wait */
    return f;
}
template <int KIND>
__device__ __forceinline__ void store_hidden_parts(const four_hidden &f, unsigned char *digits, uint32_t units)
{
    if (f.to) {
        float4 v = make_float4(0, 0, 0, 0);
        /* Q8_0: one group of 128 per warp; else 16-bit parts. */
        if (f.from) v = lds_f32x4(f.from);
        if (KIND == KIND_PACKED)
            put_packed_group(packed_x_at(digits, units), threadIdx.x >> 5, v);
        else if (KIND == KIND_Q8)
            put_group8(digits + (threadIdx.x >> 5) * DIGITS8, v);
        else
#pragma unroll
            for (int i = 0; i < PARTS; i++) {
                uint32_t a = next_part<KIND>(v.x, v.y, i), b = next_part<KIND>(v.z, v.w, i);
                sts_f32x2(f.to + i * f.pitch, __uint_as_float(a), __uint_as_float(b));
            }
    }
    consumers_sync();
}

/* 16 rows of down for one warp: first row, ring stage (as a fill number) that holds them with its
 * mbarrier and parity, the lane's 16 bytes, and the row whose sum this lane obtains (NO_ROW: none).
 * The first ones are computed before x is available. */
enum { NO_ROW = 1 << 30 };
struct rows_of_down {
    uint32_t row, fill, mbar, parity, low, lane_row;
};
template <int KIND>
__device__ __forceinline__ rows_of_down find_down(const ck_mlp &a, const mlp_work &w, const ring &r, uint32_t row)
{
    rows_of_down o;
    uint32_t g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3, pitch = KIND == KIND_Q8 ? a.units : 2 * a.units,
             box = row / a.down_rows, turn = 0;
    o.row = row, o.fill = w.groups + box;
    /* Stage and round of this fill, without a division. */
    uint32_t stage = o.fill;
    for (; stage >= r.n; turn++) stage -= r.n;
    o.mbar = smem_addr(r.full + stage), o.parity = turn & 1;
    o.low = smem_addr(r.stages) + stage * r.bytes + (row - box * a.down_rows + g) * pitch + t * 16;
    uint32_t of = row_of_lane<KIND>(rows_share_bank(pitch) ? g & 1 : 0);
    o.lane_row = of < 16 && row + of < w.rows ? row + of : NO_ROW;
    asm volatile("" : "+r"(o.mbar), "+r"(o.parity), "+r"(o.low), "+r"(o.lane_row)); /* computed here, before the wait */
    return o;
}
/* Operands of the lane for these rows, its output word, and the value added to the product (residual
 * and bias, in cluster 0). */
struct down_target {
    second_lane lane;
    uint64_t *y;
    float added;
};
template <int KIND>
__device__ __forceinline__ down_target down_epilogue(const ck_mlp &a, const mlp_work &w, const unsigned char *hidden,
                                                     const float *extra, uint32_t scales, const rows_of_down &o)
{
    down_target e;
    bool has = o.lane_row != NO_ROW;
    e.lane = second_of_lane<KIND>(smem_addr(hidden), a.units, o.low,
                                  scales + (o.row + ((threadIdx.x & 31) >> 2)) * (a.units / 16));
    e.y = has ? a.y + w.cta * w.rows + o.lane_row : nullptr;
    e.added = has && !w.cluster ? extra[o.lane_row] : 0;
    /* computed before the wait */
    asm volatile("" : "+r"(e.lane.x.at), "+r"(e.lane.x.other), "+r"(e.lane.x.is), "+r"(e.lane.k));
    asm volatile("" : "+r"(e.lane.low), "+r"(e.lane.high), "+r"(e.lane.swapped));
    asm volatile("" : "+l"(e.y), "+f"(e.added));
    return e;
}
/* The block's rows of down: each warp takes every eighth group of 16 rows and releases all stages
 * that will be refilled. at: ring position after the first product; again: some stages are refilled. */
template <int KIND>
__device__ __forceinline__ void write_down(const ck_mlp &a, const mlp_work &w, const ring &r, ring_pos at, bool again,
                                           const unsigned char *hidden, const float *extra, uint32_t scales, rows_of_down &o,
                                           down_target &e)
{
    uint32_t fill = w.groups;
    /* Release the stages between the previous box and this one. */
    while (o.row < w.rows) {
        for (; again && fill < o.fill && ring_refilled(r, at); fill++) skip_stage(r, at);
        mbar_wait_at(o.mbar, o.parity);
        float v = second_sixteen<KIND>(e.lane).v;
        if (e.y) add_fixed_point(e.y, a.d, v + e.added);
        uint32_t next = o.row + 16 * CONSUMER_WARPS;
        if (next >= w.rows) break;
        o = find_down<KIND>(a, w, r, next);
        e = down_epilogue<KIND>(a, w, hidden, extra, scales, o);
    }
    while (again && ring_refilled(r, at)) skip_stage(r, at);
}

/* Initialises all mbarriers and announces the bytes of each. One thread calls it. */
__device__ __forceinline__ void init_mbars(const ck_mlp &a, const ring &r, uint64_t *x_mbar, uint64_t *hidden_mbar)
{
    ring_init(r);
    mbar_init(x_mbar, 1);
    mbar_init(hidden_mbar, 1);
    mbar_init_fence();
    mbar_expect_tx(x_mbar, 4 * a.d + sizeof(cluster_stats));
    mbar_expect_tx(hidden_mbar, 4 * a.units);
}

/* Q8_0: starts the copy of the scales of the second weight. */
__device__ __forceinline__ void load_down_scales(const ck_mlp &a, const mlp_work &w, uint32_t scales)
{
    load_scales(scales,
                static_cast<const __half *>(a.down_scales.p) + w.cta * w.rows * a.down_scales.pitch + w.cluster * a.units / 32,
                a.down_scales.pitch, w.rows, a.units);
}

/* Kernel body. P: pairs of 32-column blocks of x per warp; kinds: of packed weights. */
template <int KIND, int P> __device__ __forceinline__ void mlp(const ck_mlp &a, const ck_packed_kinds &kinds = {})
{
    constexpr bool PREFETCH = P <= 2 && KIND != KIND_PACKED; /* registers suffice to prefetch a group of rows */
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ uint64_t full[CK_CLUSTER_STAGES], empty[CK_CLUSTER_STAGES], x_mbar, hidden_mbar;
    __shared__ cluster_stats stats;
    __shared__ float scratch[CONSUMER_WARPS];
    const mlp_work w = work_of(a);
    const ring r = {memory, a.stage_bytes, a.stages, a.fills, a.ahead, full, empty};
    float *hs = reinterpret_cast<float *>(memory + a.stages * a.stage_bytes), *extra = hs + pad_to_pairs(a.units),
          *scales = extra + a.d / CLUSTER, *xs = scales + (KIND == KIND_Q8 ? a.d / CLUSTER * a.units / 64 : 0), *sums = xs;
    unsigned char *parts = reinterpret_cast<unsigned char *>(xs) + max(4 * a.d, w.groups * 16 * SUMS_PITCH * 4), *hidden = parts;
    /* Release the dependent grid now or, with `late`, after the weight loads were issued. */
    if (!a.late) launch_dependents();
    if (threadIdx.x == CLUSTER_CONSUMERS) init_mbars(a, r, &x_mbar, &hidden_mbar);
    __syncthreads();
    cluster_arrive();
    if (threadIdx.x >= CLUSTER_CONSUMERS) {
        if (threadIdx.x > CLUSTER_CONSUMERS) return;
        load_weights<KIND>(a, kinds, w, r);
        if (a.late) launch_dependents();
        return;
    }
    /* Everything that does not depend on x. */
    norm_coeffs<(P + 1) / 2> numbers;
    load_norm<KIND>(a.norm, a.d, numbers);
    if (KIND == KIND_Q8) load_down_scales(a, w, smem_addr(scales));
    x_frags<P> x;
    ring_pos at = {0, 0};
    const x_addresses from = find_x_addresses<KIND>(xs, &stats);
    const x_exchange to = x_exchange_setup(a.x, w.cta, xs, &stats, &x_mbar, extra);
    unit_target target = find_unit_target(a, w, sums, hs, &hidden_mbar);
    rows_of_down down = find_down<KIND>(a, w, r, 16 * (threadIdx.x >> 5));
    cluster_wait();
    if constexpr (KIND == KIND_PACKED) warm_packed(r, kinds.in[0], a.d / CK_PACKED_CHUNK);
    prefetched_group<PREFETCH ? P : 1> prefetched;
    if constexpr (PREFETCH) prefetch_group<KIND, P>(r, at, a.d, scratch, prefetched);
    if (!a.x.live) wait_for_inputs(); /* x arrives */
    exchange_x<(P + 1) / 2>(to, a.norm.layer, a.down_bias ? a.down_bias + w.cta * w.rows : nullptr);
    mbar_wait(&x_mbar, 0);
    prepare_x<KIND, P>(a.norm, a.d, xs, from, numbers, parts, scratch, x);
    /* First product. */
    if constexpr (PREFETCH) {
        uint32_t first_full = mbar_test_at(smem_addr(&r.full[at.stage]), at.turn & 1);
        multiply_prefetched<KIND, P>(prefetched, x, sums);
        first_rows<KIND, P>(r, at, x, a.d, w.groups - 1, sums + 16 * SUMS_PITCH, first_full);
    } else if constexpr (KIND == KIND_PACKED) {
        const packed_x digits = packed_x_at(parts, a.d);
#pragma unroll 1
        for (uint32_t g = 0; g < w.groups; g++)
            first_packed(r, at, digits, kinds.in[0], a.d / CK_PACKED_CHUNK, g, x.inv_rms, sums + g * 16 * SUMS_PITCH, SUMS_PITCH);
    } else {
        first_rows<KIND, P>(r, at, x, a.d, w.groups, sums);
    }
    consumers_sync();
    /* Hidden units to the other blocks; meanwhile prepare the second product. */
    send_hidden(a, w, target, sums);
    const four_hidden four = hidden_of_thread<KIND>(a.units, hs, hidden);
    down_target end = down_epilogue<KIND>(a, w, hidden, extra, smem_addr(scales), down);
    uint32_t again = ring_refilled(r, at);
    asm volatile("" : "+r"(again)); /* computed before the wait */
    mbar_wait(&hidden_mbar, 0);
    if (KIND == KIND_Q8) scales_arrived();
    store_hidden_parts<KIND>(four, hidden, a.units);
    if constexpr (KIND == KIND_PACKED)
        write_packed(r, at, packed_x_at(hidden, a.units), kinds.out, a.units / CK_PACKED_CHUNK, a.down_rows, w.rows,
                     a.y + w.cta * w.rows, a.d, w.cluster ? nullptr : extra);
    else
        write_down<KIND>(a, w, r, at, again, hidden, extra, smem_addr(scales), down, end);
    finish_kernel(a.x, a.clear);
}

#else
/* no clusters before sm_90: never launched */
template <int KIND, int P> __device__ __forceinline__ void mlp(const ck_mlp &, const ck_packed_kinds & = {}) {}
#endif

#define MLP(NAME, KIND, P)                                                           \
    extern "C" __global__ void __launch_bounds__(CK_CLUSTER_THREADS, P == 8 ? 1 : 2) \
        mlp_##NAME##_##P(const __grid_constant__ ck_mlp a)                           \
    {                                                                                \
        mlp<KIND, P>(a);                                                             \
    }
MLP(f16, 0, 1)
MLP(f16, 0, 2)
MLP(f16, 0, 4)
MLP(f16, 0, 8)
MLP(bf16, 1, 1)
MLP(bf16, 1, 2)
MLP(bf16, 1, 4)
MLP(bf16, 1, 8)
MLP(q8, KIND_Q8, 2)
MLP(q8, KIND_Q8, 4)
MLP(q8, KIND_Q8, 8)
extern "C" __global__ void __launch_bounds__(CK_CLUSTER_THREADS, 2) mlp_packed(const __grid_constant__ ck_mlp_packed a)
{
    mlp<KIND_PACKED, 2>(a.a, a.kinds);
}
