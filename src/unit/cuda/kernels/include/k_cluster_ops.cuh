/* k_cluster_ops.cuh: building blocks of the fused one-row kernels k_heads.cu, k_linear.cu and
 * k_mlp.cu: two matrix-vector products with one row of x, and the operations between them, in one launch.
 * sm_90.
 *
 * A cluster of 8 blocks owns some of the numbers between the products (hidden units or heads): their
 * rows of the first weight and their columns of the second. The second product thus needs only data
 * from inside the cluster; each cluster adds its part to every column of y in fixed point
 * (k_fixed_point_sum.cuh), cluster 0 also the residual and the bias.
 *
 * Weights arrive through a ring of stages (k_cluster_ring.cuh), in the order of use, loaded by a
 * separate warp before x is available. A stage of the first product holds 16 whole rows (8 and 8
 * where two matrices go together), one of the second a TMA box.
 *
 * Both products run on tensor cores, 16 rows x 16 columns at a time, straight from the stage: lane
 * (g, t), g = lane / 4, t = lane % 4, loads 16 bytes of rows g and g + 8, the A operands of two mma.
 * x is split into three 16-bit parts (together fp32), three columns of the b operand. Where rows
 * start at the same bank, lanes of odd g read the two 32-column blocks of a pair in swapped order
 * and find their x in three further columns: no bank conflicts. Q8_0 rows: k_cluster_int8.cuh;
 * packed weights: k_cluster_packed.cuh. KIND: 0 fp16, 1 bf16, KIND_Q8, KIND_PACKED.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_K_CLUSTER_OPS_CUH
#define SG_UNIT_CUDA_K_CLUSTER_OPS_CUH

#include "k_cluster_packed.cuh"

enum { PARTS = CK_CLUSTER_X_PARTS };

#if __CUDA_ARCH__ == 900

/* x in shared memory as tensor-core operands: [part][columns + 32] of 16 bits; pitch: bytes per
 * part. */
__device__ __forceinline__ uint32_t parts_pitch(uint32_t k) { return CK_CLUSTER_X_PART_PITCH(k); }

/* Columns padded to whole pairs of 32-column blocks. */
__device__ __forceinline__ uint32_t pad_to_pairs(uint32_t k) { return (k + 63) / 64 * 64; }

/* Factor of part i. Part i is the fp16 rounding of the remainder divided by its factor, so that
 * numbers up to 2.7e8 fit; what part 0 loses of small numbers, part 1 keeps. Products with part i
 * are multiplied by the factor at the end. bf16: 1. */
template <int KIND> __device__ __forceinline__ constexpr float scale_of_part(int i)
{
    return KIND == 1 ? 1.0f : i == 0 ? 4096.0f : i == 1 ? 2.0f : 1.0f / 1024;
}

/* Takes part i off two numbers and returns it packed. bf16 truncates, so that three parts are
 * exactly fp32. */
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

/* Stores the parts of four numbers at column c, if `present`. */
template <int KIND>
__device__ __forceinline__ void put_parts(unsigned char *to, uint32_t pitch, uint32_t c, float4 v, bool present)
{
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
        uint32_t a = next_part<KIND>(v.x, v.y, i), b = next_part<KIND>(v.z, v.w, i);
        if (present) *reinterpret_cast<uint2 *>(to + i * pitch + c * 2) = make_uint2(a, b);
    }
}

/* Stores the parts of two numbers. */
template <int KIND> __device__ __forceinline__ void put_two(unsigned char *to, uint32_t pitch, uint32_t c, float x, float y)
{
#pragma unroll
    for (int i = 0; i < PARTS; i++) *reinterpret_cast<uint32_t *>(to + i * pitch + c * 2) = next_part<KIND>(x, y, i);
}

/* Stores four numbers of the second product's input at column c; with Q8_0 a warp stores whole
 * groups of 128. */
template <int KIND> __device__ __forceinline__ void put_hidden(unsigned char *to, uint32_t k, uint32_t c, float4 v)
{
    if (KIND == KIND_Q8)
        put_group8(to + c / GROUP8 * DIGITS8, v);
    else
        put_parts<KIND>(to, parts_pitch(k), c, v, true);
}

/* Where this lane reads its operand of x, if it has one (is): address of its 16 bytes of block 0;
 * other: 1 in lanes for odd rows. */
struct lane_parts {
    uint32_t at, other, is;
};
__device__ __forceinline__ lane_parts parts_of_lane(uint32_t parts, uint32_t pitch)
{
    uint32_t g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3, other = g >= PARTS, part = other ? g - PARTS : g;
    return lane_parts{parts + part * pitch + t * 16, other, g < 2 * PARTS};
}
/* Loads blocks 2 p and 2 p + 1 of x for this lane, in the order of even rows; zeros where there are
 * none. */
__device__ __forceinline__ void load_x_parts(const lane_parts &from, uint32_t p, bool present, uint4 (&x)[2])
{
#pragma unroll
    for (int l = 0; l < 2; l++) {
        x[l] = make_uint4(0, 0, 0, 0);
        if (from.is && present) x[l] = lds_128(from.at + (2 * p + (l ^ from.other)) * 64);
    }
}

/* c += a b. Not volatile, unlike mma(): the compiler may schedule products by their operands alone. */
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

/* Two column blocks of 16 rows: the lane's operands and their products. low, high: the lane's 16
 * bytes of block 0 in rows g and g + 8; last: last existing block (x is zero after it); swapped: odd
 * rows take the blocks in the other order. */
struct piece_pair {
    uint4 low[2], high[2];
};
__device__ __forceinline__ void load_pair(piece_pair &w, uint32_t low, uint32_t high, uint32_t p, uint32_t last, uint32_t swapped)
{
#pragma unroll
    for (int l = 0; l < 2; l++) {
        uint32_t off = min(2 * p + (l ^ swapped), last) * 64;
        w.low[l] = lds_128(low + off), w.high[l] = lds_128(high + off);
    }
}
template <int KIND> __device__ __forceinline__ void multiply_pair(const piece_pair &w, const uint4 (&x)[2], float (&acc)[4][4])
{
#pragma unroll
    for (int l = 0; l < 2; l++) {
        const uint32_t first[4] = {w.low[l].x, w.high[l].x, w.low[l].y, w.high[l].y};
        const uint32_t second[4] = {w.low[l].z, w.high[l].z, w.low[l].w, w.high[l].w};
        add_product<KIND>(acc[2 * l], first, x[l].x, x[l].y);
        add_product<KIND>(acc[2 * l + 1], second, x[l].z, x[l].w);
    }
}

/* Sums of rows g and g + 8 in this lane. Of four lanes two hold useful columns: t = 1 one part, and
 * lane 0 (2 where swapped) the other two. */
template <int KIND> __device__ __forceinline__ float2 lane_sums(const float (&acc)[4][4], uint32_t swapped)
{
    constexpr float S[PARTS] = {scale_of_part<KIND>(0), scale_of_part<KIND>(1), scale_of_part<KIND>(2)};
    bool one = (threadIdx.x & 3) == 1;
    float of_a = one ? (swapped ? 0 : S[2]) : (swapped ? S[1] : S[0]),
          of_b = one ? (swapped ? S[0] : 0) : (swapped ? S[2] : S[1]);
    float v[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float a = acc[0][2 * i] + acc[1][2 * i] + (acc[2][2 * i] + acc[3][2 * i]);
        float b = acc[0][2 * i + 1] + acc[1][2 * i + 1] + (acc[2][2 * i + 1] + acc[3][2 * i + 1]);
        v[i] = KIND != 1 ? fmaf(b, of_b, a * of_a) : !one ? a + b : swapped ? b : a;
    }
    return make_float2(v[0], v[1]);
}
/* Row of 16 whose complete sum this lane has after sum_of; 16: none. */
template <int KIND> __device__ __forceinline__ uint32_t row_of_lane(uint32_t swapped)
{
    uint32_t g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
    return t == 1 ? g : t == (KIND == KIND_Q8 || swapped ? 2 : 0) ? g + 8 : 16;
}
struct row_sum {
    float v;
    uint32_t row;
};
/* Adds the two useful lanes of each row; see row_of_lane for the owner. */
template <int KIND> __device__ __forceinline__ row_sum sum_of(const float (&acc)[4][4], uint32_t swapped)
{
    float2 v = lane_sums<KIND>(acc, swapped);
    uint32_t lane = threadIdx.x & 31;
    bool one = (lane & 3) == 1;
    float other = __shfl_sync(0xffffffffu, one ? v.y : v.x, lane ^ (swapped ? 3 : 1));
    return row_sum{(one ? v.x : v.y) + other, row_of_lane<KIND>(swapped)};
}

/* Rows of this pitch start at the same shared-memory bank. */
__device__ __forceinline__ bool rows_share_bank(uint32_t pitch) { return pitch % 128 == 0; }

/* First of the four columns of x that this thread normalises in step m; except for fp16 its own warp
 * also multiplies them. */
template <int KIND> __device__ __forceinline__ uint32_t thread_column(int m)
{
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    return KIND != 1 ? 4 * (threadIdx.x + 256 * m) : 64 * (warp + 8 * (2 * m + lane / 16)) + 4 * (lane % 16);
}
/* This thread's norm weights (1 + weight applied) and biases. */
template <int M> struct norm_coeffs {
    float4 w[M], b[M];
    float per; /* 1 / number of columns */
};
template <int KIND, int M> __device__ __forceinline__ void load_norm(const ck_norm &n, uint32_t d, norm_coeffs<M> &o)
{
    float plus = n.plus_one && n.weight ? 1.0f : 0.0f;
    o.per = 1.0f / d;
#pragma unroll
    for (int m = 0; m < M; m++) {
        uint32_t c = thread_column<KIND>(m);
        o.w[m] = o.b[m] = make_float4(0, 0, 0, 0);
        if (c >= d) continue;
        o.w[m] = n.weight ? float4_at(n.weight, c) : make_float4(1, 1, 1, 1);
        o.w[m].x += plus, o.w[m].y += plus, o.w[m].z += plus, o.w[m].w += plus;
        if (n.bias) o.b[m] = float4_at(n.bias, c);
    }
}

/* Sum of (x - mean)^2 over the block, for layer norm. */
template <int M> __device__ __forceinline__ float centred(const float *xs, uint32_t d, float mean, float *scratch)
{
    float s = 0;
#pragma unroll
    for (int m = 0; m < M; m++) {
        uint32_t c = 4 * (threadIdx.x + 256 * m);
        if (c >= d) continue;
        float4 v = float4_at(xs, c);
        v.x -= mean, v.y -= mean, v.z -= mean, v.w -= mean;
        s += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
    s = warp_sum(s);
    if (!(threadIdx.x & 31)) scratch[threadIdx.x >> 5] = s;
    consumers_sync();
    s = 0;
#pragma unroll
    for (int w = 0; w < CONSUMER_WARPS; w++) s += scratch[w];
    return s;
}

/* Addresses of this thread's columns of x (four, plus four every 1,024 columns) and of its two norm
 * statistics. */
struct x_addresses {
    uint32_t xs, stats;
};
template <int KIND> __device__ __forceinline__ x_addresses find_x_addresses(const float *xs, const cluster_stats *stats)
{
    x_addresses p = {smem_addr(xs + thread_column<KIND>(0)), smem_addr(stats->of + 2 * (threadIdx.x & 31))};
    asm volatile("" : "+r"(p.xs), "+r"(p.stats)); /* computed here, before the wait */
    return p;
}
/* Loads both once x has arrived; returns this thread's share of the statistics. */
template <int KIND, int M> __device__ __forceinline__ float load_x_and_stats(const x_addresses &p, uint32_t d, float4 (&v)[M])
{
#pragma unroll
    for (int m = 0; m < M; m++) v[m] = thread_column<KIND>(m) < d ? lds_f32x4(p.xs + 4096 * m) : make_float4(0, 0, 0, 0);
    uint2 s = lds_64(p.stats);
    return __uint_as_float(s.x) + __uint_as_float(s.y);
}
/* 1 / rms (or 1 / standard deviation) from the sum of squares; 1 without a norm. */
__device__ __forceinline__ float inverse_of(const ck_norm &n, float sum, float per)
{
    float length = rsqrtf(fmaf(sum, per, n.eps));
    return n.present ? length : 1;
}
/* Normalises the thread's four numbers of step m. */
template <int M> __device__ __forceinline__ float4 normed(float4 v, float mean, float inverse, const norm_coeffs<M> &o, int m)
{
    v.x = (v.x - mean) * inverse * o.w[m].x + o.b[m].x;
    v.y = (v.y - mean) * inverse * o.w[m].y + o.b[m].y;
    v.z = (v.z - mean) * inverse * o.w[m].z + o.b[m].z;
    v.w = (v.w - mean) * inverse * o.w[m].w + o.b[m].w;
    return v;
}

/* The warp's operands of x for the first product: pairs warp, warp + 8, ... of blocks (Q8_0: groups
 * of 128). scale: factor of the sums (unused for fp16); inv_rms: the deferred norm factor, for sums
 * of x computed without tensor cores. */
template <int P> struct x_frags {
    uint4 v[P][2];
    float scale, inv_rms;
};
/* Stores the thread's numbers v as parts or digits and loads the warp's operands; returns the value
 * of one unit of the digits. */
template <int KIND, int P, int M>
__device__ __forceinline__ float store_x_parts(uint32_t d, const float4 (&v)[M], unsigned char *parts, x_frags<P> &x)
{
    uint32_t warp = threadIdx.x >> 5, max_bits = min_exponent_bits, exponent = 0;
    if (KIND == KIND_PACKED) { /* up to 1,024 columns; first_packed reads the operands */
        if (warp < d / 128) put_packed_group(packed_x_at(parts, d), warp, v[0]);
        consumers_sync();
        return 1;
    }
    if (KIND == KIND_Q8) {
#pragma unroll
        for (int m = 0; m < M; m++) max_bits = max(max_bits, max_abs_bits(v[m]));
        exponent = warp_exponent(max_bits);
    }
#pragma unroll
    for (int m = 0; m < M; m++) {
        uint32_t c = thread_column<KIND>(m);
        if (KIND == KIND_Q8)
            put8(parts + (warp + 8 * m) * DIGITS8, v[m], exponent, c < d);
        else
            put_parts<KIND>(parts, parts_pitch(d), c, v[m], c < d);
    }
    if (KIND == 0)
        consumers_sync();
    else
        __syncwarp();
#pragma unroll
    for (int i = 0; i < (KIND == KIND_Q8 ? M : P); i++) {
        uint32_t p = warp + 8 * i;
        if (KIND == KIND_Q8)
            load_x8(smem_addr(parts) + p * DIGITS8, p < d / GROUP8, x.v[i]);
        else
            load_x_parts(parts_of_lane(smem_addr(parts), parts_pitch(d)), p, p < d / 64, x.v[i]);
    }
    return KIND == KIND_Q8 ? last_digit_value(exponent) : 1;
}
/* Normalises x (already in xs) and makes the operands. Each warp prepares its own columns and waits
 * for the others only before xs is overwritten; with fp16, where splitting costs more, threads share
 * the columns evenly. LATE: the RMS factor is applied to the sums. */
template <int KIND, bool LATE, int P, int M>
__device__ __forceinline__ void normalize_x(const ck_norm &n, uint32_t d, const float *xs, float sum, float4 (&v)[M],
                                            const norm_coeffs<M> &o, unsigned char *parts, float *scratch, x_frags<P> &x)
{
    float mean = 0, inverse = 1;
    sum = warp_sum(sum);
    if (!LATE) {
        if (n.layer) {
            mean = sum * o.per;
            sum = centred<M>(xs, d, mean, scratch);
        }
        inverse = inverse_of(n, sum, o.per);
    }
    constexpr bool SPLIT = KIND && KIND != KIND_PACKED; /* else store_x_parts joins the consumers */
    if (SPLIT) consumers_arrive_read();
#pragma unroll
    for (int m = 0; m < M; m++) v[m] = normed(v[m], mean, inverse, o, m);
    x.scale = store_x_parts<KIND, P>(d, v, parts, x);
    x.inv_rms = LATE ? inverse_of(n, sum, o.per) : 1;
    x.scale *= x.inv_rms;
    if (SPLIT) consumers_wait_read();
}
/* Complete preparation of x after its arrival. fp16 parts could overflow without the norm, so there
 * the norm comes first. v: the thread's columns, normalised except for x.inv_rms. */
template <int KIND, int P, int M>
__device__ __forceinline__ void prepare_x(const ck_norm &n, uint32_t d, const float *xs, const x_addresses &from,
                                          const norm_coeffs<M> &o, unsigned char *parts, float *scratch, x_frags<P> &x,
                                          float4 (&v)[M])
{
    float sum = load_x_and_stats<KIND>(from, d, v);
    if (KIND == 0 || n.layer || n.bias)
        normalize_x<KIND, false>(n, d, xs, sum, v, o, parts, scratch, x);
    else
        normalize_x<KIND, true>(n, d, xs, sum, v, o, parts, scratch, x);
}
template <int KIND, int P, int M>
__device__ __forceinline__ void prepare_x(const ck_norm &n, uint32_t d, const float *xs, const x_addresses &from,
                                          const norm_coeffs<M> &o, unsigned char *parts, float *scratch, x_frags<P> &x)
{
    float4 v[M];
    prepare_x<KIND, P>(n, d, xs, from, o, parts, scratch, x, v);
}

/* Partial sums per row of the first product: two from each warp. */
enum { ROW_SUMS = 2 * CONSUMER_WARPS, SUMS_PITCH = CK_CLUSTER_SUMS_PITCH };

/* Loads the warp's block pairs i, i + 1, ... of 16 rows, eight at `low` and eight at `high`. */
template <int N>
__device__ __forceinline__ void load_columns(piece_pair (&w)[N], uint32_t d, uint32_t low, uint32_t high, uint32_t i)
{
    uint32_t g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3, warp = threadIdx.x >> 5;
    low += g * 2 * d + t * 16, high += g * 2 * d + t * 16;
#pragma unroll
    for (int k = 0; k < N; k++) load_pair(w[k], low, high, warp + 8 * (i + k), d / 32 - 1, g & 1);
}
/* Stores the warp's partial sums of 16 rows into sums [16][pitch]. */
template <int KIND, int P> __device__ __forceinline__ void put_sums(const x_frags<P> &x, const float (&acc)[4][4], float *sums)
{
    uint32_t g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3, swapped = g & 1;
    float2 s = lane_sums<KIND>(acc, swapped);
    if (KIND) s.x *= x.scale, s.y *= x.scale;
    sums += g * SUMS_PITCH + 2 * (threadIdx.x >> 5) + (t == 1);
    if (t == 1 || t == 2 * swapped) sums[0] = s.x, sums[8 * SUMS_PITCH] = s.y;
}
/* First product of 16 rows over the warp's columns, into sums [16][pitch]. */
template <int KIND, int P>
__device__ __forceinline__ void first_group(const x_frags<P> &x, uint32_t d, uint32_t low, uint32_t high, float *sums)
{
    if (KIND == KIND_Q8) {
        first_group8<P>(x.v, x.scale, d, low, high, sums + 2 * (threadIdx.x >> 5), SUMS_PITCH);
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

/* Complete sum of a row of the first product. */
__device__ __forceinline__ float sum_row(const float *sums, uint32_t row)
{
    float v = 0;
#pragma unroll
    for (int i = 0; i < ROW_SUMS; i += 4) {
        float4 s = float4_at(sums, row * SUMS_PITCH + i);
        v += (s.x + s.y) + (s.z + s.w);
    }
    return v;
}

/* A lane's operands in the second product with k columns (a multiple of 32): x (Q8_0: its digits),
 * the lane's 16 bytes of rows g and g + 8 (Q8_0: of row g, and its scales). */
struct second_lane {
    lane_parts x;
    uint32_t k, low, high, swapped;
};
template <int KIND>
__device__ __forceinline__ second_lane second_of_lane(uint32_t parts, uint32_t k, uint32_t low, uint32_t scales)
{
    uint32_t g = (threadIdx.x & 31) >> 2, pitch = 2 * k;
    if (KIND == KIND_Q8) return second_lane{{parts, 0}, k, low, scales, 0};
    return second_lane{parts_of_lane(parts, parts_pitch(pad_to_pairs(k))), k, low, low + 8 * pitch,
                       rows_share_bank(pitch) ? g & 1 : 0};
}
/* Second product of 16 rows; see row_of_lane for the owners of the sums. */
template <int KIND> __device__ __forceinline__ row_sum second_sixteen(const second_lane &o)
{
    if (KIND == KIND_Q8) {
        float2 v = second_group8(o.x.at, o.k, o.low, o.high);
        return row_sum{(threadIdx.x & 3) == 1 ? v.x : v.y, row_of_lane<KIND>(1)};
    }
    uint32_t pairs = pad_to_pairs(o.k) / 64;
    float acc[4][4] = {};
#pragma unroll 1
    for (uint32_t p = 0; p < pairs; p += 2) {
        uint4 x[2][2];
        piece_pair w[2];
#pragma unroll
        for (int i = 0; i < 2; i++) load_pair(w[i], o.low, o.high, p + i, o.k / 32 - 1, o.swapped);
#pragma unroll
        for (int i = 0; i < 2; i++) load_x_parts(o.x, p + i, p + i < pairs, x[i]);
#pragma unroll
        for (int i = 0; i < 2; i++) multiply_pair<KIND>(w[i], x[i], acc);
    }
    return sum_of<KIND>(acc, o.swapped);
}
/* second_group for rows that were not prefetched: row + g and row + g + 8 of the ring stage at shared-memory address `at`.
 * scales: address of the scales of row `row`. */
template <int KIND>
__device__ __forceinline__ row_sum second_group(const unsigned char *parts, uint32_t k, uint32_t at, uint32_t row,
                                                uint32_t scales)
{
    uint32_t g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3, pitch = KIND == KIND_Q8 ? k : 2 * k;
    second_lane o = second_of_lane<KIND>(smem_addr(parts), k, at + (row + g) * pitch + t * 16, scales + g * (k / 16));
    if (KIND != KIND_Q8) o.high = at + (row + g + 8) * pitch + t * 16;
    return second_sixteen<KIND>(o);
}

/* First product over all of the block's groups of 16 rows, one stage each: sums
 * [group][16][SUMS_PITCH]. For missing rows stale stage contents are multiplied and the sums are
 * never read. The next stage's mbarrier is tested while this one is multiplied. first_full: the
 * first stage was already seen to be full. */
template <int KIND, int P>
__device__ __forceinline__ void first_rows(const ring &r, ring_pos &at, const x_frags<P> &x, uint32_t d, uint32_t groups,
                                           float *sums, uint32_t first_full = 0)
{
    uint32_t again = ring_refills_left(r, at);
#pragma unroll 1
    for (uint32_t i = 0; i < groups; i++, sums += 16 * SUMS_PITCH) {
        uint32_t rows = smem_addr(r.stages) + at.stage * r.bytes;
        if (!first_full) mbar_wait(&r.full[at.stage], at.turn & 1);
        ring_pos now = at;
        ring_next(r, at);
        first_full = i + 1 < groups && mbar_test_at(smem_addr(&r.full[at.stage]), at.turn & 1);
        first_group<KIND, P>(x, d, rows, rows + second_eight<KIND>(d), sums);
        ring_release(r, now, i < again);
    }
}

/* Second product of the block's n rows, `per` per stage: a warp computes every eighth group of 16
 * and releases all stages that are refilled. k: columns of the cluster; extra: added to the sums
 * (cluster 0, else NULL); y: sums from the block's first row on; coarse: distance to the coarse
 * words; scales: Q8_0 scales of all rows, in shared memory. */
template <int KIND>
__device__ __forceinline__ void write_rows(const ring &r, ring_pos at, const unsigned char *parts, uint32_t k, uint32_t per,
                                           uint32_t n, uint64_t *y, uint32_t coarse, const float *extra, uint32_t scales = 0)
{
    uint32_t stage = 0;
#pragma unroll 1
    for (uint32_t row = 16 * (threadIdx.x >> 5); row < n; row += 16 * CONSUMER_WARPS) {
        for (; row >= stage + per; stage += per) skip_stage(r, at);
        row_sum s = second_group<KIND>(parts, k, ring_wait_full(r, at), row - stage, scales + row * (k / 16));
        uint32_t o = row + s.row;
        if (s.row < 16 && o < n) add_fixed_point(y + o, coarse, extra ? s.v + extra[o] : s.v);
    }
    while (ring_refilled(r, at)) skip_stage(r, at);
}

#endif
#endif
