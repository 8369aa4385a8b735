/* k_digits.cu: product of large Q8_0 or 16-bit weights with one row of x on tensor cores, weights
 * used as stored. sm_90. Host: issue_digits.c, rows of multiples of 2,048 columns. Epilogue as in
 * k_stream.cu (k_epilogue.cuh).
 *
 * Q8_0: x is a 31-bit fixed-point number, one scale per warp's columns, in four digits of 8 bits
 * (k_fixed.cuh), which are four columns of the b operand. 16 rows by 32 columns of weights times
 * these is exact in int32. 64 columns are processed together: the other four columns of b serve the
 * second scale block (a lane's 16 bytes lie in one block). A warp thus handles 1,024 weights with
 * about 20 instructions and arithmetic never limits it. 16-bit weights: x is two fp16 or three bf16
 * parts, columns of b, with fp32 sums.
 *
 * 256 threads. Each warp handles one eighth of the columns in every tile of 16 rows (with glu 8 of
 * gate and 8 of up) of its block. It loads its own weights by 16-byte cp.async into a private ring
 * of steps of 128 bytes per row, `early` of them before griddepcontrol.wait, the others after x.
 * Warps wait for each other only when sums are complete; the RMS factor is applied then.
 * SPDX-License-Identifier: MIT */
#include "k_epilogue.cuh"
#include "k_xsplit.cuh"

#if __CUDA_ARCH__ == 900

/* A step: 128 bytes of 16 rows. A chunk: Q8_0 scales of 512 columns. */
enum { ROWS = 16, STEP = 128, STEP_BYTES = ROWS * STEP, CHUNK = 512, CHUNK_BYTES = ROWS * CHUNK / 16, S = CK_DIGITS_STEPS };

/* Steps issued and used together: two for 16 bits, where both products accumulate into one sum. */
template <int KIND> static constexpr uint32_t PER = KIND == CK_Q8 ? 1 : 2;
static_assert(S % 2 == 0, "a turn of the ring");

/* cp.async of 16 bytes, L2 only. */
__device__ __forceinline__ void copy16(uint32_t to, const void *from)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

/* Cursor of the warp's next weight load. */
struct load_cursor {
    const unsigned char *row[4], *scale;
    uint32_t tile, step, slot, chunk; /* tile: number among the block's tiles */
};

/* Row addresses of the cursor's tile; from: first byte of the warp's columns in a row. */
template <int KIND> __device__ __forceinline__ void find_rows(const ck_stream &a, load_cursor &h, uint32_t from)
{
    tile_of t = find_tile(a, blockIdx.x + h.tile * gridDim.x);
    uint32_t lane = threadIdx.x & 31;
#pragma unroll
    for (int i = 0; i < (KIND == CK_Q8 ? 5 : 4); i++) { /* four pieces of weights, one of scales */
        uint32_t r = i < 4 ? 4 * i + (lane >> 3) : lane >> 1, own = a.g.glu ? r & 7 : r;
        const ck_segment &s = a.g.segment[a.g.glu ? r >> 3 : t.segment];
        size_t row = (size_t)s.at + t.row + (own < t.n ? own : t.n - 1);
        if (i < 4)
            h.row[i] = static_cast<const unsigned char *>(s.data) + row * a.g.pitch + from + (lane & 7) * 16;
        else
            h.scale = static_cast<const unsigned char *>(s.scales) + row * a.scale_bytes + from / 16 + (lane & 1) * 16;
    }
}

/* Issues the next step(s) in the layout that lanes read: [64 bytes][8 rows][row][16 bytes]; for Q8_0
 * every fourth time also the scales of 512 columns, 32 bytes per row. ring: step buffers, then
 * `stages` scale buffers. Commits one cp.async group in any case. */
template <int KIND>
__device__ __forceinline__ void issue_step(const ck_stream &a, load_cursor &h, uint32_t ring, uint32_t from, uint32_t bytes,
                                           uint32_t n_tiles)
{
    uint32_t lane = threadIdx.x & 31;
    if (h.tile < n_tiles) {
        /* Lane's 16 bytes of row 4 i + lane / 8, placed as read_step expects. */
        uint32_t to = ring + h.slot * STEP_BYTES + (lane >> 2 & 1) * 1024 + (lane >> 3) * 64 + (lane & 3) * 16;
#pragma unroll
        for (int i = 0; i < 4; i++) {
#pragma unroll
            for (uint32_t n = 0; n < PER<KIND>; n++) copy16(to + n * STEP_BYTES + i * 256, h.row[i] + n * STEP);
            h.row[i] += PER<KIND> * STEP;
        }
        if (KIND == CK_Q8 && h.step % 4 == 0) {
            if (h.step * STEP + (lane & 1) * (CHUNK / 2) < bytes)
                copy16(ring + S * STEP_BYTES + h.chunk * CHUNK_BYTES + lane * 16, h.scale);
            h.scale += CHUNK / 16;
            if (++h.chunk == a.stages) h.chunk = 0;
        }
        if ((h.slot += PER<KIND>) == S) h.slot = 0;
        /* End of the tile's columns: continue with the next tile. */
        if ((h.step += PER<KIND>)*STEP == bytes) {
            h.step = 0;
            if (++h.tile < n_tiles) find_rows<KIND>(a, h, from);
        }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Loads this lane's columns of a vector. */
template <int P> __device__ __forceinline__ void load_cols(warp_x<P> &x, const float *from, uint32_t width)
{
#pragma unroll
    for (int i = 0; i < P; i++) {
        x.v[i] = make_float4(0, 0, 0, 0);
        if (i * 128 < width) x.v[i] = float4_at(from, i * 128 + (threadIdx.x & 31) * 4);
    }
}

/* Applies the norm except for the 1 / rms of a whole row. Returns this lane's sum of squares. */
template <int P>
__device__ __forceinline__ float norm_cols(const ck_norm &n, bool activates, warp_x<P> &x, const warp_x<P> &w,
                                           const warp_x<P> &gate, uint32_t width)
{
    float plus = n.plus_one && n.weight ? 1.0f : 0.0f, squares = 0;
#pragma unroll
    for (int i = 0; i < P; i++) {
        if (i * 128 >= width) break;
        float4 v = x.v[i], m = w.v[i], z = gate.v[i];
        if (!n.weight) m = make_float4(1, 1, 1, 1);
        /* Groups are 128 columns: the warp's lanes of one piece. */
        float own = v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w, inverse = 1;
        squares += own;
        if (n.groups > 1) inverse = rsqrtf(warp_sum(own) / 128 + n.eps);
        v = make_float4(v.x * inverse * (plus + m.x), v.y * inverse * (plus + m.y), v.z * inverse * (plus + m.z),
                        v.w * inverse * (plus + m.w));
        if (n.gate.p && activates)
            z = make_float4(activate(ACT_SILU, z.x), activate(ACT_SILU, z.y), activate(ACT_SILU, z.z), activate(ACT_SILU, z.w));
        if (n.gate.p) v = make_float4(v.x * z.x, v.y * z.y, v.z * z.z, v.w * z.w);
        x.v[i] = v;
    }
    return squares;
}

/* One step of a warp's weights and its operand of x in registers. */
struct step_frags {
    uint4 w[2][2], x[2]; /* [64 bytes][8 rows] */
    uint2 scale[2];
};
template <int KIND>
__device__ __forceinline__ void read_step(step_frags &s, uint32_t data, uint32_t scales, uint32_t x, uint32_t own)
{
    uint32_t lane = threadIdx.x & 31;
#pragma unroll
    for (int u = 0; u < 2; u++) {
        /* Weights: rows g and g + 8 of both 64-byte halves; x: only lanes that own a part. */
        s.w[u][0] = lds_128(data + u * 1024 + lane * 16);
        s.w[u][1] = lds_128(data + u * 1024 + 512 + lane * 16);
        s.x[u] = make_uint4(0, 0, 0, 0);
        if (own) s.x[u] = lds_128(x + u * 64);
    }
    if (KIND != CK_Q8) return;
    s.scale[0] = lds_64(scales + (lane >> 2) * 32);
    s.scale[1] = lds_64(scales + (lane >> 2) * 32 + 256);
}
/* Multiplies one step. */
template <int KIND> __device__ __forceinline__ void use_step(const step_frags &s, float (&acc)[4])
{
    uint32_t second = threadIdx.x & 2;
#pragma unroll
    for (int u = 0; u < 2; u++) {
        if (KIND != CK_Q8) {
            mma<KIND == CK_BF16>(acc, {s.w[u][0].x, s.w[u][1].x, s.w[u][0].y, s.w[u][1].y}, s.x[u].x, s.x[u].y);
            mma<KIND == CK_BF16>(acc, {s.w[u][0].z, s.w[u][1].z, s.w[u][0].w, s.w[u][1].w}, s.x[u].z, s.x[u].w);
            continue;
        }
        /* Two scale blocks share one int32 accumulator set; digits combine with weight 256. */
        int c[4] = {0, 0, 0, 0};
        mma_int8(c, s.w[u][0].x, s.w[u][1].x, s.w[u][0].y, s.w[u][1].y, s.x[u].x, s.x[u].y);
        mma_int8(c, s.w[u][0].z, s.w[u][1].z, s.w[u][0].w, s.w[u][1].w, s.x[u].z, s.x[u].w);
        acc[0] = fmaf((float)(c[1] * 256 + c[0]), pick_scale(u ? s.scale[0].y : s.scale[0].x, second), acc[0]);
        acc[1] = fmaf((float)(c[3] * 256 + c[2]), pick_scale(u ? s.scale[1].y : s.scale[1].x, second), acc[1]);
    }
}

/* Stores the tile's row sums over this warp's columns: [row][warp's eighth of the columns]. */
template <int KIND> __device__ __forceinline__ void put_rows(float (&sums)[PER<KIND>][4], float scale, float *to)
{
    uint32_t lane = threadIdx.x & 31;
    float(&acc)[4] = sums[0];
    if constexpr (PER<KIND> == 2)
#pragma unroll
        for (int i = 0; i < 4; i++) acc[i] += sums[1][i];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        /* Combine the digit pairs (or parts) of the four lanes of a row. */
        float v = KIND == CK_Q8 ? acc[i] * (lane & 1 ? scale * 65536.0f : scale) : (acc[2 * i] + acc[2 * i + 1]) * scale;
        v += __shfl_xor_sync(0xffffffffu, v, 1);
        v += __shfl_xor_sync(0xffffffffu, v, 2);
        if ((lane & 3) == 0) to[((lane >> 2) + 8 * i) * WARPS] = v;
    }
#pragma unroll
    for (uint32_t n = 0; n < PER<KIND>; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) sums[n][i] = 0;
}

/* Dynamic shared memory of a block, from the view of one warp. */
struct digits_smem {
    uint32_t *words; /* x of this warp, `pitch` words per digit */
    float *partial;
    uint32_t pitch, ring;
};
template <int KIND> __device__ __forceinline__ digits_smem find_smem(const ck_stream &a, uint32_t width, uint32_t turn)
{
    extern __shared__ __align__(128) unsigned char smem[];
    /* Layout: x of all warps, partial sums, rings. */
    uint32_t warp = threadIdx.x >> 5, pitch = width * split_form<KIND>::BYTES / 4 + split_form<KIND>::PAD;
    float *partial = reinterpret_cast<float *>(smem + WARPS * split_form<KIND>::PARTS * 4 * pitch);
    return digits_smem{reinterpret_cast<uint32_t *>(smem) + warp * split_form<KIND>::PARTS * pitch, partial, pitch,
                       smem_addr(partial + turn * ROWS * WARPS) + warp * a.stage_bytes};
}

/* Waits for the inputs, requests x, then the rest of the ring's weights (issued after x so that x
 * does not queue behind them), and converts x. Returns the factor of the sums. */
template <int KIND, int P, bool NORMED>
__device__ __forceinline__ float load_digits(const ck_stream &a, load_cursor &h, row_epilogue &e, const digits_smem &to,
                                             uint32_t part, uint32_t width, uint32_t n_tiles, float *squares)
{
    const ck_gemv &g = a.g;
    uint32_t lane = threadIdx.x & 31, from = part * width, bytes = width * split_form<KIND>::BYTES;
    warp_x<P> x;
    warp_x<NORMED ? P : 1> w, gate;
    /* Norm weights do not depend on the inputs. */
    if (NORMED && g.norm.present && g.norm.weight)
#pragma unroll
        for (int i = 0; i < P && NORMED; i++)
            if (i * 128 < width)
                w.v[NORMED ? i : 0] = float4_at(g.norm.weight, (g.norm.groups > 1 ? 0 : from + i * 128) + lane * 4);
    wait_for_inputs();
    load_cols(x, g.x.p + from, width);
    if constexpr (NORMED)
        if (g.norm.gate.p) load_cols(gate, g.norm.gate.p + from, width);
    if (e.residual_at) e.residual = *e.residual_at;
#pragma unroll 1
    for (uint32_t i = a.early; i < S; i += PER<KIND>) issue_step<KIND>(a, h, to.ring, part * bytes, bytes, n_tiles);
    if constexpr (NORMED)
        if (g.norm.present) {
            float own = warp_sum(norm_cols(g.norm, !a.gate_done, x, w, gate, width));
            if (lane == 0) squares[part] = own;
        }
    return put_digits<KIND>(x, width, to.words, to.pitch);
}

/* Epilogue of the last `done` tiles, the last one being the block's tile n, when all warps have
 * their sums. */
template <int KIND, bool NORMED>
__device__ __forceinline__ void finish_turn(const ck_stream &a, row_epilogue &e, uint32_t n, uint32_t done, uint32_t turn,
                                            const digits_smem &at, const float *squares, float &post_scale, float &best,
                                            uint32_t &index)
{
    consumers_sync();
    /* Rows beyond the preloaded ones; otherwise the RMS factor, once. */
    if (n >= turn) {
        load_epilogue<KIND, NORMED>(a, n + 1 - done, e);
        if (e.residual_at) e.residual = *e.residual_at;
    } else if (NORMED && a.g.norm.present && a.g.norm.groups == 1) {
        post_scale = 0;
#pragma unroll
        for (int i = 0; i < WARPS; i++) post_scale += squares[i];
        post_scale = rsqrtf(post_scale / a.g.k + a.g.norm.eps);
    }
    e.active = e.active && threadIdx.x >> a.outs_log < done;
    finish_row<KIND, NORMED, true>(a, e, at.partial, true, best, index, post_scale);
    consumers_sync();
}

/* Kernel body. P: 128-column pieces of x per warp. */
template <int KIND, int P> __device__ __forceinline__ void digits(const ck_stream &a)
{
    constexpr bool NORMED = P <= 4;
    __shared__ float squares[WARPS];
    __shared__ uint64_t bests[WARPS];
    /* Warps of different blocks start at different columns, to spread L2 traffic. */
    uint32_t lane = threadIdx.x & 31, width = a.g.k / WARPS, part = ((threadIdx.x >> 5) + blockIdx.x) % WARPS,
             bytes = width * split_form<KIND>::BYTES, from = part * bytes, n_tiles = (a.tiles - blockIdx.x - 1) / gridDim.x + 1,
             turn = CK_DIGITS_TURN(a.tiles, gridDim.x), index = 0xfffffffeu;
    digits_smem at = find_smem<KIND>(a, width, turn);
    float best = -CUDART_INF_F, acc[PER<KIND>][4] = {}, post_scale = 1;
    load_cursor h = {{}, nullptr, 0, 0, 0, 0};
    row_epilogue e;
    launch_dependents();
    load_conv_ptrs<NORMED>(a, e);
    find_rows<KIND>(a, h, from);
#pragma unroll 1
    for (uint32_t i = 0; i < a.early; i += PER<KIND>) issue_step<KIND>(a, h, at.ring, from, bytes, n_tiles);
    load_epilogue<KIND, NORMED>(a, 0, e);
    float scale = load_digits<KIND, P, NORMED>(a, h, e, at, part, width, n_tiles, squares);
    uint32_t digit = KIND == CK_Q8 ? (lane >> 2) & 3 : lane >> 2,
             own = KIND == CK_Q8 ? lane >> 4 == (lane >> 1 & 1) : digit < split_form<KIND>::PARTS, slot = 0, chunk = 0,
             x = smem_addr(at.words) + (digit * at.pitch + (lane & 3) * 4) * 4;
    /* All tiles; each warp covers its columns in steps. */
#pragma unroll 1
    for (uint32_t n = 0, done = 0; n < n_tiles; n++) {
#pragma unroll 1
        for (uint32_t j = 0; j * STEP < bytes; j += PER<KIND>) {
            step_frags s[PER<KIND>];
            asm volatile("cp.async.wait_group %0;" ::"n"(S / PER<KIND> - 1) : "memory");
            __syncwarp();
#pragma unroll
            for (uint32_t i = 0; i < PER<KIND>; i++)
                read_step<KIND>(s[i], at.ring + (slot + i) * STEP_BYTES,
                                at.ring + S * STEP_BYTES + chunk * CHUNK_BYTES + j % 4 * 8, x + (j + i) * STEP, own);
            __syncwarp();
            issue_step<KIND>(a, h, at.ring, from, bytes, n_tiles);
#pragma unroll
            for (uint32_t i = 0; i < PER<KIND>; i++) use_step<KIND>(s[i], acc[i]);
            if ((slot += PER<KIND>) == S) slot = 0;
            if (KIND == CK_Q8 && (j % 4 == 3 || (j + 1) * STEP == bytes) && ++chunk == a.stages) chunk = 0;
        }
        put_rows<KIND>(acc, scale, at.partial + done * ROWS * WARPS + part);
        if (++done < turn && n + 1 < n_tiles) continue;
        finish_turn<KIND, NORMED>(a, e, n, done, turn, at, squares, post_scale, best, index);
        done = 0;
    }
    if (a.g.best) store_block_best(a.g, best, index, bests);
}

#else
template <int KIND, int P> __device__ __forceinline__ void digits(const ck_stream &) {} /* never launched before sm_90 */
#endif

#define DIGITS(KIND, P)                                                                                                         \
    extern "C" __global__ void __launch_bounds__(CK_DIGITS_THREADS, 2) digits_##KIND##_##P(const __grid_constant__ ck_stream a) \
    {                                                                                                                           \
        digits<CK_##KIND, P>(a);                                                                                                \
    }
DIGITS(Q8, 4)
DIGITS(Q8, 8)
DIGITS(Q8, 16)
DIGITS(BF16, 4)
DIGITS(BF16, 8)
DIGITS(BF16, 16)
DIGITS(F16, 4)
DIGITS(F16, 8)
DIGITS(F16, 16)
