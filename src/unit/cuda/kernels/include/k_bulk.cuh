/* k_bulk.cuh: Hopper's bulk copies into shared memory and the gates (mbarriers) that say when they have arrived.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_K_BULK_CUH
#define SG_UNIT_CUDA_K_BULK_CUH

#include "k_mma.cuh"

#if __CUDA_ARCH__ >= 900

__device__ __forceinline__ void gate_open(uint64_t *gate, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_at(gate)), "r"(arrivals) : "memory");
}
/* All gates that this thread opened are there for copies and for other blocks. */
__device__ __forceinline__ void gates_opened()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/* Of a stage of a ring that is read by loads every thread says for itself that it may be filled again: a lane that speaks for its
 * warp saves no time, and racecheck does not follow it. */
__device__ __forceinline__ void gate_arrive_at(uint32_t gate)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(gate) : "memory");
}
__device__ __forceinline__ void gate_arrive(uint64_t *gate) { gate_arrive_at(shared_at(gate)); }
__device__ __forceinline__ void gate_expect(uint64_t *gate, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_at(gate)), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void gate_wait_at(uint32_t gate, uint32_t parity)
{
    uint32_t over = 0;
    while (!over)
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, "
                     "1, 0, p;\n}"
                     : "=r"(over)
                     : "r"(gate), "r"(parity)
                     : "memory");
}
/* Asked once. */
__device__ __forceinline__ uint32_t gate_over_at(uint32_t gate, uint32_t parity)
{
    uint32_t over;
    asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(over)
                 : "r"(gate), "r"(parity)
                 : "memory");
    return over;
}
__device__ __forceinline__ void gate_wait(uint64_t *gate, uint32_t parity) { gate_wait_at(shared_at(gate), parity); }
__device__ __forceinline__ void bring(void *to, const void *from, uint32_t bytes, uint64_t *gate)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            shared_at(to)),
        "l"(from), "r"(bytes), "r"(shared_at(gate))
        : "memory");
}
/* A box of a matrix by its tensor map, from its column (of 4 bytes) and row on. */
__device__ __forceinline__ void bring_box(uint32_t to, const ck_tensor_map &map, uint32_t column, uint32_t row, uint32_t gate)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];" ::"r"(to),
                 "l"(&map), "r"(column), "r"(row), "r"(gate)
                 : "memory");
}
/* The same of weights, which come once a token: their lines leave the second-level cache before those of a prompt that is being
 * read beside this one. */
__device__ __forceinline__ uint64_t leaves_first()
{
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
__device__ __forceinline__ void bring_once(void *to, const void *from, uint32_t bytes, uint64_t *gate)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
            shared_at(to)),
        "l"(from), "r"(bytes), "r"(shared_at(gate)), "l"(leaves_first())
        : "memory");
}
__device__ __forceinline__ void bring_box_once(uint32_t to, const ck_tensor_map &map, uint32_t column, uint32_t row,
                                               uint32_t gate)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
                 "l"(&map), "r"(column), "r"(row), "r"(gate), "l"(leaves_first())
                 : "memory");
}
/* Eight bytes into shared memory, by the thread itself; those that it asked for have arrived. */
__device__ __forceinline__ void copy_eight(uint32_t to, const void *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void copies_arrived() { asm volatile("cp.async.wait_all;" ::: "memory"); }
/* The 256 threads that multiply; the warp that brings weights is not among them. */
__device__ __forceinline__ void consumers_meet() { asm volatile("bar.sync 1, 256;" ::: "memory"); }
/* The same in two steps: what all have read before the first may be overwritten behind the second. */
__device__ __forceinline__ void consumers_read() { asm volatile("bar.arrive 2, 512;" ::: "memory"); }
__device__ __forceinline__ void consumers_have_read() { asm volatile("bar.sync 2, 512;" ::: "memory"); }

__device__ __forceinline__ uint4 shared_piece(uint32_t at)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at));
    return v;
}
__device__ __forceinline__ uint2 shared_two(uint32_t at)
{
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at));
    return v;
}
__device__ __forceinline__ float4 shared_four(uint32_t at)
{
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(at));
    return v;
}
__device__ __forceinline__ void put_two_at(uint32_t at, float x, float y)
{
    asm volatile("st.shared.v2.f32 [%0], {%1,%2};" ::"r"(at), "f"(x), "f"(y) : "memory");
}
__device__ __forceinline__ void put_word(uint32_t at, uint32_t v)
{
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(v) : "memory");
}
__device__ __forceinline__ float shared_number(uint32_t at)
{
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(at));
    return v;
}

#endif
#endif
