/* k_packed.cu: product of packed weights (k_packed.cuh) with one row of x on tensor cores, codes used
 * as stored. All architectures. Host: issue_packed.c. Epilogue as in k_stream.cu (k_epilogue.cuh).
 *
 * 256 threads. `split` warps share the columns of a tile of 16 rows (with glu 8 of gate and 8 of up);
 * groups of `split` warps take the block's tiles in turn. A warp copies its own weights
 * into a private ring of chunks, which is full before griddepcontrol.wait. Segments may have
 * different kinds. Warps wait for each other only when sums are complete; the RMS factor is applied
 * then.
 * SPDX-License-Identifier: MIT */
#include "k_epilogue.cuh"
#include "packed/k_packed_chunk.cuh"
#include "packed/k_packed_ring.cuh"
#include "k_xsplit.cuh"

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

/* Waits for the inputs, then loads and converts x. Returns the factor of the sums. */
template <int P>
__device__ __forceinline__ float load_inputs(const ck_packed &a, row_epilogue &e, const packed_smem &to, const warp_part &w,
                                             float *squares)
{
    const ck_gemv &g = a.s.g;
    uint32_t lane = threadIdx.x & 31, from = w.first * CHUNK, width = w.n * CHUNK;
    warp_x<P> x;
    wait_for_inputs();
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
                                            const float *squares, float &post_scale, float &best, uint32_t &index)
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
    finish_row<CK_Q8, true, true>(s, e, partial, true, best, index, post_scale);
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
    float unit = load_inputs<P>(a, e, at, w, squares + warp);
#pragma unroll 1
    for (uint32_t t0 = 0; t0 < n_tiles; t0 += turn) {
        uint32_t done = n_tiles - t0 < turn ? n_tiles - t0 : turn;
#pragma unroll 1
        for (uint32_t n = group; n < done; n += groups) {
            float acc[2] = {0, 0}, rest[2] = {0, 0};
            const auto &f = a.of[find_tile(s, blockIdx.x + (t0 + n) * gridDim.x).segment];
            uint32_t kind = f.kind, of = f.group, bf16 = f.bf16, block = f.block;
#pragma unroll 1
            for (uint32_t j = 0; j < w.n;) {
                uint32_t in_slot = min(a.per, w.n - j), low = smem_addr(at.ring) + slot * s.stage_bytes;
                mbar_wait(&full[slot], parity);
#pragma unroll 1
                for (uint32_t end = j + in_slot; j < end; j++, low += block)
                    use_any(kind, low, in_slot * block, x + j * 256, own, smem_addr(at.sums) + j * 64, of, bf16, acc, rest);
                __syncwarp();
                issue_chunk(a, h, at.ring, full, w, n_tiles);
                if (++slot == s.stages) slot = 0, parity ^= 1;
            }
            put_rows(acc, rest, unit, at.partial + ((n * ROWS) << s.split_log) + part, s.split_log);
        }
        finish_turn(a, e, t0, done, at.partial, squares, post_scale, best, index);
    }
    if (s.g.best) store_block_best(s.g, best, index, bests);
}

#define PACKED(P)                                                                                                      \
    extern "C" __global__ void __launch_bounds__(CK_PACKED_THREADS, 2) packed_##P(const __grid_constant__ ck_packed a) \
    {                                                                                                                  \
        packed<P>(a);                                                                                                  \
    }
PACKED(4)
PACKED(8)
PACKED(16)
