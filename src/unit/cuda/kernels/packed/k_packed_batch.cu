/* k_packed_batch.cu: products of packed weights (k_packed.cuh) with 2 to 16 rows of x on tensor cores: Q4_0, Q4_K, Q5_K, Q6_K.
 * All architectures. Weights are read and converted once for all rows. Host: issue_packed_batch.c; x: k_packed_parts.cu.
 *
 * A warp has 16 or 32 weight rows; 1 << split_log warps share rows and take chunks in turn, the others have other rows and find
 * x in the L1 cache. The grid's second dimension divides the columns into slices of `each` chunks. The warp's next chunk is
 * copied to its own buffer by cp.async while it multiplies the one before; the first is requested before
 * griddepcontrol.wait.
 *
 * The left operand is code times scale in fp16, where scale is the 6-bit integer of Q4_K and Q5_K, the 8-bit integer of Q6_K,
 * or d of Q4_0 times a power of two of the chunk. So a product m16n8k16 may have columns of two blocks, as a lane holds them,
 * and a chunk has one sum, multiplied by the chunk's factor. For Q4_K and Q5_K the operand is exact; for the others what the
 * rounding left is a second operand for the first part of x. Minima multiply sums of x in bf16. Order of sums: chunks of a
 * warp ascending, then warps, then slices; no row of x depends on the others.
 * SPDX-License-Identifier: MIT */
#include "k_mma.cuh"
#include "packed/k_packed_codes.cuh"

template <int KIND> struct batch_form {
    typedef packed_form<KIND> F;
    enum {
        BLOCK = 8 * (F::CODES + F::SCALE_BYTES + F::FACTOR_BYTES), /* bytes of eight rows of a chunk */
        SCALES = 8 * F::CODES,
        FACTORS = SCALES + 8 * F::SCALE_BYTES,
        MOVED = KIND == CK_P_Q4_0 ? 8 : KIND == CK_P_Q6_K ? 32 : 0, /* signed codes are moved by this to become positive */
        EXACT = KIND == CK_P_Q4_K || KIND == CK_P_Q5_K
    };
};

__device__ __forceinline__ __half2 halves(uint32_t v) { return *reinterpret_cast<__half2 *>(&v); }
__device__ __forceinline__ uint32_t bits(__half2 v) { return *reinterpret_cast<uint32_t *>(&v); }
/* Twice the fp16 number of these bits. */
__device__ __forceinline__ __half2 twice(uint32_t v) { return halves(v | v << 16); }

/* A lane's scales of one row of a chunk: those of its four blocks (of 16 columns: Q6_K). */
template <int KIND> struct row_scales {
    typedef packed_form<KIND> F;
    uint32_t word[2], power;
    /* block: address of the eight rows. */
    __device__ __forceinline__ void load(uint32_t block)
    {
        const uint32_t lane = threadIdx.x & 31, second = lane >> 1 & 1,
                       at = block + batch_form<KIND>::SCALES + (lane >> 2) * F::SCALE_BYTES;
        if (F::SCALES == SCALE_K32) {
            word[0] = lds_32(at + second * 4);
        } else if (F::SCALES == SCALE_K16) {
            uint2 v = lds_64(at + second * 8);
            word[0] = v.x ^ 0x80808080u, word[1] = v.y ^ 0x80808080u;
        } else {
            load_fp16(lds_128(at), second);
        }
    }
    /* Eight d. They are multiplied by a power of two that brings the largest below 64, so that remainders of codes times d are
     * not subnormal. */
    __device__ __forceinline__ void load_fp16(const uint4 &d, uint32_t second)
    {
        const uint32_t no_sign = 0x7fff7fffu;
        uint32_t top = __vmaxu2(__vmaxu2(d.x & no_sign, d.y & no_sign), __vmaxu2(d.z & no_sign, d.w & no_sign));
        int up = min(15, 20 - (int)(max(top & 0xffffu, top >> 16) >> 10));
        word[0] = second ? d.z : d.x, word[1] = second ? d.w : d.y;
        power = (uint32_t)(15 + up) << 10;
    }
    /* Factors of columns 16 m and up of the lane's block 2 p + i. */
    __device__ __forceinline__ __half2 at(int p, int i, int m) const
    {
        const uint32_t high = 0x64646464u; /* 1024 + byte in fp16 */
        if (F::SCALES == SCALE_K32) {
            const uint32_t n = (uint32_t)(2 * p + i);
            return __hsub2(halves(__byte_perm(word[0], high, 0x4040u | n * 0x101u)), twice(0x6400));
        }
        const uint32_t own = p ? word[1] : word[0], n = (uint32_t)(2 * i + m);
        if (F::SCALES == SCALE_K16) return __hsub2(halves(__byte_perm(own, high, 0x4040u | n * 0x101u)), twice(0x6480));
        return __hmul2(halves(__byte_perm(own, 0, i ? 0x3232 : 0x1010)), twice(power));
    }
};

/* Codes of one row in half a chunk: plane words 4 p to 4 p + 3. */
template <int KIND> struct half_codes {
    uint4 low;
    uint2 high;
    __device__ __forceinline__ void load(uint32_t block, int p)
    {
        typedef packed_form<KIND> F;
        const uint32_t lane = threadIdx.x & 31;
        low = lds_128(block + p * 512 + lane * 16);
        if (F::HIGH == 1) high.x = lds_32(block + 256 * F::LOW + lane * 8 + p * 4);
        if (F::HIGH == 2) high = lds_64(block + 256 * F::LOW + lane * 16 + p * 8);
    }
    /* Word j: columns 0 and 2, 1 and 3 as 1024 + code, 4 and 6, 5 and 7 as 1024 + 16 code, in fp16. */
    __device__ __forceinline__ void word(int j, uint32_t (&to)[4]) const
    {
        typedef packed_form<KIND> F;
        const uint32_t zero = 0x64006400u, moved = batch_form<KIND>::MOVED * 0x00010001u;
        const uint32_t v = component(low, j), h = F::HIGH == 2 && j / 2 ? high.y : high.x;
#pragma unroll
        for (int odd = 0; odd < 2; odd++) {
            uint32_t w = v >> 8 * odd, even = w & 0x000f000fu, upper = w & 0x00f000f0u;
            if (F::HIGH == 1) {
                even |= row_codes<KIND>::move(h >> 8 * odd, 2 * j - 4) & 0x00100010u;
                upper |= row_codes<KIND>::move(h >> 8 * odd, 2 * j - 7) & 0x01000100u;
            }
            if (F::HIGH == 2) {
                even |= row_codes<KIND>::move(h >> 8 * odd, 4 * (j % 2) - 4) & 0x00300030u;
                upper |= row_codes<KIND>::move(h >> 8 * odd, 4 * (j % 2) - 6) & 0x03000300u;
            }
            to[odd] = even ^ (zero ^ moved);
            to[2 + odd] = upper ^ (zero ^ moved << 4);
        }
    }
};

/* Two words of codes, k 0: 1024 + code, 1: 1024 + 16 code, times their scale, and what the rounding left. */
template <int KIND>
__device__ __forceinline__ void multiply_scale(const uint32_t *code, int k, __half2 scale, uint32_t (&to)[2], uint32_t (&rest)[2])
{
    const __half2 sixteenth = twice(0x2c00);
    if (batch_form<KIND>::EXACT) {
        /* -64, -1024 */
        const __half2 by = k ? __hmul2(scale, sixteenth) : scale, less = __hmul2(scale, twice(k ? 0xd400 : 0xe400));
#pragma unroll
        for (int i = 0; i < 2; i++) to[i] = bits(__hfma2(halves(code[i]), by, less));
        return;
    }
    const int moved = batch_form<KIND>::MOVED;
    const __half2 zero = twice(0x6400 + moved), zero_16 = twice(moved == 8 ? 0xd480 : 0xd600); /* -(64 + moved) */
#pragma unroll
    for (int i = 0; i < 2; i++) {
        __half2 q = k ? __hfma2(halves(code[i]), sixteenth, zero_16) : __hsub2(halves(code[i]), zero), v = __hmul2_rn(q, scale);
        to[i] = bits(v);
        rest[i] = bits(__hfma2(q, scale, __hneg2(v)));
    }
}

/* Factor of a row of the chunk, and of its minima; their codes, blocks 2 t and 2 t + 1, as two bf16. */
template <int KIND> __device__ __forceinline__ float2 factors_of(uint32_t block, uint32_t power)
{
    typedef packed_form<KIND> F;
    const uint32_t at = block + batch_form<KIND>::FACTORS + ((threadIdx.x & 31) >> 2) * F::FACTOR_BYTES;
    if (F::SCALES == SCALE_F16) return make_float2(__uint_as_float(142u - (power >> 10) << 23), 0);
    if (F::SCALES == SCALE_K16) return make_float2(__uint_as_float(lds_32(at)), 0);
    return halves_of(lds_32(at));
}
template <int KIND> __device__ __forceinline__ uint32_t minima_of(uint32_t block)
{
    const uint32_t lane = threadIdx.x & 31, row = block + batch_form<KIND>::SCALES + (lane >> 2) * packed_form<KIND>::SCALE_BYTES,
                   v = lds_16(row + 8 + 2 * (lane & 3));
    uint32_t b = __byte_perm(v, 0x43434343u, 0x4140), zero = 0x43004300u; /* 128 + minimum, 128 */
    __nv_bfloat162 w = __hsub2(*reinterpret_cast<__nv_bfloat162 *>(&b), *reinterpret_cast<__nv_bfloat162 *>(&zero));
    return *reinterpret_cast<uint32_t *>(&w);
}

/* Adds the sums of a chunk times their factors, less its minima times sums of x. */
template <int KIND, int MT, int NT>
__device__ __forceinline__ void finish_chunk(const ck_packed_batch &a, uint32_t from, uint32_t chunk,
                                             const row_scales<KIND> (&s)[MT][2], const float (&sum)[NT][MT][4],
                                             float (&acc)[NT][MT][4])
{
    constexpr int BLOCK = batch_form<KIND>::BLOCK;
    const uint32_t lane = threadIdx.x & 31;
    float unit[NT][2];
    uint2 x[NT];
#pragma unroll
    for (int n = 0; n < NT; n++) {
        const float *inverse = a.inverse + chunk * CK_PACKED_BATCH_ROWS + n * 8 + 2 * (lane & 3);
        unit[n][0] = inverse[0], unit[n][1] = inverse[1];
        if (packed_form<KIND>::OFFSETS) x[n] = static_cast<const uint2 *>(a.sums)[(chunk * NT + n) * 32 + lane];
    }
#pragma unroll
    for (int m = 0; m < MT; m++) {
        const uint32_t one = from + 2 * m * BLOCK, two = one + BLOCK;
        const float2 f[2] = {factors_of<KIND>(one, s[m][0].power), factors_of<KIND>(two, s[m][1].power)};
        uint32_t low[2] = {0, 0};
        if (packed_form<KIND>::OFFSETS) low[0] = minima_of<KIND>(one), low[1] = minima_of<KIND>(two);
        const uint32_t operand[4] = {low[0], low[1], low[0], low[1]};
#pragma unroll
        for (int n = 0; n < NT; n++) {
            float less[4] = {};
            if (packed_form<KIND>::OFFSETS) mma<1>(less, operand, x[n].x, x[n].y);
#pragma unroll
            for (int k = 0; k < 4; k++) {
                float &to = acc[n][m][k];
                to = fmaf(f[k / 2].x * unit[n][k % 2], sum[n][m][k], to);
                if (packed_form<KIND>::OFFSETS) to = fmaf(-f[k / 2].y, less[k], to);
            }
        }
    }
}

/* sums += word j of 16 rows times x. of: [eight rows of x][part]. */
template <int KIND, int NT>
__device__ __forceinline__ void use_word(const half_codes<KIND> (&w)[2], const __half2 (&scale)[2], int j,
                                         const uint4 (&of)[NT][2], float (*sum)[4], uint32_t step)
{
    uint32_t raw[2][4];
    w[0].word(j, raw[0]);
    w[1].word(j, raw[1]);
#pragma unroll
    for (int k = 0; k < 2; k++) {
        uint32_t code[2][2], rest[2][2];
        multiply_scale<KIND>(raw[0] + 2 * k, k, scale[0], code[0], rest[0]);
        multiply_scale<KIND>(raw[1] + 2 * k, k, scale[1], code[1], rest[1]);
        const uint32_t operand[4] = {code[0][0], code[1][0], code[0][1], code[1][1]},
                       other[4] = {rest[0][0], rest[1][0], rest[0][1], rest[1][1]};
#pragma unroll
        for (int n = 0; n < NT; n++) {
            float(&to)[4] = sum[n * step];
            mma<0>(to, operand, k ? of[n][0].z : of[n][0].x, k ? of[n][0].w : of[n][0].y);
            mma<0>(to, operand, k ? of[n][1].z : of[n][1].x, k ? of[n][1].w : of[n][1].y);
            if (!batch_form<KIND>::EXACT) mma<0>(to, other, k ? of[n][0].z : of[n][0].x, k ? of[n][0].w : of[n][0].y);
        }
    }
}

/* Multiplies the chunk in the warp's buffer at `from` with all rows of x. */
template <int KIND, int MT, int NT>
__device__ __forceinline__ void use_chunk(const ck_packed_batch &a, uint32_t from, uint32_t chunk, float (&acc)[NT][MT][4])
{
    constexpr int BLOCK = batch_form<KIND>::BLOCK;
    const uint4 *x = static_cast<const uint4 *>(a.x) + (size_t)chunk * (8 * NT * 64) + (threadIdx.x & 31);
    row_scales<KIND> s[MT][2];
    float sum[NT][MT][4] = {};
#pragma unroll
    for (int i = 0; i < 2 * MT; i++) s[i / 2][i % 2].load(from + i * BLOCK);
#pragma unroll 1
    for (int p = 0; p < 2; p++) {
        half_codes<KIND> w[MT][2];
#pragma unroll
        for (int i = 0; i < 2 * MT; i++) w[i / 2][i % 2].load(from + i * BLOCK, p);
#pragma unroll
        for (int j = 0; j < 4; j++, x += NT * 64) {
            uint4 of[NT][2];
#pragma unroll
            for (int i = 0; i < 2 * NT; i++) of[i / 2][i % 2] = x[i * 32];
#pragma unroll
            for (int m = 0; m < MT; m++) {
                const __half2 scale[2] = {s[m][0].at(p, j / 2, j % 2), s[m][1].at(p, j / 2, j % 2)};
                use_word<KIND, NT>(w[m], scale, j, of, &sum[0][m], MT);
            }
        }
    }
    finish_chunk<KIND, MT, NT>(a, from, chunk, s, sum, acc);
}

/* Requests a chunk of the warp's rows, `at` bytes after their first. */
template <int BLOCK, int MT>
__device__ __forceinline__ void request_chunk(const unsigned char *const (&rows)[MT][2], size_t at, uint32_t to)
{
#pragma unroll
    for (int i = 0; i < 2 * MT; i++)
#pragma unroll
        for (uint32_t b = 0; b < BLOCK; b += 512) {
            uint32_t own = b + (threadIdx.x & 31) * 16;
            if (own < BLOCK) cp_async_16(to + i * BLOCK + own, rows[i / 2][i % 2] + at + own);
        }
}

/* The warp's chunks of its rows: of [first, end) those of its turn. */
template <int KIND, int MT, int NT>
__device__ __forceinline__ void multiply_rows(const ck_packed_batch &a, const unsigned char *const (&rows)[MT][2], uint32_t first,
                                              uint32_t end, uint32_t buffer, float (&acc)[NT][MT][4])
{
    constexpr int BLOCK = batch_form<KIND>::BLOCK;
    const uint32_t split = 1u << a.split_log;
    uint32_t u = first + ((threadIdx.x >> 5) & (split - 1)), stage = 0;
    if (u < end) request_chunk<BLOCK, MT>(rows, (size_t)u * BLOCK, buffer);
    asm volatile("cp.async.commit_group;" ::: "memory");
    wait_for_inputs();
#pragma unroll 1
    for (; u < end; u += split) {
        if (u + split < end)
            request_chunk<BLOCK, MT>(rows, (size_t)(u + split) * BLOCK, buffer + (stage ^ 1) * 2 * MT * BLOCK);
        asm volatile("cp.async.commit_group;\n"
                     "cp.async.wait_group 1;" ::: "memory");
        __syncwarp();
        use_chunk<KIND, MT, NT>(a, buffer + stage * 2 * MT * BLOCK, u, acc);
        __syncwarp();
        stage ^= 1;
    }
}

/* Sums of the slices in their order, by the last of their blocks. total: [rows][...] of this block in, of all out. 0: not the
 * last. */
template <int N> __device__ __forceinline__ bool join_slices(const ck_packed_batch &a, float *total, uint32_t all)
{
    __shared__ uint32_t before;
    const size_t size = (size_t)all * N, slice0 = (size_t)blockIdx.x * gridDim.y;
    float *own = a.slices + (slice0 + blockIdx.y) * size;
    for (uint32_t i = threadIdx.x; i < size; i += blockDim.x) own[i] = total[i / N * (N + 1) + i % N];
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) before = atomicAdd(a.count + blockIdx.x, 1);
    __syncthreads();
    if (before + 1 != gridDim.y) return false;
    __threadfence();
    for (uint32_t i = threadIdx.x; i < size; i += blockDim.x) {
        float v = 0;
        for (uint32_t k = 0; k < gridDim.y; k++) v += __ldcg(a.slices + (slice0 + k) * size + i);
        total[i / N * (N + 1) + i % N] = v;
    }
    if (threadIdx.x == 0) a.count[blockIdx.x] = 0;
    __syncthreads();
    return true;
}

/* Finishes one output: v of `row` of segment `to` and row n of x; with glu up is the other. */
__device__ __forceinline__ void finish_output(const ck_packed_batch &a, const ck_segment &to, uint32_t row, uint32_t n, float v,
                                              float up)
{
    if (to.bias) v += to.bias[row];
    if (a.glu) {
        if (a.segment[1].bias) up += a.segment[1].bias[row];
        v = activate(a.act, v) * up;
    } else if (to.residual.p) {
        v += to.residual.p[(size_t)n * to.residual.stride + row];
    }
    to.y.p[(size_t)n * to.y.stride + row] = v;
}

/* The warp's sums as [row of its tiles][row of x], with a pitch of 8 NT + 1. */
template <int MT, int NT> __device__ __forceinline__ void store_sums(float *to, const float (&acc)[NT][MT][4])
{
    const uint32_t lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int i = 0; i < 4; i++) to[(m * 16 + g + i / 2 * 8) * (NT * 8 + 1) + n * 8 + 2 * t + i % 2] = acc[n][m][i];
}

/* Kernel body. MT: tiles of 16 weight rows of a warp, with glu one of gate and one of up; NT: tiles of 8 rows of x. Shared
 * memory: the warps' buffers; then sums of each warp, and of the block. */
template <int MT, int NT> __device__ __forceinline__ void packed_batch(const ck_packed_batch &a)
{
    extern __shared__ __align__(128) unsigned char smem[];
    enum { N = NT * 8, PITCH = N + 1 };
    const uint32_t warp = threadIdx.x >> 5, warps = blockDim.x >> 5, groups = warps >> a.split_log, height = a.glu ? 16 : 16 * MT;
    uint32_t s = 0;
    float acc[NT][MT][4] = {};
    const unsigned char *rows[MT][2];
#pragma unroll
    for (int i = 1; i < CK_SEGMENTS; i++) s += i < a.segments && !a.glu && blockIdx.x >= a.first[i];
    const uint32_t block0 = (blockIdx.x - a.first[s]) * groups * height, own = block0 + (warp >> a.split_log) * height,
                   row0 = own < a.segment[s].n ? own : 0, first = blockIdx.y * a.each,
                   end = min(first + a.each, a.k / CK_PACKED_CHUNK);
#pragma unroll
    for (int i = 0; i < 2 * MT; i++) {
        const ck_segment &from = a.segment[a.glu ? i / 2 : s];
        uint32_t row = row0 + (a.glu ? 0 : i / 2 * 16) + i % 2 * 8;
        /* Missing rows repeat others; their sums are not stored. */
        row = row < from.n ? row : row0;
        rows[i / 2][i % 2] = static_cast<const unsigned char *>(from.data) + (size_t)(from.at + row) * a.of[s].pitch;
    }
    launch_dependents();
    const uint32_t buffer = smem_addr(smem) + warp * a.warp_bytes;
    switch (a.of[s].kind) {
#define CASE(KIND)                                                            \
    case CK_P_##KIND:                                                         \
        multiply_rows<CK_P_##KIND, MT, NT>(a, rows, first, end, buffer, acc); \
        break;
        CASE(Q4_0)
        CASE(Q4_K)
        CASE(Q5_K)
        CASE(Q6_K)
#undef CASE
    }
    float *part = reinterpret_cast<float *>(smem), *total = part + warps * 16 * MT * PITCH;
    __syncthreads();
    store_sums<MT, NT>(part + warp * 16 * MT * PITCH, acc);
    __syncthreads();
    const uint32_t all = groups * 16 * MT;
    for (uint32_t i = threadIdx.x; i < all * N; i += blockDim.x) {
        uint32_t r = i / N, n = i % N, group = r / (16 * MT);
        const float *p = part + ((group << a.split_log) * 16 * MT + r % (16 * MT)) * PITCH + n;
        float v = 0;
        for (uint32_t w = 0; w < 1u << a.split_log; w++) v += p[w * 16 * MT * PITCH];
        total[r * PITCH + n] = v;
    }
    __syncthreads();
    if (gridDim.y > 1 && !join_slices<N>(a, total, all)) return;
    const ck_segment &to = a.segment[s];
    for (uint32_t i = threadIdx.x; i < groups * height * N; i += blockDim.x) {
        uint32_t r = i % (groups * height), n = i / (groups * height), row = block0 + r, at = r / height * 16 * MT + r % height;
        if (row < to.n && n < a.rows)
            finish_output(a, to, row, n, total[at * PITCH + n], total[(at + (MT > 1 ? 16 : 0)) * PITCH + n]);
    }
}

#define BATCH(name, mt, nt)                                                                                           \
    extern "C" __global__ void __launch_bounds__(CK_BATCH_THREADS, 2) name(const __grid_constant__ ck_packed_batch a) \
    {                                                                                                                 \
        packed_batch<mt, nt>(a);                                                                                      \
    }
BATCH(packed_batch_16_8, 1, 1)
BATCH(packed_batch_16_16, 1, 2)
BATCH(packed_batch_32_8, 2, 1)
BATCH(packed_batch_32_16, 2, 2)
