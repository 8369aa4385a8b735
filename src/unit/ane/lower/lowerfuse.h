/* lowerfuse.h: linear operations with the same input (q, k and v; gate and up) share one convolution, and
 * each takes its channels of the result. Engines are better utilized with more channels, up to a few
 * thousand (maderix/ANE: 1.15 TFLOPS with 1024 channels, 2.87 with 3072, 2.12 with 4096), and the input is
 * read once.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_LOWERFUSE_H
#define SG_UNIT_ANE_LOWERFUSE_H

#include "unit/ane/analysis/partition.h"

/* Maximum operations and channels of one convolution. */
enum { SG_ANE_FUSED_MAX = 3, SG_ANE_FUSED_CHANNELS_MAX = 4096 };

/* Operations of the part that share a convolution with `op`, including op, in ascending order. Returns
 * their count; 1: op shares with none. Every operation of a list gives the same list. */
uint32_t sg_ane_fused_linears(const struct sg_graph *g, const struct sg_ane_part *p, uint32_t op, uint32_t out[SG_ANE_FUSED_MAX]);

#endif
