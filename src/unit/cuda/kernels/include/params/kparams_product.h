/* kparams_product.h: arguments of products with weights, of the output head and of the choice of a token (kparams.h).
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_KPARAMS_PRODUCT_H
#define SG_UNIT_CUDA_KPARAMS_PRODUCT_H

#include "kparams_base.h"

enum {
    CK_GEMV_THREADS = 256,
    CK_WIDE_THREADS = 512, /* k_wide.cu: one block occupies a whole multiprocessor */
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
/* k_gemv.cu and k_wide.cu. after: with one row. */
struct ck_gemv_step {
    struct ck_gemv g;
    struct ck_epilogue after;
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
 * four digits of 8 bits, and their sums by 16; partial sums of a turn of tiles; per warp a ring of `s.stages` slots. */
enum { CK_PACKED_THREADS = 256, CK_PACKED_CHUNK = 256, CK_PACKED_ROWS = 16, CK_PACKED_STAGES = 8, CK_GROUP_BF16 = 1 << 15 };
struct ck_packed {
    struct ck_stream s;
    uint32_t width;          /* columns of a warp, at most */
    uint32_t chunk0, chunks; /* the columns of the product, in chunks */
    uint32_t rows;           /* k_packed_rows.cu: rows of x */
    uint32_t per;            /* chunks per ring slot, at most */
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
/* k_batch.cu: 2 to 16 rows on tensor cores. x and low: dense [16][k] in 16 bits, as ck_narrow writes them. A block owns 16 or
 * 32 weight rows; with glu 16 of gate and 16 of up. */
enum { CK_BATCH_THREADS = 256, CK_SPLIT_X_THREADS = 512 };
struct ck_batch {
    const void *x, *low;
    uint32_t rows, k, pitch, scale_pitch, segments, glu, act; /* scale_pitch: scales of a row, Q8_0 */
    uint32_t first[CK_SEGMENTS]; /* first block of each segment */
    struct ck_segment segment[CK_SEGMENTS];
};
/* k_packed_few.cu: the same with packed weights, whose parts may have different kinds; gate and up have one. */
struct ck_packed_few {
    const void *x, *low;
    uint32_t rows, k, segments, glu, act;
    uint32_t split_log; /* log2 of the warps that share rows, at least 1 */
    uint32_t first[CK_SEGMENTS];
    struct ck_segment segment[CK_SEGMENTS];
    struct {
        uint32_t kind, pitch; /* pitch: bytes of a row */
    } of[CK_SEGMENTS];
};
/* k_packed_parts.cu: x of k_packed_batch.cu. Of a chunk of 256 columns: y, 8 * tiles * 64 pieces of 16 bytes; sums, tiles * 32
 * pairs of words; inverse, the value of one unit of each row. tiles: of eight rows. The columns of a group of the norm are a
 * power of two from 8 to 256, or the row. */
enum { CK_PACKED_PARTS_THREADS = 512, CK_PACKED_BATCH_ROWS = 16 };
enum { CK_PACKED_PARTS_BYTES = 8 * 2 * 64 * 16, CK_PACKED_SUMS_BYTES = 2 * 32 * 8 }; /* of a chunk */
struct ck_packed_parts {
    struct ck_view x;
    void *y, *sums;
    float *inverse;
    uint32_t tiles, k;
    struct ck_norm norm;
};
/* k_packed_batch.cu: 2 to 16 rows with packed weights, whose parts may have different kinds; gate and up have one. Grid (blocks of
 * weight rows, slices of the columns). Shared memory: warp_bytes for each warp, two chunks of its rows; CK_PACKED_BATCH_BYTES
 * afterwards: sums of each warp, of the block. */
#define CK_PACKED_BATCH_BYTES(warps, groups, tiles, n) (((warps) + (groups)) * (tiles)*16 * ((n) + 1) * 4)
struct ck_packed_batch {
    const void *x, *sums;
    const float *inverse;
    float *slices;   /* [block of rows][slice] sums of the block, if there are several slices, */
    uint32_t *count; /* and [block of rows] slices that are done; 0 between launches */
    uint32_t rows, k, segments, glu, act;
    uint32_t split_log, each, warp_bytes; /* log2 of the warps that share rows; chunks of a slice */
    uint32_t first[CK_SEGMENTS];
    struct ck_segment segment[CK_SEGMENTS];
    struct {
        uint32_t kind, pitch; /* pitch: bytes of a row */
    } of[CK_SEGMENTS];
};
/* k_packed_gemm.cu: many rows of x, in bf16 in the order of packed_x, with packed weights of one kind; out16: y in bf16, at the
 * address of the fp32 rows, whose stride counts bf16 then. Tiles: first[i]: first tile of 128 rows of W of segment i; each has
 * x_tiles tiles of x, of 112, 224 or 256 rows. Clusters of two blocks. Shared memory: stages of the ring, exchanged sums. */
enum { CK_PACKED_GEMM_W_ROWS = 128, CK_PACKED_GEMM_THREADS = 384 };
#define CK_PACKED_GEMM_STAGES(x) ((x) > 112 ? 5 : 8)
#define CK_PACKED_GEMM_BYTES(x) (CK_PACKED_GEMM_STAGES(x) * (x) * 128 + (x) * 256 + 1024)
struct ck_packed_gemm {
    struct ck_tensor_map x; /* boxes of a tile's rows by 64 columns, 128-byte swizzle */
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
/* k_packed_tiles.cu: the same with packed weights of one kind. A stage has a chunk of 256 columns of a tile, as eight blocks of
 * eight rows. t.slice: the columns of a block, at most; the chunks are dealt as evenly as possible. t.map is unused. */
#define CK_PACKED_TILES(X) X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(Q2_K) X(Q3_K) X(IQ4_NL) X(MXFP4) X(IQ4_XS) \
    X(MLX2) X(MLX3) X(MLX4) X(MLX5) X(MLX6) X(MLX8)
struct ck_packed_tiles {
    struct ck_tiles t;
    uint32_t chunks, stage_bytes; /* chunks: of a row */
    struct {
        uint16_t block, group, bf16; /* block: bytes of eight rows of a chunk; group, bf16: of MLX scales */
        uint32_t pitch;              /* bytes of a row */
    } of[CK_SEGMENTS];
};
/* k_gemm.cu: y = x W^T for many rows where cuBLASLt is not available. x dense [rows][k] in 16 bits. */
struct ck_gemm {
    const void *x;
    struct ck_segment segment;
    uint32_t rows, k, bf16, pitch;
};

#endif
