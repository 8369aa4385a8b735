/* k_vocab.cu: the head with one row of x on Hopper: logits of all rows of the vocabulary, and the best of them, bound by the
 * memory's pace.
 *
 * A tile is rows that lie side by side (16 of up to 2 KB, 8 longer ones), so that one bulk copy brings it. A block's ring of
 * tiles is half of its multiprocessor's shared memory: it fits beside the blocks of the layers, and is full when x comes.
 * Multiprocessors differ in pace, 95 us beside 147 for the same number of rows: so a block has as many tiles of its own as its
 * ring holds, and draws the others from one counter, each draw a tile ahead of its use. A counter that wraps when every block has
 * drawn in vain is ready for the next launch.
 *
 * Eight warps multiply a tile, each with units of 128 bytes of every row, on the tensor cores: eight rows of weights are the
 * right factor, as they lie; x in parts (k_xsplit.cuh) is the left one, and stays in registers. A lane reads 16 bytes of a row; rows
 * of even and odd number the halves of a unit in turn, so that eight lanes read from all banks: the left factor's upper eight
 * rows are x for the odd ones. A row's sum is the same whoever makes it. A norm's 1 / length comes behind the sums.
 * SPDX-License-Identifier: MIT */
#include "k_epilogue.cuh"
#include "k_xsplit.cuh"

#if __CUDA_ARCH__ >= 900

enum { TURN = CK_VOCAB_TURN, UNIT = 128, GROUP = 8, NONE = 0xffffffffu };

template <int KIND, int UNITS> struct shape {
    enum {
        COLUMNS = UNIT / form<KIND>::BYTES, /* of a unit */
        P = UNITS * COLUMNS > 128 ? UNITS * COLUMNS / 128 : 1,
        PITCH = P * 128 * form<KIND>::BYTES / 4 + form<KIND>::PAD, /* words of a part of a warp's x */
        GROUPS = CK_VOCAB_GROUPS(UNITS)
    };
};

/* --- tiles --- */

struct ring_of {
    unsigned char *room;
    uint64_t *full, *empty;
    volatile uint32_t *which; /* tile of a stage; NONE: there are no more */
};

__device__ __forceinline__ void ask_tile(const ck_vocab &a, const ring_of &r, uint32_t stage, uint32_t tile)
{
    uint32_t rows = 1u << a.rows_log, row = tile << a.rows_log, n = min(rows, a.g.segment[0].n - row);
    size_t from = (size_t)a.g.segment[0].at + row;
    unsigned char *to = r.room + (size_t)stage * a.stage_bytes;
    r.which[stage] = tile;
    gate_expect(&r.full[stage], n * (a.g.pitch + a.scale_bytes));
    bring_once(to, static_cast<const unsigned char *>(a.g.segment[0].data) + from * a.g.pitch, n * a.g.pitch, &r.full[stage]);
    if (a.scale_bytes)
        bring_once(to + (a.g.pitch << a.rows_log),
                   static_cast<const unsigned char *>(a.g.segment[0].scales) + from * a.scale_bytes, n * a.scale_bytes,
                   &r.full[stage]);
}

/* As assembly: the compiler would share atomicInc with the warp, and wait for it at once. */
__device__ __forceinline__ void draw(uint32_t *counter, uint32_t last, uint32_t &drawn)
{
    asm volatile("atom.global.inc.u32 %0, [%1], %2;" : "=r"(drawn) : "l"(counter), "r"(last) : "memory");
}

/* One thread asks for all tiles of the block. The counter is drawn from when nobody before draws any more. */
__device__ __forceinline__ void bring_tiles(const ck_vocab &a, const ring_of &r)
{
    uint32_t own = a.stages * gridDim.x, last = a.tiles - own + gridDim.x - 1, drawn, stage = 0, turn = 0;
#pragma unroll 1
    for (uint32_t i = 0; i < a.stages; i++) ask_tile(a, r, i, blockIdx.x + i * gridDim.x);
    wait_for_inputs();
    draw(a.draws, last, drawn);
#pragma unroll 1
    for (;;) {
        gate_wait(&r.empty[stage], turn);
        uint32_t tile = own + drawn;
        if (tile >= a.tiles) break;
        draw(a.draws, last, drawn);
        ask_tile(a, r, stage, tile);
        if (++stage == a.stages) stage = 0, turn ^= 1;
    }
    r.which[stage] = NONE;
    gate_arrive(&r.full[stage]);
}

/* --- x --- */

/* This lane's four columns of piece i of its warp's units, k and beyond: there are none. */
template <int KIND, int UNITS> __device__ __forceinline__ uint32_t column_of(int i, uint32_t k)
{
    uint32_t c = i * 128 + (threadIdx.x & 31) * 4, unit = c / shape<KIND, UNITS>::COLUMNS;
    return unit < UNITS ? ((threadIdx.x >> 5) + unit * WARPS) * shape<KIND, UNITS>::COLUMNS + c % shape<KIND, UNITS>::COLUMNS : k;
}
template <int KIND, int UNITS, int P>
__device__ __forceinline__ void load_units(own_x<P> &x, const float *from, uint32_t k, float missing)
{
#pragma unroll
    for (int i = 0; i < P; i++) {
        uint32_t c = column_of<KIND, UNITS>(i, k);
        x.v[i] = make_float4(missing, missing, missing, missing);
        if (from && c < k) x.v[i] = four_at(from, c);
    }
}

/* Sum over the block of what the warps put down in `room`. */
__device__ __forceinline__ float sum_of_warps(const float *room)
{
    float s = 0;
#pragma unroll
    for (int i = 0; i < WARPS; i++) s += room[i];
    return s;
}
__device__ __forceinline__ void give_sum(float x, float *room)
{
    x = warp_sum(x);
    if ((threadIdx.x & 31) == 0) room[threadIdx.x >> 5] = x;
}

template <int KIND, int UNITS, int P> __device__ __forceinline__ float squares_from(const own_x<P> &x, float mean, uint32_t k)
{
    float s = 0;
#pragma unroll
    for (int i = 0; i < P; i++) {
        float4 d = make_float4(x.v[i].x - mean, x.v[i].y - mean, x.v[i].z - mean, x.v[i].w - mean);
        if (column_of<KIND, UNITS>(i, k) < k) s += d.x * d.x + d.y * d.y + d.z * d.z + d.w * d.w;
    }
    return s;
}

/* The norm, but for 1 / length of an RMS norm, of which the squares are left in room[1]. */
template <int KIND, int UNITS, int P>
__device__ __forceinline__ void norm_units(const ck_norm &n, own_x<P> &x, const own_x<P> &w, const own_x<P> &b, uint32_t k,
                                           float (*room)[WARPS])
{
    float plus = n.plus_one && n.weight ? 1.0f : 0.0f, mean = 0, inverse = 1;
    if (n.layer) {
        float s = 0;
#pragma unroll
        for (int i = 0; i < P; i++) s += x.v[i].x + x.v[i].y + x.v[i].z + x.v[i].w;
        give_sum(s, room[0]);
        consumers_meet();
        mean = sum_of_warps(room[0]) / k;
    }
    give_sum(squares_from<KIND, UNITS>(x, mean, k), room[1]);
    if (n.layer) {
        consumers_meet();
        inverse = rsqrtf(sum_of_warps(room[1]) / k + n.eps);
    }
#pragma unroll
    for (int i = 0; i < P; i++) {
        bool there = column_of<KIND, UNITS>(i, k) < k;
        x.v[i].x = there ? one_normed(x.v[i].x, mean, inverse, plus, w.v[i].x, b.v[i].x) : 0;
        x.v[i].y = there ? one_normed(x.v[i].y, mean, inverse, plus, w.v[i].y, b.v[i].y) : 0;
        x.v[i].z = there ? one_normed(x.v[i].z, mean, inverse, plus, w.v[i].z, b.v[i].z) : 0;
        x.v[i].w = there ? one_normed(x.v[i].w, mean, inverse, plus, w.v[i].w, b.v[i].w) : 0;
    }
}

/* x of the warp's units as its lanes multiply it: [unit][half]. Returns what sums are to be multiplied with. */
template <int KIND, int UNITS>
__device__ __forceinline__ float bring_units(const ck_gemv &g, uint32_t *words, float (*room)[WARPS], uint4 (&factor)[UNITS][2])
{
    constexpr int P = shape<KIND, UNITS>::P, PITCH = shape<KIND, UNITS>::PITCH;
    uint32_t lane = threadIdx.x & 31, part = KIND == CK_Q8 ? lane >> 2 & 3 : lane >> 2;
    bool own = KIND == CK_Q8 ? lane >> 4 == (lane >> 1 & 1) : part < form<KIND>::PARTS;
    own_x<P> x, w, b;
    if (g.norm.present) {
        load_units<KIND, UNITS>(w, g.norm.weight, g.k, 1);
        load_units<KIND, UNITS>(b, g.norm.bias, g.k, 0);
    }
    wait_for_inputs();
    load_units<KIND, UNITS>(x, g.x.p, g.k, 0);
    if (g.norm.present) norm_units<KIND, UNITS>(g.norm, x, w, b, g.k, room);
    float scale = put_digits<KIND>(x, P * 128, words, PITCH);
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

/* --- the product --- */

/* Of eight rows, which lane reads where; scales: of Q8_0. */
template <int KIND, int UNITS> struct eight_rows {
    uint4 w[UNITS][2];
    uint2 even[KIND == CK_Q8 ? UNITS : 1], odd[KIND == CK_Q8 ? UNITS : 1];
};
template <int KIND, int UNITS>
__device__ __forceinline__ void read_rows(eight_rows<KIND, UNITS> &r, uint32_t data, uint32_t scales, uint32_t pitch,
                                          uint32_t scale_bytes)
{
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, row = lane >> 2,
             at = data + row * pitch + warp * UNIT + (row & 1) * (UNIT / 2) + (lane & 3) * 16;
#pragma unroll
    for (int j = 0; j < UNITS; j++) {
        bool there = (warp + j * WARPS) * UNIT < pitch;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            r.w[j][h] = make_uint4(0, 0, 0, 0);
            if (there) r.w[j][h] = shared_piece((at + j * (WARPS * UNIT)) ^ (h * (UNIT / 2)));
        }
        if (KIND != CK_Q8) continue;
        r.even[j] = r.odd[j] = make_uint2(0, 0);
        uint32_t s = scales + (lane & 3) * 2 * scale_bytes + (warp + j * WARPS) * 8;
        if (there) r.even[j] = shared_two(s), r.odd[j] = shared_two(s + scale_bytes);
    }
}

/* Sums of rows 2 t and 2 t + 1 of the eight, t the lane's place among four. */
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
                even = fmaf((float)c[0], one_scale(h ? r.even[j].y : r.even[j].x, second), even);
                odd = fmaf((float)c[3], one_scale(h ? r.odd[j].x : r.odd[j].y, second), odd);
            } else {
                mma<KIND == CK_BF16>(acc, {e.x, o.x, e.y, o.y}, w.x, w.y);
                mma<KIND == CK_BF16>(acc, {e.z, o.z, e.w, o.w}, w.z, w.w);
            }
        }
    return KIND == CK_Q8 ? make_float2(even, odd) : make_float2(acc[0], acc[3]);
}

/* The eight rows' sums over this warp's columns. */
__device__ __forceinline__ void put_sums(float2 v, float scale, float *to)
{
    uint32_t lane = threadIdx.x & 31;
    bool high = lane & 16;
    float s = (high ? v.y : v.x) * scale + __shfl_xor_sync(0xffffffffu, (high ? v.x : v.y) * scale, 16);
    s += __shfl_xor_sync(0xffffffffu, s, 4);
    s += __shfl_xor_sync(0xffffffffu, s, 8);
    if ((lane & 12) == 0) to[(lane & 3) * 2 + (lane >> 4)] = s;
}

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
    for (int i = 0; i < GROUPS; i++)
        put_sums(use_rows<KIND, UNITS>(r[i], x), scale, to + i * GROUP);
}

/* --- the end --- */

/* Sums of `done` tiles are there, a thread ends a row. sums: of the first warp, the next ones' `apart` words further. */
__device__ __forceinline__ void end_rows(const ck_vocab &a, const float *sums, uint32_t apart, const uint32_t *first,
                                         uint32_t done, float late, float &best, uint32_t &index)
{
    uint32_t t = threadIdx.x, row;
    if (t >= done << a.rows_log) return;
    row = (first[t >> a.rows_log] << a.rows_log) + (t & ((1u << a.rows_log) - 1));
    if (row >= a.g.segment[0].n) return;
    float v = 0;
#pragma unroll
    for (int i = 0; i < WARPS; i++) v += sums[i * apart + t];
    v *= late;
    a.g.segment[0].y.p[row] = v;
    if (a.g.best) keep_best(a.g.banned, v, row, best, index);
}

template <int KIND, int UNITS> __device__ __forceinline__ void vocab(const ck_vocab &a)
{
    extern __shared__ __align__(128) unsigned char room[];
    __shared__ uint64_t full[CK_VOCAB_STAGES], empty[CK_VOCAB_STAGES];
    __shared__ uint32_t which[CK_VOCAB_STAGES], first[2][TURN / GROUP];
    __shared__ uint64_t bests[WARPS];
    __shared__ float stats[2][WARPS];
    ring_of ring = {room, full, empty, which};
    dependents_may_start();
    if (threadIdx.x == CONSUMERS) {
        for (uint32_t i = 0; i < a.stages; i++) {
            gate_open(&full[i], 1);
            gate_open(&empty[i], CONSUMERS);
        }
        gates_opened();
    }
    __syncthreads();
    if (threadIdx.x >= CONSUMERS) {
        if (threadIdx.x == CONSUMERS) bring_tiles(a, ring);
        return;
    }
    constexpr uint32_t apart = CK_VOCAB_OWN(KIND, UNITS) / 4;
    uint32_t *all = reinterpret_cast<uint32_t *>(room + (size_t)a.stages * a.stage_bytes),
             *own = all + (threadIdx.x >> 5) * apart;
    float *sums = reinterpret_cast<float *>(own), best = -CUDART_INF_F, late = 1; /* where x was: two turns of sums */
    uint4 x[UNITS][2];
    float scale = bring_units<KIND, UNITS>(a.g, own, stats, x);
    bool unscaled = a.g.norm.present && !a.g.norm.layer;
    uint32_t stage = 0, parity = 0, done = 0, half = 0, index = 0xfffffffeu, most = TURN >> a.rows_log;
#pragma unroll 1
    for (bool more = true; more;) {
        gate_wait(&full[stage], parity);
        uint32_t tile = ring.which[stage];
        more = tile != NONE;
        if (more) {
            multiply_tile<KIND, UNITS>(a, shared_at(room) + stage * a.stage_bytes, x, scale,
                                       sums + half * TURN + (done << a.rows_log));
            gate_arrive(&empty[stage]);
            if (threadIdx.x == 0) first[half][done] = tile;
            done++;
            if (++stage == a.stages) stage = 0, parity ^= 1;
            if (done < most) continue;
        }
        consumers_meet();
        if (unscaled) late = rsqrtf(sum_of_warps(stats[1]) / a.g.k + a.g.norm.eps);
        unscaled = false;
        end_rows(a, reinterpret_cast<float *>(all) + half * TURN, apart, first[half], done, late, best, index);
        done = 0;
        half ^= 1;
    }
    if (a.g.best) give_best(a.g, best, index, bests);
}

#else
template <int KIND, int UNITS> __device__ __forceinline__ void vocab(const ck_vocab &) {} /* not launched */
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
