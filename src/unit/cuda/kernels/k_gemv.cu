/* k_gemv.cu: products of weights with 1 to 16 rows: y = W x (+ bias) (+ residual), for several weights that
 * share x, with the norm of x before and the gate's activation or the best row behind. Decoding lives here,
 * and it is bound by how fast weights arrive: bytes / 4.5 TB/s.
 *
 * A team of `split` warps owns a pair of rows. Lane l of warp p reads the 16-byte pieces (i * split + p) * 32
 * + l of both, four of each before the first is used; the first ones before the inputs are waited for, so
 * that weights flow while the kernel before still runs. x lies in shared memory as fp32, number j of piece c
 * in plane j / 4: lanes read 16 bytes each without a bank conflict. Sums are fp32: a lane's pieces in rising
 * order, then a butterfly, then the warps of the team in order. None of this depends on how many rows x has,
 * so a row alone equals the row in a batch, bit for bit. Large
 * weights with one row: k_wide.cu. SPDX-License-Identifier: MIT */
#include "k_gemv.cuh"

enum { WARPS = CK_GEMV_THREADS / 32 };

/* Warp 0 of a team adds the sums of its other warps, in order; all threads of the block come here. */
template <int B>
__device__ __forceinline__ void add_group(float (&acc)[2][B], float (&partial)[WARPS][2][B], uint32_t warp,
                                         uint32_t part, uint32_t split)
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

template <int KIND, int B> __device__ __forceinline__ void gemv(const ck_gemv &g)
{
    extern __shared__ float4 shared4[];
    __shared__ float partial[WARPS][2][B];
    __shared__ float best_value[WARPS][B];
    __shared__ uint32_t best_index[WARPS][B];
    float *room = reinterpret_cast<float *>(shared4), *xs = room + 32;
    uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, nc = g.pitch / 16, split = g.split;
    uint32_t teams = gridDim.x * WARPS / split, team = (blockIdx.x * WARPS + warp) / split,
             part = warp % split;
    uint32_t step = 32 * split, turns = (g.pairs + teams - 1) / teams;
    pieces<KIND> w;
    float best = -CUDART_INF_F;
    uint32_t index = 0xfffffffeu;
    dependents_may_start();
    pair_of p = find_pair(g, team < g.pairs ? team : 0);
    load_pieces<KIND>(w, g, p, part * 32 + lane, step, team < g.pairs ? nc : 0);
    wait_for_inputs();
    bring_x<B, CK_GEMV_THREADS>(g, planes_of<KIND>(nc), Kind<KIND>::OFFSETS, xs, room);
    for (uint32_t turn = 0; turn < turns; turn++) {
        uint32_t pair = team + turn * teams;
        float acc[2][B];
#pragma unroll
        for (int b = 0; b < B; b++) acc[0][b] = acc[1][b] = 0;
        if (pair < g.pairs) {
            if (turn) p = find_pair(g, pair);
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
        if (part == 0 && pair < g.pairs) write_pair<KIND, B>(g, p, w, acc, best, index);
    }
    if (!g.best) return;
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

#define GEMV(KIND, B, BLOCKS)                                             \
    extern "C" __global__ void __launch_bounds__(CK_GEMV_THREADS, BLOCKS) \
        gemv_##KIND##_##B(const __grid_constant__ ck_gemv g)              \
    {                                                                     \
        gemv<CK_##KIND, B>(g);                                            \
    }
/* Blocks that must fit on a multiprocessor: what registers allow without spilling. */
#define GEMV_KIND(KIND, BLOCKS) \
    GEMV(KIND, 1, BLOCKS) GEMV(KIND, 2, 2) GEMV(KIND, 4, 2) GEMV(KIND, 8, 1) GEMV(KIND, 16, 1)
GEMV_KIND(F32, 4)
GEMV_KIND(F16, 4)
GEMV_KIND(BF16, 4)
GEMV_KIND(Q8, 3)
GEMV_KIND(Q4, 3)
GEMV_KIND(G8, 3)
GEMV_KIND(G4, 3)
GEMV_KIND(F8, 3)
