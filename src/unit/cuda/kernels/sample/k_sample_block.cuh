/* k_sample_block.cuh: what one block of k_sample.cu does in shared memory: reductions of 64-bit integers, bins of a radix
 * descent, and a sorted list of candidates. All results are exact integers, so no order of threads matters.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_K_SAMPLE_BLOCK_CUH
#define SG_UNIT_CUDA_K_SAMPLE_BLOCK_CUH

#include "../../../sample_math.h"
#include "../include/k_common.cuh"
#include "ksample.h"

enum { SAMPLE_WARPS = CK_SAMPLE_THREADS / 32, BINS_EACH = CK_SAMPLE_BINS / CK_SAMPLE_THREADS };

/* Count and mass of each bin. The mass is in two words, since shared memory has no 64-bit addition. */
struct Bins {
    uint32_t count[CK_SAMPLE_BINS], low[CK_SAMPLE_BINS], high[CK_SAMPLE_BINS];
    uint64_t scratch[2 * SAMPLE_WARPS + 8];
    uint32_t found;
};
/* a: candidates; b: a second array. */
struct ListMemory {
    uint64_t a[CK_SAMPLE_LIST], b[CK_SAMPLE_LIST];
    uint64_t scratch[2 * SAMPLE_WARPS + 8];
    uint32_t n, at, found;
};

__device__ __forceinline__ uint64_t block_max(uint64_t x, uint64_t *scratch)
{
    for (int m = 16; m; m >>= 1) {
        uint64_t y = __shfl_xor_sync(0xffffffffu, x, m);
        x = x > y ? x : y;
    }
    __syncthreads();
    if ((threadIdx.x & 31) == 0) scratch[threadIdx.x >> 5] = x;
    __syncthreads();
    x = scratch[0];
    for (int i = 1; i < SAMPLE_WARPS; i++) x = x > scratch[i] ? x : scratch[i];
    return x;
}

__device__ __forceinline__ uint64_t block_sum_64(uint64_t x, uint64_t *scratch)
{
    for (int m = 16; m; m >>= 1) x += __shfl_xor_sync(0xffffffffu, x, m);
    __syncthreads();
    if ((threadIdx.x & 31) == 0) scratch[threadIdx.x >> 5] = x;
    __syncthreads();
    x = scratch[0];
    for (int i = 1; i < SAMPLE_WARPS; i++) x += scratch[i];
    return x;
}

/* Sum of x over the threads before this one; *total: over all. */
__device__ __forceinline__ uint64_t block_before(uint64_t x, uint64_t *scratch, uint64_t *total)
{
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    uint64_t sum = x, before = 0, all = 0;
    for (int d = 1; d < 32; d <<= 1) {
        uint64_t y = __shfl_up_sync(0xffffffffu, sum, d);
        if (lane >= (uint32_t)d) sum += y;
    }
    __syncthreads();
    if (lane == 31) scratch[warp] = sum;
    __syncthreads();
    for (uint32_t i = 0; i < SAMPLE_WARPS; i++) {
        if (i < warp) before += scratch[i];
        all += scratch[i];
    }
    *total = all;
    return before + sum - x;
}

__device__ __forceinline__ void bins_clear(Bins &b)
{
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < CK_SAMPLE_BINS; i += CK_SAMPLE_THREADS) b.count[i] = b.low[i] = b.high[i] = 0;
    __syncthreads();
}

__device__ __forceinline__ void bins_add(Bins &b, uint32_t bin, uint64_t mass)
{
    atomicAdd(&b.count[bin], 1u);
    if (!mass) return;
    uint32_t low = (uint32_t)mass, high = (uint32_t)(mass >> 32);
    if (low) high += atomicAdd(&b.low[bin], low) > ~low;
    if (high) atomicAdd(&b.high[bin], high);
}

/* Adds this block's bins to those of the job. */
__device__ __forceinline__ void bins_flush(Bins &b, uint32_t *count, uint64_t *mass)
{
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < CK_SAMPLE_BINS; i += CK_SAMPLE_THREADS) {
        if (!b.count[i]) continue;
        uint64_t m = (uint64_t)b.high[i] << 32 | b.low[i];
        atomicAdd(count + i, b.count[i]);
        if (m) atomicAdd((unsigned long long *)mass + i, (unsigned long long)m);
    }
}

struct Crossing {
    uint64_t count, mass;               /* bins_load: of all bins. bins_cross: up to the end of the bin ... */
    uint64_t count_before, mass_before; /* ... and before it */
    uint32_t bin;
};

/* The job's bins into shared memory; returns their sums. */
__device__ __forceinline__ Crossing bins_load(Bins &b, const uint32_t *count, const uint64_t *mass)
{
    Crossing all = {0, 0, 0, 0, 0};
    for (uint32_t i = threadIdx.x; i < CK_SAMPLE_BINS; i += CK_SAMPLE_THREADS) {
        uint64_t m = __ldcg(mass + i);
        uint32_t c = __ldcg(count + i);
        b.count[i] = c;
        b.low[i] = (uint32_t)m;
        b.high[i] = (uint32_t)(m >> 32);
        all.count += c;
        all.mass += m;
    }
    all.count = block_sum_64(all.count, b.scratch);
    all.mass = block_sum_64(all.mass, b.scratch);
    return all;
}

/* The first bin at which the cumulative count or mass reaches `need`; the last one that is not empty if none does. */
__device__ __forceinline__ Crossing bins_cross(Bins &b, int by_count, uint64_t need, const Crossing &all)
{
    uint64_t count = 0, mass = 0, unused;
    for (int k = 0; k < BINS_EACH; k++) {
        uint32_t i = threadIdx.x * BINS_EACH + k;
        count += b.count[i];
        mass += (uint64_t)b.high[i] << 32 | b.low[i];
    }
    uint64_t max = by_count ? all.count : all.mass;
    if (need > max) need = max;
    uint64_t count_before = block_before(count, b.scratch, &unused), mass_before = block_before(mass, b.scratch, &unused);
    uint64_t begin = by_count ? count_before : mass_before, add = by_count ? count : mass;
    __syncthreads();
    /* Exactly one thread has the border among its bins. */
    if (begin < need && begin + add >= need) {
        uint64_t at = begin;
        for (int k = 0; k < BINS_EACH; k++) {
            uint32_t i = threadIdx.x * BINS_EACH + k;
            uint64_t m = (uint64_t)b.high[i] << 32 | b.low[i], step = by_count ? b.count[i] : m;
            if (at + step >= need) {
                b.found = i;
                b.scratch[0] = count_before;
                b.scratch[1] = mass_before;
                b.scratch[2] = b.count[i];
                b.scratch[3] = m;
                break;
            }
            at += step;
            count_before += b.count[i];
            mass_before += m;
        }
    }
    __syncthreads();
    Crossing x = {b.scratch[0] + b.scratch[2], b.scratch[1] + b.scratch[3], b.scratch[0], b.scratch[1], b.found};
    __syncthreads();
    return x;
}

/* Sorts x [n] in shared memory, ascending; entries from n to the next power of two are overwritten. Equal entries occur only as
 * the largest value. */
__device__ __forceinline__ void sort_list(uint64_t *x, uint32_t n)
{
    uint32_t size = n > 1 ? 1u << (32 - __clz(n - 1)) : 1;
    for (uint32_t i = n + threadIdx.x; i < size; i += CK_SAMPLE_THREADS) x[i] = ~0ull;
    __syncthreads();
    for (uint32_t width = 2; width <= size; width <<= 1)
        for (uint32_t step = width >> 1; step; step >>= 1) {
            for (uint32_t p = threadIdx.x; p < size / 2; p += CK_SAMPLE_THREADS) {
                uint32_t i = 2 * step * (p / step) + p % step, k = i + step;
                uint64_t u = x[i], v = x[k];
                if ((u > v) == !(i & width)) {
                    x[i] = v;
                    x[k] = u;
                }
            }
            __syncthreads();
        }
}

/* Sum of weight(i) over the list. */
template <class F> __device__ __forceinline__ uint64_t list_sum(ListMemory &m, uint32_t n, F weight)
{
    uint64_t sum = 0;
    for (uint32_t i = threadIdx.x; i < n; i += CK_SAMPLE_THREADS) sum += weight(i);
    return block_sum_64(sum, m.scratch);
}

/* The first i at which the cumulative weight reaches `need`; n: none does. */
template <class F> __device__ __forceinline__ uint32_t list_cross(ListMemory &m, uint32_t n, uint64_t need, F weight)
{
    uint64_t sum = 0, total;
    uint32_t each = (n + CK_SAMPLE_THREADS - 1) / CK_SAMPLE_THREADS, from = threadIdx.x * each, end = from + each;
    if (end > n) end = n;
    for (uint32_t i = from; i < end; i++) sum += weight(i);
    uint64_t at = block_before(sum, m.scratch, &total);
    if (threadIdx.x == 0) m.found = n;
    __syncthreads();
    if (at < need && at + sum >= need)
        for (uint32_t i = from; i < end; i++)
            if ((at += weight(i)) >= need) {
                m.found = i;
                break;
            }
    __syncthreads();
    return m.found;
}

#endif
