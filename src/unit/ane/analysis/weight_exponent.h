/* weight_exponent.h: powers of two that move from the weight of a norm to the matrices that read it, and from one
 * factor of a gated product to the matrix behind the product, so that all fit fp16. The results are unchanged, and
 * so is every bit of them unless a number was out of range.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_WEIGHT_EXPONENT_H
#define SG_UNIT_ANE_WEIGHT_EXPONENT_H

#include "graph/graph.h"

/* The blob of a tensor holds its numbers times 2^*exponent. 0 for nearly every tensor. Others: the weight of a norm
 * whose largest magnitude is outside [2^-6, 2^6], its bias, and the matrices that read nothing but such a norm; the
 * factor of a gated product whose weight is outside [2^-6, 2^3], and the matrix behind it. All of these must run on
 * the engine and have no other reader. EMEMORY. */
segue_status sg_ane_weight_exponent(const struct sg_graph *g, uint32_t tensor, int *exponent, segue_error *err);

#endif
