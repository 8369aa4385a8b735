/* k_linear.cu: a linear layer's mixer with one row of x, in one launch (k_rank.cuh): norm, projections, short convolution, the gated
 * delta rule, gated norm, out-projection and residual. Rank r has key head r and the value heads that share it; block j of it
 * numbers 16 j to 16 j + 15 of each head: these rows of q, k, v and z, and these columns of S. So q and k go to all blocks of
 * the rank, v and z stay where they are made, and what the rule gives out goes to all blocks again. a and b are done by each block.
 * SPDX-License-Identifier: MIT */
#include "k_rank.cuh"
#include "k_rule.cuh"

#if __CUDA_ARCH__ >= 900

#define PIECES(share) (4 + 4 * (share)) /* of q, k, v and z of a block, 8 rows each */
enum { WIDE = CK_LINEAR_WIDE, OWN = WIDE / RANK, LANE_ROWS = WIDE / 32 };
enum { GROUP_Q, GROUP_AB, GROUP_K, GROUP_V }; /* in the order of use; then z's, from GROUP_V + share on */

struct linear_work {
    uint32_t rank, block, rows; /* rows: of out */
};
/* Shared memory besides the ring: q and k, what the rule gives out and squares of it as they come; ... */
template <int SHARE> struct linear_few {
    alignas(16) float qk[2 * WIDE], us[SHARE * WIDE], squares[SHARE * 32];
    rank_stats stats;
    float room[RANK_WARPS];
    uint64_t full[CK_RANK_STAGES], empty[CK_RANK_STAGES], x_gate, ab_gate, qk_gate, u_gate;
};
struct linear_many { /* ... weights of a and b, and (Q8_0) scales of out; the block's columns of x; x in parts, later what the rule gives
                      * out in parts; x as it comes, later sums of the groups of rows */
    unsigned char *ab, *parts;
    float *own, *xs;
};

/* Eight rows of q, k, v or z: the piece of the ring. */
template <int KIND, int SHARE>
__device__ __forceinline__ void bring_piece(const ck_linear &a, const linear_work &w, uint32_t piece, unsigned char *to, uint64_t *gate)
{
    uint32_t g = piece / 2, v = g - 2, in = g < 2 ? g : v < SHARE ? CK_LINEAR_V : CK_LINEAR_Z,
             head = g < 2 ? w.rank : w.rank * SHARE + v % SHARE;
    bring_rows<KIND>(to, a.in[in], head * WIDE + w.block * OWN + piece % 2 * 8, 8, a.d, gate);
}
/* Weights in the order of use. */
template <int KIND, int SHARE>
__device__ __forceinline__ void bring_weights(const ck_linear &a, const linear_work &w, unsigned char *ab, const ring &r,
                                              uint64_t *ab_gate)
{
    constexpr uint32_t WIDTH = SHARE * WIDE * (KIND == RANK_Q8 ? 1 : 2); /* bytes of a row of out */
    ring_in in = {};
    uint32_t few = rows_bytes<KIND>(SHARE, a.d); /* bytes of the rows of a, and of b */
#pragma unroll 1
    for (uint32_t i = 0; i < r.fills; i++) {
        if (i == 2) {
            gate_expect(ab_gate, 2 * few);
            bring_rows<KIND>(ab, a.in[CK_LINEAR_A], w.rank * SHARE, SHARE, a.d, ab_gate);
            bring_rows<KIND>(ab + few, a.in[CK_LINEAR_B], w.rank * SHARE, SHARE, a.d, ab_gate);
        }
        if (i < PIECES(SHARE)) {
            unsigned char *to = ring_free(r, in, rows_bytes<KIND>(8, a.d));
            if (i % 2) to += second_eight<KIND>(a.d) - rows_bytes<KIND>(8, a.d);
            bring_piece<KIND, SHARE>(a, w, i, to, &r.full[in.at.stage]);
            ring_next(r, in.at);
        } else {
            ring_bring_box(r, in, a.out, w.rank * (WIDTH / 4), w.block * w.rows + (i - PIECES(SHARE)) * a.out_rows, a.out_rows * WIDTH);
        }
    }
}

/* A channel of the short convolution: what is known of its sum before its newest entry x is: sum = rest + newest x; the last two. */
struct channel {
    float rest, newest, last[2];
};
__device__ __forceinline__ void load_channel(const ck_linear &a, uint32_t at, channel &c)
{
    uint32_t past = a.conv.taps - 1;
    const float *memory = static_cast<const float *>(a.pass.slots[a.conv.slot]) + at, *w = a.conv.weight + at * a.conv.taps;
    float m[CK_LINEAR_TAPS];
    c.rest = a.conv.bias ? a.conv.bias[at] : 0;
    c.newest = w[past];
#pragma unroll
    for (int i = CK_LINEAR_TAPS - 1; i; i--) {
        m[i] = i <= past ? memory[(past - i) * a.conv.width] : 0;
        c.rest += i <= past ? w[past - i] * m[i] : 0;
    }
    c.last[0] = m[1], c.last[1] = m[2];
}
/* keep: where the memory of channel `at` is moved on, or NULL. */
__device__ __forceinline__ float convolved(const ck_linear &a, const channel &c, float x, float *keep, uint32_t at)
{
    uint32_t past = a.conv.taps - 1;
    float sum = fmaf(c.newest, x, c.rest);
#pragma unroll
    for (int m = 1; m < CK_LINEAR_TAPS; m++)
        if (keep && m <= past) keep[(past - m) * a.conv.width + at] = m == 1 ? x : c.last[m - 2];
    return sum * sigmoid_short(sum);
}

__device__ __forceinline__ uint32_t qk_channel(const ck_linear &a, const linear_work &w)
{
    uint32_t lane = threadIdx.x & 31;
    return a.conv.at[lane / 16] + w.rank * WIDE + w.block * OWN + lane % 16;
}

/* The sum over the warps of a row of a group, eight lanes a row. */
__device__ __forceinline__ float sum_by_eight(const float *sums, uint32_t group, uint32_t row)
{
    const float *at = sums + (group * 16 + row) * RANK_SUMS_PITCH + 2 * (threadIdx.x & 7);
    float v = at[0] + at[1];
    v += __shfl_xor_sync(0xffffffffu, v, 1);
    v += __shfl_xor_sync(0xffffffffu, v, 2);
    return v + __shfl_xor_sync(0xffffffffu, v, 4);
}

/* What a warp has of the delta rule: four columns of one head's S; a lane: rows lane + 32 r, and column `own`, eight lanes each. */
struct rule_part {
    float4 S[LANE_ROWS];
    float k[LANE_ROWS], beta, of_k, of_q, kq;
    channel qk, v;
    float rate, dt, weight;
    uint32_t at, head, own; /* of S in the slot, with the lane's first row; of the rank; of the head */
};
template <int SHARE> __device__ __forceinline__ uint32_t v_channel(const ck_linear &a, const linear_work &w, const rule_part &p)
{
    return a.conv.at[2] + (w.rank * SHARE + p.head) * WIDE + p.own;
}
template <int SHARE> __device__ __forceinline__ void load_part(const ck_linear &a, const linear_work &w, rule_part &p)
{
    uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    p.head = warp / 4 % SHARE;
    uint32_t head = w.rank * SHARE + p.head, column = w.block * OWN + warp % 4 * 4;
    p.own = column + lane / 8;
    p.at = (head * WIDE + lane) * WIDE + column;
    load_channel(a, qk_channel(a, w), p.qk);
    load_channel(a, v_channel<SHARE>(a, w, p), p.v);
    p.rate = a.is_log ? -expf(a.decay[head]) : a.decay[head];
    p.dt = a.dt[head];
    p.weight = (a.gated.weight ? a.gated.weight[p.own] : 1) + (a.gated.plus_one && a.gated.weight ? 1.0f : 0.0f);
}

/* Sums of q, k, a and b are there: q and k go to all blocks, a warp a block; then what the rule can do without v. */
template <int SHARE>
__device__ __forceinline__ void begin_rule(const ck_linear &a, const linear_work &w, linear_few<SHARE> &few, const float *sums,
                                           rule_part &p, float *keep)
{
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    float x = whole_sum(sums, lane < 16 ? GROUP_Q * 16 + lane : GROUP_K * 16 + lane - 16);
    x = convolved(a, p.qk, x, warp ? nullptr : keep, qk_channel(a, w));
    send(x, few.qk + lane / 16 * WIDE + w.block * OWN + lane % 16, &few.qk_gate, warp);
    if (warp >= 4 * SHARE) return;
    p.beta = sigmoid_short(sum_by_eight(sums, GROUP_AB, 8 + p.head));
    float decay = expf(p.rate * softplus(sum_by_eight(sums, GROUP_AB, p.head) + p.dt)), q[LANE_ROWS];
    gate_wait(&few.qk_gate, 0);
#pragma unroll
    for (int r = 0; r < LANE_ROWS; r++) q[r] = few.qk[lane + 32 * r], p.k[r] = few.qk[WIDE + lane + 32 * r];
    p.kq = scale_row<LANE_ROWS>(q, p.k, WIDE, a.l2_eps);
    decay_state<LANE_ROWS>(p.S, decay, q, p.k, p.of_k, p.of_q);
}

/* Sums of v and z are there: what the rule gives out, gated, goes to all blocks: lane 8 j + i has column j for block i. */
template <int SHARE>
__device__ __forceinline__ void end_rule(const ck_linear &a, const linear_work &w, linear_few<SHARE> &few, const float *sums, rule_part &p,
                                         float *keep, float *after)
{
    uint32_t lane = threadIdx.x & 31, to = lane & 7, row = p.own % OWN;
    float z = sum_by_eight(sums, GROUP_V + SHARE + p.head, row), v = sum_by_eight(sums, GROUP_V + p.head, row);
    v = convolved(a, p.v, v, to ? nullptr : keep, v_channel<SHARE>(a, w, p));
    z *= sigmoid_short(z) * p.weight;
    float d = p.beta * (v - p.of_k), o = fmaf(p.kq, d, p.of_q), squares = o * o;
    send(o * z, few.us + p.head * WIDE + p.own, &few.u_gate, to);
    squares += __shfl_xor_sync(0xffffffffu, squares, 8);
    squares += __shfl_xor_sync(0xffffffffu, squares, 16);
    if (lane < 8) send(squares, few.squares + p.head * 32 + p.own / 4, &few.u_gate, to);
    if (!after) return;
    add_outer<LANE_ROWS>(p.S, p.k, d);
#pragma unroll
    for (int r = 0; r < LANE_ROWS; r++) *reinterpret_cast<float4 *>(after + p.at + 32 * r * WIDE) = p.S[r];
}

/* All groups of rows of the first product, with the first step of the rule between them. */
template <int KIND, int P, int SHARE>
__device__ __forceinline__ void project(const ck_linear &a, const linear_work &w, linear_few<SHARE> &few, float *sums, uint32_t ab,
                                        const ring &r, ring_at &at, const own_x<P> &x, rule_part &p, float *keep)
{
#pragma unroll 1
    for (uint32_t g = 0; g < GROUP_V + 2 * SHARE; g++) {
        uint32_t low = ab, high = low + rows_bytes<KIND>(SHARE, a.d), n = SHARE;
        ring_at first = at;
        if (g == GROUP_V) {
            consumers_meet();
            begin_rule<SHARE>(a, w, few, sums, p, keep);
        }
        if (g == GROUP_AB) {
            gate_wait(&few.ab_gate, 0);
        } else {
            low = ring_full(r, at);
            ring_next(r, at);
            high = ring_full(r, at) + second_eight<KIND>(a.d) - rows_bytes<KIND>(8, a.d);
            n = 8;
        }
        first_group<KIND, P>(x, a.d, low, n, high, n, sums + g * 16 * RANK_SUMS_PITCH);
        if (g == GROUP_AB) continue;
        ring_leave(r, first);
        ring_leave(r, at);
        ring_next(r, at);
    }
    consumers_meet();
}

/* What the rule gave out has arrived: normalised, into parts; a warp a head. */
template <int KIND, int SHARE>
__device__ __forceinline__ void hidden_parts(const ck_linear &a, const linear_few<SHARE> &few, unsigned char *parts)
{
    uint32_t lane = threadIdx.x & 31, head = threadIdx.x >> 5, c = 4 * threadIdx.x;
    if (head < SHARE) {
        float4 v = four_at(few.us, c);
        float inverse = rsqrtf(warp_sum(few.squares[head * 32 + lane]) / WIDE + a.gated.eps);
        v.x *= inverse, v.y *= inverse, v.z *= inverse, v.w *= inverse;
        put_hidden<KIND>(parts, SHARE * WIDE, c, v);
    }
    consumers_meet();
}

template <int KIND, int P, int SHARE> __device__ __forceinline__ void linear(const ck_linear &a)
{
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ linear_few<SHARE> few;
    const linear_work w = {blockIdx.x / RANK, cluster_block(), a.d / RANK};
    const uint32_t fills = PIECES(SHARE) + (w.rows + a.out_rows - 1) / a.out_rows;
    const ring r = {memory, a.stage_bytes, a.stages, fills, fills, few.full, few.empty};
    linear_many m;
    m.ab = memory + a.stages * a.stage_bytes;
    m.own = reinterpret_cast<float *>(m.ab + 4 * SHARE * a.d);
    m.parts = reinterpret_cast<unsigned char *>(m.own + a.d / RANK);
    m.xs = reinterpret_cast<float *>(m.parts + PARTS * parts_pitch(a.d));
    dependents_may_start();
    if (threadIdx.x == RANK_OWNERS) {
        ring_open(r);
        gate_open(&few.x_gate, 1);
        gate_open(&few.ab_gate, 1);
        gate_open(&few.qk_gate, 1);
        gate_open(&few.u_gate, 1);
        gates_opened();
        gate_expect(&few.x_gate, 4 * a.d + sizeof few.stats);
        gate_expect(&few.qk_gate, sizeof few.qk);
        gate_expect(&few.u_gate, sizeof few.us + sizeof few.squares);
    }
    __syncthreads();
    cluster_arrive();
    if (threadIdx.x >= RANK_OWNERS) {
        if (threadIdx.x == RANK_OWNERS) bring_weights<KIND, SHARE>(a, w, m.ab, r, &few.ab_gate);
        __syncwarp();
        cluster_wait();
        return;
    }
    ck_norm norm = a.norm;
    norm.bias = nullptr, norm.layer = 0;
    norm_numbers<P / 2> numbers;
    load_norm<KIND>(norm, a.d, numbers);
    /* S and what the convolution remembers were written by earlier passes: no need to wait. */
    rule_part p;
    load_part<SHARE>(a, w, p);
    bool stopped = a.pass.head->stopped;
    const float *before = static_cast<const float *>(a.pass.slots[a.slot]) + p.at;
    float *keep = stopped ? nullptr : static_cast<float *>(a.pass.slots_out[a.conv.slot]),
          *after = stopped ? nullptr : static_cast<float *>(a.pass.slots_out[a.slot]);
    asm volatile("" : "+l"(keep), "+l"(after)); /* now */
    ring_at at = {0, 0};
    uint32_t scales = shared_at(m.ab) + 2 * rows_bytes<KIND>(SHARE, a.d);
    if (KIND == RANK_Q8)
        bring_scales(scales, static_cast<const __half *>(a.out_scales.p) + w.block * w.rows * a.out_scales.pitch + w.rank * SHARE * (WIDE / 32),
                     a.out_scales.pitch, w.rows, SHARE * WIDE);
    own_x<P> x;
    const x_places from = places_of<KIND>(m.xs, &few.stats);
    const spreading to = spread_from(a.x, w.block, m.xs, &few.stats, &few.x_gate, m.own);
    cluster_wait();
    if (!a.x.live) wait_for_inputs();
    spread_x<P / 2>(to, 0, a.out_bias ? a.out_bias + w.block * w.rows : nullptr);
    gate_wait(&few.x_gate, 0);
    ready_x<KIND, P>(norm, a.d, m.xs, from, numbers, m.parts, few.room, x);
#pragma unroll
    for (int i = 0; i < LANE_ROWS; i++) p.S[i] = threadIdx.x < 128 * SHARE ? four_at(before, 32 * i * WIDE) : make_float4(0, 0, 0, 0);
    project<KIND, P, SHARE>(a, w, few, m.xs, shared_at(m.ab), r, at, x, p, keep);
    if (threadIdx.x < 128 * SHARE) end_rule<SHARE>(a, w, few, m.xs, p, keep, after);
    if (KIND == RANK_Q8) scales_arrived();
    gate_wait(&few.u_gate, 0);
    hidden_parts<KIND, SHARE>(a, few, m.parts);
    write_rows<KIND>(r, at, m.parts, SHARE * WIDE, a.out_rows, w.rows, a.y + w.block * w.rows, a.d, w.rank ? nullptr : m.own,
                     scales);
    leave(a.x, a.clear);
}

#else
template <int KIND, int P, int SHARE> __device__ __forceinline__ void linear(const ck_linear &) {} /* no clusters: not launched */
#endif

#define LINEAR(NAME, KIND, P)                                                    \
    extern "C" __global__ void __launch_bounds__(CK_RANK_THREADS, P == 8 ? 1 : 2) \
        linear_##NAME##_##P(const __grid_constant__ ck_linear a)                 \
    {                                                                            \
        linear<KIND, P, P == 8 ? 2 : 1>(a);                                      \
    }
LINEAR(f16, 0, 2)
LINEAR(f16, 0, 4)
LINEAR(f16, 0, 8)
LINEAR(bf16, 1, 2)
LINEAR(bf16, 1, 4)
LINEAR(bf16, 1, 8)
LINEAR(q8, RANK_Q8, 2)
LINEAR(q8, RANK_Q8, 4)
LINEAR(q8, RANK_Q8, 8)
