/* k_attend.cu: attention over the K and V rows that a state holds, and what comes before it in a decoder
 * layer.
 *
 * Few rows: a block per (chunk of 64 held rows, K/V head and up to 8 of its query heads, row): scores with 8
 * lanes a row, softmax of the chunk, a thread per column for the sum; a second kernel joins the chunks of a
 * head in order. Chunks are cut by position alone, so a row's result does not depend on its batch. K and V
 * are read once: 2 * d * 2 bytes a row. Many rows: attend_many, a block per row and head, online over chunks;
 * the tensor-core kernel is in k_flash.cu. SPDX-License-Identifier: MIT */
#include "k_common.cuh"

enum { CHUNK = CK_CHUNK, HEADS = CK_GROUP_HEADS, THREADS = 256 };

__device__ void store_kv(uint32_t storage, unsigned char *head, const float *x, uint32_t width, uint32_t at,
                         uint32_t step)
{
    if (storage == CK_KV_Q8) { /* a warp per block; as graph/slot.c: scale = largest / 127 as fp16, values by
                                  the exact scale */
        uint32_t lane = threadIdx.x & 31;
        for (uint32_t b = at / 32; b * 32 < width; b += step / 32) {
            uint32_t c = b * 32 + lane;
            float v = c < width ? x[c] : 0, most = warp_max(fabsf(v));
            bool finite = __all_sync(0xffffffffu, isfinite(v));
            float scale = finite ? most / 127.0f : CUDART_NAN_F,
                  inverse = finite && scale > 0 ? 1.0f / scale : 0.0f;
            if (isinf(inverse)) inverse = 0;
            unsigned short bits = __half_as_ushort(__float2half_rn(scale));
            unsigned char *to = head + (size_t)b * 34;
            if (lane < 2) to[lane] = (unsigned char)(bits >> (8 * lane));
            int q = finite ? (int)roundf(v * inverse) : 1;
            if (c < width) to[2 + lane] = (unsigned char)q;
        }
        return;
    }
    for (uint32_t c0 = at; c0 < width; c0 += 4 * step) { /* loads first: what is stored might be what is read */
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

__device__ __forceinline__ unsigned char *kv_row(const ck_pass &p, uint32_t span, uint32_t slot,
                                                 uint32_t place, uint32_t heads, uint32_t head,
                                                 uint32_t storage, uint32_t width)
{
    size_t bytes = kv_head_bytes(storage, width);
    return static_cast<unsigned char *>(p.slots[span * p.slots_n + slot]) +
           ((size_t)place * heads + head) * bytes;
}

/* A block of 64 threads per row and K/V head. */
extern "C" __global__ void append(const __grid_constant__ ck_append a)
{
    dependents_may_start();
    wait_for_inputs();
    uint32_t t = blockIdx.x, h = blockIdx.y, span = a.pass.span[t], place = a.pass.place[t];
    if (t >= a.pass.head->rows) return; /* the pass was filled up with rows that are none */
    store_kv(a.storage, kv_row(a.pass, span, a.slot_k, place, a.heads, h, a.storage, a.d),
             a.k.p + (size_t)t * a.k.stride + h * a.d, a.d, threadIdx.x, blockDim.x);
    store_kv(a.storage, kv_row(a.pass, span, a.slot_v, place, a.heads, h, a.storage, a.dv),
             a.v.p + (size_t)t * a.v.stride + h * a.dv, a.dv, threadIdx.x, blockDim.x);
}

/* norm and rotation of one head of q or k, and K and V into the state: a block of 128 threads per row and head; heads first q,
 * then k. Width up to 512. Each warp sums the squares for itself, as k_head.cuh does: a row's numbers are those of
 * k_single.cu. */
extern "C" __global__ void __launch_bounds__(128) prepare(const __grid_constant__ ck_prepare a)
{
    __shared__ float x[512];
    dependents_may_start();
    wait_for_inputs();
    uint32_t t = blockIdx.x, h = blockIdx.y, is_k = h >= a.heads, place = a.pass.place[t],
             span = a.pass.span[t], lane = threadIdx.x & 31;
    if (t >= a.pass.head->rows) return;
    if (is_k) h -= a.heads;
    const ck_norm &n = is_k ? a.k_norm : a.q_norm;
    const float *from = (is_k ? a.k.p + (size_t)t * a.k.stride : a.q.p + (size_t)t * a.q.stride) + h * a.d;
    for (uint32_t c = threadIdx.x; c < a.d; c += 128) x[c] = from[c];
    __syncthreads();
    if (n.present) {
        float squares = 0, plus = n.plus_one && n.weight ? 1.0f : 0.0f;
        for (uint32_t c = lane; c < a.d; c += 32) squares += x[c] * x[c];
        float inverse = rsqrtf(warp_sum(squares) / a.d + n.eps);
        __syncthreads();
        for (uint32_t c = threadIdx.x; c < a.d; c += 128) x[c] *= inverse * (plus + (n.weight ? n.weight[c] : 1.0f));
    }
    __syncthreads();
    for (uint32_t j = threadIdx.x; j < a.pairs; j += 128) {
        float co, si, x0 = x[j], x1 = x[j + a.pairs];
        turn_of(place, a.inverse[j], si, co);
        co *= a.mscale;
        si *= a.mscale;
        x[j] = x0 * co - x1 * si;
        x[j + a.pairs] = x1 * co + x0 * si;
    }
    __syncthreads();
    if (!is_k) {
        for (uint32_t c = threadIdx.x; c < a.d; c += 128)
            a.q_out.p[(size_t)t * a.q_out.stride + h * a.d + c] = x[c];
        return;
    }
    store_kv(a.storage, kv_row(a.pass, span, a.slot_k, place, a.kv_heads, h, a.storage, a.d), x, a.d,
             threadIdx.x, 128);
    store_kv(a.storage, kv_row(a.pass, span, a.slot_v, place, a.kv_heads, h, a.storage, a.dv),
             a.v.p + (size_t)t * a.v.stride + h * a.dv, a.dv, threadIdx.x, 128);
}

/* The same for many rows: a warp for each, 16 bytes a lane. */
enum { PREPARERS = 8 };
extern "C" __global__ void __launch_bounds__(32 * PREPARERS) prepare_many(const __grid_constant__ ck_prepare a)
{
    __shared__ __align__(16) float rooms[PREPARERS][512];
    wait_for_inputs();
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, i = blockIdx.x * PREPARERS + warp, each = a.heads + a.kv_heads,
             t = i / each, h = i % each, is_k = h >= a.heads;
    if (t >= a.pass.head->rows) return;
    uint32_t place = a.pass.place[t], span = a.pass.span[t];
    if (is_k) h -= a.heads;
    const ck_norm &n = is_k ? a.k_norm : a.q_norm;
    const float *from = (is_k ? a.k.p + (size_t)t * a.k.stride : a.q.p + (size_t)t * a.q.stride) + h * a.d;
    float *x = rooms[warp], squares = 0, plus = n.plus_one ? 1.0f : 0.0f;
    for (uint32_t c = 4 * lane; c < a.d; c += 128) {
        float4 v = four_at(from, c);
        *reinterpret_cast<float4 *>(x + c) = v;
        squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
    float inverse = n.present ? rsqrtf(warp_sum(squares) / a.d + n.eps) : 1;
    __syncwarp();
    for (uint32_t c = lane; c < a.d && n.present; c += 32) x[c] *= inverse * (n.weight ? plus + n.weight[c] : 1);
    __syncwarp();
    for (uint32_t j = lane; j < a.pairs; j += 32) {
        float co, si, x0 = x[j], x1 = x[j + a.pairs];
        turn_of(place, a.inverse[j], si, co);
        co *= a.mscale, si *= a.mscale;
        x[j] = x0 * co - x1 * si;
        x[j + a.pairs] = x1 * co + x0 * si;
    }
    __syncwarp();
    if (is_k) {
        store_kv(a.storage, kv_row(a.pass, span, a.slot_k, place, a.kv_heads, h, a.storage, a.d), x, a.d, lane, 32);
        store_kv(a.storage, kv_row(a.pass, span, a.slot_v, place, a.kv_heads, h, a.storage, a.dv),
                 a.v.p + (size_t)t * a.v.stride + h * a.dv, a.dv, lane, 32);
        return;
    }
    float *to = a.q_out.p + (size_t)t * a.q_out.stride + h * a.d;
    for (uint32_t c = 4 * lane; c < a.d; c += 128) *reinterpret_cast<float4 *>(to + c) = four_at(x, c);
}

/* A row's scores of all heads from the sums of its 8 lanes; -inf where there is no row. */
__device__ __forceinline__ void put_scores(const ck_attend &a, uint32_t sub, uint32_t heads, uint32_t r,
                                           bool present, float (&s)[HEADS], float (*p)[CHUNK])
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

/* Scores of the chunk's rows for up to HEADS query heads, exponentials in place; per head most and sum. */
template <int STORAGE>
__device__ void chunk_scores(const ck_attend &a, const unsigned char *k_base, size_t row_bytes, uint32_t lo,
                             uint32_t hi, uint32_t heads, const float *q, float (*p)[CHUNK], float *most,
                             float *sum)
{
    uint32_t lane = threadIdx.x & 31, sub = lane & 7, n = hi - lo;
    for (uint32_t r0 = 0; r0 < CHUNK; r0 += THREADS / 8) {
        uint32_t r = r0 + (threadIdx.x >> 3);
        float s[HEADS];
#pragma unroll
        for (int g = 0; g < HEADS; g++) s[g] = 0;
        if (r < n) {
            const unsigned char *row = k_base + (size_t)(lo + r) * row_bytes;
            if ((STORAGE == CK_KV_F16 || STORAGE == CK_KV_BF16) && a.d % 64 == 0) {
                uint4 piece[4]; /* four loads before the first is used */
                for (uint32_t c = sub * 8, i = 0; c < a.d; c += 64, i++) {
                    if (i % 4 == 0)
#pragma unroll
                        for (int k = 0; k < 4; k++)
                            if (c + 64 * k < a.d)
                                piece[k] = *reinterpret_cast<const uint4 *>(row + 2 * (c + 64 * k));
                    uint4 v = i % 4 == 0 ? piece[0] : i % 4 == 1 ? piece[1] : i % 4 == 2 ? piece[2] : piece[3];
                    float4 x = STORAGE == CK_KV_F16 ? piece_plane<CK_F16>(v, 0) : piece_plane<CK_BF16>(v, 0);
                    float4 y = STORAGE == CK_KV_F16 ? piece_plane<CK_F16>(v, 1) : piece_plane<CK_BF16>(v, 1);
#pragma unroll
                    for (int g = 0; g < HEADS; g++) {
                        if (g >= heads) break;
                        const float *z = q + g * a.d + c;
                        s[g] += x.x * z[0] + x.y * z[1] + x.z * z[2] + x.w * z[3] + y.x * z[4] + y.y * z[5] +
                                y.z * z[6] + y.w * z[7];
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
            most[g] = m;
            sum[g] = total;
        }
    }
    __syncthreads();
}

/* sum over the chunk's rows of p * v, for 16-bit V whose width divides 2,048: a thread takes 8 columns of
 * every n-th row, then the n sums of a column are added in order. room: 2,048 floats. */
template <int STORAGE>
__device__ void chunk_values(const unsigned char *v, size_t row_bytes, uint32_t lo, uint32_t n, uint32_t dv,
                             uint32_t heads, const float (*p)[CHUNK], float *room, float *out,
                             size_t out_step)
{
    uint32_t lanes = dv / 8, groups = THREADS / lanes, group = threadIdx.x / lanes,
             c = threadIdx.x % lanes * 8;
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
#pragma unroll
    for (int g = 0; g < HEADS; g++) {
        if (g >= heads) break;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 8; i++) room[group * dv + c + i] = acc[g][i];
        __syncthreads();
        if (threadIdx.x < dv) {
            float sum = 0;
            for (uint32_t k = 0; k < groups; k++) sum += room[k * dv + threadIdx.x];
            out[g * out_step + threadIdx.x] = sum;
        }
    }
}

/* Where the part of (row, head, chunk) lies: dv sums, most, sum. */
__device__ __forceinline__ float *part_of(const ck_attend &a, uint32_t t, uint32_t head, uint32_t chunk)
{
    return a.parts + (((size_t)t * a.heads + head) * a.chunks + chunk) * (a.dv + 2);
}

template <int STORAGE> __device__ __forceinline__ void attend_part(const ck_attend &a)
{
    extern __shared__ float4 shared4[];
    __shared__ float p[HEADS][CHUNK], most[HEADS], sum[HEADS], room[2048];
    float *q = reinterpret_cast<float *>(shared4);
    uint32_t t = blockIdx.z, chunk = blockIdx.x, share = a.heads / a.kv_heads,
             groups = (share + HEADS - 1) / HEADS;
    uint32_t kv = blockIdx.y / groups, first = blockIdx.y % groups * HEADS,
             heads = share - first < HEADS ? share - first : HEADS;
    dependents_may_start();
    wait_for_inputs();
    uint32_t place = a.pass.place[t], span = a.pass.span[t], lo = chunk * CHUNK, hi = lo + CHUNK;
    uint32_t from = a.window && place + 1 > a.window ? place + 1 - a.window : 0;
    if (hi > place + 1) hi = place + 1;
    if (lo < from) lo = from;
    if (lo >= hi) return;
    uint32_t head0 = kv * share + first;
    size_t k_head = kv_head_bytes(STORAGE, a.d), v_head = kv_head_bytes(STORAGE, a.dv);
    const unsigned char *k =
        static_cast<const unsigned char *>(a.pass.slots[span * a.pass.slots_n + a.slot_k]) + kv * k_head;
    const unsigned char *v =
        static_cast<const unsigned char *>(a.pass.slots[span * a.pass.slots_n + a.slot_v]) + kv * v_head;
    for (uint32_t i0 = threadIdx.x; i0 < heads * a.d; i0 += 4 * THREADS) {
        float v[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (i0 + i * THREADS < heads * a.d)
                v[i] = a.q.p[(size_t)t * a.q.stride + head0 * a.d + i0 + i * THREADS];
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (i0 + i * THREADS < heads * a.d) q[i0 + i * THREADS] = v[i];
    }
    __syncthreads();
    chunk_scores<STORAGE>(a, k, k_head * a.kv_heads, lo, hi, heads, q, p, most, sum);
    bool wide = (STORAGE == CK_KV_F16 || STORAGE == CK_KV_BF16) && (a.dv == 64 || a.dv == 128 || a.dv == 256);
    if (wide)
        chunk_values<STORAGE>(v, v_head * a.kv_heads, lo, hi - lo, a.dv, heads, p, room,
                              part_of(a, t, head0, chunk), (size_t)a.chunks * (a.dv + 2));
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
    if (threadIdx.x < heads) {
        float *to = part_of(a, t, head0 + threadIdx.x, chunk) + a.dv;
        to[0] = most[threadIdx.x];
        to[1] = sum[threadIdx.x];
    }
}

/* Joins the chunks of a head: a block per (row, head). */
extern "C" __global__ void attend_join(const __grid_constant__ ck_attend a)
{
    dependents_may_start();
    wait_for_inputs();
    uint32_t t = blockIdx.x, h = blockIdx.y, place = a.pass.place[t];
    uint32_t from = a.window && place + 1 > a.window ? place + 1 - a.window : 0, c0 = from / CHUNK,
             c1 = place / CHUNK;
    float most = a.sinks ? a.sinks[h] : -CUDART_INF_F;
    bool bad = false;
#pragma unroll 4
    for (uint32_t c = c0; c <= c1; c++) {
        float m = part_of(a, t, h, c)[a.dv];
        bad = bad || m != m;
        most = fmaxf(most, m);
    }
    float sum = a.sinks ? expf(a.sinks[h] - most) : 0;
#pragma unroll 4
    for (uint32_t c = c0; c <= c1; c++) {
        const float *p = part_of(a, t, h, c) + a.dv;
        sum += p[1] * expf(p[0] - most);
    }
    for (uint32_t i = threadIdx.x; i < a.dv; i += blockDim.x) {
        float y = 0, gate = a.gate.p ? a.gate.p[(size_t)t * a.gate.stride + h * a.dv + i] : 0;
#pragma unroll 4
        for (uint32_t c = c0; c <= c1; c++) {
            const float *p = part_of(a, t, h, c);
            y = fmaf(p[i], expf(p[a.dv] - most), y);
        }
        y = bad ? CUDART_NAN_F : y / sum;
        if (a.gate.p) y *= sigmoid(gate);
        a.y.p[(size_t)t * a.y.stride + h * a.dv + i] = y;
    }
}

/* y = out / sum of the heads from head0 on, [heads][dv], times the gate. */
__device__ __forceinline__ void write_heads(const ck_attend &a, uint32_t t, uint32_t head0, uint32_t heads,
                                            const float *out, const float (&sum)[HEADS])
{
    for (uint32_t i = threadIdx.x; i < heads * a.dv; i += THREADS) {
        float y = out[i] / sum[i / a.dv];
        uint32_t at = head0 * a.dv + i;
        if (a.gate.p) y *= sigmoid(a.gate.p[(size_t)t * a.gate.stride + at]);
        a.y.p[(size_t)t * a.y.stride + at] = y;
    }
}

/* Many rows, any width: a block per (row, K/V head and group of query heads), chunk after chunk. */
template <int STORAGE> __device__ __forceinline__ void attend_many(const ck_attend &a)
{
    extern __shared__ float4 shared4[];
    __shared__ float p[HEADS][CHUNK], most[HEADS], sum[HEADS], run_most[HEADS], run_sum[HEADS], fix[HEADS];
    float *q = reinterpret_cast<float *>(shared4), *out = q + HEADS * a.d;
    uint32_t t = blockIdx.x, share = a.heads / a.kv_heads, groups = (share + HEADS - 1) / HEADS;
    uint32_t kv = blockIdx.y / groups, first = blockIdx.y % groups * HEADS,
             heads = share - first < HEADS ? share - first : HEADS;
    wait_for_inputs();
    uint32_t place = a.pass.place[t], span = a.pass.span[t], head0 = kv * share + first;
    uint32_t from = a.window && place + 1 > a.window ? place + 1 - a.window : 0;
    size_t k_head = kv_head_bytes(STORAGE, a.d), v_head = kv_head_bytes(STORAGE, a.dv);
    const unsigned char *k =
        static_cast<const unsigned char *>(a.pass.slots[span * a.pass.slots_n + a.slot_k]) + kv * k_head;
    const unsigned char *v =
        static_cast<const unsigned char *>(a.pass.slots[span * a.pass.slots_n + a.slot_v]) + kv * v_head;
    for (uint32_t i = threadIdx.x; i < heads * a.d; i += THREADS)
        q[i] = a.q.p[(size_t)t * a.q.stride + head0 * a.d + i];
    for (uint32_t i = threadIdx.x; i < HEADS * a.dv; i += THREADS) out[i] = 0;
    if (threadIdx.x < heads) {
        run_most[threadIdx.x] = a.sinks ? a.sinks[head0 + threadIdx.x] : -CUDART_INF_F;
        run_sum[threadIdx.x] = a.sinks ? 1 : 0;
    }
    __syncthreads();
    for (uint32_t chunk = from / CHUNK; chunk <= place / CHUNK; chunk++) {
        uint32_t lo = chunk * CHUNK < from ? from : chunk * CHUNK,
                 hi = chunk * CHUNK + CHUNK > place + 1 ? place + 1 : chunk * CHUNK + CHUNK;
        chunk_scores<STORAGE>(a, k, k_head * a.kv_heads, lo, hi, heads, q, p, most, sum);
        if (threadIdx.x < heads) {
            float m = most[threadIdx.x] != most[threadIdx.x]
                          ? CUDART_NAN_F
                          : fmaxf(run_most[threadIdx.x], most[threadIdx.x]);
            fix[threadIdx.x] = expf(run_most[threadIdx.x] - m);
            most[threadIdx.x] = expf(most[threadIdx.x] - m);
            run_sum[threadIdx.x] =
                run_sum[threadIdx.x] * fix[threadIdx.x] + sum[threadIdx.x] * most[threadIdx.x];
            run_most[threadIdx.x] = m;
        }
        __syncthreads();
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
                if (g < heads) out[g * a.dv + c] = out[g * a.dv + c] * fix[g] + acc[g] * most[g];
        }
        __syncthreads();
    }
    write_heads(a, t, head0, heads, out, run_sum);
}

#define ATTEND(NAME, STORAGE)                                   \
    extern "C" __global__ void __launch_bounds__(THREADS)       \
        attend_part_##NAME(const __grid_constant__ ck_attend a) \
    {                                                           \
        attend_part<STORAGE>(a);                                \
    }                                                           \
    extern "C" __global__ void __launch_bounds__(THREADS)       \
        attend_many_##NAME(const __grid_constant__ ck_attend a) \
    {                                                           \
        attend_many<STORAGE>(a);                                \
    }
ATTEND(f32, CK_KV_F32)
ATTEND(f16, CK_KV_F16)
ATTEND(bf16, CK_KV_BF16)
ATTEND(q8, CK_KV_Q8)
