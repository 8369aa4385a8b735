/* k_cluster_packed.cuh: packed weights (k_packed.cuh) in the products of the cluster kernels (k_cluster_ops.cuh). sm_90.
 *
 * x and the input of the second product are 31-bit fixed-point numbers in four digits, with one scale per 128 columns, the half
 * of a chunk that one warp prepares; sums of x by 16 columns are beside them. A lane's sums belong to one half of a chunk
 * (k_packed_chunk.cuh), so it applies that scale itself.
 *
 * First product: a stage has 16 rows, eight and eight, each with all chunks. Warps 0 to 3 take the even stages, 4 to 7 the odd
 * ones, one chunk per warp; a row thus has 16 partial sums, as with other weights. Second product: a stage has the cluster's
 * chunks of whole groups of eight rows. Where the cluster owns only half a chunk (heads), it reads the whole one and multiplies
 * the other half by zero; the weights of that half are in the L2 cache for another cluster.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_K_CLUSTER_PACKED_CUH
#define SG_UNIT_CUDA_K_CLUSTER_PACKED_CUH

#include "k_cluster_ring.cuh"
#include "packed/k_packed_chunk.cuh"
#include "params/kparams_cluster_packed.h"

/* Template parameter KIND of the cluster kernels. */
enum { KIND_PACKED = 3 };
#if __CUDA_ARCH__ == 900

/* Shared-memory addresses of x with k columns, a multiple of CK_PACKED_CHUNK; pitch: bytes per digit. */
struct packed_x {
    uint32_t digits, pitch, sums, units;
};
__device__ __forceinline__ packed_x packed_x_at(const unsigned char *at, uint32_t k)
{
    uint32_t digits = smem_addr(at), pitch = k + 32, sums = digits + 4 * pitch;
    return packed_x{digits, pitch, sums, sums + k / 4};
}
/* A warp stores 128 columns, group `group` of them, four numbers per lane: digits, the words of a block of 32 columns in the
 * order of operands, and sums. */
__device__ __forceinline__ void put_packed_group(const packed_x &to, uint32_t group, float4 v)
{
    uint32_t lane = threadIdx.x & 31, exponent = warp_exponent(max(max_abs_bits(v), min_exponent_bits)), d[4],
             place = (lane & ~7u) | (lane & 2) << 1 | (lane & 4) >> 1 | (lane & 1);
    split_digits(v, __uint_as_float((TO_DIGITS - exponent) << 23), d);
#pragma unroll
    for (int k = 0; k < 4; k++) sts_u32(to.digits + k * to.pitch + group * 128 + place * 4, d[k]);
    float s = (v.x + v.y) + (v.z + v.w);
    s += __shfl_xor_sync(0xffffffffu, s, 1);
    s += __shfl_xor_sync(0xffffffffu, s, 2);
    if (!(lane & 3)) sts_u32(to.sums + group * 32 + lane, __float_as_uint(s));
    if (!lane) sts_u32(to.units + group * 4, __float_as_uint(last_digit_value(exponent)));
}

/* use_chunk of any kind, {acc, rest}. Not inlined: its code for all kinds is large, and both products of a kernel share what the
 * first one has brought into the instruction cache. form: group and, in the upper half, bf16. */
static __device__ __noinline__ float4 packed_sums(uint32_t kind, uint32_t form, uint32_t low, uint32_t to_high, uint32_t x,
                                                  uint32_t sums)
{
    uint32_t lane = threadIdx.x & 31;
    float acc[2] = {0, 0}, rest[2] = {0, 0};
    use_any(kind, low, to_high, x, lane >> 4 == (lane >> 1 & 1), sums, form & 0xffffu, form >> 16, acc, rest);
    return make_float4(acc[0], acc[1], rest[0], rest[1]);
}
/* Product of chunk `chunk` of x with 16 rows, eight at `low`, eight `to_high` bytes after it: this lane's parts of the sums of
 * rows g and g + 8. */
__device__ __forceinline__ float2 packed_product(const ck_packed_kind &k, uint32_t low, uint32_t to_high, const packed_x &x,
                                                 uint32_t chunk)
{
    uint32_t lane = threadIdx.x & 31, second = lane >> 1 & 1,
             from = x.digits + (lane >> 2 & 3) * x.pitch + second * 128 + (lane & 1) * 16 + chunk * 256;
    float unit = lds_f32(x.units + (2 * chunk + second) * 4);
    if (lane & 1) unit *= 65536;
    float4 v = packed_sums(k.kind, k.group | (uint32_t)k.bf16 << 16, low, to_high, from, x.sums + chunk * 64);
    return make_float2(fmaf(v.x, unit, v.z), fmaf(v.y, unit, v.w));
}

/* Executes the product once before x arrives, so that its instructions are in the cache then. The first stage, of rows with
 * `chunks` chunks, is used in place of x too: its bytes are enough for one chunk of x, and nothing writes them meanwhile. */
__device__ __forceinline__ void warm_packed(const ring &r, const ck_packed_kind &k, uint32_t chunks)
{
    mbar_wait(&r.full[0], 0);
    const packed_x x = packed_x_at(r.stages, CK_PACKED_CHUNK);
    float2 v = packed_product(k, smem_addr(r.stages), chunks * k.block, x, 0);
    asm volatile("" ::"f"(v.x), "f"(v.y)); /* keeps the compiler from removing the call */
}

/* Producer: eight rows of the first product, all chunks. SHARED: other clusters read the same rows. */
template <int SHARED = 0>
__device__ __forceinline__ void load_eight(unsigned char *to, const ck_cluster_weight &w, uint32_t row, uint64_t *mbar)
{
    if (SHARED)
        bulk_load(to, row_at(w, row), 8 * w.pitch, mbar);
    else
        bulk_load_evict_first(to, row_at(w, row), 8 * w.pitch, mbar);
}
/* Producer: the block's `rows` rows of the second product from row `first` on, `per` per stage, n chunks from `chunk` on. */
template <int SHARED>
__device__ __forceinline__ void load_second_packed(const ring &r, ring_producer &in, const ck_packed_kinds &k, uint32_t first,
                                                   uint32_t rows, uint32_t per, uint32_t chunk, uint32_t n)
{
    const unsigned char *from = static_cast<const unsigned char *>(k.data) + (size_t)first * k.pitch + chunk * k.out.block;
    uint32_t bytes = n * k.out.block;
#pragma unroll 1
    for (uint32_t row = 0; row < rows; row += per) {
        uint32_t here = min(per, rows - row) / 8;
        unsigned char *to = ring_acquire(r, in, here * bytes);
#pragma unroll 1
        for (; here; here--, to += bytes, from += 8 * (size_t)k.pitch)
            if (SHARED)
                bulk_load(to, from, bytes, &r.full[in.at.stage]);
            else
                bulk_load_evict_first(to, from, bytes, &r.full[in.at.stage]);
        ring_next(r, in.at);
    }
}

/* First product of one stage, group `group` of the block's 16 rows, into sums [16][pitch]; the other half of the warps only
 * releases the stage. scale: factor of the sums; chunks: of x. */
__device__ __forceinline__ void first_packed(const ring &r, ring_pos &at, const packed_x &x, const ck_packed_kind &k,
                                             uint32_t chunks, uint32_t group, float scale, float *sums, uint32_t pitch)
{
    uint32_t warp = threadIdx.x >> 5, chunk = warp & 3, g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
    bool own = (group & 1) == warp >> 2;
    if (own || ring_refilled(r, at)) mbar_wait(&r.full[at.stage], at.turn & 1);
    if (own) {
        float2 v = make_float2(0, 0);
        uint32_t low = smem_addr(r.stages) + at.stage * r.bytes + chunk * k.block;
        if (chunk < chunks) v = packed_product(k, low, chunks * k.block, x, chunk);
        sums += g * pitch + 4 * chunk + t;
        sums[0] = v.x * scale, sums[8 * pitch] = v.y * scale;
    }
    ring_release(r, at);
    ring_next(r, at);
}

/* Second product of the block's n rows, `per` per stage: a warp computes every eighth group of 16 and releases all stages that
 * are refilled. chunks: of the cluster; extra: added to the sums (cluster 0, else NULL); y: sums from the block's first row on;
 * coarse: distance to the coarse words. */
__device__ __forceinline__ void write_packed(const ring &r, ring_pos at, const packed_x &x, const ck_packed_kind &k,
                                             uint32_t chunks, uint32_t per, uint32_t n, uint64_t *y, uint32_t coarse,
                                             const float *extra)
{
    uint32_t stage = 0, g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
#pragma unroll 1
    for (uint32_t row = 16 * (threadIdx.x >> 5); row < n; row += 16 * CONSUMER_WARPS) {
        uint32_t o = row + g + (t == 2 ? 8 : 0);
        float2 v = make_float2(0, 0);
        float added = extra ? extra[o] : 0;
        for (; row >= stage + per; stage += per) skip_stage(r, at);
        uint32_t from = ring_wait_full(r, at) + (row - stage) / 8 * chunks * k.block;
#pragma unroll 1
        for (uint32_t c = 0; c < chunks; c++, from += k.block) {
            float2 p = packed_product(k, from, chunks * k.block, x, c);
            v.x += p.x, v.y += p.y;
        }
        v.x += __shfl_xor_sync(0xffffffffu, v.x, 1), v.y += __shfl_xor_sync(0xffffffffu, v.y, 1);
        v.x += __shfl_xor_sync(0xffffffffu, v.x, 2), v.y += __shfl_xor_sync(0xffffffffu, v.y, 2);
        if (t == 1 || t == 2) add_fixed_point(y + o, coarse, (t == 1 ? v.x : v.y) + added);
    }
    while (ring_refilled(r, at)) skip_stage(r, at);
}

#endif
#endif
