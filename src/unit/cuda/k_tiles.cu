/* k_tiles.cu: products of 16-bit weights with 2 to 16 rows on Hopper: many sequences decoded together. What comes before and
 * behind a product is in its launch as with one row (k_stream.cu): norm, gated norm of heads, gate * up, residual,
 * convolution, the best row.
 *
 * A tile is 16 rows of weights (with glu 8 of gate and 8 of up). 8 warps share it along k, 64 or 128 columns each; a cluster of
 * up to 8 blocks shares longer rows, a slice of up to 1,024 columns each, and sends its sums to the block that ends the row.
 * Each warp keeps its columns of all rows of x in registers, as the operands of the tensor cores: two numbers of 16 bits,
 * rounded and rest, so that 4 bytes of x and 4 products stand for an fp32 row. Columns are dealt so that 16 bytes of a row of
 * weights are a lane's operands of two products; the lane copies them into its own places of shared memory, 64 KB a block
 * ahead and the first ones before the inputs are waited for: no one else reads them. Warps meet once in four tiles; then two
 * warps end each tile, so that what is done for a row of weights is done once for all rows of x. Sums: products of x rounded
 * and of its rest apart, columns rising, the two together, warps in order, blocks in order; no row of x depends on the others.
 * SPDX-License-Identifier: MIT */
#include "k_cluster.cuh"

enum { WARPS = 8, ROWS = 16, TURN = CK_TILES_TURN, TAPS = CK_STREAM_TAPS };

#if __CUDA_ARCH__ >= 900

/* --- tiles of weights --- */

struct tile_of {
    uint32_t segment, row, n; /* n: rows of it, of each of both with glu */
};
__device__ __forceinline__ tile_of find_tile(const ck_tiles &a, uint32_t tile)
{
    uint32_t s = 0, most = a.g.glu ? ROWS / 2 : ROWS;
#pragma unroll
    for (int i = 1; i < CK_SEGMENTS; i++) s += tile >= a.first[i];
    uint32_t row = (tile - a.first[s]) * most, left = a.g.segment[s].n - row;
    return tile_of{s, row, left < most ? left : most};
}

/* The 16 bytes of a row that a lane multiplies, into its own place, while it goes on. */
__device__ __forceinline__ void copy_piece(uint32_t to, const void *from)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void copies_end() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ __forceinline__ void copies_but() /* all groups but the last N have come */
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* The lane's pieces of rows g and g + 8 of a tile: of 32 columns each, [2 J][2][256] of 16 bytes. One group of copies. */
template <int J> __device__ __forceinline__ void bring_tile(const ck_tiles &a, uint32_t tile, uint32_t column, uint32_t blocks, uint32_t to)
{
    uint32_t lane = threadIdx.x & 31, g = lane >> 2;
    if (tile < a.tiles && blocks) {
        tile_of t = find_tile(a, tile);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const ck_segment &s = a.g.segment[a.g.glu ? h : t.segment];
            uint32_t r = a.g.glu ? g : g + 8 * h;
            if (r >= t.n) r = t.n - 1;
            const unsigned char *from = static_cast<const unsigned char *>(s.data) + (size_t)(s.at + t.row + r) * a.g.pitch +
                                        column * 2 + (lane & 3) * 16;
#pragma unroll
            for (int b = 0; b < 2 * J; b++)
                if (b < blocks) copy_piece(to + (2 * b + h) * 4096, from + 64 * b);
        }
    }
    copies_end();
}

/* --- x --- */

/* What a lane (g, t) keeps: of rows g and g + 8, the 8 columns from 8 t on of each 32 of its warp. */
template <int NT, int J> struct own_x {
    uint32_t hi[NT][2 * J][4], lo[NT][2 * J][4];
};

template <int BF16> __device__ __forceinline__ void split(float x, float y, uint32_t &hi, uint32_t &lo)
{
    hi = pack<BF16>(x, y);
    float2 kept;
    if (BF16)
        kept = make_float2(__uint_as_float(hi << 16), __uint_as_float(hi & 0xffff0000u));
    else
        kept = __half22float2(*reinterpret_cast<const __half2 *>(&hi));
    lo = pack<BF16>(x - kept.x, y - kept.y);
}

/* Zero where there is none. */
template <int J>
__device__ __forceinline__ void load_row(float (&v)[2 * J][8], const ck_view &x, uint32_t row, uint32_t column, uint32_t blocks)
{
    const float *from = x.p + (size_t)row * x.stride + column + (threadIdx.x & 3) * 8;
#pragma unroll
    for (int b = 0; b < 2 * J; b++)
#pragma unroll
        for (int q = 0; q < 8; q += 4) {
            float4 f = make_float4(0, 0, 0, 0);
            if (b < blocks) f = four_at(from, b * 32 + q);
            v[b][q] = f.x, v[b][q + 1] = f.y, v[b][q + 2] = f.z, v[b][q + 3] = f.w;
        }
}

template <int J> __device__ __forceinline__ float squares_of(const float (&v)[2 * J][8])
{
    float s = 0;
#pragma unroll
    for (int b = 0; b < 2 * J; b++)
#pragma unroll
        for (int q = 0; q < 8; q++) s = fmaf(v[b][q], v[b][q], s);
    s += __shfl_xor_sync(0xffffffffu, s, 1);
    return s + __shfl_xor_sync(0xffffffffu, s, 2);
}

template <int NT> struct rooms {
    uint64_t met, normed;
    alignas(16) float given[TURN * NT * 128], norm[CK_TILES_SLICE], squares[WARPS][NT * 8], slices[8][NT * 8];
};

/* Squares of whole rows, or of the groups of 64 to 512 columns that the warp is in; groups only where warps have 64 each. */
template <int NT>
__device__ __forceinline__ void sum_squares(const ck_tiles &a, rooms<NT> &s, uint32_t rank, float (&all)[NT])
{
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, id = threadIdx.x;
    const bool whole = a.g.norm.groups == 1;
    const uint32_t many = whole ? WARPS : a.group_warps, from = warp & ~(many - 1);
#pragma unroll
    for (int n = 0; n < NT; n++)
        if (!(lane & 3)) s.squares[warp][n * 8 + (lane >> 2)] = all[n];
    __syncthreads();
#pragma unroll
    for (int n = 0; n < NT; n++) {
        all[n] = 0;
        for (uint32_t w = 0; w < many; w++) all[n] += s.squares[from + w][n * 8 + (lane >> 2)];
    }
    if (!whole || !a.cluster_log) return;
    if (id < NT * 8 << a.cluster_log) {
        float own = 0;
        for (uint32_t w = 0; w < WARPS; w++) own += s.squares[w][id % (NT * 8)];
        send(own, &s.slices[rank][id % (NT * 8)], &s.normed, id / (NT * 8));
    }
    gate_wait_cluster(&s.normed, 0);
#pragma unroll
    for (int n = 0; n < NT; n++) {
        all[n] = 0;
        for (uint32_t k = 0; k < 1u << a.cluster_log; k++) all[n] += s.slices[k][n * 8 + (lane >> 2)];
    }
}

/* x of the warp's columns, normalised and gated when asked, in two parts. */
template <int BF16, int NT, int J>
__device__ __forceinline__ void load_x(const ck_tiles &a, rooms<NT> &s, own_x<NT, J> &x, uint32_t rank, uint32_t column, uint32_t blocks)
{
    const uint32_t lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, warp = threadIdx.x >> 5;
    const ck_norm &norm = a.g.norm;
    float v[NT][2 * J][8], gate[NT][2][8];
#pragma unroll
    for (int n = 0; n < NT; n++) {
        uint32_t own = n * 8 + g < a.g.rows ? blocks : 0;
        load_row<J>(v[n], a.g.x, n * 8 + g, column, own);
        if (J == 1 && norm.gate.p) load_row<1>(gate[n], norm.gate, n * 8 + g, column, own);
    }
    if (norm.present) {
        float all[NT];
#pragma unroll
        for (int n = 0; n < NT; n++) all[n] = squares_of<J>(v[n]);
        sum_squares<NT>(a, s, rank, all);
#pragma unroll
        for (int n = 0; n < NT; n++) {
            float inverse = rsqrtf(all[n] * a.per_group + norm.eps);
#pragma unroll
            for (int b = 0; b < 2 * J; b++)
#pragma unroll
                for (int q = 0; q < 8; q++) {
                    v[n][b][q] = v[n][b][q] * inverse * s.norm[warp * 64 * J + b * 32 + t * 8 + q];
                    if (J == 1 && norm.gate.p) v[n][b][q] *= gate[n][b & 1][q] * sigmoid_short(gate[n][b & 1][q]);
                }
        }
    }
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int b = 0; b < 2 * J; b++)
#pragma unroll
            for (int q = 0; q < 4; q++) split<BF16>(v[n][b][2 * q], v[n][b][2 * q + 1], x.hi[n][b][q], x.lo[n][b][q]);
}

/* --- the product --- */

/* The warp's columns of a tile; at: the lane's own pieces. */
template <int BF16, int NT, int J>
__device__ __forceinline__ void multiply(const own_x<NT, J> &x, uint32_t at, uint32_t blocks, float (&acc)[NT][4])
{
    float rest[NT][4] = {};
#pragma unroll
    for (int b = 0; b < 2 * J; b++) {
        if (b >= blocks) break;
        uint4 w = shared_piece(at + b * 8192), v = shared_piece(at + b * 8192 + 4096);
        const uint32_t first[4] = {w.x, v.x, w.y, v.y}, second[4] = {w.z, v.z, w.w, v.w};
#pragma unroll
        for (int n = 0; n < NT; n++) {
            mma<BF16>(acc[n], first, x.hi[n][b][0], x.hi[n][b][1]);
            mma<BF16>(rest[n], first, x.lo[n][b][0], x.lo[n][b][1]);
            mma<BF16>(acc[n], second, x.hi[n][b][2], x.hi[n][b][3]);
            mma<BF16>(rest[n], second, x.lo[n][b][2], x.lo[n][b][3]);
        }
    }
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) acc[n][i] += rest[n][i];
}

/* Where the sum of a tile's row r and x's row n lies: pairs of n are 32 numbers, turned so that banks differ. */
__device__ __forceinline__ uint32_t place_of(uint32_t r, uint32_t n)
{
    return n / 2 * 32 + (((n & 1) * 16 + r) ^ (n / 2 & 3) * 8);
}

template <int NT> __device__ __forceinline__ void put_sums(float *part, const float (&acc)[NT][4])
{
    uint32_t lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) part[place_of(g + i / 2 * 8, n * 8 + 2 * t + i % 2)] = acc[n][i];
}

template <int NT> __device__ __forceinline__ float take_sum(const float *part, uint32_t r, uint32_t n)
{
    float v = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) v += part[w * NT * 128 + place_of(r, n)];
    return v;
}

/* --- behind the product --- */

template <int NT> struct best_of {
    float value[2 * NT];
    uint32_t index[2 * NT];
};

/* The convolution as in k_delta.cu, for the one row that sequence n has. */
__device__ __forceinline__ float convolve(const ck_after &c, uint32_t row, uint32_t width, uint32_t n, float x)
{
    const uint32_t past = c.taps - 1, slot = n * c.pass.slots_n + c.slot;
    const float *memory = static_cast<const float *>(c.pass.slots[slot]) + row;
    float *after = static_cast<float *>(c.pass.slots_out[slot]) + row, m[TAPS], sum = c.bias ? c.bias[row] : 0;
    bool stopped = c.pass.head->stopped;
#pragma unroll
    for (int i = 1; i < TAPS; i++) m[i] = i <= past ? memory[(size_t)(past - i) * width] : 0;
    m[0] = x;
#pragma unroll
    for (int i = TAPS - 1; i >= 0; i--)
        if (i <= past) sum += c.weight[(size_t)row * c.taps + past - i] * m[i];
#pragma unroll
    for (int i = 1; i < TAPS; i++)
        if (i <= past && !stopped) after[(size_t)(past - i) * width] = m[i - 1];
    return sum;
}

/* Ends one tile of a turn, by two warps: a lane has a row of weights and each fourth row of x. part: sums of the block's warps;
 * with a cluster the rows are those that this block ends, and their sums lie in `given`, a block's behind the other's. */
template <int NT>
__device__ __forceinline__ void end_tile(const ck_tiles &a, const rooms<NT> &s, uint32_t rank, uint32_t tile, uint32_t k,
                                         const float *part, best_of<NT> &best)
{
    const tile_of t = find_tile(a, tile);
    const uint32_t lane = threadIdx.x & 31, r = lane & 15, n0 = (lane >> 4) + 2 * (threadIdx.x >> 5 & 1), c = a.cluster_log,
                   row = t.row + r, per = ROWS >> c;
    const ck_segment &g = a.g.segment[t.segment];
    if (r >= t.n || r >> (4 - c) != rank) return;
    const bool convolved = a.after.kind == CK_AFTER_CONV && t.segment == a.after.segment;
    const ck_view &y = convolved || a.after.kind == CK_AFTER_ACT ? a.after.y : g.y;
    const float bias = g.bias ? g.bias[row] : 0, bias_up = a.g.glu && a.g.segment[1].bias ? a.g.segment[1].bias[row] : 0;
    const bool silu = a.g.glu ? a.g.act == ACT_SILU : (convolved || a.after.kind == CK_AFTER_ACT) && a.after.act == ACT_SILU;
#pragma unroll
    for (int j = 0; j < 2 * NT; j++) {
        uint32_t n = n0 + 4 * j;
        if (n >= a.g.rows) break;
        float v = 0;
        if (!c)
            v = take_sum<NT>(part, r, n);
        else
            for (uint32_t b = 0; b < 1u << c; b++) v += s.given[(b * TURN + k) * (NT * 128 >> c) + n * per + (r & (per - 1))];
        v += bias;
        if (g.residual.p) v += g.residual.p[(size_t)n * g.residual.stride + row];
        if (convolved) v = convolve(a.after, row, g.n, n, v);
        if (silu) v *= sigmoid(v);
        if (a.g.glu) v *= take_sum<NT>(part, r + 8, n) + bias_up;
        y.p[(size_t)n * y.stride + row] = v;
        if (a.g.best) keep_best(a.g.banned, v, row, best.value[j], best.index[j]);
    }
}

/* The block's sums of a tile to the blocks that end its rows. */
template <int NT>
__device__ __forceinline__ void send_tile(const ck_tiles &a, rooms<NT> &s, uint32_t rank, uint32_t k, const float *part)
{
    const uint32_t lane = threadIdx.x & 31, r = lane & 15, n0 = (lane >> 4) + 2 * (threadIdx.x >> 5 & 1), c = a.cluster_log,
                   per = ROWS >> c;
#pragma unroll
    for (int j = 0; j < 2 * NT; j++) {
        uint32_t n = n0 + 4 * j;
        send(take_sum<NT>(part, r, n), &s.given[(rank * TURN + k) * (NT * 128 >> c) + n * per + (r & (per - 1))], &s.met,
             r >> (4 - c));
    }
}

/* The best of the 16 lanes that have the same rows of x: places of two warps are one block's quarter. */
template <int NT> __device__ __forceinline__ void give_best(const ck_gemv &g, best_of<NT> &best)
{
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
    for (int j = 0; j < 2 * NT; j++) {
        uint32_t n = (lane >> 4) + 2 * (warp & 1) + 4 * j;
        for (uint32_t m = 8; m; m >>= 1) {
            float v = __shfl_xor_sync(0xffffffffu, best.value[j], m);
            uint32_t i = __shfl_xor_sync(0xffffffffu, best.index[j], m);
            better(best.value[j], best.index[j], v, i);
        }
        if ((lane & 15) || n >= g.rows) continue;
        size_t to = (size_t)n * gridDim.x * TURN + blockIdx.x * TURN + warp / 2;
        g.best_value[to] = best.value[j];
        g.best_index[to] = best.index[j];
    }
}

/* --- the kernel --- */

/* Gates; the norm's weights of the block's columns. many: tiles of the block, of which all are one turn where it has a cluster. */
template <int NT> __device__ __forceinline__ void open_rooms(const ck_tiles &a, uint32_t rank, uint32_t many, rooms<NT> &s)
{
    const ck_norm &n = a.g.norm;
    if (a.cluster_log && !threadIdx.x) {
        gate_open(&s.met, 1);
        gate_open(&s.normed, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        gate_expect(&s.met, many * NT * 128 * sizeof(float));
        gate_expect(&s.normed, NT * 8 * sizeof(float) << a.cluster_log);
    }
    const bool whole = n.groups == 1;
    float plus = n.plus_one ? 1.0f : 0.0f;
    for (uint32_t i = threadIdx.x; n.present && i < a.slice; i += CK_BATCH_THREADS)
        s.norm[i] = n.weight ? plus + n.weight[whole ? rank * a.slice + i : i & (a.group_warps * 64 - 1)] : 1;
    __syncthreads();
    if (a.cluster_log) cluster_arrive();
}

template <int BF16, int NT, int J> __device__ __forceinline__ void product(const ck_tiles &a)
{
    enum { STAGES = 4 / J, STAGE = 16384 * J, SUMS = WARPS * NT * 128 };
    extern __shared__ __align__(128) unsigned char tiles[];
    __shared__ rooms<NT> s;
    float *part = reinterpret_cast<float *>(tiles + STAGES * STAGE); /* [TURN][WARPS][NT * 128] */
    const uint32_t rank = a.cluster_log ? cluster_block() : 0, warp = threadIdx.x >> 5, first = blockIdx.x >> a.cluster_log,
                   step = gridDim.x >> a.cluster_log, many = (a.tiles - first + step - 1) / step;
    /* the warp's columns, in 32s */
    const uint32_t before = warp * 2 * J, blocks = a.slice / 32 > before ? min(a.slice / 32 - before, 2 * J) : 0,
                   column = rank * a.slice + before * 32, own = shared_at(tiles) + threadIdx.x * 16;
    best_of<NT> best;
    own_x<NT, J> x;
    dependents_may_start();
#pragma unroll
    for (uint32_t i = 0; i < STAGES; i++) bring_tile<J>(a, first + i * step, column, blocks, own + i * STAGE);
    open_rooms<NT>(a, rank, many, s);
#pragma unroll
    for (int j = 0; j < 2 * NT; j++) best.value[j] = -CUDART_INF_F, best.index[j] = 0xfffffffeu;
    if (a.cluster_log) cluster_wait();
    wait_for_inputs();
    load_x<BF16, NT, J>(a, s, x, rank, column, blocks);
    uint32_t stage = 0;
#pragma unroll 1
    for (uint32_t begin = 0; begin < many; begin += TURN) {
        uint32_t turn = min(many - begin, (uint32_t)TURN), k = warp / 2;
#pragma unroll 1
        for (uint32_t i = 0; i < turn; i++) {
            float acc[NT][4] = {};
            copies_but<STAGES - 1>();
            multiply<BF16, NT, J>(x, own + stage * STAGE, blocks, acc);
            bring_tile<J>(a, first + (begin + i + STAGES) * step, column, blocks, own + stage * STAGE);
            put_sums<NT>(part + i * SUMS + warp * NT * 128, acc);
            if (++stage == STAGES) stage = 0;
        }
        __syncthreads();
        if (a.cluster_log) {
            if (k < turn) send_tile<NT>(a, s, rank, k, part + k * SUMS);
            gate_wait_cluster(&s.met, 0);
        }
        if (k < turn) end_tile<NT>(a, s, rank, first + (begin + k) * step, k, part + k * SUMS, best);
        if (begin + TURN < many) __syncthreads();
    }
    if (a.g.best) give_best<NT>(a.g, best);
}

#else
template <int BF16, int NT, int J> __device__ __forceinline__ void product(const ck_tiles &) {} /* no clusters: not launched */
#endif

/* tiles_type_rows of x_columns of a warp */
#define TILES(name, bf16, nt, j)                                                                                        \
    extern "C" __global__ void __launch_bounds__(CK_BATCH_THREADS, 2) tiles_##name(const __grid_constant__ ck_tiles a)  \
    {                                                                                                                   \
        product<bf16, nt, j>(a);                                                                                        \
    }
TILES(f16_8_64, 0, 1, 1)
TILES(f16_8_128, 0, 1, 2)
TILES(f16_16_64, 0, 2, 1)
TILES(f16_16_128, 0, 2, 2)
TILES(bf16_8_64, 1, 1, 1)
TILES(bf16_8_128, 1, 1, 2)
TILES(bf16_16_64, 1, 2, 1)
TILES(bf16_16_128, 1, 2, 2)
