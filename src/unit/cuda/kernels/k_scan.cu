/* k_scan.cu: S of the delta rule through the chunks that chunk_factors (k_chunk.cu) made ready, in order, on Hopper (elsewhere
 * these kernels are empty and not used):
 *   D = U - W S,  O = (e^c Q) S + P D,  S <- e^c_last S + (e^(c_last - c) K)^T D
 * A block has 16 columns of a head's S, turned (columns are rows of the tensor cores' left factor): sums of one product are the
 * left factor of the next, in the lanes that have them. Four warps have 32 rows of S each, in fp32 in registers, and add up their
 * parts of W S by way of shared memory; four more make O of the S and D that those leave there; a thread each brings W and K, and
 * Q and P. Where the card, or the part of it, has fewer multiprocessors than that makes blocks, a block has two such sets of
 * warps, each with 16 columns, on the same factors: a chain waits for most of its time, so two are done in little more than
 * one's. W and P then have one place, not two.
 *
 * Right factors come in the order of the lanes, so that a piece of 16 x 16 is one load of 16 bytes a lane for each of its two
 * parts. A chunk is a chain: 48 products of 16 x 8 x 16 a warp (6 to 8 cycles each), two turns through shared memory, 48
 * products. Its 106 KB come meanwhile, for the most part from the second-level cache, where all blocks of a head find the same.
 * SPDX-License-Identifier: MIT */
#include "k_bulk.cuh"
#include "k_pairs.cuh"

enum { COLUMNS = CK_SCAN_COLUMNS, HALF = 128, WARPS = HALF / 32, PIECE = 2 * 32, MATRIX = 2 * N * D * 2, TRIANGLE = 10 * 1024 };

#if __CUDA_ARCH__ >= 900
struct scan_own { /* of a set of warps */
    uint4 s[2][D / 16 * PIECE], d[2][N / 16 * PIECE]; /* left factors, by parity of the chunk */
    float4 part[WARPS][N / 8][32];
};
template <int SETS> struct scan_room {
    enum { ONE = SETS == 1 ? 2 : 1 }; /* places of W and of P */
    uint4 w[ONE][MATRIX / 16], k[2][MATRIX / 16], p[ONE][TRIANGLE / 16];
    uint4 q[2][MATRIX / 32]; /* the first 64 columns and the others */
    scan_own own[SETS];
    uint64_t w_full[ONE], k_full[2], q_full[2], p_full[ONE], w_free[ONE], k_free[2], q_free[2], p_free[ONE];
};

/* Which of so many places a chunk has, and how often it had an owner before, by parity. */
template <int PLACES> __device__ __forceinline__ uint32_t place_of(uint32_t c) { return c % PLACES; }
template <int PLACES> __device__ __forceinline__ uint32_t parity_of(uint32_t c) { return c / PLACES & 1; }

struct scan_place { /* of a set of warps */
    const ck_factors *factors;
    uint32_t h, group, next, all, chunks, set; /* next: factors from a chunk to the one behind it */
};

/* The set's warps that have S. */
enum { MEETS = 1, S_THERE = 2, D_THERE = 4, BOTH_READ = 6, SAID = 7 };
__device__ __forceinline__ void state_meets(const scan_place &at)
{
    asm volatile("bar.sync %0, %1;" ::"r"(MEETS + at.set * SAID), "n"(HALF + 0) : "memory");
}

/* What warps that have S and those that make O tell each other: one half says so and goes on, the other waits for it. By parity
 * of the chunk; each is said again only when it was heard. */
__device__ __forceinline__ void tell(const scan_place &at, uint32_t what, uint32_t turn)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(what + turn + at.set * SAID), "n"(2 * HALF) : "memory");
}
__device__ __forceinline__ void hear(const scan_place &at, uint32_t what, uint32_t turn)
{
    asm volatile("bar.sync %0, %1;" ::"r"(what + turn + at.set * SAID), "n"(2 * HALF) : "memory");
}

/* Sums of a product as left factors of the next, in two parts: tile k has columns 16 k to 16 k + 15. */
template <int TILES>
__device__ __forceinline__ void make_left(const float (&x)[2 * TILES][4], uint4 (&high)[TILES], uint4 (&low)[TILES])
{
#pragma unroll
    for (int k = 0; k < TILES; k++) {
        split(x[2 * k][0], x[2 * k][1], high[k].x, low[k].x), split(x[2 * k][2], x[2 * k][3], high[k].y, low[k].y);
        split(x[2 * k + 1][0], x[2 * k + 1][1], high[k].z, low[k].z),
            split(x[2 * k + 1][2], x[2 * k + 1][3], high[k].w, low[k].w);
    }
}
__device__ __forceinline__ void put_left(uint4 *to, uint4 high, uint4 low)
{
    to += threadIdx.x & 31;
    to[0] = high, to[32] = low;
}

__device__ __forceinline__ void add_one(float (&sum)[4], const uint4 &a, uint32_t b0, uint32_t b1)
{
    const uint32_t left[4] = {a.x, a.y, a.z, a.w};
    mma<1>(sum, left, b0, b1);
}

/* sum += the left factor times TILES pieces from b on, `apart` pieces from one another; the small terms go to sums of their own,
 * or to the same. */
template <int TILES>
__device__ __forceinline__ void add_pieces(float (&sum)[2 * TILES][4], float (&small)[2 * TILES][4], float (&other)[2 * TILES][4],
                                           const uint4 &high, const uint4 &low, const uint4 *b, uint32_t apart)
{
    uint4 bh[TILES], bl[TILES];
    b += threadIdx.x & 31;
#pragma unroll
    for (int n = 0; n < TILES; n++) bh[n] = b[n * apart * PIECE], bl[n] = b[n * apart * PIECE + 32];
#pragma unroll
    for (int n = 0; n < TILES; n++)
        add_one(small[2 * n], high, bl[n].x, bl[n].y), add_one(small[2 * n + 1], high, bl[n].z, bl[n].w);
#pragma unroll
    for (int n = 0; n < TILES; n++) add_one(sum[2 * n], high, bh[n].x, bh[n].y), add_one(sum[2 * n + 1], high, bh[n].z, bh[n].w);
#pragma unroll
    for (int n = 0; n < TILES; n++)
        add_one(other[2 * n], low, bh[n].x, bh[n].y), add_one(other[2 * n + 1], low, bh[n].z, bh[n].w);
}

template <int TILES> __device__ __forceinline__ void clear(float (&x)[TILES][4])
{
#pragma unroll
    for (int n = 0; n < TILES; n++) x[n][0] = x[n][1] = x[n][2] = x[n][3] = 0;
}

/* The warp's 16 rows of U, and by how much the chunk shrinks S. */
__device__ __forceinline__ void bring_u(const scan_place &at, uint32_t c, float4 (&u)[2], float &decay)
{
    const ck_factors &f = at.factors[(size_t)c * at.next];
    const float4 *from = reinterpret_cast<const float4 *>(f.u) +
                         (at.group * (N / 8) + (threadIdx.x >> 5 & (WARPS - 1)) * 2) * 32 + (threadIdx.x & 31);
    decay = f.decay;
    u[0] = from[0], u[1] = from[32];
}

/* D = U - W S from the warps' parts of W S: each adds up 16 rows, and all find it as left factors. */
__device__ __forceinline__ void share_d(scan_own &room, const scan_place &at, const float (&ws)[N / 8][4], const float4 (&u)[2],
                                        uint32_t turn)
{
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5 & (WARPS - 1);
    float d[2][4];
    uint4 high[1], low[1];
#pragma unroll
    for (int n = 0; n < N / 8; n++) room.part[warp][n][lane] = make_float4(ws[n][0], ws[n][1], ws[n][2], ws[n][3]);
    state_meets(at);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float4 x = room.part[0][warp * 2 + i][lane], y = room.part[1][warp * 2 + i][lane],
                     z = room.part[2][warp * 2 + i][lane], v = room.part[3][warp * 2 + i][lane];
        d[i][0] = u[i].x - ((x.x + y.x) + (z.x + v.x)), d[i][1] = u[i].y - ((x.y + y.y) + (z.y + v.y));
        d[i][2] = u[i].z - ((x.z + y.z) + (z.z + v.z)), d[i][3] = u[i].w - ((x.w + y.w) + (z.w + v.w));
    }
    make_left<1>(d, high, low);
    put_left(room.d[turn] + warp * PIECE, high[0], low[0]);
    tell(at, D_THERE, turn);
    state_meets(at);
}

/* S through the chunks: a warp has 32 rows of the set's columns. */
template <int SETS> __device__ __forceinline__ void scan_state(const ck_delta &a, scan_room<SETS> &room, const scan_place &at)
{
    constexpr int ONE = scan_room<SETS>::ONE;
    scan_own &own = room.own[at.set];
    uint32_t warp = threadIdx.x >> 5 & (WARPS - 1), lane = threadIdx.x & 31;
    size_t place = (size_t)at.h * D * D + (warp * (D / WARPS) + (lane & 3) * 2) * D + at.group * COLUMNS + (lane >> 2);
    const float *memory = static_cast<const float *>(a.pass.slots[a.slot]) + place;
    float *after = static_cast<float *>(a.pass.slots_out[a.slot]) + place;
    float S[4][4], decay;
    float4 u[2];
    bring_u(at, 0, u, decay);
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) S[n][i] = memory[(n * 8 + i % 2) * D + i / 2 * 8];
#pragma unroll 1
    for (uint32_t c = 0; c < at.chunks; c++) {
        uint32_t turn = c & 1, w = place_of<ONE>(c);
        uint4 high[2], low[2];
        float ws[N / 8][4], more[4][4], small[4][4], shrink = decay;
        make_left<2>(S, high, low);
        if (c > 1) hear(at, BOTH_READ, turn);
#pragma unroll
        for (int k = 0; k < 2; k++) put_left(own.s[turn] + (warp * 2 + k) * PIECE, high[k], low[k]);
        tell(at, S_THERE, turn);
        clear(ws);
        gate_wait(&room.w_full[w], parity_of<ONE>(c));
#pragma unroll
        for (int k = 0; k < 2; k++) add_pieces<4>(ws, ws, ws, high[k], low[k], room.w[w] + (warp * 2 + k) * 4 * PIECE, 1);
        gate_arrive(&room.w_free[w]);
        share_d(own, at, ws, u, turn);
        if (c + 1 < at.chunks) bring_u(at, c + 1, u, decay);
        clear(more), clear(small); /* what is new in S: sums of their own, which are rounded less */
        gate_wait(&room.k_full[turn], parity_of<2>(c));
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const uint4 *left = own.d[turn] + k * PIECE + lane;
            add_pieces<2>(more, small, small, left[0], left[32], room.k[turn] + (warp * 8 + k) * PIECE, 4);
        }
        gate_arrive(&room.k_free[turn]);
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) S[n][i] = fmaf(S[n][i], shrink, more[n][i] + small[n][i]);
    }
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) after[(n * 8 + i % 2) * D + i / 2 * 8] = S[n][i];
}

/* 16 rows of O, turned. */
__device__ __forceinline__ void put_out(const ck_delta &a, const scan_place &at, uint32_t row, const float (&o)[2][4])
{
    uint32_t lane = threadIdx.x & 31;
    float *to = a.y.p + (size_t)at.h * D + at.group * COLUMNS + (lane >> 2);
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t t = row + n * 8 + (lane & 3) * 2 + i % 2;
            if (t < at.all) to[(size_t)t * a.y.stride + i / 2 * 8] = o[n][i];
        }
}

/* O of the chunks: a warp has 16 rows of each. */
template <int SETS> __device__ __forceinline__ void scan_out(const ck_delta &a, scan_room<SETS> &room, const scan_place &at)
{
    constexpr int ONE = scan_room<SETS>::ONE;
    const scan_own &own = room.own[at.set];
    const uint32_t tile = (threadIdx.x >> 5) & (WARPS - 1), lane = threadIdx.x & 31;
#pragma unroll 1
    for (uint32_t c = 0; c < at.chunks; c++) {
        uint32_t turn = c & 1, p = place_of<ONE>(c);
        float o[2][4], small[2][4], other[2][4];
        clear(o), clear(small), clear(other);
        hear(at, S_THERE, turn);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            gate_wait(&room.q_full[half], turn);
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const uint4 *left = own.s[turn] + (half * 4 + k) * PIECE + lane;
                add_pieces<1>(o, small, other, left[0], left[32], room.q[half] + (k * 4 + tile) * PIECE, 0);
            }
            gate_arrive(&room.q_free[half]);
        }
        gate_wait(&room.p_full[p], parity_of<ONE>(c));
        hear(at, D_THERE, turn);
#pragma unroll
        for (uint32_t k = 0; k < N / 16; k++) {
            const uint4 *left = own.d[turn] + k * PIECE + lane;
            if (k <= tile) add_pieces<1>(o, small, other, left[0], left[32], room.p[p] + (tile * (tile + 1) / 2 + k) * PIECE, 0);
        }
        gate_arrive(&room.p_free[p]);
        if (c + 2 < at.chunks) tell(at, BOTH_READ, turn);
#pragma unroll
        for (int i = 0; i < 8; i++) o[i / 4][i % 4] += small[i / 4][i % 4] + other[i / 4][i % 4];
        put_out(a, at, c * N + tile * 16, o);
    }
}

/* What is read, by a thread each. */
__device__ __forceinline__ void ask(void *to, const void *from, uint32_t bytes, uint64_t *gate)
{
    gate_expect(gate, bytes);
    bring(to, from, bytes, gate);
}
template <int SETS> __device__ __forceinline__ void bring_state(scan_room<SETS> &room, const scan_place &at)
{
    constexpr int ONE = scan_room<SETS>::ONE;
#pragma unroll 1
    for (uint32_t c = 0; c < at.chunks; c++) {
        const ck_factors &f = at.factors[(size_t)c * at.next];
        uint32_t turn = c & 1, w = place_of<ONE>(c);
        if (c >= ONE) gate_wait(&room.w_free[w], parity_of<ONE>(c) ^ 1);
        ask(room.w[w], f.w, MATRIX, &room.w_full[w]);
        if (c > 1) gate_wait(&room.k_free[turn], parity_of<2>(c) ^ 1);
        ask(room.k[turn], f.k, MATRIX, &room.k_full[turn]);
    }
}
template <int SETS> __device__ __forceinline__ void bring_out(scan_room<SETS> &room, const scan_place &at)
{
    constexpr int ONE = scan_room<SETS>::ONE;
#pragma unroll 1
    for (uint32_t c = 0; c < at.chunks; c++) {
        const ck_factors &f = at.factors[(size_t)c * at.next];
        uint32_t turn = c & 1, p = place_of<ONE>(c);
        for (int half = 0; half < 2; half++) {
            if (c) gate_wait(&room.q_free[half], turn ^ 1);
            ask(room.q[half], f.q + half * N * D, MATRIX / 2, &room.q_full[half]);
        }
        if (c >= ONE) gate_wait(&room.p_free[p], parity_of<ONE>(c) ^ 1);
        ask(room.p[p], f.p, TRIANGLE, &room.p_full[p]);
    }
}

template <int SETS> __device__ __forceinline__ void open_gates(scan_room<SETS> &room)
{
    for (int i = 0; i < 2; i++) {
        gate_open(&room.k_full[i], 1), gate_open(&room.q_full[i], 1);
        gate_open(&room.k_free[i], SETS * HALF), gate_open(&room.q_free[i], SETS * HALF);
    }
    for (int i = 0; i < scan_room<SETS>::ONE; i++) {
        gate_open(&room.w_full[i], 1), gate_open(&room.p_full[i], 1);
        gate_open(&room.w_free[i], SETS * HALF), gate_open(&room.p_free[i], SETS * HALF);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ float raw_at(const ck_delta &a, size_t i)
{
    return a.halves ? __bfloat162float(reinterpret_cast<const __nv_bfloat16 *>(a.conv.raw)[i]) : a.conv.raw[i];
}

/* The convolution's memory: the last rows before it. Nobody reads it any more. thread: of those that make O. */
template <int SETS> __device__ __forceinline__ void keep_rows(const ck_delta &a, uint32_t all, uint32_t thread)
{
    float *memory = static_cast<float *>(a.pass.slots[a.conv.slot]);
    uint32_t past = a.conv.taps - 1;
    for (uint32_t c = blockIdx.x * SETS * HALF + thread; c < a.conv.width; c += gridDim.x * SETS * HALF)
        for (uint32_t j = 0; j < past; j++)
            memory[(size_t)j * a.conv.width + c] = raw_at(a, (size_t)(all + j - past) * a.in[0].stride + c);
}

/* Warps: S of all sets, O of all sets, then the two that bring. */
template <int SETS> __device__ __forceinline__ void scan(const ck_delta &a)
{
    scan_room<SETS> &room = *reinterpret_cast<scan_room<SETS> *>(shared4);
    static_assert(sizeof room <= CK_SCAN_BYTES, "what the host asks for");
    constexpr uint32_t GROUPS = D / COLUMNS / SETS;
    uint32_t warp = threadIdx.x >> 5;
    scan_place at;
    at.set = warp / WARPS % SETS;
    at.h = blockIdx.x / GROUPS, at.group = blockIdx.x % GROUPS * SETS + at.set;
    at.factors = a.factors + at.h, at.next = a.v_heads;
    if (threadIdx.x == 0) open_gates<SETS>(room);
    __syncthreads();
    wait_for_inputs();
    at.all = a.pass.head->from[1], at.chunks = (at.all + N - 1) / N;
    if (warp < SETS * WARPS)
        scan_state<SETS>(a, room, at);
    else if (warp < 2 * SETS * WARPS) {
        scan_out<SETS>(a, room, at);
        if (a.conv.weight) keep_rows<SETS>(a, at.all, threadIdx.x - SETS * HALF);
    } else if ((threadIdx.x & 31) == 0) {
        if (warp == 2 * SETS * WARPS)
            bring_state<SETS>(room, at);
        else
            bring_out<SETS>(room, at);
    }
}
#endif

extern "C" __global__ void __launch_bounds__(CK_SCAN_THREADS, 1) chunk_scan(const __grid_constant__ ck_delta a)
{
#if __CUDA_ARCH__ >= 900
    static_assert(CK_SCAN_THREADS == 2 * HALF + 64, "two warps bring");
    scan<1>(a);
#endif
}

extern "C" __global__ void __launch_bounds__(CK_SCAN_PAIRS_THREADS, 1) chunk_scan_pairs(const __grid_constant__ ck_delta a)
{
#if __CUDA_ARCH__ >= 900
    static_assert(CK_SCAN_PAIRS_THREADS == 4 * HALF + 64, "two warps bring");
    scan<2>(a);
#endif
}
