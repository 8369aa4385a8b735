/* k_linear.cu: a linear layer's mixer with one row of x, in one launch (k_cluster_ops.cuh): norm, projections, short convolution, the
 * gated delta rule, gated norm, out-projection and residual. Rank r has key head r and the value heads that share it; block j of
 * it numbers 16 j to 16 j + 15 of each head: these rows of q, k, v and z, and these columns of S. So q and k go to all blocks of
 * the rank, v and z stay where they are made, and what the rule gives out goes to all blocks again. a and b, a row or two each,
 * are done by each block. SPDX-License-Identifier: MIT */
#include "k_cluster_ops.cuh"
#include "k_rule.cuh"

#if __CUDA_ARCH__ >= 900

#define PIECES(share) (4 + 4 * (share)) /* of q, k, v and z of a block, 8 rows each */
enum { WIDE = CK_LINEAR_WIDE, OWN = WIDE / RANK, LANE_ROWS = WIDE / 32 };
enum { GROUP_Q, GROUP_K, GROUP_V }; /* in the order of use; then z's, from GROUP_V + share on */

struct linear_work {
    uint32_t rank, block, rows; /* rows: of out */
};
/* Shared memory besides the ring: q and k, what the rule gives out (gated, and its square) as they come; ... */
template <int SHARE> struct linear_few {
    alignas(16) float qk[2 * WIDE];
    alignas(16) float2 us[SHARE * WIDE];
    rank_stats stats;
    float room[RANK_WARPS];
    uint64_t full[CK_RANK_STAGES], empty[CK_RANK_STAGES], x_gate, qk_gate, u_gate;
};
/* ... what each thread has of a and b; (Q8_0) scales of out; the block's columns of x; x in parts, later what the rule gives out
 * in parts; x as it comes, later sums of the groups of rows */
struct linear_many {
    float2 *ab; /* [head][thread] */
    unsigned char *scales, *parts;
    float *own, *xs, *state; /* state: the block's columns of S */
};

/* Eight rows of q, k, v or z: the piece of the ring. */
template <int KIND, int SHARE>
__device__ __forceinline__ void bring_piece(const ck_linear &a, const linear_work &w, uint32_t piece, unsigned char *to,
                                            uint64_t *gate)
{
    uint32_t g = piece / 2, v = g - 2, in = g < 2 ? g : v < SHARE ? CK_LINEAR_V : CK_LINEAR_Z,
             head = g < 2 ? w.rank : w.rank * SHARE + v % SHARE;
    bring_rows<KIND>(to, a.in[in], head * WIDE + w.block * OWN + piece % 2 * 8, 8, a.d, gate);
}
/* Weights in the order of use. */
template <int KIND, int SHARE>
__device__ __forceinline__ void bring_weights(const ck_linear &a, const linear_work &w, const ring &r)
{
    constexpr uint32_t WIDTH = SHARE * WIDE * (KIND == RANK_Q8 ? 1 : 2); /* bytes of a row of out */
    ring_in in = {};
#pragma unroll 1
    for (uint32_t i = 0; i < r.fills; i++) {
        if (i < PIECES(SHARE)) {
            unsigned char *to = ring_free(r, in, rows_bytes<KIND>(8, a.d));
            if (i % 2) to += second_eight<KIND>(a.d) - rows_bytes<KIND>(8, a.d);
            bring_piece<KIND, SHARE>(a, w, i, to, &r.full[in.at.stage]);
            ring_next(r, in.at);
        } else {
            ring_bring_box(r, in, a.out, w.rank * (WIDTH / 4), w.block * w.rows + (i - PIECES(SHARE)) * a.out_rows,
                           a.out_rows * WIDTH);
        }
    }
}

/* A channel of the short convolution: what is known of its sum before its newest entry x is: sum = rest + newest x; the last two;
 * x. */
struct channel {
    float rest, newest, last[2], x;
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
/* Times weight. */
__device__ __forceinline__ float convolved(channel &c, float x, float weight)
{
    float sum = fmaf(c.newest, x, c.rest);
    c.x = x;
    return sum * (sigmoid_short(sum) * weight);
}
/* Its memory is moved on. */
__device__ __forceinline__ void keep_channel(const ck_linear &a, const channel &c, float *memory, uint32_t at)
{
    uint32_t past = a.conv.taps - 1;
#pragma unroll
    for (int m = 1; m < CK_LINEAR_TAPS; m++)
        if (m <= past) memory[(past - m) * a.conv.width + at] = m == 1 ? c.x : c.last[m - 2];
}

/* Rows of a and b are few: they are multiplied as they are by the threads that make x ready, each its own columns (own_column).
 * Four weights: of Q8_0 with their scale. */
template <int KIND> __device__ __forceinline__ uint2 four_weights(const ck_rank_weight &w, uint32_t d, uint32_t row, uint32_t c)
{
    const unsigned char *at = row_at(w, row);
    if (KIND != RANK_Q8) return __ldg(reinterpret_cast<const uint2 *>(at + 2 * c));
    float scale = __half2float(static_cast<const __half *>(w.scales)[(row * d + c) / 32]);
    return make_uint2(__ldg(reinterpret_cast<const uint32_t *>(at + c)), __float_as_uint(scale));
}
template <int KIND> __device__ __forceinline__ float times_four(uint2 w, float4 v)
{
    const float4 f = piece_plane<KIND == RANK_Q8 ? CK_Q8 : KIND ? CK_BF16 : CK_F16>(make_uint4(w.x, w.y, 0, 0), 0);
    float sum = f.x * v.x + f.y * v.y + (f.z * v.z + f.w * v.w);
    return KIND == RANK_Q8 ? sum * __uint_as_float(w.y) : sum;
}
template <int SHARE, int M> struct ab_weights {
    uint2 a[SHARE][M], b[SHARE][M];
};
template <int KIND, int SHARE, int M>
__device__ __forceinline__ void load_ab(const ck_linear &a, const linear_work &w, ab_weights<SHARE, M> &o)
{
#pragma unroll
    for (int h = 0; h < SHARE; h++)
#pragma unroll
        for (int m = 0; m < M; m++) {
            uint32_t c = own_column<KIND>(m), row = w.rank * SHARE + h;
            o.a[h][m] = o.b[h][m] = make_uint2(0, 0);
            if (c >= a.d) continue;
            o.a[h][m] = four_weights<KIND>(a.in[CK_LINEAR_A], a.d, row, c);
            o.b[h][m] = four_weights<KIND>(a.in[CK_LINEAR_B], a.d, row, c);
        }
}
template <int KIND, int SHARE, int M>
__device__ __forceinline__ void put_ab(const ab_weights<SHARE, M> &w, const float4 (&v)[M], float2 *ab)
{
#pragma unroll
    for (int h = 0; h < SHARE; h++) {
        float2 s = make_float2(0, 0);
#pragma unroll
        for (int m = 0; m < M; m++) s.x += times_four<KIND>(w.a[h][m], v[m]), s.y += times_four<KIND>(w.b[h][m], v[m]);
        ab[h * RANK_OWNERS + threadIdx.x] = s;
    }
}
/* a and b of a head. */
__device__ __forceinline__ float2 sums_of_ab(const float2 *ab, float late)
{
    float2 v = make_float2(0, 0);
#pragma unroll
    for (int i = 0; i < RANK_OWNERS; i += 64) {
        float4 two = *reinterpret_cast<const float4 *>(ab + i + 2 * (threadIdx.x & 31));
        v.x += two.x + two.z, v.y += two.y + two.w;
    }
    return make_float2(warp_sum(v.x) * late, warp_sum(v.y) * late);
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

/* What a warp has of the delta rule: of each of the rank's heads two columns, eight lanes of each half of the warp one of them,
 * `own`. The first half ends v, and has S^T k, the second one z and what the rule gives out, and S^T q. */
struct rule_head {
    float2 S[LANE_ROWS]; /* a lane: rows lane + 32 r */
    channel in;          /* of v; z stays as it is */
    float beta, rate, dt, of;
};
template <int SHARE> struct rule_part {
    rule_head heads[SHARE];
    channel qk; /* a lane: row lane % 16 of q, or k */
    float k[LANE_ROWS], kq, weight;
    uint32_t own;
};
__device__ __forceinline__ bool has_z() { return threadIdx.x & 16; }
__device__ __forceinline__ uint32_t qk_channel(const ck_linear &a, const linear_work &w)
{
    uint32_t lane = threadIdx.x & 31;
    return a.conv.at[lane / 16] + w.rank * WIDE + w.block * OWN + lane % 16;
}
/* Column c of the rank's head h, of all. */
template <int SHARE> __device__ __forceinline__ uint32_t v_column(const linear_work &w, int h, uint32_t c)
{
    return (w.rank * SHARE + h) * WIDE + c;
}
template <int SHARE> __device__ __forceinline__ void load_part(const ck_linear &a, const linear_work &w, rule_part<SHARE> &p)
{
    uint32_t lane = threadIdx.x & 31;
    p.own = w.block * OWN + (threadIdx.x >> 5) * 2 + lane / 8 % 2;
    load_channel(a, qk_channel(a, w), p.qk);
    p.weight = 1;
    if (has_z() && a.gated.weight) p.weight = a.gated.weight[p.own] + (a.gated.plus_one ? 1.0f : 0.0f);
#pragma unroll
    for (int h = 0; h < SHARE; h++) {
        rule_head &o = p.heads[h];
        uint32_t head = w.rank * SHARE + h;
        o.in = channel{0, 1};
        if (!has_z()) load_channel(a, a.conv.at[2] + v_column<SHARE>(w, h, p.own), o.in);
        o.rate = a.is_log ? -expf(a.decay[head]) : a.decay[head];
        o.dt = a.dt[head];
    }
}

/* The block's columns of S, of all of the rank's heads: here, rows a few banks apart; there, whole sectors at once. A thread has
 * a pair of each 32nd row. */
enum { STATE_PITCH = CK_LINEAR_STATE_PITCH / 4, ROWS_AT_ONCE = RANK_OWNERS / (OWN / 2) };
__device__ __forceinline__ uint32_t state_here() { return threadIdx.x / (OWN / 2) * STATE_PITCH + threadIdx.x % (OWN / 2) * 2; }
__device__ __forceinline__ uint32_t state_there(const linear_work &w, uint32_t share)
{
    return (w.rank * share * WIDE + threadIdx.x / (OWN / 2)) * WIDE + w.block * OWN + threadIdx.x % (OWN / 2) * 2;
}
template <int SHARE> __device__ __forceinline__ void bring_state(const linear_work &w, const float *from, float *to)
{
    uint32_t here = shared_at(to + state_here());
    from += state_there(w, SHARE);
#pragma unroll
    for (int i = 0; i < SHARE * WIDE / ROWS_AT_ONCE; i++)
        copy_eight(here + i * ROWS_AT_ONCE * STATE_PITCH * 4, from + i * ROWS_AT_ONCE * WIDE);
}
template <int SHARE> __device__ __forceinline__ void keep_state(const linear_work &w, const float *from, float *to)
{
    from += state_here(), to += state_there(w, SHARE);
#pragma unroll
    for (int i = 0; i < SHARE * WIDE / ROWS_AT_ONCE; i++)
        *reinterpret_cast<float2 *>(to + i * ROWS_AT_ONCE * WIDE) =
            *reinterpret_cast<const float2 *>(from + i * ROWS_AT_ONCE * STATE_PITCH);
}
/* A lane's first pair of a head's. */
__device__ __forceinline__ float *own_state(float *state, int h)
{
    return state + (h * WIDE + (threadIdx.x & 31)) * STATE_PITCH + (threadIdx.x >> 5) * 2;
}

/* Sums of q and k are there: they go to all blocks, a warp a block; then what the rule can do without them. late: own_x's. */
template <int SHARE>
__device__ __forceinline__ void begin_rule(const ck_linear &a, const linear_work &w, linear_few<SHARE> &few, const linear_many &m,
                                           float late, rule_part<SHARE> &p)
{
    uint32_t lane = threadIdx.x & 31;
    float x = whole_sum(m.xs, lane < 16 ? GROUP_Q * 16 + lane : GROUP_K * 16 + lane - 16);
    send(convolved(p.qk, x, 1), few.qk + lane / 16 * WIDE + w.block * OWN + lane % 16, &few.qk_gate, threadIdx.x >> 5);
#pragma unroll
    for (int h = 0; h < SHARE; h++) {
        rule_head &o = p.heads[h];
        float2 ab = sums_of_ab(m.ab + h * RANK_OWNERS, late);
#pragma unroll
        for (int r = 0; r < LANE_ROWS; r++)
            o.S[r] = *reinterpret_cast<const float2 *>(own_state(m.state, h) + 32 * r * STATE_PITCH);
        o.beta = sigmoid_short(ab.y);
        decay_state<LANE_ROWS>(o.S, expf(o.rate * softplus(ab.x + o.dt)));
    }
}
/* q and k have arrived: what the rule can do with them. */
template <int SHARE> __device__ __forceinline__ void follow_rule(const ck_linear &a, linear_few<SHARE> &few, rule_part<SHARE> &p)
{
    uint32_t lane = threadIdx.x & 31;
    float q[LANE_ROWS];
    gate_wait(&few.qk_gate, 0);
#pragma unroll
    for (int r = 0; r < LANE_ROWS; r++) q[r] = few.qk[lane + 32 * r], p.k[r] = few.qk[WIDE + lane + 32 * r];
    p.kq = scale_row<LANE_ROWS>(q, p.k, WIDE, a.l2_eps);
#pragma unroll
    for (int h = 0; h < SHARE; h++) p.heads[h].of = of_state<LANE_ROWS>(p.heads[h].S, q, p.k);
}

/* Sums of v and z are there: what the rule gives out, gated, goes to all blocks with its square: the last three bits of a lane
 * say which. */
template <int SHARE> __device__ __forceinline__ void end_rule(linear_few<SHARE> &few, const linear_many &m, rule_part<SHARE> &p)
{
    uint32_t block = threadIdx.x & 7, to = there(shared_at(few.us + p.own), block), gate = there(shared_at(&few.u_gate), block);
#pragma unroll
    for (int h = 0; h < SHARE; h++) {
        rule_head &o = p.heads[h];
        float x = convolved(o.in, sum_by_eight(m.xs, GROUP_V + h + (has_z() ? SHARE : 0), p.own % OWN), p.weight),
              d = o.beta * (x - o.of), d0 = __shfl_sync(0xffffffffu, d, 0), d1 = __shfl_sync(0xffffffffu, d, 8);
        float u = fmaf(p.kq, p.own % 2 ? d1 : d0, o.of);
        if (has_z()) send_two_to(u * x, u * u, to + h * WIDE * sizeof *few.us, gate);
        add_outer<LANE_ROWS>(o.S, p.k, d0, d1);
#pragma unroll
        for (int r = 0; r < LANE_ROWS; r++) *reinterpret_cast<float2 *>(own_state(m.state, h) + 32 * r * STATE_PITCH) = o.S[r];
    }
}
/* What this step leaves to the next ones: memory of the convolution, S. */
template <int SHARE>
__device__ __forceinline__ void keep_part(const ck_linear &a, const linear_work &w, const rule_part<SHARE> &p, const float *S,
                                          float *memory, float *state)
{
    if (threadIdx.x < 32) keep_channel(a, p.qk, memory, qk_channel(a, w));
#pragma unroll
    for (int h = 0; h < SHARE; h++)
        if (!(threadIdx.x & 23)) keep_channel(a, p.heads[h].in, memory, a.conv.at[2] + v_column<SHARE>(w, h, p.own));
    keep_state<SHARE>(w, S, state);
}

/* All groups of rows of the first product, with the first steps of the rule between them. Rows of Q8_0 are there by then: q and k
 * are on their way while those of v and z are multiplied. Of 16 bits those are awaited, and the rule goes first. */
template <int KIND, int P, int SHARE>
__device__ __forceinline__ void project(const ck_linear &a, const linear_work &w, linear_few<SHARE> &few, const linear_many &m,
                                        const ring &r, ring_at &at, const own_x<P> &x, rule_part<SHARE> &p)
{
    constexpr uint32_t ALL = GROUP_V + 2 * SHARE, FOLLOW = KIND == RANK_Q8 ? ALL : GROUP_V;
#pragma unroll 1
    for (uint32_t g = 0; g < ALL; g++) {
        ring_at first = at;
        if (g == GROUP_V) {
            consumers_meet();
            begin_rule<SHARE>(a, w, few, m, x.late, p);
        }
        if (g == FOLLOW) follow_rule<SHARE>(a, few, p);
        uint32_t low = ring_full(r, at);
        ring_next(r, at);
        uint32_t high = ring_full(r, at) + second_eight<KIND>(a.d) - rows_bytes<KIND>(8, a.d);
        first_group<KIND, P>(x, a.d, low, high, m.xs + g * 16 * RANK_SUMS_PITCH);
        ring_leave(r, first);
        ring_leave(r, at);
        ring_next(r, at);
    }
    if (FOLLOW == ALL) follow_rule<SHARE>(a, few, p);
    consumers_meet();
}

/* What the rule gave out has arrived: normalised, into parts; a warp a head. */
template <int KIND, int SHARE>
__device__ __forceinline__ void hidden_parts(const ck_linear &a, const linear_few<SHARE> &few, unsigned char *parts)
{
    uint32_t head = threadIdx.x >> 5, c = 4 * threadIdx.x;
    if (head < SHARE) {
        float4 low = *reinterpret_cast<const float4 *>(few.us + c), high = *reinterpret_cast<const float4 *>(few.us + c + 2);
        float inverse = rsqrtf(warp_sum(low.y + low.w + (high.y + high.w)) / WIDE + a.gated.eps);
        put_hidden<KIND>(parts, SHARE * WIDE, c,
                         make_float4(low.x * inverse, low.z * inverse, high.x * inverse, high.z * inverse));
    }
    consumers_meet();
}

template <int KIND, int P, int SHARE> __device__ __forceinline__ void linear(const ck_linear &a)
{
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ linear_few<SHARE> few;
    const linear_work w = {blockIdx.x / RANK, cluster_block(), a.d / RANK};
    const uint32_t fills = PIECES(SHARE) + (w.rows + a.out_rows - 1) / a.out_rows;
    const ring r = {memory, a.stage_bytes, a.stages, fills, a.ahead, few.full, few.empty};
    linear_many m;
    m.ab = reinterpret_cast<float2 *>(memory + a.stages * a.stage_bytes);
    m.scales = reinterpret_cast<unsigned char *>(m.ab + SHARE * RANK_OWNERS);
    m.own = reinterpret_cast<float *>(m.scales + SHARE * a.d);
    m.parts = reinterpret_cast<unsigned char *>(m.own + a.d / RANK);
    m.xs = reinterpret_cast<float *>(m.parts + PARTS * parts_pitch(a.d));
    m.state = m.xs + CK_LINEAR_FIRST(a.d, SHARE) / 4;
    if (!a.late) dependents_may_start();
    if (threadIdx.x == RANK_OWNERS) {
        ring_open(r);
        gate_open(&few.x_gate, 1);
        gate_open(&few.qk_gate, 1);
        gate_open(&few.u_gate, 1);
        gates_opened();
        gate_expect(&few.x_gate, 4 * a.d + sizeof few.stats);
        gate_expect(&few.qk_gate, sizeof few.qk);
        gate_expect(&few.u_gate, sizeof few.us);
    }
    __syncthreads();
    cluster_arrive();
    if (threadIdx.x >= RANK_OWNERS) {
        if (threadIdx.x > RANK_OWNERS) return;
        bring_weights<KIND, SHARE>(a, w, r);
        if (a.late) dependents_may_start();
        return;
    }
    ck_norm norm = a.norm;
    norm.bias = nullptr, norm.layer = 0;
    norm_numbers<P / 2> numbers;
    load_norm<KIND>(norm, a.d, numbers);
    /* S and what the convolution remembers were written by earlier passes: no need to wait. */
    rule_part<SHARE> p;
    load_part<SHARE>(a, w, p);
    bring_state<SHARE>(w, static_cast<const float *>(a.pass.slots[a.slot]), m.state);
    bool keeps = !a.pass.head->stopped;
    float *memory_after = static_cast<float *>(a.pass.slots_out[a.conv.slot]),
          *state_after = static_cast<float *>(a.pass.slots_out[a.slot]);
    asm volatile("" : "+l"(memory_after), "+l"(state_after)); /* now */
    ring_at at = {0, 0};
    uint32_t scales = shared_at(m.scales);
    if (KIND == RANK_Q8)
        bring_scales(scales,
                     static_cast<const __half *>(a.out_scales.p) + w.block * w.rows * a.out_scales.pitch +
                         w.rank * SHARE * (WIDE / 32),
                     a.out_scales.pitch, w.rows, SHARE * WIDE);
    ab_weights<SHARE, P / 2> ab;
    load_ab<KIND, SHARE>(a, w, ab);
    own_x<P> x;
    float4 v[P / 2];
    const x_places from = places_of<KIND>(m.xs, &few.stats);
    const spreading to = spread_from(a.x, w.block, m.xs, &few.stats, &few.x_gate, m.own);
    cluster_wait();
    if (!a.x.live) wait_for_inputs();
    spread_x<P / 2>(to, 0, a.out_bias ? a.out_bias + w.block * w.rows : nullptr);
    gate_wait(&few.x_gate, 0);
    ready_x<KIND, P>(norm, a.d, m.xs, from, numbers, m.parts, few.room, x, v);
    put_ab<KIND, SHARE>(ab, v, m.ab);
    copies_arrived();
    project<KIND, P, SHARE>(a, w, few, m, r, at, x, p);
    end_rule<SHARE>(few, m, p);
    gate_wait(&few.u_gate, 0);
    hidden_parts<KIND, SHARE>(a, few, m.parts);
    write_rows<KIND>(r, at, m.parts, SHARE * WIDE, a.out_rows, w.rows, a.y + w.block * w.rows, a.d, w.rank ? nullptr : m.own,
                     scales);
    /* What is stored behind the sums is not in their way. */
    if (keeps) keep_part<SHARE>(a, w, p, m.state, memory_after, state_after);
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
