/* partition.h: partition of a graph into parts that become programs: which operations the engine runs, in
 * which part, and which values pass between parts. The embedding and everything after the row selection
 * (final norm, head) run on the CPU, called the helper. The partition does not depend on the rows of a
 * dispatch.
 * SPDX-License-Identifier: MIT */
#ifndef SG_UNIT_ANE_PARTITION_H
#define SG_UNIT_ANE_PARTITION_H

#include "graph/graph.h"

enum { SG_ANE_PAD = 32 }; /* channels and columns of ports are multiples of this (constraints 1 and 26) */

struct sg_ane_range;

/* One part; the lists belong to the partition. */
struct sg_ane_part {
    uint32_t *ops;                    /* [ops_n] operations of the graph, ascending */
    int32_t *in, *out;                /* [in_n], [out_n] graph values, packed along the channels in this order */
    uint32_t *slots;                  /* [slots_n] slots of the state, in packing order */
    uint32_t ops_n, in_n, out_n, slots_n;
    uint32_t layer_from, layer_to;    /* layers [from, to) */
    const struct sg_ane_range *range; /* scaling of values, not owned; NULL: none */
    uint32_t fault;                   /* for tests: 1 + index of the operation whose value is called SG_ANE_FAULT; 0: none */
};
struct sg_ane_partition {
    struct sg_ane_part *parts; /* [parts_n] */
    uint32_t *before, *behind; /* [before_n], [behind_n] operations of the helper before and after the parts */
    uint32_t parts_n, before_n, behind_n;
    struct sg_arena arena; /* owns all lists */
};

/* Default rule: a part gets further layers, at most six, while the working set of a dispatch of 256 rows
 * with 512 keys is at most 32 MB; above that engines spill (constraint 20). Weights do not count,
 * because each dispatch streams them once, whatever the partition. */
enum { SG_ANE_PART_LAYERS_MAX = 6, SG_ANE_PART_ROWS = 256, SG_ANE_PART_KEYS = 512, SG_ANE_PART_BYTES_MAX = 32 << 20 };
/* layers: per part; 0: by the default rule. keep_outputs: outputs of the graph are results of the last part
 * even when no operation reads them. EMEMORY. Free with sg_ane_partition_free. */
segue_status sg_ane_partition_make(struct sg_ane_partition *out, const struct sg_graph *g, uint32_t layers, int keep_outputs,
                                   segue_error *err);
void sg_ane_partition_free(struct sg_ane_partition *c);
/* Sets the scaling for all parts; range must outlive them. */
void sg_ane_partition_set_range(struct sg_ane_partition *c, const struct sg_ane_range *range);
/* Sets `fault` of the part that has the operation; none has those of the helper. */
void sg_ane_partition_set_fault(struct sg_ane_partition *c, uint32_t op);

/* Reason for the helper to run an operation; NULL: the engine runs it. */
const char *sg_ane_helper_reason(const struct sg_graph *g, const struct sg_op *op);
/* Channels of a port that packs these values, padded to SG_ANE_PAD. */
uint32_t sg_ane_port_channels(const struct sg_graph *g, const int32_t *values, uint32_t n);
/* Channels of a slot in the packed state of `keys` columns. The elements are stored consecutively, `keys`
 * per channel. K and V are stored feature by feature, each with one element per column of the ring
 * (kv_ring.h); when the ring has as many columns as the state, a feature is a channel. CONV and DELTA
 * slots are stored as they are. The second function sums the slots of a part and pads the sum. */
uint64_t sg_ane_slot_channels(const struct sg_slot *s, uint32_t keys);
uint64_t sg_ane_state_channels(const struct sg_graph *g, const struct sg_ane_part *p, uint32_t keys);

/* Working set of a dispatch in bytes: its surfaces (values, info, old and new state), and operands and
 * results of the widest operation without weights. */
uint64_t sg_ane_part_bytes(const struct sg_graph *g, const struct sg_ane_part *p, uint32_t rows, uint32_t keys);

#endif
