/* k_packed_few.cu: small products of packed weights (k_packed.cuh) with 2 to 16 rows of x on tensor cores, codes exactly as
 * bf16: Q4_0, Q4_K, Q5_K, Q6_K. All architectures. Large ones: k_packed_batch.cu. Weights are read and converted once for all
 * rows. Host: issue_packed_batch.c.
 *
 * x is given as two bf16 matrices, rounded value and remainder (k_batch.cu). A warp has 16 or 32 weight rows. 1 << split_log
 * warps share rows and take half chunks in turn; the other warps of the block have other rows, and find x in the L1 cache: x
 * is several times the weights of one warp, so that reading it from L2 would be the limit. A warp's loads of the next half
 * chunk are in flight while it multiplies the one before, the first are requested before griddepcontrol.wait. In a half chunk
 * a lane has codes of two of four blocks of 32 columns, the lane two beside it those of the other two: they exchange halves,
 * so that a product m16n8k16 has one block only, or 16 columns of it where these have a scale. Its sum is multiplied by the
 * scale in fp32. Offsets multiply the sums of x, which come from a product with ones. Sums: half chunks of a warp ascending,
 * then warps in order; no row of x depends on the others.
 * SPDX-License-Identifier: MIT */
#include "k_mma.cuh"
#include "packed/k_packed.cuh"

enum { WARPS = CK_BATCH_THREADS / 32, ONES = 0x3f803f80 };

/* A lane's codes of one row in half a chunk: a word of 8 codes per block and 16 columns; high bits of the same; scales of the
 * chunk and their factors. */
struct half_chunk {
    uint4 low, scales;
    uint2 high;
    uint32_t factors;
};

/* 16 bytes that no other block reads. */
__device__ __forceinline__ uint4 load_once(const unsigned char *p)
{
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

/* at: the eight rows' block of the chunk; p: which half of it. */
template <int KIND> __device__ __forceinline__ void load_half(half_chunk &w, const unsigned char *at, uint32_t p)
{
    typedef packed_form<KIND> F;
    const uint32_t lane = threadIdx.x & 31, g = lane >> 2;
    const unsigned char *high = at + 256 * F::LOW, *scales = at + 8 * F::CODES + g * 16;
    w.low = load_once(at + p * 512 + lane * 16);
    if (F::HIGH == 1) w.high.x = __ldg(reinterpret_cast<const uint32_t *>(high + lane * 8 + p * 4));
    if (F::HIGH == 2) w.high = __ldg(reinterpret_cast<const uint2 *>(high + lane * 16 + p * 8));
    w.scales = __ldg(reinterpret_cast<const uint4 *>(scales));
    w.factors = F::FACTOR_BYTES ? __ldg(reinterpret_cast<const uint32_t *>(at + 8 * (F::CODES + 16) + g * 4)) : 0;
}

/* Four bytes `v`, below 64, minus `zero` as two pairs of bf16: 128 + v is exact in bf16. */
__device__ __forceinline__ void widen(uint32_t v, uint32_t zero, uint32_t &first, uint32_t &second)
{
    uint32_t a = __byte_perm(v, 0x43434343u, 0x4140), b = __byte_perm(v, 0x43434343u, 0x4342);
    __nv_bfloat162 z = *reinterpret_cast<__nv_bfloat162 *>(&zero), x = __hsub2(*reinterpret_cast<__nv_bfloat162 *>(&a), z),
                   y = __hsub2(*reinterpret_cast<__nv_bfloat162 *>(&b), z);
    first = *reinterpret_cast<uint32_t *>(&x);
    second = *reinterpret_cast<uint32_t *>(&y);
}

/* Codes of blocks i and i + 4 of the chunk (q: i modulo 2): to[block][product] has those of four columns, as two words of bf16.
 * Without FINE lane t has columns 8 t to 8 t + 7 of the block; with it columns 8 (t % 2) + 4 (t / 2) on of each 16. */
template <int KIND> __device__ __forceinline__ void codes_of(const half_chunk &w, int q, uint32_t (&to)[2][2][2])
{
    typedef packed_form<KIND> F;
    const uint32_t nibbles = 0x0f0f0f0fu;
    const bool upper = threadIdx.x & 2;
    /* 128, and what signed codes are moved by to become positive. */
    const uint32_t zero = KIND == CK_P_Q4_0 ? 0x43084308u : KIND == CK_P_Q6_K ? 0x43204320u : 0x43004300u;
    uint32_t one = q ? w.low.z : w.low.x, two = q ? w.low.w : w.low.y, keep[2], high[2] = {0, 0};
    if (F::FINE) { /* by words of four codes: the first ones of both 16 columns, or the second ones */
        uint32_t a = (one & nibbles) | (two & nibbles) << 4;
        two = (one >> 4 & nibbles) | (two & ~nibbles);
        one = a;
    }
    uint32_t other = __shfl_xor_sync(0xffffffffu, upper ? one : two, 2);
    keep[0] = upper ? other : one;
    keep[1] = upper ? two : other;
    if (F::HIGH) {
        uint32_t own = F::HIGH == 2 && q ? w.high.y : w.high.x;
        other = __shfl_xor_sync(0xffffffffu, own, 2);
        high[0] = (upper ? other : own) >> (upper ? 2 : 0);
        high[1] = (upper ? own : other) >> (upper ? 2 : 0);
    }
#pragma unroll
    for (int b = 0; b < 2; b++) {
        uint32_t v[2] = {keep[b], keep[b] >> 4};
#pragma unroll
        for (int k = 0; k < 2; k++) {
            v[k] &= nibbles;
            if (KIND == CK_P_Q4_0) v[k] ^= 0x08080808u;
            if (F::HIGH == 1) v[k] |= (high[b] >> (4 * q + k) & 0x01010101u) << 4;
            if (F::HIGH == 2) v[k] |= (high[b] >> 4 * k & 0x03030303u) << 4;
            if (KIND == CK_P_Q6_K) v[k] ^= 0x20202020u;
            widen(v[k], zero, to[b][k][0], to[b][k][1]);
        }
    }
}

/* Scale of product k of block 4 b + 2 p + q of the chunk, and its offset. */
template <int KIND> __device__ __forceinline__ float2 scale_at(const half_chunk &w, uint32_t p, int q, int b, int k)
{
    typedef packed_form<KIND> F;
    const uint4 &s = w.scales;
    if (F::SCALES == SCALE_F16) {
        uint32_t pair = b ? (p ? s.w : s.z) : p ? s.y : s.x;
        return make_float2(packed_half(q ? pair >> 16 : pair & 0xffffu, 0), 0);
    }
    if (F::SCALES == SCALE_K16) {
        uint32_t word = b ? (p ? s.w : s.z) : p ? s.y : s.x;
        return make_float2(__uint_as_float(w.factors) * (float)(signed char)(word >> 8 * (2 * q + k)), 0);
    }
    const float2 d = make_float2(packed_half(w.factors & 0xffffu, 0), packed_half(w.factors >> 16, 0));
    const uint32_t shift = 16 * p + 8 * q;
    return make_float2(d.x * (float)((b ? s.y : s.x) >> shift & 255u), -d.y * (float)((b ? s.w : s.z) >> shift & 255u));
}

/* x of one block and eight rows: operands of both products. */
template <int KIND> __device__ __forceinline__ void load_x(const uint16_t *x, uint32_t column, uint32_t (&to)[2][2])
{
    const uint32_t t = threadIdx.x & 3;
    if (packed_form<KIND>::FINE) {
        x += column + t % 2 * 8 + t / 2 * 4;
        uint2 a = *reinterpret_cast<const uint2 *>(x), b = *reinterpret_cast<const uint2 *>(x + 16);
        to[0][0] = a.x, to[0][1] = a.y, to[1][0] = b.x, to[1][1] = b.y;
        return;
    }
    uint4 a = *reinterpret_cast<const uint4 *>(x + column + t * 8);
    to[0][0] = a.x, to[0][1] = a.y, to[1][0] = a.z, to[1][1] = a.w;
}

/* Multiplies half a chunk, whose first column is `column`, with all rows of x. */
template <int KIND, int MT, int NT>
__device__ __forceinline__ void use_half(const ck_packed_few &a, const half_chunk (&w)[MT][2], uint32_t p, uint32_t column,
                                         float (&acc)[NT][MT][4])
{
    typedef packed_form<KIND> F;
    const uint32_t g = (threadIdx.x & 31) >> 2;
#pragma unroll
    for (int q = 0; q < 2; q++) {
        uint32_t code[MT][2][2][2][2]; /* [tile][row g, g + 8][block][product][word] */
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int h = 0; h < 2; h++) codes_of<KIND>(w[m][h], q, code[m][h]);
#pragma unroll
        for (int b = 0; b < 2; b++) {
            const uint32_t at = column + 32 * (4 * b + q) + 64 * p;
            uint32_t x[NT][2][2][2]; /* [rows][part][product][word] */
            float of_x[NT][4] = {};
            const uint32_t ones[4] = {ONES, ONES, ONES, ONES};
#pragma unroll
            for (int n = 0; n < NT; n++) {
                load_x<KIND>(static_cast<const uint16_t *>(a.x) + (size_t)(n * 8 + g) * a.k, at, x[n][0]);
                load_x<KIND>(static_cast<const uint16_t *>(a.low) + (size_t)(n * 8 + g) * a.k, at, x[n][1]);
            }
#pragma unroll
            for (int n = 0; n < NT && F::OFFSETS; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) mma<1>(of_x[n], ones, x[n][i / 2][i % 2][0], x[n][i / 2][i % 2][1]);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                float sum[NT][2][4] = {}; /* without FINE both products have one sum */
#pragma unroll
                for (int part = 0; part < 2; part++)
#pragma unroll
                    for (int k = 0; k < 2; k++) {
                        const uint32_t operand[4] = {code[m][0][b][k][0], code[m][1][b][k][0], code[m][0][b][k][1],
                                                     code[m][1][b][k][1]};
#pragma unroll
                        for (int n = 0; n < NT; n++)
                            mma<1>(sum[n][F::FINE ? k : 0], operand, x[n][part][k][0], x[n][part][k][1]);
                    }
#pragma unroll
                for (int h = 0; h < 2; h++)
#pragma unroll
                    for (int k = 0; k < (F::FINE ? 2 : 1); k++) {
                        const float2 s = scale_at<KIND>(w[m][h], p, q, b, k);
#pragma unroll
                        for (int n = 0; n < NT; n++)
#pragma unroll
                            for (int i = 0; i < 2; i++) {
                                float &to = acc[n][m][2 * h + i];
                                to = fmaf(s.x, sum[n][k][2 * h + i], to);
                                if (F::OFFSETS) to = fmaf(s.y, of_x[n][i], to);
                            }
                    }
            }
        }
    }
}

/* The warp's half chunks of all columns. rows: blocks of eight rows of each tile, of the first chunk. */
template <int KIND, int MT, int NT>
__device__ __forceinline__ void multiply_rows(const ck_packed_few &a, const unsigned char *const (&rows)[MT][2],
                                              float (&acc)[NT][MT][4])
{
    constexpr uint32_t BLOCK = 8 * (packed_form<KIND>::CODES + 16 + packed_form<KIND>::FACTOR_BYTES);
    const uint32_t halves = a.k / (CK_PACKED_CHUNK / 2);
    const uint32_t split = 1u << a.split_log;
    uint32_t u = (threadIdx.x >> 5) & (split - 1), p = u & 1; /* the same half for all of a warp's */
    half_chunk now[MT][2], next[MT][2];
#pragma unroll
    for (int i = 0; i < 2 * MT && u < halves; i++) load_half<KIND>(now[i / 2][i % 2], rows[i / 2][i % 2] + u / 2 * BLOCK, p);
    wait_for_inputs();
#pragma unroll 2
    for (; u < halves; u += split) {
        if (u + split < halves)
#pragma unroll
            for (int i = 0; i < 2 * MT; i++)
                load_half<KIND>(next[i / 2][i % 2], rows[i / 2][i % 2] + (size_t)((u + split) / 2) * BLOCK, p);
        use_half<KIND, MT, NT>(a, now, p, u / 2 * CK_PACKED_CHUNK, acc);
#pragma unroll
        for (int i = 0; i < 2 * MT; i++) now[i / 2][i % 2] = next[i / 2][i % 2];
    }
}

/* Finishes one output: the sums of row r of the warps from `part` on, `row` of segment `to`, and row n of x. */
template <int MT, int NT>
__device__ __forceinline__ void finish_output(const ck_packed_few &a, const ck_segment &to, uint32_t row, uint32_t r,
                                              uint32_t n, const float (*part)[16 * MT][NT * 8 + 1])
{
    float v = 0, up = 0;
    for (int w = 0; w < 1 << a.split_log; w++) v += part[w][r][n];
    if (to.bias) v += to.bias[row];
    if (a.glu) { /* the second tile has up */
        for (int w = 0; w < 1 << a.split_log; w++) up += part[w][(MT > 1 ? 16 : 0) + r][n];
        if (a.segment[1].bias) up += a.segment[1].bias[row];
        v = activate(a.act, v) * up;
    } else if (to.residual.p) {
        v += to.residual.p[(size_t)n * to.residual.stride + row];
    }
    to.y.p[(size_t)n * to.y.stride + row] = v;
}

/* Kernel body. MT: tiles of 16 weight rows of a warp, with glu one of gate and one of up; NT: tiles of 8 rows
 * of x. */
template <int MT, int NT> __device__ __forceinline__ void packed_few(const ck_packed_few &a)
{
    __shared__ float part[WARPS][16 * MT][NT * 8 + 1];
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    uint32_t s = 0;
    float acc[NT][MT][4] = {};
    const unsigned char *rows[MT][2];
#pragma unroll
    for (int i = 1; i < CK_SEGMENTS; i++) s += i < a.segments && !a.glu && blockIdx.x >= a.first[i];
    /* Rows of a warp; the block's first row, and the warp's. */
    const uint32_t height = a.glu ? 16 : 16 * MT, block0 = (blockIdx.x - a.first[s]) * (WARPS >> a.split_log) * height,
                   own = block0 + (warp >> a.split_log) * height, row0 = own < a.segment[s].n ? own : 0,
                   bytes = a.of[s].pitch;
#pragma unroll
    for (int i = 0; i < 2 * MT; i++) {
        const ck_segment &from = a.segment[a.glu ? i / 2 : s];
        uint32_t row = row0 + (a.glu ? 0 : i / 2 * 16) + i % 2 * 8;
        /* Missing rows repeat others; their sums are not stored. */
        row = row < from.n ? row : row0;
        rows[i / 2][i % 2] = static_cast<const unsigned char *>(from.data) + (size_t)(from.at + row) * bytes;
    }
    launch_dependents();
    switch (a.of[s].kind) {
#define CASE(KIND)                                        \
    case CK_P_##KIND:                                     \
        multiply_rows<CK_P_##KIND, MT, NT>(a, rows, acc); \
        break;
        CASE(Q4_0)
        CASE(Q4_K)
        CASE(Q5_K)
        CASE(Q6_K)
#undef CASE
    }
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int i = 0; i < 4; i++) part[warp][m * 16 + g + i / 2 * 8][n * 8 + 2 * t + i % 2] = acc[n][m][i];
    __syncthreads();
    const uint32_t all = height * (WARPS >> a.split_log);
    for (uint32_t i = threadIdx.x; i < all * NT * 8; i += CK_BATCH_THREADS) {
        uint32_t r = i % all, n = i / all, row = block0 + r;
        const ck_segment &to = a.segment[s];
        if (row < to.n && n < a.rows) finish_output<MT, NT>(a, to, row, r % height, n, part + (r / height << a.split_log));
    }
}

#define BATCH(name, mt, nt)                                                                                           \
    extern "C" __global__ void __launch_bounds__(CK_BATCH_THREADS, 2) name(const __grid_constant__ ck_packed_few a) \
    {                                                                                                                 \
        packed_few<mt, nt>(a);                                                                                      \
    }
BATCH(packed_few_16_8, 1, 1)
BATCH(packed_few_16_16, 1, 2)
BATCH(packed_few_32_8, 2, 1)
BATCH(packed_few_32_16, 2, 2)
