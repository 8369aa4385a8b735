/* k_wgflash.cu: k_flash.cu's attention for Hopper (capability 9.0 alone; elsewhere these kernels are empty and not used). Two
 * warpgroups take 64 rows each of one query head, one from the front of the pass and one from its back; K and V come in tiles
 * of 64 rows, the next one while this one is worked on; wgmma reads its factors from shared memory itself, so that K and V pass
 * through it once for 64 rows, not for 16. Scores and sums are fp32 in registers, softmax is online.
 * Shared memory: (128 + 4 * 64) * d * 2 bytes: 192 KB for heads of 256.
 * SPDX-License-Identifier: MIT */
#include "k_wgmma.cuh"

enum { ROWS = 64, KEYS = 64, THREADS = CK_WGFLASH_THREADS };

#if HOPPER
/* Rows j0 .. j0 + 63 of K or V, those behind `end` as zeros, while the thread goes on. */
template <int D>
__device__ __forceinline__ void bring_tile(uint32_t to, const unsigned char *from, size_t row_bytes, uint32_t j0, uint32_t end)
{
#pragma unroll
    for (int i = 0; i < KEYS * D / 8 / THREADS; i++) {
        uint32_t piece = threadIdx.x + i * THREADS, r = piece / (D / 8), c = piece % (D / 8) * 8;
        bool is_row = j0 + r < end;
        const unsigned char *p = from + (size_t)(is_row ? j0 + r : j0) * row_bytes + 2 * c;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to + piece_at(r, c, KEYS)), "l"(p),
                     "r"(is_row ? 16 : 0)
                     : "memory");
    }
}

/* What a warpgroup has: up to 64 rows of the pass from t0 on; the block: keys [begin, end). */
struct share {
    uint32_t half, t0, rows, begin, end;
};

/* The block's two tiles of rows. Without a window one from the front with one from the back, so that all blocks have about as
 * many keys to go through; with one, two that follow each other and need the same keys. */
__device__ __forceinline__ share find_share(const ck_attend &a, uint32_t all, uint32_t first)
{
    uint32_t tiles = (all + ROWS - 1) / ROWS, low = a.window ? 2 * blockIdx.x : blockIdx.x,
             high = a.window ? low + 1 : tiles - 1 - low, last = high < tiles ? high : low;
    share s;
    s.half = threadIdx.x / 128;
    uint32_t tile = s.half ? high : low, end = (last + 1) * ROWS < all ? (last + 1) * ROWS : all, at = first + low * ROWS;
    s.t0 = tile * ROWS;
    s.rows = tile >= tiles || (!s.half && low == high) ? 0 : all - s.t0 < ROWS ? all - s.t0 : ROWS;
    s.end = first + end;
    s.begin = a.window && at + 1 > a.window ? (at + 1 - a.window) / KEYS * KEYS : 0;
    return s;
}

/* q of the warpgroup's rows, scaled, in 16 bits, as a tile of 64 rows. */
template <int BF16, int D>
__device__ __forceinline__ void bring_q(const ck_attend &a, unsigned char *to, const share &own, uint32_t h)
{
    to += own.half * (ROWS * D * 2);
#pragma unroll 4
    for (uint32_t i = threadIdx.x % 128; i < ROWS * D / 8; i += 128) {
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

/* The half's rows by way of shared memory (nobody reads K, V or q any more): whole rows go out, and little code. */
template <int D>
__device__ __forceinline__ void write_rows(const ck_attend &a, const float (&out)[D / 64][32], softmax &m, float *room,
                                           const share &own, uint32_t row, uint32_t h)
{
    enum { PITCH = D + 8 };
    room += own.half * ROWS * PITCH;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        m.sum[i] += __shfl_xor_sync(0xffffffffu, m.sum[i], 1);
        m.sum[i] += __shfl_xor_sync(0xffffffffu, m.sum[i], 2);
        float share = 1.0f / m.sum[i], *to = room + (row + 8 * i) * PITCH + (threadIdx.x & 3) * 2;
#pragma unroll
        for (int n = 0; n < D / 8; n++)
            *reinterpret_cast<float2 *>(to + n * 8) =
                make_float2(out[n / 8][n % 8 * 4 + 2 * i] * share, out[n / 8][n % 8 * 4 + 2 * i + 1] * share);
    }
    asm volatile("bar.sync %0, 128;" ::"r"(1 + own.half) : "memory");
#pragma unroll 4
    for (uint32_t i = threadIdx.x % 128; i < ROWS * D / 4; i += 128) {
        uint32_t r = i / (D / 4), t = own.t0 + r, c = i % (D / 4) * 4;
        if (r >= own.rows) break;
        float4 v = four_at(room + r * PITCH, c);
        if (a.gate.p) {
            float4 g = four_at(a.gate.p + (size_t)t * a.gate.stride + h * D, c);
            v = make_float4(v.x * sigmoid_short(g.x), v.y * sigmoid_short(g.y), v.z * sigmoid_short(g.z), v.w * sigmoid_short(g.w));
        }
        *reinterpret_cast<float4 *>(a.y.p + (size_t)t * a.y.stride + h * D + c) = v;
    }
}

/* One tile of keys: scores, their weights, and what they add to the sums. q, k, v: where the tiles begin. */
template <int BF16, int D>
__device__ __forceinline__ void add_keys(const ck_attend &a, float (&out)[D / 64][32], softmax &m, const uint32_t (&place)[2],
                                         uint32_t j0, uint32_t q, uint32_t k, uint32_t v)
{
    enum { APART = KEYS * 128 };
    float s[32], fix[2];
#pragma unroll
    for (int n = 0; n < 32; n++) s[n] = 0;
    products_begin();
#pragma unroll
    for (int kk = 0; kk < D / 16; kk++)
        multiply<BF16>(s, tile_at(q + kk / 4 * (ROWS * 128) + kk % 4 * 32, 16), tile_at(k + kk / 4 * APART + kk % 4 * 32, 16));
    products_asked();
    products_done();
    weigh(a, s, m, place, j0, fix);
#pragma unroll
    for (int b = 0; b < D / 64; b++)
#pragma unroll
        for (int n = 0; n < 32; n++) out[b][n] *= fix[n >> 1 & 1];
    uint32_t p[KEYS / 16][4];
#pragma unroll
    for (int i = 0; i < KEYS / 4; i++) p[i / 4][i % 4] = pack<BF16>(s[2 * i], s[2 * i + 1]);
    products_begin();
#pragma unroll
    for (int kk = 0; kk < KEYS / 16; kk++)
#pragma unroll
        for (int b = 0; b < D / 64; b++)
            multiply_turned<BF16>(out[b], p[kk], tile_at(v + b * APART + kk * 16 * 128, APART));
    products_asked();
    products_done();
}

template <int BF16, int D> __device__ __forceinline__ void flash(const ck_attend &a)
{
    enum { TILE = KEYS * D * 2 };
    extern __shared__ float4 shared4[];
    unsigned char *room = reinterpret_cast<unsigned char *>(shared4);
    room += (1024 - (shared_at(room) & 1023)) & 1023;
    uint32_t q_at = shared_at(room), k_at = q_at + 2 * ROWS * D * 2, v_at = k_at + 2 * TILE;
    uint32_t h = blockIdx.y, kv = h / (a.heads / a.kv_heads), lane = threadIdx.x & 31;
    uint32_t all = a.pass.head->from[1], first = a.pass.head->first[0];
    if (blockIdx.x * 2 * ROWS >= all) return;
    share own = find_share(a, all, first);
    uint32_t row = (threadIdx.x / 32 & 3) * 16 + (lane >> 2), place[2] = {first + own.t0 + row, first + own.t0 + row + 8};
    size_t row_bytes = 2ull * D * a.kv_heads;
    const unsigned char *k = static_cast<const unsigned char *>(a.pass.slots[a.slot_k]) + kv * 2ull * D;
    const unsigned char *v = static_cast<const unsigned char *>(a.pass.slots[a.slot_v]) + kv * 2ull * D;
    bring_tile<D>(k_at, k, row_bytes, own.begin, own.end);
    bring_tile<D>(v_at, v, row_bytes, own.begin, own.end);
    asm volatile("cp.async.commit_group;" ::: "memory");
    bring_q<BF16, D>(a, room, own, h);
    float out[D / 64][32];
#pragma unroll
    for (int b = 0; b < D / 64; b++)
#pragma unroll
        for (int n = 0; n < 32; n++) out[b][n] = 0;
    softmax m;
    m.most[0] = m.most[1] = a.sinks ? a.sinks[h] : -CUDART_INF_F;
    m.sum[0] = m.sum[1] = a.sinks && (lane & 3) == 0 ? 1 : 0;
    uint32_t last = own.rows ? first + own.t0 + own.rows : 0; /* behind what this half sees */
    for (uint32_t j0 = own.begin, turn = 0; j0 < own.end; j0 += KEYS, turn ^= 1) {
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        written();
        __syncthreads();
        if (j0 + KEYS < own.end) {
            bring_tile<D>(k_at + (turn ^ 1) * TILE, k, row_bytes, j0 + KEYS, own.end);
            bring_tile<D>(v_at + (turn ^ 1) * TILE, v, row_bytes, j0 + KEYS, own.end);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
        if (j0 < last)
            add_keys<BF16, D>(a, out, m, place, j0, q_at + own.half * (ROWS * D * 2), k_at + turn * TILE, v_at + turn * TILE);
    }
    __syncthreads();
    write_rows<D>(a, out, m, reinterpret_cast<float *>(room), own, row, h);
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
