/* k_heads_rows.cuh: what a block of k_heads.cu computes: its head and rows of the weights, the loads of both and of K and V, and
 * where finished rows are sent. sm_90.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_K_HEADS_ROWS_CUH
#define SG_UNIT_CUDA_K_HEADS_ROWS_CUH

#include "k_cluster_ops.cuh"

#if __CUDA_ARCH__ == 900

enum { Q, K, V, GATE };

/* CLUSTERS per head, COLS: the cluster's columns of v, gate and output. QK_ROWS, VG_ROWS: rows of a
 * block in q or k, and in v or gate. The cluster's rows are stored as [q D | k D | v | gate]. */
template <int D> struct shape {
    enum { CLUSTERS = D / CK_HEADS_COLS(D), COLS = D / CLUSTERS, QK_ROWS = D / CLUSTER, VG_ROWS = COLS / CLUSTER };
};

/* Prefetched K and V in shared memory, each thread in its own place: eight lanes read one position,
 * piece c of a lane starts at column 8 lane + 64 c. */
template <int D> struct kv_prefetch {
    /* groups of 32 positions of a block */
    enum { PIECES = D / 64, OF_V = shape<D>::COLS / 64, GROUPS = CK_HEADS_POS_GROUPS(D) };
    uint4 k[GROUPS][PIECES][CLUSTER_CONSUMERS], v[GROUPS][OF_V][CLUSTER_CONSUMERS];
};
/* cp.async of 16 bytes, zero-filled where `is` is false. */
__device__ __forceinline__ void cp_async_16_zfill(uint4 *to, const unsigned char *from, bool is)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(smem_addr(to)), "l"(from), "r"(is ? 16 : 0) : "memory");
}

/* Partial softmax of a lane group, warp or block: largest score (in base 2) and sum of exponentials.
 * `lowest` is below any score. */
struct alignas(8) softmax_part {
    float max, sum;
};
static const float lowest = -1e38f;

/* What this block computes. */
struct heads_work {
    /* part: half of the head; rows: output rows of the block; pos: position of the row */
    uint32_t cluster, head, part, kv, cta, rows, pos;
    bool stores;          /* this cluster stores K and V */
    unsigned char *k, *v; /* position 0 of the head's K, and of the cluster's columns of V */
    size_t pitch;         /* bytes between positions */
};
template <int D> __device__ __forceinline__ heads_work work_of(const ck_heads &a)
{
    enum { CLUSTERS = shape<D>::CLUSTERS };
    heads_work w;
    uint32_t heads = gridDim.x / (CLUSTER * CLUSTERS);
    w.cluster = blockIdx.x / CLUSTER;
    w.head = w.cluster / CLUSTERS;
    w.part = w.cluster % CLUSTERS;
    w.kv = w.head * a.kv_heads / heads;
    w.cta = cluster_cta_rank();
    w.rows = a.d / CLUSTER;
    w.pos = a.pass.place[0];
    w.stores = w.head * a.kv_heads % heads == 0;
    w.pitch = (size_t)a.kv_heads * D * 2;
    w.k = static_cast<unsigned char *>(a.pass.slots[a.slot_k]) + (size_t)w.kv * D * 2;
    w.v = static_cast<unsigned char *>(a.pass.slots[a.slot_v]) + (size_t)w.kv * D * 2 + w.part * shape<D>::COLS * 2;
    return w;
}
/* Number of q, k, v and gate rows that a block computes. */
template <int D> __device__ __forceinline__ uint32_t rows_of(const ck_heads &a)
{
    return 2 * shape<D>::QK_ROWS + (a.in[GATE].data ? 2 : 1) * shape<D>::VG_ROWS;
}
/* Row i of the block: weight (Q, K, V or GATE), row of that weight, and index among the cluster's
 * rows. */
struct heads_row {
    uint32_t weight, row, at;
};
template <int D> __device__ __forceinline__ heads_row row_of(const heads_work &w, uint32_t i)
{
    enum { QK_ROWS = shape<D>::QK_ROWS, VG_ROWS = shape<D>::VG_ROWS, COLS = shape<D>::COLS };
    heads_row r;
    if (i < 2 * QK_ROWS) {
        uint32_t c = w.cta * QK_ROWS + i % QK_ROWS;
        r.weight = i / QK_ROWS;
        r.row = (r.weight == K ? w.kv : w.head) * D + c;
        r.at = r.weight * D + c;
    } else {
        uint32_t c = w.cta * VG_ROWS + (i - 2 * QK_ROWS) % VG_ROWS;
        r.weight = V + (i - 2 * QK_ROWS) / VG_ROWS;
        r.row = (r.weight == V ? w.kv : w.head) * D + w.part * COLS + c;
        r.at = 2 * D + (r.weight - V) * COLS + c;
    }
    return r;
}

/* Issues the loads of eight weight rows, the block's rows i to i + 7, into a stage. */
template <int KIND, int D>
__device__ __forceinline__ void load_rows_8(const ck_heads &a, const heads_work &w, uint32_t i, unsigned char *to, uint64_t *mbar)
{
    heads_row r = row_of<D>(w, i);
    load_rows<KIND, 1>(to, a.in[r.weight], r.row, 8, a.d, mbar);
}

/* Producer thread: all weights of the block in the order of use, first q, k, v and gate by 16 rows,
 * then boxes of the output weight. */
template <int KIND, int D> __device__ __forceinline__ void load_weights(const ck_heads &a, const heads_work &w, const ring &r)
{
    constexpr uint32_t WIDTH = shape<D>::COLS * (KIND == KIND_Q8 ? 1 : 2); /* bytes of a row of the output weight */
    uint32_t n = rows_of<D>(a), bytes = rows_bytes<KIND>(8, a.d);
    ring_producer in = {};
#pragma unroll 1
    for (uint32_t i = 0; i < n; i += 16) { /* two groups of 8 rows, possibly of different weights */
        bool more = i + 8 < n;
        unsigned char *to = ring_acquire(r, in, more ? 2 * bytes : bytes);
        load_rows_8<KIND, D>(a, w, i, to, &r.full[in.at.stage]);
        if (more) load_rows_8<KIND, D>(a, w, i + 8, to + second_eight<KIND>(a.d), &r.full[in.at.stage]);
        ring_next(r, in.at);
    }
#pragma unroll 1
    for (uint32_t row = 0; row < w.rows; row += a.out_rows)
        ring_load_box(r, in, a.out, w.cluster * (WIDTH / 4), w.cta * w.rows + row, a.out_rows * WIDTH);
}

/* The same for packed weights: all 16 rows of one weight. */
template <int D>
__device__ __forceinline__ void load_packed(const ck_heads &a, const ck_packed_kinds &kinds, const heads_work &w, const ring &r)
{
    ring_producer in = {};
#pragma unroll 1
    for (uint32_t i = 0, n = rows_of<D>(a); i < n; i += 16) {
        heads_row first = row_of<D>(w, i);
        const ck_cluster_weight &weight = a.in[first.weight];
        unsigned char *to = ring_acquire(r, in, 16 * weight.pitch);
        load_eight<1>(to, weight, first.row, &r.full[in.at.stage]);
        load_eight<1>(to + 8 * weight.pitch, weight, first.row + 8, &r.full[in.at.stage]);
        ring_next(r, in.at);
    }
    load_second_packed<1>(r, in, kinds, w.cta * w.rows, w.rows, a.out_rows, w.cluster * shape<D>::COLS / CK_PACKED_CHUNK, 1);
}

/* Position of the thread's lane group (8 lanes) in group `group` of 32 of the block. */
__device__ __forceinline__ uint32_t position(const heads_work &w, uint32_t group)
{
    return (group * 32 + (threadIdx.x >> 3)) * CLUSTER + w.cta;
}

/* Starts the copies of K and V of one group of positions; positions at or after the current one read
 * as zeros. */
template <int D> __device__ __forceinline__ void prefetch_kv(const heads_work &w, uint32_t group, kv_prefetch<D> &o)
{
    uint32_t p = position(w, group), i = group % kv_prefetch<D>::GROUPS;
    bool is = p < w.pos;
    size_t at = (is ? p : 0) * w.pitch + (threadIdx.x & 7) * 16;
#pragma unroll
    for (int c = 0; c < kv_prefetch<D>::PIECES; c++) {
        cp_async_16_zfill(&o.k[i][c][threadIdx.x], w.k + at + c * 128, is);
        if (c < kv_prefetch<D>::OF_V) cp_async_16_zfill(&o.v[i][c][threadIdx.x], w.v + at + c * 128, is);
    }
}

/* Data received from the other blocks of the cluster, one mbarrier each: x, rows of q and k, rows of
 * v and gate, and partial attention results. Up to D = 128 all rows arrive together on AT_QK:
 * splitting them costs more than it hides. */
enum { AT_X, AT_QK, AT_REST, AT_ENDS, MBARS };
template <int D> __device__ __forceinline__ constexpr uint32_t mbar_of_v() { return D > 128 ? AT_REST : AT_QK; }
/* Initialises these mbarriers and announces the bytes of their only phase. x: bytes of x; rows: rows
 * per block. */
template <int D> __device__ __forceinline__ void init_mbars(uint64_t *mbars, uint32_t x, uint32_t rows)
{
    for (int i = 0; i < MBARS; i++) mbar_init(&mbars[i], 1);
    mbar_init_fence();
    mbar_expect_tx(&mbars[AT_X], x);
    mbar_expect_tx(&mbars[AT_QK], D > 128 ? 4 * 2 * D : 4 * CLUSTER * rows);
    if (D > 128) mbar_expect_tx(&mbars[AT_REST], 4 * CLUSTER * rows - 4 * 2 * D);
    mbar_expect_tx(&mbars[AT_ENDS], 4 * CLUSTER * (shape<D>::COLS + 2));
}

/* Targets of the block's rows: warp w sends them to block w. A lane handles every 32nd row: its
 * address in the target block and its bias. Computed before x is available; the asm statement keeps
 * the compiler from moving that after the wait. */
template <int D> struct row_targets {
    enum { ROWS = D > 128 ? 3 : D / 64, AT_ONCE = D > 64 ? 2 : 1 };
    uint32_t to[ROWS], mbars;
    float bias[ROWS];
};
template <int D>
__device__ __forceinline__ row_targets<D> find_row_targets(const ck_heads &a, const heads_work &w, const float *rows,
                                                           const uint64_t *mbars)
{
    row_targets<D> s;
    uint32_t warp = threadIdx.x >> 5, last = rows_of<D>(a) - 1;
    s.mbars = mapa(smem_addr(mbars), warp);
#pragma unroll
    for (int i = 0; i < row_targets<D>::ROWS; i++) {
        heads_row r = row_of<D>(w, min((threadIdx.x & 31) + 32 * i, last));
        const float *bias = a.in[r.weight].bias;
        s.bias[i] = bias ? bias[r.row] : 0;
        s.to[i] = mapa(smem_addr(rows + r.at), warp);
    }
    /* computed here, before the wait */
#pragma unroll
    for (int i = 0; i < row_targets<D>::ROWS; i++) asm volatile("" : "+r"(s.to[i]), "+f"(s.bias[i]));
    return s;
}
/* Sends rows [first, end), up to 64, of the block to all blocks. */
template <int D>
__device__ __forceinline__ void send_rows(const row_targets<D> &s, uint32_t first, uint32_t end, const float *sums)
{
#pragma unroll
    for (int i = 0; i < row_targets<D>::AT_ONCE; i++) {
        uint32_t u = first + (threadIdx.x & 31) + 32 * i;
        int last = row_targets<D>::ROWS - 1;
        if (u < end)
            st_async_f32(sum_row(sums, u) + (first ? s.bias[last] : s.bias[i]), first ? s.to[last] : s.to[i],
                         s.mbars + 8 * (first ? AT_REST : AT_QK));
    }
}

#endif
#endif
