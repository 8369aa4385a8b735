/* k_choose.cu: from logits to a token: the best row of each block where the head was not fused, the best of all blocks, and
 * the step to the next input. SPDX-License-Identifier: MIT */
#include "k_common.cuh"

/* The best row of logits that lie in memory (split as gemv's blocks are), where the head was not fused. */
extern "C" __global__ void argmax_rows(const __grid_constant__ ck_argmax a)
{
    __shared__ float values[32];
    __shared__ uint32_t indices[32];
    dependents_may_start();
    wait_for_inputs();
    const float *x = a.x.p + (size_t)blockIdx.y * a.x.stride;
    float best = -CUDART_INF_F;
    uint32_t index = 0xfffffffeu, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < a.banned.limit; i += gridDim.x * blockDim.x)
        keep_best(a.banned, x[i], i, best, index);
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
        else if (index != 0xffffffffu &&
                 (index == 0xfffffffeu || values[q] > best || (values[q] == best && indices[q] < index)))
            best = values[q], index = indices[q];
    }
    a.best_value[(size_t)blockIdx.y * gridDim.x + blockIdx.x] = best;
    a.best_index[(size_t)blockIdx.y * gridDim.x + blockIdx.x] = index;
}

enum { CHOOSERS = CK_CHOOSE_THREADS / 32 };

/* The best of the block's threads, in all of them. */
__device__ __forceinline__ uint64_t best_of_block(uint64_t s, uint64_t *room)
{
    s = best_of_warp(s);
    if ((threadIdx.x & 31) == 0) room[threadIdx.x >> 5] = s;
    __syncthreads();
    return best_of_warp(room[threadIdx.x % CHOOSERS]);
}

/* Four weights of a row, as weight_at has them: one load, two where they have scales. */
__device__ __forceinline__ float4 four_weights(const ck_weight &w, size_t row, uint32_t col)
{
    const unsigned char *data = static_cast<const unsigned char *>(w.data) + row * w.pitch;
    if (w.kind == CK_F32) return reinterpret_cast<const float4 *>(data)[col / 4];
    if (w.kind == CK_Q8) {
        char4 q = reinterpret_cast<const char4 *>(data)[col / 4];
        float s = __half2float(static_cast<const __half *>(w.scales)[row * w.scale_pitch + col / 32]);
        return make_float4((float)q.x * s, (float)q.y * s, (float)q.z * s, (float)q.w * s);
    }
    uint2 h = reinterpret_cast<const uint2 *>(data)[col / 4];
    if (w.kind == CK_BF16)
        return make_float4(__uint_as_float(h.x << 16), __uint_as_float(h.x & 0xffff0000u), __uint_as_float(h.y << 16),
                           __uint_as_float(h.y & 0xffff0000u));
    float2 a = __half22float2(reinterpret_cast<__half2 &>(h.x)), b = __half22float2(reinterpret_cast<__half2 &>(h.y));
    return make_float4(a.x, a.y, b.x, b.y);
}

/* Columns of the next input's row as `embed` makes them; place: the first four of this thread, loaded before the token was
 * known. */
__device__ __forceinline__ void embed_next(const ck_embed &a, uint32_t row, uint32_t token, uint32_t place, float4 places,
                                           uint32_t real, float4 *nowhere)
{
    if (token >= a.table.rows - a.at || !real) token = 0;
#pragma unroll 1
    for (uint32_t i = threadIdx.x * 4; i < a.y.width; i += CK_CHOOSE_THREADS * 4) {
        float4 v = four_weights(a.table, (size_t)a.at + token, i);
        if (a.places.data && i >= CK_CHOOSE_THREADS * 4) places = four_weights(a.places, (size_t)a.places_at + place, i);
        v = make_float4(v.x * a.scale, v.y * a.scale, v.z * a.scale, v.w * a.scale);
        if (a.places.data) v = make_float4(v.x + places.x, v.y + places.y, v.z + places.z, v.w + places.w);
        *(real ? reinterpret_cast<float4 *>(a.y.p + (size_t)row * a.y.stride + i) : nowhere) = v;
    }
}

/* The best of all blocks' best; with advance: the token becomes the next input, positions move on, the host's
 * ring gets it, and a stop token ends what follows. One block per row. The way is gone once on what happens to lie
 * there, before the inputs are waited for and to nowhere, so that its instructions are there: they took longer than all else. */
extern "C" __global__ void __launch_bounds__(CK_CHOOSE_THREADS) choose_best(const __grid_constant__ ck_choose c)
{
    __shared__ uint64_t room[2][CHOOSERS];
    __shared__ float4 nowhere[1];
    dependents_may_start();
    ck_head *h = c.pass.head;
    uint32_t row = blockIdx.x, t = threadIdx.x, token = 0, place = c.pass.place[row];
    uint32_t first = h->first[row]; /* of an earlier pass */
    uint32_t next = place + 1 < c.embed.places.rows ? place + 1 : 0; /* there may be no next one */
    float4 places = make_float4(0, 0, 0, 0);
    if (c.embed.y.p && c.embed.places.data && t * 4 < c.embed.y.width)
        places = four_weights(c.embed.places, (size_t)c.embed.places_at + next, t * 4);
#pragma unroll 1
    for (uint32_t real = 0; real < 2; real++) {
        uint64_t best = 0;
        const float *value = c.best_value + (size_t)row * c.blocks;
        const uint32_t *at = c.best_index + (size_t)row * c.blocks;
        if (real) wait_for_inputs();
#pragma unroll 1
        for (uint32_t i = t; i < c.blocks; i += CK_CHOOSE_THREADS) {
            uint64_t s = standing_of(__ldcg(value + i), __ldcg(at + i));
            best = best > s ? best : s;
        }
        token = row_of_standing(best_of_block(best, room[real]));
        if (c.embed.y.p) embed_next(c.embed, row, token, next, places, real, nowhere);
        if (t) continue;
        if (c.chosen)
            *(real ? c.chosen + row : reinterpret_cast<int32_t *>(nowhere)) = token >= 0xfffffffeu ? -1 : (int32_t)token;
        if (c.advance != 2) continue;
        /* not a token when none was found: embed takes 0 for it, and the host drops that pass */
        *(real ? c.next.tokens + row : reinterpret_cast<int32_t *>(nowhere)) = (int32_t)token;
        *(real ? c.next.place + row : reinterpret_cast<uint32_t *>(nowhere)) = place + 1;
        *(real ? c.next.head->first + row : reinterpret_cast<uint32_t *>(nowhere)) = first + 1;
    }
    if (t || c.advance == 2) return;
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
    __threadfence_system();
    *c.ring_written = h->published;
}
