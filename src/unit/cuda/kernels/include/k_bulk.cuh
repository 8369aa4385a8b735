/* k_bulk.cuh: thin wrappers around instructions: mbarriers, copies into shared memory by single threads
 * (cp.async, all GPUs), by the bulk copy engine and by TMA (sm_90), named barriers of the consumer
 * warps, and explicit shared-memory loads and stores.
 * An address parameter of type uint32_t is a shared-memory address (smem_addr).
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_K_BULK_CUH
#define SG_UNIT_CUDA_K_BULK_CUH

#include "k_mma.cuh"

/* mbarrier.init for the given number of arrivals per phase. */
__device__ __forceinline__ void mbar_init(uint64_t *mbar, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(smem_addr(mbar)), "r"(arrivals) : "memory");
}
/* Makes initialised mbarriers visible to the async proxy and to the cluster. */
__device__ __forceinline__ void mbar_init_fence()
{
#if __CUDA_ARCH__ == 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
/* Arrival at a ring stage's "empty" mbarrier. Every thread that read the stage arrives for itself:
 * one arrival per warp is not faster, and compute-sanitizer racecheck cannot follow it. */
__device__ __forceinline__ void mbar_arrive_at(uint32_t mbar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(mbar) : "memory");
}
__device__ __forceinline__ void mbar_arrive(uint64_t *mbar) { mbar_arrive_at(smem_addr(mbar)); }
/* Arrival of the producer, announcing `bytes` of asynchronous copies for this phase. */
__device__ __forceinline__ void mbar_expect_tx(uint64_t *mbar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem_addr(mbar)), "r"(bytes) : "memory");
}
/* Tests the phase once, without waiting; 1: completed. */
__device__ __forceinline__ uint32_t mbar_test_at(uint32_t mbar, uint32_t parity)
{
    uint32_t over;
    asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(over)
                 : "r"(mbar), "r"(parity)
                 : "memory");
    return over;
}
/* Waits until the phase of the given parity has completed. */
__device__ __forceinline__ void mbar_wait_at(uint32_t mbar, uint32_t parity)
{
    uint32_t over = 0;
    while (!over)
#if __CUDA_ARCH__ == 900
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, "
                     "1, 0, p;\n}"
                     : "=r"(over)
                     : "r"(mbar), "r"(parity)
                     : "memory");
#else
        over = mbar_test_at(mbar, parity);
#endif
}
__device__ __forceinline__ void mbar_wait(uint64_t *mbar, uint32_t parity) { mbar_wait_at(smem_addr(mbar), parity); }
/* Bulk copy of `bytes` (a multiple of 16) from global to shared memory; completes on mbar. */
__device__ __forceinline__ void bulk_load(void *to, const void *from, uint32_t bytes, uint64_t *mbar)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(smem_addr(to)),
                 "l"(from), "r"(bytes), "r"(smem_addr(mbar))
                 : "memory");
}
/* TMA load of a 2-D box starting at (column in 4-byte elements, row). */
__device__ __forceinline__ void tma_load_2d(uint32_t to, const ck_tensor_map &map, uint32_t column, uint32_t row, uint32_t mbar)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];" ::"r"(to),
                 "l"(&map), "r"(column), "r"(row), "r"(mbar)
                 : "memory");
}
/* Variants with an L2 evict-first policy, for weights, which are read once per token: they leave L2
 * before the lines of a prompt that runs concurrently. */
__device__ __forceinline__ uint64_t l2_evict_first_policy()
{
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
__device__ __forceinline__ void bulk_load_evict_first(void *to, const void *from, uint32_t bytes, uint64_t *mbar)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
            smem_addr(to)),
        "l"(from), "r"(bytes), "r"(smem_addr(mbar)), "l"(l2_evict_first_policy())
        : "memory");
}
__device__ __forceinline__ void tma_load_2d_evict_first(uint32_t to, const ck_tensor_map &map, uint32_t column, uint32_t row,
                                                        uint32_t mbar)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
                 "l"(&map), "r"(column), "r"(row), "r"(mbar), "l"(l2_evict_first_policy())
                 : "memory");
}
/* cp.async of eight bytes by the calling thread; cp_async_wait_all waits for this thread's copies. */
__device__ __forceinline__ void cp_async_8(uint32_t to, const void *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(from) : "memory");
}
/* cp.async of 16 bytes, past the L1 cache. */
__device__ __forceinline__ void cp_async_16(uint32_t to, const void *from)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
/* Arrives when this thread's copies until now are complete. */
__device__ __forceinline__ void cp_async_arrive(uint64_t *mbar)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(smem_addr(mbar)) : "memory");
}
__device__ __forceinline__ void cp_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }
/* Named barrier 1 over the 256 consumer threads; the warp that loads weights does not take part. */
__device__ __forceinline__ void consumers_sync() { asm volatile("bar.sync 1, 256;" ::: "memory"); }
/* Named barrier 2, split: what all consumers read before consumers_arrive_read may be overwritten
 * after consumers_wait_read. */
__device__ __forceinline__ void consumers_arrive_read() { asm volatile("bar.arrive 2, 512;" ::: "memory"); }
__device__ __forceinline__ void consumers_wait_read() { asm volatile("bar.sync 2, 512;" ::: "memory"); }

/* Vector loads and stores in shared memory as volatile assembly, so that the compiler keeps their
 * order. */
__device__ __forceinline__ uint4 lds_128(uint32_t at)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
    return v;
}
__device__ __forceinline__ uint2 lds_64(uint32_t at)
{
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at));
    return v;
}
__device__ __forceinline__ float4 lds_f32x4(uint32_t at)
{
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(at));
    return v;
}
__device__ __forceinline__ void sts_f32x2(uint32_t at, float x, float y)
{
    asm volatile("st.shared.v2.f32 [%0], {%1,%2};" ::"r"(at), "f"(x), "f"(y) : "memory");
}
__device__ __forceinline__ void sts_u32(uint32_t at, uint32_t v)
{
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(v) : "memory");
}
__device__ __forceinline__ float lds_f32(uint32_t at)
{
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(at));
    return v;
}

#endif
