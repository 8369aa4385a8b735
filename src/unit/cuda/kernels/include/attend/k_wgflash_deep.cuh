/* k_wgflash_deep.cuh: attention of a prompt's rows over many earlier keys. Each warpgroup of a block has a tile of 64 rows of a
 * query head; both tiles are of one K/V head (where it has several query heads, of the same rows) and share K and V.
 *
 * Tiles of keys are multiplied as in FlashAttention-3: the scores of a tile and the product of the weights of the tile before
 * with V are in flight together, and while a warpgroup computes exponentials the other one multiplies (named barriers 1 and 2). K
 * and V arrive by TMA in a ring of STAGES tiles in the order of their use, K0, K1, V0, K2, V1, ...; a stage has a "full" and an
 * "empty" mbarrier. The tensor maps are those of the launch with the addresses of this state's slots and the number of keys, so
 * that one captured graph serves all states.
 *
 * If the pairs of tiles are fewer than the multiprocessors, the keys of a pair are divided among blocks (parts of at least
 * MIN_KEYS keys); the last block to finish adds the parts, in their order.
 * Included by k_wgflash.cu, inside of #if HOPPER.
 * SPDX-License-Identifier: MIT */

enum { MIN_KEYS = 512, STAGES_MAX = 8 };
/* KEYS: of a tile; TILE: bytes of K or V of it; REGS: q is in registers; LATE: the producer loads while its warpgroup waits for
 * its turn to multiply, else as soon as a stage is free. */
template <int D> struct deep_shape {
    enum {
        KEYS = CK_WGFLASH_KEYS(D),
        TILE = KEYS * D * 2,
        STAGES = D == 64 ? 8 : D == 128 ? 6 : 5,
        REGS = D == 64,
        LATE = D == 64,
    };
};

/* The keys [begin, end) of a pair of row tiles, and the part of them of this block: tiles [from, to). */
struct key_part {
    uint32_t begin, end, from, to, parts;
};
/* first_row, last_row: of the pair, in the pass. */
template <int D>
__device__ __forceinline__ key_part find_key_part(const ck_wgflash &w, uint32_t first, uint32_t first_row, uint32_t last_row,
                                                  uint32_t part)
{
    enum { KEYS = deep_shape<D>::KEYS, MIN_TILES = MIN_KEYS / KEYS };
    key_part k;
    const uint32_t window = w.attend.window;
    k.end = first + last_row + 1;
    k.begin = window && first + first_row + 1 > window ? (first + first_row + 1 - window) / KEYS * KEYS : 0;
    const uint32_t tiles = (k.end - k.begin + KEYS - 1) / KEYS, share = (tiles + w.splits - 1) / w.splits,
                   each = share > MIN_TILES ? share : MIN_TILES;
    k.parts = (tiles + each - 1) / each;
    k.from = part * each;
    k.to = k.from + each < tiles ? k.from + each : tiles;
    return k;
}

/* A position in the ring. */
struct ring_place {
    uint32_t stage, parity;
};
template <int D> __device__ __forceinline__ void step_on(ring_place &p)
{
    if (++p.stage == deep_shape<D>::STAGES) p.stage = 0, p.parity ^= 1;
}

struct deep_shared {
    alignas(128) ck_tensor_map map[2];
    uint64_t full[STAGES_MAX], empty[STAGES_MAX];
    uint32_t before;
};

/* The producer's side: lane 0 of warp PRODUCER. Its warpgroup releases a stage last. */
enum { PRODUCER = HALF / 32 };
struct kv_loader {
    const ck_tensor_map *maps; /* of K, of V */
    uint32_t begin, from, n, head, next; /* tiles from, from + 1, ..., n of them; next load of 2 n */
    uint32_t stage, parity;
};

/* The tensor maps of this block: by one warp. */
__device__ __forceinline__ void make_maps(const ck_wgflash &w, deep_shared &s, uint32_t end)
{
    const uint32_t lane = threadIdx.x & 31;
    ck_tensor_map *to = w.maps + 2 * blockIdx.x;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (lane < 16) s.map[i].v[lane] = w.map.v[lane];
        __syncwarp();
        if (!lane) {
            const uint32_t at = smem_addr(&s.map[i]);
            asm volatile("tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%0], %1;" ::"r"(at),
                         "l"(w.attend.pass.slots[i ? w.attend.slot_v : w.attend.slot_k])
                         : "memory");
            asm volatile("tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%0], 2, %1;" ::"r"(at), "r"(end) : "memory");
        }
        __syncwarp();
        asm volatile("tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%0], [%1], 128;"
                     ::"l"(to + i), "r"(smem_addr(&s.map[i]))
                     : "memory");
    }
#pragma unroll
    for (int i = 0; i < 2; i++) asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(to + i) : "memory");
}

/* The next load, into the stage that is free. */
template <int D> __device__ __forceinline__ void load_next(kv_loader &l, deep_shared &s, uint32_t ring)
{
    enum { KEYS = deep_shape<D>::KEYS, TILE = deep_shape<D>::TILE };
    const uint32_t x = l.next++, i = (x + 1) / 2;
    if (x >= 2 * l.n) return;
    const bool is_k = !x || (x % 2 && i < l.n);
    const uint32_t tile = l.from + (is_k ? i : x % 2 ? i - 1 : x / 2 - 1), row = l.begin + tile * KEYS;
    mbar_expect_tx(&s.full[l.stage], TILE);
#pragma unroll
    for (int c = 0; c < D / 64; c++)
        asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                     "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(ring + l.stage * TILE + c * (KEYS * 128)),
                     "l"(l.maps + !is_k), "r"(c * 32), "r"(l.head), "r"(row), "r"(smem_addr(&s.full[l.stage]))
                     : "memory");
    if (++l.stage == deep_shape<D>::STAGES) l.stage = 0;
}

/* The producer loads into stages that both warpgroups have read. */
template <int D> __device__ __forceinline__ void refill(kv_loader &l, deep_shared &s, uint32_t ring, int n)
{
    if (threadIdx.x != PRODUCER * 32) return;
    for (int i = 0; i < n; i++) {
        if (l.next >= 2 * l.n) return;
        mbar_wait(&s.empty[l.stage], l.parity);
        load_next<D>(l, s, ring);
        if (!l.stage) l.parity ^= 1;
    }
}
/* This warpgroup has read the stage. */
template <int D> __device__ __forceinline__ void release(kv_loader &l, deep_shared &s, uint32_t ring, ring_place &p)
{
    __syncwarp();
    if (!(threadIdx.x & 31)) mbar_arrive(&s.empty[p.stage]);
    if (!deep_shape<D>::LATE) refill<D>(l, s, ring, 1);
    step_on<D>(p);
}

/* Online softmax step: the scores of this thread's two rows become exponentials; rescale: factor for the older sums. Maxima and
 * sums are of two columns at a time, in chains that are half as long. */
template <int N>
__device__ __forceinline__ void softmax_keys(const ck_attend &a, float (&s)[N], row_softmax &m, const uint32_t (&pos)[2],
                                             uint32_t j0, float (&rescale)[2])
{
    const float LOG2E = 1.4426950408889634f;
    float top[4] = {s[0], s[1], s[2], s[3]}, sum[4] = {0, 0, 0, 0}, base[2];
    const uint32_t pair = (threadIdx.x & 3) * 2;
    const bool all = !a.window && !(a.softcap > 0) && j0 + 2 * N - 1 <= pos[0]; /* pos[0] < pos[1] */
    if (!all) {
        const uint32_t window = a.window ? a.window : 0x7fffffff; /* positions are below 2^31 */
        const float uncap = a.softcap > 0 ? 1.0f / a.softcap : 0;
#pragma unroll
        for (int n = 0; n < N; n++) {
            const uint32_t j = j0 + n / 4 * 8 + pair + (n & 1), at = pos[n >> 1 & 1];
            if (a.softcap > 0) s[n] = a.softcap * tanh_fast(s[n] * uncap);
            s[n] = j > at || j + window <= at ? -CUDART_INF_F : s[n];
            if (n < 4) top[n] = s[n];
        }
    }
#pragma unroll
    for (int n = 4; n < N; n++) top[n & 3] = fmaxf(top[n & 3], s[n]);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float x = fmaxf(m.max_score[i], fmaxf(top[2 * i], top[2 * i + 1]));
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
        base[i] = x > -CUDART_INF_F ? x * LOG2E : 0; /* all keys masked so far: weights are 0 */
        rescale[i] = exp2_fast(fmaf(m.max_score[i], LOG2E, -base[i]));
        m.max_score[i] = x;
    }
#pragma unroll
    for (int n = 0; n < N; n++) {
        s[n] = exp2_fast(fmaf(s[n], LOG2E, -base[n >> 1 & 1]));
        sum[n & 3] += s[n];
    }
#pragma unroll
    for (int i = 0; i < 2; i++) m.sum[i] = fmaf(m.sum[i], rescale[i], sum[2 * i] + sum[2 * i + 1]);
}

__device__ __forceinline__ void all_sync() { asm volatile("bar.sync 3, 256;" ::: "memory"); }
/* Named barrier of a warpgroup's turn to multiply. */
__device__ __forceinline__ void wait_turn() { asm volatile("bar.sync %0, 256;" ::"r"(1 + threadIdx.x / HALF) : "memory"); }
__device__ __forceinline__ void pass_turn() { asm volatile("bar.arrive %0, 256;" ::"r"(2 - threadIdx.x / HALF) : "memory"); }

/* q of a warpgroup: as operands in registers, or a tile in shared memory. */
template <int D> struct query {
    uint32_t regs[deep_shape<D>::REGS ? D / 16 : 1][4];
    uint64_t tile;
};

template <int N> struct constant {
    enum { value = N };
};
/* s = q k^T, asynchronous. */
template <int BF16, int D, int N> __device__ __forceinline__ void start_scores(float (&s)[N], const query<D> &q, uint32_t at)
{
    enum { PANEL = deep_shape<D>::KEYS * 128 };
    const uint64_t keys = tile_at(at, 16);
    auto one = [&](auto add, int kk) {
        const uint64_t k = keys + (kk / 4 * PANEL + kk % 4 * 32) / 16;
        if constexpr (deep_shape<D>::REGS)
            multiply_left<BF16, add.value>(s, q.regs[kk], k);
        else
            multiply_tiles<BF16, add.value>(s, q.tile + (kk / 4 * (ROWS * 128) + kk % 4 * 32) / 16, k);
    };
    wgmma_fence();
    one(constant<0>(), 0);
#pragma unroll
    for (int kk = 1; kk < D / 16; kk++) one(constant<1>(), kk);
    wgmma_commit();
}

/* out += weights v, asynchronous. */
template <int BF16, int D, int N>
__device__ __forceinline__ void start_values(float (&out)[D / 2], const uint32_t (&p)[N][4], uint32_t at)
{
    enum { PANEL = deep_shape<D>::KEYS * 128 };
    const uint64_t values = tile_at(at, PANEL);
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < N; kk++) multiply_trans<BF16>(out, p[kk], values + kk * 16 * 128 / 16);
    wgmma_commit();
}

template <int BF16, int N> __device__ __forceinline__ void pack_weights(uint32_t (&p)[N / 8][4], const float (&s)[N])
{
#pragma unroll
    for (int n = 0; n < N / 2; n++) p[n / 4][n % 4] = pack<BF16>(s[2 * n], s[2 * n + 1]);
}

/* All tiles of keys of the part. */
template <int BF16, int D>
__device__ __forceinline__ void attend_part(const ck_attend &a, float (&out)[D / 2], row_softmax &m, const uint32_t (&pos)[2],
                                            const query<D> &q, kv_loader &l, deep_shared &shared, uint32_t ring)
{
    enum { KEYS = deep_shape<D>::KEYS, TILE = deep_shape<D>::TILE, N = KEYS / 2 };
    const uint32_t half = threadIdx.x / HALF, n = l.n;
    uint32_t j0 = l.begin + l.from * KEYS, p[N / 8][4];
    float s[N], rescale[2];
    ring_place at = {0, 0}, behind;
    auto arrived = [&](const ring_place &x) { mbar_wait(&shared.full[x.stage], x.parity); };
    arrived(at);
    start_scores<BF16, D>(s, q, ring);
    wgmma_wait_all();
    wgmma_sums_ready(s);
    release<D>(l, shared, ring, at);
    if (half && n > 1) pass_turn();
    softmax_keys(a, s, m, pos, j0, rescale); /* out is 0 */
    pack_weights<BF16>(p, s);
#pragma unroll 1
    for (uint32_t i = 1; i < n; i++) {
        j0 += KEYS;
        if (deep_shape<D>::LATE) refill<D>(l, shared, ring, i > 1 ? 2 : 1);
        arrived(at);
        wait_turn();
        start_scores<BF16, D>(s, q, ring + at.stage * TILE);
        behind = at;
        step_on<D>(behind);
        arrived(behind);
        start_values<BF16, D>(out, p, ring + behind.stage * TILE);
        if (!half || i + 1 < n) pass_turn();
        wgmma_wait_but_one();
        wgmma_sums_ready(s);
        release<D>(l, shared, ring, at);
        softmax_keys(a, s, m, pos, j0, rescale);
        wgmma_wait_all();
        wgmma_sums_ready(out);
        release<D>(l, shared, ring, at);
#pragma unroll
        for (int k = 0; k < D / 2; k++) out[k] *= rescale[k >> 1 & 1];
        pack_weights<BF16>(p, s);
    }
    arrived(at);
    start_values<BF16, D>(out, p, ring + at.stage * TILE);
    wgmma_wait_all();
    wgmma_sums_ready(out);
}

/* q of the warpgroup's rows, scaled, in 16 bits. */
template <int BF16, int D>
__device__ __forceinline__ void load_query(const ck_attend &a, query<D> &q, unsigned char *smem, uint32_t t0, uint32_t rows,
                                           uint32_t row, uint32_t h)
{
    if constexpr (deep_shape<D>::REGS) {
#pragma unroll
        for (int kk = 0; kk < D / 16; kk++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t r = row + i % 2 * 8;
                float2 x = make_float2(0, 0);
                if (r < rows)
                    x = *reinterpret_cast<const float2 *>(a.q.p + (size_t)(t0 + r) * a.q.stride + h * D + kk * 16 + i / 2 * 8 +
                                                          (threadIdx.x & 3) * 2);
                q.regs[kk][i] = pack<BF16>(x.x * a.scale, x.y * a.scale);
            }
    } else {
        row_tile tile;
        tile.t0 = t0, tile.rows = rows;
        load_q<BF16, D>(a, smem, tile, h, threadIdx.x % HALF, HALF);
        fence_proxy_async();
        q.tile = tile_at(smem_addr(smem), 16);
    }
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

/* The rows of a warpgroup: up to 64, from row t0 of the pass, of query head h; none for the last tile of an odd number. */
struct row_group {
    uint32_t t0, rows, h;
};
__device__ __forceinline__ row_group find_rows(const ck_attend &a, uint32_t all, uint32_t kv, uint32_t pair, uint32_t half)
{
    const uint32_t share = a.heads / a.kv_heads, i = 2 * pair + half;
    row_group g;
    g.t0 = i / share * ROWS, g.h = kv * share + i % share;
    g.rows = g.t0 >= all ? 0 : all - g.t0 < ROWS ? all - g.t0 : ROWS;
    return g;
}

/* Adds the parts of a pair, [2 * ROWS, D] each, from `parts`; their maxima and sums are in `ends`. scales: shared memory,
 * [parts][2 * ROWS]. */
template <int D>
__device__ __forceinline__ void join_key_parts(const ck_attend &a, const float *parts, const float2 *ends, uint32_t n,
                                               float *scales, const row_group &g)
{
    const float LOG2E = 1.4426950408889634f;
    const uint32_t half = threadIdx.x / HALF;
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
    all_sync();
    /* A thread has the same four columns of every STEP-th row: EACH rows at a time are in flight. */
    enum { STEP = HALF / (D / 4), EACH = ROWS / STEP < 8 ? ROWS / STEP : 8 };
    const uint32_t r0 = threadIdx.x % HALF / (D / 4), c = threadIdx.x % (D / 4) * 4;
    parts += (size_t)half * ROWS * D + c, scales += half * ROWS;
#pragma unroll 1
    for (uint32_t r1 = r0; r1 < g.rows; r1 += STEP * EACH) {
        float4 v[EACH];
#pragma unroll
        for (int i = 0; i < EACH; i++) v[i] = make_float4(0, 0, 0, 0);
#pragma unroll 1
        for (uint32_t k = 0; k < n; k++) {
            float4 x[EACH];
#pragma unroll
            for (int i = 0; i < EACH; i++)
                x[i] = __ldcg(reinterpret_cast<const float4 *>(parts + ((size_t)k * 2 * ROWS + r1 + i * STEP) * D));
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                const float scale = scales[k * 2 * ROWS + r1 + i * STEP];
                v[i].x = fmaf(x[i].x, scale, v[i].x), v[i].y = fmaf(x[i].y, scale, v[i].y);
                v[i].z = fmaf(x[i].z, scale, v[i].z), v[i].w = fmaf(x[i].w, scale, v[i].w);
            }
        }
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const uint32_t t = r1 + i * STEP;
            if (t >= g.rows) break;
            store_pair(a, g.t0 + t, g.h * D + c, make_float2(v[i].x, v[i].y));
            store_pair(a, g.t0 + t, g.h * D + c + 2, make_float2(v[i].z, v[i].w));
        }
    }
}

/* Stores the sums of one of several parts; the last block of the pair adds all of them. */
template <int D>
__device__ __forceinline__ void hand_over(const ck_wgflash &w, const float (&out)[D / 2], const row_softmax &m, uint32_t row,
                                          uint32_t unit, uint32_t part, uint32_t parts, float *scales, uint32_t *before,
                                          const row_group &g)
{
    const uint32_t in_pair = threadIdx.x / HALF * ROWS + row, pair = (threadIdx.x & 3) * 2;
    float *all_parts = w.attend.parts + (size_t)unit * w.splits * 2 * ROWS * D;
    float2 *ends = reinterpret_cast<float2 *>(w.ends) + (size_t)unit * w.splits * 2 * ROWS;
    float *own = all_parts + ((size_t)part * 2 * ROWS + in_pair) * D;
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int n = 0; n < D / 8; n++)
            *reinterpret_cast<float2 *>(own + i * 8 * D + n * 8 + pair) = make_float2(out[n * 4 + 2 * i], out[n * 4 + 2 * i + 1]);
        if (!(threadIdx.x & 3)) ends[part * 2 * ROWS + in_pair + 8 * i] = make_float2(m.max_score[i], m.sum[i]);
    }
    __threadfence();
    all_sync();
    if (!threadIdx.x) *before = atomicAdd(&w.arrivals[unit], 1);
    all_sync();
    if (*before + 1 < parts) return;
    __threadfence();
    if (!threadIdx.x) w.arrivals[unit] = 0;
    join_key_parts<D>(w.attend, all_parts, ends, parts, scales, g);
}

/* Kernel body: block b has a pair of tiles of a K/V head, b modulo their number, those with most keys first, and part b divided
 * by that number. */
template <int BF16, int D>
__device__ __forceinline__ void flash_deep(const ck_wgflash &w, unsigned char *smem, uint32_t all, uint32_t first)
{
    enum { STAGES = deep_shape<D>::STAGES };
    __shared__ deep_shared shared;
    const ck_attend &a = w.attend;
    const uint32_t tiles = (all + ROWS - 1) / ROWS * (a.heads / a.kv_heads), pairs = (tiles + 1) / 2, units = pairs * a.kv_heads,
                   unit = blockIdx.x % units, part = blockIdx.x / units, kv = unit % a.kv_heads,
                   pair = pairs - 1 - unit / a.kv_heads;
    if (part >= w.splits) return;
    const row_group front = find_rows(a, all, kv, pair, 0), back = find_rows(a, all, kv, pair, 1);
    const uint32_t last_row = back.rows ? back.t0 + back.rows - 1 : front.t0 + front.rows - 1;
    const key_part keys = find_key_part<D>(w, first, front.t0, last_row, part);
    if (part >= keys.parts) return;
    const uint32_t half = threadIdx.x / HALF, lane = threadIdx.x & 31, row = (threadIdx.x / 32 & 3) * 16 + (lane >> 2),
                   ring = smem_addr(smem) + (deep_shape<D>::REGS ? 0 : 2 * ROWS * D * 2);
    const row_group g = half ? back : front;
    const uint32_t pos[2] = {first + g.t0 + row, first + g.t0 + row + 8};
    kv_loader l = {w.maps + 2 * blockIdx.x, keys.begin, keys.from, keys.to - keys.from, kv, 0, 0, 0};
    if (threadIdx.x / 32 == PRODUCER) {
        if (!lane) {
            for (int i = 0; i < STAGES; i++) mbar_init(&shared.full[i], 1), mbar_init(&shared.empty[i], THREADS / 32);
            mbar_init_fence();
        }
        make_maps(w, shared, keys.end);
        if (!lane)
            for (int i = 0; i < STAGES; i++) load_next<D>(l, shared, ring);
    }
    query<D> q;
    load_query<BF16, D>(a, q, smem + half * ROWS * D * 2, g.t0, g.rows, row, g.h);
    float out[D / 2];
#pragma unroll
    for (int n = 0; n < D / 2; n++) out[n] = 0;
    row_softmax m;
    const bool sinks = a.sinks && !part;
    m.max_score[0] = m.max_score[1] = sinks ? a.sinks[g.h] : -CUDART_INF_F;
    m.sum[0] = m.sum[1] = sinks && (lane & 3) == 0 ? 1 : 0;
    __syncthreads();
    attend_part<BF16, D>(a, out, m, pos, q, l, shared, ring);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        m.sum[i] += __shfl_xor_sync(0xffffffffu, m.sum[i], 1);
        m.sum[i] += __shfl_xor_sync(0xffffffffu, m.sum[i], 2);
    }
    if (keys.parts > 1) {
        hand_over<D>(w, out, m, row, unit, part, keys.parts, reinterpret_cast<float *>(smem), &shared.before, g);
        return;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t r = row + 8 * i;
        const float scale = 1.0f / m.sum[i];
        if (r >= g.rows) continue;
#pragma unroll
        for (int n = 0; n < D / 8; n++)
            store_pair(a, g.t0 + r, g.h * D + n * 8 + (lane & 3) * 2,
                       make_float2(out[n * 4 + 2 * i] * scale, out[n * 4 + 2 * i + 1] * scale));
    }
}
