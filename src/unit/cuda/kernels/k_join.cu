/* k_join.cu: what several GPUs have each, summed or laid side by side on all of them, through memory that they write in each
 * other. Every block has a place of its own in each rank's memory and meets the same block of the other ranks there, so no GPU
 * waits as a whole. Two places take turns: who sends for turn n + 2 has read turn n + 1, so the others are done with n. How many
 * turns there were is counted on the GPU, block by block, so a captured launch goes on where the last one ended. A rank that does
 * not come within LONGEST is given up: a flag on the GPU, which later launches see, and one in the host's memory.
 *
 * join_few: a number travels with its turn in one word of 8 bytes, so there is no flag to wait for behind the data: one way over
 * the link, 2 us in all for the 16 KB of a row of 4,096. join_many: 32 KB a block and turn, then a flag; half the bytes. Sums are
 * made in the order of the ranks: the same bits everywhere. SPDX-License-Identifier: MIT */
#include "k_common.cuh"

#define LONGEST 10000000000ull /* ns */

__device__ __forceinline__ unsigned long long now_ns()
{
    unsigned long long t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

/* Seldom: is it over? */
__device__ __noinline__ bool given_up(const ck_join &a, unsigned long long &since)
{
    unsigned long long now = now_ns();
    if (!since) since = now;
    if (now - since < LONGEST && !*(volatile uint32_t *)a.lost) return false;
    *(volatile uint32_t *)a.lost = 1;
    *(volatile uint32_t *)a.told = 1;
    return true;
}

__device__ __forceinline__ void send(void *to, float x, float y, uint32_t turn)
{
    unsigned long long u = (unsigned long long)turn << 32 | __float_as_uint(x),
                       v = (unsigned long long)turn << 32 | __float_as_uint(y);
    asm volatile("st.relaxed.sys.global.v2.b64 [%0], {%1, %2};" ::"l"(to), "l"(u), "l"(v) : "memory");
}

__device__ __forceinline__ float2 receive(const ck_join &a, const void *from, uint32_t turn)
{
    unsigned long long u, v, since = 0;
    for (uint32_t spins = 1;; spins++) {
        asm volatile("ld.relaxed.sys.global.v2.b64 {%0, %1}, [%2];" : "=l"(u), "=l"(v) : "l"(from) : "memory");
        if ((uint32_t)(u >> 32) == turn && (uint32_t)(v >> 32) == turn) break;
        if (spins % 4096 == 0 && given_up(a, since)) break;
    }
    return make_float2(__uint_as_float((uint32_t)u), __uint_as_float((uint32_t)v));
}

/* Pair i of the row's numbers; the last one may be half there. */
extern "C" __global__ void join_few(const __grid_constant__ ck_join a)
{
    dependents_may_start();
    wait_for_inputs();
    uint32_t each = (a.x.width + 1) / 2, all = each * a.rows, turn = a.turns[blockIdx.x];
    size_t place = (size_t)blockIdx.x * CK_JOIN_THREADS + threadIdx.x, side = (size_t)CK_JOIN_BLOCKS * CK_JOIN_THREADS;
    for (uint32_t i = blockIdx.x * CK_JOIN_THREADS; i < all; i += gridDim.x * CK_JOIN_THREADS) {
        uint32_t pair = i + threadIdx.x, t = pair / each, c = pair % each * 2, at = ++turn & 1;
        bool mine = pair < all, both = c + 1 < a.x.width;
        const float *x = a.x.p + (size_t)t * a.x.stride + c;
        float *y = a.y.p + (size_t)t * a.y.stride + c;
        float2 own = mine ? make_float2(x[0], both ? x[1] : 0.0f) : make_float2(0.0f, 0.0f), sum = own;
        for (uint32_t r = 0; r < a.ranks && mine; r++)
            if (r != a.rank) send((ulonglong2 *)a.rooms[r] + ((size_t)at * a.ranks + a.rank) * side + place, own.x, own.y, turn);
        for (uint32_t r = 0; r < a.ranks && mine; r++) {
            float2 v = r == a.rank
                           ? own
                           : receive(a, (const ulonglong2 *)a.rooms[a.rank] + ((size_t)at * a.ranks + r) * side + place, turn);
            if (a.sum) {
                sum = r ? make_float2(sum.x + v.x, sum.y + v.y) : v;
                continue;
            }
            y[(size_t)r * a.x.width] = v.x;
            if (both) y[(size_t)r * a.x.width + 1] = v.y;
        }
        if (!a.sum || !mine) continue;
        y[0] = sum.x;
        if (both) y[1] = sum.y;
    }
    __syncthreads(); /* all have read it */
    if (threadIdx.x == 0) a.turns[blockIdx.x] = turn;
}

__device__ __forceinline__ float4 *row_of(const ck_view &v, uint64_t four, uint32_t each)
{
    return (float4 *)(v.p + (size_t)(four / each) * v.stride) + four % each;
}

__device__ void flag_all(const ck_join &a, size_t at, uint32_t turn)
{
    for (uint32_t r = 0; r < a.ranks; r++) {
        if (r == a.rank) continue;
        uint32_t *flag = a.flags[r] + (at * a.ranks + a.rank) * CK_JOIN_BLOCKS + blockIdx.x;
        asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(turn) : "memory");
    }
}

__device__ void wait_flags(const ck_join &a, size_t at, uint32_t turn)
{
    for (uint32_t r = 0; r < a.ranks; r++) {
        const uint32_t *flag = a.flags[a.rank] + (at * a.ranks + r) * CK_JOIN_BLOCKS + blockIdx.x;
        unsigned long long since = 0;
        for (uint32_t spins = 1, is; r != a.rank; spins++) {
            asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(is) : "l"(flag) : "memory");
            if (is == turn || (spins % 4096 == 0 && given_up(a, since))) break;
        }
    }
}

/* One piece of 32 KB to the others. */
__device__ __forceinline__ void send_piece(const ck_join &a, uint64_t i, uint32_t n, uint32_t each, size_t room)
{
#pragma unroll 4
    for (uint32_t k = threadIdx.x; k < n; k += CK_JOIN_WIDE_THREADS) {
        float4 own = *row_of(a.x, i + k, each);
        for (uint32_t r = 0; r < a.ranks; r++)
            if (r != a.rank) ((float4 *)a.wide[r])[room + k] = own;
    }
}

/* All ranks' piece: `room` is where rank 0's lies, the next one's `side` behind it. */
__device__ __forceinline__ void take_piece(const ck_join &a, uint64_t i, uint32_t n, uint32_t each, size_t room, size_t side)
{
#pragma unroll 4
    for (uint32_t k = threadIdx.x; k < n; k += CK_JOIN_WIDE_THREADS) {
        float4 own = *row_of(a.x, i + k, each), sum = own, *y = row_of(a.y, i + k, each);
        for (uint32_t r = 0; r < a.ranks; r++) {
            float4 v = r == a.rank ? own : __ldcv((const float4 *)a.wide[a.rank] + room + r * side + k);
            if (!a.sum)
                y[(size_t)r * each] = v;
            else
                sum = r ? make_float4(sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w) : v;
        }
        if (a.sum) *y = sum;
    }
}

/* Rows of whole float4s. The next piece is on its way while this one is waited for; so four places take turns: who sends piece n
 * + 4 has seen the flag of n + 2 at least, behind which nobody reads n any more. */
extern "C" __global__ void __launch_bounds__(CK_JOIN_WIDE_THREADS) join_many(const __grid_constant__ ck_join a)
{
    dependents_may_start();
    wait_for_inputs();
    uint32_t each = a.x.width / 4, turn = a.turns[CK_JOIN_BLOCKS + blockIdx.x] + 1;
    uint64_t all = (uint64_t)each * a.rows, step = (uint64_t)gridDim.x * CK_JOIN_FOURS, i = (uint64_t)blockIdx.x * CK_JOIN_FOURS;
    size_t side = (size_t)CK_JOIN_BLOCKS * CK_JOIN_FOURS, place = (size_t)blockIdx.x * CK_JOIN_FOURS;
    uint32_t before = 0; /* float4s of the piece that is waited for */
    for (; i < all || before; i += step, turn++) {
        uint32_t n = i >= all ? 0 : all - i < CK_JOIN_FOURS ? (uint32_t)(all - i) : CK_JOIN_FOURS, at = turn % CK_JOIN_TURNS;
        send_piece(a, i, n, each, ((size_t)at * a.ranks + a.rank) * side + place);
        __syncthreads(); /* all have sent it, and taken the piece before the last one */
        if (threadIdx.x == 0 && n) flag_all(a, at, turn);
        if (before) {
            uint32_t last = (turn - 1) % CK_JOIN_TURNS;
            if (threadIdx.x == 0) wait_flags(a, last, turn - 1);
            __syncthreads();
            take_piece(a, i - step, before, each, (size_t)last * a.ranks * side + place, side);
        }
        before = n;
    }
    if (threadIdx.x == 0) a.turns[CK_JOIN_BLOCKS + blockIdx.x] = turn - 2;
}
