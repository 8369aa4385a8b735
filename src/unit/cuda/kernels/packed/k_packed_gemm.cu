/* k_packed_gemm.cu: products of packed weights (k_packed.cuh) with many rows of x by wgmma, codes
 * dequantised to bf16 in registers: no widened copy. sm_90 (empty elsewhere). Host:
 * issue_packed_gemm.c, prompts of up to about 1,000 rows.
 *
 * A tile is 128 rows of W by 112 rows of x. Each of the two consumer warpgroups has 64 rows of W as
 * the left operand in registers; the right one is a panel of 64 columns of x, loaded by TMA into a
 * ring. Columns of x are stored in the order in which lanes have codes (packed_x): a step of 16
 * columns is one word of four codes per lane and row. Codes of the next chunk are loaded while this
 * one is multiplied; a panel is dequantised while the one before it is multiplied. Sums are fp32,
 * columns in the order of panels. Grid: one block per multiprocessor, 288 threads.
 * SPDX-License-Identifier: MIT */
#include "k_bulk.cuh"
#include "packed/k_packed.cuh"
#include "k_wgmma.cuh"

enum {
    W_ROWS = CK_PACKED_GEMM_W_ROWS,
    X_ROWS = CK_PACKED_GEMM_X_ROWS,
    STAGES = CK_PACKED_GEMM_STAGES,
    PANEL = 64,
    STAGE = X_ROWS * PANEL * 2,
    SUMS_N = X_ROWS / 2 /* accumulators per thread */
};

/* x in the order of operands: a thread writes eight columns of bf16. */
extern "C" __global__ void packed_x(const __grid_constant__ ck_packed_x a)
{
    wait_for_inputs();
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.words / 4) return;
    /* Bits of the position in a chunk: i (2), m, h, v, then T, u and the column of a pair. */
    uint32_t p = i % (CK_PACKED_CHUNK / 8);
    const uint32_t *from = static_cast<const uint32_t *>(a.x) + (size_t)(i / (CK_PACKED_CHUNK / 8)) * (CK_PACKED_CHUNK / 2) +
                           (32 * (p / 8) + 16 * (p / 4 % 2) + 4 * (p / 2 % 2) + 2 * (p % 2)) / 2;
    static_cast<uint4 *>(a.y)[i] = make_uint4(from[0], from[4], from[64], from[68]);
}

#if HOPPER

#define FOUR(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define GEMM_SUMS(d)                                                                                                  \
    FOUR(d, 0), FOUR(d, 4), FOUR(d, 8), FOUR(d, 12), FOUR(d, 16), FOUR(d, 20), FOUR(d, 24), FOUR(d, 28), FOUR(d, 32), \
        FOUR(d, 36), FOUR(d, 40), FOUR(d, 44), FOUR(d, 48), FOUR(d, 52)
/* d += a b^T, m64n112k16. */
__device__ __forceinline__ void multiply_panel(float (&d)[SUMS_N], const uint32_t *a, uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n112k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, "
                 "%23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "
                 "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55}, {%56, %57, %58, %59}, %60, 1, 1, 1, 0;"
                 : GEMM_SUMS(d)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

/* A chunk of two rows (g and g + 8 of the warp's 16): codes of this lane, scale bytes and factors. */
template <int KIND> struct chunk_codes {
    typedef packed_form<KIND> F;
    row_codes<KIND> w[2];
    uint4 scales[2];
    uint32_t factors[2];
    /* block: of the eight rows that row g, g + 8 belong to. */
    __device__ __forceinline__ void load(const unsigned char *const (&block)[2], uint32_t r)
    {
        uint32_t t = threadIdx.x & 3;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const unsigned char *low = block[half] + r * 64 + t * 16,
                                *high = block[half] + 256 * F::LOW + (r * 4 + t) * 8 * F::HIGH;
#pragma unroll
            for (int k = 0; k < F::LOW / 2; k++) w[half].low[k] = __ldg(reinterpret_cast<const uint4 *>(low + k * 512));
            if (F::HIGH == 2) w[half].high = __ldg(reinterpret_cast<const uint4 *>(high));
            if (F::HIGH == 1) {
                uint2 v = __ldg(reinterpret_cast<const uint2 *>(high));
                w[half].high = make_uint4(v.x, v.y, 0, 0);
            }
            scales[half] = __ldg(reinterpret_cast<const uint4 *>(block[half] + 8 * F::CODES) + r);
            if (F::FACTOR_BYTES)
                factors[half] = __ldg(reinterpret_cast<const uint32_t *>(block[half] + 8 * (F::CODES + F::SCALE_BYTES)) + r);
        }
    }
    /* Scale and offset of block `block`, 16 columns `m` of it. */
    __device__ __forceinline__ float2 scale(int half, uint32_t second, int i, int m) const
    {
        const uint4 &s = scales[half];
        if (F::SCALES == SCALE_F16) {
            uint32_t v = second ? (i < 2 ? s.z : s.w) : (i < 2 ? s.x : s.y);
            return make_float2(packed_half(i % 2 ? v >> 16 : v & 0xffffu, 0), 0);
        }
        if (F::SCALES == SCALE_K16) {
            uint32_t v = second ? (i < 2 ? s.z : s.w) : (i < 2 ? s.x : s.y);
            return make_float2(__uint_as_float(factors[half]) * (float)(signed char)(v >> 8 * (i % 2 * 2 + m)), 0);
        }
        float2 d = __half22float2(*reinterpret_cast<const __half2 *>(&factors[half]));
        uint32_t v = second ? s.y : s.x, n = second ? s.w : s.z;
        return make_float2(d.x * (float)(v >> 8 * i & 255), -d.y * (float)(n >> 8 * i & 255));
    }
    /* Left operands of panel i (0 to 3): four steps of 16 columns. */
    __device__ __forceinline__ void operands(int i, uint32_t (&to)[16]) const
    {
        constexpr float UNIT = 1.0f / (1 << F::SHIFT);
        uint32_t second = threadIdx.x >> 1 & 1;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t words[4];
            w[half].block(i, words);
#pragma unroll
            for (int k = 0; k < 4; k++) {
                float2 s = scale(half, second, i, k / 2);
                float v[4];
#pragma unroll
                for (int n = 0; n < 4; n++) v[n] = fmaf((float)(signed char)(words[k] >> 8 * n), s.x * UNIT, s.y);
                to[4 * k + half] = pack<1>(v[0], v[1]);
                to[4 * k + half + 2] = pack<1>(v[2], v[3]);
            }
        }
    }
};

struct gemm_smem {
    uint64_t full[STAGES], empty[STAGES];
};
struct gemm_ring_pos {
    uint32_t stage, turn;
    __device__ __forceinline__ void advance()
    {
        if (++stage == STAGES) stage = 0, turn++;
    }
};

/* A tile: rows of a segment of W, rows of x. Tiles of the same rows of W follow each other, so that the
 * codes are in the L2 cache. */
struct gemm_tile {
    uint32_t segment, row, x_row;
};
__device__ __forceinline__ gemm_tile find_tile(const ck_packed_gemm &a, uint32_t tile)
{
    uint32_t s = 0, n = tile / a.x_tiles;
#pragma unroll
    for (int i = 1; i < CK_SEGMENTS; i++) s += n >= a.first[i];
    return gemm_tile{s, (n - a.first[s]) * W_ROWS, tile % a.x_tiles * X_ROWS};
}

/* Producer thread: the panels of x of all tiles of the block. */
__device__ __forceinline__ void load_panels(const ck_packed_gemm &a, unsigned char *ring, gemm_smem &s)
{
    gemm_ring_pos at = {0, 0};
#pragma unroll 1
    for (uint32_t tile = blockIdx.x; tile < a.tiles; tile += gridDim.x) {
        uint32_t row = find_tile(a, tile).x_row;
#pragma unroll 1
        for (uint32_t p = 0; p < 4 * a.chunks; p++, at.advance()) {
            if (at.turn) mbar_wait(&s.empty[at.stage], (at.turn - 1) & 1);
            mbar_expect_tx(&s.full[at.stage], STAGE);
            tma_load_2d(smem_addr(ring + at.stage * STAGE), a.x, p * (PANEL / 2), row, smem_addr(&s.full[at.stage]));
        }
    }
}

/* Stores a tile: thread has rows g and g + 8 of its warp and pairs of rows of x. */
__device__ __forceinline__ void store_tile(const ck_packed_gemm &a, const gemm_tile &t, uint32_t row, const float (&d)[SUMS_N])
{
    const auto &s = a.segment[t.segment];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t n = row + 8 * half;
        if (n >= s.n) continue;
        float bias = s.bias ? s.bias[n] : 0;
#pragma unroll
        for (int k = 0; k < SUMS_N / 4; k++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                uint32_t x = t.x_row + k * 8 + (threadIdx.x & 3) * 2 + e;
                if (x >= a.rows) continue;
                float v = d[4 * k + 2 * half + e] + bias;
                if (s.residual.p) v += s.residual.p[(size_t)x * s.residual.stride + n];
                if (a.out16)
                    reinterpret_cast<__nv_bfloat16 *>(s.y.p)[(size_t)x * s.y.stride + n] = __float2bfloat16_rn(v);
                else
                    s.y.p[(size_t)x * s.y.stride + n] = v;
            }
    }
}

template <int KIND>
__device__ __forceinline__ void consume_tile(const ck_packed_gemm &a, const gemm_tile &t, unsigned char *ring, gemm_smem &s,
                                             gemm_ring_pos &at)
{
    const auto &seg = a.segment[t.segment];
    uint32_t lane = threadIdx.x & 31, row = t.row + threadIdx.x / 32 * 16 + lane / 4, before = 0;
    constexpr uint32_t BLOCK = 8 * (packed_form<KIND>::CODES + packed_form<KIND>::SCALE_BYTES + packed_form<KIND>::FACTOR_BYTES);
    const unsigned char *block[2];
#pragma unroll
    for (int half = 0; half < 2; half++)
        block[half] = static_cast<const unsigned char *>(seg.data) +
                      (size_t)((seg.at + min(row + 8 * half, seg.n - 1)) / 8) * 8 * a.pitch;
    float d[SUMS_N];
#pragma unroll
    for (int i = 0; i < SUMS_N; i++) d[i] = 0;
    chunk_codes<KIND> now, next;
    now.load(block, lane / 4);
    uint32_t left[2][16];
#pragma unroll 1
    for (uint32_t c = 0; c < a.chunks; c++) {
        if (c + 1 < a.chunks) block[0] += BLOCK, block[1] += BLOCK;
        next.load(block, lane / 4);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            now.operands(i, left[i & 1]);
            mbar_wait(&s.full[at.stage], at.turn & 1);
            uint64_t x = tile_at(smem_addr(ring + at.stage * STAGE), 16);
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < 4; k++) multiply_panel(d, left[i & 1] + 4 * k, x + k * 2);
            wgmma_commit();
            asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
            if ((c || i) && lane == 0) mbar_arrive(&s.empty[before]);
            before = at.stage;
            at.advance();
        }
        now = next;
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;" : GEMM_SUMS(d)::"memory");
    if (lane == 0) mbar_arrive(&s.empty[before]);
    store_tile(a, t, row, d);
}

template <int KIND> __device__ __forceinline__ void packed_gemm(const ck_packed_gemm &a)
{
    extern __shared__ unsigned char shared[];
    __shared__ gemm_smem s;
    unsigned char *ring = shared + (-smem_addr(shared) & 1023);
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < STAGES; i++) mbar_init(&s.full[i], 1), mbar_init(&s.empty[i], 8);
        mbar_init_fence();
    }
    __syncthreads();
    wait_for_inputs();
    if (threadIdx.x >= 256) {
        if (threadIdx.x == 256) load_panels(a, ring, s);
        return;
    }
    gemm_ring_pos at = {0, 0};
#pragma unroll 1
    for (uint32_t tile = blockIdx.x; tile < a.tiles; tile += gridDim.x) consume_tile<KIND>(a, find_tile(a, tile), ring, s, at);
}

#else
template <int KIND> __device__ __forceinline__ void packed_gemm(const ck_packed_gemm &) {} /* no wgmma: never launched */
#endif

#define GEMM(kind)                                                          \
    extern "C" __global__ void __launch_bounds__(CK_PACKED_GEMM_THREADS, 1) \
        packed_gemm_##kind(const __grid_constant__ ck_packed_gemm a)        \
    {                                                                       \
        packed_gemm<CK_P_##kind>(a);                                        \
    }
GEMM(Q4_0)
GEMM(Q4_K)
GEMM(Q5_K)
GEMM(Q6_K)
