/* k_stream.cu: product with one row of x for single-sequence decoding on sm_90: y = W x (+ bias) (+
 * residual), with the norm of x before and gate * up, an activation, the short convolution or argmax
 * after it. Every weight storage. Host: issue_stream.c.
 *
 * Grid: up to 2 blocks per multiprocessor, 288 threads: 8 consumer warps and 1 producer warp. The
 * producer thread loads whole tiles (8 R / split rows) by bulk copies into a ring, starting before
 * griddepcontrol.wait. With up to 100 KB per block two kernels fit on a multiprocessor, so the next
 * kernel's weights arrive while this one computes. x is in registers: `split` warps share a row
 * along k; lane l of warp p holds the 16-byte pieces (i * split + p) * 32 + l and multiplies them
 * with R rows at a time (4, fewer for long rows). Sums match k_gemv.cu bit for bit: pieces of a lane
 * ascending, butterfly over lanes, warps in order. Operands of the epilogue are loaded ahead too.
 * Latency after the inputs: x (600 cycles), its norm (300), 30 cycles per tile and row, two
 * barriers. Synchronisation: full/empty mbarriers per stage, named barrier 1 of the consumers.
 * SPDX-License-Identifier: MIT */
#include "k_epilogue.cuh"

/* PARTIALS: floats for partial sums; EARLY: registers of x up to which norm weights and gate are
 * loaded ahead. */
enum { PARTIALS = 2048, EARLY = 16 };

#if __CUDA_ARCH__ == 900

/* Loads the n rows of a tile from one segment, and their scales, into a stage at row offset `at`. */
__device__ __forceinline__ void load_rows(const ck_stream &a, const ck_segment &s, const tile_of &t, unsigned char *stage,
                                          uint32_t at, uint64_t *mbar)
{
    size_t row = (size_t)s.at + t.row;
    bulk_load_evict_first(stage + at * a.g.pitch, static_cast<const unsigned char *>(s.data) + row * a.g.pitch, t.n * a.g.pitch,
                          mbar);
    if (a.scale_bytes)
        bulk_load_evict_first(stage + (a.g.pitch << a.per_log) + at * a.scale_bytes,
                              static_cast<const unsigned char *>(s.scales) + row * a.scale_bytes, t.n * a.scale_bytes, mbar);
}

/* Producer thread: all tiles of the block, as stages become free. */
__device__ __forceinline__ void load_tiles(const ck_stream &a, unsigned char *scratch, uint64_t *full, uint64_t *empty)
{
    uint32_t stage = 0, turn = 0, both = a.g.glu ? 2 : 1;
#pragma unroll 1
    for (uint32_t tile = blockIdx.x; tile < a.tiles; tile += gridDim.x) {
        /* Announce the bytes of the tile before its copies are issued. */
        tile_of t = find_tile(a, tile);
        unsigned char *to = scratch + (size_t)stage * a.stage_bytes;
        if (turn) mbar_wait(&empty[stage], (turn - 1) & 1);
        mbar_expect_tx(&full[stage], t.n * (a.g.pitch + a.scale_bytes) * both);
#pragma unroll 1
        for (uint32_t i = 0; i < both; i++) load_rows(a, a.g.segment[i ? 1 : t.segment], t, to, i << a.outs_log, &full[stage]);
        if (++stage == a.stages) stage = 0, turn++;
    }
}

template <int P, int N> struct x_regs { /* a lane's columns of x */
    float v[P][N];
};

/* Loads this lane's columns of a vector, repeated with `period` (a power of two) if not 0; `missing`
 * where there is none. */
template <int P, int N>
__device__ __forceinline__ void load_x(x_regs<P, N> &x, const float *from, uint32_t k, uint32_t part, uint32_t split,
                                       uint32_t period, float missing)
{
    uint32_t lane = threadIdx.x & 31;
#pragma unroll
    for (int u = 0; u < P; u++)
#pragma unroll
        for (int q = 0; q < N; q += 4) {
            uint32_t e = ((u * split + part) * 32 + lane) * N + q;
            /* Past the end of the row, or without a vector: `missing`. */
            float4 v = make_float4(missing, missing, missing, missing);
            if (from && e < k) v = float4_at(from, period ? e & (period - 1) : e);
            x.v[u][q] = v.x, x.v[u][q + 1] = v.y, x.v[u][q + 2] = v.z, x.v[u][q + 3] = v.w;
        }
}

/* Sum over the `split` warps that share a row, in order. */
__device__ __forceinline__ float warp_group_sum(float x, float *scratch, uint32_t warp, uint32_t split)
{
    x = warp_sum(x);
    if ((threadIdx.x & 31) == 0) scratch[warp] = x;
    consumers_sync();
    /* Only the warps of this group, in order: independent of the others. */
    const float *own = scratch + (warp & ~(split - 1));
    x = own[0];
#pragma unroll
    for (int q = 1; q < WARPS; q++)
        if (q < split) x += own[q];
    return x;
}

/* Sum of (x - mean)^2 over this lane's columns. */
template <int P, int N>
__device__ __forceinline__ float squares_of(const x_regs<P, N> &x, float mean, uint32_t k, uint32_t part, uint32_t split)
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

/* Four numbers of a vector from e on, repeated with `period` if not 0; `missing` where there is
 * none. */
__device__ __forceinline__ float4 four_of(const float *from, uint32_t e, uint32_t k, uint32_t period, float missing)
{
    if (!from || e >= k) return make_float4(missing, missing, missing, missing);
    return float4_at(from, period ? e & (period - 1) : e);
}

/* RMS or layer norm of the whole row, in registers. */
template <int P, int N>
__device__ __forceinline__ void norm_whole(const ck_gemv &g, x_regs<P, N> &x, const x_regs<P, N> &w, uint32_t warp,
                                           uint32_t split, float (*scratch)[WARPS])
{
    uint32_t part = warp & (split - 1);
    float mean = 0, plus = g.norm.plus_one && g.norm.weight ? 1.0f : 0.0f;
    /* Layer norm: mean first. */
    if (g.norm.layer) {
        float sum = 0;
#pragma unroll
        for (int u = 0; u < P; u++)
#pragma unroll
            for (int q = 0; q < N; q++) sum += x.v[u][q];
        mean = warp_group_sum(sum, scratch[0], warp, split) / g.k;
    }
    float inverse = rsqrtf(warp_group_sum(squares_of(x, mean, g.k, part, split), scratch[1], warp, split) / g.k + g.norm.eps);
    /* Scale in registers; columns past the end become zero. */
#pragma unroll
    for (int u = 0; u < P; u++)
#pragma unroll
        for (int q = 0; q < N; q += 4) {
            uint32_t e = ((u * split + part) * 32 + (threadIdx.x & 31)) * N + q;
            float4 b = four_of(g.norm.bias, e, g.k, 0, 0);
            float4 v = P * N <= EARLY ? four_in(w.v[u], q) : four_of(g.norm.weight, e, g.k, 0, 1);
            bool inside = e < g.k;
            x.v[u][q] = inside ? apply_norm(x.v[u][q], mean, inverse, plus, v.x, b.x) : 0;
            x.v[u][q + 1] = inside ? apply_norm(x.v[u][q + 1], mean, inverse, plus, v.y, b.y) : 0;
            x.v[u][q + 2] = inside ? apply_norm(x.v[u][q + 2], mean, inverse, plus, v.z, b.z) : 0;
            x.v[u][q + 3] = inside ? apply_norm(x.v[u][q + 3], mean, inverse, plus, v.w, b.w) : 0;
        }
}

/* Norm per group; groups are a power-of-two number of pieces, up to 32. */
template <int P, int N>
__device__ __forceinline__ void norm_grouped(const ck_gemv &g, x_regs<P, N> &x, const x_regs<P, N> &early_w,
                                             const x_regs<P, N> &early_gate, uint32_t part, uint32_t split)
{
    uint32_t group = g.k / g.norm.groups;
    float plus = g.norm.plus_one && g.norm.weight ? 1.0f : 0.0f;
#pragma unroll
    for (int u = 0; u < P; u++) {
        uint32_t e = ((u * split + part) * 32 + (threadIdx.x & 31)) * N;
        float squares = 0;
        float4 gate[N / 4], w[N / 4];
        /* Norm weights and gate: registers when loaded ahead, else memory. */
#pragma unroll
        for (int q = 0; q < N / 4; q++) {
            gate[q] = P * N <= EARLY ? four_in(early_gate.v[u], 4 * q) : four_of(g.norm.gate.p, e + 4 * q, g.k, 0, 0);
            w[q] = P * N <= EARLY ? four_in(early_w.v[u], 4 * q) : four_of(g.norm.weight, e + 4 * q, g.k, group, 1);
        }
        /* Sum of squares over the lanes that share a group. */
#pragma unroll
        for (int q = 0; q < N; q++) squares = fmaf(x.v[u][q], x.v[u][q], squares);
        for (uint32_t m = group / N / 2; m; m >>= 1) squares += __shfl_xor_sync(0xffffffffu, squares, m);
        float inverse = rsqrtf(squares / group + g.norm.eps);
#pragma unroll
        for (int q = 0; q < N; q++) {
            float z = q % 4 == 0 ? gate[q / 4].x : q % 4 == 1 ? gate[q / 4].y : q % 4 == 2 ? gate[q / 4].z : gate[q / 4].w;
            float v = q % 4 == 0 ? w[q / 4].x : q % 4 == 1 ? w[q / 4].y : q % 4 == 2 ? w[q / 4].z : w[q / 4].w;
            x.v[u][q] = g.norm.gate.p ? norm_gated(x.v[u][q], inverse, plus, v, z) : x.v[u][q] * inverse * (plus + v);
        }
    }
}

/* Four shared-memory loads issued together; otherwise the compiler serialises them to save
 * registers. */
__device__ __forceinline__ void shared_pieces(const uint32_t (&at)[4], uint4 (&v)[4])
{
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%16];\n"
                 "ld.shared.v4.u32 {%4,%5,%6,%7}, [%17];\n"
                 "ld.shared.v4.u32 {%8,%9,%10,%11}, [%18];\n"
                 "ld.shared.v4.u32 {%12,%13,%14,%15}, [%19];"
                 : "=r"(v[0].x), "=r"(v[0].y), "=r"(v[0].z), "=r"(v[0].w), "=r"(v[1].x), "=r"(v[1].y), "=r"(v[1].z), "=r"(v[1].w),
                   "=r"(v[2].x), "=r"(v[2].y), "=r"(v[2].z), "=r"(v[2].w), "=r"(v[3].x), "=r"(v[3].y), "=r"(v[3].z), "=r"(v[3].w)
                 : "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]));
}
template <int R> __device__ __forceinline__ void shared_pieces(const uint32_t (&at)[R], uint4 (&v)[R])
{
#pragma unroll
    for (int j = 0; j < R; j++) v[j] = lds_128(at[j]);
}

/* {scale, offset} of piece c of the row whose scales start at `at`. */
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
        asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(f.x), "=f"(f.y) : "r"(at + c * Kind<KIND>::N / group * 8));
    return f;
}

/* Multiplies R rows of a tile. data, scales: addresses of its first row; at: row numbers. */
template <int KIND, int P, int R>
__device__ __forceinline__ void multiply(const ck_stream &a, const x_regs<P, Kind<KIND>::N> &x, const float *sums, uint32_t data,
                                         uint32_t scales, const uint32_t (&at)[R], uint32_t part, uint32_t real, float (&acc)[R])
{
    enum { N = Kind<KIND>::N };
    /* In the warm-up round (real 0) all addresses collapse onto the zeros. */
    uint32_t nc = a.g.pitch / 16, last = real ? nc - 1 : 0, pitch = real ? a.g.pitch : 0, scale_bytes = real ? a.scale_bytes : 0;
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
        /* Addresses and scales of R rows, then R loads, then the products. */
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
                         fmaf(v.z, x.v[u][pl * 4 + 2], fmaf(v.y, x.v[u][pl * 4 + 1], fmaf(v.x, x.v[u][pl * 4], s))));
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

/* Warp sums of R rows: lane 8 j holds row j. */
template <int R> __device__ __forceinline__ float sums_of(const float (&acc)[R])
{
    return R == 1 ? warp_sum(acc[0])
                  : warp_sum_4(acc[0], acc[R > 1 ? 1 : 0], R > 2 ? acc[R > 2 ? 2 : 0] : 0, R > 3 ? acc[R > 3 ? 3 : 0] : 0);
}

/* Initialises the mbarriers (full: one producer arrival, empty: one per consumer thread) and the
 * zeros of the warm-up pass. */
__device__ __forceinline__ void prepare_block(const ck_stream &a, uint64_t *full, uint64_t *empty, unsigned char (&zeros)[32])
{
    if (threadIdx.x == CONSUMERS) {
        for (uint32_t i = 0; i < a.stages; i++) {
            mbar_init(&full[i], 1);
            mbar_init(&empty[i], 32 * WARPS);
        }
        mbar_init_fence();
    }
    if (threadIdx.x < sizeof zeros) zeros[threadIdx.x] = 0;
    __syncthreads();
}

/* Tile rows that a warp group multiplies; with glu the first half are gate's, the second half up's,
 * `outs` rows further. */
template <int R> __device__ __forceinline__ void find_rows(uint32_t (&at)[R], uint32_t warp_group, uint32_t outs, uint32_t glu)
{
#pragma unroll
    for (int j = 0; j < R; j++) {
        at[j] = !glu ? warp_group * R + j : j < (R + 1) / 2 ? warp_group * (R / 2) + j : outs + warp_group * (R / 2) + j - R / 2;
    }
}

/* Waits for the inputs if `real` and loads what the previous kernel wrote: x, norm gate, residual;
 * then applies the norm. sums: per piece of x, for storages with offsets. */
template <int KIND, bool WHOLE, int P, int N>
__device__ __forceinline__ void load_inputs(const ck_gemv &g, row_epilogue &e, uint32_t real, x_regs<P, N> &x,
                                            const x_regs<P, N> &w, x_regs<P, N> &gate, float (&sums)[P], uint32_t warp,
                                            uint32_t part, uint32_t split, float (*scratch)[WARPS])
{
    if (real) wait_for_inputs();
    load_x(x, g.x.p, g.k, part, split, 0, 0);
    if (P * N <= EARLY && g.norm.gate.p) load_x(gate, g.norm.gate.p, g.k, part, split, 0, 0);
    if (e.residual_at) e.residual = *e.residual_at;
    if (WHOLE && g.norm.present) {
        if (g.norm.groups == 1)
            norm_whole(g, x, w, warp, split, scratch);
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

/* Stores the row sums of one or two tiles for finish_row: [tile][row][warp of the group]. */
template <int K>
__device__ __forceinline__ void put_sums(const ck_stream &a, float *partial, uint32_t slot, uint32_t put, uint32_t part,
                                         const float (&mine)[K], uint32_t has_second)
{
    float *to = partial + ((((slot << a.per_log) + put) << a.split_log) + part);
    to[0] = mine[0];
    if (has_second) to[1u << (a.per_log + a.split_log)] = mine[K - 1];
}

/* Epilogue of the last `slot` tiles before i + K, one row per thread; e was loaded for the first
 * turn_tiles tiles. With glu only half of the threads own a row; what the others leave in partial is
 * overwritten by the next turn, and excluding them costs more. */
template <int KIND, bool WHOLE, int K>
__device__ __forceinline__ void finish_turn(const ck_stream &a, row_epilogue &e, uint32_t i, uint32_t slot, uint32_t turn_tiles,
                                            const float *partial, uint32_t real, float &best, uint32_t &index)
{
    consumers_sync();
    /* Rows beyond the preloaded ones: load their epilogue operands now. */
    if (i >= turn_tiles) {
        load_epilogue<KIND, WHOLE>(a, i + K - slot, e);
        if (e.residual_at) e.residual = *e.residual_at;
    }
    finish_row<KIND, WHOLE>(a, e, partial, real, best, index);
    consumers_sync();
}

/* Releases the stages of tile i, and of the next one if has_second, where they will be refilled. */
__device__ __forceinline__ void release_tiles(const ck_stream &a, uint64_t *empty, uint32_t begin, uint32_t has_second,
                                              uint32_t i, uint32_t n)
{
    for (uint32_t k = 0; k <= has_second; k++)
        if (i + k + a.stages < n) mbar_arrive(&empty[begin + k < a.stages ? begin + k : 0]);
}

/* Norm weights, loaded ahead where registers suffice. */
template <int P, int N>
__device__ __forceinline__ void load_norm(const ck_gemv &g, x_regs<P, N> &w, uint32_t part, uint32_t split)
{
    if (P * N <= EARLY && g.norm.present)
        load_x(w, g.norm.weight, g.k, part, split, g.norm.groups > 1 ? g.k / g.norm.groups : 0, 1);
}

/* Multiplies R rows of each of K tiles at `data`, scales `scales_at` bytes after them. */
template <int KIND, int P, int R, int K>
__device__ __forceinline__ void multiply_tiles(const ck_stream &a, const x_regs<P, Kind<KIND>::N> &x, const float *sums,
                                               const uint32_t (&data)[K], uint32_t scales_at, const uint32_t (&at)[R],
                                               uint32_t part, uint32_t real, float (&acc)[K][R])
{
#pragma unroll
    for (int k = 0; k < K; k++) multiply<KIND, P, R>(a, x, sums, data[k], data[k] + scales_at, at, part, real, acc[k]);
}

/* Waits for the stages of K tiles from `stage` on and advances it; data: their addresses in shared memory. The round on zeros
 * (real 0) waits for nothing. */
template <int K>
__device__ __forceinline__ void wait_tiles(const ck_stream &a, uint64_t *full, uint32_t base, uint32_t step, uint32_t real,
                                           uint32_t has_second, uint32_t &stage, uint32_t &parity, uint32_t (&data)[K])
{
#pragma unroll
    for (int k = 0; k < K; k++) {
        if (real) mbar_wait(&full[stage], parity);
        data[k] = base + stage * step;
        if ((k + 1 == K || has_second) && ++stage == a.stages) stage = 0, parity ^= 1;
    }
}

/* Kernel body. P: pieces per lane. */
template <int KIND, int P> __device__ __forceinline__ void stream(const ck_stream &a)
{
    constexpr int N = Kind<KIND>::N, R = CK_STREAM_ROWS(P), K = P * N <= 8 ? 2 : 1;
    constexpr bool WHOLE = P * N <= CK_STREAM_NORMED; /* registers suffice for norm and convolution */
    extern __shared__ __align__(128) unsigned char tiles[];
    __shared__ uint64_t full[CK_STREAM_STAGES], empty[CK_STREAM_STAGES];
    __shared__ __align__(16) float partial[PARTIALS], scratch[2][WARPS];
    __shared__ __align__(16) unsigned char zeros[32];
    __shared__ uint64_t bests[WARPS];
    const ck_gemv &g = a.g;
    uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, split = 1u << a.split_log;
    launch_dependents();
    prepare_block(a, full, empty, zeros);
    if (warp == WARPS) {
        if (lane == 0) load_tiles(a, tiles, full, empty);
        return;
    }
    /* part: this warp's share of k; warp_group: which rows; n_tiles: tiles of this block. */
    uint32_t part = warp & (split - 1), warp_group = warp >> a.split_log, n_tiles = (a.tiles - blockIdx.x - 1) / gridDim.x + 1,
             turn_tiles = CONSUMERS >> a.per_log, outs = 1u << a.outs_log, index = 0xfffffffeu;
    float best = -CUDART_INF_F, sums[P];
    x_regs<P, N> x, w, gate;
    row_epilogue e;
    /* put: row of the tile that lane 8 j of this warp finishes. */
    uint32_t at[R], own = lane >> 3,
                    put = !g.glu                       ? warp_group * R + own
                          : own < (R == 1 ? 1 : R / 2) ? warp_group * (R / 2) + own
                                                       : outs + warp_group * (R / 2) + own - R / 2;
    load_conv_ptrs<WHOLE>(a, e);
    load_epilogue<KIND, WHOLE>(a, 0, e);
    load_norm(g, w, part, split);
    find_rows<R>(at, warp_group, outs, g.glu);
    /* Two rounds: the first one on zeros, before the inputs arrive, to load the instruction cache. */
#pragma unroll 1
    for (uint32_t real = 0; real < 2; real++) {
        uint32_t stage = 0, parity = 0, slot = 0, n = real ? n_tiles : 1;
        uint32_t base = real ? smem_addr(tiles) : smem_addr(zeros), step = real ? a.stage_bytes : 0,
                 scales_at = real ? g.pitch << a.per_log : 0;
        load_inputs<KIND, WHOLE>(g, e, real, x, w, gate, sums, warp, part, split, scratch);
#pragma unroll 1
        /* K tiles per iteration; an odd last tile is computed twice, and the second result is dropped. */
        for (uint32_t i = 0; i < n; i += K) {
            float acc[K][R], mine[K];
            uint32_t has_second = K > 1 && i + 1 < n, begin = stage, data[K];
            wait_tiles<K>(a, full, base, step, real, has_second, stage, parity, data);
            multiply_tiles<KIND, P, R, K>(a, x, sums, data, scales_at, at, part, real, acc);
#pragma unroll
            for (int k = 0; k < K; k++) mine[k] = sums_of<R>(acc[k]);
            if ((lane & 7) == 0 && own < R) put_sums<K>(a, partial, slot, put, part, mine, has_second);
            release_tiles(a, empty, begin, has_second, i, n);
            slot += K;
            /* Continue until the partial sums are full or tiles end. */
            if (slot < turn_tiles && i + K < n) continue;
            finish_turn<KIND, WHOLE, K>(a, e, i, slot, turn_tiles, partial, real, best, index);
            slot = 0;
        }
    }
    if (g.best) store_block_best(g, best, index, bests);
}

#else
template <int KIND, int P> __device__ __forceinline__ void stream(const ck_stream &) {} /* no bulk copies: never launched */
#endif

#define STREAM(KIND, P)                                                                                                         \
    extern "C" __global__ void __launch_bounds__(CK_STREAM_THREADS, 2) stream_##KIND##_##P(const __grid_constant__ ck_stream a) \
    {                                                                                                                           \
        stream<CK_##KIND, P>(a);                                                                                                \
    }
STREAM(F32, 1)
STREAM(F32, 2)
STREAM(F32, 4)
STREAM(F32, 8)
STREAM(F16, 1) STREAM(F16, 2) STREAM(F16, 4) STREAM(F16, 8) STREAM(BF16, 1) STREAM(BF16, 2) STREAM(BF16, 4) STREAM(BF16, 8)
    STREAM(Q8, 1) STREAM(Q8, 2) STREAM(Q8, 4) STREAM(Q4, 1) STREAM(Q4, 2) STREAM(G8, 1) STREAM(G8, 2) STREAM(G8, 4) STREAM(G4, 1)
        STREAM(G4, 2) STREAM(F8, 1) STREAM(F8, 2) STREAM(F8, 4)
