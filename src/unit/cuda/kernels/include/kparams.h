/* kparams.h: what host and kernels agree on: the arguments of every kernel, as plain structs passed by value.
 * Included by C and by CUDA; it must never name a function. SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_KPARAMS_H
#define SG_UNIT_CUDA_KPARAMS_H

#include <stdint.h>

/* How a weight lies in GPU memory: rows of `pitch` bytes, a multiple of 16, zero behind the last column. */
enum ck_kind {
    CK_F32,
    CK_F16,
    CK_BF16,
    CK_Q8, /* int8, fp16 scale per 32: scales [row][blocks] */
    CK_Q4, /* nibbles per 32 (byte j: j low, j + 16 high), fp16 pairs {scale, offset}: w = scale * q + offset
            */
    CK_G8, /* uint8, fp32 pairs {scale, offset} per group of 16 to 128 */
    CK_G4, /* nibbles as CK_Q4, fp32 pairs per group of 32 to 128 */
    CK_F8, /* e4m3, one fp32 scale per row, a power of two: scales [row] */
    CK_KINDS
};

enum {
    CK_SPANS = 16,
    CK_SEGMENTS = 6,
    CK_CHUNK = 64,
    CK_GEMV_THREADS = 256,
    CK_WIDE_THREADS = 512, /* of products of large weights with one row: a block fills its multiprocessor */
    CK_DELTA_COLUMNS = 4,
    CK_DELTA_NUMBERS = 12,
    CK_DELTA_TILED = 8, /* columns of a block of delta_tiles */
    CK_DELTA_SLAB = 32, /* and of delta_slabs */
    CK_GROUP_HEADS = 8,
    CK_WGFLASH_THREADS = 256,
    CK_CHUNK_ROWS = 64,    /* of the delta rule on the tensor cores (k_chunk.cu, k_carry.cu): rows of a chunk, */
    CK_CHUNK_COLUMNS = 32, /* columns of S of a block of chunk_carry at most, */
    CK_CHUNK_THREADS = 256,
    CK_LOCAL_THREADS = 288,
    CK_CARRY_THREADS = 512,
    CK_CHUNK_TAPS = 4,
    CK_CHUNK_LOCAL_BYTES = (4 * 64 * 136) * 2 + (64 * 68 + 2 * 64) * 4, /* and shared memory of a block */
    CK_CHUNK_CARRY_BYTES = (6 * 64 * 136 + 4 * 64 * 72 + 2 * 128 * 40 + 6 * 64 * 40) * 2,
    CK_SCAN_THREADS = 320, CK_SCAN_PAIRS_THREADS = 576, /* and of chunk_scan, chunk_scan_pairs */
    CK_SCAN_COLUMNS = 16,
    CK_SCAN_BYTES = 5 * 32768 + 2 * 10 * 1024 + 2 * (8 + 4) * 1024 + 16 * 1024 + 256
};
enum ck_storage { CK_KV_F32, CK_KV_F16, CK_KV_BF16, CK_KV_Q8 };

struct ck_weight {
    const void *data;
    const void *scales;
    uint32_t kind, pitch; /* bytes of a row of data */
    uint32_t scale_pitch; /* scales (or pairs) of a row */
    uint32_t group;       /* weights per scale */
    uint32_t rows, cols;
};

struct ck_view { /* row t, column c is p[t * stride + c]; p NULL: absent */
    float *p;
    uint32_t stride, width;
};

/* A pass as the kernels see it. In GPU memory, written by the host before a pass and moved on by the step
 * kernel. */
struct ck_head {
    uint32_t spans, rows, wanted, stopped;
    uint32_t published, steps, failed, pad;
    uint32_t first[CK_SPANS];    /* position of the first row of each span */
    uint32_t from[CK_SPANS + 1]; /* its first row of the pass */
};
struct ck_pass {
    struct ck_head *head;
    int32_t *tokens;        /* [rows] */
    uint32_t *place, *span; /* [rows] position and span of each row */
    uint32_t *wanted;       /* [wanted] row that each wanted row copies */
    void **slots;           /* [spans][slots] memory of each slot ... */
    void **slots_out; /* ... and where convolution and delta slots are written: the same, or the state's other
                         copy */
    uint32_t slots_n;
};

struct ck_norm {
    const float *weight, *bias; /* [group] or NULL */
    struct ck_view gate;
    float eps;
    uint32_t layer, groups, plus_one, present;
};

struct ck_embed {
    struct ck_pass pass;
    struct ck_weight table, places;
    uint32_t at, places_at, rows;
    float scale;
    struct ck_view y;
};
struct ck_norm_args {
    struct ck_view x, y;
    struct ck_norm norm;
    uint32_t rows;
};
struct ck_rope {
    struct ck_pass pass;
    struct ck_view x, y;
    const float *inverse;
    uint32_t heads, head_width, pairs, rows;
    float mscale;
    int32_t sign;
};
/* glu, act, add, scale */
struct ck_map {
    struct ck_view x, x2, y;
    const float *weight;
    float value;
    uint32_t act, one, rows;
};
struct ck_rows {
    struct ck_pass pass;
    struct ck_view x, y;
    uint32_t rows;
};
struct ck_route {
    struct ck_view x, y;
    const float *bias;
    uint32_t experts, k, sigmoid, renormalise, rows;
    float scale;
};
struct ck_experts {
    struct ck_view x, routing, y;
    struct ck_weight gate, up, down;
    uint32_t gate_at, up_at, down_at;
    float *hidden;
    uint32_t experts, k, ff, act, d, rows;
};
struct ck_conv {
    struct ck_pass pass;
    struct ck_view x, y;
    const float *weight, *bias;
    uint32_t taps, act, slot, rows;
};
/* Of a chunk and head, for k_scan.cu: W, k and q of a chunk (what its products' right factors are, two bf16 each, in pieces of 16
 * x 16 as lanes hold them: 32 times 8 of the rounded numbers, then of the rest), P in the pieces of its triangle, U turned in
 * fp32, and by how much S shrinks. */
struct ck_factors {
    uint16_t w[2 * 64 * 128], k[2 * 64 * 128], q[2 * 64 * 128], p[10 * 512];
    float u[64 * 128], decay, none[31];
};

struct ck_delta {
    struct ck_pass pass;
    struct ck_view in[5], y;
    const float *decay, *dt;
    float *ready; /* [rows][...] or NULL */
    /* k_chunk.cu, for each chunk: k and q of each key head [4][64][128], T and P of each head [4][64][64], as two bf16 each;
     * e^c, beta, e^(c_last - c) of each head [3][64] */
    uint16_t *chunk_qk, *chunk_tp;
    float *chunk_numbers, *chunk_v;
    struct ck_factors *factors; /* chunk_factors: [chunks][heads] */
    struct { /* weight present: in[0] to in[2] are its inputs, from its column at[i] on; v behind it is chunk_v [64][128] of
              * each chunk and head */
        const float *raw, *weight, *bias; /* raw: all columns of the first row */
        uint32_t taps, slot, width, at[3];
    } conv;
    uint32_t k_heads, v_heads, dk, dv, is_log, slot, rows;
    uint32_t halves; /* 1: in and conv.raw are bf16 */
    float l2_eps;
};
struct ck_append {
    struct ck_pass pass;
    struct ck_view k, v;
    uint32_t heads, d, dv, slot_k, slot_v, storage, rows;
};
struct ck_attend {
    struct ck_pass pass;
    struct ck_view q, gate, y;
    const float *sinks;
    float *parts;
    uint32_t heads, kv_heads, d, dv;
    uint32_t window, slot_k, slot_v, storage, rows, chunks;
    float scale, softcap;
};
/* q and k normalised, rotated, k and v stored; one launch for what a layer does before attention. */
struct ck_prepare {
    struct ck_pass pass;
    struct ck_view q, k, v, q_out;
    struct ck_norm q_norm, k_norm;
    const float *inverse;
    uint32_t heads, kv_heads, d, dv, pairs, slot_k, slot_v, storage, rows;
    float mscale;
};

/* Both for rows of a sequence each, over up to CK_SINGLE_CHUNKS chunks (k_single.cu); pairs 0: nothing is rotated. */
enum { CK_SINGLE_CHUNKS = 8, CK_SINGLE_THREADS = 512 };
struct ck_single {
    struct ck_prepare prepare;
    struct ck_attend attend;
};

/* Rows that are never the best one: below limit, and not among these. */
enum { CK_BANNED = 8 };
struct ck_banned {
    uint32_t limit, n;
    int32_t rows[CK_BANNED];
};
struct ck_segment {
    const void *data;
    const void *scales;
    const float *bias;
    struct ck_view residual, y;
    uint32_t n, at;
};
struct ck_gemv {
    struct ck_view x;
    struct ck_norm norm; /* of x, before the product, when present */
    uint32_t k, rows;    /* columns of the weights; rows of x */
    uint32_t pitch, scale_pitch, group;
    uint32_t segments, pairs; /* pairs of rows in all segments together */
    uint32_t split;           /* warps that share one pair of rows along k */
    uint32_t glu, act;        /* 1: segment 0 is the gate, 1 the up of the same row */
    uint32_t best;            /* 1: keep the best row of each block */
    struct ck_banned banned;
    float *best_value; /* [rows][blocks] */
    uint32_t *best_index;
    struct ck_segment segment[CK_SEGMENTS];
};
/* A product of one row, its weights brought ahead of it (k_stream.cu). A tile is 8 R / split rows of weights, R by the pieces a
 * lane has; with glu half of them gate's and half up's. */
#define CK_STREAM_ROWS(pieces) ((pieces) >= 8 ? 1 : (pieces) >= 4 ? 2 : 4)
enum ck_after_kind { CK_AFTER_NOTHING, CK_AFTER_ACT, CK_AFTER_CONV };
enum { CK_STREAM_STAGES = 16, CK_STREAM_THREADS = 288, CK_STREAM_TAPS = 4, CK_STREAM_NORMED = 32 };
struct ck_after { /* what is done with the rows of one segment */
    uint32_t kind, segment, act, taps, slot;
    struct ck_view y;
    const float *weight, *bias;
    struct ck_pass pass;
};
struct ck_stream {
    struct ck_gemv g;
    struct ck_after after;
    uint32_t tiles, stages, stage_bytes, scale_bytes; /* scale_bytes: of a row */
    uint32_t early;                        /* steps of k_digits.cu's ring that are asked for ahead of x */
    uint32_t split_log, per_log, outs_log; /* warps of a row; rows of a tile; those of one segment in it */
    uint32_t first[CK_SEGMENTS];           /* first tile of each segment */
    uint32_t gates, gate_done; /* gates: 1 + segment that leaves as its SiLU, for a gated norm, of which gate_done says so */
};
/* Products of large weights with one row (k_digits.cu), told as ck_stream: tiles of 16 rows, of all columns; stages: places for
 * scales (Q8_0) of 512 columns, of each warp; stage_bytes: a warp's ring. What a block has in shared memory: x as digits or
 * parts, sums of a turn of tiles, each warp's ring. */
enum { CK_DIGITS_THREADS = 256, CK_DIGITS_STEPS = 8 };
#define CK_DIGITS_TURN(tiles, blocks) (((tiles) + (blocks) - 1) / (blocks) < 16 ? ((tiles) + (blocks) - 1) / (blocks) : 16)
/* Digits of x, or 16-bit parts; and what they take. */
#define CK_DIGITS_PARTS(kind) ((kind) == CK_Q8 ? 4 : (kind) == CK_BF16 ? 3 : 2)
#define CK_DIGITS_X(kind, k) (CK_DIGITS_PARTS(kind) * ((kind) == CK_Q8 ? (k) + 256 : 2 * (k) + 512))
#define CK_DIGITS_BYTES(kind, k, turn, ring) (CK_DIGITS_X(kind, k) + (turn) * 512 + 8 * (ring))
/* The head with one row (k_vocab.cu): g has one segment and its best rows. A tile is whole rows, 1 << rows_log of them. Shared
 * memory of a block: `stages` tiles with their scales, and of each warp x in parts, then sums of two turns of rows. */
enum { CK_VOCAB_THREADS = 288, CK_VOCAB_STAGES = 16, CK_VOCAB_TURN = 64 };
enum { CK_VOCAB_BYTES = 113 << 10 /* with which two blocks share a multiprocessor */ };
/* of eight rows, in a tile; units: of 128 bytes that a warp has of a row, at most */
#define CK_VOCAB_GROUPS(units) ((units) < 4 ? 2 : 1)
#define CK_VOCAB_OWN(kind, units) \
    (CK_DIGITS_PARTS(kind) * ((kind) == CK_Q8 ? (units) * 128 + 32 : ((units) < 2 ? 2 : (units)) * 128 + 64) + 32)
struct ck_vocab {
    struct ck_gemv g;
    uint32_t tiles, rows_log, stages, stage_bytes, scale_bytes; /* scale_bytes: of a row */
    uint32_t *draws; /* 0 between launches */
};
/* advance 1: the token is the next input of this head, and goes into the ring; 2: it is the input of `next`.
 */
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
    struct ck_embed embed; /* of the next input, when y.p is not NULL; pass is not used */
};
struct ck_argmax {
    struct ck_view x;
    float *best_value;
    uint32_t *best_index;
    struct ck_banned banned;
    uint32_t blocks, rows;
};
/* The head in 8 bits, to find the best row with (k_screen.cu). */
struct ck_screen {
    struct ck_weight w;   /* as it is */
    int8_t *q;            /* [rows][pitch] */
    float *scale, *bound; /* [rows] */
    float *near;          /* [rows] estimates */
    float *low;           /* [blocks] highest lower bound of each block of screen_rows */
    float *length;        /* of x */
    uint32_t pitch, blocks;
    struct ck_view x;
    struct ck_banned banned;
    float *best_value;
    uint32_t *best_index;
};
struct ck_lora {
    struct ck_view x, y;
    const float *a, *b;
    float *low;
    uint32_t rank, from, to, k, n, at;
};
/* fp16 ends at 65,504, sooner than x: beside F16 weights a prompt's x is narrowed as a 16th, that of few rows as a 2,048th and,
 * by itself, what that leaves of x. Sums are multiplied. */
#define CK_F16_MANY 16.0f
#define CK_F16_FEW 2048.0f
struct ck_narrow { /* x2 present: act(x) * x2 */
    struct ck_view x, x2;
    uint32_t act;
    void *y, *low; /* low: what y leaves of x, or NULL */
    uint32_t rows, k, bf16;
    uint32_t fours; /* 1: all rows are whole pieces of 16 bytes, no layer norm, groups of 128 or none, no low */
    uint32_t gate_halves; /* 1: and norm.gate is bf16 */
    struct ck_norm norm;
};
struct ck_widen {
    struct ck_weight w;
    uint32_t at, rows;
    void *y;
    uint32_t bf16;
};
/* x and low: dense [16][k], 16 bits, as struct ck_narrow makes them. A block has 16 or 32 rows of weights; with glu, 16 of
 * both. */
enum { CK_BATCH_THREADS = 256 };
struct ck_batch {
    const void *x, *low;
    uint32_t rows, k, pitch, segments, glu, act;
    uint32_t first[CK_SEGMENTS]; /* block that a segment begins with */
    struct ck_segment segment[CK_SEGMENTS];
};
struct ck_tensor_map { /* as the driver makes it: elements of 4 bytes */
#ifdef __cplusplus
    alignas(64)
#else
    _Alignas(64)
#endif
    uint64_t v[16];
};
#define CK_WGFLASH_BYTES(d) (7 * 64 * (d) * 2 + 1024)
/* Gate and up of many rows on Hopper (k_glu.cu): a block's tile is ROWS of x by UNITS of both. y: rows of units in 16 bits. */
enum { CK_GLU_ROWS = 128, CK_GLU_UNITS = 88, CK_GLU_PANEL = 64, CK_GLU_STAGES = 5, CK_GLU_THREADS = 288 };
#define CK_GLU_BYTES (CK_GLU_STAGES * (CK_GLU_ROWS + 2 * CK_GLU_UNITS) * CK_GLU_PANEL * 2 + CK_GLU_ROWS * CK_GLU_UNITS * 2 + 1024)
struct ck_glu {
    /* boxes of ROWS, UNITS rows and a panel; of half of ROWS and UNITS; w: gate's rows, then up's */
    struct ck_tensor_map x, w, y;
    uint32_t panels, units, pairs, tiles; /* pairs: tiles of rows, two together; tiles: pairs of all units */
};
/* Products of 2 to 16 rows on Hopper (k_tiles.cu). A cluster of blocks shares rows of weights along k, `slice` columns each.
 * Shared memory of a block: x, `stages` panels of weights, with a cluster sums, with a norm its weights. */
enum {
    CK_TILES_SLICE = 1024,
    CK_TILES_ROWS = 64, /* of weights in a tile; of x: */
    CK_TILES_X = 16,
    CK_TILES_TURNS = 8,    /* tiles of a cluster at most */
    CK_TILES_STAGE = 8192, /* bytes of a tile's 64 columns */
    CK_TILES_STAGES = 16,
    CK_TILES_THREADS = 352,
    CK_TILES_BYTES = 111 << 10, /* with which two blocks share a multiprocessor */
    CK_TILES_WHOLE = 216 << 10  /* of one that has it alone */
};
struct ck_tiles {
    struct ck_tensor_map map[CK_SEGMENTS]; /* of each segment; with glu the first is of both. Boxes: a tile's 64 columns */
    struct ck_gemv g;
    struct ck_after after;
    uint32_t tiles, slice, cluster_log, turns;
    uint32_t groups, stages;     /* warpgroups that multiply; stages of each */
    uint32_t group, behind;      /* columns of a group of the norm; numbers that each sum of a cluster needs besides */
    float per_group;             /* 1 / columns of a group, or of a row */
    uint32_t first[CK_SEGMENTS]; /* first tile of each segment */
};
/* Two products and what lies between them by ranks, clusters of blocks (k_cluster_ops.cuh). A value in parts is a word a column, to
 * which each rank adds its part and a one, behind them the far words (k_fixed_point_sum.cuh). Each window of steps has a room of its own for
 * these, and before a pass begins all of all rooms is 0: so the next kernel can tell which words are whole already. */
enum { CK_RANK_BLOCKS = 8, CK_RANK_MOST = 16, CK_RANK_OWNERS = 256 /* that multiply */, CK_RANK_THREADS = CK_RANK_OWNERS + 32 };
enum { CK_RANK_STAGES = 16 };
enum { CK_RANK_PIECE = 32 /* columns */, CK_RANK_PIECE8 = 128 /* of Q8_0 */, CK_RANK_APART8 = 64 /* bytes */ };
/* Shared memory that host and kernels count alike: x in CK_RANK_PARTS parts of 16 bits, which banks apart; sums of a group of 16
 * rows, two of each warp, likewise. */
enum {
    CK_RANK_PARTS = 3,
    CK_RANK_SUMS_PITCH = 2 * 8 + 4,
    CK_RANK_GROUP = 16,
    CK_RANK_SUMS_BYTES = CK_RANK_GROUP * CK_RANK_SUMS_PITCH * 4
};
#define CK_LARGER(a, b) ((a) > (b) ? (a) : (b))
#define CK_RANK_PART_PITCH(k) ((k) * 2 + 64)
#define CK_RANK_PARTS_BYTES(k) (CK_RANK_PARTS * CK_RANK_PART_PITCH(k))
struct ck_parts {
    const void *p;
    uint32_t n, width; /* n: that add to a word, up to CK_RANK_MOST; 0: p is an ordinary row of fp32 */
    uint32_t live;     /* 1: the launch before makes them and may be at it: read as they come */
};
struct ck_clear { /* a room that nobody reads any more, to be cleared for the next pass; fours: of 4 bytes */
    uint64_t *p;
    uint32_t fours;
};
struct ck_rank_weight { /* from its first row on; pitch: bytes of a row; scales: of Q8_0 */
    const void *data;
    const float *bias;
    uint32_t pitch;
    const void *scales;
};
struct ck_rank_scales { /* of Q8_0, of the second product: of all its columns; pitch: scales of a row */
    const void *p;
    uint32_t pitch;
};
/* Bytes of shared memory that a block of their kernels always has, at most. */
enum { CK_RANK_FIXED = 2048 };
/* Of attention (k_heads.cu): columns of a rank, which has half a head of 256; groups of 32 positions that a block holds; bytes it
 * always has. Behind the ring: x, or sums of all of its rows, or what its warps found; K and V held; x in parts, or what the
 * blocks found and the output in parts. */
#define CK_HEADS_OWN(width) ((width) > 128 ? (width) / 2 : (width))
#define CK_HEADS_GROUPS(width) ((width) > 128 ? 1 : 2)
#define CK_HEADS_FIXED(width) (18 * (width) + 8 * CK_HEADS_OWN(width) + CK_RANK_FIXED)
#define CK_HEADS_SUMS(width) (((width) + CK_HEADS_OWN(width)) / 4 * CK_RANK_SUMS_PITCH * 4)
#define CK_HEADS_FIRST(width, d) CK_LARGER(CK_LARGER(4 * (d), 32 * CK_HEADS_OWN(width)), CK_HEADS_SUMS(width))
#define CK_HEADS_HELD(width) (CK_HEADS_GROUPS(width) * ((width) + CK_HEADS_OWN(width)) / 64 * 256 * 16)
#define CK_HEADS_SECOND(width, d) \
    CK_LARGER(CK_RANK_PARTS_BYTES(d), 4 * CK_RANK_BLOCKS * (CK_HEADS_OWN(width) + 4) + CK_RANK_PARTS_BYTES(CK_HEADS_OWN(width)))
#define CK_HEADS_ROOM(width, d) ((d) / 2 + CK_HEADS_FIRST(width, d) + CK_HEADS_HELD(width) + CK_HEADS_SECOND(width, d))
struct ck_sum { /* a value in parts to where it lies otherwise */
    struct ck_parts x; /* cleared when it is read */
    struct ck_clear clear;
    float *y;
};
struct ck_mlp {
    struct ck_tensor_map down; /* boxes of `units` columns, `down_rows` rows */
    struct ck_parts x;
    struct ck_norm norm;
    struct ck_rank_weight gate, up; /* gate.data NULL: up alone */
    const float *down_bias;
    struct ck_rank_scales down_scales;
    uint64_t *y;                    /* words [2][d] */
    struct ck_clear clear;
    uint32_t late; /* 1: the next kernel may start when all weights were asked for, not at once (issue_cluster.c, is_parted) */
    uint32_t d, act;
    uint32_t units; /* hidden units of a rank, a multiple of CK_RANK_PIECE, or of CK_RANK_PIECE8 */
    uint32_t stages, stage_bytes, fills, ahead, down_rows; /* of the ring (k_cluster_ops.cuh); down_rows: rows of down in a stage */
};
/* Attention of one row over few positions: a rank is a query head, or half a one of 256. */
struct ck_heads {
    struct ck_tensor_map out; /* boxes of the rank's columns, out_rows rows */
    struct ck_parts x;
    struct ck_norm norm, q_norm, k_norm;
    struct ck_rank_weight in[4]; /* q, k, v, gate (data NULL: none), one pitch */
    const float *out_bias;
    struct ck_rank_scales out_scales;
    uint64_t *y; /* words [2][d] */
    struct ck_clear clear;
    uint32_t late; /* 1: the next kernel may start when all weights were asked for, not at once (issue_cluster.c, is_parted) */
    struct ck_pass pass;
    const float *inverse; /* [pairs] */
    float mscale, scale;
    uint32_t d, kv_heads, pairs, slot_k, slot_v; /* pairs 0: nothing is rotated */
    uint32_t stages, stage_bytes, fills, ahead, out_rows; /* of the ring; out_rows: rows of the output in a stage */
};
/* A linear layer's mixer (k_linear.cu): rank r of k_heads (up to CK_RANK_MOST) has key head r and the v_heads / k_heads value
 * heads with it, all 128 wide. linear_<kind>_2, 4: one value head, d up to 1024, 2048; 8: two, d up to 4096; d a multiple of 128.
 * Weights in 16 bits, all of one kind, rows of d columns (of out: of v_heads * 128) without gaps. */
enum { CK_LINEAR_WIDE = 128, CK_LINEAR_TAPS = 4 };
enum ck_linear_in { CK_LINEAR_Q, CK_LINEAR_K, CK_LINEAR_V, CK_LINEAR_Z, CK_LINEAR_A, CK_LINEAR_B, CK_LINEAR_INS };
struct ck_linear {
    struct ck_tensor_map out; /* boxes of CK_LINEAR_WIDE * v_heads / k_heads columns, out_rows rows */
    struct ck_parts x;
    struct ck_norm norm;                         /* RMS */
    struct ck_rank_weight in[CK_LINEAR_INS];     /* of all heads; no biases */
    struct ck_pass pass;                         /* one row, one span */
    struct {
        const float *weight, *bias;              /* [channels][taps], of up to CK_LINEAR_TAPS; SiLU comes behind */
        uint32_t taps, slot, width, at[3];       /* width: all channels; q, k and v begin with channel at[] */
    } conv;
    const float *decay, *dt;                     /* [v_heads] */
    uint32_t is_log, slot;                       /* slot: of the delta rule */
    float l2_eps;
    struct ck_norm gated; /* RMS over each value head, gated by z: weight, eps and plus_one; weight [128] */
    const float *out_bias;
    struct ck_rank_scales out_scales;
    uint64_t *y;                                 /* words [2][d] */
    struct ck_clear clear;
    uint32_t late; /* 1: the next kernel may start when all weights were asked for, not at once (issue_cluster.c, is_parted) */
    uint32_t d, k_heads, v_heads;
    uint32_t stages, stage_bytes, ahead, out_rows; /* stages: 2 to CK_RANK_STAGES, of 8 rows of d columns; out_rows: of out in a
                                                  * stage, a multiple of 16, up to d / 8 and 256 */
};
/* Bytes of shared memory of a block behind the ring, besides some 3 KB that it always has; share: value heads of a key head. */
#define CK_LINEAR_SUMS(share) (CK_RANK_SUMS_BYTES * (2 + 2 * (share)))
#define CK_LINEAR_FIRST(d, share) CK_LARGER(4 * (d), CK_LINEAR_SUMS(share))
#define CK_LINEAR_STATE_PITCH (CK_LINEAR_WIDE / CK_RANK_BLOCKS * 4 + 8) /* of a block's columns of S */
#define CK_LINEAR_ROOM(d, share)                                                                           \
    ((share) * (8 * CK_RANK_OWNERS + (d)) + (d) / 2 + CK_RANK_PARTS_BYTES(d) + CK_LINEAR_FIRST(d, share) + \
     (share) * CK_LINEAR_WIDE * CK_LINEAR_STATE_PITCH)
struct ck_gemm {
    const void *x;
    struct ck_segment segment;
    uint32_t rows, k, bf16, pitch;
};
/* Of each of `ranks` GPUs: rooms for join_few, two turns of [ranks][blocks][threads] 16 bytes; wide for join_many, CK_JOIN_TURNS
 * of [ranks][blocks][CK_JOIN_FOURS] float4, and flags, as many of [ranks][blocks]. */
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
    void *rooms[CK_JOIN_RANKS], *wide[CK_JOIN_RANKS];
    uint32_t *flags[CK_JOIN_RANKS];
    uint32_t *turns;     /* [2][blocks] of this rank: how many there were, of either kernel */
    uint32_t *lost;      /* 1: a rank did not come */
    uint32_t *told;      /* the same, in the host's memory */
};
struct ck_read {
    const void *data;
    uint64_t n;
    uint32_t *out;
};

#endif
