/* k_cluster.cuh: blocks of a Hopper cluster: which one this is, where they meet, numbers into each other's shared memory, and the
 * gate that says when these have arrived. SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_K_CLUSTER_CUH
#define SG_UNIT_CUDA_K_CLUSTER_CUH

#include "k_bulk.cuh"

#if __CUDA_ARCH__ >= 900

__device__ __forceinline__ uint32_t cluster_block()
{
    uint32_t r;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
/* By one lane. The one that brings weights needs no cluster, but racecheck, as it seems, lets nobody pass who waits for it while
 * another thread neither waits nor has ended: so it waits when it has filled the ring once, before it waits for others itself. */
__device__ __forceinline__ void cluster_wait_alone() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }
/* A place in shared memory, as another block has it. */
__device__ __forceinline__ uint32_t there(uint32_t at, uint32_t block)
{
    uint32_t to;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(at), "r"(block));
    return to;
}
/* A number, or two, or four, to a place of another block, whose gate counts their bytes; there() finds both. Who waits at a gate
 * of its own block that only counts bytes does so with gate_wait: numbers and count are in the same shared memory, the count
 * moves when they are there, and all that a wait of the cluster's scope adds to the machine code is to empty the first-level
 * cache, where none of it lies. */
__device__ __forceinline__ void send_to(float v, uint32_t to, uint32_t gate)
{
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(to), "r"(__float_as_uint(v)),
                 "r"(gate)
                 : "memory");
}
__device__ __forceinline__ void send_four_to(float4 v, uint32_t to, uint32_t gate)
{
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1,%2,%3,%4}, [%5];" ::"r"(to),
                 "r"(__float_as_uint(v.x)), "r"(__float_as_uint(v.y)), "r"(__float_as_uint(v.z)), "r"(__float_as_uint(v.w)),
                 "r"(gate)
                 : "memory");
}
__device__ __forceinline__ void send_two_to(float x, float y, uint32_t to, uint32_t gate)
{
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1,%2}, [%3];" ::"r"(to),
                 "r"(__float_as_uint(x)), "r"(__float_as_uint(y)), "r"(gate)
                 : "memory");
}
/* A number to the same place of another block. */
__device__ __forceinline__ void send(float v, const float *to, const uint64_t *gate, uint32_t block)
{
    send_to(v, there(shared_at(to), block), there(shared_at(gate), block));
}
/* For gates at which other blocks arrive themselves, after ordinary stores. */
__device__ __forceinline__ void gate_wait_cluster(uint64_t *gate, uint32_t parity)
{
    uint32_t over = 0;
    while (!over)
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n}"
                     : "=r"(over)
                     : "r"(shared_at(gate)), "r"(parity)
                     : "memory");
}

#endif
#endif
