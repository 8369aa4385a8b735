/* k_packed_rows.cu: product of packed weights (k_packed.cuh) with up to eight rows of x on tensor
 * cores; weights are read once for all rows. All architectures. Host: issue_packed.c, which launches it for parts
 * of the columns where x is too large for shared memory.
 *
 * Structure of k_packed.cu. x is a 23-bit fixed-point number, one scale per row and warp, in three
 * digits of 8 bits. The right operand of a product has one row of x per column and one digit; a
 * product m16n8k32 has codes of two blocks, so each is multiplied twice, with the digits of the other
 * block replaced by zero. A lane has the sums of rows g and g + 8 of W and of rows 2 t and 2 t + 1 of
 * x. Sums of a row do not depend on the others. No norm, convolution or choice.
 * SPDX-License-Identifier: MIT */
#include "packed/k_packed_ring.cuh"
#include "k_xsplit.cuh"

enum { DIGITS = 3, X_ROWS = CK_PACKED_X_ROWS, TURN = CK_PACKED_TURN, BELOW = 9 }; /* BELOW: bits that are not used */

/* x of one warp: digits [digit][block of 32 columns][row][32 bytes] and sums by 16 columns [row][...]. */
struct rows_x {
    uint32_t digits, pitch, sums, sums_pitch; /* bytes per digit; of sums: address, bytes per row */
};

/* Scales of all blocks of one row of W. */
template <int KIND> struct row_scales {
    float f[8];    /* fp32, per block */
    uint32_t k[4]; /* or 8-bit integers, per block or per 16 columns */
    __device__ __forceinline__ void load(uint32_t scales, uint32_t factors, uint32_t group, uint32_t bf16)
    {
        constexpr int S = packed_form<KIND>::SCALES;
        if (S == SCALE_K32 || S == SCALE_K16 || S == SCALE_K2) {
            uint4 v = lds_128(scales);
            k[0] = v.x, k[1] = v.y, k[2] = v.z, k[3] = v.w;
            return;
        }
        if (S == SCALE_K8) {
            uint2 v = lds_64(scales);
            k[0] = v.x, k[1] = v.y;
            return;
        }
        uint32_t wide = S != SCALE_PAIRS || group == 32;
        uint4 v = S == SCALE_E8 ? make_uint4(0, 0, 0, 0) : lds_128(scales);
        uint2 e = S == SCALE_E8 ? lds_64(factors) : make_uint2(0, 0);
#pragma unroll
        for (int b = 0; b < 8; b++) {
            uint32_t pair = wide ? component(v, b / 2) : component(v, b / 4), odd = wide ? b & 1 : b >> 1 & 1;
            f[b] = S == SCALE_E8 ? half_e8m0(byte_of(b < 4 ? e.x : e.y, b % 4))
                                 : packed_half(odd ? pair >> 16 : pair & 0xffffu, S == SCALE_PAIRS && bf16);
        }
    }
    __device__ __forceinline__ int integer(int n) const
    {
        constexpr int S = packed_form<KIND>::SCALES;
        return S == SCALE_K16 || S == SCALE_K8 ? signed_byte(k[n / 4], n % 4)
               : S == SCALE_K2                 ? byte_of(k[n / 4] & 0x0f0f0f0fu, n % 4)
                                               : byte_of(k[n / 4], n % 4);
    }
};

/* Offset of block b (n 0 and 1: its halves) of a row of W. */
template <int KIND>
__device__ __forceinline__ float offset_of(const row_scales<KIND> &s, uint32_t scales, float dmin, int b, int n, uint32_t group,
                                           uint32_t bf16)
{
    constexpr int S = packed_form<KIND>::SCALES;
    if (S == SCALE_K32) return -dmin * (float)byte_of(s.k[2 + b / 4], b % 4);
    if (S == SCALE_K2) return -dmin * (float)byte_of(s.k[b / 2] >> 4 & 0x0f0f0f0fu, b % 2 * 2 + n);
    if (S == SCALE_F16_MIN) return packed_half(lds_16(scales + 16 + 2 * b), 0);
    uint32_t at = scales + (group == 32 ? 16 + 2 * b : 8 + b / 2 * 2);
    float m = packed_half(lds_16(at), bf16);
    return packed_form<KIND>::LOW == 8 ? fmaf(128, s.f[b], m) : m;
}

/* Integer sums of a block of 32 columns: [blocks i, i + 4 of the chunk][digit][row of W and of x]. */
typedef int block_sums[2][DIGITS][4];

/* Half a block each of blocks i and i + 4: 16 columns `m` of both. x_at: this lane's digits of block i. */
__device__ __forceinline__ void multiply_half(block_sums &c, const uint32_t (&a)[4], const uint32_t (&b)[4], int m, uint32_t x_at,
                                              uint32_t pitch, bool present)
{
    bool first = (threadIdx.x & 3) < 2;
#pragma unroll
    for (int d = 0; d < DIGITS; d++) {
        uint2 v = make_uint2(0, 0);
        if (present) v = lds_64(x_at + d * pitch + m * 16);
        mma_int8(c[0][d], a[2 * m], b[2 * m], a[2 * m + 1], b[2 * m + 1], first ? v.x : 0, first ? v.y : 0);
        mma_int8(c[1][d], a[2 * m], b[2 * m], a[2 * m + 1], b[2 * m + 1], first ? 0 : v.x, first ? 0 : v.y);
    }
}

/* Scales the sums of blocks i and i + 4, or of 16 columns `m` of each: integers into total, others into acc. */
template <int KIND>
__device__ __forceinline__ void scale_sums(const block_sums &c, const row_scales<KIND> (&s)[2], int i, int m,
                                           int (&total)[DIGITS][4], float (&acc)[2][2])
{
    typedef packed_form<KIND> F;
    constexpr float UNIT = 1.0f / (1 << F::SHIFT);
#pragma unroll
    for (int set = 0; set < 2; set++)
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const int block = 4 * set + i;
            if (packed_form<KIND>::INTEGER) {
                int by = s[k / 2].integer(packed_form<KIND>::FINE ? 2 * block + m : block);
#pragma unroll
                for (int d = 0; d < DIGITS; d++) total[d][k] += c[set][d][k] * by;
            } else {
                float v = fmaf((float)c[set][2][k], 65536, (float)(c[set][1][k] * 256 + c[set][0][k]));
                acc[k / 2][k % 2] = fmaf(v, s[k / 2].f[block] * UNIT, acc[k / 2][k % 2]);
            }
        }
}

/* rest += offsets of one row of W times the sums of rows 2 t and 2 t + 1 of x. */
template <int KIND>
__device__ __forceinline__ void add_offsets(const row_scales<KIND> &s, uint32_t scales, float dmin, const rows_x &x,
                                            uint32_t rows, uint32_t group, uint32_t bf16, float (&rest)[2])
{
#pragma unroll
    for (int b = 0; b < 8; b++) {
        float m = offset_of<KIND>(s, scales, dmin, b, 0, group, bf16);
#pragma unroll
        for (int e = 0; e < 2; e++) {
            uint2 v = lds_64(x.sums + min(2 * (threadIdx.x & 3) + e, rows - 1) * x.sums_pitch + b * 8);
            float one = __uint_as_float(v.x), two = __uint_as_float(v.y);
            if (packed_form<KIND>::SCALES == SCALE_K2)
                rest[e] = fmaf(offset_of<KIND>(s, scales, dmin, b, 1, group, bf16), two, fmaf(m, one, rest[e]));
            else
                rest[e] = fmaf(m, one + two, rest[e]);
        }
    }
}

/* Multiplies a chunk, the first eight rows at `low`, the others `to_high` bytes after them. x: of this chunk. acc and rest: [row g, g + 8 of W][row 2 t, 2 t + 1 of x]. */
template <int KIND>
__device__ __forceinline__ void use_rows(uint32_t low, uint32_t to_high, const rows_x &x, uint32_t rows, uint32_t group,
                                         uint32_t bf16, float (&acc)[2][2], float (&rest)[2][2])
{
    typedef packed_form<KIND> F;
    constexpr float UNIT = 1.0f / (1 << F::SHIFT);
    uint32_t g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3, at = x.digits + (t >> 1) * 128 * rows + g * 32 + (t & 1) * 8;
    slot_scales<KIND> place(low, to_high, group);
    row_codes<KIND> w[2];
    row_scales<KIND> s[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        load_codes(w[half], low + half * to_high);
        s[half].load(place.scales[half], place.factors[half], group, bf16);
    }
    int total[DIGITS][4] = {};
#pragma unroll
    for (int i = 0; i < 4; i++, at += 32 * rows) {
        uint32_t a[4], b[4];
        w[0].block(i, a);
        w[1].block(i, b);
        block_sums c = {};
        multiply_half(c, a, b, 0, at, x.pitch, g < rows);
        if (packed_form<KIND>::FINE) {
            scale_sums<KIND>(c, s, i, 0, total, acc);
#pragma unroll
            for (int k = 0; k < 2 * DIGITS * 4; k++) c[k / (4 * DIGITS)][k / 4 % DIGITS][k % 4] = 0;
        }
        multiply_half(c, a, b, 1, at, x.pitch, g < rows);
        scale_sums<KIND>(c, s, i, 1, total, acc);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float dmin = 0;
        if (packed_form<KIND>::INTEGER) {
            const float2 factors = chunk_factors<KIND>(place.factors[half]);
            const float d = factors.x * UNIT;
            dmin = factors.y;
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int k = 2 * half + e;
                float v = fmaf(fmaf((float)total[2][k], 256, (float)total[1][k]), 256, (float)total[0][k]);
                acc[half][e] = fmaf(v, d, acc[half][e]);
            }
        }
        if (packed_form<KIND>::OFFSETS) add_offsets<KIND>(s[half], place.scales[half], dmin, x, rows, group, bf16, rest[half]);
    }
}

__device__ __forceinline__ void use_any(uint32_t kind, uint32_t low, uint32_t to_high, const rows_x &x, uint32_t rows,
                                        uint32_t group, uint32_t bf16, float (&acc)[2][2], float (&rest)[2][2])
{
    switch (kind) {
#define X(name, ...)                                                          \
    case CK_P_##name:                                                         \
        use_rows<CK_P_##name>(low, to_high, x, rows, group, bf16, acc, rest); \
        break;
        CK_PACKED_KINDS(X)
#undef X
    }
}

/* Converts B rows of x from row r on: all loads first. unit: value of one unit of each row's lowest digit. */
template <int P, int B>
__device__ __forceinline__ void put_x_rows(const ck_packed &a, uint32_t r, uint32_t from, uint32_t width, const rows_x &to,
                                           float *unit)
{
    uint32_t lane = threadIdx.x & 31;
    warp_x<P> x[B];
#pragma unroll
    for (int n = 0; n < B; n++)
#pragma unroll
        for (int i = 0; i < P; i++) {
            x[n].v[i] = make_float4(0, 0, 0, 0);
            if (r + n < a.rows && i * 128 < width)
                x[n].v[i] = four_at(a.s.g.x.p + (size_t)(r + n) * a.s.g.x.stride, from + i * 128 + lane * 4);
        }
#pragma unroll
    for (int n = 0; n < B; n++) {
        if (r + n >= a.rows) break;
        uint32_t e = warp_exponent(x[n]);
        float scale = __uint_as_float((TO_DIGITS - BELOW - e) << 23);
#pragma unroll
        for (int i = 0; i < P; i++) {
            if (i * 128 >= width) break;
            uint32_t d[4], block = i * 4 + lane / 8;
            float4 v = x[n].v[i];
            split_digits(v, scale, d);
#pragma unroll
            for (int k = 0; k < DIGITS; k++)
                sts_u32(to.digits + k * to.pitch + (block * a.rows + r + n) * 32 + lane % 8 * 4, d[k]);
            float s = (v.x + v.y) + (v.z + v.w);
            s += __shfl_xor_sync(0xffffffffu, s, 1);
            s += __shfl_xor_sync(0xffffffffu, s, 2);
            if ((lane & 3) == 0) sts_u32(to.sums + (r + n) * to.sums_pitch + (i * 8 + lane / 4) * 4, __float_as_uint(s));
        }
        if (lane == 0) unit[r + n] = e == 255 ? CUDART_NAN_F : __uint_as_float((e - OF_DIGITS + BELOW) << 23);
    }
}

/* One output of a turn per thread: row of the tile, row of x, tile. Operands are loaded before the sums are
 * ready. */
struct row_output {
    float *y;
    float add, bias_up;
    uint32_t active;
};
__device__ __forceinline__ row_output find_output(const ck_packed &a, uint32_t tile_n, uint32_t n_tiles)
{
    row_output o = {nullptr, 0, 0, 0};
    uint32_t r = threadIdx.x & 15, x = threadIdx.x >> 4 & 7, slot = threadIdx.x >> 7;
    if (tile_n + slot >= n_tiles || x >= a.rows || (a.s.g.glu && r >= 8)) return o;
    tile_of t = find_tile(a.s, blockIdx.x + (tile_n + slot) * gridDim.x);
    if (r >= t.n) return o;
    const ck_segment &s = a.s.g.segment[t.segment];
    o.active = 1;
    o.y = s.y.p + (size_t)x * s.y.stride + t.row + r;
    if (s.bias) o.add = s.bias[t.row + r];
    if (s.residual.p) o.add += s.residual.p[(size_t)x * s.residual.stride + t.row + r];
    if (a.s.g.glu && a.s.g.segment[1].bias) o.bias_up = a.s.g.segment[1].bias[t.row + r];
    return o;
}
/* partial: [tile][row][row of x][warp of the group]. */
__device__ __forceinline__ void finish_output(const ck_packed &a, const row_output &o, const float *partial)
{
    if (!o.active) return;
    uint32_t r = threadIdx.x & 15, x = threadIdx.x >> 4 & 7, slot = threadIdx.x >> 7, split = 1u << a.s.split_log;
    const float *p = partial + (((slot * ROWS + r) * X_ROWS + x) << a.s.split_log), *q = p + ((8 * X_ROWS) << a.s.split_log);
    float v = p[0], up = a.s.g.glu ? q[0] : 0;
    for (uint32_t i = 1; i < split; i++) {
        v += p[i];
        if (a.s.g.glu) up += q[i];
    }
    v += o.add;
    if (a.s.g.glu) v = activate(a.s.g.act, v) * (up + o.bias_up);
    *o.y = v;
}

/* Kernel body. P: 128-column pieces of x per warp, at most; B: rows of x loaded together. */
template <int P, int B> __device__ __forceinline__ void packed_rows(const ck_packed &a)
{
    extern __shared__ __align__(128) unsigned char smem[];
    __shared__ float units[WARPS][X_ROWS];
    __shared__ ring_mbars mbars;
    const ck_stream &s = a.s;
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, part = warp & ((1u << s.split_log) - 1),
             group = warp >> s.split_log, groups = WARPS >> s.split_log, n_tiles = (s.tiles - blockIdx.x - 1) / gridDim.x + 1,
             slot = 0, parity = 0, x_bytes = CK_PACKED_ROWS_X_BYTES(a.width, a.rows);
    warp_part w = part_of(a, part);
    /* Shared memory: x of each warp, partial sums, rings. */
    rows_x x = {smem_addr(smem) + warp * x_bytes, a.width * a.rows, 0, a.width / 4};
    x.sums = x.digits + DIGITS * x.pitch;
    float *partial = reinterpret_cast<float *>(smem + WARPS * x_bytes);
    unsigned char *ring = reinterpret_cast<unsigned char *>(partial + ((TURN * ROWS * X_ROWS) << s.split_log)) +
                          warp * s.stages * s.stage_bytes;
    uint64_t *full = mbars.full[warp];
    load_cursor h;
    h.tile = w.n ? group : n_tiles, h.slot = 0;
    launch_dependents();
    prepare_ring(mbars);
    if (h.tile < n_tiles) find_row(a, h, w);
#pragma unroll 1
    for (uint32_t i = 0; i < s.stages; i++) issue_chunk(a, h, ring, full, w, n_tiles);
    wait_for_inputs();
#pragma unroll 1
    for (uint32_t r = 0; r < a.rows; r += B) put_x_rows<P, B>(a, r, w.first * CHUNK, w.n * CHUNK, x, units[warp]);
    __syncwarp();
#pragma unroll 1
    for (uint32_t t0 = 0; t0 < n_tiles; t0 += TURN) {
        row_output o = find_output(a, t0, n_tiles);
#pragma unroll 1
        for (uint32_t n = group; n < TURN && t0 + n < n_tiles; n += groups) {
            float acc[2][2] = {}, rest[2][2] = {};
            const auto &f = a.of[find_tile(s, blockIdx.x + (t0 + n) * gridDim.x).segment];
            uint32_t kind = f.kind, of = f.group, bf16 = f.bf16, block = f.block;
            rows_x at = x;
#pragma unroll 1
            for (uint32_t left = w.n, in_slot; left; left -= in_slot) {
                uint32_t low = smem_addr(ring) + slot * s.stage_bytes;
                in_slot = min(a.per, left);
                mbar_wait(&full[slot], parity);
#pragma unroll 1
                for (uint32_t c = 0; c < in_slot; c++, low += block) {
                    use_any(kind, low, in_slot * block, at, a.rows, of, bf16, acc, rest);
                    at.digits += CHUNK * a.rows, at.sums += CHUNK / 4;
                }
                __syncwarp();
                issue_chunk(a, h, ring, full, w, n_tiles);
                if (++slot == s.stages) slot = 0, parity ^= 1;
            }
#pragma unroll
            for (int k = 0; k < 4; k++) {
                uint32_t row = (lane >> 2) + k / 2 * 8, col = (lane & 3) * 2 + k % 2;
                if (col < a.rows)
                    partial[(((n * ROWS + row) * X_ROWS + col) << s.split_log) + part] = w.n ? fmaf(acc[k / 2][k % 2],
                                                                                                    units[warp][col],
                                                                                                    rest[k / 2][k % 2])
                                                                                             : 0;
            }
        }
        consumers_sync();
        finish_output(a, o, partial);
        consumers_sync();
    }
}

#define PACKED_ROWS(P, B)                                                                                                   \
    extern "C" __global__ void __launch_bounds__(CK_PACKED_THREADS, 1) packed_rows_##P(const __grid_constant__ ck_packed a) \
    {                                                                                                                       \
        packed_rows<P, B>(a);                                                                                               \
    }
PACKED_ROWS(4, 4)
PACKED_ROWS(8, 2)
