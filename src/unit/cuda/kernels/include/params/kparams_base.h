/* kparams_base.h: what all kernels of the cuda unit share (kparams.h): formats of weights, views, the arrays of a pass, norms,
 * tensor maps; and the arguments of element-wise ops, routing, LoRA and joins.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_KPARAMS_BASE_H
#define SG_UNIT_CUDA_KPARAMS_BASE_H

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
    CK_P_MXFP4, CK_P_IQ4_XS,
    CK_P_MLX2, CK_P_MLX3, CK_P_MLX4, CK_P_MLX5, CK_P_MLX6, CK_P_MLX8, /* 16-bit pairs {scale, offset}, groups of 32 or 64 */
    CK_PACKED_END
};
/* Bytes of a packed chunk of 256 columns, by kind - CK_PACKED: codes, scales, factors. MLX with groups of 32: scales twice as
 * many. X(kind, bits of the first plane, bits of the second, scale bytes, factor bytes) */
#define CK_PACKED_KINDS(X) \
    X(Q4_0, 4, 0, 16, 0) X(Q4_1, 4, 0, 32, 0) X(Q5_0, 4, 1, 16, 0) X(Q5_1, 4, 1, 32, 0) X(Q2_K, 2, 0, 16, 4) \
    X(Q3_K, 2, 1, 16, 2) X(Q4_K, 4, 0, 16, 4) X(Q5_K, 4, 1, 16, 4) X(Q6_K, 4, 2, 16, 4) X(IQ4_NL, 4, 0, 16, 0) \
    X(MXFP4, 4, 0, 0, 8) X(IQ4_XS, 4, 0, 8, 4) X(MLX2, 2, 0, 16, 0) X(MLX3, 2, 1, 16, 0) X(MLX4, 4, 0, 16, 0) X(MLX5, 4, 1, 16, 0) \
    X(MLX6, 4, 2, 16, 0) X(MLX8, 8, 0, 16, 0)

enum {
    /* Limits of one pass: spans (sequences), weight segments that one product reads. */
    CK_SPANS = 16,
    CK_SEGMENTS = 6,
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
/* CUtensorMap as cuTensorMapEncodeTiled writes it; element type: 4-byte integers. */
struct ck_tensor_map {
#ifdef __cplusplus
    alignas(64)
#else
    _Alignas(64)
#endif
        uint64_t v[16];
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
