/* k_tiles.cu: products of 16-bit weights with 2 to 16 rows on Hopper: many sequences decoded together. What comes before and
 * behind a product is in its launch as with one row (k_stream.cu): norm, gated norm of heads, gate * up, residual,
 * convolution, the best row.
 *
 * A tile is 64 rows of weights (with glu 32 of gate and 32 of up, eight and eight in turn), a panel 64 columns of it. Panels come
 * through a ring of shared memory by tensor maps, asked for by a warp of its own, the first ones before the inputs are waited for;
 * a warpgroup multiplies them as they lie there with x, which stands beside them as 32 rows of 16 bits: 16 rounded, then what the
 * rounding left. So fp32 rows cost twice 16 columns of a product, and weights never pass through registers. Long rows, and products
 * of few tiles, are shared by clusters of up to 8 blocks, a slice of up to 1,024 columns each: every block ends its share of a
 * tile's rows with the sums that the others send. Sums: columns rising, products of x rounded and of its rest apart; blocks in
 * order; no row of x depends on the others. SPDX-License-Identifier: MIT */
#include "k_cluster.cuh"
#include "k_wgmma.cuh"

enum {
    WARPS = 8, /* that make x ready and end a cluster's tiles; the first four multiply */
    ROWS = CK_TILES_ROWS,
    PANEL = 64,
    STAGE = CK_TILES_STAGE,
    X_PANEL = 2 * CK_TILES_X * PANEL * 2, /* bytes */
    TAPS = CK_STREAM_TAPS,
    OWN = 8 /* numbers of a tile that a thread ends: rows r and r + 8, each with four rows of x */
};

#if HOPPER

/* d += a b^T, 64 x 32 x 16. */
#define NARROW(TYPE)                                                                                                       \
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32." TYPE "." TYPE                                               \
                 " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, %16, %17, 1, 1, 1, 0, 0;"       \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),         \
                   "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])    \
                 : "l"(a), "l"(b))
template <int BF16> __device__ __forceinline__ void multiply_narrow(float (&d)[16], uint64_t a, uint64_t b)
{
    if (BF16)
        NARROW("bf16");
    else
        NARROW("f16");
}

struct rooms {
    uint64_t full[CK_TILES_STAGES], empty[CK_TILES_STAGES], met, normed;
    float slices[8][CK_TILES_X]; /* squares of the blocks of a cluster */
};
struct work {
    uint32_t rank, first, step, many, panels; /* block of the cluster; its tiles: from the first on, each step-th, so many */
    unsigned char *x, *ring;
    float *given, *norm, *behind, *taps; /* [many][blocks][ROWS * 16 / blocks] sums that other blocks sent; [slice] weights of the norm;
                                   * [shares][a.behind]; [many][ROWS / blocks][TAPS] */
};

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

/* All panels of the block's tiles, in order; by one thread. */
__device__ __forceinline__ void bring_panels(const ck_tiles &a, const work &w, rooms &s)
{
    uint32_t stage = 0, turn = 0;
#pragma unroll 1
    for (uint32_t i = 0; i < w.many; i++) {
        const tile_of t = find_tile(a, w.first + i * w.step);
        const ck_tensor_map &map = a.map[t.segment];
        const uint32_t row = a.g.glu ? 0 : t.row, eight = a.g.glu ? t.row / 8 : 0;
#pragma unroll 1
        for (uint32_t p = 0; p < w.panels; p++) {
            if (turn) gate_wait(&s.empty[stage], (turn - 1) & 1);
            gate_expect(&s.full[stage], STAGE);
            asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5, %6}], "
                         "[%7];" ::"r"(shared_at(w.ring + stage * STAGE)),
                         "l"(&map), "r"(0), "r"(row), "r"(0), "r"(eight), "r"(w.rank * w.panels + p), "r"(shared_at(&s.full[stage]))
                         : "memory");
            if (++stage == a.stages) stage = 0, turn++;
        }
    }
}

/* --- x --- */

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

/* What a warp makes ready of x: rows `warp` and `warp` + 8, of each eight times 128 columns, four a lane. Of gated rows, which have up
 * to 512 columns, the last four times are the gate's. */
enum { TIMES = 8, GATED = 4 };
typedef float4 own_x[2][TIMES];

__device__ __forceinline__ void load_x(const ck_tiles &a, const work &w, own_x &v)
{
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const bool gated = a.g.norm.gate.p != nullptr;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        uint32_t n = warp + j * WARPS;
        const float *x = a.g.x.p + (size_t)n * a.g.x.stride + w.rank * a.slice,
                    *gate = a.g.norm.gate.p + (size_t)n * a.g.norm.gate.stride + w.rank * a.slice;
#pragma unroll
        for (int i = 0; i < TIMES; i++) {
            uint32_t c = 128 * i + 4 * lane;
            v[j][i] = make_float4(0, 0, 0, 0);
            if (n >= a.g.rows) continue;
            if (i >= GATED && gated) {
                if (c - 128 * GATED < a.slice) v[j][i] = four_at(gate, c - 128 * GATED);
            } else if (c < a.slice) {
                v[j][i] = four_at(x, c);
            }
        }
    }
}

__device__ __forceinline__ float squares_of(const float4 &v) { return fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, v.w * v.w))); }

/* 1 / length of whole rows. */
__device__ __forceinline__ void whole_lengths(const ck_tiles &a, const work &w, rooms &s, const own_x &v, float (&inverse)[2])
{
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, blocks = 1u << a.cluster_log;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        float all = 0;
#pragma unroll
        for (int i = 0; i < TIMES; i++) all += squares_of(v[j][i]);
        inverse[j] = warp_sum(all);
        if (a.cluster_log && lane < blocks) send(inverse[j], &s.slices[w.rank][warp + j * WARPS], &s.normed, lane);
    }
    if (a.cluster_log) gate_wait_cluster(&s.normed, 0);
#pragma unroll
    for (int j = 0; j < 2; j++) {
        if (a.cluster_log) {
            inverse[j] = 0;
            for (uint32_t k = 0; k < blocks; k++) inverse[j] += s.slices[k][warp + j * WARPS];
        }
        inverse[j] = rsqrtf(inverse[j] * a.per_group + a.g.norm.eps);
    }
}

/* The same of the groups of 64 to 512 columns that the lane's columns are in. */
__device__ __forceinline__ void group_lengths(const ck_tiles &a, const float4 (&v)[TIMES], float (&inverse)[GATED])
{
#pragma unroll
    for (int i = 0; i < GATED; i++) {
        float all = squares_of(v[i]);
        for (uint32_t m = a.group > 64 ? 16 : 8; m; m >>= 1) all += __shfl_xor_sync(0xffffffffu, all, m);
        inverse[i] = all;
    }
    if (a.group > 128) {
        float x = inverse[0] + inverse[1], y = inverse[2] + inverse[3], z = x + y;
        if (a.group > 256) x = y = z;
        inverse[0] = inverse[1] = x, inverse[2] = inverse[3] = y;
    }
#pragma unroll
    for (int i = 0; i < GATED; i++) inverse[i] = rsqrtf(inverse[i] * a.per_group + a.g.norm.eps);
}

__device__ __forceinline__ void scale(float4 &v, float by, const float4 &weight)
{
    v.x *= by * weight.x, v.y *= by * weight.y, v.z *= by * weight.z, v.w *= by * weight.w;
}

__device__ __forceinline__ void norm_x(const ck_tiles &a, const work &w, rooms &s, own_x &v)
{
    const uint32_t lane = threadIdx.x & 31;
    if (a.g.norm.groups == 1) {
        float inverse[2];
        whole_lengths(a, w, s, v, inverse);
#pragma unroll
        for (int i = 0; i < TIMES; i++) {
            float4 weight = 128 * i + 4 * lane < a.slice ? four_at(w.norm, 128 * i + 4 * lane) : make_float4(0, 0, 0, 0);
            scale(v[0][i], inverse[0], weight), scale(v[1][i], inverse[1], weight);
        }
        return;
    }
#pragma unroll
    for (int j = 0; j < 2; j++) {
        float inverse[GATED];
        group_lengths(a, v[j], inverse);
#pragma unroll
        for (int i = 0; i < GATED; i++) {
            if (128 * i + 4 * lane >= a.slice) continue;
            scale(v[j][i], inverse[i], four_at(w.norm, 128 * i + 4 * lane));
            if (!a.g.norm.gate.p) continue;
            float4 g = v[j][i + GATED];
            v[j][i].x *= g.x * sigmoid_short(g.x), v[j][i].y *= g.y * sigmoid_short(g.y);
            v[j][i].z *= g.z * sigmoid_short(g.z), v[j][i].w *= g.w * sigmoid_short(g.w);
        }
    }
}

/* In two parts to where the products read it. Rows that there are not stay as they are: nobody wants their sums. */
template <int BF16> __device__ __forceinline__ void put_x(const ck_tiles &a, const work &w, const own_x &v)
{
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        uint32_t n = warp + j * WARPS;
        if (n >= a.g.rows) break;
#pragma unroll
        for (int i = 0; i < TIMES; i++) {
            uint32_t c = 128 * i + 4 * lane;
            if (c >= a.slice) break;
            uint2 hi, lo;
            split<BF16>(v[j][i].x, v[j][i].y, hi.x, lo.x);
            split<BF16>(v[j][i].z, v[j][i].w, hi.y, lo.y);
            unsigned char *to = w.x + c / PANEL * X_PANEL + piece_at(n, c % PANEL, 0) + c % 8 * 2;
            *reinterpret_cast<uint2 *>(to) = hi;
            *reinterpret_cast<uint2 *>(to + CK_TILES_X * 128) = lo;
        }
    }
}

/* --- the product --- */

struct ring_place {
    uint32_t stage, turn;
};

/* Sums of a tile, by the four warps of the warpgroup. */
template <int BF16> __device__ __forceinline__ void multiply_tile(const ck_tiles &a, const work &w, rooms &s, ring_place &at, float (&d)[16])
{
    const uint64_t ring = tile_at(shared_at(w.ring), 16);
    uint64_t x = tile_at(shared_at(w.x), 16);
    uint32_t before = 0;
#pragma unroll
    for (int i = 0; i < 16; i++) d[i] = 0;
#pragma unroll 1
    for (uint32_t p = 0; p < w.panels; p++) {
        gate_wait(&s.full[at.stage], at.turn & 1);
        products_begin();
        const uint64_t rows = tile_behind(ring, at.stage * STAGE);
#pragma unroll
        for (int k = 0; k < PANEL / 16; k++) multiply_narrow<BF16>(d, tile_behind(rows, k * 32), tile_behind(x, k * 32));
        x = tile_behind(x, X_PANEL);
        products_asked();
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
        if (p && !(threadIdx.x & 31)) gate_arrive(&s.empty[before]);
        before = at.stage;
        if (++at.stage == a.stages) at.stage = 0, at.turn++;
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
                   "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])::"memory");
    if (!(threadIdx.x & 31)) gate_arrive(&s.empty[before]);
}

/* --- behind the product --- */

struct best_of {
    float value[OWN / 2];
    uint32_t index[OWN / 2];
};

__device__ __forceinline__ bool is_convolved(const ck_tiles &a, uint32_t segment)
{
    return a.after.kind == CK_AFTER_CONV && segment == a.after.segment;
}

/* What comes behind a sum and its residual or convolution; up: its sum, with glu. Returns what was stored. */
__device__ __forceinline__ float end_one(const ck_tiles &a, uint32_t segment, uint32_t row, uint32_t n, float v, float up)
{
    const bool after = a.after.kind == CK_AFTER_ACT || is_convolved(a, segment);
    const ck_view &y = after ? a.after.y : a.g.segment[segment].y;
    if ((a.g.glu ? a.g.act : after ? a.after.act : ACT_NONE) == ACT_SILU) v *= sigmoid_short(v);
    if (a.g.glu) v *= up + (a.g.segment[1].bias ? a.g.segment[1].bias[row] : 0);
    y.p[(size_t)n * y.stride + row] = v;
    return v;
}

__device__ __forceinline__ uint32_t x_row_of(int i) { return (i >> 2) * 8 + (threadIdx.x & 3) * 2 + (i & 1); }

/* A tile that one block has all of: nothing is convolved. Number i of a thread's: rows r and r + 8, with glu gate's and up's. */
template <int BF16>
__device__ __forceinline__ void whole_tile(const ck_tiles &a, const work &w, rooms &s, uint32_t tile, ring_place &at, best_of &best)
{
    const tile_of t = find_tile(a, tile);
    const ck_segment &g = a.g.segment[t.segment];
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, first = t.row + (a.g.glu ? warp * 8 : warp * 16) + lane / 4;
    float d[2 * OWN], add[OWN];
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        uint32_t row = first + (i & 2) * 4, n = x_row_of(i);
        add[i] = 0;
        if (row >= t.row + t.n || n >= a.g.rows || (a.g.glu && (i & 2))) continue;
        if (g.residual.p) add[i] = g.residual.p[(size_t)n * g.residual.stride + row];
        if (g.bias) add[i] += g.bias[row];
    }
    multiply_tile<BF16>(a, w, s, at, d);
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        uint32_t row = first + (i & 2) * 4, n = x_row_of(i);
        if (row >= t.row + t.n || n >= a.g.rows || (a.g.glu && (i & 2))) continue;
        float v = end_one(a, t.segment, row, n, d[i] + d[i + OWN] + add[i], d[i | 2] + d[(i | 2) + OWN]);
        if (a.g.best) keep_best(a.g.banned, v, row, best.value[(i >> 2) * 2 + (i & 1)], best.index[(i >> 2) * 2 + (i & 1)]);
    }
}

/* --- shares of a cluster's tiles --- */

/* The block's sums of its tile k to the blocks that end its rows: eight rows go to one block. */
__device__ __forceinline__ void send_tile(const ck_tiles &a, const work &w, rooms &s, uint32_t k, const float (&d)[2 * OWN])
{
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, c = a.cluster_log, per = ROWS >> c;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint32_t row = warp * 16 + h * 8 + lane / 4, to = row >> (6 - c), gate = there(shared_at(&s.met), to),
                 at = there(shared_at(w.given + ((k << c) + w.rank) * (per * CK_TILES_X) + (row & (per - 1))), to);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int i = (j >> 1) * 4 + h * 2 + (j & 1);
            send_to(d[i] + d[i + OWN], at + x_row_of(i) * per * 4, gate);
        }
    }
}

/* Number o of those that a block of a cluster ends: of its tile k, row of the segment, row of x; from: where its sums are in a block's. */
struct share_of {
    uint32_t k, segment, row, n, from, taps; /* taps: where the weights of the row's convolution are */
    bool real;
};
__device__ __forceinline__ share_of find_share(const ck_tiles &a, const work &w, uint32_t o)
{
    const uint32_t c = a.cluster_log, per = ROWS >> c, log = 6 - c - a.g.glu, u = o & ((1u << log) - 1), row = (w.rank << log) + u;
    share_of p = {o >> (log + 4), 0, 0, o >> log & (CK_TILES_X - 1), 0, ((o >> (log + 4) << log) + u) * TAPS, false};
    const tile_of t = find_tile(a, w.first + p.k * w.step);
    p.segment = t.segment, p.row = t.row + row, p.from = p.n * per + (a.g.glu ? u / 8 * 16 + u % 8 : u);
    p.real = row < t.n && p.n < a.g.rows;
    return p;
}
__device__ __forceinline__ uint32_t shares_of(const ck_tiles &a, const work &w) { return w.many * (ROWS * CK_TILES_X >> (a.cluster_log + a.g.glu)); }

__device__ __forceinline__ void copy_number(float *to, const float *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_at(to)), "l"(from) : "memory");
}

/* What sums need besides: the residual, or what the convolution remembers, the newest first, and its weights. By the warpgroup that
 * does not multiply. */
__device__ __forceinline__ void bring_behind(const ck_tiles &a, const work &w)
{
    const ck_after &c = a.after;
    const uint32_t all = shares_of(a, w), past = c.taps - 1;
#pragma unroll 1
    for (uint32_t o = threadIdx.x - 128; o < all; o += 128) {
        const share_of p = find_share(a, w, o);
        const ck_segment &g = a.g.segment[p.segment];
        if (!p.real) continue;
        if (is_convolved(a, p.segment)) {
            const float *memory = static_cast<const float *>(c.pass.slots[p.n * c.pass.slots_n + c.slot]) + p.row;
            for (uint32_t i = 0; i < past; i++) copy_number(w.behind + o * a.behind + i, memory + (size_t)(past - 1 - i) * g.n);
            for (uint32_t i = 0; !p.n && i < c.taps; i++) copy_number(w.taps + p.taps + i, c.weight + (size_t)p.row * c.taps + i);
        } else if (g.residual.p) {
            copy_number(w.behind + o * a.behind, g.residual.p + (size_t)p.n * g.residual.stride + p.row);
        }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* The convolution as in k_delta.cu, for the one row that sequence n has; behind: what it remembers. */
__device__ __forceinline__ float convolve(const ck_after &c, uint32_t row, uint32_t width, uint32_t n, float x, const float *behind, const float *taps)
{
    const uint32_t past = c.taps - 1;
    float *after = static_cast<float *>(c.pass.slots_out[n * c.pass.slots_n + c.slot]) + row, sum = c.bias ? c.bias[row] : 0, m[TAPS];
    m[0] = x;
#pragma unroll
    for (int i = 1; i < TAPS; i++) m[i] = i <= past ? behind[i - 1] : 0;
#pragma unroll
    for (int i = TAPS - 1; i >= 0; i--)
        if (i <= past) sum += taps[past - i] * m[i];
    if (c.pass.head->stopped) return sum;
#pragma unroll
    for (int i = 1; i < TAPS; i++)
        if (i <= past) after[(size_t)(past - i) * width] = m[i - 1];
    return sum;
}

/* The block's rows of all tiles, by all threads: sums of blocks in order. */
__device__ __forceinline__ void end_shares(const ck_tiles &a, const work &w, rooms &s)
{
    const uint32_t all = shares_of(a, w), c = a.cluster_log;
    gate_wait_cluster(&s.met, 0);
#pragma unroll 1
    for (uint32_t o = threadIdx.x; o < all; o += 32 * WARPS) {
        const share_of p = find_share(a, w, o);
        const ck_segment &g = a.g.segment[p.segment];
        const float *sums = w.given + (p.k << c) * (ROWS * CK_TILES_X >> c) + p.from;
        float v = 0, up = 0;
        for (uint32_t i = 0; i < 1u << c; i++) {
            v += sums[i * (ROWS * CK_TILES_X >> c)];
            if (a.g.glu) up += sums[i * (ROWS * CK_TILES_X >> c) + 8];
        }
        if (!p.real) continue;
        if (g.bias) v += g.bias[p.row];
        if (is_convolved(a, p.segment))
            v = convolve(a.after, p.row, g.n, p.n, v, w.behind + o * a.behind, w.taps + p.taps);
        else if (g.residual.p)
            v += w.behind[o * a.behind];
        end_one(a, p.segment, p.row, p.n, v, up);
    }
}

/* The best of the lanes that have the same rows of x; each warp has a place. */
__device__ __forceinline__ void give_best(const ck_gemv &g, best_of &best)
{
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
    for (int j = 0; j < OWN / 2; j++) {
        uint32_t n = x_row_of((j >> 1) * 4 + (j & 1));
        for (uint32_t m = 16; m > 2; m >>= 1) {
            float v = __shfl_xor_sync(0xffffffffu, best.value[j], m);
            uint32_t i = __shfl_xor_sync(0xffffffffu, best.index[j], m);
            better(best.value[j], best.index[j], v, i);
        }
        if (lane > 3 || n >= g.rows) continue;
        size_t to = (size_t)n * gridDim.x * CK_TILES_BESTS + blockIdx.x * CK_TILES_BESTS + warp;
        g.best_value[to] = best.value[j];
        g.best_index[to] = best.index[j];
    }
}

/* --- the kernel --- */

/* Gates, by the thread that brings weights. */
__device__ __forceinline__ void open_gates(const ck_tiles &a, const work &w, rooms &s)
{
    for (uint32_t i = 0; i < a.stages; i++) gate_open(&s.full[i], 1), gate_open(&s.empty[i], 4);
    gate_open(&s.met, 1);
    gate_open(&s.normed, 1);
    gates_opened();
    if (!a.cluster_log) return;
    gate_expect(&s.met, w.many * ROWS * CK_TILES_X * sizeof(float));
    gate_expect(&s.normed, CK_TILES_X * sizeof(float) << a.cluster_log);
}

__device__ __forceinline__ void load_norm(const ck_tiles &a, const work &w)
{
    const ck_norm &n = a.g.norm;
    const float plus = n.plus_one ? 1.0f : 0.0f;
    for (uint32_t i = threadIdx.x; n.present && i < a.slice; i += 32 * WARPS)
        w.norm[i] = n.weight ? plus + n.weight[n.groups == 1 ? w.rank * a.slice + i : i & (a.group - 1)] : 1;
}

template <int BF16> __device__ __forceinline__ void multiply_all(const ck_tiles &a, const work &w, rooms &s)
{
    ring_place at = {0, 0};
    best_of best;
#pragma unroll
    for (int j = 0; j < OWN / 2; j++) best.value[j] = -CUDART_INF_F, best.index[j] = 0xfffffffeu;
    if (a.cluster_log) {
#pragma unroll 1
        for (uint32_t k = 0; k < w.many; k++) {
            float d[2 * OWN];
            multiply_tile<BF16>(a, w, s, at, d);
            send_tile(a, w, s, k, d);
        }
        return;
    }
#pragma unroll 1
    for (uint32_t k = 0; k < w.many; k++) whole_tile<BF16>(a, w, s, w.first + k * w.step, at, best);
    if (a.g.best) give_best(a.g, best);
}

template <int BF16> __device__ __forceinline__ void product(const ck_tiles &a)
{
    extern __shared__ unsigned char shared[];
    __shared__ rooms s;
    work w;
    dependents_may_start();
    w.rank = a.cluster_log ? cluster_block() : 0;
    w.first = blockIdx.x >> a.cluster_log;
    w.step = gridDim.x >> a.cluster_log;
    w.many = (a.tiles - w.first + w.step - 1) / w.step;
    w.panels = a.slice / PANEL;
    w.x = shared + (-shared_at(shared) & 1023);
    w.ring = w.x + w.panels * X_PANEL;
    w.given = reinterpret_cast<float *>(w.ring + a.stages * STAGE);
    w.norm = w.given + a.turns * (a.cluster_log ? ROWS * CK_TILES_X : 0);
    w.behind = w.norm + (a.g.norm.present ? a.slice : 0);
    w.taps = w.behind + a.turns * a.behind * (ROWS * CK_TILES_X >> a.cluster_log);
    if (threadIdx.x == 32 * WARPS) open_gates(a, w, s);
    if (threadIdx.x < 32 * WARPS) load_norm(a, w);
    __syncthreads();
    if (a.cluster_log) cluster_arrive();
    if (threadIdx.x >= 32 * WARPS) {
        if (threadIdx.x == 32 * WARPS) bring_panels(a, w, s);
        return;
    }
    own_x v;
    if (a.cluster_log) cluster_wait();
    wait_for_inputs();
    load_x(a, w, v);
    if (a.g.norm.present) norm_x(a, w, s, v);
    put_x<BF16>(a, w, v);
    written();
    consumers_meet();
    if (threadIdx.x < 128)
        multiply_all<BF16>(a, w, s);
    else if (a.behind)
        bring_behind(a, w);
    if (!a.cluster_log) return;
    consumers_meet();
    end_shares(a, w, s);
}

#else
template <int BF16> __device__ __forceinline__ void product(const ck_tiles &) {} /* no warpgroups: not launched */
#endif

extern "C" __global__ void __launch_bounds__(CK_TILES_THREADS, 2) tiles_f16(const __grid_constant__ ck_tiles a) { product<0>(a); }
extern "C" __global__ void __launch_bounds__(CK_TILES_THREADS, 2) tiles_bf16(const __grid_constant__ ck_tiles a) { product<1>(a); }
