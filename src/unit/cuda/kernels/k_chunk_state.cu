/* k_chunk_state.cu: second stage of the chunked gated delta rule where k_scan.cu is not available
 * (sm_80 and later): passes S through the chunks in order, from the output of chunk_local
 * (k_chunk.cu):
 *   R = beta (V - e^c K S),  D = T R,  O = e^c Q S + P D,  S <- e^c_last S + K^T (e^(c_last - c) D)
 * Grid: heads times blocks of 16 or 32 columns of S (kept in fp32 registers), 512 threads. The first
 * 8 warps update S, the others load all inputs by cp.async and compute O. All threads meet three
 * times per chunk at named barrier 1.
 *
 * A chunk reads 96 KB (K and Q 32 each, T and P 16 each), mostly from L2, while the chunk before is
 * processed: 64 blocks move 6 MB per chunk in about 1.2 us, about as long as the 1,392 products
 * m16n8k16 of a multiprocessor. Shared memory: struct state_smem.
 * SPDX-License-Identifier: MIT */
#include "k_pairs.cuh"

/* Dynamic shared memory; every matrix in two bf16 parts. e: e^(c_last - c) D. */
template <int COLUMNS> struct state_smem {
    enum { NARROW = COLUMNS + 8 };
    uint16_t k[2][2][N][WIDE], q[2][N][WIDE], t[2][N][SQUARE], p[2][N][SQUARE];
    uint16_t s[2][D][NARROW], r[2][N][NARROW], d[2][N][NARROW], e[2][N][NARROW];
};
enum { THREADS = CK_CHUNK_STATE_THREADS, HALF = THREADS / 2 };

/* Barrier of all threads; the two halves call it at different places. */
__device__ __forceinline__ void block_sync() { asm volatile("bar.sync 1, %0;" ::"n"(CK_CHUNK_STATE_THREADS + 0) : "memory"); }

/* cp.async of two dense matrices of N rows to shared memory, by the second half of the threads. */
template <int COLS, int PITCH> __device__ __forceinline__ void cp_async_matrix(uint16_t *to, const uint16_t *from)
{
#pragma unroll
    for (int i = 0; i < 2 * N * COLS / 8 / HALF; i++) {
        uint32_t piece = threadIdx.x - HALF + i * HALF, r = piece / (COLS / 8), c = piece % (COLS / 8) * 8;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(smem_addr(to + r * PITCH + c)),
                     "l"(from + (size_t)piece * 8)
                     : "memory");
    }
}
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LATER> __device__ __forceinline__ void cp_async_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(LATER) : "memory");
}

/* Accumulators of a warp: 16 rows of the chunk, 16 columns. */
struct sums {
    float c[2][4], small[2][4];
};

__device__ __forceinline__ void clear(sums &s)
{
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) s.c[n][i] = s.small[n][i] = 0;
}

/* s += rows row .. row + 15 of a (its first `cols` columns) times columns col .. col + 15 of b; both
 * in two parts. */
template <int COLS, int A_PITCH, int NARROW>
__device__ __forceinline__ void add_product(sums &s, const uint16_t *a, uint32_t a_apart, uint32_t row, const uint16_t *b,
                                            uint32_t b_apart, uint32_t col, uint32_t cols)
{
#pragma unroll
    for (int kk = 0; kk < COLS; kk += 16) {
        uint32_t ah[4], al[4], bh[4], bl[4];
        if (kk >= cols) continue;
        load_a(ah, a, A_PITCH, row, kk);
        load_a(al, a + a_apart, A_PITCH, row, kk);
        load_b_trans(bh, b, NARROW, kk, col);
        load_b_trans(bl, b + b_apart, NARROW, kk, col);
        mma3(s.c[0], s.small[0], ah, al, bh, bl);
        mma3(s.c[1], s.small[1], ah, al, bh + 2, bl + 2);
    }
}

struct state_pos {                                          /* position of a thread */
    uint32_t h, key, j0, all, chunks, tile, half, row, col; /* row of the chunk and column of the block of its first sum */
    bool active;                                            /* its warp has columns (always with blocks of 32) */
};

/* Location of a head's V and scalars; consecutive chunks are `next` elements apart. */
struct state_source {
    const float *values, *scalars;
    size_t stride, next;
};
__device__ __forceinline__ state_source find_source(const ck_delta &a, const state_pos &at)
{
    state_source s;
    /* With the fused convolution V comes from chunk_v, else directly from the input. */
    s.values = a.conv.weight ? a.chunk_v + (size_t)at.h * N * D : a.in[2].p + (size_t)at.h * a.dv;
    s.stride = a.conv.weight ? D : a.in[2].stride, s.next = a.conv.weight ? (size_t)a.v_heads * N * D : N * s.stride;
    s.scalars = a.chunk_scalars + (size_t)at.h * 3 * N;
    return s;
}

/* A thread's values of one chunk besides the matrices, read one chunk ahead of their use. */
struct state_scalars {
    float exp_c[2], beta[2], exp_rest[2], exp_last;
    float2 v[2][2];
};

__device__ __forceinline__ void load_scalars(const ck_delta &a, const state_source &s, const state_pos &at, uint32_t c,
                                             state_scalars &m)
{
    const float *p = s.scalars + (size_t)c * a.v_heads * 3 * N;
    m.exp_last = p[N - 1];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t r = at.row + 8 * i;
        m.exp_c[i] = p[r], m.beta[i] = p[N + r], m.exp_rest[i] = p[2 * N + r];
#pragma unroll
        for (int n = 0; n < 2; n++)
            m.v[n][i] = at.active && c * N + r < at.all
                            ? *reinterpret_cast<const float2 *>(s.values + c * s.next + r * s.stride + at.j0 + at.col + n * 8)
                            : make_float2(0, 0);
    }
}

/* R = beta (V - e^c K S). */
template <int COLUMNS>
__device__ __forceinline__ void make_r(state_smem<COLUMNS> &smem, const state_pos &at, const uint16_t *k, const state_scalars &m)
{
    enum { NARROW = state_smem<COLUMNS>::NARROW };
    sums x;
    clear(x);
    /* Warps without columns of the block only take part in barriers. */
    if (!at.active) return;
    /* K S, then combined with V per element. */
    add_product<D, WIDE, NARROW>(x, k, N * WIDE, at.tile * 16, smem.s[0][0], D * NARROW, at.half, D);
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            put_split(&smem.r[0][at.row + 8 * i][at.col + n * 8], N * NARROW,
                      m.beta[i] * fmaf(-m.exp_c[i], x.c[n][2 * i] + x.small[n][2 * i], m.v[n][i].x),
                      m.beta[i] * fmaf(-m.exp_c[i], x.c[n][2 * i + 1] + x.small[n][2 * i + 1], m.v[n][i].y));
}

/* D = T R, and e^(c_last - c) D. */
template <int COLUMNS>
__device__ __forceinline__ void make_d(state_smem<COLUMNS> &smem, const state_pos &at, const state_scalars &m)
{
    enum { NARROW = state_smem<COLUMNS>::NARROW };
    sums x;
    clear(x);
    if (!at.active) return;
    /* T is lower triangular: only its first (tile + 1) * 16 columns count. */
    add_product<N, SQUARE, NARROW>(x, smem.t[0][0], N * SQUARE, at.tile * 16, smem.r[0][0], N * NARROW, at.half,
                                   (at.tile + 1) * 16);
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float y = x.c[n][2 * i] + x.small[n][2 * i], z = x.c[n][2 * i + 1] + x.small[n][2 * i + 1];
            put_split(&smem.d[0][at.row + 8 * i][at.col + n * 8], N * NARROW, y, z);
            put_split(&smem.e[0][at.row + 8 * i][at.col + n * 8], N * NARROW, m.exp_rest[i] * y, m.exp_rest[i] * z);
        }
}

/* S <- e^c_last S + K^T (e^(c_last - c) D): 16 rows of S per warp. */
template <int COLUMNS>
__device__ __forceinline__ void move_state(state_smem<COLUMNS> &smem, const uint16_t *k, float decay, float (&S)[COLUMNS / 8][4])
{
    enum { NARROW = state_smem<COLUMNS>::NARROW };
    uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, s_row = warp * 16 + (lane >> 2), pair = (lane & 3) * 2;
    float small[COLUMNS / 8][4] = {};
    /* Decay S before adding. */
#pragma unroll
    for (int n = 0; n < COLUMNS / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) S[n][i] *= decay;
    /* A operand: K transposed; B operand: e^(c_last - c) D. */
#pragma unroll
    for (int kk = 0; kk < N; kk += 16) {
        uint32_t ah[4], al[4], bh[4], bl[4];
        load_a_trans(ah, k, WIDE, warp * 16, kk);
        load_a_trans(al, k + N * WIDE, WIDE, warp * 16, kk);
#pragma unroll
        for (int n = 0; n < COLUMNS / 16; n++) {
            load_b_trans(bh, smem.e[0][0], NARROW, kk, n * 16);
            load_b_trans(bl, smem.e[1][0], NARROW, kk, n * 16);
            mma3(S[2 * n], small[2 * n], ah, al, bh, bl);
            mma3(S[2 * n + 1], small[2 * n + 1], ah, al, bh + 2, bl + 2);
        }
    }
    /* Add the cross terms and store S in two parts for the next chunk. */
#pragma unroll
    for (int n = 0; n < COLUMNS / 8; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            S[n][2 * i] += small[n][2 * i], S[n][2 * i + 1] += small[n][2 * i + 1];
            put_split(&smem.s[0][s_row + 8 * i][n * 8 + pair], D * NARROW, S[n][2 * i], S[n][2 * i + 1]);
        }
}

/* First half of the warps: R, D and the new S, chunk after chunk. */
template <int COLUMNS>
__device__ __forceinline__ void update_states(const ck_delta &a, state_smem<COLUMNS> &smem, const state_pos &at)
{
    enum { NARROW = state_smem<COLUMNS>::NARROW };
    uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, s_row = warp * 16 + (lane >> 2), pair = (lane & 3) * 2;
    size_t offset = (size_t)at.h * D * a.dv + (size_t)s_row * a.dv + at.j0 + pair;
    const float *memory = static_cast<const float *>(a.pass.slots[a.slot]) + offset;
    float *after = static_cast<float *>(a.pass.slots_out[a.slot]) + offset;
    float S[COLUMNS / 8][4];
    state_source source = find_source(a, at);
    state_scalars m;
    load_scalars(a, source, at, 0, m);
    /* S of this warp's rows to registers and, split, to shared memory. */
#pragma unroll
    for (int n = 0; n < COLUMNS / 8; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float2 x = *reinterpret_cast<const float2 *>(memory + (size_t)i * 8 * a.dv + n * 8);
            S[n][2 * i] = x.x, S[n][2 * i + 1] = x.y;
            put_split(&smem.s[0][s_row + 8 * i][n * 8 + pair], D * NARROW, x.x, x.y);
        }
    block_sync();
    /* Three barriers per chunk; the other half calls them at the same points. */
#pragma unroll 1
    for (uint32_t c = 0; c < at.chunks; c++) {
        const uint16_t *k = smem.k[c & 1][0][0];
        make_r(smem, at, k, m);
        block_sync(); /* R is stored; T has arrived */
        make_d(smem, at, m);
        float decay = m.exp_last;
        if (c + 1 < at.chunks) load_scalars(a, source, at, c + 1, m);
        block_sync(); /* D is stored */
        move_state(smem, k, decay, S);
        block_sync(); /* S is stored; the next K and Q have arrived */
    }
    /* Write back the final S. */
#pragma unroll
    for (int n = 0; n < COLUMNS / 8; n++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            *reinterpret_cast<float2 *>(after + (size_t)i * 8 * a.dv + n * 8) = make_float2(S[n][2 * i], S[n][2 * i + 1]);
}

/* Stores O of chunk c. */
template <int COLUMNS>
__device__ __forceinline__ void store_outputs(const ck_delta &a, const state_pos &at, uint32_t c, const sums &x)
{
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t t = c * N + at.row + 8 * i;
            if (at.active && t < at.all)
                *reinterpret_cast<float2 *>(a.y.p + (size_t)t * a.y.stride + (size_t)at.h * a.dv + at.j0 + at.col + n * 8) =
                    make_float2(x.c[n][2 * i] + x.small[n][2 * i], x.c[n][2 * i + 1] + x.small[n][2 * i + 1]);
        }
}

/* Second half: loads all inputs and computes O, off the critical path of S. */
template <int COLUMNS>
__device__ __forceinline__ void write_outputs(const ck_delta &a, state_smem<COLUMNS> &smem, const state_pos &at)
{
    enum { NARROW = state_smem<COLUMNS>::NARROW };
    /* First inputs: K and Q, then T, then P, then the next K, each as one cp.async group. */
    auto qk = [&](uint32_t c) { return a.chunk_qk + ((size_t)c * a.k_heads + at.key) * 4 * N * D; };
    auto tp = [&](uint32_t c) { return a.chunk_tp + ((size_t)c * a.v_heads + at.h) * 4 * N * N; };
    cp_async_matrix<D, WIDE>(smem.k[0][0][0], qk(0));
    cp_async_matrix<D, WIDE>(smem.q[0][0], qk(0) + 2 * N * D);
    cp_async_commit();
    cp_async_matrix<N, SQUARE>(smem.t[0][0], tp(0));
    cp_async_commit();
    cp_async_matrix<N, SQUARE>(smem.p[0][0], tp(0) + 2 * N * N);
    cp_async_commit();
    if (at.chunks > 1) cp_async_matrix<D, WIDE>(smem.k[1][0][0], qk(1));
    cp_async_commit();
    /* K and Q of chunk 0 have arrived. */
    cp_async_wait<3>();
    block_sync();
#pragma unroll 1
    for (uint32_t c = 0; c < at.chunks; c++) {
        const float *scalars = a.chunk_scalars + ((size_t)c * a.v_heads + at.h) * 3 * N;
        float exp_c[2] = {scalars[at.row], scalars[at.row + 8]};
        sums x;
        clear(x);
        /* Q S of this chunk, before S changes. */
        if (at.active)
            add_product<D, WIDE, NARROW>(x, smem.q[0][0], N * WIDE, at.tile * 16, smem.s[0][0], D * NARROW, at.half, D);
        cp_async_wait<2>(); /* T */
        block_sync();
        if (c + 1 < at.chunks) cp_async_matrix<D, WIDE>(smem.q[0][0], qk(c + 1) + 2 * N * D);
        cp_async_commit();
        /* Scale the rows by e^c. */
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) x.c[n][i] *= exp_c[i >> 1], x.small[n][i] *= exp_c[i >> 1];
        cp_async_wait<2>(); /* P */
        block_sync();
        if (c + 1 < at.chunks) cp_async_matrix<N, SQUARE>(smem.t[0][0], tp(c + 1));
        cp_async_commit();
        /* Add P D; P is lower triangular. */
        if (at.active)
            add_product<N, SQUARE, NARROW>(x, smem.p[0][0], N * SQUARE, at.tile * 16, smem.d[0][0], N * NARROW, at.half,
                                           (at.tile + 1) * 16);
        store_outputs<COLUMNS>(a, at, c, x);
        cp_async_wait<1>(); /* the next K and Q */
        block_sync();
        if (c + 1 < at.chunks) cp_async_matrix<N, SQUARE>(smem.p[0][0], tp(c + 1) + 2 * N * N);
        cp_async_commit();
        if (c + 2 < at.chunks) cp_async_matrix<D, WIDE>(smem.k[c & 1][0][0], qk(c + 2));
        cp_async_commit();
    }
}

/* Stores the new convolution state: the last inputs of the span. No other block reads the old one
 * any more. */
__device__ __forceinline__ void store_conv_state(const ck_delta &a, uint32_t all)
{
    float *memory = static_cast<float *>(a.pass.slots[a.conv.slot]);
    uint32_t past = a.conv.taps - 1;
    for (uint32_t c = blockIdx.x * HALF + threadIdx.x - HALF; c < a.conv.width; c += gridDim.x * HALF)
        for (uint32_t j = 0; j < past; j++)
            memory[(size_t)j * a.conv.width + c] = a.conv.raw[(size_t)(all + j - past) * a.in[0].stride + c];
}

/* Kernel body. Both halves call block_sync at matching places. */
template <int COLUMNS> __device__ __forceinline__ void chunk_state(const ck_delta &a)
{
    state_smem<COLUMNS> &smem = *reinterpret_cast<state_smem<COLUMNS> *>(shared4);
    static_assert(sizeof(state_smem<COLUMNS>) <= CK_CHUNK_STATE_BYTES, "what the host asks for");
    uint32_t per = a.dv / COLUMNS, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    wait_for_inputs();
    state_pos at;
    at.h = blockIdx.x / per;
    at.key = at.h / (a.v_heads / a.k_heads);
    at.j0 = blockIdx.x % per * COLUMNS;
    at.all = a.pass.head->from[1];
    at.chunks = (at.all + N - 1) / N;
    /* Warp position: 16 rows of the chunk and 16 columns of the block. */
    at.tile = warp & 3;
    at.half = (warp >> 2 & 1) * 16;
    at.active = at.half < COLUMNS;
    at.row = at.tile * 16 + (lane >> 2);
    at.col = at.half + (lane & 3) * 2;
    if (threadIdx.x < HALF)
        update_states(a, smem, at);
    else {
        write_outputs(a, smem, at);
        if (a.conv.weight) store_conv_state(a, at.all);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) chunk_state_16(const __grid_constant__ ck_delta a)
{
    chunk_state<16>(a);
}
extern "C" __global__ void __launch_bounds__(THREADS, 1) chunk_state_32(const __grid_constant__ ck_delta a)
{
    chunk_state<32>(a);
}
