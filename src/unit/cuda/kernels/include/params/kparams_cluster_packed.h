/* kparams_cluster_packed.h: arguments of the cluster kernels (k_mlp.cu, k_linear.cu, k_heads.cu) for packed weights
 * (k_packed.cuh). Each product of a fusion may have weights of several kinds; rows that one stage of the ring holds together
 * (gate and up; a and b) have one kind. Included by C and CUDA.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_CUDA_KPARAMS_CLUSTER_PACKED_H
#define SG_UNIT_CUDA_KPARAMS_CLUSTER_PACKED_H

#include "kparams.h"

/* Max. columns of x: four chunks, one for every second warp. Shared memory for x as digits with k columns: four digits, sums
 * of 16 columns, the value of one unit per 128 columns. */
enum { CK_CLUSTER_PACKED_COLS = 4 * CK_PACKED_CHUNK };
#define CK_CLUSTER_PACKED_X_BYTES(k) (4 * ((k) + 32) + (k) / 4 + ((k) + 511) / 512 * 16)

/* block: bytes of eight rows of a chunk. */
struct ck_packed_kind {
    uint16_t kind, group, bf16, block;
};
struct ck_packed_kinds {
    struct ck_packed_kind in[CK_LINEAR_INS]; /* of the first product: mlp: [0]; heads: q, k, v, gate; linear: enum ck_linear_in */
    struct ck_packed_kind out;               /* of the second */
    const void *data;                        /* the second weight, and bytes per row */
    uint32_t pitch;
};
struct ck_mlp_packed {
    struct ck_mlp a;
    struct ck_packed_kinds kinds;
};
struct ck_linear_packed {
    struct ck_linear a;
    struct ck_packed_kinds kinds;
};
struct ck_heads_packed {
    struct ck_heads a;
    struct ck_packed_kinds kinds;
};

#endif
