/* k_gemv.cuh: what products of weights with few rows share (k_gemv.cu, k_wide.cu): where a pair of rows lies, its pieces, x
 * into shared memory with the norm before, the product of pieces, the end of a row. T: threads of the block.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_K_GEMV_CUH
#define SG_UNIT_CUDA_K_GEMV_CUH

#include "k_common.cuh"

enum { U = 4, FOURS = 2 };

struct pair_of { /* where a pair of rows lies */
    const ck_segment *a, *b;
    uint32_t row_a, row_b, two;
};

__device__ __forceinline__ pair_of find_pair(const ck_gemv &g, uint32_t pair)
{
    pair_of p;
    if (g.glu) {
        p.a = &g.segment[0];
        p.b = &g.segment[1];
        p.row_a = p.row_b = pair;
        p.two = 1;
        return p;
    }
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
    p.two = p.row_a + 1 < p.a->n;
    p.row_b = p.two ? p.row_a + 1 : p.row_a;
    return p;
}

__device__ __forceinline__ uint4 load_stream(const uint4 *p)
{
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

/* Scale and offset as they lie in memory: what is loaded ahead is converted only where it is used, or the load is waited
 * for. */
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
template <int KIND> __device__ __forceinline__ float2 scale_of(typename raw_scale<KIND>::type s) { return s; }
template <> __device__ __forceinline__ float2 scale_of<CK_Q8>(__half s) { return make_float2(__half2float(s), 0); }
template <> __device__ __forceinline__ float2 scale_of<CK_Q4>(__half2 s) { return __half22float2(s); }
template <> __device__ __forceinline__ float2 scale_of<CK_F8>(float s) { return make_float2(s, 0); }

/* Of the piece `c` of a row. */
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
template <int KIND> struct pieces {
    uint4 a[U], b[U];
    typename raw_scale<KIND>::type sa[Kind<KIND>::SCALES ? U : 1], sb[Kind<KIND>::SCALES ? U : 1];
};

template <int KIND>
__device__ __forceinline__ void load_pieces(pieces<KIND> &w, const ck_gemv &g, const pair_of &p, uint32_t c0,
                                            uint32_t step, uint32_t nc)
{
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
        if (Kind<KIND>::SCALES) {
            w.sa[u] = w.sb[u] = typename raw_scale<KIND>::type();
            if (c < nc) {
                w.sa[u] = piece_scale_raw<KIND>(p.a->scales, p.a->at + p.row_a, g.scale_pitch, g.group, c);
                w.sb[u] = piece_scale_raw<KIND>(p.b->scales, p.b->at + p.row_b, g.scale_pitch, g.group, c);
            }
        }
    }
    if (Kind<KIND>::WHOLE && (c0 & ~31u) + U * step >= nc) { /* with the last ones of the rows */
        w.sa[0] = piece_scale_raw<KIND>(p.a->scales, p.a->at + p.row_a, 0, 0, 0);
        w.sb[0] = piece_scale_raw<KIND>(p.b->scales, p.b->at + p.row_b, 0, 0, 0);
    }
}

/* x in shared memory: planes of four numbers of each piece; a piece has 1 << shift of them. */
struct planes {
    uint32_t nc, shift;
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

__device__ __forceinline__ bool by_fours(const void *p, uint32_t k)
{
    return k % 4 == 0 && (reinterpret_cast<uintptr_t>(p) & 15) == 0;
}
__device__ __forceinline__ void put_four(float *to, planes pl, uint32_t e, float4 v)
{
    *reinterpret_cast<float4 *>(to + pl.at(e)) = v;
}
/* Loads come before the stores of their batch: the compiler can't know that x does not lie where they go. */
template <int T>
__device__ __forceinline__ void bring_plain(const float *x, uint32_t k, planes pl, float *to)
{
    if (!by_fours(x, k)) {
        for (uint32_t e = threadIdx.x; e < k; e += T) to[pl.at(e)] = x[e];
        return;
    }
    for (uint32_t e = threadIdx.x * 4; e < k; e += 4 * T * FOURS) {
        float4 v[FOURS];
#pragma unroll
        for (int i = 0; i < FOURS; i++)
            if (e + i * 4 * T < k) v[i] = four_at(x, e + i * 4 * T);
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

/* One row of x, normalised as a whole: x goes to its place as it is, is summed, and scaled there by the thread
 * that put it. */
template <int T>
__device__ __forceinline__ void bring_normed(const ck_norm &norm, const float *x, uint32_t k, planes pl,
                                             float *to, float *room)
{
    const float *weight = norm.weight, *bias = norm.bias;
    uint32_t layer = norm.layer;
    float sum = 0, squares = 0, mean = 0, eps = norm.eps, plus = norm.plus_one && weight ? 1.0f : 0.0f;
    for (uint32_t e0 = threadIdx.x * 4; e0 < k; e0 += 4 * T * FOURS) {
        float4 v[FOURS];
#pragma unroll
        for (int i = 0; i < FOURS; i++)
            if (e0 + i * 4 * T < k) v[i] = four_at(x, e0 + i * 4 * T);
#pragma unroll
        for (int i = 0; i < FOURS; i++) {
            if (e0 + i * 4 * T >= k) break;
            sum += v[i].x + v[i].y + v[i].z + v[i].w;
            squares += squares_of(v[i], 0);
            put_four(to, pl, e0 + i * 4 * T, v[i]);
        }
    }
    if (layer) {
        mean = block_sum(sum, room) / k;
        squares = 0;
        for (uint32_t e = threadIdx.x * 4; e < k; e += 4 * T) squares += squares_of(four_at(to, pl.at(e)), mean);
    }
    float inverse = rsqrtf(block_sum(squares, room) / k + eps);
    for (uint32_t e0 = threadIdx.x * 4; e0 < k; e0 += 4 * T * FOURS) {
        float4 w[FOURS];
#pragma unroll
        for (int i = 0; i < FOURS; i++) {
            w[i] = make_float4(1, 1, 1, 1);
            if (weight && e0 + i * 4 * T < k) w[i] = four_at(weight, e0 + i * 4 * T);
        }
#pragma unroll
        for (int i = 0; i < FOURS; i++) {
            uint32_t e = e0 + i * 4 * T;
            if (e >= k) break;
            float4 v = four_at(to, pl.at(e)), b = bias ? four_at(bias, e) : make_float4(0, 0, 0, 0);
            v.x = one_normed(v.x, mean, inverse, plus, w[i].x, b.x);
            v.y = one_normed(v.y, mean, inverse, plus, w[i].y, b.y);
            v.z = one_normed(v.z, mean, inverse, plus, w[i].z, b.z);
            v.w = one_normed(v.w, mean, inverse, plus, w[i].w, b.w);
            put_four(to, pl, e, v);
        }
    }
}

/* The same for rows that cannot be read by fours. */
template <int T>
__device__ void bring_normed_ones(const ck_norm &norm, const float *x, uint32_t k, planes pl, float *to,
                                  float *room)
{
    float sum = 0, squares = 0, mean = 0, plus = norm.plus_one && norm.weight ? 1.0f : 0.0f;
    for (uint32_t e = threadIdx.x; e < k; e += T) {
        float v = x[e];
        to[pl.at(e)] = v;
        sum += v;
        squares += v * v;
    }
    if (norm.layer) {
        mean = block_sum(sum, room) / k;
        squares = 0;
        for (uint32_t e = threadIdx.x; e < k; e += T) {
            float v = to[pl.at(e)] - mean;
            squares += v * v;
        }
    }
    float inverse = rsqrtf(block_sum(squares, room) / k + norm.eps);
    for (uint32_t e = threadIdx.x; e < k; e += T)
        to[pl.at(e)] = one_normed(to[pl.at(e)], mean, inverse, plus,
                               norm.weight ? norm.weight[e] : 1, norm.bias ? norm.bias[e] : 0);
}

/* One row of x, normalised by groups with an optional gate: a warp per group. */
template <int T>
__device__ __forceinline__ void bring_grouped(const ck_norm &norm, const float *x, const float *gate,
                                              uint32_t k, planes pl, float *to)
{
    uint32_t groups = norm.groups, group = k / groups, lane = threadIdx.x & 31;
    const float *weight = norm.weight;
    float plus = norm.plus_one && weight ? 1.0f : 0.0f, eps = norm.eps;
    bool four = group == 128 && by_fours(x, k) && by_fours(gate, k) && by_fours(weight, k);
    for (uint32_t h = threadIdx.x >> 5; h < groups; h += T / 32) {
        const float *own = x + h * group, *own_gate = gate ? gate + h * group : nullptr;
        if (four) {
            uint32_t e = lane * 4;
            float4 v = four_at(own, e), w = weight ? four_at(weight, e) : make_float4(1, 1, 1, 1);
            float4 s = own_gate ? four_at(own_gate, e) : make_float4(0, 0, 0, 0);
            float squares = v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
            float inverse = rsqrtf(warp_sum(squares) / group + eps);
            float4 y = make_float4(v.x * inverse * (plus + w.x), v.y * inverse * (plus + w.y),
                                   v.z * inverse * (plus + w.z), v.w * inverse * (plus + w.w));
            if (own_gate)
                y = make_float4(gated(v.x, inverse, plus, w.x, s.x), gated(v.y, inverse, plus, w.y, s.y),
                                gated(v.z, inverse, plus, w.z, s.z), gated(v.w, inverse, plus, w.w, s.w));
            put_four(to, pl, h * group + e, y);
            continue;
        }
        float squares = 0;
        for (uint32_t e = lane; e < group; e += 32) squares += own[e] * own[e];
        float inverse = rsqrtf(warp_sum(squares) / group + eps);
        for (uint32_t e = lane; e < group; e += 32) {
            float w = weight ? weight[e] : 1, y = own[e] * inverse * (plus + w);
            if (own_gate) y = gated(own[e], inverse, plus, w, own_gate[e]);
            to[pl.at(h * group + e)] = y;
        }
    }
}

/* x (normalised when asked) into shared memory, planes of pieces; behind it the sums of pieces for kinds with
 * offsets. */
template <int B, int T>
__device__ __forceinline__ void bring_x(const ck_gemv &g, planes pl, bool offsets, float *xs, float *room)
{
    uint32_t nc = pl.nc, padded = nc << pl.shift, k = g.k;
    for (uint32_t b = 0; b < B; b++) {
        const float *x = g.x.p + (size_t)b * g.x.stride;
        float *to = xs + (size_t)b * padded;
        for (uint32_t e = (b < g.rows ? k : 0) + threadIdx.x; e < padded; e += T)
            to[pl.at(e)] = 0;
        if (b >= g.rows) continue;
        if (!g.norm.present)
            bring_plain<T>(x, k, pl, to);
        else if (g.norm.groups > 1)
            bring_grouped<T>(g.norm, x,
                                g.norm.gate.p ? g.norm.gate.p + (size_t)b * g.norm.gate.stride : NULL, k, pl,
                          to);
        else if (by_fours(x, k) && by_fours(g.norm.weight, k) && by_fours(g.norm.bias, k))
            bring_normed<T>(g.norm, x, k, pl, to, room);
        else
            bring_normed_ones<T>(g.norm, x, k, pl, to, room);
    }
    __syncthreads();
    if (!offsets) return;
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

template <int KIND, int B>
__device__ __forceinline__ void multiply(const pieces<KIND> &w, uint32_t c0, uint32_t step, uint32_t nc,
                                         const float *xs, float (&acc)[2][B])
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
                float4 x = *reinterpret_cast<const float4 *>(
                    xs + ((size_t)b * (N / 4) * nc + (size_t)pl * nc + c) * 4);
                part[0][b] = fmaf(a.w, x.w, fmaf(a.z, x.z, fmaf(a.y, x.y, fmaf(a.x, x.x, part[0][b]))));
                part[1][b] = fmaf(d.w, x.w, fmaf(d.z, x.z, fmaf(d.y, x.y, fmaf(d.x, x.x, part[1][b]))));
            }
        }
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

__device__ __forceinline__ float finish(const ck_segment *s, uint32_t row, uint32_t b, float v)
{
    if (s->bias) v += s->bias[row];
    if (s->residual.p) v += s->residual.p[(size_t)b * s->residual.stride + row];
    return v;
}

/* Lane b < B of the team's first warp writes row b of both outputs. */
template <int KIND, int B>
__device__ __forceinline__ void write_pair(const ck_gemv &g, const pair_of &p, const pieces<KIND> &w, const float (&acc)[2][B],
                                           float &best, uint32_t &index)
{
    uint32_t lane = threadIdx.x & 31;
    float a = 0, d = 0;
#pragma unroll
    for (int b = 0; b < B; b++)
        if (lane == b) {
            a = acc[0][b];
            d = acc[1][b];
        }
    if (lane >= g.rows) return;
    if (Kind<KIND>::WHOLE) a *= scale_of<KIND>(w.sa[0]).x, d *= scale_of<KIND>(w.sb[0]).x;
    a = finish(p.a, p.row_a, lane, a);
    if (g.glu) {
        d = finish(p.b, p.row_b, lane, d);
        p.a->y.p[(size_t)lane * p.a->y.stride + p.row_a] = activate(g.act, a) * d;
        return;
    }
    if (p.two) d = finish(p.b, p.row_b, lane, d);
    if (p.a->y.p) {
        p.a->y.p[(size_t)lane * p.a->y.stride + p.row_a] = a;
        if (p.two) p.a->y.p[(size_t)lane * p.a->y.stride + p.row_b] = d;
    }
    if (g.best) {
        keep_best(g.banned, a, p.row_a, best, index);
        if (p.two) keep_best(g.banned, d, p.row_b, best, index);
    }
}

#endif
