/* lora.h: a LoRA adapter as units use it: fp32 matrices per weight tensor.
 * SPDX-License-Identifier: MIT */
#ifndef SG_GRAPH_LORA_H
#define SG_GRAPH_LORA_H

#include "tensor/tensor.h"

/* The change of one weight: W becomes W + B A. */
struct sg_lora_pair {
    const struct sg_tensor *tensor;  /* the model's weight, [n, k] logical */
    uint32_t rank;                   /* the LoRA rank r */
    const float *a;                  /* [rank, k] */
    const float *b;                  /* [n, rank], the adapter's scale is multiplied in */
};
/* An adapter. The pairs and matrices are owned by its loader and outlive its use. */
struct sg_lora {
    uint64_t id;                     /* unique in this process */
    const struct sg_lora_pair *pairs; /* [pairs_n] sorted by tensor address */
    uint32_t pairs_n;
};
/* The pair of tensor t; NULL when the adapter does not change it. Binary search. */
const struct sg_lora_pair *sg_lora_find(const struct sg_lora *l, const struct sg_tensor *t);

#endif
