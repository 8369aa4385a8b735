/* k_attend.cu: attention over the K and V rows of the state for any storage and head size, and the
 * kernels that run before it: store of K and V (append) and norm, RoPE and store in one (prepare,
 * prepare_many). All architectures.
 *
 * Blocks of 256 threads walk over chunks of 64 positions with an online softmax: scores with 8 lanes
 * per position, then weighted sums of V; K and V are read once for up to 8 query heads. Up to 16
 * rows: split_any, whose blocks share the KV length of each row (k_split.cuh), and split_join, which
 * merges the parts in order, also those of k_split.cu. Many rows: attend_many, a block per row and
 * K/V head, where the tensor-core kernels k_flash.cu and k_wgflash.cu do not apply.
 * SPDX-License-Identifier: MIT */
#include "attend/k_split.cuh"

enum { CHUNK = CK_CHUNK, HEADS = CK_GROUP_HEADS, THREADS = 256 };

/* Stores one head's row of K or V; the calling threads cover elements at, at + step, ... */
__device__ void store_kv(uint32_t storage, unsigned char *head, const float *x, uint32_t width, uint32_t at, uint32_t step)
{
    /* Q8_0, one warp per block of 32, as graph/slot.c: the scale is max / 127 in fp16, values are
     * quantised with the exact scale */
    if (storage == CK_KV_Q8) {
        uint32_t lane = threadIdx.x & 31;
        for (uint32_t b = at / 32; b * 32 < width; b += step / 32) {
            uint32_t c = b * 32 + lane;
            float v = c < width ? x[c] : 0, max_abs = warp_max(fabsf(v));
            bool finite = __all_sync(0xffffffffu, isfinite(v));
            float scale = finite ? max_abs / 127.0f : CUDART_NAN_F, inverse = finite && scale > 0 ? 1.0f / scale : 0.0f;
            if (isinf(inverse)) inverse = 0;
            unsigned short bits = __half_as_ushort(__float2half_rn(scale));
            unsigned char *to = head + (size_t)b * 34;
            if (lane < 2) to[lane] = (unsigned char)(bits >> (8 * lane));
            int q = finite ? (int)roundf(v * inverse) : 1;
            if (c < width) to[2 + lane] = (unsigned char)q;
        }
        return;
    }
    /* loads first: x may alias the destination */
    for (uint32_t c0 = at; c0 < width; c0 += 4 * step) {
        float v[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (c0 + i * step < width) v[i] = x[c0 + i * step];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t c = c0 + i * step;
            if (c >= width) break;
            if (storage == CK_KV_F32)
                reinterpret_cast<float *>(head)[c] = v[i];
            else if (storage == CK_KV_F16)
                reinterpret_cast<__half *>(head)[c] = __float2half_rn(v[i]);
            else
                reinterpret_cast<__nv_bfloat16 *>(head)[c] = __float2bfloat16_rn(v[i]);
        }
    }
}

/* Address of one head in row `pos` of a span's K or V slot. */
__device__ __forceinline__ unsigned char *kv_row(const ck_pass &p, uint32_t span, uint32_t slot, uint32_t pos, uint32_t heads,
                                                 uint32_t head, uint32_t storage, uint32_t width)
{
    size_t bytes = kv_head_bytes(storage, width);
    return static_cast<unsigned char *>(p.slots[span * p.slots_n + slot]) + ((size_t)pos * heads + head) * bytes;
}

/* Grid (rows, K/V heads), 64 threads. */
extern "C" __global__ void append(const __grid_constant__ ck_append a)
{
    launch_dependents();
    wait_for_inputs();
    uint32_t t = blockIdx.x, h = blockIdx.y, span = a.pass.span[t], pos = a.pass.place[t];
    if (t >= a.pass.head->rows) return; /* padding row of a captured graph */
    store_kv(a.storage, kv_row(a.pass, span, a.slot_k, pos, a.heads, h, a.storage, a.d), a.k.p + (size_t)t * a.k.stride + h * a.d,
             a.d, threadIdx.x, blockDim.x);
    store_kv(a.storage, kv_row(a.pass, span, a.slot_v, pos, a.heads, h, a.storage, a.dv),
             a.v.p + (size_t)t * a.v.stride + h * a.dv, a.dv, threadIdx.x, blockDim.x);
}

/* Norm and RoPE of one head of q or k, and the store of K and V. Grid (rows, query heads then K/V
 * heads), 128 threads; head size up to 512. Every warp sums the squares by itself in the order of
 * k_head.cuh, so results equal those of k_single.cu. */
extern "C" __global__ void __launch_bounds__(128) prepare(const __grid_constant__ ck_prepare a)
{
    __shared__ float x[512];
    launch_dependents();
    wait_for_inputs();
    /* is_k: this block handles a K/V head; it also stores the head's V row. */
    uint32_t t = blockIdx.x, h = blockIdx.y, is_k = h >= a.heads, pos = a.pass.place[t], span = a.pass.span[t],
             lane = threadIdx.x & 31;
    if (t >= a.pass.head->rows) return;
    if (is_k) h -= a.heads;
    const ck_norm &n = is_k ? a.k_norm : a.q_norm;
    const float *from = (is_k ? a.k.p + (size_t)t * a.k.stride : a.q.p + (size_t)t * a.q.stride) + h * a.d;
    for (uint32_t c = threadIdx.x; c < a.d; c += 128) x[c] = from[c];
    __syncthreads();
    /* RMS norm of the head. */
    if (n.present) {
        float squares = 0, plus = n.plus_one && n.weight ? 1.0f : 0.0f;
        for (uint32_t c = lane; c < a.d; c += 32) squares += x[c] * x[c];
        float inverse = rsqrtf(warp_sum(squares) / a.d + n.eps);
        __syncthreads();
        for (uint32_t c = threadIdx.x; c < a.d; c += 128) x[c] *= inverse * (plus + (n.weight ? n.weight[c] : 1.0f));
    }
    __syncthreads();
    /* Rotate pairs (j, j + pairs). */
    for (uint32_t j = threadIdx.x; j < a.pairs; j += 128) {
        float co, si, x0 = x[j], x1 = x[j + a.pairs];
        rope_sincos(pos, a.inverse[j], si, co);
        co *= a.mscale;
        si *= a.mscale;
        x[j] = x0 * co - x1 * si;
        x[j + a.pairs] = x1 * co + x0 * si;
    }
    __syncthreads();
    /* q goes to q_out, k and v to the state. */
    if (!is_k) {
        for (uint32_t c = threadIdx.x; c < a.d; c += 128) a.q_out.p[(size_t)t * a.q_out.stride + h * a.d + c] = x[c];
        return;
    }
    store_kv(a.storage, kv_row(a.pass, span, a.slot_k, pos, a.kv_heads, h, a.storage, a.d), x, a.d, threadIdx.x, 128);
    store_kv(a.storage, kv_row(a.pass, span, a.slot_v, pos, a.kv_heads, h, a.storage, a.dv),
             a.v.p + (size_t)t * a.v.stride + h * a.dv, a.dv, threadIdx.x, 128);
}

/* Head norm, rotation and storing of K and V for many rows: one warp per row and head, 16 bytes per lane. */
enum { PREPARE_WARPS = 8 };
extern "C" __global__ void __launch_bounds__(32 * PREPARE_WARPS) prepare_many(const __grid_constant__ ck_prepare a)
{
    __shared__ __align__(16) float row_buffers[PREPARE_WARPS][512];
    wait_for_inputs();
    /* One warp per (row, head); heads are ordered query heads first, then K/V heads. */
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, i = blockIdx.x * PREPARE_WARPS + warp, each = a.heads + a.kv_heads,
             t = i / each, h = i % each, is_k = h >= a.heads;
    if (t >= a.pass.head->rows) return;
    uint32_t pos = a.pass.place[t], span = a.pass.span[t];
    if (is_k) h -= a.heads;
    const ck_norm &n = is_k ? a.k_norm : a.q_norm;
    const float *from = (is_k ? a.k.p + (size_t)t * a.k.stride : a.q.p + (size_t)t * a.q.stride) + h * a.d;
    float *x = row_buffers[warp], squares = 0, plus = n.plus_one ? 1.0f : 0.0f;
    for (uint32_t c = 4 * lane; c < a.d; c += 128) {
        float4 v = float4_at(from, c);
        *reinterpret_cast<float4 *>(x + c) = v;
        squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
    float inverse = n.present ? rsqrtf(warp_sum(squares) / a.d + n.eps) : 1;
    __syncwarp();
    for (uint32_t c = lane; c < a.d && n.present; c += 32) x[c] *= inverse * (n.weight ? plus + n.weight[c] : 1);
    __syncwarp();
    for (uint32_t j = lane; j < a.pairs; j += 32) {
        float co, si, x0 = x[j], x1 = x[j + a.pairs];
        rope_sincos(pos, a.inverse[j], si, co);
        co *= a.mscale, si *= a.mscale;
        x[j] = x0 * co - x1 * si;
        x[j + a.pairs] = x1 * co + x0 * si;
    }
    __syncwarp();
    if (is_k) {
        store_kv(a.storage, kv_row(a.pass, span, a.slot_k, pos, a.kv_heads, h, a.storage, a.d), x, a.d, lane, 32);
        store_kv(a.storage, kv_row(a.pass, span, a.slot_v, pos, a.kv_heads, h, a.storage, a.dv),
                 a.v.p + (size_t)t * a.v.stride + h * a.dv, a.dv, lane, 32);
        return;
    }
    float *to = a.q_out.p + (size_t)t * a.q_out.stride + h * a.d;
    for (uint32_t c = 4 * lane; c < a.d; c += 128) *reinterpret_cast<float4 *>(to + c) = float4_at(x, c);
}

/* Completes the scores of one position for all heads from the partial sums of its 8 lanes; -inf
 * where the position does not exist. */
__device__ __forceinline__ void put_scores(const ck_attend &a, uint32_t sub, uint32_t heads, uint32_t r, bool present,
                                           float (&s)[HEADS], float (*p)[CHUNK])
{
#pragma unroll
    for (int g = 0; g < HEADS; g++) {
        if (g >= heads) break;
        for (int m = 4; m; m >>= 1) s[g] += __shfl_xor_sync(0xffffffffu, s[g], m);
        float v = s[g] * a.scale;
        if (a.softcap > 0) v = a.softcap * tanhf(v / a.softcap);
        if (sub == 0) p[g][r] = present ? v : -CUDART_INF_F;
    }
}

/* Scores of positions [lo, hi) for up to HEADS query heads; replaces them by exponentials in p and
 * returns maximum and sum per head. */
template <int STORAGE>
__device__ void chunk_scores(const ck_attend &a, const unsigned char *k_base, size_t row_bytes, uint32_t lo, uint32_t hi,
                             uint32_t heads, const float *q, float (*p)[CHUNK], float *max_score, float *sum)
{
    uint32_t lane = threadIdx.x & 31, sub = lane & 7, n = hi - lo;
    for (uint32_t r0 = 0; r0 < CHUNK; r0 += THREADS / 8) {
        uint32_t r = r0 + (threadIdx.x >> 3);
        float s[HEADS];
#pragma unroll
        for (int g = 0; g < HEADS; g++) s[g] = 0;
        /* 8 lanes share a position; each takes every eighth group of columns. */
        if (r < n) {
            const unsigned char *row = k_base + (size_t)(lo + r) * row_bytes;
            if ((STORAGE == CK_KV_F16 || STORAGE == CK_KV_BF16) && a.d % 64 == 0) {
                uint4 piece[4]; /* four loads in flight before the first use */
                for (uint32_t c = sub * 8, i = 0; c < a.d; c += 64, i++) {
                    if (i % 4 == 0)
#pragma unroll
                        for (int k = 0; k < 4; k++)
                            if (c + 64 * k < a.d) piece[k] = *reinterpret_cast<const uint4 *>(row + 2 * (c + 64 * k));
                    uint4 v = i % 4 == 0 ? piece[0] : i % 4 == 1 ? piece[1] : i % 4 == 2 ? piece[2] : piece[3];
                    float4 x = STORAGE == CK_KV_F16 ? piece_plane<CK_F16>(v, 0) : piece_plane<CK_BF16>(v, 0);
                    float4 y = STORAGE == CK_KV_F16 ? piece_plane<CK_F16>(v, 1) : piece_plane<CK_BF16>(v, 1);
#pragma unroll
                    for (int g = 0; g < HEADS; g++) {
                        if (g >= heads) break;
                        const float *z = q + g * a.d + c;
                        s[g] += x.x * z[0] + x.y * z[1] + x.z * z[2] + x.w * z[3] + y.x * z[4] + y.y * z[5] + y.z * z[6] +
                                y.w * z[7];
                    }
                }
            } else {
                for (uint32_t c = sub; c < a.d; c += 8) {
                    float x = kv_at<STORAGE>(row, c);
#pragma unroll
                    for (int g = 0; g < HEADS; g++)
                        if (g < heads) s[g] = fmaf(x, q[g * a.d + c], s[g]);
                }
            }
        }
        put_scores(a, sub, heads, r, r < n, s, p);
    }
    /* Softmax of the chunk: one warp per head, two positions per lane. */
    __syncthreads();
    uint32_t g = threadIdx.x >> 5;
    if (g < heads) {
        float x = p[g][lane], y = p[g][lane + 32], m = warp_max(fmaxf(x, y));
        if (x != x || y != y) m = CUDART_NAN_F;
        x = lane < n ? expf(x - m) : 0;
        y = lane + 32 < n ? expf(y - m) : 0;
        p[g][lane] = x;
        p[g][lane + 32] = y;
        float total = warp_sum(x + y);
        if (lane == 0) {
            max_score[g] = m;
            sum[g] = total;
        }
    }
    __syncthreads();
}

/* Merges the parts of a head in a fixed order: grid (heads, pieces of 64 columns, rows), 256 threads. Sixteen threads cover the
 * columns of a piece, and 16 such groups take every 16th part. */
extern "C" __global__ void __launch_bounds__(256) split_join(const __grid_constant__ ck_split a)
{
    __shared__ float4 scratch[16][16];
    const ck_attend &at = a.attend;
    uint32_t h = blockIdx.x, t = blockIdx.z, lane = threadIdx.x & 31, group = threadIdx.x >> 4,
             c = blockIdx.y * 64 + (threadIdx.x & 15) * 4;
    launch_dependents();
    split_row rows = split_rows(a);
    uint32_t first = __shfl_sync(0xffffffffu, rows.first, t), n = __shfl_sync(0xffffffffu, rows.n, t);
    float sink = at.sinks ? at.sinks[h] * LOG2E : -CUDART_INF_F;
    wait_for_inputs();
    float4 y = make_float4(0, 0, 0, 0), v[8];
    bool is = c < a.pitch;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        v[i] = make_float4(0, 0, 0, 0);
        if (is && group + 16 * i < n) v[i] = float4_at(split_sums(a, first + group + 16 * i, h), c);
    }
    /* Every warp computes maximum and sum of all parts for itself. A NaN is in the sum. */
    float largest = sink, sum = 0;
    for (uint32_t i = lane; i < n; i += 32) largest = fmaxf(largest, split_ends(a, first + i, h)->x);
    largest = warp_max(largest);
    for (uint32_t i = lane; i < n; i += 32) {
        float2 end = *split_ends(a, first + i, h);
        sum += end.y * exp2_fast(end.x - largest);
    }
    sum = warp_sum(sum) + (at.sinks ? exp2_fast(sink - largest) : 0);
#pragma unroll 1
    for (uint32_t i0 = group; i0 < n; i0 += 128) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            uint32_t k = i0 + 16 * i;
            if (k >= n) break;
            if (i0 >= 128 && is) v[i] = float4_at(split_sums(a, first + k, h), c);
            float e = exp2_fast(split_ends(a, first + k, h)->x - largest);
            y.x = fmaf(v[i].x, e, y.x), y.y = fmaf(v[i].y, e, y.y), y.z = fmaf(v[i].z, e, y.z), y.w = fmaf(v[i].w, e, y.w);
        }
    }
    scratch[group][threadIdx.x & 15] = y;
    __syncthreads();
    uint32_t column = blockIdx.y * 64 + threadIdx.x;
    if (threadIdx.x >= 64 || column >= at.dv) return;
    float total = 0;
#pragma unroll
    for (int g = 0; g < 16; g++) total += reinterpret_cast<const float *>(scratch[g])[threadIdx.x];
    total /= sum;
    if (at.gate.p) total *= sigmoid(at.gate.p[(size_t)t * at.gate.stride + h * at.dv + column]);
    at.y.p[(size_t)t * at.y.stride + h * at.dv + column] = total;
}

/* y = out / sum for the heads from head0 on, out [heads][dv], times sigmoid(gate) if present. */
__device__ __forceinline__ void write_heads(const ck_attend &a, uint32_t t, uint32_t head0, uint32_t heads, const float *out,
                                            const float (&sum)[HEADS])
{
    for (uint32_t i = threadIdx.x; i < heads * a.dv; i += THREADS) {
        float y = out[i] / sum[i / a.dv];
        uint32_t at = head0 * a.dv + i;
        if (a.gate.p) y *= sigmoid(a.gate.p[(size_t)t * a.gate.stride + at]);
        a.y.p[(size_t)t * a.y.stride + at] = y;
    }
}

/* Query heads of a block and their row: up to 8 heads from head0 on share the K/V head kv. */
struct attend_work {
    uint32_t t, pos, span, kv, head0, heads;
};
__device__ __forceinline__ attend_work attend_work_of(const ck_attend &a, uint32_t t)
{
    uint32_t share = a.heads / a.kv_heads, groups = (share + HEADS - 1) / HEADS, kv = blockIdx.y / groups,
             first = blockIdx.y % groups * HEADS;
    return {t, a.pass.place[t], a.pass.span[t], kv, kv * share + first, min(share - first, (uint32_t)HEADS)};
}

/* Attention over positions [begin, end) with an online softmax over chunks of 64. Scratch in shared memory: q [HEADS][d]; result:
 * out [HEADS][dv], relative to the maximum. The caller sets the initial maximum and sum of exponentials of each head. */
template <int STORAGE>
__device__ void attend_range(const ck_attend &a, const attend_work &w, uint32_t begin, uint32_t end, float *q, float *out,
                             float *running_max, float *run_sum)
{
    __shared__ float p[HEADS][CHUNK], max_score[HEADS], sum[HEADS], rescale[HEADS];
    size_t k_head = kv_head_bytes(STORAGE, a.d), v_head = kv_head_bytes(STORAGE, a.dv);
    void *const *slots = a.pass.slots + w.span * a.pass.slots_n;
    const unsigned char *k = static_cast<const unsigned char *>(slots[a.slot_k]) + w.kv * k_head;
    const unsigned char *v = static_cast<const unsigned char *>(slots[a.slot_v]) + w.kv * v_head;
    for (uint32_t i = threadIdx.x; i < w.heads * a.d; i += THREADS) q[i] = a.q.p[(size_t)w.t * a.q.stride + w.head0 * a.d + i];
    for (uint32_t i = threadIdx.x; i < HEADS * a.dv; i += THREADS) out[i] = 0;
    __syncthreads();
    for (uint32_t chunk = begin / CHUNK; chunk * CHUNK < end; chunk++) {
        uint32_t lo = max(chunk * CHUNK, begin), hi = min(chunk * CHUNK + CHUNK, end);
        chunk_scores<STORAGE>(a, k, k_head * a.kv_heads, lo, hi, w.heads, q, p, max_score, sum);
        /* Merge the chunk into the running softmax: rescale is the factor of the old sums, max_score
         * becomes the factor of the new. */
        if (threadIdx.x < w.heads) {
            float m = max_score[threadIdx.x] != max_score[threadIdx.x] ? CUDART_NAN_F
                                                                       : fmaxf(running_max[threadIdx.x], max_score[threadIdx.x]);
            rescale[threadIdx.x] = expf(running_max[threadIdx.x] - m);
            max_score[threadIdx.x] = expf(max_score[threadIdx.x] - m);
            run_sum[threadIdx.x] = run_sum[threadIdx.x] * rescale[threadIdx.x] + sum[threadIdx.x] * max_score[threadIdx.x];
            running_max[threadIdx.x] = m;
        }
        __syncthreads();
        /* Weighted sum of V, one column per thread. */
        for (uint32_t c = threadIdx.x; c < a.dv; c += THREADS) {
            float acc[HEADS];
#pragma unroll
            for (int g = 0; g < HEADS; g++) acc[g] = 0;
#pragma unroll 8
            for (uint32_t r = 0; r < hi - lo; r++) {
                float x = kv_at<STORAGE>(v + (size_t)(lo + r) * v_head * a.kv_heads, c);
#pragma unroll
                for (int g = 0; g < HEADS; g++)
                    if (g < w.heads) acc[g] = fmaf(p[g][r], x, acc[g]);
            }
#pragma unroll
            for (int g = 0; g < HEADS; g++)
                if (g < w.heads) out[g * a.dv + c] = out[g * a.dv + c] * rescale[g] + acc[g] * max_score[g];
        }
        __syncthreads();
    }
}

/* Kernel body of attend_many: grid (rows, K/V heads times groups of query heads). */
template <int STORAGE> __device__ __forceinline__ void attend_many(const ck_attend &a)
{
    extern __shared__ float4 shared4[];
    __shared__ float running_max[HEADS], run_sum[HEADS];
    float *q = reinterpret_cast<float *>(shared4), *out = q + HEADS * a.d;
    wait_for_inputs();
    attend_work w = attend_work_of(a, blockIdx.x);
    /* Attention sinks enter as an initial maximum with sum 1. */
    if (threadIdx.x < w.heads) {
        running_max[threadIdx.x] = a.sinks ? a.sinks[w.head0 + threadIdx.x] : -CUDART_INF_F;
        run_sum[threadIdx.x] = a.sinks ? 1 : 0;
    }
    uint32_t from = a.window && w.pos + 1 > a.window ? w.pos + 1 - a.window : 0;
    attend_range<STORAGE>(a, w, from, w.pos + 1, q, out, running_max, run_sum);
    write_heads(a, w.t, w.head0, w.heads, out, run_sum);
}

/* Kernel body of split_any: one part (k_split.cuh) of the KV length, for any storage and head width; K and V of the pass are
 * stored already. Grid (parts, K/V heads times groups of query heads). */
template <int STORAGE> __device__ __forceinline__ void split_any(const ck_split &s)
{
    extern __shared__ float4 shared4[];
    __shared__ float running_max[HEADS], run_sum[HEADS];
    const ck_attend &a = s.attend;
    float *q = reinterpret_cast<float *>(shared4), *out = q + HEADS * a.d;
    launch_dependents();
    split_part part = split_part_of(s, blockIdx.x);
    wait_for_inputs();
    if (!part.n) return;
    attend_work w = attend_work_of(a, part.row);
    if (threadIdx.x < HEADS) {
        running_max[threadIdx.x] = -CUDART_INF_F;
        run_sum[threadIdx.x] = 0;
    }
    attend_range<STORAGE>(a, w, max(part.tile * SPLIT_TILE, part.from), min(part.end * SPLIT_TILE, part.pos + 1), q, out,
                          running_max, run_sum);
    for (uint32_t i = threadIdx.x; i < w.heads * a.dv; i += THREADS)
        split_sums(s, blockIdx.x, w.head0 + i / a.dv)[i % a.dv] = out[i];
    if (threadIdx.x < w.heads)
        *split_ends(s, blockIdx.x, w.head0 + threadIdx.x) = make_float2(running_max[threadIdx.x] * LOG2E, run_sum[threadIdx.x]);
}

#define ATTEND(NAME, STORAGE)                                                                                     \
    extern "C" __global__ void __launch_bounds__(THREADS) split_any_##NAME(const __grid_constant__ ck_split a)    \
    {                                                                                                             \
        split_any<STORAGE>(a);                                                                                    \
    }                                                                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS) attend_many_##NAME(const __grid_constant__ ck_attend a) \
    {                                                                                                             \
        attend_many<STORAGE>(a);                                                                                  \
    }
ATTEND(f32, CK_KV_F32)
ATTEND(f16, CK_KV_F16)
ATTEND(bf16, CK_KV_BF16)
ATTEND(q8, CK_KV_Q8)
