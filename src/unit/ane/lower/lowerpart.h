/* lowercut.h: a graph cut into parts that become programs: which operations the engine runs, in which part, and
 * which values cross the borders. Embedding and everything behind `rows` (final norm, head) belong to a helper.
 * The cut does not depend on how many rows a program has. SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_LOWERPART_H
#define SG_UNIT_ANE_LOWERPART_H

#include "graph/graph.h"

enum { SG_ANE_PAD = 32 }; /* channels and columns at borders are multiples of this */

struct sg_ane_range;

struct sg_ane_part {
    uint32_t *ops;      /* [ops_n] numbers of the graph's operations, rising */
    int32_t *in, *out;  /* [in_n], [out_n] values that enter and leave, packed along the channels in this order */
    uint32_t *slots;    /* [slots_n] of the state, in the order in which they are packed */
    uint32_t ops_n, in_n, out_n, slots_n;
    uint32_t layer_from, layer_to; /* [from, to) */
    const struct sg_ane_range *range; /* NULL: values lie as they are */
};
struct sg_ane_partition {
    struct sg_ane_part *parts;      /* [parts_n] */
    uint32_t *before, *behind;      /* [before_n], [behind_n] operations of the helper */
    uint32_t parts_n, before_n, behind_n;
    struct sg_arena arena;
};

/* The rule for a cut: layers go into a part, at most six, while a dispatch of 256 rows against 512 keys holds no more
 * than 32 MB: from there on engines spill (constraint 20). Weights do not count: they are streamed once, however the
 * graph is cut. */
enum { SG_ANE_PART_LAYERS_MAX = 6, SG_ANE_PART_ROWS = 256, SG_ANE_PART_KEYS = 512, SG_ANE_PART_BYTES_MAX = 32 << 20 };
/* layers: of each part, whatever it holds; 0: by the rule. keep_outputs: values that are outputs of the graph live to the end.
 * EMEMORY. */
segue_status sg_ane_partition_make(struct sg_ane_partition *out, const struct sg_graph *g, uint32_t layers, int keep_outputs,
                             segue_error *err);
void sg_ane_partition_free(struct sg_ane_partition *c);
/* All parts are to be lowered with it; it must outlive them. */
void sg_ane_partition_set_range(struct sg_ane_partition *c, const struct sg_ane_range *range);

/* Why the helper runs an operation; NULL: the engine does. */
const char *sg_ane_helper_reason(const struct sg_graph *g, const struct sg_op *op);
/* Channels of a packed border, padded. */
uint32_t sg_ane_port_channels(const struct sg_graph *g, const int32_t *values, uint32_t n);
/* Channels of a slot in the packed state of `keys` columns: its numbers one after the other, `keys` in a channel. K and V
 * lie number by number, each with a column for every row of their ring (lowerring.h): where that has as many columns as
 * the state, a number is a channel. CONV and DELTA: all numbers. */
uint64_t sg_ane_slot_channels(const struct sg_slot *s, uint32_t keys);
uint64_t sg_ane_state_channels(const struct sg_graph *g, const struct sg_ane_part *p, uint32_t keys);

/* What a dispatch of a part holds at once, in bytes: its surfaces (values, info, the state coming and going) and what the
 * widest operation reads and writes, less weights. */
uint64_t sg_ane_part_bytes(const struct sg_graph *g, const struct sg_ane_part *p, uint32_t rows, uint32_t keys);

#endif
