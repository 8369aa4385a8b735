/* k_vocab.cu: output head for one row of x on sm_90: logits of the whole vocabulary and per-block
 * argmax, bound by memory bandwidth. Host: issue_vocab.c, fp16, bf16 or Q8_0 weights with rows of up
 * to 4 KB (Q8_0: 2,048 columns).
 *
 * 288 threads: 8 consumer warps, 1 producer warp; two blocks per multiprocessor. A tile is 16 rows
 * of up to 2 KB or 8 longer ones, contiguous in memory, loaded by one bulk copy. The ring takes half
 * of a multiprocessor's shared memory, so the blocks become resident beside those of the layers
 * before and their rings are full when x arrives. Multiprocessors differ in speed (95 to 147 us for
 * the same number of rows), so only the tiles of the first ring fill are assigned statically; the
 * others are claimed from a global counter, one ahead of use. atomicInc wraps the counter to 0 when
 * every block has failed to claim, ready for the next launch.
 *
 * Each warp multiplies 128-byte units of every row on tensor cores: eight weight rows are the b
 * operand as stored, x in parts (k_xsplit.cuh) is the a operand and stays in registers. Lanes read
 * 16 bytes of a row; even and odd rows read the two halves of a unit in opposite order to use all
 * banks, and rows 8 to 15 of a hold x for the odd rows. Which block computes a row does not change
 * its sum. The RMS factor of a norm is applied to the sums. Shared memory: ring; per warp x in
 * parts, reused for two turns of sums.
 * SPDX-License-Identifier: MIT */
#include "k_epilogue.cuh"
#include "k_xsplit.cuh"

#if __CUDA_ARCH__ == 900

/* TURN: rows finished together; UNIT: bytes; GROUP: rows per product; NONE: end marker in the ring. */
enum { TURN = CK_VOCAB_TURN, UNIT = 128, GROUP = 8, NONE = 0xffffffffu };

template <int KIND, int UNITS> struct shape {
    enum {
        COLUMNS = UNIT / split_form<KIND>::BYTES, /* columns per unit */
        P = UNITS * COLUMNS > 128 ? UNITS *COLUMNS / 128 : 1,
        PITCH = P * 128 * split_form<KIND>::BYTES / 4 + split_form<KIND>::PAD, /* words per part of a warp's x */
        GROUPS = CK_VOCAB_GROUPS(UNITS)
    };
};

struct tile_ring {
    unsigned char *smem;
    uint64_t *full, *empty;
    volatile uint32_t *which; /* tile number of each stage; NONE: no more tiles */
};

/* Issues the load of a tile into a stage. */
__device__ __forceinline__ void issue_tile(const ck_vocab &a, const tile_ring &r, uint32_t stage, uint32_t tile)
{
    uint32_t rows = 1u << a.rows_log, row = tile << a.rows_log, n = min(rows, a.g.segment[0].n - row);
    size_t from = (size_t)a.g.segment[0].at + row;
    unsigned char *to = r.smem + (size_t)stage * a.stage_bytes;
    r.which[stage] = tile;
    mbar_expect_tx(&r.full[stage], n * (a.g.pitch + a.scale_bytes));
    bulk_load_evict_first(to, static_cast<const unsigned char *>(a.g.segment[0].data) + from * a.g.pitch, n * a.g.pitch,
                          &r.full[stage]);
    if (a.scale_bytes)
        bulk_load_evict_first(to + (a.g.pitch << a.rows_log),
                              static_cast<const unsigned char *>(a.g.segment[0].scales) + from * a.scale_bytes, n * a.scale_bytes,
                              &r.full[stage]);
}

/* Claims the next tile. As assembly, because the compiler would aggregate atomicInc over the warp
 * and wait for its result at once. */
__device__ __forceinline__ void claim_tile(uint32_t *counter, uint32_t last, uint32_t &claimed)
{
    asm volatile("atom.global.inc.u32 %0, [%1], %2;" : "=r"(claimed) : "l"(counter), "r"(last) : "memory");
}

/* Producer thread: all tiles of the block. The first claim follows griddepcontrol.wait, after which
 * no earlier launch uses the counter. */
__device__ __forceinline__ void load_tiles(const ck_vocab &a, const tile_ring &r)
{
    uint32_t own = a.stages * gridDim.x, last = a.tiles - own + gridDim.x - 1, claimed, stage = 0, turn = 0;
    /* Static tiles: one ring fill. */
#pragma unroll 1
    for (uint32_t i = 0; i < a.stages; i++) issue_tile(a, r, i, blockIdx.x + i * gridDim.x);
    wait_for_inputs();
    claim_tile(a.draws, last, claimed);
    /* Then claimed tiles, one claim ahead. */
#pragma unroll 1
    for (;;) {
        mbar_wait(&r.empty[stage], turn);
        uint32_t tile = own + claimed;
        if (tile >= a.tiles) break;
        claim_tile(a.draws, last, claimed);
        issue_tile(a, r, stage, tile);
        if (++stage == a.stages) stage = 0, turn ^= 1;
    }
    r.which[stage] = NONE;
    mbar_arrive(&r.full[stage]);
}

/* First of this lane's four columns in piece i of its warp's units; k or more: none. */
template <int KIND, int UNITS> __device__ __forceinline__ uint32_t column_of(int i, uint32_t k)
{
    /* Units are dealt to warps round-robin. */
    uint32_t c = i * 128 + (threadIdx.x & 31) * 4, unit = c / shape<KIND, UNITS>::COLUMNS;
    return unit < UNITS ? ((threadIdx.x >> 5) + unit * WARPS) * shape<KIND, UNITS>::COLUMNS + c % shape<KIND, UNITS>::COLUMNS : k;
}
/* Loads this lane's columns of a vector; `missing` where there are none. */
template <int KIND, int UNITS, int P>
__device__ __forceinline__ void load_columns(warp_x<P> &x, const float *from, uint32_t k, float missing)
{
#pragma unroll
    for (int i = 0; i < P; i++) {
        uint32_t c = column_of<KIND, UNITS>(i, k);
        x.v[i] = make_float4(missing, missing, missing, missing);
        if (from && c < k) x.v[i] = float4_at(from, c);
    }
}

/* Sum over the block of the values that the warps stored in `smem`. */
__device__ __forceinline__ float sum_of_warps(const float *smem)
{
    float s = 0;
#pragma unroll
    for (int i = 0; i < WARPS; i++) s += smem[i];
    return s;
}
/* Stores the warp's sum of x. */
__device__ __forceinline__ void store_warp_sum(float x, float *smem)
{
    x = warp_sum(x);
    if ((threadIdx.x & 31) == 0) smem[threadIdx.x >> 5] = x;
}

/* Sum of (x - mean)^2 over this lane's columns. */
template <int KIND, int UNITS, int P> __device__ __forceinline__ float squares_from(const warp_x<P> &x, float mean, uint32_t k)
{
    float s = 0;
#pragma unroll
    for (int i = 0; i < P; i++) {
        float4 d = make_float4(x.v[i].x - mean, x.v[i].y - mean, x.v[i].z - mean, x.v[i].w - mean);
        if (column_of<KIND, UNITS>(i, k) < k) s += d.x * d.x + d.y * d.y + d.z * d.z + d.w * d.w;
    }
    return s;
}

/* Applies the norm except for the 1 / rms of an RMS norm, whose sum of squares is left in smem[1]. */
template <int KIND, int UNITS, int P>
__device__ __forceinline__ void norm_units(const ck_norm &n, warp_x<P> &x, const warp_x<P> &w, const warp_x<P> &b, uint32_t k,
                                           float (*smem)[WARPS])
{
    float plus = n.plus_one && n.weight ? 1.0f : 0.0f, mean = 0, inverse = 1;
    /* Layer norm needs mean and variance before x is used. */
    if (n.layer) {
        float s = 0;
#pragma unroll
        for (int i = 0; i < P; i++) s += x.v[i].x + x.v[i].y + x.v[i].z + x.v[i].w;
        store_warp_sum(s, smem[0]);
        consumers_sync();
        mean = sum_of_warps(smem[0]) / k;
    }
    store_warp_sum(squares_from<KIND, UNITS>(x, mean, k), smem[1]);
    if (n.layer) {
        consumers_sync();
        inverse = rsqrtf(sum_of_warps(smem[1]) / k + n.eps);
    }
#pragma unroll
    for (int i = 0; i < P; i++) {
        bool present = column_of<KIND, UNITS>(i, k) < k;
        x.v[i].x = present ? apply_norm(x.v[i].x, mean, inverse, plus, w.v[i].x, b.v[i].x) : 0;
        x.v[i].y = present ? apply_norm(x.v[i].y, mean, inverse, plus, w.v[i].y, b.v[i].y) : 0;
        x.v[i].z = present ? apply_norm(x.v[i].z, mean, inverse, plus, w.v[i].z, b.v[i].z) : 0;
        x.v[i].w = present ? apply_norm(x.v[i].w, mean, inverse, plus, w.v[i].w, b.v[i].w) : 0;
    }
}

/* Loads and normalises x of the warp's units and builds its operands: [unit][half]. Returns the
 * factor of the sums. */
template <int KIND, int UNITS>
__device__ __forceinline__ float load_x_units(const ck_gemv &g, uint32_t *words, float (*smem)[WARPS], uint4 (&factor)[UNITS][2])
{
    constexpr int P = shape<KIND, UNITS>::P, PITCH = shape<KIND, UNITS>::PITCH;
    uint32_t lane = threadIdx.x & 31, part = KIND == CK_Q8 ? lane >> 2 & 3 : lane >> 2;
    bool own = KIND == CK_Q8 ? lane >> 4 == (lane >> 1 & 1) : part < split_form<KIND>::PARTS;
    warp_x<P> x, w, b;
    /* Norm weights do not depend on the inputs. */
    if (g.norm.present) {
        load_columns<KIND, UNITS>(w, g.norm.weight, g.k, 1);
        load_columns<KIND, UNITS>(b, g.norm.bias, g.k, 0);
    }
    wait_for_inputs();
    load_columns<KIND, UNITS>(x, g.x.p, g.k, 0);
    if (g.norm.present) norm_units<KIND, UNITS>(g.norm, x, w, b, g.k, smem);
    float scale = put_digits<KIND>(x, P * 128, words, PITCH);
    /* Operands: rows 0 to 7 of a for even weight rows, 8 to 15 for odd ones. */
#pragma unroll
    for (int j = 0; j < UNITS; j++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            factor[j][h] = make_uint4(0, 0, 0, 0);
            if (own) factor[j][h] = *reinterpret_cast<const uint4 *>(words + part * PITCH + (j * 2 + h) * 16 + (lane & 3) * 4);
        }
    if (KIND == CK_Q8)
        for (uint32_t i = 0; i < part; i++) scale *= 256;
    __syncwarp();
    return scale;
}

/* Eight weight rows in registers; scales for Q8_0. */
template <int KIND, int UNITS> struct eight_rows {
    uint4 w[UNITS][2];
    uint2 even[KIND == CK_Q8 ? UNITS : 1], odd[KIND == CK_Q8 ? UNITS : 1];
};
/* Loads them from a stage. */
template <int KIND, int UNITS>
__device__ __forceinline__ void read_rows(eight_rows<KIND, UNITS> &r, uint32_t data, uint32_t scales, uint32_t pitch,
                                          uint32_t scale_bytes)
{
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, row = lane >> 2,
             at = data + row * pitch + warp * UNIT + (row & 1) * (UNIT / 2) + (lane & 3) * 16;
    /* Unit j of this warp; half h is swapped for odd rows. */
#pragma unroll
    for (int j = 0; j < UNITS; j++) {
        bool present = (warp + j * WARPS) * UNIT < pitch;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            r.w[j][h] = make_uint4(0, 0, 0, 0);
            if (present) r.w[j][h] = lds_128((at + j * (WARPS * UNIT)) ^ (h * (UNIT / 2)));
        }
        if (KIND != CK_Q8) continue;
        r.even[j] = r.odd[j] = make_uint2(0, 0);
        uint32_t s = scales + (lane & 3) * 2 * scale_bytes + (warp + j * WARPS) * 8;
        if (present) r.even[j] = lds_64(s), r.odd[j] = lds_64(s + scale_bytes);
    }
}

/* Sums of rows 2 t and 2 t + 1 of the eight, t = lane % 4. */
template <int KIND, int UNITS>
__device__ __forceinline__ float2 use_rows(const eight_rows<KIND, UNITS> &r, const uint4 (&x)[UNITS][2])
{
    float acc[4] = {0, 0, 0, 0}, even = 0, odd = 0;
    uint32_t second = threadIdx.x & 16;
#pragma unroll
    for (int j = 0; j < UNITS; j++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint4 &w = r.w[j][h], &e = x[j][h], &o = x[j][1 - h];
            if constexpr (KIND == CK_Q8) {
                int c[4] = {0, 0, 0, 0};
                mma_int8(c, e.x, o.x, e.y, o.y, w.x, w.y);
                mma_int8(c, e.z, o.z, e.w, o.w, w.z, w.w);
                even = fmaf((float)c[0], pick_scale(h ? r.even[j].y : r.even[j].x, second), even);
                odd = fmaf((float)c[3], pick_scale(h ? r.odd[j].x : r.odd[j].y, second), odd);
            } else {
                mma<KIND == CK_BF16>(acc, {e.x, o.x, e.y, o.y}, w.x, w.y);
                mma<KIND == CK_BF16>(acc, {e.z, o.z, e.w, o.w}, w.z, w.w);
            }
        }
    return KIND == CK_Q8 ? make_float2(even, odd) : make_float2(acc[0], acc[3]);
}

/* Stores the eight rows' sums over this warp's columns. */
__device__ __forceinline__ void put_sums(float2 v, float scale, float *to)
{
    uint32_t lane = threadIdx.x & 31;
    bool high = lane & 16;
    /* Combine lane halves, then the digit or part columns. */
    float s = (high ? v.y : v.x) * scale + __shfl_xor_sync(0xffffffffu, (high ? v.x : v.y) * scale, 16);
    s += __shfl_xor_sync(0xffffffffu, s, 4);
    s += __shfl_xor_sync(0xffffffffu, s, 8);
    if ((lane & 12) == 0) to[(lane & 3) * 2 + (lane >> 4)] = s;
}

/* Multiplies all rows of a tile with the warp's units. */
template <int KIND, int UNITS>
__device__ __forceinline__ void multiply_tile(const ck_vocab &a, uint32_t data, const uint4 (&x)[UNITS][2], float scale,
                                              float *to)
{
    constexpr int GROUPS = shape<KIND, UNITS>::GROUPS;
    uint32_t scales = data + (a.g.pitch << a.rows_log);
    eight_rows<KIND, UNITS> r[GROUPS];
#pragma unroll
    for (int i = 0; i < GROUPS; i++)
        read_rows<KIND, UNITS>(r[i], data + i * GROUP * a.g.pitch, scales + i * GROUP * a.scale_bytes, a.g.pitch, a.scale_bytes);
#pragma unroll
    for (int i = 0; i < GROUPS; i++) put_sums(use_rows<KIND, UNITS>(r[i], x), scale, to + i * GROUP);
}

/* Finishes the rows of `done` tiles, one per thread: adds the warps' sums, `warp_words` apart,
 * stores the logit, updates the argmax. */
__device__ __forceinline__ void finish_rows(const ck_vocab &a, const float *sums, uint32_t warp_words, const uint32_t *first,
                                            uint32_t done, float post_scale, float &best, uint32_t &index)
{
    uint32_t t = threadIdx.x, row;
    if (t >= done << a.rows_log) return;
    row = (first[t >> a.rows_log] << a.rows_log) + (t & ((1u << a.rows_log) - 1));
    if (row >= a.g.segment[0].n) return;
    float v = 0;
#pragma unroll
    for (int i = 0; i < WARPS; i++) v += sums[i * warp_words + t];
    v *= post_scale;
    a.g.segment[0].y.p[row] = v;
    if (a.g.best) update_best(a.g.banned, v, row, best, index);
}

/* Kernel body. UNITS: 128-byte units per warp. */
template <int KIND, int UNITS> __device__ __forceinline__ void vocab(const ck_vocab &a)
{
    extern __shared__ __align__(128) unsigned char smem[];
    __shared__ uint64_t full[CK_VOCAB_STAGES], empty[CK_VOCAB_STAGES];
    __shared__ uint32_t which[CK_VOCAB_STAGES], first[2][TURN / GROUP];
    __shared__ uint64_t bests[WARPS];
    __shared__ float stats[2][WARPS];
    tile_ring ring = {smem, full, empty, which};
    launch_dependents();
    if (threadIdx.x == CONSUMERS) {
        /* Ring mbarriers: full by the copy, empty by all consumers. */
        for (uint32_t i = 0; i < a.stages; i++) {
            mbar_init(&full[i], 1);
            mbar_init(&empty[i], CONSUMERS);
        }
        mbar_init_fence();
    }
    __syncthreads();
    if (threadIdx.x >= CONSUMERS) {
        if (threadIdx.x == CONSUMERS) load_tiles(a, ring);
        return;
    }
    constexpr uint32_t warp_words = CK_VOCAB_WARP_BYTES(KIND, UNITS) / 4;
    uint32_t *all = reinterpret_cast<uint32_t *>(smem + (size_t)a.stages * a.stage_bytes),
             *own = all + (threadIdx.x >> 5) * warp_words;
    /* in the memory of x: two turns of sums */
    float *sums = reinterpret_cast<float *>(own), best = -CUDART_INF_F, post_scale = 1;
    uint4 x[UNITS][2];
    float scale = load_x_units<KIND, UNITS>(a.g, own, stats, x);
    bool unscaled = a.g.norm.present && !a.g.norm.layer;
    uint32_t stage = 0, parity = 0, done = 0, half = 0, index = 0xfffffffeu, turn_tiles = TURN >> a.rows_log;
    /* One tile per round; finish rows every turn_tiles tiles or at the end. */
#pragma unroll 1
    for (bool more = true; more;) {
        mbar_wait(&full[stage], parity);
        uint32_t tile = ring.which[stage];
        more = tile != NONE;
        if (more) {
            multiply_tile<KIND, UNITS>(a, smem_addr(smem) + stage * a.stage_bytes, x, scale,
                                       sums + half * TURN + (done << a.rows_log));
            mbar_arrive(&empty[stage]);
            if (threadIdx.x == 0) first[half][done] = tile;
            done++;
            if (++stage == a.stages) stage = 0, parity ^= 1;
            if (done < turn_tiles) continue;
        }
        consumers_sync();
        if (unscaled) post_scale = rsqrtf(sum_of_warps(stats[1]) / a.g.k + a.g.norm.eps);
        unscaled = false;
        finish_rows(a, reinterpret_cast<float *>(all) + half * TURN, warp_words, first[half], done, post_scale, best, index);
        done = 0;
        half ^= 1;
    }
    if (a.g.best) store_block_best(a.g, best, index, bests);
}

#else
template <int KIND, int UNITS> __device__ __forceinline__ void vocab(const ck_vocab &) {} /* never launched before sm_90 */
#endif

#define VOCAB(KIND, UNITS)                                                                                                       \
    extern "C" __global__ void __launch_bounds__(CK_VOCAB_THREADS, 2) vocab_##KIND##_##UNITS(const __grid_constant__ ck_vocab a) \
    {                                                                                                                            \
        vocab<CK_##KIND, UNITS>(a);                                                                                              \
    }
VOCAB(F16, 1)
VOCAB(F16, 2)
VOCAB(F16, 4)
VOCAB(BF16, 1)
VOCAB(BF16, 2)
VOCAB(BF16, 4)
VOCAB(Q8, 1)
VOCAB(Q8, 2)
