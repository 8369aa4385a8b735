/* k_single.cu: decode attention in one launch, for rows that belong to different sequences and see
 * at most 512 positions: norm and RoPE of q and k, store of K and V, scores, softmax, weighted sum,
 * gate. Replaces the three launches of k_attend.cu where launch latency dominates. K and V in 16
 * bits, heads of 64, 128 or 256. All architectures.
 *
 * Grid (query heads, rows), 256 or 512 threads. Blocks that share a K/V head each compute its new
 * row, and one of them stores it. A group of 256 threads handles chunks of 64 positions with the sum
 * order of k_attend.cu: 8 lanes per position for the scores, 8 columns of every n-th position per
 * thread for V, chunks merged in order. Rotary angles and the existing K and V are loaded before
 * griddepcontrol.wait. Synchronisation: named barriers 1 and 2 per group.
 * SPDX-License-Identifier: MIT */
#include "k_head.cuh"

enum { CHUNK = CK_CHUNK, GROUP_THREADS = 256, GROUPS = CK_SINGLE_THREADS / GROUP_THREADS };

template <int D> struct kv_chunk { /* a thread's part of a chunk of K and V */
    uint4 k[D / 32], v[D / 32];
};

/* Row in the chunk and first column of a thread's pieces. */
template <int D> struct kv_pos {
    static __device__ __forceinline__ uint32_t k_row(uint32_t t, int i) { return i / (D / 64) * 32 + (t >> 3); }
    static __device__ __forceinline__ uint32_t k_column(uint32_t t, int i) { return (t & 7) * 8 + i % (D / 64) * 64; }
    static __device__ __forceinline__ uint32_t v_row(uint32_t t, int i) { return t / (D / 8) + i * (2048 / D); }
    static __device__ __forceinline__ uint32_t v_column(uint32_t t) { return t % (D / 8) * 8; }
};

/* Loads a thread's pieces of the chunk at `first`; positions from pos on are zero. */
template <int D>
__device__ __forceinline__ void prefetch_kv(kv_chunk<D> &w, const unsigned char *k, const unsigned char *v, size_t pitch,
                                            uint32_t first, uint32_t pos, uint32_t t)
{
    typedef kv_pos<D> at;
#pragma unroll
    for (int i = 0; i < D / 32; i++) {
        uint32_t row = first + at::k_row(t, i);
        w.k[i] = make_uint4(0, 0, 0, 0);
        if (row < pos) w.k[i] = *reinterpret_cast<const uint4 *>(k + row * pitch + 2 * at::k_column(t, i));
    }
#pragma unroll
    for (int i = 0; i < D / 32; i++) {
        uint32_t row = first + at::v_row(t, i);
        w.v[i] = make_uint4(0, 0, 0, 0);
        if (row < pos) w.v[i] = *reinterpret_cast<const uint4 *>(v + row * pitch + 2 * at::v_column(t));
    }
}

/* Barrier of one group of 256 threads. */
__device__ __forceinline__ void group_sync(uint32_t group) { asm volatile("bar.sync %0, 256;" ::"r"(group + 1) : "memory"); }

/* Scores of a chunk into p. fresh: the new K row, not yet visible in memory. */
template <int STORAGE, int D>
__device__ __forceinline__ void chunk_scores(const kv_chunk<D> &w, const float *q, const uint16_t *fresh, uint32_t first,
                                             uint32_t pos, float scale, uint32_t t, float *p)
{
    typedef kv_pos<D> at;
    float s[2] = {0, 0};
    /* Two positions per 8-lane group and chunk: rows t / 8 and t / 8 + 32. */
#pragma unroll
    for (int i = 0; i < D / 32; i++) {
        uint32_t c = at::k_column(t, i);
        uint4 v = w.k[i];
        float x[8];
        if (first + at::k_row(t, i) == pos) v = *reinterpret_cast<const uint4 *>(fresh + c);
        unpack_8<STORAGE>(v, x);
        float4 a = float4_at(q, c), b = float4_at(q, c + 4);
        s[i / (D / 64)] += x[0] * a.x + x[1] * a.y + x[2] * a.z + x[3] * a.w + x[4] * b.x + x[5] * b.y + x[6] * b.z + x[7] * b.w;
    }
    /* Complete the dot products over the 8 lanes; later positions become -inf. */
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t r = i * 32 + (t >> 3);
        for (int m = 4; m; m >>= 1) s[i] += __shfl_xor_sync(0xffffffffu, s[i], m);
        if ((t & 7) == 0) p[r] = first + r <= pos ? s[i] * scale : -CUDART_INF_F;
    }
}

/* One warp: exponentials in place; stores maximum and sum of the chunk in `ends`. */
__device__ __forceinline__ void chunk_softmax(float *p, float *ends)
{
    uint32_t lane = threadIdx.x & 31;
    float x = p[lane], y = p[lane + 32], m = warp_max(fmaxf(x, y));
    if (x != x || y != y) m = CUDART_NAN_F;
    x = expf(x - m);
    y = expf(y - m);
    p[lane] = x;
    p[lane + 32] = y;
    float total = warp_sum(x + y);
    if (lane == 0) ends[0] = m;
    if (lane == 0) ends[1] = total;
}

/* Weighted sums of V, per thread 8 columns; scratch: [2048 / D][D]. */
template <int STORAGE, int D>
__device__ __forceinline__ void chunk_values(const kv_chunk<D> &w, const uint16_t *fresh, uint32_t first, uint32_t pos,
                                             uint32_t t, const float *p, float *scratch)
{
    typedef kv_pos<D> at;
    float acc[8] = {};
#pragma unroll
    for (int i = 0; i < D / 32; i++) {
        uint32_t r = at::v_row(t, i);
        uint4 v = w.v[i];
        float x[8];
        if (first + r == pos) v = *reinterpret_cast<const uint4 *>(fresh + at::v_column(t));
        unpack_8<STORAGE>(v, x);
#pragma unroll
        for (int j = 0; j < 8; j++) acc[j] = fmaf(p[r], x[j], acc[j]);
    }
#pragma unroll
    for (int j = 0; j < 8; j++) scratch[t / (D / 8) * D + at::v_column(t) + j] = acc[j];
}

template <int D> struct parts { /* per chunk: sums, maximum, sum of exponentials */
    float y[CK_SINGLE_CHUNKS][D + 2];
};

/* Merges the chunks of the head for one column per thread, applies the gate and writes y. */
template <int D>
__device__ __forceinline__ void join(const ck_attend &a, const parts<D> &part, uint32_t h, uint32_t chunks, float gate)
{
    /* Merge maxima; NaN in any chunk is kept. */
    float max_score = a.sinks ? a.sinks[h] : -CUDART_INF_F, y = 0;
    bool bad = false;
    for (uint32_t c = 0; c < chunks; c++) {
        float m = part.y[c][D];
        bad = bad || m != m;
        max_score = fmaxf(max_score, m);
    }
    /* Merge sums and this thread's column, in chunk order. */
    float sum = a.sinks ? expf(a.sinks[h] - max_score) : 0;
    for (uint32_t c = 0; c < chunks; c++) {
        float e = expf(part.y[c][D] - max_score);
        sum += part.y[c][D + 1] * e;
        y = fmaf(part.y[c][threadIdx.x], e, y);
    }
    y = bad ? CUDART_NAN_F : y / sum;
    if (a.gate.p) y *= sigmoid(gate);
    a.y.p[(size_t)blockIdx.y * a.y.stride + h * D + threadIdx.x] = y;
}

/* Warp 0 computes q, warp 1 the new K row, warp 2 the new V row; one of the blocks that share the
 * K/V head stores K and V. */
template <int STORAGE, int D>
__device__ __forceinline__ void make_rows(const ck_prepare &a, uint32_t h, uint32_t kv, bool stores, unsigned char *k,
                                          unsigned char *v, const float (&s)[D / 64], const float (&c)[D / 64], float *q,
                                          uint16_t (*fresh)[D])
{
    uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    if (warp > 2) return;
    const size_t t = blockIdx.y;
    /* Source row of this warp: q, k or v. */
    const float *from = warp == 0   ? a.q.p + t * a.q.stride + h * D
                        : warp == 1 ? a.k.p + t * a.k.stride + kv * D
                                    : a.v.p + t * a.v.stride + kv * D;
    head_row<D> r;
#pragma unroll
    for (int i = 0; i < D / 32; i++) r.x[i] = from[lane + 32 * i];
    /* Norm and RoPE for q and k. */
    if (warp < 2) {
        const ck_norm &n = warp ? a.k_norm : a.q_norm;
        if (n.present) norm_head<D>(n, r);
        rope_head<D>(r, a.pairs, s, c);
    }
    /* q stays fp32 in shared memory; k and v are narrowed, kept and optionally stored. */
#pragma unroll
    for (int i = 0; i < D / 32; i++) {
        uint32_t e = lane + 32 * i;
        if (warp == 0) {
            q[e] = r.x[i];
            continue;
        }
        uint16_t x = to_16bit<STORAGE>(r.x[i]);
        fresh[warp - 1][e] = x;
        if (stores) reinterpret_cast<uint16_t *>(warp == 1 ? k : v)[e] = x;
    }
}

/* Kernel body. */
template <int STORAGE, int D> __device__ __forceinline__ void single(const ck_single &a)
{
    __shared__ __align__(16) float q[D], p[GROUPS][CHUNK], scratch[GROUPS][2048];
    __shared__ __align__(16) uint16_t fresh[2][D];
    __shared__ parts<D> part;
    const ck_attend &at = a.attend;
    /* group: 256 threads that process one chunk; pos: position of the row. */
    uint32_t group = threadIdx.x / GROUP_THREADS, t = threadIdx.x % GROUP_THREADS, groups = blockDim.x / GROUP_THREADS,
             h = blockIdx.x, row = blockIdx.y, share = at.heads / at.kv_heads, kv = h / share, pos = at.pass.place[row],
             chunks = pos / CHUNK + 1;
    void *const *slots = at.pass.slots + at.pass.span[row] * at.pass.slots_n;
    size_t pitch = (size_t)at.kv_heads * D * 2;
    unsigned char *k = static_cast<unsigned char *>(slots[at.slot_k]) + (size_t)kv * D * 2;
    unsigned char *v = static_cast<unsigned char *>(slots[at.slot_v]) + (size_t)kv * D * 2;
    kv_chunk<D> w;
    float s[D / 64], c[D / 64];
    launch_dependents();
    /* Loads that do not depend on the previous kernel: K, V, angles. */
    prefetch_kv<D>(w, k, v, pitch, group * CHUNK, pos, t);
#pragma unroll
    for (int i = 0; i < D / 64; i++) {
        s[i] = c[i] = 0;
        if (threadIdx.x >= 64 || 32 * i >= a.prepare.pairs) continue;
        rope_sincos(pos, a.prepare.inverse[(threadIdx.x & 31) + 32 * i], s[i], c[i]);
        s[i] *= a.prepare.mscale;
        c[i] *= a.prepare.mscale;
    }
    wait_for_inputs();
    float gate = at.gate.p && threadIdx.x < D ? at.gate.p[(size_t)row * at.gate.stride + h * D + threadIdx.x] : 0;
    make_rows<STORAGE, D>(a.prepare, h, kv, h % share == 0, k + pos * pitch, v + pos * pitch, s, c, q, fresh);
    __syncthreads();
    /* Each group takes every groups-th chunk. */
    for (uint32_t chunk = group; chunk < chunks; chunk += groups) {
        uint32_t first = chunk * CHUNK;
        if (chunk >= groups) prefetch_kv<D>(w, k, v, pitch, first, pos, t);
        chunk_scores<STORAGE, D>(w, q, fresh[0], first, pos, at.scale, t, p[group]);
        group_sync(group);
        if (t < 32) chunk_softmax(p[group], &part.y[chunk][D]);
        group_sync(group);
        chunk_values<STORAGE, D>(w, fresh[1], first, pos, t, p[group], scratch[group]);
        group_sync(group);
        if (t >= D) continue;
        /* Add the partial sums of a column, in order. */
        float sum = 0;
#pragma unroll 8
        for (uint32_t g = 0; g < 2048 / D; g++) sum += scratch[group][g * D + t];
        part.y[chunk][t] = sum;
    }
    __syncthreads();
    if (threadIdx.x < D) join<D>(at, part, h, chunks, gate);
}

#define SINGLE(STORAGE, NAME, D)                                                                                                \
    extern "C" __global__ void __launch_bounds__(CK_SINGLE_THREADS, 1) single_##NAME##_##D(const __grid_constant__ ck_single a) \
    {                                                                                                                           \
        single<STORAGE, D>(a);                                                                                                  \
    }
SINGLE(CK_KV_F16, f16, 64)
SINGLE(CK_KV_F16, f16, 128)
SINGLE(CK_KV_F16, f16, 256)
SINGLE(CK_KV_BF16, bf16, 64)
SINGLE(CK_KV_BF16, bf16, 128)
SINGLE(CK_KV_BF16, bf16, 256)
