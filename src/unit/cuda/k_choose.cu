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

/* The best of all blocks' best; with advance: the token becomes the next input, positions move on, the host's
 * ring gets it, and a stop token ends what follows. One block of 256 threads per row. */
extern "C" __global__ void choose_best(const __grid_constant__ ck_choose c)
{
    __shared__ float values[256];
    __shared__ uint32_t indices[256];
    dependents_may_start();
    wait_for_inputs();
    uint32_t row = blockIdx.x, t = threadIdx.x, index = 0xfffffffeu;
    float best = -CUDART_INF_F;
    for (uint32_t i = t; i < c.blocks; i += 256) {
        float v = c.best_value[(size_t)row * c.blocks + i];
        uint32_t j = c.best_index[(size_t)row * c.blocks + i];
        if (j == 0xfffffffeu || index == 0xffffffffu) continue;
        if (j == 0xffffffffu)
            index = j;
        else if (index == 0xfffffffeu || v > best || (v == best && j < index))
            best = v, index = j;
    }
    values[t] = best;
    indices[t] = index;
    __syncthreads();
    for (uint32_t half = 128; half; half >>= 1) {
        if (t < half) {
            uint32_t a = indices[t], b = indices[t + half];
            if (a == 0xffffffffu || b == 0xffffffffu)
                indices[t] = 0xffffffffu;
            else if (b != 0xfffffffeu && (a == 0xfffffffeu || values[t + half] > values[t] ||
                                          (values[t + half] == values[t] && b < a))) {
                values[t] = values[t + half];
                indices[t] = b;
            }
        }
        __syncthreads();
    }
    if (t) return;
    ck_head *h = c.pass.head;
    uint32_t token = indices[0];
    if (c.chosen) c.chosen[row] = token >= 0xfffffffeu ? -1 : (int32_t)token;
    if (c.advance == 2) {
        c.next.tokens[row] = (int32_t)
            token; /* not a token when none was found: embed takes 0 for it, and the host drops that pass */
        c.next.place[row] = c.pass.place[row] + 1;
        c.next.head->first[row] = h->first[row] + 1;
        return;
    }
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
