/* kparams_cluster.h: arguments and sizes of the fused one-row kernels on clusters (kparams.h).
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_KPARAMS_CLUSTER_H
#define SG_UNIT_CUDA_KPARAMS_CLUSTER_H

#include "kparams_base.h"

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

#endif
