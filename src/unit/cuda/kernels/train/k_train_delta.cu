/* k_train_delta.cu: the gated delta rule of training. Per token and value head, with D = e^g S: r = v - D^T k; S = D + beta k r^T;
 * y = S^T q. Backward, with R the gradient of S: R += q dy^T; u = R^T k; dq = S dy; dk = beta (R r - D u); dv = beta u;
 * dbeta = u . r; R = e^g (R - beta k u^T).
 *
 * Columns of S and of R depend on no other column, and once r and u of all tokens are known, rows depend on no other row. So four
 * scans need no matrix of any token: r by columns forward, u by columns backward, dq and D u by rows forward, R r by rows backward.
 * The gradient of g is the sum of y . dy - dv . v over this and all later tokens, since both <R, S> and its change by a token
 * are known.
 * SPDX-License-Identifier: MIT */
#include "k_train.cuh"

/* --- per token --- */

/* A warp per row and key head: normalised q and k, and the gates of its value heads. */
extern "C" __global__ void train_delta_prepare(const __grid_constant__ ct_delta a)
{
    uint32_t t = blockIdx.x / a.k_heads, key = blockIdx.x % a.k_heads, group = a.v_heads / a.k_heads, lane = threadIdx.x;
    const float *q = a.q.p + t * a.q.stride + key * a.dk, *k = a.k.p + t * a.k.stride + key * a.dk;
    size_t at = (size_t)blockIdx.x * a.dk;
    double qq = 0, kk = 0, scale = 1.0 / sqrt((double)a.dk);
    for (uint32_t i = lane; i < a.dk; i += 32) qq += (double)q[i] * q[i], kk += (double)k[i] * k[i];
    qq = train_lanes_sum(qq, 32);
    kk = train_lanes_sum(kk, 32);
    double iq = a.l2_eps > 0 ? 1.0 / sqrt(qq + (double)a.l2_eps) : 1, ik = a.l2_eps > 0 ? 1.0 / sqrt(kk + (double)a.l2_eps) : 1;
    for (uint32_t i = lane; i < a.dk; i += 32) {
        a.qn[at + i] = (float)(q[i] * iq * scale);
        a.kn[at + i] = (float)(k[i] * ik);
    }
    if (!lane) a.inverse[2 * (size_t)blockIdx.x] = (float)iq, a.inverse[2 * (size_t)blockIdx.x + 1] = (float)ik;
    for (uint32_t h = key * group + lane; h < (key + 1) * group; h += 32) {
        float x = a.a.p[t * a.a.stride + h] + a.dt[h], rate = a.is_log ? -expf(a.decay[h]) : a.decay[h];
        float soft = (x > 0 ? x : 0) + log1pf(expf(-fabsf(x)));
        a.gates[2 * ((size_t)t * a.v_heads + h)] = expf(rate * soft);
        a.gates[2 * ((size_t)t * a.v_heads + h) + 1] = train_sigmoid(a.b.p[t * a.b.stride + h]);
    }
}

/* --- scans --- */

/* Where a group of CT_LANES threads is: a column or row `i` of a head of a sequence. */
struct delta_line {
    uint32_t lane, i, h, key, from, to;

    __device__ delta_line(const ct_delta &a)
    {
        lane = threadIdx.x % CT_LANES;
        i = blockIdx.x * CT_DELTA_BLOCK + threadIdx.x / CT_LANES;
        h = blockIdx.y;
        key = h / (a.v_heads / a.k_heads);
        from = a.from[blockIdx.z];
        to = a.from[blockIdx.z + 1];
    }
};

__device__ const float *value_row(const ct_delta &a, const float *p, uint32_t t, uint32_t h)
{
    return p + ((size_t)t * a.v_heads + h) * a.dvw;
}
__device__ float at_or_0(const float *p, uint32_t i, uint32_t n) { return i < n ? p[i] : 0.0f; }

/* Column i of S, forward: y, and r where store_rest. */
template <int N> __device__ void columns_forward(const ct_delta &a)
{
    delta_line x(a);
    float S[N];
#pragma unroll
    for (int n = 0; n < N; n++) S[n] = 0;
    for (uint32_t t = x.from; t < x.to; t++) {
        const float *k = a.kn + ((size_t)t * a.k_heads + x.key) * a.dk, *q = a.qn + ((size_t)t * a.k_heads + x.key) * a.dk;
        const float *gates = a.gates + 2 * ((size_t)t * a.v_heads + x.h);
        float kk[N], qq[N], v = at_or_0(a.v.p + t * a.v.stride + x.h * a.dvw, x.i, a.dvw), forget = gates[0], along = 0, y = 0;
#pragma unroll
        for (int n = 0; n < N; n++) {
            kk[n] = at_or_0(k, x.lane + CT_LANES * n, a.dk);
            qq[n] = at_or_0(q, x.lane + CT_LANES * n, a.dk);
            S[n] *= forget;
            along = fmaf(S[n], kk[n], along);
        }
        float rest = v - train_lanes_sum(along, CT_LANES), step = gates[1] * rest;
#pragma unroll
        for (int n = 0; n < N; n++) {
            S[n] = fmaf(kk[n], step, S[n]);
            y = fmaf(S[n], qq[n], y);
        }
        y = train_lanes_sum(y, CT_LANES);
        if (x.lane || x.i >= a.dvw) continue;
        size_t at = ((size_t)t * a.v_heads + x.h) * a.dvw + x.i;
        a.out[at] = y;
        if (a.store_rest) a.rest[at] = rest;
    }
}

/* Column i of R, backward: u. */
template <int N> __device__ void columns_back(const ct_delta &a)
{
    delta_line x(a);
    float R[N];
#pragma unroll
    for (int n = 0; n < N; n++) R[n] = 0;
    for (uint32_t t = x.to; t-- > x.from;) {
        const float *k = a.kn + ((size_t)t * a.k_heads + x.key) * a.dk, *q = a.qn + ((size_t)t * a.k_heads + x.key) * a.dk;
        const float *gates = a.gates + 2 * ((size_t)t * a.v_heads + x.h);
        float kk[N], dy = at_or_0(value_row(a, a.dout, t, x.h), x.i, a.dvw), forget = gates[0], u = 0;
#pragma unroll
        for (int n = 0; n < N; n++) {
            kk[n] = at_or_0(k, x.lane + CT_LANES * n, a.dk);
            R[n] = fmaf(at_or_0(q, x.lane + CT_LANES * n, a.dk), dy, R[n]);
            u = fmaf(R[n], kk[n], u);
        }
        u = train_lanes_sum(u, CT_LANES);
        float f = gates[1] * u;
#pragma unroll
        for (int n = 0; n < N; n++) R[n] = fmaf(-kk[n], f, R[n]) * forget;
        if (!x.lane && x.i < a.dvw) a.f[((size_t)t * a.v_heads + x.h) * a.dvw + x.i] = u;
    }
}

/* Row i of S, forward: dq and D (beta u). */
template <int N> __device__ void rows_forward(const ct_delta &a)
{
    delta_line x(a);
    float S[N];
#pragma unroll
    for (int n = 0; n < N; n++) S[n] = 0;
    for (uint32_t t = x.from; t < x.to; t++) {
        const float *gates = a.gates + 2 * ((size_t)t * a.v_heads + x.h);
        const float *dy = value_row(a, a.dout, t, x.h), *rest = value_row(a, a.rest, t, x.h), *u = value_row(a, a.f, t, x.h);
        float k = at_or_0(a.kn + ((size_t)t * a.k_heads + x.key) * a.dk, x.i, a.dk), forget = gates[0], beta = gates[1];
        float step = beta * k, dq = 0, dk = 0;
#pragma unroll
        for (int n = 0; n < N; n++) {
            uint32_t j = x.lane + CT_LANES * n;
            S[n] *= forget;
            dk = fmaf(S[n], at_or_0(u, j, a.dvw), dk);
            S[n] = fmaf(step, at_or_0(rest, j, a.dvw), S[n]);
            dq = fmaf(S[n], at_or_0(dy, j, a.dvw), dq);
        }
        dq = train_lanes_sum(dq, CT_LANES);
        dk = train_lanes_sum(dk, CT_LANES);
        if (x.lane || x.i >= a.dk) continue;
        size_t at = ((size_t)t * a.v_heads + x.h) * a.dk + x.i;
        a.gq[at] = dq;
        a.gk2[at] = beta * dk;
    }
}

/* Row i of R, backward: R (beta r). */
template <int N> __device__ void rows_back(const ct_delta &a)
{
    delta_line x(a);
    float R[N];
#pragma unroll
    for (int n = 0; n < N; n++) R[n] = 0;
    for (uint32_t t = x.to; t-- > x.from;) {
        const float *gates = a.gates + 2 * ((size_t)t * a.v_heads + x.h);
        const float *dy = value_row(a, a.dout, t, x.h), *rest = value_row(a, a.rest, t, x.h), *u = value_row(a, a.f, t, x.h);
        size_t key = ((size_t)t * a.k_heads + x.key) * a.dk;
        float k = at_or_0(a.kn + key, x.i, a.dk), q = at_or_0(a.qn + key, x.i, a.dk), forget = gates[0], beta = gates[1], dk = 0;
#pragma unroll
        for (int n = 0; n < N; n++) {
            uint32_t j = x.lane + CT_LANES * n;
            R[n] = fmaf(q, at_or_0(dy, j, a.dvw), R[n]);
            dk = fmaf(R[n], at_or_0(rest, j, a.dvw), dk);
            R[n] = fmaf(-k * beta, at_or_0(u, j, a.dvw), R[n]) * forget;
        }
        dk = train_lanes_sum(dk, CT_LANES);
        if (!x.lane && x.i < a.dk) a.gk[((size_t)t * a.v_heads + x.h) * a.dk + x.i] = beta * dk;
    }
}

/* Instances for lines of up to 128 and up to 256 numbers. */
#define SCAN(name, scan)                                                                                                        \
    extern "C" __global__ void __launch_bounds__(CT_THREADS) name##_128(const __grid_constant__ ct_delta a) { scan<16>(a); }    \
    extern "C" __global__ void __launch_bounds__(CT_THREADS) name##_256(const __grid_constant__ ct_delta a) { scan<32>(a); }
SCAN(train_delta_columns, columns_forward)
SCAN(train_delta_columns_back, columns_back)
SCAN(train_delta_rows, rows_forward)
SCAN(train_delta_rows_back, rows_back)

/* --- gradients of the operands --- */

/* A warp per row and value head: dv, the gradient of b, and y . dy - dv . v, which is stored for train_delta_decay. */
extern "C" __global__ void train_delta_values(const __grid_constant__ ct_delta a)
{
    uint32_t t = blockIdx.x / a.v_heads, h = blockIdx.x % a.v_heads, lane = threadIdx.x;
    const float *dy = value_row(a, a.dout, t, h), *rest = value_row(a, a.rest, t, h), *u = value_row(a, a.f, t, h);
    const float *y = value_row(a, a.y, t, h), *v = a.v.p + t * a.v.stride + h * a.dvw;
    float beta = a.gates[2 * (size_t)blockIdx.x + 1];
    double along = 0, dbeta = 0;
    for (uint32_t j = lane; j < a.dvw; j += 32) {
        float f = beta * u[j];
        along += (double)y[j] * dy[j] - (double)f * v[j];
        dbeta += (double)u[j] * rest[j];
        if (a.to_v.p) a.to_v.p[t * a.to_v.stride + h * a.dvw + j] += f;
    }
    along = train_lanes_sum(along, 32);
    dbeta = train_lanes_sum(dbeta, 32);
    if (lane) return;
    /* Both words hold one double until train_delta_decay reads it. */
    reinterpret_cast<double *>(a.parts)[blockIdx.x] = along;
    if (a.to_b.p) a.to_b.p[t * a.to_b.stride + h] += (float)dbeta * beta * (1 - beta);
}

/* A thread per sequence and value head: gradients of a, of dt and of the decay. */
extern "C" __global__ void train_delta_decay(const __grid_constant__ ct_delta a)
{
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x, s = i / a.v_heads, h = i % a.v_heads;
    if (s >= a.sequences) return;
    float rate = a.is_log ? -expf(a.decay[h]) : a.decay[h];
    double dg = 0;
    for (uint32_t t = a.from[s + 1]; t-- > a.from[s];) {
        size_t at = (size_t)t * a.v_heads + h;
        dg += reinterpret_cast<const double *>(a.parts)[at];
        float x = a.a.p[t * a.a.stride + h] + a.dt[h], soft = (x > 0 ? x : 0) + log1pf(expf(-fabsf(x)));
        float da = (float)(dg * rate) * train_sigmoid(x);
        if (a.to_a.p) a.to_a.p[t * a.to_a.stride + h] += da;
        a.parts[2 * at] = da;
        a.parts[2 * at + 1] = (float)(dg * soft) * (a.is_log ? rate : 1.0f);
    }
}

/* dx += scale inverse (dy - n (n . dy)) with n = y / scale; without normalisation, scale dy. A warp. */
__device__ void normalised_back(float *dx, const float *y, const float *dy, uint32_t n, float inverse, float scale, bool l2)
{
    double along = 0;
    for (uint32_t i = threadIdx.x; i < n && l2; i += 32) along += (double)(y[i] / scale) * dy[i];
    along = train_lanes_sum(along, 32);
    for (uint32_t i = threadIdx.x; i < n; i += 32)
        dx[i] += (float)((double)scale * inverse * (dy[i] - (double)(y[i] / scale) * along));
}

/* A warp per row and key head: dq and dk from the sums over its value heads. */
extern "C" __global__ void train_delta_keys(const __grid_constant__ ct_delta a)
{
    __shared__ float dq[CT_DELTA_MAX], dk[CT_DELTA_MAX];
    uint32_t t = blockIdx.x / a.k_heads, key = blockIdx.x % a.k_heads, group = a.v_heads / a.k_heads;
    for (uint32_t i = threadIdx.x; i < a.dk; i += 32) {
        float q = 0, k = 0;
        for (uint32_t h = key * group; h < (key + 1) * group; h++) {
            size_t at = ((size_t)t * a.v_heads + h) * a.dk + i;
            q += a.gq[at];
            k += a.gk[at] - a.gk2[at];
        }
        dq[i] = q;
        dk[i] = k;
    }
    __syncthreads();
    size_t at = (size_t)blockIdx.x * a.dk;
    const float *inverse = a.inverse + 2 * (size_t)blockIdx.x;
    bool l2 = a.l2_eps > 0;
    if (a.to_q.p)
        normalised_back(a.to_q.p + t * a.to_q.stride + key * a.dk, a.qn + at, dq, a.dk, inverse[0], 1.0f / sqrtf((float)a.dk), l2);
    if (a.to_k.p) normalised_back(a.to_k.p + t * a.to_k.stride + key * a.dk, a.kn + at, dk, a.dk, inverse[1], 1, l2);
}

/* A block per head: the sum over all rows of one of its parts. */
extern "C" __global__ void __launch_bounds__(CT_THREADS) train_heads_sum(const __grid_constant__ ct_heads_sum a)
{
    __shared__ float scratch[8];
    float sum = 0;
    for (uint32_t t = threadIdx.x; t < a.rows; t += blockDim.x) sum += a.parts[((size_t)t * a.heads + blockIdx.x) * a.of + a.which];
    sum = train_block_sum(sum, scratch);
    if (!threadIdx.x) a.gradient[blockIdx.x] += a.sign * sum;
}
