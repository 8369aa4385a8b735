/* k_heads.cu: norm, q, k, v (and gate) of one row of x, heads normalised and rotated, K and V stored, attention over few
 * positions, gate, out-projection and residual, in one launch (k_cluster_ops.cuh). A rank is a query head of D columns, or half a one of
 * 256: all of its q and k, its own columns of v, gate and output. Ranks that share a K/V head each make its new row, and one of
 * them stores it. A block has an eighth of these rows, each eighth position and an eighth of the rows of the output. K and V that
 * are there already are loaded before the inputs are waited for.
 *
 * Shared memory: the ring; a block's own columns of x; x as it comes, then sums of rows, then what the warps found at their
 * positions; K and V; x as parts, then what the blocks found and the output as parts; scales of the output's weight (Q8_0); q, k,
 * v, gate. SPDX-License-Identifier: MIT */
#include "k_head.cuh"
#include "k_weight_prefetch.cuh"

#if __CUDA_ARCH__ >= 900

enum { Q, K, V, GATE };

/* Ranks of a head, and the rank's columns of v, gate and output. A block's rows of q or k, and of v or gate; rows of the rank [q
 * D | k D | v | gate]. */
template <int D> struct shape {
    enum { RANKS = D / CK_HEADS_OWN(D), OWN = D / RANKS, WHOLE = D / RANK, PART = OWN / RANK };
};

/* K and V, each thread's pieces in a place of its own in shared memory: eight lanes have a row, piece c of a lane begins at
 * column 8 lane + 64 c. */
template <int D> struct held {
    enum { PIECES = D / 64, OF_V = shape<D>::OWN / 64, GROUPS = CK_HEADS_GROUPS(D) }; /* groups of 32 positions of a block */
    uint4 k[GROUPS][PIECES][RANK_OWNERS], v[GROUPS][OF_V][RANK_OWNERS];
};
__device__ __forceinline__ void hold(uint4 *to, const unsigned char *from, bool is)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_at(to)), "l"(from), "r"(is ? 16 : 0) : "memory");
}

/* What a team or warp or block found: largest score (of base 2), sum of exponentials; `none` is lower than any. */
struct alignas(8) found {
    float most, sum;
};
static const float none = -1e38f;

struct heads_work {
    uint32_t rank, head, part, kv, block, rows, place; /* part: of the head; rows: of the output; place: the position */
    bool stores;                                       /* the rank keeps K and V */
    unsigned char *k, *v;                              /* position 0 of the head's K, and of the rank's columns of V */
    size_t pitch;                                      /* bytes from one position to the next */
};
template <int D> __device__ __forceinline__ heads_work work_of(const ck_heads &a)
{
    enum { RANKS = shape<D>::RANKS };
    heads_work w;
    uint32_t heads = gridDim.x / (RANK * RANKS);
    w.rank = blockIdx.x / RANK;
    w.head = w.rank / RANKS;
    w.part = w.rank % RANKS;
    w.kv = w.head * a.kv_heads / heads;
    w.block = cluster_block();
    w.rows = a.d / RANK;
    w.place = a.pass.place[0];
    w.stores = w.head * a.kv_heads % heads == 0;
    w.pitch = (size_t)a.kv_heads * D * 2;
    w.k = static_cast<unsigned char *>(a.pass.slots[a.slot_k]) + (size_t)w.kv * D * 2;
    w.v = static_cast<unsigned char *>(a.pass.slots[a.slot_v]) + (size_t)w.kv * D * 2 + w.part * shape<D>::OWN * 2;
    return w;
}
/* Rows of a block. */
template <int D> __device__ __forceinline__ uint32_t rows_of(const ck_heads &a)
{
    return 2 * shape<D>::WHOLE + (a.in[GATE].data ? 2 : 1) * shape<D>::PART;
}
/* A row of the block: of which weight, which of its rows, and where it is among the rank's. */
struct heads_row {
    uint32_t weight, row, at;
};
template <int D> __device__ __forceinline__ heads_row row_of(const heads_work &w, uint32_t i)
{
    enum { WHOLE = shape<D>::WHOLE, PART = shape<D>::PART, OWN = shape<D>::OWN };
    heads_row r;
    if (i < 2 * WHOLE) {
        uint32_t c = w.block * WHOLE + i % WHOLE;
        r.weight = i / WHOLE;
        r.row = (r.weight == K ? w.kv : w.head) * D + c;
        r.at = r.weight * D + c;
    } else {
        uint32_t c = w.block * PART + (i - 2 * WHOLE) % PART;
        r.weight = V + (i - 2 * WHOLE) / PART;
        r.row = (r.weight == V ? w.kv : w.head) * D + w.part * OWN + c;
        r.at = 2 * D + (r.weight - V) * OWN + c;
    }
    return r;
}

/* Eight rows of the block to their place in a stage. */
template <int KIND, int D>
__device__ __forceinline__ void bring_eight(const ck_heads &a, const heads_work &w, uint32_t i, unsigned char *to, uint64_t *gate)
{
    heads_row r = row_of<D>(w, i);
    bring_rows<KIND, 1>(to, a.in[r.weight], r.row, 8, a.d, gate);
}

template <int KIND, int D> __device__ __forceinline__ void bring_weights(const ck_heads &a, const heads_work &w, const ring &r)
{
    constexpr uint32_t WIDTH = shape<D>::OWN * (KIND == RANK_Q8 ? 1 : 2); /* bytes of a row of out */
    uint32_t n = rows_of<D>(a), bytes = rows_bytes<KIND>(8, a.d);
    ring_in in = {};
#pragma unroll 1
    for (uint32_t i = 0; i < n; i += 16) { /* 8 rows and 8, maybe of the next weight */
        bool more = i + 8 < n;
        unsigned char *to = ring_free(r, in, more ? 2 * bytes : bytes);
        bring_eight<KIND, D>(a, w, i, to, &r.full[in.at.stage]);
        if (more) bring_eight<KIND, D>(a, w, i + 8, to + second_eight<KIND>(a.d), &r.full[in.at.stage]);
        ring_next(r, in.at);
    }
#pragma unroll 1
    for (uint32_t row = 0; row < w.rows; row += a.out_rows)
        ring_bring_box(r, in, a.out, w.rank * (WIDTH / 4), w.block * w.rows + row, a.out_rows * WIDTH);
}

/* Position of the thread's team in a group of 32 of the block. */
__device__ __forceinline__ uint32_t position(const heads_work &w, uint32_t group)
{
    return (group * 32 + (threadIdx.x >> 3)) * RANK + w.block;
}

template <int D> __device__ __forceinline__ void load_held(const heads_work &w, uint32_t group, held<D> &o)
{
    uint32_t p = position(w, group), i = group % held<D>::GROUPS;
    bool is = p < w.place;
    size_t at = (is ? p : 0) * w.pitch + (threadIdx.x & 7) * 16;
#pragma unroll
    for (int c = 0; c < held<D>::PIECES; c++) {
        hold(&o.k[i][c][threadIdx.x], w.k + at + c * 128, is);
        if (c < held<D>::OF_V) hold(&o.v[i][c][threadIdx.x], w.v + at + c * 128, is);
    }
}

/* What comes from the other blocks of the rank: x, rows of q and k, of v and gate, what they found at their positions; so many
 * bytes. Of narrow heads all rows come together: a second turn takes longer than it hides. */
enum { AT_X, AT_QK, AT_REST, AT_ENDS, GATES };
template <int D> __device__ __forceinline__ constexpr uint32_t gate_of_v() { return D > 128 ? AT_REST : AT_QK; }
template <int D> __device__ __forceinline__ void open_gates(uint64_t *gates, uint32_t x, uint32_t rows)
{
    for (int i = 0; i < GATES; i++) gate_open(&gates[i], 1);
    gates_opened();
    gate_expect(&gates[AT_X], x);
    gate_expect(&gates[AT_QK], D > 128 ? 4 * 2 * D : 4 * RANK * rows);
    if (D > 128) gate_expect(&gates[AT_REST], 4 * RANK * rows - 4 * 2 * D);
    gate_expect(&gates[AT_ENDS], 4 * RANK * (shape<D>::OWN + 2));
}

/* The block's rows go to all blocks of the rank, a warp a block: where a lane's rows go, each 32nd, and their biases. Found
 * before the inputs are there. */
template <int D> struct sending {
    enum { ROWS = D > 128 ? 3 : D / 64, AT_ONCE = D > 64 ? 2 : 1 };
    uint32_t to[ROWS], gates;
    float bias[ROWS];
};
template <int D>
__device__ __forceinline__ sending<D> sending_from(const ck_heads &a, const heads_work &w, const float *rows,
                                                   const uint64_t *gates)
{
    sending<D> s;
    uint32_t warp = threadIdx.x >> 5, last = rows_of<D>(a) - 1;
    s.gates = there(shared_at(gates), warp);
#pragma unroll
    for (int i = 0; i < sending<D>::ROWS; i++) {
        heads_row r = row_of<D>(w, min((threadIdx.x & 31) + 32 * i, last));
        const float *bias = a.in[r.weight].bias;
        s.bias[i] = bias ? bias[r.row] : 0;
        s.to[i] = there(shared_at(rows + r.at), warp);
    }
#pragma unroll
    for (int i = 0; i < sending<D>::ROWS; i++) asm volatile("" : "+r"(s.to[i]), "+f"(s.bias[i])); /* now */
    return s;
}
/* Rows first to end, up to 64 of them. */
template <int D> __device__ __forceinline__ void send_rows(const sending<D> &s, uint32_t first, uint32_t end, const float *sums)
{
#pragma unroll
    for (int i = 0; i < sending<D>::AT_ONCE; i++) {
        uint32_t u = first + (threadIdx.x & 31) + 32 * i;
        int last = sending<D>::ROWS - 1;
        if (u < end)
            send_to(whole_sum(sums, u) + (first ? s.bias[last] : s.bias[i]), first ? s.to[last] : s.to[i],
                    s.gates + 8 * (first ? AT_REST : AT_QK));
    }
}

/* The block's rows, of heads of 256 first those of q and k: they arrive while those of v and gate are made. */
template <int KIND, int P, int D>
__device__ __forceinline__ void project(const ring &r, ring_at &at, const own_x<P> &x, uint32_t d, uint32_t n, float *sums,
                                        const sending<D> &to, uint32_t held)
{
#pragma unroll 1
    for (uint32_t first = 0, end = D > 128 ? 2 * shape<D>::WHOLE : n; first < n; first = end, end = n, held = 0) {
        first_rows<KIND, P>(r, at, x, d, (end - first + 15) / 16 - held, sums + (first + 16 * held) * RANK_SUMS_PITCH);
        consumers_meet();
        send_rows<D>(to, first, end, sums);
    }
}

/* Warp 0 ends q, 1 the new row of K. */
template <int STORAGE, int D>
__device__ __forceinline__ void end_row(const ck_heads &a, const heads_work &w, const float *rows, const float2 *turns, float *q,
                                        uint16_t *fresh, const head_row<D> &norm, uint64_t *gates)
{
    uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, from = shared_at(rows + warp * D + lane);
    const ck_norm &n = warp == K ? a.k_norm : a.q_norm;
    uint32_t normed = n.present, pairs = a.pairs, keeps = w.stores && !w.part && !w.block;
    float eps = n.eps, scale = a.scale * 1.4426950408889634f, s[D / 64], c[D / 64];
    uint16_t *to = reinterpret_cast<uint16_t *>(w.k + w.place * w.pitch) + lane;
#pragma unroll
    for (int i = 0; i < D / 64; i++) s[i] = turns[lane + 32 * i].x, c[i] = turns[lane + 32 * i].y;
    asm volatile("" : "+r"(from), "+r"(normed), "+r"(pairs), "+r"(keeps), "+f"(eps), "+f"(scale), "+l"(to)); /* now */
    gate_wait(&gates[AT_QK], 0);
    head_row<D> r;
#pragma unroll
    for (int i = 0; i < D / 32; i++) r.x[i] = shared_number(from + 128 * i);
    if (normed) norm_head<D>(eps, r, norm);
    turn_head<D>(r, pairs, s, c);
    if (warp == Q) {
#pragma unroll
        for (int i = 0; i < D / 32; i++) q[lane + 32 * i] = r.x[i] * scale;
        return;
    }
#pragma unroll
    for (int i = 0; i < D / 32; i++) fresh[lane + 32 * i] = narrowed<STORAGE>(r.x[i]);
    if (keeps)
#pragma unroll
        for (int i = 0; i < D / 32; i++) to[32 * i] = narrowed<STORAGE>(r.x[i]);
}

/* A lane's part of its team's work: in shared memory its columns of q, of the newest position's row of K and of V before it is
 * narrowed, and where its warp says what it found; K and V of the position that it is at. */
template <int D> struct lane_work {
    uint32_t q, new_k, new_v, found;
    uint4 k[held<D>::PIECES], v[held<D>::OF_V];
};
template <int D> __device__ __forceinline__ void take_held(const held<D> &h, uint32_t group, lane_work<D> &o)
{
    asm volatile("cp.async.wait_all;" ::: "memory");
#pragma unroll
    for (int c = 0; c < held<D>::PIECES; c++) o.k[c] = h.k[group % held<D>::GROUPS][c][threadIdx.x];
#pragma unroll
    for (int c = 0; c < held<D>::OF_V; c++) o.v[c] = h.v[group % held<D>::GROUPS][c][threadIdx.x];
}
template <int D>
__device__ __forceinline__ void begin_work(const held<D> &h, const float *q, const uint16_t *new_k, const float *new_v,
                                           const found *at, lane_work<D> &o)
{
    uint32_t column = (threadIdx.x & 7) * 8;
    o.q = shared_at(q + column), o.new_k = shared_at(new_k + column), o.new_v = shared_at(new_v + column);
    o.found = shared_at(at + (threadIdx.x >> 5));
    take_held<D>(h, 0, o);
    asm volatile("" : "+r"(o.q), "+r"(o.new_k), "+r"(o.new_v), "+r"(o.found)); /* now */
}

/* The team of the newest position: its row of V, each lane its pieces. */
template <int STORAGE, int D> __device__ __forceinline__ void end_v(const heads_work &w, lane_work<D> &o, uint64_t *gates)
{
    if (gate_of_v<D>() != AT_QK) gate_wait(&gates[gate_of_v<D>()], 0);
#pragma unroll
    for (int c = 0; c < held<D>::OF_V; c++) {
        float4 low = shared_four(o.new_v + 256 * c), high = shared_four(o.new_v + 256 * c + 16);
        o.v[c] = make_uint4(two<STORAGE>(low.x, low.y), two<STORAGE>(low.z, low.w), two<STORAGE>(high.x, high.y),
                            two<STORAGE>(high.z, high.w));
        if (w.stores) *reinterpret_cast<uint4 *>(w.v + w.place * w.pitch + (threadIdx.x & 7) * 16 + 128 * c) = o.v[c];
    }
}

/* Sums of a warp's four teams into room [D]: each keeps a quarter of its columns. */
template <int D> __device__ __forceinline__ void put_columns(const float (&acc)[D / 64][8], float *room)
{
    uint32_t column = (threadIdx.x & 7) * 8;
    bool upper = threadIdx.x & 16, odd = threadIdx.x & 8;
#pragma unroll
    for (int c = 0; c < D / 64; c++) {
        float x[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            x[j] = (upper ? acc[c][j + 4] : acc[c][j]) + __shfl_xor_sync(0xffffffffu, upper ? acc[c][j] : acc[c][j + 4], 16);
        float2 y;
        y.x = (odd ? x[2] : x[0]) + __shfl_xor_sync(0xffffffffu, odd ? x[0] : x[2], 8);
        y.y = (odd ? x[3] : x[1]) + __shfl_xor_sync(0xffffffffu, odd ? x[1] : x[3], 8);
        *reinterpret_cast<float2 *>(room + column + 64 * c + 4 * upper + 2 * odd) = y;
    }
}

/* The warp's positions of one group, which are at hand; FIRST: there is nothing to join them with. */
template <int STORAGE, int D, bool FIRST>
__device__ __forceinline__ void attend_group(const heads_work &w, uint32_t p, lane_work<D> &o, uint64_t *gates, found &f,
                                             float (&acc)[held<D>::OF_V][8])
{
    float s[2] = {};
    if (p == w.place)
#pragma unroll
        for (int c = 0; c < held<D>::PIECES; c++) o.k[c] = shared_piece(o.new_k + 128 * c);
#pragma unroll
    for (int c = 0; c < held<D>::PIECES; c++) {
        float4 low = shared_four(o.q + 256 * c), high = shared_four(o.q + 256 * c + 16);
        float x[8];
        eight<STORAGE>(o.k[c], x);
        s[0] += x[0] * low.x + x[1] * low.y + x[2] * low.z + x[3] * low.w;
        s[1] += x[4] * high.x + x[5] * high.y + x[6] * high.z + x[7] * high.w;
    }
    float score = s[0] + s[1];
#pragma unroll
    for (int m = 1; m < 8; m *= 2) score += __shfl_xor_sync(0xffffffffu, score, m);
    if (p > w.place) score = -CUDART_INF_F;
    float most = fmaxf(f.most, score);
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 8));
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 16));
    float before = FIRST ? 0 : exp2_short(f.most - most), e = exp2_short(score - most);
    f.most = most;
    f.sum = FIRST ? e : fmaf(f.sum, before, e);
    if (p == w.place) end_v<STORAGE, D>(w, o, gates);
#pragma unroll
    for (int c = 0; c < held<D>::OF_V; c++) {
        float x[8];
        eight<STORAGE>(o.v[c], x);
#pragma unroll
        for (int j = 0; j < 8; j++) acc[c][j] = FIRST ? e * x[j] : fmaf(e, x[j], acc[c][j] * before);
    }
}

/* The warp's positions: what it found, and the sums of the rank's columns of V if there was any. */
template <int STORAGE, int D>
__device__ __forceinline__ void attend(const heads_work &w, held<D> &h, lane_work<D> &o, uint64_t *gates, float *room)
{
    enum { GROUPS = held<D>::GROUPS };
    uint32_t first = (threadIdx.x >> 5) * 4 * RANK + w.block; /* of the warp's positions */
    found f = {none, 0};
    if (first <= w.place) {
        float acc[held<D>::OF_V][8];
        attend_group<STORAGE, D, true>(w, position(w, 0), o, gates, f, acc);
#pragma unroll 1
        for (uint32_t group = 1; group * 32 * RANK + first <= w.place; group++) {
            if (group >= GROUPS) load_held<D>(w, group, h);
            take_held<D>(h, group, o);
            attend_group<STORAGE, D, false>(w, position(w, group), o, gates, f, acc);
        }
        f.sum += __shfl_xor_sync(0xffffffffu, f.sum, 8);
        f.sum += __shfl_xor_sync(0xffffffffu, f.sum, 16);
        put_columns<shape<D>::OWN>(acc, room);
    }
    if (!(threadIdx.x & 31)) put_two_at(o.found, f.most, f.sum);
}

/* A lane's columns of a rank's: two or four numbers. */
template <int N> struct few {
    float x[N];
};
template <int N> __device__ __forceinline__ few<N> few_at(const float *x)
{
    if constexpr (N == 2) {
        float2 v = *reinterpret_cast<const float2 *>(x);
        return few<N>{{v.x, v.y}};
    } else {
        float4 v = four_at(x, 0);
        return few<N>{{v.x, v.y, v.z, v.w}};
    }
}

/* Eight times what was found, and some columns of the first n, as one. y: [8], `pitch` numbers apart. */
template <int N>
__device__ __forceinline__ few<N> join_eight(const found *at, uint32_t found_pitch, const float *y, uint32_t pitch, uint32_t n,
                                             found &all)
{
    found f[8];
    few<N> sum = {};
#pragma unroll
    for (int i = 0; i < 8; i++) f[i] = at[i * found_pitch];
    all.most = fmaxf(fmaxf(fmaxf(f[0].most, f[1].most), fmaxf(f[2].most, f[3].most)),
                     fmaxf(fmaxf(f[4].most, f[5].most), fmaxf(f[6].most, f[7].most)));
    all.sum = 0;
#pragma unroll
    for (int k = 0; k < 8; k += 4) {
        if (k >= n) break;
#pragma unroll
        for (int i = k; i < k + 4; i++) {
            float e = exp2_short(f[i].most - all.most);
            few<N> v = {};
            if (i < n) v = few_at<N>(y + i * pitch);
            all.sum = fmaf(f[i].sum, e, all.sum);
#pragma unroll
            for (int j = 0; j < N; j++) sum.x[j] = fmaf(v.x[j], e, sum.x[j]);
        }
    }
    return sum;
}

/* What the block's warps found, joined, to all blocks of the rank, a warp a block: ends [block][OWN + 4]. */
template <int D>
__device__ __forceinline__ void send_found(const heads_work &w, const found *at, const float *room, const float *ends,
                                           const uint64_t *gate)
{
    enum { OWN = shape<D>::OWN, N = OWN / 32 };
    uint32_t active = w.place < w.block ? 0 : (w.place - w.block) / (4 * RANK) + 1; /* warps with positions, or more */
    uint32_t lane = threadIdx.x & 31, block = threadIdx.x >> 5, to = there(shared_at(ends + w.block * (OWN + 4)), block),
             counted = there(shared_at(gate), block);
    found all;
    few<N> v = join_eight<N>(at, 1, room + N * lane, OWN, active, all);
    if constexpr (N == 4)
        send_four_to(make_float4(v.x[0], v.x[1], v.x[2], v.x[3]), to + 16 + 16 * lane, counted);
    else
        send_two_to(v.x[0], v.x[1], to + 16 + 8 * lane, counted);
    if (!lane) send_two_to(all.most, all.sum, to, counted);
}

/* The head's output, gated, into parts, by one warp. */
template <int KIND, int D>
__device__ __forceinline__ void head_parts(const float *ends, const float *gate, unsigned char *parts, uint64_t *gates)
{
    enum { OWN = shape<D>::OWN, N = OWN / 32 };
    uint32_t c = N * threadIdx.x;
    few<N> open = {};
    if (gate_of_v<D>() != AT_QK) gate_wait(&gates[gate_of_v<D>()], 0);
    if (gate) open = few_at<N>(gate + c);
#pragma unroll
    for (int j = 0; j < N; j++) open.x[j] = gate ? sigmoid_short(open.x[j]) : 1;
    gate_wait(&gates[AT_ENDS], 0);
    found all;
    few<N> v = join_eight<N>(reinterpret_cast<const found *>(ends), (OWN + 4) / 2, ends + 4 + c, OWN + 4, 8, all);
    float e = inverse_short(all.sum);
#pragma unroll
    for (int j = 0; j < N; j++) v.x[j] = v.x[j] * e * open.x[j];
    if constexpr (N == 4)
        put_hidden<KIND>(parts, OWN, c, make_float4(v.x[0], v.x[1], v.x[2], v.x[3]));
    else
        put_two<KIND>(parts, parts_pitch(OWN), c, v.x[0], v.x[1]);
}

/* Sines and cosines of the position. */
__device__ __forceinline__ void find_turns(const ck_heads &a, const heads_work &w, float2 *turns)
{
    uint32_t i = threadIdx.x;
    if (i >= a.pairs) return;
    float s, c;
    turn_of(w.place, a.inverse[i], s, c);
    turns[i] = make_float2(s * a.mscale, c * a.mscale);
}

template <int KIND, int STORAGE, int P, int D> __device__ __forceinline__ void heads(const ck_heads &a)
{
    enum { OWN = shape<D>::OWN };
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ uint64_t full[CK_RANK_STAGES], empty[CK_RANK_STAGES], gates[GATES];
    __shared__ rank_stats stats;
    __shared__ float norm_room[RANK_WARPS];
    __shared__ __align__(16) float rows[2 * D + 2 * OWN], q[D];
    __shared__ __align__(16) uint16_t fresh[D];
    __shared__ __align__(16) found at_warp[RANK_WARPS];
    __shared__ float2 turns[D / 2];
    const heads_work w = work_of<D>(a);
    const ring r = {memory, a.stage_bytes, a.stages, a.fills, a.ahead, full, empty};
    uint32_t n = rows_of<D>(a);
    float *own = reinterpret_cast<float *>(memory + a.stages * a.stage_bytes), *xs = own + a.d / RANK, *sums = xs, *room = xs;
    held<D> &kv = *reinterpret_cast<held<D> *>(reinterpret_cast<unsigned char *>(xs) + CK_HEADS_FIRST(D, a.d));
    unsigned char *parts = reinterpret_cast<unsigned char *>(&kv + 1), *scales = parts + CK_HEADS_SECOND(D, a.d);
    float *ends = reinterpret_cast<float *>(parts);
    unsigned char *made = reinterpret_cast<unsigned char *>(ends + RANK * (OWN + 4));
    if (!a.late) dependents_may_start();
    if (threadIdx.x == RANK_OWNERS) {
        ring_open(r);
        open_gates<D>(gates, 4 * a.d + sizeof stats, n);
    }
    __syncthreads();
    cluster_arrive();
    if (threadIdx.x >= RANK_OWNERS) {
        if (threadIdx.x > RANK_OWNERS) return;
        bring_weights<KIND, D>(a, w, r);
        if (a.late) dependents_may_start();
        return;
    }
    norm_numbers<(P + 1) / 2> numbers;
    own_x<P> x;
    ring_at at = {0, 0};
    load_norm<KIND>(a.norm, a.d, numbers);
#pragma unroll
    for (int i = 0; i < held<D>::GROUPS; i++) load_held<D>(w, i, kv);
    find_turns(a, w, turns);
    head_row<D> head_norm;
    load_head_norm<D>(threadIdx.x < 32 ? a.q_norm : a.k_norm, head_norm);
    if (KIND == RANK_Q8)
        bring_scales(shared_at(scales),
                     static_cast<const __half *>(a.out_scales.p) + w.block * w.rows * a.out_scales.pitch + w.rank * (OWN / 32),
                     a.out_scales.pitch, w.rows, OWN);
    const sending<D> sent = sending_from<D>(a, w, rows, gates);
    const x_places from = places_of<KIND>(xs, &stats);
    const spreading to = spread_from(a.x, w.block, xs, &stats, &gates[AT_X], own);
    cluster_wait();
    constexpr bool HOLDS = KIND == 0 && P <= 2; /* measured: of heads of 256 in bf16 it takes 0.5 %, of Q8_0 nothing */
    held_group<HOLDS ? P : 1> held;
    if constexpr (HOLDS) hold_group<KIND, P>(r, at, a.d, norm_room, held);
    if (!a.x.live) wait_for_inputs();
    spread_x<(P + 1) / 2>(to, a.norm.layer, a.out_bias ? a.out_bias + w.block * w.rows : nullptr);
    gate_wait(&gates[AT_X], 0);
    ready_x<KIND, P>(a.norm, a.d, xs, from, numbers, parts, norm_room, x);
    if constexpr (HOLDS) held_rows<KIND, P>(held, x, sums);
    project<KIND, P, D>(r, at, x, a.d, n, sums, sent, HOLDS);
    lane_work<D> o;
    begin_work<D>(kv, q, fresh, rows + 2 * D, at_warp, o);
    if (threadIdx.x < 64) end_row<STORAGE, D>(a, w, rows, turns, q, fresh, head_norm, gates);
    consumers_meet();
    attend<STORAGE, D>(w, kv, o, gates, room + (threadIdx.x >> 5) * OWN);
    consumers_meet();
    send_found<D>(w, at_warp, room, ends, &gates[AT_ENDS]);
    if (KIND == RANK_Q8) scales_arrived();
    if (threadIdx.x < 32) head_parts<KIND, D>(ends, a.in[GATE].data ? rows + 2 * D + OWN : nullptr, made, gates);
    consumers_meet();
    write_rows<KIND>(r, at, made, OWN, a.out_rows, w.rows, a.y + w.block * w.rows, a.d, w.rank ? nullptr : own,
                     shared_at(scales));
    leave(a.x, a.clear);
}

#else
template <int KIND, int STORAGE, int P, int D> __device__ __forceinline__ void heads(const ck_heads &) {} /* no clusters */
#endif

/* Columns of x: up to 512 P. */
#define HEADS(NAME, KIND, KV, STORAGE, P, D)                                \
    extern "C" __global__ void __launch_bounds__(CK_RANK_THREADS, 2)        \
        heads_##NAME##_##KV##_##P##_##D(const __grid_constant__ ck_heads a) \
    {                                                                       \
        heads<KIND, STORAGE, P, D>(a);                                      \
    }
#define HEADS_OF(P, D)                                  \
    HEADS(f16, 0, f16, CK_KV_F16, P, D)                 \
    HEADS(f16, 0, bf16, CK_KV_BF16, P, D)               \
    HEADS(bf16, 1, f16, CK_KV_F16, P, D)                \
    HEADS(bf16, 1, bf16, CK_KV_BF16, P, D)
HEADS_OF(2, 64)
HEADS_OF(2, 128)
HEADS_OF(2, 256)
HEADS_OF(4, 256)
HEADS(q8, RANK_Q8, f16, CK_KV_F16, 2, 128)
HEADS(q8, RANK_Q8, bf16, CK_KV_BF16, 2, 128)
HEADS(q8, RANK_Q8, f16, CK_KV_F16, 2, 256)
HEADS(q8, RANK_Q8, bf16, CK_KV_BF16, 2, 256)
