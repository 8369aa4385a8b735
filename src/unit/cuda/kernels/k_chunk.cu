/* k_chunk.cu: first stage of the chunked gated delta rule for prompts, on tensor cores, heads of
 * 128: everything about a chunk of 64 tokens that does not depend on the state S. With c the running
 * sum of the logarithms of the decays, L_ij = e^(c_i - c_j), i >= j:
 *   X = strictly lower part of beta_i (k_i . k_j) L_ij,  T = (I + X)^-1,  P = (q_i . k_j) L_ij
 * Grid (chunks, value heads), all chunks in parallel; T is inverted in fp32 by blocks of 16, 32, 64.
 * Inputs: k_chunk_load.cuh.
 *
 * chunk_local writes k, q, T, P and the scalars for k_chunk_state.cu (sm_80 and later).
 * chunk_factors (sm_90) continues to
 *   W = T (beta_j e^c_j k_j),  U = T (beta_j v_j),  e^c_i q_i,  e^(c_last - c_j) k_j
 * and stores these in the fragment order of k_scan.cu (struct ck_factors). chunk_factors_halves
 * reads bf16 inputs.
 * SPDX-License-Identifier: MIT */
#include "k_chunk_load.cuh"

/* EDGE: size of the diagonal blocks inverted directly; ROW: padded pitch of T. */
enum { EDGE = 16, ROW = N + 4 };
typedef float square[N][ROW];

/* Inverts each EDGE x EDGE diagonal block of I + X by forward substitution: one warp per block, one
 * lane per column. Idle lanes write the zeros right of the first block of each pair. */
__device__ __forceinline__ void solve_blocks(const local_smem &smem, square &t)
{
    uint32_t warp = threadIdx.x >> 5, j = threadIdx.x & 31, base = warp * EDGE;
    float column[EDGE];
    if (warp >= N / EDGE) return;
    /* Row i of the inverse: e_i minus the earlier rows weighted by X. */
#pragma unroll
    for (int i = 0; i < EDGE; i++) {
        float s[4] = {};
#pragma unroll
        for (int m = 0; m < i; m += 4) {
            float4 x = *reinterpret_cast<const float4 *>(&smem.x[base + i][base + m]);
            s[0] = fmaf(x.x, column[m], s[0]);
            if (m + 1 < i) s[1] = fmaf(x.y, column[m + 1], s[1]);
            if (m + 2 < i) s[2] = fmaf(x.z, column[m + 2], s[2]);
            if (m + 3 < i) s[3] = fmaf(x.w, column[m + 3], s[3]);
        }
        column[i] = (i == (int)j ? 1.0f : 0.0f) - ((s[0] + s[1]) + (s[2] + s[3]));
        if (j < EDGE)
            t[base + i][base + j] = column[i];
        else if (warp % 2 == 0)
            t[base + i][base + j] = 0;
    }
}

__device__ __forceinline__ float4 add_scaled(float4 sum, float x, float4 v)
{
    return make_float4(fmaf(x, v.x, sum.x), fmaf(x, v.y, sum.y), fmaf(x, v.z, sum.z), fmaf(x, v.w, sum.w));
}

/* Merges pairs of inverted blocks of width W into one of 2 W: the block below the diagonal is - T2 X
 * T1. */
template <int W> __device__ __forceinline__ void merge_blocks(const local_smem &smem, square &t, square &y)
{
    enum { BLOCK_THREADS = W * W / 4 }; /* threads per block, four columns each */
    uint32_t base = threadIdx.x / BLOCK_THREADS * 2 * W, r = base + W + threadIdx.x % BLOCK_THREADS / (W / 4),
             c = base + threadIdx.x % (W / 4) * 4;
    bool active = base < N;
    float4 sum = make_float4(0, 0, 0, 0);
    /* First product: X T1. */
    if (active) {
#pragma unroll 8
        for (int m = 0; m < W; m++)
            sum = add_scaled(sum, smem.x[r][base + m], *reinterpret_cast<const float4 *>(&t[base + m][c]));
        *reinterpret_cast<float4 *>(&y[r][c]) = sum;
    }
    __syncthreads();
    sum = make_float4(0, 0, 0, 0);
    /* Second product: - T2 (X T1). */
    if (active) {
#pragma unroll 8
        for (int m = 0; m < W; m++)
            sum = add_scaled(sum, -t[r][base + W + m], *reinterpret_cast<const float4 *>(&y[base + W + m][c]));
        *reinterpret_cast<float4 *>(&t[r][c]) = sum;
    }
    __syncthreads();
}

/* T = (I + X)^-1, in the memory of q. Entries above the diagonal blocks are not read again. */
__device__ __forceinline__ square &solve(local_smem &smem)
{
    square *both = reinterpret_cast<square *>(smem.q);
    static_assert(2 * sizeof(square) <= sizeof smem.q, "T lies where q was");
    solve_blocks(smem, both[0]);
    __syncthreads();
    merge_blocks<16>(smem, both[0], both[1]);
    merge_blocks<32>(smem, both[0], both[1]);
    return both[0];
}

/* Writes T in two parts. */
__device__ __forceinline__ void put_inverse(const square &t, uint16_t *t_out)
{
    uint32_t r = threadIdx.x / 4, c = threadIdx.x % 4 * EDGE;
    if (r >= N || c / EDGE > r / EDGE) return;
    uint32_t high[EDGE / 2], low[EDGE / 2];
#pragma unroll
    for (int i = 0; i < EDGE / 2; i++) split(t[r][c + 2 * i], t[r][c + 2 * i + 1], high[i], low[i]);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint4 *to = reinterpret_cast<uint4 *>(t_out + r * N + c) + i;
        *to = make_uint4(high[4 * i], high[4 * i + 1], high[4 * i + 2], high[4 * i + 3]);
        *(to + N * N / 8) = make_uint4(low[4 * i], low[4 * i + 1], low[4 * i + 2], low[4 * i + 3]);
    }
}

/* Computes X (to shared memory) and P from k and q: warps 0 to 3 X, 4 to 7 P. P goes row-major to
 * `tp` or in fragment order to `pieces`. */
__device__ __forceinline__ void multiply_rows(local_smem &smem, uint16_t *tp, uint4 *pieces)
{
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    /* warps i and i + 4 share a scheduler: balances long and short rows */
    uint32_t tile = warp < 4 ? warp : 7 - warp, group = lane >> 2, pair = (lane & 3) * 2;
    const uint16_t *left = warp < 4 ? smem.k[0][0] : smem.q[0][0];
    float sum[N / 8][4] = {}, small[N / 8][4] = {};
    /* Only tiles on or below the diagonal. */
#pragma unroll 2
    for (int kk = 0; kk < D; kk += 16) {
        uint32_t ah[4], al[4], bh[4], bl[4];
        load_a(ah, left, WIDE, tile * 16, kk);
        load_a(al, left + N * WIDE, WIDE, tile * 16, kk);
#pragma unroll
        for (int n = 0; n < N / 16; n++) {
            if (n > tile) continue;
            load_b(bh, smem.k[0][0], WIDE, n * 16, kk);
            load_b(bl, smem.k[1][0], WIDE, n * 16, kk);
            mma3(sum[2 * n], small[2 * n], ah, al, bh, bl);
            mma3(sum[2 * n + 1], small[2 * n + 1], ah, al, bh + 2, bl + 2);
        }
    }
    /* Apply decays and the causal mask; X excludes the diagonal and takes beta. */
#pragma unroll
    for (int n = 0; n < N / 8; n++) {
        if (n > 2 * tile + 1) continue;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t i = tile * 16 + group + 8 * half, j = n * 8 + pair;
            float x = sum[n][2 * half] + small[n][2 * half], y = sum[n][2 * half + 1] + small[n][2 * half + 1];
            float at = smem.c[i];
            x *= exp_fast(fminf(at - smem.c[j], 0)), y *= exp_fast(fminf(at - smem.c[j + 1], 0));
            x = j <= i ? x : 0, y = j + 1 <= i ? y : 0;
            sum[n][2 * half] = x, sum[n][2 * half + 1] = y;
            if (warp < 4)
                *reinterpret_cast<float2 *>(&smem.x[i][j]) = make_float2(j < i ? x * smem.beta[i] : 0,
                                                                         j + 1 < i ? y * smem.beta[i] : 0);
            else if (tp)
                put_split(tp + 2 * N * N + i * N + j, N * N, x, y);
        }
    }
    if (warp < 4 || !pieces) return;
#pragma unroll
    for (int n = 0; n < N / 16; n++)
        if (n <= tile) put_piece(pieces + (tile * (tile + 1) / 2 + n) * PIECE, sum[2 * n], sum[2 * n + 1]);
}

/* chunk_local: grid (chunks, heads); eight warps handle the rows, a ninth sums the decays meanwhile. */
extern "C" __global__ void __launch_bounds__(CK_CHUNK_LOCAL_THREADS, 2) chunk_local(const __grid_constant__ ck_delta a)
{
    local_smem &smem = *reinterpret_cast<local_smem *>(shared4);
    uint32_t c = blockIdx.x, h = blockIdx.y, share = a.v_heads / a.k_heads;
    /* Rows of this chunk; padding chunks of a captured pass have none. */
    wait_for_inputs();
    uint32_t all = a.pass.head->from[1], t0 = c * N, rows = t0 >= all ? 0 : all - t0 < N ? all - t0 : N;
    uint16_t *qk = a.chunk_qk + ((size_t)c * a.k_heads + h / share) * 4 * N * D,
             *tp = a.chunk_tp + ((size_t)c * a.v_heads + h) * 4 * N * N;
    float4 v[ROWS_PER_WARP];
    if (threadIdx.x < THREADS) {
        /* Only the first value head of a key head writes k and q. */
        load_rows(a, smem, t0, rows, h, a.conv.weight ? 3 : 2, h % share ? nullptr : qk, v);
        float *to = a.chunk_v + ((size_t)c * a.v_heads + h) * N * D + (threadIdx.x >> 5) * ROWS_PER_WARP * D +
                    (threadIdx.x & 31) * 4;
#pragma unroll
        for (int r = 0; r < ROWS_PER_WARP && a.conv.weight; r++) *reinterpret_cast<float4 *>(to + r * D) = v[r];
    } else
        sum_decays<0>(a, smem, t0, rows, h, a.chunk_scalars + ((size_t)c * a.v_heads + h) * 3 * N);
    __syncthreads();
    if (threadIdx.x < THREADS) multiply_rows(smem, tp, nullptr);
    __syncthreads();
    put_inverse(solve(smem), tp);
}

#if __CUDA_ARCH__ == 900
/* Scales a pair of two-part numbers and splits the results again. */
__device__ __forceinline__ void scale_pair(uint32_t &high, uint32_t &low, float x, float y)
{
    float2 h = __bfloat1622float2(*reinterpret_cast<__nv_bfloat162 *>(&high)),
           l = __bfloat1622float2(*reinterpret_cast<__nv_bfloat162 *>(&low));
    split((h.x + l.x) * x, (h.y + l.y) * y, high, low);
}

/* e^c q and e^(c_last - c) k in fragment order: a warp handles 16 columns of all rows. */
__device__ __forceinline__ void put_scaled(const local_smem &smem, uint4 *q_out, uint4 *k_out)
{
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    float last = smem.c[N - 1];
#pragma unroll 1
    for (uint32_t tile = 0; tile < N / 16; tile++) {
        uint32_t h[4], l[4], row = tile * 16 + (lane >> 2);
        float x = exp_fast(smem.c[row]), y = exp_fast(smem.c[row + 8]), z, w;
        load_b(h, smem.q[0][0], WIDE, tile * 16, warp * 16);
        /* q: scaled per row i. */
        load_b(l, smem.q[1][0], WIDE, tile * 16, warp * 16);
        scale_pair(h[0], l[0], x, x), scale_pair(h[1], l[1], x, x), scale_pair(h[2], l[2], y, y), scale_pair(h[3], l[3], y, y);
        uint4 *to = q_out + (warp * (N / 16) + tile) * PIECE + lane;
        to[0] = make_uint4(h[0], h[1], h[2], h[3]), to[32] = make_uint4(l[0], l[1], l[2], l[3]);
        /* k: transposed, scaled per column j. */
        row = tile * 16 + (lane & 3) * 2;
        x = exp_fast(last - smem.c[row]), y = exp_fast(last - smem.c[row + 1]);
        z = exp_fast(last - smem.c[row + 8]), w = exp_fast(last - smem.c[row + 9]);
        load_b_trans(h, smem.k[0][0], WIDE, tile * 16, warp * 16);
        load_b_trans(l, smem.k[1][0], WIDE, tile * 16, warp * 16);
        scale_pair(h[0], l[0], x, y), scale_pair(h[1], l[1], z, w), scale_pair(h[2], l[2], x, y), scale_pair(h[3], l[3], z, w);
        to = k_out + (warp * (N / 16) + tile) * PIECE + lane;
        to[0] = make_uint4(h[0], h[1], h[2], h[3]), to[32] = make_uint4(l[0], l[1], l[2], l[3]);
    }
}

/* W = T (beta e^c K) in fragment order: a warp handles 16 rows and half of the columns. */
__device__ __forceinline__ void put_w(const local_smem &smem, const square &t, uint4 *w_out)
{
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, half = warp >> 2, tile = half ? 7 - warp : warp,
             row = tile * 16 + (lane >> 2);
    float sum[8][4] = {}, small[8][4] = {};
    /* T is lower triangular: column tiles up to this row tile. */
#pragma unroll 1
    for (uint32_t kk = 0; kk <= tile; kk++) {
        uint32_t ah[4], al[4], bh[4], bl[4], col = kk * 16 + (lane & 3) * 2;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            /* Scale T's columns by beta e^c while splitting them. */
            uint32_t j = col + i / 2 * 8;
            float2 x = *reinterpret_cast<const float2 *>(&t[row + i % 2 * 8][j]);
            split(x.x * smem.beta[j] * exp_fast(smem.c[j]), x.y * smem.beta[j + 1] * exp_fast(smem.c[j + 1]), ah[i], al[i]);
        }
#pragma unroll
        for (int n = 0; n < 4; n++) {
            load_b_trans(bh, smem.k[0][0], WIDE, kk * 16, half * 64 + n * 16);
            load_b_trans(bl, smem.k[1][0], WIDE, kk * 16, half * 64 + n * 16);
            mma3(sum[2 * n], small[2 * n], ah, al, bh, bl);
            mma3(sum[2 * n + 1], small[2 * n + 1], ah, al, bh + 2, bl + 2);
        }
    }
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) sum[n][i] += small[n][i];
#pragma unroll
    for (int n = 0; n < 4; n++) put_piece(w_out + ((half * 4 + n) * (N / 16) + tile) * PIECE, sum[2 * n], sum[2 * n + 1]);
}

/* U^T = (beta V)^T T^T in fp32, in accumulator order of chunk_scan: a warp handles 16 columns of the
 * head. */
enum { V_ROW = D + 4 };
__device__ __forceinline__ void put_u(const square &t, const float *v, float4 *u_out)
{
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, pair = (lane & 3) * 2;
    uint32_t ah[4][4], al[4][4];
    /* All of (beta V)^T of this warp's columns. */
#pragma unroll
    for (int kk = 0; kk < N / 16; kk++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *p = v + (kk * 16 + pair + i / 2 * 8) * V_ROW + warp * 16 + g + i % 2 * 8;
            split(p[0], p[V_ROW], ah[kk][i], al[kk][i]);
        }
    u_out += warp * (N / 8) * 32 + lane;
#pragma unroll
    for (int n = 0; n < N / 16; n++) {
        float sum[2][4] = {}, small[2][4] = {};
        /* T is lower triangular: kk <= n. */
#pragma unroll
        for (int kk = 0; kk <= n; kk++) {
            uint32_t bh[4], bl[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float2 x = *reinterpret_cast<const float2 *>(&t[n * 16 + g + i / 2 * 8][kk * 16 + pair + i % 2 * 8]);
                split(x.x, x.y, bh[i], bl[i]);
            }
            mma3(sum[0], small[0], ah[kk], al[kk], bh, bl);
            mma3(sum[1], small[1], ah[kk], al[kk], bh + 2, bl + 2);
        }
#pragma unroll
        for (int i = 0; i < 2; i++)
            u_out[(2 * n + i) * 32] = make_float4(sum[i][0] + small[i][0], sum[i][1] + small[i][1], sum[i][2] + small[i][2],
                                                  sum[i][3] + small[i][3]);
    }
}
#endif

#if __CUDA_ARCH__ == 900
/* Body of chunk_factors and chunk_factors_halves. */
template <int HALF> __device__ __forceinline__ void make_factors(const ck_delta &a)
{
    local_smem &smem = *reinterpret_cast<local_smem *>(shared4);
    uint32_t c = blockIdx.x, h = blockIdx.y, lane = threadIdx.x & 31, first = (threadIdx.x >> 5) * ROWS_PER_WARP;
    wait_for_inputs();
    uint32_t all = a.pass.head->from[1], t0 = c * N, rows = t0 >= all ? 0 : all - t0 < N ? all - t0 : N;
    ck_factors &out = a.factors[(size_t)c * a.v_heads + h];
    bool active = HALF || threadIdx.x < THREADS;
    float4 v[ROWS_PER_WARP];
    if (HALF)
        load_rows_bf16(a, smem, t0, rows, h, v);
    else if (active)
        load_rows(a, smem, t0, rows, h, 3, nullptr, v);
    else
        sum_decays<0>(a, smem, t0, rows, h, nullptr);
    __syncthreads();
    if (active) {
        multiply_rows(smem, nullptr, reinterpret_cast<uint4 *>(out.p));
        put_scaled(smem, reinterpret_cast<uint4 *>(out.q), reinterpret_cast<uint4 *>(out.k));
    }
    if (threadIdx.x == 0) out.decay = expf(smem.c[N - 1]);
    __syncthreads();
    const square &t = solve(smem);
    /* memory that T no longer needs, and X */
    float *beta_v = reinterpret_cast<float *>(reinterpret_cast<square *>(smem.q) + 1);
    static_assert(sizeof(square) + sizeof smem.x >= N * V_ROW * sizeof(float), "V lies behind T");
    /* beta V to shared memory, for the transposed read in put_u. */
    if (active) {
#pragma unroll
        for (int r = 0; r < ROWS_PER_WARP; r++) {
            float b = smem.beta[first + r];
            *reinterpret_cast<float4 *>(beta_v + (first + r) * V_ROW + 4 * lane) = make_float4(b * v[r].x, b * v[r].y,
                                                                                                b * v[r].z, b * v[r].w);
        }
        put_w(smem, t, reinterpret_cast<uint4 *>(out.w));
    }
    __syncthreads();
    if (active) put_u(t, beta_v, reinterpret_cast<float4 *>(out.u));
}
#endif

/* Kernels for k_scan.cu: from fp32 inputs, and from bf16 inputs before the convolution. */
extern "C" __global__ void __launch_bounds__(CK_CHUNK_LOCAL_THREADS, 2) chunk_factors(const __grid_constant__ ck_delta a)
{
#if __CUDA_ARCH__ == 900
    make_factors<0>(a);
#endif
}
extern "C" __global__ void __launch_bounds__(CK_CHUNK_THREADS, 2) chunk_factors_halves(const __grid_constant__ ck_delta a)
{
#if __CUDA_ARCH__ == 900
    make_factors<1>(a);
#endif
}
