/* k_train_delta.cu: the gated delta rule of training. Per token and value head, with D = e^g S: r = v - D^T k; S = D + beta k r^T;
 * y = S^T q. Backward, with R the gradient of S: R += q dy^T; u = R^T k; dq = S dy; dk = beta (R r - D u); dv = beta u;
 * dbeta = u . r; R = e^g (R - beta k u^T).
 *
 * Columns of S and of R depend on no other column, and once r and u of all tokens are known, rows depend on no other row. So four
 * scans need no matrix of any token: r by columns forward, u by columns backward, dq and D u by rows forward, R r by rows backward.
 * Vectors that all lines of a block read are copied to shared memory, some tokens ahead.
 * The gradient of g is the sum of y . dy - dv . v over this and all later tokens, since both <R, S> and its change by a token
 * are known.
 * SPDX-License-Identifier: MIT */
#include "k_train_tile.cuh"

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

/* Numbers [0, n) of each token, tokens `stride` apart. */
struct delta_source { const float *p; size_t stride; uint32_t n; };
__device__ delta_source gates_of(const ct_delta &a, const delta_line &x) { return {a.gates + 2 * x.h, 2 * (size_t)a.v_heads, 2}; }
__device__ delta_source keys_of(const ct_delta &a, const delta_line &x, const float *p)
{
    return {p + x.key * a.dk, (size_t)a.k_heads * a.dk, a.dk};
}
__device__ delta_source values_of(const ct_delta &a, const delta_line &x, const float *p)
{
    return {p + x.h * a.dvw, (size_t)a.v_heads * a.dvw, a.dvw};
}
/* Those of the lines of this block. */
__device__ delta_source lines_of(delta_source s)
{
    uint32_t first = blockIdx.x * CT_DELTA_BLOCK;
    return {s.p + first, s.stride, s.n > first ? s.n - first : 0};
}

/* The tokens of a sequence in order, or from the last one with BACK. V vectors of up to 8 N numbers that all lines read, L numbers of
 * each line, and the gates are in shared memory; numbers that do not exist are 0. A thread has numbers 32 m + 4 lane + e of a line. */
template <int N, int V, int L, bool BACK> struct delta_feed {
    enum { TOKENS = N == 16 ? 8 : 4, WIDTH = CT_LANES * N };
    struct __align__(16) token { float vectors[V][WIDTH], lines[L][CT_DELTA_BLOCK], gates[CT_LANES]; };

    __device__ static void copy(float *to, uint32_t width, const delta_source &s, uint32_t i, uint32_t t, bool in)
    {
        in = in && i < s.n;
        if (i < width) copy_4(to + i, in ? s.p + t * s.stride + i : s.p, in);
    }

    template <class STEP> __device__ static void run(const delta_line &x, const delta_source (&vectors)[V], const delta_source (&lines)[L],
                                                     const delta_source &gates, STEP step)
    {
        __shared__ __align__(16) token tokens[2][TOKENS];
        uint32_t total = x.to - x.from, stage = 0, mine = threadIdx.x / 32, lane = threadIdx.x % 32;
        /* A warp copies token n of eight, or half of one of four. */
        auto fetch = [&](uint32_t from, uint32_t stage) {
            uint32_t n = mine % TOKENS, t = BACK ? x.to - 1 - (from + n) : x.from + from + n;
            bool in = from + n < total;
            token &to = tokens[stage][n];
            for (int v = 0; v < V; v++)
#pragma unroll
                for (uint32_t i = mine / TOKENS * 32; i < WIDTH; i += CT_THREADS / TOKENS) copy(to.vectors[v], WIDTH, vectors[v], i + lane, t, in);
            for (int l = 0; l < L && mine < TOKENS; l++) copy(to.lines[l], CT_DELTA_BLOCK, lines[l], lane, t, in);
            if (mine < TOKENS) copy(to.gates, 2, gates, lane, t, in);
        };
        fetch(0, 0);
        copies_commit();
        for (uint32_t from = 0; from < total; from += TOKENS, stage ^= 1) {
            copies_wait<0>();
            __syncthreads();
            if (from + TOKENS < total) fetch(from + TOKENS, stage ^ 1);
            copies_commit();
            for (uint32_t n = 0; n < TOKENS && from + n < total; n++)
                step(BACK ? x.to - 1 - (from + n) : x.from + from + n, tokens[stage][n]);
        }
    }

    __device__ static float number(const token &t, int v, const delta_line &x, int n)
    {
        return t.vectors[v][n / 4 * 4 * CT_LANES + 4 * x.lane + n % 4];
    }
};

/* Sum over n of f(n), in four parts. */
template <int N, class F> __device__ __forceinline__ float line_sum(F f)
{
    float s[4] = {0, 0, 0, 0};
#pragma unroll
    for (int n = 0; n < N; n++) s[n % 4] += f(n);
    return train_lanes_sum((s[0] + s[1]) + (s[2] + s[3]), CT_LANES);
}

/* Column i of S, forward: y, and r where store_rest. */
template <int N> __device__ void columns_forward(const ct_delta &a)
{
    typedef delta_feed<N, 2, 1, false> feed;
    delta_line x(a);
    float S[N] = {0};
    const delta_source vectors[2] = {keys_of(a, x, a.kn), keys_of(a, x, a.qn)};
    const delta_source lines[1] = {lines_of({a.v.p + x.h * a.dvw, a.v.stride, a.dvw})};
    feed::run(x, vectors, lines, gates_of(a, x), [&](uint32_t t, const typename feed::token &o) {
        float along = line_sum<N>([&](int n) { return (S[n] *= o.gates[0]) * feed::number(o, 0, x, n); });
        float rest = o.lines[0][threadIdx.x / CT_LANES] - along, step = o.gates[1] * rest;
        float y = line_sum<N>([&](int n) {
            S[n] = fmaf(feed::number(o, 0, x, n), step, S[n]);
            return S[n] * feed::number(o, 1, x, n);
        });
        if (x.lane || x.i >= a.dvw) return;
        size_t at = ((size_t)t * a.v_heads + x.h) * a.dvw + x.i;
        a.out[at] = y;
        if (a.store_rest) a.rest[at] = rest;
    });
}

/* Column i of R, backward: u. */
template <int N> __device__ void columns_back(const ct_delta &a)
{
    typedef delta_feed<N, 2, 1, true> feed;
    delta_line x(a);
    float R[N] = {0};
    const delta_source vectors[2] = {keys_of(a, x, a.kn), keys_of(a, x, a.qn)};
    const delta_source lines[1] = {lines_of(values_of(a, x, a.dout))};
    feed::run(x, vectors, lines, gates_of(a, x), [&](uint32_t t, const typename feed::token &o) {
        float dy = o.lines[0][threadIdx.x / CT_LANES];
        float u = line_sum<N>([&](int n) {
            R[n] = fmaf(feed::number(o, 1, x, n), dy, R[n]);
            return R[n] * feed::number(o, 0, x, n);
        });
        float f = o.gates[1] * u;
#pragma unroll
        for (int n = 0; n < N; n++) R[n] = fmaf(-feed::number(o, 0, x, n), f, R[n]) * o.gates[0];
        if (!x.lane && x.i < a.dvw) a.f[((size_t)t * a.v_heads + x.h) * a.dvw + x.i] = u;
    });
}

/* Row i of S, forward: dq and D (beta u). */
template <int N> __device__ void rows_forward(const ct_delta &a)
{
    typedef delta_feed<N, 3, 1, false> feed;
    delta_line x(a);
    float S[N] = {0};
    const delta_source vectors[3] = {values_of(a, x, a.dout), values_of(a, x, a.rest), values_of(a, x, a.f)};
    const delta_source lines[1] = {lines_of(keys_of(a, x, a.kn))};
    feed::run(x, vectors, lines, gates_of(a, x), [&](uint32_t t, const typename feed::token &o) {
        float step = o.gates[1] * o.lines[0][threadIdx.x / CT_LANES];
        float dk = line_sum<N>([&](int n) { return (S[n] *= o.gates[0]) * feed::number(o, 2, x, n); });
        float dq = line_sum<N>([&](int n) {
            S[n] = fmaf(step, feed::number(o, 1, x, n), S[n]);
            return S[n] * feed::number(o, 0, x, n);
        });
        if (x.lane || x.i >= a.dk) return;
        size_t at = ((size_t)t * a.v_heads + x.h) * a.dk + x.i;
        a.gq[at] = dq;
        a.gk2[at] = o.gates[1] * dk;
    });
}

/* Row i of R, backward: R (beta r). */
template <int N> __device__ void rows_back(const ct_delta &a)
{
    typedef delta_feed<N, 3, 2, true> feed;
    delta_line x(a);
    float R[N] = {0};
    const delta_source vectors[3] = {values_of(a, x, a.dout), values_of(a, x, a.rest), values_of(a, x, a.f)};
    const delta_source lines[2] = {lines_of(keys_of(a, x, a.kn)), lines_of(keys_of(a, x, a.qn))};
    feed::run(x, vectors, lines, gates_of(a, x), [&](uint32_t t, const typename feed::token &o) {
        float k = o.lines[0][threadIdx.x / CT_LANES], q = o.lines[1][threadIdx.x / CT_LANES], beta = o.gates[1];
        float dk = line_sum<N>([&](int n) {
            R[n] = fmaf(q, feed::number(o, 0, x, n), R[n]);
            return R[n] * feed::number(o, 1, x, n);
        });
#pragma unroll
        for (int n = 0; n < N; n++) R[n] = fmaf(-k * beta, feed::number(o, 2, x, n), R[n]) * o.gates[0];
        if (!x.lane && x.i < a.dk) a.gk[((size_t)t * a.v_heads + x.h) * a.dk + x.i] = beta * dk;
    });
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

/* A warp per sequence and value head: gradients of a, of dt and of the decay. Sums over this and all later tokens, 32 at a time. */
extern "C" __global__ void train_delta_decay(const __grid_constant__ ct_delta a)
{
    uint32_t s = blockIdx.x / a.v_heads, h = blockIdx.x % a.v_heads, lane = threadIdx.x, from = a.from[s], to = a.from[s + 1];
    float rate = a.is_log ? -expf(a.decay[h]) : a.decay[h];
    double later = 0;
    for (uint32_t n = 0; n < to - from; n += 32) {
        bool in = n + lane < to - from;
        uint32_t t = in ? to - 1 - n - lane : from;
        size_t at = (size_t)t * a.v_heads + h;
        double dg = in ? reinterpret_cast<const double *>(a.parts)[at] : 0;
        for (uint32_t m = 1; m < 32; m *= 2) {
            double before = __shfl_up_sync(0xffffffffu, dg, m);
            if (lane >= m) dg += before;
        }
        dg += later;
        later = __shfl_sync(0xffffffffu, dg, 31);
        if (!in) continue;
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
