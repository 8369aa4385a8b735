/* k_screen.cu: exact argmax of the output head from an int8 copy of it (option screen=1). Each row w
 * has an int8 form q with scale s and an error bound b, computed once; x is rounded to 16 bits as
 * xs. The estimate s q . xs differs from w . x by at most b |x|:
 *   w . x - s q . xs = (w - s q) . x + s q . (x - xs),   at most |w - s q| |x| + |s q| |x - xs| (Cauchy-Schwarz),
 *   |x - xs| <= sqrt(k) / 2 steps of the scale of x, which is at most |x| / 32512.
 * Integer sums are exact; the fp32 rounding around them and in the head itself is below 4 k 2^-24
 * |w| |x| and is included in b. Only rows whose upper bound reaches the highest lower bound can win;
 * these are recomputed with the original weights. Memory traffic: one byte per weight instead of
 * two, plus 12 per row. All architectures.
 * SPDX-License-Identifier: MIT */
#include "k_common.cuh"

/* ROWS: rows per warp and step; STEPS: half range of the 16-bit x. */
enum { THREADS = 256, WARPS = THREADS / 32, ROWS = 8, STEPS = 32512 };

/* Element c of a weight row. */
template <int KIND> __device__ __forceinline__ float weight_f32(const void *row, uint32_t c)
{
    if (KIND == CK_F32) return static_cast<const float *>(row)[c];
    if (KIND == CK_F16) return __half2float(static_cast<const __half *>(row)[c]);
    return __bfloat162float(static_cast<const __nv_bfloat16 *>(row)[c]);
}

/* One warp per row: int8 copy, scale and bound. The factor 1.001 covers the rounding of these sums
 * themselves. */
template <int KIND> __device__ __forceinline__ void make_screen(const ck_screen &a)
{
    uint32_t row = blockIdx.x * WARPS + (threadIdx.x >> 5), lane = threadIdx.x & 31;
    if (row >= a.w.rows) return;
    const char *w = static_cast<const char *>(a.w.data) + (size_t)row * a.w.pitch;
    int8_t *q = a.q + (size_t)row * a.pitch;
    float max_abs = 0, lost = 0, all = 0;
    /* Scale from the row's maximum. */
    for (uint32_t c = lane; c < a.w.cols; c += 32) max_abs = fmaxf(max_abs, fabsf(weight_f32<KIND>(w, c)));
    max_abs = warp_max(max_abs);
    float scale = max_abs / 127, inverse = scale > 0 ? 1 / scale : 0;
    /* Quantise; accumulate the squared error and the squared length. */
    for (uint32_t c = lane; c < a.pitch; c += 32) {
        float v = c < a.w.cols ? weight_f32<KIND>(w, c) : 0;
        int n = max(-127, min(127, __float2int_rn(v * inverse)));
        q[c] = (int8_t)n;
        float e = v - scale * (float)n;
        lost += e * e;
        all += v * v;
    }
    lost = sqrtf(warp_sum(lost)), all = sqrtf(warp_sum(all));
    if (lane) return;
    /* Error of the copy, rounding of x, and fp32 rounding, all relative to |x|. */
    float k = (float)a.w.cols;
    a.scale[row] = scale;
    a.bound[row] = 1.001f * (lost + (all + lost) * (0.51f / STEPS * sqrtf(k) + k * 2.4e-7f));
}
extern "C" __global__ void screen_make_f32(const __grid_constant__ ck_screen a) { make_screen<CK_F32>(a); }
extern "C" __global__ void screen_make_f16(const __grid_constant__ ck_screen a) { make_screen<CK_F16>(a); }
extern "C" __global__ void screen_make_bf16(const __grid_constant__ ck_screen a) { make_screen<CK_BF16>(a); }

/* Maximum over the block, returned to every thread. */
__device__ __forceinline__ float block_max(float x, float *scratch)
{
    x = warp_max(x);
    __syncthreads();
    if ((threadIdx.x & 31) == 0) scratch[threadIdx.x >> 5] = x;
    __syncthreads();
    return warp_max((threadIdx.x & 31) < WARPS ? scratch[threadIdx.x & 31] : -CUDART_INF_F);
}

/* 16 int8 products. */
__device__ __forceinline__ int dot(int4 a, int4 b, int sum)
{
    return __dp4a(a.w, b.w, __dp4a(a.z, b.z, __dp4a(a.y, b.y, __dp4a(a.x, b.x, sum))));
}

__device__ __forceinline__ bool is_banned(const ck_banned &b, uint32_t row)
{
    bool banned = row >= b.limit;
    for (uint32_t i = 0; i < b.n; i++) banned |= b.rows[i] == (int32_t)row;
    return banned;
}

/* Estimate of every row, and each block's highest lower bound. A warp handles 8 rows at a time, with
 * 16-byte loads of all in flight; x is in shared memory as two planes of bytes (high and low). */
extern "C" __global__ void __launch_bounds__(THREADS) screen_rows(const __grid_constant__ ck_screen a)
{
    extern __shared__ int4 planes[];
    __shared__ float scratch[32];
    int8_t *high = reinterpret_cast<int8_t *>(planes), *low = high + a.pitch;
    uint32_t lane = threadIdx.x & 31, pieces = a.pitch / 16, warps = gridDim.x * WARPS, rows = a.banned.limit;
    launch_dependents();
    wait_for_inputs();
    /* Length and maximum of x, then x in two byte planes. */
    float max_abs = 0, square = 0;
    for (uint32_t c = threadIdx.x; c < a.w.cols; c += THREADS) {
        float v = a.x.p[c];
        max_abs = fmaxf(max_abs, fabsf(v));
        square += v * v;
    }
    max_abs = block_max(max_abs, scratch);
    float length = 1.001f * sqrtf(block_sum(square, scratch)), scale = max_abs / STEPS, inverse = scale > 0 ? 1 / scale : 0;
    for (uint32_t c = threadIdx.x; c < a.pitch; c += THREADS) {
        int n = c < a.w.cols ? max(-STEPS, min((int)STEPS, __float2int_rn(a.x.p[c] * inverse))) : 0;
        high[c] = (int8_t)((n + 128) >> 8);
        low[c] = (int8_t)(n - ((n + 128) >> 8) * 256);
    }
    __syncthreads();
    float best = -CUDART_INF_F;
    /* 8 rows per warp; the last rows are repeated at the end of the vocabulary. */
    for (uint32_t g = blockIdx.x * WARPS + (threadIdx.x >> 5); g * ROWS < rows; g += warps) {
        const int8_t *q[ROWS];
        int h[ROWS] = {}, l[ROWS] = {};
#pragma unroll
        for (int r = 0; r < ROWS; r++) q[r] = a.q + (size_t)min(g * ROWS + r, rows - 1) * a.pitch;
#pragma unroll 2
        for (uint32_t c = lane; c < pieces; c += 32) {
            int4 w[ROWS], xh = planes[c], xl = planes[pieces + c];
#pragma unroll
            for (int r = 0; r < ROWS; r++) w[r] = __ldcs(reinterpret_cast<const int4 *>(q[r]) + c);
#pragma unroll
            for (int r = 0; r < ROWS; r++) h[r] = dot(w[r], xh, h[r]), l[r] = dot(w[r], xl, l[r]);
        }
        /* Exact integer sums; lane r keeps row r. */
        int hs = 0, ls = 0;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            int x = __reduce_add_sync(0xffffffffu, h[r]), y = __reduce_add_sync(0xffffffffu, l[r]);
            if (lane == r) hs = x, ls = y;
        }
        /* Estimate of the row, and the block's best lower bound. */
        uint32_t row = g * ROWS + lane;
        if (lane < ROWS && row < rows) {
            bool banned = is_banned(a.banned, row);
            float near = a.scale[row] * scale * (256.0f * (float)hs + (float)ls);
            a.near[row] = banned ? -CUDART_INF_F : near;
            if (!banned) best = fmaxf(best, near - a.bound[row] * length);
        }
    }
    best = block_max(best, scratch);
    if (threadIdx.x) return;
    a.low[blockIdx.x] = best;
    if (blockIdx.x == 0) *a.length = length;
}

/* Recomputes the rows that may win with the original weights; per-block argmax. */
template <int KIND> __device__ __forceinline__ void best_of(const ck_screen &a)
{
    __shared__ float scratch[32], values[WARPS];
    __shared__ uint32_t indices[WARPS];
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, index = 0xfffffffeu;
    launch_dependents();
    wait_for_inputs();
    float least = -CUDART_INF_F, length = *a.length, best = -CUDART_INF_F;
    /* Highest lower bound of all blocks. */
    for (uint32_t i = threadIdx.x; i < a.blocks; i += THREADS) least = fmaxf(least, a.low[i]);
    least = block_max(least, scratch);
    /* A length that is not finite means that x is not: report NaN. */
    if (!(length < CUDART_INF_F)) index = 0xffffffffu;
    for (uint32_t from = (blockIdx.x * WARPS + warp) * 32; from < a.banned.limit && index != 0xffffffffu;
         from += gridDim.x * THREADS) {
        uint32_t mine = from + lane;
        /* Candidates: upper bound at or above the best lower bound. */
        bool may = mine < a.banned.limit && a.near[mine] > -CUDART_INF_F && a.near[mine] + a.bound[mine] * length >= least;
        for (uint32_t left = __ballot_sync(0xffffffffu, may); left; left &= left - 1) {
            uint32_t row = from + __ffs(left) - 1;
            const char *w = static_cast<const char *>(a.w.data) + (size_t)row * a.w.pitch;
            float sum = 0;
            for (uint32_t c = lane; c < a.w.cols; c += 32) sum += weight_f32<KIND>(w, c) * a.x.p[c];
            update_best(a.banned, warp_sum(sum), row, best, index);
        }
    }
    if (lane == 0) {
        values[warp] = best;
        indices[warp] = index;
    }
    __syncthreads();
    if (threadIdx.x) return;
    /* Reduce over the warps. */
    for (uint32_t i = 1; i < WARPS; i++) {
        if (indices[i] == 0xfffffffeu || index == 0xffffffffu) continue;
        if (indices[i] == 0xffffffffu || index == 0xfffffffeu || values[i] > best || (values[i] == best && indices[i] < index))
            best = values[i], index = indices[i];
    }
    a.best_value[blockIdx.x] = best;
    a.best_index[blockIdx.x] = index;
}
extern "C" __global__ void screen_best_f32(const __grid_constant__ ck_screen a) { best_of<CK_F32>(a); }
extern "C" __global__ void screen_best_f16(const __grid_constant__ ck_screen a) { best_of<CK_F16>(a); }
extern "C" __global__ void screen_best_bf16(const __grid_constant__ ck_screen a) { best_of<CK_BF16>(a); }
