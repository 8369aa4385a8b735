/* k_digits.cu: products of Q8_0 and 16-bit weights with one row of x on the tensor cores, for large weights: a weight goes into
 * the product as it lies, of Q8_0 integers times integers. 16 bits: x is two fp16 or three bf16 numbers, columns of the right
 * factor, sums fp32.
 *
 * x is a fixed-point number of 31 bits, one scale for the columns of a warp, written as four digits of 8 bits from -128 to 127:
 * four columns of the right factor. A product of 16 rows with 32 columns of weights and these is exact in int32; 64 columns at
 * once, two scales of a row, take the other four columns of the factor (lanes hold 16 bytes of a row, two of them a scale's). So
 * a warp does 1,024 weights with some 20 instructions and nothing waits for arithmetic.
 *
 * A warp has an eighth of all columns, in each tile of 16 rows (with glu 8 of gate's and the same of up's) of its block. It asks
 * for its own weights, by copies of 16 bytes a lane into a ring of its own of steps of 128 bytes a row, `early` of them before
 * the inputs are waited for, and the others behind x. No warp waits for another before the sums are there: a norm's 1 / length is
 * multiplied behind them. SPDX-License-Identifier: MIT */
#include "k_epilogue.cuh"
#include "k_xsplit.cuh"

#if __CUDA_ARCH__ >= 900

/* A step: 128 bytes of 16 rows. */
enum { ROWS = 16, STEP = 128, STEP_BYTES = ROWS * STEP, CHUNK = 512, CHUNK_BYTES = ROWS * CHUNK / 16, S = CK_DIGITS_STEPS };

/* Steps asked for and used together: of 16 bits, whose sums are one product behind the other, two. Their number is even. */
template <int KIND> static constexpr uint32_t PER = KIND == CK_Q8 ? 1 : 2;
static_assert(S % 2 == 0, "a turn of the ring");

__device__ __forceinline__ void copy16(uint32_t to, const void *from)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

/* Where a warp's next step of weights comes from and goes to. */
struct ahead {
    const unsigned char *row[4], *scale;
    uint32_t tile, step, slot, chunk; /* tile: of the block's */
};

/* from: byte of a row. */
template <int KIND> __device__ __forceinline__ void find_rows(const ck_stream &a, ahead &h, uint32_t from)
{
    tile_of t = find_tile(a, blockIdx.x + h.tile * gridDim.x);
    uint32_t lane = threadIdx.x & 31;
#pragma unroll
    for (int i = 0; i < (KIND == CK_Q8 ? 5 : 4); i++) { /* four pieces of weights, one of scales */
        uint32_t r = i < 4 ? 4 * i + (lane >> 3) : lane >> 1, own = a.g.glu ? r & 7 : r;
        const ck_segment &s = a.g.segment[a.g.glu ? r >> 3 : t.segment];
        size_t row = (size_t)s.at + t.row + (own < t.n ? own : t.n - 1);
        if (i < 4)
            h.row[i] = static_cast<const unsigned char *>(s.data) + row * a.g.pitch + from + (lane & 7) * 16;
        else
            h.scale = static_cast<const unsigned char *>(s.scales) + row * a.scale_bytes + from / 16 + (lane & 1) * 16;
    }
}

/* The next step, or steps, as the product's lanes hold them: [64 bytes][8 rows][row][16 bytes]; of Q8_0 each fourth time scales
 * of 512 columns, a row 32 bytes. ring: data, then `stages` places of scales. */
template <int KIND>
__device__ __forceinline__ void ask(const ck_stream &a, ahead &h, uint32_t ring, uint32_t from, uint32_t bytes, uint32_t many)
{
    uint32_t lane = threadIdx.x & 31;
    if (h.tile < many) {
        uint32_t to = ring + h.slot * STEP_BYTES + (lane >> 2 & 1) * 1024 + (lane >> 3) * 64 + (lane & 3) * 16;
#pragma unroll
        for (int i = 0; i < 4; i++) {
#pragma unroll
            for (uint32_t n = 0; n < PER<KIND>; n++) copy16(to + n * STEP_BYTES + i * 256, h.row[i] + n * STEP);
            h.row[i] += PER<KIND> * STEP;
        }
        if (KIND == CK_Q8 && h.step % 4 == 0) {
            if (h.step * STEP + (lane & 1) * (CHUNK / 2) < bytes)
                copy16(ring + S * STEP_BYTES + h.chunk * CHUNK_BYTES + lane * 16, h.scale);
            h.scale += CHUNK / 16;
            if (++h.chunk == a.stages) h.chunk = 0;
        }
        if ((h.slot += PER<KIND>) == S) h.slot = 0;
        if ((h.step += PER<KIND>) * STEP == bytes) {
            h.step = 0;
            if (++h.tile < many) find_rows<KIND>(a, h, from);
        }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* --- x --- */

template <int P> __device__ __forceinline__ void load_own(own_x<P> &x, const float *from, uint32_t width)
{
#pragma unroll
    for (int i = 0; i < P; i++) {
        x.v[i] = make_float4(0, 0, 0, 0);
        if (i * 128 < width) x.v[i] = four_at(from, i * 128 + (threadIdx.x & 31) * 4);
    }
}

/* The norm, but for a whole row's 1 / length. Returns this lane's sum of squares. */
template <int P>
__device__ __forceinline__ float norm_own(const ck_norm &n, bool activates, own_x<P> &x, const own_x<P> &w, const own_x<P> &gate,
                                          uint32_t width)
{
    float plus = n.plus_one && n.weight ? 1.0f : 0.0f, squares = 0;
#pragma unroll
    for (int i = 0; i < P; i++) {
        if (i * 128 >= width) break;
        float4 v = x.v[i], m = w.v[i], z = gate.v[i];
        if (!n.weight) m = make_float4(1, 1, 1, 1);
        float own = v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w, inverse = 1;
        squares += own;
        if (n.groups > 1) inverse = rsqrtf(warp_sum(own) / 128 + n.eps);
        v = make_float4(v.x * inverse * (plus + m.x), v.y * inverse * (plus + m.y), v.z * inverse * (plus + m.z),
                        v.w * inverse * (plus + m.w));
        if (n.gate.p && activates)
            z = make_float4(activate(ACT_SILU, z.x), activate(ACT_SILU, z.y), activate(ACT_SILU, z.z), activate(ACT_SILU, z.w));
        if (n.gate.p) v = make_float4(v.x * z.x, v.y * z.y, v.z * z.z, v.w * z.w);
        x.v[i] = v;
    }
    return squares;
}

/* --- the product --- */

/* One step of a warp's weights as its lanes hold them. */
struct step_of {
    uint4 w[2][2], x[2]; /* [64 bytes][8 rows] */
    uint2 scale[2];
};
template <int KIND>
__device__ __forceinline__ void read_step(step_of &s, uint32_t data, uint32_t scales, uint32_t x, uint32_t own)
{
    uint32_t lane = threadIdx.x & 31;
#pragma unroll
    for (int u = 0; u < 2; u++) {
        s.w[u][0] = shared_piece(data + u * 1024 + lane * 16);
        s.w[u][1] = shared_piece(data + u * 1024 + 512 + lane * 16);
        s.x[u] = make_uint4(0, 0, 0, 0);
        if (own) s.x[u] = shared_piece(x + u * 64);
    }
    if (KIND != CK_Q8) return;
    s.scale[0] = shared_two(scales + (lane >> 2) * 32);
    s.scale[1] = shared_two(scales + (lane >> 2) * 32 + 256);
}
template <int KIND> __device__ __forceinline__ void use_step(const step_of &s, float (&acc)[4])
{
    uint32_t second = threadIdx.x & 2;
#pragma unroll
    for (int u = 0; u < 2; u++) {
        if (KIND != CK_Q8) {
            mma<KIND == CK_BF16>(acc, {s.w[u][0].x, s.w[u][1].x, s.w[u][0].y, s.w[u][1].y}, s.x[u].x, s.x[u].y);
            mma<KIND == CK_BF16>(acc, {s.w[u][0].z, s.w[u][1].z, s.w[u][0].w, s.w[u][1].w}, s.x[u].z, s.x[u].w);
            continue;
        }
        int c[4] = {0, 0, 0, 0};
        mma_int8(c, s.w[u][0].x, s.w[u][1].x, s.w[u][0].y, s.w[u][1].y, s.x[u].x, s.x[u].y);
        mma_int8(c, s.w[u][0].z, s.w[u][1].z, s.w[u][0].w, s.w[u][1].w, s.x[u].z, s.x[u].w);
        acc[0] = fmaf((float)(c[1] * 256 + c[0]), one_scale(u ? s.scale[0].y : s.scale[0].x, second), acc[0]);
        acc[1] = fmaf((float)(c[3] * 256 + c[2]), one_scale(u ? s.scale[1].y : s.scale[1].x, second), acc[1]);
    }
}

/* Sums of the tile's rows over this warp's columns: [row][eighth of the columns]. */
template <int KIND> __device__ __forceinline__ void put_rows(float (&sums)[PER<KIND>][4], float scale, float *to)
{
    uint32_t lane = threadIdx.x & 31;
    float (&acc)[4] = sums[0];
    if constexpr (PER<KIND> == 2)
#pragma unroll
        for (int i = 0; i < 4; i++) acc[i] += sums[1][i];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float v = KIND == CK_Q8 ? acc[i] * (lane & 1 ? scale * 65536.0f : scale) : (acc[2 * i] + acc[2 * i + 1]) * scale;
        v += __shfl_xor_sync(0xffffffffu, v, 1);
        v += __shfl_xor_sync(0xffffffffu, v, 2);
        if ((lane & 3) == 0) to[((lane >> 2) + 8 * i) * WARPS] = v;
    }
#pragma unroll
    for (uint32_t n = 0; n < PER<KIND>; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) sums[n][i] = 0;
}

/* What a block's warps have in shared memory. */
struct places {
    uint32_t *words; /* of this warp, `pitch` words a digit */
    float *partial;
    uint32_t pitch, ring;
};
template <int KIND> __device__ __forceinline__ places find_room(const ck_stream &a, uint32_t width, uint32_t turn)
{
    extern __shared__ __align__(128) unsigned char room[];
    uint32_t warp = threadIdx.x >> 5, pitch = width * form<KIND>::BYTES / 4 + form<KIND>::PAD;
    float *partial = reinterpret_cast<float *>(room + WARPS * form<KIND>::PARTS * 4 * pitch);
    return places{reinterpret_cast<uint32_t *>(room) + warp * form<KIND>::PARTS * pitch, partial, pitch,
                  shared_at(partial + turn * ROWS * WARPS) + warp * a.stage_bytes};
}

/* Waits for the inputs, asks for x, then for the rest of the ring's weights, behind which x would stand otherwise; returns what
 * sums are to be multiplied with. */
template <int KIND, int P, bool NORMED>
__device__ __forceinline__ float bring_digits(const ck_stream &a, ahead &h, ending &e, const places &to, uint32_t part,
                                              uint32_t width, uint32_t many, float *squares)
{
    const ck_gemv &g = a.g;
    uint32_t lane = threadIdx.x & 31, from = part * width, bytes = width * form<KIND>::BYTES;
    own_x<P> x;
    own_x<NORMED ? P : 1> w, gate;
    if (NORMED && g.norm.present && g.norm.weight)
#pragma unroll
        for (int i = 0; i < P && NORMED; i++)
            if (i * 128 < width)
                w.v[NORMED ? i : 0] = four_at(g.norm.weight, (g.norm.groups > 1 ? 0 : from + i * 128) + lane * 4);
    wait_for_inputs();
    load_own(x, g.x.p + from, width);
    if constexpr (NORMED)
        if (g.norm.gate.p) load_own(gate, g.norm.gate.p + from, width);
    if (e.residual_at) e.residual = *e.residual_at;
#pragma unroll 1
    for (uint32_t i = a.early; i < S; i += PER<KIND>) ask<KIND>(a, h, to.ring, part * bytes, bytes, many);
    if constexpr (NORMED)
        if (g.norm.present) {
            float own = warp_sum(norm_own(g.norm, !a.gate_done, x, w, gate, width));
            if (lane == 0) squares[part] = own;
        }
    return put_digits<KIND>(x, width, to.words, to.pitch);
}

/* All warps have their sums of `done` tiles, the last of them the block's tile n. */
template <int KIND, bool NORMED>
__device__ __forceinline__ void end_turn(const ck_stream &a, ending &e, uint32_t n, uint32_t done, uint32_t turn,
                                         const places &at, const float *squares, float &late, float &best, uint32_t &index)
{
    consumers_meet();
    if (n >= turn) {
        find_ending<KIND, NORMED>(a, n + 1 - done, e);
        if (e.residual_at) e.residual = *e.residual_at;
    } else if (NORMED && a.g.norm.present && a.g.norm.groups == 1) {
        late = 0;
#pragma unroll
        for (int i = 0; i < WARPS; i++) late += squares[i];
        late = rsqrtf(late / a.g.k + a.g.norm.eps);
    }
    e.own = e.own && threadIdx.x >> a.outs_log < done;
    end_row<KIND, NORMED, true>(a, e, at.partial, true, best, index, late);
    consumers_meet();
}

template <int KIND, int P> __device__ __forceinline__ void digits(const ck_stream &a)
{
    constexpr bool NORMED = P <= 4;
    __shared__ float squares[WARPS];
    __shared__ uint64_t bests[WARPS];
    uint32_t lane = threadIdx.x & 31, width = a.g.k / WARPS, part = ((threadIdx.x >> 5) + blockIdx.x) % WARPS,
             bytes = width * form<KIND>::BYTES, from = part * bytes, many = (a.tiles - blockIdx.x - 1) / gridDim.x + 1,
             turn = CK_DIGITS_TURN(a.tiles, gridDim.x), index = 0xfffffffeu;
    places at = find_room<KIND>(a, width, turn);
    float best = -CUDART_INF_F, acc[PER<KIND>][4] = {}, late = 1;
    ahead h = {{}, nullptr, 0, 0, 0, 0};
    ending e;
    dependents_may_start();
    find_memory<NORMED>(a, e);
    find_rows<KIND>(a, h, from);
#pragma unroll 1
    for (uint32_t i = 0; i < a.early; i += PER<KIND>) ask<KIND>(a, h, at.ring, from, bytes, many);
    find_ending<KIND, NORMED>(a, 0, e);
    float scale = bring_digits<KIND, P, NORMED>(a, h, e, at, part, width, many, squares);
    uint32_t digit = KIND == CK_Q8 ? (lane >> 2) & 3 : lane >> 2,
             own = KIND == CK_Q8 ? lane >> 4 == (lane >> 1 & 1) : digit < form<KIND>::PARTS, slot = 0, chunk = 0,
             x = shared_at(at.words) + (digit * at.pitch + (lane & 3) * 4) * 4;
#pragma unroll 1
    for (uint32_t n = 0, done = 0; n < many; n++) {
#pragma unroll 1
        for (uint32_t j = 0; j * STEP < bytes; j += PER<KIND>) {
            step_of s[PER<KIND>];
            asm volatile("cp.async.wait_group %0;" ::"n"(S / PER<KIND> - 1) : "memory");
            __syncwarp();
#pragma unroll
            for (uint32_t i = 0; i < PER<KIND>; i++)
                read_step<KIND>(s[i], at.ring + (slot + i) * STEP_BYTES,
                                at.ring + S * STEP_BYTES + chunk * CHUNK_BYTES + j % 4 * 8, x + (j + i) * STEP, own);
            __syncwarp();
            ask<KIND>(a, h, at.ring, from, bytes, many);
#pragma unroll
            for (uint32_t i = 0; i < PER<KIND>; i++) use_step<KIND>(s[i], acc[i]);
            if ((slot += PER<KIND>) == S) slot = 0;
            if (KIND == CK_Q8 && (j % 4 == 3 || (j + 1) * STEP == bytes) && ++chunk == a.stages) chunk = 0;
        }
        put_rows<KIND>(acc, scale, at.partial + done * ROWS * WARPS + part);
        if (++done < turn && n + 1 < many) continue;
        end_turn<KIND, NORMED>(a, e, n, done, turn, at, squares, late, best, index);
        done = 0;
    }
    if (a.g.best) give_best(a.g, best, index, bests);
}

#else
template <int KIND, int P> __device__ __forceinline__ void digits(const ck_stream &) {} /* not launched */
#endif

#define DIGITS(KIND, P)                                                                       \
    extern "C" __global__ void __launch_bounds__(CK_DIGITS_THREADS, 2)                        \
        digits_##KIND##_##P(const __grid_constant__ ck_stream a)                              \
    {                                                                                         \
        digits<CK_##KIND, P>(a);                                                              \
    }
DIGITS(Q8, 4)
DIGITS(Q8, 8)
DIGITS(Q8, 16)
DIGITS(BF16, 4)
DIGITS(BF16, 8)
DIGITS(BF16, 16)
DIGITS(F16, 4)
DIGITS(F16, 8)
DIGITS(F16, 16)
