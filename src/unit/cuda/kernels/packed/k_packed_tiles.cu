/* k_packed_tiles.cu: products of packed weights (k_packed.cuh) with several rows on sm_90, with everything that k_tiles.cu fuses
 * (norm, gated norm, gate * up, residual, activation, short convolution, argmax). Host: issue_packed_tiles.c.
 *
 * As k_tiles.cu (body: k_tiles_product.cuh), but a stage has a chunk of 256 columns of a tile's 64 rows as they are stored, and
 * the left operand of wgmma is made of it in registers: each weight as a sum of two bf16, rounded value and remainder, so that it
 * has 16 bits, as x has. Codes without offset are multiplied by the two bf16 parts of their scale; the others are computed in
 * fp32. Columns of x are stored in the order in which lanes have codes. 16 columns are converted while those before them are
 * multiplied.
 * SPDX-License-Identifier: MIT */
#include "tiles/k_tiles_product.cuh"
#include "packed/k_packed_codes.cuh"

enum { CHUNK = CK_PACKED_CHUNK };

#if HOPPER

/* d += a b^T, m64n32k16 in bf16, a in registers. */
__device__ __forceinline__ void multiply_step(float (&d)[16], const uint32_t *a, uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16"
                 " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, {%16, %17, %18, %19}, %20, 1, 1, 1, 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
                   "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

/* Left operands of 16 columns, rounded values and remainders: rows g and g + 8, then the same of the columns eight further. */
struct operands {
    uint32_t high[4], low[4];
};

__device__ __forceinline__ __nv_bfloat162 bf16s(uint32_t v) { return *reinterpret_cast<__nv_bfloat162 *>(&v); }
__device__ __forceinline__ uint32_t bits(__nv_bfloat162 v) { return *reinterpret_cast<uint32_t *>(&v); }

/* A scale as two bf16 parts, each twice. */
struct scale_parts {
    __nv_bfloat162 high, low;
    __device__ __forceinline__ explicit scale_parts(float s)
    {
        high = __float2bfloat162_rn(s);
        low = __float2bfloat162_rn(s - __low2float(high));
    }
};
/* Two codes, as bf16, times a scale: the remainder of the first product is exact. */
__device__ __forceinline__ void multiply_codes(__nv_bfloat162 q, const scale_parts &s, uint32_t &high, uint32_t &low)
{
    const __nv_bfloat162 v = __hmul2_rn(q, s.high);
    high = bits(v);
    low = bits(__hfma2(q, s.low, __hfma2(q, s.high, __hneg2(v))));
}
/* Two weights in fp32. */
__device__ __forceinline__ void split_weights(float x, float y, uint32_t &high, uint32_t &low)
{
    high = pack<1>(x, y);
    low = pack<1>(x - __uint_as_float(high << 16), y - __uint_as_float(high & 0xffff0000u));
}
/* Two int8, bytes `low` and low + 1 of a word, as bf16 (k_batch.cu). */
__device__ __forceinline__ __nv_bfloat162 wide_int8(uint32_t word, int low)
{
    const uint32_t both = __byte_perm(word, 0, low ? 0x4342 : 0x4140);
    return __hsub2(bf16s((both & 0x007f007fu) | 0x43004300u), bf16s((both & 0x00800080u) | 0x43004300u));
}
/* Two bytes below 128, less `zero`: 128 + byte is exact in bf16. */
__device__ __forceinline__ __nv_bfloat162 wide_code(uint32_t word, int low, uint32_t zero)
{
    return __hsub2(bf16s(__byte_perm(word, 0x43434343u, low ? 0x4342 : 0x4140)), bf16s(zero));
}
/* A byte as a number. */
__device__ __forceinline__ float number_of(uint32_t word, int i)
{
    return __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7440u | i)) - 8388608.0f;
}

/* Four codes of row g + 8 * half as left operands. signed_bytes: int8; else bytes less `zero`. */
__device__ __forceinline__ void put_symmetric(operands &to, int half, uint32_t word, const scale_parts &s, bool signed_bytes,
                                              uint32_t zero)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const __nv_bfloat162 q = signed_bytes ? wide_int8(word, 2 * i) : wide_code(word, 2 * i, zero);
        multiply_codes(q, s, to.high[2 * i + half], to.low[2 * i + half]);
    }
}
__device__ __forceinline__ void put_offset(operands &to, int half, uint32_t word, float2 s)
{
#pragma unroll
    for (int i = 0; i < 2; i++)
        split_weights(fmaf(number_of(word, 2 * i), s.x, s.y), fmaf(number_of(word, 2 * i + 1), s.x, s.y), to.high[2 * i + half],
                      to.low[2 * i + half]);
}

/* A lane's codes of one row in half a chunk, panels 2 p and 2 p + 1: words of four codes 8 p to 8 p + 7. */
template <int KIND> struct half_codes {
    typedef packed_form<KIND> F;
    enum { BITS = F::LOW + F::HIGH };
    uint4 low[F::LOW == 8 ? 2 : 1];
    uint2 high;
    __device__ __forceinline__ void load(uint32_t block, int p)
    {
        const uint32_t lane = threadIdx.x & 31;
        if (F::LOW == 2) {
            uint2 v = lds_64(block + lane * 16 + p * 8);
            low[0] = make_uint4(v.x, v.y, 0, 0);
        } else {
#pragma unroll
            for (int i = 0; i < F::LOW / 4; i++) low[i] = lds_128(block + (p * (F::LOW / 4) + i) * 512 + lane * 16);
        }
        if (F::HIGH == 1) high.x = lds_32(block + 256 * F::LOW + lane * 8 + p * 4);
        if (F::HIGH == 2) high = lds_64(block + 256 * F::LOW + lane * 16 + p * 8);
    }
    /* Word r (0 to 7): int8 of a code book; else codes, those of symmetric kinds moved to be positive. */
    __device__ __forceinline__ uint32_t word(int r) const
    {
        const uint32_t ones = 0x01010101u;
        if (F::LOW == 8) return component(low[r / 4], r % 4);
        if (F::BOOK) {
            const uint32_t v = component(low[0], r / 2) >> (r % 2 ? 16 : 0),
                           a = __byte_perm(book_word<KIND>(0), book_word<KIND>(1), v & 0x7777u),
                           b = __byte_perm(book_word<KIND>(2), book_word<KIND>(3), v & 0x7777u);
            return __byte_perm(a, b, (v >> 1 & 0x4444u) | 0x3210u);
        }
        uint32_t v = F::LOW == 4 ? component(low[0], r / 2) >> 4 * (r % 2) : component(low[0], r / 4) >> 2 * (r % 4);
        v &= ones * ((1u << F::LOW) - 1);
        if (F::HIGH == 1) v |= row_codes<KIND>::move(high.x, r - F::LOW) & ones << F::LOW;
        if (F::HIGH == 2) v |= row_codes<KIND>::move(r / 4 ? high.y : high.x, 2 * (r % 4) - F::LOW) & ones * 3 << F::LOW;
        return F::SIGNED ? v ^ ones << (BITS - 1) : v;
    }
};

/* Scales of rows g and g + 8 in the lane's columns 16 m on of its block 2 p + i. */
template <int KIND>
__device__ __forceinline__ void load_scales(float2 (&to)[2], const unsigned char *(&blocks)[2], int block, int m, uint32_t group,
                                            uint32_t bf16)
{
    typedef packed_form<KIND> F;
    const uint32_t lane = threadIdx.x & 31, bytes = F::SCALES == SCALE_PAIRS ? 4 * CHUNK / group : F::SCALE_BYTES, r = lane >> 2;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const unsigned char *scales = blocks[half] + 8 * F::CODES + r * bytes,
                            *factors = blocks[half] + 8 * (F::CODES + bytes) + r * F::FACTOR_BYTES;
        to[half] = packed_scale<KIND>(scales, factors, 2 * (4 * (lane >> 1 & 1) + block) + m, group, bf16);
    }
}

/* Multiplies operands with 16 columns of the block's x, from product `step` of panel `panel` on. */
__device__ __forceinline__ void multiply_columns(float (&d)[16], const operands &w, uint64_t x, uint32_t panel, int step)
{
    const uint64_t b = tile_offset(x, panel * X_PANEL + step * 32);
    wgmma_fence();
    multiply_step(d, w.high, b);
    multiply_step(d, w.low, b);
    wgmma_commit();
    /* The products before these are done, so their operands may be overwritten. */
    asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
}
__device__ __forceinline__ void wait_products(float (&d)[16])
{
    asm volatile("wgmma.wait_group.sync.aligned 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
                   "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])::"memory");
}

/* A chunk of a tile, at `stage`. */
template <int KIND>
__device__ __forceinline__ void multiply_chunk(const ck_packed_tiles &a, uint32_t segment, const unsigned char *stage, uint64_t x,
                                                uint32_t chunk, float (&d)[16])
{
    const uint32_t block = a.of[segment].block, warp = threadIdx.x >> 5 & 3;
    const unsigned char *blocks[2] = {stage + 2 * warp * block, stage + (2 * warp + 1) * block};
    typedef packed_form<KIND> F;
    const uint32_t zero = 0x43004300u | (F::SIGNED ? 0x00010001u << (F::LOW + F::HIGH - 1) : 0);
    operands w[2];
#pragma unroll 1
    for (int p = 0; p < 2; p++) {
        half_codes<KIND> codes[2];
        codes[0].load(smem_addr(blocks[0]), p);
        codes[1].load(smem_addr(blocks[1]), p);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float2 scales[2];
#pragma unroll
            for (int step = 0; step < 4; step++) {
                if (step == 0 || (step == 2 && F::FINE))
                    load_scales<KIND>(scales, blocks, 2 * p + i, step / 2, a.of[segment].group, a.of[segment].bf16);
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const uint32_t word = codes[half].word(4 * i + step);
                    if (F::OFFSETS)
                        put_offset(w[step & 1], half, word, scales[half]);
                    else
                        put_symmetric(w[step & 1], half, word, scale_parts(scales[half].x), F::BOOK, zero);
                }
                multiply_columns(d, w[step & 1], x, chunk * 4 + 2 * p + i, step);
            }
        }
    }
}

/* Loads chunk `chunk` of a tile's rows: with glu eight of gate and eight of up in turn. Missing rows repeat others. */
__device__ __forceinline__ void load_chunk(const ck_packed_tiles &a, const wg_tile &t, uint32_t chunk, unsigned char *to,
                                            uint64_t *mbar)
{
    const uint32_t block = a.of[t.segment].block;
    mbar_expect_tx(mbar, 8 * block);
#pragma unroll 1
    for (uint32_t i = 0; i < 8; i++) {
        const uint32_t s = a.t.g.glu ? i & 1 : t.segment, row = t.row + (a.t.g.glu ? i / 2 : i) * 8;
        const ck_segment &from = a.t.g.segment[s];
        const uint32_t own = from.at + min(row, (from.n - 1) & ~7u);
        bulk_load_evict_first(to + i * block,
                              static_cast<const unsigned char *>(from.data) + (size_t)own * a.of[s].pitch + (size_t)chunk * block,
                              block, mbar);
    }
}
template <int KIND> struct packed_weights {
    enum { BF16 = 1, READERS = 128, ORDERED = 1 };
    const ck_packed_tiles &a;
    __device__ __forceinline__ uint32_t stage_bytes() const { return a.stage_bytes; }
    /* panels: here the chunks of the block. */
    __device__ __forceinline__ void find_slice(tiles_work &w) const
    {
        const uint32_t first = a.chunks * w.cta_rank >> a.t.cluster_log;
        w.panels = (a.chunks * (w.cta_rank + 1) >> a.t.cluster_log) - first;
        w.column0 = first * CHUNK;
        w.slice = w.panels * CHUNK;
    }
    /* Word 4 i + 2 m + h of lane t has columns 128 (t / 2) + 32 i + 16 m + 8 (t % 2) + 4 h on. */
    static __device__ __forceinline__ x_place place(uint32_t lane, int i)
    {
        return x_place{lane / 8, lane / 4 % 2 * 2 + lane % 2, 2u * i + lane / 2 % 2};
    }
    /* All chunks of the block's tiles in order, tiles of the two warpgroups interleaved, as in k_tiles.cu. */
    __device__ __forceinline__ void load(const tiles_work &w, tiles_smem &s) const
    {
        const uint32_t chunk0 = w.column0 / CHUNK;
        uint32_t stage = 0, turn = 0;
#pragma unroll 1
        for (uint32_t i = 0; i < w.n_tiles; i += a.t.groups) {
            const bool has_second = i + 1 < w.n_tiles && a.t.groups > 1;
            const wg_tile t[2] = {find_tile(a.t, w.first + i * w.step), find_tile(a.t, w.first + (i + has_second) * w.step)};
#pragma unroll 1
            for (uint32_t p = 0; p < w.panels; p++) {
#pragma unroll 1
                for (uint32_t g = 0; g < 1u + has_second; g++) {
                    const uint32_t at = g * a.t.stages + stage;
                    if (turn) mbar_wait(&s.empty[at], (turn - 1) & 1);
                    unsigned char *to = w.ring + at * a.stage_bytes;
                    load_chunk(a, t[g], chunk0 + p, to, &s.full[at]);
                }
                if (++stage == a.t.stages) {
                    stage = 0;
                    if (!turn++ && a.t.cluster_log) cluster_wait_unaligned();
                }
            }
        }
    }
    __device__ __forceinline__ void multiply(const tiles_work &w, tiles_smem &s, uint32_t segment, tiles_ring_pos &at,
                                             float (&d)[16]) const
    {
        const uint64_t x = tile_at(smem_addr(w.x), 16);
#pragma unroll
        for (int i = 0; i < 16; i++) d[i] = 0;
#pragma unroll 1
        for (uint32_t c = 0; c < w.panels; c++) {
            const uint32_t stage = at.first + at.stage;
            mbar_wait(&s.full[stage], at.turn & 1);
            multiply_chunk<KIND>(a, segment, w.ring + stage * a.stage_bytes, x, c, d);
            mbar_arrive(&s.empty[stage]);
            if (++at.stage == a.t.stages) at.stage = 0, at.turn++;
        }
        wait_products(d);
    }
};
#define TILES(kind)                                                                                                           \
    extern "C" __global__ void __launch_bounds__(CK_TILES_THREADS, 2) tiles_##kind(const __grid_constant__ ck_packed_tiles a) \
    {                                                                                                                         \
        product(packed_weights<CK_P_##kind>{a}, a.t);                                                                         \
    }
#else
#define TILES(kind) /* no wgmma: never launched */ \
    extern "C" __global__ void __launch_bounds__(CK_TILES_THREADS, 2) tiles_##kind(const __grid_constant__ ck_packed_tiles) {}
#endif
CK_PACKED_TILES(TILES)
