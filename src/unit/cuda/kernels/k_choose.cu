/* k_choose.cu: greedy choice of the next token: argmax of logits in memory (argmax_rows, where the
 * head did not compute it), and choose_best, which reduces the per-block results, advances the pass
 * and embeds the next input. All architectures.
 * SPDX-License-Identifier: MIT */
#include "k_common.cuh"

/* Per-block argmax of logits in memory. Grid (blocks, rows). */
extern "C" __global__ void argmax_rows(const __grid_constant__ ck_argmax a)
{
    __shared__ float values[32];
    __shared__ uint32_t indices[32];
    launch_dependents();
    wait_for_inputs();
    const float *x = a.x.p + (size_t)blockIdx.y * a.x.stride;
    float best = -CUDART_INF_F;
    uint32_t index = 0xfffffffeu, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < a.banned.limit; i += gridDim.x * blockDim.x)
        update_best(a.banned, x[i], i, best, index);
    /* Reduce over the warp, then over the warps; NaN (0xffffffff) wins. */
    for (int m = 16; m; m >>= 1) {
        float v = __shfl_xor_sync(0xffffffffu, best, m);
        uint32_t i = __shfl_xor_sync(0xffffffffu, index, m);
        if (i == 0xffffffffu || index == 0xffffffffu)
            index = 0xffffffffu;
        else if (i != 0xfffffffeu && (index == 0xfffffffeu || v > best || (v == best && i < index)))
            best = v, index = i;
    }
    if (lane == 0) {
        values[warp] = best;
        indices[warp] = index;
    }
    __syncthreads();
    if (threadIdx.x) return;
    for (uint32_t q = 1; q < blockDim.x / 32; q++) {
        if (indices[q] == 0xfffffffeu) continue;
        if (indices[q] == 0xffffffffu)
            index = 0xffffffffu;
        else if (index != 0xffffffffu && (index == 0xfffffffeu || values[q] > best || (values[q] == best && indices[q] < index)))
            best = values[q], index = indices[q];
    }
    a.best_value[(size_t)blockIdx.y * gridDim.x + blockIdx.x] = best;
    a.best_index[(size_t)blockIdx.y * gridDim.x + blockIdx.x] = index;
}

/* Warps of choose_best. */
enum { CHOOSE_WARPS = CK_CHOOSE_THREADS / 32 };

/* Best key over the block's threads, returned to all of them. */
__device__ __forceinline__ uint64_t best_of_block(uint64_t s, uint64_t *scratch)
{
    s = warp_best(s);
    if ((threadIdx.x & 31) == 0) scratch[threadIdx.x >> 5] = s;
    __syncthreads();
    return warp_best(scratch[threadIdx.x % CHOOSE_WARPS]);
}

/* Four weights of a row, as weight_at gives them: one load, two with scales. */
__device__ __forceinline__ float4 four_weights(const ck_weight &w, size_t row, uint32_t col)
{
    const unsigned char *data = static_cast<const unsigned char *>(w.data) + row * w.pitch;
    if (w.kind == CK_F32) return reinterpret_cast<const float4 *>(data)[col / 4];
    if (w.kind == CK_Q8) {
        char4 q = reinterpret_cast<const char4 *>(data)[col / 4];
        float s = __half2float(static_cast<const __half *>(w.scales)[row * w.scale_pitch + col / 32]);
        return make_float4((float)q.x * s, (float)q.y * s, (float)q.z * s, (float)q.w * s);
    }
    /* 16-bit tables. */
    uint2 h = reinterpret_cast<const uint2 *>(data)[col / 4];
    if (w.kind == CK_BF16)
        return make_float4(__uint_as_float(h.x << 16), __uint_as_float(h.x & 0xffff0000u), __uint_as_float(h.y << 16),
                           __uint_as_float(h.y & 0xffff0000u));
    float2 a = __half22float2(reinterpret_cast<__half2 &>(h.x)), b = __half22float2(reinterpret_cast<__half2 &>(h.y));
    return make_float4(a.x, a.y, b.x, b.y);
}

/* Writes the columns of the next input's row as `embed` does. places: position embedding of this
 * thread's first four columns, loaded before the token is known. Unless `real`, results go to
 * `nowhere`. */
__device__ __forceinline__ void embed_next(const ck_embed &a, uint32_t row, uint32_t token, uint32_t pos, float4 places,
                                           uint32_t real, float4 *nowhere)
{
    if (token >= a.table.rows - a.at || !real) token = 0;
    /* Each thread writes four columns per step. */
#pragma unroll 1
    for (uint32_t i = threadIdx.x * 4; i < a.y.width; i += CK_CHOOSE_THREADS * 4) {
        float4 v = four_weights(a.table, (size_t)a.at + token, i);
        if (a.places.data && i >= CK_CHOOSE_THREADS * 4) places = four_weights(a.places, (size_t)a.places_at + pos, i);
        v = make_float4(v.x * a.scale, v.y * a.scale, v.z * a.scale, v.w * a.scale);
        if (a.places.data) v = make_float4(v.x + places.x, v.y + places.y, v.z + places.z, v.w + places.w);
        *(real ? reinterpret_cast<float4 *>(a.y.p + (size_t)row * a.y.stride + i) : nowhere) = v;
    }
}

/* One block of 512 threads per row: best of all blocks' results. With advance the token becomes the
 * next input, positions advance, the host's ring receives it, and a stop token ends the following
 * steps. The body first runs once on stale data, before griddepcontrol.wait and without visible
 * stores, to load its instructions: cache misses dominated its time. */
extern "C" __global__ void __launch_bounds__(CK_CHOOSE_THREADS) choose_best(const __grid_constant__ ck_choose c)
{
    __shared__ uint64_t scratch[2][CHOOSE_WARPS];
    __shared__ float4 nowhere[1];
    launch_dependents();
    ck_head *h = c.pass.head;
    uint32_t row = blockIdx.x, t = threadIdx.x, token = 0, pos = c.pass.place[row];
    uint32_t first = h->first[row];                              /* written by an earlier pass */
    uint32_t next = pos + 1 < c.embed.places.rows ? pos + 1 : 0; /* there may be no next position */
    float4 places = make_float4(0, 0, 0, 0);
    if (c.embed.y.p && c.embed.places.data && t * 4 < c.embed.y.width)
        places = four_weights(c.embed.places, (size_t)c.embed.places_at + next, t * 4);
#pragma unroll 1
    for (uint32_t real = 0; real < 2; real++) {
        /* Best over all blocks of this row. */
        uint64_t best = 0;
        const float *value = c.best_value + (size_t)row * c.blocks;
        const uint32_t *at = c.best_index + (size_t)row * c.blocks;
        if (real) wait_for_inputs();
#pragma unroll 1
        for (uint32_t i = t; i < c.blocks; i += CK_CHOOSE_THREADS) {
            uint64_t s = order_key(__ldcg(value + i), __ldcg(at + i));
            best = best > s ? best : s;
        }
        token = key_row(best_of_block(best, scratch[real]));
        if (c.embed.y.p) embed_next(c.embed, row, token, next, places, real, nowhere);
        /* Thread 0 publishes the token and, for advance 2, the input of the next pass. */
        if (t) continue;
        if (c.chosen)
            *(real ? c.chosen + row : reinterpret_cast<int32_t *>(nowhere)) = token >= 0xfffffffeu ? -1 : (int32_t)token;
        if (c.advance != 2) continue;
        /* without a valid token embed uses 0, and the host discards that pass */
        *(real ? c.next.tokens + row : reinterpret_cast<int32_t *>(nowhere)) = (int32_t)token;
        *(real ? c.next.place + row : reinterpret_cast<uint32_t *>(nowhere)) = pos + 1;
        *(real ? c.next.head->first + row : reinterpret_cast<uint32_t *>(nowhere)) = first + 1;
    }
    if (t || c.advance == 2) return;
    /* advance 1, row 0: ring, stop conditions, next input. */
    if (!c.advance || h->stopped) return;
    if (token >= 0xfffffffeu) {
        h->failed = h->stopped = 1;
        token = 0xffffffffu;
    }
    if (h->published < c.ring_cap) c.ring[h->published] = (int32_t)token;
    h->published++;
    for (uint32_t i = 0; i < c.stops_n; i++)
        if (c.stops[i] == (int32_t)token) h->stopped = 1;
    if (h->published >= h->steps) h->stopped = 1;
    c.pass.tokens[0] = (int32_t)token;
    c.pass.place[0] += h->rows;
    h->first[0] += h->rows;
    /* The host reads the ring after it sees the counter. */
    __threadfence_system();
    *c.ring_written = h->published;
}
