/* k_cluster_ring.cuh: the ring of weight stages in shared memory of the cluster kernels (k_cluster_ops.cuh). One producer thread
 * fills stages by bulk copies or TMA in the order of use; the 256 consumer threads read them and release them. Each stage has two
 * mbarriers: `full` (one arrival of the producer plus the bytes of its copies) and `empty` (one arrival per consumer thread).
 * Phase parity follows from the round: round r of a stage completes phase r of `full`.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_K_CLUSTER_RING_CUH
#define SG_UNIT_CUDA_K_CLUSTER_RING_CUH

#include "k_cluster_int8.cuh"
#include "k_spread.cuh"

/* Weight storage of the cluster kernels: template parameter KIND is 0 for fp16, 1 for bf16, KIND_Q8 for Q8_0. */
enum { KIND_Q8 = 2 };
#if __CUDA_ARCH__ == 900

/* Start of a row of a weight. */
__device__ __forceinline__ const unsigned char *row_at(const ck_cluster_weight &w, size_t row)
{
    return static_cast<const unsigned char *>(w.data) + row * w.pitch;
}

/* Geometry of the ring. */
struct ring {
    unsigned char *stages;
    /* bytes per stage; n stages; fills: stage fills in all; max_in_flight: limit on fills under way */
    uint32_t bytes, n, fills, max_in_flight;
    uint64_t *full, *empty;
};
struct ring_pos { /* position in the ring: stage and round */
    uint32_t stage, turn;
};
/* The stage will be filled again after this use. */
__device__ __forceinline__ bool ring_refilled(const ring &r, const ring_pos &at)
{
    return (at.turn + 1) * r.n + at.stage < r.fills;
}
__device__ __forceinline__ void ring_next(const ring &r, ring_pos &at)
{
    if (++at.stage == r.n) at.stage = 0, at.turn++;
}
/* State of the producer thread: its position, and the fill that must have arrived before the next
 * one is issued. */
struct ring_producer {
    ring_pos at, late;
    uint32_t asked;
};
/* Waits until the next stage is free and announces `bytes` for it; returns its address. */
__device__ __forceinline__ unsigned char *ring_acquire(const ring &r, ring_producer &in, uint32_t bytes)
{
    if (in.asked++ >= r.max_in_flight) {
        mbar_wait(&r.full[in.late.stage], in.late.turn & 1);
        ring_next(r, in.late);
    }
    if (in.at.turn) {
        if (in.at.turn == 1 && !in.at.stage) cluster_wait_unaligned();
        mbar_wait(&r.empty[in.at.stage], (in.at.turn - 1) & 1);
    }
    mbar_expect_tx(&r.full[in.at.stage], bytes);
    return r.stages + (size_t)in.at.stage * r.bytes;
}
/* Bytes of n rows of d columns in a stage, Q8_0 scales after them. */
template <int KIND> __device__ __forceinline__ uint32_t rows_bytes(uint32_t n, uint32_t d)
{
    return n * (KIND == KIND_Q8 ? d + d / 16 : 2 * d);
}
/* Offset of the second eight of 16 rows. */
template <int KIND> __device__ __forceinline__ uint32_t second_eight(uint32_t d)
{
    return rows_bytes<KIND>(8, d) + (KIND == KIND_Q8 ? PAD8 : 0);
}

/* Loads n rows. SHARED: other clusters read the same rows, so they are not marked evict-first. */
template <int KIND, int SHARED = 0>
__device__ __forceinline__ void load_rows(unsigned char *to, const ck_cluster_weight &w, uint32_t row, uint32_t n, uint32_t d,
                                          uint64_t *mbar)
{
    uint32_t bytes = n * d * (KIND == KIND_Q8 ? 1 : 2), scales = n * d / 16;
    if (SHARED)
        bulk_load(to, row_at(w, row), bytes, mbar);
    else
        bulk_load_evict_first(to, row_at(w, row), bytes, mbar);
    if (KIND == KIND_Q8)
        bulk_load(to + bytes, static_cast<const unsigned char *>(w.scales) + (size_t)row * (d / 16), scales, mbar);
}
/* Loads a TMA box starting at (column in 4-byte units, row). */
__device__ __forceinline__ void ring_load_box(const ring &r, ring_producer &in, const ck_tensor_map &map, uint32_t column,
                                              uint32_t row, uint32_t bytes)
{
    unsigned char *to = ring_acquire(r, in, bytes);
    tma_load_2d_evict_first(smem_addr(to), map, column, row, smem_addr(&r.full[in.at.stage]));
    ring_next(r, in.at);
}
/* Waits until the stage is full; returns its shared-memory address. */
__device__ __forceinline__ uint32_t ring_wait_full(const ring &r, const ring_pos &at)
{
    mbar_wait(&r.full[at.stage], at.turn & 1);
    return smem_addr(r.stages) + at.stage * r.bytes;
}
/* Releases the stage, by every consumer thread after its values are in registers (a load in flight
 * could see the next fill). */
__device__ __forceinline__ void ring_release(const ring &r, const ring_pos &at, bool again)
{
    if (again) mbar_arrive(&r.empty[at.stage]);
}
__device__ __forceinline__ void ring_release(const ring &r, const ring_pos &at) { ring_release(r, at, ring_refilled(r, at)); }
/* Number of stages from this one on that will be refilled. */
__device__ __forceinline__ uint32_t ring_refills_left(const ring &r, const ring_pos &at)
{
    uint32_t fill = at.turn * r.n + at.stage + r.n;
    return fill < r.fills ? r.fills - fill : 0;
}
/* Waits for a stage that this warp does not need, and releases it. */
__device__ __forceinline__ void skip_stage(const ring &r, ring_pos &at)
{
    mbar_wait(&r.full[at.stage], at.turn & 1);
    ring_release(r, at);
    ring_next(r, at);
}
/* Initialises the mbarriers of the ring, by one thread. */
__device__ __forceinline__ void ring_init(const ring &r)
{
    for (uint32_t i = 0; i < r.n; i++) {
        mbar_init(&r.full[i], 1);
        mbar_init(&r.empty[i], 32 * CONSUMER_WARPS);
    }
}

#endif
#endif
