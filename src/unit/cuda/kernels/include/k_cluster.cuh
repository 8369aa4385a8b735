/* k_cluster.cuh: thread-block clusters of sm_90: the block's index in its cluster, cluster barriers,
 * and stores into the shared memory of another block (st.async), which complete on an mbarrier of
 * that block.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_K_CLUSTER_CUH
#define SG_UNIT_CUDA_K_CLUSTER_CUH

#include "k_bulk.cuh"

#if __CUDA_ARCH__ == 900

/* Index of this block in its cluster (cluster_ctarank). */
__device__ __forceinline__ uint32_t cluster_cta_rank()
{
    uint32_t r;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}
/* The two halves of the cluster barrier. Arrive is relaxed: it orders only the mbarrier
 * initialisation, which has its own fence. */
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
/* The wait for a single thread, used by the thread that loads weights. It does not need the barrier,
 * but compute-sanitizer racecheck apparently lets no thread pass a cluster barrier while another one
 * neither waits nor has exited; so it waits after its first round through the ring. */
__device__ __forceinline__ void cluster_wait_unaligned() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }
/* Maps a shared-memory address to the same location in block `cta` of the cluster. */
__device__ __forceinline__ uint32_t mapa(uint32_t at, uint32_t cta)
{
    uint32_t to;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(at), "r"(cta));
    return to;
}
/* Asynchronous stores of one, four or two floats to another block; both addresses come from mapa().
 * The bytes count on that block's mbarrier, where plain mbar_wait suffices: data and count are in
 * the same shared memory, so a wait at cluster scope would only add an invalidation of L1, which
 * caches none of it. */
__device__ __forceinline__ void st_async_f32(float v, uint32_t to, uint32_t mbar)
{
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(to), "r"(__float_as_uint(v)),
                 "r"(mbar)
                 : "memory");
}
__device__ __forceinline__ void st_async_f32x4(float4 v, uint32_t to, uint32_t mbar)
{
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1,%2,%3,%4}, [%5];" ::"r"(to),
                 "r"(__float_as_uint(v.x)), "r"(__float_as_uint(v.y)), "r"(__float_as_uint(v.z)), "r"(__float_as_uint(v.w)),
                 "r"(mbar)
                 : "memory");
}
__device__ __forceinline__ void st_async_f32x2(float x, float y, uint32_t to, uint32_t mbar)
{
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1,%2}, [%3];" ::"r"(to),
                 "r"(__float_as_uint(x)), "r"(__float_as_uint(y)), "r"(mbar)
                 : "memory");
}
/* Stores v to the same location in block `cta`. */
__device__ __forceinline__ void send_to_block(float v, const float *to, const uint64_t *mbar, uint32_t cta)
{
    st_async_f32(v, mapa(smem_addr(to), cta), mapa(smem_addr(mbar), cta));
}
/* Arrival at an mbarrier of another block (mapa), after reads of this block's shared memory. */
__device__ __forceinline__ void mbar_arrive_cluster(uint32_t mbar)
{
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(mbar) : "memory");
}
/* For mbarriers at which other blocks arrive after ordinary stores: wait with acquire at cluster
 * scope. */
__device__ __forceinline__ void mbar_wait_cluster(uint64_t *mbar, uint32_t parity)
{
    uint32_t over = 0;
    while (!over)
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n}"
                     : "=r"(over)
                     : "r"(smem_addr(mbar)), "r"(parity)
                     : "memory");
}

#endif
#endif
