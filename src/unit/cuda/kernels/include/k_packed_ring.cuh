/* k_packed_ring.cuh: what the kernels of packed weights share (k_packed.cu, k_packed_rows.cu): the
 * columns of a warp, its ring of chunks in shared memory, and reads of codes and scales from it.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_K_PACKED_RING_CUH
#define SG_UNIT_CUDA_K_PACKED_RING_CUH

#include "k_epilogue.cuh"
#include "k_packed.cuh"

#if __CUDA_ARCH__ >= 900

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

/* Cursor of the warp's next load; lane 0 copies. */
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

/* Issues the copies of the next chunk of 16 rows, two blocks, into the next slot. By all lanes, after all of them have read the
 * slot; lane 0 copies. */
__device__ __forceinline__ void issue_chunk(const ck_packed &a, load_cursor &h, unsigned char *ring, uint64_t *full,
                                            const warp_part &w, uint32_t n_tiles)
{
    if (h.tile >= n_tiles) return;
    if ((threadIdx.x & 31) == 0) {
        unsigned char *to = ring + h.slot * a.s.stage_bytes;
        mbar_expect_tx(&full[h.slot], 2 * h.bytes);
        bulk_load_evict_first(to, h.from[0], h.bytes, &full[h.slot]);
        bulk_load_evict_first(to + h.bytes, h.from[1], h.bytes, &full[h.slot]);
    }
    h.from[0] += h.bytes, h.from[1] += h.bytes;
    if (++h.slot == a.s.stages) h.slot = 0;
    if (!--h.left) {
        h.tile += WARPS >> a.s.split_log;
        if (h.tile < n_tiles) find_row(a, h, w);
    }
}

/* Mbarriers of the warps' slots. */
struct ring_mbars {
    uint64_t full[WARPS][CK_PACKED_STAGES];
};
__device__ __forceinline__ void prepare_ring(ring_mbars &m)
{
    if (threadIdx.x < WARPS * CK_PACKED_STAGES) mbar_init(&m.full[0][threadIdx.x], 1);
    mbar_init_fence();
    __syncthreads();
}

/* Loads the planes of one row per group of four lanes from a block of eight rows. */
template <int KIND> __device__ __forceinline__ void load_codes(row_codes<KIND> &w, uint32_t block)
{
    typedef packed_form<KIND> F;
    constexpr int GROUPS = F::LOW / 2;
    uint32_t lane = threadIdx.x & 31, at = block + lane * 16;
#pragma unroll
    for (int i = 0; i < GROUPS; i++) w.low[i] = lds_128(at + i * 512);
    if (F::HIGH == 2) w.high = lds_128(at + GROUPS * 512);
    if (F::HIGH == 1) {
        uint2 v = lds_64(block + GROUPS * 512 + lane * 8);
        w.high = make_uint4(v.x, v.y, 0, 0);
    }
}

/* Addresses of the scales and factors of a lane's rows g and g + 8 in a slot. */
template <int KIND> struct slot_scales {
    uint32_t block, bytes, scales[2], factors[2]; /* bytes: of a row's scales */
    __device__ __forceinline__ slot_scales(uint32_t slot, uint32_t group)
    {
        typedef packed_form<KIND> F;
        uint32_t g = (threadIdx.x & 31) >> 2;
        bytes = F::SCALES == SCALE_PAIRS ? 1024 / group : F::SCALE_BYTES;
        block = 8 * (F::CODES + bytes + F::FACTOR_BYTES);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            scales[half] = slot + half * block + 8 * F::CODES + g * bytes;
            factors[half] = slot + half * block + 8 * (F::CODES + bytes) + g * F::FACTOR_BYTES;
        }
    }
};

/* Byte i of a word as an integer. */
__device__ __forceinline__ int byte_of(uint32_t v, int i) { return (int)__byte_perm(v, 0, 0x4440u | i); }
/* __byte_perm ignores the bit of the selector that extends the sign. */
__device__ __forceinline__ int signed_byte(uint32_t v, int i)
{
    int b;
    asm("prmt.b32 %0, %1, 0, %2;" : "=r"(b) : "r"(v), "r"(0x8880u + 0x1111u * i));
    return b;
}
__device__ __forceinline__ uint32_t lds_32(uint32_t at)
{
    uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at));
    return v;
}
__device__ __forceinline__ uint32_t lds_16(uint32_t at)
{
    uint16_t v;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(at));
    return v;
}
__device__ __forceinline__ float2 halves_of(uint32_t v) { return __half22float2(*reinterpret_cast<const __half2 *>(&v)); }

/* Four numbers of any alignment. */
__device__ __forceinline__ float4 four_at(const float *x, uint32_t e)
{
    if (reinterpret_cast<uintptr_t>(x) % 16 == 0) return float4_at(x, e);
    return make_float4(x[e], x[e + 1], x[e + 2], x[e + 3]);
}

#endif
#endif
