/* k_join.cu: all-reduce and all-gather over several GPUs through memory that they write in each
 * other over NVLink or PCIe. Each block exchanges only with the same block of the other ranks, in
 * its own slots, so no GPU waits as a whole. Slots alternate between turns: a rank that sends for
 * turn n + 2 has read turn n + 1, so the others are done with n. Turn counters are kept per block on
 * the GPU, so captured launches continue where the last one ended. A rank that does not answer
 * within TIMEOUT_NS is given up: a flag on the GPU, which later launches test, and a copy in host
 * memory.
 *
 * join_few: every number is stored with its turn in one 8-byte word, so no flag follows the data:
 * one link latency, about 2 us for the 16 KB of a row of 4,096. join_many: 32 KB per block and turn,
 * then a flag; half the bytes. Sums are taken in rank order: the same bits on all GPUs. All
 * architectures.
 * SPDX-License-Identifier: MIT */
#include "k_common.cuh"

#define TIMEOUT_NS 10000000000ull /* ns */

/* GPU-wide clock in nanoseconds. */
__device__ __forceinline__ unsigned long long now_ns()
{
    unsigned long long t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

/* Rare path of a spin loop: tests and records the timeout. */
__device__ __noinline__ bool timed_out(const ck_join &a, unsigned long long &since)
{
    unsigned long long now = now_ns();
    if (!since) since = now;
    if (now - since < TIMEOUT_NS && !*(volatile uint32_t *)a.lost) return false;
    *(volatile uint32_t *)a.lost = 1;
    *(volatile uint32_t *)a.lost_host = 1;
    return true;
}

/* Stores two numbers, each with the turn, at system scope. */
__device__ __forceinline__ void send(void *to, float x, float y, uint32_t turn)
{
    unsigned long long u = (unsigned long long)turn << 32 | __float_as_uint(x),
                       v = (unsigned long long)turn << 32 | __float_as_uint(y);
    asm volatile("st.relaxed.sys.global.v2.b64 [%0], {%1, %2};" ::"l"(to), "l"(u), "l"(v) : "memory");
}

/* Polls until both numbers of this turn have arrived. */
__device__ __forceinline__ float2 receive(const ck_join &a, const void *from, uint32_t turn)
{
    unsigned long long u, v, since = 0;
    for (uint32_t spins = 1;; spins++) {
        asm volatile("ld.relaxed.sys.global.v2.b64 {%0, %1}, [%2];" : "=l"(u), "=l"(v) : "l"(from) : "memory");
        if ((uint32_t)(u >> 32) == turn && (uint32_t)(v >> 32) == turn) break;
        if (spins % 4096 == 0 && timed_out(a, since)) break;
    }
    return make_float2(__uint_as_float((uint32_t)u), __uint_as_float((uint32_t)v));
}

/* Small rows: a thread per pair of numbers; the last pair of a row may have one number. */
extern "C" __global__ void join_few(const __grid_constant__ ck_join a)
{
    launch_dependents();
    wait_for_inputs();
    uint32_t each = (a.x.width + 1) / 2, all = each * a.rows, turn = a.turns[blockIdx.x];
    size_t slot = (size_t)blockIdx.x * CK_JOIN_THREADS + threadIdx.x, side = (size_t)CK_JOIN_BLOCKS * CK_JOIN_THREADS;
    for (uint32_t i = blockIdx.x * CK_JOIN_THREADS; i < all; i += gridDim.x * CK_JOIN_THREADS) {
        uint32_t pair = i + threadIdx.x, t = pair / each, c = pair % each * 2, at = ++turn & 1;
        bool mine = pair < all, both = c + 1 < a.x.width;
        const float *x = a.x.p + (size_t)t * a.x.stride + c;
        float *y = a.y.p + (size_t)t * a.y.stride + c;
        float2 own = mine ? make_float2(x[0], both ? x[1] : 0.0f) : make_float2(0.0f, 0.0f), sum = own;
        for (uint32_t r = 0; r < a.ranks && mine; r++)
            if (r != a.rank) send((ulonglong2 *)a.peer_slots[r] + ((size_t)at * a.ranks + a.rank) * side + slot, own.x, own.y, turn);
        for (uint32_t r = 0; r < a.ranks && mine; r++) {
            float2 v = r == a.rank
                           ? own
                           : receive(a, (const ulonglong2 *)a.peer_slots[a.rank] + ((size_t)at * a.ranks + r) * side + slot, turn);
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
    __syncthreads(); /* all threads have read the counter */
    if (threadIdx.x == 0) a.turns[blockIdx.x] = turn;
}

/* Address of float4 number `four` of a view with `each` per row. */
__device__ __forceinline__ float4 *row_of(const ck_view &v, uint64_t four, uint32_t each)
{
    return (float4 *)(v.p + (size_t)(four / each) * v.stride) + four % each;
}

/* Announces this rank's piece of turn `turn` to the same block of all other ranks. */
__device__ void flag_all(const ck_join &a, size_t at, uint32_t turn)
{
    for (uint32_t r = 0; r < a.ranks; r++) {
        if (r == a.rank) continue;
        uint32_t *flag = a.flags[r] + (at * a.ranks + a.rank) * CK_JOIN_BLOCKS + blockIdx.x;
        asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(turn) : "memory");
    }
}

/* Waits until all other ranks have set their flags of this turn. */
__device__ void wait_flags(const ck_join &a, size_t at, uint32_t turn)
{
    for (uint32_t r = 0; r < a.ranks; r++) {
        const uint32_t *flag = a.flags[a.rank] + (at * a.ranks + r) * CK_JOIN_BLOCKS + blockIdx.x;
        unsigned long long since = 0;
        for (uint32_t spins = 1, is; r != a.rank; spins++) {
            asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(is) : "l"(flag) : "memory");
            if (is == turn || (spins % 4096 == 0 && timed_out(a, since))) break;
        }
    }
}

/* Sends one piece of 32 KB to the other ranks. */
__device__ __forceinline__ void send_piece(const ck_join &a, uint64_t i, uint32_t n, uint32_t each, size_t slot)
{
#pragma unroll 4
    for (uint32_t k = threadIdx.x; k < n; k += CK_JOIN_WIDE_THREADS) {
        float4 own = *row_of(a.x, i + k, each);
        for (uint32_t r = 0; r < a.ranks; r++)
            if (r != a.rank) ((float4 *)a.wide[r])[slot + k] = own;
    }
}

/* Sums or gathers the pieces of all ranks. slot: rank 0's slot; the next rank's is `side` float4
 * further. */
__device__ __forceinline__ void reduce_piece(const ck_join &a, uint64_t i, uint32_t n, uint32_t each, size_t slot, size_t side)
{
#pragma unroll 4
    for (uint32_t k = threadIdx.x; k < n; k += CK_JOIN_WIDE_THREADS) {
        float4 own = *row_of(a.x, i + k, each), sum = own, *y = row_of(a.y, i + k, each);
        for (uint32_t r = 0; r < a.ranks; r++) {
            float4 v = r == a.rank ? own : __ldcv((const float4 *)a.wide[a.rank] + slot + r * side + k);
            if (!a.sum)
                y[(size_t)r * each] = v;
            else
                sum = r ? make_float4(sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w) : v;
        }
        if (a.sum) *y = sum;
    }
}

/* Rows of whole float4. The next piece is sent while the current one is awaited, so four slots
 * alternate: a rank that sends piece n + 4 has seen the flags of n + 2 at least, after which no rank
 * reads n. */
extern "C" __global__ void __launch_bounds__(CK_JOIN_WIDE_THREADS) join_many(const __grid_constant__ ck_join a)
{
    launch_dependents();
    wait_for_inputs();
    uint32_t each = a.x.width / 4, turn = a.turns[CK_JOIN_BLOCKS + blockIdx.x] + 1;
    uint64_t all = (uint64_t)each * a.rows, step = (uint64_t)gridDim.x * CK_JOIN_FOURS, i = (uint64_t)blockIdx.x * CK_JOIN_FOURS;
    size_t side = (size_t)CK_JOIN_BLOCKS * CK_JOIN_FOURS, slot = (size_t)blockIdx.x * CK_JOIN_FOURS;
    uint32_t before = 0; /* float4s of the piece that is awaited */
    for (; i < all || before; i += step, turn++) {
        uint32_t n = i >= all ? 0 : all - i < CK_JOIN_FOURS ? (uint32_t)(all - i) : CK_JOIN_FOURS, at = turn % CK_JOIN_TURNS;
        send_piece(a, i, n, each, ((size_t)at * a.ranks + a.rank) * side + slot);
        __syncthreads(); /* all threads have sent it, and have read the piece before the last */
        if (threadIdx.x == 0 && n) flag_all(a, at, turn);
        if (before) {
            uint32_t last = (turn - 1) % CK_JOIN_TURNS;
            if (threadIdx.x == 0) wait_flags(a, last, turn - 1);
            __syncthreads();
            reduce_piece(a, i - step, before, each, (size_t)last * a.ranks * side + slot, side);
        }
        before = n;
    }
    if (threadIdx.x == 0) a.turns[CK_JOIN_BLOCKS + blockIdx.x] = turn - 2;
}
