/* k_batch.cu: products of 16-bit, fp8 or Q8_0 weights with 2 to 16 rows on tensor cores: several sequences
 * decoded together, where k_tiles.cu does not apply. All architectures. Weights are read once for
 * all rows.
 *
 * x is given as two 16-bit matrices, rounded value hi and remainder lo, so that products keep about
 * fp32 precision. A block (256 threads) owns 16 or 32 weight rows; its 8 warps split k, 32 columns
 * at a time. Columns are permuted so that a lane's 16 bytes of a row are its operands of two
 * products: lane (g, t) reads bytes [16 t, 16 t + 16) of rows g and g + 8 of W, and the same bytes
 * of row g of hi and lo. The first weights are requested before griddepcontrol.wait. fp8: 64 columns
 * at a time, converted exactly to bf16; the row scale is applied to the sum. Q8_0: 8 bytes of a
 * row, converted exactly to bf16; the sum of a block of 32 columns is multiplied by its scale. Sums:
 * columns of a warp ascending, then warps in order; no row of x depends on the others.
 * SPDX-License-Identifier: MIT */
#include "k_mma.cuh"

enum { WARPS = CK_BATCH_THREADS / 32, F16 = 0, BF16 = 1, F8 = 2, Q8 = 3 };

/* Streaming load of 16 bytes. */
__device__ __forceinline__ uint4 load_once(const uint4 *p)
{
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

/* A lane's part of a row in one column block, and the block's scale. */
template <int FORM> struct row_piece {
    uint4 bytes;
};
template <> struct row_piece<Q8> {
    uint2 bytes;
    __half scale;
};

template <int MT> struct rows_of {
    const unsigned char *at[MT][2]; /* this lane's piece of rows g and g + 8 in each tile of 16 rows */
    const __half *scales[MT][2];    /* Q8_0: of these rows */
};

template <int FORM>
__device__ __forceinline__ row_piece<FORM> load_piece(const unsigned char *row, const __half *, uint32_t block)
{
    return row_piece<FORM>{load_once(reinterpret_cast<const uint4 *>(row) + (size_t)block * 4)};
}
template <>
__device__ __forceinline__ row_piece<Q8> load_piece<Q8>(const unsigned char *row, const __half *scales, uint32_t block)
{
    row_piece<Q8> v;
    asm volatile("ld.global.L1::no_allocate.L2::128B.v2.u32 {%0,%1}, [%2];"
                 : "=r"(v.bytes.x), "=r"(v.bytes.y)
                 : "l"(row + (size_t)block * 32));
    v.scale = __ldg(scales + block);
    return v;
}

/* Loads U column blocks from block b on, WARPS apart. */
template <int FORM, int MT, int U>
__device__ __forceinline__ void load_weights(row_piece<FORM> (&w)[U][MT][2], const rows_of<MT> &rows, uint32_t b, uint32_t blocks)
{
#pragma unroll
    for (int u = 0; u < U; u++)
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                w[u][m][h] = b + u * WARPS < blocks ? load_piece<FORM>(rows.at[m][h], rows.scales[m][h], b + u * WARPS)
                                                    : row_piece<FORM>{};
}

/* Two e4m3, bytes `low` and low + 1 of a word, as two bf16: their bits read as bf16 are the values
 * times 2^-120. */
__device__ __forceinline__ uint32_t wide_e4m3(uint32_t word, int low)
{
    uint32_t high = __byte_perm(word, 0, low ? 0x3424 : 0x1404), b = (high & 0x80008000u) | (high >> 4 & 0x07f007f0u),
             power = 0x7b807b80u;
    __nv_bfloat162 v = __hmul2(*reinterpret_cast<__nv_bfloat162 *>(&b), *reinterpret_cast<__nv_bfloat162 *>(&power));
    return *reinterpret_cast<uint32_t *>(&v);
}

/* 64 columns of fp8; x[n]: 16 numbers of hi, 16 of lo. */
template <int MT, int NT>
__device__ __forceinline__ void multiply_f8(float (&acc)[NT][MT][4], const row_piece<F8> (&w)[MT][2], const uint4 (&x)[NT][4])
{
#pragma unroll
    for (int m = 0; m < MT; m++) /* Four products per 16 bytes; each e4m3 pair becomes one bf16 pair. */
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t one = component(w[m][0].bytes, j), other = component(w[m][1].bytes, j);
            const uint32_t a[4] = {wide_e4m3(one, 0), wide_e4m3(other, 0), wide_e4m3(one, 2), wide_e4m3(other, 2)};
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int part = 0; part < 4; part += 2)
                    mma<1>(acc[n][m], a, component(x[n][part + j / 2], j % 2 * 2), component(x[n][part + j / 2], j % 2 * 2 + 1));
        }
}

/* Two int8, bytes `low` and low + 1 of a word, as two bf16. The bf16 of 128 has steps of 1: with the lower seven bits of a byte
 * it is 128 more than these, with the sign bit 256, and their difference is the number. */
__device__ __forceinline__ uint32_t wide_int8(uint32_t word, int low)
{
    uint32_t both = __byte_perm(word, 0, low ? 0x4342 : 0x4140), a = (both & 0x007f007fu) | 0x43004300u,
             b = (both & 0x00800080u) | 0x43004300u;
    __nv_bfloat162 v = __hsub2(*reinterpret_cast<__nv_bfloat162 *>(&a), *reinterpret_cast<__nv_bfloat162 *>(&b));
    return *reinterpret_cast<uint32_t *>(&v);
}

/* A block of 32 columns of Q8_0 with both parts of x. */
template <int MT, int NT>
__device__ __forceinline__ void multiply_q8(float (&acc)[NT][MT][4], const row_piece<Q8> (&w)[MT][2], const uint4 (&hi)[NT],
                                            const uint4 (&lo)[NT])
{
#pragma unroll
    for (int m = 0; m < MT; m++) {
        const uint2 one = w[m][0].bytes, other = w[m][1].bytes;
        const float scale[2] = {__half2float(w[m][0].scale), __half2float(w[m][1].scale)};
        const uint32_t first[4] = {wide_int8(one.x, 0), wide_int8(other.x, 0), wide_int8(one.x, 2), wide_int8(other.x, 2)},
                       second[4] = {wide_int8(one.y, 0), wide_int8(other.y, 0), wide_int8(one.y, 2), wide_int8(other.y, 2)};
#pragma unroll
        for (int n = 0; n < NT; n++) {
            float sum[4] = {};
            mma<1>(sum, first, hi[n].x, hi[n].y);
            mma<1>(sum, second, hi[n].z, hi[n].w);
            mma<1>(sum, first, lo[n].x, lo[n].y);
            mma<1>(sum, second, lo[n].z, lo[n].w);
#pragma unroll
            for (int i = 0; i < 4; i++) acc[n][m][i] = fmaf(scale[i / 2], sum[i], acc[n][m][i]);
        }
    }
}

/* 32 columns of 16-bit weights with one operand of x. */
template <int FORM, int MT>
__device__ __forceinline__ void multiply(float (&acc)[MT][4], const row_piece<FORM> (&w)[MT][2], uint4 x)
{
#pragma unroll
    for (int m = 0; m < MT; m++) {
        const uint4 one = w[m][0].bytes, other = w[m][1].bytes;
        const uint32_t first[4] = {one.x, other.x, one.y, other.y}, second[4] = {one.z, other.z, one.w, other.w};
        mma<FORM>(acc[m], first, x.x, x.y);
        mma<FORM>(acc[m], second, x.z, x.w);
    }
}

/* Addresses that this lane reads: rows from row0 on of segment s, with glu of gate and up; missing
 * rows repeat the last. */
template <int FORM, int MT>
__device__ __forceinline__ void find_rows(const ck_batch &a, uint32_t s, uint32_t row0, rows_of<MT> &rows)
{
    uint32_t lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            /* Missing rows repeat the last row; their sums are not stored. */
            const ck_segment &from = a.segment[a.glu ? m : s];
            uint32_t row = row0 + (a.glu ? 0 : m * 16) + h * 8 + g;
            if (row >= from.n) row = from.n - 1;
            rows.at[m][h] = static_cast<const unsigned char *>(from.data) + (size_t)(from.at + row) * a.pitch +
                            t * sizeof row_piece<FORM>().bytes;
            rows.scales[m][h] = static_cast<const __half *>(from.scales) + (size_t)(from.at + row) * a.scale_pitch;
        }
}

/* Finishes one output: adds the warps' sums of row r of the block (`row` of the segment) and row n
 * of x; scale, bias, gate or residual. */
template <int FORM, int MT, int NT>
__device__ __forceinline__ void finish_sum(const ck_batch &a, const ck_segment &to, uint32_t row, uint32_t r, uint32_t n,
                                           const float (&part)[WARPS][16 * MT][NT * 8 + 1])
{
    float v = 0, up = 0;
    for (int p = 0; p < WARPS; p++) v += part[p][r][n];
    if (FORM == F8) v *= static_cast<const float *>(to.scales)[to.at + row];
    if (to.bias) v += to.bias[row];
    if (a.glu) {
        /* With glu the second row tile holds up. */
        for (int p = 0; p < WARPS; p++) up += part[p][(MT > 1 ? 16 : 0) + r][n];
        if (FORM == F8) up *= static_cast<const float *>(a.segment[1].scales)[a.segment[1].at + row];
        if (a.segment[1].bias) up += a.segment[1].bias[row];
        v = activate(a.act, v) * up;
    } else if (to.residual.p) {
        v += to.residual.p[(size_t)n * to.residual.stride + row];
    }
    to.y.p[(size_t)n * to.y.stride + row] = v;
}

/* Kernel body. MT: tiles of 16 weight rows; NT: tiles of 8 rows of x. With glu (MT 2) the two tiles
 * are the same rows of gate and up. */
template <int FORM, int MT, int NT> __device__ __forceinline__ void batch(const ck_batch &a)
{
    constexpr int U = FORM == Q8 && MT == 1 ? 8 : 4; /* column blocks loaded at once: pieces of Q8_0 are half as long */
    constexpr uint32_t EACH = FORM == F8 ? 2 : 1, BLOCK = 32 * EACH; /* 16-byte pieces of x per lane; columns per step */
    __shared__ float part[WARPS][16 * MT][NT * 8 + 1];
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3, s = 0, blocks = a.k / BLOCK;
    float acc[NT][MT][4] = {}, rest[NT][MT][4] = {}; /* fp16: products with the remainder, which have another scale */
    row_piece<FORM> w[U][MT][2];
    rows_of<MT> rows;
#pragma unroll
    for (int i = 1; i < CK_SEGMENTS; i++) s += i < a.segments && !a.glu && blockIdx.x >= a.first[i];
    uint32_t row0 = (blockIdx.x - a.first[s]) * (a.glu ? 16 : 16 * MT);
    /* Weight addresses and first loads before the inputs arrive. */
    find_rows<FORM, MT>(a, s, row0, rows);
    launch_dependents();
    load_weights<FORM, MT>(w, rows, warp, blocks);
    wait_for_inputs();
    const uint4 *hi = static_cast<const uint4 *>(a.x) + t * EACH, *lo = static_cast<const uint4 *>(a.low) + t * EACH;
    /* The warp's column blocks, U at a time. */
    for (uint32_t b = warp; b < blocks;) {
#pragma unroll
        for (int u = 0; u < U; u++) {
            if (b + u * WARPS >= blocks) break;
            uint4 x[NT][4], high[NT], low[NT];
#pragma unroll
            for (int n = 0; n < NT; n++) {
                size_t at = (size_t)(n * 8 + g) * (a.k / 8) + (size_t)(b + u * WARPS) * 4 * EACH;
                if constexpr (FORM == F8) {
                    x[n][0] = hi[at], x[n][1] = hi[at + 1], x[n][2] = lo[at], x[n][3] = lo[at + 1];
                } else if constexpr (FORM == Q8) {
                    high[n] = hi[at], low[n] = lo[at];
                } else {
                    multiply<FORM, MT>(acc[n], w[u], hi[at]);
                    multiply<FORM, MT>(FORM == F16 ? rest[n] : acc[n], w[u], lo[at]);
                }
            }
            if constexpr (FORM == F8) multiply_f8<MT, NT>(acc, w[u], x);
            if constexpr (FORM == Q8) multiply_q8<MT, NT>(acc, w[u], high, low);
        }
        b += U * WARPS;
        if (b < blocks) load_weights<FORM, MT>(w, rows, b, blocks);
    }
    /* Partial sums of all warps to shared memory. */
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                part[warp][m * 16 + g + i / 2 * 8][n * 8 + 2 * t + i % 2] = FORM == F16
                                                                                ? fmaf(acc[n][m][i], CK_F16_FEW, rest[n][m][i])
                                                                                : acc[n][m][i];
    __syncthreads();
    /* One output per thread. */
    const uint32_t height = a.glu ? 16 : 16 * MT;
    for (uint32_t i = threadIdx.x; i < height * NT * 8; i += CK_BATCH_THREADS) {
        uint32_t r = i % height, n = i / height, row = row0 + r;
        const ck_segment &to = a.segment[s];
        if (row < to.n && n < a.rows) finish_sum<FORM, MT, NT>(a, to, row, r, n, part);
    }
}

/* Four numbers of x as rounded values and remainders. */
__device__ __forceinline__ void put_split(const ck_narrow &a, size_t i, float4 v)
{
    const float by = a.bf16 ? 1 : 1 / CK_F16_FEW;
    float in[4] = {v.x, v.y, v.z, v.w};
    uint16_t high[4], low[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
        if (a.bf16) {
            __nv_bfloat16 h = __float2bfloat16_rn(in[j]), l = __float2bfloat16_rn(in[j] - __bfloat162float(h));
            high[j] = __bfloat16_as_ushort(h), low[j] = __bfloat16_as_ushort(l);
        } else {
            __half h = __float2half_rn(in[j] * by), l = __float2half_rn(in[j] - __half2float(h) * CK_F16_FEW);
            high[j] = __half_as_ushort(h), low[j] = __half_as_ushort(l);
        }
    }
    *reinterpret_cast<uint2 *>(static_cast<uint16_t *>(a.y) + i) = make_uint2(high[0] | high[1] << 16, high[2] | high[3] << 16);
    *reinterpret_cast<uint2 *>(static_cast<uint16_t *>(a.low) + i) = make_uint2(low[0] | low[1] << 16, low[2] | low[3] << 16);
}

/* x for the products above and of packed weights: rows of multiples of four, with or without an RMS norm of whole rows. Grid
 * (rows, parts): a thread stores four columns; every part of a row sums the squares of all. */
extern "C" __global__ void __launch_bounds__(CK_SPLIT_X_THREADS) split_x(const __grid_constant__ ck_narrow a)
{
    __shared__ float scratch[32];
    const uint32_t e = 4 * (blockIdx.y * CK_SPLIT_X_THREADS + threadIdx.x);
    const float *x = a.x.p + (size_t)blockIdx.x * a.x.stride;
    float plus = a.norm.plus_one && a.norm.weight ? 1.0f : 0.0f, squares = 0;
    float4 w = make_float4(1, 1, 1, 1), v = make_float4(0, 0, 0, 0);
    launch_dependents();
    if (a.norm.present && a.norm.weight && e < a.k) w = float4_at(a.norm.weight, e);
    wait_for_inputs();
    if (e < a.k) v = float4_at(x, e);
    if (a.norm.present) {
        for (uint32_t i = 4 * threadIdx.x; i < a.k; i += 4 * CK_SPLIT_X_THREADS) {
            float4 s = float4_at(x, i);
            squares += s.x * s.x + s.y * s.y + s.z * s.z + s.w * s.w;
        }
        const float inverse = rsqrtf(block_sum(squares, scratch) / a.k + a.norm.eps);
        v = make_float4(v.x * inverse * (plus + w.x), v.y * inverse * (plus + w.y), v.z * inverse * (plus + w.z),
                        v.w * inverse * (plus + w.w));
    }
    if (e < a.k) put_split(a, (size_t)blockIdx.x * a.k + e, v);
}

#define BATCH(name, form, mt, nt)                                                                           \
    extern "C" __global__ void __launch_bounds__(CK_BATCH_THREADS) name(const __grid_constant__ ck_batch a) \
    {                                                                                                       \
        batch<form, mt, nt>(a);                                                                             \
    }
BATCH(batch_f16_16_8, F16, 1, 1)
BATCH(batch_f16_16_16, F16, 1, 2)
BATCH(batch_f16_32_8, F16, 2, 1)
BATCH(batch_f16_32_16, F16, 2, 2)
BATCH(batch_bf16_16_8, BF16, 1, 1)
BATCH(batch_bf16_16_16, BF16, 1, 2)
BATCH(batch_bf16_32_8, BF16, 2, 1)
BATCH(batch_bf16_32_16, BF16, 2, 2)
BATCH(batch_f8_16_8, F8, 1, 1)
BATCH(batch_f8_16_16, F8, 1, 2)
BATCH(batch_f8_32_8, F8, 2, 1)
BATCH(batch_f8_32_16, F8, 2, 2)
BATCH(batch_q8_16_8, Q8, 1, 1)
BATCH(batch_q8_16_16, Q8, 1, 2)
BATCH(batch_q8_32_8, Q8, 2, 1)
BATCH(batch_q8_32_16, Q8, 2, 2)
