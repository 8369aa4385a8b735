/* k_linear.cu: the linear-attention block of a layer (gated delta rule) for one row of x, fused into
 * one launch (helpers: k_cluster_ops.cuh, k_rule.cuh): RMS norm, projections, short convolution,
 * delta rule, gated norm, out-projection, residual. Host: chosen by cluster_match.c for one row,
 * 128-wide heads, fp16, bf16, Q8_0 or packed weights. sm_90 only.
 *
 * Layout: clusters of 8 blocks, 288 threads (256 consumers, 1 warp that loads weights). Cluster r
 * handles key head r and the SHARE value heads that use it. Block j handles columns 16 j to 16 j +
 * 15 of each head: those rows of q, k, v and z, and those columns of S. q and k are sent to all
 * blocks of the cluster (each needs whole vectors), v and z stay local, and the output of the rule
 * is sent to all blocks again for the out-projection. The rows of a and b (one or two) are computed
 * redundantly by every block.
 *
 * Shared memory: weight ring, then struct linear_buffers; struct linear_smem is static.
 * Synchronisation: ring mbarriers, three mbarriers for x, q/k and the rule's output, named barriers
 * of the consumers. S and the convolution state were written by earlier passes and are read before
 * griddepcontrol.wait.
 * SPDX-License-Identifier: MIT */
#include "k_cluster_ops.cuh"
#include "k_rule.cuh"

#if __CUDA_ARCH__ == 900

#define PIECES(share) (4 + 4 * (share)) /* 8-row pieces of q, k, v and z of a block */
enum { HEAD_DIM = CK_LINEAR_HEAD_DIM, COLS = HEAD_DIM / CLUSTER, LANE_ROWS = HEAD_DIM / 32 };
/* row groups of the first product in the order of use; z's follow from GROUP_V + SHARE on */
enum { GROUP_Q, GROUP_K, GROUP_V };
/* Packed weights: fills of the first product, 16 rows each. Group PACKED_AB, before those of v, has the eight rows of a and of b
 * that contain the cluster's. */
#define PACKED_FILLS(share) (3 + 2 * (share))
enum { PACKED_AB = GROUP_V };

struct linear_work {
    uint32_t cluster, cta, rows; /* rows: rows of the output weight per block */
};
/* Static shared memory: received q and k; received output of the rule {gated value, square}; norm
 * statistics; mbarriers. */
template <int SHARE> struct linear_smem {
    alignas(16) float qk[2 * HEAD_DIM];
    alignas(16) float2 us[SHARE * HEAD_DIM];
    cluster_stats stats;
    float scratch[CONSUMER_WARPS];
    uint64_t full[CK_CLUSTER_STAGES], empty[CK_CLUSTER_STAGES], x_mbar, qk_mbar, u_mbar;
};
/* Dynamic shared memory after the ring, in this order. */
struct linear_buffers {
    float2 *ab; /* [head][thread] partial sums of a and b */
    /* Q8_0 scales of the output weight; x in parts, reused for the rule's output in parts. */
    unsigned char *scales, *parts;
    /* extra: the block's columns of x; xs: x, reused for row sums; state: the block's columns of S */
    float *extra, *xs, *state;
};

/* Issues the load of piece `piece` (eight rows of q, k, v or z) into a stage. */
template <int KIND, int SHARE>
__device__ __forceinline__ void load_piece(const ck_linear &a, const linear_work &w, uint32_t piece, unsigned char *to,
                                           uint64_t *mbar)
{
    uint32_t g = piece / 2, v = g - 2,
             in = g < 2       ? g
                  : v < SHARE ? CK_LINEAR_V
                              : CK_LINEAR_Z,
             head = g < 2 ? w.cluster : w.cluster * SHARE + v % SHARE;
    load_rows<KIND>(to, a.in[in], head * HEAD_DIM + w.cta * COLS + piece % 2 * 8, 8, a.d, mbar);
}
/* Weight (index into a.in) of a packed group, and its value head in the cluster. */
template <int SHARE> __device__ __forceinline__ uint32_t packed_weight(uint32_t g, uint32_t &head)
{
    head = g <= PACKED_AB ? 0 : (g - PACKED_AB - 1) % SHARE;
    return g < PACKED_AB ? g : g == PACKED_AB ? CK_LINEAR_A : g <= PACKED_AB + SHARE ? CK_LINEAR_V : CK_LINEAR_Z;
}
/* Producer thread, packed weights. */
template <int SHARE>
__device__ __forceinline__ void load_packed(const ck_linear &a, const ck_packed_kinds &kinds, const linear_work &w, const ring &r)
{
    ring_producer in = {};
#pragma unroll 1
    for (uint32_t g = 0, head; g < PACKED_FILLS(SHARE); g++) {
        uint32_t weight = packed_weight<SHARE>(g, head), ab = g == PACKED_AB, bytes = 8 * a.in[weight].pitch,
                 row = ab ? w.cluster * SHARE / 8 * 8 : (weight < CK_LINEAR_V ? w.cluster : w.cluster * SHARE + head) * HEAD_DIM +
                                                            w.cta * COLS;
        unsigned char *to = ring_acquire(r, in, 2 * bytes);
        load_eight<1>(to, a.in[weight], row, &r.full[in.at.stage]);
        load_eight<1>(to + bytes, a.in[ab ? CK_LINEAR_B : weight], ab ? row : row + 8, &r.full[in.at.stage]);
        ring_next(r, in.at);
    }
    load_second_packed<1>(r, in, kinds, w.cta * w.rows, w.rows, a.out_rows, w.cluster * SHARE * HEAD_DIM / CK_PACKED_CHUNK, 1);
}
/* Producer thread: all weights of the block in the order of use. */
template <int KIND, int SHARE>
__device__ __forceinline__ void load_weights(const ck_linear &a, const linear_work &w, const ring &r)
{
    constexpr uint32_t WIDTH = SHARE * HEAD_DIM * (KIND == KIND_Q8 ? 1 : 2); /* bytes of a row of the output weight */
    ring_producer in = {};
#pragma unroll 1
    for (uint32_t i = 0; i < r.fills; i++) {
        if (i < PIECES(SHARE)) {
            unsigned char *to = ring_acquire(r, in, rows_bytes<KIND>(8, a.d));
            if (i % 2) to += second_eight<KIND>(a.d) - rows_bytes<KIND>(8, a.d);
            load_piece<KIND, SHARE>(a, w, i, to, &r.full[in.at.stage]);
            ring_next(r, in.at);
        } else {
            ring_load_box(r, in, a.out, w.cluster * (WIDTH / 4), w.cta * w.rows + (i - PIECES(SHARE)) * a.out_rows,
                          a.out_rows * WIDTH);
        }
    }
}

/* One channel of the short convolution. The sum over older inputs is computed ahead: result = rest +
 * newest * x. last: the two most recent inputs; x: the current one. */
struct channel {
    float rest, newest, last[2], x;
};
/* Loads channel `at` from the convolution state. */
__device__ __forceinline__ void load_channel(const ck_linear &a, uint32_t at, channel &c)
{
    uint32_t past = a.conv.taps - 1;
    const float *memory = static_cast<const float *>(a.pass.slots[a.conv.slot]) + at, *w = a.conv.weight + at * a.conv.taps;
    float m[CK_LINEAR_TAPS];
    c.rest = a.conv.bias ? a.conv.bias[at] : 0;
    c.newest = w[past];
    /* Past inputs and their weighted sum. */
#pragma unroll
    for (int i = CK_LINEAR_TAPS - 1; i; i--) {
        m[i] = i <= past ? memory[(past - i) * a.conv.width] : 0;
        c.rest += i <= past ? w[past - i] * m[i] : 0;
    }
    c.last[0] = m[1], c.last[1] = m[2];
}
/* Convolution and SiLU of x, times `weight`. */
__device__ __forceinline__ float convolved(channel &c, float x, float weight)
{
    float sum = fmaf(c.newest, x, c.rest);
    c.x = x;
    return sum * (sigmoid_fast(sum) * weight);
}
/* Shifts the channel's inputs by one and stores them as the new convolution state. */
__device__ __forceinline__ void store_channel(const ck_linear &a, const channel &c, float *memory, uint32_t at)
{
    uint32_t past = a.conv.taps - 1;
#pragma unroll
    for (int m = 1; m < CK_LINEAR_TAPS; m++)
        if (m <= past) memory[(past - m) * a.conv.width + at] = m == 1 ? c.x : c.last[m - 2];
}

/* a and b have few rows and are computed without tensor cores: each thread multiplies the columns of
 * x that it normalises (thread_column). four_weights: four weights of a row, for Q8_0 packed with
 * their scale. */
template <int KIND>
__device__ __forceinline__ uint2 four_weights(const ck_cluster_weight &w, uint32_t d, uint32_t row, uint32_t c)
{
    const unsigned char *at = row_at(w, row);
    if (KIND != KIND_Q8) return __ldg(reinterpret_cast<const uint2 *>(at + 2 * c));
    float scale = __half2float(static_cast<const __half *>(w.scales)[(row * d + c) / 32]);
    return make_uint2(__ldg(reinterpret_cast<const uint32_t *>(at + c)), __float_as_uint(scale));
}
template <int KIND> __device__ __forceinline__ float times_four(uint2 w, float4 v)
{
    const float4 f = piece_plane < KIND == KIND_Q8 ? CK_Q8 : KIND ? CK_BF16 : CK_F16 > (make_uint4(w.x, w.y, 0, 0), 0);
    float sum = f.x * v.x + f.y * v.y + (f.z * v.z + f.w * v.w);
    return KIND == KIND_Q8 ? sum * __uint_as_float(w.y) : sum;
}
template <int SHARE, int M> struct ab_weights {
    uint2 a[SHARE][M], b[SHARE][M];
};
/* Loads this thread's weights of a and b ahead of x. */
template <int KIND, int SHARE, int M>
__device__ __forceinline__ void load_ab(const ck_linear &a, const linear_work &w, ab_weights<SHARE, M> &o)
{
    /* Columns that this thread normalises. */
#pragma unroll
    for (int h = 0; h < SHARE; h++)
#pragma unroll
        for (int m = 0; m < M; m++) {
            uint32_t c = thread_column<KIND>(m), row = w.cluster * SHARE + h;
            o.a[h][m] = o.b[h][m] = make_uint2(0, 0);
            if (c >= a.d) continue;
            o.a[h][m] = four_weights<KIND>(a.in[CK_LINEAR_A], a.d, row, c);
            o.b[h][m] = four_weights<KIND>(a.in[CK_LINEAR_B], a.d, row, c);
        }
}
/* Stores this thread's partial sums of a and b. */
template <int KIND, int SHARE, int M>
__device__ __forceinline__ void put_ab(const ab_weights<SHARE, M> &w, const float4 (&v)[M], float2 *ab)
{
#pragma unroll
    for (int h = 0; h < SHARE; h++) {
        float2 s = make_float2(0, 0);
#pragma unroll
        for (int m = 0; m < M; m++) s.x += times_four<KIND>(w.a[h][m], v[m]), s.y += times_four<KIND>(w.b[h][m], v[m]);
        ab[h * CLUSTER_CONSUMERS + threadIdx.x] = s;
    }
}
/* a and b of a head: sums over all threads, times inv_rms where the norm was deferred. */
__device__ __forceinline__ float2 sums_of_ab(const float2 *ab, float inv_rms)
{
    float2 v = make_float2(0, 0);
#pragma unroll
    for (int i = 0; i < CLUSTER_CONSUMERS; i += 64) {
        float4 pair = *reinterpret_cast<const float4 *>(ab + i + 2 * (threadIdx.x & 31));
        v.x += pair.x + pair.z, v.y += pair.y + pair.w;
    }
    return make_float2(warp_sum(v.x) * inv_rms, warp_sum(v.y) * inv_rms);
}

/* Sum of a row over the 8 warps, computed by eight lanes together. */
__device__ __forceinline__ float sum_by_eight(const float *sums, uint32_t group, uint32_t row)
{
    const float *at = sums + (group * 16 + row) * SUMS_PITCH + 2 * (threadIdx.x & 7);
    float v = at[0] + at[1];
    v += __shfl_xor_sync(0xffffffffu, v, 1);
    v += __shfl_xor_sync(0xffffffffu, v, 2);
    return v + __shfl_xor_sync(0xffffffffu, v, 4);
}

/* Delta-rule state of a warp: two columns of each head's S. In each half of the warp eight lanes
 * share one column, `col`. Lanes 0 to 15 handle v and S^T k, lanes 16 to 31 z, S^T q and the output. */
struct rule_head {
    float2 S[LANE_ROWS]; /* lane: rows lane + 32 r */
    channel in;          /* convolution of v (identity for z) */
    float beta, rate, dt, of;
};
template <int SHARE> struct rule_state {
    rule_head heads[SHARE];
    channel qk; /* lane: row lane % 16 of q or of k */
    float k[LANE_ROWS], kq, weight;
    uint32_t col;
};
__device__ __forceinline__ bool has_z() { return threadIdx.x & 16; }
__device__ __forceinline__ uint32_t qk_channel(const ck_linear &a, const linear_work &w)
{
    uint32_t lane = threadIdx.x & 31;
    return a.conv.at[lane / 16] + w.cluster * HEAD_DIM + w.cta * COLS + lane % 16;
}
/* Column c of the cluster's value head h, among all value heads. */
template <int SHARE> __device__ __forceinline__ uint32_t v_column(const linear_work &w, int h, uint32_t c)
{
    return (w.cluster * SHARE + h) * HEAD_DIM + c;
}
template <int SHARE> __device__ __forceinline__ void load_part(const ck_linear &a, const linear_work &w, rule_state<SHARE> &p)
{
    uint32_t lane = threadIdx.x & 31;
    p.col = w.cta * COLS + (threadIdx.x >> 5) * 2 + lane / 8 % 2;
    load_channel(a, qk_channel(a, w), p.qk);
    p.weight = 1;
    if (has_z() && a.gated.weight) p.weight = a.gated.weight[p.col] + (a.gated.plus_one ? 1.0f : 0.0f);
#pragma unroll
    for (int h = 0; h < SHARE; h++) {
        rule_head &o = p.heads[h];
        uint32_t head = w.cluster * SHARE + h;
        o.in = channel{0, 1};
        if (!has_z()) load_channel(a, a.conv.at[2] + v_column<SHARE>(w, h, p.col), o.in);
        o.rate = a.is_log ? -expf(a.decay[head]) : a.decay[head];
        o.dt = a.dt[head];
    }
}

/* Addressing of the block's columns of S. In shared memory rows are padded against bank conflicts,
 * in global memory whole sectors are read. A thread copies two columns of every 32nd row. */
enum { STATE_PITCH = CK_LINEAR_STATE_PITCH / 4, ROWS_AT_ONCE = CLUSTER_CONSUMERS / (COLS / 2) };
__device__ __forceinline__ uint32_t state_smem_offset()
{
    return threadIdx.x / (COLS / 2) * STATE_PITCH + threadIdx.x % (COLS / 2) * 2;
}
__device__ __forceinline__ uint32_t state_gmem_offset(const linear_work &w, uint32_t share)
{
    return (w.cluster * share * HEAD_DIM + threadIdx.x / (COLS / 2)) * HEAD_DIM + w.cta * COLS + threadIdx.x % (COLS / 2) * 2;
}
template <int SHARE> __device__ __forceinline__ void load_state(const linear_work &w, const float *from, float *to)
{
    uint32_t here = smem_addr(to + state_smem_offset());
    from += state_gmem_offset(w, SHARE);
#pragma unroll
    for (int i = 0; i < SHARE * HEAD_DIM / ROWS_AT_ONCE; i++)
        cp_async_8(here + i * ROWS_AT_ONCE * STATE_PITCH * 4, from + i * ROWS_AT_ONCE * HEAD_DIM);
}
template <int SHARE> __device__ __forceinline__ void store_state(const linear_work &w, const float *from, float *to)
{
    from += state_smem_offset(), to += state_gmem_offset(w, SHARE);
#pragma unroll
    for (int i = 0; i < SHARE * HEAD_DIM / ROWS_AT_ONCE; i++)
        *reinterpret_cast<float2 *>(to + i * ROWS_AT_ONCE *
                                             HEAD_DIM) = *reinterpret_cast<const float2 *>(from + i * ROWS_AT_ONCE * STATE_PITCH);
}
/* This lane's first element pair of head h. */
__device__ __forceinline__ float *lane_state(float *state, int h)
{
    return state + (h * HEAD_DIM + (threadIdx.x & 31)) * STATE_PITCH + (threadIdx.x >> 5) * 2;
}

/* Sums of q and k are complete: convolves them and sends them to all blocks (warp w to block w),
 * then applies the decay to S, which does not depend on them. */
template <int KIND, int SHARE>
__device__ __forceinline__ void start_rule(const ck_linear &a, const linear_work &w, linear_smem<SHARE> &sm,
                                           const linear_buffers &m, float inv_rms, rule_state<SHARE> &p)
{
    uint32_t lane = threadIdx.x & 31;
    /* Lanes 0 to 15 finish q, 16 to 31 k. */
    float x = sum_row(m.xs, lane < 16 ? GROUP_Q * 16 + lane : GROUP_K * 16 + lane - 16);
    send_to_block(convolved(p.qk, x, 1), sm.qk + lane / 16 * HEAD_DIM + w.cta * COLS + lane % 16, &sm.qk_mbar, threadIdx.x >> 5);
#pragma unroll
    for (int h = 0; h < SHARE; h++) {
        /* Scalars of the head, S of this lane, decay. */
        rule_head &o = p.heads[h];
        uint32_t of = (w.cluster * SHARE + h) % 8; /* row in the packed group */
        const float *packed = reinterpret_cast<const float *>(m.ab);
        float2 ab = KIND == KIND_PACKED ? make_float2(sum_row(packed, of), sum_row(packed, of + 8))
                                        : sums_of_ab(m.ab + h * CLUSTER_CONSUMERS, inv_rms);
#pragma unroll
        for (int r = 0; r < LANE_ROWS; r++)
            o.S[r] = *reinterpret_cast<const float2 *>(lane_state(m.state, h) + 32 * r * STATE_PITCH);
        o.beta = sigmoid_fast(ab.y);
        decay_state<LANE_ROWS>(o.S, expf(o.rate * softplus(ab.x + o.dt)));
    }
}
/* q and k have arrived: normalises them and computes S^T k and S^T q. */
template <int SHARE> __device__ __forceinline__ void apply_qk(const ck_linear &a, linear_smem<SHARE> &sm, rule_state<SHARE> &p)
{
    uint32_t lane = threadIdx.x & 31;
    float q[LANE_ROWS];
    mbar_wait(&sm.qk_mbar, 0);
#pragma unroll
    for (int r = 0; r < LANE_ROWS; r++) q[r] = sm.qk[lane + 32 * r], p.k[r] = sm.qk[HEAD_DIM + lane + 32 * r];
    p.kq = scale_row<LANE_ROWS>(q, p.k, HEAD_DIM, a.l2_eps);
#pragma unroll
    for (int h = 0; h < SHARE; h++) p.heads[h].of = state_products<LANE_ROWS>(p.heads[h].S, q, p.k);
}

/* Sums of v and z are complete: finishes the rule and sends the gated output and its square to all
 * blocks, eight lanes to one block each; updates S in shared memory. */
template <int SHARE>
__device__ __forceinline__ void finish_rule(linear_smem<SHARE> &sm, const linear_buffers &m, rule_state<SHARE> &p)
{
    uint32_t block = threadIdx.x & 7, to = mapa(smem_addr(sm.us + p.col), block), gate = mapa(smem_addr(&sm.u_mbar), block);
#pragma unroll
    for (int h = 0; h < SHARE; h++) {
        /* v or z of the column; d of both columns is broadcast from the lanes that hold them. */
        rule_head &o = p.heads[h];
        float x = convolved(o.in, sum_by_eight(m.xs, GROUP_V + h + (has_z() ? SHARE : 0), p.col % COLS), p.weight),
              d = o.beta * (x - o.of), d0 = __shfl_sync(0xffffffffu, d, 0), d1 = __shfl_sync(0xffffffffu, d, 8);
        float u = fmaf(p.kq, p.col % 2 ? d1 : d0, o.of);
        if (has_z()) st_async_f32x2(u * x, u * u, to + h * HEAD_DIM * sizeof *sm.us, gate);
        add_outer<LANE_ROWS>(o.S, p.k, d0, d1);
#pragma unroll
        for (int r = 0; r < LANE_ROWS; r++) *reinterpret_cast<float2 *>(lane_state(m.state, h) + 32 * r * STATE_PITCH) = o.S[r];
    }
}
/* Writes the new convolution state and S. */
template <int SHARE>
__device__ __forceinline__ void store_part(const ck_linear &a, const linear_work &w, const rule_state<SHARE> &p, const float *S,
                                           float *memory, float *state)
{
    if (threadIdx.x < 32) store_channel(a, p.qk, memory, qk_channel(a, w));
#pragma unroll
    for (int h = 0; h < SHARE; h++)
        if (!(threadIdx.x & 23)) store_channel(a, p.heads[h].in, memory, a.conv.at[2] + v_column<SHARE>(w, h, p.col));
    store_state<SHARE>(w, S, state);
}

/* First product with the first steps of the rule interleaved. With Q8_0 the weights of v and z have
 * arrived by then, so q and k travel while those are multiplied; with 16 bits the weights are still
 * arriving, and the rule goes first. */
template <int KIND, int P, int SHARE>
__device__ __forceinline__ void project(const ck_linear &a, const linear_work &w, linear_smem<SHARE> &sm, const linear_buffers &m,
                                        const ring &r, ring_pos &at, const x_frags<P> &x, rule_state<SHARE> &p)
{
    constexpr uint32_t ALL = GROUP_V + 2 * SHARE, FOLLOW = KIND == KIND_Q8 ? ALL : GROUP_V;
    /* One group of 16 rows per iteration: two stages of eight rows. */
#pragma unroll 1
    for (uint32_t g = 0; g < ALL; g++) {
        ring_pos first = at;
        if (g == GROUP_V) {
            consumers_sync();
            start_rule<KIND, SHARE>(a, w, sm, m, x.inv_rms, p);
        }
        if (g == FOLLOW) apply_qk<SHARE>(a, sm, p);
        uint32_t low = ring_wait_full(r, at);
        ring_next(r, at);
        uint32_t high = ring_wait_full(r, at) + second_eight<KIND>(a.d) - rows_bytes<KIND>(8, a.d);
        first_group<KIND, P>(x, a.d, low, high, m.xs + g * 16 * SUMS_PITCH);
        ring_release(r, first);
        ring_release(r, at);
        ring_next(r, at);
    }
    if (FOLLOW == ALL) apply_qk<SHARE>(a, sm, p);
    consumers_sync();
}

/* The same with packed weights. The sums of a and b are in the buffer of m.ab. */
template <int P, int SHARE>
__device__ __forceinline__ void project_packed(const ck_linear &a, const ck_packed_kinds &kinds, const linear_work &w,
                                               linear_smem<SHARE> &sm, const linear_buffers &m, const ring &r, ring_pos &at,
                                               const x_frags<P> &x, rule_state<SHARE> &p)
{
    const packed_x digits = packed_x_at(m.parts, a.d);
#pragma unroll 1
    for (uint32_t g = 0, head; g < PACKED_FILLS(SHARE); g++) {
        if (g == PACKED_AB + 1) {
            consumers_sync();
            start_rule<KIND_PACKED, SHARE>(a, w, sm, m, x.inv_rms, p);
        }
        float *to = g == PACKED_AB ? reinterpret_cast<float *>(m.ab) : m.xs + (g - (g > PACKED_AB)) * 16 * SUMS_PITCH;
        first_packed(r, at, digits, kinds.in[packed_weight<SHARE>(g, head)], a.d / CK_PACKED_CHUNK, g, x.inv_rms, to, SUMS_PITCH);
    }
    apply_qk<SHARE>(a, sm, p);
    consumers_sync();
}

/* The rule's output has arrived: RMS norm per head (one warp each) and split into parts for the
 * second product. */
template <int KIND, int SHARE>
__device__ __forceinline__ void store_hidden_parts(const ck_linear &a, const linear_smem<SHARE> &sm, unsigned char *parts,
                                                   uint32_t cluster)
{
    uint32_t head = threadIdx.x >> 5, c = 4 * threadIdx.x;
    const packed_x digits = packed_x_at(parts, CK_PACKED_CHUNK);
    if (KIND == KIND_PACKED && SHARE == 1 && head == 1) /* another cluster's half of the chunk */
        put_packed_group(digits, ~cluster & 1, make_float4(0, 0, 0, 0));
    if (head < SHARE) {
        float4 low = *reinterpret_cast<const float4 *>(sm.us + c), high = *reinterpret_cast<const float4 *>(sm.us + c + 2);
        float inverse = rsqrtf(warp_sum(low.y + low.w + (high.y + high.w)) / HEAD_DIM + a.gated.eps);
        float4 v = make_float4(low.x * inverse, low.z * inverse, high.x * inverse, high.z * inverse);
        if constexpr (KIND == KIND_PACKED)
            put_packed_group(digits, SHARE == 1 ? cluster & 1 : head, v);
        else
            put_hidden<KIND>(parts, SHARE * HEAD_DIM, c, v);
    }
    consumers_sync();
}

/* The buffers behind the stages of the ring. */
template <int SHARE> __device__ __forceinline__ linear_buffers find_buffers(const ck_linear &a, unsigned char *memory)
{
    linear_buffers m;
    m.ab = reinterpret_cast<float2 *>(memory + a.stages * a.stage_bytes);
    m.scales = reinterpret_cast<unsigned char *>(m.ab + SHARE * CLUSTER_CONSUMERS);
    m.extra = reinterpret_cast<float *>(m.scales + SHARE * a.d);
    m.parts = reinterpret_cast<unsigned char *>(m.extra + a.d / CLUSTER);
    m.xs = reinterpret_cast<float *>(m.parts + PARTS * parts_pitch(a.d));
    m.state = m.xs + CK_LINEAR_X_BYTES(a.d, SHARE) / 4;
    return m;
}

/* Initialises all mbarriers and announces the bytes of each. One thread calls it. */
template <int SHARE> __device__ __forceinline__ void init_mbars(const ck_linear &a, const ring &r, linear_smem<SHARE> &sm)
{
    ring_init(r);
    mbar_init(&sm.x_mbar, 1);
    mbar_init(&sm.qk_mbar, 1);
    mbar_init(&sm.u_mbar, 1);
    mbar_init_fence();
    mbar_expect_tx(&sm.x_mbar, 4 * a.d + sizeof sm.stats);
    mbar_expect_tx(&sm.qk_mbar, sizeof sm.qk);
    mbar_expect_tx(&sm.u_mbar, sizeof sm.us);
}

/* Q8_0: starts the copy of the scales of the second weight. */
template <int SHARE> __device__ __forceinline__ void load_out_scales(const ck_linear &a, const linear_work &w, uint32_t scales)
{
    load_scales(scales,
                static_cast<const __half *>(a.out_scales.p) + w.cta * w.rows * a.out_scales.pitch +
                    w.cluster * SHARE * (HEAD_DIM / 32),
                a.out_scales.pitch, w.rows, SHARE * HEAD_DIM);
}

/* Kernel body. P: pairs of 32-column blocks of x per warp; SHARE: value heads per key head; kinds: of packed weights. */
template <int KIND, int P, int SHARE>
__device__ __forceinline__ void linear(const ck_linear &a, const ck_packed_kinds &kinds = {})
{
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ linear_smem<SHARE> sm;
    const linear_work w = {blockIdx.x / CLUSTER, cluster_cta_rank(), a.d / CLUSTER};
    const uint32_t fills = (KIND == KIND_PACKED ? PACKED_FILLS(SHARE) : PIECES(SHARE)) + (w.rows + a.out_rows - 1) / a.out_rows;
    const ring r = {memory, a.stage_bytes, a.stages, fills, a.ahead, sm.full, sm.empty};
    const linear_buffers m = find_buffers<SHARE>(a, memory);
    if (!a.late) launch_dependents();
    if (threadIdx.x == CLUSTER_CONSUMERS) init_mbars<SHARE>(a, r, sm);
    __syncthreads();
    cluster_arrive();
    /* Producer warp: one thread. */
    if (threadIdx.x >= CLUSTER_CONSUMERS) {
        if (threadIdx.x > CLUSTER_CONSUMERS) return;
        if constexpr (KIND == KIND_PACKED)
            load_packed<SHARE>(a, kinds, w, r);
        else
            load_weights<KIND, SHARE>(a, w, r);
        if (a.late) launch_dependents();
        return;
    }
    ck_norm norm = a.norm;
    norm.bias = nullptr, norm.layer = 0;
    norm_coeffs<P / 2> numbers;
    load_norm<KIND>(norm, a.d, numbers);
    /* S and the convolution state were written by earlier passes: no wait needed. */
    rule_state<SHARE> p;
    load_part<SHARE>(a, w, p);
    load_state<SHARE>(w, static_cast<const float *>(a.pass.slots[a.slot]), m.state);
    bool stores = !a.pass.head->stopped;
    float *memory_after = static_cast<float *>(a.pass.slots_out[a.conv.slot]),
          *state_after = static_cast<float *>(a.pass.slots_out[a.slot]);
    asm volatile("" : "+l"(memory_after), "+l"(state_after)); /* computed before the wait */
    ring_pos at = {0, 0};
    uint32_t scales = smem_addr(m.scales);
    if (KIND == KIND_Q8) load_out_scales<SHARE>(a, w, scales);
    ab_weights<SHARE, P / 2> ab;
    if constexpr (KIND != KIND_PACKED) load_ab<KIND, SHARE>(a, w, ab);
    x_frags<P> x;
    float4 v[P / 2];
    const x_addresses from = find_x_addresses<KIND>(m.xs, &sm.stats);
    const x_exchange to = x_exchange_setup(a.x, w.cta, m.xs, &sm.stats, &sm.x_mbar, m.extra);
    /* x arrives. */
    cluster_wait();
    if constexpr (KIND == KIND_PACKED) warm_packed(r, kinds.in[0], a.d / CK_PACKED_CHUNK);
    if (!a.x.live) wait_for_inputs();
    exchange_x<P / 2>(to, 0, a.out_bias ? a.out_bias + w.cta * w.rows : nullptr);
    mbar_wait(&sm.x_mbar, 0);
    prepare_x<KIND, P>(norm, a.d, m.xs, from, numbers, m.parts, sm.scratch, x, v);
    if constexpr (KIND != KIND_PACKED) put_ab<KIND, SHARE>(ab, v, m.ab);
    cp_async_wait_all();
    if constexpr (KIND == KIND_PACKED)
        project_packed<P, SHARE>(a, kinds, w, sm, m, r, at, x, p);
    else
        project<KIND, P, SHARE>(a, w, sm, m, r, at, x, p);
    finish_rule<SHARE>(sm, m, p);
    mbar_wait(&sm.u_mbar, 0);
    store_hidden_parts<KIND, SHARE>(a, sm, m.parts, w.cluster);
    if constexpr (KIND == KIND_PACKED)
        write_packed(r, at, packed_x_at(m.parts, CK_PACKED_CHUNK), kinds.out, 1, a.out_rows, w.rows, a.y + w.cta * w.rows, a.d,
                     w.cluster ? nullptr : m.extra);
    else
        write_rows<KIND>(r, at, m.parts, SHARE * HEAD_DIM, a.out_rows, w.rows, a.y + w.cta * w.rows, a.d,
                         w.cluster ? nullptr : m.extra, scales);
    /* State is stored after the sums, off the critical path of the next kernel. */
    if (stores) store_part<SHARE>(a, w, p, m.state, memory_after, state_after);
    finish_kernel(a.x, a.clear);
}

#else
/* no clusters before sm_90: never launched */
template <int KIND, int P, int SHARE>
__device__ __forceinline__ void linear(const ck_linear &, const ck_packed_kinds & = {})
{
}
#endif

#define LINEAR(NAME, KIND, P)                                                        \
    extern "C" __global__ void __launch_bounds__(CK_CLUSTER_THREADS, P == 8 ? 1 : 2) \
        linear_##NAME##_##P(const __grid_constant__ ck_linear a)                     \
    {                                                                                \
        linear<KIND, P, P == 8 ? 2 : 1>(a);                                          \
    }
LINEAR(f16, 0, 2)
LINEAR(f16, 0, 4)
LINEAR(f16, 0, 8)
LINEAR(bf16, 1, 2)
LINEAR(bf16, 1, 4)
LINEAR(bf16, 1, 8)
LINEAR(q8, KIND_Q8, 2)
LINEAR(q8, KIND_Q8, 4)
LINEAR(q8, KIND_Q8, 8)
#define LINEAR_PACKED(SHARE)                                            \
    extern "C" __global__ void __launch_bounds__(CK_CLUSTER_THREADS, 2) \
        linear_packed_##SHARE(const __grid_constant__ ck_linear_packed a) \
    {                                                                   \
        linear<KIND_PACKED, 2, SHARE>(a.a, a.kinds);                    \
    }
LINEAR_PACKED(1)
LINEAR_PACKED(2)
