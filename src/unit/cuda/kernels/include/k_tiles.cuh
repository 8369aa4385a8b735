/* k_tiles.cuh: what a block of k_tiles.cu knows, and how it makes x ready: rows of fp32, normalised and gated on the way, become
 * two rows of 16 bits each, rounded and what the rounding left, as the products read them. SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_K_TILES_CUH
#define SG_UNIT_CUDA_K_TILES_CUH

#include "k_cluster.cuh"
#include "k_wgmma.cuh"

enum {
    /* that make x ready, multiply and end a cluster's tiles: two warpgroups, which take tiles in turn where there are several */
    WARPS = 8,
    HELPERS = 2, /* warps that bring what sums need besides; the one before them brings weights */
    ROWS = CK_TILES_ROWS,
    PANEL = 64,
    STAGE = CK_TILES_STAGE,
    X_PANEL = 2 * CK_TILES_X * PANEL * 2, /* bytes */
    TAPS = CK_STREAM_TAPS,
    OWN = 8 /* numbers of a tile that a thread ends: rows r and r + 8, each with four rows of x */
};

#if HOPPER

/* How a cluster's tile ends, of the block's own rows of it: made ready before the inputs. */
enum { CONVOLVED = 1, ADDED = 2, ACTIVATED = 4 };
struct ending {
    float *y;          /* where the first of them goes */
    const float *bias; /* of the first, or nullptr */
    uint32_t stride;   /* of y */
    uint32_t row, rows; /* the first, of its segment; how many there are */
    uint32_t what;
};

struct rooms {
    uint64_t full[CK_TILES_STAGES], empty[CK_TILES_STAGES], met, normed;
    float slices[8][CK_TILES_X]; /* squares of the blocks of a cluster */
    float inverse[CK_TILES_X];   /* what sums are multiplied by: 1 / length of the row of x, where that is late */
    float *kept[CK_TILES_X];     /* where a sequence's convolution is remembered for the next step */
    uint32_t stopped;
    ending ends[CK_TILES_TURNS];
};
struct work {
    uint32_t rank, first, step, many, panels; /* block of the cluster; its tiles: from the first on, each step-th, so many */
    unsigned char *x, *ring;
    float *given;  /* [many][blocks][ROWS * 16 / blocks] sums that other blocks sent */
    float *norm;   /* [slice] weights of the norm */
    float *behind; /* [shares][a.behind] */
    float *taps;   /* [many][ROWS / blocks][TAPS] */
};

template <int BF16> __device__ __forceinline__ void split(float x, float y, uint32_t &hi, uint32_t &lo)
{
    hi = BF16 ? pack<1>(x, y) : pack<0>(x * (1 / CK_F16_FEW), y * (1 / CK_F16_FEW));
    if (BF16) {
        lo = pack<1>(x - __uint_as_float(hi << 16), y - __uint_as_float(hi & 0xffff0000u));
    } else {
        const float2 kept = __half22float2(*reinterpret_cast<const __half2 *>(&hi));
        lo = pack<0>(fmaf(kept.x, -CK_F16_FEW, x), fmaf(kept.y, -CK_F16_FEW, y));
    }
}

/* What a warp makes ready of x at a time: of rows `warp` and `warp` + 8 256 columns, twice four a lane. */
enum { TIMES = 2, BATCH = 128 * TIMES };
typedef float4 batch_x[2][TIMES];

/* Where the lane's columns of both rows begin; of rows that there are not, the last one's: nobody wants their sums. Found before
 * the inputs are there, and kept. */
struct own_rows {
    const float *at[2];
};
__device__ __forceinline__ own_rows find_rows(const ck_tiles &a, const work &w, const ck_view &x)
{
    own_rows rows;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const uint32_t n = min((threadIdx.x >> 5) + j * WARPS, a.g.rows - 1);
        rows.at[j] = x.p + (size_t)n * x.stride + w.rank * a.slice + 4 * (threadIdx.x & 31);
        asm volatile("" : "+l"(rows.at[j]));
    }
    return rows;
}

__device__ __forceinline__ void load_batch(const ck_tiles &a, const own_rows &rows, uint32_t from, batch_x &v)
{
#pragma unroll
    for (int i = 0; i < TIMES; i++) {
        const uint32_t c = from + 128 * i;
        const bool real = c + 4 * (threadIdx.x & 31) < a.slice;
#pragma unroll
        for (int j = 0; j < 2; j++) v[j][i] = real ? four_at(rows.at[j], c) : make_float4(0, 0, 0, 0);
    }
}

__device__ __forceinline__ float squares_of(const float4 &v) { return fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, v.w * v.w))); }

/* The lane's squares of its two rows to all blocks of the cluster. */
__device__ __forceinline__ void give_squares(const ck_tiles &a, const work &w, rooms &s, const float (&squares)[2])
{
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const float all[2] = {warp_sum(squares[0]), warp_sum(squares[1])};
#pragma unroll
    for (int j = 0; j < 2; j++) {
        if (a.cluster_log && !(lane >> a.cluster_log)) send(all[j], &s.slices[w.rank][warp + j * WARPS], &s.normed, lane);
        if (!a.cluster_log && !lane) s.slices[0][warp + j * WARPS] = all[j];
    }
}

/* 1 / length of a whole row, when all have given their squares. */
__device__ __forceinline__ float inverse_of(const ck_tiles &a, const rooms &s, uint32_t n)
{
    float all = 0;
    for (uint32_t k = 0; k < 1u << a.cluster_log; k++) all += s.slices[k][n];
    return rsqrtf(all * a.per_group + a.g.norm.eps);
}

/* Lengths of whole rows come behind the sums of bf16 weights. fp16 has no room for rows of any length: they are read twice. */
template <int BF16> __device__ __forceinline__ bool is_late(const ck_tiles &a)
{
    return BF16 && a.g.norm.present && a.g.norm.groups == 1;
}

__device__ __forceinline__ void lengths_first(const ck_tiles &a, const work &w, const own_rows &rows, rooms &s,
                                              float (&inverse)[2])
{
    float squares[2] = {0, 0};
#pragma unroll 1
    for (uint32_t from = 0; from < a.slice; from += BATCH) {
        batch_x v;
        load_batch(a, rows, from, v);
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int i = 0; i < TIMES; i++) squares[j] += squares_of(v[j][i]);
    }
    give_squares(a, w, s, squares);
    if (a.cluster_log) gate_wait_cluster(&s.normed, 0);
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 2; j++) inverse[j] = inverse_of(a, s, (threadIdx.x >> 5) + j * WARPS);
}

/* 1 / length of the groups of 64 to 256 columns that the lane's columns are in; all sums beside each other. */
__device__ __forceinline__ void group_lengths(const ck_tiles &a, const batch_x &v, float (&inverse)[2][TIMES])
{
#pragma unroll
    for (int j = 0; j < 2; j++)
#pragma unroll
        for (int i = 0; i < TIMES; i++) inverse[j][i] = squares_of(v[j][i]);
#pragma unroll
    for (uint32_t m = 16; m; m >>= 1)
#pragma unroll
        for (int i = 0; i < 2 * TIMES; i++) {
            float &sum = inverse[i / TIMES][i % TIMES];
            if (m < 16 || a.group > 64) sum += __shfl_xor_sync(0xffffffffu, sum, m);
        }
#pragma unroll
    for (int j = 0; j < 2; j++) {
        if (a.group > 128) inverse[j][0] = inverse[j][1] = inverse[j][0] + inverse[j][1];
#pragma unroll
        for (int i = 0; i < TIMES; i++) inverse[j][i] = rsqrtf(inverse[j][i] * a.per_group + a.g.norm.eps);
    }
}

__device__ __forceinline__ void norm_batch(const ck_tiles &a, const work &w, uint32_t from, const float (&whole)[2], batch_x &v)
{
    float by[2][TIMES] = {{whole[0], whole[0]}, {whole[1], whole[1]}};
    if (a.g.norm.groups > 1) group_lengths(a, v, by);
#pragma unroll
    for (int i = 0; i < TIMES; i++) {
        const uint32_t c = from + 128 * i + 4 * (threadIdx.x & 31);
        const float4 weight = c < a.slice ? four_at(w.norm, c) : make_float4(0, 0, 0, 0);
#pragma unroll
        for (int j = 0; j < 2; j++) {
            v[j][i].x *= by[j][i] * weight.x, v[j][i].y *= by[j][i] * weight.y;
            v[j][i].z *= by[j][i] * weight.z, v[j][i].w *= by[j][i] * weight.w;
        }
    }
}

__device__ __forceinline__ void gate_batch(const batch_x &gate, batch_x &v)
{
#pragma unroll
    for (int j = 0; j < 2; j++)
#pragma unroll
        for (int i = 0; i < TIMES; i++) {
            const float4 g = gate[j][i];
            v[j][i].x *= g.x * sigmoid_short(g.x), v[j][i].y *= g.y * sigmoid_short(g.y);
            v[j][i].z *= g.z * sigmoid_short(g.z), v[j][i].w *= g.w * sigmoid_short(g.w);
        }
}

/* In two parts to where the products read it. */
template <int BF16> __device__ __forceinline__ void put_batch(const ck_tiles &a, const work &w, uint32_t from, const batch_x &v)
{
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, c = 4 * lane;
    unsigned char *first = w.x + (from + c) / PANEL * X_PANEL + piece_at(warp, c % PANEL, 0) + c % 8 * 2;
#pragma unroll
    for (int j = 0; j < 2; j++)
#pragma unroll
        for (int i = 0; i < TIMES; i++) {
            if (from + 128 * i + c >= a.slice) continue;
            uint2 hi, lo;
            split<BF16>(v[j][i].x, v[j][i].y, hi.x, lo.x);
            split<BF16>(v[j][i].z, v[j][i].w, hi.y, lo.y);
            unsigned char *to = first + 128 * i / PANEL * X_PANEL + j * WARPS * 128;
            *reinterpret_cast<uint2 *>(to) = hi;
            *reinterpret_cast<uint2 *>(to + CK_TILES_X * 128) = lo;
        }
}

/* Waits for the inputs. A loop of few instructions: code that runs once is waited for. */
template <int BF16> __device__ __forceinline__ void make_x(const ck_tiles &a, const work &w, rooms &s)
{
    const bool late = is_late<BF16>(a), gated = a.g.norm.gate.p != nullptr;
    const own_rows x = find_rows(a, w, a.g.x), gates = find_rows(a, w, gated ? a.g.norm.gate : a.g.x);
    float inverse[2] = {1, 1}, squares[2] = {0, 0};
    batch_x v, next, gate;
    wait_for_inputs();
    load_batch(a, x, 0, next);
    if (!BF16 && a.g.norm.present && a.g.norm.groups == 1) lengths_first(a, w, x, s, inverse);
#pragma unroll 1
    for (uint32_t from = 0; from < a.slice; from += BATCH) {
        if (gated) load_batch(a, gates, from, gate);
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int i = 0; i < TIMES; i++) v[j][i] = next[j][i];
        if (from + BATCH < a.slice) load_batch(a, x, from + BATCH, next);
        if (late)
#pragma unroll
            for (int j = 0; j < 2; j++)
#pragma unroll
                for (int i = 0; i < TIMES; i++) squares[j] += squares_of(v[j][i]);
        if (a.g.norm.present) norm_batch(a, w, from, inverse, v);
        if (gated) gate_batch(gate, v);
        put_batch<BF16>(a, w, from, v);
    }
    if (late) give_squares(a, w, s, squares);
}

#endif
#endif
