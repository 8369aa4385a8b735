/* k_single.cu: attention of rows that are each a sequence of their own, over few positions, in one launch: heads of q and k
 * normalised and rotated, K and V stored, scores, softmax, sums, gate. A token of a small model spends more time between launches
 * than in them, and this is one where k_attend.cu takes three.
 *
 * A block per query head and row; blocks that share a K/V head each make its new row for themselves, and one of them stores it. A
 * team of 256 threads takes a chunk of 64 positions, in the order of sums that k_attend.cu has: 8 lanes a row of K, a
 * thread 8 columns of every n-th row of V, chunks joined in order. Angles, and the K and V that are there already, are
 * loaded before the inputs are waited for: 2 * d * 2 bytes a position and K/V head. SPDX-License-Identifier: MIT */
#include "k_head.cuh"

enum { CHUNK = CK_CHUNK, TEAM = 256, TEAMS = CK_SINGLE_THREADS / TEAM };

template <int D> struct held { /* a thread's part of a chunk */
    uint4 k[D / 32], v[D / 32];
};

/* Where a thread's pieces lie: row of the chunk and first column. */
template <int D> struct place_of {
    static __device__ __forceinline__ uint32_t k_row(uint32_t t, int i) { return i / (D / 64) * 32 + (t >> 3); }
    static __device__ __forceinline__ uint32_t k_column(uint32_t t, int i) { return (t & 7) * 8 + i % (D / 64) * 64; }
    static __device__ __forceinline__ uint32_t v_row(uint32_t t, int i) { return t / (D / 8) + i * (2048 / D); }
    static __device__ __forceinline__ uint32_t v_column(uint32_t t) { return t % (D / 8) * 8; }
};

template <int D>
__device__ __forceinline__ void load_held(held<D> &w, const unsigned char *k, const unsigned char *v, size_t pitch,
                                          uint32_t first, uint32_t place, uint32_t t)
{
    typedef place_of<D> at;
#pragma unroll
    for (int i = 0; i < D / 32; i++) {
        uint32_t row = first + at::k_row(t, i);
        w.k[i] = make_uint4(0, 0, 0, 0);
        if (row < place) w.k[i] = *reinterpret_cast<const uint4 *>(k + row * pitch + 2 * at::k_column(t, i));
    }
#pragma unroll
    for (int i = 0; i < D / 32; i++) {
        uint32_t row = first + at::v_row(t, i);
        w.v[i] = make_uint4(0, 0, 0, 0);
        if (row < place) w.v[i] = *reinterpret_cast<const uint4 *>(v + row * pitch + 2 * at::v_column(t));
    }
}

__device__ __forceinline__ void group_rank_syncs(uint32_t team) { asm volatile("bar.sync %0, 256;" ::"r"(team + 1) : "memory"); }

/* Scores of a chunk into p. */
template <int STORAGE, int D>
__device__ __forceinline__ void chunk_scores(const held<D> &w, const float *q, const uint16_t *fresh, uint32_t first,
                                             uint32_t place, float scale, uint32_t t, float *p)
{
    typedef place_of<D> at;
    float s[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < D / 32; i++) {
        uint32_t c = at::k_column(t, i);
        uint4 v = w.k[i];
        float x[8];
        if (first + at::k_row(t, i) == place) v = *reinterpret_cast<const uint4 *>(fresh + c);
        eight<STORAGE>(v, x);
        float4 a = four_at(q, c), b = four_at(q, c + 4);
        s[i / (D / 64)] += x[0] * a.x + x[1] * a.y + x[2] * a.z + x[3] * a.w + x[4] * b.x + x[5] * b.y + x[6] * b.z + x[7] * b.w;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t r = i * 32 + (t >> 3);
        for (int m = 4; m; m >>= 1) s[i] += __shfl_xor_sync(0xffffffffu, s[i], m);
        if ((t & 7) == 0) p[r] = first + r <= place ? s[i] * scale : -CUDART_INF_F;
    }
}

/* One warp: exponentials in place; the largest score and the sum behind the chunk's columns. */
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

template <int STORAGE, int D>
__device__ __forceinline__ void chunk_values(const held<D> &w, const uint16_t *fresh, uint32_t first, uint32_t place,
                                             uint32_t t, const float *p, float *room)
{
    typedef place_of<D> at;
    float acc[8] = {};
#pragma unroll
    for (int i = 0; i < D / 32; i++) {
        uint32_t r = at::v_row(t, i);
        uint4 v = w.v[i];
        float x[8];
        if (first + r == place) v = *reinterpret_cast<const uint4 *>(fresh + at::v_column(t));
        eight<STORAGE>(v, x);
#pragma unroll
        for (int j = 0; j < 8; j++) acc[j] = fmaf(p[r], x[j], acc[j]);
    }
#pragma unroll
    for (int j = 0; j < 8; j++) room[t / (D / 8) * D + at::v_column(t) + j] = acc[j];
}

template <int D> struct parts { /* of a chunk: sums, largest score, sum of exponentials */
    float y[CK_SINGLE_CHUNKS][D + 2];
};

template <int D>
__device__ __forceinline__ void join(const ck_attend &a, const parts<D> &part, uint32_t h, uint32_t chunks, float gate)
{
    float most = a.sinks ? a.sinks[h] : -CUDART_INF_F, y = 0;
    bool bad = false;
    for (uint32_t c = 0; c < chunks; c++) {
        float m = part.y[c][D];
        bad = bad || m != m;
        most = fmaxf(most, m);
    }
    float sum = a.sinks ? expf(a.sinks[h] - most) : 0;
    for (uint32_t c = 0; c < chunks; c++) {
        float e = expf(part.y[c][D] - most);
        sum += part.y[c][D + 1] * e;
        y = fmaf(part.y[c][threadIdx.x], e, y);
    }
    y = bad ? CUDART_NAN_F : y / sum;
    if (a.gate.p) y *= sigmoid(gate);
    a.y.p[(size_t)blockIdx.y * a.y.stride + h * D + threadIdx.x] = y;
}

/* Warp 0 makes q, 1 the new row of K, 2 that of V; one block of those that share them stores K and V. */
template <int STORAGE, int D>
__device__ __forceinline__ void make_rows(const ck_prepare &a, uint32_t h, uint32_t kv, bool stores, unsigned char *k,
                                          unsigned char *v, const float (&s)[D / 64], const float (&c)[D / 64], float *q,
                                          uint16_t (*fresh)[D])
{
    uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    if (warp > 2) return;
    const size_t t = blockIdx.y;
    const float *from = warp == 0   ? a.q.p + t * a.q.stride + h * D
                        : warp == 1 ? a.k.p + t * a.k.stride + kv * D
                                    : a.v.p + t * a.v.stride + kv * D;
    head_row<D> r;
#pragma unroll
    for (int i = 0; i < D / 32; i++) r.x[i] = from[lane + 32 * i];
    if (warp < 2) {
        const ck_norm &n = warp ? a.k_norm : a.q_norm;
        if (n.present) norm_head<D>(n, r);
        turn_head<D>(r, a.pairs, s, c);
    }
#pragma unroll
    for (int i = 0; i < D / 32; i++) {
        uint32_t e = lane + 32 * i;
        if (warp == 0) {
            q[e] = r.x[i];
            continue;
        }
        uint16_t x = narrowed<STORAGE>(r.x[i]);
        fresh[warp - 1][e] = x;
        if (stores) reinterpret_cast<uint16_t *>(warp == 1 ? k : v)[e] = x;
    }
}

template <int STORAGE, int D> __device__ __forceinline__ void single(const ck_single &a)
{
    __shared__ __align__(16) float q[D], p[TEAMS][CHUNK], room[TEAMS][2048];
    __shared__ __align__(16) uint16_t fresh[2][D];
    __shared__ parts<D> part;
    const ck_attend &at = a.attend;
    uint32_t team = threadIdx.x / TEAM, t = threadIdx.x % TEAM, teams = blockDim.x / TEAM, h = blockIdx.x, row = blockIdx.y,
             share = at.heads / at.kv_heads, kv = h / share, place = at.pass.place[row], chunks = place / CHUNK + 1;
    void *const *slots = at.pass.slots + at.pass.span[row] * at.pass.slots_n;
    size_t pitch = (size_t)at.kv_heads * D * 2;
    unsigned char *k = static_cast<unsigned char *>(slots[at.slot_k]) + (size_t)kv * D * 2;
    unsigned char *v = static_cast<unsigned char *>(slots[at.slot_v]) + (size_t)kv * D * 2;
    held<D> w;
    float s[D / 64], c[D / 64];
    dependents_may_start();
    load_held<D>(w, k, v, pitch, team * CHUNK, place, t);
#pragma unroll
    for (int i = 0; i < D / 64; i++) {
        s[i] = c[i] = 0;
        if (threadIdx.x >= 64 || 32 * i >= a.prepare.pairs) continue;
        turn_of(place, a.prepare.inverse[(threadIdx.x & 31) + 32 * i], s[i], c[i]);
        s[i] *= a.prepare.mscale;
        c[i] *= a.prepare.mscale;
    }
    wait_for_inputs();
    float gate = at.gate.p && threadIdx.x < D ? at.gate.p[(size_t)row * at.gate.stride + h * D + threadIdx.x] : 0;
    make_rows<STORAGE, D>(a.prepare, h, kv, h % share == 0, k + place * pitch, v + place * pitch, s, c, q, fresh);
    __syncthreads();
    for (uint32_t chunk = team; chunk < chunks; chunk += teams) {
        uint32_t first = chunk * CHUNK;
        if (chunk >= teams) load_held<D>(w, k, v, pitch, first, place, t);
        chunk_scores<STORAGE, D>(w, q, fresh[0], first, place, at.scale, t, p[team]);
        group_rank_syncs(team);
        if (t < 32) chunk_softmax(p[team], &part.y[chunk][D]);
        group_rank_syncs(team);
        chunk_values<STORAGE, D>(w, fresh[1], first, place, t, p[team], room[team]);
        group_rank_syncs(team);
        if (t >= D) continue;
        float sum = 0;
#pragma unroll 8
        for (uint32_t g = 0; g < 2048 / D; g++) sum += room[team][g * D + t];
        part.y[chunk][t] = sum;
    }
    __syncthreads();
    if (threadIdx.x < D) join<D>(at, part, h, chunks, gate);
}

#define SINGLE(STORAGE, NAME, D)                                                                                        \
    extern "C" __global__ void __launch_bounds__(CK_SINGLE_THREADS, 1) single_##NAME##_##D(const __grid_constant__ ck_single a) \
    {                                                                                                                   \
        single<STORAGE, D>(a);                                                                                          \
    }
SINGLE(CK_KV_F16, f16, 64)
SINGLE(CK_KV_F16, f16, 128)
SINGLE(CK_KV_F16, f16, 256)
SINGLE(CK_KV_BF16, bf16, 64)
SINGLE(CK_KV_BF16, bf16, 128)
SINGLE(CK_KV_BF16, bf16, 256)
