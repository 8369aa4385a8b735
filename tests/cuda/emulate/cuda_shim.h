/* cuda_shim.h: included before a kernel file that a C++ compiler translates for tests without a GPU: CUDA's qualifiers, indices
 * and the functions of CUDA that the training kernels use. emulate.cpp executes them.
 * SPDX-License-Identifier: MIT */
#ifndef SG_TESTS_CUDA_SHIM_H
#define SG_TESTS_CUDA_SHIM_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define __device__
#define __global__
#define __grid_constant__
#define __forceinline__ inline
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __shared__ static /* one block is executed at a time */

struct emulated_index { unsigned x, y, z; };
extern emulated_index threadIdx, blockIdx, blockDim, gridDim;

void __syncthreads();
/* Slots that the threads of a warp exchange numbers through: stores one, waits for the warp, returns that of thread `from`. */
void emulated_exchange(const void *mine, void *theirs, unsigned bytes, unsigned from_lane);
/* Products and loads of fragments on tensor cores: mma.m16n8k16 of bf16, ldmatrix.x4. */
void emulated_mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
void emulated_matrices(uint32_t (&r)[4], const uint16_t *row, bool turned);

template <class T> T __shfl_xor_sync(unsigned, T x, int mask)
{
    T y;
    emulated_exchange(&x, &y, sizeof x, (threadIdx.x % 32) ^ (unsigned)mask);
    return y;
}

template <class T> T __shfl_up_sync(unsigned, T x, unsigned by)
{
    T y;
    emulated_exchange(&x, &y, sizeof x, threadIdx.x % 32 < by ? threadIdx.x % 32 : threadIdx.x % 32 - by);
    return y;
}
template <class T> T __shfl_sync(unsigned, T x, unsigned from)
{
    T y;
    emulated_exchange(&x, &y, sizeof x, from);
    return y;
}
inline unsigned __ballot_sync(unsigned, int x)
{
    unsigned bits = x ? 1u << threadIdx.x % 32 : 0;
    for (int m = 16; m; m >>= 1) bits |= __shfl_xor_sync(0xffffffffu, bits, m);
    return bits;
}
inline int __ffs(int x) { return __builtin_ffs(x); }

#endif
