/* kparams.h: the contract between the host code of the cuda unit and its kernels: one plain struct of arguments per kernel,
 * passed by value as a __grid_constant__ parameter, and the constants that both sides size launches with. Included by C and
 * CUDA; declares no functions. Activations are fp32 unless stated; a row of x or y is one token, a row of a weight one output
 * feature. Pointers are GPU memory owned by the host's program, state or lane.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_KPARAMS_H
#define SG_UNIT_CUDA_KPARAMS_H

#include <stdint.h>

/* Storage of a weight matrix in GPU memory: rows of `pitch` bytes, a multiple of 16, zero-filled after the last column. */
enum ck_kind {
    CK_F32,
    CK_F16,
    CK_BF16,
    CK_Q8, /* int8; one fp16 scale per 32 weights: scales [row][blocks] */
    /* 4-bit, blocks of 32 (byte j: weight j in the low, j + 16 in the high nibble); fp16 pairs {scale, offset}: w = scale * q
     * + offset */
    CK_Q4,
    CK_G8, /* uint8; fp32 pairs {scale, offset} per group of 16 to 128 weights */
    CK_G4, /* 4-bit, packed as CK_Q4; fp32 pairs {scale, offset} per group of 32 to 128 */
    CK_F8, /* e4m3; one fp32 scale per row, a power of two: scales [row] */
    CK_KINDS,
    /* Packed: the codes of the file in chunks of 256 columns, in the order of tensor-core operands, eight rows at a time,
     * with their scales (k_packed.cuh). Row windows begin at a multiple of eight. k_packed.cu multiplies them. */
    CK_PACKED = CK_KINDS,
    CK_P_Q4_0 = CK_PACKED, CK_P_Q4_1, CK_P_Q5_0, CK_P_Q5_1, CK_P_Q2_K, CK_P_Q3_K, CK_P_Q4_K, CK_P_Q5_K, CK_P_Q6_K, CK_P_IQ4_NL,
    CK_P_MXFP4,
    CK_P_MLX2, CK_P_MLX3, CK_P_MLX4, CK_P_MLX5, CK_P_MLX6, CK_P_MLX8, /* 16-bit pairs {scale, offset}, groups of 32 or 64 */
    CK_PACKED_END
};
/* Bytes of a packed chunk of 256 columns, by kind - CK_PACKED: codes, scales, factors. MLX with groups of 32: scales twice as
 * many. X(kind, bits of the first plane, bits of the second, scale bytes, factor bytes) */
#define CK_PACKED_KINDS(X) \
    X(Q4_0, 4, 0, 16, 0) X(Q4_1, 4, 0, 32, 0) X(Q5_0, 4, 1, 16, 0) X(Q5_1, 4, 1, 32, 0) X(Q2_K, 2, 0, 16, 4) \
    X(Q3_K, 2, 1, 16, 4) X(Q4_K, 4, 0, 16, 4) X(Q5_K, 4, 1, 16, 4) X(Q6_K, 4, 2, 16, 4) X(IQ4_NL, 4, 0, 16, 0) \
    X(MXFP4, 4, 0, 0, 8) X(MLX2, 2, 0, 16, 0) X(MLX3, 2, 1, 16, 0) X(MLX4, 4, 0, 16, 0) X(MLX5, 4, 1, 16, 0) \
    X(MLX6, 4, 2, 16, 0) X(MLX8, 8, 0, 16, 0)

enum {
    /* Limits of one pass: spans (sequences), weight segments that one product reads. */
    CK_SPANS = 16,
    CK_SEGMENTS = 6,
    /* positions per chunk of decode attention; fixed, so results are batch-invariant */
    CK_CHUNK = 64,
    CK_GEMV_THREADS = 256,
    CK_WIDE_THREADS = 512, /* k_wide.cu: one block occupies a whole multiprocessor */
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
/* Storage of K and V in the state. CK_KV_Q8 is Q8_0: blocks of 2 bytes fp16 scale and 32 int8. */
enum ck_storage { CK_KV_F32, CK_KV_F16, CK_KV_BF16, CK_KV_Q8 };

/* One weight matrix; see enum ck_kind for the layout of data and scales. */
struct ck_weight {
    const void *data;
    const void *scales;
    uint32_t kind, pitch; /* pitch: bytes per row of data */
    uint32_t scale_pitch; /* scales (or pairs) per row */
    uint32_t group;       /* weights per scale; packed MLX with bf16 scales: plus CK_GROUP_BF16 */
    uint32_t rows, cols;
};

/* A matrix of fp32: row t, column c is p[t * stride + c]. p is NULL when the operand is absent. */
struct ck_view {
    float *p;
    uint32_t stride, width;
};

/* Header of a pass in GPU memory. The host writes it before a pass; in generation loops choose_best (k_choose.cu) advances it
 * on the GPU, so that several steps can be in flight. */
struct ck_head {
    /* Number of spans and of rows (tokens); `wanted`: rows whose logits are computed. stopped: 1 after a stop token or the
     * last step, later launches then write no state. published: tokens in the ring so far; steps: tokens to generate; failed:
     * 1 on NaN logits. */
    uint32_t spans, rows, wanted, stopped;
    uint32_t published, steps, failed, pad;
    uint32_t first[CK_SPANS];    /* position of the first token of each span */
    uint32_t from[CK_SPANS + 1]; /* row of the pass with which each span starts; from[spans] is the end */
};
/* Arrays of one pass, in GPU memory. */
struct ck_pass {
    struct ck_head *head;
    int32_t *tokens;        /* [rows] token ids */
    uint32_t *place, *span; /* [rows] position in the sequence, and index of the span */
    uint32_t *wanted;       /* [wanted] source row of each wanted row */
    void **slots;           /* [spans][slots_n] memory of each state slot */
    /* where convolution and delta-rule slots are written: equal to `slots`, or the second copy of the state when a step may
     * be discarded */
    void **slots_out;
    uint32_t slots_n;
};

/* Norm fused before a product: RMS norm, or layer norm with layer = 1; over the whole row or over `groups` equal groups. */
struct ck_norm {
    const float *weight, *bias; /* [width of a group] or NULL (weight 1, bias 0) */
    /* If present the normalised value is multiplied by SiLU(gate). */
    struct ck_view gate;
    float eps;
    /* plus_one: the factor is 1 + weight (Gemma convention); present 0: no norm. */
    uint32_t layer, groups, plus_one, present;
};

/* y = table[at + token] * scale (+ positions[places_at + position] for learned position embeddings). */
struct ck_embed {
    struct ck_pass pass;
    struct ck_weight table, places;
    uint32_t at, places_at, rows;
    float scale;
    struct ck_view y;
};
/* Arguments of norm_rows: y = norm(x). */
struct ck_norm_args {
    struct ck_view x, y;
    struct ck_norm norm;
    uint32_t rows;
};
/* Rotary embedding of pairs (j, j + pairs) of each head: angle = position * inverse[j] * sign; cos and sin scaled by mscale. */
struct ck_rope {
    struct ck_pass pass;
    struct ck_view x, y;
    const float *inverse;
    uint32_t heads, head_width, pairs, rows;
    float mscale;
    int32_t sign;
};
/* Element-wise ops glu, act, add, scale. one 1: `weight` is a single number; without weight: `value`. */
struct ck_map {
    struct ck_view x, x2, y;
    const float *weight;
    float value;
    uint32_t act, one, rows;
};
/* Gather of the wanted rows. */
struct ck_rows {
    struct ck_pass pass;
    struct ck_view x, y;
    uint32_t rows;
};
/* Mixture-of-experts router: x [rows][experts] logits; y [rows][2 k]: k expert ids as floats, then their k weights. */
struct ck_route {
    struct ck_view x, y;
    const float *bias;
    uint32_t experts, k, sigmoid, renormalise, rows;
    float scale;
};
/* Experts: row `at + expert * ff + f` of gate and up, `at + expert * d + c` of down. hidden: scratch [rows][k][ff]. */
struct ck_experts {
    struct ck_view x, routing, y;
    struct ck_weight gate, up, down;
    uint32_t gate_at, up_at, down_at;
    float *hidden;
    uint32_t experts, k, ff, act, d, rows;
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

/* Output rows excluded from argmax: rows >= limit, and the n listed ones. */
enum { CK_BANNED = 8 };
struct ck_banned {
    uint32_t limit, n;
    int32_t rows[CK_BANNED];
};
/* One weight of a product with several weights that share x: n output rows, starting with row `at` of data; y = W x (+ bias)
 * (+ residual). */
struct ck_segment {
    const void *data;
    const void *scales;
    const float *bias;
    struct ck_view residual, y;
    uint32_t n, at;
};
/* Product of up to 16 rows of x with all segments: arguments of k_gemv.cu and k_wide.cu, and part of those of the one-row
 * kernels. */
struct ck_gemv {
    struct ck_view x;
    struct ck_norm norm; /* norm of x before the product, if present */
    uint32_t k, rows;    /* k: columns of the weights; rows: rows of x */
    uint32_t pitch, scale_pitch, group;
    uint32_t segments, pairs; /* pairs: number of row pairs in all segments together */
    uint32_t split;           /* warps that split one row pair along k */
    uint32_t glu, act;        /* glu 1: segment 0 is gate and 1 is up; y = act(gate) * up */
    uint32_t best;            /* 1: also compute each block's argmax */
    struct ck_banned banned;
    float *best_value; /* [rows][blocks], with best_index: argmax per block */
    uint32_t *best_index;
    struct ck_segment segment[CK_SEGMENTS];
};
/* k_stream.cu: product with one row whose weights are prefetched into shared memory. A tile is 8 R / split weight rows, with
 * R = CK_STREAM_ROWS of the 16-byte pieces per lane; with glu half of the rows are gate's and half up's. */
#define CK_STREAM_ROWS(pieces) ((pieces) >= 8 ? 1 : (pieces) >= 4 ? 2 : 4)
enum ck_epilogue_kind { CK_EPILOGUE_NONE, CK_EPILOGUE_ACT, CK_EPILOGUE_CONV };
enum { CK_STREAM_STAGES = 16, CK_STREAM_THREADS = 288, CK_STREAM_TAPS = 4, CK_STREAM_NORMED = 32 };
/* Op fused after the product, applied to the output rows of one segment: an activation, or the short convolution. */
struct ck_epilogue {
    uint32_t kind, segment, act, taps, slot;
    struct ck_view y;
    const float *weight, *bias;
    struct ck_pass pass;
};
struct ck_stream {
    struct ck_gemv g;
    struct ck_epilogue after;
    uint32_t tiles, stages, stage_bytes, scale_bytes; /* scale_bytes: bytes of scales per weight row */
    uint32_t early;                                   /* k_digits.cu: ring steps requested before x is available */
    uint32_t split_log, per_log, outs_log; /* log2 of: warps per row; rows per tile; output rows per tile of one segment */
    uint32_t first[CK_SEGMENTS];           /* first tile of each segment */
    /* gates: 1 + index of the segment whose output is stored as its SiLU (0: none); gate_done 1: norm.gate already is one */
    uint32_t gates, gate_done;
};
/* k_digits.cu: product of large weights with one row; arguments as ck_stream. A tile is 16 rows over all columns. stages:
 * ring buffers for Q8_0 scales of 512 columns, per warp; stage_bytes: one warp's ring. Shared memory of a block: x as digits
 * or 16-bit parts, the sums of one turn of tiles, the ring of each warp. */
enum { CK_DIGITS_THREADS = 256, CK_DIGITS_STEPS = 8 };
#define CK_DIGITS_TURN(tiles, blocks) (((tiles) + (blocks)-1) / (blocks) < 16 ? ((tiles) + (blocks)-1) / (blocks) : 16)
/* Number of digits (Q8_0) or 16-bit parts that x is split into, and their bytes. */
#define CK_DIGITS_PARTS(kind) ((kind) == CK_Q8 ? 4 : (kind) == CK_BF16 ? 3 : 2)
#define CK_DIGITS_X_BYTES(kind, k) (CK_DIGITS_PARTS(kind) * ((kind) == CK_Q8 ? (k) + 256 : 2 * (k) + 512))
#define CK_DIGITS_BYTES(kind, k, turn, ring) (CK_DIGITS_X_BYTES(kind, k) + (turn)*512 + 8 * (ring))
/* k_packed.cu: product of packed weights with one row. A tile is 16 rows over all columns, with glu 8 of gate and 8 of up, which
 * have the same kind. Of s.g: pitch, scale_pitch and group are unused. Shared memory of a block: per warp its columns of x as
 * four digits of 8 bits, and their sums by 16; partial sums of a turn of tiles; per warp a ring of `s.stages` chunks. */
enum { CK_PACKED_THREADS = 256, CK_PACKED_CHUNK = 256, CK_PACKED_ROWS = 16, CK_PACKED_STAGES = 8, CK_GROUP_BF16 = 1 << 15 };
struct ck_packed {
    struct ck_stream s;
    uint32_t width;          /* columns of a warp, at most */
    uint32_t chunk0, chunks; /* the columns of the product, in chunks */
    uint32_t rows;           /* k_packed_rows.cu: rows of x */
    struct {
        uint16_t kind, block, group, bf16; /* block: bytes of eight rows of a chunk */
        uint32_t pitch;                    /* bytes of a row: an eighth of those of eight rows */
    } of[CK_SEGMENTS];
};
#define CK_PACKED_X_BYTES(width) (4 * ((width) + 32) + (width) / 4)
/* k_packed_rows.cu: the same with up to CK_PACKED_X_ROWS rows of x, as three digits, over some of the columns. */
enum { CK_PACKED_X_ROWS = 8, CK_PACKED_TURN = 2 };
#define CK_PACKED_ROWS_X_BYTES(width, rows) ((rows) * (3 * (width) + (width) / 4))
/* k_vocab.cu: logits of one row. g has a single segment, with argmax. A tile is 1 << rows_log whole rows. Shared memory of a
 * block: `stages` tiles with their scales; then per warp its part of x, reused for the sums of two turns of rows. */
enum { CK_VOCAB_THREADS = 288, CK_VOCAB_STAGES = 16, CK_VOCAB_TURN = 64 };
enum { CK_VOCAB_BYTES = 113 << 10 }; /* half a multiprocessor: two blocks fit */
/* Row groups of eight per tile; units: number of 128-byte units of a row that one warp handles, at most. */
#define CK_VOCAB_GROUPS(units) ((units) < 4 ? 2 : 1)
#define CK_VOCAB_WARP_BYTES(kind, units) \
    (CK_DIGITS_PARTS(kind) * ((kind) == CK_Q8 ? (units)*128 + 32 : ((units) < 2 ? 2 : (units)) * 128 + 64) + 32)
struct ck_vocab {
    struct ck_gemv g;
    uint32_t tiles, rows_log, stages, stage_bytes, scale_bytes; /* scale_bytes: bytes of scales per row */
    uint32_t *draws;                                            /* work counter of the blocks; 0 between launches */
};
/* k_choose.cu. advance 0: only report the token; 1: the token is the next input of this pass and goes into the ring; 2: it is
 * the first input of the pass `next`. */
enum { CK_CHOOSE_THREADS = 512 };
struct ck_choose {
    struct ck_pass pass, next;
    const float *best_value;
    const uint32_t *best_index;
    uint32_t blocks, rows, advance, stops_n;
    const int32_t *stops;
    int32_t *ring;
    uint32_t ring_cap;
    volatile uint32_t *ring_written;
    int32_t *chosen;
    struct ck_embed embed; /* embedding of the next input, if y.p is set; its pass is unused */
};
/* argmax_rows: per-block argmax of logits in memory. */
struct ck_argmax {
    struct ck_view x;
    float *best_value;
    uint32_t *best_index;
    struct ck_banned banned;
    uint32_t blocks, rows;
};
/* k_screen.cu: argmax over the vocabulary by an int8 copy of the head with error bounds. */
struct ck_screen {
    struct ck_weight w;   /* the original weight */
    int8_t *q;            /* [rows][pitch] int8 copy */
    float *scale, *bound; /* [rows] scale of the copy; bound on its error relative to |x| */
    float *near;          /* [rows] estimated logits */
    float *low;           /* [blocks] highest lower bound found by each block of screen_rows */
    float *length;        /* Euclidean length of x, rounded up */
    uint32_t pitch, blocks;
    struct ck_view x;
    struct ck_banned banned;
    float *best_value;
    uint32_t *best_index;
};
/* LoRA on rows [from, to): low = a x, y += b low. a [rank][k], b [n][rank] from row `at`; rank is the LoRA rank. */
struct ck_lora {
    struct ck_view x, y;
    const float *a, *b;
    float *low;
    uint32_t rank, from, to, k, n, at;
};
/* fp16 overflows at 65,504, below the range of x. With F16 weights x is therefore stored divided by a power of two: by 16 in
 * prompts, by 2,048 with few rows, where the remainder is stored unscaled. Sums are multiplied back. */
#define CK_F16_MANY 16.0f
#define CK_F16_FEW 2048.0f
/* Conversion of x to 16 bits before a product, with an optional norm. x2 present: y = act(x) * x2. */
struct ck_narrow {
    struct ck_view x, x2;
    uint32_t act;
    void *y, *low; /* low: remainder of the rounding, or NULL */
    uint32_t rows, k, bf16;
    /* 1: vectorised path: aligned rows of whole 16-byte pieces, no layer norm, groups of 128 or none, no low */
    uint32_t fours;
    uint32_t gate_halves; /* 1: also norm.gate is bf16 */
    struct ck_norm norm;
};
/* Dequantisation of `rows` weight rows from row `at` to dense 16 bits, y [rows][cols]. */
struct ck_widen {
    struct ck_weight w;
    uint32_t at, rows;
    void *y;
    uint32_t bf16;
};
/* k_batch.cu: 2 to 16 rows on tensor cores. x and low: dense [16][k] in 16 bits, as ck_narrow writes them. A block owns 16 or
 * 32 weight rows; with glu 16 of gate and 16 of up. */
enum { CK_BATCH_THREADS = 256 };
struct ck_batch {
    const void *x, *low;
    uint32_t rows, k, pitch, segments, glu, act;
    uint32_t first[CK_SEGMENTS]; /* first block of each segment */
    struct ck_segment segment[CK_SEGMENTS];
};
/* CUtensorMap as cuTensorMapEncodeTiled writes it; element type: 4-byte integers. */
struct ck_tensor_map {
#ifdef __cplusplus
    alignas(64)
#else
    _Alignas(64)
#endif
        uint64_t v[16];
};
/* k_packed_gemm.cu: many rows of x, in bf16 in the order of packed_x, with packed weights of one kind; out16: y in bf16, at the
 * address of the fp32 rows, whose stride counts bf16 then. Tiles: first[i]: first tile of 128 rows of W of segment i; each has
 * x_tiles tiles of x. */
enum { CK_PACKED_GEMM_W_ROWS = 128, CK_PACKED_GEMM_X_ROWS = 112, CK_PACKED_GEMM_STAGES = 8, CK_PACKED_GEMM_THREADS = 288 };
#define CK_PACKED_GEMM_BYTES (CK_PACKED_GEMM_STAGES * CK_PACKED_GEMM_X_ROWS * 128 + 1024)
struct ck_packed_gemm {
    struct ck_tensor_map x; /* boxes of CK_PACKED_GEMM_X_ROWS rows by 64 columns, 128-byte swizzle */
    uint32_t rows, chunks, pitch, out16, tiles, x_tiles;
    uint32_t first[CK_SEGMENTS];
    struct ck_segment segment[CK_SEGMENTS];
};
/* packed_x: `words` 32-bit words of bf16 x, whole chunks. */
struct ck_packed_x {
    const void *x;
    void *y;
    uint32_t words;
};
#define CK_WGFLASH_BYTES(d) (7 * 64 * (d)*2 + 1024)
/* k_glu.cu: gate and up of many rows on sm_90. A block computes ROWS rows of x by UNITS hidden units; y in 16 bits. */
enum { CK_GLU_ROWS = 128, CK_GLU_UNITS = 88, CK_GLU_PANEL_COLS = 64, CK_GLU_STAGES = 5, CK_GLU_THREADS = 288 };
#define CK_GLU_BYTES \
    (CK_GLU_STAGES * (CK_GLU_ROWS + 2 * CK_GLU_UNITS) * CK_GLU_PANEL_COLS * 2 + CK_GLU_ROWS * CK_GLU_UNITS * 2 + 1024)
struct ck_glu {
    /* Boxes: x ROWS rows by one panel; w UNITS rows by one panel (gate's rows, then up's); y ROWS / 2 rows by UNITS. */
    struct ck_tensor_map x, w, y;
    uint32_t panels, units, pairs, tiles; /* pairs: pairs of row tiles; tiles: pairs times unit tiles */
};
/* k_tiles.cu: 2 to 16 rows on sm_90. A cluster shares weight rows along k, `slice` columns per block. Shared memory of a
 * block: x, `stages` panels of weights, exchange buffers of a cluster, norm weights. */
enum {
    CK_TILES_SLICE = 1024,
    CK_TILES_ROWS = 64, /* weight rows per tile; rows of x: */
    CK_TILES_X_ROWS = 16,
    CK_TILES_PER_CLUSTER = 8, /* tiles per cluster, at most */
    CK_TILES_STAGE = 8192,    /* bytes of one panel: 64 rows by 64 columns */
    CK_TILES_STAGES = 16,
    CK_TILES_THREADS = 352,
    CK_TILES_BYTES = 111 << 10,    /* two blocks per multiprocessor */
    CK_TILES_MAX_BYTES = 216 << 10 /* one block per multiprocessor */
};
struct ck_tiles {
    /* tensor map of each segment's weights; with glu map[0] covers gate and up. Box: 64 columns of one tile */
    struct ck_tensor_map map[CK_SEGMENTS];
    struct ck_gemv g;
    struct ck_epilogue after;
    uint32_t tiles, slice, cluster_log, turns;
    uint32_t groups, stages; /* groups: consumer warpgroups; stages: ring stages of each */
    /* group: columns of a norm group; behind: floats of residual or convolution state that each sum of a cluster needs */
    uint32_t group, behind;
    float per_group;             /* 1 / columns of a norm group, or of a row */
    uint32_t first[CK_SEGMENTS]; /* first tile of each segment */
};
/* Fused one-row kernels on clusters (k_heads.cu, k_linear.cu, k_mlp.cu over k_cluster_ops.cuh): two products and everything
 * between them in one launch. Each of up to CK_CLUSTERS_MAX clusters adds its part of the output to fixed-point sums in
 * global memory (k_fixed_point_sum.cuh): one 64-bit word per column, followed by the coarse words. Every fusion of a pass has
 * its own buffer of these, zero before the pass, so that the next kernel can see from a word itself whether all parts have
 * arrived. CONSUMERS threads compute, one more warp loads weights. */
enum { CK_CLUSTER_BLOCKS = 8, CK_CLUSTERS_MAX = 16, CK_CLUSTER_CONSUMERS = 256, CK_CLUSTER_THREADS = CK_CLUSTER_CONSUMERS + 32 };
enum { CK_CLUSTER_STAGES = 16 };
/* hidden units of a cluster are multiples of these; PAD: bytes */
enum { CK_CLUSTER_UNIT_MULTIPLE = 32, CK_CLUSTER_UNIT_MULTIPLE_Q8 = 128, CK_CLUSTER_Q8_PAD = 64 };
/* Sizes used by host and kernels: x is split into CK_CLUSTER_X_PARTS 16-bit parts, padded against bank conflicts; sums of a
 * group of 16 rows, two per warp, padded likewise. */
enum {
    CK_CLUSTER_X_PARTS = 3,
    CK_CLUSTER_SUMS_PITCH = 2 * 8 + 4,
    CK_CLUSTER_ROW_GROUP = 16,
    CK_CLUSTER_SUMS_BYTES = CK_CLUSTER_ROW_GROUP * CK_CLUSTER_SUMS_PITCH * 4
};
#define CK_LARGER(a, b) ((a) > (b) ? (a) : (b))
#define CK_CLUSTER_X_PART_PITCH(k) ((k)*2 + 64)
#define CK_CLUSTER_X_BYTES(k) (CK_CLUSTER_X_PARTS * CK_CLUSTER_X_PART_PITCH(k))
/* An input or output row: fixed-point sums, or plain fp32 when n is 0. */
struct ck_fixed_sums {
    const void *p;
    uint32_t n, width; /* n: number of clusters that add to each word */
    uint32_t live;     /* 1: written by the launch just before this one, which may still run: poll the words */
};
/* A sums buffer that no later launch reads: this kernel zeroes it for the next pass. fours: 16-byte pieces. */
struct ck_clear {
    uint64_t *p;
    uint32_t fours;
};
/* Weight from its first row on; pitch: bytes per row; scales: for Q8_0. */
struct ck_cluster_weight {
    const void *data;
    const float *bias;
    uint32_t pitch;
    const void *scales;
};
/* Q8_0 scales of the second product's weight, all columns; pitch: scales per row. */
struct ck_cluster_scales {
    const void *p;
    uint32_t pitch;
};
/* Upper bound of the static shared memory of one block. */
enum { CK_CLUSTER_STATIC_BYTES = 2048 };
/* k_heads.cu. CK_HEADS_COLS: output columns of a cluster (half a head for heads of 256); CK_HEADS_POS_GROUPS: groups of 32
 * positions prefetched per block; CK_HEADS_STATIC_BYTES: static shared memory. Dynamic shared memory after the ring: x,
 * reused for row sums and the warps' attention results (X_BYTES); prefetched K and V (KV_BYTES); x in parts, reused for the
 * blocks' results and the output in parts (PARTS_BYTES). */
#define CK_HEADS_COLS(width) ((width) > 128 ? (width) / 2 : (width))
#define CK_HEADS_POS_GROUPS(width) ((width) > 128 ? 1 : 2)
#define CK_HEADS_STATIC_BYTES(width) (18 * (width) + 8 * CK_HEADS_COLS(width) + CK_CLUSTER_STATIC_BYTES)
#define CK_HEADS_SUMS_BYTES(width) (((width) + CK_HEADS_COLS(width)) / 4 * CK_CLUSTER_SUMS_PITCH * 4)
#define CK_HEADS_X_BYTES(width, d) CK_LARGER(CK_LARGER(4 * (d), 32 * CK_HEADS_COLS(width)), CK_HEADS_SUMS_BYTES(width))
#define CK_HEADS_KV_BYTES(width) (CK_HEADS_POS_GROUPS(width) * ((width) + CK_HEADS_COLS(width)) / 64 * 256 * 16)
#define CK_HEADS_PARTS_BYTES(width, d) \
    CK_LARGER(CK_CLUSTER_X_BYTES(d),   \
              4 * CK_CLUSTER_BLOCKS * (CK_HEADS_COLS(width) + 4) + CK_CLUSTER_X_BYTES(CK_HEADS_COLS(width)))
#define CK_HEADS_BYTES(width, d) \
    ((d) / 2 + CK_HEADS_X_BYTES(width, d) + CK_HEADS_KV_BYTES(width) + CK_HEADS_PARTS_BYTES(width, d))
/* sum_parts (k_rows.cu): converts fixed-point sums to fp32 and zeroes them. */
struct ck_sum_parts {
    /* zeroed after reading */
    struct ck_fixed_sums x;
    struct ck_clear clear;
    float *y;
};
/* k_mlp.cu: y += down(act(gate(norm(x))) * up(norm(x))). */
struct ck_mlp {
    struct ck_tensor_map down; /* box: `units` columns by `down_rows` rows */
    struct ck_fixed_sums x;
    struct ck_norm norm;
    struct ck_cluster_weight gate, up; /* gate.data NULL: no gate, act(up) alone */
    const float *down_bias;
    struct ck_cluster_scales down_scales;
    uint64_t *y; /* fixed-point sums, fine [d] then coarse [d] */
    struct ck_clear clear;
    /* 1: trigger the dependent launch after all weight loads were issued instead of at once (issue_cluster.c) */
    uint32_t late;
    uint32_t d, act;
    /* hidden units per cluster, a multiple of CK_CLUSTER_UNIT_MULTIPLE, for Q8_0 of CK_CLUSTER_UNIT_MULTIPLE_Q8 */
    uint32_t units;
    /* ring geometry (k_cluster_ops.cuh); down_rows: rows of down per stage */
    uint32_t stages, stage_bytes, fills, ahead, down_rows;
};
/* k_heads.cu: attention block for one row over few positions. A cluster handles one query head, or half of one of 256. */
struct ck_heads {
    struct ck_tensor_map out; /* box: the cluster's columns by out_rows rows */
    struct ck_fixed_sums x;
    struct ck_norm norm, q_norm, k_norm;
    struct ck_cluster_weight in[4]; /* q, k, v, gate (data NULL: none), same pitch */
    const float *out_bias;
    struct ck_cluster_scales out_scales;
    uint64_t *y; /* fixed-point sums, fine [d] then coarse [d] */
    struct ck_clear clear;
    uint32_t late; /* as in ck_mlp */
    struct ck_pass pass;
    const float *inverse; /* [pairs] */
    float mscale, scale;
    uint32_t d, kv_heads, pairs, slot_k, slot_v;          /* pairs 0: no RoPE */
    uint32_t stages, stage_bytes, fills, ahead, out_rows; /* ring geometry; out_rows: rows of the output weight per stage */
};
/* k_linear.cu: linear-attention block (gated delta rule) for one row. Cluster r of k_heads (up to CK_CLUSTERS_MAX) handles
 * key head r and its v_heads / k_heads value heads, all 128 wide. Variants linear_<kind>_2 and _4: one value head per key
 * head, d up to 1024 and 2048; _8: two, d up to 4096; d a multiple of 128. All weights have one kind and dense rows of d
 * columns (out: v_heads * 128). */
enum { CK_LINEAR_HEAD_DIM = 128, CK_LINEAR_TAPS = 4 };
enum ck_linear_in { CK_LINEAR_Q, CK_LINEAR_K, CK_LINEAR_V, CK_LINEAR_Z, CK_LINEAR_A, CK_LINEAR_B, CK_LINEAR_INS };
struct ck_linear {
    struct ck_tensor_map out; /* box: 128 * v_heads / k_heads columns by out_rows rows */
    struct ck_fixed_sums x;
    struct ck_norm norm;                        /* RMS norm */
    struct ck_cluster_weight in[CK_LINEAR_INS]; /* weights of all heads; no biases */
    struct ck_pass pass;                        /* one row, one span */
    struct {
        const float *weight, *bias;        /* [channels][taps], taps up to CK_LINEAR_TAPS; SiLU follows */
        uint32_t taps, slot, width, at[3]; /* width: channels in all; q, k, v start at channel at[] */
    } conv;
    const float *decay, *dt; /* [v_heads] */
    uint32_t is_log, slot;   /* slot of the delta-rule state */
    float l2_eps;
    struct ck_norm gated; /* RMS norm per value head, gated by z: weight [128], eps, plus_one */
    const float *out_bias;
    struct ck_cluster_scales out_scales;
    uint64_t *y; /* fixed-point sums, fine [d] then coarse [d] */
    struct ck_clear clear;
    uint32_t late; /* as in ck_mlp */
    uint32_t d, k_heads, v_heads;
    /* stages: 2 to CK_CLUSTER_STAGES, each 8 rows of d columns; out_rows: rows of out per stage, a multiple of 16, up to d /
     * 8 and 256 */
    uint32_t stages, stage_bytes, ahead, out_rows;
};
/* Dynamic shared memory after the ring (about 3 KB more are static); share: value heads per key head. */
#define CK_LINEAR_SUMS_BYTES(share) (CK_CLUSTER_SUMS_BYTES * (2 + 2 * (share)))
#define CK_LINEAR_X_BYTES(d, share) CK_LARGER(4 * (d), CK_LINEAR_SUMS_BYTES(share))
/* bytes between rows of a block's columns of S */
#define CK_LINEAR_STATE_PITCH (CK_LINEAR_HEAD_DIM / CK_CLUSTER_BLOCKS * 4 + 8)
#define CK_LINEAR_BYTES(d, share)                                                                                 \
    ((share) * (8 * CK_CLUSTER_CONSUMERS + (d)) + (d) / 2 + CK_CLUSTER_X_BYTES(d) + CK_LINEAR_X_BYTES(d, share) + \
     (share)*CK_LINEAR_HEAD_DIM * CK_LINEAR_STATE_PITCH)
/* k_gemm.cu: y = x W^T for many rows where cuBLASLt is not available. x dense [rows][k] in 16 bits. */
struct ck_gemm {
    const void *x;
    struct ck_segment segment;
    uint32_t rows, k, bf16, pitch;
};
/* k_join.cu: all-reduce or all-gather over `ranks` GPUs. Each GPU owns buffers that the others write: `rooms` for join_few,
 * two turns of [ranks][blocks][threads] 16 bytes; `wide` for join_many, CK_JOIN_TURNS turns of [ranks][blocks][CK_JOIN_FOURS]
 * float4; flags, as many turns of [ranks][blocks]. */
enum {
    CK_JOIN_RANKS = 8,
    CK_JOIN_BLOCKS = 128,
    CK_JOIN_THREADS = 256,
    CK_JOIN_WIDE_THREADS = 512,
    CK_JOIN_FOURS = 2048,
    CK_JOIN_TURNS = 4
};
struct ck_join {
    struct ck_view x, y;
    uint32_t rows, ranks, rank, sum;
    void *peer_slots[CK_JOIN_RANKS], *wide[CK_JOIN_RANKS];
    uint32_t *flags[CK_JOIN_RANKS];
    uint32_t *turns; /* [2][blocks] turns done so far by this rank, for each of the two kernels */
    uint32_t *lost;  /* 1: a rank did not answer within the timeout */
    uint32_t *lost_host;  /* copy of `lost` in host memory */
};
struct ck_read {
    const void *data;
    uint64_t n;
    uint32_t *out;
};

#endif
