/* k_cluster_ops.cuh: what the kernels of a *rank* share (k_mlp.cu and its neighbours): two products with one row of x and what lies
 * between them, in one launch. A rank is a cluster of 8 blocks. It owns some of the numbers between the products (hidden units,
 * heads): their rows of the first weight, their columns of the second. So what the second product needs is inside the cluster,
 * and each rank adds its part to every number of y, in fixed point. The residual is in rank 0's part.
 *
 * Weights come through a ring of stages in shared memory, in the order of use, by a warp of its own and before the inputs are
 * waited for. A stage of the first product is 16 whole rows (8 and 8, where two matrices go together), of the second a box of it.
 *
 * A product is done by the tensor cores, 16 rows x 16 columns of weights at a time, straight from the stage: lane (g, t) loads 16
 * bytes of rows g and g + 8, which are its operands of two products. x is three numbers of 16 bits each (together fp32), three
 * columns of the other operand. Where rows begin at the same bank, odd rows take the blocks of 32 columns of a pair in the
 * other order, and their x stands in three further columns: no bank conflicts. Rows of Q8_0: k_cluster_int8.cuh.
 *
 * KIND says what weights are: 0: fp16, 1: bf16, RANK_Q8: Q8_0. SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_K_RANK_CUH
#define SG_UNIT_CUDA_K_RANK_CUH

#include "k_cluster_int8.cuh"
#include "k_spread.cuh"

enum { PARTS = CK_RANK_PARTS, RANK_Q8 = 2 };

#if __CUDA_ARCH__ >= 900

/* --- the ring --- */

__device__ __forceinline__ const unsigned char *row_at(const ck_rank_weight &w, size_t row)
{
    return static_cast<const unsigned char *>(w.data) + row * w.pitch;
}

struct ring {
    unsigned char *stages;
    uint32_t bytes, n, fills, ahead; /* of a stage; stages; how often one is filled in all; so many at most under way at once */
    uint64_t *full, *empty;
};
struct ring_at { /* where somebody is in it */
    uint32_t stage, turn;
};
__device__ __forceinline__ bool ring_again(const ring &r, const ring_at &at) { return (at.turn + 1) * r.n + at.stage < r.fills; }
__device__ __forceinline__ void ring_next(const ring &r, ring_at &at)
{
    if (++at.stage == r.n) at.stage = 0, at.turn++;
}
/* For the thread that brings: where it is, and where the fill is that must have come before the next one is asked for. */
struct ring_in {
    ring_at at, late;
    uint32_t asked;
};
/* The next stage is free, and so many bytes will come. */
__device__ __forceinline__ unsigned char *ring_free(const ring &r, ring_in &in, uint32_t bytes)
{
    if (in.asked++ >= r.ahead) {
        gate_wait(&r.full[in.late.stage], in.late.turn & 1);
        ring_next(r, in.late);
    }
    if (in.at.turn) {
        if (in.at.turn == 1 && !in.at.stage) cluster_wait_alone();
        gate_wait(&r.empty[in.at.stage], (in.at.turn - 1) & 1);
    }
    gate_expect(&r.full[in.at.stage], bytes);
    return r.stages + (size_t)in.at.stage * r.bytes;
}
/* Bytes of n rows of d columns as they stand in a stage, scales behind them. */
template <int KIND> __device__ __forceinline__ uint32_t rows_bytes(uint32_t n, uint32_t d)
{
    return n * (KIND == RANK_Q8 ? d + d / 16 : 2 * d);
}
/* Where the second eight of 16 rows begin. */
template <int KIND> __device__ __forceinline__ uint32_t second_eight(uint32_t d)
{
    return rows_bytes<KIND>(8, d) + (KIND == RANK_Q8 ? APART8 : 0);
}

/* SHARED: other ranks read the same rows. */
template <int KIND, int SHARED = 0>
__device__ __forceinline__ void bring_rows(unsigned char *to, const ck_rank_weight &w, uint32_t row, uint32_t n, uint32_t d,
                                           uint64_t *gate)
{
    uint32_t bytes = n * d * (KIND == RANK_Q8 ? 1 : 2), scales = n * d / 16;
    if (SHARED)
        bring(to, row_at(w, row), bytes, gate);
    else
        bring_once(to, row_at(w, row), bytes, gate);
    if (KIND == RANK_Q8) bring(to + bytes, static_cast<const unsigned char *>(w.scales) + (size_t)row * (d / 16), scales, gate);
}
/* A box of a matrix, from its column (of 4 bytes) and row on, without gaps. */
__device__ __forceinline__ void ring_bring_box(const ring &r, ring_in &in, const ck_tensor_map &map, uint32_t column,
                                               uint32_t row, uint32_t bytes)
{
    unsigned char *to = ring_free(r, in, bytes);
    bring_box_once(shared_at(to), map, column, row, shared_at(&r.full[in.at.stage]));
    ring_next(r, in.at);
}
__device__ __forceinline__ uint32_t ring_full(const ring &r, const ring_at &at)
{
    gate_wait(&r.full[at.stage], at.turn & 1);
    return shared_at(r.stages) + at.stage * r.bytes;
}
/* The thread has used what it read of the stage: the next copy could come before a load that is only under way. */
__device__ __forceinline__ void ring_leave(const ring &r, const ring_at &at, bool again)
{
    if (again) gate_arrive(&r.empty[at.stage]);
}
__device__ __forceinline__ void ring_leave(const ring &r, const ring_at &at) { ring_leave(r, at, ring_again(r, at)); }
/* So many stages from this one on are filled again. */
__device__ __forceinline__ uint32_t ring_rest(const ring &r, const ring_at &at)
{
    uint32_t fill = at.turn * r.n + at.stage + r.n;
    return fill < r.fills ? r.fills - fill : 0;
}
/* A stage of which the warp wants nothing. */
__device__ __forceinline__ void leave_when_full(const ring &r, ring_at &at)
{
    gate_wait(&r.full[at.stage], at.turn & 1);
    ring_leave(r, at);
    ring_next(r, at);
}
__device__ __forceinline__ void ring_open(const ring &r)
{
    for (uint32_t i = 0; i < r.n; i++) {
        gate_open(&r.full[i], 1);
        gate_open(&r.empty[i], 32 * RANK_WARPS);
    }
}

/* --- x --- */

/* x of a block as the tensor cores want it: [part][columns + 32], 16-bit numbers; pitch: bytes of a part. */
__device__ __forceinline__ uint32_t parts_pitch(uint32_t k) { return CK_RANK_PART_PITCH(k); }

__device__ __forceinline__ uint32_t whole_pairs(uint32_t k) { return (k + 63) / 64 * 64; }

/* What part i is multiplied with, behind the product: part i of a number is fp16 of what is left of it divided by this, so that
 * numbers up to 2.7e8 fit; what part 0 does not hold of small ones, part 1 does. */
template <int KIND> __device__ __forceinline__ constexpr float scale_of_part(int i)
{
    return KIND == 1 ? 1.0f : i == 0 ? 4096.0f : i == 1 ? 2.0f : 1.0f / 1024;
}

/* Part i of two numbers, which lose it. bf16: cut off, so that three are the whole fp32. */
template <int KIND> __device__ __forceinline__ uint32_t next_part(float &x, float &y, int i)
{
    if (KIND != 1) {
        float up = scale_of_part<KIND>(i), down = 1 / up;
        uint32_t h = pack<0>(x * down, y * down);
        float2 v = __half22float2(*reinterpret_cast<const __half2 *>(&h));
        x = fmaf(-up, v.x, x), y = fmaf(-up, v.y, y);
        return h;
    }
    uint32_t a = __float_as_uint(x), b = __float_as_uint(y);
    x -= __uint_as_float(a & 0xffff0000u), y -= __uint_as_float(b & 0xffff0000u);
    return __byte_perm(a, b, 0x7632);
}

/* Four numbers from column c on, where there are some. */
template <int KIND>
__device__ __forceinline__ void put_parts(unsigned char *to, uint32_t pitch, uint32_t c, float4 v, bool there_are)
{
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
        uint32_t a = next_part<KIND>(v.x, v.y, i), b = next_part<KIND>(v.z, v.w, i);
        if (there_are) *reinterpret_cast<uint2 *>(to + i * pitch + c * 2) = make_uint2(a, b);
    }
}

/* Two numbers. */
template <int KIND> __device__ __forceinline__ void put_two(unsigned char *to, uint32_t pitch, uint32_t c, float x, float y)
{
#pragma unroll
    for (int i = 0; i < PARTS; i++) *reinterpret_cast<uint32_t *>(to + i * pitch + c * 2) = next_part<KIND>(x, y, i);
}

/* Four numbers from column c on of what the second product is with; of Q8_0 a warp has whole groups. */
template <int KIND> __device__ __forceinline__ void put_hidden(unsigned char *to, uint32_t k, uint32_t c, float4 v)
{
    if (KIND == RANK_Q8)
        put_group8(to + c / GROUP8 * DIGITS8, v);
    else
        put_parts<KIND>(to, parts_pitch(k), c, v, true);
}

/* Where the lane's numbers of x are, if it has some: the 16 bytes of block 0 of its part; other: for odd rows. */
struct lane_parts {
    uint32_t at, other, is;
};
__device__ __forceinline__ lane_parts parts_of_lane(uint32_t parts, uint32_t pitch)
{
    uint32_t g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3, other = g >= PARTS, part = other ? g - PARTS : g;
    return lane_parts{parts + part * pitch + t * 16, other, g < 2 * PARTS};
}
/* Blocks of 32 columns 2 p and 2 p + 1 of x for this lane, in the order in which even rows take them; zeros where there are
 * none. */
__device__ __forceinline__ void take_parts(const lane_parts &from, uint32_t p, bool there_are, uint4 (&x)[2])
{
#pragma unroll
    for (int l = 0; l < 2; l++) {
        x[l] = make_uint4(0, 0, 0, 0);
        if (from.is && there_are) x[l] = shared_piece(from.at + (2 * p + (l ^ from.other)) * 64);
    }
}

/* --- the product --- */

/* Not volatile, as mma is: products wait for nothing but their operands. */
template <int KIND> __device__ __forceinline__ void add_product(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    if (KIND)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Two blocks of columns of 16 rows: what a lane loads, and the products. low, high: rows g and g + 8 at the lane's 16 bytes of
 * block 0; last: the last block there is (x is zero behind it). turned: odd rows take the blocks in the other order. */
struct piece_pair {
    uint4 low[2], high[2];
};
__device__ __forceinline__ void load_pair(piece_pair &w, uint32_t low, uint32_t high, uint32_t p, uint32_t last, uint32_t turned)
{
#pragma unroll
    for (int l = 0; l < 2; l++) {
        uint32_t off = min(2 * p + (l ^ turned), last) * 64;
        w.low[l] = shared_piece(low + off), w.high[l] = shared_piece(high + off);
    }
}
template <int KIND>
__device__ __forceinline__ void multiply_pair(const piece_pair &w, const uint4 (&x)[2], float (&acc)[4][4])
{
#pragma unroll
    for (int l = 0; l < 2; l++) {
        const uint32_t first[4] = {w.low[l].x, w.high[l].x, w.low[l].y, w.high[l].y};
        const uint32_t second[4] = {w.low[l].z, w.high[l].z, w.low[l].w, w.high[l].w};
        add_product<KIND>(acc[2 * l], first, x[l].x, x[l].y);
        add_product<KIND>(acc[2 * l + 1], second, x[l].z, x[l].w);
    }
}

/* Rows g and g + 8: two lanes of four have parts of their sums, in both numbers: t = 1 one part, and beside it the two others, 0,
 * or 2 where turned. */
template <int KIND> __device__ __forceinline__ float2 halves_of(const float (&acc)[4][4], uint32_t turned)
{
    constexpr float S[PARTS] = {scale_of_part<KIND>(0), scale_of_part<KIND>(1), scale_of_part<KIND>(2)};
    bool one = (threadIdx.x & 3) == 1;
    float of_a = one ? (turned ? 0 : S[2]) : (turned ? S[1] : S[0]), of_b = one ? (turned ? S[0] : 0) : (turned ? S[2] : S[1]);
    float v[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float a = acc[0][2 * i] + acc[1][2 * i] + (acc[2][2 * i] + acc[3][2 * i]);
        float b = acc[0][2 * i + 1] + acc[1][2 * i + 1] + (acc[2][2 * i + 1] + acc[3][2 * i + 1]);
        v[i] = KIND != 1 ? fmaf(b, of_b, a * of_a) : !one ? a + b : turned ? b : a;
    }
    return make_float2(v[0], v[1]);
}
/* Which of 16 rows a lane has the whole sum of; 16: none. */
template <int KIND> __device__ __forceinline__ uint32_t row_of_lane(uint32_t turned)
{
    uint32_t g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
    return t == 1 ? g : t == (KIND == RANK_Q8 || turned ? 2 : 0) ? g + 8 : 16;
}
struct row_sum {
    float v;
    uint32_t row;
};
template <int KIND> __device__ __forceinline__ row_sum sum_of(const float (&acc)[4][4], uint32_t turned)
{
    float2 v = halves_of<KIND>(acc, turned);
    uint32_t lane = threadIdx.x & 31;
    bool one = (lane & 3) == 1;
    float gets = __shfl_sync(0xffffffffu, one ? v.y : v.x, lane ^ (turned ? 3 : 1));
    return row_sum{(one ? v.x : v.y) + gets, row_of_lane<KIND>(turned)};
}

/* Rows of this pitch begin at the same bank. */
__device__ __forceinline__ bool same_bank(uint32_t pitch) { return pitch % 128 == 0; }

/* --- x, made ready --- */

/* Where four columns of x begin that a thread makes ready, time m: but for fp16, its warp multiplies them. */
template <int KIND> __device__ __forceinline__ uint32_t own_column(int m)
{
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    return KIND != 1 ? 4 * (threadIdx.x + 256 * m) : 64 * (warp + 8 * (2 * m + lane / 16)) + 4 * (lane % 16);
}
/* A thread's numbers of the norm. */
template <int M> struct norm_numbers {
    float4 w[M], b[M];
    float per; /* 1 / columns */
};
template <int KIND, int M> __device__ __forceinline__ void load_norm(const ck_norm &n, uint32_t d, norm_numbers<M> &o)
{
    float plus = n.plus_one && n.weight ? 1.0f : 0.0f;
    o.per = 1.0f / d;
#pragma unroll
    for (int m = 0; m < M; m++) {
        uint32_t c = own_column<KIND>(m);
        o.w[m] = o.b[m] = make_float4(0, 0, 0, 0);
        if (c >= d) continue;
        o.w[m] = n.weight ? four_at(n.weight, c) : make_float4(1, 1, 1, 1);
        o.w[m].x += plus, o.w[m].y += plus, o.w[m].z += plus, o.w[m].w += plus;
        if (n.bias) o.b[m] = four_at(n.bias, c);
    }
}

/* Sum of the squares of x - mean over the block. */
template <int M> __device__ __forceinline__ float centred(const float *xs, uint32_t d, float mean, float *room)
{
    float s = 0;
#pragma unroll
    for (int m = 0; m < M; m++) {
        uint32_t c = 4 * (threadIdx.x + 256 * m);
        if (c >= d) continue;
        float4 v = four_at(xs, c);
        v.x -= mean, v.y -= mean, v.z -= mean, v.w -= mean;
        s += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
    s = warp_sum(s);
    if (!(threadIdx.x & 31)) room[threadIdx.x >> 5] = s;
    consumers_meet();
    s = 0;
#pragma unroll
    for (int w = 0; w < RANK_WARPS; w++) s += room[w];
    return s;
}

/* Where a thread finds its numbers of x (four, and four more every 1,024 columns) and its sums of what was found out of it. */
struct x_places {
    uint32_t xs, stats;
};
template <int KIND> __device__ __forceinline__ x_places places_of(const float *xs, const rank_stats *stats)
{
    x_places p = {shared_at(xs + own_column<KIND>(0)), shared_at(stats->of + 2 * (threadIdx.x & 31))};
    asm volatile("" : "+r"(p.xs), "+r"(p.stats)); /* now */
    return p;
}
/* Both, when they are there; what the thread has of the sum. */
template <int KIND, int M> __device__ __forceinline__ float take_places(const x_places &p, uint32_t d, float4 (&v)[M])
{
#pragma unroll
    for (int m = 0; m < M; m++) v[m] = own_column<KIND>(m) < d ? shared_four(p.xs + 4096 * m) : make_float4(0, 0, 0, 0);
    uint2 s = shared_two(p.stats);
    return __uint_as_float(s.x) + __uint_as_float(s.y);
}
__device__ __forceinline__ float inverse_of(const ck_norm &n, float sum, float per)
{
    float length = rsqrtf(fmaf(sum, per, n.eps));
    return n.present ? length : 1;
}
/* The thread's four numbers m, normalised. */
template <int M> __device__ __forceinline__ float4 normed(float4 v, float mean, float inverse, const norm_numbers<M> &o, int m)
{
    v.x = (v.x - mean) * inverse * o.w[m].x + o.b[m].x;
    v.y = (v.y - mean) * inverse * o.w[m].y + o.b[m].y;
    v.z = (v.z - mean) * inverse * o.w[m].z + o.b[m].z;
    v.w = (v.w - mean) * inverse * o.w[m].w + o.b[m].w;
    return v;
}

/* --- both products --- */

/* The warp's columns of x for the first product: pairs warp, warp + 8, ... of blocks; of Q8_0 fours of them. scale: what their
 * sums are multiplied with; of fp16, nothing. late: what sums of the normalised numbers themselves are. */
template <int P> struct own_x {
    uint4 v[P][2];
    float scale, late;
};
/* The thread's numbers v to where they are made ready, and from there what the warp multiplies: what a 1 of it stands for. */
template <int KIND, int P, int M>
__device__ __forceinline__ float put_own(uint32_t d, const float4 (&v)[M], unsigned char *parts, own_x<P> &x)
{
    uint32_t warp = threadIdx.x >> 5, most = least_digits, exponent = 0;
    if (KIND == RANK_Q8) {
#pragma unroll
        for (int m = 0; m < M; m++) most = max(most, largest_of(v[m]));
        exponent = exponent_of(most);
    }
#pragma unroll
    for (int m = 0; m < M; m++) {
        uint32_t c = own_column<KIND>(m);
        if (KIND == RANK_Q8)
            put8(parts + (warp + 8 * m) * DIGITS8, v[m], exponent, c < d);
        else
            put_parts<KIND>(parts, parts_pitch(d), c, v[m], c < d);
    }
    if (KIND == 0)
        consumers_meet();
    else
        __syncwarp();
#pragma unroll
    for (int i = 0; i < (KIND == RANK_Q8 ? M : P); i++) {
        uint32_t p = warp + 8 * i;
        if (KIND == RANK_Q8)
            take8(shared_at(parts) + p * DIGITS8, p < d / GROUP8, x.v[i]);
        else
            take_parts(parts_of_lane(shared_at(parts), parts_pitch(d)), p, p < d / 64, x.v[i]);
    }
    return KIND == RANK_Q8 ? last_digit(exponent) : 1;
}
/* x has arrived in xs: normalised, as parts or digits. Each warp makes its own columns ready, and waits for the others only
 * before anybody writes where xs is; of fp16, whose parts are more work, threads take the columns in turn (576: five warps).
 * LATE: the 1 / length of a root mean square is multiplied behind the sums. */
template <int KIND, bool LATE, int P, int M>
__device__ __forceinline__ void take_x(const ck_norm &n, uint32_t d, const float *xs, float sum, float4 (&v)[M],
                                       const norm_numbers<M> &o, unsigned char *parts, float *room, own_x<P> &x)
{
    float mean = 0, inverse = 1;
    sum = warp_sum(sum);
    if (!LATE) {
        if (n.layer) {
            mean = sum * o.per;
            sum = centred<M>(xs, d, mean, room);
        }
        inverse = inverse_of(n, sum, o.per);
    }
    if (KIND) consumers_read();
#pragma unroll
    for (int m = 0; m < M; m++) v[m] = normed(v[m], mean, inverse, o, m);
    x.scale = put_own<KIND, P>(d, v, parts, x);
    x.late = LATE ? inverse_of(n, sum, o.per) : 1;
    x.scale *= x.late;
    if (KIND) consumers_have_read();
}
/* Not of fp16, which has room for what is normalised. v: the thread's own numbers, normalised but for x.late. */
template <int KIND, int P, int M>
__device__ __forceinline__ void ready_x(const ck_norm &n, uint32_t d, const float *xs, const x_places &from,
                                        const norm_numbers<M> &o, unsigned char *parts, float *room, own_x<P> &x, float4 (&v)[M])
{
    float sum = take_places<KIND>(from, d, v);
    if (KIND == 0 || n.layer || n.bias)
        take_x<KIND, false>(n, d, xs, sum, v, o, parts, room, x);
    else
        take_x<KIND, true>(n, d, xs, sum, v, o, parts, room, x);
}
template <int KIND, int P, int M>
__device__ __forceinline__ void ready_x(const ck_norm &n, uint32_t d, const float *xs, const x_places &from,
                                        const norm_numbers<M> &o, unsigned char *parts, float *room, own_x<P> &x)
{
    float4 v[M];
    ready_x<KIND, P>(n, d, xs, from, o, parts, room, x, v);
}

/* Sums of a row of the first product: two of each warp. */
enum { RANK_SUMS = 2 * RANK_WARPS, RANK_SUMS_PITCH = CK_RANK_SUMS_PITCH };

/* The warp's pairs of blocks from the i-th on, of 16 rows, each 8 at low and high. */
template <int N>
__device__ __forceinline__ void load_columns(piece_pair (&w)[N], uint32_t d, uint32_t low, uint32_t high, uint32_t i)
{
    uint32_t g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3, warp = threadIdx.x >> 5;
    low += g * 2 * d + t * 16, high += g * 2 * d + t * 16;
#pragma unroll
    for (int k = 0; k < N; k++) load_pair(w[k], low, high, warp + 8 * (i + k), d / 32 - 1, g & 1);
}
/* The warp's sums of 16 rows into sums [16][PITCH]. */
template <int KIND, int P> __device__ __forceinline__ void put_sums(const own_x<P> &x, const float (&acc)[4][4], float *sums)
{
    uint32_t g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3, turned = g & 1;
    float2 s = halves_of<KIND>(acc, turned);
    if (KIND) s.x *= x.scale, s.y *= x.scale;
    sums += g * RANK_SUMS_PITCH + 2 * (threadIdx.x >> 5) + (t == 1);
    if (t == 1 || t == 2 * turned) sums[0] = s.x, sums[8 * RANK_SUMS_PITCH] = s.y;
}
/* 16 rows of the first product, each 8 at low and high, the warp's columns: into sums [16][PITCH]. */
template <int KIND, int P>
__device__ __forceinline__ void first_group(const own_x<P> &x, uint32_t d, uint32_t low, uint32_t high, float *sums)
{
    if (KIND == RANK_Q8) {
        first_group8<P>(x.v, x.scale, d, low, high, sums + 2 * (threadIdx.x >> 5), RANK_SUMS_PITCH);
        return;
    }
    constexpr int AT_ONCE = P < 2 ? P : 2;
    float acc[4][4] = {};
#pragma unroll
    for (int i = 0; i < P; i += AT_ONCE) {
        piece_pair w[AT_ONCE];
        load_columns<AT_ONCE>(w, d, low, high, i);
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) multiply_pair<KIND>(w[k], x.v[i + k], acc);
    }
    put_sums<KIND, P>(x, acc, sums);
}

/* The whole sum of a row of the first product. */
__device__ __forceinline__ float whole_sum(const float *sums, uint32_t row)
{
    float v = 0;
#pragma unroll
    for (int i = 0; i < RANK_SUMS; i += 4) {
        float4 s = four_at(sums, row * RANK_SUMS_PITCH + i);
        v += (s.x + s.y) + (s.z + s.w);
    }
    return v;
}

/* A lane of the second product with k columns, a multiple of 32: its x (of Q8_0, digits of all), its 16 bytes of rows g and g + 8
 * (of Q8_0, of row g, and that one's scales). */
struct second_lane {
    lane_parts x;
    uint32_t k, low, high, turned;
};
template <int KIND>
__device__ __forceinline__ second_lane second_of_lane(uint32_t parts, uint32_t k, uint32_t low, uint32_t scales)
{
    uint32_t g = (threadIdx.x & 31) >> 2, pitch = 2 * k;
    if (KIND == RANK_Q8) return second_lane{{parts, 0}, k, low, scales, 0};
    return second_lane{parts_of_lane(parts, parts_pitch(whole_pairs(k))), k, low, low + 8 * pitch, same_bank(pitch) ? g & 1 : 0};
}
/* 16 rows of it. */
template <int KIND> __device__ __forceinline__ row_sum second_sixteen(const second_lane &o)
{
    if (KIND == RANK_Q8) {
        float2 v = second_group8(o.x.at, o.k, o.low, o.high);
        return row_sum{(threadIdx.x & 3) == 1 ? v.x : v.y, row_of_lane<KIND>(1)};
    }
    uint32_t pairs = whole_pairs(o.k) / 64;
    float acc[4][4] = {};
#pragma unroll 1
    for (uint32_t p = 0; p < pairs; p += 2) {
        uint4 x[2][2];
        piece_pair w[2];
#pragma unroll
        for (int i = 0; i < 2; i++) load_pair(w[i], o.low, o.high, p + i, o.k / 32 - 1, o.turned);
#pragma unroll
        for (int i = 0; i < 2; i++) take_parts(o.x, p + i, p + i < pairs, x[i]);
#pragma unroll
        for (int i = 0; i < 2; i++) multiply_pair<KIND>(w[i], x[i], acc);
    }
    return sum_of<KIND>(acc, o.turned);
}
/* Rows row + g and row + g + 8 of those at `at`; scales from row `row` on. */
template <int KIND>
__device__ __forceinline__ row_sum second_group(const unsigned char *parts, uint32_t k, uint32_t at, uint32_t row,
                                                uint32_t scales)
{
    uint32_t g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3, pitch = KIND == RANK_Q8 ? k : 2 * k;
    second_lane o = second_of_lane<KIND>(shared_at(parts), k, at + (row + g) * pitch + t * 16, scales + g * (k / 16));
    if (KIND != RANK_Q8) o.high = at + (row + g + 8) * pitch + t * 16;
    return second_sixteen<KIND>(o);
}

/* A block's groups of 16 rows of the first product, one a stage: sums [group][16][RANK_SUMS_PITCH]. Where there are fewer rows,
 * what the stage held is multiplied, and nobody reads these sums. The next stage is looked at beside the products of this one.
 * there: the first one has been seen to be. */
template <int KIND, int P>
__device__ __forceinline__ void first_rows(const ring &r, ring_at &at, const own_x<P> &x, uint32_t d, uint32_t groups,
                                           float *sums, uint32_t there = 0)
{
    uint32_t again = ring_rest(r, at);
#pragma unroll 1
    for (uint32_t i = 0; i < groups; i++, sums += 16 * RANK_SUMS_PITCH) {
        uint32_t rows = shared_at(r.stages) + at.stage * r.bytes;
        if (!there) gate_wait(&r.full[at.stage], at.turn & 1);
        ring_at now = at;
        ring_next(r, at);
        there = i + 1 < groups && gate_over_at(shared_at(&r.full[at.stage]), at.turn & 1);
        first_group<KIND, P>(x, d, rows, rows + second_eight<KIND>(d), sums);
        ring_leave(r, now, i < again);
    }
}

/* A block's n rows of the second product, `per` of them a stage: a warp takes each eighth group of 16, and leaves all stages that
 * are filled again. k: columns of the rank; own: for rank 0, what is to be added; y: both from the block's rows on; far: from a
 * word to its far word. scales: of Q8_0, of all rows, in shared memory. */
template <int KIND>
__device__ __forceinline__ void write_rows(const ring &r, ring_at at, const unsigned char *parts, uint32_t k, uint32_t per,
                                           uint32_t n, uint64_t *y, uint32_t far, const float *own, uint32_t scales = 0)
{
    uint32_t stage = 0;
#pragma unroll 1
    for (uint32_t row = 16 * (threadIdx.x >> 5); row < n; row += 16 * RANK_WARPS) {
        for (; row >= stage + per; stage += per) leave_when_full(r, at);
        row_sum s = second_group<KIND>(parts, k, ring_full(r, at), row - stage, scales + row * (k / 16));
        uint32_t o = row + s.row;
        if (s.row < 16 && o < n) add_word(y + o, far, own ? s.v + own[o] : s.v);
    }
    while (ring_again(r, at)) leave_when_full(r, at);
}

#endif
#endif
