/* k_tiles.cu: products of 16-bit weights with 2 to 16 rows on sm_90 (several sequences decoded
 * together), with norm, gated norm, gate * up, residual, activation, short convolution and argmax
 * fused as in k_stream.cu. Host: issue_tiles.c.
 *
 * A tile is 64 weight rows (with glu 32 of gate and 32 of up, interleaved by eight), a panel 64
 * columns of it. One thread loads panels by TMA into a ring per consumer warpgroup, the first ones
 * before griddepcontrol.wait. Warpgroups multiply them with wgmma straight from shared memory; x is
 * there as 32 rows of 16 bits, 16 rounded and 16 remainders (k_tiles.cuh), so fp32 rows cost two
 * times 16 columns and weights never pass through registers.
 *
 * Long rows, and products with few tiles, are shared by clusters of up to 8 blocks along k, a slice
 * of up to 1,024 columns each; every block finishes its share of a tile's rows from the sums that
 * the others send by st.async. Order of sums: columns ascending, rounded part and remainder
 * separately, then blocks in order; no row of x depends on the others. 352 threads: 8 consumer
 * warps, 1 producer warp, 2 helper warps. Shared memory: see struct tiles_work.
 * SPDX-License-Identifier: MIT */
#include "tiles/k_tiles_product.cuh"

#if HOPPER

/* d += a b^T, m64n32k16. */
#define NARROW(TYPE)                                                                                                           \
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32." TYPE "." TYPE                                                   \
                 " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, %16, %17, 1, 1, 1, 0, 0;"           \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), \
                   "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])                    \
                 : "l"(a), "l"(b))
template <int BF16> __device__ __forceinline__ void multiply_narrow(float (&d)[16], uint64_t a, uint64_t b)
{
    if (BF16)
        NARROW("bf16");
    else
        NARROW("f16");
}

/* Loads one panel. evict_first: with an L2 evict-first policy. */
__device__ __forceinline__ void load_panel(const ck_tensor_map &map, uint32_t row, uint32_t row_group, uint32_t panel,
                                           unsigned char *to, uint64_t *mbar, bool evict_first)
{
    mbar_expect_tx(mbar, STAGE);
    if (evict_first)
        asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
                     "[%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8;" ::"r"(smem_addr(to)),
                     "l"(&map), "r"(0), "r"(row), "r"(0), "r"(row_group), "r"(panel), "r"(smem_addr(mbar)),
                     "l"(l2_evict_first_policy())
                     : "memory");
    else
        asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                     "[%0], [%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(smem_addr(to)),
                     "l"(&map), "r"(0), "r"(row), "r"(0), "r"(row_group), "r"(panel), "r"(smem_addr(mbar))
                     : "memory");
}

/* Producer thread: all panels of the block's tiles in order, tiles of the two warpgroups
 * interleaved. Each warpgroup has a ring of its own, because phase parity distinguishes only two
 * rounds of an mbarrier. */
__device__ __forceinline__ void load_panels(const ck_tiles &a, const tiles_work &w, tiles_smem &s)
{
    const bool evict_first = a.g.rows >= 8; /* measured: 16 rows gain 0.6 to 1 %, 4 rows lose 0.5 % */
    uint32_t stage = 0, turn = 0;
#pragma unroll 1
    for (uint32_t i = 0; i < w.n_tiles; i += a.groups) {
        /* Both warpgroups' tiles advance together; the second may be missing. */
        const bool has_second = i + 1 < w.n_tiles && a.groups > 1;
        const wg_tile t[2] = {find_tile(a, w.first + i * w.step), find_tile(a, w.first + (i + has_second) * w.step)};
#pragma unroll 1
        for (uint32_t p = 0; p < w.panels; p++) {
#pragma unroll
            for (uint32_t g = 0; g < 2; g++) {
                const uint32_t at = g * a.stages + stage;
                if (g && !has_second) continue;
                if (turn) mbar_wait(&s.empty[at], (turn - 1) & 1);
                load_panel(a.map[t[g].segment], a.g.glu ? 0 : t[g].row, a.g.glu ? t[g].row / 8 : 0, w.cta_rank * w.panels + p,
                           w.ring + at * STAGE, &s.full[at], evict_first);
            }
            /* After the first round of the ring, see cluster_wait_unaligned. */
            if (++stage == a.stages) {
                stage = 0;
                if (!turn++ && a.cluster_log) cluster_wait_unaligned();
            }
        }
    }
}

/* Multiplies a whole tile, by the four warps of a warpgroup. */
template <int BF16>
__device__ __forceinline__ void multiply_tile(const ck_tiles &a, const tiles_work &w, tiles_smem &s, tiles_ring_pos &at,
                                              float (&d)[16])
{
    const uint64_t ring = tile_at(smem_addr(w.ring) + at.first * STAGE, 16);
    uint64_t x = tile_at(smem_addr(w.x), 16);
    uint32_t before = 0, full = smem_addr(s.full + at.first), empty = smem_addr(s.empty + at.first);
    asm volatile("" : "+r"(full), "+r"(empty)); /* keeps the addresses in registers */
#pragma unroll
    for (int i = 0; i < 16; i++) d[i] = 0;
#pragma unroll 1
    for (uint32_t p = 0; p < w.panels; p++) {
        /* Wait for the panel, issue four products, then release the panel before it. */
        mbar_wait_at(full + at.stage * 8, at.turn & 1);
        wgmma_fence();
        const uint64_t rows = tile_offset(ring, at.stage * STAGE);
#pragma unroll
        for (int k = 0; k < PANEL / 16; k++) multiply_narrow<BF16>(d, tile_offset(rows, k * 32), tile_offset(x, k * 32));
        x = tile_offset(x, X_PANEL);
        wgmma_commit();
        /* The products of the previous panel are done. */
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
        if (p && !(threadIdx.x & 31)) mbar_arrive_at(empty + before * 8);
        before = at.stage;
        if (++at.stage == a.stages) at.stage = 0, at.turn++;
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
                   "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])::"memory");
    if (!(threadIdx.x & 31)) mbar_arrive_at(empty + before * 8);
}

/* Weights of 16 bits: stages are panels, which wgmma reads itself. */
template <int IS_BF16> struct wide_weights {
    enum { BF16 = IS_BF16, READERS = 4, ORDERED = 0 };
    const ck_tiles &a;
    __device__ __forceinline__ uint32_t stage_bytes() const { return STAGE; }
    __device__ __forceinline__ void find_slice(tiles_work &w) const
    {
        w.slice = a.slice;
        w.column0 = w.cta_rank * a.slice;
        w.panels = a.slice / PANEL;
    }
    __device__ __forceinline__ void load(const tiles_work &w, tiles_smem &s) const { load_panels(a, w, s); }
    __device__ __forceinline__ void multiply(const tiles_work &w, tiles_smem &s, uint32_t, tiles_ring_pos &at, float (&d)[16]) const
    {
        multiply_tile<BF16>(a, w, s, at, d);
    }
    static __device__ __forceinline__ x_place place(uint32_t, int) { return x_place{0, 0, 0}; }
};
#define TILES(name, bf16)                                                                                              \
    extern "C" __global__ void __launch_bounds__(CK_TILES_THREADS, 2) name(const __grid_constant__ ck_tiles a)         \
    {                                                                                                                  \
        product(wide_weights<bf16>{a}, a);                                                                             \
    }
#else
#define TILES(name, bf16) /* no wgmma: never launched */ \
    extern "C" __global__ void __launch_bounds__(CK_TILES_THREADS, 2) name(const __grid_constant__ ck_tiles) {}
#endif
TILES(tiles_f16, 0)
TILES(tiles_bf16, 1)
