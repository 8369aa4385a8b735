/* k_chunk.cu: the gated delta rule of many rows on the tensor cores, 64 rows (a chunk) at a time, heads of 128 (reference
 * models.md 2.5). With c the running sum of the logarithms of the decays and L_ij = e^(c_i - c_j), i >= j:
 *   X = strict lower part of beta_i (k_i . k_j) L_ij,  T = (I + X)^-1,  P = (q_i . k_j) L_ij        chunk_local
 *   R = beta (V - e^c K S),  D = T R,  O = e^c Q S + P D,  S <- e^c_last S + K^T (e^(c_last - c) D)    chunk_carry
 * chunk_local works on all chunks at once, a block each; chunk_carry goes through them in order, a block for COLUMNS columns
 * of a head's S, which stays in registers in fp32. Every factor is two bf16 numbers (rounded, and the rest), every product
 * three tensor-core products: what is dropped is 2^-16 of a factor. T is found by substitution in fp32.
 *
 * chunk_carry reads 96 KB a chunk (K and Q 32 each, T and P 16 each), mostly from the second-level cache, while it works on
 * the chunk before: 64 blocks move 6 MB a chunk, about 1.2 us, and 1,392 products of 16 x 8 x 16 take a multiprocessor about
 * as long. SPDX-License-Identifier: MIT */
#include "k_mma.cuh"

enum {
    N = CK_CHUNK_ROWS,
    D = 128,
    COLUMNS = CK_CHUNK_COLUMNS,
    THREADS = CK_CHUNK_THREADS,
    WIDE = D + 8, /* rows in shared memory: 16 bytes more, so that ldmatrix meets no bank twice */
    SQUARE = N + 8,
    NARROW = COLUMNS + 8
};

/* Two numbers as two pairs of bf16. */
__device__ __forceinline__ void split(float x, float y, uint32_t &high, uint32_t &low)
{
    __nv_bfloat162 h = __floats2bfloat162_rn(x, y);
    __nv_bfloat162 l = __floats2bfloat162_rn(x - __low2float(h), y - __high2float(h));
    high = *reinterpret_cast<uint32_t *>(&h);
    low = *reinterpret_cast<uint32_t *>(&l);
}

/* Both parts of two numbers of a row, to two matrices `apart` numbers from one another. */
__device__ __forceinline__ void put_split(uint16_t *to, size_t apart, float x, float y)
{
    uint32_t high, low;
    split(x, y, high, low);
    *reinterpret_cast<uint32_t *>(to) = high;
    *reinterpret_cast<uint32_t *>(to + apart) = low;
}

/* c += a b, each in two parts; the small terms are summed apart. */
__device__ __forceinline__ void mma3(float (&c)[4], float (&small)[4], const uint32_t (&ah)[4], const uint32_t (&al)[4],
                                     const uint32_t *bh, const uint32_t *bl)
{
    mma<1>(c, ah, bh[0], bh[1]);
    mma<1>(small, ah, bl[0], bl[1]);
    mma<1>(small, al, bh[0], bh[1]);
}

/* Fragments of a matrix in shared memory: rows as they lie (a: 16 x 16 at row, col; b of its transpose), or turned. */
__device__ __forceinline__ void load_a(uint32_t (&r)[4], const uint16_t *m, uint32_t pitch, uint32_t row, uint32_t col)
{
    uint32_t lane = threadIdx.x & 31;
    load4(r, m + (row + (lane & 15)) * pitch + col + (lane >> 4) * 8);
}
__device__ __forceinline__ void load_a_turned(uint32_t (&r)[4], const uint16_t *m, uint32_t pitch, uint32_t row, uint32_t col)
{
    uint32_t lane = threadIdx.x & 31; /* a's row is m's column */
    load4_turned(r, m + (col + (lane & 7) + (lane >> 4) * 8) * pitch + row + (lane >> 3 & 1) * 8);
}
__device__ __forceinline__ void load_b(uint32_t (&r)[4], const uint16_t *m, uint32_t pitch, uint32_t row, uint32_t col)
{
    uint32_t lane = threadIdx.x & 31; /* two tiles of b: m's rows are b's columns */
    load4(r, m + (row + (lane & 7) + (lane >> 4) * 8) * pitch + col + (lane >> 3 & 1) * 8);
}
__device__ __forceinline__ void load_b_turned(uint32_t (&r)[4], const uint16_t *m, uint32_t pitch, uint32_t row, uint32_t col)
{
    uint32_t lane = threadIdx.x & 31;
    load4_turned(r, m + (row + (lane & 15)) * pitch + col + (lane >> 4) * 8);
}

/* --- what a chunk is without S --- */

struct local_room {
    uint16_t k[2][N][WIDE], q[2][N][WIDE];
    float x[N][N];
    float c[N], beta[N];
};

/* Running sums of the decays' logarithms, by one warp; rows behind the last do nothing. */
__device__ __forceinline__ void sum_decays(const ck_delta &a, local_room &room, uint32_t t0, uint32_t rows, uint32_t h,
                                           float *numbers)
{
    uint32_t lane = threadIdx.x & 31;
    float rate = a.is_log ? -expf(a.decay[h]) : a.decay[h], dt = a.dt[h], c[2], before = 0;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t r = lane + 32 * i, t = t0 + r;
        bool is_row = r < rows;
        c[i] = is_row ? rate * softplus(a.in[3].p[(size_t)t * a.in[3].stride + h] + dt) : 0;
        room.beta[r] = is_row ? sigmoid(a.in[4].p[(size_t)t * a.in[4].stride + h]) : 0;
#pragma unroll
        for (int m = 1; m < 32; m *= 2) {
            float other = __shfl_up_sync(0xffffffffu, c[i], m);
            if (lane >= m) c[i] += other;
        }
        c[i] += before;
        before = __shfl_sync(0xffffffffu, c[i], 31);
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t r = lane + 32 * i;
        room.c[r] = c[i];
        numbers[r] = expf(c[i]);
        numbers[N + r] = room.beta[r];
        numbers[2 * N + r] = expf(before - c[i]);
    }
}

/* q and k of the chunk, normalised, into shared memory; a warp takes 8 rows. keep: to where chunk_carry reads them, or NULL. */
__device__ __forceinline__ void bring_rows(const ck_delta &a, local_room &room, uint32_t t0, uint32_t rows, uint32_t key,
                                           uint16_t *keep)
{
    enum { EACH = N / (THREADS / 32) };
    uint32_t lane = threadIdx.x & 31, first = (threadIdx.x >> 5) * EACH;
    float4 q[EACH], k[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        uint32_t r = first + i;
        q[i] = k[i] = make_float4(0, 0, 0, 0);
        if (r >= rows) continue;
        q[i] = four_at(a.in[0].p + (size_t)(t0 + r) * a.in[0].stride + key, 4 * lane);
        k[i] = four_at(a.in[1].p + (size_t)(t0 + r) * a.in[1].stride + key, 4 * lane);
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        uint32_t r = first + i;
        float qq = warp_sum(q[i].x * q[i].x + q[i].y * q[i].y + q[i].z * q[i].z + q[i].w * q[i].w);
        float kk = warp_sum(k[i].x * k[i].x + k[i].y * k[i].y + k[i].z * k[i].z + k[i].w * k[i].w);
        float qs = rsqrtf((float)D), ks = 1;
        if (a.l2_eps > 0) qs *= rsqrtf(qq + a.l2_eps), ks = rsqrtf(kk + a.l2_eps);
        uint2 kh, kl, qh, ql;
        split(k[i].x * ks, k[i].y * ks, kh.x, kl.x), split(k[i].z * ks, k[i].w * ks, kh.y, kl.y);
        split(q[i].x * qs, q[i].y * qs, qh.x, ql.x), split(q[i].z * qs, q[i].w * qs, qh.y, ql.y);
        *reinterpret_cast<uint2 *>(&room.k[0][r][4 * lane]) = kh;
        *reinterpret_cast<uint2 *>(&room.k[1][r][4 * lane]) = kl;
        *reinterpret_cast<uint2 *>(&room.q[0][r][4 * lane]) = qh;
        *reinterpret_cast<uint2 *>(&room.q[1][r][4 * lane]) = ql;
        if (!keep) continue;
        uint16_t *to = keep + r * D + 4 * lane;
        *reinterpret_cast<uint2 *>(to) = kh;
        *reinterpret_cast<uint2 *>(to + N * D) = kl;
        *reinterpret_cast<uint2 *>(to + 2 * N * D) = qh;
        *reinterpret_cast<uint2 *>(to + 3 * N * D) = ql;
    }
}

/* Column `threadIdx.x` of T, row after row, all in registers. */
__device__ __forceinline__ void solve(const local_room &room, uint16_t *t_out)
{
    float t[N];
#pragma unroll
    for (int i = 0; i < N; i++) {
        float s[4] = {};
#pragma unroll
        for (int m = 0; m < i; m += 4) {
            float4 x = *reinterpret_cast<const float4 *>(&room.x[i][m]);
            s[0] = fmaf(x.x, t[m], s[0]);
            if (m + 1 < i) s[1] = fmaf(x.y, t[m + 1], s[1]);
            if (m + 2 < i) s[2] = fmaf(x.z, t[m + 2], s[2]);
            if (m + 3 < i) s[3] = fmaf(x.w, t[m + 3], s[3]);
        }
        t[i] = (i == (int)threadIdx.x ? 1.0f : 0.0f) - ((s[0] + s[1]) + (s[2] + s[3]));
        __nv_bfloat16 high = __float2bfloat16_rn(t[i]), low = __float2bfloat16_rn(t[i] - __bfloat162float(high));
        t_out[i * N + threadIdx.x] = __bfloat16_as_ushort(high);
        t_out[N * N + i * N + threadIdx.x] = __bfloat16_as_ushort(low);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) chunk_local(const __grid_constant__ ck_delta a)
{
    extern __shared__ float4 shared4[];
    local_room &room = *reinterpret_cast<local_room *>(shared4);
    uint32_t c = blockIdx.x, h = blockIdx.y, share = a.v_heads / a.k_heads, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    dependents_may_start();
    wait_for_inputs();
    uint32_t all = a.pass.head->from[1], t0 = c * N, rows = t0 >= all ? 0 : all - t0 < N ? all - t0 : N;
    uint16_t *qk = a.chunk_qk + ((size_t)c * a.k_heads + h / share) * 4 * N * D,
             *tp = a.chunk_tp + ((size_t)c * a.v_heads + h) * 4 * N * N;
    bring_rows(a, room, t0, rows, h / share * D, h % share ? nullptr : qk);
    if (warp == 0) sum_decays(a, room, t0, rows, h, a.chunk_numbers + ((size_t)c * a.v_heads + h) * 3 * N);
    __syncthreads();
    uint32_t tile = warp & 3, group = lane >> 2, pair = (lane & 3) * 2;
    const uint16_t *left = warp < 4 ? room.k[0][0] : room.q[0][0];
    float sum[N / 8][4] = {}, small[N / 8][4] = {};
#pragma unroll 2
    for (int kk = 0; kk < D; kk += 16) {
        uint32_t ah[4], al[4], bh[4], bl[4];
        load_a(ah, left, WIDE, tile * 16, kk);
        load_a(al, left + N * WIDE, WIDE, tile * 16, kk);
#pragma unroll
        for (int n = 0; n < N / 16; n++) {
            if (n > tile) continue;
            load_b(bh, room.k[0][0], WIDE, n * 16, kk);
            load_b(bl, room.k[1][0], WIDE, n * 16, kk);
            mma3(sum[2 * n], small[2 * n], ah, al, bh, bl);
            mma3(sum[2 * n + 1], small[2 * n + 1], ah, al, bh + 2, bl + 2);
        }
    }
#pragma unroll
    for (int n = 0; n < N / 8; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t i = tile * 16 + group + 8 * half, j = n * 8 + pair;
            if (n > 2 * tile + 1) continue;
            float x = sum[n][2 * half] + small[n][2 * half], y = sum[n][2 * half + 1] + small[n][2 * half + 1];
            x = j <= i ? x * expf(room.c[i] - room.c[j]) : 0;
            y = j + 1 <= i ? y * expf(room.c[i] - room.c[j + 1]) : 0;
            if (warp < 4)
                room.x[i][j] = j < i ? x * room.beta[i] : 0, room.x[i][j + 1] = j + 1 < i ? y * room.beta[i] : 0;
            else
                put_split(tp + 2 * N * N + i * N + j, N * N, x, y);
        }
    __syncthreads();
    if (threadIdx.x < N) solve(room, tp);
}

/* --- S through all chunks --- */

struct carry_room {
    uint16_t k[2][2][N][WIDE], q[2][N][WIDE], t[2][N][SQUARE], p[2][N][SQUARE];
    uint16_t s[2][D][NARROW], r[2][N][NARROW], d[2][N][NARROW], e[2][N][NARROW];
};

/* Two dense matrices of N rows to shared memory, while the thread goes on. */
template <int COLS, int PITCH> __device__ __forceinline__ void bring_later(uint16_t *to, const uint16_t *from)
{
#pragma unroll
    for (int i = 0; i < 2 * N * COLS / 8 / THREADS; i++) {
        uint32_t piece = threadIdx.x + i * THREADS, r = piece / (COLS / 8), c = piece % (COLS / 8) * 8;
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

extern "C" __global__ void __launch_bounds__(THREADS, 1) chunk_carry(const __grid_constant__ ck_delta a)
{
    extern __shared__ float4 shared4[];
    carry_room &room = *reinterpret_cast<carry_room *>(shared4);
    uint32_t per = a.dv / COLUMNS, h = blockIdx.x / per, j0 = blockIdx.x % per * COLUMNS, key = h / (a.v_heads / a.k_heads);
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, group = lane >> 2, pair = (lane & 3) * 2;
    uint32_t tile = warp & 3, half = (warp >> 2) * 16; /* of rows of the chunk, of columns */
    dependents_may_start();
    wait_for_inputs();
    uint32_t all = a.pass.head->from[1], chunks = (all + N - 1) / N;
    size_t at = (size_t)h * D * a.dv + (size_t)(warp * 16 + group) * a.dv + j0 + pair;
    const float *memory = static_cast<const float *>(a.pass.slots[a.slot]) + at;
    float *after = static_cast<float *>(a.pass.slots_out[a.slot]) + at;
    auto qk = [&](uint32_t c) { return a.chunk_qk + ((size_t)c * a.k_heads + key) * 4 * N * D; };
    auto tp = [&](uint32_t c) { return a.chunk_tp + ((size_t)c * a.v_heads + h) * 4 * N * N; };
    bring_later<D, WIDE>(room.k[0][0][0], qk(0));
    bring_later<D, WIDE>(room.q[0][0], qk(0) + 2 * N * D);
    all_asked();
    bring_later<N, SQUARE>(room.t[0][0], tp(0));
    all_asked();
    bring_later<N, SQUARE>(room.p[0][0], tp(0) + 2 * N * N);
    all_asked();
    if (chunks > 1) bring_later<D, WIDE>(room.k[1][0][0], qk(1));
    all_asked();
    float S[COLUMNS / 8][4];
#pragma unroll
    for (int n = 0; n < COLUMNS / 8; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float2 x = *reinterpret_cast<const float2 *>(memory + (size_t)i * 8 * a.dv + n * 8);
            S[n][2 * i] = x.x, S[n][2 * i + 1] = x.y;
            put_split(&room.s[0][warp * 16 + group + 8 * i][n * 8 + pair], D * NARROW, x.x, x.y);
        }
    wait_but<3>();
    __syncthreads();
    for (uint32_t c = 0; c < chunks; c++) {
        const float *numbers = a.chunk_numbers + ((size_t)c * a.v_heads + h) * 3 * N;
        const uint16_t *k = room.k[c & 1][0][0];
        float grown[2], beta[2], left[2], last = numbers[N - 1];
        float2 v[2][2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t r = tile * 16 + group + 8 * i, t = c * N + r;
            grown[i] = numbers[r], beta[i] = numbers[N + r], left[i] = numbers[2 * N + r];
#pragma unroll
            for (int n = 0; n < 2; n++)
                v[n][i] = t < all ? *reinterpret_cast<const float2 *>(a.in[2].p + (size_t)t * a.in[2].stride +
                                                                       (size_t)h * a.dv + j0 + half + n * 8 + pair)
                                  : make_float2(0, 0);
        }
        float ks[2][4] = {}, qs[2][4] = {}, small[4][4] = {};
#pragma unroll
        for (int kk = 0; kk < D; kk += 16) {
            uint32_t ah[4], al[4], bh[4], bl[4];
            load_b_turned(bh, room.s[0][0], NARROW, kk, half);
            load_b_turned(bl, room.s[1][0], NARROW, kk, half);
            load_a(ah, k, WIDE, tile * 16, kk);
            load_a(al, k + N * WIDE, WIDE, tile * 16, kk);
            mma3(ks[0], small[0], ah, al, bh, bl);
            mma3(ks[1], small[1], ah, al, bh + 2, bl + 2);
            load_a(ah, room.q[0][0], WIDE, tile * 16, kk);
            load_a(al, room.q[1][0], WIDE, tile * 16, kk);
            mma3(qs[0], small[2], ah, al, bh, bl);
            mma3(qs[1], small[3], ah, al, bh + 2, bl + 2);
        }
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float x = ks[n][2 * i] + small[n][2 * i], y = ks[n][2 * i + 1] + small[n][2 * i + 1];
                put_split(&room.r[0][tile * 16 + group + 8 * i][half + n * 8 + pair], N * NARROW,
                          beta[i] * fmaf(-grown[i], x, v[n][i].x), beta[i] * fmaf(-grown[i], y, v[n][i].y));
            }
        wait_but<2>(); /* T */
        __syncthreads();
        if (c + 1 < chunks) bring_later<D, WIDE>(room.q[0][0], qk(c + 1) + 2 * N * D);
        all_asked();
        float d[2][4] = {}, d_small[2][4] = {};
#pragma unroll
        for (int kk = 0; kk < N / 16; kk++) {
            if (kk > tile) continue;
            uint32_t ah[4], al[4], bh[4], bl[4];
            load_a(ah, room.t[0][0], SQUARE, tile * 16, kk * 16);
            load_a(al, room.t[1][0], SQUARE, tile * 16, kk * 16);
            load_b_turned(bh, room.r[0][0], NARROW, kk * 16, half);
            load_b_turned(bl, room.r[1][0], NARROW, kk * 16, half);
            mma3(d[0], d_small[0], ah, al, bh, bl);
            mma3(d[1], d_small[1], ah, al, bh + 2, bl + 2);
        }
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float x = d[n][2 * i] + d_small[n][2 * i], y = d[n][2 * i + 1] + d_small[n][2 * i + 1];
                uint32_t r = tile * 16 + group + 8 * i, col = half + n * 8 + pair;
                put_split(&room.d[0][r][col], N * NARROW, x, y);
                put_split(&room.e[0][r][col], N * NARROW, left[i] * x, left[i] * y);
            }
        wait_but<2>(); /* P */
        __syncthreads();
        if (c + 1 < chunks) bring_later<N, SQUARE>(room.t[0][0], tp(c + 1));
        all_asked();
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) qs[n][i] *= grown[i >> 1], small[2 + n][i] *= grown[i >> 1];
#pragma unroll
        for (int kk = 0; kk < N / 16; kk++) {
            if (kk > tile) continue;
            uint32_t ah[4], al[4], bh[4], bl[4];
            load_a(ah, room.p[0][0], SQUARE, tile * 16, kk * 16);
            load_a(al, room.p[1][0], SQUARE, tile * 16, kk * 16);
            load_b_turned(bh, room.d[0][0], NARROW, kk * 16, half);
            load_b_turned(bl, room.d[1][0], NARROW, kk * 16, half);
            mma3(qs[0], small[2], ah, al, bh, bl);
            mma3(qs[1], small[3], ah, al, bh + 2, bl + 2);
        }
        float s_small[COLUMNS / 8][4] = {};
#pragma unroll
        for (int n = 0; n < COLUMNS / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) S[n][i] *= last;
#pragma unroll
        for (int kk = 0; kk < N; kk += 16) {
            uint32_t ah[4], al[4], bh[4], bl[4];
            load_a_turned(ah, k, WIDE, warp * 16, kk);
            load_a_turned(al, k + N * WIDE, WIDE, warp * 16, kk);
#pragma unroll
            for (int n = 0; n < COLUMNS / 16; n++) {
                load_b_turned(bh, room.e[0][0], NARROW, kk, n * 16);
                load_b_turned(bl, room.e[1][0], NARROW, kk, n * 16);
                mma3(S[2 * n], s_small[2 * n], ah, al, bh, bl);
                mma3(S[2 * n + 1], s_small[2 * n + 1], ah, al, bh + 2, bl + 2);
            }
        }
#pragma unroll
        for (int n = 0; n < COLUMNS / 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                S[n][2 * i] += s_small[n][2 * i], S[n][2 * i + 1] += s_small[n][2 * i + 1];
                put_split(&room.s[0][warp * 16 + group + 8 * i][n * 8 + pair], D * NARROW, S[n][2 * i], S[n][2 * i + 1]);
            }
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                uint32_t t = c * N + tile * 16 + group + 8 * i;
                if (t < all)
                    *reinterpret_cast<float2 *>(a.y.p + (size_t)t * a.y.stride + (size_t)h * a.dv + j0 + half + n * 8 + pair) =
                        make_float2(qs[n][2 * i] + small[2 + n][2 * i], qs[n][2 * i + 1] + small[2 + n][2 * i + 1]);
            }
        wait_but<1>(); /* the next K and Q */
        __syncthreads();
        if (c + 1 < chunks) bring_later<N, SQUARE>(room.p[0][0], tp(c + 1) + 2 * N * N);
        all_asked();
        if (c + 2 < chunks) bring_later<D, WIDE>(room.k[c & 1][0][0], qk(c + 2));
        all_asked();
    }
#pragma unroll
    for (int n = 0; n < COLUMNS / 8; n++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            *reinterpret_cast<float2 *>(after + (size_t)i * 8 * a.dv + n * 8) = make_float2(S[n][2 * i], S[n][2 * i + 1]);
}
