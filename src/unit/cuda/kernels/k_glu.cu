/* k_glu.cu: gate and up of many rows on Hopper in one product, y = act(gate) * up in 16 bits for the product behind (capability
 * 9.0 alone; elsewhere these kernels are empty and not used).
 *
 * A tile is 128 rows of x by 88 hidden units, 88 rows of gate's weights and 88 of up's: a warpgroup has 64 rows and 176 columns
 * of sums, and of a unit gate and up lie in the same thread, so that what is behind the product costs no memory. 88, for then 41
 * x 16 tiles of 3,584 units and 2,048 rows are five turns of 132 blocks but for 4 tiles. Two blocks of a cluster take the same
 * units of two tiles of rows: each brings half of the weights for both. Panels of 64 columns come through a ring of five places
 * by tensor maps, asked for by a warp of its own; wgmma multiplies them as they lie there. Sums are fp32, columns rising. A tile
 * goes out by way of shared memory, while the next one is multiplied. Shared memory: 5 * 38,912 + 22,528 bytes.
 * SPDX-License-Identifier: MIT */
#include "k_cluster.cuh"
#include "k_wgmma.cuh"

enum {
    ROWS = CK_GLU_ROWS, UNITS = CK_GLU_UNITS, PANEL = CK_GLU_PANEL, STAGES = CK_GLU_STAGES,
    SUMS_N = UNITS, /* numbers of a thread's: 64 x 176 of a warpgroup */
    X_BYTES = ROWS * PANEL * 2, W_BYTES = UNITS * PANEL * 2, STAGE = X_BYTES + 2 * W_BYTES,
    OUT_WORDS = UNITS / 2, OUT = 64 * OUT_WORDS * 4, WARPS = 8
};

#if HOPPER

#define FOUR(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define GLU_SUMS(d) \
    FOUR(d, 0), FOUR(d, 4), FOUR(d, 8), FOUR(d, 12), FOUR(d, 16), FOUR(d, 20), FOUR(d, 24), FOUR(d, 28), FOUR(d, 32), \
    FOUR(d, 36), FOUR(d, 40), FOUR(d, 44), FOUR(d, 48), FOUR(d, 52), FOUR(d, 56), FOUR(d, 60), FOUR(d, 64), FOUR(d, 68), \
    FOUR(d, 72), FOUR(d, 76), FOUR(d, 80), FOUR(d, 84)
#define GLU_TEXT \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, " \
    "%23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, " \
    "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, " \
    "%65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, " \
    "%86, %87} "
/* d += a b^T, 64 x 176 x 16. */
#define GLU(TYPE)                                                                                                                \
    asm volatile("wgmma.mma_async.sync.aligned.m64n176k16.f32." TYPE "." TYPE " " GLU_TEXT ", %88, %89, 1, 1, 1, 0, 0;" \
                 : GLU_SUMS(d)                                                                                                   \
                 : "l"(a), "l"(b))
template <int BF16> __device__ __forceinline__ void multiply_glu(float (&d)[SUMS_N], uint64_t a, uint64_t b)
{
    if (BF16)
        GLU("bf16");
    else
        GLU("f16");
}

struct rooms {
    uint64_t full[STAGES], empty[STAGES];
};
struct place { /* of a block */
    unsigned char *ring;
    uint32_t rank, first, step; /* block of the cluster; its tiles: from the first on, each step-th */
};
struct ring_place {
    uint32_t stage, turn;
};
__device__ __forceinline__ void step_on(ring_place &at)
{
    if (++at.stage == STAGES) at.stage = 0, at.turn++;
}

__device__ __forceinline__ uint32_t row_of(const ck_glu &a, const place &w, uint32_t tile)
{
    return (tile % a.pairs * 2 + w.rank) * ROWS;
}
__device__ __forceinline__ uint32_t unit_of(const ck_glu &a, uint32_t tile) { return tile / a.pairs * UNITS; }

/* All panels of the block's tiles, in order; by one thread. Of the weights the first block brings gate's for both, the other
 * up's. */
__device__ __forceinline__ void bring_panels(const ck_glu &a, const place &w, rooms &s)
{
    ring_place at = {0, 0};
#pragma unroll 1
    for (uint32_t tile = w.first; tile < a.tiles; tile += w.step) {
        const uint32_t row = row_of(a, w, tile), unit = unit_of(a, tile) + w.rank * a.units;
#pragma unroll 1
        for (uint32_t p = 0; p < a.panels; p++, step_on(at)) {
            const uint32_t to = shared_at(w.ring + at.stage * STAGE), gate = shared_at(&s.full[at.stage]);
            if (at.turn) gate_wait_cluster(&s.empty[at.stage], (at.turn - 1) & 1);
            gate_expect(&s.full[at.stage], STAGE);
            bring_box(to, a.x, p * (PANEL / 2), row, gate);
            asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
                         "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to + X_BYTES + w.rank * W_BYTES),
                         "l"(&a.w), "r"(p * (PANEL / 2)), "r"(unit), "r"(gate), "h"((uint16_t)3)
                         : "memory");
        }
    }
}

/* A place of the ring that this warp has read, in both blocks. Not a release to the cluster, which would wait for all of memory:
 * products that are over have read it. */
__device__ __forceinline__ void leave(rooms &s, uint32_t stage)
{
    if ((threadIdx.x & 31) < 2)
        asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(there(shared_at(&s.empty[stage]), threadIdx.x & 31))
                     : "memory");
}

/* Sums of a tile: 64 rows of gate's units, then of up's. */
template <int BF16>
__device__ __forceinline__ void multiply_tile(const ck_glu &a, const place &w, rooms &s, ring_place &at, float (&d)[SUMS_N])
{
    const uint32_t ring = shared_at(w.ring), own = threadIdx.x / 128 * (X_BYTES / 2);
    uint32_t before = 0;
#pragma unroll
    for (int i = 0; i < SUMS_N; i++) d[i] = 0;
#pragma unroll 1
    for (uint32_t p = 0; p < a.panels; p++) {
        const uint64_t x = tile_at(ring + at.stage * STAGE + own, 16), both = tile_at(ring + at.stage * STAGE + X_BYTES, 16);
        gate_wait(&s.full[at.stage], at.turn & 1);
        products_begin();
#pragma unroll
        for (int k = 0; k < PANEL / 16; k++) multiply_glu<BF16>(d, x + k * 2, both + k * 2);
        products_asked();
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
        if (p) leave(s, before);
        before = at.stage;
        step_on(at);
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;" : GLU_SUMS(d)::"memory");
    leave(s, before);
}

__device__ __forceinline__ void group_meets() { asm volatile("bar.sync %0, 128;" ::"r"(1 + threadIdx.x / 128) : "memory"); }

/* 64 rows of the tile by way of the warpgroup's room: 4 bytes a lane lie in banks of their own. */
template <int BF16>
__device__ __forceinline__ void give_tile(const ck_glu &a, unsigned char *room, uint32_t row, uint32_t unit,
                                          const float (&d)[SUMS_N])
{
    const uint32_t lane = threadIdx.x & 31,
                   at = shared_at(room) + ((threadIdx.x % 128 / 32 * 16 + lane / 4) * OUT_WORDS + (lane & 3)) * 4;
    const bool first = threadIdx.x % 128 == 0;
    if (first) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); /* of the tile before */
    group_meets();
#pragma unroll
    for (int i = 0; i < SUMS_N / 2; i += 2) {
        const float by = BF16 ? 1 : CK_F16_MANY, x = d[i] * by, y = d[i + 1] * by; /* up's sums are the 16th that is wanted */
        const float u = d[i + SUMS_N / 2], v = d[i + 1 + SUMS_N / 2];
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(at + i / 4 * 16 + (i & 2) * (4 * OUT_WORDS * 4)),
                     "r"(pack<BF16>(x * sigmoid_short(x) * u, y * sigmoid_short(y) * v))
                     : "memory");
    }
    written();
    group_meets();
    if (!first) return;
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];\n"
                 "cp.async.bulk.commit_group;" ::"l"(&a.y),
                 "r"(unit / 2), "r"(row + threadIdx.x / 128 * 64), "r"(shared_at(room))
                 : "memory");
}

template <int BF16> __device__ __forceinline__ void glu_rows(const ck_glu &a)
{
    extern __shared__ unsigned char shared[];
    __shared__ rooms s;
    const place w = {shared + (-shared_at(shared) & 1023), cluster_block(), blockIdx.x / 2, gridDim.x / 2};
    unsigned char *out = w.ring + STAGES * STAGE;
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < STAGES; i++) gate_open(&s.full[i], 1), gate_open(&s.empty[i], 2 * WARPS);
        gates_opened();
    }
    __syncthreads();
    cluster_arrive();
    cluster_wait();
    if (threadIdx.x >= 32 * WARPS) {
        if (threadIdx.x == 32 * WARPS) {
            wait_for_inputs();
            bring_panels(a, w, s);
        }
        __syncwarp();
    } else {
        ring_place at = {0, 0};
#pragma unroll 1
        for (uint32_t tile = w.first; tile < a.tiles; tile += w.step) {
            float d[SUMS_N];
            multiply_tile<BF16>(a, w, s, at, d);
            give_tile<BF16>(a, out + threadIdx.x / 128 * OUT, row_of(a, w, tile), unit_of(a, tile), d);
        }
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
        __syncwarp();
    }
    cluster_arrive(); /* nobody leaves while the other one still arrives here */
    cluster_wait();
}

#else
template <int BF16> __device__ __forceinline__ void glu_rows(const ck_glu &) {} /* no warpgroups: not launched */
#endif

extern "C" __global__ void __launch_bounds__(CK_GLU_THREADS, 1) glu_rows_f16(const __grid_constant__ ck_glu a) { glu_rows<0>(a); }
extern "C" __global__ void __launch_bounds__(CK_GLU_THREADS, 1) glu_rows_bf16(const __grid_constant__ ck_glu a)
{
    glu_rows<1>(a);
}
