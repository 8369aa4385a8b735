/* k_train_flash.cu: causal attention of training with bf16 values, for whole sequences that begin at position 0, without matrices
 * of scores in memory. Grid: tile of 64 rows (from the last one), head, sequence; a warp has 16 rows. Forward keeps log2 of each
 * row's sum of exponentials, L. Backward computes P = 2^(S - L) again, twice: by rows of queries for dQ, by rows of keys for dK
 * and dV, so nothing is added by two blocks. dK and dV are summed over the heads of a group in order.
 *
 * Tiles of keys or queries are double-buffered in shared memory. Chunks of 16 bytes are exchanged within their row (by the row's
 * number modulo 8), so that the eight rows of a matrix are in different banks. An accumulator of one product has the layout of
 * the left operand of the next, so P and dS stay in registers. On Hopper, products with heads of 64 are those of a warpgroup
 * (wgmma), which reads the tiles in the same layout; elsewhere, and for 128, each warp multiplies by mma.
 * SPDX-License-Identifier: MIT */
#include "k_train_bf16.cuh"

#ifdef __CUDACC__
#include "k_wgmma.cuh"
#else
#define HOPPER 0
#endif

static const float LOG2E = 1.44269504088896341f;

__device__ __forceinline__ float exp_2(float x)
{
#ifdef __CUDA_ARCH__
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return exp2f(x);
#endif
}

struct __align__(8) two { float x, y; };

/* A sequence of n rows from `first`, and a head. */
struct flash_item {
    uint32_t first, n, h, kv;
    __device__ flash_item(const ct_flash &a, uint32_t head, uint32_t sequence)
    {
        first = a.from[sequence];
        n = a.from[sequence + 1] - first;
        h = head;
        kv = h / (a.heads / a.kv_heads);
    }
};

template <int D> struct flash {
    enum { ROWS = CT_FLASH_ROWS, INNER = D == 64 ? 64 : 32, STEPS = D / 16, TILES = INNER / 8, CHUNKS = D / 8,
           NUMBERS = INNER * D, GROUP = HOPPER && D == 64 /* products of the warpgroup */, SUMS_N = INNER / 2, OUT_N = D / 2 };
    typedef uint32_t left[INNER / 16][4];   /* a matrix [16, INNER] per warp as left operands */

    /* Rows of 16 x D numbers of this warp as left operands: lane (g, t) has rows g and g + 8. */
    struct rows_fragment {
        uint32_t a[STEPS][4];
        __device__ void load(const uint16_t *p, size_t stride, uint32_t row, uint32_t n)
        {
            uint32_t t = threadIdx.x % 4 * 2;
#pragma unroll
            for (int s = 0; s < STEPS; s++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    uint32_t r = row + e % 2 * 8;
                    a[s][e] = r < n ? *(const uint32_t *)(p + r * stride + 16 * s + 8 * (e / 2) + t) : 0;
                }
        }
    };

    __device__ static uint16_t *chunk(uint16_t *tile, uint32_t row, uint32_t c) { return tile + row * D + (c ^ (row & 7)) * 8; }

    /* Rows [row, row + INNER) of a matrix of n rows; zeros beyond. */
    __device__ static void fetch(uint16_t *tile, const uint16_t *p, size_t stride, uint32_t row, uint32_t n)
    {
#pragma unroll
        for (int e = 0; e < INNER * CHUNKS / CT_FLASH_THREADS; e++) {
            uint32_t r = (threadIdx.x + e * CT_FLASH_THREADS) / CHUNKS, c = threadIdx.x % CHUNKS;
            half_copy(chunk(tile, r, c), row + r < n ? p + (row + r) * stride + c * 8 : p, row + r < n);
        }
    }

    /* Products are complete after finish(); all tiles were made visible by arrived(). */
    __device__ static void start()
    {
#if HOPPER
        if (GROUP) wgmma_fence();
#endif
    }
    __device__ static void finish()
    {
#if HOPPER
        if (GROUP) wgmma_commit(), wgmma_wait_all();
#endif
    }
    /* The copies of this block have arrived, and the tile before was read by all. */
    __device__ static void arrived()
    {
        half_copies_wait<0>();
#if HOPPER
        if (GROUP) fence_proxy_async();
#endif
        __syncthreads();
    }

    /* sums [16, INNER] += rows . tile^T. Four numbers for each tile of 8 columns: rows g, g, g + 8, g + 8; columns 2t, 2t + 1. */
    __device__ static void across(float (&sums)[SUMS_N], const rows_fragment &rows, uint16_t *tile)
    {
#if HOPPER
        if constexpr (GROUP) {
            uint64_t at = tile_at((uint32_t)__cvta_generic_to_shared(tile), 16);
#pragma unroll
            for (int s = 0; s < STEPS; s++) multiply_rows<1>(sums, rows.a[s], at + s * 32 / 16);
            return;
        }
#endif
        uint32_t lane = threadIdx.x % 32, r = lane / 16 * 8 + lane % 8, c = lane / 8 % 2;
#pragma unroll
        for (int s = 0; s < STEPS; s++)
#pragma unroll
            for (int j = 0; j < TILES; j += 2) {
                uint32_t b[4];
                half_matrices<false>(b, chunk(tile, 8 * j + r, 2 * s + c));
                half_mma(quad(sums, j), rows.a[s], b[0], b[1]);
                half_mma(quad(sums, j + 1), rows.a[s], b[2], b[3]);
            }
    }

    /* Rounded to bf16. */
    __device__ static void pack(left &a, const float (&x)[SUMS_N])
    {
#pragma unroll
        for (int i = 0; i < SUMS_N / 2; i++) a[i / 4][i % 4] = half_pair(x[2 * i], x[2 * i + 1]);
    }

    /* out [16, D] += weights [16, INNER] . tile */
    __device__ static void along(float (&out)[OUT_N], const left &weights, uint16_t *tile)
    {
#if HOPPER
        if constexpr (GROUP) {
            uint64_t at = tile_at((uint32_t)__cvta_generic_to_shared(tile), INNER * 128);
#pragma unroll
            for (int s = 0; s < INNER / 16; s++) multiply_trans<1>(out, weights[s], at + s * 16 * 128 / 16);
            return;
        }
#endif
        uint32_t lane = threadIdx.x % 32, r = lane / 8 % 2 * 8 + lane % 8, c = lane / 16;
#pragma unroll
        for (int s = 0; s < INNER / 16; s++)
#pragma unroll
            for (int d = 0; d < D / 8; d += 2) {
                uint32_t b[4];
                half_matrices<true>(b, chunk(tile, 16 * s + r, d + c));
                half_mma(quad(out, d), weights[s], b[0], b[1]);
                half_mma(quad(out, d + 1), weights[s], b[2], b[3]);
            }
    }

    template <int N> __device__ static float (&quad(float (&x)[N], int j))[4] { return *(float(*)[4])(x + 4 * j); }
    template <int N> __device__ static void clear(float (&x)[N])
    {
#pragma unroll
        for (int i = 0; i < N; i++) x[i] = 0;
    }

    /* Rows `row` and `row` + 8 of p, times scale[0] and scale[1]. */
    __device__ static void store(uint16_t *p, size_t stride, uint32_t row, uint32_t n, const float (&x)[OUT_N],
                                 const float (&scale)[2], uint32_t fresh)
    {
#pragma unroll
        for (int d = 0; d < D / 8; d++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                if (row + 8 * e >= n) continue;
                uint32_t *to = (uint32_t *)(p + (row + 8 * e) * stride + 8 * d + threadIdx.x % 4 * 2);
                float low = x[4 * d + 2 * e] * scale[e], high = x[4 * d + 2 * e + 1] * scale[e];
                if (!fresh) low += half_bits(*to << 16), high += half_bits(*to & 0xffff0000u);
                *to = half_pair(low, high);
            }
    }
};

__device__ __forceinline__ bool sees(const ct_flash &a, uint32_t query, uint32_t key)
{
    return key <= query && (!a.window || key + a.window > query);
}

/* 1: every query of [i, i + rows) sees every key of [j, j + keys). */
__device__ __forceinline__ bool all_seen(const ct_flash &a, uint32_t i, uint32_t rows, uint32_t j, uint32_t keys)
{
    return j + keys - 1 <= i && (!a.window || j + a.window > i + rows - 1);
}

/* The first tile of keys that a query from i on sees. */
__device__ __forceinline__ uint32_t first_keys(const ct_flash &a, uint32_t i, uint32_t tile)
{
    return a.window && i + 1 > a.window ? (i + 1 - a.window) / tile * tile : 0;
}

/* Maximum or sum over the four lanes of a row. */
__device__ __forceinline__ float row_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ __forceinline__ float row_sum(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/* Scores of keys that a query does not see become -INFINITY, so that 2^score is 0. i: row of this lane. Apart from the use of
 * the scores, because a condition for each of them becomes a branch, and then one exponential waits for the one before. */
template <int D> __device__ __forceinline__ void hide_keys(const ct_flash &a, float (&s)[flash<D>::SUMS_N], uint32_t i, uint32_t j0)
{
#pragma unroll
    for (int c = 0; c < flash<D>::SUMS_N; c++)
        if (!sees(a, i + c % 4 / 2 * 8, j0 + 8 * (c / 4) + threadIdx.x % 4 * 2 + c % 2)) s[c] = -INFINITY;
}

/* --- forward --- */

/* The running softmax of one tile: s becomes 2^(s - max); out and sum are rescaled. i: row of this lane. */
template <int D> __device__ void softmax_step(const ct_flash &a, float (&s)[flash<D>::SUMS_N], float (&out)[D / 2],
                                              float (&max)[2], float (&sum)[2], uint32_t i, uint32_t j0)
{
    typedef flash<D> F;
    float scale = a.scale * LOG2E;
    if (!all_seen(a, i - threadIdx.x % 32 / 4, 16, j0, F::INNER)) hide_keys<D>(a, s, i, j0);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float m = max[r], part = 0;
#pragma unroll
        for (int j = 0; j < F::TILES; j++) m = fmaxf(m, scale * fmaxf(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]));
        m = row_max(m);
        float base = m > -INFINITY ? m : 0, shrink = exp_2(max[r] - base);
#pragma unroll
        for (int j = 0; j < F::TILES; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) part += s[4 * j + 2 * r + e] = exp_2(fmaf(s[4 * j + 2 * r + e], scale, -base));
        max[r] = m;
        sum[r] = sum[r] * shrink + part;
#pragma unroll
        for (int d = 0; d < D / 8; d++) out[4 * d + 2 * r] *= shrink, out[4 * d + 2 * r + 1] *= shrink;
    }
}

template <int D> __device__ void flash_forward(const ct_flash &a)
{
    typedef flash<D> F;
    __shared__ __align__(1024) uint16_t keys[2][F::NUMBERS], values[2][F::NUMBERS];
    flash_item x(a, blockIdx.y, blockIdx.z);
    uint32_t i0 = (gridDim.x - 1 - blockIdx.x) * F::ROWS, i = i0 + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    if (i0 >= x.n) return;
    const uint16_t *k = a.k.p + x.first * a.k.stride + x.kv * D, *v = a.v.p + x.first * a.v.stride + x.kv * D;
    typename F::rows_fragment q;
    float out[F::OUT_N], s[F::SUMS_N], max[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
    typename F::left p;
    q.load(a.q.p + x.first * a.q.stride + x.h * D, a.q.stride, i, x.n);
    F::clear(out);
    uint32_t from = first_keys(a, i0, F::INNER), to = i0 + F::ROWS < x.n ? i0 + F::ROWS : x.n, stage = 0;
    F::fetch(keys[0], k, a.k.stride, from, x.n);
    F::fetch(values[0], v, a.v.stride, from, x.n);
    half_copies_end();
    for (uint32_t j = from; j < to; j += F::INNER, stage ^= 1) {
        F::arrived();
        if (j + F::INNER < to) {
            F::fetch(keys[stage ^ 1], k, a.k.stride, j + F::INNER, x.n);
            F::fetch(values[stage ^ 1], v, a.v.stride, j + F::INNER, x.n);
        }
        half_copies_end();
        F::clear(s);
        F::start();
        F::across(s, q, keys[stage]);
        F::finish();
        softmax_step<D>(a, s, out, max, sum, i, j);
        F::pack(p, s);
        F::start();
        F::along(out, p, values[stage]);
        F::finish();
    }
    float inverse[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        sum[r] = row_sum(sum[r]);
        inverse[r] = 1.0f / sum[r];
        if (threadIdx.x % 4 == 0 && i + 8 * r < x.n) a.lse[(size_t)x.h * a.rows + x.first + i + 8 * r] = max[r] + log2f(sum[r]);
    }
    size_t width = (size_t)a.heads * D;
    F::store(a.out + x.first * width + x.h * D, width, i, x.n, out, inverse, 1);
}

/* --- backward by queries: dQ, and rowsum(dO . O) for the pass by keys --- */

template <int D> __device__ void flash_queries(const ct_flash &a)
{
    typedef flash<D> F;
    __shared__ __align__(1024) uint16_t keys[2][F::NUMBERS], values[2][F::NUMBERS];
    flash_item x(a, blockIdx.y, blockIdx.z);
    uint32_t i0 = (gridDim.x - 1 - blockIdx.x) * F::ROWS, i = i0 + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    if (i0 >= x.n) return;
    const uint16_t *k = a.k.p + x.first * a.k.stride + x.kv * D, *v = a.v.p + x.first * a.v.stride + x.kv * D;
    size_t width = (size_t)a.heads * D, at = x.first * width + x.h * D, row = (size_t)x.h * a.rows + x.first + i;
    uint32_t from = first_keys(a, i0, F::INNER), to = i0 + F::ROWS < x.n ? i0 + F::ROWS : x.n, stage = 0;
    F::fetch(keys[0], k, a.k.stride, from, x.n);
    F::fetch(values[0], v, a.v.stride, from, x.n);
    half_copies_end();
    typename F::rows_fragment q, dy;
    float dq[F::OUT_N], s[F::SUMS_N], dp[F::SUMS_N], along[2] = {0, 0}, lse[2];
    typename F::left ds;
    q.load(a.result + at, width, i, x.n);
    dy.load(a.dout + at, width, i, x.n);
#pragma unroll
    for (int e = 0; e < 4 * F::STEPS; e++) {
        uint32_t u = q.a[e / 4][e % 4], w = dy.a[e / 4][e % 4];
        along[e % 2] += half_bits(u << 16) * half_bits(w << 16) + half_bits(u & 0xffff0000u) * half_bits(w & 0xffff0000u);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        along[r] = row_sum(along[r]);
        lse[r] = i + 8 * r < x.n ? a.lse[row + 8 * r] : INFINITY;
        if (threadIdx.x % 4 == 0 && i + 8 * r < x.n) a.along[row + 8 * r] = along[r];
    }
    q.load(a.q.p + x.first * a.q.stride + x.h * D, a.q.stride, i, x.n);
    F::clear(dq);
    float scale = a.scale * LOG2E, scales[2] = {a.scale, a.scale};
    for (uint32_t j = from; j < to; j += F::INNER, stage ^= 1) {
        F::arrived();
        if (j + F::INNER < to) {
            F::fetch(keys[stage ^ 1], k, a.k.stride, j + F::INNER, x.n);
            F::fetch(values[stage ^ 1], v, a.v.stride, j + F::INNER, x.n);
        }
        half_copies_end();
        F::clear(s);
        F::clear(dp);
        F::start();
        F::across(s, q, keys[stage]);
        F::across(dp, dy, values[stage]);
        F::finish();
        if (!all_seen(a, i - threadIdx.x % 32 / 4, 16, j, F::INNER)) hide_keys<D>(a, s, i, j);
#pragma unroll
        for (int c = 0; c < F::SUMS_N; c++)
            s[c] = exp_2(fmaf(s[c], scale, -lse[c % 4 / 2])) * (dp[c] - along[c % 4 / 2]);
        F::pack(ds, s);
        F::start();
        F::along(dq, ds, keys[stage]);
        F::finish();
    }
    if (a.dq.p) F::store(a.dq.p + x.first * a.dq.stride + x.h * D, a.dq.stride, i, x.n, dq, scales, a.dq.fresh);
}

/* --- backward by keys: dK and dV; matrices are [keys, queries] --- */

/* As hide_keys; j: row of this lane. */
template <int D> __device__ __forceinline__ void hide_queries(const ct_flash &a, float (&s)[flash<D>::SUMS_N], uint32_t i0,
                                                              uint32_t j)
{
#pragma unroll
    for (int c = 0; c < flash<D>::SUMS_N; c++)
        if (!sees(a, i0 + 8 * (c / 4) + threadIdx.x % 4 * 2 + c % 2, j + c % 4 / 2 * 8)) s[c] = -INFINITY;
}

/* One tile of queries from i0. L and the rowsums of the queries are in `lines`. */
template <int D> __device__ void keys_step(const ct_flash &a, const typename flash<D>::rows_fragment &k,
                                           const typename flash<D>::rows_fragment &v, uint16_t *queries, uint16_t *douts,
                                           const float (&lines)[2][flash<D>::INNER], float (&dk)[D / 2], float (&dv)[D / 2],
                                           uint32_t j, uint32_t i0)
{
    typedef flash<D> F;
    float s[F::SUMS_N], dp[F::SUMS_N], scale = a.scale * LOG2E;
    typename F::left p, ds;
    F::clear(s);
    F::clear(dp);
    F::start();
    F::across(s, k, queries);
    F::across(dp, v, douts);
    F::finish();
    if (!all_seen(a, i0, F::INNER, j - threadIdx.x % 32 / 4, 16)) hide_queries<D>(a, s, i0, j);
#pragma unroll
    for (int c = 0; c < F::SUMS_N; c += 4) {
        uint32_t i = 2 * c + threadIdx.x % 4 * 2;
        two lse = *(const two *)&lines[0][i], along = *(const two *)&lines[1][i];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            s[c + e] = exp_2(fmaf(s[c + e], scale, e % 2 ? -lse.y : -lse.x));
            dp[c + e] = s[c + e] * (dp[c + e] - (e % 2 ? along.y : along.x));
        }
    }
    F::pack(p, s);
    F::pack(ds, dp);
    F::start();
    F::along(dv, p, douts);
    F::along(dk, ds, queries);
    F::finish();
}

template <int D> __device__ void flash_keys(const ct_flash &a)
{
    typedef flash<D> F;
    __shared__ __align__(1024) uint16_t queries[2][F::NUMBERS], douts[2][F::NUMBERS];
    __shared__ __align__(8) float lines[2][2][F::INNER];
    uint32_t group = a.heads / a.kv_heads, j0 = blockIdx.x * F::ROWS;
    flash_item x(a, blockIdx.y * group, blockIdx.z);
    uint32_t j = j0 + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    if (j0 >= x.n) return;
    typename F::rows_fragment k, v;
    float dk[F::OUT_N], dv[F::OUT_N];
    k.load(a.k.p + x.first * a.k.stride + x.kv * D, a.k.stride, j, x.n);
    v.load(a.v.p + x.first * a.v.stride + x.kv * D, a.v.stride, j, x.n);
    F::clear(dk);
    F::clear(dv);
    size_t width = (size_t)a.heads * D;
    uint32_t from = j0 / F::INNER * F::INNER, end = a.window ? j0 + F::ROWS - 1 + a.window : x.n, stage = 0;
    if (end > x.n) end = x.n;
    uint32_t tiles = (end - from + F::INNER - 1) / F::INNER, all = tiles * group;
    auto fetch = [&](uint32_t n, uint32_t s) {
        uint32_t h = x.h + n / tiles, i = from + n % tiles * F::INNER;
        F::fetch(queries[s], a.q.p + x.first * a.q.stride + h * D, a.q.stride, i, x.n);
        F::fetch(douts[s], a.dout + x.first * width + h * D, width, i, x.n);
        if (threadIdx.x >= F::INNER) return;
        bool in = i + threadIdx.x < x.n;
        size_t row = (size_t)h * a.rows + x.first + i + threadIdx.x;
        lines[s][0][threadIdx.x] = in ? a.lse[row] : INFINITY;
        lines[s][1][threadIdx.x] = in ? a.along[row] : 0;
    };
    fetch(0, 0);
    half_copies_end();
    for (uint32_t n = 0; n < all; n++, stage ^= 1) {
        F::arrived();
        if (n + 1 < all) fetch(n + 1, stage ^ 1);
        half_copies_end();
        keys_step<D>(a, k, v, queries[stage], douts[stage], lines[stage], dk, dv, j, from + n % tiles * F::INNER);
    }
    float ones[2] = {1, 1}, scales[2] = {a.scale, a.scale};
    if (a.dv.p) F::store(a.dv.p + x.first * a.dv.stride + x.kv * D, a.dv.stride, j, x.n, dv, ones, a.dv.fresh);
    if (a.dk.p) F::store(a.dk.p + x.first * a.dk.stride + x.kv * D, a.dk.stride, j, x.n, dk, scales, a.dk.fresh);
}

/* The last three: least blocks per multiprocessor, so that one multiplies while others compute exponentials. */
#define KERNEL(name, body, d, blocks)                                                                                            \
    extern "C" __global__ void __launch_bounds__(CT_FLASH_THREADS, blocks) name##_##d(const __grid_constant__ ct_flash a)        \
    {                                                                                                                           \
        body<d>(a);                                                                                                             \
    }
#define KERNELS(d, forward, queries, keys)                                                                                       \
    KERNEL(train_flash, flash_forward, d, forward)                                                                               \
    KERNEL(train_flash_queries, flash_queries, d, queries)                                                                       \
    KERNEL(train_flash_keys, flash_keys, d, keys)
KERNELS(64, 4, 3, 2)
KERNELS(128, 2, 2, 2)
