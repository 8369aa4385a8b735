/* mixture.h: the mixtures of storage types that llama-quantize writes: Q4_K_M and its sisters give some matrices more bits.
 * SPDX-License-Identifier: MIT */
#ifndef SG_MODEL_MIXTURE_H
#define SG_MODEL_MIXTURE_H

#include "tensor/tensor.h"

/* A mixture, or a single type for all matrices. */
struct sg_mixture {
    const char *name;      /* "q4_k_m" */
    enum sg_storage base;  /* of most matrices */
    uint32_t file_type;    /* general.file_type of GGUF */
    uint32_t mixed;        /* 1: the rules of llama-quantize apply; 0: one type, but for the head */
};
/* By name, in lower case; NULL: unknown. */
const struct sg_mixture *sg_mixture_find(const char *name);

/* Where a matrix is in its model. */
struct sg_mixture_place {
    uint32_t layer, layers;   /* of the layers */
    uint32_t value, values;   /* of the layers with a value projection */
    uint32_t queries_per_kv;  /* query heads per K and V head */
};
/* Storage of a matrix inside the layers, by its name in GGUF files ("blk.3.attn_v.weight"). */
enum sg_storage sg_mixture_storage(const struct sg_mixture *mix, const char *name, const struct sg_mixture_place *at);

#endif
