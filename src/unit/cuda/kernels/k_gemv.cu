/* k_gemv.cu: product of weights in any storage with 1 to 16 rows: y = W x (+ bias) (+ residual), for
 * several weights that share x, with a norm before and act(gate) * up or argmax after. The general
 * decode kernel for all architectures, bound by memory bandwidth; used where no specialised kernel
 * applies (for large weights with one row: k_wide.cu).
 *
 * 256 threads. A group of `split` warps owns a pair of weight rows. Lane l of warp p reads the
 * 16-byte pieces (i * split + p) * 32 + l of both, four of each before the first is used, the first
 * ones before griddepcontrol.wait, so that weights arrive while the previous kernel still runs. x is
 * in shared memory as fp32 planes (k_gemv.cuh). Sums are fp32: pieces of a lane ascending, butterfly
 * over lanes, warps of the group in order. The order does not depend on the number of rows, so a
 * single row equals the same row in a batch bit for bit.
 * SPDX-License-Identifier: MIT */
#include "k_gemv.cuh"

enum { WARPS = CK_GEMV_THREADS / 32 };

/* Warp 0 of a group adds the sums of its other warps, in order. Called by all threads of the block. */
template <int B>
__device__ __forceinline__ void add_group(float (&acc)[2][B], float (&partial)[WARPS][2][B], uint32_t warp, uint32_t part,
                                          uint32_t split)
{
    __syncthreads();
    if ((threadIdx.x & 31) == 0)
#pragma unroll
        for (int b = 0; b < B; b++) {
            partial[warp][0][b] = acc[0][b];
            partial[warp][1][b] = acc[1][b];
        }
    __syncthreads();
    if (part == 0)
        for (uint32_t q = 1; q < split; q++)
#pragma unroll
            for (int b = 0; b < B; b++) {
                acc[0][b] += partial[warp + q][0][b];
                acc[1][b] += partial[warp + q][1][b];
            }
}

/* Kernel body. B: rows of x that registers hold. */
template <int KIND, int B> __device__ __forceinline__ void gemv(const ck_gemv_step &s)
{
    const ck_gemv &g = s.g;
    extern __shared__ float4 shared4[];
    __shared__ float partial[WARPS][2][B];
    __shared__ float best_value[WARPS][B];
    __shared__ uint32_t best_index[WARPS][B];
    float *scratch = reinterpret_cast<float *>(shared4), *xs = scratch + 32;
    uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, nc = g.pitch / 16, split = g.split;
    uint32_t warp_groups = gridDim.x * WARPS / split, warp_group = (blockIdx.x * WARPS + warp) / split, part = warp % split;
    uint32_t step = 32 * split, turns = (g.pairs + warp_groups - 1) / warp_groups;
    pieces<KIND> w;
    float best = -CUDART_INF_F;
    uint32_t index = 0xfffffffeu;
    launch_dependents();
    pair_of p = find_pair(g, warp_group < g.pairs ? warp_group : 0);
    load_pieces<KIND>(w, g, p, part * 32 + lane, step, warp_group < g.pairs ? nc : 0);
    wait_for_inputs();
    float operands = B == 1 ? load_operands(g, s.after, p) : 0;
    load_x<B, CK_GEMV_THREADS>(g, planes_of<KIND>(nc), Kind<KIND>::OFFSETS, xs, scratch);
    /* One row pair per warp group and turn; all warps stay for the barriers of add_group. */
    for (uint32_t turn = 0; turn < turns; turn++) {
        uint32_t pair = warp_group + turn * warp_groups;
        float acc[2][B];
#pragma unroll
        for (int b = 0; b < B; b++) acc[0][b] = acc[1][b] = 0;
        if (pair < g.pairs) {
            if (turn) p = find_pair(g, pair);
            if (turn && B == 1) operands = load_operands(g, s.after, p);
            for (uint32_t c = part * 32 + lane; c - lane < nc; c += U * step) {
                if (turn || c != part * 32 + lane) load_pieces<KIND>(w, g, p, c, step, nc);
                multiply<KIND, B>(w, c, step, nc, xs, acc);
            }
#pragma unroll
            for (int b = 0; b < B; b++) {
                acc[0][b] = warp_sum(acc[0][b]);
                acc[1][b] = warp_sum(acc[1][b]);
            }
        }
        if (split > 1) add_group<B>(acc, partial, warp, part, split);
        if (part == 0 && pair < g.pairs) write_pair<KIND, B>(g, s.after, p, w, operands, acc, best, index);
    }
    if (!g.best) return;
    /* Argmax of the block: over its warps. */
    if (lane < B) {
        best_value[warp][lane] = best;
        best_index[warp][lane] = index;
    }
    __syncthreads();
    if (threadIdx.x >= B || threadIdx.x >= g.rows) return;
    for (int q = 1; q < WARPS; q++) {
        float v = best_value[q][threadIdx.x];
        uint32_t i = best_index[q][threadIdx.x];
        if (i == 0xfffffffeu) continue;
        if (i == 0xffffffffu)
            index = i;
        else if (index != 0xffffffffu && (index == 0xfffffffeu || v > best || (v == best && i < index)))
            best = v, index = i;
    }
    g.best_value[(size_t)threadIdx.x * gridDim.x + blockIdx.x] = best;
    g.best_index[(size_t)threadIdx.x * gridDim.x + blockIdx.x] = index;
}

#define GEMV(KIND, B, BLOCKS)                                                                                                  \
    extern "C" __global__ void __launch_bounds__(CK_GEMV_THREADS, BLOCKS) gemv_##KIND##_##B(                                   \
        const __grid_constant__ ck_gemv_step s)                                                                                \
    {                                                                                                                          \
        gemv<CK_##KIND, B>(s);                                                                                                 \
    }
/* Last argument: blocks per multiprocessor, the most that registers allow without spilling. */
#define GEMV_KIND(KIND, BLOCKS) GEMV(KIND, 1, BLOCKS) GEMV(KIND, 2, 2) GEMV(KIND, 4, 2) GEMV(KIND, 8, 1) GEMV(KIND, 16, 1)
GEMV_KIND(F32, 4)
GEMV_KIND(F16, 4)
GEMV_KIND(BF16, 4)
GEMV_KIND(Q8, 3)
GEMV_KIND(Q4, 3)
GEMV_KIND(G8, 3)
GEMV_KIND(G4, 3)
GEMV_KIND(F8, 3)
