/* kparams_state.h: arguments of kernels that read or write states (kparams.h): convolution, delta rule, attention.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_KPARAMS_STATE_H
#define SG_UNIT_CUDA_KPARAMS_STATE_H

#include "kparams_base.h"

enum {
    /* positions per chunk of decode attention; fixed, so results are batch-invariant */
    CK_CHUNK = 64,
    CK_DELTA_COLUMNS = 4,
    CK_DELTA_SCALARS = 12,
    CK_DELTA_TILE_COLUMNS = 8,  /* columns of S per block of delta_tiles */
    CK_DELTA_SLAB_COLUMNS = 32, /* columns of S per block of delta_slabs */
    /* Query heads that one block of attend_part or attend_many handles together. */
    CK_GROUP_HEADS = 8,
    CK_WGFLASH_THREADS = 256,
    CK_CHUNK_ROWS = 64,    /* delta rule on tensor cores (k_chunk.cu, k_chunk_state.cu, k_scan.cu): tokens per chunk */
    CK_CHUNK_COLUMNS = 32, /* largest number of columns of S per block of chunk_state */
    CK_CHUNK_THREADS = 256,
    CK_CHUNK_LOCAL_THREADS = 288,
    CK_CHUNK_STATE_THREADS = 512,
    CK_CHUNK_TAPS = 4,
    CK_CHUNK_LOCAL_BYTES = (4 * 64 * 136) * 2 + (64 * 68 + 2 * 64) * 4, /* bytes of dynamic shared memory of one block */
    CK_CHUNK_STATE_BYTES = (6 * 64 * 136 + 4 * 64 * 72 + 2 * 128 * 40 + 6 * 64 * 40) * 2,
    CK_SCAN_THREADS = 320,
    CK_SCAN_PAIRS_THREADS = 576, /* threads of chunk_scan and chunk_scan_pairs */
    CK_SCAN_COLUMNS = 16,
    CK_SCAN_BYTES = 5 * 32768 + 2 * 10 * 1024 + 2 * (8 + 4) * 1024 + 16 * 1024 + 256
};
/* Causal depthwise convolution over `taps` tokens; `slot` holds the last taps - 1 inputs of the sequence. */
struct ck_conv {
    struct ck_pass pass;
    struct ck_view x, y;
    const float *weight, *bias;
    uint32_t taps, act, slot, rows;
};
/* Factors of one chunk and head, written by chunk_factors and read by chunk_scan (k_scan.cu). w, k, q: the right-hand
 * operands of its products, each value as two bf16 (rounded, and the remainder), in tiles of 16 x 16 in mma fragment order
 * (32 lanes of 16 bytes of the rounded parts, then of the remainders). p: the lower triangle of P in the same tiles. u: U
 * transposed, fp32 in accumulator order. decay: e^c_last, the factor by which the chunk shrinks S. */
struct ck_factors {
    uint16_t w[2 * 64 * 128], k[2 * 64 * 128], q[2 * 64 * 128], p[10 * 512];
    float u[64 * 128], decay, none[31];
};

/* Gated delta rule. in[0..4]: q, k, v, a (decay input), b (beta input). Per token and head: S <- decay S, d = beta (v - S^T
 * k), S <- S + k d^T, y = S^T q. */
struct ck_delta {
    struct ck_pass pass;
    struct ck_view in[5], y;
    const float *decay, *dt;
    float *ready; /* scratch of delta_prepare: normalised q and k and the scalars of each row; NULL when not used */
    /* Scratch between k_chunk.cu and k_chunk_state.cu, per chunk. chunk_qk: k and q of each key head, [4][64][128]; chunk_tp:
     * T and P of each head, [4][64][64]; both as two bf16 (rounded, remainder). chunk_scalars: e^c, beta, e^(c_last - c) of
     * each head, [3][64]. */
    uint16_t *chunk_qk, *chunk_tp;
    float *chunk_scalars, *chunk_v;
    struct ck_factors *factors; /* factors: [chunks][heads], for k_scan.cu */
    /* With conv.weight set, in[0] to in[2] are the inputs of the short convolution (columns from at[i] on), the chunk kernels
     * compute it, and chunk_v holds the convolved v, [64][128] per chunk and head. */
    struct {
        const float *raw, *weight, *bias; /* raw: first row, all channels, before the convolution */
        uint32_t taps, slot, width, at[3];
    } conv;
    uint32_t k_heads, v_heads, dk, dv, is_log, slot, rows;
    uint32_t halves; /* 1: in[] and conv.raw are bf16 */
    float l2_eps;
};
/* Stores K and V rows: k [rows][heads * d], v [rows][heads * dv]. */
struct ck_append {
    struct ck_pass pass;
    struct ck_view k, v;
    uint32_t heads, d, dv, slot_k, slot_v, storage, rows;
};
/* Attention over the K and V slots. window: sliding-window length or 0; sinks: one logit per head or NULL; parts: scratch
 * [rows][heads][chunks][dv + 2] of attend_part; gate: y is multiplied by sigmoid(gate) if present. */
struct ck_attend {
    struct ck_pass pass;
    struct ck_view q, gate, y;
    const float *sinks;
    float *parts;
    uint32_t heads, kv_heads, d, dv;
    uint32_t window, slot_k, slot_v, storage, rows, chunks;
    float scale, softcap;
};
/* All work of a layer between the q, k, v projections and attention, in one launch: norm of the heads of q and k, RoPE, and
 * the store of K and V. d, dv: head sizes; heads are [q heads][kv_heads]. */
struct ck_prepare {
    struct ck_pass pass;
    struct ck_view q, k, v, q_out;
    struct ck_norm q_norm, k_norm;
    const float *inverse;
    uint32_t heads, kv_heads, d, dv, pairs, slot_k, slot_v, storage, rows;
    float mscale;
};

/* k_single.cu: `prepare` and attention in one launch, for rows that belong to different sequences and see at most
 * CK_SINGLE_CHUNKS chunks; prepare.pairs 0: no RoPE. */
enum { CK_SINGLE_CHUNKS = 8, CK_SINGLE_THREADS = 512 };
struct ck_single {
    struct ck_prepare prepare;
    struct ck_attend attend;
};

/* k_split.cu, and the split kernels of k_attend.cu: attention of up to 16 rows, divided over the KV length (k_split.cuh).
 * attend.parts: [splits][heads][pitch] sums, pitch: dv rounded up to 4; ends: [splits][heads][2]. MIN_TILES: tiles of 16
 * positions that a part has at least. RING_BYTES: shared memory for K and V in flight per block; blocks of the products before
 * and after (up to 148 KB) should fit beside it. */
enum { CK_SPLIT_MIN_TILES = 4 };
#define CK_SPLIT_RING_BYTES(width) ((width) > 128 ? 96 << 10 : 64 << 10)
#define CK_SPLIT_Q8_HALVES(width) ((width) > 64 ? 3 : 4) /* K or V of 16 positions, per warp */
#define CK_SPLIT_Q8_BYTES(width) (CK_SPLIT_THREADS(width) / 32 * 16 * (width) * (CK_SPLIT_Q8_HALVES(width) * 34 + 64) / 32)
#define CK_SPLIT_THREADS(width) ((width) > 128 ? 128 : 256)
struct ck_split {
    struct ck_prepare prepare; /* with fused: norm and RoPE of q and k, and the K and V store */
    struct ck_attend attend;
    float *ends;
    uint32_t splits, pitch;
    uint32_t fused; /* 1: `prepare` is done by this launch; every row is another sequence */
    uint32_t alone; /* 1: every row has splits / rows parts, so its result does not depend on the other rows */
};

/* k_wgflash.cu. columns: blocks per head of its first way. The second one divides the keys of a pair of row tiles among up to
 * `splits` blocks: attend.parts [pairs][splits][128][d] sums, ends [pairs][splits][128][2] maximum and sum, arrivals [pairs]:
 * blocks that are done, 0 between launches; pairs: of all K/V heads. More than one split only if there are at most as many pairs
 * as multiprocessors. map: K or V as {d / 2, kv_heads, positions} 32-bit elements; maps [blocks][2]: room for a block's own, with
 * the addresses of its slots; NULL: only the first way. */
enum { CK_WGFLASH_PAIR = 128 };
struct ck_wgflash {
    struct ck_attend attend;
    float *ends;
    uint32_t *arrivals;
    struct ck_tensor_map *maps;
    uint32_t columns, splits;
    struct ck_tensor_map map;
};
#define CK_WGFLASH_KEYS(d) ((d) == 128 ? 128 : 64) /* of a tile of the second way */
#define CK_WGFLASH_BYTES(d) (((d) == 64 ? 64 << 10 : 224 << 10) + 1024)

#endif
