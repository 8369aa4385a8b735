/* lora.h: a low-rank change as the units see it: plain numbers per weight tensor.
 * SPDX-License-Identifier: MIT */
#ifndef SG_GRAPH_LORA_H
#define SG_GRAPH_LORA_H

#include "tensor/tensor.h"

struct sg_lora_pair {
    const struct sg_tensor *tensor;  /* the model's weight that it changes, [n, k] logical */
    uint32_t rank;
    const float *a;                  /* [rank, k] */
    const float *b;                  /* [n, rank], scale multiplied in */
};
struct sg_lora {
    uint64_t id;                     /* unlike any other in this process */
    const struct sg_lora_pair *pairs; /* [pairs_n], sorted by tensor address */
    uint32_t pairs_n;
};
/* NULL: this tensor is not changed. */
const struct sg_lora_pair *sg_lora_find(const struct sg_lora *l, const struct sg_tensor *t);

#endif
