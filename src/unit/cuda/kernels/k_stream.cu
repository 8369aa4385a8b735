/* k_stream.cu: products with one row of x, the form of a single stream: y = W x (+ bias) (+ residual), with
 * the norm of x before and what follows behind: gate * up, an activation, the short convolution, the best
 * row.
 *
 * A block's weights come into shared memory by bulk copies of whole tiles (8 R / split rows), asked for by a
 * warp of its own before the inputs are waited for: with up to 100 KB a block, two kernels fit on a
 * multiprocessor, so the weights of the next one flow while this one works, and most are there when its
 * inputs are. x lies in registers: `split` warps share a row along k, lane l of warp p has the pieces (i *
 * split + p) * 32 + l of x and multiplies them with those of R rows at a time (4; fewer where rows are long).
 * Sums over lanes and warps are those of k_gemv.cu, bit for bit: pieces of a lane in rising order, butterfly,
 * warps in order. What a row needs behind its product is loaded ahead as well. The latency of one kernel is:
 * x (600 cycles), its norm (300), 30 cycles a tile and row, two barriers. SPDX-License-Identifier: MIT */
#include "k_epilogue.cuh"

enum { PARTIALS = 2048, EARLY = 16 };

#if __CUDA_ARCH__ >= 900

__device__ __forceinline__ void bring_rows(const ck_stream &a, const ck_segment &s, const tile_of &t,
                                           unsigned char *stage, uint32_t at, uint64_t *gate)
{
    size_t row = (size_t)s.at + t.row;
    bring_once(stage + at * a.g.pitch, static_cast<const unsigned char *>(s.data) + row * a.g.pitch,
          t.n * a.g.pitch, gate);
    if (a.scale_bytes)
        bring_once(stage + (a.g.pitch << a.per_log) + at * a.scale_bytes,
              static_cast<const unsigned char *>(s.scales) + row * a.scale_bytes, t.n * a.scale_bytes, gate);
}

/* One thread asks for all tiles of the block, as rooms become free. */
__device__ __forceinline__ void bring_tiles(const ck_stream &a, unsigned char *room, uint64_t *full,
                                            uint64_t *empty)
{
    uint32_t stage = 0, turn = 0, both = a.g.glu ? 2 : 1;
#pragma unroll 1
    for (uint32_t tile = blockIdx.x; tile < a.tiles; tile += gridDim.x) {
        tile_of t = find_tile(a, tile);
        unsigned char *to = room + (size_t)stage * a.stage_bytes;
        if (turn) gate_wait(&empty[stage], (turn - 1) & 1);
        gate_expect(&full[stage], t.n * (a.g.pitch + a.scale_bytes) * both);
#pragma unroll 1
        for (uint32_t i = 0; i < both; i++)
            bring_rows(a, a.g.segment[i ? 1 : t.segment], t, to, i << a.outs_log, &full[stage]);
        if (++stage == a.stages) stage = 0, turn++;
    }
}

/* --- x --- */

template <int P, int N> struct own_x { /* a lane's numbers of x */
    float v[P][N];
};

template <int P, int N>
__device__ __forceinline__ void load_x(own_x<P, N> &x, const float *from, uint32_t k, uint32_t part,
                                       uint32_t split, uint32_t period, float missing)
{
    uint32_t lane = threadIdx.x & 31;
#pragma unroll
    for (int u = 0; u < P; u++)
#pragma unroll
        for (int q = 0; q < N; q += 4) {
            uint32_t e = ((u * split + part) * 32 + lane) * N + q;
            float4 v = make_float4(missing, missing, missing, missing);
            if (from && e < k) v = four_at(from, period ? e & (period - 1) : e);
            x.v[u][q] = v.x, x.v[u][q + 1] = v.y, x.v[u][q + 2] = v.z, x.v[u][q + 3] = v.w;
        }
}

/* Sum over the warps of a team, in order. */
__device__ __forceinline__ float group_sum(float x, float *room, uint32_t warp, uint32_t split)
{
    x = warp_sum(x);
    if ((threadIdx.x & 31) == 0) room[warp] = x;
    consumers_meet();
    const float *own = room + (warp & ~(split - 1));
    x = own[0];
#pragma unroll
    for (int q = 1; q < WARPS; q++)
        if (q < split) x += own[q];
    return x;
}

template <int P, int N>
__device__ __forceinline__ float squares_of(const own_x<P, N> &x, float mean, uint32_t k, uint32_t part,
                                            uint32_t split)
{
    float s = 0;
#pragma unroll
    for (int u = 0; u < P; u++)
#pragma unroll
        for (int q = 0; q < N; q++) {
            float d = x.v[u][q] - mean;
            if (((u * split + part) * 32 + (threadIdx.x & 31)) * N + (q & ~3) < k) s = fmaf(d, d, s);
        }
    return s;
}

template <int N> __device__ __forceinline__ float4 four_in(const float (&v)[N], int q)
{
    return make_float4(v[q], v[q + 1], v[q + 2], v[q + 3]);
}

/* Four numbers from e on of a vector, repeated with `period` where that is not 0; `missing` where there is
 * none. */
__device__ __forceinline__ float4 four_of(const float *from, uint32_t e, uint32_t k, uint32_t period,
                                          float missing)
{
    if (!from || e >= k) return make_float4(missing, missing, missing, missing);
    return four_at(from, period ? e & (period - 1) : e);
}

template <int P, int N>
__device__ __forceinline__ void norm_whole(const ck_gemv &g, own_x<P, N> &x, const own_x<P, N> &w,
                                           uint32_t warp, uint32_t split, float (*room)[WARPS])
{
    uint32_t part = warp & (split - 1);
    float mean = 0, plus = g.norm.plus_one && g.norm.weight ? 1.0f : 0.0f;
    if (g.norm.layer) {
        float sum = 0;
#pragma unroll
        for (int u = 0; u < P; u++)
#pragma unroll
            for (int q = 0; q < N; q++) sum += x.v[u][q];
        mean = group_sum(sum, room[0], warp, split) / g.k;
    }
    float inverse =
        rsqrtf(group_sum(squares_of(x, mean, g.k, part, split), room[1], warp, split) / g.k + g.norm.eps);
#pragma unroll
    for (int u = 0; u < P; u++)
#pragma unroll
        for (int q = 0; q < N; q += 4) {
            uint32_t e = ((u * split + part) * 32 + (threadIdx.x & 31)) * N + q;
            float4 b = four_of(g.norm.bias, e, g.k, 0, 0);
            float4 v = P * N <= EARLY ? four_in(w.v[u], q) : four_of(g.norm.weight, e, g.k, 0, 1);
            bool inside = e < g.k;
            x.v[u][q] = inside ? one_normed(x.v[u][q], mean, inverse, plus, v.x, b.x) : 0;
            x.v[u][q + 1] = inside ? one_normed(x.v[u][q + 1], mean, inverse, plus, v.y, b.y) : 0;
            x.v[u][q + 2] = inside ? one_normed(x.v[u][q + 2], mean, inverse, plus, v.z, b.z) : 0;
            x.v[u][q + 3] = inside ? one_normed(x.v[u][q + 3], mean, inverse, plus, v.w, b.w) : 0;
        }
}

/* By groups of a power of two of pieces, up to 32. */
template <int P, int N>
__device__ __forceinline__ void norm_grouped(const ck_gemv &g, own_x<P, N> &x, const own_x<P, N> &early_w,
                                             const own_x<P, N> &early_gate, uint32_t part, uint32_t split)
{
    uint32_t group = g.k / g.norm.groups;
    float plus = g.norm.plus_one && g.norm.weight ? 1.0f : 0.0f;
#pragma unroll
    for (int u = 0; u < P; u++) {
        uint32_t e = ((u * split + part) * 32 + (threadIdx.x & 31)) * N;
        float squares = 0;
        float4 gate[N / 4], w[N / 4];
#pragma unroll
        for (int q = 0; q < N / 4; q++) {
            gate[q] = P * N <= EARLY ? four_in(early_gate.v[u], 4 * q)
                                     : four_of(g.norm.gate.p, e + 4 * q, g.k, 0, 0);
            w[q] = P * N <= EARLY ? four_in(early_w.v[u], 4 * q)
                                  : four_of(g.norm.weight, e + 4 * q, g.k, group, 1);
        }
#pragma unroll
        for (int q = 0; q < N; q++) squares = fmaf(x.v[u][q], x.v[u][q], squares);
        for (uint32_t m = group / N / 2; m; m >>= 1) squares += __shfl_xor_sync(0xffffffffu, squares, m);
        float inverse = rsqrtf(squares / group + g.norm.eps);
#pragma unroll
        for (int q = 0; q < N; q++) {
            float z = q % 4 == 0   ? gate[q / 4].x
                      : q % 4 == 1 ? gate[q / 4].y
                      : q % 4 == 2 ? gate[q / 4].z
                                   : gate[q / 4].w;
            float v = q % 4 == 0   ? w[q / 4].x
                      : q % 4 == 1 ? w[q / 4].y
                      : q % 4 == 2 ? w[q / 4].z
                                   : w[q / 4].w;
            x.v[u][q] =
                g.norm.gate.p ? gated(x.v[u][q], inverse, plus, v, z) : x.v[u][q] * inverse * (plus + v);
        }
    }
}

/* --- the product --- */

/* Four pieces, asked for before the first is used: by itself the compiler would rather save their registers.
 */
__device__ __forceinline__ void shared_pieces(const uint32_t (&at)[4], uint4 (&v)[4])
{
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%16];\n"
                 "ld.shared.v4.u32 {%4,%5,%6,%7}, [%17];\n"
                 "ld.shared.v4.u32 {%8,%9,%10,%11}, [%18];\n"
                 "ld.shared.v4.u32 {%12,%13,%14,%15}, [%19];"
                 : "=r"(v[0].x), "=r"(v[0].y), "=r"(v[0].z), "=r"(v[0].w), "=r"(v[1].x), "=r"(v[1].y),
                   "=r"(v[1].z), "=r"(v[1].w), "=r"(v[2].x), "=r"(v[2].y), "=r"(v[2].z), "=r"(v[2].w),
                   "=r"(v[3].x), "=r"(v[3].y), "=r"(v[3].z), "=r"(v[3].w)
                 : "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]));
}
template <int R> __device__ __forceinline__ void shared_pieces(const uint32_t (&at)[R], uint4 (&v)[R])
{
#pragma unroll
    for (int j = 0; j < R; j++) v[j] = shared_piece(at[j]);
}

/* {scale, offset} of piece c of the row whose scales begin at `at`. */
template <int KIND> __device__ __forceinline__ float2 shared_scale(uint32_t at, uint32_t group, uint32_t c)
{
    if (KIND == CK_Q8) {
        __half_raw h;
        asm volatile("ld.shared.u16 %0, [%1];" : "=h"(h.x) : "r"(at + c / 2 * 2));
        return make_float2(__half2float(__half(h)), 0);
    }
    if (KIND == CK_Q4) {
        uint32_t h;
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(h) : "r"(at + c * 4));
        return __half22float2(*reinterpret_cast<const __half2 *>(&h));
    }
    float2 f = make_float2(1, 0);
    if (KIND == CK_G8 || KIND == CK_G4)
        asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];"
                     : "=f"(f.x), "=f"(f.y)
                     : "r"(at + c * Kind<KIND>::N / group * 8));
    return f;
}

/* R rows of a tile; data and scales: where its first row lies in shared memory; at: offsets of the rows, in
 * rows. */
template <int KIND, int P, int R>
__device__ __forceinline__ void
multiply(const ck_stream &a, const own_x<P, Kind<KIND>::N> &x, const float *sums, uint32_t data,
         uint32_t scales, const uint32_t (&at)[R], uint32_t part, uint32_t real, float (&acc)[R])
{
    enum { N = Kind<KIND>::N };
    uint32_t nc = a.g.pitch / 16, last = real ? nc - 1 : 0, pitch = real ? a.g.pitch : 0,
             scale_bytes = real ? a.scale_bytes : 0;
#pragma unroll
    for (int j = 0; j < R; j++) acc[j] = 0;
#pragma unroll
    for (int u = 0; u < P; u++) {
        uint32_t c = ((u << a.split_log) + part) * 32;
        if (u && c >= nc) break;
        c = min(c + (threadIdx.x & 31), last); /* beyond the last x is zero */
        uint4 w[R];
        uint32_t from[R];
        float2 scale[R];
#pragma unroll
        for (int j = 0; j < R; j++) {
            from[j] = data + at[j] * pitch + c * 16;
            if (Kind<KIND>::SCALES) scale[j] = shared_scale<KIND>(scales + at[j] * scale_bytes, a.g.group, c);
        }
        shared_pieces(from, w);
#pragma unroll
        for (int j = 0; j < R; j++) {
            float s = 0;
#pragma unroll
            for (int pl = 0; pl < N / 4; pl++) {
                float4 v = piece_plane<KIND>(w[j], pl);
                s = fmaf(v.w, x.v[u][pl * 4 + 3],
                         fmaf(v.z, x.v[u][pl * 4 + 2],
                              fmaf(v.y, x.v[u][pl * 4 + 1], fmaf(v.x, x.v[u][pl * 4], s))));
            }
            if (Kind<KIND>::OFFSETS)
                acc[j] = fmaf(scale[j].x, s, fmaf(scale[j].y, sums[u], acc[j]));
            else if (Kind<KIND>::SCALES)
                acc[j] = fmaf(scale[j].x, s, acc[j]);
            else
                acc[j] += s;
        }
    }
}

/* Sums of R rows over the lanes: lane 8 j has that of row j. */
template <int R> __device__ __forceinline__ float sums_of(const float (&acc)[R])
{
    return R == 1 ? warp_sum(acc[0])
                  : four_sums(acc[0], acc[R > 1 ? 1 : 0], R > 2 ? acc[R > 2 ? 2 : 0] : 0,
                              R > 3 ? acc[R > 3 ? 3 : 0] : 0);
}

/* Gates of all stages: full by one copy, empty by all threads that read it; and the weights of nothing. */
__device__ __forceinline__ void prepare_block(const ck_stream &a, uint64_t *full, uint64_t *empty,
                                              unsigned char (&idle)[32])
{
    if (threadIdx.x == CONSUMERS) {
        for (uint32_t i = 0; i < a.stages; i++) {
            gate_open(&full[i], 1);
            gate_open(&empty[i], 32 * WARPS);
        }
        gates_opened();
    }
    if (threadIdx.x < sizeof idle) idle[threadIdx.x] = 0;
    __syncthreads();
}

/* Rows of a tile that a team multiplies; with glu the first half are gate's, the others up's, outs further. */
template <int R>
__device__ __forceinline__ void find_rows(uint32_t (&at)[R], uint32_t team, uint32_t outs, uint32_t glu)
{
#pragma unroll
    for (int j = 0; j < R; j++) {
        at[j] = !glu              ? team * R + j
                : j < (R + 1) / 2 ? team * (R / 2) + j
                                  : outs + team * (R / 2) + j - R / 2;
    }
}

/* What the kernel before wrote, waited for if `real`: x, its norm's gate, the residual; then the norm. sums:
 * of the lane's pieces of x, which offsets are multiplied by. */
template <int KIND, bool WHOLE, int P, int N>
__device__ __forceinline__ void bring_inputs(const ck_gemv &g, ending &e, uint32_t real, own_x<P, N> &x,
                                             const own_x<P, N> &w, own_x<P, N> &gate, float (&sums)[P],
                                             uint32_t warp, uint32_t part, uint32_t split,
                                             float (*room)[WARPS])
{
    if (real) wait_for_inputs();
    load_x(x, g.x.p, g.k, part, split, 0, 0);
    if (P * N <= EARLY && g.norm.gate.p) load_x(gate, g.norm.gate.p, g.k, part, split, 0, 0);
    if (e.residual_at) e.residual = *e.residual_at;
    if (WHOLE && g.norm.present) {
        if (g.norm.groups == 1)
            norm_whole(g, x, w, warp, split, room);
        else
            norm_grouped(g, x, w, gate, part, split);
    }
#pragma unroll
    for (int u = 0; u < P && Kind<KIND>::OFFSETS; u++) {
        sums[u] = 0;
#pragma unroll
        for (int q = 0; q < N; q++) sums[u] += x.v[u][q];
    }
}

/* A row's sum of one or two tiles, for end_row: [tile][row of a tile][warp of a team]. */
template <int K>
__device__ __forceinline__ void put_sums(const ck_stream &a, float *partial, uint32_t slot, uint32_t put,
                                         uint32_t part, const float (&mine)[K], uint32_t two)
{
    float *to = partial + ((((slot << a.per_log) + put) << a.split_log) + part);
    to[0] = mine[0];
    if (two) to[1u << (a.per_log + a.split_log)] = mine[K - 1];
}

/* The last `slot` tiles before i + K are multiplied: every thread ends one of their rows. e was found for the
 * first turn_tiles. With glu a turn has rows for half of the threads; what the others leave in rows of the
 * next turn's tiles is no sum, and that turn writes those rows anew. Keeping them from it takes longer. */
template <int KIND, bool WHOLE, int K>
__device__ __forceinline__ void end_turn(const ck_stream &a, ending &e, uint32_t i, uint32_t slot,
                                         uint32_t turn_tiles, const float *partial, uint32_t real,
                                         float &best, uint32_t &index)
{
    consumers_meet();
    if (i >= turn_tiles) {
        find_ending<KIND, WHOLE>(a, i + K - slot, e);
        if (e.residual_at) e.residual = *e.residual_at;
    }
    end_row<KIND, WHOLE>(a, e, partial, real, best, index);
    consumers_meet();
}

/* The thread has read its part of tile i, and of the one behind it if `two`: their stages are for tiles still to come. */
__device__ __forceinline__ void leave_tiles(const ck_stream &a, uint64_t *empty, uint32_t begin, uint32_t two,
                                            uint32_t i, uint32_t n)
{
    for (uint32_t k = 0; k <= two; k++)
        if (i + k + a.stages < n) gate_arrive(&empty[begin + k < a.stages ? begin + k : 0]);
}

/* The norm's weights, where there are registers to have them before the inputs. */
template <int P, int N>
__device__ __forceinline__ void load_norm(const ck_gemv &g, own_x<P, N> &w, uint32_t part, uint32_t split)
{
    if (P * N <= EARLY && g.norm.present)
        load_x(w, g.norm.weight, g.k, part, split, g.norm.groups > 1 ? g.k / g.norm.groups : 0, 1);
}

/* R rows of each of K tiles, which lie at data, their scales `behind`. */
template <int KIND, int P, int R, int K>
__device__ __forceinline__ void multiply_tiles(const ck_stream &a, const own_x<P, Kind<KIND>::N> &x,
                                               const float *sums, const uint32_t (&data)[K], uint32_t behind,
                                               const uint32_t (&at)[R], uint32_t part, uint32_t real,
                                               float (&acc)[K][R])
{
#pragma unroll
    for (int k = 0; k < K; k++)
        multiply<KIND, P, R>(a, x, sums, data[k], data[k] + behind, at, part, real, acc[k]);
}

template <int KIND, int P> __device__ __forceinline__ void stream(const ck_stream &a)
{
    constexpr int N = Kind<KIND>::N, R = CK_STREAM_ROWS(P), K = P * N <= 8 ? 2 : 1;
    constexpr bool WHOLE = P * N <= CK_STREAM_NORMED; /* registers for norms and convolutions */
    extern __shared__ __align__(128) unsigned char tiles[];
    __shared__ uint64_t full[CK_STREAM_STAGES], empty[CK_STREAM_STAGES];
    __shared__ __align__(16) float partial[PARTIALS], room[2][WARPS];
    __shared__ __align__(16) unsigned char idle[32];
    __shared__ uint64_t bests[WARPS];
    const ck_gemv &g = a.g;
    uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, split = 1u << a.split_log;
    dependents_may_start();
    prepare_block(a, full, empty, idle);
    if (warp == WARPS) {
        if (lane == 0) bring_tiles(a, tiles, full, empty);
        return;
    }
    uint32_t part = warp & (split - 1), team = warp >> a.split_log,
             many = (a.tiles - blockIdx.x - 1) / gridDim.x + 1, turn_tiles = CONSUMERS >> a.per_log,
             outs = 1u << a.outs_log, index = 0xfffffffeu;
    float best = -CUDART_INF_F, sums[P];
    own_x<P, N> x, w, gate;
    ending e;
    uint32_t at[R], own = lane >> 3,
                    put = !g.glu                       ? team * R + own
                          : own < (R == 1 ? 1 : R / 2) ? team * (R / 2) + own
                                                       : outs + team * (R / 2) + own - R / 2;
    find_memory<WHOLE>(a, e);
    find_ending<KIND, WHOLE>(a, 0, e);
    load_norm(g, w, part, split);
    find_rows<R>(at, team, outs, g.glu);
    /* Twice: the first time on nothing, before the inputs are there, so that the instructions are. */
#pragma unroll 1
    for (uint32_t real = 0; real < 2; real++) {
        uint32_t stage = 0, parity = 0, slot = 0, n = real ? many : 1;
        uint32_t base = real ? shared_at(tiles) : shared_at(idle), step = real ? a.stage_bytes : 0,
                 behind = real ? g.pitch << a.per_log : 0;
        bring_inputs<KIND, WHOLE>(g, e, real, x, w, gate, sums, warp, part, split, room);
#pragma unroll 1
        for (uint32_t i = 0; i < n; i += K) { /* K tiles at once; the last one may stand for both */
            float acc[K][R], mine[K];
            uint32_t two = K > 1 && i + 1 < n, begin = stage, data[K];
#pragma unroll
            for (int k = 0; k < K; k++) {
                if (real) gate_wait(&full[stage], parity);
                data[k] = base + stage * step;
                if ((k + 1 == K || two) && ++stage == a.stages) stage = 0, parity ^= 1;
            }
            multiply_tiles<KIND, P, R, K>(a, x, sums, data, behind, at, part, real, acc);
#pragma unroll
            for (int k = 0; k < K; k++) mine[k] = sums_of<R>(acc[k]);
            if ((lane & 7) == 0 && own < R) put_sums<K>(a, partial, slot, put, part, mine, two);
            leave_tiles(a, empty, begin, two, i, n);
            slot += K;
            if (slot < turn_tiles && i + K < n) continue;
            end_turn<KIND, WHOLE, K>(a, e, i, slot, turn_tiles, partial, real, best, index);
            slot = 0;
        }
    }
    if (g.best) give_best(g, best, index, bests);
}

#else
template <int KIND, int P>
__device__ __forceinline__ void stream(const ck_stream &) {} /* no bulk copies: not launched */
#endif

#define STREAM(KIND, P)                                                \
    extern "C" __global__ void __launch_bounds__(CK_STREAM_THREADS, 2) \
        stream_##KIND##_##P(const __grid_constant__ ck_stream a)       \
    {                                                                  \
        stream<CK_##KIND, P>(a);                                       \
    }
STREAM(F32, 1)
STREAM(F32, 2)
STREAM(F32, 4)
STREAM(F32, 8) STREAM(F16, 1) STREAM(F16, 2) STREAM(F16, 4) STREAM(F16, 8) STREAM(BF16, 1) STREAM(BF16, 2)
    STREAM(BF16, 4) STREAM(BF16, 8) STREAM(Q8, 1) STREAM(Q8, 2) STREAM(Q8, 4) STREAM(Q4, 1) STREAM(Q4, 2)
        STREAM(G8, 1) STREAM(G8, 2) STREAM(G8, 4) STREAM(G4, 1) STREAM(G4, 2)
        STREAM(F8, 1) STREAM(F8, 2) STREAM(F8, 4)
