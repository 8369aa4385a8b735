/* k_scan.cu: S of the delta rule through the chunks that chunk_factors (k_chunk.cu) made ready, in order, on Hopper (elsewhere
 * these kernels are empty and not used):
 *   D = U - W S,  O = (e^c Q) S + P D,  S <- e^c_last S + (e^(c_last - c) K)^T D
 * A block has 16 columns of a head's S, turned (columns are rows of the tensor cores' left factor): sums of one product are the
 * left factor of the next, in the lanes that have them. Four warps have 32 rows of S each, in fp32 in registers, and add up their
 * parts of W S by way of shared memory; four more make O of the S and D that those leave there; a thread each brings W and K, and
 * Q and P.
 *
 * Right factors come in the order of the lanes, so that a piece of 16 x 16 is one load of 16 bytes a lane for each of its two
 * parts. A chunk is a chain: 48 products of 16 x 8 x 16 a warp (6 to 8 cycles each), two turns through shared memory, 48
 * products. Its 106 KB come meanwhile, for the most part from the second-level cache, where all blocks of a head find the same.
 * SPDX-License-Identifier: MIT */
#include "k_bulk.cuh"
#include "k_pairs.cuh"

enum { COLUMNS = CK_SCAN_COLUMNS, HALF = 128, WARPS = HALF / 32, PIECE = 2 * 32, MATRIX = 2 * N * D * 2, TRIANGLE = 10 * 1024 };

#if __CUDA_ARCH__ >= 900
struct scan_room {
    uint4 w[2][MATRIX / 16], k[2][MATRIX / 16], p[2][TRIANGLE / 16]; /* by parity of the chunk */
    uint4 q[2][MATRIX / 32];                                         /* the first 64 columns and the others */
    uint4 s[2][D / 16 * PIECE], d[2][N / 16 * PIECE];                /* left factors */
    float4 part[WARPS][N / 8][32];
    uint64_t w_full[2], k_full[2], q_full[2], p_full[2], w_free[2], k_free[2], q_free[2], p_free[2];
};

/* The warps that have S. */
__device__ __forceinline__ void state_meets() { asm volatile("bar.sync 1, %0;" ::"n"(HALF + 0) : "memory"); }

/* What warps that have S and those that make O tell each other: one half says so and goes on, the other waits for it. By parity
 * of the chunk; each is said again only when it was heard. */
enum { S_THERE = 2, D_THERE = 4, BOTH_READ = 6 };
__device__ __forceinline__ void tell(uint32_t what, uint32_t turn)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(what + turn), "n"(2 * HALF) : "memory");
}
__device__ __forceinline__ void hear(uint32_t what, uint32_t turn)
{
    asm volatile("bar.sync %0, %1;" ::"r"(what + turn), "n"(2 * HALF) : "memory");
}

struct scan_place { /* of a block */
    const ck_factors *factors;
    uint32_t h, group, next, all, chunks; /* next: factors from a chunk to the one behind it */
};

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
    const float4 *from = reinterpret_cast<const float4 *>(f.u) + (at.group * (N / 8) + (threadIdx.x >> 5) * 2) * 32 +
                         (threadIdx.x & 31);
    decay = f.decay;
    u[0] = from[0], u[1] = from[32];
}

/* D = U - W S from the warps' parts of W S: each adds up 16 rows, and all find it as left factors. */
__device__ __forceinline__ void share_d(scan_room &room, const float (&ws)[N / 8][4], const float4 (&u)[2], uint32_t turn)
{
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    float d[2][4];
    uint4 high[1], low[1];
#pragma unroll
    for (int n = 0; n < N / 8; n++) room.part[warp][n][lane] = make_float4(ws[n][0], ws[n][1], ws[n][2], ws[n][3]);
    state_meets();
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float4 x = room.part[0][warp * 2 + i][lane], y = room.part[1][warp * 2 + i][lane],
                     z = room.part[2][warp * 2 + i][lane], v = room.part[3][warp * 2 + i][lane];
        d[i][0] = u[i].x - ((x.x + y.x) + (z.x + v.x)), d[i][1] = u[i].y - ((x.y + y.y) + (z.y + v.y));
        d[i][2] = u[i].z - ((x.z + y.z) + (z.z + v.z)), d[i][3] = u[i].w - ((x.w + y.w) + (z.w + v.w));
    }
    make_left<1>(d, high, low);
    put_left(room.d[turn] + warp * PIECE, high[0], low[0]);
    tell(D_THERE, turn);
    state_meets();
}

/* S through the chunks: a warp has 32 rows of the block's columns. */
__device__ __forceinline__ void scan_state(const ck_delta &a, scan_room &room, const scan_place &at)
{
    uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
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
        uint32_t turn = c & 1, parity = c >> 1 & 1;
        uint4 high[2], low[2];
        float ws[N / 8][4], more[4][4], small[4][4], shrink = decay;
        make_left<2>(S, high, low);
        if (c > 1) hear(BOTH_READ, turn);
#pragma unroll
        for (int k = 0; k < 2; k++) put_left(room.s[turn] + (warp * 2 + k) * PIECE, high[k], low[k]);
        tell(S_THERE, turn);
        clear(ws);
        gate_wait(&room.w_full[turn], parity);
#pragma unroll
        for (int k = 0; k < 2; k++) add_pieces<4>(ws, ws, ws, high[k], low[k], room.w[turn] + (warp * 2 + k) * 4 * PIECE, 1);
        gate_arrive(&room.w_free[turn]);
        share_d(room, ws, u, turn);
        if (c + 1 < at.chunks) bring_u(at, c + 1, u, decay);
        clear(more), clear(small); /* what is new in S: sums of their own, which are rounded less */
        gate_wait(&room.k_full[turn], parity);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const uint4 *left = room.d[turn] + k * PIECE + lane;
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
__device__ __forceinline__ void scan_out(const ck_delta &a, scan_room &room, const scan_place &at)
{
    const uint32_t tile = (threadIdx.x >> 5) & (WARPS - 1), lane = threadIdx.x & 31;
#pragma unroll 1
    for (uint32_t c = 0; c < at.chunks; c++) {
        uint32_t turn = c & 1, parity = c >> 1 & 1;
        float o[2][4], small[2][4], other[2][4];
        clear(o), clear(small), clear(other);
        hear(S_THERE, turn);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            gate_wait(&room.q_full[half], turn);
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const uint4 *left = room.s[turn] + (half * 4 + k) * PIECE + lane;
                add_pieces<1>(o, small, other, left[0], left[32], room.q[half] + (k * 4 + tile) * PIECE, 0);
            }
            gate_arrive(&room.q_free[half]);
        }
        gate_wait(&room.p_full[turn], parity);
        hear(D_THERE, turn);
#pragma unroll
        for (uint32_t k = 0; k < N / 16; k++) {
            const uint4 *left = room.d[turn] + k * PIECE + lane;
            if (k <= tile)
                add_pieces<1>(o, small, other, left[0], left[32], room.p[turn] + (tile * (tile + 1) / 2 + k) * PIECE, 0);
        }
        gate_arrive(&room.p_free[turn]);
        if (c + 2 < at.chunks) tell(BOTH_READ, turn);
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
__device__ __forceinline__ void bring_state(scan_room &room, const scan_place &at)
{
#pragma unroll 1
    for (uint32_t c = 0; c < at.chunks; c++) {
        const ck_factors &f = at.factors[(size_t)c * at.next];
        uint32_t turn = c & 1, before = (c >> 1 & 1) ^ 1;
        if (c > 1) gate_wait(&room.w_free[turn], before);
        ask(room.w[turn], f.w, MATRIX, &room.w_full[turn]);
        if (c > 1) gate_wait(&room.k_free[turn], before);
        ask(room.k[turn], f.k, MATRIX, &room.k_full[turn]);
    }
}
__device__ __forceinline__ void bring_out(scan_room &room, const scan_place &at)
{
#pragma unroll 1
    for (uint32_t c = 0; c < at.chunks; c++) {
        const ck_factors &f = at.factors[(size_t)c * at.next];
        uint32_t turn = c & 1;
        for (int half = 0; half < 2; half++) {
            if (c) gate_wait(&room.q_free[half], turn ^ 1);
            ask(room.q[half], f.q + half * N * D, MATRIX / 2, &room.q_full[half]);
        }
        if (c > 1) gate_wait(&room.p_free[turn], (c >> 1 & 1) ^ 1);
        ask(room.p[turn], f.p, TRIANGLE, &room.p_full[turn]);
    }
}

__device__ __forceinline__ void open_gates(scan_room &room)
{
    for (int i = 0; i < 2; i++) {
        gate_open(&room.w_full[i], 1), gate_open(&room.k_full[i], 1), gate_open(&room.q_full[i], 1),
            gate_open(&room.p_full[i], 1);
        gate_open(&room.w_free[i], HALF), gate_open(&room.k_free[i], HALF);
        gate_open(&room.q_free[i], HALF), gate_open(&room.p_free[i], HALF);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ float raw_at(const ck_delta &a, size_t i)
{
    return a.halves ? __bfloat162float(reinterpret_cast<const __nv_bfloat16 *>(a.conv.raw)[i]) : a.conv.raw[i];
}

/* The convolution's memory: the last rows before it. Nobody reads it any more. */
__device__ __forceinline__ void keep_rows(const ck_delta &a, uint32_t all)
{
    float *memory = static_cast<float *>(a.pass.slots[a.conv.slot]);
    uint32_t past = a.conv.taps - 1;
    for (uint32_t c = blockIdx.x * HALF + threadIdx.x - HALF; c < a.conv.width; c += gridDim.x * HALF)
        for (uint32_t j = 0; j < past; j++)
            memory[(size_t)j * a.conv.width + c] = raw_at(a, (size_t)(all + j - past) * a.in[0].stride + c);
}
#endif

extern "C" __global__ void __launch_bounds__(CK_SCAN_THREADS, 1) chunk_scan(const __grid_constant__ ck_delta a)
{
#if __CUDA_ARCH__ >= 900
    scan_room &room = *reinterpret_cast<scan_room *>(shared4);
    static_assert(sizeof(scan_room) <= CK_SCAN_BYTES, "what the host asks for");
    static_assert(CK_SCAN_THREADS == 2 * HALF + 64, "two warps bring");
    uint32_t warp = threadIdx.x >> 5;
    scan_place at;
    at.h = blockIdx.x / (D / COLUMNS), at.group = blockIdx.x % (D / COLUMNS);
    at.factors = a.factors + at.h, at.next = a.v_heads;
    if (threadIdx.x == 0) open_gates(room);
    __syncthreads();
    wait_for_inputs();
    at.all = a.pass.head->from[1], at.chunks = (at.all + N - 1) / N;
    if (warp < WARPS)
        scan_state(a, room, at);
    else if (warp < 2 * WARPS) {
        scan_out(a, room, at);
        if (a.conv.weight) keep_rows(a, at.all);
    } else if ((threadIdx.x & 31) == 0) {
        if (warp == 2 * WARPS)
            bring_state(room, at);
        else
            bring_out(room, at);
    }
#endif
}
