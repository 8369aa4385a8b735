/* k_tiles.cu: products of 16-bit weights with 2 to 16 rows on Hopper: many sequences decoded together. What comes before and
 * behind a product is in its launch as with one row (k_stream.cu): norm, gated norm of heads, gate * up, residual, convolution,
 * the best row.
 *
 * A tile is 64 rows of weights (with glu 32 of gate and 32 of up, eight and eight in turn), a panel 64 columns of it. Panels come
 * through a ring of shared memory by tensor maps, asked for by a warp of its own, the first ones before the inputs are waited
 * for; warpgroups multiply them as they lie there with x, which stands beside them as 32 rows of 16 bits: 16 rounded, then what
 * the rounding left (k_tiles.cuh). So fp32 rows cost twice 16 columns of a product, and weights never pass through registers.
 * Long rows, and products of few tiles, are shared by clusters of up to 8 blocks, a slice of up to 1,024 columns each: every
 * block ends its share of a tile's rows with the sums that the others send. Sums: columns rising, products of x rounded and of
 * its rest apart; blocks in order; no row of x depends on the others. SPDX-License-Identifier: MIT */
#include "k_tiles.cuh"

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

/* once: what it brings leaves the second-level cache first. */
__device__ __forceinline__ void bring_panel(const ck_tensor_map &map, uint32_t row, uint32_t eight, uint32_t panel,
                                            unsigned char *to, uint64_t *gate, bool once)
{
    gate_expect(gate, STAGE);
    if (once)
        asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
                     "[%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8;" ::"r"(shared_at(to)),
                     "l"(&map), "r"(0), "r"(row), "r"(0), "r"(eight), "r"(panel), "r"(shared_at(gate)), "l"(leaves_first())
                     : "memory");
    else
        asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                     "[%0], [%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(shared_at(to)),
                     "l"(&map), "r"(0), "r"(row), "r"(0), "r"(eight), "r"(panel), "r"(shared_at(gate))
                     : "memory");
}

/* All panels of the block's tiles, in order, a tile of each warpgroup beside the other one's; by one thread. Each warpgroup has a
 * ring of its own: a gate tells turns apart by their parity alone. */
__device__ __forceinline__ void bring_panels(const ck_tiles &a, const work &w, rooms &s)
{
    const bool once = a.g.rows >= 8; /* 16 rows win 0.6 to 1 % by it, 4 lost 0.5 % */
    uint32_t stage = 0, turn = 0;
#pragma unroll 1
    for (uint32_t i = 0; i < w.many; i += a.groups) {
        const bool two = i + 1 < w.many && a.groups > 1;
        const tile_of t[2] = {find_tile(a, w.first + i * w.step), find_tile(a, w.first + (i + two) * w.step)};
#pragma unroll 1
        for (uint32_t p = 0; p < w.panels; p++) {
#pragma unroll
            for (uint32_t g = 0; g < 2; g++) {
                const uint32_t at = g * a.stages + stage;
                if (g && !two) continue;
                if (turn) gate_wait(&s.empty[at], (turn - 1) & 1);
                bring_panel(a.map[t[g].segment], a.g.glu ? 0 : t[g].row, a.g.glu ? t[g].row / 8 : 0, w.rank * w.panels + p,
                            w.ring + at * STAGE, &s.full[at], once);
            }
            if (++stage == a.stages) {
                stage = 0;
                if (!turn++ && a.cluster_log) cluster_wait_alone();
            }
        }
    }
}

/* --- the product --- */

/* Of the warpgroup's ring; first: its first stage. */
struct ring_place {
    uint32_t stage, turn, first;
};
/* The same tile so many bytes on, within shared memory: one addition. */
__device__ __forceinline__ uint64_t tile_behind(uint64_t tile, uint32_t bytes)
{
    return (tile & 0xffffffff00000000ull) | ((uint32_t)tile + (bytes >> 4));
}

/* Sums of a tile, by the four warps of a warpgroup. */
template <int BF16>
__device__ __forceinline__ void multiply_tile(const ck_tiles &a, const work &w, rooms &s, ring_place &at, float (&d)[16])
{
    const uint64_t ring = tile_at(shared_at(w.ring) + at.first * STAGE, 16);
    uint64_t x = tile_at(shared_at(w.x), 16);
    uint32_t before = 0, full = shared_at(s.full + at.first), empty = shared_at(s.empty + at.first);
    asm volatile("" : "+r"(full), "+r"(empty)); /* or they are found anew for each panel */
#pragma unroll
    for (int i = 0; i < 16; i++) d[i] = 0;
#pragma unroll 1
    for (uint32_t p = 0; p < w.panels; p++) {
        gate_wait_at(full + at.stage * 8, at.turn & 1);
        products_begin();
        const uint64_t rows = tile_behind(ring, at.stage * STAGE);
#pragma unroll
        for (int k = 0; k < PANEL / 16; k++) multiply_narrow<BF16>(d, tile_behind(rows, k * 32), tile_behind(x, k * 32));
        x = tile_behind(x, X_PANEL);
        products_asked();
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
        if (p && !(threadIdx.x & 31)) gate_arrive_at(empty + before * 8);
        before = at.stage;
        if (++at.stage == a.stages) at.stage = 0, at.turn++;
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
                   "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])::"memory");
    if (!(threadIdx.x & 31)) gate_arrive_at(empty + before * 8);
}

/* --- behind the product --- */

/* Sum i of x rounded, and of what that left. */
template <int BF16> __device__ __forceinline__ float both_parts(const float (&d)[2 * OWN], int i)
{
    return BF16 ? d[i] + d[i + OWN] : fmaf(d[i], CK_F16_FEW, d[i + OWN]);
}

struct best_of {
    float value[OWN / 2];
    uint32_t index[OWN / 2];
};

__device__ __forceinline__ bool is_convolved(const ck_tiles &a, uint32_t segment)
{
    return a.after.kind == CK_AFTER_CONV && segment == a.after.segment;
}

/* What is done with the rows of a segment. */
struct after_of {
    const ck_view &y;
    bool activated;
};
__device__ __forceinline__ after_of after_segment(const ck_tiles &a, uint32_t segment)
{
    const bool after = a.after.kind == CK_AFTER_ACT || is_convolved(a, segment);
    return after_of{after ? a.after.y : a.g.segment[segment].y, (a.g.glu ? a.g.act : after ? a.after.act : ACT_NONE) == ACT_SILU};
}

/* With up's sum what gate has become is multiplied. */
__device__ __forceinline__ float up_of(const ck_tiles &a, uint32_t row, float up)
{
    return up + (a.g.segment[1].bias ? a.g.segment[1].bias[row] : 0);
}

/* As keep_best where no rows are banned one by one, without a branch: of many rows most lanes of a warp find a better one. */
__device__ __forceinline__ void keep_better(uint32_t limit, float v, uint32_t row, float &best, uint32_t &index)
{
    const bool lost = v != v,
               take = (row < limit) & (lost | ((index != 0xffffffffu) & ((v > best) | ((v == best) & (row < index)))));
    best = take ? lost ? CUDART_INF_F : v : best;
    index = take ? lost ? 0xffffffffu : row : index;
}

__device__ __forceinline__ uint32_t x_row_of(int i) { return (i >> 2) * 8 + (threadIdx.x & 3) * 2 + (i & 1); }

/* A tile that one block has all of: nothing is convolved. Number i of a thread's: rows r and r + 8, with glu gate's and up's. */
template <int BF16>
__device__ __forceinline__ void whole_tile(const ck_tiles &a, const work &w, rooms &s, uint32_t tile,
                                           const float (&inverse)[OWN / 2], ring_place &at, best_of &best)
{
    const tile_of t = find_tile(a, tile);
    const ck_segment &g = a.g.segment[t.segment];
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5 & 3,
                   first = t.row + (a.g.glu ? warp * 8 : warp * 16) + lane / 4;
    const after_of after = after_segment(a, t.segment);
    float *y = after.y.p + (size_t)x_row_of(0) * after.y.stride + first;
    const bool added = g.residual.p || g.bias;
    float d[2 * OWN], v[OWN];
    bool real[OWN];
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        const uint32_t row = first + (i & 2) * 4, n = x_row_of((i >> 2) * 4 + (i & 1));
        real[i] = row < t.row + t.n && n < a.g.rows && !(a.g.glu && (i & 2));
        v[i] = 0;
        if (!added || !real[i]) continue;
        if (g.residual.p) v[i] = g.residual.p[(size_t)n * g.residual.stride + row];
        if (g.bias) v[i] += g.bias[row];
    }
    multiply_tile<BF16>(a, w, s, at, d);
#pragma unroll
    for (int i = 0; i < OWN; i++) v[i] = fmaf(both_parts<BF16>(d, i), inverse[(i >> 2) * 2 + (i & 1)], v[i]);
    if (after.activated)
#pragma unroll
        for (int i = 0; i < OWN; i++) v[i] *= a.g.glu && (i & 2) ? 1 : sigmoid_short(v[i]);
    if (a.g.glu)
#pragma unroll
        for (int i = 0; i < OWN; i++)
            if (real[i]) v[i] *= up_of(a, first, v[i | 2]);
#pragma unroll
    for (int i = 0; i < OWN; i++)
        if (real[i]) y[(size_t)((i >> 2) * 8 + (i & 1)) * after.y.stride + (i & 2) * 4] = v[i];
    if (!a.g.best) return;
    const ck_banned &banned = a.g.banned;
    if (banned.n)
#pragma unroll
        for (int i = 0; i < OWN; i++)
            if (real[i])
                keep_best(banned, v[i], first + (i & 2) * 4, best.value[(i >> 2) * 2 + (i & 1)],
                          best.index[(i >> 2) * 2 + (i & 1)]);
    if (!banned.n)
#pragma unroll
        for (int i = 0; i < OWN; i++)
            keep_better(real[i] ? banned.limit : 0, v[i], first + (i & 2) * 4, best.value[(i >> 2) * 2 + (i & 1)],
                        best.index[(i >> 2) * 2 + (i & 1)]);
}

/* --- shares of a cluster's tiles --- */

/* The block's sums of its tile k to the blocks that end its rows: eight rows go to one block. */
template <int BF16>
__device__ __forceinline__ void send_tile(const ck_tiles &a, const work &w, rooms &s, uint32_t k, const float (&d)[2 * OWN])
{
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5 & 3, c = a.cluster_log, per = ROWS >> c;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint32_t row = warp * 16 + h * 8 + lane / 4, to = row >> (6 - c), gate = there(shared_at(&s.met), to),
                 at = there(shared_at(w.given + ((k << c) + w.rank) * (per * CK_TILES_X) + (row & (per - 1))), to);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int i = (j >> 1) * 4 + h * 2 + (j & 1);
            send_to(both_parts<BF16>(d, i), at + x_row_of(i) * per * 4, gate);
        }
    }
}

/* Number o of those that a block of a cluster ends: of its tile k, row of the segment, row of x; from: where its sums are in a
 * block's. */
struct share_of {
    uint32_t k, segment, row, n, from, taps; /* taps: where the weights of the row's convolution are */
    bool real;
};
__device__ __forceinline__ share_of find_share(const ck_tiles &a, const work &w, uint32_t o)
{
    const uint32_t c = a.cluster_log, per = ROWS >> c, log = 6 - c - a.g.glu, u = o & ((1u << log) - 1),
                   row = (w.rank << log) + u;
    share_of p = {o >> (log + 4), 0, 0, o >> log & (CK_TILES_X - 1), 0, ((o >> (log + 4) << log) + u) * TAPS, false};
    const tile_of t = find_tile(a, w.first + p.k * w.step);
    p.segment = t.segment, p.row = t.row + row, p.from = p.n * per + (a.g.glu ? u / 8 * 16 + u % 8 : u);
    p.real = row < t.n && p.n < a.g.rows;
    return p;
}
__device__ __forceinline__ uint32_t shares_of(const ck_tiles &a, const work &w)
{
    return w.many * (ROWS * CK_TILES_X >> (a.cluster_log + a.g.glu));
}

__device__ __forceinline__ void copy_number(float *to, const float *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_at(to)), "l"(from) : "memory");
}

/* What sums need besides: the residual, or what the convolution remembers, the newest first, and its weights: these are there
 * before the inputs. By the helpers. */
__device__ __forceinline__ void bring_behind(const ck_tiles &a, const work &w, rooms &s)
{
    if (a.after.kind != CK_AFTER_CONV) wait_for_inputs();
    const ck_after &c = a.after;
    const uint32_t all = shares_of(a, w), past = c.taps - 1, i = threadIdx.x - 32 * (WARPS + 1);
    if (c.kind == CK_AFTER_CONV && i < a.g.rows) s.kept[i] = static_cast<float *>(c.pass.slots_out[i * c.pass.slots_n + c.slot]);
    if (c.kind == CK_AFTER_CONV && !i) s.stopped = c.pass.head->stopped;
#pragma unroll 1
    for (uint32_t o = i; o < all; o += 32 * HELPERS) {
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

/* How the block's tiles end; by a thread each. */
__device__ __forceinline__ void prepare_end(const ck_tiles &a, const work &w, rooms &s, uint32_t k)
{
    const uint32_t mine = w.rank << (6 - a.cluster_log - a.g.glu);
    const tile_of t = find_tile(a, w.first + k * w.step);
    const ck_segment &g = a.g.segment[t.segment];
    const after_of after = after_segment(a, t.segment);
    const bool convolved = is_convolved(a, t.segment);
    s.ends[k] = ending{after.y.p + t.row + mine,
                       g.bias ? g.bias + t.row + mine : nullptr,
                       (uint32_t)after.y.stride,
                       t.row + mine,
                       t.n > mine ? t.n - mine : 0,
                       (convolved ? CONVOLVED : g.residual.p ? ADDED : 0u) | (after.activated ? ACTIVATED : 0u)};
}

/* The convolution as in k_delta.cu, for the one row that a sequence has; behind: what it remembers, the newest first; after: and
 * where, next. PAST: rows that it remembers, 0: any number. */
template <int PAST>
__device__ __forceinline__ float convolve(const ck_after &c, uint32_t row, uint32_t width, float *after, bool stopped, float x,
                                          const float *behind, const float *taps)
{
    const uint32_t past = PAST ? PAST : c.taps - 1;
    float sum = c.bias ? c.bias[row] : 0;
#pragma unroll(PAST ? PAST : 1)
    for (uint32_t i = 0; i < past; i++) {
        const float m = behind[past - 1 - i];
        sum = fmaf(taps[i], m, sum);
        if (i && !stopped) after[(size_t)(i - 1) * width] = m;
    }
    if (past && !stopped) after[(size_t)(past - 1) * width] = x;
    return fmaf(taps[past], x, sum);
}

/* A number's sums in all blocks, in order. */
__device__ __forceinline__ float sum_blocks(const float *sums, uint32_t log)
{
    const uint32_t apart = ROWS * CK_TILES_X >> log;
    float v = sums[0] + sums[apart];
    if (log > 1) v += sums[2 * apart], v += sums[3 * apart];
    if (log > 2) v += sums[4 * apart], v += sums[5 * apart], v += sums[6 * apart], v += sums[7 * apart];
    return v;
}

/* The block's rows of all tiles, by all threads that multiplied: sums of blocks in order. */
__device__ __forceinline__ void end_shares(const ck_tiles &a, const work &w, rooms &s)
{
    const uint32_t c = a.cluster_log, log = 6 - c - a.g.glu, u = threadIdx.x & ((1u << log) - 1);
    const float *own = w.given + (a.g.glu ? u / 8 * 16 + u % 8 : u);
    gate_wait_cluster(&s.met, 0);
#pragma unroll 1
    for (uint32_t q = threadIdx.x >> log; q < w.many * CK_TILES_X; q += 32 * WARPS >> log) {
        const uint32_t k = q / CK_TILES_X, n = q % CK_TILES_X, o = (q << log) + u;
        const ending e = s.ends[k];
        const float *sums = own + k * ROWS * CK_TILES_X + n * (ROWS >> c), inverse = s.inverse[n];
        if (u >= e.rows || n >= a.g.rows) continue;
        float v = sum_blocks(sums, c) * inverse;
        if (e.bias) v += e.bias[u];
        if (e.what & CONVOLVED) {
            const float *behind = w.behind + o * a.behind, *taps = w.taps + ((k << log) + u) * TAPS;
            const uint32_t row = e.row + u, width = a.g.segment[a.after.segment].n;
            v = a.after.taps == 4 ? convolve<3>(a.after, row, width, s.kept[n] + row, s.stopped, v, behind, taps)
                                  : convolve<0>(a.after, row, width, s.kept[n] + row, s.stopped, v, behind, taps);
        }
        if (e.what & ADDED) v += w.behind[o * a.behind];
        if (e.what & ACTIVATED) v *= sigmoid_short(v);
        if (a.g.glu) v *= up_of(a, e.row + u, sum_blocks(sums + 8, c) * inverse);
        e.y[(size_t)n * e.stride + u] = v;
    }
}

/* The block's best of each row of x: of the lanes that have the same rows, then of the warps, by way of where x was. */
__device__ __forceinline__ void give_best(const ck_gemv &g, const work &w, best_of &best)
{
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, n = threadIdx.x;
    float *value = reinterpret_cast<float *>(w.x);
    uint32_t *index = reinterpret_cast<uint32_t *>(value + WARPS * CK_TILES_X);
    consumers_meet();
#pragma unroll
    for (int j = 0; j < OWN / 2; j++) {
        for (uint32_t m = 16; m > 2; m >>= 1) {
            float v = __shfl_xor_sync(0xffffffffu, best.value[j], m);
            uint32_t i = __shfl_xor_sync(0xffffffffu, best.index[j], m);
            better(best.value[j], best.index[j], v, i);
        }
        uint32_t to = warp * CK_TILES_X + x_row_of((j >> 1) * 4 + (j & 1));
        if (lane < 4) value[to] = best.value[j], index[to] = best.index[j];
    }
    consumers_meet();
    if (n >= g.rows) return;
    for (uint32_t i = 1; i < WARPS; i++) better(value[n], index[n], value[i * CK_TILES_X + n], index[i * CK_TILES_X + n]);
    g.best_value[(size_t)n * gridDim.x + blockIdx.x] = value[n];
    g.best_index[(size_t)n * gridDim.x + blockIdx.x] = index[n];
}

/* --- the kernel --- */

/* Gates, by the thread that brings weights. */
__device__ __forceinline__ void open_gates(const ck_tiles &a, const work &w, rooms &s)
{
    for (uint32_t i = 0; i < a.stages * a.groups; i++) gate_open(&s.full[i], 1), gate_open(&s.empty[i], 4);
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

/* All tiles, by one warpgroup or every second one by each. */
template <int BF16> __device__ __forceinline__ void multiply_all(const ck_tiles &a, const work &w, rooms &s)
{
    const uint32_t group = threadIdx.x >> 7;
    ring_place at = {0, 0, group * a.stages};
    const uint32_t end = group < a.groups ? w.many : 0;
    if (a.cluster_log) {
#pragma unroll 1
        for (uint32_t k = group; k < end; k += a.groups) {
            float d[2 * OWN];
            multiply_tile<BF16>(a, w, s, at, d);
            send_tile<BF16>(a, w, s, k, d);
        }
        return;
    }
    best_of best;
    float inverse[OWN / 2];
#pragma unroll
    for (int j = 0; j < OWN / 2; j++) {
        best.value[j] = -CUDART_INF_F, best.index[j] = 0xfffffffeu;
        inverse[j] = is_late<BF16>(a) ? inverse_of(a, s, x_row_of((j >> 1) * 4 + (j & 1))) : 1;
    }
#pragma unroll 1
    for (uint32_t k = group; k < end; k += a.groups) whole_tile<BF16>(a, w, s, w.first + k * w.step, inverse, at, best);
    if (a.g.best) give_best(a.g, w, best);
}

/* What the helpers brought is there for the threads that multiply; they need not wait for these. */
__device__ __forceinline__ void helpers_have_done()
{
    __syncwarp();
    asm volatile("bar.arrive 2, %0;" ::"n"(32 * (WARPS + HELPERS)) : "memory");
}
__device__ __forceinline__ void wait_for_helpers() { asm volatile("bar.sync 2, %0;" ::"n"(32 * (WARPS + HELPERS)) : "memory"); }

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
    w.given = reinterpret_cast<float *>(w.ring + a.stages * a.groups * STAGE);
    w.norm = w.given + a.turns * (a.cluster_log ? ROWS * CK_TILES_X : 0);
    w.behind = w.norm + (a.g.norm.present ? a.slice : 0);
    w.taps = w.behind + a.turns * a.behind * (ROWS * CK_TILES_X >> a.cluster_log);
    if (threadIdx.x == 32 * WARPS) open_gates(a, w, s);
    if (threadIdx.x < 32 * WARPS) load_norm(a, w);
    __syncthreads();
    if (a.cluster_log) cluster_arrive();
    const uint32_t warp = threadIdx.x >> 5;
    if (warp == WARPS) {
        if (threadIdx.x == 32 * WARPS) bring_panels(a, w, s);
        return;
    }
    if (warp > WARPS) {
        if (!a.cluster_log) return;
        const uint32_t n = threadIdx.x - 32 * (WARPS + 1);
        if (n < w.many) prepare_end(a, w, s, n);
        if (a.behind) bring_behind(a, w, s);
        cluster_wait(); /* for racecheck, as in cluster_wait_alone: what follows waits for those who wait there */
        if (n < CK_TILES_X) {
            const bool late = is_late<BF16>(a);
            if (late) gate_wait_cluster(&s.normed, 0);
            s.inverse[n] = late ? inverse_of(a, s, n) : 1;
        }
        helpers_have_done();
        return;
    }
    if (a.cluster_log) cluster_wait();
    make_x<BF16>(a, w, s);
    written();
    consumers_meet();
    multiply_all<BF16>(a, w, s);
    if (!a.cluster_log) return;
    wait_for_helpers();
    end_shares(a, w, s);
}

#else
template <int BF16> __device__ __forceinline__ void product(const ck_tiles &) {} /* no warpgroups: not launched */
#endif

extern "C" __global__ void __launch_bounds__(CK_TILES_THREADS, 2) tiles_f16(const __grid_constant__ ck_tiles a) { product<0>(a); }
extern "C" __global__ void __launch_bounds__(CK_TILES_THREADS, 2) tiles_bf16(const __grid_constant__ ck_tiles a)
{
    product<1>(a);
}
