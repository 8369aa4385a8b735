/* k_split.cu: attention of up to 16 rows at any depth, K and V in 16 bits or Q8_0, heads of 64, 128 or 256. All architectures.
 *
 * Grid (parts of the KV length, groups of up to 8 query heads of one K/V head); parts as in k_split.cuh. A block reads its
 * positions once for all query heads of its group. Its warps work independently: warp w takes tiles w, w + WARPS, ... of 16
 * positions. K and V of a tile are two halves of the warp's own ring in shared memory, filled by cp.async ahead of time, in part
 * before griddepcontrol.wait. Products on tensor cores, transposed, so that a tile's 16 positions are the rows and the 8 heads
 * the columns: S^T = K Q^T, then O^T += V^T P^T. q (divided by a power of two) and the exponentials are two 16-bit parts each,
 * so their rounding does not matter; the softmax state is fp32. Q8_0 becomes fp16 in shared memory. At the end the warps are
 * merged in order, and the part's sums go to memory for split_join (k_attend.cu).
 *
 * With `fused` the block also computes norm and RoPE of its query heads, and the block that has a row's last position computes
 * the new rows of K and V, stores them and uses them from shared memory.
 * SPDX-License-Identifier: MIT */
#include "k_head.cuh"
#include "k_mma.cuh"
#include "attend/k_split_tile.cuh"

enum { HEADS = SPLIT_HEADS };

template <int D> struct form {
    enum {
        WARPS = CK_SPLIT_THREADS(D) / 32,
        TILE_BYTES = TILE * D * 2, /* K or V of a tile in 16 bits */
        STEPS = D / 16,            /* products along a head's width */
        PITCH = D + 4              /* floats per head of a warp's sums */
    };
};
/* The ring of a warp: HALVES times K or V of a tile, of HALF bytes as stored. Q8_0 is converted into another buffer. */
template <int STORAGE, int D> struct ring_form {
    enum {
        IS_Q8 = STORAGE == CK_KV_Q8,
        HALF = IS_Q8 ? TILE * D / 32 * 34 : TILE * D * 2,
        HALVES = IS_Q8 ? (int)CK_SPLIT_Q8_HALVES(D) : CK_SPLIT_RING_BYTES(D) / form<D>::WARPS / HALF,
        BYTES = HALVES * HALF + (IS_Q8 ? TILE * D * 2 : 0)
    };
};
/* Type of the products. */
template <int STORAGE> struct product_storage {
    enum { IS = STORAGE == CK_KV_BF16 ? CK_KV_BF16 : CK_KV_F16 };
};

/* What the blocks of a launch share of their inputs. */
template <int D> struct block_memory {
    uint16_t q[2][HEADS][D + 8]; /* rounded q and the remainder */
    float scale[HEADS];          /* of a head's scores, to base 2 */
    uint16_t fresh[2][D];        /* new rows of K and V */
    float2 ends[form<D>::WARPS][HEADS];
};

/* Copies a new row into a half tile that has arrived. */
template <int D> __device__ __forceinline__ void put_fresh(uint32_t half, uint32_t r, const uint16_t *row)
{
    for (uint32_t c = threadIdx.x & 31; c < D / 8; c += 32)
        sts_128(half + piece_at<D>(r, c), reinterpret_cast<const uint4 *>(row)[c]);
    __syncwarp();
}

/* A head of q in two 16-bit parts, divided by the power of two below its largest number; lane l holds columns l + 32 i. */
template <int STORAGE, int D>
__device__ __forceinline__ void put_q(const head_row<D> &r, float scale, uint16_t *hi, uint16_t *lo, float *to_scale)
{
    uint32_t lane = threadIdx.x & 31;
    float largest = 0;
#pragma unroll
    for (int i = 0; i < D / 32; i++) largest = fmaxf(largest, fabsf(r.x[i]));
    uint32_t exponent = min(max(__float_as_uint(warp_max(largest)) >> 23, 1u), 253u);
    float down = __uint_as_float((254 - exponent) << 23), up = __uint_as_float(exponent << 23);
#pragma unroll
    for (int i = 0; i < D / 32; i++) {
        float x = r.x[i] * down;
        uint16_t h = to_16bit<STORAGE>(x);
        float rounded = STORAGE == CK_KV_F16 ? __half2float(__ushort_as_half(h)) : __uint_as_float((uint32_t)h << 16);
        hi[lane + 32 * i] = h;
        lo[lane + 32 * i] = to_16bit<STORAGE>(x - rounded);
    }
    if (lane == 0) *to_scale = scale * up;
}

/* What a block computes, and its inputs. */
struct split_work {
    split_part p;
    uint32_t kv, behind, head0, heads; /* K/V head; heads of the group before this block's; first query head; number */
    unsigned char *k, *v;              /* position 0 */
    size_t pitch;                      /* bytes between positions */
    bool last;                         /* the block computes the new rows of K and V */
};
template <int STORAGE, int D> __device__ __forceinline__ split_work split_work_of(const ck_split &a)
{
    const ck_attend &at = a.attend;
    split_work w;
    uint32_t share = at.heads / at.kv_heads, groups = (share + HEADS - 1) / HEADS;
    w.kv = blockIdx.y / groups;
    w.behind = blockIdx.y % groups * HEADS;
    w.heads = min(share - w.behind, (uint32_t)HEADS);
    w.head0 = w.kv * share + w.behind;
    w.p = split_part_of(a, blockIdx.x);
    w.last = a.fused && w.p.n && w.p.end > w.p.pos / TILE;
    void *const *slots = at.pass.slots + (at.rows == 1 ? 0 : at.pass.span[w.p.row] * at.pass.slots_n);
    size_t bytes = kv_head_bytes(STORAGE, D);
    w.pitch = at.kv_heads * bytes;
    w.k = static_cast<unsigned char *>(slots[at.slot_k]) + w.kv * bytes;
    w.v = static_cast<unsigned char *>(slots[at.slot_v]) + w.kv * bytes;
    return w;
}

/* Warps 0, 1, ...: query heads, then the new K and V row where the block has the row's last position. */
template <int STORAGE, int D>
__device__ __forceinline__ void make_rows(const ck_split &a, const split_work &w, const float (&s)[D / 64],
                                          const float (&c)[D / 64], block_memory<D> &m)
{
    const ck_prepare &b = a.prepare;
    const ck_attend &at = a.attend;
    uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, heads = w.heads;
    float scale = at.softcap > 0 ? at.scale : at.scale * LOG2E;
    const size_t t = w.p.row;
    bool last = w.last;
    for (uint32_t task = warp; task < HEADS + (last ? 2 : 0); task += form<D>::WARPS) {
        /* The rows of K and V take the place of heads that do not exist where possible: at index heads and heads + 1. */
        bool is_q = task < heads, is_k = last && task == heads, is_v = last && task == heads + 1;
        head_row<D> r;
        if (!is_q && !is_k && !is_v) continue;
        const float *from = is_q   ? (a.fused ? b.q.p + t * b.q.stride : at.q.p + t * at.q.stride) + (w.head0 + task) * D
                            : is_k ? b.k.p + t * b.k.stride + w.kv * D
                                   : b.v.p + t * b.v.stride + w.kv * D;
#pragma unroll
        for (int i = 0; i < D / 32; i++) r.x[i] = from[lane + 32 * i];
        if (a.fused && !is_v) {
            const ck_norm &n = is_k ? b.k_norm : b.q_norm;
            if (n.present) norm_head<D>(n, r);
            rope_head<D>(r, b.pairs, s, c);
        }
        if (is_q) {
            put_q<product_storage<STORAGE>::IS, D>(r, scale, m.q[0][task], m.q[1][task], &m.scale[task]);
            continue;
        }
        unsigned char *to = (is_k ? w.k : w.v) + w.p.pos * w.pitch;
        bool stores = !w.behind;
#pragma unroll
        for (int i = 0; i < D / 32; i++) {
            uint16_t x;
            if (STORAGE == CK_KV_Q8)
                x = quantise(r.x[i], to + i * 34, stores);
            else
                x = to_16bit<STORAGE>(r.x[i]);
            m.fresh[is_v][lane + 32 * i] = x;
            if (STORAGE != CK_KV_Q8 && stores) reinterpret_cast<uint16_t *>(to)[lane + 32 * i] = x;
        }
    }
    /* Columns of the products that no head uses. */
    for (uint32_t i = threadIdx.x; i < (HEADS - heads) * (D / 2); i += CK_SPLIT_THREADS(D)) {
        uint32_t h = heads + i / (D / 2), e = i % (D / 2);
        reinterpret_cast<uint32_t *>(m.q[0][h])[e] = reinterpret_cast<uint32_t *>(m.q[1][h])[e] = 0;
    }
    if (threadIdx.x >= heads && threadIdx.x < HEADS) m.scale[threadIdx.x] = 0;
}

/* Right-hand operands of the score products: both parts of q. */
template <int D> struct q_frags {
    uint32_t hi[form<D>::STEPS][2], lo[form<D>::STEPS][2];
};
template <int D> __device__ __forceinline__ void load_q(const block_memory<D> &m, q_frags<D> &q)
{
    uint32_t lane = threadIdx.x & 31;
#pragma unroll
    for (int i = 0; i < D / 32; i++) {
        uint32_t r[4];
        ldmatrix_x4(r, &m.q[0][lane & 7][32 * i + 8 * (lane >> 3)]);
        q.hi[2 * i][0] = r[0], q.hi[2 * i][1] = r[1], q.hi[2 * i + 1][0] = r[2], q.hi[2 * i + 1][1] = r[3];
        ldmatrix_x4(r, &m.q[1][lane & 7][32 * i + 8 * (lane >> 3)]);
        q.lo[2 * i][0] = r[0], q.lo[2 * i][1] = r[1], q.lo[2 * i + 1][0] = r[2], q.lo[2 * i + 1][1] = r[3];
    }
}

__device__ __forceinline__ void ldmatrix_at(uint32_t (&r)[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}
__device__ __forceinline__ void ldmatrix_trans_at(uint32_t (&r)[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}
/* The 8 x 8 matrix whose row lane / 4 has two numbers in each lane, transposed. */
__device__ __forceinline__ uint32_t transpose_8x8(uint32_t x)
{
    uint32_t y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

/* State of a warp. A lane has two heads, 2 (lane % 4) and the next one, of rows lane / 4 and lane / 4 + 8 of every product. */
template <int D> struct warp_state {
    float max[2], sum[2], acc[form<D>::STEPS][4];
};

/* Scores of a tile: s[0], s[1] of position lane / 4, s[2], s[3] of position lane / 4 + 8. */
template <int STORAGE, int D>
__device__ __forceinline__ void tile_scores(uint32_t half, const q_frags<D> &q, float (&s)[4])
{
    enum { BF16 = STORAGE == CK_KV_BF16 };
    uint32_t lane = threadIdx.x & 31, r = lane & 15;
    float c[4][4] = {};
#pragma unroll
    for (int i = 0; i < form<D>::STEPS; i++) {
        uint32_t k[4];
        ldmatrix_at(k, half + piece_at<D>(r, 2 * i + (lane >> 4)));
        mma<BF16>(c[i % 2], k, q.hi[i][0], q.hi[i][1]);
        mma<BF16>(c[2 + i % 2], k, q.lo[i][0], q.lo[i][1]);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) s[i] = (c[0][i] + c[1][i]) + (c[2][i] + c[3][i]);
}

/* Scaled scores to exponentials, with the state's maxima; s of positions outside [from, pos] counts as -inf. */
template <int D>
__device__ __forceinline__ void tile_softmax(const ck_attend &a, const float (&scale)[2], uint32_t first, uint32_t from,
                                             uint32_t pos, float (&s)[4], warp_state<D> &w)
{
    uint32_t row = first + ((threadIdx.x & 31) >> 2);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        s[i] *= scale[i & 1];
        if (a.softcap > 0) s[i] = a.softcap * tanhf(s[i] / a.softcap) * LOG2E;
        uint32_t p = row + (i & 2) * 4;
        if (p < from || p > pos) s[i] = -CUDART_INF_F;
    }
    float largest[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        largest[h] = fmaxf(s[h], s[2 + h]);
#pragma unroll
        for (int m = 4; m < 32; m *= 2) largest[h] = fmaxf(largest[h], __shfl_xor_sync(0xffffffffu, largest[h], m));
        largest[h] = fmaxf(largest[h], w.max[h]);
    }
    if (__any_sync(0xffffffffu, largest[0] > w.max[0] || largest[1] > w.max[1])) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            /* equal maxima, also -inf, change nothing */
            float e = largest[h] > w.max[h] ? exp2_fast(w.max[h] - largest[h]) : 1.0f;
            w.max[h] = largest[h];
            w.sum[h] *= e;
#pragma unroll
            for (int i = 0; i < form<D>::STEPS; i++) w.acc[i][h] *= e, w.acc[i][2 + h] *= e;
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) s[i] = exp2_fast(s[i] - w.max[i & 1]);
    w.sum[0] += s[0] + s[2];
    w.sum[1] += s[1] + s[3];
}

/* acc += V^T P^T, P in two 16-bit parts. */
template <int STORAGE, int D>
__device__ __forceinline__ void tile_values(uint32_t half, const float (&p)[4], warp_state<D> &w)
{
    enum { BF16 = STORAGE == CK_KV_BF16 };
    uint32_t lane = threadIdx.x & 31, r = (lane & 7) + (lane >> 4) * 8, hi[2], lo[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float x = p[2 * i], y = p[2 * i + 1];
        uint32_t both = pack<BF16>(x, y);
        float2 rounded;
        if (BF16)
            rounded = make_float2(__uint_as_float(both << 16), __uint_as_float(both & 0xffff0000u));
        else
            rounded = __half22float2(*reinterpret_cast<__half2 *>(&both));
        hi[i] = transpose_8x8(both);
        lo[i] = transpose_8x8(pack<BF16>(x - rounded.x, y - rounded.y));
    }
#pragma unroll
    for (int i = 0; i < form<D>::STEPS; i++) {
        uint32_t v[4];
        ldmatrix_trans_at(v, half + piece_at<D>(r, 2 * i + ((lane >> 3) & 1)));
        mma<BF16>(w.acc[i], v, hi[0], hi[1]);
        mma<BF16>(w.acc[i], v, lo[0], lo[1]);
    }
}

/* A warp's ring: half tiles of K and V in turn. */
struct ring {
    const unsigned char *next[2]; /* K and V of the next tile to load */
    size_t pitch;
    uint32_t memory, from, stop, tile, end; /* loaded positions: [from, stop); tile: next one to load; end: of the part */
    uint32_t is_v, slot;
};
/* Starts the copy of the next half, or of nothing after the last: each is one group of cp.async. */
template <int STORAGE, int D> __device__ __forceinline__ void ring_fill(ring &r)
{
    typedef ring_form<STORAGE, D> f;
    uint32_t to = r.memory + r.slot * f::HALF, skip = r.from - r.tile * TILE, n = r.stop - r.from;
    if (r.tile < r.end) {
        if (f::IS_Q8)
            load_half_q8<D>(to, r.next[r.is_v], r.pitch, skip, n);
        else
            load_half<D>(to, r.next[r.is_v], r.pitch, skip, n);
    }
    cp_async_commit();
    if (r.is_v) {
        r.tile += form<D>::WARPS;
        r.next[0] += form<D>::WARPS * TILE * r.pitch;
        r.next[1] += form<D>::WARPS * TILE * r.pitch;
    }
    r.is_v ^= 1;
    r.slot = r.slot + 1 == f::HALVES ? 0 : r.slot + 1;
}

/* Waits for the half in `slot`, and returns the address of its numbers in 16 bits; advances slot. */
template <int STORAGE, int D> __device__ __forceinline__ uint32_t ring_take(const ring &r, uint32_t &slot)
{
    typedef ring_form<STORAGE, D> f;
    cp_async_wait<f::HALVES - 1>();
    __syncwarp();
    uint32_t half = r.memory + slot * f::HALF;
    slot = slot + 1 == f::HALVES ? 0 : slot + 1;
    if (!f::IS_Q8) return half;
    uint32_t converted = r.memory + f::HALVES * f::HALF;
    convert_q8<D>(half, converted);
    return converted;
}

/* Merges the warps' results in their order and stores those of the part. sums: [WARPS][HEADS][PITCH], in place of the ring. */
template <int D>
__device__ __forceinline__ void store_part(const ck_split &a, uint32_t head0, uint32_t heads, warp_state<D> &w, float *sums,
                                           block_memory<D> &m)
{
    enum { WARPS = form<D>::WARPS, PITCH = form<D>::PITCH };
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
    for (int h = 0; h < 2; h++) {
#pragma unroll
        for (int x = 4; x < 32; x *= 2) w.sum[h] += __shfl_xor_sync(0xffffffffu, w.sum[h], x);
        if (lane < 4) m.ends[warp][2 * lane + h] = make_float2(w.max[h], w.sum[h]);
    }
    float *own = sums + (warp * HEADS + 2 * (lane & 3)) * PITCH + (lane >> 2);
#pragma unroll
    for (int i = 0; i < form<D>::STEPS; i++) {
        own[16 * i] = w.acc[i][0], own[16 * i + PITCH] = w.acc[i][1];
        own[16 * i + 8] = w.acc[i][2], own[16 * i + 8 + PITCH] = w.acc[i][3];
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < heads * (D / 4); i += CK_SPLIT_THREADS(D)) {
        uint32_t h = i / (D / 4), c = i % (D / 4) * 4;
        float largest = -CUDART_INF_F, sum = 0;
        float4 y = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int k = 0; k < WARPS; k++) largest = fmaxf(largest, m.ends[k][h].x);
#pragma unroll
        for (int k = 0; k < WARPS; k++) {
            float2 end = m.ends[k][h];
            float e = end.x == largest ? 1.0f : exp2_fast(end.x - largest);
            float4 x = *reinterpret_cast<const float4 *>(sums + (k * HEADS + h) * PITCH + c);
            sum = fmaf(end.y, e, sum);
            y.x = fmaf(x.x, e, y.x), y.y = fmaf(x.y, e, y.y), y.z = fmaf(x.z, e, y.z), y.w = fmaf(x.w, e, y.w);
        }
        *reinterpret_cast<float4 *>(split_sums(a, blockIdx.x, head0 + h) + c) = y;
        if (c == 0) *split_ends(a, blockIdx.x, head0 + h) = make_float2(largest, sum);
    }
}

/* Starts a warp's first copies. Of a row's positions those before its own are read, and its own too if it is stored already. */
template <int STORAGE, int D>
__device__ __forceinline__ ring ring_start(const ck_split &a, const split_work &w, const void *memory)
{
    typedef ring_form<STORAGE, D> f;
    uint32_t warp = threadIdx.x >> 5, first = w.p.tile + warp;
    size_t at = (size_t)first * TILE * w.pitch;
    ring r = {{w.k + at, w.v + at}, w.pitch, smem_addr(memory) + warp * f::BYTES, w.p.from, w.p.pos + !a.fused, first, w.p.end,
              0, 0};
#pragma unroll
    for (int i = 0; i < f::HALVES; i++) ring_fill<STORAGE, D>(r);
    return r;
}

/* A warp's tiles. */
template <int STORAGE, int D>
__device__ __forceinline__ void attend_tiles(const ck_split &a, const split_work &k, ring &r, const block_memory<D> &m,
                                             warp_state<D> &w)
{
    enum { PRODUCT = product_storage<STORAGE>::IS };
    uint32_t lane = threadIdx.x & 31, slot = 0;
    q_frags<D> q;
    load_q<D>(m, q);
    float scale[2] = {m.scale[2 * (lane & 3)], m.scale[2 * (lane & 3) + 1]};
#pragma unroll
    for (int i = 0; i < form<D>::STEPS; i++) w.acc[i][0] = w.acc[i][1] = w.acc[i][2] = w.acc[i][3] = 0;
    w.max[0] = w.max[1] = -CUDART_INF_F;
    w.sum[0] = w.sum[1] = 0;
    for (uint32_t tile = k.p.tile + (threadIdx.x >> 5); tile < k.p.end; tile += form<D>::WARPS) {
        bool has_new = k.last && tile == k.p.pos / TILE;
        float x[4];
        uint32_t half = ring_take<STORAGE, D>(r, slot);
        if (has_new) put_fresh<D>(half, k.p.pos % TILE, m.fresh[0]);
        tile_scores<PRODUCT, D>(half, q, x);
        __syncwarp();
        ring_fill<STORAGE, D>(r);
        tile_softmax<D>(a.attend, scale, tile * TILE, k.p.from, k.p.pos, x, w);
        half = ring_take<STORAGE, D>(r, slot);
        if (has_new) put_fresh<D>(half, k.p.pos % TILE, m.fresh[1]);
        tile_values<PRODUCT, D>(half, x, w);
        __syncwarp();
        ring_fill<STORAGE, D>(r);
    }
    cp_async_wait<0>();
}

/* Kernel body. Dynamic shared memory: the ring, later the warps' sums. */
template <int STORAGE, int D> __device__ __forceinline__ void split(const ck_split &a)
{
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ __align__(16) block_memory<D> m;
    launch_dependents();
    if (!a.fused) wait_for_inputs();
    split_work k = split_work_of<STORAGE, D>(a);
    if (!k.p.n) {
        wait_for_inputs();
        return;
    }
    ring r = ring_start<STORAGE, D>(a, k, memory);
    float s[D / 64], c[D / 64];
#pragma unroll
    for (int i = 0; i < D / 64; i++) {
        s[i] = c[i] = 0;
        if (!a.fused || 32 * i >= a.prepare.pairs) continue;
        rope_sincos(k.p.pos, a.prepare.inverse[(threadIdx.x & 31) + 32 * i], s[i], c[i]);
        s[i] *= a.prepare.mscale;
        c[i] *= a.prepare.mscale;
    }
    wait_for_inputs();
    make_rows<STORAGE, D>(a, k, s, c, m);
    __syncthreads();
    warp_state<D> w;
    attend_tiles<STORAGE, D>(a, k, r, m, w);
    __syncthreads();
    store_part<D>(a, k.head0, k.heads, w, reinterpret_cast<float *>(memory), m);
}

/* Q8_0 needs more registers than two blocks per multiprocessor leave. */
#define SPLIT(STORAGE, NAME, D)                                                                          \
    extern "C" __global__ void __launch_bounds__(CK_SPLIT_THREADS(D), (STORAGE) == CK_KV_Q8 ? 1 : 2) \
        split_##NAME##_##D(const __grid_constant__ ck_split a)                                           \
    {                                                                                                    \
        split<STORAGE, D>(a);                                                                            \
    }
SPLIT(CK_KV_F16, f16, 64)
SPLIT(CK_KV_F16, f16, 128)
SPLIT(CK_KV_F16, f16, 256)
SPLIT(CK_KV_BF16, bf16, 64)
SPLIT(CK_KV_BF16, bf16, 128)
SPLIT(CK_KV_BF16, bf16, 256)
SPLIT(CK_KV_Q8, q8, 64)
SPLIT(CK_KV_Q8, q8, 128)
SPLIT(CK_KV_Q8, q8, 256)
