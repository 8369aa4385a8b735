/* k_packed_gemm.cu: products of packed weights (k_packed.cuh) with many rows of x by wgmma, codes
 * dequantised to bf16 in registers: no widened copy. sm_90 (empty elsewhere). Host:
 * issue_packed_gemm.c, prompts of up to about 1,000 rows.
 *
 * A tile is 128 rows of W by X rows of x (112, 224 or 256). A cluster of two blocks shares it: each sums half
 * of the columns, they exchange half of the sums, and each stores its half of the rows of x, always as
 * first block plus second. So 64 tiles occupy 128 multiprocessors. Each of a block's two consumer
 * warpgroups has 64 rows of W as the left operand in registers; the right one is a panel of 64 columns
 * of x, loaded by TMA into a ring. Columns of x are stored in the order in which lanes have codes
 * (packed_x): a step of 16 columns is one word of four codes per lane and row. Codes of the next chunk
 * are loaded while this one is multiplied; a panel is dequantised while the one before it is
 * multiplied. Dequantising costs as many instructions per panel for 112 as for 224 rows, and with 112
 * rows as much time as the product. Sums are fp32, columns in the order of panels. Grid: one block per
 * multiprocessor, 384 threads; the third warpgroup loads and gives its registers to the others.
 * SPDX-License-Identifier: MIT */
#include "k_cluster.cuh"
#include "packed/k_packed.cuh"
#include "k_wgmma.cuh"

enum {
    W_ROWS = CK_PACKED_GEMM_W_ROWS,
    CONSUMERS = 256,
    PANEL = 64
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
#define SUMS_112(d) \
    FOUR(d, 0), FOUR(d, 4), FOUR(d, 8), FOUR(d, 12), FOUR(d, 16), FOUR(d, 20), FOUR(d, 24), \
    FOUR(d, 28), FOUR(d, 32), FOUR(d, 36), FOUR(d, 40), FOUR(d, 44), FOUR(d, 48), FOUR(d, 52)
#define SUMS_224(d) \
    FOUR(d, 0), FOUR(d, 4), FOUR(d, 8), FOUR(d, 12), FOUR(d, 16), FOUR(d, 20), FOUR(d, 24), \
    FOUR(d, 28), FOUR(d, 32), FOUR(d, 36), FOUR(d, 40), FOUR(d, 44), FOUR(d, 48), FOUR(d, 52), \
    FOUR(d, 56), FOUR(d, 60), FOUR(d, 64), FOUR(d, 68), FOUR(d, 72), FOUR(d, 76), FOUR(d, 80), \
    FOUR(d, 84), FOUR(d, 88), FOUR(d, 92), FOUR(d, 96), FOUR(d, 100), FOUR(d, 104), FOUR(d, 108)
#define SUMS_256(d) \
    FOUR(d, 0), FOUR(d, 4), FOUR(d, 8), FOUR(d, 12), FOUR(d, 16), FOUR(d, 20), FOUR(d, 24), \
    FOUR(d, 28), FOUR(d, 32), FOUR(d, 36), FOUR(d, 40), FOUR(d, 44), FOUR(d, 48), FOUR(d, 52), \
    FOUR(d, 56), FOUR(d, 60), FOUR(d, 64), FOUR(d, 68), FOUR(d, 72), FOUR(d, 76), FOUR(d, 80), \
    FOUR(d, 84), FOUR(d, 88), FOUR(d, 92), FOUR(d, 96), FOUR(d, 100), FOUR(d, 104), FOUR(d, 108), \
    FOUR(d, 112), FOUR(d, 116), FOUR(d, 120), FOUR(d, 124)
#define TEXT_112 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55"
#define TEXT_224 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define TEXT_256 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
/* d += a b^T, m64nXk16; LEFT, RIGHT: the numbers of the operands after the sums. */
#define MULTIPLY(X, LEFT, RIGHT)                                                                            \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #X "k16.f32.bf16.bf16 {" TEXT_##X "}, " LEFT ", " RIGHT \
                 ", 1, 1, 1, 0;"                                                                            \
                 : SUMS_##X(d)                                                                              \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
__device__ __forceinline__ void multiply_panel(float (&d)[56], const uint32_t *a, uint64_t b)
{
    MULTIPLY(112, "{%56, %57, %58, %59}", "%60");
}
__device__ __forceinline__ void multiply_panel(float (&d)[112], const uint32_t *a, uint64_t b)
{
    MULTIPLY(224, "{%112, %113, %114, %115}", "%116");
}
__device__ __forceinline__ void multiply_panel(float (&d)[128], const uint32_t *a, uint64_t b)
{
    MULTIPLY(256, "{%128, %129, %130, %131}", "%132");
}
__device__ __forceinline__ void wait_products(float (&d)[56])
{
    asm volatile("wgmma.wait_group.sync.aligned 0;" : SUMS_112(d)::"memory");
}
__device__ __forceinline__ void wait_products(float (&d)[112])
{
    asm volatile("wgmma.wait_group.sync.aligned 0;" : SUMS_224(d)::"memory");
}
__device__ __forceinline__ void wait_products(float (&d)[128])
{
    asm volatile("wgmma.wait_group.sync.aligned 0;" : SUMS_256(d)::"memory");
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

/* X: rows of x in a tile. */
template <int X> struct gemm_form {
    enum {
        STAGES = CK_PACKED_GEMM_STAGES(X),
        STAGE = X * PANEL * 2,
        SUMS_N = X / 2,    /* accumulators per thread */
        HALF = SUMS_N / 2, /* of these exchanged */
        EXCHANGED = HALF * CONSUMERS * 4
    };
};
template <int X> struct gemm_smem {
    uint64_t full[gemm_form<X>::STAGES], empty[gemm_form<X>::STAGES];
    uint64_t received, taken; /* sums of the other block; the other block has read those of this one */
};
template <int X> struct gemm_ring_pos {
    uint32_t stage, turn;
    __device__ __forceinline__ void advance()
    {
        if (++stage == gemm_form<X>::STAGES) stage = 0, turn++;
    }
};

/* A tile: rows of a segment of W, rows of x. Tiles of the same rows of W follow each other, so that the
 * codes are in the L2 cache. */
struct gemm_tile {
    uint32_t segment, row, x_row;
};
template <int X> __device__ __forceinline__ gemm_tile find_tile(const ck_packed_gemm &a, uint32_t tile)
{
    uint32_t s = 0, n = tile / a.x_tiles;
#pragma unroll
    for (int i = 1; i < CK_SEGMENTS; i++) s += n >= a.first[i];
    return gemm_tile{s, (n - a.first[s]) * W_ROWS, tile % a.x_tiles * X};
}
/* Chunks of block `rank` of the cluster: the first one has the odd chunk. */
__device__ __forceinline__ uint32_t chunks_of(const ck_packed_gemm &a, uint32_t rank) { return (a.chunks + 1 - rank) / 2; }

/* Producer thread: the panels of x of all tiles of the block. */
template <int X>
__device__ __forceinline__ void load_panels(const ck_packed_gemm &a, uint32_t rank, unsigned char *ring, gemm_smem<X> &s)
{
    gemm_ring_pos<X> at = {0, 0};
    const uint32_t first = rank ? chunks_of(a, 0) : 0, end = first + chunks_of(a, rank);
#pragma unroll 1
    for (uint32_t tile = blockIdx.x / 2; tile < a.tiles; tile += gridDim.x / 2) {
        uint32_t row = find_tile<X>(a, tile).x_row;
#pragma unroll 1
        for (uint32_t p = 4 * first; p < 4 * end; p++, at.advance()) {
            if (at.turn) mbar_wait(&s.empty[at.stage], (at.turn - 1) & 1);
            mbar_expect_tx(&s.full[at.stage], gemm_form<X>::STAGE);
            tma_load_2d(smem_addr(ring + at.stage * gemm_form<X>::STAGE), a.x, p * (PANEL / 2), row,
                        smem_addr(&s.full[at.stage]));
        }
    }
}

/* Stores the half `rank` of the rows of x of a tile: a thread has rows g and g + 8 of its warp and pairs of rows of x. */
template <int X>
__device__ __forceinline__ void store_half(const ck_packed_gemm &a, const gemm_tile &t, uint32_t rank, uint32_t row,
                                           const float *d)
{
    const auto &s = a.segment[t.segment];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t n = row + 8 * half;
        if (n >= s.n) continue;
        float bias = s.bias ? s.bias[n] : 0;
#pragma unroll
        for (int k = 0; k < gemm_form<X>::HALF / 4; k++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                uint32_t x = t.x_row + rank * (X / 2) + k * 8 + (threadIdx.x & 3) * 2 + e;
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

/* Sends the sums of the other block's rows of x, `theirs`, and adds its sums of this block's rows to `own`. turn: tiles before
 * this one; last: no tile follows. */
template <int X>
__device__ __forceinline__ void exchange(float *own, const float *theirs, uint32_t rank, unsigned char *parts, gemm_smem<X> &s,
                                         uint32_t turn, bool last)
{
    uint32_t at = smem_addr(parts) + threadIdx.x * 16, to = mapa(at, rank ^ 1), mbar = mapa(smem_addr(&s.received), rank ^ 1);
    if (turn) mbar_wait_cluster(&s.taken, (turn - 1) & 1);
    if (threadIdx.x == 0) mbar_expect_tx(&s.received, gemm_form<X>::EXCHANGED);
#pragma unroll
    for (int i = 0; i < gemm_form<X>::HALF; i += 4)
        st_async_f32x4(make_float4(theirs[i], theirs[i + 1], theirs[i + 2], theirs[i + 3]), to + i * (CONSUMERS * 4), mbar);
    mbar_wait(&s.received, turn & 1);
#pragma unroll
    for (int i = 0; i < gemm_form<X>::HALF; i += 4) {
        float4 v = lds_f32x4(at + i * (CONSUMERS * 4));
        own[i] += v.x, own[i + 1] += v.y, own[i + 2] += v.z, own[i + 3] += v.w;
    }
    if (!last) mbar_arrive_cluster(mapa(smem_addr(&s.taken), rank ^ 1));
}

/* Sums of `chunks` chunks from `first` on. */
template <int KIND, int X>
__device__ __forceinline__ void sum_chunks(const ck_packed_gemm &a, const gemm_tile &t, uint32_t row, uint32_t first, uint32_t chunks,
                                           unsigned char *ring, gemm_smem<X> &s, gemm_ring_pos<X> &at,
                                           float (&d)[gemm_form<X>::SUMS_N])
{
    const auto &seg = a.segment[t.segment];
    uint32_t lane = threadIdx.x & 31, before = 0;
    constexpr uint32_t BLOCK = 8 * (packed_form<KIND>::CODES + packed_form<KIND>::SCALE_BYTES + packed_form<KIND>::FACTOR_BYTES);
    const unsigned char *block[2];
#pragma unroll
    for (int half = 0; half < 2; half++)
        block[half] = static_cast<const unsigned char *>(seg.data) +
                      (size_t)((seg.at + min(row + 8 * half, seg.n - 1)) / 8) * 8 * a.pitch + (size_t)first * BLOCK;
    chunk_codes<KIND> now, next;
    now.load(block, lane / 4);
    uint32_t left[2][16];
#pragma unroll 1
    for (uint32_t c = 0; c < chunks; c++) {
        if (c + 1 < chunks) block[0] += BLOCK, block[1] += BLOCK;
        next.load(block, lane / 4);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            now.operands(i, left[i & 1]);
            mbar_wait(&s.full[at.stage], at.turn & 1);
            uint64_t x = tile_at(smem_addr(ring + at.stage * gemm_form<X>::STAGE), 16);
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
    wait_products(d);
    if (lane == 0) mbar_arrive(&s.empty[before]);
}

/* Consumer threads. */
template <int KIND, int X>
__device__ __forceinline__ void multiply_tiles(const ck_packed_gemm &a, uint32_t rank, unsigned char *ring, gemm_smem<X> &s)
{
    typedef gemm_form<X> F;
    const uint32_t first = rank ? chunks_of(a, 0) : 0, chunks = chunks_of(a, rank);
    gemm_ring_pos<X> at = {0, 0};
    uint32_t turn = 0;
#pragma unroll 1
    for (uint32_t tile = blockIdx.x / 2; tile < a.tiles; tile += gridDim.x / 2, turn++) {
        const gemm_tile t = find_tile<X>(a, tile);
        uint32_t row = t.row + threadIdx.x / 32 * 16 + (threadIdx.x & 31) / 4;
        bool last = tile + gridDim.x / 2 >= a.tiles;
        float d[F::SUMS_N];
#pragma unroll
        for (int i = 0; i < F::SUMS_N; i++) d[i] = 0;
        if (chunks) sum_chunks<KIND, X>(a, t, row, first, chunks, ring, s, at, d);
        if (rank) {
            exchange<X>(d + F::HALF, d, 1, ring + F::STAGES * F::STAGE, s, turn, last);
            store_half<X>(a, t, 1, row, d + F::HALF);
        } else {
            exchange<X>(d, d + F::HALF, 0, ring + F::STAGES * F::STAGE, s, turn, last);
            store_half<X>(a, t, 0, row, d);
        }
    }
}

template <int KIND, int X> __device__ __forceinline__ void packed_gemm(const ck_packed_gemm &a)
{
    extern __shared__ unsigned char shared[];
    __shared__ gemm_smem<X> s;
    unsigned char *ring = shared + (-smem_addr(shared) & 1023);
    uint32_t rank = cluster_cta_rank();
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < gemm_form<X>::STAGES; i++) mbar_init(&s.full[i], 1), mbar_init(&s.empty[i], 8);
        mbar_init(&s.received, 1), mbar_init(&s.taken, CONSUMERS);
        mbar_init_fence();
    }
    __syncthreads();
    cluster_arrive();
    cluster_wait();
    wait_for_inputs();
    if (threadIdx.x >= CONSUMERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x == CONSUMERS) load_panels<X>(a, rank, ring, s);
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    multiply_tiles<KIND, X>(a, rank, ring, s);
}

#else
template <int KIND, int X> __device__ __forceinline__ void packed_gemm(const ck_packed_gemm &) {} /* no wgmma: never launched */
#endif

#define GEMM(kind, x)                                                       \
    extern "C" __global__ void __launch_bounds__(CK_PACKED_GEMM_THREADS, 1) \
        packed_gemm_##kind##_##x(const __grid_constant__ ck_packed_gemm a)  \
    {                                                                       \
        packed_gemm<CK_P_##kind, x>(a);                                     \
    }
#define ALL_TILES(kind) GEMM(kind, 112) GEMM(kind, 224) GEMM(kind, 256)
ALL_TILES(Q4_0)
ALL_TILES(Q4_K)
ALL_TILES(Q5_K)
ALL_TILES(Q6_K)
