/* k_wgflash_deep.cuh: attention of a prompt's rows over many earlier keys. The two warpgroups of a block take neighbouring tiles of
 * rows of a head and share K and V, each loaded once by cp.async. The scores of a tile of keys are multiplied while the
 * exponentials of the tile before are computed. If the pairs of tiles are fewer than the multiprocessors, the keys of a pair are
 * divided among blocks (parts of at least MIN_TILES tiles); the last block to finish adds the parts, in their order. Shared
 * memory: q of both tiles, two tiles of K and two of V in turn.
 * Included by k_wgflash.cu, inside of #if HOPPER.
 * SPDX-License-Identifier: MIT */

enum { MIN_TILES = 8 };

/* The keys [begin, end) of a pair of row tiles, and the part of them of this block: tiles [from, to) of 64 keys. */
struct key_part {
    uint32_t begin, end, from, to, parts;
};
__device__ __forceinline__ key_part find_key_part(const ck_wgflash &w, uint32_t all, uint32_t first, uint32_t pair, uint32_t part)
{
    key_part k;
    const uint32_t t0 = pair * 2 * ROWS, window = w.attend.window;
    k.end = first + (all - t0 < 2 * ROWS ? all : t0 + 2 * ROWS);
    k.begin = window && first + t0 + 1 > window ? (first + t0 + 1 - window) / KEYS * KEYS : 0;
    const uint32_t tiles = (k.end - k.begin + KEYS - 1) / KEYS, share = (tiles + w.splits - 1) / w.splits,
                   each = share > MIN_TILES ? share : MIN_TILES;
    k.parts = (tiles + each - 1) / each;
    k.from = part * each;
    k.to = k.from + each < tiles ? k.from + each : tiles;
    return k;
}

/* Tile j of K or V by all threads; rows from `end` on are zeros. */
template <int D>
__device__ __forceinline__ void load_shared_tile(uint32_t to, const unsigned char *from, size_t row_bytes, uint32_t j0, uint32_t end)
{
    enum { APART = THREADS / (D / 8), PIECES = KEYS / APART };
    static_assert(APART % 8 == 0, "pieces are exchanged by the row");
    const uint32_t r = threadIdx.x / (D / 8), c = threadIdx.x % (D / 8) * 8;
    const unsigned char *row = from + (size_t)(j0 + r) * row_bytes + 2 * c;
    to += piece_at(r, c, KEYS);
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        const bool is_row = j0 + r + i * APART < end;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to + i * APART * 128), "l"(is_row ? row : from),
                     "r"(is_row ? 16 : 0)
                     : "memory");
        row += APART * row_bytes;
    }
}

/* scores = q k^T, asynchronous. */
template <int BF16, int D> __device__ __forceinline__ void start_scores(float (&s)[32], uint64_t q, uint64_t keys)
{
#pragma unroll
    for (int n = 0; n < 32; n++) s[n] = 0;
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < D / 16; kk++)
        multiply<BF16>(s, q + (kk / 4 * (ROWS * 128) + kk % 4 * 32) / 16, keys + (kk / 4 * (KEYS * 128) + kk % 4 * 32) / 16);
    wgmma_commit();
}

/* The weights of a tile of keys from its scores, and out += weights v, asynchronous. */
template <int BF16, int D>
__device__ __forceinline__ void start_values(const ck_attend &a, float (&out)[D / 64][32], float (&s)[32], row_softmax &m,
                                             const uint32_t (&pos)[2], uint32_t j0, uint64_t values)
{
    float rescale[2];
    uint32_t p[KEYS / 16][4];
    softmax_tile(a, s, m, pos, j0, rescale);
#pragma unroll
    for (int b = 0; b < D / 64; b++)
#pragma unroll
        for (int n = 0; n < 32; n++) out[b][n] *= rescale[n >> 1 & 1];
#pragma unroll
    for (int n = 0; n < KEYS / 4; n++) p[n / 4][n % 4] = pack<BF16>(s[2 * n], s[2 * n + 1]);
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < KEYS / 16; kk++)
#pragma unroll
        for (int b = 0; b < D / 64; b++)
            multiply_trans<BF16>(out[b], p[kk], values + (b * (KEYS * 128) + kk * 16 * 128) / 16);
    wgmma_commit();
}

/* All tiles of keys of the part. ring: K, V, K, V, each a tile. */
template <int BF16, int D>
__device__ __forceinline__ void attend_part(const ck_attend &a, float (&out)[D / 64][32], row_softmax &m, const uint32_t (&pos)[2],
                                            const key_part &part, uint32_t q_at, uint32_t ring, const unsigned char *k,
                                            const unsigned char *v)
{
    enum { TILE = KEYS * D * 2, APART = KEYS * 128 };
    const size_t row_bytes = 2ull * D * a.kv_heads;
    const uint64_t q = tile_at(q_at + threadIdx.x / HALF * TILE, 16);
    auto load = [&](const unsigned char *what, uint32_t i, uint32_t slot) {
        if (i < part.to) load_shared_tile<D>(ring + slot * TILE, what, row_bytes, part.begin + i * KEYS, part.end);
    };
    auto arrived = [&] { /* copies of all threads; every warpgroup has read the tiles before */
        asm volatile("cp.async.commit_group;\ncp.async.wait_group 0;" ::: "memory");
        fence_proxy_async();
        __syncthreads();
    };
    float s[32];
    load(k, part.from, 0);
    arrived(); /* and q */
    load(k, part.from + 1, 2);
    load(v, part.from, 1);
    start_scores<BF16, D>(s, q, tile_at(ring, 16));
    wgmma_wait_all();
    uint32_t i = part.from, odd = 0;
#pragma unroll 1
    for (; i + 1 < part.to; i++, odd ^= 2) {
        float next[32];
        arrived();
        load(k, i + 2, odd);
        load(v, i + 1, 3 - odd);
        start_scores<BF16, D>(next, q, tile_at(ring + (2 - odd) * TILE, 16));
        start_values<BF16, D>(a, out, s, m, pos, part.begin + i * KEYS, tile_at(ring + (odd + 1) * TILE, APART));
        wgmma_wait_all();
#pragma unroll
        for (int n = 0; n < 32; n++) s[n] = next[n];
    }
    arrived();
    start_values<BF16, D>(a, out, s, m, pos, part.begin + i * KEYS, tile_at(ring + (odd + 1) * TILE, APART));
    wgmma_wait_all();
}

/* One number pair of y: row t of the pass, column c. */
__device__ __forceinline__ void store_pair(const ck_attend &a, uint32_t t, uint32_t c, float2 v)
{
    if (a.gate.p) {
        const float2 g = *reinterpret_cast<const float2 *>(a.gate.p + (size_t)t * a.gate.stride + c);
        v = make_float2(v.x * sigmoid_fast(g.x), v.y * sigmoid_fast(g.y));
    }
    *reinterpret_cast<float2 *>(a.y.p + (size_t)t * a.y.stride + c) = v;
}

/* Adds the parts of a pair, [2 * ROWS, D] each, from `parts`; their maxima and sums are in `ends`. scales: shared memory,
 * [parts][2 * ROWS]. */
template <int D>
__device__ __forceinline__ void join_key_parts(const ck_attend &a, const float *parts, const float2 *ends, uint32_t n, float *scales,
                                               uint32_t t0, uint32_t all, uint32_t h)
{
    const float LOG2E = 1.4426950408889634f;
    for (uint32_t r = threadIdx.x; r < 2 * ROWS; r += THREADS) {
        float top = -CUDART_INF_F, sum = 0;
        for (uint32_t i = 0; i < n; i++) top = fmaxf(top, __ldcg(&ends[i * 2 * ROWS + r]).x);
        for (uint32_t i = 0; i < n; i++) {
            const float2 e = __ldcg(&ends[i * 2 * ROWS + r]);
            const float scale = exp2_fast((e.x - top) * LOG2E);
            scales[i * 2 * ROWS + r] = scale;
            sum += e.y * scale;
        }
        for (uint32_t i = 0; i < n; i++) scales[i * 2 * ROWS + r] /= sum;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < 2 * ROWS * D / 2; i += THREADS) {
        const uint32_t r = i / (D / 2), c = i % (D / 2) * 2;
        if (t0 + r >= all) break;
        float2 v = make_float2(0, 0);
#pragma unroll 4
        for (uint32_t k = 0; k < n; k++) {
            const float2 x = __ldcg(reinterpret_cast<const float2 *>(parts + ((size_t)k * 2 * ROWS + r) * D + c));
            const float scale = scales[k * 2 * ROWS + r];
            v.x = fmaf(x.x, scale, v.x), v.y = fmaf(x.y, scale, v.y);
        }
        store_pair(a, t0 + r, h * D + c, v);
    }
}

/* Stores the sums of one of several parts; the last block of the pair adds all of them. */
template <int D>
__device__ __forceinline__ void hand_over(const ck_wgflash &w, const float (&out)[D / 64][32], const row_softmax &m, uint32_t row,
                                          uint32_t unit, uint32_t part, uint32_t parts, float *scales, uint32_t t0, uint32_t all,
                                          uint32_t h)
{
    __shared__ uint32_t before;
    const uint32_t in_pair = threadIdx.x / HALF * ROWS + row, pair = (threadIdx.x & 3) * 2;
    float *all_parts = w.attend.parts + (size_t)unit * w.splits * 2 * ROWS * D;
    float2 *ends = reinterpret_cast<float2 *>(w.ends) + (size_t)unit * w.splits * 2 * ROWS;
    float *own = all_parts + ((size_t)part * 2 * ROWS + in_pair) * D;
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int n = 0; n < D / 8; n++)
            *reinterpret_cast<float2 *>(own + i * 8 * D + n * 8 + pair) =
                make_float2(out[n / 8][n % 8 * 4 + 2 * i], out[n / 8][n % 8 * 4 + 2 * i + 1]);
        if (!(threadIdx.x & 3)) ends[part * 2 * ROWS + in_pair + 8 * i] = make_float2(m.max_score[i], m.sum[i]);
    }
    __threadfence();
    __syncthreads();
    if (!threadIdx.x) before = atomicAdd(&w.arrivals[unit], 1);
    __syncthreads();
    if (before + 1 < parts) return;
    __threadfence();
    if (!threadIdx.x) w.arrivals[unit] = 0;
    join_key_parts<D>(w.attend, all_parts, ends, parts, scales, t0, all, h);
}

/* Kernel body: block b has pair of tiles and head b modulo their number, the pairs with most keys first, and part b divided by
 * it. */
template <int BF16, int D>
__device__ __forceinline__ void flash_deep(const ck_wgflash &w, unsigned char *smem, uint32_t all, uint32_t first)
{
    enum { TILE = KEYS * D * 2 };
    const ck_attend &a = w.attend;
    const uint32_t pairs = (all + 2 * ROWS - 1) / (2 * ROWS), units = pairs * a.heads, unit = blockIdx.x % units,
                   part = blockIdx.x / units, pair = pairs - 1 - unit / a.heads, h = unit % a.heads, t0 = pair * 2 * ROWS;
    if (part >= w.splits) return;
    const key_part keys = find_key_part(w, all, first, pair, part);
    if (part >= keys.parts) return;
    const uint32_t half = threadIdx.x / HALF, lane = threadIdx.x & 31, row = (threadIdx.x / 32 & 3) * 16 + (lane >> 2),
                   pos[2] = {first + t0 + half * ROWS + row, first + t0 + half * ROWS + row + 8};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        row_tile tile;
        tile.t0 = t0 + i * ROWS;
        tile.rows = tile.t0 >= all ? 0 : all - tile.t0 < ROWS ? all - tile.t0 : ROWS;
        load_q<BF16, D>(a, smem + i * TILE, tile, h);
    }
    float out[D / 64][32];
#pragma unroll
    for (int b = 0; b < D / 64; b++)
#pragma unroll
        for (int n = 0; n < 32; n++) out[b][n] = 0;
    row_softmax m;
    const bool sinks = a.sinks && !part;
    m.max_score[0] = m.max_score[1] = sinks ? a.sinks[h] : -CUDART_INF_F;
    m.sum[0] = m.sum[1] = sinks && (lane & 3) == 0 ? 1 : 0;
    const size_t at = h / (a.heads / a.kv_heads) * 2ull * D;
    attend_part<BF16, D>(a, out, m, pos, keys, smem_addr(smem), smem_addr(smem) + 2 * TILE,
                         static_cast<const unsigned char *>(a.pass.slots[a.slot_k]) + at,
                         static_cast<const unsigned char *>(a.pass.slots[a.slot_v]) + at);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        m.sum[i] += __shfl_xor_sync(0xffffffffu, m.sum[i], 1);
        m.sum[i] += __shfl_xor_sync(0xffffffffu, m.sum[i], 2);
    }
    if (keys.parts > 1) {
        hand_over<D>(w, out, m, row, unit, part, keys.parts, reinterpret_cast<float *>(smem), t0, all, h);
        return;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t t = t0 + half * ROWS + row + 8 * i;
        const float scale = 1.0f / m.sum[i];
        if (t >= all) continue;
#pragma unroll
        for (int n = 0; n < D / 8; n++)
            store_pair(a, t, h * D + n * 8 + (lane & 3) * 2,
                       make_float2(out[n / 8][n % 8 * 4 + 2 * i] * scale, out[n / 8][n % 8 * 4 + 2 * i + 1] * scale));
    }
}
