/* k_chunk.cu: the gated delta rule of many rows on the tensor cores, 64 rows (a chunk) at a time, heads of 128: what chunks
 * are without S. With c the running sum of the logarithms of the decays and L_ij = e^(c_i - c_j), i >= j:
 *   X = strict lower part of beta_i (k_i . k_j) L_ij,  T = (I + X)^-1,  P = (q_i . k_j) L_ij
 * for all chunks at once, a block each. T is found in fp32, by blocks of 16, 32, 64. What follows is in k_carry.cu; on Hopper in
 * k_scan.cu, for which chunk_factors goes on to
 *   W = T (beta_j e^c_j k_j),  U = T (beta_j v_j),  e^c_i q_i,  e^(c_last - c_j) k_j
 * and lays them out as the lanes of that kernel hold them; chunk_factors_halves reads what is before the convolution in bf16.
 * SPDX-License-Identifier: MIT */
#include "k_pairs.cuh"

enum { THREADS = CK_CHUNK_THREADS };

struct local_room {
    uint16_t k[2][N][WIDE], q[2][N][WIDE];
    float x[N][N + 4]; /* rows apart by banks: the inverse reads columns */
    float c[N], beta[N];
};

/* Row t, column c of a view in fp32, or with HALF in bf16. */
template <int HALF> __device__ __forceinline__ float one_of(const ck_view &x, uint32_t t, uint32_t c)
{
    size_t at = (size_t)t * x.stride + c;
    return HALF ? __bfloat162float(reinterpret_cast<const __nv_bfloat16 *>(x.p)[at]) : x.p[at];
}

/* Running sums of the decays' logarithms, by one warp; rows behind the last do nothing. */
template <int HALF>
__device__ __forceinline__ void sum_decays(const ck_delta &a, local_room &room, uint32_t t0, uint32_t rows, uint32_t h,
                                           float *numbers)
{
    uint32_t lane = threadIdx.x & 31;
    float rate = a.is_log ? -expf(a.decay[h]) : a.decay[h], dt = a.dt[h], before = 0;
#pragma unroll 1
    for (uint32_t r = lane; r < N; r += 32) {
        uint32_t t = t0 + r;
        bool is_row = r < rows;
        float c = is_row ? rate * softplus(one_of<HALF>(a.in[3], t, h) + dt) : 0;
        float beta = is_row ? sigmoid(one_of<HALF>(a.in[4], t, h)) : 0;
#pragma unroll
        for (int m = 1; m < 32; m *= 2) {
            float other = __shfl_up_sync(0xffffffffu, c, m);
            if (lane >= m) c += other;
        }
        c += before;
        before = __shfl_sync(0xffffffffu, c, 31);
        room.c[r] = c;
        room.beta[r] = beta;
        if (numbers) numbers[N + r] = beta;
    }
    for (uint32_t r = lane; r < N && numbers; r += 32) {
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

enum { PAST = CK_CHUNK_TAPS - 1 };

/* Four columns as they lie before the convolution: in fp32, or with HALF in bf16. */
template <int HALF> struct Raw {
    typedef float4 four;
};
template <> struct Raw<1> {
    typedef uint2 four;
};
__device__ __forceinline__ float4 widened(float4 x) { return x; }
__device__ __forceinline__ float4 widened(uint2 x) { return four_of_bf16(x); }
__device__ __forceinline__ void narrowed(float4 x, float4 &to) { to = x; }
__device__ __forceinline__ void narrowed(float4 x, uint2 &to) { to = make_uint2(pack<1>(x.x, x.y), pack<1>(x.z, x.w)); }

/* What the convolution reads for a warp's rows of q, k or v (`which`), four columns from `col` on; rows before the span's first
 * come from its memory. */
template <int HALF>
__device__ __forceinline__ void bring_raw(const ck_delta &a, int which, uint32_t col, uint32_t t0, uint32_t rows,
                                          typename Raw<HALF>::four (&raw)[EACH + PAST])
{
    typedef typename Raw<HALF>::four four;
    const ck_view &x = a.in[which];
    uint32_t first = t0 + (threadIdx.x >> 5) * EACH, past = a.conv.taps - 1;
    const float *memory = static_cast<const float *>(a.pass.slots[a.conv.slot]) + a.conv.at[which] + col;
#pragma unroll
    for (int i = 0; i < EACH + PAST; i++) {
        int t = (int)first + i - PAST;
        narrowed(make_float4(0, 0, 0, 0), raw[i]);
        if (t >= 0 && t < (int)(t0 + rows)) raw[i] = reinterpret_cast<const four *>(x.p)[((size_t)t * x.stride + col) / 4];
        if (t < 0 && t + (int)past >= 0) narrowed(four_at(memory + (size_t)(t + (int)past) * a.conv.width, 0), raw[i]);
    }
}

/* A channel's weights, the last row's first. */
__device__ __forceinline__ float4 taps_of(const ck_delta &a, uint32_t channel)
{
    const float *p = a.conv.weight + (size_t)channel * a.conv.taps;
    if (a.conv.taps == CK_CHUNK_TAPS) {
        float4 x = four_at(p, 0);
        return make_float4(x.w, x.z, x.y, x.x);
    }
    uint32_t past = a.conv.taps - 1;
    return make_float4(p[past], past ? p[past - 1] : 0, past > 1 ? p[past - 2] : 0, 0);
}

/* The convolution and SiLU of four channels from `channel` on; rows behind the last as zeros. */
template <class FOUR>
__device__ __forceinline__ void convolve(const ck_delta &a, uint32_t channel, uint32_t rows, const FOUR (&raw)[EACH + PAST],
                                         float4 (&out)[EACH])
{
    uint32_t first = (threadIdx.x >> 5) * EACH;
    float4 w[4];
#pragma unroll
    for (int i = 0; i < 4; i++) w[i] = taps_of(a, channel + i);
    float4 bias = a.conv.bias ? four_at(a.conv.bias, channel) : make_float4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const float4 x = widened(raw[i]), y = widened(raw[i + 1]), z = widened(raw[i + 2]), v = widened(raw[i + 3]);
        float4 sum = make_float4(bias.x + w[0].w * x.x, bias.y + w[1].w * x.y, bias.z + w[2].w * x.z, bias.w + w[3].w * x.w);
        sum.x += w[0].z * y.x, sum.y += w[1].z * y.y, sum.z += w[2].z * y.z, sum.w += w[3].z * y.w;
        sum.x += w[0].y * z.x, sum.y += w[1].y * z.y, sum.z += w[2].y * z.z, sum.w += w[3].y * z.w;
        sum.x += w[0].x * v.x, sum.y += w[1].x * v.y, sum.z += w[2].x * v.z, sum.w += w[3].x * v.w;
        sum = make_float4(sum.x * sigmoid_short(sum.x), sum.y * sigmoid_short(sum.y), sum.z * sigmoid_short(sum.z),
                          sum.w * sigmoid_short(sum.w));
        out[i] = first + i < rows ? sum : make_float4(0, 0, 0, 0);
    }
}

__device__ __forceinline__ void bring_convolved(const ck_delta &a, int which, uint32_t col, uint32_t t0, uint32_t rows,
                                                float4 (&out)[EACH])
{
    float4 raw[EACH + PAST];
    bring_raw<0>(a, which, col, t0, rows, raw);
    convolve(a, a.conv.at[which] + col, rows, raw, out);
}

/* A right factor of 16 (its columns) x 16 as chunk_scan's lanes hold it, in two parts: from a product's sums of the same 16 rows,
 * columns 0 to 7 and 8 to 15. */
enum { PIECE = 2 * 32 };
__device__ __forceinline__ void put_piece(uint4 *to, const float (&x)[4], const float (&y)[4])
{
    uint4 high, low;
    split(x[0], x[1], high.x, low.x), split(y[0], y[1], high.y, low.y);
    split(x[2], x[3], high.z, low.z), split(y[2], y[3], high.w, low.w);
    to += threadIdx.x & 31;
    to[0] = high, to[32] = low;
}

__device__ __forceinline__ float square_of(float4 x) { return x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w; }

/* Squares of a warp's 8 rows, summed together: lane l gets the sum of row l / 4. */
__device__ __forceinline__ float row_sums(const float4 (&x)[EACH])
{
    uint32_t lane = threadIdx.x & 31;
    float s[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) s[i] = square_of(x[i]);
#pragma unroll
    for (int n = EACH / 2, m = 16; n; n /= 2, m /= 2) { /* this lane keeps half of its rows and gives the others away */
        bool high = lane & m;
#pragma unroll
        for (int i = 0; i < n; i++) {
            float kept = high ? s[n + i] : s[i], given = high ? s[i] : s[n + i];
            s[i] = kept + __shfl_xor_sync(0xffffffffu, given, m);
        }
    }
    static_assert(EACH == 8, "three turns");
    s[0] += __shfl_xor_sync(0xffffffffu, s[0], 2);
    return s[0] + __shfl_xor_sync(0xffffffffu, s[0], 1);
}

/* Rows scaled, each by its length where it has one and `scale`, in two parts: into shared memory, and when `keep` is given to
 * where chunk_carry reads them. */
__device__ __forceinline__ void put_rows(const float4 (&x)[EACH], float eps, float scale, uint16_t (&to)[2][N][WIDE],
                                         uint16_t *keep)
{
    uint32_t lane = threadIdx.x & 31, first = (threadIdx.x >> 5) * EACH;
    float own = scale * rsqrtf(row_sums(x) + eps);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        uint32_t r = first + i;
        float s = __shfl_sync(0xffffffffu, own, i * 4);
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

/* q and k of the chunk, normalised, into shared memory; a warp takes 8 rows. V (the third of `many`) stays with the threads, four
 * columns of the warp's rows each. */
__device__ __forceinline__ void bring_rows(const ck_delta &a, local_room &room, uint32_t t0, uint32_t rows, uint32_t h, int many,
                                           uint16_t *keep, float4 (&v)[EACH])
{
    uint32_t lane = threadIdx.x & 31, key = h / (a.v_heads / a.k_heads) * D + 4 * lane;
    expect_rows(a.in[1], key - 4 * lane, t0, rows);
    if (many > 2) expect_rows(a.in[2], h * D, t0, rows);
#pragma unroll 1
    for (int i = 0; i < many; i++) { /* the same code for all: it runs once and is waited for */
        uint32_t col = i < 2 ? key : h * D + 4 * lane;
        if (a.conv.weight)
            bring_convolved(a, i, col, t0, rows, v);
        else
            bring_plain(a.in[i], col, t0, rows, v);
        if (i < 2)
            put_rows(v, a.l2_eps, i ? 1 : rsqrtf((float)D), i ? room.k : room.q, keep ? keep + (i ? 0 : 2 * N * D) : nullptr);
    }
}

/* The same from bf16, before the convolution: half the bytes and half the registers, so that all rows are asked for at once; a
 * warp sums the decays until they come. */
__device__ __forceinline__ void bring_halves(const ck_delta &a, local_room &room, uint32_t t0, uint32_t rows, uint32_t h,
                                             float4 (&v)[EACH])
{
    uint32_t lane = threadIdx.x & 31, key = h / (a.v_heads / a.k_heads) * D + 4 * lane;
    uint2 raw[EACH + PAST], next[EACH + PAST], last[EACH + PAST];
    bring_raw<1>(a, 0, key, t0, rows, raw);
    bring_raw<1>(a, 1, key, t0, rows, next);
    bring_raw<1>(a, 2, h * D + 4 * lane, t0, rows, last);
    if (threadIdx.x >= THREADS - 32) sum_decays<1>(a, room, t0, rows, h, nullptr);
#pragma unroll 1
    for (int i = 0; i < 3; i++) {
        convolve(a, a.conv.at[i] + (i < 2 ? key : h * D + 4 * lane), rows, raw, v);
        if (i < 2) put_rows(v, a.l2_eps, i ? 1 : rsqrtf((float)D), i ? room.k : room.q, nullptr);
#pragma unroll
        for (int r = 0; r < EACH + PAST; r++) raw[r] = next[r], next[r] = last[r];
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
        for (int m = 0; m < W; m++)
            sum = add_scaled(sum, room.x[r][base + m], *reinterpret_cast<const float4 *>(&t[base + m][c]));
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

/* T = (I + X)^-1 by blocks, where q was; what lies above the blocks of the diagonal is not read again. */
__device__ __forceinline__ square &solve(local_room &room)
{
    square *both = reinterpret_cast<square *>(room.q);
    static_assert(2 * sizeof(square) <= sizeof room.q, "T lies where q was");
    solve_blocks(room, both[0]);
    __syncthreads();
    merge_blocks<16>(room, both[0], both[1]);
    merge_blocks<32>(room, both[0], both[1]);
    return both[0];
}

/* T out in two parts. */
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

/* X into shared memory and P out, from k and q there: P by rows to `tp`, or as pieces for chunk_scan. */
__device__ __forceinline__ void multiply_rows(local_room &room, uint16_t *tp, uint4 *pieces)
{
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    /* warps i and i + 4 share a scheduler */
    uint32_t tile = warp < 4 ? warp : 7 - warp, group = lane >> 2, pair = (lane & 3) * 2;
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
    for (int n = 0; n < N / 8; n++) {
        if (n > 2 * tile + 1) continue;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t i = tile * 16 + group + 8 * half, j = n * 8 + pair;
            float x = sum[n][2 * half] + small[n][2 * half], y = sum[n][2 * half + 1] + small[n][2 * half + 1];
            float at = room.c[i];
            x *= exp_short(fminf(at - room.c[j], 0)), y *= exp_short(fminf(at - room.c[j + 1], 0));
            x = j <= i ? x : 0, y = j + 1 <= i ? y : 0;
            sum[n][2 * half] = x, sum[n][2 * half + 1] = y;
            if (warp < 4)
                *reinterpret_cast<float2 *>(&room.x[i][j]) = make_float2(j < i ? x * room.beta[i] : 0,
                                                                         j + 1 < i ? y * room.beta[i] : 0);
            else if (tp)
                put_split(tp + 2 * N * N + i * N + j, N * N, x, y);
        }
    }
    if (warp < 4 || !pieces) return;
#pragma unroll
    for (int n = 0; n < N / 16; n++)
        if (n <= tile) put_piece(pieces + (tile * (tile + 1) / 2 + n) * PIECE, sum[2 * n], sum[2 * n + 1]);
}

/* Eight warps for the rows and the products, one for the decays meanwhile. */
extern "C" __global__ void __launch_bounds__(CK_LOCAL_THREADS, 2) chunk_local(const __grid_constant__ ck_delta a)
{
    local_room &room = *reinterpret_cast<local_room *>(shared4);
    uint32_t c = blockIdx.x, h = blockIdx.y, share = a.v_heads / a.k_heads;
    wait_for_inputs();
    uint32_t all = a.pass.head->from[1], t0 = c * N, rows = t0 >= all ? 0 : all - t0 < N ? all - t0 : N;
    uint16_t *qk = a.chunk_qk + ((size_t)c * a.k_heads + h / share) * 4 * N * D,
             *tp = a.chunk_tp + ((size_t)c * a.v_heads + h) * 4 * N * N;
    float4 v[EACH];
    if (threadIdx.x < THREADS) {
        bring_rows(a, room, t0, rows, h, a.conv.weight ? 3 : 2, h % share ? nullptr : qk, v);
        float *to = a.chunk_v + ((size_t)c * a.v_heads + h) * N * D + (threadIdx.x >> 5) * EACH * D + (threadIdx.x & 31) * 4;
#pragma unroll
        for (int r = 0; r < EACH && a.conv.weight; r++) *reinterpret_cast<float4 *>(to + r * D) = v[r];
    } else
        sum_decays<0>(a, room, t0, rows, h, a.chunk_numbers + ((size_t)c * a.v_heads + h) * 3 * N);
    __syncthreads();
    if (threadIdx.x < THREADS) multiply_rows(room, tp, nullptr);
    __syncthreads();
    put_inverse(solve(room), tp);
}

#if __CUDA_ARCH__ >= 900
/* Two numbers of either part, scaled and split again. */
__device__ __forceinline__ void scale_pair(uint32_t &high, uint32_t &low, float x, float y)
{
    float2 h = __bfloat1622float2(*reinterpret_cast<__nv_bfloat162 *>(&high)),
           l = __bfloat1622float2(*reinterpret_cast<__nv_bfloat162 *>(&low));
    split((h.x + l.x) * x, (h.y + l.y) * y, high, low);
}

/* e^c q and e^(c_last - c) k, in pieces: a warp has 16 columns of all rows. */
__device__ __forceinline__ void put_scaled(const local_room &room, uint4 *q_out, uint4 *k_out)
{
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    float last = room.c[N - 1];
#pragma unroll 1
    for (uint32_t tile = 0; tile < N / 16; tile++) {
        uint32_t h[4], l[4], row = tile * 16 + (lane >> 2);
        float x = exp_short(room.c[row]), y = exp_short(room.c[row + 8]), z, w;
        load_b(h, room.q[0][0], WIDE, tile * 16, warp * 16);
        load_b(l, room.q[1][0], WIDE, tile * 16, warp * 16);
        scale_pair(h[0], l[0], x, x), scale_pair(h[1], l[1], x, x), scale_pair(h[2], l[2], y, y), scale_pair(h[3], l[3], y, y);
        uint4 *to = q_out + (warp * (N / 16) + tile) * PIECE + lane;
        to[0] = make_uint4(h[0], h[1], h[2], h[3]), to[32] = make_uint4(l[0], l[1], l[2], l[3]);
        row = tile * 16 + (lane & 3) * 2;
        x = exp_short(last - room.c[row]), y = exp_short(last - room.c[row + 1]);
        z = exp_short(last - room.c[row + 8]), w = exp_short(last - room.c[row + 9]);
        load_b_turned(h, room.k[0][0], WIDE, tile * 16, warp * 16);
        load_b_turned(l, room.k[1][0], WIDE, tile * 16, warp * 16);
        scale_pair(h[0], l[0], x, y), scale_pair(h[1], l[1], z, w), scale_pair(h[2], l[2], x, y), scale_pair(h[3], l[3], z, w);
        to = k_out + (warp * (N / 16) + tile) * PIECE + lane;
        to[0] = make_uint4(h[0], h[1], h[2], h[3]), to[32] = make_uint4(l[0], l[1], l[2], l[3]);
    }
}

/* W = T (beta e^c K) in pieces: a warp has 16 rows and half the columns. */
__device__ __forceinline__ void put_w(const local_room &room, const square &t, uint4 *w_out)
{
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, half = warp >> 2, tile = half ? 7 - warp : warp,
             row = tile * 16 + (lane >> 2);
    float sum[8][4] = {}, small[8][4] = {};
#pragma unroll 1
    for (uint32_t kk = 0; kk <= tile; kk++) {
        uint32_t ah[4], al[4], bh[4], bl[4], col = kk * 16 + (lane & 3) * 2;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t j = col + i / 2 * 8;
            float2 x = *reinterpret_cast<const float2 *>(&t[row + i % 2 * 8][j]);
            split(x.x * room.beta[j] * exp_short(room.c[j]), x.y * room.beta[j + 1] * exp_short(room.c[j + 1]), ah[i], al[i]);
        }
#pragma unroll
        for (int n = 0; n < 4; n++) {
            load_b_turned(bh, room.k[0][0], WIDE, kk * 16, half * 64 + n * 16);
            load_b_turned(bl, room.k[1][0], WIDE, kk * 16, half * 64 + n * 16);
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

/* U turned = (beta V) turned x T turned, in fp32 as chunk_scan's lanes hold it: a warp has 16 columns of the head. */
enum { V_ROW = D + 4 };
__device__ __forceinline__ void put_u(const square &t, const float *v, float4 *u_out)
{
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, pair = (lane & 3) * 2;
    uint32_t ah[4][4], al[4][4];
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

#if __CUDA_ARCH__ >= 900
template <int HALF> __device__ __forceinline__ void make_factors(const ck_delta &a)
{
    local_room &room = *reinterpret_cast<local_room *>(shared4);
    uint32_t c = blockIdx.x, h = blockIdx.y, lane = threadIdx.x & 31, first = (threadIdx.x >> 5) * EACH;
    wait_for_inputs();
    uint32_t all = a.pass.head->from[1], t0 = c * N, rows = t0 >= all ? 0 : all - t0 < N ? all - t0 : N;
    ck_factors &out = a.factors[(size_t)c * a.v_heads + h];
    bool works = HALF || threadIdx.x < THREADS;
    float4 v[EACH];
    if (HALF)
        bring_halves(a, room, t0, rows, h, v);
    else if (works)
        bring_rows(a, room, t0, rows, h, 3, nullptr, v);
    else
        sum_decays<0>(a, room, t0, rows, h, nullptr);
    __syncthreads();
    if (works) {
        multiply_rows(room, nullptr, reinterpret_cast<uint4 *>(out.p));
        put_scaled(room, reinterpret_cast<uint4 *>(out.q), reinterpret_cast<uint4 *>(out.k));
    }
    if (threadIdx.x == 0) out.decay = expf(room.c[N - 1]);
    __syncthreads();
    const square &t = solve(room);
    float *turned = reinterpret_cast<float *>(reinterpret_cast<square *>(room.q) + 1); /* over what T no longer needs, and X */
    static_assert(sizeof(square) + sizeof room.x >= N * V_ROW * sizeof(float), "V lies behind T");
    if (works) {
#pragma unroll
        for (int r = 0; r < EACH; r++) {
            float b = room.beta[first + r];
            *reinterpret_cast<float4 *>(turned + (first + r) * V_ROW + 4 * lane) = make_float4(b * v[r].x, b * v[r].y, b * v[r].z,
                                                                                               b * v[r].w);
        }
        put_w(room, t, reinterpret_cast<uint4 *>(out.w));
    }
    __syncthreads();
    if (works) put_u(t, turned, reinterpret_cast<float4 *>(out.u));
}
#endif

/* The same on Hopper, for k_scan.cu: from fp32, and from bf16 before the convolution. */
extern "C" __global__ void __launch_bounds__(CK_LOCAL_THREADS, 2) chunk_factors(const __grid_constant__ ck_delta a)
{
#if __CUDA_ARCH__ >= 900
    make_factors<0>(a);
#endif
}
extern "C" __global__ void __launch_bounds__(CK_CHUNK_THREADS, 2) chunk_factors_halves(const __grid_constant__ ck_delta a)
{
#if __CUDA_ARCH__ >= 900
    make_factors<1>(a);
#endif
}
