/* lowermerge.h: linear operations that read the same rows (q, k and v; gate and up) become one convolution, of which each
 * takes its channels: an engine is the busier the more channels a convolution has, up to some thousands (MX: 1.15 TFLOPS
 * with 1,024 of them, 2.87 with 3,072, 2.12 with 4,096), and its input is read once.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_LOWERFUSE_H
#define SG_UNIT_ANE_LOWERFUSE_H

#include "unit/ane/lower/lowerpart.h"

enum { SG_ANE_FUSED_MAX = 3, SG_ANE_FUSED_CHANNELS_MAX = 4096 }; /* operations of one convolution, and its channels, at most */

/* Operations of the part, by number and rising, that share a convolution with `op`, itself among them: how many. 1: it
 * stands alone. The same list for each of them. */
uint32_t sg_ane_fused_linears(const struct sg_graph *g, const struct sg_ane_part *p, uint32_t op, uint32_t out[SG_ANE_FUSED_MAX]);

#endif
