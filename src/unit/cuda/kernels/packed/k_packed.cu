/* k_packed.cu: product of packed weights (k_packed.cuh) with one row of x on tensor cores, codes used
 * as stored. sm_90. Host: issue_packed.c. Epilogue as in k_stream.cu (k_epilogue.cuh).
 *
 * x is a 31-bit fixed-point number, one scale per warp's columns, in four digits of 8 bits
 * (k_fixed.cuh). A product m16n8k32 takes 16 columns each of block i and of block i + 4 of a chunk:
 * lanes with t < 2 have codes of the former, the others of the latter. Columns 0 to 3 of the right
 * operand are the digits for the former and zero for the latter, columns 4 to 7 the reverse, so a
 * lane's accumulators belong to one block. Integer sums are exact; integer scales are applied to them
 * as integers over a whole chunk, fp16 scales after each block. Offsets (minima) multiply the sums of
 * x, a block or two per lane, in fp32. 4,096 4-bit weights need about 150 instructions of a warp.
 *
 * 256 threads. `split` warps share the columns of a tile of 16 rows (with glu 8 of gate and 8 of up);
 * groups of `split` warps take the block's tiles in turn. A warp loads its own weights by bulk copies
 * into a private ring of chunks, which is full before griddepcontrol.wait. Segments may have
 * different kinds. Warps wait for each other only when sums are complete; the RMS factor is applied
 * then.
 * SPDX-License-Identifier: MIT */
#include "k_epilogue.cuh"
#include "k_packed_ring.cuh"
#include "k_xsplit.cuh"

#if __CUDA_ARCH__ >= 900

/* One scale per block for a lane: four fp32 numbers of a row. */
template <int KIND>
__device__ __forceinline__ void block_scales(uint32_t scales, uint32_t factors, uint32_t group, uint32_t bf16, float (&to)[4])
{
    typedef packed_form<KIND> F;
    uint32_t second = threadIdx.x >> 1 & 1;
    if (F::SCALES == SCALE_E8) {
        uint32_t v = lds_32(factors + second * 4);
#pragma unroll
        for (int i = 0; i < 4; i++) to[i] = half_e8m0(byte_of(v, i));
        return;
    }
    if (F::SCALES == SCALE_PAIRS) {
        uint32_t wide = group == 32, at = scales;
        uint2 v = wide ? lds_64(at + second * 8) : make_uint2(lds_32(at + second * 4), 0);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t both = wide ? (i < 2 ? v.x : v.y) : v.x, odd = wide ? i & 1 : i >> 1;
            to[i] = packed_half(odd ? both >> 16 : both & 0xffffu, bf16);
        }
        return;
    }
    uint2 v = lds_64(scales + second * 8);
    float2 x = halves_of(v.x), y = halves_of(v.y);
    to[0] = x.x, to[1] = x.y, to[2] = y.x, to[3] = y.y;
}

/* Offsets times sums of x: blocks 2 t and 2 t + 1 of a row. sums: x by 16 columns, of this lane's
 * blocks. */
template <int KIND>
__device__ __forceinline__ float offset_part(uint32_t scales, uint32_t factors, float4 sums, uint32_t group, uint32_t bf16)
{
    typedef packed_form<KIND> F;
    uint32_t t = threadIdx.x & 3;
    float first = sums.x + sums.y, second = sums.z + sums.w;
    if (F::SCALES == SCALE_K32) {
        uint32_t v = lds_16(scales + 8 + 2 * t);
        float d = halves_of(lds_32(factors)).y;
        return -d * fmaf((float)byte_of(v, 0), first, (float)byte_of(v, 1) * second);
    }
    if (F::SCALES == SCALE_K2) {
        uint32_t v = lds_32(scales + 4 * t) >> 4 & 0x0f0f0f0fu;
        float d = halves_of(lds_32(factors)).y;
        float s = (float)byte_of(v, 0) * sums.x;
        s = fmaf((float)byte_of(v, 1), sums.y, s);
        s = fmaf((float)byte_of(v, 2), sums.z, s);
        return -d * fmaf((float)byte_of(v, 3), sums.w, s);
    }
    if (F::SCALES == SCALE_F16_MIN) {
        float2 m = halves_of(lds_32(scales + 16 + 4 * t));
        return fmaf(m.x, first, m.y * second);
    }
    if (F::SCALES != SCALE_PAIRS) return 0;
    uint32_t wide = group == 32, at = scales + (wide ? 4 : 2) * t;
    uint32_t m = wide ? lds_32(at + 16) : lds_16(at + 8), s = F::LOW != 8 ? 0 : wide ? lds_32(at) : lds_16(at);
    if (!wide) m |= m << 16, s |= s << 16;
    float a = packed_half(m & 0xffffu, bf16), b = packed_half(m >> 16, bf16);
    if (F::LOW == 8) a = fmaf(128, packed_half(s & 0xffffu, bf16), a), b = fmaf(128, packed_half(s >> 16, bf16), b);
    return fmaf(a, first, b * second);
}

/* Multiplies one chunk: acc += scaled digit products of rows g and g + 8, rest += offsets. x: this
 * lane's digits of the chunk, read where `own`; sums: address of the chunk's sums of x. */
template <int KIND>
__device__ __forceinline__ void use_chunk(uint32_t slot, uint32_t x, uint32_t own, uint32_t sums, uint32_t group, uint32_t bf16,
                                          float (&acc)[2], float (&rest)[2])
{
    typedef packed_form<KIND> F;
    constexpr bool INTEGER = packed_form<KIND>::INTEGER, FINE = packed_form<KIND>::FINE;
    constexpr float UNIT = 1.0f / (1 << F::SHIFT);
    uint32_t lane = threadIdx.x & 31, second = lane >> 1 & 1;
    slot_scales<KIND> at(slot, group);
    row_codes<KIND> w[2];
    load_codes(w[0], slot);
    load_codes(w[1], slot + at.block);
    /* Scales of this lane's four blocks. */
    uint2 k[2];
    float f[2][4];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (FINE) k[half] = lds_64(at.scales[half] + second * 8);
        if (F::SCALES == SCALE_K2) k[half].x &= 0x0f0f0f0fu, k[half].y &= 0x0f0f0f0fu;
        if (F::SCALES == SCALE_K32) k[half].x = lds_32(at.scales[half] + second * 4);
        if (!INTEGER) block_scales<KIND>(at.scales[half], at.factors[half], group, bf16, f[half]);
    }
    int total[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t a[4], b[4];
        uint4 v = make_uint4(0, 0, 0, 0);
        if (own) v = lds_128(x + i * 32);
        w[0].block(i, a);
        w[1].block(i, b);
        int c[2][4] = {};
        mma_int8(c[0], a[0], b[0], a[1], b[1], v.x, v.y);
        mma_int8(c[FINE], a[2], b[2], a[3], b[3], v.z, v.w);
        if constexpr (!INTEGER) {
            acc[0] = fmaf((float)(c[0][1] * 256 + c[0][0]), f[0][i] * UNIT, acc[0]);
            acc[1] = fmaf((float)(c[0][3] * 256 + c[0][2]), f[1][i] * UNIT, acc[1]);
        } else {
#pragma unroll
            for (int n = 0; n < (FINE ? 4 : 2); n++) { /* of a row: the block, or 16 columns n / 2 of it */
                const int half = n % 2, m = n / 2, of = FINE ? 2 * i + m : i;
                uint32_t word = of < 4 ? k[half].x : k[half].y;
                int s = F::SCALES == SCALE_K16 ? signed_byte(word, of % 4) : byte_of(word, of % 4);
                total[2 * half] += c[m][2 * half] * s;
                total[2 * half + 1] += c[m][2 * half + 1] * s;
            }
        }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (INTEGER) {
            uint32_t bits = lds_32(at.factors[half]);
            float d = F::SCALES == SCALE_K16 ? __uint_as_float(bits) : halves_of(bits).x;
            acc[half] = fmaf(fmaf((float)total[2 * half + 1], 256, (float)total[2 * half]), d * UNIT, acc[half]);
        }
        if (packed_form<KIND>::OFFSETS)
            rest[half] += offset_part<KIND>(at.scales[half], at.factors[half], lds_f32x4(sums + (lane & 3) * 16), group, bf16);
    }
}

/* The chunk's kind is uniform in the block. */
__device__ __forceinline__ void use_any(uint32_t kind, uint32_t slot, uint32_t x, uint32_t own, uint32_t sums, uint32_t group,
                                        uint32_t bf16, float (&acc)[2], float (&rest)[2])
{
    switch (kind) {
#define X(name, low, high, scales, factors)                                 \
    case CK_P_##name:                                                       \
        use_chunk<CK_P_##name>(slot, x, own, sums, group, bf16, acc, rest); \
        break;
        CK_PACKED_KINDS(X)
#undef X
    }
}

/* Dynamic shared memory of a block, from the view of one warp. */
struct packed_smem {
    uint32_t *words; /* x of this warp, `pitch` words per digit */
    float *sums, *partial;
    unsigned char *ring;
    uint32_t pitch;
};
__device__ __forceinline__ packed_smem find_smem(const ck_packed &a, uint32_t turn)
{
    extern __shared__ __align__(128) unsigned char smem[];
    uint32_t warp = threadIdx.x >> 5, pitch = a.width / 4 + 8;
    unsigned char *own = smem + warp * CK_PACKED_X_BYTES(a.width), *after = smem + WARPS * CK_PACKED_X_BYTES(a.width);
    return packed_smem{reinterpret_cast<uint32_t *>(own), reinterpret_cast<float *>(own + 16 * pitch),
                       reinterpret_cast<float *>(after),
                       after + ((turn * ROWS * 4) << a.s.split_log) + warp * a.s.stages * a.s.stage_bytes, pitch};
}

/* Norm of four columns from column e on, without the 1 / rms of a whole row. squares: sum over this
 * lane's columns. Groups are 128 columns: the warp's lanes of one piece. */
__device__ __forceinline__ float4 norm_four(const ck_norm &n, float4 v, uint32_t e, float &squares)
{
    float plus = n.plus_one && n.weight ? 1.0f : 0.0f, own = v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w, inverse = 1;
    float4 m = n.weight ? four_at(n.weight, n.groups > 1 ? e % 128 : e) : make_float4(1, 1, 1, 1);
    squares += own;
    if (n.groups > 1) inverse = rsqrtf(warp_sum(own) / 128 + n.eps);
    v = make_float4(v.x * inverse * (plus + m.x), v.y * inverse * (plus + m.y), v.z * inverse * (plus + m.z),
                    v.w * inverse * (plus + m.w));
    if (n.gate.p) {
        float4 z = four_at(n.gate.p, e);
        v.x *= activate(ACT_SILU, z.x), v.y *= activate(ACT_SILU, z.y), v.z *= activate(ACT_SILU, z.z),
            v.w *= activate(ACT_SILU, z.w);
    }
    return v;
}

/* Stores the warp's columns of x as digits, the words of a block of 32 columns in the order of operands,
 * and sums by 16 columns. Returns the value of one unit of the lowest digit. */
template <int P> __device__ __forceinline__ float put_x(const warp_x<P> &x, uint32_t width, const packed_smem &to)
{
    uint32_t e = warp_exponent(x), lane = threadIdx.x & 31, place = (lane & ~7u) | (lane & 2) << 1 | (lane & 4) >> 1 | (lane & 1);
    float scale = __uint_as_float((TO_DIGITS - e) << 23);
#pragma unroll
    for (int i = 0; i < P; i++) {
        if (i * 128 >= width) break;
        uint32_t d[4];
        float4 v = x.v[i];
        split_digits(v, scale, d);
#pragma unroll
        for (int k = 0; k < 4; k++) to.words[k * to.pitch + i * 32 + place] = d[k];
        float s = (v.x + v.y) + (v.z + v.w);
        s += __shfl_xor_sync(0xffffffffu, s, 1);
        s += __shfl_xor_sync(0xffffffffu, s, 2);
        if ((lane & 3) == 0) to.sums[i * 8 + lane / 4] = s;
    }
    __syncwarp();
    return last_digit_value(e);
}

/* Waits for the inputs if `real`, then loads and converts x. Returns the factor of the sums. */
template <int P>
__device__ __forceinline__ float load_inputs(const ck_packed &a, uint32_t real, row_epilogue &e, const packed_smem &to,
                                             const warp_part &w, float *squares)
{
    const ck_gemv &g = a.s.g;
    uint32_t lane = threadIdx.x & 31, from = w.first * CHUNK, width = w.n * CHUNK;
    warp_x<P> x;
    if (real) wait_for_inputs();
#pragma unroll
    for (int i = 0; i < P; i++) {
        x.v[i] = make_float4(0, 0, 0, 0);
        if (i * 128 < width) x.v[i] = four_at(g.x.p, from + i * 128 + lane * 4);
    }
    if (e.residual_at) e.residual = *e.residual_at;
    if (g.norm.present) {
        float own = 0;
#pragma unroll
        for (int i = 0; i < P; i++)
            if (i * 128 < width) x.v[i] = norm_four(g.norm, x.v[i], from + i * 128 + lane * 4, own);
        own = warp_sum(own);
        if (lane == 0) *squares = own;
    }
    return put_x<P>(x, width, to);
}

/* Row sums over this warp's columns: [row][warp of the group]. */
__device__ __forceinline__ void put_rows(const float (&acc)[2], const float (&rest)[2], float unit, float *to, uint32_t split_log)
{
    uint32_t lane = threadIdx.x & 31;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float v = fmaf(acc[i], lane & 1 ? unit * 65536.0f : unit, rest[i]);
        v += __shfl_xor_sync(0xffffffffu, v, 1);
        v += __shfl_xor_sync(0xffffffffu, v, 2);
        if ((lane & 3) == 0) to[((lane >> 2) + 8 * i) << split_log] = v;
    }
}

/* Epilogue of `done` tiles from the block's tile n on, when all warps have their sums. */
__device__ __forceinline__ void finish_turn(const ck_packed &a, row_epilogue &e, uint32_t n, uint32_t done, const float *partial,
                                            const float *squares, uint32_t real, float &post_scale, float &best, uint32_t &index)
{
    const ck_stream &s = a.s;
    consumers_sync();
    if (n) {
        load_epilogue<CK_Q8, true>(s, n, e);
        if (e.residual_at) e.residual = *e.residual_at;
    } else if (s.g.norm.present && s.g.norm.groups == 1) {
        post_scale = 0;
        for (uint32_t i = 0; i < 1u << s.split_log; i++) post_scale += squares[i];
        post_scale = rsqrtf(post_scale / s.g.k + s.g.norm.eps);
    }
    e.active = e.active && threadIdx.x >> s.outs_log < done;
    finish_row<CK_Q8, true, true>(s, e, partial, real, best, index, post_scale);
    consumers_sync();
}

/* Kernel body. P: 128-column pieces of x per warp, at most. */
template <int P> __device__ __forceinline__ void packed(const ck_packed &a)
{
    __shared__ float squares[2 * WARPS]; /* one per warp; only those of the first group are used */
    __shared__ uint64_t bests[WARPS];
    __shared__ ring_mbars mbars;
    const ck_stream &s = a.s;
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, part = warp & ((1u << s.split_log) - 1),
             group = warp >> s.split_log, groups = WARPS >> s.split_log, index = 0xfffffffeu,
             n_tiles = (s.tiles - blockIdx.x - 1) / gridDim.x + 1, turn = CK_DIGITS_TURN(s.tiles, gridDim.x), slot = 0,
             parity = 0;
    uint64_t *full = mbars.full[warp];
    warp_part w = part_of(a, part);
    packed_smem at = find_smem(a, turn);
    float best = -CUDART_INF_F, post_scale = 1;
    load_cursor h;
    row_epilogue e;
    h.tile = group, h.slot = 0;
    launch_dependents();
    prepare_ring(mbars);
    load_conv_ptrs<true>(s, e);
    if (h.tile < n_tiles) find_row(a, h, w);
#pragma unroll 1
    for (uint32_t i = 0; i < s.stages; i++) issue_chunk(a, h, at.ring, full, w, n_tiles);
    load_epilogue<CK_Q8, true>(s, 0, e);
    /* Lanes whose columns of the right operand belong to their block; digit lane / 4 % 4. */
    uint32_t own = lane >> 4 == (lane >> 1 & 1),
             x = smem_addr(at.words) + ((lane >> 2 & 3) * at.pitch * 4) + (lane >> 1 & 1) * 128 + (lane & 1) * 16;
    /* Two rounds: the first one on the first chunk, before the inputs arrive, to load the instruction cache. */
#pragma unroll 1
    for (uint32_t real = 0; real < 2; real++) {
        float unit = load_inputs<P>(a, real, e, at, w, squares + warp);
#pragma unroll 1
        for (uint32_t t0 = 0; t0 < (real ? n_tiles : 1); t0 += turn) {
            uint32_t done = n_tiles - t0 < turn ? n_tiles - t0 : turn;
#pragma unroll 1
            for (uint32_t n = group; n < done; n += groups) {
                float acc[2] = {0, 0}, rest[2] = {0, 0};
                const auto &f = a.of[find_tile(s, blockIdx.x + (t0 + n) * gridDim.x).segment];
                uint32_t kind = f.kind, of = f.group, bf16 = f.bf16;
#pragma unroll 1
                for (uint32_t j = 0; j < (real ? w.n : 1); j++) {
                    mbar_wait(&full[slot], parity);
                    use_any(kind, smem_addr(at.ring) + slot * s.stage_bytes, x + j * 256, own, smem_addr(at.sums) + j * 64, of,
                            bf16, acc, rest);
                    if (!real) break;
                    __syncwarp();
                    issue_chunk(a, h, at.ring, full, w, n_tiles);
                    if (++slot == s.stages) slot = 0, parity ^= 1;
                }
                put_rows(acc, rest, unit, at.partial + ((n * ROWS) << s.split_log) + part, s.split_log);
                if (!real) break;
            }
            finish_turn(a, e, t0, done, at.partial, squares, real, post_scale, best, index);
        }
    }
    if (s.g.best) store_block_best(s.g, best, index, bests);
}

#else
template <int P> __device__ __forceinline__ void packed(const ck_packed &) {} /* never launched before sm_90 */
#endif

#define PACKED(P)                                                                                                      \
    extern "C" __global__ void __launch_bounds__(CK_PACKED_THREADS, 2) packed_##P(const __grid_constant__ ck_packed a) \
    {                                                                                                                  \
        packed<P>(a);                                                                                                  \
    }
PACKED(4)
PACKED(8)
PACKED(16)
