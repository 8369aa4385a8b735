/* k_wgflash.cu: FlashAttention for prompts on sm_90 with wgmma (other architectures compile empty
 * kernels): attention of many new rows of one sequence, K and V in 16 bits, heads of 64, 128 or 256.
 * y fp32. 256 threads = 2 warpgroups, one block per multiprocessor. Scores and sums are fp32 in
 * registers, softmax is online. Positions are in GPU memory, so one launch has two ways:
 *
 * Fewer than DEEP_KEYS earlier keys, or as many as the pass has rows: a block handles a tile of 64 rows of a head; if
 * there are more tiles than resident blocks, a second one from the opposite end of the pass, so that
 * all blocks see about the same number of keys. The two warpgroups take alternate tiles of 64 keys,
 * so that one computes softmax while the other multiplies, and merge their results at the end. Each
 * loads its own K and V by cp.async into three buffers in turn. Shared memory: 7 tiles of 64 * d * 2
 * bytes (224 KB for d = 256): q, and three buffers per warpgroup. Synchronisation: named barriers 1
 * and 2 per warpgroup, cp.async groups, wgmma commit groups.
 *
 * More keys: k_wgflash_deep.cuh.
 * SPDX-License-Identifier: MIT */
#include "k_bulk.cuh"
#include "k_wgmma_wide.cuh"

enum { ROWS = 64, KEYS = 64, THREADS = CK_WGFLASH_THREADS, HALF = 128 };

#if HOPPER
/* cp.async of rows j0 .. j0 + 63 of K or V by one warpgroup, in the 128-byte swizzle of k_wgmma.cuh;
 * rows from `end` on are zeros. */
template <int D>
__device__ __forceinline__ void load_tile(uint32_t to, const unsigned char *from, size_t row_bytes, uint32_t j0, uint32_t end)
{
    enum { APART = HALF / (D / 8), PIECES = KEYS / APART }; /* row distance between the pieces of a thread */
    static_assert(APART == 4 || APART % 8 == 0, "pieces are exchanged by the row");
    const uint32_t r = threadIdx.x % HALF / (D / 8), c = threadIdx.x % (D / 8) * 8;
    from += (size_t)(j0 + r) * row_bytes + 2 * c;
    to += piece_at(r, c, KEYS);
    /* All 64 rows exist: no per-row test needed. */
    const bool whole = j0 + KEYS <= end;
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        const bool is_row = whole || j0 + r + i * APART < end;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((APART == 4 && i % 2 ? to ^ 64 : to) +
                                                                           i * APART * 128),
                     "l"(is_row ? from : from - (size_t)(r + i * APART) * row_bytes), "r"(is_row ? 16 : 0)
                     : "memory");
        from += APART * row_bytes;
    }
}

/* A tile of up to 64 rows of the pass, starting at t0, and the keys [begin, end) that it sees. */
struct row_tile {
    uint32_t t0, rows, begin, end;
};
__device__ __forceinline__ row_tile find_row_tile(const ck_attend &a, uint32_t all, uint32_t first, uint32_t tile)
{
    row_tile s;
    s.t0 = tile * ROWS;
    s.rows = all - s.t0 < ROWS ? all - s.t0 : ROWS;
    s.end = first + s.t0 + s.rows;
    s.begin = a.window && first + s.t0 + 1 > a.window ? (first + s.t0 + 1 - a.window) / KEYS * KEYS : 0;
    return s;
}

/* Stores the scaled q of the tile in 16 bits, swizzled: thread `own` of `threads`. */
template <int BF16, int D>
__device__ __forceinline__ void load_q(const ck_attend &a, unsigned char *to, const row_tile &tile, uint32_t h, uint32_t own,
                                       uint32_t threads)
{
#pragma unroll 4
    for (uint32_t i = own; i < ROWS * D / 8; i += threads) {
        uint32_t r = i / (D / 8), c = i % (D / 8) * 8;
        float4 x = make_float4(0, 0, 0, 0), y = x;
        if (r < tile.rows) {
            const float *q = a.q.p + (size_t)(tile.t0 + r) * a.q.stride + h * D + c;
            x = float4_at(q, 0), y = float4_at(q, 4);
        }
        uint4 v = make_uint4(pack<BF16>(x.x * a.scale, x.y * a.scale), pack<BF16>(x.z * a.scale, x.w * a.scale),
                             pack<BF16>(y.x * a.scale, y.y * a.scale), pack<BF16>(y.z * a.scale, y.w * a.scale));
        *reinterpret_cast<uint4 *>(to + piece_at(r, c, ROWS)) = v;
    }
}

/* Running maximum and sum of this thread's two rows. */
struct row_softmax {
    float max_score[2], sum[2];
};

/* Online softmax step: the scores of this thread's two rows become exponentials; rescale: factor for
 * the older sums. */
__device__ __forceinline__ void softmax_tile(const ck_attend &a, float (&s)[32], row_softmax &m, const uint32_t (&pos)[2],
                                             uint32_t j0, float (&rescale)[2])
{
    float top[2] = {m.max_score[0], m.max_score[1]};
    const float LOG2E = 1.4426950408889634f;
    float uncap = a.softcap > 0 ? 1.0f / a.softcap : 0;
    uint32_t window = a.window ? a.window : 0x7fffffff; /* positions are below 2^31 */
    uint32_t pair = (threadIdx.x & 3) * 2;
    bool all = !a.window && !(a.softcap > 0) && j0 + KEYS - 1 <= pos[0]; /* no key of the tile is masked (pos[0] < pos[1]) */
    if (!all)
#pragma unroll
        for (int n = 0; n < 32; n++) {
            /* Column of element n, and the position of its row. */
            uint32_t j = j0 + n / 4 * 8 + pair + (n & 1), at = pos[n >> 1 & 1];
            if (a.softcap > 0) s[n] = a.softcap * tanh_fast(s[n] * uncap);
            bool hidden = j > at || j + window <= at;
            s[n] = hidden ? -CUDART_INF_F : s[n];
        }
#pragma unroll
    for (int n = 0; n < 32; n++) top[n >> 1 & 1] = fmaxf(top[n >> 1 & 1], s[n]);
    float base[2];
    /* Row maxima over the four lanes that share a row. */
#pragma unroll
    for (int i = 0; i < 2; i++) {
        top[i] = fmaxf(top[i], __shfl_xor_sync(0xffffffffu, top[i], 1));
        top[i] = fmaxf(top[i], __shfl_xor_sync(0xffffffffu, top[i], 2));
        base[i] = top[i] > -CUDART_INF_F ? top[i] * LOG2E : 0; /* all keys masked so far: weights are 0 */
        rescale[i] = exp2_fast(fmaf(m.max_score[i], LOG2E, -base[i]));
        m.max_score[i] = top[i];
        m.sum[i] *= rescale[i];
    }
    /* Exponentials in base 2: one FMA and ex2 per score. */
#pragma unroll
    for (int n = 0; n < 32; n++) {
        s[n] = exp2_fast(fmaf(s[n], LOG2E, -base[n >> 1 & 1]));
        m.sum[n >> 1 & 1] += s[n];
    }
}

__device__ __forceinline__ void group_sync() { asm volatile("bar.sync %0, 128;" ::"r"(1 + threadIdx.x / HALF) : "memory"); }

/* Merges the results of both warpgroups: each one finishes half of the columns and hands over its
 * sums for the other half. smem: its own K/V buffers, now unused; other: those of the other
 * warpgroup. */
template <int D>
__device__ __forceinline__ void join_halves(float (&out)[D / 64][32], row_softmax &m, unsigned char *smem,
                                            const unsigned char *other)
{
    enum { EACH = D / 4 }; /* floats per thread that the other warpgroup finishes */
    const uint32_t half = threadIdx.x / HALF, t = threadIdx.x % HALF;
    float *send = reinterpret_cast<float *>(smem), *all = &out[0][0];
    const float *recv = reinterpret_cast<const float *>(other);
    const float LOG2E = 1.4426950408889634f;
    float own_scale[2], other_scale[2];
    /* Row sums over the four lanes. */
#pragma unroll
    for (int i = 0; i < 2; i++) {
        m.sum[i] += __shfl_xor_sync(0xffffffffu, m.sum[i], 1);
        m.sum[i] += __shfl_xor_sync(0xffffffffu, m.sum[i], 2);
    }
    /* Hand over the half of the columns that the other warpgroup finishes, then maximum and sum. */
#pragma unroll
    for (int n = 0; n < EACH; n += 4) {
        float4 v = half ? make_float4(all[n], all[n + 1], all[n + 2], all[n + 3])
                        : make_float4(all[EACH + n], all[EACH + n + 1], all[EACH + n + 2], all[EACH + n + 3]);
        reinterpret_cast<float4 *>(send)[n / 4 * HALF + t] = v;
    }
    reinterpret_cast<float4 *>(send)[EACH / 4 * HALF + t] = make_float4(m.max_score[0], m.max_score[1], m.sum[0], m.sum[1]);
    /* Both warpgroups have stored their halves. */
    __syncthreads();
    const float4 theirs = reinterpret_cast<const float4 *>(recv)[EACH / 4 * HALF + t];
    const float max_score[2] = {theirs.x, theirs.y}, sum[2] = {theirs.z, theirs.w};
    /* Common maximum; scales include the division by the total sum. */
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float top = fmaxf(m.max_score[i], max_score[i]) * LOG2E;
        own_scale[i] = exp2_fast(fmaf(m.max_score[i], LOG2E, -top)), other_scale[i] = exp2_fast(fmaf(max_score[i], LOG2E, -top));
        float row_tile = 1.0f / (m.sum[i] * own_scale[i] + sum[i] * other_scale[i]);
        own_scale[i] *= row_tile, other_scale[i] *= row_tile;
    }
#pragma unroll
    for (int n = 0; n < EACH; n += 4) {
        const float4 v = reinterpret_cast<const float4 *>(recv)[n / 4 * HALF + t];
        const float x[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 4; i++)
            all[n + i] = (half ? all[EACH + n + i] : all[n + i]) * own_scale[i >> 1] + x[i] * other_scale[i >> 1];
    }
}

/* Writes the warpgroup's half of the columns through shared memory, so that global stores cover
 * whole lines. */
template <int D>
__device__ __forceinline__ void write_rows(const ck_attend &a, const float (&out)[D / 64][32], float *smem, const row_tile &tile,
                                           uint32_t row, uint32_t h)
{
    enum { WIDTH = D / 2, PITCH = WIDTH + 8 };
    /* Accumulators to shared memory, row-major with padding. */
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int n = 0; n < WIDTH / 8; n++)
            *reinterpret_cast<float2 *>(smem + (row + 8 * i) * PITCH + (threadIdx.x & 3) * 2 +
                                        n * 8) = make_float2(out[n / 8][n % 8 * 4 + 2 * i], out[n / 8][n % 8 * 4 + 2 * i + 1]);
    group_sync();
    const uint32_t from = h * D + threadIdx.x / HALF * WIDTH;
    /* Coalesced float4 stores, gate applied. */
#pragma unroll 4
    for (uint32_t i = threadIdx.x % HALF; i < ROWS * WIDTH / 4; i += HALF) {
        uint32_t r = i / (WIDTH / 4), t = tile.t0 + r, c = i % (WIDTH / 4) * 4;
        if (r >= tile.rows) break;
        float4 v = float4_at(smem + r * PITCH, c);
        if (a.gate.p) {
            float4 g = float4_at(a.gate.p + (size_t)t * a.gate.stride + from, c);
            v = make_float4(v.x * sigmoid_fast(g.x), v.y * sigmoid_fast(g.y), v.z * sigmoid_fast(g.z), v.w * sigmoid_fast(g.w));
        }
        *reinterpret_cast<float4 *>(a.y.p + (size_t)t * a.y.stride + from + c) = v;
    }
}

/* K and V of one warpgroup: source rows, and its three buffers. Blocks start at different key tiles
 * (`shift`): otherwise all would request the same L2 lines at the same time. */
struct kv_source {
    const unsigned char *k, *v;
    size_t row_bytes;
    /* n_tiles: key tiles of this warpgroup, visited in the order shift, shift + 1, ... modulo
     * n_tiles */
    uint32_t at, begin, end, n_tiles, shift;
};
/* First key of the warpgroup's i-th tile. */
__device__ __forceinline__ uint32_t keys_of(const kv_source &s, uint32_t i)
{
    const uint32_t n = i + s.shift;
    return s.begin + (n < s.n_tiles ? n : n - s.n_tiles) * (2 * KEYS);
}
/* Issues the load of tile i of K or V (`what`) into buffer `slot` as one cp.async group. */
template <int D>
__device__ __forceinline__ void issue_kv(const kv_source &s, const unsigned char *what, uint32_t i, uint32_t slot)
{
    if (i < s.n_tiles) load_tile<D>(s.at + slot * (KEYS * D * 2), what, s.row_bytes, keys_of(s, i), s.end);
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Key tile i of the warpgroup: scores, softmax, and their product with V. K is in buffer k, V in the
 * next one; K of the next tile goes to the third buffer, its V to K's buffer once the scores are
 * done. No copy is in flight at the proxy fence, which would wait for it. */
template <int BF16, int D>
__device__ __forceinline__ void add_keys(const ck_attend &a, float (&out)[D / 64][32], row_softmax &m, const uint32_t (&pos)[2],
                                         uint32_t i, uint64_t q, const kv_source &from, uint32_t k)
{
    enum { APART = KEYS * 128, TILE = KEYS * D * 2 };
    const uint32_t v = k == 2 ? 0 : k + 1, free = v == 2 ? 0 : v + 1;
    const uint64_t keys = tile_at(from.at + k * TILE, 16), values = tile_at(from.at + v * TILE, APART);
    float s[32], rescale[2];
    /* K of this tile has arrived for the whole warpgroup. */
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    fence_proxy_async();
    group_sync();
    issue_kv<D>(from, from.k, i + 1, free);
    /* Scores = q k^T. */
#pragma unroll
    for (int n = 0; n < 32; n++) s[n] = 0;
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < D / 16; kk++)
        multiply<BF16>(s, q + (kk / 4 * (ROWS * 128) + kk % 4 * 32) / 16, keys + (kk / 4 * APART + kk % 4 * 32) / 16);
    wgmma_commit();
    wgmma_wait_all();
    /* All warps have read K: its buffer can take the next V. */
    group_sync();
    issue_kv<D>(from, from.v, i + 1, k);
    softmax_tile(a, s, m, pos, keys_of(from, i), rescale);
    /* Rescale the accumulators. */
#pragma unroll
    for (int b = 0; b < D / 64; b++)
#pragma unroll
        for (int n = 0; n < 32; n++) out[b][n] *= rescale[n >> 1 & 1];
    /* Exponentials to 16 bits, as the a operand. */
    uint32_t p[KEYS / 16][4];
#pragma unroll
    for (int n = 0; n < KEYS / 4; n++) p[n / 4][n % 4] = pack<BF16>(s[2 * n], s[2 * n + 1]);
    /* out += p v. */
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < KEYS / 16; kk++)
#pragma unroll
        for (int b = 0; b < D / 64; b++) multiply_trans<BF16>(out[b], p[kk], values + (b * APART + kk * 16 * 128) / 16);
    wgmma_commit();
    wgmma_wait_all();
}

/* One tile of rows. `from` gives the sources and buffers of K and V. */
template <int BF16, int D>
__device__ __forceinline__ void attend_rows(const ck_attend &a, unsigned char *smem, kv_source from, const row_tile &tile,
                                            uint32_t first, uint32_t h)
{
    enum { TILE = KEYS * D * 2 };
    const uint32_t half = threadIdx.x / HALF, lane = threadIdx.x & 31, row = (threadIdx.x / 32 & 3) * 16 + (lane >> 2),
                   pos[2] = {first + tile.t0 + row, first + tile.t0 + row + 8}, tiles = (tile.end - tile.begin + KEYS - 1) / KEYS;
    unsigned char *kv_buffers = smem + TILE + half * 3 * TILE;
    from.begin = tile.begin + half * KEYS, from.end = tile.end;
    from.n_tiles = (tiles + 1 - half) / 2, from.shift = from.n_tiles ? (tile.t0 / ROWS * 5 + h * 3) % from.n_tiles : 0;
    /* First K and V before q, so that they overlap. */
    issue_kv<D>(from, from.k, 0, 0);
    issue_kv<D>(from, from.v, 0, 1);
    load_q<BF16, D>(a, smem, tile, h, threadIdx.x, THREADS);
    fence_proxy_async();
    float out[D / 64][32];
#pragma unroll
    for (int b = 0; b < D / 64; b++)
#pragma unroll
        for (int n = 0; n < 32; n++) out[b][n] = 0;
    row_softmax m;
    /* Attention sinks: added once, by the first warpgroup. */
    bool sinks = a.sinks && !half;
    m.max_score[0] = m.max_score[1] = sinks ? a.sinks[h] : -CUDART_INF_F;
    m.sum[0] = m.sum[1] = sinks && (lane & 3) == 0 ? 1 : 0;
    __syncthreads();
    /* Buffers rotate: K of tile i + 1 goes where neither K nor V of tile i is. */
#pragma unroll 1
    for (uint32_t i = 0, k = 0; i < from.n_tiles; i++, k = k ? k - 1 : 2)
        add_keys<BF16, D>(a, out, m, pos, i, tile_at(smem_addr(smem), 16), from, k);
    group_sync();
    join_halves<D>(out, m, kv_buffers, smem + TILE + (half ^ 1) * 3 * TILE);
    write_rows<D>(a, out, reinterpret_cast<float *>(kv_buffers + 128 * D + 2048), tile, row, h);
}

#include "attend/k_wgflash_deep.cuh"

/* Earlier keys of a row from which on the second way is faster: measured are 1,000 and 2,000. */
enum { DEEP_KEYS = 1536 };

/* Kernel body: one or two row tiles, see above. */
template <int BF16, int D> __device__ __forceinline__ void flash(const ck_wgflash &w)
{
    extern __shared__ float4 shared4[];
    unsigned char *smem = reinterpret_cast<unsigned char *>(shared4);
    smem += (1024 - (smem_addr(smem) & 1023)) & 1023;
    const ck_attend &a = w.attend;
    const uint32_t all = a.pass.head->from[1], first = a.pass.head->first[0], tiles = (all + ROWS - 1) / ROWS;
    if (w.maps && first > all && min(first, a.window ? a.window : first) >= DEEP_KEYS) {
        flash_deep<BF16, D>(w, smem, all, first);
        return;
    }
    const uint32_t h = blockIdx.x / w.columns, kv = h / (a.heads / a.kv_heads);
    uint32_t tile = blockIdx.x % w.columns, last = w.columns < tiles ? tiles - 1 - tile : tile; /* the second row tile, if any */
    if (tile >= tiles || last < tile || h >= a.heads) return;
    kv_source from;
    from.row_bytes = 2ull * D * a.kv_heads;
    from.k = static_cast<const unsigned char *>(a.pass.slots[a.slot_k]) + kv * 2ull * D;
    from.v = static_cast<const unsigned char *>(a.pass.slots[a.slot_v]) + kv * 2ull * D;
    from.at = smem_addr(smem) + (1 + 3 * (threadIdx.x / HALF)) * (KEYS * D * 2);
#pragma unroll 1
    for (;; tile = last) {
        attend_rows<BF16, D>(a, smem, from, find_row_tile(a, all, first, tile), first, h);
        if (tile == last) break;
        __syncthreads(); /* shared memory is reused */
    }
}
#endif

#if HOPPER
#define WGFLASH(NAME, BF16, D, BLOCKS)                                                                                         \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) wgflash_##NAME##_##D(const __grid_constant__ ck_wgflash w) \
    {                                                                                                                  \
        wait_for_inputs();                                                                                             \
        flash<BF16, D>(w);                                                                                             \
    }
#else
#define WGFLASH(NAME, BF16, D, BLOCKS) \
    extern "C" __global__ void wgflash_##NAME##_##D(const __grid_constant__ ck_wgflash w) {}
#endif
WGFLASH(f16, 0, 64, 2)
WGFLASH(f16, 0, 128, 1)
WGFLASH(f16, 0, 256, 1)
WGFLASH(bf16, 1, 64, 2)
WGFLASH(bf16, 1, 128, 1)
WGFLASH(bf16, 1, 256, 1)
