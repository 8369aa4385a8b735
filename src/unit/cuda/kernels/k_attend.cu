/* k_attend.cu: attention over the K and V rows of the state for any storage and head size, and the
 * kernels that run before it: store of K and V (append) and norm, RoPE and store in one (prepare,
 * prepare_many). All architectures.
 *
 * Few rows (decode): attend_part, grid (chunks of 64 positions, K/V heads times groups of up to 8
 * query heads, rows), 256 threads: scores with 8 lanes per position, softmax of the chunk, weighted
 * sums of V. attend_join merges the chunks of a head in order. Chunk boundaries depend on positions
 * alone, so a row's result does not depend on its batch. K and V are read once. Many rows:
 * attend_many, a block per row and K/V head, online softmax over the chunks; used where the
 * tensor-core kernels k_flash.cu and k_wgflash.cu do not apply.
 * SPDX-License-Identifier: MIT */
#include "k_common.cuh"

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

/* Weighted sum of V over the chunk, for 16-bit V whose head size divides 2,048: a thread takes 8
 * columns of every n-th position, then the n partial sums of a column are added in order. scratch:
 * 2,048 floats. */
template <int STORAGE>
__device__ void chunk_values(const unsigned char *v, size_t row_bytes, uint32_t lo, uint32_t n, uint32_t dv, uint32_t heads,
                             const float (*p)[CHUNK], float *scratch, float *out, size_t out_step)
{
    /* A thread owns 8 columns of V for positions group, group + groups, ... */
    uint32_t lanes = dv / 8, groups = THREADS / lanes, group = threadIdx.x / lanes, c = threadIdx.x % lanes * 8;
    float acc[HEADS][8];
#pragma unroll
    for (int g = 0; g < HEADS; g++)
#pragma unroll
        for (int i = 0; i < 8; i++) acc[g][i] = 0;
#pragma unroll 4
    for (uint32_t r = group; r < n; r += groups) {
        uint4 x = *reinterpret_cast<const uint4 *>(v + (size_t)(lo + r) * row_bytes + 2 * c);
        float4 a = STORAGE == CK_KV_F16 ? piece_plane<CK_F16>(x, 0) : piece_plane<CK_BF16>(x, 0);
        float4 b = STORAGE == CK_KV_F16 ? piece_plane<CK_F16>(x, 1) : piece_plane<CK_BF16>(x, 1);
#pragma unroll
        for (int g = 0; g < HEADS; g++) {
            if (g >= heads) break;
            float w = p[g][r];
            acc[g][0] = fmaf(w, a.x, acc[g][0]), acc[g][1] = fmaf(w, a.y, acc[g][1]);
            acc[g][2] = fmaf(w, a.z, acc[g][2]), acc[g][3] = fmaf(w, a.w, acc[g][3]);
            acc[g][4] = fmaf(w, b.x, acc[g][4]), acc[g][5] = fmaf(w, b.y, acc[g][5]);
            acc[g][6] = fmaf(w, b.z, acc[g][6]), acc[g][7] = fmaf(w, b.w, acc[g][7]);
        }
    }
    /* Reduce over the groups, head by head, through shared memory. */
#pragma unroll
    for (int g = 0; g < HEADS; g++) {
        if (g >= heads) break;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 8; i++) scratch[group * dv + c + i] = acc[g][i];
        __syncthreads();
        if (threadIdx.x < dv) {
            float sum = 0;
            for (uint32_t k = 0; k < groups; k++) sum += scratch[k * dv + threadIdx.x];
            out[g * out_step + threadIdx.x] = sum;
        }
    }
}

/* Partial result of (row, head, chunk): dv sums, then maximum and sum. */
__device__ __forceinline__ float *part_of(const ck_attend &a, uint32_t t, uint32_t head, uint32_t chunk)
{
    return a.parts + (((size_t)t * a.heads + head) * a.chunks + chunk) * (a.dv + 2);
}

/* Kernel body of attend_part. Dynamic shared memory: the query heads [heads][d]. */
template <int STORAGE> __device__ __forceinline__ void attend_part(const ck_attend &a)
{
    extern __shared__ float4 shared4[];
    __shared__ float p[HEADS][CHUNK], max_score[HEADS], sum[HEADS], scratch[2048];
    float *q = reinterpret_cast<float *>(shared4);
    uint32_t t = blockIdx.z, chunk = blockIdx.x, share = a.heads / a.kv_heads, groups = (share + HEADS - 1) / HEADS;
    uint32_t kv = blockIdx.y / groups, first = blockIdx.y % groups * HEADS, heads = share - first < HEADS ? share - first : HEADS;
    launch_dependents();
    wait_for_inputs();
    uint32_t pos = a.pass.place[t], span = a.pass.span[t], lo = chunk * CHUNK, hi = lo + CHUNK;
    /* Range of positions that this chunk covers, clipped to the sliding window and the current
     * position. */
    uint32_t from = a.window && pos + 1 > a.window ? pos + 1 - a.window : 0;
    if (hi > pos + 1) hi = pos + 1;
    if (lo < from) lo = from;
    if (lo >= hi) return;
    uint32_t head0 = kv * share + first;
    size_t k_head = kv_head_bytes(STORAGE, a.d), v_head = kv_head_bytes(STORAGE, a.dv);
    const unsigned char *k = static_cast<const unsigned char *>(a.pass.slots[span * a.pass.slots_n + a.slot_k]) + kv * k_head;
    const unsigned char *v = static_cast<const unsigned char *>(a.pass.slots[span * a.pass.slots_n + a.slot_v]) + kv * v_head;
    /* Stage the query heads in shared memory, four loads in flight per thread. */
    for (uint32_t i0 = threadIdx.x; i0 < heads * a.d; i0 += 4 * THREADS) {
        float v[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (i0 + i * THREADS < heads * a.d) v[i] = a.q.p[(size_t)t * a.q.stride + head0 * a.d + i0 + i * THREADS];
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (i0 + i * THREADS < heads * a.d) q[i0 + i * THREADS] = v[i];
    }
    __syncthreads();
    chunk_scores<STORAGE>(a, k, k_head * a.kv_heads, lo, hi, heads, q, p, max_score, sum);
    /* 16-bit V with a power-of-two head size takes the vectorised path; others one column per
     * thread. */
    bool wide = (STORAGE == CK_KV_F16 || STORAGE == CK_KV_BF16) && (a.dv == 64 || a.dv == 128 || a.dv == 256);
    if (wide)
        chunk_values<STORAGE>(v, v_head * a.kv_heads, lo, hi - lo, a.dv, heads, p, scratch, part_of(a, t, head0, chunk),
                              (size_t)a.chunks * (a.dv + 2));
    for (uint32_t c = threadIdx.x; c < a.dv && !wide; c += THREADS) {
        float acc[HEADS];
#pragma unroll
        for (int g = 0; g < HEADS; g++) acc[g] = 0;
#pragma unroll 8
        for (uint32_t r = 0; r < hi - lo; r++) {
            float x = kv_at<STORAGE>(v + (size_t)(lo + r) * v_head * a.kv_heads, c);
#pragma unroll
            for (int g = 0; g < HEADS; g++)
                if (g < heads) acc[g] = fmaf(p[g][r], x, acc[g]);
        }
#pragma unroll
        for (int g = 0; g < HEADS; g++)
            if (g < heads) part_of(a, t, head0 + g, chunk)[c] = acc[g];
    }
    /* Maximum and sum follow the dv columns of the part. */
    if (threadIdx.x < heads) {
        float *to = part_of(a, t, head0 + threadIdx.x, chunk) + a.dv;
        to[0] = max_score[threadIdx.x];
        to[1] = sum[threadIdx.x];
    }
}

/* Merges the chunks of a head: grid (rows, heads). NaN in any chunk makes the row NaN. */
extern "C" __global__ void attend_join(const __grid_constant__ ck_attend a)
{
    launch_dependents();
    wait_for_inputs();
    uint32_t t = blockIdx.x, h = blockIdx.y, pos = a.pass.place[t];
    uint32_t from = a.window && pos + 1 > a.window ? pos + 1 - a.window : 0, c0 = from / CHUNK, c1 = pos / CHUNK;
    /* Global maximum over sinks and chunks, then the rescaled sum. */
    float max_score = a.sinks ? a.sinks[h] : -CUDART_INF_F;
    bool bad = false;
#pragma unroll 4
    for (uint32_t c = c0; c <= c1; c++) {
        float m = part_of(a, t, h, c)[a.dv];
        bad = bad || m != m;
        max_score = fmaxf(max_score, m);
    }
    float sum = a.sinks ? expf(a.sinks[h] - max_score) : 0;
#pragma unroll 4
    for (uint32_t c = c0; c <= c1; c++) {
        const float *p = part_of(a, t, h, c) + a.dv;
        sum += p[1] * expf(p[0] - max_score);
    }
    /* Each thread merges its columns. */
    for (uint32_t i = threadIdx.x; i < a.dv; i += blockDim.x) {
        float y = 0, gate = a.gate.p ? a.gate.p[(size_t)t * a.gate.stride + h * a.dv + i] : 0;
#pragma unroll 4
        for (uint32_t c = c0; c <= c1; c++) {
            const float *p = part_of(a, t, h, c);
            y = fmaf(p[i], expf(p[a.dv] - max_score), y);
        }
        y = bad ? CUDART_NAN_F : y / sum;
        if (a.gate.p) y *= sigmoid(gate);
        a.y.p[(size_t)t * a.y.stride + h * a.dv + i] = y;
    }
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

/* Kernel body of attend_many: grid (rows, K/V heads times groups of query heads), loops over the
 * chunks with online softmax. Dynamic shared memory: q [HEADS][d], running sums [HEADS][dv]. */
template <int STORAGE> __device__ __forceinline__ void attend_many(const ck_attend &a)
{
    extern __shared__ float4 shared4[];
    __shared__ float p[HEADS][CHUNK], max_score[HEADS], sum[HEADS], running_max[HEADS], run_sum[HEADS], rescale[HEADS];
    float *q = reinterpret_cast<float *>(shared4), *out = q + HEADS * a.d;
    uint32_t t = blockIdx.x, share = a.heads / a.kv_heads, groups = (share + HEADS - 1) / HEADS;
    uint32_t kv = blockIdx.y / groups, first = blockIdx.y % groups * HEADS, heads = share - first < HEADS ? share - first : HEADS;
    wait_for_inputs();
    uint32_t pos = a.pass.place[t], span = a.pass.span[t], head0 = kv * share + first;
    /* First visible position under the sliding window. */
    uint32_t from = a.window && pos + 1 > a.window ? pos + 1 - a.window : 0;
    size_t k_head = kv_head_bytes(STORAGE, a.d), v_head = kv_head_bytes(STORAGE, a.dv);
    const unsigned char *k = static_cast<const unsigned char *>(a.pass.slots[span * a.pass.slots_n + a.slot_k]) + kv * k_head;
    const unsigned char *v = static_cast<const unsigned char *>(a.pass.slots[span * a.pass.slots_n + a.slot_v]) + kv * v_head;
    for (uint32_t i = threadIdx.x; i < heads * a.d; i += THREADS) q[i] = a.q.p[(size_t)t * a.q.stride + head0 * a.d + i];
    for (uint32_t i = threadIdx.x; i < HEADS * a.dv; i += THREADS) out[i] = 0;
    /* Attention sinks enter as an initial maximum with sum 1. */
    if (threadIdx.x < heads) {
        running_max[threadIdx.x] = a.sinks ? a.sinks[head0 + threadIdx.x] : -CUDART_INF_F;
        run_sum[threadIdx.x] = a.sinks ? 1 : 0;
    }
    __syncthreads();
    for (uint32_t chunk = from / CHUNK; chunk <= pos / CHUNK; chunk++) {
        uint32_t lo = chunk * CHUNK < from ? from : chunk * CHUNK,
                 hi = chunk * CHUNK + CHUNK > pos + 1 ? pos + 1 : chunk * CHUNK + CHUNK;
        chunk_scores<STORAGE>(a, k, k_head * a.kv_heads, lo, hi, heads, q, p, max_score, sum);
        /* Merge the chunk into the running softmax: rescale is the factor of the old sums, max_score
         * becomes the factor of the new. */
        if (threadIdx.x < heads) {
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
                    if (g < heads) acc[g] = fmaf(p[g][r], x, acc[g]);
            }
#pragma unroll
            for (int g = 0; g < HEADS; g++)
                if (g < heads) out[g * a.dv + c] = out[g * a.dv + c] * rescale[g] + acc[g] * max_score[g];
        }
        __syncthreads();
    }
    write_heads(a, t, head0, heads, out, run_sum);
}

#define ATTEND(NAME, STORAGE)                                                                                     \
    extern "C" __global__ void __launch_bounds__(THREADS) attend_part_##NAME(const __grid_constant__ ck_attend a) \
    {                                                                                                             \
        attend_part<STORAGE>(a);                                                                                  \
    }                                                                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS) attend_many_##NAME(const __grid_constant__ ck_attend a) \
    {                                                                                                             \
        attend_many<STORAGE>(a);                                                                                  \
    }
ATTEND(f32, CK_KV_F32)
ATTEND(f16, CK_KV_F16)
ATTEND(bf16, CK_KV_BF16)
ATTEND(q8, CK_KV_Q8)
