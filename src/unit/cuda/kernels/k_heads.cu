/* k_heads.cu: the attention block of a layer for one row of x, fused into one launch (helpers:
 * k_cluster_ops.cuh): RMS norm, q, k, v (and gate) projections, norm and RoPE of the heads, store of
 * K and V, attention, output gate, out-projection and residual. Host: chosen by cluster_match.c for
 * one row of up to 512 P columns, fp16, bf16, Q8_0 or packed weights and at most 2,048 positions. sm_90.
 *
 * Layout: clusters of 8 blocks, 288 threads (256 consumers, 1 warp that loads weights). A cluster
 * computes one query head of D columns, or half of one of 256: all of the head's q and k, but only
 * its own COLS columns of v, gate and output. Clusters that share a K/V head each compute its new
 * row, and one of them stores it. Block j of a cluster computes one eighth of these rows, attends to
 * positions p with p % 8 = j, and produces one eighth of the rows of the output.
 *
 * Dynamic shared memory: weight ring; the block's own columns of x (residual); x, reused for row
 * sums and then for the warps' attention results; prefetched K and V; x in parts, reused for the
 * blocks' results and the output in parts; scales of the output weight (Q8_0). Static: q, k, v, gate
 * of the cluster, mbarriers.
 *
 * Synchronisation: ring mbarriers; MBARS mbarriers count bytes that other blocks send; named barrier
 * 1 joins the consumers. K, V and all weights are loaded before griddepcontrol.wait, or before the
 * poll of x when the previous kernel is a fusion too.
 * SPDX-License-Identifier: MIT */
#include "k_head.cuh"
#include "k_heads_rows.cuh"
#include "k_weight_prefetch.cuh"

#if __CUDA_ARCH__ == 900

/* First product. For D = 256 in two steps, q and k first, so that they arrive while v and gate are
 * computed. prefetched: 1 if the first group of rows was already multiplied from registers. */
template <int KIND, int P, int D>
__device__ __forceinline__ void project(const ring &r, ring_pos &at, const x_frags<P> &x, uint32_t d, uint32_t n, float *sums,
                                        const row_targets<D> &to, uint32_t prefetched, const ck_packed_kinds &kinds,
                                        const heads_work &w, const unsigned char *digits)
{
#pragma unroll 1
    for (uint32_t first = 0, end = D > 128 ? 2 * shape<D>::QK_ROWS : n; first < n; first = end, end = n, prefetched = 0) {
        if constexpr (KIND == KIND_PACKED) {
#pragma unroll 1
            for (uint32_t i = first + 16 * prefetched; i < end; i += 16)
                first_packed(r, at, packed_x_at(digits, d), kinds.in[row_of<D>(w, i).weight], d / CK_PACKED_CHUNK, i / 16,
                             x.inv_rms, sums + i * SUMS_PITCH, SUMS_PITCH);
        } else {
            first_rows<KIND, P>(r, at, x, d, (end - first + 15) / 16 - prefetched, sums + (first + 16 * prefetched) * SUMS_PITCH);
        }
        consumers_sync();
        send_rows<D>(to, first, end, sums);
    }
}

/* Warps 0 and 1: norm and RoPE of q and of the new K row. Warp 0 writes scaled q (base-2 logits) to
 * shared memory, warp 1 the new K row in 16 bits to shared memory and, if this block stores it, to
 * the state. */
template <int STORAGE, int D>
__device__ __forceinline__ void finish_qk_row(const ck_heads &a, const heads_work &w, const float *rows, const float2 *sin_cos,
                                              float *q, uint16_t *fresh, const head_row<D> &norm, uint64_t *mbars)
{
    uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, from = smem_addr(rows + warp * D + lane);
    const ck_norm &n = warp == K ? a.k_norm : a.q_norm;
    uint32_t normed = n.present, pairs = a.pairs, stores = w.stores && !w.part && !w.cta;
    float eps = n.eps, scale = a.scale * 1.4426950408889634f, s[D / 64], c[D / 64];
    uint16_t *to = reinterpret_cast<uint16_t *>(w.k + w.pos * w.pitch) + lane;
#pragma unroll
    for (int i = 0; i < D / 64; i++) s[i] = sin_cos[lane + 32 * i].x, c[i] = sin_cos[lane + 32 * i].y;
    /* computed before the wait below */
    asm volatile("" : "+r"(from), "+r"(normed), "+r"(pairs), "+r"(stores), "+f"(eps), "+f"(scale), "+l"(to));
    mbar_wait(&mbars[AT_QK], 0);
    head_row<D> r;
#pragma unroll
    for (int i = 0; i < D / 32; i++) r.x[i] = lds_f32(from + 128 * i);
    if (normed) norm_head<D>(eps, r, norm);
    rope_head<D>(r, pairs, s, c);
    if (warp == Q) {
#pragma unroll
        for (int i = 0; i < D / 32; i++) q[lane + 32 * i] = r.x[i] * scale;
        return;
    }
#pragma unroll
    for (int i = 0; i < D / 32; i++) fresh[lane + 32 * i] = to_16bit<STORAGE>(r.x[i]);
    if (stores)
#pragma unroll
        for (int i = 0; i < D / 32; i++) to[32 * i] = to_16bit<STORAGE>(r.x[i]);
}

/* One lane's share of its position: addresses of its columns of q, of the new K row and of the new V
 * row (still fp32), of its warp's partial result; K and V of the current position in registers. */
template <int D> struct lane_work {
    uint32_t q, new_k, new_v, part_addr;
    uint4 k[kv_prefetch<D>::PIECES], v[kv_prefetch<D>::OF_V];
};
/* Waits for the cp.async copies and takes this thread's K and V of one group. */
template <int D> __device__ __forceinline__ void load_kv(const kv_prefetch<D> &h, uint32_t group, lane_work<D> &o)
{
    asm volatile("cp.async.wait_all;" ::: "memory");
#pragma unroll
    for (int c = 0; c < kv_prefetch<D>::PIECES; c++) o.k[c] = h.k[group % kv_prefetch<D>::GROUPS][c][threadIdx.x];
#pragma unroll
    for (int c = 0; c < kv_prefetch<D>::OF_V; c++) o.v[c] = h.v[group % kv_prefetch<D>::GROUPS][c][threadIdx.x];
}
template <int D>
__device__ __forceinline__ void begin_work(const kv_prefetch<D> &h, const float *q, const uint16_t *new_k, const float *new_v,
                                           const softmax_part *at, lane_work<D> &o)
{
    uint32_t column = (threadIdx.x & 7) * 8;
    o.q = smem_addr(q + column), o.new_k = smem_addr(new_k + column), o.new_v = smem_addr(new_v + column);
    o.part_addr = smem_addr(at + (threadIdx.x >> 5));
    load_kv<D>(h, 0, o);
    asm volatile("" : "+r"(o.q), "+r"(o.new_k), "+r"(o.new_v), "+r"(o.part_addr)); /* computed here, before the wait */
}

/* The lane group at the current position: takes V's new row as 16 bits and stores it to the state if
 * the cluster stores. */
template <int STORAGE, int D> __device__ __forceinline__ void finish_v(const heads_work &w, lane_work<D> &o, uint64_t *mbars)
{
    if (mbar_of_v<D>() != AT_QK) mbar_wait(&mbars[mbar_of_v<D>()], 0);
#pragma unroll
    for (int c = 0; c < kv_prefetch<D>::OF_V; c++) {
        float4 low = lds_f32x4(o.new_v + 256 * c), high = lds_f32x4(o.new_v + 256 * c + 16);
        o.v[c] = make_uint4(pack_2<STORAGE>(low.x, low.y), pack_2<STORAGE>(low.z, low.w), pack_2<STORAGE>(high.x, high.y),
                            pack_2<STORAGE>(high.z, high.w));
        if (w.stores) *reinterpret_cast<uint4 *>(w.v + w.pos * w.pitch + (threadIdx.x & 7) * 16 + 128 * c) = o.v[c];
    }
}

/* Sums the four lane groups of a warp into scratch [D]; each lane group writes a quarter of the
 * columns. */
template <int D> __device__ __forceinline__ void put_columns(const float (&acc)[D / 64][8], float *scratch)
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
        *reinterpret_cast<float2 *>(scratch + column + 64 * c + 4 * upper + 2 * odd) = y;
    }
}

/* Online softmax step over one group of positions held in registers. FIRST: f and acc are
 * overwritten instead of rescaled. Scores of positions after the current one are -inf. */
template <int STORAGE, int D, bool FIRST>
__device__ __forceinline__ void attend_group(const heads_work &w, uint32_t p, lane_work<D> &o, uint64_t *mbars, softmax_part &f,
                                             float (&acc)[kv_prefetch<D>::OF_V][8])
{
    float s[2] = {};
    if (p == w.pos)
#pragma unroll
        for (int c = 0; c < kv_prefetch<D>::PIECES; c++) o.k[c] = lds_128(o.new_k + 128 * c);
#pragma unroll
    for (int c = 0; c < kv_prefetch<D>::PIECES; c++) {
        float4 low = lds_f32x4(o.q + 256 * c), high = lds_f32x4(o.q + 256 * c + 16);
        float x[8];
        unpack_8<STORAGE>(o.k[c], x);
        s[0] += x[0] * low.x + x[1] * low.y + x[2] * low.z + x[3] * low.w;
        s[1] += x[4] * high.x + x[5] * high.y + x[6] * high.z + x[7] * high.w;
    }
    float score = s[0] + s[1];
#pragma unroll
    for (int m = 1; m < 8; m *= 2) score += __shfl_xor_sync(0xffffffffu, score, m);
    if (p > w.pos) score = -CUDART_INF_F;
    float max = fmaxf(f.max, score);
    max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 8));
    max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 16));
    float rescale = FIRST ? 0 : exp2_fast(f.max - max), e = exp2_fast(score - max);
    f.max = max;
    f.sum = FIRST ? e : fmaf(f.sum, rescale, e);
    if (p == w.pos) finish_v<STORAGE, D>(w, o, mbars);
#pragma unroll
    for (int c = 0; c < kv_prefetch<D>::OF_V; c++) {
        float x[8];
        unpack_8<STORAGE>(o.v[c], x);
#pragma unroll
        for (int j = 0; j < 8; j++) acc[c][j] = FIRST ? e * x[j] : fmaf(e, x[j], acc[c][j] * rescale);
    }
}

/* Attention over the positions of this warp: partial softmax to shared memory, weighted sums of V to
 * scratch. */
template <int STORAGE, int D>
__device__ __forceinline__ void attend(const heads_work &w, kv_prefetch<D> &h, lane_work<D> &o, uint64_t *mbars, float *scratch)
{
    enum { GROUPS = kv_prefetch<D>::GROUPS };
    uint32_t first = (threadIdx.x >> 5) * 4 * CLUSTER + w.cta; /* first of the warp's positions */
    softmax_part f = {lowest, 0};
    if (first <= w.pos) {
        float acc[kv_prefetch<D>::OF_V][8];
        attend_group<STORAGE, D, true>(w, position(w, 0), o, mbars, f, acc);
#pragma unroll 1
        for (uint32_t group = 1; group * 32 * CLUSTER + first <= w.pos; group++) {
            if (group >= GROUPS) prefetch_kv<D>(w, group, h);
            load_kv<D>(h, group, o);
            attend_group<STORAGE, D, false>(w, position(w, group), o, mbars, f, acc);
        }
        f.sum += __shfl_xor_sync(0xffffffffu, f.sum, 8);
        f.sum += __shfl_xor_sync(0xffffffffu, f.sum, 16);
        put_columns<shape<D>::COLS>(acc, scratch);
    }
    if (!(threadIdx.x & 31)) sts_f32x2(o.part_addr, f.max, f.sum);
}

/* The columns that one lane handles: two or four. */
template <int N> struct lane_cols {
    float x[N];
};
template <int N> __device__ __forceinline__ lane_cols<N> lane_cols_at(const float *x)
{
    if constexpr (N == 2) {
        float2 v = *reinterpret_cast<const float2 *>(x);
        return lane_cols<N>{{v.x, v.y}};
    } else {
        float4 v = float4_at(x, 0);
        return lane_cols<N>{{v.x, v.y, v.z, v.w}};
    }
}

/* Merges eight partial softmax results and the columns of the first n of them; y: [8], `pitch`
 * floats apart. */
template <int N>
__device__ __forceinline__ lane_cols<N> merge_eight(const softmax_part *at, uint32_t found_pitch, const float *y, uint32_t pitch,
                                                    uint32_t n, softmax_part &all)
{
    softmax_part f[8];
    lane_cols<N> sum = {};
#pragma unroll
    for (int i = 0; i < 8; i++) f[i] = at[i * found_pitch];
    all.max = fmaxf(fmaxf(fmaxf(f[0].max, f[1].max), fmaxf(f[2].max, f[3].max)),
                    fmaxf(fmaxf(f[4].max, f[5].max), fmaxf(f[6].max, f[7].max)));
    all.sum = 0;
#pragma unroll
    for (int k = 0; k < 8; k += 4) {
        if (k >= n) break;
#pragma unroll
        for (int i = k; i < k + 4; i++) {
            float e = exp2_fast(f[i].max - all.max);
            lane_cols<N> v = {};
            if (i < n) v = lane_cols_at<N>(y + i * pitch);
            all.sum = fmaf(f[i].sum, e, all.sum);
#pragma unroll
            for (int j = 0; j < N; j++) sum.x[j] = fmaf(v.x[j], e, sum.x[j]);
        }
    }
    return sum;
}

/* Merges the results of the block's warps and sends them to all blocks, warp w to block w: ends
 * [block][COLS + 4] holds {max, sum, -, -, columns}. */
template <int D>
__device__ __forceinline__ void send_partials(const heads_work &w, const softmax_part *at, const float *scratch,
                                              const float *ends, const uint64_t *mbar)
{
    enum { COLS = shape<D>::COLS, N = COLS / 32 };
    uint32_t active = w.pos < w.cta ? 0 : (w.pos - w.cta) / (4 * CLUSTER) + 1; /* upper bound of the warps with positions */
    uint32_t lane = threadIdx.x & 31, block = threadIdx.x >> 5, to = mapa(smem_addr(ends + w.cta * (COLS + 4)), block),
             counted = mapa(smem_addr(mbar), block);
    softmax_part all;
    lane_cols<N> v = merge_eight<N>(at, 1, scratch + N * lane, COLS, active, all);
    if constexpr (N == 4)
        st_async_f32x4(make_float4(v.x[0], v.x[1], v.x[2], v.x[3]), to + 16 + 16 * lane, counted);
    else
        st_async_f32x2(v.x[0], v.x[1], to + 16 + 8 * lane, counted);
    if (!lane) st_async_f32x2(all.max, all.sum, to, counted);
}

/* One warp: merges the blocks' results, applies the output gate, and stores the head's output in
 * parts for the second product. */
template <int KIND, int D>
__device__ __forceinline__ void store_head_parts(const float *ends, const float *gate, unsigned char *parts, uint64_t *mbars,
                                                 uint32_t cluster)
{
    enum { COLS = shape<D>::COLS, N = COLS / 32 };
    uint32_t c = N * threadIdx.x;
    lane_cols<N> g = {};
    if (mbar_of_v<D>() != AT_QK) mbar_wait(&mbars[mbar_of_v<D>()], 0);
    if (gate) g = lane_cols_at<N>(gate + c);
#pragma unroll
    for (int j = 0; j < N; j++) g.x[j] = gate ? sigmoid_fast(g.x[j]) : 1;
    mbar_wait(&mbars[AT_ENDS], 0);
    softmax_part all;
    lane_cols<N> v = merge_eight<N>(reinterpret_cast<const softmax_part *>(ends), (COLS + 4) / 2, ends + 4 + c, COLS + 4, 8, all);
    float e = rcp_fast(all.sum);
#pragma unroll
    for (int j = 0; j < N; j++) v.x[j] = v.x[j] * e * g.x[j];
    if constexpr (KIND == KIND_PACKED)
        put_packed_group(packed_x_at(parts, CK_PACKED_CHUNK), cluster & 1, make_float4(v.x[0], v.x[1], v.x[2], v.x[3]));
    else if constexpr (N == 4)
        put_hidden<KIND>(parts, COLS, c, make_float4(v.x[0], v.x[1], v.x[2], v.x[3]));
    else
        put_two<KIND>(parts, parts_pitch(COLS), c, v.x[0], v.x[1]);
}

/* sin and cos of the position, for each rotary pair. */
__device__ __forceinline__ void load_sincos(const ck_heads &a, const heads_work &w, float2 *sin_cos)
{
    uint32_t i = threadIdx.x;
    if (i >= a.pairs) return;
    float s, c;
    rope_sincos(w.pos, a.inverse[i], s, c);
    sin_cos[i] = make_float2(s * a.mscale, c * a.mscale);
}

/* Q8_0: starts the copy of the scales of the output weight. */
template <int D> __device__ __forceinline__ void load_out_scales(const ck_heads &a, const heads_work &w, uint32_t scales)
{
    load_scales(scales,
                static_cast<const __half *>(a.out_scales.p) + w.cta * w.rows * a.out_scales.pitch +
                    w.cluster * (shape<D>::COLS / 32),
                a.out_scales.pitch, w.rows, shape<D>::COLS);
}

/* The buffers behind the stages of the ring. sums and scratch of the warps reuse the memory of x, ends that of parts. */
template <int D> struct heads_buffers {
    float *extra, *xs, *ends;
    kv_prefetch<D> *kv;
    unsigned char *parts, *scales, *out_parts;
};

template <int KIND, int D> __device__ __forceinline__ heads_buffers<D> find_buffers(const ck_heads &a, unsigned char *memory)
{
    heads_buffers<D> m;
    m.extra = reinterpret_cast<float *>(memory + a.stages * a.stage_bytes);
    m.xs = m.extra + a.d / CLUSTER;
    m.kv = reinterpret_cast<kv_prefetch<D> *>(reinterpret_cast<unsigned char *>(m.xs) + CK_HEADS_X_BYTES(D, a.d));
    m.parts = reinterpret_cast<unsigned char *>(m.kv + 1);
    m.scales = m.parts + CK_HEADS_PARTS_BYTES(D, a.d);
    m.ends = reinterpret_cast<float *>(m.parts);
    m.out_parts = reinterpret_cast<unsigned char *>(m.ends + CLUSTER * (shape<D>::COLS + 4));
    /* Packed weights: x is read from memory until the first product ends, when results of other blocks may have arrived. */
    if (KIND == KIND_PACKED) m.parts = m.out_parts + CK_CLUSTER_PACKED_X_BYTES(CK_PACKED_CHUNK);
    return m;
}

/* The producer warp: one thread of it loads all weights. */
template <int KIND, int D>
__device__ __forceinline__ void produce(const ck_heads &a, const ck_packed_kinds &kinds, const heads_work &w, const ring &r)
{
    if (threadIdx.x > CLUSTER_CONSUMERS) return;
    if constexpr (KIND == KIND_PACKED)
        load_packed<D>(a, kinds, w, r);
    else
        load_weights<KIND, D>(a, w, r);
    if (a.late) launch_dependents();
}

/* Kernel body. P: pairs of 32-column blocks of x per warp (d up to 512 P); kinds: of packed weights. */
template <int KIND, int STORAGE, int P, int D>
__device__ __forceinline__ void heads(const ck_heads &a, const ck_packed_kinds &kinds = {})
{
    enum { COLS = shape<D>::COLS };
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ uint64_t full[CK_CLUSTER_STAGES], empty[CK_CLUSTER_STAGES], mbars[MBARS];
    __shared__ cluster_stats stats;
    __shared__ float norm_scratch[CONSUMER_WARPS];
    __shared__ __align__(16) float rows[2 * D + 2 * COLS], q[D];
    __shared__ __align__(16) uint16_t fresh[D];
    __shared__ __align__(16) softmax_part at_warp[CONSUMER_WARPS];
    __shared__ float2 sin_cos[D / 2];
    const heads_work w = work_of<D>(a);
    const ring r = {memory, a.stage_bytes, a.stages, a.fills, a.ahead, full, empty};
    uint32_t n = rows_of<D>(a);
    const heads_buffers<D> m = find_buffers<KIND, D>(a, memory);
    float *xs = m.xs, *sums = xs, *scratch = xs;
    kv_prefetch<D> &kv = *m.kv;
    if (!a.late) launch_dependents();
    if (threadIdx.x == CLUSTER_CONSUMERS) ring_init(r), init_mbars<D>(mbars, 4 * a.d + sizeof stats, n);
    __syncthreads();
    cluster_arrive();
    if (threadIdx.x >= CLUSTER_CONSUMERS) return produce<KIND, D>(a, kinds, w, r);
    norm_coeffs<(P + 1) / 2> numbers;
    x_frags<P> x;
    ring_pos at = {0, 0};
    load_norm<KIND>(a.norm, a.d, numbers);
#pragma unroll
    for (int i = 0; i < kv_prefetch<D>::GROUPS; i++) prefetch_kv<D>(w, i, kv);
    load_sincos(a, w, sin_cos);
    head_row<D> head_norm;
    load_head_norm<D>(threadIdx.x < 32 ? a.q_norm : a.k_norm, head_norm);
    if (KIND == KIND_Q8) load_out_scales<D>(a, w, smem_addr(m.scales));
    const row_targets<D> sent = find_row_targets<D>(a, w, rows, mbars);
    const x_addresses from = find_x_addresses<KIND>(xs, &stats);
    const x_exchange to = x_exchange_setup(a.x, w.cta, xs, &stats, &mbars[AT_X], m.extra);
    cluster_wait();
    if constexpr (KIND == KIND_PACKED) warm_packed(r, kinds.in[0], a.d / CK_PACKED_CHUNK);
    /* A register prefetch of the first weight rows pays off only for fp16 with short rows (bf16, D = 256: 0.5 % slower). */
    constexpr bool PREFETCH = KIND == 0 && P <= 2;
    prefetched_group<PREFETCH ? P : 1> prefetched;
    if constexpr (PREFETCH) prefetch_group<KIND, P>(r, at, a.d, norm_scratch, prefetched);
    if (!a.x.live) wait_for_inputs();
    exchange_x<(P + 1) / 2>(to, a.norm.layer, a.out_bias ? a.out_bias + w.cta * w.rows : nullptr);
    mbar_wait(&mbars[AT_X], 0);
    prepare_x<KIND, P>(a.norm, a.d, xs, from, numbers, m.parts, norm_scratch, x);
    if constexpr (PREFETCH) multiply_prefetched<KIND, P>(prefetched, x, sums);
    project<KIND, P, D>(r, at, x, a.d, n, sums, sent, PREFETCH, kinds, w, m.parts);
    lane_work<D> o;
    begin_work<D>(kv, q, fresh, rows + 2 * D, at_warp, o);
    if (threadIdx.x < 64) finish_qk_row<STORAGE, D>(a, w, rows, sin_cos, q, fresh, head_norm, mbars);
    consumers_sync();
    attend<STORAGE, D>(w, kv, o, mbars, scratch + (threadIdx.x >> 5) * COLS);
    consumers_sync();
    send_partials<D>(w, at_warp, scratch, m.ends, &mbars[AT_ENDS]);
    if (KIND == KIND_Q8) scales_arrived();
    if (KIND == KIND_PACKED && threadIdx.x >> 5 == 1) /* another cluster's half of the chunk */
        put_packed_group(packed_x_at(m.out_parts, CK_PACKED_CHUNK), ~w.cluster & 1, make_float4(0, 0, 0, 0));
    if (threadIdx.x < 32)
        store_head_parts<KIND, D>(m.ends, a.in[GATE].data ? rows + 2 * D + COLS : nullptr, m.out_parts, mbars, w.cluster);
    consumers_sync();
    if constexpr (KIND == KIND_PACKED)
        write_packed(r, at, packed_x_at(m.out_parts, CK_PACKED_CHUNK), kinds.out, 1, a.out_rows, w.rows, a.y + w.cta * w.rows,
                     a.d, w.cluster ? nullptr : m.extra);
    else
        write_rows<KIND>(r, at, m.out_parts, COLS, a.out_rows, w.rows, a.y + w.cta * w.rows, a.d, w.cluster ? nullptr : m.extra,
                         smem_addr(m.scales));
    finish_kernel(a.x, a.clear);
}

#else
/* no clusters before sm_90: never launched */
template <int KIND, int STORAGE, int P, int D>
__device__ __forceinline__ void heads(const ck_heads &, const ck_packed_kinds & = {})
{
}
#endif

/* d up to 512 P. */
#define HEADS(NAME, KIND, KV, STORAGE, P, D)                                \
    extern "C" __global__ void __launch_bounds__(CK_CLUSTER_THREADS, 2)     \
        heads_##NAME##_##KV##_##P##_##D(const __grid_constant__ ck_heads a) \
    {                                                                       \
        heads<KIND, STORAGE, P, D>(a);                                      \
    }
#define HEADS_OF(P, D)                    \
    HEADS(f16, 0, f16, CK_KV_F16, P, D)   \
    HEADS(f16, 0, bf16, CK_KV_BF16, P, D) \
    HEADS(bf16, 1, f16, CK_KV_F16, P, D)  \
    HEADS(bf16, 1, bf16, CK_KV_BF16, P, D)
HEADS_OF(2, 64)
HEADS_OF(2, 128)
HEADS_OF(2, 256)
HEADS_OF(4, 256)
HEADS(q8, KIND_Q8, f16, CK_KV_F16, 2, 128)
HEADS(q8, KIND_Q8, bf16, CK_KV_BF16, 2, 128)
HEADS(q8, KIND_Q8, f16, CK_KV_F16, 2, 256)
HEADS(q8, KIND_Q8, bf16, CK_KV_BF16, 2, 256)
#define HEADS_PACKED(KV, STORAGE, D)                                        \
    extern "C" __global__ void __launch_bounds__(CK_CLUSTER_THREADS, 2)     \
        heads_packed_##KV##_##D(const __grid_constant__ ck_heads_packed a)  \
    {                                                                       \
        heads<KIND_PACKED, STORAGE, 2, D>(a.a, a.kinds);                    \
    }
HEADS_PACKED(f16, CK_KV_F16, 128)
HEADS_PACKED(bf16, CK_KV_BF16, 128)
HEADS_PACKED(f16, CK_KV_F16, 256)
HEADS_PACKED(bf16, CK_KV_BF16, 256)
