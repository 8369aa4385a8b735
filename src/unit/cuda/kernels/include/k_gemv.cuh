/* k_gemv.cuh: parts shared by the SIMT products of weights with few rows (k_gemv.cu, k_wide.cu):
 * addressing of a pair of weight rows, loads of its 16-byte pieces, staging of x in shared memory
 * with an optional norm, fp32 multiply-add, and the epilogue of a row. T: threads of the block; B:
 * rows of x; U: pieces of each row in flight per lane.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_K_GEMV_CUH
#define SG_UNIT_CUDA_K_GEMV_CUH

#include "k_common.cuh"

enum { U = 4, FOURS = 2 };

struct pair_of { /* addresses of a pair of weight rows */
    const ck_segment *a, *b;
    uint32_t row_a, row_b, has_b;
};

/* Row pair number `pair` over all segments; with glu the same row of gate and up. */
__device__ __forceinline__ pair_of find_pair(const ck_gemv &g, uint32_t pair)
{
    pair_of p;
    if (g.glu) {
        p.a = &g.segment[0];
        p.b = &g.segment[1];
        p.row_a = p.row_b = pair;
        p.has_b = 1;
        return p;
    }
    /* Segments hold (n + 1) / 2 pairs each; an odd last row is paired with itself. */
    uint32_t s = 0;
#pragma unroll
    for (int i = 0; i < CK_SEGMENTS - 1; i++) {
        uint32_t many = (g.segment[s].n + 1) / 2;
        if (s + 1 < g.segments && pair >= many) {
            pair -= many;
            s++;
        }
    }
    p.a = p.b = &g.segment[s];
    p.row_a = 2 * pair;
    p.has_b = p.row_a + 1 < p.a->n;
    p.row_b = p.has_b ? p.row_a + 1 : p.row_a;
    return p;
}

/* Streaming load: no allocation in L1, 128-byte L2 prefetch. */
__device__ __forceinline__ uint4 load_stream(const uint4 *p)
{
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

/* Scale and offset as stored. They are converted only at their use: converting right after the load
 * would wait for it. */
template <int KIND> struct raw_scale {
    typedef float2 type;
};
template <> struct raw_scale<CK_Q8> {
    typedef __half type;
};
template <> struct raw_scale<CK_Q4> {
    typedef __half2 type;
};
template <> struct raw_scale<CK_F8> {
    typedef float type;
};
/* Conversion of a stored scale to {scale, offset}. */
template <int KIND> __device__ __forceinline__ float2 scale_of(typename raw_scale<KIND>::type s) { return s; }
template <> __device__ __forceinline__ float2 scale_of<CK_Q8>(__half s) { return make_float2(__half2float(s), 0); }
template <> __device__ __forceinline__ float2 scale_of<CK_Q4>(__half2 s) { return __half22float2(s); }
template <> __device__ __forceinline__ float2 scale_of<CK_F8>(float s) { return make_float2(s, 0); }

/* Stored scale of piece c of a row. */
template <int KIND>
__device__ __forceinline__ typename raw_scale<KIND>::type piece_scale_raw(const void *scales, size_t row, uint32_t pitch,
                                                                          uint32_t group, uint32_t c)
{
    typedef typename raw_scale<KIND>::type raw;
    if (KIND == CK_F8) return static_cast<const raw *>(scales)[row];
    return static_cast<const raw *>(scales)[row * pitch + (KIND == CK_Q8   ? c / 2
                                                           : KIND == CK_Q4 ? c
                                                                           : c * Kind<KIND>::N / group)];
}
/* U pieces of both rows with their scales, in registers. */
template <int KIND> struct pieces {
    uint4 a[U], b[U];
    typename raw_scale<KIND>::type sa[Kind<KIND>::SCALES ? U : 1], sb[Kind<KIND>::SCALES ? U : 1];
};

/* Loads the pieces c0, c0 + step, ... of both rows; pieces from nc on are zero. */
template <int KIND>
__device__ __forceinline__ void load_pieces(pieces<KIND> &w, const ck_gemv &g, const pair_of &p, uint32_t c0, uint32_t step,
                                            uint32_t nc)
{
    /* Rows of both weights as 16-byte pieces. */
    const uint4 *a = reinterpret_cast<const uint4 *>(static_cast<const unsigned char *>(p.a->data) +
                                                     (size_t)(p.a->at + p.row_a) * g.pitch);
    const uint4 *b = reinterpret_cast<const uint4 *>(static_cast<const unsigned char *>(p.b->data) +
                                                     (size_t)(p.b->at + p.row_b) * g.pitch);
#pragma unroll
    for (int u = 0; u < U; u++) {
        uint32_t c = c0 + u * step;
        w.a[u] = w.b[u] = make_uint4(0, 0, 0, 0);
        if (c < nc) {
            w.a[u] = load_stream(a + c);
            w.b[u] = load_stream(b + c);
        }
        /* Scales stay in storage format until multiply(). */
        if (Kind<KIND>::SCALES) {
            w.sa[u] = w.sb[u] = typename raw_scale<KIND>::type();
            if (c < nc) {
                w.sa[u] = piece_scale_raw<KIND>(p.a->scales, p.a->at + p.row_a, g.scale_pitch, g.group, c);
                w.sb[u] = piece_scale_raw<KIND>(p.b->scales, p.b->at + p.row_b, g.scale_pitch, g.group, c);
            }
        }
    }
    if (Kind<KIND>::WHOLE && (c0 & ~31u) + U * step >= nc) { /* row scale, loaded with the last pieces */
        w.sa[0] = piece_scale_raw<KIND>(p.a->scales, p.a->at + p.row_a, 0, 0, 0);
        w.sb[0] = piece_scale_raw<KIND>(p.b->scales, p.b->at + p.row_b, 0, 0, 0);
    }
}

/* Layout of x in shared memory: a piece has 1 << shift numbers, stored as planes of four numbers:
 * [plane][piece][4]. Lanes reading the same plane of neighbouring pieces have no bank conflicts. */
struct planes {
    uint32_t nc, shift;
    /* Index of element e of x: plane, then piece, then position in the float4. */
    __device__ __forceinline__ uint32_t at(uint32_t e) const
    {
        return (((e & ((1u << shift) - 1)) >> 2) * nc + (e >> shift)) * 4 + (e & 3);
    }
};
template <int KIND> __device__ __forceinline__ planes planes_of(uint32_t nc)
{
    enum { N = Kind<KIND>::N };
    return planes{nc, N == 4 ? 2u : N == 8 ? 3u : N == 16 ? 4u : 5u};
}

/* Rows can be read as float4. */
__device__ __forceinline__ bool by_fours(const void *p, uint32_t k)
{
    return k % 4 == 0 && (reinterpret_cast<uintptr_t>(p) & 15) == 0;
}
__device__ __forceinline__ void put_four(float *to, planes pl, uint32_t e, float4 v)
{
    *reinterpret_cast<float4 *>(to + pl.at(e)) = v;
}
/* Copies a row of x without a norm. Loads precede the stores of a batch, because the compiler must
 * assume that they alias. */
template <int T> __device__ __forceinline__ void load_plain(const float *x, uint32_t k, planes pl, float *to)
{
    /* Unaligned or odd-length rows: one float at a time. */
    if (!by_fours(x, k)) {
        for (uint32_t e = threadIdx.x; e < k; e += T) to[pl.at(e)] = x[e];
        return;
    }
    for (uint32_t e = threadIdx.x * 4; e < k; e += 4 * T * FOURS) {
        float4 v[FOURS];
#pragma unroll
        for (int i = 0; i < FOURS; i++)
            if (e + i * 4 * T < k) v[i] = float4_at(x, e + i * 4 * T);
#pragma unroll
        for (int i = 0; i < FOURS; i++)
            if (e + i * 4 * T < k) put_four(to, pl, e + i * 4 * T, v[i]);
    }
}

__device__ __forceinline__ float square(float x) { return x * x; }
__device__ __forceinline__ float squares_of(float4 v, float mean)
{
    return square(v.x - mean) + square(v.y - mean) + square(v.z - mean) + square(v.w - mean);
}

/* One row of x with a norm over the whole row: stored as is while it is summed, then scaled in place
 * by the same thread. */
template <int T>
__device__ __forceinline__ void load_normed(const ck_norm &norm, const float *x, uint32_t k, planes pl, float *to, float *scratch)
{
    const float *weight = norm.weight, *bias = norm.bias;
    uint32_t layer = norm.layer;
    float sum = 0, squares = 0, mean = 0, eps = norm.eps, plus = norm.plus_one && weight ? 1.0f : 0.0f;
    for (uint32_t e0 = threadIdx.x * 4; e0 < k; e0 += 4 * T * FOURS) {
        float4 v[FOURS];
#pragma unroll
        for (int i = 0; i < FOURS; i++)
            if (e0 + i * 4 * T < k) v[i] = float4_at(x, e0 + i * 4 * T);
#pragma unroll
        for (int i = 0; i < FOURS; i++) {
            if (e0 + i * 4 * T >= k) break;
            sum += v[i].x + v[i].y + v[i].z + v[i].w;
            squares += squares_of(v[i], 0);
            put_four(to, pl, e0 + i * 4 * T, v[i]);
        }
    }
    /* Layer norm needs the mean before the squares; an RMS norm has both sums after one pass. */
    if (layer) {
        mean = block_sum(sum, scratch) / k;
        squares = 0;
        for (uint32_t e = threadIdx.x * 4; e < k; e += 4 * T) squares += squares_of(float4_at(to, pl.at(e)), mean);
    }
    /* Second pass: scale what this thread stored itself, so no barrier is needed before it. */
    float inverse = rsqrtf(block_sum(squares, scratch) / k + eps);
    for (uint32_t e0 = threadIdx.x * 4; e0 < k; e0 += 4 * T * FOURS) {
        float4 w[FOURS];
#pragma unroll
        for (int i = 0; i < FOURS; i++) {
            w[i] = make_float4(1, 1, 1, 1);
            if (weight && e0 + i * 4 * T < k) w[i] = float4_at(weight, e0 + i * 4 * T);
        }
#pragma unroll
        for (int i = 0; i < FOURS; i++) {
            uint32_t e = e0 + i * 4 * T;
            if (e >= k) break;
            float4 v = float4_at(to, pl.at(e)), b = bias ? float4_at(bias, e) : make_float4(0, 0, 0, 0);
            v.x = apply_norm(v.x, mean, inverse, plus, w[i].x, b.x);
            v.y = apply_norm(v.y, mean, inverse, plus, w[i].y, b.y);
            v.z = apply_norm(v.z, mean, inverse, plus, w[i].z, b.z);
            v.w = apply_norm(v.w, mean, inverse, plus, w[i].w, b.w);
            put_four(to, pl, e, v);
        }
    }
}

/* Load and norm of rows whose address or width does not allow float4. */
template <int T>
__device__ void load_normed_scalar(const ck_norm &norm, const float *x, uint32_t k, planes pl, float *to, float *scratch)
{
    float sum = 0, squares = 0, mean = 0, plus = norm.plus_one && norm.weight ? 1.0f : 0.0f;
    for (uint32_t e = threadIdx.x; e < k; e += T) {
        float v = x[e];
        to[pl.at(e)] = v;
        sum += v;
        squares += v * v;
    }
    if (norm.layer) {
        mean = block_sum(sum, scratch) / k;
        squares = 0;
        for (uint32_t e = threadIdx.x; e < k; e += T) {
            float v = to[pl.at(e)] - mean;
            squares += v * v;
        }
    }
    float inverse = rsqrtf(block_sum(squares, scratch) / k + norm.eps);
    for (uint32_t e = threadIdx.x; e < k; e += T)
        to[pl.at(e)] = apply_norm(to[pl.at(e)], mean, inverse, plus, norm.weight ? norm.weight[e] : 1,
                                  norm.bias ? norm.bias[e] : 0);
}

/* One row of x with a norm per group and an optional gate: one warp per group. */
template <int T>
__device__ __forceinline__ void load_grouped(const ck_norm &norm, const float *x, const float *gate, uint32_t k, planes pl,
                                             float *to)
{
    uint32_t groups = norm.groups, group = k / groups, lane = threadIdx.x & 31;
    const float *weight = norm.weight;
    float plus = norm.plus_one && weight ? 1.0f : 0.0f, eps = norm.eps;
    /* Groups of 128 with aligned operands: one float4 per lane. */
    bool four = group == 128 && by_fours(x, k) && by_fours(gate, k) && by_fours(weight, k);
    for (uint32_t h = threadIdx.x >> 5; h < groups; h += T / 32) {
        const float *x_group = x + h * group, *gate_group = gate ? gate + h * group : nullptr;
        if (four) {
            uint32_t e = lane * 4;
            float4 v = float4_at(x_group, e), w = weight ? float4_at(weight, e) : make_float4(1, 1, 1, 1);
            float4 s = gate_group ? float4_at(gate_group, e) : make_float4(0, 0, 0, 0);
            float squares = v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
            float inverse = rsqrtf(warp_sum(squares) / group + eps);
            float4 y = make_float4(v.x * inverse * (plus + w.x), v.y * inverse * (plus + w.y), v.z * inverse * (plus + w.z),
                                   v.w * inverse * (plus + w.w));
            if (gate_group)
                y = make_float4(norm_gated(v.x, inverse, plus, w.x, s.x), norm_gated(v.y, inverse, plus, w.y, s.y),
                                norm_gated(v.z, inverse, plus, w.z, s.z), norm_gated(v.w, inverse, plus, w.w, s.w));
            put_four(to, pl, h * group + e, y);
            continue;
        }
        /* Any other group size: strided loop. */
        float squares = 0;
        for (uint32_t e = lane; e < group; e += 32) squares += x_group[e] * x_group[e];
        float inverse = rsqrtf(warp_sum(squares) / group + eps);
        for (uint32_t e = lane; e < group; e += 32) {
            float w = weight ? weight[e] : 1, y = x_group[e] * inverse * (plus + w);
            if (gate_group) y = norm_gated(x_group[e], inverse, plus, w, gate_group[e]);
            to[pl.at(h * group + e)] = y;
        }
    }
}

/* All rows of x into shared memory, normalised where the product has a norm; for storages with
 * offsets followed by the sum of each piece. */
template <int B, int T>
__device__ __forceinline__ void load_x(const ck_gemv &g, planes pl, bool offsets, float *xs, float *scratch)
{
    uint32_t nc = pl.nc, padded = nc << pl.shift, k = g.k;
    for (uint32_t b = 0; b < B; b++) {
        const float *x = g.x.p + (size_t)b * g.x.stride;
        float *to = xs + (size_t)b * padded;
        /* Zero-fill the padding, and whole rows that x does not have. */
        for (uint32_t e = (b < g.rows ? k : 0) + threadIdx.x; e < padded; e += T) to[pl.at(e)] = 0;
        if (b >= g.rows) continue;
        if (!g.norm.present)
            load_plain<T>(x, k, pl, to);
        else if (g.norm.groups > 1)
            load_grouped<T>(g.norm, x, g.norm.gate.p ? g.norm.gate.p + (size_t)b * g.norm.gate.stride : NULL, k, pl, to);
        else if (by_fours(x, k) && by_fours(g.norm.weight, k) && by_fours(g.norm.bias, k))
            load_normed<T>(g.norm, x, k, pl, to, scratch);
        else
            load_normed_scalar<T>(g.norm, x, k, pl, to, scratch);
    }
    __syncthreads();
    if (!offsets) return;
    /* Sum of each piece of x: w = scale * q + offset contributes offset * sum(x). */
    float *sums = xs + (size_t)B * padded;
    for (uint32_t i = threadIdx.x; i < B * nc; i += T) {
        const float *x = xs + (size_t)(i / nc) * padded;
        float s = 0;
        for (uint32_t q = 0; q < padded / nc / 4; q++)
            for (int j = 0; j < 4; j++) s += x[(q * nc + i % nc) * 4 + j];
        sums[i] = s;
    }
    __syncthreads();
}

/* acc += pieces of both rows times x, for the B rows of x; offsets multiply the sum of the piece. */
template <int KIND, int B>
__device__ __forceinline__ void multiply(const pieces<KIND> &w, uint32_t c0, uint32_t step, uint32_t nc, const float *xs,
                                         float (&acc)[2][B])
{
    enum { N = Kind<KIND>::N };
    const float *sums = xs + (size_t)B * nc * N;
#pragma unroll
    for (int u = 0; u < U; u++) {
        uint32_t c = c0 + u * step;
        if (c >= nc) continue;
        float part[2][B];
#pragma unroll
        for (int b = 0; b < B; b++) part[0][b] = part[1][b] = 0;
#pragma unroll
        for (int pl = 0; pl < N / 4; pl++) {
            float4 a = piece_plane<KIND>(w.a[u], pl), d = piece_plane<KIND>(w.b[u], pl);
#pragma unroll
            for (int b = 0; b < B; b++) {
                float4 x = *reinterpret_cast<const float4 *>(xs + ((size_t)b * (N / 4) * nc + (size_t)pl * nc + c) * 4);
                part[0][b] = fmaf(a.w, x.w, fmaf(a.z, x.z, fmaf(a.y, x.y, fmaf(a.x, x.x, part[0][b]))));
                part[1][b] = fmaf(d.w, x.w, fmaf(d.z, x.z, fmaf(d.y, x.y, fmaf(d.x, x.x, part[1][b]))));
            }
        }
        /* Apply scale and offset once per piece. */
        float2 sa = make_float2(1, 0), sb = sa;
        if (Kind<KIND>::SCALES) sa = scale_of<KIND>(w.sa[u]), sb = scale_of<KIND>(w.sb[u]);
#pragma unroll
        for (int b = 0; b < B; b++) {
            if (Kind<KIND>::OFFSETS) {
                float s = sums[b * nc + c];
                acc[0][b] = fmaf(sa.x, part[0][b], fmaf(sa.y, s, acc[0][b]));
                acc[1][b] = fmaf(sb.x, part[1][b], fmaf(sb.y, s, acc[1][b]));
            } else if (Kind<KIND>::SCALES) {
                acc[0][b] = fmaf(sa.x, part[0][b], acc[0][b]);
                acc[1][b] = fmaf(sb.x, part[1][b], acc[1][b]);
            } else {
                acc[0][b] += part[0][b];
                acc[1][b] += part[1][b];
            }
        }
    }
}

/* Bias and residual of one output; `residual`: of a single row. */
template <int B> __device__ __forceinline__ float finish(const ck_segment *s, uint32_t row, uint32_t b, float v, float residual)
{
    if (s->bias) v += s->bias[row];
    if (B == 1) return v + residual;
    if (s->residual.p) v += s->residual.p[(size_t)b * s->residual.stride + row];
    return v;
}

/* What is added after a product with one row is loaded before its sums are ready, one number per lane: lanes 0 and 1 the residual
 * of rows a and b of the pair. Or the short convolution (k_epilogue.cuh): lanes 0 to 7 the operands of row a, lanes 8 to 15 those
 * of row b: weights of the inputs 0 to 3 tokens back, these inputs from 1 token back on, bias. */
__device__ __forceinline__ bool is_convolved(const ck_gemv &g, const ck_epilogue &after, const pair_of &p)
{
    return after.kind == CK_EPILOGUE_CONV && p.a == &g.segment[after.segment];
}
__device__ __forceinline__ float load_operands(const ck_gemv &g, const ck_epilogue &after, const pair_of &p)
{
    uint32_t lane = threadIdx.x & 31, j = lane & 7, m = j < 4 ? j : j - 3, past = after.taps - 1,
             row = lane < 8 ? p.row_a : p.row_b;
    if (!is_convolved(g, after, p)) {
        const ck_segment *s = lane ? p.b : p.a;
        return lane < 2 && s->residual.p ? s->residual.p[lane ? p.row_b : p.row_a] : 0;
    }
    if (lane >= 16) return 0;
    if (j == 7) return after.bias ? after.bias[row] : 0;
    if (m > past) return 0;
    if (j < 4) return after.weight[(size_t)row * after.taps + past - m];
    return static_cast<const float *>(after.pass.slots[after.slot])[(size_t)(past - m) * p.a->n + row];
}
/* x: of this lane's row. Stores the result and the shifted inputs. By whole warps. */
__device__ __forceinline__ void convolve(const ck_epilogue &after, const pair_of &p, float conv, float x)
{
    uint32_t lane = threadIdx.x & 31, past = after.taps - 1, row = lane < 8 ? p.row_a : p.row_b;
    float w[4], in[4] = {x}, sum = __shfl_sync(0xffffffffu, conv, 7, 8);
#pragma unroll
    for (int m = 0; m < 4; m++) w[m] = __shfl_sync(0xffffffffu, conv, m, 8);
#pragma unroll
    for (int m = 1; m < 4; m++) in[m] = __shfl_sync(0xffffffffu, conv, m + 3, 8);
#pragma unroll
    for (int m = 3; m >= 0; m--) /* oldest first, as in k_delta.cu */
        if (m <= past) sum += w[m] * in[m];
    if (lane % 8 || lane > 8 || (lane && !p.has_b)) return;
    after.y.p[row] = activate(after.act, sum);
    float *to = static_cast<float *>(after.pass.slots_out[after.slot]);
    for (uint32_t m = 1; m <= past && !after.pass.head->stopped; m++) to[(size_t)(past - m) * p.a->n + row] = in[m - 1];
}

/* Stores both outputs for the rows of x: lane b handles row b. By the first warp of a warp group. */
template <int KIND, int B>
__device__ __forceinline__ void write_pair(const ck_gemv &g, const ck_epilogue &after, const pair_of &p, const pieces<KIND> &w,
                                           float operands, const float (&acc)[2][B], float &best, uint32_t &index)
{
    uint32_t lane = threadIdx.x & 31;
    float a = 0, d = 0;
    if (B == 1 && is_convolved(g, after, p)) {
        float v[2] = {acc[0][0], acc[1][0]};
        if (Kind<KIND>::WHOLE) v[0] *= scale_of<KIND>(w.sa[0]).x, v[1] *= scale_of<KIND>(w.sb[0]).x;
        bool second = lane >= 8;
        float x = second ? v[1] : v[0];
        if (p.a->bias) x += p.a->bias[second ? p.row_b : p.row_a];
        convolve(after, p, operands, x);
        return;
    }
    const float of_b = B == 1 ? __shfl_sync(0xffffffffu, operands, 1) : 0;
    /* Lane b takes row b; acc is identical in all lanes. */
#pragma unroll
    for (int b = 0; b < B; b++)
        if (lane == b) {
            a = acc[0][b];
            d = acc[1][b];
        }
    if (lane >= g.rows) return;
    if (Kind<KIND>::WHOLE) a *= scale_of<KIND>(w.sa[0]).x, d *= scale_of<KIND>(w.sb[0]).x;
    a = finish<B>(p.a, p.row_a, lane, a, operands);
    if (g.glu) {
        d = finish<B>(p.b, p.row_b, lane, d, of_b);
        p.a->y.p[(size_t)lane * p.a->y.stride + p.row_a] = activate(g.act, a) * d;
        return;
    }
    if (p.has_b) d = finish<B>(p.b, p.row_b, lane, d, of_b);
    if (after.kind == CK_EPILOGUE_ACT) {
        after.y.p[p.row_a] = activate(after.act, a);
        if (p.has_b) after.y.p[p.row_b] = activate(after.act, d);
        return;
    }
    if (p.a->y.p) {
        p.a->y.p[(size_t)lane * p.a->y.stride + p.row_a] = a;
        if (p.has_b) p.a->y.p[(size_t)lane * p.a->y.stride + p.row_b] = d;
    }
    if (g.best) {
        update_best(g.banned, a, p.row_a, best, index);
        if (p.has_b) update_best(g.banned, d, p.row_b, best, index);
    }
}

#endif
