/* lowerlora.h: LoRA adapters as inputs. The port `lora` has the matrices of a low-rank change for every
 * linear operation of a part, so that changing adapters needs no other program. Layout: [1, channels, 1,
 * rank]; for each linear operation in turn its A (one channel per column of the weight), then its B (one
 * channel per row of the weight, with the scale multiplied in).
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_LOWERLORA_H
#define SG_UNIT_ANE_LOWERLORA_H

#include "graph/lora.h"
#include "unit/ane/analysis/partition.h"

/* Channels of the port, padded; 0: the part has no linear operation. */
uint64_t sg_ane_lora_channels(const struct sg_graph *g, const struct sg_ane_part *part);
/* First channel of A for operation `op` of the graph. */
uint64_t sg_ane_lora_at(const struct sg_graph *g, const struct sg_ane_part *part, uint32_t op);
/* Writes the port, fp16 [channels][rank]. Several adapters are concatenated along the rank; the sum of
 * their ranks must not exceed `rank`. EUNSUPPORTED: a value exceeds the fp16 range. */
segue_status sg_ane_lora_fill(const struct sg_graph *g, const struct sg_ane_part *part, const struct sg_lora *const *loras,
                              uint32_t n, uint32_t rank, uint16_t *out, segue_error *err);
/* Rank that these adapters need together: the largest sum of their ranks over the tensors of the graph. */
uint32_t sg_ane_lora_rank(const struct sg_graph *g, const struct sg_lora *const *loras, uint32_t n);

#endif
