/* k_packed_ring.cuh: what the kernels of packed weights share (k_packed.cu, k_packed_rows.cu): the
 * columns of a warp, and its ring of chunks in shared memory.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_K_PACKED_RING_CUH
#define SG_UNIT_CUDA_K_PACKED_RING_CUH

#include "k_epilogue.cuh"
#include "packed/k_packed_codes.cuh"

enum { ROWS = CK_PACKED_ROWS, CHUNK = CK_PACKED_CHUNK };

/* Columns of a warp, in chunks. */
struct warp_part {
    uint32_t first, n; /* chunks */
};
__device__ __forceinline__ warp_part part_of(const ck_packed &a, uint32_t part)
{
    uint32_t first = (a.chunks * part) >> a.s.split_log;
    return warp_part{a.chunk0 + first, ((a.chunks * (part + 1)) >> a.s.split_log) - first};
}

/* Cursor of the warp's next load. */
struct load_cursor {
    const unsigned char *from[2];     /* blocks of the first and the second eight rows of the tile */
    uint32_t bytes, tile, left, slot; /* of a block; number among the block's tiles; chunks left; ring slot */
};

__device__ __forceinline__ void find_row(const ck_packed &a, load_cursor &h, const warp_part &w)
{
    tile_of t = find_tile(a.s, blockIdx.x + h.tile * gridDim.x);
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
        /* Where the tile has no second eight rows the first are copied again. */
        uint32_t i = a.s.g.glu ? half : t.segment, more = !a.s.g.glu && half && t.n > 8 ? 8 : 0;
        const ck_segment &s = a.s.g.segment[i];
        h.bytes = a.of[i].block;
        h.from[half] = static_cast<const unsigned char *>(s.data) + (size_t)(s.at + t.row + more) * a.of[i].pitch +
                       w.first * h.bytes;
    }
    h.left = w.n;
}

/* Issues the copies of the next chunks of 16 rows, up to a.per of them, into the next slot: those of the first eight rows, then
 * those of the second. By all lanes, after all of them have read the slot. sm_90: lane 0 copies; a copy costs the copy engine the
 * same whatever its size, so small chunks go together. Other GPUs: each lane copies pieces of 16 bytes. */
__device__ __forceinline__ void issue_chunk(const ck_packed &a, load_cursor &h, unsigned char *ring, uint64_t *full,
                                            const warp_part &w, uint32_t n_tiles)
{
    if (h.tile >= n_tiles) return;
    uint32_t n = min(a.per, h.left), bytes = n * h.bytes, lane = threadIdx.x & 31;
    unsigned char *to = ring + h.slot * a.s.stage_bytes;
#if __CUDA_ARCH__ == 900
    if (lane == 0) {
        mbar_expect_tx(&full[h.slot], 2 * bytes);
        bulk_load_evict_first(to, h.from[0], bytes, &full[h.slot]);
        bulk_load_evict_first(to + bytes, h.from[1], bytes, &full[h.slot]);
    }
#else
    for (uint32_t i = lane * 16; i < bytes; i += 32 * 16) {
        cp_async_16(smem_addr(to + i), h.from[0] + i);
        cp_async_16(smem_addr(to + bytes + i), h.from[1] + i);
    }
    cp_async_arrive(&full[h.slot]);
#endif
    h.from[0] += bytes, h.from[1] += bytes;
    if (++h.slot == a.s.stages) h.slot = 0;
    if (!(h.left -= n)) {
        h.tile += WARPS >> a.s.split_log;
        if (h.tile < n_tiles) find_row(a, h, w);
    }
}

/* Mbarriers of the warps' slots; arrivals: of the lanes that copy. */
#if __CUDA_ARCH__ == 900
enum { RING_ARRIVALS = 1 };
#else
enum { RING_ARRIVALS = 32 };
#endif
struct ring_mbars {
    uint64_t full[WARPS][CK_PACKED_STAGES];
};
__device__ __forceinline__ void prepare_ring(ring_mbars &m)
{
    if (threadIdx.x < WARPS * CK_PACKED_STAGES) mbar_init(&m.full[0][threadIdx.x], RING_ARRIVALS);
    mbar_init_fence();
    __syncthreads();
}

/* Four numbers of any alignment. */
__device__ __forceinline__ float4 four_at(const float *x, uint32_t e)
{
    if (reinterpret_cast<uintptr_t>(x) % 16 == 0) return float4_at(x, e);
    return make_float4(x[e], x[e + 1], x[e + 2], x[e + 3]);
}

#endif
