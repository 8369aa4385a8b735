/* k_tiles.cuh: shared state of a block of k_tiles.cu, and the preparation of x: fp32 rows are
 * normalised and gated, and stored as two 16-bit rows each (rounded value and remainder) in the
 * swizzled layout that wgmma reads.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_K_TILES_CUH
#define SG_UNIT_CUDA_K_TILES_CUH

#include "k_cluster.cuh"
#include "k_wgmma.cuh"

enum {
    /* Consumer warps: prepare x, multiply, and finish a cluster's tiles. Two warpgroups, which
     * alternate between tiles if there are several. */
    WARPS = 8,
    /* warps that load what the epilogue needs; the warp before them loads weights */
    HELPERS = 2,
    ROWS = CK_TILES_ROWS,
    PANEL = 64,
    STAGE = CK_TILES_STAGE,
    X_PANEL = 2 * CK_TILES_X_ROWS * PANEL * 2, /* bytes */
    TAPS = CK_STREAM_TAPS,
    /* sums of a tile per thread: rows r and r + 8, four rows of x each */
    LANE_SUMS = 8
};

#if HOPPER

/* How the block's share of a tile is finished; prepared before the inputs arrive. */
enum { CONVOLVED = 1, ADDED = 2, ACTIVATED = 4 };
struct tile_epilogue {
    float *y;           /* output of the first row */
    const float *bias;  /* bias of the first row, or NULL */
    uint32_t stride;    /* row stride of y */
    uint32_t row, rows; /* first row in its segment; number of rows */
    uint32_t what;
};

/* Static shared memory of a block. */
struct tiles_smem {
    uint64_t full[CK_TILES_STAGES], empty[CK_TILES_STAGES], sums_full, norms_full;
    float squares_of_cta[8][CK_TILES_X_ROWS]; /* sums of squares from each block of the cluster */
    float inverse[CK_TILES_X_ROWS];           /* factor of the sums: 1 / rms of the row of x where it is applied late, else 1 */
    float *conv_state[CK_TILES_X_ROWS];       /* convolution state of each sequence, to be written */
    uint32_t stopped;
    tile_epilogue ends[CK_TILES_PER_CLUSTER];
};
/* Work of the block and its dynamic shared memory. */
struct tiles_work {
    /* index in the cluster; first tile, step between tiles, number of tiles; panels of x */
    uint32_t cta_rank, first, step, n_tiles, panels;
    uint32_t column0, slice; /* the block's columns: first, number */
    unsigned char *x, *ring;
    float *recv_sums; /* [n_tiles][blocks][ROWS * 16 / blocks] sums received from the other blocks */
    float *norm;      /* [slice] norm weights */
    float *extras;    /* [outputs][a.behind] residual or convolution state */
    float *taps;      /* [n_tiles][ROWS / blocks][TAPS] convolution weights */
};

/* Splits two numbers into packed rounded values and remainders; fp16: scaled by 1 / CK_F16_FEW. */
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

/* Step size of the preparation: a warp handles rows warp and warp + 8, 256 columns at a time, two
 * float4 per lane. */
enum { STEPS = 2, BATCH = 128 * STEPS };
typedef float4 batch_x[2][STEPS];

/* Start of the lane's columns in both rows; for missing rows the last one is read and its sums are
 * never used. Computed before the inputs arrive (the asm statement keeps it there). */
struct x_rows {
    const float *at[2];
};
__device__ __forceinline__ x_rows find_rows(const ck_tiles &a, const tiles_work &w, const ck_view &x)
{
    x_rows rows;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        /* Rows warp and warp + 8. */
        const uint32_t n = min((threadIdx.x >> 5) + j * WARPS, a.g.rows - 1);
        rows.at[j] = x.p + (size_t)n * x.stride + w.column0 + 4 * (threadIdx.x & 31);
        asm volatile("" : "+l"(rows.at[j]));
    }
    return rows;
}

/* Loads one batch of x (or of the gate); zeros after the slice. */
__device__ __forceinline__ void load_batch(const tiles_work &w, const x_rows &rows, uint32_t from, batch_x &v)
{
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        const uint32_t c = from + 128 * i;
        const bool real = c + 4 * (threadIdx.x & 31) < w.slice;
#pragma unroll
        for (int j = 0; j < 2; j++) v[j][i] = real ? float4_at(rows.at[j], c) : make_float4(0, 0, 0, 0);
    }
}

__device__ __forceinline__ float squares_of(const float4 &v) { return fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, v.w * v.w))); }

/* Sends this lane's sums of squares of its two rows to all blocks of the cluster. */
__device__ __forceinline__ void share_squares(const ck_tiles &a, const tiles_work &w, tiles_smem &s, const float (&squares)[2])
{
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const float all[2] = {warp_sum(squares[0]), warp_sum(squares[1])};
    /* One lane per target block. */
#pragma unroll
    for (int j = 0; j < 2; j++) {
        if (a.cluster_log && !(lane >> a.cluster_log))
            send_to_block(all[j], &s.squares_of_cta[w.cta_rank][warp + j * WARPS], &s.norms_full, lane);
        if (!a.cluster_log && !lane) s.squares_of_cta[0][warp + j * WARPS] = all[j];
    }
}

/* 1 / rms of row n, once all blocks have sent their sums. */
__device__ __forceinline__ float inverse_of(const ck_tiles &a, const tiles_smem &s, uint32_t n)
{
    float all = 0;
    for (uint32_t k = 0; k < 1u << a.cluster_log; k++) all += s.squares_of_cta[k][n];
    return rsqrtf(all * a.per_group + a.g.norm.eps);
}

/* With bf16 weights the norm of whole rows is applied to the sums. fp16 cannot represent rows of any
 * length, so x is read twice. */
template <class W> __device__ __forceinline__ bool norm_after_sums(const ck_tiles &a)
{
    return W::BF16 && a.g.norm.present && a.g.norm.groups == 1;
}

/* fp16: first pass over x, to compute 1 / rms of the two rows before they are stored. */
__device__ __forceinline__ void prepass_norms(const ck_tiles &a, const tiles_work &w, const x_rows &rows, tiles_smem &s,
                                              float (&inverse)[2])
{
    float squares[2] = {0, 0};
#pragma unroll 1
    for (uint32_t from = 0; from < w.slice; from += BATCH) {
        batch_x v;
        load_batch(w, rows, from, v);
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int i = 0; i < STEPS; i++) squares[j] += squares_of(v[j][i]);
    }
    share_squares(a, w, s, squares);
    if (a.cluster_log) mbar_wait_cluster(&s.norms_full, 0);
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 2; j++) inverse[j] = inverse_of(a, s, (threadIdx.x >> 5) + j * WARPS);
}

/* 1 / rms of the groups (64 to 256 columns) that the lane's columns belong to; all reductions
 * interleaved. */
__device__ __forceinline__ void group_lengths(const ck_tiles &a, const batch_x &v, float (&inverse)[2][STEPS])
{
    /* Squares of the lane's float4, reduced over 16 to 64 lanes' columns. */
#pragma unroll
    for (int j = 0; j < 2; j++)
#pragma unroll
        for (int i = 0; i < STEPS; i++) inverse[j][i] = squares_of(v[j][i]);
#pragma unroll
    for (uint32_t m = 16; m; m >>= 1)
#pragma unroll
        for (int i = 0; i < 2 * STEPS; i++) {
            float &sum = inverse[i / STEPS][i % STEPS];
            if (m < 16 || a.group > 64) sum += __shfl_xor_sync(0xffffffffu, sum, m);
        }
#pragma unroll
    for (int j = 0; j < 2; j++) {
        if (a.group > 128) inverse[j][0] = inverse[j][1] = inverse[j][0] + inverse[j][1];
#pragma unroll
        for (int i = 0; i < STEPS; i++) inverse[j][i] = rsqrtf(inverse[j][i] * a.per_group + a.g.norm.eps);
    }
}

/* Applies the norm to a batch. */
__device__ __forceinline__ void norm_batch(const ck_tiles &a, const tiles_work &w, uint32_t from, const float (&whole)[2],
                                           batch_x &v)
{
    /* Factors: whole-row norm, or the group norms of this batch. */
    float by[2][STEPS] = {{whole[0], whole[0]}, {whole[1], whole[1]}};
    if (a.g.norm.groups > 1) group_lengths(a, v, by);
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        const uint32_t c = from + 128 * i + 4 * (threadIdx.x & 31);
        const float4 weight = c < w.slice ? float4_at(w.norm, c) : make_float4(0, 0, 0, 0);
#pragma unroll
        for (int j = 0; j < 2; j++) {
            v[j][i].x *= by[j][i] * weight.x, v[j][i].y *= by[j][i] * weight.y;
            v[j][i].z *= by[j][i] * weight.z, v[j][i].w *= by[j][i] * weight.w;
        }
    }
}

/* Multiplies a batch by SiLU(gate). */
__device__ __forceinline__ void gate_batch(const batch_x &gate, batch_x &v)
{
#pragma unroll
    for (int j = 0; j < 2; j++)
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            const float4 g = gate[j][i];
            v[j][i].x *= g.x * sigmoid_fast(g.x), v[j][i].y *= g.y * sigmoid_fast(g.y);
            v[j][i].z *= g.z * sigmoid_fast(g.z), v[j][i].w *= g.w * sigmoid_fast(g.w);
        }
}

/* Where four columns of x are stored in the order of operands in registers: panel, product of 16 columns, lane of the product. */
struct x_place {
    uint32_t panel, product, t;
};

/* Stores a batch in two parts, swizzled for wgmma. Left operands in registers have four columns of a lane in two pairs, eight
 * columns apart. */
template <class W> __device__ __forceinline__ void put_batch(const tiles_work &w, uint32_t from, const batch_x &v)
{
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, c = 4 * lane;
    unsigned char *first = w.x + (from + c) / PANEL * X_PANEL + piece_at(warp, c % PANEL, 0) + c % 8 * 2;
#pragma unroll
    for (int j = 0; j < 2; j++)
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            if (from + 128 * i + c >= w.slice) continue;
            uint2 hi, lo;
            split<W::BF16>(v[j][i].x, v[j][i].y, hi.x, lo.x);
            split<W::BF16>(v[j][i].z, v[j][i].w, hi.y, lo.y);
            if (!W::ORDERED) {
                unsigned char *to = first + 128 * i / PANEL * X_PANEL + j * WARPS * 128;
                *reinterpret_cast<uint2 *>(to) = hi;
                *reinterpret_cast<uint2 *>(to + CK_TILES_X_ROWS * 128) = lo;
                continue;
            }
            const x_place p = W::place(lane, i);
            unsigned char *panel = w.x + (from / PANEL + p.panel) * X_PANEL + j * WARPS * 128 + p.t * 4;
            const uint32_t one = piece_at(warp, p.product * 16, 0), two = piece_at(warp, p.product * 16 + 8, 0);
            *reinterpret_cast<uint32_t *>(panel + one) = hi.x;
            *reinterpret_cast<uint32_t *>(panel + two) = hi.y;
            *reinterpret_cast<uint32_t *>(panel + CK_TILES_X_ROWS * 128 + one) = lo.x;
            *reinterpret_cast<uint32_t *>(panel + CK_TILES_X_ROWS * 128 + two) = lo.y;
        }
}

/* Waits for the inputs and prepares all of x. Kept as a short loop to limit instruction-cache
 * misses. */
template <class W> __device__ __forceinline__ void make_x(const ck_tiles &a, const tiles_work &w, tiles_smem &s)
{
    const bool after_sums = norm_after_sums<W>(a), gated = a.g.norm.gate.p != nullptr;
    const x_rows x = find_rows(a, w, a.g.x), gates = find_rows(a, w, gated ? a.g.norm.gate : a.g.x);
    float inverse[2] = {1, 1}, squares[2] = {0, 0};
    batch_x v, next, gate;
    wait_for_inputs();
    load_batch(w, x, 0, next);
    if (!W::BF16 && a.g.norm.present && a.g.norm.groups == 1) prepass_norms(a, w, x, s, inverse);
    /* The next batch is loaded while this one is processed. */
#pragma unroll 1
    for (uint32_t from = 0; from < w.slice; from += BATCH) {
        if (gated) load_batch(w, gates, from, gate);
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int i = 0; i < STEPS; i++) v[j][i] = next[j][i];
        if (from + BATCH < w.slice) load_batch(w, x, from + BATCH, next);
        if (after_sums)
#pragma unroll
            for (int j = 0; j < 2; j++)
#pragma unroll
                for (int i = 0; i < STEPS; i++) squares[j] += squares_of(v[j][i]);
        if (a.g.norm.present) norm_batch(a, w, from, inverse, v);
        if (gated) gate_batch(gate, v);
        put_batch<W>(w, from, v);
    }
    if (after_sums) share_squares(a, w, s, squares);
}

#endif
#endif
