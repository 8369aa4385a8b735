/* k_scan.cu: second stage of the chunked gated delta rule on sm_90 (empty kernels elsewhere): passes
 * S through the chunks in order, from the factors that chunk_factors (k_chunk.cu) wrote:
 *   D = U - W S,  O = (e^c Q) S + P D,  S <- e^c_last S + (e^(c_last - c) K)^T D
 * A block handles 16 columns of one head's S, transposed (columns are rows of the a operand), so
 * accumulators of one product become the a operand of the next in the same lanes. Four warps hold 32
 * rows of S each in fp32 registers and add up their parts of W S through shared memory; four more
 * compute O from the S and D stored there; one thread loads W and K, another Q and P.
 * chunk_scan_pairs has two such sets of warps on the same factors, 32 columns, with single-buffered
 * W and P; chosen where the GPU, or the part of it in use, has fewer multiprocessors than blocks: a
 * chain mostly waits, so two take little longer than one.
 *
 * Factors are stored in fragment order, so a 16 x 16 tile is one 16-byte load per lane and part. The
 * chain per chunk: 48 products m16n8k16 per warp (6 to 8 cycles each), two exchanges through shared
 * memory, 48 products. Its 106 KB arrive meanwhile, mostly from L2, where all blocks of a head find
 * the same data. Synchronisation: full/free mbarriers per buffer, named barriers per set (enum
 * below).
 * SPDX-License-Identifier: MIT */
#include "k_bulk.cuh"
#include "k_pairs.cuh"

enum { COLUMNS = CK_SCAN_COLUMNS, HALF = 128, WARPS = HALF / 32, PIECE = 2 * 32, MATRIX = 2 * N * D * 2, TRIANGLE = 10 * 1024 };

#if __CUDA_ARCH__ == 900
struct scan_set_smem {                                /* shared memory of one set of warps */
    uint4 s[2][D / 16 * PIECE], d[2][N / 16 * PIECE]; /* A operands, double-buffered by chunk */
    float4 part[WARPS][N / 8][32];
};
/* Dynamic shared memory. */
template <int SETS> struct scan_smem {
    enum { WP_BUFFERS = SETS == 1 ? 2 : 1 }; /* buffers of W and of P */
    uint4 w[WP_BUFFERS][MATRIX / 16], k[2][MATRIX / 16], p[WP_BUFFERS][TRIANGLE / 16];
    uint4 q[2][MATRIX / 32]; /* first 64 columns, and the others */
    scan_set_smem sets[SETS];
    uint64_t w_full[WP_BUFFERS], k_full[2], q_full[2], p_full[WP_BUFFERS], w_free[WP_BUFFERS], k_free[2], q_free[2],
        p_free[WP_BUFFERS];
};

/* Buffer of chunk c among BUFFERS, and the phase parity of its current use. */
template <int BUFFERS> __device__ __forceinline__ uint32_t buffer_of(uint32_t c) { return c % BUFFERS; }
template <int BUFFERS> __device__ __forceinline__ uint32_t parity_of(uint32_t c) { return c / BUFFERS & 1; }

struct scan_pos { /* of a set of warps */
    const ck_factors *factors;
    /* position of a set of warps; next: distance between the factors of consecutive chunks */
    uint32_t h, group, next, all, chunks, set;
};

/* Named barriers of a set: sync of the warps that hold S; S stored; D stored; both read (two each,
 * by chunk parity). */
enum { STATE_SYNC = 1, S_READY = 2, D_READY = 4, BOTH_READ = 6, BARRIERS = 7 };
__device__ __forceinline__ void state_sync(const scan_pos &at)
{
    asm volatile("bar.sync %0, %1;" ::"r"(STATE_SYNC + at.set * BARRIERS), "n"(HALF + 0) : "memory");
}

/* Producer/consumer barriers between the warps that hold S and those that compute O: one half
 * arrives and continues, the other waits. Each is reused only after it was waited for. */
__device__ __forceinline__ void barrier_arrive(const scan_pos &at, uint32_t what, uint32_t turn)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(what + turn + at.set * BARRIERS), "n"(2 * HALF) : "memory");
}
__device__ __forceinline__ void barrier_wait(const scan_pos &at, uint32_t what, uint32_t turn)
{
    asm volatile("bar.sync %0, %1;" ::"r"(what + turn + at.set * BARRIERS), "n"(2 * HALF) : "memory");
}

/* Accumulators as A operands of the next product, in two parts: tile k covers columns 16 k to 16 k +
 * 15. */
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
/* Stores one a operand. */
__device__ __forceinline__ void put_left(uint4 *to, uint4 high, uint4 low)
{
    to += threadIdx.x & 31;
    to[0] = high, to[32] = low;
}

/* sum += a b for one 8-column half of a tile. */
__device__ __forceinline__ void add_one(float (&sum)[4], const uint4 &a, uint32_t b0, uint32_t b1)
{
    const uint32_t left[4] = {a.x, a.y, a.z, a.w};
    mma<1>(sum, left, b0, b1);
}

/* sum += the a operand times TILES tiles from b on, `apart` tiles from each other. Cross terms go to
 * `small` and `other`, which may be the same accumulators. */
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

/* Loads the warp's 16 rows of U and the chunk's decay. */
__device__ __forceinline__ void load_u(const scan_pos &at, uint32_t c, float4 (&u)[2], float &decay)
{
    const ck_factors &f = at.factors[(size_t)c * at.next];
    const float4 *from = reinterpret_cast<const float4 *>(f.u) +
                         (at.group * (N / 8) + (threadIdx.x >> 5 & (WARPS - 1)) * 2) * 32 + (threadIdx.x & 31);
    decay = f.decay;
    u[0] = from[0], u[1] = from[32];
}

/* D = U - W S from the warps' parts of W S: each warp adds up 16 rows; all of D is then available as
 * A operands. */
__device__ __forceinline__ void share_d(scan_set_smem &smem, const scan_pos &at, const float (&ws)[N / 8][4],
                                        const float4 (&u)[2], uint32_t turn)
{
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5 & (WARPS - 1);
    float d[2][4];
    uint4 high[1], low[1];
    /* Parts of W S of all warps, then each warp sums its 16 rows. */
#pragma unroll
    for (int n = 0; n < N / 8; n++) smem.part[warp][n][lane] = make_float4(ws[n][0], ws[n][1], ws[n][2], ws[n][3]);
    state_sync(at);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float4 x = smem.part[0][warp * 2 + i][lane], y = smem.part[1][warp * 2 + i][lane],
                     z = smem.part[2][warp * 2 + i][lane], v = smem.part[3][warp * 2 + i][lane];
        d[i][0] = u[i].x - ((x.x + y.x) + (z.x + v.x)), d[i][1] = u[i].y - ((x.y + y.y) + (z.y + v.y));
        d[i][2] = u[i].z - ((x.z + y.z) + (z.z + v.z)), d[i][3] = u[i].w - ((x.w + y.w) + (z.w + v.w));
    }
    make_left<1>(d, high, low);
    put_left(smem.d[turn] + warp * PIECE, high[0], low[0]);
    barrier_arrive(at, D_READY, turn);
    state_sync(at);
}

/* Warps that hold S: updates 32 rows of the set's columns through all chunks. */
template <int SETS> __device__ __forceinline__ void scan_state(const ck_delta &a, scan_smem<SETS> &smem, const scan_pos &at)
{
    constexpr int WP_BUFFERS = scan_smem<SETS>::WP_BUFFERS;
    scan_set_smem &set = smem.sets[at.set];
    uint32_t warp = threadIdx.x >> 5 & (WARPS - 1), lane = threadIdx.x & 31;
    /* Transposed S: lane's rows and columns of the fragments. */
    size_t offset = (size_t)at.h * D * D + (warp * (D / WARPS) + (lane & 3) * 2) * D + at.group * COLUMNS + (lane >> 2);
    const float *memory = static_cast<const float *>(a.pass.slots[a.slot]) + offset;
    float *after = static_cast<float *>(a.pass.slots_out[a.slot]) + offset;
    float S[4][4], decay;
    float4 u[2];
    load_u(at, 0, u, decay);
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) S[n][i] = memory[(n * 8 + i % 2) * D + i / 2 * 8];
#pragma unroll 1
    for (uint32_t c = 0; c < at.chunks; c++) {
        uint32_t turn = c & 1, w = buffer_of<WP_BUFFERS>(c);
        uint4 high[2], low[2];
        float ws[N / 8][4], more[4][4], small[4][4], shrink = decay;
        /* S of the previous chunk as A operands of mma, for W S and for O. */
        make_left<2>(S, high, low);
        if (c > 1) barrier_wait(at, BOTH_READ, turn);
#pragma unroll
        for (int k = 0; k < 2; k++) put_left(set.s[turn] + (warp * 2 + k) * PIECE, high[k], low[k]);
        barrier_arrive(at, S_READY, turn);
        /* ws = W S; the buffer of W is released as soon as W is read. */
        clear(ws);
        mbar_wait(&smem.w_full[w], parity_of<WP_BUFFERS>(c));
#pragma unroll
        for (int k = 0; k < 2; k++) add_pieces<4>(ws, ws, ws, high[k], low[k], smem.w[w] + (warp * 2 + k) * 4 * PIECE, 1);
        mbar_arrive(&smem.w_free[w]);
        share_d(set, at, ws, u, turn);
        if (c + 1 < at.chunks) load_u(at, c + 1, u, decay);
        clear(more), clear(small); /* the increment of S is accumulated separately to reduce rounding */
        /* K^T D. */
        mbar_wait(&smem.k_full[turn], parity_of<2>(c));
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const uint4 *left = set.d[turn] + k * PIECE + lane;
            add_pieces<2>(more, small, small, left[0], left[32], smem.k[turn] + (warp * 8 + k) * PIECE, 4);
        }
        mbar_arrive(&smem.k_free[turn]);
        /* Decay and add. */
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

/* Stores 16 rows of O from its transposed accumulators. */
__device__ __forceinline__ void put_out(const ck_delta &a, const scan_pos &at, uint32_t row, const float (&o)[2][4])
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

/* Warps that compute O: 16 rows of each chunk. */
template <int SETS> __device__ __forceinline__ void scan_out(const ck_delta &a, scan_smem<SETS> &smem, const scan_pos &at)
{
    constexpr int WP_BUFFERS = scan_smem<SETS>::WP_BUFFERS;
    const scan_set_smem &set = smem.sets[at.set];
    const uint32_t tile = (threadIdx.x >> 5) & (WARPS - 1), lane = threadIdx.x & 31;
#pragma unroll 1
    for (uint32_t c = 0; c < at.chunks; c++) {
        uint32_t turn = c & 1, p = buffer_of<WP_BUFFERS>(c);
        float o[2][4], small[2][4], other[2][4];
        clear(o), clear(small), clear(other);
        /* (e^c Q) S in two halves of the columns. */
        barrier_wait(at, S_READY, turn);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            mbar_wait(&smem.q_full[half], turn);
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const uint4 *left = set.s[turn] + (half * 4 + k) * PIECE + lane;
                add_pieces<1>(o, small, other, left[0], left[32], smem.q[half] + (k * 4 + tile) * PIECE, 0);
            }
            mbar_arrive(&smem.q_free[half]);
        }
        /* P D; P is lower triangular. */
        mbar_wait(&smem.p_full[p], parity_of<WP_BUFFERS>(c));
        barrier_wait(at, D_READY, turn);
#pragma unroll
        for (uint32_t k = 0; k < N / 16; k++) {
            const uint4 *left = set.d[turn] + k * PIECE + lane;
            if (k <= tile) add_pieces<1>(o, small, other, left[0], left[32], smem.p[p] + (tile * (tile + 1) / 2 + k) * PIECE, 0);
        }
        mbar_arrive(&smem.p_free[p]);
        /* S and D of this chunk may be overwritten (not needed for the last two). */
        if (c + 2 < at.chunks) barrier_arrive(at, BOTH_READ, turn);
#pragma unroll
        for (int i = 0; i < 8; i++) o[i / 4][i % 4] += small[i / 4][i % 4] + other[i / 4][i % 4];
        put_out(a, at, c * N + tile * 16, o);
    }
}

/* Bulk copy with its mbarrier. Two producer threads: load_state for W and K, load_out for Q and P. */
__device__ __forceinline__ void issue_load(void *to, const void *from, uint32_t bytes, uint64_t *mbar)
{
    mbar_expect_tx(mbar, bytes);
    bulk_load(to, from, bytes, mbar);
}
template <int SETS> __device__ __forceinline__ void load_state(scan_smem<SETS> &smem, const scan_pos &at)
{
    constexpr int WP_BUFFERS = scan_smem<SETS>::WP_BUFFERS;
#pragma unroll 1
    for (uint32_t c = 0; c < at.chunks; c++) {
        const ck_factors &f = at.factors[(size_t)c * at.next];
        /* The first use of a buffer needs no wait. */
        uint32_t turn = c & 1, w = buffer_of<WP_BUFFERS>(c);
        if (c >= WP_BUFFERS) mbar_wait(&smem.w_free[w], parity_of<WP_BUFFERS>(c) ^ 1);
        issue_load(smem.w[w], f.w, MATRIX, &smem.w_full[w]);
        if (c > 1) mbar_wait(&smem.k_free[turn], parity_of<2>(c) ^ 1);
        issue_load(smem.k[turn], f.k, MATRIX, &smem.k_full[turn]);
    }
}
template <int SETS> __device__ __forceinline__ void load_out(scan_smem<SETS> &smem, const scan_pos &at)
{
    constexpr int WP_BUFFERS = scan_smem<SETS>::WP_BUFFERS;
#pragma unroll 1
    for (uint32_t c = 0; c < at.chunks; c++) {
        const ck_factors &f = at.factors[(size_t)c * at.next];
        uint32_t turn = c & 1, p = buffer_of<WP_BUFFERS>(c);
        for (int half = 0; half < 2; half++) {
            if (c) mbar_wait(&smem.q_free[half], turn ^ 1);
            issue_load(smem.q[half], f.q + half * N * D, MATRIX / 2, &smem.q_full[half]);
        }
        if (c >= WP_BUFFERS) mbar_wait(&smem.p_free[p], parity_of<WP_BUFFERS>(c) ^ 1);
        issue_load(smem.p[p], f.p, TRIANGLE, &smem.p_full[p]);
    }
}

/* Initialises all mbarriers. */
template <int SETS> __device__ __forceinline__ void init_mbars(scan_smem<SETS> &smem)
{
    for (int i = 0; i < 2; i++) {
        mbar_init(&smem.k_full[i], 1), mbar_init(&smem.q_full[i], 1);
        mbar_init(&smem.k_free[i], SETS * HALF), mbar_init(&smem.q_free[i], SETS * HALF);
    }
    for (int i = 0; i < scan_smem<SETS>::WP_BUFFERS; i++) {
        mbar_init(&smem.w_full[i], 1), mbar_init(&smem.p_full[i], 1);
        mbar_init(&smem.w_free[i], SETS * HALF), mbar_init(&smem.p_free[i], SETS * HALF);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* Input i of the convolution, fp32 or bf16. */
__device__ __forceinline__ float raw_at(const ck_delta &a, size_t i)
{
    return a.halves ? __bfloat162float(reinterpret_cast<const __nv_bfloat16 *>(a.conv.raw)[i]) : a.conv.raw[i];
}

/* Stores the new convolution state: the last inputs of the span. No other block reads the old one
 * any more. thread: index among the warps that compute O. */
template <int SETS> __device__ __forceinline__ void store_conv_state(const ck_delta &a, uint32_t all, uint32_t thread)
{
    float *memory = static_cast<float *>(a.pass.slots[a.conv.slot]);
    uint32_t past = a.conv.taps - 1;
    for (uint32_t c = blockIdx.x * SETS * HALF + thread; c < a.conv.width; c += gridDim.x * SETS * HALF)
        for (uint32_t j = 0; j < past; j++)
            memory[(size_t)j * a.conv.width + c] = raw_at(a, (size_t)(all + j - past) * a.in[0].stride + c);
}

/* Kernel body. Warps: S of all sets, O of all sets, then two that load. */
template <int SETS> __device__ __forceinline__ void scan(const ck_delta &a)
{
    scan_smem<SETS> &smem = *reinterpret_cast<scan_smem<SETS> *>(shared4);
    static_assert(sizeof smem <= CK_SCAN_BYTES, "what the host asks for");
    constexpr uint32_t GROUPS = D / COLUMNS / SETS;
    uint32_t warp = threadIdx.x >> 5;
    /* Position of this warp's set. */
    scan_pos at;
    at.set = warp / WARPS % SETS;
    at.h = blockIdx.x / GROUPS, at.group = blockIdx.x % GROUPS * SETS + at.set;
    at.factors = a.factors + at.h, at.next = a.v_heads;
    if (threadIdx.x == 0) init_mbars<SETS>(smem);
    __syncthreads();
    wait_for_inputs();
    at.all = a.pass.head->from[1], at.chunks = (at.all + N - 1) / N;
    if (warp < SETS * WARPS)
        scan_state<SETS>(a, smem, at);
    else if (warp < 2 * SETS * WARPS) {
        scan_out<SETS>(a, smem, at);
        if (a.conv.weight) store_conv_state<SETS>(a, at.all, threadIdx.x - SETS * HALF);
    } else if ((threadIdx.x & 31) == 0) {
        if (warp == 2 * SETS * WARPS)
            load_state<SETS>(smem, at);
        else
            load_out<SETS>(smem, at);
    }
}
#endif

extern "C" __global__ void __launch_bounds__(CK_SCAN_THREADS, 1) chunk_scan(const __grid_constant__ ck_delta a)
{
#if __CUDA_ARCH__ == 900
    static_assert(CK_SCAN_THREADS == 2 * HALF + 64, "two warps bring");
    scan<1>(a);
#endif
}

extern "C" __global__ void __launch_bounds__(CK_SCAN_PAIRS_THREADS, 1) chunk_scan_pairs(const __grid_constant__ ck_delta a)
{
#if __CUDA_ARCH__ == 900
    static_assert(CK_SCAN_PAIRS_THREADS == 4 * HALF + 64, "two warps bring");
    scan<2>(a);
#endif
}
