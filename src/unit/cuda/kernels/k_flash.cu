/* k_flash.cu: attention of many new rows of one sequence on tensor cores (FlashAttention), for K and
 * V in 16 bits and heads of 64, 128 or 256. Host: prompts, where k_wgflash.cu (sm_90) does not
 * apply; sm_80 and later.
 *
 * Grid (tiles of 64 rows, query heads), 128 threads; blocks of late rows, which see most keys, start
 * first. A warp handles 16 rows. K and V are staged in tiles of 32 rows in shared memory (rows
 * padded by 16 bytes against bank conflicts); scores and sums stay in fp32 registers, softmax is
 * online. Work: 4 * d multiply-adds per row and visible key. Shared memory: (64 + 2 * 32) * (d + 8)
 * * 2 bytes.
 * SPDX-License-Identifier: MIT */
#include "k_mma.cuh"

enum { ROWS = 64, KEYS = 32, THREADS = 128 };

/* q times the scale, in 16 bits, to shared memory [ROWS][D + 8]; rows after the last are zero. */
template <int BF16, int D>
__device__ __forceinline__ void load_queries(const ck_attend &a, uint32_t t0, uint32_t h, uint32_t rows, uint16_t *qs)
{
    for (uint32_t i = threadIdx.x; i < ROWS * D / 2; i += THREADS) {
        uint32_t r = i / (D / 2), c = i % (D / 2) * 2;
        float x = 0, y = 0;
        if (r < rows) {
            const float *q = a.q.p + (size_t)(t0 + r) * a.q.stride + h * D + c;
            x = q[0] * a.scale;
            y = q[1] * a.scale;
        }
        *reinterpret_cast<uint32_t *>(qs + r * (D + 8) + c) = pack<BF16>(x, y);
    }
}

/* s += q k^T for the warp's 16 rows and the KEYS keys of a tile. Accumulator layout: rows g and g +
 * 8, g = lane / 4. */
template <int BF16, int D>
__device__ __forceinline__ void tile_scores(float (&s)[KEYS / 8][4], const uint16_t *qs, const uint16_t *ks, uint32_t warp,
                                            uint32_t lane)
{
    /* ldmatrix fragments of q (a operand) and k (b operand), 16 columns per step. */
#pragma unroll
    for (int kk = 0; kk < D; kk += 16) {
        uint32_t fa[4], fb[4];
        ldmatrix_x4(fa, qs + (warp * 16 + (lane & 15)) * (D + 8) + kk + (lane >> 4) * 8);
#pragma unroll
        for (int n = 0; n < KEYS / 16; n++) {
            ldmatrix_x4(fb, ks + (n * 16 + (lane & 7) + (lane >> 4) * 8) * (D + 8) + kk + (lane >> 3 & 1) * 8);
            mma<BF16>(s[2 * n], fa, fb[0], fb[1]);
            mma<BF16>(s[2 * n + 1], fa, fb[2], fb[3]);
        }
    }
}

/* Softcap, causal and sliding-window mask, in place. pos: positions of the lane's two rows; top:
 * their running maximum in this lane. */
__device__ __forceinline__ void mask_scores(const ck_attend &a, uint32_t j0, uint32_t pair, const uint32_t (&pos)[2],
                                            float (&s)[KEYS / 8][4], float (&top)[2])
{
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t j = j0 + n * 8 + pair + (i & 1), at = pos[i >> 1];
            float x = s[n][i];
            if (a.softcap > 0) x = a.softcap * tanhf(x / a.softcap);
            if (j > at || (a.window && j + a.window <= at)) x = -CUDART_INF_F;
            s[n][i] = x;
            top[i >> 1] = fmaxf(top[i >> 1], x);
        }
}

/* Online softmax step: scores become exponentials, max_score and sum are updated; rescale: factor
 * for the earlier sums. `sum` is this lane's share of its rows. */
__device__ __forceinline__ void online_softmax(float (&s)[KEYS / 8][4], float (&top)[2], float (&max_score)[2], float (&sum)[2],
                                               float (&rescale)[2])
{
    /* Row maxima over the four lanes that share a row; NaN-safe rescale factor. */
#pragma unroll
    for (int i = 0; i < 2; i++) {
        top[i] = fmaxf(top[i], __shfl_xor_sync(0xffffffffu, top[i], 1));
        top[i] = fmaxf(top[i], __shfl_xor_sync(0xffffffffu, top[i], 2));
        rescale[i] = top[i] > -CUDART_INF_F ? __expf(max_score[i] - top[i]) : 1;
        max_score[i] = top[i];
        sum[i] *= rescale[i];
    }
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float e = s[n][i] > -CUDART_INF_F ? __expf(s[n][i] - max_score[i >> 1]) : (s[n][i] != s[n][i] ? s[n][i] : 0);
            s[n][i] = e;
            sum[i >> 1] += e;
        }
}

/* out = rescale * out + p v, with the exponentials p in 16 bits. */
template <int BF16, int D>
__device__ __forceinline__ void add_pv(float (&out)[D / 8][4], const float (&rescale)[2], const float (&p)[KEYS / 8][4],
                                       const uint16_t *vs, uint32_t lane)
{
    /* Rescale the accumulators before adding this tile. */
#pragma unroll
    for (int n = 0; n < D / 8; n++) {
        out[n][0] *= rescale[0], out[n][1] *= rescale[0];
        out[n][2] *= rescale[1], out[n][3] *= rescale[1];
    }
    /* Exponentials of the score layout are directly the a operand of p v. */
#pragma unroll
    for (int kk = 0; kk < KEYS / 16; kk++) {
        uint32_t fa[4] = {pack<BF16>(p[2 * kk][0], p[2 * kk][1]), pack<BF16>(p[2 * kk][2], p[2 * kk][3]),
                          pack<BF16>(p[2 * kk + 1][0], p[2 * kk + 1][1]), pack<BF16>(p[2 * kk + 1][2], p[2 * kk + 1][3])},
                 fb[4];
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            ldmatrix_x4_trans(fb, vs + (kk * 16 + (lane & 15)) * (D + 8) + n * 16 + (lane >> 4) * 8);
            mma<BF16>(out[2 * n], fa, fb[0], fb[1]);
            mma<BF16>(out[2 * n + 1], fa, fb[2], fb[3]);
        }
    }
}

/* y = out / sum for the lane's rows row0 and row0 + 8 of the tile, times sigmoid(gate) if present. */
template <int D>
__device__ __forceinline__ void write_tile(const ck_attend &a, uint32_t t0, uint32_t h, uint32_t row0, uint32_t rows,
                                           uint32_t pair, const float (&out)[D / 8][4], float (&sum)[2])
{
    /* Row sums over the four lanes. */
#pragma unroll
    for (int i = 0; i < 2; i++) {
        sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], 1);
        sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], 2);
    }
#pragma unroll
    for (int n = 0; n < D / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t r = row0 + (i >> 1) * 8, c = h * D + n * 8 + pair + (i & 1);
            if (r >= rows) continue;
            float y = out[n][i] / sum[i >> 1];
            if (a.gate.p) y *= sigmoid(a.gate.p[(size_t)(t0 + r) * a.gate.stride + c]);
            a.y.p[(size_t)(t0 + r) * a.y.stride + c] = y;
        }
}

/* Kernel body. Attention sinks enter as an initial maximum with sum 1. */
template <int BF16, int D> __device__ __forceinline__ void flash(const ck_attend &a)
{
    enum { PITCH = D + 8 };
    extern __shared__ float4 shared4[];
    uint16_t *qs = reinterpret_cast<uint16_t *>(shared4), *ks = qs + ROWS * PITCH, *vs = ks + KEYS * PITCH;
    uint32_t tile = gridDim.x - 1 - blockIdx.x, h = blockIdx.y, kv = h / (a.heads / a.kv_heads), t0 = tile * ROWS;
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, group = lane >> 2, pair = (lane & 3) * 2;
    wait_for_inputs();
    /* Rows of this tile; captured passes may launch more tiles than there are. */
    uint32_t all = a.pass.head->from[1], first = a.pass.head->first[0] + t0, rows = all - t0 < ROWS ? all - t0 : ROWS;
    if (t0 >= all) return;
    size_t row_bytes = 2ull * D * a.kv_heads;
    const unsigned char *k = static_cast<const unsigned char *>(a.pass.slots[a.slot_k]) + kv * 2ull * D;
    const unsigned char *v = static_cast<const unsigned char *>(a.pass.slots[a.slot_v]) + kv * 2ull * D;
    /* q of the tile stays in shared memory for all key tiles. */
    load_queries<BF16, D>(a, t0, h, rows, qs);
    float out[D / 8][4], max_score[2], sum[2];
#pragma unroll
    for (int n = 0; n < D / 8; n++) out[n][0] = out[n][1] = out[n][2] = out[n][3] = 0;
    max_score[0] = max_score[1] = a.sinks ? a.sinks[h] : -CUDART_INF_F;
    sum[0] = sum[1] = a.sinks && (lane & 3) == 0 ? 1 : 0;
    uint32_t row0 = warp * 16 + group, pos[2] = {first + row0, first + row0 + 8};
    /* First key tile that the sliding window of the first row reaches, and the end of the causal
     * range. */
    uint32_t begin = a.window && first + 1 > a.window ? (first + 1 - a.window) / KEYS * KEYS : 0, end = first + rows;
    /* Key tiles: load, scores, mask, softmax, values. */
    for (uint32_t j0 = begin; j0 < end; j0 += KEYS) {
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < KEYS * D / 8; i += THREADS) {
            uint32_t r = i / (D / 8), c = i % (D / 8) * 8;
            uint4 x = make_uint4(0, 0, 0, 0), y = x;
            if (j0 + r < end) {
                x = *reinterpret_cast<const uint4 *>(k + (size_t)(j0 + r) * row_bytes + 2 * c);
                y = *reinterpret_cast<const uint4 *>(v + (size_t)(j0 + r) * row_bytes + 2 * c);
            }
            *reinterpret_cast<uint4 *>(ks + r * PITCH + c) = x;
            *reinterpret_cast<uint4 *>(vs + r * PITCH + c) = y;
        }
        __syncthreads();
        float s[KEYS / 8][4] = {}, top[2] = {max_score[0], max_score[1]}, rescale[2];
        tile_scores<BF16, D>(s, qs, ks, warp, lane);
        mask_scores(a, j0, pair, pos, s, top);
        online_softmax(s, top, max_score, sum, rescale);
        add_pv<BF16, D>(out, rescale, s, vs, lane);
    }
    write_tile<D>(a, t0, h, row0, rows, pair, out, sum);
}

#define FLASH(NAME, BF16, D)                                                                                      \
    extern "C" __global__ void __launch_bounds__(THREADS) flash_##NAME##_##D(const __grid_constant__ ck_attend a) \
    {                                                                                                             \
        flash<BF16, D>(a);                                                                                        \
    }
FLASH(f16, 0, 64)
FLASH(f16, 0, 128)
FLASH(f16, 0, 256)
FLASH(bf16, 1, 64)
FLASH(bf16, 1, 128)
FLASH(bf16, 1, 256)
