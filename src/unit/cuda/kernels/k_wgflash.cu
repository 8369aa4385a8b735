/* k_wgflash.cu: k_flash.cu's attention for Hopper (capability 9.0 alone; elsewhere these kernels are empty and not used). A block
 * takes 64 rows of one query head; where there are more than the card has places for, then 64 more, one tile from the front of
 * the pass and one from its back, so that all blocks have as many keys to go through. Of the tiles of 64 K and V rows one
 * warpgroup takes every other one, so that one multiplies while the other one weighs; at the end they put together what they
 * have. Each warpgroup brings its own K and V, in turn, through three places. wgmma reads its factors from shared memory itself;
 * scores and sums are fp32 in registers, softmax is online. Shared memory: 7 tiles of 64 * d * 2 bytes: 224 KB for heads of 256.
 * SPDX-License-Identifier: MIT */
#include "k_wgmma.cuh"

enum { ROWS = 64, KEYS = 64, THREADS = CK_WGFLASH_THREADS, HALF = 128 };

#if HOPPER
/* Rows j0 .. j0 + 63 of K or V, those behind `end` as zeros, by a warpgroup, while the thread goes on. */
template <int D>
__device__ __forceinline__ void bring_tile(uint32_t to, const unsigned char *from, size_t row_bytes, uint32_t j0, uint32_t end)
{
    enum { APART = HALF / (D / 8), PIECES = KEYS / APART }; /* rows between a thread's pieces */
    static_assert(APART == 4 || APART % 8 == 0, "pieces are exchanged by the row");
    const uint32_t r = threadIdx.x % HALF / (D / 8), c = threadIdx.x % (D / 8) * 8;
    from += (size_t)(j0 + r) * row_bytes + 2 * c;
    to += piece_at(r, c, KEYS);
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

/* Rows of the pass from t0 on, up to 64, and the keys that they see: [begin, end). */
struct share {
    uint32_t t0, rows, begin, end;
};
__device__ __forceinline__ share find_share(const ck_attend &a, uint32_t all, uint32_t first, uint32_t tile)
{
    share s;
    s.t0 = tile * ROWS;
    s.rows = all - s.t0 < ROWS ? all - s.t0 : ROWS;
    s.end = first + s.t0 + s.rows;
    s.begin = a.window && first + s.t0 + 1 > a.window ? (first + s.t0 + 1 - a.window) / KEYS * KEYS : 0;
    return s;
}

/* q of the rows, scaled, in 16 bits, as a tile of 64 rows. */
template <int BF16, int D>
__device__ __forceinline__ void bring_q(const ck_attend &a, unsigned char *to, const share &own, uint32_t h)
{
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < ROWS * D / 8; i += THREADS) {
        uint32_t r = i / (D / 8), c = i % (D / 8) * 8;
        float4 x = make_float4(0, 0, 0, 0), y = x;
        if (r < own.rows) {
            const float *q = a.q.p + (size_t)(own.t0 + r) * a.q.stride + h * D + c;
            x = four_at(q, 0), y = four_at(q, 4);
        }
        uint4 v = make_uint4(pack<BF16>(x.x * a.scale, x.y * a.scale), pack<BF16>(x.z * a.scale, x.w * a.scale),
                             pack<BF16>(y.x * a.scale, y.y * a.scale), pack<BF16>(y.z * a.scale, y.w * a.scale));
        *reinterpret_cast<uint4 *>(to + piece_at(r, c, ROWS)) = v;
    }
}

struct softmax {
    float most[2], sum[2];
};

/* Scores of this thread's two rows become weights; the factor by which older sums shrink. */
__device__ __forceinline__ void weigh(const ck_attend &a, float (&s)[32], softmax &m, const uint32_t (&place)[2], uint32_t j0,
                                      float (&fix)[2])
{
    float top[2] = {m.most[0], m.most[1]};
    const float LOG2E = 1.4426950408889634f;
    float uncap = a.softcap > 0 ? 1.0f / a.softcap : 0;
    uint32_t window = a.window ? a.window : 0x7fffffff; /* places are below 2^31 */
    uint32_t pair = (threadIdx.x & 3) * 2;
    bool all = !a.window && !(a.softcap > 0) && j0 + KEYS - 1 <= place[0]; /* nothing is hidden; place[0] < place[1] */
    if (!all)
#pragma unroll
        for (int n = 0; n < 32; n++) {
            uint32_t j = j0 + n / 4 * 8 + pair + (n & 1), at = place[n >> 1 & 1];
            if (a.softcap > 0) s[n] = a.softcap * tanh_short(s[n] * uncap);
            bool hidden = j > at || j + window <= at;
            s[n] = hidden ? -CUDART_INF_F : s[n];
        }
#pragma unroll
    for (int n = 0; n < 32; n++) top[n >> 1 & 1] = fmaxf(top[n >> 1 & 1], s[n]);
    float base[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        top[i] = fmaxf(top[i], __shfl_xor_sync(0xffffffffu, top[i], 1));
        top[i] = fmaxf(top[i], __shfl_xor_sync(0xffffffffu, top[i], 2));
        base[i] = top[i] > -CUDART_INF_F ? top[i] * LOG2E : 0; /* all hidden so far: weights are 0 */
        fix[i] = exp2_short(fmaf(m.most[i], LOG2E, -base[i]));
        m.most[i] = top[i];
        m.sum[i] *= fix[i];
    }
#pragma unroll
    for (int n = 0; n < 32; n++) {
        s[n] = exp2_short(fmaf(s[n], LOG2E, -base[n >> 1 & 1]));
        m.sum[n >> 1 & 1] += s[n];
    }
}

__device__ __forceinline__ void group_meets() { asm volatile("bar.sync %0, 128;" ::"r"(1 + threadIdx.x / HALF) : "memory"); }

/* What each warpgroup has of the rows put together: it ends half of the columns, and leaves of the others what it has. room: its
 * places of K and V, which nobody reads any more; other: those of the other one. */
template <int D>
__device__ __forceinline__ void join_halves(float (&out)[D / 64][32], softmax &m, unsigned char *room, const unsigned char *other)
{
    enum { EACH = D / 4 }; /* numbers of a thread that the other one ends */
    const uint32_t half = threadIdx.x / HALF, t = threadIdx.x % HALF;
    float *gives = reinterpret_cast<float *>(room), *all = &out[0][0];
    const float *takes = reinterpret_cast<const float *>(other);
    const float LOG2E = 1.4426950408889634f;
    float own[2], its[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        m.sum[i] += __shfl_xor_sync(0xffffffffu, m.sum[i], 1);
        m.sum[i] += __shfl_xor_sync(0xffffffffu, m.sum[i], 2);
    }
#pragma unroll
    for (int n = 0; n < EACH; n += 4) {
        float4 v = half ? make_float4(all[n], all[n + 1], all[n + 2], all[n + 3])
                        : make_float4(all[EACH + n], all[EACH + n + 1], all[EACH + n + 2], all[EACH + n + 3]);
        reinterpret_cast<float4 *>(gives)[n / 4 * HALF + t] = v;
    }
    reinterpret_cast<float4 *>(gives)[EACH / 4 * HALF + t] = make_float4(m.most[0], m.most[1], m.sum[0], m.sum[1]);
    __syncthreads();
    const float4 theirs = reinterpret_cast<const float4 *>(takes)[EACH / 4 * HALF + t];
    const float most[2] = {theirs.x, theirs.y}, sum[2] = {theirs.z, theirs.w};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float top = fmaxf(m.most[i], most[i]) * LOG2E;
        own[i] = exp2_short(fmaf(m.most[i], LOG2E, -top)), its[i] = exp2_short(fmaf(most[i], LOG2E, -top));
        float share = 1.0f / (m.sum[i] * own[i] + sum[i] * its[i]);
        own[i] *= share, its[i] *= share;
    }
#pragma unroll
    for (int n = 0; n < EACH; n += 4) {
        const float4 v = reinterpret_cast<const float4 *>(takes)[n / 4 * HALF + t];
        const float x[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 4; i++) all[n + i] = (half ? all[EACH + n + i] : all[n + i]) * own[i >> 1] + x[i] * its[i >> 1];
    }
}

/* The warpgroup's columns of the rows by way of shared memory: whole lines go out, and little code. */
template <int D>
__device__ __forceinline__ void write_rows(const ck_attend &a, const float (&out)[D / 64][32], float *room, const share &own,
                                           uint32_t row, uint32_t h)
{
    enum { WIDTH = D / 2, PITCH = WIDTH + 8 };
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int n = 0; n < WIDTH / 8; n++)
            *reinterpret_cast<float2 *>(room + (row + 8 * i) * PITCH + (threadIdx.x & 3) * 2 + n * 8) =
                make_float2(out[n / 8][n % 8 * 4 + 2 * i], out[n / 8][n % 8 * 4 + 2 * i + 1]);
    group_meets();
    const uint32_t from = h * D + threadIdx.x / HALF * WIDTH;
#pragma unroll 4
    for (uint32_t i = threadIdx.x % HALF; i < ROWS * WIDTH / 4; i += HALF) {
        uint32_t r = i / (WIDTH / 4), t = own.t0 + r, c = i % (WIDTH / 4) * 4;
        if (r >= own.rows) break;
        float4 v = four_at(room + r * PITCH, c);
        if (a.gate.p) {
            float4 g = four_at(a.gate.p + (size_t)t * a.gate.stride + from, c);
            v = make_float4(v.x * sigmoid_short(g.x), v.y * sigmoid_short(g.y), v.z * sigmoid_short(g.z),
                            v.w * sigmoid_short(g.w));
        }
        *reinterpret_cast<float4 *>(a.y.p + (size_t)t * a.y.stride + from + c) = v;
    }
}

/* Where a warpgroup's K and V come from and stand: in two of three places, and the next ones go where it is free. Each block
 * begins at another one of its tiles: all would ask the same lines of the second-level cache at the same moment. */
struct stream {
    const unsigned char *k, *v;
    size_t row_bytes;
    uint32_t at, begin, end, many, shift; /* many: its tiles of keys, in the order shift, shift + 1, ... */
};
__device__ __forceinline__ uint32_t keys_of(const stream &s, uint32_t i)
{
    const uint32_t n = i + s.shift;
    return s.begin + (n < s.many ? n : n - s.many) * (2 * KEYS);
}
template <int D> __device__ __forceinline__ void ask(const stream &s, const unsigned char *what, uint32_t i, uint32_t place)
{
    if (i < s.many) bring_tile<D>(s.at + place * (KEYS * D * 2), what, s.row_bytes, keys_of(s, i), s.end);
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Tile i of the warpgroup's keys: scores, their weights, and what they add to the sums. K lies in place k, V in the one behind
 * it; K of the next tile goes to the third one, its V to K's. Nothing is under way where writes are made known to the products:
 * that would be waited for. */
template <int BF16, int D>
__device__ __forceinline__ void add_keys(const ck_attend &a, float (&out)[D / 64][32], softmax &m, const uint32_t (&place)[2],
                                         uint32_t i, uint64_t q, const stream &from, uint32_t k)
{
    enum { APART = KEYS * 128, TILE = KEYS * D * 2 };
    const uint32_t v = k == 2 ? 0 : k + 1, free = v == 2 ? 0 : v + 1;
    const uint64_t keys = tile_at(from.at + k * TILE, 16), values = tile_at(from.at + v * TILE, APART);
    float s[32], fix[2];
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    written();
    group_meets();
    ask<D>(from, from.k, i + 1, free);
#pragma unroll
    for (int n = 0; n < 32; n++) s[n] = 0;
    products_begin();
#pragma unroll
    for (int kk = 0; kk < D / 16; kk++)
        multiply<BF16>(s, q + (kk / 4 * (ROWS * 128) + kk % 4 * 32) / 16, keys + (kk / 4 * APART + kk % 4 * 32) / 16);
    products_asked();
    products_done();
    group_meets();
    ask<D>(from, from.v, i + 1, k);
    weigh(a, s, m, place, keys_of(from, i), fix);
#pragma unroll
    for (int b = 0; b < D / 64; b++)
#pragma unroll
        for (int n = 0; n < 32; n++) out[b][n] *= fix[n >> 1 & 1];
    uint32_t p[KEYS / 16][4];
#pragma unroll
    for (int n = 0; n < KEYS / 4; n++) p[n / 4][n % 4] = pack<BF16>(s[2 * n], s[2 * n + 1]);
    products_begin();
#pragma unroll
    for (int kk = 0; kk < KEYS / 16; kk++)
#pragma unroll
        for (int b = 0; b < D / 64; b++) multiply_turned<BF16>(out[b], p[kk], values + (b * APART + kk * 16 * 128) / 16);
    products_asked();
    products_done();
}

/* One tile of rows; `from` says where K and V are and their places begin. */
template <int BF16, int D>
__device__ __forceinline__ void attend_rows(const ck_attend &a, unsigned char *room, stream from, const share &own,
                                            uint32_t first, uint32_t h)
{
    enum { TILE = KEYS * D * 2 };
    const uint32_t half = threadIdx.x / HALF, lane = threadIdx.x & 31, row = (threadIdx.x / 32 & 3) * 16 + (lane >> 2),
                   place[2] = {first + own.t0 + row, first + own.t0 + row + 8}, tiles = (own.end - own.begin + KEYS - 1) / KEYS;
    unsigned char *places = room + TILE + half * 3 * TILE;
    from.begin = own.begin + half * KEYS, from.end = own.end;
    from.many = (tiles + 1 - half) / 2, from.shift = from.many ? (blockIdx.x * 5 + h * 3) % from.many : 0;
    ask<D>(from, from.k, 0, 0);
    ask<D>(from, from.v, 0, 1);
    bring_q<BF16, D>(a, room, own, h);
    written();
    float out[D / 64][32];
#pragma unroll
    for (int b = 0; b < D / 64; b++)
#pragma unroll
        for (int n = 0; n < 32; n++) out[b][n] = 0;
    softmax m;
    bool sinks = a.sinks && !half;
    m.most[0] = m.most[1] = sinks ? a.sinks[h] : -CUDART_INF_F;
    m.sum[0] = m.sum[1] = sinks && (lane & 3) == 0 ? 1 : 0;
    __syncthreads();
#pragma unroll 1
    for (uint32_t i = 0, k = 0; i < from.many; i++, k = k ? k - 1 : 2)
        add_keys<BF16, D>(a, out, m, place, i, tile_at(shared_at(room), 16), from, k);
    group_meets();
    join_halves<D>(out, m, places, room + TILE + (half ^ 1) * 3 * TILE);
    write_rows<D>(a, out, reinterpret_cast<float *>(places + 128 * D + 2048), own, row, h);
}

template <int BF16, int D> __device__ __forceinline__ void flash(const ck_attend &a)
{
    extern __shared__ float4 shared4[];
    unsigned char *room = reinterpret_cast<unsigned char *>(shared4);
    room += (1024 - (shared_at(room) & 1023)) & 1023;
    const uint32_t h = blockIdx.y, kv = h / (a.heads / a.kv_heads), all = a.pass.head->from[1], first = a.pass.head->first[0];
    const uint32_t tiles = (all + ROWS - 1) / ROWS;
    uint32_t tile = blockIdx.x, last = gridDim.x < tiles ? tiles - 1 - tile : tile; /* the second one, if any */
    if (tile >= tiles || last < tile) return;
    stream from;
    from.row_bytes = 2ull * D * a.kv_heads;
    from.k = static_cast<const unsigned char *>(a.pass.slots[a.slot_k]) + kv * 2ull * D;
    from.v = static_cast<const unsigned char *>(a.pass.slots[a.slot_v]) + kv * 2ull * D;
    from.at = shared_at(room) + (1 + 3 * (threadIdx.x / HALF)) * (KEYS * D * 2);
#pragma unroll 1
    for (;; tile = last) {
        attend_rows<BF16, D>(a, room, from, find_share(a, all, first, tile), first, h);
        if (tile == last) break;
        __syncthreads(); /* all of the room is free again */
    }
}
#endif

#if HOPPER
#define WGFLASH(NAME, BF16, D)                                    \
    extern "C" __global__ void __launch_bounds__(THREADS, 1)      \
        wgflash_##NAME##_##D(const __grid_constant__ ck_attend a) \
    {                                                             \
        wait_for_inputs();                                        \
        flash<BF16, D>(a);                                        \
    }
#else
#define WGFLASH(NAME, BF16, D) \
    extern "C" __global__ void wgflash_##NAME##_##D(const __grid_constant__ ck_attend a) {}
#endif
WGFLASH(f16, 0, 64)
WGFLASH(f16, 0, 128)
WGFLASH(f16, 0, 256)
WGFLASH(bf16, 1, 64)
WGFLASH(bf16, 1, 128)
WGFLASH(bf16, 1, 256)
