/* k_carry.cu: S of the delta rule through the chunks that k_chunk.cu made ready, in order:
 *   R = beta (V - e^c K S),  D = T R,  O = e^c Q S + P D,  S <- e^c_last S + K^T (e^(c_last - c) D)
 * A block has 16 or 32 columns of a head's S, which stays in registers in fp32.
 *
 * It reads 96 KB a chunk (K and Q 32 each, T and P 16 each), mostly from the second-level cache, while it works on the chunk
 * before: 64 blocks move 6 MB a chunk, about 1.2 us, and 1,392 products of 16 x 8 x 16 take a multiprocessor about as long.
 * SPDX-License-Identifier: MIT */
#include "k_pairs.cuh"

template <int COLUMNS> struct carry_room {
    enum { NARROW = COLUMNS + 8 };
    uint16_t k[2][2][N][WIDE], q[2][N][WIDE], t[2][N][SQUARE], p[2][N][SQUARE];
    uint16_t s[2][D][NARROW], r[2][N][NARROW], d[2][N][NARROW], e[2][N][NARROW];
};
enum { CARRY = CK_CARRY_THREADS, HALF = CARRY / 2 };

/* All threads of a block, whose halves come here from places of their own. */
__device__ __forceinline__ void meet() { asm volatile("bar.sync 1, %0;" ::"n"(CK_CARRY_THREADS + 0) : "memory"); }

/* Two dense matrices of N rows to shared memory, by the second half of the threads, which go on. */
template <int COLS, int PITCH> __device__ __forceinline__ void bring_later(uint16_t *to, const uint16_t *from)
{
#pragma unroll
    for (int i = 0; i < 2 * N * COLS / 8 / HALF; i++) {
        uint32_t piece = threadIdx.x - HALF + i * HALF, r = piece / (COLS / 8), c = piece % (COLS / 8) * 8;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_at(to + r * PITCH + c)),
                     "l"(from + (size_t)piece * 8)
                     : "memory");
    }
}
__device__ __forceinline__ void all_asked() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LATER> __device__ __forceinline__ void wait_but()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(LATER) : "memory");
}

/* What a warp has of a product: 16 rows of the chunk, 16 columns. */
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

/* s += a's rows row .. row + 15, its first `cols` columns, times b's rows, columns col .. col + 15; both in two parts. */
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
        load_b_turned(bh, b, NARROW, kk, col);
        load_b_turned(bl, b + b_apart, NARROW, kk, col);
        mma3(s.c[0], s.small[0], ah, al, bh, bl);
        mma3(s.c[1], s.small[1], ah, al, bh + 2, bl + 2);
    }
}

struct carry_place { /* of a thread */
    uint32_t h, key, j0, all, chunks, tile, half, row, col; /* row of the chunk and column of the block of its first sum */
    bool works;                                             /* its warp has columns: all have in blocks of 32 */
};

/* Where a head's V and numbers lie; a chunk's are `next` numbers behind those of the one before. */
struct carry_source {
    const float *values, *numbers;
    size_t stride, next;
};
__device__ __forceinline__ carry_source find_source(const ck_delta &a, const carry_place &at)
{
    carry_source s;
    s.values = a.conv.weight ? a.chunk_v + (size_t)at.h * N * D : a.in[2].p + (size_t)at.h * a.dv;
    s.stride = a.conv.weight ? D : a.in[2].stride, s.next = a.conv.weight ? (size_t)a.v_heads * N * D : N * s.stride;
    s.numbers = a.chunk_numbers + (size_t)at.h * 3 * N;
    return s;
}

/* What a thread needs of a chunk beside the matrices, read one chunk ahead of its use. */
struct carry_numbers {
    float grown[2], beta[2], left[2], last;
    float2 v[2][2];
};

__device__ __forceinline__ void bring_numbers(const ck_delta &a, const carry_source &s, const carry_place &at, uint32_t c,
                                              carry_numbers &m)
{
    const float *p = s.numbers + (size_t)c * a.v_heads * 3 * N;
    m.last = p[N - 1];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t r = at.row + 8 * i;
        m.grown[i] = p[r], m.beta[i] = p[N + r], m.left[i] = p[2 * N + r];
#pragma unroll
        for (int n = 0; n < 2; n++)
            m.v[n][i] = at.works && c * N + r < at.all
                            ? *reinterpret_cast<const float2 *>(s.values + c * s.next + r * s.stride + at.j0 + at.col + n * 8)
                            : make_float2(0, 0);
    }
}

/* R = beta (V - e^c K S). */
template <int COLUMNS>
__device__ __forceinline__ void make_r(carry_room<COLUMNS> &room, const carry_place &at, const uint16_t *k,
                                       const carry_numbers &m)
{
    enum { NARROW = carry_room<COLUMNS>::NARROW };
    sums x;
    clear(x);
    if (!at.works) return;
    add_product<D, WIDE, NARROW>(x, k, N * WIDE, at.tile * 16, room.s[0][0], D * NARROW, at.half, D);
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            put_split(&room.r[0][at.row + 8 * i][at.col + n * 8], N * NARROW,
                      m.beta[i] * fmaf(-m.grown[i], x.c[n][2 * i] + x.small[n][2 * i], m.v[n][i].x),
                      m.beta[i] * fmaf(-m.grown[i], x.c[n][2 * i + 1] + x.small[n][2 * i + 1], m.v[n][i].y));
}

/* D = T R, and e^(c_last - c) D. */
template <int COLUMNS>
__device__ __forceinline__ void make_d(carry_room<COLUMNS> &room, const carry_place &at, const carry_numbers &m)
{
    enum { NARROW = carry_room<COLUMNS>::NARROW };
    sums x;
    clear(x);
    if (!at.works) return;
    add_product<N, SQUARE, NARROW>(x, room.t[0][0], N * SQUARE, at.tile * 16, room.r[0][0], N * NARROW, at.half,
                                   (at.tile + 1) * 16);
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float y = x.c[n][2 * i] + x.small[n][2 * i], z = x.c[n][2 * i + 1] + x.small[n][2 * i + 1];
            put_split(&room.d[0][at.row + 8 * i][at.col + n * 8], N * NARROW, y, z);
            put_split(&room.e[0][at.row + 8 * i][at.col + n * 8], N * NARROW, m.left[i] * y, m.left[i] * z);
        }
}

/* S <- e^c_last S + K^T (e^(c_last - c) D): 16 rows of S a warp. */
template <int COLUMNS>
__device__ __forceinline__ void move_state(carry_room<COLUMNS> &room, const uint16_t *k, float decay, float (&S)[COLUMNS / 8][4])
{
    enum { NARROW = carry_room<COLUMNS>::NARROW };
    uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, s_row = warp * 16 + (lane >> 2), pair = (lane & 3) * 2;
    float small[COLUMNS / 8][4] = {};
#pragma unroll
    for (int n = 0; n < COLUMNS / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) S[n][i] *= decay;
#pragma unroll
    for (int kk = 0; kk < N; kk += 16) {
        uint32_t ah[4], al[4], bh[4], bl[4];
        load_a_turned(ah, k, WIDE, warp * 16, kk);
        load_a_turned(al, k + N * WIDE, WIDE, warp * 16, kk);
#pragma unroll
        for (int n = 0; n < COLUMNS / 16; n++) {
            load_b_turned(bh, room.e[0][0], NARROW, kk, n * 16);
            load_b_turned(bl, room.e[1][0], NARROW, kk, n * 16);
            mma3(S[2 * n], small[2 * n], ah, al, bh, bl);
            mma3(S[2 * n + 1], small[2 * n + 1], ah, al, bh + 2, bl + 2);
        }
    }
#pragma unroll
    for (int n = 0; n < COLUMNS / 8; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            S[n][2 * i] += small[n][2 * i], S[n][2 * i + 1] += small[n][2 * i + 1];
            put_split(&room.s[0][s_row + 8 * i][n * 8 + pair], D * NARROW, S[n][2 * i], S[n][2 * i + 1]);
        }
}

/* S through the chunks: R, D and the new S, by the first half of the warps. */
template <int COLUMNS>
__device__ __forceinline__ void carry_state(const ck_delta &a, carry_room<COLUMNS> &room, const carry_place &at)
{
    enum { NARROW = carry_room<COLUMNS>::NARROW };
    uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, s_row = warp * 16 + (lane >> 2), pair = (lane & 3) * 2;
    size_t place = (size_t)at.h * D * a.dv + (size_t)s_row * a.dv + at.j0 + pair;
    const float *memory = static_cast<const float *>(a.pass.slots[a.slot]) + place;
    float *after = static_cast<float *>(a.pass.slots_out[a.slot]) + place;
    float S[COLUMNS / 8][4];
    carry_source source = find_source(a, at);
    carry_numbers m;
    bring_numbers(a, source, at, 0, m);
#pragma unroll
    for (int n = 0; n < COLUMNS / 8; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float2 x = *reinterpret_cast<const float2 *>(memory + (size_t)i * 8 * a.dv + n * 8);
            S[n][2 * i] = x.x, S[n][2 * i + 1] = x.y;
            put_split(&room.s[0][s_row + 8 * i][n * 8 + pair], D * NARROW, x.x, x.y);
        }
    meet();
#pragma unroll 1
    for (uint32_t c = 0; c < at.chunks; c++) {
        const uint16_t *k = room.k[c & 1][0][0];
        make_r(room, at, k, m);
        meet(); /* R; T is there */
        make_d(room, at, m);
        float decay = m.last;
        if (c + 1 < at.chunks) bring_numbers(a, source, at, c + 1, m);
        meet(); /* D */
        move_state(room, k, decay, S);
        meet(); /* S; the next K and Q are there */
    }
#pragma unroll
    for (int n = 0; n < COLUMNS / 8; n++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            *reinterpret_cast<float2 *>(after + (size_t)i * 8 * a.dv + n * 8) = make_float2(S[n][2 * i], S[n][2 * i + 1]);
}

/* What comes out of them, and all that is read, by the second half: nothing of S waits for it. */
template <int COLUMNS>
__device__ __forceinline__ void carry_out(const ck_delta &a, carry_room<COLUMNS> &room, const carry_place &at)
{
    enum { NARROW = carry_room<COLUMNS>::NARROW };
    auto qk = [&](uint32_t c) { return a.chunk_qk + ((size_t)c * a.k_heads + at.key) * 4 * N * D; };
    auto tp = [&](uint32_t c) { return a.chunk_tp + ((size_t)c * a.v_heads + at.h) * 4 * N * N; };
    bring_later<D, WIDE>(room.k[0][0][0], qk(0));
    bring_later<D, WIDE>(room.q[0][0], qk(0) + 2 * N * D);
    all_asked();
    bring_later<N, SQUARE>(room.t[0][0], tp(0));
    all_asked();
    bring_later<N, SQUARE>(room.p[0][0], tp(0) + 2 * N * N);
    all_asked();
    if (at.chunks > 1) bring_later<D, WIDE>(room.k[1][0][0], qk(1));
    all_asked();
    wait_but<3>();
    meet();
#pragma unroll 1
    for (uint32_t c = 0; c < at.chunks; c++) {
        const float *numbers = a.chunk_numbers + ((size_t)c * a.v_heads + at.h) * 3 * N;
        float grown[2] = {numbers[at.row], numbers[at.row + 8]};
        sums x;
        clear(x);
        if (at.works) add_product<D, WIDE, NARROW>(x, room.q[0][0], N * WIDE, at.tile * 16, room.s[0][0], D * NARROW, at.half, D);
        wait_but<2>(); /* T */
        meet();
        if (c + 1 < at.chunks) bring_later<D, WIDE>(room.q[0][0], qk(c + 1) + 2 * N * D);
        all_asked();
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) x.c[n][i] *= grown[i >> 1], x.small[n][i] *= grown[i >> 1];
        wait_but<2>(); /* P */
        meet();
        if (c + 1 < at.chunks) bring_later<N, SQUARE>(room.t[0][0], tp(c + 1));
        all_asked();
        if (at.works)
            add_product<N, SQUARE, NARROW>(x, room.p[0][0], N * SQUARE, at.tile * 16, room.d[0][0], N * NARROW, at.half,
                                           (at.tile + 1) * 16);
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                uint32_t t = c * N + at.row + 8 * i;
                if (at.works && t < at.all)
                    *reinterpret_cast<float2 *>(a.y.p + (size_t)t * a.y.stride + (size_t)at.h * a.dv + at.j0 + at.col + n * 8) =
                        make_float2(x.c[n][2 * i] + x.small[n][2 * i], x.c[n][2 * i + 1] + x.small[n][2 * i + 1]);
            }
        wait_but<1>(); /* the next K and Q */
        meet();
        if (c + 1 < at.chunks) bring_later<N, SQUARE>(room.p[0][0], tp(c + 1) + 2 * N * N);
        all_asked();
        if (c + 2 < at.chunks) bring_later<D, WIDE>(room.k[c & 1][0][0], qk(c + 2));
        all_asked();
    }
}

/* The convolution's memory: the last rows before it. Nobody reads it any more. */
__device__ __forceinline__ void keep_rows(const ck_delta &a, uint32_t all)
{
    float *memory = static_cast<float *>(a.pass.slots[a.conv.slot]);
    uint32_t past = a.conv.taps - 1;
    for (uint32_t c = blockIdx.x * HALF + threadIdx.x - HALF; c < a.conv.width; c += gridDim.x * HALF)
        for (uint32_t j = 0; j < past; j++)
            memory[(size_t)j * a.conv.width + c] = a.conv.raw[(size_t)(all + j - past) * a.in[0].stride + c];
}

/* Both halves meet three times a chunk, at the same places in either. */
template <int COLUMNS> __device__ __forceinline__ void carry(const ck_delta &a)
{
    carry_room<COLUMNS> &room = *reinterpret_cast<carry_room<COLUMNS> *>(shared4);
    static_assert(sizeof(carry_room<COLUMNS>) <= CK_CHUNK_CARRY_BYTES, "what the host asks for");
    uint32_t per = a.dv / COLUMNS, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    wait_for_inputs();
    carry_place at;
    at.h = blockIdx.x / per;
    at.key = at.h / (a.v_heads / a.k_heads);
    at.j0 = blockIdx.x % per * COLUMNS;
    at.all = a.pass.head->from[1];
    at.chunks = (at.all + N - 1) / N;
    at.tile = warp & 3;
    at.half = (warp >> 2 & 1) * 16;
    at.works = at.half < COLUMNS;
    at.row = at.tile * 16 + (lane >> 2);
    at.col = at.half + (lane & 3) * 2;
    if (threadIdx.x < HALF)
        carry_state(a, room, at);
    else {
        carry_out(a, room, at);
        if (a.conv.weight) keep_rows(a, at.all);
    }
}

extern "C" __global__ void __launch_bounds__(CARRY, 1) chunk_carry_16(const __grid_constant__ ck_delta a) { carry<16>(a); }
extern "C" __global__ void __launch_bounds__(CARRY, 1) chunk_carry_32(const __grid_constant__ ck_delta a) { carry<32>(a); }
