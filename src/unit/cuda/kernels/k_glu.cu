/* k_glu.cu: gate and up of many rows in one wgmma product with the activation fused: y = SiLU(gate)
 * * up, in 16 bits for the down product. sm_90 (empty kernels elsewhere). Host: issue_glu.c, prompts
 * from 512 rows on.
 *
 * A tile is 128 rows of x by 88 hidden units, i.e. 88 rows of gate and 88 of up. Each of the two
 * consumer warpgroups accumulates 64 rows by 176 columns; gate and up of a unit are in the same
 * thread, so the activation needs no exchange. 88 units: for 3,584 units and 2,048 rows the 41 x 16
 * tiles are five waves of 132 blocks minus 4. Grid: clusters of 2 blocks, persistent, 288 threads.
 * The blocks of a cluster compute the same units for two row tiles: each loads half of the weights,
 * multicast to both. Panels of 64 columns arrive by TMA in a ring of five stages, loaded by a
 * separate warp; sums are fp32, columns ascending. A finished tile is stored by TMA from shared
 * memory while the next one is multiplied. Shared memory: 5 * 38,912 + 22,528 bytes.
 * SPDX-License-Identifier: MIT */
#include "k_cluster.cuh"
#include "k_wgmma.cuh"

enum {
    ROWS = CK_GLU_ROWS,
    UNITS = CK_GLU_UNITS,
    PANEL = CK_GLU_PANEL_COLS,
    STAGES = CK_GLU_STAGES,
    SUMS_N = UNITS, /* accumulators per thread: 64 x 176 per warpgroup */
    X_BYTES = ROWS * PANEL * 2,
    W_BYTES = UNITS * PANEL * 2,
    STAGE = X_BYTES + 2 * W_BYTES,
    OUT_WORDS = UNITS / 2,
    OUT = 64 * OUT_WORDS * 4,
    WARPS = 8
};

#if HOPPER

#define FOUR(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define GLU_SUMS(d)                                                                                                          \
    FOUR(d, 0), FOUR(d, 4), FOUR(d, 8), FOUR(d, 12), FOUR(d, 16), FOUR(d, 20), FOUR(d, 24), FOUR(d, 28), FOUR(d, 32),        \
        FOUR(d, 36), FOUR(d, 40), FOUR(d, 44), FOUR(d, 48), FOUR(d, 52), FOUR(d, 56), FOUR(d, 60), FOUR(d, 64), FOUR(d, 68), \
        FOUR(d, 72), FOUR(d, 76), FOUR(d, 80), FOUR(d, 84)
#define GLU_TEXT                                                                                                 \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, " \
    "%23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "  \
    "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, "  \
    "%65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, "  \
    "%86, %87} "
/* d += a b^T, m64n176k16. */
#define GLU(TYPE)                                                                                                       \
    asm volatile("wgmma.mma_async.sync.aligned.m64n176k16.f32." TYPE "." TYPE " " GLU_TEXT ", %88, %89, 1, 1, 1, 0, 0;" \
                 : GLU_SUMS(d)                                                                                          \
                 : "l"(a), "l"(b))
template <int BF16> __device__ __forceinline__ void multiply_glu(float (&d)[SUMS_N], uint64_t a, uint64_t b)
{
    if (BF16)
        GLU("bf16");
    else
        GLU("f16");
}

struct glu_smem {
    uint64_t full[STAGES], empty[STAGES];
};
struct glu_work { /* tiles of the block */
    unsigned char *ring;
    uint32_t cta_rank, first, step; /* index in the cluster; first tile and step between tiles */
};
struct glu_ring_pos {
    uint32_t stage, turn;
};
__device__ __forceinline__ void ring_advance(glu_ring_pos &at)
{
    if (++at.stage == STAGES) at.stage = 0, at.turn++;
}

/* First row of x, and first hidden unit, of a tile. */
__device__ __forceinline__ uint32_t row_of(const ck_glu &a, const glu_work &w, uint32_t tile)
{
    return (tile % a.pairs * 2 + w.cta_rank) * ROWS;
}
__device__ __forceinline__ uint32_t unit_of(const ck_glu &a, uint32_t tile) { return tile / a.pairs * UNITS; }

/* Producer thread: all panels of the block's tiles in order. The first block loads gate's weights
 * for both, the second one up's. */
__device__ __forceinline__ void load_panels(const ck_glu &a, const glu_work &w, glu_smem &s)
{
    glu_ring_pos at = {0, 0};
#pragma unroll 1
    for (uint32_t tile = w.first; tile < a.tiles; tile += w.step) {
        const uint32_t row = row_of(a, w, tile), unit = unit_of(a, tile) + w.cta_rank * a.units;
#pragma unroll 1
        for (uint32_t p = 0; p < a.panels; p++, ring_advance(at)) {
            const uint32_t to = smem_addr(w.ring + at.stage * STAGE), mbar = smem_addr(&s.full[at.stage]);
            /* The stage must be free in both blocks before either half is multicast. */
            if (at.turn) mbar_wait_cluster(&s.empty[at.stage], (at.turn - 1) & 1);
            mbar_expect_tx(&s.full[at.stage], STAGE);
            tma_load_2d(to, a.x, p * (PANEL / 2), row, mbar);
            asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
                         "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to + X_BYTES + w.cta_rank * W_BYTES),
                         "l"(&a.w), "r"(p * (PANEL / 2)), "r"(unit), "r"(mbar), "h"((uint16_t)3)
                         : "memory");
        }
    }
}

/* Releases a stage in both blocks, once per warp. Without cluster-scope release semantics, which
 * would wait for all outstanding memory operations: completed wgmma have finished reading. */
__device__ __forceinline__ void release_stage(glu_smem &s, uint32_t stage)
{
    if ((threadIdx.x & 31) < 2)
        asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(mapa(smem_addr(&s.empty[stage]), threadIdx.x & 31))
                     : "memory");
}

/* Accumulates a tile: 64 rows of gate's units, then of up's. */
template <int BF16>
__device__ __forceinline__ void multiply_tile(const ck_glu &a, const glu_work &w, glu_smem &s, glu_ring_pos &at,
                                              float (&d)[SUMS_N])
{
    const uint32_t ring = smem_addr(w.ring), own = threadIdx.x / 128 * (X_BYTES / 2);
    uint32_t before = 0;
#pragma unroll
    for (int i = 0; i < SUMS_N; i++) d[i] = 0;
#pragma unroll 1
    for (uint32_t p = 0; p < a.panels; p++) {
        const uint64_t x = tile_at(ring + at.stage * STAGE + own, 16), both = tile_at(ring + at.stage * STAGE + X_BYTES, 16);
        mbar_wait(&s.full[at.stage], at.turn & 1);
        /* Multiply a panel, release the one before it. */
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < PANEL / 16; k++) multiply_glu<BF16>(d, x + k * 2, both + k * 2);
        wgmma_commit();
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
        if (p) release_stage(s, before);
        before = at.stage;
        ring_advance(at);
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;" : GLU_SUMS(d)::"memory");
    release_stage(s, before);
}

__device__ __forceinline__ void group_sync() { asm volatile("bar.sync %0, 128;" ::"r"(1 + threadIdx.x / 128) : "memory"); }

/* Stores 64 rows of a tile through the warpgroup's buffer; 4-byte stores of a warp hit distinct
 * banks. */
template <int BF16>
__device__ __forceinline__ void store_tile(const ck_glu &a, unsigned char *smem, uint32_t row, uint32_t unit,
                                           const float (&d)[SUMS_N])
{
    const uint32_t lane = threadIdx.x & 31,
                   at = smem_addr(smem) + ((threadIdx.x % 128 / 32 * 16 + lane / 4) * OUT_WORDS + (lane & 3)) * 4;
    const bool first = threadIdx.x % 128 == 0;
    /* the previous tile's store has read the buffer */
    if (first) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    group_sync();
    /* Accumulators of gate and up of the same unit: SiLU(gate) * up. */
#pragma unroll
    for (int i = 0; i < SUMS_N / 2; i += 2) {
        /* fp16: x was divided by CK_F16_MANY; up's sums keep that factor, as y needs it */
        const float scale = BF16 ? 1 : CK_F16_MANY, x = d[i] * scale, y = d[i + 1] * scale;
        const float u = d[i + SUMS_N / 2], v = d[i + 1 + SUMS_N / 2];
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(at + i / 4 * 16 + (i & 2) * (4 * OUT_WORDS * 4)),
                     "r"(pack<BF16>(x * sigmoid_fast(x) * u, y * sigmoid_fast(y) * v))
                     : "memory");
    }
    /* One thread stores the tile by TMA. */
    fence_proxy_async();
    group_sync();
    if (!first) return;
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];\n"
                 "cp.async.bulk.commit_group;" ::"l"(&a.y),
                 "r"(unit / 2), "r"(row + threadIdx.x / 128 * 64), "r"(smem_addr(smem))
                 : "memory");
}

/* Kernel body. */
template <int BF16> __device__ __forceinline__ void glu_rows(const ck_glu &a)
{
    extern __shared__ unsigned char shared[];
    __shared__ glu_smem s;
    const glu_work w = {shared + (-smem_addr(shared) & 1023), cluster_cta_rank(), blockIdx.x / 2, gridDim.x / 2};
    unsigned char *out = w.ring + STAGES * STAGE;
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < STAGES; i++) mbar_init(&s.full[i], 1), mbar_init(&s.empty[i], 2 * WARPS);
        mbar_init_fence();
    }
    __syncthreads();
    /* Both blocks' mbarriers are initialised. */
    cluster_arrive();
    cluster_wait();
    /* Producer warp. */
    if (threadIdx.x >= 32 * WARPS) {
        if (threadIdx.x == 32 * WARPS) {
            wait_for_inputs();
            load_panels(a, w, s);
        }
        __syncwarp();
    } else {
        glu_ring_pos at = {0, 0};
#pragma unroll 1
        for (uint32_t tile = w.first; tile < a.tiles; tile += w.step) {
            float d[SUMS_N];
            multiply_tile<BF16>(a, w, s, at, d);
            store_tile<BF16>(a, out + threadIdx.x / 128 * OUT, row_of(a, w, tile), unit_of(a, tile), d);
        }
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
        __syncwarp();
    }
    cluster_arrive(); /* no block may exit while the other still arrives at its mbarriers */
    cluster_wait();
}

#else
template <int BF16> __device__ __forceinline__ void glu_rows(const ck_glu &) {} /* no wgmma: never launched */
#endif

extern "C" __global__ void __launch_bounds__(CK_GLU_THREADS, 1) glu_rows_f16(const __grid_constant__ ck_glu a) { glu_rows<0>(a); }
extern "C" __global__ void __launch_bounds__(CK_GLU_THREADS, 1) glu_rows_bf16(const __grid_constant__ ck_glu a)
{
    glu_rows<1>(a);
}
