/* lowerscale.h: powers of two that move from the weight of a norm to the matrices that read it, so that both
 * fit fp16. The product is unchanged, and so is every bit of it unless a number was out of range.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_LOWERSCALE_H
#define SG_UNIT_ANE_LOWERSCALE_H

#include "graph/graph.h"

/* The blob of a tensor holds its numbers times 2^*exponent. 0 for nearly every tensor: only the weights of a norm
 * whose largest magnitude is outside [2^-6, 2^6], its bias, and the matrices that read nothing but such a norm have
 * another exponent. The norm and its readers must all run on the engine. EMEMORY. */
segue_status sg_ane_weight_exponent(const struct sg_graph *g, uint32_t tensor, int *exponent, segue_error *err);

#endif
