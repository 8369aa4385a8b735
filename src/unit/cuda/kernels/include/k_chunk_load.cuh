/* k_chunk_load.cuh: inputs of a chunk of 64 tokens for k_chunk.cu: running sums of the decay logarithms, the short convolution
 * where it is fused, normalisation of q and k, and their split into two bf16 parts in shared memory. A warp handles 8 tokens, a
 * lane four columns. SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_K_CHUNK_LOAD_CUH
#define SG_UNIT_CUDA_K_CHUNK_LOAD_CUH

#include "k_pairs.cuh"
/* Threads that handle rows; one more warp sums the decays. */
enum { THREADS = CK_CHUNK_THREADS };

/* Dynamic shared memory: k and q in two parts each, X, running sums c, beta. */
struct local_smem {
    uint16_t k[2][N][WIDE], q[2][N][WIDE];
    float x[N][N + 4]; /* padded: the inverse reads columns */
    float c[N], beta[N];
};

/* Row t, column c of a view in fp32, or with HALF in bf16. */
template <int HALF> __device__ __forceinline__ float one_of(const ck_view &x, uint32_t t, uint32_t c)
{
    size_t at = (size_t)t * x.stride + c;
    return HALF ? __bfloat162float(reinterpret_cast<const __nv_bfloat16 *>(x.p)[at]) : x.p[at];
}

/* Running sums of the decay logarithms and beta, by one warp; missing rows contribute nothing.
 * scalars: output for k_chunk_state.cu: e^c, beta, e^(c_last - c). */
template <int HALF>
__device__ __forceinline__ void sum_decays(const ck_delta &a, local_smem &smem, uint32_t t0, uint32_t rows, uint32_t h,
                                           float *scalars)
{
    uint32_t lane = threadIdx.x & 31;
    float rate = a.is_log ? -expf(a.decay[h]) : a.decay[h], dt = a.dt[h], before = 0;
#pragma unroll 1
    for (uint32_t r = lane; r < N; r += 32) {
        uint32_t t = t0 + r;
        bool is_row = r < rows;
        float c = is_row ? rate * softplus(one_of<HALF>(a.in[3], t, h) + dt) : 0;
        float beta = is_row ? sigmoid(one_of<HALF>(a.in[4], t, h)) : 0;
        /* Inclusive prefix sum over the warp, continued over two blocks of 32. */
#pragma unroll
        for (int m = 1; m < 32; m *= 2) {
            float other = __shfl_up_sync(0xffffffffu, c, m);
            if (lane >= m) c += other;
        }
        c += before;
        before = __shfl_sync(0xffffffffu, c, 31);
        smem.c[r] = c;
        smem.beta[r] = beta;
        if (scalars) scalars[N + r] = beta;
    }
    /* Factors for k_chunk_state.cu. */
    for (uint32_t r = lane; r < N && scalars; r += 32) {
        scalars[r] = expf(smem.c[r]);
        scalars[2 * N + r] = expf(before - smem.c[r]);
    }
}

enum { ROWS_PER_WARP = N / (THREADS / 32) }; /* rows per warp */

/* Four columns of a warp's rows without convolution; missing rows are zero. */
__device__ __forceinline__ void load_plain(const ck_view &x, uint32_t col, uint32_t t0, uint32_t rows,
                                           float4 (&out)[ROWS_PER_WARP])
{
    uint32_t first = (threadIdx.x >> 5) * ROWS_PER_WARP;
#pragma unroll
    for (int i = 0; i < ROWS_PER_WARP; i++)
        out[i] = first + i < rows ? float4_at(x.p + (size_t)(t0 + first + i) * x.stride, col) : make_float4(0, 0, 0, 0);
}

/* Past inputs of the convolution. */
enum { PAST = CK_CHUNK_TAPS - 1 };

/* Four columns before the convolution, as stored: fp32, or with HALF bf16. */
template <int HALF> struct Raw {
    typedef float4 four;
};
template <> struct Raw<1> {
    typedef uint2 four;
};
__device__ __forceinline__ float4 from_raw(float4 x) { return x; }
__device__ __forceinline__ float4 from_raw(uint2 x) { return bf16x4_to_float4(x); }
__device__ __forceinline__ void to_raw(float4 x, float4 &to) { to = x; }
__device__ __forceinline__ void to_raw(float4 x, uint2 &to) { to = make_uint2(pack<1>(x.x, x.y), pack<1>(x.z, x.w)); }

/* Inputs of the convolution for a warp's rows of q, k or v (`which`), four columns from `col` on;
 * rows before the span come from its convolution state. */
template <int HALF>
__device__ __forceinline__ void load_raw(const ck_delta &a, int which, uint32_t col, uint32_t t0, uint32_t rows,
                                         typename Raw<HALF>::four (&raw)[ROWS_PER_WARP + PAST])
{
    typedef typename Raw<HALF>::four four;
    const ck_view &x = a.in[which];
    uint32_t first = t0 + (threadIdx.x >> 5) * ROWS_PER_WARP, past = a.conv.taps - 1;
    const float *memory = static_cast<const float *>(a.pass.slots[a.conv.slot]) + a.conv.at[which] + col;
    /* Rows before the span come from the state, rows after its end are zero. */
#pragma unroll
    for (int i = 0; i < ROWS_PER_WARP + PAST; i++) {
        int t = (int)first + i - PAST;
        to_raw(make_float4(0, 0, 0, 0), raw[i]);
        if (t >= 0 && t < (int)(t0 + rows)) raw[i] = reinterpret_cast<const four *>(x.p)[((size_t)t * x.stride + col) / 4];
        if (t < 0 && t + (int)past >= 0) to_raw(float4_at(memory + (size_t)(t + (int)past) * a.conv.width, 0), raw[i]);
    }
}

/* Weights of a channel, the newest input's first. */
__device__ __forceinline__ float4 taps_of(const ck_delta &a, uint32_t channel)
{
    const float *p = a.conv.weight + (size_t)channel * a.conv.taps;
    /* The common case: four taps, one float4 per channel. */
    if (a.conv.taps == CK_CHUNK_TAPS) {
        float4 x = float4_at(p, 0);
        return make_float4(x.w, x.z, x.y, x.x);
    }
    uint32_t past = a.conv.taps - 1;
    return make_float4(p[past], past ? p[past - 1] : 0, past > 1 ? p[past - 2] : 0, 0);
}

/* Convolution and SiLU of four channels from `channel` on; missing rows are zero. */
template <class FOUR>
__device__ __forceinline__ void convolve(const ck_delta &a, uint32_t channel, uint32_t rows,
                                         const FOUR (&raw)[ROWS_PER_WARP + PAST], float4 (&out)[ROWS_PER_WARP])
{
    uint32_t first = (threadIdx.x >> 5) * ROWS_PER_WARP;
    float4 w[4];
#pragma unroll
    for (int i = 0; i < 4; i++) w[i] = taps_of(a, channel + i);
    float4 bias = a.conv.bias ? float4_at(a.conv.bias, channel) : make_float4(0, 0, 0, 0);
    /* Taps in ascending age, as in conv_step, so that results match. */
#pragma unroll
    for (int i = 0; i < ROWS_PER_WARP; i++) {
        const float4 x = from_raw(raw[i]), y = from_raw(raw[i + 1]), z = from_raw(raw[i + 2]), v = from_raw(raw[i + 3]);
        float4 sum = make_float4(bias.x + w[0].w * x.x, bias.y + w[1].w * x.y, bias.z + w[2].w * x.z, bias.w + w[3].w * x.w);
        sum.x += w[0].z * y.x, sum.y += w[1].z * y.y, sum.z += w[2].z * y.z, sum.w += w[3].z * y.w;
        sum.x += w[0].y * z.x, sum.y += w[1].y * z.y, sum.z += w[2].y * z.z, sum.w += w[3].y * z.w;
        sum.x += w[0].x * v.x, sum.y += w[1].x * v.y, sum.z += w[2].x * v.z, sum.w += w[3].x * v.w;
        sum = make_float4(sum.x * sigmoid_fast(sum.x), sum.y * sigmoid_fast(sum.y), sum.z * sigmoid_fast(sum.z),
                          sum.w * sigmoid_fast(sum.w));
        out[i] = first + i < rows ? sum : make_float4(0, 0, 0, 0);
    }
}

/* Loads and convolves a warp's rows. */
__device__ __forceinline__ void load_convolved(const ck_delta &a, int which, uint32_t col, uint32_t t0, uint32_t rows,
                                               float4 (&out)[ROWS_PER_WARP])
{
    float4 raw[ROWS_PER_WARP + PAST];
    load_raw<0>(a, which, col, t0, rows, raw);
    convolve(a, a.conv.at[which] + col, rows, raw, out);
}

/* Stores a 16 x 16 tile in the fragment order that chunk_scan loads as its b operand, in two parts,
 * from accumulators of the same 16 rows, columns 0 to 7 and 8 to 15. */
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

/* Sums of squares of a warp's 8 rows, reduced together: lane l receives row l / 4. */
__device__ __forceinline__ float row_sums(const float4 (&x)[ROWS_PER_WARP])
{
    uint32_t lane = threadIdx.x & 31;
    float s[ROWS_PER_WARP];
#pragma unroll
    for (int i = 0; i < ROWS_PER_WARP; i++) s[i] = square_of(x[i]);
#pragma unroll
    for (int n = ROWS_PER_WARP / 2, m = 16; n; n /= 2, m /= 2) { /* each lane keeps half of its rows and sends the others */
        bool high = lane & m;
#pragma unroll
        for (int i = 0; i < n; i++) {
            float mine = high ? s[n + i] : s[i], sent = high ? s[i] : s[n + i];
            s[i] = mine + __shfl_xor_sync(0xffffffffu, sent, m);
        }
    }
    static_assert(ROWS_PER_WARP == 8, "three turns");
    s[0] += __shfl_xor_sync(0xffffffffu, s[0], 2);
    return s[0] + __shfl_xor_sync(0xffffffffu, s[0], 1);
}

/* Normalises rows, times `scale`, and stores both parts in shared memory, and in gmem_out for
 * k_chunk_state.cu if given. */
__device__ __forceinline__ void put_rows(const float4 (&x)[ROWS_PER_WARP], float eps, float scale, uint16_t (&to)[2][N][WIDE],
                                         uint16_t *gmem_out)
{
    uint32_t lane = threadIdx.x & 31, first = (threadIdx.x >> 5) * ROWS_PER_WARP;
    float own = scale * rsqrtf(row_sums(x) + eps);
    /* Scale by the inverse length, split and store. */
#pragma unroll
    for (int i = 0; i < ROWS_PER_WARP; i++) {
        uint32_t r = first + i;
        float s = __shfl_sync(0xffffffffu, own, i * 4);
        uint2 high, low;
        split(x[i].x * s, x[i].y * s, high.x, low.x), split(x[i].z * s, x[i].w * s, high.y, low.y);
        *reinterpret_cast<uint2 *>(&to[0][r][4 * lane]) = high;
        *reinterpret_cast<uint2 *>(&to[1][r][4 * lane]) = low;
        if (!gmem_out) continue;
        *reinterpret_cast<uint2 *>(gmem_out + r * D + 4 * lane) = high;
        *reinterpret_cast<uint2 *>(gmem_out + N * D + r * D + 4 * lane) = low;
    }
}

/* L2 prefetch of a warp's rows, 128 columns from `col` on, which are read later. */
__device__ __forceinline__ void prefetch_l2(const ck_view &x, uint32_t col, uint32_t t0, uint32_t rows)
{
    uint32_t lane = threadIdx.x & 31, first = (threadIdx.x >> 5) * ROWS_PER_WARP + lane / 4;
    const float *p = x.p + (size_t)(t0 + first) * x.stride + col + lane % 4 * 32;
    if (first < rows) asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

/* q and k of the chunk, normalised, to shared memory; a warp handles 8 rows. v (if n_inputs is 3)
 * stays in registers, four columns of the warp's rows per lane. */
__device__ __forceinline__ void load_rows(const ck_delta &a, local_smem &smem, uint32_t t0, uint32_t rows, uint32_t h,
                                          int n_inputs, uint16_t *gmem_out, float4 (&v)[ROWS_PER_WARP])
{
    uint32_t lane = threadIdx.x & 31, key = h / (a.v_heads / a.k_heads) * D + 4 * lane;
    prefetch_l2(a.in[1], key - 4 * lane, t0, rows);
    if (n_inputs > 2) prefetch_l2(a.in[2], h * D, t0, rows);
#pragma unroll 1
    for (int i = 0; i < n_inputs; i++) { /* one loop body for all three, to limit instruction-cache misses */
        uint32_t col = i < 2 ? key : h * D + 4 * lane;
        if (a.conv.weight)
            load_convolved(a, i, col, t0, rows, v);
        else
            load_plain(a.in[i], col, t0, rows, v);
        if (i < 2)
            put_rows(v, a.l2_eps, i ? 1 : rsqrtf((float)D), i ? smem.k : smem.q,
                     gmem_out ? gmem_out + (i ? 0 : 2 * N * D) : nullptr);
    }
}

/* The same from bf16: half the registers, so all rows are requested at once; one warp sums the
 * decays meanwhile. */
__device__ __forceinline__ void load_rows_bf16(const ck_delta &a, local_smem &smem, uint32_t t0, uint32_t rows, uint32_t h,
                                               float4 (&v)[ROWS_PER_WARP])
{
    uint32_t lane = threadIdx.x & 31, key = h / (a.v_heads / a.k_heads) * D + 4 * lane;
    /* Request everything first, convolve in order. */
    uint2 raw[ROWS_PER_WARP + PAST], next[ROWS_PER_WARP + PAST], last[ROWS_PER_WARP + PAST];
    load_raw<1>(a, 0, key, t0, rows, raw);
    load_raw<1>(a, 1, key, t0, rows, next);
    load_raw<1>(a, 2, h * D + 4 * lane, t0, rows, last);
    if (threadIdx.x >= THREADS - 32) sum_decays<1>(a, smem, t0, rows, h, nullptr);
#pragma unroll 1
    for (int i = 0; i < 3; i++) {
        convolve(a, a.conv.at[i] + (i < 2 ? key : h * D + 4 * lane), rows, raw, v);
        if (i < 2) put_rows(v, a.l2_eps, i ? 1 : rsqrtf((float)D), i ? smem.k : smem.q, nullptr);
#pragma unroll
        for (int r = 0; r < ROWS_PER_WARP + PAST; r++) raw[r] = next[r], next[r] = last[r];
    }
}

#endif
