/* k_delta_tiles.cuh: the gated delta rule over many tokens, four tokens per step, from rows that delta_prepare normalised.
 * Used by prefill where the tensor-core kernels (k_chunk.cu) do not fit. A block of 4 warps handles
 * CK_DELTA_TILE_COLUMNS columns of one head's S, two per warp in registers; q, k, v and the scalars of 16 tokens
 * are double-buffered in shared memory by cp.async.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_K_DELTA_TILES_CUH
#define SG_UNIT_CUDA_K_DELTA_TILES_CUH

#include "k_rule.cuh"

/* Scalars per row and head in the scratch of delta_prepare, and tokens per step. */
enum { SCALARS = CK_DELTA_SCALARS, FOUR = 4 };
/* cp.async of 16 bytes to shared memory. */
__device__ __forceinline__ void cp_async_16(void *to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from) : "memory");
}

enum { TILE = 16, WARPS = 4 };

/* Loads k of four tokens from r0 on and multiplies k and q with the S before them: lanes 0 to 15 of
 * `sums` hold S^T k of both columns, the others S^T q. */
template <int R>
__device__ __forceinline__ void dot_four_rows(const float2 (&S)[R], const float (&qk)[TILE][64 * R], uint32_t r0, uint32_t dk,
                                              uint32_t lane, float (&k)[FOUR][R], float (&sums)[FOUR])
{
#pragma unroll
    for (int t = 0; t < FOUR; t++) {
        float2 x = make_float2(0, 0), y = x;
#pragma unroll
        for (int r = 0; r < R; r++) {
            float q = qk[r0 + t][lane + 32 * r];
            k[t][r] = qk[r0 + t][dk + lane + 32 * r];
            x.x = fmaf(S[r].x, k[t][r], x.x), x.y = fmaf(S[r].y, k[t][r], x.y);
            y.x = fmaf(S[r].x, q, y.x), y.y = fmaf(S[r].y, q, y.y);
        }
        sums[t] = warp_sum_4(x.x, x.y, y.x, y.y);
    }
}

/* Token t of four: computes d_t from its v, the products with S and the d of the tokens before it,
 * which are decayed on the way; G is the product of the decays. Returns y_t. v is read where it is
 * used. */
__device__ __forceinline__ float delta_of_row(const float4 *num, const float &v, float sums, uint32_t own, int t,
                                              float (&d)[FOUR], float &G)
{
    /* decay, beta, k . q; then the products with earlier keys and their q. */
    float4 n0 = num[0], kk = num[1], kq = num[2];
    G *= n0.x;
    float sum = 0, y = 0;
#pragma unroll
    for (int m = 1; m <= t; m++) { /* d of t - m has been decayed up to t - 1 */
        d[t - m] *= n0.x;
        sum = fmaf(m == 1 ? kk.x : m == 2 ? kk.y : kk.z, d[t - m], sum);
        y = fmaf(m == 1 ? kq.x : m == 2 ? kq.y : kq.z, d[t - m], y);
    }
    float mine = n0.y * (v - fmaf(G, sums, sum));
    d[t] = __shfl_sync(0xffffffffu, mine, own * 8);
    return fmaf(n0.z, d[t], fmaf(G, sums, y));
}

/* S <- G S + sum of k d^T over four tokens; lane 0 holds d of the first column, lane 8 of the
 * second. */
template <int R>
__device__ __forceinline__ void add_four(float2 (&S)[R], const float (&k)[FOUR][R], const float (&d)[FOUR], float G)
{
    float2 w[FOUR];
#pragma unroll
    for (int t = 0; t < FOUR; t++) w[t] = make_float2(__shfl_sync(0xffffffffu, d[t], 0), __shfl_sync(0xffffffffu, d[t], 8));
#pragma unroll
    for (int r = 0; r < R; r++) {
        S[r].x *= G, S[r].y *= G;
#pragma unroll
        for (int t = 0; t < FOUR; t++) S[r].x = fmaf(k[t][r], w[t].x, S[r].x), S[r].y = fmaf(k[t][r], w[t].y, S[r].y);
    }
}

/* Source of a block's tiles: tokens [t0, t0 + n) of normalised q and k, [width] of key head `key`;
 * columns from j0 on of head h of v; scalars [rows][v heads][SCALARS]. */
struct tile_source {
    uint32_t h, j0, t0, n, width, key;
    const float *scalars;
};

/* Starts the copies of TILE tokens as one cp.async group; unaligned data is copied synchronously.
 * Missing tokens get decay 1 and zeros. */
template <int R>
__device__ __forceinline__ void load_tile(const ck_delta &a, const tile_source &from, uint32_t tile, float (&qk)[TILE][64 * R],
                                          float (&vs)[TILE][CK_DELTA_TILE_COLUMNS], float (&scalars)[TILE][SCALARS])
{
    enum { WIDE = (SCALARS + CK_DELTA_TILE_COLUMNS) / 4 };
    /* q and k: 16 bytes per thread and step. */
    for (uint32_t i = threadIdx.x; i < TILE * from.width / 4; i += 128) {
        uint32_t r = i / (from.width / 4), c = i % (from.width / 4) * 4, t = tile * TILE + r;
        if (t < from.n)
            cp_async_16(&qk[r][c], a.ready + ((size_t)(from.t0 + t) * a.k_heads + from.key) * from.width + c);
        else
            *reinterpret_cast<float4 *>(&qk[r][c]) = make_float4(0, 0, 0, 0);
    }
    /* Scalars and v. */
    for (uint32_t i = threadIdx.x; i < TILE * WIDE; i += 128) {
        uint32_t r = i / WIDE, c = i % WIDE, t = tile * TILE + r, v = c < SCALARS / 4 ? 0 : c - SCALARS / 4;
        float *put = c < SCALARS / 4 ? &scalars[r][4 * c] : &vs[r][4 * v];
        const float *p = c < SCALARS / 4
                             ? from.scalars + ((size_t)(from.t0 + t) * a.v_heads + from.h) * SCALARS + 4 * c
                             : a.in[2].p + (size_t)(from.t0 + t) * a.in[2].stride + (size_t)from.h * a.dv + from.j0 + 4 * v;
        if (t < from.n && (reinterpret_cast<uintptr_t>(p) & 15) == 0)
            cp_async_16(put, p);
        else if (t < from.n)
            for (int k = 0; k < 4; k++) put[k] = p[k];
        else
            *reinterpret_cast<float4 *>(put) = make_float4(c == 0, 0, 0, 0);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Body of delta_tiles for one head of width 128. q, k and v of 16 tokens are copied while the 16
 * before are processed. Four tokens are one step. With S the state before them, G_t the product of
 * their decays up to t, and G_st that of tokens s + 1 .. t:
 *   d_t = beta_t (v_t - G_t S^T k_t - sum over s < t of G_st (k_s . k_t) d_s)
 *   y_t = G_t S^T q_t + sum over s <= t of G_st (k_s . q_t) d_s
 *   S <- G_4 S + sum of G_s4 k_s d_s^T
 * so all eight products with S are reduced together. Missing tokens have decay 1 and zero k, q, v. */
template <int R> __device__ __forceinline__ void delta_tiles(const ck_delta &a)
{
    __shared__ __align__(16) float qk[2][TILE][64 * R], vs[2][TILE][CK_DELTA_TILE_COLUMNS], scalars[2][TILE][SCALARS];
    enum { COLUMNS = CK_DELTA_TILE_COLUMNS / WARPS };
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, per = a.dv / CK_DELTA_TILE_COLUMNS;
    uint32_t h = blockIdx.x / per, j0 = blockIdx.x % per * CK_DELTA_TILE_COLUMNS, s = blockIdx.y, own = lane >> 3 & 1;
    uint32_t width = 2 * a.dk, key = h / (a.v_heads / a.k_heads);
    size_t at = (size_t)h * a.dk * a.dv + j0 + warp * COLUMNS;
    const float *memory = static_cast<const float *>(a.pass.slots[s * a.pass.slots_n + a.slot]) + at;
    float *after = static_cast<float *>(a.pass.slots_out[s * a.pass.slots_n + a.slot]) + at;
    const float *row_scalars = a.ready + (size_t)a.rows * a.k_heads * width;
    float2 S[R];
    wait_for_inputs();
#pragma unroll
    for (int r = 0; r < R; r++) S[r] = *reinterpret_cast<const float2 *>(memory + (size_t)(lane + 32 * r) * a.dv);
    uint32_t t0 = a.pass.head->from[s], n = a.pass.head->from[s + 1] - t0;
    const tile_source from = {h, j0, t0, n, width, key, row_scalars};
    load_tile<R>(a, from, 0, qk[0], vs[0], scalars[0]);
    /* Copy the next tile while this one is processed. */
    for (uint32_t tile = 0; tile * TILE < n; tile++) {
        uint32_t to = (tile + 1) & 1;
        load_tile<R>(a, from, tile + 1, qk[to], vs[to], scalars[to]);
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        __syncthreads();
        uint32_t in = tile & 1;
        /* Four tokens per step. */
#pragma unroll 1
        for (uint32_t r0 = 0; r0 < TILE; r0 += FOUR) {
            float k[FOUR][R], sums[FOUR], d[FOUR], G = 1;
            dot_four_rows<R>(S, qk[in], r0, a.dk, lane, k, sums);
#pragma unroll
            for (int t = 0; t < FOUR; t++) {
                const float4 *num = reinterpret_cast<const float4 *>(scalars[in][r0 + t]);
                float y = delta_of_row(num, vs[in][r0 + t][warp * COLUMNS + own], sums[t], own, t, d, G);
                if ((lane & 23) == 16 && tile * TILE + r0 + t < n)
                    a.y.p[(size_t)(t0 + tile * TILE + r0 + t) * a.y.stride + (size_t)h * a.dv + j0 + warp * COLUMNS + own] = y;
            }
            add_four<R>(S, k, d, G);
        }
        __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < R; r++) *reinterpret_cast<float2 *>(after + (size_t)(lane + 32 * r) * a.dv) = S[r];
}

#endif
