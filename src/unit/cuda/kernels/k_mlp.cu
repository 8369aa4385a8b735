/* k_mlp.cu: norm, gate and up (or up alone), activation, down and residual with one row of x, in one launch (k_cluster_ops.cuh). Rank r
 * of R has ff / R hidden units, a block an eighth of them; down's rows are dealt to the blocks, its columns to the ranks.
 *
 * Shared memory: the ring; hidden units as they come; the block's columns of x; scales of down (Q8_0); x as it comes, then sums
 * of gate and up; x in parts, then the hidden units so. SPDX-License-Identifier: MIT */
#include "k_weight_prefetch.cuh"

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
        if (other)
            bring_rows<KIND>(to + second_eight<KIND>(a.d), gated ? a.gate : a.up, gated ? u : u + 8, other, a.d,
                             &r.full[in.at.stage]);
        ring_next(r, in.at);
    }
#pragma unroll 1
    for (uint32_t row = 0; row < w.rows; row += a.down_rows)
        ring_bring_box(r, in, a.down, w.rank * a.units * bytes / 4, w.block * w.rows + row, a.down_rows * a.units * bytes);
}

/* Eight lanes end a hidden unit, each for one of the rank's blocks: where it goes, and its biases. A warp ends four at once, the
 * block 32. Found before the inputs are there. */
struct unit_sending {
    uint32_t sums, to, gate; /* sums: where the lane's two of a row are; 0: it has no unit */
    float of_gate, of_up;
};
__device__ __forceinline__ uint32_t unit_of_lane() { return threadIdx.x / RANK; }
__device__ __forceinline__ void load_biases(const ck_mlp &a, const mlp_work &w, uint32_t u, unit_sending &s)
{
    s.of_gate = a.gate.bias && u < w.units ? a.gate.bias[w.first + u] : 0;
    s.of_up = a.up.bias && u < w.units ? a.up.bias[w.first + u] : 0;
}
__device__ __forceinline__ uint32_t sums_of_unit(const ck_mlp &a, const float *sums, uint32_t u)
{
    uint32_t row = a.gate.data ? 2 * u - u % 8 : u; /* gate's is eight rows behind */
    return shared_at(sums + row * RANK_SUMS_PITCH + 2 * (threadIdx.x % RANK));
}
/* hs: [units of the rank] */
__device__ __forceinline__ unit_sending sending_from(const ck_mlp &a, const mlp_work &w, const float *sums, const float *hs,
                                                     const uint64_t *gate)
{
    unit_sending s;
    uint32_t block = threadIdx.x % RANK, u = unit_of_lane();
    s.sums = u < w.units ? sums_of_unit(a, sums, u) : 0;
    s.to = there(shared_at(hs + w.block * w.units + u), block), s.gate = there(shared_at(gate), block);
    load_biases(a, w, u, s);
    asm volatile("" : "+r"(s.sums), "+r"(s.to), "+r"(s.gate), "+f"(s.of_gate), "+f"(s.of_up)); /* now */
    return s;
}
/* The sum over the warps of a row, by eight lanes. */
__device__ __forceinline__ float sum_by_eight(uint32_t at)
{
    uint2 s = shared_two(at);
    float v = __uint_as_float(s.x) + __uint_as_float(s.y);
    v += __shfl_xor_sync(0xffffffffu, v, 1);
    v += __shfl_xor_sync(0xffffffffu, v, 2);
    return v + __shfl_xor_sync(0xffffffffu, v, 4);
}
/* The block's hidden units to all blocks of the rank; units of a block are whole fours. */
__device__ __forceinline__ void send_hidden(const ck_mlp &a, const mlp_work &w, unit_sending &s, const float *sums)
{
    if (!s.sums) return;
#pragma unroll 1
    for (uint32_t left = w.units;;) {
        float v = sum_by_eight(s.sums) + s.of_up, g = v;
        if (a.gate.data) g = sum_by_eight(s.sums + 8 * RANK_SUMS_PITCH * 4) + s.of_gate;
        g = a.act == ACT_SILU ? g * sigmoid_short(g) : a.act != ACT_NONE ? activate_rarely(a.act, g) : g;
        send_to(a.gate.data ? g * v : g, s.to, s.gate);
        if (left <= 32) break;
        left -= 32;
        uint32_t u = w.units - left + unit_of_lane();
        if (u >= w.units) break;
        s.sums = sums_of_unit(a, sums, u), s.to += 4 * 32;
        load_biases(a, w, u, s);
    }
}

/* The thread's four of the hidden units, of all up to a whole pair of blocks: where they come and where they are put in parts or
 * digits; 0: it has none. Found while they are on their way. */
struct four_hidden {
    uint32_t from, to, pitch;
};
template <int KIND>
__device__ __forceinline__ four_hidden hidden_of_thread(uint32_t units, const float *hs, const unsigned char *parts)
{
    uint32_t c = 4 * threadIdx.x, k = whole_pairs(units);
    four_hidden f = {c < units ? shared_at(hs + c) : 0, c < k ? shared_at(parts + 2 * c) : 0, parts_pitch(k)};
    if (KIND == RANK_Q8) f.to = f.from;
    asm volatile("" : "+r"(f.from), "+r"(f.to), "+r"(f.pitch)); /* now */
    return f;
}
template <int KIND> __device__ __forceinline__ void hidden_parts(const four_hidden &f, unsigned char *digits)
{
    if (f.to) {
        float4 v = make_float4(0, 0, 0, 0);
        if (f.from) v = shared_four(f.from);
        if (KIND == RANK_Q8)
            put_group8(digits + (threadIdx.x >> 5) * DIGITS8, v);
        else
#pragma unroll
            for (int i = 0; i < PARTS; i++) {
                uint32_t a = next_part<KIND>(v.x, v.y, i), b = next_part<KIND>(v.z, v.w, i);
                put_two_at(f.to + i * f.pitch, __uint_as_float(a), __uint_as_float(b));
            }
    }
    consumers_meet();
}

/* 16 rows of down for a warp: the first of the block's rows, which fill of the ring has them and what says so, the lane's 16
 * bytes, and of which of the block's rows the lane has the sum (RANK_NONE: of none). A warp's first ones are found before the
 * inputs are there. */
enum { RANK_NONE = 1 << 30 };
struct rows_of_down {
    uint32_t row, fill, gate, parity, low, lane_row;
};
template <int KIND>
__device__ __forceinline__ rows_of_down find_down(const ck_mlp &a, const mlp_work &w, const ring &r, uint32_t row)
{
    rows_of_down o;
    uint32_t g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3, pitch = KIND == RANK_Q8 ? a.units : 2 * a.units,
             box = row / a.down_rows, turn = 0;
    o.row = row, o.fill = w.groups + box;
    uint32_t stage = o.fill;
    for (; stage >= r.n; turn++) stage -= r.n;
    o.gate = shared_at(r.full + stage), o.parity = turn & 1;
    o.low = shared_at(r.stages) + stage * r.bytes + (row - box * a.down_rows + g) * pitch + t * 16;
    uint32_t of = row_of_lane<KIND>(same_bank(pitch) ? g & 1 : 0);
    o.lane_row = of < 16 && row + of < w.rows ? row + of : RANK_NONE;
    asm volatile("" : "+r"(o.gate), "+r"(o.parity), "+r"(o.low), "+r"(o.lane_row)); /* now */
    return o;
}
/* How the lane multiplies them, and its word and what is added to it besides; own: of rank 0. */
struct end_of_down {
    second_lane lane;
    uint64_t *y;
    float besides;
};
template <int KIND>
__device__ __forceinline__ end_of_down end_down(const ck_mlp &a, const mlp_work &w, const unsigned char *hidden, const float *own,
                                                uint32_t scales, const rows_of_down &o)
{
    end_of_down e;
    bool has = o.lane_row != RANK_NONE;
    e.lane = second_of_lane<KIND>(shared_at(hidden), a.units, o.low,
                                  scales + (o.row + ((threadIdx.x & 31) >> 2)) * (a.units / 16));
    e.y = has ? a.y + w.block * w.rows + o.lane_row : nullptr;
    e.besides = has && !w.rank ? own[o.lane_row] : 0;
    /* now */
    asm volatile("" : "+r"(e.lane.x.at), "+r"(e.lane.x.other), "+r"(e.lane.x.is), "+r"(e.lane.k));
    asm volatile("" : "+r"(e.lane.low), "+r"(e.lane.high), "+r"(e.lane.turned));
    asm volatile("" : "+l"(e.y), "+f"(e.besides));
    return e;
}
/* The block's rows of down: a warp takes each eighth 16, and leaves all stages that are filled again. at: behind the first
 * product; again: some are. */
template <int KIND>
__device__ __forceinline__ void write_down(const ck_mlp &a, const mlp_work &w, const ring &r, ring_at at, bool again,
                                           const unsigned char *hidden, const float *own, uint32_t scales, rows_of_down &o,
                                           end_of_down &e)
{
    uint32_t fill = w.groups;
    while (o.row < w.rows) {
        for (; again && fill < o.fill && ring_again(r, at); fill++) leave_when_full(r, at);
        gate_wait_at(o.gate, o.parity);
        float v = second_sixteen<KIND>(e.lane).v;
        if (e.y) add_word(e.y, a.d, v + e.besides);
        uint32_t next = o.row + 16 * RANK_WARPS;
        if (next >= w.rows) break;
        o = find_down<KIND>(a, w, r, next);
        e = end_down<KIND>(a, w, hidden, own, scales, o);
    }
    while (again && ring_again(r, at)) leave_when_full(r, at);
}

template <int KIND, int P> __device__ __forceinline__ void mlp(const ck_mlp &a)
{
    constexpr bool HOLDS = P <= 2; /* has registers to hold a group */
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ uint64_t full[CK_RANK_STAGES], empty[CK_RANK_STAGES], x_gate, hidden_gate;
    __shared__ rank_stats stats;
    __shared__ float room[RANK_WARPS];
    const mlp_work w = work_of(a);
    const ring r = {memory, a.stage_bytes, a.stages, a.fills, a.ahead, full, empty};
    float *hs = reinterpret_cast<float *>(memory + a.stages * a.stage_bytes), *own = hs + whole_pairs(a.units),
          *scales = own + a.d / RANK, *xs = scales + (KIND == RANK_Q8 ? a.d / RANK * a.units / 64 : 0), *sums = xs;
    unsigned char *parts = reinterpret_cast<unsigned char *>(xs) + max(4 * a.d, w.groups * 16 * RANK_SUMS_PITCH * 4),
                  *hidden = parts;
    if (!a.late) dependents_may_start();
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
        if (threadIdx.x > RANK_OWNERS) return;
        bring_weights<KIND>(a, w, r);
        if (a.late) dependents_may_start();
        return;
    }
    norm_numbers<(P + 1) / 2> numbers;
    load_norm<KIND>(a.norm, a.d, numbers);
    if (KIND == RANK_Q8)
        bring_scales(shared_at(scales),
                     static_cast<const __half *>(a.down_scales.p) + w.block * w.rows * a.down_scales.pitch +
                         w.rank * a.units / 32,
                     a.down_scales.pitch, w.rows, a.units);
    own_x<P> x;
    ring_at at = {0, 0};
    const x_places from = places_of<KIND>(xs, &stats);
    const spreading to = spread_from(a.x, w.block, xs, &stats, &x_gate, own);
    unit_sending sent = sending_from(a, w, sums, hs, &hidden_gate);
    rows_of_down down = find_down<KIND>(a, w, r, 16 * (threadIdx.x >> 5));
    cluster_wait();
    held_group<HOLDS ? P : 1> held;
    if constexpr (HOLDS) hold_group<KIND, P>(r, at, a.d, room, held);
    if (!a.x.live) wait_for_inputs();
    spread_x<(P + 1) / 2>(to, a.norm.layer, a.down_bias ? a.down_bias + w.block * w.rows : nullptr);
    gate_wait(&x_gate, 0);
    ready_x<KIND, P>(a.norm, a.d, xs, from, numbers, parts, room, x);
    if constexpr (HOLDS) {
        uint32_t there = gate_over_at(shared_at(&r.full[at.stage]), at.turn & 1);
        held_rows<KIND, P>(held, x, sums);
        first_rows<KIND, P>(r, at, x, a.d, w.groups - 1, sums + 16 * RANK_SUMS_PITCH, there);
    } else {
        first_rows<KIND, P>(r, at, x, a.d, w.groups, sums);
    }
    consumers_meet();
    send_hidden(a, w, sent, sums);
    const four_hidden four = hidden_of_thread<KIND>(a.units, hs, hidden);
    end_of_down end = end_down<KIND>(a, w, hidden, own, shared_at(scales), down);
    uint32_t again = ring_again(r, at);
    asm volatile("" : "+r"(again)); /* now */
    gate_wait(&hidden_gate, 0);
    if (KIND == RANK_Q8) scales_arrived();
    hidden_parts<KIND>(four, hidden);
    write_down<KIND>(a, w, r, at, again, hidden, own, shared_at(scales), down, end);
    leave(a.x, a.clear);
}

#else
template <int KIND, int P> __device__ __forceinline__ void mlp(const ck_mlp &) {} /* no clusters: not launched */
#endif

#define MLP(NAME, KIND, P)                                                        \
    extern "C" __global__ void __launch_bounds__(CK_RANK_THREADS, P == 8 ? 1 : 2) \
        mlp_##NAME##_##P(const __grid_constant__ ck_mlp a)                        \
    {                                                                             \
        mlp<KIND, P>(a);                                                          \
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
