/* k_chunk.cu: the gated delta rule of many rows on the tensor cores, 64 rows (a chunk) at a time, heads of 128 (reference
 * models.md 2.5): what chunks are without S. With c the running sum of the logarithms of the decays and L_ij = e^(c_i - c_j), i >= j:
 *   X = strict lower part of beta_i (k_i . k_j) L_ij,  T = (I + X)^-1,  P = (q_i . k_j) L_ij
 * for all chunks at once, a block each. T is found in fp32, by blocks of 16, 32, 64. What follows is in k_carry.cu.
 * SPDX-License-Identifier: MIT */
#include "k_pairs.cuh"

enum { THREADS = CK_CHUNK_THREADS };

struct local_room {
    uint16_t k[2][N][WIDE], q[2][N][WIDE];
    float x[N][N];
    float c[N], beta[N];
};

/* Running sums of the decays' logarithms, by one warp; rows behind the last do nothing. */
__device__ __forceinline__ void sum_decays(const ck_delta &a, local_room &room, uint32_t t0, uint32_t rows, uint32_t h,
                                           float *numbers)
{
    uint32_t lane = threadIdx.x & 31;
    float rate = a.is_log ? -expf(a.decay[h]) : a.decay[h], dt = a.dt[h], before = 0;
#pragma unroll 1
    for (uint32_t r = lane; r < N; r += 32) {
        uint32_t t = t0 + r;
        bool is_row = r < rows;
        float c = is_row ? rate * softplus(a.in[3].p[(size_t)t * a.in[3].stride + h] + dt) : 0;
        float beta = is_row ? sigmoid(a.in[4].p[(size_t)t * a.in[4].stride + h]) : 0;
#pragma unroll
        for (int m = 1; m < 32; m *= 2) {
            float other = __shfl_up_sync(0xffffffffu, c, m);
            if (lane >= m) c += other;
        }
        c += before;
        before = __shfl_sync(0xffffffffu, c, 31);
        room.c[r] = c;
        room.beta[r] = numbers[N + r] = beta;
    }
    for (uint32_t r = lane; r < N; r += 32) {
        numbers[r] = expf(room.c[r]);
        numbers[2 * N + r] = expf(before - room.c[r]);
    }
}

enum { EACH = N / (THREADS / 32) }; /* rows of a warp */

/* Four columns of a warp's rows, those behind the last as zeros. */
__device__ __forceinline__ void bring_plain(const ck_view &x, uint32_t col, uint32_t t0, uint32_t rows, float4 (&out)[EACH])
{
    uint32_t first = (threadIdx.x >> 5) * EACH;
#pragma unroll
    for (int i = 0; i < EACH; i++)
        out[i] = first + i < rows ? four_at(x.p + (size_t)(t0 + first + i) * x.stride, col) : make_float4(0, 0, 0, 0);
}

/* The same behind the convolution and SiLU; rows before the span's first come from its memory. */
__device__ __forceinline__ void bring_convolved(const ck_delta &a, int which, uint32_t col, uint32_t t0, uint32_t rows,
                                                float4 (&out)[EACH])
{
    enum { PAST = CK_CHUNK_TAPS - 1 };
    const ck_view &x = a.in[which];
    uint32_t first = t0 + (threadIdx.x >> 5) * EACH, channel = a.conv.at[which] + col, past = a.conv.taps - 1;
    const float *memory = static_cast<const float *>(a.pass.slots[a.conv.slot]) + channel;
    float4 raw[EACH + PAST], w[CK_CHUNK_TAPS];
#pragma unroll
    for (int i = 0; i < EACH + PAST; i++) {
        int t = (int)first + i - PAST;
        raw[i] = make_float4(0, 0, 0, 0);
        if (t >= 0 && t < (int)(t0 + rows)) raw[i] = four_at(x.p + (size_t)t * x.stride, col);
        if (t < 0 && t + (int)past >= 0) raw[i] = four_at(memory + (size_t)(t + (int)past) * a.conv.width, 0);
    }
#pragma unroll
    for (int m = 0; m < CK_CHUNK_TAPS; m++) { /* m rows back */
        const float *p = a.conv.weight + (size_t)channel * a.conv.taps + past - m;
        w[m] = make_float4(0, 0, 0, 0);
        if (m <= past && past < PAST) w[m] = make_float4(p[0], p[a.conv.taps], p[2 * a.conv.taps], p[3 * a.conv.taps]);
    }
    if (past == PAST) { /* a channel's taps are 16 bytes */
        const float *p = a.conv.weight + (size_t)channel * CK_CHUNK_TAPS;
        float4 x = four_at(p, 0), y = four_at(p, 4), z = four_at(p, 8), v = four_at(p, 12);
        w[3] = make_float4(x.x, y.x, z.x, v.x), w[2] = make_float4(x.y, y.y, z.y, v.y);
        w[1] = make_float4(x.z, y.z, z.z, v.z), w[0] = make_float4(x.w, y.w, z.w, v.w);
    }
    float4 bias = a.conv.bias ? four_at(a.conv.bias, channel) : make_float4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        float4 sum = bias;
#pragma unroll
        for (int m = PAST; m >= 0; m--) {
            const float4 v = raw[i + PAST - m];
            sum.x += w[m].x * v.x, sum.y += w[m].y * v.y, sum.z += w[m].z * v.z, sum.w += w[m].w * v.w;
        }
        sum = make_float4(sum.x * sigmoid_short(sum.x), sum.y * sigmoid_short(sum.y), sum.z * sigmoid_short(sum.z),
                          sum.w * sigmoid_short(sum.w));
        out[i] = first + i < t0 + rows ? sum : make_float4(0, 0, 0, 0);
    }
}

/* Rows scaled, each by its length where it has one and `scale`, in two parts: into shared memory, and when `keep` is given to
 * where chunk_carry reads them. */
__device__ __forceinline__ void put_rows(const float4 (&x)[EACH], float eps, float scale, uint16_t (&to)[2][N][WIDE],
                                         uint16_t *keep)
{
    uint32_t lane = threadIdx.x & 31, first = (threadIdx.x >> 5) * EACH;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        uint32_t r = first + i;
        float s = scale * rsqrtf(warp_sum(x[i].x * x[i].x + x[i].y * x[i].y + x[i].z * x[i].z + x[i].w * x[i].w) + eps);
        uint2 high, low;
        split(x[i].x * s, x[i].y * s, high.x, low.x), split(x[i].z * s, x[i].w * s, high.y, low.y);
        *reinterpret_cast<uint2 *>(&to[0][r][4 * lane]) = high;
        *reinterpret_cast<uint2 *>(&to[1][r][4 * lane]) = low;
        if (!keep) continue;
        *reinterpret_cast<uint2 *>(keep + r * D + 4 * lane) = high;
        *reinterpret_cast<uint2 *>(keep + N * D + r * D + 4 * lane) = low;
    }
}

/* A warp's rows, 128 columns from `col` on, come into the second-level cache: they are read behind others. */
__device__ __forceinline__ void expect_rows(const ck_view &x, uint32_t col, uint32_t t0, uint32_t rows)
{
    uint32_t lane = threadIdx.x & 31, first = (threadIdx.x >> 5) * EACH + lane / 4;
    const float *p = x.p + (size_t)(t0 + first) * x.stride + col + lane % 4 * 32;
    if (first < rows) asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

/* q and k of the chunk, normalised, into shared memory; a warp takes 8 rows. With a convolution before them v as well, to where
 * chunk_carry reads it. */
__device__ __forceinline__ void bring_rows(const ck_delta &a, local_room &room, uint32_t t0, uint32_t rows, uint32_t h,
                                           uint16_t *keep, float *v)
{
    uint32_t lane = threadIdx.x & 31, key = h / (a.v_heads / a.k_heads) * D + 4 * lane;
    float4 x[EACH];
    expect_rows(a.in[1], key - 4 * lane, t0, rows);
    if (a.conv.weight) expect_rows(a.in[2], h * D, t0, rows);
#pragma unroll 1
    for (int i = 0; i < (a.conv.weight ? 3 : 2); i++) { /* the same code for all: it runs once and is waited for */
        uint32_t col = i < 2 ? key : h * D + 4 * lane;
        if (a.conv.weight)
            bring_convolved(a, i, col, t0, rows, x);
        else
            bring_plain(a.in[i], col, t0, rows, x);
        if (i < 2)
            put_rows(x, a.l2_eps, i ? 1 : rsqrtf((float)D), i ? room.k : room.q, keep ? keep + (i ? 0 : 2 * N * D) : nullptr);
        else
#pragma unroll
            for (int r = 0; r < EACH; r++) *reinterpret_cast<float4 *>(v + ((threadIdx.x >> 5) * EACH + r) * D + 4 * lane) = x[r];
    }
}

enum { EDGE = 16, ROW = N + 4 };
typedef float square[N][ROW];

/* The inverse of each EDGE x EDGE block on the diagonal of I + X, a warp each, a lane a column; the other lanes write the zeros
 * beside the first block of two. */
__device__ __forceinline__ void solve_blocks(const local_room &room, square &t)
{
    uint32_t warp = threadIdx.x >> 5, j = threadIdx.x & 31, base = warp * EDGE;
    float column[EDGE];
    if (warp >= N / EDGE) return;
#pragma unroll
    for (int i = 0; i < EDGE; i++) {
        float s[4] = {};
#pragma unroll
        for (int m = 0; m < i; m += 4) {
            float4 x = *reinterpret_cast<const float4 *>(&room.x[base + i][base + m]);
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

/* Blocks of twice the width: below the diagonal - T2 X T1. */
template <int W> __device__ __forceinline__ void merge_blocks(const local_room &room, square &t, square &y)
{
    enum { EACH = W * W / 4 }; /* threads of a block, four columns each */
    uint32_t base = threadIdx.x / EACH * 2 * W, r = base + W + threadIdx.x % EACH / (W / 4), c = base + threadIdx.x % (W / 4) * 4;
    bool works = base < N;
    float4 sum = make_float4(0, 0, 0, 0);
    if (works) {
#pragma unroll 8
        for (int m = 0; m < W; m++) sum = add_scaled(sum, room.x[r][base + m], *reinterpret_cast<const float4 *>(&t[base + m][c]));
        *reinterpret_cast<float4 *>(&y[r][c]) = sum;
    }
    __syncthreads();
    sum = make_float4(0, 0, 0, 0);
    if (works) {
#pragma unroll 8
        for (int m = 0; m < W; m++)
            sum = add_scaled(sum, -t[r][base + W + m], *reinterpret_cast<const float4 *>(&y[base + W + m][c]));
        *reinterpret_cast<float4 *>(&t[r][c]) = sum;
    }
    __syncthreads();
}

/* T = (I + X)^-1 by blocks, and out in two parts; what lies above the blocks of the diagonal is not read again. */
__device__ __forceinline__ void solve(local_room &room, uint16_t *t_out)
{
    square &t = *reinterpret_cast<square *>(room.q), &y = *reinterpret_cast<square *>(room.k);
    static_assert(sizeof(square) <= sizeof room.q && sizeof(square) <= sizeof room.k, "T lies where q was");
    solve_blocks(room, t);
    __syncthreads();
    merge_blocks<16>(room, t, y);
    merge_blocks<32>(room, t, y);
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

/* X into shared memory and P out, from k and q there. */
__device__ __forceinline__ void multiply_rows(local_room &room, uint16_t *tp)
{
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    uint32_t tile = warp & 3, group = lane >> 2, pair = (lane & 3) * 2;
    const uint16_t *left = warp < 4 ? room.k[0][0] : room.q[0][0];
    float sum[N / 8][4] = {}, small[N / 8][4] = {};
#pragma unroll 2
    for (int kk = 0; kk < D; kk += 16) {
        uint32_t ah[4], al[4], bh[4], bl[4];
        load_a(ah, left, WIDE, tile * 16, kk);
        load_a(al, left + N * WIDE, WIDE, tile * 16, kk);
#pragma unroll
        for (int n = 0; n < N / 16; n++) {
            if (n > tile) continue;
            load_b(bh, room.k[0][0], WIDE, n * 16, kk);
            load_b(bl, room.k[1][0], WIDE, n * 16, kk);
            mma3(sum[2 * n], small[2 * n], ah, al, bh, bl);
            mma3(sum[2 * n + 1], small[2 * n + 1], ah, al, bh + 2, bl + 2);
        }
    }
#pragma unroll
    for (int n = 0; n < N / 8; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t i = tile * 16 + group + 8 * half, j = n * 8 + pair;
            if (n > 2 * tile + 1) continue;
            float x = sum[n][2 * half] + small[n][2 * half], y = sum[n][2 * half + 1] + small[n][2 * half + 1];
            float at = room.c[i];
            x *= exp_short(fminf(at - room.c[j], 0)), y *= exp_short(fminf(at - room.c[j + 1], 0));
            x = j <= i ? x : 0, y = j + 1 <= i ? y : 0;
            if (warp < 4)
                *reinterpret_cast<float2 *>(&room.x[i][j]) = make_float2(j < i ? x * room.beta[i] : 0, j + 1 < i ? y * room.beta[i] : 0);
            else
                put_split(tp + 2 * N * N + i * N + j, N * N, x, y);
        }
}

/* Eight warps for the rows and the products, one for the decays meanwhile. */
extern "C" __global__ void __launch_bounds__(CK_LOCAL_THREADS, 2) chunk_local(const __grid_constant__ ck_delta a)
{
    local_room &room = *reinterpret_cast<local_room *>(shared4);
    uint32_t c = blockIdx.x, h = blockIdx.y, share = a.v_heads / a.k_heads;
    dependents_may_start();
    wait_for_inputs();
    uint32_t all = a.pass.head->from[1], t0 = c * N, rows = t0 >= all ? 0 : all - t0 < N ? all - t0 : N;
    uint16_t *qk = a.chunk_qk + ((size_t)c * a.k_heads + h / share) * 4 * N * D,
             *tp = a.chunk_tp + ((size_t)c * a.v_heads + h) * 4 * N * N;
    if (threadIdx.x < THREADS)
        bring_rows(a, room, t0, rows, h, h % share ? nullptr : qk, a.chunk_v + ((size_t)c * a.v_heads + h) * N * D);
    else
        sum_decays(a, room, t0, rows, h, a.chunk_numbers + ((size_t)c * a.v_heads + h) * 3 * N);
    __syncthreads();
    if (threadIdx.x < THREADS) multiply_rows(room, tp);
    __syncthreads();
    solve(room, tp);
}
