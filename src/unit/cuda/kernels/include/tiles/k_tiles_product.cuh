/* k_tiles_product.cuh: the kernel body of k_tiles.cu and k_packed_tiles.cu: tiles of weight rows, sums that the blocks of a
 * cluster exchange, and what follows a product. A type W has the weights: what the producer thread loads, and how a warpgroup
 * multiplies a tile.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_K_TILES_PRODUCT_CUH
#define SG_UNIT_CUDA_K_TILES_PRODUCT_CUH

#include "tiles/k_tiles.cuh"

#if HOPPER

struct wg_tile {
    uint32_t segment, row, n; /* n: number of rows, with glu of each segment */
};
__device__ __forceinline__ wg_tile find_tile(const ck_tiles &a, uint32_t tile)
{
    /* With glu a tile holds ROWS / 2 rows of each segment. */
    uint32_t s = 0, max_rows = a.g.glu ? ROWS / 2 : ROWS;
#pragma unroll
    for (int i = 1; i < CK_SEGMENTS; i++) s += tile >= a.first[i];
    uint32_t row = (tile - a.first[s]) * max_rows, left = a.g.segment[s].n - row;
    return wg_tile{s, row, left < max_rows ? left : max_rows};
}

/* Position in a warpgroup's ring; first: its first stage. */
struct tiles_ring_pos {
    uint32_t stage, turn, first;
};
/* The descriptor advanced by `bytes`: one 32-bit addition. */
__device__ __forceinline__ uint64_t tile_offset(uint64_t tile, uint32_t bytes)
{
    return (tile & 0xffffffff00000000ull) | ((uint32_t)tile + (bytes >> 4));
}

/* Sum i: product with the rounded x plus product with the remainder. */
template <class W> __device__ __forceinline__ float combine_parts(const float (&d)[2 * LANE_SUMS], int i)
{
    return W::BF16 ? d[i] + d[i + LANE_SUMS] : fmaf(d[i], CK_F16_FEW, d[i + LANE_SUMS]);
}

/* Running argmax of this thread for its rows of x. */
struct best_rows {
    float value[LANE_SUMS / 2];
    uint32_t index[LANE_SUMS / 2];
};

__device__ __forceinline__ bool is_convolved(const ck_tiles &a, uint32_t segment)
{
    return a.after.kind == CK_EPILOGUE_CONV && segment == a.after.segment;
}

/* Output view of a segment and whether SiLU is applied. */
struct segment_output {
    const ck_view &y;
    bool activated;
};
__device__ __forceinline__ segment_output find_output(const ck_tiles &a, uint32_t segment)
{
    const bool after = a.after.kind == CK_EPILOGUE_ACT || is_convolved(a, segment);
    return segment_output{after ? a.after.y : a.g.segment[segment].y, (a.g.glu ? a.g.act
                                                                       : after ? a.after.act
                                                                               : ACT_NONE) == ACT_SILU};
}

/* Bias of up; `up` is its sum. */
__device__ __forceinline__ float up_of(const ck_tiles &a, uint32_t row, float up)
{
    return up + (a.g.segment[1].bias ? a.g.segment[1].bias[row] : 0);
}

/* update_best without single banned rows and without branches: in a long vocabulary most lanes find
 * a better row. */
__device__ __forceinline__ void update_best_branchless(uint32_t limit, float v, uint32_t row, float &best, uint32_t &index)
{
    const bool is_nan = v != v,
               take = (row < limit) & (is_nan | ((index != 0xffffffffu) & ((v > best) | ((v == best) & (row < index)))));
    best = take ? is_nan ? CUDART_INF_F : v : best;
    index = take ? is_nan ? 0xffffffffu : row : index;
}

/* Row of x of element i in the accumulator layout. */
__device__ __forceinline__ uint32_t x_row_of(int i) { return (i >> 2) * 8 + (threadIdx.x & 3) * 2 + (i & 1); }

/* Finishes a tile of which one block has all columns (no convolution). A thread's elements: rows r
 * and r + 8, with glu gate and up. */
template <class W>
__device__ __forceinline__ void whole_tile(const W &weights, const ck_tiles &a, const tiles_work &w, tiles_smem &s, uint32_t tile,
                                           const float (&inverse)[LANE_SUMS / 2], tiles_ring_pos &at, best_rows &best)
{
    const wg_tile t = find_tile(a, tile);
    const ck_segment &g = a.g.segment[t.segment];
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5 & 3,
                   first = t.row + (a.g.glu ? warp * 8 : warp * 16) + lane / 4;
    const segment_output after = find_output(a, t.segment);
    float *y = after.y.p + (size_t)x_row_of(0) * after.y.stride + first;
    const bool added = g.residual.p || g.bias;
    float d[2 * LANE_SUMS], v[LANE_SUMS];
    /* Load residual and bias before the product: their latency is hidden. */
    bool real[LANE_SUMS];
#pragma unroll
    for (int i = 0; i < LANE_SUMS; i++) {
        const uint32_t row = first + (i & 2) * 4, n = x_row_of((i >> 2) * 4 + (i & 1));
        real[i] = row < t.row + t.n && n < a.g.rows && !(a.g.glu && (i & 2));
        v[i] = 0;
        if (!added || !real[i]) continue;
        if (g.residual.p) v[i] = g.residual.p[(size_t)n * g.residual.stride + row];
        if (g.bias) v[i] += g.bias[row];
    }
    weights.multiply(w, s, t.segment, at, d);
#pragma unroll
    for (int i = 0; i < LANE_SUMS; i++) v[i] = fmaf(combine_parts<W>(d, i), inverse[(i >> 2) * 2 + (i & 1)], v[i]);
    /* SiLU of the gate or of the whole output. */
    if (after.activated)
#pragma unroll
        for (int i = 0; i < LANE_SUMS; i++) v[i] *= a.g.glu && (i & 2) ? 1 : sigmoid_fast(v[i]);
    if (a.g.glu)
#pragma unroll
        for (int i = 0; i < LANE_SUMS; i++)
            if (real[i]) v[i] *= up_of(a, first, v[i | 2]);
#pragma unroll
    for (int i = 0; i < LANE_SUMS; i++)
        if (real[i]) y[(size_t)((i >> 2) * 8 + (i & 1)) * after.y.stride + (i & 2) * 4] = v[i];
    if (!a.g.best) return;
    const ck_banned &banned = a.g.banned;
    if (banned.n)
#pragma unroll
        for (int i = 0; i < LANE_SUMS; i++)
            if (real[i])
                update_best(banned, v[i], first + (i & 2) * 4, best.value[(i >> 2) * 2 + (i & 1)],
                            best.index[(i >> 2) * 2 + (i & 1)]);
    if (!banned.n)
#pragma unroll
        for (int i = 0; i < LANE_SUMS; i++)
            update_best_branchless(real[i] ? banned.limit : 0, v[i], first + (i & 2) * 4, best.value[(i >> 2) * 2 + (i & 1)],
                                   best.index[(i >> 2) * 2 + (i & 1)]);
}

/* Sends the block's sums of its tile k to the blocks that finish those rows; eight rows go to one
 * block. */
template <class W>
__device__ __forceinline__ void send_tile(const ck_tiles &a, const tiles_work &w, tiles_smem &s, uint32_t k,
                                          const float (&d)[2 * LANE_SUMS])
{
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5 & 3, c = a.cluster_log, per = ROWS >> c;
    /* The target block of a row is its index divided by the rows per block. */
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint32_t row = warp * 16 + h * 8 + lane / 4, to = row >> (6 - c), mbar = mapa(smem_addr(&s.sums_full), to),
                 at = mapa(smem_addr(w.recv_sums + ((k << c) + w.cta_rank) * (per * CK_TILES_X_ROWS) + (row & (per - 1))), to);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int i = (j >> 1) * 4 + h * 2 + (j & 1);
            st_async_f32(combine_parts<W>(d, i), at + x_row_of(i) * per * 4, mbar);
        }
    }
}

/* Output number o of this block: tile k, row of the segment, row n of x; from: offset of its sums;
 * taps: offset of its convolution weights. */
struct share_of {
    uint32_t k, segment, row, n, from, taps; /* taps: offset of the convolution weights of the row */
    bool real;
};
__device__ __forceinline__ share_of find_share(const ck_tiles &a, const tiles_work &w, uint32_t o)
{
    const uint32_t c = a.cluster_log, per = ROWS >> c, log = 6 - c - a.g.glu, u = o & ((1u << log) - 1),
                   row = (w.cta_rank << log) + u;
    share_of p = {o >> (log + 4), 0, 0, o >> log & (CK_TILES_X_ROWS - 1), 0, ((o >> (log + 4) << log) + u) * TAPS, false};
    const wg_tile t = find_tile(a, w.first + p.k * w.step);
    p.segment = t.segment, p.row = t.row + row, p.from = p.n * per + (a.g.glu ? u / 8 * 16 + u % 8 : u);
    p.real = row < t.n && p.n < a.g.rows;
    return p;
}
/* Number of outputs that this block finishes. */
__device__ __forceinline__ uint32_t shares_of(const ck_tiles &a, const tiles_work &w)
{
    return w.n_tiles * (ROWS * CK_TILES_X_ROWS >> (a.cluster_log + a.g.glu));
}

__device__ __forceinline__ void cp_async_4(float *to, const float *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(smem_addr(to)), "l"(from) : "memory");
}

/* Helper warps: load the residual, or the convolution state (newest first) and weights, which exist
 * before the inputs. */
__device__ __forceinline__ void load_extras(const ck_tiles &a, const tiles_work &w, tiles_smem &s)
{
    if (a.after.kind != CK_EPILOGUE_CONV) wait_for_inputs();
    const ck_epilogue &c = a.after;
    /* Convolution state pointers, once per sequence. */
    const uint32_t all = shares_of(a, w), past = c.taps - 1, i = threadIdx.x - 32 * (WARPS + 1);
    if (c.kind == CK_EPILOGUE_CONV && i < a.g.rows)
        s.conv_state[i] = static_cast<float *>(c.pass.slots_out[i * c.pass.slots_n + c.slot]);
    if (c.kind == CK_EPILOGUE_CONV && !i) s.stopped = c.pass.head->stopped;
    /* One output per thread and step. */
#pragma unroll 1
    for (uint32_t o = i; o < all; o += 32 * HELPERS) {
        const share_of p = find_share(a, w, o);
        const ck_segment &g = a.g.segment[p.segment];
        if (!p.real) continue;
        if (is_convolved(a, p.segment)) {
            const float *memory = static_cast<const float *>(c.pass.slots[p.n * c.pass.slots_n + c.slot]) + p.row;
            for (uint32_t i = 0; i < past; i++) cp_async_4(w.extras + o * a.behind + i, memory + (size_t)(past - 1 - i) * g.n);
            for (uint32_t i = 0; !p.n && i < c.taps; i++) cp_async_4(w.taps + p.taps + i, c.weight + (size_t)p.row * c.taps + i);
        } else if (g.residual.p) {
            cp_async_4(w.extras + o * a.behind, g.residual.p + (size_t)p.n * g.residual.stride + p.row);
        }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* Prepares struct tile_epilogue of tile k, one thread per tile. */
__device__ __forceinline__ void prepare_epilogue(const ck_tiles &a, const tiles_work &w, tiles_smem &s, uint32_t k)
{
    const uint32_t mine = w.cta_rank << (6 - a.cluster_log - a.g.glu);
    const wg_tile t = find_tile(a, w.first + k * w.step);
    const ck_segment &g = a.g.segment[t.segment];
    const segment_output after = find_output(a, t.segment);
    const bool convolved = is_convolved(a, t.segment);
    s.ends[k] = tile_epilogue{after.y.p + t.row + mine,
                              g.bias ? g.bias + t.row + mine : nullptr,
                              (uint32_t)after.y.stride,
                              t.row + mine,
                              t.n > mine ? t.n - mine : 0,
                              (convolved ? CONVOLVED : g.residual.p ? ADDED : 0u) | (after.activated ? ACTIVATED : 0u)};
}

/* Short convolution as in k_delta.cu, for the single row of a sequence. past_x: its state, newest
 * first; after: where the new state goes. PAST: compile-time number of past inputs, 0: any. */
template <int PAST>
__device__ __forceinline__ float convolve(const ck_epilogue &c, uint32_t row, uint32_t width, float *after, bool stopped, float x,
                                          const float *past_x, const float *taps)
{
    const uint32_t past = PAST ? PAST : c.taps - 1;
    float sum = c.bias ? c.bias[row] : 0;
#pragma unroll(PAST ? PAST : 1)
    for (uint32_t i = 0; i < past; i++) {
        const float m = past_x[past - 1 - i];
        sum = fmaf(taps[i], m, sum);
        if (i && !stopped) after[(size_t)(i - 1) * width] = m;
    }
    if (past && !stopped) after[(size_t)(past - 1) * width] = x;
    return fmaf(taps[past], x, sum);
}

/* Adds the sums of all blocks, in order. */
__device__ __forceinline__ float sum_blocks(const float *sums, uint32_t log)
{
    const uint32_t apart = ROWS * CK_TILES_X_ROWS >> log;
    float v = sums[0] + sums[apart];
    if (log > 1) v += sums[2 * apart], v += sums[3 * apart];
    if (log > 2) v += sums[4 * apart], v += sums[5 * apart], v += sums[6 * apart], v += sums[7 * apart];
    return v;
}

/* Finishes the block's rows of all its tiles, by all consumers. */
__device__ __forceinline__ void finish_shares(const ck_tiles &a, const tiles_work &w, tiles_smem &s)
{
    const uint32_t c = a.cluster_log, log = 6 - c - a.g.glu, u = threadIdx.x & ((1u << log) - 1);
    const float *own = w.recv_sums + (a.g.glu ? u / 8 * 16 + u % 8 : u);
    mbar_wait_cluster(&s.sums_full, 0);
    /* One output per thread: sum, norm factor, bias, convolution, residual, activation, gate, store. */
#pragma unroll 1
    for (uint32_t q = threadIdx.x >> log; q < w.n_tiles * CK_TILES_X_ROWS; q += 32 * WARPS >> log) {
        const uint32_t k = q / CK_TILES_X_ROWS, n = q % CK_TILES_X_ROWS, o = (q << log) + u;
        const tile_epilogue e = s.ends[k];
        const float *sums = own + k * ROWS * CK_TILES_X_ROWS + n * (ROWS >> c), inverse = s.inverse[n];
        if (u >= e.rows || n >= a.g.rows) continue;
        float v = sum_blocks(sums, c) * inverse;
        if (e.bias) v += e.bias[u];
        if (e.what & CONVOLVED) {
            const float *past_x = w.extras + o * a.behind, *taps = w.taps + ((k << log) + u) * TAPS;
            const uint32_t row = e.row + u, width = a.g.segment[a.after.segment].n;
            v = a.after.taps == 4 ? convolve<3>(a.after, row, width, s.conv_state[n] + row, s.stopped, v, past_x, taps)
                                  : convolve<0>(a.after, row, width, s.conv_state[n] + row, s.stopped, v, past_x, taps);
        }
        if (e.what & ADDED) v += w.extras[o * a.behind];
        if (e.what & ACTIVATED) v *= sigmoid_fast(v);
        if (a.g.glu) v *= up_of(a, e.row + u, sum_blocks(sums + 8, c) * inverse);
        e.y[(size_t)n * e.stride + u] = v;
    }
}

/* Argmax of the block per row of x: over lanes, then over warps through the memory of x. */
__device__ __forceinline__ void store_block_best(const ck_gemv &g, const tiles_work &w, best_rows &best)
{
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, n = threadIdx.x;
    float *value = reinterpret_cast<float *>(w.x);
    uint32_t *index = reinterpret_cast<uint32_t *>(value + WARPS * CK_TILES_X_ROWS);
    consumers_sync();
    /* Lanes that share rows of x, then warps. */
#pragma unroll
    for (int j = 0; j < LANE_SUMS / 2; j++) {
        for (uint32_t m = 16; m > 2; m >>= 1) {
            float v = __shfl_xor_sync(0xffffffffu, best.value[j], m);
            uint32_t i = __shfl_xor_sync(0xffffffffu, best.index[j], m);
            better(best.value[j], best.index[j], v, i);
        }
        uint32_t to = warp * CK_TILES_X_ROWS + x_row_of((j >> 1) * 4 + (j & 1));
        if (lane < 4) value[to] = best.value[j], index[to] = best.index[j];
    }
    consumers_sync();
    if (n >= g.rows) return;
    for (uint32_t i = 1; i < WARPS; i++)
        better(value[n], index[n], value[i * CK_TILES_X_ROWS + n], index[i * CK_TILES_X_ROWS + n]);
    g.best_value[(size_t)n * gridDim.x + blockIdx.x] = value[n];
    g.best_index[(size_t)n * gridDim.x + blockIdx.x] = index[n];
}

/* Initialises all mbarriers, by the producer thread. readers: arrivals that release a stage. */
__device__ __forceinline__ void init_mbars(const ck_tiles &a, const tiles_work &w, tiles_smem &s, uint32_t readers)
{
    for (uint32_t i = 0; i < a.stages * a.groups; i++) mbar_init(&s.full[i], 1), mbar_init(&s.empty[i], readers);
    mbar_init(&s.sums_full, 1);
    mbar_init(&s.norms_full, 1);
    mbar_init_fence();
    /* Bytes that the other blocks will send. */
    if (!a.cluster_log) return;
    mbar_expect_tx(&s.sums_full, w.n_tiles * ROWS * CK_TILES_X_ROWS * sizeof(float));
    mbar_expect_tx(&s.norms_full, CK_TILES_X_ROWS * sizeof(float) << a.cluster_log);
}

/* Norm weights (1 + weight applied) of the slice to shared memory. */
__device__ __forceinline__ void load_norm(const ck_tiles &a, const tiles_work &w)
{
    const ck_norm &n = a.g.norm;
    const float plus = n.plus_one ? 1.0f : 0.0f;
    for (uint32_t i = threadIdx.x; n.present && i < w.slice; i += 32 * WARPS)
        w.norm[i] = n.weight ? plus + n.weight[n.groups == 1 ? w.column0 + i : i & (a.group - 1)] : 1;
}

/* All tiles of the block; with two warpgroups each takes every second one. */
template <class W> __device__ __forceinline__ void multiply_all(const W &weights, const ck_tiles &a, const tiles_work &w, tiles_smem &s)
{
    const uint32_t group = threadIdx.x >> 7;
    tiles_ring_pos at = {0, 0, group * a.stages};
    const uint32_t end = group < a.groups ? w.n_tiles : 0;
    /* Clusters: every block sends its sums. */
    if (a.cluster_log) {
#pragma unroll 1
        for (uint32_t k = group; k < end; k += a.groups) {
            float d[2 * LANE_SUMS];
            weights.multiply(w, s, find_tile(a, w.first + k * w.step).segment, at, d);
            send_tile<W>(a, w, s, k, d);
        }
        return;
    }
    /* Single blocks: finish tiles at once. */
    best_rows best;
    float inverse[LANE_SUMS / 2];
#pragma unroll
    for (int j = 0; j < LANE_SUMS / 2; j++) {
        best.value[j] = -CUDART_INF_F, best.index[j] = 0xfffffffeu;
        inverse[j] = norm_after_sums<W>(a) ? inverse_of(a, s, x_row_of((j >> 1) * 4 + (j & 1))) : 1;
    }
#pragma unroll 1
    for (uint32_t k = group; k < end; k += a.groups) whole_tile(weights, a, w, s, w.first + k * w.step, inverse, at, best);
    if (a.g.best) store_block_best(a.g, w, best);
}

/* Named barrier 2 from helpers to consumers: helpers arrive without waiting. */
__device__ __forceinline__ void helpers_arrive()
{
    __syncwarp();
    asm volatile("bar.arrive 2, %0;" ::"n"(32 * (WARPS + HELPERS)) : "memory");
}
__device__ __forceinline__ void helpers_wait() { asm volatile("bar.sync 2, %0;" ::"n"(32 * (WARPS + HELPERS)) : "memory"); }

/* Kernel body. */
template <class W> __device__ __forceinline__ void product(const W &weights, const ck_tiles &a)
{
    extern __shared__ unsigned char shared[];
    __shared__ tiles_smem s;
    tiles_work w;
    /* Tiles of the cluster are dealt round-robin. */
    launch_dependents();
    w.cta_rank = a.cluster_log ? cluster_cta_rank() : 0;
    w.first = blockIdx.x >> a.cluster_log;
    w.step = gridDim.x >> a.cluster_log;
    w.n_tiles = (a.tiles - w.first + w.step - 1) / w.step;
    weights.find_slice(w);
    /* Carve up dynamic shared memory; x is aligned to 1,024 bytes for the swizzle. */
    w.x = shared + (-smem_addr(shared) & 1023);
    w.ring = w.x + a.slice / PANEL * X_PANEL;
    w.recv_sums = reinterpret_cast<float *>(w.ring + a.stages * a.groups * weights.stage_bytes());
    w.norm = w.recv_sums + a.turns * (a.cluster_log ? ROWS * CK_TILES_X_ROWS : 0);
    w.extras = w.norm + (a.g.norm.present ? a.slice : 0);
    w.taps = w.extras + a.turns * a.behind * (ROWS * CK_TILES_X_ROWS >> a.cluster_log);
    if (threadIdx.x == 32 * WARPS) init_mbars(a, w, s, W::READERS);
    if (threadIdx.x < 32 * WARPS) load_norm(a, w);
    __syncthreads();
    if (a.cluster_log) cluster_arrive();
    const uint32_t warp = threadIdx.x >> 5;
    /* Producer warp. */
    if (warp == WARPS) {
        if (threadIdx.x == 32 * WARPS) weights.load(w, s);
        return;
    }
    /* Helper warps. */
    if (warp > WARPS) {
        if (!a.cluster_log) return;
        const uint32_t n = threadIdx.x - 32 * (WARPS + 1);
        if (n < w.n_tiles) prepare_epilogue(a, w, s, n);
        if (a.behind) load_extras(a, w, s);
        cluster_wait(); /* for racecheck, see cluster_wait_unaligned: later waits depend on threads that wait here */
        if (n < CK_TILES_X_ROWS) {
            const bool after_sums = norm_after_sums<W>(a);
            if (after_sums) mbar_wait_cluster(&s.norms_full, 0);
            s.inverse[n] = after_sums ? inverse_of(a, s, n) : 1;
        }
        helpers_arrive();
        return;
    }
    /* Consumer warps. */
    if (a.cluster_log) cluster_wait();
    make_x<W>(a, w, s);
    fence_proxy_async();
    consumers_sync();
    multiply_all(weights, a, w, s);
    if (!a.cluster_log) return;
    helpers_wait();
    finish_shares(a, w, s);
}

#endif
#endif
