/* k_train_gemm.cu: products of fp32 matrices, for training. The sum over `inner` is ascending within a split, and splits are added in
 * ascending order.
 * SPDX-License-Identifier: MIT */
#include "k_train_tile.cuh"

template <int SIZE, bool AT, bool BT, int MODE> __device__ void gemm(const ct_gemm &a)
{
    train_tile<SIZE, AT, BT, MODE> t;
    uint32_t i0 = blockIdx.y * SIZE, j0 = blockIdx.x * SIZE, z = blockIdx.z;
    uint32_t k0 = z * a.part, k1 = k0 + a.part < a.inner ? k0 + a.part : a.inner;
    t.clear();
    t.add(a.a, a.lda, i0, a.rows, a.b, a.ldb, j0, a.cols, k0, k1);
    t.each(i0, a.rows, j0, a.cols, [&](uint32_t i, uint32_t j, float x) {
        if (a.splits > 1) {
            a.parts[((size_t)z * a.rows + i) * a.cols + j] = x;
            return;
        }
        float *c = a.c + i * a.ldc + j;
        *c = a.add ? fmaf(a.scale, x, *c) : a.scale * x;
    });
}

/* train_gemm_KIND_SIZE_MODE */
#define GEMM(kind, size, at, bt, mode)                                                                                           \
    extern "C" __global__ void __launch_bounds__(CT_THREADS) train_gemm_##kind##_##size##_##mode(const __grid_constant__ ct_gemm a) \
    {                                                                                                                           \
        gemm<size, at, bt, mode>(a);                                                                                            \
    }
#define GEMMS(mode)                                                                                                             \
    GEMM(nt, 64, false, true, mode)                                                                                             \
    GEMM(nn, 64, false, false, mode)                                                                                            \
    GEMM(tn, 64, true, false, mode)                                                                                             \
    GEMM(nt, 128, false, true, mode)                                                                                            \
    GEMM(nn, 128, false, false, mode)                                                                                           \
    GEMM(tn, 128, true, false, mode)
GEMMS(0)
GEMMS(1)
GEMMS(2)

extern "C" __global__ void train_sum(const __grid_constant__ ct_sum a)
{
    size_t n = (size_t)a.rows * a.cols, i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i >= n) return;
    float sum = 0;
    for (uint32_t z = 0; z < a.splits; z++) sum += a.parts[z * n + i];
    float *c = a.c + i / a.cols * a.ldc + i % a.cols;
    *c = a.add ? fmaf(a.scale, sum, *c) : a.scale * sum;
}
