/* lowerhead.h: the output head and the greedy choice as a program (option head=engine): final norm, logits in tiles, argmax.
 * Input: one row of what the last part gives, [1, C, 1, 1] in column 0. Result, in column 0: SG_ANE_CHOICE numbers, the slice
 * of the vocabulary with the highest logit, the index of that logit within the slice, and the logit. Equal fp16 logits: the
 * lowest token, if the engine's argmax takes the first of equal elements.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_LOWERHEAD_H
#define SG_UNIT_ANE_LOWERHEAD_H

#include "unit/ane/analysis/partition.h"
#include "unit/ane/lower/lowerblob.h"
#include "unit/ane/mil/mil.h"

/* Outputs of a product (constraint 37); logits per argmax (constraint 28); channels of the result. Indices up to 2048 are exact
 * in fp16. */
enum { SG_ANE_HEAD_TILE = 16384, SG_ANE_HEAD_SLICE = 2048, SG_ANE_CHOICE = 3 };

/* The operations behind the parts of a graph: selection of rows, norm, output head, and then only ones that do not change which
 * logit is the highest. */
struct sg_ane_head {
    const struct sg_op *rows, *norm, *linear;
};
/* EUNSUPPORTED: the graph ends in another way; the text names the operation. */
segue_status sg_ane_head_of(struct sg_ane_head *out, const struct sg_graph *g, const struct sg_ane_partition *cut,
                            segue_error *err);
/* part: the last one; columns: of its ports. The caller frees *out. */
segue_status sg_ane_lower_head(struct sg_mil_program **out, const struct sg_graph *g, const struct sg_ane_part *part,
                               const struct sg_ane_head *head, uint32_t columns, struct sg_ane_blobs *blobs, segue_error *err);

#endif
