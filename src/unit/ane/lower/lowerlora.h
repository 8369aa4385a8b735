/* lowerlora.h: adapters as inputs: the port `lora` has room for a low-rank change of every linear operation of a part, so
 * that another adapter is other numbers and no other program. [1, channels, 1, rank]: for each operation in turn its A
 * (a channel for each column of the weight), then its B (a channel for each row, scale multiplied in).
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_LOWERLORA_H
#define SG_UNIT_ANE_LOWERLORA_H

#include "graph/lora.h"
#include "unit/ane/lower/lowerpart.h"

/* Padded; 0: the part has no linear operation. */
uint64_t sg_ane_lora_channels(const struct sg_graph *g, const struct sg_ane_part *part);
/* First channel of A of the operation with this number in the graph. */
uint64_t sg_ane_lora_at(const struct sg_graph *g, const struct sg_ane_part *part, uint32_t op);
/* fp16 [channels][rank] of some adapters side by side, the sum of whose ranks is at most `rank`. EUNSUPPORTED: a number
 * is beyond fp16. */
segue_status sg_ane_lora_fill(const struct sg_graph *g, const struct sg_ane_part *part, const struct sg_lora *const *loras,
                              uint32_t n, uint32_t rank, uint16_t *out, segue_error *err);
/* The largest sum of ranks that these adapters have on one tensor of the graph. */
uint32_t sg_ane_lora_rank(const struct sg_graph *g, const struct sg_lora *const *loras, uint32_t n);

#endif
